//! `corebeat daemon` as a process of its own: what it does to a program that beats, and what is left of it.

mod place;

use corebeat_heartbeat::{Goal, Group};
use place::{listens, until};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

/// Tells the test below to be a program that beats.
const BEATS: &str = "COREBEAT_TEST_BEATS";
const COREBEAT: &str = env!("CARGO_BIN_EXE_corebeat");

/// No test: a program that beats much faster than its goal, until its standard input ends.
#[test]
fn program_that_beats() {
    if std::env::var_os(BEATS).is_none() {
        return;
    }
    thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let number = std::env::var(BEATS).unwrap().parse().unwrap();
    let producer = Group::new(number).produce().unwrap();
    // It gets another nice value for that, and a control group to be held.
    producer.set_goal(Goal { rate_max: Some(1.0), hold: true, ..Goal::default() }).unwrap();
    loop {
        producer.beat(1000);
        // So it finds a daemon that was started again.
        let _ = producer.status();
        thread::sleep(Duration::from_millis(1));
    }
}

/// A process that is ended when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A place for a daemon.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Starts a daemon, and waits until it listens.
    fn daemon(&self) -> Running {
        let daemon = self.daemon_under(&[]);
        until(|| listens(&self.path("socket")));
        // The page comes after the socket.
        until(|| self.metric_of_living("corebeat_programs").is_some());
        daemon
    }

    /// Starts a daemon by this command.
    fn daemon_under(&self, command: &[&str]) -> Running {
        let metrics = format!("unix:{}", self.path("metrics").display());
        let words: Vec<&str> = command.iter().copied().chain([COREBEAT]).collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        command.args(["daemon", "--period", "10", "--observe", "20", "--metrics", &metrics, "--socket"]);
        command.arg(self.path("socket")).env("COREBEAT_STATE_DIR", self.path("state"));
        Running(command.spawn().unwrap())
    }

    fn program(&self, group: u32) -> Running {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "program_that_beats"]).env(BEATS, group.to_string()).stdin(Stdio::piped());
        command.env("COREBEAT_SOCKET", self.path("socket")).stdout(Stdio::null());
        Running(command.spawn().unwrap())
    }

    fn metric(&self, name: &str) -> f64 {
        self.metric_of_living(name).unwrap()
    }

    /// `None` if the daemon has ended.
    fn metric_of_living(&self, name: &str) -> Option<f64> {
        let mut stream = UnixStream::connect(self.path("metrics")).ok()?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").ok()?;
        let mut page = String::new();
        stream.read_to_string(&mut page).ok()?;
        let line = page.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
        line?.parse().ok()
    }

    fn journals(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("state")).into_iter().flatten().flatten();
        let names = entries.map(|e| e.file_name().to_string_lossy().into_owned());
        names.filter(|name| name.contains(".journal")).collect()
    }

    fn restore(&self) {
        let mut command = Command::new(COREBEAT);
        assert!(
            command.arg("restore").env("COREBEAT_STATE_DIR", self.path("state")).status().unwrap().success()
        );
    }
}

/// What a daemon may change of a program: control groups, nice values, classes and CPUs of all threads.
fn state(program: &Running) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", program.0.id())).unwrap().flatten();
    let mut all: Vec<String> = tasks.map(|e| state_of(&e.path())).collect();
    all.dedup();
    all
}

/// What a program has that this thread starts.
fn state_at_start() -> Vec<String> {
    vec![state_of(Path::new("/proc/thread-self"))]
}

fn state_of(thread: &Path) -> String {
    let group = fs::read_to_string(thread.join("cgroup")).unwrap_or_default();
    let stat = fs::read_to_string(thread.join("stat")).unwrap_or_default();
    let after_name: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let (nice, class) = (after_name.get(16), after_name.get(38));
    let status = fs::read_to_string(thread.join("status")).unwrap_or_default();
    let cpus = status.lines().find(|l| l.starts_with("Cpus_allowed_list")).unwrap_or_default().to_owned();
    format!("{group} {nice:?} {class:?} {cpus}")
}

