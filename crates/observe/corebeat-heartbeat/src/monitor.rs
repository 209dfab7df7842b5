//! The monitor: the daemon, or this process if no daemon runs.

use crate::Error;
use crate::daemon::Daemon;
use crate::goal::Goal;
use crate::group::{GroupId, Mode, Peer};
use crate::registry::{MemberId, Registry};
use corebeat_sync::quiet;
use corebeat_wire::host::Role;
use corebeat_wire::{Deadline, Search};
use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Default sampling period of a process without a daemon.
pub const PERIOD: Duration = Duration::from_millis(100);
/// Shortest sampling period.
pub const PERIOD_MIN: Duration = Duration::from_millis(1);
/// Longest sampling period.
pub const PERIOD_MAX: Duration = Duration::from_secs(10);

/// An attachment of a process, shared by all of its threads.
pub(crate) type Key = (GroupId, Role);

/// Time between two searches for a daemon that has started since.
const SEARCH_PERIOD: Duration = Duration::from_secs(1);

/// The process that measures.
#[derive(Debug)]
pub(crate) enum Monitor {
    /// This process.
    Local(Local),
    /// The daemon.
    Daemon(Daemon),
}

/// How monitors are found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Finder {
    /// Connects to the daemon, if one runs.
    pub(crate) daemon: fn(Deadline) -> Result<Option<Daemon>, Error>,
    /// Creates a monitor in this process with this sampling period.
    pub(crate) local: fn(Duration) -> Result<Local, Error>,
}

impl Finder {
    /// The finder for a real host.
    pub(crate) const HOST: Finder =
        Finder { daemon: Daemon::open, local: |period| Local::new(Some(period)) };

    /// Returns the daemon, or a monitor in this process.
    pub(crate) fn find(self, period: Duration, deadline: Deadline) -> Result<Monitor, Error> {
        match (self.daemon)(deadline)? {
            Some(daemon) => Ok(Monitor::Daemon(daemon)),
            None => (self.local)(period).map(Monitor::Local),
        }
    }
}

impl Monitor {
    /// Attaches. Returns the status page.
    pub(crate) fn join(
        &mut self,
        key: Key,
        mode: Option<Mode>,
        region: Option<BorrowedFd<'_>>,
    ) -> Result<OwnedFd, Error> {
        match self {
            Monitor::Local(local) => local.join(key, mode, region),
            Monitor::Daemon(daemon) => daemon.join(key, mode, region),
        }
    }

    /// Detaches.
    pub(crate) fn leave(&mut self, key: Key) {
        match self {
            Monitor::Local(local) => local.leave(key),
            Monitor::Daemon(daemon) => daemon.leave(key),
        }
    }

    /// Sets the deadline of the next calls of the daemon.
    pub(crate) fn set_deadline(&mut self, deadline: Deadline) {
        if let Monitor::Daemon(daemon) = self {
            daemon.set_deadline(deadline);
        }
    }

    /// The identity of this monitor.
    pub(crate) fn origin(&self) -> Origin {
        match self {
            Monitor::Local(local) => Origin::Local(local.search.clone()),
            Monitor::Daemon(daemon) => Origin::Daemon(daemon.connection_fd()),
        }
    }

    /// Whether the daemon that measures has ended.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self, Monitor::Daemon(daemon) if daemon.is_gone())
    }

    /// Waits for the calls that the daemon has not answered in time.
    pub(crate) fn settle(&mut self) -> Result<(), Error> {
        match self {
            Monitor::Local(_) => Ok(()),
            Monitor::Daemon(daemon) => daemon.settle(),
        }
    }

    /// Sets the goal of a group.
    pub(crate) fn set_goal(&mut self, group: GroupId, goal: Goal) -> Result<(), Error> {
        match self {
            Monitor::Local(local) => local.set_goal(group, goal),
            Monitor::Daemon(daemon) => daemon.set_goal(group, goal),
        }
    }
}

/// The identity of a monitor, by which members detect without a lock of the session that another
/// monitor should take over.
#[derive(Debug)]
pub(crate) enum Origin {
    /// The connection to the daemon, which is closed when the daemon has ended.
    Daemon(Arc<OwnedFd>),
    /// The search of this process for a daemon.
    Local(Arc<Search>),
}

