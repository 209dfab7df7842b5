//! A processor: its region, what was logged for it, and the task that it has while there is something to do.

use crate::client::Client;
use crate::error::{Error, Name};
use crate::handle::{At, Export};
use crate::queue::{Call, Queue, lock};
use crate::region::{Here, Region};
use crate::system::Inner;
use crate::turn::Turn;
use corebeat_lpel::{Local, ends_task, yield_now};
use corebeat_sync::Mutex;
use corebeat_sync::atomic::{AtomicUsize, Ordering};
use std::any::Any;
use std::cell::Cell;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Weak};

pub(crate) struct Processor {
    pub(crate) id: u64,
    /// The type of its first object.
    pub(crate) of: &'static str,
    /// The number of its system.
    pub(crate) system: u64,
    /// Its place in the system's table.
    pub(crate) key: AtomicUsize,
    pub(crate) turn: Turn<Region>,
    pub(crate) queue: Mutex<Queue>,
    pub(crate) inbox: Mutex<Inbox>,
    /// Objects that are known outside of all heaps.
    exports: Mutex<HashMap<At, Weak<Export>>>,
}

/// What the collector has for it.
#[derive(Default)]
pub(crate) struct Inbox {
    /// Objects that others have reached.
    pub(crate) reached: Vec<At>,
    /// It counts among those that have something to do in this phase.
    pub(crate) pending: bool,
    /// The last collection in which it was found to live.
    pub(crate) live: u64,
}

impl Processor {
    pub(crate) fn new(id: u64, of: &'static str, system: u64, region: Region) -> Self {
        Processor {
            id,
            of,
            system,
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

    /// The one export of an object, and whether it is new. `then` runs before anybody else can look.
    pub(crate) fn export<R>(self: &Arc<Self>, at: At, then: impl FnOnce() -> R) -> (Arc<Export>, Option<R>) {
        let mut exports = lock(&self.exports);
        if let Some(export) = exports.get(&at).and_then(Weak::upgrade) {
            return (export, None);
        }
        let export = Arc::new(Export { processor: self.clone(), at });
        exports.insert(at, Arc::downgrade(&export));
        (export, Some(then()))
    }

    /// The last holder of an object is gone.
    pub(crate) fn forget_export(&self, at: At) {
        let mut exports = lock(&self.exports);
        // There may be a new export by now.
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

    /// Whether somebody may call it, or has called it: a call holds its target until it is over.
    pub(crate) fn is_basic(&self) -> bool {
        !lock(&self.exports).is_empty()
    }

    /// Why it runs nothing any more.
    pub(crate) fn failure(&self) -> Option<Error> {
        let why = lock(&self.queue).failed.clone()?;
        Some(Error::Failed { processor: self.name(), why })
    }

    /// Tells all who wait, and drops all that was logged.
    fn fail(&self, why: &str) {
        let (calls, woken) = lock(&self.queue).fail(why.into());
        drop(woken);
        for call in calls {
            drop_quietly(call);
        }
    }
}

/// What calls bring with them may have destructors that panic.
fn drop_quietly(call: Call) {
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(call)));
    let _ = dropped.map_err(std::mem::forget);
}

/// Who the running task is, if it is a processor's or a collector's, for whom a collection waits; and the number of its system.
static TASK: Local<Cell<Option<(u64, Name)>>> = Local::new(|| Cell::new(None));

/// The running task is this from now on.
pub(crate) fn begin_task(system: u64, name: Name) {
    TASK.with(|task| task.set(Some((system, name))));
}

/// Who the running task is, and the number of its system; `None` outside of calls and collections.
pub(crate) fn task() -> Option<(u64, Name)> {
    TASK.with(Cell::get)
}

/// The running task drops dead objects.
static FINALISES: Local<Cell<bool>> = Local::new(|| Cell::new(false));

/// Runs finalisers, which must not wait.
pub(crate) fn finalise<R>(f: impl FnOnce() -> R) -> R {
    let outer = FINALISES.with(|finalises| finalises.replace(true));
    let result = f();
    FINALISES.with(|finalises| finalises.set(outer));
    result
}

/// Whether whoever runs is a finaliser.
pub(crate) fn finalises() -> bool {
    FINALISES.with(Cell::get)
}

/// A processor that has something to do: what its task runs. If that never starts, the processor has failed.
pub(crate) struct Activation {
    pub(crate) inner: Arc<Inner>,
    pub(crate) processor: Arc<Processor>,
    /// It has the turn already, as the first one of its processor.
    pub(crate) is_first: bool,
    is_over: bool,
}

impl Activation {
    pub(crate) fn new(inner: Arc<Inner>, processor: Arc<Processor>, is_first: bool) -> Self {
        Activation { inner, processor, is_first, is_over: false }
    }

