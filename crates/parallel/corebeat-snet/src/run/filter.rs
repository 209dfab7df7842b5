//! Filters at run time.

use std::mem::take;
use std::sync::Arc;

use super::context::Context;
use super::route::{Routes, Table};
use crate::error::Error;
use crate::expression::{EvaluationError, Expression};
use crate::label::{Kind, Label};
use crate::plan::{FilterPlan, OutputPlan, Source};
use crate::record::{Record, Spare};
use crate::shape::Shape;
use crate::value::Value;

/// Executable filter.
pub(crate) struct FilterCode {
    plan: Arc<FilterPlan>,
    table: Table<Route>,
}

/// Route of records of one shape.
enum Route {
    Refused,
    /// The record passes unchanged.
    Passes,
    /// Outputs of each case.
    Cases(Vec<Vec<Made>>),
}

/// Construction of an output record.
struct Made {
    shape: Shape,
    from: Vec<From>,
}

/// Source of a value.
enum From {
    /// From the input record, which is still needed.
    Copy(usize),
    /// From the input record, for the last time.
    Take(usize),
    Compute(Expression),
}

impl FilterCode {
    pub(crate) fn new(plan: Arc<FilterPlan>) -> FilterCode {
        FilterCode { plan, table: Table::default() }
    }

    /// Whether each accepted record passes unchanged, as in `[{A} -> {A}]`.
    pub(crate) fn passes(&self) -> bool {
        matches!(&self.plan.cases[..], [(None, outputs)] if matches!(&outputs[..], [output] if
            output.entries.len() == self.plan.pattern.len()
                && output.entries.iter().all(|(label, source)| *source == Source::Label(*label))))
    }

    /// Whether every record passes unchanged: `[{} -> {}]`.
    pub(crate) fn is_identity(&self) -> bool {
        self.plan.pattern.is_empty() && self.passes()
    }

    fn route(&self, shape: Shape) -> Result<Route, Error> {
        if !self.plan.takes(shape) {
            return Ok(Route::Refused);
        }
        let past: Vec<Label> = shape
            .labels()
            .iter()
            .copied()
            .filter(|l| l.kind() != Kind::BindingTag && !self.plan.pattern.contains(*l))
            .collect();
        let case = |(_, outputs): &(Option<Expression>, Vec<OutputPlan>)| {
            let made: Result<Vec<Made>, Error> =
                outputs.iter().map(|o| made(shape, &past, o)).collect();
            made.map(|mut made| {
                take_last(shape, &mut made);
                made
            })
        };
        let cases: Vec<Vec<Made>> = self.plan.cases.iter().map(case).collect::<Result<_, _>>()?;
        let passes = matches!(&cases[..], [outputs] if matches!(&outputs[..], [made] if
            made.is_the_input(shape)));
        Ok(if passes { Route::Passes } else { Route::Cases(cases) })
    }
}

impl Made {
    /// Whether the output equals an input record of this shape.
    fn is_the_input(&self, shape: Shape) -> bool {
        let same = |(i, from): (usize, &From)| match from {
            From::Copy(at) | From::Take(at) => *at == i,
            From::Compute(_) => false,
        };
        self.shape == shape && self.from.iter().enumerate().all(same)
    }
}

fn made(shape: Shape, past: &[Label], output: &OutputPlan) -> Result<Made, Error> {
    let out =
        Shape::new(past.iter().copied().chain(output.entries.iter().map(|(label, _)| *label)))?;
    let place = |label: Label| {
        shape.position(label).expect("the record has the labels that the filter uses")
    };
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

/// Moves a field at its last use instead of copying it. Tags are always copied, because expressions
/// read them until the end.
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

/// Filter in a line.
pub(crate) struct Filter {
    code: Arc<FilterCode>,
    routes: Routes<Route>,
    /// Memory of the previous record, for the next one.
    spare: Spare,
}

impl Filter {
    pub(crate) fn new(code: Arc<FilterCode>) -> Filter {
        Filter { code, routes: Routes::default(), spare: Spare::default() }
    }

    /// Whether the filter passes this record unchanged.
    pub(crate) fn passes(&mut self, record: &Record) -> bool {
        let Filter { code, routes, .. } = self;
        let shape = record.shape();
        matches!(routes.get(shape, &code.table, || code.route(shape)), Ok(Route::Passes))
    }

    /// Applies the filter to a record. Passes all outputs except the last to `out`, and returns the
    /// last.
    #[inline]
    pub(crate) fn apply(
        &mut self,
        record: Record,
        context: &Context,
        out: &mut dyn FnMut(Record),
    ) -> Option<Record> {
        let Filter { code, routes, spare } = self;
        let shape = record.shape();
        let cases = match routes.get(shape, &code.table, || code.route(shape)) {
            Ok(Route::Cases(cases)) => cases,
            Ok(Route::Passes) => return Some(record),
            Ok(Route::Refused) => {
                return report_refusal(
                    code,
                    format_args!("the filter takes {}", code.plan.pattern),
                    Some(&record),
                    context,
                );
            }
            Err(why) => return report_refusal(code, format_args!("{why}"), Some(&record), context),
        };
        let outputs = match choose(&code.plan, &record) {
            Ok(case) => &cases[case],
            Err(why) => return report_refusal(code, format_args!("{why}"), Some(&record), context),
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
                // After the first output, the record is no longer complete.
                Err(why) => {
                    return report_refusal(
                        code,
                        format_args!("{why}"),
                        (i == 0).then_some(&record),
                        context,
                    );
                }
            }
        }
        None
    }
}

/// Reports a record that cannot continue.
#[cold]
fn report_refusal<T>(
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

/// Returns the first case whose condition holds.
fn choose(plan: &FilterPlan, record: &Record) -> Result<usize, EvaluationError> {
    for (i, (condition, _)) in plan.cases.iter().enumerate() {
        match condition {
            Some(condition) if condition.value(record)? == 0 => {}
            _ => return Ok(i),
        }
    }
    unreachable!("the last case has no condition")
}

/// Creates an output record. After an error, the input record is unchanged.
fn make(made: &Made, record: &mut Record, spare: &mut Spare) -> Result<Record, EvaluationError> {
    let mut failed = None;
    let new = spare.record(
        made.shape,
        made.from.iter().map(|from| match from {
            From::Copy(at) => record.values()[*at].clone(),
            From::Take(at) => take(&mut record.values_mut()[*at]),
            From::Compute(expression) => {
                Value::Tag(expression.value(record).unwrap_or_else(|why| {
                    failed = Some(why);
                    0
                }))
            }
        }),
    );
    match failed {
        None => Ok(new),
        Some(why) => {
            give_back(made, new, record);
            Err(why)
        }
    }
}

#[cold]
fn give_back(made: &Made, mut new: Record, record: &mut Record) {
    for (from, value) in made.from.iter().zip(new.values_mut()) {
        if let From::Take(at) = from {
            record.values_mut()[*at] = take(value);
        }
    }
}
