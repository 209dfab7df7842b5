//! Matching of records with patterns.

use std::convert::Infallible;

use super::context::Context;
use super::route::{Routes, Table};
use crate::expression::Expression;
use crate::plan::Guarded;
use crate::record::Record;
use crate::shape::Shape;

/// Alternative patterns.
pub(crate) struct Guards {
    patterns: Vec<Guarded>,
    table: Table<Fit>,
}

/// Match of records of one shape.
pub(crate) enum Fit {
    Never,
    Always,
    /// The record matches if one of these conditions holds.
    If(Box<[Expression]>),
}

impl Guards {
    pub(crate) fn new(patterns: &[Guarded]) -> Guards {
        Guards { patterns: patterns.to_vec(), table: Table::default() }
    }

    /// Whether the record matches any pattern. Returns `None` after a fault, if a condition has no
    /// value.
    #[inline(always)]
    pub(crate) fn fits(
        &self,
        routes: &mut Routes<Fit>,
        record: &Record,
        context: &Context,
    ) -> Option<bool> {
        let shape = record.shape();
        let Ok(fit) = routes.get(shape, &self.table, || Ok::<_, Infallible>(self.fit(shape)));
        match fit {
            Fit::Never => Some(false),
            Fit::Always => Some(true),
            Fit::If(conditions) => any(conditions, record, context),
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
        if conditions.is_empty() { Fit::Never } else { Fit::If(conditions.into()) }
    }
}

/// Whether any condition holds.
#[inline(never)]
fn any(conditions: &[Expression], record: &Record, context: &Context) -> Option<bool> {
    for condition in conditions {
        match condition.value(record) {
            Ok(0) => {}
            Ok(_) => return Some(true),
            Err(why) => {
                context.fault("a pattern's condition", format_args!("{why}"), record);
                return None;
            }
        }
    }
    Some(false)
}
