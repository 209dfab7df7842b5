//! Claims through a daemon, in this process.

use corebeat_claim::{Ask, Claim, Error, Retreat};
use corebeat_daemon::{Daemon, Options, Scope};
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::AsFd;

/// Waits until a claim has changed. What other claims of the process are told wakes it as well.
fn heed_a_change(claim: &mut Claim) {
    loop {
        rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(&*claim, PollFlags::IN)], None)).unwrap();
        if claim.heed().unwrap() {
            return;
        }
    }
}

#[test]
fn claims_through_a_daemon_are_shared_shrunk_and_void_when_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let cpus = std::thread::available_parallelism().unwrap().get();
    let (stopped, stop) = std::io::pipe().unwrap();
    let mut options = Options::new(socket.clone(), Scope::User, folder.path().join("state"));
    options.steers = false;
    let daemon = Daemon::open(options).unwrap();
    // SAFETY: no other thread is there yet.
    unsafe { std::env::set_var("COREBEAT_SOCKET", &socket) };
    let daemon = std::thread::spawn(move || daemon.run(stopped.as_fd()).unwrap());

    let mut first = Claim::begin().unwrap();
    assert_eq!(first.invade(Ask::new(1, 1000)).unwrap().len(), cpus);
    if cpus > 1 {
        // It heeds: the other has what it gives.
        let mut second = Claim::begin().unwrap();
        assert!(second.cpus().is_empty());
        heed_a_change(&mut first);
        assert_eq!(first.cpus().len(), cpus - 1);
        heed_a_change(&mut second);
        assert_eq!(second.cpus().len(), 1);
        assert!(first.cpus().iter().all(|cpu| !second.cpus().contains(cpu)));
        drop(second);
        heed_a_change(&mut first);
        assert_eq!(first.cpus().len(), cpus);
        // It does not: when the time is over the CPU is the other's all the same.
        let mut third = Claim::begin().unwrap();
        heed_a_change(&mut third);
        assert_eq!(third.cpus().len(), 1);
        first.heed().unwrap();
        assert_eq!(first.cpus().len(), cpus - 1);
    }
    assert!(matches!(first.invade(Ask::new(2, 1)), Err(Error::Daemon(_))));
    assert_eq!(first.retreat(Retreat::To(1)).unwrap().len(), 1);

    drop(stop);
    daemon.join().unwrap();
    // Its claims go on without it, by what this process decides for itself.
    let had = first.cpus().to_vec();
    assert!(!first.heed().unwrap());
    assert_eq!(first.cpus(), had);
    assert_eq!(first.invade(Ask::new(1, 1000)).unwrap().len(), cpus);
    assert_eq!(first.retreat(Retreat::To(1)).unwrap().len(), 1);
}
