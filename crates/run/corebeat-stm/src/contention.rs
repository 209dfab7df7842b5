//! What a transaction does that meets another one's lock: the field's contention managers.
//!
//! A manager decides; to give way is up to the other, who looks whether it was asked to whenever it meets somebody itself,
//! and before it commits.

pub use crate::slot::Standing;
use corebeat_sync::atomic::{AtomicPtr, Ordering};
use std::ptr;

/// What to do about a lock that another transaction holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Give up this attempt, and begin again.
    Abort,
    /// Wait a moment, and look again. Moments get longer.
    Wait,
    /// Ask the other to give up, and wait a moment.
    Kill,
}

/// Who gives way. See [`set`].
///
/// ```
/// use corebeat_stm::contention::{self, ContentionManager, Decision, Standing};
///
/// /// Waits for whoever has done more.
/// struct Modest;
///
/// impl ContentionManager for Modest {
///     fn meet(&self, own: Standing, other: Standing, _asked: u32) -> Decision {
///         if own.karma < other.karma { Decision::Wait } else { Decision::Kill }
///     }
/// }
///
/// contention::set(&Modest);
/// # contention::set(&contention::Backoff);
/// ```
pub trait ContentionManager: Sync {
    /// A lock that `own` wants is held by `other`. Asked again, with `asked` from 0, as long as that is so; who was told to
    /// wait [`ASKED_MAX`] times gives up whatever is said.
    fn meet(&self, own: Standing, other: Standing, asked: u32) -> Decision;

    /// How long to pause, at most, before an attempt that follows so many that failed (from 1): in spins, of a few
    /// nanoseconds each. The pause is drawn at random.
    fn pause_spins(&self, failed: u32) -> u32 {
        let _ = failed;
        0
    }
}

/// How often a transaction waits for the same lock.
pub const ASKED_MAX: u32 = 1_000;

/// Gives up at once, and begins again at once.
///
/// Felber, Fetzer, Riegel, *Dynamic performance tuning of word-based software transactional memory*, 2008 (TinySTM's
/// default).
#[derive(Debug, Clone, Copy, Default)]
pub struct Suicide;

impl ContentionManager for Suicide {
    fn meet(&self, _: Standing, _: Standing, _: u32) -> Decision {
        Decision::Abort
    }
}

/// Waits a little, twice as long each time, then gives up; and pauses before it begins again, twice as long each time. The
/// default.
///
/// After *Polite* in Scherer, Scott, *Advanced contention management for dynamic software transactional memory*, 2005, section
/// 3, which kills the other in the end.
#[derive(Debug, Clone, Copy, Default)]
pub struct Backoff;

impl Backoff {
    const ASKED_MAX: u32 = 8;
    const DOUBLINGS_MAX: u32 = 12;
}

impl ContentionManager for Backoff {
    fn meet(&self, _: Standing, _: Standing, asked: u32) -> Decision {
        if asked < Self::ASKED_MAX { Decision::Wait } else { Decision::Abort }
    }

    fn pause_spins(&self, failed: u32) -> u32 {
        1 << failed.min(Self::DOUBLINGS_MAX)
    }
}

/// Who has done less gives way: it waits, and each time counts as work; who has done more has the other killed.
///
/// Scherer, Scott, 2005, section 3.
#[derive(Debug, Clone, Copy, Default)]
pub struct Karma;

impl ContentionManager for Karma {
    fn meet(&self, own: Standing, other: Standing, asked: u32) -> Decision {
        if own.karma + u64::from(asked) > other.karma { Decision::Kill } else { Decision::Wait }
    }
}

/// The older one goes on, unless it waits itself.
///
/// Guerraoui, Herlihy, Pochon, *Toward a theory of transactional contention managers*, 2005, section 3. A transaction gets its
/// age when it first meets another one; before, it is the youngest.
#[derive(Debug, Clone, Copy, Default)]
pub struct Greedy;

impl ContentionManager for Greedy {
    fn meet(&self, own: Standing, other: Standing, _: u32) -> Decision {
        let is_younger = match (own.since, other.since) {
            (Some(own), Some(other)) => other > own,
            (_, None) => true,
            (None, Some(_)) => false,
        };
        if is_younger || other.waits { Decision::Kill } else { Decision::Wait }
    }
}

/// The manager of the process.
pub(crate) struct Choice(AtomicPtr<&'static dyn ContentionManager>);

impl Choice {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Choice(AtomicPtr::new(ptr::null_mut()))
    }

    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Choice(AtomicPtr::new(ptr::null_mut()))
    }

    pub(crate) fn get(&self) -> &'static dyn ContentionManager {
        // Acquire: pairs with the Release in `set`.
        let chosen = self.0.load(Ordering::Acquire);
        // SAFETY: null, or a box that was leaked.
        unsafe { chosen.as_ref() }.copied().unwrap_or(&Backoff)
    }
}

/// From now on, this manager decides for all transactions of the process. A few bytes stay behind each time.
pub fn set(manager: &'static dyn ContentionManager) {
    let chosen = Box::into_raw(Box::new(manager));
    // Release: pairs with the Acquire in `get`.
    crate::global::GLOBAL.choice.0.store(chosen, Ordering::Release);
}
