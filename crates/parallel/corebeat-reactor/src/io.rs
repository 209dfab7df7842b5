//! Use of a descriptor by tasks: an operation is tried, and the task waits while the system has
//! nothing.

use crate::slot::Slot;
use crate::source::Source;
use corebeat_sync::{thread, wait};
use std::cell::Cell;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use std::{fmt, io};

/// Number of operations without a wait after which a task lets the others of its worker run.
const STREAK_MAX: u32 = 64;

thread_local! {
    /// Number of operations of this thread since the last wait.
    static STREAK: Cell<u32> = const { Cell::new(0) };
}

/// Returns whether the caller should let other tasks run.
fn is_streak_over() -> bool {
    let streak = STREAK.get() + 1;
    STREAK.set(streak % STREAK_MAX);
    streak == STREAK_MAX
}

/// A non-blocking descriptor with its state. Dropping it closes the descriptor.
pub(crate) struct Io<S: AsFd> {
    source: Arc<Source>,
    pub(crate) socket: S,
}

impl<S: AsFd> Drop for Io<S> {
    fn drop(&mut self) {
        self.source.deregister(self.socket.as_fd());
    }
}

impl<S: AsFd> fmt::Debug for Io<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "descriptor {}", self.socket.as_fd().as_raw_fd())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// State of the one user of a direction.
#[derive(Debug)]
pub(crate) struct Lane {
    direction: Direction,
    /// Limit of each wait.
    pub(crate) limit: Option<Duration>,
}

impl Lane {
    pub(crate) fn new(direction: Direction) -> Lane {
        Lane { direction, limit: None }
    }
}

/// Result of an operation, and whether it transferred less than was requested: then the system has
/// nothing more.
pub(crate) type Transfer<T> = io::Result<(T, bool)>;

impl<S: AsFd> Io<S> {
    /// `socket` is non-blocking.
    pub(crate) fn new(socket: S) -> Io<S> {
        Io { source: Source::new(), socket }
    }

    fn slot(&self, direction: Direction) -> &Slot {
        match direction {
            Direction::Read => &self.source.read,
            Direction::Write => &self.source.write,
        }
    }

    /// Tries an operation. Returns `None` if the system has nothing.
    fn attempt<T>(
        &self,
        direction: Direction,
        operate: &mut impl FnMut(&S) -> Transfer<T>,
    ) -> Option<io::Result<T>> {
        let slot = self.slot(direction);
        loop {
            let view = slot.view();
            if !view.is_ready() {
                return None;
            }
            match operate(&self.socket) {
                Ok((value, is_drained)) => {
                    if is_drained {
                        slot.drain(view);
                    }
                    return Some(Ok(value));
                }
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => slot.clear(view),
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                Err(why) => return Some(Err(why)),
            }
        }
    }

    /// Executes an operation, and blocks the calling task or thread while the system has nothing.
    pub(crate) fn run<T>(
        &self,
        lane: &Lane,
        mut operate: impl FnMut(&S) -> Transfer<T>,
    ) -> io::Result<T> {
        if is_streak_over() {
            corebeat_lpel::yield_now();
        }
        let mut end = None;
        loop {
            if let Some(result) = self.attempt(lane.direction, &mut operate) {
                return result;
            }
            STREAK.set(0);
            if let (None, Some(limit)) = (end, lane.limit) {
                // A limit that the clock cannot represent is none.
                end = Instant::now().checked_add(limit);
            }
            match self.wait(lane.direction, end) {
                // The report of what has arrived may be late: a short limit must not hide that.
                // The end of the limit therefore counts as a report. No other task waits.
                Err(late) if late.kind() == io::ErrorKind::TimedOut => {
                    drop(self.slot(lane.direction).report(false));
                    return self.attempt(lane.direction, &mut operate).unwrap_or(Err(late));
                }
                waited => waited?,
            }
        }
    }

    /// Executes an operation for a future.
    pub(crate) fn poll<T>(
        &self,
        lane: &Lane,
        context: &mut Context<'_>,
        mut operate: impl FnMut(&S) -> Transfer<T>,
    ) -> Poll<io::Result<T>> {
        if is_streak_over() {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        loop {
            if let Some(result) = self.attempt(lane.direction, &mut operate) {
                return Poll::Ready(result);
            }
            STREAK.set(0);
            self.source.register(self.socket.as_fd())?;
            if !self.slot(lane.direction).is_ready_or_wakes(context.waker()) {
                return Poll::Pending;
            }
        }
    }

    /// Waits until a direction may be ready.
    fn wait(&self, direction: Direction, end: Option<Instant>) -> io::Result<()> {
        let left = || end.map(|end| end.saturating_duration_since(Instant::now()));
        self.source.register(self.socket.as_fd())?;
        let slot = self.slot(direction);
        let task = wait::task();
        if task.is_none() && std::thread::panicking() {
            return Err(io::Error::other(
                "a task that is unwinding cannot wait for a socket: do not use sockets in \
                 destructors",
            ));
        }
        let waker = match &task {
            Some(task) => task.waker(),
            None => Waker::from(Arc::new(Unpark(thread::current()))),
        };
        if slot.is_ready_or_wakes(&waker) {
            return Ok(());
        }
        // Also if the task is cancelled, and unwinds.
        let _discards = Discards(slot);
        let is_ready = match task {
            Some(mut task) => task.suspend(left()),
            None => park(slot, left),
        };
        if is_ready { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
    }
}

/// Blocks the calling thread. Returns false if the time is over.
fn park(slot: &Slot, left: impl Fn() -> Option<Duration>) -> bool {
    while !slot.view().is_ready() {
        match left() {
            Some(Duration::ZERO) => return false,
            Some(left) => thread::park_timeout(left),
            None => thread::park(),
        }
    }
    true
}

/// Discards the waker of a task that does not wait any more.
struct Discards<'a>(&'a Slot);

impl Drop for Discards<'_> {
    fn drop(&mut self) {
        self.0.discard();
    }
}

/// Wakes a thread that is no task.
struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
