//! What a simulated machine is built of, and how its scheduler is set.

use crate::Error;
use crate::error::number;
use corebeat_machine::{Cpu, CpuId, Node, NodeId, Topology};
use serde::Deserialize;

/// No machine has more CPUs.
pub const CPUS_MAX: u32 = 1024;
/// Nor more NUMA nodes.
pub const NODES_MAX: u32 = 64;
/// No cache is larger, nor what a thread uses of them, in KiB.
pub(crate) const CACHE_KIB_MAX: u64 = 1 << 32;
/// Nothing that the machine does costs more, in nanoseconds.
const COST_NS_MAX: u64 = 1_000_000_000;
/// No slice or period is longer, in microseconds.
const PERIOD_US_MAX: f64 = 1e9;

/// How threads take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduler {
    /// By virtual run time, as Linux: who had least for its weight is next.
    #[default]
    Fair,
    /// By priorities that change, as Solaris' TS class: down when a quantum is used up, up after a sleep and after a second
    /// without the CPU. Threads of class batch have one fixed priority there (FX).
    TimeShare,
    /// The same with more of what OpenSolaris' dispatcher does: a sleep raises a thread only where its priority has not changed since the
    /// last tick of a second, and its quantum goes on over other sleeps; a thread that ran within 30 ms goes back to where it ran, also if
    /// another runs there (`rechoose_interval`), and an idle CPU takes it from there after 100 µs (`nosteal_nsec`).
    Solaris,
}

impl Scheduler {
    /// Whether it goes by priorities that change.
    pub(crate) fn is_time_share(self) -> bool {
        self != Scheduler::Fair
    }
}

