//! Reads a trace packet by packet.

use crate::compression;
use crate::counter::Fix;
use crate::error::Error;
use crate::event::{FIELDS_MAX, KINDS_MAX, Type};
use crate::packet::{
    self, Bytes, Content, FILE_HEADER_BYTES, FILE_MAGIC, HEADER_BYTES, Header, KIND_BITS, Span,
};
use crate::run;
use crate::timing::{self, Clock};
use crate::trace::STREAMS_MAX;
use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;

/// Reads a trace in file order: packets in the order in which they were written, which is the order
/// of events for each thread.
///
/// The reader holds one packet of bounded size at a time. Everything up to the last complete packet
/// can be read, even if the process was killed. [`Reader::ending`] describes how the trace ends.
///
/// ```
/// use corebeat_trace::{Event, Reader, Trace, Value};
///
/// #[derive(Event)]
/// struct Paid {
///     account: u32,
/// }
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("paid.cbt");
/// let trace = Trace::create(&path)?;
/// if let Some(log) = trace.log() {
///     log.emit(&Paid { account: 7 });
/// }
/// trace.finish()?;
///
/// let mut reader = Reader::new(std::fs::File::open(&path)?)?;
/// while let Some(packet) = reader.next_packet()? {
///     for event in packet.events() {
///         assert_eq!(event.kind().name(), "Paid");
///         assert_eq!(event.value("account"), Some(Value::U64(7)));
///     }
/// }
/// assert!(reader.ending().is_some_and(|ending| ending.is_complete()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Reader<R> {
    input: R,
    /// Position of the next packet.
    at_byte: u64,
    kinds: Arc<Vec<ReadKind>>,
    threads: BTreeMap<u32, Arc<Thread>>,
    /// Time of the last event of each stream.
    last_ns: BTreeMap<u32, u64>,
    process: Process,
    pub(crate) clock: Clock,
    pub(crate) ending: Option<Ending>,
    bytes: Vec<u8>,
}

/// The state of the end of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ending {
    /// The trace was finished.
    Complete {
        /// Lost events by stream. [`u32::MAX`] stands for threads without a stream.
        lost: BTreeMap<u32, u64>,
        /// Position of data after the end, which is not part of the trace and is not read.
        more_at_byte: Option<u64>,
    },
    /// The last packet is missing: the process was killed, or it is still recording. The contents
    /// of its buffers are missing.
    Unfinished {
        /// Position of the end of the last complete packet.
        whole_bytes: u64,
    },
    /// An invalid packet. Nothing after it is read.
    Damaged {
        /// Position of the packet.
        at_byte: u64,
        /// The reason why it is invalid.
        why: &'static str,
    },
}

impl Ending {
    /// Whether the trace was finished.
    pub fn is_complete(&self) -> bool {
        matches!(self, Ending::Complete { .. })
    }

    /// The reported number of lost events of all threads; 0 if the report is missing.
    pub fn lost(&self) -> u64 {
        match self {
            // The numbers in a file are arbitrary.
            Ending::Complete { lost, .. } => {
                lost.values().fold(0, |all, lost| all.saturating_add(*lost))
            }
            _ => 0,
        }
    }
}

impl std::fmt::Display for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Ending::Complete { lost, more_at_byte } => {
                write!(f, "complete")?;
                if !lost.is_empty() {
                    write!(f, ", with {} lost events", self.lost())?;
                }
                match more_at_byte {
                    Some(at_byte) => {
                        write!(f, "; data after byte {at_byte} is not part of the trace")
                    }
                    None => Ok(()),
                }
            }
            Ending::Unfinished { whole_bytes } => {
                write!(f, "unfinished: complete up to byte {whole_bytes}")
            }
            Ending::Damaged { at_byte, why } => write!(f, "damaged at byte {at_byte}: {why}"),
        }
    }
}

/// The recorded process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Process {
    /// Its process ID.
    pub pid: u32,
    /// The source of its counter: `tsc`, `cntvct` or `clock`.
    pub counter: String,
    /// File name of the program.
    pub program: String,
}

/// A recorded thread.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Thread {
    /// Its stream's number in the trace.
    pub stream: u32,
    /// Its thread ID.
    pub tid: u32,
    /// Its name, which may be empty.
    pub name: String,
}

/// A kind of events, as declared in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadKind {
    number: u16,
    name: String,
    timed: bool,
    kept: bool,
    fields: Vec<ReadField>,
}

