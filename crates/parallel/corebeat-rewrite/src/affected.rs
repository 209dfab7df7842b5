//! The starts of a search that changes of the graph can affect.
//!
//! ```text
//!   changes --> nodes with a changed fact, by slot --> back along the steps of the plan --> starts
//! ```
//!
//! A [`LiveQuery`](crate::LiveQuery) searches again at these starts, and so does each pass of an
//! [exhaustive run](crate::agenda) after its first. This is the semi-naive evaluation of Bancilhon,
//! Ramakrishnan, *An Amateur's Introduction to Recursive Query Processing Strategies*, 1986. In
//! contrast to Forgy, *Rete*, 1982, and Bergmann et al., *Incremental Evaluation of Model Queries
//! over EMF Models*, 2010, no partial match is kept, so a change costs no more than its record.
//!
//! # No affected start is missed
//!
//! A search at a start is a function of the facts that it reads: types and attributes of nodes that
//! it binds to slots, the lists of edges that it follows from these, and the lists of a node that
//! the rule deletes only without edges. Compare the search on the graph before some changes with
//! the search after them. If the results differ, there is a first read with another value. All
//! reads before it have the same values in both graphs, so both searches make this read, at the
//! same node and for the same slot. The steps that led from the start to the node read lists and
//! types that are the same in both graphs: they lead there in the changed graph. So [`Affected`]
//! follows the steps of the plan backwards, in the changed graph, from each node with a changed
//! fact and each slot whose steps read this fact. No copy of the graph before the changes is
//! needed. The attributes of an edge belong to the lists of its ends.
//!
//! A search that other threads disturb reads each fact as it is after the changes, or reads a fact
//! that they change. So the argument holds for it, too, if the changes since the threads began are
//! recorded.
//!
//! A second scan reads all nodes of its types. If a change leads back to such a scan, all starts
//! are affected.

use crate::change::{Change, Fact};
use crate::expression::Expression;
use crate::plan::{Lists, Plan, Step};
use crate::rule::{Change as Effect, ElementKind, Rule, Semantics, Slot};
use crate::store::Store;
use std::collections::HashSet;
use std::sync::atomic::Ordering::Relaxed;

/// Finds the starts that changes can affect: see the module.
pub(crate) struct Affected<'a> {
    store: &'a Store,
    rule: &'a Rule,
    plan: &'a Plan,
    /// The attributes and lists that steps and conditions read, by slot of their node.
    reads: Vec<(Fact, Slot)>,
    /// The slots of nodes of which all lists are read.
    without_edges: Vec<Slot>,
}

