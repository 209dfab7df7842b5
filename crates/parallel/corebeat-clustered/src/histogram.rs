//! Histograms.

use crate::cluster::{Chosen, Clustered, Miss, Root};
use crate::domain::{Domain, Thread};
use corebeat_sync::atomic::{AtomicU64, Ordering};
use std::fmt;

/// Number of bisections of each power of two.
const DIVISIONS: u32 = 5;
const PARTS: usize = 1 << DIVISIONS;
/// Number of buckets for values up to 2^64.
const BUCKETS: usize = (u64::BITS - DIVISIONS + 1) as usize * PARTS;

/// Counts values: exact up to 63, with a resolution of 1/32 above.
///
/// ```
/// use corebeat_clustered::Histogram;
///
/// let times_us: Histogram = Histogram::new();
/// (1..=1000).for_each(|time_us| times_us.record(time_us));
/// let distribution = times_us.read();
/// assert_eq!(distribution.count(), 1000);
/// assert!((500..=515).contains(&distribution.quantile(0.5).unwrap()));
/// ```
///
/// Each place has its own counts (15 KiB), as in [`Counter`](crate::Counter); a read adds them.
pub struct Histogram<D: Domain = Thread> {
    parts: Clustered<Parts, D>,
}

struct Parts;

impl Root for Parts {
    type Rep = Box<[AtomicU64]>;

    fn miss(&self, miss: Miss<'_, Self::Rep>) -> Chosen<Self::Rep> {
        miss.one_per_place((0..BUCKETS).map(|_| AtomicU64::new(0)).collect())
    }
}

/// Returns the bucket of a value.
#[inline(always)]
fn bucket(value: u64) -> usize {
    // Small values have one bucket each.
    let shift = (u64::BITS - (value | PARTS as u64).leading_zeros() - 1) - DIVISIONS;
    (shift as usize) * PARTS + (value >> shift) as usize
}

/// Returns the greatest value of a bucket.
fn greatest(bucket: usize) -> u64 {
    let shift = (bucket / PARTS).saturating_sub(1);
    let part = (bucket - shift * PARTS) as u64;
    (part << shift) | ((1 << shift) - 1)
}

impl<D: Domain> Histogram<D> {
    /// Creates an empty histogram.
    pub fn new() -> Self {
        Histogram { parts: Clustered::new(Parts) }
    }

    /// Counts a value.
    #[inline]
    pub fn record(&self, value: u64) {
        let (parts, is_alone) = self.parts.here_and_alone();
        let part = &parts[bucket(value)];
        // Relaxed: as in `Counter`.
        if is_alone {
            part.store(part.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        } else {
            part.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the counts: all values recorded before this call, and some of the concurrent ones.
    pub fn read(&self) -> Distribution {
        let counts = self.parts.fold(vec![0; BUCKETS], |mut counts, parts| {
            counts
                .iter_mut()
                .zip(parts)
                .for_each(|(sum, part)| *sum += part.load(Ordering::Relaxed));
            counts
        });
        Distribution { counts }
    }
}

/// The counts of a [`Histogram`] at the time of a read.
#[derive(Clone, PartialEq, Eq)]
pub struct Distribution {
    counts: Vec<u64>,
}

impl Distribution {
    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the least value such that this share of all values (0 to 1) is not above it, rounded
    /// up by at most 1/32. `None` without values.
    ///
    /// # Panics
    /// If the share is below 0, above 1, or NaN.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        assert!((0.0..=1.0).contains(&share), "a share must be between 0 and 1, not {share}");
        // Above 2^53 values the product may be rounded to more than the count.
        let count = self.count();
        let rank = ((share * count as f64).ceil() as u64).min(count).max(1);
        let mut below = 0;
        let is_reached = |count: &u64| {
            below += count;
            below >= rank
        };
        self.counts.iter().position(is_reached).map(greatest)
    }
}

impl<D: Domain> Default for Histogram<D> {
    fn default() -> Self {
        Histogram::new()
    }
}

impl<D: Domain> fmt::Debug for Histogram<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Histogram").field(&self.read()).finish()
    }
}

impl fmt::Debug for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        f.debug_map().entries(used.map(|(bucket, count)| (greatest(bucket), count))).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn quantile_is_defined_for_counts_above_two_to_the_53() {
        let mut counts = vec![0; BUCKETS];
        (counts[3], counts[5]) = ((1 << 53) + 2, 1);
        let distribution = Distribution { counts };
        assert_eq!([0.0, 0.5, 1.0].map(|share| distribution.quantile(share)), [3, 3, 5].map(Some));
    }

    #[test]
    fn buckets_are_adjacent_and_narrow() {
        for at in 0..BUCKETS {
            assert_eq!(bucket(greatest(at)), at);
            if at + 1 < BUCKETS {
                assert_eq!(bucket(greatest(at) + 1), at + 1);
                let width = greatest(at + 1) - greatest(at);
                assert!(width == 1 || width <= (greatest(at) + 1) / PARTS as u64, "{at}");
            }
        }
        assert_eq!(greatest(BUCKETS - 1), u64::MAX);
    }
}
