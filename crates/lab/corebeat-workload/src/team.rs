//! Threads that start together, and an even split of work among them.

use crate::{WorkloadError, heartbeat};
use std::ops::Range;
use std::sync::{OnceLock, mpsc};
use std::thread;

/// Stack size, sufficient for every body. A thousand stacks of the default size of 2 MiB would
/// take much address space.
const STACK_BYTES: usize = 512 * 1024;

/// Body and name of a thread (Linux shows 15 bytes of the name).
pub(crate) struct Job<'a> {
    name: String,
    stack_bytes: usize,
    body: Box<dyn FnOnce() + Send + 'a>,
}

impl<'a> Job<'a> {
    pub(crate) fn new(name: String, body: impl FnOnce() + Send + 'a) -> Self {
        Job { name, stack_bytes: STACK_BYTES, body: Box::new(body) }
    }
}

/// Runs each job on its own thread and waits for all.
///
/// No body begins before all threads have been started and attached to the group of the run: a
/// barrier would wait without end for a thread that the system refused to start. The threads of a
/// group attach one after the other, so that a daemon that does not answer delays only one.
pub(crate) fn run<'a>(jobs: Vec<Job<'a>>) -> Result<(), WorkloadError> {
    let wanted = jobs.len();
    let go = &OnceLock::new();
    let group = heartbeat::group();
    let (ready, attached) = mpsc::channel();
    thread::scope(|scope| {
        let start = |(started, Job { name, stack_bytes, body }): (usize, Job<'a>)| {
            let ready = ready.clone();
            let thread = thread::Builder::new().name(name).stack_size(stack_bytes);
            let spawned = thread.spawn_scoped(scope, move || {
                // The receiver exists as long as the scope.
                let _ = ready.send(heartbeat::attach(group));
                if *go.wait() {
                    body();
                }
                heartbeat::detach();
            });
            spawned.map_err(|source| WorkloadError::Spawn { started, wanted, source })?;
            match group.and_then(|_| attached.recv().ok()) {
                Some(Err(why)) => Err(WorkloadError::Heartbeat(why)),
                _ => Ok(()),
            }
        };
        let started = jobs.into_iter().enumerate().try_for_each(start);
        go.get_or_init(|| started.is_ok());
        started
    })
}

/// Runs `body` on `threads` threads, each with its rank from 0.
pub(crate) fn run_ranks(
    name: &str,
    threads: usize,
    body: impl Fn(usize) + Sync,
) -> Result<(), WorkloadError> {
    let body = &body;
    run((0..threads).map(|rank| Job::new(format!("{name}-{rank}"), move || body(rank))).collect())
}

/// Returns the part of `0..count` of one of `threads` ranks. Parts are contiguous, and their
/// lengths differ by at most one.
pub(crate) fn share(rank: usize, threads: usize, count: usize) -> Range<usize> {
    count * rank / threads..count * (rank + 1) / threads
}

#[cfg(test)]
mod tests {
    use super::*;
    use corebeat_heartbeat::Group;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    #[test]
    fn shares_of_all_ranks_cover_the_range_once() {
        for (threads, count) in [(1, 5), (3, 10), (7, 3), (4, 0)] {
            let all: Vec<usize> =
                (0..threads).flat_map(|rank| share(rank, threads, count)).collect();
            assert_eq!(all, (0..count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn run_ranks_runs_each_rank_once() {
        let ran: Vec<AtomicUsize> = (0..5).map(|_| AtomicUsize::new(0)).collect();
        run_ranks("t", 5, |rank| {
            ran[rank].fetch_add(1, Ordering::Relaxed);
        })
        .unwrap();
        assert!(ran.iter().all(|s| s.load(Ordering::Relaxed) == 1));
    }

    #[test]
    fn run_with_a_refused_thread_runs_no_body() {
        let ran = AtomicUsize::new(0);
        let body = || {
            ran.fetch_add(1, Ordering::Relaxed);
        };
        let mut jobs: Vec<Job> = (0..3).map(|i| Job::new(format!("t-{i}"), body)).collect();
        jobs[2].stack_bytes = 1 << 62; // No address space holds it.
        let error = run(jobs).unwrap_err();
        assert!(matches!(error, WorkloadError::Spawn { started: 2, wanted: 3, .. }), "{error}");
        assert_eq!(ran.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn run_without_its_heartbeats_runs_no_body() {
        let ran = AtomicUsize::new(0);
        let body = || {
            ran.fetch_add(1, Ordering::Relaxed);
        };
        let jobs = || (0..3).map(|i| Job::new(format!("t-{i}"), body)).collect();
        let refused = Group::new(1).period(Duration::ZERO);
        let error = heartbeat::with_group(refused, || run(jobs())).unwrap_err();
        assert!(matches!(error, WorkloadError::Heartbeat(_)), "{error}");
        assert_eq!(ran.load(Ordering::Relaxed), 0);
    }
}
