//! Who measures: the daemon, or this process where none runs.

use crate::Error;
use crate::daemon::Daemon;
use crate::goal::Goal;
use crate::group::{GroupId, Mode, Peer, Role};
use crate::registry::{MemberId, Registry};
use corebeat_sync::quiet;
use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often a process without a daemon measures, if nobody asks for more.
pub const PERIOD: Duration = Duration::from_millis(100);
/// The shortest period.
pub const PERIOD_MIN: Duration = Duration::from_millis(1);
/// The longest period.
pub const PERIOD_MAX: Duration = Duration::from_secs(10);

/// What a process is attached to, once however many of its threads are.
pub(crate) type Key = (GroupId, Role);

/// Either of them.
#[derive(Debug)]
pub(crate) enum Monitor {
    /// This process.
    Local(Local),
    /// The daemon.
    Daemon(Daemon),
}

/// How they are found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Finder {
    /// The daemon, if there is one.
    pub(crate) daemon: fn() -> Result<Option<Daemon>, Error>,
    /// This process, which measures at this period.
    pub(crate) local: fn(Duration) -> Result<Local, Error>,
}

impl Finder {
    /// As it is on a host.
    pub(crate) const HOST: Finder = Finder { daemon: Daemon::open, local: |period| Local::new(Some(period)) };

    /// The daemon, or else this process.
    pub(crate) fn find(self, period: Duration) -> Result<Monitor, Error> {
        match (self.daemon)()? {
            Some(daemon) => Ok(Monitor::Daemon(daemon)),
            None => (self.local)(period).map(Monitor::Local),
        }
    }
}

impl Monitor {
    /// Attaches, and gives the status page.
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

    /// The line to the daemon, if that is it, or if this process stands in for it.
    pub(crate) fn line(&self) -> Option<Arc<OwnedFd>> {
        match self {
            Monitor::Local(local) => local.stands_in_for.clone(),
            Monitor::Daemon(daemon) => Some(daemon.line()),
        }
    }

    /// Whether a daemon is to take its place, as soon as there is one.
    pub(crate) fn is_over(&self) -> bool {
        match self {
            Monitor::Local(local) => local.stands_in_for.is_some(),
            Monitor::Daemon(daemon) => daemon.is_gone(),
        }
    }

    /// Gives a group a goal.
    pub(crate) fn set_goal(&mut self, group: GroupId, goal: Goal) -> Result<(), Error> {
        match self {
            Monitor::Local(local) => local.set_goal(group, goal),
            Monitor::Daemon(daemon) => daemon.set_goal(group, goal),
        }
    }
}

/// A registry in this process, with a thread that samples.
#[derive(Debug)]
pub(crate) struct Local {
    peer: Peer,
    begin: Instant,
    registry: Arc<Mutex<Registry>>,
    members: BTreeMap<Key, MemberId>,
    /// Not in tests: they say what time it is.
    sampler: Option<Sampler>,
    /// The line to a daemon that has ended, and to whose successor all are to go.
    stands_in_for: Option<Arc<OwnedFd>>,
}

impl Local {
    pub(crate) fn new(period: Option<Duration>) -> Result<Local, Error> {
        let uid = rustix::process::geteuid().as_raw();
        let pid = rustix::process::getpid().as_raw_nonzero().get().cast_unsigned();
        let (begin, registry) = (Instant::now(), Arc::<Mutex<Registry>>::default());
        let sampler = period.map(|period| Sampler::start(registry.clone(), begin, period)).transpose()?;
        let (peer, members) = (Peer { uid, pid }, BTreeMap::new());
        Ok(Local { peer, begin, registry, members, sampler, stands_in_for: None })
    }

    /// The same, in the place of a daemon that has ended, until there is another one.
    pub(crate) fn standing_in_for(self, line: &OwnedFd) -> Result<Local, Error> {
        // Another one, for places tell by it who has given them.
        let line = line.try_clone();
        let line = line.map_err(|why| Error::system("no descriptor for the daemon's line", why))?;
        Ok(Local { stands_in_for: Some(Arc::new(line)), ..self })
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

    /// Samples at least so often from now on.
    pub(crate) fn hasten(&self, period: Duration) {
        if let Some(sampler) = &self.sampler {
            let mut orders = lock(&sampler.shared.orders);
            if period < orders.period {
                orders.period = period;
                sampler.shared.changed.notify_one();
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn sample(&self, now_ns: u64) {
        lock(&self.registry).sample(now_ns);
    }
}

/// A thread that samples until it is dropped.
#[derive(Debug)]
struct Sampler {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    orders: Mutex<Orders>,
    changed: Condvar,
}

#[derive(Debug)]
struct Orders {
    period: Duration,
    stop: bool,
}

impl Sampler {
    fn start(registry: Arc<Mutex<Registry>>, begin: Instant, period: Duration) -> Result<Sampler, Error> {
        let orders = Mutex::new(Orders { period, stop: false });
        let shared = Arc::new(Shared { orders, changed: Condvar::new() });
        let mine = shared.clone();
        let thread = quiet::spawn("heartbeat", move || mine.run(&registry, begin));
        let thread = thread.map_err(|why| Error::system("no thread to measure heartbeats", why))?;
        Ok(Sampler { shared, thread: Some(thread) })
    }
}

impl Shared {
    fn run(&self, registry: &Mutex<Registry>, begin: Instant) {
        let mut orders = lock(&self.orders);
        while !orders.stop {
            let period = orders.period;
            let (again, waited) =
                self.changed.wait_timeout(orders, period).unwrap_or_else(|e| e.into_inner());
            orders = again;
            if waited.timed_out() && !orders.stop {
                drop(orders);
                lock(registry).sample(ns_since(begin));
                orders = lock(&self.orders);
            }
        }
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        lock(&self.shared.orders).stop = true;
        self.shared.changed.notify_one();
        // It holds no lock that we wait for, and ends at once.
        self.thread.take().map(JoinHandle::join);
    }
}

/// A lock whose holder panicked protects nothing that could be half done: what is written last makes it count.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// Nanoseconds, five hundred years at most. The C library's clock: rustix looks for the vDSO by itself, and crashes under Valgrind.
fn ns_since(begin: Instant) -> u64 {
    u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
