//! Search plans: the order in which the elements of a pattern are matched.
//!
//! A plan begins with a scan of the nodes of some type, and follows edges from nodes that are
//! bound. The planner tries each node as the start, and then adds the edge that leads to the fewest
//! partial matches, as in Veit Batz, Kroll, Geiß, *A First Experimental Evaluation of Search Plan
//! Driven Graph Pattern Matching*, 2008. The estimates come from [`Statistics`] and from a sample
//! of nodes on which the conditions are evaluated.

use crate::expression::Expression;
use crate::graph::Graph;
use crate::matcher::Matcher;
use crate::rule::{Binding, ELEMENTS_MAX, EdgeSlot, Matching, NONE, NodeSlot, Part, Rule, Slot};
use crate::schema::{EdgeType, NodeType};
use crate::statistics::Statistics;
use crate::store::{Direction, Store};
use corebeat_cypher::syntax::Operator;
use std::fmt::Write;
use std::sync::Arc;

/// Number of nodes on which a condition is evaluated to estimate how often it is true.
const SAMPLE_MAX: usize = 64;
/// Share of elements for which a condition is assumed to be true that cannot be sampled.
const UNKNOWN_SHARE: f64 = 0.3;
/// The same for an equality.
const EQUAL_SHARE: f64 = 0.1;
/// The same for the order of two elements of a symmetric pattern.
const ORDERED_SHARE: f64 = 0.5;
/// Smallest share that a sample yields: a condition that is false for the whole sample may be true
/// for other nodes.
const SHARE_MIN: f64 = 0.5 / SAMPLE_MAX as f64;
/// Number of plans that a graph keeps, besides those of the rules of one run.
const PLANS_MAX: usize = 256;
/// Assumed number of edges of a path, where the pattern allows more.
const PATH_LENGTH: u32 = 3;

/// The requirements of a node that a step binds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Admit {
    /// By number of the type; `None` admits all types.
    pub(crate) types: Option<Box<[bool]>>,
    /// Slots of nodes from which the node must differ.
    pub(crate) distinct: Box<[Slot]>,
}

/// One or two lists of edges per edge type.
pub(crate) type Lists = Box<[(EdgeType, Direction)]>;

/// A step of a plan.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// Binds a node of some types. The first step of a plan is a scan.
    Scan { slot: Slot, types: Box<[NodeType]>, admit: Admit },
    /// Checks the type of a node that an outer part has bound.
    Require { slot: Slot, admit: Admit },
    /// Binds an edge of a bound node, and the node at its other end.
    Extend { from: Slot, edge: Slot, to: Slot, lists: Lists, admit: Admit, distinct: Box<[Slot]> },
    /// Binds an edge between two bound nodes.
    Join { from: Slot, edge: Slot, to: Slot, lists: Lists, distinct: Box<[Slot]> },
    /// Follows paths from a bound node. Binds the node at the end, or compares it.
    Path {
        from: Slot,
        /// Stands for the edges of the path, which it does not bind.
        edge: Slot,
        to: Slot,
        is_bound: bool,
        lists: Lists,
        length: (u32, u32),
        admit: Admit,
        distinct: Box<[Slot]>,
    },
    /// Requires that an edge is on none of these paths.
    Apart { edge: Slot, paths: Box<[Slot]> },
    /// Checks a condition.
    Filter(Expression),
    /// Requires that the number of the first element is at most that of the second: of symmetric
    /// matches, only one is found.
    Order(Slot, Slot),
    /// Requires that a match is the least of those that are symmetric to it.
    Least,
    /// Matches an optional part.
    Optional(usize),
}

/// A step, and the expected number of partial matches after it.
#[derive(Debug, Clone)]
pub(crate) struct Planned {
    pub(crate) step: Step,
    pub(crate) expected: f64,
}

/// The steps of all parts of a rule.
#[derive(Debug, Clone, Default)]
pub(crate) struct Plan {
    pub(crate) main: Vec<Planned>,
    pub(crate) optional: Vec<Vec<Planned>>,
    pub(crate) exists: Vec<Vec<Planned>>,
    /// The numbers for which the plan was computed.
    size: Size,
}

