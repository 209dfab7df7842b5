//! The transaction descriptor of a thread. All accesses to locks and cell memory are in this
//! module, except that `stm_inline.h` of corebeat-c contains `try_read` and `try_acquire` in C,
//! with the same memory orderings.
//!
//! ```text
//!      +-------- restart, after a pause --------- roll back: old values, a new version
//!      v                                                      ^
//!   begin: time = clock                                       |
//!      |                                                      |
//!      |   read:     free and not newer than time? else extend, which may fail
//!      |   acquire:  take the lock, log the old value         |
//!      v                                                      |
//!   commit: version = clock + 1; is every value that was read unchanged? no
//!      | yes, or this thread is the sole writer (`clock`)
//!      v
//!   release the locks with the version
//! ```
//!
//! A written value is in memory at once, behind the lock.
//!
//! `access` reads and writes, `conflict` handles locks that other transactions hold, `attempt`
//! begins, commits, rolls back and restarts, `turn` decides when a thread becomes the sole writer,
//! and `current` gives a thread its descriptor.

mod access;
mod attempt;
mod conflict;
mod current;
mod turn;

use crate::clock::Writer;
use crate::counter::Cause;
use crate::lock::{Lock, owner};
use crate::log::Log;
use crate::place::Place;
use crate::reads::Reads;
use crate::retired::RetiredList;
use crate::slot::{Slot, Slots, Standing};
use crate::trace::Recorder;
#[cfg(not(loom))]
use crate::word::TABLE;
use corebeat_sync::asymmetric;
use fastrand::Rng;
use std::panic::Location;
use std::ptr::NonNull;
use std::time::Instant;
use turn::Turn;

pub(crate) use attempt::Next;
pub(crate) use current::Current;
#[cfg(not(loom))]
pub(crate) use current::CurrentPlace;
#[cfg(all(test, loom))]
pub(crate) use current::leave;

/// The attempt cannot continue: return this from the closure. The transaction then restarts or
/// waits.
#[derive(Debug)]
#[must_use = "return it with `?`: the attempt has failed"]
pub struct Abort(());

/// Mode of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Reads values that are not newer than the begin of the attempt, and logs nothing.
    Snapshot,
    /// Logs reads and overwritten values.
    Full,
    /// Has closed the gate: no value that it reads can change, so it logs overwritten values only.
    Exclusive,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Open,
    /// The transaction waits for a change.
    Retry,
    Failed(Cause),
}

/// Log entry of an overwritten value.
#[derive(Clone, Copy)]
#[repr(C)]
struct Write {
    place: NonNull<Place>,
    old: *mut (),
    /// Destructor of values that need one. Set when the new value has been stored.
    drop: Option<unsafe fn(*mut ())>,
    /// The lock, if this write acquired it.
    lock: Option<NonNull<Lock>>,
}

/// The part of a descriptor that reads and writes without conflicts use. C programs contain code
/// that does so, too: `stm_inline.h` declares the same layout up to `step_bytes` of `reads`.
#[repr(C)]
pub struct Front {
    /// Newest version that the attempt may read.
    time: u64,
    /// Content of the locks that this thread holds.
    owner: u64,
    /// The locks for words (`word`); null in models.
    locks: *const Lock,
    writes: Log<Write>,
    reads: Reads,
}

impl Front {
    /// Creates the front of no transaction: each read and write takes the slow path, because no log
    /// has room.
    #[cfg(not(loom))]
    pub(crate) const fn closed() -> Front {
        Front {
            time: 0,
            owner: 0,
            locks: (&raw const TABLE).cast(),
            writes: Log::CLOSED,
            reads: Reads::CLOSED,
        }
    }
}

