//! Filters.

use std::mem::take;
use std::sync::Arc;

use super::context::Context;
use super::way::{Table, Ways};
use crate::error::TooMany;
use crate::expression::{Expression, NoValue};
use crate::label::{Kind, Label};
use crate::plan::{FilterPlan, OutputPlan, Source};
use crate::record::{Record, Spare};
use crate::shape::Shape;
use crate::value::Value;

/// A filter, ready to run.
pub(crate) struct FilterCode {
    plan: Arc<FilterPlan>,
    table: Table<Way>,
}

/// What to do with records of one shape.
enum Way {
    Refused,
    /// One for each case.
    Cases(Vec<Vec<Made>>),
}

/// A record that is put out.
struct Made {
    shape: Shape,
    from: Vec<From>,
}

/// Where a value comes from.
enum From {
    /// From the record that went in, which is needed later on.
    Copy(usize),
    /// From the record that went in, for the last time.
    Take(usize),
    Compute(Expression),
}

impl FilterCode {
    pub(crate) fn new(plan: Arc<FilterPlan>) -> FilterCode {
        FilterCode { plan, table: Table::default() }
    }

    /// Whether it gives back each record that it takes, as `[{A} -> {A}]`.
    pub(crate) fn passes(&self) -> bool {
        matches!(&self.plan.cases[..], [(None, outputs)] if matches!(&outputs[..], [output] if
            output.entries.len() == self.plan.pattern.len()
                && output.entries.iter().all(|(label, source)| *source == Source::Label(*label))))
    }

    /// Whether it gives back every record: `[{} -> {}]`.
    pub(crate) fn is_identity(&self) -> bool {
        self.plan.pattern.is_empty() && self.passes()
    }

    fn way(&self, shape: Shape) -> Result<Way, TooMany> {
        if !self.plan.takes(shape) {
            return Ok(Way::Refused);
        }
        let past: Vec<Label> = shape
            .labels()
            .iter()
            .copied()
            .filter(|l| l.kind() != Kind::BindingTag && !self.plan.pattern.contains(*l))
            .collect();
        let case = |(_, outputs): &(Option<Expression>, Vec<OutputPlan>)| {
            let made: Result<Vec<Made>, TooMany> = outputs.iter().map(|o| made(shape, &past, o)).collect();
            made.map(|mut made| {
                take_last(shape, &mut made);
                made
            })
        };
        Ok(Way::Cases(self.plan.cases.iter().map(case).collect::<Result<_, _>>()?))
    }
}

fn made(shape: Shape, past: &[Label], output: &OutputPlan) -> Result<Made, TooMany> {
    let out = Shape::new(past.iter().copied().chain(output.entries.iter().map(|(label, _)| *label)))?;
    let place = |label: Label| shape.position(label).expect("the record has what is used");
    let from = out
        .labels()
        .iter()
        .map(|label| match output.entries.iter().find(|(l, _)| l == label) {
            Some((_, Source::Label(source))) => From::Copy(place(*source)),
            Some((_, Source::Value(expression))) => From::Compute(expression.clone()),
            None => From::Copy(place(*label)),
        })
        .collect();
    Ok(Made { shape: out, from })
}

/// Fields need no copy where they are used for the last time. Tags are copied anyhow, and are computed with to the end.
fn take_last(shape: Shape, made: &mut [Made]) {
    let mut used = vec![false; shape.len()];
    for from in made.iter_mut().rev().flat_map(|m| m.from.iter_mut().rev()) {
        if let From::Copy(at) = *from
            && shape.labels()[at].kind() == Kind::Field
            && !std::mem::replace(&mut used[at], true)
        {
            *from = From::Take(at);
        }
    }
}

/// A filter in a line.
pub(crate) struct Filter {
    code: Arc<FilterCode>,
    ways: Ways<Way>,
    /// Memory of the last record, for the next one.
    spare: Spare,
}

impl Filter {
    pub(crate) fn new(code: Arc<FilterCode>) -> Filter {
        Filter { code, ways: Ways::default(), spare: Spare::default() }
    }

    /// What becomes of a record: each new one but the last is given to `out`, the last is returned.
    #[inline]
    pub(crate) fn apply(
        &mut self,
        record: Record,
        context: &Context,
        out: &mut dyn FnMut(Record),
    ) -> Option<Record> {
        let Filter { code, ways, spare } = self;
        let shape = record.shape();
        let cases = match ways.get(shape, &code.table, || code.way(shape)) {
            Ok(Way::Cases(cases)) => cases,
            Ok(Way::Refused) => {
                return refuse(code, format_args!("it takes {}", code.plan.pattern), Some(&record), context);
            }
            Err(why) => return refuse(code, format_args!("{why}"), Some(&record), context),
        };
        let outputs = match choose(&code.plan, &record) {
            Ok(case) => &cases[case],
            Err(why) => return refuse(code, format_args!("{why}"), Some(&record), context),
        };
        let mut record = record;
        let last = outputs.len().checked_sub(1)?;
        for (i, made) in outputs.iter().enumerate() {
            match make(made, &mut record, spare) {
                Ok(made) if i == last => {
                    spare.keep(record);
                    return Some(made);
                }
                Ok(made) => out(made),
                // The record is not there any more if something was made of it before.
                Err(why) => return refuse(code, format_args!("{why}"), (i == 0).then_some(&record), context),
            }
        }
        None
    }
}

/// Tells that a record does not go on.
#[cold]
fn refuse<T>(
    code: &FilterCode,
    why: std::fmt::Arguments<'_>,
    record: Option<&Record>,
    context: &Context,
) -> Option<T> {
    match record {
        Some(record) => context.fault(&code.plan.text, why, record),
        None => context.failure(&code.plan.text, why),
    }
    None
}

/// The first case whose condition holds.
fn choose(plan: &FilterPlan, record: &Record) -> Result<usize, NoValue> {
    for (i, (condition, _)) in plan.cases.iter().enumerate() {
        match condition {
            Some(condition) if condition.value(record)? == 0 => {}
            _ => return Ok(i),
        }
    }
    unreachable!("the last case has no condition")
}

/// Makes a record. If that fails, the one that went in is as it was.
fn make(made: &Made, record: &mut Record, spare: &mut Spare) -> Result<Record, NoValue> {
    let mut failed = None;
    let made_now = spare.record(
        made.shape,
        made.from.iter().map(|from| match from {
            From::Copy(at) => record.values()[*at].clone(),
            From::Take(at) => take(&mut record.values_mut()[*at]),
            From::Compute(expression) => Value::Tag(expression.value(record).unwrap_or_else(|why| {
                failed = Some(why);
                0
            })),
        }),
    );
    match failed {
        None => Ok(made_now),
        Some(why) => {
            give_back(made, made_now, record);
            Err(why)
        }
    }
}

#[cold]
fn give_back(made: &Made, mut made_now: Record, record: &mut Record) {
    for (from, value) in made.from.iter().zip(made_now.values_mut()) {
        if let From::Take(at) = from {
            record.values_mut()[*at] = take(value);
        }
    }
}
