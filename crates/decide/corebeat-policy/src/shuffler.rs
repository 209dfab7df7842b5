//! Thread Shuffling: threads that wait for locks as long as each other share a socket.
//!
//! Pusukuri, *Runtime Support for Maximizing Performance on Multicore Systems* (2012), chapter 4. A lock's cache line takes 1.6 to 2.2 times
//! as long to another socket as within one, and that time is spent while everybody waits. Threads that contend with each other spend
//! similar shares of their time on locks; so the thesis watches each thread's lock time for two seconds, sorts threads by it, cuts the list
//! into as many groups as there are sockets, and binds each group to one, neighbours in the list to neighbouring sockets (Algorithm 2).
//! Threads are swapped, so that no socket has more of them than before.
//!
//! ```text
//!   lock time   .9 .9 .8 .8 | .5 .5 .4 .4 | .2 .2 .1 .1 | 0  0  0  0      a window of 2 s
//!                 group 0      group 1       group 2      group 3
//!                    |            |             |            |
//!   places       socket 0 --- socket 2 ---- socket 1 --- socket 3         a chain of near ones
//! ```
//!
//! A place is what shares a last-level cache: a socket in the thesis, a part of one on many machines since.
//!
//! # Where this differs from the thesis
//!
//! - **Similar is similar enough.** Two threads whose lock times differ by less than [`Shuffler::band`] are not swapped: noise would move them
//!   forever (the thesis moves 10 of 64 threads every two seconds). So nothing changes where nothing has changed.
//! - **A chain of near ones.** In the thesis' example the groups go to sockets 0, 2, 3 and 1, of which 2 and 3 are the farthest from each other
//!   (Figures 4.2 and 4.4); here each goes to the one nearest to that before it, of those that are left.
//! - **Ever more rarely.** Where noise is more than that, threads are swapped again after 1, 2, 4, ... windows, until the program's lock time
//!   differs by [`Shuffler::phase_min`] or threads come or end. So changes in a time `t` within a phase are as `log t`.
//! - **Balance.** Group sizes are in proportion to the places' CPUs. Where threads are not balanced so, some are moved; from then on
//!   threads are swapped only, until some come or end.
//! - **What does not help is taken back.** Progress is compared with that of the window before. Lower by [`Shuffler::loss_min`] in two windows
//!   in a row, all threads may run where they might before, for [`Shuffler::rest_ns`], the next time for twice as long, and so on. The same
//!   where lock times have fallen below half of the threshold: who is bound cannot go where there is room.
//! - **Only places that the program uses.** One that was bound to a socket by its user stays there. (Within a place it may run on all
//!   CPUs while it is bound.) Threads that only wait for others to end are left alone.

use crate::progress::{Done, Speeds};
use crate::sign::is_bystander;
use corebeat_machine::{
    Action, CpuId, CpuSet, Decision, Policy, ProgramId, ProgramSample, Snapshot, Target, ThreadId, Topology,
};
use std::collections::{BTreeMap, BTreeSet};

/// The policy. All fields may be changed before it sees its first snapshot.
#[derive(Debug, Clone)]
pub struct Shuffler {
    /// How long is looked before anything is decided, in nanoseconds. Default 2 s (section 4.2.1).
    pub window_ns: u64,
    /// The share of its threads' time that a program must spend on locks, blocked or spinning. Default 0.05 (section 4.2).
    pub lock_min: f64,
    /// By how much the lock times of two threads must differ for them to be swapped. Default 0.01.
    pub band: f64,
    /// A window is lost if progress is lower by this much than before threads were bound. Default 0.03.
    pub loss_min: f64,
    /// How long the first refusal holds, in nanoseconds; each further one twice as long. Default 10 s.
    pub rest_ns: u64,
    /// By how much the program's lock time must differ from when threads were bound, for another phase to have begun. Default 0.05.
    pub phase_min: f64,
    /// CPUs that share a last-level cache, in an order in which neighbours are near.
    places: Vec<CpuSet>,
    programs: BTreeMap<ProgramId, Known>,
}

impl Shuffler {
    /// The policy with all thresholds at their defaults.
    pub fn new(topology: &Topology) -> Self {
        Shuffler {
            window_ns: 2_000_000_000,
            lock_min: 0.05,
            band: 0.01,
            loss_min: 0.03,
            rest_ns: 10_000_000_000,
            phase_min: 0.05,
            places: chain(topology),
            programs: BTreeMap::new(),
        }
    }

