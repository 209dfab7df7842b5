//! Thread Shuffling: threads with similar lock times share a socket.
//!
//! Pusukuri, *Runtime Support for Maximizing Performance on Multicore Systems* (2012), chapter 4.
//! The cache line of a lock takes 1.6 to 2.2 times as long to another socket as within a socket,
//! and all waiting threads wait for that time. Threads that contend with each other spend similar
//! shares of their time on locks. The thesis therefore measures the lock time of each thread for
//! two seconds, sorts the threads by lock time, divides the list into as many groups as there are
//! sockets, and pins each group to one socket, adjacent groups to adjacent sockets (Algorithm 2).
//! Threads are swapped, so that each socket keeps its number of threads.
//!
//! ```text
//!   lock time   .9 .9 .8 .8 | .5 .5 .4 .4 | .2 .2 .1 .1 | 0  0  0  0      a window of 2 s
//!                 group 0      group 1       group 2      group 3
//!                    |            |             |            |
//!   places       socket 0 --- socket 2 ---- socket 1 --- socket 3         a chain of near sockets
//! ```
//!
//! A place is a set of CPUs that share a last-level cache: a socket in the thesis, a part of a
//! socket on many newer machines.
//!
//! # Differences from the thesis
//!
//! - **A tolerance.** Two threads whose lock times differ by less than [`Shuffler::band`] are not
//!   swapped. Otherwise noise would move them forever (the thesis moves 10 of 64 threads every two
//!   seconds). Constant lock times cause no changes.
//! - **A chain of near places.** In the thesis' example the groups are on the sockets 0, 2, 3 and
//!   1, but sockets 2 and 3 have the largest distance (Figures 4.2 and 4.4). Here each group is on
//!   the remaining place that is nearest to the previous one.
//! - **Decreasing frequency.** Where noise exceeds the tolerance, threads are swapped after 1, 2,
//!   4, ... windows, until the program's lock time differs by [`Shuffler::phase_min`] or threads
//!   start or end. The number of changes within a time `t` of a phase is proportional to `log t`.
//! - **Balance.** Group sizes are proportional to the places' CPUs. Unbalanced threads are moved
//!   once; then threads are only swapped until threads start or end.
//! - **Shuffling that does not help is undone.** Progress is compared with the window before. After
//!   two successive windows with a loss of [`Shuffler::loss_min`], the original affinity of all
//!   threads is restored for [`Shuffler::rest_ns`], the next time for twice as long, and so on. The
//!   same applies if lock times fall below half of the threshold, because pinned threads cannot use
//!   idle CPUs elsewhere.
//! - **Only places that the program uses.** A program that its user has pinned to a socket stays
//!   there. (While pinned, a thread may run on all CPUs of its place.) Threads that only join other
//!   threads are left alone.
//!
//! # Failure
//!
//! If the machine refuses to pin a thread, the policy restores the affinity of the program's
//! threads and leaves the program alone.

use crate::one_program::{ONE_THREAD, PerProgram, ProgramPolicy, inaction};
use crate::progress::{Speeds, Work};
use crate::ratio::is_bystander;
use corebeat_machine::{
    Action, AppliedAction, CpuId, CpuSet, Decision, Inaction, Policy, ProgramId, ProgramSample,
    Snapshot, Target, ThreadId, Topology,
};
use std::collections::{BTreeMap, BTreeSet};

mod arrangement;

pub(crate) use arrangement::chain;
use arrangement::{Member, balance, shuffle, sizes};

/// The policy. All fields may be changed before the first snapshot.
#[derive(Debug, Clone)]
pub struct Shuffler {
    /// Duration of a window between decisions, in nanoseconds. Default 2 s (section 4.2.1).
    pub window_ns: u64,
    /// Smallest share of the threads' time spent on locks, blocked or spinning, for which the
    /// policy acts. Default 0.05 (section 4.2).
    pub lock_min: f64,
    /// Smallest difference of the lock times of two threads that are swapped. Default 0.01.
    pub band: f64,
    /// Relative loss of progress since before the threads were pinned for which a window is lost.
    /// Default 0.03.
    pub loss_min: f64,
    /// Duration of the first rest, in nanoseconds; each further rest lasts twice as long. Default
    /// 10 s.
    pub rest_ns: u64,
    /// Difference of the program's lock time that indicates a new phase. Default 0.05.
    pub phase_min: f64,
    /// Sets of CPUs that share a last-level cache, in a chain of near ones.
    places: Vec<CpuSet>,
    programs: BTreeMap<ProgramId, State>,
}

impl Shuffler {
    /// Returns the policy with default thresholds.
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

    /// Returns the reason why the policy never acts on this machine, if there is one.
    pub fn idle_because(&self) -> Option<&'static str> {
        (self.places.len() < 2).then_some(
            "all CPUs share one last-level cache, so no placement brings threads nearer to a lock",
        )
    }

    fn place_of(&self, cpu: CpuId) -> Option<usize> {
        self.places.iter().position(|place| place.contains(cpu))
    }
}

