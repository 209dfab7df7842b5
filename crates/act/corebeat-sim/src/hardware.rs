//! The hardware of a simulated machine, and the settings of its scheduler.

use crate::Error;
use crate::error::number;
use corebeat_machine::{Cpu, CpuId, Node, NodeId, Topology};
use serde::Deserialize;

/// Maximum number of CPUs of a machine.
pub const CPUS_MAX: u32 = 1024;
/// Maximum number of NUMA nodes of a machine.
pub const NODES_MAX: u32 = 64;
/// Maximum size of a cache, and of a thread's footprint, in KiB.
pub(crate) const CACHE_KIB_MAX: u64 = 1 << 32;
/// Maximum cost of an operation of the machine, in nanoseconds.
const COST_NS_MAX: u64 = 1_000_000_000;
/// Maximum length of a slice or period, in microseconds.
const PERIOD_US_MAX: f64 = 1e9;

/// Scheduling discipline of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduler {
    /// By virtual run time, as in Linux: the thread with the least CPU time for its weight is next.
    #[default]
    Fair,
    /// By dynamic priorities, as in Solaris' TS class: a priority falls when its thread uses up a
    /// quantum, and rises after a sleep and after a second without a CPU. Threads of class batch
    /// have one fixed priority (FX).
    TimeShare,
    /// As `TimeShare`, with more properties of OpenSolaris' dispatcher: a sleep raises a priority
    /// only if the priority has not changed since the last tick of a second, and does not renew
    /// the quantum otherwise. A thread that ran within 30 ms returns to its CPU, even a busy one
    /// (`rechoose_interval`); an idle CPU steals the thread after 100 µs (`nosteal_nsec`).
    Solaris,
}

impl Scheduler {
    /// Returns whether priorities are dynamic.
    pub(crate) fn is_time_share(self) -> bool {
        self != Scheduler::Fair
    }
}

/// The hardware of a machine: in a scenario, the table `[machine]`. All keys are optional.
///
/// Distances are the unit of all NUMA costs: 10 is local, and an access at distance 22 takes 2.2
/// times as long.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Hardware {
    /// Number of packages. Default: 1.
    pub packages: u32,
    /// Number of NUMA nodes per package, each with memory and a controller. Default: 1.
    pub nodes: u32,
    /// Number of shared caches per node. Default: 1.
    pub caches: u32,
    /// Number of cores per shared cache. Default: 1.
    pub cores: u32,
    /// Distance matrix, one row per node. Default: 10 to the node itself, 20 to all others.
    pub distances: Vec<Vec<u32>>,
    /// Scheduling discipline. Default: fair.
    pub scheduler: Scheduler,
    /// Default slice, in microseconds: how long a thread runs before other ready threads do.
    /// Default: 3,000. Time-sharing disciplines have a table of their own.
    pub slice_us: f64,
    /// Period of the kernel's tick, in microseconds. Slices end at ticks. Default: 0, which ends
    /// slices exactly.
    pub tick_us: f64,
    /// Period of load balancing, in microseconds. Default: 4,000.
    pub balance_us: f64,
    /// Cost of a context switch, in nanoseconds. Default: 1,500.
    pub switch_ns: u64,
    /// Cost of waking a thread, in nanoseconds, which the waker pays. Default: 2,000.
    pub wake_ns: u64,
    /// Cost of a migration to another CPU, in nanoseconds. Default: 5,000. The machine of Pusukuri
    /// 2012, section 3.1.1, took 100,000.
    pub migrate_ns: u64,
    /// Time to transfer a cache line between cores at distance 10, in nanoseconds. Default: 50.
    pub line_ns: u64,
    /// Size of a core's private cache, in KiB. Default: 512.
    pub core_cache_kib: u64,
    /// Size of a shared cache, in KiB. Default: 6,144.
    pub cache_kib: u64,
    /// Time to fill 1 KiB of a private cache from the shared cache, in nanoseconds. Default: 50.
    pub core_fill_ns: u64,
    /// Time to fill 1 KiB of a cache from memory, in nanoseconds. Default: 200.
    pub fill_ns: u64,
    /// Number of threads that only wait for memory which a controller serves at full speed. With
    /// more threads, all wait longer. Default: 4.
    pub controller_threads: f64,
}

impl Default for Hardware {
    fn default() -> Self {
        Hardware {
            packages: 1,
            nodes: 1,
            caches: 1,
            cores: 1,
            distances: vec![],
            scheduler: Scheduler::Fair,
            slice_us: 3_000.0,
            tick_us: 0.0,
            balance_us: 4_000.0,
            switch_ns: 1_500,
            wake_ns: 2_000,
            migrate_ns: 5_000,
            line_ns: 50,
            core_cache_kib: 512,
            cache_kib: 6_144,
            core_fill_ns: 50,
            fill_ns: 200,
            controller_threads: 4.0,
        }
    }
}

impl Hardware {
    /// Creates a machine of one package with this many cores.
    pub fn flat(cores: u32) -> Self {
        Hardware { cores, ..Hardware::default() }
    }

    /// Returns the number of CPUs.
    pub fn cpus(&self) -> u32 {
        [self.nodes, self.caches, self.cores]
            .iter()
            .fold(self.packages, |n, &m| n.saturating_mul(m))
    }

