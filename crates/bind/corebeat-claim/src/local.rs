//! The arbiter of a single process, for hosts without a daemon.

use crate::arbiter::{event, signal};
use crate::{Ask, Error, Retreat};
use corebeat_machine::CpuId;
use corebeat_policy::claims::{ClaimId, Claims, Outcome};
use rustix::fd::OwnedFd;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// All claims of this process. They have the same owner, because the process is the only one.
static STATE: Mutex<Option<State>> = Mutex::new(None);
const OWNER: u64 = 0;

struct State {
    claims: Claims,
    /// Event descriptors that signal requests and grants to claims.
    events: BTreeMap<ClaimId, Arc<OwnedFd>>,
}

impl State {
    /// Signals all affected claims, except the calling one, which obtains the result directly.
    fn signal_changes(&mut self, caller: ClaimId, outcome: Outcome) {
        let Outcome { changed, asked } = outcome;
        let others = changed.iter().filter(|(id, _)| *id != caller);
        others
            .chain(&asked)
            .filter_map(|(id, _)| self.events.get(id))
            .for_each(|event_fd| signal(event_fd));
    }

    fn cpus(&self, id: ClaimId) -> Vec<CpuId> {
        self.claims.cpus(id).iter().collect()
    }
}

/// Calls a function with the state, which is created by the first call.
fn with_state<T>(f: impl FnOnce(&mut State) -> T) -> T {
    let mut state: MutexGuard<'_, Option<State>> =
        STATE.lock().unwrap_or_else(PoisonError::into_inner);
    f(state.get_or_insert_with(|| {
        let mut claims = Claims::new(corebeat_topology::topology());
        // No other program takes part, so no CPU is reserved for programs without claims.
        claims.unclaimed_min = 0;
        State { claims, events: BTreeMap::new() }
    }))
}

/// A claim of this process.
#[derive(Debug)]
pub(crate) struct LocalClaim {
    /// The process that created the claim. A child of fork has a copy of the state, whose lock may
    /// be held.
    pid: u32,
    id: ClaimId,
    event_fd: Arc<OwnedFd>,
}

impl LocalClaim {
    pub(crate) fn begin(ask: &Ask) -> Result<(LocalClaim, Vec<CpuId>), Error> {
        let event_fd = Arc::new(event().map_err(|e| Error::system("cannot create a claim", e))?);
        with_state(|state| {
            let (id, outcome) = state.claims.invade(None, OWNER, ask.clone())?;
            state.signal_changes(id, outcome);
            state.events.insert(id, event_fd.clone());
            Ok((LocalClaim { pid: std::process::id(), id, event_fd }, state.cpus(id)))
        })
    }

    pub(crate) fn invade(&mut self, ask: &Ask) -> Result<Vec<CpuId>, Error> {
        with_state(|state| {
            let (_, outcome) = state.claims.invade(Some(self.id), OWNER, ask.clone())?;
            state.signal_changes(self.id, outcome);
            Ok(state.cpus(self.id))
        })
    }

    pub(crate) fn retreat(&mut self, what: Retreat) -> Result<Vec<CpuId>, Error> {
        with_state(|state| {
            let outcome = state.claims.retreat(self.id, OWNER, what)?;
            state.signal_changes(self.id, outcome);
            Ok(state.cpus(self.id))
        })
    }

    pub(crate) fn poll(&mut self) -> Result<Vec<CpuId>, Error> {
        // Resets the event; the read fails if the event was not signalled.
        let _ = rustix::io::read(&*self.event_fd, &mut [0u8; 8]);
        with_state(|state| {
            if let Some(keep) = state.claims.keep(self.id) {
                let back =
                    state.claims.cpus(self.id).iter().filter(|&cpu| !keep.contains(cpu)).collect();
                let outcome = state.claims.retreat(self.id, OWNER, Retreat::Cpus(back))?;
                state.signal_changes(self.id, outcome);
            }
            Ok(state.cpus(self.id))
        })
    }
}

impl AsFd for LocalClaim {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event_fd.as_fd()
    }
}

impl Drop for LocalClaim {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            return;
        }
        with_state(|state| {
            state.events.remove(&self.id);
            if let Ok(outcome) = state.claims.end(self.id, OWNER) {
                state.signal_changes(self.id, outcome);
            }
        });
    }
}
