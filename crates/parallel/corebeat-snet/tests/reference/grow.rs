//! Generator of nets from genes. Each gene becomes a part that is valid at its place, so every list
//! of genes is a net, and a shorter list is a simpler net.
//!
//! The generator tracks the shapes that can reach a place: each record there has all labels of one
//! of these shapes, and possibly more. All shapes have a field, and either all or none have the
//! binding tag, because patterns match only records with the same binding tags.

use std::sync::Arc;

use corebeat_snet::expression::{Binary, Expression, Unary};
use corebeat_snet::plan::{
    BoxEntry, BoxPlan, Branch, FeedbackPlan, FilterPlan, Guarded, Node, OutputPlan, ParallelPlan,
    Source, SplitPlan, StarPlan, SyncPlan,
};
use corebeat_snet::{Kind, Label, Shape};

use super::function::{Function, Functions};
use super::generate::Class;
use super::source;

/// Kinds of genes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Identity,
    Box,
    Filter,
    /// Adds the binding tag.
    Bind,
    Sync,
    /// A cell, and a box or a filter for the two merged fields, optionally in a star or a split.
    Merge,
    Serial,
    Parallel,
    Star,
    Split,
    Feedback,
    Place,
    Net,
    /// Two copies of each record through inner parts, and a cell that merges them, in a split over
    /// the number of the record.
    Join,
}

/// Gene of a net.
#[derive(Clone, Debug)]
pub(crate) struct Gene {
    pub(crate) form: Form,
    pub(crate) dice: Vec<u8>,
    pub(crate) inner: Vec<Gene>,
}

/// Sequence of random choices, followed by zeros.
pub(crate) struct Dice<'a>(pub(crate) &'a [u8]);

impl Dice<'_> {
    pub(crate) fn throw(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        usize::from(self.throw()) % n
    }

    /// Returns `true` with probability `1 / n`, but `false` after the last choice.
    pub(crate) fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == n - 1
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Returns at least `fewest` of at most eight items, in some order.
    pub(crate) fn some<T: Copy>(&mut self, from: &[T], fewest: usize) -> Vec<T> {
        let bits = self.throw();
        let picked = |i: usize| bits >> (i % 8) & 1 == 1;
        let mut some: Vec<T> = (0..from.len()).filter(|i| picked(*i)).map(|i| from[i]).collect();
        let missing = fewest.saturating_sub(some.len());
        some.extend((0..from.len()).filter(|i| !picked(*i)).map(|i| from[i]).take(missing));
        if !some.is_empty() {
            let first = self.below(some.len());
            some.rotate_left(first);
        }
        some
    }
}

/// Properties of a place of the net.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// Whether every record must cause at least one output.
    pub(crate) lossless: bool,
    /// Maximum number of outputs for one record.
    pub(crate) budget: u32,
    /// Whether records have unique numbers here.
    pub(crate) unique: bool,
    /// Whether the place is inside a feedback.
    pub(crate) looped: bool,
    /// Number of enclosing constructs with separate labels.
    pub(crate) depth: usize,
}

/// Generated part of a net.
pub(crate) struct Part {
    pub(crate) node: Node,
    /// Possible output shapes.
    pub(crate) shapes: Vec<Shape>,
    /// Maximum number of outputs for one record.
    pub(crate) most: u32,
}

/// Maximum number of shapes at one place. More shapes are unified.
const SHAPES_MAX: usize = 6;
/// Maximum number of exits of a star.
const EXITS_MAX: usize = 3;
/// Maximum number of rounds of a star or a feedback.
const ROUNDS_MAX: u32 = 3;

pub(crate) fn field(name: &str) -> Label {
    Label::new(Kind::Field, name).expect("a test uses few labels")
}

pub(crate) fn tag(name: &str) -> Label {
    Label::new(Kind::Tag, name).expect("a test uses few labels")
}

/// Binding tag.
pub(crate) fn binding() -> Label {
    Label::new(Kind::BindingTag, "K").expect("a test uses few labels")
}

/// Tag with the unique number of each record.
pub(crate) fn number() -> Label {
    tag("I")
}

/// Fields for boxes and filters.
pub(crate) fn fields() -> Vec<Label> {
    ["A", "B", "C", "D"].map(field).to_vec()
}

/// Tags for boxes and filters.
pub(crate) fn tags() -> Vec<Label> {
    ["T", "U"].map(tag).to_vec()
}

pub(crate) fn shape(labels: impl IntoIterator<Item = Label>) -> Shape {
    Shape::new(labels).expect("a test uses few shapes")
}

fn with(shape_: Shape, labels: &[Label]) -> Shape {
    shape(shape_.labels().iter().chain(labels).copied())
}

fn without(shape_: Shape, labels: &[Label]) -> Shape {
    shape(shape_.labels().iter().copied().filter(|label| !labels.contains(label)))
}

/// Labels of a shape that boxes and filters may take, in a deterministic order.
fn free(shape: Shape) -> Vec<Label> {
    fields().into_iter().chain(tags()).filter(|label| shape.contains(*label)).collect()
}