/// A field of a kind, as declared in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadField {
    /// Its name.
    pub name: String,
    /// Its type.
    pub of: Type,
    /// Whether it is displayed in base 16.
    pub hex: bool,
}

impl ReadKind {
    /// Its number in this file, starting at 1.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether its events have time stamps.
    pub fn is_timed(&self) -> bool {
        self.timed
    }

    /// Whether later events depend on its events, so that a [`Cut`](crate::Cut) includes all of
    /// them.
    pub fn is_kept(&self) -> bool {
        self.kept
    }

    /// Its fields.
    pub fn fields(&self) -> &[ReadField] {
        &self.fields
    }
}

/// A field's value.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs, reason = "the names describe the variants")]
pub enum Value<'a> {
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    Text(&'a str),
}

/// Consecutive events of one thread.
#[derive(Debug, Clone)]
pub struct Packet {
    thread: Arc<Thread>,
    kinds: Arc<Vec<ReadKind>>,
    span: Span,
    events: Vec<Position>,
    /// The events, followed by the fields of events that were stored in runs.
    bytes: Vec<u8>,
    event_bytes: usize,
}

/// Position and time of an event.
#[derive(Debug, Clone, Copy)]
struct Position {
    kind: u16,
    fields_at: u32,
    fields_end: u32,
    bound_ns: u32,
    time_ns: u64,
}

/// An event.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    packet: &'a Packet,
    position: Position,
    kind: &'a ReadKind,
}

impl Packet {
    /// The thread that logged these events.
    pub fn thread(&self) -> &Arc<Thread> {
        &self.thread
    }

    /// Events of this thread that were lost before this packet, since the begin of the trace.
    pub fn lost(&self) -> u64 {
        self.span.lost
    }

    /// Size of its events before compression, in bytes.
    pub fn event_bytes(&self) -> usize {
        self.event_bytes
    }

    /// Begin and end of its buffer, in nanoseconds of `CLOCK_MONOTONIC`.
    pub fn span_ns(&self) -> (u64, u64) {
        (self.span.begin.monotonic_ns, self.span.end.monotonic_ns)
    }

    /// Offset that converts times to `CLOCK_REALTIME`, which is nanoseconds since 1970.
    pub fn real_offset_ns(&self) -> i64 {
        self.span.real_offset_ns
    }

    /// The events that every part of the trace keeps: kind and encoded fields, never as a run.
    pub(crate) fn kept(&self) -> impl Iterator<Item = (u16, &[u8])> {
        let is_kept = |position: &&Position| self.kinds[usize::from(position.kind) - 1].kept;
        let bytes = |position: &Position| {
            &self.bytes[position.fields_at as usize..position.fields_end as usize]
        };
        self.events.iter().filter(is_kept).map(move |position| (position.kind, bytes(position)))
    }

    /// Approximate size in memory.
    pub(crate) fn held_bytes(&self) -> usize {
        self.bytes.capacity() + self.events.capacity() * size_of::<Position>()
    }

    /// The event with this index.
    pub(crate) fn event(&self, index: usize) -> Option<Record<'_>> {
        let position = *self.events.get(index)?;
        Some(Record { packet: self, position, kind: &self.kinds[usize::from(position.kind) - 1] })
    }

    /// Its events, in order.
    pub fn events(&self) -> impl ExactSizeIterator<Item = Record<'_>> {
        // `locate` has checked that the kind of every event exists.
        self.events.iter().map(|position| Record {
            packet: self,
            position: *position,
            kind: &self.kinds[usize::from(position.kind) - 1],
        })
    }
}

