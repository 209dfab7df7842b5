//! Begin, commit, rollback and restart of attempts.

use super::{Abort, Descriptor, Fate, Mode, Write};
use crate::counter::Cause;
use crate::fault::{Fault, is_planted};
use crate::global::GLOBAL;
use crate::lock::{Lock, VERSION_MAX};
use crate::pause::pause;
use crate::reads::Logging;
use crate::trace;
use crate::waiter::{Waiting, wake};
use corebeat_reclaim::Retired;
use std::panic::Location;
use std::ptr::NonNull;
use std::time::Instant;

/// A transaction with this number of failed attempts closes the gate: then it cannot fail again.
pub(super) const FAILED_MAX: u32 = 100;

/// Continuation of a transaction after an attempt that has failed.
pub(crate) enum Next {
    /// The next attempt, which has begun.
    Attempt,
    /// A wait for a change. The thread is in no attempt.
    Wait(Waiting),
    /// The end of the transaction: its deadline has come.
    End,
}

impl Descriptor {
    /// For traces: sets the call site of the next transaction.
    #[inline(always)]
    pub(crate) fn set_site(&mut self, site: &'static Location<'static>) {
        self.site = Some(site);
    }

    /// Begins the first attempt of a transaction.
    #[inline(always)]
    pub(crate) fn start(&mut self, mode: Mode) {
        self.mode = mode;
        self.begin();
        if mode == Mode::Snapshot && self.version > self.front.time {
            // The thread's own last commit has a version from the future, which would fail the
            // snapshot.
            GLOBAL.clock.advance_to(self.version);
            self.front.time = self.newest();
        }
    }

    #[inline(always)]
    fn begin(&mut self) {
        if self.logs_mode != Some(self.mode) {
            self.set_logs();
        }
        if trace::is_on() {
            self.record_start();
        }
        self.epoch += 1;
        if self.needs_cleanup {
            self.slot.begin(self.epoch);
        } else {
            self.slot.begin_free(self.epoch);
        }
        self.front.time = if self.mode == Mode::Exclusive { VERSION_MAX } else { self.newest() };
    }

    /// Prepares the descriptor for another attempt, after one that has failed.
    fn reset(&mut self) {
        self.fate = Fate::Open;
        self.branches = 0;
        self.may_extend = true;
    }

    /// Opens the logs as the mode requires.
    #[cold]
    fn set_logs(&mut self) {
        self.logs_mode = Some(self.mode);
        let is_full = self.mode == Mode::Full;
        self.front.reads.set_logging(if is_full { Logging::All } else { Logging::None });
        // In other modes, writes take the slow path.
        self.front.writes.set_open(is_full);
    }

    /// Returns the newest version that an attempt may read which begins now.
    #[inline(always)]
    pub(super) fn newest(&self) -> u64 {
        let now = GLOBAL.clock.now();
        match now.time_of_sole(self.writer) {
            // Part 2 of the proof in `clock`.
            Some(time) => self.version.max(time),
            None => now.time(),
        }
    }

    #[inline(always)]
    fn end(&mut self) {
        self.epoch += 1;
        self.slot.end(self.epoch);
    }

    /// Makes the transaction irrevocable: from here on it cannot fail.
    pub(crate) fn make_irrevocable(&mut self) -> Result<(), Abort> {
        if self.fate != Fate::Open {
            // The closure has ignored an earlier error.
            return Err(Abort(()));
        }
        if self.mode != Mode::Exclusive {
            if self.mode == Mode::Snapshot {
                return Err(self.fail(Cause::Snapshot));
            }
            if !GLOBAL.clock.close_gate() {
                return Err(self.fail(Cause::Gate));
            }
            if !self.is_valid() {
                self.blame_changed();
                GLOBAL.clock.open_gate();
                return Err(self.fail(Cause::Validation));
            }
            self.mode = Mode::Exclusive;
            self.needs_cleanup = true;
            self.set_logs();
            if trace::is_on() && self.recorder.is_full() {
                self.front.reads.set_logging(Logging::All);
                self.logs_mode = None;
            }
            self.front.time = VERSION_MAX;
        }
        self.is_irrevocable = true;
        Ok(())
    }

