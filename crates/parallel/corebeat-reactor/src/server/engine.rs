//! The common part of all patterns: regimes, connections, limits and shutdown.
//!
//! Locks are taken in the order: threads, listener, current regime.

use super::connection::{Connection, End, Outcome, Place};
use super::meter::{self, Meter};
use super::regime::{Regime, Set};
use super::{Config, Error, Handler, Load, Stats, ThreadLoad, Variant};
use crate::listener::{self, BACKLOG};
use crate::notify::{Event, Interest, LISTENER};
#[cfg(all(test, not(loom)))]
use crate::simulation::{self, Fault};
use crate::system;
use corebeat_probe::block;
use corebeat_sync::{Mutex, lock};
use rustix::net::sockopt::set_tcp_nodelay;
use rustix::thread::set_name;
use std::ffi::CStr;
use std::io;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Number of reports that a thread takes at once, except in Leader/Followers.
pub(crate) const BATCH: usize = 256;
/// Number of connections that one report of the listener accepts, before other events are handled.
const ACCEPTS_MAX: usize = 64;
/// Name of a thread in the system while the present variant has fewer threads.
const IDLE: &CStr = c"reactor idle";
/// Size of the memory into which a thread reads.
const INPUT_BYTES: usize = 64 << 10;
/// Time after which a connection tries again to send while the system lacks memory.
const SHORTAGE_MS: u64 = 10;
/// Period of sweeps while the server stops.
const DRAIN_PERIOD_MS: u64 = 10;
/// Longest and shortest period of sweeps for idle connections.
const SWEEP_PERIOD_MS: (u64, u64) = (1, 1000);
/// Time within which the connections of a rate may be accepted at once.
const BURST_NS: u64 = 100_000_000;
/// Longest wait for events that found events at once. A wait that suspends its thread takes longer.
const PROMPT_NS_MAX: u64 = 10_000;

/// Memory of one thread of a server.
pub(crate) struct Scratch {
    /// Milliseconds since the start of the server, read once for each wait.
    pub(super) now_ms: u64,
    /// Whether the connection in process has made progress.
    pub(super) has_progress: bool,
    pub(super) input: Box<[u8]>,
    pub(super) output: Vec<u8>,
    pub(crate) meter: Arc<Meter>,
}

impl Scratch {
    fn new(meter: Arc<Meter>) -> Scratch {
        let input = vec![0; INPUT_BYTES].into();
        Scratch { now_ms: 0, has_progress: false, input, output: Vec::new(), meter }
    }

    pub(crate) fn read_clock(&mut self, engine: &Engine) {
        self.now_ms = engine.now_ms();
    }
}

/// The listener, and the set that reports it.
struct Listening {
    fd: OwnedFd,
    set: Arc<Set>,
    /// Time from which the next connection may be accepted, in nanoseconds since the start.
    due_ns: u64,
}

impl Listening {
    /// Notes that a connection was accepted. Connections are due at the times of an even rate;
    /// those of the last [`BURST_NS`] may be accepted late, and then at once.
    fn note_accept(&mut self, rate_max: Option<NonZeroU32>, now_ns: u64) {
        if let Some(rate) = rate_max {
            let period_ns = 1_000_000_000 / u64::from(rate.get());
            self.due_ns = self.due_ns.max(now_ns.saturating_sub(BURST_NS)) + period_ns;
        }
    }

    /// Lets the listener be reported again, as [`Notify::rearm`](crate::notify::Notify::rearm).
    fn rearm(&self, is_drained: bool) {
        // A failure is as unlikely as one of the wait, and has the same cause.
        let _ = self.set.notify.rearm(self.fd.as_fd(), LISTENER, Interest::READ, is_drained);
    }
}

/// The present regime.
struct Current {
    regime: Arc<Regime>,
    /// The threads that have entered it. Their positions are their numbers there.
    entered: Vec<Arc<Meter>>,
}

/// The threads of a server, which run in the present regime or wait for one with more threads.
#[derive(Default)]
struct Threads {
    handles: Vec<system::Thread>,
    meters: Vec<Arc<Meter>>,
}

