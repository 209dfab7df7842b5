//! The rewriter: applies the right side of a rule to a match.

use crate::expression::{Fault, Results};
use crate::matcher::Matcher;
use crate::rule::{Binding, Change, ElementKind, NONE, Rule, Slot};
use crate::store::{Space, Store};
use crate::value::Scalar;

/// Memory of a rewriter that applications use again.
#[derive(Default)]
pub(crate) struct Rewriter {
    values: Vec<Scalar>,
    edges: Vec<u32>,
}

fn at(binding: &Binding, slot: Slot) -> u32 {
    binding[usize::from(slot)]
}

impl Rewriter {
    /// Applies a rule: all values are evaluated first, so a fault changes nothing.
    ///
    /// `claim` receives each new node before other threads can find it.
    pub(crate) fn apply(
        &mut self,
        matcher: &Matcher,
        space: &mut Space,
        binding: &mut Binding,
        claim: impl Fn(u32),
    ) -> Result<(), Fault> {
        let (store, rule) = (matcher.store, matcher.rule);
        self.values.clear();
        let (mut nodes, mut edges) = (0, 0);
        // The slots of new nodes, as bits. Nodes are created before edges.
        let mut created = 0_u64;
        for change in &rule.changes {
            match change {
                Change::Set { value, .. } => {
                    let results = Results { aggregates: &[] };
                    self.values.push(matcher.evaluate(value, binding, &results)?);
                }
                Change::CreateNode { slot, .. } => {
                    nodes += 1;
                    created |= 1 << slot;
                }
                Change::CreateEdge { from, to, .. } => {
                    edges += 1;
                    let exists =
                        |slot: &Slot| created >> slot & 1 != 0 || at(binding, *slot) != NONE;
                    if !exists(from) || !exists(to) {
                        return Err("an edge cannot be created at a node that is null".into());
                    }
                }
                _ => {}
            }
        }
        store.require_room(nodes, edges).map_err(|e| e.to_string())?;
        let mut values = self.values.iter();
        for change in &rule.changes {
            match change {
                Change::CreateNode { slot, of } => {
                    let node = store.take_node(space);
                    claim(node);
                    store.create_node(space, node, *of);
                    binding[usize::from(*slot)] = node;
                }
                Change::CreateEdge { slot, of, from, to } => {
                    let (from, to) = (at(binding, *from), at(binding, *to));
                    binding[usize::from(*slot)] = store.create_edge(space, *of, from, to);
                }
                Change::Set { slot, kind, key, .. } => {
                    let value = values.next().copied().unwrap_or_default();
                    match (at(binding, *slot), kind) {
                        (NONE, _) => {}
                        (node, ElementKind::Node) => store.set_node_value(space, node, *key, value),
                        (edge, ElementKind::Edge) => store.set_edge_value(space, edge, *key, value),
                    }
                }
                Change::Retype { slot, of } if at(binding, *slot) != NONE => {
                    store.retype_node(space, at(binding, *slot), *of);
                }
                Change::DeleteEdge { slot } if at(binding, *slot) != NONE => {
                    store.delete_edge(space, at(binding, *slot));
                }
                Change::DeleteNode { slot, .. } if at(binding, *slot) != NONE => {
                    self.edges.clear();
                    let node = at(binding, *slot);
                    store.each_edge(node, |_, _, edge, _| self.edges.push(edge));
                    self.edges.iter().for_each(|edge| store.delete_edge(space, *edge));
                    store.delete_node(space, node);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The nodes that an application of a rule to a match changes, and those that it only reads: `f`
/// receives each node and whether it is changed.
pub(crate) fn each_touched(
    store: &Store,
    rule: &Rule,
    binding: &Binding,
    mut f: impl FnMut(u32, bool),
) {
    let mut written = rule.written;
    for node in &rule.main.nodes {
        let bit = 1 << node.slot;
        f(at(binding, node.slot), rule.written & bit != 0);
        written &= !bit;
    }
    while written != 0 {
        let node = at(binding, written.trailing_zeros() as Slot);
        // Nodes that the rule creates are not bound yet.
        if node != NONE {
            f(node, true);
        }
        written &= written - 1;
    }
    for change in &rule.changes {
        let Change::DeleteNode { slot, .. } = change else { continue };
        if at(binding, *slot) != NONE {
            store.each_edge(at(binding, *slot), |_, _, _, other| f(other, true));
        }
    }
}