    /// Commits after the closure has succeeded. Returns whether the transaction has taken effect;
    /// if not, `restart` must follow: also if the closure has ignored an error. With `ADVANCES`,
    /// the clock reaches the version before others can write: then no later commit has the same
    /// one (`clock`, 3).
    #[inline(always)]
    pub(crate) fn commit<const ADVANCES: bool>(&mut self) -> bool {
        // Without writes: the values that were read existed together at one moment not before the
        // begin.
        let is_committed = self.fate == Fate::Open
            && (self.front.writes.is_empty() || self.commit_writes::<ADVANCES>());
        if is_committed {
            self.finish();
        }
        is_committed
    }

    #[inline(always)]
    fn commit_writes<const ADVANCES: bool>(&mut self) -> bool {
        // After all locks were acquired: see the proof on the front page of the crate.
        let mut now = GLOBAL.clock.now();
        if self.mode == Mode::Full {
            if self.slot.is_doomed(self.epoch) {
                self.recorder.blame_killer(self.slot);
                self.fate = Fate::Failed(Cause::Killed);
                return false;
            }
            // Part 1 of the proof in `clock`: no value that was read has changed.
            if !now.is_sole(self.writer) {
                if now.has_sole() && !is_planted(Fault::Sole) {
                    now = GLOBAL.clock.share();
                }
                if now.is_closed() && !is_planted(Fault::Gate) {
                    self.fate = Fate::Failed(Cause::Gate);
                    return false;
                }
                if !self.is_valid() {
                    self.blame_changed();
                    self.fate = Fate::Failed(Cause::Validation);
                    return false;
                }
                self.count_write();
            }
        }
        self.version = now.time() + u64::from(!is_planted(Fault::Version));
        if ADVANCES {
            GLOBAL.clock.advance_to(self.version);
        }
        self.release_locks();
        wake(|| filter_bits(&self.front.writes));
        true
    }

    /// Releases the locks of this attempt with its version.
    #[inline(always)]
    fn release_locks(&self) {
        for write in self.front.writes.iter() {
            if let Some(lock) = write.lock {
                // SAFETY: as in `undo`.
                unsafe { lock.as_ref() }.release(self.version);
            }
        }
    }

    /// Whether `start_plain` and `commit_plain` suffice: nothing unusual has happened to this
    /// transaction, and no trace is recorded.
    #[cfg(not(loom))]
    #[inline(always)]
    fn is_plain(&self) -> bool {
        !self.needs_cleanup && !trace::is_on()
    }

    /// Begins a full transaction as `start` does, or returns `false`. Calls no function.
    #[cfg(not(loom))]
    #[inline(always)]
    pub(crate) fn start_plain(&mut self) -> bool {
        let is_plain = self.is_plain() && self.logs_mode == Some(Mode::Full);
        if is_plain {
            self.mode = Mode::Full;
            self.epoch += 1;
            self.slot.begin_free(self.epoch);
            self.front.time = self.newest();
        }
        is_plain
    }

    /// Commits as `commit` does, if the reads need no validation, or returns `false`. It wakes no
    /// threads, because none waits for words: only `Tx`, which accesses cells, has `retry`. Calls
    /// no function.
    #[cfg(not(loom))]
    #[inline(always)]
    pub(crate) fn commit_plain(&mut self) -> bool {
        if !self.is_plain() {
            return false;
        }
        if !self.front.writes.is_empty() {
            // As in `commit_writes`, for the sole writer.
            let Some(time) = GLOBAL.clock.now().time_of_sole(self.writer) else { return false };
            if self.slot.is_doomed(self.epoch) {
                return false;
            }
            self.version = time + u64::from(!is_planted(Fault::Version));
            self.release_locks();
        }
        self.front.reads.clear();
        self.front.writes.clear();
        self.end();
        true
    }

    #[inline(always)]
    fn finish(&mut self) {
        if trace::is_on() {
            self.record_commit();
        }
        self.front.reads.clear();
        if self.needs_cleanup {
            self.finish_slow();
        } else {
            self.front.writes.clear();
            self.end();
        }
    }

