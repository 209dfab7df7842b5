//! Trace events of transactions, for the installed trace.
//!
//! The events follow Schindewolf, Karl, *Capturing Transactional Memory Application's Behavior*,
//! 2012, section 3: start, read, write, commit and abort, in a separate stream for each thread. A
//! trace contains either all of them, or only those of whole attempts. Differences: an attempt
//! records its reads and writes at its end, from the logs that it keeps in any case, so reads and
//! writes cost nothing without a trace; and most transactions without conflicts do not read the
//! time-stamp counter.
//!
//! ```
//! use corebeat_stm::trace::{self, Detail};
//! use corebeat_stm::{TCell, atomically};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("bank.cbt");
//! let trace = corebeat_trace::Trace::create(&path)?;
//! trace.install()?;
//! trace::set(Detail::Full);
//! let accounts = [TCell::new(100), TCell::new(100)];
//! trace::name(&accounts, "accounts"); // reports show names instead of addresses
//! atomically(|tx| tx.update(&accounts[1], |balance| balance + 1));
//! trace::set(Detail::Off);
//! trace.finish()?;
//!
//! let report = trace::Report::read(std::fs::File::open(&path)?)?;
//! assert!(report.commits >= 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Events
//!
//! | kind | time | fields | meaning |
//! | --- | --- | --- | --- |
//! | `stm.thread` | no | `slot` | first event of a thread, with its number |
//! | `stm.site` | no | `site`, `file`, `line`, `column` | call site, before its first use |
//! | `stm.cells` | no | `place`, `count`, `name` | call of [`name`] |
//! | `stm.start` | yes | `site` | an attempt begins |
//! | `stm.read` | no | `place` | a read of a cell that the attempt has not written |
//! | `stm.write` | no | `place` | a cell that the attempt acquired |
//! | `stm.reads` | no | `place`, `count` | reads of `count` adjacent cells, from `place` on |
//! | `stm.commit` | yes | | the attempt committed |
//! | `stm.done` | no | `site` | a first attempt began and committed |
//! | `stm.abort` | yes | see below | the attempt aborted |
//!
//! Reads and writes of an attempt precede the end of the attempt. The duration of `stm.done` was
//! not measured. The fields of `stm.abort` are `site`, `cause`, `place`, `other`, `other_site` and
//! `accesses`. A call site is one of `atomically` or `snapshot`. A place is the low 32 bits of a
//! cell's address divided by 16. `other` is the slot of the conflicting transaction, or [`NOBODY`];
//! `place` is the place of the conflict, or 0.
//!
//! Reading the time-stamp counter takes as long as a short transaction. So only one of
//! [`TIMED_EVERY`] first attempts has times, and more of them where attempts are long. After a
//! failed attempt, all further attempts of the transaction have times.

use crate::TCell;
use crate::counter::Cause;
use crate::lock::Lock;
use crate::reads::Reads;
pub use crate::report::{Attempts, Conflict, Place, Report, Transactions};
use crate::slot::Slot;
use crate::value::Value;
use corebeat_sync::fork::ForkMutex;
use corebeat_sync::shared_static;
use corebeat_trace::{Event, emit, emit_all, ticks};
use std::panic::Location;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

/// Number of consecutive short first attempts of which one has times.
pub const TIMED_EVERY: u32 = 64;
/// Attempts of more ticks are long: this is about a microsecond.
const LONG_TICKS: u64 = 1 << 12;
/// Maximum number of call sites with their own number. All others have number 0.
pub const SITES_MAX: usize = 1 << 12;
/// Slot number of an unknown transaction.
pub const NOBODY: u32 = u32::MAX;

/// Level of detail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// No events.
    Off,
    /// Starts, commits and aborts.
    Reduced,
    /// Starts, commits, aborts, reads and writes.
    Full,
}

/// The detail in the lowest bits, and the number of calls of `set` above.
static STATE: AtomicU32 = AtomicU32::new(0);
const DETAIL: u32 = 3;

/// Sets the detail for all transactions of the process, from their next attempt on. Active attempts
/// record nothing more. Call this function again after another trace was installed.
pub fn set(detail: Detail) {
    let detail = detail as u32;
    let next = |state: u32| Some((state | DETAIL).wrapping_add(1) | detail);
    // Relaxed: nothing depends on when a thread observes the change.
    let _ = STATE.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
}

/// Returns whether transactions are traced.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    // Relaxed: as in `set`. Models do not trace.
    !cfg!(loom) && STATE.load(Ordering::Relaxed) & DETAIL != 0
}

