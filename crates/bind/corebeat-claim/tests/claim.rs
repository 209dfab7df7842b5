//! Claims without a daemon. Claims with a daemon are tested in `daemon.rs` and in corebeat-daemon.

use corebeat_claim::{Ask, CLAIMS_MAX, Claim, CpuId, CpuSet, Error, Retreat, pin, unpin};
use corebeat_test_group::in_child;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::mem::ManuallyDrop;
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};

/// Serializes the tests, because all claims of a process share its CPUs. No daemon is used.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    // SAFETY: all tests take this lock before they read the environment or start a thread.
    unsafe { std::env::set_var("COREBEAT_SOCKET", "/nonexistent/socket") };
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn cpus() -> usize {
    std::thread::available_parallelism().unwrap().get()
}

fn has_request(claim: &Claim) -> bool {
    let mut ready = [PollFd::new(claim, PollFlags::IN)];
    poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}

#[test]
fn claim_starts_with_one_cpu_and_accepts_free_ones() {
    let _alone = alone();
    let mut claim = Claim::begin().unwrap();
    assert_eq!(claim.cpus().len(), 1);
    assert_eq!(claim.invade(Ask::new(1, 10_000)).unwrap().len(), cpus());
    assert_eq!(claim.retreat(Retreat::To(1)).unwrap().len(), 1);
}

#[test]
fn retreat_to_zero_keeps_one() {
    let _alone = alone();
    let mut claim = Claim::begin().unwrap();
    claim.invade(Ask::new(1, 10_000)).unwrap();
    assert_eq!(claim.retreat(Retreat::To(0)).unwrap().len(), 1);
    let all = claim.cpus().iter().copied().collect();
    assert_eq!(claim.retreat(Retreat::Cpus(all)).unwrap().len(), 1);
}

#[test]
fn claims_of_a_process_share_its_cpus() {
    let _alone = alone();
    if cpus() < 2 {
        return;
    }
    let mut first = Claim::begin().unwrap();
    first.invade(Ask::new(1, 10_000)).unwrap();
    assert!(!has_request(&first));
    // No CPU is free: the second claim has none, and the first one is requested to release some.
    let mut second = Claim::begin().unwrap();
    assert_eq!((second.cpus().len(), has_request(&first)), (0, true));
    assert!(first.poll().unwrap());
    assert_eq!((first.cpus().len(), has_request(&first)), (cpus() - 1, false));
    assert!(second.poll().unwrap());
    assert_eq!(second.cpus().len(), 1);
    assert!(first.cpus().iter().all(|cpu| !second.cpus().contains(cpu)));
    // The first claim obtains the CPUs that the second one releases.
    drop(second);
    assert!(first.poll().unwrap());
    assert_eq!(first.cpus().len(), cpus());
}

#[test]
fn child_of_fork_has_and_grants_no_cpu_of_its_parent() {
    let _alone = alone();
    let (sender, calls) = mpsc::channel();
    let mut inherited = ManuallyDrop::new(Claim::begin().unwrap());
    inherited.on_change(move || sender.send(()).unwrap()).unwrap();
    let own = inherited.cpus().to_vec();
    assert!(in_child(|| {
        let forked = |result: Result<(), Error>| matches!(result, Err(Error::Forked));
        let is_inert = inherited.cpus().is_empty()
            && forked(inherited.invade(Ask::new(1, 1)).map(|_| ()))
            && forked(inherited.retreat(Retreat::To(1)).map(|_| ()))
            && forked(inherited.poll().map(|_| ()))
            && forked(inherited.on_change(|| {}));
        let mut first = Claim::begin().unwrap();
        // Must not end the first claim of the child, which may have the same ID.
        // SAFETY: the child does not use the value any more.
        unsafe { ManuallyDrop::drop(&mut inherited) };
        let is_disjoint = |claim: &Claim| claim.cpus().iter().all(|cpu| !own.contains(cpu));
        first.invade(Ask::new(1, 10_000)).unwrap();
        let free = cpus() - own.len();
        // A child of the child has neither the CPUs of its parent nor of the parent's parent.
        let has_grandchild_none = in_child(|| Claim::begin().unwrap().cpus().is_empty());
        is_inert && is_disjoint(&first) && first.cpus().len() == free && has_grandchild_none
    }));
    let mut claim = ManuallyDrop::into_inner(inherited);
    assert_eq!(claim.cpus(), own);
    assert_eq!(claim.invade(Ask::new(1, 10_000)).unwrap().len(), cpus());
    if cpus() > 1 {
        let _second = Claim::begin().unwrap();
        calls.recv().expect("the child has not ended the listener of its parent");
    }
}

