//! Runs on several ranks: processes that exchange records as messages.
//!
//! The model follows Grelck, Julku, Penczek, *Distributed S-Net: Cluster and Grid Computing without
//! the Hassle*, 2012: every rank has the whole program and all boxes, and a part with a place
//! (`X @ n`, `X !@ <t>`) runs on the rank of this number, modulo the number of ranks.
//!
//! ```text
//!   rank 0:  line --> Away == records ==> stream --> <from a rank> --> line of X    : rank 1
//!            next <-- <from a rank> <-- stream <== records == Away <------'
//! ```
//!
//! - A **node** ([`Node`]) is the endpoint of one rank. It has no clock, no thread and no
//!   transport: [`Node::take`] returns the bytes for another rank, and [`Node::receive`] takes the
//!   bytes from another rank. A transport must deliver the bytes from one rank to another in order;
//!   messages of different pairs of ranks may overtake each other.
//! - A **channel** carries the records of one stream, in order. Its number is unique in the run.
//!   The sender has **credits**: a barrier costs one, and a record one or, if its fields are large,
//!   more. The receiver returns them when the next part has taken the message. Therefore the
//!   [`Window`] bounds the messages of a channel that wait on the receiver's rank, and a delivery
//!   never blocks. As many **faults** of a rank as the window has messages, but at most 64, wait on
//!   rank 0, which returns the room of each.
//! - **Opening**: the rank that builds a part with a place sends a request to the place, with the
//!   number of the part, a channel for its input, and a channel for its output. Parts in series on
//!   different ranks are opened in one chain, and their records do not return in between.
//! - **End**: a dropped end of a line closes its channel, and the close follows the last record.
//!   So the end of the input reaches each part after all of its records, as on one rank. When the
//!   output of rank 0 has ended, rank 0 asks the others to finish; each answers when its tasks have
//!   ended; then each rank sends its last message to each other rank, and none after it.
//! - **No progress**: if every task of all ranks waits, and no message is under way, rank 0 reports
//!   the tasks of all ranks ([`Node::look`], the module `stall`).
//! - **Fields** of more than [`Node::eager_bytes`] remain on their rank, and records carry
//!   references (the module `field`). Other fields of more than 8 KiB, and the data of references,
//!   are messages of their own before the frame that contains their form: the transport sends them
//!   from where they are, and the memory that it receives them in becomes the field.

pub(crate) mod field;
mod frame;
mod node;
mod stall;

#[doc(hidden)]
pub use crate::value::words;
pub use frame::{
    Corrupt, Outbound, frames, is_close, is_credit, is_fetch, is_last, is_of_detection, is_record,
    is_release,
};
pub use node::{EAGER_BYTES, Node, Traffic, Window};
pub(crate) use node::{Hop, Open, Request, Taken};
pub(crate) use stall::Stall;
