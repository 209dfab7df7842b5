//! `corebeat top` from the command line and on a terminal.

use crate::{
    COREBEAT, Running, assert_refused, command, command_of, corebeat, is_root, stderr, stdout,
    until,
};
use rustix::process::{
    Pid, Resource, Signal, getpriority_process, getrlimit, ioctl_tiocsctty, kill_process, setsid,
};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Action, Winsize, tcflow, tcsetwinsize};
use serde_json::Value;
use std::fs::{File, read_to_string};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, scope};

fn json(args: &[&str]) -> Value {
    crate::json(&corebeat(&[&["top"], args].concat()))
}

/// A process with known threads: this binary with the test `threads_of_a_child` only.
struct Threads(Running);

impl Threads {
    fn start() -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["top::threads_of_a_child", "--exact", "--nocapture"])
            .env("COREBEAT_TOP_CHILD", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = Running::start(&mut command);
        let mut lines =
            BufReader::new(child.0.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains("ready")), "the child has not started");
        Threads(child)
    }

    fn pid(&self) -> i32 {
        self.0.0.id() as i32
    }

    /// Name of the child process, which the child sets.
    fn name(&self) -> String {
        format!("cb-top{}", self.pid())
    }
}

/// Not a test: the work of the child process, until its standard input is closed.
#[test]
fn threads_of_a_child() {
    if std::env::var_os("COREBEAT_TOP_CHILD").is_none() {
        return;
    }
    std::fs::write("/proc/self/comm", format!("cb-top{}", std::process::id())).unwrap();
    let (lock, stop) = (&Mutex::new(()), &AtomicBool::new(false));
    let (mut never, _writer) = std::io::pipe().unwrap();
    let _held = lock.lock();
    scope(|threads| {
        let named = |name: &str| Builder::new().name(name.into());
        let compute = || {
            let mut sum = 1u64;
            while !stop.load(Ordering::Relaxed) {
                (0..1000).for_each(|i| sum = std::hint::black_box(sum.wrapping_mul(i | 1)));
            }
        };
        named("compute").spawn_scoped(threads, compute).unwrap();
        named("lock").spawn_scoped(threads, || drop(lock.lock())).unwrap();
        named("park").spawn_scoped(threads, std::thread::park).unwrap();
        named("sleep").spawn_scoped(threads, move || never.read(&mut [0])).unwrap();
        println!("ready");
        let _ = std::io::stdin().read(&mut [0]);
        stop.store(true, Ordering::Relaxed);
        std::process::exit(0);
    });
}

fn thread<'a>(program: &'a Value, name: &str) -> &'a Value {
    let threads = program["threads"].as_array().unwrap();
    threads.iter().find(|t| t["name"] == name).unwrap_or_else(|| panic!("no {name} in {program}"))
}

#[test]
fn top_json_contains_the_shares_of_each_thread() {
    let child = Threads::start();
    let seen = json(&["--once", "--json", &child.pid().to_string()]);
    assert_eq!(seen["programs"].as_array().unwrap().len(), 1);
    let program = &seen["programs"][0];
    assert_eq!(program["pid"], child.pid());
    assert_eq!(program["name"], child.name());
    let share = |name, share| thread(program, name)["shares"][share].as_f64();
    assert!(
        share("compute", "user").unwrap() + share("compute", "wait").unwrap() > 0.5,
        "{program}"
    );
    assert!(program["cpus_busy"].as_f64().unwrap() > 0.0);
    // The kernel may not permit Corebeat to read the cause of sleep.
    if let Some(lock) = share("lock", "lock") {
        assert!(lock > 0.9 && share("park", "park").unwrap() > 0.9, "{program}");
        assert!(share("sleep", "sleep").unwrap() > 0.9, "{program}");
    }
    let uid = rustix::process::geteuid().as_raw().to_string();
    let user = Command::new("id").args(["-un"]).output().unwrap();
    let user = if user.status.success() { stdout(&user).trim().to_owned() } else { uid };
    for row in [program, thread(program, "compute")] {
        assert_eq!(row["user"], user);
        assert!(row["command"].as_str().unwrap().ends_with("--exact --nocapture"), "{row}");
    }
    assert!(seen["span_s"].as_f64().unwrap() >= 1.0);
    assert!(seen["cpus"].as_u64().unwrap() >= 1);
}

