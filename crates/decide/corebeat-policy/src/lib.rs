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
//! | [`team`] | how many threads should the next parallel region get? | Pusukuri 2012, chapter 2, inside one run |
//! | [`oversubscription`] | do others hold CPUs that it counts on? | Christmann et al. 2012, section 4 |
//! | [`progress`] | how much work was done? | |
//!
//! Two shapes: a [`Policy`](corebeat_machine::Policy) acts on programs while they run; a search
//! ([`reinforcer::Reinforcer`]) says what to try next and is told what came of it. Thresholds are public fields; each
//! says where its default comes from.
//!
//! # Invariants
//!
//! 1. No clock, file, environment or thread: the same inputs give the same outputs (`clippy.toml` of this crate
//!    forbids them; `search_ends_within_bounds_and_repeats_itself`, `decide_repeats_itself`).
//! 2. No unsafe code (`forbid(unsafe_code)`).
//! 3. A search ends, and stays within its limits (`search_ends_within_bounds_and_repeats_itself`).
//! 4. What does not help is taken back (`decide_where_it_hurts_takes_it_back_and_rests`), and changes are
//!    bounded (`decide_changes_are_bounded`).
//!
//! # Failure
//!
//! Nothing here fails or panics. What a machine cannot tell is left out of account.
//!
//! # Limits
//!
//! Policies see programs as wholes; nothing here is kept per thread.
#![forbid(unsafe_code)]

pub mod faithful;
pub mod oversubscription;
pub mod progress;
pub mod reinforcer;
mod sign;
pub mod team;
