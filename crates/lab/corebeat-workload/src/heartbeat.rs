//! Optional heartbeats of a run: Sironi et al., *Metronome: Operating System Level Performance
//! Management via Self-Adaptive Computing* (2012), section 4.1.

use corebeat_heartbeat::{Error, Group, Producer};
use std::cell::{Cell, RefCell};

thread_local! {
    /// The group of the run that this thread has started.
    static GROUP: Cell<Option<Group>> = const { Cell::new(None) };
    /// This thread's producer of heartbeats.
    static PRODUCER: RefCell<Option<Producer>> = const { RefCell::new(None) };
}

/// Starts a run whose threads emit heartbeats for a group.
pub(crate) fn beating<T>(group: Group, run: impl FnOnce() -> T) -> T {
    GROUP.set(Some(group));
    let result = run();
    GROUP.set(None);
    result
}

/// Returns the group of the run that this thread is starting.
pub(crate) fn group() -> Option<Group> {
    GROUP.get()
}

/// Attaches this thread to the group, if there is one, until [`detach`].
pub(crate) fn attach(group: Option<Group>) -> Result<(), Error> {
    PRODUCER.set(group.map(Group::produce).transpose()?);
    Ok(())
}

/// Detaches this thread.
pub(crate) fn detach() {
    PRODUCER.set(None);
}

/// Emits heartbeats for finished items of work.
#[inline]
pub(crate) fn beat(items: u64) {
    PRODUCER.with_borrow(|producer| {
        if let Some(producer) = producer {
            producer.beat(items);
        }
    });
}
