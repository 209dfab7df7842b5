//! Futures, joins and parallel loops that have the results of the sequential program: the run-time
//! part of automatic futures.
//!
//! Place in the loop: parallel; uses `corebeat-lpel` for threads (or rayon, by a feature),
//! `corebeat-probe` to record calls, and `corebeat-sync`.
//!
//! # Example
//!
//! ```
//! use corebeat_future::{join, map};
//!
//! fn sort(numbers: &mut [u32]) {
//!     if numbers.len() > 1 {
//!         let pivot = partition(numbers);
//!         let (less, rest) = numbers.split_at_mut(pivot);
//!         join(|| sort(less), || sort(&mut rest[1..])); // perhaps at the same time
//!     }
//! }
//! # fn partition(numbers: &mut [u32]) -> usize {
//! #     let (pivot, mut at) = (numbers[0], 0);
//! #     for n in 1..numbers.len() {
//! #         if numbers[n] < pivot { at += 1; numbers.swap(at, n); }
//! #     }
//! #     numbers.swap(0, at);
//! #     at
//! # }
//! let mut numbers = [3, 1, 2];
//! sort(&mut numbers);
//! assert_eq!(map(&numbers, |n| n * n), [1, 4, 9]); // results in order
//! ```
//!
//! # Model
//!
//! The patterns are those of Molitorisz, Schimmel, Otto, *Automatic Parallelization Using
//! AutoFutures*, 2012: asynchronous calls (section 3), and loops and divide and conquer (section
//! 5). `cargo autofuture` rewrites programs to calls of this crate; people may write them as well.
//!
//! ```text
//!   join(a, b)   caller:  push b --- a --- take b back? --yes--> b, in place
//!                                               `------no-----> wait; run descendants of b
//!                helper:        take b --- b ---'
//!
//!   scope        caller:  s.future(f): push f --- code after it --- f.join(): take f back? ...
//!
//!   map(v, f)    caller:  first items, measured --- divide the others like joins
//!
//!   pipeline     caller:  push f of the next items --- take f of the first one back? --- body ...
//! ```
//!
//! - [`join`] runs two closures; the first one stays on the calling thread. [`scope`] creates
//!   [`Future`]s that borrow; [`future`] creates them without borrows. [`map`], [`try_map`],
//!   [`for_each`], [`sum`] and [`reduce`] are loops over a [`Split`]. [`pipeline`] is a loop whose
//!   rest stays on the calling thread, in order.
//! - A **job** is a closure that another thread may run, in the queue of the **strand** (the stack)
//!   that created it. The thread that removes the job from the queue runs it. A job that no thread
//!   has taken when its result is needed runs in place, like a plain call.
//! - A **helper** takes jobs of all strands, the oldest ones first. Helpers are tasks on the
//!   workers of LPEL. As many strands run as the process has CPUs. The first join starts the pool.
//! - A strand that **waits** runs only jobs that descend from the one it waits for. So its stack
//!   stays a path of the sequential program: `strand` has the proof, and the reasons. If there is
//!   none, a task is suspended and a thread blocks, and another helper takes its place.
//! - A **site** is the place of a call in the source ([`sites`]). It measures itself, and becomes a
//!   plain call where it costs more than it gains: `control` has the rule. A site that is switched
//!   off is tried again after 1 s, later after up to 64 s.
//! - [`schedule`] runs a program under a seed, for tests.
//!
//! # Invariants
//!
//! 1. Each closure runs once, on one thread; its result is read after it has ended
//!    (`loom_closure_runs_once`, `loom_two_thieves_claim_different_jobs`, with planted faults in
//!    `loom_faults_are_detected`).
//! 2. No call returns or unwinds while another thread may use what its closures borrow
//!    (`each_future_runs_once_also_without_join`, `futures_lend_their_borrows`,
//!    `cancelled_task_leaves_a_join_after_its_closures`; `compile_fail` at [`scope`]).
//! 3. A strand that waits runs only descendants of the job for which it waits
//!    (`loom_waiting_strand_takes_only_descendants`, `callers_keep_their_locks_while_they_wait`).
//! 4. Results, and the panic that surfaces, are those of the sequential program
//!    (`recursion_has_the_sequential_result`, `loops_keep_the_order`,
//!    `first_panic_in_sequential_order_surfaces_at_a_join`,
//!    `first_panic_in_sequential_order_surfaces_from_a_scope`,
//!    `loops_surface_the_first_failure`, `sums_overflow_as_the_sequential_ones`,
//!    `pipelines_keep_the_order_and_the_first_failure`).
//! 5. A panic waits for nothing before its closure is unwound
//!    (`panic_releases_its_locks_before_earlier_closures_end`,
//!    `panics_in_more_futures_than_workers_end`).
//! 6. A site that does not pay becomes plain calls (`fine_site_is_switched_off`); one that pays
//!    does not (`long_overlaps_stay_parallel`, and the other tests of `control`). No decision is
//!    final (`depth_is_tried_again_beside_one_that_pays`). In a recursion the leaves become calls
//!    without records, also if the system interrupts closures
//!    (`recursion_has_no_slow_leaves_after_an_interruption`,
//!    `calls_inside_a_plain_call_are_deeper_or_small`).
//! 7. A helper has at least as much stack as the caller
//!    (`helpers_have_as_much_stack_as_the_caller`).
//! 8. Equal seeds lead to equal orders (`program_under_a_seed_repeats_its_order`).
//! 9. A child of fork waits for no thread of its parent (`child_of_fork_uses_plain_calls`).
//! 10. The time of a scope is proportional to the number of its futures, and its stack does not
//!     depend on the number (`scope_has_many_futures`).
//! 11. A pipeline takes a bounded number of items before the body needs them; no item is taken
//!     after the body has returned (`pipelines_take_few_items_ahead`).
//!
//! # Memory ordering
//!
//! | write | ordering | pairs with | reason |
//! | --- | --- | --- | --- |
//! | job in or out of a queue (`strand`) | lock of the queue | the same lock | (1) |
//! | length of a queue (`strand`) | Relaxed | | a hint for thieves |
//! | closure ended (`job`) | Release, under the lock of the latch | Acquire in `is_over` | (2) |
//! | word of a site (`site`) | Release at registration | Acquire in `find` | (3) |
//! | site on or off, masks, counts (`site`) | Relaxed | | no other data depends on them |
//! | runs under a seed (`site`) | SeqCst | Relaxed in `set_off` | a late decision does no harm |
//! | strands that run, jobs in queues (`pool`) | SeqCst | SeqCst | (4) |
//! | largest stack (`stack`) | Relaxed | | only the value matters |
//!
//! 1. Orders the owner's writes before the thief's closure.
//! 2. Publishes the result, and that the thief has stopped using the frame of the owner.
//! 3. Publishes the site. The test of a call that is switched off needs no ordering, because it
//!    reads only the word.
//! 4. A push adds a job before it reads the number of running strands; a strand that stops reduces
//!    that number before it reads the number of jobs. So one of the two starts a helper.
//!
//! # Failure
//!
//! Functions of this crate have no errors of their own: if the system has no thread or no memory
//! for a helper, closures run in place. They panic if a closure panics, and [`chunks`] panics if
//! the size is 0.
//!
//! A task of LPEL that is cancelled during a join is unwound after the closures of the join have
//! ended. With `panic = "abort"`, the process ends in the first panic of any closure, which need
//! not be the one that comes first in the sequential program.
//!
//! # Limits
//!
//! The closures must be independent: results are those of the sequential program only if neither
//! closure writes what the other one uses, and if they do not communicate by effects such as
//! output. The compiler excludes data races, and nothing more; `cargo autofuture` checks the rest.
//! A closure must not wait for code that comes after it: at a plain call, that is a deadlock.
//!
//! Closures that run on another thread find that thread's `thread_local!` data and name. Their
//! panics call the panic hook there, at once, and the message contains the name of a worker. So the
//! hook may also run, and print a message, for a closure that the sequential program does not
//! reach; only the panic that comes first surfaces. If the code after a [`future`] without a scope
//! panics, that panic surfaces, although one of the future comes first; and calls in that code
//! count as siblings of the future for granularity.
//!
//! The rule for locks (invariant 3) is one for joins and loops. The code after a future must not
//! hold a lock that the closure needs when it joins the future.
//!
//! A process that forks inside a closure must not leave the closure in the child. A child that
//! joins a future of its parent, or leaves its scope, aborts with a message; one that drops a
//! future without a scope leaves it allocated.
//!
//! If a closure of a task of LPEL is so small that the joins inside it are plain, and it waits for
//! a stream, then joins of other tasks of the worker are plain until it continues. A task that is
//! cancelled during a join blocks its worker until the closures of the join have ended. If a task
//! has a larger stack than a helper, its closures must not use more than the stack of the helper.
//!
//! The feature `rayon` uses rayon's global pool: its threads have the stacks that the program has
//! given them (2 MiB by default), and a helper that waits blocks its thread. A closure that holds a
//! lock must not wait in a call of rayon, which may run another closure that needs the lock.
//! Without the feature `lpel`, calls in tasks of LPEL are plain.
//!
//! The control compares times of closures. It does not detect that two closures slow each other
//! down, unless the caller waits for longer than the closure takes in place.

