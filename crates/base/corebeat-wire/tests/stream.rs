//! Messages on a stream, for arbitrary divisions and arbitrary writers.

use corebeat_wire::{
    Call, Error, FDS_MAX, Filled, Flushed, Frame, MESSAGE_BYTES_MAX, QUEUE_MESSAGES_MAX, Reader,
    Writer,
};
use proptest::collection::vec;
use proptest::prelude::*;
use rustix::fs::{MemfdFlags, fstat, memfd_create};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

/// A pair of sockets, one for writing and one for reading, neither of which blocks.
fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap()
}

/// Sends bytes and descriptors unchanged. The socket must have room for the bytes.
fn send(socket: &OwnedFd, bytes: &[u8], fds: &[OwnedFd]) {
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4 * FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(&fds)));
    let sent = sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
    assert_eq!(sent, bytes.len());
}

fn file() -> OwnedFd {
    memfd_create("test", MemfdFlags::CLOEXEC).unwrap()
}

/// Identifies a file independently of its descriptor.
fn identity(fd: &OwnedFd) -> u64 {
    fstat(fd).unwrap().st_ino
}

/// Takes all available messages. Returns the error that prevents further messages.
fn drain(reader: &mut Reader, socket: &OwnedFd, into: &mut Vec<Frame>) -> Result<Filled, Error> {
    loop {
        while let Some(frame) = reader.take()? {
            into.push(frame);
        }
        match reader.fill(socket.as_fd())? {
            Filled::Some => {}
            end => return Ok(end),
        }
    }
}

/// The text of a message, and the identities of its descriptors.
fn text_and_identities(frame: Frame) -> (Vec<u8>, Vec<u64>) {
    (frame.text, frame.fds.iter().map(identity).collect())
}

/// A message, and its number of descriptors.
fn message() -> impl Strategy<Value = (Vec<u8>, usize)> {
    let long = (1u8..=255, 0usize..9000).prop_map(|(byte, length)| vec![byte; length]);
    let text = prop_oneof![vec(1u8..=255, 0..40), long];
    (text, prop_oneof![3 => Just(0), 1 => 0..=FDS_MAX])
}

proptest! {
    #[test]
    fn divided_stream_gives_the_same_messages(
        messages in vec(message(), 0..8),
        cuts in vec((1usize..5000, any::<bool>()), 1..20),
    ) {
        let (near, far) = pair();
        let (mut reader, mut got, mut expected) = (Reader::new(), Vec::new(), Vec::new());
        // A socket has room for about 160 pieces, however small.
        let mut cuts = (1..).zip(cuts.into_iter().cycle());
        // Adjacent pieces without descriptors may be joined.
        let mut pending: Vec<u8> = Vec::new();
        for (text, count) in &messages {
            let fds: Vec<OwnedFd> = (0..*count).map(|_| file()).collect();
            expected.push((text.clone(), fds.iter().map(identity).collect::<Vec<_>>()));
            if !fds.is_empty() && !pending.is_empty() {
                send(&near, &std::mem::take(&mut pending), &[]);
            }
            pending.extend(text);
            pending.push(0);
            let mut fds = fds;
            while fds.len() + pending.len() > 1 {
                let (pieces, (size, look)) = cuts.next().unwrap();
                if fds.is_empty() && pending.len() < size {
                    break;
                }
                let piece: Vec<u8> = pending.drain(..size.min(pending.len())).collect();
                send(&near, &piece, &std::mem::take(&mut fds));
                if look || pieces % 100 == 0 {
                    prop_assert_eq!(drain(&mut reader, &far, &mut got).unwrap(), Filled::Nothing);
                }
            }
        }
        send(&near, &pending, &[]);
        drop(near);
        prop_assert_eq!(drain(&mut reader, &far, &mut got).unwrap(), Filled::End);
        prop_assert!(!reader.is_within_message());
        let got: Vec<_> = got.into_iter().map(text_and_identities).collect();
        prop_assert_eq!(got, expected);
    }

    #[test]
    fn messages_written_are_the_messages_read(messages in vec(message(), 0..8)) {
        let (near, far) = pair();
        let (mut writer, mut reader) = (Writer::new(), Reader::new());
        let (mut got, mut expected) = (Vec::new(), Vec::new());
        for (text, count) in messages {
            let fds: Vec<OwnedFd> = (0..count).map(|_| file()).collect();
            expected.push((text.clone(), fds.iter().map(identity).collect::<Vec<_>>()));
            writer.push(Frame { text, fds }).unwrap();
        }
        while writer.flush(near.as_fd()).unwrap() == Flushed::Part {
            drain(&mut reader, &far, &mut got).unwrap();
        }
        prop_assert!(writer.is_empty());
        drain(&mut reader, &far, &mut got).unwrap();
        let got: Vec<_> = got.into_iter().map(text_and_identities).collect();
        prop_assert_eq!(got, expected);
    }

    #[test]
    fn garbage_never_panics(pieces in vec((vec(any::<u8>(), 1..300), 0..FDS_MAX), 0..8)) {
        let (near, far) = pair();
        let (mut reader, mut got) = (Reader::new(), Vec::new());
        for (bytes, count) in pieces {
            let fds: Vec<OwnedFd> = (0..count).map(|_| file()).collect();
            send(&near, &bytes, &fds);
            if drain(&mut reader, &far, &mut got).is_err() {
                break;
            }
        }
        for frame in got {
            let _ = Call::read(&frame.text);
        }
    }

    #[test]
    fn descriptors_are_returned_or_closed(
        pieces in vec((vec(0u8..3, 1..20), 0..2 * FDS_MAX, any::<bool>()), 1..6),
    ) {
        let (mut held, given) = std::io::pipe().unwrap();
        let given = OwnedFd::from(given);
        let (near, far) = pair();
        let (mut reader, mut got) = (Reader::new(), Vec::new());
        for (bytes, count, look) in pieces {
            let fds: Vec<OwnedFd> = (0..count).map(|_| given.try_clone().unwrap()).collect();
            send(&near, &bytes, &fds);
            if look && drain(&mut reader, &far, &mut got).is_err() {
                break;
            }
        }
        drop((near, far, reader, got, given));
        // If another process held the other end of the pipe, this read would block forever.
        prop_assert_eq!(held.read(&mut [0]).unwrap(), 0);
    }
}

