//! Claims of exclusive CPUs: a program requests CPUs (invade) and releases them (retreat).
//!
//! Place in the loop: bind; uses corebeat-wire for the connection to the daemon and the policy
//! `claims` for the distribution of CPUs.
//!
//! # Example
//!
//! ```
//! use corebeat_claim::{Ask, Claim, Numa, Retreat};
//!
//! let mut claim = Claim::begin()?;
//! claim.invade(Ask { numa: Some(Numa::Scatter), ..Ask::new(1, 8) })?;
//! std::thread::scope(|s| {
//!     for &cpu in claim.cpus() {
//!         s.spawn(move || corebeat_claim::pin(cpu));
//!     }
//! });
//! claim.retreat(Retreat::To(1))?;
//! # Ok::<(), corebeat_claim::Error>(())
//! ```
//!
//! # Model
//!
//! The model follows Hollmann and Gerndt, *Invasive Computing: An Application Assisted Resource
//! Management Approach* (2012), section 2.
//!
//! ```text
//!   program                            arbiter: the daemon, or this process if none runs
//!   Claim -- invade, retreat, drop --> distribution of CPUs (corebeat_policy::claims)
//!      ^ <- CPUs, immediately --------
//!      |
//!      +--- poll <- descriptor --------- a request to release CPUs until a deadline, or a grant
//! ```
//!
//! No call waits for a CPU: [`Claim::invade`] returns the CPUs that are free. If these are fewer
//! than the minimum, the arbiter requests CPUs from other claims, and [`Claim::poll`] accepts them
//! later. [`Claim::poll`] also releases the CPUs that other claims request from this one. After a
//! deadline the daemon withdraws a requested CPU, even if this program still runs on it. Only
//! claims share CPUs among each other; programs without claims may run on any CPU.
//!
//! # Invariants
//!
//! 1. No CPU belongs to two claims, in one process or, with a daemon, on the host
//!    (`claims_of_a_process_share_its_cpus`), except while the claims of a process move to a daemon
//!    that has started, one after the other. A child of fork neither has nor distributes CPUs of
//!    its parent (`child_of_fork_has_and_grants_no_cpu_of_its_parent`).
//! 2. A claim that has a CPU keeps at least one until it is dropped (`retreat_to_zero_keeps_one`).
//! 3. A claim ends with its program, whatever the cause: the daemon detects the end of the
//!    connection, of which a claim has one (`claim_has_one_connection`).
//! 4. A claim has the same descriptor until its end (`signal`;
//!    `descriptor_of_a_claim_stays_in_an_epoll_set_when_the_claim_moves` in corebeat-c).
//! 5. Each change of the state of a listener wakes its thread, so that the thread misses no step
//!    (`listener`; `listener_is_called_after_a_failed_poll_that_no_call_of_it_has_caused`).
//!
//! # Failure
//!
//! [`Error`] states what the user can do. A call waits for the daemon for at most 2 s, and returns
//! an error if the daemon is stopped (`no_call_waits_for_ever_for_a_stopped_daemon`). The claim
//! continues with the daemon, which then also executes the call
//! (`claim_continues_after_its_daemon_was_stopped`). When the daemon ends, its claims end. The next
//! call creates a new claim, either with the daemon's successor or in this process. A claim without
//! a daemon also moves to a daemon that has started since, with its next call
//! (`claims_with_a_daemon_share_cpus_and_survive_its_end`). [`Claim::on_change`] calls its function
//! when a claim can move, so that a claim whose function polls needs no other call
//! (`listener_is_called_when_a_daemon_ends_starts_or_does_not_answer`).
//!
//! # Limits
//!
//! A process has at most [`CLAIMS_MAX`] claims; the daemon has further limits for a user and for
//! the host ([`Error::TooMany`]).
//!
//! A claim belongs to the process that created it. In a child of fork an inherited claim has no
//! CPUs, its calls return [`Error::Forked`], and its drop has no effect. A child may begin claims
//! of its own. Without a daemon the child then distributes the CPUs that no claim of its parent had
//! at the fork, and parent and child do not detect each other's later requests: a program whose
//! processes claim CPUs needs the daemon.
//!
//! A claim does not move threads: call [`pin`], or use the means of the runtime (for OpenMP:
//! `invasive_computing.h` of corebeat-c).

mod arbiter;
mod error;
mod listener;
mod local;
mod signal;

pub use corebeat_machine::{CpuId, CpuSet};
pub use corebeat_policy::claims::{
    Ask, CLAIMS_PER_OWNER_MAX as CLAIMS_MAX, ClaimError, Numa, Retreat,
};
pub use error::Error;

