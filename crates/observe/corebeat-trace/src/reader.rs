//! Reading a trace, packet by packet.

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

/// Reads a trace as it stands in the file: packets in the order in which they were written, which for each thread is the order
/// of its events.
///
/// It holds one packet at a time, of bounded size, whatever the file says. All up to the last whole packet is read, also of a
/// trace whose process was killed; [`Reader::ending`] tells how it ended.
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
    /// Where the next packet begins.
    at_byte: u64,
    kinds: Arc<Vec<ReadKind>>,
    threads: BTreeMap<u32, Arc<Thread>>,
    /// Of each stream, when its last event was that was read.
    last_ns: BTreeMap<u32, u64>,
    process: Process,
    pub(crate) clock: Clock,
    pub(crate) ending: Option<Ending>,
    bytes: Vec<u8>,
}

/// How a trace ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ending {
    /// As it should.
    Complete {
        /// Events lost, by stream. [`u32::MAX`]: of threads that had none.
        lost: BTreeMap<u32, u64>,
        /// Where something stands behind the end, which is no part of it and is not read.
        more_at_byte: Option<u64>,
    },
    /// Without its last packet: the process was killed, or still records. What was in buffers is not there.
    Unfinished {
        /// Bytes up to the end of the last whole packet.
        whole_bytes: u64,
    },
    /// With something that is no packet, from which on nothing is read.
    Damaged {
        /// Where it is.
        at_byte: u64,
        /// What is wrong.
        why: &'static str,
    },
}

impl Ending {
    /// Whether nothing is missing at the end.
    pub fn is_complete(&self) -> bool {
        matches!(self, Ending::Complete { .. })
    }

    /// Events that are said to be lost, of all threads; 0 where it ended before that was said.
    pub fn lost(&self) -> u64 {
        match self {
            // What a file says may be anything.
            Ending::Complete { lost, .. } => lost.values().fold(0, |all, lost| all.saturating_add(*lost)),
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
                    write!(f, ", but for {} lost events", self.lost())?;
                }
                match more_at_byte {
                    Some(at_byte) => {
                        write!(f, "; what is in the file from byte {at_byte} on is no part of it")
                    }
                    None => Ok(()),
                }
            }
            Ending::Unfinished { whole_bytes } => write!(f, "unfinished: whole up to byte {whole_bytes}"),
            Ending::Damaged { at_byte, why } => write!(f, "damaged at byte {at_byte}: {why}"),
        }
    }
}

/// The process that was recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// What its counter was: `tsc`, `cntvct` or `clock`.
    pub counter: String,
    /// The program's file name.
    pub program: String,
}

/// A thread that was recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Thread {
    /// Its number in the trace.
    pub stream: u32,
    /// Its number in the system.
    pub tid: u32,
    /// Its name, or nothing.
    pub name: String,
}

/// A kind of events, as the file declares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadKind {
    number: u16,
    name: String,
    timed: bool,
    kept: bool,
    fields: Vec<ReadField>,
}

/// A field of a kind, as the file declares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadField {
    name: String,
    of: Type,
    hex: bool,
}

impl ReadKind {
    /// Its number in this file, from 1.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether its events have time stamps of their own.
    pub fn is_timed(&self) -> bool {
        self.timed
    }

    /// Its fields.
    pub fn fields(&self) -> &[ReadField] {
        &self.fields
    }
}

impl ReadField {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its type.
    pub fn of(&self) -> Type {
        self.of
    }

    /// Whether it is to be shown in base 16.
    pub fn is_hex(&self) -> bool {
        self.hex
    }
}

/// A field's value.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs, reason = "they are what they are called")]
pub enum Value<'a> {
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    Text(&'a str),
}

/// Events of one thread, in order.
#[derive(Debug, Clone)]
pub struct Packet {
    thread: Arc<Thread>,
    kinds: Arc<Vec<ReadKind>>,
    span: Span,
    events: Vec<Place>,
    /// Of events, and behind them the fields of those that were in runs.
    bytes: Vec<u8>,
    event_bytes: usize,
}

/// Where an event is.
#[derive(Debug, Clone, Copy)]
struct Place {
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
    place: Place,
    kind: &'a ReadKind,
}

impl Packet {
    /// Whose.
    pub fn thread(&self) -> &Arc<Thread> {
        &self.thread
    }

    /// Events of this thread that were lost before it, since the beginning.
    pub fn lost(&self) -> u64 {
        self.span.lost
    }

    /// Bytes of its events before compression.
    pub fn event_bytes(&self) -> usize {
        self.event_bytes
    }

