//! Which sets of tasks run at the same time, and on which CPUs.
//!
//! Schönherr, Lutz, Richling, *Non-intrusive Coscheduling for General Purpose Operating Systems* (MSEPT 2012), section 3. A coscheduled
//! set is a group of tasks and a number of CPUs. While it runs, as many of its tasks as it has CPUs run at the same time, and none of
//! its CPUs does something else while one of its tasks waits. Sets may be nested; the machine itself is the outermost.
//!
//! ```text
//!   machine, 8 CPUs            queue of the machine:  [a 4] [b 2: its tasks, c 1] [d 4] [tasks in no set]
//!    |                                                  |    the one that had least goes first, and has a slice
//!    +-- halves, quarters      CPU   0 1 2 3 4 5 6 7
//!    |   ... as the topology   now   a a a a d d . .    what is left goes to those who fit into it:
//!    |   has packages, nodes,                    b b    d has two tasks to run just now; b too
//!    +-- caches, cores         next  b b d d d d . a    ...
//! ```
//!
//! **Turns.** In the queue of a set (and of the machine) stand the sets within it, and its own tasks as one. Who has had least time
//! goes first, and has a slice. Time is what one was on CPUs for, on however many.
//!
//! **Fragments.** What is left is filled: with those sets, out of all whose tasks fit into it as a whole, that leave least empty, and
//! then with single tasks. In the paper's prototype a set keeps all its CPUs, and those that it has no task for idle
//! ([`Fragments::Idle`]); section 3 names this fragmentation, and setup 3 of Table 1 shows it: 47.4% of what packing could reach. Here
//! a set has as many CPUs as it has tasks to run, up to its number. Where it has more to run suddenly it takes the CPUs back if
//! it is its turn; else it goes as a whole, for it does not fit any more, unless that is over within [`PATIENCE_NS`]. So the rule holds all
//! the time but for that.
//!
//! **Places.** The CPUs where it was last, else as near to each other as there are some: the smallest part of the topology, halved until
//! there are single CPUs, that has room.

use corebeat_machine::{
    Action, CoscheduledSet, Coscheduler, Cpu, Decision, Plan, Policy, ProgramId, ProgramSample, Snapshot,
    Topology,
};

/// No machine has more sets.
pub const SETS_MAX: usize = 4096;
/// A set that fills a fragment, and suddenly has more to run than fits, may stay for so long within a slice: most often one of its tasks
/// has woken another, and is about to wait itself. Ten times what it takes to put others in its place.
pub const PATIENCE_NS: u64 = 100_000;
/// A program that used so much less than one more CPU needs none for it.
const NEED_SLACK: f64 = 0.1;

/// What becomes of CPUs that a set has no task for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fragments {
    /// Others that fit run there.
    Fill,
    /// Nothing, and a set has a whole part of the topology, rounded up: as the paper's prototype, to compare with.
    Idle,
}

/// Why sets cannot be coscheduled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SetError {
    /// No CPU, or more than there are.
    #[error("set {set} wants {cpus} CPUs; write 1 to {most}")]
    Cpus {
        /// Which, counted from 1.
        set: usize,
        /// How many it wants.
        cpus: u32,
        /// How many there are where it is.
        most: u32,
    },
    /// Within a set that comes later, or in itself.
    #[error("set {0} is within a set that does not come before it; write the outer one first")]
    Order(usize),
    /// Too many.
    #[error("{0} sets; write no more than {SETS_MAX}")]
    Many(usize),
}

/// One who stands in a queue: a set's own tasks, or a set within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entity {
    Own,
    Set(usize),
}

/// A set's queue, or the machine's.
#[derive(Debug, Clone)]
struct Queue {
    cpus: u32,
    /// The sets within.
    sets: Vec<usize>,
    /// What this set has had, where it stands in a queue; and its own tasks, in its own. In nanoseconds.
    had_ns: u64,
    own_had_ns: u64,
    /// The least of all who stand here; never goes back.
    clock_ns: u64,
    /// Whose turn it is, and until when.
    first: Option<Entity>,
    until_ns: u64,
    /// Own tasks that are to run, and CPUs that it could use with all that is within.
    own: u32,
    need: u32,
    /// CPUs that its own tasks have now, and where it is, or was last.
    own_cpus: u32,
    place: Vec<usize>,
    is_on: bool,
    /// Since when it fills a fragment that has become too small.
    short_ns: Option<u64>,
    /// As it was by the plan before: on CPUs, itself and its own tasks; and something to run.
    was_on: bool,
    own_was_on: bool,
    was_ready: bool,
    own_was_ready: bool,
}

