//! The view on a terminal, which restores the terminal however the view ends.

use crate::SAMPLE_NS;
use crate::filter::Filter;
use crate::screen::{Request, Screen};
use crate::subject::Subjects;
use crate::view::View;
use corebeat_command::{DrawnTerminal, Failure, TerminalSignals, Tty, draw, end_by};
use corebeat_host::{Driver, Loop, Next, Periods, now_ns};
use corebeat_linux::LinuxMachine;
use corebeat_machine::{Clock, Snapshot};
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::layout::Rect;
use signal_hook::consts::{SIGHUP, SIGTSTP};
use signal_hook::low_level::emulate_default_handler;
use std::io;
use std::time::Duration;

/// Time to the first figures, unless the period is shorter.
const FIRST: Duration = Duration::from_millis(300);

/// Shows the processes until the user quits.
///
/// # Errors
/// The terminal cannot be used, or the host can no longer be observed. The terminal is restored.
pub(crate) fn show(
    machine: LinuxMachine,
    subjects: Subjects,
    period: Duration,
    filter: Filter,
) -> Result<(), Failure> {
    let signals = TerminalSignals::new().map_err(Failure::internal)?;
    let mut screen = Screen::new(subjects.are_named(), period);
    screen.filter = filter;
    let tty = Tty::open(io::stdout(), &signals).map_err(no_terminal)?;
    if !tty.wait_for_foreground(&signals)
        && let Some(signal) = signals.take_end()
    {
        end_by(signal);
    }
    // From here on, a panic restores the terminal as well.
    tty.leave_on_panic().map_err(no_terminal)?;
    let terminal = tty.enter().and_then(|()| tty.drawn()).map_err(no_terminal);
    let ended = terminal.and_then(|terminal| {
        let display = Display { subjects, screen, view: None, terminal, signals, ended: None };
        run(machine, &tty, display)
    });
    tty.leave();
    // The parent process must receive the signal as the cause of the end.
    match ended? {
        Some(signal) => end_by(signal),
        None => Ok(()),
    }
}

fn no_terminal(e: io::Error) -> Failure {
    Failure::internal(format!("the terminal cannot be used ({e}); --once works without one"))
}

/// Time that waits for keys as well.
struct TtyClock<'t> {
    tty: &'t Tty,
    /// Whether the terminal existed after the last wait.
    exists: io::Result<bool>,
}

impl Clock for TtyClock<'_> {
    fn now_ns(&self) -> u64 {
        now_ns()
    }

    fn wait_until(&mut self, at_ns: u64) {
        self.exists = self.tty.wait(Duration::from_nanos(at_ns.saturating_sub(now_ns())));
    }
}

/// The terminal, and what is on it.
struct Display {
    subjects: Subjects,
    screen: Screen,
    view: Option<View>,
    terminal: DrawnTerminal,
    signals: TerminalSignals,
    /// The end of the view: a failure, or the signal or key that ended it.
    ended: Option<Result<Option<i32>, Failure>>,
}

/// Runs the control loop until a key ends the view, or the signal that is returned.
fn run(machine: LinuxMachine, tty: &Tty, mut display: Display) -> Result<Option<i32>, Failure> {
    let first = FIRST.min(display.screen.period);
    let periods = Periods { observe_ns: nanoseconds(first), sample_ns: SAMPLE_NS };
    let mut control = Loop::new(machine, TtyClock { tty, exists: Ok(true) }, vec![], periods);
    let ended = display.draw().and_then(|()| {
        control.drive(&mut display)?;
        display.ended.take().unwrap_or(Ok(None))
    });
    // No error can be reported if the terminal no longer exists: standard error may be part of it.
    if !tty.wait(Duration::ZERO).is_ok_and(|exists| exists) {
        end_by(SIGHUP);
    }
    ended
}

fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64
}

