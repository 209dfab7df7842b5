//! A daemon in this process, and clients on its socket with valid and invalid input.

use corebeat_daemon::{Daemon, Options, Place, Scope};
use corebeat_wire::{Connection, Error, MESSAGE_BYTES_MAX, Refusal, host, service};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// A daemon in a thread, which ends when this value is dropped.
struct Running {
    dir: tempfile::TempDir,
    stop: Option<std::io::PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn new() -> Running {
        Running::after(|_| {})
    }

    /// A daemon whose socket `prepare` uses before the daemon serves it.
    fn after(done: impl FnOnce(&Path)) -> Running {
        let dir = tempfile::tempdir().unwrap();
        // So that other users can access the socket.
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let (stopped, stop) = std::io::pipe().unwrap();
        let mut options =
            Options::new(dir.path().join("socket"), Scope::Host, dir.path().join("state"));
        options.metrics = Some(Place::Unix(dir.path().join("metrics")));
        options.sample_ns = 10_000_000;
        options.observe_ns = 20_000_000;
        let daemon = Daemon::open(options).unwrap();
        done(&dir.path().join("socket"));
        let thread = thread::spawn(move || daemon.run(stopped.as_fd()).unwrap());
        Running { dir, stop: Some(stop), thread: Some(thread) }
    }

    fn connect(&self) -> Connection {
        Connection::to(&self.dir.path().join("socket")).unwrap().expect("it listens")
    }

    /// A connection that can send arbitrary bytes.
    fn raw(&self) -> UnixStream {
        UnixStream::connect(self.dir.path().join("socket")).unwrap()
    }

    fn groups(&self) -> Vec<host::Group> {
        groups(&mut self.connect())
    }

    fn metrics(&self) -> String {
        let mut stream = UnixStream::connect(self.dir.path().join("metrics")).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        page
    }

    fn metric(&self, name: &str) -> u64 {
        let page = self.metrics();
        let line = page.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {page}")).parse().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.take();
        let ended = self.thread.take().unwrap().join();
        assert!(thread::panicking() || ended.is_ok());
    }
}

fn groups(connection: &mut Connection) -> Vec<host::Group> {
    connection
        .call::<_, host::Groups>(host::LIST_GROUPS, &host::ListGroups::default(), &[])
        .unwrap()
        .0
        .groups
}

/// Repeats a call until the answer is as expected: the daemon acts asynchronously.
fn until(mut right: impl FnMut() -> bool) {
    for _ in 0..10_000 {
        if right() {
            return;
        }
        thread::sleep(Duration::from_millis(2));
    }
    panic!("it does not come to pass");
}

#[test]
fn call_of_a_closed_connection_has_no_effect() {
    let invade = |max: u32| host::Invade {
        claim: None,
        min: 1,
        max,
        numa: None,
        within: None,
        prefer: None,
    };
    let running = Running::after(|socket| {
        let mut gives_up = UnixStream::connect(socket).unwrap();
        let call = serde_json::json!({ "method": host::INVADE, "parameters": invade(1) });
        gives_up.write_all(format!("{call}\0").as_bytes()).unwrap();
    });
    until(|| running.metric("corebeat_calls_refused_total") == 1);
    let mut connection = running.connect();
    let mut claims = || {
        let (listed, _) =
            connection.call::<_, host::Claims>(host::LIST_CLAIMS, &host::Nothing {}, &[]).unwrap();
        listed.claims.len()
    };
    assert_eq!(claims(), 0);
    // A claim lasts as long as its connection.
    let mut holder = running.connect();
    holder.call::<_, host::Invaded>(host::INVADE, &invade(1), &[]).unwrap();
    assert_eq!(claims(), 1);
}

