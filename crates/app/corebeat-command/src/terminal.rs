//! The terminal of views that redraw themselves, and the signals that such views must handle.
//!
//! A view in the background must not change the terminal, which belongs to another process. The
//! kernel stops such a view by SIGTTOU, and stops it again after each SIGCONT: a view that restores
//! the terminal because of a signal would never end. Views therefore wait
//! ([`Tty::wait_for_foreground`]) before they change the terminal, and restore the terminal only
//! where it is theirs ([`Tty::restore`]).

use crate::shutdown::record_ending_signals;
use corebeat_linux::is_ignored;
use ratatui::backend::Backend;
use ratatui::layout::Rect;
use ratatui::{Frame, Terminal, TerminalOptions, Viewport};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;
use signal_hook::consts::{SIGCONT, SIGTSTP};
use std::fs::File;
use std::io::{self, IsTerminal};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Time between two checks whether a view in the background has come to the foreground.
const FOREGROUND_PERIOD: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Signals that would leave the terminal in a wrong mode if they were not handled.
#[derive(Debug)]
pub struct TerminalSignals {
    /// Number of the last signal that ends the process; 0 for none.
    end: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    resume: Arc<AtomicBool>,
}

impl TerminalSignals {
    /// Installs handlers for the signals that end this process, for SIGTSTP and for SIGCONT.
    ///
    /// # Errors
    /// If a handler cannot be installed.
    pub fn new() -> io::Result<Self> {
        let flag = |signal| {
            let flag = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register(signal, Arc::clone(&flag)).map(|_| flag)
        };
        Ok(TerminalSignals {
            end: record_ending_signals()?,
            stop: flag(SIGTSTP)?,
            resume: flag(SIGCONT)?,
        })
    }

    /// Returns and clears a received signal that ends the process.
    pub fn take_end(&self) -> Option<i32> {
        let signal = self.end.swap(0, Ordering::SeqCst) as i32;
        (signal != 0).then_some(signal)
    }

    /// Returns whether a signal that ends the process was received, and not taken.
    fn must_end(&self) -> bool {
        self.end.load(Ordering::SeqCst) != 0
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

    /// Waits until this process is in the foreground of the terminal, or a signal requests the end.
    /// Returns whether the process is in the foreground.
    pub fn wait_for_foreground(&self, signals: &TerminalSignals) -> bool {
        while self.is_in_background() {
            if signals.must_end() {
                return false;
            }
            // A signal ends the wait.
            let _ = poll(&mut [], Some(&FOREGROUND_PERIOD));
        }
        true
    }

    /// Runs a function that restores the terminal, unless the terminal belongs to another process
    /// group. No stop delays the end of this process.
    pub fn restore(&self, restore: impl FnOnce()) {
        if self.is_in_background() {
            return;
        }
        // SAFETY: plain system calls on sets that live through them.
        unsafe {
            let mut stops = MaybeUninit::uninit();
            libc::sigemptyset(stops.as_mut_ptr());
            libc::sigaddset(stops.as_mut_ptr(), libc::SIGTTOU);
            let mut before = MaybeUninit::uninit();
            libc::pthread_sigmask(libc::SIG_BLOCK, stops.as_ptr(), before.as_mut_ptr());
            restore();
            libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
        }
    }

    /// Returns whether a change of the terminal would stop this process.
    fn is_in_background(&self) -> bool {
        // No process group (0, as a group from outside of this PID namespace) is in the foreground
        // of a terminal of another session, whose changes stop no process. rustix has no value 0.
        // SAFETY: plain system calls; the descriptor is open.
        let (foreground, own) = unsafe { (libc::tcgetpgrp(self.0.as_raw_fd()), libc::getpgrp()) };
        foreground > 0 && foreground != own && !is_ignored(libc::SIGTTOU)
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

/// Largest number of columns and rows that a view draws. The size of a terminal is what a program
/// has set: the buffers of the largest one would need hundreds of gigabytes.
const COLUMNS_MAX: u16 = 1_000;
const ROWS_MAX: u16 = 500;

/// Options of a terminal for [`draw`].
pub fn view_options() -> TerminalOptions {
    TerminalOptions { viewport: Viewport::Fixed(Rect::ZERO) }
}

/// Draws one frame at the present size of a terminal with [`view_options`], on at most 1,000
/// columns and 500 rows.
///
/// # Errors
/// If the terminal cannot be written, or its size is unknown.
pub fn draw<B: Backend>(
    terminal: &mut Terminal<B>,
    render: impl FnOnce(&mut Frame),
) -> Result<(), B::Error> {
    let size = terminal.size()?;
    let area = Rect::new(0, 0, size.width.min(COLUMNS_MAX), size.height.min(ROWS_MAX));
    if area != terminal.get_frame().area() {
        terminal.resize(area)?;
    }
    terminal.draw(render).map(drop)
}
