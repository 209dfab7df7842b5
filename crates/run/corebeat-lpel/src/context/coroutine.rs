//! Carriers as coroutines, by corosensei.

use super::carry;
use crate::current;
use crate::stack::Stack;
use crate::task::Outcome;
use corosensei::stack::StackPointer;
use corosensei::{Coroutine, Yielder};
use std::cell::Cell;
use std::mem::ManuallyDrop;

// SAFETY: the pool's stacks have a guard below, are aligned, and have at least STACK_MIN bytes.
unsafe impl corosensei::stack::Stack for Stack {
    fn base(&self) -> StackPointer {
        Stack::base(self)
    }

    fn limit(&self) -> StackPointer {
        Stack::limit(self)
    }
}

pub(crate) struct Carrier {
    /// Only dropped by `end`, when it has returned.
    coroutine: ManuallyDrop<Coroutine<(), (), (), Stack>>,
    way_back: Cell<*const ()>,
    guard: usize,
}

impl Carrier {
    pub(crate) fn new(stack: Stack) -> std::io::Result<Carrier> {
        let guard = stack.limit().get();
        let coroutine = Coroutine::with_stack(stack, |yielder: &Yielder<(), ()>, ()| {
            current::with(|c| c.way_back.set(std::ptr::from_ref(yielder).cast()));
            while carry() {
                yielder.suspend(());
            }
        });
        Ok(Carrier { coroutine: ManuallyDrop::new(coroutine), way_back: Cell::new(std::ptr::null()), guard })
    }

    /// Runs it until it gives way.
    #[inline(always)]
    pub(crate) fn resume(&mut self) {
        current::with(|c| c.way_back.set(self.way_back.get()));
        self.coroutine.resume(());
        self.way_back.set(current::with(|c| c.way_back.get()));
    }

    /// Ends a carrier that carries nothing. No task may be current.
    pub(crate) fn end(mut self) -> Stack {
        self.resume();
        // SAFETY: not used again.
        unsafe { ManuallyDrop::take(&mut self.coroutine) }.into_stack()
    }

    /// Where the guard below its stack begins.
    pub(crate) fn guard(&self) -> usize {
        self.guard
    }
}

/// Gives way to the worker in the midst of a task.
#[inline(always)]
pub(crate) fn suspend(outcome: Outcome) {
    let yielder = current::with(|c| {
        c.outcome.set(outcome);
        c.way_back.get().cast::<Yielder<(), ()>>()
    });
    // SAFETY: set when this carrier was resumed; the yielder lives on the carrier's stack.
    unsafe { (*yielder).suspend(()) };
}
