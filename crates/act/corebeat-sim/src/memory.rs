//! What memory and caches cost: distance, crowded controllers, crowded caches, cold caches.
//!
//! ```text
//!   time of work  =  computing  +  misses * how far the data is * how crowded its controller is
//!                                    |
//!                                    `- of all references to the shared cache: `memory` of them alone, more where what the
//!                                       threads on it use does not fit
//! ```

use crate::code::Op;
use crate::program::Placement;
use crate::thread::{Doing, Thread};
use crate::world::{Event, World};
use corebeat_machine::NodeId;

/// References to the shared cache for each nanosecond of work at full speed.
pub(crate) const REFERENCES_PER_NS: f64 = 0.01;
/// Lines of a KiB: what filling a cold cache refers to.
const LINES_PER_KIB: f64 = 16.0;
/// The unit of shares of memory.
const WHOLE: u64 = 1_000_000;
/// Random placement gives each node up to this share more or less than the others.
const RANDOM_SPREAD: f64 = 0.05;
/// What a program's pages move at, in MiB a second.
const MOVED_MIB_S: u64 = 1_024;

/// Pages of a program on their way.
#[derive(Debug, Clone)]
pub(crate) struct Move {
    program: usize,
    from: Vec<usize>,
    to: To,
}

/// Where pages go.
#[derive(Debug, Clone)]
enum To {
    /// Equal parts of them to each of these nodes.
    Nodes(Vec<usize>),
    /// A thread's own to where it was last, what all share to where the first of them was.
    Users,
}

impl To {
    /// Moves what lies on some nodes. Pages that are nowhere yet stay so.
    fn bring(&self, pages: &mut [u64], from: &[usize], user: Option<usize>) {
        let user = user.as_slice();
        let to = if let To::Nodes(nodes) = self { nodes } else { user };
        if pages.is_empty() || to.is_empty() {
            return;
        }
        let sum: u64 = from.iter().map(|&n| std::mem::take(&mut pages[n])).sum();
        let part = sum / to.len() as u64;
        to.iter().for_each(|&n| pages[n] += part);
        pages[to[0]] += sum - part * to.len() as u64;
    }
}

impl World {
    /// A thread has come onto a CPU: the kernel's switch, the caches that it finds cold, its memory if it runs for the first time.
    pub(crate) fn settle_in(&mut self, c: usize, i: usize) {
        let (node, cache) = (self.cpus[c].node, self.cpus[c].cache);
        let is_other = self.cpus[c].last != Some(i);
        self.place_pages(i, node);
        let before = self.threads[i].ran_on.replace(c);
        let t = &mut self.threads[i];
        let core_kib = t.footprint_kib.min(self.hardware.core_cache_kib);
        let all_kib = t.footprint_kib.min(self.hardware.cache_kib);
        self.pressure[cache] += t.footprint_kib;
        match before {
            Some(before) if before != c => {
                t.account.migrations += 1;
                t.debt_system += self.hardware.switch_ns + self.hardware.migrate_ns;
                if self.cpus[before].cache == cache {
                    t.owe(core_kib * self.hardware.core_fill_ns);
                    t.account.references += core_kib as f64 * LINES_PER_KIB;
                } else {
                    t.owe(all_kib * self.hardware.fill_ns);
                    t.account.references += all_kib as f64 * LINES_PER_KIB;
                    t.account.misses += all_kib as f64 * LINES_PER_KIB;
                }
            }
            Some(_) if is_other => {
                t.debt_system += self.hardware.switch_ns;
                t.owe(core_kib * self.hardware.core_fill_ns);
                t.account.references += core_kib as f64 * LINES_PER_KIB;
            }
            Some(_) => {}
            None => t.debt_system += self.hardware.switch_ns,
        }
    }

    /// Places the memory of a thread that has none yet, and that of its program.
    fn place_pages(&mut self, i: usize, node: usize) {
        let program = self.threads[i].program;
        if self.programs[program].pages.is_empty() {
            self.programs[program].pages = self.placed(program, node);
        }
        if self.threads[i].pages.is_empty() {
            self.threads[i].pages = self.placed(program, node);
        }
    }

