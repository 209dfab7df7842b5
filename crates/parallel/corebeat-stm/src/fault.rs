//! Planted faults and hooks for tests. Outside of tests they do nothing.

/// A fault in the algorithm. A check that does not detect it proves nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Attempts skip the validation of their reads.
    Validation,
    /// Attempts read values that are newer than their time.
    Time,
    /// Attempts read values under locks that others hold.
    Held,
    /// A commit gets the version of the previous one.
    Version,
    /// A failed attempt does not undo its writes.
    Undo,
    /// Transactions commit although the gate is closed.
    Gate,
    /// A commit does not end the claim of the sole writer.
    Sole,
    /// The end of the claim of the sole writer does not advance the clock.
    Share,
}

#[cfg(test)]
pub(crate) use test::{is_planted, run_pause_hook};

#[cfg(not(test))]
#[inline(always)]
pub(crate) fn is_planted(_: Fault) -> bool {
    false
}

/// Runs the hook of a test instead of a pause. Returns whether a hook is set.
#[cfg(not(test))]
#[inline(always)]
pub(crate) fn run_pause_hook() -> bool {
    false
}

#[cfg(test)]
pub(crate) mod test {
    use super::Fault;
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    thread_local! {
        static PLANTED: Cell<Option<Fault>> = const { Cell::new(None) };
        static PAUSE_HOOK: RefCell<Option<Rc<dyn Fn()>>> = const { RefCell::new(None) };
    }

    /// Plants a fault for this thread. It replaces the previous fault.
    #[cfg(not(loom))]
    pub(crate) fn plant(fault: Option<Fault>) {
        PLANTED.set(fault);
    }

    pub(crate) fn is_planted(fault: Fault) -> bool {
        PLANTED.get() == Some(fault)
    }

    /// Sets what this thread runs instead of pauses.
    #[cfg(not(loom))]
    pub(crate) fn on_pause(hook: Rc<dyn Fn()>) {
        PAUSE_HOOK.set(Some(hook));
    }

    pub(crate) fn run_pause_hook() -> bool {
        let hook = PAUSE_HOOK.with_borrow(Clone::clone);
        hook.as_ref().map(|hook| hook()).is_some()
    }
}
