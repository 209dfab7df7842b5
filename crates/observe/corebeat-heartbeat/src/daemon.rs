//! The client of the daemon. If a daemon runs, the daemon measures the rates.

use crate::Error;
use crate::goal::Goal;
use crate::group::{GroupId, Mode};
use crate::monitor::Key;
use corebeat_wire::{Connection, Deadline, Refusal, host, is_closed};
use rustix::net::{Shutdown, shutdown};
use std::collections::BTreeSet;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

/// A connection to the daemon.
#[derive(Debug)]
pub(crate) struct Daemon {
    connection: Connection,
    connection_fd: Arc<OwnedFd>,
    /// The connection has failed: no further answers will arrive.
    is_lost: bool,
    /// Attachments to end as soon as the daemon answers again. The daemon may execute a call to
    /// attach after its time limit.
    unwanted: BTreeSet<Key>,
}

impl Daemon {
    /// Connects to the daemon, if one runs.
    pub(crate) fn open(deadline: Deadline) -> Result<Option<Daemon>, Error> {
        Connection::open_until(deadline)?.map(Daemon::new).transpose()
    }

    /// Sets the deadline of the next calls.
    pub(crate) fn set_deadline(&mut self, deadline: Deadline) {
        self.connection.set_deadline(deadline);
    }

    fn new(connection: Connection) -> Result<Daemon, Error> {
        let connection_fd = connection.as_fd().try_clone_to_owned();
        let connection_fd = Arc::new(
            connection_fd
                .map_err(|why| Error::system("cannot duplicate the daemon's connection", why))?,
        );
        // A stopped daemon must not cost the groups of the process their counts.
        let connection = connection.lasting();
        Ok(Daemon { connection, connection_fd, is_lost: false, unwanted: BTreeSet::new() })
    }

    pub(crate) fn join(
        &mut self,
        key: Key,
        mode: Option<Mode>,
        region: Option<BorrowedFd<'_>>,
    ) -> Result<OwnedFd, Error> {
        self.settle()?;
        let (id, role) = key;
        let asked = host::Attach {
            group: id.number,
            owner: Some(id.owner),
            mode: mode.map(Mode::bits),
            role,
        };
        let answer =
            self.connection.call::<_, host::Attached>(host::ATTACH, &asked, region.as_slice());
        if matches!(answer, Err(corebeat_wire::Error::TimedOut)) {
            self.unwanted.insert(key);
        }
        let (_, mut fds) = answer.map_err(|why| self.refused(id, why))?;
        let page = fds.pop().filter(|_| fds.is_empty());
        page.ok_or(Error::BadMemory {
            what: "status page",
            why: "the message does not contain exactly one descriptor",
        })
    }

    /// Detaches. If the daemon does not answer in time, a later call does.
    pub(crate) fn leave(&mut self, key: Key) {
        self.unwanted.insert(key);
        let _ = self.settle();
    }

    /// Executes the calls that the daemon has not answered in time: the page then contains the last
    /// goal, and unwanted attachments have ended.
    pub(crate) fn settle(&mut self) -> Result<(), Error> {
        self.connection.settle().map_err(|why| self.failed(why))?;
        while let Some(key @ (id, role)) = self.unwanted.pop_first() {
            let asked = host::Detach { group: id.number, owner: Some(id.owner), role };
            match self.connection.call::<_, host::Nothing>(host::DETACH, &asked, &[]) {
                // The daemon has not executed the call to attach.
                Ok(_) | Err(corebeat_wire::Error::Refused(Refusal::NoSuchGroup { .. })) => {}
                Err(why) => {
                    self.unwanted.insert(key);
                    return Err(self.refused(id, why));
                }
            }
        }
        Ok(())
    }

    pub(crate) fn set_goal(&mut self, id: GroupId, goal: Goal) -> Result<(), Error> {
        self.settle()?;
        let asked = host::SetGoal { group: id.number, owner: Some(id.owner), goal: goal.into() };
        let answer = self.connection.call::<_, host::Nothing>(host::SET_GOAL, &asked, &[]);
        answer.map(|_| ()).map_err(|why| self.refused(id, why))
    }

