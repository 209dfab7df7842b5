//! Carriers as coroutines of corosensei.

use super::carry;
use crate::current;
use crate::stack::Stack;
use crate::task::Outcome;
use corosensei::stack::StackPointer;
use corosensei::{Coroutine, Yielder};
use std::cell::Cell;
use std::mem::ManuallyDrop;

// SAFETY: stacks of a pool have a guard below, are aligned, and have at least STACK_MIN bytes.
unsafe impl corosensei::stack::Stack for Stack {
    fn base(&self) -> StackPointer {
        Stack::base(self)
    }

    fn limit(&self) -> StackPointer {
        Stack::limit(self)
    }
}

pub(crate) struct Carrier {
    /// Dropped only by `end`, when the coroutine has returned.
    coroutine: ManuallyDrop<Coroutine<(), (), (), Stack>>,
    yielder: Cell<*const ()>,
    guard: usize,
}

impl Carrier {
    pub(crate) fn new(stack: Stack) -> std::io::Result<Carrier> {
        let guard = stack.limit().get();
        let coroutine = Coroutine::with_stack(stack, |own: &Yielder<(), ()>, ()| {
            current::with(|c| c.yielder.set(std::ptr::from_ref(own).cast()));
            while carry() {
                own.suspend(());
            }
        });
        Ok(Carrier {
            coroutine: ManuallyDrop::new(coroutine),
            yielder: Cell::new(std::ptr::null()),
            guard,
        })
    }

    /// Runs the carrier until it suspends.
    #[inline(always)]
    pub(crate) fn resume(&mut self) {
        current::with(|c| c.yielder.set(self.yielder.get()));
        self.coroutine.resume(());
        self.yielder.set(current::with(|c| c.yielder.get()));
    }

    /// Ends a free carrier. No task may be current.
    pub(crate) fn end(mut self) -> Stack {
        self.resume();
        // SAFETY: the coroutine is not used again.
        unsafe { ManuallyDrop::take(&mut self.coroutine) }.into_stack()
    }

    /// Returns the address of the guard below the stack.
    pub(crate) fn guard(&self) -> usize {
        self.guard
    }
}

/// Returns to the worker inside a task.
#[inline(always)]
pub(crate) fn suspend(outcome: Outcome) {
    let yielder = current::with(|c| {
        c.outcome.set(outcome);
        c.yielder.get().cast::<Yielder<(), ()>>()
    });
    // SAFETY: set when this carrier was resumed; the yielder lives on the stack of the carrier.
    unsafe { (*yielder).suspend(()) };
}
