//! The report on a period of a host, as text, JSON and a page.

use crate::frame::{self, Frame, Usage};
use crate::read::Recorded;
use crate::store::is_gap;
use corebeat_host::{Point, printable};
use corebeat_machine::TimeShares;
use corebeat_web::{Decision, Machine, State, Table, utc};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Largest number of points on a page.
const POINTS_MAX: usize = 12_000;
/// Largest number of programs on a page: those with the most CPU time.
const PROGRAMS_MAX: usize = 256;
/// Largest number of groups on a page. The first ones are shown.
const GROUPS_MAX: usize = 256;
/// Largest number of claims on a page. The last ones are shown.
const CLAIMS_MAX: usize = 500;
/// Largest number of decisions on a page. The last ones are shown.
const DECISIONS_MAX: usize = 500;
/// Largest number of spans without observations that a page names: the last ones.
const MISSING_MAX: usize = 100;
/// Largest size of the report as JSON within a page, in bytes.
const JSON_BYTES_MAX: usize = 64 << 10;
/// Spans of a point on a page, in milliseconds: the first one that yields few enough points.
const STEPS_MS: [u64; 6] = [1000, 10_000, 60_000, 300_000, 900_000, 3_600_000];
/// Time before now that is not missing: the daemon has not written it yet.
const UNWRITTEN: Duration = Duration::from_secs(2 * crate::WRITE_EACH.as_secs());

/// A period, in milliseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period {
    /// Begin.
    pub from_ms: u64,
    /// End. The time after now is not missing.
    pub to_ms: u64,
    /// The present time.
    pub now_ms: u64,
}

/// The rows of a report, by what identifies them. The number of the boot is a part of it, because
/// each boot assigns the numbers of processes, groups and claims anew.
#[derive(Debug, Default)]
struct Rows {
    programs: BTreeMap<(u64, Option<i32>, String), usize>,
    groups: BTreeMap<(u64, u32, u32), usize>,
    claims: BTreeMap<(u64, u64, i32), usize>,
}

/// The programs, heartbeats, claims and decisions of a host in a period.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// Begin of the period, in seconds since 1970.
    pub from_s: f64,
    /// End of the period, in seconds since 1970.
    pub to_s: f64,
    /// Programs, in the order of their CPU time.
    pub programs: Vec<ProgramReport>,
    /// Groups of heartbeats.
    pub groups: Vec<GroupReport>,
    /// Claims of CPUs.
    pub claims: Vec<ClaimReport>,
    /// Decisions, the first first. `at_s` is the time since the begin of the period.
    pub decisions: Vec<Decision>,
    /// Number of decisions that are left out, because many were made at the same time.
    pub decisions_left_out: usize,
    /// Spans without observations.
    pub missing: Vec<Missing>,
}

/// A program in a period.
#[derive(Debug, Clone, Serialize)]
pub struct ProgramReport {
    /// First process, if known.
    pub pid: Option<i32>,
    /// Name.
    pub name: String,
    /// Policy that steered the program last.
    pub policy: String,
    /// Begin of the first observation, in seconds since 1970.
    pub from_s: f64,
    /// End of the last observation, in seconds since 1970.
    pub to_s: f64,
    /// Observed time, in seconds.
    pub observed_s: f64,
    /// CPU time in the observed time, in seconds, as far as known.
    pub cpu_s: f64,
    /// Largest number of threads.
    pub threads_max: usize,
    /// Mean shares of the threads; each over the time in which it is known.
    pub shares: TimeShares,
    /// Mean heart rate of its group, and the last goal.
    pub heart_rate: Option<Rate>,
    /// Changes in effect at the end.
    pub changes: Vec<String>,
    #[serde(skip)]
    usage: Usage,
    /// The parts of `usage`, by the ends of their spans since the begin of the period, in
    /// milliseconds.
    #[serde(skip)]
    parts: Vec<(u64, Usage)>,
}

/// A mean heart rate and its goal, in heartbeats per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Rate {
    /// Mean rate.
    pub mean: f64,
    /// Least rate of the goal.
    pub rate_min: Option<f64>,
    /// Largest rate of the goal.
    pub rate_max: Option<f64>,
    #[serde(skip)]
    span_ms: u64,
}

