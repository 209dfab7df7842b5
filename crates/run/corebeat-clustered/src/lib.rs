//! Clustered objects: they look like one object, and have a part for each place where they are used.
//!
//! Place in the loop: run; stands on base.
//!
//! # Example
//!
//! ```
//! use corebeat_clustered::{Counter, Link, event};
//!
//! static REQUESTS: Link<Counter> = Link::empty(); // one reference for all
//!
//! REQUESTS.replace(Counter::new());
//! let count = || event(|event| REQUESTS.get(event).map(|requests| requests.add(1)));
//! std::thread::scope(|scope| (0..4).for_each(|_| { scope.spawn(count); }));
//! assert_eq!(event(|event| REQUESTS.get(event).unwrap().value()), 4);
//! REQUESTS.destroy(); // also while others count: they have it until they are done
//! ```
//!
//! # Model
//!
//! After Matthews, Coady, Appavoo, *Portability events: a programming model for scalable system infrastructures*, 2006, and what
//! that builds on: Appavoo, *Clustered objects*, 2005; Gamsa, Krieger, Appavoo, Stumm, *Tornado: maximizing locality and concurrency in a
//! shared memory multiprocessor operating system*, 1999.
//!
//! ```text
//!     thread A                thread B                  thread C
//!    event ----+             event ----+
//!              v                       v                 replace, destroy
//!           [ link ] ------------------+---------------------->  limbo ... dropped after both events
//!              |
//!              v
//!           [ clustered object: root, miss handler ]
//!              | here, for A's place           | here, for B's place
//!              v                               v
//!           [ rep ]                         [ rep ]
//! ```
//!
//! - A **clustered object** ([`Clustered`]) has a **root** ([`Root`]) for what is global, and a **representative** for each place of its
//!   **locality domain** ([`Domain`]: [`Thread`], [`Cpu`], [`Node`]). It is made when it is first missed, as the root chooses.
//! - A **portability event** ([`event`](event())) is the span in which what was found through a **link** ([`Link`]) exists, whatever others do
//!   to the link. There are no locks for existence, and no counts of references. Whoever has borrowed an object needs no event:
//!   the borrow is the guarantee.
//! - What was replaced or destroyed is dropped when all events are over in which it may have been found. A thread that is in
//!   no event holds nothing. One that stays in an event for long, or blocks there, holds what existed when it last looked
//!   through a link; nothing that is made later (`limbo`).
//! - **Hot swap**: [`Link::replace_then`] puts another implementation behind a live reference, and hands over the old one when nobody is
//!   in it any more, to be settled. An object that is [`Adaptive`] has its implementation swapped by itself, when several threads use
//!   it, and when they do not any more.
//! - **Ready objects**: [`Counter`], [`Histogram`], [`IdGenerator`], [`Log`], [`Map`], [`Set`], [`Pool`], [`BiasedLock`], [`Owner`] with [`Shared`]. Each says what it
//!   has for each place and what for all, and what a read of the whole guarantees.
//!
//! # Invariants
//!
//! 1. What was found in an event is not dropped before its end (`registry`, `limbo`; models in `model`; `tests/small.rs` under Miri).
//! 2. It is dropped once (`tests/small.rs`, `tests/random.rs`).
//! 3. An event that does not end holds up nothing that was made after its last look (`tests/small.rs`, models in `model`).
//! 4. Events do not leave their thread or their closure, and what was found there does not either (types; `compile_fail` at [`Event`]).
//! 5. A place of [`Thread`] belongs to one thread at a time, and the next one sees what it did (`registry`, under its lock).
//! 6. No task of LPEL waits within an event (`corebeat_sync::wait`; `tests/task.rs`).
//! 7. A call sees one form, with all that calls before it did (`adaptive`; model in `model`, `tests/load.rs`).
//! 8. A place has one representative, and that stays (`cluster`).
//! 9. Ready objects do as their sequential models, on whatever threads (`tests/ready.rs`).
//! 10. Nobody writes what somebody reads (`lock`); an object of a pool is with one at a time (`pool`); a shared value goes once, after
//!     all references (`shared`; models of all three in `model::ready`, `tests/load.rs`).
//! 11. A slot of counters is one counter's at a time, and begins with nothing (`part`; `tests/small.rs`).
//!
//! # Memory ordering
//!
//! | write | ordering | pairs with | why |
//! | --- | --- | --- | --- |
//! | event begun (`local`), then look through a link | Relaxed, `light` | value out of sight, `heavy`, look at events (`registry`) | one of the two sees the other |
//! | reach told (`local`), then look through a link | Relaxed, `light` | the same | the same |
//! | request (`registry`), then a new era | Release, Release | era, then value made and linked: Acquire, Release; found: Acquire, then look for requests | who finds what is newer than the request sees the request |
//! | event over | Release | Acquire look | dropped after it was used |
//! | value linked (`link`) | AcqRel | Acquire | its contents go with it |
//! | representative, table (`cluster`) | Release | Acquire | the same |
//! | counts (`counter`, `part`, `histogram`, `id`) | Relaxed | nothing | nobody relies on when they are seen |
//! | who reads counted (`lock`), then a look whether somebody writes | Relaxed, `light` | somebody writes, `heavy`, look at counts | one of the two sees the other |
//! | who reads gone, nobody writes any more (`lock`) | Release | Acquire look of the other side | the value goes with it |
//! | batch in the depot (`pool`) | Release | Acquire exchange | its objects go with it |
//! | reference gone, parts added (`shared`) | AcqRel | the same | who is last drops after all others |
//!
//! `light` and `heavy` are those of [`corebeat_sync::asymmetric`].
//!
//! # Failure
//!
//! No errors. Panics: a miss handler's own; who writes a [`BiasedLock`] that he reads; an [`Adaptive`] whose form was lost in a panic; a task of LPEL that waits within an event; a place that is not below [`domain::PLACES_MAX`]. A value whose destructor panics is gone
//! like the others.
//!
//! # Limits
//!
//! A thread's block of parts for [`Counter`]s takes 4 KiB; blocks are as many as there were threads at a time, and stay. Threads, not signal handlers: what adds to a [`Counter`] there may lose what it interrupted. A thread keeps up to 512 values that could
//! be dropped (more if more were held up) until it retires more, ends, or calls [`reclaim`]. While a destructor waits, the
//! thread that runs it frees nothing else but by `reclaim`. After `fork`, threads
//! that the child does not have count as if they stayed in the events that they were in.

