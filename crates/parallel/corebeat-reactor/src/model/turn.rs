//! Models of threads that take turns at the detection (Leader/Followers) and at one connection,
//! with edge-triggered and with one-shot reports.

use super::check;
use crate::turn::Turn;
use corebeat_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use corebeat_sync::cell::UnsafeCell;
use corebeat_sync::{Arc, Condvar, Mutex, fault, thread};

/// Number of bytes that arrive, one by one.
const BYTES: usize = 2;

/// Interest set of the system with one connection.
struct System {
    state: Mutex<State>,
    has_news: Condvar,
    is_one_shot: bool,
    /// Whether a thread waits. Only the leader may.
    is_waiting: AtomicBool,
    /// Bytes that were not read. Relaxed accesses: only the turn orders them, which is less than
    /// the system does.
    available: AtomicUsize,
}

#[derive(Default)]
struct State {
    /// Edges that were not reported.
    edges: usize,
    is_armed: bool,
    has_ended: bool,
}

impl System {
    fn arrive(&self) {
        let mut state = self.state.lock().unwrap();
        self.available.fetch_add(1, Ordering::Relaxed);
        state.edges += 1;
        self.has_news.notify_one();
    }

    /// Waits for a report; false after the end.
    fn wait(&self) -> bool {
        assert!(!self.is_waiting.swap(true, Ordering::Relaxed), "two threads wait");
        let mut state = self.state.lock().unwrap();
        let reported = loop {
            let is_ready = match self.is_one_shot {
                true => state.is_armed && self.available.load(Ordering::Relaxed) > 0,
                false => state.edges > 0,
            };
            if is_ready || state.has_ended {
                break is_ready;
            }
            state = self.has_news.wait(state).unwrap();
        };
        if reported {
            state.is_armed = false;
            state.edges -= 1.min(state.edges);
        }
        drop(state);
        self.is_waiting.store(false, Ordering::Relaxed);
        reported
    }

    fn rearm(&self) {
        if self.is_one_shot && !fault::omits("rearm") {
            self.state.lock().unwrap().is_armed = true;
            self.has_news.notify_one();
        }
    }

    fn end(&self) {
        self.state.lock().unwrap().has_ended = true;
        self.has_news.notify_one();
    }
}

struct Server {
    system: System,
    leadership: Mutex<()>,
    turn: Turn,
    /// Number of bytes that were read.
    read: UnsafeCell<usize>,
}

// SAFETY: loom checks the accesses to the cell.
unsafe impl Sync for Server {}
// SAFETY: as above.
unsafe impl Send for Server {}

impl Server {
    fn run(&self) {
        loop {
            let leads = (!fault::omits("leadership")).then(|| self.leadership.lock().unwrap());
            let is_reported = self.system.wait();
            drop(leads);
            if !is_reported {
                return;
            }
            let begins = match fault::omits("mark") {
                true => self.turn.try_begin(),
                false => self.turn.begin(),
            };
            if begins {
                self.process();
            }
        }
    }

    fn process(&self) {
        loop {
            let new = self.system.available.swap(0, Ordering::Relaxed);
            // SAFETY: the caller has the turn; loom checks that.
            let read = self.read.with_mut(|read| unsafe {
                *read += new;
                *read
            });
            if read == BYTES {
                self.system.end();
            }
            self.system.rearm();
            if self.turn.end() {
                return;
            }
        }
    }
}

fn serves_everything(is_one_shot: bool) {
    let system = System {
        state: Mutex::new(State { is_armed: true, ..State::default() }),
        has_news: Condvar::new(),
        is_one_shot,
        is_waiting: AtomicBool::new(false),
        available: AtomicUsize::new(0),
    };
    let server = Arc::new(Server {
        system,
        leadership: Mutex::new(()),
        turn: Turn::new(),
        read: UnsafeCell::new(0),
    });
    let threads = [(); 2].map(|()| {
        let server = server.clone();
        thread::spawn(move || server.run())
    });
    (0..BYTES).for_each(|_| server.system.arrive());
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn loom_threads_take_turns_with_edges() {
    check(|| serves_everything(false));
}

#[test]
fn loom_threads_take_turns_with_one_shots() {
    check(|| serves_everything(true));
}

#[test]
fn loom_turn_faults_are_detected() {
    let edges = "turn::loom_threads_take_turns_with_edges";
    let one_shots = "turn::loom_threads_take_turns_with_one_shots";
    fault::assert_noticed(&[
        (edges, "step mark"),
        (edges, "step leadership"),
        (edges, "release turn.rs"),
        (edges, "acquire turn.rs"),
        // The lock of the interest set orders one-shot reports, and with them the turns.
        (one_shots, "step mark"),
        (one_shots, "step rearm"),
    ]);
}
