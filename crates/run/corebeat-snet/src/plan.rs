//! A checked net: every name resolved, every type known. This is what runs, and what is drawn.

use std::collections::HashSet;
use std::sync::Arc;

use crate::ast::Body;
use crate::expression::{Expression, NoValue};
use crate::label::{Kind, Label};
use crate::record::Record;
use crate::shape::Shape;

/// A net: one that [`check`](crate::check()) found sound, or one made by hand.
#[derive(Clone, Debug)]
pub struct Net {
    pub(crate) name: String,
    pub(crate) root: Node,
    pub(crate) input: Vec<Shape>,
    pub(crate) output: Vec<Shape>,
    /// All that are in `root`, each once.
    pub(crate) boxes: Vec<Arc<BoxPlan>>,
}

impl Net {
    /// A net made by hand, which nobody has checked. Its boxes are found in it.
    pub fn new(name: &str, root: Node, input: Vec<Shape>, output: Vec<Shape>) -> Net {
        let mut boxes = Vec::new();
        root.gather(&mut boxes, &mut HashSet::new());
        Net { name: name.into(), root, input, output, boxes }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it does.
    pub fn root(&self) -> &Node {
        &self.root
    }

    /// What records it takes: what it declares, or else what was inferred.
    pub fn input(&self) -> &[Shape] {
        &self.input
    }

    /// What may come out for records of exactly those shapes: more labels come through by flow inheritance.
    pub fn output(&self) -> &[Shape] {
        &self.output
    }

    /// The boxes in it, each once, in the order they are written.
    pub fn boxes(&self) -> &[Arc<BoxPlan>] {
        &self.boxes
    }
}

/// A part of a net: it takes records on one stream and puts records on one.
#[derive(Clone, Debug)]
pub enum Node {
    /// Passes all on: `[]`.
    Identity,
    /// Calls a function for each record.
    Box(Arc<BoxPlan>),
    /// Adds, removes, renames and copies labels, computes with tags.
    Filter(Arc<FilterPlan>),
    /// Keeps a record for each pattern, until it can make one of all; from then on passes all on.
    Sync(Arc<SyncPlan>),
    /// One after the other; two or more, none of them serial.
    Serial(Vec<Node>),
    /// One of several for each record: the one that says most of it.
    Parallel(Arc<ParallelPlan>),
    /// One after the other for ever, until a record may leave.
    Star(Arc<StarPlan>),
    /// One for each value of a tag.
    Split(Arc<SplitPlan>),
    /// Once more for some of what comes out.
    Feedback(Arc<FeedbackPlan>),
    /// On a worker of its own choice.
    Place(Arc<Node>, u32),
    /// A net inside, by its name.
    Net(Arc<str>, Arc<Node>),
}

impl Node {
    /// The boxes that are in it and were not met. What is shared is looked at once.
    fn gather(&self, boxes: &mut Vec<Arc<BoxPlan>>, met: &mut HashSet<*const ()>) {
        fn is_new<T>(plan: &Arc<T>, met: &mut HashSet<*const ()>) -> bool {
            met.insert(Arc::as_ptr(plan).cast())
        }
        match self {
            Node::Box(plan) if is_new(plan, met) => boxes.push(plan.clone()),
            Node::Serial(parts) => parts.iter().for_each(|part| part.gather(boxes, met)),
            Node::Parallel(plan) if is_new(plan, met) => {
                plan.branches.iter().for_each(|branch| branch.node.gather(boxes, met))
            }
            Node::Star(plan) if is_new(plan, met) => plan.operand.gather(boxes, met),
            Node::Split(plan) if is_new(plan, met) => plan.operand.gather(boxes, met),
            Node::Feedback(plan) if is_new(plan, met) => plan.operand.gather(boxes, met),
            Node::Place(inner, _) | Node::Net(_, inner) if is_new(inner, met) => inner.gather(boxes, met),
            _ => {}
        }
    }
}

/// A box as declared.
#[derive(Debug)]
pub struct BoxPlan {
    /// Its name.
    pub name: String,
    /// What the function takes, in its order; `None` for an initialiser.
    pub input: Option<Vec<BoxEntry>>,
    /// The set of what it takes: what a record must have.
    pub accepts: Shape,
    /// What the function may put out, in its order.
    pub outputs: Vec<Vec<Label>>,
    /// Its code, if it stands in the program.
    pub body: Option<Body>,
}

/// What a box takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoxEntry {
    /// Under this label.
    pub label: Label,
    /// Whether it flows past the box as well, as what the box does not take (`A =`).
    pub passes: bool,
}

/// The box as a program declares it: `foo ((A, <T>) -> (A) | (<T>))`.
impl std::fmt::Display for BoxPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        fn list(
            f: &mut std::fmt::Formatter<'_>,
            labels: &[Label],
            passes: impl Fn(usize) -> bool,
        ) -> std::fmt::Result {
            f.write_str("(")?;
            for (i, label) in labels.iter().enumerate() {
                write!(f, "{}{label}{}", if i == 0 { "" } else { ", " }, if passes(i) { " =" } else { "" })?;
            }
            f.write_str(")")
        }
        write!(f, "{} (", self.name)?;
        if let Some(input) = &self.input {
            let labels: Vec<Label> = input.iter().map(|e| e.label).collect();
            list(f, &labels, |i| input[i].passes)?;
            f.write_str(" ")?;
        }
        f.write_str("-> ")?;
        for (i, output) in self.outputs.iter().enumerate() {
            f.write_str(if i == 0 { "" } else { " | " })?;
            list(f, output, |_| false)?;
        }
        f.write_str(")")
    }
}

