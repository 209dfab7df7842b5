//! Networks: what users start.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use corebeat_lpel::{Closed, Event, Failure, Reader, Runtime, StreamSet, Task, Writer};

use super::build::Maker;
use super::code::{Code, Coder};
use super::context::Context;
use super::line::{End, Line};
use super::message::Message;
use super::watch::{Position, Watch};
use crate::body::BoxBody;
use crate::plan::{BoxPlan, Net};
use crate::record::Record;

/// Records that a stream has room for, if nothing is said.
pub const CAPACITY: usize = 64;

/// Bytes of a task's stack, if nothing is said. What is not touched takes no memory.
pub const STACK_SIZE: usize = 256 << 10;

/// A net with functions behind its boxes, ready to run, as often as one likes.
pub struct Network {
    net: Net,
    code: Code,
    /// How deep it is nested.
    depth: usize,
    settings: Settings,
}

pub(crate) type Tell = Arc<dyn Fn(&Fault) + Send + Sync>;

#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) capacity: usize,
    pub(crate) stack_size: usize,
    pub(crate) boxes_last: bool,
    pub(crate) on_fault: OnFault,
    pub(crate) tell: Option<Tell>,
    pub(crate) watches: Vec<Watch>,
}

/// What happens when a record cannot go on: its box failed, or nobody takes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFault {
    /// No more records are taken in. Those inside go on to their end.
    #[default]
    Stop,
    /// That record is lost; all goes on.
    GoOn,
}

/// Why a record could not go on.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Where: `box foo`, `a split`.
    pub entity: String,
    /// What was wrong.
    pub message: String,
    /// The record, if it is still there: a box has taken its apart.
    pub record: Option<Record>,
}

/// In one line.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.entity, self.message)?;
        match &self.record {
            Some(record) => write!(f, "; the record is {record:?}"),
            None => Ok(()),
        }
    }
}

impl Network {
    /// A network of this net, with the function that `find` has for each box.
    ///
    /// # Errors
    ///
    /// What `find` has to say if it has none.
    pub fn new<E>(
        net: Net,
        mut find: impl FnMut(&BoxPlan) -> Result<Arc<dyn BoxBody>, E>,
    ) -> Result<Network, E> {
        let bodies = net
            .boxes
            .iter()
            .map(|plan| Ok((Arc::as_ptr(plan), find(plan)?)))
            .collect::<Result<HashMap<_, _>, E>>()?;
        let code = Coder::new(&bodies).code(&net.root);
        let settings = Settings {
            capacity: CAPACITY,
            stack_size: STACK_SIZE,
            boxes_last: false,
            on_fault: OnFault::default(),
            tell: None,
            watches: Vec::new(),
        };
        Ok(Network { depth: code.depth(), net, code, settings })
    }

    /// The net.
    pub fn net(&self) -> &Net {
        &self.net
    }

    /// How many records a stream has room for; [`CAPACITY`] if nothing is said.
    ///
    /// # Panics
    ///
    /// For 0.
    pub fn capacity(mut self, records: usize) -> Self {
        assert!(records > 0, "a stream needs room for one record");
        self.settings.capacity = records;
        self
    }

    /// Bytes of stack for each task, and so for each box: from [`STACK_MIN`](corebeat_lpel::STACK_MIN) to
    /// [`STACK_MAX`](corebeat_lpel::STACK_MAX); [`STACK_SIZE`] if nothing is said.
    pub fn stack_size(mut self, bytes: usize) -> Self {
        self.settings.stack_size = bytes;
        self
    }

    /// Gives all other entities priority over boxes (Prokesch 2011, section 6.2.2). Only
    /// [`Prioritised`](corebeat_lpel::scheduler::Prioritised) workers look at that, and tasks with a priority stay where they
    /// are placed.
    pub fn boxes_last(mut self) -> Self {
        self.settings.boxes_last = true;
        self
    }

    /// What happens when a record cannot go on.
    pub fn on_fault(mut self, what: OnFault) -> Self {
        self.settings.on_fault = what;
        self
    }

    /// Calls `tell` for each fault, at once, in the task where it happens.
    pub fn tell(mut self, tell: impl Fn(&Fault) + Send + Sync + 'static) -> Self {
        self.settings.tell = Some(Arc::new(tell));
        self
    }

    /// Calls `see` for each record that goes into, or comes out of, each box or net of this name, this one included; in the
    /// task where that happens, which waits for it.
    pub fn observe(
        mut self,
        name: &str,
        position: Position,
        see: impl Fn(&Record) + Send + Sync + 'static,
    ) -> Self {
        if name == self.net.name && !self.settings.watches.iter().any(|watch| watch.is_of(name)) {
            self.code = Code::Net(name.into(), Arc::new(self.code));
            self.depth += 1;
        }
        self.settings.watches.push(Watch::new(name, position, see));
        self
    }

