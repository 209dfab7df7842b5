//! Auto: every policy for one running program, coordinated.
//!
//! Two policies that each work alone can disturb each other: both change the same setting, or one
//! mistakes the effect of the other for its own. Two rules prevent both:
//!
//! 1. **A knob has one owner.** Each policy claims all knobs of a program that it changes, or none,
//!    as soon as the snapshots contain what the policy needs. A policy waits up to [`PATIENCE_NS`]
//!    for a policy that comes before it in the order below, because some values are observed late
//!    (Linux counts the cache misses of a thread only after it has observed how often the thread
//!    switches). A policy whose knob is taken leaves the program alone.
//! 2. **One experiment at a time.** After a change, a policy acts alone until `Member::quiet_ns`
//!    has passed without another change of that policy: until its effect is measured. Meanwhile the
//!    other policies are not called, so their samples do not contain that time.
//!
//! ```text
//!    order        knobs             requires
//!    team         size              an OpenMP program
//!    tranquilizer slice, memory     several NUMA nodes, counted cache misses
//!    faithful     slice             that the tranquilizer has not claimed the program
//!    shuffler     place             several last-level caches, several threads, a constant team
//! ```
//!
//! Each policy changes a program whose behaviour is constant a bounded number of times (invariant 4
//! of this crate), and no policy reacts to the changes of another one; so the combination is
//! bounded, too.
//!
//! If the user has started several programs, they also take turns where that is useful
//! ([`alternation`](crate::alternation)): each turn is a change. While they do, no other policy
//! acts.

use crate::alternation::Alternation;
use crate::cosched;
use crate::faithful::FaithFul;
pub use crate::knob::Knob;
use crate::one_program::ProgramPolicy;
use crate::ratio::Ratio;
use crate::shuffler::Shuffler;
use crate::team::{NO_REGIONS, Team, TeamSettings};
use crate::tranquilizer::Tranquilizer;
use corebeat_machine::{
    AppliedAction, Decision, Inaction, Policy, ProgramId, ProgramSample, Snapshot, Topology,
};
use std::collections::BTreeMap;

/// Time for which a knob is reserved for the policies that come first in the order, in nanoseconds
/// since the program was first observed running.
pub const PATIENCE_NS: u64 = 3_000_000_000;

/// Reason for which a policy does not act if its knobs are excluded.
const EXCLUDED: &str = "the user has excluded the settings that the policy changes";

/// A policy and the rules for its combination with others.
struct Member {
    policy: Box<dyn ProgramPolicy + Send>,
    /// All knobs that the policy changes.
    knobs: &'static [Knob],
    /// Time after a change in which no other policy acts, in nanoseconds: the time that the policy
    /// needs to measure the effect.
    quiet_ns: u64,
    /// Whether the observations of a program suffice for the policy.
    needs: fn(&ProgramSample, &Snapshot) -> bool,
    /// Reason for which the policy does not act on a program with insufficient observations.
    lacks: &'static str,
}

/// The policy. See the [module](self) for the rules.
pub struct Auto {
    members: Vec<Member>,
    /// Policies that do not apply on the machine, with the reasons.
    absent: Vec<(&'static str, &'static str)>,
    /// Time at which each program was first observed running.
    since_ns: BTreeMap<ProgramId, u64>,
    /// The member that acts alone, and the end of that time.
    alone: Option<(usize, u64)>,
    /// The member that owns a knob of a program.
    owners: BTreeMap<(ProgramId, Knob), usize>,
    /// Turns of several programs.
    alternation: Option<Alternation>,
}

/// Reason for which a program was left alone that no decision has concerned.
const UNDECIDED: &str = "the program was not observed long enough for a decision";