/// The state that the threads of a server share.
pub(crate) struct Engine {
    config: Config,
    /// Variant with which the server started.
    first: Variant,
    /// Locked while the server switches.
    threads: Mutex<Threads>,
    current: system::Mutex<Current>,
    /// Signalled when the current regime changes, and when the server has ended.
    changed: system::Condvar,
    /// Sets of earlier regimes whose connections have not been moved.
    retiring: Mutex<Vec<Arc<Set>>>,
    /// `None` when the server has stopped accepting.
    listening: Mutex<Option<Listening>>,
    make: Box<dyn Fn() -> Box<dyn Handler> + Send + Sync>,
    begin: Instant,
    /// Whether the server does not accept although connections may wait.
    is_paused: AtomicBool,
    is_draining: AtomicBool,
    /// Time at which requests in progress are cut off, in milliseconds since the start.
    end_ms: AtomicU64,
    is_over: AtomicBool,
    open: AtomicUsize,
    accepted: AtomicU64,
    pauses: AtomicU64,
    switches: AtomicU64,
    idle_closed: AtomicU64,
    too_large: AtomicU64,
    panics: AtomicU64,
}

impl Engine {
    pub(super) fn new(
        config: Config,
        variant: Variant,
        fd: OwnedFd,
        make: Box<dyn Fn() -> Box<dyn Handler> + Send + Sync>,
    ) -> Result<Engine, Error> {
        rustix::io::ioctl_fionbio(&fd, true).map_err(io::Error::from)?;
        rustix::net::listen(&fd, BACKLOG).map_err(io::Error::from)?;
        let regime = Arc::new(Regime::new(variant)?);
        let set = regime.sets[0].clone();
        Ok(Engine {
            config,
            first: variant,
            threads: Mutex::default(),
            current: system::Mutex::new(Current { regime, entered: Vec::new() }),
            changed: system::Condvar::new(),
            retiring: Mutex::default(),
            listening: Mutex::new(Some(Listening { fd, set, due_ns: 0 })),
            make,
            begin: Instant::now(),
            is_paused: AtomicBool::new(false),
            is_draining: AtomicBool::new(false),
            end_ms: AtomicU64::new(u64::MAX),
            is_over: AtomicBool::new(false),
            open: AtomicUsize::new(0),
            accepted: AtomicU64::new(0),
            pauses: AtomicU64::new(0),
            switches: AtomicU64::new(0),
            idle_closed: AtomicU64::new(0),
            too_large: AtomicU64::new(0),
            panics: AtomicU64::new(0),
        })
    }

    /// Begins to accept. Each set must have its thread: no other thread closes its connections.
    pub(super) fn start_accepting(&self) -> io::Result<()> {
        match &*lock(&self.listening) {
            Some(own) => own.set.notify.add(own.fd.as_fd(), LISTENER, Interest::READ),
            None => Ok(()),
        }
    }

    /// Starts threads until there are `count`.
    pub(super) fn start_threads(self: &Arc<Self>, count: usize) -> io::Result<()> {
        self.start_missing(&mut lock(&self.threads), count)
    }

    fn start_missing(self: &Arc<Self>, threads: &mut Threads, count: usize) -> io::Result<()> {
        for thread in threads.handles.len()..count {
            let (engine, meter) = (self.clone(), Arc::new(Meter::default()));
            let of_thread = meter.clone();
            let handle =
                system::spawn(&format!("reactor {thread}"), move || engine.run(of_thread))?;
            threads.handles.push(handle);
            threads.meters.push(meter);
        }
        Ok(())
    }

    pub(super) fn tids(&self) -> Vec<i32> {
        lock(&self.threads).meters.iter().filter_map(|meter| meter.tid()).collect()
    }

    /// Returns the threads, for the end of the server.
    pub(super) fn take_threads(&self) -> Vec<system::Thread> {
        std::mem::take(&mut lock(&self.threads).handles)
    }

    /// Runs a thread of the server until the server has ended.
    fn run(&self, meter: Arc<Meter>) {
        meter.begin();
        let mut scratch = Scratch::new(meter);
        while let Some((regime, thread)) = self.enter_regime(&scratch.meter) {
            // For people who look at the threads. It cannot fail for names of this length.
            let _ = set_name(regime.division.role(thread));
            regime.division.run(self, &regime, thread, &mut scratch);
            let _ = set_name(IDLE);
        }
    }

    fn now_ns(&self) -> u64 {
        system::now(self.begin).as_nanos() as u64
    }

    fn now_ms(&self) -> u64 {
        self.now_ns() / 1_000_000
    }

    pub(super) fn stats(&self) -> Stats {
        // Relaxed: the numbers are independent.
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        Stats {
            connections: self.open.load(Ordering::Relaxed) as u64,
            accepted: load(&self.accepted),
            requests: lock(&self.threads).meters.iter().map(|meter| meter.requests()).sum(),
            pauses: load(&self.pauses),
            switches: load(&self.switches),
            idle_closed: load(&self.idle_closed),
            too_large: load(&self.too_large),
            panics: load(&self.panics),
        }
    }

