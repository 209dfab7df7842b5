//! The daemon: one thread that waits for the first event, and never for one client.

use crate::client::{Client, Gone, Served};
use crate::host::{Circumstances, Host};
use crate::http::{Place, Server};
use crate::limit::{
    ACCEPTED_AT_ONCE, CLIENTS_MAX, CLIENTS_PER_USER_MAX, EXPORT_EACH_NS, FAILURES,
    LISTENER_PAUSE_NS, Pace,
};
use crate::log::{Level, Log};
use crate::metric::{self, Counts, Reading};
use crate::notify::Notify;
use crate::outlet::{Outlet, Outlets, event, unix_ns};
use crate::peer::Peer;
use crate::selection::Selection;
use crate::session::Session;
use crate::socket::{LockedSocket, OwnFolder, Scope};
use crate::steer::{Steer, in_one_row};
use crate::watchdog::{Now, Verdict, Watchdog};
use crate::web::{Web, WebPage};
use crate::{Error, Failure};
use corebeat_host::Periods;
use corebeat_linux::{ShortSlice, restore_all};
use corebeat_machine::{AppliedAction, Inaction, Restored};
use corebeat_web::{Claim, Decision, Outcome, Past, Update};
use corebeat_wire::{Refusal, host, refuse};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use rustix::time::{ClockId, clock_gettime};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError};

/// Number of a connection. Numbers are never reused.
type ClientId = u64;

/// Programs that the daemon steers.
#[derive(Debug, Clone, PartialEq)]
pub enum Steering {
    /// No program.
    None,
    /// Programs with a goal, by the policy `fair`.
    Fair,
    /// Programs with a goal, by the policy `fair`, and the others that use the CPU, by the policy
    /// `auto`.
    Auto(Selection),
}

/// A history of the host, which the caller records.
#[derive(Debug, Clone)]
pub struct History {
    /// Receives the state of the host each second. The daemon never waits for the receiver: what
    /// does not fit into the channel is left out.
    pub updates: SyncSender<Update>,
    /// Reads what is recorded, for the web page, in a thread of its own.
    pub past: Arc<dyn Past>,
}

/// Options of the daemon.
#[derive(Debug, Clone)]
pub struct Options {
    /// Path of the socket.
    pub socket: PathBuf,
    /// Whether the daemon creates a missing folder of the socket (but not its parents), and removes
    /// the empty folder that it created at its end.
    pub creates_folder: bool,
    /// Users that may connect.
    pub scope: Scope,
    /// Place of the metrics page, if one is served.
    pub metrics: Option<Place>,
    /// The web page, if one is served.
    pub web: Option<WebPage>,
    /// The history, if one is recorded.
    pub history: Option<History>,
    /// Receives the metrics each 10 seconds, without groups that other users may not list. The
    /// daemon never waits for the receiver: while the channel is full, it leaves readings out.
    pub readings: Option<SyncSender<Reading>>,
    /// Time from one sample of the heartbeats to the next, in nanoseconds.
    pub sample_ns: u64,
    /// Time from one observation of the programs to the next, in nanoseconds.
    pub observe_ns: u64,
    /// Which programs the daemon steers. In any case, the daemon measures, and assigns claims.
    pub steering: Steering,
    /// Load the scheduler into the kernel, and move the steered programs to it.
    pub kernel: bool,
    /// Let this scheduler schedule all threads of the host.
    pub all: bool,
    /// Folder of the journal.
    pub state_dir: PathBuf,
    /// Lowest level of logged lines.
    pub log: Level,
}

impl Options {
    /// Default options: samples every 100 ms, observations every 500 ms, no metrics, no web
    /// page, no history, no exported metrics, log level info, and a socket in an existing folder.
    pub fn new(socket: PathBuf, scope: Scope, state_dir: PathBuf) -> Options {
        let (sample_ns, observe_ns) = (100_000_000, 500_000_000);
        let log = Level::Info;
        Options {
            socket,
            creates_folder: false,
            scope,
            metrics: None,
            web: None,
            history: None,
            readings: None,
            sample_ns,
            observe_ns,
            steering: Steering::Fair,
            kernel: false,
            all: false,
            state_dir,
            log,
        }
    }
}