use arbiter::ArbiterConnection;
use corebeat_sync::fork::{PerProcess, Process};
use corebeat_wire::{Deadline, Search};
use listener::Listener;
use rustix::thread::{CpuSet as Mask, sched_getaffinity, sched_setaffinity};
use signal::Signal;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

/// Exclusive CPUs of this program, until it releases them or drops the claim.
#[derive(Debug)]
pub struct Claim {
    /// Taken by the drop.
    arbiter: ManuallyDrop<ArbiterConnection>,
    /// In ascending order.
    cpus: Vec<CpuId>,
    /// The CPUs that the last successful call returned. A failed call may change the CPUs.
    reported: Vec<CpuId>,
    /// The last request, without the CPUs that the claim has released since.
    asked: Ask,
    /// Whether the present arbiter has not received that request yet.
    has_moved: bool,
    /// The descriptor of the claim.
    signal: Arc<Signal>,
    listener: Option<Listener>,
    /// The process that created the claim.
    process: Process,
    /// The searches for a daemon while the claim is of this process.
    search: Arc<Search>,
}

/// Time between two searches for a daemon that has started since.
const SEARCH_PERIOD: Duration = Duration::from_millis(100);

impl Claim {
    /// A claim with one CPU, as in the paper, or without CPUs if none is free.
    ///
    /// # Errors
    /// [`Error::TooMany`] claims; [`Error::Daemon`] if a daemon refuses or does not answer;
    /// [`Error::System`].
    pub fn begin() -> Result<Claim, Error> {
        let ask = confined(Ask::new(1, 1))?;
        let signal = Signal::new().map_err(|e| Error::system("cannot create a claim", e))?;
        let signal = Arc::new(signal);
        let begun = ArbiterConnection::begin(&ask, &signal, Deadline::new())?;
        let (arbiter, cpus) = included(&signal, begun)?;
        Ok(Claim {
            arbiter: ManuallyDrop::new(arbiter),
            reported: cpus.clone(),
            cpus,
            asked: ask,
            has_moved: false,
            signal,
            listener: None,
            process: Process::current(),
            search: Arc::new(Search::new(SEARCH_PERIOD)),
        })
    }

    /// Whether the claim belongs to a parent process.
    fn is_forked(&self) -> bool {
        !self.process.is_current()
    }

    /// Begins a call of the arbiter.
    fn begin_call(&mut self) -> Result<Deadline, Error> {
        if self.is_forked() {
            return Err(Error::Forked);
        }
        let deadline = Deadline::new();
        self.arbiter.set_deadline(deadline);
        Ok(deadline)
    }

    /// Requests a total number of CPUs under some constraints. Returns the CPUs of the claim, which
    /// may be fewer; [`poll`](Claim::poll) may add further ones later.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`], [`Error::Daemon`] or [`Error::Forked`]; the request has no
    /// effect. A daemon that does not answer in time executes the request when it continues; the
    /// next call then returns the CPUs. If the daemon has ended, also the errors of
    /// [`begin`](Claim::begin). If the claim has moved to another daemon meanwhile, its CPUs may
    /// have changed: [`poll`](Claim::poll) reports that.
    pub fn invade(&mut self, ask: Ask) -> Result<&[CpuId], Error> {
        let deadline = self.begin_call()?;
        let ask = confined(ask)?;
        self.join_daemon(deadline);
        self.cpus = match self.arbiter.invade(&ask) {
            Err(why) if why.is_end_of_daemon() => {
                self.renew(deadline)?;
                self.arbiter.invade(&ask)?
            }
            invaded => invaded?,
        };
        self.asked = ask;
        self.has_moved = false;
        self.reported.clone_from(&self.cpus);
        Ok(&self.cpus)
    }

    /// Releases CPUs. A CPU that another claim has requested may return when that claim releases
    /// it; other CPUs return only after [`invade`](Claim::invade).
    ///
    /// # Errors
    /// As [`invade`](Claim::invade).
    pub fn retreat(&mut self, what: Retreat) -> Result<&[CpuId], Error> {
        let deadline = self.begin_call()?;
        self.join_daemon(deadline);
        let before = self.cpus.clone();
        self.cpus = match self.arbiter.retreat(what.clone()) {
            Err(why) if why.is_end_of_daemon() => {
                self.renew(deadline)?;
                self.arbiter.retreat(what.clone())?
            }
            retreated => retreated?,
        };
        // Without CPUs that a daemon has withdrawn meanwhile.
        let is_released = |cpu: CpuId| matches!(&what, Retreat::Cpus(named) if named.contains(cpu));
        let had =
            before.iter().filter(|&&cpu| self.cpus.contains(&cpu) || is_released(cpu)).count();
        self.asked.lower(&what, had, self.cpus.len());
        self.reported.clone_from(&self.cpus);
        Ok(&self.cpus)
    }

