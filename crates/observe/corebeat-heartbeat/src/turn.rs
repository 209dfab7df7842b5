//! A lock whose wait has a deadline: the holder may wait for the daemon.

use crate::monitor::lock;
use corebeat_wire::Deadline;
use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard};

/// A value that one thread at a time uses.
#[derive(Debug, Default)]
pub(crate) struct Turns<T> {
    is_taken: Mutex<bool>,
    freed: Condvar,
    /// Locked only by the thread that has the turn.
    value: Mutex<T>,
}

/// A turn, which ends when this value is dropped.
pub(crate) struct Turn<'a, T> {
    turns: &'a Turns<T>,
    value: MutexGuard<'a, T>,
}

impl<T> Turns<T> {
    /// Waits for a turn until the deadline.
    ///
    /// # Errors
    /// [`corebeat_wire::Error::TimedOut`].
    pub(crate) fn take(&self, deadline: Deadline) -> Result<Turn<'_, T>, corebeat_wire::Error> {
        let mut is_taken = lock(&self.is_taken);
        while *is_taken {
            let left = deadline.left()?;
            (is_taken, _) =
                self.freed.wait_timeout(is_taken, left).unwrap_or_else(|e| e.into_inner());
        }
        *is_taken = true;
        Ok(Turn { turns: self, value: lock(&self.value) })
    }
}

impl<T> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        // The next thread waits for the lock of the value only until this function returns.
        *lock(&self.turns.is_taken) = false;
        self.turns.freed.notify_one();
    }
}

impl<T> Deref for Turn<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Turn<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn wait_for_a_turn_ends_at_the_deadline() {
        let turns = Turns::<u32>::default();
        let turn = turns.take(Deadline::passed()).unwrap();
        assert!(matches!(turns.take(Deadline::passed()), Err(corebeat_wire::Error::TimedOut)));
        drop(turn);
        drop(turns.take(Deadline::passed()).unwrap());
    }

    #[test]
    fn every_waiting_thread_gets_its_turn() {
        const THREADS: u32 = 8;
        let turns = Turns::<u32>::default();
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        let mut turn = loop {
                            // A thread that is delayed for long may be late.
                            if let Ok(turn) = turns.take(Deadline::new()) {
                                break turn;
                            }
                        };
                        *turn += 1;
                    }
                });
            }
        });
        assert_eq!(*turns.take(Deadline::passed()).unwrap(), THREADS * 1000);
    }
}
