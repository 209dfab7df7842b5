//! Software transactional memory: transactions on shared memory that take effect atomically or not
//! at all.
//!
//! Place in the loop: parallel; uses base and observe.
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
//! let sum = snapshot(|tx| accounts.iter().try_fold(0, |sum, cell| Ok(sum + tx.read(cell)?)));
//! assert_eq!(sum, 800);
//! ```
//!
//! Linked structures consist of `Arc`s in cells. A removed node exists until all transactions that
//! may still visit the node are over:
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
//!     None => tx.retry(), // sleeps until the stack has an item
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
//! A **cell** ([`TCell`]) is a value with a versioned lock. A **transaction** ([`atomically`],
//! [`snapshot`]) runs a closure repeatedly until all its reads and writes can take effect at one
//! moment. An attempt reads memory as it was at one moment, and its own writes, even if the attempt
//! aborts (*opacity*: Guerraoui, Kapałka, *On the correctness of transactional memory*, 2008).
//!
//! ```text
//!                 clock 7                    accounts[2]           accounts[5]
//!                    |                     +-----+-------+       +-----+-------+
//!   begin            +-> time 7            |  6  |  100  |       |  4  |  100  |
//!   update [2]           6 <= 7, acquire   | T1  |   90  |       |  4  |  100  |
//!   update [5]           4 <= 7, acquire   | T1  |   90  |       | T1  |  110  |
//!   commit           +-> version 7 + 1     |  8  |   90  |       |  8  |  110  |
//!                    |
//!                    still 7
//! ```
//!
//! A transaction with time 7 that finds version 8 advances the clock to 8, checks that all values
//! that it has read are unchanged, and continues with time 8.
//!
//! The algorithm belongs to the family of TL2 (Dice, Shalev, Shavit, *Transactional Locking II*,
//! 2006) and of LSA and TinySTM (Riegel, Felber, Fetzer, *A lazy snapshot algorithm with eager
//! validation*, 2006; Felber, Fetzer, Riegel, *Dynamic performance tuning of word-based software
//! transactional memory*, 2008): a clock, versioned locks, and snapshots that are extended. The
//! choices are:
//!
//! - One lock for each cell, in the cell's cache line: threads that access different cells never
//!   interact, and the transfer of a cell from another core includes its lock.
//! - A transaction acquires a lock at its first write of a cell. The new value is in memory at
//!   once, and the old value in a log.
//! - A commit does not advance the clock (TL2's GV5), so threads that work on different cells share
//!   no written cache line.
//! - A thread that commits much more often than all others becomes the sole writer: its commits
//!   need not validate their reads, and it reads its own last commit without an advance of the
//!   clock (`clock`, `descriptor::turn`).
//! - A replaced value is freed when every attempt that may have read it is over (`retired`, on
//!   [`corebeat_reclaim`]).
//!
//! [`TMap`], [`TSet`], [`TQueue`] and [`TCounter`] are collections in cells. [`Tx::retry`] waits
//! for a change of a cell, [`atomically_timeout`] limits this wait, and [`Tx::or_else`] composes
//! alternatives (Harris, Marlow, Peyton Jones, Herlihy, *Composable memory transactions*, 2005).
//! [`Tx::irrevocable`] permits input and output. [`contention`] selects the policy for conflicts.
//! [`counters`] returns statistics, and [`trace`] records all transactions on demand.
//!
//! A transaction passes its [`Tx`] to the functions that do parts of it: nesting is flat. An
//! [`atomically`] inside another one cannot join it, and panics. Its cells need to outlive only the
//! inner transaction, so the outer attempt would hold locks and logs of cells that may be gone:
//!
//! ```should_panic
//! # use corebeat_stm::{TCell, atomically};
//! atomically(|_| {
//!     let cell = TCell::new(1); // dropped before the outer transaction commits
//!     atomically(|tx| tx.write(&cell, 2));
//!     Ok(())
//! });
//! ```
//!
//! The compiler rejects that cell if the outer `tx` uses it (see [`Tx`]). Moreover, a failure of
//! the inner transaction could restart the outer one only by unwinding through code that is not
//! prepared for unwinding.
//!
//! The module [`word`](mod@word) serves C programs: locks for memory outside of cells are in a
//! table, which the address indexes.
//!
//! # Invariants
//!
//! 1. A commit with version *v* held all its locks while the clock was below *v*
//!    (`commit_writes`; `loom_commit_is_visible_when_the_clock_reaches_its_version`).
//! 2. Memory that a lock covers changes only while the lock is held, and then the lock gets a
//!    version that is higher than the time of all attempts of other threads that have read the
//!    memory (`lock`, `place`; `loom_value_under_a_free_lock_is_committed`).
//! 3. Therefore, a transaction with time *t* reads, under a free lock, the value of the last commit
//!    up to *t*: the locks of those commits were held and visible when the clock reached *t*. The
//!    transaction reads no newer value (`random_history_is_opaque_with_each_manager`,
//!    `loom_attempt_reads_all_of_a_commit_or_nothing`).
//! 4. The values that a commit has read are unchanged when all its locks are held. The commit takes
//!    effect at that moment (`random_history_is_opaque_with_each_manager`,
//!    `loom_commits_that_read_from_each_other_have_an_order`). For the sole writer, `clock` proves
//!    this and invariant 3 (`loom_commit_of_the_sole_writer_has_an_order`,
//!    `loom_sole_writer_reads_all_of_a_commit_or_nothing`).
//! 5. A value is dropped once, when no attempt reads it (`retired`; `tests/small.rs` under Miri;
//!    `loom_value_is_dropped_after_it_was_read`).
//! 6. A commit to a cell wakes the transactions that wait for the cell in `retry` (`waiter`;
//!    `loom_retry_is_woken`, `loom_waiter_is_woken`).
//! 7. A reference that an attempt reads does not leave the attempt, and cells outlive the attempt
//!    (types; `compile_fail` at [`Tx`]).
//! 8. A trace records what happened (`random_history_is_recorded_exactly`). Without a trace, the
//!    cost for a transaction is two loads of a flag (`trace`).
//! 9. While the gate is closed, only the transaction that closed it commits, and it cannot fail
//!    (`loom_irrevocable_transaction_does_not_fail`).
//! 10. No task of LPEL waits in a transaction (`corebeat_sync::wait`;
//!     `task_that_waits_in_a_transaction_fails_alone`).
//! 11. An attempt that has failed or has called `retry` does not commit
//!     (`attempt_that_ignores_an_error_does_not_commit`).
//! 12. Collections behave as their sequential models (`collections_behave_as_sequential_models`,
//!     `items_move_between_collections_of_many_threads_and_none_is_lost`).
//! 13. `retry` with a time limit returns (`retry_ends_at_its_time_limit_or_with_a_change`), and
//!     leaves no waiting thread (`wait_that_ends_without_a_change_leaves_no_waiting_thread`).
//! 14. A task of LPEL that waits in `retry` blocks no other task
//!     (`task_that_retries_lets_other_tasks_of_its_worker_run`).
//!
//! Commits are ordered by version, and commits with equal versions by the moment at which they take
//! effect. This order agrees with real time: a transaction that begins later reads the clock later.
//! A read-only transaction comes after all commits up to its time, and before those that overwrote
//! a value that it has read.
//!
//! # Memory ordering
//!
//! | write | ordering | pairs with | why |
//! | --- | --- | --- | --- |
//! | lock acquired (`lock`), clock loaded (`clock`) | SeqCst | clock advanced, lock loaded | (a) |
//! | lock acquired, read locks loaded | SeqCst | the same of another transaction | (b) |
//! | gate closed (`clock`), locks loaded | SeqCst | lock acquired, clock loaded | (c) |
//! | sole writer ended (`clock`), locks loaded | SeqCst | lock acquired, clock loaded | (g) |
//! | value (`place`) | Release | Acquire, then second load of the lock | (d) |
//! | lock released | Release | SeqCst load | the value is visible with its version |
//! | lock released, waiters counted (`waiter`) | Release, `light` | count, `heavy`, locks | (e) |
//! | epoch begins (`slot`), value loaded | Relaxed, `light` | unlinked, `heavy`, epochs | (e) |
//! | epoch ends | Release | Acquire load (`retired`) | a value is freed after its last read |
//! | detail of the trace (`trace`) | Relaxed | nothing | (f) |
//! | hints: doom, standing, counters (`slot`) | Relaxed | nothing | (f) |
//!
//! - (a) Invariant 1: a transaction that observes that time observes the lock. All accesses are
//!   SeqCst.
//! - (b) If each of two transactions writes a value that the other one has read, at least one of
//!   them observes the lock of the other.
//! - (c) Either a committing transaction observes the closed gate, or the transaction that closes
//!   the gate observes the locks.
//! - (d) A reader of an uncommitted value observes the held lock.
//! - (e) At least one side observes the write of the other side.
//! - (f) Nothing depends on when threads observe the value.
//! - (g) Either the sole writer observes the end of its claim, or the commit that ended the claim
//!   observes the locks of the sole writer.
//!
//! `light` and `heavy` are the fences of [`corebeat_sync::asymmetric`]. SeqCst loads cost nothing
//! extra on x86-64.
//!
//! # Failure
//!
//! [`Abort`] is not a failure: closures pass it on, and it never leaves [`atomically`]. A panic in
//! the closure undoes the attempt and propagates. This crate panics if a transaction begins inside
//! another one of the same thread, or if `retry` is called before a cell was read or after
//! `irrevocable`. A panic of a destructor does not propagate, and does not prevent the destruction
//! of other values.
//!
//! # Limits
//!
//! This crate supports only 64-bit processors. A child of fork inherits the locks of transactions
//! that other threads were in, and waits for them for ever, and never frees values that it
//! replaces: fork while no other thread is in a transaction. Transactions belong to threads, not to
//! tasks: a task of LPEL that waits or yields within a transaction panics (`corebeat_sync::wait`;
//! `tests/task.rs`). A task must not wait in the destructor of a value that was in a cell: later
//! values of cells that other tasks of its worker drop would wait for that destructor. `retry`
//! suspends a task (`corebeat_sync::wait`). In the destructors of a task that unwinds, which must
//! not wait, `retry` blocks the worker. LPEL does not report tasks that wait in `retry` as a
//! deadlock, because any thread may change a cell. A long transaction keeps all values that are
//! replaced meanwhile. A thread keeps the logs of its largest transaction. A transaction that has
//! failed 100 times excludes all other commits until it has committed. Therefore, every transaction
//! eventually commits. Replaced values are dropped in no particular order. Values in cells of a
//! dropped value are dropped after that value, not within its destructor. Therefore, a list of
//! cells with `Arc`s of any length needs only the stack of one cell
//! (`long_list_of_cells_is_dropped_on_a_small_stack`).

#[cfg(not(target_pointer_width = "64"))]
compile_error!("corebeat-stm stores 64 bits in a pointer and requires a 64-bit processor");

mod cell;
mod clock;
mod collection;
pub mod contention;
mod counter;
mod descriptor;
mod fault;
mod global;
#[cfg(all(test, not(loom)))]
mod history;
mod lock;
mod log;
#[cfg(all(test, loom))]
mod model;
mod pause;
mod place;
mod reads;
mod report;
mod retired;
mod slot;
pub mod trace;
mod transaction;
mod value;
mod waiter;
#[cfg(not(loom))]
pub mod word;

pub use cell::TCell;
pub use collection::{TCounter, TMap, TQueue, TSet};
pub use counter::{Aborts, Cause, Counters, counters};
pub use descriptor::Abort;
#[cfg(not(loom))]
pub use transaction::{TimedOut, atomically_timeout};
pub use transaction::{Tx, atomically, reclaim, snapshot};
pub use value::{Value, Word};

/// The Rust code of the book is compiled, and most of it run, as documentation tests.
#[cfg(doctest)]
#[doc(hidden)]
pub mod book {
    #[doc = include_str!("../../../../docs/stm.md")]
    pub struct Stm;
}
