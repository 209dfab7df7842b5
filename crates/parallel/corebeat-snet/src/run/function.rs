//! Boxes at run time: calls a function for each record.

use std::future::Future;
use std::mem::take;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use corebeat_lpel::{Reader, Task, Writer, should_move};

use super::build::Builder;
use super::context::Context;
use super::entity;
use super::line::Line;
use super::message::{Mark, Message};
use super::route::{Routes, Table};
use crate::body::{BoxBody, Out, Sink, invoke};
use crate::error::Error;
use crate::label::{Kind, Label};
use crate::plan::BoxPlan;
use crate::rank::field;
use crate::record::{Record, Spare};
use crate::shape::Shape;
use crate::value::Value;

/// Executable box: a plan and its function.
pub(crate) struct BoxCode {
    pub(crate) plan: Arc<BoxPlan>,
    /// Name of its tasks.
    pub(crate) name: Arc<str>,
    body: Arc<dyn BoxBody>,
    table: Table<Route>,
    cost: Cost,
}

/// Route of records of one shape.
enum Route {
    /// The box does not take these records.
    Refused,
    Call {
        /// Positions of the arguments in the record, and whether each also flows past. `None` if
        /// the arguments are the whole record in its order.
        arguments: Option<Vec<(usize, bool)>>,
        /// Construction of the record for each output variant.
        outputs: Vec<Made>,
    },
}

/// Construction of an output record, including values that flow past (Prokesch 2011, section 2.2.1:
/// flow inheritance).
struct Made {
    shape: Shape,
    /// `None` if the record is the function's output in its order.
    from: Option<Vec<From>>,
}

/// Source of a value.
enum From {
    /// Value of the function's output with this index. The last value of a label counts.
    Function(usize),
    /// Value of the input record with this index.
    Past(usize),
}

impl BoxCode {
    pub(crate) fn new(plan: Arc<BoxPlan>, body: Arc<dyn BoxBody>) -> BoxCode {
        let name = plan.name.as_str().into();
        BoxCode { plan, name, body, table: Table::default(), cost: Cost::default() }
    }

    fn route(&self, shape: Shape) -> Result<Route, Error> {
        let input = match &self.plan.input {
            Some(input) if shape.is_subtype_of(self.plan.accepts) => input,
            _ => return Ok(Route::Refused),
        };
        let arguments: Vec<(usize, bool)> = input
            .iter()
            .map(|e| {
                (
                    shape.position(e.label).expect("the record has the labels that the box takes"),
                    e.passes,
                )
            })
            .collect();
        let all = arguments.len() == shape.len()
            && arguments.iter().enumerate().all(|(i, a)| *a == (i, false));
        let past: Vec<Label> = shape
            .labels()
            .iter()
            .copied()
            .filter(|l| l.kind() != Kind::BindingTag)
            .filter(|l| input.iter().all(|e| e.label != *l || e.passes))
            .collect();
        let outputs = self
            .plan
            .outputs
            .iter()
            .map(|output| made(shape, &past, output))
            .collect::<Result<_, _>>()?;
        Ok(Route::Call { arguments: (!all).then_some(arguments), outputs })
    }
}

fn made(shape: Shape, past: &[Label], output: &[Label]) -> Result<Made, Error> {
    let out = Shape::new(past.iter().chain(output).copied())?;
    if out.labels() == output {
        return Ok(Made { shape: out, from: None });
    }
    let from = out
        .labels()
        .iter()
        .map(|label| match output.iter().rposition(|l| l == label) {
            Some(at) => From::Function(at),
            None => From::Past(
                shape.position(*label).expect("a label that flows past is in the record"),
            ),
        })
        .collect();
    Ok(Made { shape: out, from: Some(from) })
}

/// Caller of a function. Each replica of a box has one.
pub(crate) struct Caller {
    code: Arc<BoxCode>,
    routes: Routes<Route>,
    arguments: Vec<Value>,
    /// Memory of the previous record, for the next one.
    spare: Spare,
    /// Calls until the next measured call, and calls between measured calls.
    until_measured: u32,
    measured_every: u32,
    /// Time of the measured calls since the task last considered a change of its worker.
    busy: Duration,
}

