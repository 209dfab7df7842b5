//! Records events of a program's threads in a file, at low cost, and reads them back as one
//! timeline.
//!
//! Place in the loop: observe; uses only base.
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
//! trace.install()?; // `emit` writes to this trace from now on, in all threads
//! emit(&Paid { account: 7, cents: -250 });
//! let summary = trace.finish()?;
//! assert_eq!(summary.lost, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Model
//!
//! The design follows Schindewolf and Karl, *Capturing Transactional Memory Application's
//! Behavior*, 2012, section 3: one stream per thread, buffers that other threads compress, a cycle
//! counter for each event and occasional readings of the clock. The design also follows Waller and
//! Hasselbring, *A Comparison of the Influence of Different Multi-core Processors on the Runtime
//! Overhead for Application-Level Monitoring*, 2012, section 2: writers that run beside the
//! program, or in it.
//!
//! ```text
//!   thread           its ring of buffers              collectors, 0 to n        file
//!   emit - event --> [full][full][ open .  ][free] -> compress, write ----> [packet][packet]...
//!          counter   stream 0                            ^                      |
//!   emit ----------> [full][ open    .     ][free] ------+                      v
//!          counter   stream 1                                      Reader: times from counters
//!                                                                  and fixes
//! ```
//!
//! - An **event** ([`Event`]) is a struct of numbers and short texts. A derive declares its
//!   **kind** ([`Kind`]). The file contains the declaration, so a reader needs no other schema.
//! - A **trace** ([`Trace`]) is a file that is being recorded. [`emit`] writes to the installed
//!   trace. A library that manages its own threads keeps one [`Log`] for each thread instead.
//! - A **stream** is the ordered sequence of one thread's events. The thread fills a ring of
//!   buffers (`ring`). If no buffer is free, it drops and counts events, or it waits
//!   ([`WhenFull`]).
//! - A **collector** is a thread that takes the full buffers of its streams and writes each one as
//!   a packet. It also takes the contents of partly filled buffers, once per second or once per
//!   [`Options::delay`]. Without collectors, each thread writes its own full buffers.
//! - A **fix** is a simultaneous reading of counter and time. Each buffer begins and ends with a
//!   fix, and a fix follows every jump of the counter. The times of events between two fixes are
//!   interpolated, with an error bound (`timing`).
//! - A **timeline** ([`Timeline`]) contains all events of a trace, sorted by time. A [`Reader`]
//!   returns events in file order, from any input. The exporters read one of the two:
//!   [`write_ctf`] for babeltrace2 and Trace Compass, [`write_chrome`] for Perfetto,
//!   [`write_csv`], [`write_json_lines`], [`write_text`]. A [`Cut`] extracts a part of a trace.
//! - A **packet** is one buffer in the file, with a checksum. It can be decoded without the
//!   preceding packets, except for declarations (`packet`).
//!
//! An event with one `u32` field and a time stamp takes 8 bytes before compression: its kind and
//! the ticks since the preceding event share four of them. An `untimed` kind saves two more bytes
//! and the read of the counter.
//!
//! # Invariants
//!
//! 1. If the buffer has room, logging an event is a read of the counter and a few stores: no lock,
//!    no allocation, no read-modify-write operation (`log`).
//! 2. Every lost event is counted: the events that are read and the events that are reported as
//!    lost add up to the events that were emitted
//!    (`waiting_threads_lose_no_events`, `dropping_threads_count_every_lost_event`,
//!    `thread_that_logs_during_finish_logs_into_the_next_trace`), also in a trace that is never
//!    finished (`unfinished_trace_contains_the_number_of_lost_events`).
//! 3. A buffer belongs either to its thread or to its consumer, never to both, except for the
//!    bytes before `at` (`ring`; `loom_ring_returns_slots_in_order`,
//!    `loom_ring_open_slot_is_taken_in_parts`, with planted faults).
//! 4. No user code runs while an event is written, so no other event can interleave with it
//!    ([`Fields`] is sealed).
//! 5. Everything up to the last complete packet can be read, whatever follows it. Every number in
//!    a file is checked against its bound before it is used (`truncated_trace_*`,
//!    `every_flipped_bit_is_detected`, `random_corruption_is_harmless`,
//!    `trace_of_a_killed_process_*`).
//! 6. The time of an event in a [`Timeline`] is wrong by at most [`Record::bound_ns`]
//!    (`time_error_is_within_the_bound`).
//!
//! # Memory ordering
//!
//! | write | ordering | pairs with |
//! | --- | --- | --- |
//! | `at`, position of the next event | Release, see 1 | Acquire in `peek`, `take_rest` |
//! | `filled`, number of full slots | Release | Acquire in `next`, `peek`, `take_rest`, see 2 |
//! | `freed`, number of returned slots | Release | Acquire in `has_room`, see 3 |
//! | `ended`, of a stream (`log`) | Release | Acquire in `is_ended`, see 4 |
//! | `finished`, of a trace | Release | Acquire in `is_finished`, see 5 |
//! | `finished`, then `end` set to null | fence between | `end` set, fence, `finished`, see 6 |
//! | `end`, limit of the open slot | Relaxed | see 7 |
//! | `lost`, events of a stream that were lost | Release | Acquire in `lost`, see 8 |
//! | number of a kind | Relaxed | no other data depends on it |
//!
//! 1. The consumer of an open slot reads all bytes before `at`. The store that closes a slot is
//!    Relaxed.
//! 2. A consumer that reads the count reads the contents of the slot.
//! 3. The consumer has read the slot before the producer overwrites it.
//! 4. A collector that reads the flag reads the last slot.
//! 5. With the inboxes' locks: a thread that registers afterwards reads the flag.
//! 6. `take_rest` against `make_room`. One side reads the other's store: no thread continues to log
//!    into a finished trace.
//! 7. Null makes the producer take the slow path, which uses `limit`.
//! 8. A collector that reads the count, and then finds no event in the buffers, has taken all
//!    events before the loss.
//!
//! # Failure
//!
//! [`emit`] cannot fail. [`Trace::finish`] returns the first error of writing; the file contains
//! everything that was written before. Two traces cannot be recorded in one file: the second one
//! is refused ([`Error::InUse`]), also in another process. If another program removes or replaces
//! the file, [`Trace::finish`] returns [`Error::Replaced`]
//! (`second_trace_with_one_path_is_refused`, `file_that_is_replaced_is_reported`). A damaged file
//! is not an error: [`Ending`] describes how the file ends. [`Error`] reports only input that is
//! not a trace, or a trace of another version.
//!
//! A killed process loses the contents of its buffers: at most the last second of each thread
//! ([`Options::delay`]) and the numbers of events that were lost in it, provided that a collector
//! kept up. The events of threads beyond [`STREAMS_MAX`] are counted at the end of the trace. A
//! child of fork logs nothing into the trace of its parent, installs a trace of its own, and does
//! not keep the file locked after its parent was killed (`child_of_fork_logs_nothing`,
//! `child_of_fork_installs_a_trace_of_its_own`,
//! `child_of_fork_that_outlives_its_killed_parent_does_not_keep_the_file`).
//!
//! # Limits
//!
//! A process has at most [`KINDS_MAX`] kinds, a kind [`FIELDS_MAX`] fields, a text
//! [`TEXT_BYTES_MAX`] bytes, and a trace [`STREAMS_MAX`] threads. Signal handlers must not log.
//! Any number of traces can be recorded at a time, each with its own [`Log`]s, but only one can be
//! installed; installing another one returns [`Error::Installed`].

extern crate self as corebeat_trace;

mod collector;
mod compression;
mod counter;
mod current;
mod cut;
mod error;
mod event;
mod export;
mod file;
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
pub use event::{
    Event, FIELDS_MAX, Field, FieldKind, Fields, KINDS_MAX, Kind, Plain, TEXT_BYTES_MAX, Type,
};
#[cfg(feature = "json")]
pub use export::{write_chrome, write_chrome_events, write_json_lines};
pub use export::{write_csv, write_ctf, write_text};
pub use log::Log;
pub use reader::{Ending, Packet, Process, ReadField, ReadKind, Reader, Record, Thread, Value};
pub use timeline::Timeline;
pub use trace::{Options, STREAMS_MAX, Summary, Trace, WhenFull};

/// The Rust code of the book is compiled, and most of it run, as documentation tests.
#[cfg(doctest)]
#[doc(hidden)]
pub mod book {
    #[doc = include_str!("../../../../docs/trace.md")]
    pub struct Trace;
}
