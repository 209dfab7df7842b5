//! All events of a trace, in the order of time.

use crate::error::Error;
use crate::reader::{Ending, Packet, Process, ReadKind, Reader, Record, Thread};
use crate::timing::Clock;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::io::{Read, Seek};
use std::sync::Arc;

/// Packets that overlap take at most this much memory.
pub(crate) const HELD_BYTES_MAX: usize = 1 << 30;

/// All events of a trace, in the order of time, from a file that one can seek in.
///
/// It goes over the file once to learn where packets are, and how counters go; then it holds, of each thread, the packet that is
/// its turn. Where the bounds of two events overlap, their order may be wrong, but for those of one thread.
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
    /// Of each stream, packets that are not read yet: where and when they begin.
    ahead: BTreeMap<u32, VecDeque<(u64, u64)>>,
    /// Of each stream, the packet that is its turn, and the next event in it.
    open: BTreeMap<u32, (Packet, usize)>,
    /// When the next event of each stream is, or its next packet begins.
    next: BinaryHeap<Reverse<(u64, u32)>>,
    /// Whose event was told last.
    told: Option<u32>,
    held_bytes: usize,
    span_ns: Option<(u64, u64)>,
}

impl<R: Read + Seek> Timeline<R> {
    /// Begins to read.
    ///
    /// # Errors
    ///
    /// It cannot be read, is no trace, or of a version that this does not know.
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
        let next = ahead.iter().filter_map(|(stream, packets)| Some(Reverse((packets.front()?.1, *stream))));
        Ok(Timeline {
            next: next.collect(),
            ending: reader
                .ending
                .take()
                .unwrap_or(Ending::Complete { lost: BTreeMap::new(), more_at_byte: None }),
            reader,
            ahead,
            open: BTreeMap::new(),
            told: None,
            held_bytes: 0,
            span_ns: begin.zip(end),
        })
    }

    /// The next event. `None`: there is none any more.
    ///
    /// # Errors
    ///
    /// The system cannot read, or [`Error::TooWide`]. A packet that makes no sense ends the timeline, as [`Timeline::ending`] says
    /// then.
    pub fn next_event(&mut self) -> Result<Option<Record<'_>>, Error> {
        self.go_on();
        loop {
            let Some(&Reverse((_, stream))) = self.next.peek() else { return Ok(None) };
            if self.open.contains_key(&stream) {
                self.told = Some(stream);
                let (packet, index) = &self.open[&stream];
                return Ok(packet.event(*index));
            }
            self.next.pop();
            self.open(stream)?;
        }
    }

    /// Leaves the event behind that was told.
    fn go_on(&mut self) {
        let Some(stream) = self.told.take() else { return };
        self.next.pop();
        if let Some((_, index)) = self.open.get_mut(&stream) {
            *index += 1;
            self.put(stream);
        }
    }

    /// Puts a stream in the order: by its next event, or its next packet.
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

    /// Reads a stream's next packet.
    fn open(&mut self, stream: u32) -> Result<(), Error> {
        let Some((at_byte, _)) = self.ahead.get_mut(&stream).and_then(VecDeque::pop_front) else {
            return Ok(());
        };
        match self.reader.packet_at(at_byte)? {
            Ok(packet) => {
                self.held_bytes += packet.held_bytes();
                if self.held_bytes > HELD_BYTES_MAX {
                    return Err(Error::TooWide);
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

    /// How the trace ends.
    pub fn ending(&self) -> &Ending {
        &self.ending
    }

    /// The process that was recorded.
    pub fn process(&self) -> &Process {
        self.reader.process()
    }

    /// Kinds that are declared.
    pub fn kinds(&self) -> &[ReadKind] {
        self.reader.kinds()
    }

    /// Threads that logged.
    pub fn threads(&self) -> impl Iterator<Item = &Arc<Thread>> {
        self.reader.threads()
    }

    /// From when to when it is, in nanoseconds of `CLOCK_MONOTONIC`. `None`: there are no events.
    pub fn span_ns(&self) -> Option<(u64, u64)> {
        self.span_ns
    }

    /// Ticks of the counter in a second, as far as that is known.
    pub fn counter_hz(&self) -> Option<f64> {
        self.reader.counter_hz()
    }

    /// How far counters of cores were seen to disagree, in nanoseconds.
    pub fn spread_ns(&self) -> u64 {
        self.reader.spread_ns()
    }
}
