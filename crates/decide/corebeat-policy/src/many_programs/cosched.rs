//! Coscheduling: which sets of tasks run at the same time, and on which CPUs.
//!
//! Schönherr, Lutz, Richling, *Non-intrusive Coscheduling for General Purpose Operating Systems*
//! (MSEPT 2012), section 3. A coscheduled set is a group of tasks with a number of CPUs. While the
//! set runs, as many of its tasks as it has CPUs run at the same time, and none of its CPUs runs
//! another task while a task of the set waits. Sets may be nested; the machine is the outermost
//! set.
//!
//! ```text
//!   machine, 8 CPUs            queue of the machine:  [a 4] [b 2: tasks, c 1] [d 4] [other tasks]
//!    |                                                  |    the set with the least time is first
//!    +-- halves, quarters      CPU   0 1 2 3 4 5 6 7    |    for one slice
//!    |   ... as the topology   now   a a a a d d . .    remaining CPUs go to sets that fit:
//!    |   has packages, nodes,                    b b    d and b have two runnable tasks each
//!    +-- caches, cores         next  b b d d d d . a    ...
//! ```
//!
//! **Turns.** The queue of a set (and of the machine) contains the sets within it, and its own
//! tasks as one entry. The entry that has run for the least time comes first, for one slice. Time
//! counts while an entry has CPUs, whatever their number.
//!
//! **Fragments.** Remaining CPUs are filled: first with the sets that fit as a whole and leave the
//! fewest CPUs empty, then with single tasks. In the paper's prototype a set keeps all its CPUs,
//! and CPUs without a task stay idle ([`Fragments::Idle`]). Section 3 names this fragmentation, and
//! setup 3 of Table 1 shows the result: 47.4% of the result of packing. Here a set has as many CPUs
//! as it has runnable tasks, up to its number. If more of its tasks become runnable, the set takes
//! the CPUs back during its turn. Otherwise the whole set stops, because it no longer fits, unless
//! the shortage ends within [`PATIENCE_NS`]. So the rule holds at all times except for that delay.
//!
//! **Places.** A set runs on its previous CPUs if possible, else on CPUs that are near each other:
//! the smallest part of the topology with enough free CPUs. Parts are halved down to single CPUs.

mod freezing;
mod placement;

pub use freezing::{Coscheduling, coscheduled, is_turn};
pub(crate) use freezing::{NAME, REFUSED};

use corebeat_machine::{CoscheduledSet, Coscheduler, Plan, Topology};

/// Largest number of sets.
pub const SETS_MAX: usize = 4096;
/// Time within a slice for which a set may keep a fragment that has become too small, in
/// nanoseconds. In most cases a task has woken another one and is about to wait. Ten times the cost
/// of replacing the set.
pub const PATIENCE_NS: u64 = 100_000;

/// Use of CPUs for which a set has no task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fragments {
    /// Other sets and tasks that fit run there.
    Fill,
    /// The CPUs stay idle, and a set has a whole part of the topology, rounded up, as in the
    /// paper's prototype. For comparison.
    Idle,
}

/// Reason why sets cannot be coscheduled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SetError {
    /// A set has no CPU, or more CPUs than the set that contains it.
    #[error("set {set} requires {cpus} CPUs; specify 1 to {most}")]
    Cpus {
        /// Number of the set, counted from 1.
        set: usize,
        /// Number of CPUs of the set.
        cpus: u32,
        /// Number of CPUs of the containing set.
        most: u32,
    },
    /// A set is within itself or within a later set.
    #[error("set {0} is within a set that does not precede it; define the containing set first")]
    Order(usize),
    /// There are too many sets.
    #[error("there are {0} sets; define at most {SETS_MAX}")]
    Many(usize),
}

/// An entry of a queue: the own tasks of a set, or a set within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entity {
    Own,
    Set(usize),
}