/// A group of heartbeats in a period.
#[derive(Debug, Clone, Serialize)]
pub struct GroupReport {
    /// User that owns the group.
    pub owner: u32,
    /// Number of the group of this user.
    pub group: u32,
    /// Processes that emitted heartbeats last.
    pub pids: Vec<u32>,
    /// Threads that emitted heartbeats last.
    pub members: u32,
    /// Heartbeats since the group exists.
    pub beats: u64,
    /// Mean rate, and the last goal. `None` if no rate is known.
    pub rate: Option<Rate>,
    #[serde(skip)]
    rates: Vec<(u64, f64, u64)>,
}

/// A claim in a period.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClaimReport {
    /// Number of the claim.
    pub claim: u64,
    /// Process that held the claim.
    pub pid: i32,
    /// Name of the process, if known.
    pub name: String,
    /// CPUs at the end.
    pub cpus: Vec<u32>,
    /// Begin of the first span at whose end the claim was held, in seconds since 1970.
    pub from_s: f64,
    /// End of the last such span, in seconds since 1970.
    pub to_s: f64,
}

/// A span without observations.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Missing {
    /// Begin, in seconds since 1970.
    pub from_s: f64,
    /// End, in seconds since 1970.
    pub to_s: f64,
    /// Whether the daemon has started after the span. Otherwise, the host was suspended, or the
    /// daemon could not write or was overloaded, or it does not run now.
    pub daemon_started: bool,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.daemon_started {
            true => "the daemon did not run, or recorded no history,",
            false => "nothing is recorded",
        };
        write!(f, "{what} from {} to {}", utc(self.from_s), utc(self.to_s))
    }
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1000.0
}

impl Report {
    /// The report on a period, from its frames ([`read`](crate::read)). `name` selects programs,
    /// their groups and decisions.
    pub fn of(recorded: &Recorded, period: Period, name: Option<&str>) -> Report {
        let Period { from_ms, to_ms, now_ms } = period;
        let mut report =
            Report { from_s: seconds(from_ms), to_s: seconds(to_ms), ..Report::default() };
        let mut rows = Rows::default();
        let mut end_ms = from_ms;
        for (at_ms, frame) in &recorded.frames {
            let start_ms = at_ms.saturating_sub(frame.span_ms);
            report.add_missing(end_ms, start_ms, frame.begins);
            end_ms = *at_ms;
            report.add(*at_ms, frame, name, &mut rows);
        }
        match &recorded.next {
            Some((at_ms, next)) => {
                let start_ms = at_ms.saturating_sub(next.span_ms).min(to_ms);
                report.add_missing(end_ms, start_ms, next.begins);
            }
            None if now_ms.saturating_sub(end_ms) > UNWRITTEN.as_millis() as u64 => {
                report.add_missing(end_ms, to_ms.min(now_ms), false);
            }
            None => {}
        }
        report.programs.sort_by(|a, b| b.cpu_s.total_cmp(&a.cpu_s));
        report
    }

    /// Adds the time between two frames, if it is a gap.
    fn add_missing(&mut self, end_ms: u64, start_ms: u64, daemon_started: bool) {
        if is_gap(end_ms, start_ms) {
            let (from_s, to_s) = (seconds(end_ms), seconds(start_ms));
            self.missing.push(Missing { from_s, to_s, daemon_started });
        }
    }

