//! Reads and writes of an attempt.

use super::{Abort, Descriptor, Fate, Mode, Write};
use crate::counter::Cause;
use crate::fault::{Fault, is_planted};
use crate::global::GLOBAL;
use crate::lock::{Lock, VERSION_MAX, holder};
use crate::place::Place;
use corebeat_reclaim::Retired;
use std::ptr::NonNull;

impl Descriptor {
    /// Returns the value of `place`. The value exists until the end of the attempt.
    ///
    /// # Safety
    ///
    /// Both references stay valid until the end of the attempt, and `lock` is always the same for
    /// `place`.
    #[inline(always)]
    pub(crate) unsafe fn read(&mut self, lock: &Lock, place: &Place) -> Result<*mut (), Abort> {
        if let Some(value) = self.try_read::<true>(lock, place) {
            return Ok(value);
        }
        // SAFETY: the caller guarantees the same.
        unsafe { self.read_slow(lock, place) }
    }

    /// Reads as `read` does, if there is no conflict. Without `LOGS_ROWS`, only if the trace
    /// requires no log.
    #[inline(always)]
    pub(crate) fn try_read<const LOGS_ROWS: bool>(
        &mut self,
        lock: &Lock,
        place: &Place,
    ) -> Option<*mut ()> {
        let observed = lock.load();
        let value = place.load();
        let is_read = if observed <= self.front.time {
            lock.is_unchanged(observed) && self.front.reads.try_push::<LOGS_ROWS>(lock)
        } else {
            observed == self.front.owner
        };
        is_read.then_some(value)
    }

    #[cold]
    unsafe fn read_slow(&mut self, lock: &Lock, place: &Place) -> Result<*mut (), Abort> {
        loop {
            let observed = lock.load();
            let value = place.load();
            if observed == self.front.owner || observed > VERSION_MAX && is_planted(Fault::Held) {
                return Ok(value);
            }
            if observed > VERSION_MAX {
                self.resolve_conflict(lock, observed, Cause::ReadConflict)?;
            } else if observed > self.front.time && !is_planted(Fault::Time) {
                self.extend(lock, observed)?;
            } else if lock.is_unchanged(observed) {
                self.front.reads.push(lock);
                return Ok(value);
            }
        }
    }

    /// Acquires the lock of `place` and returns the value. With `always_log` the value is logged
    /// even if this attempt holds the lock already.
    ///
    /// # Safety
    ///
    /// As for `read`.
    #[inline(always)]
    pub(crate) unsafe fn acquire(
        &mut self,
        lock: &Lock,
        place: &Place,
        always_log: bool,
    ) -> Result<*mut (), Abort> {
        if let Some(old) = self.try_acquire::<false>(lock, place) {
            return Ok(old);
        }
        // SAFETY: the caller guarantees the same.
        unsafe { self.acquire_slow(lock, place, always_log) }
    }

    /// Acquires as `acquire` does, if no transaction holds the lock. With `ALWAYS_LOGS`, also if
    /// this attempt holds it.
    #[inline(always)]
    pub(crate) fn try_acquire<const ALWAYS_LOGS: bool>(
        &mut self,
        lock: &Lock,
        place: &Place,
    ) -> Option<*mut ()> {
        // Without room also in all modes except `Full` (`set_logs`).
        if !self.front.writes.has_room() {
            return None;
        }
        let observed = lock.load();
        let lock = if observed <= self.front.time {
            if !lock.try_acquire(observed, self.front.owner) {
                return None;
            }
            Some(lock.into())
        } else {
            if !ALWAYS_LOGS || observed != self.front.owner {
                return None;
            }
            None
        };
        let old = place.load_owned();
        let write = Write { place: place.into(), old, drop: None, lock };
        // SAFETY: the log has room, as checked above.
        unsafe { self.front.writes.put(write, size_of::<Write>()) };
        Some(old)
    }

    #[inline(always)]
    fn log_write(&mut self, lock: Option<&Lock>, place: &Place) -> *mut () {
        let old = place.load_owned();
        self.front.writes.push(Write {
            place: place.into(),
            old,
            drop: None,
            lock: lock.map(NonNull::from),
        });
        old
    }

    // Not cold: second writes to a cell take this path.
    #[inline(never)]
    unsafe fn acquire_slow(
        &mut self,
        lock: &Lock,
        place: &Place,
        always_log: bool,
    ) -> Result<*mut (), Abort> {
        loop {
            let observed = lock.load();
            if observed == self.front.owner {
                if always_log || self.branches > 0 {
                    return Ok(self.log_write(None, place));
                }
                return Ok(place.load_owned());
            }
            if self.mode == Mode::Snapshot {
                return Err(self.fail(Cause::Snapshot));
            }
            if observed > VERSION_MAX {
                self.resolve_conflict(lock, observed, Cause::WriteConflict)?;
            } else if observed > self.front.time {
                self.extend(lock, observed)?;
            } else {
                if self.mode == Mode::Exclusive {
                    // With the gate closed, the attempt also acquires locks with versions from the
                    // future. Its own version must be higher.
                    GLOBAL.clock.advance_to(observed);
                }
                if lock.try_acquire(observed, self.front.owner) {
                    return Ok(self.log_write(Some(lock), place));
                }
            }
        }
    }

