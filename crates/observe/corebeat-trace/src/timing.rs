//! Converts counter values to times.
//!
//! Between two fixes of a thread the counter is assumed to advance evenly, so the time of an event
//! is interpolated (Schindewolf and Karl, Capturing Transactional Memory Application's Behavior,
//! 2012, section 3.2). Two errors are possible:
//!
//! ```text
//!   window    a fix reads the clock between two readings of the counter: half of their distance
//!   spread    the thread may have moved to another core between the fixes, and back: the largest
//!             observed difference between the counters of cores
//! ```
//!
//! Their sum is the bound. The bound never exceeds the time between the two fixes, because the
//! event happened between them. It holds if every core that the thread used appears in a fix and
//! counters drift evenly between fixes.

use crate::counter::{Fix, NO_WINDOW};
use std::collections::BTreeMap;

/// The rate of the counters, and how far they differ.
#[derive(Debug, Clone, Default)]
pub(crate) struct Clock {
    origin: Option<Fix>,
    /// Measured over the longest time between two fixes on the origin's core.
    rate: Option<Rate>,
    /// The largest and the smallest lead of a counter over the origin's, which further fixes
    /// extend.
    ahead_ns: (i64, i64),
    spread_ns: u64,
}

/// Limits on the cores and fixes that are compared to determine how counters differ.
const CORES_MAX: usize = 1 << 10;
const FIXES_MAX: usize = 1 << 16;

#[derive(Debug, Clone, Copy)]
struct Rate {
    ticks: u64,
    ns: u64,
}

impl Rate {
    fn ns(self, ticks: i64) -> i64 {
        clamp((i128::from(ticks) * i128::from(self.ns)).checked_div(self.ticks.into()).unwrap_or(0))
    }
}

