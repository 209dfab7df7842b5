//! The client, with a service whose behaviour the test determines.

use corebeat_wire::{
    Connection, Deadline, Error, Filled, Frame, MESSAGE_BYTES_MAX, Reader, Refusal, Watch, Writer,
    answer, host, refuse,
};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::thread::JoinHandleExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

/// A service for one client, which answers each message with the result of a function.
fn serve(
    answers: impl Fn(Frame) -> Vec<Frame> + Send + 'static,
) -> (tempfile::TempDir, Connection, JoinHandle<usize>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let service = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let (mut reader, mut writer, mut calls) = (Reader::new(), Writer::new(), 0);
        loop {
            while let Some(frame) = reader.take().unwrap() {
                calls += 1;
                answers(frame).into_iter().for_each(|a| writer.push(a).unwrap());
                writer.flush(stream.as_fd()).unwrap();
            }
            if reader.fill(stream.as_fd()).unwrap() == Filled::End {
                return calls;
            }
        }
    });
    let connection = Connection::to(&path).unwrap().expect("the service listens");
    (dir, connection, service)
}

fn frame(text: Vec<u8>) -> Frame {
    Frame { text, fds: vec![] }
}

#[test]
fn call_returns_the_answer_and_descriptors_travel_both_ways() {
    // The service returns what it receives.
    let (_dir, mut connection, service) = serve(|asked| {
        assert!(asked.text.starts_with(b"{\"method\":\"io.corebeat.Host.Attach\""));
        let text = answer(&host::Attached { period_ns: 5 }, false).unwrap();
        vec![Frame { text, fds: asked.fds }]
    });
    let attach = host::Attach { group: 7, owner: None, mode: None, role: host::Role::Producer };
    let (mut reading, writing) = std::io::pipe().unwrap();
    let sent = [writing.as_fd()];
    let (attached, fds): (host::Attached, _) =
        connection.call(host::ATTACH, &attach, &sent).unwrap();
    drop(writing);
    assert_eq!(attached.period_ns, 5);
    assert_eq!(fds.len(), 1);
    for fd in fds {
        std::fs::File::from(fd).write_all(b"x").unwrap();
    }
    drop(connection);
    assert_eq!(service.join().unwrap(), 1);
    let mut got = Vec::new();
    reading.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"x");
}

#[test]
fn connection_stays_usable_after_a_refusal() {
    let (_dir, mut connection, _service) = serve(|_| {
        vec![frame(refuse(&Refusal::TooMany { what: "groups".into(), limit: 3 }).unwrap())]
    });
    for _ in 0..2 {
        let refused =
            connection.call::<_, host::Nothing>(host::STATUS, &host::Nothing {}, &[]).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "the limit of 3 groups is reached: end some that are not needed"
        );
        assert!(matches!(refused, Error::Refused(Refusal::TooMany { limit: 3, .. })));
    }
}

#[test]
fn invalid_answer_ends_the_connection() {
    for garbage in ["", "{", "[]", "{\"parameters\":3}", "{\"error\":\"what.is.This\"}"] {
        let (_dir, mut connection, _service) = serve(move |_| vec![frame(garbage.into())]);
        let status = |connection: &mut Connection| {
            connection.call::<_, host::Status>(host::STATUS, &host::Nothing {}, &[]).unwrap_err()
        };
        assert!(matches!(status(&mut connection), Error::Garbled(_)), "{garbage}");
        assert!(matches!(status(&mut connection), Error::Stale), "{garbage}");
    }
}

#[test]
fn watch_returns_all_answers() {
    let (_dir, connection, _service) = serve(|asked| {
        assert!(asked.text.ends_with(b"\"more\":true}"));
        let change = |claim, more| {
            frame(
                answer(&host::ClaimChange { claim, cpus: vec![], deadline_ms: None }, more)
                    .unwrap(),
            )
        };
        vec![change(1, true), change(2, true), change(3, false)]
    });
    let (first, mut changes) =
        connection.watch::<_, host::ClaimChange>(host::WATCH_CLAIMS, &host::Nothing {}).unwrap();
    let mut next = || {
        loop {
            match changes.try_next() {
                Ok(Some(change)) => return Ok(change.claim),
                Ok(None) => thread::yield_now(),
                Err(why) => return Err(why),
            }
        }
    };
    assert_eq!((first.claim, next().unwrap(), next().unwrap()), (1, 2, 3));
    assert!(matches!(next(), Err(Error::Stale)));
}

