//! What programs and the daemon say to each other: Varlink over a Unix socket, with descriptors, and a client.
//!
//! Place in the loop: base; stands on nothing of ours. The daemon serves it, `corebeat-heartbeat` and `corebeat-claim` ask.
//!
//! # Example
//!
//! ```
//! use corebeat_wire::{Connection, host};
//!
//! if let Some(mut daemon) = Connection::open()? {
//!     let (seen, _): (host::Groups, _) = daemon.call(host::LIST_GROUPS, &host::ListGroups::default(), &[])?;
//!     for group in seen.groups {
//!         println!("{}: {:.1} beats a second", group.group, group.window_rate);
//!     }
//! }
//! # Ok::<(), corebeat_wire::Error>(())
//! ```
//!
//! # Model
//!
//! ```text
//!   program                                                             daemon
//!   Connection -- {"method":"io.corebeat.Host.Attach",...} 0, fd -->    Reader -> Frame -> Call
//!              <-- {"parameters":{"period_ns":100000000}} 0, fd --     Writer <- Frame <- answer, refuse
//! ```
//!
//! A message is a JSON object that ends with a NUL ([Varlink](https://varlink.org)). Descriptors travel with the first byte
//! of the message that they belong to, as systemd does it. [`host`] has the interface `io.corebeat.Host`, [`service`] the
//! one by which Varlink services tell what they are.
//!
//! # Invariants
//!
//! 1. However a stream is cut into pieces, the same messages come out, each with its own descriptors
//!    (`stream_cut_anywhere_gives_the_same_messages`).
//! 2. No bytes make this crate panic (`garbage_never_panics`, and the soak test of it).
//! 3. A descriptor that came is handed out or closed (`descriptors_are_handed_out_or_closed`).
//! 4. Whoever is on the other side, a [`Reader`] and a [`Writer`] hold a bounded number of bytes and descriptors
//!    (`reader_refuses_*`, `writer_refuses_*`).
//! 5. The types here and the interface's text say the same (`types_are_those_of_the_interface`).
//!
//! # Failure
//!
//! [`Error`] says what to do. A [`Refusal`] is an answer like others; after any other error a [`Connection`] is of no use.
//!
//! # Limits
//!
//! [`MESSAGE_BYTES_MAX`] and [`FDS_MAX`] a message, [`QUEUE_BYTES_MAX`] and [`QUEUE_MESSAGES_MAX`] for those who do not
//! read. A client waits for 2 s at most. Calls are answered in order, and a client of ours sends the next one when
//! it has the answer.

mod client;
mod error;
mod frame;
pub mod host;
mod message;
pub mod service;
pub mod socket;

pub use client::{Connection, Watch, hangs_up};
pub use error::Error;
pub use frame::{
    FDS_MAX, Filled, Flushed, Frame, MESSAGE_BYTES_MAX, QUEUE_BYTES_MAX, QUEUE_MESSAGES_MAX, Reader, Writer,
};
pub use message::{Call, Refusal, answer, refuse};
