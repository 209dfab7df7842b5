//! Servers that follow their load: the pattern and the number of threads of a server of
//! `corebeat-reactor` change while it runs.
//!
//! Place in the loop: bind; connects the server to the policy `server`, and on request to a
//! heartbeat and to a claim of CPUs.
//!
//! # Example
//!
//! ```
//! use corebeat_reactor::Exchange;
//! use corebeat_server::{AdaptiveServer, Options};
//! use std::io::{Read, Write};
//!
//! let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
//! let address = listener.local_addr()?;
//! let server = AdaptiveServer::start(Options::default(), listener, || {
//!     |exchange: &mut Exchange<'_>| {
//!         let input = exchange.input();
//!         exchange.output().extend_from_slice(input);
//!         exchange.consume(input.len());
//!     }
//! })?;
//! let mut client = std::net::TcpStream::connect(address)?;
//! client.write_all(b"hello")?;
//! client.read_exact(&mut [0; 5])?;
//! assert_eq!(server.variant().threads, 1); // one thread suffices for one client
//! server.stop(std::time::Duration::from_secs(5));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Model
//!
//! ```text
//!   Server --- load, every 50 ms ---> ServerPolicy --- variant ---> claim of CPUs (optional)
//!     ^           |                                                    |  as many as are granted
//!     |           +--- requests ---> heartbeat (optional)              |
//!     +---------------------- switch ----------------------------------+
//! ```
//!
//! A thread of its own measures the load of the server, lets the policy decide
//! ([`corebeat_policy::server`] has the rules), and switches the server
//! ([`Control::switch`](corebeat_reactor::Control::switch)).
//!
//! - **Claim.** With [`Options::claim`], the server claims one CPU for each worker. Fewer granted
//!   CPUs mean fewer workers. The threads of the server run on the claimed CPUs.
//! - **Heartbeat.** With [`Options::heartbeat`], each request is a beat of a group. A goal of the
//!   group lets the daemon steer the CPU share of the server.
//! - **Report.** With [`Options::shown`], `corebeat top` shows the server: see
//!   [`Report`].
//!
//! # Invariants
//!
//! 1. The server follows its load (`threads_follow_the_load`).
//! 2. Requests and heartbeats agree (`each_request_is_a_beat`).
//! 3. After each decision, the server has no more workers than its claim has CPUs, except one
//!    (`workers_stay_within_the_claimed_cpus`). A claim that loses CPUs may have fewer until the
//!    next decision.
//! 4. The threads of the server run on the claimed CPUs, and leave CPUs before the server returns
//!    them (`handlers_run_on_the_claimed_cpus`). CPUs that the arbiter requests are the exception:
//!    they are returned first.
//! 5. A server that cannot start accepts no connection (`refused_start_serves_nobody`).
//! 6. A server shows itself on request only (`server_shows_itself_on_request`).
//!
//! # Failure
//!
//! [`Error`] states why a server cannot start. A claim or a heartbeat that fails later, and a
//! switch that the system refuses, leave the server as it is; the thread tries again.
//!
//! # Limits
//!
//! The policy does not act if the kernel does not report the run-queue wait of threads
//! (`CONFIG_SCHED_INFO`). The CPUs of a claim belong to all threads of the server: none is pinned
//! to one of them.

pub use corebeat_policy::server::ServerPolicy;

