//! The endpoint of one rank.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use corebeat_lpel::{Reader, Runtime, TryWriteError, Writer, stream, unbounded_stream};

use super::field::{Absent, Share, WEIGHT};
use super::frame::{Bytes, Corrupt, FRAME_MAX, Kind, Outbound, Read, Reference, Write};
use super::stall::{self, Stall};
use crate::label::{self, Label};
use crate::record::Record;
use crate::run::{Context, Fault, Mark, Message};
use crate::shape::{SHAPES_MAX, Shape};
use crate::value::{Array, Element, Value, spare, words};

/// Default size from which fields move only to boxes that read them, in bytes.
pub const EAGER_BYTES: usize = 64 << 10;

/// Bound of the messages of a channel that wait on the receiver's rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Number of the messages.
    pub messages: u32,
    /// Bytes of the fields that have moved with the messages. A record whose fields have more than
    /// half of it counts as half, or, with fewer than five messages, as more: one such record and
    /// half of the bytes can wait.
    pub bytes: usize,
}

impl Window {
    /// A bound of this number of messages, with fields of 4 MiB.
    pub const fn of(messages: u32) -> Window {
        Window { messages, bytes: 4 << 20 }
    }
}

/// 1,024 messages. A stream of small records then waits for the way to the other rank and back once
/// in some hundred records.
impl Default for Window {
    fn default() -> Window {
        Window::of(1024)
    }
}

/// Room of a new stream for the messages of a channel. It grows up to the window, so that a channel
/// with few messages takes little memory.
const ROOM_MIN: u32 = 64;

/// Faults of a rank that wait on rank 0 at most.
const FAULTS_MAX: u32 = 64;

/// Default size from which the elements of a field are a message of their own, in bytes: this crate
/// does not copy them, but a further message costs about as much as the copy of a smaller field.
const APART_BYTES: usize = 8 << 10;

/// Size from which a message to a rank is followed by another one, in bytes.
const MESSAGE_BYTES: usize = 256 << 10;

/// Most bytes of a value in a frame, without the elements of an array.
const VALUE_BYTES: usize = 32;

/// Bits of the number of a channel, of a field or of a feedback loop that count on one rank.
const COUNT_BITS: u32 = 40;

/// Endpoint of one rank in a run on several ranks.
pub struct Node {
    rank: u32,
    size: u32,
    window: Window,
    eager_bytes: usize,
    /// Size from which the elements of a field are a message of their own.
    apart_bytes: AtomicUsize,
    /// Whether a thread outside the runtime delivers messages.
    outside: bool,
    /// Called when there are bytes for another rank.
    bell: Box<dyn Fn() + Send + Sync>,
    /// By rank.
    outgoing: Vec<Mutex<Outgoing>>,
    incoming: Vec<Mutex<Incoming>>,
    channels: Mutex<Channels>,
    held: Mutex<HashMap<u64, Held>>,
    requests: Mutex<HashMap<u64, Arc<Absent>>>,
    faults: Mutex<Waiting>,
    numbers: AtomicU64,
    context: OnceLock<(Weak<Context>, u32)>,
    /// Ranks that have sent their last message.
    last: AtomicUsize,
    stall: Stall,
}

/// Counts of what a rank has sent to another rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Records.
    pub records: u64,
    /// Messages, each with the records and other frames that waited for it, or the elements of one
    /// field.
    pub messages: u64,
    /// Bytes of the messages.
    pub bytes: u64,
}

/// Messages to another rank.
#[derive(Default)]
struct Outgoing {
    messages: VecDeque<Outbound>,
    traffic: Traffic,
    /// By the number of a shape, whether the other rank has its labels.
    shapes: Vec<bool>,
    /// Whether the last message was written.
    has_ended: bool,
    /// Bytes of all messages, without those of the detection of runs without progress.
    bytes: u64,
}

impl Outgoing {
    /// Writes frames at the end of the messages. Returns their bytes.
    fn write(&mut self, write: impl FnOnce(&mut Vec<u8>, &mut Vec<bool>)) -> usize {
        let last = self.messages.pop_back();
        let (last, mut frames) = match last {
            Some(Outbound::Frames(bytes)) if bytes.len() < MESSAGE_BYTES => (None, bytes),
            last => (last, Vec::new()),
        };
        self.messages.extend(last);
        let before = frames.len();
        write(&mut frames, &mut self.shapes);
        let added = frames.len() - before;
        if !frames.is_empty() {
            self.messages.push_back(Outbound::Frames(frames));
        }
        added
    }
}

/// State of the messages from another rank.
#[derive(Default)]
struct Incoming {
    /// Number of the next messages that are elements of fields.
    fields_due: u32,
    /// Elements of fields whose forms a frame will contain.
    fields: Apart,
    /// Shapes by the number at the sender.
    shapes: Vec<Option<Order>>,
    /// Whether the last message has arrived.
    has_ended: bool,
    /// Bytes of all messages, without those of the detection of runs without progress.
    bytes: u64,
}

impl Incoming {
    /// Takes the elements of a field.
    fn field(&mut self, words: Vec<u128>, len: usize) {
        self.fields_due -= 1;
        self.bytes += len as u64;
        self.fields.push_back((words, len));
    }
}

/// Elements of fields that were messages of their own, each with its number of bytes.
type Apart = VecDeque<(Vec<u128>, usize)>;

/// Takes the next field whose elements were a message of their own.
fn array(
    fields: &mut Apart,
    content: &Bytes<'_>,
    element: Element,
    len: usize,
) -> Result<Arc<Array>, Corrupt> {
    let corrupt = content.corrupt("the elements of a field are missing");
    let (words, bytes) = fields.pop_front().ok_or(corrupt)?;
    if len.checked_mul(element.size()) != Some(bytes) {
        return Err(content.corrupt("a field has another number of elements"));
    }
    Array::from_words(element, len, words).map(Arc::new).ok_or(corrupt)
}

/// A shape of another rank, whose labels may have another order here.
struct Order {
    shape: Shape,
    /// For each label in the order of the sender, its position in the shape.
    positions: Vec<usize>,
}

#[derive(Default)]
struct Channels {
    /// Streams that return credits to the senders on this rank.
    sending: HashMap<u64, Writer<u32>>,
    /// Streams of the receivers on this rank.
    receiving: HashMap<u64, Writer<Message>>,
    /// To the server of this rank.
    server: Option<Writer<Request>>,
    /// Answers of the other ranks at the end: records in synchrocells.
    finished: Option<Writer<u64>>,
    /// On rank 0, whether all other ranks have answered. A part that was requested too late may
    /// still close its output.
    has_ended: bool,
}

/// Kind of a message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Posted {
    Counted,
    /// Counted, and a record.
    Record,
    /// Belongs to the detection of runs without progress.
    Uncounted,
    /// Last message to a rank.
    Last,
}

/// A field of this rank that other ranks refer to.
struct Held {
    array: Arc<Array>,
    /// Weight of the references on other ranks.
    weight: u64,
}

/// Request to the server of a rank.
pub(crate) enum Request {
    Open(Open, Reader<Message>),
    /// A fault on another rank, and its room, unless it has ended its task.
    Fault(Fault, Option<Room>),
}

