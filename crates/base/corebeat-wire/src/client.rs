//! A program's side: it asks, and waits for the answer.

use crate::frame::{self, Filled, Frame, Reader};
use crate::message::{self, Asked};
use crate::{Error, socket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect, shutdown, socket_with,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// So long a client waits for the daemon, which answers from memory: something is wrong if it takes longer. One that is so late
/// itself thinks that the host has no time for it, and takes all back.
const PATIENCE: Duration = Duration::from_secs(2);

/// A connection to the daemon: one call after the other.
///
/// It belongs to the process that opened it; a child after fork opens its own.
#[derive(Debug)]
pub struct Connection {
    path: PathBuf,
    socket: OwnedFd,
    reader: Reader,
    pid: u32,
    is_stale: bool,
}

impl Connection {
    /// Connects to the daemon that [`socket::places`] finds first, or tells that there is none.
    ///
    /// # Errors
    /// [`Error::Relative`] where `COREBEAT_SOCKET` names no absolute path, and [`Error::System`] where it names a socket that one may not
    /// use, or that does not answer. In the
    /// other places such a socket is passed over.
    pub fn open() -> Result<Option<Connection>, Error> {
        for place in socket::places() {
            if place.is_given && !place.path.is_absolute() {
                return Err(Error::Relative(place.path));
            }
            match Connection::to(&place.path) {
                Ok(Some(connection)) => return Ok(Some(connection)),
                Err(e) if place.is_given => return Err(e),
                _ => {}
            }
        }
        Ok(None)
    }

    /// Connects to the daemon that listens here, or tells that none does.
    ///
    /// # Errors
    /// [`Error::System`] where the socket may not be used, or nobody answers.
    pub fn to(path: &Path) -> Result<Option<Connection>, Error> {
        let failed = |e: Errno| Error::system(format!("connect to {}", path.display()), e);
        let address = SocketAddrUnix::new(path).map_err(failed)?;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let socket = socket.map_err(failed)?;
        set_patience(&socket, Some(PATIENCE)).map_err(failed)?;
        match rustix::io::retry_on_intr(|| connect(&socket, &address)) {
            Ok(()) => {}
            Err(Errno::NOENT | Errno::CONNREFUSED | Errno::NOTDIR) => return Ok(None),
            Err(e) => return Err(failed(e)),
        }
        let path = path.to_owned();
        Ok(Some(Connection { path, socket, reader: Reader::new(), pid: std::process::id(), is_stale: false }))
    }

    /// Another connection to the same daemon.
    ///
    /// # Errors
    /// As [`Connection::to`], and [`Error::Closed`] where it has ended.
    pub fn another(&self) -> Result<Connection, Error> {
        Connection::to(&self.path)?.ok_or(Error::Closed)
    }

    /// Calls a method, by its whole name, and waits for the answer, and for the descriptors that come with it.
    ///
    /// # Errors
    /// [`Error::Refused`] where the daemon will not; the connection is as before. After any other error it is of no use, and
    /// closed: what the daemon has not read by then is not done.
    pub fn call<P: Serialize, R: DeserializeOwned>(
        &mut self,
        method: &str,
        parameters: &P,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(R, Vec<OwnedFd>), Error> {
        self.ask(&Asked { method, parameters, more: false }, fds)?;
        let frame = self.answer()?;
        let (answer, _) = message::read_answer(&frame.text).inspect_err(|e| self.heed(e))?;
        Ok((answer, frame.fds))
    }

    /// Calls a method that answers again and again. The connection is for these answers alone from then on.
    ///
    /// # Errors
    /// [`Error::System`]. A refusal is told by [`Watch::next`].
    pub fn watch<P: Serialize, R: DeserializeOwned>(
        mut self,
        method: &str,
        parameters: &P,
    ) -> Result<Watch<R>, Error> {
        self.ask(&Asked { method, parameters, more: true }, &[])?;
        set_patience(&self.socket, None).map_err(|e| Error::system("wait for answers", e))?;
        Ok(Watch { connection: self, answers: PhantomData })
    }

    /// The socket: it hangs up when the daemon ends.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn ask<P: Serialize>(&mut self, asked: &Asked<'_, P>, fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
        if self.is_stale || self.pid != std::process::id() {
            return Err(Error::Stale);
        }
        let mut text = message::write(asked)?;
        frame::check(&text, fds.len())?;
        text.push(0);
        match self.send(&text, fds) {
            // Who hangs up may have said why: that is still to be read.
            Ok(()) | Err(Error::Closed) => Ok(()),
            Err(e) => {
                self.is_stale = true;
                Err(e)
            }
        }
    }

    fn send(&self, text: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
        let mut sent = 0;
        while sent < text.len() {
            // They go with the first byte.
            let fds = if sent == 0 { fds } else { &[] };
            sent += frame::send(self.as_fd(), &text[sent..], fds).map_err(|e| match e {
                Errno::PIPE | Errno::CONNRESET => Error::Closed,
                e => Error::system("send to the daemon (is it stopped?)", e),
            })?;
        }
        Ok(())
    }

    fn answer(&mut self) -> Result<Frame, Error> {
        let answer = self.receive();
        if answer.is_err() {
            self.is_stale = true;
            // Who does not wait any longer takes back what was asked: a daemon that was stopped does not do it when it goes on.
            let _ = shutdown(&self.socket, Shutdown::Both);
        }
        answer
    }

    fn receive(&mut self) -> Result<Frame, Error> {
        loop {
            if let Some(frame) = self.reader.take()? {
                return Ok(frame);
            }
            match self.reader.fill(self.socket.as_fd())? {
                Filled::Some => {}
                Filled::End => return Err(Error::Closed),
                Filled::Nothing => {
                    return Err(Error::system("hear from the daemon (is it stopped?)", Errno::TIMEDOUT));
                }
            }
        }
    }

    fn heed(&mut self, error: &Error) {
        self.is_stale |= !matches!(error, Error::Refused(_));
    }
}

/// Whether the other side of a socket has closed it: nothing more will come of it. Waits for nothing.
pub fn hangs_up(socket: impl AsFd) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0)
}

