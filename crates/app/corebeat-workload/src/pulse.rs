//! Heartbeats of a run, if it is to emit them: Sironi et al., *Metronome: Operating System Level Performance Management via
//! Self-Adaptive Computing* (2012), section 4.1.

use corebeat_heartbeat::{Error, Group, Producer};
use std::cell::{Cell, RefCell};

thread_local! {
    /// What the run that this thread has started beats for.
    static GROUP: Cell<Option<Group>> = const { Cell::new(None) };
    /// This thread's own place there.
    static PRODUCER: RefCell<Option<Producer>> = const { RefCell::new(None) };
}

/// Starts a run whose threads beat for a group.
pub(crate) fn beating<T>(group: Group, run: impl FnOnce() -> T) -> T {
    GROUP.set(Some(group));
    let result = run();
    GROUP.set(None);
    result
}

/// The group of the run that this thread is starting.
pub(crate) fn group() -> Option<Group> {
    GROUP.get()
}

/// Runs a thread's part, which beats.
pub(crate) fn attached(group: Option<Group>, body: impl FnOnce()) -> Result<(), Error> {
    let attached = group.map(Group::produce).transpose().map(|producer| {
        PRODUCER.set(producer);
    });
    // Without a pulse the others would still wait for this one.
    body();
    PRODUCER.set(None);
    attached
}

/// So many items of work are done.
#[inline]
pub(crate) fn beat(items: u64) {
    PRODUCER.with_borrow(|producer| {
        if let Some(producer) = producer {
            producer.beat(items);
        }
    });
}
