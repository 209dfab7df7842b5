//! Programs of a scenario, their teams of threads, and the steps of each thread.

use crate::code::THREADS_MAX;
use corebeat_machine::CpuSet;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

/// Placement of a program's memory on the nodes: Pusukuri 2012, Table 3.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Private data on the node where their thread first runs, shared data on the node of the
    /// program's first thread.
    #[default]
    NextTouch,
    /// Each page on a random node: nearly the same amount on each node.
    Random,
    /// The same amount on each node.
    RoundRobin,
}

/// The initial scheduling class of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StartClass {
    /// The machine's scheduling discipline.
    #[default]
    Normal,
    /// As normal, but a woken thread does not preempt another thread; on a time-sharing machine,
    /// one fixed priority.
    Batch,
    /// Only CPU time that no other thread needs.
    Idle,
}

/// The heart-rate goal of a program: Sironi et al. 2012, section 4.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Goal {
    /// Minimum rate, in heartbeats per second.
    pub min: Option<f64>,
    /// Maximum rate, in heartbeats per second.
    pub max: Option<f64>,
    /// Window of rates, in milliseconds. Default: 1,000.
    #[serde(default = "window")]
    pub window_ms: f64,
    /// Whether the maximum rate must be enforced. Default: no.
    #[serde(default)]
    pub hold: bool,
}

fn window() -> f64 {
    1_000.0
}

/// A program: in a scenario, a table `[[programs]]`. Keys with a default are optional.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// Name of the program.
    pub name: String,
    /// Threads, in teams with the same steps.
    pub teams: Vec<Team>,
    /// Start time, in milliseconds. Default: 0.
    #[serde(default)]
    pub start_ms: f64,
    /// Nice value, from -20 (most CPU time) to 19. Default: 0.
    #[serde(default)]
    pub nice: i8,
    /// Scheduling class. Default: normal.
    #[serde(default)]
    pub class: StartClass,
    /// CPUs where the threads may run; not for programs in a set or with claims
    /// ([`Step::Invade`]). Default: all.
    pub cpus: Option<CpuSet>,
    /// Memory placement. Default: next-touch.
    #[serde(default)]
    pub placement: Placement,
    /// Amount of memory, in MiB, which determines the time of page migrations. Default: 256.
    #[serde(default = "memory")]
    pub memory_mib: u32,
    /// How long threads spin before they block, in microseconds; `inf` for no limit. Default: 0.
    #[serde(default)]
    pub spin_us: f64,
    /// Capacity of queues, in items. Default: 16.
    #[serde(default = "items")]
    pub queue_items: u32,
    /// Heart-rate goal.
    pub goal: Option<Goal>,
    /// Coscheduled set of the threads. Default: none.
    pub set: Option<String>,
    /// Whether policies observe and control the program. Otherwise it represents the other load of
    /// a host. Default: yes.
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
    /// Creates a program with these teams and defaults for all other values.
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

    /// Returns whether any step, nested ones included, satisfies the condition.
    pub fn does(&self, is: impl Fn(&Step) -> bool) -> bool {
        self.teams.iter().any(|team| team.does(&is))
    }

    /// Returns whether a team has a tunable number of threads.
    pub fn is_tunable(&self) -> bool {
        self.teams.iter().any(|team| team.tunable)
    }

    /// Returns the program with this number of threads in each tunable team.
    pub fn tuned(&self, threads: u32) -> Program {
        let mut program = self.clone();
        program
            .teams
            .iter_mut()
            .filter(|team| team.tunable)
            .for_each(|team| team.threads = threads);
        program
    }
}

/// Threads with the same steps.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Team {
    /// Name of the team. Default: "thread".
    #[serde(default = "thread")]
    pub name: String,
    /// Number of threads. Default: 1.
    #[serde(default = "one", deserialize_with = "threads")]
    pub threads: u32,
    /// Cache footprint of each thread, in KiB. Default: 256.
    #[serde(default = "footprint")]
    pub footprint_kib: u64,
    /// Whether the number of threads is tunable, as by a program's argument ([`Program::tuned`]).
    /// Default: no.
    #[serde(default)]
    pub tunable: bool,
    /// Steps of each thread, in order. The thread ends after the last step.
    pub steps: Vec<Step>,
}

fn thread() -> String {
    "thread".into()
}

fn one() -> u32 {
    1
}

/// Reads a number of threads. The sum over all teams is checked later.
fn threads<'de, D: Deserializer<'de>>(source: D) -> Result<u32, D::Error> {
    let number = i64::deserialize(source)?;
    let threads = u32::try_from(number).ok().filter(|&threads| threads <= THREADS_MAX);
    threads.ok_or_else(|| {
        D::Error::custom(format!("{number} threads; write a number from 0 to {THREADS_MAX}"))
    })
}