/// A region with this number of heartbeats of this thread.
fn region(beats: u64) -> OwnedFd {
    let fd = memfd_create("region", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    fallocate(&fd, FallocateFlags::empty(), 0, 64 << 10).unwrap();
    let mut bytes = vec![0; 128];
    bytes[..8].copy_from_slice(&u64::from_be_bytes(*b"CBHBREG1").to_ne_bytes());
    bytes[8..12].copy_from_slice(&1u32.to_ne_bytes());
    bytes[64..72].copy_from_slice(&beats.to_ne_bytes());
    let tid = rustix::thread::gettid().as_raw_nonzero().get();
    bytes[72..76].copy_from_slice(&tid.to_ne_bytes());
    assert_eq!(rustix::io::pwrite(&fd, &bytes, 0).unwrap(), bytes.len());
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    fcntl_add_seals(&fd, seals).unwrap();
    fd
}

fn producer(group: u32) -> host::Attach {
    host::Attach { group, owner: None, mode: None, role: host::Role::Producer }
}

fn consumer(group: u32, owner: u32) -> host::Attach {
    host::Attach { group, owner: Some(owner), mode: None, role: host::Role::Consumer }
}

fn attach(connection: &mut Connection, asked: &host::Attach, beats: u64) -> Result<OwnedFd, Error> {
    let region = region(beats);
    let fds = [region.as_fd()];
    let sent = if asked.role == host::Role::Producer { &fds[..] } else { &[] };
    let (_, mut fds) = connection.call::<_, host::Attached>(host::ATTACH, asked, sent)?;
    assert_eq!(fds.len(), 1, "the status page");
    Ok(fds.remove(0))
}

fn goal(rate_max: f64) -> host::Goal {
    host::Goal { rate_min: None, rate_max: Some(rate_max), window: 4, hold: false }
}

/// Calls a function as another user: credentials belong to a thread, unless the C library
/// synchronises them.
fn as_user<R: Send>(uid: u32, work: impl FnOnce() -> R + Send) -> R {
    thread::scope(|scope| {
        let other = scope.spawn(move || {
            // SAFETY: the arguments are numbers. The call changes this thread, which has no other
            // work.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) };
            assert_eq!(changed, 0);
            work()
        });
        other.join().unwrap()
    })
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn service_describes_itself_and_refuses_unknown_methods() {
    let daemon = Running::new();
    let mut connection = daemon.connect();
    let (info, _): (service::Info, _) =
        connection.call(service::GET_INFO, &host::Nothing {}, &[]).unwrap();
    assert_eq!(info.interfaces, [service::INTERFACE, host::INTERFACE]);
    for interface in info.interfaces {
        let asked = service::Asked { interface: interface.clone() };
        let (received, _): (service::Described, _) =
            connection.call(service::GET_INTERFACE_DESCRIPTION, &asked, &[]).unwrap();
        assert!(received.description.contains(&format!("\ninterface {interface}\n")));
    }
    let mut refused = |method: &str, parameters: serde_json::Value| match connection
        .call::<_, host::Nothing>(method, &parameters, &[])
    {
        Err(Error::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    };
    let none = serde_json::json!({});
    let method = "io.corebeat.Host.Dance".to_string();
    assert_eq!(refused(&method, none.clone()), Refusal::MethodNotFound { method });
    let interface = "org.example.Dance".to_string();
    assert_eq!(
        refused("org.example.Dance.Go", none.clone()),
        Refusal::InterfaceNotFound { interface }
    );
    assert!(matches!(refused(host::ATTACH, none.clone()), Refusal::InvalidParameter { .. }));
    assert_eq!(refused(host::WATCH_CLAIMS, none), Refusal::ExpectedMore {});
    let status =
        connection.call::<_, host::Status>(host::STATUS, &host::Nothing {}, &[]).unwrap().0;
    assert_eq!((status.clients, status.groups, status.claims, status.steering), (1, 0, 0, true));
}

/// The Varlink client in Python, which reads the text of the interface and calls by it.
const PYTHON: &str = "
import sys, varlink
with varlink.Client.new_with_address('unix:' + sys.argv[1]) as client:
    print(client.get_interfaces())
    with client.open('io.corebeat.Host') as host:
        print(host.Status(), host.ListGroups())
";

#[test]
fn interface_works_with_the_varlink_client_in_python() {
    let daemon = Running::new();
    let socket = daemon.dir.path().join("socket");
    let try_it = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).output().ok()?;
        let [out, err] =
            [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
        Some((output.status.success(), out, err))
    };
    let address = socket.to_str().unwrap();
    let mut tried = false;
    if try_it("varlinkctl", &["--version"]).is_some() {
        tried = true;
        let ask = |args: &[&str]| match try_it("varlinkctl", args) {
            Some((true, said, _)) => said,
            other => panic!("varlinkctl {args:?}: {other:?}"),
        };
        assert!(ask(&["info", address]).contains(host::INTERFACE));
        assert!(ask(&["introspect", address, host::INTERFACE]).contains("method ListGroups"));
        assert!(ask(&["call", address, host::STATUS, "{}"]).contains("period_ns"));
    }
    if try_it("python3", &["-c", "import varlink"]).is_some_and(|(has_it, ..)| has_it) {
        tried = true;
        let (fine, said, why) = try_it("python3", &["-c", PYTHON, address]).unwrap();
        assert!(fine, "{why}");
        for expected in [service::INTERFACE, host::INTERFACE, "period_ns", "steering", "groups"] {
            assert!(said.contains(expected), "{expected}: {said}");
        }
    }
    if !tried {
        // Not captured by the test harness.
        let why = "interface_is_understood_by_clients_of_others is left out: there is neither varlinkctl (systemd 255) nor Python's varlink";
        writeln!(std::io::stderr(), "{why}").unwrap();
    }
}

#[test]
fn group_is_measured_while_a_client_is_attached() {
    let daemon = Running::new();
    let mut beats = daemon.connect();
    attach(&mut beats, &producer(7), 1000).unwrap();
    let set = host::SetGoal { group: 7, owner: None, goal: goal(5.0) };
    beats.call::<_, host::Nothing>(host::SET_GOAL, &set, &[]).unwrap();
    until(|| daemon.groups().iter().any(|g| g.members == 1));
    let group = daemon.groups().remove(0);
    // Heartbeats before the attachment do not count.
    assert_eq!((group.group, group.beats, group.goal), (7, 0, goal(5.0)));
    assert_eq!(group.pids, [std::process::id() as i32]);
    assert!(daemon.metrics().contains("corebeat_group_rate_max{owner="));
    // The daemon observes the program until the connection ends.
    until(|| daemon.metric("corebeat_programs") == 1);
    let nonsense = host::SetGoal { group: 7, owner: None, goal: goal(-5.0) };
    let refused = beats.call::<_, host::Nothing>(host::SET_GOAL, &nonsense, &[]).unwrap_err();
    assert!(refused.to_string().contains("above 0"), "{refused}");
    let twice = attach(&mut beats, &producer(7), 1).unwrap_err();
    assert!(twice.to_string().contains("already"), "{twice}");
    let detach = host::Detach { group: 7, owner: None, role: host::Role::Producer };
    beats.call::<_, host::Nothing>(host::DETACH, &detach, &[]).unwrap();
    assert!(daemon.groups().is_empty());
    until(|| daemon.metric("corebeat_programs") == 0);
    attach(&mut beats, &producer(8), 1).unwrap();
    assert_eq!(daemon.groups().len(), 1);
    drop(beats);
    until(|| daemon.groups().is_empty());
}

#[test]
fn group_beyond_the_limit_of_a_connection_is_refused() {
    let daemon = Running::new();
    let mut connection = daemon.connect();
    let outcomes: Vec<_> =
        (0..65).map(|group| attach(&mut connection, &producer(group), 0)).collect();
    assert!(outcomes[..64].iter().all(Result::is_ok));
    assert!(matches!(outcomes[64], Err(Error::Refused(Refusal::TooMany { limit: 64, .. }))));
}

#[test]
fn invalid_region_is_refused() {
    let daemon = Running::new();
    let mut connection = daemon.connect();
    let unsealed = memfd_create("region", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&unsealed, 64 << 10).unwrap();
    let (socket, _) = UnixStream::pair().unwrap();
    let cases = [vec![unsealed.as_fd()], vec![socket.as_fd()], vec![], vec![unsealed.as_fd(); 2]];
    for fds in cases {
        let refused = connection.call::<_, host::Attached>(host::ATTACH, &producer(1), &fds);
        assert!(matches!(refused, Err(Error::Refused(Refusal::BadRequest { .. }))), "{refused:?}");
    }
    assert!(daemon.groups().is_empty());
}

#[test]
fn group_of_another_user_follows_its_mode() {
    if !is_root() {
        return;
    }
    let daemon = Running::new();
    let (owner, other) = (60_001, 60_002);
    let mut owners = as_user(owner, || {
        let mut connection = daemon.connect();
        attach(&mut connection, &producer(7), 5).unwrap();
        connection
    });
    let set = host::SetGoal { group: 7, owner: Some(owner), goal: goal(5.0) };
    as_user(other, || {
        let mut connection = daemon.connect();
        assert!(groups(&mut connection).is_empty());
        let refusals = [
            attach(&mut connection, &consumer(7, owner), 0).unwrap_err(),
            attach(&mut connection, &host::Attach { owner: Some(owner), ..producer(7) }, 0)
                .unwrap_err(),
            attach(&mut connection, &host::Attach { mode: Some(0o606), ..consumer(7, owner) }, 0)
                .unwrap_err(),
            connection.call::<_, host::Nothing>(host::SET_GOAL, &set, &[]).unwrap_err(),
        ];
        for refused in refusals {
            assert!(matches!(refused, Error::Refused(Refusal::NoSuchGroup { .. })), "{refused}");
        }
        // The group is indistinguishable from a missing one.
        let refusals = [7, 8]
            .map(|n| attach(&mut connection, &consumer(n, owner), 0).unwrap_err().to_string());
        assert_eq!(refusals[0].replace("group 7", "group 8"), refusals[1]);
        // The user's own group with this number is another group.
        attach(&mut connection, &producer(7), 0).unwrap();
        assert_eq!(groups(&mut connection).iter().map(|g| g.owner).collect::<Vec<_>>(), [other]);
    });
    let opened = host::Attach { mode: Some(0o604), ..consumer(7, owner) };
    attach(&mut owners, &opened, 0).unwrap();
    as_user(other, || {
        let mut connection = daemon.connect();
        assert_eq!(groups(&mut connection).iter().map(|g| g.owner).collect::<Vec<_>>(), [owner]);
        attach(&mut connection, &consumer(7, owner), 0).unwrap();
        let refused = connection.call::<_, host::Nothing>(host::SET_GOAL, &set, &[]).unwrap_err();
        assert!(matches!(refused, Error::Refused(Refusal::NotAllowed { .. })), "{refused}");
    });
    // Root has all permissions.
    daemon.connect().call::<_, host::Nothing>(host::SET_GOAL, &set, &[]).unwrap();
}

#[test]
fn daemon_of_a_user_serves_only_that_user() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = dir.path().join("socket");
    let daemon =
        Daemon::open(Options::new(path.clone(), Scope::User, dir.path().join("state"))).unwrap();
    // Even if the file of the socket is accessible.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
    let (stopped, stop) = std::io::pipe().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || daemon.run(stopped.as_fd()).unwrap());
        let ask = || {
            let mut connection = Connection::to(&path).unwrap().unwrap();
            connection.call::<_, host::Status>(host::STATUS, &host::Nothing {}, &[])
        };
        let refused = as_user(60_001, ask);
        let allowed = ask();
        drop(stop);
        assert!(matches!(refused, Err(Error::Refused(Refusal::NotAllowed { .. }))), "{refused:?}");
        assert!(allowed.is_ok());
    });
}

