//! Locality domains: what a place is.

use crate::local::{self, Local, NOWHERE};
use crate::rseq;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Places are numbered below this.
pub const PLACES_MAX: usize = 1 << 16;

/// Says where the thread that asks is: one of the places that share nothing.
///
/// Where that is may change at any time, as with CPUs; an answer that has become old costs time, and nothing else.
pub trait Domain: 'static {
    /// The place, below [`PLACES_MAX`]; or a larger number, if to find out takes longer.
    fn here() -> usize;

    /// The place, below [`PLACES_MAX`], by the long way.
    fn find() -> usize;

    /// Whether one thread at a time is in this place, and who comes next sees what it has done: then a load and a store add as well as an
    /// atomic addition. Where this is wrongly `true`, numbers get lost.
    fn is_alone(_place: usize) -> bool {
        false
    }
}

/// A place for each thread. When a thread has ended, another gets its place.
///
/// Tasks of LPEL stay on their worker's thread: for them, this is the worker.
///
/// Place 0 is for threads at their very end, in destructors of their thread-local data: several of them may be there.
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

/// A place for each CPU, by the number that the kernel keeps in the thread's memory for restartable sequences. Where it does not, by
/// the thread's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cpu;

impl Domain for Cpu {
    #[inline(always)]
    fn here() -> usize {
        rseq::cpu().unwrap_or_else(|| by_thread(Thread::here()))
    }

    fn find() -> usize {
        rseq::look();
        if CPUS.load(Ordering::Relaxed) == 0 {
            CPUS.store(std::thread::available_parallelism().map_or(1, usize::from), Ordering::Relaxed);
        }
        rseq::cpu().unwrap_or_else(|| by_thread(Thread::find())).min(PLACES_MAX - 1)
    }
}

/// How many CPUs there are to be used, in doubt 1; 0 until somebody has looked. Relaxed: nothing goes with it.
static CPUS: AtomicUsize = AtomicUsize::new(0);

/// The place of a thread that does not know its CPU.
fn by_thread(place: usize) -> usize {
    if place == NOWHERE {
        NOWHERE
    } else {
        place.checked_rem(CPUS.load(Ordering::Relaxed)).unwrap_or(NOWHERE)
    }
}

/// A place for each node of memory (NUMA), as the kernel says it beside the CPU's number (Linux 6.3). Where it does not, all are in place
/// 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node;

impl Domain for Node {
    #[inline(always)]
    fn here() -> usize {
        rseq::node().unwrap_or(NOWHERE)
    }

    fn find() -> usize {
        rseq::look();
        rseq::node().unwrap_or(0).min(PLACES_MAX - 1)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[cfg(not(miri))]
    #[test]
    fn places_are_as_the_system_says() {
        let is_here = || {
            let (mut cpu, mut node) = (0u32, 0u32);
            // SAFETY: both are room for a number.
            let done = unsafe { libc::syscall(libc::SYS_getcpu, &raw mut cpu, &raw mut node, 0) };
            assert_eq!(done, 0);
            (cpu as usize, node as usize)
        };
        // Between the two, the thread may move.
        assert!((0..1000).any(|_| (Cpu::find(), Node::find()) == is_here()));
        assert!(rseq::cpu().is_none() || (0..1000).any(|_| Cpu::here() == is_here().0));
    }

    #[test]
    fn places_of_threads_differ_and_are_used_again() {
        let mine = Thread::find();
        assert_eq!((mine, Thread::is_alone(mine)), (Thread::here(), true));
        let others: Vec<usize> = (0..8).map(|_| std::thread::spawn(Thread::find).join().unwrap()).collect();
        assert!(others.iter().all(|&other| other != mine && other < PLACES_MAX), "{others:?}");
    }
}