    fn add(&mut self, at_ms: u64, frame: &Frame, name: Option<&str>, rows: &mut Rows) {
        let boot = frame.clock.boot;
        let is_selected = |program: &str| name.is_none_or(|name| name == program);
        for program in frame.programs.iter().filter(|program| is_selected(&program.name)) {
            let key = (boot, program.pid, program.name.clone());
            let n = *rows.programs.entry(key).or_insert(self.programs.len());
            if n == self.programs.len() {
                self.programs.push(ProgramReport::new(program, at_ms));
            }
            self.programs[n].add(at_ms, program, frame, self.from_s);
        }
        for group in &frame.groups {
            let is_of = |(of_boot, pid, _): &(u64, Option<i32>, String)| {
                *of_boot == boot && is_member(*pid, group)
            };
            if name.is_some() && !rows.programs.keys().any(is_of) {
                continue;
            }
            let n =
                *rows.groups.entry((boot, group.owner, group.group)).or_insert(self.groups.len());
            if n == self.groups.len() {
                self.groups.push(GroupReport::new(group));
            }
            self.groups[n].add(at_ms, group);
        }
        for claim in frame.claims.iter().filter(|claim| is_selected(&claim.name)) {
            let from_s = seconds(at_ms.saturating_sub(frame.span_ms));
            let (to_s, cpus) = (seconds(at_ms), claim.cpus.clone());
            let key = (boot, claim.claim, claim.pid);
            match *rows.claims.entry(key).or_insert(self.claims.len()) {
                n if n < self.claims.len() => {
                    (self.claims[n].to_s, self.claims[n].cpus) = (to_s, cpus);
                }
                _ => {
                    let (claim, pid, name) = (claim.claim, claim.pid, claim.name.clone());
                    self.claims.push(ClaimReport { claim, pid, name, cpus, from_s, to_s });
                }
            }
        }
        for (ago_ms, decision) in frame.decisions.iter().filter(|(_, d)| is_selected(&d.program)) {
            let unix_s = seconds(at_ms.saturating_sub(*ago_ms));
            let at_s = (unix_s - self.from_s).max(0.0);
            self.decisions.push(Decision { at_s, unix_s: Some(unix_s), ..decision.clone() });
        }
        self.decisions_left_out = self.decisions_left_out.saturating_add(frame.left_out);
    }

    /// The content of a page about the period. `machine` is this host. The page contains `json`,
    /// the report as the command writes it, for scripts.
    pub fn page(&self, host: String, machine: Machine, json: Option<serde_json::Value>) -> State {
        let programs = &self.programs[..self.programs.len().min(PROGRAMS_MAX)];
        let groups = &self.groups[..self.groups.len().min(GROUPS_MAX)];
        let [missing_excess, claims_excess, decisions_excess] = [
            self.missing.len().saturating_sub(MISSING_MAX),
            self.claims.len().saturating_sub(CLAIMS_MAX),
            self.decisions.len().saturating_sub(DECISIONS_MAX),
        ];
        let step_ms = step_ms(programs, groups);
        let program = |(n, program): (usize, &ProgramReport)| corebeat_web::Program {
            id: n as u32,
            pid: program.pid,
            name: program.name.clone(),
            policy: program.policy.clone(),
            changes: program.changes.clone(),
            points: program.thinned(step_ms).into(),
            mean: program.parts.last().map(|(at_ms, _)| program.usage.point(ns(*at_ms))),
            ..corebeat_web::Program::default()
        };
        let group = |group: &GroupReport| corebeat_web::Group {
            owner: group.owner,
            group: group.group,
            pids: group.pids.clone(),
            members: group.members,
            beats: group.beats,
            rate_min: group.rate.and_then(|rate| rate.rate_min),
            rate_max: group.rate.and_then(|rate| rate.rate_max),
            is_public: false,
            rates: group.thinned(step_ms, self.from_s).into(),
        };
        let missing = self.missing[missing_excess..].iter();
        let mut notes: Vec<String> = missing.map(Missing::to_string).collect();
        notes.extend(self.note_of_left_out());
        let left_out = [
            ("earlier spans without observations", missing_excess),
            ("programs with less CPU time", self.programs.len() - programs.len()),
            ("later groups of heartbeats", self.groups.len() - groups.len()),
            ("earlier claims", claims_excess),
            ("earlier decisions", decisions_excess),
        ];
        let left_out = left_out.into_iter().filter(|(_, number)| *number > 0);
        notes.extend(left_out.map(|(what, number)| format!("not on this page: {what}: {number}")));
        let length = json.as_ref().map_or(0, |json| json.to_string().len());
        let is_short = length <= JSON_BYTES_MAX;
        if !is_short {
            notes.push("the report as JSON is not in this page, because it is long".into());
        }
        let mut state = State::of_host(host, machine);
        state.at_ns = ((self.to_s - self.from_s) * 1e9) as u64;
        state.programs = programs.iter().enumerate().map(program).collect();
        state.groups = groups.iter().map(group).collect();
        state.decisions = self.decisions[decisions_excess..].iter().map(with_count).collect();
        state.notes = notes;
        let claims = claims_table(&self.claims[claims_excess..]);
        state.tables = [claims].into_iter().filter(|table| !table.rows.is_empty()).collect();
        state.report = json.filter(|_| is_short);
        state.period = Some(format!("From {} to {}.", utc(self.from_s), utc(self.to_s)));
        state.make_printable();
        state
    }