/// A daemon with its socket.
pub struct Daemon {
    options: Options,
    log: Log,
    notify: Notify,
    listener: LockedSocket,
    /// After the socket, which is in the folder: fields are dropped in this order.
    _folder: Option<OwnFolder>,
    listener_paused_until_ns: u64,
    metrics: Option<Server>,
    outlets: Outlets,
    host: Host,
    clients: BTreeMap<ClientId, Client>,
    next_client: ClientId,
    /// Rate of calls by user. The entry of a user without connections is kept until its rate limit
    /// has recovered, so that a new connection does not reset the limit. The recovery time bounds
    /// the number of entries.
    users: BTreeMap<u32, Pace>,
    steer: Steer,
    watchdog: Watchdog,
    /// Rate of log lines about refused actions.
    failures: Pace,
    counts: Counts,
    /// Times of the next sample and cycle; `None` while no process emits heartbeats and, for
    /// cycles, none is searched for.
    sample_at_ns: Option<u64>,
    cycle_at_ns: Option<u64>,
    /// Time of the next sample of the states of threads; `None` while no program needs it.
    threads_at_ns: Option<u64>,
    alive_at_ns: Option<u64>,
    /// Time of the next exported metrics; `None` if they are not exported.
    export_at_ns: Option<u64>,
    /// End of the pause after the last cycle. The pause is as long as the cycle was, so that cycles
    /// take at most half of a CPU.
    cycle_paused_until_ns: u64,
}

/// Source of an event of [`poll`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Stop,
    LockedSocket,
    Page,
    Socket(ClientId),
    Process(ClientId),
}

impl Daemon {
    /// Undoes the changes of a killed daemon, and starts to listen.
    ///
    /// # Errors
    /// [`Failure`] if the socket, the metrics or the web page cannot be created, the web page needs
    /// a token, or the host cannot be observed.
    pub fn open(mut options: Options) -> Result<Daemon, Failure> {
        let log = Log::new(options.log);
        options
            .web
            .as_ref()
            .map_or(Ok(()), |page| page.check(options.scope))
            .map_err(Error::from)?;
        // The socket comes first: its owner is the only daemon here.
        let failed = |e| Error::listen(&options.socket, e);
        let folder = match options.creates_folder {
            true => OwnFolder::of(&options.socket, options.scope).map_err(failed)?,
            false => None,
        };
        let listener = LockedSocket::open(&options.socket, options.scope).map_err(failed)?;
        let metrics = options.metrics.as_ref().map(|place| {
            let failed = |e| Error::page("metrics", "--metrics", place, e);
            Server::open(place).map_err(failed)
        });
        let (history, past) =
            options.history.take().map(|h| (Outlet::new(h.updates), h.past)).unzip();
        let web = options.web.as_ref().map(|page| {
            let failed = |e| Error::page("the web page", "--web", page.place(), e);
            let server = Server::open(page.place()).map_err(failed)?;
            let failed = |source| Error::System { what: "start the web page", source };
            Web::start(page, server, past).map_err(failed)
        });
        let (metrics, web) = (metrics.transpose()?, web.transpose()?);
        log_restored(&log, &restore_all(&options.state_dir)?.restored);
        let own = rustix::process::geteuid().as_raw();
        let user = Some(own).filter(|_| options.scope == Scope::User);
        let outlets = Outlets::new(web, history, now().awake_ns);
        let mut steer =
            Steer::new(&options.state_dir, &options.steering, user, outlets.are_used())?;
        if options.kernel {
            steer.load_scheduler(options.all)?;
        }
        let mut daemon = Daemon {
            log,
            notify: Notify::of_environment(),
            listener,
            _folder: folder,
            listener_paused_until_ns: 0,
            metrics,
            outlets,
            host: Host::new(steer.topology().clone()),
            clients: BTreeMap::new(),
            next_client: 0,
            users: BTreeMap::new(),
            steer,
            watchdog: Watchdog::default(),
            failures: Pace::default(),
            counts: Counts::default(),
            sample_at_ns: None,
            cycle_at_ns: None,
            threads_at_ns: None,
            alive_at_ns: None,
            export_at_ns: options.readings.as_ref().map(|_| now().awake_ns),
            cycle_paused_until_ns: 0,
            options,
        };
        daemon.host.notes = daemon.steer.notes();
        daemon.update_status();
        Ok(daemon)
    }

