//! Code: an executable plan. Boxes have their functions, and each entity has a table of routes that
//! all its replicas share.

use std::collections::HashMap;
use std::sync::Arc;

use super::choose::ChooseCode;
use super::context::Context;
use super::filter::FilterCode;
use super::function::BoxCode;
use super::guard::Guards;
use super::synchrocell::SyncCode;
use crate::body::BoxBody;
use crate::label::Label;
use crate::plan::{self, Node};

/// Executable part of a network.
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
    Place(Arc<PlaceCode>),
    Net(Arc<str>, Arc<Code>),
}

/// Executable star.
pub(crate) struct StarCode {
    pub(crate) deterministic: bool,
    pub(crate) operand: Code,
    pub(crate) inline: bool,
    /// Whether stages are stateless, so that all are equal.
    pub(crate) stateless: bool,
    pub(crate) exits: Guards,
    /// Choice at the end of the operand, if its collector, which precedes the next stage, may adopt
    /// streams.
    pub(crate) tail: Option<Arc<ChooseCode>>,
}

/// Executable part with a place.
pub(crate) struct PlaceCode {
    pub(crate) operand: Code,
    /// Number of the worker, or of the rank in a run on several ranks.
    pub(crate) place: u32,
    /// Number of the operand in [`Coder::parts`].
    pub(crate) part: u32,
}

/// Executable split.
pub(crate) struct SplitCode {
    pub(crate) deterministic: bool,
    pub(crate) operand: Code,
    pub(crate) inline: bool,
    /// Whether replicas are stateless, so that an idle one can be removed.
    pub(crate) stateless: bool,
    pub(crate) tag: Label,
    /// Number of the operand in [`Coder::parts`], if the split places its replicas.
    pub(crate) part: Option<u32>,
}

/// Executable feedback.
pub(crate) struct FeedbackCode {
    pub(crate) operand: Code,
    pub(crate) inline: bool,
    pub(crate) again: Guards,
}

impl Code {
    /// Whether the code runs in the task that holds the record, without its own task. This applies
    /// to everything except boxes, because a stream costs more than they do.
    pub(crate) fn inline(&self) -> bool {
        match self {
            Code::Identity | Code::Filter(_) | Code::Sync(_) => true,
            Code::Box(_) => false,
            Code::Serial(parts) => parts.iter().all(Code::inline),
            Code::Choose(c) => c.inline,
            Code::Star(s) => s.inline,
            Code::Split(s) => s.inline,
            Code::Feedback(f) => f.inline,
            Code::Place(p) => p.operand.inline(),
            Code::Net(_, inner) => inner.inline(),
        }
    }

    /// Number of boxes of a chain, if all of them are known to be cheap.
    pub(crate) fn cheap_boxes(&self) -> Option<usize> {
        match self {
            Code::Box(code) => code.is_cheap().then_some(1),
            Code::Serial(parts) => parts.iter().map(Code::cheap_boxes).sum(),
            Code::Net(_, inner) => inner.cheap_boxes(),
            _ => self.inline().then_some(0),
        }
    }

    /// Name of the first box or net.
    pub(crate) fn name(&self) -> Option<&str> {
        match self {
            Code::Identity | Code::Filter(_) | Code::Sync(_) => None,
            Code::Box(code) => Some(&code.name),
            Code::Serial(parts) => parts.iter().find_map(Code::name),
            Code::Choose(c) => c.branches.iter().find_map(Code::name),
            Code::Star(s) => s.operand.name(),
            Code::Split(s) => s.operand.name(),
            Code::Feedback(f) => f.operand.name(),
            Code::Place(p) => p.operand.name(),
            Code::Net(name, _) => Some(name),
        }
    }

    /// Depth of nesting.
    pub(crate) fn depth(&self) -> usize {
        1 + match self {
            Code::Identity | Code::Filter(_) | Code::Sync(_) | Code::Box(_) => 0,
            Code::Serial(parts) => parts.iter().map(Code::depth).max().unwrap_or(0),
            Code::Choose(c) => c.branches.iter().map(Code::depth).max().unwrap_or(0),
            Code::Star(s) => s.operand.depth(),
            Code::Split(s) => s.operand.depth(),
            Code::Feedback(f) => f.operand.depth(),
            Code::Place(p) => p.operand.depth(),
            Code::Net(_, inner) => inner.depth(),
        }
    }

