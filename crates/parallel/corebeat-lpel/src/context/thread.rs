//! Carriers as threads that alternate with their worker, for Miri and ThreadSanitizer, which do not
//! support coroutines.

use super::{carry, dispatched};
use crate::current;
use crate::stack::Stack;
use crate::task::{Header, Outcome};
use crate::worker::Worker;
use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex};

/// Smallest stack of such a thread, in bytes: the tools need more than a task.
const STACK_SIZE: usize = 2 << 20;

/// Mutual exclusion of worker and carrier, and the state that they exchange.
#[derive(Default)]
struct Baton {
    exchange: Mutex<Exchange>,
    changed: Condvar,
}

#[derive(Default)]
struct Exchange {
    carrier_runs: bool,
    worker: usize,
    task: usize,
    stamp: u64,
    outcome: Option<Outcome>,
}

impl Baton {
    /// Lets the other side run, and waits until this side may run again.
    fn pass(&self, to_carrier: bool, outcome: Outcome) -> (usize, usize, u64, Outcome) {
        let mine = current::with(|c| {
            let (worker, task) = (c.worker.get(), c.task.get());
            (worker.expose_provenance(), task.expose_provenance(), c.stamp.get())
        });
        let mut exchange = self.exchange.lock().unwrap_or_else(|e| e.into_inner());
        (exchange.worker, exchange.task) = (mine.0, mine.1);
        (exchange.stamp, exchange.outcome) = (mine.2, Some(outcome));
        exchange.carrier_runs = to_carrier;
        self.changed.notify_all();
        while exchange.carrier_runs == to_carrier {
            exchange = self.changed.wait(exchange).unwrap_or_else(|e| e.into_inner());
        }
        let outcome = exchange.outcome.unwrap_or(Outcome::Ended);
        (exchange.worker, exchange.task, exchange.stamp, outcome)
    }

    /// Copies the state of the worker's thread to the thread of the carrier.
    fn adopt(&self, passed: (usize, usize, u64, Outcome)) {
        current::with(|c| {
            c.worker.set(std::ptr::with_exposed_provenance::<Worker>(passed.0));
            c.task.set(std::ptr::with_exposed_provenance::<Header>(passed.1));
            c.stamp.set(passed.2);
        });
    }

    fn await_first_run(&self) -> (usize, usize, u64, Outcome) {
        let mut exchange = self.exchange.lock().unwrap_or_else(|e| e.into_inner());
        while !exchange.carrier_runs {
            exchange = self.changed.wait(exchange).unwrap_or_else(|e| e.into_inner());
        }
        (exchange.worker, exchange.task, exchange.stamp, Outcome::Ended)
    }
}

thread_local! {
    static BATON: RefCell<Option<Arc<Baton>>> = const { RefCell::new(None) };
}

pub(crate) struct Carrier {
    baton: Arc<Baton>,
    thread: std::thread::JoinHandle<()>,
    stack: Stack,
    stack_size: u32,
}

impl Carrier {
    pub(crate) fn create(stack: Stack, stack_size: u32) -> std::io::Result<NonNull<Carrier>> {
        let baton = Arc::new(Baton::default());
        let own = baton.clone();
        let bytes = (stack.base().get() - stack.limit().get()).max(STACK_SIZE);
        let thread = std::thread::Builder::new().stack_size(bytes).spawn(move || {
            let passed = own.await_first_run();
            own.adopt(passed);
            BATON.set(Some(own.clone()));
            while let Some(task) = dispatched() {
                let passed = own.pass(false, carry(task));
                own.adopt(passed);
            }
            let mut exchange = own.exchange.lock().unwrap_or_else(|e| e.into_inner());
            exchange.carrier_runs = false;
            own.changed.notify_all();
        })?;
        let carrier = Box::new(Carrier { baton, thread, stack, stack_size });
        Ok(NonNull::from(Box::leak(carrier)))
    }

    pub(crate) unsafe fn resume(&self) -> Outcome {
        // The carrier ignores the outcome.
        self.baton.pass(true, Outcome::Ended).3
    }

    pub(crate) unsafe fn end(carrier: NonNull<Carrier>) -> Stack {
        // SAFETY: by the contract of this function, from `create`.
        let carrier = unsafe { Box::from_raw(carrier.as_ptr()) };
        carrier.baton.pass(true, Outcome::Ended);
        let _ = carrier.thread.join();
        carrier.stack
    }

    pub(crate) fn guard(&self) -> usize {
        self.stack.limit().get()
    }

    pub(crate) fn stack_size(&self) -> u32 {
        self.stack_size
    }
}

pub(crate) fn suspend(_: &Header, outcome: Outcome) {
    let baton =
        BATON.with_borrow(|b| b.clone()).expect("only tasks suspend, and tasks run on carriers");
    let passed = baton.pass(false, outcome);
    baton.adopt(passed);
}
