//! The view on a terminal, from its beginning to its end, however it ends.

use crate::failure::Failure;
use crate::top::GLANCE;
use crate::top::screen::{Screen, Wish};
use crate::top::seen::Seen;
use crate::top::subject::Subjects;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, enable_raw_mode};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::low_level::emulate_default_handler;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The first figures come after so long, or a period if that is shorter.
const FIRST: Duration = Duration::from_millis(300);

/// Shows what is watched until the user has seen enough.
///
/// # Errors
/// Where there is no terminal after all, or the host cannot be seen any more. The terminal is as it was before.
pub(crate) fn show(subjects: Subjects, period: Duration) -> Result<(), Failure> {
    let signals = Signals::new().map_err(Failure::own)?;
    let screen = Screen::new(subjects.are_named(), period);
    // From here on a panic restores the terminal as well.
    let terminal = Tty::open().and_then(|tty| Ok((tty, ratatui::try_init()?))).map_err(no_terminal);
    let live = |(tty, terminal)| Live { subjects, screen, seen: None, tty, terminal, signals };
    let ended = terminal.and_then(|t| live(t).run());
    ratatui::restore();
    // A signal that ends us has to be what our parent is told that we ended by.
    match ended? {
        Some(signal) => emulate_default_handler(signal).map_err(Failure::own),
        None => Ok(()),
    }
}

fn no_terminal(e: io::Error) -> Failure {
    Failure::own(format!("the terminal cannot be used ({e}); --once needs none"))
}

/// Signals that would leave the terminal as it must not be left.
pub(crate) struct Signals {
    ends: Vec<(i32, Arc<AtomicBool>)>,
    stop: Arc<AtomicBool>,
    goes_on: Arc<AtomicBool>,
}

impl Signals {
    pub(crate) fn new() -> io::Result<Self> {
        let flag = |signal| {
            let flag = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register(signal, Arc::clone(&flag)).map(|_| flag)
        };
        let ends = [SIGTERM, SIGHUP, SIGINT, SIGQUIT].into_iter();
        Ok(Signals {
            ends: ends.map(|s| Ok((s, flag(s)?))).collect::<io::Result<_>>()?,
            stop: flag(SIGTSTP)?,
            goes_on: flag(SIGCONT)?,
        })
    }

    /// The signal that asks for the end, if one has come since this was asked last.
    pub(crate) fn end(&self) -> Option<i32> {
        self.ends.iter().find(|(_, flag)| flag.swap(false, Ordering::SeqCst)).map(|&(signal, _)| signal)
    }
}

/// What keys come from. crossterm reads for ever from a terminal that has gone, so it is asked only where there is one.
pub(crate) struct Tty(OwnedFd);

impl Tty {
    /// The one that crossterm takes.
    pub(crate) fn open() -> io::Result<Self> {
        let stdin = io::stdin();
        match stdin.is_terminal() {
            true => stdin.as_fd().try_clone_to_owned(),
            false => File::open("/dev/tty").map(OwnedFd::from),
        }
        .map(Tty)
    }

    /// Waits until there may be something to read, or a signal has come. Whether the terminal is still there.
    pub(crate) fn wait(&self, timeout: Duration) -> io::Result<bool> {
        let mut timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
        loop {
            let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
            match poll(&mut fds, Some(&timeout)) {
                Ok(_) => {
                    let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
                    return Ok(!fds[0].revents().intersects(gone));
                }
                Err(Errno::INTR) => timeout = Timespec::default(),
                Err(e) => return Err(e.into()),
            }
        }
    }
}

struct Live {
    subjects: Subjects,
    screen: Screen,
    seen: Option<Seen>,
    tty: Tty,
    terminal: DefaultTerminal,
    signals: Signals,
}

impl Live {
    /// Until a key, or the signal that is returned, ends it. Where the terminal has gone nobody can be told of anything:
    /// not even standard error may be there.
    fn run(mut self) -> Result<Option<i32>, Failure> {
        let ended = self.turn();
        if !self.tty.wait(Duration::ZERO).is_ok_and(|there| there) {
            emulate_default_handler(SIGHUP).map_err(Failure::own)?;
        }
        ended
    }

    fn turn(&mut self) -> Result<Option<i32>, Failure> {
        let mut turn = Instant::now() + FIRST.min(self.screen.period);
        self.draw()?;
        loop {
            let left = turn.saturating_duration_since(Instant::now());
            let wait = if self.screen.paused { GLANCE } else { left.min(GLANCE) };
            let mut changed = false;
            let (paused, period) = (self.screen.paused, self.screen.period);
            let mut there = self.tty.wait(wait).map_err(no_terminal)?;
            while there && event::poll(Duration::ZERO).map_err(no_terminal)? {
                match self.take_event()? {
                    Some(Wish::Quit) => return Ok(None),
                    Some(Wish::Stop) => self.signals.stop.store(true, Ordering::SeqCst),
                    None => changed = true,
                }
                there = self.tty.wait(Duration::ZERO).map_err(no_terminal)?;
            }
            if !there {
                return Ok(Some(SIGHUP));
            }
            if let Some(signal) = self.signals.end() {
                return Ok(Some(signal));
            }
            if self.signals.stop.swap(false, Ordering::SeqCst) {
                self.stop()?;
            }
            if self.signals.goes_on.swap(false, Ordering::SeqCst) {
                self.go_on()?;
                turn = self.begin_span()?;
                changed = true;
            }
            if paused && !self.screen.paused {
                turn = self.begin_span()?;
            } else if period != self.screen.period {
                turn = turn.min(Instant::now() + self.screen.period);
            }
            if !self.screen.paused {
                if Instant::now() >= turn {
                    self.seen = Some(self.subjects.observe()?);
                    turn = Instant::now() + self.screen.period;
                    changed = true;
                } else if !changed {
                    self.subjects.glance();
                }
            }
            if changed {
                self.draw()?;
            }
        }
    }

    fn draw(&mut self) -> Result<(), Failure> {
        let (screen, seen) = (&mut self.screen, self.seen.as_ref());
        self.terminal.draw(|frame| screen.draw(seen, frame)).map(drop).map_err(no_terminal)
    }

    fn take_event(&mut self) -> Result<Option<Wish>, Failure> {
        let empty = Seen::default();
        match event::read().map_err(no_terminal)? {
            Event::Key(key) if key.kind != KeyEventKind::Release => {
                Ok(self.screen.key(key, self.seen.as_ref().unwrap_or(&empty)))
            }
            _ => Ok(None),
        }
    }

    /// What was seen while nobody looked is of no interest: a new span begins now. When it ends.
    fn begin_span(&mut self) -> Result<Instant, Failure> {
        self.subjects.observe()?;
        Ok(Instant::now() + self.screen.period)
    }

    /// Gives the terminal back and stops; the shell lets us go on by SIGCONT.
    fn stop(&mut self) -> Result<(), Failure> {
        self.terminal.show_cursor().map_err(no_terminal)?;
        ratatui::restore();
        emulate_default_handler(SIGTSTP).map_err(Failure::own)
    }

    /// Takes the terminal again.
    fn go_on(&mut self) -> Result<(), Failure> {
        // Whoever stopped us without asking has left the terminal's mode to chance.
        ratatui::restore();
        enable_raw_mode().and_then(|()| execute!(io::stdout(), EnterAlternateScreen)).map_err(no_terminal)?;
        self.terminal.clear().map_err(no_terminal)
    }
}
