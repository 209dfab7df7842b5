//! Messages on a stream socket: bytes that end with a NUL, and descriptors that accompany them.
//!
//! ```text
//!  bytes      { "method": ... } 0 { "method": ... } 0 { "me
//!             '------- 1st -------''------- 2nd -----'
//!  reads      '--------------'--------------------------'--
//!  arrived with descriptor a       descriptor b
//! ```
//!
//! The kernel ends a read after the piece that carries descriptors, and returns the descriptors
//! only with that piece. Therefore the last byte of the read carries them, and they belong to the
//! message that contains that byte: `a` to the first, `b` to the third. Senders send a message with
//! descriptors separately, as systemd does.

use crate::Error;
use corebeat_sync::descriptor::above_standard;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Limit on the bytes of a message, without its NUL.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Limit on the descriptors of a message.
pub const FDS_MAX: usize = 4;
/// Limit on the bytes that are pending for a peer.
pub const QUEUE_BYTES_MAX: usize = 256 << 10;
/// Limit on the messages that are pending for a peer.
pub const QUEUE_MESSAGES_MAX: usize = 64;
/// Limit on the bytes of a read.
const READ_BYTES: usize = 8 << 10;
/// An empty buffer above this size is released.
const KEPT_BYTES_MAX: usize = READ_BYTES;

/// A received message.
#[derive(Debug, Default)]
pub struct Frame {
    /// Text without the NUL.
    pub text: Vec<u8>,
    /// Accompanying descriptors, which are closed on exec, and none of which is a standard one.
    pub fds: Vec<OwnedFd>,
}

/// Result of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filled {
    /// Bytes, which may contain messages.
    Some,
    /// No data: the socket does not block, or the time limit is reached.
    Nothing,
    /// The peer sends no further data.
    End,
}

/// Extracts messages from a stream, however the stream is divided.
///
/// The reader holds at most one message, the rest of one read, and the descriptors of two messages.
#[derive(Debug, Default)]
pub struct Reader {
    /// Received bytes that were not returned.
    bytes: Vec<u8>,
    /// Position in `bytes` before which there is no NUL.
    searched: usize,
    /// Position of `bytes` in the stream.
    passed: u64,
    /// Descriptors with the position in the stream of the byte that carried them, in ascending
    /// order.
    fds: VecDeque<(u64, OwnedFd)>,
}

impl Reader {
    /// A reader at the begin of a stream.
    pub fn new() -> Reader {
        Reader::default()
    }

    /// The next complete message.
    ///
    /// # Errors
    /// [`Error::TooLong`] and [`Error::TooManyDescriptors`]. The stream is unusable afterwards.
    pub fn take(&mut self) -> Result<Option<Frame>, Error> {
        let end = memchr::memchr(0, &self.bytes[self.searched..]).map(|at| self.searched + at);
        self.searched = end.unwrap_or(self.bytes.len());
        if self.searched > MESSAGE_BYTES_MAX {
            return Err(Error::TooLong);
        }
        let beyond = self.passed + self.searched as u64 + 1;
        let theirs = self.fds.iter().take_while(|(place, _)| *place < beyond).count();
        if theirs > FDS_MAX {
            return Err(Error::TooManyDescriptors);
        }
        let Some(end) = end else { return Ok(None) };
        let rest = self.bytes.split_off(end + 1);
        let mut text = std::mem::replace(&mut self.bytes, rest);
        text.truncate(end);
        self.searched = 0;
        self.passed = beyond;
        let fds = self.fds.drain(..theirs).map(|(_, fd)| fd).collect();
        if self.bytes.is_empty() && self.bytes.capacity() > KEPT_BYTES_MAX {
            self.bytes = Vec::new();
        }
        Ok(Some(Frame { text, fds }))
    }

