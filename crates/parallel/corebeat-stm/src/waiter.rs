//! Threads and tasks that wait until a cell that they have read is written (`retry`).
//!
//! | waiting thread or task | committing thread |
//! | --- | --- |
//! | adds itself to the list and updates the count | releases its locks |
//! | `heavy` | `light` |
//! | loads the locks of the cells that it has read | loads the count |
//! | sleeps if the locks are unchanged | continues if the count is 0 |
//!
//! One of the two fences comes first: either the waiting thread observes the released locks, or the
//! committing thread observes the count. No thread accesses the locks of a sleeping thread, because
//! their memory may be freed meanwhile: the committing thread compares addresses.
//!
//! A task of LPEL is suspended, and its worker continues with other tasks, which may run
//! transactions. Therefore, a waiting transaction does not hold the descriptor of its thread.

use crate::global::GLOBAL;
use corebeat_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use corebeat_sync::fork::{self, ForkMutex};
use corebeat_sync::thread::{self, Thread};
use corebeat_sync::wait::{self, Suspend};
use corebeat_sync::{Arc, asymmetric, const_unless_loom};
use std::mem;
use std::task::Waker;
use std::time::{Duration, Instant};

pub(crate) struct Waiters {
    count: AtomicUsize,
    list: ForkMutex<Vec<Waiter>>,
}

struct Waiter {
    signal: Arc<Signal>,
    /// The bits of the locks that the thread or task waits for
    /// ([`Lock::filter_bit`](crate::lock::Lock::filter_bit)).
    bits: u64,
}

/// Wakes one waiting transaction.
struct Signal {
    /// Whether a cell that the transaction waits for has changed. Set when the waiter is removed
    /// from the list.
    is_woken: AtomicBool,
    sleeper: Sleeper,
}

enum Sleeper {
    Thread(Thread),
    Task(Waker),
}

/// A transaction that waits. It is in the list until it is woken or dropped.
#[must_use = "sleep, or drop this value"]
pub(crate) struct Waiting {
    signal: Arc<Signal>,
    task: Option<Box<dyn Suspend>>,
}

impl Waiting {
    fn is_woken(&self) -> bool {
        // Acquire: pairs with the Release in `wake_some`.
        self.signal.is_woken.load(Ordering::Acquire)
    }

    /// Sleeps until another thread wakes this one and removes it from the list. Returns `false` if
    /// the deadline came first. A task measures the time that is left by the clock of its runtime,
    /// which may be virtual.
    pub(crate) fn sleep(mut self, deadline: Option<Instant>) -> bool {
        while !self.is_woken() {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            match (&mut self.task, left) {
                (_, Some(Duration::ZERO)) => return false,
                (Some(task), left) => {
                    if !task.suspend(left) {
                        return self.is_woken();
                    }
                }
                (None, Some(left)) => thread::park_timeout(left),
                (None, None) => thread::park(),
            }
        }
        true
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.is_woken() {
            GLOBAL.waiters.remove(&self.signal);
        }
    }
}

impl Waiters {
    const_unless_loom! {
        pub(crate) fn new() -> Self {
            Waiters { count: AtomicUsize::new(0), list: ForkMutex::new(Vec::new()) }
        }
    }

    /// Adds the calling thread or task to the list. It may sleep if, after this, the cells that it
    /// has read are unchanged.
    pub(crate) fn add(&self, bits: u64) -> Waiting {
        self.add_caller(bits, wait::task())
    }

    /// Adds this task to the list; the calling thread if `task` is `None`.
    pub(crate) fn add_caller(&self, bits: u64, task: Option<Box<dyn Suspend>>) -> Waiting {
        let sleeper = match &task {
            Some(task) => Sleeper::Task(task.waker()),
            None => Sleeper::Thread(thread::current()),
        };
        let signal = Arc::new(Signal { is_woken: AtomicBool::new(false), sleeper });
        fork::call_in_children(forget_waiters);
        let mut list = self.list.lock();
        list.push(Waiter { signal: signal.clone(), bits });
        // Relaxed: the fence orders the store.
        self.count.store(list.len(), Ordering::Relaxed);
        drop(list);
        asymmetric::heavy_fence();
        Waiting { signal, task }
    }

    /// Returns whether no thread or task waits.
    #[cfg(all(test, loom))]
    pub(crate) fn is_empty(&self) -> bool {
        self.list.lock().is_empty() && self.count.load(Ordering::Relaxed) == 0
    }

