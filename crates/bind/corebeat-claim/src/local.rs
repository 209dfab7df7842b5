//! The arbiter of a single process, for hosts without a daemon.

use crate::signal::Signal;
use crate::{Ask, Error, Retreat};
use corebeat_machine::{CPU_MAX, CpuId, CpuSet};
use corebeat_policy::claims::{ClaimId, Claims, Outcome};
use corebeat_sync::fork::PerProcess;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// All claims of this process.
static ARBITER: PerProcess<Arbiter> = PerProcess::unset();
/// Owner of the claims of this process, which is the only one.
const OWNER: u64 = 0;
/// Owner of the CPUs that the parent had at the fork. This claim never releases a CPU.
const PARENT: u64 = 1;

struct Arbiter {
    state: Mutex<State>,
    /// The claimed CPUs as bits, which a child of fork reads without the lock.
    claimed: [AtomicU64; CPU_MAX as usize / 64],
}

struct State {
    claims: Claims,
    /// Raised by requests to claims, and by grants.
    signals: BTreeMap<ClaimId, Arc<Signal>>,
}

impl State {
    /// Signals all affected claims, except the calling one, which obtains the result directly.
    fn signal_changes(&mut self, caller: ClaimId, outcome: Outcome) {
        let Outcome { changed, asked } = outcome;
        let others = changed.iter().filter(|(id, _)| *id != caller);
        others
            .chain(&asked)
            .filter_map(|(id, _)| self.signals.get(id))
            .for_each(|signal| signal.raise());
    }

    fn cpus(&self, id: ClaimId) -> Vec<CpuId> {
        self.claims.cpus(id).iter().collect()
    }
}

impl Arbiter {
    /// Without claims, except those of the parent.
    fn new(parent: Option<&Arbiter>) -> Arbiter {
        let mut claims = Claims::new(corebeat_topology::topology());
        // No other program takes part, so no CPU is reserved for programs without claims.
        claims.unclaimed_min = 0;
        let of_parent: CpuSet = parent.iter().flat_map(|parent| parent.claimed()).collect();
        if let Ok(count @ 1..) = u32::try_from(of_parent.len()) {
            let all = Ask { within: Some(of_parent), ..Ask::new(count, count) };
            // Cannot fail: the CPUs are those of this machine.
            let _ = claims.invade(None, PARENT, all);
        }
        let arbiter = Arbiter {
            state: Mutex::new(State { claims, signals: BTreeMap::new() }),
            claimed: [const { AtomicU64::new(0) }; _],
        };
        arbiter.with_state(|_| {});
        arbiter
    }

    /// The CPUs that were claimed after the last call.
    fn claimed(&self) -> impl Iterator<Item = CpuId> {
        let is_claimed = |cpu: &u32| {
            // Relaxed: read only after a fork, when no other thread writes.
            self.claimed[*cpu as usize / 64].load(Ordering::Relaxed) >> (cpu % 64) & 1 == 1
        };
        (0..CPU_MAX).filter(is_claimed).map(CpuId)
    }

    fn with_state<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let result = f(&mut state);
        let mut words = [0u64; CPU_MAX as usize / 64];
        for cpu in state.claims.list().flat_map(|(_, _, cpus)| cpus.iter().collect::<Vec<_>>()) {
            words[cpu.0 as usize / 64] |= 1 << (cpu.0 % 64);
        }
        // Relaxed: as in `claimed`. The lock orders the writers.
        self.claimed.iter().zip(words).for_each(|(kept, word)| kept.store(word, Ordering::Relaxed));
        result
    }
}

/// Calls a function with the state of this process.
fn with_state<T>(f: impl FnOnce(&mut State) -> T) -> T {
    ARBITER.get(Arbiter::new).with_state(f)
}

/// A claim of this process.
#[derive(Debug)]
pub(crate) struct LocalClaim {
    /// In a child of fork another claim may have the same ID.
    id: ClaimId,
}

impl LocalClaim {
    pub(crate) fn begin(ask: &Ask, signal: Arc<Signal>) -> Result<(LocalClaim, Vec<CpuId>), Error> {
        with_state(|state| {
            let (id, outcome) = state.claims.invade(None, OWNER, ask.clone())?;
            state.signal_changes(id, outcome);
            state.signals.insert(id, signal);
            Ok((LocalClaim { id }, state.cpus(id)))
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

    pub(crate) fn end(self) {
        with_state(|state| {
            state.signals.remove(&self.id);
            if let Ok(outcome) = state.claims.end(self.id, OWNER) {
                state.signal_changes(self.id, outcome);
            }
        });
    }
}
