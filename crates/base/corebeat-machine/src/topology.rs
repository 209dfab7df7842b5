//! Topology of a machine: CPUs in cores, caches, packages and NUMA nodes.

use crate::{CpuId, CpuSet, NodeId};
use serde::{Deserialize, Serialize};

/// A logical CPU and its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    /// Number of the CPU.
    pub id: CpuId,
    /// Package (socket), by the number of the operating system.
    pub package: u32,
    /// Core; CPUs of one package with the same core number are hardware threads of one core.
    pub core: u32,
    /// Nearest NUMA node.
    pub node: NodeId,
    /// Last-level cache; CPUs with the same number share a cache.
    pub cache: u32,
}

/// A NUMA node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Number of the node.
    pub id: NodeId,
    /// CPUs of the node.
    pub cpus: CpuSet,
    /// Distance to every node, in the order of [`Topology::nodes`]; 10 is local (ACPI SLIT units).
    pub distances: Vec<u32>,
}

/// CPUs and nodes of a machine, at least one of each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Topology {
    cpus: Vec<Cpu>,
    nodes: Vec<Node>,
}

/// Error of [`Topology::new`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// No CPU was given.
    #[error("the machine has no CPU: describe at least one")]
    NoCpu,
    /// A number was given twice.
    #[error("CPU {0} is described twice")]
    Twice(u32),
    /// The node of a CPU does not exist.
    #[error("CPU {cpu} is on node {node}, which is not described")]
    NoNode {
        /// Number of the CPU.
        cpu: u32,
        /// Number of the missing node.
        node: u32,
    },
    /// The number of distances of a node differs from the number of nodes.
    #[error("node {node} has {found} distances; the machine has {expected} nodes")]
    Distances {
        /// Number of the node.
        node: u32,
        /// Number of its distances.
        found: usize,
        /// Number of nodes.
        expected: usize,
    },
}

impl Topology {
    /// Creates a topology of these CPUs and nodes, in ascending order.
    ///
    /// # Errors
    /// See [`TopologyError`].
    pub fn new(mut cpus: Vec<Cpu>, mut nodes: Vec<Node>) -> Result<Self, TopologyError> {
        cpus.sort_by_key(|c| c.id);
        nodes.sort_by_key(|n| n.id);
        if cpus.is_empty() {
            return Err(TopologyError::NoCpu);
        }
        if let Some(pair) = cpus.windows(2).find(|w| w[0].id == w[1].id) {
            return Err(TopologyError::Twice(pair[0].id.0));
        }
        if let Some(c) = cpus.iter().find(|c| !nodes.iter().any(|n| n.id == c.node)) {
            return Err(TopologyError::NoNode { cpu: c.id.0, node: c.node.0 });
        }
        if let Some(n) = nodes.iter().find(|n| n.distances.len() != nodes.len()) {
            return Err(TopologyError::Distances {
                node: n.id.0,
                found: n.distances.len(),
                expected: nodes.len(),
            });
        }
        Ok(Topology { cpus, nodes })
    }

    /// Creates a topology of one package, one node, one shared cache, and `cpus` cores of one
    /// thread each: the assumption for an unknown machine.
    ///
    /// # Panics
    /// If `cpus` is 0.
    pub fn flat(cpus: u32) -> Self {
        let all: Vec<Cpu> = (0..cpus)
            .map(|c| Cpu { id: CpuId(c), package: 0, core: c, node: NodeId(0), cache: 0 })
            .collect();
        let set = all.iter().map(|c| c.id).collect();
        let node = Node { id: NodeId(0), cpus: set, distances: vec![10] };
        Topology::new(all, vec![node]).expect("a flat topology needs at least one CPU")
    }

    /// Returns the part of this topology with these CPUs, and all nodes; `None` without such a CPU.
    pub fn restricted(&self, cpus: &CpuSet) -> Option<Topology> {
        let mut part = self.clone();
        part.cpus.retain(|cpu| cpus.contains(cpu.id));
        for node in &mut part.nodes {
            node.cpus = node.cpus.iter().filter(|cpu| cpus.contains(*cpu)).collect();
        }
        (!part.cpus.is_empty()).then_some(part)
    }

    /// Returns the CPUs in ascending order.
    pub fn cpus(&self) -> &[Cpu] {
        &self.cpus
    }

    /// Returns the nodes in ascending order.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns all CPUs as a set.
    pub fn cpu_set(&self) -> CpuSet {
        self.cpus.iter().map(|c| c.id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flat_topology_has_one_node_and_many_cores() {
        let t = Topology::flat(4);
        assert_eq!(t.cpu_set().to_string(), "0-3");
        assert_eq!(t.nodes().len(), 1);
    }

    #[test]
    fn restricted_topology_has_the_permitted_cpus() {
        let cpus = |list: &str| list.parse::<CpuSet>().unwrap();
        let part = Topology::flat(4).restricted(&cpus("1,3,9")).unwrap();
        assert_eq!((part.cpu_set(), &part.nodes()[0].cpus), (cpus("1,3"), &cpus("1,3")));
        assert_eq!(Topology::flat(4).restricted(&cpus("9")), None);
    }

    #[test]
    fn topology_mistakes_are_errors() {
        let cpu = Cpu { id: CpuId(1), package: 0, core: 0, node: NodeId(3), cache: 0 };
        let node = |d: Vec<u32>| Node { id: NodeId(3), cpus: CpuSet::new(), distances: d };
        assert_eq!(Topology::new(vec![], vec![]).unwrap_err(), TopologyError::NoCpu);
        assert_eq!(
            Topology::new(vec![cpu, cpu], vec![node(vec![10])]).unwrap_err(),
            TopologyError::Twice(1)
        );
        assert!(matches!(
            Topology::new(vec![cpu], vec![]).unwrap_err(),
            TopologyError::NoNode { .. }
        ));
        assert!(matches!(
            Topology::new(vec![cpu], vec![node(vec![])]).unwrap_err(),
            TopologyError::Distances { .. }
        ));
    }
}
