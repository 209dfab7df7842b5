//! Steps: entities that process a record immediately, without their own task.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use corebeat_lpel::{Writer, yield_now};

use super::chain::Chain;
use super::choose::ChooseCode;
use super::code::{Code, FeedbackCode, SplitCode};
use super::context::Context;
use super::filter::Filter;
use super::function::Call;
use super::guard::Fit;
use super::line::send;
use super::message::{Mark, Message};
use super::route::Routes;
use super::synchrocell::Sync;
use super::watch::{Position, Watch};
use crate::record::Record;

/// Step of a line.
pub(crate) enum Step {
    Filter(Filter),
    Call(Box<Call>),
    Sync(Box<Sync>),
    Choose(Box<Choose>),
    Star(Box<Chain>),
    Split(Box<Split>),
    Feedback(Box<Feedback>),
    Back(Box<Back>),
    Watch(Watch),
}

/// Parallel composition without boxes.
pub(crate) struct Choose {
    code: Arc<ChooseCode>,
    routes: Routes<Option<usize>>,
    branches: Vec<Vec<Step>>,
}

/// Split without boxes.
pub(crate) struct Split {
    code: Arc<SplitCode>,
    replicas: HashMap<i32, Vec<Step>>,
}

/// Feedback without boxes.
pub(crate) struct Feedback {
    code: Arc<FeedbackCode>,
    routes: Routes<Fit>,
    operand: Vec<Step>,
    queue: VecDeque<Record>,
}

/// End of a feedback loop with boxes: returns matching records to the beginning of the loop.
pub(crate) struct Back {
    code: Arc<FeedbackCode>,
    routes: Routes<Fit>,
    number: u64,
    stream: Writer<Message>,
}

impl Back {
    pub(crate) fn step(code: Arc<FeedbackCode>, number: u64, stream: Writer<Message>) -> Step {
        Step::Back(Box::new(Back { code, routes: Routes::default(), number, stream }))
    }
}

/// Rounds of a star or a feedback after which the task yields.
pub(crate) const ROUNDS_MAX: usize = 1000;

/// Builds the steps, in reverse order, of code that is inline or whose boxes are cheap.
pub(crate) fn steps(code: &Code, context: &Arc<Context>) -> Vec<Step> {
    let mut made = Vec::new();
    add(code, context, &mut made);
    made
}

/// Adds the steps of this code before the others.
fn add(code: &Code, context: &Arc<Context>, steps: &mut Vec<Step>) {
    match code {
        Code::Identity => {}
        Code::Filter(code) if code.is_identity() => {}
        Code::Filter(code) => steps.push(Step::Filter(Filter::new(code.clone()))),
        Code::Sync(code) => {
            steps.push(Step::Sync(Box::new(Sync::new(code.clone(), context.clone()))))
        }
        Code::Serial(parts) => parts.iter().rev().for_each(|part| add(part, context, steps)),
        Code::Choose(code) => steps.push(Step::Choose(Box::new(Choose {
            branches: code.branches.iter().map(|branch| self::steps(branch, context)).collect(),
            routes: Routes::default(),
            code: code.clone(),
        }))),
        Code::Star(code) => steps.push(Step::Star(Box::new(Chain::new(code.clone())))),
        Code::Split(code) => steps
            .push(Step::Split(Box::new(Split { code: code.clone(), replicas: HashMap::new() }))),
        Code::Feedback(code) => steps.push(Step::Feedback(Box::new(Feedback {
            operand: self::steps(&code.operand, context),
            routes: Routes::default(),
            queue: VecDeque::new(),
            code: code.clone(),
        }))),
        Code::Place(code) => add(&code.operand, context, steps),
        Code::Net(name, inner) => {
            steps.extend(context.watch(name, Position::After));
            add(inner, context, steps);
            steps.extend(context.watch(name, Position::Before));
        }
        Code::Box(code) => {
            steps.extend(context.watch(&code.name, Position::After));
            steps.push(Step::Call(Box::new(Call::new(code.clone()))));
            steps.extend(context.watch(&code.name, Position::Before));
        }
    }
}

/// Applies all steps to a record, and passes the outputs to `out` in order.
pub(crate) fn push(
    steps: &mut [Step],
    record: Record,
    context: &Arc<Context>,
    out: &mut dyn FnMut(Record),
) {
    if let Some(last) = apply(steps, record, context, out) {
        out(last);
    }
}

/// Applies all steps to a record. Passes outputs to `out` in order, but may return the last one.
#[inline]
pub(crate) fn apply(
    mut steps: &mut [Step],
    mut record: Record,
    context: &Arc<Context>,
    out: &mut dyn FnMut(Record),
) -> Option<Record> {
    while let Some((first, rest)) = steps.split_last_mut() {
        record = first.apply(record, context, &mut |record| push(rest, record, context, out))?;
        steps = rest;
    }
    Some(record)
}

