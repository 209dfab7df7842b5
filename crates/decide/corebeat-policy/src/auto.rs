//! Auto: all policies that act on one running program, together.
//!
//! Two policies that are each right alone may fight together. They may pull one lever in turns; and one may take for its own success what
//! another has just changed. Two rules keep them apart:
//!
//! 1. **A lever has one owner.** Each policy takes the levers of a program that it pulls, all or none, as soon as it sees what it needs. One
//!    that comes later in their order waits for one before it for [`PATIENCE_NS`], for not all is seen at once (Linux counts a thread's
//!    cache misses once it has seen how often it switches). Who finds a lever taken stays out of that program.
//! 2. **One experiment at a time.** Who has acted is alone until it has let [`Member::quiet_ns`] go by without an act: until it knows what came
//!    of it. Meanwhile the others are not asked; what happens then is no part of what they see.
//!
//! ```text
//!    order        lever                       needs
//!    team         size of teams               (an OpenMP program)
//!    tranquilizer turns, memory               several nodes, cache misses that are counted
//!    faithful     turns                       that the tranquilizer has not come
//!    shuffler     place                       several last-level caches and threads, and a team that keeps its size
//! ```
//!
//! No policy acts without end on a program that does not change (invariant 4 of this crate), and none sees another's doing as its own; so
//! all of them together change as often as each alone.

use crate::faithful::FaithFul;
use crate::shuffler::Shuffler;
use crate::sign::Ratio;
use crate::team::{Team, TeamSettings};
use crate::tranquilizer::Tranquilizer;
use corebeat_machine::{Action, Decision, Policy, ProgramId, ProgramSample, Snapshot, Topology};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// From when a program is first seen running, levers are kept so long for those who come first in the order, in nanoseconds.
pub const PATIENCE_NS: u64 = 3_000_000_000;

/// What a policy pulls at. Two that pull at the same would undo each other's doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lever {
    /// How many threads: the size of teams.
    Size,
    /// How long a thread runs, and whom it preempts: class and slice.
    Turns,
    /// Where memory lies.
    Memory,
    /// On which CPUs.
    Place,
    /// How much of the CPUs: nice values, weights, limits, freezing.
    Share,
}

impl Lever {
    /// The one that an action pulls.
    pub fn of(action: &Action) -> Lever {
        match action {
            Action::SetTeam { .. } => Lever::Size,
            Action::SetClass { .. } | Action::SetSlice { .. } => Lever::Turns,
            Action::SpreadPages { .. } | Action::MovePages { .. } => Lever::Memory,
            Action::SetCpus { .. } => Lever::Place,
            Action::SetNice { .. }
            | Action::SetWeight { .. }
            | Action::SetQuota { .. }
            | Action::SetFrozen { .. } => Lever::Share,
        }
    }
}

/// A policy among others.
pub struct Member {
    /// The policy.
    pub policy: Box<dyn Policy>,
    /// All that it pulls at.
    pub levers: &'static [Lever],
    /// For how long after an act it wants to be alone, in nanoseconds: until it has seen what came of it.
    pub quiet_ns: u64,
    /// Whether what is seen of a program is enough for it.
    pub needs: fn(&ProgramSample, &Snapshot) -> bool,
}

/// What `--policy auto` is on this machine. Policies that have nothing to do on it are left out. Thresholds are the defaults.
pub fn policies(topology: &Topology) -> Vec<Box<dyn Policy>> {
    const SECOND: u64 = 1_000_000_000;
    let (cpus, nodes) = (topology.cpus().len() as u32, topology.nodes().len() as u32);
    let mut members = vec![Member {
        policy: Box::new(Team::new(cpus, TeamSettings::default())),
        levers: &[Lever::Size],
        // A try has three snapshots of half a second, and one more until the verdict.
        quiet_ns: 2 * SECOND,
        needs: |program, _| program.team.is_some(),
    }];
    if nodes > 1 {
        members.push(Member {
            policy: Box::new(Tranquilizer::new(cpus, nodes)),
            levers: &[Lever::Turns, Lever::Memory],
            // Ten snapshots of half a second, after half a second in which pages move.
            quiet_ns: 6 * SECOND,
            needs: counts_misses,
        });
    }
    members.push(Member {
        policy: Box::new(FaithFul::new(cpus)),
        levers: &[Lever::Turns],
        // A check has one window of half a second without and one with.
        quiet_ns: 3 * SECOND / 2,
        needs: |_, _| true,
    });
    let shuffler = Shuffler::new(topology);
    if shuffler.idle_because().is_none() {
        members.push(Member {
            policy: Box::new(shuffler),
            levers: &[Lever::Place],
            // Two windows of two seconds.
            quiet_ns: 4 * SECOND,
            needs: keeps_its_threads,
        });
    }
    compose(members)
}