    /// When it was begun and handed over, in nanoseconds of `CLOCK_MONOTONIC`.
    pub fn span_ns(&self) -> (u64, u64) {
        (self.span.begin.monotonic_ns, self.span.end.monotonic_ns)
    }

    /// What is to be added to times to have `CLOCK_REALTIME`: nanoseconds since 1970.
    pub fn real_offset_ns(&self) -> i64 {
        self.span.real_offset_ns
    }

    /// What a piece of the trace keeps of it: events, as they stand in a buffer, each one for itself.
    pub(crate) fn kept(&self) -> impl Iterator<Item = (u16, &[u8])> {
        let is_kept = |place: &&Place| self.kinds[usize::from(place.kind) - 1].kept;
        let bytes = |place: &Place| &self.bytes[place.fields_at as usize..place.fields_end as usize];
        self.events.iter().filter(is_kept).map(move |place| (place.kind, bytes(place)))
    }

    /// Memory that it takes, about.
    pub(crate) fn held_bytes(&self) -> usize {
        self.bytes.capacity() + self.events.capacity() * size_of::<Place>()
    }

    /// One of its events.
    pub(crate) fn event(&self, index: usize) -> Option<Record<'_>> {
        let place = *self.events.get(index)?;
        Some(Record { packet: self, place, kind: &self.kinds[usize::from(place.kind) - 1] })
    }

    /// Its events, in order.
    pub fn events(&self) -> impl ExactSizeIterator<Item = Record<'_>> {
        // A place is made with a kind that is there.
        self.events.iter().map(|place| Record {
            packet: self,
            place: *place,
            kind: &self.kinds[usize::from(place.kind) - 1],
        })
    }
}

