//! Claims through a daemon, in this process.

use corebeat_claim::{Ask, CLAIMS_MAX, Claim, Error, Retreat};
use corebeat_daemon::{Daemon, Options, Scope};
use corebeat_wire::{Call, Connection, Filled, Frame, Reader, Writer, answer, host};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Serializes the tests, because all claims of a process use one daemon or share its CPUs.
fn alone_with(socket: &Path) -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: all tests take this lock before they read the environment or start a thread, and the
    // threads that listen for changes do not read it.
    unsafe { std::env::set_var("COREBEAT_SOCKET", socket) };
    alone
}

/// A daemon in this process.
struct Running {
    stop: std::io::PipeWriter,
    daemon: JoinHandle<()>,
}

impl Running {
    fn start(socket: &Path) -> Running {
        let (stopped, stop) = std::io::pipe().unwrap();
        let state = socket.with_file_name("state");
        let mut options = Options::new(socket.to_owned(), Scope::User, state);
        options.steering = corebeat_daemon::Steering::None;
        let daemon = Daemon::open(options).unwrap();
        Running { stop, daemon: thread::spawn(move || daemon.run(stopped.as_fd()).unwrap()) }
    }

    fn end(self) {
        drop(self.stop);
        self.daemon.join().unwrap();
    }
}

/// Number of CPUs of each claim at the daemon.
fn claims() -> Vec<usize> {
    let mut connection = Connection::open().unwrap().unwrap();
    let listed = connection.call::<_, host::Claims>(host::LIST_CLAIMS, &host::Nothing {}, &[]);
    listed.unwrap().0.claims.iter().map(|own| own.cpus.len()).collect()
}

/// Waits until a claim has changed. The descriptor may be readable without a change.
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
    let _alone = alone_with(&socket);
    let daemon = Running::start(&socket);

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

    daemon.end();
    // Without the daemon, this process distributes the CPUs of its claims.
    let had = first.cpus().to_vec();
    assert!(!first.poll().unwrap());
    assert_eq!(first.cpus(), had);
    assert_eq!(first.invade(Ask::new(1, 1000)).unwrap().len(), cpus);
    assert_eq!(first.retreat(Retreat::To(1)).unwrap().len(), 1);
    assert_eq!(first.invade(Ask::new(1, 1000)).unwrap().len(), cpus);

    // The claim moves to the next daemon, and reports of that daemon call its function.
    let calls = listen(&mut first);
    let daemon = Running::start(&socket);
    while claims().is_empty() {
        first.poll().unwrap();
        // The daemon limits the rate of calls.
        thread::sleep(Duration::from_millis(10));
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
        daemon.end();
        second.poll().unwrap();
        first.poll().unwrap();
        assert_eq!(first.cpus().len(), cpus - 1);
        drop(second);
        wait_for_change(&mut first);
        assert_eq!(first.cpus().len(), cpus);
    } else {
        daemon.end();
    }
}

/// The calls of the function of a claim.
fn listen(claim: &mut Claim) -> Receiver<()> {
    let (called, calls) = mpsc::channel();
    claim
        .on_change(move || {
            let _ = called.send(());
        })
        .unwrap();
    calls
}

/// Waits for a call, and polls.
fn follow(claim: &mut Claim, calls: &Receiver<()>) -> Result<bool, Error> {
    calls.recv_timeout(Duration::from_secs(60)).expect("the function is called");
    claim.poll()
}

#[test]
fn listener_is_called_when_a_daemon_ends_starts_or_does_not_answer() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let _alone = alone_with(&socket);
    let mut claim = Claim::begin().unwrap();
    let calls = listen(&mut claim);
    for _ in 0..2 {
        let daemon = Running::start(&socket);
        while claims().is_empty() {
            follow(&mut claim, &calls).unwrap();
        }
        assert_eq!(claims(), [1]);
        daemon.end();
        follow(&mut claim, &calls).unwrap();
        assert_eq!(claim.cpus().len(), 1);
    }

    // A daemon that accepts connections and does not answer.
    let daemon = Running::start(&socket);
    while claims().is_empty() {
        follow(&mut claim, &calls).unwrap();
    }
    daemon.end();
    let silent = UnixListener::bind(&socket).unwrap();
    assert!(matches!(
        follow(&mut claim, &calls),
        Err(Error::Daemon(corebeat_wire::Error::TimedOut))
    ));
    // The function is called again, and finds that no daemon runs.
    drop(silent);
    follow(&mut claim, &calls).unwrap();
    assert_eq!(claim.cpus().len(), 1);
}

