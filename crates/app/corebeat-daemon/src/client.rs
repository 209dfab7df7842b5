//! A connection: messages in, messages out, and never more of either than there is room for.

use crate::closer;
use crate::host::{Dealt, Host};
use crate::limit::{CALLS_OF_CLIENT, CALLS_OF_USER, PATIENCE_NS, PAUSE_NS, Pace};
use crate::peer::Peer;
use crate::session::Session;
use corebeat_wire::{Error, Filled, Frame, Reader, Refusal, Writer, refuse};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Why a connection is given up.
#[derive(Debug)]
pub(crate) enum Gone {
    /// The other side has closed it, or has ended.
    Left,
    /// It is not fit to be listened to any longer.
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

/// What a connection has had done for it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Served {
    pub(crate) answered: u64,
    pub(crate) refused: u64,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Client {
    socket: OwnedFd,
    peer: Peer,
    pub(crate) session: Session,
    reader: Reader,
    writer: Writer,
    pace: Pace,
    /// It called too often, and is not listened to until then.
    paused_until_ns: u64,
    /// Since when it is within a message, or has answers to read.
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

    /// Whether there is anything to hear from it now: not while it calls too often, or does not read its answers.
    pub(crate) fn is_heard(&self, now_ns: u64) -> bool {
        self.writer.is_empty() && now_ns >= self.paused_until_ns
    }

    /// Whether something waits to be sent.
    pub(crate) fn has_more_to_say(&self) -> bool {
        !self.writer.is_empty()
    }

    /// When to look at it again although nothing comes: its pause ends, or its time.
    pub(crate) fn wake_at_ns(&self, now_ns: u64) -> Option<u64> {
        let pause_ns = Some(self.paused_until_ns).filter(|at| *at > now_ns);
        let end_ns = self.stalled_since_ns.map(|since| since + PATIENCE_NS);
        pause_ns.into_iter().chain(end_ns).min()
    }

    /// Who it is.
    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Looks at it once: sends what waits, reads once if it `may_read`, and answers what it asks.
    ///
    /// # Errors
    /// It is gone then.
    pub(crate) fn look(
        &mut self,
        host: &mut Host,
        of_user: &mut Pace,
        may_read: bool,
        now_ns: u64,
        served: &mut Served,
    ) -> Result<(), Gone> {
        self.writer.flush(self.socket.as_fd())?;
        // Some may have been left for after a pause.
        self.answer(host, of_user, now_ns, served)?;
        if may_read && self.is_heard(now_ns) {
            match self.reader.fill(self.socket.as_fd())? {
                Filled::Some => self.answer(host, of_user, now_ns, served)?,
                Filled::Nothing => {}
                Filled::End => return Err(Gone::Left),
            }
        }
        // Who goes on fills its time anew, but only by whole messages.
        let is_stalled = self.has_more_to_say() || (self.reader.is_within_message() && self.is_heard(now_ns));
        match self.stalled_since_ns.filter(|_| is_stalled) {
            Some(since_ns) if now_ns >= since_ns + PATIENCE_NS => {
                Err(Gone::Dropped("it stays within a message, or does not read its answers".into()))
            }
            since_ns => {
                self.stalled_since_ns = is_stalled.then_some(since_ns.unwrap_or(now_ns));
                Ok(())
            }
        }
    }

    /// Sends something that was not asked for just now.
    ///
    /// # Errors
    /// Where too much waits already: it is gone then.
    pub(crate) fn tell(&mut self, text: Vec<u8>, now_ns: u64) -> Result<(), Gone> {
        self.writer.push(Frame { text, fds: vec![] })?;
        self.writer.flush(self.socket.as_fd())?;
        if self.has_more_to_say() {
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
        while self.is_heard(now_ns) {
            let Some(frame) = self.reader.take()? else { break };
            // A whole message has come.
            self.stalled_since_ns = None;
            let too_often = [
                (self.pace.take(CALLS_OF_CLIENT, now_ns), "calls a second of a connection", CALLS_OF_CLIENT),
                (of_user.take(CALLS_OF_USER, now_ns), "calls a second of a user", CALLS_OF_USER),
            ];
            let refused = too_often.iter().find(|(may, _, _)| !may).map(|(_, what, rate)| {
                self.paused_until_ns = now_ns + PAUSE_NS;
                Refusal::TooMany { what: (*what).into(), limit: rate.per_s() }
            });
            let dealt = match refused {
                Some(refusal) => refuse(&refusal).map(|text| {
                    let answer = Some(Frame { text, fds: vec![] });
                    Dealt { answer, is_refused: true, cost: 1 }
                }),
                None => host.deal(&mut self.session, &frame, now_ns),
            };
            closer::close(frame.fds);
            let Dealt { answer, is_refused, cost } = dealt?;
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