/// The queue of a set or of the machine.
#[derive(Debug, Clone, Default)]
struct Queue {
    cpus: u32,
    /// The sets within this set.
    sets: Vec<usize>,
    /// Time that this set has had in the queue that contains it, in nanoseconds.
    had_ns: u64,
    /// Time that its own tasks have had in its own queue, in nanoseconds.
    own_had_ns: u64,
    /// The least time of all entries; never decreases.
    clock_ns: u64,
    /// The entry whose turn it is.
    first: Option<Entity>,
    /// End of that turn.
    until_ns: u64,
    /// Number of runnable own tasks.
    own: u32,
    /// Number of CPUs that the set and all sets within it can use.
    need: u32,
    /// Number of CPUs of its own tasks.
    own_cpus: u32,
    /// Current or previous CPUs.
    place: Vec<usize>,
    is_on: bool,
    /// Start of the time in which the set is in a fragment that has become too small.
    short_ns: Option<u64>,
    /// Whether the set had CPUs in the previous plan.
    was_on: bool,
    own_was_on: bool,
    /// Whether the set had runnable tasks in the previous plan.
    was_ready: bool,
    own_was_ready: bool,
}

/// The algorithm of this page.
#[derive(Debug, Clone)]
pub struct Cosched {
    slice_ns: u64,
    fragments: Fragments,
    /// Parts of the topology, as indices of CPUs.
    parts: Vec<Vec<usize>>,
    /// By set; the queue of the machine is the last one.
    queues: Vec<Queue>,
    planned_ns: u64,
}

impl Cosched {
    /// Returns a coscheduler for sets on a machine, with the duration of a turn.
    ///
    /// # Errors
    /// [`SetError`], if a set is invalid.
    pub fn new(
        topology: &Topology,
        sets: &[CoscheduledSet],
        slice_ns: u64,
        fragments: Fragments,
    ) -> Result<Cosched, SetError> {
        if sets.len() > SETS_MAX {
            return Err(SetError::Many(sets.len()));
        }
        let (all, root) = (topology.cpus().len() as u32, sets.len());
        let queue = |cpus| Queue { cpus, ..Queue::default() };
        let mut queues: Vec<Queue> = sets.iter().map(|s| s.cpus).chain([all]).map(queue).collect();
        for (at, set) in sets.iter().enumerate() {
            if set.within.is_some_and(|outer| outer >= at) {
                return Err(SetError::Order(at + 1));
            }
            let outer = set.within.unwrap_or(root);
            let most = queues[outer].cpus;
            if !(1..=most).contains(&set.cpus) {
                return Err(SetError::Cpus { set: at + 1, cpus: set.cpus, most });
            }
            queues[outer].sets.push(at);
        }
        let places: Vec<usize> = (0..all as usize).collect();
        let mut parts = vec![];
        placement::divide(topology.cpus(), vec![places], 0, &mut parts);
        Ok(Cosched { slice_ns: slice_ns.max(1), fragments, parts, queues, planned_ns: 0 })
    }

    /// Adds the time since the last plan to the entries that had CPUs.
    fn account(&mut self, now_ns: u64) {
        let ran_ns = now_ns.saturating_sub(self.planned_ns);
        self.planned_ns = now_ns;
        for q in &mut self.queues {
            if q.is_on {
                q.had_ns += ran_ns;
            }
            // Own tasks may have had fewer CPUs than they could use.
            let could = q.own.min(q.cpus).max(1);
            q.own_had_ns += ran_ns * u64::from(q.own_cpus) / u64::from(could);
            (q.was_on, q.own_was_on) = (q.is_on, q.own_cpus > 0);
            (q.is_on, q.own_cpus) = (false, 0);
            (q.was_ready, q.own_was_ready) = (q.need > 0, q.own > 0);
        }
    }