    /// Choice at the end of the code.
    fn tail(&self) -> Option<&Arc<ChooseCode>> {
        match self {
            Code::Choose(choose) => Some(choose),
            Code::Serial(parts) => parts.last()?.tail(),
            Code::Net(_, inner) => inner.tail(),
            _ => None,
        }
    }

    /// Whether a net that contains the choice of [`tail`](Self::tail) has an observer. Such a stage
    /// remains: the line has further steps after the choice.
    pub(crate) fn tail_is_watched(&self, context: &Context) -> bool {
        match self {
            Code::Serial(parts) => parts.last().is_some_and(|part| part.tail_is_watched(context)),
            Code::Net(name, inner) => context.is_watched(name) || inner.tail_is_watched(context),
            _ => false,
        }
    }

    /// Whether each accepted record passes unchanged, and without an observer.
    pub(crate) fn passes(&self, context: &Context) -> bool {
        match self {
            Code::Identity => true,
            Code::Filter(filter) => filter.passes(),
            Code::Serial(parts) => parts.iter().all(|part| part.passes(context)),
            Code::Net(name, inner) => !context.is_watched(name) && inner.passes(context),
            _ => false,
        }
    }

    /// Whether the code keeps no state between records.
    pub(crate) fn stateless(&self) -> bool {
        match self {
            Code::Identity | Code::Filter(_) | Code::Box(_) => true,
            Code::Sync(_) => false,
            Code::Serial(parts) => parts.iter().all(Code::stateless),
            Code::Choose(c) => c.branches.iter().all(Code::stateless),
            Code::Star(s) => s.stateless,
            Code::Split(s) => s.stateless,
            Code::Feedback(f) => f.operand.stateless(),
            Code::Place(p) => p.operand.stateless(),
            Code::Net(_, inner) => inner.stateless(),
        }
    }
}

/// Compiler of plans to code. Parts that a plan shares become shared code.
pub(crate) struct Coder<'a> {
    bodies: &'a HashMap<*const plan::BoxPlan, Arc<dyn BoxBody>>,
    made: HashMap<*const (), Code>,
    /// Parts that the program places, in the order of the program. All ranks of a run have the same
    /// program, so a number names the same part on each of them.
    parts: Vec<Code>,
}

impl<'a> Coder<'a> {
    /// Creates a compiler with the functions of all boxes, by the address of their plan.
    pub(crate) fn new(bodies: &'a HashMap<*const plan::BoxPlan, Arc<dyn BoxBody>>) -> Self {
        Coder { bodies, made: HashMap::new(), parts: Vec::new() }
    }

    pub(crate) fn code(&mut self, node: &Node) -> Code {
        match node {
            Node::Identity => Code::Identity,
            Node::Box(plan) => self.once(plan, |coder| {
                Code::Box(Arc::new(BoxCode::new(
                    plan.clone(),
                    coder.bodies[&Arc::as_ptr(plan)].clone(),
                )))
            }),
            Node::Filter(plan) => {
                self.once(plan, |_| Code::Filter(Arc::new(FilterCode::new(plan.clone()))))
            }
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
                    // Only stages with synchrocells become the identity.
                    tail: operand.tail().filter(|choose| choose.adopts() && !stateless).cloned(),
                    operand,
                    exits: Guards::new(&plan.exits),
                }))
            }),
            Node::Split(plan) => self.once(plan, |coder| {
                let operand = coder.code(&plan.operand);
                Code::Split(Arc::new(SplitCode {
                    part: plan.placed.then(|| coder.part(&operand)),
                    deterministic: plan.deterministic,
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
                let operand = self.once(inner, |coder| coder.code(inner));
                let part = self.part(&operand);
                Code::Place(Arc::new(PlaceCode { operand, place: *place, part }))
            }
            Node::Net(name, inner) => {
                Code::Net(name.clone(), Arc::new(self.once(inner, |coder| coder.code(inner))))
            }
        }
    }

    /// Numbers a part with a place.
    fn part(&mut self, operand: &Code) -> u32 {
        self.parts.push(operand.clone());
        (self.parts.len() - 1) as u32
    }

    /// Parts that the program places, by their numbers.
    pub(crate) fn parts(self) -> Arc<[Code]> {
        self.parts.into()
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