    fn note_of_left_out(&self) -> Option<String> {
        let left_out = self.decisions_left_out;
        (left_out > 0).then(|| format!("decisions of busy moments, left out: {left_out}"))
    }

    fn programs_table(&self) -> Table {
        let head = [
            "Program", "PID", "From", "To", "CPU s", "CPUs", "Threads", "User", "Spin", "System",
            "Lock", "Park", "Wait", "Sleep", "Beats/s", "Goal",
        ];
        let row = |program: &ProgramReport| {
            let cpus = program.cpu_s / program.observed_s.max(1e-9);
            let TimeShares { user, system, lock, park, wait, sleep, spin } = program.shares;
            let mut cells = vec![
                program.name.clone(),
                program.pid.map_or("–".into(), |pid| pid.to_string()),
                utc(program.from_s),
                utc(program.to_s),
                format!("{:.1}", program.cpu_s),
                format!("{cpus:.2}"),
                program.threads_max.to_string(),
            ];
            cells.extend([user, spin, system, lock, park, wait, sleep].map(percent));
            cells.extend(rate_cells(program.heart_rate));
            cells
        };
        let rows = self.programs.iter().map(row).collect();
        Table { title: "Programs".into(), head: head.map(str::to_owned).to_vec(), rows }
    }

    fn groups_table(&self) -> Table {
        let head = ["Group", "Owner", "Processes", "Beats/s", "Goal"];
        let row = |group: &GroupReport| {
            let pids: Vec<String> = group.pids.iter().map(u32::to_string).collect();
            let cells = [group.group.to_string(), group.owner.to_string(), pids.join(" ")];
            cells.into_iter().chain(rate_cells(group.rate)).collect()
        };
        let rows = self.groups.iter().map(row).collect();
        Table { title: "Heartbeats".into(), head: head.map(str::to_owned).to_vec(), rows }
    }

    fn decisions_table(&self) -> Table {
        let head = ["Time", "Program", "PID", "Policy", "Decision", "Outcome", "Reason"];
        let row = |decision: &Decision| {
            let decision = with_count(decision);
            vec![
                utc(decision.unix_s.unwrap_or_default()),
                decision.program,
                decision.pid.map_or("–".into(), |pid| pid.to_string()),
                decision.policy,
                decision.what,
                decision.outcome.to_string(),
                decision.why,
            ]
        };
        let rows = self.decisions.iter().map(row).collect();
        Table { title: "Decisions".into(), head: head.map(str::to_owned).to_vec(), rows }
    }
}

/// The report as text, for a terminal.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "From {} to {}", utc(self.from_s), utc(self.to_s))?;
        self.missing.iter().try_for_each(|missing| writeln!(f, "{missing}"))?;
        self.note_of_left_out().into_iter().try_for_each(|note| writeln!(f, "{note}"))?;
        let tables = [
            self.programs_table(),
            self.groups_table(),
            claims_table(&self.claims),
            self.decisions_table(),
        ];
        for table in &tables {
            match table.rows.is_empty() {
                true => writeln!(f, "\n{}: none", table.title)?,
                false => write_table(f, table)?,
            }
        }
        Ok(())
    }
}

fn claims_table(claims: &[ClaimReport]) -> Table {
    let row = |claim: &ClaimReport| {
        let cpus: Vec<String> = claim.cpus.iter().map(u32::to_string).collect();
        let times = [utc(claim.from_s), utc(claim.to_s)];
        let head = [claim.claim.to_string(), claim.pid.to_string(), claim.name.clone()];
        head.into_iter().chain([cpus.join(" ")]).chain(times).collect()
    };
    Table {
        title: "Claims".into(),
        head: ["Claim", "Process", "Name", "CPUs", "From", "To"].map(str::to_owned).to_vec(),
        rows: claims.iter().map(row).collect(),
    }
}

