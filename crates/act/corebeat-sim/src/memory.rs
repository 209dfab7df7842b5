//! The cost of memory and caches: distance, controller load, shared-cache pressure, cold caches.
//!
//! ```text
//!   time of work  =  computing  +  misses * distance of the data * load of its controller
//!                                    |
//!                                    `- share of references that miss the shared cache: `memory`
//!                                       alone; more where its threads' data do not fit
//! ```

use crate::Hardware;
use crate::cpu::{Cpu, Cpus};
use crate::event::{Event, EventQueue};
use crate::process::Process;
use crate::program::Placement;
use crate::random::Random;
use crate::thread::{Activity, Thread};
use corebeat_machine::{NodeId, Topology};

/// Cache lines per KiB: the references that fill a cold cache.
const LINES_PER_KIB: f64 = 16.0;
/// The unit of shares of memory.
const WHOLE: u64 = 1_000_000;
/// Random placement gives each node up to this share more or less than the others.
const RANDOM_SPREAD: f64 = 0.05;
/// Speed of a page migration, in MiB per second.
const MOVED_MIB_S: u64 = 1_024;

/// A migration of a program's pages.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Migration {
    program: usize,
    from: Vec<usize>,
    to: Destination,
    is_done: bool,
}

impl Migration {
    /// Whether the migration changes where these pages are.
    fn moves(&self, pages: &[u64]) -> bool {
        let mut after = pages.to_vec();
        self.to.receive(&mut after, &self.from, None);
        after != pages
    }
}

/// The destination of migrated pages.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Destination {
    /// Equal parts to each of these nodes.
    Nodes(Vec<usize>),
    /// Private pages to the node where their thread last ran, shared pages to the node of the
    /// first thread.
    Users,
}

impl Destination {
    /// Moves the pages on some nodes. Pages that are not placed yet stay so.
    fn receive(&self, pages: &mut [u64], from: &[usize], user: Option<usize>) {
        let user = user.as_slice();
        let to = if let Destination::Nodes(nodes) = self { nodes } else { user };
        if pages.is_empty() || to.is_empty() {
            return;
        }
        let sum: u64 = from.iter().map(|&n| std::mem::take(&mut pages[n])).sum();
        let part = sum / to.len() as u64;
        to.iter().for_each(|&n| pages[n] += part);
        pages[to[0]] += sum - part * to.len() as u64;
    }
}

/// Caches, memory controllers and page migrations.
#[derive(Debug)]
pub(crate) struct Memory {
    nodes: Vec<NodeId>,
    /// Distances between nodes; 10 is local.
    distances: Vec<Vec<u64>>,
    /// Sum of all threads' demand on each node's controller, in millionths.
    demand: Vec<u64>,
    /// Sum of the footprints of the running threads of each shared cache, in KiB.
    pressure: Vec<u64>,
    migrations: Vec<Migration>,
}

impl Memory {
    pub(crate) fn new(topology: &Topology, cpus: &Cpus) -> Self {
        let nodes = topology.nodes();
        let caches = cpus.iter().map(|c| c.cache).max().unwrap_or(0) + 1;
        Memory {
            nodes: nodes.iter().map(|n| n.id).collect(),
            distances: nodes
                .iter()
                .map(|n| n.distances.iter().map(|&d| d.into()).collect())
                .collect(),
            demand: vec![0; nodes.len()],
            pressure: vec![0; caches],
            migrations: vec![],
        }
    }

    /// Number of nodes.
    pub(crate) fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Distance between two nodes; 10 is local.
    pub(crate) fn distance(&self, from: usize, to: usize) -> u64 {
        self.distances[from][to]
    }

    /// Places the pages of a thread that runs for the first time, and those of its program.
    pub(crate) fn place(
        &self,
        thread: &mut Thread,
        program: &mut Process,
        node: usize,
        random: &mut Random,
    ) {
        if program.pages.is_empty() {
            program.pages = self.placed(program.placement, node, random);
        }
        if thread.pages.is_empty() {
            thread.pages = self.placed(program.placement, node, random);
        }
    }

    fn placed(&self, placement: Placement, node: usize, random: &mut Random) -> Vec<u64> {
        let nodes = self.nodes();
        let mut parts: Vec<f64> = match placement {
            Placement::NextTouch => (0..nodes).map(|n| if n == node { 1.0 } else { 0.0 }).collect(),
            Placement::Random => (0..nodes).map(|_| random.around(1e3, RANDOM_SPREAD)).collect(),
            Placement::RoundRobin => vec![1.0; nodes],
        };
        let sum: f64 = parts.iter().sum();
        parts.iter_mut().for_each(|part| *part = *part / sum * WHOLE as f64);
        parts.into_iter().map(|part| part as u64).collect()
    }

    /// Charges a thread that is dispatched: the kernel's switch, a migration, and the caches that
    /// are cold for the thread.
    pub(crate) fn dispatch(
        &mut self,
        cpus: &Cpus,
        c: usize,
        thread: &mut Thread,
        is_other: bool,
        hardware: &Hardware,
    ) {
        let cache = cpus[c].cache;
        let core_kib = thread.footprint_kib.min(hardware.core_cache_kib);
        let all_kib = thread.footprint_kib.min(hardware.cache_kib);
        self.pressure[cache] += thread.footprint_kib;
        match thread.ran_on.replace(c) {
            Some(before) if before != c => {
                thread.account.migrations += 1;
                thread.debt_system += hardware.switch_ns + hardware.migrate_ns;
                if cpus[before].cache == cache {
                    thread.owe(core_kib * hardware.core_fill_ns);
                    thread.account.references += core_kib as f64 * LINES_PER_KIB;
                } else {
                    thread.owe(all_kib * hardware.fill_ns);
                    thread.account.references += all_kib as f64 * LINES_PER_KIB;
                    thread.account.misses += all_kib as f64 * LINES_PER_KIB;
                }
            }
            Some(_) if is_other => {
                thread.debt_system += hardware.switch_ns;
                thread.owe(core_kib * hardware.core_fill_ns);
                thread.account.references += core_kib as f64 * LINES_PER_KIB;
            }
            Some(_) => {}
            None => thread.debt_system += hardware.switch_ns,
        }
    }