use corebeat_claim::{Ask, Claim, CpuId, CpuSet, Retreat};
use corebeat_heartbeat::{Goal, Group, Producer};
use corebeat_machine::server::Report;
use corebeat_reactor::{Config, Control, Handler, Server, Stats, Variant};
use corebeat_sync::fork::Uninherited;
use corebeat_sync::{Condvar, Mutex, lock, quiet};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::thread::{CpuSet as Mask, Pid, sched_getaffinity, sched_setaffinity};
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::channel;
use std::sync::{Arc, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Period of the decisions.
const PERIOD: Duration = Duration::from_millis(50);

/// Parameters of an adaptive server.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Limits of the server. `threads` is the largest number of threads that process events, from
    /// 1. The pattern and the mechanism keep their defaults: the policy sets them.
    pub config: Config,
    /// Thresholds, and the largest number of threads that process events, unless `config` has a
    /// smaller one. `None`, the default, is a policy for the number of CPUs that this process may
    /// use.
    pub policy: Option<ServerPolicy>,
    /// Whether the server claims a CPU for each of these threads. The default is false.
    pub claim: bool,
    /// Group whose beats are the requests of the server. The default is none.
    pub heartbeat: Option<Heartbeat>,
    /// Whether `corebeat top` shows the connections, the requests per second and the variant of the
    /// server to its user. The default is false.
    pub shown: bool,
}

/// Heartbeat of a server.
#[derive(Debug, Clone, Copy)]
pub struct Heartbeat {
    /// Group of the server.
    pub group: Group,
    /// Target of the group, in requests per second; `None` leaves the goal of the group.
    pub goal: Option<Goal>,
}

/// Reason why an adaptive server cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A parameter that the policy sets differs from its default.
    #[error(
        "an adaptive server sets `{name}` by its load: leave the default, or use a `Server` of \
             corebeat-reactor"
    )]
    Adaptive {
        /// Name of the parameter, a field of [`Config`].
        name: &'static str,
    },
    /// The server cannot start.
    #[error(transparent)]
    Server(#[from] corebeat_reactor::Error),
    /// The server cannot claim CPUs.
    #[error(transparent)]
    Claim(#[from] corebeat_claim::Error),
    /// The server cannot emit heartbeats.
    #[error(transparent)]
    Heartbeat(#[from] corebeat_heartbeat::Error),
    /// The system refuses the thread that adapts the server.
    #[error(
        "cannot start the thread that adapts the server ({0}): raise the limits of the process"
    )]
    System(std::io::Error),
}

/// A running server that follows its load. Dropping it closes all connections;
/// [`AdaptiveServer::stop`] lets requests in progress finish first.
#[derive(Debug)]
pub struct AdaptiveServer {
    /// `None` after the end.
    server: Option<Server>,
    shared: Arc<Shared>,
    thread: Option<Uninherited<JoinHandle<()>>>,
}

/// State that the server and its thread share.
#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    has_ended: bool,
    why: Option<String>,
    cpus: Vec<CpuId>,
}

impl Shared {
    /// Waits for a period. Returns true if the server has ended.
    fn ends_within_a_period(&self) -> bool {
        let state = lock(&self.state);
        let waited = self.changed.wait_timeout_while(state, PERIOD, |state| !state.has_ended);
        waited.unwrap_or_else(PoisonError::into_inner).0.has_ended
    }

    fn end(&self) {
        lock(&self.state).has_ended = true;
        self.changed.notify_all();
    }
}

