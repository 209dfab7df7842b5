//! The content of the page.

use corebeat_host::{Point, printable};
use corebeat_linux::{Fact, Listed, facts, system_name, topology};
use corebeat_machine::{ProgramSample, ThreadSample, TimeShares, Topology};
use serde::{Deserialize, Serialize, Serializer};
use std::collections::VecDeque;

/// Largest number of points of one program or group on a live page.
const POINTS_MAX: usize = 300;
/// Largest number of points of all programs and groups of a live page: a first message with more
/// points would be long.
const POINTS_OF_ALL_MAX: usize = 12_000;
/// Largest number of decisions on a page. Later ones replace the first ones.
const DECISIONS_MAX: usize = 500;
/// Time for which a live page shows a program that is no longer observed, in nanoseconds.
const GONE_NS: u64 = 60_000_000_000;
/// Largest number of programs that a live page shows and that are no longer observed.
const GONE_MAX: usize = 32;
/// Number of threads that the page names for each program: those with the most CPU time.
const THREADS_NAMED: usize = 4;

/// Number of names that the map has for each CPU.
const NAMES_OF_CPU_MAX: usize = 4;

/// The content of the page. The methods of this type bound it.
#[derive(Debug, Default)]
pub struct State {
    /// Headline.
    pub title: String,
    /// The machine.
    pub machine: Machine,
    /// Time of the content, in nanoseconds on the clock of the points.
    pub at_ns: u64,
    /// Whether the daemon acts.
    pub steering: bool,
    /// Programs in the order of their numbers.
    pub programs: Vec<Program>,
    /// Groups of heartbeats.
    pub groups: Vec<Group>,
    /// Claims of CPUs.
    pub claims: Vec<Claim>,
    /// Decisions, the first first.
    pub decisions: VecDeque<Decision>,
    /// Limitations and remarks, one line each.
    pub notes: Vec<String>,
    /// Further tables.
    pub tables: Vec<Table>,
    /// The JSON of a run, a search or a recorded period.
    pub report: Option<serde_json::Value>,
    /// Begin and end of the recorded period of a host that a file is about; `None` for a run.
    pub period: Option<String>,
    /// Whether the host has a [`Past`](crate::Past), to which the live page links.
    pub has_past: bool,
    /// Time of the update before the last one.
    pub(crate) since_ns: u64,
    /// Number of decisions that the last update added.
    pub(crate) new_decisions: usize,
}

/// The machine, which does not change while a page is open.
#[derive(Debug, Default)]
pub struct Machine {
    /// Kernel and processor.
    pub system: String,
    /// CPUs, caches and nodes.
    pub topology: Option<Topology>,
    /// Features, as `corebeat doctor` lists them.
    pub facts: Vec<Fact>,
}

/// A program.
#[derive(Debug, Clone, Default)]
pub struct Program {
    /// Number that no other program of the page has.
    pub id: u32,
    /// First process, if known.
    pub pid: Option<i32>,
    /// Name.
    pub name: String,
    /// Policy that steers the program.
    pub policy: String,
    /// Changes in effect.
    pub changes: Vec<String>,
    /// The threads with the most CPU time.
    pub threads: Vec<Thread>,
    /// CPUs on which its running threads ran last.
    pub cpus: Vec<u32>,
    /// The program over time, in nanoseconds since the begin of the times of the page.
    pub points: VecDeque<Point>,
    /// The mean of a run that has ended. The figures of a running program are those of its last
    /// point.
    pub mean: Option<Point>,
    /// Time since which the program is no longer observed, as the times of the points.
    pub gone_ns: Option<u64>,
}

/// A thread.
#[derive(Debug, Clone, Serialize)]
pub struct Thread {
    /// Number.
    pub tid: i32,
    /// Name.
    pub name: String,
    /// Share of time on a CPU, from 0 to 1.
    pub running: f64,
    /// CPU on which the thread ran last.
    pub cpu: Option<u32>,
}

