//! Run-time system: entities as tasks and streams.
//!
//! It follows Prokesch 2011, section 3.2, with one difference: cheap entities have no task. A
//! filter, a synchrocell or a choice is a step in the task before it.

mod away;
mod build;
mod chain;
mod choose;
mod code;
mod collector;
mod context;
mod entity;
mod feedback;
mod filter;
mod fork;
mod function;
mod guard;
mod line;
mod message;
mod network;
mod route;
mod split;
mod star;
mod step;
mod synchrocell;
mod watch;

pub(crate) use context::Context;
pub(crate) use message::{Mark, Message};
pub use network::{
    CAPACITY, Fault, Input, Network, NetworkOptions, OnFault, Outcome, Output, Report, ReportFault,
    Running, STACK_SIZE, Serving,
};
pub use watch::Position;
