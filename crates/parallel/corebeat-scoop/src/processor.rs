//! A processor: its region, its queue, and the task that it has while it has calls to run.

use crate::activity::Running;
use crate::client::Client;
use crate::error::{Cause, Error, Name};
use crate::fault::is_any_planted;
use crate::handle::{At, AtHasher, Export};
use crate::queue::Queue;
use crate::region::{Here, Region};
use crate::system::{Access, Inner};
use crate::turn::Turn;
use corebeat_lpel::{Local, yield_now};
use corebeat_sync::atomic::{AtomicUsize, Ordering};
use corebeat_sync::fork::Process;
use corebeat_sync::{Mutex, lock};
use std::cell::Cell;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Weak};

pub(crate) struct Processor {
    pub(crate) id: u64,
    /// Type of its first object.
    pub(crate) of: &'static str,
    /// Number of its system.
    pub(crate) system: u64,
    /// The process that runs its calls.
    process: Process,
    /// Key in the table of the system.
    pub(crate) key: AtomicUsize,
    pub(crate) turn: Turn<Region>,
    pub(crate) queue: Mutex<Queue>,
    pub(crate) inbox: Mutex<Inbox>,
    /// Objects with references from outside of all regions.
    exports: Mutex<HashMap<At, Weak<Export>, AtHasher>>,
}

/// Requests of the collector to a processor.
#[derive(Default)]
pub(crate) struct Inbox {
    /// Objects that were reached from other regions.
    pub(crate) reached: Vec<At>,
    /// Whether the processor counts as pending in this phase.
    pub(crate) pending: bool,
    /// The last collection that found the processor alive.
    pub(crate) live: u64,
}

impl Processor {
    pub(crate) fn new(id: u64, of: &'static str, system: u64, region: Region) -> Self {
        Processor {
            id,
            of,
            system,
            process: Process::current(),
            key: AtomicUsize::new(0),
            turn: Turn::taken(region),
            queue: Mutex::default(),
            inbox: Mutex::default(),
            exports: Mutex::default(),
        }
    }

    pub(crate) fn name(&self) -> Name {
        Name { id: self.id, of: Some(self.of) }
    }

    /// Returns the export of an object. If the export is new, runs `then` before other threads can
    /// find the export.
    pub(crate) fn export<R>(
        self: &Arc<Self>,
        at: At,
        then: impl FnOnce() -> R,
    ) -> (Arc<Export>, Option<R>) {
        let mut exports = lock(&self.exports);
        if let Some(export) = exports.get(&at).and_then(Weak::upgrade) {
            return (export, None);
        }
        let export = Arc::new(Export { processor: self.clone(), at });
        exports.insert(at, Arc::downgrade(&export));
        (export, Some(then()))
    }

    /// Removes the export of an object after its last reference was dropped.
    pub(crate) fn forget_export(&self, at: At) {
        if !self.process.is_current() {
            // A thread that does not exist here may hold the lock.
            return;
        }
        let mut exports = lock(&self.exports);
        // Another thread may have created a new export.
        if exports.get(&at).is_some_and(|export| export.strong_count() == 0) {
            exports.remove(&at);
            if exports.is_empty() {
                exports.shrink_to_fit();
            }
        }
    }

    pub(crate) fn exported(&self) -> Vec<At> {
        lock(&self.exports).keys().copied().collect()
    }

    /// Returns whether the processor is a basic one: clients may call it, or have called it. (A
    /// call holds its target until it is over.)
    pub(crate) fn is_basic(&self) -> bool {
        !lock(&self.exports).is_empty()
    }

    /// Returns the failure of the processor, if any.
    pub(crate) fn failure(&self) -> Option<Error> {
        let why = lock(&self.queue).failed.clone()?;
        Some(Error::Failed { processor: self.name(), why })
    }

    /// Marks the processor as failed, wakes waiting clients, and drops all logged calls.
    fn fail(&self, why: Cause) {
        let (calls, woken) = lock(&self.queue).fail(why);
        drop(woken);
        for call in calls {
            drop_quietly(call);
        }
    }
}

/// Drops a call or another value of a user, whose destructor may panic.
pub(crate) fn drop_quietly<T>(value: T) {
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(value)));
    let _ = dropped.map_err(std::mem::forget);
}

/// Name of the current task, if it belongs to a processor or a collector.
static TASK: Local<Cell<Option<Name>>> = Local::new(|| Cell::new(None));

/// Sets the name of the current task.
pub(crate) fn begin_task(name: Name) {
    TASK.with(|task| task.set(Some(name)));
}

/// Returns the name of the current task; `None` outside of calls and collections.
pub(crate) fn task() -> Option<Name> {
    TASK.try_with(Cell::get).flatten()
}

/// Whether the current task runs finalisers.
static FINALISES: Local<Cell<bool>> = Local::new(|| Cell::new(false));

/// Runs finalisers, which must not wait.
pub(crate) fn finalise<R>(f: impl FnOnce() -> R) -> R {
    let outer = FINALISES.with(|finalises| finalises.replace(true));
    let result = f();
    FINALISES.with(|finalises| finalises.set(outer));
    result
}

