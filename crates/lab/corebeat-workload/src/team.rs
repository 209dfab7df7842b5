//! Threads that start together, and an even split of work among them.

use crate::{WorkloadError, heartbeat};
use std::ops::Range;
use std::sync::OnceLock;
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
/// No body begins before all threads have been started: a barrier would wait without end for a
/// thread that the system refused to start.
pub(crate) fn run(jobs: Vec<Job<'_>>) -> Result<(), WorkloadError> {
    let wanted = jobs.len();
    let go = &OnceLock::new();
    let group = heartbeat::group();
    let mut no_heartbeat = OnceLock::new();
    let no_heartbeat_at = &no_heartbeat;
    let started = thread::scope(|scope| {
        let mut refused = None;
        for (started, Job { name, stack_bytes, body }) in jobs.into_iter().enumerate() {
            let thread = thread::Builder::new().name(name).stack_size(stack_bytes).spawn_scoped(
                scope,
                move || {
                    if *go.wait()
                        && let Err(why) = heartbeat::attached(group, body)
                    {
                        let _ = no_heartbeat_at.set(why);
                    }
                },
            );
            if let Err(source) = thread {
                refused = Some(WorkloadError::Spawn { started, wanted, source });
                break;
            }
        }
        go.get_or_init(|| refused.is_none());
        refused.map_or(Ok(()), Err)
    });
    match no_heartbeat.take() {
        Some(why) => started.and(Err(WorkloadError::Heartbeat(why))),
        None => started,
    }
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
    use std::sync::atomic::{AtomicUsize, Ordering};

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
}