fn fields_of(shape: Shape) -> Vec<Label> {
    fields().into_iter().filter(|label| shape.contains(*label)).collect()
}

fn tags_in(labels: &[Label]) -> Vec<Label> {
    labels.iter().copied().filter(|label| label.kind() != Kind::Field).collect()
}

/// The binding tag if records have it.
fn bound(shapes: &[Shape]) -> Vec<Label> {
    if shapes[0].contains(binding()) { vec![binding()] } else { Vec::new() }
}

fn add(shapes: &mut Vec<Shape>, more: impl IntoIterator<Item = Shape>) {
    for shape in more {
        if !shapes.contains(&shape) {
            shapes.push(shape);
        }
    }
}

/// Labels that flow past a part that takes these.
fn past(shape: Shape, taken: &[Label]) -> Shape {
    without(without(shape, taken), &[binding()])
}

fn box_outputs(plan: &BoxPlan, from: Shape) -> Vec<Shape> {
    let input = plan.input.as_deref().unwrap_or_default();
    let taken: Vec<Label> = input.iter().filter(|e| !e.passes).map(|e| e.label).collect();
    plan.outputs.iter().map(|labels| with(past(from, &taken), labels)).collect()
}

fn filter_outputs(plan: &FilterPlan, from: Shape) -> Vec<Shape> {
    let outputs = plan.cases.iter().flat_map(|(_, outputs)| outputs);
    let labels =
        outputs.map(|output| output.entries.iter().map(|(label, _)| *label).collect::<Vec<_>>());
    labels.map(|labels| with(past(from, plan.pattern.labels()), &labels)).collect()
}

pub(crate) fn in_series(parts: Vec<Node>) -> Node {
    let mut flat = Vec::new();
    for part in parts {
        match part {
            Node::Serial(inner) => flat.extend(inner),
            other => flat.push(other),
        }
    }
    match flat.len() {
        0 => Node::Identity,
        1 => flat.remove(0),
        _ => Node::Serial(flat),
    }
}

fn filter(pattern: Shape, cases: Vec<(Option<Expression>, Vec<OutputPlan>)>) -> Node {
    let text = source::filter(pattern, &cases);
    Node::Filter(Arc::new(FilterPlan { pattern, cases, text }))
}

/// A branch in a star for records with two fields: it renames the second field, after the record
/// has passed through the branch `again` times, which its tag counts. With a state, a record with
/// the first field remains for the next merge.
fn join_filter(
    [first, second, count]: [Label; 3],
    third: Label,
    again: i32,
    state: bool,
) -> Branch {
    let same = |label| (label, Source::Label(label));
    let more = Source::Value(compare(Binary::Plus, count, 1));
    let repeat = OutputPlan { entries: vec![same(first), same(second), (count, more)] };
    let remain = OutputPlan { entries: vec![same(first), same(count)] };
    let result = OutputPlan { entries: vec![(third, Source::Label(second)), same(count)] };
    let pattern = shape([first, second, count]);
    let cases = vec![
        (Some(compare(Binary::Less, count, again)), vec![repeat]),
        (None, if state { vec![remain, result] } else { vec![result] }),
    ];
    Branch { accepts: vec![pattern], node: filter(pattern, cases) }
}

/// A filter that takes some labels, and the binding tag if `bound`. It keeps these and sets tags.
fn assign(takes: &[Label], bound: &[Label], sets: &[(Label, Expression)]) -> Node {
    let pattern = shape(takes.iter().chain(bound).copied());
    let sets = sets.iter().map(|(label, value)| (*label, Source::Value(value.clone())));
    let entries = bound.iter().map(|label| (*label, Source::Label(*label))).chain(sets).collect();
    filter(pattern, vec![(None, vec![OutputPlan { entries }])])
}

fn compare(operator: Binary, label: Label, with: i32) -> Expression {
    Expression::Binary(
        operator,
        Box::new(Expression::Tag(label)),
        Box::new(Expression::Number(with)),
    )
}

/// Branch for records that match no other branch.
fn pass(bound: &[Label]) -> Branch {
    let node = if bound.is_empty() { Node::Identity } else { assign(&[], bound, &[]) };
    Branch { accepts: vec![shape(bound.iter().copied())], node }
}

/// Builder of a net from genes.
pub(crate) struct Grower {
    pub(crate) class: Class,
    pub(crate) boxes: Vec<Arc<BoxPlan>>,
    pub(crate) functions: Functions,
    names: usize,
}

impl Grower {
    pub(crate) fn new(class: Class) -> Grower {
        Grower { class, boxes: Vec::new(), functions: Functions::new(), names: 0 }
    }

    /// Whether each record has one field with ids.
    fn merging(&self) -> bool {
        self.class == Class::Merging
    }

    fn deterministic(&self, dice: &mut Dice<'_>) -> bool {
        self.class == Class::Ordered || dice.once_in(3)
    }

    fn parallel(&self, dice: &mut Dice<'_>, mut branches: Vec<Branch>) -> Node {
        if branches.len() == 1 {
            return branches.remove(0).node;
        }
        Node::Parallel(Arc::new(ParallelPlan { deterministic: self.deterministic(dice), branches }))
    }

