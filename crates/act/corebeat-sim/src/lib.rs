//! A simulated multicore machine: any number of CPUs and nodes, exact, repeatable, and seen and steered as a Linux host is.
//!
//! Place in the loop: act; stands on base.
//!
//! # Example
//!
//! ```
//! use corebeat_machine::{Action, Clock, Machine, ProgramId, Target};
//! use corebeat_sim::{Hardware, Program, Scenario, SimMachine, Step, Team, Work};
//!
//! // 32 threads on 24 cores, each 1,000 times: compute for a millisecond, then meet the others.
//! let steps = vec![Work::us(1_000.0).into(), Step::Barrier("all".into())];
//! let steps = vec![Step::Repeat { times: Some(1_000), shared: false, steps }];
//! let programs = vec![Program::new("fluid", vec![Team::new(32, steps)])];
//! let machine = Hardware { packages: 4, cores: 6, ..Hardware::default() };
//! let mut machine = SimMachine::new(&Scenario::new(machine, programs), 1)?;
//! machine.clock().wait_until(1_000_000_000);
//! println!("{:?} of the time at the barrier", machine.observe()?.programs[0].mean(|s| s.lock));
//! machine.act(&Action::SetSlice { target: Target::Program(ProgramId(0)), slice_us: Some(20_000) })?;
//! machine.run();
//! println!("{:?} ns", machine.outcomes()[0].end_ns);
//! # Ok::<(), corebeat_sim::Error>(())
//! ```
//!
//! # Model
//!
//! ```text
//!   Scenario ----> code: teams' steps, flat          Machine: observe, act          Clock: wait
//!                    |                                        |                        |
//!                    v                                        v                        v
//!   +----------------------------------- the world, at one moment ----------------------------------+
//!   |  threads: course (computes, takes locks, waits, beats)        events, in order of time:       |
//!   |      |  ^                                                     a CPU looks, a thread wakes,    |
//!   |      v  | turn (who runs, how long, where)                    queues are evened out, ...      |
//!   |  +------+ +------+ +------+ +------+                                                          |
//!   |  | CPU  | | CPU  | | CPU  | | CPU  |  each with its queue     groups: weights and limits       |
//!   |  +------+-+------+ +------+-+------+                                                          |
//!   |  | shared cache  | | shared cache  |   what fits, what is cold                                 |
//!   |  +---------------+ +---------------+                                                          |
//!   |  | node: memory  |=| node: memory  |   distance (10 is local), crowded controllers             |
//!   |  +---------------+ +---------------+                                                          |
//!   +------------------------------------------------------------------------------------------------+
//! ```
//!
//! A [`Scenario`] has a machine ([`Hardware`]) and [`Program`]s, whose threads take [`Step`]s. A [`SimMachine`] is made of it,
//! and is a [`Machine`](corebeat_machine::Machine); its [`SimClock`] is a [`Clock`](corebeat_machine::Clock), and waiting is
//! what makes time pass. Policies and the loop run on it as they are.
//!
//! **Turns.** Each CPU has a queue. On a fair machine it is in order of virtual run time, on a time-sharing one in order of priorities
//! that change ([`Scheduler`]). Who wakes up goes to an idle CPU, the nearest to where it was, else to where it was, and may push the
//! running thread away. A CPU without a thread takes one from the nearest that has too many, and every balancing evens queues out.
//! A thread that comes onto a CPU pays for the switch, for being moved, and for the caches that it finds cold.
//!
//! **Sets.** With a [`Coscheduler`](corebeat_machine::Coscheduler) ([`SimMachine::coschedule`]) the tasks of a [`Set`] have a queue of their
//! own, and run only on CPUs that the set has. The coscheduler is asked whenever a set has more or less to run, and when a turn is over. The
//! first CPU changes over at once, the others when they have heard of it, [`Hardware::wake_ns`] later (Schönherr, Lutz, Richling,
//! *Non-intrusive Coscheduling for General Purpose Operating Systems*, 2012, section 3: the leader notifies the others).
//!
//! **Locks** are given back to who spins, in order of arrival, else the first who sleeps is woken to try again. Their cache line moves
//! from CPU to CPU, and that takes longer the farther it is: Pusukuri, *Runtime Support for Maximizing Performance on Multicore Systems*
//! (2012), section 4.1, where it takes 1.0, 1.6 and 2.2 times as long in a package, to the next, and to the farthest. Who spins blocks
//! when its time is up, or as soon as the holder has lost its CPU (section 5.1). A barrier is a lock that all threads take once, and a
//! condition.
//!
//! **Parallel regions.** A team with [`Step::Parallel`] is that of an OpenMP program: its first thread forks, as many others as
//! [`SetTeam`](corebeat_machine::Action::SetTeam) says come, and the first waits for the last. The others wait for the next region as for a lock.
//!
//! **Claims.** With an [`Arbiter`](corebeat_machine::Arbiter) ([`SimMachine::arbitrate`]) a program that has taken [`Step::Invade`] has as many
//! threads in a region as its claim has CPUs, each tied to one. Between regions it does what the arbiter asks, and takes what it was given.
//!
//! **Memory** slows work down by its misses: how many there are (the shared cache is too small for those who run on it), how far the data
//! is (section 3.1.1: [`Placement`]), and how many others want the same controller.
//!
//! # Invariants
//!
//! 1. CPU time is conserved: what CPUs were busy is what threads ran; shares add up to 1 (`cpu_time_is_conserved_and_shares_add_up`).
//! 2. A thread is on one CPU, a CPU has one thread (`thread_is_never_on_two_cpus`).
//! 3. No CPU idles while a thread that may run there waits for longer than a balance period
//!    (`no_cpu_idles_while_a_thread_waits_for_longer_than_a_balance_period`).
//! 4. The same scenario, seed and actions give the same events (`same_seed_same_events`).
//! 5. No CPU of a coscheduled set does something else while a task of the set waits, but for the time that the news takes
//!    (`coscheduling_keeps_the_papers_order_and_fills_fragments` of corebeat-paper).
//! 6. All times are whole nanoseconds; what is left of a computation is a fraction, and is done when its time has come.
//!
//! # Failure
//!
//! [`Error`] says what is wrong with a scenario, where, and what to write. A deadlock of what is simulated is told by
//! [`SimMachine::deadlock`]. Nothing panics.
//!
//! # Limits
//!
//! - 58 simulated days. [`CPUS_MAX`] CPUs, [`NODES_MAX`] nodes, [`THREADS_MAX`] threads, [`STEPS_MAX`] steps, [`DEPTH_MAX`] deep. No hardware threads.
//! - What memory costs is looked at once a millisecond, and when a thread begins to compute, not at each change elsewhere.
//! - Tasks of a set take turns in order of arrival where there is a coscheduler; nice values do not count there.
//! - A group's weight is shared by its runnable threads at once; Linux takes a while. CPUs are evened out by threads' own weights.
//! - The fair scheduler is Linux' as it was up to 6.5: who has slept is owed up to a slice.
#![forbid(unsafe_code)]

mod action;
mod chrome;
mod claim;
mod code;
mod course;
mod crew;
mod error;
mod gang;
mod group;
mod hardware;
mod machine;
mod memory;
mod picture;
mod priority;
mod program;
mod queue;
mod random;
mod scenario;
mod thread;
mod timeline;
mod turn;
mod view;
mod world;

pub use code::{DEPTH_MAX, STEPS_MAX, THREADS_MAX};
pub use error::Error;
pub use gang::{Set, SetOutcome};
pub use hardware::{CPUS_MAX, Hardware, NODES_MAX, Scheduler};
pub use machine::{SimClock, SimMachine};
pub use program::{Goal, Placement, Program, StartClass, Step, Team, Work};
pub use scenario::Scenario;
pub use timeline::{SPANS_MAX, Span, Timeline};
pub use view::Outcome;
