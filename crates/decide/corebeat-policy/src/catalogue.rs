//! The policy catalogue: one table that describes every policy and constructs it.
//!
//! The command line, the daemon and the simulator read names, help texts, periods and constructors
//! from [`ENTRIES`]. A new policy needs one variant of [`PolicyName`] and one entry here.
//!
//! ```
//! use corebeat_machine::Topology;
//! use corebeat_policy::catalogue::{Context, Instance, PolicyName};
//!
//! let topology = Topology::flat(8);
//! let name: PolicyName = "long-slices".parse()?; // the alias of `faithful`
//! let instance = name.entry().build(&Context::new(&topology))?;
//! assert!(matches!(instance, Instance::Policies(_)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::adapt::{Adapt, Model, ModelError};
use crate::auto::Auto;
use crate::claims::Claims;
use crate::cosched::{Cosched, Coscheduling, Fragments, SetError};
use crate::fair::Fair;
use crate::faithful::FaithFul;
use crate::knob::Knob;
use crate::shuffler::Shuffler;
use crate::team::{Team, TeamSettings};
use crate::tranquilizer::Tranquilizer;
use corebeat_machine::{Arbiter, CoscheduledSet, Coscheduler, Policy, ProgramId, Topology};
use std::fmt;
use std::str::FromStr;

/// Policies, in the order in which help texts list them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyName {
    /// Every policy that applies to one program.
    Auto,
    /// No policy.
    None,
    /// [`FaithFul`].
    Faithful,
    /// [`Coscheduling`] by freezing programs, or [`Cosched`] inside a simulated machine.
    Coscheduling,
    /// [`Cosched`] with [`Fragments::Idle`].
    CoschedulingIdle,
    /// [`Team`].
    Team,
    /// [`Tranquilizer`].
    Tranquilizer,
    /// [`Shuffler`].
    Shuffler,
    /// [`Adapt`].
    Adapt,
    /// [`Fair`].
    Fair,
    /// [`Claims`].
    Claims,
    /// [`Reinforcer`](crate::reinforcer::Reinforcer).
    Reinforcer,
}

/// Number of programs that a policy acts on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// One program, or several that the policy treats independently.
    OneProgram,
    /// Several programs that the user starts together.
    SeveralPrograms,
    /// All programs of a host that report progress, or that claim CPUs.
    Host,
}

/// Environment that can run a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Environment {
    /// Programs that `corebeat run` and `corebeat tune` start on this host.
    Run,
    /// A simulated machine.
    Simulation,
    /// The daemon.
    Daemon,
}

/// Requirement of a policy, other than snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// A channel that sets the team sizes of OpenMP programs.
    TeamChannel,
    /// A trained model of the machine, [`Context::model`].
    Model,
    /// Coscheduled sets ([`Context::sets`]) or programs that take turns ([`Context::programs`]).
    CoscheduledSets,
    /// Programs that report their progress and have a goal.
    Goals,
    /// Programs with OpenMP parallel regions.
    ParallelRegions,
    /// Programs that claim CPUs.
    Claims,
    /// Short runs of the program with different numbers of threads.
    Trials,
}

impl Need {
    /// Returns the reason why a policy never acts where no program meets this requirement.
    fn absence(self) -> &'static str {
        match self {
            Need::TeamChannel => "the team sizes of the programs cannot be set",
            Need::Model => "there is no model of this machine",
            Need::CoscheduledSets => "the scenario has no [[sets]], so no programs take turns",
            Need::Goals => "no program has a goal, so no CPU shares are adjusted",
            Need::ParallelRegions => "no program has parallel regions, so no team is resized",
            Need::Claims => "no program requests CPUs (the step invade), so no CPU is assigned",
            Need::Trials => "the programs cannot be run for a short time",
        }
    }
}

/// Input of every constructor. [`Context::new`] has the defaults.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// Topology of the machine.
    pub topology: &'a Topology,
    /// Name of the processor and the model that was trained on it.
    pub model: Option<(&'a str, &'a Model)>,
    /// Coscheduled sets of a machine that schedules them itself.
    pub sets: &'a [CoscheduledSet],
    /// Programs that take turns, each with the largest number of CPUs that it can use.
    pub programs: &'a [(ProgramId, u32)],
    /// Duration of a turn of coscheduled sets or programs, in nanoseconds. Default 50 ms.
    pub slice_ns: u64,
    /// Largest number of CPUs that each program may use, by a quota.
    pub quota: Option<f64>,
    /// Requirements that no program meets, as far as this is known in advance.
    pub lacking: &'a [Need],
}

