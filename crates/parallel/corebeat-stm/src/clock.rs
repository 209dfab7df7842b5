//! The global version clock, the gate for exclusive commits, and the sole writer.
//!
//! A commit does not advance the clock: its version is the clock's time plus one, and other commits
//! may have the same version. A transaction that reads a version from the future advances the clock
//! to that version (Dice, Shalev, Shavit, *Transactional Locking II*, 2006, section 2, GV5). So
//! threads that access different memory rarely write this cache line.
//!
//! ```text
//!   63   62          55 54                   0
//!   +----+--------------+--------------------+
//!   |gate| sole writer  |        time        |
//!   +----+--------------+--------------------+
//! ```
//!
//! While the gate is closed, only the transaction that closed it commits.
//!
//! # Sole writer
//!
//! A thread that commits much more often than all others becomes the sole writer (`claim`, between
//! its transactions). The commit of another thread that writes ends this (`share`), and advances
//! the clock in the same step, while it holds all its locks. So the word shows the sole writer that
//! no other thread has committed a write since it began, and then its commit need not validate its
//! reads. TinySTM omits the validation in the same case, and observes the case by a clock that
//! each commit advances (Felber, Fetzer, Riegel, *Dynamic performance tuning of word-based software
//! transactional memory*, 2008, section 3). Here the sole writer writes no shared memory.
//!
//! Proof. Let W be the sole writer, in a transaction that began at the time *c*.
//!
//! 1. A commit of another thread holds all its locks when it loads this word. If the load precedes
//!    the claim of W, W finds these locks held or released, and never the replaced values. If the
//!    load follows the claim, the commit ends the claim. So if W finds its claim at its commit, no
//!    value that it has read was replaced, because W claims only between transactions. W holds all
//!    its own locks then; a commit that ends the claim later validates its reads later, and finds
//!    them. Both accesses of the word and of the locks are `SeqCst`.
//! 2. W may also read what it has committed itself, with versions up to *c + 1*, without an advance
//!    of the clock: its time is the version of its last commit, if that is higher (`begin`). The
//!    commits of others that W does not find complete at its begin are those that end its claim and
//!    later ones. They have higher versions, because the end of the claim advances the clock to
//!    *c + 1* or more. Therefore both are in one word: if they were two, a third thread could
//!    commit with the version *c + 1* between the two changes.
//! 3. Several commits of W may give a lock the same version, as long as the clock is below it. No
//!    other thread keeps such a version from before: a thread advances the clock to a version
//!    before it accepts or returns it, and loads the lock again before it reads the value. A
//!    version that a thread keeps of its own write (`retry`, a unit store) is in the clock
//!    before the lock is released. So later commits have higher versions.

use crate::fault::{Fault, is_planted};
use corebeat_sync::atomic::{AtomicU64, Ordering};
use corebeat_sync::const_unless_loom;

const GATE: u64 = 1 << 63;
const WRITER_SHIFT: u32 = 55;
const WRITER: u64 = 0xff << WRITER_SHIFT;
const TIME: u64 = (1 << WRITER_SHIFT) - 1;

pub(crate) struct Clock(AtomicU64);

/// A thread as a sole writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Writer(u64);

impl Writer {
    /// Threads with higher numbers do not become sole writers.
    const NUMBER_MAX: u32 = 254;
    /// Equals no writer in a clock: while the gate is closed, there is none.
    const NEVER: Writer = Writer(GATE | WRITER);

    /// The thread whose slot has this number.
    pub(crate) fn new(number: u32) -> Writer {
        if number > Writer::NUMBER_MAX {
            return Writer::NEVER;
        }
        Writer(u64::from(number + 1) << WRITER_SHIFT)
    }
}

/// State of the clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now(u64);

impl Now {
    /// Versions are this time plus one.
    #[inline(always)]
    pub(crate) fn time(self) -> u64 {
        self.0 & TIME
    }

