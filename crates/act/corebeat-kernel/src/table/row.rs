//! The rows of the table: memory that the kernel writes and this process reads. This is the only
//! module with unsafe code.
//!
//! ```text
//!   kernel (copy)                         this process (Rows::read)
//!   sequence + 1: odd                     before = sequence          Acquire
//!   change                                copy                       Relaxed
//!   sequence + 1: even                    fence                      Acquire
//!                                         even and the same? else once more
//! ```
//!
//! x86 keeps the order of the kernel's stores, so they have the effect of Release stores, with
//! which the two Acquires pair. The end of a thread may write its row at the same time as a copy
//! that this process has requested: both write nearly the same numbers, and `sequence` is even
//! after both.

#![allow(unsafe_code)]

use corebeat_machine::{BlockedCause, CountedState, CpuId, THREAD_NAME_BYTES, ThreadCounts};
use corebeat_sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use libbpf_rs::MapHandle;
use rustix::mm::{self, MapFlags, ProtFlags};
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};

/// States of a thread (`bpf/table.bpf.c`).
const RUNS: u32 = 1;
const WAITS: u32 = 2;
const LOCK: u32 = 3;
const PARK: u32 = 4;
const STOPPED: u32 = 6;

/// Number of copies until one has no partial change. A change takes some nanoseconds, unless the
/// host takes the processor from the virtual machine meanwhile.
const COPIES_MAX: u32 = 1000;

/// Numbers of 8 bytes in a row, from `at_ns` on: times, switches, and the name.
const NUMBERS: usize = 12;

/// `struct row`.
#[repr(C)]
struct Row {
    sequence: AtomicU32,
    tid: AtomicU32,
    generation: AtomicU32,
    has_ended: AtomicU32,
    state: AtomicU32,
    cpu: AtomicU32,
    numbers: [AtomicU64; NUMBERS],
    _unused: AtomicU64,
}

const _: () = assert!(size_of::<Row>() == 128, "as in bpf/table.bpf.c");
const _: () = assert!(THREAD_NAME_BYTES == 16, "as in bpf/table.bpf.c");

/// The rows of all threads.
pub(super) struct Rows {
    start: NonNull<Row>,
    count: u32,
    /// Whether programs count the time of futex waits.
    pub(super) has_causes: bool,
}

// SAFETY: the memory belongs to the process, and all its fields are atomic.
unsafe impl Send for Rows {}
// SAFETY: see above.
unsafe impl Sync for Rows {}

impl Rows {
    /// Maps the table of the kernel, which has this number of rows.
    pub(super) fn map(table: &MapHandle, count: u32, has_causes: bool) -> std::io::Result<Rows> {
        let (bytes, access) = (Rows::bytes(count), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: the kernel chooses an unused address for the new mapping.
        let start = unsafe {
            mm::mmap(ptr::null_mut(), bytes, access, MapFlags::SHARED, table.as_fd(), 0)
        }?;
        let start = NonNull::new(start.cast::<Row>()).ok_or(std::io::ErrorKind::OutOfMemory)?;
        Ok(Rows { start, count, has_causes })
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

    /// Gives a row to a thread. No program of the kernel that found the row for an earlier thread
    /// still runs.
    pub(super) fn begin(&self, place: u32, tid: u32) {
        let row = self.row(place);
        for number in &row.numbers {
            number.store(0, Ordering::Relaxed);
        }
        for number in [&row.sequence, &row.has_ended, &row.state] {
            number.store(0, Ordering::Relaxed);
        }
        row.generation.fetch_add(1, Ordering::Relaxed);
        // The call that lets the kernel copy the thread orders these stores.
        row.tid.store(tid, Ordering::Relaxed);
    }

    /// Takes a row from its thread.
    pub(super) fn end(&self, place: u32) {
        // Programs that have found the row before may still write to it.
        self.row(place).tid.store(0, Ordering::Relaxed);
    }

    /// Returns the counts of a row. `None` without a copy, and if each reading had a partial
    /// change.
    pub(super) fn read(&self, place: u32) -> Option<ThreadCounts> {
        let row = self.row(place);
        for _ in 0..COPIES_MAX {
            let before = row.sequence.load(Ordering::Acquire);
            let copy = Copy::of(row);
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && row.sequence.load(Ordering::Relaxed) == before {
                return copy.counts(self.has_causes);
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
    has_ended: bool,
    state: u32,
    cpu: u32,
    numbers: [u64; NUMBERS],
}

impl Copy {
    fn of(row: &Row) -> Copy {
        Copy {
            has_ended: row.has_ended.load(Ordering::Relaxed) != 0,
            state: row.state.load(Ordering::Relaxed),
            cpu: row.cpu.load(Ordering::Relaxed),
            numbers: std::array::from_fn(|at| row.numbers[at].load(Ordering::Relaxed)),
        }
    }

    fn counts(&self, has_causes: bool) -> Option<ThreadCounts> {
        let [at_ns, run_ns, wait_ns, lock_ns, park_ns, voluntary, involuntary, ..] = self.numbers;
        let [.., migrations, user_ns, system_ns, first, second] = self.numbers;
        let state = match self.state {
            _ if self.has_ended => CountedState::Ended,
            RUNS => CountedState::Runs,
            WAITS => CountedState::Waits,
            LOCK => CountedState::Blocked(BlockedCause::Lock),
            PARK => CountedState::Blocked(BlockedCause::Park),
            STOPPED => CountedState::Blocked(BlockedCause::Stopped),
            _ => CountedState::Blocked(BlockedCause::Sleep),
        };
        let mut name = [0; THREAD_NAME_BYTES];
        name[..8].copy_from_slice(&first.to_ne_bytes());
        name[8..].copy_from_slice(&second.to_ne_bytes());
        (at_ns != 0).then_some(ThreadCounts {
            state,
            at_ns,
            cpu: CpuId(self.cpu),
            run_ns,
            wait_ns,
            has_causes,
            lock_ns: if has_causes { lock_ns } else { 0 },
            park_ns: if has_causes { park_ns } else { 0 },
            user_ns,
            system_ns,
            voluntary,
            involuntary,
            migrations,
            name,
        })
    }
}
