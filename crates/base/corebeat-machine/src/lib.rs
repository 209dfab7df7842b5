//! Common vocabulary of all parts of Corebeat: machines, snapshots, actions, policies and clocks.
//!
//! Place in the loop: base; uses no other crate of the workspace.
//!
//! # Example
//!
//! A policy that puts every program with waiting threads into the batch class:
//!
//! ```
//! use corebeat_machine::{Action, Class, Decision, Policy, Snapshot, Target};
//!
//! struct Batch;
//! impl Policy for Batch {
//!     fn name(&self) -> &'static str { "batch" }
//!     fn decide(&mut self, snapshot: &Snapshot) -> Vec<Decision> {
//!         let waits = |p: &&corebeat_machine::ProgramSample| {
//!             p.mean(|s| s.wait).is_some_and(|wait| wait > 0.1)
//!         };
//!         snapshot.programs.iter().filter(waits).map(|p| Decision {
//!             policy: "batch",
//!             action: Action::SetClass {
//!                 target: Target::Program(p.id),
//!                 class: Some(Class::Batch),
//!             },
//!             why: "threads wait for a CPU".into(),
//!         }).collect()
//!     }
//! }
//! assert!(Batch.decide(&Snapshot::default()).is_empty());
//! ```
//!
//! # Model
//!
//! ```text
//!            observe()                       decide()                      act()
//!  Machine ------------> Snapshot  Policy <------------- Snapshot  Machine <------ Action
//!  (Linux,               host, programs,   pure: same snapshots,   (journals first,
//!   simulator)           threads           same decisions           undoes at the end)
//! ```
//!
//! A [`Machine`] has a [`Topology`], can be observed and can be acted upon. A [`Snapshot`] holds
//! the observations of a span. A [`Policy`] maps snapshots to [`Decision`]s: an [`Action`] and the
//! reason for the action. An [`AppliedAction`] is a decision with its outcome: an [`Effect`], or
//! the reason for a refusal. Unknown values are `None`, never 0. The time shares are those of
//! Pusukuri, *Runtime Support for Maximizing Performance on Multicore Systems* (2012), section 2.1
//! (user, system, lock, wait), with lock divided into lock and park, and sleep for the rest.
//!
//! A machine that runs [`CoscheduledSet`]s in rotation calls a [`Coscheduler`] much more often, to
//! assign CPUs to sets. A [`Scheduler`] in the kernel carries out actions more exactly than the
//! machine itself. An [`Arbiter`] assigns CPUs that programs request and return. [`server`]
//! has the loop of a server that adapts itself: its load, and the variants between which it
//! switches.
//!
//! # Invariants
//!
//! 1. A [`CpuSet`] is printed and parsed in the list format of the kernel, without loss
//!    (`cpuset_text_round_trips`).
//! 2. Shares that are all known add up to 1. The tests of each machine check this property.
//! 3. A policy reads nothing but snapshots and outcomes: the trait provides nothing else.
//! 4. The machines of the workspace implement [`Machine`] with equal semantics, which
//!    `corebeat-conformance` checks.
//!
//! # Failure
//!
//! Only the constructors of [`CpuSet`] and [`Topology`] and [`Action::validate`] can fail; the
//! error messages describe valid values.
//!
//! # Limits
//!
//! CPU numbers are below [`CPU_MAX`].
#![forbid(unsafe_code)]

mod action;
mod claim;
mod cosched;
mod cpu;
mod machine;
mod sample;
mod scheduler;
pub mod server;
mod table;
mod topology;

pub use action::{
    Action, AppliedAction, Class, Decision, Effect, Inaction, InvalidAction, Restored, Target,
};
pub use claim::Arbiter;
pub use cosched::{CoscheduledSet, Coscheduler, Plan};
pub use cpu::{CPU_MAX, CpuId, CpuSet, CpuSetError, NodeId};
pub use machine::{Clock, Machine, Policy};
pub use sample::{
    Counters, HostSample, ProgramId, ProgramSample, ProgressSample, RegionSample, Snapshot,
    TeamSample, ThreadId, ThreadSample, TimeShares,
};
pub use scheduler::{Scheduler, SchedulerError, Turns};
pub use table::{
    BlockedCause, CountedState, THREAD_NAME_BYTES, ThreadCounts, ThreadRow, ThreadTable,
};
pub use topology::{Cpu, Node, Topology, TopologyError};
