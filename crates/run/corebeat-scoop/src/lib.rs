//! Processors and separate objects, and the collector of both.
//!
//! Place in the loop: run; stands on lpel and sync.
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
//! let bank = client.create(|_| Bank { accounts: Vec::new() });             // two processors, with an object each
//! let account = client.create(|_| Account { balance: 0, bank: None });
//! let (to_bank, to_account) = (bank.clone(), account.clone());
//! account.command(&client, move |here, account| here[account].bank = Some(here.link(&to_bank))); // does not wait
//! account.command(&client, |here, account| here[account].balance += 50);
//! let count = bank.query(&client, move |here, bank| {                      // waits
//!     let link = here.link(&to_account);
//!     here[bank].accounts.push(link);
//!     here[bank].accounts.len()
//! })?;
//! assert_eq!((count, account.query(&client, |here, account| here[account].balance)?), (1, 50));
//!
//! drop(bank);
//! assert_eq!(system.collect().processors_freed, 0); // reached from the account
//! drop(account);
//! assert_eq!(system.collect().processors_freed, 2); // a circle that nobody holds
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Model
//!
//! After SCOOP: Meyer, *Object-oriented software construction*, 1997, chapter 32; Meyer, Kogtenkov, Akhi, *Processors and their
//! collection*, 2012; West, Nanz, Meyer, *Efficient and reasonable object-oriented concurrency*, 2015.
//!
//! ```text
//!     client ---- Separate ----+          logs calls, holds objects
//!                              v
//!   +- processor 1 ------------------+     +- processor 2 -------------+
//!   | queue   [call call] [call]     |     | queue   (empty: no task)  |
//!   | region  (a) --Gc--> (b) ------------Link--> (c) --Gc--> (d)      |
//!   |          ^------------------------------------------------+      |
//!   +--------------------------------+     +---------------------------+
//! ```
//!
//! - A **processor** ([`Client::create`]) runs calls on its objects, one at a time. Nobody else gets at them. While it has calls to run it
//!   is a task of LPEL; else it is a few hundred bytes.
//! - Its objects are its **region**: of any type that is [`Trace`]. They refer to each other by [`Gc`], and to those of others by [`Link`].
//! - What is called is a [`Separate`], which lives outside of regions, and keeps its object and its processor alive.
//! - A **command** does not wait; a **query** does, for its answer, and so for all that its client has logged there before. A
//!   **reservation** ([`Client::reserve`]), of one processor or of several at once, is a row of calls that nobody
//!   comes between. [`Client::reserve_when`] waits until a condition holds.
//! - A processor in which a call panics has **failed**: who waits for it, or asks it later, is told ([`Error::Failed`]).
//! - Who would wait in a circle is refused, and told who waits ([`Error::Deadlock`]).
//! - A **collection** ([`System::collect`], and by itself when there are many new processors or objects) takes all objects that no `Separate` leads to, and all
//!   processors without any other. It is a task beside the others: `collector` has the algorithm.
//!
//! # Invariants
//!
//! 1. One at a time uses a region, and hands it over (`turn`; models in `model`; types: objects are reached through [`Here`] only).
//! 2. What goes from one processor to another may be sent, or is a [`Separate`]: `Gc`, `Link` and reservations are not `Send` (`compile_fail` at each).
//! 3. A slot is used if and only if there is an object in it (`pool`), so a handle that was kept where the collector does not look
//!    finds no object, or another one of its type, and nothing worse (`tests/small.rs`).
//! 4. Calls run in the order of reservations, and in their own order within one; all clients see the same order of
//!    reservations (`queue`; models).
//! 5. Nothing is freed that a call could still reach; nothing dead stays when a collection that began later is over (`graph`, against a search by
//!    the book, in orders drawn from seeds; with faults planted).
//! 6. A circle of clients that wait is found by who closes it (`wait`; `tests/small.rs`).
//!
//! # Memory ordering
//!
//! | write | ordering | pairs with | why |
//! | --- | --- | --- | --- |
//! | turn given back (`turn`) | Release | Acquire of who takes it | the region goes with the turn |
//! | work asked for (`turn`) | Release | Acquire in `take_work` | what is to be done goes with the request |
//! | phase, count of those with something to do (`collector`) | SeqCst | SeqCst | a mark that comes late finds the phase that it belongs to |
//! | hints: who wants a turn, bytes made | Relaxed | nothing | nobody relies on when they are seen |
//!
//! All else is behind locks.
//!
//! # Failure
//!
//! [`Error`]. Panics of our own: a `Gc` of another processor (which fails the call's processor); a target of another system; a collection
//! asked for inside a call; more than 4 billion objects of a type in a region, or pools in a system. Where a `Trace` written by hand panics,
//! against its contract, in the collector's task, regions are given back, calls go on, and nothing is collected in that system any more; in a
//! processor's own task, the objects of that processor are lost, and it may keep a collection from ending.
//!
//! # Limits
//!
//! No call is stopped for a collection, and a region is looked at between two calls only: so a collection ends when every live
//! processor was between two calls, and a call that never ends keeps it from ending. A processor that wants to run while its region is looked at waits
//! until a slice of 16,384 objects is traced, and then traces what is left of its own region: at worst all of it. Who makes processors
//! faster than they are collected waits 20 µs for each; objects can be made faster. Queues have no bound:
//! a client that logs faster than the processor runs asks it something now and then. Objects are not moved. A thread that is no
//! task and has a reservation is unknown to the deadlock search of [`Runtime::run`](corebeat_lpel::Runtime::run): where tasks wait for it, let it be a wrapper.

#[cfg(test)]
extern crate self as corebeat_scoop;

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
pub use error::{Cycle, Error, Name};
pub use handle::{Gc, Link, Separate};
pub use region::Here;
pub use system::{Builder, System};
pub use trace::{Plain, Trace, Tracer};
