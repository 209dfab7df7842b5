//! Planted bugs, for tests. Outside of them, all of this is nothing.

/// What can be wrong. A check that does not notice it proves nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// An object that comes to be known outside of all heaps is not marked.
    Export,
    /// A reference that comes into a black region is not marked.
    Link,
    /// The target of a call in a black region is not traced.
    Target,
    /// Objects that are made in a black region are not marked.
    Make,
    /// What processors keep is not scanned.
    Roots,
    /// A region is given back with something untraced, and nobody is told.
    Rest,
    /// What was reached of another region is forgotten.
    Inbox,
}

#[cfg(all(test, not(loom)))]
pub(crate) use test::{is_planted, plant};

#[cfg(not(all(test, not(loom))))]
#[inline(always)]
pub(crate) fn is_planted(_: Fault) -> bool {
    false
}

#[cfg(all(test, not(loom)))]
mod test {
    use super::Fault;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Fault>> = const { Cell::new(None) };
    }

    /// Plants a fault for this thread, in the place of another.
    pub(crate) fn plant(fault: Option<Fault>) {
        PLANTED.set(fault);
    }

    pub(crate) fn is_planted(fault: Fault) -> bool {
        PLANTED.get() == Some(fault)
    }
}
