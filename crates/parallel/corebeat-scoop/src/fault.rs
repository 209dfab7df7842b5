//! Planted faults for tests. Outside of tests they do nothing.

/// A fault in the collector. A check that does not detect it proves nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A newly exported object is not marked.
    Export,
    /// A reference that enters a black region is not marked.
    Link,
    /// The target of a call in a black region is not traced.
    Target,
    /// New objects in a black region are not marked.
    Make,
    /// The roots of processors are not scanned.
    Roots,
    /// A region with untraced objects is released without a record of them.
    Rest,
    /// References to other regions are not recorded.
    Inbox,
}

#[cfg(all(test, not(loom)))]
pub(crate) use test::{is_any_planted, is_planted, plant};

#[cfg(not(all(test, not(loom))))]
#[inline(always)]
pub(crate) fn is_planted(_: Fault) -> bool {
    false
}

#[cfg(not(all(test, not(loom))))]
#[inline(always)]
pub(crate) fn is_any_planted() -> bool {
    false
}

#[cfg(all(test, not(loom)))]
mod test {
    use super::Fault;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Fault>> = const { Cell::new(None) };
    }

    /// Plants a fault for this thread. It replaces the previous fault.
    pub(crate) fn plant(fault: Option<Fault>) {
        PLANTED.set(fault);
    }

    pub(crate) fn is_planted(fault: Fault) -> bool {
        PLANTED.get() == Some(fault)
    }

    pub(crate) fn is_any_planted() -> bool {
        PLANTED.get().is_some()
    }
}