    fn named(&mut self, node: Node) -> Node {
        self.names += 1;
        Node::Net(format!("n{}", self.names).into(), Arc::new(node))
    }

    /// Builds the part of a gene for records of these shapes.
    pub(crate) fn part(&mut self, gene: &Gene, shapes: &[Shape], place: Place) -> Part {
        let dice = &mut Dice(&gene.dice);
        let part = match gene.form {
            Form::Identity if bound(shapes).is_empty() => {
                Part { node: Node::Identity, shapes: shapes.to_vec(), most: 1 }
            }
            Form::Identity => {
                Part { node: pass(&bound(shapes)).node, shapes: shapes.to_vec(), most: 1 }
            }
            Form::Box => self.box_part(dice, shapes, place),
            Form::Filter => self.filter_part(dice, shapes, place),
            Form::Bind => self.bind(dice, shapes),
            Form::Sync if self.merging() => self.merge(dice, shapes, place),
            Form::Sync => self.sync(dice, shapes),
            Form::Merge if self.class == Class::Confluent => self.sync(dice, shapes),
            Form::Merge => self.merge(dice, shapes, place),
            Form::Serial => self.serial(&gene.inner, shapes, place),
            Form::Parallel => self.branches(dice, &gene.inner, shapes, place),
            Form::Star => self.star(dice, &gene.inner, shapes, place),
            Form::Split => self.split(dice, &gene.inner, shapes, place),
            // A feedback merges returning and new records without a fixed order.
            Form::Feedback if self.class == Class::Ordered => {
                self.serial(&gene.inner, shapes, place)
            }
            Form::Feedback => self.feedback(dice, &gene.inner, shapes, place),
            Form::Place => {
                let Part { node, shapes, most } = self.serial(&gene.inner, shapes, place);
                Part { node: Node::Place(Arc::new(node), dice.below(4) as u32), shapes, most }
            }
            Form::Net => {
                let Part { node, shapes, most } = self.serial(&gene.inner, shapes, place);
                Part { node: self.named(node), shapes, most }
            }
            Form::Join => match self.class {
                Class::Ordered if place.budget >= 2 => self.join(dice, &gene.inner, shapes, place),
                Class::Confluent if place.unique => self.join(dice, &gene.inner, shapes, place),
                _ => self.serial(&gene.inner, shapes, place),
            },
        };
        self.unified(dice, part)
    }

    /// Builds parts in sequence.
    pub(crate) fn serial(&mut self, genes: &[Gene], shapes: &[Shape], mut place: Place) -> Part {
        let mut whole = Part { node: Node::Identity, shapes: shapes.to_vec(), most: 1 };
        let mut nodes = Vec::new();
        for gene in genes {
            let part = self.part(gene, &whole.shapes, place);
            place.budget /= part.most;
            place.unique &= part.most == 1;
            whole.most *= part.most;
            whole.shapes = part.shapes;
            nodes.push(part.node);
        }
        if genes.is_empty() {
            nodes.push(pass(&bound(shapes)).node);
        }
        whole.node = in_series(nodes);
        whole
    }

    /// Unifies the binding tag of all shapes, and bounds their number.
    pub(crate) fn unified(&mut self, dice: &mut Dice<'_>, part: Part) -> Part {
        let Part { node, shapes, most } = part;
        let (mut nodes, mut shapes) = (vec![node], shapes);
        let (tied, mut loose): (Vec<Shape>, Vec<Shape>) =
            shapes.iter().partition(|s| s.contains(binding()));
        if !tied.is_empty() && !loose.is_empty() {
            let value = (tags()[0], Expression::Tag(binding()));
            let node = assign(&[binding()], &[], &[value]);
            let loosen = Branch { accepts: vec![shape([binding()])], node };
            nodes.push(self.parallel(dice, vec![loosen, pass(&[])]));
            add(&mut loose, tied.iter().map(|s| with(without(*s, &[binding()]), &tags()[..1])));
            shapes = loose;
        }
        if shapes.len() > SHAPES_MAX {
            let goal = [dice.pick(&shapes)];
            nodes.extend(self.restore(dice, &shapes, &goal));
            shapes = goal.to_vec();
        }
        Part { node: in_series(nodes), shapes, most }
    }

    /// Builds a part that converts records of some shapes into records of others.
    fn restore(&mut self, dice: &mut Dice<'_>, from: &[Shape], to: &[Shape]) -> Option<Node> {
        let fine = |shape: &Shape| to.iter().any(|goal| shape.is_subtype_of(*goal));
        let mut branches: Vec<Branch> = Vec::new();
        for old in from.iter().filter(|old| !fine(old)) {
            let pattern = shape(free(*old).into_iter().chain(bound(&[*old])));
            if branches.iter().any(|branch| branch.accepts[0] == pattern) {
                continue;
            }
            let goal = to[0];
            let entries = free(goal).into_iter().chain(bound(&[goal])).map(|label| {
                let source = if pattern.contains(label) {
                    Source::Label(label)
                } else if label.kind() == Kind::Field {
                    Source::Label(fields_of(pattern)[0])
                } else {
                    Source::Value(Expression::Number(0))
                };
                (label, source)
            });
            let node =
                filter(pattern, vec![(None, vec![OutputPlan { entries: entries.collect() }])]);
            branches.push(Branch { accepts: vec![pattern], node });
        }
        if branches.is_empty() {
            return None;
        }
        if from.iter().any(fine) {
            branches.push(pass(&bound(from)));
        }
        Some(self.parallel(dice, branches))
    }