impl<'a> Record<'a> {
    /// Of what kind.
    pub fn kind(&self) -> &'a ReadKind {
        self.kind
    }

    /// Of which thread.
    pub fn thread(&self) -> &'a Arc<Thread> {
        &self.packet.thread
    }

    /// When, in nanoseconds of `CLOCK_MONOTONIC`. Events of kinds without time stamps are spread evenly between those around.
    pub fn time_ns(&self) -> u64 {
        self.place.time_ns
    }

    /// By how much that may be wrong, in nanoseconds, as far as the reader knows how counters of cores disagree: a
    /// [`Timeline`](crate::Timeline) knows that from the whole file, a [`Reader`] from what it has read so far.
    pub fn bound_ns(&self) -> u32 {
        self.place.bound_ns
    }

    /// The same time in nanoseconds since 1970.
    pub fn real_time_ns(&self) -> u64 {
        self.place.time_ns.saturating_add_signed(self.packet.span.real_offset_ns)
    }

    /// The fields' values, in order.
    pub fn values(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let Place { fields_at, fields_end, .. } = self.place;
        let mut bytes = Bytes(&self.packet.bytes[fields_at as usize..fields_end as usize]);
        self.kind.fields.iter().map_while(move |field| Value::read(field.of, &mut bytes))
    }

    /// A field's value, by its name.
    pub fn value(&self, field: &str) -> Option<Value<'a>> {
        let index = self.kind.fields.iter().position(|f| f.name == field)?;
        self.values().nth(index)
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
    /// Begins to read.
    ///
    /// # Errors
    ///
    /// It cannot be read, is no trace, or of a version that this does not know.
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

    /// The next packet of events. `None`: there is none any more, and [`Reader::ending`] says why.
    ///
    /// # Errors
    ///
    /// The system cannot read. What is wrong with the file itself is no error here, but how it ended.
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

    /// How it ended, when there are no more packets.
    pub fn ending(&self) -> Option<&Ending> {
        self.ending.as_ref()
    }

    /// The process that was recorded, when a packet has been read.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Kinds that were declared so far.
    pub fn kinds(&self) -> &[ReadKind] {
        &self.kinds
    }

    /// Threads that were told of so far, by stream.
    pub fn threads(&self) -> impl Iterator<Item = &Arc<Thread>> {
        self.threads.values()
    }

    /// Ticks of the counter in a second, as far as that is known by what was read.
    pub fn counter_hz(&self) -> Option<f64> {
        self.clock.hz()
    }

    /// How far counters of cores were seen to disagree, in nanoseconds.
    pub fn spread_ns(&self) -> u64 {
        self.clock.spread_ns()
    }

    /// Reads one packet, and learns what it says. Inside: how the trace ends here.
    fn read_packet(&mut self) -> io::Result<Result<Option<Packet>, Ending>> {
        let at_byte = self.at_byte;
        let header = match self.read_whole()? {
            Ok(header) => header,
            Err(ending) => return Ok(Err(ending)),
        };
        let bytes = std::mem::take(&mut self.bytes);
        let learned = self.learn(header, &bytes[HEADER_BYTES..]);
        self.bytes = bytes;
        Ok(match learned {
            Ok(Learned::Events(packet)) => Ok(Some(packet)),
            Ok(Learned::Other) => Ok(None),
            Ok(Learned::End(lost)) => Err(self.complete(lost)?),
            Err(why) => Err(Ending::Damaged { at_byte, why }),
        })
    }

    /// Reads one packet, with all that belongs to it, into `bytes`.
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
        // Bounded: the header was refused if it says more than there may be.
        self.bytes.resize(HEADER_BYTES + header.span_bytes() + header.stored_bytes as usize, 0);
        if fill(&mut self.input, &mut self.bytes[HEADER_BYTES..])? < self.bytes.len() - HEADER_BYTES {
            return Ok(Err(unfinished));
        }
        if !packet::is_whole(&self.bytes) {
            return Ok(Err(damaged("a packet's checksum is not that of its content")));
        }
        self.at_byte += self.bytes.len() as u64;
        Ok(Ok(header))
    }

    /// The last packet was read.
    pub(crate) fn complete(&mut self, lost: BTreeMap<u32, u64>) -> io::Result<Ending> {
        let is_more = fill(&mut self.input, &mut [0])? > 0;
        Ok(Ending::Complete { lost, more_at_byte: is_more.then_some(self.at_byte) })
    }

    /// Where the next packet begins.
    pub(crate) fn at_byte(&self) -> u64 {
        self.at_byte
    }

    /// The packet that was read last.
    pub(crate) fn whole(&self) -> &[u8] {
        &self.bytes
    }

    /// Reads all, but for the events, and learns what it says. Calls `each` with where packets of events are.
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
            let bytes = std::mem::take(&mut self.bytes);
            let learned = match (header.content, Span::read(&mut Bytes(&bytes[HEADER_BYTES..]))) {
                (Content::Events, Some(span)) if self.threads.contains_key(&header.stream) => {
                    each(at_byte, header.stream, span);
                    Ok(Learned::Other)
                }
                _ => self.learn(header, &bytes[HEADER_BYTES..]),
            };
            self.bytes = bytes;
            self.ending = match learned {
                Ok(Learned::End(lost)) => Some(self.complete(lost)?),
                Err(why) => Some(Ending::Damaged { at_byte, why }),
                Ok(_) => None,
            };
        }
        Ok(())
    }

    pub(crate) fn learn(&mut self, header: Header, bytes: &[u8]) -> Result<Learned, &'static str> {
        let mut bytes = Bytes(bytes);
        const SHORT: &str = "a packet holds less than it says";
        match header.content {
            Content::Process => {
                self.process = Process {
                    pid: bytes.u32().ok_or(SHORT)?,
                    counter: bytes.text().ok_or(SHORT)?.into(),
                    program: bytes.text().ok_or(SHORT)?.into(),
                };
            }
            Content::Kinds => {
                let kind = ReadKind::read(&mut bytes).ok_or("a kind's declaration makes no sense")?;
                if usize::from(kind.number) != self.kinds.len() + 1 || self.kinds.len() == KINDS_MAX {
                    return Err("a kind's number is not the next one");
                }
                Arc::make_mut(&mut self.kinds).push(kind);
            }
            Content::Thread => {
                if header.stream >= STREAMS_MAX {
                    return Err("a thread's number is too large");
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
                let thread = self.threads.get(&header.stream).ok_or("events of an unknown thread")?.clone();
                let mut packet = Packet {
                    event_bytes: header.raw_bytes as usize,
                    thread,
                    kinds: self.kinds.clone(),
                    span,
                    events: Vec::new(),
                    bytes: compression::expand(header.codec, bytes.0, header.raw_bytes as usize)
                        .ok_or("compressed events make no sense")?,
                };
                packet.place(&mut self.clock)?;
                packet.follow(self.last_ns.entry(header.stream).or_default());
                return Ok(Learned::Events(packet));
            }
            Content::End => {
                let mut lost = BTreeMap::new();
                while let (Some(stream), Some(events)) = (bytes.u32(), bytes.u64()) {
                    lost.insert(stream, events);
                }
                return Ok(Learned::End(lost));
            }
        }
        Ok(Learned::Other)
    }
}

