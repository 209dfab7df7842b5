//! Type inference: the variants that each part takes, computed from its content.
//!
//! For `A .. B`, inference sends a variant of `A` through `A`. The labels that `B` needs and the
//! output does not have must enter with the record and flow past `A`. The variant therefore grows
//! until `B` takes every output of `A`, or until a missing label cannot be added because `A`
//! consumes it. Then the variant stays as it is, and verification reports the error.

use std::collections::{HashSet, VecDeque};
use std::rc::Rc;

use crate::ast::Span;

use super::VARIANTS_MAX;
use super::flow::{Flow, leaves, taken};
use super::part::{Kind, Part, PatternPart, Type, Variant};
use super::row::{Mark, Row, Rows};

/// Labels that a row needs to continue.
enum Need {
    Nothing,
    /// One of these variants instead of the row.
    OneOf(Vec<Variant>),
    /// Labels that the row cannot have.
    Never,
    /// Fewer labels: no part takes the row.
    Less,
}

/// Infers the type of a part and of all its parts.
pub(super) fn infer(flow: &mut Flow, part: &Part) {
    if part.takes.get().is_some() {
        return;
    }
    match &part.kind {
        Kind::Serial(parts) | Kind::Parallel { branches: parts, .. } => {
            parts.iter().for_each(|p| infer(flow, p))
        }
        Kind::Star { operand, .. }
        | Kind::Split { operand, .. }
        | Kind::Feedback { operand, .. }
        | Kind::Place { operand, .. } => infer(flow, operand),
        Kind::Net(net) => infer(flow, &net.body),
        Kind::Identity | Kind::Box(_) | Kind::Filter(_) | Kind::Sync(_) => {}
    }
    let takes = type_of(flow, part);
    part.takes.get_or_init(|| takes);
}

fn shared(part: &Part) -> Rc<Type> {
    part.takes.get().expect("parts are inferred from the inside out").clone()
}

fn type_of(flow: &mut Flow, part: &Part) -> Rc<Type> {
    let mut takes = match &part.kind {
        Kind::Box(box_part) => return box_part.takes.clone(),
        Kind::Place { operand, .. } => return shared(operand),
        Kind::Net(net) => match &net.declared {
            None => return shared(&net.body),
            Some(declared) => {
                let mut takes =
                    Type::of(declared.inputs().map(|(row, _)| row.clone()).take(VARIANTS_MAX + 1));
                takes.accepts.iter_mut().for_each(|v| v.choice = true);
                takes
            }
        },
        Kind::Identity => Type::of([Row::empty()]),
        Kind::Filter(filter) => Type::of([filter.pattern.clone()]),
        Kind::Sync(sync) => {
            let mut takes =
                Type::of(sync.patterns.iter().map(|p| p.row.clone()).take(VARIANTS_MAX + 1));
            takes.lets.push(Row::empty());
            takes
        }
        Kind::Serial(parts) => return serial(flow, parts),
        Kind::Parallel { branches, .. } => parallel(branches),
        Kind::Star { operand, exits, .. } => star(flow, part.span, operand, exits),
        Kind::Feedback { operand, patterns } => feedback(flow, part.span, operand, patterns),
        Kind::Split { operand, tag, .. } => {
            let tag = Row::new(vec![*tag]);
            let mut takes = Type::default();
            for variant in &taken(operand).accepts {
                takes.add(Variant { row: variant.row.union(&tag), ..*variant });
            }
            takes.lets.extend(taken(operand).lets.iter().map(|row| row.union(&tag)));
            takes
        }
    };
    bound(flow, &mut takes, part.span);
    Rc::new(takes)
}

/// Enforces the bounds of a type. Optional variants are removed first.
fn bound(flow: &mut Flow, takes: &mut Type, span: Span) {
    if takes.accepts.len() > VARIANTS_MAX {
        takes.accepts.sort_by_key(|v| v.optional);
        if !takes.accepts[VARIANTS_MAX].optional {
            flow.gave_up.get_or_insert(span);
        }
        takes.accepts.truncate(VARIANTS_MAX);
    }
    takes.lets.truncate(VARIANTS_MAX);
}

fn parallel(branches: &[Rc<Part>]) -> Type {
    let mut takes = Type::default();
    for branch in branches {
        for variant in &taken(branch).accepts {
            if takes.accepts.len() > VARIANTS_MAX {
                return takes;
            }
            takes.add(Variant { choice: true, ..variant.clone() });
        }
    }
    takes
}

fn serial(flow: &mut Flow, parts: &[Rc<Part>]) -> Rc<Type> {
    let mut parts = parts.iter().rev();
    let mut rest = shared(parts.next().expect("a serial composition has parts"));
    for part in parts {
        if !matches!(part.kind, Kind::Identity) {
            let mut takes = before(flow, part, &rest);
            bound(flow, &mut takes, part.span);
            rest = Rc::new(takes);
        }
    }
    rest
}

