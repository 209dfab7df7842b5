//! Virtual sockets between the clients of a simulation and its server.

use super::set::VirtualSet;
use super::{World, world};
use crate::listener;
use crate::notify::Interest;
use corebeat_sync::lock as lock_std;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Time for which a client waits for the server.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(super) struct Network {
    /// Connections by the descriptor of the server.
    wires: BTreeMap<RawFd, Wire>,
    /// Connections that the server has not accepted.
    backlog: VecDeque<(Wire, OwnedFd)>,
    pub(super) sets: Vec<Weak<VirtualSet>>,
    /// Connections whose descriptor has come back, by their client: the server has closed them.
    closed: BTreeMap<u64, Wire>,
    /// Descriptors of clients by their number, after the server has accepted them, and the time of
    /// that.
    accepted: BTreeMap<u64, (RawFd, Duration)>,
    clients: u64,
}

struct Wire {
    client: u64,
    /// The other end of the descriptor of the server.
    far: UnixStream,
    to_server: VecDeque<u8>,
    has_ended: bool,
    is_reset: bool,
    to_client: VecDeque<u8>,
    /// Number of bytes that the client buffers.
    window: usize,
}

impl Wire {
    /// Returns whether the server has closed the connection.
    fn is_closed(&self) -> bool {
        let mut byte = [0];
        recv(&self.far, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT)
            .is_ok_and(|(read, _)| read == 0)
    }
}

/// Whether a descriptor is readable, writable, and at its end.
pub(super) type Ready = (bool, bool, bool);

impl Network {
    /// Returns the state of a descriptor; that of the listener if there is no such connection.
    pub(super) fn ready(&self, fd: RawFd) -> Ready {
        match self.wires.get(&fd) {
            Some(wire) => {
                let is_final = wire.has_ended || wire.is_reset;
                let is_writable = wire.to_client.len() < wire.window || wire.is_reset;
                (!wire.to_server.is_empty() || is_final, is_writable, is_final)
            }
            None => (!self.backlog.is_empty(), false, false),
        }
    }
}

/// Reports a change of a descriptor to the sets; of the listener for `None`.
fn report(world: &World, fd: Option<RawFd>) {
    let sets: Vec<_> = {
        let mut state = lock_std(&world.state);
        state.network.sets.retain(|set| set.strong_count() > 0);
        state.network.sets.iter().filter_map(Weak::upgrade).collect()
    };
    sets.iter().for_each(|set| set.note_change(fd));
}

pub(crate) fn read(socket: &OwnedFd, bytes: &mut [u8]) -> rustix::io::Result<usize> {
    let Some(world) = world() else { return rustix::io::read(socket, bytes) };
    world.step();
    if world.draws(32) {
        return Err(Errno::INTR);
    }
    let fd = socket.as_raw_fd();
    let mut state = lock_std(&world.state);
    let wire = state.network.wires.get_mut(&fd).ok_or(Errno::BADF)?;
    if wire.is_reset {
        return Err(Errno::CONNRESET);
    }
    let count = wire.to_server.len().min(bytes.len());
    if count == 0 {
        return if wire.has_ended { Ok(0) } else { Err(Errno::AGAIN) };
    }
    for (place, byte) in bytes.iter_mut().zip(wire.to_server.drain(..count)) {
        *place = byte;
    }
    let client = wire.client;
    drop(state);
    world.note(&[1, client, count as u64]);
    Ok(count)
}

pub(crate) fn send(socket: &OwnedFd, bytes: &[u8]) -> rustix::io::Result<usize> {
    let Some(world) = world() else {
        return rustix::net::send(socket, bytes, SendFlags::NOSIGNAL);
    };
    world.step();
    if world.draws(32) {
        return Err(Errno::INTR);
    }
    if world.lacks_memory() {
        return Err(Errno::NOBUFS);
    }
    let fd = socket.as_raw_fd();
    let mut state = lock_std(&world.state);
    let wire = state.network.wires.get_mut(&fd).ok_or(Errno::BADF)?;
    if wire.is_reset {
        return Err(Errno::PIPE);
    }
    let count = bytes.len().min(wire.window.saturating_sub(wire.to_client.len()));
    if count == 0 {
        return Err(Errno::AGAIN);
    }
    wire.to_client.extend(&bytes[..count]);
    let client = wire.client;
    drop(state);
    world.note(&[2, client, count as u64]);
    Ok(count)
}

