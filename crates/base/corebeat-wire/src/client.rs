//! The client: sends calls and waits for answers.

use crate::Error;
use crate::deadline::Deadline;
use crate::frame::{self, Filled, Frame, Reader};
use crate::message::{self, Answer, Asked};
use crate::socket::{self, Place};
use corebeat_sync::descriptor::above_standard;
use corebeat_sync::fork::Process;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect, shutdown,
    socket_with,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// A connection to the daemon, for one call at a time.
///
/// It belongs to the process that opened it; a child of fork must open its own.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    reader: Reader,
    /// The process that opened the connection.
    process: Process,
    is_stale: bool,
    /// The connection continues after a timeout.
    is_lasting: bool,
    /// The answer to a call that has timed out is outstanding.
    is_late: bool,
    /// End of the present call; `None`: each call has a deadline of its own.
    deadline: Option<Deadline>,
}

impl Connection {
    /// Connects to the first daemon of [`socket::places`]. Returns `None` if no daemon runs.
    ///
    /// # Errors
    /// [`Error::Relative`] if `COREBEAT_SOCKET` is a relative path; [`Error::System`] if its socket
    /// is not accessible (such sockets at the other paths are skipped); [`Error::TimedOut`] if a
    /// socket does not answer.
    pub fn open() -> Result<Option<Connection>, Error> {
        let opened = Connection::open_until(Deadline::new())?;
        Ok(opened.map(|connection| Connection { deadline: None, ..connection }))
    }

    /// Connects as [`open`](Connection::open) does, and sets the deadline of the next calls.
    ///
    /// # Errors
    /// As [`open`](Connection::open).
    pub fn open_until(deadline: Deadline) -> Result<Option<Connection>, Error> {
        Connection::open_first(socket::places(), deadline)
    }

    fn open_first(places: Vec<Place>, deadline: Deadline) -> Result<Option<Connection>, Error> {
        for place in places {
            if place.is_given && !place.path.is_absolute() {
                return Err(Error::Relative(place.path));
            }
            match Connection::to_until(&place.path, deadline) {
                Ok(Some(connection)) => return Ok(Some(connection)),
                // After a timeout no time is left for the other places, where a daemon may run.
                Err(e) if place.is_given || matches!(e, Error::TimedOut) => return Err(e),
                _ => {}
            }
        }
        Ok(None)
    }

    /// Connects to the daemon at this path. Returns `None` if no daemon listens there.
    ///
    /// # Errors
    /// [`Error::System`] if the socket is not accessible; [`Error::TimedOut`] if it does not
    /// answer.
    pub fn to(path: &Path) -> Result<Option<Connection>, Error> {
        let opened = Connection::to_until(path, Deadline::new())?;
        Ok(opened.map(|connection| Connection { deadline: None, ..connection }))
    }

