//! Derives calls from events: callers, callees and times.

use crate::error::Error;
use corebeat_trace::{Ending, Process, Reader, Record, Value};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Read;

/// Limit on the number of calls that are read from a trace.
pub const CALLS_MAX: usize = 1 << 22;
/// Limit on the number of events about calls; each takes 40 bytes in memory.
const ITEMS_MAX: usize = 3 * CALLS_MAX;

/// An instrumented function or block, as declared in a trace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Operation {
    /// Name of the probe.
    pub name: String,
    /// Path of the source file.
    pub file: String,
    /// Line in the source file, starting at 1.
    pub line: u32,
}

impl Operation {
    /// The path without the function: its module or type.
    pub fn place(&self) -> &str {
        self.split().0
    }

    /// Name of the function or block.
    pub fn function(&self) -> &str {
        self.split().1
    }

    /// Splits the name at the last `::` outside brackets; without one at the last `.`, which is
    /// the separator of Python.
    fn split(&self) -> (&str, &str) {
        let at = |separator| last_outside_brackets(&self.name, separator).map(|at| (at, separator));
        match at("::").or_else(|| at(".")) {
            Some((at, separator)) => (&self.name[..at], &self.name[at + separator.len()..]),
            None => ("", &self.name),
        }
    }
}

/// The position of the last separator outside brackets.
fn last_outside_brackets(name: &str, separator: &str) -> Option<usize> {
    let mut depth = 0usize;
    let bytes = name.as_bytes();
    (0..bytes.len()).rev().find(|&at| {
        match bytes[at] {
            b'>' | b')' | b']' => depth += 1,
            b'<' | b'(' | b'[' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && bytes[at..].starts_with(separator.as_bytes())
    })
}

/// The end of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The call returned.
    Returned,
    /// The call panicked.
    Panicked,
    /// The call was open when the trace ended.
    Open,
    /// Events were lost while the call was open.
    EventsLost,
}

impl Outcome {
    /// Why the call did not return; empty if it did.
    pub(crate) fn remark(self) -> &'static str {
        match self {
            Outcome::Returned => "",
            Outcome::Panicked => "panicked",
            Outcome::Open => "open at the end of the trace",
            Outcome::EventsLost => "events were lost",
        }
    }
}

/// A call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Call {
    /// Number of the probe.
    pub operation: u16,
    /// The caller: an index in [`Calls::calls`], less than the index of this call.
    pub parent: Option<u32>,
    /// Whether the caller is on another line, through a [`Handover`](crate::Handover) or a future.
    pub handed_over: bool,
    /// Number of the run that contains the call. A run lasts from a call without caller, or from a
    /// handed-over call, to the end of that call on its line.
    pub trace: u32,
    /// The line of execution.
    pub line: Line,
    /// Number in the trace of the thread that entered the call.
    pub thread: u32,
    /// Time of the enter event, in nanoseconds of `CLOCK_MONOTONIC`.
    pub begin_ns: u64,
    /// Time of the leave event, or the last time at which the call was known to be open.
    pub end_ns: u64,
    /// The end of the call.
    pub outcome: Outcome,
}

/// The calls of a trace.
#[derive(Debug, Clone, Default)]
pub struct Calls {
    operations: BTreeMap<u16, Operation>,
    task_names: BTreeMap<u64, String>,
    /// Names and values of the fields of all calls, and those of each call.
    fields: Vec<(String, String)>,
    call_fields: HashMap<u32, Vec<u32>>,
    process: Process,
    threads: BTreeMap<u32, (u32, String)>,
    calls: Vec<Call>,
    traces: u32,
    unmatched_events: u64,
    lost: u64,
    real_offset_ns: i64,
    ending: Option<Ending>,
}

