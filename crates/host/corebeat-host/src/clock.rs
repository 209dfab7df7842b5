//! The host's clock. A wait on it ends early when a program ends or a signal arrives.

use corebeat_linux::{Error, Signals, Started};
use corebeat_machine::{Clock, ProgramId};
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::process::ExitStatus;
use std::time::Duration;

/// Current time on the host's monotonic clock, in nanoseconds.
pub fn now_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

/// CPU time of this process so far, in seconds.
pub fn own_cpu_s() -> f64 {
    nanoseconds(clock_gettime(ClockId::ProcessCPUTime)) as f64 / 1e9
}

fn nanoseconds(time: Timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A program that Corebeat has started.
#[derive(Debug)]
pub(crate) struct Child {
    pub(crate) id: ProgramId,
    pub(crate) started: Started,
    pub(crate) end: Option<End>,
}

/// The end of a program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct End {
    pub(crate) status: ExitStatus,
    /// Time of the end on the host's clock, in nanoseconds.
    pub(crate) at_ns: u64,
}

/// The host's clock, with the programs and signals that end a wait early. Without programs a wait
/// lasts until its time.
#[derive(Debug, Default)]
pub struct HostClock {
    pub(crate) children: Vec<Child>,
    pub(crate) signals: Option<Signals>,
    /// Time for which job control has stopped this process and its programs, in nanoseconds.
    pub(crate) stopped_ns: u64,
    /// Whether the last wait was such a stop.
    was_stopped: bool,
    failure: Option<Error>,
}

impl HostClock {
    /// A clock without programs.
    pub fn new() -> HostClock {
        HostClock::default()
    }

    /// Whether every started program has ended, or the programs can no longer be waited for.
    pub(crate) fn is_over(&self) -> bool {
        self.failure.is_some() || self.children.iter().all(|child| child.end.is_some())
    }

    /// Number of programs that have ended.
    pub(crate) fn ended(&self) -> usize {
        self.children.iter().filter(|child| child.end.is_some()).count()
    }

    /// The last signal that requested the end of Corebeat, by libc's number.
    pub(crate) fn end_request(&self) -> Option<i32> {
        self.signals.as_ref().and_then(Signals::end_requested)
    }

    /// Whether job control has stopped a program: the next wait stops this process.
    pub(crate) fn is_stopping(&self) -> bool {
        self.children.iter().any(|child| child.end.is_none() && child.started.is_stopping())
    }

    /// Whether this process was stopped and continued since the last call.
    pub(crate) fn take_stop(&mut self) -> bool {
        std::mem::take(&mut self.was_stopped)
    }

    /// Takes the error that ended the waits, if there was one.
    pub(crate) fn take_failure(&mut self) -> Option<Error> {
        self.failure.take()
    }

    /// Waits until a program ends, a signal requests the end, or `left` is over.
    fn attend(&mut self, left: Duration) -> Result<(), Error> {
        let HostClock { children, signals, .. } = self;
        let mut running: Vec<&mut Child> =
            children.iter_mut().filter(|child| child.end.is_none()).collect();
        // Without a program, only signals can end the wait.
        let Some(signals) = signals.as_ref() else {
            std::thread::sleep(left);
            return Ok(());
        };
        let mut programs: Vec<&mut Started> =
            running.iter_mut().map(|child| &mut child.started).collect();
        let statuses = Started::attend_all(&mut programs, signals, left)?;
        if statuses.iter().all(Option::is_none) {
            return Ok(());
        }
        let at_ns = now_ns();
        for (child, status) in running.into_iter().zip(statuses) {
            child.end = status.map(|status| End { status, at_ns });
        }
        Ok(())
    }
}

impl Clock for HostClock {
    fn now_ns(&self) -> u64 {
        now_ns()
    }

    fn wait_until(&mut self, at_ns: u64) {
        let start_ns = now_ns();
        let stops = self.is_stopping();
        // The wait that stops this process ends when this process is continued.
        let left_ns = if stops { 0 } else { at_ns.saturating_sub(start_ns) };
        if let Err(failure) = self.attend(Duration::from_nanos(left_ns)) {
            self.failure = Some(failure);
        }
        if stops {
            self.was_stopped = true;
            self.stopped_ns += now_ns() - start_ns;
        }
    }
}
