//! From counters to times.
//!
//! Between two fixes of a thread a counter is taken to run evenly: an event's time is interpolated (Schindewolf and Karl,
//! Capturing Transactional Memory Application's Behavior, 2012, section 3.2). What this can be wrong by:
//!
//! ```text
//!   window    a fix reads the time somewhere between two readings of the counter: half of that
//!   mismatch  the counter went further, or less far, than the time between two fixes says: the thread has moved to a core
//!             whose counter disagrees, and before that and after that are taken as one
//!   spread    the thread may have moved away and back: as far as counters have been seen to disagree
//! ```
//!
//! Their sum is the bound; and never more than the time between the two fixes, because there the event was.

use crate::counter::Fix;

/// How fast counters are, and how far apart.
#[derive(Debug, Clone, Default)]
pub(crate) struct Clock {
    origin: Option<Fix>,
    /// Over the longest time seen on the origin's core.
    rate: Option<Rate>,
    /// Counters were this far before and behind the origin's, in nanoseconds.
    ahead_ns: u64,
    behind_ns: u64,
}

#[derive(Debug, Clone, Copy)]
struct Rate {
    ticks: u64,
    ns: u64,
}

impl Rate {
    fn ns(self, ticks: i64) -> i64 {
        clamp(i128::from(ticks) * i128::from(self.ns) / i128::from(self.ticks))
    }
}

fn clamp(number: i128) -> i64 {
    number.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

impl Clock {
    /// Learns of a fix.
    pub(crate) fn learn(&mut self, fix: &Fix) {
        self.learn_rate(fix);
        self.learn_spread(fix);
    }

    /// The first of two rounds over all fixes, which gives the best that can be known.
    pub(crate) fn learn_rate(&mut self, fix: &Fix) {
        let origin = *self.origin.get_or_insert(*fix);
        let (ticks, ns) = (ticks(&origin, fix), ns(&origin, fix));
        if fix.cpu == origin.cpu
            && ticks.signum() == ns.signum()
            && ns.unsigned_abs() > self.rate.map_or(0, |r| r.ns)
        {
            self.rate = Some(Rate { ticks: ticks.unsigned_abs(), ns: ns.unsigned_abs() });
        }
    }

    /// The second.
    pub(crate) fn learn_spread(&mut self, fix: &Fix) {
        if let (Some(origin), Some(rate)) = (self.origin, self.rate) {
            let ahead = rate.ns(ticks(&origin, fix)).saturating_sub(ns(&origin, fix));
            self.ahead_ns = self.ahead_ns.max(ahead.max(0) as u64);
            self.behind_ns = self.behind_ns.max(ahead.min(0).unsigned_abs());
        }
    }

    /// Ticks of the counter in a second, as far as known.
    pub(crate) fn hz(&self) -> Option<f64> {
        self.rate.map(|rate| rate.ticks as f64 * 1e9 / rate.ns as f64)
    }

    /// How far counters have been seen to disagree.
    pub(crate) fn spread_ns(&self) -> u64 {
        self.ahead_ns.saturating_add(self.behind_ns)
    }

    /// By how much times between these two may be wrong.
    pub(crate) fn bound_ns(&self, begin: &Fix, end: &Fix) -> u64 {
        let between = ns(begin, end).max(0) as u64;
        let Some(rate) = self.rate else { return between };
        let window = rate.ns(i64::from(begin.window.max(end.window))) as u64 / 2 + 1;
        let mismatch = rate.ns(ticks(begin, end)).saturating_sub(ns(begin, end)).unsigned_abs();
        window.saturating_add(mismatch).saturating_add(self.spread_ns()).min(between)
    }
}

fn ticks(from: &Fix, to: &Fix) -> i64 {
    to.counter.wrapping_sub(from.counter) as i64
}

fn ns(from: &Fix, to: &Fix) -> i64 {
    to.monotonic_ns.wrapping_sub(from.monotonic_ns) as i64
}

/// When the counter was there, in nanoseconds of `CLOCK_MONOTONIC`: between the two.
pub(crate) fn time_ns(begin: &Fix, end: &Fix, counter: u64) -> u64 {
    let (all_ticks, all_ns) = (ticks(begin, end).max(0), ns(begin, end).max(0));
    let ticks = (counter.wrapping_sub(begin.counter) as i64).clamp(0, all_ticks);
    let ns = match all_ticks {
        // The end's counter is behind: nothing better is known than that it was between them.
        0 => all_ns / 2,
        _ => clamp(i128::from(ticks) * i128::from(all_ns) / i128::from(all_ticks)),
    };
    begin.monotonic_ns.saturating_add(ns as u64)
}
