//! Detection of other programs on the CPUs of a machine, by the run times of one program.
//!
//! Christmann, Hebisch, Weisbecker, *Oversubscription of Computational Resources on Multicore
//! Desktop Systems* (MSEPT 2012), section 4. A parallel section with evenly divided work (static
//! scheduling) ends with its slowest thread. With `x` threads beside `r` busy threads on `N` CPUs,
//! each thread has its own CPU up to `x + r = N`. With one more thread, two threads share a CPU:
//! they take twice as long, and all others wait for them.
//!
//! ```text
//!  time |*
//!       |                N = 8, r = 4
//!       |   *
//!       |            *               the peak: x + r exceeds N
//!       |      *        *
//!       |         *        *  *
//!       +--1--2--3--4--5--6--7--8--> threads x
//! ```
//!
//! [`detect`] finds the peak.

use serde::Serialize;

/// Properties of the peak.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Oversubscription {
    /// Number of threads at the peak: the smallest number with more busy threads than CPUs.
    pub at: u32,
    /// The largest number before the peak, and the best limit while the other programs run.
    pub before: u32,
    /// Lower bound of the number of CPUs that other programs use. If both bounds are 0, the program
    /// has the machine alone, and only its own threads are too many.
    pub others_min: u32,
    /// Upper bound of that number; equals `others_min` if every number of threads was measured.
    pub others_max: u32,
    /// Ratio of the time at the peak to the time before it.
    pub height: f64,
}

/// Smallest ratio of the time at a peak to the times before and after it.
///
/// The peak of the model after `x` threads has the ratio `2x / (x + 1)`: 1.33 after 2, 1.5 after 3,
/// and up to 2. Load balancing and serial parts reduce the ratio. Errors of up to 4% in the times
/// cannot produce a ratio of 1.1.
pub const HEIGHT_MIN: f64 = 1.1;

/// Finds the peak in the mean times of a parallel section by number of threads, in any order and
/// unit. Times that are not above 0 are ignored. Of several times for one number, the first one is
/// used.
///
/// The times before the peak must decrease, and a time after it must be shorter again. If threads
/// hinder each other, times increase, too, but do not decrease again. Every number of threads
/// should be measured, from 1 to more than the number of CPUs.
///
/// Not detectable are: dynamic scheduling (threads that are done take over remaining work), varying
/// load, and multiples of the number of CPUs (r and r + N have the same effect; the smallest r is
/// returned).
///
/// ```
/// use corebeat_policy::oversubscription::detect;
///
/// // Beside four busy threads, the fifth thread shares a CPU, and all others wait for that thread.
/// let cpus = |x: u32| f64::from(x) / if x > 4 { 2.0 } else { 1.0 };
/// let times: Vec<_> = (1..=8).map(|x| (x, 0.1 + 2.0 / cpus(x))).collect();
/// let found = detect(&times, 8).unwrap();
/// assert_eq!((found.at, found.others_min, found.others_max), (5, 4, 4));
/// ```
pub fn detect(times_by_thread_count: &[(u32, f64)], cpus: u32) -> Option<Oversubscription> {
    let mut times: Vec<(u32, f64)> = times_by_thread_count
        .iter()
        .copied()
        .filter(|&(x, t)| x > 0 && t.is_finite() && t > 0.0)
        .collect();
    times.sort_by_key(|&(x, _)| x);
    times.dedup_by_key(|&mut (x, _)| x);
    let cpus = cpus.max(1);
    let shortest =
        |times: &[(u32, f64)]| times.iter().map(|&(_, t)| t).fold(f64::INFINITY, f64::min);
    (1..times.len()).find_map(|i| {
        let ((before, t_before), (at, t_at)) = (times[i - 1], times[i]);
        let fell_before = t_before <= shortest(&times[..i]) * HEIGHT_MIN.sqrt();
        let rises = t_at >= t_before * HEIGHT_MIN;
        let falls_again = t_at >= shortest(&times[i + 1..]) * HEIGHT_MIN;
        if !(fell_before && rises && falls_again) {
            return None;
        }
        // `before` threads and those of other programs fill a multiple of the CPUs; `at` threads
        // exceed it.
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
mod tests;
