//! Two OpenMP programs with changing phases on one host: with claims of CPUs, and with all threads
//! at all times.
//!
//! Source: Hollmann, Gerndt, *Invasive Computing: An Application Assisted Resource Management
//! Approach* (2012), section 2.

use crate::Bench;
use crate::child::Running;
use crate::program::{Agreement, threads, word_after};
use crate::round::{self, Measured, Subject};
use crate::row::Better;
use crate::session::Session;
use crate::tool::{GPP, make};
use corebeat_wire::Connection;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

pub(crate) const BENCH: Bench = Bench {
    name: "claim.phase",
    summary: "time until two OpenMP programs, whose phases use all CPUs or one, have ended",
    peers: &["plain", "plain, passive waits", "plain, dynamic teams", "each thread count by hand"],
    tools: &[GPP],
    cases: |_| vec![CASE.into()],
    run,
};

const CASE: &str = "two programs";
/// The time of both programs together, on all CPUs.
const RUN_S: f64 = 5.0;
const START_MAX: Duration = Duration::from_secs(60);

fn run(session: &Session) -> Result<(), String> {
    if !session.selects(CASE) || !session.has(GPP) {
        return Ok(());
    }
    let library = session.library()?;
    let (plain, claiming) = (compile(session, None)?, compile(session, Some(library))?);
    let socket = session.folder().join("socket");
    let mut daemon = Command::new(session.corebeat()?);
    daemon.args(["daemon", "--scope", "user", "--policy", "none", "--socket"]).arg(&socket);
    let daemon = Running::start(daemon, false)?;
    let begin = Instant::now();
    while !Connection::to(&socket).is_ok_and(|found| found.is_some()) {
        if daemon.has_ended() || begin.elapsed() > START_MAX {
            return Err("the daemon ended or opened no socket".into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    // A pair of phases takes about a second of a core if the threads do not impede each other.
    let pairs = (session.core_s(RUN_S) / 2.0).round().max(1.0).to_string();
    let agreement = Agreement::default();
    let both = |program: &Path, set: &[(&str, &str)]| {
        let start = || {
            let mut command = Command::new(program);
            command.arg(&pairs).envs(set.iter().copied()).env("COREBEAT_SOCKET", &socket);
            command.env("LD_LIBRARY_PATH", library);
            Running::start(command, false)
        };
        let begin = Instant::now();
        let (one, other) = (start()?, start()?);
        for program in [one, other] {
            let ended = program.wait(session.run_max())?;
            if ended.status.is_none() {
                return Ok(Measured::Over(begin.elapsed().as_secs_f64()));
            }
            ended.check()?;
            agreement.admit(
                0,
                word_after(&ended.stdout, "checksum ").ok_or("the program printed no checksum")?,
            )?;
        }
        Ok(Measured::Value(begin.elapsed().as_secs_f64()))
    };
    let both = &both;
    let mut subjects = vec![
        Subject::new("corebeat", || both(&claiming, &[])),
        Subject::new("plain", || both(&plain, &[])),
        Subject::new("plain, passive waits", || both(&plain, &[("OMP_WAIT_POLICY", "passive")])),
        Subject::new("plain, dynamic teams", || both(&plain, &[("OMP_DYNAMIC", "true")])),
    ];
    for count in 1..=session.cpus.min(4) {
        let text = count.to_string();
        let plain = &plain;
        subjects.push(Subject::new(format!("{} each by hand", threads(count)), move || {
            both(plain, &[("OMP_NUM_THREADS", &text), ("OMP_WAIT_POLICY", "passive")])
        }));
    }
    round::measure(session, BENCH.name, CASE, ("s", Better::Lower), subjects);
    Ok(())
}

/// Compiles the program, with claims if a library is given.
fn compile(session: &Session, library: Option<&Path>) -> Result<PathBuf, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let binary =
        session.folder().join(if library.is_some() { "phase-claims" } else { "phase-plain" });
    let mut compiler = Command::new(GPP.program);
    compiler
        .args(["-O2", "-fopenmp", "-x", "c++"])
        .arg(root.join("programs/phase.c"))
        .arg("-o")
        .arg(&binary);
    if let Some(library) = library {
        compiler.arg("-DCLAIM").arg("-I").arg(root.join("../crates/bind/corebeat-c/include"));
        compiler.arg("-L").arg(library).arg("-lcorebeat");
    }
    make(compiler, "phase.c")?;
    Ok(binary)
}