/// A machine. In a scenario this is the table `[machine]`; what is left out has the default.
///
/// Distances are the unit of all that NUMA costs: 10 is local, and at distance 22 everything takes 2.2 times as long.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Hardware {
    /// Packages. Default 1.
    pub packages: u32,
    /// NUMA nodes of a package, each with its memory and its controller. Default 1.
    pub nodes: u32,
    /// Shared caches of a node. Default 1.
    pub caches: u32,
    /// Cores of a shared cache. Default 1.
    pub cores: u32,
    /// A row for each node: the distance to every node. Default 10 to itself, 20 to all others.
    pub distances: Vec<Vec<u32>>,
    /// How threads take turns. Default fair.
    pub scheduler: Scheduler,
    /// How long a thread runs until others get their turn, in microseconds, where nobody asks for another. Default
    /// 3,000. A time-sharing machine has its own table.
    pub slice_us: f64,
    /// From one tick of the kernel's clock to the next, in microseconds: a slice that is used up ends at a tick. Default 0:
    /// it ends at once.
    pub tick_us: f64,
    /// From one balancing of the run queues to the next, in microseconds. Default 4,000.
    pub balance_us: f64,
    /// What the kernel takes to switch threads, in nanoseconds. Default 1,500.
    pub switch_ns: u64,
    /// What the kernel takes to wake a thread, in nanoseconds, of who wakes it. Default 2,000.
    pub wake_ns: u64,
    /// What the kernel takes to move a thread to another CPU, in nanoseconds. Default 5,000. The machine of Pusukuri
    /// 2012, section 3.1.1, took 100,000.
    pub migrate_ns: u64,
    /// What a cache line takes from one core to another at distance 10, in nanoseconds. Default 50.
    pub line_ns: u64,
    /// A core's own cache, in KiB. Default 512.
    pub core_cache_kib: u64,
    /// Each shared cache, in KiB. Default 6,144.
    pub cache_kib: u64,
    /// What it takes to fill a KiB of a core's cache from the shared one, in nanoseconds. Default 50.
    pub core_fill_ns: u64,
    /// What it takes to fill a KiB of a cache from memory, in nanoseconds. Default 200.
    pub fill_ns: u64,
    /// How many threads that do nothing but wait for memory one controller serves at full speed; with more, all wait
    /// longer. Default 4.
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
    /// One package with this many cores.
    pub fn flat(cores: u32) -> Self {
        Hardware { cores, ..Hardware::default() }
    }

    /// How many CPUs it has.
    pub fn cpus(&self) -> u32 {
        [self.nodes, self.caches, self.cores].iter().fold(self.packages, |n, &m| n.saturating_mul(m))
    }

    /// Its topology.
    ///
    /// # Errors
    /// [`Error::Machine`] where a number is none that a machine has.
    pub fn topology(&self) -> Result<Topology, Error> {
        let wrong = |what: String| Err(Error::Machine(what));
        for (name, count) in [
            ("packages", self.packages),
            ("nodes", self.nodes),
            ("caches", self.caches),
            ("cores", self.cores),
        ] {
            if count == 0 {
                return wrong(format!("{name} is 0; write 1 or more"));
            }
        }
        let (nodes, cpus) = (self.packages.saturating_mul(self.nodes), self.cpus());
        if cpus > CPUS_MAX {
            return wrong(format!("{cpus} CPUs; write no more than {CPUS_MAX}"));
        }
        if nodes > NODES_MAX {
            return wrong(format!("{nodes} nodes; write no more than {NODES_MAX}"));
        }
        for (name, us) in [("slice_us", self.slice_us), ("balance_us", self.balance_us)] {
            if !(1.0..=PERIOD_US_MAX).contains(&us) {
                return wrong(format!("{name} is {}; write 1 to {PERIOD_US_MAX}", number(us)));
            }
        }
        if !(0.0..=PERIOD_US_MAX).contains(&self.tick_us) {
            return wrong(format!("tick_us is {}; write 0 to {PERIOD_US_MAX}", number(self.tick_us)));
        }
        for (name, ns) in [
            ("switch_ns", self.switch_ns),
            ("wake_ns", self.wake_ns),
            ("migrate_ns", self.migrate_ns),
            ("line_ns", self.line_ns),
            ("core_fill_ns", self.core_fill_ns),
            ("fill_ns", self.fill_ns),
        ] {
            if ns > COST_NS_MAX {
                return wrong(format!("{name} is {ns}; write no more than {COST_NS_MAX}"));
            }
        }
        for (name, kib) in [("core_cache_kib", self.core_cache_kib), ("cache_kib", self.cache_kib)] {
            if kib > CACHE_KIB_MAX {
                return wrong(format!("{name} is {kib}; write no more than {CACHE_KIB_MAX}"));
            }
        }
        if !(1e-3..=1e6).contains(&self.controller_threads) {
            return wrong(format!(
                "controller_threads is {}; write a number from 0.001 to 1000000",
                number(self.controller_threads)
            ));
        }
        let distances = match self.distances.is_empty() {
            true => (0..nodes).map(|a| (0..nodes).map(|b| if a == b { 10 } else { 20 }).collect()).collect(),
            false => self.distances.clone(),
        };
        let square =
            distances.len() == nodes as usize && distances.iter().all(|row| row.len() == nodes as usize);
        if !square {
            return wrong(format!("distances has not {nodes} rows of {nodes}, one for each node"));
        }
        if distances.iter().flatten().any(|&d| !(10..=255).contains(&d)) {
            return wrong("distances are from 10 (local) to 255".into());
        }
        if let Some(n) = distances.iter().enumerate().position(|(n, row)| row[n] != 10) {
            return wrong(format!("distances, row {}: from a node to itself it is 10", n + 1));
        }
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
            Node { id: NodeId(n as u32), cpus: (first..first + a_node).map(CpuId).collect(), distances }
        };
        let nodes = distances.into_iter().enumerate().map(node).collect();
        Topology::new((0..cpus).map(cpu).collect(), nodes).map_err(|e| Error::Machine(e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topology_has_all_levels() {
        let hardware = Hardware { packages: 2, nodes: 2, caches: 2, cores: 3, ..Hardware::default() };
        let topology = hardware.topology().unwrap();
        assert_eq!(topology.cpus().len(), 24);
        let last = topology.cpus()[23];
        assert_eq!((last.package, last.node, last.cache), (1, NodeId(3), 7));
        assert_eq!(topology.nodes()[1].cpus.to_string(), "6-11");
        assert_eq!(topology.nodes()[2].distances, [20, 20, 10, 20]);
    }

    #[test]
    fn hardware_mistakes_are_told() {
        let told = |hardware: Hardware| hardware.topology().unwrap_err().to_string();
        assert!(told(Hardware::flat(0)).contains("cores is 0"));
        assert!(told(Hardware { packages: 5000, ..Hardware::flat(9) }).contains("45000 CPUs"));
        assert!(
            told(Hardware { distances: vec![vec![10, 20]], ..Hardware::flat(1) }).contains("1 rows of 1")
        );
        let far = Hardware { packages: 2, distances: vec![vec![10, 20], vec![20, 12]], ..Hardware::flat(1) };
        assert!(told(far).contains("row 2: from a node to itself it is 10"));
        assert!(told(Hardware { slice_us: -3.0, ..Hardware::flat(1) }).contains("slice_us is -3"));
        assert!(told(Hardware { tick_us: f64::NAN, ..Hardware::flat(1) }).contains("tick_us is"));
        assert!(told(Hardware { line_ns: u64::MAX, ..Hardware::flat(1) }).contains("line_ns is"));
        assert!(told(Hardware { cache_kib: u64::MAX, ..Hardware::flat(1) }).contains("cache_kib is"));
        assert!(told(Hardware { controller_threads: 0.0, ..Hardware::flat(1) }).contains("from 0.001"));
    }
}
