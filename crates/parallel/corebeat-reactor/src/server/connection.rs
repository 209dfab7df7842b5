//! A connection of a server, and one turn of its processing.

use super::engine::Scratch;
use super::regime::Set;
use super::{Exchange, Handler};
use crate::notify::Interest;
#[cfg(all(test, not(loom)))]
use crate::simulation::{self, Fault};
use crate::system;
use crate::turn::Turn;
use corebeat_probe::block;
use corebeat_sync::cell::UnsafeCell;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, ioctl};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Number of reads in one turn, after which other connections have their turns.
const READS_MAX: usize = 16;
/// Size of unused output memory that a thread keeps.
const OUTPUT_KEPT_MAX: usize = 256 << 10;

/// Interest set of a connection, and the key of the connection there.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) set: Arc<Set>,
    pub(super) key: u64,
}

pub(crate) struct Connection {
    pub(super) socket: OwnedFd,
    pub(super) turn: Turn,
    /// Time of the last progress, in milliseconds since the start of the server.
    progress_ms: AtomicU64,
    /// Time since which a part of a request waits for the rest, in milliseconds since the start;
    /// `u64::MAX` without one.
    partial_ms: AtomicU64,
    /// Whether a sweep found the connection late.
    is_due: AtomicBool,
    /// Whether the connection waits for memory of the system: no event follows.
    is_starved: AtomicBool,
    /// Whether a report stated that a short read is no proof that nothing is left.
    is_final: AtomicBool,
    /// Used by the thread that has the turn. `None` until the connection enters its first set.
    place: UnsafeCell<Option<Place>>,
    /// Used by the thread that has the turn.
    state: UnsafeCell<State>,
}

// SAFETY: only the thread that has the turn uses `place` and `state`, whose contents are Send.
unsafe impl Sync for Connection {}

struct State {
    handler: Box<dyn Handler>,
    /// Received bytes that the handler has not consumed.
    input: Vec<u8>,
    /// Bytes that the system has not accepted yet.
    output: Vec<u8>,
    /// Number of bytes of `output` that were sent.
    sent: usize,
    /// Whether the system lacked memory for the rest, although the buffer of the socket has room.
    lacks_memory: bool,
    /// Whether the handler has received the end of the data, or closed the connection: the
    /// connection is closed when the output has been sent.
    is_over: bool,
    patience: Patience,
    /// Number of bytes that the peer had not received yet when output was left, or at the last
    /// sweep after that.
    unreceived: u32,
}

/// How the next sweep treats a connection whose time is over while its socket is ready.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// The connection stays open: the server is late, and not the peer.
    Full,
    /// As [`Full`](Patience::Full): it stayed open before, and no thread has processed it since.
    Waits,
    /// The connection was processed since it stayed open, and made no progress.
    Over,
}

impl Patience {
    fn lasts(self) -> bool {
        #[cfg(all(test, not(loom)))]
        if simulation::has(Fault::EndlessPatience) || simulation::has(Fault::NoPatience) {
            return simulation::has(Fault::EndlessPatience);
        }
        self != Patience::Over
    }
}

/// State of a connection after a turn.
pub(super) enum Outcome {
    /// The connection waits for an event. `is_drained` is as in
    /// [`Notify::rearm`](crate::notify::Notify::rearm). `is_idle` states that no request is in
    /// progress, and that no byte of one has arrived.
    Waits { interest: Interest, is_drained: bool, is_idle: bool },
    /// The system lacks memory for the output.
    LacksMemory,
    /// The connection has ended.
    Ended(End),
}

/// Reason for the end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Regular,
    TooLarge,
    Panic,
}

impl Connection {
    pub(super) fn new(socket: OwnedFd, handler: Box<dyn Handler>, now_ms: u64) -> Self {
        let state = State {
            handler,
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
            lacks_memory: false,
            is_over: false,
            patience: Patience::Full,
            unreceived: 0,
        };
        Connection {
            socket,
            turn: Turn::new(),
            progress_ms: AtomicU64::new(now_ms),
            partial_ms: AtomicU64::new(u64::MAX),
            is_due: AtomicBool::new(false),
            is_starved: AtomicBool::new(false),
            is_final: AtomicBool::new(false),
            place: UnsafeCell::new(None),
            state: UnsafeCell::new(state),
        }
    }

    /// Returns the place of the connection; `None` before it has entered a set.
    ///
    /// # Safety
    ///
    /// The caller has the turn, until it does not use the place any more.
    pub(super) unsafe fn place(&self) -> Option<&Place> {
        // SAFETY: the turn excludes other users.
        self.place.with(|place| unsafe { &*place }.as_ref())
    }

    /// Sets the place of the connection.
    ///
    /// # Safety
    ///
    /// The caller has the turn, and uses no place that it has got before.
    pub(super) unsafe fn set_place(&self, new: Place) {
        // SAFETY: the turn excludes other users.
        self.place.with_mut(|place| unsafe { *place = Some(new) });
    }