/// Room on rank 0 for a fault of another rank, which waits for it if it has reported as many faults
/// as a channel has credits. The drop returns it.
pub(crate) struct Room {
    node: Arc<Node>,
    from: u32,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.node.send(self.from, Kind::Room, &[]);
    }
}

/// Faults of a rank that wait on rank 0.
#[derive(Default)]
struct Waiting {
    count: u32,
    /// Tasks that wait for room.
    tasks: VecDeque<Writer<()>>,
}

/// Request for a part with a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Open {
    /// Rank of the sender of records.
    pub(crate) from: u32,
    pub(crate) hops: VecDeque<Hop>,
    /// Rank and channel of the output.
    pub(crate) home: (u32, u64),
}

/// A part of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hop {
    pub(crate) rank: u32,
    /// Channel of its input.
    pub(crate) channel: u64,
    /// Number of the part in the program.
    pub(crate) part: u32,
}

fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(|e| e.into_inner())
}

impl Node {
    /// Creates the endpoint of rank `rank` of `size` ranks. `window` bounds the messages of a
    /// channel that wait at the receiver. Fields of more than `eager_bytes` bytes move only to
    /// boxes that read them; all ranks need the same `eager_bytes` and `window`. `bell` is called
    /// when [`take`](Self::take) may have bytes, by any task or thread, and must not block.
    /// `outside` states whether a thread that is no task of the runtime calls
    /// [`receive`](Self::receive).
    ///
    /// # Panics
    ///
    /// Panics if the rank is not less than the number of ranks, or if the window is 0.
    pub fn new(
        (rank, size): (u32, u32),
        window: Window,
        eager_bytes: usize,
        outside: bool,
        bell: impl Fn() + Send + Sync + 'static,
    ) -> Arc<Node> {
        assert!(rank < size, "rank {rank} is not one of {size} ranks");
        assert!(window.messages > 0, "a channel has at least one credit");
        Arc::new(Node {
            rank,
            size,
            window,
            eager_bytes,
            apart_bytes: AtomicUsize::new(APART_BYTES),
            outside,
            bell: Box::new(bell),
            outgoing: (0..size).map(|_| Mutex::default()).collect(),
            incoming: (0..size).map(|_| Mutex::default()).collect(),
            channels: Mutex::default(),
            held: Mutex::default(),
            requests: Mutex::default(),
            faults: Mutex::default(),
            numbers: AtomicU64::new(0),
            context: OnceLock::new(),
            last: AtomicUsize::new(0),
            stall: Stall::default(),
        })
    }

    /// Number of this rank, from 0.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Messages of a channel that wait at the receiver at most.
    pub fn window(&self) -> u32 {
        self.window.messages
    }

    /// Largest field in bytes that moves with its record.
    pub fn eager_bytes(&self) -> usize {
        self.eager_bytes
    }

