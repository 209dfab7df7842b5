//! Measures the cost of moving a cache line from one core to another, including its visibility
//! there.
//!
//! Virtual CPUs have phases that last for minutes (here about 50 ns or about 215 ns). These phases
//! change each figure in which threads wait for each other by a factor of 2 to 4, so each result
//! needs this cost beside it.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Round trips per measured time.
const BATCH: u32 = 200;
const BATCHES_MAX: usize = 50;
const TIME_MAX: Duration = Duration::from_millis(30);

/// Occupies its own line, also on processors that fetch two lines together.
#[repr(align(128))]
struct Line(AtomicU32);

/// Nanoseconds for one move, which is half a round trip, between the first two CPUs of this
/// process. The value is the median of batches. `None` if the process has only one CPU, if it
/// cannot pin its threads, or if other load leaves no time to measure.
pub(crate) fn cost_ns() -> Option<f64> {
    let [here, there, ..] = cpus()[..] else { return None };
    let line = Line(AtomicU32::new(0));
    // This flag is not in the line, because a late answer would overwrite the flag.
    let ended = AtomicBool::new(false);
    // Relaxed: these variables publish no other data, and the writes to one variable have one
    // order.
    std::thread::scope(|scope| {
        let answer = scope.spawn(|| {
            let pinned = pin(there);
            let mut last = 0;
            while !ended.load(Ordering::Relaxed) {
                let seen = line.0.load(Ordering::Relaxed);
                if seen != last && seen % 2 == 1 {
                    last = seen + 1;
                    line.0.store(last, Ordering::Relaxed);
                }
                std::hint::spin_loop();
            }
            pinned
        });
        let ask = scope.spawn(|| {
            let pinned = pin(here);
            let (begin, mut next, mut batches) = (Instant::now(), 1, Vec::new());
            'all: while batches.len() < BATCHES_MAX && begin.elapsed() < TIME_MAX {
                let start = Instant::now();
                for _ in 0..BATCH {
                    line.0.store(next, Ordering::Relaxed);
                    let mut looks = 0u32;
                    while line.0.load(Ordering::Relaxed) == next {
                        std::hint::spin_loop();
                        looks += 1;
                        // This count is reached only when the other thread does not run.
                        if looks.is_multiple_of(4096) && begin.elapsed() > TIME_MAX {
                            break 'all;
                        }
                    }
                    next += 2;
                }
                batches.push(start.elapsed().as_nanos() as f64 / f64::from(2 * BATCH));
            }
            ended.store(true, Ordering::Relaxed);
            (pinned, batches)
        });
        let (asked, batches) = ask.join().ok()?;
        let answered = answer.join().ok()?;
        // The first batch includes the start of the other thread.
        let warm = batches.get(1..).unwrap_or_default();
        if asked && answered { crate::row::median(warm) } else { None }
    })
}

/// The CPUs that the calling thread may use.
pub(crate) fn cpus() -> Vec<usize> {
    let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|&c| allowed.is_set(c)).collect()
}

/// Pins the calling thread to one CPU. Returns whether this succeeded.
pub(crate) fn pin(cpu: usize) -> bool {
    let mut one = CpuSet::new();
    one.set(cpu);
    sched_setaffinity(None, &one).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_is_a_time_where_there_are_two_cpus() {
        let cpus = cpus().len();
        match cost_ns() {
            Some(ns) => assert!(cpus > 1 && ns > 0.0),
            // A busy machine also yields no value.
            None => assert!(cpus > 0),
        }
    }
}