#[test]
fn reader_refuses_a_message_that_is_too_long() {
    for ends in [true, false] {
        let (near, far) = pair();
        let (mut reader, mut got) = (Reader::new(), Vec::new());
        let mut text = vec![b'a'; MESSAGE_BYTES_MAX];
        text.extend_from_slice(if ends { b"\0" } else { b"a" });
        let mut outcome = Ok(Filled::Nothing);
        for piece in text.chunks(4096) {
            send(&near, piece, &[]);
            outcome = drain(&mut reader, &far, &mut got);
        }
        assert_eq!(outcome.is_ok(), ends, "{outcome:?}");
        assert_eq!(got.len(), usize::from(ends));
    }
}

#[test]
fn reader_refuses_too_many_descriptors_together_or_one_by_one() {
    let files = |count| (0..count).map(|_| file()).collect::<Vec<_>>();
    let (near, far) = pair();
    send(&near, b"a", &files(FDS_MAX + 1));
    let at_once = drain(&mut Reader::new(), &far, &mut Vec::new());
    assert!(matches!(at_once, Err(Error::TooManyDescriptors)), "{at_once:?}");
    let (near, far) = pair();
    (0..=FDS_MAX).for_each(|_| send(&near, b"a", &files(1)));
    let one_by_one = drain(&mut Reader::new(), &far, &mut Vec::new());
    assert!(matches!(one_by_one, Err(Error::TooManyDescriptors)), "{one_by_one:?}");
}

#[test]
fn writer_refuses_too_large_and_too_many_messages() {
    let mut writer = Writer::new();
    let text = vec![b'a'; MESSAGE_BYTES_MAX + 1];
    assert!(matches!(writer.push(Frame { text, fds: vec![] }), Err(Error::TooLong)));
    let fds = (0..=FDS_MAX).map(|_| file()).collect();
    assert!(matches!(writer.push(Frame { text: vec![], fds }), Err(Error::TooManyDescriptors)));
    assert!(writer.is_empty());
    (0..QUEUE_MESSAGES_MAX).for_each(|_| writer.push(Frame::default()).unwrap());
    assert!(matches!(writer.push(Frame::default()), Err(Error::Full)));
    let mut writer = Writer::new();
    let long = || Frame { text: vec![b'a'; MESSAGE_BYTES_MAX], fds: vec![] };
    let taken = (0..100).take_while(|_| writer.push(long()).is_ok()).count();
    assert_eq!(taken, 3);
}

#[test]
fn writer_reports_a_closed_peer() {
    let (near, far) = pair();
    let mut writer = Writer::new();
    let long = || Frame { text: vec![b'a'; MESSAGE_BYTES_MAX], fds: vec![] };
    let mut full = false;
    for _ in 0..100 {
        full |= matches!(writer.push(long()), Err(Error::Full));
        writer.flush(near.as_fd()).unwrap();
    }
    assert!(full, "the kernel should accept only a few hundred KiB");

    drop(far);
    assert!(matches!(writer.flush(near.as_fd()), Err(Error::Closed)));
}
