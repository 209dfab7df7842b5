//! The Linux host as a [`Machine`](corebeat_machine::Machine): sensors, actuators, and the journal
//! that undoes all changes.
//!
//! Place in the loop: act; uses base.
//!
//! # Example
//!
//! ```
//! use corebeat_linux::{LinuxMachine, Options};
//! use corebeat_machine::Machine;
//!
//! let mut host = LinuxMachine::new(Options::default())?;
//! let id = host.watch(std::process::id() as i32)?;
//! host.sample(); // about ten times a second
//! let snapshot = host.observe()?; // about once a second
//! let program = snapshot.program(id).unwrap();
//! println!("{}: {:?} of the time on a CPU", program.name, program.mean(|s| s.running()));
//! # Ok::<(), corebeat_linux::Error>(())
//! ```
//!
//! # Model
//!
//! ```text
//!   program = processes = threads      file of a thread, cost, frequency   shares and counters
//!   watch(pid) and all descendants     schedstat  1.0 µs  always           running, wait, blocked
//!      |                               stat       3.6 µs  about 32 that    user : system, last CPU
//!      | observe(), once a second      sched      6.3 µs  ran, in turn     switches, migrations
//!      | sample(), ten times a second  syscall,   2.0 µs  16 that ran, in  lock : park : sleep
//!      v                               stat       3.6 µs  turn, a sample   : stopped
//!   Snapshot                           instruction pointers; counters      spin; misses, and so on
//! ```
//!
//! [`LinuxMachine`] fills snapshots and carries out actions with its [`Actuator`], whose journal
//! undoes them however Corebeat ends ([`restore_all`]). [`Launch`] holds a program before its first
//! instruction, so that no event is missed. [`TeamChannel`] sizes the OpenMP teams of a program
//! that starts with the channel's environment. [`answers`] lists the variables by which runtimes
//! start as many threads as can run. [`facts`] lists the features of this host.
//!
//! The kernel accounts run time and run delay in nanoseconds for all threads of the same user,
//! without privileges. The rest of a span is blocked time. The shares of lock and park in blocked
//! time are sampled: a sample attributes the blocked time since the sample before to the call in
//! which the thread sleeps; the arguments of a futex call show whether it waits for a lock. The
//! weight of samples halves with each later span. Time for which a thread was stopped by a signal
//! or a debugger is in no span. A thread that no sample found asleep gets the shares of the others
//! of its program, unless the kernel hides the reasons of sleep: in that case, lock, park and sleep
//! are unknown. If only the arguments are hidden, `wchan` replaces `syscall`: lock and park are
//! unknown, and sleep is known. Below one percentage point, blocked time counts as sleep.
//!
//! A thread that slept through the last span costs one reading in the next span, and samples of it
//! detect only whether it runs again. If more than 32 threads ran, run time and wait of all threads
//! are still read, but about 32 threads get a full reading. The other threads keep the user :
//! system ratio and the switches per dispatch of their last full reading. Totals correct wrong
//! estimates later. New threads and processes are found by the numbers that the kernel has assigned
//! since the last search, or by a walk over the known ones, whichever is less work.
//!
//! A sample of a spinning thread counts at its place: the mapped file and the offset in the file.
//! The times of the places ([`LinuxMachine::spin_times`]) add up to the spin time of the threads,
//! and the symbol tables of the files name the functions ([`LinuxMachine::spin_functions`]). A file
//! is opened when a process first spins in it, and read at most once a second, after a sample.
//!
//! # Invariants
//!
//! 1. Known shares lie between 0 and 1, and all six add up to 1
//!    (`shares_that_are_known_lie_between_0_and_1_and_add_up`).
//! 2. A thread or process that ends between two readings is no error
//!    (`thread_that_has_ended_is_none_or_ended`, `machine_program_that_has_ended_is_no_error`).
//! 3. Another thread with the same number is never mistaken for a watched thread: reads of open
//!    descriptors fail after the end of their thread, start times are compared, and pidfds identify
//!    processes (`is_same_for_another_start_is_false`). A thread whose identity cannot be read is
//!    not changed, and its journal is kept (`entry_of_a_hidden_thread_is_reported_and_kept`). Names
//!    of threads may be any bytes (the tests of `restore` use such names).
//! 4. No text in `/proc` or `/sys` causes a panic (`thread_parsers_never_panic`,
//!    `process_parsers_never_panic`, `host_parsers_never_panic`, `facts_parsers_never_panic`).
//! 5. Every change is in the journal before it is made; see [`Actuator`]. Only signals and nice
//!    values that the user requests ([`send_signal`], [`renice_process`]) are not. Each line of a
//!    journal is verified on its own
//!    (`journal_with_a_damaged_line_is_used_without_the_line_and_kept`).
//!    [`restorable`] and [`journals`] list the changes that [`restore_all`] would undo: the tests
//!    of `restore` compare the lists before each restoration.
//! 6. A program that Corebeat starts gets the limit of open files that was in effect before
//!    Corebeat raised its own limit (`descriptors_max_keeps_the_limit_at_start`).
//! 7. A process that another process stopped, before or during the run, stays stopped; a process
//!    that Corebeat stopped is continued
//!    (`without_groups_a_program_is_stopped_with_all_its_descendants_and_continued`,
//!    `restore_after_kills_at_any_moment_leaves_no_process_stopped`).
//! 8. Actions have the semantics of the conformance suite (`linux_conforms`).
//! 9. A function has its own name or none, also in a stripped file
//!    (`local_function_of_a_stripped_file_has_no_name`), and after another file took the place of
//!    its file (`replaced_file_never_gives_the_name_of_its_successor`). Damaged files cause neither
//!    panics nor large reads (`damaged_files_have_names_or_none`,
//!    `tables_of_a_damaged_file_are_read_up_to_a_bound`).
//!
//! # Failure
//!
//! [`Error`] includes what the user can do. Values that this host or the permissions hide are
//! `None` in a snapshot, never 0 and never an error: migrations without `/proc/PID/sched`, bytes of
//! processes of other users, counters in a virtual machine.
//!
//! # Limits
//!
//! - A thread that starts and ends between two observations (one second) is not detected. For a
//!   thread that ends, the snapshot contains the values of its last sample. A process whose parent
//!   ends before the process is found is not observed, unless [`Launch`] starts the program with
//!   orphans kept; a process that was found stays
//!   (`machine_keeps_a_known_process_whose_parent_ends`). CPU time and bytes of processes that were
//!   not found count when their parent waits for them (`machine_counts_children_once`); if no
//!   process of the program waits for them, the CPU time counts as load of other programs.
//! - Up to a scheduler tick of run time (1 to 10 ms) is accounted late while a thread runs, and a
//!   wait is accounted when it ends.
//! - The kernel splits user and system time by ticks; a thread that has run for less than one tick
//!   counts as user.
//! - A span shorter than a few ticks contains little information.

