//! Many tasks on few workers, talking over bounded streams: the light-weight parallel execution layer.
//!
//! Place in the loop: run; stands on base, and on `corebeat-probe`, which it tells whose calls probes saw.
//!
//! # Example
//!
//! A network of three tasks: one makes numbers, one squares them, one adds them up.
//!
//! ```
//! use corebeat_lpel::{Runtime, spawn, stream};
//!
//! let runtime = Runtime::new()?; // one worker a CPU
//! let sum = runtime.run(|| {
//!     let (mut numbers, to_square) = stream(16); // room for 16 items
//!     let (mut squares, to_add) = stream(16);
//!     spawn(move || (1..=10).try_for_each(|n| numbers.write(n))); // waits where there is no room
//!     spawn(move || to_square.into_iter().try_for_each(|n| squares.write(n * n)));
//!     to_add.sum::<u64>() // until the writer is gone
//! })?;
//! assert_eq!(sum, 385);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A task that only waits for its next item needs no stack while it does: as an async task it takes a tenth of the memory.
//! Both forms use the same streams, in one network.
//!
//! ```
//! # use corebeat_lpel::{Runtime, spawn_async, stream};
//! # let runtime = Runtime::new()?;
//! # let doubled = runtime.run(|| {
//! let (mut numbers, mut to_double) = stream::<u64>(16);
//! let (mut doubles, last) = stream(16);
//! spawn_async(async move {
//!     while let Some(n) = to_double.read_async().await { // holds no stack here
//!         doubles.write(2 * n).unwrap(); // blocks like any other task; keeps a borrowed stack meanwhile
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
//! After Prokesch, *A Light-Weight Parallel Execution Layer for Shared-Memory Stream Processing*, 2011, chapters 4 and 5.
//!
//! ```text
//!    worker 0, on CPU 0                         worker 1, on CPU 1
//!   +--------------------------------+         +--------------------------------+
//!   | ready  (T1) (T4) (T2)          |  mail   | ready  (T5)                    |
//!   | runs   (T3) ==================[ stream ]==================> (T6) blocked  |
//!   +--------------------------------+         +--------------------------------+
//! ```
//!
//! - A **task** ([`spawn`], [`spawn_async`], [`Task`] for parameters) runs until it waits, yields or ends; nobody interrupts it. Its
//!   end can be waited for ([`JoinHandle`]). It has a stack of [`STACK_SIZE`] bytes, of which only touched pages exist.
//! - A **stream** ([`stream`]) has one [`Writer`] and one [`Reader`]. Who cannot go on, blocks: the task, not the worker. An
//!   end that is dropped closes the stream. [`StreamSet`] waits for any of many. A [`growing_stream`] gets more room where
//!   tasks would else wait for each other for ever.
//! - A **worker** is a thread that runs its ready tasks in the order of its [`Scheduler`](scheduler::Scheduler), and sleeps when there are none. A
//!   [`Placement`](placement::Placement) says which worker a new task goes to. A task that has not started may be taken by an idle worker; one
//!   that has stays, because compiled code may keep addresses of thread-local data.
//! - A **wrapper** ([`Task::wrapper`]) is a task with a thread of its own, for code that blocks the thread. Threads that are
//!   no tasks may use streams as well, and wait as threads. But an end that nobody has used yet is taken to be with a task: in a
//!   network that waits for its first item from such a thread, all seem to wait for each other. Let a wrapper feed it. (Tasks of
//!   two runtimes may feed each other: once those of one have spawned some of the other, neither takes waiting for a deadlock.)
//! - [`Runtime::run`] ends when no task is left. If those that are left wait for each other, it says so: [`Deadlock`] lists who waits
//!   for whom. [`Runtime::dump`] does that at any time.
//! - A **monitor** ([`monitor`]) hears of every dispatch, what it did on streams, and of waits. [`Counters`] are always on.
//! - [`Builder::deterministic`] runs a whole network on one thread, in an order drawn from a seed, in virtual time: a test
//!   that fails fails again.
//!
//! # Invariants
//!
//! 1. Who waits has left one token, and whoever takes it out wakes it, once (`waiter`; models in `model`).
//! 2. No wake-up is lost, and no worker sleeps while there is work for it (`stream`, `set`, `worker`; models in `model`).
//! 3. A started task runs on one thread for ever (`Header::worker` is written once).
//! 4. A slot is the writer's when empty and the reader's when full (`ring`).
//! 5. Ends are used by one task at a time (types: not `Sync`, not `Clone`; `compile_fail` at [`stream`]).
//! 6. A dump stops nobody, waits for no worker, and reads no freed memory (`limbo`; model in `model`).
//! 7. What a task leaves on a panic, an exit, or a deadlock is unwound: ends close, waiters wake (`tests/`).
//!
//! # Memory ordering
//!
//! | write | ordering | pairs with | why |
//! | --- | --- | --- | --- |
//! | slot full, slot empty (`ring`) | Release | Acquire in `is_full` | the item goes with the flag |
//! | token in a stream's word, then look at the slot (`stream`) | Release, then `light` and later `heavy` | item written, `light`, look at the word | one of the two sees the other |
//! | end closed (`stream`) | Release or AcqRel, then a full fence | as above | the same |
//! | token taken (`waiter`) | AcqRel exchange | AcqRel exchange of the others | one wins, and sees what the owner did |
//! | stream announced, then set's token taken (`set`) | AcqRel, AcqRel | token left by exchange, then look at the list | one of the two sees the other |
//! | mail sent, task to steal (`worker`) | AcqRel, then `light`, look who sleeps | says that it sleeps, `heavy`, look | one of the two sees the other |
//! | task ended (`task`) | AcqRel exchange of the join word | Acquire, or the exchange that leaves a token | the result goes with it |
//! | task in or out of a table (`table`, `limbo`) | Release, then `light`, look at the count | count, `heavy`, Acquire | freed only when nobody looks |
//!
//! `light` and `heavy` are those of [`corebeat_sync::asymmetric`].
//!
//! # Failure
//!
//! Errors that a caller can meet: [`Error`] when a runtime is built or a task spawned, [`Failure`] for a task without a
//! result, [`Closed`] for a write to nobody, [`monitor::LogError`] for a log.
//!
//! Panics: a task that waits where it must not ([`corebeat_sync::wait`]); a stream of no capacity, or of more than there is memory for; [`Runtime::run`] inside a task; [`spawn`] and [`exit`]
//! outside of one; asking a [`JoinHandle`] for its result again. A panic in a task ends that task alone: its ends close, and
//! who joins it is told. To those who read from it this looks like the end of its stream: join your stages, where it matters
//! whether they have done all. What others see of data that it shared is as with threads: locks are poisoned.
//!
//! The program ends, with a line that says why, when a task runs over its stack, and when a scheduler or listener panics. Where
//! a task crashes, as code in C does (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT), a line names the task, and what it was [`doing`];
//! the program then dies of the same signal.
//!
//! A task that is unwinding never waits: what would block returns as if the stream were closed. Waiting inside `catch_unwind`
//! is allowed, but a task that is to end early is unwound through it, and must let that pass ([`ends_task`] tells); and there is no way through
//! frames of C. With `panic = "abort"` all of this ends the program instead.
//!
//! # Limits
//!
//! Linux on x86-64 and other processors of 64 bits that corosensei knows, with pages of 4 KiB; guards inside mappings, and so more than some 32,000 tasks with stacks
//! at a time, need Linux 6.13. At most [`WORKERS_MAX`] workers. A task that computes for long holds up the started tasks of its worker:
//! [`yield_now`] lets them in. There is no I/O here: use a wrapper.