/// Records a name for cells in the installed trace: the first cell is `name[0]`, or `name` if there
/// is only one. Reports show the names instead of addresses.
pub fn name<V: Value>(cells: &[TCell<V>], name: &str) {
    if let Some(first) = cells.first() {
        let count = u32::try_from(cells.len()).unwrap_or(u32::MAX);
        emit(&Cells { place: place(first.parts().0), count, name });
    }
}

fn place(lock: *const Lock) -> u32 {
    (lock.addr() / size_of::<TCell<u64>>()) as u32
}

#[derive(Event)]
#[event(name = "stm.thread", untimed, kept)]
struct Thread {
    slot: u32,
}

#[derive(Event)]
#[event(name = "stm.site", untimed, kept)]
struct Site<'a> {
    site: u16,
    file: &'a str,
    line: u32,
    column: u32,
}

#[derive(Event)]
#[event(name = "stm.cells", untimed, kept)]
struct Cells<'a> {
    #[event(hex)]
    place: u32,
    count: u32,
    name: &'a str,
}

#[derive(Event)]
#[event(name = "stm.start")]
struct Start {
    site: u16,
}

#[derive(Event)]
#[event(name = "stm.read", untimed)]
struct Read {
    #[event(hex)]
    place: u32,
}

#[derive(Event)]
#[event(name = "stm.reads", untimed)]
struct Row {
    #[event(hex)]
    place: u32,
    count: u32,
}

#[derive(Event)]
#[event(name = "stm.write", untimed)]
struct Write {
    #[event(hex)]
    place: u32,
}

#[derive(Event)]
#[event(name = "stm.commit")]
struct Commit {}

#[derive(Event)]
#[event(name = "stm.done", untimed)]
struct Done {
    site: u16,
}

#[derive(Event)]
#[event(name = "stm.abort")]
struct Aborted<'a> {
    site: u16,
    cause: &'a str,
    #[event(hex)]
    place: u32,
    other: u32,
    other_site: u16,
    accesses: u32,
}

/// The conflicting transaction and the place of the conflict.
#[derive(Clone, Copy)]
struct Blame {
    place: u32,
    other: u32,
    other_site: u16,
}

const UNKNOWN: Blame = Blame { place: 0, other: NOBODY, other_site: 0 };

/// Trace state of a thread and its attempt.
pub(crate) struct Recorder {
    /// `STATE` at the last check.
    state: u32,
    /// Call site of the attempt and its number.
    site: (Option<&'static Location<'static>>, u16),
    /// Call sites that this thread has recorded.
    sites: Vec<(&'static Location<'static>, u16)>,
    /// Number of first attempts without times before the next one with times.
    untimed: u32,
    /// Time-stamp counter at the begin of the attempt, if the attempt has times.
    begin: Option<u64>,
    blame: Blame,
}

impl Recorder {
    pub(crate) fn new() -> Recorder {
        Recorder {
            state: 0,
            site: (None, 0),
            sites: Vec::new(),
            untimed: 0,
            begin: None,
            blame: UNKNOWN,
        }
    }

