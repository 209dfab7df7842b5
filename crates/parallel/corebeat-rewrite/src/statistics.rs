//! Statistics of a graph, from which plans are computed.

use crate::graph::Graph;
use crate::schema::{EdgeType, NodeType};
use crate::store::Direction;
use std::collections::HashMap;

/// Number of edges that are sampled.
const SAMPLE_MAX: u32 = 1 << 14;

/// Numbers of nodes and edges by type. The types of the ends of edges come from a sample.
#[derive(Debug, Default)]
pub(crate) struct Statistics {
    nodes: Vec<f64>,
    /// Estimated numbers of edges by edge type, source type and target type.
    edges: HashMap<(EdgeType, NodeType, NodeType), f64>,
    /// Numbers of edges of the types that the sample missed.
    missed: HashMap<EdgeType, f64>,
}

impl Statistics {
    pub(crate) fn new(graph: &Graph) -> Statistics {
        let schema = graph.schema();
        let nodes = schema.node_types().map(|of| graph.node_count_of(of) as f64).collect();
        let limit = graph.store.edge_limit();
        let step = limit.div_ceil(SAMPLE_MAX).max(1);
        let mut sample: HashMap<(EdgeType, NodeType, NodeType), f64> = HashMap::new();
        let mut sampled = vec![0.0; schema.edge_types().count()];
        for edge in (0..limit).step_by(step as usize) {
            let ends = graph.store.ends(edge).zip(graph.store.edge_type(edge));
            let Some(((from, to), of)) = ends else { continue };
            let types = graph.store.node_type(from).zip(graph.store.node_type(to));
            let Some((from, to)) = types else { continue };
            *sample.entry((of, from, to)).or_default() += 1.0;
            sampled[usize::from(of.0)] += 1.0;
        }
        for ((of, ..), count) in &mut sample {
            *count *= graph.edge_count_of(*of) as f64 / sampled[usize::from(of.0)];
        }
        let missed = schema.edge_types().filter(|of| sampled[usize::from(of.0)] == 0.0);
        let missed = missed.map(|of| (of, graph.edge_count_of(of) as f64));
        Statistics { nodes, edges: sample, missed: missed.collect() }
    }

    /// Number of nodes of these types; `None` stands for all types.
    pub(crate) fn nodes(&self, types: Option<&[NodeType]>) -> f64 {
        match types {
            None => self.nodes.iter().sum(),
            Some(types) => {
                let count = |of: &NodeType| self.nodes.get(usize::from(of.0)).copied();
                types.iter().filter_map(count).sum()
            }
        }
    }

    /// Number of edges in these lists of nodes of the types `from` that lead to the types `to`.
    pub(crate) fn edges(
        &self,
        lists: &[(EdgeType, Direction)],
        from: Option<&[NodeType]>,
        to: Option<&[NodeType]>,
    ) -> f64 {
        let has = |types: Option<&[NodeType]>, of| types.is_none_or(|types| types.contains(&of));
        let count = |((of, source, target), count): (&(EdgeType, NodeType, NodeType), &f64)| {
            let ways = lists.iter().filter(|(list, direction)| {
                let (own, other) = match direction {
                    Direction::Out => (*source, *target),
                    Direction::In => (*target, *source),
                };
                list == of && has(from, own) && has(to, other)
            });
            ways.count() as f64 * count
        };
        let sampled: f64 = self.edges.iter().map(count).sum();
        // An edge of a type that the sample missed may connect nodes of all types.
        let missed: f64 = lists.iter().filter_map(|(of, _)| self.missed.get(of)).sum();
        let share = |types| self.nodes(types) / self.nodes(None).max(1.0);
        sampled + missed * share(from) * share(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rare_edge_type_takes_no_entry_for_each_pair_of_node_types() {
        let mut graph = Graph::new();
        let types: Vec<NodeType> =
            (0..20).map(|i| graph.schema_mut().node_type(&format!("T{i}"), &[]).unwrap()).collect();
        let common = graph.schema_mut().edge_type("COMMON", &[]).unwrap();
        let rare = graph.schema_mut().edge_type("RARE", &[]).unwrap();
        let nodes: Vec<_> = types.iter().map(|of| graph.add_node(*of).unwrap()).collect();
        // The sample has every second edge.
        for i in 0..2 * SAMPLE_MAX {
            let of = if i == 1 { rare } else { common };
            graph.add_edge(of, nodes[0], nodes[1]).unwrap();
        }
        let statistics = Statistics::new(&graph);
        assert_eq!(statistics.edges.len(), 1);
        let lists = [(rare, Direction::Out)];
        assert_eq!(statistics.edges(&lists, None, None), 1.0);
        assert_eq!(statistics.edges(&lists, Some(&types[..5]), Some(&types[..10])), 0.125);
    }
}
