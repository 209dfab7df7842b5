//! Barriers that block or spin.

use corebeat_sync::CachePadded;
use corebeat_sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A reusable barrier for a fixed number of threads.
pub(crate) trait Barrier: Sync {
    /// Creates a barrier for `threads` threads.
    fn new(threads: usize) -> Self;

    /// Waits until all threads have arrived. Afterwards, all threads observe what each did before.
    fn wait(&self);
}

/// The standard library's barrier (a mutex and a condition variable) blocks in the kernel, as
/// `pthread_barrier_t` does.
impl Barrier for std::sync::Barrier {
    fn new(threads: usize) -> Self {
        std::sync::Barrier::new(threads)
    }

    fn wait(&self) {
        std::sync::Barrier::wait(self);
    }
}

/// The central sense-reversing barrier of Mellor-Crummey and Scott, *Algorithms for Scalable
/// Synchronization on Shared-Memory Multiprocessors* (1991), section 3.1. A waiting thread never
/// yields its CPU.
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
/// A thread need not keep its sense between two rounds, as the paper's threads do. The sense cannot
/// flip between the thread's load and its arrival, because the flip waits for that arrival. The
/// thread cannot load a sense older than the last flip, because it left the last round by observing
/// or making that flip.
///
/// `arrived` is 0 again before the sense flips, and no thread returns before the flip: so no
/// arrival is lost. Without the flip (waiting for `arrived` to be 0 again), a fast thread can
/// return before a slow one has checked, and both wait without end:
/// `loom_barrier_without_the_flip_is_caught`.
pub(crate) struct SpinBarrier {
    threads: usize,
    // Written by each arriving thread.
    arrived: CachePadded<AtomicUsize>,
    // Read by waiting threads, written once per round.
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
        // AcqRel: the last arrival acquires what all others released here; the flip passes it on.
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            // Relaxed: the flip below publishes it, and no thread arrives again before it observes
            // the flip.
            self.arrived.store(0, Ordering::Relaxed);
            // Release: pairs with the load of the waiting threads.
            self.sense.store(!sense, Ordering::Release);
        } else {
            // Acquire: pairs with the flip.
            while self.sense.load(Ordering::Acquire) == sense {
                spin();
            }
        }
    }
}

/// Pauses without yielding the CPU; under loom, lets the other threads of the model run.
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

    /// Two threads, `rounds` rounds: in each, both write their own cell before the barrier, and
    /// read the other's cell after it.
    fn meet(rounds: usize, wait: fn(&SpinBarrier)) {
        loom::model(move || {
            let shared =
                Arc::new((SpinBarrier::new(2), [AtomicUsize::new(0), AtomicUsize::new(0)]));
            let body = move |shared: &(SpinBarrier, [AtomicUsize; 2]), rank: usize| {
                for round in 1..=rounds {
                    shared.1[rank].store(round, Ordering::Relaxed);
                    wait(&shared.0);
                    let observed = shared.1[1 - rank].load(Ordering::Relaxed);
                    assert!(
                        observed >= round,
                        "left round {round} before the other thread arrived"
                    );
                    assert!(observed <= round + 1, "the other thread is two rounds ahead");
                }
            };
            let other = shared.clone();
            let thread = thread::spawn(move || body(&other, 1));
            body(&shared, 0);
            thread.join().unwrap();
        });
    }

    #[test]
    fn loom_barrier_is_reusable() {
        meet(3, SpinBarrier::wait);
    }

    #[test]
    #[should_panic(expected = "maximum number of branches")] // One thread spins without end.
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
    #[should_panic(expected = "before the other thread arrived")]
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