/// A group of heartbeats.
#[derive(Debug, Clone, Default)]
pub struct Group {
    /// User that owns the group.
    pub owner: u32,
    /// Number of the group of this user.
    pub group: u32,
    /// Processes that emit heartbeats.
    pub pids: Vec<u32>,
    /// Number of threads that emit heartbeats.
    pub members: u32,
    /// Heartbeats since the group exists.
    pub beats: u64,
    /// Least rate of the goal, in heartbeats per second.
    pub rate_min: Option<f64>,
    /// Largest rate of the goal, in heartbeats per second.
    pub rate_max: Option<f64>,
    /// Whether users other than the owner may list the group.
    pub is_public: bool,
    /// Rate over time: times as those of the points of programs, and heartbeats per second.
    pub rates: VecDeque<(u64, f64)>,
}

/// A claim of CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Number of the claim.
    pub claim: u64,
    /// Process that holds the claim.
    pub pid: i32,
    /// Name of the process, if known.
    pub name: String,
    /// CPUs.
    pub cpus: Vec<u32>,
    /// CPUs that the claim must shrink to, if it must shrink.
    pub keep: Option<Vec<u32>>,
}

/// A decision, or another event.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// Time in seconds since the begin of the times of the page.
    pub at_s: f64,
    /// Time of the wall clock in seconds since 1970, of a decision about a host. It does not follow
    /// from `at_s`: the wall clock is set, and runs on while the host is suspended.
    pub unix_s: Option<f64>,
    /// Process of the program, if known.
    pub pid: Option<i32>,
    /// Name of the program; empty if unknown.
    pub program: String,
    /// Policy; empty if no policy has caused the event.
    pub policy: String,
    /// The action, or the event.
    pub what: String,
    /// Reason.
    pub why: String,
    /// Outcome.
    pub outcome: Outcome,
    /// Number of equal decisions that followed, and that this one stands for.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub repeated: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Outcome of a decision.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "detail", rename_all = "snake_case")]
pub enum Outcome {
    /// The action has changed this number of threads, or 1 for a setting of a whole program.
    Done(u32),
    /// The machine has refused the action for this reason.
    Refused(String),
    /// The policy leaves the program as it is.
    Unchanged,
    /// An event without an action.
    #[default]
    Event,
}

impl Outcome {
    /// Name of the kind, as in JSON.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Outcome::Done(_) => "done",
            Outcome::Refused(_) => "refused",
            Outcome::Unchanged => "unchanged",
            Outcome::Event => "event",
        }
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Outcome::Done(changed) => write!(f, "done: {changed} changed"),
            Outcome::Refused(why) => write!(f, "refused: {why}"),
            Outcome::Unchanged => f.write_str("no change"),
            Outcome::Event => f.write_str("event"),
        }
    }
}

/// A table without a chart.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// Title.
    pub title: String,
    /// Names of the columns.
    pub head: Vec<String>,
    /// Rows, each with a cell for each column.
    pub rows: Vec<Vec<String>>,
}

/// The news of a host since the last update.
#[derive(Debug, Clone, Default)]
pub struct Update {
    /// Time, in nanoseconds on the clock of the points.
    pub at_ns: u64,
    /// Time since the last update, in nanoseconds on the same clock; 0 for the first one.
    pub span_ns: u64,
    /// The same time since the host has started, its suspension included, in nanoseconds.
    pub boot_ns: u64,
    /// The same time on the wall clock, in nanoseconds since 1970.
    pub unix_ns: u64,
    /// Whether the daemon acts.
    pub steering: bool,
    /// All observed programs, each with its new points.
    pub programs: Vec<Program>,
    /// All groups, each with its new rates.
    pub groups: Vec<Group>,
    /// All claims.
    pub claims: Vec<Claim>,
    /// New decisions.
    pub decisions: Vec<Decision>,
    /// Number of later decisions that are left out.
    pub decisions_left_out: usize,
    /// All limitations.
    pub notes: Vec<String>,
}

impl Machine {
    /// This host. Tests its features, which takes a few milliseconds.
    pub fn of_host() -> Machine {
        Machine { system: system_name(), topology: Some(topology()), facts: facts() }
    }
}

impl Update {
    /// Names the claims by their processes. `known` are claims with names, so that a process is
    /// read once.
    pub fn name_claims(&mut self, known: &[Claim]) {
        for claim in &mut self.claims {
            let is_same = |known: &&Claim| (known.claim, known.pid) == (claim.claim, claim.pid);
            let known = known.iter().find(is_same).map(|known| known.name.clone());
            let name = || Listed::read(claim.pid).map_or(String::new(), |process| process.name);
            claim.name = known.unwrap_or_else(name);
        }
    }
}

