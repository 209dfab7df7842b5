//! The terminal of views that redraw themselves, and the signals that such views must handle.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Flags of the signals that would leave the terminal in a wrong mode if they were not handled.
#[derive(Debug)]
pub struct TerminalSignals {
    ends: Vec<(i32, Arc<AtomicBool>)>,
    stop: Arc<AtomicBool>,
    resume: Arc<AtomicBool>,
}

impl TerminalSignals {
    /// Installs handlers for SIGTERM, SIGHUP, SIGINT, SIGQUIT, SIGTSTP and SIGCONT.
    ///
    /// # Errors
    /// If a handler cannot be installed.
    pub fn new() -> io::Result<Self> {
        let flag = |signal| {
            let flag = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register(signal, Arc::clone(&flag)).map(|_| flag)
        };
        let ends = [SIGTERM, SIGHUP, SIGINT, SIGQUIT].into_iter();
        Ok(TerminalSignals {
            ends: ends.map(|s| Ok((s, flag(s)?))).collect::<io::Result<_>>()?,
            stop: flag(SIGTSTP)?,
            resume: flag(SIGCONT)?,
        })
    }

    /// Returns and clears a received signal that ends the process.
    pub fn take_end(&self) -> Option<i32> {
        let is_set = |(_, flag): &&(i32, Arc<AtomicBool>)| flag.swap(false, Ordering::SeqCst);
        self.ends.iter().find(is_set).map(|&(signal, _)| signal)
    }

    /// Records a request to stop, as SIGTSTP does.
    pub fn request_stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    /// Returns whether a stop was requested, and clears the request.
    pub fn take_stop(&self) -> bool {
        self.stop.swap(false, Ordering::SeqCst)
    }

    /// Returns whether the process was resumed (SIGCONT), and clears the flag.
    pub fn take_resume(&self) -> bool {
        self.resume.swap(false, Ordering::SeqCst)
    }
}

/// The terminal that delivers key events. crossterm blocks for ever on a terminal that was closed,
/// so [`wait`](Self::wait) checks the terminal before crossterm reads from it.
#[derive(Debug)]
pub struct Tty(OwnedFd);

impl Tty {
    /// Opens the terminal that crossterm reads from: standard input, else `/dev/tty`.
    ///
    /// # Errors
    /// If the process has no terminal.
    pub fn open() -> io::Result<Self> {
        let stdin = io::stdin();
        match stdin.is_terminal() {
            true => stdin.as_fd().try_clone_to_owned(),
            false => File::open("/dev/tty").map(OwnedFd::from),
        }
        .map(Tty)
    }

    /// Waits until input may be readable, a signal arrives, or `timeout` has passed. Returns
    /// whether the terminal still exists.
    ///
    /// # Errors
    /// If the terminal cannot be polled.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        let mut timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
        loop {
            let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
            match poll(&mut fds, Some(&timeout)) {
                Ok(_) => {
                    let closed = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
                    return Ok(!fds[0].revents().intersects(closed));
                }
                Err(Errno::INTR) => timeout = Timespec::default(),
                Err(e) => return Err(e.into()),
            }
        }
    }
}