impl<'a> Context<'a> {
    /// Returns a context without a model, sets and programs.
    pub fn new(topology: &'a Topology) -> Self {
        Context {
            topology,
            model: None,
            sets: &[],
            programs: &[],
            slice_ns: 50_000_000,
            quota: None,
            lacking: &[],
        }
    }

    fn cpus(&self) -> u32 {
        self.topology.cpus().len() as u32
    }
}

/// A constructed policy, by the place where it decides.
pub enum Instance {
    /// Policies for the control loop; empty for [`PolicyName::None`].
    Policies(Vec<Box<dyn Policy>>),
    /// A scheduler of coscheduled sets, for machines that let one decide.
    Coscheduler(Box<dyn Coscheduler + Send>),
    /// An arbiter of CPU claims, for machines whose programs claim CPUs.
    Arbiter(Box<dyn Arbiter>),
    /// A search by short runs, which ends before the whole run starts.
    Search,
}

impl Instance {
    /// Returns the policies for the control loop, or none where something else decides.
    pub fn policies(self) -> Vec<Box<dyn Policy>> {
        match self {
            Instance::Policies(policies) => policies,
            Instance::Coscheduler(_) | Instance::Arbiter(_) | Instance::Search => vec![],
        }
    }
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Instance::Policies(policies) => {
                let names: Vec<_> = policies.iter().map(|policy| policy.name()).collect();
                f.debug_tuple("Policies").field(&names).finish()
            }
            Instance::Coscheduler(_) => f.write_str("Coscheduler"),
            Instance::Arbiter(_) => f.write_str("Arbiter"),
            Instance::Search => f.write_str("Search"),
        }
    }
}

/// Reason why a policy cannot be found, constructed or combined.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CatalogueError {
    /// No policy has the name.
    #[error("there is no policy '{0}'; write one of {all}", all = names(None))]
    Unknown(String),
    /// The policy requires a model.
    #[error("policy {0} requires a model; write --model FILE, and train one with 'corebeat train'")]
    NoModel(PolicyName),
    /// The model does not fit.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The coscheduled sets do not fit.
    #[error(transparent)]
    Sets(#[from] SetError),
    /// A policy is named twice.
    #[error("policy {0} is named twice; name it once")]
    Twice(PolicyName),
    /// No policy, and another one.
    #[error("policy none cannot be combined with another policy; remove none or the others")]
    NoneAndOthers,
    /// Two variants of coscheduling.
    #[error("coscheduling and coscheduling-idle schedule the same sets; name one of them")]
    TwoCoschedulers,
    /// The shuffler pins threads of teams whose size changes.
    #[error(
        "policy shuffler would pin threads of the teams that policy team resizes; \
         name auto, which coordinates both"
    )]
    TeamAndShuffler,
    /// Both policies change one knob.
    #[error("policies {0} and {1} change the same settings; name one of them")]
    SameKnob(PolicyName, PolicyName),
}

