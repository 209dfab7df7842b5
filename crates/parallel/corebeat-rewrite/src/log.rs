//! The log of a run, with which the run is repeated in a sequential order.

use crate::error::Error;
use crate::graph::Graph;
use crate::matcher::Matcher;
use crate::plan::Plan;
use crate::rewriter::Rewriter;
use crate::rule::{Change, ELEMENTS_MAX, ElementKind, NONE, Rule};
use std::collections::HashMap;

/// A rewrite: its position in the order of all rewrites, the index of its rule, and its elements by
/// slot after the rewrite.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) order: u64,
    pub(crate) rule: usize,
    pub(crate) elements: Box<[u32]>,
}

/// The rewrites of a run in an order in which they are possible one after another.
#[derive(Debug, Clone, Default)]
pub struct Log {
    pub(crate) entries: Vec<Entry>,
    /// The rules of the run; none if the run has no log.
    pub(crate) rules: Vec<Rule>,
}

/// The elements of the original run by those of the repeated one.
#[derive(Debug, Default)]
pub struct Replay {
    nodes: HashMap<u32, u32>,
    edges: HashMap<u32, u32>,
}

impl Log {
    /// Number of rewrites.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the run changed nothing.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Repeats the rewrites in their order on a graph that equals the graph before the run, with
    /// equal numbers of elements.
    ///
    /// # Errors
    /// A description of the first rewrite whose match does not exist at its turn.
    pub fn replay(&self, graph: &mut Graph) -> Result<Replay, String> {
        let mut replay = Replay::default();
        let plans: Vec<Plan> = self.rules.iter().map(|rule| Plan::new(graph, rule)).collect();
        let mut rewriter = Rewriter::default();
        for entry in &self.entries {
            let (rule, plan) = (&self.rules[entry.rule], &plans[entry.rule]);
            let matcher = Matcher::new(&graph.store, rule, plan);
            let mut binding = [NONE; ELEMENTS_MAX];
            let created = rule.changes.iter().filter_map(Change::created).map(usize::from);
            let created: Vec<usize> = created.collect();
            for (slot, element) in entry.elements.iter().enumerate() {
                if *element != NONE && !created.contains(&slot) {
                    let map = replay.map(rule.slots[slot].1);
                    binding[slot] = map.get(element).copied().unwrap_or(*element);
                }
            }
            let failed = |why: &str| Err(format!("rewrite {}: {why}", entry.order));
            if matcher.holds(&mut binding) != Ok(true) {
                return failed("the match does not exist");
            }
            if !matcher.is_applicable(&binding) {
                return failed("the deletions are not possible");
            }
            if let Err(fault) = rewriter.apply(&matcher, &mut graph.space, &mut binding, |_| {}) {
                return failed(&fault);
            }
            graph.store.settle(&mut graph.space);
            for slot in created {
                replay.map(rule.slots[slot].1).insert(entry.elements[slot], binding[slot]);
            }
        }
        Ok(replay)
    }

    /// Adds the rewrites of one pass.
    pub(crate) fn push_all(&mut self, entries: Vec<Entry>) {
        let first = self.entries.len();
        self.entries.extend(entries);
        self.entries[first..].sort_by_key(|entry| entry.order);
    }
}

impl Replay {
    fn map(&mut self, kind: ElementKind) -> &mut HashMap<u32, u32> {
        if kind == ElementKind::Node { &mut self.nodes } else { &mut self.edges }
    }

    /// Checks that the repeated graph is isomorphic to the original one: each element of the
    /// original graph corresponds to one element of the repeated graph with the same type, the same
    /// attributes and corresponding ends, and the repeated graph has no other elements.
    ///
    /// # Errors
    /// A description of the first difference.
    pub fn verify(&self, original: &Graph, repeated: &Graph) -> Result<(), String> {
        let numbers = |graph: &Graph| (graph.node_count(), graph.edge_count());
        if numbers(original) != numbers(repeated) {
            return Err(format!("{original:?} differs from {repeated:?}"));
        }
        let node = |node: u32| crate::Node(self.nodes.get(&node).copied().unwrap_or(node));
        let mut seen = std::collections::HashSet::new();
        for own in original.nodes() {
            let other = node(own.0);
            let is_same = original.node_type(own) == repeated.node_type(other)
                && original
                    .schema()
                    .keys()
                    .all(|key| original.get(own, key) == repeated.get(other, key));
            if !is_same || !seen.insert(other.0) {
                return Err(format!("node {} differs from node {}", own.0, other.0));
            }
        }
        seen.clear();
        for own in original.edges() {
            let other = crate::Edge(self.edges.get(&own.0).copied().unwrap_or(own.0));
            let ends = original.ends(own).map(|(from, to)| (node(from.0), node(to.0)));
            let is_same = original.edge_type(own) == repeated.edge_type(other)
                && ends == repeated.ends(other)
                && original
                    .schema()
                    .keys()
                    .all(|key| original.get(own, key) == repeated.get(other, key));
            if !is_same || !seen.insert(other.0) {
                return Err(format!("edge {} differs from edge {}", own.0, other.0));
            }
        }
        Ok(())
    }
}

/// An error of a rule's expression.
pub(crate) fn evaluation(rule: &Rule, why: String) -> Error {
    Error::Evaluate { rule: rule.name.clone(), why }
}