    /// Whether the connection has failed.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_lost || is_closed(&self.connection_fd)
    }

    /// The connection, so that its end can be detected without a lock.
    pub(crate) fn connection_fd(&self) -> Arc<OwnedFd> {
        self.connection_fd.clone()
    }

    fn refused(&mut self, id: GroupId, why: corebeat_wire::Error) -> Error {
        match why {
            corebeat_wire::Error::Refused(Refusal::NotAllowed { .. }) => Error::NotAllowed(id),
            corebeat_wire::Error::Refused(Refusal::NoSuchGroup { .. }) => Error::NoSuchGroup(id),
            corebeat_wire::Error::Refused(Refusal::TooMany { what, limit }) => Error::TooMany {
                what: what.into(),
                limit: usize::try_from(limit).unwrap_or(usize::MAX),
            },
            corebeat_wire::Error::Refused(_) => Error::Daemon(why),
            why => self.failed(why),
        }
    }

    /// The error of a call without an answer. Only a timeout does not end the connection.
    fn failed(&mut self, why: corebeat_wire::Error) -> Error {
        self.is_lost |= !matches!(why, corebeat_wire::Error::TimedOut);
        if matches!(why, corebeat_wire::Error::Closed) {
            Error::MonitorGone
        } else {
            Error::Daemon(why)
        }
    }
}

impl Drop for Daemon {
    /// Ends unwanted attachments. Children of fork may have copies of the connection, which would
    /// keep it open.
    fn drop(&mut self) {
        if !self.unwanted.is_empty() {
            let _ = shutdown(&self.connection_fd, Shutdown::Both);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::{Group, Peer};
    use crate::member::{Consumer, Producer};
    use crate::monitor::{Finder, Local, lock};
    use crate::registry::{MemberId, Registry};
    use crate::session::Session;
    use corebeat_wire::{Call, Filled, Frame, Reader, Writer, answer, refuse};
    use std::collections::BTreeMap;
    use std::net::Shutdown;
    use std::os::fd::AsFd;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::{Path, PathBuf};
    use std::sync::{Mutex, OnceLock};
    use std::thread::{self, JoinHandle};

    const SECOND_NS: u64 = 1_000_000_000;

    /// A minimal daemon for one client; the test samples.
    #[derive(Default)]
    struct MinimalDaemon {
        registry: Registry,
        members: BTreeMap<(u32, bool), MemberId>,
        /// Attaching to this group is refused.
        refused: Option<u32>,
        refusals: usize,
        /// Goals of this group are refused, after the deadline of the call has passed. Before that,
        /// another process sets this goal of another group.
        late: Option<(u32, Option<(u32, Goal)>)>,
    }

    impl MinimalDaemon {
        fn answer(&mut self, asked: &Frame) -> Result<Frame, Refusal> {
            let mut call = Call::read(&asked.text).unwrap();
            let peer = Peer { uid: rustix::process::geteuid().as_raw(), pid: 1 };
            let id = |number| GroupId { owner: peer.uid, number };
            let bad = |why: Error| Refusal::BadRequest { why: why.to_string() };
            let mut fds = vec![];
            let text = match call.method.as_str() {
                host::ATTACH => {
                    let asked_for = call.parameters::<host::Attach>()?;
                    if self.refused == Some(asked_for.group) {
                        self.refusals += 1;
                        return Err(Refusal::NotAllowed { why: String::new() });
                    }
                    let region = asked.fds.first().map(AsFd::as_fd);
                    let joined = self.registry.join(peer, id(asked_for.group), None, region, 0);
                    let (member, page) = joined.map_err(bad)?;
                    self.members.insert((asked_for.group, region.is_some()), member);
                    fds.push(page);
                    answer(&host::Attached { period_ns: SECOND_NS }, false)
                }
                host::DETACH => {
                    let host::Detach { group, role, .. } = call.parameters()?;
                    let member = self.members.remove(&(group, role == host::Role::Producer));
                    self.registry.leave(member.ok_or(Refusal::NoSuchGroup { why: String::new() })?);
                    answer(&host::Nothing {}, false)
                }
                host::SET_GOAL => {
                    let host::SetGoal { group, goal, .. } = call.parameters()?;
                    if let Some((_, changed)) = self.late.filter(|(late, _)| *late == group) {
                        if let Some((group, goal)) = changed {
                            self.registry.set_goal(peer, id(group), goal).unwrap();
                        }
                        // The deadline of the client began before.
                        let deadline = Deadline::new();
                        while let Ok(left) = deadline.left() {
                            thread::sleep(left);
                        }
                        return Err(Refusal::NotAllowed { why: String::new() });
                    }
                    self.registry.set_goal(peer, id(group), goal.into()).map_err(bad)?;
                    answer(&host::Nothing {}, false)
                }
                other => panic!("{other}"),
            };
            Ok(Frame { text: text.unwrap(), fds })
        }

        fn serve(minimal: &Mutex<MinimalDaemon>, stream: &UnixStream) {
            let (mut reader, mut writer) = (Reader::new(), Writer::new());
            while reader.fill(stream.as_fd()).is_ok_and(|filled| filled == Filled::Some) {
                while let Some(asked) = reader.take().unwrap() {
                    let frame = lock(minimal).answer(&asked);
                    let frame = frame
                        .unwrap_or_else(|why| Frame { text: refuse(&why).unwrap(), fds: vec![] });
                    writer.push(frame).unwrap();
                    writer.flush(stream.as_fd()).unwrap();
                }
            }
        }
    }

    static SOCKET: OnceLock<PathBuf> = OnceLock::new();

    /// Runs a daemon for one connection. Afterwards, no daemon runs.
    fn start(minimal: Arc<Mutex<MinimalDaemon>>, socket: &'static Path) -> JoinHandle<UnixStream> {
        let listener = UnixListener::bind(socket).unwrap();
        thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            std::fs::remove_file(socket).unwrap();
            let other = stream.try_clone().unwrap();
            thread::spawn(move || MinimalDaemon::serve(&minimal, &other));
            stream
        })
    }