/// Columns as wide as their longest cell; the last one ends with its text. Control characters of
/// the cells, which are texts of a file, are escaped.
fn write_table(f: &mut fmt::Formatter<'_>, table: &Table) -> fmt::Result {
    let escaped = |line: &Vec<String>| line.iter().map(|cell| printable(cell)).collect();
    let lines: Vec<Vec<String>> =
        [&table.head].into_iter().chain(&table.rows).map(escaped).collect();
    let width = |column: usize| lines.iter().map(|l| l[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..table.head.len()).map(width).collect();
    writeln!(f, "\n{}", table.title)?;
    for line in &lines {
        let padded = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        writeln!(f, "{}", padded.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

fn percent(share: Option<f64>) -> String {
    share.map_or("–".into(), |share| format!("{:.0}%", share * 100.0))
}

fn rate_cells(rate: Option<Rate>) -> [String; 2] {
    let Some(Rate { mean, rate_min, rate_max, .. }) = rate else {
        return ["–", "–"].map(Into::into);
    };
    let goal = match (rate_min, rate_max) {
        (None, None) => "–".into(),
        (Some(min), None) => format!("at least {min}"),
        (None, Some(max)) => format!("at most {max}"),
        (Some(min), Some(max)) => format!("{min} to {max}"),
    };
    [format!("{mean:.1}"), goal]
}

/// The decision with the number of equal ones in its text.
fn with_count(decision: &Decision) -> Decision {
    let mut decision = decision.clone();
    if decision.repeated > 0 {
        decision.what += &format!(" ({} times)", decision.repeated.saturating_add(1));
    }
    decision
}

fn is_member(pid: Option<i32>, group: &frame::Group) -> bool {
    pid.is_some_and(|pid| group.pids.contains(&pid.cast_unsigned()))
}

/// Nanoseconds of these milliseconds.
fn ns(ms: u64) -> u64 {
    ms.saturating_mul(1_000_000)
}

impl Rate {
    fn add(&mut self, group: &frame::Group) {
        (self.rate_min, self.rate_max) = (group.rate_min, group.rate_max);
        let Some(rate) = group.rate else { return };
        // The first update of a daemon has no span.
        let added_ms = group.span_ms.max(1);
        self.span_ms = self.span_ms.saturating_add(added_ms);
        self.mean += (rate - self.mean) * added_ms as f64 / self.span_ms as f64;
    }
}

impl GroupReport {
    fn new(group: &frame::Group) -> GroupReport {
        let (owner, group) = (group.owner, group.group);
        GroupReport { owner, group, pids: vec![], members: 0, beats: 0, rate: None, rates: vec![] }
    }

    fn add(&mut self, at_ms: u64, group: &frame::Group) {
        self.pids.clone_from(&group.pids);
        (self.members, self.beats) = (group.members, group.beats);
        self.rate.get_or_insert_default().add(group);
        self.rates.extend(group.rate.map(|rate| (at_ms, rate, group.span_ms)));
    }

    /// The rates of each step.
    fn steps(&self, step_ms: u64) -> impl Iterator<Item = &[(u64, f64, u64)]> {
        self.rates.chunk_by(move |a, b| a.0 / step_ms == b.0 / step_ms)
    }

    /// The rates with times since the begin of the period, one for each step, and an unknown one
    /// in each gap.
    fn thinned(&self, step_ms: u64, from_s: f64) -> Vec<(u64, f64)> {
        let from_ms = (from_s * 1000.0) as u64;
        let mut thinned: Vec<(u64, f64)> = vec![];
        let mut end_ms = None;
        for rates in self.steps(step_ms) {
            let start_ms = rates[0].0.saturating_sub(rates[0].2);
            let at_ns = |at_ms: u64| ns(at_ms.saturating_sub(from_ms));
            if end_ms.is_some_and(|end_ms| is_gap(end_ms, start_ms)) {
                thinned.push((at_ns(start_ms), f64::NAN));
            }
            let (at_ms, ..) = rates[rates.len() - 1];
            let mean = rates.iter().map(|(_, rate, _)| rate).sum::<f64>() / rates.len() as f64;
            thinned.push((at_ns(at_ms), mean));
            end_ms = Some(at_ms);
        }
        thinned
    }
}

impl ProgramReport {
    fn new(program: &frame::Program, at_ms: u64) -> ProgramReport {
        let end_ms = at_ms.saturating_sub(program.ago_ms);
        ProgramReport {
            pid: program.pid,
            name: program.name.clone(),
            policy: String::new(),
            from_s: seconds(end_ms.saturating_sub(program.usage.span_ms)),
            to_s: 0.0,
            observed_s: 0.0,
            cpu_s: 0.0,
            threads_max: 0,
            shares: TimeShares::default(),
            heart_rate: None,
            changes: vec![],
            usage: Usage::default(),
            parts: vec![],
        }
    }

    fn add(&mut self, at_ms: u64, program: &frame::Program, frame: &Frame, from_s: f64) {
        let end_s = seconds(at_ms.saturating_sub(program.ago_ms));
        self.to_s = end_s;
        self.policy.clone_from(&program.policy);
        self.changes.clone_from(&program.changes);
        self.usage.add(&program.usage);
        self.cpu_s += program.usage.cpu_s();
        let Usage { span_ms, threads, shares, .. } = self.usage;
        (self.observed_s, self.threads_max, self.shares) = (seconds(span_ms), threads, shares);
        if let Some(group) = frame.groups.iter().find(|group| is_member(program.pid, group)) {
            self.heart_rate.get_or_insert_default().add(group);
        }
        self.parts.push((((end_s - from_s).max(0.0) * 1000.0).round() as u64, program.usage));
    }

    /// One point for each step.
    fn thinned(&self, step_ms: u64) -> Vec<Point> {
        let point = |parts: &[(u64, Usage)]| {
            let mut whole = Usage::default();
            parts.iter().for_each(|(_, part)| whole.add(part));
            whole.point(ns(parts[parts.len() - 1].0))
        };
        self.steps(step_ms).map(point).collect()
    }

    /// The parts of each step.
    fn steps(&self, step_ms: u64) -> impl Iterator<Item = &[(u64, Usage)]> {
        self.parts.chunk_by(move |a, b| a.0 / step_ms == b.0 / step_ms)
    }
}

/// The shortest step with which a page has few enough points, in milliseconds.
fn step_ms(programs: &[ProgramReport], groups: &[GroupReport]) -> u64 {
    let points = |step_ms: u64| {
        let of_programs = programs.iter().map(|program| program.steps(step_ms).count());
        let of_groups = groups.iter().map(|group| group.steps(step_ms).count());
        of_programs.chain(of_groups).sum::<usize>()
    };
    let step_ms = STEPS_MS.into_iter().find(|step_ms| points(*step_ms) <= POINTS_MAX);
    step_ms.unwrap_or(STEPS_MS[STEPS_MS.len() - 1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Clock, Group, Program};
    use corebeat_web::{Claim, Outcome};

    const SECOND: u64 = 1000;

    fn program(name: &str, user: Option<f64>) -> Program {
        let shares = TimeShares { user, lock: None, ..TimeShares::ZERO };
        let (pid, name, policy) = (Some(7), name.to_owned(), "fair".into());
        let (span_ms, thread_ms, threads) = (SECOND, 2 * SECOND, 2);
        let usage = Usage { span_ms, thread_ms, threads, shares, ..Usage::default() };
        Program { pid, name, policy, usage, ..Program::default() }
    }

    /// The report on the time from 0 to this second, which is now.
    fn of_seconds(frames: &[(u64, Frame)], seconds: u64, name: Option<&str>) -> Report {
        let (from_ms, to_ms, now_ms) = (0, seconds * SECOND, seconds * SECOND);
        let recorded = Recorded { frames: frames.to_vec(), next: None };
        Report::of(&recorded, Period { from_ms, to_ms, now_ms }, name)
    }

    fn frame(second: u64) -> (u64, Frame) {
        let decision = Decision {
            program: "p".into(),
            what: "nice 5".into(),
            outcome: Outcome::Done(1),
            ..Decision::default()
        };
        let group = Group {
            group: 3,
            pids: vec![7],
            rate: Some(second as f64),
            span_ms: SECOND,
            rate_max: Some(2.0),
            ..Group::default()
        };
        let claim = Claim { claim: 1, pid: 9, name: "q".into(), cpus: vec![1], keep: None };
        let frame = Frame {
            clock: Clock::default(),
            span_ms: SECOND,
            programs: vec![program("p", Some(0.5)), program("idle", Some(0.0))],
            groups: vec![group],
            claims: vec![claim],
            decisions: vec![(SECOND / 2, decision)],
            ..Frame::default()
        };
        (second * SECOND, frame)
    }

    #[test]
    fn report_has_the_sums_and_the_gaps_of_its_period() {
        let mut frames: Vec<_> = [1, 2, 3, 10].map(frame).into();
        frames[3].1.begins = true;
        let report = of_seconds(&frames, 100, None);
        let [first, last] = &report.programs[..] else { panic!("{report}") };
        assert_eq!((first.name.as_str(), last.name.as_str()), ("p", "idle"));
        assert_eq!((first.cpu_s, first.observed_s, first.threads_max), (4.0, 4.0, 2));
        assert_eq!((first.shares.user, first.shares.lock), (Some(0.5), None));
        assert_eq!((first.from_s, first.to_s), (0.0, 10.0));
        let rate = Rate { mean: 4.0, rate_min: None, rate_max: Some(2.0), span_ms: 4000 };
        assert_eq!((first.heart_rate, report.groups[0].rate), (Some(rate), Some(rate)));
        assert_eq!((report.claims[0].from_s, report.claims[0].to_s), (0.0, 10.0));
        assert_eq!(report.decisions[1].unix_s, Some(1.5));
        let missing = [(3.0, 9.0, true), (10.0, 100.0, false)];
        let missing =
            missing.map(|(from_s, to_s, daemon_started)| Missing { from_s, to_s, daemon_started });
        assert_eq!(report.missing, missing);
        let text = report.to_string();
        for part in [
            "the daemon did not run, or recorded no history, from 1970-01-01 00:00:03Z to",
            "nothing is recorded from 1970-01-01 00:00:10Z to 1970-01-01 00:01:40Z",
            "at most 2",
            "done: 1 changed",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        // The last seconds are not written yet.
        assert_eq!(of_seconds(&frames, 25, None).missing, missing[..1]);
    }

    #[test]
    fn gap_at_the_end_reaches_to_the_next_frame_or_to_now() {
        // Minutes, as frames of more than two hours ago, and a period that ends within one.
        let minute = |n: u64| (n * 60 * SECOND, Frame { span_ms: 60 * SECOND, ..frame(1).1 });
        let missing = |next: Option<(u64, Frame)>, to_s: u64, now_s: u64| {
            let recorded = Recorded { frames: vec![minute(1)], next };
            let [to_ms, now_ms] = [to_s, now_s].map(|s| s * SECOND);
            let report = Report::of(&recorded, Period { from_ms: 0, to_ms, now_ms }, None);
            let spans = report.missing.iter().map(|m| (m.from_s, m.to_s, m.daemon_started));
            spans.collect::<Vec<_>>()
        };
        assert_eq!(missing(Some(minute(2)), 110, 9999), []);
        assert_eq!(missing(Some(minute(3)), 150, 9999), [(60.0, 120.0, false)]);
        let (at_ms, last) = minute(150);
        let started = Some((at_ms, Frame { begins: true, ..last }));
        assert_eq!(missing(started, 70, 9999), [(60.0, 70.0, true)]);
        // Without a later frame, the daemon has ended, or has not written the last seconds yet.
        assert_eq!(missing(None, 70, 9999), [(60.0, 70.0, false)]);
        assert_eq!(missing(None, 70, 75), []);
        assert_eq!(missing(None, 9999, 100), [(60.0, 100.0, false)]);
    }

    #[test]
    fn processes_of_two_boots_are_two_programs() {
        let mut frames = [1, 2].map(frame);
        frames[1].1.clock.boot = 1;
        let report = of_seconds(&frames, 2, None);
        assert_eq!((report.programs.len(), report.groups.len(), report.claims.len()), (4, 2, 2));
    }

    #[test]
    fn texts_of_the_file_are_printable_in_the_table_and_on_the_page() {
        let hidden = "a\u{1b}[31m\u{202e}b";
        let (at_ms, mut frame) = frame(1);
        for program in &mut frame.programs {
            (program.name, program.policy) = (hidden.into(), hidden.into());
            program.changes = vec![hidden.into()];
        }
        frame.claims[0].name = hidden.into();
        let decision = &mut frame.decisions[0].1;
        decision.outcome = Outcome::Refused(hidden.into());
        let Decision { program, policy, what, why, .. } = decision;
        [program, policy, what, why].into_iter().for_each(|text| *text = hidden.into());
        let report = of_seconds(&[(at_ms, frame)], 1, None);
        let page = report.page("host".into(), Machine::default(), None);
        for text in [report.to_string(), page.file_page().unwrap()] {
            assert!(text.contains("\\u{1b}[31m\\u{202e}b"), "{text}");
            assert!(!text.contains(['\u{1b}', '\u{202e}']) && !text.contains("u001b"), "{text}");
        }
    }

    #[test]
    fn gaps_groups_and_claims_of_a_page_are_bounded() {
        let frames: Vec<_> = (1..=200)
            .map(|n| {
                let (at_ms, mut frame) = frame(n * 10);
                frame.groups[0].group = n as u32;
                frame.groups.push(Group { owner: 1, ..frame.groups[0].clone() });
                let claims = (0..5).map(|m| Claim { claim: n * 5 + m, ..frame.claims[0].clone() });
                frame.claims = claims.collect();
                (at_ms, frame)
            })
            .collect();
        let report = of_seconds(&frames, 2000, None);
        let page = report.page("host".into(), Machine::default(), None);
        assert_eq!((page.groups.len(), page.tables[0].rows.len()), (GROUPS_MAX, CLAIMS_MAX));
        let gaps = page.notes.iter().filter(|note| note.starts_with("nothing is recorded"));
        assert_eq!(gaps.count(), MISSING_MAX);
        for left_out in [
            "earlier spans without observations: 100",
            "later groups of heartbeats: 144",
            "earlier claims: 500",
        ] {
            let note = format!("not on this page: {left_out}");
            assert!(page.notes.contains(&note), "{note}: {:?}", page.notes);
        }
    }

    #[test]
    fn name_selects_programs_with_their_heartbeats_claims_and_decisions() {
        let frames = [frame(1)];
        let of = |name| {
            let report = of_seconds(&frames, 1, Some(name));
            let Report { programs, groups, claims, decisions, .. } = report;
            [programs.len(), groups.len(), claims.len(), decisions.len()]
        };
        assert_eq!((of("p"), of("q"), of("r")), ([1, 1, 0, 1], [0, 0, 1, 0], [0; 4]));
    }

    #[test]
    fn page_of_a_long_period_is_bounded_and_keeps_its_sums() {
        let frames: Vec<_> = (1..=600)
            .map(|second| {
                let (at_ms, mut frame) = frame(second);
                let names = (0..300).map(|n| (n, format!("p\u{1b}{n}")));
                let programs = names.map(|(n, name)| program(&name, Some(f64::from(n) / 300.0)));
                frame.programs = programs.collect();
                (at_ms, frame)
            })
            .collect();
        let report = of_seconds(&frames, 600, None);
        let state = report.page("host".into(), Machine::default(), Some(serde_json::json!({})));
        assert_eq!((state.programs.len(), state.decisions.len()), (PROGRAMS_MAX, DECISIONS_MAX));
        let points = state.programs.iter().flat_map(|program| &program.points);
        assert!(points.clone().count() <= POINTS_MAX, "{}", points.count());
        let first = &state.programs[0];
        let thread_ns: u64 = first.points.iter().map(|point| point.thread_ns).sum();
        assert_eq!((thread_ns, first.name.as_str()), (1_200_000_000_000, "p\\u{1b}299"));
        assert!(state.groups[0].rates.len() < 600);
        let left_out = ["programs with less CPU time: 44", "earlier decisions: 100"];
        assert!(left_out.iter().all(|part| state.notes.iter().any(|note| note.contains(part))));
        assert!(state.file_page().unwrap().contains("From 1970-01-01 00:00:00Z to"));
    }

    #[test]
    fn gap_interrupts_the_line_of_a_rate() {
        let report = of_seconds(&[1, 2, 30].map(frame), 30, None);
        let rates = report.groups[0].thinned(1000, 0.0);
        let known: Vec<bool> = rates.iter().map(|(_, rate)| rate.is_finite()).collect();
        assert_eq!(known, [true, true, false, true]);
    }
}
