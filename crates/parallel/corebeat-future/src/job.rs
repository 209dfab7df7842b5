//! Jobs: closures that another thread may run, and the latches that publish their end.
//!
//! # Protocol
//!
//! A [`Work`] is a closure and a place for its result, in the frame (or in a box) of its owner. A
//! [`Job`] refers to the work. The owner puts the job into the queue of its strand. The thread that
//! removes the job from the queue, under the lock of the queue, has *claimed* it. There is one
//! queue, so there is one claim:
//!
//! ```text
//!              push                 remove (lock of the queue)
//!   owner ------------> queued -------------------------------> claimed by the owner: runs it
//!                          |                                    in place, like a plain call
//!                          |  remove (lock of the queue)
//!                          `----------------------------------> claimed by a thief: runs it,
//!                                                               then ends the latch
//! ```
//!
//! Proof that the work is used by one thread at a time, and not after its memory is reused:
//!
//! 1. Before the push, only the owner has access. After the push, the owner uses the work only if
//!    it has claimed the job, or after the latch has ended.
//! 2. A thief uses the work only after its claim and before it ends the latch. The lock of the
//!    queue orders the push and the claim; the latch orders the end and the owner's use.
//! 3. The owner leaves the frame that contains the work only after 1, also when it unwinds. The
//!    latch is in the job, which is counted, so the thief may still touch the latch then.
//!
//! `model` checks the protocol in loom, with planted faults.

use crate::strand::Strand;
use corebeat_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use corebeat_sync::cell::UnsafeCell;
use corebeat_sync::{Condvar, Mutex, OnceLock, lock, wait};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;
use std::thread;
use std::time::Instant;

/// The value with which a closure panicked.
pub(crate) type Payload = Box<dyn Any + Send>;

/// Place for the result of a closure, or for the payload of its panic.
pub(crate) struct Slot<T>(UnsafeCell<Option<thread::Result<T>>>);

impl<T> Slot<T> {
    /// Takes the result.
    ///
    /// # Safety
    ///
    /// The caller has claimed the job of this work, or the latch of the job has ended.
    pub(crate) unsafe fn take(&self) -> Option<thread::Result<T>> {
        // SAFETY: by the contract, no other thread uses the slot.
        self.0.with_mut(|slot| unsafe { (*slot).take() })
    }
}

/// A closure and the place for its result.
#[repr(C)]
pub(crate) struct Work<F, T> {
    // First, so that a pointer to the work is a pointer to the slot.
    slot: Slot<T>,
    closure: UnsafeCell<Option<F>>,
}

impl<F: FnOnce() -> T, T> Work<F, T> {
    pub(crate) fn new(closure: F) -> Self {
        Work { slot: Slot(UnsafeCell::new(None)), closure: UnsafeCell::new(Some(closure)) }
    }

    pub(crate) fn slot(&self) -> &Slot<T> {
        &self.slot
    }

    /// Takes the closure, which has not run.
    ///
    /// # Safety
    ///
    /// The caller has claimed the job.
    pub(crate) unsafe fn closure(&self) -> Option<F> {
        // SAFETY: by the contract, no other thread uses the work.
        self.closure.with_mut(|closure| unsafe { (*closure).take() })
    }

    /// Runs the closure and stores its result. Returns whether it panicked.
    ///
    /// # Safety
    ///
    /// `work` points to a work of this type whose job the caller has claimed.
    unsafe fn run(work: *const ()) -> bool {
        // SAFETY: by the contract, the work is alive and no other thread uses it.
        let work = unsafe { &*work.cast::<Self>() };
        // SAFETY: as above.
        let closure = unsafe { work.closure() }.expect("a job is claimed once");
        let result = catch_unwind(AssertUnwindSafe(closure));
        let has_failed = result.is_err();
        // SAFETY: as above.
        work.slot.0.with_mut(|slot| unsafe { *slot = Some(result) });
        has_failed
    }
}

/// A closure that another thread may run.
pub(crate) struct Job {
    run: unsafe fn(*const ()) -> bool,
    work: *const (),
    /// Number of open joins around the closure, in the order of the sequential program.
    pub(crate) depth: u32,
    /// Bytes of stack that the thread has on which the outermost join was called.
    pub(crate) stack: usize,
    /// Position among the jobs of the strand that created this one.
    pub(crate) number: u64,
    /// The strand that has claimed the job, unless that is the owner.
    pub(crate) thief: OnceLock<Arc<Strand>>,
    /// Ends after the closure.
    pub(crate) end: Latch,
    /// Run time of the closure, in nanoseconds.
    time_ns: AtomicU64,
}

