//! Records in memory, on their way from a worker to who writes them.
//!
//! Most dispatches take two words, and one for each stream:
//!
//! ```text
//!   63                         32 31            8 7       4 3    0
//!  | task                        | number        | streams | kind |
//!  | since the record before, ns | execution, ns                  |
//!  | creation, ns                                                 |   if it has ended
//!  | stream (29 bits)   | items (29 bits)   | flags (6 bits)      |   for each stream
//! ```
//!
//! What does not fit takes a whole word for each field.

use super::line::{Line, Lost};
use crate::monitor::{Direction, Dispatch, End, Touched, Wait};
use crate::task::Status;

/// Kinds above those of [`Status`], which stand for a dispatch.
const WIDE: u64 = 11;
const WAIT: u64 = 12;
const END: u64 = 13;
const LOST: u64 = 14;
const NAME: u64 = 15;

const KIND_BITS: u32 = 4;
const COUNT_BITS: u32 = 4;
const NUMBER_BITS: u32 = 24;
const STREAM_BITS: u32 = 29;
const FLAG_BITS: u32 = 6;

/// Words that a dispatch needs at most, beside those of its streams.
pub(crate) const DISPATCH_MAX: usize = 7;
/// Words that a record of a worker needs at most.
pub(crate) const WORKER_MAX: usize = 5;
/// Words that a name needs at most, beside one for each eight bytes.
pub(crate) const NAME_MAX: usize = 3;
/// Words that each stream needs at most.
pub(crate) const TOUCHED_MAX: usize = 3;