    /// Whether the gate is closed. Then there is no sole writer.
    #[inline(always)]
    pub(crate) fn is_closed(self) -> bool {
        self.0 & GATE != 0
    }

    /// Whether the thread is the sole writer.
    #[inline(always)]
    pub(crate) fn is_sole(self, writer: Writer) -> bool {
        self.0 & WRITER == writer.0
    }

    /// Returns the time, if the thread is the sole writer.
    #[inline(always)]
    pub(crate) fn time_of_sole(self, writer: Writer) -> Option<u64> {
        // The difference is higher than each time unless the other bits are those of the writer.
        let time = self.0.wrapping_sub(writer.0);
        (time <= TIME).then_some(time)
    }

    /// Whether any thread is the sole writer.
    #[inline(always)]
    pub(crate) fn has_sole(self) -> bool {
        self.0 & WRITER != 0
    }
}

impl Clock {
    const_unless_loom! {
        pub(crate) fn new() -> Self {
            Clock(AtomicU64::new(0))
        }
    }

    /// Returns the time and the states of the gate and of the sole writer.
    #[inline(always)]
    pub(crate) fn now(&self) -> Now {
        Now(load_latest(&self.0))
    }

    /// Changes the word unless `change` returns `None`. Returns the new word, or `None`.
    fn change(&self, change: impl Fn(Now) -> Option<u64>) -> Option<Now> {
        let mut now = self.now();
        while let Some(word) = change(now) {
            match self.0.compare_exchange(now.0, word, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return Some(Now(word)),
                Err(other) => now = Now(other),
            }
        }
        None
    }

    /// Advances the clock to at least `time`.
    pub(crate) fn advance_to(&self, time: u64) {
        self.change(|now| (now.time() < time).then_some(now.0 & !TIME | time));
    }

    /// Closes the gate. Returns `false` if the gate is closed already.
    pub(crate) fn close_gate(&self) -> bool {
        self.change(|now| (!now.is_closed()).then_some(without_sole(now) | GATE)).is_some()
    }

    /// Opens the gate, which the caller has closed.
    pub(crate) fn open_gate(&self) {
        self.0.fetch_sub(GATE, Ordering::SeqCst);
    }

    /// Makes the thread the sole writer, unless another thread is or the gate is closed. Returns
    /// whether the thread is the sole writer. It is in no transaction.
    pub(crate) fn claim(&self, writer: Writer) -> bool {
        let is_free = |now: Now| now.0 & (GATE | WRITER) == 0 && writer != Writer::NEVER;
        self.change(|now| is_free(now).then_some(now.0 | writer.0)).is_some()
    }

    /// Ends the claim of the sole writer, on behalf of a commit of another thread that holds its
    /// locks. Returns the state then. If a thread claims after that, the commit need not end this
    /// claim too: it holds its locks since before the claim (part 1 of the proof).
    #[cold]
    pub(crate) fn share(&self) -> Now {
        self.change(|now| now.has_sole().then(|| without_sole(now))).unwrap_or_else(|| self.now())
    }
}

/// Returns the word without the sole writer, at a time from which on all versions are higher than
/// its time.
fn without_sole(now: Now) -> u64 {
    let step = u64::from(now.has_sole() && !is_planted(Fault::Share));
    (now.0 & !WRITER) + step
}

/// Returns the value of the word in the total order of all `SeqCst` accesses.
///
/// loom treats a `SeqCst` load as an `Acquire` load. In a model this function is a
/// read-modify-write operation that changes nothing: it also reads the latest value, and adds no
/// other guarantee.
#[inline(always)]
#[cfg_attr(loom, track_caller)]
pub(crate) fn load_latest(word: &AtomicU64) -> u64 {
    #[cfg(loom)]
    return word.fetch_add(0, Ordering::Acquire);
    #[cfg(not(loom))]
    word.load(Ordering::SeqCst)
}
