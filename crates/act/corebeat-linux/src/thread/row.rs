//! The row of a thread in a table of the kernel, instead of the files of the thread.

use super::parse::{Switches, WaitState};
use super::shares::{Full, Reading, WaitParts};
use crate::counter::Counted;
use corebeat_machine::{BlockedCause, CountedState, ThreadCounts, ThreadRow};

/// The row of a thread, and its counts at the last observation.
#[derive(Debug)]
pub(crate) struct Row {
    row: Box<dyn ThreadRow>,
    base: ThreadCounts,
}

/// The counts of a row at the last observation, and now.
#[derive(Debug, Clone, Copy)]
pub(super) struct CountedSpan {
    before: ThreadCounts,
    pub(super) after: ThreadCounts,
}

impl Row {
    /// Returns the row of a thread. `None` if the table has no counts of the thread.
    pub(super) fn new(row: Box<dyn ThreadRow>) -> Option<Row> {
        let base = row.read().filter(|counts| counts.state != CountedState::Ended)?;
        Some(Row { row, base })
    }

    /// Returns the counts at the last observation.
    pub(super) fn base(&self) -> &ThreadCounts {
        &self.base
    }

    /// The counts of the thread begin with its start.
    pub(super) fn count_from_birth(&mut self) {
        let ThreadCounts { lock_ns, park_ns, .. } = &mut self.base;
        (*lock_ns, *park_ns) = (0, 0);
    }

    /// Returns what was counted since the last observation.
    pub(super) fn counted(&self) -> CountedSpan {
        // A row that cannot be read now has its last counts.
        CountedSpan { before: self.base, after: self.row.read().unwrap_or(self.base) }
    }

    /// The next counts begin here.
    pub(super) fn settle(&mut self, counted: &CountedSpan) {
        self.base = counted.after;
    }
}

/// Returns counts as a reading.
pub(super) fn reading(counts: &ThreadCounts, counted: Counted) -> Reading {
    Reading {
        at_ns: counts.at_ns,
        run_ns: counts.run_ns,
        delay_ns: Some(counts.wait_ns),
        switches: switches(counts),
        counted,
        runnable: Some(matches!(counts.state, CountedState::Runs | CountedState::Waits)),
    }
}

/// Returns counts as a full reading, with times in nanoseconds: only their ratio is used.
pub(super) fn full(counts: &ThreadCounts) -> Full {
    Full {
        slices: 0,
        user_ticks: counts.user_ns,
        system_ticks: counts.system_ns,
        switches: switches(counts),
    }
}

fn switches(counts: &ThreadCounts) -> Switches {
    Switches {
        voluntary: Some(counts.voluntary),
        involuntary: Some(counts.involuntary),
        migrations: Some(counts.migrations),
    }
}

/// Returns the name of a thread, in which other text replaces invalid UTF-8.
pub(super) fn name(counts: &ThreadCounts) -> std::borrow::Cow<'_, str> {
    let end = counts.name.iter().position(|byte| *byte == 0).unwrap_or(counts.name.len());
    String::from_utf8_lossy(&counts.name[..end])
}

/// Returns a state as the files show it.
fn wait_state(state: CountedState) -> WaitState {
    match state {
        CountedState::Blocked(BlockedCause::Lock) => WaitState::Lock(0),
        CountedState::Blocked(BlockedCause::Park) => WaitState::Park(0),
        CountedState::Blocked(BlockedCause::Sleep) => WaitState::Asleep,
        CountedState::Blocked(BlockedCause::Stopped) => WaitState::Stopped,
        CountedState::Runs | CountedState::Waits | CountedState::Ended => WaitState::Awake,
    }
}

impl CountedSpan {
    /// Returns whether the thread was blocked through the whole time.
    pub(super) fn is_quiet(&self) -> bool {
        let awake = |c: &ThreadCounts| (c.run_ns, c.wait_ns);
        matches!(self.after.state, CountedState::Blocked(_))
            && awake(&self.before) == awake(&self.after)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.after.state == CountedState::Ended
    }

    fn since(&self, of: fn(&ThreadCounts) -> u64) -> u64 {
        of(&self.after).saturating_sub(of(&self.before))
    }

    /// Returns the blocked time.
    pub(super) fn blocked_ns(&self) -> u64 {
        let awake_ns = self.since(|c| c.run_ns).saturating_add(self.since(|c| c.wait_ns));
        self.since(|c| c.at_ns).saturating_sub(awake_ns)
    }

    /// Returns the state at the end, as the files show it.
    fn state(&self) -> WaitState {
        wait_state(self.after.state)
    }

    /// Returns the states at both ends. Each stands for half of the blocked time; the thread may
    /// have ended meanwhile. A stop that is over counts as another state.
    pub(super) fn states(&self) -> [WaitState; 2] {
        let first = wait_state(self.before.state);
        [if first == WaitState::Stopped { WaitState::Awake } else { first }, self.state()]
    }

    /// Returns the parts of the blocked time, for counts with causes. `None` without blocked time.
    /// A thread that is stopped now was stopped for all of it, except for its futex calls.
    pub(super) fn parts(&self) -> Option<WaitParts> {
        let [lock, park] =
            [self.since(|c| c.lock_ns), self.since(|c| c.park_ns)].map(|time_ns| time_ns as f64);
        let blocked = (self.blocked_ns() as f64).max(lock + park);
        let stopped = match self.state() {
            WaitState::Stopped => blocked - lock - park,
            _ => 0.0,
        };
        let asleep = blocked - stopped;
        let of_asleep = |part: f64| if asleep > 0.0 { part / asleep } else { 0.0 };
        (blocked > 0.0).then(|| WaitParts {
            stopped: stopped / blocked,
            futex: of_asleep(lock + park),
            lock: Some(of_asleep(lock)),
        })
    }

    /// Returns the number of switches for each second.
    pub(super) fn switches_per_s(&self) -> f64 {
        let switches = self.since(|c| c.voluntary.saturating_add(c.involuntary));
        switches as f64 / (self.since(|c| c.at_ns).max(1) as f64 / 1e9)
    }
}
