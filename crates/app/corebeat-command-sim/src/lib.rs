//! The commands `corebeat sim`, `corebeat paper` and `corebeat train`.
//!
//! Place in the loop: app; uses `corebeat-sim`, `corebeat-paper` and `corebeat-train`.
//!
//! # Model
//!
//! ```text
//!  SCENARIO --> sim run --> machine, policies --> corebeat_host::Loop --> table, JSON, drawings
//!               sim compare --> the same programs on this host and on its model --> table
//!  NAME     --> paper --> an experiment --> the paper's figures beside ours
//!  SCENARIO, or the kernels of demo on this host --> train --> model of the policy adapt
//! ```
//!
//! # Failure
//!
//! Each command returns [`Done`](corebeat_command::Done). Exit status 1 reports a mistake in a
//! scenario, and exit status 2 a file that cannot be opened or a model that does not fit.

pub mod paper;
pub mod sim;
pub mod train;
