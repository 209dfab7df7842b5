//! The service for a whole host: programs tell it their pulse and ask it for CPUs, and it closes the loop for them.
//!
//! Place in the loop: app; stands on everything.
//!
//! # Example
//!
//! ```no_run
//! use corebeat_daemon::{Daemon, Options, Scope};
//! use std::os::fd::AsFd;
//!
//! let options = Options::new("/run/corebeat/socket".into(), Scope::Host, "/var/lib/corebeat".into());
//! let (stop, _until_this_is_dropped) = std::io::pipe().unwrap();
//! Daemon::open(options)?.run(stop.as_fd())?;
//! # Ok::<(), corebeat_daemon::Failure>(())
//! ```
//!
//! # Model
//!
//! ```text
//!   programs ==socket==> client (reader, writer, pace) --call--> host (groups), claim
//!                                                                  | pulses, every turn
//!   /metrics ==socket==> metric                                    v
//!                                                                steer: observe, decide (fair), act, journal
//!   one thread: wait, look at whoever is ready, sample, turn;      ^
//!                                                                watchdog: are we in time?
//! ```
//!
//! Who asks is known from the socket (`peer`): the kernel says which process connected, by a pidfd, and whose it is. A program
//! is watched because it has connected itself; nobody can name another.
//!
//! Another thread closes what descriptors came that should not (`closer`): that may take as long as others like.
//!
//! # Invariants
//!
//! 1. The daemon never waits for one client: sockets do not block, and who does not read its answers is not listened to
//!    (`client_that_does_not_read_*`).
//! 2. Whatever clients do, what they make the daemon hold is bounded, by the names in `limit` (`*_beyond_the_limit_*`).
//! 3. One may ask for one's own processes alone; groups of others are as their mode says (`group_of_another_user_*`).
//! 4. Nothing that comes makes it panic (`garbage_is_answered_or_dropped`, and its soak of ten million inputs).
//! 5. What is done to a program is undone when it stops beating, when the daemon falls behind, ends, or is started again
//!    after it was killed (`daemon_that_is_killed_leaves_nothing_after_restore`).
//!
//! # Failure
//!
//! [`Failure`] where it cannot start or go on; whatever one client does ends that client's connection at most.
//!
//! # Limits
//!
//! All in `limit`, with names. A program that changes its weight itself, or is in a control group of somebody else's,
//! is treated as `corebeat-linux` says.

mod claim;
mod client;
mod closer;
mod daemon;
mod error;
mod host;
#[cfg(test)]
mod hostile;
mod limit;
mod log;
mod metric;
mod notify;
mod peer;
mod session;
mod socket;
mod steer;
mod watchdog;

pub use daemon::{Daemon, Options};
pub use error::{Error, Failure};
pub use log::Level;
pub use metric::Place;
pub use socket::Scope;