impl<R: Read + Seek> Reader<R> {
    /// The packet of events there, which a survey has told. What is wrong with it, if it makes no sense.
    pub(crate) fn packet_at(&mut self, at_byte: u64) -> Result<Result<Packet, &'static str>, Error> {
        self.input.seek(SeekFrom::Start(at_byte)).map_err(Error::Read)?;
        let Ok(header) = self.read_whole().map_err(Error::Read)? else {
            return Ok(Err("a packet has changed while it was read"));
        };
        let bytes = std::mem::take(&mut self.bytes);
        let learned = self.learn(header, &bytes[HEADER_BYTES..]);
        self.bytes = bytes;
        Ok(match learned {
            Ok(Learned::Events(packet)) => Ok(packet),
            Ok(_) => Err("a packet has changed while it was read"),
            Err(why) => Err(why),
        })
    }
}

/// What a packet was.
pub(crate) enum Learned {
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

    /// Whether its events may come in runs.
    fn has_runs(&self) -> bool {
        matches!(&self.fields[..], [ReadField { of: Type::U32, .. }])
    }

    /// Goes over the fields of an event, if they are there.
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
    /// Finds the events in the bytes, and when they were.
    fn place(&mut self, clock: &mut Clock) -> Result<(), &'static str> {
        const BROKEN: &str = "events make no sense";
        let all = std::mem::take(&mut self.bytes);
        let mut bytes = Bytes(&all);
        let mut begin = self.span.begin;
        clock.learn(&begin);
        clock.learn(&self.span.end);
        let mut counter = begin.counter;
        // Events since the last fix: where, and the counter if they have one.
        let mut since: Vec<(Place, Option<u64>)> = Vec::new();
        // Bounded: a run's step of a byte becomes four.
        let mut of_runs = Vec::new();
        while let Some(head) = bytes.u16() {
            let number = head & ((1 << KIND_BITS) - 1);
            if number == 0 {
                let fix = Fix::read(&mut bytes).ok_or(BROKEN)?;
                clock.learn(&fix);
                self.time(clock, &begin, &fix, &mut since);
                (begin, counter) = (fix, fix.counter);
                continue;
            }
            let kind = self.kinds.get(usize::from(number) - 1).ok_or("an event's kind is unknown")?;
            let place = |fields_at: usize, fields_end: usize| {
                let (fields_at, fields_end) = (fields_at as u32, fields_end as u32);
                Place { kind: number, fields_at, fields_end, bound_ns: 0, time_ns: 0 }
            };
            let mut stamp = None;
            if !kind.timed && run::is_one(head) {
                if !kind.has_runs() {
                    return Err(BROKEN);
                }
                for value in run::read(head, &mut bytes).ok_or(BROKEN)? {
                    let fields_at = all.len() + of_runs.len();
                    of_runs.extend(value.to_le_bytes());
                    since.push((place(fields_at, fields_at + size_of::<u32>()), None));
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
            since.push((place(fields_at, all.len() - bytes.0.len()), stamp));
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

    /// Has its events behind the last one of the packet before: a thread's events are in order, also where their times are not
    /// known that well. What that changes is added to their bounds.
    fn follow(&mut self, last_ns: &mut u64) {
        for place in &mut self.events {
            let early_ns = last_ns.saturating_sub(place.time_ns);
            place.time_ns = place.time_ns.max(*last_ns);
            place.bound_ns = place.bound_ns.saturating_add(u32::try_from(early_ns).unwrap_or(u32::MAX));
            *last_ns = place.time_ns;
        }
    }

    /// Gives times to events between two fixes.
    fn time(&mut self, clock: &Clock, begin: &Fix, end: &Fix, since: &mut Vec<(Place, Option<u64>)>) {
        let bound_ns = clock.bound_ns(begin, end);
        let mut before_ns = begin.monotonic_ns;
        let mut rest = &since[..];
        while !rest.is_empty() {
            // Those without a time of their own, and the one behind them, if there is one.
            let untimed = rest.iter().take_while(|(_, stamp)| stamp.is_none()).count();
            let (run, others) = rest.split_at((untimed + 1).min(rest.len()));
            let stamp = run.last().and_then(|(_, stamp)| *stamp);
            let after_ns = stamp.map_or(end.monotonic_ns, |c| timing::time_ns(begin, end, c)).max(before_ns);
            let steps = untimed as u64 + 1;
            for (step, (place, stamp)) in (1..).zip(run) {
                let (time_ns, bound_ns) = match stamp {
                    Some(_) => (after_ns, bound_ns),
                    None => {
                        let all = u128::from(after_ns - before_ns);
                        let part = (all * step / u128::from(steps)) as u64;
                        (before_ns + part, bound_ns.saturating_add(after_ns - before_ns))
                    }
                };
                let bound_ns = u32::try_from(bound_ns).unwrap_or(u32::MAX);
                self.events.push(Place { time_ns, bound_ns, ..*place });
            }
            before_ns = after_ns;
            rest = others;
        }
        since.clear();
    }
}

/// Reads until it is full, or there is nothing any more. How much it is.
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