fn clamp(number: i128) -> i64 {
    number.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

impl Clock {
    /// Determines rate and spread from all fixes.
    pub(crate) fn of(fixes: &[Fix]) -> Clock {
        let mut clock = Clock::default();
        fixes.iter().for_each(|fix| clock.learn_rate(fix));
        let mut cores = BTreeMap::<u32, Vec<(u64, i64)>>::new();
        for fix in fixes.iter().step_by(fixes.len() / FIXES_MAX + 1) {
            if let Some(ahead_ns) = clock.ahead_ns(fix)
                && (cores.len() < CORES_MAX || cores.contains_key(&fix.cpu))
            {
                cores.entry(fix.cpu).or_default().push((fix.monotonic_ns, ahead_ns));
            }
        }
        cores.values_mut().for_each(|points| points.sort_unstable());
        // Each core is a polyline through its fixes. The distance of two polylines is largest at a
        // vertex.
        let mut times: Vec<u64> = cores.values().flatten().map(|(time_ns, _)| *time_ns).collect();
        times.sort_unstable();
        let (mut most, mut least) = (vec![i64::MIN; times.len()], vec![i64::MAX; times.len()]);
        for points in cores.values() {
            let mut next = 0;
            for (i, time_ns) in times.iter().enumerate() {
                while points.get(next).is_some_and(|(point_ns, _)| point_ns < time_ns) {
                    next += 1;
                }
                let ahead_ns =
                    match (next.checked_sub(1).map(|last| points[last]), points.get(next)) {
                        (Some((from_ns, from)), Some(&(to_ns, to))) => {
                            let (part, all) = (time_ns - from_ns, to_ns - from_ns);
                            let way = clamp(i128::from(to) - i128::from(from));
                            let way = i128::from(way) * i128::from(part) / i128::from(all.max(1));
                            clamp(i128::from(from) + way)
                        }
                        // Before the first fix and after the last one, the lead is constant.
                        (Some((_, ahead_ns)), None) | (None, Some(&(_, ahead_ns))) => ahead_ns,
                        (None, None) => continue,
                    };
                most[i] = most[i].max(ahead_ns);
                least[i] = least[i].min(ahead_ns);
            }
        }
        clock.spread_ns = most.iter().zip(&least).map(|(m, l)| m.abs_diff(*l)).max().unwrap_or(0);
        clock
    }

    /// Adds one more fix. No fix is discarded, so a common drift of all counters counts as a
    /// difference.
    pub(crate) fn learn_fix(&mut self, fix: &Fix) {
        self.learn_rate(fix);
        if let Some(ahead_ns) = self.ahead_ns(fix) {
            self.ahead_ns = (self.ahead_ns.0.max(ahead_ns), self.ahead_ns.1.min(ahead_ns));
            self.spread_ns = self.spread_ns.max(self.ahead_ns.0.abs_diff(self.ahead_ns.1));
        }
    }

    fn learn_rate(&mut self, fix: &Fix) {
        let origin = *self.origin.get_or_insert(*fix);
        let (ticks, ns) = (ticks(&origin, fix), ns(&origin, fix));
        if fix.cpu == origin.cpu
            && ticks.signum() * ns.signum() > 0
            && ns.unsigned_abs() > self.rate.map_or(0, |r| r.ns)
        {
            self.rate = Some(Rate { ticks: ticks.unsigned_abs(), ns: ns.unsigned_abs() });
        }
    }

    /// The lead of a counter over the expected value of the origin's counter.
    fn ahead_ns(&self, fix: &Fix) -> Option<i64> {
        let (origin, rate) = (self.origin?, self.rate?);
        Some(rate.ns(ticks(&origin, fix)).saturating_sub(ns(&origin, fix)))
    }

    /// Ticks of the counter per second, if known.
    pub(crate) fn hz(&self) -> Option<f64> {
        self.rate.map(|rate| rate.ticks as f64 * 1e9 / rate.ns as f64)
    }

    /// The largest observed difference between counters.
    pub(crate) fn spread_ns(&self) -> u64 {
        self.spread_ns
    }

    /// The error bound of times between two fixes.
    pub(crate) fn bound_ns(&self, begin: &Fix, end: &Fix) -> u64 {
        let between = ns(begin, end).max(0) as u64;
        let Some(rate) = self.rate else { return between };
        if begin.window.max(end.window) == NO_WINDOW {
            return between;
        }
        let window = rate.ns(i64::from(begin.window.max(end.window))) as u64 / 2;
        // The difference of drifting counters varies with time, and numbers are rounded.
        let drift = self.spread_ns / 1000 + 2;
        window.saturating_add(self.spread_ns).saturating_add(drift).min(between)
    }
}

fn ticks(from: &Fix, to: &Fix) -> i64 {
    to.counter.wrapping_sub(from.counter) as i64
}

fn ns(from: &Fix, to: &Fix) -> i64 {
    clamp(i128::from(to.monotonic_ns) - i128::from(from.monotonic_ns))
}

/// The time at which the counter had this value, in nanoseconds of `CLOCK_MONOTONIC`. The result
/// lies between the two fixes.
pub(crate) fn time_ns(begin: &Fix, end: &Fix, counter: u64) -> u64 {
    let (all_ticks, all_ns) = (ticks(begin, end).max(0), ns(begin, end).max(0));
    let ticks = (counter.wrapping_sub(begin.counter) as i64).clamp(0, all_ticks);
    let ns = match all_ticks {
        // The counter at the end is behind: the middle is the best estimate.
        0 => all_ns / 2,
        _ => clamp(i128::from(ticks) * i128::from(all_ns) / i128::from(all_ticks)),
    };
    begin.monotonic_ns.saturating_add(ns as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The counter of a core, with its own rate and its own origin.
    #[derive(Debug, Clone, Copy)]
    struct Core {
        skew: i64,
        drift_ppm: i64,
    }

    /// Counter value at a true time; the nominal rate is 2.5 ticks per nanosecond.
    fn counter(core: Core, time_ns: u64) -> u64 {
        let ticks = i128::from(time_ns) * 25 / 10;
        let drifted = ticks + ticks * i128::from(core.drift_ppm) / 1_000_000;
        (drifted as i64).wrapping_add(core.skew) as u64
    }

    /// A fix that reads the counter `late` ticks after the clock.
    fn fix(core: usize, cores: &[Core], time_ns: u64, late: i64) -> Fix {
        let counter = counter(cores[core], time_ns).wrapping_add_signed(late);
        Fix { counter, monotonic_ns: time_ns, window: 2 * LATE_MAX as u32, cpu: core as u32 }
    }

    const LATE_MAX: i64 = 50;

    prop_compose! {
        fn core()(skew in -10_000_000i64..10_000_000, drift_ppm in -50i64..50) -> Core {
            Core { skew, drift_ppm }
        }
    }

    proptest! {
        /// A thread moves between cores, with fixes and events in between. Its times are wrong by
        /// at most the bound, because every core appears in a fix.
        #[test]
        fn time_error_is_within_the_bound(
            cores in prop::collection::vec(core(), 1..4),
            steps in prop::collection::vec(
                (1u64..300_000, 0usize..4, prop::bool::weighted(0.2), -LATE_MAX..=LATE_MAX),
                10..300,
            ),
        ) {
            const START_NS: u64 = 1_000_000_000;
            let mut fixes: Vec<Fix> =
                (0..cores.len()).map(|c| fix(c, &cores, START_NS, 0)).collect();
            let mut events = Vec::new();
            let mut time_ns = START_NS;
            for (wait_ns, core, is_fix, late) in steps {
                time_ns += wait_ns;
                let core = core % cores.len();
                if is_fix {
                    fixes.push(fix(core, &cores, time_ns, late));
                } else {
                    events.push((fixes.len(), time_ns, counter(cores[core], time_ns)));
                }
            }
            // Each core has a fix at the end, too, so that its drift is known.
            fixes.extend((0..cores.len()).map(|c| fix(c, &cores, time_ns + 1, 0)));
            let clock = Clock::of(&fixes);
            for (next, true_ns, counter) in events {
                let (begin, end) = (&fixes[next - 1], &fixes[next]);
                let read_ns = time_ns_of(begin, end, counter);
                let bound_ns = clock.bound_ns(begin, end);
                prop_assert!(
                    read_ns.abs_diff(true_ns) <= bound_ns,
                    "{read_ns} {true_ns} {bound_ns}"
                );
            }
        }

        /// If the counters agree, the bound is small.
        #[test]
        fn bound_is_small_if_counters_agree(
            times in prop::collection::vec(1u64..10_000_000, 3..100),
        ) {
            // A slewed clock has the effect of a common drift of both counters.
            let cores = [Core { skew: 77, drift_ppm: 20 }; 2];
            let mut time_ns = 0;
            let fixes: Vec<_> = times.iter().enumerate().map(|(i, wait_ns)| {
                time_ns += wait_ns;
                fix(i % 2, &cores, time_ns, 0)
            }).collect();
            let clock = Clock::of(&fixes);
            for pair in fixes.windows(2) {
                let bound_ns = clock.bound_ns(&pair[0], &pair[1]);
                prop_assert!(bound_ns < 40, "{bound_ns}");
            }
        }

        /// Fixes from a file may be arbitrary. The resulting time still lies between them.
        #[test]
        fn any_fixes_give_times_between_them(
            raw in prop::collection::vec(
                (any::<u64>(), any::<u64>(), any::<u32>(), 0u32..3),
                2..20,
            ),
            counters in prop::collection::vec(any::<u64>(), 1..20),
        ) {
            let fixes: Vec<Fix> = raw
                .iter()
                .map(|&(counter, monotonic_ns, window, cpu)| {
                    Fix { counter, monotonic_ns, window, cpu }
                })
                .collect();
            let mut clock = Clock::default();
            fixes.iter().for_each(|f| clock.learn_fix(f));
            Clock::of(&fixes);
            for pair in fixes.windows(2) {
                clock.bound_ns(&pair[0], &pair[1]);
                for counter in &counters {
                    let time_ns = time_ns_of(&pair[0], &pair[1], *counter);
                    prop_assert!(time_ns >= pair[0].monotonic_ns);
                    prop_assert!(time_ns <= pair[1].monotonic_ns.max(pair[0].monotonic_ns));
                }
            }
        }
    }

    use super::time_ns as time_ns_of;
}