/// Receiver of a function's output records.
pub(crate) trait Receiver {
    /// Receives a record. Returns `false` if no more records are accepted.
    fn receive(&mut self, record: Record) -> bool;
}

/// Sink that builds output records and passes them on.
struct Output<'a, T: Receiver> {
    outputs: &'a [Made],
    past: &'a [Value],
    spare: &'a mut Spare,
    to: &'a mut T,
    /// Time in the receiver, if the call is measured.
    away: Option<Duration>,
}

impl<T: Receiver> Sink for Output<'_, T> {
    #[inline]
    fn put(&mut self, variant: usize, values: &mut [Value]) -> bool {
        let made = &self.outputs[variant];
        let record = match &made.from {
            None => self.spare.record(made.shape, values.iter_mut().map(take)),
            Some(from) => self.spare.record(
                made.shape,
                from.iter().map(|from| match from {
                    From::Function(at) => take(&mut values[*at]),
                    From::Past(at) => self.past[*at].clone(),
                }),
            ),
        };
        match &mut self.away {
            None => self.to.receive(record),
            Some(away) => {
                let since = Instant::now();
                let accepts_more = self.to.receive(record);
                *away += since.elapsed();
                accepts_more
            }
        }
    }
}

impl Caller {
    pub(crate) fn new(code: Arc<BoxCode>) -> Caller {
        Caller {
            code,
            routes: Routes::default(),
            arguments: Vec::new(),
            spare: Spare::default(),
            until_measured: 1,
            measured_every: 1,
            busy: Duration::ZERO,
        }
    }

    /// Calls the function for a record.
    #[inline]
    pub(crate) fn call(&mut self, mut record: Record, to: &mut impl Receiver, context: &Context) {
        if context.is_abandoned() {
            return;
        }
        let Caller { code, routes, arguments, spare, until_measured, measured_every, busy } = self;
        let shape = record.shape();
        let (taken, outputs) = match routes.get(shape, &code.table, || code.route(shape)) {
            Ok(Route::Call { arguments, outputs }) => (arguments, outputs),
            Ok(Route::Refused) => {
                let name = format!("box {}", code.name);
                return context.fault(
                    &name,
                    format_args!("the box takes {}", code.plan.accepts),
                    &record,
                );
            }
            Err(why) => {
                return context.fault(
                    &format!("box {}", code.name),
                    format_args!("{why}"),
                    &record,
                );
            }
        };
        if context.node.is_some()
            && let Err(why) = fetch(taken.as_deref(), record.values_mut())
        {
            let name = format!("box {}", code.name);
            return context.fault(&name, format_args!("{why}"), &record);
        }
        *until_measured -= 1;
        let measured = *until_measured == 0;
        if measured {
            *measured_every = (*measured_every * 2).min(MEASURED_EVERY_MAX);
            *until_measured = *measured_every;
        }
        let since = measured.then(Instant::now);
        let away = measured.then_some(Duration::ZERO);
        let (ended, away) = match taken {
            None => {
                let mut output = Output { outputs, past: &[], spare, to, away };
                (
                    invoke(
                        &*code.body,
                        record.values_mut(),
                        &mut Out::new(&code.plan, &mut output),
                    ),
                    output.away,
                )
            }
            Some(taken) => {
                arguments.clear();
                let values = record.values_mut();
                arguments.extend(taken.iter().map(|(at, passes)| match passes {
                    true => values[*at].clone(),
                    false => take(&mut values[*at]),
                }));
                let mut output = Output { outputs, past: record.values(), spare, to, away };
                (
                    invoke(&*code.body, arguments, &mut Out::new(&code.plan, &mut output)),
                    output.away,
                )
            }
        };
        if let (Some(since), Some(away)) = (since, away) {
            let time = since.elapsed().saturating_sub(away);
            code.cost.add(time);
            if time >= HEAVY {
                (*until_measured, *measured_every) = (1, 1);
                *busy += time;
            }
        }
        spare.keep(record);
        if let Err(why) = ended {
            context.failure(&format!("box {}", code.name), format_args!("{why}"));
        }
    }

