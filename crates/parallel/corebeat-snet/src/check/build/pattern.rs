//! Patterns, filters and expressions.

use std::sync::Arc;

use crate::ast::{Entry, Expr, ExprKind, Filter, OutputEntry, Pattern, Variant};
use crate::diagnostic::Diagnostic;
use crate::expression::{Binary, Expression};
use crate::label::{Kind as LabelKind, Label};
use crate::plan;
use crate::record::Record;
use crate::shape::Shape;

use super::super::part::{FilterPart, PatternPart, SyncPart};
use super::super::row::Row;
use super::super::text::Text;
use super::{Builder, Built, Reported};

impl Builder<'_> {
    pub(super) fn patterns(&mut self, patterns: &[Pattern]) -> Built<Vec<PatternPart>> {
        let mut ok = true;
        let mut parts = Vec::with_capacity(patterns.len());
        for pattern in patterns {
            match self.pattern(pattern) {
                Ok(part) => parts.push(part),
                Err(Reported) => ok = false,
            }
        }
        if ok { Ok(parts) } else { Err(Reported) }
    }

    pub(super) fn pattern(&mut self, pattern: &Pattern) -> Built<PatternPart> {
        let row = self.row(&pattern.variant)?;
        let shape = self.shape(&row, pattern.span)?;
        let guard = match &pattern.guard {
            Some(guard) => Some(self.expression(guard, &pattern.variant, &row)?),
            None => None,
        };
        Ok(PatternPart { row, plan: plan::Guarded { shape, guard }, span: pattern.span })
    }

    pub(super) fn sync(&mut self, patterns: &[Pattern]) -> Built<SyncPart> {
        let patterns = self.patterns(patterns)?;
        let all = patterns.iter().flat_map(|p| p.row.labels().iter().copied()).collect();
        let plan = plan::SyncPlan { patterns: patterns.iter().map(|p| p.plan.clone()).collect() };
        Ok(SyncPart { plan: Arc::new(plan), all: Row::new(all), patterns })
    }

    pub(super) fn filter(&mut self, filter: &Filter) -> Built<FilterPart> {
        let pattern = self.row(&filter.pattern)?;
        let shape = self.shape(&pattern, filter.pattern.span)?;
        let (mut cases, mut rows, mut ok) = (Vec::new(), Vec::new(), true);
        let last = std::iter::once((None, &filter.otherwise));
        for (condition, action) in filter.cases.iter().map(|(c, a)| (Some(c), a)).chain(last) {
            let condition =
                condition.map(|c| self.expression(c, &filter.pattern, &pattern)).transpose();
            let mut outputs = Vec::new();
            for output in action {
                match self.output(&output.entries, &filter.pattern, &pattern) {
                    Ok(entries) => {
                        let row = Row::new(entries.iter().map(|(label, _)| *label).collect());
                        if !rows.contains(&row) {
                            rows.push(row);
                        }
                        outputs.push(plan::OutputPlan { entries });
                    }
                    Err(Reported) => ok = false,
                }
            }
            match condition {
                Ok(condition) => cases.push((condition, outputs)),
                Err(Reported) => ok = false,
            }
        }
        if !ok {
            return Err(Reported);
        }
        let plan = plan::FilterPlan { pattern: shape, cases, text: Text(filter).to_string() };
        let needs = Row::new(plan.needs());
        Ok(FilterPart { plan: Arc::new(plan), pattern, needs, outputs: rows })
    }

    pub(super) fn output(
        &mut self,
        entries: &[OutputEntry],
        pattern: &Variant,
        row: &Row,
    ) -> Built<Vec<(Label, plan::Source)>> {
        let made: Vec<Entry> = entries
            .iter()
            .map(|entry| match entry {
                OutputEntry::Field { name, .. } => {
                    Entry { kind: LabelKind::Field, name: name.clone() }
                }
                OutputEntry::Tag { entry, .. } => entry.clone(),
            })
            .collect();
        let once = self.once(made.iter(), "one output of the filter");
        let (mut output, mut ok) = (Vec::new(), once.is_ok());
        for (entry, made) in entries.iter().zip(&made) {
            match self.source(entry, pattern, row) {
                Ok(source) => output.push((self.label(made)?, source)),
                Err(Reported) => ok = false,
            }
        }
        if ok { Ok(output) } else { Err(Reported) }
    }

    pub(super) fn source(
        &mut self,
        entry: &OutputEntry,
        pattern: &Variant,
        row: &Row,
    ) -> Built<plan::Source> {
        match entry {
            OutputEntry::Field { name, from } => {
                let from =
                    Entry { kind: LabelKind::Field, name: from.as_ref().unwrap_or(name).clone() };
                let label = self.label(&from)?;
                if !row.contains(label) {
                    return Err(self.outside(&from, pattern, "copies"));
                }
                Ok(plan::Source::Label(label))
            }
            OutputEntry::Tag { entry, value: None } => {
                let label = self.label(entry)?;
                Ok(match row.contains(label) {
                    true => plan::Source::Label(label),
                    false => plan::Source::Value(Expression::Number(0)),
                })
            }
            OutputEntry::Tag { value: Some(value), .. } => {
                Ok(plan::Source::Value(self.expression(value, pattern, row)?))
            }
        }
    }

    /// Reports a label that a pattern does not have.
    pub(super) fn outside(&mut self, entry: &Entry, pattern: &Variant, does: &str) -> Reported {
        let mut wider = pattern.clone();
        wider.entries.push(entry.clone());
        self.error(
            Diagnostic::error(
                format!(
                    "this {does} {}, but the pattern {} does not have it",
                    Text(entry),
                    Text(pattern)
                ),
                entry.name.span,
                "not in the pattern",
            )
            .and(pattern.span, "the pattern")
            .help(format!("add it to the pattern: {}", Text(&wider))),
        )
    }

    pub(super) fn expression(
        &mut self,
        expr: &Expr,
        pattern: &Variant,
        row: &Row,
    ) -> Built<Expression> {
        Ok(match &expr.kind {
            ExprKind::Number(n) => Expression::Number(*n),
            ExprKind::Tag(entry) => {
                let label = self.label(entry)?;
                if !row.contains(label) {
                    return Err(self.outside(entry, pattern, "reads"));
                }
                Expression::Tag(label)
            }
            ExprKind::Unary(operator, a) => {
                Expression::Unary(*operator, Box::new(self.expression(a, pattern, row)?))
            }
            ExprKind::Binary(operator, a, b) => {
                let a = self.expression(a, pattern, row);
                let right = self.expression(b, pattern, row)?;
                if matches!(operator, Binary::Divide | Binary::Remainder) && is_zero(&right) {
                    self.diagnostics.push(
                        Diagnostic::warning("this always divides by 0", b.span, "is 0")
                            .help("every record fails here; use another divisor"),
                    );
                }
                Expression::Binary(*operator, Box::new(a?), Box::new(right))
            }
            ExprKind::Conditional(a, b, c) => {
                let a = self.expression(a, pattern, row);
                let b = self.expression(b, pattern, row);
                let c = self.expression(c, pattern, row)?;
                Expression::Conditional(Box::new(a?), Box::new(b?), Box::new(c))
            }
        })
    }
}

/// Whether an expression is 0 for every record.
fn is_zero(expression: &Expression) -> bool {
    let mut constant = true;
    expression.tags(&mut |_| constant = false);
    constant && expression.value(&Record::new(Shape::empty(), Vec::new())) == Ok(0)
}
