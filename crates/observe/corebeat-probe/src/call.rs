//! From events to calls: who called whom, from when to when.

use crate::error::Error;
use corebeat_trace::{Ending, Reader, Record, Value};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Read;

/// Calls of a trace that are read, at most.
pub const CALLS_MAX: usize = 1 << 22;
/// Events about them that are read, at most: each takes 40 bytes here.
const ITEMS_MAX: usize = 3 * CALLS_MAX;

/// What a probe is on, as the trace has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Operation {
    /// The probe's name.
    pub name: String,
    /// The source file.
    pub file: String,
    /// The line in it, from 1.
    pub line: u32,
}

impl Operation {
    /// The path without the function: where it belongs to.
    pub fn place(&self) -> &str {
        self.split().0
    }

    /// The function, or block.
    pub fn function(&self) -> &str {
        self.split().1
    }

    /// At the last `::` that is in no brackets.
    fn split(&self) -> (&str, &str) {
        let mut depth = 0usize;
        let bytes = self.name.as_bytes();
        for at in (1..bytes.len()).rev() {
            match bytes[at] {
                b'>' | b')' | b']' => depth += 1,
                b'<' | b'(' | b'[' => depth = depth.saturating_sub(1),
                b':' if depth == 0 && bytes[at - 1] == b':' => {
                    return (&self.name[..at - 1], &self.name[at + 1..]);
                }
                _ => {}
            }
        }
        ("", &self.name)
    }
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It returned.
    Returned,
    /// It panicked.
    Panicked,
    /// It had not ended when the trace did.
    Open,
    /// Events were lost while it was open.
    Torn,
}

/// A call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Call {
    /// What was called: the probe's number.
    pub operation: u16,
    /// Who called: a number in [`Calls::calls`], less than this one's.
    pub parent: Option<u32>,
    /// Whether who called did so from another line, by a [`Handover`](crate::Handover) or as a future.
    pub handed: bool,
    /// The run of calls that it is in: from a call that nobody called, or that was handed over, to its end on one line. From 0.
    pub trace: u32,
    /// What it runs on.
    pub line: Line,
    /// The number in the trace of the thread that entered it.
    pub thread: u32,
    /// When it was entered, in nanoseconds of `CLOCK_MONOTONIC`.
    pub begin_ns: u64,
    /// When it was left, or last known to be open.
    pub end_ns: u64,
    /// How it ended.
    pub outcome: Outcome,
}

/// The calls of a trace.
#[derive(Debug, Clone, Default)]
pub struct Calls {
    operations: BTreeMap<u16, Operation>,
    threads: BTreeMap<u32, (u32, String)>,
    calls: Vec<Call>,
    traces: u32,
    strays: u64,
    lost: u64,
    real_offset_ns: i64,
    ending: Option<Ending>,
}