#[test]
fn claims_of_a_process_have_a_limit() {
    let _alone = alone();
    let claims: Vec<Claim> = (0..CLAIMS_MAX).map(|_| Claim::begin().unwrap()).collect();
    let limit = Claim::begin().unwrap_err();
    assert!(matches!(limit, Error::TooMany { limit: CLAIMS_MAX, .. }), "{limit}");
    drop(claims);
    Claim::begin().unwrap();
}

/// Polls a claim of all CPUs after each change by another claim, which its listener reports.
fn poll_beside_other_claims(first: &mut Claim, calls: &mpsc::Receiver<()>, rounds: u32) {
    for _ in 0..rounds {
        let second = Claim::begin().unwrap();
        calls.recv().unwrap();
        first.poll().unwrap();
        drop(second);
        calls.recv().unwrap();
        first.poll().unwrap();
    }
}

#[test]
fn listener_is_called_once_per_poll() {
    let _alone = alone();
    if cpus() < 2 {
        return;
    }
    let mut first = Claim::begin().unwrap();
    first.invade(Ask::new(1, 10_000)).unwrap();
    let (sender, calls) = mpsc::channel();
    first.on_change(move || sender.send(()).unwrap()).unwrap();
    poll_beside_other_claims(&mut first, &calls, 3);
    assert_eq!(first.cpus().len(), cpus());
    drop(first);
    assert!(calls.try_recv().is_err(), "every call is followed by a poll");
}

#[test]
fn listener_that_panics_is_called_again() {
    let _alone = alone();
    if cpus() < 2 {
        return;
    }
    let mut first = Claim::begin().unwrap();
    first.invade(Ask::new(1, 10_000)).unwrap();
    let (sender, calls) = mpsc::channel();
    first
        .on_change(move || {
            sender.send(()).unwrap();
            panic!("a planned panic");
        })
        .unwrap();
    poll_beside_other_claims(&mut first, &calls, 2);
}

#[test]
fn unpin_returns_the_cpus_of_the_process() {
    let _alone = alone();
    let cpus_of_thread = || std::thread::available_parallelism().unwrap().get();
    let before = cpus_of_thread();
    let claim = Claim::begin().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(claim.cpus()[0]).unwrap();
            assert_eq!(cpus_of_thread(), 1);
            unpin().unwrap();
            assert_eq!(cpus_of_thread(), before);
        });
    });
}

#[test]
fn invalid_request_is_refused_and_changes_nothing() {
    let _alone = alone();
    let mut claim = Claim::begin().unwrap();
    let elsewhere: CpuSet = [CpuId(8000)].into_iter().collect();
    let refused = claim.invade(Ask { within: Some(elsewhere.clone()), ..Ask::new(1, 1) });
    let refused = refused.unwrap_err().to_string();
    assert!(refused.starts_with("a claim within the CPUs {8000} is impossible"), "{refused}");
    for ask in [Ask::new(0, 0), Ask::new(3, 2), Ask { within: Some(elsewhere), ..Ask::new(1, 1) }] {
        assert!(matches!(claim.invade(ask), Err(Error::InvalidArgument(_))));
        assert_eq!(claim.cpus().len(), 1);
    }
    assert!(pin(CpuId(8191)).is_err());
    assert!(pin(CpuId(100_000)).is_err());
}