    /// Applies pending requests of the arbiter: releases requested CPUs and accepts granted ones.
    /// Returns whether the CPUs differ from those that the last successful call returned.
    ///
    /// # Errors
    /// As [`invade`](Claim::invade).
    pub fn poll(&mut self) -> Result<bool, Error> {
        let deadline = self.begin_call()?;
        let polled = self.poll_until(deadline);
        if let Some(listener) = &self.listener {
            listener.polled(polled.is_err() || self.arbiter.is_outdated());
        }
        polled?;
        let has_changed = self.cpus != self.reported;
        self.reported.clone_from(&self.cpus);
        Ok(has_changed)
    }

    fn poll_until(&mut self, deadline: Deadline) -> Result<(), Error> {
        self.join_daemon(deadline);
        self.repeat_request();
        // Before the arbiter is queried, so that no later change is missed.
        self.signal.reset();
        match self.arbiter.poll() {
            Err(why) if why.is_end_of_daemon() => {
                self.renew(deadline)?;
                self.repeat_request();
            }
            polled => {
                if let Some(cpus) = polled? {
                    self.cpus = cpus;
                }
            }
        }
        Ok(())
    }

    /// Creates a new claim after the daemon has ended, with its successor or in this process.
    fn renew(&mut self, deadline: Deadline) -> Result<(), Error> {
        let begun = ArbiterConnection::begin(&self.present_ask()?, &self.signal, deadline)?;
        self.replace(begun).map(drop)
    }

    /// Creates a new claim at a daemon, if the present one is of this process and a daemon has
    /// started. After a failure the claim of this process continues without the daemon.
    fn join_daemon(&mut self, deadline: Deadline) {
        if !self.arbiter.is_local() || !self.search.is_due() {
            return;
        }
        let begun = self.present_ask().and_then(|ask| {
            let begun = ArbiterConnection::begin_at_daemon(&ask, &self.signal, deadline)?;
            begun.map(|begun| self.replace(begun)).transpose()
        });
        match begun {
            Ok(of_process) => of_process.into_iter().for_each(ArbiterConnection::end),
            Err(_) => self.search.postpone(),
        }
    }

    /// Repeats the last request of a claim that has moved with fewer CPUs. The claim keeps these if
    /// the arbiter refuses.
    fn repeat_request(&mut self) {
        if std::mem::take(&mut self.has_moved)
            && self.cpus.len() < self.asked.max as usize
            && let Ok(cpus) = self.arbiter.invade(&self.asked)
        {
            self.cpus = cpus;
        }
    }

    /// Replaces the arbiter, and returns the old one. A failure leaves the claim as it is.
    fn replace(
        &mut self,
        begun: (ArbiterConnection, Vec<CpuId>),
    ) -> Result<ArbiterConnection, Error> {
        let (arbiter, cpus) = included(&self.signal, begun)?;
        let old = std::mem::replace(&mut *self.arbiter, arbiter);
        old.socket().into_iter().for_each(|socket| self.signal.exclude(socket));
        self.listener.iter().for_each(|listener| listener.moved(self.arbiter.is_local()));
        self.cpus = cpus;
        self.has_moved = true;
        Ok(old)
    }

    /// The request that describes the present CPUs of the claim.
    fn present_ask(&self) -> Result<Ask, Error> {
        let own: CpuSet = self.cpus.iter().copied().collect();
        match own.len() as u32 {
            0 => confined(Ask::new(1, 1)),
            count => Ok(Ask { within: Some(own), ..Ask::new(1, count) }),
        }
    }

    /// The CPUs, in ascending order. None in a child of fork.
    pub fn cpus(&self) -> &[CpuId] {
        if self.is_forked() { &[] } else { &self.cpus }
    }

