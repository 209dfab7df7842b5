//! Models of the claim of jobs and of the search for descendants: small cases, over every
//! interleaving and every outcome that the memory orderings allow.

use crate::job::{Job, Origin, Work};
use crate::strand::{Strand, leapfrog};
use corebeat_sync::cell::UnsafeCell;
use corebeat_sync::fault;
use corebeat_sync::thread;
use std::sync::Arc;

/// A number that closures change; loom reports accesses at the same time.
struct Shared(UnsafeCell<u32>);

// SAFETY: loom checks the accesses.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Shared {
    fn new() -> Arc<Shared> {
        Arc::new(Shared(UnsafeCell::new(0)))
    }

    fn add(&self, number: u32) -> u32 {
        // SAFETY: loom checks the accesses.
        self.0.with_mut(|value| unsafe {
            *value += number;
            *value
        })
    }

    fn get(&self) -> u32 {
        // SAFETY: as above.
        self.0.with(|value| unsafe { *value })
    }
}

fn origin(number: u64) -> Origin {
    Origin { depth: 1, stack: 0, number }
}

fn strand() -> Arc<Strand> {
    Arc::new(Strand::new(usize::MAX))
}

/// Claims any job of `from`, and runs it.
fn help(from: &Strand, thief: &Arc<Strand>) -> bool {
    let Some(job) = from.steal(thief, || true) else { return false };
    // SAFETY: the job was claimed.
    unsafe { job.execute() };
    true
}

/// A join whose second closure adds `number`, which is greater than those of the joins around it.
fn join(own: &Strand, shared: &Arc<Shared>, number: u32, first: impl FnOnce()) {
    let adds = shared.clone();
    let work = Work::new(move || adds.add(number));
    // SAFETY: this function waits for the end of the job.
    let job = Arc::new(unsafe { Job::new(&raw const work, origin(number.into())) });
    own.push(job.clone());
    first();
    if own.take(&job) {
        // SAFETY: the job was claimed.
        let closure = unsafe { work.closure() };
        closure.expect("the closure has not run")();
    } else {
        assert!(job.end.wait().is_none());
        // SAFETY: the job has ended.
        let result = unsafe { work.slot().take() };
        assert!(result.is_some_and(|result| result.is_ok()));
    }
    // Only this frame has access after the join.
    shared.add(1);
}

#[test]
fn loom_closure_runs_once() {
    fault::run(|| {
        fault::model(3).check(|| {
            let (own, shared) = (strand(), Shared::new());
            let from = own.clone();
            let thief = thread::spawn(move || help(&from, &strand()));
            join(&own, &shared, 10, || ());
            thief.join().unwrap();
            assert_eq!(shared.get(), 11);
        });
    });
}

#[test]
fn loom_two_thieves_claim_different_jobs() {
    fault::run(|| {
        fault::model(2).check(|| {
            let (own, shared) = (strand(), [Shared::new(), Shared::new()]);
            let thieves = [own.clone(), own.clone()]
                .map(|from| thread::spawn(move || help(&from, &strand())));
            join(&own, &shared[0], 10, || join(&own, &shared[1], 20, || ()));
            thieves.into_iter().for_each(|thief| assert!(thief.join().is_ok()));
            assert_eq!([shared[0].get(), shared[1].get()], [11, 21]);
        });
    });
}

/// A strand that waits for a job takes only descendants of the job, although the thief ends the job
/// and begins an unrelated one at the same time.
#[test]
fn loom_waiting_strand_takes_only_descendants() {
    fault::run(|| {
        fault::model(3).check(|| {
            let (own, thief) = (strand(), strand());
            let awaited = Arc::new(leaked_job());
            own.push(awaited.clone());
            let claimed = own.steal(&thief, || true).expect("the job was pushed");
            let busy = thread::spawn(move || {
                // SAFETY: the job was claimed.
                unsafe { claimed.execute() };
                thief.push(Arc::new(leaked_job()));
            });
            assert!(leapfrog(&awaited, &own).is_none(), "an unrelated job was taken");
            busy.join().unwrap();
        });
    });
}

/// A job whose work stays alive for the rest of the execution.
fn leaked_job() -> Job {
    let work: &'static Work<fn(), ()> = Box::leak(Box::new(Work::new((|| ()) as fn())));
    // SAFETY: the work is never freed.
    unsafe { Job::new(work, origin(0)) }
}

#[test]
fn loom_faults_are_detected() {
    fault::assert_noticed(&[
        ("loom_closure_runs_once", "step claim"),
        ("loom_closure_runs_once", "step notify"),
        ("loom_closure_runs_once", "step wait"),
        ("loom_two_thieves_claim_different_jobs", "step claim"),
        ("loom_waiting_strand_takes_only_descendants", "step descent"),
    ]);
}
