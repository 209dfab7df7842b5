//! Steps: entities that make what they make of a record at once, without a task of their own.

use std::collections::{HashMap, VecDeque};
use std::mem::take;
use std::sync::Arc;

use corebeat_lpel::{Writer, yield_now};

use super::choose::ChooseCode;
use super::code::{Code, FeedbackCode, SplitCode, StarCode};
use super::context::Context;
use super::filter::Filter;
use super::function::Call;
use super::guard::Fit;
use super::line::send;
use super::message::{Mark, Message};
use super::synchrocell::Sync;
use super::watch::{Position, Watch};
use super::way::Ways;
use crate::record::Record;

/// One step of a line.
pub(crate) enum Step {
    Filter(Filter),
    Call(Box<Call>),
    Sync(Box<Sync>),
    Choose(Box<Choose>),
    Star(Box<Star>),
    Split(Box<Split>),
    Feedback(Box<Feedback>),
    Back(Box<Back>),
    Watch(Watch),
}

/// A parallel composition without boxes.
pub(crate) struct Choose {
    code: Arc<ChooseCode>,
    ways: Ways<Option<usize>>,
    branches: Vec<Vec<Step>>,
}

/// A star without boxes. Stages that have become the identity are gone.
pub(crate) struct Star {
    code: Arc<StarCode>,
    ways: Ways<Fit>,
    /// Those that keep nothing are all the same: one is enough.
    stages: Vec<Vec<Step>>,
    outside: Vec<Record>,
    inside: Vec<Record>,
}

/// A split without boxes.
pub(crate) struct Split {
    code: Arc<SplitCode>,
    replicas: HashMap<i32, Vec<Step>>,
}

/// A feedback without boxes.
pub(crate) struct Feedback {
    code: Arc<FeedbackCode>,
    ways: Ways<Fit>,
    operand: Vec<Step>,
    queue: VecDeque<Record>,
}

/// The end of a feedback loop with boxes: what goes in again, goes back to its begin.
pub(crate) struct Back {
    code: Arc<FeedbackCode>,
    ways: Ways<Fit>,
    number: u64,
    stream: Writer<Message>,
}

impl Back {
    pub(crate) fn step(code: Arc<FeedbackCode>, number: u64, stream: Writer<Message>) -> Step {
        Step::Back(Box::new(Back { code, ways: Ways::default(), number, stream }))
    }
}

/// Rounds of a star or a feedback after which others are let in.
const ROUNDS_MAX: usize = 1000;

/// The steps of code that is inline, or whose boxes are cheap; the last one comes first.
pub(crate) fn steps(code: &Code, context: &Arc<Context>) -> Vec<Step> {
    let mut made = Vec::new();
    add(code, context, &mut made);
    made
}

