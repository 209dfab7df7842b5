//! `corebeat net draw --live`: a network at work, on a terminal or a line a second.
//!
//! ```text
//!  Flow: records through the network, in a thread of its own
//!    |--- Meter, dump ---> Gauges: what is in the streams, who is busy --> Seen --> screen, or a line
//!    `<-- Stop: q, Ctrl-C, a signal
//! ```

mod gauge;
mod screen;

use crate::failure::{Done, Failure, tell};
use crate::net::flow::{Flow, How, Stop, Teller, To};
use crate::net::meter::{Meter, lock};
use crate::net::program::Which;
use crate::top::live::{Signals, Tty};
use gauge::Gauges;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use screen::Screen;
use signal_hook::low_level::emulate_default_handler;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// From one look to the next, on a terminal and without one.
const PERIOD: Duration = Duration::from_millis(250);
const LINE_PERIOD: Duration = Duration::from_secs(1);

/// Looks may take this part of the time: after one that took long, the next comes later.
const LOOK_SHARE: u32 = 50;

/// The longest time until a signal, or the end, is noticed.
const GLANCE: Duration = Duration::from_millis(50);

/// Remarks that are kept until the terminal is free.
const KEPT_MAX: usize = 100;

/// What ended the view.
enum Ended {
    /// The network, in this way.
    Network(Done),
    /// A user who did not want to wait for that.
    Leave,
}

pub(crate) fn main(which: &Which, how: &How, output: Option<&Path>) -> Done {
    let (stdout, stderr) = (io::stdout().is_terminal(), io::stderr().is_terminal());
    let has_terminal = stdout || stderr;
    if has_terminal {
        if how.reads_standard_input() && !which.is_standard_input() && io::stdin().is_terminal() {
            return Err(Failure::usage(
                "records and keys cannot both come from the terminal; give records by -i FILE or -I PORT",
            ));
        }
        if stderr && how.observes_on_standard_error() {
            return Err(Failure::usage(
                "observers cannot write to the terminal of --live; name a file: --observe NAME=FILE",
            ));
        }
    }
    let to = if stdout { To::Nowhere(output) } else { To::Output(output) };
    if stdout && output.is_none() && !how.connects() {
        tell("corebeat: records that come out are not kept; -o FILE writes them\n");
    }
    let signals = Signals::new().map_err(Failure::own)?;
    // What is told while the screen is shown would spoil it.
    let kept = Arc::new(Mutex::new(Vec::new()));
    let teller = match has_terminal {
        false => Teller::plain(),
        true => {
            let kept = kept.clone();
            Teller::new(move |text| {
                let mut kept = lock(&kept);
                if kept.len() < KEPT_MAX {
                    kept.push(text);
                }
            })
        }
    };
    let meter = Meter::of_streams();
    let flow = how.start(which, to, Some(&meter), teller)?;
    let mut live = Live {
        gauges: Gauges::new(meter, flow.scene().clone()),
        stop: flow.stop(),
        done: write(flow),
        asked: None,
        signals,
    };
    let ended = match has_terminal {
        true => live.show(stdout),
        false => live.tell(),
    };
    lock(&kept).drain(..).for_each(tell);
    // A signal that ends us has to be what our parent is told that we ended by.
    if let Some(signal) = live.asked.flatten() {
        emulate_default_handler(signal).map_err(Failure::own)?;
    }
    match ended? {
        Ended::Network(done) => done,
        Ended::Leave => Err(Failure::wrong("left before the network had ended; what was in it is lost")),
    }
}

/// Lets a network work, in a thread of its own. How it ended comes in the end.
fn write(flow: Flow) -> Receiver<Done> {
    let (done, ended) = sync_channel(1);
    thread::spawn(move || done.send(flow.write()));
    ended
}

struct Live {
    gauges: Gauges,
    stop: Stop,
    done: Receiver<Done>,
    /// Whether the network was asked to end, and the signal if it was one.
    asked: Option<Option<i32>>,
    signals: Signals,
}

impl Live {
    /// Asks the network to end; whether it was asked before, and nobody wants to wait any more.
    fn ask(&mut self, signal: Option<i32>) -> bool {
        if self.asked.is_some() {
            return true;
        }
        self.asked = Some(signal);
        self.stop.stop();
        false
    }

