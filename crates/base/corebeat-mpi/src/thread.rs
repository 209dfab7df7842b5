//! The thread of MPI.

use std::collections::VecDeque;
use std::iter;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use mpi::Threading;
use mpi::ffi;
use mpi::point_to_point::{MatchedReceiveVec, Message};
use mpi::topology::SimpleCommunicator;
use mpi::traits::{AsRaw, AsRawMut, Communicator, Destination, Equivalence, Source};

use crate::{Bell, Error, Exchange, Inbound, Outbound};

/// Part of the time without a message that the thread sleeps before it looks again.
const SLEEP_PART: u32 = 8;
/// Bounds of a sleep without a message. A shorter one takes as long as its system call.
const SLEEP_MIN: Duration = Duration::from_micros(5);
const SLEEP_MAX: Duration = Duration::from_millis(1);
/// Time without a message after which the node looks for a run without progress.
const LOOK_AFTER: Duration = Duration::from_millis(2);
/// Messages that are received together, and their bytes before a further one.
const RECEIVING_MAX: usize = 64;
const RECEIVING_BYTES_MAX: usize = 16 << 20;
/// Vectors of memory that are kept for further messages, and the bytes of each.
const SPARE_MAX: usize = 8;
const SPARE_BYTES_MAX: usize = 1 << 20;
/// Least number of words of memory, so that any small message may use it.
const SPARE_WORDS_MIN: usize = 512;
/// Tag of the messages of an exchange.
const TAG: i32 = 0;
/// Tag of the bytes that rank 0 gathers, which may arrive before the end of its exchange.
const GATHER_TAG: i32 = 1;

/// This process as a rank of an MPI run.
pub struct Ranks {
    rank: u32,
    size: u32,
    /// Dropped to abort the run.
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

/// Function that receives the failure of an exchange.
type Report = Box<dyn FnOnce(&Error) + Send>;

/// Function that returns the bytes of a rank.
type Figures = Box<dyn FnOnce() -> Vec<u8> + Send>;

/// Order to the thread of MPI.
enum Order {
    Agree(Result<Vec<u8>, String>, SyncSender<Result<(), Error>>),
    Exchange(Arc<dyn Exchange>, Report, SyncSender<()>),
    Gather(Figures, SyncSender<Vec<Vec<u8>>>),
    Finish,
    Abort(i32),
}

impl Ranks {
    /// Starts MPI.
    ///
    /// # Errors
    ///
    /// Returns an error if MPI was started before, or if it cannot run in a process with threads.
    pub fn start() -> Result<Ranks, Error> {
        let (orders, coming) = channel();
        let (started, start) = sync_channel(1);
        let thread = thread::Builder::new().name("mpi".into()).spawn(move || {
            let Some((universe, provided)) = mpi::initialize_with_threading(Threading::Funneled)
            else {
                return drop(started.send(Err(Error::Start("it was started before"))));
            };
            let world = universe.world();
            if provided < Threading::Funneled {
                let why = "the library does not support programs with threads";
                return drop(started.send(Err(Error::Start(why))));
            }
            // After the start of MPI, whose threads keep their slack.
            sleep_exactly();
            drop(started.send(Ok((world.rank() as u32, world.size() as u32))));
            // MPI uses the messages under way until this rank has ended, also if it aborts.
            let mut under_way = UnderWay::new(world.size() as usize);
            let follow = || follow(&world, &coming, &mut under_way);
            let followed = catch_unwind(AssertUnwindSafe(follow));
            if followed.is_err() {
                // The drop of the universe would wait for the other ranks, which wait for this one.
                // The panic was reported.
                world.abort(1);
            }
            // The drop of the universe finalises MPI.
            drop(universe);
        });
        let thread = thread.map_err(|_| Error::Start("its thread cannot be created"))?;
        let (rank, size) = start.recv().map_err(|_| Error::Ended)??;
        Ok(Ranks { rank, size, orders: Some(orders), thread: Some(thread) })
    }