impl<'a> Record<'a> {
    /// The kind of the event.
    pub fn kind(&self) -> &'a ReadKind {
        self.kind
    }

    /// The thread that logged the event.
    pub fn thread(&self) -> &'a Arc<Thread> {
        &self.packet.thread
    }

    /// Time in nanoseconds of `CLOCK_MONOTONIC`. Untimed events are spaced evenly between the timed
    /// events around them.
    pub fn time_ns(&self) -> u64 {
        self.position.time_ns
    }

    /// Largest possible error of the time, in nanoseconds, given the known differences between the
    /// counters of cores. A [`Timeline`](crate::Timeline) determines these from the whole file, a
    /// [`Reader`] from the packets that it has read.
    pub fn bound_ns(&self) -> u32 {
        self.position.bound_ns
    }

    /// The same time in nanoseconds since 1970.
    pub fn real_time_ns(&self) -> u64 {
        self.position.time_ns.saturating_add_signed(self.packet.span.real_offset_ns)
    }

    /// The fields' values, in order.
    pub fn values(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let Position { fields_at, fields_end, .. } = self.position;
        let mut bytes = Bytes(&self.packet.bytes[fields_at as usize..fields_end as usize]);
        self.kind.fields.iter().map_while(move |field| Value::read(field.of, &mut bytes))
    }

    /// The fields with their values, in order.
    pub fn fields(&self) -> impl Iterator<Item = (&'a ReadField, Value<'a>)> + use<'a> {
        self.kind.fields.iter().zip(self.values())
    }

    /// A field's value, by its name.
    pub fn value(&self, field: &str) -> Option<Value<'a>> {
        self.fields().find(|(declared, _)| declared.name == field).map(|(_, value)| value)
    }
}

impl<'a> Value<'a> {
    fn read(of: Type, bytes: &mut Bytes<'a>) -> Option<Value<'a>> {
        Some(match of {
            Type::U8 => Value::U64(bytes.u8()?.into()),
            Type::U16 => Value::U64(bytes.u16()?.into()),
            Type::U32 => Value::U64(bytes.u32()?.into()),
            Type::U64 => Value::U64(bytes.u64()?),
            Type::I8 => Value::I64((bytes.u8()? as i8).into()),
            Type::I16 => Value::I64((bytes.u16()? as i16).into()),
            Type::I32 => Value::I64((bytes.u32()? as i32).into()),
            Type::I64 => Value::I64(bytes.u64()? as i64),
            Type::F32 => Value::F32(f32::from_bits(bytes.u32()?)),
            Type::F64 => Value::F64(f64::from_bits(bytes.u64()?)),
            Type::Bool => Value::Bool(bytes.u8()? != 0),
            Type::Text => Value::Text(bytes.text()?),
        })
    }
}

impl<R: Read> Reader<R> {
    /// Reads the header of a trace.
    ///
    /// # Errors
    ///
    /// The input cannot be read, is not a trace, or has an unknown version.
    pub fn new(mut input: R) -> Result<Reader<R>, Error> {
        let mut header = [0; FILE_HEADER_BYTES];
        let read = fill(&mut input, &mut header).map_err(Error::Read)?;
        let mut bytes = Bytes(&header[..read]);
        if bytes.take(FILE_MAGIC.len()) != Some(&FILE_MAGIC) {
            return Err(Error::NotATrace);
        }
        match (bytes.u32(), bytes.u32()) {
            (Some(packet::VERSION), Some(0)) => {}
            (Some(found), _) if found != packet::VERSION => return Err(Error::Version { found }),
            _ => return Err(Error::NotATrace),
        }
        Ok(Reader {
            input,
            at_byte: FILE_HEADER_BYTES as u64,
            kinds: Arc::default(),
            threads: BTreeMap::new(),
            last_ns: BTreeMap::new(),
            process: Process::default(),
            clock: Clock::default(),
            ending: None,
            bytes: Vec::new(),
        })
    }

    /// The next packet of events. Returns `None` after the last one; [`Reader::ending`] then
    /// describes the end.
    ///
    /// # Errors
    ///
    /// The input cannot be read. Invalid contents are not an error: they end the trace.
    pub fn next_packet(&mut self) -> Result<Option<Packet>, Error> {
        while self.ending.is_none() {
            match self.read_packet().map_err(Error::Read)? {
                Ok(Some(packet)) => return Ok(Some(packet)),
                Ok(None) => {}
                Err(ending) => self.ending = Some(ending),
            }
        }
        Ok(None)
    }

    /// The state of the end, after the last packet was read.
    pub fn ending(&self) -> Option<&Ending> {
        self.ending.as_ref()
    }

    /// The recorded process, after a packet was read.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// The kinds declared so far.
    pub fn kinds(&self) -> &[ReadKind] {
        &self.kinds
    }

    /// The threads declared so far, by stream.
    pub fn threads(&self) -> impl Iterator<Item = &Arc<Thread>> {
        self.threads.values()
    }

    /// Ticks of the counter per second, if the packets read so far determine it.
    pub fn counter_hz(&self) -> Option<f64> {
        self.clock.hz()
    }

    /// The largest observed difference between the counters of cores, in nanoseconds.
    pub fn spread_ns(&self) -> u64 {
        self.clock.spread_ns()
    }

