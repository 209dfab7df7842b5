//! The cost of watching a program: CPU time of the watcher, as a share of one core.

use crate::Bench;
use crate::apart::own_path;
use crate::child::Running;
use crate::load::READY;
use crate::round::{Measured, Subject, interleave};
use crate::row::{Better, Series, Table};
use crate::session::Session;
use crate::tool::{PERF, PIDSTAT, TOP, Tool};
use std::cell::RefCell;
use std::process::Command;
use std::time::{Duration, Instant};

pub(crate) const BENCH: Bench = Bench {
    name: "linux.watch",
    summary: "CPU time of a watcher of many threads, once a second, in % of one core",
    peers: &["top -H -b -d 1", "pidstat -t 1", "perf trace -s"],
    tools: &[TOP, PIDSTAT, PERF],
    cases: |_| THREADS.map(case).into(),
    run,
};

const THREADS: [usize; 2] = [64, 1024];

/// Limit for the start of a load or a watcher.
const START_MAX: Duration = Duration::from_secs(30);

fn case(threads: usize) -> String {
    format!("{threads} threads")
}

/// The time spans of a measurement.
#[derive(Clone, Copy)]
struct Span {
    /// Time in which the watcher finds all threads.
    warm_up: Duration,
    measured: Duration,
    /// Whether the watcher must find all threads. In a short trial on a busy machine, it may miss
    /// some.
    must_find_all: bool,
}

impl Span {
    fn of(session: &Session) -> Span {
        let (warm_up, measured) = if session.quick { (300, 1_000) } else { (2_000, 10_000) };
        let [warm_up, measured] = [warm_up, measured].map(Duration::from_millis);
        Span { warm_up, measured, must_find_all: !session.quick }
    }

    /// The limit for a load and for a watcher.
    fn all(self) -> Duration {
        self.warm_up + self.measured + 3 * START_MAX
    }

    /// CPU time of a watcher over the measured time, in % of one core.
    fn measure(self, watcher: &Running) -> Result<f64, String> {
        std::thread::sleep(self.warm_up);
        let (begin, before) = (Instant::now(), watcher.cpu_s()?);
        std::thread::sleep(self.measured);
        let used = watcher.cpu_s()? - before;
        Ok(used / begin.elapsed().as_secs_f64() * 100.0)
    }
}

fn run(session: &Session) -> Result<(), String> {
    let corebeat = session.corebeat()?.to_string_lossy().into_owned();
    let span = Span::of(session);
    let peers: Vec<Tool> =
        BENCH.tools.iter().copied().filter(|&t| session.has(t) && works(session, t)).collect();
    let has_tables = cfg!(feature = "kernel") && has_tables(session, &corebeat);
    for threads in THREADS.into_iter().filter(|&t| session.selects(&case(t))) {
        let load = [
            own_path()?,
            "load".into(),
            format!("--threads={threads}"),
            format!("--seconds={}", span.all().as_secs()),
        ];
        let own = RefCell::new(Vec::new());
        let by_corebeat = |options: &[&str]| {
            let mut command = Command::new(&corebeat);
            command
                .args(["run", "--policy", "none", "--report", "json"])
                .args(options)
                .arg("--")
                .args(&load);
            watched_by_corebeat(command, threads, span)
        };
        let mut subjects = vec![
            Subject::new("corebeat", || {
                let (outside, inside) = by_corebeat(&["--period", "1000"])?;
                own.borrow_mut().push(inside);
                Ok(Measured::Value(outside))
            }),
            Subject::new("corebeat, default period", || Ok(Measured::Value(by_corebeat(&[])?.0))),
        ];
        if has_tables {
            subjects.push(Subject::new("corebeat --tables", || {
                Ok(Measured::Value(by_corebeat(&["--tables", "--period", "1000"])?.0))
            }));
        }
        for tool in &peers {
            let load = &load;
            subjects.push(Subject::new(tool.program, move || {
                let usage = watched_by(tool.program, load, threads, span)?;
                Ok(Measured::Value(usage))
            }));
        }
        let rounds = interleave(session, &case(threads), "% of one core", subjects);
        let mut series = rounds.series;
        if session.selects_subject("corebeat") {
            series.push(Series {
                subject: "corebeat, by its own figure".into(),
                values: own.take(),
                cut_runs: 0,
            });
        }
        session.emit(&Table {
            bench: BENCH.name,
            case: case(threads),
            unit: "% of one core",
            better: Better::Lower,
            series,
            line_ns: rounds.line_ns,
        });
    }
    Ok(())
}

