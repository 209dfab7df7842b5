//! Clustered objects: objects that appear as one object but have a representative for each place
//! where they are used.
//!
//! Place in the loop: parallel; uses base.
//!
//! # Example
//!
//! ```
//! use corebeat_clustered::{Counter, Link, read_section};
//!
//! static REQUESTS: Link<Counter> = Link::empty(); // one reference for all threads
//!
//! REQUESTS.replace(Counter::new());
//! let count = || read_section(|guard| REQUESTS.get(guard).map(|requests| requests.add(1)));
//! std::thread::scope(|scope| (0..4).for_each(|_| { scope.spawn(count); }));
//! assert_eq!(read_section(|guard| REQUESTS.get(guard).unwrap().value()), 4);
//! REQUESTS.destroy(); // threads that use the counter now may finish
//! ```
//!
//! # Model
//!
//! The model follows Matthews, Coady, Appavoo, *Portability events: a programming model for
//! scalable system infrastructures*, 2006, and its predecessors: Appavoo, *Clustered objects*,
//! 2005; Gamsa, Krieger, Appavoo, Stumm, *Tornado: maximizing locality and concurrency in a shared
//! memory multiprocessor operating system*, 1999.
//!
//! ```text
//!     thread A                thread B                  thread C
//!   section ---+            section ---+
//!              v                       v                 replace, destroy
//!           [ link ] ------------------+------------> retired ... dropped after both sections
//!              |
//!              v
//!           [ clustered object: root, miss handler ]
//!              | for A's place                 | for B's place
//!              v                               v
//!           [ representative ]              [ representative ]
//! ```
//!
//! - A **clustered object** ([`Clustered`]) has a **root** ([`Root`]) for global state, and a
//!   **representative** for each place of its **locality domain** ([`Domain`]: [`Thread`], [`Cpu`],
//!   [`Node`]). A representative is created at the first access (miss) from a place; the root
//!   chooses it.
//! - A **read-side critical section** ([`read_section`], the *portability event* of the paper) is
//!   the span in which values that were found through a **link** ([`Link`]) exist, whatever other
//!   threads do to the link. Existence needs no locks and no reference counts. A thread that
//!   borrows an object needs no section: the borrow guarantees existence.
//! - A replaced or destroyed value is dropped when all sections that may have found it are over. A
//!   thread outside of sections keeps no value. A thread that stays or blocks in a section keeps
//!   the values that existed when it last loaded a link, but no value that is created later
//!   (`retired`).
//! - **Hot swapping**: [`Link::replace_then`] replaces the implementation behind a live reference.
//!   When no section uses the old implementation any more, a closure receives it. An [`Adaptive`]
//!   object swaps its implementation automatically when several threads use it, and when they stop
//!   doing so.
//! - **Ready objects**: [`Counter`], [`Histogram`], [`IdGenerator`], [`Log`], [`Map`], [`Set`],
//!   [`Pool`], [`BiasedLock`], [`Owner`] with [`Shared`]. The documentation of each states its
//!   local and its global state, and the guarantees of a read of the whole.
//!
//! The lists of retired values, their destruction and the proof of the fences are those of
//! [`corebeat_reclaim`].
//!
//! # Invariants
//!
//! 1. A value that was found in a section is not dropped before the end of the section (`registry`,
//!    `retired`; `loom_value_exists_while_a_section_uses_it`, `tests/small.rs` under Miri).
//! 2. A retired value is dropped once (`loom_values_of_two_writers_are_dropped_once`,
//!    `links_under_load_return_live_values_and_leak_nothing`, `tests/random.rs`).
//! 3. A section that does not end keeps no value that was created after its last load of a link
//!    (`long_section_keeps_old_values_and_no_newer_ones`,
//!    `loom_reach_of_a_section_grows_with_what_it_finds`).
//! 4. Guards, and references that were obtained with them, do not leave their thread or their
//!    closure (types; `compile_fail` at [`Guard`]).
//! 5. A place of [`Thread`] belongs to one thread at a time, and the next thread observes the
//!    previous one's writes (`registry`, under its lock;
//!    `places_of_threads_differ_and_are_reused`).
//! 6. No task of LPEL waits in a section (`corebeat_sync::wait`; `tests/task.rs`).
//! 7. A call of an adaptive object uses one form, which has the effects of all earlier calls
//!    (`adaptive`; `loom_counter_swapped_during_additions_has_each_addition_once`).
//! 8. A place has one representative, which does not change
//!    (`loom_place_gets_one_representative`).
//! 9. Ready objects behave as their sequential models, on any number of threads (`tests/ready.rs`).
//! 10. No thread writes a value that another one reads (`loom_lock_separates_readers_and_writers`);
//!     an object of a pool has one user at a time
//!     (`loom_object_of_a_pool_has_one_user_at_a_time`); a shared value is dropped once, after all
//!     references (`loom_shared_value_exists_until_its_last_reference_is_dropped`).
//! 11. A slot of counters belongs to one counter at a time, and begins with 0 (`part`;
//!     `tests/small.rs`).
//! 12. A child of `fork` continues with the objects of its parent, whatever other threads did at
//!     the fork, except for the locks below (`tests/fork.rs`).
//!
//! # Memory ordering
//!
//! | write | ordering | pairs with | why |
//! | --- | --- | --- | --- |
//! | section begins (`local`), link loaded | Relaxed, `light` | unlinked, `heavy`, presence | (a) |
//! | reach published (`local`), link loaded | Relaxed, `light` | as above | (a) |
//! | request (`registry`), then a new era | Release, Release | (b) | (b) |
//! | section over | Release | Acquire load | the value is dropped after its last use |
//! | value linked (`link`; `replace_alone`: Release) | AcqRel | Acquire | its content is visible |
//! | value forgotten (`link`) | Release | Acquire of null | the new table is visible (`map`) |
//! | value aliased (`link`) | Relaxed | nothing | its table is linked later, by Release |
//! | representative, table (`cluster`); table (`table`) | Release | Acquire | as above |
//! | tags of links (`table`) | Relaxed | nothing | (e) |
//! | counts (`counter`, `part`, `histogram`, `id`) | Relaxed | nothing | (c) |
//! | reader counted (`lock`), `writes` loaded | Relaxed, `light` | set, `heavy`, counts | (a) |
//! | reader gone, writer gone (`lock`) | Release | Acquire load of the other side | (d) |
//! | batch in the depot (`pool`) | Release | Acquire exchange | its objects are visible with it |
//! | reference dropped, parts added (`shared`) | AcqRel | the same | the last one drops last |
//!
//! - (a) At least one side observes the write of the other side.
//! - (b) A thread that finds a value newer than the request observes the request. The maker of the
//!   value loads the era (Acquire) and links the value (Release). The finder loads the link
//!   (Acquire), and then the requests.
//! - (c) Nothing depends on when threads observe the numbers.
//! - (d) The value is visible to the next owner.
//! - (e) A tag without a value leads to none. A thread to which an insertion is visible finds its
//!   tag (`table`).
//!
//! `light` and `heavy` are the fences of [`corebeat_sync::asymmetric`].
//!
//! # Failure
//!
//! No function returns an error. This crate panics if a miss handler panics, if a thread locks a
//! [`BiasedLock`] for writing while the thread has a guard, or for reading while it has a guard of
//! a write, if the form of an [`Adaptive`] was lost in a panic, if a task of LPEL waits in a
//! section, and if a place is not below [`domain::PLACES_MAX`]. A panic of a destructor does not
//! propagate, and does not prevent the destruction of other values.
//!
//! # Limits
//!
//! A thread's block of parts for [`Counter`]s takes 4 KiB. The number of blocks is the maximum
//! number of simultaneous threads; blocks are never freed. Signal handlers are not supported: an
//! addition to a [`Counter`] there may lose the addition that it interrupted. A thread keeps up to
//! 512 values whose grace periods are over (more if more were kept before) until it retires more,
//! ends, or calls [`reclaim`]. While a destructor waits, its thread frees other values only through
//! `reclaim`.
//!
//! A fork does not wait for locks under which code of the user may run: fork while no other thread
//! has a guard of a [`BiasedLock`], calls an [`Adaptive`] object, changes or iterates over a
//! [`Map`] or [`Set`], or uses a [`Log`]. In the child such a lock is never released. References
//! and objects of a pool that other threads had are never dropped there, and their places are not
//! reused.

