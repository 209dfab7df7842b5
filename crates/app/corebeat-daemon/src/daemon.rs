//! The daemon: one thread that waits for whatever comes first, and never for anybody in particular.

use crate::client::{Client, Gone, Served};
use crate::host::{Circumstances, Host};
use crate::limit::{ACCEPTED_AT_ONCE, CLIENTS_MAX, CLIENTS_PER_USER_MAX, DOOR_REST_NS, FAILURES, Pace};
use crate::log::{Level, Log};
use crate::metric::{self, Counts, Page, Place};
use crate::notify::Notify;
use crate::peer::Peer;
use crate::session::Session;
use crate::socket::{Door, Scope, make_directory};
use crate::steer::Steer;
use crate::watchdog::{Now, Verdict, Watchdog};
use crate::{Error, Failure};
use corebeat_linux::{Restored, restore_all};
use corebeat_loop::Deed;
use corebeat_wire::{Refusal, answer, refuse};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use rustix::time::{ClockId, clock_gettime};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

/// A connection's number, which is never used twice.
type ClientId = u64;

/// How to run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The socket's path.
    pub socket: PathBuf,
    /// Who may connect.
    pub scope: Scope,
    /// Where the page of metrics is, if there is to be one.
    pub metrics: Option<Place>,
    /// From one sample of the heartbeats to the next, in nanoseconds.
    pub sample_ns: u64,
    /// From one observation of the programs to the next, in nanoseconds.
    pub observe_ns: u64,
    /// Whether programs are steered by their goals. Without that the daemon measures, and shares out claims.
    pub steers: bool,
    /// Where changes are noted before they are made.
    pub state_dir: PathBuf,
    /// The least important lines that are logged.
    pub log: Level,
}

impl Options {
    /// Samples every 100 ms and observes every 500 ms, without metrics; logs all but what it does to programs.
    pub fn new(socket: PathBuf, scope: Scope, state_dir: PathBuf) -> Options {
        let (sample_ns, observe_ns) = (100_000_000, 500_000_000);
        let log = Level::Info;
        Options { socket, scope, metrics: None, sample_ns, observe_ns, steers: true, state_dir, log }
    }
}

/// A daemon that has its socket.
pub struct Daemon {
    options: Options,
    log: Log,
    notify: Notify,
    door: Door,
    door_rests_until_ns: u64,
    page: Option<Page>,
    host: Host,
    clients: BTreeMap<ClientId, Client>,
    next_client: ClientId,
    /// How fast the connections of each user call. Users without connections are forgotten once they have rested: who
    /// connects anew does not begin anew. So there are no more than make calls in the time that such a rest takes.
    users: BTreeMap<u32, Pace>,
    steer: Steer,
    watchdog: Watchdog,
    /// How often it is told that an action was not possible.
    failures: Pace,
    counts: Counts,
    /// When the next of each is due; nothing is while nobody beats.
    sample_at_ns: Option<u64>,
    turn_at_ns: Option<u64>,
    alive_at_ns: Option<u64>,
    /// The end of the rest after the last turn: as long as the turn took, so that turns take half of a CPU at most.
    turn_rests_until_ns: u64,
}

/// Whom an event of [`poll`] is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Stop,
    Door,
    Page,
    Socket(ClientId),
    Process(ClientId),
}

impl Daemon {
    /// Undoes what a daemon that was killed has left, and begins to listen.
    ///
    /// # Errors
    /// [`Failure`] where the socket or the page of metrics cannot be had, or the host cannot be watched.
    pub fn open(options: Options) -> Result<Daemon, Failure> {
        let log = Log::new(options.log);
        // The socket first: who has it is the only daemon here.
        let door = make_directory(&options.socket, options.scope)
            .and_then(|()| Door::open(&options.socket, options.scope))
            .map_err(|e| Error::listen(&options.socket, e))?;
        let page = options.metrics.as_ref().map(Page::open).transpose()?;
        tell_restored(&log, &restore_all(&options.state_dir)?);
        let steer = Steer::new(&options.state_dir)?;
        let mut daemon = Daemon {
            log,
            notify: Notify::of_environment(),
            door,
            door_rests_until_ns: 0,
            page,
            host: Host::new(steer.topology().clone()),
            clients: BTreeMap::new(),
            next_client: 0,
            users: BTreeMap::new(),
            steer,
            watchdog: Watchdog::default(),
            failures: Pace::default(),
            counts: Counts::default(),
            sample_at_ns: None,
            turn_at_ns: None,
            alive_at_ns: None,
            turn_rests_until_ns: 0,
            options,
        };
        daemon.host.notes = daemon.steer.notes();
        daemon.take_stock();
        Ok(daemon)
    }

