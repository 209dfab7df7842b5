//! Claims through a daemon, in this process.

use corebeat_claim::{Ask, Claim, Error, Retreat};
use corebeat_daemon::{Daemon, Options, Scope};
use corebeat_wire::{Connection, host};
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::AsFd;
use std::time::Duration;

/// Waits until a claim has changed. Reports for other claims of the process wake it, too.
fn wait_for_change(claim: &mut Claim) {
    loop {
        rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(&*claim, PollFlags::IN)], None))
            .unwrap();
        if claim.poll().unwrap() {
            return;
        }
    }
}

#[test]
fn claims_with_a_daemon_share_cpus_and_survive_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let cpus = std::thread::available_parallelism().unwrap().get();
    // SAFETY: no other thread has been started yet.
    unsafe { std::env::set_var("COREBEAT_SOCKET", &socket) };
    let start = || {
        let (stopped, stop) = std::io::pipe().unwrap();
        let mut options = Options::new(socket.clone(), Scope::User, folder.path().join("state"));
        options.steering = corebeat_daemon::Steering::None;
        let daemon = Daemon::open(options).unwrap();
        (std::thread::spawn(move || daemon.run(stopped.as_fd()).unwrap()), stop)
    };
    let (daemon, stop) = start();

    let mut first = Claim::begin().unwrap();
    assert_eq!(first.invade(Ask::new(1, 1000)).unwrap().len(), cpus);
    if cpus > 1 {
        // The first claim polls: the second one obtains the released CPU.
        let mut second = Claim::begin().unwrap();
        assert!(second.cpus().is_empty());
        wait_for_change(&mut first);
        assert_eq!(first.cpus().len(), cpus - 1);
        wait_for_change(&mut second);
        assert_eq!(second.cpus().len(), 1);
        assert!(first.cpus().iter().all(|cpu| !second.cpus().contains(cpu)));
        drop(second);
        wait_for_change(&mut first);
        assert_eq!(first.cpus().len(), cpus);
        // The first claim does not poll: after the deadline the third one obtains the CPU anyway.
        let mut third = Claim::begin().unwrap();
        wait_for_change(&mut third);
        assert_eq!(third.cpus().len(), 1);
        first.poll().unwrap();
        assert_eq!(first.cpus().len(), cpus - 1);
    }
    assert!(matches!(first.invade(Ask::new(2, 1)), Err(Error::Daemon(_))));
    assert_eq!(first.retreat(Retreat::To(1)).unwrap().len(), 1);

    drop(stop);
    daemon.join().unwrap();
    // Without the daemon, this process distributes the CPUs of its claims.
    let had = first.cpus().to_vec();
    assert!(!first.poll().unwrap());
    assert_eq!(first.cpus(), had);
    assert_eq!(first.invade(Ask::new(1, 1000)).unwrap().len(), cpus);
    assert_eq!(first.retreat(Retreat::To(1)).unwrap().len(), 1);
    assert_eq!(first.invade(Ask::new(1, 1000)).unwrap().len(), cpus);

    // The claim moves to the next daemon, and reports of that daemon call its function.
    let (called, calls) = std::sync::mpsc::channel();
    first
        .on_change(move || {
            let _ = called.send(());
        })
        .unwrap();
    let (daemon, stop) = start();
    let mut next = Connection::open().unwrap().unwrap();
    let mut claims = || {
        let listed = next.call::<_, host::Claims>(host::LIST_CLAIMS, &host::Nothing {}, &[]);
        listed.unwrap().0.claims.len()
    };
    while claims() == 0 {
        first.poll().unwrap();
        // The daemon limits the rate of calls.
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(first.cpus().len(), cpus);
    if cpus > 1 {
        let mut second = Claim::begin().unwrap();
        assert!(second.cpus().is_empty());
        calls.recv().unwrap();
        wait_for_change(&mut first);
        assert_eq!(first.cpus().len(), cpus - 1);
        wait_for_change(&mut second);

        // A claim that moves keeps its request, and obtains the CPU when it is free.
        drop(stop);
        daemon.join().unwrap();
        second.poll().unwrap();
        first.poll().unwrap();
        assert_eq!(first.cpus().len(), cpus - 1);
        drop(second);
        wait_for_change(&mut first);
        assert_eq!(first.cpus().len(), cpus);
    } else {
        drop(stop);
        daemon.join().unwrap();
    }
}