#[cfg(not(loom))]
const _: () = {
    use std::mem::offset_of;
    // As in `stm_inline.h`; the parts of logs: in `log` and `reads`.
    assert!(offset_of!(Front, time) == 0 && offset_of!(Front, owner) == 8);
    assert!(offset_of!(Front, locks) == 16 && offset_of!(Front, writes) == 24);
    assert!(offset_of!(Front, reads) == 56 && size_of::<Write>() == 32);
    assert!(offset_of!(Write, place) == 0 && offset_of!(Write, old) == 8);
    assert!(offset_of!(Write, drop) == 16 && offset_of!(Write, lock) == 24);
};

pub(crate) struct Descriptor {
    pub(crate) front: Front,
    mode: Mode,
    /// The mode for which the logs are open; `None` if the trace has changed the log of reads.
    logs_mode: Option<Mode>,
    fate: Fate,
    is_irrevocable: bool,
    /// Whether `time` may advance if all values that were read are unchanged. `false` only in
    /// transactions on words that requested it for this attempt.
    may_extend: bool,
    /// Whether the end of the transaction must do more than release locks: it wrote values with
    /// destructors, had conflicts, failed before, closed the gate, or its time was limited, or a
    /// turn ends. Always set without free light fences.
    needs_cleanup: bool,
    /// Whether light fences are free (`corebeat_sync::asymmetric`).
    has_free_fences: bool,
    /// Depth of nested `or_else`.
    branches: u32,
    epoch: u64,
    slot: &'static Slot,
    /// This thread in the clock.
    writer: Writer,
    /// Version of the last commit.
    version: u64,
    /// Decides when this thread claims to be the sole writer.
    turn: Turn,
    /// Number of failed attempts of this transaction.
    failed: u32,
    /// Time at which the transaction stops waiting in `retry`.
    deadline: Option<Instant>,
    standing: Standing,
    /// Values that were replaced or undone.
    retired: RetiredList,
    random: Rng,
    /// Call site of the transaction, if known.
    site: Option<&'static Location<'static>>,
    recorder: Recorder,
}

impl Descriptor {
    fn new() -> Descriptor {
        let slot = Slots::acquire();
        // The models contain the fence in both cases.
        let has_free_fences = cfg!(loom) || asymmetric::is_free();
        Descriptor {
            front: Front {
                time: 0,
                owner: owner(slot),
                #[cfg(not(loom))]
                locks: (&raw const TABLE).cast(),
                #[cfg(loom)]
                locks: std::ptr::null(),
                writes: Log::new(),
                reads: Reads::new(),
            },
            mode: Mode::Full,
            logs_mode: None,
            fate: Fate::Open,
            is_irrevocable: false,
            may_extend: true,
            needs_cleanup: !has_free_fences,
            has_free_fences,
            branches: 0,
            epoch: slot.epoch(),
            slot,
            writer: Writer::new(slot.number()),
            version: 0,
            turn: Turn::new(slot),
            failed: 0,
            deadline: None,
            standing: Standing::default(),
            retired: RetiredList::default(),
            // Different for each thread, so that attempts that failed together do not meet again.
            random: Rng::with_seed((slot as *const Slot).addr() as u64),
            site: None,
            recorder: Recorder::new(),
        }
    }

    /// The public state of the thread.
    pub(crate) fn slot(&self) -> &'static Slot {
        self.slot
    }

    /// Content of the locks that this thread holds.
    #[cfg(not(loom))]
    pub(crate) fn owner(&self) -> u64 {
        self.front.owner
    }

    /// Version of the last commit.
    #[cfg(not(loom))]
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Whether another transaction requests that this attempt ends without success.
    #[cfg(not(loom))]
    pub(crate) fn is_killed(&self) -> bool {
        self.slot.is_doomed(self.epoch)
    }

    /// Whether the transaction has closed the gate.
    #[cfg(not(loom))]
    pub(crate) fn withholds_commits(&self) -> bool {
        self.mode == Mode::Exclusive
    }

    /// Whether the transaction cannot fail any more.
    #[cfg(not(loom))]
    pub(crate) fn is_irrevocable(&self) -> bool {
        self.is_irrevocable
    }
}
