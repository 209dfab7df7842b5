//! Transactional counters.

use crate::{Abort, TCell, Tx};
use corebeat_sync::CachePadded;
use std::fmt;

/// Number of parts of a counter. Threads with the same number modulo this share a part.
const PARTS: usize = 16;

/// A counter in parts, for transactions that add more often than they read: additions of up to 16
/// threads do not conflict. A read conflicts with all additions.
///
/// ```
/// use corebeat_stm::{TCounter, atomically};
///
/// let served = TCounter::new();
/// atomically(|tx| served.add(tx, 3));
/// atomically(|tx| served.add(tx, -1));
/// assert_eq!(atomically(|tx| served.value(tx)), 2);
/// ```
///
/// The value wraps around at the limits of `i64`, without a report: an addition reads only its own
/// part, which may exceed the limits while the sum of all parts does not. The counter takes 2 KiB.
pub struct TCounter {
    parts: Box<[CachePadded<TCell<i64>>; PARTS]>,
}

impl TCounter {
    /// Creates a counter with the value 0.
    pub fn new() -> TCounter {
        TCounter { parts: Box::default() }
    }

    /// Adds `n`, which may be negative.
    ///
    /// # Errors
    ///
    /// The attempt cannot continue: return the error from the closure.
    pub fn add<'t>(&'t self, tx: &mut Tx<'t, '_>, n: i64) -> Result<(), Abort> {
        tx.update(&self.parts[tx.thread_number() % PARTS], |part| part.wrapping_add(n))
    }

    /// Returns the sum of all additions.
    ///
    /// # Errors
    ///
    /// As for [`add`](TCounter::add).
    pub fn value<'t>(&'t self, tx: &mut Tx<'t, '_>) -> Result<i64, Abort> {
        self.parts.iter().try_fold(0, |sum: i64, part| Ok(sum.wrapping_add(tx.read(part)?)))
    }
}

impl Default for TCounter {
    fn default() -> Self {
        TCounter::new()
    }
}

impl fmt::Debug for TCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Only transactions may read the parts.
        f.debug_struct("TCounter").finish_non_exhaustive()
    }
}
