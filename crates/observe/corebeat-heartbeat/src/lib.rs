//! Heartbeats: how far programs are, what rate they are to have, and what rate they have.
//!
//! Place in the loop: observe; stands on base. The daemon turns what it tells into pulses of programs.
//!
//! # Example
//!
//! A thread tells of its progress; another one watches.
//!
//! ```
//! use corebeat_heartbeat::Group;
//!
//! let frames = Group::new(7).produce()?; // makes group 7 of this user, if it is not there
//! frames.set_rate_min(20.0)?; // beats a second
//! frames.set_rate_max(30.0)?;
//! for _frame in 0..100 {
//!     frames.beat(1); // a load and a store
//! }
//! let watcher = Group::new(7).consume()?; // here, in another thread, or in another process
//! println!("{:.1} beats a second of {:?}", watcher.window_rate()?, watcher.goal()?);
//! # Ok::<(), corebeat_heartbeat::Error>(())
//! ```
//!
//! # Model
//!
//! After the Heart Rate Monitor of Sironi et al., *Metronome: Operating System Level Performance Management via Self-Adaptive
//! Computing*, 2012, section 4 and appendix A. What they have in the kernel is a daemon here, or a thread of the process.
//!
//! ```text
//!   process                                            monitor: the daemon, or a thread of this process
//!   Producer Producer                                  Registry
//!      |beat    |beat         read-only                   |
//!   [ slot ] [ slot ] ...  -------------------------->  sample, once a period
//!    region, one a group                                  |
//!                             read-only                   v
//!   Producer, Consumer  <--------------------------  [ status page ] one a group: goal, beats, rates
//! ```
//!
//! - A **group** ([`Group`], [`GroupId`]) is a number of a user. Threads beat for it, of one process or of many. It is made
//!   when somebody attaches first, and is gone when all have detached. Others come in as far as its [`Mode`] lets them.
//! - A **producer** ([`Producer`]) is a thread that beats for one group: it adds to a counter in a cache line of its own. It
//!   may set the group's [`Goal`].
//! - A **consumer** ([`Consumer`]) reads the group's [`Status`]: its goal, its beats, and its rates. A producer may, too: both
//!   are [`Member`]s.
//! - A **monitor** measures. Where a daemon runs it is that; where none runs, a [`Registry`] in this process, with a thread that
//!   is there as long as something is attached. Groups reach over processes only with a daemon.
//! - The **global rate** is beats since the group was made by the time since then (equation 6); the **window rate** the same
//!   over the goal's window of samples (equation 7). A beat is counted at most one period after it was emitted.
//! - Each shared memory has one process that writes it: a **region** its producers', a **status page** the monitor. They are
//!   sealed memfds, handed over by descriptor, checked, and mapped read-only (`raw`).
//!
//! # Invariants
//!
//! 1. A beat is a load and a store in a line that no other thread writes: no lock, no system call, no clock ([`Producer::beat`]).
//! 2. No beat is lost when threads or processes end (`threads_that_come_and_go_lose_no_beat`,
//!    `group_of_two_processes_has_their_sum`), and the slots of the dead are taken back (`slot_of_a_thread_that_died_is_taken_back`).
//! 3. Memory of others is mapped only if it cannot shrink, cannot be changed by more than its owner, and costs its reader nothing
//!    (`region_that_lacks_*`, `region_of_another_*`, `region_that_is_no_memfd_is_refused`, `region_with_a_hole_*`).
//! 4. What others write is copied, then checked. It can spoil the figures of its own group, and do nothing else
//!    (`random_memory_spoils_its_own_group_only`, `page_with_any_content_is_read_without_harm`).
//! 5. A status is whole, or none (`page`; `loom_page_is_read_whole_or_not_at_all`, with planted faults).
//! 6. No lock crosses a process; nobody waits for another process but for the daemon's answer, when attaching, detaching, or
//!    setting a goal, and no longer than [corebeat-wire](corebeat_wire) says.
//! 7. The registry does what the definitions say (`registry_does_what_the_definitions_say`), and has no clock, thread or
//!    socket.
//! 8. A producer stays with its thread (types: neither `Send` nor `Sync`; `compile_fail` at [`Producer`]), and leaves with it
//!    (`thread_that_ends_without_detaching_is_no_member`).
//! 9. A child of fork changes nothing in its parent's memory (`child_of_fork_beats_for_nobody_until_it_attaches_anew`).
//!
//! # Memory ordering
//!
//! | write | ordering | pairs with | why |
//! | --- | --- | --- | --- |
//! | a counter, a slot's `tid`, how many are `used` (`region`) | Relaxed | Relaxed loads of the monitor | they tell nothing of other memory; what is seen late is counted a sample later |
//! | sequence is odd (`page`) | Relaxed, then a Release fence | Acquire fence, then the second load of the sequence | who saw a word of this write sees that there is one |
//! | words of the status (`page`) | Relaxed | Relaxed, between the reader's fences | the fences order them |
//! | sequence is even (`page`) | Release | first load of the sequence, then an Acquire fence | who sees it sees the words |
//! | the process's session (`session`) | AcqRel exchange | Acquire load | its content goes with it |
//!
//! Readers load Relaxed and use fences, because pages that are mapped read-only may be loaded from in no other way.
//!
//! # Failure
//!
//! [`Error`] says what to do. Beats cannot fail.
//!
//! When the daemon ends, producers go on beating in memory that stays, and nobody counts. The next call of any member of the
//! process (its status, its goal; not a beat) finds the next daemon, if there is one, and takes all places of the process there, with the goals
//! that stood. As long as there is none it says [`Error::MonitorGone`]; but if a thread attaches meanwhile, the process
//! measures all its places itself, until a call finds the next daemon
//! (`daemon_measures_until_it_ends_and_then_its_successor_does_or_this_process_meanwhile`). What was counted before is not carried over.
//! A process that does nothing but beat notices nothing, and is not found again.
//!
//! A child of fork attaches anew. What it has from its parent says [`Error::Forked`] to goals; what it beats there goes to memory
//! of its own that nobody looks at. (`vfork`, and `clone` called past the C library, do not see to that.)
//!
//! # Limits
//!
//! Linux 5.1, for the seal. [`SLOTS`] threads of a process in one group; [`GROUPS_PER_USER_MAX`] groups a user,
//! [`MEMBERS_PER_USER_MAX`] attached processes a user, [`MEMBERS_MAX`] in all. Windows of [`WINDOW_MAX`] samples. A region takes 64 KiB and a
//! descriptor; a group a page and a descriptor.
//!
//! A thread that ends leaves its group, also where its [`Producer`] was not dropped. (One that ends past the C library, by the bare
//! system call, is counted as a member until somebody attaches to the same group in its process.) The daemon notices by the process
//! itself that it has ended: children of fork that live on, and hold its connection, change nothing about that.

mod daemon;
mod error;
mod goal;
mod group;
mod member;
#[cfg(all(test, loom))]
mod model;
mod monitor;
mod page;
mod rate;
mod raw;
mod region;
mod registry;
mod session;

pub use error::Error;
pub use goal::{Goal, WINDOW, WINDOW_MAX};
pub use group::{Group, GroupId, Mode, Peer, Role};
pub use member::{Consumer, Member, Producer};
pub use monitor::{PERIOD, PERIOD_MAX, PERIOD_MIN};
pub use page::Status;
pub use region::SLOTS;
pub use registry::{GROUPS_PER_USER_MAX, GroupInfo, MEMBERS_MAX, MEMBERS_PER_USER_MAX, MemberId, Registry};