    #[cold]
    fn finish_slow(&mut self) {
        for write in self.front.writes.iter() {
            if let Some(drop) = write.drop {
                // SAFETY: the commit has replaced the value, and `drop` belongs to it.
                self.retired.push(unsafe { Retired::new(write.old, drop, ()) });
            }
        }
        self.front.writes.clear();
        self.open_gate();
        self.may_extend = true;
        self.failed = 0;
        self.reset_standing();
        self.end();
    }

    /// Retires blocks that the last commit has unlinked; `bytes` returns the size of one if it is
    /// known.
    ///
    /// # Safety
    ///
    /// No attempt that begins after the commit can find the blocks, and any thread may free them
    /// with `drop`, once.
    #[cfg(not(loom))]
    #[inline(never)]
    pub(crate) unsafe fn retire(
        &mut self,
        blocks: &mut Vec<*mut ()>,
        bytes: impl Fn(*mut ()) -> Option<usize>,
        drop: unsafe fn(*mut ()),
    ) {
        for block in blocks.drain(..) {
            // SAFETY: the caller guarantees it.
            self.retired.push_block(unsafe { Retired::new(block, drop, ()) }, bytes(block));
        }
        self.needs_cleanup = true;
    }

    /// Opens the gate, if this transaction has closed it.
    fn open_gate(&mut self) {
        self.is_irrevocable = false;
        if self.mode == Mode::Exclusive {
            self.mode = Mode::Full;
            GLOBAL.clock.open_gate();
        }
    }

    /// Undoes the attempt and releases its locks.
    fn roll_back(&mut self, cause: Cause) {
        self.undo(0);
        if !self.front.writes.is_empty() {
            // As a commit of the old values: a transaction that has read an uncommitted value must
            // find the lock changed.
            self.version = GLOBAL.clock.now().time() + 1;
            if cause == Cause::Retry {
                // `begin_wait` compares this version. Before the release: no later commit has the
                // same one, also of the sole writer (`clock`, 3).
                GLOBAL.clock.advance_to(self.version);
            }
            self.release_locks();
        }
        if trace::is_on() && self.recorder.is_current() {
            let accesses = self.front.reads.count()
                + self.front.writes.iter().filter(|write| write.lock.is_some()).count();
            if self.recorder.is_full() {
                self.record_accesses();
            }
            self.recorder.abort(accesses, cause);
        }
    }

    /// Returns the cause of the failure.
    pub(crate) fn cause(&self) -> Cause {
        match self.fate {
            Fate::Failed(cause) => cause,
            Fate::Retry => Cause::Retry,
            // An `Abort` of another transaction.
            Fate::Open => Cause::Validation,
        }
    }