    /// Notes what a report states beside readiness, before the turn begins.
    pub(super) fn note(&self, is_final: bool) {
        if is_final {
            // Relaxed: the turn that the caller begins, or its mark, publishes the store.
            self.is_final.store(true, Ordering::Relaxed);
        }
    }

    /// Discards the statements of earlier sets, before another set reports the connection anew.
    pub(super) fn forget_final(&self) {
        // Relaxed: the caller has the turn, and the new set has no report yet.
        self.is_final.store(false, Ordering::Relaxed);
    }

    /// Returns what the connection waits for.
    ///
    /// # Safety
    ///
    /// The caller has the turn.
    pub(super) unsafe fn interest(&self) -> Interest {
        // SAFETY: the turn excludes other users.
        let has_output = self.state.with(|state| !unsafe { &*state }.output.is_empty());
        if has_output { Interest::WRITE } else { Interest::READ }
    }

    /// Sends pending output, reads, and calls the handler, while the system permits that. With
    /// `reads_all`, a short read is no reason to stop.
    ///
    /// # Safety
    ///
    /// The caller has the turn.
    pub(super) unsafe fn process(
        &self,
        buffered_max: usize,
        reads_all: bool,
        scratch: &mut Scratch,
    ) -> Outcome {
        // Relaxed: see `note`.
        let reads_all = reads_all || self.is_final.load(Ordering::Relaxed);
        self.state.with_mut(|state| {
            // SAFETY: the turn excludes other users.
            unsafe { &mut *state }.process(self, buffered_max, reads_all, scratch)
        })
    }