    // ---- regimes

    pub(super) fn first(&self) -> Variant {
        self.first
    }

    pub(super) fn regime(&self) -> Arc<Regime> {
        system::lock(&self.current).regime.clone()
    }

    /// Waits until the calling thread has a number in the present regime. Returns `None` if the
    /// server has ended.
    fn enter_regime(&self, meter: &Arc<Meter>) -> Option<(Arc<Regime>, usize)> {
        loop {
            self.move_connections();
            let mut current = system::lock(&self.current);
            if self.is_over() {
                return None;
            }
            if !lock(&self.retiring).is_empty() {
                continue;
            }
            let thread = current.entered.len();
            if thread < current.regime.variant.threads {
                current.entered.push(meter.clone());
                return Some((current.regime.clone(), thread));
            }
            drop(self.changed.wait(current));
        }
    }

    /// Switches to another variant. The connections, and requests in progress, continue.
    pub(super) fn switch(self: &Arc<Self>, variant: Variant) -> Result<(), Error> {
        let mut threads = lock(&self.threads);
        if self.is_draining() || self.regime().variant == variant {
            return Ok(());
        }
        let new = Arc::new(Regime::new(variant)?);
        // Before the switch: a set without a thread would not be served. Until then, the new
        // threads find no number.
        self.start_missing(&mut threads, variant.threads)?;
        if let Some(own) = &mut *lock(&self.listening) {
            new.sets[0].notify.add(own.fd.as_fd(), LISTENER, Interest::READ)?;
            let old = std::mem::replace(&mut own.set, new.sets[0].clone());
            // An error means that the listener is in the set no more.
            let _ = old.notify.release(own.fd.as_fd(), LISTENER);
        }
        let mut current = system::lock(&self.current);
        if self.is_over() {
            return Ok(());
        }
        let old = std::mem::replace(&mut current.regime, new);
        current.entered.clear();
        // Before a thread leaves the old regime, and with it enters the new one.
        lock(&self.retiring).extend(old.sets.iter().cloned());
        drop(current);
        self.count(&self.switches);
        old.end();
        self.changed.notify_all();
        Ok(())
    }

    /// Moves the connections of earlier regimes to the present one. Each thread that enters a
    /// regime takes part, so that one free thread suffices.
    fn move_connections(&self) {
        loop {
            let Some(set) = lock(&self.retiring).pop() else { return };
            // An error means that the system lacks memory: the set keeps the listener open until
            // it is dropped.
            let _ = set.notify.settle();
            for connection in set.members.retire() {
                // If another thread has the turn, the mark lets that thread move the connection.
                if connection.turn.begin() {
                    self.place(&connection);
                }
            }
        }
    }

    /// Lets a set of the present regime report a connection, and ends its turn. Runs no handler: a
    /// long one would delay the connections that wait to be moved or accepted. The caller has the
    /// turn.
    fn place(&self, connection: &Arc<Connection>) {
        loop {
            // SAFETY: the caller has the turn.
            let interest = unsafe { connection.interest() };
            // Not drained: the set reports the connection if it is ready.
            if self.await_event(connection, interest, false).is_err() {
                return self.close(connection, End::Regular);
            }
            if connection.turn.end() {
                return;
            }
        }
    }

    /// Adds a connection to a set of the present regime. The caller has the turn.
    fn enter(&self, connection: &Arc<Connection>, interest: Interest) -> io::Result<()> {
        loop {
            let set = self.regime().next_set().clone();
            // A set that has retired has a successor in the present regime.
            if let Some(key) = set.members.insert(connection.clone()) {
                // SAFETY: the caller has the turn.
                unsafe { connection.set_place(Place { set: set.clone(), key }) };
                connection.forget_final();
                return set.notify.add(connection.socket.as_fd(), key, interest);
            }
        }
    }

    /// Returns the activity of the threads of the present regime since `last`, which maps threads
    /// to their numbers at the last call.
    pub(super) fn load(&self, last: &mut Last) -> Load {
        let (variant, meters) = {
            let current = system::lock(&self.current);
            (current.regime.variant, current.entered.clone())
        };
        let now_ns = self.now_ns();
        let span_ns = now_ns - std::mem::replace(&mut last.now_ns, now_ns);
        let all = lock(&self.threads).meters.clone();
        last.threads.resize(all.len(), ThreadLoad::default());
        let mut loads = vec![ThreadLoad::default(); meters.len()];
        for (meter, old) in all.iter().zip(&mut last.threads) {
            let new = meter.read();
            let of_span = meter::since(&new, &std::mem::replace(old, new));
            if let Some(at) = meters.iter().position(|entered| Arc::ptr_eq(entered, meter)) {
                loads[at] = of_span;
            }
        }
        Load { span_ns, variant, threads: loads }
    }

