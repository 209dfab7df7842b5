//! Contention managers: policies for a transaction that needs a lock which another one holds.
//!
//! A manager decides. A transaction that a manager dooms aborts itself: it checks for that at each
//! of its own conflicts and before it commits.

pub use crate::slot::Standing;
use corebeat_sync::atomic::{AtomicPtr, Ordering};
use corebeat_sync::const_unless_loom;
use std::ptr;

/// Decision about a lock that another transaction holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Abort this attempt and restart.
    Abort,
    /// Pause, then check the lock again. Pauses become longer.
    Wait,
    /// Request that the other transaction aborts, then pause.
    Kill,
}

/// Policy that decides which transaction of a conflict waits or aborts. See [`set`].
///
/// ```
/// use corebeat_stm::contention::{self, ContentionManager, Decision, Standing};
///
/// /// Waits for transactions that have opened more cells.
/// struct Modest;
///
/// impl ContentionManager for Modest {
///     fn on_conflict(&self, own: Standing, other: Standing, _waits: u32) -> Decision {
///         if own.karma < other.karma { Decision::Wait } else { Decision::Kill }
///     }
/// }
///
/// contention::set(&Modest);
/// # contention::set(&contention::Backoff);
/// ```
pub trait ContentionManager: Sync {
    /// Decides about a lock that `own` needs and `other` holds. Called repeatedly while the lock is
    /// held; `waits` counts the earlier calls, from 0. After [`WAITS_MAX`] pauses the transaction
    /// aborts in any case.
    fn on_conflict(&self, own: Standing, other: Standing, waits: u32) -> Decision;

    /// Returns the maximum pause before an attempt that follows `failed` failed ones (at least 1),
    /// in spins of a few nanoseconds. The length of the pause is random.
    fn pause_spins(&self, failed: u32) -> u32 {
        let _ = failed;
        0
    }
}

/// Maximum number of pauses of a transaction for the same lock.
pub const WAITS_MAX: u32 = 1_000;

/// Aborts at once and restarts at once.
///
/// Felber, Fetzer, Riegel, *Dynamic performance tuning of word-based software transactional
/// memory*, 2008 (TinySTM's default).
#[derive(Debug, Clone, Copy, Default)]
pub struct Suicide;

impl ContentionManager for Suicide {
    fn on_conflict(&self, _: Standing, _: Standing, _: u32) -> Decision {
        Decision::Abort
    }
}

/// Pauses with exponential backoff, then aborts; and pauses with exponential backoff before it
/// restarts. The default.
///
/// After *Polite* in Scherer, Scott, *Advanced contention management for dynamic software
/// transactional memory*, 2005, section 3, which kills the other transaction in the end.
#[derive(Debug, Clone, Copy, Default)]
pub struct Backoff;

impl Backoff {
    const WAITS_MAX: u32 = 8;
    const DOUBLINGS_MAX: u32 = 12;
}

impl ContentionManager for Backoff {
    fn on_conflict(&self, _: Standing, _: Standing, waits: u32) -> Decision {
        if waits < Self::WAITS_MAX { Decision::Wait } else { Decision::Abort }
    }

    fn pause_spins(&self, failed: u32) -> u32 {
        1 << failed.min(Self::DOUBLINGS_MAX)
    }
}

/// The transaction that has opened fewer cells waits, and each pause counts as one cell. The
/// transaction that has opened more kills the other one.
///
/// Scherer, Scott, 2005, section 3.
#[derive(Debug, Clone, Copy, Default)]
pub struct Karma;

impl ContentionManager for Karma {
    fn on_conflict(&self, own: Standing, other: Standing, waits: u32) -> Decision {
        if own.karma + u64::from(waits) > other.karma { Decision::Kill } else { Decision::Wait }
    }
}

/// The older transaction continues, unless it waits itself.
///
/// Guerraoui, Herlihy, Pochon, *Toward a theory of transactional contention managers*, 2005,
/// section 3. A transaction gets its age at its first conflict; before that, it is the youngest.
#[derive(Debug, Clone, Copy, Default)]
pub struct Greedy;

impl ContentionManager for Greedy {
    fn on_conflict(&self, own: Standing, other: Standing, _: u32) -> Decision {
        let is_younger = match (own.since, other.since) {
            (Some(own), Some(other)) => other > own,
            (_, None) => true,
            (None, Some(_)) => false,
        };
        if is_younger || other.is_waiting { Decision::Kill } else { Decision::Wait }
    }
}

/// Contention manager of the process.
pub(crate) struct Choice(AtomicPtr<&'static dyn ContentionManager>);

impl Choice {
    const_unless_loom! {
        pub(crate) fn new() -> Self {
            Choice(AtomicPtr::new(ptr::null_mut()))
        }
    }

    pub(crate) fn get(&self) -> &'static dyn ContentionManager {
        // Acquire: pairs with the Release in `set`.
        let chosen = self.0.load(Ordering::Acquire);
        // SAFETY: the pointer is null, or comes from a leaked box.
        unsafe { chosen.as_ref() }.copied().unwrap_or(&Backoff)
    }
}

/// Sets the contention manager of the process. Each call leaks a few bytes, because transactions
/// may still use the previous manager.
pub fn set(manager: &'static dyn ContentionManager) {
    let chosen = Box::into_raw(Box::new(manager));
    // Release: pairs with the Acquire in `get`.
    crate::global::GLOBAL.choice.0.store(chosen, Ordering::Release);
}