pub(crate) fn accept(fd: &OwnedFd) -> io::Result<OwnedFd> {
    let Some(world) = world() else { return listener::accept(fd) };
    // No step: the caller has locked the listener.
    if world.draws(8) {
        return Err(Errno::MFILE.into());
    }
    let mut state = lock_std(&world.state);
    let now = state.now;
    let (wire, near) = state.network.backlog.pop_front().ok_or(io::ErrorKind::WouldBlock)?;
    state.network.accepted.insert(wire.client, (near.as_raw_fd(), now));
    let client = wire.client;
    if let Some(old) = state.network.wires.insert(near.as_raw_fd(), wire) {
        state.network.closed.insert(old.client, old);
    }
    drop(state);
    world.note(&[3, client]);
    Ok(near)
}

/// Returns whether a virtual socket permits this; `None` outside a simulation.
pub(crate) fn is_ready(socket: &OwnedFd, interest: Interest) -> Option<bool> {
    let world = world()?;
    let state = lock_std(&world.state);
    let (is_readable, is_writable, _) = state.network.ready(socket.as_raw_fd());
    Some(if interest.write { is_writable } else { is_readable })
}

/// Returns the number of bytes that a client has not received; `None` outside a simulation.
pub(crate) fn unreceived(socket: &OwnedFd) -> Option<u32> {
    let world = world()?;
    let state = lock_std(&world.state);
    Some(state.network.wires.get(&socket.as_raw_fd())?.to_client.len() as u32)
}

/// The end of a connection that a client has.
pub(super) struct Client {
    world: Arc<World>,
    number: u64,
}

/// Result of a read of a client.
pub(super) enum Read {
    Bytes,
    Nothing,
    End,
}

impl Client {
    pub(super) fn connect(world: &Arc<World>) -> Client {
        let (near, far) = UnixStream::pair().expect("the system has two descriptors");
        let number = {
            let mut state = lock_std(&world.state);
            state.network.clients += 1;
            let number = state.network.clients;
            let window = *state.random.choice(&[2, 30, 500, 5000]).unwrap_or(&2);
            let wire = Wire {
                client: number,
                far,
                to_server: VecDeque::new(),
                has_ended: false,
                is_reset: false,
                to_client: VecDeque::new(),
                window,
            };
            state.network.backlog.push_back((wire, near.into()));
            number
        };
        report(world, None);
        Client { world: world.clone(), number }
    }

    /// Changes the connection, and reports that if `change` returns true.
    fn change<T>(&self, change: impl FnOnce(&mut Wire) -> (T, bool)) -> T {
        let mut state = lock_std(&self.world.state);
        let Network { wires, backlog, closed, accepted, .. } = &mut state.network;
        let fd = accepted.get(&self.number).map(|(fd, _)| *fd);
        let is_own = |wire: &&mut Wire| wire.client == self.number;
        let of_server = fd.and_then(|fd| wires.get_mut(&fd)).filter(is_own);
        let is_open = of_server.is_some();
        let wire = of_server
            .or_else(|| closed.get_mut(&self.number))
            .or_else(|| backlog.iter_mut().map(|(wire, _)| wire).find(is_own))
            .expect("a connection stays in one of the collections");
        let (result, has_changed) = change(wire);
        drop(state);
        if has_changed && is_open {
            report(&self.world, fd);
        }
        result
    }

    /// Returns when the server has accepted the connection.
    pub(super) fn accepted(&self) -> Option<Duration> {
        let state = lock_std(&self.world.state);
        state.network.accepted.get(&self.number).map(|(_, time)| *time)
    }

    pub(super) fn write(&self, bytes: &[u8]) {
        self.change(|wire| (wire.to_server.extend(bytes), true));
    }

    /// Ends the data of this direction.
    pub(super) fn end(&self) {
        self.change(|wire| (wire.has_ended = true, true));
    }

    pub(super) fn reset(&self) {
        self.change(|wire| (wire.is_reset = true, true));
    }

    pub(super) fn read(&self, into: &mut Vec<u8>, max: usize) -> Read {
        self.change(|wire| {
            let count = wire.to_client.len().min(max);
            let was_full = wire.to_client.len() >= wire.window;
            into.extend(wire.to_client.drain(..count));
            let is_over = wire.to_client.is_empty() && (wire.is_reset || wire.is_closed());
            match count {
                0 if is_over => (Read::End, false),
                0 => (Read::Nothing, false),
                _ => (Read::Bytes, was_full),
            }
        })
    }
}
