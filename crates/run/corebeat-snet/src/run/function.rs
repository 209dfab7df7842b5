//! Boxes: what calls a function for each record.

use std::any::Any;
use std::mem::take;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use corebeat_lpel::{Reader, Writer};

use super::build::Maker;
use super::context::Context;
use super::line::Line;
use super::message::{Mark, Message};
use super::way::{Table, Ways};
use crate::body::{BoxBody, Out, Sink};
use crate::error::TooMany;
use crate::label::{Kind, Label};
use crate::plan::BoxPlan;
use crate::record::{Record, Spare};
use crate::shape::Shape;
use crate::value::Value;

/// A box and its function.
pub(crate) struct BoxCode {
    pub(crate) plan: Arc<BoxPlan>,
    /// What its tasks are called.
    pub(crate) name: Arc<str>,
    body: Arc<dyn BoxBody>,
    table: Table<Way>,
    cost: Cost,
}

/// What to do with records of one shape.
enum Way {
    /// The box does not take them.
    Refused,
    Call {
        /// Where the function's arguments stand in the record, and whether each flows past as well. `None`: they are all
        /// that the record has, in its order.
        arguments: Option<Vec<(usize, bool)>>,
        /// For each variant that may be put out, what becomes of it.
        outputs: Vec<Made>,
    },
}

/// A record that a function puts out, with what flows past (Prokesch 2011, section 2.2.1: flow inheritance).
struct Made {
    shape: Shape,
    /// `None`: it is what the function puts out, in its order.
    from: Option<Vec<From>>,
}

/// Where a value comes from.
enum From {
    /// From the function: this one of its values. The last of a label counts.
    Function(usize),
    /// From the record that went in.
    Past(usize),
}

impl BoxCode {
    pub(crate) fn new(plan: Arc<BoxPlan>, body: Arc<dyn BoxBody>) -> BoxCode {
        let name = plan.name.as_str().into();
        BoxCode { plan, name, body, table: Table::default(), cost: Cost::default() }
    }

    fn way(&self, shape: Shape) -> Result<Way, TooMany> {
        let input = match &self.plan.input {
            Some(input) if shape.is_subtype_of(self.plan.accepts) => input,
            _ => return Ok(Way::Refused),
        };
        let arguments: Vec<(usize, bool)> = input
            .iter()
            .map(|e| (shape.position(e.label).expect("the record has what the box takes"), e.passes))
            .collect();
        let all =
            arguments.len() == shape.len() && arguments.iter().enumerate().all(|(i, a)| *a == (i, false));
        let past: Vec<Label> = shape
            .labels()
            .iter()
            .copied()
            .filter(|l| l.kind() != Kind::BindingTag)
            .filter(|l| input.iter().all(|e| e.label != *l || e.passes))
            .collect();
        let outputs =
            self.plan.outputs.iter().map(|output| made(shape, &past, output)).collect::<Result<_, _>>()?;
        Ok(Way::Call { arguments: (!all).then_some(arguments), outputs })
    }
}

fn made(shape: Shape, past: &[Label], output: &[Label]) -> Result<Made, TooMany> {
    let out = Shape::new(past.iter().chain(output).copied())?;
    if out.labels() == output {
        return Ok(Made { shape: out, from: None });
    }
    let from = out
        .labels()
        .iter()
        .map(|label| match output.iter().rposition(|l| l == label) {
            Some(at) => From::Function(at),
            None => From::Past(shape.position(*label).expect("what flows past was in the record")),
        })
        .collect();
    Ok(Made { shape: out, from: Some(from) })
}

/// Calls a function for records. A replica of a box has one.
pub(crate) struct Caller {
    code: Arc<BoxCode>,
    ways: Ways<Way>,
    arguments: Vec<Value>,
    /// Memory of the last record, for the next one.
    spare: Spare,
    /// Calls up to the next one that is measured, and how many were between it and the last one.
    until_measured: u32,
    measured_every: u32,
}

/// Where records go that a function puts out.
pub(crate) trait To {
    /// `false`: nobody wants any more.
    fn give(&mut self, record: Record) -> bool;
}

/// Brings what a function puts out on its way.
struct Sending<'a, T: To> {
    outputs: &'a [Made],
    past: &'a [Value],
    spare: &'a mut Spare,
    to: &'a mut T,
    /// How long others had the thread, if that is measured.
    away: Option<Duration>,
}

