//! Do other programs hold this machine's CPUs? Told from a program's own times alone.
//!
//! Christmann, Hebisch, Weisbecker, *Oversubscription of Computational Resources on Multicore Desktop Systems* (MSEPT
//! 2012), section 4. A parallel section whose work is divided evenly and beforehand (static scheduling) ends when its
//! slowest thread does. With `x` threads beside `r` busy ones on `N` CPUs all goes well up to `x + r = N`. One thread
//! more, and it has to share its CPU: it takes twice as long, and all others wait for it.
//!
//! ```text
//!  time |*
//!       |                N = 8, r = 4
//!       |   *
//!       |            *               the peak: x + r passes N
//!       |      *        *
//!       |         *        *  *
//!       +--1--2--3--4--5--6--7--8--> threads x
//! ```
//!
//! [`Contention`] is the paper's model, [`detect`] looks for the peak.

use serde::Serialize;

/// The paper's model: threads of equal priority, always ready to run, spread evenly over the CPUs by a fair scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contention {
    /// The machine's CPUs, N; at least 1.
    pub cpus: u32,
    /// Busy threads of other programs, r.
    pub others: u32,
}

impl Contention {
    /// The share of all CPU time that `x` threads get when there are more threads than CPUs (equation 1).
    pub fn share(self, x: u32) -> f64 {
        f64::from(x) / f64::from((self.others + x).max(1))
    }

    /// The least number of threads that take turns on a CPU (equation 2).
    pub fn turns_min(self, x: u32) -> u32 {
        ((self.others + x) / self.cpus).max(1)
    }

    /// The largest number of threads that take turns on a CPU (equation 3). What is measured lies between the two
    /// (equation 4), for load is balanced again while threads run and end.
    pub fn turns_max(self, x: u32) -> u32 {
        (self.others + x).div_ceil(self.cpus).max(1)
    }

    /// The CPUs that `x` threads have in effect when the slowest of them takes turns with `turns - 1` others
    /// (equation 5).
    pub fn cpus(self, x: u32, turns: f64) -> f64 {
        (f64::from(x) / turns).min(f64::from(self.cpus))
    }

    /// The time of a section with `serial` seconds of work for one thread and `parallel` seconds of work for all
    /// (equation 6).
    pub fn time(self, x: u32, turns: f64, serial: f64, parallel: f64) -> f64 {
        serial + parallel / self.cpus(x, turns)
    }
}

/// What the peak says.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Oversubscription {
    /// The thread count at the peak: the first at which there were more busy threads than CPUs.
    pub at: u32,
    /// The largest count before it: more than this should not be used as long as the others are there.
    pub before: u32,
    /// At least so many CPUs are kept by others. 0 and 0: the machine was this program's own, and only its own threads
    /// were too many.
    pub others_min: u32,
    /// At most so many; equal to `others_min` where every count was measured.
    pub others_max: u32,
    /// The time at the peak over the time before it.
    pub height: f64,
}

/// A peak is at least this much higher than what lies before it, and than what comes after it.
///
/// The model's peak after `x` threads is `2x / (x + 1)` times as high: 1.33 after 2, 1.5 after 3, towards 2. Balancing
/// again and serial parts take some of it away. Times that are off by at most 4% either way cannot make up 1.1.
pub const HEIGHT_MIN: f64 = 1.1;