    /// Calls a function on a separate thread, which receives no signals, when a request of the
    /// arbiter is pending, when the daemon has ended, and at most about a second after a daemon has
    /// started to which the claim can move, or a minute if a daemon has refused the claim or has
    /// not answered; and then not again before [`poll`](Claim::poll). After a poll that failed, the
    /// function is called again after a second. The function replaces an earlier one. A running
    /// call continues when the claim is dropped. A function that panics is called for later changes
    /// as well.
    ///
    /// # Errors
    /// [`Error::System`] if the thread cannot be started or no descriptor is left;
    /// [`Error::Forked`].
    pub fn on_change(&mut self, call: impl FnMut() + Send + 'static) -> Result<(), Error> {
        if self.is_forked() {
            return Err(Error::Forked);
        }
        self.listener = None;
        let (signal, search) = (self.signal.clone(), self.search.clone());
        self.listener = Some(Listener::new(signal, search, self.arbiter.is_local(), call)?);
        Ok(())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // SAFETY: the arbiter is not used again.
        let arbiter = unsafe { ManuallyDrop::take(&mut self.arbiter) };
        if self.is_forked() {
            // The thread is one of the parent; it may have held the lock at the fork, and its
            // descriptor is shared with the parent.
            std::mem::forget(self.listener.take());
        } else {
            arbiter.end();
        }
    }
}

impl AsFd for Claim {
    /// A descriptor that is readable (`poll(2)`, `epoll(7)`) when a request of the arbiter is
    /// pending or the daemon has ended, and sometimes without a reason. Do not read from it; call
    /// [`Claim::poll`]. The claim has the same descriptor until it is dropped, also when it moves
    /// to another daemon or to this process.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signal.as_fd()
    }
}

/// Pins the calling thread to this CPU, until [`unpin`]. The thread stays pinned when the claim
/// releases the CPU or ends, and threads that it starts inherit the affinity.
///
/// # Errors
/// [`Error::System`] if the CPU does not exist, or if this process may not use it.
pub fn pin(cpu: CpuId) -> Result<(), Error> {
    const WHAT: &str = "cannot pin a thread to a CPU";
    // `unpin` restores these CPUs.
    allowed();
    let mut mask = Mask::new();
    if cpu.0 as usize >= Mask::MAX_CPU {
        return Err(Error::system(WHAT, std::io::ErrorKind::InvalidInput));
    }
    mask.set(cpu.0 as usize);
    sched_setaffinity(None, &mask).map_err(|e| Error::system(WHAT, e))
}

/// Lets the calling thread run on all CPUs that this process may use: those of its affinity at the
/// first claim or the first call of [`pin`].
///
/// # Errors
/// [`Error::System`] if the process may not use any of them any more.
pub fn unpin() -> Result<(), Error> {
    let mut mask = Mask::new();
    allowed().into_iter().flat_map(CpuSet::iter).for_each(|cpu| mask.set(cpu.0 as usize));
    sched_setaffinity(None, &mask).map_err(|e| Error::system("cannot unpin a thread", e))
}

/// The CPUs that this process may use; `None` if they are unknown.
fn allowed() -> Option<&'static CpuSet> {
    // The CPUs before the first claim: threads are pinned afterwards.
    static ALLOWED: PerProcess<Option<CpuSet>> = PerProcess::unset();
    let allowed = ALLOWED.get(|of_parent| {
        if let Some(of_parent) = of_parent {
            return of_parent.clone();
        }
        let mask = sched_getaffinity(None).ok()?;
        let is_set = |cpu: &usize| mask.is_set(*cpu);
        Some((0..Mask::MAX_CPU).filter(is_set).map(|cpu| CpuId(cpu as u32)).collect())
    });
    allowed.as_ref()
}

/// Makes the connection of a new claim readable by its descriptor. The claim ends if that fails.
fn included(
    signal: &Signal,
    (arbiter, cpus): (ArbiterConnection, Vec<CpuId>),
) -> Result<(ArbiterConnection, Vec<CpuId>), Error> {
    match arbiter.socket().map_or(Ok(()), |socket| signal.include(socket)) {
        Ok(()) => Ok((arbiter, cpus)),
        Err(e) => {
            arbiter.end();
            Err(Error::system("cannot wait for changes of a claim", e))
        }
    }
}

/// The request, restricted to the CPUs that this process may use.
fn confined(ask: Ask) -> Result<Ask, Error> {
    let Some(allowed) = allowed() else { return Ok(ask) };
    let within: CpuSet = match &ask.within {
        Some(within) => within.iter().filter(|&cpu| allowed.contains(cpu)).collect(),
        None => allowed.clone(),
    };
    if within.is_empty() {
        let (within, cpus) = (ask.within.unwrap_or_default().to_string(), allowed.to_string());
        return Err(ClaimError::Elsewhere { within, cpus }.into());
    }
    Ok(Ask { within: Some(within), ..ask })
}