    /// Drops the handler of a connection that has ended. Returns false if its destructor panics.
    ///
    /// # Safety
    ///
    /// The caller has the turn.
    pub(super) unsafe fn drop_handler(&self) -> bool {
        self.state.with_mut(|state| {
            // SAFETY: the turn excludes other users.
            let state = unsafe { &mut *state };
            let handler =
                std::mem::replace(&mut state.handler, Box::new(|_: &mut Exchange<'_>| {}));
            catch_unwind(AssertUnwindSafe(|| drop(handler))).is_ok()
        })
    }

    /// Notes whether the connection waits for memory, for a thread that has the turn.
    pub(super) fn set_starved(&self, is_starved: bool) {
        self.is_starved.store(is_starved, Ordering::SeqCst);
    }

    /// Returns whether the connection waits for memory.
    pub(super) fn is_starved(&self) -> bool {
        #[cfg(all(test, not(loom)))]
        if simulation::has(Fault::LostRetry) {
            return false;
        }
        self.is_starved.load(Ordering::SeqCst)
    }

    /// Notes that a sweep found the connection late, before the turn begins.
    pub(super) fn set_due(&self) {
        // Relaxed: the turn that the caller begins, or its mark, publishes the store.
        self.is_due.store(true, Ordering::Relaxed);
    }

    /// Returns whether a sweep found the connection late since the last call, for a thread that has
    /// the turn.
    pub(super) fn take_due(&self) -> bool {
        // Relaxed: see `set_due`.
        self.is_due.load(Ordering::Relaxed) && self.is_due.swap(false, Ordering::Relaxed)
    }

    /// Returns whether the connection has made no progress for `idle_ms`, or has an incomplete
    /// request for `request_ms`.
    pub(super) fn is_late(&self, now_ms: u64, idle_ms: u64, request_ms: u64) -> bool {
        // Relaxed: see `set_progress`.
        let since = |time: &AtomicU64| now_ms.saturating_sub(time.load(Ordering::Relaxed));
        since(&self.progress_ms) >= idle_ms || since(&self.partial_ms) >= request_ms
    }

    /// Keeps a connection open whose time is over, if the system has input or room for output that
    /// the server has not used since, because it was busy or stopped. A peer that causes readiness
    /// without progress has one more turn. A peer that receives output too slowly for the system to
    /// report room stays as well. Returns false if the connection is to be closed.
    ///
    /// # Safety
    ///
    /// The caller has the turn.
    pub(super) unsafe fn is_spared(&self) -> bool {
        // SAFETY: passed on.
        let interest = unsafe { self.interest() };
        self.state.with_mut(|state| {
            // SAFETY: the turn excludes other users.
            let state = unsafe { &mut *state };
            if interest.write {
                let before = std::mem::replace(&mut state.unreceived, unreceived(&self.socket));
                if state.unreceived < before {
                    return true;
                }
            }
            let is_spared = state.patience.lasts() && is_ready(&self.socket, interest);
            if is_spared {
                state.patience = Patience::Waits;
            }
            is_spared
        })
    }

    /// Sets the time of the last progress.
    pub(super) fn set_progress(&self, now_ms: u64) {
        // Relaxed: a sweep that reads an older value closes the connection only if its time is
        // over by the older value as well.
        self.progress_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Notes whether a part of a request waits for the rest from now on.
    fn note_partial(&self, is_partial: bool, scratch: &Scratch) {
        let since_ms = if is_partial { scratch.now_ms } else { u64::MAX };
        // Relaxed: as in `set_progress`.
        self.partial_ms.store(since_ms, Ordering::Relaxed);
    }
}

impl State {
    fn process(
        &mut self,
        own: &Connection,
        buffered_max: usize,
        reads_all: bool,
        scratch: &mut Scratch,
    ) -> Outcome {
        if self.patience == Patience::Waits {
            self.patience = Patience::Over;
        }
        for _ in 0..READS_MAX {
            match self.send_pending(own, scratch) {
                Ok(true) if self.is_over => return Outcome::Ended(End::Regular),
                Ok(true) => {}
                // Back-pressure: nothing is read until the peer has taken the output.
                Ok(false) if self.lacks_memory => {
                    // The system is late, and not the peer.
                    self.patience = Patience::Full;
                    return Outcome::LacksMemory;
                }
                Ok(false) => return waits(Interest::WRITE, true),
                Err(_) => return Outcome::Ended(End::Regular),
            }
            let received = block!("receive", { system::read(&own.socket, &mut scratch.input[..]) });
            let read = match received {
                Ok(read) => read,
                Err(Errno::AGAIN) => {
                    let is_idle = self.input.is_empty();
                    return Outcome::Waits { interest: Interest::READ, is_drained: true, is_idle };
                }
                Err(Errno::INTR) => continue,
                Err(_) => return Outcome::Ended(End::Regular),
            };
            if let Err(end) = self.call(own, read, buffered_max, scratch) {
                return Outcome::Ended(end);
            }
            let is_short = 0 < read && read < scratch.input.len();
            if is_short && !reads_all && self.output.is_empty() {
                if self.is_over {
                    return Outcome::Ended(End::Regular);
                }
                return waits(Interest::READ, true);
            }
        }
        match self.output.is_empty() {
            // No event may follow: the peer waits for the end.
            true if self.is_over => Outcome::Ended(End::Regular),
            true => waits(Interest::READ, false),
            false => waits(Interest::WRITE, false),
        }
    }

    /// Sends pending output. Returns whether none is left.
    fn send_pending(
        &mut self,
        own: &Connection,
        scratch: &mut Scratch,
    ) -> rustix::io::Result<bool> {
        if self.output.is_empty() {
            return Ok(true);
        }
        let sent = send(own, &self.output[self.sent..], &mut self.lacks_memory)?;
        if sent > 0 {
            self.note_progress(scratch);
            // The rest of a request is not read while output is pending.
            own.note_partial(!self.input.is_empty(), scratch);
        }
        self.sent += sent;
        if self.sent < self.output.len() {
            self.unreceived = unreceived(&own.socket);
            return Ok(false);
        }
        (self.output, self.sent) = (Vec::new(), 0);
        Ok(true)
    }

    /// Calls the handler with `read` new bytes in the input memory of the thread, none at the end
    /// of the data. The handler receives them where the system wrote them, unless a part of a
    /// request was left before.
    fn call(
        &mut self,
        own: &Connection,
        read: usize,
        buffered_max: usize,
        scratch: &mut Scratch,
    ) -> Result<(), End> {
        let Scratch { input: new, output, meter, .. } = scratch;
        let is_whole = self.input.is_empty();
        if !is_whole {
            self.input.extend_from_slice(&new[..read]);
        }
        let input = if is_whole { &new[..read] } else { &self.input[..] };
        let is_end = read == 0;
        let mut exchange = Exchange { input, output, is_end, is_closed: false, requests: None };
        let handle = AssertUnwindSafe(|| self.handler.handle(&mut exchange));
        let called = block!("process", { catch_unwind(handle) });
        let (left, is_closed) = (exchange.input.len(), exchange.is_closed);
        let consumed = input.len() - left;
        meter.requests.add(exchange.requests.unwrap_or(u64::from(consumed > 0)));
        if called.is_err() {
            output.clear();
            return Err(End::Panic);
        }
        if left > buffered_max {
            output.clear();
            return Err(End::TooLarge);
        }
        if left == 0 {
            self.input = Vec::new();
        } else if is_whole {
            self.input = new[consumed..read].to_vec();
        } else {
            self.input.drain(..consumed);
        }
        self.is_over = is_end || is_closed;
        if consumed > 0 {
            self.note_progress(scratch);
        }
        if consumed > 0 || is_whole {
            own.note_partial(left > 0, scratch);
        }
        self.send_new(own, scratch)
    }

    fn note_progress(&mut self, scratch: &mut Scratch) {
        scratch.has_progress = true;
        self.patience = Patience::Full;
    }

    /// Sends the output of the handler. The connection keeps what the system does not accept.
    fn send_new(&mut self, own: &Connection, scratch: &mut Scratch) -> Result<(), End> {
        let output = &mut scratch.output;
        if output.is_empty() {
            return Ok(());
        }
        let result = send(own, output, &mut self.lacks_memory);
        if let Ok(sent) = result
            && sent < output.len()
        {
            self.output = output[sent..].to_vec();
            self.unreceived = unreceived(&own.socket);
        }
        output.clear();
        output.shrink_to(OUTPUT_KEPT_MAX);
        result.map(drop).map_err(|_| End::Regular)
    }
}

/// Number of bytes in a socket that the peer has not received; `u32::MAX` where the system does not
/// report it.
fn unreceived(socket: &OwnedFd) -> u32 {
    /// `TIOCOUTQ` of `asm-generic/ioctls.h`.
    const OUTPUT_QUEUE: Opcode = 0x5411;
    #[cfg(all(test, not(loom)))]
    if let Some(bytes) = simulation::unreceived(socket) {
        return bytes;
    }
    // SAFETY: this request writes an int.
    let queue = unsafe { ioctl(socket, Getter::<OUTPUT_QUEUE, i32>::new()) };
    queue.ok().and_then(|bytes| bytes.try_into().ok()).unwrap_or(u32::MAX)
}

/// Returns whether a socket permits what its connection waits for. On an error it does not, and the
/// time of the connection decides.
fn is_ready(socket: &OwnedFd, interest: Interest) -> bool {
    #[cfg(all(test, not(loom)))]
    if let Some(is_ready) = simulation::is_ready(socket, interest) {
        return is_ready;
    }
    let events = if interest.write { PollFlags::OUT } else { PollFlags::IN };
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(socket, events)], Some(&now)).is_ok_and(|number| number > 0)
}

fn waits(interest: Interest, is_drained: bool) -> Outcome {
    Outcome::Waits { interest, is_drained, is_idle: false }
}

/// Sends bytes. Returns the number that the system has accepted, which may be 0, and sets whether
/// it lacked memory.
fn send(
    connection: &Connection,
    bytes: &[u8],
    lacks_memory: &mut bool,
) -> rustix::io::Result<usize> {
    *lacks_memory = false;
    loop {
        match block!("send", { system::send(&connection.socket, bytes) }) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(0),
            Err(Errno::NOBUFS) => {
                *lacks_memory = true;
                return Ok(0);
            }
            result => return result,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    fn scratch(input_bytes: usize) -> Scratch {
        Scratch {
            now_ms: 0,
            has_progress: false,
            input: vec![0; input_bytes].into(),
            output: Vec::new(),
            meter: Arc::default(),
        }
    }

    /// The handler closes the connection at the last read of a turn, and nothing more arrives.
    #[test]
    fn connection_that_is_closed_at_the_last_read_of_a_turn_ends() {
        const BYTES: usize = 4;
        let (mut client, socket) = UnixStream::pair().unwrap();
        client.write_all(&[0; BYTES * READS_MAX]).unwrap();
        let mut left = BYTES * READS_MAX;
        let handler = move |exchange: &mut Exchange<'_>| {
            let bytes = exchange.input().len();
            exchange.consume(bytes);
            left -= bytes;
            if left == 0 {
                exchange.close();
            }
        };
        let connection = Connection::new(socket.into(), Box::new(handler), 0);
        let mut scratch = scratch(BYTES);
        assert!(connection.turn.begin());
        // SAFETY: this thread has the turn.
        let outcome = unsafe { connection.process(1, false, &mut scratch) };
        assert!(matches!(outcome, Outcome::Ended(End::Regular)));
    }

    /// The system reports room only when a third of the memory of a socket is free.
    #[test]
    fn peer_that_receives_slowly_is_spared() {
        let (mut client, socket) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        client.write_all(b"x").unwrap();
        let handler = |exchange: &mut Exchange<'_>| {
            exchange.consume(1);
            exchange.output().resize(4 << 20, 0);
        };
        let connection = Connection::new(socket.into(), Box::new(handler), 0);
        let mut scratch = scratch(1);
        assert!(connection.turn.begin());
        // SAFETY: this thread has the turn.
        let mut process = || unsafe { connection.process(1, false, &mut scratch) };
        assert!(matches!(process(), Outcome::Waits { interest: Interest::WRITE, .. }));
        // SAFETY: as above.
        let is_spared = || unsafe { connection.is_spared() };
        assert!(!is_spared());
        for _ in 0..2 {
            client.read_exact(&mut vec![0; 40 << 10]).unwrap();
            assert!(is_spared());
            assert!(!is_spared());
        }
    }
}