#[test]
fn top_finds_a_process_by_name_and_lists_its_threads() {
    let child = Threads::start();
    for tables in [&[][..], &["--tables"]] {
        let done =
            corebeat(&[&["top", "--once", "--period", "200", &child.name()], tables].concat());
        let text = stdout(&done);
        assert_eq!(done.status.code(), Some(0));
        let named = |mark: &str, name: &str| {
            text.lines().filter(|l| l.contains(&format!(" {mark} {name}"))).count()
        };
        assert_eq!(named("▾", &child.name()), 1, "{text}");
        for name in ["compute", "lock", "park", "sleep"] {
            assert_eq!(named(" ", name), 1, "{name}: {text}");
        }
        assert!(!text.contains('\u{1b}'), "colours without a terminal");
        // Not every host permits tables, and this program may be built without them.
        let is_noted = text.contains("note: threads are read from /proc: ");
        assert!(!is_noted || !tables.is_empty(), "{text}");
        assert_eq!(stderr(&done), "");
    }
}

#[test]
fn top_without_names_shows_each_process_of_the_user() {
    let child = Threads::start();
    // Standard output is not a terminal: this implies --once.
    let seen = json(&["--json", "--period", "300"]);
    let programs = seen["programs"].as_array().unwrap();
    let program = programs.iter().find(|p| p["pid"] == child.pid()).unwrap();
    thread(program, "compute");
    assert!(program["threads"].as_array().unwrap().iter().all(|t| t["pid"] == child.pid()));
    let text = stdout(&corebeat(&["top", "--period", "300"]));
    assert!(text.contains(&format!("▸ {}", child.name())), "{text}");
}

/// How many descriptors `top` needs depends on the host and its processes: each limit must lead to
/// an error that names the limit, to a note, or to the whole report.
#[test]
fn top_without_free_descriptors_notes_that_processes_are_missing() {
    let folder = tempfile::tempdir().unwrap();
    let child = Threads::start();
    let pid = child.pid().to_string();
    let enough = getrlimit(Resource::Nofile).current.unwrap_or(1 << 16);
    for subject in ["", &pid] {
        let mut noted = 0;
        let mut whole = 0;
        for limit in (6..30).chain([enough]) {
            let limited =
                format!("ulimit -n {limit}; exec \"$0\" top --json --period 50 {subject}");
            let mut shell = command_of(Path::new("/bin/sh"), folder.path(), &["-c", &limited]);
            let done = shell.arg(COREBEAT).output().unwrap();
            if !done.status.success() {
                assert!(stderr(&done).contains("ulimit -n"), "{limit}: {}", stderr(&done));
                continue;
            }
            assert!(!stdout(&done).contains("-0.0"), "{}", stdout(&done));
            let seen = crate::json(&done);
            if seen["notes"].to_string().contains("open files is too small") {
                noted += 1;
                continue;
            }
            let mut programs = seen["programs"].as_array().unwrap().iter();
            let program = programs.find(|p| p["pid"] == child.pid());
            assert!(program.is_some_and(|p| !p["threads"][4].is_null()), "{limit}: {seen}");
            whole += 1;
        }
        assert!(noted > 0 && whole > 0, "{noted} notes, {whole} whole reports");
    }
}

#[test]
fn top_of_a_missing_process_fails_with_one_line() {
    let mut ended = Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    let cases = [
        (ended.id().to_string(), "does not exist"),
        ("2147483647".into(), "does not exist"),
        ("0".into(), "process 0 does not exist"),
        ("99999999999999999999".into(), "no process named"),
        ("+1".into(), "no process named '+1'"),
        ("no-such-program".into(), "no process named 'no-such-program'"),
        (String::new(), "no process named ''"),
    ];
    for (subject, expected) in cases {
        let done = corebeat(&["top", "--once", &subject]);
        assert_refused(&done, 2, expected);
        assert!(done.stdout.is_empty());
    }
    for period in ["0", "-1", "x", "1e9"] {
        assert_eq!(corebeat(&["top", "--period", period]).status.code(), Some(2));
    }
}

#[test]
fn top_of_a_zombie_process_is_an_error() {
    let mut ended = Command::new("sh").args(["-c", "exit"]).stdout(Stdio::piped()).spawn().unwrap();
    // The pipe closes when the process ends.
    let _ = ended.stdout.take().unwrap().read_to_end(&mut Vec::new());
    let pid = ended.id().to_string();
    let top = || corebeat(&["top", "--once", "--period", "50", &pid]);
    until(|| top().status.code() == Some(2));
    assert_refused(&top(), 2, "does not exist");
    ended.wait().unwrap();
}

