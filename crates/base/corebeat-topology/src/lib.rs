//! Topology of this host: the online CPUs with their cores, packages, caches and NUMA nodes, read
//! from `/sys/devices/system`.
//!
//! Place in the loop: base; uses `corebeat-machine`. The crate makes no system calls other than
//! those that read files, so that libraries can use the topology without the Linux machine.
//!
//! # Example
//!
//! ```
//! let topology = corebeat_topology::topology();
//! for node in topology.nodes() {
//!     println!("node {}: CPUs {}", node.id.0, node.cpus);
//! }
//! assert!(!topology.cpus().is_empty());
//! ```
//!
//! # Model
//!
//! ```text
//!   /sys/devices/system/cpu/online              Topology
//!                       cpu/cpuN/topology/  -->   cpus:  id, package, core, cache, node
//!                       cpu/cpuN/cache/           nodes: id, CPUs, distances
//!                       node/nodeN/
//! ```
//!
//! # Invariants
//!
//! 1. Every CPU of the topology is on one node (`topology_of_this_host_has_every_cpu_on_a_node`).
//! 2. No text in `/sys` causes a panic (`topology_of_garbage_never_panics`).
//!
//! # Failure
//!
//! No function fails. A container may hide `/sys` or parts of it; the crate assumes a flat machine
//! for hidden parts (`topology_with_only_an_online_list_keeps_the_cpus`).
//!
//! # Limits
//!
//! - The topology lists online CPUs, not those to which the calling process is restricted;
//!   [`Topology::restricted`] selects a part.
//! - CPUs that go online or offline later do not change a topology that was read before.
#![forbid(unsafe_code)]

use corebeat_machine::{Cpu, CpuId, CpuSet, Node, NodeId, Topology};
use std::fs;
use std::path::Path;

/// Folder in which the kernel describes the hardware.
pub const SYS: &str = "/sys/devices/system";

/// Distance of a node to itself (ACPI SLIT).
const DISTANCE_LOCAL: u32 = 10;
/// Distance between two nodes if the firmware has no distance table, as in the kernel
/// (`REMOTE_DISTANCE`).
const DISTANCE_REMOTE: u32 = 20;

/// Returns the online CPUs of this host and their nodes.
pub fn topology() -> Topology {
    read(Path::new(SYS))
}

/// Returns the online CPUs and their nodes as described under `root`.
fn read(root: &Path) -> Topology {
    describe(root).unwrap_or_else(|| {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        Topology::flat(cpus)
    })
}