    /// Records the runnable tasks. An entry that becomes runnable has no claim to past time. Time
    /// in fragments beyond one slice more than others is not counted.
    fn record(&mut self, runnable: &[u32], loose: u32) {
        let root = self.queues.len() - 1;
        // Inner sets follow outer ones, except for the machine.
        for at in (0..root).rev().chain([root]) {
            let within: u32 = self.queues[at]
                .sets
                .iter()
                .fold(0, |sum, &s| self.queues[s].need.saturating_add(sum));
            let q = &mut self.queues[at];
            q.own = if at == root { loose } else { runnable.get(at).copied().unwrap_or(0) };
            q.need = q.own.saturating_add(within).min(q.cpus);
        }
        for at in 0..self.queues.len() {
            let members = self.members(at);
            for &e in &members {
                let is_new = match e {
                    Entity::Own => !self.queues[at].own_was_ready,
                    Entity::Set(s) => !self.queues[s].was_ready,
                };
                if is_new {
                    let clock_ns = self.queues[at].clock_ns;
                    let had_ns = self.had(at, e);
                    *had_ns = clock_ns.max(*had_ns);
                }
            }
            let Some(least_ns) = members.iter().map(|&e| *self.had(at, e)).min() else { continue };
            let clock_ns = least_ns.max(self.queues[at].clock_ns);
            self.queues[at].clock_ns = clock_ns;
            let most_ns = clock_ns + self.slice_ns;
            for &e in &members {
                let had_ns = self.had(at, e);
                *had_ns = most_ns.min(*had_ns);
            }
        }
    }

    /// Returns the entries of a queue with runnable tasks.
    fn members(&self, at: usize) -> Vec<Entity> {
        let q = &self.queues[at];
        let sets = q.sets.iter().filter(|&&s| self.queues[s].need > 0).map(|&s| Entity::Set(s));
        sets.chain((q.own > 0).then_some(Entity::Own)).collect()
    }

    fn had(&mut self, at: usize, e: Entity) -> &mut u64 {
        match e {
            Entity::Own => &mut self.queues[at].own_had_ns,
            Entity::Set(s) => &mut self.queues[s].had_ns,
        }
    }

    /// Returns the entries of a queue in the order in which they get CPUs: the entry whose turn it
    /// is; within a slice the running entries; then by their time.
    fn order(&mut self, at: usize, now_ns: u64) -> Vec<Entity> {
        let members = self.members(at);
        let q = &self.queues[at];
        let first = q.first.filter(|e| members.contains(e) && now_ns < q.until_ns);
        let rank = |e: Entity| {
            let is_on = match e {
                Entity::Own => self.queues[at].own_was_on,
                Entity::Set(s) => self.queues[s].was_on,
            };
            (Some(e) != first, first.is_some() && !is_on)
        };
        let mut order: Vec<_> = members.iter().map(|&e| (rank(e), e)).collect();
        order.sort_by_cached_key(|&(rank, e)| (rank, *self.had(at, e)));
        let order: Vec<Entity> = order.into_iter().map(|(_, e)| e).collect();
        if first.is_none() {
            let q = &mut self.queues[at];
            (q.first, q.until_ns) = (order.first().copied(), now_ns + self.slice_ns);
        }
        order
    }