    /// Runs these records through it, and waits for all that comes out.
    ///
    /// # Errors
    ///
    /// As [`Runtime::run`]: what of the network's tasks panicked, or waits for ever.
    ///
    /// # Panics
    ///
    /// Inside a task.
    pub fn run<I>(&self, runtime: &Runtime, records: I) -> Result<Outcome, Failure>
    where
        I: IntoIterator<Item = Record> + Send + 'static,
    {
        let (context, stop) = self.context(runtime);
        let code = self.code.clone();
        let of_run = context.clone();
        let records = runtime.run(move || {
            let (mut input, output) = spawn(code, &of_run, stop, &Task::new());
            let spawned = Task::new().name("<records>").spawn(move || {
                for record in records {
                    if input.write(record).is_err() {
                        return;
                    }
                }
            });
            if let Err(why) = spawned {
                of_run.failure("the input", format_args!("no room for it: {why}"));
            }
            output.collect()
        })?;
        let (faults, fault_count) = context.faults();
        Ok(Outcome { records, faults, fault_count, kept: context.kept() })
    }

    /// Starts it. What is written to its input goes through it; it ends when the input is dropped.
    pub fn start(&self, runtime: &Runtime) -> Running {
        let (context, stop) = self.context(runtime);
        let (input, output) = spawn(self.code.clone(), &context, stop, &runtime.task());
        Running { input, output, report: Report(context) }
    }

    fn context(&self, runtime: &Runtime) -> (Arc<Context>, Reader<Message>) {
        let (context, stop) = Context::new(&self.settings, self.depth, runtime.workers());
        (Arc::new(context), stop)
    }
}

/// The first task makes the rest.
fn spawn(code: Code, context: &Arc<Context>, stop: Reader<Message>, task: &Task<'_>) -> (Input, Output) {
    let (input, records) = context.stream();
    let (out, output) = context.stream();
    let of_task = context.clone();
    let spawned = task.clone().name("<input>").stack_size(context.stack_size).spawn_async(async move {
        let context = of_task;
        match (Maker { context: &context, place: None, asleep: false }).line(&code, End::Stream(out).into()) {
            Ok(line) => enter(records, stop, line, &context).await,
            Err(why) => context.failure("the network", format_args!("no room for it: {why}")),
        }
    });
    if let Err(why) = spawned {
        context.failure("the network", format_args!("no room for it: {why}"));
    }
    (Input(input), Output { records: output, context: context.clone() })
}

/// Lets records in, until there are no more, or the network is stopped.
async fn enter(records: Reader<Message>, stop: Reader<Message>, mut line: Line, context: &Arc<Context>) {
    let mut set = StreamSet::new();
    set.add(records);
    set.add(stop);
    while let Some((_, Event::Item(Message::Record(record)))) = set.read_async().await {
        line.record(record, context);
    }
    // What has been taken from its writer is not lost because the network was stopped.
    for _ in 0..context.capacity {
        let Some((_, Event::Item(Message::Record(record)))) = set.try_read() else { return };
        line.record(record, context);
    }
}

/// A network at work.
pub struct Running {
    /// Where records go in.
    pub input: Input,
    /// Where they come out.
    pub output: Output,
    /// What has happened.
    pub report: Report,
}

/// Where records go into a network. Dropping it ends the network, when it has dealt with all that is in it.
pub struct Input(Writer<Message>);

impl Input {
    /// Gives a record in; waits where there is no room. If the network is stopped before it takes the record in, that is lost:
    /// so may be as many as a stream has room for.
    ///
    /// # Errors
    ///
    /// The record, if the network has stopped.
    pub fn write(&mut self, record: Record) -> Result<(), Closed<Record>> {
        self.0.write(Message::Record(record)).map_err(|Closed(message)| match message {
            Message::Record(record) => Closed(record),
            _ => unreachable!("a record was written"),
        })
    }
}

/// Where records come out of a network, until it has ended. Dropping it stops the network, and what is inside is lost: no
/// box is called any more, and one that puts out records is told that nobody wants them.
pub struct Output {
    records: Reader<Message>,
    context: Arc<Context>,
}

impl Drop for Output {
    fn drop(&mut self) {
        self.context.abandon();
    }
}

impl Iterator for Output {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        loop {
            if let Message::Record(record) = self.records.read()? {
                return Some(record);
            }
        }
    }
}

/// What has happened in a run so far.
#[derive(Clone)]
pub struct Report(Arc<Context>);

impl Report {
    /// What could not go on; at most 1,000 are kept.
    pub fn faults(&self) -> Vec<Fault> {
        self.0.faults().0
    }

    /// How many faults there were.
    pub fn fault_count(&self) -> usize {
        self.0.faults().1
    }

    /// Records that were in synchrocells when those ended: they had no partner, and are lost.
    pub fn kept(&self) -> usize {
        self.0.kept()
    }

    /// Takes in no more records, as [`OnFault::Stop`], and wakes who waits for one.
    pub fn stop(&self) {
        self.0.stop();
    }
}

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    /// All that came out, in order.
    pub records: Vec<Record>,
    /// What could not go on; at most 1,000 are kept.
    pub faults: Vec<Fault>,
    /// How many faults there were.
    pub fault_count: usize,
    /// Records that were in synchrocells at the end.
    pub kept: usize,
}
