//! What transactions tell of themselves, into the trace that is installed.
//!
//! After Schindewolf, Karl, *Capturing Transactional Memory Application's Behavior*, 2012, section 3: start, read, write, commit
//! and abort, each thread into its own stream; all of them, or only those of attempts as a whole. Unlike there, an attempt tells
//! what it read and wrote when it is over, from the lists that it keeps anyway, so reads and writes cost nothing where nobody
//! traces; and clean transactions do without looks at the counter, mostly.
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
//! trace::name(&accounts, "accounts"); // instead of addresses
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
//! | kind | time | fields | is |
//! | --- | --- | --- | --- |
//! | `stm.thread` | | `slot` | before the first event of a thread: its number among those that do transactions |
//! | `stm.site` | | `site`, `file`, `line`, `column` | where an `atomically` or `snapshot` stands, before it is first named |
//! | `stm.cells` | | `place`, `count`, `name` | [`name`] |
//! | `stm.start` | has one | `site` | an attempt begins |
//! | `stm.read`, `stm.write` | | `place` | what the attempt that ends next has read of others, and taken to write |
//! | `stm.reads` | | `place`, `count` | it has read so many cells in a row, from there on |
//! | `stm.commit` | has one | | the attempt has committed |
//! | `stm.done` | | `site` | an attempt has begun and committed: a first one, for which nobody looked at the counter |
//! | `stm.abort` | has one | `site`, `cause`, `place`, `other`, `other_site`, `accesses` | the attempt came to nothing |
//!
//! A place is the address of a cell divided by 16, its low 32 bits. `other` is the slot of the transaction that was in the way, or
//! [`NOBODY`]; `place`, where they met, or 0.
//!
//! A look at the counter takes as long as a short transaction. So first attempts have times only now and then: one of
//! [`TIMED_EVERY`], and more often where they are long. From the first that fails on, a transaction's attempts all have them.

use crate::TCell;
use crate::counter::Cause;
use crate::lock::Lock;
use crate::reads::Reads;
pub use crate::report::{Attempts, Conflict, Place, Report, Transactions};
use crate::slot::Slot;
use crate::value::Value;
use corebeat_trace::{Event, emit, emit_all, ticks};
use std::panic::Location;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// Of so many first attempts in a row one has times, where they are short.
pub const TIMED_EVERY: u32 = 64;
/// Attempts of more ticks of the counter are long: microseconds.
const LONG_TICKS: u64 = 1 << 12;
/// Places in a program where transactions begin, that are told apart. Others are 0.
pub const SITES_MAX: usize = 1 << 12;
/// In the place of a slot: who it was is not known.
pub const NOBODY: u32 = u32::MAX;

/// What is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Nothing.
    Off,
    /// Starts, commits and aborts.
    Reduced,
    /// All that, and what was read and written.
    Full,
}

/// What all threads tell: the detail, and above it how often that was set.
static STATE: AtomicU32 = AtomicU32::new(0);
const DETAIL: u32 = 3;

/// From their next attempt on, all transactions of the process tell so much, into the trace that is installed. Attempts that are under way
/// tell nothing more. To be said again when another trace has been installed.
pub fn set(detail: Detail) {
    let detail = detail as u32;
    let next = |state: u32| Some((state | DETAIL).wrapping_add(1) | detail);
    // Relaxed: nothing else is known by it, and threads see it when they do.
    let _ = STATE.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
}

/// Whether somebody wants to hear of transactions.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    // Relaxed: as in `set`. Models have no time for it.
    !cfg!(loom) && STATE.load(Ordering::Relaxed) & DETAIL != 0
}

/// Tells the trace that is installed what cells are called: the first of them `name[0]`, or just `name` if it is the only one.
/// In reports that stands in the place of addresses.
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
struct Told<'a> {
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

/// Who was in the way.
#[derive(Clone, Copy)]
struct Blame {
    place: u32,
    other: u32,
    other_site: u16,
}

const UNKNOWN: Blame = Blame { place: 0, other: NOBODY, other_site: 0 };

/// What a thread has told, and what it knows of its attempt.
pub(crate) struct Teller {
    /// What was set when it last looked.
    state: u32,
    /// Where the attempt stands in the program, and the number of that.
    site: (Option<&'static Location<'static>>, u16),
    /// All of which it has told.
    sites: Vec<(&'static Location<'static>, u16)>,
    /// First attempts that go without times before the next that has them.
    untimed: u32,
    /// The counter when the attempt began, if it has times.
    begin: Option<u64>,
    blame: Blame,
}

impl Teller {
    pub(crate) fn new() -> Teller {
        Teller { state: 0, site: (None, 0), sites: Vec::new(), untimed: 0, begin: None, blame: UNKNOWN }
    }