/// Escapes the control characters of all names and texts, for the tables and the script alike.
fn make_printable<'a>(
    programs: &'a mut [Program],
    claims: &'a mut [Claim],
    decisions: impl Iterator<Item = &'a mut Decision>,
    notes: &'a mut [String],
) {
    let programs = programs.iter_mut().flat_map(|program| {
        let threads = program.threads.iter_mut().map(|thread| &mut thread.name);
        let own = [&mut program.name, &mut program.policy];
        threads.chain(own).chain(&mut program.changes)
    });
    let claims = claims.iter_mut().map(|claim| &mut claim.name);
    let decisions = decisions.flat_map(|decision| {
        let refused = match &mut decision.outcome {
            Outcome::Refused(why) => Some(why),
            Outcome::Done(_) | Outcome::Unchanged | Outcome::Event => None,
        };
        let Decision { program, policy, what, why, .. } = decision;
        [program, policy, what, why].into_iter().chain(refused)
    });
    let texts = programs.chain(claims).chain(decisions).chain(notes);
    texts.for_each(|text| *text = printable(text));
}

impl Program {
    /// The point whose figures the page shows.
    pub(crate) fn figures(&self) -> Option<&Point> {
        self.mean.as_ref().or(self.points.back())
    }

    /// Describes the threads of the last observation: names of those with the most CPU time, and
    /// the CPUs of those that ran.
    pub fn describe_threads(&mut self, sample: &ProgramSample) {
        let running = |t: &ThreadSample| {
            let share = t.shares.running().filter(|share| *share > 0.0 && t.span_ns > 0)?;
            let cpu = t.cpu.map(|cpu| cpu.0);
            Some(Thread { tid: t.id.tid, name: t.name.clone(), running: share, cpu })
        };
        let mut threads: Vec<Thread> = sample.threads.iter().filter_map(running).collect();
        self.cpus = threads.iter().filter_map(|thread| thread.cpu).collect();
        self.cpus.sort_unstable();
        self.cpus.dedup();
        threads.sort_by(|a, b| b.running.total_cmp(&a.running));
        threads.truncate(THREADS_NAMED);
        self.threads = threads;
    }
}

impl State {
    /// A host without programs.
    pub fn of_host(title: String, machine: Machine) -> State {
        State { title, machine, ..State::default() }
    }

    /// Escapes the control characters of all names and texts, which a file may contain.
    pub fn make_printable(&mut self) {
        let State { programs, claims, decisions, notes, .. } = self;
        make_printable(programs, claims, decisions.iter_mut(), notes);
    }

    /// Applies an update. The points of programs and groups that the update contains are kept.
    pub fn update(&mut self, update: Update) {
        let Update { at_ns, steering, mut programs, groups, mut claims, .. } = update;
        let Update { mut decisions, decisions_left_out, mut notes, .. } = update;
        if decisions_left_out > 0 {
            decisions.push(Decision {
                at_s: at_ns as f64 / 1e9,
                unix_s: decisions.last().and_then(|decision| decision.unix_s),
                what: format!("decisions left out here: {decisions_left_out}"),
                ..Decision::default()
            });
        }
        make_printable(&mut programs, &mut claims, decisions.iter_mut(), &mut notes);
        let before = std::mem::take(&mut self.programs);
        let mut gone: Vec<Program> = vec![];
        self.programs = programs;
        for mut old in before {
            match self.programs.iter_mut().find(|new| new.id == old.id) {
                Some(new) => {
                    if new.points.is_empty() {
                        (new.threads, new.cpus) = (old.threads, old.cpus);
                    }
                    old.points.append(&mut new.points);
                    new.points = old.points;
                }
                None => {
                    old.gone_ns.get_or_insert(at_ns);
                    (old.threads, old.cpus) = (vec![], vec![]);
                    gone.push(old);
                }
            }
        }
        gone.retain(|old| at_ns.saturating_sub(old.gone_ns.unwrap_or(0)) < GONE_NS);
        self.programs.extend(gone.drain(gone.len().saturating_sub(GONE_MAX)..));
        self.programs.sort_by_key(|program| program.id);
        let before = std::mem::take(&mut self.groups);
        self.groups = groups;
        for mut old in before {
            let id = (old.owner, old.group);
            if let Some(new) = self.groups.iter_mut().find(|new| (new.owner, new.group) == id) {
                old.rates.append(&mut new.rates);
                new.rates = old.rates;
            }
        }
        self.trim();
        (self.since_ns, self.at_ns) = (self.at_ns, at_ns);
        (self.steering, self.claims, self.notes) = (steering, claims, notes);
        self.new_decisions = decisions.len().min(DECISIONS_MAX);
        self.decisions.extend(decisions);
        let excess = self.decisions.len().saturating_sub(DECISIONS_MAX);
        self.decisions.drain(..excess);
    }