    /// Sets the time at which the transaction stops waiting in `retry`.
    pub(crate) fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.deadline = deadline;
    }

    /// Undoes a failed attempt, pauses as the cause requires, and begins the next attempt, unless
    /// the transaction must wait for a change.
    #[cold]
    pub(crate) fn restart(&mut self) -> Next {
        assert!(
            !self.is_irrevocable,
            "an irrevocable transaction was aborted: its closure returned an `Abort` of another one"
        );
        let cause = self.cause();
        self.reset();
        self.slot.count_abort(cause);
        if cause == Cause::Retry && self.mode == Mode::Full {
            return self.begin_wait();
        }
        self.add_karma();
        self.roll_back(cause);
        self.front.reads.clear();
        self.front.writes.clear();
        self.end();
        self.pause(cause);
        self.begin();
        Next::Attempt
    }

    fn pause(&mut self, cause: Cause) {
        match cause {
            // To wait for a change, the reads must be logged.
            Cause::Retry => {
                self.open_gate();
                self.failed = 0;
                self.mode = Mode::Full;
            }
            // The program may wait for commits of other transactions: let them commit, soon.
            Cause::Explicit => {
                self.open_gate();
                pause(u32::MAX);
            }
            Cause::Snapshot => self.mode = Mode::Full,
            _ => {
                self.failed += 1;
                self.needs_cleanup = true;
                if self.mode != Mode::Exclusive && self.failed >= FAILED_MAX {
                    while !GLOBAL.clock.close_gate() {
                        pause(u32::MAX);
                    }
                    self.mode = Mode::Exclusive;
                } else if cause == Cause::Gate {
                    while GLOBAL.clock.now().is_closed() {
                        pause(u32::MAX);
                    }
                } else {
                    let spins_max = GLOBAL.choice.get().pause_spins(self.failed);
                    pause(self.random.u32(0..spins_max.max(1)));
                }
            }
        }
    }

    /// Rolls back, and begins the wait for a change of a value that was read, or the next attempt
    /// if there was a change.
    fn begin_wait(&mut self) -> Next {
        // Locks that this attempt holds get a known version; the versions of the other locks are
        // not newer than `time`.
        let is_unchanged = self.is_valid();
        let owner = self.front.owner;
        self.front.reads.retain(|lock| {
            // SAFETY: as in `is_valid`.
            unsafe { lock.as_ref() }.load() != owner
        });
        self.roll_back(Cause::Retry);
        let own: Vec<_> = self.front.writes.iter().filter_map(|write| write.lock).collect();
        // SAFETY: as in `is_valid`.
        let load = |lock: &NonNull<Lock>| unsafe { lock.as_ref() }.load();
        // SAFETY: as in `is_valid`.
        let bit = |lock: &NonNull<Lock>| unsafe { lock.as_ref() }.filter_bit();
        let bits =
            self.front.reads.to_check().iter().chain(&own).map(bit).fold(0, |bits, bit| bits | bit);
        let is_late = self.deadline.is_some_and(|deadline| deadline <= Instant::now());
        let waits = is_unchanged && bits != 0 && !is_late;
        let waiting = waits.then(|| GLOBAL.waiters.add(bits)).filter(|_| {
            self.front.reads.to_check().iter().all(|lock| load(lock) <= self.front.time)
                && own.iter().all(|lock| load(lock) == self.version)
        });
        self.front.reads.clear();
        self.front.writes.clear();
        self.failed = 0;
        self.end();
        assert!(
            bits != 0,
            "`retry` in a transaction that has read no cell would wait forever: read a cell before \
             `retry`"
        );
        match waiting {
            Some(waiting) => Next::Wait(waiting),
            None if is_late => Next::End,
            None => {
                self.begin();
                Next::Attempt
            }
        }
    }

    /// Ends the transaction without success, after a panic of the closure or an explicit abort.
    #[cold]
    pub(crate) fn abandon(&mut self, cause: Cause) {
        self.deadline = None;
        self.failed = 0;
        self.reset();
        self.reset_standing();
        if self.epoch.is_multiple_of(2) {
            // The attempt is over already.
            return;
        }
        self.slot.count_abort(cause);
        self.roll_back(cause);
        self.front.reads.clear();
        self.front.writes.clear();
        self.open_gate();
        self.end();
    }

    #[inline(always)]
    fn record_start(&mut self) {
        self.recorder.start(self.slot, self.site);
        if self.mode != Mode::Full && self.recorder.is_full() {
            self.front.reads.set_logging(Logging::Rows);
            self.logs_mode = None;
        }
    }

    #[inline(always)]
    fn record_commit(&mut self) {
        // Otherwise the begin of the attempt is not in the trace.
        if !self.recorder.is_current() {
            return;
        }
        if self.recorder.is_full() {
            self.record_accesses();
        }
        self.recorder.commit();
    }

    #[inline(always)]
    fn record_accesses(&mut self) {
        if !self.front.reads.is_empty() {
            self.record_reads();
        }
        if !self.front.writes.is_empty() {
            self.record_writes();
        }
    }

    #[inline(never)]
    fn record_reads(&mut self) {
        trace::record_reads(&mut self.front.reads);
    }

    #[inline(never)]
    fn record_writes(&self) {
        trace::record_writes(&self.front.writes, |write| write.lock);
    }
}

fn filter_bits(writes: &[Write]) -> u64 {
    let locks = writes.iter().filter_map(|write| write.lock);
    // SAFETY: as in `undo`.
    locks.map(|lock| unsafe { lock.as_ref() }.filter_bit()).fold(0, |bits, bit| bits | bit)
}