/// The answers to one call, one after the other.
#[derive(Debug)]
pub struct Watch<R> {
    connection: Connection,
    answers: PhantomData<R>,
}

impl<R: DeserializeOwned> Watch<R> {
    /// Waits for the next answer, for as long as it takes.
    ///
    /// # Errors
    /// [`Error::Refused`], and [`Error::Closed`] when the daemon ends.
    // No iterator: it ends with an error, which an iterator's user may not expect to be the last item.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<R, Error> {
        self.check()?;
        let frame = self.connection.answer()?;
        self.read(&frame)
    }

    /// The next answer, if it is there.
    ///
    /// # Errors
    /// As [`Watch::next`].
    pub fn try_next(&mut self) -> Result<Option<R>, Error> {
        self.check()?;
        match self.find() {
            Ok(None) => Ok(None),
            Ok(Some(frame)) => self.read(&frame).map(Some),
            Err(e) => {
                self.connection.is_stale = true;
                Err(e)
            }
        }
    }

    fn check(&self) -> Result<(), Error> {
        let is_stale = self.connection.is_stale || self.connection.pid != std::process::id();
        if is_stale { Err(Error::Stale) } else { Ok(()) }
    }

    /// What has come, without waiting.
    fn find(&mut self) -> Result<Option<Frame>, Error> {
        loop {
            if let Some(frame) = self.connection.reader.take()? {
                return Ok(Some(frame));
            }
            let mut ready = [PollFd::from_borrowed_fd(self.connection.as_fd(), PollFlags::IN)];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            let found = rustix::io::retry_on_intr(|| poll(&mut ready, Some(&now)));
            if found.map_err(|e| Error::system("look for answers", e))? == 0 {
                return Ok(None);
            }
            if let Filled::End = self.connection.reader.fill(self.connection.socket.as_fd())? {
                return Err(Error::Closed);
            }
        }
    }

    /// After an error, a refusal too, nothing more comes.
    fn read(&mut self, frame: &Frame) -> Result<R, Error> {
        self.connection.is_stale = true;
        let (answer, continues) = message::read_answer(&frame.text)?;
        self.connection.is_stale = !continues;
        Ok(answer)
    }
}

impl<R> AsFd for Watch<R> {
    /// The socket: there is something to read when an answer comes.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}

fn set_patience(socket: &OwnedFd, patience: Option<Duration>) -> Result<(), Errno> {
    set_socket_timeout(socket, Timeout::Recv, patience)?;
    set_socket_timeout(socket, Timeout::Send, patience)
}