/// Description of one policy.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// Identity of the policy.
    pub name: PolicyName,
    /// Name that users write: the paper's, in lower case.
    pub text: &'static str,
    /// Descriptive name, which users may write instead.
    pub alias: &'static str,
    /// One line for `--help`, without a full stop.
    pub summary: &'static str,
    /// Knobs that the policy changes.
    pub knobs: &'static [Knob],
    /// Default time from one observation to the next, in milliseconds.
    pub period_ms: u64,
    /// Number of programs that the policy acts on.
    pub scope: Scope,
    /// Environments that can run the policy.
    pub environments: &'static [Environment],
    /// Requirements of the policy.
    pub needs: &'static [Need],
    idle: fn(&Context<'_>) -> Option<&'static str>,
    build: fn(&Context<'_>) -> Result<Instance, CatalogueError>,
}

impl Entry {
    /// Returns the reason why the policy will never act on this machine and on these programs;
    /// `None` where it may act.
    pub fn idle_because(&self, context: &Context<'_>) -> Option<&'static str> {
        let lacks = self.needs.iter().find(|need| context.lacking.contains(need));
        lacks.map(|need| need.absence()).or_else(|| (self.idle)(context))
    }

    /// Constructs the policy with all thresholds at their defaults.
    ///
    /// # Errors
    /// [`CatalogueError`], where the model or the coscheduled sets are missing or do not fit.
    pub fn build(&self, context: &Context<'_>) -> Result<Instance, CatalogueError> {
        (self.build)(context)
    }

    /// Returns whether an environment can run the policy.
    pub fn runs_in(&self, environment: Environment) -> bool {
        self.environments.contains(&environment)
    }

    /// Returns whether the policy has a requirement.
    pub fn needs(&self, need: Need) -> bool {
        self.needs.contains(&need)
    }
}

const SIMULATION: &[Environment] = &[Environment::Simulation];

/// The entry of [`PolicyName::None`], and the defaults of all others.
const NONE: Entry = Entry {
    name: PolicyName::None,
    text: "none",
    alias: "observe-only",
    summary: "Observe without changing anything",
    knobs: &[],
    period_ms: 500,
    scope: Scope::OneProgram,
    environments: &[Environment::Run, Environment::Simulation],
    needs: &[],
    idle: |_| None,
    build: |_| Ok(Instance::Policies(vec![])),
};

/// All policies, in the order of [`PolicyName`].
pub static ENTRIES: [Entry; 12] = [
    Entry {
        name: PolicyName::Auto,
        text: "auto",
        alias: "combined",
        summary: "Every policy that applies to the programs on this machine, coordinated so that \
                  no two adjust the same settings; several programs that spin take turns",
        knobs: &[Knob::Size, Knob::Slice, Knob::Memory, Knob::Place],
        environments: &[Environment::Run, Environment::Simulation, Environment::Daemon],
        needs: &[Need::TeamChannel],
        build: |context| {
            let auto = Auto::new(context.topology, context.quota);
            one(match context.programs.len() > 1 {
                true => auto.with_turns(context.topology),
                false => auto,
            })
        },
        ..NONE
    },
    Entry {
        environments: &[Environment::Run, Environment::Simulation, Environment::Daemon],
        ..NONE
    },
    Entry {
        name: PolicyName::Faithful,
        text: "faithful",
        alias: "long-slices",
        summary: "Batch scheduling and long time slices for threads that lose their CPU while \
                  they hold locks (FaithFul); undone where progress does not improve",
        knobs: &[Knob::Slice],
        build: |context| one(FaithFul::new(context.cpus()).under_quota(context.quota)),
        ..NONE
    },
    Entry {
        name: PolicyName::Coscheduling,
        text: "coscheduling",
        alias: "gang-scheduling",
        summary: "Programs that do not fit on the CPUs at the same time take turns; the waiting \
                  programs are frozen",
        // No knob: a simulated machine schedules sets without changing a setting of their programs,
        // so that another policy may act on them, such as fair. On a host, where programs are
        // frozen, coscheduling is the only policy.
        scope: Scope::SeveralPrograms,
        needs: &[Need::CoscheduledSets],
        build: |context| coscheduling(context, Fragments::Fill),
        ..NONE
    },
    Entry {
        name: PolicyName::CoschedulingIdle,
        text: "coscheduling-idle",
        alias: "gang-scheduling-idle",
        summary: "Coscheduling that leaves unused CPUs idle, as the prototype of the paper does",
        scope: Scope::SeveralPrograms,
        environments: SIMULATION,
        needs: &[Need::CoscheduledSets],
        build: |context| coscheduling(context, Fragments::Idle),
        ..NONE
    },
    Entry {
        name: PolicyName::Team,
        text: "team",
        alias: "openmp-threads",
        summary: "The size of OpenMP thread teams, by the measured times of parallel regions",
        knobs: &[Knob::Size],
        needs: &[Need::TeamChannel, Need::ParallelRegions],
        build: |context| one(Team::new(context.cpus(), TeamSettings::default())),
        ..NONE
    },
    Entry {
        name: PolicyName::Tranquilizer,
        text: "tranquilizer",
        alias: "low-variation",
        summary: "Memory pages spread over all NUMA nodes and fixed time slices, by the variation \
                  of cache misses and preemptions (Thread Tranquilizer)",
        knobs: &[Knob::Slice, Knob::Memory],
        period_ms: 100,
        build: |context| {
            let nodes = context.topology.nodes().len() as u32;
            one(Tranquilizer::new(context.cpus(), nodes))
        },
        ..NONE
    },
    Entry {
        name: PolicyName::Shuffler,
        text: "shuffler",
        alias: "group-by-lock-time",
        summary: "Threads with similar lock times on the same socket (Thread Shuffling)",
        knobs: &[Knob::Place],
        idle: |context| Shuffler::new(context.topology).idle_because(),
        build: |context| one(Shuffler::new(context.topology)),
        ..NONE
    },
    Entry {
        name: PolicyName::Adapt,
        text: "adapt",
        alias: "core-partitioning",
        summary: "Several programs on shared or on separate cores, by a trained model of their \
                  interference (ADAPT); requires --model",
        knobs: &[Knob::Slice, Knob::Memory, Knob::Place, Knob::Share],
        period_ms: 100,
        scope: Scope::SeveralPrograms,
        needs: &[Need::Model],
        build: |context| {
            let (name, model) = context.model.ok_or(CatalogueError::NoModel(PolicyName::Adapt))?;
            one(Adapt::new(context.topology, name, model.clone())?)
        },
        ..NONE
    },
    Entry {
        name: PolicyName::Fair,
        text: "fair",
        alias: "heart-rate-goals",
        summary: "CPU shares by the distance of each program from its heart rate goal (Metronome)",
        knobs: &[Knob::Share],
        scope: Scope::Host,
        environments: &[Environment::Simulation, Environment::Daemon],
        needs: &[Need::Goals],
        build: |context| {
            let mut fair = Fair::new(context.cpus());
            fair.remembers = true;
            one(fair)
        },
        ..NONE
    },
    Entry {
        name: PolicyName::Claims,
        text: "claims",
        alias: "exclusive-cpus",
        summary: "Exclusive CPUs for programs that request them (the step invade)",
        knobs: &[Knob::Place],
        scope: Scope::Host,
        environments: SIMULATION,
        needs: &[Need::Claims],
        build: |context| {
            let mut claims = Claims::new(context.topology.clone());
            // Other programs may use claimed CPUs, as with the daemon, and so need none reserved.
            claims.unclaimed_min = 0;
            Ok(Instance::Arbiter(Box::new(claims)))
        },
        ..NONE
    },
    Entry {
        name: PolicyName::Reinforcer,
        text: "reinforcer",
        alias: "thread-count",
        summary: "The number of threads of a program with tunable teams, by short runs before the \
                  whole run (Thread Reinforcer)",
        environments: SIMULATION,
        needs: &[Need::Trials],
        build: |_| Ok(Instance::Search),
        ..NONE
    },
];

fn one(policy: impl Policy + 'static) -> Result<Instance, CatalogueError> {
    Ok(Instance::Policies(vec![Box::new(policy)]))
}

/// Builds a scheduler inside the machine where there are sets, and a policy that freezes programs
/// otherwise.
fn coscheduling(context: &Context<'_>, fragments: Fragments) -> Result<Instance, CatalogueError> {
    if context.programs.is_empty() {
        let cosched = Cosched::new(context.topology, context.sets, context.slice_ns, fragments)?;
        return Ok(Instance::Coscheduler(Box::new(cosched)));
    }
    one(Coscheduling::new(context.topology, context.programs, context.slice_ns)?)
}

impl PolicyName {
    /// Returns the description of the policy.
    pub fn entry(self) -> &'static Entry {
        &ENTRIES[self as usize]
    }

    /// Returns the name that users write.
    pub fn text(self) -> &'static str {
        self.entry().text
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.text())
    }
}

