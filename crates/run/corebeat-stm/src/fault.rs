//! Planted bugs and hooks, for tests. Outside of them, all of this is nothing.

/// What can be wrong. A check that does not notice it proves nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nobody looks whether what was read has changed.
    Validation,
    /// What is newer than the begin is read all the same.
    Time,
    /// What another is writing is read all the same.
    Held,
    /// A commit has the version of the one before.
    Version,
    /// What was written stays there when an attempt fails.
    Undo,
    /// Others commit although the gate is shut.
    Gate,
}

#[cfg(test)]
pub(crate) use test::{is_planted, pass};

#[cfg(not(test))]
#[inline(always)]
pub(crate) fn is_planted(_: Fault) -> bool {
    false
}

/// Whether a test has let somebody else run instead of a pause.
#[cfg(not(test))]
#[inline(always)]
pub(crate) fn pass() -> bool {
    false
}

#[cfg(test)]
pub(crate) mod test {
    use super::Fault;
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    thread_local! {
        static PLANTED: Cell<Option<Fault>> = const { Cell::new(None) };
        static PASS: RefCell<Option<Rc<dyn Fn()>>> = const { RefCell::new(None) };
    }

    /// Plants a fault for this thread, in the place of another.
    #[cfg(not(loom))]
    pub(crate) fn plant(fault: Option<Fault>) {
        PLANTED.set(fault);
    }

    pub(crate) fn is_planted(fault: Fault) -> bool {
        PLANTED.get() == Some(fault)
    }

    /// What this thread does where it would pause.
    #[cfg(not(loom))]
    pub(crate) fn on_pause(pass: Rc<dyn Fn()>) {
        PASS.set(Some(pass));
    }

    pub(crate) fn pass() -> bool {
        let pass = PASS.with_borrow(Clone::clone);
        pass.as_ref().map(|pass| pass()).is_some()
    }
}
