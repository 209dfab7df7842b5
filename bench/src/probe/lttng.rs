//! Measures LTTng-ust with `programs/lttng.c`, and with a session daemon that lives as long as a
//! run.
//!
//! ```text
//!   lttng.c  --- one ring per CPU --->  lttng-consumerd  --->  files
//!                                            |  started by
//!                                       lttng-sessiond  <---  lttng create, enable-event, start,
//!                                                             stop, destroy
//! ```
//!
//! The settings are the best ones: buffers with room for a lap, and events without a field, because
//! the name of an event identifies the function. The bench counts discarded events, and a run with
//! such an event fails. For the stage `Collecting`, the session is one of snapshots, and no
//! snapshot is taken.

use super::kieker::size;
use super::{Figure, PAUSE, Stage};
use crate::apart;
use crate::child::{Running, cpu_s};
use crate::line::{cpus, pin};
use crate::round::Measured;
use crate::session::Session;
use crate::tool::{GCC, LTTNG, LTTNG_SESSIOND, LTTNG_UST, Tool, make};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

pub(super) const TOOLS: [Tool; 4] = [GCC, LTTNG_UST, LTTNG, LTTNG_SESSIOND];

/// The limit of each command to the session daemon.
const STEP_MAX: Duration = Duration::from_secs(60);
/// The session of a run, in a separate daemon.
const NAME: &str = "bench";

pub(super) fn measure(
    session: &Session,
    figure: Figure,
    (stage, depth): (Stage, u32),
) -> Result<Measured, String> {
    let program = compile(session)?;
    let home = tempfile::tempdir_in(session.folder()).map_err(|e| e.to_string())?;
    let cpu = cpus().first().copied();
    let command = |program: &OsStr| {
        let mut command = Command::new(program);
        command.env("LTTNG_HOME", home.path());
        if stage == Stage::OneCpu {
            // SAFETY: between fork and exec the closure makes one system call and allocates no
            // memory.
            unsafe {
                command.pre_exec(move || {
                    cpu.map(pin);
                    Ok(())
                });
            }
        }
        command
    };
    let mut bench = command(program.as_os_str());
    bench.arg(cpu.unwrap_or_default().to_string()).arg(depth.to_string());
    bench.arg(super::calls_a_lap(session).to_string());
    bench
        .arg(if session.quick { 1 } else { super::LAPS }.to_string())
        .arg(PAUSE.as_micros().to_string());
    if stage == Stage::Off {
        return Ok(Measured::Value(apart::run(bench)?.value));
    }
    let lttng = |words: &[&str]| {
        let mut lttng = command(OsStr::new(LTTNG.program));
        lttng.arg("--no-sessiond").args(words);
        Running::start(lttng, false)?.wait(STEP_MAX)
    };
    if lttng(&["list"])?.check().is_ok() {
        return Err("a session daemon of LTTng is already running; end that daemon first".into());
    }
    let mut sessiond = command(OsStr::new(LTTNG_SESSIOND.program));
    sessiond.arg("--no-kernel");
    let daemon = Running::start(sessiond, false)?;
    let begin = Instant::now();
    while lttng(&["list"])?.check().is_err() {
        if daemon.has_ended() || begin.elapsed() > STEP_MAX {
            return Err("lttng-sessiond ended or does not answer".into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let ctl = |words: &[&str]| -> Result<String, String> {
        let ended = lttng(words)?;
        ended.check().map_err(|why| format!("lttng {}: {why}", words.join(" ")))?;
        Ok(ended.stdout)
    };
    let files = home.path().join("trace");
    let output = format!("--output={}", files.display());
    ctl(&["create", NAME, if stage == Stage::Collecting { "--snapshot" } else { &output }])?;
    let lossy = if stage == Stage::Collecting { "--overwrite" } else { "--discard" };
    ctl(&[
        "enable-channel",
        "--userspace",
        "--session",
        NAME,
        lossy,
        "--subbuf-size=1M",
        "--num-subbuf=8",
        "all",
    ])?;
    ctl(&["enable-event", "--userspace", "--session", NAME, "--channel", "all", "bench:*"])?;
    ctl(&["start", NAME])?;
    let before_s = cpu_of_all_s(daemon.pid());
    let run = apart::run(bench)?;
    // The command waits until all events are written.
    ctl(&["stop", NAME])?;
    let daemon_ns = (cpu_of_all_s(daemon.pid()) - before_s) * 1e9;
    let listed = ctl(&["list", NAME])?;
    let discarded = listed.lines().filter_map(|line| line.trim().strip_prefix("Discarded events:"));
    let discarded: u64 = discarded.filter_map(|number| number.trim().parse::<u64>().ok()).sum();
    ctl(&["destroy", NAME])?;
    if discarded > 0 {
        return Err(format!("{discarded} of {} events were lost", 2.0 * run.number("calls ")?));
    }
    Ok(Measured::Value(match figure {
        Figure::Cpu => (run.number("cpu ")? + daemon_ns) / run.number("measured ")?,
        Figure::Bytes => size(&files)? as f64 / (2.0 * run.number("calls ")?),
        Figure::Caller | Figure::Period => run.value,
    }))
}

fn compile(session: &Session) -> Result<PathBuf, String> {
    let program = session.folder().join("lttng");
    if !program.exists() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
        let mut gcc = Command::new(GCC.program);
        gcc.arg("-O2").arg("-I").arg(&folder).arg(folder.join("lttng.c")).arg("-o").arg(&program);
        gcc.args(["-llttng-ust", "-ldl"]);
        make(gcc, "lttng.c")?;
    }
    Ok(program)
}

/// CPU time of a process and its descendants, in seconds.
fn cpu_of_all_s(pid: u32) -> f64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let children: String = children.collect();
    let children = children.split_whitespace().filter_map(|pid| pid.parse().ok());
    cpu_s(pid).unwrap_or(0.0) + children.map(cpu_of_all_s).sum::<f64>()
}
