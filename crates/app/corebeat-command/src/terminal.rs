//! The terminal of views that redraw themselves, and the signals that such views must handle.
//!
//! A view in the background must not change the terminal, which belongs to another process. The
//! kernel stops such a view by SIGTTOU, and stops it again after each SIGCONT: a view that restores
//! the terminal because of a signal would never end. Views therefore wait
//! ([`Tty::wait_for_foreground`]) before they change the terminal, and restore the terminal only
//! where it is theirs ([`Tty::leave`]).
//!
//! A terminal that no program reads (a suspended emulator, a recorder that hangs) makes a write to
//! it wait. A signal must end the view nevertheless, so a [`TtyWriter`] stops waiting when such a
//! signal has arrived, and drops what the terminal does not accept.

use crate::shutdown::record_ending_signals;
use corebeat_linux::is_ignored;
use ratatui::backend::{Backend, CrosstermBackend};
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::layout::Rect;
use ratatui::{Frame, Terminal, TerminalOptions, Viewport};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::time::Timespec;
use signal_hook::consts::{SIGCONT, SIGHUP, SIGTSTP};
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Time between two checks whether a view in the background has come to the foreground.
const FOREGROUND_PERIOD: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Longest time from a signal until a writer that waits for the terminal detects it. A signal
/// interrupts the wait, unless it arrives just before the wait.
const ROOM_PERIOD: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Signals that would leave the terminal in a wrong mode if they were not handled.
#[derive(Debug)]
pub struct TerminalSignals {
    /// Number of the last signal that ends the process; 0 for none.
    end: Arc<AtomicUsize>,
    /// As `end`, but never cleared.
    ever_ended: Arc<AtomicUsize>,
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
            ever_ended: record_ending_signals()?,
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

