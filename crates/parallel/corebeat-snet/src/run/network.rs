//! Networks: the public API of the run-time system.

use std::collections::HashMap;
use std::fmt;
use std::panic::resume_unwind;
use std::sync::Arc;

use corebeat_lpel::{
    Closed, Event, Failure, JoinHandle, Reader, Runtime, STACK_MAX, STACK_MIN, Scope, StreamSet,
    Task, Writer, scope,
};

use super::away;
use super::build::Builder;
use super::code::{Code, Coder};
use super::context::Context;
use super::entity;
use super::line::{self, End, Line};
use super::message::Message;
use super::watch::{Position, Watch};
use crate::body::BoxBody;
use crate::error::RunError;
use crate::label::{Kind, Label};
use crate::plan::{BoxPlan, Net};
use crate::rank::{Node, Stall};
use crate::record::Record;
use crate::shape::Shape;
use crate::value::Value;

/// Default capacity of a stream in records.
pub const CAPACITY: usize = 64;

/// Default stack size of a task in bytes. Untouched stack takes no memory.
pub const STACK_SIZE: usize = 256 << 10;

/// A net with functions for its boxes. It can run any number of times.
pub struct Network {
    net: Net,
    code: Code,
    /// Parts that the program places, by their numbers.
    parts: Arc<[Code]>,
    /// Depth of nesting.
    depth: usize,
    options: NetworkOptions,
    watches: Vec<Watch>,
}

/// Function that receives faults.
pub type ReportFault = Arc<dyn Fn(&Fault) + Send + Sync>;

/// Configuration of a [`Network`].
#[derive(Clone)]
pub struct NetworkOptions {
    /// Capacity of a stream in records, at least 1.
    pub capacity: usize,
    /// Stack size of each task, and so of each box, in bytes: from [`STACK_MIN`] to [`STACK_MAX`].
    /// Tasks of nested networks have larger stacks, up to [`STACK_MAX`].
    pub stack_size: usize,
    /// Whether all other entities have priority over boxes (Prokesch 2011, section 6.2.2). Only
    /// [`Prioritised`](corebeat_lpel::scheduler::Prioritised) workers use priorities, and tasks
    /// with a priority are not stolen.
    pub boxes_last: bool,
    /// Whether a box whose calls take 20 µs or more moves to an idle worker between two records, if
    /// other boxes are ready on its own: it continues as a new task. No effect if the task has a
    /// place or a priority.
    pub move_boxes: bool,
    /// Reaction to a record that cannot continue.
    pub on_fault: OnFault,
    /// Function that receives each fault immediately, in the task in which the fault occurs.
    pub report_fault: Option<ReportFault>,
}

impl Default for NetworkOptions {
    fn default() -> NetworkOptions {
        NetworkOptions {
            capacity: CAPACITY,
            stack_size: STACK_SIZE,
            boxes_last: false,
            move_boxes: true,
            on_fault: OnFault::default(),
            report_fault: None,
        }
    }
}

/// Reaction to a record that cannot continue, because its box failed or no part takes it. The
/// option `--on-error` of `corebeat net run` has the same values and the same default. Its value
/// `record` is `Continue` with a [`ReportFault`] that writes [`Fault::to_record`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFault {
    /// The network accepts no more records. Records inside continue to the output, and the fault is
    /// the error of [`Network::run`].
    #[default]
    Stop,
    /// The record is lost. The network continues, and [`Outcome::faults`] lists the fault.
    Continue,
}

/// Reason why a record could not continue.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Entity that failed: `box foo`, `a split`.
    pub entity: String,
    /// Reason.
    pub message: String,
    /// The record. `None` if a box has consumed it.
    pub record: Option<Record>,
}

impl Fault {
    /// Name of the field with the message in [`to_record`](Self::to_record).
    pub const FIELD: &str = "error";

    /// The record that failed, without values that have no text, and with the entity and the reason
    /// in the field [`FIELD`](Self::FIELD). Only that field if the whole record exceeds a limit,
    /// and no field if the process cannot have the label.
    pub fn to_record(&self) -> Record {
        let empty = || Record::new(Shape::empty(), []);
        let Ok(label) = Label::new(Kind::Field, Fault::FIELD) else { return empty() };
        let message = Value::from(format!("{}: {}", self.entity, self.message));
        let kept = self.record.iter().flat_map(Record::iter).filter(|(_, value)| value.has_text());
        let kept = kept.map(|(label, value)| (label, value.clone()));
        Record::from_pairs(kept.chain([(label, message.clone())]))
            .or_else(|_| Record::from_pairs([(label, message)]))
            .unwrap_or_else(|_| empty())
    }
}