    /// Why it will never do anything on this machine, if so.
    pub fn idle_because(&self) -> Option<&'static str> {
        (self.places.len() < 2).then_some(
            "all CPUs share one last-level cache, so a lock is as near to each of them; there is nothing to shuffle",
        )
    }

    fn place_of(&self, cpu: CpuId) -> Option<usize> {
        self.places.iter().position(|place| place.contains(cpu))
    }
}

/// What shares a last-level cache, each next to the nearest of those that are left: from the one with the first CPU on.
pub(crate) fn chain(topology: &Topology) -> Vec<CpuSet> {
    let index = |node| topology.nodes().iter().position(|n| n.id == node);
    let distance = |a: &corebeat_machine::Cpu, b: &corebeat_machine::Cpu| {
        let far = index(a.node).zip(index(b.node)).map(|(a, b)| topology.nodes()[a].distances[b]);
        (a.package != b.package, far)
    };
    let mut firsts: Vec<&corebeat_machine::Cpu> = Vec::new();
    for cpu in topology.cpus() {
        if !firsts.iter().any(|first| first.cache == cpu.cache) {
            firsts.push(cpu);
        }
    }
    let mut places = Vec::new();
    let mut at = 0;
    while at < firsts.len() {
        let here = firsts.remove(at);
        let of_it = topology.cpus().iter().filter(|cpu| cpu.cache == here.cache);
        places.push(of_it.map(|cpu| cpu.id).collect());
        at = (0..firsts.len()).min_by_key(|&i| distance(here, firsts[i])).unwrap_or(firsts.len());
    }
    places
}

/// What is known of one program.
#[derive(Debug, Clone, Default)]
struct Known {
    window: Window,
    /// Where each thread is bound, by place.
    bound: BTreeMap<ThreadId, usize>,
    /// How many threads there were and how fast, before threads were bound; and windows lost in a row since.
    before: Option<(usize, Speeds)>,
    losses: u32,
    until_ns: u64,
    refusals: u32,
    swapped: Option<Swapped>,
}

/// When threads were last bound otherwise.
#[derive(Debug, Clone, Copy)]
struct Swapped {
    /// How many threads there were, and the share of their time on locks.
    threads: usize,
    lock: f64,
    /// Windows until they may be swapped again, and when those are over.
    every: u32,
    until_ns: u64,
}

/// What was seen since the last decision.
#[derive(Debug, Clone, Default)]
struct Window {
    done: Done,
    threads: BTreeMap<ThreadId, Seen>,
}

/// One thread.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    /// Where it ran last.
    cpu: Option<CpuId>,
    /// Time on locks and all time, in nanoseconds, where the first is known.
    lock_ns: f64,
    span_ns: f64,
    /// It was there in the last snapshot, and did more than wait at some time.
    is_alive: bool,
    is_active: bool,
}

impl Seen {
    fn lock(&self) -> f64 {
        if self.span_ns > 0.0 { self.lock_ns / self.span_ns } else { 0.0 }
    }
}

impl Window {
    fn add(&mut self, p: &ProgramSample, seen: &Snapshot) {
        self.done.add(p, seen);
        self.threads.values_mut().for_each(|t| t.is_alive = false);
        for sample in &p.threads {
            let t = self.threads.entry(sample.id).or_default();
            t.is_alive = true;
            t.is_active |= !is_bystander(sample);
            t.cpu = sample.cpu.or(t.cpu);
            if let Some(lock) = sample.shares.lock {
                let spin = sample.shares.spin.unwrap_or(0.0);
                t.lock_ns += (lock + spin) * sample.span_ns as f64;
                t.span_ns += sample.span_ns as f64;
            }
        }
    }

    /// The share of their time that threads which take part spend on locks.
    fn lock(&self) -> f64 {
        let active = || self.threads.values().filter(|t| t.is_alive && t.is_active);
        let (lock, span): (f64, f64) = (active().map(|t| t.lock_ns).sum(), active().map(|t| t.span_ns).sum());
        if span > 0.0 { lock / span } else { 0.0 }
    }
}

/// A thread to be grouped: where it is, and what share of its time it spends on locks.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Member {
    id: ThreadId,
    place: usize,
    lock: f64,
}