    static STOPPED: OnceLock<PathBuf> = OnceLock::new();

    #[test]
    fn groups_continue_after_the_daemon_was_stopped() {
        let dir = tempfile::tempdir().unwrap();
        STOPPED.set(dir.path().join("socket")).unwrap();
        let minimal = Arc::<Mutex<MinimalDaemon>>::default();
        let daemon = start(minimal.clone(), STOPPED.get().unwrap());
        let finder = Finder {
            daemon: |deadline| {
                let connection = Connection::to_until(STOPPED.get().unwrap(), deadline)?;
                connection.map(Daemon::new).transpose()
            },
            local: |_| panic!("a daemon runs"),
        };
        let session: &'static Session = Box::leak(Box::new(Session::new(finder)));
        let producer = Producer::attach(session, &Group::new(7)).unwrap();
        let (left, _) =
            session.attach(&Group::new(8), host::Role::Consumer, Deadline::new()).unwrap();
        let _daemon = daemon.join().unwrap();
        producer.beat(6);
        lock(&minimal).registry.sample(2 * SECOND_NS);
        let is_late = |result: Result<(), Error>| {
            assert!(matches!(result, Err(Error::Daemon(corebeat_wire::Error::TimedOut))));
        };

        // The daemon answers no call while this thread has its lock.
        let stopped = lock(&minimal);
        is_late(producer.set_rate_min(20.0));
        session.leave(&left, 0, Deadline::passed());
        is_late(Consumer::attach(session, &Group::new(9)).map(drop));
        producer.beat(4);
        drop(stopped);

        // The goal of the call that timed out persists, and so do the beats.
        producer.set_rate_max(30.0).unwrap();
        lock(&minimal).registry.sample(4 * SECOND_NS);
        let status = producer.status().unwrap();
        assert_eq!((status.beats, status.samples, status.global_rate), (10, 2, 2.5));
        assert_eq!((status.goal.rate_min, status.goal.rate_max), (Some(20.0), Some(30.0)));
        let groups = || -> Vec<u32> {
            lock(&minimal).registry.groups().map(|group| group.id.number).collect()
        };
        assert_eq!(groups(), [7]);

        // The daemon ends an attachment that it makes after the call has timed out.
        let stopped = lock(&minimal);
        is_late(Consumer::attach(session, &Group::new(9)).map(drop));
        drop(stopped);
        let attached = Consumer::attach(session, &Group::new(9)).unwrap();
        assert_eq!(groups(), [7, 9]);
        drop(attached);
        assert_eq!((groups(), producer.status().unwrap().beats), (vec![7], 10));
        drop(producer);
        assert!(session.is_idle() && lock(&minimal).registry.is_empty());
    }