impl AdaptiveServer {
    /// Starts a server for a TCP or Unix listener of the standard library, as [`Server::start`].
    /// Waits for the daemon, if one runs and `options` has a claim or a heartbeat, for at most 2 s
    /// each.
    ///
    /// # Errors
    ///
    /// A parameter is out of range; the system refuses a resource; the claim or the heartbeat
    /// cannot begin.
    pub fn start<H: Handler>(
        options: Options,
        listener: impl Into<OwnedFd>,
        make: impl Fn() -> H + Send + Sync + 'static,
    ) -> Result<AdaptiveServer, Error> {
        let Options { mut config, policy, claim, heartbeat, shown } = options;
        check(&config)?;
        let cpus = || thread::available_parallelism().map_or(1, |cpus| cpus.get());
        let mut policy = policy.unwrap_or_else(|| ServerPolicy::new(cpus()));
        policy.workers_max = policy.workers_max.min(config.threads.unwrap_or(usize::MAX));
        // The server refuses a largest number of 0.
        config.threads = Some(policy.initial().threads.min(policy.workers_max));
        let (listener, shared) = (listener.into(), Arc::<Shared>::default());
        let (started, has_started) = channel();
        let of_thread = shared.clone();
        let thread = quiet::spawn("reactor adapt", move || {
            // Before the server, which serves clients from its start. The threads of the server
            // inherit the affinity of this thread.
            let resources = Resources::begin(claim, heartbeat, &of_thread);
            let begun = resources.and_then(|resources| {
                let shown = shown.then(Shown::new).transpose()?;
                let server = Server::start(config, listener, make)?;
                let adapter = Adapter::new(server.control(), policy, resources, shown, of_thread);
                Ok((server, adapter))
            });
            // The receiver waits.
            match begun {
                Ok((server, adapter)) => started.send(Ok(server)).map_or((), |()| adapter.run()),
                Err(why) => started.send(Err(why)).unwrap_or(()),
            }
        });
        let thread = thread.map_err(Error::System)?;
        let has_ended = |_| Err(Error::System(std::io::Error::other("the thread has ended")));
        match has_started.recv().unwrap_or_else(has_ended) {
            Ok(server) => {
                let (server, thread) = (Some(server), Some(Uninherited::new(thread)));
                Ok(AdaptiveServer { server, shared, thread })
            }
            Err(why) => {
                // A panic was reported by its hook.
                let _ = thread.join();
                Err(why)
            }
        }
    }

    /// Returns the numbers of the server.
    pub fn stats(&self) -> Stats {
        self.server().stats()
    }

    /// Returns the present variant.
    pub fn variant(&self) -> Variant {
        self.server().control().variant()
    }

    /// Returns the reason for the last change of the variant, for people; `None` before the first.
    pub fn why(&self) -> Option<String> {
        lock(&self.shared.state).why.clone()
    }

    /// Returns the claimed CPUs; none without a claim.
    pub fn cpus(&self) -> Vec<CpuId> {
        lock(&self.shared.state).cpus.clone()
    }

    /// Ends the server as [`Server::stop`]: within `grace`, requests in progress finish. A daemon
    /// that does not answer, while it has a claim or a goal of the server, takes 2 s more.
    pub fn stop(mut self, grace: Duration) {
        self.end(grace);
    }

    fn server(&self) -> &Server {
        self.server.as_ref().expect("only the end takes the server")
    }

    fn end(&mut self, grace: Duration) {
        let Some(server) = self.server.take() else { return };
        server.stop(grace);
        // A child of fork has no thread to end.
        if let Some(thread) = self.thread.take().and_then(Uninherited::into_inner) {
            self.shared.end();
            // A panic was reported by its hook.
            let _ = thread.join();
        }
    }
}

impl Drop for AdaptiveServer {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}

/// Returns an error if a parameter that the policy sets differs from its default.
fn check(config: &Config) -> Result<(), Error> {
    let default = Config::default();
    let set = [
        ("pattern", config.pattern != default.pattern),
        ("mechanism", config.mechanism != default.mechanism),
    ];
    match set.into_iter().find(|(_, is_set)| *is_set) {
        Some((name, _)) => Err(Error::Adaptive { name }),
        None => Ok(()),
    }
}

/// The connections of a server to the loop.
struct Resources {
    claim: Option<ClaimedCpus>,
    producer: Option<Producer>,
}

impl Resources {
    /// Begins them for one worker on the calling thread.
    fn begin(
        claims: bool,
        heartbeat: Option<Heartbeat>,
        shared: &Shared,
    ) -> Result<Resources, Error> {
        let producer = heartbeat.map(|heartbeat| heartbeat.group.produce()).transpose()?;
        if let (Some(producer), Some(goal)) = (&producer, heartbeat.and_then(|own| own.goal)) {
            producer.set_goal(goal)?;
        }
        let mut claim = claims.then(ClaimedCpus::begin).transpose()?;
        if let Some(claim) = &mut claim {
            claim.change_to(1, Vec::new());
            lock(&shared.state).cpus = claim.cpus().to_vec();
        }
        Ok(Resources { claim, producer })
    }
}

