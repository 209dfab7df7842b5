//! Running networks: entities as tasks and streams.
//!
//! After Prokesch 2011, section 3.2, with one difference: what does little has no task of its own. A filter, a synchrocell,
//! or a choice is a step of the line of the task before it.

mod build;
mod choose;
mod code;
mod collector;
mod context;
mod feedback;
mod filter;
mod fork;
mod function;
mod guard;
mod line;
mod message;
mod network;
mod split;
mod star;
mod step;
mod synchrocell;
mod watch;
mod way;

pub use network::{CAPACITY, Fault, Input, Network, OnFault, Outcome, Output, Report, Running, STACK_SIZE};
pub use watch::Position;