/// Growth or shrinkage of a graph, or of the elements of a type, after which plans are computed
/// again.
const DRIFT: u64 = 2;
/// A type with fewer elements counts as one with so many: new plans for few elements save no time.
const FEW: u64 = 64;

/// Numbers of nodes and edges, altogether and by type.
#[derive(Debug, Clone, Default)]
struct Size {
    all: [u64; 2],
    nodes: Vec<u64>,
    edges: Vec<u64>,
}

impl Size {
    fn of(graph: &Graph) -> Size {
        let schema = graph.schema();
        Size {
            all: [graph.node_count(), graph.edge_count()],
            nodes: schema.node_types().map(|of| graph.node_count_of(of)).collect(),
            edges: schema.edge_types().map(|of| graph.edge_count_of(of)).collect(),
        }
    }

    fn is_close(&self, other: &Size) -> bool {
        let is_close = |(a, b): (u64, u64)| a / DRIFT <= b && b / DRIFT <= a;
        let few = |count: &u64| *count.max(&FEW);
        // A new type of edges changes no plan.
        let nodes = self.nodes.iter().zip(&other.nodes);
        let mut types = nodes.chain(self.edges.iter().zip(&other.edges));
        self.nodes.len() == other.nodes.len()
            && self.all.into_iter().zip(other.all).all(is_close)
            && types.all(|(own, other)| is_close((few(own), few(other))))
    }
}

impl Graph {
    /// Discards plans before a run with these rules: those of other rules if there are too many,
    /// and all before a run with a seed, which must repeat on an equal graph.
    pub(crate) fn discard_plans(&mut self, rules: &[Rule], has_seed: bool) {
        if has_seed {
            self.plans.clear();
        } else if self.plans.len() + rules.len() > PLANS_MAX {
            self.plans.retain(|id, _| rules.iter().any(|rule| rule.id == *id));
        }
    }

    /// The plan of a rule: that of its last application, if the graph still has about that size.
    pub(crate) fn plan(&mut self, rule: &Rule) -> Arc<Plan> {
        if let Some(plan) = self.plans.get(&rule.id).filter(|plan| plan.fits(self)) {
            return plan.clone();
        }
        let plan = Arc::new(Plan::new(self, rule));
        self.plans.insert(rule.id, plan.clone());
        plan
    }
}

impl Plan {
    /// The types of the nodes at which searches start; none if the rule has no pattern.
    pub(crate) fn start_types(&self) -> &[NodeType] {
        match self.main.first().map(|planned| &planned.step) {
            Some(Step::Scan { types, .. }) => types,
            _ => &[],
        }
    }

    /// Whether a node exists and is a start.
    pub(crate) fn is_start(&self, store: &Store, node: u32) -> bool {
        store.node_type(node).is_some_and(|of| self.start_types().contains(&of))
    }

    /// Number of starts, at most.
    pub(crate) fn start_limit(&self, store: &Store) -> u32 {
        self.start_types().iter().map(|of| store.member_limit(*of)).sum()
    }

    /// Computes the plan of a rule for a graph.
    pub(crate) fn new(graph: &Graph, rule: &Rule) -> Plan {
        let planner = Planner { graph, rule, statistics: Statistics::new(graph) };
        let mut bound = Vec::new();
        let (mut main, mut rows) = planner.best(&rule.main, &mut bound);
        if !rule.symmetry.pairs().is_empty() {
            main.push(Planned { step: Step::Least, expected: rows });
        }
        let mut optional = Vec::new();
        for (index, part) in rule.optional.iter().enumerate() {
            let (steps, found) = planner.rest(part, &mut bound);
            rows *= found.max(1.0);
            optional.push(steps);
            main.push(Planned { step: Step::Optional(index), expected: rows });
        }
        let exists = rule.exists.iter().map(|part| planner.rest(part, &mut bound.clone()).0);
        Plan { main, optional, exists: exists.collect(), size: Size::of(graph) }
    }

    /// Whether the graph has about the numbers of elements of each type for which the plan was
    /// computed, and the same types of nodes.
    pub(crate) fn fits(&self, graph: &Graph) -> bool {
        self.size.is_close(&Size::of(graph))
    }

