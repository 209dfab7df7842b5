//! Carriers as coroutines of corosensei.

use super::{carry, dispatched};
use crate::stack::{self, Stack};
use crate::task::{Header, Outcome};
use corosensei::stack::StackPointer;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::cell::{Cell, UnsafeCell};
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};

// SAFETY: stacks of a pool have a guard below, are aligned, and have at least STACK_MIN bytes.
unsafe impl corosensei::stack::Stack for Stack {
    fn base(&self) -> StackPointer {
        Stack::base(self)
    }

    fn limit(&self) -> StackPointer {
        Stack::limit(self)
    }
}

/// Lives at the start of its own stack, in a page that every task touches.
pub(crate) struct Carrier {
    /// Dropped only by `end`, when the coroutine has returned.
    coroutine: ManuallyDrop<UnsafeCell<Coroutine<(), Outcome, (), Stack>>>,
    /// By which a task on this carrier returns to its worker. It lives on the stack.
    yielder: Cell<*const Yielder<(), Outcome>>,
    stack_size: u32,
}

// Every dispatch uses the carrier: it takes one cache line, with which the stack begins. (Only in
// tests: the features of corosensei, which other crates may select, add fields to a coroutine.)
#[cfg(all(test, target_pointer_width = "64"))]
const _: () = assert!(size_of::<Carrier>() == 64);

impl Carrier {
    /// Creates a carrier for tasks with stacks of `stack_size` bytes.
    pub(crate) fn create(mut stack: Stack, stack_size: u32) -> std::io::Result<NonNull<Carrier>> {
        let carrier = stack.reserve::<Carrier>();
        let coroutine = Coroutine::with_stack(stack, |own: &Yielder<(), Outcome>, ()| {
            while let Some(task) = dispatched() {
                // SAFETY: the task is alive, and the worker has lent this carrier to it.
                unsafe { &(*task.as_ref().carrier.get()).yielder }.set(own);
                own.suspend(carry(task));
            }
        });
        let coroutine = ManuallyDrop::new(UnsafeCell::new(coroutine));
        let yielder = Cell::new(ptr::null());
        // SAFETY: the memory is reserved for the carrier, and lives until `end`.
        unsafe { carrier.write(Carrier { coroutine, yielder, stack_size }) };
        Ok(carrier)
    }

    /// Runs the carrier until it suspends, and returns the reason. A task must be current.
    ///
    /// # Safety
    ///
    /// The carrier is suspended.
    #[inline(always)]
    pub(crate) unsafe fn resume(&self) -> Outcome {
        // SAFETY: only this function and `end` use the coroutine, and it does not run.
        match unsafe { &mut *self.coroutine.get() }.resume(()) {
            CoroutineResult::Yield(outcome) => outcome,
            CoroutineResult::Return(()) => unreachable!("a carrier with a task does not end"),
        }
    }

    /// Ends a free carrier. No task may be current.
    ///
    /// # Safety
    ///
    /// The carrier is from [`Carrier::create`], and is not used any more.
    pub(crate) unsafe fn end(carrier: NonNull<Carrier>) -> Stack {
        // SAFETY: by the contract of this function. The value moves out of the stack, which is
        // returned.
        let carrier = unsafe { carrier.read() };
        let mut coroutine = ManuallyDrop::into_inner(carrier.coroutine).into_inner();
        let _ = coroutine.resume(());
        coroutine.into_stack()
    }

    /// Returns the address of the guard below the stack.
    pub(crate) fn guard(&self) -> usize {
        stack::limit_of(ptr::from_ref(self).addr(), self.stack_size as usize)
    }

    /// Returns the stack size of the tasks that the carrier runs.
    #[inline(always)]
    pub(crate) fn stack_size(&self) -> u32 {
        self.stack_size
    }
}

/// Returns to the worker inside the running task.
#[inline(always)]
pub(crate) fn suspend(task: &Header, outcome: Outcome) {
    // SAFETY: the task runs on its carrier, which has stored its yielder at the start of the task.
    unsafe { (*(*task.carrier.get()).yielder.get()).suspend(outcome) };
}