#[cfg(not(target_pointer_width = "64"))]
compile_error!("corebeat-clustered uses 64-bit counters and requires a 64-bit processor");

mod adaptive;
#[cfg(not(loom))] // hashes differ between runs, and a model must be deterministic
mod adaptive_map;
mod cluster;
mod counter;
pub mod domain;
mod global;
mod histogram;
mod id;
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
mod retired;
mod rseq;
mod section;
#[cfg(not(loom))]
mod set;
mod shared;
mod table;

pub use adaptive::{Adaptive, AdaptiveCounter, Form, Single};
#[cfg(not(loom))]
pub use adaptive_map::AdaptiveMap;
pub use cluster::{Chosen, Clustered, Miss, Root};
pub use counter::Counter;
pub use domain::{Cpu, Domain, Node, Thread};
pub use histogram::{Distribution, Histogram};
pub use id::IdGenerator;
pub use link::Link;
pub use lock::{BiasedLock, ReadGuard, WriteGuard};
pub use log::Log;
pub use map::Map;
pub use pool::{Pool, Pooled};
pub use section::{Guard, read_section};
#[cfg(not(loom))]
pub use set::Set;
pub use shared::{Owner, Shared};

/// Drops the values that this thread, and threads that have ended, have replaced or destroyed, and
/// that no section uses any more. Returns their number. Values that a busy thread may use can need
/// a second call.
pub fn reclaim() -> usize {
    retired::reclaim()
}

/// The Rust code of the book is compiled, and most of it run, as documentation tests.
#[cfg(doctest)]
#[doc(hidden)]
pub mod book {
    #[doc = include_str!("../../../../docs/clustered.md")]
    pub struct Clustered;
}