    #[test]
    fn members_follow_the_daemon_to_its_successor_or_measure_locally() {
        let dir = tempfile::tempdir().unwrap();
        SOCKET.set(dir.path().join("socket")).unwrap();
        let minimal = Arc::<Mutex<MinimalDaemon>>::default();
        let daemon = start(minimal.clone(), SOCKET.get().unwrap());
        let finder = Finder {
            daemon: |deadline| {
                let connection = Connection::to_until(SOCKET.get().unwrap(), deadline)?;
                connection.map(Daemon::new).transpose()
            },
            local: |_| Local::new(None),
        };
        let session: &'static Session = Box::leak(Box::new(Session::new(finder)));
        let group = Group::new(7);
        let producer = Producer::attach(session, &group).unwrap();
        let consumer = Consumer::attach(session, &group).unwrap();
        let daemon = daemon.join().unwrap();
        producer.set_rate_max(30.0).unwrap();
        assert_eq!(consumer.goal().unwrap().rate_max, Some(30.0));
        assert!(matches!(producer.set_rate_max(-1.0), Err(Error::BadRate(_))));
        producer.beat(6);
        lock(&minimal).registry.sample(2 * SECOND_NS);
        assert_eq!((consumer.global_rate().unwrap(), producer.window_rate().unwrap()), (3.0, 3.0));
        drop(consumer);
        assert_eq!(lock(&minimal).members.len(), 1, "one member has detached");

        daemon.shutdown(Shutdown::Both).unwrap();
        producer.beat(1);
        assert!(matches!(producer.status(), Err(Error::MonitorGone)));
        assert!(matches!(producer.set_window(3), Err(Error::MonitorGone)));

        // The next call finds the successor and sends the goal to it.
        let minimal = Arc::<Mutex<MinimalDaemon>>::default();
        let daemon = start(minimal.clone(), SOCKET.get().unwrap());
        let status = producer.status().unwrap();
        let daemon_after = daemon.join().unwrap();
        assert_eq!((status.beats, status.goal.rate_max), (0, Some(30.0)));
        producer.beat(8);
        lock(&minimal).registry.sample(2 * SECOND_NS);
        assert_eq!(producer.global_rate().unwrap(), 4.0);
        producer.set_window(3).unwrap();
        let remote_group = lock(&minimal).registry.groups().next().unwrap();
        assert_eq!(
            (remote_group.status.goal.window, remote_group.status.goal.rate_max),
            (3, Some(30.0))
        );

        // Without a daemon, a new member is measured in this process, and so are the existing ones.
        daemon_after.shutdown(Shutdown::Both).unwrap();
        assert!(matches!(producer.set_window(3), Err(Error::MonitorGone)));
        let other = Consumer::attach(session, &Group::new(8)).unwrap();
        assert_eq!(
            (other.goal().unwrap(), producer.goal().unwrap().rate_max),
            (Goal::default(), Some(30.0))
        );
        producer.set_window(4).unwrap();
        producer.beat(8);
        session.sample(2 * SECOND_NS);
        assert_eq!((producer.global_rate().unwrap(), other.global_rate().unwrap()), (4.0, 0.0));

        // When another daemon runs, a call of any member moves all of them there.
        let minimal = Arc::<Mutex<MinimalDaemon>>::default();
        let daemon = start(minimal.clone(), SOCKET.get().unwrap());
        session.hasten_search();
        assert_eq!(other.status().unwrap().beats, 0);
        let daemon = daemon.join().unwrap();
        let there: Vec<(u32, u32)> =
            lock(&minimal).registry.groups().map(|g| (g.id.number, g.status.goal.window)).collect();
        assert_eq!(there, [(7, 4), (8, Goal::default().window)]);
        producer.beat(8);
        lock(&minimal).registry.sample(2 * SECOND_NS);
        assert_eq!(producer.global_rate().unwrap(), 4.0);

        // A member that the daemon refuses fails only its own calls, and is not lost.
        daemon.shutdown(Shutdown::Both).unwrap();
        let minimal =
            Arc::new(Mutex::new(MinimalDaemon { refused: Some(8), ..MinimalDaemon::default() }));
        let daemon = start(minimal.clone(), SOCKET.get().unwrap());
        (0..3).for_each(|_| assert_eq!(producer.status().unwrap().goal.window, 4));
        let daemon = daemon.join().unwrap();
        assert_eq!(lock(&minimal).refusals, 1);
        assert!(matches!(other.status(), Err(Error::NotAllowed(_))));
        lock(&minimal).refused = None;
        other.status().unwrap();
        let (refusals, groups) = {
            let minimal = lock(&minimal);
            (minimal.refusals, minimal.registry.groups().count())
        };
        assert_eq!((refusals, groups), (2, 2));
        drop((producer, other));
        assert!(session.is_idle() && lock(&minimal).registry.is_empty());
        drop(daemon);

        // A detached member can attach again.
        let minimal = Arc::<Mutex<MinimalDaemon>>::default();
        let daemon = start(minimal.clone(), SOCKET.get().unwrap());
        let producer = Producer::attach(session, &group).unwrap();
        let daemon = daemon.join().unwrap();
        assert_eq!(lock(&minimal).registry.groups().count(), 1);
        drop(producer);
        assert!(session.is_idle() && lock(&minimal).registry.is_empty());
        drop(daemon);
    }

