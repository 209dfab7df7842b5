//! Threads that start together, and a fair split of work among them.

use crate::{WorkloadError, pulse};
use std::ops::Range;
use std::sync::OnceLock;
use std::thread;

/// Enough for every body; the default of 2 MiB would be, too, but a thousand of those is a lot of address space.
const STACK_BYTES: usize = 512 * 1024;

/// What one thread does, and what it is called (Linux shows 15 bytes).
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

/// Runs each job on a thread of its own and waits for all.
///
/// No body begins before every thread is there: a barrier that waits for a thread that the system refused to start
/// would wait for ever.
pub(crate) fn run(jobs: Vec<Job<'_>>) -> Result<(), WorkloadError> {
    let wanted = jobs.len();
    let go = &OnceLock::new();
    let group = pulse::group();
    let mut no_pulse = OnceLock::new();
    let no_pulse_at = &no_pulse;
    let started = thread::scope(|scope| {
        let mut refused = None;
        for (started, Job { name, stack_bytes, body }) in jobs.into_iter().enumerate() {
            let thread =
                thread::Builder::new().name(name).stack_size(stack_bytes).spawn_scoped(scope, move || {
                    if *go.wait()
                        && let Err(why) = pulse::attached(group, body)
                    {
                        let _ = no_pulse_at.set(why);
                    }
                });
            if let Err(source) = thread {
                refused = Some(WorkloadError::Spawn { started, wanted, source });
                break;
            }
        }
        go.get_or_init(|| refused.is_none());
        refused.map_or(Ok(()), Err)
    });
    match no_pulse.take() {
        Some(why) => started.and(Err(WorkloadError::Pulse(why))),
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

/// The part of `0..count` that belongs to one of `threads` ranks: contiguous, and no part is longer than another by
/// more than one.
pub(crate) fn share(rank: usize, threads: usize, count: usize) -> Range<usize> {
    count * rank / threads..count * (rank + 1) / threads
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn share_of_all_ranks_is_everything_once() {
        for (threads, count) in [(1, 5), (3, 10), (7, 3), (4, 0)] {
            let all: Vec<usize> = (0..threads).flat_map(|rank| share(rank, threads, count)).collect();
            assert_eq!(all, (0..count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn run_ranks_runs_each_rank_once() {
        let seen: Vec<AtomicUsize> = (0..5).map(|_| AtomicUsize::new(0)).collect();
        run_ranks("t", 5, |rank| {
            seen[rank].fetch_add(1, Ordering::Relaxed);
        })
        .unwrap();
        assert!(seen.iter().all(|s| s.load(Ordering::Relaxed) == 1));
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