/// How many threads each place is to have: in proportion to its CPUs, and where that leaves some over, where there are most now.
fn sizes(counts: &[usize], cpus: &[usize]) -> Vec<usize> {
    let (threads, all) = (counts.iter().sum::<usize>(), cpus.iter().sum::<usize>().max(1));
    let mut sizes: Vec<usize> = cpus.iter().map(|cpus| threads * cpus / all).collect();
    let rest = threads - sizes.iter().sum::<usize>();
    let mut places: Vec<usize> = (0..sizes.len()).collect();
    let claim = |place: usize| (counts[place] > sizes[place], threads * cpus[place] % all);
    places.sort_by_key(|&place| std::cmp::Reverse(claim(place)));
    places.into_iter().take(rest).for_each(|place| sizes[place] += 1);
    sizes
}

/// Moves threads from places that have too many to places that have too few, by number: only as many as that takes.
fn balance(members: &mut [Member], sizes: &[usize]) {
    let mut counts = vec![0; sizes.len()];
    members.iter().for_each(|m| counts[m.place] += 1);
    for m in members {
        if counts[m.place] > sizes[m.place]
            && let Some(to) = (0..sizes.len()).find(|&place| counts[place] < sizes[place])
        {
            counts[m.place] -= 1;
            counts[to] += 1;
            m.place = to;
        }
    }
}

/// Swaps threads until those with the longest lock times are in the first place, the next in the second, and so on, so far as they
/// differ by more than the band. What stays in its place after a swap stays for good, so there are fewer swaps than threads.
fn shuffle(members: &mut [Member], places: usize, band: f64) {
    let mut order: Vec<usize> = (0..members.len()).collect();
    order.sort_by(|&a, &b| {
        members[b].lock.total_cmp(&members[a].lock).then(members[a].id.cmp(&members[b].id))
    });
    let mut first = 0;
    for place in 0..places {
        let size = members.iter().filter(|m| m.place == place).count();
        let (group, later) = order[first..].split_at(size.min(order.len() - first));
        first += group.len();
        // Who belongs here and is in a later place, the longest lock time first; who is here and belongs to a later one, the shortest first.
        let come = group.iter().copied().filter(|&i| members[i].place > place);
        let go = later.iter().rev().copied().filter(|&i| members[i].place == place);
        let pairs: Vec<(usize, usize)> = come.zip(go).collect();
        for (come, go) in pairs {
            if members[come].lock - members[go].lock <= band {
                break;
            }
            let from = members[come].place;
            members[come].place = place;
            members[go].place = from;
        }
    }
}

