//! The service for a whole host: programs report their progress and request CPUs, and the daemon
//! closes the control loop for them, and on request for all programs that use the CPU.
//!
//! Place in the loop: host; uses base, observe, decide, act and corebeat-host.
//!
//! # Example
//!
//! ```no_run
//! use corebeat_daemon::{Daemon, Options, Scope};
//! use std::os::fd::AsFd;
//!
//! let (socket, state) = ("/run/corebeat/socket".into(), "/var/lib/corebeat".into());
//! let options = Options::new(socket, Scope::Host, state);
//! let (stop, _until_this_is_dropped) = std::io::pipe().unwrap();
//! Daemon::open(options)?.run(stop.as_fd())?;
//! # Ok::<(), corebeat_daemon::Failure>(())
//! ```
//!
//! # Model
//!
//! ```text
//!   programs ==socket==> client (reader, writer, pace) --call--> host (groups), claim
//!                                                                  | progress, every cycle
//!   /metrics ==http==> metric                                      v
//!                                                                steer: observe, decide (fair,
//!   /proc: all processes --> busy (selection) --programs--> auto ->     auto), act, journal
//!   one thread: wait, serve ready clients, sample, cycle;          |      ^
//!                                                                  |  watchdog: delays of cycles
//!   browsers <==http==> web (a thread of its own) <--outlet--------+
//!                        ^-- past (another one) <-- history         |
//!   history (of the caller) <------------------------outlet--------+
//!   exporter of metrics (of the caller) <------------readings------'
//! ```
//!
//! The kernel identifies the process behind a socket, by a pidfd, and its user (`peer`). The daemon
//! observes a program because the program has connected, or because the user of the daemon has
//! chosen the policy `auto` and the program uses the CPU; no message can name another process.
//!
//! A second thread closes unexpected descriptors (`closer`): a close may block for an unlimited
//! time. A third one serves the web page (`web`), if one is requested, and a fourth one makes its
//! pages about a history (`past`). The web page, and a history outside of this crate
//! ([`Options::history`]), receive the state of the host each second (`outlet`); an exporter
//! outside of this crate ([`Options::readings`]) receives the metrics each 10 seconds.
//!
//! # Invariants
//!
//! 1. The daemon never waits for one client: sockets do not block, and the daemon reads nothing
//!    from a client that does not read its answers (`client_that_does_not_read_*`).
//! 2. The memory that clients can occupy is bounded by the constants in `limit`
//!    (`*_beyond_the_limit_*`).
//! 3. A process can make requests for itself only; the mode of a group determines the access of
//!    other users (`group_of_another_user_*`).
//! 4. No input makes the daemon panic (`garbage_is_answered_or_dropped`, and its soak of ten
//!    million inputs).
//! 5. Actions on a program are undone when the program emits no heartbeats any more, and when the
//!    daemon falls behind, ends, or starts again after it was killed
//!    (`daemon_that_is_killed_leaves_nothing_after_restore`).
//! 6. With `auto`, the daemon steers neither itself, its ancestors, kernel threads, nor programs
//!    that are excluded or that another Corebeat steers (`untouchable_processes_never_begin`,
//!    `programs_of_other_corebeats_and_of_clients_are_left_alone`,
//!    `excluded_programs_and_those_of_other_corebeats_are_left_alone`). Actions on a program are
//!    undone when it uses little CPU time
//!    (`program_begins_above_the_threshold_and_is_released_after_quiet_seconds`), and when the
//!    daemon ends or is killed (`program_that_uses_the_cpu_is_steered_and_left_as_it_was`).
//! 7. The control loop never waits for the web page or the history: updates are left out while
//!    their queue is full (`publishing_never_waits_for_the_thread`). The connections to the page
//!    are bounded (`many_connections_are_bounded_and_the_page_is_served_beside_them`), and slow
//!    readers miss events (`slow_reader_of_events_misses_some_and_then_gets_everything`).
//! 8. Reading a history delays neither the control loop nor the live page
//!    (`live_page_is_served_while_the_past_is_read`), and costs a bounded part of a CPU
//!    (`page_is_made_once_and_kept_for_a_while`, `page_that_took_long_is_kept_for_longer`).
//! 9. A browser gets the page only by a request of its user
//!    (`name_of_another_host_is_refused_without_a_token`, `request_of_another_site_is_refused`),
//!    and with the token, if there is one (`token_is_required_once_and_a_cookie_replaces_it`).
//!
//! # Failure
//!
//! The daemon returns [`Failure`] if it cannot start or continue. An error of a client ends at most
//! the connection of that client.
//!
//! # Limits
//!
//! All limits are constants in `limit`. `corebeat-linux` describes programs that change their own
//! weight, or that are in a control group of another owner.

mod auto;
mod body;
mod busy;
mod change;
mod claim;
mod client;
mod closer;
mod daemon;
mod error;
mod host;
#[cfg(test)]
mod hostile;
mod http;
mod limit;
mod log;
mod metric;
mod notify;
mod outlet;
mod past;
mod peer;
mod selection;
mod session;
mod socket;
mod steer;
mod watchdog;
mod web;

pub use daemon::{Daemon, History, Options, Steering};
pub use error::{Error, Failure};
pub use http::Place;
pub use log::{Level, Log};
pub use metric::{GroupLabel, Kind, Metric, Number, Reading};
pub use selection::{Pattern, Selection};
pub use socket::Scope;
pub use web::{InvalidToken, MissingToken, Token, WebPage};
