//! Heartbeats: programs report their progress and their target rates, and read their actual rates.
//!
//! Place in the loop: observe; uses only base. The daemon converts heartbeats into the progress of
//! programs.
//!
//! # Example
//!
//! One thread reports progress; another one reads the rate.
//!
//! ```
//! use corebeat_heartbeat::Group;
//!
//! let frames = Group::new(7).produce()?; // creates group 7 of this user if necessary
//! frames.set_rate_min(20.0)?; // beats per second
//! frames.set_rate_max(30.0)?;
//! for _frame in 0..100 {
//!     frames.beat(1); // a load and a store
//! }
//! let watcher = Group::new(7).consume()?; // here, in another thread or in another process
//! println!("{:.1} beats a second of {:?}", watcher.window_rate()?, watcher.goal()?);
//! # Ok::<(), corebeat_heartbeat::Error>(())
//! ```
//!
//! # Model
//!
//! The design follows the Heart Rate Monitor of Sironi et al., *Metronome: Operating System Level
//! Performance Management via Self-Adaptive Computing*, 2012, section 4 and appendix A. The paper
//! implements the monitor in the kernel; here, the monitor is a daemon, or a thread of the process.
//!
//! ```text
//!   process                                    monitor: the daemon, or a thread of this process
//!   Producer Producer                          Registry
//!      |beat    |beat      read-only              |
//!   [ slot ] [ slot ] ... --------------------> sample, once per period
//!    region, one per group                        |
//!                          read-only              v
//!   Producer, Consumer <--------------------- [ status page ] one per group: goal, beats, rates
//! ```
//!
//! - A **group** ([`Group`], [`GroupId`]) is identified by a user and a number. Threads of one or
//!   more processes beat for it. The first member creates the group, and the group ends when the
//!   last member detaches. Its [`Mode`] determines what other users may do.
//! - A **producer** ([`Producer`]) is a thread that beats for one group: it increments a counter in
//!   a private cache line. It may set the group's [`Goal`].
//! - A **consumer** ([`Consumer`]) reads the group's [`Status`]: its goal, its beats and its rates.
//!   A producer can read the status, too: both are [`Member`]s.
//! - A **monitor** measures the rates. The monitor is the daemon if a daemon runs. Otherwise, the
//!   monitor is a [`Registry`] in this process, with a thread that exists while at least one member
//!   is attached. Groups can only span several processes if a daemon runs.
//! - The **global rate** is the number of beats since the group was created, divided by the time
//!   since then (equation 6). The **window rate** is the rate over the goal's window of samples
//!   (equation 7). A beat is counted at most one period after it was emitted.
//! - Each shared memory area has exactly one writing process: the producers' process writes a
//!   **region**, the monitor writes a **status page**. Both are sealed memfds that are passed as
//!   descriptors, checked, and mapped read-only (`raw`).
//!
//! # Invariants
//!
//! 1. A beat is a load and a store in a cache line that no other thread writes: no lock, no system
//!    call, no read of a clock ([`Producer::beat`]).
//! 2. No beat is lost when threads or processes end (`starting_and_ending_threads_lose_no_beat`,
//!    `group_of_two_processes_has_their_sum`), and the slots of ended threads are reclaimed
//!    (`slot_of_an_ended_thread_is_reclaimed`).
//! 3. Memory of another process is mapped only if it cannot shrink, only its owner can change it,
//!    and reading it allocates nothing (`region_that_lacks_*`, `region_of_another_*`,
//!    `region_that_is_no_memfd_is_refused`, `region_with_a_hole_*`).
//! 4. Data of other processes is copied, then checked. Invalid data can corrupt the figures of its
//!    own group, and nothing else (`random_memory_corrupts_only_its_own_group`,
//!    `page_with_arbitrary_content_is_read_safely`).
//! 5. A status is read consistently or not at all (`page`;
//!    `loom_page_is_read_consistently_or_not_at_all`, with planted faults).
//! 6. No lock is shared between processes. A process waits for another one only for answers of the
//!    daemon: when it attaches, detaches, sets a goal, or connects again for one of its members. A
//!    call waits for at most 2 s, including its wait for calls of other threads
//!    (`wait_behind_another_thread_counts`, `wait_for_a_turn_ends_at_the_deadline`).
//! 7. The registry agrees with a model that follows the definitions
//!    (`registry_agrees_with_its_model`). It uses no clock, thread or socket.
//! 8. A producer stays on its thread (types: neither `Send` nor `Sync`; `compile_fail` at
//!    [`Producer`]), and detaches when the thread ends (`ended_thread_is_not_a_member`).
//! 9. A child of fork changes nothing in the memory of its parent
//!    (`child_of_fork_beats_for_no_group_until_it_attaches`).
//!
//! # Memory ordering
//!
//! | write | ordering | pairs with |
//! | --- | --- | --- |
//! | a counter, a slot's `tid`, the count `used` (`region`) | Relaxed | Relaxed loads, see 1 |
//! | odd sequence (`page`) | Relaxed, then Release fence | Acquire fence, second load, see 2 |
//! | words of the status (`page`) | Relaxed | Relaxed, ordered by the fences |
//! | even sequence (`page`) | Release | first load, then Acquire fence, see 3 |
//!
//! 1. No other data depends on these values. A change that is read late is counted one sample
//!    later.
//! 2. A reader that reads a word of this write also reads the odd sequence.
//! 3. A reader that reads the even sequence reads the words.
//!
//! Readers use Relaxed loads and fences, because pages that are mapped read-only permit no other
//! atomic loads.
//!
//! # Failure
//!
//! [`Error`] states what the user can do. Beats cannot fail.
//!
//! After the daemon has ended, producers continue to beat into their memory, but no process counts
//! the beats. The next call of any member of the process (for its status or goal; beats do not
//! count) connects to the next daemon, if one runs, and attaches all members of the process there,
//! with their last goals. Until a daemon runs, such calls return [`Error::MonitorGone`]; but if a
//! thread attaches in the meantime, the process measures all its groups itself
//! (`members_follow_the_daemon_to_its_successor_or_measure_locally`). Earlier beats are not carried
//! over. A process that only beats does not detect the change and stays detached.
//!
//! A process that measures itself, because no daemon ran when it attached, searches for a daemon at
//! the same calls, at most once a second, and moves all members there, or none if the daemon
//! refuses one or does not answer (`groups_of_a_process_join_a_daemon_that_starts_later`).
//!
//! If the daemon is stopped, calls fail after 2 s, but the connection, the groups and their counts
//! remain (`groups_continue_after_the_daemon_was_stopped`). A goal whose call failed may take
//! effect when the daemon continues. The next call of the process ends an attachment that came too
//! late, and repeats calls to detach.
//!
//! A child of fork must attach again. Goals of inherited members return [`Error::Forked`], and
//! their beats go to private memory that no process reads. (`vfork`, and `clone` called without the
//! C library, are not covered.)
//!
//! # Limits
//!
//! This crate requires Linux 5.1, for the seal. A process can have [`SLOTS`] threads in one group.
//! With a daemon, a process can be attached to 64 groups, the limit of its connection; producers
//! and consumers of a group count separately. A user can have [`GROUPS_PER_USER_MAX`] groups and
//! [`MEMBERS_PER_USER_MAX`] attached processes, all users together [`MEMBERS_MAX`]. A window has at
//! most [`WINDOW_MAX`] samples. A region takes 64 KiB and a descriptor; a group takes a page and a
//! descriptor.
//!
//! A thread that ends leaves its group, even if its [`Producer`] was not dropped. (A thread that
//! ends by the bare system call, without the C library, counts as a member until another thread of
//! its process attaches to the same group.) The daemon detects the end of the process itself, even
//! if children of fork keep its connection open.

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
mod turn;

pub use corebeat_wire::host::Role;
pub use error::Error;
pub use goal::{Goal, WINDOW, WINDOW_MAX};
pub use group::{Group, GroupId, Mode, Peer};
pub use member::{Consumer, Member, Producer};
pub use monitor::{PERIOD, PERIOD_MAX, PERIOD_MIN};
pub use page::Status;
pub use region::SLOTS;
pub use registry::{
    GROUPS_PER_USER_MAX, GroupInfo, MEMBERS_MAX, MEMBERS_PER_USER_MAX, MemberId, Registry,
};

/// The Rust code of the book is compiled, and most of it run, as documentation tests.
#[cfg(doctest)]
#[doc(hidden)]
pub mod book {
    #[doc = include_str!("../../../../docs/heartbeat.md")]
    pub struct Heartbeat;
    #[doc = include_str!("../../../../docs/library.md")]
    pub struct Library;
}