impl Shuffler {
    /// One window of one program: whom to bind where.
    fn look(&self, known: &mut Known, id: ProgramId, window: &Window, now_ns: u64) -> Vec<Decision> {
        let lock = window.lock();
        known.bound.retain(|id, _| window.threads.get(id).is_some_and(|t| t.is_alive));
        let takes_part =
            |(id, t): &(&ThreadId, &Seen)| t.is_alive && (t.is_active || known.bound.contains_key(id));
        let active: Vec<(&ThreadId, &Seen)> = window.threads.iter().filter(takes_part).collect();
        known.before = known.before.filter(|before| before.0 == active.len());
        if let Some((_, before)) = &known.before {
            let gain = window.done.speeds().gain_over(before).unwrap_or(0.0);
            known.losses = if gain < -self.loss_min { known.losses + 1 } else { 0 };
            match known.losses {
                0 => known.before = None,
                1 => {}
                _ => {
                    let why = format!("it changed progress by {:+.1}%", gain * 100.0);
                    return self.release(known, id, now_ns, &why);
                }
            }
        }
        if lock < self.lock_min {
            let is_over = !known.bound.is_empty() && lock < self.lock_min / 2.0;
            let why =
                || format!("threads spend {:.1}% of their time on locks, which is too little", lock * 100.0);
            return if is_over { self.release(known, id, now_ns, &why()) } else { vec![] };
        }
        let same_phase = |s: &Swapped| s.threads == active.len() && (s.lock - lock).abs() <= self.phase_min;
        known.swapped = known.swapped.filter(same_phase);
        if now_ns < known.until_ns.max(known.swapped.map_or(0, |s| s.until_ns)) {
            return vec![];
        }
        let is_at = |id: &ThreadId, t: &Seen| {
            let seen = || t.cpu.and_then(|cpu| self.place_of(cpu));
            known.bound.get(id).copied().or_else(seen)
        };
        // The places that the program uses, and its threads there by their number.
        let used: BTreeSet<usize> = active.iter().filter_map(|&(id, t)| is_at(id, t)).collect();
        let used: Vec<usize> = used.into_iter().collect();
        if used.len() < 2 {
            return vec![];
        }
        let place = |id: &ThreadId, t: &Seen| {
            let place = is_at(id, t)?;
            used.iter().position(|&used| used == place)
        };
        let mut members: Vec<Member> = active
            .iter()
            .filter_map(|&(id, t)| Some(Member { id: *id, place: place(id, t)?, lock: t.lock() }))
            .collect();
        let mut counts = vec![0; used.len()];
        members.iter().for_each(|m| counts[m.place] += 1);
        let cpus: Vec<usize> = used.iter().map(|&place| self.places[place].len()).collect();
        balance(&mut members, &sizes(&counts, &cpus));
        shuffle(&mut members, used.len(), self.band);

        let moved = members.iter().filter(|m| known.bound.get(&m.id) != Some(&used[m.place]));
        let moved: Vec<(Member, usize)> = moved.map(|m| (*m, used[m.place])).collect();
        if known.before.is_none() && !moved.is_empty() {
            (known.before, known.losses) = (Some((active.len(), window.done.speeds())), 0);
        }
        if !moved.is_empty() {
            let every = known.swapped.map_or(1, |s| s.every.saturating_mul(2));
            let until_ns = now_ns.saturating_add(self.window_ns.saturating_mul(every.into()));
            known.swapped = Some(Swapped { threads: active.len(), lock, every, until_ns });
        }
        let bind = |(m, place): (Member, usize)| {
            known.bound.insert(m.id, place);
            let (target, cpus) = (Target::Thread(m.id), Some(self.places[place].clone()));
            let why = format!(
                "{:.0}% of its time is spent on locks, {:.0}% of its program's",
                m.lock * 100.0,
                lock * 100.0
            );
            Decision { action: Action::SetCpus { target, cpus }, why }
        };
        moved.into_iter().map(bind).collect()
    }

    /// All threads may run where they might before, for a while.
    fn release(&self, known: &mut Known, id: ProgramId, now_ns: u64, why: &str) -> Vec<Decision> {
        known.bound.clear();
        (known.before, known.losses, known.swapped) = (None, 0, None);
        let rest_ns = self.rest_ns.saturating_mul(1 << known.refusals.min(20));
        known.refusals += 1;
        known.until_ns = now_ns.saturating_add(rest_ns);
        let action = Action::SetCpus { target: Target::Program(id), cpus: None };
        vec![Decision { action, why: why.to_owned() }]
    }
}