    /// Changes the size from which the elements of a field are a message of their own. For tests.
    #[doc(hidden)]
    pub fn set_apart_bytes(&self, bytes: usize) {
        // Relaxed: a message is valid with any value.
        self.apart_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Returns the array of a value whose elements are a message of their own.
    fn apart<'v>(&self, value: &'v Value) -> Option<&'v Arc<Array>> {
        match value {
            // Relaxed: see above.
            Value::Array(array)
                if array.bytes().len() > self.apart_bytes.load(Ordering::Relaxed) =>
            {
                Some(array)
            }
            _ => None,
        }
    }

    /// Number of fields that this rank keeps for references on other ranks.
    pub fn fields_held(&self) -> usize {
        lock(&self.held).len()
    }

    /// Whether this rank has received the last message of each other rank. After the remaining
    /// [`take`](Self::take)s, nothing is sent or received any more.
    pub fn has_ended(&self) -> bool {
        // Acquire: pairs with the release in `receive`.
        self.last.load(Ordering::Acquire) + 1 >= self.size as usize
    }

    pub(crate) fn is_outside(&self) -> bool {
        self.outside
    }

    /// Returns the rank for a place of the program, or `None` if it is this rank.
    pub(crate) fn other(&self, place: u32) -> Option<u32> {
        let rank = place % self.size;
        (rank != self.rank).then_some(rank)
    }

    /// Returns a number that is unique in the run.
    pub(crate) fn number(&self) -> u64 {
        // Relaxed: only uniqueness matters.
        let count = self.numbers.fetch_add(1, Ordering::Relaxed);
        debug_assert!(count >> COUNT_BITS == 0);
        u64::from(self.rank) << COUNT_BITS | count
    }

    /// Connects the node with a run whose program has this number of parts with a place. Returns
    /// the requests to its server, and the answers of the other ranks at the end.
    pub(crate) fn connect(
        &self,
        context: &Arc<Context>,
        parts: usize,
    ) -> (Reader<Request>, Reader<u64>) {
        let set = self.context.set((Arc::downgrade(context), parts as u32));
        assert!(set.is_ok(), "a node belongs to one run");
        let (server, requests) = unbounded_stream(64);
        let (finished, answers) = unbounded_stream(64);
        let mut channels = lock(&self.channels);
        let requests = requests.signals(stall::REQUEST);
        channels.server = Some(self.end(server));
        channels.finished = Some(self.end(finished));
        (requests, answers)
    }

    /// Prepares an end of a stream for the caller of `receive`.
    fn end<T: Send + 'static>(&self, writer: Writer<T>) -> Writer<T> {
        if self.outside { writer.outside() } else { writer }
    }

    // Messages to other ranks.

    /// Returns the next message for a rank, if there is one.
    ///
    /// # Panics
    ///
    /// Panics if the number of the rank is not less than the number of ranks.
    pub fn take(&self, to: u32) -> Option<Outbound> {
        let mut outgoing = lock(&self.outgoing[to as usize]);
        let message = outgoing.messages.pop_front()?;
        outgoing.traffic.messages += 1;
        outgoing.traffic.bytes += message.as_ref().len() as u64;
        Some(message)
    }

    /// Counts what this rank has sent to another rank so far: the messages that were taken, and all
    /// records.
    ///
    /// # Panics
    ///
    /// Panics if the number of the rank is not less than the number of ranks.
    pub fn traffic(&self, to: u32) -> Traffic {
        lock(&self.outgoing[to as usize]).traffic
    }

    /// Appends frames to the messages for a rank, before its last message. After it, the run has
    /// ended on all ranks, and no rank needs a message.
    fn post(&self, to: u32, write: impl FnOnce(&mut Vec<u8>, &mut Vec<bool>)) {
        self.post_as(to, Posted::Counted, &[], write);
    }

    /// Appends the elements of fields as messages of their own, and then frames.
    fn post_as(
        &self,
        to: u32,
        posted: Posted,
        fields: &[&Arc<Array>],
        write: impl FnOnce(&mut Vec<u8>, &mut Vec<bool>),
    ) {
        let mut outgoing = lock(&self.outgoing[to as usize]);
        let is_last = posted == Posted::Last || outgoing.has_ended;
        if std::mem::replace(&mut outgoing.has_ended, is_last) {
            return;
        }
        let was_empty = outgoing.messages.is_empty();
        let mut added = 0;
        if !fields.is_empty() {
            added += outgoing.write(|frames, _| {
                Write::new(frames, Kind::Fields).u32(fields.len() as u32).end();
            });
            for field in fields {
                added += field.bytes().len();
                outgoing.messages.push_back(Outbound::Field((*field).clone()));
            }
        }
        added += outgoing.write(write);
        outgoing.traffic.records += u64::from(posted == Posted::Record);
        if posted != Posted::Uncounted {
            outgoing.bytes += added as u64;
        }
        drop(outgoing);
        if was_empty {
            (self.bell)();
        }
    }

    /// Writes a frame of numbers.
    fn send(&self, to: u32, kind: Kind, numbers: &[u64]) {
        self.post(to, |bytes, _| {
            let mut frame = Write::new(bytes, kind);
            for n in numbers {
                frame.u64(*n);
            }
            frame.end();
        });
    }

    /// Sends the last message to each other rank.
    fn send_last(&self) {
        for other in self.others() {
            self.post_as(other, Posted::Last, &[], |bytes, _| Write::new(bytes, Kind::Last).end());
        }
    }

    fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let rank = self.rank;
        (0..self.size).filter(move |other| *other != rank)
    }

    /// Opens the chain of parts, and returns the credits of the channel to the first one.
    pub(crate) fn open(&self, open: &Open) -> Reader<u32> {
        let to = open.hops[0];
        let (returned, credits) = unbounded_stream(4);
        let credits = credits.signals(stall::CREDIT);
        lock(&self.channels).sending.insert(to.channel, self.end(returned));
        self.post(to.rank, |bytes, _| {
            let mut frame = Write::new(bytes, Kind::Open);
            frame.u32(open.hops.len() as u32);
            for hop in &open.hops {
                frame.u32(hop.rank).u64(hop.channel).u32(hop.part);
            }
            frame.u32(open.home.0).u64(open.home.1).end();
        });
        credits
    }

    /// Prepares the channel of the output of a part: returns the credits of its sender.
    pub(crate) fn sender(&self, channel: u64) -> Reader<u32> {
        let (returned, credits) = unbounded_stream(4);
        let credits = credits.signals(stall::CREDIT);
        lock(&self.channels).sending.insert(channel, self.end(returned));
        credits
    }

    /// Prepares the receiver of a channel.
    pub(crate) fn receiver(&self, channel: u64) -> Reader<Message> {
        let (stream, input) = unbounded_stream(self.window().min(ROOM_MIN) as usize);
        let input = input.signals(stall::RECORD);
        lock(&self.channels).receiving.insert(channel, self.end(stream));
        input
    }

    /// Credits that a receiver returns together.
    fn batch(&self) -> u32 {
        (self.window() / 2).max(1)
    }

    /// Credits that a record costs, the same on both ranks: the fields that move with a record are
    /// those that arrive with it. A receiver keeps less than a batch of credits, so all others are
    /// enough for any record.
    pub(crate) fn cost(&self, record: &Record) -> u32 {
        let bytes = |value: &Value| match value {
            Value::Array(array) => Some(array.bytes().len()).filter(|n| *n <= self.eager_bytes),
            _ => None,
        };
        let bytes: usize = record.values().iter().filter_map(bytes).sum();
        let of_credit = (self.window.bytes / self.window() as usize).max(1);
        let most = self.window() - self.batch() + 1;
        bytes.div_ceil(of_credit).clamp(1, most as usize) as u32
    }

    /// Sends a record, for which the channel must have the credits.
    ///
    /// # Errors
    ///
    /// Returns the reason if a value cannot move to another rank.
    pub(crate) fn send_record(&self, to: u32, channel: u64, record: &Record) -> Result<(), String> {
        let references = self.references(record)?;
        let is_here = |i: usize| references.iter().all(|(at, _)| *at != i);
        let values = record.values().iter().enumerate();
        let apart = values.filter_map(|(i, v)| self.apart(v).filter(|_| is_here(i)));
        let apart: Vec<&Arc<Array>> = apart.collect();
        self.post_as(to, Posted::Record, &apart, |bytes, shapes| {
            announce(bytes, shapes, record.shape());
            let mut frame = Write::new(bytes, Kind::Record);
            frame.u64(channel);
            write_values(&mut frame, record, &references, &apart);
            frame.end();
        });
        Ok(())
    }

    /// References for the fields of a record that do not move with it, with their positions. A
    /// record that cannot move keeps all its weights, and no field is kept for it.
    fn references(&self, record: &Record) -> Result<Vec<(usize, Reference)>, String> {
        self.check(record)?;
        let mut references = Vec::new();
        for (i, value) in record.values().iter().enumerate() {
            if let Some(absent) = Absent::of(value) {
                let shared = absent.share().ok_or("the run ended before a field arrived")?;
                let reference = match shared {
                    Share::Reference(reference) => reference,
                    // This rank is the owner of the copy.
                    Share::Data(array) => self.hold(array),
                };
                references.push((i, reference));
            } else if let Value::Array(array) = value
                && array.bytes().len() > self.eager_bytes
            {
                references.push((i, self.hold(array.clone())));
            }
        }
        Ok(references)
    }

    /// Returns the reason if a record cannot move to another rank.
    fn check(&self, record: &Record) -> Result<(), String> {
        let mut bytes = 64;
        for (label, value) in record.iter() {
            match value {
                Value::Tag(_) => {}
                Value::Scalar(scalar) if scalar.element() != Element::Pointer => {}
                Value::Array(array) if array.element() != Element::Pointer => {
                    let of_field = array.bytes().len();
                    if of_field > FRAME_MAX - 64 {
                        return Err(format!(
                            "{label} has {of_field} bytes, and a field that moves to another rank \
                             has at most {}: divide it",
                            FRAME_MAX - 64
                        ));
                    }
                    if of_field <= self.eager_bytes && self.apart(value).is_none() {
                        bytes += of_field;
                    }
                }
                Value::Native(_) if Absent::of(value).is_some() => {}
                Value::Native(native) => {
                    return Err(format!(
                        "{label} has the Rust type {}, which cannot move to another rank: \
                         convert it to numbers or text, or place its boxes on one rank",
                        native.type_name()
                    ));
                }
                Value::Scalar(_) | Value::Array(_) => {
                    return Err(format!(
                        "{label} is a pointer, which has no meaning on another rank: send the \
                         data, or place its boxes on one rank"
                    ));
                }
            }
            // The value's form, or a reference.
            bytes += VALUE_BYTES;
        }
        if bytes > FRAME_MAX {
            return Err(format!(
                "the record has {bytes} bytes, and a record that moves to another rank has at \
                 most {FRAME_MAX}: reduce the size from which fields move on demand"
            ));
        }
        Ok(())
    }

    /// Keeps a field for a reference on another rank.
    fn hold(&self, array: Arc<Array>) -> Reference {
        let field = self.number();
        lock(&self.held).insert(field, Held { array, weight: WEIGHT });
        Reference { owner: self.rank, field, weight: WEIGHT }
    }

    /// Subtracts the weight of references that have returned.
    fn reduce(&self, field: u64, weight: u64, from: u32) -> Result<Arc<Array>, Corrupt> {
        let corrupt = Corrupt { from, what: "it refers to a field that was freed" };
        let mut held = lock(&self.held);
        let entry = held.get_mut(&field).ok_or(corrupt)?;
        entry.weight = entry.weight.checked_sub(weight).ok_or(corrupt)?;
        match entry.weight {
            0 => held.remove(&field).map(|held| held.array).ok_or(corrupt),
            _ => Ok(entry.array.clone()),
        }
    }

    pub(crate) fn request(&self, owner: u32, field: u64, weight: u64, absent: Arc<Absent>) {
        let request = self.number();
        lock(&self.requests).insert(request, absent);
        self.send(owner, Kind::Fetch, &[field, weight, request]);
    }

    pub(crate) fn release(&self, owner: u32, field: u64, weight: u64) {
        self.send(owner, Kind::Release, &[field, weight]);
    }

    pub(crate) fn send_mark(&self, to: u32, channel: u64, mark: Mark) {
        let (purpose, number) = match mark {
            Mark::Group => (0, 0),
            Mark::Probe(number) => (1, number),
        };
        self.send(to, Kind::Mark, &[channel, purpose, number]);
    }

    pub(crate) fn close(&self, to: u32, channel: u64) {
        let returned = lock(&self.channels).sending.remove(&channel);
        drop(returned);
        self.send(to, Kind::Close, &[channel]);
    }

    fn credit(&self, to: u32, channel: u64, credits: u32) {
        self.send(to, Kind::Credit, &[channel, credits.into()]);
    }

    /// Waits until rank 0 has room for a fault. Blocks the calling task or thread.
    fn wait_for_room(&self) {
        let mut faults = lock(&self.faults);
        if faults.count < self.window().min(FAULTS_MAX) {
            faults.count += 1;
            return;
        }
        let (writer, reader) = stream(1);
        faults.tasks.push_back(self.end(writer));
        drop(faults);
        let _ = reader.signals(stall::ROOM).read();
    }

    /// Passes the room of a fault on to the next task that waits for it.
    fn return_room(&self) {
        let mut faults = lock(&self.faults);
        while let Some(mut task) = faults.tasks.pop_front() {
            // A task that was cancelled does not read.
            if task.try_write(()).is_ok() {
                return;
            }
        }
        faults.count = faults.count.saturating_sub(1);
    }

    /// Reports a fault to rank 0. Waits for room there, unless the fault has ended its task, which
    /// may be unwinding.
    pub(crate) fn send_fault(&self, fault: &Fault, is_broken: bool) {
        if !is_broken {
            self.wait_for_room();
        }
        let record = fault.record.as_ref().map(|record| {
            let pairs = record.iter().filter(|(_, value)| value.has_text());
            let pairs = pairs.map(|(label, value)| (label, value.clone()));
            Record::from_pairs(pairs).unwrap_or_else(|_| Record::new(Shape::empty(), []))
        });
        let record = record.filter(|r| r.values().iter().map(size).sum::<usize>() < FRAME_MAX);
        self.post(0, |bytes, shapes| {
            if let Some(record) = &record {
                announce(bytes, shapes, record.shape());
            }
            let mut frame = Write::new(bytes, Kind::Fault);
            frame.u8(is_broken.into()).text(&fault.entity).text(&fault.message);
            frame.u8(record.is_some().into());
            if let Some(record) = &record {
                write_values(&mut frame, record, &[], &[]);
            }
            frame.end();
        });
    }

    /// Makes the other ranks call no further box.
    pub(crate) fn abandon(&self) {
        self.others().for_each(|other| self.send(other, Kind::Abandon, &[]));
    }

    /// On rank 0, after the end of its output: waits until the tasks of the other ranks have ended.
    /// Returns the number of records in synchrocells.
    pub(crate) fn finish(&self, answers: &mut Reader<u64>) -> u64 {
        self.others().for_each(|other| self.send(other, Kind::Finish, &[]));
        self.stall.end_output();
        let kept = answers.take(self.size as usize - 1).sum();
        let ended = Channels { has_ended: true, ..Channels::default() };
        let before = std::mem::replace(&mut *lock(&self.channels), ended);
        drop(before);
        kept
    }

    /// On rank 0, after [`finish`](Self::finish) and the end of its own tasks: ends the exchange of
    /// messages.
    pub(crate) fn end_exchange(&self) {
        self.send_last();
    }

    /// On another rank, after the end of its tasks.
    pub(crate) fn finished(&self, kept: usize) {
        self.send(0, Kind::Finished, &[kept as u64]);
        self.stall.end_tasks();
    }

    // Detection of runs without progress.

    /// State of the detection of runs without progress.
    pub(crate) fn stall(&self) -> &Stall {
        &self.stall
    }

    /// To be called by the thread that calls [`receive`](Self::receive), while no message arrives.
    /// On rank 0, returns the tasks of all ranks, in one line, if every task of the run waits for
    /// ever. Then the run has to be aborted. `runtime` runs the tasks of this rank, and no other
    /// tasks.
    pub fn look(&self, runtime: &Runtime) -> Option<String> {
        let is_waiting = || runtime.is_waiting() && stall::is_inside(&runtime.dump());
        self.look_with(is_waiting, || stall::waits(&runtime.dump()))
    }

    /// [`look`](Self::look) with functions that return whether tasks are left, all of which wait
    /// until this rank receives a message, and what they wait for.
    #[doc(hidden)]
    pub fn look_with(
        &self,
        is_waiting: impl FnOnce() -> bool,
        waits: impl FnOnce() -> String,
    ) -> Option<String> {
        if !self.stall.is_asked(self.rank, self.size) {
            return None;
        }
        if let Some(wave) = self.stall.next_wave(self.rank)
            && self.stall.is_idle(is_waiting)
        {
            let (sent, received) = self.bytes_moved();
            if self.rank > 0 {
                self.stall.answer(wave);
                self.detect(0, Kind::Idle, &[wave, sent, received]);
            } else {
                self.stall.begin(wave, sent, received);
                self.others().for_each(|other| self.detect(other, Kind::Probe, &[wave]));
            }
        }
        if self.rank > 0 {
            if self.stall.explains() {
                let waits = waits();
                self.post_as(0, Posted::Uncounted, &[], |bytes, _| {
                    let mut frame = Write::new(bytes, Kind::Waits);
                    frame.text(&waits);
                    frame.end();
                });
            }
            return None;
        }
        if self.stall.is_found(self.size) {
            self.stall.explain(0, waits());
            self.others().for_each(|other| self.detect(other, Kind::Explain, &[]));
        }
        self.stall.line(self.size)
    }

    /// Bytes of the messages that this rank has sent to all others, and received from them.
    pub fn bytes_moved(&self) -> (u64, u64) {
        let sent = self.outgoing.iter().map(|outgoing| lock(outgoing).bytes).sum();
        (sent, self.incoming.iter().map(|incoming| lock(incoming).bytes).sum())
    }

    /// Writes a frame of the detection.
    fn detect(&self, to: u32, kind: Kind, numbers: &[u64]) {
        self.post_as(to, Posted::Uncounted, &[], |bytes, _| {
            let mut frame = Write::new(bytes, kind);
            numbers.iter().for_each(|n| {
                frame.u64(*n);
            });
            frame.end();
        });
    }

    // Messages from other ranks.

    /// Delivers a message that [`take`](Self::take) returned on another rank, in their order. Never
    /// blocks.
    ///
    /// # Errors
    ///
    /// Returns an error if the bytes are not valid, or are not in order. The run cannot continue.
    ///
    /// # Panics
    ///
    /// Panics if the number of the rank is not less than the number of ranks.
    pub fn receive(self: &Arc<Self>, from: u32, bytes: &[u8]) -> Result<(), Corrupt> {
        let mut incoming = lock(&self.incoming[from as usize]);
        if incoming.fields_due == 0 {
            return self.frames(&mut incoming, Bytes { bytes, from });
        }
        incoming.field(words(bytes), bytes.len());
        Ok(())
    }

    /// Returns memory for a message of this number of bytes, from a field that was dropped, if
    /// there is any. Its content is arbitrary.
    pub fn memory(bytes: usize) -> Option<Vec<u128>> {
        spare::take(bytes)
    }

    /// [`receive`](Self::receive) for a message of `len` bytes in these words. If it is the content
    /// of a field, the words become the field, and are empty afterwards.
    ///
    /// # Errors
    ///
    /// As `receive`.
    ///
    /// # Panics
    ///
    /// Panics if the number of the rank is not less than the number of ranks, or if there are fewer
    /// than `len` bytes.
    pub fn receive_words(
        self: &Arc<Self>,
        from: u32,
        words: &mut Vec<u128>,
        len: usize,
    ) -> Result<(), Corrupt> {
        let mut incoming = lock(&self.incoming[from as usize]);
        if incoming.fields_due == 0 {
            let words: &[u128] = words;
            assert!(len <= size_of_val(words), "a message has all of its bytes");
            // SAFETY: the words have this number of initialised bytes.
            let bytes = unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), len) };
            return self.frames(&mut incoming, Bytes { bytes, from });
        }
        incoming.field(std::mem::take(words), len);
        Ok(())
    }

    /// Takes frames.
    fn frames(
        self: &Arc<Self>,
        incoming: &mut Incoming,
        mut bytes: Bytes<'_>,
    ) -> Result<(), Corrupt> {
        while let Some((kind, mut content)) = bytes.frame()? {
            if !kind.is_of_detection() {
                // With the length and the kind.
                incoming.bytes += content.bytes.len() as u64 + 5;
            }
            self.frame(kind, &mut content, incoming)?;
            if !content.bytes.is_empty() || incoming.fields_due > 0 && !bytes.bytes.is_empty() {
                return Err(content.corrupt("it is too long"));
            }
        }
        Ok(())
    }

    fn frame(
        self: &Arc<Self>,
        kind: Kind,
        content: &mut Bytes<'_>,
        incoming: &mut Incoming,
    ) -> Result<(), Corrupt> {
        let from = content.from;
        match kind {
            Kind::Record => {
                let channel = content.u64()?;
                let record = self.record(content, incoming)?;
                self.deliver(content, channel, Message::Record(record))
            }
            Kind::Mark => {
                let (channel, purpose, number) = (content.u64()?, content.u64()?, content.u64()?);
                let mark = if purpose == 0 { Mark::Group } else { Mark::Probe(number) };
                self.deliver(content, channel, Message::Mark(mark))
            }
            Kind::Close => self.close_from(content),
            Kind::Credit => {
                let (channel, credits) = (content.u64()?, content.u64()? as u32);
                // A sender that has ended needs no credits.
                if let Some(returned) = lock(&self.channels).sending.get_mut(&channel) {
                    let _ = returned.write(credits);
                }
                Ok(())
            }
            Kind::Shape => define(content, incoming),
            Kind::Fields => {
                if !incoming.fields.is_empty() {
                    return Err(content.corrupt("fields without a record"));
                }
                incoming.fields_due = content.count()?;
                Ok(())
            }
            Kind::Open => self.open_here(content),
            Kind::Fault => self.fault_from(content, incoming),
            Kind::Room => {
                self.return_room();
                Ok(())
            }
            Kind::Fetch => self.answer(content),
            Kind::Data => self.data_from(content, incoming),
            Kind::Release => {
                let (field, weight) = (content.u64()?, content.u64()?);
                self.reduce(field, weight, from).map(drop)
            }
            Kind::Abandon => {
                if let Some(context) = self.context.get().and_then(|(c, _)| c.upgrade()) {
                    context.abandon_here();
                }
                Ok(())
            }
            Kind::Finish => {
                let server = lock(&self.channels).server.take();
                drop(server);
                Ok(())
            }
            Kind::Finished => {
                let kept = content.u64()?;
                self.stall.count_finished();
                if let Some(finished) = &mut lock(&self.channels).finished {
                    let _ = finished.write(kept);
                }
                Ok(())
            }
            Kind::Last => {
                if std::mem::replace(&mut incoming.has_ended, true) {
                    return Err(content.corrupt("it is the last message for the second time"));
                }
                if from == 0 {
                    self.send_last();
                }
                // Release: pairs with the acquire in `has_ended`, whose caller then observes the
                // messages above.
                self.last.fetch_add(1, Ordering::Release);
                Ok(())
            }
            Kind::Probe | Kind::Idle | Kind::Explain | Kind::Waits => self.detected(kind, content),
        }
    }

    /// Sends a field to the rank that requests it.
    fn answer(&self, content: &mut Bytes<'_>) -> Result<(), Corrupt> {
        let from = content.from;
        let (field, weight, request) = (content.u64()?, content.u64()?, content.u64()?);
        let value = Value::Array(self.reduce(field, weight, from)?);
        let apart: Vec<&Arc<Array>> = self.apart(&value).into_iter().collect();
        self.post_as(from, Posted::Counted, &apart, |bytes, _| {
            let mut frame = Write::new(bytes, Kind::Data);
            frame.u64(request);
            match apart.first() {
                Some(array) => frame.apart(array),
                None => frame.value(&value),
            }
            frame.end();
        });
        Ok(())
    }

    fn detected(&self, kind: Kind, content: &mut Bytes<'_>) -> Result<(), Corrupt> {
        match kind {
            Kind::Probe => self.stall.probe(content.u64()?),
            Kind::Idle => {
                let (wave, sent, received) = (content.u64()?, content.u64()?, content.u64()?);
                if !self.stall.add(wave, sent, received) {
                    return Err(content.corrupt("it answers another probe"));
                }
            }
            Kind::Explain => self.stall.request(),
            _ => self.stall.explain(content.from, content.text()?.into()),
        }
        Ok(())
    }

    fn close_from(&self, content: &mut Bytes<'_>) -> Result<(), Corrupt> {
        let channel = content.u64()?;
        let mut channels = lock(&self.channels);
        let (stream, has_ended) = (channels.receiving.remove(&channel), channels.has_ended);
        drop(channels);
        match stream.is_some() || has_ended {
            true => Ok(()),
            false => Err(content.corrupt("it closes an unknown channel")),
        }
    }

    fn data_from(&self, content: &mut Bytes<'_>, incoming: &mut Incoming) -> Result<(), Corrupt> {
        let request = content.u64()?;
        let absent = lock(&self.requests).remove(&request);
        match (absent, content.value()?) {
            (Some(absent), Read::Value(Value::Array(array))) => absent.arrive(array),
            (Some(absent), Read::Apart(element, len)) => {
                absent.arrive(array(&mut incoming.fields, content, element, len)?);
            }
            _ => return Err(content.corrupt("it has data that was not requested")),
        }
        Ok(())
    }

    /// Passes a message to the receiver of its channel.
    fn deliver(&self, content: &Bytes<'_>, channel: u64, message: Message) -> Result<(), Corrupt> {
        let mut channels = lock(&self.channels);
        let has_ended = channels.has_ended;
        let Some(stream) = channels.receiving.get_mut(&channel) else {
            return match has_ended {
                true => Ok(()),
                false => Err(content.corrupt("its channel is unknown")),
            };
        };
        let written = match stream.try_write(message) {
            // The stream grows.
            Err(TryWriteError::Full(message)) if stream.capacity() < self.window() as usize => {
                stream.write(message).map_err(|closed| TryWriteError::Closed(closed.0))
            }
            written => written,
        };
        // A message that is dropped may use the channels.
        drop(channels);
        match written {
            // The receiver has ended early and has returned all credits.
            Ok(()) | Err(TryWriteError::Closed(_)) => Ok(()),
            Err(TryWriteError::Full(_)) => Err(content.corrupt("its channel has no credit")),
        }
    }

    fn open_here(&self, content: &mut Bytes<'_>) -> Result<(), Corrupt> {
        let parts = self.context.get().map_or(0, |(_, parts)| *parts);
        let count = content.count()?;
        let mut hops = VecDeque::new();
        for _ in 0..count {
            let hop = Hop { rank: content.u32()?, channel: content.u64()?, part: content.u32()? };
            if hop.part >= parts || hop.rank >= self.size {
                return Err(content.corrupt("it opens a part that the program does not have"));
            }
            hops.push_back(hop);
        }
        let home = (content.u32()?, content.u64()?);
        if hops.front().is_none_or(|hop| hop.rank != self.rank) || home.0 >= self.size {
            return Err(content.corrupt("it opens a part of another rank"));
        }
        let input = self.receiver(hops[0].channel);
        let open = Open { from: content.from, hops, home };
        let mut channels = lock(&self.channels);
        let refused = match &mut channels.server {
            Some(server) => server.write(Request::Open(open, input)).err().map(|e| e.0),
            None => Some(Request::Open(open, input)),
        };
        drop(channels);
        // The run was stopped: the part has no output.
        if let Some(Request::Open(open, input)) = refused {
            drop(input);
            self.close(open.home.0, open.home.1);
            self.credit(content.from, open.hops[0].channel, u32::MAX);
        }
        Ok(())
    }

    fn fault_from(
        self: &Arc<Self>,
        content: &mut Bytes<'_>,
        incoming: &mut Incoming,
    ) -> Result<(), Corrupt> {
        let is_broken = content.u8()? != 0;
        let (entity, message) = (content.text()?.into(), content.text()?.into());
        let record = match content.u8()? {
            0 => None,
            _ => Some(self.record(content, incoming)?),
        };
        let fault = Fault { entity, message, record };
        // The fault of a task that has ended did not wait for room.
        let room = (!is_broken).then(|| Room { node: self.clone(), from: content.from });
        let refused = match &mut lock(&self.channels).server {
            Some(server) => server.write(Request::Fault(fault, room)).err().map(|e| e.0),
            None => Some(Request::Fault(fault, room)),
        };
        drop(refused);
        Ok(())
    }

    /// Reads a record.
    fn record(
        self: &Arc<Self>,
        content: &mut Bytes<'_>,
        incoming: &mut Incoming,
    ) -> Result<Record, Corrupt> {
        let Incoming { shapes, fields, .. } = incoming;
        let order = shapes.get(content.u32()? as usize).and_then(Option::as_ref);
        let order = order.ok_or(content.corrupt("its shape is unknown"))?;
        let mut values = vec![Value::default(); order.positions.len()];
        for position in &order.positions {
            values[*position] = match content.value()? {
                Read::Value(value) => value,
                Read::Apart(element, len) => Value::Array(array(fields, content, element, len)?),
                Read::Reference(reference) if reference.owner == self.rank => {
                    let (field, weight) = (reference.field, reference.weight);
                    Value::Array(self.reduce(field, weight, content.from)?)
                }
                Read::Reference(reference) if reference.owner < self.size => {
                    Absent::value(self, reference)
                }
                Read::Reference(_) => return Err(content.corrupt("a field has no owner")),
            };
        }
        let labels = order.shape.labels().iter();
        if labels.zip(&values).any(|(label, value)| !value.fits(label.kind())) {
            return Err(content.corrupt("a value has the wrong kind"));
        }
        Ok(Record::new(order.shape, values))
    }
}