/// Adds the steps of this code before all others.
fn add(code: &Code, context: &Arc<Context>, steps: &mut Vec<Step>) {
    match code {
        Code::Identity => {}
        Code::Filter(code) if code.is_identity() => {}
        Code::Filter(code) => steps.push(Step::Filter(Filter::new(code.clone()))),
        Code::Sync(code) => steps.push(Step::Sync(Box::new(Sync::new(code.clone(), context.clone())))),
        Code::Serial(parts) => parts.iter().rev().for_each(|part| add(part, context, steps)),
        Code::Choose(code) => steps.push(Step::Choose(Box::new(Choose {
            branches: code.branches.iter().map(|branch| self::steps(branch, context)).collect(),
            ways: Ways::default(),
            code: code.clone(),
        }))),
        Code::Star(code) => steps.push(Step::Star(Box::new(Star {
            code: code.clone(),
            ways: Ways::default(),
            stages: Vec::new(),
            outside: Vec::new(),
            inside: Vec::new(),
        }))),
        Code::Split(code) => {
            steps.push(Step::Split(Box::new(Split { code: code.clone(), replicas: HashMap::new() })))
        }
        Code::Feedback(code) => steps.push(Step::Feedback(Box::new(Feedback {
            operand: self::steps(&code.operand, context),
            ways: Ways::default(),
            queue: VecDeque::new(),
            code: code.clone(),
        }))),
        Code::Place(inner, _) => add(inner, context, steps),
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

/// Takes a record through all steps, and what comes out to `out`, in order.
pub(crate) fn push(steps: &mut [Step], record: Record, context: &Arc<Context>, out: &mut dyn FnMut(Record)) {
    if let Some(last) = apply(steps, record, context, out) {
        out(last);
    }
}

/// Takes a record through all steps. Of what comes out all but the last are given to `out`, in order; the last may be
/// returned.
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

/// Takes out the steps that have become the identity.
pub(crate) fn forget_spent(steps: &mut Vec<Step>) {
    if steps.iter().any(Step::is_spent) {
        steps.retain(|step| !step.is_spent());
    }
}

impl Step {
    /// Whether it passes all on from now on.
    fn is_spent(&self) -> bool {
        match self {
            Step::Sync(sync) => sync.has_fired(),
            Step::Choose(choose) => choose.branches.iter().all(Vec::is_empty),
            _ => false,
        }
    }

    /// Whether it takes a barrier out.
    pub(crate) fn takes(&mut self, mark: Mark) -> bool {
        match self {
            Step::Back(back) if mark == Mark::Probe(back.number) => {
                send(&mut back.stream, Message::Mark(mark));
                true
            }
            _ => false,
        }
    }

    /// What becomes of a record: all but the last are given to `out`, in order; the last may be returned.
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
                let Choose { code, ways, branches } = &mut **choose;
                let branch = &mut branches[code.branch(ways, &record, context)?];
                if branch.is_empty() {
                    return Some(record);
                }
                push(branch, record, context, out);
                forget_spent(branch);
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
            Step::Back(back) => match back.code.again.fits(&mut back.ways, &record, context)? {
                true => {
                    send(&mut back.stream, Message::Record(record));
                    None
                }
                false => Some(record),
            },
            Step::Watch(watch) => {
                watch.see(&record, context);
                Some(record)
            }
        }
    }
}

impl Star {
    /// Stage by stage, so that what leaves early comes out first.
    fn apply(&mut self, record: Record, context: &Arc<Context>, out: &mut dyn FnMut(Record)) {
        let Star { code, ways, stages, outside, inside } = self;
        let (mut outside_now, mut inside_now) = (take(outside), take(inside));
        outside_now.push(record);
        let (mut stage, mut rounds) = (0, 0);
        while !outside_now.is_empty() {
            for record in outside_now.drain(..) {
                match code.exits.fits(ways, &record, context) {
                    Some(true) => out(record),
                    Some(false) => inside_now.push(record),
                    None => {}
                }
            }
            if inside_now.is_empty() {
                break;
            }
            if stage == stages.len() {
                stages.push(steps(&code.operand, context));
            }
            for record in inside_now.drain(..) {
                push(&mut stages[stage], record, context, &mut |record| outside_now.push(record));
            }
            forget_spent(&mut stages[stage]);
            if !code.stateless {
                if stages[stage].is_empty() {
                    stages.remove(stage);
                } else {
                    stage += 1;
                }
            }
            rounds += 1;
            if rounds == ROUNDS_MAX {
                rounds = 0;
                yield_now();
            }
        }
        (*outside, *inside) = (outside_now, inside_now);
    }
}

impl Split {
    fn apply(&mut self, record: Record, context: &Arc<Context>, out: &mut dyn FnMut(Record)) {
        let Split { code, replicas } = self;
        let Some(value) = code.value(&record, context) else { return };
        let value = if code.stateless { 0 } else { value };
        let replica = replicas.entry(value).or_insert_with(|| steps(&code.operand, context));
        push(replica, record, context, out);
        forget_spent(replica);
    }
}

impl Feedback {
    fn apply(&mut self, record: Record, context: &Arc<Context>, out: &mut dyn FnMut(Record)) {
        let Feedback { code, ways, operand, queue } = self;
        queue.push_back(record);
        let mut rounds = 0;
        while let Some(record) = queue.pop_front() {
            push(operand, record, context, &mut |record| match code.again.fits(ways, &record, context) {
                Some(true) => queue.push_back(record),
                Some(false) => out(record),
                None => {}
            });
            forget_spent(operand);
            rounds += 1;
            if rounds == ROUNDS_MAX {
                rounds = 0;
                yield_now();
            }
        }
    }
}
