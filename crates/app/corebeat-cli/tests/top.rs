//! `corebeat top`, as a user and as a script run it.

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, scope};
use std::time::{Duration, Instant};

/// Nothing here takes as long, on whatever machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn corebeat(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_corebeat")).args(args).stdin(Stdio::null()).output().unwrap()
}

fn json(args: &[&str]) -> Value {
    let done = corebeat(args);
    assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
    serde_json::from_slice(&done.stdout).unwrap()
}

/// A process with known threads: this binary, running `threads_of_a_child` only. Ends when it is dropped.
struct Threads(Child);

impl Threads {
    fn start() -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["threads_of_a_child", "--exact", "--nocapture"])
            .env("COREBEAT_TOP_CHILD", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains("ready")), "the child has not started");
        Threads(child)
    }

    fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    /// The name that the child gives itself.
    fn name(&self) -> String {
        format!("cb-top{}", self.pid())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Not a test by itself: what the child of the tests does, until its standard input is closed.
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
fn top_json_tells_what_each_thread_of_a_process_does() {
    let child = Threads::start();
    let seen = json(&["top", "--once", "--json", &child.pid().to_string()]);
    assert_eq!(seen["programs"].as_array().unwrap().len(), 1);
    let program = &seen["programs"][0];
    assert_eq!(program["pid"], child.pid());
    assert_eq!(program["name"], child.name());
    let share = |name, share| thread(program, name)["shares"][share].as_f64();
    assert!(share("compute", "user").unwrap() + share("compute", "latency").unwrap() > 0.5, "{program}");
    assert!(program["cpus_busy"].as_f64().unwrap() > 0.0);
    // Where the kernel does not tell what threads sleep in, it is not known.
    if let Some(lock) = share("lock", "lock") {
        assert!(lock > 0.9 && share("sleep", "sleep").unwrap() > 0.9, "{program}");
    }
    assert!(seen["span_s"].as_f64().unwrap() >= 1.0);
    assert!(seen["cpus"].as_u64().unwrap() >= 1);
}

#[test]
fn top_by_name_finds_the_process_and_lists_its_threads() {
    let child = Threads::start();
    let done = corebeat(&["top", "--once", "--period", "200", &child.name()]);
    let text = String::from_utf8(done.stdout).unwrap();
    assert_eq!(done.status.code(), Some(0));
    let named =
        |mark: &str, name: &str| text.lines().filter(|l| l.contains(&format!(" {mark} {name}"))).count();
    assert_eq!(named("▾", &child.name()), 1, "{text}");
    for name in ["compute", "lock", "sleep"] {
        assert_eq!(named(" ", name), 1, "{name}: {text}");
    }
    assert!(!text.contains('\u{1b}'), "no colours where there is no terminal");
}

#[test]
fn top_without_names_shows_own_processes_by_themselves() {
    let child = Threads::start();
    // Standard output is no terminal: --once goes without saying.
    let seen = json(&["top", "--json", "--period", "300"]);
    let programs = seen["programs"].as_array().unwrap();
    let program = programs.iter().find(|p| p["pid"] == child.pid()).unwrap();
    thread(program, "compute");
    assert!(program["threads"].as_array().unwrap().iter().all(|t| t["pid"] == child.pid()));
    let text = String::from_utf8(corebeat(&["top", "--period", "300"]).stdout).unwrap();
    assert!(text.contains(&format!("▸ {}", child.name())), "{text}");
}

#[test]
fn top_of_what_is_not_there_says_what_to_do() {
    let mut ended = Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    let cases = [
        (ended.id().to_string(), "no process"),
        ("2147483647".into(), "no process"),
        ("0".into(), "no process"),
        ("99999999999999999999".into(), "no process is named"),
        ("no-such-program".into(), "no process is named 'no-such-program'"),
        (String::new(), "no process is named ''"),
    ];
    for (subject, expected) in cases {
        let done = corebeat(&["top", "--once", &subject]);
        let text = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(2), "{subject}: {text}");
        assert!(text.starts_with("corebeat: ") && text.contains(expected), "{subject}: {text}");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(done.stdout.is_empty());
    }
    for period in ["0", "-1", "x", "1e9"] {
        assert_eq!(corebeat(&["top", "--period", period]).status.code(), Some(2));
    }
}

#[test]
fn top_of_a_process_that_has_ended_and_nobody_waited_for_is_an_error() {
    let mut ended = Command::new("sh").args(["-c", "exit"]).stdout(Stdio::piped()).spawn().unwrap();
    // Its end of the pipe closes when it ends.
    let _ = ended.stdout.take().unwrap().read_to_end(&mut Vec::new());
    let start = Instant::now();
    let error = loop {
        let done = corebeat(&["top", "--once", "--period", "50", &ended.id().to_string()]);
        if done.status.code() == Some(2) || start.elapsed() > PATIENCE {
            break String::from_utf8(done.stderr).unwrap();
        }
    };
    assert!(error.contains("there is no process"), "{error}");
    ended.wait().unwrap();
}

/// `corebeat top` on a terminal of its own.
struct OnTerminal {
    child: Child,
    terminal: File,
    /// All that it has written so far.
    text: String,
}

impl OnTerminal {
    fn start(args: &[&str]) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = openpt(flags).unwrap();
        unlockpt(&ours).unwrap();
        let theirs = ioctl_tiocgptpeer(&ours, flags).unwrap();
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&theirs, size).unwrap();
        let copy = || Stdio::from(theirs.try_clone().unwrap());
        let child = Command::new(env!("CARGO_BIN_EXE_corebeat"))
            .arg("top")
            .args(args)
            .stdin(copy())
            .stdout(copy())
            .stderr(copy())
            .spawn()
            .unwrap();
        OnTerminal { child, terminal: File::from(ours), text: String::new() }
    }

    /// Reads until a text has come.
    fn until(&mut self, wanted: &str) {
        let mut bytes = [0; 4096];
        while !self.text.contains(wanted) {
            match self.terminal.read(&mut bytes) {
                Ok(n) if n > 0 => self.text += &String::from_utf8_lossy(&bytes[..n]),
                _ => panic!("'{wanted}' is not in {:?}", self.text),
            }
        }
    }

    fn end(mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            if start.elapsed() > PATIENCE {
                let _ = self.child.kill();
                panic!("still there");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

const ENTER: &str = "\u{1b}[?1049h";
const LEAVE: &str = "\u{1b}[?1049l";

#[test]
fn top_on_a_terminal_shows_threads_until_q() {
    let child = Threads::start();
    let mut top = OnTerminal::start(&[&child.pid().to_string()]);
    top.until(ENTER);
    top.until("compute");
    top.terminal.write_all(b"?").unwrap();
    top.until("the next, the previous column");
    top.terminal.write_all(b"?q").unwrap();
    top.until(LEAVE);
    assert_eq!(top.end().code(), Some(0));
}

#[test]
fn top_on_a_terminal_gives_it_back_when_a_signal_ends_it() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        let mut top = OnTerminal::start(&["--period", "100"]);
        top.until("CPUs:");
        kill_process(Pid::from_child(&top.child), signal).unwrap();
        top.until(LEAVE);
        assert_eq!(top.end().signal(), Some(signal.as_raw()));
    }
}

#[test]
fn top_whose_terminal_goes_away_ends() {
    let mut top = OnTerminal::start(&[]);
    top.until("CPUs:");
    top.terminal = File::open("/dev/null").unwrap();
    assert_eq!(top.end().signal(), Some(Signal::HUP.as_raw()));
}