    /// Connects as [`to`](Connection::to) does, and sets the deadline of the next calls.
    ///
    /// # Errors
    /// As [`to`](Connection::to).
    pub fn to_until(path: &Path, deadline: Deadline) -> Result<Option<Connection>, Error> {
        let failed = |e: Errno| {
            let remedy = match e {
                Errno::ACCESS => " (unset COREBEAT_SOCKET, or name a socket that you may use)",
                _ => "",
            };
            Error::system(format!("connect to the daemon at {}{remedy}", path.display()), e)
        };
        let address = SocketAddrUnix::new(path).map_err(failed)?;
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        // The program may have closed its standard output, which must not become this socket.
        let socket = above_standard(socket.map_err(failed)?)
            .map_err(|e| Error::system("open a socket to the daemon", e))?;
        loop {
            // Limits the wait for a daemon that does not accept connections.
            set_socket_timeout(&socket, Timeout::Send, Some(deadline.left()?)).map_err(failed)?;
            match connect(&socket, &address) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(Errno::NOENT | Errno::CONNREFUSED | Errno::NOTDIR) => return Ok(None),
                Err(Errno::AGAIN) => return Err(Error::TimedOut),
                Err(e) => return Err(failed(e)),
            }
        }
        // From now on only `Deadline::wait` waits.
        ioctl_fionbio(&socket, true).map_err(failed)?;
        Ok(Some(Connection {
            socket,
            reader: Reader::new(),
            process: Process::current(),
            is_stale: false,
            is_lasting: false,
            is_late: false,
            deadline: Some(deadline),
        }))
    }

    /// Sets the deadline of all calls until this function is called again.
    pub fn set_deadline(&mut self, deadline: Deadline) {
        self.deadline = Some(deadline);
    }

    /// Makes the connection continue after a timeout, for calls that may be executed late. The
    /// daemon executes a call that has timed out as soon as it continues, and the next call first
    /// waits for that answer, which is dropped: at most one call is outstanding.
    #[must_use]
    pub fn lasting(self) -> Connection {
        Connection { is_lasting: true, ..self }
    }

    /// Waits until the daemon has executed the call that has timed out, if there is one.
    ///
    /// # Errors
    /// As [`Connection::call`], without refusals.
    pub fn settle(&mut self) -> Result<(), Error> {
        self.drop_late_answer(self.deadline.unwrap_or_else(Deadline::new), &mut no_report)
    }

    /// Calls a method by its full name. Waits for the answer and its descriptors.
    ///
    /// # Errors
    /// [`Error::Refused`] if the daemon refuses; the connection stays usable. [`Error::TimedOut`]
    /// if the daemon does not answer. After any error but a refusal the connection is closed, and a
    /// call that the daemon has not read by then is not executed. A [`lasting`](Self::lasting)
    /// connection is not closed after a timeout.
    pub fn call<P: Serialize, R: DeserializeOwned>(
        &mut self,
        method: &str,
        parameters: &P,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(R, Vec<OwnedFd>), Error> {
        self.call_among(method, parameters, fds, &mut no_report)
    }

    fn call_among<P: Serialize, R: DeserializeOwned>(
        &mut self,
        method: &str,
        parameters: &P,
        fds: &[BorrowedFd<'_>],
        reports: Reports<'_>,
    ) -> Result<(R, Vec<OwnedFd>), Error> {
        let deadline = self.deadline.unwrap_or_else(Deadline::new);
        self.ask(&Asked { method, parameters, more: false }, fds, deadline, reports)?;
        let (answer, fds) = self.answer(deadline, reports)?;
        Ok((self.parameters(answer)?, fds))
    }

    /// Calls a method with repeated answers. Waits for the first answer, which the daemon sends
    /// immediately. The connection then carries the further answers, and other calls
    /// ([`Watch::call`]).
    ///
    /// # Errors
    /// As [`Connection::call`].
    pub fn watch<P: Serialize, R: DeserializeOwned>(
        mut self,
        method: &str,
        parameters: &P,
    ) -> Result<(R, Watch<R>), Error> {
        let deadline = self.deadline.unwrap_or_else(Deadline::new);
        let asked = Asked { method, parameters, more: true };
        self.ask(&asked, &[], deadline, &mut no_report)?;
        let (first, _) = self.answer(deadline, &mut no_report)?;
        let mut watch = Watch { connection: self, answers: PhantomData };
        Ok((watch.read(first)?, watch))
    }

    /// The socket, which reports the end of the daemon by a hang-up.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn ask<P: Serialize>(
        &mut self,
        asked: &Asked<'_, P>,
        fds: &[BorrowedFd<'_>],
        deadline: Deadline,
        reports: Reports<'_>,
    ) -> Result<(), Error> {
        self.drop_late_answer(deadline, reports)?;
        // An earlier wait may have taken all of the time.
        deadline.left()?;
        let mut text = message::write(asked)?;
        frame::check(&text, fds.len())?;
        text.push(0);
        match self.send(&text, fds, deadline) {
            // A peer that hangs up may have sent its reason, which is still read.
            Ok(()) | Err(Error::Closed) => Ok(()),
            Err(e) => {
                self.is_stale = true;
                Err(e)
            }
        }
    }

    fn send(&self, text: &[u8], fds: &[BorrowedFd<'_>], deadline: Deadline) -> Result<(), Error> {
        let mut sent = 0;
        while sent < text.len() {
            // Descriptors are sent with the first byte.
            let fds = if sent == 0 { fds } else { &[] };
            match frame::send(self.as_fd(), &text[sent..], fds) {
                Ok(bytes) => sent += bytes,
                Err(Errno::AGAIN) => deadline.wait(self.as_fd(), PollFlags::OUT)?,
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(Error::Closed),
                Err(e) => return Err(Error::system("send to the daemon", e)),
            }
        }
        Ok(())
    }

    fn drop_late_answer(&mut self, deadline: Deadline, reports: Reports<'_>) -> Result<(), Error> {
        if self.is_unusable() {
            return Err(Error::Stale);
        }
        if self.is_late {
            self.answer(deadline, reports)?;
        }
        Ok(())
    }

    /// Converts the parameters of an answer. The connection continues only after a refusal.
    fn parameters<R: DeserializeOwned>(&mut self, answer: Answer) -> Result<R, Error> {
        let parameters = answer.parameters();
        parameters.inspect_err(|e| self.is_stale |= !matches!(e, Error::Refused(_)))
    }

    fn answer(
        &mut self,
        deadline: Deadline,
        reports: Reports<'_>,
    ) -> Result<(Answer, Vec<OwnedFd>), Error> {
        let answer = self.receive_among(deadline, reports);
        self.is_late = self.is_lasting && matches!(answer, Err(Error::TimedOut));
        if answer.is_err() && !self.is_late {
            self.is_stale = true;
            // After a timeout the connection is closed, so that a stopped daemon does not execute
            // the call when it continues.
            let _ = shutdown(&self.socket, Shutdown::Both);
        }
        answer
    }

    /// Receives the answer to a call. Passes on the reports before it.
    fn receive_among(
        &mut self,
        deadline: Deadline,
        reports: Reports<'_>,
    ) -> Result<(Answer, Vec<OwnedFd>), Error> {
        loop {
            let frame = self.receive(deadline)?;
            if let Some(answer) = reports(Answer::read(&frame.text)?)? {
                return Ok((answer, frame.fds));
            }
        }
    }

    fn receive(&mut self, deadline: Deadline) -> Result<Frame, Error> {
        loop {
            if let Some(frame) = self.reader.take()? {
                return Ok(frame);
            }
            match self.reader.fill(self.socket.as_fd())? {
                Filled::Some => {}
                Filled::End => return Err(Error::Closed),
                Filled::Nothing => deadline.wait(self.as_fd(), PollFlags::IN)?,
            }
        }
    }

    /// Whether an earlier error has ended the connection, or it belongs to the parent process.
    fn is_unusable(&self) -> bool {
        self.is_stale || !self.process.is_current()
    }
}

/// Whether the peer of a socket has closed it, so that nothing further arrives. Does not wait.
pub fn is_closed(socket: impl AsFd) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0)
}