    /// Number of this rank, from 0.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Compares the programs of all ranks, which all call this: names and digests of the parts of a
    /// program, or the reason why this rank cannot run.
    ///
    /// # Errors
    ///
    /// Rank 0 returns the first rank that cannot run, or that differs from rank 0; the other ranks
    /// return [`Error::Refused`].
    pub fn agree(&self, program: Result<Vec<(String, u64)>, String>) -> Result<(), Error> {
        let program = program.map(|parts| {
            let lines = parts.iter().map(|(name, digest)| format!("{name}={digest:016x}"));
            lines.collect::<Vec<_>>().join("\n").into_bytes()
        });
        let (answer, answered) = sync_channel(1);
        self.order(Order::Agree(program, answer))?;
        answered.recv().map_err(|_| Error::Ended)?
    }

    /// A function that wakes the thread of MPI.
    pub fn bell(&self) -> Bell {
        let thread: Option<Thread> = self.thread.as_ref().map(|thread| thread.thread().clone());
        Box::new(move || {
            if let Some(thread) = &thread {
                thread.unpark();
            }
        })
    }

    /// Exchanges messages between the nodes of all ranks from now on, until they have ended. If a
    /// node refuses a message, `report` receives the reason, and the run is aborted.
    ///
    /// # Errors
    ///
    /// Returns an error if the thread of MPI has ended.
    pub fn exchange(
        &self,
        node: Arc<dyn Exchange>,
        report: impl FnOnce(&Error) + Send + 'static,
    ) -> Result<(), Error> {
        let (begun, begin) = sync_channel(1);
        self.order(Order::Exchange(node, Box::new(report), begun))?;
        begin.recv().map_err(|_| Error::Ended)
    }

    /// Collects bytes of all ranks, which all call this, on rank 0. The thread of MPI calls `make`
    /// after the end of an exchange on this rank. Rank 0 returns the bytes of each rank, in the
    /// order of the ranks; the others return none.
    ///
    /// # Errors
    ///
    /// Returns an error if the thread of MPI has ended.
    pub fn gather(
        &self,
        make: impl FnOnce() -> Vec<u8> + Send + 'static,
    ) -> Result<Vec<Vec<u8>>, Error> {
        let (answer, answered) = sync_channel(1);
        self.order(Order::Gather(Box::new(make), answer))?;
        answered.recv().map_err(|_| Error::Ended)
    }

    fn order(&self, order: Order) -> Result<(), Error> {
        let orders = self.orders.as_ref().ok_or(Error::Ended)?;
        orders.send(order).map_err(|_| Error::Ended)?;
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
        Ok(())
    }

    /// Waits for the end of the exchange on all ranks, and ends MPI.
    ///
    /// # Errors
    ///
    /// Returns an error if the thread of MPI has panicked.
    pub fn finish(mut self) -> Result<(), Error> {
        self.order(Order::Finish)?;
        let ended = self.thread.take().map_or(Ok(()), JoinHandle::join);
        ended.map_err(|_| Error::Ended)
    }

