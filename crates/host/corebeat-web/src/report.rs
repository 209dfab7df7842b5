//! The content of the page of one run.

use crate::state::{Decision, Machine, Outcome, Program, State, Table};
use corebeat_host::{Point, ProgramReport, Report};

/// Largest number of decisions on the page of a run; the last ones are kept. A page has at most 200
/// kB.
const DECISIONS_MAX: usize = 200;
/// Largest length of the title, in characters. The summary has the whole command.
const TITLE_CHARS_MAX: usize = 200;
/// Largest size of the report as JSON within a page, in bytes.
const REPORT_BYTES_MAX: usize = 64 << 10;

/// Names a column of the summary, and formats its cell for a program.
type Column = (&'static str, fn(&ProgramReport) -> String);

const COLUMNS: [Column; 8] = [
    ("Program", |p| p.command.join(" ")),
    ("Ended", |p| p.ended.to_string()),
    ("Seconds", |p| format!("{:.2}", p.wall_s)),
    ("CPU seconds, user", |p| format!("{:.2}", p.cpu_user_s)),
    ("CPU seconds, system", |p| format!("{:.2}", p.cpu_system_s)),
    ("Threads seen", |p| p.threads_seen.to_string()),
    ("Times preempted", |p| count(p.counters.involuntary_switches)),
    ("Migrations", |p| count(p.counters.migrations)),
];

fn count(number: Option<u64>) -> String {
    number.map_or("–".into(), |number| number.to_string())
}

impl State {
    /// The content for a run that has recorded its history
    /// ([`RunOptions::history`](corebeat_host::RunOptions::history)). The page contains `json`, the
    /// report as the command wrote it, for scripts.
    pub fn of_run(report: &Report, json: serde_json::Value, machine: Machine) -> State {
        let row = |p: &ProgramReport| -> Vec<String> {
            COLUMNS.iter().map(|(_, cell)| cell(p)).collect()
        };
        let summary = Table {
            title: "Summary".into(),
            head: COLUMNS.map(|(name, _)| name.to_owned()).to_vec(),
            rows: report.programs.iter().map(row).collect(),
        };
        let programs = report.programs.iter().zip(report.names()).enumerate();
        let programs = programs.map(|(n, (p, name))| program(n, name, p, report)).collect();
        let mut notes = report.notes.clone();
        let mut decisions = decisions(report);
        let excess = decisions.len().saturating_sub(DECISIONS_MAX);
        if excess > 0 {
            decisions.drain(..excess);
            notes.push(format!("{excess} earlier decisions are not on this page"));
        }
        let is_short = json.to_string().len() <= REPORT_BYTES_MAX;
        if !is_short {
            notes.push("the report as JSON is not in this page, because it is long".into());
        }
        State {
            title: report.total.command.join(" ").chars().take(TITLE_CHARS_MAX).collect(),
            machine,
            at_ns: (report.total.wall_s * 1e9) as u64,
            programs,
            decisions: decisions.into(),
            notes,
            tables: vec![summary],
            report: Some(json).filter(|_| is_short),
            ..State::default()
        }
    }
}

fn program(number: usize, name: String, report: &ProgramReport, whole: &Report) -> Program {
    let points = whole.series.get(number).cloned().unwrap_or_default();
    let mean = Point {
        at_ns: (report.wall_s * 1e9) as u64,
        span_ns: points.iter().map(|point| point.span_ns).sum(),
        thread_ns: points.iter().map(|point| point.thread_ns).sum(),
        shares: report.shares,
        threads: report.threads_max,
    };
    Program {
        id: number as u32,
        name,
        policy: whole.policy.to_owned(),
        points: points.into(),
        // A program that was never observed has no figures.
        mean: Some(mean).filter(|mean| mean.threads > 0),
        ..Program::default()
    }
}

/// The actions of a run, and why policies did not act, in the order of their times.
fn decisions(report: &Report) -> Vec<Decision> {
    let mut decisions = vec![];
    for row in &report.total.applied {
        decisions.push(Decision {
            at_s: row.at_s,
            program: row.program.clone(),
            policy: row.policy.to_owned(),
            what: row.action.to_string(),
            why: row.why.clone(),
            outcome: match &row.failed {
                Some(why) => Outcome::Refused(why.clone()),
                None => Outcome::Done(row.changed.unwrap_or(0)),
            },
            ..Decision::default()
        });
    }
    for (program, name) in report.programs.iter().zip(report.names()) {
        decisions.extend(program.inactions.iter().map(|inaction| Decision {
            at_s: report.total.wall_s,
            program: name.clone(),
            policy: inaction.policy.to_owned(),
            what: "no change".into(),
            why: inaction.why.clone(),
            outcome: Outcome::Unchanged,
            ..Decision::default()
        }));
    }
    decisions
}