impl Auto {
    /// Returns the combination of all policies that apply on a machine, with their default
    /// thresholds. `quota` is the largest number of CPUs that each program may use, if a quota
    /// limits the number.
    pub fn new(topology: &Topology, quota: Option<f64>) -> Auto {
        const SECOND: u64 = 1_000_000_000;
        let (cpus, nodes) = (topology.cpus().len() as u32, topology.nodes().len() as u32);
        let mut absent = vec![];
        let mut members = vec![Member {
            policy: Box::new(Team::new(cpus, TeamSettings::default())),
            knobs: &[Knob::Size],
            // A trial takes three snapshots of half a second, and the verdict one more.
            quiet_ns: 2 * SECOND,
            needs: |program, _| program.team.is_some(),
            lacks: NO_REGIONS,
        }];
        if nodes > 1 {
            members.push(Member {
                policy: Box::new(Tranquilizer::new(cpus, nodes)),
                knobs: &[Knob::Slice, Knob::Memory],
                // Ten snapshots of half a second, after half a second in which pages move.
                quiet_ns: 6 * SECOND,
                needs: counts_misses,
                lacks: "cache misses are not counted",
            });
        } else {
            absent.push(("tranquilizer", "the machine has one NUMA node"));
        }
        members.push(Member {
            policy: Box::new(FaithFul::new(cpus).under_quota(quota)),
            knobs: &[Knob::Slice],
            // A check takes one window of half a second without the settings and one with them.
            quiet_ns: 3 * SECOND / 2,
            needs: |_, _| true,
            lacks: "the program was not observed",
        });
        let shuffler = Shuffler::new(topology);
        match shuffler.idle_because() {
            Some(why) => absent.push(("shuffler", why)),
            None => members.push(Member {
                policy: Box::new(shuffler),
                knobs: &[Knob::Place],
                // Two windows of two seconds.
                quiet_ns: 4 * SECOND,
                needs: keeps_its_threads,
                lacks: "the program has one thread, or teams of changing size",
            }),
        }
        Auto { absent, ..Auto::of(members) }
    }

    /// Leaves out the policies that change a knob other than these.
    pub fn only(mut self, knobs: &[Knob]) -> Auto {
        let may_act = |member: &Member| member.knobs.iter().all(|knob| knobs.contains(knob));
        let (kept, excluded) = std::mem::take(&mut self.members).into_iter().partition(may_act);
        let excluded: Vec<Member> = excluded;
        self.absent.extend(excluded.iter().map(|member| (member.policy.name(), EXCLUDED)));
        self.members = kept;
        self
    }

    fn of(members: Vec<Member>) -> Auto {
        Auto {
            members,
            absent: vec![],
            since_ns: BTreeMap::new(),
            alone: None,
            owners: BTreeMap::new(),
            alternation: None,
        }
    }

    /// Lets several programs take turns, where that is useful. Leaves out the policy that sizes
    /// teams: a machine sets one size for the teams of all programs.
    pub fn with_turns(mut self, topology: &Topology) -> Auto {
        self.members.retain(|member| !member.knobs.contains(&Knob::Size));
        self.absent
            .push(("team", "a team size would hold for all programs; run the program alone"));
        Auto { alternation: Some(Alternation::new(topology)), ..self }
    }

    /// Names of the policies that apply on the machine, in their order.
    pub fn members(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.members.iter().map(|member| member.policy.name())
    }

    /// Lets a member claim the knobs of a running program, if they are free.
    fn claim(&mut self, number: usize, program: &ProgramSample, snapshot: &Snapshot) {
        let member = &self.members[number];
        let is_owned = |knob: &Knob| self.owners.contains_key(&(program.id, *knob));
        if program.threads.is_empty() || member.knobs.iter().any(is_owned) {
            return;
        }
        let may_claim = |earlier: &Member| {
            earlier.knobs.iter().any(|knob| member.knobs.contains(knob))
                && !earlier.knobs.iter().any(is_owned)
        };
        let must_wait = self.members[..number].iter().any(may_claim);
        let since_ns = *self.since_ns.entry(program.id).or_insert(snapshot.at_ns);
        let is_due = !must_wait || snapshot.at_ns >= since_ns.saturating_add(PATIENCE_NS);
        if is_due && (member.needs)(program, snapshot) {
            self.owners.extend(member.knobs.iter().map(|&knob| ((program.id, knob), number)));
        }
    }
}

