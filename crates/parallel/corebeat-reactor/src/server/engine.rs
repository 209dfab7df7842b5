//! The common part of all patterns: interest sets, connections, limits and shutdown.

use super::connection::{Connection, End, Outcome};
use super::{Config, Handler, Stats};
use crate::listener::{self, BACKLOG};
use crate::notify::{Event, Interest, LISTENER, Notify};
use crate::pattern::Division;
use crate::table::Table;
use corebeat_sync::{Mutex, lock};
use rustix::net::sockopt::set_tcp_nodelay;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Number of reports that a thread takes at once, except in Leader/Followers.
pub(crate) const BATCH: usize = 256;
/// Number of connections that one report of the listener accepts, before other events are handled.
const ACCEPTS_MAX: usize = 64;
/// Size of the memory into which a thread reads.
const INPUT_BYTES: usize = 64 << 10;
/// Period of sweeps while the server stops.
const DRAIN_PERIOD_MS: u64 = 10;
/// Longest and shortest period of sweeps for idle connections.
const SWEEP_PERIOD_MS: (u64, u64) = (1, 1000);

/// Memory of one thread of a server.
pub(crate) struct Scratch {
    /// Milliseconds since the start of the server, read once for each wait.
    pub(super) now_ms: u64,
    pub(super) input: Box<[u8]>,
    pub(super) output: Vec<u8>,
}

impl Scratch {
    pub(crate) fn new() -> Scratch {
        Scratch { now_ms: 0, input: vec![0; INPUT_BYTES].into(), output: Vec::new() }
    }

    pub(crate) fn read_clock(&mut self, engine: &Engine) {
        self.now_ms = engine.now_ms();
    }
}

/// An interest set with its connections.
struct Set {
    notify: Box<dyn Notify>,
    connections: Mutex<Table<Arc<Connection>>>,
    /// Time of the next sweep, in milliseconds since the start.
    sweep_ms: AtomicU64,
}

/// The state that the threads of a server share.
pub(crate) struct Engine {
    config: Config,
    division: Box<dyn Division>,
    sets: Box<[Set]>,
    /// `None` when the server has stopped accepting.
    listener: Mutex<Option<OwnedFd>>,
    make: Box<dyn Fn() -> Box<dyn Handler> + Send + Sync>,
    begin: Instant,
    next_set: AtomicUsize,
    /// Whether the server does not accept although connections may wait.
    is_paused: AtomicBool,
    is_draining: AtomicBool,
    /// Time at which requests in progress are cut off, in milliseconds since the start.
    end_ms: AtomicU64,
    is_over: AtomicBool,
    open: AtomicUsize,
    accepted: AtomicU64,
    pauses: AtomicU64,
    idle_closed: AtomicU64,
    too_large: AtomicU64,
    panics: AtomicU64,
}

impl Engine {
    pub(super) fn new(
        config: Config,
        division: Box<dyn Division>,
        sets: Vec<Box<dyn Notify>>,
        listener: OwnedFd,
        make: Box<dyn Fn() -> Box<dyn Handler> + Send + Sync>,
    ) -> io::Result<Engine> {
        rustix::io::ioctl_fionbio(&listener, true)?;
        rustix::net::listen(&listener, BACKLOG)?;
        let set =
            |notify| Set { notify, connections: Mutex::default(), sweep_ms: AtomicU64::new(0) };
        Ok(Engine {
            config,
            division,
            sets: sets.into_iter().map(set).collect(),
            listener: Mutex::new(Some(listener)),
            make,
            begin: Instant::now(),
            next_set: AtomicUsize::new(0),
            is_paused: AtomicBool::new(false),
            is_draining: AtomicBool::new(false),
            end_ms: AtomicU64::new(u64::MAX),
            is_over: AtomicBool::new(false),
            open: AtomicUsize::new(0),
            accepted: AtomicU64::new(0),
            pauses: AtomicU64::new(0),
            idle_closed: AtomicU64::new(0),
            too_large: AtomicU64::new(0),
            panics: AtomicU64::new(0),
        })
    }

    /// Begins to accept. Each set must have its thread: no other thread closes its connections.
    pub(super) fn start_accepting(&self) -> io::Result<()> {
        match &*lock(&self.listener) {
            Some(fd) => self.sets[0].notify.add(fd.as_fd(), LISTENER, Interest::READ),
            None => Ok(()),
        }
    }

    /// Runs a thread of the server until the server has ended.
    pub(super) fn run(&self, thread: usize) {
        self.division.run(self, thread);
    }

    fn now_ms(&self) -> u64 {
        self.begin.elapsed().as_millis() as u64
    }

    pub(super) fn stats(&self) -> Stats {
        // Relaxed: the numbers are independent.
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        Stats {
            connections: self.open.load(Ordering::Relaxed) as u64,
            accepted: load(&self.accepted),
            pauses: load(&self.pauses),
            idle_closed: load(&self.idle_closed),
            too_large: load(&self.too_large),
            panics: load(&self.panics),
        }
    }