    /// A thread leaves its CPU.
    pub(crate) fn leave(&mut self, cache: usize, footprint_kib: u64) {
        self.pressure[cache] -= footprint_kib;
    }

    /// Computes the pace of the running thread's work, and its demand on the controllers. Returns
    /// whether the pace may change while the thread runs.
    pub(crate) fn charge(
        &mut self,
        cpu: &mut Cpu,
        t: &Thread,
        shared_pages: &[u64],
        hardware: &Hardware,
    ) -> bool {
        self.discharge(cpu);
        let Activity::Compute(_) = t.activity else { return false };
        (cpu.pace.stretch, cpu.pace.miss) = (1.0, 0.0);
        let (memory, shared) = (t.demand.memory, t.demand.shared);
        if memory <= 0.0 {
            return false;
        }
        let fits = (hardware.cache_kib as f64 / self.pressure[cpu.cache].max(1) as f64).min(1.0);
        let miss = 1.0 - (1.0 - memory) * fits;
        let mut wait = 0.0;
        for (node, (own, all)) in t.pages.iter().zip(shared_pages).enumerate() {
            let part = (*own as f64 * (1.0 - shared) + *all as f64 * shared) / WHOLE as f64;
            let demand = (part * miss * WHOLE as f64) as u64;
            cpu.demand[node] = demand;
            self.demand[node] += demand;
            let load = self.demand[node] as f64 / (hardware.controller_threads * WHOLE as f64);
            wait += part * self.distances[cpu.node][node] as f64 / 10.0 * load.max(1.0);
        }
        (cpu.pace.stretch, cpu.pace.miss) = (1.0 - memory + miss * wait, miss);
        true
    }

    /// Removes the demand of a CPU's running thread.
    pub(crate) fn discharge(&mut self, cpu: &mut Cpu) {
        for (all, own) in self.demand.iter_mut().zip(&mut cpu.demand) {
            *all -= std::mem::take(own);
        }
    }

    /// Whether the machine has this node.
    pub(crate) fn has(&self, node: NodeId) -> bool {
        self.nodes.contains(&node)
    }

    /// Begins to move a program's pages from some nodes to others. Returns whether there are pages
    /// to move.
    pub(crate) fn move_pages(
        &mut self,
        number: usize,
        program: &Process,
        threads: &[Thread],
        (from, to): (&[NodeId], &[NodeId]),
        events: &mut EventQueue,
    ) -> bool {
        let index = |n: &NodeId| self.nodes.iter().position(|m| m == n);
        let from: Vec<usize> = from.iter().filter_map(index).collect();
        let to = Destination::Nodes(to.iter().filter_map(index).collect());
        let migration = Migration { program: number, from, to, is_done: false };
        let has_pages = |pages: &[u64]| migration.moves(pages);
        if self.migrations.contains(&migration)
            || !has_pages(&program.pages) && !threads.iter().any(|t| has_pages(&t.pages))
        {
            return false;
        }
        self.begin(migration, program, events);
        true
    }

    /// Begins to spread a program's pages evenly over all nodes, or to restore the placement that
    /// the scenario has set. Pages that are placed later follow.
    pub(crate) fn spread_pages(
        &mut self,
        number: usize,
        program: &mut Process,
        spread: bool,
        events: &mut EventQueue,
    ) {
        let all: Vec<usize> = (0..self.nodes()).collect();
        program.is_spread = spread;
        program.placement = if spread { Placement::RoundRobin } else { program.own_placement() };
        let to = match program.placement {
            Placement::NextTouch => Destination::Users,
            Placement::Random | Placement::RoundRobin => Destination::Nodes(all.clone()),
        };
        let migration = Migration { program: number, from: all, to, is_done: false };
        self.begin(migration, program, events);
    }

    /// The pages arrive after the time that the migration takes.
    fn begin(&mut self, migration: Migration, program: &Process, events: &mut EventQueue) {
        let millionths: u64 = migration.from.iter().filter_map(|&n| program.pages.get(n)).sum();
        let takes_ns = u64::from(program.memory_mib) * 1_000 * millionths / MOVED_MIB_S;
        self.migrations.push(migration);
        events.post_in(takes_ns, Event::PagesMoved(self.migrations.len() - 1));
    }

    /// Completes a migration.
    pub(crate) fn finish(
        &mut self,
        number: usize,
        cpus: &Cpus,
        programs: &mut [Process],
        threads: &mut [Thread],
    ) {
        let migration = &mut self.migrations[number];
        migration.is_done = true;
        let Migration { program, from, to, .. } = &*migration;
        let node = |t: &Thread| t.ran_on.map(|c| cpus[c].node);
        let program = &mut programs[*program];
        let threads = &mut threads[program.threads.clone()];
        to.receive(&mut program.pages, from, threads.iter().find_map(node));
        for thread in threads {
            let user = node(thread);
            to.receive(&mut thread.pages, from, user);
        }
    }
}