    /// Removes the first points beyond the limits.
    fn trim(&mut self) {
        let series = (self.programs.len() + self.groups.len()).max(1);
        let points_max = POINTS_MAX.min(POINTS_OF_ALL_MAX / series).max(2);
        for program in &mut self.programs {
            program.points.drain(..program.points.len().saturating_sub(points_max));
        }
        for group in &mut self.groups {
            group.rates.drain(..group.rates.len().saturating_sub(points_max));
        }
    }

    /// The content for the script of the page, as JSON in one line.
    pub fn json(&self, part: Part) -> String {
        self.message(part).json()
    }

    /// The CPUs with claims or programs.
    pub(crate) fn cpus(&self) -> Vec<CpuMessage<'_>> {
        let all = self.machine.topology.iter().flat_map(|topology| topology.cpus());
        let names = |cpu: u32| {
            let claims = self.claims.iter().filter(|claim| claim.cpus.contains(&cpu));
            let programs = self.programs.iter().filter(|program| program.cpus.contains(&cpu));
            let count = claims.clone().count() + programs.clone().count();
            let name = |claim: &Claim| format!("claim {}: {}", claim.claim, claim.name);
            let claims: Vec<String> = claims.map(name).take(NAMES_OF_CPU_MAX).collect();
            let programs = programs.map(|program| program.name.as_str());
            let programs: Vec<&str> = programs.take(NAMES_OF_CPU_MAX - claims.len()).collect();
            let more = count - claims.len() - programs.len();
            CpuMessage { cpu, claims, programs, more }
        };
        all.map(|cpu| names(cpu.id.0)).filter(|cpu| !cpu.is_empty()).collect()
    }

    pub(crate) fn message(&self, part: Part) -> Message<'_> {
        let is_whole = part == Part::Whole;
        let new = if is_whole { self.decisions.len() } else { self.new_decisions };
        let old = self.decisions.len().saturating_sub(new);
        let since_ns = Some(self.since_ns).filter(|_| !is_whole);
        Message {
            whole: is_whole,
            at_s: seconds(self.at_ns),
            steering: self.steering,
            programs: self.programs.iter().map(|p| ProgramMessage::of(p, since_ns)).collect(),
            groups: self.groups.iter().map(|g| GroupMessage::of(g, since_ns)).collect(),
            claims: &self.claims,
            cpus: self.cpus(),
            decisions: self.decisions.iter().skip(old).collect(),
            notes: &self.notes,
        }
    }
}

/// Claims and programs on a CPU: the first names, and the number of the others. A host has so many
/// CPUs and programs that all names would make each message long.
#[derive(Serialize)]
pub(crate) struct CpuMessage<'a> {
    pub(crate) cpu: u32,
    pub(crate) claims: Vec<String>,
    pub(crate) programs: Vec<&'a str>,
    pub(crate) more: usize,
}

impl CpuMessage<'_> {
    fn is_empty(&self) -> bool {
        self.claims.is_empty() && self.programs.is_empty()
    }
}

/// Part of the content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Everything.
    Whole,
    /// The points and decisions of the last update, and everything that has no history.
    News,
}

/// A share of time on the page.
pub(crate) struct Share {
    /// Name, also of its colour.
    pub(crate) name: &'static str,
    /// Heading of its column.
    pub(crate) title: &'static str,
    pub(crate) of: fn(&TimeShares) -> Option<f64>,
}

/// The shares in the order of the page, from the bottom of a chart to its top. `spin` is a part of
/// `user`.
pub(crate) const SHARES: [Share; 7] = [
    Share { name: "user", title: "User", of: |s| s.user },
    Share { name: "spin", title: "Spin", of: |s| s.spin },
    Share { name: "system", title: "System", of: |s| s.system },
    Share { name: "lock", title: "Lock", of: |s| s.lock },
    Share { name: "park", title: "Park", of: |s| s.park },
    Share { name: "wait", title: "Run-queue wait", of: |s| s.wait },
    Share { name: "sleep", title: "Sleep", of: |s| s.sleep },
];