impl Policy for Shuffler {
    fn name(&self) -> &'static str {
        "shuffler"
    }

    /// A program that is missing from the snapshot has ended, and is forgotten.
    fn decide(&mut self, seen: &Snapshot) -> Vec<Decision> {
        if self.places.len() < 2 {
            return vec![];
        }
        let mut programs = std::mem::take(&mut self.programs);
        programs.retain(|id, _| seen.programs.iter().any(|p| p.id == *id));
        let mut decisions = Vec::new();
        for p in seen.programs.iter().filter(|p| p.threads.len() > 1) {
            let known = programs.entry(p.id).or_default();
            known.window.add(p, seen);
            if known.window.done.span_ns >= self.window_ns {
                let window = std::mem::take(&mut known.window);
                decisions.extend(self.look(known, p.id, &window, seen.at_ns));
            }
        }
        self.programs = programs;
        decisions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sign::sample;
    use corebeat_machine::{Cpu, Node, NodeId};
    use proptest::prelude::*;

    /// Four sockets in a ring: 0 and 1, and 2 and 3, are the farthest from each other (section 4.1, Figure 4.2 (a)).
    fn ring(cores: u32) -> Topology {
        let far = |a: u32, b: u32| match (a == b, a / 2 == b / 2) {
            (true, _) => 10,
            (false, true) => 22,
            (false, false) => 16,
        };
        let node = |n: u32| Node {
            id: NodeId(n),
            cpus: (n * cores..(n + 1) * cores).map(CpuId).collect(),
            distances: (0..4).map(|m| far(n, m)).collect(),
        };
        let cpu = |c: u32| {
            let n = c / cores;
            Cpu { id: CpuId(c), package: n, core: c, node: NodeId(n), cache: n }
        };
        Topology::new((0..4 * cores).map(cpu).collect(), (0..4).map(node).collect()).unwrap()
    }

    /// A thread: which CPU it ran on, and its share of time on locks.
    type Thread = (u32, f64);

    fn snapshot(at_s: u64, threads: &[Thread], instructions: u64) -> Snapshot {
        let mut p = sample::program();
        for (cpu, lock) in threads {
            let t = sample::thread(&mut p, 1.0 - lock, *lock, 0.0);
            t.cpu = Some(CpuId(*cpu));
            t.shares.spin = Some(0.0);
            t.counters.voluntary_switches = Some(10);
            t.counters.instructions = Some(instructions);
        }
        let at_ns = at_s * 1_000_000_000;
        Snapshot { at_ns, span_ns: 1_000_000_000, programs: vec![p], ..Snapshot::default() }
    }

    /// Lets the policy decide for so many seconds; threads go where they are bound. How many were bound, and how often all were let go.
    fn run(
        policy: &mut Shuffler,
        seconds: std::ops::RangeInclusive<u64>,
        threads: &mut [Thread],
        instructions: impl Fn(bool) -> u64,
    ) -> (usize, usize) {
        let (mut binds, mut releases, mut is_bound) = (0, 0, false);
        for at in seconds {
            for decision in policy.decide(&snapshot(at, threads, instructions(is_bound))) {
                assert!(!decision.why.is_empty());
                match decision.action {
                    Action::SetCpus { target: Target::Thread(id), cpus: Some(cpus) } => {
                        threads[id.tid as usize - 1].0 = cpus.iter().next().unwrap().0;
                        binds += 1;
                        is_bound = true;
                    }
                    Action::SetCpus { target: Target::Program(_), cpus: None } => {
                        releases += 1;
                        is_bound = false;
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        (binds, releases)
    }

    /// Four groups of four threads with lock times that differ, one thread of each group on each socket of four cores.
    fn mixed() -> Vec<Thread> {
        (0..16).map(|i| (4 * (i % 4) + i / 4, 0.1 + 0.2 * f64::from(i / 4))).collect()
    }

    fn steady(_: bool) -> u64 {
        1_000_000_000
    }

    #[test]
    fn chain_goes_from_near_to_near() {
        let places = Shuffler::new(&ring(2)).places;
        let places: Vec<String> = places.iter().map(CpuSet::to_string).collect();
        assert_eq!(places, ["0-1", "4-5", "2-3", "6-7"], "0 and 1, and 2 and 3, are no neighbours");
    }

    #[test]
    fn machine_with_one_cache_has_nothing_to_shuffle_and_says_so() {
        let mut policy = Shuffler::new(&Topology::flat(8));
        assert!(policy.idle_because().is_some_and(|why| why.contains("nothing to shuffle")));
        let mut threads: Vec<Thread> = (0..8).map(|i| (i, 0.1 * f64::from(i))).collect();
        assert_eq!(run(&mut policy, 1..=20, &mut threads, steady), (0, 0));
        assert_eq!(Shuffler::new(&ring(1)).idle_because(), None);
    }

    #[test]
    fn threads_of_like_lock_times_come_to_one_place_and_like_groups_to_neighbours() {
        let (mut policy, mut threads) = (Shuffler::new(&ring(4)), mixed());
        assert_eq!(run(&mut policy, 1..=1, &mut threads, steady), (0, 0), "the window is not over");
        assert_eq!(run(&mut policy, 2..=2, &mut threads, steady), (16, 0));
        let socket = |group: usize| {
            let cpus: BTreeSet<u32> = threads[4 * group..][..4].iter().map(|t| t.0 / 4).collect();
            assert_eq!(cpus.len(), 1, "{threads:?}");
            cpus.into_iter().next()
        };
        // The longest lock times first, along the chain of sockets 0, 2, 1, 3.
        assert_eq!([3, 2, 1, 0].map(socket), [Some(0), Some(2), Some(1), Some(3)]);
    }

    #[test]
    fn nothing_changes_where_nothing_has_changed() {
        let (mut policy, mut threads) = (Shuffler::new(&ring(4)), mixed());
        run(&mut policy, 1..=2, &mut threads, steady);
        assert_eq!(run(&mut policy, 3..=100, &mut threads, steady), (0, 0));
        // Noise below the band is no change either.
        threads.iter_mut().zip(0..).for_each(|(t, i)| t.1 += 0.004 * f64::from(i % 3 - 1));
        assert_eq!(run(&mut policy, 101..=104, &mut threads, steady), (0, 0));
    }

    #[test]
    fn two_threads_that_change_parts_are_swapped() {
        let (mut policy, mut threads) = (Shuffler::new(&ring(4)), mixed());
        run(&mut policy, 1..=2, &mut threads, steady);
        let before = threads.clone();
        (threads[0].1, threads[15].1) = (threads[15].1, threads[0].1);
        assert_eq!(run(&mut policy, 3..=4, &mut threads, steady), (2, 0));
        assert_eq!((threads[0].0 / 4, threads[15].0 / 4), (before[15].0 / 4, before[0].0 / 4));
    }

    #[test]
    fn program_without_locks_or_on_one_socket_is_left_alone() {
        let mut calm: Vec<Thread> = (0..16).map(|i| (i, 0.04)).collect();
        assert_eq!(run(&mut Shuffler::new(&ring(4)), 1..=20, &mut calm, steady), (0, 0));
        let mut pinned: Vec<Thread> = (0..16).map(|i| (i % 4, 0.05 * f64::from(i))).collect();
        assert_eq!(run(&mut Shuffler::new(&ring(4)), 1..=20, &mut pinned, steady), (0, 0));
        // The main thread that joins the others is in a futex call all the time, and contends with nobody.
        let mut policy = Shuffler::new(&ring(4));
        for at in 1..=20 {
            let mut threads = calm.clone();
            threads.push((0, 1.0));
            let mut seen = snapshot(at, &threads, 1);
            seen.programs[0].threads[16].counters.voluntary_switches = Some(0);
            assert_eq!(policy.decide(&seen), []);
        }
    }

    #[test]
    fn spinning_for_a_lock_is_lock_time() {
        let mut policy = Shuffler::new(&ring(1));
        let spinning = |at| {
            let mut seen = snapshot(at, &[(0, 0.0), (1, 0.0), (2, 0.0), (3, 0.0)], 1);
            for (t, i) in seen.programs[0].threads.iter_mut().zip(0..) {
                t.shares.spin = Some(0.2 * f64::from(i));
            }
            seen
        };
        assert_eq!((policy.decide(&spinning(1)).len(), policy.decide(&spinning(2)).len()), (0, 4));
    }

    #[test]
    fn shuffling_that_does_not_help_is_taken_back_ever_longer() {
        let hurts = |is_bound| if is_bound { 900_000_000 } else { 1_000_000_000 };
        assert_eq!(run(&mut Shuffler::new(&ring(4)), 1..=5, &mut mixed(), hurts), (16, 0));
        assert_eq!(run(&mut Shuffler::new(&ring(4)), 1..=6, &mut mixed(), hurts), (16, 1), "two windows");
        let (binds, releases) = run(&mut Shuffler::new(&ring(4)), 1..=1_000, &mut mixed(), hurts);
        assert!((4..=8).contains(&releases), "after 10, 20, 40, ... seconds: {releases}");
        assert!(binds <= 16 * (releases + 1), "{binds}");
    }

    #[test]
    fn locks_that_are_over_let_threads_go() {
        let (mut policy, mut threads) = (Shuffler::new(&ring(4)), mixed());
        run(&mut policy, 1..=2, &mut threads, steady);
        threads.iter_mut().for_each(|t| t.1 = 0.01);
        assert_eq!(run(&mut policy, 3..=20, &mut threads, steady), (0, 1));
    }

    #[test]
    fn threads_that_end_are_made_up_for_by_the_fewest_moves() {
        let (mut policy, mut threads) = (Shuffler::new(&ring(4)), mixed());
        run(&mut policy, 1..=2, &mut threads, steady);
        // The three last end, all of one place.
        threads.truncate(13);
        let (binds, _) = run(&mut policy, 3..=4, &mut threads, steady);
        assert!((2..=6).contains(&binds), "two move there, and make room by swaps: {binds}");
        let mut counts = [0; 4];
        threads.iter().for_each(|t| counts[t.0 as usize / 4] += 1);
        counts.sort_unstable();
        assert_eq!(counts, [3, 3, 3, 4]);
        assert_eq!(run(&mut policy, 5..=20, &mut threads, steady), (0, 0));
    }

    fn members(all: &[(usize, f64)]) -> Vec<Member> {
        let member = |(place, lock): &(usize, f64), i: i32| Member {
            id: ThreadId { tid: i, start_ticks: 0 },
            place: *place,
            lock: *lock,
        };
        all.iter().zip(0..).map(|(m, i)| member(m, i)).collect()
    }

    fn counts(members: &[Member], places: usize) -> Vec<usize> {
        (0..places).map(|place| members.iter().filter(|m| m.place == place).count()).collect()
    }

    proptest! {
        #[test]
        fn shuffle_swaps_only_and_sorts_within_the_band(
            all in proptest::collection::vec((0usize..6, 0.0f64..1.0), 0..80),
            band in prop_oneof![Just(0.0), 0.0f64..0.3],
        ) {
            let before = members(&all);
            let mut after = before.clone();
            shuffle(&mut after, 6, band);
            prop_assert_eq!(counts(&before, 6), counts(&after, 6), "as many in each place as before");
            let moved = before.iter().zip(&after).filter(|(b, a)| b.place != a.place).count();
            prop_assert!(moved <= all.len());
            let mut again = after.clone();
            shuffle(&mut again, 6, band);
            prop_assert_eq!(&after, &again, "nothing changes where nothing has changed");
            if band == 0.0 {
                for place in 1..6 {
                    let of = |place: usize| after.iter().filter(move |m| m.place == place).map(|m| m.lock);
                    let least = of(place - 1).fold(f64::INFINITY, f64::min);
                    prop_assert!(of(place).all(|lock| lock <= least), "place {place}: {after:?}");
                }
            }
        }

        #[test]
        fn sizes_are_in_proportion_and_leave_who_has_them_already_alone(
            counts_now in proptest::collection::vec(0usize..40, 1..8),
            cpus in 1usize..20,
        ) {
            let even = sizes(&counts_now, &vec![cpus; counts_now.len()]);
            prop_assert_eq!(even.iter().sum::<usize>(), counts_now.iter().sum::<usize>());
            prop_assert!(even.iter().max().unwrap() - even.iter().min().unwrap() <= 1);
            prop_assert_eq!(sizes(&even, &vec![cpus; even.len()]), even);
        }

        #[test]
        fn balance_gives_each_place_its_size_by_the_fewest_moves(
            all in proptest::collection::vec((0usize..5, 0.0f64..1.0), 0..60),
        ) {
            let before = members(&all);
            let now = counts(&before, 5);
            let wanted = sizes(&now, &[4; 5]);
            let mut after = before.clone();
            balance(&mut after, &wanted);
            prop_assert_eq!(counts(&after, 5), wanted.clone());
            let moved = before.iter().zip(&after).filter(|(b, a)| b.place != a.place).count();
            let too_many: usize = now.iter().zip(&wanted).map(|(n, w)| n.saturating_sub(*w)).sum();
            prop_assert_eq!(moved, too_many);
        }

        // Whatever it sees, it repeats itself, binds no more than all threads in a window, and keeps them as balanced as they were.
        #[test]
        fn shuffler_repeats_itself_within_bounds(
            locks in proptest::collection::vec(proptest::collection::vec(0.0f64..1.0, 16), 20),
        ) {
            let once = || {
                let (mut policy, mut threads) = (Shuffler::new(&ring(4)), mixed());
                let mut told = vec![];
                for (second, locks) in (1..).zip(&locks) {
                    threads.iter_mut().zip(locks).for_each(|(t, lock)| t.1 = *lock);
                    told.push((run(&mut policy, second..=second, &mut threads, steady), threads.clone()));
                }
                told
            };
            let told = once();
            prop_assert_eq!(&told, &once());
            for ((binds, releases), threads) in told {
                prop_assert!(binds <= 16 && releases <= 1);
                let mut counts = [0; 4];
                threads.iter().for_each(|t| counts[t.0 as usize / 4] += 1);
                prop_assert_eq!(counts, [4; 4]);
            }
        }
    }
}