impl FromStr for PolicyName {
    type Err = CatalogueError;

    /// Finds a policy by its name or its alias.
    fn from_str(text: &str) -> Result<PolicyName, CatalogueError> {
        let entry = ENTRIES.iter().find(|entry| entry.text == text || entry.alias == text);
        entry.map(|entry| entry.name).ok_or_else(|| CatalogueError::Unknown(text.to_owned()))
    }
}

/// Returns the names of all policies, or of those that an environment can run, separated by commas.
pub fn names(environment: Option<Environment>) -> String {
    let runs = |entry: &&Entry| environment.is_none_or(|place| entry.runs_in(place));
    ENTRIES.iter().filter(runs).map(|entry| entry.text).collect::<Vec<_>>().join(", ")
}

/// Checks that policies can act at the same time.
///
/// # Errors
/// [`CatalogueError`], where a policy is named twice or two policies would undo each other's
/// changes.
pub fn check_combination(names: &[PolicyName]) -> Result<(), CatalogueError> {
    let has = |name| names.contains(&name);
    if has(PolicyName::Coscheduling) && has(PolicyName::CoschedulingIdle) {
        return Err(CatalogueError::TwoCoschedulers);
    }
    if has(PolicyName::None) && names.iter().any(|name| *name != PolicyName::None) {
        return Err(CatalogueError::NoneAndOthers);
    }
    if has(PolicyName::Team) && has(PolicyName::Shuffler) {
        return Err(CatalogueError::TeamAndShuffler);
    }
    for (at, &name) in names.iter().enumerate() {
        let before = &names[..at];
        if before.contains(&name) {
            return Err(CatalogueError::Twice(name));
        }
        let knobs = name.entry().knobs;
        let clashes = |other: &&PolicyName| other.entry().knobs.iter().any(|k| knobs.contains(k));
        if let Some(&other) = before.iter().find(clashes) {
            return Err(CatalogueError::SameKnob(other, name));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_in_order_and_have_unique_names() {
        for (at, entry) in ENTRIES.iter().enumerate() {
            assert_eq!(entry.name as usize, at, "{}", entry.text);
            assert_eq!(entry.text.parse(), Ok(entry.name));
            assert_eq!(entry.alias.parse(), Ok(entry.name));
            assert!(!entry.summary.ends_with('.') && !entry.summary.contains('\n'));
            assert!(!entry.environments.is_empty() && entry.period_ms >= 20);
            let names = |e: &Entry| [e.text, e.alias];
            let others = ENTRIES.iter().filter(|other| other.name != entry.name);
            for other in others.flat_map(names) {
                assert!(!names(entry).contains(&other), "{other} has two meanings");
            }
        }
    }

    #[test]
    fn build_constructs_every_policy() {
        let topology = Topology::flat(4);
        let context = Context::new(&topology);
        for entry in &ENTRIES {
            let built = entry.build(&context);
            match entry.name {
                PolicyName::Adapt => {
                    assert_eq!(built.unwrap_err(), CatalogueError::NoModel(PolicyName::Adapt));
                }
                PolicyName::None => assert!(built.unwrap().policies().is_empty()),
                PolicyName::Coscheduling | PolicyName::CoschedulingIdle => {
                    assert!(matches!(built, Ok(Instance::Coscheduler(_))));
                }
                PolicyName::Claims => assert!(matches!(built, Ok(Instance::Arbiter(_)))),
                PolicyName::Reinforcer => assert!(matches!(built, Ok(Instance::Search))),
                _ => assert!(!built.unwrap().policies().is_empty(), "{}", entry.text),
            }
        }
        let programs = [(ProgramId(0), 4)];
        let frozen = Context { programs: &programs, ..context };
        let built = PolicyName::Coscheduling.entry().build(&frozen).unwrap();
        assert_eq!(built.policies()[0].name(), "coscheduling");
    }

    #[test]
    fn idle_policies_state_their_reason() {
        let topology = Topology::flat(4);
        let context = Context::new(&topology);
        let idle = |context: &Context<'_>| -> Vec<&'static str> {
            let idle = ENTRIES.iter().filter(|entry| entry.idle_because(context).is_some());
            idle.map(|entry| entry.text).collect()
        };
        assert_eq!(idle(&context), ["shuffler"], "the programs are unknown");
        let lacking = [Need::CoscheduledSets, Need::ParallelRegions, Need::Goals, Need::Claims];
        let none = Context { lacking: &lacking, ..context };
        let expected = ["coscheduling", "coscheduling-idle", "team", "shuffler", "fair", "claims"];
        assert_eq!(idle(&none), expected);
    }

    #[test]
    fn combinations_that_conflict_are_refused() {
        use PolicyName as P;
        assert_eq!(check_combination(&[P::Fair, P::Team, P::Faithful]), Ok(()));
        for (names, error) in [
            (vec![P::Coscheduling, P::CoschedulingIdle], CatalogueError::TwoCoschedulers),
            (vec![P::None, P::Fair], CatalogueError::NoneAndOthers),
            (vec![P::Team, P::Shuffler], CatalogueError::TeamAndShuffler),
            (vec![P::Fair, P::Fair], CatalogueError::Twice(P::Fair)),
            (vec![P::Auto, P::Team], CatalogueError::SameKnob(P::Auto, P::Team)),
        ] {
            assert_eq!(check_combination(&names), Err(error));
        }
    }
}
