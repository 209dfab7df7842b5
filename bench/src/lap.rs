//! Laps of threads that begin and end together, each thread on its own CPU.

use crate::line::{cpus, pin};
use crate::session::Session;
use serde::{Deserialize, Serialize};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The laps of one thread, which begin and end with the laps of the other threads.
pub(crate) struct Lap<'a> {
    barrier: &'a Barrier,
    is_over: &'a AtomicBool,
}

impl Lap<'_> {
    pub(crate) fn begins(&self) -> bool {
        self.barrier.wait();
        // Acquire: pairs with the Release at the end of `run`.
        !self.is_over.load(Ordering::Acquire)
    }

    pub(crate) fn ends(&self) {
        self.barrier.wait();
    }
}

/// The laps of a child process.
#[derive(Serialize, Deserialize)]
pub(crate) struct LapOptions {
    pub(crate) threads: usize,
    /// Operations of each thread in a lap.
    pub(crate) operations: u64,
    /// Shortest measured time, in milliseconds. At least one lap is measured.
    pub(crate) least_ms: u64,
}

impl LapOptions {
    /// Measures for [`LEAST_MS`], or a single lap in a quick session.
    pub(crate) fn new(session: &Session, threads: usize, operations: u64) -> LapOptions {
        let least_ms = if session.quick { 0 } else { LEAST_MS };
        LapOptions { threads, operations, least_ms }
    }

    /// Runs laps until the measured time suffices. Returns the number of laps, and the time of all
    /// laps except the first, which warms up.
    pub(crate) fn run(&self, thread: impl Fn(usize, &Lap) + Sync) -> (u64, Duration) {
        let barrier = Barrier::new(self.threads + 1);
        let lap = Lap { barrier: &barrier, is_over: &AtomicBool::new(false) };
        let cpus = cpus();
        std::thread::scope(|scope| {
            for number in 0..self.threads {
                let (thread, lap, cpu) = (&thread, &lap, cpus.get(number).copied());
                scope.spawn(move || {
                    cpu.map(pin);
                    thread(number, lap);
                });
            }
            let (mut laps, mut time) = (0, Duration::ZERO);
            while laps < 2 || time < Duration::from_millis(self.least_ms) {
                barrier.wait();
                let begin = Instant::now();
                barrier.wait();
                time += if laps > 0 { begin.elapsed() } else { Duration::ZERO };
                laps += 1;
            }
            // Release: pairs with the Acquire in `begins`.
            lap.is_over.store(true, Ordering::Release);
            barrier.wait();
            (laps, time)
        })
    }

    /// Nanoseconds per operation, over all laps except the first.
    pub(crate) fn ns(&self, laps: u64, time: Duration) -> f64 {
        time.as_nanos() as f64 / ((laps - 1) * self.operations) as f64
    }
}

/// The next random number: Marsaglia, *Xorshift RNGs*, 2003.
#[inline(always)]
pub(crate) fn xorshift(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Shortest measured time of a child process, in milliseconds.
const LEAST_MS: u64 = 300;