    static WITHDRAWN: OnceLock<PathBuf> = OnceLock::new();

    #[test]
    fn goals_that_have_moved_are_withdrawn_unless_others_have_changed_them() {
        let dir = tempfile::tempdir().unwrap();
        WITHDRAWN.set(dir.path().join("socket")).unwrap();
        let finder = Finder {
            daemon: |deadline| {
                let connection = Connection::to_until(WITHDRAWN.get().unwrap(), deadline)?;
                connection.map(Daemon::new).transpose()
            },
            local: |_| Local::new(None),
        };
        let session: &'static Session = Box::leak(Box::new(Session::new(finder)));
        let seats = [7, 8].map(|number| {
            let group = Group::new(number);
            session.attach(&group, host::Role::Producer, Deadline::new()).unwrap()
        });
        for (seat, _) in &seats {
            let change = |goal: &mut Goal| goal.rate_min = Some(20.0);
            session.change_goal(seat, change, Deadline::new()).unwrap();
        }
        let changed = Goal { rate_min: Some(5.0), ..Goal::default() };
        for (by_other, expected) in [(None, Goal::default()), (Some((7, changed)), changed)] {
            let late = Some((8, by_other));
            let mut refusing = MinimalDaemon { late, ..MinimalDaemon::default() };
            // Another process has the groups as well, so that their goals remain.
            let owner = rustix::process::geteuid().as_raw();
            let other = Peer { uid: owner, pid: 2 };
            let _pages = [7, 8].map(|number| {
                refusing.registry.join(other, GroupId { owner, number }, None, None, 0).unwrap()
            });
            let minimal = Arc::new(Mutex::new(refusing));
            let daemon = start(minimal.clone(), WITHDRAWN.get().unwrap());
            session.hasten_search();
            let status = session.status(&seats[0].0, Deadline::new()).unwrap();
            assert_eq!(status.goal.rate_min, Some(20.0));
            drop(daemon.join().unwrap());
            let goals: Vec<Goal> =
                lock(&minimal).registry.groups().map(|group| group.status.goal).collect();
            assert_eq!(goals, [expected, Goal::default()]);
        }
        seats.iter().for_each(|(seat, slot)| session.leave(seat, *slot, Deadline::new()));
        assert!(session.is_idle());
    }

