//! A scheduler in the Linux kernel (sched_ext), which carries out actions exactly: coscheduled sets
//! with turns, weights and quotas of programs, and one priority for all threads of a program. The
//! crate also has a table in which the kernel counts what threads do, with the scheduler or without
//! it.
//!
//! Place in the loop: act; uses base.
//!
//! # Example
//!
//! ```
//! use corebeat_kernel::KernelScheduler;
//! use corebeat_machine::Scheduler;
//!
//! match KernelScheduler::load(false) {
//!     Ok(scheduler) => println!("loaded; its threads have the policy {:?}", scheduler.policy()),
//!     Err(reason) => println!("not loaded: {reason}"),
//! }
//! // The drop has unloaded the scheduler.
//! ```
//!
//! # Model
//!
//! ```text
//!   user space                                   kernel (bpf/corebeat.bpf.c, bpf/decision.h)
//!   admit, SetWeight, SetQuota, SetClass  -----> group of a program: virtual time, weight, quota
//!   Coscheduler, in the thread of turns   -----> owner of each CPU
//!   turns, runnable threads               <----- accounts
//!
//!   CPU with owner A     queues of groups      next thread
//!        |               A: a1 a2              a1: a thread of the owner
//!        +-- dispatch -- B: b1                 b1 if no thread of A waits (a fragment is filled)
//!                        C: c1 (over quota)    never c1
//! ```
//!
//! The kernel part is mechanism, and policies stay in user space. It has one queue for each
//! program. A CPU takes its next thread from the group that owns the CPU, else from the group with
//! the least virtual time. Virtual time is CPU time divided by the weight of the group, so two
//! programs that compete get CPU time in the ratio of their weights, whatever their numbers of
//! threads are (Sironi et al., *Metronome: Operating System Level Performance Management via
//! Self-adaptive Computing*, DAC 2012, section 5.1). A group without a weight has that of its
//! runnable threads, by their nice values: then programs compete as with the default scheduler.
//! Neither sleep, nor a share that a program or a thread cannot use, gives credit for later: the
//! virtual time of what runs is at most half a second behind that of what waits.
//!
//! A thread of the owner that wakes up interrupts any other thread on a CPU of its set, so no CPU
//! of a set runs another task while a task of the set waits (Schönherr, Lutz, Richling,
//! *Non-intrusive Coscheduling for General Purpose Operating Systems*, MSEPT 2012, section 3). A
//! [`Coscheduler`](corebeat_machine::Coscheduler) plans the owners: the same code as in the
//! simulator. Wake-ups never preempt a thread of the same program, and in class batch no thread
//! (Pusukuri, *Runtime Support for Maximizing Performance on Multicore Systems*, 2012, chapter 5).
//! The slice of a thread is that of `sched_setattr(2)`, which the Linux machine sets.
//!
//! The scheduler schedules only threads of the policy `SCHED_EXT`. The machine gives the policy to
//! the threads of admitted programs, with an entry in its journal. On request it schedules all
//! threads of the host except real-time ones, and no thread gets another policy. Those that belong
//! to no admitted program are in group 0:
//!
//! - Group 0 has the weight of its runnable threads. It competes with the owner of a CPU by virtual
//!   time: neither of them has precedence.
//! - Its threads have the order of their virtual times, which nice values scale, and preempt each
//!   other as programs do. A thread of the policy batch or idle preempts no other one, one of the
//!   policy idle has a hundredth of the weight of nice 0, and each thread of group 0 that wakes up
//!   preempts it.
//! - A thread that may run on one CPU only, such as those of the kernel for a CPU, has a queue of
//!   this CPU. If it has waited there for 10 ms (at nice 0), it runs next, at most one in 10 ms.
//!   The kernel itself runs threads that it is not allowed to move, and those that end, first
//!   (migration disabled; since Linux 6.14).
//! - Threads of a released program return to group 0 when they wake up or wait.
//!
//! [`KernelTable`] is independent of the scheduler (`bpf/table.bpf.c`). The kernel counts the time
//! of threads on CPUs and in run queues, their switches and their moves in any case. One call
//! copies these numbers of all added threads to rows, which this process maps. Programs in the
//! functions for futex waits add the blocked time by its kind, where the kernel permits them:
//!
//! ```text
//!   user space                                   kernel
//!   add a thread                          -----> rows: its number
//!   ThreadTable::refresh, one call        -----> copies the numbers of all threads to the rows
//!   ThreadRow::read                       <----- rows
//!                                                futex_wait of an added thread: begin and end
//!                                                end of an added thread: its last numbers
//! ```
//!
//! # Invariants
//!
//! 1. No CPU is idle while a thread that may run there waits, except for a quota
//!    (`no_cpu_idles_while_a_thread_that_may_run_there_waits`).
//! 2. While a thread of the owner of a CPU waits that may run there, the CPU runs no thread of
//!    another program (`no_cpu_of_a_set_runs_another_group_while_a_thread_of_the_set_waits`).
//!    Threads of no program get their share there (`threads_of_no_program_compete_with_owners`).
//! 3. No thread waits for much longer than 5 s (`no_thread_starves`,
//!    `a_thread_starves_behind_no_first_one`,
//!    `a_thread_leaves_a_cpu_that_another_scheduler_takes`). A thread of no program that may run on
//!    one CPU only waits for 10 ms and two slices if it is the only one there
//!    (`a_thread_for_one_cpu_gets_it_soon`).
//! 4. Competing groups get CPU time in the ratio of their weights
//!    (`groups_get_cpu_time_by_their_weights`), whatever they did before
//!    (`old_threads_do_not_wait_for_new_ones`, `a_share_that_cannot_be_used_is_not_saved_up`,
//!    `a_group_with_a_cpu_for_itself_takes_nothing_from_one_that_sleeps`).
//!    Goals of programs that can be met together are met by weights, and maximum rates leave the
//!    rest to others (`goals_that_can_be_met_together_are_met`,
//!    `maximum_is_kept_and_other_programs_use_the_rest`).
//! 5. Each planted fault in the use of the decisions violates an invariant
//!    (`planted_faults_are_detected`).
//! 6. The end of this process, by `kill -9` as well, unloads the scheduler, and no thread keeps a
//!    change that `corebeat restore` does not undo (`kernel_scheduler_ends_with_its_process`).
//! 7. The times of a counted thread add up to at most the time that passed
//!    (`times_of_a_thread_add_up_to_at_most_the_time`), and its switches and CPU time are those of
//!    the kernel (`switches_are_those_of_the_kernel`).
//! 8. Only added threads are counted, and a full table refuses further ones
//!    (`full_table_refuses_threads_until_one_is_dropped`). The row of a thread that has ended has
//!    its last numbers (`counts_end_with_the_thread`). A thread that gets the number of the first
//!    thread by `execve` ends (`thread_that_becomes_the_first_one_by_execve_ends`).
//!
//! Orderings of the table (`bpf/table.bpf.c` has the writing side):
//!
//! | in `Rows::read` | ordering | pairs with, in order on x86 |
//! | --- | --- | --- |
//! | number of changes before the copy | Acquire | stores of the kernel after its first increment |
//! | fence after the copy | Acquire | stores of the kernel before its second increment |
//!
//! # Failure
//!
//! [`Error`] includes what the user can do. The kernel removes the scheduler if a thread waits for
//! 30 s, and returns all threads to the default scheduler;
//! [`failure`](corebeat_machine::Scheduler::failure) reports this, and later actions are refused.
//!
//! # Limits
//!
//! - Threads of other programs have precedence, unless all threads are scheduled: the kernel runs a
//!   thread of `SCHED_EXT` only on a CPU where no thread of the default scheduler waits, except for
//!   a small reserve in new kernels. A thread that loses its CPU runs on another one that is free.
//! - If all threads are scheduled, weights and quotas of control groups have no effect: the kernel
//!   applies them to threads of the default scheduler.
//! - At most 63 programs and 512 CPUs. The table has 16,384 threads.
//! - A quota is exceeded by at most a slice of 0.5 ms on each CPU, which counts in the next period.
//! - Turns end at most a reading (a fifth of a turn, at most 20 ms) after the last thread of a set
//!   has ended; until then other programs fill the CPUs of the set.
#![cfg_attr(not(test), deny(unsafe_code))]

#[cfg(not(feature = "bpf"))]
mod absent;
mod availability;
mod error;
#[cfg(feature = "bpf")]
mod group;
#[cfg(feature = "bpf")]
mod keeper;
#[cfg(feature = "bpf")]
mod loaded;
#[cfg(feature = "bpf")]
mod object;
#[cfg(feature = "bpf")]
mod scheduler;
#[cfg(any(feature = "bpf", test))]
mod state;
#[cfg(feature = "bpf")]
mod table;
#[cfg(any(feature = "bpf", test))]
mod turn;
#[cfg(test)]
mod twin;

#[cfg(not(feature = "bpf"))]
pub use absent::{KernelScheduler, KernelTable};
pub use availability::{check, check_table, loaded};
pub use error::Error;
#[cfg(feature = "bpf")]
pub use group::GroupState;
#[cfg(feature = "bpf")]
pub use loaded::Groups;
#[cfg(feature = "bpf")]
pub use scheduler::KernelScheduler;
#[cfg(feature = "bpf")]
pub use table::KernelTable;
