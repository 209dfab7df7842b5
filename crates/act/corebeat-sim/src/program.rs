//! What runs on a simulated machine: programs, their teams of threads, and the steps that each thread takes.

use corebeat_machine::CpuSet;
use serde::Deserialize;

/// Where a program's memory is placed on the nodes: Pusukuri 2012, Table 3.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// A thread's own data on the node where it first runs, data that all share on the node of the program's first thread.
    #[default]
    NextTouch,
    /// Each page on any node: nearly the same on each.
    Random,
    /// The same on each node.
    RoundRobin,
}

/// The class that a program starts in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StartClass {
    /// The machine's own way to take turns.
    #[default]
    Normal,
    /// As normal, but a thread that wakes up takes the CPU from nobody; on a time-sharing machine, one fixed priority.
    Batch,
    /// Only what nobody else wants.
    Idle,
}

/// How fast a program wants to be: Sironi et al. 2012, section 4.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Goal {
    /// The lowest rate, in beats a second.
    pub min: Option<f64>,
    /// The highest rate, in beats a second.
    pub max: Option<f64>,
    /// The window that rates are measured over, in milliseconds. Default 1,000.
    #[serde(default = "window")]
    pub window_ms: f64,
    /// It asks to be kept from going past the highest rate. Default no.
    #[serde(default)]
    pub hold: bool,
}

fn window() -> f64 {
    1_000.0
}

/// A program. In a scenario this is a table `[[programs]]`; what is left out has the default.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// Its name.
    pub name: String,
    /// Its threads, in teams that do the same.
    pub teams: Vec<Team>,
    /// When it starts, in milliseconds. Default 0.
    #[serde(default)]
    pub start_ms: f64,
    /// From -20 (most CPU time) to 19. Default 0.
    #[serde(default)]
    pub nice: i8,
    /// How it takes turns. Default normal.
    #[serde(default)]
    pub class: StartClass,
    /// The CPUs that it may run on, if it is in no set and asks for none ([`Step::Invade`]). Default all.
    pub cpus: Option<CpuSet>,
    /// Where its memory is. Default next-touch.
    #[serde(default)]
    pub placement: Placement,
    /// How much memory it has, in MiB: what moving its pages takes. Default 256.
    #[serde(default = "memory")]
    pub memory_mib: u32,
    /// How long its threads spin before they block, in microseconds; `inf` for always. Default 0.
    #[serde(default)]
    pub spin_us: f64,
    /// How many items its queues hold. Default 16.
    #[serde(default = "items")]
    pub queue_items: u32,
    /// What its beats are to be.
    pub goal: Option<Goal>,
    /// The coscheduled set that its threads are in. Default none.
    pub set: Option<String>,
    /// Whether it is seen and steered. One that is not keeps CPUs busy as others do on a host. Default yes.
    #[serde(default = "yes")]
    pub watched: bool,
}

fn memory() -> u32 {
    256
}

fn items() -> u32 {
    16
}

fn yes() -> bool {
    true
}

impl Program {
    /// A program with these teams and all defaults.
    pub fn new(name: &str, teams: Vec<Team>) -> Self {
        Program {
            name: name.to_owned(),
            teams,
            start_ms: 0.0,
            nice: 0,
            class: StartClass::Normal,
            cpus: None,
            placement: Placement::NextTouch,
            memory_mib: memory(),
            spin_us: 0.0,
            queue_items: items(),
            goal: None,
            set: None,
            watched: true,
        }
    }

    /// Whether any of its steps is such a one, also within others.
    pub fn does(&self, is: impl Fn(&Step) -> bool) -> bool {
        self.teams.iter().any(|team| team.does(&is))
    }

    /// Whether a team's count of threads may be chosen.
    pub fn is_tunable(&self) -> bool {
        self.teams.iter().any(|team| team.tunable)
    }

    /// It with so many threads in each team whose count may be chosen.
    pub fn tuned(&self, threads: u32) -> Program {
        let mut program = self.clone();
        program.teams.iter_mut().filter(|team| team.tunable).for_each(|team| team.threads = threads);
        program
    }
}

/// Threads that do the same.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Team {
    /// Its name. Default "thread".
    #[serde(default = "thread")]
    pub name: String,
    /// How many threads. Default 1.
    #[serde(default = "one")]
    pub threads: u32,
    /// How much of the caches each of them uses, in KiB. Default 256.
    #[serde(default = "footprint")]
    pub footprint_kib: u64,
    /// How many threads there are may be chosen, as by a program's argument ([`Program::tuned`]). Default no.
    #[serde(default)]
    pub tunable: bool,
    /// What each of them does, in order; then it ends.
    pub steps: Vec<Step>,
}

fn thread() -> String {
    "thread".into()
}

fn one() -> u32 {
    1
}

fn footprint() -> u64 {
    256
}

impl Team {
    /// So many threads that do this.
    pub fn new(threads: u32, steps: Vec<Step>) -> Self {
        Team { name: thread(), threads, footprint_kib: footprint(), tunable: false, steps }
    }

