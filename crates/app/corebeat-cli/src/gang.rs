//! `corebeat run --policy coscheduling`: several programs, of which those run at a time that fit side by side; the others are frozen.

use crate::failure::Failure;
use crate::report::percent;
use crate::several::{End, Several, seconds};
use corebeat_linux::{LinuxMachine, Options};
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
    #[serde(flatten)]
    end: End,
    /// Not frozen.
    turns_s: f64,
    /// The part of its turns for which it had all CPUs that it could use, at least.
    coscheduled: Option<f64>,
}

/// The turns of a program.
#[derive(Debug)]
struct Turns {
    id: ProgramId,
    frozen: bool,
    ns: u64,
    /// Sum of shares times spans, and those spans.
    together_ns: (f64, u64),
}

/// Runs programs to their ends: the status of the first that failed, else of the last; and the report.
///
/// # Errors
/// As [`Several::run`].
pub(crate) fn run(command: &[OsString], slice_ms: u64) -> Result<(ExitStatus, Report), Failure> {
    let mut several = Several::hold(LinuxMachine::new(Options::default())?, command)?;
    let cpus = several.machine.topology().cpus().len();
    let sets: Vec<(ProgramId, u32)> = several.ids().map(|id| (id, cpus as u32)).collect();
    let slice = Duration::from_millis(slice_ms);
    let mut policy = Coscheduling::new(several.machine.topology(), &sets, slice.as_nanos() as u64)
        .map_err(Failure::own)?;
    let mut all: Vec<Turns> = several.ids().map(Turns::new).collect();
    let mut failed = None;
    several.run(slice, Duration::MAX, |machine, mut seen, steers| {
        for turns in &mut all {
            turns.frozen &= steers;
            turns.see(&seen, cpus as u32);
        }
        // Who has ended did something in this span, and wants no turn in the next.
        seen.programs.retain(|p| machine.is_alive(p.id));
        let deeds = if steers { heed(machine, &mut policy, &seen) } else { vec![] };
        for deed in deeds {
            if let Some(why) = deed.failed {
                failed = Some(format!("programs take no turns: {why}"));
                return false;
            }
            if let Action::SetFrozen { program, frozen } = deed.decision.action {
                all.iter_mut().filter(|t| t.id == program).for_each(|t| t.frozen = frozen);
            }
        }
        true
    })?;
    let ends = several.end()?;
    let program = |(id, end)| all.iter().find(|t| t.id == id).map(|turns| turns.report(end));
    let programs = ends.programs.into_iter().filter_map(program).collect();
    let notes = ends.notes.into_iter().chain(failed).collect();
    let report = Report { policy: "coscheduling", slice_ms, wall_s: ends.wall_s, cpus, programs, notes };
    Ok((ends.status, report))
}

impl Turns {
    fn new(id: ProgramId) -> Turns {
        Turns { id, frozen: false, ns: 0, together_ns: (0.0, 0) }
    }

    /// Adds up how it ran.
    fn see(&mut self, seen: &Snapshot, cpus: u32) {
        let program = seen.programs.iter().find(|p| p.id == self.id);
        let Some(program) = program.filter(|p| !self.frozen && !p.threads.is_empty()) else { return };
        self.ns += seen.span_ns;
        if let Some(share) = coscheduled(program, seen.span_ns, cpus) {
            self.together_ns.0 += share * seen.span_ns as f64;
            self.together_ns.1 += seen.span_ns;
        }
    }

    fn report(&self, end: End) -> ProgramReport {
        let (sum, span_ns) = self.together_ns;
        let coscheduled = (span_ns > 0).then(|| sum / span_ns as f64);
        ProgramReport { end, turns_s: seconds(self.ns), coscheduled }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, slice_ms) = (self.programs.len(), self.slice_ms);
        let programs = if count == 1 { "program" } else { "programs" };
        writeln!(f, "corebeat: {count} {programs}, {:.2} s, turns of {slice_ms} ms", self.wall_s)?;
        for p in &self.programs {
            let share = percent(p.coscheduled);
            writeln!(f, "{}; turns {:.2} s, coscheduled {share} of them at least", p.end, p.turns_s)?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "  note: {note}"))
    }
}
