//! Servers that run a handler for each connection.

mod connection;
mod engine;
mod meter;
mod regime;

pub use corebeat_machine::server::{Load, Mechanism, Pattern, ThreadLoad, Variant};
pub(crate) use engine::{BATCH, Engine, Scratch};
pub(crate) use regime::Regime;

use crate::system;
use corebeat_sync::fork::Process;
use engine::Last;
use std::io;
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Handles the bytes of one connection. A closure is a handler.
pub trait Handler: Send + 'static {
    /// Handles received bytes: consumes complete requests from the front of the input, and appends
    /// the responses to the output. The server calls this function again with the bytes that were
    /// not consumed when more have arrived, and at the end of the data.
    ///
    /// The function runs on a thread of the server. Calls that block delay other connections. A
    /// panic closes the connection. The destructor of the handler runs on such a thread, too.
    fn handle(&mut self, exchange: &mut Exchange<'_>);
}

impl<F: FnMut(&mut Exchange<'_>) + Send + 'static> Handler for F {
    fn handle(&mut self, exchange: &mut Exchange<'_>) {
        self(exchange);
    }
}

/// Input and output of a connection during a call of its [`Handler`].
#[derive(Debug)]
pub struct Exchange<'a> {
    input: &'a [u8],
    output: &'a mut Vec<u8>,
    is_end: bool,
    is_closed: bool,
    requests: Option<u64>,
}

impl<'a> Exchange<'a> {
    /// Returns the received bytes that have not been consumed.
    pub fn input(&self) -> &'a [u8] {
        self.input
    }

    /// Removes bytes from the front of the input.
    ///
    /// # Panics
    ///
    /// If the input has fewer bytes.
    pub fn consume(&mut self, bytes: usize) {
        self.input = &self.input[bytes..];
    }

    /// Returns the output, to which responses are appended. The server sends it after the call.
    pub fn output(&mut self) -> &mut Vec<u8> {
        self.output
    }

    /// States the number of requests that this call has processed. Without this statement, a call
    /// that consumes input is one request.
    pub fn count(&mut self, requests: u64) {
        self.requests = Some(requests);
    }

    /// Returns whether the peer has ended its data, so that no more input follows.
    pub fn is_end(&self) -> bool {
        self.is_end
    }

    /// Closes the connection after the output has been sent.
    pub fn close(&mut self) {
        self.is_closed = true;
    }
}

/// Parameters of a server.
#[derive(Debug, Clone)]
pub struct Config {
    /// Division of the work between the threads. The default is [`Pattern::ThreadPerCore`].
    pub pattern: Pattern,
    /// Mechanism by which events are detected. The default is [`Mechanism::Edge`].
    pub mechanism: Mechanism,
    /// Number of all threads, from 1; from 2 for [`Pattern::HalfSyncHalfAsync`]. `None`, the
    /// default, is a thread that processes events for each CPU that this process may use, and for
    /// [`Pattern::HalfSyncHalfAsync`] one more, which detects them.
    pub threads: Option<usize>,
    /// Largest number of connections, from 1. Further ones wait in the queue of the system. The
    /// default is 10,000.
    pub connections: usize,
    /// Largest number of received bytes that a handler may leave unconsumed, from 1. A connection
    /// that exceeds it is closed. The default is 1 MiB.
    pub buffered_bytes: usize,
    /// Time after which a connection without progress is closed; `None` for no limit. Progress is
    /// consumed input, sent output, or output that the peer has received: neither a request that
    /// arrives byte by byte, nor a peer that reads nothing, is progress. The default is one minute.
    ///
    /// The server finds such connections by sweeps, whose period is a quarter of the shorter of
    /// the two limits, and from 1 ms to 1 s. A connection whose socket is ready at a sweep has
    /// one more turn, because the server may be late and not the peer, and is closed by the first
    /// sweep after that turn. So a limit is exceeded by up to two periods, and by the time in which
    /// no thread was free for the sweeps and the turn.
    pub idle_timeout: Option<Duration>,
    /// Time after which a connection with an incomplete request is closed, however many bytes of it
    /// arrive; `None`, the default, for the limit of [`Config::idle_timeout`]. The time begins with
    /// the first byte that a handler leaves unconsumed. It is extended while output is sent, and by
    /// the sweeps of [`Config::idle_timeout`].
    pub request_timeout: Option<Duration>,
    /// Largest number of connections that are accepted in a second; `None`, the default, for no
    /// limit. Connections that came in the last tenth of a second may be accepted at once. Further
    /// ones wait in the queue of the system.
    pub accept_rate: Option<NonZeroU32>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            pattern: Pattern::default(),
            mechanism: Mechanism::default(),
            threads: None,
            connections: 10_000,
            buffered_bytes: 1 << 20,
            idle_timeout: Some(Duration::from_secs(60)),
            request_timeout: None,
            accept_rate: None,
        }
    }
}