    /// Reads and evaluates one packet. The inner error is the end of the trace.
    fn read_packet(&mut self) -> io::Result<Result<Option<Packet>, Ending>> {
        let at_byte = self.at_byte;
        let header = match self.read_whole()? {
            Ok(header) => header,
            Err(ending) => return Ok(Err(ending)),
        };
        Ok(match self.apply_whole(header) {
            Ok(Applied::Events(packet)) => Ok(Some(packet)),
            Ok(Applied::Other) => Ok(None),
            Ok(Applied::End(lost)) => Err(self.complete(lost)?),
            Err(why) => Err(Ending::Damaged { at_byte, why }),
        })
    }

    /// Reads one packet into `bytes` and verifies its checksum.
    pub(crate) fn read_whole(&mut self) -> io::Result<Result<Header, Ending>> {
        let unfinished = Ending::Unfinished { whole_bytes: self.at_byte };
        let damaged = |why| Ending::Damaged { at_byte: self.at_byte, why };
        self.bytes.resize(HEADER_BYTES, 0);
        if fill(&mut self.input, &mut self.bytes)? < HEADER_BYTES {
            return Ok(Err(unfinished));
        }
        let header = match Header::read(&self.bytes) {
            Ok(header) => header,
            Err(why) => return Ok(Err(damaged(why))),
        };
        // Bounded: `Header::read` refuses sizes above the limit.
        self.bytes.resize(HEADER_BYTES + header.span_bytes() + header.stored_bytes as usize, 0);
        if fill(&mut self.input, &mut self.bytes[HEADER_BYTES..])? < self.bytes.len() - HEADER_BYTES
        {
            return Ok(Err(unfinished));
        }
        if !packet::is_whole(&self.bytes) {
            return Ok(Err(damaged("the checksum of a packet is wrong")));
        }
        self.at_byte += self.bytes.len() as u64;
        Ok(Ok(header))
    }

    /// The end of a trace whose last packet was read.
    pub(crate) fn complete(&mut self, lost: BTreeMap<u32, u64>) -> io::Result<Ending> {
        let is_more = fill(&mut self.input, &mut [0])? > 0;
        Ok(Ending::Complete { lost, more_at_byte: is_more.then_some(self.at_byte) })
    }

    /// Position of the next packet.
    pub(crate) fn at_byte(&self) -> u64 {
        self.at_byte
    }

    /// The bytes of the packet that was read last.
    pub(crate) fn whole(&self) -> &[u8] {
        &self.bytes
    }

    /// Reads the whole trace, without decoding events. Calls `each` with the position, stream and
    /// span of every packet of events.
    pub(crate) fn survey(&mut self, mut each: impl FnMut(u64, u32, Span)) -> io::Result<()> {
        while self.ending.is_none() {
            let at_byte = self.at_byte;
            let header = match self.read_whole()? {
                Ok(header) => header,
                Err(ending) => {
                    self.ending = Some(ending);
                    break;
                }
            };
            let span = Span::read(&mut Bytes(&self.bytes[HEADER_BYTES..]));
            let applied = match (header.content, span) {
                (Content::Events, Some(span)) if self.threads.contains_key(&header.stream) => {
                    each(at_byte, header.stream, span);
                    Ok(Applied::Other)
                }
                _ => self.apply_whole(header),
            };
            self.ending = match applied {
                Ok(Applied::End(lost)) => Some(self.complete(lost)?),
                Err(why) => Some(Ending::Damaged { at_byte, why }),
                Ok(_) => None,
            };
        }
        Ok(())
    }

    /// Evaluates the packet that was read last. The error is the reason why it is invalid.
    pub(crate) fn apply_whole(&mut self, header: Header) -> Result<Applied, &'static str> {
        let bytes = std::mem::take(&mut self.bytes);
        let applied = self.apply(header, &bytes[HEADER_BYTES..]);
        self.bytes = bytes;
        applied
    }

