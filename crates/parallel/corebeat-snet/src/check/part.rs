//! A net with resolved names, which is verified and then lowered to a plan.

use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::Arc;

use crate::ast::Span;
use crate::plan;

use super::row::Row;

/// A part of a net, at one place of the program.
pub(super) struct Part {
    /// Unique number.
    pub(super) number: usize,
    pub(super) span: Span,
    pub(super) kind: Kind,
    /// Depth, including this level.
    pub(super) depth: usize,
    /// Number of parts, including those of nested nets once for each use.
    pub(super) size: u64,
    /// Whether the part contains a synchrocell, so that its output for a record depends on others.
    pub(super) syncs: bool,
    /// Whether the part contains an initialiser, which outputs records without input.
    pub(super) starts: bool,
    /// Inferred type.
    pub(super) takes: OnceCell<Rc<Type>>,
}

pub(super) enum Kind {
    Identity,
    Box(Rc<BoxPart>),
    Filter(FilterPart),
    Sync(SyncPart),
    Serial(Vec<Rc<Part>>),
    Parallel { deterministic: bool, branches: Vec<Rc<Part>> },
    Star { deterministic: bool, operand: Rc<Part>, exits: Vec<PatternPart> },
    Split { deterministic: bool, placed: bool, operand: Rc<Part>, tag: crate::label::Label },
    Feedback { operand: Rc<Part>, patterns: Vec<PatternPart> },
    Place { operand: Rc<Part>, place: u32 },
    Net(Rc<NetPart>),
}

/// A box. There is one for each definition.
pub(super) struct BoxPart {
    pub(super) plan: Arc<plan::BoxPlan>,
    /// Place of the name.
    pub(super) name_span: Span,
    /// Input. `None` for an initialiser.
    pub(super) input: Option<Row>,
    /// Labels that do not flow past.
    pub(super) keeps: Row,
    pub(super) outputs: Vec<Row>,
    pub(super) takes: Rc<Type>,
}

pub(super) struct FilterPart {
    pub(super) plan: Arc<plan::FilterPlan>,
    pub(super) pattern: Row,
    /// Labels of the pattern that a row must have.
    pub(super) needs: Row,
    /// Outputs of all cases.
    pub(super) outputs: Vec<Row>,
}

pub(super) struct SyncPart {
    pub(super) plan: Arc<plan::SyncPlan>,
    pub(super) patterns: Vec<PatternPart>,
    /// Labels of all patterns.
    pub(super) all: Row,
}

/// A pattern with or without a guard.
pub(super) struct PatternPart {
    pub(super) row: Row,
    pub(super) plan: plan::Guarded,
    pub(super) span: Span,
}

impl PatternPart {
    pub(super) fn guarded(&self) -> bool {
        self.plan.guard.is_some()
    }
}

/// A net. There is one for each definition.
pub(super) struct NetPart {
    pub(super) number: usize,
    pub(super) name: Arc<str>,
    pub(super) name_span: Span,
    pub(super) body: Rc<Part>,
    /// Declared type.
    pub(super) declared: Option<Signature>,
}

/// Declared type of a net.
pub(super) struct Signature {
    pub(super) mappings: Vec<Rc<Mapping>>,
}

pub(super) struct Mapping {
    pub(super) input: Vec<(Row, Span)>,
    /// `None` if the output is inferred.
    pub(super) output: Option<Vec<Row>>,
    pub(super) span: Span,
}

impl Signature {
    pub(super) fn inputs(&self) -> impl Iterator<Item = &(Row, Span)> {
        self.mappings.iter().flat_map(|m| &m.input)
    }
}

/// Type of the input of a part.
#[derive(Default)]
pub(super) struct Type {
    pub(super) accepts: Vec<Variant>,
    /// Rows that pass unchanged, as a synchrocell passes rows that match none of its patterns.
    pub(super) lets: Vec<Row>,
}

#[derive(Clone)]
pub(super) struct Variant {
    pub(super) row: Row,
    /// Whether a smaller variant is sufficient, so that this one is dropped if it fails.
    pub(super) optional: bool,
    /// Whether its records can be routed differently from those of other variants, so that it is
    /// kept although it is optional.
    pub(super) choice: bool,
}

impl Type {
    pub(super) fn of(rows: impl IntoIterator<Item = Row>) -> Type {
        let mut taken = Type::default();
        rows.into_iter().for_each(|row| taken.add(Variant { row, optional: false, choice: false }));
        taken
    }

    pub(super) fn add(&mut self, variant: Variant) {
        match self.accepts.iter_mut().find(|v| v.row == variant.row) {
            Some(known) => {
                known.optional &= variant.optional;
                known.choice |= variant.choice;
            }
            None => self.accepts.push(variant),
        }
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.accepts.iter().map(|v| &v.row)
    }
}

impl Part {
    pub(super) fn new(number: usize, span: Span, kind: Kind) -> Part {
        let (mut depth, mut size, mut syncs, mut starts) = (0, 1u64, false, false);
        let mut visit_part = |part: &Part| {
            depth = depth.max(part.depth);
            size = size.saturating_add(part.size);
            syncs |= part.syncs;
            starts |= part.starts;
        };
        for_each_child(&kind, &mut visit_part);
        match &kind {
            Kind::Sync(_) => syncs = true,
            Kind::Box(part) => starts = part.input.is_none(),
            _ => {}
        }
        Part { number, span, kind, depth: depth + 1, size, syncs, starts, takes: OnceCell::new() }
    }
}

fn for_each_child<'a>(kind: &'a Kind, visit_part: &mut impl FnMut(&'a Part)) {
    match kind {
        Kind::Identity | Kind::Box(_) | Kind::Filter(_) | Kind::Sync(_) => {}
        Kind::Serial(parts) | Kind::Parallel { branches: parts, .. } => {
            parts.iter().for_each(|p| visit_part(p))
        }
        Kind::Star { operand, .. }
        | Kind::Split { operand, .. }
        | Kind::Feedback { operand, .. }
        | Kind::Place { operand, .. } => visit_part(operand),
        Kind::Net(net) => visit_part(&net.body),
    }
}

/// Calls `visit_part` for a part and all its parts, and for the bodies of nets once.
pub(super) fn visit<'a>(part: &'a Part, visit_part: &mut impl FnMut(&'a Part)) {
    let mut visited = std::collections::HashSet::new();
    let mut open = vec![part];
    while let Some(part) = open.pop() {
        visit_part(part);
        if let Kind::Net(net) = &part.kind
            && !visited.insert(net.number)
        {
            continue;
        }
        let from = open.len();
        for_each_child(&part.kind, &mut |child| open.push(child));
        open[from..].reverse();
    }
}