/// Says which sets run where: the algorithm of this page.
#[derive(Debug, Clone)]
pub struct Cosched {
    slice_ns: u64,
    fragments: Fragments,
    /// Parts of the topology by their CPUs' places.
    parts: Vec<Vec<usize>>,
    /// By set; the machine's is the last.
    queues: Vec<Queue>,
    planned_ns: u64,
}

impl Cosched {
    /// Sets on a machine, and how long a turn is.
    ///
    /// # Errors
    /// Where the sets make no sense.
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
        let queue = |cpus| Queue {
            cpus,
            sets: vec![],
            had_ns: 0,
            own_had_ns: 0,
            clock_ns: 0,
            first: None,
            until_ns: 0,
            own: 0,
            need: 0,
            own_cpus: 0,
            place: vec![],
            is_on: false,
            short_ns: None,
            was_on: false,
            own_was_on: false,
            was_ready: false,
            own_was_ready: false,
        };
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
        divide(topology.cpus(), vec![places], 0, &mut parts);
        Ok(Cosched { slice_ns: slice_ns.max(1), fragments, parts, queues, planned_ns: 0 })
    }

    /// Books the time since the last plan for those who had CPUs by it.
    fn book(&mut self, now_ns: u64) {
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

    /// Takes over what there is to run. Who comes anew is owed nothing; what one had beyond a slice more than others, by filling
    /// fragments, is forgotten.
    fn see(&mut self, runnable: &[u32], loose: u32) {
        let root = self.queues.len() - 1;
        // Inner sets come after outer ones, but for the machine.
        for at in (0..root).rev().chain([root]) {
            let within: u32 =
                self.queues[at].sets.iter().fold(0, |sum, &s| self.queues[s].need.saturating_add(sum));
            let q = &mut self.queues[at];
            q.own = if at == root { loose } else { runnable.get(at).copied().unwrap_or(0) };
            q.need = q.own.saturating_add(within).min(q.cpus);
        }
        for at in 0..self.queues.len() {
            let members = self.members(at);
            for &e in &members {
                let came = match e {
                    Entity::Own => !self.queues[at].own_was_ready,
                    Entity::Set(s) => !self.queues[s].was_ready,
                };
                if came {
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

    /// Who stands in a queue and has something to run.
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

    /// Who stands in a queue, in the order in which they get CPUs: whose turn it is; within a slice those who run; who had least.
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

    /// Shares these CPUs out among those who stand in a queue, and says when to look again.
    fn share_out(&mut self, at: usize, cpus: &[usize], now_ns: u64, plan: &mut [Option<usize>]) -> u64 {
        let order = self.order(at, now_ns);
        let mut free = cpus.to_vec();
        // Single tasks get theirs before all others if it is their turn, else what is left.
        let own = self.queues[at].own;
        let kept = if order.first() == Some(&Entity::Own) { free.len().min(own as usize) } else { 0 };
        let stays = self.queues[at].until_ns != now_ns + self.slice_ns;
        for e in &order {
            if let Entity::Set(s) = *e {
                self.wait_for(s, stays && order.first() != Some(e), now_ns);
            }
        }
        let chosen = self.chosen(&order, free.len() - kept);
        let mut spare = (free.len() - kept).saturating_sub(chosen.iter().map(|&s| self.wants(s)).sum());
        let mut until_ns = u64::MAX;
        let mut inner = vec![];
        for s in chosen {
            // One that is short may grow into what nobody else takes.
            let more = (self.queues[s].need as usize - self.wants(s)).min(spare);
            if let Some(place) = self.room(s, self.wants(s) + more, &free, free.len() - kept) {
                free.retain(|c| !place.contains(c));
                spare -= more;
                if place.len() >= self.queues[s].need as usize {
                    self.queues[s].short_ns = None;
                }
                until_ns = until_ns.min(self.queues[s].short_ns.map_or(u64::MAX, |ns| ns + PATIENCE_NS));
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
            until_ns = until_ns.min(self.share_out(s, &place, now_ns, plan));
            (self.queues[s].place, self.queues[s].is_on) = (place, true);
        }
        until_ns
    }

    /// Sees whether a set that fills a fragment is waited for: it had all that it could use until a moment ago.
    fn wait_for(&mut self, s: usize, fills: bool, now_ns: u64) {
        let q = &mut self.queues[s];
        let is_short = fills && q.was_on && q.sets.is_empty() && q.need as usize > q.place.len();
        let since_ns = q.short_ns.unwrap_or(now_ns);
        q.short_ns = (is_short && now_ns - since_ns < PATIENCE_NS).then_some(since_ns);
    }

    /// How many CPUs a set is given: all that it could use, or as many as it has while it is waited for.
    fn wants(&self, s: usize) -> usize {
        let q = &self.queues[s];
        if q.short_ns.is_some() { q.place.len() } else { q.need as usize }
    }

    /// The sets that get CPUs, out of those in order, where there are so many: the first, and of the others those that leave least
    /// empty, earlier ones rather than later ones.
    fn chosen(&self, order: &[Entity], cpus: usize) -> Vec<usize> {
        let set = |e: &Entity| if let Entity::Set(s) = e { Some(*s) } else { None };
        let sets: Vec<usize> = order.iter().filter_map(set).collect();
        if self.fragments == Fragments::Idle {
            return sets;
        }
        let need = |s: usize| self.wants(s);
        let first = order.first().and_then(set);
        let left = cpus - first.map_or(0, need);
        // How so many CPUs can be filled: by which set at last, and how many before it.
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

    /// Where a set is put that is given so many CPUs, on no more than `most` of these.
    fn room(&self, s: usize, need: usize, free: &[usize], most: usize) -> Option<Vec<usize>> {
        let q = &self.queues[s];
        if self.fragments == Fragments::Idle {
            let suits = |part: &&Vec<usize>| {
                (q.cpus as usize..=most).contains(&part.len()) && part.iter().all(|c| free.contains(c))
            };
            let was_here = |part: &&Vec<usize>| part.iter().all(|c| q.place.contains(c));
            return self.parts.iter().filter(suits).min_by_key(|p| (p.len(), !was_here(p))).cloned();
        }
        if need > most {
            return None;
        }
        let (kept, other): (Vec<usize>, Vec<usize>) = free.iter().partition(|c| q.place.contains(c));
        let within = |part: &[usize], of: &[usize]| of.iter().filter(|c| part.contains(c)).count();
        let rank = |part: &&Vec<usize>| {
            let (kept, free) = (within(part, &kept), within(part, free));
            (free >= need).then_some((kept < need, part.len(), std::cmp::Reverse(kept), free))
        };
        let part = self.parts.iter().filter(|p| rank(p).is_some()).min_by_key(|p| rank(p))?;
        Some(kept.into_iter().chain(other).filter(|c| part.contains(c)).take(need).collect())
    }
}

impl Coscheduler for Cosched {
    fn plan(&mut self, now_ns: u64, runnable: &[u32], loose: u32) -> Plan {
        self.book(now_ns);
        self.see(runnable, loose);
        let root = self.queues.len() - 1;
        let all: Vec<usize> = (0..self.queues[root].cpus as usize).collect();
        let mut cpus = vec![None; all.len()];
        let until_ns = self.share_out(root, &all, now_ns, &mut cpus);
        Plan { cpus, until_ns }
    }
}

/// Writes down what a topology divides into: packages, nodes, caches, cores and CPUs, and halves of several.
fn divide(all: &[Cpu], siblings: Vec<Vec<usize>>, level: usize, parts: &mut Vec<Vec<usize>>) {
    let key = |c: usize| match level {
        0 => all[c].package,
        1 => all[c].node.0,
        2 => all[c].cache,
        3 => all[c].core,
        _ => all[c].id.0,
    };
    if siblings.len() > 1 {
        parts.push(siblings.concat());
        let (left, right) = siblings.split_at(siblings.len().div_ceil(2));
        divide(all, left.to_vec(), level, parts);
        divide(all, right.to_vec(), level, parts);
        return;
    }
    let Some(one) = siblings.into_iter().next() else { return };
    if one.len() == 1 {
        parts.push(one);
        return;
    }
    let mut keys: Vec<u32> = one.iter().map(|&c| key(c)).collect();
    keys.sort_unstable();
    keys.dedup();
    let below = keys.iter().map(|&k| one.iter().copied().filter(|&c| key(c) == k).collect()).collect();
    divide(all, below, level + 1, parts);
}

/// The policy for programs as sets: those whose turn it is not are frozen. For machines that cannot take turns by sets themselves; a
/// turn is as long as it is from one snapshot to the next, or longer.
pub struct Coscheduling {
    core: Cosched,
    gangs: Vec<Gang>,
}

/// A program as a set.
struct Gang {
    program: ProgramId,
    /// CPUs that it could use when it last ran.
    need: u32,
    frozen: bool,
}

impl Coscheduling {
    /// Each program is to run on so many CPUs at a time, and a turn is so long.
    ///
    /// # Errors
    /// As [`Cosched::new`].
    pub fn new(
        topology: &Topology,
        programs: &[(ProgramId, u32)],
        slice_ns: u64,
    ) -> Result<Coscheduling, SetError> {
        let sets: Vec<CoscheduledSet> =
            programs.iter().map(|&(_, cpus)| CoscheduledSet { cpus, within: None }).collect();
        let gang = |&(program, need): &(ProgramId, u32)| Gang { program, need, frozen: false };
        Ok(Coscheduling {
            core: Cosched::new(topology, &sets, slice_ns, Fragments::Fill)?,
            gangs: programs.iter().map(gang).collect(),
        })
    }
}

impl Policy for Coscheduling {
    fn name(&self) -> &'static str {
        "coscheduling"
    }

    fn decide(&mut self, seen: &Snapshot) -> Vec<Decision> {
        for gang in &mut self.gangs {
            match seen.programs.iter().find(|p| p.id == gang.program).filter(|p| !p.threads.is_empty()) {
                None => gang.need = 0,
                // What it could use is not seen while it is frozen.
                Some(_) if gang.frozen => {}
                Some(program) => {
                    let used = program.cpus(seen.span_ns, |s| Some(s.running()? + s.latency?));
                    gang.need =
                        used.map_or(gang.need.max(1), |used| (used - NEED_SLACK).ceil().max(0.0) as u32);
                }
            }
        }
        let needs: Vec<u32> = self.gangs.iter().map(|g| g.need).collect();
        let plan = self.core.plan(seen.at_ns, &needs, 0);
        let has_turn = |at: usize| plan.cpus.contains(&Some(at));
        let mut decisions = vec![];
        // Who has to go goes before others come.
        for frozen in [true, false] {
            for (at, gang) in self.gangs.iter_mut().enumerate() {
                // Who does nothing disturbs nobody.
                let is_to_be = gang.need > 0 && !has_turn(at);
                if is_to_be == frozen && gang.frozen != frozen {
                    gang.frozen = frozen;
                    let why = if frozen { "it is the turn of others" } else { "it is its turn" };
                    let action = Action::SetFrozen { program: gang.program, frozen };
                    decisions.push(Decision { action, why: why.into() });
                }
            }
        }
        decisions
    }
}

/// For how much of a span a program was coscheduled on so many CPUs, from 0 to 1, at least: no thread waited while the program did not
/// have them all. `None` where that cannot be told, or it had nothing to run.
pub fn coscheduled(program: &ProgramSample, span_ns: u64, cpus: u32) -> Option<f64> {
    let running = program.cpus(span_ns, |s| s.running())?;
    let waiting = program.cpus(span_ns, |s| s.latency)?;
    (running > 0.0).then(|| 1.0 - waiting.min((f64::from(cpus) - running).max(0.0)).min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use corebeat_machine::{Counters, Node, NodeId, ThreadId, ThreadSample, TimeShares};
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    fn set(cpus: u32) -> CoscheduledSet {
        CoscheduledSet { cpus, within: None }
    }

    fn within(outer: usize, cpus: u32) -> CoscheduledSet {
        CoscheduledSet { cpus, within: Some(outer) }
    }

    fn cosched(cpus: u32, sets: &[CoscheduledSet], fragments: Fragments) -> Cosched {
        Cosched::new(&Topology::flat(cpus), sets, MS, fragments).unwrap_or_else(|e| panic!("{e}"))
    }

    fn count(plan: &Plan, set: Option<usize>) -> u32 {
        plan.cpus.iter().filter(|&&c| c == set).count() as u32
    }

    /// The paper's setup 3: eight sets of four CPUs, each with two tasks to run, on four CPUs.
    #[test]
    fn plan_fills_fragments_where_the_prototype_leaves_them_idle() {
        let sets = vec![set(4); 8];
        let mut filling = cosched(4, &sets, Fragments::Fill);
        let mut idling = cosched(4, &sets, Fragments::Idle);
        let (mut ran, mut ran_idling) = ([0; 8], [0; 8]);
        for turn in 0..80 {
            let plan = filling.plan(turn * MS, &[2; 8], 0);
            let on: Vec<usize> = (0..8).filter(|&s| count(&plan, Some(s)) == 2).collect();
            assert_eq!(on.len(), 2, "{plan:?}");
            on.iter().for_each(|&s| ran[s] += 1);
            let plan = idling.plan(turn * MS, &[2; 8], 0);
            let on: Vec<usize> = (0..8).filter(|&s| count(&plan, Some(s)) > 0).collect();
            assert_eq!((on.len(), count(&plan, Some(on[0]))), (1, 4), "{plan:?}");
            ran_idling[on[0]] += 1;
        }
        assert_eq!((ran, ran_idling), ([20; 8], [10; 8]));
    }

    #[test]
    fn plan_leaves_least_empty() {
        // Three CPUs are left beside the first: the set of three fills them, although the set of one had less.
        let mut core = cosched(4, &[set(1), set(1), set(3)], Fragments::Fill);
        core.plan(0, &[0, 0, 0], 0);
        core.queues[2].had_ns = MS / 2;
        let plan = core.plan(MS, &[1, 1, 3], 0);
        assert_eq!(
            (count(&plan, Some(0)), count(&plan, Some(1)), count(&plan, Some(2))),
            (1, 0, 3),
            "{plan:?}"
        );
    }

    #[test]
    fn set_that_suddenly_has_more_to_run_takes_its_cpus_back() {
        let mut core = cosched(4, &[set(4), set(2)], Fragments::Fill);
        let plan = core.plan(0, &[2, 2], 0);
        assert_eq!((count(&plan, Some(0)), count(&plan, Some(1))), (2, 2));
        let more = core.plan(MS / 4, &[3, 2], 0);
        assert_eq!(
            (count(&more, Some(0)), count(&more, Some(1))),
            (3, 0),
            "who does not fit goes as a whole"
        );
        assert_eq!(plan.cpus.iter().zip(&more.cpus).filter(|(a, b)| **a == Some(0) && a != b).count(), 0);
        assert_eq!(core.plan(MS / 2, &[2, 2], 0), Plan { until_ns: u64::MAX, ..plan });
    }

    #[test]
    fn set_that_fills_is_waited_for_when_it_has_more_for_a_moment() {
        let mut core = cosched(4, &[set(4), set(4)], Fragments::Fill);
        let plan = core.plan(0, &[2, 2], 0);
        let short = core.plan(MS / 4, &[2, 3], 0);
        assert_eq!(short.cpus, plan.cpus);
        assert_eq!(short.until_ns, MS / 4 + PATIENCE_NS);
        assert_eq!(core.plan(MS / 4 + 1, &[2, 2], 0).cpus, plan.cpus, "it was but a moment");
        core.plan(MS / 2, &[2, 3], 0);
        let after = core.plan(MS / 2 + PATIENCE_NS, &[2, 3], 0);
        assert_eq!((count(&after, Some(0)), count(&after, Some(1))), (2, 0), "it was not");
        let grown = core.plan(3 * MS / 4, &[1, 3], 0);
        assert_eq!((count(&grown, Some(0)), count(&grown, Some(1))), (1, 3));
    }

    #[test]
    fn nested_sets_share_the_turn_of_the_outer_one() {
        // An outer set of four, with two of two and a task of its own, beside another of four.
        let sets = [set(4), within(0, 2), within(0, 2), set(4)];
        let mut core = cosched(4, &sets, Fragments::Fill);
        let mut ran = [0; 4];
        for turn in 0..120 {
            let plan = core.plan(turn * MS, &[1, 2, 2, 4], 0);
            let on = [0, 1, 2, 3].map(|s| count(&plan, Some(s)));
            let outer = on[0] + on[1] + on[2];
            assert!(outer == 0 && on[3] == 4 || outer == 4 && on[3] == 0, "{plan:?}");
            assert!(on[1] % 2 == 0 && on[2] % 2 == 0, "{plan:?}");
            (0..4).for_each(|s| ran[s] += u32::from(on[s] > 0));
        }
        assert_eq!(ran[3], 60);
        // Inner sets and the task: two of three at a time, whoever they are.
        assert!(ran[..3].iter().all(|r| (20..=60).contains(r)), "{ran:?}");
    }

    #[test]
    fn tasks_in_no_set_have_their_turn_and_what_is_left() {
        let mut core = cosched(2, &[set(2)], Fragments::Fill);
        let plans: Vec<Plan> = (0..10).map(|turn| core.plan(turn * MS, &[2], 1)).collect();
        assert_eq!(plans.iter().filter(|p| count(p, Some(0)) == 2).count(), 5);
        let plan = core.plan(10 * MS, &[1], 1);
        assert_eq!((count(&plan, Some(0)), count(&plan, None)), (1, 1));
    }

    #[test]
    fn plan_keeps_a_set_together_and_where_it_was() {
        let cpu = |c: u32| Cpu {
            id: corebeat_machine::CpuId(c),
            package: c / 4,
            core: c,
            node: NodeId(c / 4),
            cache: c / 4,
        };
        let node = |n: u32| Node {
            id: NodeId(n),
            cpus: (4 * n..4 * n + 4).map(corebeat_machine::CpuId).collect(),
            distances: vec![10 + 10 * (n % 2), 20 - 10 * (n % 2)],
        };
        let topology = Topology::new((0..8).map(cpu).collect(), vec![node(0), node(1)]).unwrap();
        let mut core = Cosched::new(&topology, &[set(3), set(4), set(8)], MS, Fragments::Fill).unwrap();
        let mut places = [vec![], vec![]];
        for turn in 0..20 {
            let plan = core.plan(turn * MS, &[3, 4, if turn % 3 == 0 { 8 } else { 0 }], 0);
            for (s, place) in places.iter_mut().enumerate() {
                let now: Vec<usize> = (0..8).filter(|&c| plan.cpus[c] == Some(s)).collect();
                if now.is_empty() {
                    continue;
                }
                assert!(now.iter().all(|c| c / 4 == now[0] / 4), "{plan:?}");
                assert!(place.is_empty() || *place == now, "{place:?} {now:?}");
                *place = now;
            }
        }
        assert!(places.iter().all(|p| !p.is_empty()));
    }

    #[test]
    fn sets_that_make_no_sense_are_told() {
        let told = |sets: &[CoscheduledSet]| {
            Cosched::new(&Topology::flat(4), sets, MS, Fragments::Fill).unwrap_err().to_string()
        };
        assert_eq!(told(&[set(5)]), "set 1 wants 5 CPUs; write 1 to 4");
        assert_eq!(told(&[set(2), within(0, 3)]), "set 2 wants 3 CPUs; write 1 to 2");
        assert!(told(&[within(0, 2)]).contains("set 1 is within a set that does not come before"));
        assert!(told(&vec![set(1); SETS_MAX + 1]).contains("no more than 4096"));
    }

    /// Sets, nested up to three deep, and what they have to run.
    fn sets() -> impl Strategy<Value = (u32, Vec<CoscheduledSet>, Vec<u32>, u32)> {
        (1..10u32, proptest::collection::vec((0..10u32, 0..9usize, 0..6u32), 1..8), 0..5u32).prop_map(
            |(all, raw, loose)| {
                let mut sets: Vec<CoscheduledSet> = vec![];
                for (at, &(cpus, outer, _)) in raw.iter().enumerate() {
                    let within = (outer < at).then_some(outer);
                    let most = within.map_or(all, |o| sets[o].cpus);
                    sets.push(CoscheduledSet { cpus: 1 + cpus % most, within });
                }
                let tasks = raw.iter().map(|r| r.2).collect();
                (all, sets, tasks, loose)
            },
        )
    }

    /// Whether a set is, or is within, another.
    fn is_part(sets: &[CoscheduledSet], s: usize, of: usize) -> bool {
        s == of || sets[s].within.is_some_and(|outer| is_part(sets, outer, of))
    }

    /// How many CPUs a set could use.
    fn need(sets: &[CoscheduledSet], tasks: &[u32], s: usize) -> u32 {
        let inner = (0..sets.len()).filter(|&i| sets[i].within == Some(s)).map(|i| need(sets, tasks, i));
        (tasks[s] + inner.sum::<u32>()).min(sets[s].cpus)
    }

    proptest! {
        #[test]
        fn plan_keeps_the_rule_and_starves_nobody((all, sets, tasks, loose) in sets(), idle in any::<bool>()) {
            let fragments = if idle { Fragments::Idle } else { Fragments::Fill };
            let mut core = cosched(all, &sets, fragments);
            let mut ran = vec![0u64; sets.len()];
            let mut ran_loose = 0;
            const TURNS: u64 = 200;
            for turn in 0..TURNS {
                let plan = core.plan(turn * MS, &tasks, loose);
                let has = |s: usize| {
                    plan.cpus.iter().flatten().filter(|&&i| is_part(&sets, i, s)).count() as u32
                };
                for s in 0..sets.len() {
                    let need = need(&sets, &tasks, s);
                    prop_assert!(has(s) == 0 || has(s) >= need, "set {} has {} of {}", s, has(s), need);
                    prop_assert!(idle || has(s) <= sets[s].cpus);
                    prop_assert!(need > 0 || has(s) == 0);
                    ran[s] += u64::from(has(s) > 0);
                }
                ran_loose += u64::from(plan.cpus.contains(&None));
                let busy = loose > 0 || tasks.iter().any(|&t| t > 0);
                prop_assert!(!busy || plan.cpus.iter().any(Option::is_some) || loose > 0);
                // Nobody waits who would fit: in a plan that fills, no set of the machine's queue fits into what is empty.
                let empty = (plan.cpus.iter().filter(|c| c.is_none()).count() as u32).saturating_sub(loose);
                for s in (0..sets.len()).filter(|&s| !idle && sets[s].within.is_none() && has(s) == 0) {
                    let need = need(&sets, &tasks, s);
                    prop_assert!(need == 0 || need > empty, "{} fits into {}", need, empty);
                }
            }
            // In the machine's queue each has its share, but for three slices.
            let rivals = (0..sets.len()).filter(|&s| sets[s].within.is_none() && need(&sets, &tasks, s) > 0);
            let count = rivals.clone().count() as u64 + u64::from(loose > 0);
            for s in rivals {
                prop_assert!(ran[s] + 3 >= TURNS / count, "set {} has {} turns of {}", s, ran[s], TURNS / count);
            }
            prop_assert!(loose == 0 || ran_loose + 3 >= TURNS / count);
            // And within each, of the turns that it has, but for a slice or two at each change.
            for outer in 0..sets.len() {
                let inner: Vec<usize> = (0..sets.len())
                    .filter(|&s| sets[s].within == Some(outer) && need(&sets, &tasks, s) > 0)
                    .collect();
                let count = inner.len() as u64 + u64::from(tasks[outer] > 0);
                for s in inner {
                    prop_assert!(ran[s] + 3 >= ran[outer] / count, "set {} in {}: {} of {}", s, outer, ran[s], ran[outer]);
                }
            }
        }

        #[test]
        fn plan_of_anything_ends_and_repeats_itself(
            (all, sets, _, _) in sets(),
            calls in proptest::collection::vec((0..3 * MS, proptest::collection::vec(0..7u32, 8), 0..4u32), 1..40),
        ) {
            let run = || {
                let (mut core, mut now_ns) = (cosched(all, &sets, Fragments::Fill), 0);
                let mut short_ns = vec![None; sets.len()];
                calls.iter().map(|(pass_ns, tasks, loose)| {
                    now_ns += pass_ns;
                    let plan = core.plan(now_ns, tasks, *loose);
                    assert!(plan.until_ns > now_ns);
                    for (s, short_ns) in short_ns.iter_mut().enumerate() {
                        let has = plan.cpus.iter().flatten().filter(|&&i| is_part(&sets, i, s)).count() as u32;
                        // But for patience.
                        match has == 0 || has >= need(&sets, tasks, s) {
                            true => *short_ns = None,
                            false => {
                                let until_ns = *short_ns.get_or_insert(now_ns) + PATIENCE_NS;
                                assert!(now_ns < until_ns && plan.until_ns <= until_ns);
                            }
                        }
                    }
                    plan
                }).collect::<Vec<_>>()
            };
            prop_assert_eq!(run(), run());
        }
    }

    fn program(id: u32, running: f64, latency: f64) -> ProgramSample {
        let thread = |tid| ThreadSample {
            id: ThreadId { tid, start_ticks: 1 },
            pid: 1,
            name: "t".into(),
            cpu: None,
            span_ns: MS,
            shares: TimeShares {
                user: Some(running / 2.0),
                system: Some(0.0),
                latency: Some(latency / 2.0),
                ..TimeShares::default()
            },
            counters: Counters::ZERO,
        };
        let threads = vec![thread(1), thread(2)];
        ProgramSample {
            id: ProgramId(id),
            name: "p".into(),
            threads,
            io_bytes: None,
            team: None,
            pulse: None,
        }
    }

    #[test]
    fn decide_freezes_before_it_thaws_and_leaves_idlers_alone() {
        let ids = [(ProgramId(0), 2), (ProgramId(1), 2), (ProgramId(2), 2)];
        let mut policy = Coscheduling::new(&Topology::flat(2), &ids, MS).unwrap();
        let mut frozen = [false; 3];
        for turn in 1..20 {
            // Two want both CPUs, the third sleeps.
            let share = |p: usize| if frozen[p] { 0.0 } else { 1.0 };
            let programs =
                vec![program(0, share(0), share(0)), program(1, share(1), share(1)), program(2, 0.0, 0.0)];
            let seen = Snapshot { at_ns: turn * MS, span_ns: MS, programs, ..Snapshot::default() };
            let mut thawed = false;
            for decision in policy.decide(&seen) {
                let Action::SetFrozen { program, frozen: now } = decision.action else {
                    panic!("{decision:?}")
                };
                assert!(now || !frozen.iter().all(|f| !f), "thaws who is frozen");
                assert!(!(now && thawed), "who goes goes first");
                thawed |= !now;
                frozen[program.0 as usize] = now;
            }
            assert_eq!(frozen, [turn % 2 == 0, turn % 2 == 1, false]);
        }
        // One ends: the other is alone.
        let seen = Snapshot {
            at_ns: 30 * MS,
            span_ns: MS,
            programs: vec![program(1, 1.0, 0.0)],
            ..Snapshot::default()
        };
        policy.decide(&seen);
        assert!(!policy.gangs[1].frozen);
    }

    #[test]
    fn coscheduled_share_counts_waiting_that_cpus_could_have_ended() {
        // Two threads, two CPUs: both always; one waits half of the time; four threads' worth of work on two CPUs.
        assert_eq!(coscheduled(&program(0, 2.0, 0.0), MS, 2), Some(1.0));
        assert_eq!(coscheduled(&program(0, 1.5, 0.5), MS, 2), Some(0.5));
        assert_eq!(coscheduled(&program(0, 2.0, 2.0), MS, 2), Some(1.0));
        assert_eq!(coscheduled(&program(0, 0.0, 0.0), MS, 2), None);
    }
}