/// Returns whether a finaliser is running.
pub(crate) fn finalises() -> bool {
    FINALISES.with(Cell::get)
}

/// Returns whether the caller may wait for other calls and collections. Neither a call nor a
/// finaliser may, because its own end would be a condition; nor may a destructor of `thread_local!`
/// data, which cannot be suspended.
pub(crate) fn may_wait() -> bool {
    TASK.try_with(|task| task.get().is_none()) == Some(true)
        && FINALISES.try_with(Cell::get) == Some(false)
}

/// The body of a processor's task. If the task never starts, the processor fails.
pub(crate) struct Activation {
    pub(crate) inner: Arc<Inner>,
    pub(crate) processor: Arc<Processor>,
    /// Whether the task owns the turn already, as the first task of its processor.
    pub(crate) is_first: bool,
    is_over: Cell<bool>,
    /// The last field: dropped after the last use of the system.
    _running: Running,
}

impl Activation {
    pub(crate) fn new(inner: Arc<Inner>, processor: Arc<Processor>, is_first: bool) -> Self {
        let _running = inner.activity.begin();
        Activation { inner, processor, is_first, is_over: Cell::new(false), _running }
    }

    /// Runs calls until the queue is empty.
    pub(crate) fn run(self) {
        let Activation { inner, processor, .. } = &self;
        begin_task(processor.name());
        if !self.is_first {
            inner.take_turn(processor);
        }
        let client = Client::new(Access::of_call(inner.clone()), processor.name());
        // SAFETY: this task owns the turn, and releases it after the last use.
        let region = unsafe { processor.turn.value() };
        let mut here = Here::new(&client, region, processor);
        let mut end = None;
        let mut waiter = None;
        loop {
            if processor.turn.take_work() {
                inner.do_work(processor, here.region());
            }
            let (call, woken) = lock(&processor.queue).next();
            drop((woken, waiter));
            let Some(call) = call else { break };
            waiter = call.waiter;
            let done = catch_unwind(AssertUnwindSafe(|| (call.run)(&mut here)));
            here.end_call();
            if let Err(payload) = done {
                // No call can reach its objects any more.
                finalise(|| here.region().clear());
                let (why, end_of_task) = Cause::of_panic(payload);
                processor.fail(why);
                end = end_of_task;
                break;
            }
        }
        self.is_over.set(true);
        while !processor.turn.release() {
            if processor.turn.take_work() {
                // SAFETY: this task still owns the turn.
                inner.do_work(processor, unsafe { processor.turn.value() });
            }
        }
        if let Some(payload) = end {
            resume_unwind(payload);
        }
    }
}

impl Drop for Activation {
    fn drop(&mut self) {
        if !self.is_over.get() {
            let why = "its runtime has ended, or had no memory for a task";
            self.processor.fail(Cause::message_only(why));
            while self.is_first && !self.processor.turn.release() {
                // A collection waits for this. During unwinding the work is lost: a `Trace` has
                // panicked, or the runtime has ended.
                if self.processor.turn.take_work() && !std::thread::panicking() {
                    // SAFETY: this task still owns the turn.
                    self.inner.do_work(&self.processor, unsafe { self.processor.turn.value() });
                }
            }
        }
    }
}

impl Inner {
    /// Takes the turn of a region; waits while the collector owns it.
    pub(crate) fn take_turn(&self, processor: &Processor) {
        /// Counts threads that wait for a turn.
        struct Waiting<'a>(&'a AtomicUsize);

        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                // Relaxed: as below.
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }

        if processor.turn.try_take() {
            return;
        }
        // Relaxed: the collector polls the number.
        self.collector.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(&self.collector.waiting);
        for yields in 0u64.. {
            if processor.turn.try_take() {
                break;
            }
            // With a planted fault, the collector may have freed a processor that is in use.
            assert!(yields < 10_000 || !is_any_planted(), "the turn is never released");
            yield_now();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::System;
    use crate::wait::new_id;
    use corebeat_lpel::Runtime;
    use std::num::NonZeroU32;

    #[test]
    fn activation_that_never_starts_does_the_work_of_the_collector() {
        let runtime = Arc::new(Runtime::builder().deterministic(1).build().unwrap());
        let system = System::new(runtime.clone());
        let done = runtime.run(move || {
            let inner = Arc::clone(&system.client().inner);
            let region = Region::new::<u32>(NonZeroU32::MIN);
            let processor = Arc::new(Processor::new(new_id(), "test", inner.id, region));
            let activation = Activation::new(inner.clone(), processor.clone(), true);
            inner.reach(&processor, Some(At { pool: NonZeroU32::MIN, index: 0 }));
            // The collector finds the turn taken, and leaves the work to its owner.
            (0..100).for_each(|_| yield_now());
            let is_requested = lock(&processor.inbox).pending;
            drop(activation);
            // Otherwise a collection would wait forever.
            is_requested && !lock(&processor.inbox).pending
        });
        assert!(done.unwrap());
    }
}