#[cfg(not(any(feature = "lpel", feature = "rayon")))]
compile_error!("corebeat-future needs one of the features 'lpel' and 'rayon' for its threads");

mod context;
mod control;
mod job;
mod join;
mod map;
#[cfg(all(test, loom))]
mod model;
mod pipeline;
mod pool;
mod retry;
mod schedule;
mod scope;
mod site;
mod split;
mod stack;
mod strand;
mod sum;

pub use join::join;
pub use map::{for_each, map, try_map};
pub use pipeline::{Results, pipeline};
pub use schedule::schedule;
pub use scope::{Future, Scope, future, scope};
pub use site::{SiteReport, sites};
pub use split::{Chunks, ChunksMut, Split, chunks, chunks_mut};
pub use sum::{Integer, reduce, sum};

/// Whether a model omits the step with this name, to show that it detects the fault.
#[cfg(loom)]
fn fault_omits(step: &str) -> bool {
    corebeat_sync::fault::omits(step)
}

#[cfg(not(loom))]
const fn fault_omits(_step: &str) -> bool {
    false
}

/// The Rust code of the book is compiled, and most of it run, as documentation tests.
#[cfg(doctest)]
#[doc(hidden)]
pub mod book {
    #[doc = include_str!("../../../../docs/future.md")]
    pub struct Future;
}
