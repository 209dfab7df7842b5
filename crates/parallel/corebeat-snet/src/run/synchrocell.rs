//! Synchrocells at run time.

use std::convert::Infallible;
use std::sync::Arc;

use super::context::Context;
use super::route::{Routes, Table};
use crate::plan::{Guarded, SyncPlan};
use crate::record::Record;
use crate::shape::Shape;

/// Executable synchrocell.
pub(crate) struct SyncCode {
    patterns: Vec<Guarded>,
    table: Table<Vec<usize>>,
}

impl SyncCode {
    pub(crate) fn new(plan: &SyncPlan) -> SyncCode {
        SyncCode { patterns: plan.patterns.clone(), table: Table::default() }
    }

    /// Patterns that records of this shape match if the conditions hold.
    fn fitting(&self, shape: Shape) -> Vec<usize> {
        let fits = |i: &usize| shape.is_subtype_of(self.patterns[*i].shape);
        (0..self.patterns.len()).filter(fits).collect()
    }
}

/// Synchrocell in a line: stores one record for each pattern until all patterns have one.
pub(crate) struct Sync {
    code: Arc<SyncCode>,
    routes: Routes<Vec<usize>>,
    /// For each pattern, the index of its stored record. Empty after the merge, when the cell is
    /// the identity.
    filled: Vec<Option<usize>>,
    kept: Vec<Record>,
    context: Arc<Context>,
}

impl Sync {
    pub(crate) fn new(code: Arc<SyncCode>, context: Arc<Context>) -> Sync {
        Sync {
            filled: vec![None; code.patterns.len()],
            kept: Vec::new(),
            routes: Routes::default(),
            code,
            context,
        }
    }

    pub(crate) fn has_merged(&self) -> bool {
        self.filled.is_empty()
    }

    /// Applies the cell to a record. Returns the record, the merged record, or `None` if the record
    /// is stored.
    #[inline]
    pub(crate) fn apply(&mut self, record: Record) -> Option<Record> {
        if self.filled.is_empty() {
            return Some(record);
        }
        let Sync { code, routes, filled, kept, context } = self;
        let shape = record.shape();
        let Ok(fitting) =
            routes.get(shape, &code.table, || Ok::<_, Infallible>(code.fitting(shape)));
        let mut fills = false;
        for &i in fitting {
            let holds = match &code.patterns[i].guard {
                None => true,
                Some(guard) => match guard.value(&record) {
                    Ok(value) => value != 0,
                    Err(why) => {
                        context.fault("a synchrocell's condition", format_args!("{why}"), &record);
                        for filled in filled.iter_mut().filter(|f| **f == Some(kept.len())) {
                            *filled = None;
                        }
                        return None;
                    }
                },
            };
            if holds && filled[i].is_none() {
                filled[i] = Some(kept.len());
                fills = true;
            }
        }
        if !fills {
            return Some(record);
        }
        kept.push(record);
        if filled.iter().any(Option::is_none) {
            return None;
        }
        let merged = merge(&code.patterns, filled, kept);
        filled.clear();
        kept.clear();
        match merged {
            Ok(merged) => Some(merged),
            Err(why) => {
                context.failure("a synchrocell", format_args!("{why}"));
                None
            }
        }
    }
}

/// Merges the whole record of the first pattern with the pattern labels of the other records.
fn merge(
    patterns: &[Guarded],
    filled: &[Option<usize>],
    kept: &[Record],
) -> Result<Record, crate::error::Error> {
    let of = |i: usize| &kept[filled[i].expect("all patterns are filled")];
    if kept.len() == 1 {
        return Ok(kept[0].clone());
    }
    let first = of(0).iter().map(|(label, value)| (label, value.clone()));
    let others = (1..patterns.len()).flat_map(|i| {
        let labels = patterns[i].shape.labels().iter();
        labels.map(move |label| {
            (*label, of(i).get(*label).expect("a stored record matches its pattern").clone())
        })
    });
    Record::from_pairs(first.chain(others))
}

/// A cell that never merged loses its records.
impl Drop for Sync {
    fn drop(&mut self) {
        if !self.kept.is_empty() {
            self.context.keep(self.kept.len());
        }
    }
}
