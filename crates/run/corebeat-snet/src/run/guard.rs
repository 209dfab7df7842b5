//! Whether records fit patterns.

use std::convert::Infallible;

use super::context::Context;
use super::way::{Table, Ways};
use crate::expression::{Expression, NoValue};
use crate::plan::Guarded;
use crate::record::Record;
use crate::shape::Shape;

/// Some patterns, of which a record may fit one.
pub(crate) struct Guards {
    patterns: Vec<Guarded>,
    table: Table<Fit>,
}

/// Which patterns records of one shape fit.
pub(crate) enum Fit {
    Never,
    Always,
    /// If one of these conditions holds.
    If(Vec<Expression>),
}

impl Guards {
    pub(crate) fn new(patterns: &[Guarded]) -> Guards {
        Guards { patterns: patterns.to_vec(), table: Table::default() }
    }

    /// Whether the record fits any. If a condition has no value that is a fault, and the record does not go on.
    #[inline]
    pub(crate) fn fits(&self, ways: &mut Ways<Fit>, record: &Record, context: &Context) -> Option<bool> {
        let shape = record.shape();
        let Ok(fit) = ways.get(shape, &self.table, || Ok::<_, Infallible>(self.fit(shape)));
        match fit {
            Fit::Never => Some(false),
            Fit::Always => Some(true),
            Fit::If(conditions) => match any(conditions, record) {
                Ok(fits) => Some(fits),
                Err(why) => {
                    context.fault("a pattern's condition", format_args!("{why}"), record);
                    None
                }
            },
        }
    }

    fn fit(&self, shape: Shape) -> Fit {
        let mut conditions = Vec::new();
        for pattern in self.patterns.iter().filter(|p| shape.is_subtype_of(p.shape)) {
            match &pattern.guard {
                None => return Fit::Always,
                Some(guard) => conditions.push(guard.clone()),
            }
        }
        if conditions.is_empty() { Fit::Never } else { Fit::If(conditions) }
    }
}

fn any(conditions: &[Expression], record: &Record) -> Result<bool, NoValue> {
    for condition in conditions {
        if condition.value(record)? != 0 {
            return Ok(true);
        }
    }
    Ok(false)
}
