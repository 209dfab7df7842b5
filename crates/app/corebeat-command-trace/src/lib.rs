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
//! Each command returns [`Done`](corebeat_command::Done). Exit status 1 reports a file that is
//! damaged or not a trace, and exit status 2 a file that cannot be opened.

pub mod demo;
pub mod probe;
pub mod trace;