    /// Serves until `stop` is readable. Then undoes all changes.
    ///
    /// # Errors
    /// [`Failure`] if the host can no longer be observed, or waiting fails. All changes are undone
    /// then as well.
    pub fn run(mut self, stop: BorrowedFd<'_>) -> Result<(), Failure> {
        let (path, version) = (self.options.socket.display(), env!("CARGO_PKG_VERSION"));
        self.log.write(Level::Info, format_args!("corebeat daemon {version} listens on {path}"));
        if let Some(page) = &self.options.web {
            let address = page.address();
            self.log.write(Level::Info, format_args!("the web page is at {address}"));
        }
        self.notify.send("READY=1");
        self.alive_at_ns = self.notify.alive_each_ns.map(|_| now().awake_ns);
        // Without an event, the first search begins now.
        self.cycle_at_ns = Some(now().awake_ns).filter(|_| !self.steer.is_idle());
        // Beside busy programs, samples and observations would come late.
        let short_slice =
            matches!(self.options.steering, Steering::Auto(_)).then(ShortSlice::request);
        let served = self.serve(stop);
        // The history has the last second as well.
        self.hand_over(now());
        drop(short_slice);
        self.notify.send("STOPPING=1");
        log_restored(&self.log, &self.steer.restore());
        self.log.write(Level::Info, "corebeat daemon ends");
        served
    }

    fn serve(&mut self, stop: BorrowedFd<'_>) -> Result<(), Failure> {
        loop {
            let events = self.wait(stop)?;
            let now_ns = now().awake_ns;
            for (source, flags) in events {
                match source {
                    Source::Stop => return Ok(()),
                    Source::LockedSocket => self.accept_clients(now_ns),
                    Source::Page => {}
                    Source::Socket(id) => self.serve_client(id, flags, now_ns),
                    Source::Process(id) => self.close_client(id, Gone::Left, now_ns),
                }
            }
            self.serve_metrics(now_ns);
            self.serve_due_clients(now_ns);
            self.host.arbiter.tick(now_ns);
            self.send_claim_changes(now_ns);
            self.measure(now_ns);
            self.cycle()?;
            self.sample_threads(now_ns);
            self.send_keep_alive(now_ns);
            self.update_status();
            self.publish();
            self.export(now_ns);
        }
    }