impl<'a> Affected<'a> {
    pub(crate) fn new(store: &'a Store, rule: &'a Rule, plan: &'a Plan) -> Affected<'a> {
        let mut reads = Vec::new();
        for step in plan.backwards() {
            let (Step::Extend { from, lists, .. }
            | Step::Join { from, lists, .. }
            | Step::Path { from, lists, .. }) = step
            else {
                continue;
            };
            // A join may read the list of its other end; the edges between both are in this one.
            reads.extend(lists.iter().map(|(of, direction)| (Fact::List(*of, *direction), *from)));
        }
        rule.visit_expressions(&mut |inner| {
            if let Expression::Property(slot, ElementKind::Node, key) = inner {
                reads.push((Fact::Value(*key), *slot));
            }
        });
        let is_dpo = rule.semantics == Semantics::Dpo;
        let without_edges = rule.changes.iter().filter_map(|change| match change {
            Effect::DeleteNode { slot, detach } if is_dpo || !detach => Some(*slot),
            _ => None,
        });
        Affected { store, rule, plan, reads, without_edges: without_edges.collect() }
    }

    /// The starts in ascending order. `None` if all starts may be affected, or if more than `most`
    /// nodes lead to changed ones.
    pub(crate) fn starts(&self, changes: &[Change], most: usize) -> Option<Vec<u32>> {
        if changes.is_empty() {
            return Some(Vec::new());
        }
        // By slot, the nodes from which a search can reach a changed fact.
        let mut reached = vec![Vec::new(); self.rule.slots.len()];
        for (node, fact) in changes {
            self.each_reader(*fact, |slot| reached[usize::from(slot)].push(*node));
        }
        let first = self.plan.main.first().map(|planned| &planned.step);
        for step in self.plan.backwards() {
            let (from, mut sources) = match step {
                Step::Scan { slot, .. } => {
                    let found = distinct(std::mem::take(&mut reached[usize::from(*slot)]));
                    match first.is_some_and(|first| std::ptr::eq(first, step)) {
                        true => return Some(found),
                        false if found.is_empty() => continue,
                        false => return None,
                    }
                }
                Step::Extend { from, to, lists, .. } => {
                    let ends = distinct(std::mem::take(&mut reached[usize::from(*to)]));
                    (*from, self.sources(lists, &ends, most)?)
                }
                Step::Path { from, to, is_bound, lists, length, .. } => {
                    // A path to a bound node reads nothing of that node.
                    let ends = match is_bound {
                        true => Vec::new(),
                        false => distinct(std::mem::take(&mut reached[usize::from(*to)])),
                    };
                    (*from, self.path_sources(lists, *length, ends, changes, most)?)
                }
                _ => continue,
            };
            let types = self.rule.types_of(from);
            // The types of these nodes have not changed, or the nodes are reached already.
            sources.retain(|node| {
                let of = self.store.node_type(*node);
                of.is_some_and(|of| types.is_none_or(|types| types.contains(&of)))
            });
            reached[usize::from(from)].extend(sources);
        }
        None
    }

    /// Calls `f` with the slots whose steps or conditions read a fact of their node.
    fn each_reader(&self, fact: Fact, mut f: impl FnMut(Slot)) {
        if let Fact::Type(of) = fact {
            let nodes = self.rule.parts().flat_map(|part| &part.nodes);
            let admits = |types: &Vec<_>| types.contains(&of);
            nodes
                .filter(|node| node.types.as_ref().is_none_or(admits))
                .for_each(|node| f(node.slot));
            return;
        }
        self.reads.iter().filter(|(own, _)| *own == fact).for_each(|(_, slot)| f(*slot));
        if let Fact::List(..) = fact {
            self.without_edges.iter().for_each(|slot| f(*slot));
        }
    }

    /// The nodes with an edge in these lists to one of some nodes, unless there are more than
    /// `most`.
    fn sources(&self, lists: &Lists, nodes: &[u32], most: usize) -> Option<Vec<u32>> {
        let mut sources = Vec::new();
        for node in nodes {
            for (of, direction) in lists {
                let list = self.store.list(*of, direction.reversed(), *node);
                if sources.len() + list.len() > most {
                    return None;
                }
                sources.extend(list.iter().map(|entry| entry.load(Relaxed) as u32));
            }
        }
        Some(sources)
    }

    /// The nodes with a path to one of the ends, or to a node inside whose list of edges has
    /// changed.
    fn path_sources(
        &self,
        lists: &Lists,
        (least, length): (u32, u32),
        ends: Vec<u32>,
        changes: &[Change],
        most: usize,
    ) -> Option<Vec<u32>> {
        let mut sources = if least == 0 { ends.clone() } else { Vec::new() };
        let mut frontier = ends;
        let is_inside = |fact: &Fact| matches!(fact, Fact::List(of, direction) if lists.contains(&(*of, *direction)));
        frontier.extend(changes.iter().filter(|(_, fact)| is_inside(fact)).map(|(node, _)| *node));
        frontier = distinct(frontier);
        let mut seen = HashSet::new();
        for _ in 0..length {
            frontier = self.sources(lists, &frontier, most)?;
            frontier.retain(|node| seen.insert(*node));
            if frontier.is_empty() {
                break;
            }
        }
        sources.extend(seen);
        (sources.len() <= most).then_some(sources)
    }
}

/// The nodes in ascending order, each once.
fn distinct(mut nodes: Vec<u32>) -> Vec<u32> {
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}
