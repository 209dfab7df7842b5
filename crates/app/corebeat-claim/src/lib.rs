//! CPUs that a program asks for, has for itself, and gives back: invade and retreat.
//!
//! Place in the loop: app; stands on corebeat-wire (the way to the daemon) and on the policy `claims` (who gets what).
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
//!         s.spawn(move || corebeat_claim::tie(cpu));
//!     }
//! });
//! claim.retreat(Retreat::To(1))?;
//! # Ok::<(), corebeat_claim::Error>(())
//! ```
//!
//! # Model
//!
//! Hollmann and Gerndt, *Invasive Computing: An Application Assisted Resource Management Approach* (2012), section 2.
//!
//! ```text
//!   program                            arbiter: the daemon, or this process alone where none runs
//!   Claim -- invade, retreat, drop --> who gets what (corebeat_policy::claims)
//!      ^ <- CPUs, at once ------------
//!      |
//!      +--- heed <- descriptor --------- others want some, until a deadline; or there are more
//! ```
//!
//! Nothing ever waits: [`Claim::invade`] gives what is free now. Where that is less than the minimum, others are asked to give way;
//! [`Claim::heed`] takes what they gave. It also gives back what others want of this claim. The daemon takes it when a deadline
//! has passed: from then on the CPU is another's, whether this program still runs on it or not. CPUs are shared out among those
//! who ask; programs that never ask may run anywhere.
//!
//! # Invariants
//!
//! 1. Claims have no CPU in common, in one process or, with a daemon, on the host (`claims_of_a_process_share_its_cpus`).
//! 2. A claim that has a CPU keeps one until it is dropped (`retreat_to_nothing_keeps_one`).
//! 3. A claim ends with its program, however that ends: the daemon sees its connection hang up.
//!
//! # Failure
//!
//! [`Error`] says what to do. Where the daemon ends, its claims end with it: the next call makes a new one, of the daemon's successor
//! or of this process alone, and [`Claim::on_change`] is to be said again.
//!
//! # Limits
//!
//! A claim belongs to the process that made it, not to its children. It does not move threads: [`tie`] does, or what a program
//! has for that (OpenMP: `invasive_computing.h` of corebeat-c).

mod alone;
mod arbiter;
mod error;

pub use corebeat_policy::claims::{Ask, Numa, Retreat};
pub use error::Error;

use arbiter::Arbiter;
use corebeat_machine::{CpuId, CpuSet};
use corebeat_sync::quiet;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::thread::{CpuSet as Mask, sched_getaffinity, sched_setaffinity};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

/// CPUs that are this program's, until it gives them back or drops this.
#[derive(Debug)]
pub struct Claim {
    arbiter: Arbiter,
    /// In ascending order.
    cpus: Vec<CpuId>,
    listener: Option<Listener>,
}

impl Claim {
    /// A claim of one CPU, as a program's claim begins in the paper; of none, where none is free.
    ///
    /// # Errors
    /// [`Error::Daemon`], if there is one that refuses; the system's.
    pub fn begin() -> Result<Claim, Error> {
        let (arbiter, cpus) = Arbiter::begin(&confined(Ask::new(1, 1)))?;
        Ok(Claim { arbiter, cpus, listener: None })
    }

    /// Asks for so many CPUs in all, under these conditions. How many there are now may be less, and more come with
    /// [`heed`](Claim::heed).
    ///
    /// # Errors
    /// [`Error::Senseless`] or [`Error::Daemon`]; the claim is as before.
    pub fn invade(&mut self, ask: Ask) -> Result<&[CpuId], Error> {
        let ask = confined(ask);
        match self.arbiter.invade(&ask) {
            Err(why) if why.is_end_of_daemon() => self.renew(&ask)?,
            invaded => self.cpus = invaded?,
        }
        Ok(&self.cpus)
    }

    /// Gives CPUs back. One that others have asked for may come back when they are done; others come by
    /// [`invade`](Claim::invade) alone.
    ///
    /// # Errors
    /// As [`invade`](Claim::invade).
    pub fn retreat(&mut self, what: Retreat) -> Result<&[CpuId], Error> {
        match self.arbiter.retreat(what.clone()) {
            Err(why) if why.is_end_of_daemon() => {
                self.renew(&self.as_it_is())?;
                self.cpus = self.arbiter.retreat(what)?;
            }
            retreated => self.cpus = retreated?,
        }
        Ok(&self.cpus)
    }

    /// Does what the arbiter wants: gives back what others want, takes what has come free. Whether anything has changed.
    ///
    /// # Errors
    /// As [`invade`](Claim::invade).
    pub fn heed(&mut self) -> Result<bool, Error> {
        // Where this fails there is nothing more to hear, and the listener stays quiet.
        let heeded = match self.arbiter.heed() {
            Err(why) if why.is_end_of_daemon() => {
                let before = self.cpus.clone();
                self.renew(&self.as_it_is())?;
                return Ok(self.cpus != before);
            }
            heeded => heeded?,
        };
        if let Some(listener) = &self.listener {
            listener.ear.heard();
        }
        let Some(cpus) = heeded else { return Ok(false) };
        let changed = cpus != self.cpus;
        self.cpus = cpus;
        Ok(changed)
    }

