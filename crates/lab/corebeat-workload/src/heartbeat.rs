//! Optional heartbeats of a run: Sironi et al., *Metronome: Operating System Level Performance
//! Management via Self-Adaptive Computing* (2012), section 4.1.

use crate::WorkloadError;
use corebeat_heartbeat::{Error, Group, Producer};
use std::cell::{Cell, RefCell};
use std::panic::resume_unwind;
use std::thread;

thread_local! {
    /// The group of the run that this thread has started.
    static GROUP: Cell<Option<Group>> = const { Cell::new(None) };
    /// This thread's producer of heartbeats.
    static PRODUCER: RefCell<Option<Producer>> = const { RefCell::new(None) };
}

/// Starts a run whose threads emit heartbeats for a group. Attaches once before the run, because
/// some workloads read their input before they start threads, and would work in vain.
pub(crate) fn beating<T>(
    group: Group,
    run: impl FnOnce() -> Result<T, WorkloadError>,
) -> Result<T, WorkloadError> {
    // On a thread of its own, because the caller may be attached to a group.
    let attached = thread::scope(|scope| scope.spawn(|| group.produce().map(drop)).join());
    attached.unwrap_or_else(|panic| resume_unwind(panic)).map_err(WorkloadError::Heartbeat)?;
    with_group(group, run)
}

/// Starts a run whose threads attach to a group.
pub(crate) fn with_group<T>(group: Group, run: impl FnOnce() -> T) -> T {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn beating_without_its_group_begins_no_run() {
        let refused = Group::new(1).period(Duration::ZERO);
        let error = beating(refused, || -> Result<(), _> { panic!("the run has begun") });
        assert!(matches!(error, Err(WorkloadError::Heartbeat(_))));
    }
}