impl Calls {
    /// Reads the calls of a trace.
    ///
    /// # Errors
    ///
    /// The input cannot be read, is not a trace, or contains more than [`CALLS_MAX`] calls.
    pub fn read(trace: impl Read) -> Result<Calls, Error> {
        let mut reader = Reader::new(trace)?;
        let mut calls = Calls::default();
        let mut items = Vec::new();
        // For each stream, the events lost so far, and the items that no task has claimed yet.
        let mut streams: HashMap<u32, (u64, Vec<usize>)> = HashMap::new();
        while let Some(packet) = reader.next_packet()? {
            let stream = packet.thread().stream;
            calls.threads.entry(stream).or_insert_with(|| {
                let thread = packet.thread();
                (thread.tid, thread.name.clone())
            });
            let (lost, unclaimed) = streams.entry(stream).or_default();
            if packet.lost() > *lost {
                *lost = packet.lost();
                // The next task that claims items may differ from the task that logged these.
                unclaimed.clear();
                items.push(Item {
                    time_ns: packet.span_ns().0,
                    stream,
                    task: None,
                    what: What::Lost,
                });
            }
            calls.real_offset_ns = packet.real_offset_ns();
            for event in packet.events() {
                let what = match What::of(&event) {
                    Some(Decoded::What(what)) => what,
                    Some(Decoded::Declare(probe, operation)) => {
                        calls.operations.insert(probe, operation);
                        continue;
                    }
                    Some(Decoded::TaskName(task, name)) => {
                        calls.task_names.insert(task, name);
                        continue;
                    }
                    Some(Decoded::Field(probe, field)) => {
                        calls.fields.push(field);
                        What::Field { probe, field: calls.fields.len() as u32 - 1 }
                    }
                    Some(Decoded::Task(task)) => {
                        unclaimed.drain(..).for_each(|at: usize| {
                            let item: &mut Item = &mut items[at];
                            item.task = Some(task);
                        });
                        continue;
                    }
                    None => continue,
                };
                unclaimed.push(items.len());
                items.push(Item { time_ns: event.time_ns(), stream, task: None, what });
                if items.len() > ITEMS_MAX {
                    return Err(Error::TooManyCalls);
                }
            }
        }
        calls.process = reader.process().clone();
        calls.ending = reader.ending().cloned();
        calls.lost = match &calls.ending {
            Some(ending @ Ending::Complete { .. }) => ending.lost(),
            _ => streams.values().fold(0, |all, (lost, _)| all.saturating_add(*lost)),
        };
        calls.build(items)?;
        Ok(calls)
    }

    /// Sorts events and derives calls from them.
    fn build(&mut self, mut items: Vec<Item>) -> Result<(), Error> {
        // The sort is stable: events of a thread keep their order.
        items.sort_by_key(|item| item.time_ns);
        let mut builder = Builder { calls: std::mem::take(&mut self.calls), ..Builder::default() };
        for item in &items {
            builder.take(item);
            if builder.calls.len() > CALLS_MAX {
                return Err(Error::TooManyCalls);
            }
        }
        let end_ns = items.last().map_or(0, |item| item.time_ns);
        for call in builder.calls.iter_mut().filter(|call| call.outcome == Outcome::Open) {
            call.end_ns = end_ns;
        }
        (self.calls, self.traces, self.unmatched_events) =
            (builder.calls, builder.traces, builder.unmatched_events);
        self.call_fields = builder.fields;
        for call in &self.calls {
            self.operations.entry(call.operation).or_insert_with(|| Operation {
                name: format!("probe {}", call.operation),
                ..Operation::default()
            });
        }
        Ok(())
    }

    /// All calls, in the order of their enter events.
    pub fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// The operation of a call.
    ///
    /// # Panics
    ///
    /// The call belongs to another trace.
    pub fn operation(&self, call: &Call) -> &Operation {
        &self.operations[&call.operation]
    }

    /// Names and values of the recorded fields of the call with this index, in order.
    pub fn fields(&self, call: u32) -> impl Iterator<Item = (&str, &str)> {
        let fields = self.call_fields.get(&call).into_iter().flatten();
        fields.map(|field| {
            let (name, value) = &self.fields[*field as usize];
            (name.as_str(), value.as_str())
        })
    }

    /// All operations that the trace declares or calls, by the probe's number.
    pub fn operations(&self) -> impl Iterator<Item = (u16, &Operation)> {
        self.operations.iter().map(|(number, operation)| (*number, operation))
    }

    /// The recorded process.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Thread ID and name of a thread.
    pub fn thread(&self, stream: u32) -> (u32, &str) {
        self.threads.get(&stream).map_or((0, ""), |(tid, name)| (*tid, name))
    }