/// The data of fields that were requested does not arrive any more.
impl Drop for Node {
    fn drop(&mut self) {
        let requests = self.requests.get_mut().unwrap_or_else(|e| e.into_inner());
        requests.drain().for_each(|(_, absent)| absent.end());
    }
}

/// Sends the labels of a shape, if the other rank does not have them.
fn announce(bytes: &mut Vec<u8>, shapes: &mut Vec<bool>, shape: Shape) {
    let number = shape.number() as usize;
    if shapes.get(number).is_some_and(|is_known| *is_known) {
        return;
    }
    shapes.resize(shapes.len().max(number + 1), false);
    shapes[number] = true;
    let mut frame = Write::new(bytes, Kind::Shape);
    frame.u32(shape.number()).u32(shape.len() as u32);
    for label in shape.labels() {
        frame.u8(label.kind() as u8).text(label.name());
    }
    frame.end();
}

/// Writes the shape and the values of a record, or references to them, or the forms of those whose
/// elements are `apart`. Both lists are in the order of the values.
fn write_values(
    frame: &mut Write<'_>,
    record: &Record,
    references: &[(usize, Reference)],
    apart: &[&Arc<Array>],
) {
    frame.u32(record.shape().number());
    let mut references = references.iter().peekable();
    let mut apart = apart.iter().peekable();
    let mut is_apart = |value: &Value| match value {
        Value::Array(array) => apart.next_if(|of| Arc::ptr_eq(of, array)).copied(),
        _ => None,
    };
    for (i, value) in record.values().iter().enumerate() {
        match references.next_if(|(at, _)| *at == i) {
            Some((_, reference)) => frame.reference(*reference),
            None => match is_apart(value) {
                Some(array) => frame.apart(array),
                None => frame.value(value),
            },
        }
    }
}

