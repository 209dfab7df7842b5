//! A program's side, and a service that answers as the test wants it.

use corebeat_wire::{
    Connection, Error, Filled, Frame, MESSAGE_BYTES_MAX, Reader, Refusal, Writer, answer, host, refuse,
};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread::{self, JoinHandle};

/// A service for one client, which answers each message by what the function makes of it.
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
    let connection = Connection::to(&path).unwrap().expect("it listens");
    (dir, connection, service)
}

fn frame(text: Vec<u8>) -> Frame {
    Frame { text, fds: vec![] }
}

#[test]
fn call_gives_the_answer_and_descriptors_go_both_ways() {
    // What comes in goes back.
    let (_dir, mut connection, service) = serve(|asked| {
        assert!(asked.text.starts_with(b"{\"method\":\"io.corebeat.Host.Attach\""));
        let text = answer(&host::Attached { period_ns: 5 }, false).unwrap();
        vec![Frame { text, fds: asked.fds }]
    });
    let attach = host::Attach { group: 7, owner: None, mode: None, role: host::Role::Producer };
    let (mut reading, writing) = std::io::pipe().unwrap();
    let sent = [writing.as_fd()];
    let (attached, fds): (host::Attached, _) = connection.call(host::ATTACH, &attach, &sent).unwrap();
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
fn refusal_leaves_the_connection_of_use() {
    let (_dir, mut connection, _service) =
        serve(|_| vec![frame(refuse(&Refusal::TooMany { what: "groups".into(), limit: 3 }).unwrap())]);
    for _ in 0..2 {
        let refused = connection.call::<_, host::Nothing>(host::STATUS, &host::Nothing {}, &[]).unwrap_err();
        assert_eq!(refused.to_string(), "too many: groups, at most 3");
        assert!(matches!(refused, Error::Refused(Refusal::TooMany { limit: 3, .. })));
    }
}

#[test]
fn garbled_answer_ends_the_connection() {
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
fn watch_gives_answers_until_the_last() {
    let (_dir, connection, _service) = serve(|asked| {
        assert!(asked.text.ends_with(b"\"more\":true}"));
        let change = |claim, more| {
            frame(answer(&host::ClaimChange { claim, cpus: vec![], deadline_ms: None }, more).unwrap())
        };
        vec![change(1, true), change(2, true), change(3, false)]
    });
    let mut changes = connection.watch(host::WATCH_CLAIMS, &host::Nothing {}).unwrap();
    let claims: Vec<u64> = (0..3).map(|_| host::ClaimChange::clone(&changes.next().unwrap()).claim).collect();
    assert_eq!(claims, [1, 2, 3]);
    assert!(matches!(changes.next(), Err(Error::Stale)));
}

#[test]
fn refusal_of_who_hangs_up_is_heard() {
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
fn connection_of_no_use_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let mut connection = Connection::to(&path).unwrap().unwrap();
    let service = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // Longer than any message is.
        stream.write_all(&[b' '; MESSAGE_BYTES_MAX + 1]).unwrap();
        let mut asked = Vec::new();
        stream.read_to_end(&mut asked).unwrap();
        asked
    });
    let failed = connection.call::<_, host::Status>(host::STATUS, &host::Nothing {}, &[]);
    assert!(matches!(failed, Err(Error::TooLong)), "{failed:?}");
    // It ends although the connection is still held: who asked does not wait any more.
    assert!(service.join().unwrap().ends_with(b"\0"));
    drop(connection);
}

#[test]
fn service_that_goes_away_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let mut connection = Connection::to(&path).unwrap().unwrap();
    let (stream, _): (UnixStream, _) = listener.accept().unwrap();
    drop(OwnedFd::from(stream));
    let gone = connection.call::<_, host::Status>(host::STATUS, &host::Nothing {}, &[]);
    assert!(matches!(gone, Err(Error::Closed)), "{gone:?}");
    // A socket that nobody listens on any more is no daemon, and neither is one that is not there.
    drop(listener);
    assert!(Connection::to(&path).unwrap().is_none());
    assert!(Connection::to(&dir.path().join("none")).unwrap().is_none());
    assert!(Connection::to(&path.join("beyond")).unwrap().is_none());
}