impl Drop for Resources {
    fn drop(&mut self) {
        drop_both(self.claim.take(), self.producer.take());
    }
}

/// Drops two values at the same time. The end of a claim and that of a producer wait for a daemon
/// that does not answer, each for its time limit.
fn drop_both<A: Send, B>(first: A, second: B) {
    std::thread::scope(|scope| {
        // Without memory for a thread, this one drops both.
        let _ = std::thread::Builder::new().spawn_scoped(scope, || drop(first));
        drop(second);
    });
}

/// The thread that adapts a server.
struct Adapter {
    control: Control,
    policy: ServerPolicy,
    resources: Resources,
    shown: Option<Shown>,
    /// Requests that have been beats.
    requests: u64,
    shared: Arc<Shared>,
}

impl Adapter {
    fn new(
        control: Control,
        policy: ServerPolicy,
        resources: Resources,
        shown: Option<Shown>,
        shared: Arc<Shared>,
    ) -> Adapter {
        Adapter { control, policy, resources, shown, requests: 0, shared }
    }

    fn run(mut self) {
        while !self.shared.ends_within_a_period() {
            self.beat();
            self.adapt();
            self.show();
        }
        self.beat();
    }

    fn show(&mut self) {
        if let Some(shown) = &mut self.shown {
            shown.write(self.control.variant(), &self.control.stats());
        }
    }

    fn beat(&mut self) {
        if let Some(producer) = &self.resources.producer {
            let requests = self.control.stats().requests;
            producer.beat(requests - std::mem::replace(&mut self.requests, requests));
        }
    }

    fn adapt(&mut self) {
        let load = self.control.load();
        let (present, choice) = (load.variant, self.policy.decide(&load));
        let wanted = choice.as_ref().map_or(present, |choice| choice.variant);
        // CPUs are released in the next period, after their threads have left them.
        let granted = self.obtain(wanted.workers().max(present.workers()));
        let variant = ServerPolicy::limit(wanted, granted);
        if variant != present && self.control.switch(variant).is_ok() {
            let is_granted = variant == wanted;
            let why = choice.filter(|_| is_granted).map(|choice| choice.why);
            let why = why.unwrap_or_else(|| format!("the server has {granted} CPUs"));
            lock(&self.shared.state).why = Some(why);
        } else if choice.is_some() {
            self.policy.refuse(present, wanted);
        }
    }

    /// Claims this number of CPUs. Returns the number of workers that may run.
    fn obtain(&mut self, workers: usize) -> usize {
        let Some(claim) = &mut self.resources.claim else { return usize::MAX };
        claim.change_to(workers, self.control.tids());
        lock(&self.shared.state).cpus = claim.cpus().to_vec();
        claim.cpus().len().max(1)
    }
}

/// The report of a server for other processes ([`Report`]).
struct Shown {
    file: File,
    /// Times and requests of the last periods, at most one second.
    past: VecDeque<(Instant, u64)>,
}

impl Shown {
    /// Number of periods in a second.
    const PERIODS: usize = (1000 / PERIOD.as_millis()) as usize;

    fn new() -> Result<Shown, Error> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create(Report::FILE, flags).map_err(|why| Error::System(why.into()))?;
        Ok(Shown { file: file.into(), past: VecDeque::from([(Instant::now(), 0)]) })
    }

    fn write(&mut self, variant: Variant, stats: &Stats) {
        let (now, requests) = (Instant::now(), stats.requests);
        self.past.push_back((now, requests));
        if self.past.len() > Shown::PERIODS + 1 {
            self.past.pop_front();
        }
        let (begin, before) = self.past[0];
        let span_s = (now - begin).as_secs_f64();
        let requests_per_s = if span_s > 0.0 { (requests - before) as f64 / span_s } else { 0.0 };
        let report = Report { variant, connections: stats.connections, requests, requests_per_s };
        // Without memory for the file, the report is older than a period.
        let _ = self.file.write_all_at(&report.to_bytes(), 0);
    }
}

