//! A program's story, at next to no cost: events of each thread in a file, and one timeline of them.
//!
//! Place in the loop: observe; stands on base.
//!
//! # Example
//!
//! ```
//! use corebeat_trace::{Event, Trace, emit};
//!
//! #[derive(Event)]
//! struct Paid {
//!     account: u32,
//!     cents: i64,
//! }
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("bank.cbt");
//! let trace = Trace::create(path)?;
//! trace.install()?; // from now on, emit goes there, in all threads
//! emit(&Paid { account: 7, cents: -250 });
//! let summary = trace.finish()?;
//! assert_eq!(summary.lost, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Model
//!
//! After Schindewolf and Karl, *Capturing Transactional Memory Application's Behavior*, 2012, section 3: a stream for each
//! thread, buffers that others compress, a cycle counter for each event and the time now and then; and Waller and Hasselbring,
//! *A Comparison of the Influence of Different Multi-core Processors on the Runtime Overhead for Application-Level
//! Monitoring*, 2012, section 2: writers that work beside the program, or in it.
//!
//! ```text
//!   thread               its ring of buffers                  collectors, 0 to n           file
//!   emit --- event -->  [full][full][ open .  ][free]  ---->  compress, write  ---->  [packet][packet]...
//!            counter    stream 0                                  ^                       |
//!   emit ------------>  [full][ open    .     ][free]  -----------+                       v
//!            counter    stream 1                                                    Reader: times from
//!                                                                                   counters and fixes
//! ```
//!
//! - An **event** ([`Event`]) is a struct of numbers and short texts. Its **kind** ([`Kind`]) is declared by a derive, and the
//!   file has that declaration: who reads needs nothing else.
//! - A **trace** ([`Trace`]) is a file that is being written. One may be installed, and [`emit`] goes there; libraries that have
//!   a place for it keep a [`Log`] of their own for each thread.
//! - A **stream** is one thread's events, in order. It fills the buffers of a ring in a circle (`ring`). What it finds no free buffer
//!   for is dropped and counted, or it waits ([`WhenFull`]).
//! - A **collector** takes full buffers of the streams that are its own, and writes each as a packet. It also takes what is in
//!   buffers that do not get full, each second or as [`Options::delay`] says. With 0 of them threads write their own, when they are full.
//! - A **fix** is a point where both the counter and the time are known. Each buffer begins and ends with one, and there is one
//!   wherever the counter jumps. Events between two fixes have times by interpolation, with a bound (`timing`).
//! - A **timeline** ([`Timeline`]) is all events of a trace in the order of time; a [`Reader`] has them as they stand in the file, from
//!   anything that can be read. Exports are functions of one of these: [`write_ctf`] for babeltrace2 and Trace Compass,
//!   [`write_chrome`] and [`Chrome`] for Perfetto, [`write_csv`], [`write_json_lines`], [`write_text`]. A [`Cut`] is a piece.
//! - A **packet** is a buffer in the file, with a checksum, readable without those before it but for declarations (`packet`).
//!
//! An event with one `u32` field and a time stamp takes 8 bytes before compression: kind and ticks since the event before share
//! four. A kind that is `untimed` saves two of them, and the look at the counter.
//!
//! # Invariants
//!
//! 1. Where there is room, an event is a look at the counter and a few stores: no lock, no allocation, no read-modify-write
//!    (`log`).
//! 2. No event is lost uncounted: what is read, and what is said to be lost, is what was emitted
//!    (`threads_that_do_not_wait_count_what_they_lose`, `threads_that_wait_lose_nothing`,
//!    `thread_that_logs_while_a_trace_ends_logs_into_the_next`).
//! 3. A buffer is its thread's or its taker's, never both's, but for what is before `at` (`ring`;
//!    `loom_ring_gives_what_was_filled_in_order`, `loom_ring_open_slot_is_taken_in_parts`, with planted faults).
//! 4. No code of users runs while an event is written, so none can come between ([`Fields`] can be implemented nowhere else).
//! 5. All up to the last whole packet is read, whatever is behind it; no number in a file is believed before it is checked
//!    against its bound (`trace_cut_anywhere_*`, `any_bit_that_flips_is_noticed`, `random_attacks_do_no_harm`,
//!    `trace_of_a_killed_process_*`).
//! 6. The time of an event is wrong by no more than its [`Record::bound_ns`], from a [`Timeline`]
//!    (`times_are_wrong_by_no_more_than_the_bound`).
//!
//! # Memory ordering
//!
//! | write | ordering | pairs with | why |
//! | --- | --- | --- | --- |
//! | `at`, where the next event goes (`ring`) | Release; Relaxed when a slot is closed | Acquire in `peek`, `rest` | who takes what is in an open slot reads what is before it |
//! | `filled`, full slots | Release | Acquire in `next`, `peek`, `rest` | who sees the count sees what is in the slot |
//! | `freed`, slots given back | Release | Acquire in `has_room` | the taker has read the slot before it is written again |
//! | `ended`, of a stream (`log`) | Release | Acquire in `is_ended` | who sees it sees the last slot |
//! | `over`, of a trace | Release | Acquire in `is_over` | with the inboxes' locks: who enlists afterwards sees it |
//! | `over`, then `end` set to null (`rest`) | fence between them | `end` set (`make_room`), fence, look at `over` | one of the two is seen: nobody goes on in a trace that is over |
//! | `end`, where the open slot ends | Relaxed | | set to null so that the thread looks up; it goes by `limit` then |
//! | counts of lost events, a kind's number | Relaxed | | nothing else is known by them |
//!
//! # Failure
//!
//! [`emit`] cannot fail. [`Trace::finish`] says if something could not be written; what was written up to there is in the file. What
//! is wrong with a file that is read is no error, but its [`Ending`]; only what is no trace at all, or of another version, is
//! refused ([`Error`]).
//!
//! A process that is killed loses what is in its buffers: of each thread, at most what it logged in the last second
//! ([`Options::delay`]), where a collector kept up. A child of fork logs nothing.
//!
//! # Limits
//!
//! [`KINDS_MAX`] kinds a process, [`FIELDS_MAX`] fields a kind, texts of [`TEXT_BYTES_MAX`] bytes, [`STREAMS_MAX`] threads a
//! trace. Not for signal handlers. Any number of traces may be recorded at a time, each with its own [`Log`]s, but one of them is
//! installed: to install another one meanwhile is refused ([`Error::Installed`]).

extern crate self as corebeat_trace;

mod collector;
mod compression;
mod counter;
mod current;
mod cut;
mod error;
mod event;
mod export;
mod log;
#[cfg(all(test, loom))]
mod model;
mod packet;
mod reader;
mod ring;
mod run;
mod timeline;
mod timing;
mod trace;

pub use compression::Compression;
pub use corebeat_trace_macro::Event;
pub use counter::now as ticks;
pub use current::{emit, emit_all};
pub use cut::Cut;
pub use error::Error;
pub use event::{Event, FIELDS_MAX, Field, FieldKind, Fields, KINDS_MAX, Kind, Plain, TEXT_BYTES_MAX, Type};
pub use export::{Chrome, Track, write_chrome, write_csv, write_ctf, write_json_lines, write_text};
pub use log::Log;
pub use reader::{Ending, Packet, Process, ReadField, ReadKind, Reader, Record, Thread, Value};
pub use timeline::Timeline;
pub use trace::{Options, STREAMS_MAX, Summary, Trace, WhenFull};