    /// Whether another worker should run the further calls.
    #[inline]
    fn should_move(&mut self) -> bool {
        if self.busy < MOVE_AFTER {
            return false;
        }
        self.busy = Duration::ZERO;
        should_move()
    }

    /// Calls an initialiser, which runs once at the start of the network, without a record.
    fn initialise(&mut self, to: &mut impl Receiver, context: &Context) {
        let Caller { code, spare, .. } = self;
        let outputs =
            code.plan.outputs.iter().map(|output| made(Shape::empty(), &[], output)).collect();
        let outputs: Vec<Made> = match outputs {
            Ok(outputs) => outputs,
            Err(why) => {
                return context.failure(&format!("box {}", code.name), format_args!("{why}"));
            }
        };
        let mut output = Output { outputs: &outputs, past: &[], spare, to, away: None };
        if let Err(why) = invoke(&*code.body, &mut [], &mut Out::new(&code.plan, &mut output)) {
            context.failure(&format!("box {}", code.name), format_args!("{why}"));
        }
    }
}

/// Requests the data of arguments that is on other ranks, and waits for it. Other fields remain
/// where they are.
#[cold]
fn fetch(taken: Option<&[(usize, bool)]>, values: &mut [Value]) -> Result<(), &'static str> {
    let Some(taken) = taken else { return field::fetch(values) };
    let mut arguments: Vec<Value> = taken.iter().map(|(at, _)| values[*at].clone()).collect();
    field::fetch(&mut arguments)?;
    for ((at, _), argument) in taken.iter().zip(arguments) {
        values[*at] = argument;
    }
    Ok(())
}

/// Task of a box: calls the function for each record and passes its outputs on immediately.
pub(crate) async fn call_each(
    mut input: Reader<Message>,
    mut caller: Caller,
    mut line: Line,
    context: Arc<Context>,
) {
    if caller.code.plan.input.is_none() {
        caller.initialise(&mut Onward { line: &mut line, context: &context }, &context);
    }
    while let Some(message) = input.read_async().await {
        match message {
            Message::Record(record) => {
                caller.call(record, &mut Onward { line: &mut line, context: &context }, &context);
                if context.move_boxes && caller.should_move() {
                    return move_on(input, caller, line, &context);
                }
            }
            Message::Mark(mark) => line.mark(mark, &context),
            Message::Join(_) | Message::Adopt(_) | Message::Done { .. } => {
                unreachable!("only collectors receive these")
            }
        }
    }
}

/// Spawns a new task for the further records, which an idle worker may steal: a started task never
/// changes its worker. Otherwise boxes in series would stay on the worker of the first one, where
/// the network grew with its first record.
#[cold]
#[inline(never)]
fn move_on(input: Reader<Message>, caller: Caller, line: Line, context: &Arc<Context>) {
    let name = caller.code.name.clone();
    let rest: Pin<Box<dyn Future<Output = ()> + Send>> =
        Box::pin(call_each(input, caller, line, context.clone()));
    if let Err(why) = entity::spawn(Task::new(), name.clone(), context.clone(), rest) {
        context.break_off(&name, format!("its task could not move to another worker: {why}"));
    }
}

/// Receiver that passes records to a line.
struct Onward<'a> {
    line: &'a mut Line,
    context: &'a Arc<Context>,
}

impl Receiver for Onward<'_> {
    #[inline]
    fn receive(&mut self, record: Record) -> bool {
        self.line.record(record, self.context);
        !self.context.is_abandoned() && !self.line.is_closed()
    }
}

/// Box as a step of a line, which shares a task with the part before it (see
/// [`star`](super::star)).
pub(crate) struct Call {
    caller: Caller,
    made: Vec<Record>,
}

/// Records that a box in a shared task outputs before they are passed on.
const MADE_MAX: usize = 64;

impl Call {
    pub(crate) fn new(code: Arc<BoxCode>) -> Call {
        Call { caller: Caller::new(code), made: Vec::new() }
    }