/// A pseudoterminal: the end of the test, and the end of the programs.
fn terminal() -> (File, File) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = openpt(flags).unwrap();
    unlockpt(&ours).unwrap();
    let theirs = ioctl_tiocgptpeer(&ours, flags).unwrap();
    let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&theirs, size).unwrap();
    (ours.into(), theirs.into())
}

/// A program on a pseudoterminal, such as `corebeat top`.
pub(crate) struct OnTerminal {
    child: Running,
    terminal: File,
    /// Output so far.
    text: String,
}

impl OnTerminal {
    fn start(args: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        OnTerminal::of(&mut command(folder.path(), &[&["top"], args].concat()))
    }

    pub(crate) fn of(top: &mut Command) -> Self {
        let (ours, theirs) = terminal();
        OnTerminal::on(ours, &theirs, top)
    }

    fn on(ours: File, theirs: &File, top: &mut Command) -> Self {
        let copy = || Stdio::from(theirs.try_clone().unwrap());
        let child = Running::start(top.stdin(copy()).stdout(copy()).stderr(copy()));
        OnTerminal { child, terminal: ours, text: String::new() }
    }

    /// Reads until the output contains a text.
    pub(crate) fn until(&mut self, wanted: &str) {
        let mut bytes = [0; 4096];
        while !self.text.contains(wanted) {
            match self.terminal.read(&mut bytes) {
                Ok(n) if n > 0 => self.text += &String::from_utf8_lossy(&bytes[..n]),
                _ => panic!("'{wanted}' is not in {:?}", self.text),
            }
        }
    }

    /// Presses keys, and reads until the new output contains a text.
    fn press(&mut self, keys: &str, wanted: &str) {
        self.text.clear();
        self.terminal.write_all(keys.as_bytes()).unwrap();
        self.until(wanted);
    }

    /// Closes the terminal, as a lost connection does, and waits for the end.
    pub(crate) fn hang_up(self) -> ExitStatus {
        let OnTerminal { mut child, terminal, .. } = self;
        drop(terminal);
        child.0.wait().unwrap()
    }