#[test]
fn claims_are_shared_and_end_with_their_process() {
    let daemon = Running::new();
    let mut connection = daemon.connect();
    let (confirmed, mut changes) = daemon
        .connect()
        .watch::<_, host::ClaimChange>(host::WATCH_CLAIMS, &host::Nothing {})
        .unwrap();
    assert_eq!(confirmed.claim, 0);
    // Claims are on all CPUs of the host, also where this process may use only some of them.
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    let online: corebeat_machine::CpuSet = online.trim().parse().unwrap();
    let invade =
        |claim, max| host::Invade { claim, min: 1, max, numa: None, within: None, prefer: None };
    let mut ask =
        |asked| connection.call::<_, host::Invaded>(host::INVADE, &asked, &[]).map(|(got, _)| got);
    let first = ask(invade(None, 1024)).unwrap();
    assert!(!first.cpus.is_empty() && first.cpus.len() <= online.len());
    assert!(matches!(ask(invade(None, 0)), Err(Error::Refused(Refusal::BadRequest { .. }))));
    assert!(matches!(ask(invade(Some(999), 1)), Err(Error::Refused(Refusal::NoSuchClaim { .. }))));
    let listed = |connection: &mut Connection| {
        connection
            .call::<_, host::Claims>(host::LIST_CLAIMS, &host::Nothing {}, &[])
            .unwrap()
            .0
            .claims
    };
    if first.cpus.len() > 1 {
        // A second request: the first claim must shrink, does not, and is shrunk after the
        // deadline.
        let second = ask(invade(None, 1)).unwrap();
        if second.cpus.is_empty() {
            let mut asked = None;
            until(|| {
                asked = changes.try_next().unwrap();
                asked.is_some()
            });
            let asked: host::ClaimChange = asked.unwrap();
            assert_eq!((asked.claim, asked.deadline_ms.is_some()), (first.claim, true));
            until(|| {
                listed(&mut daemon.connect())
                    .iter()
                    .any(|c| c.claim == second.claim && c.cpus.len() == 1)
            });
        }
    }
    let retreat = host::Retreat { claim: first.claim, to: None, cpus: None };
    let left = connection.call::<_, host::Retreated>(host::RETREAT, &retreat, &[]).unwrap().0;
    assert!(left.cpus.is_empty());
    assert!(listed(&mut connection).iter().all(|c| c.claim != first.claim));
    drop((connection, changes));
    // This process has no claims at a further query.
    until(|| listed(&mut daemon.connect()).is_empty());
}

