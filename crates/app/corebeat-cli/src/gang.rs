//! `corebeat run --policy coscheduling`: several programs, of which those run at a time that fit side by side; the others are frozen.

use crate::failure::Failure;
use crate::report::{Ended, percent};
use crate::session::{now_ns, restore_killed};
use corebeat_linux::{Launch, LinuxMachine, Options, Signals, Started};
use corebeat_loop::heed;
use corebeat_machine::{Action, Machine, ProgramId, Snapshot};
use corebeat_policy::cosched::{Coscheduling, coscheduled};
use serde::Serialize;
use std::ffi::OsString;
use std::fmt;
use std::process::ExitStatus;
use std::time::Duration;

/// What became of the programs.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    policy: &'static str,
    slice_ms: u64,
    wall_s: f64,
    cpus: usize,
    programs: Vec<ProgramReport>,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct ProgramReport {
    command: Vec<String>,
    ended: Ended,
    wall_s: f64,
    /// Not frozen.
    turns_s: f64,
    /// The part of its turns for which it had all CPUs that it could use, at least.
    coscheduled: Option<f64>,
}

/// A program of several.
struct Member {
    command: Vec<String>,
    id: ProgramId,
    started: Started,
    ended: Option<(ExitStatus, f64)>,
    frozen: bool,
    turns_ns: u64,
    /// Sum of shares times spans, and those spans.
    together_ns: (f64, u64),
}

/// Runs programs to their ends: the status of the first that failed, else of the last; and the report.
///
/// # Errors
/// Where one cannot be started: then those before it are killed. Where one cannot be watched: then they go on.
pub(crate) fn run(command: &[OsString], slice_ms: u64) -> Result<(ExitStatus, Report), Failure> {
    let mut notes = restore_killed();
    let signals = Signals::new().map_err(Failure::own)?;
    let mut machine = LinuxMachine::new(Options::default())?;
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
            frozen: false,
            turns_ns: 0,
            together_ns: (0.0, 0),
        });
    }
    let sets: Vec<(ProgramId, u32)> = members.iter().map(|m| (m.id, cpus as u32)).collect();
    let slice_ns = slice_ms * 1_000_000;
    let mut policy = Coscheduling::new(machine.topology(), &sets, slice_ns).map_err(Failure::own)?;
    let start_ns = now_ns();
    for at in 0..members.len() {
        if let Err(e) = members[at].started.release() {
            // Nobody would watch those that have just begun. Those that are held end by themselves.
            members[..at].iter().for_each(|m| machine.signal(m.id, libc::SIGKILL));
            return Err(e.into());
        }
    }
    let mut steers = true;
    while members.iter().any(|m| m.ended.is_none()) {
        attend(&mut members, &signals, now_ns() + slice_ns, start_ns)?;
        if steers && signals.asked_to_end().is_some() {
            // Who is frozen hears nothing.
            machine.restore();
            members.iter_mut().for_each(|m| m.frozen = false);
            steers = false;
        }
        let seen = machine.observe()?;
        members.iter_mut().for_each(|m| m.see(&seen, cpus as u32));
        let deeds = if steers { heed(&mut machine, &mut policy, &seen) } else { vec![] };
        for deed in deeds {
            if let Some(why) = deed.failed {
                notes.push(format!("programs take no turns: {why}"));
                machine.restore();
                members.iter_mut().for_each(|m| m.frozen = false);
                steers = false;
                break;
            }
            if let Action::SetFrozen { program, frozen } = deed.decision.action {
                members.iter_mut().filter(|m| m.id == program).for_each(|m| m.frozen = frozen);
            }
        }
    }
    notes.extend(machine.restore().left.into_iter().map(|l| format!("left alone: {l}")));
    notes.extend(machine.notes());
    let wall_s = seconds(now_ns() - start_ns);
    let status = |m: &Member| m.ended.map(|e| e.0);
    let failed = members.iter().filter_map(status).find(|s| !s.success());
    let status = failed.or_else(|| members.iter().filter_map(status).next_back());
    let status = status.ok_or_else(|| Failure::own("the programs' exit statuses were lost"))?;
    let programs = members.into_iter().filter_map(Member::report).collect();
    Ok((status, Report { policy: "coscheduling", slice_ms, wall_s, cpus, programs, notes }))
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Waits for a turn's end, or that of a program, or a signal that asks for it.
fn attend(members: &mut [Member], signals: &Signals, until_ns: u64, start_ns: u64) -> Result<(), Failure> {
    let left = Duration::from_nanos(until_ns.saturating_sub(now_ns()));
    let mut here: Vec<&mut Member> = members.iter_mut().filter(|m| m.ended.is_none()).collect();
    let mut programs: Vec<&mut Started> = here.iter_mut().map(|m| &mut m.started).collect();
    let ended = Started::attend_all(&mut programs, signals, left)?;
    for (member, status) in here.into_iter().zip(ended) {
        member.ended = status.map(|status| (status, seconds(now_ns() - start_ns)));
    }
    Ok(())
}

impl Member {
    /// Adds up how it ran.
    fn see(&mut self, seen: &Snapshot, cpus: u32) {
        let program = seen.programs.iter().find(|p| p.id == self.id);
        let Some(program) = program.filter(|p| !self.frozen && !p.threads.is_empty()) else { return };
        self.turns_ns += seen.span_ns;
        if let Some(share) = coscheduled(program, seen.span_ns, cpus) {
            self.together_ns.0 += share * seen.span_ns as f64;
            self.together_ns.1 += seen.span_ns;
        }
    }

    fn report(self) -> Option<ProgramReport> {
        let (status, wall_s) = self.ended?;
        let (sum, span_ns) = self.together_ns;
        Some(ProgramReport {
            command: self.command,
            ended: status.into(),
            wall_s,
            turns_s: seconds(self.turns_ns),
            coscheduled: (span_ns > 0).then(|| sum / span_ns as f64),
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, slice_ms) = (self.programs.len(), self.slice_ms);
        let programs = if count == 1 { "program" } else { "programs" };
        writeln!(f, "corebeat: {count} {programs}, {:.2} s, turns of {slice_ms} ms", self.wall_s)?;
        for p in &self.programs {
            let name = p.command.first().map_or("", |c| c.rsplit('/').next().unwrap_or(c));
            let ended = match p.ended {
                Ended::Exit(code) => format!("exit {code}"),
                Ended::Signal(signal) => format!("signal {signal}"),
            };
            writeln!(
                f,
                "  {name}: {:.2} s, {ended}; turns {:.2} s, coscheduled {} of them at least",
                p.wall_s,
                p.turns_s,
                percent(p.coscheduled)
            )?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "  note: {note}"))
    }
}
