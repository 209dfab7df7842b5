//! `corebeat daemon` as a process: its actions on a program with heartbeats, and their restoration.

#[cfg(feature = "all-commands")]
mod history;
#[cfg(feature = "all-commands")]
mod otlp;
mod web;

use crate::{
    COREBEAT, Running, assert_refused, command, command_of, ending_signals, groups_of, left,
    listens, send, signal, until,
};
use crate::{is_root, stdout};
use corebeat_heartbeat::{Goal, Group};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

/// Environment variable that turns the test below into a program with heartbeats.
const BEATS: &str = "COREBEAT_TEST_BEATS";

/// Name of the test below.
const PROGRAM: &str = "daemon::program_with_heartbeats";

/// Not a test: a program that emits heartbeats much faster than its goal, until its standard input
/// ends.
#[test]
fn program_with_heartbeats() {
    if std::env::var_os(BEATS).is_none() {
        return;
    }
    thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let number = std::env::var(BEATS).unwrap().parse().unwrap();
    let producer = Group::new(number).produce().unwrap();
    // The daemon sets its nice value, and limits it by a control group.
    producer.set_goal(Goal { rate_max: Some(1.0), hold: true, ..Goal::default() }).unwrap();
    loop {
        producer.beat(1000);
        // A call attaches the program to a restarted daemon.
        let _ = producer.status();
        thread::sleep(Duration::from_millis(1));
    }
}

/// Options of a daemon that reacts fast.
const FAST: [&str; 4] = ["--period", "10", "--observe", "20"];

/// Folders and sockets of a daemon.
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
        self.daemon_with(&FAST)
    }

    /// Starts a daemon with these options, and waits until it listens.
    fn daemon_with(&self, options: &[&str]) -> Running {
        let daemon = self.daemon_under(&[], options);
        until(|| listens(&self.path("socket")));
        // The metrics page is created after the socket.
        until(|| self.metric_of_living("corebeat_programs").is_some());
        daemon
    }

    /// Starts a daemon by a command.
    fn daemon_under(&self, command: &[&str], options: &[&str]) -> Running {
        let words: Vec<&str> = command.iter().copied().chain([COREBEAT]).collect();
        let mut command = command_of(Path::new(words[0]), self.0.path(), &words[1..]);
        command.args(["daemon", "--socket", "socket"]).args(options);
        command.arg("--metrics").arg(format!("unix:{}", self.path("metrics").display()));
        Running::start(&mut command)
    }

    fn program(&self, group: u32) -> Running {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", PROGRAM]).env(BEATS, group.to_string()).stdin(Stdio::piped());
        command.env("COREBEAT_SOCKET", self.path("socket")).stdout(Stdio::null());
        Running::start(&mut command)
    }

    fn metric(&self, name: &str) -> f64 {
        self.metric_of_living(name).unwrap()
    }

    /// The page of the metrics. `None` if the daemon has ended.
    fn metrics(&self) -> Option<String> {
        let mut stream = UnixStream::connect(self.path("metrics")).ok()?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").ok()?;
        let mut page = String::new();
        stream.read_to_string(&mut page).ok()?;
        Some(page)
    }

    /// `None` if the daemon has ended.
    fn metric_of_living(&self, name: &str) -> Option<f64> {
        let page = self.metrics()?;
        let line = page.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
        line?.parse().ok()
    }

    fn journals(&self) -> Vec<String> {
        let names = left(self.0.path()).into_iter().map(|path| path.to_string_lossy().into_owned());
        names.filter(|name| name.contains(".journal")).collect()
    }

    fn restore(&self) {
        assert!(command(self.0.path(), &["restore"]).status().unwrap().success());
    }
}

impl Drop for Place {
    /// Undoes the changes of daemons that were killed, so that a test leaves no control group. The
    /// daemons and their programs, which a test starts later, have ended.
    fn drop(&mut self) {
        let restored = command(self.0.path(), &["restore"]).status();
        if !restored.is_ok_and(|status| status.success()) {
            println!("'corebeat restore' failed in {}", self.0.path().display());
        }
    }
}

/// State of a program that a daemon may change: control groups, and nice values, classes and CPUs
/// of all threads.
fn state(program: &Running) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", program.0.id())).unwrap().flatten();
    let mut all: Vec<String> = tasks.map(|e| state_of(&e.path())).collect();
    all.dedup();
    all
}

/// State of a new program of this thread.
fn state_at_start() -> Vec<String> {
    vec![state_of(Path::new("/proc/thread-self"))]
}

