//! Strands: each stack that runs closures has a queue of the jobs that it has created.
//!
//! A strand is a stack, and not a thread, because tasks of LPEL share their thread. The owner adds
//! jobs at the back and takes them back by identity; thieves take the oldest one, which usually
//! is the largest.
//!
//! # Which jobs may run on top of a waiting frame
//!
//! A strand that waits for job K takes only jobs that descend from K: closures that K, or a closure
//! inside K, has created. It finds them in the queue of the thief of K, or further along the chain
//! of waits (leapfrogging: Wagner and Calder, *Leapfrogging: A Portable Technique for Implementing
//! Efficient Futures*, 1993). Consequences:
//!
//! - The frames of each stack are a part of one path in the tree of calls of the sequential
//!   program. So a stack is never deeper than that of the sequential program.
//! - A closure of a join runs on top of a frame only if the sequential program would have run it
//!   inside that frame, too. Locks and borrows of `RefCell` that the frame holds cause no new
//!   deadlock or panic. A future is different: it runs in its `join`, on top of locks that the code
//!   after its creation has taken.
//!
//! Proof. *A strand takes a job of another strand only when its own queue is empty* (`context`).
//! So, while strand S runs K, its queue has only jobs that K created. Another strand checks under
//! the lock of the queue that K has not ended: if S had begun another job, S would have ended K
//! before it added jobs to the queue under this lock. The same holds for the job for which S waits.

use crate::job::Job;
use corebeat_sync::atomic::{AtomicUsize, Ordering};
use corebeat_sync::{Mutex, lock};
use std::collections::VecDeque;
use std::sync::Arc;

/// The jobs of a stack.
pub(crate) struct Strand {
    queue: Mutex<VecDeque<Arc<Job>>>,
    /// Length of the queue, for thieves.
    length: AtomicUsize,
    /// The job for which the strand waits at this moment, unless it runs another one meanwhile.
    waits_for: Mutex<Option<Arc<Job>>>,
    /// Bytes of stack for jobs of other strands.
    capacity: usize,
}

impl Strand {
    pub(crate) fn new(capacity: usize) -> Strand {
        Strand {
            queue: Mutex::new(VecDeque::new()),
            length: AtomicUsize::new(0),
            waits_for: Mutex::new(None),
            capacity,
        }
    }

    // ---- for the owner

    /// Adds a job.
    pub(crate) fn push(&self, job: Arc<Job>) {
        let mut queue = lock(&self.queue);
        debug_assert!(queue.back().is_none_or(|last| last.number < job.number));
        queue.push_back(job);
        // Relaxed: a hint, as all accesses.
        self.length.store(queue.len(), Ordering::Relaxed);
    }

    /// Claims a job of this strand, if it has not been claimed.
    pub(crate) fn take(&self, job: &Arc<Job>) -> bool {
        let mut queue = lock(&self.queue);
        // The last one for joins. The jobs of many futures are in the order of their numbers.
        let at = match queue.back() {
            Some(last) if last.number == job.number => queue.len() - 1,
            _ => queue.partition_point(|queued| queued.number < job.number),
        };
        let is_found = queue.get(at).is_some_and(|queued| Arc::ptr_eq(queued, job));
        if is_found {
            queue.remove(at);
            // Relaxed: as above.
            self.length.store(queue.len(), Ordering::Relaxed);
        }
        is_found || crate::fault_omits("claim")
    }

    /// Claims the oldest job of this strand.
    pub(crate) fn take_oldest(&self) -> Option<Arc<Job>> {
        let mut queue = lock(&self.queue);
        let job = queue.pop_front();
        // Relaxed: as above.
        self.length.store(queue.len(), Ordering::Relaxed);
        job
    }

    /// Notes the job for which the strand waits now.
    pub(crate) fn set_waits_for(&self, job: Option<Arc<Job>>) {
        *lock(&self.waits_for) = job;
    }

    // ---- for thieves

    /// Claims the oldest job for another strand, if the thief has enough stack for it, and if
    /// `allowed` holds under the lock of the queue.
    pub(crate) fn steal(
        &self,
        thief: &Arc<Strand>,
        allowed: impl FnOnce() -> bool,
    ) -> Option<Arc<Job>> {
        // Relaxed: a hint. A thief that misses a job searches again, or the owner runs it.
        if self.length.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut queue = lock(&self.queue);
        if queue.front()?.stack > thief.capacity || !allowed() {
            return None;
        }
        let job = queue.pop_front()?;
        // Relaxed: as above.
        self.length.store(queue.len(), Ordering::Relaxed);
        job.thief.get_or_init(|| thief.clone());
        Some(job)
    }

    /// Returns the job for which this strand waits, if it still runs `inside`.
    fn waits_for(&self, inside: &Job) -> Option<Arc<Job>> {
        let waits_for = lock(&self.waits_for);
        let job = waits_for.clone();
        if inside.end.is_over() { None } else { job }
    }
}

/// Most strands along a chain of waits that a search visits.
const HOPS_MAX: usize = 16;

/// Claims a job that descends from `job`, which another strand has claimed.
pub(crate) fn leapfrog(job: &Arc<Job>, thief: &Arc<Strand>) -> Option<Arc<Job>> {
    let mut job = job.clone();
    for _ in 0..HOPS_MAX {
        let strand = job.thief.get()?.clone();
        if Arc::ptr_eq(&strand, thief) {
            return None;
        }
        let descends = || !job.end.is_over() || crate::fault_omits("descent");
        if let Some(found) = strand.steal(thief, descends) {
            return Some(found);
        }
        job = strand.waits_for(&job)?;
    }
    None
}
