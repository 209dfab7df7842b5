//! The only place where the circle closes: observe, decide, act, wait.
//!
//! Place in the loop: app; stands on base.
//!
//! # Example
//!
//! ```
//! use corebeat_loop::{Loop, Periods};
//! # use corebeat_machine::{Action, Clock, Machine, Snapshot, Topology};
//! # struct Quiet(Topology);
//! # impl Machine for Quiet {
//! #     type Error = std::fmt::Error;
//! #     fn topology(&self) -> &Topology { &self.0 }
//! #     fn observe(&mut self) -> Result<Snapshot, Self::Error> { Ok(Snapshot::default()) }
//! #     fn act(&mut self, _: &Action) -> Result<(), Self::Error> { Ok(()) }
//! # }
//! # struct Virtual(u64);
//! # impl Clock for Virtual {
//! #     fn now_ns(&self) -> u64 { self.0 }
//! #     fn wait_until(&mut self, at_ns: u64) { self.0 = at_ns; }
//! # }
//! # let (machine, clock, policies) = (Quiet(Topology::flat(2)), Virtual(0), vec![]);
//! let mut circle = Loop::new(machine, clock, policies, Periods::default());
//! let ended = circle.run(|_, clock| clock.now_ns() >= 5_000_000_000);
//! assert!(ended.is_ok());
//! ```
//!
//! # Model
//!
//! ```text
//!  wait, glancing     observe            decide (each policy in turn)     act
//!  |--g--g--g--g--|--> Snapshot --+--> [Decision, ...] ----------------> machine
//!                                 +--> Tally  <--- Deed (what was done, why, how it went)
//! ```
//!
//! [`Loop::turn`] goes round once. The [`Tally`] adds up what was seen and done; reports are written from it.
//!
//! # Invariants
//!
//! 1. Decisions are carried out in the order of the policies, each before the next turn (`loop_acts_in_order`).
//! 2. An action that fails is a [`Deed`] with its error, and stops nothing (`loop_failed_action_is_told`).
//! 3. The tally's shares are means over thread time: a thread counts for as long as it was watched
//!    (`tally_adds_up_like_one_long_span`).
//!
//! # Failure
//!
//! Only the machine's `observe` can end a turn with an error; nothing here panics.

mod tally;
mod turn;

pub use tally::{Deed, ProgramTally, Tally};
pub use turn::{Loop, Periods, heed};