#[test]
fn claim_beyond_the_limit_of_a_process_is_refused() {
    let daemon = Running::new();
    let mut connection = daemon.connect();
    let asked =
        host::Invade { claim: None, min: 1, max: 1, numa: None, within: None, prefer: None };
    let mut ask = || connection.call::<_, host::Invaded>(host::INVADE, &asked, &[]);
    let outcomes: Vec<_> = (0..17).map(|_| ask()).collect();
    assert!(outcomes[..16].iter().all(Result::is_ok));
    assert!(matches!(outcomes[16], Err(Error::Refused(Refusal::TooMany { limit: 16, .. }))));
}

#[test]
fn garbage_ends_only_its_own_connection() {
    let daemon = Running::new();
    let mut good = daemon.connect();
    attach(&mut good, &producer(1), 9).unwrap();
    for garbage in
        [&b"hello\0"[..], b"\0", b"{\"method\":3}\0", b"GET / HTTP/1.1\r\n\r\n\0", b"\xff\xfe\0"]
    {
        let mut raw = daemon.raw();
        raw.write_all(garbage).unwrap();
        assert_eq!(raw.read(&mut [0; 64]).unwrap(), 0, "it hangs up");
    }
    // A message without an end, up to the limit and beyond.
    let mut raw = daemon.raw();
    let sent = raw.write_all(&vec![b' '; MESSAGE_BYTES_MAX + 100_000]);
    assert!(
        sent.is_err()
            || raw
                .read(&mut [0; 64])
                .map_or_else(|e| e.kind() == ErrorKind::ConnectionReset, |n| n == 0)
    );
    assert_eq!(groups(&mut good).len(), 1);
    until(|| daemon.metric("corebeat_connections_dropped_total") == 6);
}