impl Driver<LinuxMachine, TtyClock<'_>> for Display {
    fn poll(&mut self, _: &mut LinuxMachine, clock: &mut TtyClock<'_>) -> Next {
        if self.ended.is_some() {
            return Next::End;
        }
        match self.handle(clock) {
            // The first period is shorter than the others.
            Ok(Next::Wait) if self.view.is_none() => {
                Next::SetPeriod(nanoseconds(self.screen.period))
            }
            Ok(next) => next,
            Err(failure) => self.end(Err(failure)),
        }
    }

    fn observed(
        &mut self,
        machine: &mut LinuxMachine,
        _: &mut TtyClock<'_>,
        snapshot: &mut Snapshot,
    ) -> bool {
        if self.ended.is_none() {
            self.view = Some(self.subjects.figures(machine, snapshot));
            self.ended = self.draw().err().map(Err);
        }
        false
    }
}

impl Display {
    fn end(&mut self, ended: Result<Option<i32>, Failure>) -> Next {
        self.ended = Some(ended);
        Next::End
    }

    /// Handles keys and signals; while the view is paused, until it continues.
    fn handle(&mut self, clock: &mut TtyClock<'_>) -> Result<Next, Failure> {
        let mut next = Next::Wait;
        loop {
            let (paused, period) = (self.screen.paused, self.screen.period);
            let mut changed = false;
            if let Some(signal) = self.signals.take_end() {
                return Ok(self.end(Ok(Some(signal))));
            }
            if self.signals.take_stop() {
                self.stop(clock.tty)?;
            }
            let is_resumed = self.signals.take_resume();
            if is_resumed {
                if !clock.tty.wait_for_foreground(&self.signals) {
                    return Ok(self.end(Ok(self.signals.take_end())));
                }
                self.resume(clock.tty)?;
                changed = true;
            }
            // After the signals: reading in the background stops the process.
            let mut exists = std::mem::replace(&mut clock.exists, Ok(true)).map_err(no_terminal)?;
            while exists && event::poll(Duration::ZERO).map_err(no_terminal)? {
                match self.take_event()? {
                    Some(Request::Quit) => return Ok(self.end(Ok(None))),
                    Some(Request::Stop) => self.signals.request_stop(),
                    Some(Request::Carry(change)) => {
                        self.screen.report(change.carry_out());
                        changed = true;
                    }
                    None => changed = true,
                }
                exists = clock.tty.wait(Duration::ZERO).map_err(no_terminal)?;
            }
            if !exists {
                return Ok(self.end(Ok(Some(SIGHUP))));
            }
            let observe_ns = nanoseconds(self.screen.period);
            if is_resumed || (paused && !self.screen.paused) {
                // The time of the pause is not part of a span.
                next = Next::Restart(observe_ns);
            } else if period != self.screen.period {
                next = Next::SetPeriod(observe_ns);
            }
            if changed {
                self.draw()?;
            }
            if !self.screen.paused {
                return Ok(next);
            }
            clock.wait_until(now_ns() + SAMPLE_NS);
        }
    }

    fn draw(&mut self) -> Result<(), Failure> {
        let (screen, view) = (&mut self.screen, self.view.as_ref());
        draw(&mut self.terminal, |frame| screen.draw(view, frame)).map_err(no_terminal)
    }

    fn take_event(&mut self) -> Result<Option<Request>, Failure> {
        let empty = View::default();
        match event::read().map_err(no_terminal)? {
            Event::Key(key) if key.kind != KeyEventKind::Release => {
                Ok(self.screen.key(key, self.view.as_ref().unwrap_or(&empty)))
            }
            _ => Ok(None),
        }
    }

    /// Restores the terminal and stops the process. The shell resumes it by SIGCONT.
    fn stop(&mut self, tty: &Tty) -> Result<(), Failure> {
        tty.leave();
        emulate_default_handler(SIGTSTP).map_err(Failure::internal)
    }

    /// Takes the terminal again.
    fn resume(&mut self, tty: &Tty) -> Result<(), Failure> {
        // A stop by SIGSTOP leaves the mode of the terminal undefined.
        tty.leave();
        tty.enter().map_err(no_terminal)?;
        // The next frame has another size, so all of it is drawn. `Terminal::clear` would ask for
        // the place of the cursor, which not every terminal reports.
        self.terminal.resize(Rect::ZERO).map_err(no_terminal)
    }
}
