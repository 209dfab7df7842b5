//! A deterministic reactor: servers on virtual sockets and in virtual time, for tests.
//!
//! A simulation runs the engine, the patterns and the connections of a server unchanged. It
//! replaces what they call: the interest sets ([`notify`](crate::notify::Notify)), the operations
//! of sockets, the clock, the threads and the locks under which threads wait ([`crate::system`]).
//! The threads of the server, and its clients, are tasks of a deterministic runtime of LPEL, whose
//! seed draws the order of all steps. A step ends at each call of the system, and at each lock that
//! another thread holds. The seed also draws the network: sizes of windows, splits, delays, ends,
//! resets, and errors of the system; and pauses of all threads of the server, as those of a process
//! that is stopped. Equal seeds produce equal histories.
//!
//! ```text
//!   client task                     World                          threads of the server (tasks)
//!     | connect ------------------> queue of the listener --------> accept
//!     | write in random parts ----> bytes, end, reset ------------> read
//!     | read, slowly or never <---- window of random size <-------- send
//!     |                             changes of state -> virtual interest sets -> wait
//! ```
//!
//! The loom models ([`crate::model`]) exhaust the interleavings of single memory accesses in small
//! cases. The simulation covers whole servers, between system calls.
//!
//! A virtual socket has a real descriptor, which identifies it. The other end of that descriptor
//! states whether the server has closed the connection.

mod blocking;
mod check;
mod network;
mod set;

pub(crate) use blocking::{Condvar, Mutex, Thread, lock, spawn};
pub(crate) use network::{accept, is_ready, read, send, unreceived};
pub(crate) use set::notify;

use corebeat_sync::{lock as lock_std, wait};
use network::Network;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A mistake in the server, or in what it calls, that the checks must detect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Some connections are not re-armed after a report.
    LostRearm,
    /// A set does not report what is ready when a descriptor enters it.
    LostEntry,
    /// A thread begins a turn that another one has.
    SharedTurn,
    /// A turn ends without the report that came meanwhile.
    LostMark,
    /// A queued report wakes no thread.
    LostNotification,
    /// The end of a lock wakes no thread.
    LostUnlock,
    /// A thread that waits in a set is not woken.
    LostWake,
    /// A sweep closes a late connection whose input the server has not read, because it was paused.
    NoPatience,
    /// A peer without progress stays connected as long as its socket is ready at each sweep.
    EndlessPatience,
    /// While the system lacks memory for output, the connection tries again at once.
    BusyRetry,
    /// No sweep sends output for which the system lacked memory.
    LostRetry,
}

/// Number of calls of the system in a simulation. A server that makes more of them spins.
const CALLS_MAX: u64 = 2_000_000;

/// Number of refused sends in a simulation. A server that tries more often spins.
const REFUSALS_MAX: u64 = 10_000;

/// The state that all parts of a simulation share.
pub(crate) struct World {
    state: std::sync::Mutex<State>,
    fault: Option<Fault>,
}

struct State {
    random: fastrand::Rng,
    now: Duration,
    /// Time at which the threads of the server continue.
    pause_end: Duration,
    /// Number of pauses so far, and their total time.
    pauses: (u64, Duration),
    /// Time until which the system lacks memory for output.
    shortage_end: Duration,
    /// Number of sends that were refused for that reason.
    refusals: u64,
    calls: u64,
    network: Network,
    /// Connections that a thread handles.
    occupied: BTreeSet<RawFd>,
    /// The first finding of a check.
    violation: Option<String>,
    /// Digest of all events, in their order.
    history: u64,
}

thread_local! {
    static WORLD: RefCell<Option<Arc<World>>> = const { RefCell::new(None) };
}

/// Returns the simulation that runs on this thread.
fn world() -> Option<Arc<World>> {
    WORLD.with_borrow(Clone::clone)
}

