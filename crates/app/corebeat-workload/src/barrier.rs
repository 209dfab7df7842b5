//! Where threads wait for each other: blocked, or spinning.

use corebeat_sync::CachePadded;
use corebeat_sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A meeting point of a fixed number of threads, used again and again.
pub(crate) trait Barrier: Sync {
    /// A barrier for `threads` threads.
    fn new(threads: usize) -> Self;

    /// Waits until all threads have come. What each did before, all see after.
    fn wait(&self);
}

/// The standard library's barrier (a mutex and a condition variable) sleeps in the kernel, as `pthread_barrier_t` does.
impl Barrier for std::sync::Barrier {
    fn new(threads: usize) -> Self {
        std::sync::Barrier::new(threads)
    }

    fn wait(&self) {
        std::sync::Barrier::wait(self);
    }
}

/// The central sense-reversing barrier of Mellor-Crummey and Scott, *Algorithms for Scalable Synchronization on
/// Shared-Memory Multiprocessors* (1991), section 3.1. It never gives its CPU away while it waits.
///
/// ```text
///  sense = s, arrived = 0
///     | each thread: remember s, arrived += 1
///     v
///  arrived < threads: spin while sense == s        arrived == threads: arrived = 0, sense = !s
///                                  ^                                          |
///                                  +--------------- all leave ----------------+
/// ```
///
/// Why a thread need not keep its sense between two meetings, as the paper's threads do: the sense cannot flip between
/// its reading it and its arriving, because the flip waits for that arrival; and it cannot read an older sense than the
/// last flip, because it left the last meeting by seeing that flip, or by making it.
///
/// `arrived` is 0 again before the sense flips, and nobody comes back before the flip: so no arrival is lost. Without
/// the flip (waiting for `arrived` to be 0 again) a fast thread can come back before a slow one has looked, and both
/// wait for ever: `loom_barrier_without_the_flip_is_caught`.
pub(crate) struct SpinBarrier {
    threads: usize,
    // Written by everyone who arrives.
    arrived: CachePadded<AtomicUsize>,
    // Read by everyone who waits, written once a meeting.
    sense: CachePadded<AtomicBool>,
}

impl Barrier for SpinBarrier {
    fn new(threads: usize) -> Self {
        SpinBarrier {
            threads,
            arrived: CachePadded::new(AtomicUsize::new(0)),
            sense: CachePadded::new(AtomicBool::new(false)),
        }
    }

    fn wait(&self) {
        // Relaxed: coherence alone gives the last flip (see above).
        let sense = self.sense.load(Ordering::Relaxed);
        // AcqRel: the last to arrive acquires what all others released here, and hands it on by the flip.
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            // Relaxed: the flip below publishes it, and nobody arrives again before having seen the flip.
            self.arrived.store(0, Ordering::Relaxed);
            // Release: pairs with the load of those who wait.
            self.sense.store(!sense, Ordering::Release);
        } else {
            // Acquire: pairs with the flip.
            while self.sense.load(Ordering::Acquire) == sense {
                spin();
            }
        }
    }
}

/// Passes a moment without giving the CPU away; under loom, lets the others of the model run.
fn spin() {
    #[cfg(loom)]
    corebeat_sync::thread::yield_now();
    #[cfg(not(loom))]
    std::hint::spin_loop();
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use corebeat_sync::{Arc, thread};

    /// Two threads, `rounds` meetings: in each, both write a place of their own before, and read the other's after.
    fn meet(rounds: usize, wait: fn(&SpinBarrier)) {
        loom::model(move || {
            let shared = Arc::new((SpinBarrier::new(2), [AtomicUsize::new(0), AtomicUsize::new(0)]));
            let body = move |shared: &(SpinBarrier, [AtomicUsize; 2]), rank: usize| {
                for round in 1..=rounds {
                    shared.1[rank].store(round, Ordering::Relaxed);
                    wait(&shared.0);
                    let seen = shared.1[1 - rank].load(Ordering::Relaxed);
                    assert!(seen >= round, "left meeting {round} before the other came");
                    assert!(seen <= round + 1, "the other is two meetings ahead");
                }
            };
            let other = shared.clone();
            let thread = thread::spawn(move || body(&other, 1));
            body(&shared, 0);
            thread.join().unwrap();
        });
    }

    #[test]
    fn loom_barrier_meets_again_and_again() {
        meet(3, SpinBarrier::wait);
    }

    #[test]
    #[should_panic(expected = "maximum number of branches")] // One thread spins for ever.
    fn loom_barrier_without_the_flip_is_caught() {
        meet(2, |barrier| {
            if barrier.arrived.fetch_add(1, Ordering::AcqRel) + 1 == barrier.threads {
                barrier.arrived.store(0, Ordering::Release);
            } else {
                while barrier.arrived.load(Ordering::Acquire) != 0 {
                    spin();
                }
            }
        });
    }

    #[test]
    #[should_panic(expected = "before the other came")]
    fn loom_barrier_with_relaxed_flip_is_caught() {
        meet(1, |barrier| {
            let sense = barrier.sense.load(Ordering::Relaxed);
            if barrier.arrived.fetch_add(1, Ordering::AcqRel) + 1 == barrier.threads {
                barrier.arrived.store(0, Ordering::Relaxed);
                barrier.sense.store(!sense, Ordering::Relaxed);
            } else {
                while barrier.sense.load(Ordering::Relaxed) == sense {
                    spin();
                }
            }
        });
    }
}