/// A filter.
#[derive(Debug)]
pub struct FilterPlan {
    /// What it is chosen by, and what does not flow past.
    pub pattern: Shape,
    /// What is done, by the first condition that holds. The last one has none.
    pub cases: Vec<(Option<Expression>, Vec<OutputPlan>)>,
    /// As written.
    pub text: String,
}

impl FilterPlan {
    /// What a record cannot do without: of the pattern, what an output or a condition uses, and its binding tags. What is only
    /// taken away need not be there.
    pub fn needs(&self) -> Vec<Label> {
        let mut used = HashSet::new();
        let mut see = |label| {
            used.insert(label);
        };
        for (condition, outputs) in &self.cases {
            for (_, source) in outputs.iter().flat_map(|output| &output.entries) {
                match source {
                    Source::Label(label) => see(*label),
                    Source::Value(expression) => expression.tags(&mut see),
                }
            }
            if let Some(condition) = condition {
                condition.tags(&mut see);
            }
        }
        let pattern = self.pattern.labels().iter().copied();
        pattern.filter(|l| l.kind() == Kind::BindingTag || used.contains(l)).collect()
    }

    /// Whether records of this shape can go through it, whether or not they have all that it takes away.
    pub fn takes(&self, shape: Shape) -> bool {
        let binding = |l: &&Label| l.kind() == Kind::BindingTag;
        shape.labels().iter().filter(binding).all(|l| self.pattern.contains(*l))
            && self.needs().iter().all(|l| shape.contains(*l))
    }
}

/// One record that a filter puts out.
#[derive(Debug)]
pub struct OutputPlan {
    /// What it gets, each label once; what else flows past comes from the record that went in.
    pub entries: Vec<(Label, Source)>,
}

/// Where a filter takes a value from.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// From this label of the record that went in.
    Label(Label),
    /// A tag that is computed (0 where nothing is said).
    Value(Expression),
}

/// A pattern with a condition.
#[derive(Clone, Debug)]
pub struct Guarded {
    /// What a record must have.
    pub shape: Shape,
    /// What must hold besides.
    pub guard: Option<Expression>,
}

impl Guarded {
    /// Whether a record fits.
    ///
    /// # Errors
    ///
    /// When the condition has no value.
    pub fn fits(&self, record: &Record) -> Result<bool, NoValue> {
        if !record.shape().is_subtype_of(self.shape) {
            return Ok(false);
        }
        match &self.guard {
            Some(guard) => Ok(guard.value(record)? != 0),
            None => Ok(true),
        }
    }
}

/// As written: `{A} if <T == 3>`.
impl std::fmt::Display for Guarded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.guard {
            Some(guard) => write!(f, "{} if <{guard}>", self.shape),
            None => write!(f, "{}", self.shape),
        }
    }
}

/// A synchrocell.
#[derive(Debug)]
pub struct SyncPlan {
    /// Two or more.
    pub patterns: Vec<Guarded>,
}

/// Parallel composition.
#[derive(Debug)]
pub struct ParallelPlan {
    /// `||`
    pub deterministic: bool,
    /// Two or more.
    pub branches: Vec<Branch>,
}

impl ParallelPlan {
    /// The branch for records of this shape: the one with the variant that has most labels of those that fit; of equal
    /// ones, the first. `None`: nobody takes them.
    pub fn branch(&self, shape: Shape) -> Option<usize> {
        let mut best: Option<(usize, usize)> = None; // labels, branch
        for (i, branch) in self.branches.iter().enumerate() {
            for variant in branch.accepts.iter().filter(|v| shape.is_subtype_of(**v)) {
                if best.is_none_or(|(labels, _)| variant.len() > labels) {
                    best = Some((variant.len(), i));
                }
            }
        }
        best.map(|(_, branch)| branch)
    }
}

/// One way through a parallel composition.
#[derive(Debug)]
pub struct Branch {
    /// What it takes.
    pub accepts: Vec<Shape>,
    /// What it does.
    pub node: Node,
}

/// Serial replication.
#[derive(Debug)]
pub struct StarPlan {
    /// `**`
    pub deterministic: bool,
    /// What is repeated.
    pub operand: Node,
    /// Whose records leave.
    pub exits: Vec<Guarded>,
}

/// Parallel replication.
#[derive(Debug)]
pub struct SplitPlan {
    /// `!!`
    pub deterministic: bool,
    /// `@`: the value of the tag is the worker it runs on, counted round.
    pub placed: bool,
    /// What there is one of for each value.
    pub operand: Node,
    /// Which value.
    pub tag: Label,
}

/// Feedback.
#[derive(Debug)]
pub struct FeedbackPlan {
    /// What is gone through.
    pub operand: Node,
    /// Whose records go in again.
    pub patterns: Vec<Guarded>,
}