impl World {
    fn new(seed: u64, fault: Option<Fault>) -> Arc<World> {
        let state = State {
            random: fastrand::Rng::with_seed(seed),
            now: Duration::ZERO,
            pause_end: Duration::ZERO,
            pauses: (0, Duration::ZERO),
            shortage_end: Duration::ZERO,
            refusals: 0,
            calls: 0,
            network: Network::default(),
            occupied: BTreeSet::new(),
            violation: None,
            history: 0,
        };
        Arc::new(World { state: std::sync::Mutex::new(state), fault })
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// Returns whether an event of this probability happens.
    fn draws(&self, one_of: u32) -> bool {
        lock_std(&self.state).random.u32(..one_of) == 0
    }

    fn violate(&self, what: String) {
        lock_std(&self.state).violation.get_or_insert(what);
    }

    /// Notes an event in the history.
    fn note(&self, event: &[u64]) {
        let history = &mut lock_std(&self.state).history;
        for value in event {
            // Fowler, Noll, Vo, FNV-1a, with words instead of bytes.
            *history = (*history ^ value).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(17);
        }
    }

    /// Ends a step: other tasks may run before the caller continues.
    fn step(&self) {
        let is_over = {
            let mut state = lock_std(&self.state);
            state.calls += 1;
            state.calls > CALLS_MAX
        };
        if is_over {
            self.end(format!("the server spins: it has made {CALLS_MAX} calls"));
        }
        if self.draws(3) {
            corebeat_lpel::yield_now();
        }
        self.hold();
    }

    /// Ends the simulation, at its limit of time.
    fn end(&self, why: String) {
        self.violate(why);
        corebeat_lpel::sleep(Duration::MAX);
    }

    /// Lets the system lack memory for output for some time.
    fn begin_shortage(&self, time: Duration) {
        let mut state = lock_std(&self.state);
        state.shortage_end = state.now + time;
    }

    /// Returns whether the system lacks memory for the output of a send.
    fn lacks_memory(&self) -> bool {
        let refusals = {
            let mut state = lock_std(&self.state);
            if state.now >= state.shortage_end {
                drop(state);
                return self.draws(32);
            }
            state.refusals += 1;
            state.refusals
        };
        if refusals > REFUSALS_MAX {
            self.end(format!("the server spins: {REFUSALS_MAX} sends found no memory"));
        }
        true
    }

    /// Suspends a thread of the server until the end of a pause.
    fn hold(&self) {
        loop {
            let left = {
                let state = lock_std(&self.state);
                state.pause_end.saturating_sub(state.now)
            };
            if left.is_zero() {
                return;
            }
            self.sleep(left);
        }
    }

    /// Lets the threads of the server pause: no call of the system ends meanwhile.
    fn pause(&self, time: Duration) {
        {
            let mut state = lock_std(&self.state);
            state.pause_end = state.now + time;
            state.pauses.0 += 1;
            state.pauses.1 += time;
        }
        self.sleep(time);
    }

    /// Waits for a virtual time.
    fn sleep(&self, time: Duration) {
        let end = lock_std(&self.state).now + time;
        corebeat_lpel::sleep(time);
        self.advance(end);
    }

    fn advance(&self, now: Duration) {
        let mut state = lock_std(&self.state);
        state.now = state.now.max(now);
    }

    /// Suspends a task until it is woken, at most for a virtual time.
    fn suspend(&self, task: &mut dyn wait::Suspend, time: Option<Duration>) -> bool {
        let end = time.map(|time| lock_std(&self.state).now.saturating_add(time));
        let is_woken = task.suspend(time);
        if let (false, Some(end)) = (is_woken, end) {
            self.advance(end);
        }
        is_woken
    }
}

/// Returns the time since `begin`, or since the start of the simulation.
pub(crate) fn now(begin: Instant) -> Duration {
    match world() {
        Some(world) => lock_std(&world.state).now,
        None => begin.elapsed(),
    }
}

/// Returns whether a fault is planted in the simulation of this thread.
pub(crate) fn has(fault: Fault) -> bool {
    world().is_some_and(|world| world.has(fault))
}

/// States that the calling thread handles a connection, until the value is dropped. Returns `None`
/// if another thread does that.
pub(crate) fn occupy(socket: &OwnedFd) -> Option<Occupied> {
    let fd = socket.as_raw_fd();
    let Some(world) = world() else { return Some(Occupied(None)) };
    let is_first = lock_std(&world.state).occupied.insert(fd);
    if !is_first {
        world.violate(format!("two threads handle the connection {fd}"));
        return None;
    }
    Some(Occupied(Some((world, fd))))
}

pub(crate) struct Occupied(Option<(Arc<World>, RawFd)>);

impl Drop for Occupied {
    fn drop(&mut self) {
        if let Some((world, fd)) = &self.0 {
            lock_std(&world.state).occupied.remove(fd);
        }
    }
}