    /// Ends all ranks at once with this exit status.
    pub fn abort(mut self, status: u8) -> ! {
        let ordered = self.order(Order::Abort(status.into()));
        if let (Ok(()), Some(thread)) = (ordered, self.thread.take()) {
            // The thread ends the process.
            let _ = thread.join();
        }
        std::process::exit(status.into())
    }
}

/// Aborts the run, unless it has finished.
impl Drop for Ranks {
    fn drop(&mut self) {
        drop(self.orders.take());
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Follows the orders until the end.
fn follow(world: &SimpleCommunicator, orders: &Receiver<Order>, under_way: &mut UnderWay) {
    // Orders that arrived during an exchange: one of each thread that waits for an answer.
    let mut next = VecDeque::new();
    while let Some(order) = next.pop_front().or_else(|| orders.recv().ok()) {
        match order {
            Order::Agree(program, answer) => drop(answer.send(agree(world, program))),
            Order::Exchange(node, report, begun) => {
                // The caller waits.
                let _ = begun.send(());
                if let Err(why) = exchange(world, &node, (orders, &mut next), under_way) {
                    report(&why);
                    world.abort(1);
                }
            }
            Order::Gather(make, answer) => drop(answer.send(gather(world, make()))),
            Order::Finish => return,
            Order::Abort(status) => world.abort(status),
        }
    }
    // The process fails.
    world.abort(1);
}

/// Wait of the thread between two looks for messages, which depends on the time of the last one.
struct Pause {
    since: Instant,
}

impl Pause {
    /// There is a message now.
    fn new() -> Pause {
        Pause { since: Instant::now() }
    }

    /// Whether there was no message for some milliseconds.
    fn is_long(&self) -> bool {
        self.since.elapsed() >= LOOK_AFTER
    }

    fn wait(&self) {
        match sleep_after(self.since.elapsed()) {
            None => thread::yield_now(),
            // A bell that rings meanwhile, or rang before, ends the sleep.
            Some(sleep) => thread::park_timeout(sleep),
        }
    }
}

/// Returns the sleep after this time without a message, if there is one. A message that arrives
/// during the sleep waits for a small part of the time that has passed since the one before, so a
/// run of regular messages loses no more than this part of its speed.
fn sleep_after(idle: Duration) -> Option<Duration> {
    let sleep = (idle / SLEEP_PART).min(SLEEP_MAX);
    (sleep >= SLEEP_MIN).then_some(sleep)
}

/// Makes the sleeps of this thread as short as requested: the kernel may otherwise add 50 µs to
/// each, to wake several threads at once.
fn sleep_exactly() {
    // Without the right to change the slack, sleeps are longer.
    let _ = rustix::thread::set_current_timer_slack(NonZero::new(1));
}

/// Waits for a message of a rank without a busy loop: the sender may be compiling its boxes.
fn receive(world: &SimpleCommunicator, from: i32, tag: i32) -> Vec<u8> {
    let pause = Pause::new();
    loop {
        let process = world.process_at_rank(from);
        if let Some(message) = process.immediate_matched_probe_with_tag(tag) {
            return message.matched_receive_vec().0;
        }
        pause.wait();
    }
}

/// Compares the programs at rank 0.
fn agree(world: &SimpleCommunicator, program: Result<Vec<u8>, String>) -> Result<(), Error> {
    let mut mine = match program {
        Ok(program) => [b"+".to_vec(), program].concat(),
        Err(why) => [b"-".to_vec(), why.into_bytes()].concat(),
    };
    let root = world.process_at_rank(0);
    if world.rank() > 0 {
        root.send(&mine[..]);
        mine = receive(world, 0, TAG);
        return if mine == b"+" { Ok(()) } else { Err(Error::Refused) };
    }
    let mut verdict = differs(0, &mine, &mine);
    for rank in 1..world.size() {
        let theirs = receive(world, rank, TAG);
        verdict = verdict.and_then(|()| differs(rank as u32, &mine, &theirs));
    }
    for rank in 1..world.size() {
        world.process_at_rank(rank).send(if verdict.is_ok() { &b"+"[..] } else { &b"-"[..] });
    }
    verdict
}

/// Collects the bytes of all ranks at rank 0.
fn gather(world: &SimpleCommunicator, mine: Vec<u8>) -> Vec<Vec<u8>> {
    if world.rank() > 0 {
        world.process_at_rank(0).send_with_tag(&mine[..], GATHER_TAG);
        return Vec::new();
    }
    let theirs = (1..world.size()).map(|rank| receive(world, rank, GATHER_TAG));
    iter::once(mine).chain(theirs).collect()
}

/// Returns why a rank cannot run the program of rank 0.
fn differs(rank: u32, mine: &[u8], theirs: &[u8]) -> Result<(), Error> {
    let texts = [mine, theirs].map(String::from_utf8_lossy);
    let [mine, theirs] = &texts;
    if let Some(why) = theirs.strip_prefix('-') {
        return Err(Error::Rank { rank, why: why.into() });
    }
    if mine == theirs {
        return Ok(());
    }
    // A missing line differs, too.
    let (mine, theirs): (Vec<&str>, Vec<&str>) = (mine.lines().collect(), theirs.lines().collect());
    let other = theirs.iter().zip(&mine).find(|(theirs, mine)| theirs != mine);
    let name = other.and_then(|(theirs, _)| theirs.trim_start_matches('+').split('=').next());
    let name = name.filter(|name| !name.is_empty()).unwrap_or("number of files");
    let why = format!("has another {name} than rank 0");
    Err(Error::Rank { rank, why })
}

/// Messages under way. `exchange` removes a message only when it is complete, and if an exchange
/// ends early, the thread of MPI keeps the others until it aborts the run.
struct UnderWay {
    /// By destination, in their order.
    sending: Vec<VecDeque<Transfer<Kept>>>,
    /// With their senders, in the order of each sender.
    receiving: VecDeque<(u32, Transfer<Inbound>)>,
    spare: Spare,
}

impl UnderWay {
    fn new(ranks: usize) -> UnderWay {
        let sending = (0..ranks).map(|_| VecDeque::new()).collect();
        UnderWay { sending, receiving: VecDeque::new(), spare: Spare::default() }
    }

    fn is_empty(&self) -> bool {
        self.sending.iter().all(VecDeque::is_empty) && self.receiving.is_empty()
    }
}

/// Removes the complete messages at the front of each queue. A destination that receives slowly
/// holds up no other one.
fn remove_complete<T>(queues: &mut [VecDeque<T>], mut is_complete: impl FnMut(&mut T) -> bool) {
    for queue in queues {
        while queue.front_mut().is_some_and(&mut is_complete) {
            queue.pop_front();
        }
    }
}

/// Memory of messages that have arrived, the most recent last.
#[derive(Default)]
struct Spare(VecDeque<Vec<u128>>);

impl Spare {
    /// Memory for a message of this number of bytes.
    fn take(&mut self, bytes: usize) -> Vec<u128> {
        // Memory of about this size: it may become a field.
        let fits = bytes.div_ceil(size_of::<u128>())..=bytes / 8 + SPARE_WORDS_MIN;
        let at = self.0.iter().rposition(|words| fits.contains(&words.capacity()));
        at.and_then(|at| self.0.remove(at)).unwrap_or_default()
    }

    /// Keeps memory for further messages, instead of the oldest.
    fn keep(&mut self, words: Vec<u128>) {
        let bytes = words.capacity() * size_of::<u128>();
        if (1..=SPARE_BYTES_MAX).contains(&bytes) {
            if self.0.len() == SPARE_MAX {
                self.0.pop_front();
            }
            self.0.push_back(words);
        }
    }
}

/// A message under way. MPI reads or writes the bytes until the request is complete.
struct Transfer<B> {
    request: ffi::MPI_Request,
    bytes: B,
}

/// A message that is sent. No `Box`, because the bytes may lie inside the value, and the move of a
/// box invalidates the addresses of its value.
struct Kept(NonNull<dyn AsRef<[u8]> + Send>);

impl Kept {
    fn new(message: Outbound) -> Kept {
        // A box is not null.
        Kept(NonNull::from(Box::leak(message)))
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the value exists until the drop of `self`, and nothing else refers to it.
        unsafe { self.0.as_ref() }.as_ref()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: the value was in a box, and nothing else refers to it.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl Transfer<Kept> {
    fn send(world: &SimpleCommunicator, to: u32, message: Outbound) -> Transfer<Kept> {
        let message = Kept::new(message);
        let bytes = message.bytes();
        let count = i32::try_from(bytes.len()).expect("a message has less than 2 GiB");
        // SAFETY: the bytes remain where they are, and unchanged, before the request is complete:
        // `UnderWay` keeps the value, which neither moves nor is borrowed mutably, so that the
        // reference to its bytes stays valid. Code that could change them by another way must not
        // do so (see `Outbound`): a box in C changes no field that was output (`C4SNet.h`). The
        // calling thread has initialised MPI.
        let request = unsafe {
            let mut request = std::mem::zeroed();
            let datatype = u8::equivalent_datatype().as_raw();
            let (data, to) = (bytes.as_ptr().cast(), to as i32);
            ffi::MPI_Isend(data, count, datatype, to, TAG, world.as_raw(), &mut request);
            request
        };
        Transfer { request, bytes: message }
    }
}

impl Transfer<Inbound> {
    /// Receives a message of this number of bytes into this memory, or into more.
    fn receive(mut message: Message, count: i32, mut words: Vec<u128>) -> Transfer<Inbound> {
        let len = count as usize;
        let needed = len.div_ceil(size_of::<u128>());
        if words.capacity() < needed {
            // No growth, which would copy the old content.
            words = Vec::with_capacity(needed.max(SPARE_WORDS_MIN));
        }
        words.clear();
        let room = &mut words.spare_capacity_mut()[..needed];
        if let Some(last) = room.last_mut() {
            last.write(0);
        }
        // SAFETY: the memory has `count` bytes, and nothing uses it before the request is complete:
        // the heap of a vector does not move with it, and `UnderWay` keeps it. The calling thread
        // has initialised MPI.
        let request = unsafe {
            let mut request = std::mem::zeroed();
            let datatype = u8::equivalent_datatype().as_raw();
            let data = room.as_mut_ptr().cast();
            ffi::MPI_Imrecv(data, count, datatype, message.as_raw_mut(), &mut request);
            request
        };
        Transfer { request, bytes: Inbound { words, len } }
    }

    /// The message, after the request is complete.
    fn message(mut self) -> Inbound {
        let words = &mut self.bytes.words;
        // SAFETY: MPI has written all bytes, since a matched message has the length that its probe
        // has returned, and `receive` has written the bytes after them in the last word.
        unsafe { words.set_len(self.bytes.len.div_ceil(size_of::<u128>())) };
        self.bytes
    }
}

impl<B> Transfer<B> {
    fn is_complete(&mut self) -> bool {
        let mut flag = 0;
        // SAFETY: the request is active. The status is ignored.
        unsafe { ffi::MPI_Test(&mut self.request, &mut flag, ffi::RSMPI_STATUS_IGNORE) };
        flag != 0
    }
}

/// Exchanges messages until the node has ended. Orders that arrive meanwhile are `next`.
fn exchange(
    world: &SimpleCommunicator,
    node: &Arc<dyn Exchange>,
    (orders, next): (&Receiver<Order>, &mut VecDeque<Order>),
    under_way: &mut UnderWay,
) -> Result<(), Error> {
    let (rank, size) = (world.rank() as u32, world.size() as u32);
    let mut pause = Pause::new();
    loop {
        match orders.try_recv() {
            Ok(abort @ Order::Abort(_)) => {
                next.push_front(abort);
                return Ok(());
            }
            Ok(order) => next.push_back(order),
            Err(TryRecvError::Empty) => {}
            // The process fails.
            Err(TryRecvError::Disconnected) => {
                next.push_front(Order::Abort(1));
                return Ok(());
            }
        }
        let has_ended = node.has_ended();
        let mut is_active = false;
        for to in (0..size).filter(|to| *to != rank) {
            let sending = &mut under_way.sending[to as usize];
            while let Some(message) = node.take(to) {
                sending.push_back(Transfer::send(world, to, message));
                is_active = true;
            }
        }
        // A test advances all messages, so that the first ones are enough.
        remove_complete(&mut under_way.sending, Transfer::is_complete);
        if has_ended && !is_active && under_way.is_empty() {
            return Ok(());
        }
        is_active |= receive_all(world, node, under_way)?;
        // A large message advances only in calls of MPI.
        if is_active || !under_way.is_empty() {
            pause = Pause::new();
        } else if pause.is_long() {
            node.look().map_err(Error::Stalled)?;
        }
        pause.wait();
    }
}

/// Begins to receive the next messages, and passes those on that have arrived, in the order of each
/// sender. Returns whether there was a message.
fn receive_all(
    world: &SimpleCommunicator,
    node: &Arc<dyn Exchange>,
    under_way: &mut UnderWay,
) -> Result<bool, Error> {
    let rank = world.rank() as u32;
    let mut is_active = false;
    let lens = under_way.receiving.iter().map(|(_, transfer)| transfer.bytes.len);
    let mut coming: usize = lens.sum();
    while under_way.receiving.len() < RECEIVING_MAX
        && coming < RECEIVING_BYTES_MAX
        && let Some((message, status)) = world.any_process().immediate_matched_probe_with_tag(TAG)
    {
        let count = status.count(u8::equivalent_datatype());
        coming += count as usize;
        let of_node = node.memory(count as usize);
        let memory = of_node.unwrap_or_else(|| under_way.spare.take(count as usize));
        let transfer = Transfer::receive(message, count, memory);
        under_way.receiving.push_back((status.source_rank() as u32, transfer));
        is_active = true;
    }
    // Senders whose first message has not arrived.
    let mut late: Vec<u32> = Vec::new();
    let mut at = 0;
    while let Some((from, transfer)) = under_way.receiving.get_mut(at) {
        if late.contains(from) || !transfer.is_complete() {
            late.push(*from);
            at += 1;
        } else if let Some((from, transfer)) = under_way.receiving.remove(at) {
            let mut message = transfer.message();
            let received = node.clone().receive(from, &mut message);
            received.map_err(|why| Error::Message { rank, why })?;
            under_way.spare.keep(message.words);
            is_active = true;
        }
    }
    Ok(is_active)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complete_messages_are_removed_behind_those_of_a_slow_rank() {
        // A message is complete if it is even. The first one to rank 1 is not.
        let mut sending = [vec![], vec![1, 2, 4], vec![2, 4, 6, 7, 8]].map(VecDeque::from);
        remove_complete(&mut sending, |message| *message % 2 == 0);
        assert_eq!(sending, [vec![], vec![1, 2, 4], vec![7, 8]]);
    }

    #[test]
    fn recent_memory_replaces_the_oldest_and_is_taken_by_its_size() {
        let mut spare = Spare::default();
        let words = |capacity| Vec::<u128>::with_capacity(capacity);
        (0..SPARE_MAX).for_each(|_| spare.keep(words(600)));
        spare.keep(words(60_000));
        spare.keep(words(SPARE_BYTES_MAX / size_of::<u128>() + 1));
        assert_eq!(spare.0.len(), SPARE_MAX);
        assert_eq!(spare.take(50_000 * 16).capacity(), 60_000);
        assert_eq!(spare.take(50_000 * 16).capacity(), 0);
        assert_eq!(spare.take(8).capacity(), 0);
        assert_eq!((spare.take(600 * 16).capacity(), spare.0.len()), (600, SPARE_MAX - 2));
    }

    #[test]
    fn bytes_inside_a_message_stay_where_they_are() {
        let kept = Kept::new(Box::new([7u8; 9]));
        let place = kept.bytes().as_ptr();
        let moved = VecDeque::from([kept]);
        assert_eq!((moved[0].bytes().as_ptr(), moved[0].bytes()), (place, &[7u8; 9][..]));
    }

    #[test]
    fn sleep_is_at_most_an_eighth_of_the_time_without_a_message() {
        const LOOK: Duration = Duration::from_micros(1);
        let (mut idle, mut looks, mut longest) = (Duration::ZERO, 0, Duration::ZERO);
        while idle < Duration::from_secs(1) {
            let sleep = sleep_after(idle).unwrap_or_default();
            assert!(sleep * 8 <= idle, "{sleep:?} after {idle:?}");
            assert!(sleep >= longest, "a sleep of {sleep:?} after one of {longest:?}");
            longest = sleep;
            idle += sleep + LOOK;
            looks += 1;
        }
        assert_eq!(longest, SLEEP_MAX);
        // A thread without messages looks about a thousand times a second.
        assert!(looks < 1200, "{looks} looks in a second");
    }
}