/// Returns the type of a part followed by the rest.
fn before(flow: &mut Flow, part: &Part, rest: &Type) -> Type {
    let mut takes = Type::default();
    if flow.gave_up.is_some() {
        taken(part).accepts.iter().for_each(|v| takes.add(v.clone()));
        return takes;
    }
    for variant in &taken(part).accepts {
        let grown = grow(flow, variant, part.span, &mut |flow, start, row| {
            flow.spend((row.len() + rest.accepts.len() + rest.lets.len()) as u64, part.span);
            match alone(flow, part, row) {
                Some(made) => need(start, row, &made, rest),
                None => Need::Less,
            }
        });
        for variant in grown {
            refine(flow, part, &variant, rest, &mut takes);
            takes.add(variant);
        }
    }
    if !taken(part).lets.is_empty() {
        // Rows that pass this part reach the rest unchanged.
        for variant in &rest.accepts {
            if variant.row.len() > 0 && !variant.row.is_one_of(taken(part).rows()) {
                takes.add(Variant { optional: true, ..variant.clone() });
            }
        }
        takes.lets = rest.rows().chain(&rest.lets).cloned().collect();
    }
    takes
}

/// Returns the output of a part for one row, or `None` if the part cannot take the row.
fn alone(flow: &mut Flow, part: &Part, row: &Row) -> Option<Rows> {
    flow.failed = false;
    let mark = Mark { certain: true, origin: part.span };
    let made = flow.through(part, Rows::one(row.clone(), mark));
    (!flow.failed).then_some(made)
}

/// Returns the labels that a row, grown from `start`, needs so that the rest takes every output.
fn need(start: &Row, row: &Row, made: &Rows, rest: &Type) -> Need {
    for (output, mark) in made.iter() {
        if mark.certain && !output.is_one_of(rest.rows().chain(&rest.lets)) {
            return missing(start, row, output, rest);
        }
    }
    Need::Nothing
}

/// Returns the labels that a row needs so that an output of it matches: those of the variants with
/// the most labels in common with the output, apart from labels that the row gained before.
fn missing(start: &Row, row: &Row, output: &Row, rest: &Type) -> Need {
    let fits = |v: &&Variant| {
        output.binding().iter().all(|l| v.row.contains(*l))
            && v.row.binding().iter().all(|l| output.contains(*l) || !row.contains(*l))
    };
    let own = output.without(&row.without(start));
    let common = |v: &Variant| v.row.overlap(&own);
    let least =
        rest.accepts.iter().filter(fits).filter(|v| !v.optional).map(common).max().unwrap_or(0);
    let mut wider: Vec<Variant> = rest
        .accepts
        .iter()
        .filter(fits)
        .filter(|v| common(v) >= least)
        .map(|v| Variant { row: row.union(&v.row.without(output)), ..*v })
        .filter(|v| v.row != *row)
        .collect();
    // A larger variant is optional if a smaller one is sufficient.
    let optional: Vec<bool> = wider
        .iter()
        .map(|v| wider.iter().any(|w| w.row != v.row && v.row.includes(&w.row)))
        .collect();
    wider.iter_mut().zip(optional).for_each(|(v, optional)| v.optional |= optional);
    if wider.is_empty() { Need::Never } else { Need::OneOf(wider) }
}

/// Returns all variants to which a variant can grow until no label is missing. If there are none,
/// returns the first variant that cannot grow.
fn grow(
    flow: &mut Flow,
    variant: &Variant,
    span: Span,
    need: &mut dyn FnMut(&mut Flow, &Row, &Row) -> Need,
) -> Vec<Variant> {
    // Each variant with the row from which it grew.
    let mut open = VecDeque::from([(variant.clone(), variant.row.clone())]);
    let mut seen = HashSet::from([variant.row.clone()]);
    let (mut grown, mut stuck) = (Vec::new(), None);
    while let Some((next, less)) = open.pop_front() {
        flow.spend(1 + 4 * next.row.len() as u64, span);
        if seen.len() > 4 * VARIANTS_MAX {
            flow.gave_up.get_or_insert(span);
        }
        if flow.gave_up.is_some() {
            return vec![variant.clone()];
        }
        match need(flow, &variant.row, &next.row) {
            Need::Nothing => grown.push(next),
            Need::Never => {
                stuck.get_or_insert(next);
            }
            Need::Less => {
                stuck.get_or_insert(Variant { row: less, ..next });
            }
            Need::OneOf(wider) => {
                flow.spend((wider.len() * wider.len() * (1 + next.row.len())) as u64, span);
                let wider = wider.into_iter().filter(|w| seen.insert(w.row.clone()));
                open.extend(wider.map(|w| {
                    let (optional, choice) = (w.optional || next.optional, w.choice || next.choice);
                    (Variant { row: w.row, optional, choice }, next.row.clone())
                }));
            }
        }
    }
    if variant.optional {
        return grown;
    }
    if grown.is_empty() {
        // The rest needs a label that this part consumes.
        grown.extend(stuck);
    }
    if grown.iter().all(|v| v.optional) {
        grown.iter_mut().for_each(|v| v.optional = false);
    }
    grown.retain(|v| !v.optional || v.choice);
    grown
}