fn report(claim: u64) -> Frame {
    let change = host::ClaimChange { claim, cpus: vec![], deadline_ms: None };
    frame(answer(&change, true).unwrap())
}

#[test]
fn answers_to_calls_come_between_reports_of_a_watch() {
    let (stopped, calls) = (Arc::new(Mutex::new(())), AtomicU64::new(0));
    let held = stopped.clone();
    let (_dir, connection, _service) = serve(move |asked| {
        drop(held.lock().unwrap());
        if asked.text.ends_with(b"\"more\":true}") {
            return vec![report(0)];
        }
        let period_ns = calls.fetch_add(1, Ordering::SeqCst) + 1;
        let answered = frame(answer(&host::Attached { period_ns }, false).unwrap());
        vec![report(1), report(2), answered, report(3)]
    });
    let watched = connection.watch::<_, host::ClaimChange>(host::WATCH_CLAIMS, &host::Nothing {});
    let mut changes = watched.unwrap().1.lasting();
    fn call(changes: &mut Watch<host::ClaimChange>, reports: &mut Vec<u64>) -> Result<u64, Error> {
        let report = |change: host::ClaimChange| reports.push(change.claim);
        let called = changes.call::<_, host::Attached>(host::ATTACH, &host::Nothing {}, report);
        called.map(|attached| attached.period_ns)
    }
    let next = |changes: &mut Watch<host::ClaimChange>| {
        loop {
            match changes.try_next().unwrap() {
                Some(change) => return change.claim,
                None => thread::yield_now(),
            }
        }
    };
    let mut reports = Vec::new();
    assert_eq!((call(&mut changes, &mut reports).unwrap(), &reports[..]), (1, &[1, 2][..]));
    assert_eq!(next(&mut changes), 3);

    // The answer to a call that has timed out is no report, and not the answer to the next call.
    for is_read in [true, false] {
        let stop = stopped.lock().unwrap();
        changes.set_deadline(Deadline::new());
        assert!(matches!(call(&mut changes, &mut reports), Err(Error::TimedOut)));
        assert!(changes.is_late() && changes.try_next().unwrap().is_none());
        drop(stop);
        reports.clear();
        if is_read {
            reports.extend((0..3).map(|_| next(&mut changes)));
            assert!(!changes.is_late());
        }
        changes.set_deadline(Deadline::new());
        let expected = if is_read { 3 } else { 5 };
        assert_eq!(call(&mut changes, &mut reports).unwrap(), expected);
        assert_eq!(reports, [1, 2, 3, 1, 2]);
        assert_eq!(next(&mut changes), 3);
    }
}

#[test]
fn refusal_before_a_hang_up_is_returned() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let mut connection = Connection::to(&path).unwrap().unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(&refuse(&Refusal::PermissionDenied {}).unwrap()).unwrap();
    stream.write_all(b"\0").unwrap();
    drop(stream);
    let status = |connection: &mut Connection| {
        connection.call::<_, host::Status>(host::STATUS, &host::Nothing {}, &[]).unwrap_err()
    };
    assert!(matches!(status(&mut connection), Error::Refused(Refusal::PermissionDenied {})));
    assert!(matches!(status(&mut connection), Error::Closed));
}

#[test]
fn unusable_connection_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let mut connection = Connection::to(&path).unwrap().unwrap();
    let service = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // Longer than the limit of a message.
        stream.write_all(&[b' '; MESSAGE_BYTES_MAX + 1]).unwrap();
        let mut asked = Vec::new();
        stream.read_to_end(&mut asked).unwrap();
        asked
    });
    let failed = connection.call::<_, host::Status>(host::STATUS, &host::Nothing {}, &[]);
    assert!(matches!(failed, Err(Error::TooLong)), "{failed:?}");
    // The connection is closed although the value still exists: its owner no longer waits.
    assert!(service.join().unwrap().ends_with(b"\0"));
    drop(connection);
}