/// Reason why a server cannot be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The number of threads is too small for the pattern.
    #[error(
        "a server with {threads} threads cannot use {pattern:?}: set `threads` to {min} or more"
    )]
    TooFewThreads {
        /// Requested number.
        threads: usize,
        /// Requested pattern.
        pattern: Pattern,
        /// Smallest number for this pattern.
        min: usize,
    },
    /// A limit is 0.
    #[error("a server with `{name}` of 0 could serve nothing: set it to more than 0")]
    ZeroLimit {
        /// Name of the limit, a field of [`Config`].
        name: &'static str,
    },
    /// The system refuses an interest set, a thread or the listener.
    #[error(
        "cannot start or switch the server ({0}): lower its number of threads, or raise the \
             limits of the process"
    )]
    System(#[from] io::Error),
    /// The system does not permit [`Mechanism::IoUring`], or lacks a feature that it needs.
    #[error(
        "a server cannot use io_uring here ({0}): choose another mechanism, or call `corebeat \
             doctor`, which reports the reason and how to permit it"
    )]
    IoUring(#[source] io::Error),
}

/// Checks whether the system permits a mechanism to this process. Seccomp filters, the setting
/// `kernel.io_uring_disabled` and old kernels forbid [`Mechanism::IoUring`].
///
/// # Errors
///
/// [`Error::IoUring`]; or [`Error::System`] if the system refuses an interest set, because it lacks
/// descriptors or memory.
pub fn check_mechanism(mechanism: Mechanism) -> Result<(), Error> {
    regime::notify(Pattern::default(), mechanism).map(drop)
}

/// Numbers of a server since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Connections that are open now.
    pub connections: u64,
    /// Connections that were accepted.
    pub accepted: u64,
    /// Requests that were processed ([`Exchange::count`]).
    pub requests: u64,
    /// Times at which accepting paused: the limit of connections or of their rate was reached, or
    /// the system lacked descriptors or memory.
    pub pauses: u64,
    /// Switches to another variant ([`Control::switch`]).
    pub switches: u64,
    /// Connections that were closed after [`Config::idle_timeout`] or [`Config::request_timeout`].
    pub idle_closed: u64,
    /// Connections that were closed because of [`Config::buffered_bytes`].
    pub too_large: u64,
    /// Panics of handlers, of their destructors, and of their constructor.
    pub panics: u64,
}

/// A running server. Dropping it closes all connections; [`Server::stop`] lets requests in progress
/// finish first. Both wait for the threads of the server, except on one of these threads.
pub struct Server {
    engine: Arc<Engine>,
    /// The process whose threads run the server; `None` after the end.
    process: Option<Process>,
}

impl Server {
    /// Starts a server for a TCP or Unix listener of the standard library. `make` returns the
    /// handler of a new connection.
    ///
    /// # Errors
    ///
    /// A parameter is out of range, or the system refuses an interest set, a thread or the
    /// listener.
    pub fn start<H: Handler>(
        config: Config,
        listener: impl Into<OwnedFd>,
        make: impl Fn() -> H + Send + Sync + 'static,
    ) -> Result<Server, Error> {
        let variant = check(&config)?;
        let make = Box::new(move || Box::new(make()) as Box<dyn Handler>);
        let engine = Arc::new(Engine::new(config, variant, listener.into(), make)?);
        let server = Server { engine, process: Some(Process::current()) };
        server.engine.start_threads(variant.threads)?;
        server.engine.start_accepting()?;
        Ok(server)
    }

    /// Returns the numbers of the server; 0 for each of them in a child of fork.
    pub fn stats(&self) -> Stats {
        // A thread of the parent may have held a lock at the fork.
        let is_own = self.process.is_none_or(Process::is_current);
        if is_own { self.engine.stats() } else { Stats::default() }
    }

    /// Returns a handle that measures the load of the server, and switches its variant.
    pub fn control(&self) -> Control {
        Control { engine: self.engine.clone(), last: Last::default(), process: self.process }
    }