    /// Calls the function. Its outputs are passed on after it returns, so that the functions of a
    /// task do not nest on the stack. Passes all outputs except the last to `out`, and returns the
    /// last.
    #[inline]
    pub(crate) fn apply(
        &mut self,
        record: Record,
        context: &Context,
        out: &mut dyn FnMut(Record),
    ) -> Option<Record> {
        let Call { caller, made } = self;
        let mut collected = Collected { last: None, made, out, context };
        caller.call(record, &mut collected, context);
        let last = collected.last;
        if !made.is_empty() {
            made.drain(..).for_each(out);
        }
        last
    }
}

/// Box whose task is created with its first record, so that an idle worker can steal a task that
/// has work. (A started task never changes its worker, even while it waits.)
pub(crate) struct Deferred {
    code: Arc<BoxCode>,
    /// Line after the box. `None` after the task was created.
    line: Option<Line>,
    place: Option<usize>,
}

impl Deferred {
    pub(crate) fn new(code: Arc<BoxCode>, line: Line, place: Option<usize>) -> Deferred {
        Deferred { code, line: Some(line), place }
    }

    /// Creates the task. Reports a fault if that fails.
    #[cold]
    pub(crate) fn start(
        &mut self,
        record: &Record,
        context: &Arc<Context>,
    ) -> Option<Writer<Message>> {
        let made = self.line.take().map(|line| {
            Builder { context, place: self.place, deferred: false }.call(&self.code, line)
        });
        match made {
            Some(Ok(stream)) => return Some(stream),
            Some(Err(why)) => {
                context.fault(
                    &format!("box {}", self.code.name),
                    format_args!("cannot create its task: {why}"),
                    record,
                );
            }
            None => context.fault(
                &format!("box {}", self.code.name),
                format_args!("its task could not be created before"),
                record,
            ),
        }
        None
    }

    /// Passes a barrier on. The box holds no records.
    pub(crate) fn mark(&mut self, mark: Mark, context: &Arc<Context>) {
        if let Some(line) = &mut self.line {
            line.mark(mark, context);
        }
    }
}

/// Receiver that collects records until the function returns.
struct Collected<'a> {
    last: Option<Record>,
    made: &'a mut Vec<Record>,
    out: &'a mut dyn FnMut(Record),
    context: &'a Context,
}

impl Receiver for Collected<'_> {
    #[inline(always)]
    fn receive(&mut self, record: Record) -> bool {
        if let Some(before) = self.last.replace(record) {
            self.keep(before);
        }
        !self.context.is_abandoned()
    }
}

impl Collected<'_> {
    #[inline(never)]
    fn keep(&mut self, record: Record) {
        self.made.push(record);
        if self.made.len() == MADE_MAX {
            self.made.drain(..).for_each(&mut self.out);
        }
    }
}

/// Calls between measured calls, at most. The first calls of a replica are measured more often.
const MEASURED_EVERY_MAX: u32 = 256;

/// A call from this time on is worth a change of the worker for each of its records. All such calls
/// are measured.
const HEAVY: Duration = Duration::from_micros(20);

/// Time of heavy calls after which a box considers a change of its worker.
const MOVE_AFTER: Duration = Duration::from_micros(500);

/// Whether the last measured calls of a function were cheap, without waiting times: one bit for
/// each call. (One preempted call would distort a mean for a long time.)
#[derive(Default)]
struct Cost(AtomicU16);

/// Cheap calls among the last 16 measured calls that make a function cheap.
const CHEAP_MIN: u32 = 13;

/// A shorter call is cheaper than a stream and a dispatch of a task.
const CHEAP: Duration = Duration::from_nanos(500);

impl Cost {
    fn add(&self, time: Duration) {
        // Relaxed and not atomic as a whole: a lost bit does no harm.
        let before = self.0.load(Ordering::Relaxed);
        self.0.store(before << 1 | u16::from(time < CHEAP), Ordering::Relaxed);
    }
}

impl BoxCode {
    /// Whether recent calls were cheaper than a separate task.
    pub(crate) fn is_cheap(&self) -> bool {
        // Relaxed: like in `add`.
        self.cost.0.load(Ordering::Relaxed).count_ones() >= CHEAP_MIN
    }
}
