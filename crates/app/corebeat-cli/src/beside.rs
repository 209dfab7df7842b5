//! `corebeat run --policy adapt`: several programs, side by side or on cores of their own.

use crate::failure::Failure;
use crate::report::{DeedRow, Ended};
use crate::session::{now_ns, restore_killed};
use crate::train;
use corebeat_linux::{Launch, LinuxMachine, Options, Signals, Started};
use corebeat_loop::{Deed, heed};
use corebeat_machine::{Machine, ProgramId};
use corebeat_policy::adapt::{Adapt, Identity};
use serde::Serialize;
use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

/// From one cheap look to the next: so that a look at one program alone has some.
const GLANCE: Duration = Duration::from_millis(10);

/// What became of the programs.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    policy: &'static str,
    wall_s: f64,
    cpus: usize,
    programs: Vec<ProgramReport>,
    deeds: Vec<Done>,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct ProgramReport {
    command: Vec<String>,
    ended: Ended,
    wall_s: f64,
}

/// What was done, and to which program.
#[derive(Debug, Serialize)]
struct Done {
    program: String,
    #[serde(flatten)]
    row: DeedRow,
}

struct Member {
    command: Vec<String>,
    id: ProgramId,
    started: Started,
    ended: Option<(ExitStatus, f64)>,
}

/// Runs programs to their ends: the status of the first that failed, else of the last; and the report.
///
/// # Errors
/// Where the model is not of this host, or a program cannot be started: then those before it are killed.
pub(crate) fn run(
    command: &[OsString],
    model: Option<&Path>,
    period_ms: u64,
) -> Result<(ExitStatus, Report), Failure> {
    let mut machine = LinuxMachine::new(Options { counters: true, spin: true, ..Options::default() })?;
    let name = train::host_name();
    let model = train::model(model, &Identity::new(&name, machine.topology()))?;
    let mut policy = Adapt::new(machine.topology(), &name, model).map_err(Failure::usage)?;
    let mut notes = restore_killed();
    let signals = Signals::new().map_err(Failure::own)?;
    let cpus = machine.topology().cpus().len();
    let mut members = Vec::new();
    for part in command.split(|word| word == "--") {
        let Some((program, args)) = part.split_first() else {
            return Err(Failure::usage("an empty program; write -- A -- B, each with its arguments"));
        };
        let started = Launch::new(program, args.iter().cloned()).start()?;
        members.push(Member {
            command: part.iter().map(|c| c.to_string_lossy().into_owned()).collect(),
            id: machine.watch_launch(&started)?,
            started,
            ended: None,
        });
    }
    let start_ns = now_ns();
    for at in 0..members.len() {
        if let Err(e) = members[at].started.release() {
            // Nobody would watch those that have just begun. Those that are held end by themselves.
            members[..at].iter().for_each(|m| machine.signal(m.id, libc::SIGKILL));
            return Err(e.into());
        }
    }
    let (mut steers, mut deeds) = (true, vec![]);
    while members.iter().any(|m| m.ended.is_none()) {
        attend(&mut members, &mut machine, &signals, now_ns() + period_ms * 1_000_000, start_ns)?;
        if steers && signals.asked_to_end().is_some() {
            // Who is frozen hears nothing.
            machine.restore();
            steers = false;
        }
        let seen = machine.observe()?;
        if steers {
            deeds.extend(heed(&mut machine, &mut policy, &seen));
        }
    }
    notes.extend(machine.restore().left.into_iter().map(|l| format!("left alone: {l}")));
    notes.extend(machine.notes());
    let wall_s = seconds(now_ns() - start_ns);
    let status = |m: &Member| m.ended.map(|e| e.0);
    let failed = members.iter().filter_map(status).find(|s| !s.success());
    let status = failed.or_else(|| members.iter().filter_map(status).next_back());
    let status = status.ok_or_else(|| Failure::own("the programs' exit statuses were lost"))?;
    let program = |id: Option<ProgramId>| members.iter().find(|m| Some(m.id) == id);
    let done = |deed: &Deed| Done {
        program: program(deed.decision.action.program()).map_or_else(String::new, |m| name_of(&m.command)),
        row: DeedRow::new(deed, start_ns),
    };
    let deeds = deeds.iter().map(done).collect();
    let programs = members.into_iter().filter_map(Member::report).collect();
    Ok((status, Report { policy: "adapt", wall_s, cpus, programs, deeds, notes }))
}

/// A program's name, with its first arguments: several of one name are told apart by that.
fn name_of(command: &[String]) -> String {
    let name = command.first().map_or("", |c| c.rsplit('/').next().unwrap_or(c));
    let rest = command.iter().skip(1).take(2).map(String::as_str);
    [name].into_iter().chain(rest).collect::<Vec<_>>().join(" ")
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Waits for the next look, or the end of a program, or a signal that asks for it.
fn attend(
    members: &mut [Member],
    machine: &mut LinuxMachine,
    signals: &Signals,
    until_ns: u64,
    start_ns: u64,
) -> Result<(), Failure> {
    loop {
        let left = Duration::from_nanos(until_ns.saturating_sub(now_ns()));
        let mut here: Vec<&mut Member> = members.iter_mut().filter(|m| m.ended.is_none()).collect();
        let mut programs: Vec<&mut Started> = here.iter_mut().map(|m| &mut m.started).collect();
        let ended = Started::attend_all(&mut programs, signals, left.min(GLANCE))?;
        let has_ended = ended.iter().any(Option::is_some);
        for (member, status) in here.into_iter().zip(ended) {
            member.ended = status.map(|status| (status, seconds(now_ns() - start_ns)));
        }
        if has_ended || left.is_zero() || signals.asked_to_end().is_some() {
            return Ok(());
        }
        machine.glance();
    }
}

impl Member {
    fn report(self) -> Option<ProgramReport> {
        let (status, wall_s) = self.ended?;
        Some(ProgramReport { command: self.command, ended: status.into(), wall_s })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "corebeat: {} programs, {:.2} s, policy {}",
            self.programs.len(),
            self.wall_s,
            self.policy
        )?;
        for p in &self.programs {
            let name = name_of(&p.command);
            let ended = match p.ended {
                Ended::Exit(code) => format!("exit {code}"),
                Ended::Signal(signal) => format!("signal {signal}"),
            };
            writeln!(f, "  {name}: {:.2} s, {ended}", p.wall_s)?;
        }
        self.deeds.iter().try_for_each(|deed| writeln!(f, "{}: {}", deed.row, deed.program))?;
        self.notes.iter().try_for_each(|note| writeln!(f, "  note: {note}"))
    }
}