    /// Builds a part for the records that it takes. Other records pass.
    fn routed(
        &mut self,
        dice: &mut Dice<'_>,
        node: Node,
        accepts: Shape,
        outputs: impl Fn(Shape) -> Vec<Shape>,
        shapes: &[Shape],
    ) -> (Node, Vec<Shape>) {
        let mut out = Vec::new();
        let takes_all = shapes.iter().all(|shape| shape.is_subtype_of(accepts));
        for shape in shapes {
            let taken = with(*shape, accepts.labels());
            if !shape.is_subtype_of(accepts) {
                add(&mut out, [*shape]);
                if self.merging() && fields_of(taken).len() > 1 {
                    continue; // there are no such records
                }
            }
            add(&mut out, outputs(taken));
        }
        if takes_all {
            return (node, out);
        }
        (
            self.parallel(
                dice,
                vec![Branch { accepts: vec![accepts], node }, pass(&bound(shapes))],
            ),
            out,
        )
    }

    fn box_part(&mut self, dice: &mut Dice<'_>, shapes: &[Shape], place: Place) -> Part {
        let bound = bound(shapes);
        let of = dice.pick(shapes);
        let fits = |plan: &&Arc<BoxPlan>| {
            let function = &self.functions[&plan.name];
            of.is_subtype_of(plan.accepts)
                && function.most <= place.budget
                && !(place.lossless && function.fewest == 0)
                && (self.merging() || !place.lossless || function.most == 1)
        };
        let known: Vec<Arc<BoxPlan>> = self.boxes.iter().filter(fits).cloned().collect();
        let plan = if !known.is_empty() && dice.once_in(4) {
            known[dice.below(known.len())].clone()
        } else {
            let input = self.selection(dice, of, 1);
            let input = input.into_iter().chain(bound).map(|label| {
                let may_pass =
                    label.kind() == Kind::Tag || label.kind() == Kind::Field && !self.merging();
                BoxEntry { label, passes: may_pass && dice.once_in(5) }
            });
            let input: Vec<BoxEntry> = input.collect();
            let outputs = (0..1 + dice.below(3)).map(|_| self.variant(dice)).collect();
            let most = match place.budget {
                _ if place.lossless && !self.merging() => 1,
                budget if self.merging() => [1, 1, 2][dice.below(3)].min(budget),
                budget => [1, 2, 3][dice.below(3)].min(budget),
            };
            let fewest = match place.lossless {
                true => most,
                false if dice.once_in(3) => 0,
                false => 1,
            };
            self.new_box(dice, input, outputs, fewest, most)
        };
        let most = self.functions[&plan.name].most;
        let node = Node::Box(plan.clone());
        let (node, shapes) =
            self.routed(dice, node, plan.accepts, |s| box_outputs(&plan, s), shapes);
        Part { node, shapes, most }
    }

    fn new_box(
        &mut self,
        dice: &mut Dice<'_>,
        input: Vec<BoxEntry>,
        outputs: Vec<Vec<Label>>,
        fewest: u32,
        most: u32,
    ) -> Arc<BoxPlan> {
        let accepts = shape(input.iter().map(|e| e.label));
        let name = format!("b{}", self.boxes.len() + 1);
        let plan = BoxPlan { name: name.clone(), input: Some(input), accepts, outputs, body: None };
        let function =
            Function { seed: dice.throw().into(), fewest, most, forwards_ids: self.merging() };
        self.boxes.push(Arc::new(plan));
        self.functions.insert(name, Arc::new(function));
        self.boxes[self.boxes.len() - 1].clone()
    }

    /// Selects labels for a pattern, including the field if ids must not be lost.
    fn selection(&self, dice: &mut Dice<'_>, of: Shape, fewest: usize) -> Vec<Label> {
        if !self.merging() {
            return dice.some(&free(of), fewest);
        }
        let mut labels = fields_of(of);
        labels.extend(dice.some(&tags_in(&free(of)), 0));
        labels
    }

    /// Builds an output variant of a box.
    fn variant(&self, dice: &mut Dice<'_>) -> Vec<Label> {
        let mut labels =
            if self.merging() { vec![dice.pick(&fields())] } else { dice.some(&fields(), 1) };
        labels.extend(dice.some(&tags(), 0));
        if dice.once_in(8) {
            labels.push(binding());
        }
        labels
    }