impl Calls {
    /// Reads the calls of a trace.
    ///
    /// # Errors
    ///
    /// It cannot be read, is no trace, or has more than [`CALLS_MAX`] calls.
    pub fn read(trace: impl Read) -> Result<Calls, Error> {
        let mut reader = Reader::new(trace)?;
        let mut calls = Calls::default();
        let mut items = Vec::new();
        // Of each stream, what was lost so far, and items that no task has claimed yet.
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
                // Who comes back next may be another one than who logged these.
                unclaimed.clear();
                items.push(Item { time_ns: packet.span_ns().0, stream, task: None, what: What::Lost });
            }
            calls.real_offset_ns = packet.real_offset_ns();
            for event in packet.events() {
                let what = match What::of(&event) {
                    Some(Heard::What(what)) => what,
                    Some(Heard::Declare(probe, operation)) => {
                        calls.operations.insert(probe, operation);
                        continue;
                    }
                    Some(Heard::Task(task)) => {
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
        calls.ending = reader.ending().cloned();
        calls.lost = match &calls.ending {
            Some(ending @ Ending::Complete { .. }) => ending.lost(),
            _ => streams.values().fold(0, |all, (lost, _)| all.saturating_add(*lost)),
        };
        calls.build(items)?;
        Ok(calls)
    }

    /// Puts events in order, and makes calls of them.
    fn build(&mut self, mut items: Vec<Item>) -> Result<(), Error> {
        // Stable: events of a thread stay in their order.
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
        (self.calls, self.traces, self.strays) = (builder.calls, builder.traces, builder.strays);
        for call in &self.calls {
            self.operations.entry(call.operation).or_insert_with(|| Operation {
                name: format!("probe {}", call.operation),
                ..Operation::default()
            });
        }
        Ok(())
    }

    /// All calls, in the order in which they were entered.
    pub fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// What a call called.
    ///
    /// # Panics
    ///
    /// The call is of another trace.
    pub fn operation(&self, call: &Call) -> &Operation {
        &self.operations[&call.operation]
    }

    /// What the trace declares, or has calls of, by the probe's number.
    pub fn operations(&self) -> impl Iterator<Item = (u16, &Operation)> {
        self.operations.iter().map(|(number, operation)| (*number, operation))
    }

    /// A thread's number in the system, and its name.
    pub fn thread(&self, stream: u32) -> (u32, &str) {
        self.threads.get(&stream).map_or((0, ""), |(tid, name)| (*tid, name))
    }

    /// How many runs of calls there are.
    pub fn traces(&self) -> u32 {
        self.traces
    }

    /// Enters and leaves of one run, in order: the call, and whether it is entered.
    pub(crate) fn steps(&self, run: &[u32]) -> Vec<(u32, bool)> {
        let mut steps = Vec::with_capacity(2 * run.len());
        let mut open: Vec<u32> = Vec::new();
        for &number in run {
            let call = &self.calls[number as usize];
            let caller = call.parent.filter(|_| !call.handed);
            while open.last().is_some_and(|last| Some(*last) != caller) {
                steps.extend(open.pop().map(|left| (left, false)));
            }
            open.push(number);
            steps.push((number, true));
        }
        steps.extend(open.into_iter().rev().map(|left| (left, false)));
        steps
    }

    /// The calls of each run, in the order in which they were entered.
    pub(crate) fn runs(&self) -> Vec<Vec<u32>> {
        let mut runs = vec![Vec::new(); self.traces as usize];
        for (number, call) in (0..).zip(&self.calls) {
            runs[call.trace as usize].push(number);
        }
        runs
    }

    /// Events that fit to no call: of calls that began before the trace, or whose begin was lost.
    pub fn strays(&self) -> u64 {
        self.strays
    }

    /// Events of the trace that were lost.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// What is to be added to times to have nanoseconds since 1970.
    pub fn real_offset_ns(&self) -> i64 {
        self.real_offset_ns
    }

    /// How the trace ended.
    pub fn ending(&self) -> Option<&Ending> {
        self.ending.as_ref()
    }
}

/// What an event says.
enum Heard {
    What(What),
    Declare(u16, Operation),
    Task(u64),
}

/// What an event means for calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Enter(u16),
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
    /// Which task did it; `None`: the thread by itself.
    task: Option<u64>,
    what: What,
}

impl What {
    fn of(event: &Record<'_>) -> Option<Heard> {
        let number = |field| match event.value(field) {
            Some(Value::U64(number)) => Some(number),
            _ => None,
        };
        let probe = || number("probe").and_then(|probe| u16::try_from(probe).ok());
        let text = |field| match event.value(field) {
            Some(Value::Text(text)) => Some(text.to_owned()),
            _ => None,
        };
        Some(Heard::What(match event.kind().name().strip_prefix("probe.")? {
            "enter" | "enter_untimed" => What::Enter(probe()?),
            "leave" | "leave_untimed" => What::Leave { panics: false },
            "panic" => What::Leave { panics: true },
            "hand_over" => What::HandOver(number("line")?),
            "resume" => What::Resume(number("line")?),
            "suspend" => What::Suspend,
            "task" => return Some(Heard::Task(number("task")?)),
            "declare" => {
                let line = number("line").and_then(|line| u32::try_from(line).ok())?;
                let operation = Operation { name: text("name")?, file: text("file")?, line };
                return Some(Heard::Declare(probe()?, operation));
            }
            _ => return None,
        }))
    }
}

/// What runs one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Line {
    /// A thread, by its number in the trace.
    Thread(u32),
    /// A task, by its number.
    Task(u64),
    /// What was handed over, or is asynchronous.
    Handed(u64),
}