// SAFETY: the protocol above orders all uses of the work, whose closure and result are `Send` (the
// bounds of the functions that create jobs). The other fields are `Sync`.
unsafe impl Sync for Job {}
// SAFETY: as above.
unsafe impl Send for Job {}

/// Properties of a new job.
pub(crate) struct Origin {
    pub(crate) depth: u32,
    pub(crate) stack: usize,
    /// Greater than those of the earlier jobs of the strand.
    pub(crate) number: u64,
}

impl Job {
    /// Creates the job of a work.
    ///
    /// # Safety
    ///
    /// The work stays where it is, and alive, until the job is claimed by its owner or its latch
    /// has ended. The closure and the result are `Send`.
    pub(crate) unsafe fn new<F: FnOnce() -> T, T>(work: *const Work<F, T>, origin: Origin) -> Job {
        Job {
            run: Work::<F, T>::run,
            work: work.cast(),
            depth: origin.depth,
            stack: origin.stack,
            number: origin.number,
            thief: OnceLock::new(),
            end: Latch::new(),
            time_ns: AtomicU64::new(0),
        }
    }

    /// Runs the closure and ends the latch.
    ///
    /// # Safety
    ///
    /// The caller has claimed the job, and calls this once.
    pub(crate) unsafe fn execute(&self) {
        let begin = Instant::now();
        // SAFETY: the caller has claimed the job.
        let has_failed = unsafe { (self.run)(self.work) };
        // Relaxed: the latch orders the write before the owner's read.
        self.time_ns.store(nanos_since(begin), Ordering::Relaxed);
        self.end.end(has_failed);
    }

    /// Run time of the closure in nanoseconds, after the latch has ended.
    pub(crate) fn time_ns(&self) -> u64 {
        // Relaxed: as in `execute`.
        self.time_ns.load(Ordering::Relaxed)
    }
}

/// Time since `begin` in nanoseconds.
pub(crate) fn nanos_since(begin: Instant) -> u64 {
    u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// An event that happens once, and for which threads and tasks wait.
pub(crate) struct Latch {
    over: AtomicBool,
    failed: AtomicBool,
    waiting: Mutex<Vec<Waker>>,
    changed: Condvar,
}

impl Latch {
    pub(crate) fn new() -> Latch {
        Latch {
            over: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            waiting: Mutex::new(Vec::new()),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        // Acquire: pairs with the release in `end`.
        self.over.load(Ordering::Acquire)
    }

    /// Whether the computation panicked, after it has ended.
    pub(crate) fn has_failed(&self) -> bool {
        // Relaxed: ordered by `over`.
        self.failed.load(Ordering::Relaxed)
    }

    /// Lets all waiting threads and tasks continue.
    pub(crate) fn end(&self, has_failed: bool) {
        // Relaxed: ordered by `over`.
        self.failed.store(has_failed, Ordering::Relaxed);
        let mut waiting = lock(&self.waiting);
        // Release: publishes the result. Under the lock, so that no thread begins to wait between
        // its check and its wait.
        self.over.store(true, Ordering::Release);
        let wakers = std::mem::take(&mut *waiting);
        drop(waiting);
        if !crate::fault_omits("notify") {
            self.changed.notify_all();
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Waits until the event has happened. Suspends the calling task of LPEL, if there is one that
    /// may wait, and blocks the thread otherwise. Returns the payload with which the task must be
    /// unwound afterwards, if it was cancelled.
    ///
    /// A thread does not park, because that would consume the token of an `unpark` that is meant
    /// for code of the program.
    pub(crate) fn wait(&self) -> Option<Payload> {
        let mut interruption = None;
        if let Some(mut task) = wait::task() {
            let suspend = || {
                let mut waiting = lock(&self.waiting);
                // Relaxed: the lock orders this with `end`.
                if !self.over.load(Ordering::Relaxed) {
                    waiting.push(task.waker());
                    drop(waiting);
                    task.suspend(None);
                }
            };
            // A cancelled task is unwound here. The frames below must stay until the event.
            interruption = catch_unwind(AssertUnwindSafe(suspend)).err();
        }
        let mut waiting = lock(&self.waiting);
        // Relaxed: as above.
        while !self.over.load(Ordering::Relaxed) && !crate::fault_omits("wait") {
            waiting = self.changed.wait(waiting).unwrap_or_else(|e| e.into_inner());
        }
        drop(waiting);
        interruption
    }
}