/// Looks for the peak in the mean times of a parallel section, given for each thread count that was measured, in any
/// order and unit. Times that are not above 0 are left out, and of a count that is given twice all but the first.
///
/// The rise must come after times that only got shorter, and the time must get shorter again after it: where threads
/// get into each other's way, times rise too, but do not fall again. Counts should be measured one by one, from 1 to
/// beyond the CPUs.
///
/// What cannot be seen: dynamic scheduling (threads that are done take over what is left), load that comes and goes,
/// and whole multiples of the CPUs (r and r + N look alike; the smallest r is told).
///
/// ```
/// use corebeat_policy::oversubscription::{Contention, detect};
///
/// let model = Contention { cpus: 8, others: 4 };
/// let times: Vec<_> = (1..=8).map(|x| (x, model.time(x, model.turns_max(x).into(), 0.1, 2.0))).collect();
/// let found = detect(&times, 8).unwrap();
/// assert_eq!((found.at, found.others_min, found.others_max), (5, 4, 4));
/// ```
pub fn detect(times_by_thread_count: &[(u32, f64)], cpus: u32) -> Option<Oversubscription> {
    let mut times: Vec<(u32, f64)> =
        times_by_thread_count.iter().copied().filter(|&(x, t)| x > 0 && t.is_finite() && t > 0.0).collect();
    times.sort_by_key(|&(x, _)| x);
    times.dedup_by_key(|&mut (x, _)| x);
    let cpus = cpus.max(1);
    let shortest = |times: &[(u32, f64)]| times.iter().map(|&(_, t)| t).fold(f64::INFINITY, f64::min);
    (1..times.len()).find_map(|i| {
        let ((before, t_before), (at, t_at)) = (times[i - 1], times[i]);
        let fell_until_here = t_before <= shortest(&times[..i]) * HEIGHT_MIN.sqrt();
        let rises = t_at >= t_before * HEIGHT_MIN;
        let falls_again = t_at >= shortest(&times[i + 1..]) * HEIGHT_MIN;
        if !(fell_until_here && rises && falls_again) {
            return None;
        }
        // `before` threads and the others filled the CPUs some times over, `at` threads and the others overfilled them.
        let full = u64::from(cpus) * u64::from(before.div_ceil(cpus));
        Some(Oversubscription {
            at,
            before,
            others_min: (full + 1).saturating_sub(at.into()) as u32,
            others_max: (full - u64::from(before)) as u32,
            height: t_at / t_before,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn times(model: Contention, mix: f64, serial: f64, noise: &[f64]) -> Vec<(u32, f64)> {
        (1..=2 * model.cpus + 2)
            .map(|x| {
                let (least, most) = (f64::from(model.turns_min(x)), f64::from(model.turns_max(x)));
                let t = model.time(x, least + mix * (most - least), serial, 1.0);
                (x, t * noise[x as usize % noise.len()])
            })
            .collect()
    }

    #[test]
    fn contention_gives_the_papers_numbers() {
        let idle = Contention { cpus: 8, others: 0 };
        assert_eq!((idle.turns_min(3), idle.turns_max(3), idle.turns_max(9)), (1, 1, 2));
        let busy = Contention { cpus: 8, others: 4 };
        assert_eq!((busy.turns_min(5), busy.turns_max(4), busy.turns_max(5)), (1, 1, 2));
        assert_eq!(busy.cpus(5, 2.0), 2.5);
        assert_eq!(busy.cpus(32, 1.0), 8.0);
        assert_eq!(busy.share(8), 8.0 / 12.0);
    }

    #[test]
    fn detect_on_the_papers_machine_finds_nine_when_idle_and_five_beside_four() {
        for (others, at) in [(0, 9), (4, 5)] {
            let found = detect(&times(Contention { cpus: 8, others }, 1.0, 0.0, &[1.0]), 8).unwrap();
            assert_eq!((found.at, found.before), (at, at - 1));
            assert_eq!((found.others_min, found.others_max), (others, others));
        }
    }

    #[test]
    fn detect_with_gaps_gives_a_range() {
        let model = Contention { cpus: 8, others: 3 };
        let some: Vec<_> = times(model, 1.0, 0.0, &[1.0])
            .into_iter()
            .filter(|&(x, _)| [1, 2, 4, 6, 10].contains(&x))
            .collect();
        let found = detect(&some, 8).unwrap();
        assert_eq!((found.at, found.others_min, found.others_max), (6, 3, 4));
    }

    #[test]
    fn detect_without_usable_times_finds_nothing() {
        assert_eq!(detect(&[], 8), None);
        assert_eq!(detect(&[(1, 1.0)], 0), None);
        assert_eq!(detect(&[(0, 1.0), (1, f64::NAN), (2, -1.0), (3, f64::INFINITY)], 2), None);
    }

    #[test]
    fn detect_where_threads_hinder_each_other_finds_nothing() {
        let hindered: Vec<_> = (1..=24u32).map(|x| (x, 1.0 / f64::from(x) + 0.02 * f64::from(x))).collect();
        assert_eq!(detect(&hindered, 8), None);
    }

    proptest! {
        // r = N - 1 has no first peak to see: one thread alone takes as long as two that take turns.
        #[test]
        fn detect_on_the_model_finds_the_others(
            cpus in 2u32..=32,
            others in 0u32..32,
            mix in 0.75f64..=1.0,
            serial in 0.0f64..0.01,
            noise in proptest::collection::vec(0.98f64..=1.02, 67),
        ) {
            let others = others % (cpus - 1);
            let found = detect(&times(Contention { cpus, others }, mix, serial, &noise), cpus);
            prop_assert_eq!(
                found.map(|f| (f.at, f.others_min, f.others_max)),
                Some((cpus - others + 1, others, others))
            );
        }

        #[test]
        fn detect_on_smooth_curves_finds_nothing(
            cpus in 1u32..=32,
            serial in 0.0f64..1.0,
            hindrance in 0.0f64..0.5,
            dynamic in any::<bool>(),
            others in 0u32..32,
            noise in proptest::collection::vec(0.96f64..=1.04, 67),
        ) {
            // Amdahl's law with a cost that grows with the threads; dynamic scheduling gets its fair share of the
            // machine (equation 1) without waiting for anybody.
            let curve: Vec<_> = (1..=2 * cpus + 2).map(|x| {
                let fair = Contention { cpus, others }.share(x) * f64::from(cpus);
                let n = if dynamic { f64::from(x).min(fair) } else { f64::from(x.min(cpus)) };
                let t = serial + 1.0 / n + hindrance * f64::from(x - 1) / f64::from(cpus);
                (x, t * noise[x as usize])
            }).collect();
            prop_assert_eq!(detect(&curve, cpus), None);
        }

        #[test]
        fn detect_never_panics(times in proptest::collection::vec((any::<u32>(), any::<f64>()), 0..20), cpus: u32) {
            let _ = detect(&times, cpus);
        }
    }
}
