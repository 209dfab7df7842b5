//! Code: a plan made ready to run. Functions stand beside their boxes, and each entity has a table of its ways, which all
//! its replicas share.

use std::collections::HashMap;
use std::sync::Arc;

use super::choose::ChooseCode;
use super::filter::FilterCode;
use super::function::BoxCode;
use super::guard::Guards;
use super::synchrocell::SyncCode;
use crate::body::BoxBody;
use crate::label::Label;
use crate::plan::{self, Node};

/// A part of a network, ready to run.
#[derive(Clone)]
pub(crate) enum Code {
    Identity,
    Box(Arc<BoxCode>),
    Filter(Arc<FilterCode>),
    Sync(Arc<SyncCode>),
    Serial(Arc<[Code]>),
    Choose(Arc<ChooseCode>),
    Star(Arc<StarCode>),
    Split(Arc<SplitCode>),
    Feedback(Arc<FeedbackCode>),
    Place(Arc<Code>, u32),
    Net(Arc<str>, Arc<Code>),
}

/// A star.
pub(crate) struct StarCode {
    pub(crate) deterministic: bool,
    pub(crate) operand: Code,
    pub(crate) inline: bool,
    /// Whether stages keep nothing, so that one is like the other.
    pub(crate) stateless: bool,
    pub(crate) exits: Guards,
    /// The choice that the operand ends with, if its collector, which stands before the next stage, may take streams over.
    pub(crate) tail: Option<Arc<ChooseCode>>,
}

/// A split.
pub(crate) struct SplitCode {
    pub(crate) deterministic: bool,
    pub(crate) placed: bool,
    pub(crate) operand: Code,
    pub(crate) inline: bool,
    /// Whether replicas keep nothing, so that an idle one may go.
    pub(crate) stateless: bool,
    pub(crate) tag: Label,
}

/// A feedback.
pub(crate) struct FeedbackCode {
    pub(crate) operand: Code,
    pub(crate) inline: bool,
    pub(crate) again: Guards,
}

impl Code {
    /// Whether it needs no task of its own: it makes what it makes of a record at once, in the task that has the record.
    /// All but boxes do little; a stream costs more than they.
    pub(crate) fn inline(&self) -> bool {
        match self {
            Code::Identity | Code::Filter(_) | Code::Sync(_) => true,
            Code::Box(_) => false,
            Code::Serial(parts) => parts.iter().all(Code::inline),
            Code::Choose(c) => c.inline,
            Code::Star(s) => s.inline,
            Code::Split(s) => s.inline,
            Code::Feedback(f) => f.inline,
            Code::Place(inner, _) | Code::Net(_, inner) => inner.inline(),
        }
    }

    /// How many boxes it has, if it is a chain, and all of them are known to be cheap.
    pub(crate) fn cheap_boxes(&self) -> Option<usize> {
        match self {
            Code::Box(code) => code.is_cheap().then_some(1),
            Code::Serial(parts) => parts.iter().map(Code::cheap_boxes).sum(),
            Code::Net(_, inner) => inner.cheap_boxes(),
            _ => self.inline().then_some(0),
        }
    }

    /// How deep it is nested.
    pub(crate) fn depth(&self) -> usize {
        1 + match self {
            Code::Identity | Code::Filter(_) | Code::Sync(_) | Code::Box(_) => 0,
            Code::Serial(parts) => parts.iter().map(Code::depth).max().unwrap_or(0),
            Code::Choose(c) => c.branches.iter().map(Code::depth).max().unwrap_or(0),
            Code::Star(s) => s.operand.depth(),
            Code::Split(s) => s.operand.depth(),
            Code::Feedback(f) => f.operand.depth(),
            Code::Place(inner, _) => inner.depth(),
            Code::Net(_, inner) => inner.depth(),
        }
    }

    /// The choice that it ends with.
    fn tail(&self) -> Option<&Arc<ChooseCode>> {
        match self {
            Code::Choose(choose) => Some(choose),
            Code::Serial(parts) => parts.last()?.tail(),
            // Not out of a net, which may be watched.
            _ => None,
        }
    }