    /// Waits for an event or for the next due time.
    fn wait(&self, stop: BorrowedFd<'_>) -> Result<Vec<(Source, PollFlags)>, Failure> {
        let now_ns = now().awake_ns;
        let mut sources = vec![Source::Stop];
        let mut fds = vec![PollFd::from_borrowed_fd(stop, PollFlags::IN)];
        let mut add = |source, fd, flags| {
            sources.push(source);
            fds.push(PollFd::from_borrowed_fd(fd, flags));
        };
        if now_ns >= self.listener_paused_until_ns {
            add(Source::LockedSocket, self.listener.as_fd(), PollFlags::IN);
        }
        for (fd, is_written) in self.metrics.iter().flat_map(|page| page.sockets(now_ns)) {
            add(Source::Page, fd, if is_written { PollFlags::OUT } else { PollFlags::IN });
        }
        for (&id, client) in &self.clients {
            let input = if client.is_readable(now_ns) { PollFlags::IN } else { PollFlags::empty() };
            let output = if client.has_output() { PollFlags::OUT } else { PollFlags::empty() };
            add(Source::Socket(id), client.as_fd(), input | output);
            add(Source::Process(id), client.peer().as_fd(), PollFlags::IN);
        }
        let cycle_at_ns = self.cycle_at_ns.map(|at| at.max(self.cycle_paused_until_ns));
        let due = [
            self.sample_at_ns,
            cycle_at_ns,
            self.threads_at_ns,
            self.alive_at_ns,
            self.export_at_ns,
            self.host.arbiter.due_ns(),
            self.outlets.due_ns(),
        ];
        let clients = self.clients.values().filter_map(|c| c.wake_at_ns(now_ns));
        let others = self.metrics.as_ref().and_then(|page| page.wake_at_ns(now_ns)).into_iter();
        let pause = Some(self.listener_paused_until_ns).filter(|at| *at > now_ns);
        let first_ns = due.into_iter().flatten().chain(clients).chain(others).chain(pause).min();
        let timeout = first_ns.map(|at| timespec(at.saturating_sub(now_ns)));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => {
                return Err(Error::System { what: "wait for clients", source: e.into() }.into());
            }
        }
        let events = sources.into_iter().zip(&fds).map(|(source, fd)| (source, fd.revents()));
        Ok(events.filter(|(_, flags)| !flags.is_empty()).collect())
    }

    /// Accepts waiting connections.
    fn accept_clients(&mut self, now_ns: u64) {
        for _ in 0..ACCEPTED_AT_ONCE {
            match self.listener.accept() {
                Ok(Some(socket)) => self.admit(socket, now_ns),
                Ok(None) => return,
                Err(e) => {
                    self.listener_paused_until_ns = now_ns + LISTENER_PAUSE_NS;
                    let what = format_args!("cannot accept connections at present: {e}");
                    return self.log.write_about_client(Level::Warning, what, now_ns);
                }
            }
        }
    }

    fn admit(&mut self, socket: OwnedFd, now_ns: u64) {
        let peer = match Peer::of(socket.as_fd()) {
            Ok(peer) => peer,
            Err(e) => {
                self.counts.rejected += 1;
                let what =
                    format_args!("a connection is refused, because its process is unknown: {e}");
                return self.log.write_about_client(Level::Notice, what, now_ns);
            }
        };
        // The process number may be reused: a new process must not inherit the state of an old one.
        let is_before = |c: &Client| c.peer().pid == peer.pid && c.peer().has_ended();
        let before: Vec<_> =
            self.clients.iter().filter(|(_, c)| is_before(c)).map(|(id, _)| *id).collect();
        before.into_iter().for_each(|id| self.close_client(id, Gone::Left, now_ns));
        let own = rustix::process::geteuid().as_raw();
        let of_user = self.clients.values().filter(|c| c.peer().uid == peer.uid).count();
        let refusal = match () {
            () if self.options.scope == Scope::User && peer.uid != own && peer.uid != 0 => {
                Some(Refusal::NotAllowed { why: "this daemon serves only its own user".into() })
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
            self.counts.rejected += 1;
            let refused =
                format_args!("process {} of user {} is refused: {refusal}", peer.pid, peer.uid);
            self.log.write_about_client(Level::Notice, refused, now_ns);
            // The refusal fits into the empty socket buffer. A lost refusal does no harm.
            if let Ok(mut text) = refuse(&refusal) {
                text.push(0);
                let _ = send(&socket, &text, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
            }
            return;
        }
        let id = self.next_client;
        self.next_client += 1;
        self.counts.connections += 1;
        let identity = corebeat_heartbeat::Peer { uid: peer.uid, pid: peer.pid.cast_unsigned() };
        self.users.entry(peer.uid).or_default();
        let session = Session::new(identity);
        self.clients.insert(id, Client::new(socket, peer, session));
    }

    /// Serves a connection with an event, or after its pause or time limit.
    fn serve_client(&mut self, id: ClientId, flags: PollFlags, now_ns: u64) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        client.session.has_left |= flags.intersects(PollFlags::HUP | PollFlags::ERR);
        // poll reports a closed connection at every call, even if no event was requested.
        if client.session.has_left && !client.is_readable(now_ns) {
            return self.close_client(id, Gone::Left, now_ns);
        }
        let may_read = !flags.is_empty();
        let of_user = self.users.entry(client.peer().uid).or_default();
        let mut served = Served::default();
        let result = client.serve(&mut self.host, of_user, may_read, now_ns, &mut served);
        self.counts.answered += served.answered;
        self.counts.refused += served.refused;
        if let Err(gone) = result {
            self.close_client(id, gone, now_ns);
        }
    }

    fn close_client(&mut self, id: ClientId, gone: Gone, now_ns: u64) {
        let Some(mut client) = self.clients.remove(&id) else { return };
        let others = self.clients.values().map(|other| &other.session);
        self.host.leave(&mut client.session, others, now_ns);
        let uid = client.peer().uid;
        let here: BTreeSet<u32> = self.clients.values().map(|c| c.peer().uid).collect();
        self.users.retain(|uid, pace| here.contains(uid) || !pace.is_rested(now_ns));
        if let Gone::Dropped(why) = gone {
            self.counts.dropped += 1;
            let pid = client.peer().pid;
            let what =
                format_args!("the connection of process {pid} of user {uid} is closed: {why}");
            self.log.write_about_client(Level::Notice, what, now_ns);
        }
    }

    fn serve_metrics(&mut self, now_ns: u64) {
        let Some(server) = &mut self.metrics else { return };
        let (counts, registry, all) = (&self.counts, &self.host.registry, server.is_private());
        let text = || metric::text(&metric::metrics(counts, registry.groups(), all));
        server.serve(now_ns, &mut |request| Some(metric::answer(request, all, text)));
    }

    /// Hands the state of the host to the web page and the history, if an update is due.
    fn publish(&mut self) {
        let Some(due_ns) = self.outlets.due_ns() else { return };
        let now = now();
        if due_ns <= now.awake_ns {
            self.hand_over(now);
        }
    }

    /// Hands the metrics to their exporter, if they are due.
    fn export(&mut self, now_ns: u64) {
        if let (Some(readings), Some(at_ns)) = (&self.options.readings, self.export_at_ns)
            && at_ns <= now_ns
        {
            let metrics = metric::metrics(&self.counts, self.host.registry.groups(), false);
            let sent = readings.try_send(Reading { unix_ns: unix_ns(), metrics });
            let has_ended = matches!(sent, Err(TrySendError::Disconnected(_)));
            self.export_at_ns = Some(now_ns + EXPORT_EACH_NS).filter(|_| !has_ended);
        }
    }

    fn hand_over(&mut self, now: Now) {
        if !self.outlets.are_used() {
            return;
        }
        let claim = |c: host::Claim| Claim {
            claim: c.claim,
            pid: c.pid,
            name: String::new(),
            cpus: c.cpus,
            keep: c.keep,
        };
        let update = Update {
            steering: self.counts.steering,
            programs: self.steer.on_page(),
            claims: self.host.arbiter.list(None).claims.into_iter().map(claim).collect(),
            notes: self.host.notes.clone(),
            ..Update::default()
        };
        let groups: Vec<_> = self.host.registry.groups().collect();
        if let Some(line) = self.outlets.publish(update, &groups, now) {
            self.log.write(Level::Warning, line);
        }
    }

    /// Serves connections whose pause or time limit has ended.
    fn serve_due_clients(&mut self, now_ns: u64) {
        let is_due = |c: &Client| c.wake_at_ns(0).is_some_and(|at| at <= now_ns);
        let ids: Vec<_> =
            self.clients.iter().filter(|(_, c)| is_due(c)).map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.serve_client(id, PollFlags::empty(), now_ns));
    }

    /// Sends changes of claims to their processes. Closes connections that have failed; this may
    /// change claims again.
    fn send_claim_changes(&mut self, now_ns: u64) {
        loop {
            let changes = self.host.arbiter.take_changes();
            if changes.is_empty() {
                return;
            }
            for (pid, change) in changes {
                let mut gone = Vec::new();
                for (&id, client) in self.clients.iter_mut() {
                    if !client.session.receives(pid, change.claim) {
                        continue;
                    }
                    let sent = client.report(change.clone());
                    gone.extend(sent.err().map(|why| (id, why)));
                }
                gone.into_iter().for_each(|(id, why)| self.close_client(id, why, now_ns));
            }
        }
    }

    /// Samples the heartbeats if a sample is due.
    fn measure(&mut self, now_ns: u64) {
        if self.host.registry.is_empty() {
            self.sample_at_ns = None;
        } else if self.sample_at_ns.is_none_or(|at| at <= now_ns) {
            self.host.registry.sample(now_ns);
            self.sample_at_ns = Some(now_ns + self.options.sample_ns);
        }
    }

    /// Samples the states of threads if a sample is due.
    fn sample_threads(&mut self, now_ns: u64) {
        if !self.steer.takes_samples() {
            self.threads_at_ns = None;
        } else if self.threads_at_ns.is_none_or(|at| at <= now_ns) {
            self.steer.sample();
            let each_ns = Periods::every_ms(self.options.observe_ns / 1_000_000).sample_ns;
            self.threads_at_ns = Some(now_ns + each_ns);
        }
    }

    /// Makes one cycle of the control loop if a cycle is due.
    fn cycle(&mut self) -> Result<(), Failure> {
        let beats = self.clients.values().any(|c| c.session.beats());
        if !beats && self.steer.is_idle() {
            self.cycle_at_ns = None;
            return Ok(());
        }
        let now = now();
        let due_ns = *self.cycle_at_ns.get_or_insert(now.awake_ns);
        if due_ns.max(self.cycle_paused_until_ns) > now.awake_ns {
            return Ok(());
        }
        let verdict = self.watchdog.cycle(due_ns, self.options.observe_ns, now);
        self.apply(verdict);
        let progress = self.host.progress();
        let clients = &self.clients;
        let owner_of = |pid| {
            let is_meant =
                |c: &&Client| c.peer().pid == pid && c.session.beats() && !c.peer().has_ended();
            clients.values().find(is_meant).map(|c| c.peer().uid)
        };
        let acts = self.options.steering != Steering::None
            && matches!(verdict, Verdict::Act | Verdict::CaughtUp);
        let claimers = self.host.arbiter.owners();
        let applied = self.steer.cycle(&progress, owner_of, claimers, acts)?;
        self.host.notes = self.steer.notes();
        self.host.steered = self.steer.steered();
        for line in self.steer.take_events() {
            self.log.write(Level::Debug, &line);
            self.outlets.note(now.awake_ns, event(line));
        }
        self.counts.cycles += 1;
        applied.iter().for_each(|action| self.note(action, now.awake_ns));
        for (pid, inactions) in self.steer.new_inactions() {
            for Inaction { policy, why } in &inactions {
                let what = format_args!("process {pid}, no change by {policy}: {why}");
                self.log.write(Level::Debug, what);
            }
            let program = self.steer.name(pid).unwrap_or_default().to_owned();
            let (policy, why) = in_one_row(inactions);
            let (pid, outcome) = (Some(pid), Outcome::Unchanged);
            let decision = Decision { pid, program, policy, why, outcome, ..event("no change") };
            self.outlets.note(now.awake_ns, decision);
        }
        // From start to start: a cycle that takes the whole period delays the next one, and the
        // watchdog detects the delay.
        self.cycle_at_ns = Some(now.awake_ns + self.options.observe_ns);
        let took_ns = self::now().awake_ns.saturating_sub(now.awake_ns);
        self.cycle_paused_until_ns = now.awake_ns + 2 * took_ns;
        Ok(())
    }

    fn apply(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::BecameLate => {
                self.counts.late += 1;
                let what = "the daemon is late, because the host is overloaded or the daemon was \
                            stopped; all changes are undone";
                self.log.write(Level::Warning, what);
                self.outlets.note(now().awake_ns, event(what));
                log_restored(&self.log, &self.steer.restore());
            }
            Verdict::CaughtUp => {
                let what = "the daemon is in time again, and acts";
                self.log.write(Level::Notice, what);
                self.outlets.note(now().awake_ns, event(what));
            }
            Verdict::Slept => self.log.write(Level::Info, "the host was suspended"),
            Verdict::Act | Verdict::Late => {}
        }
    }

    fn note(&mut self, action: &AppliedAction, now_ns: u64) {
        let program = self.steer.program(&action.decision.action);
        let program = program.map(|(pid, name)| (pid, name.to_owned()));
        let process = program.as_ref().map_or_else(
            || "a process that is no longer observed".to_owned(),
            |(pid, _)| format!("process {pid}"),
        );
        let what = format_args!("{process}, {}", action.decision.action);
        match &action.outcome {
            Ok(_) => {
                self.counts.actions_done += 1;
                self.log.write(Level::Debug, format_args!("{what}: {}", action.decision.why));
            }
            Err(why) => {
                self.counts.actions_failed += 1;
                if self.failures.take(FAILURES, now_ns) {
                    self.log.write(Level::Notice, format_args!("{what}: refused: {why}"));
                }
            }
        }
        let outcome = match &action.outcome {
            Ok(effect) => Outcome::Done(effect.changed),
            Err(why) => Outcome::Refused(why.clone()),
        };
        let decision = Decision {
            pid: program.as_ref().map(|(pid, _)| *pid),
            program: program.map(|(_, name)| name).unwrap_or_default(),
            policy: action.decision.policy.to_owned(),
            why: action.decision.why.clone(),
            outcome,
            ..event(action.decision.action.to_string())
        };
        self.outlets.note(action.at_ns, decision);
    }

    /// Sends the keep-alive message to the service manager.
    fn send_keep_alive(&mut self, now_ns: u64) {
        if let (Some(at_ns), Some(each_ns)) = (self.alive_at_ns, self.notify.alive_each_ns)
            && at_ns <= now_ns
        {
            self.notify.send("WATCHDOG=1");
            self.alive_at_ns = Some(now_ns + each_ns);
        }
    }

    /// Updates the values of the status call and of the metrics page.
    fn update_status(&mut self) {
        self.counts.clients = self.clients.len();
        self.counts.programs = self.steer.count();
        self.counts.claims = self.host.arbiter.count();
        self.counts.history_left_out = self.outlets.history_left_out();
        self.counts.steering = self.options.steering != Steering::None
            && !self.watchdog.is_late()
            && self.steer.can_act();
        self.host.circumstances = Circumstances {
            period_ns: self.options.sample_ns,
            steering: self.counts.steering,
            clients: self.counts.clients as u32,
            programs: self.counts.programs as u32,
        };
    }
}

fn log_restored(log: &Log, restored: &Restored) {
    restored
        .undone
        .iter()
        .for_each(|line| log.write(Level::Notice, format_args!("restored {line}")));
    restored
        .left
        .iter()
        .for_each(|line| log.write(Level::Warning, format_args!("not restored: {line}")));
}

/// Current time of both clocks.
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