impl<T: To> Sink for Sending<'_, T> {
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
            None => self.to.give(record),
            Some(away) => {
                let since = Instant::now();
                let wanted = self.to.give(record);
                *away += since.elapsed();
                wanted
            }
        }
    }
}

impl Caller {
    pub(crate) fn new(code: Arc<BoxCode>) -> Caller {
        Caller {
            code,
            ways: Ways::default(),
            arguments: Vec::new(),
            spare: Spare::default(),
            until_measured: 1,
            measured_every: 1,
        }
    }

    /// Calls the function for a record.
    #[inline]
    pub(crate) fn call(&mut self, mut record: Record, to: &mut impl To, context: &Context) {
        if context.is_abandoned() {
            return;
        }
        let Caller { code, ways, arguments, spare, until_measured, measured_every } = self;
        let shape = record.shape();
        let (taken, outputs) = match ways.get(shape, &code.table, || code.way(shape)) {
            Ok(Way::Call { arguments, outputs }) => (arguments, outputs),
            Ok(Way::Refused) => {
                let name = format!("box {}", code.name);
                return context.fault(&name, format_args!("it takes {}", code.plan.accepts), &record);
            }
            Err(why) => return context.fault(&format!("box {}", code.name), format_args!("{why}"), &record),
        };
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
                let mut sending = Sending { outputs, past: &[], spare, to, away };
                (invoke(code, record.values_mut(), &mut sending), sending.away)
            }
            Some(taken) => {
                arguments.clear();
                let values = record.values_mut();
                arguments.extend(taken.iter().map(|(at, passes)| match passes {
                    true => values[*at].clone(),
                    false => take(&mut values[*at]),
                }));
                let mut sending = Sending { outputs, past: record.values(), spare, to, away };
                (invoke(code, arguments, &mut sending), sending.away)
            }
        };
        if let (Some(since), Some(away)) = (since, away) {
            code.cost.add(since.elapsed().saturating_sub(away));
        }
        spare.keep(record);
        if let Err(why) = ended {
            context.failure(&format!("box {}", code.name), format_args!("{why}"));
        }
    }

    /// An initialiser is called once, when the network starts, and for no record.
    fn initialise(&mut self, to: &mut impl To, context: &Context) {
        let Caller { code, spare, .. } = self;
        let outputs = code.plan.outputs.iter().map(|output| made(Shape::empty(), &[], output)).collect();
        let outputs: Vec<Made> = match outputs {
            Ok(outputs) => outputs,
            Err(why) => return context.failure(&format!("box {}", code.name), format_args!("{why}")),
        };
        let mut sending = Sending { outputs: &outputs, past: &[], spare, to, away: None };
        if let Err(why) = invoke(code, &mut [], &mut sending) {
            context.failure(&format!("box {}", code.name), format_args!("{why}"));
        }
    }
}

/// A box's task: calls the function for each record, and what it puts out goes its way at once.
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
            }
            Message::Mark(mark) => line.mark(mark, &context),
            Message::Join(_) | Message::Adopt(_) | Message::Done { .. } => {
                unreachable!("these are for collectors")
            }
        }
    }
}

/// Down the line.
struct Onward<'a> {
    line: &'a mut Line,
    context: &'a Arc<Context>,
}

impl To for Onward<'_> {
    #[inline]
    fn give(&mut self, record: Record) -> bool {
        self.line.record(record, self.context);
        !self.context.is_abandoned() && !self.line.is_closed()
    }
}

/// A box that shares its task with what comes before it (see [`star`](super::star)): a step of a line.
pub(crate) struct Call {
    caller: Caller,
    made: Vec<Record>,
}

/// Records that a box that shares its task may put out before they go on.
const MADE_MAX: usize = 64;

impl Call {
    pub(crate) fn new(code: Arc<BoxCode>) -> Call {
        Call { caller: Caller::new(code), made: Vec::new() }
    }

    /// Calls the function. What it puts out goes on when it has returned, so that the functions of a task do not stand on the
    /// stack one above the other: all but the last are given to `out`, the last is returned.
    #[inline]
    pub(crate) fn apply(
        &mut self,
        record: Record,
        context: &Context,
        out: &mut dyn FnMut(Record),
    ) -> Option<Record> {
        let Call { caller, made } = self;
        let mut later = Later { last: None, made, out, context };
        caller.call(record, &mut later, context);
        let last = later.last;
        if !made.is_empty() {
            made.drain(..).for_each(out);
        }
        last
    }
}

