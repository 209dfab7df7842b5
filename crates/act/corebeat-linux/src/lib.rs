//! This host as a [`Machine`](corebeat_machine::Machine): sensors, hands, and the journal that puts everything back.
//!
//! Place in the loop: act; stands on base.
//!
//! # Example
//!
//! ```
//! use corebeat_linux::{LinuxMachine, Options};
//! use corebeat_machine::Machine;
//!
//! let mut host = LinuxMachine::new(Options::default())?;
//! let me = host.watch(std::process::id() as i32)?;
//! host.glance(); // about ten times a second
//! let seen = host.observe()?; // about once a second
//! let program = seen.programs.iter().find(|p| p.id == me).unwrap();
//! println!("{}: {:?} of the time on a CPU", program.name, program.mean(|s| s.running()));
//! # Ok::<(), corebeat_linux::Error>(())
//! ```
//!
//! # Model
//!
//! ```text
//!   program = processes = threads      what is read of a thread            becomes
//!   watch(pid) and all descendants     schedstat  1.0 µs  always           running, latency; blocked is the rest
//!      |                               stat       3.6 µs  about 32 that    user : system, last CPU
//!      | observe(), once a second      sched      6.3 µs  ran, in turn     switches, migrations
//!      | glance(), ten times a second  wchan      2.0 µs  16 that ran, in  lock : sleep
//!      v                                                  turn, a glance
//!   Snapshot                           samples of where it runs; counters  spin; cache misses, instructions
//! ```
//!
//! [`LinuxMachine`] fills snapshots and carries out actions with its [`Hands`], whose journal undoes them however
//! Corebeat ends ([`restore_all`]). [`Launch`] holds a program before its first instruction, so that nothing is missed, and
//! [`TeamChannel`] sizes the OpenMP teams of a program that is started with it. [`facts`] says what this host offers.
//!
//! The kernel accounts run time and run delay in nanoseconds for everybody's own threads, without privileges. What they
//! leave of a span is blocked time. Which part of it was spent on locks is sampled: the part of the glances that find a
//! sleeping thread in a futex call. Looks of earlier spans count half as much with each span; a thread that was never
//! found asleep is split as the program's other threads are, unless the kernel does not tell what it sleeps in: then lock
//! and sleep are unknown; below one point of blocked time all of it is sleep.
//!
//! Threads that slept through the last span cost one reading in the next, and no glance. Where more than 32 ran, run time
//! and latency of all are read, and the others' user : system ratio and their switches for each time that they came on a
//! CPU are taken from their last full reading; totals put right what was guessed wrong. New threads and processes are
//! found by the numbers that the kernel has given out since the last search, or by a walk over those that are known,
//! whichever is less work.
//!
//! # Invariants
//!
//! 1. Shares that are known lie between 0 and 1, and all five add up to 1
//!    (`shares_that_are_known_lie_between_0_and_1_and_add_up`).
//! 2. A thread or process that ends between two readings is no error (`thread_that_has_ended_is_none_or_ended`,
//!    `machine_program_that_has_ended_is_no_error`).
//! 3. Another thread with the same number is never taken for the one that was watched: kept descriptors go stale with their
//!    thread, start times are compared, processes are held by pidfd (`is_same_for_another_start_is_false`).
//! 4. No text in `/proc` or `/sys` makes this crate panic (`*_never_panic`).
//! 5. What is done is in the journal before it is done; see [`Hands`].
//! 6. A program that is started gets the limit of open files that Corebeat was started with, although Corebeat raises its
//!    own (`descriptors_max_keeps_the_limit_at_start`).
//! 7. Who was stopped by others than Corebeat before, or while it goes on, stays so; who was stopped by Corebeat is continued
//!    (`without_groups_a_program_is_stopped_with_all_its_descendants_and_continued`,
//!    `restore_after_kills_at_any_moment_leaves_nobody_stopped`).
//!
//! # Failure
//!
//! [`Error`] says what to do. What this host or one's permissions hide is `None` in a snapshot, never 0 and never an
//! error: migrations without `/proc/PID/sched`, bytes of another user's processes, counters in a virtual machine.
//!
//! # Limits
//!
//! - A thread that begins and ends between two observations (one second) is not seen; of one that ends, what the glances
//!   saw is told. A process whose parent ends before it is found is lost, unless it is started by [`Launch`] with orphans
//!   kept; one that was found stays (`machine_keeps_who_leaves_its_parents_once_it_was_seen`). CPU time of processes that
//!   nobody found counts as others' in `HostSample`.
//! - Up to a scheduler tick of run time (1 to 10 ms) is booked late while a thread runs, and a wait is booked when it ends.
//! - User and system time are split by the kernel's ticks; a thread that has run for less than one counts as user.
//! - A span shorter than a few ticks says little.

mod cgroup;
mod counter;
mod error;
mod exact;
mod facts;
mod file;
mod hand;
mod host;
mod journal;
mod launch;
mod machine;
mod memory;
mod process;
mod program;
mod spin;
mod team;
mod thread;
mod topology;

pub use error::Error;
pub use facts::{Fact, Offer, facts};
pub use hand::{Hands, Restored, restore_all};
pub use journal::state_dir;
pub use launch::{Launch, Signals, Started, exit_as};
pub use machine::{LinuxMachine, Options};
pub use memory::MemoryPolicy;
pub use team::TeamChannel;
pub use topology::topology;