    /// Returns the topology of the machine.
    ///
    /// # Errors
    /// [`Error::Machine`] if a value is out of range.
    pub fn topology(&self) -> Result<Topology, Error> {
        self.check()?;
        let distances = self.distances()?;
        let (a_node, a_package) = (self.caches * self.cores, self.nodes * self.caches * self.cores);
        let cpu = |c: u32| Cpu {
            id: CpuId(c),
            package: c / a_package,
            core: c,
            node: NodeId(c / a_node),
            cache: c / self.cores,
        };
        let node = |(n, distances): (usize, Vec<u32>)| {
            let first = n as u32 * a_node;
            Node {
                id: NodeId(n as u32),
                cpus: (first..first + a_node).map(CpuId).collect(),
                distances,
            }
        };
        let nodes = distances.into_iter().enumerate().map(node).collect();
        Topology::new((0..self.cpus()).map(cpu).collect(), nodes)
            .map_err(|e| Error::Machine(e.to_string()))
    }

    /// Checks all values but the distances.
    fn check(&self) -> Result<(), Error> {
        let error = |what: String| Err(Error::Machine(what));
        for (name, count) in [
            ("packages", self.packages),
            ("nodes", self.nodes),
            ("caches", self.caches),
            ("cores", self.cores),
        ] {
            if count == 0 {
                return error(format!("{name} is 0; write 1 or more"));
            }
        }
        let (nodes, cpus) = (self.packages.saturating_mul(self.nodes), self.cpus());
        if cpus > CPUS_MAX {
            return error(format!("{cpus} CPUs; write no more than {CPUS_MAX}"));
        }
        if nodes > NODES_MAX {
            return error(format!("{nodes} nodes; write no more than {NODES_MAX}"));
        }
        for (name, us, least) in [
            ("slice_us", self.slice_us, 1.0),
            ("balance_us", self.balance_us, 1.0),
            ("tick_us", self.tick_us, 0.0),
        ] {
            if !(least..=PERIOD_US_MAX).contains(&us) {
                return error(format!(
                    "{name} is {}; write {least} to {PERIOD_US_MAX}",
                    number(us)
                ));
            }
        }
        for (name, value, most) in [
            ("switch_ns", self.switch_ns, COST_NS_MAX),
            ("wake_ns", self.wake_ns, COST_NS_MAX),
            ("migrate_ns", self.migrate_ns, COST_NS_MAX),
            ("line_ns", self.line_ns, COST_NS_MAX),
            ("core_fill_ns", self.core_fill_ns, COST_NS_MAX),
            ("fill_ns", self.fill_ns, COST_NS_MAX),
            ("core_cache_kib", self.core_cache_kib, CACHE_KIB_MAX),
            ("cache_kib", self.cache_kib, CACHE_KIB_MAX),
        ] {
            if value > most {
                return error(format!("{name} is {value}; write no more than {most}"));
            }
        }
        match (1e-3..=1e6).contains(&self.controller_threads) {
            true => Ok(()),
            false => error(format!(
                "controller_threads is {}; write a number from 0.001 to 1000000",
                number(self.controller_threads)
            )),
        }
    }

    /// Returns the distances between all nodes.
    fn distances(&self) -> Result<Vec<Vec<u32>>, Error> {
        let error = |what: String| Err(Error::Machine(what));
        let nodes = self.packages * self.nodes;
        if self.distances.is_empty() {
            let distance = |a, b| if a == b { 10 } else { 20 };
            return Ok((0..nodes).map(|a| (0..nodes).map(|b| distance(a, b)).collect()).collect());
        }
        let is_row = |row: &Vec<u32>| row.len() == nodes as usize;
        if self.distances.len() != nodes as usize || !self.distances.iter().all(is_row) {
            return error(format!(
                "distances is not a matrix of {nodes} rows of {nodes}; write a row for each node"
            ));
        }
        if self.distances.iter().flatten().any(|&d| !(10..=255).contains(&d)) {
            return error("a distance is out of range; write 10 (local) to 255".into());
        }
        if let Some(n) = self.distances.iter().enumerate().position(|(n, row)| row[n] != 10) {
            return error(format!("distances, row {}: write 10 from a node to itself", n + 1));
        }
        Ok(self.distances.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topology_has_all_levels() {
        let hardware =
            Hardware { packages: 2, nodes: 2, caches: 2, cores: 3, ..Hardware::default() };
        let topology = hardware.topology().unwrap();
        assert_eq!(topology.cpus().len(), 24);
        let last = topology.cpus()[23];
        assert_eq!((last.package, last.node, last.cache), (1, NodeId(3), 7));
        assert_eq!(topology.nodes()[1].cpus.to_string(), "6-11");
        assert_eq!(topology.nodes()[2].distances, [20, 20, 10, 20]);
    }

    #[test]
    fn invalid_hardware_is_rejected() {
        let flat = Hardware::flat(1);
        let far =
            Hardware { packages: 2, distances: vec![vec![10, 20], vec![20, 12]], ..flat.clone() };
        for (hardware, part) in [
            (Hardware::flat(0), "cores is 0"),
            (Hardware { packages: 5000, ..Hardware::flat(9) }, "45000 CPUs"),
            (Hardware { distances: vec![vec![10, 20]], ..flat.clone() }, "1 rows of 1"),
            (far, "row 2: write 10 from a node to itself"),
            (Hardware { slice_us: -3.0, ..flat.clone() }, "slice_us is -3"),
            (Hardware { tick_us: f64::NAN, ..flat.clone() }, "tick_us is"),
            (Hardware { line_ns: u64::MAX, ..flat.clone() }, "line_ns is"),
            (Hardware { cache_kib: u64::MAX, ..flat.clone() }, "cache_kib is"),
            (Hardware { controller_threads: 0.0, ..flat }, "from 0.001"),
        ] {
            let message = hardware.topology().unwrap_err().to_string();
            assert!(message.contains(part), "{part}: {message}");
        }
    }
}
