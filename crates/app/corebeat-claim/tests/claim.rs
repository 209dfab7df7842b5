//! Claims of a process by itself. With a daemon: the tests of corebeat-daemon.

use corebeat_claim::{Ask, Claim, Error, Retreat, tie};
use corebeat_machine::{CpuId, CpuSet};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};

/// The CPUs are the process', and so is who asks for them.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    // SAFETY: all tests take this lock before they read the environment or start a thread.
    unsafe { std::env::set_var("COREBEAT_SOCKET", "/nonexistent/socket") };
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn cpus() -> usize {
    std::thread::available_parallelism().unwrap().get()
}

fn has_news(claim: &Claim) -> bool {
    let mut ready = [PollFd::new(claim, PollFlags::IN)];
    poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}

#[test]
fn claim_begins_with_one_cpu_and_takes_what_is_there() {
    let _alone = alone();
    let mut claim = Claim::begin().unwrap();
    assert_eq!(claim.cpus().len(), 1);
    assert_eq!(claim.invade(Ask::new(1, 10_000)).unwrap().len(), cpus());
    assert_eq!(claim.retreat(Retreat::To(1)).unwrap().len(), 1);
}

#[test]
fn retreat_to_nothing_keeps_one() {
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
    assert!(!has_news(&first));
    // Nothing is free, so the second gets nothing, and the first is asked.
    let mut second = Claim::begin().unwrap();
    assert_eq!((second.cpus().len(), has_news(&first)), (0, true));
    assert!(first.heed().unwrap());
    assert_eq!((first.cpus().len(), has_news(&first)), (cpus() - 1, false));
    assert!(second.heed().unwrap());
    assert_eq!(second.cpus().len(), 1);
    assert!(first.cpus().iter().all(|cpu| !second.cpus().contains(cpu)));
    // What one leaves is the other's.
    drop(second);
    assert!(first.heed().unwrap());
    assert_eq!(first.cpus().len(), cpus());
}

#[test]
fn listener_is_called_once_for_each_heed() {
    let _alone = alone();
    if cpus() < 2 {
        return;
    }
    let mut first = Claim::begin().unwrap();
    first.invade(Ask::new(1, 10_000)).unwrap();
    let (tell, told) = mpsc::channel();
    first.on_change(move || tell.send(()).unwrap()).unwrap();
    for _ in 0..3 {
        let second = Claim::begin().unwrap();
        told.recv().unwrap();
        first.heed().unwrap();
        drop(second);
        told.recv().unwrap();
        first.heed().unwrap();
    }
    assert_eq!(first.cpus().len(), cpus());
    drop(first);
    assert!(told.try_recv().is_err(), "nothing but what was heeded");
}

#[test]
fn ask_that_makes_no_sense_is_refused_and_changes_nothing() {
    let _alone = alone();
    let mut claim = Claim::begin().unwrap();
    let elsewhere: CpuSet = [CpuId(8000)].into_iter().collect();
    for ask in [Ask::new(0, 0), Ask::new(3, 2), Ask { within: Some(elsewhere), ..Ask::new(1, 1) }] {
        assert!(matches!(claim.invade(ask), Err(Error::Senseless(_))));
        assert_eq!(claim.cpus().len(), 1);
    }
    assert!(tie(CpuId(8191)).is_err());
    assert!(tie(CpuId(100_000)).is_err());
}