    /// Whether the signal of a terminal that is closed (SIGHUP) ends this process: its parent does
    /// not make it ignore the signal, as `nohup` does.
    pub fn end_at_hang_up(&self) -> bool {
        !is_ignored(SIGHUP)
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

/// The terminal of a view: the one that delivers key events, and the one that is drawn on, mostly
/// the same. crossterm blocks for ever on a terminal that was closed, so [`wait`](Self::wait)
/// checks the terminal before crossterm reads from it.
#[derive(Debug)]
pub struct Tty {
    input: OwnedFd,
    writer: TtyWriter,
}

/// A terminal to draw on with [`draw`].
pub type DrawnTerminal = Terminal<CrosstermBackend<BufWriter<TtyWriter>>>;

impl Tty {
    /// Opens the terminal that crossterm reads from: standard input, else `/dev/tty`. The view
    /// draws on the terminal `output`, a standard stream.
    ///
    /// # Errors
    /// If the process has no terminal.
    pub fn open(output: impl AsFd, signals: &TerminalSignals) -> io::Result<Self> {
        let stdin = io::stdin();
        let input = match stdin.is_terminal() {
            true => stdin.as_fd().try_clone_to_owned(),
            false => File::open("/dev/tty").map(OwnedFd::from),
        }?;
        Ok(Tty { input, writer: TtyWriter::new(output, signals)? })
    }

    /// Returns the terminal to draw on.
    ///
    /// # Errors
    /// If the terminal cannot be written.
    pub fn drawn(&self) -> io::Result<DrawnTerminal> {
        let options = TerminalOptions { viewport: Viewport::Fixed(Rect::ZERO) };
        let writer = BufWriter::new(self.writer.clone());
        Terminal::with_options(CrosstermBackend::new(writer), options)
    }

    /// Changes to the alternate screen and the raw mode. [`leave`](Self::leave) undoes it, also
    /// after an error.
    ///
    /// # Errors
    /// If the terminal cannot be written, or does not exist any more.
    pub fn enter(&self) -> io::Result<()> {
        enable_raw_mode()?;
        execute!(BufWriter::new(self.writer.clone()), EnterAlternateScreen)
    }

    /// Restores the terminal, unless the terminal belongs to another process group. Errors are
    /// ignored: they mean that the terminal is gone.
    pub fn leave(&self) {
        self.restore(|| {
            let _ = execute!(BufWriter::new(self.writer.clone()), LeaveAlternateScreen, Show);
            let _ = disable_raw_mode();
        });
    }

    /// Makes each later panic restore the terminal before it prints its message.
    ///
    /// # Errors
    /// If no descriptor is free.
    pub fn leave_on_panic(&self) -> io::Result<()> {
        let tty = Tty { input: self.input.try_clone()?, writer: self.writer.clone() };
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            tty.leave();
            print(panic);
        }));
        Ok(())
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
    fn restore(&self, restore: impl FnOnce()) {
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
        let (foreground, own) =
            unsafe { (libc::tcgetpgrp(self.input.as_raw_fd()), libc::getpgrp()) };
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
            let drawn = PollFd::from_borrowed_fd(self.writer.stream.as_fd(), PollFlags::empty());
            let mut fds = [PollFd::new(&self.input, PollFlags::IN), drawn];
            match poll(&mut fds, Some(&timeout)) {
                Ok(_) => {
                    let closed = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
                    return Ok(fds.iter().all(|fd| !fd.revents().intersects(closed)));
                }
                Err(Errno::INTR) => timeout = Timespec::default(),
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// Writes to a terminal. A write waits for the reader of the terminal only until a signal requests
/// the end of this process; from then on it drops what the terminal does not accept at once. A
/// terminal that was closed accepts and drops everything: [`Tty::wait`] reports it.
#[derive(Debug, Clone)]
pub struct TtyWriter {
    stream: Arc<OwnedFd>,
    /// Whether a write to the stream returns at once: it is another open file of the terminal.
    /// Other programs use the open file of a standard stream, whose flags must stay.
    is_own: bool,
    ended: Arc<AtomicUsize>,
}

impl TtyWriter {
    fn new(stream: impl AsFd, signals: &TerminalSignals) -> io::Result<TtyWriter> {
        let stream = stream.as_fd();
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let own = open(format!("/proc/self/fd/{}", stream.as_raw_fd()), flags, Mode::empty());
        // The terminal of another user cannot be opened (`su`).
        let (stream, is_own) = match own {
            Ok(own) => (own, true),
            Err(_) => (stream.try_clone_to_owned()?, false),
        };
        let ended = Arc::clone(&signals.ever_ended);
        Ok(TtyWriter { stream: Arc::new(stream), is_own, ended })
    }

    /// Writes the bytes that the terminal accepts at once.
    fn try_write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        if self.is_own {
            return rustix::io::write(&self.stream, bytes);
        }
        // A terminal with room accepts one byte at least.
        match self.has_room(&Timespec::default()) {
            true => rustix::io::write(&self.stream, &bytes[..bytes.len().min(1)]),
            false => Err(Errno::AGAIN),
        }
    }

    /// Waits until the terminal accepts bytes or was closed.
    fn has_room(&self, timeout: &Timespec) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.stream.as_fd(), PollFlags::OUT)];
        poll(&mut fds, Some(timeout)).is_ok_and(|ready| ready > 0)
    }
}

impl Write for TtyWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.try_write(bytes) {
                Ok(written) => return Ok(written),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if self.ended.load(Ordering::SeqCst) == 0 => {
                    self.has_room(&ROOM_PERIOD);
                }
                Err(Errno::AGAIN | Errno::IO | Errno::NXIO) => return Ok(bytes.len()),
                Err(why) => return Err(why.into()),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Largest number of columns and rows that a view draws. The size of a terminal is what a program
/// has set: the buffers of the largest one would need hundreds of gigabytes.
const COLUMNS_MAX: u16 = 1_000;
const ROWS_MAX: u16 = 500;

/// Draws one frame at the present size of a terminal ([`Tty::drawn`]), on at most 1,000 columns and
/// 500 rows.
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