    /// Serves until something can be read from `stop`. All that was done is undone then.
    ///
    /// # Errors
    /// [`Failure`] where the host cannot be watched any longer, or the system does not let the daemon wait. All that was
    /// done is undone then as well.
    pub fn run(mut self, stop: BorrowedFd<'_>) -> Result<(), Failure> {
        let (path, version) = (self.options.socket.display(), env!("CARGO_PKG_VERSION"));
        self.log.say(Level::Info, format_args!("corebeat daemon {version} listens on {path}"));
        self.notify.say("READY=1");
        self.alive_at_ns = self.notify.alive_each_ns.map(|_| now().awake_ns);
        let served = self.serve(stop);
        self.notify.say("STOPPING=1");
        tell_restored(&self.log, &self.steer.restore());
        self.log.say(Level::Info, "corebeat daemon ends");
        served
    }

    fn serve(&mut self, stop: BorrowedFd<'_>) -> Result<(), Failure> {
        loop {
            let events = self.wait(stop)?;
            let now_ns = now().awake_ns;
            for (source, flags) in events {
                match source {
                    Source::Stop => return Ok(()),
                    Source::Door => self.take_in(now_ns),
                    Source::Page => {}
                    Source::Socket(id) => self.look_at(id, flags, now_ns),
                    Source::Process(id) => self.part_from(id, Gone::Left, now_ns),
                }
            }
            self.look_at_page(now_ns);
            self.look_at_those_whose_time_has_come(now_ns);
            self.host.arbiter.tick(now_ns);
            self.tell_claims(now_ns);
            self.measure(now_ns);
            self.turn()?;
            self.say_alive(now_ns);
            self.take_stock();
        }
    }

    /// Waits for something to happen, or to be due.
    fn wait(&self, stop: BorrowedFd<'_>) -> Result<Vec<(Source, PollFlags)>, Failure> {
        let now_ns = now().awake_ns;
        let mut sources = vec![Source::Stop];
        let mut fds = vec![PollFd::from_borrowed_fd(stop, PollFlags::IN)];
        let mut add = |source, fd, flags| {
            sources.push(source);
            fds.push(PollFd::from_borrowed_fd(fd, flags));
        };
        if now_ns >= self.door_rests_until_ns {
            add(Source::Door, self.door.as_fd(), PollFlags::IN);
        }
        for (fd, is_written) in self.page.iter().flat_map(|page| page.sockets(now_ns)) {
            add(Source::Page, fd, if is_written { PollFlags::OUT } else { PollFlags::IN });
        }
        for (&id, client) in &self.clients {
            let heard = if client.is_heard(now_ns) { PollFlags::IN } else { PollFlags::empty() };
            let said = if client.has_more_to_say() { PollFlags::OUT } else { PollFlags::empty() };
            add(Source::Socket(id), client.as_fd(), heard | said);
            add(Source::Process(id), client.peer().as_fd(), PollFlags::IN);
        }
        let turn_at_ns = self.turn_at_ns.map(|at| at.max(self.turn_rests_until_ns));
        let due = [self.sample_at_ns, turn_at_ns, self.alive_at_ns, self.host.arbiter.due_ns()];
        let clients = self.clients.values().filter_map(|c| c.wake_at_ns(now_ns));
        let others = self.page.as_ref().and_then(|page| page.wake_at_ns(now_ns)).into_iter();
        let rest = Some(self.door_rests_until_ns).filter(|at| *at > now_ns);
        let first_ns = due.into_iter().flatten().chain(clients).chain(others).chain(rest).min();
        let patience = first_ns.map(|at| timespec(at.saturating_sub(now_ns)));
        match poll(&mut fds, patience.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(Error::System { what: "wait for clients", source: e.into() }.into()),
        }
        let events = sources.into_iter().zip(&fds).map(|(source, fd)| (source, fd.revents()));
        Ok(events.filter(|(_, flags)| !flags.is_empty()).collect())
    }

    /// Takes in those who wait at the door.
    fn take_in(&mut self, now_ns: u64) {
        for _ in 0..ACCEPTED_AT_ONCE {
            match self.door.accept() {
                Ok(Some(socket)) => self.welcome(socket, now_ns),
                Ok(None) => return,
                Err(e) => {
                    self.door_rests_until_ns = now_ns + DOOR_REST_NS;
                    let what = format_args!("cannot take in connections for now: {e}");
                    return self.log.say_of_client(Level::Warning, what, now_ns);
                }
            }
        }
    }