fn state_of(thread: &Path) -> String {
    let group = fs::read_to_string(thread.join("cgroup")).unwrap_or_default();
    let stat = fs::read_to_string(thread.join("stat")).unwrap_or_default();
    let after_name: Vec<&str> =
        stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let (nice, class) = (after_name.get(16), after_name.get(38));
    let status = fs::read_to_string(thread.join("status")).unwrap_or_default();
    let cpus =
        status.lines().find(|l| l.starts_with("Cpus_allowed_list")).unwrap_or_default().to_owned();
    format!("{group} {nice:?} {class:?} {cpus}")
}

fn is_held(program: &Running) -> bool {
    state(program).iter().any(|s| s.contains("/corebeat-"))
}

fn nices(state: &[String]) -> Vec<Option<&str>> {
    state.iter().map(|s| s.split("Some(").nth(1)).collect()
}

/// A daemon that steers a program, and the original state of the program.
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
    if !is_root() {
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
fn killed_daemon_leaves_nothing_after_the_next_start() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    let (daemon, program, _) = steered(&place);
    // Names of the daemon's control group and journal.
    let (group, journal) = (format!("corebeat-{}-", daemon.0.id()), format!("/{}-", daemon.0.id()));
    assert!(state(&program).iter().any(|s| s.contains(&group)));
    drop(daemon);
    assert!(place.journals().iter().any(|name| name.contains(&journal)));
    // The next daemon may limit the program by its own control group.
    let _next = place.daemon();
    until(|| !state(&program).iter().any(|s| s.contains(&group)));
    until(|| !place.journals().iter().any(|name| name.contains(&journal)));
}

#[test]
fn program_is_steered_by_the_next_daemon_after_a_call() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    let (daemon, program, before) = steered(&place);
    drop(daemon);
    let _next = place.daemon();
    // The program has not set its goal again.
    let goal = "corebeat_group_rate_max{owner=\"0\",group=\"7\"}";
    until(|| place.metric_of_living(goal) == Some(1.0));
    until(|| place.metric("corebeat_actions_done_total") >= 1.0);
    assert_ne!(state(&program), before);
}

#[test]
fn daemon_that_a_signal_ends_leaves_nothing() {
    for end in ending_signals() {
        let place = Place::new();
        let mut daemon = place.daemon();
        send(&daemon.0, end);
        assert!(daemon.0.wait().unwrap().success(), "signal {end}");
        assert!(!place.path("socket").exists() && !place.path("socket.lock").exists());
    }
    for end in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::ALARM] {
        if !is_root() {
            return;
        }
        let place = Place::new();
        let (mut daemon, program, before) = steered(&place);
        signal(&daemon.0, end);
        assert!(daemon.0.wait().unwrap().success());
        assert_eq!(state(&program), before);
        assert!(place.journals().is_empty());
        assert!(!place.path("socket").exists());
    }
}

#[test]
fn changes_of_a_program_end_with_the_program() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    let (daemon, program, _) = steered(&place);
    drop(program);
    until(|| place.metric("corebeat_programs") == 0.0);
    assert_eq!(groups_of(daemon.0.id()), Vec::<PathBuf>::new());
}

