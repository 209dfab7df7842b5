//! Plans: checked nets with resolved names and inferred types. Networks run plans, and `draw` draws
//! them.

use std::collections::HashSet;
use std::sync::Arc;

use crate::ast::Body;
use crate::expression::{EvaluationError, Expression};
use crate::label::{Kind, Label};
use crate::record::Record;
use crate::shape::Shape;

/// Plan of a net, from [`check`](crate::check()) or built by hand.
#[derive(Clone, Debug)]
pub struct Net {
    pub(crate) name: String,
    pub(crate) root: Node,
    pub(crate) input: Vec<Shape>,
    pub(crate) output: Vec<Shape>,
    /// All boxes in `root`, each once.
    pub(crate) boxes: Vec<Arc<BoxPlan>>,
}

impl Net {
    /// Creates a net without a check. Collects its boxes from `root`.
    pub fn new(name: &str, root: Node, input: Vec<Shape>, output: Vec<Shape>) -> Net {
        let mut boxes = Vec::new();
        root.visit(&mut |node| {
            if let Node::Box(plan) = node {
                boxes.push(plan.clone());
            }
        });
        Net { name: name.into(), root, input, output, boxes }
    }

    /// Name of the net.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Body of the net.
    pub fn root(&self) -> &Node {
        &self.root
    }

    /// Input variants: declared, or else inferred.
    pub fn input(&self) -> &[Shape] {
        &self.input
    }

    /// Possible outputs for records of exactly the input shapes. Additional labels flow through by
    /// flow inheritance.
    pub fn output(&self) -> &[Shape] {
        &self.output
    }

    /// Boxes of the net, each once, in the order of the program.
    pub fn boxes(&self) -> &[Arc<BoxPlan>] {
        &self.boxes
    }
}

/// Part of a net, with one input stream and one output stream.
#[derive(Clone, Debug)]
pub enum Node {
    /// Passes every record on: `[]`.
    Identity,
    /// Calls a function for each record.
    Box(Arc<BoxPlan>),
    /// Adds, removes, renames and copies labels, and computes with tags.
    Filter(Arc<FilterPlan>),
    /// Stores a record for each pattern, merges them, and then passes every record on.
    Sync(Arc<SyncPlan>),
    /// Two or more parts in sequence, none of them serial.
    Serial(Vec<Node>),
    /// Routes each record to the branch with the best match.
    Parallel(Arc<ParallelPlan>),
    /// Unbounded sequence of replicas, until a record matches an exit.
    Star(Arc<StarPlan>),
    /// One replica for each value of a tag.
    Split(Arc<SplitPlan>),
    /// Returns matching outputs to the input.
    Feedback(Arc<FeedbackPlan>),
    /// Runs on a given worker.
    Place(Arc<Node>, u32),
    /// Nested net with its name.
    Net(Arc<str>, Arc<Node>),
}

impl Node {
    /// Parts directly inside of this part, in the order of the program.
    fn parts(&self) -> Vec<&Node> {
        match self {
            Node::Identity | Node::Box(_) | Node::Filter(_) | Node::Sync(_) => Vec::new(),
            Node::Serial(parts) => parts.iter().collect(),
            Node::Parallel(plan) => plan.branches.iter().map(|branch| &branch.node).collect(),
            Node::Star(plan) => vec![&plan.operand],
            Node::Split(plan) => vec![&plan.operand],
            Node::Feedback(plan) => vec![&plan.operand],
            Node::Place(inner, _) | Node::Net(_, inner) => vec![inner],
        }
    }

    /// Calls `visit` for this part and all parts inside of it, in the order of the program. Several
    /// uses of one plan are visited once.
    pub fn visit<'n>(&'n self, visit: &mut impl FnMut(&'n Node)) {
        let (mut open, mut visited) = (vec![self], HashSet::new());
        while let Some(node) = open.pop() {
            let plan: Option<*const ()> = match node {
                Node::Identity | Node::Serial(_) => None,
                Node::Box(plan) => Some(Arc::as_ptr(plan).cast()),
                Node::Filter(plan) => Some(Arc::as_ptr(plan).cast()),
                Node::Sync(plan) => Some(Arc::as_ptr(plan).cast()),
                Node::Parallel(plan) => Some(Arc::as_ptr(plan).cast()),
                Node::Star(plan) => Some(Arc::as_ptr(plan).cast()),
                Node::Split(plan) => Some(Arc::as_ptr(plan).cast()),
                Node::Feedback(plan) => Some(Arc::as_ptr(plan).cast()),
                Node::Place(inner, _) | Node::Net(_, inner) => Some(Arc::as_ptr(inner).cast()),
            };
            if plan.is_none_or(|plan| visited.insert(plan)) {
                visit(node);
                open.extend(node.parts().into_iter().rev());
            }
        }
    }
}

/// Declaration of a box.
#[derive(Debug)]
pub struct BoxPlan {
    /// Name.
    pub name: String,
    /// Arguments of the function in their order. `None` for an initialiser.
    pub input: Option<Vec<BoxEntry>>,
    /// Labels that a record must have.
    pub accepts: Shape,
    /// Output variants, each in its order.
    pub outputs: Vec<Vec<Label>>,
    /// Code in the program, if any.
    pub body: Option<Body>,
}