    // ---- for patterns

    /// Returns whether the server has ended: it has stopped accepting, and no connection is left.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// Waits for at most `max` events of a set. Does the periodic work of the set when it is due.
    pub(crate) fn wait(
        &self,
        set: usize,
        events: &mut Vec<Event>,
        max: usize,
        scratch: &mut Scratch,
    ) {
        let own = &self.sets[set];
        let now_ms = self.now_ms();
        if now_ms >= own.sweep_ms.load(Ordering::Relaxed) {
            scratch.now_ms = now_ms;
            self.sweep(set, scratch);
        }
        events.clear();
        if self.is_over() {
            return;
        }
        // Relaxed: one thread at a time waits at a set.
        let left = own.sweep_ms.load(Ordering::Relaxed).checked_sub(now_ms);
        let time = left.filter(|left| *left < u64::MAX / 2).map(Duration::from_millis);
        if let Err(why) = own.notify.wait(events, max, time) {
            // Only an invalid descriptor causes an error, so that the server would hang.
            panic!("cannot wait for sockets ({why}): do not close descriptors of other owners");
        }
        scratch.read_clock(self);
    }

    /// Handles an event of a set.
    pub(crate) fn handle(&self, set: usize, event: Event, scratch: &mut Scratch) {
        if event.key == LISTENER {
            return self.accept(scratch);
        }
        let connection = lock(&self.sets[set].connections).get(event.key).cloned();
        // A connection that has ended meanwhile has no entry.
        if let Some(connection) = connection {
            connection.note(event.is_final);
            if connection.turn.begin() {
                self.process(set, &connection, scratch);
            }
        }
    }

    // ---- connections

    /// Processes a connection until its turn ends. The caller has the turn.
    fn process(&self, set: usize, connection: &Arc<Connection>, scratch: &mut Scratch) {
        loop {
            // Before the reads, so that an idle connection has received nothing until now.
            let is_draining = self.is_draining();
            let buffered_max = self.config.buffered_bytes;
            // SAFETY: the caller has the turn, until `end` returns true.
            let outcome = unsafe { connection.process(buffered_max, is_draining, scratch) };
            let (interest, is_drained) = match outcome {
                Outcome::Ended(end) => return self.close(set, connection, end),
                Outcome::Waits { is_idle: true, .. } if is_draining => {
                    return self.close(set, connection, End::Regular);
                }
                Outcome::Waits { .. } if self.is_cut_off(scratch) => {
                    return self.close(set, connection, End::Regular);
                }
                Outcome::Waits { interest, is_drained, .. } => (interest, is_drained),
            };
            // Within the turn: afterwards, another thread may close the connection.
            let fd = connection.socket.as_fd();
            let rearmed = self.sets[set].notify.rearm(fd, connection.key, interest, is_drained);
            if rearmed.is_err() {
                return self.close(set, connection, End::Regular);
            }
            if connection.turn.end() {
                return;
            }
        }
    }

    /// Closes a connection. The caller has the turn, which does not end any more.
    fn close(&self, set: usize, connection: &Arc<Connection>, end: End) {
        let own = &self.sets[set];
        // An error means that the connection is in the set no more.
        let _ = own.notify.remove(connection.socket.as_fd(), connection.key);
        let removed = lock(&own.connections).remove(connection.key);
        drop(removed);
        // SAFETY: the caller has the turn.
        if !unsafe { connection.drop_handler() } {
            self.count(&self.panics);
        }
        match end {
            End::Regular => {}
            End::TooLarge => self.count(&self.too_large),
            End::Panic => self.count(&self.panics),
        }
        self.open.fetch_sub(1, Ordering::SeqCst);
        if self.is_paused.load(Ordering::SeqCst) {
            self.resume_accepting();
        }
        self.end_if_done();
    }

    fn count(&self, number: &AtomicU64) {
        // Relaxed: a statistic.
        number.fetch_add(1, Ordering::Relaxed);
    }

    // ---- accepting

    fn accept(&self, scratch: &mut Scratch) {
        let listener = lock(&self.listener);
        let Some(fd) = &*listener else { return };
        for _ in 0..ACCEPTS_MAX {
            if self.open.load(Ordering::SeqCst) >= self.config.connections {
                return self.pause_accepting();
            }
            match listener::accept(fd) {
                Ok(socket) => self.admit(socket, scratch),
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => {
                    let _ = self.sets[0].notify.rearm(fd.as_fd(), LISTENER, Interest::READ, true);
                    return;
                }
                // The system lacks descriptors or memory.
                Err(_) => return self.pause_accepting(),
            }
        }
        // A failure is as unlikely as one of the wait, and has the same cause.
        let _ = self.sets[0].notify.rearm(fd.as_fd(), LISTENER, Interest::READ, false);
    }