/// The whole life of a daemon, or a part of it: one program stays, another one starts and ends, and
/// a signal requests the end.
fn live(place: &Place, daemon: &mut Running, stays: &mut Option<Running>) {
    let mut lives = || daemon.0.try_wait().unwrap().is_none();
    let wait =
        |lives: &mut dyn FnMut() -> bool, right: &dyn Fn() -> bool| until(|| right() || !lives());
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

/// Kills the daemon at system calls distributed over its life: 600 in `cargo xtask soak`, else a
/// few.
#[test]
fn daemon_that_is_killed_at_any_system_call_leaves_nothing_after_restore() {
    let traces = Command::new("strace").args(["-D", "-o", "/dev/null", "true"]).status();
    if !is_root() || !traces.is_ok_and(|status| status.success()) {
        println!("left out: requires root and strace");
        return;
    }
    let kills = if std::env::var_os("COREBEAT_SOAK").is_some() { 600 } else { 8 };
    let place = Place::new();
    let trace = place.path("trace");
    let mut daemon = place.daemon_under(&["strace", "-D", "-o", trace.to_str().unwrap()], &FAST);
    live(&place, &mut daemon, &mut None);
    until(|| fs::read_to_string(&trace).is_ok_and(|t| t.contains("+++ exited")));
    let trace = fs::read_to_string(trace).unwrap();
    let names = trace.lines().filter_map(|l| l.split_once('(')).map(|(name, _)| name);
    let names: Vec<&str> =
        names.filter(|n| n.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')).collect();
    // Before the daemon has its lock, it has changed nothing.
    let first = names.iter().position(|name| *name == "flock").expect("the socket's lock");
    let mut killed = 0;
    for kill in 0..kills {
        let at = first + kill * (names.len() - first) / kills;
        let nth = names[..=at].iter().filter(|name| **name == names[at]).count();
        let inject = format!("inject={}:signal=SIGKILL:when={nth}", names[at]);
        let place = Place::new();
        let mut stays = None;
        let mut daemon =
            place.daemon_under(&["strace", "-D", "-o", "/dev/null", "-e", &inject], &FAST);
        live(&place, &mut daemon, &mut stays);
        killed += usize::from(
            daemon.0.try_wait().unwrap().is_some_and(|s| s.signal() == Some(libc::SIGKILL)),
        );
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
fn only_the_folder_of_the_default_socket_is_created_and_removed() {
    let place = Place::new();
    let named = place.path("new/socket");
    for mut command in [
        command(place.0.path(), &["daemon", "--socket", named.to_str().unwrap()]),
        command(place.0.path(), &["daemon"]),
    ] {
        let mut refused = Running::start(command.env("COREBEAT_SOCKET", &named));
        until(|| refused.0.try_wait().unwrap().is_some());
        assert_eq!(refused.0.wait().unwrap().code(), Some(2));
        assert!(!place.path("new").exists());
    }
    let mut command = command(place.0.path(), &["daemon", "--scope", "user"]);
    command.env_remove("COREBEAT_SOCKET").env("XDG_RUNTIME_DIR", place.0.path());
    let mut daemon = Running::start(&mut command);
    until(|| listens(&place.path("corebeat/socket")));
    signal(&daemon.0, Signal::TERM);
    assert!(daemon.0.wait().unwrap().success());
    assert!(!place.path("corebeat").exists());
}

#[test]
fn daemon_without_options_listens_at_the_default_socket() {
    let place = Place::new();
    let mut command = command(place.0.path(), &["daemon"]);
    let _daemon = Running::start(command.env("COREBEAT_SOCKET", place.path("socket")));
    until(|| listens(&place.path("socket")));
}

/// A user without privileges can set neither nice values nor control groups here.
#[test]
fn daemon_without_privileges_reports_its_limitations() {
    if !is_root() {
        println!("left out: requires root, to run as another user");
        return;
    }
    let (place, nobody) = (Place::new(), 60_001);
    std::os::unix::fs::chown(place.0.path(), Some(nobody), Some(nobody)).unwrap();
    // The executables may be in a folder that only root can read.
    let own = std::env::current_exe().unwrap();
    for (from, to) in [(Path::new(COREBEAT), "corebeat"), (&own, "program")] {
        assert!(Command::new("cp").arg(from).arg(place.path(to)).status().unwrap().success());
    }
    let command = |name: &str| {
        let mut command = command_of(&place.path(name), place.0.path(), &[]);
        command.uid(nobody).gid(nobody).env("COREBEAT_SOCKET", place.path("socket"));
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        command
    };
    let _daemon =
        Running::start(command("corebeat").args(["daemon", "--period", "10", "--observe", "20"]));
    until(|| listens(&place.path("socket")));
    let status = || {
        let mut status = command("corebeat");
        stdout(&status.args(["daemon", "status"]).stdout(Stdio::piped()).output().unwrap())
    };
    assert!(status().contains("steering     yes\n"), "the daemon has not acted yet: {}", status());
    let _program = Running::start(command("program").args(["--exact", PROGRAM]).env(BEATS, "7"));
    until(|| status().contains("steering     no\n"));
    until(|| status().contains("maximum rates cannot be enforced"));
    let notes: Vec<String> =
        status().lines().filter(|l| l.starts_with("note")).map(str::to_owned).collect();
    assert!(notes.len() == 2 && notes[0].contains("CPU shares cannot be set"), "{notes:#?}");
    assert!(
        notes[0].contains("CAP_SYS_NICE") && notes[0].matches("run as").count() == 1,
        "{notes:#?}"
    );
}

/// Copies of Corebeat under names that no other process has.
struct Copies(tempfile::TempDir);

impl Copies {
    fn new() -> Copies {
        Copies(tempfile::tempdir().unwrap())
    }

    fn name(&self, number: u32) -> String {
        // The kernel keeps 15 bytes of the name.
        let folder = self.0.path().file_name().unwrap().to_str().unwrap();
        format!("cb{number}{folder}").chars().take(15).collect()
    }

    /// Starts a program, by a copy, whose threads compute on one CPU.
    fn start(&self, number: u32, threads: u32, prefix: &[&str]) -> Running {
        let copy = self.0.path().join(self.name(number));
        assert!(Command::new("cp").arg(COREBEAT).arg(&copy).status().unwrap().success());
        let words: Vec<&str> = prefix.iter().copied().chain([copy.to_str().unwrap()]).collect();
        let mut command = Command::new("taskset");
        let cpu = corebeat_linux::topology().cpus()[0].id.0.to_string();
        command.args(["-c", &cpu]).args(words).current_dir(self.0.path());
        command.args(["workload", "swaption", "--scale", "16", "--threads"]);
        Running::start(command.arg(threads.to_string()).stdout(Stdio::null()))
    }
}

/// The programs that a daemon steers by a policy: names and changes. `None` if the daemon does not
/// answer in time.
fn steered_by(policy: &str, place: &Place) -> Option<Vec<(String, Vec<String>)>> {
    let mut status = command(place.0.path(), &["daemon", "status", "--json"]);
    let status = status.env("COREBEAT_SOCKET", place.path("socket")).output().unwrap();
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).ok()?;
    let steered = status["steered"].as_array().unwrap().iter();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let of_policy = steered.filter(|program| program["policy"] == policy);
    let changes = |program: &serde_json::Value| program["changes"].as_array().unwrap().clone();
    Some(of_policy.map(|p| (text(&p["name"]), changes(p).iter().map(text).collect())).collect())
}

#[test]
fn program_that_uses_the_cpu_is_steered_and_left_as_it_was() {
    if !is_root() || corebeat_linux::ShortSlice::request().is_none() {
        println!(
            "left out: requires root, to read why threads sleep, and time slices (Linux 6.12)"
        );
        return;
    }
    // The program runs on one CPU by its own choice.
    let without_cpus = |state: Vec<String>| -> BTreeSet<String> {
        state.iter().filter_map(|s| s.split("Cpus_allowed").next()).map(str::to_owned).collect()
    };
    let copies = Copies::new();
    let name = copies.name(1);
    for is_killed in [false, true] {
        let place = Place::new();
        let mut daemon = place.daemon_under(&[], &["--policy", "auto", "--include", &name]);
        let program = copies.start(1, 8, &[]);
        // No client wakes the daemon.
        until(|| !place.journals().is_empty());
        until(|| match steered_by("auto", &place).as_deref() {
            Some([(steered, changes)]) => *steered == name && !changes.is_empty(),
            _ => false,
        });
        if is_killed {
            drop(daemon);
            place.restore();
        } else {
            signal(&daemon.0, Signal::TERM);
            assert!(daemon.0.wait().unwrap().success());
        }
        assert_eq!(without_cpus(state(&program)), without_cpus(state_at_start()));
        assert!(place.journals().is_empty());
    }
}

#[test]
fn program_that_ends_is_steered_no_more() {
    let (place, copies) = (Place::new(), Copies::new());
    let options = ["--policy", "auto", "--threshold", "0.05", "--include", &copies.name(1)];
    let _daemon = place.daemon_with(&options);
    let program = copies.start(1, 1, &[]);
    until(|| steered_by("auto", &place).is_some_and(|steered| steered.len() == 1));
    drop(program);
    until(|| steered_by("auto", &place).is_some_and(|steered| steered.is_empty()));
    until(|| place.metric("corebeat_programs") == 0.0);
}

#[test]
fn program_with_a_goal_is_steered_by_fair_beside_auto() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    let mut daemon =
        place.daemon_with(&[&FAST[..], &["--policy", "auto", "--threshold", "8000"]].concat());
    let program = place.program(7);
    until(|| is_held(&program));
    until(|| match steered_by("fair", &place).as_deref() {
        Some([(_, changes)]) => changes.iter().any(|change| change.starts_with("at most")),
        _ => false,
    });
    assert!(steered_by("auto", &place).is_none_or(|steered| steered.is_empty()));
    // A killed daemon would leave the control group of the program.
    signal(&daemon.0, Signal::TERM);
    assert!(daemon.0.wait().unwrap().success());
}

/// The fourth program is steered, so a search found the other three, which started before it.
#[test]
fn excluded_programs_and_those_of_other_corebeats_are_left_alone() {
    let (place, copies) = (Place::new(), Copies::new());
    let names = [1, 2, 3, 4].map(|number| copies.name(number));
    let mut args = vec!["--policy", "auto", "--threshold", "0.05", "--exclude", &names[0]];
    names.iter().for_each(|name| args.extend(["--include", name.as_str()]));
    let excluded = copies.start(1, 1, &[]);
    let under_run = copies.start(2, 1, &[COREBEAT, "run", "--policy", "none", "--"]);
    let attached = copies.start(3, 1, &[]);
    let mut run = command(place.0.path(), &["run", "--policy", "none", "--interval", "1"]);
    let mut run =
        Running::start(run.args(["-p", &attached.0.id().to_string()]).stderr(Stdio::piped()));
    // A line appears once the process is observed.
    let mut line = String::new();
    BufReader::new(run.0.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("CPUs busy"), "{line}");
    let _daemon = place.daemon_with(&args);
    let fourth = copies.start(4, 1, &[]);
    let mut steered = vec![];
    until(|| {
        steered = steered_by("auto", &place).unwrap_or_default();
        !steered.is_empty()
    });
    let steered: Vec<String> = steered.into_iter().map(|(name, _)| name).collect();
    assert_eq!(steered, names[3..]);
    drop((excluded, under_run, attached, fourth));
}

#[test]
fn second_daemon_at_the_same_socket_fails_with_one_line() {
    let place = Place::new();
    let _daemon = place.daemon();
    let second = command(place.0.path(), &["daemon", "--socket", "socket"]).output().unwrap();
    assert_refused(&second, 125, "a daemon owns");
}

#[test]
fn metrics_socket_of_another_process_is_kept() {
    let place = Place::new();
    let _daemon = place.daemon();
    let metrics = format!("unix:{}", place.path("metrics").display());
    let args = ["daemon", "--socket", "second", "--metrics", &metrics];
    let second = command(place.0.path(), &args).output().unwrap();
    assert_refused(&second, 125, "another process listens there");
    assert!(place.metric_of_living("corebeat_programs").is_some(), "the first page is kept");
    assert!(!place.path("second").exists());
}

#[test]
fn workload_beside_a_stopped_daemon_does_not_run() {
    let place = Place::new();
    let daemon = place.daemon();
    signal(&daemon.0, Signal::STOP);
    let args = ["workload", "swaption", "--threads", "4", "--scale", "0.0002", "--group", "7"];
    let mut workload = command(place.0.path(), &args);
    let done = workload.env("COREBEAT_SOCKET", place.path("socket")).output().unwrap();
    assert_refused(&done, 125, "the workload did not run");
    assert!(done.stdout.is_empty(), "{}", stdout(&done));
}

#[test]
fn mistake_on_the_command_line_is_reported_in_one_line() {
    for args in
        [["--metrics", "0.0.0.0:1"], ["--metrics", "0"], ["--period", "0"], ["--scope", "world"]]
    {
        assert_refused(&crate::corebeat(&["daemon", args[0], args[1]]), 2, "");
    }
    for (option, value) in [("--include", ""), ("--threshold", "0"), ("--knobs", "team")] {
        let args = ["daemon", "--policy", "auto", option, value];
        assert_refused(&crate::corebeat(&args), 2, option);
    }
    let refused = crate::corebeat(&["daemon", "--exclude", "x"]);
    assert_refused(&refused, 2, "apply to the policy auto");
    for command in [&["daemon", "--all"][..], &["run", "--all", "--", "true"]] {
        assert_refused(&crate::corebeat(command), 2, "add --kernel");
    }
    let place = Place::new();
    let daemon = |args: &[&str]| command(place.0.path(), &[&["daemon"], args].concat()).output();
    let missing = daemon(&["--socket", "none/deep/socket"]).unwrap();
    assert_refused(&missing, 2, "cannot listen on none/deep/socket");
    let missing = daemon(&["--socket", "socket", "--metrics", "unix:/no/such/folder"]).unwrap();
    assert_refused(&missing, 2, "cannot serve metrics on unix:/no/such/folder");
}

#[test]
fn daemon_ignores_the_end_of_a_terminal_under_nohup() {
    let place = Place::new();
    let daemon = place.daemon_under(&["/bin/sh", "-c", "trap '' HUP; exec \"$@\"", "sh"], &FAST);
    until(|| listens(&place.path("socket")));
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.0.id())).unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
    assert!(ignored & (1 << (libc::SIGHUP - 1)) != 0, "{status}");
}