    /// Name of a task, if the trace declares one.
    pub fn task_name(&self, task: u64) -> Option<&str> {
        self.task_names.get(&task).map(String::as_str)
    }

    /// Number of runs.
    pub fn traces(&self) -> u32 {
        self.traces
    }

    /// Enter and leave events of one run, in order: the call, and whether the event is its enter.
    pub(crate) fn steps(&self, run: &[u32]) -> Vec<(u32, bool)> {
        let mut steps = Vec::with_capacity(2 * run.len());
        let mut open: Vec<u32> = Vec::new();
        for &number in run {
            let call = &self.calls[number as usize];
            let caller = call.parent.filter(|_| !call.handed_over);
            while open.last().is_some_and(|last| Some(*last) != caller) {
                steps.extend(open.pop().map(|left| (left, false)));
            }
            open.push(number);
            steps.push((number, true));
        }
        steps.extend(open.into_iter().rev().map(|left| (left, false)));
        steps
    }

    /// The calls of each run, in the order of their enter events.
    pub(crate) fn runs(&self) -> Vec<Vec<u32>> {
        let mut runs = vec![Vec::new(); self.traces as usize];
        for (number, call) in (0..).zip(&self.calls) {
            runs[call.trace as usize].push(number);
        }
        runs
    }

    /// Number of events that belong to no call, because the call began before the trace or its
    /// begin was lost.
    pub fn unmatched_events(&self) -> u64 {
        self.unmatched_events
    }

    /// Number of lost events.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Offset that converts times to nanoseconds since 1970.
    pub fn real_offset_ns(&self) -> i64 {
        self.real_offset_ns
    }

    /// State of the end of the trace.
    pub fn ending(&self) -> Option<&Ending> {
        self.ending.as_ref()
    }
}

/// A decoded event.
enum Decoded {
    What(What),
    Declare(u16, Operation),
    TaskName(u64, String),
    Field(u16, (String, String)),
    Task(u64),
}

/// The effect of an event on calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Enter(u16),
    /// A field of the next call on this thread, by its index, if that is a call of this probe.
    Field {
        probe: u16,
        field: u32,
    },
    Leave {
        panics: bool,
    },
    HandOver(u64),
    Resume(u64),
    Suspend,
    /// Events are missing here.
    Lost,
}

#[derive(Debug, Clone, Copy)]
struct Item {
    time_ns: u64,
    stream: u32,
    /// The task that logged the event; `None`: the thread outside tasks.
    task: Option<u64>,
    what: What,
}

impl What {
    fn of(event: &Record<'_>) -> Option<Decoded> {
        let number = |field| match event.value(field) {
            Some(Value::U64(number)) => Some(number),
            _ => None,
        };
        let probe = || number("probe").and_then(|probe| u16::try_from(probe).ok());
        let text = |field| match event.value(field) {
            Some(Value::Text(text)) => Some(text.to_owned()),
            _ => None,
        };
        Some(Decoded::What(match event.kind().name().strip_prefix("probe.")? {
            "enter" | "enter_untimed" => What::Enter(probe()?),
            "leave" | "leave_untimed" => What::Leave { panics: false },
            "panic" => What::Leave { panics: true },
            "hand_over" => What::HandOver(number("line")?),
            "resume" => What::Resume(number("line")?),
            "suspend" => What::Suspend,
            "task" => return Some(Decoded::Task(number("task")?)),
            "task_name" => return Some(Decoded::TaskName(number("task")?, text("name")?)),
            "field" => {
                return Some(Decoded::Field(probe()?, (text("field")?, text("value")?)));
            }
            "declare" => {
                let line = number("line").and_then(|line| u32::try_from(line).ok())?;
                let operation = Operation { name: text("name")?, file: text("file")?, line };
                return Some(Decoded::Declare(probe()?, operation));
            }
            _ => return None,
        }))
    }
}

/// A line of execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Line {
    /// A thread, by its number in the trace.
    Thread(u32),
    /// A task, by its number.
    Task(u64),
    /// A handover or an asynchronous call, by its number.
    HandedOver(u64),
}

