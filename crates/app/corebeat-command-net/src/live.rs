//! `corebeat net draw --live`: shows a running network on a terminal, or as one line per second.
//!
//! ```text
//!  Flow: records through the network, in a separate thread
//!    |--- Meter, dump ---> Gauges: fill levels, busiest entity --> State --> screen, or a line
//!    `<-- Stop: q, Ctrl-C, a signal
//! ```

mod gauge;
mod screen;

use crate::flow::{Flow, How, Reporter, Stop, To};
use crate::meter::{Meter, lock};
use crate::program::Which;
use corebeat_command::{
    Done, Failure, TerminalSignals, Tty, draw, end_by, print_error, print_line, view_options,
};
use gauge::Gauges;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use screen::Screen;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Period of the samples, on a terminal and without one.
const PERIOD: Duration = Duration::from_millis(250);
const LINE_PERIOD: Duration = Duration::from_secs(1);

/// Samples may take one part in this many of the time: after a slow sample the next one is delayed.
const SAMPLE_SHARE: u32 = 50;

/// Longest time until a signal, or the end, is detected.
const POLL: Duration = Duration::from_millis(50);

/// Largest number of messages that are kept until the terminal is free.
const KEPT_MAX: usize = 100;

/// The end of the view.
enum Ended {
    /// The network ended with this result.
    Network(Done),
    /// The user quit before the end of the network.
    Leave,
}

pub(crate) fn main(which: &Which, how: &How, output: Option<&Path>) -> Done {
    let (stdout, stderr) = (io::stdout().is_terminal(), io::stderr().is_terminal());
    let has_terminal = stdout || stderr;
    if has_terminal {
        if how.reads_standard_input() && !which.is_standard_input() && io::stdin().is_terminal() {
            return Err(Failure::usage(
                "records and keys cannot both come from the terminal; \
                 name the records with -i FILE or -I PORT",
            ));
        }
        if stderr && how.observes_on_standard_error() {
            return Err(Failure::usage(
                "observers cannot write to the terminal of --live; \
                 name a file: --observe NAME=FILE",
            ));
        }
    }
    let to = if stdout { To::Nowhere(output) } else { To::Output(output) };
    how.require_distinct(which, &to, None)?;
    if stdout && output.is_none() && !how.connects() {
        print_line("output records are discarded; -o FILE writes them");
    }
    let signals = TerminalSignals::new().map_err(Failure::internal)?;
    // Messages would corrupt the screen while it is shown.
    let kept = Arc::new(Mutex::new(Vec::new()));
    let reporter = match has_terminal {
        false => Reporter::plain(),
        true => {
            let kept = kept.clone();
            Reporter::new(move |text| {
                let mut kept = lock(&kept);
                if kept.len() < KEPT_MAX {
                    kept.push(text);
                }
            })
        }
    };
    let meter = Meter::of_streams();
    let flow = how.start(which, to, Some(&meter), reporter)?;
    let mut live = Live {
        gauges: Gauges::new(meter, flow.scene().clone()),
        stop: flow.stop(),
        done: write(flow),
        requested: None,
        signals,
    };
    let ended = match has_terminal {
        true => live.show(stdout),
        false => live.print_lines(),
    };
    lock(&kept).drain(..).for_each(print_error);
    // The parent process must receive the signal as the cause of the end.
    if let Some(signal) = live.requested.flatten() {
        end_by(signal);
    }
    match ended? {
        Ended::Network(done) => done,
        Ended::Leave => {
            Err(Failure::data("quit before the end of the network; the records inside are lost"))
        }
    }
}

/// Runs the network in a separate thread. The receiver returns its result.
fn write(flow: Flow) -> Receiver<Done> {
    let (done, ended) = sync_channel(1);
    thread::spawn(move || done.send(flow.write()));
    ended
}

struct Live {
    gauges: Gauges,
    stop: Stop,
    done: Receiver<Done>,
    /// Whether the network was requested to end, and the signal that requested it.
    requested: Option<Option<i32>>,
    signals: TerminalSignals,
}

impl Live {
    /// Requests the end of the network. Returns whether the end was already requested before.
    fn request_end(&mut self, signal: Option<i32>) -> bool {
        if self.requested.is_some() {
            return true;
        }
        self.requested = Some(signal);
        self.stop.stop();
        false
    }