/// Whether a peer runs on this machine: perf requires privileges.
fn works(session: &Session, tool: Tool) -> bool {
    if tool != PERF {
        return true;
    }
    let mut command = Command::new(tool.program);
    command.args(["trace", "-s", "true"]);
    let tried = Running::start(command, false)
        .and_then(|r| r.wait(START_MAX))
        .and_then(|ended| ended.check());
    if let Err(why) = &tried {
        session.skip(format!("perf trace fails ({why}); run as root"));
    }
    tried.is_ok()
}

/// Whether the kernel counts threads in tables: Corebeat reports why it reads files instead.
fn has_tables(session: &Session, corebeat: &str) -> bool {
    let mut command = Command::new(corebeat);
    command.args(["run", "--tables", "--policy", "none", "--report", "json", "--", "true"]);
    let tried = Running::start(command, false).and_then(|r| r.wait(START_MAX));
    let refusal = match tried {
        Ok(ended) => {
            ended.stderr.lines().find(|line| line.contains("read from /proc")).map(String::from)
        }
        Err(why) => Some(why),
    };
    let has = refusal.is_none();
    refusal.into_iter().for_each(|why| session.skip(format!("corebeat --tables: {why}")));
    has
}

/// Measures `corebeat run`, which starts the load. Returns the CPU time of Corebeat, read from
/// outside and from the report.
fn watched_by_corebeat(command: Command, threads: usize, span: Span) -> Result<(f64, f64), String> {
    let mut watcher = Running::start(command, true)?;
    watcher.wait_for(READY, START_MAX)?;
    let outside = span.measure(&watcher)?;
    watcher.close_input();
    let ended = watcher.wait(span.all())?;
    ended.check()?;
    let report =
        ended.stderr.lines().find_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let report = report.ok_or_else(|| {
        format!("the output of corebeat has no report: '{}'", ended.stderr.trim())
    })?;
    if span.must_find_all && report["threads_max"].as_u64().is_none_or(|seen| seen < threads as u64)
    {
        return Err(format!("corebeat observed {} of {threads} threads", report["threads_max"]));
    }
    let share = |used: f64, wall: f64| used / wall * 100.0;
    let inside = report["watching_cpu_s"].as_f64().zip(report["wall_s"].as_f64());
    Ok((
        outside,
        inside
            .map(|(used, wall)| share(used, wall))
            .ok_or("the report lacks watching_cpu_s or wall_s")?,
    ))
}

/// Measures a peer that watches the load. Returns the CPU time of the peer.
fn watched_by(peer: &str, load: &[String], threads: usize, span: Span) -> Result<f64, String> {
    let mut command = Command::new(&load[0]);
    command.args(&load[1..]);
    let load = Running::start(command, true)?;
    load.wait_for(READY, START_MAX)?;
    let pid = load.pid().to_string();
    let mut command = Command::new(peer);
    match peer {
        "top" => command.args(["-H", "-b", "-d", "1", "-p", &pid]),
        "pidstat" => command.args(["-t", "-p", &pid, "1"]),
        _ => command.args(["trace", "-s", "-p", &pid]),
    };
    let watcher = Running::start(command, false)?;
    if peer == "perf" {
        wait_until_attached(&watcher, threads)?;
    }
    let usage = span.measure(&watcher)?;
    // On a busy machine, the first output may come later than the end of the measurement.
    match peer {
        "top" => watcher.wait_for("COMMAND", START_MAX)?,
        "pidstat" => watcher.wait_for("Command", START_MAX)?,
        _ => {}
    }
    watcher.interrupt();
    let ended = watcher.wait(span.all())?;
    // The exit status after an interrupt differs between peers, so the output shows whether the
    // peer watched the threads.
    let lines = ended.stdout.lines().count() + ended.stderr.lines().count();
    // perf trace prints only threads that made a system call, which are few on a busy machine. The
    // function `wait_until_attached` has checked that perf opened files for all threads.
    let expected = if peer == "perf" { 1 } else { threads };
    if lines < expected {
        return Err(format!(
            "the watcher printed only {lines} lines for {threads} threads: {}",
            ended.stderr.trim()
        ));
    }
    Ok(usage)
}

/// Waits until perf has opened its files, at least one for each thread, and opens no more. The
/// start of perf takes seconds.
fn wait_until_attached(perf: &Running, threads: usize) -> Result<(), String> {
    let folder = format!("/proc/{}/fd", perf.pid());
    let begin = Instant::now();
    let (mut last, mut since) = (0, Instant::now());
    loop {
        let files = std::fs::read_dir(&folder).map_or(0, Iterator::count);
        if files != last {
            (last, since) = (files, Instant::now());
        }
        if files >= threads && since.elapsed() > Duration::from_millis(300) {
            return Ok(());
        }
        if perf.has_ended() {
            return Ok(()); // The measurement reports the output of perf.
        }
        if begin.elapsed() > START_MAX {
            return Err(format!(
                "perf opened only {files} files for {threads} threads within {START_MAX:?}"
            ));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
