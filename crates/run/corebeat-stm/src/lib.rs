//! Transactions on shared memory: they happen all at once, or not at all.
//!
//! Place in the loop: run; stands on base and observe.
//!
//! # Example
//!
//! ```
//! use corebeat_stm::{TCell, atomically, snapshot};
//!
//! let accounts: Vec<TCell<i64>> = (0..8).map(|_| TCell::new(100)).collect();
//! std::thread::scope(|scope| {
//!     for from in 0..4 {
//!         let accounts = &accounts;
//!         scope.spawn(move || atomically(|tx| {
//!             tx.update(&accounts[from], |balance| balance - 10)?;
//!             tx.update(&accounts[7 - from], |balance| balance + 10)
//!         }));
//!     }
//! });
//! let sum = snapshot(|tx| accounts.iter().try_fold(0, |sum, account| Ok(sum + tx.read(account)?)));
//! assert_eq!(sum, 800);
//! ```
//!
//! Structures are made of `Arc`s in cells. Nodes that are taken out stay for those who are still walking through them:
//!
//! ```
//! use corebeat_stm::{TCell, atomically};
//! use std::sync::Arc;
//!
//! struct Node { item: u64, next: TCell<Option<Arc<Node>>> }
//!
//! let top = TCell::new(None);
//! let push = |item| atomically(|tx| {
//!     let next = TCell::new(tx.share(&top)?);
//!     tx.write(&top, Some(Arc::new(Node { item, next })))
//! });
//! let pop = || atomically(|tx| match tx.read(&top)? {
//!     None => tx.retry(), // sleeps until there is something
//!     Some(node) => {
//!         let rest = tx.share(&node.next)?;
//!         tx.write(&top, rest)?;
//!         Ok(node.item)
//!     }
//! });
//! push(1);
//! push(2);
//! assert_eq!((pop(), pop()), (2, 1));
//! ```
//!
//! # Model
//!
//! A **cell** ([`TCell`]) is a value with a versioned lock. A **transaction** ([`atomically`], [`snapshot`]) runs a closure, again
//! and again until all that it read and wrote can be said to have happened at one moment. An attempt sees memory as it was
//! at one moment, and its own writes, even if nothing comes of it (*opacity*: Guerraoui, Kapałka, *On the correctness of
//! transactional memory*, 2008).
//!
//! ```text
//!                 clock 7                    accounts[2]           accounts[5]
//!                    |                     +-----+-------+       +-----+-------+
//!   begin            +-> time 7            |  6  |  100  |       |  4  |  100  |
//!   update [2]           6 <= 7, take it   | T1  |   90  |       |  4  |  100  |
//!   update [5]           4 <= 7, take it   | T1  |   90  |       | T1  |  110  |
//!   commit           +-> version 7 + 1     |  8  |   90  |       |  8  |  110  |
//!                    |
//!                    7 still: whoever meets an 8 while its time is 7 brings the clock to 8, looks whether what it has read
//!                    is unchanged, and has time 8 from then on
//! ```
//!
//! The family is that of TL2 (Dice, Shalev, Shavit, *Transactional Locking II*, 2006) and of LSA and TinySTM (Riegel, Felber,
//! Fetzer, *A lazy snapshot algorithm with eager validation*, 2006; Felber, Fetzer, Riegel, *Dynamic performance tuning of
//! word-based software transactional memory*, 2008): a clock, locks with versions, snapshots that are extended. Of their
//! choices, these are taken:
//!
//! - A lock for each cell, in its cache line: two threads that want different cells never meet, and a cell that comes from
//!   another core brings its lock along.
//! - Locks are taken when a cell is first written, and what is written stands in memory at once, with the old value in a log.
//! - A commit does not move the clock (TL2's GV5), so threads that work on different cells have no line in common.
//! - Values that were replaced are freed when every attempt that may have seen them is over (`limbo`).
//!
//! Beside that: [`Tx::retry`] and [`Tx::or_else`] (Harris, Marlow, Peyton Jones, Herlihy, *Composable memory transactions*,
//! 2005); [`Tx::irrevocable`] for input and output; [`contention`] says who gives way; [`counters`] tell how it went, and
//! [`trace`], on demand, all that was done.
//!
//! A transaction in parts hands its [`Tx`] on: nesting is flat. An [`atomically`] inside another one cannot join it, and panics.
//! Its cells need to outlive only itself, so the outer attempt would hold locks and logs of cells that may be gone:
//!
//! ```should_panic
//! # use corebeat_stm::{TCell, atomically};
//! atomically(|_| {
//!     let cell = TCell::new(1); // gone before the outer one commits
//!     atomically(|tx| tx.write(&cell, 2));
//!     Ok(())
//! });
//! ```
//!
//! The compiler refuses that cell where it is used by the outer `tx` (see [`Tx`]). And if the inner one failed, the outer one
//! could be begun again only by unwinding, through code that may not expect it.
//!
//! Memory that is no cell has its locks in a table, found by address: [`word`](mod@word), for programs in C.
//!
//! # Invariants
//!
//! 1. A commit with version *v* held all its locks while the clock was below *v* (`Descriptor::commit_writes`).
//! 2. Versions of a lock only grow, and what a lock covers changes only while it is held (`lock`, `place`).
//! 3. So who has time *t* sees, in a free lock, the last of all commits up to *t*: those were in sight, as locks that are held,
//!    when the clock came to *t*. Nothing newer is taken (`Descriptor::read`; `history`, models in `model`).
//! 4. What a commit has read is unchanged when all its locks are held: that is its moment (`history`, `model`).
//! 5. A value is dropped once, when nobody reads it (`limbo`; `tests/small.rs` under Miri; model).
//! 6. Who sleeps in a `retry` is woken by a commit to what it has read (`waiter`; model).
//! 7. What is read by reference does not leave the attempt; cells outlive it (types; `compile_fail` at [`Tx`]).
//! 8. What is told is what was done (`random_history_is_told_as_it_was`), and costs a look at a flag, twice a transaction, where
//!    nobody wants to hear it (`trace`).
//! 9. While the gate is shut nobody else commits: who has shut it cannot fail (`tests/small.rs`; model).
//!
//! With ties, commits are ordered by version, then by moment. Real time agrees: who begins later reads the clock later. A
//! transaction that only reads comes after all commits up to its time, and before those that overwrote what it had read.
//!
//! # Memory ordering
//!
//! | write | ordering | pairs with | why |
//! | --- | --- | --- | --- |
//! | lock taken (`lock`), then look at the clock (`clock`) | SeqCst, SeqCst | clock moved, read, then look at the lock: all SeqCst | invariant 1: who sees the clock there sees the lock |
//! | lock taken, then look at what was read | SeqCst, SeqCst | the same of another | of two that write what the other has read, one sees it |
//! | gate shut (`clock`), then look at locks | SeqCst, SeqCst | lock taken, then look at the clock | who commits sees the gate, or is seen |
//! | value (`place`) | Release | Acquire, then look at the lock again | who reads what is not committed sees the lock held |
//! | lock released | Release | SeqCst look | the value goes with its version |
//! | lock released, then look whether somebody waits (`waiter`) | Release, `light` | counted, `heavy`, look at locks | one of the two sees the other |
//! | turn begun (`slot`), then look for values | Relaxed, `light` | value out of sight, `heavy`, look at turns (`limbo`) | the same |
//! | turn ended | Release | Acquire look | freed after it was read |
//! | what is to be told (`trace`) | Relaxed | nothing | threads see it when they do |
//! | hints: doom, standing, counters (`slot`) | Relaxed | nothing | nobody relies on when they are seen |
//!
//! `light` and `heavy` are those of [`corebeat_sync::asymmetric`]. SeqCst loads cost nothing on x86-64.
//!
//! # Failure
//!
//! [`Abort`] is no failure: it is handed on, and never leaves [`atomically`]. A panic in the closure undoes the attempt, and
//! goes on. Panics of our own: a transaction inside another one of the same thread; `retry` where nothing was read, and after
//! `irrevocable`. A value whose destructor panics is gone like the others.
//!
//! # Limits
//!
//! Processors with 64-bit pointers. Threads, not tasks: a task of LPEL must not wait in the midst of a transaction, nor in the destructor
//! of what a cell has held (what other tasks of its worker drop out of cells then goes after that), and `retry` holds up its worker. A
//! transaction that runs for long keeps all values from being freed that are replaced meanwhile. A
//! thread keeps the logs of its largest transaction. One that has failed 100 times lets no other commit until it is done, so
//! it does get done. Values that were replaced are dropped in no order. What is in cells of a value that is dropped goes after it, not within:
//! a list of cells with `Arc`s, however long, takes no more of the stack than one (`long_list_of_cells_*`).

#[cfg(not(target_pointer_width = "64"))]
compile_error!("corebeat-stm keeps 64 bits in a pointer, and needs a processor that does");

mod cell;
mod clock;
pub mod contention;
mod counter;
mod descriptor;
mod fault;
mod global;
#[cfg(all(test, not(loom)))]
mod history;
mod limbo;
mod lock;
#[cfg(all(test, loom))]
mod model;
mod pause;
mod place;
mod reads;
mod report;
mod slot;
pub mod trace;
mod transaction;
mod value;
mod waiter;
#[cfg(not(loom))]
pub mod word;

pub use cell::TCell;
pub use counter::{Cause, Counters, counters};
pub use descriptor::Abort;
pub use transaction::{Tx, atomically, reclaim, snapshot};
pub use value::{Value, Word};