    static LATE: OnceLock<PathBuf> = OnceLock::new();

    #[test]
    fn groups_of_a_process_join_a_daemon_that_starts_later() {
        let dir = tempfile::tempdir().unwrap();
        LATE.set(dir.path().join("socket")).unwrap();
        let finder = Finder {
            daemon: |deadline| {
                let connection = Connection::to_until(LATE.get().unwrap(), deadline)?;
                connection.map(Daemon::new).transpose()
            },
            local: |_| Local::new(None),
        };
        let session: &'static Session = Box::leak(Box::new(Session::new(finder)));
        let producer = Producer::attach(session, &Group::new(7)).unwrap();
        let consumer = Consumer::attach(session, &Group::new(8)).unwrap();
        producer.set_rate_min(20.0).unwrap();
        producer.beat(8);
        session.sample(2 * SECOND_NS);
        session.hasten_search();
        assert_eq!(consumer.status().unwrap().samples, 1, "no daemon runs");

        // This process continues to measure if a daemon refuses a member, and leaves no goal in a
        // group of another process there.
        let mut refusing = MinimalDaemon { refused: Some(8), ..MinimalDaemon::default() };
        let owner = rustix::process::geteuid().as_raw();
        let (other, id) = (Peer { uid: owner, pid: 2 }, GroupId { owner, number: 7 });
        let (member, _page) = refusing.registry.join(other, id, None, None, 0).unwrap();
        let minimal = Arc::new(Mutex::new(refusing));
        let daemon = start(minimal.clone(), LATE.get().unwrap());
        session.hasten_search();
        assert_eq!(producer.global_rate().unwrap(), 4.0);
        assert!(!LATE.get().unwrap().exists(), "the call has connected");
        drop(daemon.join().unwrap());
        let mut refusing = lock(&minimal);
        let goals: Vec<Goal> = refusing.registry.groups().map(|g| g.status.goal).collect();
        assert_eq!((refusing.refusals, goals), (1, vec![Goal::default()]));
        refusing.registry.leave(member);
        assert!(refusing.registry.is_empty(), "the process has left");
        drop(refusing);
        producer.beat(8);
        session.sample(4 * SECOND_NS);
        assert_eq!(producer.global_rate().unwrap(), 4.0);

        // Each of these calls moves all members and goals.
        let calls: [&dyn Fn(); 3] = [
            &|| assert_eq!(producer.status().unwrap().beats, 0),
            &|| producer.set_rate_max(30.0).unwrap(),
            &|| drop(Consumer::attach(session, &Group::new(9)).unwrap()),
        ];
        for call in calls {
            let minimal = Arc::<Mutex<MinimalDaemon>>::default();
            let daemon = start(minimal.clone(), LATE.get().unwrap());
            session.hasten_search();
            call();
            assert!(!LATE.get().unwrap().exists(), "the call has connected");
            let daemon = daemon.join().unwrap();
            let there: Vec<_> = lock(&minimal)
                .registry
                .groups()
                .map(|group| (group.id.number, group.status.goal.rate_min))
                .collect();
            assert_eq!(there, [(7, Some(20.0)), (8, None)]);
            producer.beat(8);
            lock(&minimal).registry.sample(2 * SECOND_NS);
            assert_eq!(producer.global_rate().unwrap(), 4.0);
            // The process measures again when the daemon has ended and a thread attaches.
            daemon.shutdown(Shutdown::Both).unwrap();
            drop(Consumer::attach(session, &Group::new(9)).unwrap());
            assert_eq!(producer.status().unwrap().beats, 0);
        }
        drop((producer, consumer));
        assert!(session.is_idle());
    }
}
