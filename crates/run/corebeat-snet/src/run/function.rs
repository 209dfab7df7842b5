//! Boxes: what calls a function for each record.

use std::any::Any;
use std::mem::take;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use corebeat_lpel::Reader;

use super::context::Context;
use super::line::Line;
use super::message::Message;
use super::way::{Table, Ways};
use crate::body::{BoxBody, Out, Sink};
use crate::error::TooMany;
use crate::label::{Kind, Label};
use crate::plan::BoxPlan;
use crate::record::Record;
use crate::shape::Shape;
use crate::value::Value;

/// A box and its function.
pub(crate) struct BoxCode {
    pub(crate) plan: Arc<BoxPlan>,
    /// What its tasks are called.
    pub(crate) name: Arc<str>,
    body: Arc<dyn BoxBody>,
    table: Table<Way>,
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
        BoxCode { plan, name, body, table: Table::default() }
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

/// A box's task.
pub(crate) struct Caller {
    code: Arc<BoxCode>,
    ways: Ways<Way>,
    arguments: Vec<Value>,
    /// Memory of the last record, for the next one.
    spare: Vec<Value>,
    line: Line,
    context: Arc<Context>,
}

/// Brings what a function puts out on its way.
struct Sending<'a> {
    outputs: &'a [Made],
    past: &'a [Value],
    spare: &'a mut Vec<Value>,
    line: &'a mut Line,
    context: &'a Arc<Context>,
}

impl Sink for Sending<'_> {
    #[inline]
    fn put(&mut self, variant: usize, values: &mut [Value]) -> bool {
        let made = &self.outputs[variant];
        let mut all = take(self.spare);
        match &made.from {
            None => all.extend(values.iter_mut().map(take)),
            Some(from) => all.extend(from.iter().map(|from| match from {
                From::Function(at) => take(&mut values[*at]),
                From::Past(at) => self.past[*at].clone(),
            })),
        }
        self.line.record(Record::new(made.shape, all), self.context);
        !self.line.is_closed()
    }
}

impl Caller {
    pub(crate) fn new(code: Arc<BoxCode>, line: Line, context: Arc<Context>) -> Caller {
        Caller { code, ways: Ways::default(), arguments: Vec::new(), spare: Vec::new(), line, context }
    }

    pub(crate) async fn run(mut self, mut input: Reader<Message>) {
        if self.code.plan.input.is_none() {
            self.initialise();
        }
        while let Some(message) = input.read_async().await {
            match message {
                Message::Record(record) => self.call(record),
                Message::Mark(mark) => self.line.mark(mark, &self.context),
                Message::Join(_) | Message::Adopt(_) | Message::Done { .. } => {
                    unreachable!("these are for collectors")
                }
            }
        }
    }

    fn call(&mut self, record: Record) {
        let Caller { code, ways, arguments, spare, line, context } = self;
        let shape = record.shape();
        let (taken, outputs) = match ways.get(shape, &code.table, || code.way(shape)) {
            Ok(Way::Call { arguments, outputs }) => (arguments, outputs),
            Ok(Way::Refused) => {
                let name = format!("box {}", code.name);
                return context.fault(&name, format_args!("it takes {}", code.plan.accepts), &record);
            }
            Err(why) => return context.fault(&format!("box {}", code.name), format_args!("{why}"), &record),
        };
        let (_, mut values) = record.into_parts();
        let ended = match taken {
            None => invoke(code, &mut values, &mut Sending { outputs, past: &[], spare, line, context }),
            Some(taken) => {
                arguments.clear();
                arguments.extend(taken.iter().map(|(at, passes)| match passes {
                    true => values[*at].clone(),
                    false => take(&mut values[*at]),
                }));
                invoke(code, arguments, &mut Sending { outputs, past: &values, spare, line, context })
            }
        };
        values.clear();
        if spare.capacity() == 0 {
            *spare = values;
        }
        if let Err(why) = ended {
            context.failure(&format!("box {}", code.name), format_args!("{why}"));
        }
    }

    /// An initialiser is called once, when the network starts, and for no record.
    fn initialise(&mut self) {
        let Caller { code, spare, line, context, .. } = self;
        let outputs = code.plan.outputs.iter().map(|output| made(Shape::empty(), &[], output)).collect();
        let outputs: Vec<Made> = match outputs {
            Ok(outputs) => outputs,
            Err(why) => return context.failure(&format!("box {}", code.name), format_args!("{why}")),
        };
        let mut sending = Sending { outputs: &outputs, past: &[], spare, line, context };
        if let Err(why) = invoke(code, &mut [], &mut sending) {
            context.failure(&format!("box {}", code.name), format_args!("{why}"));
        }
    }
}

fn invoke(code: &BoxCode, arguments: &mut [Value], sending: &mut Sending<'_>) -> Result<(), String> {
    let mut out = Out::new(&code.plan, sending);
    // Unwind safe: the arguments are cleared before they are used again, and of a line nothing is left half done but where the
    // network itself has panicked, which the test below would show.
    match catch_unwind(AssertUnwindSafe(|| code.body.call(arguments, &mut out))) {
        Ok(ended) => ended,
        // The task itself is to end.
        Err(payload) if corebeat_lpel::ends_task(&*payload) => resume_unwind(payload),
        Err(payload) => Err(panic_message(&*payload)),
    }
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text =
        payload.downcast_ref::<&str>().copied().or(payload.downcast_ref::<String>().map(String::as_str));
    format!("it panicked: {}", text.unwrap_or("(no message)"))
}