/// Takes the reports of a [`Watch`] out of the received messages, and returns the others, which are
/// answers to calls.
type Reports<'a> = &'a mut dyn FnMut(Answer) -> Result<Option<Answer>, Error>;

/// On a connection without a watch, each message is the answer to a call.
fn no_report(answer: Answer) -> Result<Option<Answer>, Error> {
    Ok(Some(answer))
}

/// The repeated answers to one call, after the first one: reports, on a connection that carries
/// other calls as well.
#[derive(Debug)]
pub struct Watch<R> {
    connection: Connection,
    answers: PhantomData<R>,
}

impl<R: DeserializeOwned> Watch<R> {
    /// The next report, if it has arrived. Does not wait; `poll(2)` on the socket does. Drops the
    /// answer to a call that has timed out.
    ///
    /// # Errors
    /// [`Error::Refused`], and [`Error::Closed`] if the daemon has ended.
    pub fn try_next(&mut self) -> Result<Option<R>, Error> {
        if self.connection.is_unusable() {
            return Err(Error::Stale);
        }
        loop {
            let found = self
                .find()
                .and_then(|frame| frame.map(|frame| Answer::read(&frame.text)).transpose());
            match found.inspect_err(|_| self.connection.is_stale = true)? {
                None => return Ok(None),
                Some(late) if self.connection.is_late && !late.continues => {
                    self.connection.is_late = false;
                }
                Some(report) => return self.read(report).map(Some),
            }
        }
    }