    fn welcome(&mut self, socket: OwnedFd, now_ns: u64) {
        let peer = match Peer::of(socket.as_fd()) {
            Ok(peer) => peer,
            Err(e) => {
                self.counts.turned_away += 1;
                let what =
                    format_args!("a connection is not taken in, because it cannot be told whose it is: {e}");
                return self.log.say_of_client(Level::Notice, what, now_ns);
            }
        };
        // Its number may have been another's before: what was theirs is not to become this one's.
        let is_before = |c: &Client| c.peer().pid == peer.pid && c.peer().has_ended();
        let before: Vec<_> = self.clients.iter().filter(|(_, c)| is_before(c)).map(|(id, _)| *id).collect();
        before.into_iter().for_each(|id| self.part_from(id, Gone::Left, now_ns));
        let own = rustix::process::geteuid().as_raw();
        let of_user = self.clients.values().filter(|c| c.peer().uid == peer.uid).count();
        let refusal = match () {
            () if self.options.scope == Scope::User && peer.uid != own && peer.uid != 0 => {
                Some(Refusal::NotAllowed { why: "this daemon serves the user who runs it alone".into() })
            }
            () if self.clients.len() >= CLIENTS_MAX => {
                Some(Refusal::TooMany { what: "connections".into(), limit: CLIENTS_MAX as u64 })
            }
            () if of_user >= CLIENTS_PER_USER_MAX => Some(Refusal::TooMany {
                what: "connections of a user".into(),
                limit: CLIENTS_PER_USER_MAX as u64,
            }),
            () => None,
        };
        if let Some(refusal) = refusal {
            self.counts.turned_away += 1;
            let who = format_args!("process {} of user {} is turned away: {refusal}", peer.pid, peer.uid);
            self.log.say_of_client(Level::Notice, who, now_ns);
            // It fits into the empty socket, and if it does not, nobody will miss it.
            if let Ok(mut text) = refuse(&refusal) {
                text.push(0);
                let _ = send(&socket, &text, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
            }
            return;
        }
        let id = self.next_client;
        self.next_client += 1;
        self.counts.connections += 1;
        let who = corebeat_heartbeat::Peer { uid: peer.uid, pid: peer.pid.cast_unsigned() };
        self.users.entry(peer.uid).or_default();
        let session = Session::new(who);
        self.host.enter(&session);
        self.clients.insert(id, Client::new(socket, peer, session));
    }

    /// Looks at a connection of which something is told, or whose time has come.
    fn look_at(&mut self, id: ClientId, flags: PollFlags, now_ns: u64) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        client.session.has_left |= flags.intersects(PollFlags::HUP | PollFlags::ERR);
        // Who has hung up is told of again and again, whether we listen or not.
        if client.session.has_left && !client.is_heard(now_ns) {
            return self.part_from(id, Gone::Left, now_ns);
        }
        let may_read = !flags.is_empty();
        let of_user = self.users.entry(client.peer().uid).or_default();
        let mut served = Served::default();
        let looked = client.look(&mut self.host, of_user, may_read, now_ns, &mut served);
        self.counts.answered += served.answered;
        self.counts.refused += served.refused;
        if let Err(gone) = looked {
            self.part_from(id, gone, now_ns);
        }
    }

    fn part_from(&mut self, id: ClientId, gone: Gone, now_ns: u64) {
        let Some(mut client) = self.clients.remove(&id) else { return };
        self.host.leave(&mut client.session, now_ns);
        let uid = client.peer().uid;
        let here: BTreeSet<u32> = self.clients.values().map(|c| c.peer().uid).collect();
        self.users.retain(|uid, pace| here.contains(uid) || !pace.is_rested(now_ns));
        if let Gone::Dropped(why) = gone {
            self.counts.dropped += 1;
            let pid = client.peer().pid;
            let what = format_args!("the connection of process {pid} of user {uid} is given up: {why}");
            self.log.say_of_client(Level::Notice, what, now_ns);
        }
    }

    fn look_at_page(&mut self, now_ns: u64) {
        let Some(page) = &mut self.page else { return };
        let (counts, registry, all) = (&self.counts, &self.host.registry, page.shows_all());
        page.look(now_ns, &mut || metric::text(counts, registry.groups(), all));
    }

