//! This host as a [`Machine`](corebeat_machine::Machine): sensors, hands, and the journal that puts everything back.
//!
//! Place in the loop: act; stands on base.

mod cgroup;
mod counter;
mod error;
mod exact;
mod facts;
mod file;
mod hand;
mod host;
mod journal;
mod launch;
mod machine;
mod memory;
mod process;
mod program;
mod spin;
mod team;
mod thread;
mod topology;

pub use error::Error;
pub use facts::{Fact, Offer, facts};
pub use hand::{Hands, Restored, restore_all};
pub use journal::state_dir;
pub use launch::{Launch, Signals, Started, exit_as};
pub use machine::{LinuxMachine, Options};
pub use memory::MemoryPolicy;
pub use team::TeamChannel;