/// Makes calls of events in the order of time.
#[derive(Debug, Default)]
struct Builder {
    calls: Vec<Call>,
    traces: u32,
    strays: u64,
    /// On each line, the calls that are open, the innermost last.
    open: HashMap<Line, Vec<u32>>,
    /// On each thread and task, the lines that it has resumed, the innermost last.
    resumed: HashMap<Line, Vec<Line>>,
    /// Who handed a line over.
    callers: HashMap<u64, u32>,
    /// Of each stream, lines that would be torn if it lost events now.
    touched: HashMap<u32, HashSet<Line>>,
}

impl Builder {
    fn take(&mut self, item: &Item) {
        let home = item.task.map_or(Line::Thread(item.stream), Line::Task);
        let line = self.resumed.get(&home).and_then(|lines| lines.last()).copied().unwrap_or(home);
        match item.what {
            What::Enter(operation) => self.enter(operation, line, item),
            What::Leave { panics } => self.leave(panics, line, item.time_ns),
            What::HandOver(to) => {
                if let Some(call) = self.open.get(&line).and_then(|open| open.last()) {
                    self.callers.insert(to, *call);
                }
            }
            What::Resume(resumed) => {
                self.resumed.entry(home).or_default().push(Line::Handed(resumed));
                self.touched.entry(item.stream).or_default().insert(home);
            }
            What::Suspend => {
                if self.resumed.get_mut(&home).and_then(Vec::pop).is_none() {
                    self.strays += 1;
                }
            }
            What::Lost => {
                for line in self.touched.remove(&item.stream).unwrap_or_default() {
                    self.resumed.remove(&line);
                    for call in self.open.remove(&line).unwrap_or_default() {
                        let call = &mut self.calls[call as usize];
                        (call.outcome, call.end_ns) = (Outcome::Torn, item.time_ns);
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
            Line::Handed(line) => self.callers.get(&line).copied(),
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
        self.touched.entry(item.stream).or_default().insert(line);
        self.calls.push(Call {
            operation,
            parent: own.or(caller),
            handed: own.is_none() && caller.is_some(),
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
            None => self.strays += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Calls made of events: time, stream, task, and what.
    fn calls_of(events: &[(u64, u32, Option<u64>, What)]) -> Calls {
        let items = events.iter().map(|&(time_ns, stream, task, what)| Item { time_ns, stream, task, what });
        let mut calls = Calls::default();
        calls.build(items.collect()).unwrap();
        calls
    }

    impl Calls {
        /// Such calls, of operations with these names.
        pub(crate) fn of(names: &[&str], calls: &[Call]) -> Calls {
            let operation = |name: &&str| Operation { name: (*name).into(), file: "a.rs".into(), line: 1 };
            Calls {
                operations: (0..).zip(names.iter().map(operation)).collect(),
                calls: calls.to_vec(),
                traces: calls.iter().map(|call| call.trace + 1).max().unwrap_or(0),
                ..Calls::default()
            }
        }
    }

    impl Call {
        /// One that returned at once.
        pub(crate) fn of(operation: u16, parent: Option<u32>, begin_ns: u64) -> Call {
            Call {
                operation,
                parent,
                handed: false,
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
    fn handed_calls_are_their_callers_from_another_line() {
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
        let [caller, other, handed] = calls.calls() else { panic!("{calls:?}") };
        assert_eq!((handed.parent, handed.handed, handed.operation), (Some(0), true, 2));
        assert_eq!((caller.trace, other.trace, handed.trace), (0, 1, 2));
        assert_eq!((other.parent, other.end_ns, calls.strays()), (None, 8, 0));
    }

    #[test]
    fn tasks_on_one_thread_have_calls_of_their_own() {
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
    fn loss_tears_the_open_calls_of_its_thread_alone() {
        let calls = calls_of(&[
            (0, 0, None, What::Enter(1)),
            (1, 1, None, What::Enter(2)),
            (2, 0, None, What::Lost),
            (3, 0, None, LEAVE),
            (4, 0, None, What::Enter(3)),
            (5, 0, None, LEAVE),
            (6, 1, None, LEAVE),
        ]);
        let outcomes: Vec<_> = calls.calls().iter().map(|call| (call.outcome, call.end_ns)).collect();
        assert_eq!(outcomes, [(Outcome::Torn, 2), (Outcome::Returned, 6), (Outcome::Returned, 5)]);
        assert_eq!(calls.strays(), 1);
    }

    #[test]
    fn operations_are_split_outside_of_brackets() {
        let split = |name: &str| {
            let operation = Operation { name: name.into(), ..Operation::default() };
            (operation.place().to_owned(), operation.function().to_owned())
        };
        assert_eq!(split("a::b::c"), ("a::b".into(), "c".into()));
        assert_eq!(split("<a::B as c::D>::e"), ("<a::B as c::D>".into(), "e".into()));
        assert_eq!(split("main"), (String::new(), "main".into()));
        assert_eq!(split("a::f<b::C>"), ("a".into(), "f<b::C>".into()));
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
            1 => Just(What::Lost),
        ]
    }

    /// A tree of calls, as nested lists.
    #[derive(Debug, Clone)]
    struct Tree(u16, Vec<Tree>);

    fn tree() -> impl Strategy<Value = Tree> {
        let leaf = any::<u16>().prop_map(|operation| Tree(operation, Vec::new()));
        leaf.prop_recursive(5, 40, 4, |inner| {
            (any::<u16>(), proptest::collection::vec(inner, 0..4)).prop_map(|(o, called)| Tree(o, called))
        })
    }

    /// The events of a tree, and who is to be found called by whom.
    fn play(tree: &Tree, parent: Option<u32>, events: &mut Vec<What>, found: &mut Vec<(u16, Option<u32>)>) {
        let number = found.len() as u32;
        found.push((tree.0, parent));
        events.push(What::Enter(tree.0));
        tree.1.iter().for_each(|called| play(called, Some(number), events, found));
        events.push(LEAVE);
    }

    proptest! {
        #[test]
        fn trees_that_were_played_are_found(trees in proptest::collection::vec(tree(), 1..4)) {
            let (mut events, mut expected) = (Vec::new(), Vec::new());
            trees.iter().for_each(|tree| play(tree, None, &mut events, &mut expected));
            let events: Vec<_> = (0..).zip(&events).map(|(at, what)| (at, 0, None, *what)).collect();
            let calls = calls_of(&events);
            let found: Vec<_> = calls.calls().iter().map(|call| (call.operation, call.parent)).collect();
            prop_assert_eq!(found, expected);
            prop_assert!(calls.calls().iter().all(|call| call.outcome == Outcome::Returned));
            prop_assert_eq!((calls.strays(), calls.traces()), (0, trees.len() as u32));
        }

        #[test]
        fn any_events_give_calls_that_enclose_each_other(
            events in proptest::collection::vec((0u64..50, 0u32..3, proptest::option::of(0u64..2), what()), 0..200)
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
                if !call.handed {
                    prop_assert!(call.end_ns <= parent.end_ns && parent.trace == call.trace);
                }
            }
        }
    }
}