    // ---- for patterns

    /// Returns whether the server has ended: it has stopped accepting, and no connection is left.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// Waits for at most `max` events of a set. Does the periodic work of the set when it is due.
    pub(crate) fn wait(
        &self,
        regime: &Regime,
        set: &Set,
        events: &mut Vec<Event>,
        max: usize,
        scratch: &mut Scratch,
    ) {
        let mut begin_ns = self.now_ns();
        let now_ms = begin_ns / 1_000_000;
        if now_ms >= set.sweep_ms.load(Ordering::Relaxed) {
            scratch.now_ms = now_ms;
            self.sweep(set, scratch);
            begin_ns = self.now_ns();
        }
        events.clear();
        if regime.is_over() {
            return;
        }
        // Relaxed: one thread at a time waits at a set.
        let left = set.sweep_ms.load(Ordering::Relaxed).checked_sub(now_ms);
        let time = left.filter(|left| *left < u64::MAX / 2).map(Duration::from_millis);
        if let Err(why) = block!("sense", { set.notify.wait(events, max, time) }) {
            // Only an invalid descriptor causes an error, so that the server would hang.
            panic!("cannot wait for sockets ({why}): do not close descriptors of other owners");
        }
        let now_ns = self.now_ns();
        scratch.now_ms = now_ns / 1_000_000;
        // The end of the time, or another thread, ended the wait.
        if events.is_empty() {
            return;
        }
        scratch.meter.waits.add(1);
        scratch.meter.events.add(events.len() as u64);
        if now_ns - begin_ns <= PROMPT_NS_MAX {
            scratch.meter.serial_ns.add(now_ns - begin_ns);
        }
    }

    /// Handles an event of a set.
    pub(crate) fn handle(&self, set: &Set, event: Event, scratch: &mut Scratch) {
        if event.key == LISTENER {
            return self.accept(scratch);
        }
        // A connection that has ended or moved meanwhile has no entry. A set reports what is ready
        // when a connection enters it.
        if let Some(connection) = set.members.get(event.key) {
            connection.note(event.is_final);
            if connection.turn.begin() {
                block!("turn", { self.process(&connection, scratch) });
            }
        }
    }

    // ---- connections

    /// Processes a connection until its turn ends. The caller has the turn.
    fn process(&self, connection: &Arc<Connection>, scratch: &mut Scratch) {
        #[cfg(all(test, not(loom)))]
        let Some(_occupied) = simulation::occupy(&connection.socket) else { return };
        loop {
            if self.close_if_late(connection, scratch) {
                return;
            }
            if connection.is_starved() {
                connection.set_starved(false);
            }
            // Before the reads, so that an idle connection has received nothing until now.
            let is_draining = self.is_draining();
            let buffered_max = self.config.buffered_bytes;
            // SAFETY: the caller has the turn, until `end` returns true.
            let outcome = unsafe { connection.process(buffered_max, is_draining, scratch) };
            if std::mem::take(&mut scratch.has_progress) {
                // The handler may have taken longer than the idle time.
                scratch.read_clock(self);
                connection.set_progress(scratch.now_ms);
            }
            let awaited = match outcome {
                Outcome::Ended(end) => return self.close(connection, end),
                Outcome::Waits { is_idle: true, .. } if is_draining => {
                    return self.close(connection, End::Regular);
                }
                _ if self.is_cut_off(scratch) => return self.close(connection, End::Regular),
                // Within the turn: afterwards, another thread may close the connection.
                Outcome::Waits { interest, is_drained, .. } => {
                    self.await_event(connection, interest, is_drained)
                }
                Outcome::LacksMemory => self.await_memory(connection, scratch),
            };
            if awaited.is_err() {
                return self.close(connection, End::Regular);
            }
            if connection.turn.end() {
                return;
            }
        }
    }

