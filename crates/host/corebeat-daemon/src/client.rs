//! A connection: bounded buffers of received and sent messages.

use crate::closer;
use crate::host::{Handled, Host};
use crate::limit::{CALLS_OF_CLIENT, CALLS_OF_USER, PATIENCE_NS, PAUSE_NS, Pace};
use crate::peer::Peer;
use crate::session::Session;
use corebeat_wire::{Error, Filled, Frame, Reader, Refusal, Writer, refuse};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Reason for the end of a connection.
#[derive(Debug)]
pub(crate) enum Gone {
    /// The peer has closed the connection, or has ended.
    Left,
    /// The daemon closes the connection, for this reason.
    Dropped(String),
}

impl From<Error> for Gone {
    fn from(error: Error) -> Self {
        match error {
            Error::Closed => Gone::Left,
            error => Gone::Dropped(error.to_string()),
        }
    }
}

/// Numbers of handled calls.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Served {
    pub(crate) answered: u64,
    pub(crate) refused: u64,
}

/// A connection of a client.
#[derive(Debug)]
pub(crate) struct Client {
    socket: OwnedFd,
    peer: Peer,
    pub(crate) session: Session,
    reader: Reader,
    writer: Writer,
    pace: Pace,
    /// End of a pause after too many calls, in nanoseconds.
    paused_until_ns: u64,
    /// Time since which a message is incomplete, or answers are unread.
    stalled_since_ns: Option<u64>,
}

impl Client {
    pub(crate) fn new(socket: OwnedFd, peer: Peer, session: Session) -> Client {
        Client {
            socket,
            peer,
            session,
            reader: Reader::new(),
            writer: Writer::new(),
            pace: Pace::default(),
            paused_until_ns: 0,
            stalled_since_ns: None,
        }
    }

    /// Whether the daemon reads from the connection: not in a pause, and not while answers are
    /// unread.
    pub(crate) fn is_readable(&self, now_ns: u64) -> bool {
        self.writer.is_empty() && now_ns >= self.paused_until_ns
    }

    /// Whether text waits to be sent.
    pub(crate) fn has_output(&self) -> bool {
        !self.writer.is_empty()
    }

    /// Time at which the connection must be served without an event: the end of its pause or time
    /// limit.
    pub(crate) fn wake_at_ns(&self, now_ns: u64) -> Option<u64> {
        let pause_ns = Some(self.paused_until_ns).filter(|at| *at > now_ns);
        let end_ns = self.stalled_since_ns.map(|since| since + PATIENCE_NS);
        pause_ns.into_iter().chain(end_ns).min()
    }

    /// Identity of the peer.
    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Serves the connection once: sends waiting text, reads once if `may_read` is set, and answers
    /// calls.
    ///
    /// # Errors
    /// The connection has ended.
    pub(crate) fn serve(
        &mut self,
        host: &mut Host,
        of_user: &mut Pace,
        may_read: bool,
        now_ns: u64,
        served: &mut Served,
    ) -> Result<(), Gone> {
        self.writer.flush(self.socket.as_fd())?;
        // Calls may have been left over from a pause.
        self.answer(host, of_user, now_ns, served)?;
        if may_read && self.is_readable(now_ns) {
            match self.reader.fill(self.socket.as_fd())? {
                Filled::Some => self.answer(host, of_user, now_ns, served)?,
                Filled::Nothing => {}
                Filled::End => return Err(Gone::Left),
            }
        }
        // Only a complete message restarts the time limit.
        let is_stalled =
            self.has_output() || (self.reader.is_within_message() && self.is_readable(now_ns));
        match self.stalled_since_ns.filter(|_| is_stalled) {
            Some(since_ns) if now_ns >= since_ns + PATIENCE_NS => {
                Err(Gone::Dropped("a message stays incomplete, or answers stay unread".into()))
            }
            since_ns => {
                self.stalled_since_ns = is_stalled.then_some(since_ns.unwrap_or(now_ns));
                Ok(())
            }
        }
    }

    /// Sends a message that does not answer the present call.
    ///
    /// # Errors
    /// Too much text waits already: the connection has ended.
    pub(crate) fn send(&mut self, text: Vec<u8>, now_ns: u64) -> Result<(), Gone> {
        self.writer.push(Frame { text, fds: vec![] })?;
        self.writer.flush(self.socket.as_fd())?;
        if self.has_output() {
            self.stalled_since_ns.get_or_insert(now_ns);
        }
        Ok(())
    }

    fn answer(
        &mut self,
        host: &mut Host,
        of_user: &mut Pace,
        now_ns: u64,
        served: &mut Served,
    ) -> Result<(), Gone> {
        while self.is_readable(now_ns) {
            let Some(frame) = self.reader.take()? else { break };
            // A message is complete.
            self.stalled_since_ns = None;
            let too_often = [
                (
                    self.pace.take(CALLS_OF_CLIENT, now_ns),
                    "calls a second of a connection",
                    CALLS_OF_CLIENT,
                ),
                (of_user.take(CALLS_OF_USER, now_ns), "calls a second of a user", CALLS_OF_USER),
            ];
            let refused = too_often.iter().find(|(may, _, _)| !may).map(|(_, what, rate)| {
                self.paused_until_ns = now_ns + PAUSE_NS;
                Refusal::TooMany { what: (*what).into(), limit: rate.per_s() }
            });
            let handled = match refused {
                Some(refusal) => refuse(&refusal).map(|text| {
                    let answer = Some(Frame { text, fds: vec![] });
                    Handled { answer, is_refused: true, cost: 1 }
                }),
                None => host.handle(&mut self.session, &frame, now_ns),
            };
            closer::close(frame.fds);
            let Handled { answer, is_refused, cost } = handled?;
            self.pace.charge(CALLS_OF_CLIENT, cost - 1, now_ns);
            of_user.charge(CALLS_OF_USER, cost - 1, now_ns);
            served.refused += u64::from(is_refused);
            served.answered += u64::from(!is_refused);
            if let Some(answer) = answer {
                self.writer.push(answer)?;
                self.writer.flush(self.socket.as_fd())?;
            }
        }
        Ok(())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        closer::close(self.reader.take_fds());
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
