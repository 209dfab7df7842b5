//! Light-weight parallel execution layer: runs many tasks on few worker threads and connects them
//! with bounded streams.
//!
//! Place in the loop: parallel; uses base, `corebeat-trace` (for the log of the monitor) and
//! `corebeat-probe` (which receives the task of each recorded call).
//!
//! # Example
//!
//! A network of three tasks: the first produces numbers, the second squares them, the third adds
//! them up.
//!
//! ```
//! use corebeat_lpel::{Runtime, spawn, stream};
//!
//! let runtime = Runtime::new()?; // one worker per CPU
//! let sum = runtime.run(|| {
//!     let (mut numbers, to_square) = stream(16); // room for 16 items
//!     let (mut squares, to_add) = stream(16);
//!     spawn(move || (1..=10).try_for_each(|n| numbers.write(n))); // blocks while there is no room
//!     spawn(move || to_square.into_iter().try_for_each(|n| squares.write(n * n)));
//!     to_add.sum::<u64>() // ends when the writer is dropped
//! })?;
//! assert_eq!(sum, 385);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A task that only waits for its next item needs no stack while it waits. As an async task, it
//! uses a tenth of the memory. Both forms use the same streams, and one network may contain both.
//!
//! ```
//! # use corebeat_lpel::{Runtime, spawn_async, stream};
//! # let runtime = Runtime::new()?;
//! # let doubled = runtime.run(|| {
//! let (mut numbers, mut to_double) = stream::<u64>(16);
//! let (mut doubles, last) = stream(16);
//! spawn_async(async move {
//!     while let Some(n) = to_double.read_async().await { // waits without a stack
//!         doubles.write(2 * n).unwrap(); // blocks like any task, and keeps a borrowed stack
//!     }
//! });
//! # corebeat_lpel::spawn(move || (1..=3).for_each(|n| numbers.write(n).unwrap()));
//! # last.collect::<Vec<u64>>()
//! # })?;
//! # assert_eq!(doubled, [2, 4, 6]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Model
//!
//! The model is that of Prokesch, *A Light-Weight Parallel Execution Layer for Shared-Memory Stream
//! Processing*, 2011, chapters 4 and 5.
//!
//! ```text
//!    worker 0, on CPU 0                         worker 1, on CPU 1
//!   +--------------------------------+         +--------------------------------+
//!   | ready  (T1) (T4) (T2)          |  inbox  | ready  (T5)                    |
//!   | runs   (T3) ==================[ stream ]==================> (T6) blocked  |
//!   +--------------------------------+         +--------------------------------+
//! ```
//!
//! - A **task** ([`spawn`], [`spawn_async`], [`Task`] for parameters) runs until it waits, yields
//!   or ends; the runtime does not preempt it. A [`JoinHandle`] waits for its end. A task has a
//!   stack of [`STACK_SIZE`] bytes, of which only touched pages use memory.
//! - A **stream** ([`stream`]) has one [`Writer`] and one [`Reader`]. A task that cannot make
//!   progress blocks; its worker continues with other tasks. Dropping an end closes the stream. A
//!   [`StreamSet`] waits for any of several streams. A [`growing_stream`] grows where a fixed
//!   capacity would cause a deadlock, and an [`unbounded_stream`] grows wherever it is full.
//! - A **worker** is a thread that runs its ready tasks in the order of its
//!   [`Scheduler`](scheduler::Scheduler), and sleeps when it has none. A
//!   [`Placement`](placement::Placement) assigns new tasks to workers. By default, a worker gives
//!   idle workers a share of its new tasks, and an idle worker may steal a task that has not
//!   started. A started task stays on its worker, because compiled code may keep addresses of
//!   thread-local data.
//! - A **blocking task** ([`Task::blocking`]; "wrapper" in the thesis) has a thread of its own, for
//!   code that blocks its thread. A thread that is not a task may use streams as well; a wait
//!   blocks the whole thread. However, the runtime assumes that tasks own unused ends: a network
//!   that waits for its first item from a thread outside is treated as a deadlock. Let a blocking
//!   task feed such a network, or declare the end with [`Writer::outside`]. Tasks of two runtimes
//!   may feed each other: after a task of one runtime has spawned a task of the other, neither
//!   runtime reports deadlocks.
//! - Each wait has a variant with a time limit ([`Reader::read_timeout`] and others, [`timeout()`]
//!   for futures). [`sleep`] and [`sleep_async`] wait for a point in time.
//! - A **scope** ([`Scope`]) is a group of tasks, such as those of one network on a shared runtime.
//!   [`Scope::run`] returns when no task of the scope is left, [`Scope::cancel`] ends all of them,
//!   and [`JoinHandle::abort`] ends one task. A [`Pipeline`] has stages that may fail, and ends at
//!   the first error.
//! - [`Runtime::run`] returns when no task is left. If the remaining tasks wait for each other, it
//!   reports a [`Deadlock`], which lists the tasks and what they wait for. [`Runtime::dump`] lists
//!   them at any time.
//! - An idle worker waits for its next task. A [`Park`] ([`Builder::park`]) replaces this wait, so
//!   that the worker itself detects events, such as readiness of sockets.
//! - A **monitor** ([`monitor`]) receives a record of each dispatch, of the use of streams in it,
//!   and of each sleep of a worker. [`Counters`] are always enabled.
//! - [`Builder::deterministic`] runs a whole network on one thread, in an order drawn from a seed,
//!   in virtual time: a failing test fails again with the same seed.
//!
//! # Invariants
//!
//! 1. A waiting task has left one token. The thread that takes the token out of its word wakes the
//!    task, once (`waiter`; `loom_join_waits_for_the_result`, `loom_stream_of_one_passes_all`,
//!    `loom_token_of_a_moved_side_is_taken_once`).
//! 2. No wake-up is lost, and no worker sleeps while there is work for it (`stream`, `set`,
//!    `sleep`, `suspend`, `worker`; `loom_sleep_misses_no_news`,
//!    `loom_set_wakes_its_owner_each_time`, `loom_suspended_task_finds_its_event`,
//!    `loom_workers_pass_items`).
//! 3. A started task never changes its thread (`Header::worker` is written once;
//!    `task_stays_on_the_requested_worker`).
//! 4. An empty slot belongs to the writer, and a full slot to the reader (`ring`;
//!    `loom_stream_of_two_passes_all`, with planted faults in `loom_stream_faults_are_detected`).
//! 5. Each end has one user at a time (types: not `Sync`, not `Clone`; `compile_fail` at
//!    [`stream`]).
//! 6. A dump stops no task, waits for no worker, and reads no freed memory (`retired`;
//!    `loom_retired_memory_outlives_inspections`).
//! 7. A panic, an exit, a deadlock or a cancellation unwinds the task: its ends close, and waiting
//!    tasks wake up (`panic_and_exit_drop_all_values_of_the_task`,
//!    `deadlock_unwinds_waiting_tasks`, `aborted_task_is_unwound_where_it_waits`).
//! 8. No call waits in a child of fork for a thread of its parent
//!    (`inherited_runtime_fails_in_the_child_and_works_in_the_parent`,
//!    `inherited_stream_does_not_wait_in_the_child`).
//!
//! # Memory ordering
//!
//! | write | ordering | pairs with | reason |
//! | --- | --- | --- | --- |
//! | slot full, slot empty (`ring`) | Release | Acquire in `is_full` | publishes the item |
//! | token left in a word (`stream`) | Release, `light`, `heavy` | item, `light`, word | (1) |
//! | end closed (`stream`) | Release or AcqRel, full fence | as above | (1) |
//! | side of a stream ended (`stream`) | AcqRel exchange | the same exchange | (4) |
//! | token taken (`waiter`) | AcqRel exchange, or Acquire load | exchanges of other threads | (2) |
//! | token taken alone (`stream`) | Relaxed, after an Acquire fence | token left | (5) |
//! | stream announced, token taken (`set`) | AcqRel, AcqRel | token left, list read | (1) |
//! | task sent or posted (`worker`) | AcqRel, `light` | sleep state, `heavy`, work read | (1) |
//! | event happened (`suspend`) | AcqRel exchange | exchanges, Acquire | (2) |
//! | task ended, handle dropped (`task`) | AcqRel, Release exchange | Acquire, or exchange | (4) |
//! | task in or out of a table (`table`, `retired`) | Release, `light` | count, `heavy` | (3) |
//!
//! 1. Each side writes, executes a fence, and reads what the other side wrote. At least one of the
//!    two sides reads the write of the other: a blocking side finds the item, or the writer of the
//!    item finds the token.
//! 2. One thread takes the token, and observes the earlier writes of the token's owner.
//! 3. Memory is freed only while the count of inspections is 0.
//! 4. The end of a task publishes its result. The later of two events, the end of the task and the
//!    drop of its handle, drops a result that was not taken, and frees the task unless there are
//!    wakers. The side of a stream that ends later drops the items.
//! 5. Both sides of the stream are on one worker, and the side that waits never was on another one.
//!
//! `light` and `heavy` are the fences of [`corebeat_sync::asymmetric`].
//!
//! # Failure
//!
//! Functions return [`Error`] if a runtime cannot be built or a task cannot be spawned, [`Failure`]
//! for a task without a result, [`Closed`] for a write without a reader, and [`monitor::LogError`]
//! for a log.
//!
//! This crate panics if a task waits where waiting is forbidden ([`corebeat_sync::wait`]); if a
//! stream has capacity 0, or a capacity that is too large for memory; if a parallel stage has more
//! than [`PARALLEL_MAX`] tasks; if [`Runtime::run`] is called inside a task, or [`spawn`] or
//! [`exit`] outside a task; and if the result of a [`JoinHandle`] is read a second time. A panic in
//! a task ends that task only: its ends close, and its joiner receives the panic. The readers of
//! its streams cannot distinguish this from a normal end. If the result must be complete, join all
//! stages, or use a [`Pipeline`]. Locks that a panicking task holds are poisoned, as with threads.
//!
//! The program aborts with a message if a task overflows its stack, or if a scheduler or listener
//! panics. If a task crashes, as C code can (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT), a message
//! names the task and the code that it called ([`doing`]); then the same signal ends the program.
//! If that code calls `exit`, such a message is printed, too, and the exit status is 1.
//!
//! A child of fork has no threads of its parent's runtimes, and must create its own runtimes and
//! streams. Calls of an inherited runtime fail with [`Error::Forked`] or [`Failure::Forked`], or
//! panic where they return no `Result`; an inherited stream panics where it would wait. A drop of
//! an inherited runtime leaks it. A child that a task forks ends with the task.
//!
//! A task that is unwinding never waits: operations that would block return as if the stream were
//! closed. Waiting inside `catch_unwind` is allowed, but a cancelled task is unwound through it,
//! and the code must continue the unwinding ([`ends_task`] recognises it). Frames of C cannot be
//! unwound. With `panic = "abort"`, all these cases abort the program.
//!
//! # Limits
//!
//! This crate supports Linux on x86-64 and on the other 64-bit processors that corosensei supports,
//! with pages of 4 KiB. More than about 32,000 tasks with stacks at a time need Linux 6.13, for
//! guards inside mappings. A runtime has at most [`WORKERS_MAX`] workers. A task that computes for
//! a long time delays the started tasks of its worker; [`yield_now`] lets them run. A system
//! call that waits blocks the worker: use `corebeat-reactor` for sockets, and a blocking task for
//! files. A child of fork inherits the locks of this crate: fork while no other thread creates or
//! drops a runtime. `vfork`, and `clone` called without the C library, are not detected.

