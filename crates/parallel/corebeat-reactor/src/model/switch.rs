//! Model of a switch: a thread handles the reports of a set that retires, another one moves the
//! connection to a set of the new regime, and data arrives meanwhile.

use super::check;
use crate::members::Members;
use crate::turn::Turn;
use corebeat_sync::atomic::{AtomicUsize, Ordering};
use corebeat_sync::cell::UnsafeCell;
use corebeat_sync::{Arc, Mutex, fault, thread};

/// Interest set of the system, with at most the one connection of the model.
struct Set {
    members: Members<Arc<Connection>>,
    /// Key of the connection, and whether a report is pending. `None` without the connection.
    entry: Mutex<Option<(u64, bool)>>,
}

impl Set {
    fn new() -> Set {
        Set { members: Members::new(), entry: Mutex::new(None) }
    }

    /// Reports the connection at once, if it is ready.
    fn add(&self, key: u64, connection: &Connection) {
        let mut entry = self.entry.lock().unwrap();
        *entry = Some((key, connection.available.load(Ordering::Relaxed) > 0));
    }

    /// Reports the connection again, if it is ready.
    fn rearm(&self, is_drained: bool, connection: &Connection) {
        if let (Some((_, is_reported)), false) = (&mut *self.entry.lock().unwrap(), is_drained) {
            *is_reported |= connection.available.load(Ordering::Relaxed) > 0;
        }
    }

    fn arrive(&self) {
        if let Some((_, is_reported)) = &mut *self.entry.lock().unwrap() {
            *is_reported = true;
        }
    }

    /// Takes the pending report.
    fn report(&self) -> Option<u64> {
        let mut entry = self.entry.lock().unwrap();
        let (key, is_reported) = entry.as_mut()?;
        std::mem::take(is_reported).then_some(*key)
    }
}

struct Connection {
    turn: Turn,
    /// Bytes that were not read. Relaxed accesses: only the turn orders them.
    available: AtomicUsize,
    /// Used by the thread that has the turn.
    state: UnsafeCell<State>,
}

// SAFETY: loom checks the accesses to the cell.
unsafe impl Sync for Connection {}
// SAFETY: as above.
unsafe impl Send for Connection {}

struct State {
    /// Position of the set.
    set: Option<usize>,
    read: usize,
}

struct Server {
    sets: [Set; 2],
    /// Position of the set of the present regime.
    current: Mutex<usize>,
    connection: Arc<Connection>,
}

impl Server {
    /// A server whose connection has not entered a set. The caller has the turn.
    fn new() -> Server {
        let connection = Connection {
            turn: Turn::new(),
            available: AtomicUsize::new(0),
            state: UnsafeCell::new(State { set: None, read: 0 }),
        };
        assert!(connection.turn.begin());
        let sets = [Set::new(), Set::new()];
        Server { sets, current: Mutex::new(0), connection: Arc::new(connection) }
    }

    /// The peer sends a byte, which every set that has the connection reports.
    fn arrive(&self) {
        self.connection.available.fetch_add(1, Ordering::Relaxed);
        self.sets.iter().for_each(Set::arrive);
    }

    /// Handles the pending report of a set.
    fn handle(&self, set: usize) {
        let reported = self.sets[set].report();
        if let Some(connection) = reported.and_then(|key| self.sets[set].members.get(key))
            && connection.turn.begin()
        {
            self.process();
        }
    }

    /// Processes the connection until its turn ends. The caller has the turn.
    fn process(&self) {
        loop {
            let new = self.connection.available.swap(0, Ordering::Relaxed);
            // SAFETY: the caller has the turn; loom checks that.
            let set = self.connection.state.with_mut(|state| unsafe {
                (*state).read += new;
                (*state).set
            });
            self.await_event(set, true);
            if self.connection.turn.end() {
                return;
            }
        }
    }

    fn await_event(&self, set: Option<usize>, is_drained: bool) {
        match set {
            Some(set) if fault::omits("check") || !self.sets[set].members.is_retired() => {
                self.sets[set].rearm(is_drained, &self.connection);
            }
            Some(set) => {
                *self.sets[set].entry.lock().unwrap() = None;
                self.enter();
            }
            None => self.enter(),
        }
    }

    fn enter(&self) {
        loop {
            let set = *self.current.lock().unwrap();
            let Some(key) = self.sets[set].members.insert(self.connection.clone()) else {
                continue;
            };
            // SAFETY: the caller has the turn; loom checks that.
            self.connection.state.with_mut(|state| unsafe { (*state).set = Some(set) });
            return self.sets[set].add(key, &self.connection);
        }
    }

    /// Switches to the second set, and moves the connection there.
    fn switch(&self) {
        if fault::omits("publish") {
            self.move_connections();
        }
        *self.current.lock().unwrap() = 1;
        if !fault::omits("publish") {
            self.move_connections();
        }
    }

    /// Moves the connection, and ends its turn. The caller has the turn.
    fn move_connection(&self) {
        loop {
            // SAFETY: the caller has the turn; loom checks that.
            let set = self.connection.state.with(|state| unsafe { (*state).set });
            self.await_event(set, false);
            if self.connection.turn.end() {
                return;
            }
        }
    }

    fn move_connections(&self) {
        for connection in self.sets[0].members.retire() {
            let begins = match fault::omits("mark") {
                true => connection.turn.try_begin(),
                false => connection.turn.begin(),
            };
            if begins {
                self.move_connection();
            }
        }
    }

    /// Checks that the connection is in the second set, and that every byte was read or is going to
    /// be reported there.
    fn check(&self, bytes: usize) {
        self.handle(1);
        assert!(self.connection.turn.begin(), "the turn has ended");
        // SAFETY: the caller has the turn; loom checks that.
        let (set, read) =
            self.connection.state.with(|state| unsafe { ((*state).set, (*state).read) });
        assert_eq!((set, read), (Some(1), bytes));
        let (key, _) = self.sets[1].entry.lock().unwrap().expect("the set reports the connection");
        assert!(self.sets[1].members.get(key).is_some(), "the connection is a member");
    }
}

/// A thread handles a report of the old set during the switch.
#[test]
fn loom_switch_moves_a_connection_in_its_turn() {
    check(|| {
        let server = Arc::new(Server::new());
        server.process();
        server.arrive();
        let handling = server.clone();
        let handles = thread::spawn(move || handling.handle(0));
        let sending = server.clone();
        let sends = thread::spawn(move || sending.arrive());
        server.switch();
        handles.join().unwrap();
        sends.join().unwrap();
        server.check(2);
    });
}

/// A thread accepts the connection during the switch.
#[test]
fn loom_switch_moves_a_connection_that_enters() {
    check(|| {
        let server = Arc::new(Server::new());
        let accepting = server.clone();
        let accepts = thread::spawn(move || accepting.process());
        server.arrive();
        server.switch();
        accepts.join().unwrap();
        server.check(1);
    });
}

#[test]
fn loom_switch_faults_are_detected() {
    let in_turn = "switch::loom_switch_moves_a_connection_in_its_turn";
    fault::assert_noticed(&[
        (in_turn, "step mark"),
        (in_turn, "step check"),
        (in_turn, "step publish"),
        (in_turn, "release turn.rs"),
        ("switch::loom_switch_moves_a_connection_that_enters", "step mark"),
    ]);
}
