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
    Done, Failure, TerminalSignals, Tty, draw, end_by, print_error, print_line, print_text_of_loop,
};
use gauge::Gauges;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use screen::Screen;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
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
    how.require_alone()?;
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
        true if stdout => live.show(io::stdout()),
        true => live.show(io::stderr()),
        false => live.print_lines(),
    };
    // The parent process must receive the signal as the cause of the end. No reader of standard
    // error delays this end.
    if let Some(signal) = live.requested.flatten() {
        lock(&kept).drain(..).for_each(print_text_of_loop);
        end_by(signal);
    }
    lock(&kept).drain(..).for_each(print_error);
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
    /// Requests the end of the network. Returns whether the end was already requested before. A
    /// closed terminal is no second request: the kernel and a shell may both report it.
    fn request_end(&mut self, signal: Option<i32>) -> bool {
        if self.requested.is_some() {
            return signal != Some(libc::SIGHUP);
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
                    let line = screen::line(&self.gauges.whole()) + "\n";
                    match self.requested {
                        Some(_) => print_text_of_loop(line),
                        None => print_error(line),
                    }
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
                print_text_of_loop(screen::line(&self.gauges.sample()) + "\n");
                next_sample = after(begin, LINE_PERIOD);
            }
        }
    }

    /// Draws on a terminal. If the terminal is closed, the network ends as by SIGHUP, or continues
    /// without a view if its parent makes it ignore that signal.
    fn show(&mut self, on: impl AsFd) -> Result<Ended, Failure> {
        let tty = Tty::open(on, &self.signals).map_err(no_terminal)?;
        if !tty.wait_for_foreground(&self.signals) {
            return self.print_lines();
        }
        match self.show_while_open(&tty) {
            Ok(Some(ended)) => return Ok(ended),
            // After the terminal was closed, each failure has this reason.
            Err(failure) if tty.wait(Duration::ZERO).is_ok_and(|exists| exists) => {
                return Err(failure);
            }
            Ok(None) | Err(_) => {}
        }
        if self.signals.end_at_hang_up() {
            self.request_end(Some(libc::SIGHUP));
        }
        self.print_lines()
    }

    /// Returns `None` if the terminal was closed.
    fn show_while_open(&mut self, tty: &Tty) -> Result<Option<Ended>, Failure> {
        let _entered = Entered::begin(tty).map_err(no_terminal)?;
        let mut terminal = tty.drawn().map_err(no_terminal)?;
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
                Ok(done) => return Ok(Some(Ended::Network(done))),
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
                            return Ok(Some(Ended::Leave));
                        }
                        next_sample = Instant::now();
                    }
                    Event::Key(key) => screen.key(key.code),
                    _ => next_sample = Instant::now(), // the size changed
                }
                exists = tty.wait(Duration::ZERO).map_err(no_terminal)?;
            }
            if !exists {
                return Ok(None);
            }
            if let Some(signal) = self.signals.take_end()
                && self.request_end(Some(signal))
            {
                return Ok(Some(Ended::Leave));
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
struct Entered<'t>(&'t Tty);

impl Entered<'_> {
    fn begin(tty: &Tty) -> io::Result<Entered<'_>> {
        let entered = Entered(tty);
        tty.enter()?;
        Ok(entered)
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}