/// A claim, and the affinity of the threads of a server.
struct ClaimedCpus {
    claim: Claim,
    /// The number of CPUs of the last request.
    asked: usize,
    /// The CPUs on which the threads run, and these threads.
    placed: (Vec<CpuId>, Vec<i32>),
    /// The CPUs on which the threads run while the claim has none.
    all: Mask,
}

impl ClaimedCpus {
    fn begin() -> Result<ClaimedCpus, Error> {
        let all = sched_getaffinity(None).map_err(|why| Error::System(why.into()))?;
        Ok(ClaimedCpus { claim: Claim::begin()?, asked: 1, placed: Default::default(), all })
    }

    fn cpus(&self) -> &[CpuId] {
        self.claim.cpus()
    }

    /// Requests this number of CPUs, applies requests of the arbiter, and moves these threads of
    /// the server to the CPUs of the claim.
    fn change_to(&mut self, count: usize, tids: Vec<i32>) {
        // After an error, the claim has the CPUs that it had, and the next period tries again.
        let _ = self.claim.poll();
        let size = u32::try_from(count).unwrap_or(u32::MAX);
        let changed = match count.cmp(&self.asked) {
            Ordering::Greater => self.claim.invade(Ask::new(1, size)).is_ok(),
            Ordering::Less => {
                let (kept, returned) = self.cpus().split_at(count.min(self.cpus().len()));
                let (kept, returned) = (kept.to_vec(), returned.iter().copied().collect());
                // Before another program receives the others.
                self.place(kept, &tids);
                self.claim.retreat(retreat(returned, size)).is_ok()
            }
            Ordering::Equal => false,
        };
        if changed {
            self.asked = count;
        }
        self.place(self.cpus().to_vec(), &tids);
    }

    /// Moves these threads to these CPUs. The calling thread moves, too: later threads of the
    /// server inherit its affinity. A thread that has not begun has no number yet, so that it moves
    /// with a later call.
    fn place(&mut self, cpus: Vec<CpuId>, tids: &[i32]) {
        if self.placed.0 == cpus && self.placed.1 == tids {
            return;
        }
        let mut mask = Mask::new();
        cpus.iter().for_each(|cpu| mask.set(cpu.0 as usize));
        let mask = if cpus.is_empty() { &self.all } else { &mask };
        let threads = tids.iter().copied().map(Pid::from_raw);
        for thread in std::iter::once(None).chain(threads) {
            // Fails if the CPUs are offline: the thread stays where it is.
            let _ = sched_setaffinity(thread, mask);
        }
        self.placed = (cpus, tids.to_vec());
    }
}

/// Returns these CPUs. Without CPUs, lowers a request that the arbiter has granted in part.
fn retreat(returned: CpuSet, size: u32) -> Retreat {
    if returned.is_empty() { Retreat::To(size) } else { Retreat::Cpus(returned) }
}

/// The Rust code of the book is compiled and run as documentation tests.
#[cfg(doctest)]
#[doc(hidden)]
pub mod book {
    #[doc = include_str!("../../../../docs/reactor.md")]
    pub struct Reactor;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    struct Meets<'a>(&'a Barrier);

    impl Drop for Meets<'_> {
        fn drop(&mut self) {
            self.0.wait();
        }
    }

    /// Would wait for ever if one of the two ended before the other.
    #[test]
    fn limits_of_the_time_for_a_daemon_do_not_add() {
        let barrier = Barrier::new(2);
        drop_both(Meets(&barrier), Meets(&barrier));
    }
}
