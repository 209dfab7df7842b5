//! ADAPT: which cores programs have, beside each other or apart, by what models predict of them.
//!
//! Pusukuri, *Runtime Support for Maximizing Performance on Multicore Systems* (2012), chapter 6. Programs that run side by side may all use
//! all cores, or each its own set of them. Which is better depends on how they wait for locks, for cores and for memory. So the thesis
//! trains two models of the share of time that a program spends in user mode: PAAP foresees it beside another program on all cores,
//! PACC on fewer cores. The **cores allocator** takes the configuration whose mean is best; the **policy allocator** gives those that are hard
//! (they wait for locks or for memory) memory over all nodes, or over those of their cores, and fixed turns as
//! [`faithful`](crate::faithful) has them.
//!
//! ```text
//!   a program comes ----> Look: it alone for 100 ms, the others frozen ----> choose: predict all configurations
//!        ^                                                                             |
//!        |   one is used less by alpha / one fell by beta / all are worse by gamma     v
//!        +------------------------- Watch, every 2 s <------ Trial: fixed turns and memory, against 1 s without
//!
//!   all cores   A A A A A A A A          core sets   A A A A A|B B B      in eighths of the machine, two of them at least
//!               B B B B B B B B
//! ```
//!
//! # Where this differs from the thesis
//!
//! - **Looking.** The thesis assumes that solo runs are known, and says that others might be stopped instead (section 6.2.3). That is
//!   what is done here: [`Adapt::look_ns`] for each program that comes, and for all when something has changed.
//! - **More than two.** The thesis evaluates pairs and does not say how they are put together. Here each other program adds its own
//!   slowdown: two that each would halve a program leave it a third.
//! - **Bounded changes.** What a configuration came to is remembered, and counts instead of what was predicted for it until programs have
//!   changed; and of others of its kind as much less is expected. So each is tried once, and few are. Another has to be better by gamma. Reconsidering becomes rarer, after 1, 2, 4, ... intervals, as long as nothing comes of it.
//! - **What does not help is taken back.** The thesis gives fixed turns and other memory unseen. Here programs run on their cores for
//!   [`Adapt::trial_ns`] first. Where they got more done then than in the interval with both, in the geometric mean, both are taken back for this
//!   configuration, until programs come, go or change.
//! - **Spinning** is no progress: it counts as waiting for locks, where it is seen.
//! - **Thresholds.** What is memory-intensive and what is high contention has no number in chapter 6; see [`Adapt::lock_min`] and
//!   [`Adapt::mpa_min`].

mod model;

pub use model::{
    Case, Fitted, Formula, Gauge, Identity, MODEL_VERSION, Model, ModelError, Predictor, Score, Step, Usage,
};