/// As a daemon that is stopped: the kernel accepts connections and data, and nothing answers.
#[test]
fn silent_service_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let _listener = UnixListener::bind(&path).unwrap();
    let connect = || Connection::to(&path).unwrap().unwrap();
    let nothing = host::Nothing {};
    let is_late = |error: Error| assert!(matches!(error, Error::TimedOut), "{error}");
    let mut connection = connect();
    is_late(connection.call::<_, host::Status>(host::STATUS, &nothing, &[]).unwrap_err());
    let again = connection.call::<_, host::Status>(host::STATUS, &nothing, &[]);
    assert!(matches!(again, Err(Error::Stale)));
    let watched = connect().watch::<_, host::ClaimChange>(host::WATCH_CLAIMS, &nothing);
    is_late(watched.unwrap_err());
}

#[test]
fn lasting_connection_continues_after_a_timeout() {
    let (stopped, calls) = (Arc::new(Mutex::new(())), AtomicU64::new(0));
    let held = stopped.clone();
    let (_dir, connection, service) = serve(move |_| {
        drop(held.lock().unwrap());
        let period_ns = calls.fetch_add(1, Ordering::SeqCst) + 1;
        vec![frame(answer(&host::Attached { period_ns }, false).unwrap())]
    });
    let mut connection = connection.lasting();
    let call = |connection: &mut Connection| {
        let answered =
            connection.call::<_, host::Attached>(host::ATTACH, &host::Nothing {}, &[])?;
        Ok::<u64, Error>(answered.0.period_ns)
    };
    let stop = stopped.lock().unwrap();
    connection.settle().unwrap();
    assert!(matches!(call(&mut connection), Err(Error::TimedOut)));
    // A call that waits for the preceding one is not sent.
    connection.set_deadline(Deadline::passed());
    assert!(matches!(connection.settle(), Err(Error::TimedOut)));
    assert!(matches!(call(&mut connection), Err(Error::TimedOut)));
    drop(stop);
    connection.set_deadline(Deadline::new());
    assert_eq!(call(&mut connection).unwrap(), 2);
    drop(connection);
    assert_eq!(service.join().unwrap(), 2);
}

#[test]
fn call_after_its_deadline_is_not_sent() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let mut connection = Connection::to(&path).unwrap().unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    connection.set_deadline(Deadline::passed());
    let nothing = host::Nothing {};
    let late = connection.call::<_, host::Status>(host::STATUS, &nothing, &[]).unwrap_err();
    assert!(matches!(late, Error::TimedOut), "{late}");
    assert!(matches!(Connection::to_until(&path, Deadline::passed()), Err(Error::TimedOut)));
    drop(connection);
    let mut sent = Vec::new();
    stream.read_to_end(&mut sent).unwrap();
    assert!(sent.is_empty());
}

/// A profiler sends signals many times a second.
#[test]
fn signals_do_not_extend_the_wait() {
    extern "C" fn ignore(_: libc::c_int) {}
    let handler: extern "C" fn(libc::c_int) = ignore;
    // SAFETY: the handler does nothing.
    unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let _listener = UnixListener::bind(&path).unwrap();
    let mut connection = Connection::to(&path).unwrap().unwrap();
    let waits = thread::spawn(move || {
        connection.call::<_, host::Status>(host::STATUS, &host::Nothing {}, &[]).unwrap_err()
    });
    while !waits.is_finished() {
        // SAFETY: the thread has not been joined, so its ID is valid.
        unsafe { libc::pthread_kill(waits.as_pthread_t(), libc::SIGUSR1) };
        thread::yield_now();
    }
    let late = waits.join().unwrap();
    assert!(matches!(late, Error::TimedOut), "{late}");
}

#[test]
fn end_of_the_service_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let mut connection = Connection::to(&path).unwrap().unwrap();
    let (stream, _): (UnixStream, _) = listener.accept().unwrap();
    drop(OwnedFd::from(stream));
    let gone = connection.call::<_, host::Status>(host::STATUS, &host::Nothing {}, &[]);
    assert!(matches!(gone, Err(Error::Closed)), "{gone:?}");
    // A socket without listener is not a daemon, and neither is a missing socket.
    drop(listener);
    assert!(Connection::to(&path).unwrap().is_none());
    assert!(Connection::to(&dir.path().join("none")).unwrap().is_none());
    assert!(Connection::to(&path.join("beyond")).unwrap().is_none());
}
