//! The starts that the passes of an exhaustive run search.
//!
//! ```text
//!   all starts --> pass --> changes --> starts that they can affect --> pass --> ... --> none: end
//!              `------------------ too many changes ----------------'
//! ```
//!
//! A pass searches at each of its starts until it finds no match there. Afterwards a match has a
//! start that the changes of the pass can affect, as [`crate::affected`] proves, or one at which
//! the search ended early. The next pass searches at these. After very many changes, a pass
//! searches at all starts: to follow the changes would cost more.

use crate::affected::Affected;
use crate::graph::Graph;
use crate::plan::Plan;
use crate::rule::Rule;
use std::sync::Arc;

/// Share of the starts that a pass without a list searches: after more changes, the next pass has
/// no list. To follow a change back takes about as long as the search at a few starts.
const SHARE: u32 = 4;
/// Number of changes that are always followed.
const CHANGES_MIN: usize = 64;

/// The rest that a pass leaves to the next one.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// The starts at which the search ended early.
    pub(crate) starts: Vec<u32>,
    /// Whether a start may have been left out that is not in `starts`.
    pub(crate) is_partial: bool,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Agenda {
    /// Identifies this reader of the changes.
    token: Arc<()>,
    /// The plan of the last pass.
    plan: Option<Arc<Plan>>,
    /// The starts of the next pass; `None` for all.
    starts: Option<Vec<u32>>,
    /// Whether other starts may have matches.
    is_partial: bool,
}

impl Agenda {
    /// Returns the starts of a pass with this plan; `None` for all.
    pub(crate) fn begin(&mut self, graph: &mut Graph, plan: &Arc<Plan>) -> Option<Vec<u32>> {
        let has_plan = self.plan.as_ref().is_some_and(|own| Arc::ptr_eq(own, plan));
        let starts = self.starts.take().filter(|_| has_plan);
        if starts.is_none() {
            self.plan = Some(plan.clone());
            self.is_partial = false;
            graph.take_changes(&mut self.token, changes_max(graph, plan));
        }
        starts
    }

    /// Plans the next pass. Returns whether no match is left.
    pub(crate) fn end(&mut self, graph: &mut Graph, rule: &Rule, plan: &Plan, left: Left) -> bool {
        let most = changes_max(graph, plan);
        let mut starts = left.starts;
        self.is_partial |= left.is_partial;
        if !self.is_partial {
            let changes = graph.take_changes(&mut self.token, most);
            let changes = changes.filter(|changes| changes.len() <= most);
            let most = most * SHARE as usize;
            let affected = Affected::new(&graph.store, rule, plan);
            match changes.and_then(|changes| affected.starts(&changes, most)) {
                Some(found) => starts.extend(found),
                None => self.is_partial = true,
            }
        }
        starts.sort_unstable();
        starts.dedup();
        let is_empty = starts.is_empty();
        self.starts = Some(starts).filter(|_| !is_empty);
        is_empty && !self.is_partial
    }
}

/// Number of changes that the next pass follows.
fn changes_max(graph: &Graph, plan: &Plan) -> usize {
    ((plan.start_limit(&graph.store) / SHARE) as usize).max(CHANGES_MIN)
}

#[cfg(test)]
mod tests {
    use crate::change::Fact;
    use crate::change::tests::FORGOTTEN;
    use crate::schema::{EdgeType, Key, NodeType};
    use crate::store::Direction;
    use crate::{Apply, Control, Graph, Options, Outcome, parse_rules, run};
    use std::collections::HashMap;
    use std::mem::discriminant;

    /// Number of nodes of the chain.
    const NODES: u64 = 50;

    /// Applies a rule to a chain whose first node is the last that a pass searches. Returns the
    /// outcome, and the number of matches that are left.
    fn exhausted(rule: &str) -> (Outcome, u64) {
        let mut graph = Graph::new();
        let schema = "CREATE (:Off {n: 0})-[:NEXT]->(:On), (:Off)-[:AT]->(:Off);";
        let rules = parse_rules("rules", &format!("{schema} {rule}"), &HashMap::new(), &mut graph);
        let rules = rules.unwrap();
        let [off, on] = ["Off", "On"].map(|of| graph.schema().find_node_type(of).unwrap());
        let [next, at] = ["NEXT", "AT"].map(|of| graph.schema().find_edge_type(of).unwrap().0);
        let n = graph.schema().find_key("n").unwrap();
        let nodes: Vec<_> = (1..NODES).map(|_| graph.add_node(off).unwrap()).collect();
        let first = graph.add_node(on).unwrap();
        let chain: Vec<_> = std::iter::once(first).chain(nodes.into_iter().rev()).collect();
        for two in chain.windows(2) {
            graph.add_edge(next, two[0], two[1]).unwrap();
        }
        graph.set(first, n, 1).unwrap();
        graph.add_edge(at, first, first).unwrap();
        let control = Control::Rule(1, Apply::Exhaustively);
        let outcome = run(&mut graph, &rules, &control, &Options::default()).unwrap();
        // A new run begins with all starts.
        let left = run(&mut graph, &rules, &control, &Options::default()).unwrap().rewrites;
        (outcome, left)
    }

    /// A change of each kind leads to further matches. A planted fault, a kind of changes that is
    /// not recorded, leaves matches.
    #[test]
    fn passes_search_around_changes_of_each_kind() {
        let kinds = [
            ("MATCH (a)-[:NEXT]->(b:Off) WHERE a.n = 1 AND b.n IS NULL SET b.n = 1", {
                Fact::Value(Key(0))
            }),
            ("MATCH (b:Off) WHERE EXISTS { MATCH (a:On)-[:NEXT]->(b) } SET b:On", {
                Fact::Type(NodeType(0))
            }),
            (
                "MATCH (a)-[t:AT]->(a)-[:NEXT]->(b) DELETE t CREATE (b)-[:AT]->(b)",
                Fact::List(EdgeType(0), Direction::Out),
            ),
            (
                "MATCH (b:Off) WHERE EXISTS { MATCH (a)-[:NEXT]->(b) WHERE (a)-[:AT]->(a) }
                    AND NOT (b)-[:AT]->(b) CREATE (b)-[:AT]->(b)",
                Fact::List(EdgeType(0), Direction::Out),
            ),
            // A node can be deleted when it has lost its other edges.
            (
                "MATCH (a)-[n:NEXT]->(b) OPTIONAL MATCH (a)-[t:AT]->(a) DELETE n, t, a",
                Fact::List(EdgeType(0), Direction::Out),
            ),
        ];
        for (rule, fact) in kinds {
            let (outcome, left) = exhausted(rule);
            assert_eq!((outcome.rewrites, left), (NODES - 1, 0), "{rule}");
            assert!(outcome.passes >= NODES / 2, "{rule}: {outcome:?}");
            // All starts once, and then a few around each change.
            assert!(outcome.searches < 8 * NODES, "{rule}: {outcome:?}");
            FORGOTTEN.set(Some(discriminant(&fact)));
            let (_, left) = exhausted(rule);
            FORGOTTEN.set(None);
            assert!(left > 0, "{rule}: the fault is not detected");
        }
    }
}