/// Derives calls from events sorted by time.
#[derive(Debug, Default)]
struct Builder {
    calls: Vec<Call>,
    traces: u32,
    unmatched_events: u64,
    /// Open calls of each line, the innermost last.
    open: HashMap<Line, Vec<u32>>,
    /// Lines that each thread or task has resumed, the innermost last.
    resumed: HashMap<Line, Vec<Line>>,
    /// Fields of the next call of each stream, with their probe; and fields of calls.
    next_fields: HashMap<u32, (u16, Vec<u32>)>,
    fields: HashMap<u32, Vec<u32>>,
    /// The call that handed over each line.
    callers: HashMap<u64, u32>,
    /// Lines of each stream whose calls become incomplete if the stream loses events.
    touched: HashMap<u32, HashSet<Line>>,
}

impl Builder {
    fn take(&mut self, item: &Item) {
        let home = item.task.map_or(Line::Thread(item.stream), Line::Task);
        let line = self.resumed.get(&home).and_then(|lines| lines.last()).copied().unwrap_or(home);
        match item.what {
            What::Enter(operation) => self.enter(operation, line, item),
            What::Field { probe, field } => {
                let (of, fields) = self.next_fields.entry(item.stream).or_default();
                if *of != probe {
                    (*of, *fields) = (probe, Vec::new());
                }
                fields.push(field);
            }
            What::Leave { panics } => self.leave(panics, line, item.time_ns),
            What::HandOver(to) => {
                if let Some(call) = self.open.get(&line).and_then(|open| open.last()) {
                    self.callers.insert(to, *call);
                }
            }
            What::Resume(resumed) => {
                self.resumed.entry(home).or_default().push(Line::HandedOver(resumed));
                self.touched.entry(item.stream).or_default().insert(home);
            }
            What::Suspend => {
                if self.resumed.get_mut(&home).and_then(Vec::pop).is_none() {
                    self.unmatched_events += 1;
                }
            }
            What::Lost => {
                self.next_fields.remove(&item.stream);
                for line in self.touched.remove(&item.stream).unwrap_or_default() {
                    self.resumed.remove(&line);
                    for call in self.open.remove(&line).unwrap_or_default() {
                        let call = &mut self.calls[call as usize];
                        (call.outcome, call.end_ns) = (Outcome::EventsLost, item.time_ns);
                    }
                }
            }
        }
    }

    fn enter(&mut self, operation: u16, line: Line, item: &Item) {
        let number = self.calls.len() as u32;
        let open = self.open.entry(line).or_default();
        let own = open.last().copied();
        let caller = match line {
            Line::HandedOver(line) => self.callers.get(&line).copied(),
            _ => None,
        };
        let trace = match own {
            Some(parent) => self.calls[parent as usize].trace,
            None => {
                self.traces += 1;
                self.traces - 1
            }
        };
        open.push(number);
        let fields = self.next_fields.remove(&item.stream);
        if let Some((_, fields)) = fields.filter(|(of, _)| *of == operation) {
            self.fields.insert(number, fields);
        }
        self.touched.entry(item.stream).or_default().insert(line);
        self.calls.push(Call {
            operation,
            parent: own.or(caller),
            handed_over: own.is_none() && caller.is_some(),
            trace,
            line,
            thread: item.stream,
            begin_ns: item.time_ns,
            end_ns: item.time_ns,
            outcome: Outcome::Open,
        });
    }