    /// Stops accepting, lets requests in progress finish for at most `grace`, closes the
    /// connections, and waits for the threads. A request is in progress while a part of it has
    /// arrived or a part of its response has not been sent. Waits for handlers that run, also after
    /// `grace`.
    ///
    /// A handler may stop or drop its own server, for instance at a request to shut down. On a
    /// thread of the server, which also runs the constructor and the destructor of a handler, the
    /// call begins the same stop and returns at once. The response of the handler is sent as that
    /// of any request in progress: within `grace`, and without grace as far as the socket accepts
    /// it at once. The threads then end by themselves.
    pub fn stop(mut self, grace: Duration) {
        self.end(grace);
    }

    fn end(&mut self, grace: Duration) {
        // A child of fork has no threads of the server, which may have held its locks.
        if !self.process.take().is_some_and(Process::is_current) {
            return;
        }
        self.engine.drain(grace);
        let threads = self.engine.take_threads();
        // A thread of the server would wait for itself and for the connection that it processes.
        if !threads.iter().any(system::Thread::is_current) {
            threads.into_iter().for_each(system::Thread::join);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Server({:?})", self.stats())
    }
}

/// Measures the load of a server, and switches its variant. The handle does not keep the server
/// running. It has no effect on a server that has ended. In a child of fork, which has no threads
/// of the server, the handle has no effect, reports no activity, and takes no lock of the parent.
pub struct Control {
    engine: Arc<Engine>,
    last: Last,
    /// As that of the server.
    process: Option<Process>,
}

impl Control {
    /// Returns whether this process is no child of fork that has inherited the server, in which a
    /// lock of the server may be held for ever.
    fn is_own(&self) -> bool {
        self.process.is_none_or(Process::is_current)
    }

    /// Returns the activity of the server since the last call; since the start of the server for
    /// the first call. The span of a call after a switch contains a part of the time before it.
    pub fn load(&mut self) -> Load {
        match self.is_own() {
            true => self.engine.load(&mut self.last),
            false => Load { span_ns: 0, variant: self.engine.first(), threads: Vec::new() },
        }
    }

    /// Returns the present variant; in a child of fork, that with which the server started.
    pub fn variant(&self) -> Variant {
        if self.is_own() { self.engine.regime().variant } else { self.engine.first() }
    }

    /// Returns the numbers of the server.
    pub fn stats(&self) -> Stats {
        if self.is_own() { self.engine.stats() } else { Stats::default() }
    }

    /// Returns the numbers that the system has given to the threads of the server. They are valid
    /// until the server has ended.
    pub fn tids(&self) -> Vec<i32> {
        if self.is_own() { self.engine.tids() } else { Vec::new() }
    }

    /// Returns whether the server has ended. It has no threads in a child of fork.
    pub fn is_over(&self) -> bool {
        !self.is_own() || self.engine.is_over()
    }

    /// Switches the server to another variant while it runs. No connection is closed, and no byte
    /// is lost, duplicated or reordered. The call does not wait for handlers that run: the threads
    /// change when their handlers return, and the first free thread moves the connections. A server
    /// that stops does not switch any more.
    ///
    /// # Errors
    ///
    /// The variant has too few threads, or the system refuses an interest set or a thread. The
    /// server then continues as before.
    pub fn switch(&self, variant: Variant) -> Result<(), Error> {
        check_threads(variant)?;
        // A child of fork has no threads of the server. Those of a switch would serve the listener
        // and the connections of the parent.
        if !self.process.is_some_and(Process::is_current) {
            return Ok(());
        }
        self.engine.switch(variant)
    }
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Control({:?})", self.variant())
    }
}

/// Returns the variant of a server with valid parameters.
fn check(config: &Config) -> Result<Variant, Error> {
    let Config { pattern, mechanism, .. } = *config;
    let cpus = || thread::available_parallelism().map_or(1, |cpus| cpus.get());
    let threads = config.threads.unwrap_or_else(|| cpus() + pattern.detectors());
    let variant = Variant { pattern, mechanism, threads };
    check_threads(variant)?;
    let limits = [
        ("connections", config.connections == 0),
        ("buffered_bytes", config.buffered_bytes == 0),
        ("idle_timeout", config.idle_timeout == Some(Duration::ZERO)),
        ("request_timeout", config.request_timeout == Some(Duration::ZERO)),
    ];
    match limits.into_iter().find(|(_, is_zero)| *is_zero) {
        Some((name, _)) => Err(Error::ZeroLimit { name }),
        None => Ok(variant),
    }
}

fn check_threads(Variant { pattern, threads, .. }: Variant) -> Result<(), Error> {
    let min = 1 + pattern.detectors();
    if threads < min {
        return Err(Error::TooFewThreads { threads, pattern, min });
    }
    Ok(())
}