/// Whether a program has threads that no other size of a team takes away. Threads that are tied while their team is large lie unevenly when
/// it is smaller, so that no other size seems to be better. A team is seen from its first region on, and before it has only one thread.
fn keeps_its_threads(program: &ProgramSample, _: &Snapshot) -> bool {
    program.threads.len() > 1 && program.team.as_ref().is_none_or(|team| team.fixed)
}

/// Whether cache misses and instructions are counted, by thread or for the whole host.
fn counts_misses(program: &ProgramSample, seen: &Snapshot) -> bool {
    let mut own = Ratio::default();
    own.add_counts(program, |t| t.counters.cache_misses.zip(t.counters.instructions));
    let host = &seen.host.counters;
    own.get().is_some() || host.cache_misses.zip(host.instructions).is_some()
}

/// These policies by the two rules, in this order. All of them are to be asked about each snapshot, in this order too.
pub fn compose(members: Vec<Member>) -> Vec<Box<dyn Policy>> {
    let levers = members.iter().map(|member| member.levers).collect();
    let stage = Rc::new(RefCell::new(Stage { levers, ..Stage::default() }));
    let on_stage =
        |(number, member)| Box::new(OnStage { number, member, stage: Rc::clone(&stage) }) as Box<dyn Policy>;
    members.into_iter().enumerate().map(on_stage).collect()
}

/// What members know of each other.
#[derive(Debug, Default)]
struct Stage {
    /// What each of them pulls.
    levers: Vec<&'static [Lever]>,
    /// When each program was first seen running.
    since: BTreeMap<ProgramId, u64>,
    /// Who is alone, and until when.
    alone: Option<(usize, u64)>,
    /// Who has which lever of a program.
    owners: BTreeMap<(ProgramId, Lever), usize>,
}

/// A member with its number.
struct OnStage {
    number: usize,
    member: Member,
    stage: Rc<RefCell<Stage>>,
}

impl OnStage {
    /// Whether this program is the member's to act on. Settles that where it is open and the program runs.
    fn takes_part(&self, stage: &mut Stage, program: &ProgramSample, seen: &Snapshot) -> bool {
        let mine = self.member.levers;
        let is_owned = |lever: &Lever| stage.owners.contains_key(&(program.id, *lever));
        if !program.threads.is_empty() && !mine.iter().any(is_owned) {
            let may_come = |levers: &&[Lever]| {
                levers.iter().any(|lever| mine.contains(lever)) && !levers.iter().any(is_owned)
            };
            let is_behind = stage.levers[..self.number].iter().any(may_come);
            let since_ns = *stage.since.entry(program.id).or_insert(seen.at_ns);
            let is_its_turn = !is_behind || seen.at_ns >= since_ns.saturating_add(PATIENCE_NS);
            if is_its_turn && (self.member.needs)(program, seen) {
                stage.owners.extend(mine.iter().map(|&lever| ((program.id, lever), self.number)));
            }
        }
        mine.iter().all(|&lever| stage.owners.get(&(program.id, lever)) == Some(&self.number))
    }
}