/// State of one program.
#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    window: Window,
    /// Place to which each thread is pinned.
    pinned: BTreeMap<ThreadId, usize>,
    /// Number of threads and speeds before threads were pinned.
    before: Option<(usize, Speeds)>,
    /// Successive windows lost since then.
    losses: u32,
    /// End of the rest.
    until_ns: u64,
    rests: u32,
    swapped: Option<Swapped>,
    /// Whether the machine refused to pin a thread.
    is_refused: bool,
    /// Why the policy does not act.
    idle: Option<String>,
}

/// The last change of the places of threads.
#[derive(Debug, Clone, Copy)]
struct Swapped {
    /// Number of threads.
    threads: usize,
    /// Share of the threads' time spent on locks.
    lock: f64,
    /// Windows until the next change is permitted.
    every: u32,
    /// End of those windows.
    until_ns: u64,
}

/// Observations since the last decision.
#[derive(Debug, Clone, Default)]
struct Window {
    work: Work,
    threads: BTreeMap<ThreadId, Observed>,
}

/// Observations of one thread.
#[derive(Debug, Clone, Copy, Default)]
struct Observed {
    /// CPU on which the thread ran last.
    cpu: Option<CpuId>,
    /// Time on locks, in nanoseconds.
    lock_ns: f64,
    /// Time for which the time on locks is known, in nanoseconds.
    span_ns: f64,
    /// Whether the last snapshot contains the thread.
    is_alive: bool,
    /// Whether the thread did more than wait in any snapshot.
    is_active: bool,
}

impl Observed {
    fn lock(&self) -> f64 {
        if self.span_ns > 0.0 { self.lock_ns / self.span_ns } else { 0.0 }
    }
}

impl Window {
    fn add(&mut self, p: &ProgramSample, snapshot: &Snapshot) {
        self.work.add(p, snapshot);
        self.threads.values_mut().for_each(|t| t.is_alive = false);
        for sample in &p.threads {
            let t = self.threads.entry(sample.id).or_default();
            t.is_alive = true;
            t.is_active |= !is_bystander(sample);
            t.cpu = sample.cpu.or(t.cpu);
            if let Some(lock) = sample.shares.lock_or_park() {
                let spin = sample.shares.spin.unwrap_or(0.0);
                t.lock_ns += (lock + spin) * sample.span_ns as f64;
                t.span_ns += sample.span_ns as f64;
            }
        }
    }

    /// Returns the share of their time that active threads spend on locks.
    fn lock(&self) -> f64 {
        let active = || self.threads.values().filter(|t| t.is_alive && t.is_active);
        let (lock, span): (f64, f64) =
            (active().map(|t| t.lock_ns).sum(), active().map(|t| t.span_ns).sum());
        if span > 0.0 { lock / span } else { 0.0 }
    }
}

impl Shuffler {
    /// Decides after one window of a program.
    fn decide_window(
        &self,
        state: &mut State,
        id: ProgramId,
        window: &Window,
        now_ns: u64,
    ) -> Vec<Decision> {
        let lock = window.lock();
        state.pinned.retain(|id, _| window.threads.get(id).is_some_and(|t| t.is_alive));
        if state.is_refused {
            let why = "the machine refused to pin a thread";
            let is_pinned = !state.pinned.is_empty();
            return if is_pinned { self.release(state, id, now_ns, why) } else { vec![] };
        }
        let is_used = |(id, t): &(&ThreadId, &Observed)| {
            t.is_alive && (t.is_active || state.pinned.contains_key(id))
        };
        let active: Vec<(ThreadId, Observed)> =
            window.threads.iter().filter(is_used).map(|(id, t)| (*id, *t)).collect();
        if let Some(gain) = self.loss(state, window, active.len()) {
            let why = format!("pinning changed progress by {:+.1}%", gain * 100.0);
            return self.release(state, id, now_ns, &why);
        }
        if lock < self.lock_min {
            if state.pinned.is_empty() || lock >= self.lock_min / 2.0 {
                state.idle = Some(format!(
                    "threads spend {:.1}% of their time on locks; shuffler needs {:.0}%",
                    lock * 100.0,
                    self.lock_min * 100.0
                ));
                return vec![];
            }
            let why = format!("threads spend only {:.1}% of their time on locks", lock * 100.0);
            return self.release(state, id, now_ns, &why);
        }
        let is_same_phase =
            |s: &Swapped| s.threads == active.len() && (s.lock - lock).abs() <= self.phase_min;
        state.swapped = state.swapped.filter(is_same_phase);
        if now_ns < state.until_ns.max(state.swapped.map_or(0, |s| s.until_ns)) {
            return vec![];
        }
        self.pin(state, &active, window, now_ns)
    }

    /// Compares progress with the window before the threads were pinned. Returns the gain after two
    /// lost windows.
    fn loss(&self, state: &mut State, window: &Window, threads: usize) -> Option<f64> {
        state.before = state.before.filter(|before| before.0 == threads);
        let gain = window.work.speeds().gain_over(&state.before?.1).unwrap_or(0.0);
        state.losses = if gain < -self.loss_min { state.losses + 1 } else { 0 };
        if state.losses == 0 {
            state.before = None;
        }
        (state.losses > 1).then_some(gain)
    }