/// One line.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.entity, self.message)?;
        match &self.record {
            Some(record) => write!(f, "; record: {record:?}"),
            None => Ok(()),
        }
    }
}

impl Network {
    /// Creates a network of this net, with the functions that `find` returns for its boxes.
    ///
    /// # Errors
    ///
    /// Returns the first error of `find`.
    pub fn new<E>(
        net: Net,
        mut find: impl FnMut(&BoxPlan) -> Result<Arc<dyn BoxBody>, E>,
    ) -> Result<Network, E> {
        let bodies = net
            .boxes
            .iter()
            .map(|plan| Ok((Arc::as_ptr(plan), find(plan)?)))
            .collect::<Result<HashMap<_, _>, E>>()?;
        let mut coder = Coder::new(&bodies);
        let code = coder.code(&net.root);
        let parts = coder.parts();
        Ok(Network {
            depth: code.depth(),
            net,
            code,
            parts,
            options: NetworkOptions::default(),
            watches: Vec::new(),
        })
    }

    /// Plan of the network.
    pub fn net(&self) -> &Net {
        &self.net
    }

    /// Replaces the configuration.
    ///
    /// # Panics
    ///
    /// Panics if the capacity is 0, or if the stack size is out of range.
    pub fn with_options(self, options: NetworkOptions) -> Network {
        assert!(options.capacity > 0, "the capacity of a stream is at least one record");
        assert!(
            (STACK_MIN..=STACK_MAX).contains(&options.stack_size),
            "a stack of {} bytes is out of range: request {STACK_MIN} to {STACK_MAX} bytes",
            options.stack_size
        );
        Network { options, ..self }
    }

    /// Calls `observer` for each record that enters or leaves each box or net of this name,
    /// including this net. The task that holds the record makes the call.
    pub fn observe(
        mut self,
        name: &str,
        position: Position,
        observer: impl Fn(&Record) + Send + Sync + 'static,
    ) -> Self {
        if name == self.net.name && !self.watches.iter().any(|watch| watch.is_of(name)) {
            self.code = Code::Net(name.into(), Arc::new(self.code));
            self.depth += 1;
        }
        self.watches.push(Watch::new(name, position, observer));
        self
    }

    /// Runs these records through the network, and waits for all outputs.
    ///
    /// # Errors
    ///
    /// Returns [`RunError::Stopped`] after a fault, unless the network has the option
    /// [`OnFault::Continue`]. Returns [`RunError::Runtime`] if a task of the network panicked, such
    /// as the iterator of the records, or if [`Runtime::run`] fails for another reason.
    ///
    /// # Panics
    ///
    /// Panics inside a task.
    pub fn run<I>(&self, runtime: &Runtime, records: I) -> Result<Outcome, RunError>
    where
        I: IntoIterator<Item = Record> + Send + 'static,
    {
        let (context, stop) = self.context(runtime, None);
        let code = self.code.clone();
        let of_run = context.clone();
        let records = runtime.run(move || {
            let scope = scope().expect("this is a task");
            let (mut input, output) = spawn(code, &of_run, stop, Task::new(), scope);
            let spawned = Task::new().name("<records>").spawn(move || {
                for record in records {
                    if input.write(record).is_err() {
                        return;
                    }
                }
            });
            let outputs = output.collect();
            match spawned.map(JoinHandle::join) {
                Ok(Ok(())) => {}
                Ok(Err(Failure::Panicked(panic))) => resume_unwind(panic.into_payload()),
                Ok(Err(why)) => of_run.failure("the input", format_args!("{why}")),
                Err(why) => {
                    of_run.failure("the input", format_args!("cannot create its task: {why}"))
                }
            }
            if let Some(fault) = of_run.broken() {
                resume_unwind(Box::new(fault.to_string()));
            }
            outputs
        })?;
        let (faults, fault_count) = context.faults();
        let outcome = Outcome { records, faults, fault_count, kept: context.kept() };
        match self.options.on_fault {
            OnFault::Stop if fault_count > 0 => Err(RunError::Stopped(outcome)),
            OnFault::Stop | OnFault::Continue => Ok(outcome),
        }
    }

    /// Starts the network. It ends after its input is dropped, or after a fault with
    /// [`OnFault::Stop`]. The output does not distinguish the two: read the report after the output
    /// has ended.
    pub fn start(&self, runtime: &Runtime) -> Running {
        let (context, stop) = self.context(runtime, None);
        let (input, output) =
            spawn(self.code.clone(), &context, stop, runtime.task(), runtime.scope());
        Running { input, output, report: Report(context) }
    }

