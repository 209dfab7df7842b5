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
use crate::thread::Doing;
use crate::world::{Event, World};
use corebeat_machine::NodeId;

/// References to the shared cache for each nanosecond of work at full speed.
pub(crate) const REFERENCES_PER_NS: f64 = 0.01;
/// The unit of shares of memory.
const WHOLE: u64 = 1_000_000;
/// Random placement gives each node up to this share more or less than the others.
const RANDOM_SPREAD: f64 = 0.05;
/// What a program's pages move at, in MiB a second.
const MOVED_MIB_S: u64 = 1_024;

impl World {
    /// A thread has come onto a CPU: the kernel's switch, the caches that it finds cold, its memory if it runs for the first time.
    pub(crate) fn settle_in(&mut self, c: usize, i: usize) {
        let (node, cache) = (self.cpus[c].node, self.cpus[c].cache);
        let is_other = self.cpus[c].last != Some(i);
        self.place_pages(i, node);
        let before = self.threads[i].ran_on.replace(c);
        let t = &mut self.threads[i];
        let core_kib = t.footprint_kib.min(self.hardware.core_cache_kib);
        self.pressure[cache] += t.footprint_kib;
        match before {
            Some(before) if before != c => {
                t.account.migrations += 1;
                t.debt_system += self.hardware.switch_ns + self.hardware.migrate_ns;
                t.debt_user += match self.cpus[before].cache == cache {
                    true => core_kib * self.hardware.core_fill_ns,
                    false => t.footprint_kib.min(self.hardware.cache_kib) * self.hardware.fill_ns,
                };
            }
            Some(_) if is_other => {
                t.debt_system += self.hardware.switch_ns;
                t.debt_user += core_kib * self.hardware.core_fill_ns;
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

    /// Begins to move a program's pages. They are there after the time that it takes.
    pub(crate) fn move_pages(&mut self, program: usize, from: Vec<NodeId>, to: Vec<NodeId>) {
        let index = |n: &NodeId| self.topology.nodes().iter().position(|m| m.id == *n);
        let from: Vec<usize> = from.iter().filter_map(index).collect();
        let to: Vec<usize> = to.iter().filter_map(index).collect();
        let there: u64 = from.iter().filter_map(|&n| self.programs[program].pages.get(n)).sum();
        let mib = u64::from(self.programs[program].memory_mib);
        let takes_ns = mib * 1_000 * there / MOVED_MIB_S;
        self.moves.push((program, from, to));
        self.coming += 1;
        self.post(self.now + takes_ns, Event::Moved(self.moves.len() - 1));
    }

    /// Pages have arrived: equal parts of them on each of the nodes.
    pub(crate) fn arrive_pages(&mut self, number: usize) {
        let (program, from, to) = self.moves[number].clone();
        let move_in = |pages: &mut Vec<u64>| {
            if pages.is_empty() || to.is_empty() {
                return;
            }
            let sum: u64 = from.iter().map(|&n| std::mem::take(&mut pages[n])).sum();
            let part = sum / to.len() as u64;
            to.iter().for_each(|&n| pages[n] += part);
            pages[to[0]] += sum - part * to.len() as u64;
        };
        move_in(&mut self.programs[program].pages);
        for i in self.programs[program].threads.clone() {
            move_in(&mut self.threads[i].pages);
        }
    }
}