/// Argument of a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoxEntry {
    /// Label of the argument.
    pub label: Label,
    /// Whether the label also flows past the box (`A =`).
    pub passes: bool,
}

/// Notation of programs: `foo ((A, <T>) -> (A) | (<T>))`.
impl std::fmt::Display for BoxPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        fn list(
            f: &mut std::fmt::Formatter<'_>,
            labels: &[Label],
            passes: impl Fn(usize) -> bool,
        ) -> std::fmt::Result {
            f.write_str("(")?;
            for (i, label) in labels.iter().enumerate() {
                write!(
                    f,
                    "{}{label}{}",
                    if i == 0 { "" } else { ", " },
                    if passes(i) { " =" } else { "" }
                )?;
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

/// Plan of a filter.
#[derive(Debug)]
pub struct FilterPlan {
    /// Labels that select the filter and do not flow past.
    pub pattern: Shape,
    /// Outputs of the first case whose condition holds. The last case has no condition.
    pub cases: Vec<(Option<Expression>, Vec<OutputPlan>)>,
    /// Source text.
    pub text: String,
}

impl FilterPlan {
    /// Labels that a record must have: binding tags of the pattern, and labels that an output or a
    /// condition uses. Labels that the filter only removes are not required.
    pub fn needs(&self) -> Vec<Label> {
        let mut used = HashSet::new();
        let mut add = |label| {
            used.insert(label);
        };
        for (condition, outputs) in &self.cases {
            for (_, source) in outputs.iter().flat_map(|output| &output.entries) {
                match source {
                    Source::Label(label) => add(*label),
                    Source::Value(expression) => expression.tags(&mut add),
                }
            }
            if let Some(condition) = condition {
                condition.tags(&mut add);
            }
        }
        let pattern = self.pattern.labels().iter().copied();
        pattern.filter(|l| l.kind() == Kind::BindingTag || used.contains(l)).collect()
    }

    /// Whether the filter takes records of this shape, with or without the labels that it only
    /// removes.
    pub fn takes(&self, shape: Shape) -> bool {
        let binding = |l: &&Label| l.kind() == Kind::BindingTag;
        shape.labels().iter().filter(binding).all(|l| self.pattern.contains(*l))
            && self.needs().iter().all(|l| shape.contains(*l))
    }
}

/// Output record of a filter.
#[derive(Debug)]
pub struct OutputPlan {
    /// Labels of the record, each once, in addition to labels that flow past.
    pub entries: Vec<(Label, Source)>,
}

/// Source of a value in a filter.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// Label of the input record.
    Label(Label),
    /// Computed tag (0 without an expression).
    Value(Expression),
}

/// Pattern with an optional condition.
#[derive(Clone, Debug)]
pub struct Guarded {
    /// Labels that a record must have.
    pub shape: Shape,
    /// Additional condition.
    pub guard: Option<Expression>,
}

impl Guarded {
    /// Whether a record matches.
    ///
    /// # Errors
    ///
    /// Returns an error if the condition has no value.
    pub fn fits(&self, record: &Record) -> Result<bool, EvaluationError> {
        if !record.shape().is_subtype_of(self.shape) {
            return Ok(false);
        }
        match &self.guard {
            Some(guard) => Ok(guard.value(record)? != 0),
            None => Ok(true),
        }
    }
}

/// Notation of programs: `{A} if <T == 3>`.
impl std::fmt::Display for Guarded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.guard {
            Some(guard) => write!(f, "{} if <{guard}>", self.shape),
            None => write!(f, "{}", self.shape),
        }
    }
}

/// Plan of a synchrocell.
#[derive(Debug)]
pub struct SyncPlan {
    /// Two or more patterns.
    pub patterns: Vec<Guarded>,
}

/// Parallel composition.
#[derive(Debug)]
pub struct ParallelPlan {
    /// `||`
    pub deterministic: bool,
    /// Two or more branches.
    pub branches: Vec<Branch>,
}

impl ParallelPlan {
    /// Returns the branch for records of this shape: the first branch whose matching variant has
    /// the most labels. Returns `None` if no branch takes them.
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

/// Branch of a parallel composition.
#[derive(Debug)]
pub struct Branch {
    /// Input variants.
    pub accepts: Vec<Shape>,
    /// Body of the branch.
    pub node: Node,
}

/// Serial replication.
#[derive(Debug)]
pub struct StarPlan {
    /// `**`
    pub deterministic: bool,
    /// Repeated part.
    pub operand: Node,
    /// Patterns of records that leave.
    pub exits: Vec<Guarded>,
}

/// Parallel replication.
#[derive(Debug)]
pub struct SplitPlan {
    /// `!!`
    pub deterministic: bool,
    /// `@`: the value of the tag selects the worker, modulo their number.
    pub placed: bool,
    /// Replicated part.
    pub operand: Node,
    /// Tag that selects the replica.
    pub tag: Label,
}

/// Feedback.
#[derive(Debug)]
pub struct FeedbackPlan {
    /// Body of the loop.
    pub operand: Node,
    /// Patterns of records that return.
    pub patterns: Vec<Guarded>,
}