mod actuator;
mod allowance;
mod answer;
mod cgroup;
mod counter;
mod error;
mod exact;
mod facts;
mod file;
mod host;
mod journal;
mod launch;
mod listing;
mod machine;
mod memory;
mod perf;
mod process;
mod program;
mod request;
mod slice;
mod spin;
mod standard_error;
mod team;
mod thread;
mod user;

pub use actuator::{Actuator, JournalSummary, RestoredJournals, journals, restorable, restore_all};
pub use allowance::{Allowance, throttled_s};
pub use answer::{Answer, answers};
pub use corebeat_topology::topology;
pub use error::Error;
pub use facts::{Fact, Offer, facts, system_name};
pub use journal::state_dir;
pub use launch::{Launch, Signals, Started, Usage, end_by, ending_signals, exit_as, is_ignored};
pub use listing::{Listed, process_numbers, processes, programs_named};
pub use machine::{LOCKS_SAMPLED, LinuxMachine, Options};
pub use memory::MemoryPolicy;
pub use process::{identify, is_kernel_thread, may_change};
pub use program::Remaining;
pub use request::{process_id, renice_process, renice_thread, send_signal};
pub use slice::{ShortSlice, waited_s};
pub use spin::{Function, SpinFunction, SpinTimes};
pub use standard_error::write_error_line;
pub use team::TeamChannel;
pub use user::{user_id, user_name};
