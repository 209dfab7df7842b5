//! A net with its names resolved: what is judged, and then becomes a plan.

use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::Arc;

use crate::ast::Span;
use crate::plan;

use super::row::Row;

/// A part of a net, at one place of the program.
pub(super) struct Part {
    /// A number of its own.
    pub(super) number: usize,
    pub(super) span: Span,
    pub(super) kind: Kind,
    /// Levels below and with it.
    pub(super) depth: usize,
    /// Parts in it, those of nets once for each use.
    pub(super) size: u64,
    /// Whether there is a synchrocell in it: what it does with one record depends on others.
    pub(super) syncs: bool,
    /// Whether there is an initialiser in it: something comes out though nothing goes in.
    pub(super) starts: bool,
    /// What it takes, once that is inferred.
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

/// A box, one for each definition.
pub(super) struct BoxPart {
    pub(super) plan: Arc<plan::BoxPlan>,
    /// Where its name stands.
    pub(super) name_span: Span,
    /// What it takes; `None` for an initialiser.
    pub(super) input: Option<Row>,
    /// What does not flow past.
    pub(super) keeps: Row,
    pub(super) outputs: Vec<Row>,
    pub(super) takes: Rc<Type>,
}

pub(super) struct FilterPart {
    pub(super) plan: Arc<plan::FilterPlan>,
    pub(super) pattern: Row,
    /// What of it a row cannot do without.
    pub(super) needs: Row,
    /// Of all cases.
    pub(super) outputs: Vec<Row>,
}

pub(super) struct SyncPart {
    pub(super) plan: Arc<plan::SyncPlan>,
    pub(super) patterns: Vec<PatternPart>,
    /// The labels of all patterns.
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

/// A net, one for each definition.
pub(super) struct NetPart {
    pub(super) number: usize,
    pub(super) name: Arc<str>,
    pub(super) name_span: Span,
    pub(super) body: Rc<Part>,
    /// What it says of its type.
    pub(super) declared: Option<Signature>,
}

/// What a net declares.
pub(super) struct Signature {
    pub(super) mappings: Vec<Rc<Mapping>>,
}

pub(super) struct Mapping {
    pub(super) input: Vec<(Row, Span)>,
    /// `None`: to be inferred.
    pub(super) output: Option<Vec<Row>>,
    pub(super) span: Span,
}

impl Signature {
    pub(super) fn inputs(&self) -> impl Iterator<Item = &(Row, Span)> {
        self.mappings.iter().flat_map(|m| &m.input)
    }
}

/// What a part takes.
#[derive(Default)]
pub(super) struct Type {
    pub(super) accepts: Vec<Variant>,
    /// What it lets through besides, as a synchrocell does with what fits none of its patterns.
    pub(super) lets: Vec<Row>,
}

#[derive(Clone)]
pub(super) struct Variant {
    pub(super) row: Row,
    /// It says more than another variant that would do: it may be left out where it leads nowhere.
    pub(super) optional: bool,
    /// Records of it may go another way than those of other variants, so that it matters though it is optional.
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
        let mut see = |part: &Part| {
            depth = depth.max(part.depth);
            size = size.saturating_add(part.size);
            syncs |= part.syncs;
            starts |= part.starts;
        };
        for_each_child(&kind, &mut see);
        match &kind {
            Kind::Sync(_) => syncs = true,
            Kind::Box(part) => starts = part.input.is_none(),
            _ => {}
        }
        Part { number, span, kind, depth: depth + 1, size, syncs, starts, takes: OnceCell::new() }
    }
}

fn for_each_child<'a>(kind: &'a Kind, see: &mut impl FnMut(&'a Part)) {
    match kind {
        Kind::Identity | Kind::Box(_) | Kind::Filter(_) | Kind::Sync(_) => {}
        Kind::Serial(parts) | Kind::Parallel { branches: parts, .. } => parts.iter().for_each(|p| see(p)),
        Kind::Star { operand, .. }
        | Kind::Split { operand, .. }
        | Kind::Feedback { operand, .. }
        | Kind::Place { operand, .. } => see(operand),
        Kind::Net(net) => see(&net.body),
    }
}

/// Calls `see` for a part and for all in it, the bodies of nets once.
pub(super) fn visit<'a>(part: &'a Part, see: &mut impl FnMut(&'a Part)) {
    let mut seen = std::collections::HashSet::new();
    let mut open = vec![part];
    while let Some(part) = open.pop() {
        see(part);
        if let Kind::Net(net) = &part.kind
            && !seen.insert(net.number)
        {
            continue;
        }
        let from = open.len();
        for_each_child(&part.kind, &mut |child| open.push(child));
        open[from..].reverse();
    }
}