    /// Returns whether reads and writes are recorded.
    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        self.state & DETAIL == Detail::Full as u32
    }

    /// Returns whether the detail is unchanged since the begin of the attempt.
    #[inline(always)]
    pub(crate) fn is_current(&self) -> bool {
        // Relaxed: as in `set`.
        self.state == STATE.load(Ordering::Relaxed)
    }

    /// Records the begin of an attempt.
    #[inline(always)]
    pub(crate) fn start(&mut self, slot: &Slot, site: Option<&'static Location<'static>>) {
        if self.untimed > 0 && is_same(self.site.0, site) && self.is_current() {
            self.untimed -= 1;
        } else {
            self.start_slow(slot, site);
        }
    }

    /// Records a begin with a time stamp, or the events that precede it.
    #[inline(never)]
    fn start_slow(&mut self, slot: &Slot, site: Option<&'static Location<'static>>) {
        let state = STATE.load(Ordering::Relaxed);
        if self.state != state {
            self.begin_trace(state, slot);
        }
        if !is_same(self.site.0, site) {
            self.site = site.map_or((None, 0), |site| (Some(site), self.site_number(site)));
            slot.set_site(self.site.1);
        }
        if self.untimed > 0 {
            self.untimed -= 1;
        } else {
            self.begin = Some(ticks());
            emit(&Start { site: self.site.1 });
        }
    }

    /// Begins a new trace, which contains no events of this thread yet.
    #[cold]
    fn begin_trace(&mut self, state: u32, slot: &Slot) {
        self.state = state;
        self.sites.clear();
        self.site = (None, 0);
        self.untimed = 0;
        // It may come from an attempt that was not traced.
        self.blame = UNKNOWN;
        emit(&Thread { slot: slot.number() });
    }

    /// Returns the number of a call site, and records the call site if it is new.
    #[cold]
    fn site_number(&mut self, site: &'static Location<'static>) -> u16 {
        let known = self.sites.iter().find(|(known, _)| ptr::eq(*known, site));
        known.map(|(_, number)| *number).unwrap_or_else(|| {
            let number = number(site);
            emit(&Site {
                site: number,
                file: site.file(),
                line: site.line(),
                column: site.column(),
            });
            self.sites.push((site, number));
            number
        })
    }

    /// Records a conflict: `other` holds a lock that the attempt needs, or has written a cell that
    /// the attempt has read.
    #[cold]
    pub(crate) fn blame(&mut self, lock: &Lock, other: Option<&Slot>) {
        let (other, other_site) = other.map_or((NOBODY, 0), |other| (other.number(), other.site()));
        self.blame = Blame { place: place(lock), other, other_site };
    }

    /// Records the transaction that doomed this one.
    #[cold]
    pub(crate) fn blame_killer(&mut self, slot: &Slot) {
        let (other, other_site) = slot.killer();
        self.blame = Blame { place: 0, other, other_site };
    }

    /// Records a commit.
    #[inline(always)]
    pub(crate) fn commit(&mut self) {
        if self.begin.is_none() {
            emit(&Done { site: self.site.1 });
        } else {
            self.commit_timed();
        }
    }

    #[inline(never)]
    fn commit_timed(&mut self) {
        emit(&Commit {});
        let is_long =
            self.begin.take().is_none_or(|begin| ticks().wrapping_sub(begin) > LONG_TICKS);
        self.untimed = if is_long { 0 } else { TIMED_EVERY - 1 };
    }

    /// Records an abort.
    #[cold]
    pub(crate) fn abort(&mut self, accesses: usize, cause: Cause) {
        let accesses = u32::try_from(accesses).unwrap_or(u32::MAX);
        let Blame { place, other, other_site } = std::mem::replace(&mut self.blame, UNKNOWN);
        emit(&Aborted {
            site: self.site.1,
            cause: cause.name(),
            place,
            other,
            other_site,
            accesses,
        });
        self.begin = None;
        // The following attempts have times, up to the one that commits.
        self.untimed = 0;
    }
}

#[inline(always)]
pub(crate) fn record_reads(reads: &mut Reads) {
    reads.record(
        |locks| emit_all::<Read, _>(locks, |lock| place(lock.as_ptr())),
        |first, count| emit(&Row { place: place(first.as_ptr()), count }),
    );
}

/// Records the writes that acquired a lock.
#[inline(always)]
pub(crate) fn record_writes<W>(writes: &[W], lock: impl Fn(&W) -> Option<NonNull<Lock>>) {
    if writes.iter().all(|write| lock(write).is_some()) {
        emit_all::<Write, _>(writes, |write| lock(write).map_or(0, |lock| place(lock.as_ptr())));
    } else {
        writes
            .iter()
            .filter_map(lock)
            .for_each(|lock| emit(&Write { place: place(lock.as_ptr()) }));
    }
}

/// Compares the addresses of call sites. One call site may have several addresses.
#[inline(always)]
fn is_same(
    one: Option<&'static Location<'static>>,
    other: Option<&'static Location<'static>>,
) -> bool {
    one.map_or(ptr::null(), ptr::from_ref) == other.map_or(ptr::null(), ptr::from_ref)
}

/// Returns the number of a call site, from 1, which is the same for all threads; 0 if there are too
/// many call sites.
fn number(site: &'static Location<'static>) -> u16 {
    shared_static! {
        static SITES: ForkMutex<Vec<&'static Location<'static>>> = ForkMutex::new(Vec::new());
    }
    let mut sites = SITES.lock();
    let known = sites.iter().position(|known| *known == site);
    let index = known.unwrap_or_else(|| {
        if sites.len() < SITES_MAX {
            sites.push(site);
        }
        sites.len() - 1
    });
    if sites[index] == site { index as u16 + 1 } else { 0 }
}