    /// Lets the set of a connection report it, or, if the set has retired, a set of the present
    /// regime. The caller has the turn.
    fn await_event(
        &self,
        connection: &Arc<Connection>,
        interest: Interest,
        is_drained: bool,
    ) -> io::Result<()> {
        let fd = connection.socket.as_fd();
        // SAFETY: the caller has the turn.
        let place = unsafe { connection.place() };
        match place {
            Some(place) if !place.set.members.is_retired() => {
                let notify = &place.set.notify;
                block!("rearm", { notify.rearm(fd, place.key, interest, is_drained) })
            }
            Some(place) => {
                // An error means that the connection is in the set no more.
                let _ = place.set.notify.remove(fd, place.key);
                self.enter(connection, interest)
            }
            None => self.enter(connection, interest),
        }
    }

    /// Leaves a connection whose output finds no memory to the next sweep of its set: its socket
    /// has room, so that each report would come at once. The caller has the turn.
    fn await_memory(&self, connection: &Arc<Connection>, scratch: &mut Scratch) -> io::Result<()> {
        #[cfg(all(test, not(loom)))]
        if simulation::has(Fault::BusyRetry) {
            return self.await_event(connection, Interest::WRITE, false);
        }
        // SAFETY: the caller has the turn.
        match unsafe { connection.place() } {
            Some(place) if !place.set.members.is_retired() => {
                scratch.read_clock(self);
                // Before the time: a sweep sets its next time, and reads the flags afterwards.
                connection.set_starved(true);
                place.set.sweep_ms.fetch_min(scratch.now_ms + SHORTAGE_MS, Ordering::SeqCst);
                // Another thread may wait at the set.
                place.set.notify.wake();
                Ok(())
            }
            // The connection leaves its set, and the new one reports it.
            _ => self.await_event(connection, Interest::WRITE, false),
        }
    }

