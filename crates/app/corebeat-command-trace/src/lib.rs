//! The commands `corebeat trace`, `corebeat probe` and `corebeat demo trace`.
//!
//! Place in the loop: app; uses `corebeat-trace`, `corebeat-probe` and `corebeat-stm`.
//!
//! # Model
//!
//! ```text
//!  FILE --> Input --> Timeline --> info, cat, stats, calls, stm, cut, export --> output
//!  PID  --> corebeat-probe's control socket --> on, off, list
//! ```
//!
//! # Failure
//!
//! Each command returns [`Done`](corebeat_command::Done): a file that is not a trace, or a damaged
//! one, is exit status 1; a file that cannot be opened is exit status 2.

pub mod demo;
pub mod probe;
pub mod trace;