    /// Stores a value whose place was acquired.
    #[inline(always)]
    pub(crate) fn write(
        &mut self,
        place: &Place,
        value: *mut (),
        drop: Option<unsafe fn(*mut ())>,
    ) {
        place.store(value);
        if drop.is_some() {
            // Each write of a value with a destructor has its own log entry.
            if let Some(write) = self.front.writes.last_mut() {
                write.drop = drop;
            }
            self.needs_cleanup = true;
        }
    }

    /// Advances `time` to at least `version`, if every value that was read is unchanged.
    fn extend(&mut self, lock: &Lock, version: u64) -> Result<(), Abort> {
        let cause = match self.mode {
            _ if !self.may_extend => Some(Cause::Extension),
            Mode::Snapshot => Some(Cause::Snapshot),
            Mode::Exclusive => return Ok(()),
            Mode::Full => None,
        };
        GLOBAL.clock.advance_to(version);
        if let Some(cause) = cause {
            self.recorder.blame(lock, None);
            return Err(self.fail(cause));
        }
        let time = self.newest();
        if !self.is_valid() {
            self.blame_changed();
            return Err(self.fail(Cause::Extension));
        }
        self.front.time = time;
        Ok(())
    }

    /// Limits this attempt to values that are not newer than `version_max` and, without
    /// `may_extend`, not newer than those that it may read now.
    #[cfg(not(loom))]
    pub(crate) fn limit(&mut self, may_extend: bool, version_max: u64) {
        if !self.is_irrevocable {
            self.needs_cleanup = true;
            self.may_extend = may_extend;
            self.front.time = self.front.time.min(version_max);
        }
    }

    /// Returns whether no other transaction has written a value that this attempt has read.
    #[inline(always)]
    pub(super) fn is_valid(&self) -> bool {
        if is_planted(Fault::Validation) {
            return true;
        }
        self.front.reads.to_check().iter().all(|lock| {
            // SAFETY: the locks of values that were read stay valid until the end of the attempt.
            let observed = unsafe { lock.as_ref() }.load();
            observed <= self.front.time || observed == self.front.owner
        })
    }

    /// For traces: records which value has changed.
    #[cold]
    pub(super) fn blame_changed(&mut self) {
        let (time, owner) = (self.front.time, self.front.owner);
        // SAFETY: as in `is_valid`.
        let locks = self.front.reads.to_check().iter().map(|lock| unsafe { lock.as_ref() });
        let changed = locks
            .map(|lock| (lock, lock.load()))
            .find(|(_, observed)| *observed > time && *observed != owner);
        if let Some((lock, observed)) = changed {
            self.recorder.blame(lock, holder(observed));
        }
    }

    /// Begins an `or_else`: writes from here on can be undone separately. Returns the mark for
    /// `end_branch`; `None` if the attempt cannot continue.
    pub(crate) fn branch(&mut self) -> Option<usize> {
        self.branches += 1;
        (self.fate == Fate::Open).then_some(self.front.writes.len())
    }

    /// Ends the first part of an `or_else`. Returns whether to try the second part: then all values
    /// are as at `mark`, while locks stay held.
    pub(crate) fn end_branch(&mut self, mark: Option<usize>, is_ok: bool) -> bool {
        self.branches -= 1;
        let Some(mark) = mark.filter(|_| !is_ok && self.fate == Fate::Retry) else { return false };
        self.fate = Fate::Open;
        self.undo(mark);
        true
    }

    /// Undoes the writes since `mark`.
    pub(super) fn undo(&mut self, mark: usize) {
        for write in self.front.writes[mark..].iter_mut().rev() {
            // SAFETY: places that were written stay valid until the end of the attempt.
            let place = unsafe { write.place.as_ref() };
            if let Some(drop) = write.drop.take() {
                // SAFETY: `drop` belongs to the value, which is replaced below and retired once.
                self.retired.push(unsafe { Retired::new(place.load_owned(), drop, ()) });
            }
            if !is_planted(Fault::Undo) {
                place.store(write.old);
            }
        }
    }

    /// Marks the attempt as failed, for the first cause that is reported.
    pub(crate) fn fail(&mut self, cause: Cause) -> Abort {
        self.needs_cleanup = true;
        if !matches!(self.fate, Fate::Failed(_)) {
            self.fate = Fate::Failed(cause);
        }
        Abort(())
    }

    pub(crate) fn retry(&mut self) -> Abort {
        assert!(!self.is_irrevocable, "an irrevocable transaction cannot retry");
        self.needs_cleanup = true;
        if self.fate == Fate::Open {
            self.fate = Fate::Retry;
        }
        Abort(())
    }
}