impl PartialEq for Origin {
    fn eq(&self, other: &Origin) -> bool {
        match (self, other) {
            (Origin::Daemon(own), Origin::Daemon(other)) => Arc::ptr_eq(own, other),
            (Origin::Local(own), Origin::Local(other)) => Arc::ptr_eq(own, other),
            _ => false,
        }
    }
}

/// A registry in this process, with a sampling thread.
#[derive(Debug)]
pub(crate) struct Local {
    peer: Peer,
    begin: Instant,
    registry: Arc<Mutex<Registry>>,
    members: BTreeMap<Key, MemberId>,
    /// `None` in tests, which provide the time themselves.
    sampler: Option<Sampler>,
    search: Arc<Search>,
}

impl Local {
    pub(crate) fn new(period: Option<Duration>) -> Result<Local, Error> {
        let uid = rustix::process::geteuid().as_raw();
        let pid = rustix::process::getpid().as_raw_nonzero().get().cast_unsigned();
        let (begin, registry) = (Instant::now(), Arc::<Mutex<Registry>>::default());
        let sampler =
            period.map(|period| Sampler::start(registry.clone(), begin, period)).transpose()?;
        let (peer, members) = (Peer { uid, pid }, BTreeMap::new());
        let search = Arc::new(Search::new(SEARCH_PERIOD));
        Ok(Local { peer, begin, registry, members, sampler, search })
    }

    fn join(
        &mut self,
        key: Key,
        mode: Option<Mode>,
        region: Option<BorrowedFd<'_>>,
    ) -> Result<OwnedFd, Error> {
        let now_ns = if self.sampler.is_some() { ns_since(self.begin) } else { 0 };
        let (member, page) = lock(&self.registry).join(self.peer, key.0, mode, region, now_ns)?;
        self.members.insert(key, member);
        Ok(page)
    }

    fn leave(&mut self, key: Key) {
        if let Some(member) = self.members.remove(&key) {
            lock(&self.registry).leave(member);
        }
    }

    fn set_goal(&mut self, group: GroupId, goal: Goal) -> Result<(), Error> {
        lock(&self.registry).set_goal(self.peer, group, goal)
    }

    /// Shortens the sampling period to `period`, if it is longer.
    pub(crate) fn shorten_period(&self, period: Duration) {
        if let Some(sampler) = &self.sampler {
            let mut state = lock(&sampler.shared.state);
            if period < state.period {
                state.period = period;
                sampler.shared.changed.notify_one();
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn sample(&self, now_ns: u64) {
        lock(&self.registry).sample(now_ns);
    }
}

/// A thread that samples until this value is dropped.
#[derive(Debug)]
struct Sampler {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<SamplerState>,
    changed: Condvar,
}

#[derive(Debug)]
struct SamplerState {
    period: Duration,
    stop: bool,
}

impl Sampler {
    fn start(
        registry: Arc<Mutex<Registry>>,
        begin: Instant,
        period: Duration,
    ) -> Result<Sampler, Error> {
        let state = Mutex::new(SamplerState { period, stop: false });
        let shared = Arc::new(Shared { state, changed: Condvar::new() });
        let sampler = shared.clone();
        let thread = quiet::spawn("heartbeat", move || sampler.run(&registry, begin));
        let thread = thread.map_err(|why| {
            Error::system("cannot start the thread that measures heartbeats", why)
        })?;
        Ok(Sampler { shared, thread: Some(thread) })
    }
}

impl Shared {
    fn run(&self, registry: &Mutex<Registry>, begin: Instant) {
        let mut state = lock(&self.state);
        while !state.stop {
            let period = state.period;
            let (again, waited) =
                self.changed.wait_timeout(state, period).unwrap_or_else(|e| e.into_inner());
            state = again;
            if waited.timed_out() && !state.stop {
                drop(state);
                lock(registry).sample(ns_since(begin));
                state = lock(&self.state);
            }
        }
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        lock(&self.shared.state).stop = true;
        self.shared.changed.notify_one();
        // The thread needs no lock that this thread holds, and ends immediately.
        self.thread.take().map(JoinHandle::join);
    }
}

/// Locks a mutex. The protected data is valid even if a thread panicked while it held the lock,
/// because the last write of each change makes the change effective.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// Nanoseconds since `begin`; they overflow after more than 500 years. `Instant` reads the clock of
/// the C library. rustix searches the vDSO itself and crashes under Valgrind.
fn ns_since(begin: Instant) -> u64 {
    u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