#[test]
fn claim_has_one_connection() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let _alone = alone_with(&socket);
    let daemon = Running::start(&socket);
    let claims: Vec<Claim> = (0..CLAIMS_MAX).map(|_| Claim::begin().unwrap()).collect();
    let mut connection = Connection::open().unwrap().unwrap();
    let status = connection.call::<_, host::Status>(host::STATUS, &host::Nothing {}, &[]);
    let host::Status { claims: count, clients, .. } = status.unwrap().0;
    assert_eq!((count as usize, clients as usize), (CLAIMS_MAX, CLAIMS_MAX + 1));
    drop(claims);
    daemon.end();
}

#[test]
fn claim_is_not_woken_by_changes_of_others_of_its_process() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let _alone = alone_with(&socket);
    if std::thread::available_parallelism().unwrap().get() < 2 {
        return;
    }
    let daemon = Running::start(&socket);
    // The daemon would report to the first connection first.
    let unaffected = Claim::begin().unwrap();
    let mut others = Claim::begin().unwrap();
    others.invade(Ask::new(1, 1000)).unwrap();
    let mut waiting = Claim::begin().unwrap();
    assert!(waiting.cpus().is_empty());
    drop(others);
    wait_for_change(&mut waiting);
    let mut ready = [PollFd::new(&unaffected, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    assert_eq!(poll(&mut ready, Some(&at_once)).unwrap(), 0);
    drop((unaffected, waiting));
    daemon.end();
}

/// A daemon that creates a claim of CPU 0, and answers no later call for it.
fn begin_only(stream: &UnixStream) {
    let (mut reader, mut writer) = (Reader::new(), Writer::new());
    while reader.fill(stream.as_fd()).is_ok_and(|filled| filled == Filled::Some) {
        while let Some(asked) = reader.take().unwrap() {
            let mut call = Call::read(&asked.text).unwrap();
            let begun = host::ClaimChange { claim: 0, cpus: vec![], deadline_ms: None };
            let text = match call.method.clone().as_str() {
                host::WATCH_CLAIMS => answer(&begun, true),
                host::INVADE if call.parameters::<host::Invade>().unwrap().claim.is_none() => {
                    answer(&host::Invaded { claim: 1, cpus: vec![0] }, false)
                }
                _ => continue,
            };
            writer.push(Frame { text: text.unwrap(), fds: vec![] }).unwrap();
            writer.flush(stream.as_fd()).unwrap();
        }
    }
}

#[test]
fn listener_is_called_after_a_failed_poll_that_no_call_of_it_has_caused() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let _alone = alone_with(&socket);
    let listener = UnixListener::bind(&socket).unwrap();
    let (accepted, streams) = mpsc::channel();
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            accepted.send(stream.try_clone().unwrap()).unwrap();
            thread::spawn(move || begin_only(&stream));
        }
    });
    let mut claim = Claim::begin().unwrap();
    let calls = listen(&mut claim);
    assert!(matches!(
        claim.invade(Ask::new(1, 2)),
        Err(Error::Daemon(corebeat_wire::Error::TimedOut))
    ));
    // The daemon has not executed the request, so the CPUs are unknown. The listener waits for a
    // change, which does not occur.
    assert!(!claim.poll().unwrap());
    follow(&mut claim, &calls).unwrap();
    // The drop of the claim does not wait for this daemon.
    streams.try_iter().for_each(|stream| stream.shutdown(Shutdown::Both).unwrap());
}

#[test]
fn claim_begins_without_a_daemon_that_ends_at_the_same_time() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let _alone = alone_with(&socket);
    let listener = UnixListener::bind(&socket).unwrap();
    let ending = thread::spawn(move || drop(listener.accept().unwrap()));
    assert_eq!(Claim::begin().unwrap().cpus().len(), 1);
    ending.join().unwrap();
}