    fn filter_part(&mut self, dice: &mut Dice<'_>, shapes: &[Shape], place: Place) -> Part {
        let bound = bound(shapes);
        let of = dice.pick(shapes);
        let mut taken = self.selection(dice, of, 0);
        if self.merging() && dice.once_in(3) {
            taken = tags_in(&taken);
        }
        let pattern = shape(taken.iter().chain(&bound).copied());
        let tags = tags_in(&[taken, bound.clone()].concat());
        let conditions = if tags.is_empty() { 0 } else { dice.below(3) };
        let mut cases = Vec::new();
        let mut most = 1;
        for case in 0..=conditions {
            let condition = (case < conditions).then(|| self.expression(dice, &tags, 2));
            let count = match () {
                () if place.lossless => 1,
                () if condition.is_some() && dice.once_in(4) => 0,
                () => 1 + dice.below(place.budget.min(2) as usize),
            };
            let outputs =
                (0..count).map(|_| self.output(dice, pattern, &tags, count == 1)).collect();
            most = most.max(count as u32);
            cases.push((condition, outputs));
        }
        let node = filter(pattern, cases);
        let Node::Filter(plan) = node.clone() else { unreachable!("it was just made") };
        let (node, shapes) = self.routed(dice, node, pattern, |s| filter_outputs(&plan, s), shapes);
        Part { node, shapes, most }
    }

    fn output(
        &self,
        dice: &mut Dice<'_>,
        pattern: Shape,
        tags: &[Label],
        may_fail: bool,
    ) -> OutputPlan {
        let mut entries: Vec<(Label, Source)> = Vec::new();
        let from = fields_of(pattern);
        if !from.is_empty() {
            let to =
                if self.merging() { vec![dice.pick(&fields())] } else { dice.some(&fields(), 1) };
            entries.extend(to.into_iter().map(|label| {
                let same = from.contains(&label) && !dice.once_in(3);
                (label, Source::Label(if same { label } else { dice.pick(&from) }))
            }));
        }
        let mut to = dice.some(&self::tags(), 0);
        if pattern.contains(binding()) != dice.once_in(6) {
            to.push(binding());
        }
        entries.extend(to.into_iter().map(|label| {
            if pattern.contains(label) && !dice.once_in(3) {
                (label, Source::Label(label))
            } else if may_fail {
                (label, Source::Value(self.expression(dice, tags, 2)))
            } else {
                (label, Source::Value(sum(dice, tags)))
            }
        }));
        OutputPlan { entries }
    }

    fn expression(&self, dice: &mut Dice<'_>, tags: &[Label], depth: u32) -> Expression {
        use Binary::*;
        let inner = |dice: &mut Dice<'_>| Box::new(self.expression(dice, tags, depth - 1));
        match dice.below(if depth == 0 { 3 } else { 12 }) {
            0 => Expression::Number(dice.pick(&[1, 2, 0, -1, 3, -2, 5])),
            1 | 2 if !tags.is_empty() => Expression::Tag(dice.pick(tags)),
            1 | 2 => Expression::Number(dice.below(4) as i32),
            3 => Expression::Unary(dice.pick(&[Unary::Minus, Unary::Not, Unary::Abs]), inner(dice)),
            4 => Expression::Conditional(inner(dice), inner(dice), inner(dice)),
            5 => Expression::Binary(
                Remainder,
                inner(dice),
                Box::new(Expression::Number(2 + dice.below(2) as i32)),
            ),
            // Failed records would leave cells without a partner.
            6 if !self.merging() => {
                Expression::Binary(dice.pick(&[Divide, Remainder]), inner(dice), inner(dice))
            }
            7 | 8 => {
                let of = [Equal, NotEqual, Less, LessEqual, Greater, GreaterEqual];
                Expression::Binary(dice.pick(&of), inner(dice), inner(dice))
            }
            9 => Expression::Binary(dice.pick(&[And, Or]), inner(dice), inner(dice)),
            10 => Expression::Binary(dice.pick(&[Min, Max]), inner(dice), inner(dice)),
            _ => Expression::Binary(dice.pick(&[Plus, Minus, Times]), inner(dice), inner(dice)),
        }
    }

    fn bind(&mut self, dice: &mut Dice<'_>, shapes: &[Shape]) -> Part {
        let shared: Vec<Label> =
            tags().into_iter().filter(|tag| shapes.iter().all(|s| s.contains(*tag))).collect();
        let value = sum(dice, &shared);
        let kept = shared.iter().map(|tag| (*tag, Expression::Tag(*tag)));
        let sets: Vec<_> = kept.chain([(binding(), value)]).collect();
        let taken: Vec<Label> = shared.iter().copied().chain(bound(shapes)).collect();
        let shapes = shapes.iter().map(|s| with(*s, &[binding()])).collect();
        Part { node: assign(&taken, &[], &sets), shapes, most: 1 }
    }