    /// Prints one line per second, and one at the end.
    fn print_lines(&mut self) -> Result<Ended, Failure> {
        let mut next_sample = Instant::now() + LINE_PERIOD;
        loop {
            match self
                .done
                .recv_timeout(POLL.min(next_sample.saturating_duration_since(Instant::now())))
            {
                Ok(done) => {
                    print_error(screen::line(&self.gauges.whole()) + "\n");
                    return Ok(Ended::Network(done));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(lost()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Some(signal) = self.signals.take_end()
                && self.request_end(Some(signal))
            {
                return Ok(Ended::Leave);
            }
            if Instant::now() >= next_sample {
                let begin = Instant::now();
                let line = screen::line(&self.gauges.sample());
                print_error(line + "\n");
                next_sample = after(begin, LINE_PERIOD);
            }
        }
    }

    /// Draws on the terminal that is standard output, or else on standard error.
    fn show(&mut self, on_stdout: bool) -> Result<Ended, Failure> {
        let tty = Tty::open().map_err(no_terminal)?;
        if !tty.wait_for_foreground(&self.signals) {
            return self.print_lines();
        }
        let _raw = Raw::begin(&tty, on_stdout).map_err(no_terminal)?;
        let mut terminal =
            Terminal::with_options(CrosstermBackend::new(Raw::side(on_stdout)), view_options())
                .map_err(no_terminal)?;
        let mut screen = Screen::default();
        let mut state = self.gauges.sample();
        let mut next_sample = Instant::now();
        loop {
            let mut changed = false;
            if Instant::now() >= next_sample {
                let begin = Instant::now();
                state = self.gauges.sample();
                next_sample = after(begin, PERIOD);
                changed = true;
            }
            if changed {
                let ending = self.requested.is_some();
                draw(&mut terminal, |frame| screen.draw(&state, ending, frame))
                    .map_err(no_terminal)?;
            }
            match self.done.try_recv() {
                Ok(done) => return Ok(Ended::Network(done)),
                Err(TryRecvError::Disconnected) => return Err(lost()),
                Err(TryRecvError::Empty) => {}
            }
            let wait = POLL.min(next_sample.saturating_duration_since(Instant::now()));
            let mut exists = tty.wait(wait).map_err(no_terminal)?;
            while exists && event::poll(Duration::ZERO).map_err(no_terminal)? {
                match event::read().map_err(no_terminal)? {
                    Event::Key(key) if key.kind == KeyEventKind::Release => {}
                    Event::Key(key) if ends(key) => {
                        if self.request_end(None) {
                            return Ok(Ended::Leave);
                        }
                        next_sample = Instant::now();
                    }
                    Event::Key(key) => screen.key(key.code),
                    _ => next_sample = Instant::now(), // the size changed
                }
                exists = tty.wait(Duration::ZERO).map_err(no_terminal)?;
            }
            let signal = if exists || tty.wait(Duration::ZERO).is_ok_and(|exists| exists) {
                self.signals.take_end()
            } else {
                Some(libc::SIGHUP)
            };
            if let Some(signal) = signal
                && self.request_end(Some(signal))
            {
                return Ok(Ended::Leave);
            }
        }
    }
}

/// Whether a key ends the view.
fn ends(key: KeyEvent) -> bool {
    match key.code {
        KeyCode::Char('c') => key.modifiers.contains(KeyModifiers::CONTROL),
        code => matches!(code, KeyCode::Char('q') | KeyCode::Esc),
    }
}

/// The time of the next sample after one that began at `begin`.
fn after(begin: Instant, period: Duration) -> Instant {
    begin + period.max(begin.elapsed() * SAMPLE_SHARE)
}

fn lost() -> Failure {
    Failure::internal("the network was lost; please report this")
}

fn no_terminal(e: io::Error) -> Failure {
    Failure::internal(format!("the terminal cannot be used ({e}); use 'net run', which needs none"))
}

/// The alternate screen in raw mode. Dropping it restores the terminal, also during a panic.
struct Raw<'t> {
    tty: &'t Tty,
    on_stdout: bool,
}

impl Raw<'_> {
    fn side(on_stdout: bool) -> Box<dyn Write> {
        if on_stdout { Box::new(io::stdout()) } else { Box::new(io::stderr()) }
    }

    fn begin(tty: &Tty, on_stdout: bool) -> io::Result<Raw<'_>> {
        enable_raw_mode()?;
        let raw = Raw { tty, on_stdout };
        execute!(Raw::side(on_stdout), EnterAlternateScreen, Hide)?;
        Ok(raw)
    }
}

impl Drop for Raw<'_> {
    fn drop(&mut self) {
        // Errors mean that the terminal is gone.
        self.tty.restore(|| {
            let _ = execute!(Raw::side(self.on_stdout), LeaveAlternateScreen, Show);
            let _ = disable_raw_mode();
        });
    }
}
