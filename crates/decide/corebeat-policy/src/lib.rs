//! Policies, searches and arbiters that decide how the programs of a machine run.
//!
//! Place in the loop: decide; uses base.
//!
//! # Example
//!
//! ```
//! use corebeat_machine::{Policy, Snapshot};
//! use corebeat_policy::faithful::FaithFul;
//!
//! let mut policy = FaithFul::new(8);
//! assert!(policy.decide(&Snapshot::default()).is_empty());
//! ```
//!
//! # Model
//!
//! | module | question | paper |
//! | --- | --- | --- |
//! | [`reinforcer`] | How many threads does a program get at its start? | Pusukuri 2012, ch. 2 |
//! | [`oversubscription`] | Do other programs use its CPUs? | Christmann et al. 2012, sec. 4 |
//! | [`team`] | How many threads does the next region get? | Pusukuri 2012, ch. 2 |
//! | [`faithful`] | How long do threads run before they are preempted? | Pusukuri 2012, ch. 5 |
//! | [`tranquilizer`] | Do spread memory and slices reduce variation? | Pusukuri 2012, ch. 3 |
//! | [`shuffler`] | Which threads share a socket? | Pusukuri 2012, ch. 4 |
//! | [`alternation`] | Do programs that spin take turns? | Schönherr et al. 2012, sec. 2 |
//! | [`auto`] | Which of these policies acts on a program, and when? | |
//! | [`adapt`] | Which programs share cores? | Pusukuri 2012, ch. 6 |
//! | [`cosched`] | Which programs run at the same time? | Schönherr et al. 2012, sec. 3 |
//! | [`fair`] | Which CPU share reaches a heart rate goal? | Sironi et al. 2012, sec. 5 |
//! | [`claims`] | Which CPUs does a program have exclusively? | Hollmann and Gerndt 2012 |
//! | [`server`] | Which pattern and how many threads has a server? | Strebelow and Prehofer 2012 |
//! | [`progress`] | How much work has a program done? | |
//! | [`catalogue`] | Which policies exist, and how are they constructed? | |
//!
//! The modules have five interfaces. A [`Policy`](corebeat_machine::Policy) maps snapshots to
//! actions while programs run. A search ([`reinforcer::Reinforcer`]) proposes trials and receives
//! their results. An arbiter ([`claims::Claims`]) answers requests for CPUs. A
//! [`Coscheduler`](corebeat_machine::Coscheduler) assigns CPUs to sets of tasks. A server adapts
//! itself by a [`ServerPolicy`](server::ServerPolicy), which maps its load to a variant. Thresholds
//! are public fields; the documentation of each field states the source of its default.
//!
//! # Invariants
//!
//! 1. Decisions use no clock, file, environment or thread, so equal inputs give equal outputs
//!    (`clippy.toml` of this crate forbids these uses;
//!    `search_ends_within_bounds_and_repeats_itself`, `decide_repeats_itself`,
//!    `tranquilizer_repeats_itself`, `shuffler_repeats_itself_within_bounds`,
//!    `events_in_any_order_keep_the_rules`).
//! 2. This crate contains no unsafe code (`forbid(unsafe_code)`).
//! 3. A search ends and stays within its limits (`search_ends_within_bounds_and_repeats_itself`).
//! 4. A change that does not help is undone (`decide_where_it_hurts_undoes_and_rests`,
//!    `fixed_slices_that_do_not_reduce_variation_are_undone`,
//!    `shuffling_that_does_not_help_is_undone_for_doubling_times`,
//!    `fixed_slices_that_do_not_help_are_undone_until_programs_change`), and the number of changes
//!    is bounded (`decide_changes_are_bounded`, `changes_without_a_phase_change_are_bounded`,
//!    `adapt_repeats_itself_and_its_changes_are_bounded`, `feasible_goals_are_met_and_kept`,
//!    `constant_load_does_not_oscillate_on_any_machine`).
//! 5. The shuffler swaps threads: each place keeps its number of threads, and equal samples cause
//!    no change (`shuffle_swaps_only_and_sorts_within_the_band`).
//! 6. No CPU of a coscheduled set runs another task while a task of the set waits, and each set
//!    gets its share of the time (`plan_keeps_the_rule_and_starves_no_set`).
//! 7. No program starves: a program without a goal keeps its share, and a program with a goal keeps
//!    an eighth of its share (`no_program_starves`).
//! 8. Combined policies neither change the same knob nor mistake each other's effects for their own
//!    (`knob_has_one_owner_and_late_members_stay_out`,
//!    `member_that_acted_is_alone_until_it_has_been_quiet`).
//! 9. After a machine refuses a change, the policy does not act as if the change were in effect.
//!    The policy does not repeat the request, or repeats it at growing intervals
//!    (`refused_slice_is_reported_once_and_not_requested_again`, `refused_trial_is_abandoned`,
//!    `refused_affinity_is_requested_once`, `refused_team_size_ends_the_search`,
//!    `refused_settings_are_requested_ever_more_rarely`,
//!    `refused_settings_are_not_requested_again`,
//!    `refused_freezing_thaws_all_programs_and_ends_the_turns`).
//! 10. A policy for one program that leaves the program as it is states the reason, with the
//!     observation and its limit (`obstacles_are_stated_with_the_limit`,
//!     `inactions_have_a_reason_for_every_policy_that_does_not_act`).
//!
//! # Failure
//!
//! Policies and searches neither fail nor panic: they skip values that a machine does not report.
//! An invalid claim yields [`ClaimError`](claims::ClaimError), an invalid set
//! [`SetError`](cosched::SetError), and an unusable model [`ModelError`](adapt::ModelError). The
//! messages of these errors state the remedy.
//!
//! # Limits
//!
//! Policies treat a program as one unit, except the shuffler, which keeps a few words for each
//! thread.
#![forbid(unsafe_code)]

pub mod catalogue;
mod fixed_slice;
pub mod knob;
mod many_programs;
mod measure;
mod one_program;
mod refusal;
mod search;
pub mod server;
mod share;

pub use many_programs::{adapt, alternation, cosched};
pub use measure::progress;
pub(crate) use measure::ratio;
pub use one_program::{auto, faithful, shuffler, team, tranquilizer};
pub use search::{oversubscription, reinforcer};
pub use share::{claims, fair};