    /// All steps. A step that binds a node comes after the steps that begin at this node: the
    /// insides of `EXISTS` come first, and among them the inner ones.
    pub(crate) fn backwards(&self) -> impl Iterator<Item = &Step> {
        let optional = self.optional.iter().rev();
        let parts = self.exists.iter().chain(optional).chain([&self.main]);
        parts.flat_map(|steps| steps.iter().rev()).map(|planned| &planned.step)
    }
}

struct Planner<'a> {
    graph: &'a Graph,
    rule: &'a Rule,
    statistics: Statistics,
}

/// A plan under construction.
struct Draft<'a> {
    part: &'a Part,
    bound: Vec<Slot>,
    steps: Vec<Planned>,
    edges: Vec<&'a EdgeSlot>,
    conditions: Vec<&'a Expression>,
    /// Pairs of slots whose elements are in order.
    pairs: Vec<(Slot, Slot)>,
    rows: f64,
    cost: f64,
}

impl Planner<'_> {
    /// The cheapest plan over all start nodes, and its number of matches.
    fn best(&self, part: &Part, bound: &mut Vec<Slot>) -> (Vec<Planned>, f64) {
        let starts = part.nodes.iter().map(|node| self.finish(part, bound, Some(node)));
        let best = starts.min_by(|a, b| a.cost.total_cmp(&b.cost));
        let draft = best.unwrap_or_else(|| self.finish(part, bound, None));
        *bound = draft.bound;
        (draft.steps, draft.rows)
    }

    /// The plan of a part of which some nodes are bound.
    fn rest(&self, part: &Part, bound: &mut Vec<Slot>) -> (Vec<Planned>, f64) {
        let draft = self.finish(part, bound, None);
        *bound = draft.bound;
        (draft.steps, draft.rows)
    }

    fn finish<'a>(&self, part: &'a Part, bound: &[Slot], start: Option<&NodeSlot>) -> Draft<'a> {
        let mut draft = Draft {
            part,
            bound: bound.iter().copied().chain(part.given.iter().map(|given| given.slot)).collect(),
            steps: Vec::new(),
            edges: part.edges.iter().collect(),
            conditions: part.conditions.iter().collect(),
            pairs: match std::ptr::eq(part, &self.rule.main) {
                true => self.rule.symmetry.pairs().to_vec(),
                false => Vec::new(),
            },
            rows: 1.0,
            cost: 0.0,
        };
        for given in part.given.iter().filter(|given| given.types.is_some()) {
            let admit = self.admit(&draft, given);
            draft.push(Step::Require { slot: given.slot, admit }, 1.0);
        }
        if let Some(start) = start {
            self.scan(&mut draft, start);
        }
        loop {
            self.check(&mut draft);
            let is_unbound = |node: &&NodeSlot| !draft.bound.contains(&node.slot);
            let unbound: Vec<&NodeSlot> = part.nodes.iter().filter(is_unbound).collect();
            if unbound.is_empty() {
                return draft;
            }
            let reachable = draft.edges.iter().enumerate().filter_map(|(index, edge)| {
                let (from, to) = (draft.bound.contains(&edge.from), draft.bound.contains(&edge.to));
                let target = if from && !to { edge.to } else { edge.from };
                (from != to).then(|| (index, self.growth(&draft, edge, target)))
            });
            match reachable.min_by(|a, b| a.1.total_cmp(&b.1)) {
                Some((index, _)) => self.extend(&mut draft, index),
                None => {
                    let size = |node: &NodeSlot| {
                        self.statistics.nodes(node.types.as_deref()) * self.share_of(part, node)
                    };
                    let next = unbound.iter().min_by(|a, b| size(a).total_cmp(&size(b)));
                    if let Some(node) = next {
                        self.scan(&mut draft, node);
                    }
                }
            }
        }
    }

    /// Adds the edges between bound nodes, and the conditions on bound elements.
    fn check(&self, draft: &mut Draft) {
        let is_ready = |draft: &Draft, condition: &Expression| {
            self.rule
                .slots_of(condition)
                .iter()
                .all(|slot| draft.bound.contains(slot) || !self.is_bound_by(draft.part, *slot))
        };
        // Conditions on elements first: a check of an edge costs more.
        loop {
            if let Some(index) = draft.conditions.iter().position(|c| is_ready(draft, c)) {
                let condition = draft.conditions.remove(index);
                let share = self.share(draft.part, condition);
                draft.push(Step::Filter(condition.clone()), share);
                continue;
            }
            let joined = draft.edges.iter().position(|edge| {
                draft.bound.contains(&edge.from) && draft.bound.contains(&edge.to)
            });
            let Some(index) = joined else { break };
            let edge = draft.edges.remove(index);
            let (from, to) = (self.types_of(edge.from), self.types_of(edge.to));
            let pairs = self.statistics.nodes(from) * self.statistics.nodes(to);
            let found = self.statistics.edges(&edge.lists, from, to) / pairs.max(1.0);
            let lists = edge.lists.clone().into();
            let distinct = self.distinct_edges(draft, edge);
            let (from, to) = (edge.from, edge.to);
            let step = match edge.length {
                None => Step::Join { from, edge: edge.slot, to, lists, distinct },
                Some(length) => {
                    let (edge, admit) = (edge.slot, Admit::default());
                    Step::Path { from, edge, to, is_bound: true, lists, length, admit, distinct }
                }
            };
            let apart = self.apart(draft, edge);
            draft.bound.push(edge.slot);
            draft.push(step, found.min(1.0));
            draft.extend(apart);
        }
        // After the edges: the search for a node prepares the edge that the next step joins.
        let bound = &draft.bound;
        let is_bound = |pair: &mut (Slot, Slot)| bound.contains(&pair.0) && bound.contains(&pair.1);
        let pairs: Vec<(Slot, Slot)> = draft.pairs.extract_if(.., is_bound).collect();
        pairs.into_iter().for_each(|(first, second)| {
            draft.push(Step::Order(first, second), ORDERED_SHARE);
        });
    }

    fn scan(&self, draft: &mut Draft, node: &NodeSlot) {
        let admit = Admit { types: None, ..self.admit(draft, node) };
        let types = match &node.types {
            Some(types) => types.clone(),
            None => self.graph.schema().node_types().collect(),
        };
        let count = self.statistics.nodes(node.types.as_deref());
        draft.bound.push(node.slot);
        draft.push(Step::Scan { slot: node.slot, types: types.into(), admit }, count);
    }

    fn extend(&self, draft: &mut Draft, index: usize) {
        let edge = draft.edges.remove(index);
        let forwards = draft.bound.contains(&edge.from);
        let (from, to) = if forwards { (edge.from, edge.to) } else { (edge.to, edge.from) };
        let growth = self.fanout(edge, to);
        let lists = oriented(edge, forwards).into();
        let node = draft.part.nodes.iter().find(|node| node.slot == to);
        let admit = node.map_or_else(Admit::default, |node| self.admit(draft, node));
        let distinct = self.distinct_edges(draft, edge);
        let step = match edge.length {
            None => Step::Extend { from, edge: edge.slot, to, lists, admit, distinct },
            Some(length) => {
                let edge = edge.slot;
                Step::Path { from, edge, to, is_bound: false, lists, length, admit, distinct }
            }
        };
        let apart = self.apart(draft, edge);
        draft.bound.extend([edge.slot, to]);
        draft.push(step, growth);
        draft.extend(apart);
    }

    /// Expected number of nodes that an edge leads to, per node at its bound end.
    fn fanout(&self, edge: &EdgeSlot, to: Slot) -> f64 {
        let from = if to == edge.to { edge.from } else { edge.to };
        let lists = oriented(edge, to == edge.to);
        let (from, to) = (self.types_of(from), self.types_of(to));
        let one = self.statistics.edges(&lists, from, to) / self.statistics.nodes(from).max(1.0);
        match edge.length {
            None => one,
            Some((least, most)) => one.powi(most.min(least.max(1) + PATH_LENGTH) as i32).max(one),
        }
    }

    /// Expected number of partial matches after an extension and the checks that it allows, per
    /// partial match before it. The entries that are read count as well.
    fn growth(&self, draft: &Draft, edge: &EdgeSlot, to: Slot) -> f64 {
        let fanout = self.fanout(edge, to);
        let node = draft.part.nodes.iter().find(|node| node.slot == to);
        let mut share = node.map_or(1.0, |node| self.share_of(draft.part, node));
        for other in draft.edges.iter().filter(|other| other.slot != edge.slot) {
            let is_closing = [other.from, other.to].contains(&to)
                && draft.bound.contains(if other.from == to { &other.from } else { &other.to });
            if is_closing {
                share *= EQUAL_SHARE;
            }
        }
        fanout * (share + 0.01)
    }

    fn admit(&self, draft: &Draft, node: &NodeSlot) -> Admit {
        let all = self.graph.schema().node_types();
        let allowed = node.types.as_ref().map(|types| all.map(|of| types.contains(&of)).collect());
        let allowed: Vec<bool> = allowed.unwrap_or_default();
        // A restriction to all types of the schema needs no look at the node.
        let types = allowed.contains(&false).then(|| allowed.into());
        let distinct = match self.rule.matching {
            Matching::Injective => {
                let own = draft.part.nodes.iter().chain(&draft.part.given);
                let others = own.filter(|other| {
                    other.slot != node.slot
                        && draft.bound.contains(&other.slot)
                        && overlap(self.types_of(other.slot), node.types.as_deref())
                });
                others.map(|other| other.slot).collect()
            }
            Matching::Edges | Matching::Homomorphic => Box::default(),
        };
        Admit { types, distinct }
    }

    /// The check that an edge of length 1 is on no path before it, where it could be.
    fn apart(&self, draft: &Draft, edge: &EdgeSlot) -> Option<Step> {
        let is_path = |slot: &Slot| {
            draft.part.edges.iter().any(|other| other.slot == *slot && other.length.is_some())
        };
        let distinct = self.distinct_edges(draft, edge).into_iter();
        let paths: Box<[Slot]> =
            distinct.filter(|slot| edge.length.is_none() && is_path(slot)).collect();
        (!paths.is_empty()).then_some(Step::Apart { edge: edge.slot, paths })
    }

    /// The bound edges, and the paths before it, from which an edge must differ, as far as they can
    /// be equal. The slot of a path has no edge: [`Step::Apart`] compares with the edges of the
    /// path.
    fn distinct_edges(&self, draft: &Draft, edge: &EdgeSlot) -> Box<[Slot]> {
        let can_be_equal = |other: &&EdgeSlot| {
            let is_bound = draft.bound.contains(&other.slot);
            let same_types =
                other.lists.iter().any(|(of, _)| edge.lists.iter().any(|l| l.0 == *of));
            let ends = |edge: &EdgeSlot| (edge.from.min(edge.to), edge.from.max(edge.to));
            is_bound
                && same_types
                && match self.rule.matching {
                    Matching::Homomorphic => false,
                    Matching::Edges => other.group == edge.group,
                    Matching::Injective => ends(other) == ends(edge),
                }
        };
        draft.part.edges.iter().filter(can_be_equal).map(|other| other.slot).collect()
    }

    fn types_of(&self, slot: Slot) -> Option<&[NodeType]> {
        self.rule.types_of(slot)
    }

    fn is_bound_by(&self, part: &Part, slot: Slot) -> bool {
        part.nodes.iter().any(|node| node.slot == slot)
            || part.edges.iter().any(|edge| edge.slot == slot)
    }

    /// Share of the nodes of a pattern node for which its own conditions are true.
    fn share_of(&self, part: &Part, node: &NodeSlot) -> f64 {
        let own =
            part.conditions.iter().filter(|condition| self.rule.slots_of(condition) == [node.slot]);
        own.map(|condition| self.share(part, condition)).product()
    }

    /// Share of elements for which a condition is true.
    fn share(&self, part: &Part, condition: &Expression) -> f64 {
        let slots = self.rule.slots_of(condition);
        let node = part.nodes.iter().find(|node| slots.iter().all(|slot| *slot == node.slot));
        let has_parts = {
            let mut found = false;
            condition.visit(&mut |inner| found |= matches!(inner, Expression::Exists(_)));
            found
        };
        let (Some(node), false) = (node.filter(|_| !slots.is_empty()), has_parts) else {
            return match condition {
                Expression::Binary(Operator::Equal, ..) => EQUAL_SHARE,
                _ => UNKNOWN_SHARE,
            };
        };
        let types = match &node.types {
            Some(types) => types.clone(),
            None => self.graph.schema().node_types().collect(),
        };
        let empty = Plan::default();
        let matcher = Matcher::new(&self.graph.store, self.rule, &empty);
        let mut binding: Binding = [NONE; ELEMENTS_MAX];
        let (mut count, mut true_count) = (0, 0);
        for of in types {
            let limit = self.graph.store.member_limit(of);
            let step = (limit as usize).div_ceil(SAMPLE_MAX).max(1);
            for index in (0..limit).step_by(step) {
                let Some(found) = self.graph.store.member(of, index) else { continue };
                binding[usize::from(node.slot)] = found;
                count += 1;
                // A fault appears again when the rule is matched.
                true_count += usize::from(matcher.is_true(condition, &mut binding) == Ok(true));
            }
        }
        (true_count as f64 / f64::from(count.max(1))).max(SHARE_MIN)
    }
}