/// A box that has had no record yet. Its task is made with the first one: so a worker that has nothing to do can take a task
/// that has work. (A task that has started, and be it to wait, stays where it is.)
pub(crate) struct Asleep {
    code: Arc<BoxCode>,
    /// What comes after it; gone when the task has been made.
    line: Option<Line>,
    place: Option<usize>,
}

impl Asleep {
    pub(crate) fn new(code: Arc<BoxCode>, line: Line, place: Option<usize>) -> Asleep {
        Asleep { code, line: Some(line), place }
    }

    /// Makes the task. That may fail, which is a fault.
    #[cold]
    pub(crate) fn wake(&mut self, record: &Record, context: &Arc<Context>) -> Option<Writer<Message>> {
        let made = self
            .line
            .take()
            .map(|line| Maker { context, place: self.place, asleep: false }.call(&self.code, line));
        match made {
            Some(Ok(stream)) => return Some(stream),
            Some(Err(why)) => {
                context.fault(
                    &format!("box {}", self.code.name),
                    format_args!("no room for its task: {why}"),
                    record,
                );
            }
            None => context.fault(&format!("box {}", self.code.name), format_args!("it has no task"), record),
        }
        None
    }

    /// It has nothing under way.
    pub(crate) fn mark(&mut self, mark: Mark, context: &Arc<Context>) {
        if let Some(line) = &mut self.line {
            line.mark(mark, context);
        }
    }
}

/// Kept for a moment.
struct Later<'a> {
    last: Option<Record>,
    made: &'a mut Vec<Record>,
    out: &'a mut dyn FnMut(Record),
    context: &'a Context,
}

impl To for Later<'_> {
    #[inline(always)]
    fn give(&mut self, record: Record) -> bool {
        if let Some(before) = self.last.replace(record) {
            self.keep(before);
        }
        !self.context.is_abandoned()
    }
}

impl Later<'_> {
    #[inline(never)]
    fn keep(&mut self, record: Record) {
        self.made.push(record);
        if self.made.len() == MADE_MAX {
            self.made.drain(..).for_each(&mut self.out);
        }
    }
}

/// Of so many calls one is measured; of a replica's first ones more.
const MEASURED_EVERY_MAX: u32 = 256;

/// Whether the last measured calls of a function were cheap, without what they waited for: one bit for each. (A mean would be
/// spoiled for long by one call in which the thread was interrupted.)
#[derive(Default)]
struct Cost(AtomicU16);

/// Of the last 16 measured calls so many have to be cheap.
const CHEAP_MIN: u32 = 13;

/// A call that takes less is cheaper than a stream and a task's turn.
const CHEAP: Duration = Duration::from_nanos(500);

impl Cost {
    fn add(&self, time: Duration) {
        // Relaxed, and not one step: a lost bit does no harm.
        let before = self.0.load(Ordering::Relaxed);
        self.0.store(before << 1 | u16::from(time < CHEAP), Ordering::Relaxed);
    }
}

impl BoxCode {
    /// Whether a call is cheaper than a task for it, as far as is known.
    pub(crate) fn is_cheap(&self) -> bool {
        // Relaxed: as in `add`.
        self.cost.0.load(Ordering::Relaxed).count_ones() >= CHEAP_MIN
    }
}

#[inline]
fn invoke(code: &BoxCode, arguments: &mut [Value], sending: &mut dyn Sink) -> Result<(), String> {
    let mut out = Out::new(&code.plan, sending);
    // Unwind safe: the arguments are cleared before they are used again, and what was put out is on its way.
    catch_unwind(AssertUnwindSafe(|| code.body.call(arguments, &mut out)))
        .unwrap_or_else(|payload| Err(panic_message(payload)))
}

#[cold]
fn panic_message(payload: Box<dyn Any + Send>) -> String {
    if corebeat_lpel::ends_task(&*payload) {
        resume_unwind(payload); // the task itself is to end
    }
    let text =
        payload.downcast_ref::<&str>().copied().or(payload.downcast_ref::<String>().map(String::as_str));
    format!("it panicked: {}", text.unwrap_or("(no message)"))
}