    /// Looks at those who were paused, or have been waited for.
    fn look_at_those_whose_time_has_come(&mut self, now_ns: u64) {
        let has_come = |c: &Client| c.wake_at_ns(0).is_some_and(|at| at <= now_ns);
        let ids: Vec<_> = self.clients.iter().filter(|(_, c)| has_come(c)).map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.look_at(id, PollFlags::empty(), now_ns));
    }

    /// Tells processes what has become of their claims. Who does not listen is given up, and that may change claims again.
    fn tell_claims(&mut self, now_ns: u64) {
        loop {
            let news = self.host.arbiter.take_news();
            if news.is_empty() {
                return;
            }
            for (pid, change) in news {
                let is_told = |c: &&mut Client| c.session.watches_claims && c.session.peer.pid == pid;
                let mut gone = Vec::new();
                for (&id, client) in self.clients.iter_mut() {
                    if !is_told(&client) {
                        continue;
                    }
                    let told =
                        answer(&change, true).map_err(Gone::from).and_then(|text| client.tell(text, now_ns));
                    gone.extend(told.err().map(|why| (id, why)));
                }
                gone.into_iter().for_each(|(id, why)| self.part_from(id, why, now_ns));
            }
        }
    }

    /// Samples the heartbeats when that is due.
    fn measure(&mut self, now_ns: u64) {
        if self.host.registry.is_empty() {
            self.sample_at_ns = None;
        } else if self.sample_at_ns.is_none_or(|at| at <= now_ns) {
            self.host.registry.sample(now_ns);
            self.sample_at_ns = Some(now_ns + self.options.sample_ns);
        }
    }

    /// Goes round once when that is due.
    fn turn(&mut self) -> Result<(), Failure> {
        let beats = self.clients.values().any(|c| c.session.beats());
        if !beats && self.steer.is_idle() {
            self.turn_at_ns = None;
            return Ok(());
        }
        let now = now();
        let due_ns = *self.turn_at_ns.get_or_insert(now.awake_ns);
        if due_ns.max(self.turn_rests_until_ns) > now.awake_ns {
            return Ok(());
        }
        let verdict = self.watchdog.turn(due_ns, self.options.observe_ns, now);
        self.heed(verdict);
        let pulses = self.host.pulses();
        let clients = &self.clients;
        let who = |pid| {
            let is_meant = |c: &&Client| c.peer().pid == pid && c.session.beats() && !c.peer().has_ended();
            clients.values().find(is_meant).map(|c| c.peer().uid)
        };
        let acts = self.options.steers && matches!(verdict, Verdict::Act | Verdict::CaughtUp);
        let deeds = self.steer.turn(&pulses, who, acts)?;
        self.host.notes = self.steer.notes();
        self.counts.turns += 1;
        deeds.iter().for_each(|deed| self.note(deed, now.awake_ns));
        // From begin to begin: a turn that takes the whole period makes the next one late, and the watchdog sees it.
        self.turn_at_ns = Some(now.awake_ns + self.options.observe_ns);
        let took_ns = self::now().awake_ns.saturating_sub(now.awake_ns);
        self.turn_rests_until_ns = now.awake_ns + 2 * took_ns;
        Ok(())
    }

    fn heed(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Fell => {
                self.counts.falls += 1;
                self.log.say(
                    Level::Warning,
                    "this host leaves no time for the daemon: what it did is taken back",
                );
                tell_restored(&self.log, &self.steer.restore());
            }
            Verdict::CaughtUp => self.log.say(Level::Notice, "the daemon keeps up again, and acts"),
            Verdict::Slept => self.log.say(Level::Info, "the host has slept"),
            Verdict::Act | Verdict::Behind => {}
        }
    }

    fn note(&mut self, deed: &Deed, now_ns: u64) {
        let pid = self.steer.pid(&deed.decision.action);
        let process =
            pid.map_or("a process that is not watched any more".into(), |pid| format!("process {pid}"));
        let what = format_args!("{process}, {}", deed.decision.action);
        match &deed.failed {
            None => {
                self.counts.actions_done += 1;
                self.log.say(Level::Debug, format_args!("{what}: {}", deed.decision.why));
            }
            Some(why) => {
                self.counts.actions_failed += 1;
                if self.failures.take(FAILURES, now_ns) {
                    self.log.say(Level::Notice, format_args!("{what}: not possible: {why}"));
                }
            }
        }
    }

    /// Tells the service manager that all is well.
    fn say_alive(&mut self, now_ns: u64) {
        if let (Some(at_ns), Some(each_ns)) = (self.alive_at_ns, self.notify.alive_each_ns)
            && at_ns <= now_ns
        {
            self.notify.say("WATCHDOG=1");
            self.alive_at_ns = Some(now_ns + each_ns);
        }
    }

    /// What is told when somebody asks for it.
    fn take_stock(&mut self) {
        self.counts.clients = self.clients.len();
        self.counts.programs = self.steer.count();
        self.counts.claims = self.host.arbiter.count();
        self.counts.steering = self.options.steers && !self.watchdog.is_behind() && self.steer.can_act();
        self.host.circumstances = Circumstances {
            period_ns: self.options.sample_ns,
            steering: self.counts.steering,
            clients: self.counts.clients as u32,
            programs: self.counts.programs as u32,
        };
    }
}

fn tell_restored(log: &Log, restored: &Restored) {
    restored.undone.iter().for_each(|line| log.say(Level::Notice, format_args!("restored {line}")));
    restored.left.iter().for_each(|line| log.say(Level::Warning, format_args!("left alone: {line}")));
}

/// What time it is.
fn now() -> Now {
    let ns = |clock| {
        let time = clock_gettime(clock);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    };
    Now { awake_ns: ns(ClockId::Monotonic), boot_ns: ns(ClockId::Boottime) }
}

fn timespec(ns: u64) -> Timespec {
    Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}