    /// Adds an accepted connection to a set. Closes it if the system refuses that.
    fn admit(&self, socket: OwnedFd, scratch: &Scratch) {
        // Fails for a Unix socket.
        let _ = set_tcp_nodelay(&socket, true);
        self.count(&self.accepted);
        self.open.fetch_add(1, Ordering::SeqCst);
        let Ok(handler) = catch_unwind(AssertUnwindSafe(|| (self.make)())) else {
            self.open.fetch_sub(1, Ordering::SeqCst);
            return self.count(&self.panics);
        };
        // Relaxed: any order of the sets balances them.
        let set = &self.sets[self.next_set.fetch_add(1, Ordering::Relaxed) % self.sets.len()];
        let mut connections = lock(&set.connections);
        let mut new = None;
        let key = connections.insert(|key| {
            let connection = Arc::new(Connection::new(key, socket, handler, scratch.now_ms));
            new.insert(connection).clone()
        });
        drop(connections);
        let added = new.map(|new| set.notify.add(new.socket.as_fd(), key, Interest::READ));
        if !matches!(added, Some(Ok(()))) {
            let removed = lock(&set.connections).remove(key);
            drop(removed);
            self.open.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Stops to accept until a connection ends or the pause is over.
    fn pause_accepting(&self) {
        self.count(&self.pauses);
        self.is_paused.store(true, Ordering::SeqCst);
        // The first set has the listener. Its next wait ends with the pause, also if another
        // thread waits there.
        let resume_ms = self.now_ms() + listener::PAUSE.as_millis() as u64;
        self.sets[0].sweep_ms.fetch_min(resume_ms, Ordering::SeqCst);
        self.sets[0].notify.wake();
    }

    fn resume_accepting(&self) {
        if self.is_paused.swap(false, Ordering::SeqCst)
            && let Some(fd) = &*lock(&self.listener)
        {
            let _ = self.sets[0].notify.rearm(fd.as_fd(), LISTENER, Interest::READ, false);
        }
    }

    // ---- periodic work and shutdown

    /// Closes idle connections of a set, resumes accepting, and sets the time of the next sweep.
    fn sweep(&self, set: usize, scratch: &mut Scratch) {
        let own = &self.sets[set];
        let now_ms = scratch.now_ms;
        let idle_ms = self.config.idle_timeout.map(|time| time.as_millis() as u64);
        let next_ms = match idle_ms {
            Some(idle_ms) => now_ms + (idle_ms / 4).clamp(SWEEP_PERIOD_MS.0, SWEEP_PERIOD_MS.1),
            None => u64::MAX,
        };
        // Before the two flags are read: a thread that sets one of them lowers the time afterwards.
        own.sweep_ms.store(next_ms, Ordering::SeqCst);
        self.resume_accepting();
        if self.is_draining() {
            own.sweep_ms.fetch_min(now_ms + DRAIN_PERIOD_MS, Ordering::SeqCst);
            self.stop_accepting();
        }
        let is_due = |connection: &&Arc<Connection>| {
            let idle = now_ms.saturating_sub(connection.progress_ms.load(Ordering::Relaxed));
            self.is_draining() || idle_ms.is_some_and(|idle_ms| idle >= idle_ms.max(1))
        };
        let due: Vec<_> = lock(&own.connections).iter().filter(is_due).cloned().collect();
        for connection in due {
            // A connection whose turn another thread has makes progress.
            if !connection.turn.try_begin() {
                continue;
            }
            if self.is_draining() {
                // Closes the connection if no request is in progress.
                self.process(set, &connection, scratch);
            } else {
                self.count(&self.idle_closed);
                self.close(set, &connection, End::Regular);
            }
        }
        self.end_if_done();
    }

    fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::SeqCst)
    }

    /// Returns whether the time of requests in progress is over.
    fn is_cut_off(&self, scratch: &Scratch) -> bool {
        scratch.now_ms >= self.end_ms.load(Ordering::SeqCst)
    }

    fn stop_accepting(&self) {
        let listener = lock(&self.listener).take();
        if let Some(listener) = listener {
            let _ = self.sets[0].notify.remove(listener.as_fd(), LISTENER);
        }
    }

    /// Ends the server when its requests in progress are finished, or after `grace`.
    pub(super) fn drain(&self, grace: Duration) {
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        self.end_ms.store(self.now_ms().saturating_add(grace_ms), Ordering::SeqCst);
        self.is_draining.store(true, Ordering::SeqCst);
        for set in &self.sets {
            set.sweep_ms.store(0, Ordering::SeqCst);
            set.notify.wake();
        }
    }

    /// Ends the threads if the server is draining and no connection is left.
    fn end_if_done(&self) {
        let has_stopped = || lock(&self.listener).is_none();
        // The number is read last: it grows until accepting has stopped.
        if self.is_draining()
            && has_stopped()
            && self.open.load(Ordering::SeqCst) == 0
            && !self.is_over.swap(true, Ordering::SeqCst)
        {
            self.sets.iter().for_each(|set| set.notify.wake());
            self.division.wake();
        }
    }
}