impl Draft<'_> {
    /// Adds a check, if there is one.
    fn extend(&mut self, check: Option<Step>) {
        if let Some(check) = check {
            self.push(check, 1.0);
        }
    }

    fn push(&mut self, step: Step, growth: f64) {
        self.rows *= growth;
        self.cost += self.rows;
        self.steps.push(Planned { step, expected: self.rows });
    }
}

/// The lists of an edge from its source or from its target.
fn oriented(edge: &EdgeSlot, forwards: bool) -> Vec<(EdgeType, Direction)> {
    let orient = |direction: Direction| if forwards { direction } else { direction.reversed() };
    edge.lists.iter().map(|(of, direction)| (*of, orient(*direction))).collect()
}

fn overlap(a: Option<&[NodeType]>, b: Option<&[NodeType]>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a.iter().any(|of| b.contains(of)),
        _ => true,
    }
}

/// Descriptions of steps.
impl Rule {
    fn label(&self, slot: Slot) -> String {
        match &self.slots[usize::from(slot)].0 {
            name if name.is_empty() => format!("_{slot}"),
            name => name.clone(),
        }
    }

    /// One line for each step, with the expected numbers of partial matches, and the actual ones.
    pub(crate) fn describe(&self, plan: &Plan, graph: &Graph, actual: &[u64]) -> String {
        let mut text = String::new();
        self.describe_steps(&plan.main, graph, actual, 0, &mut text);
        for (index, steps) in plan.optional.iter().enumerate() {
            let _ = writeln!(text, "optional part {index}:");
            self.describe_steps(steps, graph, &[], 2, &mut text);
        }
        for (index, steps) in plan.exists.iter().enumerate() {
            let _ = writeln!(text, "EXISTS {index}:");
            self.describe_steps(steps, graph, &[], 2, &mut text);
        }
        text
    }

