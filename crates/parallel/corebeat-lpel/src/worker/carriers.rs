//! Free carriers and stacks of one worker.

use super::{Target, Worker};
use crate::context::Carrier;
use crate::error::Failure;
use crate::stack::Pool;
use crate::task::{Header, Status};
use std::cell::{Cell, RefCell};
use std::io;
use std::ptr::{self, NonNull};

/// Time after which an async task retries to get a stack.
const STACK_RETRY_NS: u64 = 1_000_000;

pub(super) struct Carriers {
    /// Free carriers and stacks, for each size of stacks.
    sizes: RefCell<Vec<Size>>,
    /// The carrier that was released last; null if a task has borrowed it again. An async task
    /// borrows a carrier for each poll.
    cached: Cell<*mut Carrier>,
}

impl Default for Carriers {
    fn default() -> Self {
        Carriers { sizes: RefCell::default(), cached: Cell::new(ptr::null_mut()) }
    }
}

struct Size {
    pool: Pool,
    spare: Vec<NonNull<Carrier>>,
}

impl Carriers {
    /// # Safety
    ///
    /// The carrier is from `Worker::borrow_spare_carrier`, and is not on loan.
    #[inline(never)]
    unsafe fn put_back(&self, carrier: NonNull<Carrier>) {
        // SAFETY: by the contract of this function.
        let stack_size = unsafe { carrier.as_ref() }.stack_size() as usize;
        let mut sizes = self.sizes.borrow_mut();
        let size = sizes.iter_mut().find(|s| s.pool.stack_size() == stack_size);
        size.expect("a carrier is from the pool of its size").spare.push(carrier);
    }

    /// Returns a carrier, and whether it is new.
    fn take(&self, stack_size: u32) -> io::Result<(NonNull<Carrier>, bool)> {
        let mut sizes = self.sizes.borrow_mut();
        let bytes = stack_size as usize;
        let at = match sizes.iter().position(|s| s.pool.stack_size() == bytes) {
            Some(at) => at,
            None => {
                sizes.push(Size { pool: Pool::new(bytes), spare: Vec::new() });
                sizes.len() - 1
            }
        };
        let size = &mut sizes[at];
        match size.spare.pop() {
            Some(carrier) => Ok((carrier, false)),
            None => Ok((Carrier::create(size.pool.take()?, stack_size)?, true)),
        }
    }
}

impl Worker {
    /// Lends the carrier that was released last to a task, if the sizes are equal.
    #[inline(always)]
    pub(super) fn borrow_carrier(&self, task: &Header) -> bool {
        let cached = &self.own.carriers.cached;
        // SAFETY: a released carrier lives until it is put back.
        match unsafe { cached.get().as_ref() } {
            Some(carrier) if carrier.stack_size() == task.stack_size => {
                task.carrier.set(cached.replace(ptr::null_mut()));
                true
            }
            _ => false,
        }
    }

    /// Lends any carrier to a task. Returns false if there is none, and the task does not run now,
    /// or has ended.
    #[inline(never)]
    pub(super) fn borrow_spare_carrier(&self, task: *const Header) -> bool {
        // SAFETY: the caller is about to dispatch the task.
        let header = unsafe { &*task };
        match self.own.carriers.take(header.stack_size) {
            Ok((carrier, is_new)) => {
                self.counts.stacks.add(u64::from(is_new));
                header.carrier.set(carrier.as_ptr());
                true
            }
            Err(_) if header.dispatches.get() > 0 && !header.is_cancelled() => {
                // The task has started. Other tasks will return their stacks.
                header.set_status(Status::Sleeping);
                self.set_timer(STACK_RETRY_NS, Target::Task(task));
                false
            }
            Err(why) => {
                let why = Failure::NoStack(why);
                let id = header.id;
                let report = || format!("task {id} and perhaps other tasks did not run: {why}");
                self.inner().detector.report_later(report);
                self.abandon(task, why);
                false
            }
        }
    }

    /// Takes the carrier of a task back.
    #[inline(always)]
    pub(super) fn release_carrier(&self, task: &Header) {
        let carriers = &self.own.carriers;
        let before = carriers.cached.replace(task.carrier.replace(ptr::null_mut()));
        if let Some(before) = NonNull::new(before) {
            // SAFETY: no task has borrowed the carrier since it was released.
            unsafe { carriers.put_back(before) };
        }
    }

    /// Frees the memory of all free carriers but `keep` of each size.
    pub(crate) fn trim_carriers(&self, keep: usize) {
        let carriers = &self.own.carriers;
        if let Some(cached) = NonNull::new(carriers.cached.replace(ptr::null_mut())) {
            // SAFETY: no task has borrowed the carrier since it was released.
            unsafe { carriers.put_back(cached) };
        }
        for size in carriers.sizes.borrow_mut().iter_mut() {
            while size.spare.len() > keep
                && let Some(carrier) = size.spare.pop()
            {
                // SAFETY: a spare carrier is free.
                size.pool.give_back(unsafe { Carrier::end(carrier) });
                self.counts.stacks.add(u64::MAX);
            }
        }
    }
}