    fn apply(&mut self, header: Header, bytes: &[u8]) -> Result<Applied, &'static str> {
        let mut bytes = Bytes(bytes);
        const SHORT: &str = "a packet is shorter than its contents";
        match header.content {
            Content::Process => {
                self.process = Process {
                    pid: bytes.u32().ok_or(SHORT)?,
                    counter: bytes.text().ok_or(SHORT)?.into(),
                    program: bytes.text().ok_or(SHORT)?.into(),
                };
            }
            Content::Kinds => {
                let kind =
                    ReadKind::read(&mut bytes).ok_or("the declaration of a kind is invalid")?;
                if usize::from(kind.number) != self.kinds.len() + 1 || self.kinds.len() == KINDS_MAX
                {
                    return Err("the number of a kind is not the next one");
                }
                Arc::make_mut(&mut self.kinds).push(kind);
            }
            Content::Thread => {
                if header.stream >= STREAMS_MAX {
                    return Err("the number of a thread is too large");
                }
                let thread = Thread {
                    stream: header.stream,
                    tid: bytes.u32().ok_or(SHORT)?,
                    name: bytes.text().ok_or(SHORT)?.into(),
                };
                self.threads.insert(header.stream, Arc::new(thread));
            }
            Content::Events => {
                let span = Span::read(&mut bytes).ok_or(SHORT)?;
                let thread =
                    self.threads.get(&header.stream).ok_or("events of an undeclared thread")?;
                let mut packet = Packet {
                    event_bytes: header.raw_bytes as usize,
                    thread: thread.clone(),
                    kinds: self.kinds.clone(),
                    span,
                    events: Vec::new(),
                    bytes: compression::expand(header.codec, bytes.0, header.raw_bytes as usize)
                        .ok_or(compression::failure(header.codec))?,
                };
                packet.locate(&mut self.clock)?;
                packet.enforce_order(self.last_ns.entry(header.stream).or_default());
                return Ok(Applied::Events(packet));
            }
            Content::End => {
                let mut lost = BTreeMap::new();
                while let (Some(stream), Some(events)) = (bytes.u32(), bytes.u64()) {
                    lost.insert(stream, events);
                }
                return Ok(Applied::End(lost));
            }
        }
        Ok(Applied::Other)
    }
}

impl<R: Read + Seek> Reader<R> {
    /// Reads the packet of events at a position that `survey` has reported. The inner error is the
    /// reason why the packet is invalid.
    pub(crate) fn packet_at(
        &mut self,
        at_byte: u64,
    ) -> Result<Result<Packet, &'static str>, Error> {
        self.input.seek(SeekFrom::Start(at_byte)).map_err(Error::Read)?;
        let Ok(header) = self.read_whole().map_err(Error::Read)? else {
            return Ok(Err("a packet changed while it was read"));
        };
        Ok(match self.apply_whole(header) {
            Ok(Applied::Events(packet)) => Ok(packet),
            Ok(_) => Err("a packet changed while it was read"),
            Err(why) => Err(why),
        })
    }
}

/// The contents of a packet.
pub(crate) enum Applied {
    Events(Packet),
    End(BTreeMap<u32, u64>),
    Other,
}

impl ReadKind {
    fn read(bytes: &mut Bytes<'_>) -> Option<ReadKind> {
        let number = bytes.u16()?;
        let flags = bytes.u8()?;
        let timed = flags & 1 == 1;
        let kept = flags & 2 == 2 && !timed;
        let name = bytes.text()?.to_owned();
        let fields = usize::from(bytes.u8()?);
        if fields > FIELDS_MAX {
            return None;
        }
        let fields = (0..fields).map(|_| {
            let of = *Type::ALL.get(usize::from(bytes.u8()?))?;
            let hex = bytes.u8()? & 1 == 1;
            Some(ReadField { name: bytes.text()?.to_owned(), of, hex })
        });
        Some(ReadKind { number, name, timed, kept, fields: fields.collect::<Option<_>>()? })
    }

    /// Whether its events may be stored in runs.
    fn has_runs(&self) -> bool {
        matches!(&self.fields[..], [ReadField { of: Type::U32, .. }])
    }

    /// Skips the fields of an event. Returns `None` if they are incomplete.
    fn skip(&self, bytes: &mut Bytes<'_>) -> Option<()> {
        for field in &self.fields {
            match field.of.bytes() {
                Some(fixed) => drop(bytes.take(fixed)?),
                None => drop(bytes.text()?),
            }
        }
        Some(())
    }
}

