//! What to do about what was seen: one file a policy, each pure.
//!
//! Place in the loop: decide; stands on base.
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
//! | file | asks | paper |
//! | --- | --- | --- |
//! | [`reinforcer`] | how many threads should this program be run with? | Pusukuri 2012, chapter 2 |
//! | [`faithful`] | how long should its threads run at a stretch? | Pusukuri 2012, chapter 5 |
//! | [`tranquilizer`] | should its memory be spread, and its turns be fixed, so that it varies less? | Pusukuri 2012, chapter 3 |
//! | [`shuffler`] | which of its threads should share a socket? | Pusukuri 2012, chapter 4 |
//! | [`adapt`] | which programs should share cores, and which have their own? | Pusukuri 2012, chapter 6 |
//! | [`team`] | how many threads should the next parallel region get? | Pusukuri 2012, chapter 2, inside one run |
//! | [`fair`] | what share of the CPUs should it have, given how fast it wants to be? | Sironi et al. 2012, section 5 |
//! | [`claims`] | which CPUs should it have for itself? | Hollmann and Gerndt 2012 |
//! | [`oversubscription`] | do others hold CPUs that it counts on? | Christmann et al. 2012, section 4 |
//! | [`cosched`] | which programs should run at the same time, and which take turns? | Schönherr et al. 2012, section 3 |
//! | [`auto`] | who of these acts on one program when, if all of them are there? | |
//! | [`progress`] | how much work was done? | |
//!
//! Four shapes: a [`Policy`](corebeat_machine::Policy) acts on programs while they run; a search
//! ([`reinforcer::Reinforcer`]) says what to try next and is told what came of it; an arbiter ([`claims::Claims`]) answers
//! events; a
//! [`Coscheduler`](corebeat_machine::Coscheduler) says who has which CPU now. Thresholds are public fields; each
//! says where its default comes from.
//!
//! # Invariants
//!
//! 1. No clock, file, environment or thread: the same inputs give the same outputs (`clippy.toml` of this crate
//!    forbids them; `search_ends_within_bounds_and_repeats_itself`, `decide_repeats_itself`,
//!    `tranquilizer_repeats_itself`, `shuffler_repeats_itself_within_bounds`, `events_in_any_order_keep_the_rules`).
//! 2. No unsafe code (`forbid(unsafe_code)`).
//! 3. A search ends, and stays within its limits (`search_ends_within_bounds_and_repeats_itself`).
//! 4. What does not help is taken back (`decide_where_it_hurts_takes_it_back_and_rests`, `fixed_turns_that_do_not_calm_are_taken_back`,
//!    `shuffling_that_does_not_help_is_taken_back_ever_longer`, `fixed_turns_that_do_not_help_are_taken_back_until_programs_change`), and changes are bounded (`decide_changes_are_bounded`,
//!    `changes_without_a_phase_change_are_bounded`, `adapt_repeats_itself_and_its_changes_are_bounded`, `feasible_goals_are_met_and_kept`).
//! 5. Threads that are shuffled are swapped: each place has as many as before, and nothing changes where nothing has changed
//!    (`shuffle_swaps_only_and_sorts_within_the_band`).
//! 6. No CPU of a coscheduled set does something else while one of its tasks waits, and each set gets its share of the time
//!    (`plan_keeps_the_rule_and_starves_nobody`).
//! 7. Nobody starves: who has no goal keeps its share, and who has one keeps an eighth of it (`nobody_starves`).
//! 8. Together they neither pull one lever in turns nor judge each other's doing (`lever_has_one_owner_and_who_comes_late_stays_out`,
//!    `who_has_acted_is_alone_until_it_has_been_quiet`).
//!
//! # Failure
//!
//! Policies and searches neither fail nor panic: what a machine cannot tell is left out of account. Claims that make no sense
//! are [`ClaimError`](claims::ClaimError)s, which say what to do.
//!
//! # Limits
//!
//! Policies see programs as wholes, but for the shuffler, which keeps a few words for each thread.
#![forbid(unsafe_code)]

pub mod adapt;
pub mod auto;
pub mod claims;
pub mod cosched;
pub mod fair;
pub mod faithful;
pub mod oversubscription;
pub mod progress;
pub mod reinforcer;
pub mod shuffler;
mod sign;
pub mod team;
pub mod tranquilizer;
