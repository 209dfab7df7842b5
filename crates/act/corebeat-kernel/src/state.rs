//! The counters that the scheduler shares with user space: the layouts of `bpf/decision.h`.

/// No group (`NO_GROUP`).
pub(crate) const NO_GROUP: u32 = u32::MAX;
/// Time over which a quota counts, in nanoseconds (`QUOTA_PERIOD_NS`).
pub(crate) const QUOTA_PERIOD_NS: u64 = 100_000_000;
/// Longest wait of a thread, in nanoseconds (`STARVATION_NS`).
pub(crate) const STARVATION_NS: u64 = 5_000_000_000;
/// Flags of a group.
pub(crate) const GROUP_IS_BATCH: u32 = 1;
pub(crate) const GROUP_IS_IDLE: u32 = 2;
pub(crate) const GROUP_IS_SET: u32 = 4;
/// In a request: the threads of the group belong to no program any more.
#[cfg(feature = "bpf")]
pub(crate) const GROUP_IS_OVER: u32 = 8;

/// Largest mean number of runnable threads beyond those of both readings.
const MEAN_MAX: f64 = 1000.0;

/// Size of `struct group`, in bytes.
pub(crate) const GROUP_BYTES: usize = 96;

/// The runnable threads of a group, from `struct group`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Counter {
    /// Number of threads that run or wait.
    pub(crate) runnable: u64,
    /// Sum of their run and wait time, less the number times the present time, modulo 2^64.
    pub(crate) base_ns: u64,
}

impl Counter {
    /// Reads the counters of all groups; those that are missing are 0.
    pub(crate) fn read(groups: &[u8]) -> Vec<Counter> {
        let number = |group: &[u8], at: usize| {
            let bytes = group.get(at * 8..at * 8 + 8).and_then(|bytes| bytes.try_into().ok());
            bytes.map_or(0, u64::from_ne_bytes)
        };
        let counter =
            |group: &[u8]| Counter { runnable: number(group, 2), base_ns: number(group, 3) };
        groups.chunks_exact(GROUP_BYTES).map(counter).collect()
    }

    /// Returns the mean number of runnable threads since an earlier reading. `None` if one of the
    /// readings has only one of the two numbers of a change: such a reading is wrong by the present
    /// time, divided by the span.
    pub(crate) fn mean(self, now_ns: u64, before: Counter, before_ns: u64) -> Option<f64> {
        let total = |c: Counter, ns: u64| c.base_ns.wrapping_add(c.runnable.wrapping_mul(ns));
        let sum_ns = total(self, now_ns).wrapping_sub(total(before, before_ns)).cast_signed();
        let span_ns = now_ns.saturating_sub(before_ns);
        if span_ns == 0 {
            return Some(self.runnable as f64);
        }
        let mean = sum_ns as f64 / span_ns as f64;
        let most = self.runnable.saturating_add(before.runnable) as f64 + MEAN_MAX;
        // A reading may be later than its time by a few events.
        (mean >= -1.0 && mean <= most).then_some(mean.max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_of_runnable_threads_follows_their_times() {
        // Two threads run from 0 on, and one of them ends at 600.
        let at = |runnable: u64, base: i64| Counter { runnable, base_ns: base.cast_unsigned() };
        let (start, later) = (at(2, 0), at(1, 600));
        assert_eq!(start.mean(1_000, start, 0), Some(2.0));
        assert_eq!(later.mean(1_000, start, 0), Some(1.6));
        assert_eq!(later.mean(1_000, later, 1_000), Some(1.0));
        assert_eq!(at(1, -500).mean(1_000, at(0, 0), 0), Some(0.5), "it started at 500");
    }

    #[test]
    fn torn_counters_have_no_mean() {
        // At 60 s, a thread wakes up, and the reading has only its number, or only its time.
        let now_ns = 60_000_000_000_u64;
        let before = Counter { runnable: 1, base_ns: 0 };
        let number = Counter { runnable: 2, base_ns: 0 };
        let time = Counter { runnable: 1, base_ns: now_ns.wrapping_neg() };
        for torn in [number, time] {
            assert_eq!(torn.mean(now_ns, before, now_ns - 10_000_000), None);
        }
        let whole = Counter { runnable: 2, base_ns: now_ns.wrapping_neg() };
        assert_eq!(whole.mean(now_ns, before, now_ns - 10_000_000), Some(1.0));
    }

    #[test]
    fn truncated_counters_are_missing() {
        let mut bytes = vec![0; 2 * GROUP_BYTES];
        bytes[GROUP_BYTES + 16] = 3;
        assert_eq!(Counter::read(&bytes)[1].runnable, 3);
        assert_eq!(Counter::read(&bytes[..GROUP_BYTES + 7]).len(), 1);
    }
}
