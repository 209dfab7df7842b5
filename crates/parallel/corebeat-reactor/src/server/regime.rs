//! A regime: an instance of a variant, from the start of the server or a switch to the next switch.

use super::connection::Connection;
use super::{Error, Variant};
use crate::members::Members;
use crate::notify::{Epoll, Notify, Poll, Trigger, Uring};
use crate::pattern::{Division, HalfSync, LeaderFollowers, PerCore};
use crate::server::{Mechanism, Pattern};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// An interest set with its connections.
pub(crate) struct Set {
    pub(super) notify: Box<dyn Notify>,
    pub(super) members: Members<Arc<Connection>>,
    /// Time of the next sweep, in milliseconds since the start of the server.
    pub(super) sweep_ms: AtomicU64,
}

pub(crate) struct Regime {
    pub(super) variant: Variant,
    pub(super) division: Box<dyn Division>,
    pub(crate) sets: Box<[Arc<Set>]>,
    next_set: AtomicUsize,
    is_over: AtomicBool,
}

impl Regime {
    pub(super) fn new(variant: Variant) -> Result<Regime, Error> {
        let division: Box<dyn Division> = match variant.pattern {
            Pattern::LeaderFollowers => Box::new(LeaderFollowers::new()),
            Pattern::HalfSyncHalfAsync => Box::new(HalfSync::new()),
            Pattern::ThreadPerCore => Box::new(PerCore),
        };
        let set = |_| {
            let notify = notify(variant.pattern, variant.mechanism)?;
            Ok(Arc::new(Set { notify, members: Members::new(), sweep_ms: AtomicU64::new(0) }))
        };
        let sets = (0..division.sets(variant.threads)).map(set).collect::<Result<_, Error>>()?;
        let (next_set, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
        Ok(Regime { variant, division, sets, next_set, is_over })
    }

    /// Returns a set for a connection.
    pub(super) fn next_set(&self) -> &Arc<Set> {
        // Relaxed: any order of the sets balances them.
        &self.sets[self.next_set.fetch_add(1, Ordering::Relaxed) % self.sets.len()]
    }

    /// Returns whether the threads leave the regime: the server has switched or ended.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// Lets the threads leave the regime.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.sets.iter().for_each(|set| set.notify.wake());
        self.division.wake();
    }
}

/// Returns an empty set for a pattern.
pub(super) fn notify(pattern: Pattern, mechanism: Mechanism) -> Result<Box<dyn Notify>, Error> {
    #[cfg(all(test, not(loom)))]
    if let Some(set) = crate::simulation::notify(mechanism) {
        return Ok(set);
    }
    Ok(match (mechanism, pattern) {
        (Mechanism::Edge, _) => Box::new(Epoll::new(Trigger::Edge)?),
        (Mechanism::OneShot, _) => Box::new(Epoll::new(Trigger::OneShot)?),
        (Mechanism::Poll, _) => Box::new(Poll::new()?),
        (Mechanism::IoUring, Pattern::LeaderFollowers) => {
            Box::new(Uring::with_submitter().map_err(refused)?)
        }
        (Mechanism::IoUring, _) => Box::new(Uring::new().map_err(refused)?),
    })
}

/// Returns the error of a system that refuses io_uring, or lacks descriptors, memory or threads.
fn refused(why: io::Error) -> Error {
    use io::ErrorKind as K;
    match why.kind() {
        K::PermissionDenied | K::Unsupported | K::InvalidInput => Error::IoUring(why),
        _ => Error::System(why),
    }
}
