//! Servers that run a handler for each connection.

mod connection;
mod engine;

pub(crate) use engine::{BATCH, Engine, Scratch};

use crate::notify::{Epoll, Notify, Poll, Trigger};
use crate::pattern::{Division, HalfSync, LeaderFollowers, PerCore};
use corebeat_sync::fork::Uninherited;
use corebeat_sync::quiet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
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

    /// Returns whether the peer has ended its data, so that no more input follows.
    pub fn is_end(&self) -> bool {
        self.is_end
    }

    /// Closes the connection after the output has been sent.
    pub fn close(&mut self) {
        self.is_closed = true;
    }
}

/// Division of the work between the threads of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Pattern {
    /// One thread detects events, and the others process them. Needs two threads.
    HalfSyncHalfAsync,
    /// The threads take turns at detecting one event, which they process.
    LeaderFollowers,
    /// Each thread detects and processes the events of its own connections.
    #[default]
    ThreadPerCore,
}

impl Pattern {
    /// All patterns.
    pub const ALL: [Pattern; 3] =
        [Pattern::HalfSyncHalfAsync, Pattern::LeaderFollowers, Pattern::ThreadPerCore];

    /// Returns the number of threads that only detect events.
    fn detectors(self) -> usize {
        usize::from(self == Pattern::HalfSyncHalfAsync)
    }
}

/// Mechanism by which a server detects events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Mechanism {
    /// Edge-triggered epoll.
    #[default]
    Edge,
    /// Level-triggered epoll, one-shot, which a system call re-arms.
    OneShot,
    /// `poll`, whose interest set is in the memory of the program.
    Poll,
}

impl Mechanism {
    /// All mechanisms.
    pub const ALL: [Mechanism; 3] = [Mechanism::Edge, Mechanism::OneShot, Mechanism::Poll];
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
    /// consumed input or sent output: neither a request that arrives byte by byte, nor a peer that
    /// reads nothing, is progress. The default is one minute.
    pub idle_timeout: Option<Duration>,
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
        "cannot start the server ({0}): lower its number of threads, or raise the limits of \
             the process"
    )]
    System(#[from] io::Error),
}

/// Numbers of a server since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Connections that are open now.
    pub connections: u64,
    /// Connections that were accepted.
    pub accepted: u64,
    /// Times at which accepting paused: the limit of connections was reached, or the system lacked
    /// descriptors or memory.
    pub pauses: u64,
    /// Connections that were closed after [`Config::idle_timeout`].
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
    threads: Option<Uninherited<Vec<JoinHandle<()>>>>,
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
        let threads = check(&config)?;
        let division: Box<dyn Division> = match config.pattern {
            Pattern::HalfSyncHalfAsync => Box::new(HalfSync::default()),
            Pattern::LeaderFollowers => Box::new(LeaderFollowers::new()),
            Pattern::ThreadPerCore => Box::new(PerCore),
        };
        let sets = (0..division.sets(threads)).map(|_| notify(config.mechanism));
        let sets = sets.collect::<io::Result<_>>()?;
        let make = Box::new(move || Box::new(make()) as Box<dyn Handler>);
        let engine = Arc::new(Engine::new(config, division, sets, listener.into(), make)?);
        let mut server = Server { engine, threads: None };
        let mut started = Vec::new();
        for thread in 0..threads {
            let engine = server.engine.clone();
            match quiet::spawn(&format!("reactor {thread}"), move || engine.run(thread)) {
                Ok(handle) => started.push(handle),
                Err(why) => {
                    server.threads = Some(Uninherited::new(started));
                    return Err(why.into());
                }
            }
        }
        server.threads = Some(Uninherited::new(started));
        server.engine.start_accepting()?;
        Ok(server)
    }

    /// Returns the numbers of the server.
    pub fn stats(&self) -> Stats {
        self.engine.stats()
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
        // A child of fork has no threads of the server.
        let Some(threads) = self.threads.take().and_then(Uninherited::into_inner) else { return };
        self.engine.drain(grace);
        // A thread of the server would wait for itself and for the connection that it processes.
        let own = thread::current().id();
        if threads.iter().all(|thread| thread.thread().id() != own) {
            threads.into_iter().for_each(|thread| drop(thread.join()));
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

/// Returns the number of threads of a server with valid parameters.
fn check(config: &Config) -> Result<usize, Error> {
    let pattern = config.pattern;
    let min = 1 + pattern.detectors();
    let cpus = || thread::available_parallelism().map_or(1, |cpus| cpus.get());
    let threads = config.threads.unwrap_or_else(|| cpus() + pattern.detectors());
    if threads < min {
        return Err(Error::TooFewThreads { threads, pattern, min });
    }
    let limits = [
        ("connections", config.connections == 0),
        ("buffered_bytes", config.buffered_bytes == 0),
        ("idle_timeout", config.idle_timeout == Some(Duration::ZERO)),
    ];
    match limits.into_iter().find(|(_, is_zero)| *is_zero) {
        Some((name, _)) => Err(Error::ZeroLimit { name }),
        None => Ok(threads),
    }
}

fn notify(mechanism: Mechanism) -> io::Result<Box<dyn Notify>> {
    Ok(match mechanism {
        Mechanism::Edge => Box::new(Epoll::new(Trigger::Edge)?),
        Mechanism::OneShot => Box::new(Epoll::new(Trigger::OneShot)?),
        Mechanism::Poll => Box::new(Poll::new()?),
    })
}
