//! How a machine is put together: CPUs in cores, caches, packages and NUMA nodes.

use crate::{CpuId, CpuSet, NodeId};
use serde::{Deserialize, Serialize};

/// A logical CPU and where it sits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    /// Its number.
    pub id: CpuId,
    /// The package (socket), by the operating system's number.
    pub package: u32,
    /// The core; CPUs of one package with the same core number are hardware threads of one core.
    pub core: u32,
    /// The NUMA node whose memory is nearest.
    pub node: NodeId,
    /// The last-level cache: CPUs with the same number share one.
    pub cache: u32,
}

/// A NUMA node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its number.
    pub id: NodeId,
    /// Its CPUs.
    pub cpus: CpuSet,
    /// The distance to every node, in the order of [`Topology::nodes`]; 10 is local (ACPI SLIT units).
    pub distances: Vec<u32>,
}

/// A machine's CPUs and nodes. Never without a CPU, never without a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Topology {
    cpus: Vec<Cpu>,
    nodes: Vec<Node>,
}

/// Why CPUs and nodes do not make a topology.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// No CPU was given.
    #[error("a machine needs at least one CPU")]
    NoCpu,
    /// A number was given twice.
    #[error("CPU {0} is described twice")]
    Twice(u32),
    /// A CPU sits on a node that is not there.
    #[error("CPU {cpu} is on node {node}, which is not described")]
    NoNode {
        /// The CPU.
        cpu: u32,
        /// The node it names.
        node: u32,
    },
    /// A node has more or fewer distances than there are nodes.
    #[error("node {node} has {found} distances; the machine has {expected} nodes")]
    Distances {
        /// The node.
        node: u32,
        /// How many distances it has.
        found: usize,
        /// How many nodes there are.
        expected: usize,
    },
}

impl Topology {
    /// A topology of these CPUs and nodes, put in ascending order.
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

    /// One package, one node, one shared cache, `cpus` cores of one thread each: what is assumed where nothing is told.
    ///
    /// # Panics
    /// If `cpus` is 0.
    pub fn flat(cpus: u32) -> Self {
        let all: Vec<Cpu> =
            (0..cpus).map(|c| Cpu { id: CpuId(c), package: 0, core: c, node: NodeId(0), cache: 0 }).collect();
        let set = all.iter().map(|c| c.id).collect();
        let node = Node { id: NodeId(0), cpus: set, distances: vec![10] };
        Topology::new(all, vec![node]).expect("a flat topology needs at least one CPU")
    }

    /// The CPUs in ascending order.
    pub fn cpus(&self) -> &[Cpu] {
        &self.cpus
    }

    /// The nodes in ascending order.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// All CPUs as a set.
    pub fn cpu_set(&self) -> CpuSet {
        self.cpus.iter().map(|c| c.id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topology_flat_has_one_of_everything_but_cores() {
        let t = Topology::flat(4);
        assert_eq!(t.cpu_set().to_string(), "0-3");
        assert_eq!(t.nodes().len(), 1);
    }

    #[test]
    fn topology_mistakes_are_told() {
        let cpu = Cpu { id: CpuId(1), package: 0, core: 0, node: NodeId(3), cache: 0 };
        let node = |d: Vec<u32>| Node { id: NodeId(3), cpus: CpuSet::new(), distances: d };
        assert_eq!(Topology::new(vec![], vec![]).unwrap_err(), TopologyError::NoCpu);
        assert_eq!(Topology::new(vec![cpu, cpu], vec![node(vec![10])]).unwrap_err(), TopologyError::Twice(1));
        assert!(matches!(Topology::new(vec![cpu], vec![]).unwrap_err(), TopologyError::NoNode { .. }));
        assert!(matches!(
            Topology::new(vec![cpu], vec![node(vec![])]).unwrap_err(),
            TopologyError::Distances { .. }
        ));
    }
}