/// Most bytes of a value in a frame.
fn size(value: &Value) -> usize {
    match value {
        Value::Array(array) => array.bytes().len() + VALUE_BYTES,
        _ => VALUE_BYTES,
    }
}

/// Stores the labels of a shape of another rank.
fn define(content: &mut Bytes<'_>, incoming: &mut Incoming) -> Result<(), Corrupt> {
    let (number, count) = (content.u32()? as usize, content.count()?);
    if number >= SHAPES_MAX {
        return Err(content.corrupt("a shape has an unknown number"));
    }
    let mut labels = Vec::new();
    for _ in 0..count {
        let kind = match content.u8()? {
            0 => label::Kind::Field,
            1 => label::Kind::Tag,
            2 => label::Kind::BindingTag,
            _ => return Err(content.corrupt("a label has an unknown kind")),
        };
        let label = Label::new(kind, content.text()?);
        labels.push(label.map_err(|_| content.corrupt("the run has too many labels"))?);
    }
    let shape = Shape::new(labels.iter().copied());
    let shape = shape.map_err(|_| content.corrupt("the run has too many shapes"))?;
    let positions = labels.iter().map(|label| shape.position(*label)).collect::<Option<Vec<_>>>();
    let positions = positions.filter(|positions| positions.len() == shape.len());
    let positions = positions.ok_or(content.corrupt("a shape has a label twice"))?;
    let known = incoming.shapes.len().max(number + 1);
    incoming.shapes.resize_with(known, || None);
    incoming.shapes[number] = Some(Order { shape, positions });
    Ok(())
}