    /// Removes a waiter that does not sleep.
    fn remove(&self, signal: &Arc<Signal>) {
        let mut list = self.list.lock();
        list.retain(|waiter| !Arc::ptr_eq(&waiter.signal, signal));
        self.count.store(list.len(), Ordering::Relaxed);
    }

    /// Wakes the threads that wait for one of these locks, which have been released.
    #[inline(always)]
    pub(crate) fn wake(&self, bits: impl FnOnce() -> u64) {
        asymmetric::light_fence();
        // Relaxed: the fence orders the load.
        if self.count.load(Ordering::Relaxed) != 0 {
            self.wake_some(bits());
        }
    }

    #[cold]
    fn wake_some(&self, bits: u64) {
        let mut woken = Vec::new();
        let mut list = self.list.lock();
        list.retain(|waiter| {
            let stays = waiter.bits & bits == 0;
            if !stays {
                // Release: pairs with the Acquire in `is_woken`.
                waiter.signal.is_woken.store(true, Ordering::Release);
                woken.push(waiter.signal.clone());
            }
            stays
        });
        self.count.store(list.len(), Ordering::Relaxed);
        drop(list);
        woken.iter().for_each(|signal| match &signal.sleeper {
            Sleeper::Thread(thread) => thread.unpark(),
            Sleeper::Task(waker) => waker.wake_by_ref(),
        });
    }
}

/// Empties the list in a child of fork: the threads and the runtimes of the entries belong to the
/// parent.
fn forget_waiters() {
    let mut list = GLOBAL.waiters.list.lock();
    // Not dropped: a waker would enter the runtime of a task.
    mem::forget(mem::take(&mut *list));
    // Relaxed: the child has no other thread.
    GLOBAL.waiters.count.store(0, Ordering::Relaxed);
}

/// Wakes waiting threads at the end of a commit.
#[inline(always)]
pub(crate) fn wake(bits: impl FnOnce() -> u64) {
    GLOBAL.waiters.wake(bits);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{TCell, TimedOut, atomically, atomically_timeout};
    use corebeat_lpel::{Failure, Runtime, spawn, yield_now};
    use std::panic::catch_unwind;

    /// Returns whether this thread is in the list.
    fn is_listed() -> bool {
        let own = thread::current().id();
        let is_own = |waiter: &Waiter| match &waiter.signal.sleeper {
            Sleeper::Thread(thread) => thread.id() == own,
            Sleeper::Task(_) => false,
        };
        GLOBAL.waiters.list.lock().iter().any(is_own)
    }

    /// Returns whether a task is in the list. Only one of these tests has tasks.
    fn is_task_listed() -> bool {
        let is_task = |waiter: &Waiter| matches!(waiter.signal.sleeper, Sleeper::Task(_));
        GLOBAL.waiters.list.lock().iter().any(is_task)
    }

    #[test]
    fn aborted_and_late_tasks_leave_no_waiter() {
        let runtime = Runtime::builder().workers(1).build().unwrap();
        let listed = runtime.run(|| {
            let never: &'static TCell<u64> = Box::leak(Box::new(TCell::new(0)));
            let wait = |time| {
                atomically_timeout(time, |tx| {
                    tx.read(never)?;
                    tx.retry::<()>()
                })
            };
            assert_eq!(wait(Duration::from_millis(1)), Err(TimedOut));
            let after_limit = is_task_listed();
            let waits = spawn(move || wait(Duration::MAX));
            while !is_task_listed() {
                yield_now();
            }
            waits.abort();
            assert!(matches!(waits.join(), Err(Failure::Aborted)));
            (after_limit, is_task_listed())
        });
        assert_eq!(listed.unwrap(), (false, false));
    }

    #[test]
    #[cfg(not(miri))]
    fn child_of_fork_has_no_waiters_of_its_parent() {
        // No commit wakes a waiter without locks.
        let _waiting = GLOBAL.waiters.add_caller(0, None);
        assert!(is_listed());
        assert!(corebeat_test_group::in_child(|| {
            // Relaxed: this process has no other thread.
            let count = GLOBAL.waiters.count.load(Ordering::Relaxed);
            GLOBAL.waiters.list.lock().is_empty() && count == 0
        }));
        assert!(is_listed());
    }

    #[test]
    fn wait_that_ends_without_a_change_leaves_no_waiting_thread() {
        let cell = TCell::new(0);
        let waits = atomically_timeout(Duration::from_millis(1), |tx| {
            tx.read(&cell)?;
            tx.retry::<()>()
        });
        assert_eq!(waits, Err(TimedOut));
        assert!(!is_listed());
        assert!(catch_unwind(|| atomically(|tx| tx.retry::<()>())).is_err());
        assert!(!is_listed());
    }
}