#[cfg(not(target_pointer_width = "64"))]
compile_error!("corebeat-lpel counts in 64 bits, and needs a processor that does");

mod block;
mod context;
mod counter;
mod crash;
mod current;
mod deadlock;
mod deque;
mod doubt;
mod dump;
mod error;
mod inbox;
mod limbo;
mod local;
#[cfg(all(test, loom))]
mod model;
pub mod monitor;
pub mod placement;
mod random;
mod ring;
mod runtime;
pub mod scheduler;
mod set;
mod sleep;
mod stack;
mod stream;
mod table;
mod task;
mod text;
mod waiter;
mod worker;

pub use counter::Counters;
pub use crash::doing;
pub use deadlock::Deadlock;
pub use dump::{Dump, OtherEnd, StreamDump, TaskDump, WaitsFor};
pub use error::{
    Closed, Error, Failure, Panic, STACK_MAX, STACK_MIN, TryReadError, TryWriteError, WORKERS_MAX,
};
pub use local::Local;
pub use runtime::{
    Builder, Runtime, STACK_SIZE, Task, dump, ends_task, exit, sleep, spawn, spawn_async, yield_now,
};
pub use set::{Event, Key, ReadAnyAsync, StreamSet};
pub use stream::{ReadAsync, Reader, Writer, growing_stream, stream};
pub use task::{JoinHandle, Priority, Status};