    /// Builds a cell, or a cell that never stores a record if the order of its input is unknown.
    fn sync(&mut self, dice: &mut Dice<'_>, shapes: &[Shape]) -> Part {
        let bound = bound(shapes);
        let inert = self.class != Class::Ordered;
        let mut patterns: Vec<Guarded> = Vec::new();
        for _ in 0..2 + dice.below(2) {
            let of = dice.pick(shapes);
            let labels = [dice.some(&free(of), 1), bound.clone()].concat();
            let tags = tags_in(&labels);
            let guard = if inert {
                // No number matches.
                Some(compare(Binary::Equal, number(), -1))
            } else if !tags.is_empty() && dice.once_in(2) {
                let remainder = compare(Binary::Remainder, dice.pick(&tags), 2);
                let zero = Box::new(Expression::Number(0));
                Some(Expression::Binary(Binary::Equal, Box::new(remainder), zero))
            } else {
                None
            };
            let labels = labels.into_iter().chain(inert.then(number));
            patterns.push(Guarded { shape: shape(labels), guard });
        }
        let mut accepts = Vec::new();
        add(&mut accepts, patterns.iter().map(|pattern| pattern.shape));
        let takes = |shape: &Shape| accepts.iter().any(|pattern| shape.is_subtype_of(*pattern));
        let takes_all = shapes.iter().all(takes);
        let mut out = shapes.to_vec();
        let merged =
            |s: Shape| patterns.iter().fold(s, |s, pattern| with(s, pattern.shape.labels()));
        add(
            &mut out,
            shapes
                .iter()
                .filter(|s| !inert && s.is_subtype_of(patterns[0].shape))
                .map(|s| merged(*s)),
        );
        let node = Node::Sync(Arc::new(SyncPlan { patterns }));
        let node = if takes_all {
            node
        } else {
            let branch = Branch { accepts, node: self.named(node) };
            self.parallel(dice, vec![branch, pass(&bound)])
        };
        Part { node, shapes: out, most: 1 }
    }

    fn merge(&mut self, dice: &mut Dice<'_>, shapes: &[Shape], place: Place) -> Part {
        if self.merging() && place.looped {
            // Records have different counts of rounds here, so they are not equal.
            return Part { node: pass(&bound(shapes)).node, shapes: shapes.to_vec(), most: 1 };
        }
        // All records have the same tags, except the tag of the split.
        let [t, u] = [tags()[0], tags()[1]];
        let split = shapes.iter().all(|s| s.contains(t)) && dice.once_in(2);
        let zero = |label| (label, Expression::Number(0));
        let sets = if split { vec![zero(u)] } else { vec![zero(t), zero(u)] };
        let alike = assign(&bound(shapes), &[], &sets);
        let shapes: Vec<Shape> =
            shapes.iter().map(|s| with(without(*s, &[binding()]), &[t, u])).collect();

        let mut names = fields();
        let first = names.remove(dice.below(names.len()));
        let second = names.remove(dice.below(names.len()));
        let third = dice.pick(&names);
        let (both, star) = if !self.merging() && dice.once_in(2) {
            let star = dice.once_in(2);
            let again = if star { dice.below(4) as i32 } else { 0 };
            (join_filter([first, second, u], third, again, star && dice.once_in(2)), star)
        } else {
            let input = [first, second].map(|label| BoxEntry { label, passes: false }).to_vec();
            let plan = self.new_box(dice, input, vec![vec![third]], 1, 1);
            let branch = Branch { accepts: vec![plan.accepts], node: Node::Box(plan) };
            (branch, dice.once_in(2))
        };
        let patterns = [first, second].map(|label| Guarded { shape: shape([label]), guard: None });
        let cell = Node::Sync(Arc::new(SyncPlan { patterns: patterns.to_vec() }));
        let join = self.parallel(dice, vec![both, pass(&[])]);
        let core = in_series(vec![cell, join]);

        let common = shapes.iter().skip(1).fold(without(shapes[0], &fields()), |common, s| {
            shape(common.labels().iter().copied().filter(|label| s.contains(*label)))
        });
        let waits = |s: &Shape| s.contains(first) || s.contains(second);
        let mut out = Vec::new();
        let node = if star {
            // Records that match neither pattern leave. Each stage stores one record or merges two,
            // so the star terminates.
            let exits =
                names.iter().map(|label| Guarded { shape: shape([*label]), guard: None }).collect();
            add(&mut out, shapes.iter().copied().filter(|s| !self.merging() || !waits(s)));
            let deterministic = self.deterministic(dice);
            Node::Star(Arc::new(StarPlan { deterministic, operand: core, exits }))
        } else {
            add(&mut out, shapes.iter().copied());
            let accepts = [first, second].map(|label| shape([label])).to_vec();
            match shapes.iter().all(waits) {
                true => core,
                false => {
                    let branch = Branch { accepts, node: self.named(core) };
                    self.parallel(dice, vec![branch, pass(&[])])
                }
            }
        };
        add(&mut out, [with(common, &[third])]);
        let node = if split {
            let deterministic = self.deterministic(dice);
            Node::Split(Arc::new(SplitPlan { deterministic, placed: false, operand: node, tag: t }))
        } else {
            node
        };
        Part { node: in_series(vec![alike, node]), shapes: out, most: 1 }
    }