/// What was packed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Record<'a> {
    Line(Line<'a>),
    Name { task: u64, name: &'a str },
}

/// Where words are added to, in a row that is unpacked as a whole.
#[derive(Debug, Default)]
pub(crate) struct Packed {
    words: Vec<u64>,
    /// When the last record was.
    last_ns: u64,
}

impl Packed {
    pub(crate) fn with_capacity(words: usize) -> Packed {
        Packed { words: Vec::with_capacity(words), last_ns: 0 }
    }

    /// As above, of memory that is there: the system hands it out only when it is written to.
    pub(crate) fn touched(words: usize) -> Packed {
        let mut packed = Packed { words: vec![1; words], last_ns: 0 };
        packed.clear();
        packed
    }

    /// How many words can be added without more memory.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.words.capacity() - self.words.len()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.words.capacity()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.words.clear();
        self.last_ns = 0;
    }

    #[inline]
    pub(crate) fn dispatch(&mut self, dispatch: &Dispatch<'_>) {
        let since_ns = dispatch.end_ns.wrapping_sub(self.last_ns);
        self.last_ns = dispatch.end_ns;
        let kind = dispatch.status as u64;
        let streams = dispatch.streams;
        let too_large = (since_ns | dispatch.execution_ns | dispatch.task) >> 32
            | dispatch.number >> NUMBER_BITS
            | (streams.len() as u64) >> COUNT_BITS
            | streams.iter().fold(0, |bits, t| bits | t.stream | t.items) >> STREAM_BITS;
        if too_large != 0 {
            return self.wide_dispatch(dispatch);
        }
        let count = streams.len() as u64;
        self.words.extend_from_slice(&[
            dispatch.task << 32 | dispatch.number << (KIND_BITS + COUNT_BITS) | count << KIND_BITS | kind,
            since_ns << 32 | dispatch.execution_ns,
        ]);
        self.words.extend(dispatch.created_ns);
        let word = |t: &Touched| t.stream << (STREAM_BITS + FLAG_BITS) | t.items << FLAG_BITS | flags(t);
        self.words.extend(streams.iter().map(word));
    }

    #[cold]
    fn wide_dispatch(&mut self, dispatch: &Dispatch<'_>) {
        let Dispatch { end_ns, execution_ns, task, number, status, streams, .. } = *dispatch;
        let count = streams.len() as u64;
        self.words.extend([WIDE | (status as u64) << KIND_BITS, end_ns, execution_ns, task, number, count]);
        self.words.extend(dispatch.created_ns);
        self.words.extend(streams.iter().flat_map(|t| [t.stream, t.items, flags(t)]));
    }

    pub(crate) fn wait(&mut self, wait: &Wait) {
        self.words.extend([WAIT, wait.worker as u64, wait.end_ns, wait.wait_ns, wait.number]);
    }

    pub(crate) fn end(&mut self, end: &End) {
        self.words.extend([END, end.worker as u64, end.end_ns, end.waits, end.wait_ns]);
    }

    pub(crate) fn lost(&mut self, lost: &Lost) {
        self.words.extend([LOST, lost.worker as u64, lost.end_ns, lost.records]);
    }

    pub(crate) fn name(&mut self, task: u64, name: &str) {
        self.words.extend([NAME | (name.len() as u64) << KIND_BITS, task]);
        let word = |bytes: &[u8]| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(word)
        };
        self.words.extend(name.as_bytes().chunks(8).map(word));
    }

    /// Hands each record to `f`, in order.
    pub(crate) fn unpack(&self, mut f: impl FnMut(Record<'_>)) {
        let (mut streams, mut bytes) = (Vec::new(), Vec::new());
        let mut words = self.words.iter().copied();
        let mut next = || words.next().unwrap_or(0);
        let mut last_ns = 0;
        while let head @ 1.. = next() {
            match head & ((1 << KIND_BITS) - 1) {
                NAME => {
                    let (length, task) = ((head >> KIND_BITS) as usize, next());
                    bytes.clear();
                    bytes.extend((0..length.div_ceil(8)).flat_map(|_| next().to_le_bytes()));
                    f(Record::Name { task, name: &String::from_utf8_lossy(&bytes[..length]) });
                }
                WAIT => {
                    let (worker, end_ns, wait_ns, number) = (next() as usize, next(), next(), next());
                    f(Record::Line(Line::Wait(Wait { worker, end_ns, wait_ns, number })));
                }
                END => {
                    let (worker, end_ns, waits, wait_ns) = (next() as usize, next(), next(), next());
                    f(Record::Line(Line::End(End { worker, end_ns, waits, wait_ns })));
                }
                LOST => {
                    let (worker, end_ns, records) = (next() as usize, next(), next());
                    f(Record::Line(Line::Lost(Lost { worker, end_ns, records })));
                }
                WIDE => {
                    let status = Status::from_u8((head >> KIND_BITS) as u8);
                    let (end_ns, execution_ns, task, number, count) =
                        (next(), next(), next(), next(), next());
                    let created_ns = (status == Status::Zombie).then(&mut next);
                    streams.clear();
                    streams.extend((0..count).map(|_| touched(next(), next(), next())));
                    last_ns = end_ns;
                    let streams = &streams[..];
                    let name = None;
                    f(Record::Line(Line::Dispatch(Dispatch {
                        end_ns,
                        execution_ns,
                        task,
                        name,
                        number,
                        status,
                        created_ns,
                        streams,
                    })));
                }
                status => {
                    let status = Status::from_u8(status as u8);
                    let field = |word: u64, from: u32, bits: u32| word >> from & ((1 << bits) - 1);
                    let times = next();
                    last_ns += times >> 32;
                    let created_ns = (status == Status::Zombie).then(&mut next);
                    streams.clear();
                    streams.extend((0..field(head, KIND_BITS, COUNT_BITS)).map(|_| {
                        let word = next();
                        let stream = word >> (STREAM_BITS + FLAG_BITS);
                        touched(stream, field(word, FLAG_BITS, STREAM_BITS), word)
                    }));
                    f(Record::Line(Line::Dispatch(Dispatch {
                        end_ns: last_ns,
                        execution_ns: field(times, 0, 32),
                        task: head >> 32,
                        name: None,
                        number: field(head, KIND_BITS + COUNT_BITS, NUMBER_BITS),
                        status,
                        created_ns,
                        streams: &streams,
                    })));
                }
            }
        }
    }
}

fn flags(t: &Touched) -> u64 {
    u64::from(t.direction == Direction::Write)
        | u64::from(t.opened) << 1
        | u64::from(t.closed) << 2
        | u64::from(t.blocked) << 3
        | u64::from(t.woke) << 4
        | u64::from(t.moved) << 5
}