#[cfg(not(target_pointer_width = "64"))]
compile_error!("corebeat-lpel needs a 64-bit processor, because it counts in 64 bits");

mod activity;
mod affinity;
mod block;
mod blocking;
mod builder;
mod cancel;
mod clock;
mod context;
mod counter;
mod crash;
mod current;
mod deadlock;
mod deque;
mod detector;
mod deterministic;
mod dump;
mod error;
mod inbox;
mod local;
#[cfg(all(test, loom))]
mod model;
pub mod monitor;
mod park;
mod pipeline;
pub mod placement;
mod recheck;
mod retired;
mod ring;
mod runtime;
pub mod scheduler;
mod scope;
mod set;
mod sleep;
mod spawn;
mod stack;
mod stream;
mod suspend;
mod table;
mod task;
mod time;
mod waiter;
mod worker;

pub use builder::{Builder, STACK_SIZE};
pub use counter::Counters;
pub use crash::{doing, name_process};
pub use deadlock::Deadlock;
pub use dump::{Dump, OtherEnd, StreamDump, TaskDump, WaitsFor};
pub use error::{
    Closed, Error, Failure, Panic, STACK_MAX, STACK_MIN, TryReadError, TryWriteError, WORKERS_MAX,
};
pub use local::Local;
pub use park::Park;
pub use pipeline::{PARALLEL_MAX, Pipeline, PipelineError, map_ordered};
pub use runtime::{Runtime, dump, ends_task, exit, should_move, sleep, yield_now};
pub use scope::{Scope, scope};
pub use set::{Event, Key, ReadAnyAsync, StreamSet};
pub use spawn::{Task, spawn, spawn_async};
pub use stream::{ReadAsync, Reader, Writer, growing_stream, stream, unbounded_stream};
pub use task::{JoinHandle, Priority, Status};
pub use time::{Elapsed, SleepAsync, Timeout, sleep_async, timeout};

/// The Rust code of the book is compiled, and most of it run, as documentation tests.
#[cfg(doctest)]
#[doc(hidden)]
pub mod book {
    #[doc = include_str!("../../../../README.md")]
    pub struct Readme;
    #[doc = include_str!("../../../../docs/monitor.md")]
    pub struct Monitor;
    #[doc = include_str!("../../../../docs/lpel.md")]
    pub struct Lpel;
}