    fn end(mut self) -> ExitStatus {
        let mut status = None;
        until(|| {
            status = self.child.0.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

/// Makes a process the leader of a session with its standard input as the terminal.
pub(crate) fn take_terminal(command: &mut Command) {
    let take = || {
        setsid()?;
        Ok(ioctl_tiocsctty(std::io::stdin())?)
    };
    // SAFETY: the hook makes two system calls.
    unsafe { command.pre_exec(take) };
}

const ENTER: &str = "\u{1b}[?1049h";
const LEAVE: &str = "\u{1b}[?1049l";

#[test]
fn top_on_a_terminal_shows_threads_until_q_quits() {
    let child = Threads::start();
    let mut top = OnTerminal::start(&[&child.pid().to_string()]);
    top.until(ENTER);
    top.until("compute");
    top.terminal.write_all(b"?").unwrap();
    // One word: the terminal library skips unchanged cells, such as spaces.
    top.until("previous");
    top.terminal.write_all(b"?q").unwrap();
    top.until(LEAVE);
    assert_eq!(top.end().code(), Some(0));
}

#[test]
fn top_draws_a_part_of_a_terminal_of_any_size() {
    let mut top = OnTerminal::start(&["--period", "100"]);
    for size in [24, u16::MAX, 24, u16::MAX] {
        let size = Winsize { ws_row: size, ws_col: size, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&top.terminal, size).unwrap();
        // A new size redraws the whole view.
        top.press("", "CPUs:");
    }
    for rows in [1, 2] {
        let mut tiny = OnTerminal::start(&["--filter", "no such text"]);
        let size = Winsize { ws_row: rows, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&tiny.terminal, size).unwrap();
        tiny.until("CPUs:");
        tiny.press("q", LEAVE);
        assert_eq!(tiny.end().code(), Some(0));
    }
    top.press("q", LEAVE);
    assert_eq!(top.end().code(), Some(0));
}

#[test]
fn top_restores_the_terminal_when_a_signal_ends_it() {
    for signal in crate::ending_signals() {
        let mut top = OnTerminal::start(&[]);
        top.until(ENTER);
        crate::send(&top.child.0, signal);
        top.until(LEAVE);
        assert_eq!(top.end().signal(), Some(signal));
    }
}

#[test]
fn top_continues_on_a_terminal_that_reports_no_place_of_the_cursor() {
    let mut top = OnTerminal::start(&[]);
    top.until("CPUs:");
    let pid = top.child.0.id();
    crate::send(&top.child.0, Signal::TSTP.as_raw());
    top.until(LEAVE);
    until(|| read_to_string(format!("/proc/{pid}/status")).unwrap().contains("State:\tT"));
    top.text.clear();
    crate::send(&top.child.0, Signal::CONT.as_raw());
    top.until(ENTER);
    top.until("CPUs:");
    top.press("q", LEAVE);
    assert_eq!(top.end().code(), Some(0));
}

/// Whether a process has a handler for a signal.
fn catches(pid: i32, signal: Signal) -> bool {
    let text = read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = text.lines().find_map(|line| line.strip_prefix("SigCgt:\t")).unwrap_or("0");
    u64::from_str_radix(mask, 16).unwrap() & (1 << (signal.as_raw() - 1)) != 0
}

#[test]
fn top_in_the_background_waits_and_ends_by_a_signal() {
    let folder = tempfile::tempdir().unwrap();
    // A shell with job control runs the view in a process group of its own.
    let script = "set -m; \"$0\" top & echo \"view $! started\"; read line";
    let mut shell = command_of(Path::new("/bin/sh"), folder.path(), &["-c", script, COREBEAT]);
    take_terminal(&mut shell);
    let mut shell = OnTerminal::of(&mut shell);
    shell.until(" started");
    let (_, pid) = shell.text.split_once("view ").unwrap();
    let pid: i32 = pid.split(' ').next().unwrap().parse().unwrap();
    let status = || read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let signals = [Signal::TERM, Signal::CONT];
    // The view catches both signals before it uses the terminal.
    until(|| signals.iter().all(|signal| catches(pid, *signal)));
    for signal in signals {
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }
    until(|| status().is_empty() || status().contains("State:\tZ"));
    shell.press("\n", "\n");
    assert!(!shell.text.contains(ENTER), "the view changed the terminal: {}", shell.text);
    assert_eq!(shell.end().code(), Some(0));
}

#[test]
fn top_ends_when_its_terminal_is_closed() {
    let mut top = OnTerminal::start(&[]);
    top.until("CPUs:");
    top.terminal = File::open("/dev/null").unwrap();
    assert_eq!(top.end().signal(), Some(Signal::HUP.as_raw()));
}

#[test]
fn top_that_ignores_the_signal_of_a_closed_terminal_ends_by_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut top = command(folder.path(), &["top"]);
    take_terminal(&mut top);
    let ignore = || {
        // SAFETY: this action has no handler.
        unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
        Ok(())
    };
    // SAFETY: the hook makes one system call.
    unsafe { top.pre_exec(ignore) };
    let mut top = OnTerminal::of(&mut top);
    top.until("CPUs:");
    // The kernel continues the process when the terminal is closed, so the view takes the terminal
    // again.
    crate::signal(&top.child.0, Signal::STOP);
    let status = format!("/proc/{}/status", top.child.0.id());
    until(|| read_to_string(&status).unwrap().contains("State:\tT"));
    assert_eq!(top.hang_up().signal(), Some(Signal::HUP.as_raw()));
}

#[test]
fn top_on_a_terminal_that_accepts_no_text_ends_by_a_signal() {
    // Before the first frame, and after it.
    for is_drawn in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let (ours, theirs) = terminal();
        let stop = || tcflow(&theirs, Action::OOff).unwrap();
        if !is_drawn {
            stop();
        }
        let mut command = command(folder.path(), &["top", "--period", "50"]);
        let mut top = OnTerminal::on(ours, &theirs, &mut command);
        if is_drawn {
            top.until("CPUs:");
            stop();
        } else {
            until(|| catches(top.child.0.id() as i32, Signal::CONT));
        }
        crate::signal(&top.child.0, Signal::TERM);
        assert_eq!(top.end().signal(), Some(Signal::TERM.as_raw()));
    }
}

#[test]
fn top_filters_rows_by_text_and_processes_by_user() {
    let child = Threads::start();
    let names = |args: &[&str]| -> Vec<String> {
        let seen = json(&[args, &["--json", "--period", "50"]].concat());
        let programs = seen["programs"].as_array().unwrap().iter();
        programs.map(|p| p["name"].as_str().unwrap().to_owned()).collect()
    };
    let name = child.name();
    assert_eq!(names(&["--filter", &name.to_uppercase()]), [&*name]);
    assert!(names(&["--filter", "threads_of_a_child"]).contains(&name), "its command line");
    // Other tests filter by other texts, which are in the command lines of their processes.
    assert!(names(&["--filter", "no process has this text"]).is_empty());
    let uid = rustix::process::geteuid().as_raw();
    assert!(names(&["--user", &uid.to_string()]).contains(&name));
    assert!(!names(&["--user", "60001"]).contains(&name));
    let seen = json(&["--json", "--period", "50", "--filter", "comp", &child.pid().to_string()]);
    let threads = seen["programs"][0]["threads"].as_array().unwrap();
    // The command line of the child contains no such text.
    assert_eq!((threads.len(), &threads[0]["name"]), (1, &Value::from("compute")));
    let text = stdout(&corebeat(&["top", "--period", "50", "--filter", &name]));
    assert!(text.contains("COMMAND") && text.contains(&format!("▸ {name}")), "{text}");
    assert_refused(&corebeat(&["top", "--once", "--user", "no such user"]), 2, "there is no user");
    let both = corebeat(&["top", "--once", "--user", "root", &name]);
    assert_eq!(both.status.code(), Some(2));
}

fn nice(tid: i32) -> i32 {
    getpriority_process(Pid::from_raw(tid)).unwrap()
}

#[test]
fn top_sets_the_nice_value_of_all_threads_and_ends_the_process() {
    let mut child = Threads::start();
    let mut top = OnTerminal::start(&[&child.pid().to_string()]);
    top.until("compute");
    let threads = std::fs::read_dir(format!("/proc/{}/task", child.pid())).unwrap();
    let threads: Vec<i32> =
        threads.map(|t| t.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    assert!(threads.len() > 3, "{threads:?}");
    top.terminal.write_all(b"\x1b[Br19\r").unwrap();
    until(|| threads.iter().all(|&tid| nice(tid) == 19));
    top.terminal.write_all(b"k\ry").unwrap();
    let mut status = None;
    until(|| {
        // Not `wait`, which closes the standard input of the child, and so ends the child.
        status = child.0.0.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().signal(), Some(Signal::TERM.as_raw()));
    top.terminal.write_all(b"q").unwrap();
    assert_eq!(top.end().code(), Some(0));
}

#[test]
fn top_reports_a_process_that_ends_before_the_confirmation() {
    let mut child = Threads::start();
    let mut top = OnTerminal::start(&[&child.pid().to_string()]);
    top.until("compute");
    // The terminal library skips cells that have the right character already. No character of these
    // words is at the place of the same character in the line before.
    top.press("\u{1b}[Bk\r", "SIGTERM");
    crate::signal(&child.0.0, Signal::KILL);
    child.0.0.wait().unwrap();
    top.press("y", "ended");
}

#[test]
fn top_without_privileges_changes_no_process_of_another_user() {
    if !is_root() {
        println!("left out: only root can start a process of another user");
        return;
    }
    let mut child = Threads::start();
    let before = nice(child.pid());
    let (folder, nobody) = (tempfile::tempdir().unwrap(), 60_001);
    std::os::unix::fs::chown(folder.path(), Some(nobody), Some(nobody)).unwrap();
    // The executable may be in a folder that only root can read.
    let copy = folder.path().join("corebeat");
    std::fs::copy(COREBEAT, &copy).unwrap();
    let pid = child.pid().to_string();
    let mut top = command_of(&copy, folder.path(), &["top", &pid]);
    let mut top = OnTerminal::of(top.uid(nobody).gid(nobody));
    top.until("compute");
    // The terminal library skips cells that have the right character already. No character of these
    // words is at the place of the same character in the line before.
    top.press("\u{1b}[Bk\r", "SIGTERM");
    top.press("y", "permission");
    top.press("r", "value");
    top.press("19\r", "permiss");
    assert!(child.0.0.try_wait().unwrap().is_none());
    assert_eq!(nice(child.pid()), before);
}
