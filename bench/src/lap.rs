//! Laps of threads, each on a CPU of its own, that begin and end together.

use crate::line::{cpus, pin};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A thread's laps, which begin and end with those of the others.
pub(crate) struct Lap<'a> {
    barrier: &'a Barrier,
    is_over: &'a AtomicBool,
}

impl Lap<'_> {
    pub(crate) fn begins(&self) -> bool {
        self.barrier.wait();
        // Acquire: pairs with the Release at the end.
        !self.is_over.load(Ordering::Acquire)
    }

    pub(crate) fn ends(&self) {
        self.barrier.wait();
    }
}

/// Runs laps of so many threads until enough time was measured: how many, and the time of all but the first, which warms up.
pub(crate) fn run(threads: usize, least: Duration, thread: impl Fn(usize, &Lap) + Sync) -> (u64, Duration) {
    let barrier = Barrier::new(threads + 1);
    let lap = Lap { barrier: &barrier, is_over: &AtomicBool::new(false) };
    let cpus = cpus();
    std::thread::scope(|scope| {
        for number in 0..threads {
            let (thread, lap, cpu) = (&thread, &lap, cpus.get(number).copied());
            scope.spawn(move || {
                cpu.map(pin);
                thread(number, lap);
            });
        }
        let (mut laps, mut time) = (0, Duration::ZERO);
        while laps < 2 || time < least {
            barrier.wait();
            let begin = Instant::now();
            barrier.wait();
            time += if laps > 0 { begin.elapsed() } else { Duration::ZERO };
            laps += 1;
        }
        // Release: pairs with the Acquire of those who begin.
        lap.is_over.store(true, Ordering::Release);
        barrier.wait();
        (laps, time)
    })
}
