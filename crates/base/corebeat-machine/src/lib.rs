//! The words that every part of Corebeat speaks: what a machine is, what was seen of it, what may be done to it.
//!
//! Place in the loop: base; stands on nothing of ours, and everything stands on it.
//!
//! # Example
//!
//! A policy that puts every program with a waiting thread on the batch class:
//!
//! ```
//! use corebeat_machine::{Action, Class, Decision, Policy, Snapshot, Target};
//!
//! struct Batch;
//! impl Policy for Batch {
//!     fn name(&self) -> &'static str { "batch" }
//!     fn decide(&mut self, seen: &Snapshot) -> Vec<Decision> {
//!         let waits = |p: &&corebeat_machine::ProgramSample| p.mean(|s| s.latency).is_some_and(|l| l > 0.1);
//!         seen.programs.iter().filter(waits).map(|p| Decision {
//!             action: Action::SetClass { target: Target::Program(p.id), class: Some(Class::Batch) },
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
//! A [`Machine`] has a [`Topology`], can be observed and can be acted upon. A [`Snapshot`] holds what was seen over a
//! span. A [`Policy`] turns snapshots into [`Decision`]s: an [`Action`] and the reason for it. What the machine cannot
//! tell is `None`, never 0. The five time shares are those of Pusukuri, *Runtime Support for Maximizing Performance
//! on Multicore Systems* (2012), section 2.1 (user, system, lock, latency), and sleep for what remains.
//!
//! A [`Coscheduler`] is asked far more often, by a machine that takes turns by [`CoscheduledSet`]s: who has which CPU now? An
//! [`Arbiter`] is told what programs ask for themselves, and give back.
//!
//! # Invariants
//!
//! 1. A [`CpuSet`] prints what it parses, in the kernel's list format (`cpuset_text_round_trips`).
//! 2. Shares that are all known add up to 1 (`TimeShares::blocked`, checked by whoever fills a snapshot).
//! 3. A policy reads nothing but snapshots: the trait hands it nothing else.
//!
//! # Failure
//!
//! Only [`CpuSet`]'s and [`Topology`]'s constructors can fail; the messages say what was expected.
//!
//! # Limits
//!
//! CPU numbers below [`CPU_MAX`].

mod action;
mod claim;
mod cosched;
mod cpu;
mod machine;
mod sample;
mod topology;

pub use action::{Action, Class, Decision, Target};
pub use claim::Arbiter;
pub use cosched::{CoscheduledSet, Coscheduler, Plan};
pub use cpu::{CPU_MAX, CpuId, CpuSet, CpuSetError, NodeId};
pub use machine::{Clock, Machine, Policy};
pub use sample::{
    Counters, HostSample, ProgramId, ProgramSample, PulseSample, RegionSample, Snapshot, TeamSample,
    ThreadId, ThreadSample, TimeShares,
};
pub use topology::{Cpu, Node, Topology, TopologyError};