    /// Starts the network on rank 0 of several ranks, which has the input and the output. The other
    /// ranks [`serve`](Self::serve) the same network meanwhile. Each place in the program is the
    /// number of a rank, modulo the number of ranks. See [`rank`](crate::rank).
    ///
    /// # Panics
    ///
    /// Panics if the node is that of another rank, or was used before.
    pub fn start_on_ranks(&self, runtime: &Runtime, node: Arc<Node>) -> Running {
        assert!(node.rank() == 0, "the input of a network is on rank 0");
        let (context, stop) = self.context(runtime, Some(node.clone()));
        let scope = runtime.scope();
        let answers = self.serve_in(&scope, runtime.task(), node, &context);
        let (input, mut output) = spawn(self.code.clone(), &context, stop, runtime.task(), scope);
        output.answers = Some(answers);
        Running { input, output, report: Report(context) }
    }

    /// Runs the parts of the network that are placed on this rank, for the run that
    /// [`start_on_ranks`](Self::start_on_ranks) has started on rank 0. Faults are reported there.
    ///
    /// # Panics
    ///
    /// Panics if the node is that of rank 0, or was used before.
    pub fn serve(&self, runtime: &Runtime, node: Arc<Node>) -> Serving {
        assert!(node.rank() > 0, "rank 0 starts the network");
        let (context, _) = self.context(runtime, Some(node.clone()));
        let scope = runtime.scope();
        let _ = self.serve_in(&scope, runtime.task(), node.clone(), &context);
        Serving { scope, node, context }
    }

    /// Starts the server of this rank. Returns the answers of the other ranks at the end.
    fn serve_in(
        &self,
        scope: &Scope,
        task: Task<'_>,
        node: Arc<Node>,
        context: &Arc<Context>,
    ) -> Reader<u64> {
        let (requests, answers) = node.connect(context, self.parts.len());
        let serve = away::serve(requests, self.parts.clone(), node, context.clone());
        let spawned = entity::spawn(task.scope(scope), "<server>".into(), context.clone(), serve);
        if let Err(why) = spawned {
            context.failure("the network", format_args!("cannot create its tasks: {why}"));
        }
        answers
    }

    fn context(
        &self,
        runtime: &Runtime,
        node: Option<Arc<Node>>,
    ) -> (Arc<Context>, Reader<Message>) {
        let (context, stop) =
            Context::new(&self.options, &self.watches, self.depth, runtime.workers(), node);
        (Arc::new(context), stop)
    }
}

/// Spawns the first task, which creates the other tasks, in a scope.
fn spawn(
    code: Code,
    context: &Arc<Context>,
    stop: Reader<Message>,
    task: Task<'_>,
    scope: Scope,
) -> (Input, Output) {
    let (input, records) = context.stream();
    let (out, output) = context.stream();
    let of_task = context.clone();
    let out = match context.node.clone() {
        None => End::Stream(out),
        Some(node) => End::Exit(Box::new(Exit { stream: out, node })),
    };
    let enter = async move {
        let context = of_task;
        match (Builder { context: &context, place: None, deferred: false }).line(&code, out.into())
        {
            Ok(line) => enter(records, stop, line, &context).await,
            Err(why) => {
                context.failure("the network", format_args!("cannot create its tasks: {why}"))
            }
        }
    };
    let spawned = entity::spawn(task.scope(&scope), "<input>".into(), context.clone(), enter);
    if let Err(why) = spawned {
        context.failure("the network", format_args!("cannot create its tasks: {why}"));
    }
    let (context, answers) = (context.clone(), None);
    (Input(input), Output { records: output, taken: 0, scope, context, answers })
}

/// End of a network on several ranks: counts the messages to the output, and their end as one.
pub(crate) struct Exit {
    stream: Writer<Message>,
    node: Arc<Node>,
}

impl Exit {
    pub(crate) fn send(&mut self, message: Message) {
        self.node.stall().count_output();
        line::send(&mut self.stream, message);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.stream.is_closed()
    }
}

/// Before the end of the stream.
impl Drop for Exit {
    fn drop(&mut self) {
        self.node.stall().count_output();
    }
}

/// Passes records into the network until the input ends or the network stops.
async fn enter(
    records: Reader<Message>,
    stop: Reader<Message>,
    mut line: Line,
    context: &Arc<Context>,
) {
    let mut set = StreamSet::new();
    set.add(records);
    set.add(stop);
    let stall = context.node.as_ref().map(|node| node.stall());
    let turn = || stall.into_iter().for_each(Stall::begin_or_end_input);
    loop {
        turn();
        let next = set.read_async().await;
        turn();
        let Some((_, Event::Item(Message::Record(record)))) = next else { break };
        line.record(record, context);
    }
    // Records that the stream had accepted before the stop are not lost.
    for _ in 0..context.capacity {
        let Some((_, Event::Item(Message::Record(record)))) = set.try_read() else { return };
        line.record(record, context);
    }
}