    /// Pins threads to the places that the program uses, sorted by lock time.
    fn pin(
        &self,
        state: &mut State,
        active: &[(ThreadId, Observed)],
        window: &Window,
        now_ns: u64,
    ) -> Vec<Decision> {
        let place_of = |id: &ThreadId, t: &Observed| {
            let observed = || t.cpu.and_then(|cpu| self.place_of(cpu));
            state.pinned.get(id).copied().or_else(observed)
        };
        let used: BTreeSet<usize> = active.iter().filter_map(|(id, t)| place_of(id, t)).collect();
        let used: Vec<usize> = used.into_iter().collect();
        if used.len() < 2 {
            state.idle = Some("all threads run near one last-level cache".into());
            return vec![];
        }
        let index_of = |id: &ThreadId, t: &Observed| {
            let place = place_of(id, t)?;
            used.iter().position(|&used| used == place)
        };
        let mut members: Vec<Member> = active
            .iter()
            .filter_map(|(id, t)| Some(Member { id: *id, place: index_of(id, t)?, lock: t.lock() }))
            .collect();
        let mut counts = vec![0; used.len()];
        members.iter().for_each(|m| counts[m.place] += 1);
        let cpus: Vec<usize> = used.iter().map(|&place| self.places[place].len()).collect();
        balance(&mut members, &sizes(&counts, &cpus));
        shuffle(&mut members, used.len(), self.band);

        let moved = members.iter().filter(|m| state.pinned.get(&m.id) != Some(&used[m.place]));
        let moved: Vec<(Member, usize)> = moved.map(|m| (*m, used[m.place])).collect();
        if moved.is_empty() {
            return vec![];
        }
        let lock = window.lock();
        if state.before.is_none() {
            (state.before, state.losses) = (Some((active.len(), window.work.speeds())), 0);
        }
        let every = state.swapped.map_or(1, |s| s.every.saturating_mul(2));
        let until_ns = now_ns.saturating_add(self.window_ns.saturating_mul(every.into()));
        state.swapped = Some(Swapped { threads: active.len(), lock, every, until_ns });
        let decision = |(m, place): (Member, usize)| {
            state.pinned.insert(m.id, place);
            let (target, cpus) = (Target::Thread(m.id), Some(self.places[place].clone()));
            let why = format!(
                "the thread spends {:.0}% of its time on locks; the mean of the program is {:.0}%",
                m.lock * 100.0,
                lock * 100.0
            );
            Decision { policy: "shuffler", action: Action::SetCpus { target, cpus }, why }
        };
        moved.into_iter().map(decision).collect()
    }

    /// Restores the affinity of all threads and starts a rest.
    fn release(&self, state: &mut State, id: ProgramId, now_ns: u64, why: &str) -> Vec<Decision> {
        state.pinned.clear();
        (state.before, state.losses, state.swapped) = (None, 0, None);
        let rest_ns = self.rest_ns.saturating_mul(1 << state.rests.min(20));
        state.rests += 1;
        state.until_ns = now_ns.saturating_add(rest_ns);
        let action = Action::SetCpus { target: Target::Program(id), cpus: None };
        vec![Decision { policy: "shuffler", action, why: why.to_owned() }]
    }
}

impl Policy for Shuffler {
    fn name(&self) -> &'static str {
        "shuffler"
    }

    fn decide(&mut self, snapshot: &Snapshot) -> Vec<Decision> {
        self.decide_for(snapshot, &|_| true)
    }

    fn outcome(&mut self, applied: &AppliedAction) {
        let Action::SetCpus { target: Target::Thread(id), .. } = applied.decision.action else {
            return;
        };
        if applied.refusal().is_none() {
            return;
        }
        for state in self.programs.values_mut() {
            state.is_refused |= state.pinned.remove(&id).is_some();
        }
    }

    fn inactions(&self, program: ProgramId) -> Vec<Inaction> {
        inaction(self.name(), self.programs.get(&program).and_then(|state| state.idle.as_ref()))
    }
}

impl PerProgram for Shuffler {
    type State = State;

    fn states(&mut self) -> &mut BTreeMap<ProgramId, State> {
        &mut self.programs
    }

    fn step(&self, state: &mut State, p: &ProgramSample, snapshot: &Snapshot) -> Vec<Decision> {
        let obstacle = self.idle_because().or((p.threads.len() < 2).then_some(ONE_THREAD));
        if let Some(why) = obstacle {
            state.idle.get_or_insert_with(|| why.into());
            return vec![];
        }
        state.window.add(p, snapshot);
        if state.window.work.span_ns < self.window_ns {
            return vec![];
        }
        let window = std::mem::take(&mut state.window);
        self.decide_window(state, p.id, &window, snapshot.at_ns)
    }
}

#[cfg(test)]
mod tests;
