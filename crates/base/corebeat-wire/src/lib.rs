//! The protocol between programs and the daemon: Varlink over a Unix socket, with descriptors, and
//! a client.
//!
//! Place in the loop: base; uses corebeat-sync to recognise children of fork. The daemon is the
//! server; `corebeat-heartbeat` and `corebeat-claim` are clients.
//!
//! # Example
//!
//! ```
//! use corebeat_wire::{Connection, host};
//!
//! if let Some(mut daemon) = Connection::open()? {
//!     let request = host::ListGroups::default();
//!     let (list, _): (host::Groups, _) = daemon.call(host::LIST_GROUPS, &request, &[])?;
//!     for group in list.groups {
//!         println!("{}: {:.1} beats per second", group.group, group.window_rate);
//!     }
//! }
//! # Ok::<(), corebeat_wire::Error>(())
//! ```
//!
//! # Model
//!
//! ```text
//!   program                                                          daemon
//!   Connection -- {"method":"io.corebeat.Host.Attach",...} 0, fd --> Reader -> Frame -> Call
//!              <-- {"parameters":{"period_ns":100000000}} 0, fd --   Writer <- Frame <- answer,
//!                                                                                       refuse
//! ```
//!
//! A message is a JSON object followed by a NUL byte ([Varlink](https://varlink.org)). Descriptors
//! travel with the first byte of their message, as in systemd. [`host`] defines the interface
//! `io.corebeat.Host`, and [`service`] defines the interface by which Varlink services describe
//! themselves.
//!
//! # Invariants
//!
//! 1. However a stream is divided, the reader returns the same messages, each with its descriptors
//!    (`divided_stream_gives_the_same_messages`).
//! 2. No input makes this crate panic (`garbage_never_panics`, and its soak test).
//! 3. Every received descriptor is returned or closed (`descriptors_are_returned_or_closed`).
//! 4. A [`Reader`] and a [`Writer`] hold a bounded number of bytes and descriptors, whatever the
//!    peer does (`reader_refuses_*`, `writer_refuses_*`).
//! 5. The Rust types agree with the text of the interface (`types_agree_with_the_interface`).
//!
//! # Failure
//!
//! [`Error`] states what the user can do. A [`Refusal`] is a regular answer. After any other error
//! the [`Connection`] is unusable, except a [lasting](Connection::lasting) connection after a
//! timeout (`lasting_connection_continues_after_a_timeout`).
//!
//! # Limits
//!
//! A message has at most [`MESSAGE_BYTES_MAX`] bytes and [`FDS_MAX`] descriptors. At most
//! [`QUEUE_BYTES_MAX`] bytes and [`QUEUE_MESSAGES_MAX`] messages wait for a peer that does not
//! read. A function of a client waits for at most 2 s (`silent_service_is_reported`), whatever
//! signals the thread receives (`signals_do_not_extend_the_wait`); with a [`Deadline`], several
//! calls together wait until then (`call_after_its_deadline_is_not_sent`). Calls are answered in
//! order, and the client of this crate sends a call only after it has received the preceding
//! answer. On a connection with a [`Watch`], answers to calls come between its reports, which
//! `continues` distinguishes (`answers_to_calls_come_between_reports_of_a_watch`).

mod client;
mod deadline;
mod error;
mod frame;
pub mod host;
mod message;
mod search;
pub mod service;
pub mod socket;

pub use client::{Connection, Watch, is_closed};
pub use deadline::Deadline;
pub use error::Error;
pub use frame::{
    FDS_MAX, Filled, Flushed, Frame, MESSAGE_BYTES_MAX, QUEUE_BYTES_MAX, QUEUE_MESSAGES_MAX,
    Reader, Writer,
};
pub use message::{Call, Refusal, answer, refuse, remedy};
pub use search::Search;