/// A running network.
pub struct Running {
    /// Input of the network.
    pub input: Input,
    /// Output of the network.
    pub output: Output,
    /// Faults and counts of the run.
    pub report: Report,
}

/// Input of a running network. Dropping it ends the network after all records inside have been
/// processed.
pub struct Input(Writer<Message>);

impl Input {
    /// Writes a record. Blocks while the stream is full. If the network stops before it processes
    /// the record, the record is lost; at most as many records as a stream holds are lost.
    ///
    /// # Errors
    ///
    /// Returns the record if the network has stopped.
    pub fn write(&mut self, record: Record) -> Result<(), Closed<Record>> {
        self.0.write(Message::Record(record)).map_err(|Closed(message)| match message {
            Message::Record(record) => Closed(record),
            _ => unreachable!("the message is the record above"),
        })
    }
}

/// Output of a running network, until all tasks of the network have ended, and with them tasks that
/// boxes have spawned. The [`Report`] is complete then. Dropping the output stops the network, and
/// records inside are lost: no further box is called, and the output function of a running box
/// reports that no more records are accepted.
pub struct Output {
    records: Reader<Message>,
    /// Messages that were read, and their end.
    taken: u64,
    scope: Scope,
    context: Arc<Context>,
    /// On several ranks, until the run has ended: the answers of the other ranks.
    answers: Option<Reader<u64>>,
}

/// On several ranks, waits until all ranks have ended.
impl Drop for Output {
    fn drop(&mut self) {
        if self.answers.is_none() {
            return self.context.abandon_here();
        }
        self.context.abandon();
        while self.read().is_some() {}
        self.finish();
    }
}

impl Output {
    fn read(&mut self) -> Option<Message> {
        if let Some(node) = &self.context.node {
            node.stall().ask_for_output(self.taken);
        }
        let message = self.records.read();
        self.taken += 1;
        message
    }

    /// Ends the run on all ranks, after the end of the records.
    fn finish(&mut self) {
        if let (Some(mut answers), Some(node)) = (self.answers.take(), &self.context.node) {
            self.context.keep(node.finish(&mut answers) as usize);
            // Tasks of this rank remain if one of them has died.
            self.scope.wait();
            node.end_exchange();
        }
    }
}

/// A rank that runs the parts of a network that are placed on it. Dropping it waits for the end.
#[must_use = "a rank takes part in the run until the end"]
pub struct Serving {
    scope: Scope,
    node: Arc<Node>,
    context: Arc<Context>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.scope.wait();
        self.node.finished(self.context.kept());
    }
}

impl Serving {
    /// Waits until rank 0 has ended the run and the tasks of this rank have ended.
    pub fn wait(self) {
        drop(self);
    }
}

impl Iterator for Output {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        while let Some(message) = self.read() {
            if let Message::Record(mut record) = message
                && self.context.fetch("the output", &mut record).is_some()
            {
                return Some(record);
            }
        }
        self.finish();
        // A task that panics closes its streams before it is reported.
        self.scope.wait();
        None
    }
}

/// Faults and counts of a run.
#[derive(Clone)]
pub struct Report(Arc<Context>);

impl Report {
    /// Faults so far. At most 1,000 are stored.
    pub fn faults(&self) -> Vec<Fault> {
        self.0.faults().0
    }

    /// Number of faults so far.
    pub fn fault_count(&self) -> usize {
        self.0.faults().1
    }

    /// Number of records that were in synchrocells when these ended. They had no partner, and are
    /// lost.
    pub fn kept(&self) -> usize {
        self.0.kept()
    }

    /// Stops the input, like [`OnFault::Stop`]. Wakes the task that waits for a record.
    pub fn stop(&self) {
        self.0.stop();
    }

    /// Stops the network as the drop of the [`Output`] does, while another thread waits for its
    /// next record: that thread receives the records that have left the network, and then the end.
    pub fn abandon(&self) {
        self.0.abandon();
    }
}

/// Result of a run.
#[derive(Debug)]
#[must_use = "the outcome lists the records that failed"]
pub struct Outcome {
    /// Output records in order.
    pub records: Vec<Record>,
    /// Faults. At most 1,000 are stored.
    pub faults: Vec<Fault>,
    /// Number of faults.
    pub fault_count: usize,
    /// Number of records that were in synchrocells at the end.
    pub kept: usize,
}