fn is_held(program: &Running) -> bool {
    state(program).iter().any(|s| s.contains("/corebeat-"))
}

fn nices(state: &[String]) -> Vec<Option<&str>> {
    state.iter().map(|s| s.split("Some(").nth(1)).collect()
}

/// Control groups that the daemon with this number has made.
fn groups_of(daemon: u32) -> Vec<PathBuf> {
    let ours = format!("corebeat-{daemon}-");
    let is_ours = |e: &fs::DirEntry| e.file_name().to_string_lossy().starts_with(&ours);
    let roots =
        ["/sys/fs/cgroup", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/unified"];
    let entries = roots.iter().filter_map(|root| fs::read_dir(root).ok()).flat_map(|dir| dir.flatten());
    entries.filter(is_ours).map(|e| e.path()).collect()
}

fn may_steer() -> bool {
    rustix::process::geteuid().is_root()
}

/// A daemon that has begun to steer a program, and the program as it was before.
fn steered(place: &Place) -> (Running, Running, Vec<String>) {
    let daemon = place.daemon();
    let program = place.program(7);
    let before = state_at_start();
    until(|| is_held(&program));
    assert!(nices(&before) != nices(&state(&program)));
    assert!(!place.journals().is_empty());
    (daemon, program, before)
}

#[test]
fn daemon_that_is_killed_leaves_nothing_after_restore() {
    if !may_steer() {
        return;
    }
    let place = Place::new();
    let (daemon, program, before) = steered(&place);
    drop(daemon);
    place.restore();
    assert_eq!(state(&program), before);
    assert!(place.journals().is_empty());
}

#[test]
fn daemon_that_is_killed_leaves_nothing_after_the_next_start() {
    if !may_steer() {
        return;
    }
    let place = Place::new();
    let (daemon, program, _) = steered(&place);
    // Names of its control group and its journal.
    let (group, journal) = (format!("corebeat-{}-", daemon.0.id()), format!("{}-", daemon.0.id()));
    assert!(state(&program).iter().any(|s| s.contains(&group)));
    drop(daemon);
    assert!(place.journals().iter().any(|name| name.starts_with(&journal)));
    // The program may go on with the next one, which holds it by a control group of its own.
    let _next = place.daemon();
    until(|| !state(&program).iter().any(|s| s.contains(&group)));
    until(|| !place.journals().iter().any(|name| name.starts_with(&journal)));
}

#[test]
fn program_that_asks_is_steered_by_the_next_daemon() {
    if !may_steer() {
        return;
    }
    let place = Place::new();
    let (daemon, program, before) = steered(&place);
    drop(daemon);
    let _next = place.daemon();
    // With the goal that it had: it has set none again.
    let goal = "corebeat_group_rate_max{owner=\"0\",group=\"7\"}";
    until(|| place.metric_of_living(goal) == Some(1.0));
    until(|| place.metric("corebeat_actions_done_total") >= 1.0);
    assert_ne!(state(&program), before);
}

#[test]
fn daemon_that_is_asked_to_end_leaves_nothing() {
    use rustix::process::Signal;
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        if !may_steer() {
            return;
        }
        let place = Place::new();
        let (mut daemon, program, before) = steered(&place);
        let pid = rustix::process::Pid::from_raw(daemon.0.id() as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
        assert!(daemon.0.wait().unwrap().success());
        assert_eq!(state(&program), before);
        assert!(place.journals().is_empty());
        assert!(!place.path("socket").exists());
    }
}

#[test]
fn program_that_ends_is_let_go() {
    if !may_steer() {
        return;
    }
    let place = Place::new();
    let (daemon, program, _) = steered(&place);
    drop(program);
    until(|| place.metric("corebeat_programs") == 0.0);
    assert_eq!(groups_of(daemon.0.id()), Vec::<PathBuf>::new());
}

/// A daemon's whole life: one program stays, another one comes and goes, and the end is asked for. Or a part of it.
fn live(place: &Place, daemon: &mut Running, stays: &mut Option<Running>) {
    let mut lives = || daemon.0.try_wait().unwrap().is_none();
    let wait = |lives: &mut dyn FnMut() -> bool, right: &dyn Fn() -> bool| until(|| right() || !lives());
    let metric = |name: &str| place.metric_of_living(name);
    wait(&mut lives, &|| listens(&place.path("socket")));
    *stays = Some(place.program(7));
    wait(&mut lives, &|| stays.as_ref().is_some_and(is_held));
    let goes = place.program(8);
    wait(&mut lives, &|| metric("corebeat_programs") == Some(2.0));
    drop(goes);
    wait(&mut lives, &|| metric("corebeat_programs") == Some(1.0));
    let pid = rustix::process::Pid::from_raw(daemon.0.id() as i32).unwrap();
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    let _ = daemon.0.wait();
}

/// Kills the daemon at system calls that are spread over its life: 600 in `cargo xtask soak`, else a few.
#[test]
fn daemon_that_is_killed_at_any_system_call_leaves_nothing_after_restore() {
    let traces = Command::new("strace").args(["-D", "-o", "/dev/null", "true"]).status();
    if !may_steer() || !traces.is_ok_and(|status| status.success()) {
        println!("left out: it wants root and strace");
        return;
    }
    let kills = if std::env::var_os("COREBEAT_SOAK").is_some() { 600 } else { 8 };
    let place = Place::new();
    let trace = place.path("trace");
    let mut daemon = place.daemon_under(&["strace", "-D", "-o", trace.to_str().unwrap()]);
    live(&place, &mut daemon, &mut None);
    until(|| fs::read_to_string(&trace).is_ok_and(|t| t.contains("+++ exited")));
    let trace = fs::read_to_string(trace).unwrap();
    let names = trace.lines().filter_map(|l| l.split_once('(')).map(|(name, _)| name);
    let names: Vec<&str> =
        names.filter(|n| n.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')).collect();
    // Before it has its lock it has done nothing.
    let first = names.iter().position(|name| *name == "flock").expect("the socket's lock");
    let mut killed = 0;
    for kill in 0..kills {
        let at = first + kill * (names.len() - first) / kills;
        let nth = names[..=at].iter().filter(|name| **name == names[at]).count();
        let inject = format!("inject={}:signal=SIGKILL:when={nth}", names[at]);
        let place = Place::new();
        let mut stays = None;
        let mut daemon = place.daemon_under(&["strace", "-D", "-o", "/dev/null", "-e", &inject]);
        live(&place, &mut daemon, &mut stays);
        use std::os::unix::process::ExitStatusExt;
        killed +=
            usize::from(daemon.0.try_wait().unwrap().is_some_and(|s| s.signal() == Some(libc::SIGKILL)));
        place.restore();
        let stays = stays.expect("it was started");
        assert_eq!(state(&stays), state_at_start(), "{inject}");
        assert!(place.journals().is_empty(), "{inject}: {:?}", place.journals());
        assert_eq!(groups_of(daemon.0.id()), Vec::<PathBuf>::new(), "{inject}");
    }
    println!("killed {killed} times, of {kills}, over {} system calls", names.len() - first);
    assert!(killed * 2 > kills, "only {killed} of {kills} came so far");
}

#[test]
fn daemon_without_a_word_listens_where_programs_look_for_it() {
    let place = Place::new();
    let mut command = Command::new(COREBEAT);
    command.arg("daemon").env("COREBEAT_SOCKET", place.path("socket"));
    let _daemon = Running(command.env("COREBEAT_STATE_DIR", place.path("state")).spawn().unwrap());
    until(|| listens(&place.path("socket")));
}

/// Somebody without privileges can do nothing for a program here: no nice values, no control groups.
#[test]
fn daemon_that_can_do_nothing_says_so() {
    use std::os::unix::process::CommandExt;
    if !may_steer() {
        println!("left out: it wants root, to be somebody else");
        return;
    }
    let (place, nobody) = (Place::new(), 60_001);
    std::os::unix::fs::chown(place.0.path(), Some(nobody), Some(nobody)).unwrap();
    // The executables may lie where only root can read.
    let own = std::env::current_exe().unwrap();
    for (from, to) in [(Path::new(COREBEAT), "corebeat"), (&own, "program")] {
        assert!(Command::new("cp").arg(from).arg(place.path(to)).status().unwrap().success());
    }
    let command = |name: &str| {
        let mut command = Command::new(place.path(name));
        command.uid(nobody).gid(nobody).env("COREBEAT_SOCKET", place.path("socket"));
        command.env("COREBEAT_STATE_DIR", place.path("state")).stdin(Stdio::piped()).stdout(Stdio::null());
        command
    };
    let daemon = command("corebeat").args(["daemon", "--period", "10", "--observe", "20"]).spawn();
    let _daemon = Running(daemon.unwrap());
    until(|| listens(&place.path("socket")));
    let status = || {
        let output = command("corebeat").args(["daemon", "status"]).stdout(Stdio::piped()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(status().contains("steering     yes\n"), "it has not tried yet: {}", status());
    let program = command("program").args(["--exact", "program_that_beats"]).env(BEATS, "7").spawn();
    let _program = Running(program.unwrap());
    until(|| status().contains("steering     no\n"));
    until(|| status().contains("nobody is held below"));
    let notes: Vec<String> = status().lines().filter(|l| l.starts_with("note")).map(str::to_owned).collect();
    assert!(notes.len() == 2 && notes[0].contains("no program is given another share"), "{notes:#?}");
    assert!(notes[0].contains("CAP_SYS_NICE") && notes[0].matches("run as").count() == 1, "{notes:#?}");
}

#[test]
fn second_daemon_at_the_same_place_says_so() {
    let place = Place::new();
    let _daemon = place.daemon();
    let mut command = Command::new(COREBEAT);
    command
        .args(["daemon", "--socket"])
        .arg(place.path("socket"))
        .env("COREBEAT_STATE_DIR", place.path("state"));
    let second = command.output().unwrap();
    assert_eq!(second.status.code(), Some(125));
    let told = String::from_utf8(second.stderr).unwrap();
    assert!(told.contains("a daemon has"), "{told}");
    assert_eq!(told.lines().count(), 1, "{told}");
}

#[test]
fn page_that_somebody_listens_on_is_left_to_him() {
    let place = Place::new();
    let _daemon = place.daemon();
    let mut second = Command::new(COREBEAT);
    second.args(["daemon", "--socket"]).arg(place.path("second"));
    second.args(["--metrics", &format!("unix:{}", place.path("metrics").display())]);
    let second = second.env("COREBEAT_STATE_DIR", place.path("state")).output().unwrap();
    assert_eq!(second.status.code(), Some(125));
    let told = String::from_utf8(second.stderr).unwrap();
    assert!(told.contains("somebody listens there already") && told.lines().count() == 1, "{told}");
    assert!(place.metric_of_living("corebeat_programs").is_some(), "the first one's page is still there");
    assert!(!place.path("second").exists());
}

#[test]
fn mistake_on_the_command_line_is_told_in_one_line() {
    for args in [["--metrics", "0.0.0.0:1"], ["--metrics", "0"], ["--period", "0"], ["--scope", "world"]] {
        let output = Command::new(COREBEAT).arg("daemon").args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert_eq!(String::from_utf8(output.stderr).unwrap().lines().count(), 1, "{args:?}");
    }
}