use crate::faithful::slice_us;
use crate::progress::{Done, Speeds};
use corebeat_machine::{
    Action, Class, CpuId, CpuSet, Decision, NodeId, Policy, ProgramId, ProgramSample, Snapshot, Target,
    Topology,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Core sets are multiples of this part of the machine (Figure 6.1 (b)), where it has as many cores.
const PARTS: u32 = 8;
/// And no smaller than so many of them, where there are as many.
const PARTS_MIN: u32 = 2;
/// No more programs are given sets of their own.
const SETS_MAX: usize = PARTS as usize;

/// The policy. All fields may be changed before it sees its first snapshot.
#[derive(Debug, Clone)]
pub struct Adapt {
    /// How long a program is looked at alone, in nanoseconds. Default 100 ms: half a sample of section 6.2.3, for all others stand still
    /// meanwhile.
    pub look_ns: u64,
    /// From one vector of all programs to the next, in nanoseconds. Default 2 s (section 6.2.3).
    pub interval_ns: u64,
    /// For how long programs are seen on their cores before they are given fixed turns and other memory, in nanoseconds. Default 1 s, as the
    /// profiles of section 3.2.
    pub trial_ns: u64,
    /// Those are taken back where programs get less done with them than without by this share. Default 0.05: a second and two of the
    /// same thing differ by less.
    pub margin: f64,
    /// A core set that is used less than another by this share is a reason to reconsider. Default 0.06 (section 6.2.3).
    pub alpha: f64,
    /// So is a program whose share of time in user mode fell by this. Default 0.04 (section 6.2.3).
    pub beta: f64,
    /// And a mean share of time in user mode that was predicted higher by this, twice. Default 0.08 (section 6.2.3).
    pub gamma: f64,
    /// From this share of time spent waiting for locks on a program is one of high contention. Default 0.05, the threshold of section 4.2.
    pub lock_min: f64,
    /// From so many misses of a reference to the last-level cache on it is memory-intensive. Default 0.1: from there on
    /// FaithFul's table asks for longer turns (Table 5.1).
    pub mpa_min: f64,
    /// A program whose shares moved by this since it was looked at is another one: what was tried counts no more. Default 0.1.
    pub band: f64,
    /// Reconsidering is never put off for more intervals. Default 64.
    pub rest_max: u32,
    /// Programs, by name, of which it is known how they are alone: as the thesis assumes of all (section 6.2.3). They need not be
    /// looked at when they come. Default none.
    pub solo: BTreeMap<String, Usage>,
    model: Model,
    cores: u32,
    /// In an order in which neighbours are near.
    places: Vec<CpuId>,
    nodes: Vec<(NodeId, CpuSet)>,
    programs: BTreeMap<ProgramId, Known>,
    /// Parts of the machine for those that have a set of their own; none where all have all cores.
    sets: BTreeMap<ProgramId, u32>,
    look: Option<Look>,
    watch: Watch,
    /// What each configuration came to since programs last changed.
    tried: BTreeMap<Vec<(ProgramId, u32)>, f64>,
    /// In which of them fixed turns and other memory did not help.
    refused: BTreeSet<Vec<(ProgramId, u32)>>,
    /// Of what was predicted since then, what came of it: on all cores, and in core sets.
    came_true: [f64; 2],
    /// Intervals from one reconsidering to the next, and until then.
    every: u32,
    left: u32,
}

/// What is known of a program.
#[derive(Debug, Clone, Default)]
struct Known {
    /// As it is alone on all cores.
    alone: Option<Usage>,
    /// What is set.
    cpus: Option<CpuSet>,
    fixed_us: Option<u32>,
    memory: Memory,
    frozen: bool,
    gauge: Gauge,
    done: Done,
    /// Its vectors since the last change: the first, and the two newest.
    first: Option<Usage>,
    vectors: VecDeque<Vector>,
    used_ns: f64,
}

/// A slice, if turns are to be fixed, and where memory is to be.
type Wanted = (Option<u32>, Memory);

/// What a program did in an interval.
#[derive(Debug, Clone, Copy)]
struct Vector {
    usage: Usage,
    /// Of a core set of its own, the share that it used.
    used: Option<f64>,
}

/// Where a program's memory is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
enum Memory {
    /// Where the machine puts it.
    #[default]
    Near,
    /// Over all nodes.
    All,
    /// Over those of its cores.
    Nodes(Vec<NodeId>),
}

/// Whether fixed turns and other memory help.
#[derive(Debug, Clone, Default)]
enum Trial {
    /// That is not asked: there are none, or it is known.
    #[default]
    Over,
    /// They are to come; what is done without them is seen.
    Without,
    /// They are there, and before them programs were this fast.
    With(BTreeMap<ProgramId, Speeds>),
}

/// Programs that are looked at, one after the other.
#[derive(Debug, Clone)]
struct Look {
    now: ProgramId,
    rest: VecDeque<ProgramId>,
    gauge: Gauge,
    seen_ns: u64,
    /// Why.
    why: String,
}

/// An interval in the making.
#[derive(Debug, Clone, Default)]
struct Watch {
    seen_ns: u64,
    /// The mean share of time in user mode that was predicted for what is set.
    predicted: Option<f64>,
    /// How often in a row less came of it.
    short: u32,
    trial: Trial,
    /// Who came and has not been judged yet, and how long ago the last of them did.
    came: Vec<ProgramId>,
    came_ns: u64,
}

/// CPUs in an order in which neighbours are near: core sets are stretches of it.
pub fn places(topology: &Topology) -> Vec<CpuId> {
    crate::shuffler::chain(topology).iter().flat_map(|place| place.iter().collect::<Vec<_>>()).collect()
}

fn parts(cores: u32) -> (u32, u32) {
    if cores >= PARTS { (PARTS, PARTS_MIN) } else { (cores, 1) }
}

/// How many cores a program may be given, fewer than all: 56, 48, 40, 32, 24 and 16 of 64 (section 6.2.1).
pub fn reduced(cores: u32) -> Vec<u32> {
    let (parts, least) = parts(cores);
    (least..parts).rev().map(|n| cores * n / parts).collect()
}

/// All ways to give `parts` to so many programs, at least `least` to each; the most even first.
fn divisions(parts: u32, programs: usize, least: u32) -> Vec<Vec<u32>> {
    let mut all = splits(parts, programs, least);
    all.sort_by_key(|division| division.iter().map(|n| n * n).sum::<u32>());
    all
}

fn splits(parts: u32, programs: usize, least: u32) -> Vec<Vec<u32>> {
    match programs {
        0 => vec![],
        1 => vec![vec![parts]],
        _ => {
            let others = least * (programs as u32 - 1);
            let first = least..=parts.saturating_sub(others);
            let with = |n: u32| {
                splits(parts - n, programs - 1, least).into_iter().map(move |mut rest| {
                    rest.insert(0, n);
                    rest
                })
            };
            first.filter(|n| *n <= parts).flat_map(with).collect()
        }
    }
}

impl Adapt {
    /// The policy with all thresholds at their defaults.
    ///
    /// # Errors
    /// [`ModelError`], where the model is not of this machine.
    pub fn new(topology: &Topology, name: &str, model: Model) -> Result<Adapt, ModelError> {
        model.check(&Identity::new(name, topology))?;
        Ok(Adapt {
            look_ns: 100_000_000,
            interval_ns: 2_000_000_000,
            trial_ns: 1_000_000_000,
            margin: 0.05,
            alpha: 0.06,
            beta: 0.04,
            gamma: 0.08,
            lock_min: 0.05,
            mpa_min: 0.1,
            band: 0.1,
            rest_max: 64,
            solo: BTreeMap::new(),
            model,
            cores: topology.cpus().len() as u32,
            places: places(topology),
            nodes: topology.nodes().iter().map(|n| (n.id, n.cpus.clone())).collect(),
            programs: BTreeMap::new(),
            sets: BTreeMap::new(),
            look: None,
            watch: Watch::default(),
            tried: BTreeMap::new(),
            refused: BTreeSet::new(),
            came_true: [1.0; 2],
            every: 1,
            left: 0,
        })
    }

    /// The share of time in user mode that each program is predicted to have on all cores, all side by side.
    pub fn predict_all(&self, programs: &[Usage]) -> Option<Vec<f64>> {
        let of = |(at, a): (usize, &Usage)| {
            let alone = a.usr?;
            let mut slower = 1.0;
            for (_, b) in programs.iter().enumerate().filter(|(other, _)| *other != at) {
                let case = Case { a, b: Some(b), cores: self.cores, given: self.cores };
                // No other program makes it faster than it is alone.
                let beside = self.model.paap.predict(case)?.min(alone);
                slower += if beside > 0.0 { alone / beside - 1.0 } else { f64::INFINITY };
            }
            Some(alone / slower)
        };
        programs.iter().enumerate().map(of).collect()
    }

    /// The share of time in user mode that a program is predicted to have on so many cores of its own.
    pub fn predict_set(&self, program: &Usage, cores: u32) -> Option<f64> {
        self.model.pacc.predict(Case { a: program, b: None, cores: self.cores, given: cores })
    }

    /// CPU-intensive, and of low contention.
    fn is_easy(&self, usage: &Usage) -> bool {
        usage.lock.is_none_or(|lock| lock < self.lock_min) && usage.mpa.is_none_or(|mpa| mpa < self.mpa_min)
    }

    fn is_hard(&self, id: ProgramId) -> bool {
        self.programs[&id].alone.is_some_and(|usage| !self.is_easy(&usage))
    }

    /// Takes note of who ended: who stays shares the cores of one that was hard.
    fn leave(&mut self, seen: &Snapshot, done: &mut Vec<Decision>) {
        let is_here = |id: &ProgramId| seen.programs.iter().any(|p| p.id == *id && !p.threads.is_empty());
        let gone: Vec<ProgramId> = self.programs.keys().copied().filter(|id| !is_here(id)).collect();
        for id in &gone {
            let freed = self.sets.remove(id);
            self.programs.remove(id);
            let count = self.sets.len() as u32;
            for (at, parts) in self.sets.values_mut().enumerate() {
                let freed = freed.unwrap_or(0);
                *parts += freed / count + u32::from((at as u32) < freed % count);
            }
            if let Some(look) = &mut self.look {
                look.rest.retain(|other| other != id);
            }
            self.watch.came.retain(|other| other != id);
        }
        if gone.is_empty() {
            return;
        }
        self.renew();
        if self.programs.len() < 2 {
            self.sets.clear();
            self.look = None;
            self.thaw(done, "it is alone");
        }
        if self.look.is_none() {
            self.settle(done, "a program ended");
        } else if self.look.as_ref().is_some_and(|look| gone.contains(&look.now)) {
            self.look_on(done);
        }
    }

    /// What was found out counts no more.
    fn renew(&mut self) {
        self.unlearn();
        (self.every, self.left) = (1, 0);
        self.watch = Watch { came: std::mem::take(&mut self.watch.came), ..Watch::default() };
        self.programs.values_mut().for_each(Known::forget);
    }

    fn unlearn(&mut self) {
        self.tried.clear();
        self.refused.clear();
        self.came_true = [1.0; 2];
    }

    /// Takes note of who has come. It runs beside the others first: if it is easy then it stays so, and nothing else changes.
    fn arrive(&mut self, seen: &Snapshot, done: &mut Vec<Decision>) {
        let is_new = |p: &&ProgramSample| !p.threads.is_empty() && !self.programs.contains_key(&p.id);
        let came: Vec<&ProgramSample> = seen.programs.iter().filter(is_new).collect();
        if came.is_empty() {
            return;
        }
        self.renew();
        for p in &came {
            let alone = self.solo.get(&p.name).copied();
            self.programs.insert(p.id, Known { alone, ..Known::default() });
        }
        if let Some(look) = &mut self.look {
            look.rest.extend(came.iter().map(|p| p.id).filter(|id| self.programs[id].alone.is_none()));
            let now = look.now;
            self.alone(now, done);
        } else {
            self.watch.came.extend(came.iter().map(|p| p.id));
        }
    }

    /// One snapshot of programs of which some have just come.
    fn coming(&mut self, seen: &Snapshot, done: &mut Vec<Decision>) {
        self.watch.came_ns += seen.span_ns;
        let is_due = self.watch.came_ns >= self.look_ns && self.programs.len() > 1;
        if self.watch.came.is_empty() || !is_due {
            return;
        }
        let why = "a program came".to_owned();
        let came = std::mem::take(&mut self.watch.came);
        let usage = |id: &ProgramId| {
            let known = &self.programs[id];
            known.alone.unwrap_or_else(|| known.gauge.usage())
        };
        if came.iter().all(|id| self.is_easy(&usage(id))) {
            return self.settle(done, &why);
        }
        let unknown = self.programs.iter().filter(|(_, known)| known.alone.is_none());
        let ids: VecDeque<ProgramId> = unknown.map(|(id, _)| *id).collect();
        if ids.is_empty() {
            return self.choose(done, &why);
        }
        self.look_at(ids, why, done);
    }

    fn look_at(&mut self, mut rest: VecDeque<ProgramId>, why: String, done: &mut Vec<Decision>) {
        let Some(now) = rest.pop_front() else { return };
        self.look = Some(Look { now, rest, gauge: Gauge::default(), seen_ns: 0, why });
        self.alone(now, done);
    }

    /// The next that is to be looked at, or what was found.
    fn look_on(&mut self, done: &mut Vec<Decision>) {
        let Some(look) = &mut self.look else { return };
        if let Some(next) = look.rest.pop_front() {
            (look.now, look.gauge, look.seen_ns) = (next, Gauge::default(), 0);
            return self.alone(next, done);
        }
        let why = self.look.take().map(|look| look.why);
        self.thaw(done, "all have been looked at");
        self.choose(done, &why.unwrap_or_default());
    }

    /// One runs, on all cores, and the others are frozen.
    fn alone(&mut self, now: ProgramId, done: &mut Vec<Decision>) {
        for (&id, known) in &mut self.programs {
            known.freeze(id, id != now, done, "one is looked at alone");
        }
        if let Some(known) = self.programs.get_mut(&now) {
            known.run_on(now, None, done, "it is looked at alone");
        }
    }

    fn thaw(&mut self, done: &mut Vec<Decision>, why: &str) {
        for (&id, known) in &mut self.programs {
            known.freeze(id, false, done, why);
        }
    }

    /// One snapshot of a program that is looked at.
    fn looking(&mut self, seen: &Snapshot, done: &mut Vec<Decision>) {
        let Some(look) = &mut self.look else { return };
        let Some(p) = seen.programs.iter().find(|p| p.id == look.now) else { return };
        look.gauge.add(p);
        look.seen_ns += seen.span_ns;
        if look.seen_ns < self.look_ns {
            return;
        }
        let usage = look.gauge.usage();
        let before = self.programs.get_mut(&look.now).and_then(|known| known.alone.replace(usage));
        if before.is_some_and(|before| differ(&before, &usage, self.band)) {
            self.unlearn();
            (self.every, self.left) = (1, 1);
        }
        self.look_on(done);
    }

    /// Takes the configuration that is best.
    fn choose(&mut self, done: &mut Vec<Decision>, why: &str) {
        let actual = self.tried.get(&key(&self.sets)).copied();
        if let Some((predicted, actual)) = self.watch.predicted.filter(|p| *p > 0.0).zip(actual) {
            let part = &mut self.came_true[usize::from(!self.sets.is_empty())];
            *part = (*part * actual / predicted).min(1.0);
        }
        let ids: Vec<ProgramId> = self.programs.keys().copied().collect();
        let usages: Vec<Usage> = self.programs.values().filter_map(|known| known.alone).collect();
        let is_known = usages.len() == ids.len() && usages.len() > 1;
        let mean = |shares: Vec<f64>| shares.iter().sum::<f64>() / shares.len() as f64;
        let mut best: Option<(BTreeMap<ProgramId, u32>, f64)> = None;
        let mut here = None;
        let mut consider = |sets: BTreeMap<ProgramId, u32>, predicted: Option<f64>| {
            let tried = self.tried.get(&key(&sets)).copied();
            let predicted = predicted.map(|p| p * self.came_true[usize::from(!sets.is_empty())]);
            if sets == self.sets {
                here = predicted;
            }
            // Of equals the first, but for rounding.
            if let Some(value) = tried.or(predicted)
                && best.as_ref().is_none_or(|b| value > b.1 + 1e-9)
            {
                best = Some((sets, value));
            }
        };
        if is_known {
            consider(BTreeMap::new(), self.predict_all(&usages).map(mean));
            let (parts, least) = parts(self.cores);
            let least = if ids.len() as u32 * least <= parts { least } else { 1 };
            let fits = ids.len() <= SETS_MAX && ids.len() as u32 * least <= parts;
            let is_all_easy = usages.iter().all(|usage| self.is_easy(usage));
            let divisions = if fits && !is_all_easy { divisions(parts, ids.len(), least) } else { vec![] };
            for division in divisions {
                let of = |(n, usage): (&u32, &Usage)| self.predict_set(usage, self.cores * n / parts);
                let shares: Option<Vec<f64>> = division.iter().zip(&usages).map(of).collect();
                consider(ids.iter().copied().zip(division).collect(), shares.map(mean));
            }
        }
        // What is there gets the benefit of the doubt.
        let now = actual.or(here).map(|value| (self.sets.clone(), value));
        let best = best.filter(|best| now.as_ref().is_none_or(|now| best.1 > now.1 + self.gamma)).or(now);
        let (sets, predicted) = best.map_or((BTreeMap::new(), None), |(sets, value)| (sets, Some(value)));
        self.sets = sets;
        self.watch = Watch { predicted, came: std::mem::take(&mut self.watch.came), ..Watch::default() };
        let predicted =
            predicted.map_or(String::new(), |p| format!("; {:.0}% in user mode predicted", p * 100.0));
        self.settle(done, &format!("{why}{predicted}"));
    }

    /// Gives each program its cores, and its turns and memory: those at once if no program gets what it has not had, else on trial.
    fn settle(&mut self, done: &mut Vec<Decision>, why: &str) {
        let (parts, _) = parts(self.cores);
        let mut at = 0;
        for (&id, known) in &mut self.programs {
            let own = self.sets.get(&id).map(|n| {
                let stretch = self.cores * at / parts..self.cores * (at + n) / parts;
                at += n;
                self.places[stretch.start as usize..stretch.end as usize].iter().copied().collect::<CpuSet>()
            });
            known.run_on(id, own, done, why);
        }
        let wanted = self.wanted();
        let is_new = |id: &ProgramId, (fixed_us, memory): &Wanted| {
            let known = &self.programs[id];
            (known.fixed_us.is_none() && fixed_us.is_some())
                || (known.memory == Memory::Near && *memory != Memory::Near)
        };
        if wanted.iter().any(|(id, wanted)| is_new(id, wanted)) {
            self.watch.trial = Trial::Without;
            self.restart();
        } else {
            self.watch.trial = Trial::Over;
            self.give(wanted, done, why);
        }
    }

    /// The turns and the memory that each program is to have on the cores that it has.
    fn wanted(&self) -> BTreeMap<ProgramId, Wanted> {
        let is_plain = self.programs.len() < 2 || self.refused.contains(&key(&self.sets));
        // Turns of two kinds on the same cores are worse than either (section 6.2.2).
        let mut on_all = self.programs.keys().filter(|id| !self.sets.contains_key(id));
        let is_fixed_on_all = on_all.any(|id| self.is_hard(*id));
        let of = |(&id, known): (&ProgramId, &Known)| {
            let is_hard = !is_plain && (known.cpus.is_some() || self.is_hard(id));
            let is_fixed = !is_plain && (known.cpus.is_some() || is_fixed_on_all);
            let memory = match &known.cpus {
                _ if !is_hard || self.nodes.len() < 2 => Memory::Near,
                None => Memory::All,
                Some(cpus) => {
                    let holds = |(_, of_it): &&(NodeId, CpuSet)| of_it.iter().any(|cpu| cpus.contains(cpu));
                    Memory::Nodes(self.nodes.iter().filter(holds).map(|(id, _)| *id).collect())
                }
            };
            let factor = known.alone.map(|u| 1.0 - u.mpa.unwrap_or(0.0).max(u.lock.unwrap_or(0.0)));
            (id, (is_fixed.then(|| slice_us(factor.unwrap_or(1.0))), memory))
        };
        self.programs.iter().map(of).collect()
    }

    /// Gives each program its turns and its memory. An interval begins.
    fn give(&mut self, wanted: BTreeMap<ProgramId, Wanted>, done: &mut Vec<Decision>, why: &str) {
        let all: Vec<NodeId> = self.nodes.iter().map(|(id, _)| *id).collect();
        for (id, (fixed_us, memory)) in wanted {
            let Some(known) = self.programs.get_mut(&id) else { continue };
            known.turn(id, fixed_us, done, why);
            known.lay(id, memory, &all, done, why);
        }
        self.restart();
    }

    fn restart(&mut self) {
        self.programs.values_mut().for_each(Known::forget);
        self.watch.seen_ns = 0;
    }

    /// Programs were seen without what is on trial: now with it.
    fn try_out(&mut self, done: &mut Vec<Decision>) {
        let before = self.programs.iter().map(|(id, known)| (*id, known.done.speeds())).collect();
        self.watch.trial = Trial::With(before);
        self.give(self.wanted(), done, "on trial");
    }

    /// An interval has ended: sees whether what is on trial is to be taken back, and does it.
    fn is_refused(&mut self, done: &mut Vec<Decision>) -> bool {
        let Trial::With(before) = std::mem::take(&mut self.watch.trial) else { return false };
        let gain = |(id, known): (&ProgramId, &Known)| known.done.speeds().gain_over(before.get(id)?);
        let gains: Vec<f64> = self.programs.iter().filter_map(gain).collect();
        let mean = gains.iter().map(|gain| gain.ln_1p()).sum::<f64>() / gains.len().max(1) as f64;
        let gain = mean.exp_m1();
        if gain >= -self.margin {
            return false;
        }
        self.refused.insert(key(&self.sets));
        self.give(self.wanted(), done, &format!("they changed progress by {:+.1}%", gain * 100.0));
        true
    }

    /// One snapshot of all programs, side by side or alone.
    fn watch(&mut self, seen: &Snapshot, done: &mut Vec<Decision>) {
        for p in &seen.programs {
            let Some(known) = self.programs.get_mut(&p.id) else { continue };
            known.gauge.add(p);
            known.done.add(p, seen);
            known.used_ns += p.cpus(seen.span_ns, |s| s.running()).unwrap_or(0.0) * seen.span_ns as f64;
        }
        self.watch.seen_ns += seen.span_ns;
        let few = self.programs.len() < 2;
        if few && self.watch.seen_ns >= self.look_ns {
            // It is alone: nobody needs to be frozen to see it so.
            self.programs.values_mut().for_each(|known| known.alone = Some(known.gauge.usage()));
        }
        if !self.watch.came.is_empty() && !few {
            return;
        }
        if let Trial::Without = self.watch.trial {
            if self.watch.seen_ns >= self.trial_ns {
                self.try_out(done);
            }
            return;
        }
        if self.watch.seen_ns < self.interval_ns {
            return;
        }
        let span_ns = std::mem::take(&mut self.watch.seen_ns) as f64;
        for (id, known) in &mut self.programs {
            let usage = std::mem::take(&mut known.gauge).usage();
            let cores = self.sets.get(id).map(|_| known.cpus.as_ref().map_or(0, |cpus| cpus.iter().count()));
            let used_ns = std::mem::take(&mut known.used_ns);
            let used = cores.filter(|n| *n > 0).map(|n| used_ns / span_ns / n as f64);
            known.first.get_or_insert(usage);
            known.vectors.push_back(Vector { usage, used });
            if known.vectors.len() > 2 {
                known.vectors.pop_front();
            }
        }
        self.left = self.left.saturating_sub(1);
        if few {
            return;
        }
        let reason = self.reason();
        if self.is_refused(done) {
            return;
        }
        // Where all are easy all have all cores, whatever is predicted.
        let is_easy = |known: &Known| {
            let now = known.vectors.back().is_none_or(|v| self.is_easy(&v.usage));
            now && known.alone.is_none_or(|alone| self.is_easy(&alone))
        };
        let is_worth_it = self.left == 0 && !self.programs.values().all(is_easy);
        let Some(why) = reason.filter(|_| is_worth_it) else { return };
        self.every = self.every.saturating_mul(2).min(self.rest_max);
        self.left = self.every;
        let is_unknown = self.programs.values().any(|known| known.alone.is_none());
        if is_unknown || self.programs.values().any(|known| known.has_changed(self.band)) {
            let all = self.programs.keys().copied().collect();
            self.look_at(all, why, done);
        } else {
            self.choose(done, &why);
        }
    }

    /// What asks for another configuration (section 6.2.3): the three conditions, in their order.
    fn reason(&mut self) -> Option<String> {
        let now: Vec<Vector> =
            self.programs.values().filter_map(|known| known.vectors.back().copied()).collect();
        let actual: Option<Vec<f64>> = now.iter().map(|vector| vector.usage.usr).collect();
        let actual = actual.map(|shares| shares.iter().sum::<f64>() / shares.len() as f64);
        if let Some(actual) = actual {
            self.tried.insert(key(&self.sets), actual);
        }
        let short = self.watch.predicted.zip(actual).is_some_and(|(p, a)| p > a + self.gamma);
        self.watch.short = if short { self.watch.short + 1 } else { 0 };
        let used: Vec<f64> = now.iter().filter_map(|vector| vector.used).collect();
        let least = used.iter().copied().reduce(f64::min);
        let most = used.iter().copied().reduce(f64::max);
        if let Some((least, most)) = least.zip(most).filter(|(least, most)| *least < most - self.alpha) {
            let (least, most) = (least * 100.0, most * 100.0);
            return Some(format!("one core set is used {least:.0}%, another {most:.0}%"));
        }
        let fell = |known: &Known| {
            let mut vectors = known.vectors.iter();
            let (before, now) = (vectors.next()?.usage.usr?, vectors.next()?.usage.usr?);
            (now < before - self.beta).then(|| format!("from {:.0}% to {:.0}%", before * 100.0, now * 100.0))
        };
        if let Some(fell) = self.programs.values().find_map(fell) {
            return Some(format!("time in user mode fell {fell}"));
        }
        (self.watch.short >= 2).then(|| "less time in user mode than predicted".to_owned())
    }
}

/// Whether a program does other things.
fn differ(before: &Usage, now: &Usage, band: f64) -> bool {
    let moved =
        |of: fn(&Usage) -> Option<f64>| of(before).zip(of(now)).is_some_and(|(a, b)| (a - b).abs() > band);
    moved(|u| u.usr) || moved(|u| u.lock)
}

fn key(sets: &BTreeMap<ProgramId, u32>) -> Vec<(ProgramId, u32)> {
    sets.iter().map(|(id, n)| (*id, *n)).collect()
}

impl Known {
    /// What was seen before a change says nothing of what is after it.
    fn forget(&mut self) {
        (self.gauge, self.done, self.used_ns) = (Gauge::default(), Done::default(), 0.0);
        self.vectors.clear();
        self.first = None;
    }

    /// Whether it does other things than at first with what is set.
    fn has_changed(&self, band: f64) -> bool {
        self.first.zip(self.vectors.back()).is_some_and(|(first, now)| differ(&first, &now.usage, band))
    }

    fn freeze(&mut self, program: ProgramId, frozen: bool, done: &mut Vec<Decision>, why: &str) {
        if self.frozen != frozen {
            self.frozen = frozen;
            done.push(Decision { action: Action::SetFrozen { program, frozen }, why: why.to_owned() });
        }
    }

    fn run_on(&mut self, program: ProgramId, cpus: Option<CpuSet>, done: &mut Vec<Decision>, why: &str) {
        if self.cpus != cpus {
            self.cpus.clone_from(&cpus);
            let target = Target::Program(program);
            done.push(Decision { action: Action::SetCpus { target, cpus }, why: why.to_owned() });
        }
    }

    /// Fixed turns, or the machine's own.
    fn turn(&mut self, program: ProgramId, slice_us: Option<u32>, done: &mut Vec<Decision>, why: &str) {
        let target = Target::Program(program);
        let mut push = |action| done.push(Decision { action, why: why.to_owned() });
        if self.fixed_us.is_some() != slice_us.is_some() {
            push(Action::SetClass { target, class: slice_us.map(|_| Class::Batch) });
        }
        if self.fixed_us != slice_us {
            push(Action::SetSlice { target, slice_us });
        }
        self.fixed_us = slice_us;
    }

    fn lay(
        &mut self,
        program: ProgramId,
        memory: Memory,
        all: &[NodeId],
        done: &mut Vec<Decision>,
        why: &str,
    ) {
        if self.memory == memory {
            return;
        }
        let action = match &memory {
            Memory::Near => Action::SpreadPages { program, spread: false },
            Memory::All => Action::SpreadPages { program, spread: true },
            Memory::Nodes(nodes) => Action::MovePages { program, from: all.to_vec(), to: nodes.clone() },
        };
        self.memory = memory;
        done.push(Decision { action, why: why.to_owned() });
    }
}

impl Policy for Adapt {
    fn name(&self) -> &'static str {
        "adapt"
    }

    /// A program that is missing from the snapshot, or has no threads left, has ended.
    fn decide(&mut self, seen: &Snapshot) -> Vec<Decision> {
        let mut done = Vec::new();
        self.leave(seen, &mut done);
        let looked = self.look.is_some();
        if looked {
            self.looking(seen, &mut done);
        } else {
            self.watch(seen, &mut done);
            self.coming(seen, &mut done);
        }
        self.arrive(seen, &mut done);
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sign::sample;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const TENTH_NS: u64 = 100_000_000;

    /// A model of a machine of 8 cores: beside another A loses `beside` of its time, and on cores of its own it has `apart` of them and threads.
    fn model(beside: f64, apart: f64) -> Model {
        let fitted = |predictors: &[Predictor], formula| Fitted {
            samples: 0,
            folds: 0,
            predictors: predictors.to_vec(),
            inflation: vec![],
            scores: vec![],
            formula,
        };
        let linear = |coefficients| Formula::Linear { intercept: 0.0, coefficients };
        Model {
            version: MODEL_VERSION,
            machine: Identity::new("test", &Topology::flat(8)),
            programs: vec![],
            paap: fitted(&[Predictor::UsrA], linear(vec![1.0 - beside])),
            pacc: fitted(&[Predictor::RctA], linear(vec![apart])),
        }
    }

    fn policy(beside: f64, apart: f64) -> Adapt {
        Adapt::new(&Topology::flat(8), "test", model(beside, apart)).unwrap()
    }

    const LOCKED: Usage =
        Usage { usr: Some(0.6), sys: Some(0.0), lat: Some(0.0), lock: Some(0.4), mpa: None, threads: 8 };
    const FREE: Usage = Usage { usr: Some(1.0), lock: Some(0.0), ..LOCKED };

    /// What the policy has set.
    #[derive(Debug, Clone, Default, PartialEq)]
    struct Set {
        cpus: BTreeMap<u32, String>,
        fixed: BTreeSet<u32>,
        frozen: BTreeSet<u32>,
    }

    fn snapshot(at_ns: u64, programs: &[(u32, Usage)]) -> Snapshot {
        let of = |&(id, usage): &(u32, Usage)| {
            let mut p = sample::program();
            (p.id, p.name) = (ProgramId(id), format!("p{id}"));
            for _ in 0..usage.threads {
                let t = sample::thread(
                    &mut p,
                    usage.usr.unwrap_or(0.0),
                    usage.lock.unwrap_or(0.0),
                    usage.lat.unwrap_or(0.0),
                );
                t.span_ns = TENTH_NS;
            }
            p
        };
        let programs = programs.iter().map(of).collect();
        Snapshot { at_ns, span_ns: TENTH_NS, programs, ..Snapshot::default() }
    }

    /// Runs programs that answer to what is set; gives what was set, each time that it changed, but for what was frozen meanwhile.
    fn run(
        policy: &mut Adapt,
        tenths: u64,
        world: impl Fn(u64, &Set) -> Vec<(u32, Usage)>,
    ) -> Vec<(u64, Set)> {
        let (mut set, mut changes) = (Set::default(), Vec::<(u64, Set)>::new());
        for at in 1..=tenths {
            let programs = world(at, &set);
            for decision in policy.decide(&snapshot(at * TENTH_NS, &programs)) {
                assert!(!decision.why.is_empty());
                match decision.action {
                    Action::SetCpus { target: Target::Program(ProgramId(id)), cpus: Some(cpus) } => {
                        drop(set.cpus.insert(id, cpus.to_string()))
                    }
                    Action::SetCpus { target: Target::Program(ProgramId(id)), cpus: None } => {
                        drop(set.cpus.remove(&id))
                    }
                    Action::SetClass { target: Target::Program(ProgramId(id)), class } => {
                        let _ = if class.is_some() { set.fixed.insert(id) } else { set.fixed.remove(&id) };
                    }
                    Action::SetFrozen { program: ProgramId(id), frozen } => {
                        let _ = if frozen { set.frozen.insert(id) } else { set.frozen.remove(&id) };
                    }
                    Action::SetSlice { .. } => {}
                    other => panic!("{other:?}"),
                }
            }
            set.cpus.retain(|id, _| programs.iter().any(|p| p.0 == *id));
            let all: BTreeSet<u32> = programs.iter().map(|p| p.0).collect();
            assert!(set.frozen.len() < all.len().max(1) || set.frozen.is_empty(), "somebody runs");
            if set.frozen.is_empty() && changes.last().is_none_or(|last| last.1 != set) {
                changes.push((at, set.clone()));
            }
        }
        changes
    }

    fn sets(changes: &[(u64, Set)]) -> Vec<Vec<&str>> {
        changes.iter().map(|(_, set)| set.cpus.values().map(String::as_str).collect()).collect()
    }

    #[test]
    fn core_sets_are_those_of_the_figure() {
        assert_eq!(reduced(64), [56, 48, 40, 32, 24, 16]);
        let of_64 = |division: &Vec<u32>| division.iter().map(|n| n * 8).collect::<Vec<u32>>();
        let two: Vec<Vec<u32>> = divisions(8, 2, 2).iter().map(of_64).collect();
        assert_eq!(two, [[32, 32], [24, 40], [40, 24], [16, 48], [48, 16]]);
        assert_eq!(divisions(8, 4, 2), [[2, 2, 2, 2]]);
        assert_eq!(divisions(8, 3, 2).len(), 6);
        assert_eq!((reduced(2), divisions(2, 2, 1)), (vec![1], vec![vec![1, 1]]));
    }

    #[test]
    fn programs_have_what_is_predicted_to_be_better() {
        let both = |_, _: &Set| vec![(1, LOCKED), (2, LOCKED)];
        // Beside each other 0.6 * 0.4, on half of the cores 0.5 * 0.9; and the other way round.
        let apart = run(&mut policy(0.6, 0.9), 15, both);
        assert_eq!(sets(&apart), [vec![], vec!["0-3", "4-7"], vec!["0-3", "4-7"]], "{apart:?}");
        assert_eq!(apart[2].1.fixed, BTreeSet::from([1, 2]));
        // One comes into view, runs for a tenth beside the other, then each is looked at.
        assert_eq!((apart[1].0, apart[2].0), (4, 14));
        let beside = run(&mut policy(0.1, 0.9), 15, both);
        assert_eq!(sets(&beside), [Vec::<&str>::new(), vec![]], "{beside:?}");
        assert_eq!(beside[1].1.fixed, BTreeSet::from([1, 2]), "they wait for locks");
    }

    #[test]
    fn programs_that_compute_are_left_alone() {
        let easy = run(&mut policy(0.9, 0.9), 200, |at, _| {
            let usr = if at % 40 < 20 { 1.0 } else { 0.8 };
            vec![(1, Usage { usr: Some(usr), ..FREE }), (2, FREE)]
        });
        assert_eq!(easy, [(1, Set::default())]);
    }

    #[test]
    fn program_that_comes_and_is_easy_has_all_cores_and_one_that_is_not_is_given_a_set() {
        let come = |third: Usage| {
            run(&mut policy(0.6, 0.9), 40, move |at, _| match at {
                0..20 => vec![(1, LOCKED), (2, LOCKED)],
                _ => vec![(1, LOCKED), (2, LOCKED), (3, third)],
            })
        };
        let easy = come(FREE);
        assert_eq!(sets(&easy).last().unwrap(), &["0-3", "4-7"], "{easy:?}");
        assert!(!easy.last().unwrap().1.fixed.contains(&3), "{easy:?}");
        let hard = come(LOCKED);
        assert_eq!(hard.last().unwrap().1.cpus.len(), 3, "{hard:?}");
    }

    #[test]
    fn program_that_goes_leaves_its_cores_to_the_others() {
        let mut p = policy(0.6, 0.9);
        let changes = run(&mut p, 60, |at, _| match at {
            0..5 => vec![(1, LOCKED)],
            5..25 => vec![(1, LOCKED), (2, LOCKED), (3, LOCKED)],
            25..45 => vec![(1, LOCKED), (3, LOCKED)],
            _ => vec![(3, LOCKED)],
        });
        let sets = sets(&changes);
        assert_eq!((sets.first().unwrap().len(), sets.last().unwrap().len()), (0, 0), "{changes:?}");
        assert!(sets.iter().any(|s| s.len() == 3), "{changes:?}");
        // Three had all 8 cores between them, and two have them still.
        let two = sets.iter().find(|s| s.len() == 2).unwrap();
        assert!(two[0].starts_with("0-") && two[1].ends_with("-7"), "{changes:?}");
        assert_eq!(changes.last().unwrap().1, Set { fixed: [1, 2].into(), ..Set::default() }, "{changes:?}");
    }

    #[test]
    fn program_that_ends_while_the_others_are_frozen_leaves_none_frozen() {
        for end in 3..9 {
            let mut p = policy(0.6, 0.9);
            let mut frozen = BTreeSet::new();
            for at in 1..=12 {
                let here: &[u32] = if at < end { &[1, 2, 3] } else { &[1, 3] };
                let programs: Vec<_> = here.iter().map(|id| (*id, LOCKED)).collect();
                for decision in p.decide(&snapshot(at * TENTH_NS, &programs)) {
                    if let Action::SetFrozen { program, frozen: is } = decision.action {
                        let _ = if is { frozen.insert(program) } else { frozen.remove(&program) };
                    }
                }
            }
            assert!(p.look.is_none() && frozen.iter().all(|id| *id == ProgramId(2)), "{end}: {frozen:?}");
        }
    }

    #[test]
    fn what_was_predicted_too_well_is_left_for_something_else() {
        // Apart they are to have 0.45 of their time, and have 0.1: beside each other 0.24 was predicted.
        let mut p = policy(0.6, 0.9);
        let changes = run(&mut p, 200, |_, set| {
            let usr = match (set.frozen.is_empty(), set.cpus.is_empty()) {
                (false, _) => 0.6,
                (true, true) => 0.24,
                (true, false) => 0.1,
            };
            vec![(1, Usage { usr: Some(usr), ..LOCKED }), (2, Usage { usr: Some(usr), ..LOCKED })]
        });
        assert!(changes.last().unwrap().1.cpus.is_empty(), "{changes:?}");
        assert!(changes.len() <= 5, "each configuration was tried once: {changes:?}");
    }

    #[test]
    fn fixed_turns_that_do_not_help_are_taken_back_until_programs_change() {
        let fixed =
            |changes: &[(u64, Set)]| changes.iter().map(|(_, set)| set.fixed.len()).collect::<Vec<_>>();
        for (with, expected) in [(0.5, vec![0, 0, 2]), (0.4, vec![0, 0, 2, 0])] {
            let world = |_, set: &Set| {
                let usr = if set.fixed.is_empty() { 0.45 } else { with };
                [1, 2].map(|id| (id, Usage { usr: Some(usr), ..LOCKED })).to_vec()
            };
            let changes = run(&mut policy(0.6, 0.9), 200, world);
            assert_eq!(fixed(&changes), expected, "{changes:?}");
        }
        // One ends and another comes: then they are tried again.
        let changes = run(&mut policy(0.6, 0.9), 200, |at, set| {
            let usr = if set.fixed.is_empty() { 0.45 } else { 0.4 };
            [1, if at < 100 { 2 } else { 3 }].map(|id| (id, Usage { usr: Some(usr), ..LOCKED })).to_vec()
        });
        assert_eq!(fixed(&changes).iter().filter(|n| **n == 2).count(), 2, "{changes:?}");
    }

    #[test]
    fn program_that_falls_is_looked_at_and_one_that_rises_is_not() {
        for (then, looks) in [(0.40, true), (0.54, false), (0.68, false)] {
            let (mut p, mut frozen) = (policy(0.1, 0.9), 0);
            for at in 1..=300 {
                let usage = |usr| Usage { usr: Some(usr), lock: Some(0.3), ..LOCKED };
                let programs = [(1, usage(if at < 150 { 0.54 } else { then })), (2, usage(0.54))];
                let decisions = p.decide(&snapshot(at * TENTH_NS, &programs));
                let is_look = |d: &Decision| matches!(d.action, Action::SetFrozen { frozen: true, .. });
                frozen += decisions.iter().filter(|d| at >= 100 && is_look(d)).count();
            }
            assert_eq!(frozen > 0, looks, "to {then}: {frozen}");
        }
    }

    #[test]
    fn phase_change_is_looked_at_and_answered() {
        // They wait for locks for 10 s, then compute, as fma3d does (Figure 6.4).
        let mut p = policy(0.3, 0.9);
        let lock = |at: u64| if at < 100 { 0.6 } else { 0.0 };
        let changes = run(&mut p, 400, |at, set| {
            let apart = if set.cpus.contains_key(&1) { 0.9 } else { 1.0 };
            let first = Usage { usr: Some((1.0 - lock(at)) * apart), lock: Some(lock(at)), ..LOCKED };
            vec![(1, first), (2, LOCKED)]
        });
        let before = changes.iter().rfind(|(at, _)| *at < 100).unwrap();
        let after = changes.last().unwrap();
        assert!(!before.1.cpus.is_empty() && after.1.cpus.is_empty(), "{changes:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn adapt_repeats_itself_and_its_changes_are_bounded(
            locks in proptest::collection::vec(0.0f64..0.5, 7),
            noise in proptest::collection::vec(-0.04f64..0.04, 97),
            beside in 0.0f64..1.0,
        ) {
            // Steady programs that are seen with noise: they are reconsidered after 1, 2, 4, ... intervals.
            let world = |at: u64, set: &Set| {
                let of = |id: u32| {
                    let lock = locks[id as usize];
                    let share = if set.cpus.contains_key(&id) { 0.6 } else { 0.8 };
                    let usr = ((1.0 - lock) * share + noise[(at + u64::from(id)) as usize % 97]).clamp(0.0, 1.0);
                    (id, Usage { usr: Some(usr.min(1.0 - lock)), lock: Some(lock), ..LOCKED })
                };
                (0..3).map(of).collect()
            };
            let changes = run(&mut policy(beside, 0.9), 2_000, world);
            prop_assert_eq!(&changes, &run(&mut policy(beside, 0.9), 2_000, world));
            prop_assert!(changes.len() <= 16, "{} changes", changes.len());
        }
    }
}