    pub(crate) fn does(&self, is: &dyn Fn(&Step) -> bool) -> bool {
        Step::any(&self.steps, is)
    }

    /// Whether it has parallel regions.
    pub(crate) fn forks(&self) -> bool {
        self.does(&|step| matches!(step, Step::Parallel { .. }))
    }
}

/// Something that a thread does.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Computes.
    Compute(Work),
    /// Takes a lock, does this, and gives it back.
    Lock {
        /// Which lock of the program.
        name: String,
        /// What is done meanwhile.
        steps: Vec<Step>,
    },
    /// Takes a ticket lock, does this, and gives it back: who waits spins, however long the program's threads spin elsewhere, and it
    /// goes to who came first, also one that has lost its CPU. Linux' own locks were so when the papers were written.
    TicketLock {
        /// Which lock of the program.
        name: String,
        /// What is done meanwhile.
        steps: Vec<Step>,
    },
    /// Waits until all threads of the program that have this barrier among their steps are there.
    Barrier(String),
    /// Waits for a signal of this condition, or takes one that was kept.
    Wait(String),
    /// Wakes one thread that waits for this condition; if nobody does, the signal is kept.
    Signal(String),
    /// Wakes all threads that wait for this condition; nothing is kept.
    Broadcast(String),
    /// Puts an item into this queue; waits while it is full.
    Push(String),
    /// Takes an item from this queue; waits while it is empty. Ends the thread where the queue is empty and all threads that
    /// push into it have ended.
    Pop(String),
    /// Waits for a device.
    Io {
        /// How long, in microseconds.
        us: f64,
        /// Up to this share of it more or less, any equally likely, from 0 to 1. Default 0.
        #[serde(default)]
        jitter: f64,
        /// How many bytes are read or written. Default 0.
        #[serde(default)]
        bytes: u64,
    },
    /// Emits a heartbeat.
    Beat,
    /// Begins a phase of the program, which pictures show.
    Phase(String),
    /// A parallel region, as of OpenMP: the team's threads do this together, then all wait for the last. Outside of its regions only the first
    /// of a team runs that has some. How many take part may be set while the program runs
    /// ([`SetTeam`](corebeat_machine::Action::SetTeam)), up to the team's threads; what is `split` or `shared` in a region is divided
    /// among those. A program has one such team.
    Parallel {
        /// Which region: those of one name are the same code.
        name: String,
        /// What is done.
        steps: Vec<Step>,
    },
    /// Asks for CPUs that no other program that asks has, `min` to `max` of them, as a claim does (Hollmann and Gerndt 2012, section 2). From
    /// then on each parallel region has as many threads as the claim has CPUs, at least one, each tied to a CPU. To be written
    /// outside of regions, in the team that has them, of a program without CPUs of its own and in no set.
    Invade {
        /// So many at least. A wish: it may get fewer. Default 1.
        #[serde(default = "one")]
        min: u32,
        /// So many at most.
        max: u32,
    },
    /// Gives back all but so many CPUs of the claim; with 0 it ends.
    Retreat(u32),
    /// Does this again and again.
    Repeat {
        /// How many times; for ever if left out.
        times: Option<u64>,
        /// The team's threads share the times: whoever comes first takes the next. Default no: each does all of them.
        #[serde(default)]
        shared: bool,
        /// What is done.
        steps: Vec<Step>,
    },
}

/// Something to compute.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Work {
    /// How long it takes alone, with its data in the caches or in local memory, in microseconds.
    pub us: f64,
    /// Up to this share of it more or less, any equally likely, from 0 to 1. Default 0.
    #[serde(default)]
    pub jitter: f64,
    /// Which share of it is waiting for memory, from 0 to 1; this share of the references to the shared cache misses it.
    /// Default 0.
    #[serde(default)]
    pub memory: f64,
    /// Which share of its memory accesses is to data that all threads of the program share, from 0 to 1. Default 0.
    #[serde(default)]
    pub shared: f64,
    /// Which share of it is spent in the kernel, from 0 to 1. Default 0.
    #[serde(default)]
    pub system: f64,
    /// The team's threads do it together: each does an equal part. Default no.
    #[serde(default)]
    pub split: bool,
}

impl Work {
    /// This long, and nothing special.
    pub fn us(us: f64) -> Self {
        Work { us, ..Work::default() }
    }
}

impl Step {
    /// Whether any of the steps, or of those within them, is such a one.
    pub(crate) fn any(steps: &[Step], is: &dyn Fn(&Step) -> bool) -> bool {
        steps.iter().any(|step| {
            is(step)
                || match step {
                    Step::Lock { steps, .. }
                    | Step::TicketLock { steps, .. }
                    | Step::Parallel { steps, .. }
                    | Step::Repeat { steps, .. } => Step::any(steps, is),
                    _ => false,
                }
        })
    }
}

impl From<Work> for Step {
    fn from(work: Work) -> Step {
        Step::Compute(work)
    }
}