    /// Reads once from a socket. The caller takes all messages before the next call.
    ///
    /// # Errors
    /// [`Error::TooManyDescriptors`], and [`Error::System`]. The stream is unusable afterwards.
    pub fn fill(&mut self, socket: BorrowedFd<'_>) -> Result<Filled, Error> {
        let before = self.bytes.len();
        self.bytes.resize(before + READ_BYTES, 0);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut self.bytes[before..])];
        let read =
            retry_on_intr(|| recvmsg(socket, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC));
        self.bytes.truncate(before + read.as_ref().map_or(0, |r| r.bytes));
        let read = match read {
            Ok(read) => read,
            Err(Errno::AGAIN) => return Ok(Filled::Nothing),
            Err(Errno::CONNRESET | Errno::PIPE) => return Ok(Filled::End),
            Err(e) => return Err(Error::system("receive a message", e)),
        };
        let place = self.passed + (self.bytes.len() as u64).saturating_sub(1);
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                for fd in fds {
                    let fd = above_standard(fd);
                    let fd = fd.map_err(|e| Error::system("receive a descriptor", e))?;
                    self.fds.push_back((place, fd));
                }
            }
        }
        // A read returns the descriptors of one piece, in addition to those of the incomplete
        // message.
        if read.flags.contains(ReturnFlags::CTRUNC) || self.fds.len() > 2 * FDS_MAX {
            return Err(Error::TooManyDescriptors);
        }
        Ok(if read.bytes == 0 { Filled::End } else { Filled::Some })
    }

    /// The descriptors that were not returned, for callers that must not wait while they are
    /// closed. The stream is unusable afterwards.
    pub fn take_fds(&mut self) -> impl Iterator<Item = OwnedFd> {
        std::mem::take(&mut self.fds).into_iter().map(|(_, fd)| fd)
    }

    /// Whether an incomplete message is pending.
    pub fn is_within_message(&self) -> bool {
        !self.bytes.is_empty()
    }
}

/// Result of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flushed {
    /// Everything was sent.
    All,
    /// The socket accepts no further data for now.
    Part,
}

/// Messages to be sent on a socket that does not block.
#[derive(Debug, Default)]
pub struct Writer {
    queue: VecDeque<Frame>,
    /// Number of bytes of the first message that were sent. Its descriptors were sent with its
    /// first byte.
    sent: usize,
    bytes: usize,
}

impl Writer {
    /// An empty writer.
    pub fn new() -> Writer {
        Writer::default()
    }

    /// Adds a message, a text without NUL.
    ///
    /// # Errors
    /// [`Error::TooLong`], [`Error::TooManyDescriptors`], and [`Error::Full`] if too much data is
    /// pending. Nothing is added after an error.
    pub fn push(&mut self, mut frame: Frame) -> Result<(), Error> {
        check(&frame.text, frame.fds.len())?;
        frame.text.push(0);
        let bytes = self.bytes + frame.text.len();
        if bytes > QUEUE_BYTES_MAX || self.queue.len() >= QUEUE_MESSAGES_MAX {
            return Err(Error::Full);
        }
        self.bytes = bytes;
        self.queue.push_back(frame);
        Ok(())
    }

    /// Sends as much as the socket accepts.
    ///
    /// # Errors
    /// [`Error::Closed`] if the peer no longer reads, and [`Error::System`].
    pub fn flush(&mut self, socket: BorrowedFd<'_>) -> Result<Flushed, Error> {
        while let Some(first) = self.queue.front_mut() {
            let fds: Vec<BorrowedFd<'_>> = first.fds.iter().map(AsFd::as_fd).collect();
            match send(socket, &first.text[self.sent..], &fds) {
                Ok(count) => self.sent += count,
                Err(Errno::AGAIN) => return Ok(Flushed::Part),
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(Error::Closed),
                Err(e) => return Err(Error::system("send a message", e)),
            }
            first.fds.clear();
            if self.sent == first.text.len() {
                self.bytes -= self.sent;
                self.sent = 0;
                self.queue.pop_front();
            }
        }
        Ok(Flushed::All)
    }

    /// Whether nothing is pending.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

/// Checks the limits of a message.
pub(crate) fn check(text: &[u8], fds: usize) -> Result<(), Error> {
    match () {
        () if text.len() > MESSAGE_BYTES_MAX => Err(Error::TooLong),
        () if fds > FDS_MAX => Err(Error::TooManyDescriptors),
        () => Ok(()),
    }
}

/// Sends bytes, and descriptors with the first byte. Returns the number of bytes sent.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::TOOMANYREFS);
    }
    let from = [IoSlice::new(bytes)];
    retry_on_intr(|| sendmsg(socket, &from, &mut control, SendFlags::NOSIGNAL))
}