    fn branches(
        &mut self,
        dice: &mut Dice<'_>,
        genes: &[Gene],
        shapes: &[Shape],
        place: Place,
    ) -> Part {
        let bound = bound(shapes);
        let mut branches: Vec<Branch> = Vec::new();
        let (mut out, mut most) = (Vec::new(), 1);
        for gene in genes {
            let of = dice.pick(shapes);
            let mut accepts = of;
            if dice.once_in(3) {
                // Some of the labels, including one field and all labels of enclosing counters.
                let keep = dice.some(&fields_of(of), 1);
                let keep = [keep, dice.some(&tags_in(&free(of)), 0)].concat();
                let drop: Vec<Label> =
                    free(of).into_iter().filter(|label| !keep.contains(label)).collect();
                accepts = without(of, &drop);
            } else if dice.once_in(6) {
                // Labels that may be missing.
                let more = if self.merging() { tags() } else { [fields(), tags()].concat() };
                accepts = with(of, &[dice.pick(&more)]);
            }
            let part = self.part(gene, &[accepts], place);
            most = most.max(part.most);
            let (accepts, node) = match part.node {
                Node::Box(plan) => {
                    add(&mut out, box_outputs(&plan, plan.accepts));
                    (plan.accepts, Node::Box(plan))
                }
                Node::Filter(plan) if !fields_of(plan.pattern).is_empty() => {
                    add(&mut out, filter_outputs(&plan, plan.pattern));
                    (plan.pattern, Node::Filter(plan))
                }
                node => {
                    add(&mut out, part.shapes);
                    let node = if matches!(node, Node::Net(..)) { node } else { self.named(node) };
                    (accepts, node)
                }
            };
            branches.push(Branch { accepts: vec![accepts], node });
        }
        let takes = |s: &Shape| branches.iter().any(|branch| s.is_subtype_of(branch.accepts[0]));
        let left: Vec<Shape> = shapes.iter().copied().filter(|s| !takes(s)).collect();
        if !left.is_empty() || branches.len() < 2 {
            add(&mut out, left);
            branches.push(pass(&bound));
        }
        // Labels that boxes and filters cannot take remain.
        let counts = without(shapes[0], &[fields(), tags(), bound].concat());
        let out = out.into_iter().map(|s| with(s, counts.labels())).collect();
        Part { node: self.parallel(dice, branches), shapes: out, most }
    }

    /// Builds a counter of rounds: its tag, and the filters that set and decrement it.
    fn counter(
        &self,
        dice: &mut Dice<'_>,
        name: &str,
        shapes: &[Shape],
        place: Place,
    ) -> (Label, Node, Node, Node) {
        let (count, bound) = (tag(&format!("{name}{}", place.depth)), bound(shapes));
        let from = dice.pick(&tags());
        let rounds = dice.below(ROUNDS_MAX as usize + 1) as i32;
        let (takes, sets) =
            if !self.merging() && shapes.iter().all(|s| s.contains(from)) && dice.once_in(2) {
                let rounds = Box::new(compare(Binary::Remainder, from, ROUNDS_MAX as i32 + 1));
                let rounds = Expression::Unary(Unary::Abs, rounds);
                (vec![from], vec![(from, Expression::Tag(from)), (count, rounds)])
            } else {
                (Vec::new(), vec![(count, Expression::Number(rounds))])
            };
        let down = assign(&[count], &bound, &[(count, compare(Binary::Minus, count, 1))]);
        (count, assign(&takes, &bound, &sets), down, assign(&[count], &bound, &[]))
    }

    /// Builds a loop body whose outputs all match its input.
    fn round(
        &mut self,
        dice: &mut Dice<'_>,
        genes: &[Gene],
        shapes: &[Shape],
        down: Node,
        place: Place,
    ) -> (Node, u32) {
        let keep_unique = place.unique && dice.once_in(2);
        let budget =
            (1..=place.budget).rev().find(|b| b.pow(ROUNDS_MAX) <= place.budget).unwrap_or(1);
        let budget = if keep_unique { 1 } else { budget };
        let inside = Place { budget, unique: keep_unique, depth: place.depth + 1, ..place };
        let part = self.serial(genes, shapes, inside);
        let mut nodes = vec![part.node];
        nodes.extend(self.restore(dice, &part.shapes, shapes));
        // The counter decrements first or last, so that the body can end in a choice or a cell.
        nodes.insert(if dice.once_in(2) { 0 } else { nodes.len() }, down);
        (in_series(nodes), part.most.pow(ROUNDS_MAX))
    }

    fn star(
        &mut self,
        dice: &mut Dice<'_>,
        genes: &[Gene],
        shapes: &[Shape],
        place: Place,
    ) -> Part {
        let bound = bound(shapes);
        let (count, set, down, clear) = self.counter(dice, "N", shapes, place);
        let inside: Vec<Shape> = shapes.iter().map(|s| with(*s, &[count])).collect();
        let exit = shape(bound.iter().copied().chain([count]));
        let mut exits =
            vec![Guarded { shape: exit, guard: Some(compare(Binary::LessEqual, count, 0)) }];
        while exits.len() < EXITS_MAX && dice.once_in(3) {
            let of = dice.pick(shapes);
            let labels = [dice.some(&free(of), 1), bound.clone()].concat();
            let tags = tags_in(&labels);
            let guard = (!tags.is_empty()).then(|| match dice.pick(&tags) {
                // The expression has no value if the tag is 0. It is not used where a failed record
                // would leave a cell without a partner.
                tag if !self.merging() && dice.once_in(3) => {
                    let four = Box::new(Expression::Number(4));
                    let part =
                        Expression::Binary(Binary::Divide, four, Box::new(Expression::Tag(tag)));
                    Expression::Binary(
                        Binary::Greater,
                        Box::new(part),
                        Box::new(Expression::Number(2)),
                    )
                }
                tag => compare(Binary::Greater, tag, 2),
            });
            exits.push(Guarded { shape: shape(labels), guard });
        }
        let deterministic = self.deterministic(dice);
        let (operand, most) = self.round(dice, genes, &inside, down, place);
        let star = Node::Star(Arc::new(StarPlan { deterministic, operand, exits }));
        let star =
            if dice.once_in(5) { Node::Place(Arc::new(star), dice.below(4) as u32) } else { star };
        Part { node: in_series(vec![set, star, clear]), shapes: shapes.to_vec(), most }
    }

