//! The row of a thread in a table of the kernel, instead of the files of the thread.

use super::parse::{Switches, WaitState};
use super::shares::{Reading, WaitParts};
use corebeat_machine::{BlockedCause, CountedState, ThreadCounts, ThreadRow};

/// The row of a thread, and its counts at the last observation.
#[derive(Debug)]
pub(crate) struct Row {
    row: Box<dyn ThreadRow>,
    /// `None` until the row has a state: the files are read until then.
    base: Option<ThreadCounts>,
}

/// The counts of a row at the last observation, and now.
#[derive(Debug, Clone, Copy)]
pub(super) struct CountedSpan {
    before: ThreadCounts,
    pub(super) after: ThreadCounts,
}

impl Row {
    pub(super) fn new(row: Box<dyn ThreadRow>) -> Row {
        Row { row, base: None }
    }

    /// Returns whether observations use the row.
    pub(super) fn is_in_use(&self) -> bool {
        self.base.is_some()
    }

    /// States in which state the thread was found after it was added.
    pub(super) fn found(&self, state: WaitState) {
        let cause = match state {
            WaitState::Lock(_) => BlockedCause::Lock,
            WaitState::Park(_) | WaitState::Futex => BlockedCause::Park,
            WaitState::Asleep => BlockedCause::Sleep,
            WaitState::Stopped => BlockedCause::Stopped,
            WaitState::Awake => return,
        };
        self.row.begin_blocked(cause);
    }

    /// Starts to use the row, if it has a state.
    pub(super) fn begin(&mut self, now_ns: u64) {
        self.base = self.row.read(now_ns);
    }

    /// Returns what was counted since the last observation. `None` as long as the row is not in
    /// use.
    pub(super) fn counted(&self, now_ns: u64) -> Option<CountedSpan> {
        let before = self.base?;
        // A row that cannot be read now has its last counts.
        Some(CountedSpan { before, after: self.row.read(now_ns).unwrap_or(before) })
    }

    /// The next counts begin here.
    pub(super) fn settle(&mut self, counted: &CountedSpan) {
        self.base = Some(counted.after);
    }
}

impl CountedSpan {
    /// Returns whether the thread was blocked through the whole time.
    pub(super) fn is_quiet(&self) -> bool {
        let awake = |c: &ThreadCounts| (c.run_ns, c.wait_ns);
        self.after.state == CountedState::Blocked && awake(&self.before) == awake(&self.after)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.after.state == CountedState::Ended
    }

    /// Returns the reading after `base`, which was that of the last observation.
    pub(super) fn reading(&self, base: &Reading) -> Reading {
        let (from, to) = (&self.before, &self.after);
        let plus = |base: Option<u64>, from: u64, to: u64| {
            Some(base.unwrap_or(0).saturating_add(to.saturating_sub(from)))
        };
        Reading {
            at_ns: base.at_ns.saturating_add(to.at_ns.saturating_sub(from.at_ns)),
            run_ns: plus(Some(base.run_ns), from.run_ns, to.run_ns).unwrap_or(0),
            delay_ns: plus(base.delay_ns, from.wait_ns, to.wait_ns),
            switches: Switches {
                voluntary: plus(base.switches.voluntary, from.voluntary, to.voluntary),
                involuntary: plus(base.switches.involuntary, from.involuntary, to.involuntary),
                migrations: plus(base.switches.migrations, from.migrations, to.migrations),
            },
            counted: base.counted,
            runnable: Some(matches!(to.state, CountedState::Runs | CountedState::Waits)),
        }
    }

    /// Returns the parts of the blocked time. `None` without blocked time.
    pub(super) fn parts(&self) -> Option<WaitParts> {
        let (from, to) = (&self.before, &self.after);
        let since = |from: u64, to: u64| to.saturating_sub(from) as f64;
        let [lock, park] = [since(from.lock_ns, to.lock_ns), since(from.park_ns, to.park_ns)];
        let asleep = lock + park + since(from.sleep_ns, to.sleep_ns);
        let stopped = since(from.stopped_ns, to.stopped_ns);
        let of_asleep = |part: f64| if asleep > 0.0 { part / asleep } else { 0.0 };
        (asleep + stopped > 0.0).then(|| WaitParts {
            stopped: stopped / (asleep + stopped),
            futex: of_asleep(lock + park),
            lock: Some(of_asleep(lock)),
        })
    }

    /// Returns the number of switches for each second.
    pub(super) fn switches_per_s(&self) -> f64 {
        let (from, to) = (&self.before, &self.after);
        let all = |c: &ThreadCounts| c.voluntary.saturating_add(c.involuntary);
        let span_ns = to.at_ns.saturating_sub(from.at_ns).max(1);
        all(to).saturating_sub(all(from)) as f64 / (span_ns as f64 / 1e9)
    }
}