    fn describe_steps(
        &self,
        steps: &[Planned],
        graph: &Graph,
        actual: &[u64],
        indent: usize,
        text: &mut String,
    ) {
        for (index, planned) in steps.iter().enumerate() {
            let line = self.describe_step(&planned.step, graph);
            let _ = write!(text, "{:indent$}{line:<50} expected {:.0}", "", planned.expected);
            match actual.get(index) {
                Some(actual) => drop(writeln!(text, ", actual {actual}")),
                None => text.push('\n'),
            }
        }
    }

    pub(crate) fn describe_step(&self, step: &Step, graph: &Graph) -> String {
        let schema = graph.schema();
        let label = |slot: &Slot| self.label(*slot);
        let arrow = |lists: &Lists, edge: String| {
            let names: Vec<&str> = lists.iter().map(|list| schema.edge_name(list.0)).collect();
            let mut names = names;
            names.dedup();
            let out = lists.iter().any(|list| list.1 == Direction::Out);
            let back = lists.iter().any(|list| list.1 == Direction::In);
            let (left, right) = (if back { "<-" } else { "-" }, if out { "->" } else { "-" });
            format!("{left}[{edge}:{}]{right}", names.join("|"))
        };
        match step {
            Step::Scan { slot, types, .. } => {
                let names: Vec<&str> = types.iter().map(|of| schema.node_name(*of)).collect();
                format!("scan ({}:{})", label(slot), names.join("|"))
            }
            Step::Require { slot, .. } => format!("check the type of {}", label(slot)),
            Step::Extend { from, edge, to, lists, .. } => {
                format!("extend ({}){}({})", label(from), arrow(lists, label(edge)), label(to))
            }
            Step::Join { from, edge, to, lists, .. } => {
                format!("join ({}){}({})", label(from), arrow(lists, label(edge)), label(to))
            }
            Step::Path { from, to, lists, length, .. } => {
                let range = format!("*{}..{}", length.0, length.1);
                format!(
                    "path ({}){}({}) {range}",
                    label(from),
                    arrow(lists, String::new()),
                    label(to)
                )
            }
            Step::Apart { edge, .. } => format!("check that {} is on no path", label(edge)),
            Step::Filter(condition) => {
                let mut names = Vec::new();
                condition.visit(&mut |inner| {
                    if let Expression::Element(slot)
                    | Expression::Property(slot, ..)
                    | Expression::HasType(slot, _) = inner
                    {
                        names.push(label(slot));
                    }
                    if let Expression::Exists(index) = inner {
                        names.push(format!("EXISTS {index}"));
                    }
                });
                names.dedup();
                format!("check a condition on {}", names.join(", "))
            }
            Step::Order(first, second) => {
                format!("check that {} is not after {}", label(first), label(second))
            }
            Step::Least => "check that no symmetric match is less".into(),
            Step::Optional(index) => format!("optional part {index}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Control, Options, apply_exhaustively, parse_rules, run};
    use std::collections::HashMap;

    #[test]
    fn a_graph_keeps_the_plan_of_a_rule_between_runs() {
        let mut graph = Graph::new();
        let of = graph.schema_mut().node_type("A", &[]).unwrap();
        graph.schema_mut().edge_type("E", &[]).unwrap();
        (0..100).for_each(|_| {
            graph.add_node(of).unwrap();
        });
        let text = "MATCH (a:A)-[:E]-(b:A) CREATE (a)-[:E]->(b)";
        let rule = parse_rules("r", text, &HashMap::new(), &mut graph).unwrap().remove(0);
        apply_exhaustively(&mut graph, &rule, 1).unwrap();
        let plan = graph.plan(&rule);
        apply_exhaustively(&mut graph, &rule.clone(), 1).unwrap();
        assert!(Arc::ptr_eq(&plan, &graph.plan(&rule)));
        // Of symmetric matches one is found: another plan.
        let once = rule.symmetric_once().unwrap();
        assert!(!Arc::ptr_eq(&plan, &graph.plan(&once)));
        for _ in 0..2 * PLANS_MAX {
            let rule = parse_rules("r", text, &HashMap::new(), &mut graph).unwrap().remove(0);
            apply_exhaustively(&mut graph, &rule, 1).unwrap();
        }
        assert!(graph.plans.len() <= PLANS_MAX);
        let seeded = Options { seed: Some(1), ..Options::default() };
        run(&mut graph, &[], &Control::Sequence(vec![]), &seeded).unwrap();
        assert!(graph.plans.is_empty());
    }

    /// The numbers of all nodes and edges stay: only the types change.
    #[test]
    fn a_plan_is_computed_again_when_the_elements_of_a_type_have_doubled() {
        let mut graph = Graph::new();
        let [a, b] = ["A", "B"].map(|of| graph.schema_mut().node_type(of, &[]).unwrap());
        let edge = graph.schema_mut().edge_type("E", &[]).unwrap();
        let nodes: Vec<_> = (0..1000).map(|_| graph.add_node(a).unwrap()).collect();
        for pair in nodes.windows(2) {
            graph.add_edge(edge, pair[0], pair[1]).unwrap();
        }
        let text = "MATCH (a:A)-[:E]->(b:B) RETURN count(*); MATCH (a:A) SET a:B";
        let rules = parse_rules("r", text, &HashMap::new(), &mut graph).unwrap();
        let rule = &rules[0];
        let start = |plan: &Plan| plan.start_types().to_vec();
        let plan = Plan::new(&graph, rule);
        assert_eq!(start(&plan), [b]);
        apply_exhaustively(&mut graph, &rules[1], 100).unwrap();
        assert!(plan.fits(&graph));
        apply_exhaustively(&mut graph, &rules[1], 800).unwrap();
        assert!(!plan.fits(&graph));
        assert_eq!(start(&Plan::new(&graph, rule)), [a]);
    }
}
