//! Messages on a stream socket: bytes that end with a NUL, and descriptors that travel with them.
//!
//! ```text
//!  bytes      { "method": ... } 0 { "method": ... } 0 { "me
//!             '------- 1st -------''------- 2nd -----'
//!  reads      '--------------'--------------------------'--
//!  came with    descriptor a       descriptor b
//! ```
//!
//! The kernel ends a read behind the piece that has descriptors, and never hands them out before that piece is reached. So
//! the last byte of the read is theirs, and they belong to the message that has it: `a` to the first, `b` to
//! the third. Senders send a message that has descriptors by itself, as systemd's do.

use crate::Error;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A message has at most so many bytes, its NUL not counted.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// A message has at most so many descriptors.
pub const FDS_MAX: usize = 4;
/// At most so many bytes wait for a reader, and at most so many messages.
pub const QUEUE_BYTES_MAX: usize = 256 << 10;
/// See [`QUEUE_BYTES_MAX`].
pub const QUEUE_MESSAGES_MAX: usize = 64;
/// A read takes at most so many bytes.
const READ_BYTES: usize = 8 << 10;
/// A buffer that has grown beyond this is given back once it is empty.
const KEPT_BYTES_MAX: usize = READ_BYTES;

/// A message as it came.
#[derive(Debug, Default)]
pub struct Frame {
    /// Its text, without the NUL.
    pub text: Vec<u8>,
    /// What came with it, closed on exec.
    pub fds: Vec<OwnedFd>,
}

/// What a read brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filled {
    /// Bytes: ask for messages.
    Some,
    /// Nothing for now: the socket does not block, or its time is over.
    Nothing,
    /// The other side sends no more.
    End,
}

/// Takes messages out of a stream, however it is cut into pieces.
///
/// It holds at most one message, what one read brings beyond it, and the descriptors of two messages.
#[derive(Debug, Default)]
pub struct Reader {
    /// What came and was not handed out.
    bytes: Vec<u8>,
    /// There is no NUL before this place in `bytes`.
    searched: usize,
    /// How many bytes came before the first of `bytes`.
    passed: u64,
    /// Descriptors, and the place in the whole stream of the byte that they belong to, in ascending order.
    fds: VecDeque<(u64, OwnedFd)>,
}

impl Reader {
    /// A reader at the beginning of a stream.
    pub fn new() -> Reader {
        Reader::default()
    }

    /// The next message that has come as a whole.
    ///
    /// # Errors
    /// [`Error::TooLong`] and [`Error::TooManyDescriptors`]. The stream cannot be read any further then.
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

    /// Reads once from a socket. Take all messages before this is called again.
    ///
    /// # Errors
    /// [`Error::TooManyDescriptors`], and [`Error::System`]. The stream cannot be read any further then.
    pub fn fill(&mut self, socket: BorrowedFd<'_>) -> Result<Filled, Error> {
        let before = self.bytes.len();
        self.bytes.resize(before + READ_BYTES, 0);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut self.bytes[before..])];
        let read = retry_on_intr(|| recvmsg(socket, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC));
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
                self.fds.extend(fds.map(|fd| (place, fd)));
            }
        }
        // A read brings the descriptors of one piece, beside those of the message that has not ended.
        if read.flags.contains(ReturnFlags::CTRUNC) || self.fds.len() > 2 * FDS_MAX {
            return Err(Error::TooManyDescriptors);
        }
        Ok(if read.bytes == 0 { Filled::End } else { Filled::Some })
    }

    /// The descriptors that were not handed out, for those who cannot wait until they are closed. The stream cannot be
    /// read any further then.
    pub fn take_fds(&mut self) -> impl Iterator<Item = OwnedFd> {
        std::mem::take(&mut self.fds).into_iter().map(|(_, fd)| fd)
    }

    /// Whether a message has begun that has not ended. Before that there is nothing to wait for.
    pub fn is_within_message(&self) -> bool {
        !self.bytes.is_empty()
    }
}

/// Whether all was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flushed {
    /// All of it.
    All,
    /// The socket takes no more for now.
    Part,
}

/// Messages on their way to a socket that does not block.
#[derive(Debug, Default)]
pub struct Writer {
    queue: VecDeque<Frame>,
    /// How much of the first one is sent. Its descriptors went with its first byte.
    sent: usize,
    bytes: usize,
}

impl Writer {
    /// A writer with nothing to send.
    pub fn new() -> Writer {
        Writer::default()
    }

    /// Adds a message: a text without NUL.
    ///
    /// # Errors
    /// [`Error::TooLong`], [`Error::TooManyDescriptors`], and [`Error::Full`] where too much waits already. Nothing is
    /// added then.
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

    /// Sends what the socket takes.
    ///
    /// # Errors
    /// [`Error::Closed`] where nobody reads any more, and [`Error::System`].
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

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

/// Whether a message keeps to the limits.
pub(crate) fn check(text: &[u8], fds: usize) -> Result<(), Error> {
    match () {
        () if text.len() > MESSAGE_BYTES_MAX => Err(Error::TooLong),
        () if fds > FDS_MAX => Err(Error::TooManyDescriptors),
        () => Ok(()),
    }
}

/// Sends bytes, and descriptors with the first of them. How many bytes went.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::TOOMANYREFS);
    }
    let from = [IoSlice::new(bytes)];
    retry_on_intr(|| sendmsg(socket, &from, &mut control, SendFlags::NOSIGNAL))
}