    /// Whether each record that it takes comes out as it is.
    pub(crate) fn passes(&self) -> bool {
        match self {
            Code::Identity => true,
            Code::Filter(filter) => filter.passes(),
            Code::Serial(parts) => parts.iter().all(Code::passes),
            _ => false,
        }
    }

    /// Whether it keeps nothing from one record to the next.
    pub(crate) fn stateless(&self) -> bool {
        match self {
            Code::Identity | Code::Filter(_) | Code::Box(_) => true,
            Code::Sync(_) => false,
            Code::Serial(parts) => parts.iter().all(Code::stateless),
            Code::Choose(c) => c.branches.iter().all(Code::stateless),
            Code::Star(s) => s.stateless,
            Code::Split(s) => s.stateless,
            Code::Feedback(f) => f.operand.stateless(),
            Code::Place(inner, _) | Code::Net(_, inner) => inner.stateless(),
        }
    }
}

/// Makes code of plans. What a plan shares, the code shares.
pub(crate) struct Coder<'a> {
    bodies: &'a HashMap<*const plan::BoxPlan, Arc<dyn BoxBody>>,
    made: HashMap<*const (), Code>,
}

impl<'a> Coder<'a> {
    /// With the functions of all boxes, by the place of their plan.
    pub(crate) fn new(bodies: &'a HashMap<*const plan::BoxPlan, Arc<dyn BoxBody>>) -> Self {
        Coder { bodies, made: HashMap::new() }
    }

    pub(crate) fn code(&mut self, node: &Node) -> Code {
        match node {
            Node::Identity => Code::Identity,
            Node::Box(plan) => self.once(plan, |coder| {
                Code::Box(Arc::new(BoxCode::new(plan.clone(), coder.bodies[&Arc::as_ptr(plan)].clone())))
            }),
            Node::Filter(plan) => self.once(plan, |_| Code::Filter(Arc::new(FilterCode::new(plan.clone())))),
            Node::Sync(plan) => self.once(plan, |_| Code::Sync(Arc::new(SyncCode::new(plan)))),
            Node::Serial(parts) => Code::Serial(parts.iter().map(|part| self.code(part)).collect()),
            Node::Parallel(plan) => self.once(plan, |coder| {
                let branches = plan.branches.iter().map(|b| coder.code(&b.node)).collect();
                Code::Choose(Arc::new(ChooseCode::new(plan.clone(), branches)))
            }),
            Node::Star(plan) => self.once(plan, |coder| {
                let operand = coder.code(&plan.operand);
                let stateless = operand.stateless();
                Code::Star(Arc::new(StarCode {
                    deterministic: plan.deterministic,
                    inline: operand.inline(),
                    stateless,
                    // Without cells no stage comes to nothing.
                    tail: operand.tail().filter(|choose| choose.adopts() && !stateless).cloned(),
                    operand,
                    exits: Guards::new(&plan.exits),
                }))
            }),
            Node::Split(plan) => self.once(plan, |coder| {
                let operand = coder.code(&plan.operand);
                Code::Split(Arc::new(SplitCode {
                    deterministic: plan.deterministic,
                    placed: plan.placed,
                    inline: operand.inline(),
                    stateless: operand.stateless(),
                    operand,
                    tag: plan.tag,
                }))
            }),
            Node::Feedback(plan) => self.once(plan, |coder| {
                let operand = coder.code(&plan.operand);
                Code::Feedback(Arc::new(FeedbackCode {
                    inline: operand.inline(),
                    operand,
                    again: Guards::new(&plan.patterns),
                }))
            }),
            Node::Place(inner, place) => {
                Code::Place(Arc::new(self.once(inner, |coder| coder.code(inner))), *place)
            }
            Node::Net(name, inner) => {
                Code::Net(name.clone(), Arc::new(self.once(inner, |coder| coder.code(inner))))
            }
        }
    }

    fn once<T>(&mut self, plan: &Arc<T>, make: impl FnOnce(&mut Self) -> Code) -> Code {
        let place = Arc::as_ptr(plan).cast::<()>();
        if let Some(code) = self.made.get(&place) {
            return code.clone();
        }
        let code = make(self);
        self.made.insert(place, code.clone());
        code
    }
}