impl Packet {
    /// Locates the events in the bytes and determines their times.
    fn locate(&mut self, clock: &mut Clock) -> Result<(), &'static str> {
        const BROKEN: &str = "events are invalid";
        let all = std::mem::take(&mut self.bytes);
        let mut bytes = Bytes(&all);
        let mut begin = self.span.begin;
        clock.learn_fix(&begin);
        clock.learn_fix(&self.span.end);
        let mut counter = begin.counter;
        // Events since the last fix, with their counters.
        let mut since: Vec<(Position, Option<u64>)> = Vec::new();
        // Bounded: an offset of one byte becomes a field of four.
        let mut of_runs = Vec::new();
        while let Some(head) = bytes.u16() {
            let number = head & ((1 << KIND_BITS) - 1);
            if number == 0 {
                let fix = Fix::read(&mut bytes).ok_or(BROKEN)?;
                clock.learn_fix(&fix);
                self.time(clock, &begin, &fix, &mut since);
                (begin, counter) = (fix, fix.counter);
                continue;
            }
            let kind =
                self.kinds.get(usize::from(number) - 1).ok_or("the kind of an event is unknown")?;
            let position = |fields_at: usize, fields_end: usize| {
                let (fields_at, fields_end) = (fields_at as u32, fields_end as u32);
                Position { kind: number, fields_at, fields_end, bound_ns: 0, time_ns: 0 }
            };
            let mut stamp = None;
            if !kind.timed && run::is_one(head) {
                if !kind.has_runs() {
                    return Err(BROKEN);
                }
                for value in run::read(head, &mut bytes).ok_or(BROKEN)? {
                    let fields_at = all.len() + of_runs.len();
                    of_runs.extend(value.to_le_bytes());
                    since.push((position(fields_at, fields_at + size_of::<u32>()), None));
                }
                continue;
            }
            if kind.timed {
                let high = bytes.u16().ok_or(BROKEN)?;
                let ticks = (u32::from(high) << 16 | u32::from(head)) >> KIND_BITS;
                counter = counter.wrapping_add(ticks.into());
                stamp = Some(counter);
            }
            let fields_at = all.len() - bytes.0.len();
            kind.skip(&mut bytes).ok_or(BROKEN)?;
            since.push((position(fields_at, all.len() - bytes.0.len()), stamp));
        }
        if !bytes.0.is_empty() {
            return Err(BROKEN);
        }
        let end = self.span.end;
        self.time(clock, &begin, &end, &mut since);
        self.bytes = all;
        self.bytes.append(&mut of_runs);
        Ok(())
    }

    /// Moves events that precede the last event of the preceding packet to the time of that event,
    /// because the events of a thread are ordered. The correction is added to their bounds.
    fn enforce_order(&mut self, last_ns: &mut u64) {
        for position in &mut self.events {
            let early_ns = last_ns.saturating_sub(position.time_ns);
            position.time_ns = position.time_ns.max(*last_ns);
            position.bound_ns =
                position.bound_ns.saturating_add(u32::try_from(early_ns).unwrap_or(u32::MAX));
            *last_ns = position.time_ns;
        }
    }

    /// Assigns times to the events between two fixes.
    fn time(
        &mut self,
        clock: &Clock,
        begin: &Fix,
        end: &Fix,
        since: &mut Vec<(Position, Option<u64>)>,
    ) {
        let bound_ns = clock.bound_ns(begin, end);
        let mut before_ns = begin.monotonic_ns;
        let mut rest = &since[..];
        while !rest.is_empty() {
            // Untimed events, and the timed event after them, if any.
            let untimed = rest.iter().take_while(|(_, stamp)| stamp.is_none()).count();
            let (run, others) = rest.split_at((untimed + 1).min(rest.len()));
            let stamp = run.last().and_then(|(_, stamp)| *stamp);
            let after_ns =
                stamp.map_or(end.monotonic_ns, |c| timing::time_ns(begin, end, c)).max(before_ns);
            let steps = untimed as u64 + 1;
            for (step, (position, stamp)) in (1..).zip(run) {
                let (time_ns, bound_ns) = match stamp {
                    Some(_) => (after_ns, bound_ns),
                    None => {
                        let all = u128::from(after_ns - before_ns);
                        let part = (all * step / u128::from(steps)) as u64;
                        (before_ns + part, bound_ns.saturating_add(after_ns - before_ns))
                    }
                };
                let bound_ns = u32::try_from(bound_ns).unwrap_or(u32::MAX);
                self.events.push(Position { time_ns, bound_ns, ..*position });
            }
            before_ns = after_ns;
            rest = others;
        }
        since.clear();
    }
}

/// Reads until the buffer is full or the input ends. Returns the number of bytes.
fn fill(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match input.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(filled)
}