/// Removes the steps that have become the identity.
pub(crate) fn remove_spent(steps: &mut Vec<Step>) {
    if steps.iter().any(Step::is_spent) {
        steps.retain(|step| !step.is_spent());
    }
}

/// Whether all steps pass this record unchanged, and have no other effect.
pub(crate) fn all_pass(steps: &mut [Step], record: &Record) -> bool {
    steps.iter_mut().all(|step| step.passes(record))
}

impl Step {
    /// Whether the step has become the identity.
    fn is_spent(&self) -> bool {
        match self {
            Step::Sync(sync) => sync.has_merged(),
            Step::Choose(choose) => choose.branches.iter().all(Vec::is_empty),
            _ => false,
        }
    }

    /// Whether the step does the same with every equal record, and so does any other replica of it
    /// without state.
    pub(crate) fn is_stateless(&self) -> bool {
        match self {
            Step::Filter(_) | Step::Call(_) | Step::Watch(_) => true,
            Step::Sync(sync) => sync.has_merged(),
            Step::Choose(choose) => choose.branches.iter().flatten().all(Step::is_stateless),
            Step::Star(chain) => chain.is_stateless(),
            Step::Split(split) => split.code.stateless,
            Step::Feedback(feedback) => feedback.operand.iter().all(Step::is_stateless),
            Step::Back(_) => false,
        }
    }

    /// Whether the step passes this record unchanged, and has no other effect. May be `false`
    /// although it does.
    fn passes(&mut self, record: &Record) -> bool {
        match self {
            Step::Filter(filter) => filter.passes(record),
            Step::Sync(sync) => sync.has_merged(),
            Step::Choose(choose) => {
                let Choose { code, routes, branches } = &mut **choose;
                code.route(routes, record).is_some_and(|at| all_pass(&mut branches[at], record))
            }
            _ => false,
        }
    }

    /// Whether the step consumes a barrier.
    pub(crate) fn takes(&mut self, mark: Mark) -> bool {
        match self {
            Step::Back(back) if mark == Mark::Probe(back.number) => {
                send(&mut back.stream, Message::Mark(mark));
                true
            }
            _ => false,
        }
    }

    /// Applies the step to a record. Passes outputs to `out` in order, but may return the last one.
    #[inline]
    fn apply(
        &mut self,
        record: Record,
        context: &Arc<Context>,
        out: &mut dyn FnMut(Record),
    ) -> Option<Record> {
        match self {
            Step::Filter(filter) => filter.apply(record, context, out),
            Step::Call(call) => call.apply(record, context, out),
            Step::Sync(sync) => sync.apply(record),
            Step::Choose(choose) => {
                let Choose { code, routes, branches } = &mut **choose;
                let branch = &mut branches[code.branch(routes, &record, context)?];
                if branch.is_empty() {
                    return Some(record);
                }
                push(branch, record, context, out);
                remove_spent(branch);
                None
            }
            Step::Star(star) => {
                star.apply(record, context, out);
                None
            }
            Step::Split(split) => {
                split.apply(record, context, out);
                None
            }
            Step::Feedback(feedback) => {
                feedback.apply(record, context, out);
                None
            }
            Step::Back(back) => match back.code.again.fits(&mut back.routes, &record, context)? {
                true => {
                    send(&mut back.stream, Message::Record(record));
                    None
                }
                false => Some(record),
            },
            Step::Watch(watch) => {
                watch.notify(&record, context);
                Some(record)
            }
        }
    }
}

impl Split {
    fn apply(&mut self, record: Record, context: &Arc<Context>, out: &mut dyn FnMut(Record)) {
        let Split { code, replicas } = self;
        let Some(value) = code.value(&record, context) else { return };
        let value = if code.stateless { 0 } else { value };
        let replica = replicas.entry(value).or_insert_with(|| steps(&code.operand, context));
        push(replica, record, context, out);
        remove_spent(replica);
    }
}

impl Feedback {
    fn apply(&mut self, record: Record, context: &Arc<Context>, out: &mut dyn FnMut(Record)) {
        let Feedback { code, routes, operand, queue } = self;
        queue.push_back(record);
        let mut rounds = 0;
        while let Some(record) = queue.pop_front() {
            push(operand, record, context, &mut |record| match code
                .again
                .fits(routes, &record, context)
            {
                Some(true) => queue.push_back(record),
                Some(false) => out(record),
                None => {}
            });
            remove_spent(operand);
            rounds += 1;
            if rounds == ROUNDS_MAX {
                rounds = 0;
                yield_now();
            }
        }
    }
}