fn touched(stream: u64, items: u64, flags: u64) -> Touched {
    let flag = |at: u32| flags >> at & 1 == 1;
    Touched {
        stream,
        direction: if flag(0) { Direction::Write } else { Direction::Read },
        opened: flag(1),
        closed: flag(2),
        blocked: flag(3),
        woke: flag(4),
        moved: flag(5),
        items,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::monitor::UNTOUCHED;
    use proptest::prelude::*;

    /// Small numbers as a rule, others as well.
    fn any_size() -> impl Strategy<Value = u64> + Clone {
        (any::<u64>(), 0..64u32).prop_map(|(n, bits)| n >> bits)
    }

    pub(crate) fn touched() -> impl Strategy<Value = Touched> {
        (any_size(), any_size(), 0..64u64)
            .prop_map(|(stream, items, bits)| super::touched(stream, items, bits))
    }

    /// A dispatch without streams, as a worker may tell it.
    pub(crate) fn dispatch() -> impl Strategy<Value = Dispatch<'static>> {
        let status = prop::sample::select(vec![
            Status::Ready,
            Status::Reading,
            Status::Writing,
            Status::Polling,
            Status::Joining,
            Status::Sleeping,
            Status::Awaiting,
            Status::Zombie,
        ]);
        let numbers = (any_size(), any_size(), any_size(), any_size(), any_size());
        (numbers, status).prop_map(|((end_ns, execution_ns, task, number, created_ns), status)| Dispatch {
            end_ns,
            execution_ns,
            task,
            name: None,
            number,
            status,
            created_ns: (status == Status::Zombie).then_some(created_ns),
            streams: &[],
        })
    }

    #[derive(Debug, Clone)]
    enum Any {
        Dispatch(Dispatch<'static>, Vec<Touched>),
        Wait(Wait),
        End(End),
        Lost(Lost),
        Name(u64, String),
    }

    impl Any {
        fn record(&self) -> Record<'_> {
            match self {
                Any::Dispatch(dispatch, streams) => {
                    Record::Line(Line::Dispatch(Dispatch { streams, ..*dispatch }))
                }
                Any::Wait(wait) => Record::Line(Line::Wait(*wait)),
                Any::End(end) => Record::Line(Line::End(*end)),
                Any::Lost(lost) => Record::Line(Line::Lost(*lost)),
                Any::Name(task, name) => Record::Name { task: *task, name },
            }
        }
    }

    fn any_record() -> impl Strategy<Value = Any> {
        let other = (any::<usize>(), any_size(), any_size(), any_size());
        prop_oneof![
            6 => (dispatch(), prop::collection::vec(touched(), 0..20)).prop_map(|(d, s)| Any::Dispatch(d, s)),
            1 => other.clone().prop_map(|(worker, end_ns, wait_ns, number)| Any::Wait(Wait { worker, end_ns, wait_ns, number })),
            1 => other.clone().prop_map(|(worker, end_ns, waits, wait_ns)| Any::End(End { worker, end_ns, waits, wait_ns })),
            1 => other.prop_map(|(worker, end_ns, records, _)| Any::Lost(Lost { worker, end_ns, records })),
            1 => (any_size(), ".{0,20}").prop_map(|(task, name)| Any::Name(task, name)),
        ]
    }

    proptest! {
        #[test]
        fn packed_records_come_out_the_same(all in prop::collection::vec(any_record(), 0..30)) {
            let mut packed = Packed::default();
            for one in &all {
                match one.record() {
                    Record::Line(Line::Dispatch(dispatch)) => packed.dispatch(&dispatch),
                    Record::Line(Line::Wait(wait)) => packed.wait(&wait),
                    Record::Line(Line::End(end)) => packed.end(&end),
                    Record::Line(Line::Lost(lost)) => packed.lost(&lost),
                    Record::Line(Line::Other) => unreachable!("never packed"),
                    Record::Name { task, name } => packed.name(task, name),
                }
            }
            let mut expected = all.iter();
            let mut wrong = None;
            packed.unpack(|record| match expected.next() {
                Some(one) if one.record() == record => {}
                other => wrong = Some(format!("{other:?} became {record:?}")),
            });
            prop_assert_eq!(wrong, None);
            prop_assert!(expected.next().is_none());
        }
    }

    #[test]
    fn dispatch_of_a_pipeline_takes_four_words() {
        let streams = [Touched { stream: 20_000, items: 10_000_000, ..UNTOUCHED }; 2];
        let dispatch = Dispatch {
            end_ns: 3_000_000_000,
            execution_ns: 100,
            task: 70_000,
            name: None,
            number: 1_000_000,
            status: Status::Reading,
            created_ns: None,
            streams: &streams,
        };
        let mut packed = Packed::default();
        packed.dispatch(&dispatch);
        assert_eq!(packed.words.len(), 4);
    }
}