    /// Whether reads and writes are told.
    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        self.state & DETAIL == Detail::Full as u32
    }

    /// Whether nothing else was set since it last looked, when an attempt began.
    #[inline(always)]
    pub(crate) fn is_current(&self) -> bool {
        // Relaxed: as in `set`.
        self.state == STATE.load(Ordering::Relaxed)
    }

    /// An attempt begins.
    #[inline(always)]
    pub(crate) fn start(&mut self, slot: &Slot, site: Option<&'static Location<'static>>) {
        if self.untimed > 0 && is_same(self.site.0, site) && self.is_current() {
            self.untimed -= 1;
        } else {
            self.start_slowly(slot, site);
        }
    }

    /// With a time stamp, or something to tell before it.
    #[inline(never)]
    fn start_slowly(&mut self, slot: &Slot, site: Option<&'static Location<'static>>) {
        let state = STATE.load(Ordering::Relaxed);
        if self.state != state {
            self.begin_anew(state, slot);
        }
        if !is_same(self.site.0, site) {
            self.site = site.map_or((None, 0), |site| (Some(site), self.find(site)));
            slot.tell_site(self.site.1);
        }
        if self.untimed > 0 {
            self.untimed -= 1;
        } else {
            self.begin = Some(ticks());
            emit(&Start { site: self.site.1 });
        }
    }

    /// This trace knows nothing yet of what other ones were told.
    #[cold]
    fn begin_anew(&mut self, state: u32, slot: &Slot) {
        self.state = state;
        self.sites.clear();
        self.site = (None, 0);
        self.untimed = 0;
        // Of an attempt of which nobody wanted to hear.
        self.blame = UNKNOWN;
        emit(&Thread { slot: slot.number() });
    }

    /// The number of another place in the program, which is told where it is new.
    #[cold]
    fn find(&mut self, site: &'static Location<'static>) -> u16 {
        let known = self.sites.iter().find(|(known, _)| ptr::eq(*known, site));
        known.map(|(_, number)| *number).unwrap_or_else(|| {
            let number = number(site);
            emit(&Told { site: number, file: site.file(), line: site.line(), column: site.column() });
            self.sites.push((site, number));
            number
        })
    }

    /// It met somebody there, who holds what it wants, or has written what it has read.
    #[cold]
    pub(crate) fn blame(&mut self, lock: &Lock, other: Option<&Slot>) {
        let (other, other_site) = other.map_or((NOBODY, 0), |other| (other.number(), other.site()));
        self.blame = Blame { place: place(lock), other, other_site };
    }

    /// Another has asked it to give way.
    #[cold]
    pub(crate) fn blame_killer(&mut self, slot: &Slot) {
        let (other, other_site) = slot.killer();
        self.blame = Blame { place: 0, other, other_site };
    }

    /// The attempt has committed.
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
        let is_long = self.begin.take().is_none_or(|begin| ticks().wrapping_sub(begin) > LONG_TICKS);
        self.untimed = if is_long { 0 } else { TIMED_EVERY - 1 };
    }

    /// The attempt came to nothing.
    #[cold]
    pub(crate) fn abort(&mut self, accesses: usize, cause: Cause) {
        let accesses = u32::try_from(accesses).unwrap_or(u32::MAX);
        let Blame { place, other, other_site } = std::mem::replace(&mut self.blame, UNKNOWN);
        emit(&Aborted { site: self.site.1, cause: cause.name(), place, other, other_site, accesses });
        self.begin = None;
        // Those that follow have times, up to the one that commits.
        self.untimed = 0;
    }
}

#[inline(always)]
pub(crate) fn tell_reads(reads: &mut Reads) {
    reads.tell(
        |locks| emit_all::<Read, _>(locks, |lock| place(lock.as_ptr())),
        |first, count| emit(&Row { place: place(first.as_ptr()), count }),
    );
}

/// Of those that have a lock.
#[inline(always)]
pub(crate) fn tell_writes<W>(writes: &[W], lock: impl Fn(&W) -> Option<NonNull<Lock>>) {
    if writes.iter().all(|write| lock(write).is_some()) {
        emit_all::<Write, _>(writes, |write| lock(write).map_or(0, |lock| place(lock.as_ptr())));
    } else {
        writes.iter().filter_map(lock).for_each(|lock| emit(&Write { place: place(lock.as_ptr()) }));
    }
}

/// Whether they have the same address. The same place may have several.
#[inline(always)]
fn is_same(one: Option<&'static Location<'static>>, other: Option<&'static Location<'static>>) -> bool {
    one.map_or(ptr::null(), ptr::from_ref) == other.map_or(ptr::null(), ptr::from_ref)
}

/// The number of a place in the program, the same for all threads, from 1. 0: there are too many.
fn number(site: &'static Location<'static>) -> u16 {
    static SITES: Mutex<Vec<&'static Location<'static>>> = Mutex::new(Vec::new());
    let mut sites = SITES.lock().unwrap_or_else(PoisonError::into_inner);
    let known = sites.iter().position(|known| *known == site);
    let index = known.unwrap_or_else(|| {
        if sites.len() < SITES_MAX {
            sites.push(site);
        }
        sites.len() - 1
    });
    if sites[index] == site { index as u16 + 1 } else { 0 }
}
