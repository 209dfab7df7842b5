//! All events of a trace, sorted by time.

use crate::error::Error;
use crate::reader::{Ending, Packet, Process, ReadKind, Reader, Record, Thread};
use crate::timing::Clock;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::io::{Read, Seek};
use std::sync::Arc;

/// Limit on the memory of overlapping packets.
pub(crate) const HELD_BYTES_MAX: usize = 1 << 30;

/// All events of a trace, sorted by time, from a seekable input.
///
/// A first pass over the file determines the positions of packets and the rates of counters. Then
/// the timeline holds the current packet of each thread. If the bounds of two events of different
/// threads overlap, their order may be wrong.
///
/// ```no_run
/// let mut timeline = corebeat_trace::Timeline::new(std::fs::File::open("bank.cbt")?)?;
/// while let Some(event) = timeline.next_event()? {
///     println!("{} {}", event.time_ns(), event.kind().name());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Timeline<R> {
    reader: Reader<R>,
    ending: Ending,
    /// Position and begin of the unread packets of each stream.
    ahead: BTreeMap<u32, VecDeque<(u64, u64)>>,
    /// The current packet of each stream, and the index of its next event.
    open: BTreeMap<u32, (Packet, usize)>,
    /// Time of the next event or packet of each stream.
    next: BinaryHeap<Reverse<(u64, u32)>>,
    /// Stream of the event that was returned last.
    current: Option<u32>,
    held_bytes: usize,
    span_ns: Option<(u64, u64)>,
}

impl<R: Read + Seek> Timeline<R> {
    /// Reads the structure of the trace.
    ///
    /// # Errors
    ///
    /// The input cannot be read, is not a trace, or has an unknown version.
    pub fn new(input: R) -> Result<Timeline<R>, Error> {
        let mut reader = Reader::new(input)?;
        let mut ahead = BTreeMap::<u32, VecDeque<(u64, u64)>>::new();
        let mut spans = Vec::new();
        let survey = reader.survey(|at_byte, stream, span| {
            ahead.entry(stream).or_default().push_back((at_byte, span.begin.monotonic_ns));
            spans.push(span);
        });
        survey.map_err(Error::Read)?;
        let fixes: Vec<_> = spans.iter().flat_map(|span| [span.begin, span.end]).collect();
        reader.clock = Clock::of(&fixes);
        let begin = fixes.iter().map(|fix| fix.monotonic_ns).min();
        let end = fixes.iter().map(|fix| fix.monotonic_ns).max();
        let next = ahead
            .iter()
            .filter_map(|(stream, packets)| Some(Reverse((packets.front()?.1, *stream))));
        Ok(Timeline {
            next: next.collect(),
            ending: reader
                .ending
                .take()
                .unwrap_or(Ending::Complete { lost: BTreeMap::new(), more_at_byte: None }),
            reader,
            ahead,
            open: BTreeMap::new(),
            current: None,
            held_bytes: 0,
            span_ns: begin.zip(end),
        })
    }

    /// The next event, or `None` after the last one.
    ///
    /// # Errors
    ///
    /// The input cannot be read, or [`Error::OverlapTooLarge`]. An invalid packet ends the
    /// timeline; [`Timeline::ending`] describes it then.
    pub fn next_event(&mut self) -> Result<Option<Record<'_>>, Error> {
        self.go_on();
        loop {
            let Some(&Reverse((_, stream))) = self.next.peek() else { return Ok(None) };
            if self.open.contains_key(&stream) {
                self.current = Some(stream);
                let (packet, index) = &self.open[&stream];
                return Ok(packet.event(*index));
            }
            self.next.pop();
            self.open(stream)?;
        }
    }

    /// Advances past the event that was returned last.
    fn go_on(&mut self) {
        let Some(stream) = self.current.take() else { return };
        self.next.pop();
        if let Some((_, index)) = self.open.get_mut(&stream) {
            *index += 1;
            self.put(stream);
        }
    }

    /// Queues a stream by its next event, or by its next packet.
    fn put(&mut self, stream: u32) {
        if let Some((packet, index)) = self.open.get(&stream) {
            if let Some(event) = packet.event(*index) {
                self.next.push(Reverse((event.time_ns(), stream)));
                return;
            }
            self.held_bytes -= packet.held_bytes();
            self.open.remove(&stream);
        }
        if let Some((_, begin_ns)) = self.ahead.get(&stream).and_then(VecDeque::front) {
            self.next.push(Reverse((*begin_ns, stream)));
        }
    }

    /// Reads the next packet of a stream.
    fn open(&mut self, stream: u32) -> Result<(), Error> {
        let Some((at_byte, _)) = self.ahead.get_mut(&stream).and_then(VecDeque::pop_front) else {
            return Ok(());
        };
        match self.reader.packet_at(at_byte)? {
            Ok(packet) => {
                self.held_bytes += packet.held_bytes();
                if self.held_bytes > HELD_BYTES_MAX {
                    return Err(Error::OverlapTooLarge);
                }
                self.open.insert(stream, (packet, 0));
                self.put(stream);
            }
            Err(why) => {
                self.ending = Ending::Damaged { at_byte, why };
                self.next.clear();
            }
        }
        Ok(())
    }

    /// The state of the end of the trace.
    pub fn ending(&self) -> &Ending {
        &self.ending
    }

    /// The recorded process.
    pub fn process(&self) -> &Process {
        self.reader.process()
    }

    /// The declared kinds.
    pub fn kinds(&self) -> &[ReadKind] {
        self.reader.kinds()
    }

    /// The threads that logged.
    pub fn threads(&self) -> impl Iterator<Item = &Arc<Thread>> {
        self.reader.threads()
    }

    /// Begin and end, in nanoseconds of `CLOCK_MONOTONIC`, or `None` for a trace without events.
    pub fn span_ns(&self) -> Option<(u64, u64)> {
        self.span_ns
    }

    /// Ticks of the counter per second, if known.
    pub fn counter_hz(&self) -> Option<f64> {
        self.reader.counter_hz()
    }

    /// The largest observed difference between the counters of cores, in nanoseconds.
    pub fn spread_ns(&self) -> u64 {
        self.reader.spread_ns()
    }
}
