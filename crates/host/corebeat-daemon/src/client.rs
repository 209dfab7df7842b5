//! A connection: bounded buffers of received and sent messages.

use crate::closer;
use crate::host::{Handled, Host};
use crate::limit::{
    CALLS_OF_CLIENT, CALLS_OF_USER, PATIENCE_NS, PAUSE_NS, Pace, REPORTS_WAITING_MAX,
};
use crate::peer::Peer;
use crate::session::Session;
use corebeat_wire::host::ClaimChange;
use corebeat_wire::{Error, Filled, Frame, Reader, Refusal, Writer, answer, refuse};
use std::collections::BTreeMap;
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
    /// The last report about each claim that waits until the peer has read the preceding ones.
    reports: BTreeMap<u64, ClaimChange>,
    /// Whether an answer is unread, and not only reports: these wait for as long as a program runs
    /// without a poll.
    owes_answer: bool,
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
            reports: BTreeMap::new(),
            owes_answer: false,
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
        self.flush()?;
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
            self.owes_answer || (self.reader.is_within_message() && self.is_readable(now_ns));
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

    /// Reports a change of a claim. While the peer does not read, the change replaces an earlier
    /// one of the same claim.
    ///
    /// # Errors
    /// The connection has ended, or reports of too many claims wait already.
    pub(crate) fn report(&mut self, change: ClaimChange) -> Result<(), Gone> {
        self.reports.insert(change.claim, change);
        if self.reports.len() > REPORTS_WAITING_MAX {
            return Err(Error::Full.into());
        }
        self.flush()
    }

    /// Sends waiting text, and then waiting reports one by one.
    fn flush(&mut self) -> Result<(), Gone> {
        loop {
            self.writer.flush(self.socket.as_fd())?;
            if self.has_output() {
                return Ok(());
            }
            self.owes_answer = false;
            let Some((_, change)) = self.reports.pop_first() else { return Ok(()) };
            self.writer.push(Frame { text: answer(&change, true)?, fds: vec![] })?;
        }
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
                self.owes_answer = true;
                self.flush()?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use corebeat_machine::Topology;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn change(claim: u64, cpu: u32) -> ClaimChange {
        ClaimChange { claim, cpus: vec![cpu], deadline_ms: None }
    }

    #[test]
    fn last_report_about_each_claim_waits_until_the_peer_reads_it() {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (near, far) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let peer = Peer::of(near.as_fd()).unwrap();
        let identity = corebeat_heartbeat::Peer { uid: peer.uid, pid: peer.pid.cast_unsigned() };
        let session = Session::new(identity);
        let mut host = Host::new(Topology::flat(1));
        let mut client = Client::new(near, peer, session);
        let mut serve = |client: &mut Client, now_ns| {
            let mut served = Served::default();
            client.serve(&mut host, &mut Pace::default(), true, now_ns, &mut served).unwrap();
        };
        serve(&mut client, 1);
        while client.reports.is_empty() {
            client.report(change(1, 0)).unwrap();
        }
        client.report(change(2, 5)).unwrap();
        client.report(change(1, 7)).unwrap();
        assert_eq!(client.reports.len(), 2);
        for patience in [2, 3] {
            serve(&mut client, patience * PATIENCE_NS);
        }

        let (mut reader, mut last) = (Reader::new(), BTreeMap::new());
        while reader.fill(far.as_fd()).unwrap() == Filled::Some {
            while let Some(frame) = reader.take().unwrap() {
                let report: serde_json::Value = serde_json::from_slice(&frame.text).unwrap();
                let change: ClaimChange =
                    serde_json::from_value(report["parameters"].clone()).unwrap();
                last.insert(change.claim, change.cpus);
            }
            serve(&mut client, 4 * PATIENCE_NS);
        }
        assert_eq!(last, [(1, vec![7]), (2, vec![5])].into());

        while client.reports.is_empty() {
            client.report(change(1, 0)).unwrap();
        }
        let full = (2..).find_map(|claim| client.report(change(claim, 0)).err()).unwrap();
        assert!(matches!(full, Gone::Dropped(_)));
        assert_eq!(client.reports.len(), REPORTS_WAITING_MAX + 1);
    }
}
