//! Locality domains: definitions of a place.

use crate::local::{self, Local, NOWHERE};
use crate::rseq;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Upper bound (exclusive) of the numbers of places.
pub const PLACES_MAX: usize = 1 << 16;

/// A division of the machine into places that share nothing.
///
/// The place of a thread may change at any time, as with CPUs. An outdated result costs only time.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no division of the machine into places",
    label = "not a `Domain`",
    note = "use `Thread`, `Cpu` or `Node`: the parameter is where an object has its parts, and not \
            what it contains"
)]
pub trait Domain: 'static {
    /// Returns the place of the current thread, below [`PLACES_MAX`]; or a larger number, if only
    /// [`find`](Domain::find) can determine it.
    fn here() -> usize;

    /// Returns the place of the current thread, below [`PLACES_MAX`], by the slow path.
    fn find() -> usize;

    /// Returns whether at most one thread at a time is in this place, and the next thread observes
    /// the writes of the previous one. Then a load and a store replace an atomic addition. A wrong
    /// `true` loses additions.
    fn is_alone(_place: usize) -> bool {
        false
    }
}

/// A place for each thread. When a thread has ended, another one gets its place.
///
/// Tasks of LPEL stay on the thread of their worker: for them, the place is the worker.
///
/// Place 0 is for ending threads, in destructors of their thread-local data; several threads may be
/// there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thread;

impl Domain for Thread {
    #[inline(always)]
    fn here() -> usize {
        local::with(Local::place)
    }

    fn find() -> usize {
        local::with(Local::find_place).unwrap_or(0)
    }

    #[inline(always)]
    fn is_alone(place: usize) -> bool {
        place != 0
    }
}

/// A place for each CPU, by the number that the kernel maintains in the memory of each thread for
/// restartable sequences. Without that support, the place depends on the thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cpu;

impl Domain for Cpu {
    #[inline(always)]
    fn here() -> usize {
        rseq::cpu().unwrap_or_else(|| by_thread(Thread::here()))
    }

    fn find() -> usize {
        rseq::detect();
        if CPUS.load(Ordering::Relaxed) == 0 {
            CPUS.store(
                std::thread::available_parallelism().map_or(1, usize::from),
                Ordering::Relaxed,
            );
        }
        rseq::cpu().unwrap_or_else(|| by_thread(Thread::find())).min(PLACES_MAX - 1)
    }
}

/// Number of usable CPUs, or 1 if unknown; 0 until it was determined. Relaxed: no other data
/// depends on it.
static CPUS: AtomicUsize = AtomicUsize::new(0);

/// Returns the place of a thread whose CPU is unknown.
fn by_thread(place: usize) -> usize {
    if place == NOWHERE {
        NOWHERE
    } else {
        place.checked_rem(CPUS.load(Ordering::Relaxed)).unwrap_or(NOWHERE)
    }
}

/// A place for each memory node (NUMA), which the kernel maintains next to the number of the CPU
/// (Linux 6.3). Without that support, all threads are in place 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node;

impl Domain for Node {
    #[inline(always)]
    fn here() -> usize {
        rseq::node().unwrap_or(NOWHERE)
    }

    fn find() -> usize {
        rseq::detect();
        rseq::node().unwrap_or(0).min(PLACES_MAX - 1)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[cfg(not(miri))]
    #[test]
    fn places_agree_with_the_system() {
        let system = || {
            let (mut cpu, mut node) = (0u32, 0u32);
            // SAFETY: both pointers refer to memory for a number.
            let done = unsafe { libc::syscall(libc::SYS_getcpu, &raw mut cpu, &raw mut node, 0) };
            assert_eq!(done, 0);
            (cpu as usize, node as usize)
        };
        // The thread may migrate between the two calls.
        assert!((0..1000).any(|_| (Cpu::find(), Node::find()) == system()));
        assert!(rseq::cpu().is_none() || (0..1000).any(|_| Cpu::here() == system().0));
    }

    #[test]
    fn places_of_threads_differ_and_are_reused() {
        let mine = Thread::find();
        assert_eq!((mine, Thread::is_alone(mine)), (Thread::here(), true));
        let others: Vec<usize> =
            (0..8).map(|_| std::thread::spawn(Thread::find).join().unwrap()).collect();
        assert!(others.iter().all(|&other| other != mine && other < PLACES_MAX), "{others:?}");
    }
}