/// Adds variants that a more specific variant of the rest takes, with labels that flow past the
/// part.
fn refine(flow: &mut Flow, part: &Part, variant: &Variant, rest: &Type, takes: &mut Type) {
    let Some(made) = alone(flow, part, &variant.row) else {
        return;
    };
    for (output, _) in made.iter().filter(|(_, mark)| mark.certain) {
        // A row that passes unchanged may match better with more labels.
        let past = Row::empty();
        let direct = rest.rows().filter(|v| output.is_subtype_of(v)).max_by_key(|v| v.len());
        let (direct, common) = direct.map_or((&past, 1), |direct| (direct, 0));
        for special in &rest.accepts {
            flow.spend(1 + special.row.len() as u64, part.span);
            if flow.gave_up.is_some() || takes.accepts.len() > VARIANTS_MAX {
                return;
            }
            if special.row.len() <= direct.len()
                || !special.choice
                || !special.row.includes(direct)
                || special.row.binding() != direct.binding()
                || special.row.overlap(output) < common
                || output.includes(&special.row)
            {
                continue;
            }
            let wider = variant.row.union(&special.row.without(output));
            let Some(made) = alone(flow, part, &wider) else {
                continue;
            };
            if matches!(need(&wider, &wider, &made, rest), Need::Nothing)
                && made
                    .iter()
                    .any(|(output, mark)| mark.certain && output.is_subtype_of(&special.row))
            {
                takes.add(Variant { row: wider, optional: true, choice: true });
            }
        }
    }
}

/// Infers the type of a star: the operand must take each row that enters again.
fn star(flow: &mut Flow, span: Span, operand: &Part, exits: &[PatternPart]) -> Type {
    let inner = taken(operand);
    let mut round = |flow: &mut Flow, start: &Row, row: &Row| {
        around(flow, operand, (start, row), |output| !leaves(output, exits).must, |_| true)
    };
    let mut takes = Type::default();
    for variant in &inner.accepts {
        grow(flow, variant, span, &mut round).into_iter().for_each(|grown| takes.add(grown));
    }
    for exit in exits {
        let variant = Variant { row: exit.row.clone(), optional: false, choice: false };
        if !exit.guarded() {
            takes.add(variant);
            continue;
        }
        // The record may stay, and then the operand must take it.
        for grown in grow(flow, &variant, span, &mut round) {
            let special = grown.row != exit.row && grown.row.is_one_of(takes.rows());
            if !special && matches!(round(flow, &exit.row, &grown.row), Need::Nothing) {
                takes.add(grown);
            }
        }
    }
    takes
}

fn feedback(flow: &mut Flow, span: Span, operand: &Part, patterns: &[PatternPart]) -> Type {
    let mut takes = Type::default();
    for variant in &taken(operand).accepts {
        let grown = grow(flow, variant, span, &mut |flow, start, row| {
            around(flow, operand, (start, row), |_| true, |output| leaves(output, patterns).may)
        });
        grown.into_iter().for_each(|grown| takes.add(grown));
    }
    takes
}

/// Returns the labels that a row needs to cycle through a part. `enters` selects the rows that
/// enter the part, `again` the outputs that return to its input.
fn around(
    flow: &mut Flow,
    operand: &Part,
    (start, row): (&Row, &Row),
    enters: impl Fn(&Row) -> bool,
    again: impl Fn(&Row) -> bool,
) -> Need {
    let inner = taken(operand);
    let mut seen = HashSet::new();
    let mut open = vec![row.clone()];
    while let Some(next) = open.pop() {
        if !enters(&next) || !seen.insert(next.clone()) {
            continue;
        }
        if seen.len() > super::ROWS_MAX {
            flow.gave_up.get_or_insert(operand.span);
            return Need::Nothing;
        }
        if !next.is_one_of(inner.rows().chain(&inner.lets)) {
            return missing(start, row, &next, inner);
        }
        let Some(made) = alone(flow, operand, &next) else {
            return Need::Less;
        };
        open.extend(
            made.iter().filter(|(r, mark)| mark.certain && again(r)).map(|(r, _)| r.clone()),
        );
    }
    Need::Nothing
}