    /// Calls another method, as [`Connection::call`] does without descriptors. Passes reports that
    /// arrive before the answer to `report`.
    ///
    /// # Errors
    /// As [`Connection::call`].
    pub fn call<P: Serialize, A: DeserializeOwned>(
        &mut self,
        method: &str,
        parameters: &P,
        mut report: impl FnMut(R),
    ) -> Result<A, Error> {
        let mut reports = |answer: Answer| match answer.continues {
            true => answer.parameters().map(&mut report).map(|()| None),
            false => Ok(Some(answer)),
        };
        let answered = self.connection.call_among(method, parameters, &[], &mut reports);
        answered.map(|(answer, _)| answer)
    }

    /// Sets the deadline of all calls until this function is called again.
    pub fn set_deadline(&mut self, deadline: Deadline) {
        self.connection.set_deadline(deadline);
    }

    /// Makes the connection continue after a timeout, as [`Connection::lasting`] does.
    #[must_use]
    pub fn lasting(self) -> Watch<R> {
        Watch { connection: self.connection.lasting(), ..self }
    }

    /// Whether the answer to a call that has timed out is outstanding.
    pub fn is_late(&self) -> bool {
        self.connection.is_late
    }

    /// Reads available data without waiting.
    fn find(&mut self) -> Result<Option<Frame>, Error> {
        loop {
            if let Some(frame) = self.connection.reader.take()? {
                return Ok(Some(frame));
            }
            let mut ready = [PollFd::from_borrowed_fd(self.connection.as_fd(), PollFlags::IN)];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            let found = rustix::io::retry_on_intr(|| poll(&mut ready, Some(&now)));
            if found.map_err(|e| Error::system("check for answers", e))? == 0 {
                return Ok(None);
            }
            if let Filled::End = self.connection.reader.fill(self.connection.socket.as_fd())? {
                return Err(Error::Closed);
            }
        }
    }

    /// Ends the watch after an error, including a refusal, and after the last report.
    fn read(&mut self, report: Answer) -> Result<R, Error> {
        self.connection.is_stale = true;
        let continues = report.continues;
        let parameters = report.parameters()?;
        self.connection.is_stale = !continues;
        Ok(parameters)
    }
}

impl<R> AsFd for Watch<R> {
    /// The socket, which is readable when an answer arrives.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{bind, listen};
    use std::os::unix::net::UnixListener;

    #[test]
    fn daemon_is_not_reported_as_missing_if_another_one_accepts_no_connection() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name| Place { path: folder.path().join(name), is_given: false };
        let (full, live) = (place("full"), place("live"));
        let socket = |flags| socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let address = SocketAddrUnix::new(&full.path).unwrap();
        let listener = socket(SocketFlags::CLOEXEC).unwrap();
        bind(&listener, &address).unwrap();
        listen(&listener, 0).unwrap();
        let mut waiting = Vec::new();
        let refused = loop {
            let client = socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).unwrap();
            match connect(&client, &address) {
                Ok(()) => waiting.push(client),
                Err(e) => break e,
            }
        };
        assert_eq!(refused, Errno::AGAIN);
        let _host = UnixListener::bind(&live.path).unwrap();
        let open = |places| Connection::open_first(places, Deadline::new());
        assert!(matches!(open(vec![full.clone(), live.clone()]), Err(Error::TimedOut)));
        assert!(matches!(open(vec![place("missing"), live]), Ok(Some(_))));
        assert!(matches!(open(vec![place("missing")]), Ok(None)));
    }
}