    fn feedback(
        &mut self,
        dice: &mut Dice<'_>,
        genes: &[Gene],
        shapes: &[Shape],
        place: Place,
    ) -> Part {
        let (count, set, down, clear) = self.counter(dice, "F", shapes, place);
        let inside: Vec<Shape> = shapes.iter().map(|s| with(*s, &[count])).collect();
        let again = shape(bound(shapes).into_iter().chain([count]));
        let patterns =
            vec![Guarded { shape: again, guard: Some(compare(Binary::Greater, count, 0)) }];
        let place = Place { unique: false, looped: true, ..place };
        let (operand, most) = self.round(dice, genes, &inside, down, place);
        let feedback = Node::Feedback(Arc::new(FeedbackPlan { operand, patterns }));
        Part { node: in_series(vec![set, feedback, clear]), shapes: shapes.to_vec(), most }
    }

    fn split(
        &mut self,
        dice: &mut Dice<'_>,
        genes: &[Gene],
        shapes: &[Shape],
        place: Place,
    ) -> Part {
        let bound = bound(shapes);
        let by = match dice.below(3) {
            0 => dice.pick(&tags()),
            1 if bound.is_empty() => tags()[0],
            _ => binding(),
        };
        let mut nodes = Vec::new();
        let mut shapes = shapes.to_vec();
        if by == binding() && bound.is_empty() {
            let part = self.bind(dice, &shapes);
            nodes.push(part.node);
            shapes = part.shapes;
        } else if !shapes.iter().all(|s| s.contains(by)) {
            nodes.push(assign(&[], &bound, &[(by, Expression::Number(dice.below(3) as i32))]));
            shapes = shapes.iter().map(|s| with(*s, &[by])).collect();
        }
        let (deterministic, placed) = (self.deterministic(dice), dice.once_in(4));
        let part = self.serial(genes, &shapes, place);
        nodes.push(Node::Split(Arc::new(SplitPlan {
            deterministic,
            placed,
            operand: part.node,
            tag: by,
        })));
        Part { node: in_series(nodes), shapes: part.shapes, most: part.most }
    }

    fn join(
        &mut self,
        dice: &mut Dice<'_>,
        genes: &[Gene],
        shapes: &[Shape],
        place: Place,
    ) -> Part {
        let side = tag(&format!("J{}", place.depth));
        let before = bound(shapes);
        let copies = [0, 1].map(|n| {
            let kept = before.iter().map(|label| (*label, Source::Label(*label)));
            let entries = kept.chain([(side, Source::Value(Expression::Number(n)))]).collect();
            OutputPlan { entries }
        });
        let fork = filter(shape(before.iter().copied()), vec![(None, copies.into())]);
        let forked: Vec<Shape> = shapes.iter().map(|s| with(*s, &[side])).collect();
        let inside =
            Place { lossless: true, budget: 1, unique: false, depth: place.depth + 1, ..place };
        let part = self.serial(genes, &forked, inside);
        let after = bound(&part.shapes);
        let shared =
            free(part.shapes[0]).into_iter().filter(|l| part.shapes.iter().all(|s| s.contains(*l)));
        let shared: Vec<Label> = shared.collect();
        let pattern = |n, labels: Vec<Label>| Guarded {
            shape: shape(labels.into_iter().chain([side]).chain(after.iter().copied())),
            guard: Some(compare(Binary::Equal, side, n)),
        };
        let patterns = vec![pattern(0, Vec::new()), pattern(1, dice.some(&shared, 0))];
        let cell = Node::Sync(Arc::new(SyncPlan { patterns }));
        let clear = assign(&[side], &after, &[]);
        let operand = in_series(vec![fork, part.node, cell, clear]);
        let deterministic = self.deterministic(dice);
        let node = Node::Split(Arc::new(SplitPlan {
            deterministic,
            placed: false,
            operand,
            tag: number(),
        }));
        let shapes = part.shapes.iter().map(|s| without(*s, &[side])).collect();
        Part { node, shapes, most: if place.unique { 1 } else { 2 } }
    }
}

/// Builds an expression that always has a value.
fn sum(dice: &mut Dice<'_>, tags: &[Label]) -> Expression {
    let number = dice.below(4) as i32;
    if tags.is_empty() {
        Expression::Number(number)
    } else {
        compare(Binary::Plus, dice.pick(tags), number)
    }
}