#[cfg(not(target_pointer_width = "64"))]
compile_error!("corebeat-clustered counts in 64 bits, and needs a processor that does");

mod adaptive;
#[cfg(not(loom))] // hashes differ from run to run, and a model must not
mod adaptive_map;
mod cluster;
mod counter;
pub mod domain;
mod event;
mod global;
mod histogram;
mod id;
mod limbo;
mod link;
mod local;
mod lock;
mod log;
mod map;
#[cfg(all(test, loom))]
mod model;
mod part;
mod pool;
mod registry;
mod rseq;
#[cfg(not(loom))]
mod set;
mod shared;

pub use adaptive::{Adaptive, AdaptiveCounter, Form, Single};
#[cfg(not(loom))]
pub use adaptive_map::AdaptiveMap;
pub use cluster::{Chosen, Clustered, Miss, Root};
pub use counter::Counter;
pub use domain::{Cpu, Domain, Node, Thread};
pub use event::{Event, event};
pub use histogram::{Distribution, Histogram};
pub use id::IdGenerator;
pub use link::Link;
pub use lock::{BiasedLock, ReadGuard, WriteGuard};
pub use log::Log;
pub use map::Map;
pub use pool::{Pool, Pooled};
#[cfg(not(loom))]
pub use set::Set;
pub use shared::{Owner, Shared};

/// Drops at once what no event uses any more, of what this thread and those that have ended have replaced and destroyed: how
/// many values. What a busy thread may use can take a second call.
pub fn reclaim() -> usize {
    limbo::sweep()
}