    fn leave(&mut self, panics: bool, line: Line, time_ns: u64) {
        match self.open.get_mut(&line).and_then(Vec::pop) {
            Some(call) => {
                let call = &mut self.calls[call as usize];
                call.end_ns = time_ns;
                call.outcome = if panics { Outcome::Panicked } else { Outcome::Returned };
            }
            None => self.unmatched_events += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Calls derived from events: time, stream, task, and effect.
    fn calls_of(events: &[(u64, u32, Option<u64>, What)]) -> Calls {
        let items = events.iter().map(|&(time_ns, stream, task, what)| Item {
            time_ns,
            stream,
            task,
            what,
        });
        let mut calls = Calls::default();
        calls.build(items.collect()).unwrap();
        calls
    }

    impl Calls {
        /// A set of calls of operations with these names.
        pub(crate) fn of(names: &[&str], calls: &[Call]) -> Calls {
            let operation =
                |name: &&str| Operation { name: (*name).into(), file: "a.rs".into(), line: 1 };
            Calls {
                operations: (0..).zip(names.iter().map(operation)).collect(),
                calls: calls.to_vec(),
                traces: calls.iter().map(|call| call.trace + 1).max().unwrap_or(0),
                ..Calls::default()
            }
        }
    }

    impl Call {
        /// A call that returned immediately.
        pub(crate) fn of(operation: u16, parent: Option<u32>, begin_ns: u64) -> Call {
            Call {
                operation,
                parent,
                handed_over: false,
                trace: 0,
                line: Line::Thread(0),
                thread: 0,
                begin_ns,
                end_ns: begin_ns,
                outcome: Outcome::Returned,
            }
        }
    }

    const LEAVE: What = What::Leave { panics: false };

    #[test]
    fn handed_over_calls_have_callers_on_another_line() {
        let calls = calls_of(&[
            (0, 0, None, What::Enter(1)),
            (1, 0, None, What::HandOver(7)),
            (2, 0, None, LEAVE),
            (3, 1, None, What::Enter(9)),
            (4, 1, None, What::Resume(7)),
            (5, 1, None, What::Enter(2)),
            (6, 1, None, LEAVE),
            (7, 1, None, What::Suspend),
            (8, 1, None, LEAVE),
        ]);
        let [caller, other, handed_over] = calls.calls() else { panic!("{calls:?}") };
        assert_eq!(
            (handed_over.parent, handed_over.handed_over, handed_over.operation),
            (Some(0), true, 2)
        );
        assert_eq!((caller.trace, other.trace, handed_over.trace), (0, 1, 2));
        assert_eq!((other.parent, other.end_ns, calls.unmatched_events()), (None, 8, 0));
    }

    #[test]
    fn fields_belong_to_the_next_call_of_their_probe_on_the_thread() {
        let field = |probe, field| What::Field { probe, field };
        let calls = calls_of(&[
            (0, 0, None, field(1, 0)),
            (0, 0, None, field(1, 1)),
            (0, 1, None, What::Enter(1)),
            (0, 0, None, What::Enter(1)),
            // A probe that is switched off before it enters.
            (1, 0, None, field(2, 2)),
            (2, 0, None, What::Enter(1)),
            (3, 0, None, field(1, 3)),
            (3, 0, None, What::Lost),
            (4, 0, None, What::Enter(1)),
        ]);
        assert_eq!(calls.call_fields, HashMap::from([(1, vec![0, 1])]));
    }

    #[test]
    fn tasks_on_one_thread_have_separate_calls() {
        let calls = calls_of(&[
            (0, 0, Some(1), What::Enter(1)),
            (1, 0, Some(2), What::Enter(2)),
            (2, 0, Some(1), LEAVE),
            (3, 0, Some(2), What::Leave { panics: true }),
        ]);
        let [first, second] = calls.calls() else { panic!("{calls:?}") };
        assert_eq!((first.end_ns, first.outcome, first.parent), (2, Outcome::Returned, None));
        assert_eq!((second.end_ns, second.outcome, second.parent), (3, Outcome::Panicked, None));
    }

    #[test]
    fn losses_affect_only_open_calls_of_the_thread() {
        let calls = calls_of(&[
            (0, 0, None, What::Enter(1)),
            (1, 1, None, What::Enter(2)),
            (2, 0, None, What::Lost),
            (3, 0, None, LEAVE),
            (4, 0, None, What::Enter(3)),
            (5, 0, None, LEAVE),
            (6, 1, None, LEAVE),
        ]);
        let outcomes: Vec<_> =
            calls.calls().iter().map(|call| (call.outcome, call.end_ns)).collect();
        assert_eq!(
            outcomes,
            [(Outcome::EventsLost, 2), (Outcome::Returned, 6), (Outcome::Returned, 5)]
        );
        assert_eq!(calls.unmatched_events(), 1);
    }

    #[test]
    fn operation_names_are_split_outside_brackets() {
        let split = |name: &str| {
            let operation = Operation { name: name.into(), ..Operation::default() };
            (operation.place().to_owned(), operation.function().to_owned())
        };
        assert_eq!(split("a::b::c"), ("a::b".into(), "c".into()));
        assert_eq!(split("<a::B as c::D>::e"), ("<a::B as c::D>".into(), "e".into()));
        assert_eq!(split("main"), (String::new(), "main".into()));
        assert_eq!(split("a::f<b::C>"), ("a".into(), "f<b::C>".into()));
        assert_eq!(split("a::read v1.2"), ("a".into(), "read v1.2".into()));
        assert_eq!(split("a.B.c"), ("a.B".into(), "c".into()));
        assert_eq!(split("a.f.<locals>.<lambda>"), ("a.f.<locals>".into(), "<lambda>".into()));
        assert_eq!(split("::"), (String::new(), String::new()));
        assert_eq!(split(""), (String::new(), String::new()));
    }

    fn what() -> impl Strategy<Value = What> {
        prop_oneof![
            4 => (0u16..4).prop_map(What::Enter),
            4 => any::<bool>().prop_map(|panics| What::Leave { panics }),
            1 => (0u64..3).prop_map(What::HandOver),
            1 => (0u64..3).prop_map(What::Resume),
            1 => Just(What::Suspend),
            1 => (0u16..4, 0u32..3).prop_map(|(probe, field)| What::Field { probe, field }),
            1 => Just(What::Lost),
        ]
    }

    /// A tree of calls, as nested lists.
    #[derive(Debug, Clone)]
    struct Tree(u16, Vec<Tree>);

    fn tree() -> impl Strategy<Value = Tree> {
        let leaf = any::<u16>().prop_map(|operation| Tree(operation, Vec::new()));
        leaf.prop_recursive(5, 40, 4, |inner| {
            (any::<u16>(), proptest::collection::vec(inner, 0..4))
                .prop_map(|(o, called)| Tree(o, called))
        })
    }

    /// The events of a tree, and the expected callers.
    fn events_of(
        tree: &Tree,
        parent: Option<u32>,
        events: &mut Vec<What>,
        found: &mut Vec<(u16, Option<u32>)>,
    ) {
        let number = found.len() as u32;
        found.push((tree.0, parent));
        events.push(What::Enter(tree.0));
        tree.1.iter().for_each(|called| events_of(called, Some(number), events, found));
        events.push(LEAVE);
    }

    proptest! {
        #[test]
        fn call_trees_are_reconstructed(trees in proptest::collection::vec(tree(), 1..4)) {
            let (mut events, mut expected) = (Vec::new(), Vec::new());
            trees.iter().for_each(|tree| events_of(tree, None, &mut events, &mut expected));
            let events: Vec<_> =
                (0..).zip(&events).map(|(at, what)| (at, 0, None, *what)).collect();
            let calls = calls_of(&events);
            let found: Vec<_> =
                calls.calls().iter().map(|call| (call.operation, call.parent)).collect();
            prop_assert_eq!(found, expected);
            prop_assert!(calls.calls().iter().all(|call| call.outcome == Outcome::Returned));
            prop_assert_eq!((calls.unmatched_events(), calls.traces()), (0, trees.len() as u32));
        }

        #[test]
        fn arbitrary_events_give_nested_calls(
            events in proptest::collection::vec(
                (0u64..50, 0u32..3, proptest::option::of(0u64..2), what()),
                0..200,
            ),
        ) {
            let calls = calls_of(&events);
            let entered = events.iter().filter(|e| matches!(e.3, What::Enter(_))).count();
            prop_assert_eq!(calls.calls().len(), entered);
            for (number, call) in calls.calls().iter().enumerate() {
                prop_assert!(call.begin_ns <= call.end_ns);
                let Some(parent) = call.parent else { continue };
                prop_assert!((parent as usize) < number);
                let parent = &calls.calls()[parent as usize];
                prop_assert!(parent.begin_ns <= call.begin_ns);
                if !call.handed_over {
                    prop_assert!(call.end_ns <= parent.end_ns && parent.trace == call.trace);
                }
            }
        }
    }
}