/// The content for the script of the page.
#[derive(Serialize)]
pub(crate) struct Message<'a> {
    whole: bool,
    at_s: f64,
    steering: bool,
    programs: Vec<ProgramMessage<'a>>,
    groups: Vec<GroupMessage<'a>>,
    claims: &'a [Claim],
    cpus: Vec<CpuMessage<'a>>,
    pub(crate) decisions: Vec<&'a Decision>,
    notes: &'a [String],
}

impl Message<'_> {
    /// One line of JSON.
    pub(crate) fn json(&self) -> String {
        // The types have no maps, so they can be written.
        serde_json::to_string(self).unwrap_or_default()
    }
}

#[derive(Serialize)]
struct ProgramMessage<'a> {
    id: u32,
    pid: Option<i32>,
    name: &'a str,
    policy: &'a str,
    changes: &'a [String],
    threads: &'a [Thread],
    gone: bool,
    mean: Option<PointMessage<'a>>,
    points: Vec<PointMessage<'a>>,
}

#[derive(Serialize)]
struct GroupMessage<'a> {
    owner: u32,
    group: u32,
    pids: &'a [u32],
    members: u32,
    beats: u64,
    rate_min: Option<f64>,
    rate_max: Option<f64>,
    /// Time in seconds, and rate.
    rates: Vec<(f64, f64)>,
}

impl<'a> ProgramMessage<'a> {
    /// With the points after a time, or all.
    fn of(program: &'a Program, since_ns: Option<u64>) -> ProgramMessage<'a> {
        let points = program.points.iter().filter(|p| since_ns.is_none_or(|at| p.at_ns > at));
        ProgramMessage {
            id: program.id,
            pid: program.pid,
            name: &program.name,
            policy: &program.policy,
            changes: &program.changes,
            threads: &program.threads,
            gone: program.gone_ns.is_some(),
            mean: program.mean.as_ref().map(PointMessage),
            points: points.map(PointMessage).collect(),
        }
    }
}

impl<'a> GroupMessage<'a> {
    /// With the rates after a time, or all.
    fn of(group: &'a Group, since_ns: Option<u64>) -> GroupMessage<'a> {
        let rates = group.rates.iter().filter(|(at_ns, _)| since_ns.is_none_or(|at| *at_ns > at));
        GroupMessage {
            owner: group.owner,
            group: group.group,
            pids: &group.pids,
            members: group.members,
            beats: group.beats,
            rate_min: group.rate_min,
            rate_max: group.rate_max,
            rates: rates.map(|&(at_ns, rate)| (seconds(at_ns), rate)).collect(),
        }
    }
}

/// A point as a list: end and length in seconds, the list of [`SHARES`] in thousandths, threads,
/// and busy CPUs in hundredths. Unknown numbers are null.
struct PointMessage<'a>(&'a Point);

impl Serialize for PointMessage<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Point { at_ns, span_ns, shares, threads, .. } = *self.0;
        let part = |share: Option<f64>| share.map(|share| (share * 1000.0).round() as i64);
        let cpus = self.0.cpus().map(|cpus| (cpus * 100.0).round() as i64);
        let shares = SHARES.map(|share| part((share.of)(&shares)));
        (seconds(at_ns), seconds(span_ns), shares, threads, cpus).serialize(serializer)
    }
}