impl Policy for OnStage {
    fn name(&self) -> &'static str {
        self.member.policy.name()
    }

    fn decide(&mut self, seen: &Snapshot) -> Vec<Decision> {
        let stage = Rc::clone(&self.stage);
        let mut stage = stage.borrow_mut();
        let is_here = |id: &ProgramId| seen.programs.iter().any(|p| p.id == *id);
        stage.owners.retain(|(id, _), _| is_here(id));
        stage.since.retain(|id, _| is_here(id));
        let is_mine = |p: &ProgramSample| self.takes_part(&mut stage, p, seen);
        let mine: Vec<bool> = seen.programs.iter().map(is_mine).collect();
        if stage.alone.is_some_and(|(who, until_ns)| who != self.number && seen.at_ns < until_ns) {
            return vec![];
        }
        let mut shown = seen.clone();
        let mut mine = mine.into_iter();
        shown.programs.retain(|_| mine.next().unwrap_or(false));
        let mut decisions = self.member.policy.decide(&shown);
        decisions.retain(|d| self.member.levers.contains(&Lever::of(&d.action)));
        if !decisions.is_empty() {
            stage.alone = Some((self.number, seen.at_ns.saturating_add(self.member.quiet_ns)));
        }
        decisions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sign::sample;
    use corebeat_machine::{Class, Target};

    const SECOND: u64 = 1_000_000_000;

    /// Pulls a lever each time that it is asked, to and fro.
    struct Restless(&'static str, fn(Target, bool) -> Action, bool);

    impl Policy for Restless {
        fn name(&self) -> &'static str {
            self.0
        }

        fn decide(&mut self, seen: &Snapshot) -> Vec<Decision> {
            self.2 = !self.2;
            let pull = |p: &ProgramSample| Decision {
                action: self.1(Target::Program(p.id), self.2),
                why: "so".into(),
            };
            seen.programs.iter().map(pull).collect()
        }
    }

    fn slice(target: Target, on: bool) -> Action {
        Action::SetSlice { target, slice_us: on.then_some(1_000) }
    }

    fn class(target: Target, on: bool) -> Action {
        Action::SetClass { target, class: on.then_some(Class::Batch) }
    }

    fn cpus(target: Target, on: bool) -> Action {
        Action::SetCpus { target, cpus: on.then(|| "0".parse().unwrap()) }
    }

    fn member(
        name: &'static str,
        pulls: fn(Target, bool) -> Action,
        levers: &'static [Lever],
        quiet_s: u64,
    ) -> Member {
        let policy = Box::new(Restless(name, pulls, false));
        Member { policy, levers, quiet_ns: quiet_s * SECOND, needs: |_, _| true }
    }

    fn seen(at_s: u64) -> Snapshot {
        let mut program = sample::program();
        sample::thread(&mut program, 1.0, 0.0, 0.0);
        Snapshot { at_ns: at_s * SECOND, span_ns: SECOND, programs: vec![program], ..Snapshot::default() }
    }

    /// Who acts at each second.
    fn acts(policies: &mut [Box<dyn Policy>], seconds: std::ops::Range<u64>) -> Vec<Vec<&'static str>> {
        let at = |at_s: u64| {
            let acted =
                policies.iter_mut().filter_map(|p| (!p.decide(&seen(at_s)).is_empty()).then(|| p.name()));
            acted.collect()
        };
        seconds.map(at).collect()
    }

    #[test]
    fn lever_has_one_owner_and_who_comes_late_stays_out() {
        let pair =
            || vec![member("first", slice, &[Lever::Turns], 0), member("second", class, &[Lever::Turns], 0)];
        let mut apart: Vec<Box<dyn Policy>> = pair().into_iter().map(|m| m.policy).collect();
        assert_eq!(acts(&mut apart, 1..3), [["first", "second"]; 2], "so they fight");
        assert_eq!(acts(&mut compose(pair()), 1..4), [["first"]; 3]);
        // All levers or none.
        let greedy = member("greedy", cpus, &[Lever::Turns, Lever::Place], 0);
        let mut three =
            compose(pair().into_iter().chain([greedy, member("place", cpus, &[Lever::Place], 0)]).collect());
        assert_eq!(acts(&mut three, 1..3), [["first", "place"]; 2]);
    }

    #[test]
    fn who_has_acted_is_alone_until_it_has_been_quiet() {
        let mut both = compose(vec![
            member("first", slice, &[Lever::Turns], 0),
            member("second", cpus, &[Lever::Place], 3),
        ]);
        let acted = acts(&mut both, 1..6);
        assert_eq!(acted[0], ["first", "second"], "the first wants no time for itself");
        assert_eq!(acted[1..], [["second"]; 4], "the second acts on and on, and stays alone");
    }

    #[test]
    fn member_without_what_it_needs_stays_out_and_leaves_its_lever() {
        let pair = |needs| {
            let wants = Member { needs, ..member("wants", slice, &[Lever::Turns], 0) };
            compose(vec![wants, member("other", slice, &[Lever::Turns], 0)])
        };
        let acted = acts(&mut pair(counts_misses), 1..7);
        let nobody: Vec<&str> = vec![];
        assert_eq!(
            acted,
            [&nobody[..], &[], &[], &["other"], &["other"], &["other"]],
            "misses are not counted"
        );
        // What is not seen at first may be seen soon: then the lever is still there.
        let acted = acts(&mut pair(|_, seen| seen.at_ns >= 3 * SECOND), 1..7);
        assert_eq!(acted, [&nobody[..], &[], &["wants"], &["wants"], &["wants"], &["wants"]]);
        // What is no lever of its own it does not pull.
        let mut stray = compose(vec![member("stray", slice, &[Lever::Place], 0)]);
        assert!(acts(&mut stray, 1..2)[0].is_empty());
    }

    #[test]
    fn machine_with_one_node_and_cache_has_no_use_for_tranquilizer_and_shuffler() {
        let names = |topology: &Topology| policies(topology).iter().map(|p| p.name()).collect::<Vec<_>>();
        assert_eq!(names(&Topology::flat(2)), ["team", "faithful"]);
    }
}