    /// Closes a connection. The caller has the turn, which does not end any more.
    fn close(&self, connection: &Arc<Connection>, end: End) {
        // SAFETY: the caller has the turn.
        if let Some(place) = unsafe { connection.place() } {
            // An error means that the connection is in the set no more.
            let _ = place.set.notify.remove(connection.socket.as_fd(), place.key);
            place.set.members.remove(place.key);
        }
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

    fn accept(&self, scratch: &Scratch) {
        for _ in 0..ACCEPTS_MAX {
            let mut listening = lock(&self.listening);
            let Some(own) = &mut *listening else { return };
            let now_ns = self.now_ns();
            let shortage_ms = now_ns / 1_000_000 + listener::PAUSE.as_millis() as u64;
            if self.open.load(Ordering::SeqCst) >= self.config.connections {
                return self.pause_accepting(&own.set, shortage_ms);
            }
            if own.due_ns > now_ns {
                return self.pause_accepting(&own.set, own.due_ns.div_ceil(1_000_000));
            }
            match system::accept(&own.fd) {
                Ok(socket) => {
                    own.note_accept(self.config.accept_rate, now_ns);
                    // Under the lock: the number grows until accepting has stopped.
                    self.open.fetch_add(1, Ordering::SeqCst);
                    drop(listening);
                    self.admit(socket, scratch);
                }
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => return own.rearm(true),
                // The system lacks descriptors or memory.
                Err(_) => return self.pause_accepting(&own.set, shortage_ms),
            }
        }
        if let Some(own) = &*lock(&self.listening) {
            own.rearm(false);
        }
    }

    /// Adds an accepted connection to a set. Closes it if the system refuses that.
    fn admit(&self, socket: OwnedFd, scratch: &Scratch) {
        // Fails for a Unix socket.
        let _ = set_tcp_nodelay(&socket, true);
        self.count(&self.accepted);
        let Ok(handler) = catch_unwind(AssertUnwindSafe(|| (self.make)())) else {
            self.open.fetch_sub(1, Ordering::SeqCst);
            return self.count(&self.panics);
        };
        let connection = Arc::new(Connection::new(socket, handler, scratch.now_ms));
        connection.turn.begin();
        self.place(&connection);
    }

    /// Stops to accept until a connection ends or the pause is over. `set` has the listener.
    fn pause_accepting(&self, set: &Set, resume_ms: u64) {
        self.count(&self.pauses);
        self.is_paused.store(true, Ordering::SeqCst);
        // The next wait of the set ends with the pause, also if another thread waits there. A set
        // that takes over the listener reports it, which ends the pause.
        set.sweep_ms.fetch_min(resume_ms, Ordering::SeqCst);
        set.notify.wake();
    }

    fn resume_accepting(&self) {
        if self.is_paused.swap(false, Ordering::SeqCst)
            && let Some(own) = &*lock(&self.listening)
        {
            own.rearm(false);
        }
    }

    // ---- periodic work and shutdown

    /// Closes idle connections of a set, sends output that found no memory, resumes accepting, and
    /// sets the time of the next sweep.
    fn sweep(&self, own: &Set, scratch: &mut Scratch) {
        let now_ms = scratch.now_ms;
        let (idle_ms, request_ms) = self.limits_ms();
        let next_ms = match idle_ms.min(request_ms) {
            u64::MAX => u64::MAX,
            limit_ms => now_ms + (limit_ms / 4).clamp(SWEEP_PERIOD_MS.0, SWEEP_PERIOD_MS.1),
        };
        // Before the two flags are read: a thread that sets one of them lowers the time afterwards.
        own.sweep_ms.store(next_ms, Ordering::SeqCst);
        self.resume_accepting();
        if self.is_draining() {
            own.sweep_ms.fetch_min(now_ms + DRAIN_PERIOD_MS, Ordering::SeqCst);
            self.stop_accepting();
        }
        let is_due = |connection: &&Arc<Connection>| {
            let is_late = connection.is_late(now_ms, idle_ms, request_ms);
            self.is_draining() || is_late || connection.is_starved()
        };
        for connection in own.members.filter(is_due) {
            // If another thread has the turn, the mark lets that thread do what follows.
            connection.set_due();
            if !connection.turn.begin() {
                continue;
            }
            if self.close_if_late(&connection, scratch) {
                continue;
            }
            // Draining closes a connection without a request in progress. An event that came
            // meanwhile is left to this turn.
            let is_processed = self.is_draining() || connection.is_starved();
            if is_processed || !connection.turn.end() {
                self.process(&connection, scratch);
            }
        }
        self.end_if_done();
    }

    /// Limits of the time without progress and of that of an incomplete request, in milliseconds.
    fn limits_ms(&self) -> (u64, u64) {
        let ms = |time: Duration| (time.as_millis() as u64).max(1);
        let Config { idle_timeout, request_timeout, .. } = &self.config;
        (idle_timeout.map_or(u64::MAX, ms), request_timeout.map_or(u64::MAX, ms))
    }

    /// Closes a connection that a sweep has found late, unless it is spared. Another thread may
    /// have processed it since. Returns whether it is closed. The caller has the turn.
    fn close_if_late(&self, connection: &Arc<Connection>, scratch: &mut Scratch) -> bool {
        if !connection.take_due() {
            return false;
        }
        scratch.read_clock(self);
        let (idle_ms, request_ms) = self.limits_ms();
        let is_late = connection.is_late(scratch.now_ms, idle_ms, request_ms);
        // SAFETY: the caller has the turn.
        if !is_late || unsafe { connection.is_spared() } {
            return false;
        }
        self.count(&self.idle_closed);
        self.close(connection, End::Regular);
        true
    }

    fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::SeqCst)
    }

    /// Returns whether the time of requests in progress is over.
    fn is_cut_off(&self, scratch: &Scratch) -> bool {
        scratch.now_ms >= self.end_ms.load(Ordering::SeqCst)
    }

    fn stop_accepting(&self) {
        let listening = lock(&self.listening).take();
        if let Some(Listening { fd, set, .. }) = listening {
            let _ = set.notify.remove(fd.as_fd(), LISTENER);
        }
    }

    /// Ends the server when its requests in progress are finished, or after `grace`.
    pub(super) fn drain(&self, grace: Duration) {
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        self.end_ms.store(self.now_ms().saturating_add(grace_ms), Ordering::SeqCst);
        self.is_draining.store(true, Ordering::SeqCst);
        // The sets of a later regime are swept at their first wait.
        for set in &self.regime().sets {
            set.sweep_ms.store(0, Ordering::SeqCst);
            set.notify.wake();
        }
    }

    /// Ends the threads if the server is draining and no connection is left.
    fn end_if_done(&self) {
        let has_stopped = || lock(&self.listening).is_none();
        // The number is read last: it grows until accepting has stopped.
        if self.is_draining() && has_stopped() && self.open.load(Ordering::SeqCst) == 0 {
            // A switch reads the flag with the same lock, and publishes no regime afterwards.
            let current = system::lock(&self.current);
            if !self.is_over.swap(true, Ordering::SeqCst) {
                current.regime.end();
                self.changed.notify_all();
            }
        }
    }
}

/// Numbers of the threads at the last reading.
#[derive(Default)]
pub(super) struct Last {
    now_ns: u64,
    threads: Vec<ThreadLoad>,
}
