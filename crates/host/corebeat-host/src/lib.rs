//! The host layer: one control loop (observe, decide, act), and the supervisor that starts programs
//! on this host and drives the loop.
//!
//! Place in the loop: host; uses base, decide and act. `corebeat run`, `tune`, `train`, `top`,
//! `demo` and simulated runs are configurations of the loop in this crate. The daemon uses one step
//! of the loop ([`apply`]).
//!
//! # Example
//!
//! ```
//! use corebeat_host::{Loop, Periods};
//! # use corebeat_machine::{Action, Clock, Effect, Machine, Restored, Snapshot, Topology};
//! # struct Quiet(Topology);
//! # impl Machine for Quiet {
//! #     type Error = std::fmt::Error;
//! #     fn topology(&self) -> &Topology { &self.0 }
//! #     fn observe(&mut self) -> Result<Snapshot, Self::Error> { Ok(Snapshot::default()) }
//! #     fn act(&mut self, _: &Action) -> Result<Effect, Self::Error> { Ok(Effect::default()) }
//! #     fn restore(&mut self) -> Restored { Restored::default() }
//! # }
//! # struct Virtual(u64);
//! # impl Clock for Virtual {
//! #     fn now_ns(&self) -> u64 { self.0 }
//! #     fn wait_until(&mut self, at_ns: u64) { self.0 = at_ns; }
//! # }
//! # let (machine, clock, policies) = (Quiet(Topology::flat(2)), Virtual(0), vec![]);
//! let mut control = Loop::new(machine, clock, policies, Periods::default());
//! let tally = control.run(|_, clock| clock.now_ns() >= 5_000_000_000);
//! assert!(tally.is_ok_and(|tally| tally.applied.is_empty()));
//! ```
//!
//! # Model
//!
//! ```text
//!  wait, sampling     observe            decide (each policy in turn)     act
//!  |--s--s--s--s--|--> Snapshot --+--> [Decision, ...] ----------------> machine
//!        ^                        |          ^                              |
//!        |                        |          +--------- outcome ------------+
//!   poll: Wait, Observe,          +--> Tally  <--- AppliedAction (decision, effect or refusal)
//!   End, Restart, SetPeriod               |
//!                                         +--> Report
//! ```
//!
//! [`Loop`] is generic over the traits `Machine` and `Clock`, so that a simulated machine runs in
//! the same loop. A [`Driver`] configures a run of the loop: the steps of a wait, and the handling
//! of snapshots and applied actions. [`Supervisor`] runs the loop on this host for one or more
//! programs: [`run`] to their ends, or one span at a time ([`HostTrials`], `corebeat train`).
//! `corebeat top` drives the loop from a terminal. The daemon waits for its clients and not for a
//! period, so it has its own loop; it uses [`apply`], the step from a snapshot to applied actions.
//!
//! [`search`] finds a thread count by [`Trials`], and [`compare`] compares two settings of a
//! program by paired runs.
//!
//! # Invariants
//!
//! 1. Decisions are applied in the order of the policies, each before the next observation
//!    (`loop_applies_decisions_in_the_order_of_the_policies`).
//! 2. A refused action is an `AppliedAction` that contains the reason. The policy receives the
//!    refusal, and the loop continues
//!    (`loop_reports_a_refused_action_to_the_policy_and_continues`).
//! 3. The shares of a tally are means over thread time: a thread counts for as long as it was
//!    observed (`tally_of_many_spans_equals_one_long_span`).
//! 4. `--` separates programs under every policy; a policy for one program refuses several
//!    (`double_dash_separates_programs_under_every_policy`).
//! 5. The report has the same schema for one and for several programs
//!    (`report_has_one_schema_for_one_and_for_several_programs`).
//! 6. A search repeats trials that other programs disturbed, a bounded number of times
//!    (`burst_during_one_trial_makes_the_search_repeat_the_trial`,
//!    `search_with_endless_bursts_ends_and_reports_the_disturbed_runs`).
//! 7. A comparison shows a difference only if a confidence interval of at least 95% excludes the
//!    ratio 1 (`difference_requires_an_interval_without_1_and_enough_pairs`).
//!
//! # Failure
//!
//! Only the machine's `observe` can end a step of the loop with an error. The text of an [`Error`]
//! is one line, which names the failure and the remedy. A supervisor that fails after the start
//! leaves the programs running and undoes its changes.
//!
//! # Limits
//!
//! The CPU time, the switches and the bytes of a report do not include detached processes that
//! still run at the end of their program and, with several programs, orphans. A note names their
//! CPU time.

mod clock;
mod comparison;
mod control;
mod error;
mod history;
mod printable;
mod report;
mod run;
mod search;
mod supervisor;
mod tally;
mod trial;

pub use clock::{HostClock, now_ns, own_cpu_s};
pub use comparison::{Comparison, Difference, PAIRS_MAX, Side, compare};
pub use control::{Driver, Loop, Next, Periods, apply};
pub use corebeat_policy::reinforcer::count;
pub use error::Error;
pub use history::{History, Point, Step};
pub use printable::printable;
pub use report::{AppliedRow, Ended, Interval, ProgramReport, Regions, Report, bar, percent};
pub use run::{NOT_RESTORED, RunOptions, accepts_several, restore_killed, run, split_programs};
pub use search::{
    Disturbance, Found, OTHERS_BUSY_NOTED, Row, Searched, profile, search, trial_table,
};
pub use supervisor::{Input, Supervisor};
pub use tally::{ProgramTally, Tally};
pub use trial::{HostTrials, PLACEHOLDER, Template, TrialResult, Trials, Window};
