//! Conflicts: locks that other transactions hold.

use super::{Abort, Descriptor, Mode};
use crate::contention::{Decision, WAITS_MAX};
use crate::counter::Cause;
use crate::global::GLOBAL;
use crate::lock::{Lock, holder};
use crate::pause::pause;
use crate::slot::{Slot, Standing};
use corebeat_sync::atomic::Ordering;

impl Descriptor {
    /// Handles a lock that another transaction holds. Returns `Ok` when the lock has changed.
    #[cold]
    pub(super) fn resolve_conflict(
        &mut self,
        lock: &Lock,
        observed: u64,
        cause: Cause,
    ) -> Result<(), Abort> {
        let Some(other) = holder(observed) else { return Ok(()) };
        let standing = self.publish_standing();
        let result = self.wait_for(other, lock, observed, cause, standing);
        // The transaction does not wait any more, whatever the result.
        self.slot.publish(standing);
        result
    }

    fn wait_for(
        &mut self,
        other: &'static Slot,
        lock: &Lock,
        observed: u64,
        cause: Cause,
        standing: Standing,
    ) -> Result<(), Abort> {
        let manager = GLOBAL.choice.get();
        let mut waits = 0;
        loop {
            // The epoch before the lock: so this is the epoch in which the lock is held.
            let epoch = other.epoch();
            if lock.load() != observed {
                break;
            }
            let decision = if self.mode == Mode::Exclusive {
                Decision::Kill
            } else if waits == WAITS_MAX {
                Decision::Abort
            } else if self.slot.is_doomed(self.epoch) {
                self.recorder.blame_killer(self.slot);
                return Err(self.fail(Cause::Killed));
            } else {
                manager.on_conflict(standing, other.standing(), waits)
            };
            match decision {
                Decision::Abort => {
                    self.recorder.blame(lock, Some(other));
                    return Err(self.fail(cause));
                }
                Decision::Kill => other.doom(epoch, self.slot),
                Decision::Wait => {}
            }
            if waits == 0 {
                self.slot.publish(Standing { is_waiting: true, ..standing });
            }
            pause(1 << waits.min(10));
            waits = waits.saturating_add(1);
        }
        Ok(())
    }

    /// Publishes the standing of this transaction. Managers compare the same values on both sides.
    fn publish_standing(&mut self) -> Standing {
        self.needs_cleanup = true;
        if self.standing.since.is_none() {
            // Relaxed: the numbers need only differ.
            self.standing.since = Some(GLOBAL.conflicts.fetch_add(1, Ordering::Relaxed) + 1);
        }
        let opened = self.opened_count();
        let standing = Standing { karma: self.standing.karma + opened, ..self.standing };
        self.slot.publish(standing);
        standing
    }

    /// Number of cells that were written, and read with validation. Tracing does not change it.
    pub(super) fn opened_count(&self) -> u64 {
        (self.front.reads.count_to_check() + self.front.writes.len()) as u64
    }

    pub(super) fn add_karma(&mut self) {
        self.standing.karma += self.opened_count();
    }

    /// Resets the standing at the end of the transaction.
    pub(super) fn reset_standing(&mut self) {
        if self.standing != Standing::default() {
            self.standing = Standing::default();
            self.slot.publish(self.standing);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::attempt::FAILED_MAX;
    use crate::contention::{self, Backoff, ContentionManager, Suicide};
    use crate::descriptor::Current;
    use crate::fault::test::on_pause;
    use crate::global::GLOBAL;
    use crate::history::exclusive;
    use crate::lock::{VERSION_MAX, owner};
    use crate::slot::{Slots, Standing};
    use crate::{TCell, TimedOut, atomically, atomically_timeout, snapshot};
    use std::cell::Cell;
    use std::rc::Rc;
    use std::time::Duration;

    /// Returns a cell that another thread holds. Where this thread would pause, `releases` decides
    /// whether the other one releases the cell; its arguments are the number of earlier pauses and
    /// the standing of this thread.
    fn held(
        manager: &'static dyn ContentionManager,
        releases: impl Fn(u32, Standing) -> bool + 'static,
    ) -> &'static TCell<u64> {
        contention::set(manager);
        let cell: &TCell<u64> = Box::leak(Box::new(TCell::new(7)));
        let (other, own) = (Slots::acquire(), Current::take().get().slot);
        let lock = cell.parts().0;
        assert!(lock.try_acquire(0, owner(other)));
        let pauses = Cell::new(0);
        on_pause(Rc::new(move || {
            let before = pauses.replace(pauses.get() + 1);
            assert!(before < 10 * FAILED_MAX, "the transaction pauses forever");
            if lock.load() > VERSION_MAX && releases(before, own.standing()) {
                lock.release(0);
                Slots::release(other);
            }
        }));
        cell
    }

    #[test]
    fn snapshot_that_fails_repeatedly_closes_the_gate_and_succeeds() {
        let _exclusive = exclusive();
        let cell = held(&Suicide, |_, _| GLOBAL.clock.now().is_closed());
        assert_eq!(snapshot(|tx| tx.read(cell)), 7);
        assert!(!GLOBAL.clock.now().is_closed());
    }

    #[test]
    fn transaction_that_gave_up_does_not_wait() {
        let _exclusive = exclusive();
        let cell = held(&Backoff, |before, standing| {
            assert_eq!(standing.is_waiting, before < 8, "after {before} pauses");
            before == 8
        });
        assert_eq!(atomically(|tx| tx.read(cell)), 7);
    }

    #[test]
    fn transaction_publishes_its_standing_from_a_conflict_to_its_end() {
        let _exclusive = exclusive();
        let others = [TCell::new(1u64), TCell::new(2)];
        let cell = held(&Backoff, |_, standing| {
            assert_eq!((standing.karma, standing.since.is_some()), (2, true));
            true
        });
        let sum = atomically(|tx| {
            tx.update(&others[1], |n| n + 1)?;
            Ok(tx.read(&others[0])? + tx.read(cell)?)
        });
        assert_eq!(sum, 8);
        assert_eq!(Current::take().get().slot.standing(), Standing::default());
    }

    #[test]
    fn standing_ends_with_a_transaction_that_times_out() {
        let _exclusive = exclusive();
        let cell = held(&Backoff, |_, _| true);
        let ended = atomically_timeout(Duration::ZERO, |tx| {
            tx.read(cell)?;
            tx.retry::<()>()
        });
        assert_eq!(ended, Err(TimedOut));
        assert_eq!(Current::take().get().slot.standing(), Standing::default());
    }
}
