//! A simulated multicore machine of any size, deterministic for a seed. Policies observe and
//! control the simulated machine in the same way as a Linux host.
//!
//! Place in the loop: act; uses base.
//!
//! # Example
//!
//! ```
//! use corebeat_machine::{Action, Clock, Machine, ProgramId, Target};
//! use corebeat_sim::{Hardware, Program, Scenario, SimMachine, Step, Team, Work};
//!
//! // 32 threads on 24 cores compute for 1 ms and wait at a barrier, 1,000 times.
//! let steps = vec![Work::us(1_000.0).into(), Step::Barrier("all".into())];
//! let steps = vec![Step::Repeat { times: Some(1_000), shared: false, steps }];
//! let programs = vec![Program::new("fluid", vec![Team::new(32, steps)])];
//! let machine = Hardware { packages: 4, cores: 6, ..Hardware::default() };
//! let mut machine = SimMachine::new(&Scenario::new(machine, programs), 1)?;
//! machine.clock().wait_until(1_000_000_000);
//! println!("{:?} of the time at the barrier", machine.observe()?.programs[0].mean(|s| s.park));
//! let target = Target::Program(ProgramId(0));
//! machine.act(&Action::SetSlice { target, slice_us: Some(20_000) })?;
//! machine.run();
//! println!("{:?} ns", machine.outcomes()[0].end_ns);
//! # Ok::<(), corebeat_sim::Error>(())
//! ```
//!
//! # Model
//!
//! ```text
//!   Scenario --> code: flat operations           Machine: observe, act        Clock: wait
//!                   |                                      |                      |
//!                   v                                      v                      v
//!   +------------------------------------ world ------------------------------------+
//!   |  interpreter: operations of       advance(cpu)     kernel: run queues,        |
//!   |  threads, synchronisation    <-------------------  dispatch, preemption,      |
//!   |  objects, thread teams,           wake, kick       balancing, groups,         |
//!   |  claims                      ------------------->  coscheduled sets, memory   |
//!   |                                                                               |
//!   |  event queue, ordered by time: stop a CPU, wake a thread, balance, ...        |
//!   |                                                                               |
//!   |  +------+ +------+ +------+ +------+                                          |
//!   |  | CPU  | | CPU  | | CPU  | | CPU  |   each with a run queue                  |
//!   |  +------+-+------+ +------+-+------+                                          |
//!   |  | shared cache  | | shared cache  |   limited size; cold after a migration   |
//!   |  +---------------+ +---------------+                                          |
//!   |  | node: memory  |=| node: memory  |   distance (10 is local), controllers    |
//!   |  +---------------+ +---------------+                                          |
//!   +-------------------------------------------------------------------------------+
//! ```
//!
//! A [`Scenario`] has a machine ([`Hardware`]) and [`Program`]s, whose threads perform [`Step`]s. A
//! [`SimMachine`] runs a scenario, and is a [`Machine`](corebeat_machine::Machine). Its
//! [`SimClock`] is a [`Clock`](corebeat_machine::Clock); time passes only while a caller waits.
//! Policies and the control loop need no changes for a simulated machine.
//!
//! **Scheduling.** Each CPU has a run queue. The order is by virtual run time on a fair machine,
//! and by dynamic priorities on a time-sharing one ([`Scheduler`]). A woken thread goes to the idle
//! CPU nearest to its last CPU. If no CPU is idle, it goes to its last CPU, where it may preempt
//! the running thread. An idle CPU steals a thread from the nearest CPU with waiting threads. Load
//! balancing evens run queues out periodically. A dispatched thread pays for the context switch,
//! for a migration, and for cold caches.
//!
//! **Coscheduled sets.** With a [`Coscheduler`](corebeat_machine::Coscheduler)
//! ([`SimMachine::coschedule`]), the tasks of a [`Set`] have their own run queue, and run only on
//! CPUs that are assigned to the set. The coscheduler plans again whenever the number of runnable
//! tasks of a set changes, and at the end of a plan. The first CPU changes at once, the others when
//! the notification arrives, [`Hardware::wake_ns`] later (Schönherr, Lutz, Richling, *Non-intrusive
//! Coscheduling for General Purpose Operating Systems*, 2012, section 3: the leader notifies the
//! others).
//!
//! **Locks.** A released lock goes to the first spinning thread; without one, the first blocked
//! thread is woken and retries. The cache line of a lock moves between CPUs in a time that depends
//! on the distance: Pusukuri, *Runtime Support for Maximizing Performance on Multicore Systems*
//! (2012), section 4.1, measures factors of 1.0 within a package, 1.6 to the next package, and 2.2
//! to the farthest package. A spinning thread blocks when its time is over, or as soon as the
//! holder has lost its CPU (section 5.1). A barrier consists of a lock that each thread acquires
//! once, and a condition.
//!
//! **Parallel regions.** A team with [`Step::Parallel`] is the thread team of an OpenMP program.
//! Its first thread forks. As many threads as [`SetTeam`](corebeat_machine::Action::SetTeam)
//! permits take part, and the first thread waits for all of them. The other threads wait for the
//! next region in the same way as for a lock.
//!
//! **Claims.** With an [`Arbiter`](corebeat_machine::Arbiter) ([`SimMachine::arbitrate`]), the
//! regions of a program with [`Step::Invade`] have one thread per CPU of its claim, each pinned to
//! its CPU. Between regions, the program releases the CPUs that the arbiter requests, and uses
//! those that it has received.
//!
//! **Memory.** Cache misses slow computations down. The cost depends on the number of misses (which
//! rises when the shared cache is too small for the footprints of its threads), on the distance of
//! the data (section 3.1.1: [`Placement`]), and on the load of the memory controller.
//!
//! # Invariants
//!
//! 1. CPU time is conserved: the busy time of CPUs equals the run time of threads, and shares sum
//!    to 1 (`cpu_time_is_conserved_and_shares_sum_to_one`).
//! 2. A thread runs on one CPU, and a CPU runs one thread (`thread_is_never_on_two_cpus`).
//! 3. No CPU idles while a thread that may run there waits for longer than a balance period
//!    (`no_cpu_idles_while_a_thread_waits_for_longer_than_a_balance_period`).
//! 4. The same scenario, seed and actions lead to the same events (`same_seed_same_events`).
//! 5. While a task of a coscheduled set waits, no CPU of the set runs other tasks, except until the
//!    notification arrives (`coscheduling_keeps_the_papers_order_and_fills_fragments` of
//!    corebeat-paper).
//! 6. Actions fulfil the contract of all machines, and
//!    [`restore`](corebeat_machine::Machine::restore) undoes them (`simulator_conforms`).
//! 7. Times are whole nanoseconds. The remaining time of a computation is a floating-point number;
//!    the computation is complete at its finish time, whatever the rounding.
//!
//! # Failure
//!
//! [`Error`] names the place of an invalid value in a scenario, and a valid value.
//! [`SimMachine::deadlock`] reports a deadlock of the simulated threads. No function panics.
//!
//! # Limits
//!
//! - A scenario has at most 58 simulated days, [`CPUS_MAX`] CPUs, [`NODES_MAX`] nodes,
//!   [`THREADS_MAX`] threads, and [`STEPS_MAX`] steps, nested up to [`DEPTH_MAX`] levels. Cores
//!   have no hardware threads.
//! - The cost of memory is computed every millisecond and at the start of a computation, not at
//!   each change of another thread.
//! - With a coscheduler, tasks of a set run in order of arrival; nice values have no effect.
//! - The weight of a group is distributed to its runnable threads at once; Linux distributes it
//!   more slowly. Load balancing uses the weights of the threads.
//! - The fair scheduler is that of Linux up to 6.5: a thread that slept has a credit of up to one
//!   slice.
#![forbid(unsafe_code)]

mod action;
mod balance;
mod chrome;
mod claim;
mod code;
#[cfg(test)]
mod conformance;
mod coschedule;
mod cpu;
mod discipline;
mod error;
mod event;
mod group;
mod hardware;
mod interpreter;
mod kernel;
mod machine;
mod memory;
mod picture;
mod priority;
mod process;
mod program;
mod progress;
mod random;
mod scenario;
mod set;
mod shared_loop;
mod snapshot;
mod sync;
mod team;
mod thread;
mod time;
mod timeline;
mod world;

pub use code::{DEPTH_MAX, STEPS_MAX, THREADS_MAX};
pub use error::Error;
pub use hardware::{CPUS_MAX, Hardware, NODES_MAX, Scheduler};
pub use machine::{SimClock, SimMachine};
pub use program::{Goal, Placement, Program, StartClass, Step, Team, Work};
pub use scenario::Scenario;
pub use set::{Set, SetOutcome};
pub use snapshot::Outcome;
pub use timeline::{SPANS_MAX, Span, Timeline};