/// Seconds, to the millisecond.
pub(crate) fn seconds(ns: u64) -> f64 {
    (ns / 1_000_000) as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(id: u32, at_ns: u64) -> Program {
        let (span_ns, shares) = (1_000_000_000, TimeShares::ZERO);
        let point = Point { at_ns, span_ns, thread_ns: span_ns, shares, threads: 1 };
        Program { id, name: format!("p{id}"), points: [point].into(), ..Program::default() }
    }

    fn update(second: u64, ids: impl Iterator<Item = u32>) -> Update {
        let at_ns = second * 1_000_000_000;
        let decision = Decision {
            at_s: second as f64,
            unix_s: None,
            pid: None,
            program: String::new(),
            policy: "fair".into(),
            what: "nice".into(),
            why: "late".into(),
            outcome: Outcome::Done(1),
            repeated: 0,
        };
        let group = Group { group: 3, rates: [(at_ns, 2.0)].into(), ..Group::default() };
        Update {
            at_ns,
            programs: ids.map(|id| program(id, at_ns)).collect(),
            groups: vec![group],
            decisions: vec![decision; 3],
            ..Update::default()
        }
    }

    #[test]
    fn news_have_only_the_last_points_and_decisions() {
        let mut state = State::default();
        (1..=5).for_each(|second| state.update(update(second, 0..2)));
        let read = |part| serde_json::from_str::<serde_json::Value>(&state.json(part)).unwrap();
        let (whole, news) = (read(Part::Whole), read(Part::News));
        let lengths = |message: &serde_json::Value| {
            let length = |value: &serde_json::Value| value.as_array().unwrap().len();
            let program = length(&message["programs"][1]["points"]);
            (program, length(&message["groups"][0]["rates"]), length(&message["decisions"]))
        };
        assert_eq!((lengths(&whole), lengths(&news)), ((5, 5, 15), (1, 1, 3)));
        let point = serde_json::json!([5.0, 1.0, [0, 0, 0, 0, 0, 0, 0], 1, 0]);
        assert_eq!(news["programs"][0]["points"][0], point);
    }

    #[test]
    fn names_are_printable_for_the_script_as_well() {
        let mut state = State::default();
        let mut news = update(1, 0..1);
        let hidden = "a\u{202e}b\u{1b}";
        news.programs[0].name = hidden.into();
        news.decisions[0].why = hidden.into();
        news.decisions[1].outcome = Outcome::Refused(hidden.into());
        news.claims.push(Claim { claim: 1, pid: 1, name: hidden.into(), cpus: vec![], keep: None });
        news.notes.push(hidden.into());
        news.programs[0].policy = hidden.into();
        news.programs[0].changes = vec![hidden.into()];
        news.decisions[0].policy = hidden.into();
        state.update(news);
        for part in [Part::Whole, Part::News] {
            let json = state.json(part);
            assert!(!json.contains('\u{202e}') && !json.contains("\\u001b"), "{json}");
            assert_eq!(json.matches("a\\\\u{202e}b").count(), 8, "{json}");
        }
    }

    #[test]
    fn update_without_a_new_point_repeats_none() {
        let mut state = State::default();
        state.update(update(1, 0..1));
        let without = Program { points: VecDeque::new(), ..program(0, 0) };
        state.update(Update { programs: vec![without], ..update(2, 0..0) });
        assert_eq!(state.programs[0].points.len(), 1);
        assert!(state.json(Part::News).contains("\"points\":[]"));
    }

    #[test]
    fn decisions_that_an_update_leaves_out_are_a_line() {
        let mut state = State::default();
        state.update(Update { decisions_left_out: 744, ..update(1, 0..0) });
        assert_eq!(state.decisions.len(), 4);
        assert_eq!(state.decisions[3].what, "decisions left out here: 744");
    }

    #[test]
    fn program_stays_for_a_while_after_its_end() {
        let mut state = State::default();
        state.update(update(1, 0..2));
        state.update(update(2, 0..1));
        let gone = |state: &State| state.programs.iter().map(|p| p.gone_ns).collect::<Vec<_>>();
        assert_eq!(gone(&state), [None, Some(2_000_000_000)]);
        state.update(update(2 + GONE_NS / 1_000_000_000, 0..1));
        assert_eq!(gone(&state), [None]);
    }

    #[test]
    fn content_of_a_long_life_is_bounded() {
        let mut state = State::default();
        for second in 1..=1000 {
            // Each second, one program ends and another one begins.
            let first = second as u32;
            state.update(update(second, first..first + 8));
        }
        assert_eq!(state.decisions.len(), DECISIONS_MAX);
        assert_eq!(state.programs.len(), 8 + GONE_MAX);
        assert!(state.programs.iter().all(|p| p.points.len() <= POINTS_MAX));
        let series = 8 + GONE_MAX + 1;
        assert_eq!(state.groups[0].rates.len(), POINTS_OF_ALL_MAX / series);
        let many = || 0..256;
        (1001..=1100).for_each(|second| state.update(update(second, many())));
        let points: usize = state.programs.iter().map(|p| p.points.len()).sum();
        assert!(points <= POINTS_OF_ALL_MAX, "{points}");
    }
}