#[test]
fn incomplete_message_does_not_delay_other_clients() {
    let daemon = Running::new();
    let mut halves: Vec<UnixStream> = (0..20).map(|_| daemon.raw()).collect();
    for half in &mut halves {
        half.write_all(b"{\"method\":\"io.corebeat.Host.Sta").unwrap();
    }
    assert!(daemon.groups().is_empty());
    for half in &mut halves {
        half.write_all(b"tus\"}\0").unwrap();
        let mut answer = [0; 14];
        half.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"{\"parameters\":");
    }
}

#[test]
fn client_that_does_not_read_is_not_read_from_and_delays_no_other() {
    let daemon = Running::new();
    let mut deaf = daemon.raw();
    let mut good = daemon.connect();
    let call = b"{\"method\":\"org.varlink.service.GetInterfaceDescription\",\"parameters\":{\"interface\":\"io.corebeat.Host\"}}\0";
    // The answers exceed the buffers of the socket and of the daemon.
    let calls = 400;
    deaf.write_all(&call.repeat(calls)).unwrap();
    for _ in 0..50 {
        assert!(groups(&mut good).is_empty());
    }
    // After it reads, it receives all answers.
    let mut answers = 0;
    while answers < calls {
        let mut bytes = [0; 4096];
        let count = deaf.read(&mut bytes).unwrap();
        assert!(count > 0, "given up after {answers} answers");
        answers += bytes[..count].iter().filter(|b| **b == 0).count();
    }
}

