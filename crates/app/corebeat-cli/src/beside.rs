//! `corebeat run --policy adapt`: several programs, side by side or on cores of their own.

use crate::failure::Failure;
use crate::report::DeedRow;
use crate::several::{End, Several};
use crate::train;
use corebeat_linux::{LinuxMachine, Options};
use corebeat_loop::{Deed, heed};
use corebeat_machine::Machine;
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
    programs: Vec<End>,
    deeds: Vec<Done>,
    notes: Vec<String>,
}

/// What was done, and to which program.
#[derive(Debug, Serialize)]
struct Done {
    program: String,
    #[serde(flatten)]
    row: DeedRow,
}

/// Runs programs to their ends: the status of the first that failed, else of the last; and the report.
///
/// # Errors
/// Where the model is not of this host, and as [`Several::run`].
pub(crate) fn run(
    command: &[OsString],
    model: Option<&Path>,
    period_ms: u64,
) -> Result<(ExitStatus, Report), Failure> {
    let machine = LinuxMachine::new(Options { counters: true, spin: true, ..Options::default() })?;
    let name = train::host_name();
    let model = train::model(model, &Identity::new(&name, machine.topology()))?;
    let mut policy = Adapt::new(machine.topology(), &name, model).map_err(Failure::usage)?;
    let cpus = machine.topology().cpus().len();
    let mut several = Several::hold(machine, command)?;
    let mut deeds = vec![];
    several.run(Duration::from_millis(period_ms), GLANCE, |machine, seen, steers| {
        if steers {
            deeds.extend(heed(machine, &mut policy, &seen));
        }
        true
    })?;
    let ends = several.end()?;
    let done = |deed: &Deed| {
        let id = deed.decision.action.program();
        let program = ends.programs.iter().find(|(member, _)| Some(*member) == id);
        Done {
            program: program.map_or_else(String::new, |(_, end)| end.name()),
            row: DeedRow::new(deed, ends.start_ns),
        }
    };
    let deeds = deeds.iter().map(done).collect();
    let programs = ends.programs.into_iter().map(|(_, end)| end).collect();
    Ok((
        ends.status,
        Report { policy: "adapt", wall_s: ends.wall_s, cpus, programs, deeds, notes: ends.notes },
    ))
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
        self.programs.iter().try_for_each(|end| writeln!(f, "{end}"))?;
        self.deeds.iter().try_for_each(|deed| writeln!(f, "{}: {}", deed.row, deed.program))?;
        self.notes.iter().try_for_each(|note| writeln!(f, "  note: {note}"))
    }
}