    /// Runs calls until there is none.
    pub(crate) fn run(mut self) {
        let (inner, processor) = (self.inner.clone(), self.processor.clone());
        begin_task(inner.id, processor.name());
        if !self.is_first {
            inner.take_turn(&processor);
        }
        let client = Client::new(inner.clone(), processor.name());
        // SAFETY: this has the turn, and gives it back after the last use.
        let region = unsafe { processor.turn.value() };
        let mut here = Here::new(&client, region, &processor);
        let mut end = None;
        let mut waiter = None;
        loop {
            if processor.turn.take_work() {
                inner.do_work(&processor, here.region());
            }
            let (call, woken) = lock(&processor.queue).next();
            drop((woken, waiter));
            let Some(call) = call else { break };
            waiter = call.waiter;
            let done = catch_unwind(AssertUnwindSafe(|| (call.run)(&mut here)));
            here.end_call();
            if let Err(payload) = done {
                // Nobody gets at its objects any more.
                finalise(|| here.region().clear());
                processor.fail(text(&*payload));
                end = ends_task(&*payload).then_some(payload);
                break;
            }
        }
        self.is_over = true;
        while !processor.turn.give_back() {
            if processor.turn.take_work() {
                // SAFETY: this has the turn still.
                inner.do_work(&processor, unsafe { processor.turn.value() });
            }
        }
        if let Some(payload) = end {
            resume_unwind(payload);
        }
    }
}

impl Drop for Activation {
    fn drop(&mut self) {
        if !self.is_over {
            self.processor.fail("its runtime has ended, or had no memory for its task");
            while self.is_first && !self.processor.turn.give_back() {
                // A collection waits for this. Unwound, that is lost: a `Trace` has panicked here, or the runtime has ended.
                if self.processor.turn.take_work() && !std::thread::panicking() {
                    // SAFETY: this has the turn still.
                    self.inner.do_work(&self.processor, unsafe { self.processor.turn.value() });
                }
            }
        }
    }
}

/// What a panic says.
fn text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a call was unwound")
}

impl Inner {
    /// Waits until the collector has done with a region.
    pub(crate) fn take_turn(&self, processor: &Processor) {
        /// Counts who wants a turn.
        struct Wants<'a>(&'a AtomicUsize);

        impl Drop for Wants<'_> {
            fn drop(&mut self) {
                // Relaxed: see below.
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }

        if processor.turn.try_take() {
            return;
        }
        // Relaxed: the collector looks again and again.
        self.collector.wants.fetch_add(1, Ordering::Relaxed);
        let _wants = Wants(&self.collector.wants);
        while !processor.turn.try_take() {
            yield_now();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::System;
    use corebeat_lpel::Runtime;
    use std::num::NonZeroU32;

    #[test]
    fn activation_that_never_starts_does_what_the_collector_has_asked_for() {
        let runtime = Arc::new(Runtime::builder().deterministic(1).build().unwrap());
        let system = System::new(runtime.clone());
        let done = runtime.run(move || {
            let inner = system.client().inner;
            let region = Region::new::<u32>(NonZeroU32::MIN);
            let processor = Arc::new(Processor::new(1, "test", inner.id, region));
            let activation = Activation::new(inner.clone(), processor.clone(), true);
            inner.reach(&processor, Some(At { pool: NonZeroU32::MIN, index: 0 }));
            // The collector meets it, and leaves it to who has the turn.
            (0..100).for_each(|_| yield_now());
            let is_asked = lock(&processor.inbox).pending;
            drop(activation);
            // A collection would wait for it for ever.
            is_asked && !lock(&processor.inbox).pending
        });
        assert!(done.unwrap());
    }
}
