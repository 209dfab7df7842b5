//! SCOOP: processors, separate objects, and a garbage collector for both.
//!
//! Place in the loop: parallel; uses `corebeat-lpel` and `corebeat-sync`.
//!
//! # Example
//!
//! ```
//! use corebeat_lpel::Runtime;
//! use corebeat_scoop::{Link, System, Trace};
//!
//! #[derive(Trace)]
//! struct Account { balance: i64, bank: Option<Link<Bank>> }
//! #[derive(Trace)]
//! struct Bank { accounts: Vec<Link<Account>> }
//!
//! let system = System::new(Runtime::new()?);
//! let client = system.client();
//! let bank = client.create(|_| Bank { accounts: Vec::new() }); // a processor with one object
//! let account = client.create(|_| Account { balance: 0, bank: None }); // another one
//! let (to_bank, to_account) = (bank.clone(), account.clone());
//! // Commands do not wait.
//! account.command(&client, move |here, account| here[account].bank = Some(here.link(&to_bank)));
//! account.command(&client, |here, account| here[account].balance += 50);
//! let count = bank.query(&client, move |here, bank| { // waits for the result
//!     let link = here.link(&to_account);
//!     here[bank].accounts.push(link);
//!     here[bank].accounts.len()
//! })?;
//! assert_eq!((count, account.query(&client, |here, account| here[account].balance)?), (1, 50));
//!
//! drop(bank);
//! assert_eq!(system.collect().processors_freed, 0); // the account refers to the bank
//! drop(account);
//! assert_eq!(system.collect().processors_freed, 2); // a cycle without external references
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Model
//!
//! The model is SCOOP: Meyer, *Object-oriented software construction*, 1997, chapter 32; Meyer,
//! Kogtenkov, Akhi, *Processors and their collection*, 2012; West, Nanz, Meyer, *Efficient and
//! reasonable object-oriented concurrency*, 2015.
//!
//! ```text
//!     client ---- Separate ----+          logs calls, keeps objects alive
//!                              v
//!   +- processor 1 ------------------+     +- processor 2 -------------+
//!   | queue   [call call] [call]     |     | queue   (empty: no task)  |
//!   | region  (a) --Gc--> (b) ------------Link--> (c) --Gc--> (d)      |
//!   |          ^------------------------------------------------+      |
//!   +--------------------------------+     +---------------------------+
//! ```
//!
//! - A **processor** ([`Client::create`]) runs calls on its objects, one at a time. No other code
//!   accesses its objects. While a processor has calls to run, it is a task of LPEL; otherwise it
//!   is a few hundred bytes of memory.
//! - The objects of a processor are its **region**: values of any [`Trace`] type. They refer to
//!   each other by [`Gc`], and to objects of other processors by [`Link`].
//! - Calls have a [`Separate`] as their target: a reference outside of regions, which keeps its
//!   object and the processor alive.
//! - A **command** does not wait. A **query** waits for its result, and therefore for all earlier
//!   calls of its client on that processor. A **reservation** ([`Client::reserve`]) of one or
//!   several processors is a sequence of calls without calls of other clients in between.
//!   [`Client::reserve_when`] waits until a condition holds.
//! - A processor **fails** when a call panics. Queries that wait for it, and later queries, return
//!   [`Error::Failed`] with the message and the payload of the panic.
//! - [`Reservation::query_timeout`] and [`Client::reserve_when_timeout`] limit the time of a wait.
//! - The drop of the last [`System`], client or reservation waits until all logged calls have run,
//!   as scoped threads are waited for; [`System::wait`] waits earlier.
//! - A query that would close a cycle of waiting clients, of one or several systems, returns
//!   [`Error::Deadlock`] with the cycle.
//! - A **collection** ([`System::collect`], and automatically when there are many new processors or
//!   objects) frees all objects that no `Separate` reaches, and all processors without live objects
//!   or calls. A collection runs as a task beside the other tasks; the module `collector` documents
//!   the algorithm.
//!
//! # Invariants
//!
//! 1. A region has one user at a time, which passes it on (`turn`;
//!    `loom_turn_has_one_owner_at_a_time`, `loom_requested_work_is_done_once`; types: objects are
//!    accessible only through [`Here`]).
//! 2. Values that pass from one processor to another are `Send`, or are a [`Separate`]: `Gc`,
//!    `Link` and reservations are not `Send` (`compile_fail` at each).
//! 3. A slot is used if and only if it contains an object (`pool`). Therefore, a handle that was
//!    kept outside of traced memory refers to no object, or to another object of the same type,
//!    which is memory-safe (`tests/small.rs`).
//! 4. Calls run in the order of reservations, and in their own order within a reservation; all
//!    clients observe the same order of reservations (`queue`; `loom_reservations_have_one_order`,
//!    `loom_logged_call_runs`).
//! 5. No object is freed that a call could still reach; no dead object survives a collection that
//!    begins later (`collection_agrees_with_the_reference_algorithm`,
//!    `no_live_object_is_freed_during_collections_in_any_order`; planted faults:
//!    `graph_check_detects_planted_faults`).
//! 6. The client that closes a cycle of waiting clients detects the cycle, also over several
//!    systems (`wait`; `loom_one_client_of_a_cycle_detects_it`; `tests/small.rs`).
//! 7. A call whose logging has returned runs, unless its processor has failed or the process ends
//!    while a user of the system exists (`drop_of_the_last_client_waits_for_logged_calls`,
//!    `reservation_that_outlives_its_system_is_executed`).
//! 8. No call waits in a child of fork for a thread of its parent
//!    (`inherited_system_fails_in_the_child_and_works_in_the_parent`).
//!
//! # Memory ordering
//!
//! | write | ordering | pairs with | why |
//! | --- | --- | --- | --- |
//! | turn released (`turn`) | Release | Acquire of the next owner | the region passes on |
//! | work requested (`turn`) | Release | Acquire in `take_work` | the work passes with it |
//! | phase, number of pending processors (`collector`) | SeqCst | SeqCst | see below |
//! | hints: waiting threads, bytes allocated | Relaxed | nothing | see below |
//!
//! A late mark observes the phase to which the mark belongs. Nothing depends on when threads
//! observe the hints. All other shared data is behind locks.
//!
//! # Failure
//!
//! Functions return [`Error`]. This crate panics for a `Gc` of another processor (which fails the
//! processor of the call), for a target of another system, for a collection inside a call, and for
//! more than 4 billion objects of a type in a region, or pools in a system. In a child of fork,
//! queries on an inherited system return [`Error::Forked`], other functions panic, and drops leak.
//! If a hand-written `Trace` panics, against its contract, in the task of the collector, regions
//! are released, calls continue, and that system performs no more collections. In the task of a
//! processor, the objects of that processor leak, and a collection may not end.
//!
//! # Limits
//!
//! A collection interrupts no call, and traces a region only between two calls. Therefore, a
//! collection ends only after every live processor has been between two calls. A call that never
//! returns prevents the end of the collection. A processor whose region is being traced waits until
//! the collector has traced a slice of 16,384 objects, and then traces the rest of its own region
//! itself. In the worst case, the rest is the whole region. A client that creates processors faster
//! than they are collected waits 20 µs for each; the creation of objects is not throttled. Queues
//! are unbounded: a client that logs calls faster than the processor runs them must wait for a
//! query at intervals. The drop of a system waits forever for a call that never returns, and does
//! not wait for calls that own the last `System` or client themselves, nor for tasks that calls
//! spawn, nor in a destructor of `thread_local!` data. Objects are not moved. A cycle of waiting
//! clients contains waits for queries only. If a call spawns a task or a thread that queries the
//! processor of the call, and joins it, both wait forever.
//! [`Runtime::run`](corebeat_lpel::Runtime::run) reports such a deadlock of tasks; outside of it,
//! or with a thread, nothing does. The deadlock detection of `Runtime::run` does not include
//! reservations of threads that are not tasks either. If tasks wait for such a thread, make the
//! thread a blocking task.

#[cfg(test)]
extern crate self as corebeat_scoop;

mod activity;
mod client;
mod collector;
mod error;
mod fault;
#[cfg(all(test, not(loom)))]
mod graph;
mod handle;
#[cfg(all(test, loom))]
mod model;
mod pool;
mod processor;
mod queue;
mod region;
mod system;
mod trace;
mod turn;
mod wait;

pub use client::{Client, Reservation, Targets};
pub use collector::Collected;
pub use corebeat_scoop_macro::Trace;
pub use error::{Cause, Cycle, Error, Name};
pub use handle::{Gc, Link, Separate};
pub use region::Here;
pub use system::{Options, System};
pub use trace::{Plain, Trace, Tracer};

/// The Rust code of the book is compiled, and most of it run, as documentation tests.
#[cfg(doctest)]
#[doc(hidden)]
pub mod book {
    #[doc = include_str!("../../../../docs/scoop.md")]
    pub struct Scoop;
}