#[test]
fn too_many_descriptors_end_only_their_connection() {
    let daemon = Running::new();
    let mut raw = daemon.raw();
    let files = [(); 8].map(|()| memfd_create("x", MemfdFlags::CLOEXEC).unwrap());
    let fds = files.each_ref().map(AsFd::as_fd);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    sendmsg(&raw, &[IoSlice::new(b"{")], &mut control, SendFlags::empty()).unwrap();
    assert_eq!(raw.read(&mut [0; 64]).unwrap(), 0, "it hangs up");
    assert!(daemon.groups().is_empty());
}

#[test]
fn connection_beyond_the_limit_is_refused_and_others_continue() {
    let daemon = Running::new();
    let mut good = daemon.connect();
    let mut others: Vec<Connection> = (0..63).map(|_| daemon.connect()).collect();
    // After this answer, all connections are accepted.
    assert!(groups(others.last_mut().unwrap()).is_empty());
    let refused = daemon.connect().call::<_, host::Status>(host::STATUS, &host::Nothing {}, &[]);
    assert!(
        matches!(refused, Err(Error::Refused(Refusal::TooMany { limit: 64, .. }))),
        "{refused:?}"
    );
    assert!(groups(&mut good).is_empty());
    others.pop();
    until(|| {
        daemon.connect().call::<_, host::Status>(host::STATUS, &host::Nothing {}, &[]).is_ok()
    });
}

#[test]
fn calls_beyond_the_limit_are_refused_and_accepted_later() {
    let daemon = Running::new();
    let mut hasty = daemon.raw();
    let calls = 800;
    let mut sender = hasty.try_clone().unwrap();
    let received = thread::scope(|scope| {
        scope.spawn(move || {
            (0..calls).for_each(|_| {
                sender.write_all(b"{\"method\":\"io.corebeat.Host.ListGroups\"}\0").unwrap()
            });
        });
        let mut received = Vec::new();
        while received.iter().filter(|b| **b == 0).count() < calls {
            let mut bytes = [0; 4096];
            let count = hasty.read(&mut bytes).unwrap();
            assert!(count > 0);
            received.extend_from_slice(&bytes[..count]);
        }
        received
    });
    let answers: Vec<&[u8]> = received.split(|b| *b == 0).filter(|a| !a.is_empty()).collect();
    let too_many = answers.iter().filter(|a| a.windows(7).any(|w| w == b"TooMany")).count();
    assert!(too_many > 0 && too_many < calls / 2, "{too_many}");
    assert!(daemon.metric("corebeat_calls_refused_total") >= too_many as u64);
}

#[test]
fn idle_readers_of_the_metrics_do_not_keep_others_from_the_page() {
    let daemon = Running::new();
    let place = daemon.dir.path().join("metrics");
    assert_eq!(std::fs::metadata(&place).unwrap().permissions().mode() & 0o777, 0o600);
    let mut idle: Vec<UnixStream> = Vec::new();
    for _ in 0..100 {
        idle.push(UnixStream::connect(&place).unwrap());
        // The page is served beside any number of idle readers.
        assert_eq!(daemon.metric("corebeat_connections_total"), 0);
    }
    // The number of readers is bounded: the oldest were closed, and the newest are still served.
    assert_eq!(idle[0].read(&mut [0; 8]).unwrap_or(0), 0);
    let newest = idle.last_mut().unwrap();
    newest.write_all(b"DELETE /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    newest.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 405 "));
}