fn footprint() -> u64 {
    256
}

impl Team {
    /// Creates a team with this number of threads and these steps.
    pub fn new(threads: u32, steps: Vec<Step>) -> Self {
        Team { name: thread(), threads, footprint_kib: footprint(), tunable: false, steps }
    }

    pub(crate) fn does(&self, is: &dyn Fn(&Step) -> bool) -> bool {
        Step::any(&self.steps, is)
    }

    /// Returns whether the team has parallel regions.
    pub(crate) fn forks(&self) -> bool {
        self.does(&|step| matches!(step, Step::Parallel { .. }))
    }
}

/// A step of a thread.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Computes.
    Compute(Work),
    /// Acquires a lock, performs the steps, and releases the lock.
    Lock {
        /// Name of the lock in the program.
        name: String,
        /// Steps that hold the lock.
        steps: Vec<Step>,
    },
    /// The same with a ticket lock: waiting threads spin without limit, whatever the program's
    /// `spin_us`, and acquire the lock in order of arrival, even a thread that has lost its CPU.
    /// Linux had such locks when the papers were written.
    TicketLock {
        /// Name of the lock in the program.
        name: String,
        /// Steps that hold the lock.
        steps: Vec<Step>,
    },
    /// Waits until all threads of the program with this barrier among their steps have arrived.
    Barrier(String),
    /// Waits for a signal of this condition, or consumes a stored signal.
    Wait(String),
    /// Wakes one thread that waits for this condition; stores the signal if no thread waits.
    Signal(String),
    /// Wakes all threads that wait for this condition; stores no signal.
    Broadcast(String),
    /// Pushes an item into this queue; waits while the queue is full.
    Push(String),
    /// Pops an item from this queue; waits while the queue is empty. The thread ends if the queue
    /// is empty and all threads that push into the queue have ended.
    Pop(String),
    /// Waits for a device.
    Io {
        /// Duration, in microseconds.
        us: f64,
        /// Uniform deviation of up to this share of the duration, from 0 to 1. Default: 0.
        #[serde(default)]
        jitter: f64,
        /// Number of bytes read or written. Default: 0.
        #[serde(default)]
        bytes: u64,
    },
    /// Emits a heartbeat.
    Beat,
    /// Begins a phase of the program, which timelines show.
    Phase(String),
    /// A parallel region, as in OpenMP: the team's threads perform the steps together, then all
    /// wait for the last. Outside of regions, only the first thread of the team runs.
    /// [`SetTeam`](corebeat_machine::Action::SetTeam) sets the number of participating threads, up
    /// to the team's threads. These divide `split` and `shared` work. A program has one such team.
    Parallel {
        /// Name of the region. Regions with the same name are the same code.
        name: String,
        /// Steps of the region.
        steps: Vec<Step>,
    },
    /// Claims `min` to `max` CPUs that no other claim has (Hollmann and Gerndt 2012, section 2).
    /// Afterwards each parallel region has one thread per CPU of the claim, at least one, each
    /// pinned to its CPU. This step is valid outside of regions, in the team with the regions, of a
    /// program without `cpus` and `set`.
    Invade {
        /// Requested minimum; the program may receive fewer CPUs. Default: 1.
        #[serde(default = "one")]
        min: u32,
        /// Maximum number of CPUs.
        max: u32,
    },
    /// Releases all but this many CPUs of the claim; 0 ends the claim.
    Retreat(u32),
    /// Repeats steps.
    Repeat {
        /// Number of iterations. Default: without end.
        times: Option<u64>,
        /// Whether the team's threads share the iterations, in order of arrival. Default: no, each
        /// thread performs all iterations.
        #[serde(default)]
        shared: bool,
        /// Steps of an iteration.
        steps: Vec<Step>,
    },
}

/// A computation.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Work {
    /// Duration with all data in caches or in local memory, in microseconds.
    pub us: f64,
    /// Uniform deviation of up to this share of the duration, from 0 to 1. Default: 0.
    #[serde(default)]
    pub jitter: f64,
    /// Share of the duration that waits for memory, from 0 to 1; also the share of references that
    /// miss the shared cache. Default: 0.
    #[serde(default)]
    pub memory: f64,
    /// Share of memory accesses to data of the whole program, from 0 to 1. Default: 0.
    #[serde(default)]
    pub shared: f64,
    /// Share of the duration in the kernel, from 0 to 1. Default: 0.
    #[serde(default)]
    pub system: f64,
    /// Whether the team's threads divide the work into equal parts. Default: no.
    #[serde(default)]
    pub split: bool,
}

impl Work {
    /// Creates work of this duration, with defaults for all other values.
    pub fn us(us: f64) -> Self {
        Work { us, ..Work::default() }
    }
}

impl Step {
    /// Returns whether any of the steps, nested ones included, satisfies the condition.
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