    /// The daemon has ended, and all its claims: a new one, of its successor or of this process alone.
    fn renew(&mut self, ask: &Ask) -> Result<(), Error> {
        // It waits for news of the one that has ended.
        self.listener = None;
        (self.arbiter, self.cpus) = Arbiter::begin(ask)?;
        Ok(())
    }

    /// What would bring what the claim has now.
    fn as_it_is(&self) -> Ask {
        let own: CpuSet = self.cpus.iter().copied().collect();
        match own.len() as u32 {
            0 => confined(Ask::new(1, 1)),
            count => Ask { within: Some(own), ..Ask::new(1, count) },
        }
    }

    /// Its CPUs, in ascending order.
    pub fn cpus(&self) -> &[CpuId] {
        &self.cpus
    }

    /// Has this called, on a thread of its own that takes no signals, when there is something to heed; and not again before it was heeded. It replaces
    /// the one before. A call that has begun when the claim is dropped goes on.
    ///
    /// # Errors
    /// The system's, which starts no thread or has no descriptor left.
    pub fn on_change(&mut self, call: impl FnMut() + Send + 'static) -> Result<(), Error> {
        self.listener = None;
        self.listener = Some(Listener::new(self.as_fd(), call)?);
        Ok(())
    }
}

impl AsFd for Claim {
    /// Can be read from (by `poll`, say) when there is something to heed, or the daemon has ended; sometimes without a reason, where
    /// the process has other claims. Do not read it: heed.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.arbiter.as_fd()
    }
}

/// Moves the calling thread to this CPU, to stay.
///
/// # Errors
/// The system's: there is no such CPU, or this process may not use it.
pub fn tie(cpu: CpuId) -> Result<(), Error> {
    let mut mask = Mask::new();
    if cpu.0 as usize >= Mask::MAX_CPU {
        return Err(Error::system("tie a thread to a CPU", std::io::ErrorKind::InvalidInput));
    }
    mask.set(cpu.0 as usize);
    sched_setaffinity(None, &mask).map_err(|e| Error::system("tie a thread to a CPU", e))
}

/// The ask, within what this process may use.
fn confined(ask: Ask) -> Ask {
    // As it was before the first claim: threads are tied afterwards.
    static ALLOWED: OnceLock<Option<CpuSet>> = OnceLock::new();
    let allowed = ALLOWED.get_or_init(|| {
        let mask = sched_getaffinity(None).ok()?;
        Some((0..Mask::MAX_CPU).filter(|&cpu| mask.is_set(cpu)).map(|cpu| CpuId(cpu as u32)).collect())
    });
    let within = match (ask.within, allowed) {
        (Some(within), Some(allowed)) => Some(within.iter().filter(|&cpu| allowed.contains(cpu)).collect()),
        (within, allowed) => within.or_else(|| allowed.clone()),
    };
    Ask { within, ..ask }
}

/// A thread that calls when there is something to heed.
#[derive(Debug)]
struct Listener {
    ear: Arc<Ear>,
    /// Ends the wait for news.
    over: Arc<rustix::fd::OwnedFd>,
}

/// What the listener waits for between two calls.
#[derive(Debug, Default)]
struct Ear {
    /// Whether it was called, and nobody has heeded since; and whether it is to end.
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Ear {
    fn set(&self, change: impl FnOnce(&mut (bool, bool))) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    fn heard(&self) {
        self.set(|state| state.0 = false);
    }

    /// Waits until it was heeded. False: it is over.
    fn wait(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = |state: &mut (bool, bool)| state.0 && !state.1;
        let state = self.changed.wait_while(state, waits).unwrap_or_else(PoisonError::into_inner);
        !state.1
    }
}

impl Listener {
    fn new(news: BorrowedFd<'_>, mut call: impl FnMut() + Send + 'static) -> Result<Listener, Error> {
        const WHAT: &str = "listen for changes of a claim";
        let failed = |e| Error::system(WHAT, e);
        let news = news.try_clone_to_owned().map_err(failed)?;
        let over = Arc::new(arbiter::event().map_err(|e| Error::system(WHAT, e))?);
        let ear = Arc::new(Ear::default());
        let (ear_there, over_there) = (ear.clone(), over.clone());
        let listen = move || {
            loop {
                let mut ready = [PollFd::new(&news, PollFlags::IN), PollFd::new(&*over_there, PollFlags::IN)];
                let found = rustix::io::retry_on_intr(|| poll(&mut ready, None));
                if found.is_err() || !ready[1].revents().is_empty() {
                    return;
                }
                ear_there.set(|state| state.0 = true);
                call();
                if !ear_there.wait() {
                    return;
                }
            }
        };
        quiet::spawn("corebeat-claim", listen).map_err(failed)?;
        Ok(Listener { ear, over })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.ear.set(|state| state.1 = true);
        // Nobody waits for the thread: what it calls may wait for a lock that the owner of the claim holds.
        arbiter::ring(&self.over);
    }
}