    fn placed(&mut self, program: usize, node: usize) -> Vec<u64> {
        let nodes = self.demand.len();
        let mut parts: Vec<f64> = match self.programs[program].placement {
            Placement::NextTouch => (0..nodes).map(|n| if n == node { 1.0 } else { 0.0 }).collect(),
            Placement::Random => (0..nodes).map(|_| self.random.around(1e3, RANDOM_SPREAD)).collect(),
            Placement::RoundRobin => vec![1.0; nodes],
        };
        let sum: f64 = parts.iter().sum();
        parts.iter_mut().for_each(|part| *part = *part / sum * WHOLE as f64);
        parts.into_iter().map(|part| part as u64).collect()
    }

    /// Finds how much slower the running thread's work is here and now, and what it wants of the controllers. Whether that may change
    /// while it runs.
    pub(crate) fn charge(&mut self, c: usize, i: usize) -> bool {
        self.discharge(c);
        let t = &self.threads[i];
        let work = (t.doing, self.code[t.team][t.pc]);
        let (Doing::Work(_), Op::Compute { memory, shared, .. }) = work else { return false };
        (self.cpus[c].stretch, self.cpus[c].miss) = (1.0, 0.0);
        if memory <= 0.0 {
            return false;
        }
        let cpu = &mut self.cpus[c];
        let fits = (self.hardware.cache_kib as f64 / self.pressure[cpu.cache].max(1) as f64).min(1.0);
        let miss = 1.0 - (1.0 - memory) * fits;
        let pages = t.pages.iter().zip(&self.programs[t.program].pages);
        let mut wait = 0.0;
        for (node, (own, all)) in pages.enumerate() {
            let part = (*own as f64 * (1.0 - shared) + *all as f64 * shared) / WHOLE as f64;
            let demand = (part * miss * WHOLE as f64) as u64;
            cpu.demand[node] = demand;
            self.demand[node] += demand;
            let crowd = self.demand[node] as f64 / (self.hardware.controller_threads * WHOLE as f64);
            wait += part * self.distances[cpu.node][node] as f64 / 10.0 * crowd.max(1.0);
        }
        (cpu.stretch, cpu.miss) = (1.0 - memory + miss * wait, miss);
        true
    }

    /// The running thread stops, or looks anew.
    pub(crate) fn discharge(&mut self, c: usize) {
        for (all, own) in self.demand.iter_mut().zip(&mut self.cpus[c].demand) {
            *all -= std::mem::take(own);
        }
    }

    /// Begins to move a program's pages from some nodes to others.
    pub(crate) fn move_pages(&mut self, program: usize, from: &[NodeId], to: &[NodeId]) {
        let index = |n: &NodeId| self.topology.nodes().iter().position(|m| m.id == *n);
        let from: Vec<usize> = from.iter().filter_map(index).collect();
        let to: Vec<usize> = to.iter().filter_map(index).collect();
        self.begin_move(Move { program, from, to: To::Nodes(to) });
    }

    /// Begins to lay a program's pages evenly over all nodes, or near to who uses them; what is placed from now on as well.
    pub(crate) fn spread_pages(&mut self, program: usize, spread: bool) {
        let all: Vec<usize> = (0..self.demand.len()).collect();
        self.programs[program].placement = if spread { Placement::RoundRobin } else { Placement::NextTouch };
        let to = if spread { To::Nodes(all.clone()) } else { To::Users };
        self.begin_move(Move { program, from: all, to });
    }

    /// Pages are there after the time that moving them takes.
    fn begin_move(&mut self, pages: Move) {
        let program = &self.programs[pages.program];
        let there: u64 = pages.from.iter().filter_map(|&n| program.pages.get(n)).sum();
        let takes_ns = u64::from(program.memory_mib) * 1_000 * there / MOVED_MIB_S;
        self.moves.push(pages);
        self.post(self.now + takes_ns, Event::Moved(self.moves.len() - 1));
    }

    /// Pages have arrived.
    pub(crate) fn arrive_pages(&mut self, number: usize) {
        let Move { program, from, to } = self.moves[number].clone();
        let node = |t: &Thread| t.ran_on.map(|c| self.cpus[c].node);
        let threads = self.programs[program].threads.clone();
        let first = threads.clone().find_map(|i| node(&self.threads[i]));
        let users: Vec<Option<usize>> = threads.clone().map(|i| node(&self.threads[i])).collect();
        to.bring(&mut self.programs[program].pages, &from, first);
        for (i, user) in threads.zip(users) {
            to.bring(&mut self.threads[i].pages, &from, user);
        }
    }
}
