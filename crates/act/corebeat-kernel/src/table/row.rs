//! The rows of the table: memory that the kernel writes and this process reads. This is the only
//! module with unsafe code.
//!
//! ```text
//!   kernel (begin, finish)                this process (Rows::read)
//!   sequence + 1: odd                     before = sequence          Acquire
//!   change                                copy                       Relaxed
//!   sequence + 1: even                    fence                      Acquire
//!                                         even and the same? else once more
//! ```
//!
//! The kernel writes a row on one CPU at a time, and x86 keeps the order of its stores, so they
//! have the effect of Release stores, with which the two Acquires pair. Two CPUs may write the last
//! state of a thread that calls `execve` at once: `sequence` is even after both.

#![allow(unsafe_code)]

use corebeat_machine::{BlockedCause, CountedState, CpuId, ThreadCounts};
use corebeat_sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use libbpf_rs::MapHandle;
use rustix::mm::{self, MapFlags, ProtFlags};
use rustix::time::ClockId;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};

/// States of a thread (`bpf/table.bpf.c`).
const UNKNOWN: u32 = 0;
const RUNS: u32 = 1;
const WAITS: u32 = 2;
const LOCK: u32 = 3;
const PARK: u32 = 4;
const SLEEP: u32 = 5;
const STOPPED: u32 = 6;
const ENDED: u32 = 7;
const STATES: usize = 8;

/// Number of copies until one has no partial change. A change takes some nanoseconds, unless the
/// host takes the processor from the virtual machine meanwhile.
const COPIES_MAX: u32 = 1000;

/// `struct row`.
#[repr(C)]
struct Row {
    sequence: AtomicU32,
    state: AtomicU32,
    since_ns: AtomicU64,
    state_ns: [AtomicU64; STATES],
    voluntary: AtomicU64,
    involuntary: AtomicU64,
    /// Changes outside of `sequence`, and is therefore not of the same moment as the rest.
    migrations: AtomicU64,
    parked_at: AtomicU64,
    cpu: AtomicU32,
    _unused: [AtomicU32; 3],
}

const _: () = assert!(size_of::<Row>() == 128, "as in bpf/table.bpf.c");

/// The rows of all threads.
pub(super) struct Rows {
    start: NonNull<Row>,
    count: u32,
}

// SAFETY: the memory belongs to the process, and all its fields are atomic.
unsafe impl Send for Rows {}
// SAFETY: see above.
unsafe impl Sync for Rows {}

impl Rows {
    /// Maps the table of the kernel, which has this number of rows.
    pub(super) fn map(table: &MapHandle, count: u32) -> std::io::Result<Rows> {
        let (bytes, access) = (Rows::bytes(count), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: the kernel chooses an unused address for the new mapping.
        let start = unsafe {
            mm::mmap(ptr::null_mut(), bytes, access, MapFlags::SHARED, table.as_fd(), 0)
        }?;
        let start = NonNull::new(start.cast::<Row>()).ok_or(std::io::ErrorKind::OutOfMemory)?;
        Ok(Rows { start, count })
    }

    fn bytes(count: u32) -> usize {
        count as usize * size_of::<Row>()
    }

    fn row(&self, place: u32) -> &Row {
        assert!(place < self.count, "the table has {} rows", self.count);
        // SAFETY: the mapping has `count` rows (the kernel refuses to map more than the table has),
        // starts at a page, lives as long as `self`, and any bits are valid for atomic numbers.
        unsafe { self.start.add(place as usize).as_ref() }
    }

    /// Prepares a row for a thread. No program of the kernel finds the row yet, and none that found
    /// it for an earlier thread still runs.
    pub(super) fn clear(&self, place: u32) {
        let Row { sequence, state, since_ns, state_ns, voluntary, involuntary, .. } =
            self.row(place);
        let Row { migrations, parked_at, cpu, .. } = self.row(place);
        sequence.store(0, Ordering::Relaxed);
        state.store(UNKNOWN, Ordering::Relaxed);
        for number in state_ns.iter().chain([voluntary, involuntary, migrations, parked_at]) {
            number.store(0, Ordering::Relaxed);
        }
        cpu.store(u32::MAX, Ordering::Relaxed);
        // The call that makes the row known orders these stores.
        since_ns.store(now_ns(), Ordering::Relaxed);
    }

    /// Makes the state of a thread without events that of a blocked one. If the first event comes
    /// at the same moment, the event takes effect.
    pub(super) fn begin_blocked(&self, place: u32, cause: BlockedCause) -> bool {
        let state = match cause {
            BlockedCause::Lock => LOCK,
            BlockedCause::Park => PARK,
            BlockedCause::Sleep => SLEEP,
            BlockedCause::Stopped => STOPPED,
        };
        let row = self.row(place);
        // Nothing is published: the time in the row is older than its number in the kernel.
        let begun =
            row.state.compare_exchange(UNKNOWN, state, Ordering::Relaxed, Ordering::Relaxed);
        begun.is_ok()
    }

    /// Returns the counts of a row up to `now_ns`. `None` without a state, and if each copy had a
    /// partial change.
    pub(super) fn read(&self, place: u32, now_ns: u64) -> Option<ThreadCounts> {
        let row = self.row(place);
        for _ in 0..COPIES_MAX {
            let before = row.sequence.load(Ordering::Acquire);
            let copy = Copy::of(row);
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && row.sequence.load(Ordering::Relaxed) == before {
                return copy.counts(now_ns);
            }
            std::hint::spin_loop();
        }
        None
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        // SAFETY: this type has mapped the memory with this size, and no reference to it is left.
        // Unmapping a whole mapping cannot fail.
        let _ = unsafe { mm::munmap(self.start.as_ptr().cast(), Rows::bytes(self.count)) };
    }
}

/// A copy of a row.
struct Copy {
    state: u32,
    since_ns: u64,
    state_ns: [u64; STATES],
    switches: [u64; 2],
    migrations: u64,
    cpu: u32,
}

impl Copy {
    fn of(row: &Row) -> Copy {
        let number = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Copy {
            state: row.state.load(Ordering::Relaxed),
            since_ns: number(&row.since_ns),
            state_ns: std::array::from_fn(|state| number(&row.state_ns[state])),
            switches: [number(&row.voluntary), number(&row.involuntary)],
            migrations: number(&row.migrations),
            cpu: row.cpu.load(Ordering::Relaxed),
        }
    }

    fn counts(&self, now_ns: u64) -> Option<ThreadCounts> {
        let state = match self.state {
            RUNS => CountedState::Runs,
            WAITS => CountedState::Waits,
            LOCK | PARK | SLEEP | STOPPED => CountedState::Blocked,
            ENDED => CountedState::Ended,
            _ => return None,
        };
        // The last event may be later than the time of the caller.
        let at_ns = if state == CountedState::Ended { self.since_ns } else { now_ns };
        let at_ns = at_ns.max(self.since_ns);
        let time = |of: u32| {
            let present = if of == self.state { at_ns - self.since_ns } else { 0 };
            self.state_ns[of as usize].saturating_add(present)
        };
        Some(ThreadCounts {
            state,
            at_ns,
            cpu: (self.cpu != u32::MAX).then_some(CpuId(self.cpu)),
            run_ns: time(RUNS),
            wait_ns: time(WAITS),
            lock_ns: time(LOCK),
            park_ns: time(PARK),
            sleep_ns: time(SLEEP),
            stopped_ns: time(STOPPED),
            voluntary: self.switches[0],
            involuntary: self.switches[1],
            migrations: self.migrations,
        })
    }
}

/// The monotonic clock, as `bpf_ktime_get_ns`.
fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