    /// Distributes CPUs among the entries of a queue. Returns the time of the next plan.
    fn distribute(
        &mut self,
        at: usize,
        cpus: &[usize],
        now_ns: u64,
        plan: &mut [Option<usize>],
    ) -> u64 {
        let order = self.order(at, now_ns);
        let mut free = cpus.to_vec();
        // Single tasks get their CPUs first if it is their turn, else the remaining CPUs.
        let own = self.queues[at].own;
        let kept =
            if order.first() == Some(&Entity::Own) { free.len().min(own as usize) } else { 0 };
        let stays = self.queues[at].until_ns != now_ns + self.slice_ns;
        for e in &order {
            if let Entity::Set(s) = *e {
                self.wait_for(s, stays && order.first() != Some(e), now_ns);
            }
        }
        let chosen = self.chosen(&order, free.len() - kept);
        let mut spare =
            (free.len() - kept).saturating_sub(chosen.iter().map(|&s| self.grant(s)).sum());
        let mut until_ns = u64::MAX;
        let mut inner = vec![];
        for s in chosen {
            // A set that lacks CPUs may get CPUs that no other set uses.
            let more = (self.queues[s].need as usize - self.grant(s)).min(spare);
            if let Some(place) = self.place(s, self.grant(s) + more, &free, free.len() - kept) {
                free.retain(|c| !place.contains(c));
                spare -= more;
                if place.len() >= self.queues[s].need as usize {
                    self.queues[s].short_ns = None;
                }
                until_ns =
                    until_ns.min(self.queues[s].short_ns.map_or(u64::MAX, |ns| ns + PATIENCE_NS));
                inner.push((s, place));
            }
        }
        let own_cpus = (free.len() as u32).min(own);
        self.queues[at].own_cpus = own_cpus;
        let all_run = own_cpus == own && inner.len() + usize::from(own > 0) == order.len();
        let name = (at + 1 < self.queues.len()).then_some(at);
        free.iter().for_each(|&c| plan[c] = name);
        if !all_run {
            until_ns = until_ns.min(self.queues[at].until_ns);
        }
        for (s, place) in inner {
            until_ns = until_ns.min(self.distribute(s, &place, now_ns, plan));
            (self.queues[s].place, self.queues[s].is_on) = (place, true);
        }
        until_ns
    }

    /// Decides whether a set may keep a fragment that has just become too small.
    fn wait_for(&mut self, s: usize, fills: bool, now_ns: u64) {
        let q = &mut self.queues[s];
        let is_short = fills && q.was_on && q.sets.is_empty() && q.need as usize > q.place.len();
        let since_ns = q.short_ns.unwrap_or(now_ns);
        q.short_ns = (is_short && now_ns - since_ns < PATIENCE_NS).then_some(since_ns);
    }

    /// Returns the number of CPUs for a set: all that it can use, or its current number while it
    /// keeps a fragment that is too small.
    fn grant(&self, s: usize) -> usize {
        let q = &self.queues[s];
        if q.short_ns.is_some() { q.place.len() } else { q.need as usize }
    }

    /// Returns the sets that get some of this number of CPUs: the first one, and of the others
    /// those that leave the fewest CPUs empty. Earlier sets are preferred.
    fn chosen(&self, order: &[Entity], cpus: usize) -> Vec<usize> {
        let set = |e: &Entity| if let Entity::Set(s) = e { Some(*s) } else { None };
        let sets: Vec<usize> = order.iter().filter_map(set).collect();
        if self.fragments == Fragments::Idle {
            return sets;
        }
        let need = |s: usize| self.grant(s);
        let first = order.first().and_then(set);
        let left = cpus - first.map_or(0, need);
        // For each number of CPUs: the last set that fills it, and the number before that set.
        let mut filled: Vec<Option<(usize, usize)>> = vec![None; left + 1];
        for &s in sets.iter().filter(|s| Some(**s) != first && need(**s) <= left) {
            for before in (0..=left - need(s)).rev() {
                let with = before + need(s);
                if (before == 0 || filled[before].is_some()) && filled[with].is_none() {
                    filled[with] = Some((s, before));
                }
            }
            if filled[left].is_some() {
                break;
            }
        }
        let mut at = (1..=left).rev().find(|&n| filled[n].is_some()).unwrap_or(0);
        let mut chosen = vec![];
        while let Some((s, before)) = filled[at].filter(|_| at > 0) {
            chosen.push(s);
            at = before;
        }
        chosen.reverse();
        first.into_iter().chain(chosen).collect()
    }
}

impl Coscheduler for Cosched {
    fn plan(&mut self, now_ns: u64, runnable: &[u32], loose: u32) -> Plan {
        self.account(now_ns);
        self.record(runnable, loose);
        let root = self.queues.len() - 1;
        let all: Vec<usize> = (0..self.queues[root].cpus as usize).collect();
        let mut cpus = vec![None; all.len()];
        let until_ns = self.distribute(root, &all, now_ns, &mut cpus);
        Plan { cpus, until_ns }
    }
}

#[cfg(test)]
mod tests;