impl Policy for Auto {
    fn name(&self) -> &'static str {
        "auto"
    }

    fn decide(&mut self, snapshot: &Snapshot) -> Vec<Decision> {
        let is_present = |id: &ProgramId| snapshot.program(*id).is_some();
        self.owners.retain(|(id, _), _| is_present(id));
        self.since_ns.retain(|id, _| is_present(id));
        if let Some(alternation) = &mut self.alternation {
            let is_quiet = self.alone.is_none_or(|(_, until_ns)| snapshot.at_ns >= until_ns);
            let decisions = alternation.decide(snapshot, is_quiet);
            if alternation.is_active() || !decisions.is_empty() {
                return decisions;
            }
        }
        let mut all = Vec::new();
        for number in 0..self.members.len() {
            for program in &snapshot.programs {
                self.claim(number, program, snapshot);
            }
            let is_other = |(owner, until_ns)| owner != number && snapshot.at_ns < until_ns;
            if self.alone.is_some_and(is_other) {
                continue;
            }
            let Member { policy, knobs, quiet_ns, .. } = &mut self.members[number];
            let owners = &self.owners;
            let is_mine = |id| knobs.iter().all(|&knob| owners.get(&(id, knob)) == Some(&number));
            let mut decisions = policy.decide_for(snapshot, &is_mine);
            decisions.retain(|d| knobs.contains(&Knob::of(&d.action)));
            if !decisions.is_empty() {
                self.alone = Some((number, snapshot.at_ns.saturating_add(*quiet_ns)));
            }
            all.extend(decisions);
        }
        all
    }

    fn outcome(&mut self, applied: &AppliedAction) {
        if applied.decision.policy == cosched::NAME {
            self.alternation.iter_mut().for_each(|alternation| alternation.outcome(applied));
        }
        let mut members = self.members.iter_mut();
        if let Some(member) = members.find(|m| m.policy.name() == applied.decision.policy) {
            member.policy.outcome(applied);
        }
    }

    fn inactions(&self, program: ProgramId) -> Vec<Inaction> {
        let of_member = |(number, member): (usize, &Member)| {
            let policy = member.policy.name();
            let owner = |knob: &Knob| self.owners.get(&(program, *knob)).copied();
            let why = match member.knobs.iter().find_map(owner) {
                Some(owner) if owner == number => return member.policy.inactions(program),
                Some(owner) => {
                    let other = self.members[owner].policy.name();
                    format!("policy {other} adjusts the same settings")
                }
                None if !self.since_ns.contains_key(&program) => UNDECIDED.to_owned(),
                None => member.lacks.to_owned(),
            };
            vec![Inaction { policy, why }]
        };
        let turns = self.alternation.as_ref().and_then(Alternation::inaction);
        let turns = turns.map(|why| Inaction { policy: cosched::NAME, why: why.to_owned() });
        let absent = self.absent.iter();
        let absent = absent.map(|&(policy, why)| Inaction { policy, why: why.to_owned() });
        self.members.iter().enumerate().flat_map(of_member).chain(turns).chain(absent).collect()
    }
}

/// Returns whether a program keeps its threads: no policy resizes its team. If threads are pinned
/// while their team is large, a smaller team is unevenly distributed, and every other size seems to
/// be worse. A team is observed from its first region on; before, the program has one thread.
fn keeps_its_threads(program: &ProgramSample, _: &Snapshot) -> bool {
    program.threads.len() > 1 && program.team.as_ref().is_none_or(|team| team.fixed)
}

/// Returns whether cache misses and instructions are counted, by thread or for the whole host.
fn counts_misses(program: &ProgramSample, snapshot: &Snapshot) -> bool {
    let mut own = Ratio::default();
    own.add_counts(program, |t| t.counters.cache_misses.zip(t.counters.instructions));
    let host = &snapshot.host.counters;
    own.get().is_some() || host.cache_misses.zip(host.instructions).is_some()
}

#[cfg(test)]
mod tests;