    /// A line a second, and one at the end.
    fn tell(&mut self) -> Result<Ended, Failure> {
        let mut turn = Instant::now() + LINE_PERIOD;
        loop {
            match self.done.recv_timeout(GLANCE.min(turn.saturating_duration_since(Instant::now()))) {
                Ok(done) => {
                    tell(screen::line(&self.gauges.whole()) + "\n");
                    return Ok(Ended::Network(done));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(lost()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Some(signal) = self.signals.end()
                && self.ask(Some(signal))
            {
                return Ok(Ended::Leave);
            }
            if Instant::now() >= turn {
                let begin = Instant::now();
                let line = screen::line(&self.gauges.look());
                tell(line + "\n");
                turn = next(begin, LINE_PERIOD);
            }
        }
    }

    /// On the terminal that is standard output, or else standard error.
    fn show(&mut self, on_stdout: bool) -> Result<Ended, Failure> {
        let tty = Tty::open().map_err(no_terminal)?;
        let _raw = Raw::begin(on_stdout).map_err(no_terminal)?;
        let mut terminal = Terminal::new(CrosstermBackend::new(Raw::side(on_stdout))).map_err(no_terminal)?;
        let mut screen = Screen::default();
        let mut seen = self.gauges.look();
        let mut turn = Instant::now();
        loop {
            let mut changed = false;
            if Instant::now() >= turn {
                let begin = Instant::now();
                seen = self.gauges.look();
                turn = next(begin, PERIOD);
                changed = true;
            }
            if changed {
                let ending = self.asked.is_some();
                terminal.draw(|frame| screen.draw(&seen, ending, frame)).map_err(no_terminal)?;
            }
            match self.done.try_recv() {
                Ok(done) => return Ok(Ended::Network(done)),
                Err(TryRecvError::Disconnected) => return Err(lost()),
                Err(TryRecvError::Empty) => {}
            }
            let wait = GLANCE.min(turn.saturating_duration_since(Instant::now()));
            let mut there = tty.wait(wait).map_err(no_terminal)?;
            while there && event::poll(Duration::ZERO).map_err(no_terminal)? {
                match event::read().map_err(no_terminal)? {
                    Event::Key(key) if key.kind != KeyEventKind::Release => match key.code {
                        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                            if self.ask(None) {
                                return Ok(Ended::Leave);
                            }
                            turn = Instant::now();
                        }
                        KeyCode::Char('q') | KeyCode::Esc => {
                            if self.ask(None) {
                                return Ok(Ended::Leave);
                            }
                            turn = Instant::now();
                        }
                        code => screen.key(code),
                    },
                    _ => turn = Instant::now(), // another size
                }
                there = tty.wait(Duration::ZERO).map_err(no_terminal)?;
            }
            let signal = if there || tty.wait(Duration::ZERO).is_ok_and(|t| t) {
                self.signals.end()
            } else {
                Some(signal_hook::consts::SIGHUP)
            };
            if let Some(signal) = signal
                && self.ask(Some(signal))
            {
                return Ok(Ended::Leave);
            }
        }
    }
}

/// When to look again after a look that has begun then.
fn next(begin: Instant, period: Duration) -> Instant {
    begin + period.max(begin.elapsed() * LOOK_SHARE)
}

fn lost() -> Failure {
    Failure::own("the network was lost; please report this")
}

fn no_terminal(e: io::Error) -> Failure {
    Failure::own(format!("the terminal cannot be used ({e}); 'net run' needs none"))
}

/// The terminal as a screen; as it was before when dropped, also by a panic.
struct Raw {
    on_stdout: bool,
}

impl Raw {
    fn side(on_stdout: bool) -> Box<dyn Write> {
        if on_stdout { Box::new(io::stdout()) } else { Box::new(io::stderr()) }
    }

    fn begin(on_stdout: bool) -> io::Result<Raw> {
        enable_raw_mode()?;
        let raw = Raw { on_stdout };
        execute!(Raw::side(on_stdout), EnterAlternateScreen, Hide)?;
        Ok(raw)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // If there is no terminal any more, there is nothing to be done for it.
        let _ = execute!(Raw::side(self.on_stdout), LeaveAlternateScreen, Show);
        let _ = disable_raw_mode();
    }
}