fn text(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

fn set(path: &Path) -> Option<CpuSet> {
    text(path)?.parse().ok()
}

fn number(path: &Path) -> Option<u32> {
    // The kernel writes -1 for a package that the firmware does not name: not described.
    text(path)?.trim().parse().ok()
}

fn describe(root: &Path) -> Option<Topology> {
    let online = set(&root.join("cpu/online")).filter(|s| !s.is_empty())?;
    let nodes = nodes(root, &online);
    let cpus = online.iter().map(|id| {
        let dir = root.join(format!("cpu/cpu{}", id.0));
        Cpu {
            id,
            package: number(&dir.join("topology/physical_package_id")).unwrap_or(0),
            core: lowest(&dir.join("topology/thread_siblings_list"), &online).unwrap_or(id.0),
            node: nodes.iter().find(|n| n.cpus.contains(id)).map_or(nodes[0].id, |n| n.id),
            cache: last_cache(&dir, &online).unwrap_or(0),
        }
    });
    Topology::new(cpus.collect(), nodes).ok()
}

/// Returns the lowest online CPU of a list. The number is equal for all CPUs of the list, and thus
/// identifies the core or cache that the list describes. `core_id` does not identify a core: it
/// need not be unique within a package with several dies or clusters.
fn lowest(list: &Path, online: &CpuSet) -> Option<u32> {
    set(list)?.iter().find(|&c| online.contains(c)).map(|c| c.0)
}

fn last_cache(cpu: &Path, online: &CpuSet) -> Option<u32> {
    let entries = fs::read_dir(cpu.join("cache")).ok()?;
    let last = entries.flatten().map(|e| e.path()).max_by_key(|p| number(&p.join("level")))?;
    lowest(&last.join("shared_cpu_list"), online)
}

/// Returns the nodes with their online CPUs. Nodes without CPUs (memory only) are included, because
/// pages can be moved there. CPUs that no node lists belong to the first node.
fn nodes(root: &Path, online: &CpuSet) -> Vec<Node> {
    let names = set(&root.join("node/online")).filter(|s| !s.is_empty());
    let mut nodes: Vec<Node> = names
        .unwrap_or_default()
        .iter()
        .map(|id| {
            let dir = root.join(format!("node/node{}", id.0));
            let cpus = set(&dir.join("cpulist")).unwrap_or_default();
            let distances = text(&dir.join("distance")).unwrap_or_default();
            Node {
                id: NodeId(id.0),
                cpus: cpus.iter().filter(|&c| online.contains(c)).collect(),
                distances: distances
                    .split_ascii_whitespace()
                    .filter_map(|d| d.parse().ok())
                    .collect(),
            }
        })
        .collect();
    if nodes.is_empty() {
        nodes.push(Node { id: NodeId(0), cpus: CpuSet::new(), distances: Vec::new() });
    }
    let unlisted: Vec<CpuId> =
        online.iter().filter(|&c| !nodes.iter().any(|n| n.cpus.contains(c))).collect();
    unlisted.into_iter().for_each(|c| nodes[0].cpus.insert(c));
    let count = nodes.len();
    for (i, node) in nodes.iter_mut().enumerate() {
        if node.distances.len() != count {
            let distance = |j| if i == j { DISTANCE_LOCAL } else { DISTANCE_REMOTE };
            node.distances = (0..count).map(distance).collect();
        }
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Creates a tree of files from paths and contents.
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        dir
    }

    #[test]
    fn topology_of_two_nodes_with_smt_and_a_hole_is_read() {
        // CPU 2 is offline; CPUs 0 and 1 are threads of one core, CPUs 3 and 4 of another on the
        // second node.
        let mut files = vec![
            ("cpu/online", "0-1,3-4\n"),
            ("node/online", "0,2\n"),
            ("node/node0/cpulist", "0-2\n"),
            ("node/node0/distance", "10 21\n"),
            ("node/node2/cpulist", "3-4\n"),
            ("node/node2/distance", "21 10\n"),
        ];
        let described: Vec<(String, String)> = [(0, 0), (1, 0), (3, 1), (4, 1)]
            .iter()
            .flat_map(|&(cpu, package)| {
                let dir = format!("cpu/cpu{cpu}");
                let shared = if package == 0 { "0-2" } else { "3-4" };
                [
                    (format!("{dir}/topology/physical_package_id"), package.to_string()),
                    (format!("{dir}/topology/thread_siblings_list"), shared.to_owned()),
                    (format!("{dir}/cache/index0/level"), "1".to_owned()),
                    (format!("{dir}/cache/index0/shared_cpu_list"), cpu.to_string()),
                    (format!("{dir}/cache/index3/level"), "3".to_owned()),
                    (format!("{dir}/cache/index3/shared_cpu_list"), shared.to_owned()),
                ]
            })
            .collect();
        files.extend(described.iter().map(|(p, c)| (p.as_str(), c.as_str())));
        let dir = tree(&files);

        let topology = read(dir.path());
        assert_eq!(topology.cpu_set().to_string(), "0-1,3-4");
        let place: Vec<_> =
            topology.cpus().iter().map(|c| (c.package, c.core, c.node.0, c.cache)).collect();
        assert_eq!(place, [(0, 0, 0, 0), (0, 0, 0, 0), (1, 3, 2, 3), (1, 3, 2, 3)]);
        let nodes: Vec<_> = topology.nodes().iter().map(|n| n.cpus.to_string()).collect();
        assert_eq!(nodes, ["0-1", "3-4"]);
        assert_eq!(topology.nodes()[1].distances, [21, 10]);
    }

    #[test]
    fn topology_without_sys_is_flat() {
        let topology = read(Path::new("/nowhere"));
        let cpus = std::thread::available_parallelism().unwrap().get();
        assert_eq!(topology, Topology::flat(cpus as u32));
    }

    #[test]
    fn topology_with_only_the_online_list_keeps_the_cpus() {
        let topology = read(tree(&[("cpu/online", "0-2,7\n")]).path());
        assert_eq!(topology.cpu_set().to_string(), "0-2,7");
        assert_eq!(topology.nodes()[0].cpus.to_string(), "0-2,7");
    }

    #[test]
    fn topology_with_a_memory_node_and_no_distances_is_read() {
        let dir = tree(&[
            ("cpu/online", "0-1\n"),
            ("node/online", "0-1\n"),
            ("node/node0/cpulist", "0-1\n"),
            ("node/node1/cpulist", "\n"),
        ]);
        let topology = read(dir.path());
        assert_eq!(topology.nodes().len(), 2);
        assert!(topology.nodes()[1].cpus.is_empty());
        assert_eq!(topology.nodes()[0].distances, [10, 20]);
    }

    #[test]
    fn topology_of_this_host_has_every_cpu_on_a_node() {
        let topology = read(Path::new(SYS));
        for cpu in topology.cpus() {
            let node = topology.nodes().iter().find(|n| n.id == cpu.node).unwrap();
            assert!(node.cpus.contains(cpu.id));
        }
    }

    proptest! {
        #[test]
        fn topology_of_garbage_never_panics(
            online in "[0-9,\n-]{0,8}", nodes in "[0-9,-]{0,4}", list in "\\PC{0,8}",
            distance in "[0-9 x]{0,8}",
        ) {
            let dir = tree(&[
                ("cpu/online", &online),
                ("node/online", &nodes),
                ("node/node0/cpulist", &list),
                ("node/node0/distance", &distance),
                ("cpu/cpu0/topology/thread_siblings_list", &list),
            ]);
            prop_assert!(!read(dir.path()).cpus().is_empty());
        }
    }
}