/// Receiver's account of a channel: returns credits.
pub(crate) struct Taken {
    node: Arc<Node>,
    from: u32,
    channel: u64,
    owed: u32,
}

impl Taken {
    pub(crate) fn new(node: Arc<Node>, from: u32, channel: u64) -> Taken {
        Taken { node, from, channel, owed: 0 }
    }

    /// Credits that a record has cost.
    pub(crate) fn cost(&self, record: &Record) -> u32 {
        self.node.cost(record)
    }

    /// Counts the credits of a message that the next part has taken.
    pub(crate) fn count(&mut self, cost: u32) {
        self.owed += cost;
        if self.owed >= self.node.batch() {
            self.node.credit(self.from, self.channel, std::mem::take(&mut self.owed));
        }
    }
}

/// The sender of a receiver that ends early must not wait for credits. After the end of the
/// channel, its sender ignores them.
impl Drop for Taken {
    fn drop(&mut self) {
        let unread = lock(&self.node.channels).receiving.contains_key(&self.channel);
        if unread {
            self.node.credit(self.from, self.channel, u32::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::{frames, is_credit};
    use super::*;

    fn record(values: [Value; 3]) -> Record {
        let field = |name| Label::new(label::Kind::Field, name).unwrap();
        Record::from_pairs(["a", "m", "z"].map(field).into_iter().zip(values)).unwrap()
    }

    fn node() -> Arc<Node> {
        Node::new((1, 3), Window::of(4), 8, false, || {})
    }

    const REFERENCE: Reference = Reference { owner: 0, field: 5, weight: 8 };

    #[test]
    fn record_that_cannot_move_keeps_no_field_and_its_weights() {
        let node = node();
        let large = || Value::bytes(&[7; 100]);
        for refused in [Value::native(()), Value::bytes(&[0; 4])] {
            let moves = refused.has_text();
            for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
                let absent = Absent::value(&node, REFERENCE);
                let values = [large(), absent, refused.clone()];
                let sent = node.send_record(2, 9, &record(order.map(|i| values[i].clone())));
                assert_eq!((sent.is_ok(), node.fields_held()), (moves, usize::from(moves)));
                drop(values);
                lock(&node.held).clear();
                let released = frames(node.take(0).unwrap().as_ref()).remove(0);
                let mut content = Bytes { bytes: &released[4 + 1 + 8..], from: 1 };
                assert_eq!(content.u64().unwrap(), if moves { 4 } else { 8 });
            }
        }
    }

    #[test]
    fn data_that_has_arrived_moves_on_as_a_reference() {
        let node = node();
        let value = Absent::value(&node, REFERENCE);
        let data = Value::bytes(&[7; 100]);
        let Value::Array(array) = &data else { unreachable!("the value is an array") };
        Absent::of(&value).unwrap().arrive(array.clone());
        let record = record([value, Value::from(1), Value::from(2)]);
        node.send_record(2, 9, &record).unwrap();
        assert_eq!(node.fields_held(), 1);
        assert!(node.take(2).unwrap().as_ref().len() < 200);
    }

    /// Passes a reference to a field of rank 0 on to rank 1 and half of it to rank 2, where both
    /// are dropped. `change` changes the weights that return. Returns the fields that rank 0 keeps.
    fn fields_after_return(change: impl Fn(u64) -> u64) -> usize {
        let rank = |rank| Node::new((rank, 3), Window::of(4), 8, false, || {});
        let nodes: Vec<_> = (0..3).map(rank).collect();
        let value = Value::Array(Arc::new(Array::from_bytes(Element::UChar, &[7; 100])));
        let mut passed = record([value, Value::from(1), Value::from(2)]);
        for (from, to) in [(0, 1), (1, 2)] {
            nodes[from].send_record(to, 9, &passed).unwrap();
            let bytes = nodes[from].take(to).unwrap();
            let mut incoming = lock(&nodes[to as usize].incoming[from]);
            let mut bytes = Bytes { bytes: bytes.as_ref(), from: from as u32 };
            while let Some((kind, mut content)) = bytes.frame().unwrap() {
                if kind == Kind::Shape {
                    define(&mut content, &mut incoming).unwrap();
                } else {
                    assert_eq!(content.u64(), Ok(9));
                    passed = nodes[to as usize].record(&mut content, &mut incoming).unwrap();
                }
            }
        }
        drop(passed);
        for from in [1, 2] {
            for mut frame in frames(nodes[from].take(0).unwrap().as_ref()) {
                let weight = u64::from_le_bytes(frame[13..].try_into().unwrap());
                frame[13..].copy_from_slice(&change(weight).to_le_bytes());
                nodes[0].receive(from as u32, &frame).unwrap();
            }
        }
        nodes[0].fields_held()
    }

    #[test]
    fn field_is_kept_until_all_of_its_weight_returns() {
        assert_eq!(fields_after_return(|weight| weight), 0);
        // A planted fault: half of a weight is lost.
        assert_eq!(fields_after_return(|weight| weight / 2), 1);
    }

    #[test]
    fn fields_that_are_messages_of_their_own_do_not_count_in_the_size_of_a_frame() {
        let node = Node::new((1, 3), Window::of(4), FRAME_MAX, false, || {});
        // Zeros that are not touched take no memory.
        let half = Value::Array(Arc::new(Array::zeroed(Element::UChar, FRAME_MAX / 2)));
        let record = record([half.clone(), half, Value::from(1)]);
        assert_eq!(node.check(&record), Ok(()));
        node.set_apart_bytes(FRAME_MAX);
        assert!(node.check(&record).unwrap_err().contains("reduce the size"));
    }

    #[test]
    fn field_that_is_a_message_of_its_own_arrives_whole_or_not_at_all() {
        let nodes = [0, 1].map(|r| Node::new((r, 2), Window::of(4), 1 << 20, false, || {}));
        let data = [7; APART_BYTES + 9];
        let sent = record([Value::bytes(&data), Value::from(1), Value::bytes(&[1; 100])]);
        let receive = |change: &dyn Fn(&mut Vec<Vec<u8>>)| -> Result<_, Corrupt> {
            let mut input = nodes[1].receiver(9);
            nodes[0].send_record(1, 9, &sent).unwrap();
            let taken = || nodes[0].take(1).map(|message| message.as_ref().to_vec());
            let mut messages: Vec<Vec<u8>> = std::iter::from_fn(taken).collect();
            assert_eq!((messages.len(), messages[1].len()), (3, data.len()));
            change(&mut messages);
            for message in messages {
                nodes[1].receive(0, &message)?;
            }
            match input.try_read() {
                Ok(Message::Record(record)) => Ok(Some(record)),
                _ => Ok(None),
            }
        };
        let arrived = receive(&|_| {}).unwrap().unwrap();
        assert!(arrived.values() == sent.values());
        // Planted faults: a field is cut, or the transport delivers it before its announcement.
        let cut = receive(&|messages| messages[1].truncate(9));
        assert_eq!(cut.err().unwrap().what, "a field has another number of elements");
        // Planted fault: a record is lost after its field, which the next record does not take.
        assert!(receive(&|messages| messages.truncate(2)).unwrap().is_none());
        assert_eq!(receive(&|_| {}).err().unwrap().what, "fields without a record");
        assert!(receive(&|messages| messages.swap(0, 1)).is_err());
    }

    #[test]
    fn channel_takes_the_messages_of_its_window_and_is_bounded() {
        for window in [1, 3, 64, 100, 1024] {
            let nodes = [0, 1].map(|r| Node::new((r, 2), Window::of(window), 8, false, || {}));
            let _input = nodes[1].receiver(9);
            let takes = |_: &u32| {
                nodes[0].send_mark(1, 9, Mark::Group);
                nodes[1].receive(0, nodes[0].take(1).unwrap().as_ref()).is_ok()
            };
            let taken = (0..3 * window).take_while(takes).count() as u32;
            // A stream that has grown has more room.
            let most = if window <= ROOM_MIN { window } else { 3 * window - 1 };
            assert!((window..=most).contains(&taken), "{taken} of {window}");
        }
    }

    #[test]
    fn record_costs_the_same_on_both_ranks_and_never_more_than_a_receiver_leaves() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut costs = HashMap::new();
        for _ in 0..2000 {
            let window = Window { messages: random.u32(1..20), bytes: random.usize(..2000) };
            let eager_bytes = random.usize(..200);
            let node = |rank| Node::new((rank, 2), window, eager_bytes, false, || {});
            let nodes = [0, 1].map(node);
            let mut value = || match random.u8(..3) {
                0 => Value::from(5),
                1 => Absent::value(&nodes[0], Reference { owner: 1, ..REFERENCE }),
                _ => Value::bytes(&vec![7; random.usize(..300)]),
            };
            let sent = record([value(), value(), value()]);
            let of_field = |value: &Value| value.as_bytes().map_or(0, <[u8]>::len);
            let moved = sent.values().iter().map(of_field).filter(|n| *n <= eager_bytes);
            let moved: usize = moved.sum();
            let cost = nodes[0].cost(&sent);
            assert!(cost >= 1 && cost + nodes[0].batch() <= window.messages + 1, "{window:?}");
            // The records that all credits allow have no more bytes than the window, unless they
            // cost less than their bytes.
            let whole = (window.bytes / window.messages as usize).max(1);
            let is_whole = cost as usize == moved.div_ceil(whole).max(1);
            assert!(is_whole || cost == window.messages - nodes[0].batch() + 1);
            let held = Value::bytes(&vec![7; 300]);
            let Value::Array(held) = held else { unreachable!("the value is an array") };
            lock(&nodes[1].held).insert(REFERENCE.field, Held { array: held, weight: WEIGHT });
            nodes[0].send_record(1, 9, &sent).unwrap();
            let bytes = nodes[0].take(1).unwrap();
            let mut bytes = Bytes { bytes: bytes.as_ref(), from: 0 };
            let mut incoming = lock(&nodes[1].incoming[0]);
            let (_, mut shape) = bytes.frame().unwrap().unwrap();
            define(&mut shape, &mut incoming).unwrap();
            let (_, mut content) = bytes.frame().unwrap().unwrap();
            assert_eq!(content.u64(), Ok(9));
            let arrived = nodes[1].record(&mut content, &mut incoming).unwrap();
            assert_eq!(nodes[1].cost(&arrived), cost, "{window:?}, {eager_bytes}");
            drop(incoming);
            *costs.entry(cost).or_insert(0) += 1;
        }
        assert!(costs.len() > 8, "{costs:?}");
    }

    /// Ranks whose tasks pass work on by messages, without a runtime.
    struct Crowd {
        nodes: Vec<Arc<Node>>,
        is_active: Vec<bool>,
        /// Steps of active ranks that are left.
        work: usize,
        /// By sender and receiver.
        under_way: Vec<VecDeque<Vec<u8>>>,
        random: fastrand::Rng,
    }

    impl Crowd {
        fn new(count: u32, seed: u64, is_hasty: bool) -> Crowd {
            let node = |rank| Node::new((rank, count), Window::of(1), 0, false, || {});
            let nodes: Vec<_> = (0..count).map(node).collect();
            nodes.iter().for_each(|node| node.stall.set_hasty(is_hasty));
            let under_way = vec![VecDeque::new(); (count * count) as usize];
            let mut random = fastrand::Rng::with_seed(seed);
            let is_active = vec![true; count as usize];
            Crowd { nodes, is_active, work: random.usize(..100), under_way, random }
        }

        /// A step of a random rank. Returns the report, if there is one.
        fn step(&mut self) -> Option<String> {
            let count = self.nodes.len();
            let at = self.random.usize(..count);
            match self.random.u8(..4) {
                0 if self.is_active[at] => {
                    self.work = self.work.saturating_sub(1);
                    self.is_active[at] = self.work > 0 && self.random.u8(..4) == 0;
                    let to = self.random.usize(..count);
                    if to != at && self.work > 0 {
                        self.nodes[at].credit(to as u32, 0, 1);
                    }
                }
                1 => return self.nodes[at].look_with(|| !self.is_active[at], String::new),
                2 => {
                    let from = self.random.usize(..count);
                    while let Some(bytes) = self.nodes[from].take(at as u32) {
                        self.under_way[from * count + at].extend(frames(bytes.as_ref()));
                    }
                }
                _ => {
                    let from = self.random.usize(..count);
                    if let Some(frame) = self.under_way[from * count + at].pop_front() {
                        self.is_active[at] |= is_credit(&frame);
                        self.nodes[at].receive(from as u32, &frame).unwrap();
                    }
                }
            }
            None
        }

        /// Whether a rank may still make progress.
        fn makes_progress(&self) -> bool {
            let outgoing = self.nodes.iter().flat_map(|node| &node.outgoing);
            let sent = outgoing.flat_map(|outgoing| lock(outgoing).messages.clone());
            let sent = sent.map(|message| message.as_ref().to_vec());
            let has_credit = |bytes: Vec<u8>| frames(&bytes).iter().any(|f| is_credit(f));
            sent.chain(self.arriving()).any(has_credit) || self.is_active.contains(&true)
        }

        fn arriving(&self) -> impl Iterator<Item = Vec<u8>> {
            self.under_way.iter().flatten().cloned()
        }
    }

    /// Cases in which a report comes too early.
    fn wrong_reports(is_hasty: bool) -> usize {
        let is_wrong = |seed| {
            let mut crowd = Crowd::new(2 + (seed % 4) as u32, seed, is_hasty);
            for _ in 0..1_000_000 {
                if crowd.step().is_some() {
                    return crowd.makes_progress();
                }
            }
            panic!("the run makes no progress, without a report: seed {seed}")
        };
        (0..500).filter(|seed| is_wrong(*seed)).count()
    }

    #[test]
    fn report_comes_always_and_only_without_progress() {
        assert_eq!(wrong_reports(false), 0);
        // A planted fault: one wave is no proof.
        assert!(wrong_reports(true) > 0);
    }
}
