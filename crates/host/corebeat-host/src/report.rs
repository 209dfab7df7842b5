//! The report of a run: one structure for one and for several programs, as JSON or as a table.

use crate::history::Point;
use crate::printable;
use crate::tally::{ProgramTally, Tally};
use corebeat_linux::{Allowance, Answer, Function, Remaining, SpinFunction, Usage};
use corebeat_machine::{Action, AppliedAction, Counters, Inaction, ProgramId, TimeShares};
use corebeat_policy::cosched::is_turn;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

/// Reason for which a policy whose actions changed nothing has not acted.
const INEFFECTIVE: &str = "its settings change nothing: the threads have these already, or a class \
                           without slices (idle, real-time)";

/// The report of one run. The page `run.md` of the book explains every field.
#[derive(Debug, Serialize)]
pub struct Report {
    /// All programs together. For one program, the same as its entry in `programs`.
    #[serde(flatten)]
    pub total: ProgramReport,
    /// The signal that requested the end of Corebeat, as the status of a process that it ends.
    #[serde(skip)]
    pub end_request: Option<ExitStatus>,
    /// Name of the policy.
    pub policy: &'static str,
    /// Slice of coscheduling, in milliseconds.
    pub slice_ms: Option<u64>,
    /// Number of threads that can use all CPU time, by affinity, cpuset and quota, rounded up.
    pub cpus: usize,
    /// CPUs on which the programs may run, by affinity and cpuset, such as `0-3,8`.
    pub cpus_allowed: String,
    /// Quota of the control groups, in CPUs.
    pub quota: Option<f64>,
    /// Answers to programs that count CPUs.
    pub answers: Vec<Answer>,
    /// Number of online CPUs of the host.
    #[serde(skip)]
    pub online: usize,
    /// Time for which the quota stopped the control group, in seconds.
    pub throttled_s: Option<f64>,
    /// Mean number of CPUs that other programs kept busy.
    pub others_busy: Option<f64>,
    /// CPU time of Corebeat itself, in seconds.
    pub watching_cpu_s: f64,
    /// Time for which Corebeat itself waited for a CPU, in seconds.
    pub watching_wait_s: Option<f64>,
    /// Number of observations.
    pub observations: u64,
    /// Number of observations that the period requests.
    pub observations_due: u64,
    /// One entry for each program, in the order of the command line.
    pub programs: Vec<ProgramReport>,
    /// Each program over time, with times since the start of the run, in the order of `programs`;
    /// without points unless requested.
    #[serde(skip)]
    pub series: Vec<Vec<Point>>,
    /// Missing sensors, restored changes, and other remarks; one line each.
    pub notes: Vec<String>,
}

/// One program of a report, or the sum of all programs.
#[derive(Debug, Clone, Serialize)]
pub struct ProgramReport {
    /// Program and arguments.
    pub command: Vec<String>,
    /// How the program ended. For all programs, the end that determines the exit status.
    pub ended: Ended,
    /// Time from the start to the end, in seconds.
    pub wall_s: f64,
    /// CPU time in user mode, in seconds.
    pub cpu_user_s: f64,
    /// CPU time in the kernel, in seconds.
    pub cpu_system_s: f64,
    /// Mean number of CPUs that the program kept busy.
    pub cpus_busy: Option<f64>,
    /// Number of different threads.
    pub threads_seen: usize,
    /// Largest number of threads in one observation.
    pub threads_max: usize,
    /// Mean time shares of the threads.
    pub shares: TimeShares,
    /// Functions with the largest parts of `shares.spin`, the largest first.
    pub spin_functions: Vec<FunctionShare>,
    /// Sums of the counters.
    pub counters: Counters,
    /// Bytes read and written by system calls.
    pub io_bytes: Option<u64>,
    /// OpenMP parallel regions by team size.
    pub regions: Vec<Regions>,
    /// Time for which coscheduling did not freeze the program, in seconds.
    pub turns_s: Option<f64>,
    /// Smallest possible part of `turns_s` for which the program had every CPU that it could use.
    pub coscheduled: Option<f64>,
    /// Applied and refused actions, without the freezes of coscheduling.
    pub applied: Vec<AppliedRow>,
    /// For each policy that applied nothing: why it left the program as it is.
    pub inactions: Vec<Inaction>,
}

/// The end of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// The program exited with this status.
    Exit(i32),
    /// A signal ended the program.
    Signal(i32),
    /// A process that Corebeat did not start has ended. Its parent receives the status.
    Unknown,
    /// Corebeat has detached from a process that it did not start.
    Detached,
}

/// Part of the share of spinning in one function.
#[derive(Debug, Clone, Serialize)]
pub struct FunctionShare {
    /// The function.
    #[serde(flatten)]
    pub function: Function,
    /// Share of the thread time, as `shares.spin`.
    pub share: f64,
}

/// OpenMP parallel regions that ran with one team size.
#[derive(Debug, Clone, Serialize)]
pub struct Regions {
    /// Threads of the team.
    pub size: u32,
    /// Number of executed regions.
    pub count: u64,
    /// Time in these regions, in seconds.
    pub time_s: f64,
}

/// An applied or refused action.
#[derive(Debug, Clone, Serialize)]
pub struct AppliedRow {
    /// Time since the start of the run, in seconds.
    pub at_s: f64,
    /// Name of the policy.
    pub policy: &'static str,
    /// Name of the program; empty for an action on a thread of unknown program.
    pub program: String,
    /// The action.
    pub action: Action,
    /// Reason for the action.
    pub why: String,
    /// Number of threads whose setting changed, or 1 for a setting of a whole program.
    pub changed: Option<u32>,
    /// Reason for the refusal, if the machine refused the action.
    pub failed: Option<String>,
}

impl From<ExitStatus> for Ended {
    fn from(status: ExitStatus) -> Self {
        match status.signal() {
            Some(signal) => Ended::Signal(signal),
            None => Ended::Exit(status.code().unwrap_or(1)),
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ended::Exit(code) => write!(f, "exit {code}"),
            Ended::Signal(signal) => write!(f, "signal {signal}"),
            Ended::Unknown => f.write_str("ended"),
            Ended::Detached => f.write_str("detached"),
        }
    }
}

impl fmt::Display for AppliedRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failed = self.failed.as_ref().map_or(String::new(), |e| format!(" FAILED: {e}"));
        let line = format!("{}: {} ({}){failed}", self.policy, self.action, self.why);
        write!(f, "  {:>7.1} s  {}", self.at_s, printable(&line))
    }
}

/// Smallest part of a program's CPU time that the observations must cover for the report to contain
/// shares.
const COVERED_MIN: f64 = 0.5;

/// Part of a program's CPU time below which a note names the uncovered part.
const COVERED_NOTED: f64 = 0.9;

/// Number of functions in which threads spin that a report lists.
const FUNCTIONS_MAX: usize = 3;

/// Smallest share of a listed function. A smaller share would be printed as zero.
const FUNCTION_SHARE_MIN: f64 = 0.0005;

/// CPU time of orphans above which a note names it: in seconds, and as a part of the CPU time of
/// the program.
const DETACHED_NOTED_S: f64 = 0.05;
const DETACHED_NOTED: f64 = 0.02;

/// Values about a program that only its supervisor has.
pub(crate) struct ProgramFrame {
    pub(crate) id: ProgramId,
    pub(crate) command: Vec<String>,
    pub(crate) ended: Ended,
    pub(crate) wall_s: f64,
    pub(crate) usage: Usage,
    /// Processes that still run.
    pub(crate) remaining: Remaining,
    pub(crate) turns_s: Option<f64>,
    pub(crate) coscheduled: Option<f64>,
    pub(crate) spin_functions: Vec<SpinFunction>,
    pub(crate) inactions: Vec<Inaction>,
}

/// Cost and number of the observations of a run.
pub(crate) struct Watching {
    pub(crate) cpu_s: f64,
    pub(crate) wait_s: Option<f64>,
    pub(crate) observations: u64,
    pub(crate) observations_due: u64,
}

impl Watching {
    /// Returns a note if fewer than nine of ten observations were made.
    fn delay(&self) -> Option<String> {
        let Watching { observations, observations_due: due, wait_s, .. } = *self;
        let wait = wait_s.map_or(String::new(), |s| format!(": it waited {s:.1} s for a CPU"));
        let is_delayed = observations * 10 < due * 9;
        is_delayed.then(|| format!("Corebeat observed {observations} of {due} times{wait}"))
    }
}

/// Values about a run that only its supervisor has.
pub(crate) struct Frame {
    /// The end that determines the exit status.
    pub(crate) ended: Ended,
    pub(crate) end_request: Option<ExitStatus>,
    pub(crate) policy: &'static str,
    pub(crate) slice_ms: Option<u64>,
    pub(crate) start_ns: u64,
    pub(crate) wall_s: f64,
    pub(crate) allowance: Allowance,
    /// Number of online CPUs of the host.
    pub(crate) online: usize,
    /// Answers to programs that count CPUs.
    pub(crate) answers: Vec<Answer>,
    pub(crate) throttled_s: Option<f64>,
    pub(crate) watching: Watching,
    /// Whether the run samples spinning.
    pub(crate) samples_spin: bool,
    pub(crate) programs: Vec<ProgramFrame>,
    pub(crate) notes: Vec<String>,
}

impl Report {
    /// Combines the sums of the loop with the values of the supervisor.
    pub(crate) fn new(frame: Frame, tally: &Tally) -> Self {
        let mut notes = frame.notes;
        let several = frame.programs.len() > 1;
        let names: Vec<(ProgramId, String)> =
            frame.programs.iter().map(|p| (p.id, short_name(&p.command, several))).collect();
        let whole = ProgramFrame {
            id: ProgramId(u32::MAX),
            command: frame
                .programs
                .iter()
                .map(|p| &p.command[..])
                .collect::<Vec<_>>()
                .join(&"--".to_owned()),
            ended: frame.ended,
            wall_s: frame.wall_s,
            usage: frame.programs.iter().map(|p| p.usage).fold(Usage::NONE, Usage::plus),
            remaining: Remaining::default(),
            turns_s: None,
            coscheduled: None,
            spin_functions: SpinFunction::ranking(
                frame.programs.iter().flat_map(|p| p.spin_functions.iter().cloned()),
            ),
            inactions: vec![],
        };
        notes.extend(frame.watching.delay());
        let concerns = |applied: &AppliedAction, id| {
            applied.decision.action.program().is_none_or(|program| program == id)
        };
        let start_ns = frame.start_ns;
        let mut programs = Vec::new();
        for (program, (id, name)) in frame.programs.into_iter().zip(&names) {
            let prefix = if several { format!("{name}: ") } else { String::new() };
            let sums = tally.programs.get(id);
            let applied = rows(tally, &names, start_ns, |applied| concerns(applied, *id));
            programs.push(ProgramReport::new(program, sums, applied, |note| {
                notes.push(format!("{prefix}{note}"));
            }));
        }
        if frame.samples_spin && !notes.iter().any(|note| note.starts_with("spin time")) {
            let is_unknown =
                |p: &&ProgramReport| p.shares.user.is_some() && p.shares.spin.is_none();
            notes.extend(programs.iter().filter(is_unknown).map(|program| {
                format!(
                    "the spin share of '{}' is unknown: there was no sample of a thread that ran",
                    short_name(&program.command, several)
                )
            }));
        }
        let total = match &programs[..] {
            [program] => program.clone(),
            _ => {
                let sums = tally.total(names.iter().map(|(id, _)| *id));
                let applied = rows(tally, &names, start_ns, |applied| {
                    programs.iter().zip(&names).any(|(program, (id, _))| {
                        concerns(applied, *id) && program.lists(applied.decision.policy)
                    })
                });
                ProgramReport::new(whole, sums.as_ref(), applied, drop)
            }
        };
        Report {
            total,
            end_request: frame.end_request,
            policy: frame.policy,
            slice_ms: frame.slice_ms,
            cpus: frame.allowance.threads_max(),
            cpus_allowed: frame.allowance.cpus.to_string(),
            quota: frame.allowance.quota,
            answers: frame.answers,
            online: frame.online,
            throttled_s: frame.throttled_s,
            others_busy: tally.others_busy(),
            watching_cpu_s: frame.watching.cpu_s,
            watching_wait_s: frame.watching.wait_s,
            observations: frame.watching.observations,
            observations_due: frame.watching.observations_due,
            programs,
            series: vec![],
            notes,
        }
    }
}

impl Report {
    /// Names of the programs, as in [`AppliedRow::program`].
    pub fn names(&self) -> Vec<String> {
        let several = self.programs.len() > 1;
        self.programs.iter().map(|program| short_name(&program.command, several)).collect()
    }

    /// The answers to programs that count CPUs, in one line; none if there are no answers.
    fn fmt_answers(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.answers.is_empty() {
            return Ok(());
        }
        let limit = match self.quota {
            Some(quota) if quota.ceil() as usize == self.cpus => format!("quota {quota:.2}"),
            _ => format!("CPUs {}", self.cpus_allowed),
        };
        let answer = |answer: &Answer| format!("{}={}", answer.name, answer.value);
        let answers: Vec<String> = self.answers.iter().map(answer).collect();
        let (usable, online) = (self.cpus, self.online);
        writeln!(
            f,
            "  CPUs        {usable} effective of {online} ({limit}): {}",
            answers.join(", ")
        )
    }
}

/// Rows for the actions on one program, or for all actions. Turns that succeeded are left out:
/// coscheduling freezes and thaws programs at the end of each slice.
fn rows(
    tally: &Tally,
    names: &[(ProgramId, String)],
    start_ns: u64,
    is_included: impl Fn(&AppliedAction) -> bool,
) -> Vec<AppliedRow> {
    let is_listed = |applied: &&AppliedAction| {
        (!is_turn(&applied.decision) || applied.outcome.is_err()) && is_included(applied)
    };
    let row = |applied: &AppliedAction| {
        let id = applied.decision.action.program();
        let name = match names {
            [(_, name)] => Some(name),
            _ => names.iter().find(|(program, _)| Some(*program) == id).map(|(_, name)| name),
        };
        AppliedRow {
            at_s: applied.at_ns.saturating_sub(start_ns) as f64 / 1e9,
            policy: applied.decision.policy,
            program: name.cloned().unwrap_or_default(),
            action: applied.decision.action.clone(),
            why: applied.decision.why.clone(),
            changed: applied.outcome.as_ref().ok().map(|effect| effect.changed),
            failed: applied.refusal().map(str::to_owned),
        }
    };
    tally.applied.iter().filter(is_listed).map(row).collect()
}

/// Notes CPU time that the CPU seconds of a program, `used_s`, do not include.
fn note_unaccounted(remaining: &Remaining, used_s: f64, note: &mut impl FnMut(String)) {
    let Remaining { processes, cpu_s, program_cpu_s, discards_children } = *remaining;
    if processes > 0 {
        note(format!(
            "detached processes still run ({processes}): their CPU time so far, {cpu_s:.2} s, is \
             not part of the report"
        ));
    }
    if discards_children {
        note(
            "a process ignores SIGCHLD: the kernel does not account the CPU time of its ended \
             children, so the CPU seconds do not include it"
                .to_owned(),
        );
    }
    let detached_s = program_cpu_s - used_s - cpu_s;
    if detached_s > DETACHED_NOTED_S && detached_s > DETACHED_NOTED * used_s {
        note(format!(
            "orphans used at least {detached_s:.2} s of CPU time, which is not part of the CPU \
             seconds"
        ));
    }
}

/// Removes the rows of policies whose actions changed nothing. Their inaction has a reason instead.
fn exclude_ineffective(rows: &mut Vec<AppliedRow>, inactions: &mut Vec<Inaction>) {
    let policies: BTreeSet<_> = rows.iter().map(|row| row.policy).collect();
    let acting: BTreeSet<_> =
        rows.iter().filter(|row| row.changed != Some(0)).map(|row| row.policy).collect();
    rows.retain(|row| acting.contains(row.policy));
    inactions.retain(|inaction| !policies.contains(inaction.policy));
    let ineffective = policies.difference(&acting);
    inactions.extend(ineffective.map(|policy| Inaction { policy, why: INEFFECTIVE.to_owned() }));
}

/// The shares of the most frequent functions in the time of all threads.
fn function_shares(functions: Vec<SpinFunction>, thread_ns: u64) -> Vec<FunctionShare> {
    let share = |f: SpinFunction| FunctionShare {
        function: f.function,
        share: f.time_ns / thread_ns as f64,
    };
    let listed = functions.into_iter().map(share).take(FUNCTIONS_MAX);
    listed.filter(|f| f.share >= FUNCTION_SHARE_MIN).collect()
}

/// Name of a program without its folder; with the first arguments if several programs could have
/// the same name.
fn short_name(command: &[String], with_arguments: bool) -> String {
    let name = command.first().map_or("", |c| c.rsplit('/').next().unwrap_or(c));
    let arguments = command.iter().skip(1).take(if with_arguments { 2 } else { 0 });
    [name].into_iter().chain(arguments.map(String::as_str)).collect::<Vec<_>>().join(" ")
}

impl ProgramReport {
    /// Whether the actions of a policy on this program are listed.
    fn lists(&self, policy: &str) -> bool {
        self.applied.iter().any(|row| row.policy == policy)
    }

    fn new(
        frame: ProgramFrame,
        sums: Option<&ProgramTally>,
        mut applied: Vec<AppliedRow>,
        mut note: impl FnMut(String),
    ) -> ProgramReport {
        let ProgramFrame { command, ended, wall_s, usage, turns_s, coscheduled, .. } = frame;
        let mut inactions = frame.inactions;
        exclude_ineffective(&mut applied, &mut inactions);
        let mut shares = sums.map(ProgramTally::shares).unwrap_or_default();
        let mut counters = sums.filter(|p| p.thread_ns > 0).map(|p| p.counters).unwrap_or_default();
        let used_s = usage.cpu_s();
        note_unaccounted(&frame.remaining, used_s, &mut note);
        // The shares are no measure of CPU time: the observed time of a thread that waits for a CPU
        // is divided in proportion.
        let observed_s = sums.map_or(0.0, ProgramTally::running_s);
        let covered = if used_s > 0.0 { observed_s / used_s } else { 1.0 };
        if covered < COVERED_NOTED {
            let consequence = if covered < COVERED_MIN {
                "so the report contains no shares"
            } else {
                "and the shares describe the rest"
            };
            note(format!(
                "{:.0}% of the CPU time belongs to threads that were not observed, because they \
                 started or ended between two observations, {consequence}",
                (1.0 - covered) * 100.0
            ));
        }
        let unknown = shares.blocked().filter(|_| shares.lock.is_none() && covered >= COVERED_MIN);
        match unknown {
            Some(_) if shares.sleep.is_some() => note(
                "lock and park are unknown: the kernel denies reading /proc/PID/task/TID/syscall, \
                 which requires the permission to trace the program; run as root"
                    .to_owned(),
            ),
            Some(blocked) => note(format!(
                "lock, park and sleep are unknown: threads were blocked for {:.0}% of their time, \
                 and too few samples show the cause; --exact-locks measures it",
                blocked * 100.0
            )),
            None => {}
        }
        if covered < COVERED_MIN {
            (shares, counters) = (TimeShares::default(), Counters::default());
        }
        // The kernel counts these to the end, also of threads that no observation found.
        if !matches!(ended, Ended::Detached | Ended::Unknown) {
            counters.voluntary_switches = Some(usage.voluntary_switches);
            counters.involuntary_switches = Some(usage.involuntary_switches);
        }
        let thread_ns = sums.filter(|_| shares.spin.is_some()).map(|p| p.thread_ns);
        let regions = sums.iter().flat_map(|p| &p.regions);
        ProgramReport {
            command,
            ended,
            wall_s,
            cpu_user_s: usage.user_s,
            cpu_system_s: usage.system_s,
            cpus_busy: (wall_s > 0.0).then(|| used_s / wall_s),
            threads_seen: sums.map_or(0, ProgramTally::threads_seen),
            threads_max: sums.map_or(0, |p| p.threads_max),
            shares,
            spin_functions: thread_ns.map_or_else(Vec::new, |thread_ns| {
                function_shares(frame.spin_functions, thread_ns)
            }),
            counters,
            io_bytes: usage.io_bytes,
            regions: regions
                .map(|(&size, &(count, ns))| Regions { size, count, time_s: ns as f64 / 1e9 })
                .collect(),
            turns_s,
            coscheduled,
            applied,
            inactions,
        }
    }

    fn rate(&self, count: Option<u64>) -> String {
        match count {
            Some(n) if self.wall_s > 0.0 => format!("{:.0}/s", n as f64 / self.wall_s),
            _ => "unknown".into(),
        }
    }

    /// `cpus` is the number of CPUs that the program may use, by affinity, cpuset and quota.
    fn cpu_line(&self, cpus: &str, others_busy: Option<f64>) -> String {
        let count = |c: Option<f64>| c.map_or_else(|| "unknown".into(), |c| format!("{c:.2}"));
        format!(
            "  CPUs busy   {} of {cpus} ({:.2} s user, {:.2} s system), others {}; threads: {} in \
             all, {} at once",
            count(self.cpus_busy),
            self.cpu_user_s,
            self.cpu_system_s,
            count(others_busy),
            self.threads_seen,
            self.threads_max
        )
    }

    /// Bars of the time shares, counters and OpenMP regions.
    fn fmt_figures(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = &self.shares;
        let rows = [
            ("user", s.user),
            ("  spinning", s.spin),
            ("system", s.system),
            ("lock", s.lock),
            ("park", s.park),
            ("wait", s.wait),
            ("sleep", s.sleep),
        ];
        if rows.iter().all(|(_, share)| share.is_none()) {
            writeln!(f, "  time shares unknown")?;
        } else {
            for (name, share) in rows {
                writeln!(
                    f,
                    "  {name:<11} {:>7} {}",
                    percent(share),
                    bar(share.unwrap_or(0.0), 40)
                )?;
            }
        }
        if !self.spin_functions.is_empty() {
            let function = |f: &FunctionShare| {
                format!("{} {}", printable(&f.function.to_string()), percent(Some(f.share)))
            };
            let functions: Vec<String> = self.spin_functions.iter().map(function).collect();
            writeln!(f, "  spinning in {}", functions.join(", "))?;
        }
        let c = &self.counters;
        let migrations = c
            .migrations
            .map_or(String::new(), |count| format!("; {} migrations", self.rate(Some(count))));
        writeln!(
            f,
            "  switches    {} voluntary, {} involuntary{migrations}",
            self.rate(c.voluntary_switches),
            self.rate(c.involuntary_switches),
        )?;
        if let (Some(misses), Some(references)) = (c.cache_misses, c.cache_references) {
            let ratio = (references > 0).then(|| misses as f64 / references as f64);
            let ratio = percent(ratio);
            writeln!(f, "  cache       {misses} misses of {references} references ({ratio})")?;
        }
        for Regions { size, count, time_s } in &self.regions {
            writeln!(f, "  teams of {size:<3} {count} parallel regions in {time_s:.2} s")?;
        }
        Ok(())
    }

    /// One program of several, in two lines.
    fn fmt_short(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = printable(&short_name(&self.command, true));
        write!(f, "  {name}: {:.2} s, {}", self.wall_s, self.ended)?;
        match self.turns_s {
            Some(turns_s) => {
                write!(f, "; turns {turns_s:.2} s, coscheduled ")?;
                match self.coscheduled {
                    Some(share) => writeln!(f, "at least {} of them", percent(Some(share)))?,
                    None => writeln!(f, "for an unknown time")?,
                }
            }
            None => writeln!(f)?,
        }
        let s = &self.shares;
        writeln!(
            f,
            "    {:.2} s CPU; user {}, system {}, lock {}, park {}, wait {}, sleep {}",
            self.cpu_user_s + self.cpu_system_s,
            percent(s.user),
            percent(s.system),
            percent(s.lock),
            percent(s.park),
            percent(s.wait),
            percent(s.sleep)
        )
    }
}

/// Lines about a running program.
#[derive(Debug, Clone, Copy)]
pub struct Interval {
    /// Least time from one line to the next. A line appears after an observation.
    pub every: Duration,
    /// Receives each line.
    pub print: fn(&str),
}

/// A line about these programs: their CPUs, threads and shares in a span of nanoseconds.
pub(crate) fn interval_line(
    tally: &Tally,
    ids: impl Iterator<Item = ProgramId>,
    span_ns: u64,
) -> String {
    let Some(sums) = tally.total(ids) else { return "no observation".into() };
    let (s, span_s) = (sums.shares(), span_ns as f64 / 1e9);
    let others = tally.others_busy().map_or_else(|| "unknown".into(), |cpus| format!("{cpus:.2}"));
    format!(
        "{:.2} CPUs busy, others {others}; {} threads; user {}, spinning {}, system {}, lock {}, \
         park {}, wait {}, sleep {}",
        sums.running_s() / span_s,
        sums.threads_max,
        percent(s.user),
        percent(s.spin),
        percent(s.system),
        percent(s.lock),
        percent(s.park),
        percent(s.wait),
        percent(s.sleep)
    )
}

/// A share as a percentage, or `unknown`.
pub fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "unknown".into(), |s| format!("{:.1}%", s * 100.0))
}

/// A bar in steps of an eighth of a character; `width` characters for 1.0.
pub fn bar(share: f64, width: usize) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (share.clamp(0.0, 1.0) * width as f64 * 8.0).round() as usize;
    format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { total, policy, programs, .. } = self;
        if let [program] = &programs[..] {
            let name = printable(&short_name(&program.command, false));
            let (wall_s, ended) = (total.wall_s, total.ended);
            writeln!(f, "corebeat: {name}: {wall_s:.2} s, {ended}, policy {policy}")?;
        } else {
            let slices = self.slice_ms.map_or(String::new(), |ms| format!(", turns of {ms} ms"));
            let (count, wall_s) = (programs.len(), total.wall_s);
            writeln!(f, "corebeat: {count} programs, {wall_s:.2} s, policy {policy}{slices}")?;
            programs.iter().try_for_each(|program| program.fmt_short(f))?;
        }
        let cpus = match self.quota.filter(|quota| *quota < self.cpus as f64) {
            Some(quota) => format!("{quota:.2}"),
            None => self.cpus.to_string(),
        };
        writeln!(f, "{}", total.cpu_line(&cpus, self.others_busy))?;
        if let Some(quota) = self.quota {
            let throttled =
                self.throttled_s.map_or(String::new(), |s| format!(", throttled {s:.2} s"));
            writeln!(f, "  quota       {quota:.2} CPUs on CPUs {}{throttled}", self.cpus_allowed)?;
        }
        self.fmt_answers(f)?;
        total.fmt_figures(f)?;
        for row in &total.applied {
            let program = match programs.len() {
                1 => String::new(),
                _ => format!(": {}", printable(&row.program)),
            };
            writeln!(f, "{row}{program}")?;
        }
        if total.applied.is_empty() && *policy != "none" {
            let inactions = || programs.iter().flat_map(|program| &program.inactions);
            let mut whys: Vec<String> =
                inactions().map(|i| printable(&format!("{}: {}", i.policy, i.why))).collect();
            // Programs of one run often have the same reason.
            whys.dedup();
            // Turns are not changes.
            if whys.is_empty() && self.slice_ms.is_none() {
                writeln!(f, "  no changes: no policy found a reason for one")?;
            }
            whys.iter().try_for_each(|why| writeln!(f, "  no changes  {why}"))?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "  note: {}", printable(note)))?;
        let own = if total.wall_s > 0.0 { self.watching_cpu_s / total.wall_s } else { 0.0 };
        writeln!(f, "  watching    took {:.2}% of one CPU", own * 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corebeat_machine::Decision;

    fn frame(programs: &[&str]) -> Frame {
        let program = |(n, name): (usize, &&str)| ProgramFrame {
            id: ProgramId(n as u32),
            command: vec![(*name).to_owned()],
            ended: Ended::Exit(0),
            wall_s: 0.0,
            usage: Usage::NONE,
            remaining: Remaining::default(),
            turns_s: None,
            coscheduled: None,
            spin_functions: vec![],
            inactions: vec![],
        };
        Frame {
            ended: Ended::Exit(0),
            end_request: None,
            policy: "none",
            slice_ms: None,
            start_ns: 0,
            wall_s: 0.0,
            allowance: Allowance { cpus: "0-1".parse().unwrap(), quota: None },
            online: 2,
            answers: vec![],
            throttled_s: None,
            watching: Watching { cpu_s: 0.0, wait_s: None, observations: 1, observations_due: 1 },
            samples_spin: true,
            programs: programs.iter().enumerate().map(program).collect(),
            notes: vec![],
        }
    }

    #[test]
    fn bar_length_is_proportional_to_the_share() {
        let bars = (bar(0.0, 4), bar(0.5, 4), bar(9.0, 4));
        assert_eq!(bars, (String::new(), "██".into(), "████".into()));
        assert_eq!(bar(f64::NAN, 4), "");
    }

    #[test]
    fn report_without_observations_is_printed() {
        let report = Report::new(frame(&["/bin/true"]), &Tally::default());
        assert!(report.to_string().starts_with("corebeat: true: 0.00 s, exit 0"));
        assert!(serde_json::to_string(&report).unwrap().contains(r#""ended":{"exit":0}"#));
    }

    #[test]
    fn names_in_a_report_are_escaped() {
        let mut frame = Frame { policy: "auto", ..frame(&["a\n\u{1b}[2J"]) };
        let odd = || "of a\n\u{1b}".to_owned();
        frame.notes = vec![odd()];
        frame.programs[0].inactions = vec![Inaction { policy: "team", why: odd() }];
        let mut tally = Tally::default();
        let text = Report::new(frame, &tally).to_string();
        let action = Action::SetTeam { program: ProgramId(0), size: None };
        let decision = Decision { policy: "team", action, why: odd() };
        tally.applied = vec![AppliedAction { at_ns: 0, decision, outcome: Err(odd()) }];
        let several = Report::new(self::frame(&["a\n\u{1b}", "b"]), &tally).to_string();
        for text in [text, several] {
            assert!(!text.contains('\u{1b}') && text.contains("a\\n\\u{1b}"), "{text}");
            assert!(!text.lines().any(|line| line.starts_with(['a', '\\'])), "{text}");
        }
    }

    /// Sums of a second of thread time, of which threads spin for 0.2 s, and a program that spins
    /// for these times in functions.
    fn spinning(functions: &[(&str, f64)], id: u32) -> (ProgramTally, Vec<SpinFunction>) {
        let shares = TimeShares { user: Some(0.5), spin: Some(0.2), ..TimeShares::ZERO };
        let function = |&(name, share): &(&str, f64)| SpinFunction {
            function: Function::Named { name: name.into(), file: format!("/lib/lib{id}.so\u{1b}") },
            time_ns: share * 1e9,
        };
        (ProgramTally::with_shares(shares), functions.iter().map(function).collect())
    }

    #[test]
    fn report_names_up_to_three_functions_in_which_threads_spin() {
        let report = |functions: &[(&str, f64)]| {
            let (mut frame, mut tally) = (frame(&["a"]), Tally::default());
            let (sums, functions) = spinning(functions, 0);
            frame.programs[0].spin_functions = functions;
            tally.programs.insert(ProgramId(0), sums);
            Report::new(frame, &tally)
        };
        let four = report(&[("f\n", 0.125), ("g", 0.0625), ("h", 0.0005), ("i", 0.0005)]);
        let line = "  spinning in f\\n in lib0.so\\u{1b} 12.5%, g in lib0.so\\u{1b} 6.2%, \
                    h in lib0.so\\u{1b} 0.1%";
        assert!(four.to_string().lines().any(|l| l == line), "{four}");
        let json = serde_json::to_value(&four).unwrap();
        let first = serde_json::json!(
            {"function": "f\n", "file": "/lib/lib0.so\u{1b}", "offset": null, "share": 0.125}
        );
        assert_eq!(json["spin_functions"][0], first);
        assert_eq!(json["programs"][0]["spin_functions"].as_array().unwrap().len(), 3);
        let little = report(&[("f", 0.0004)]);
        assert!(!little.to_string().contains("spinning in"), "{little}");
        assert!(little.total.spin_functions.is_empty());
    }

    #[test]
    fn report_of_several_programs_adds_up_the_functions_in_which_they_spin() {
        let (mut frame, mut tally) = (frame(&["a", "b", "c"]), Tally::default());
        for (at, file) in [0, 0, 1].into_iter().enumerate() {
            let (sums, functions) = spinning(&[("f", 0.15), ("g", 0.05)], file);
            frame.programs[at].spin_functions = functions;
            tally.programs.insert(ProgramId(at as u32), sums);
        }
        let report = Report::new(frame, &tally);
        let shares = |functions: &[FunctionShare]| -> Vec<String> {
            functions.iter().map(|f| format!("{} {:.3}", f.function.short(), f.share)).collect()
        };
        assert_eq!(shares(&report.total.spin_functions), ["f 0.100", "f 0.050", "g 0.033"]);
        assert_eq!(shares(&report.programs[2].spin_functions), ["f 0.150", "g 0.050"]);
        // Unknown spin time has no functions.
        let (mut frame, mut tally) = (self::frame(&["a"]), Tally::default());
        frame.programs[0].spin_functions = spinning(&[("f", 0.1)], 0).1;
        let shares = TimeShares { spin: None, ..TimeShares::ZERO };
        tally.programs.insert(ProgramId(0), ProgramTally::with_shares(shares));
        assert!(Report::new(frame, &tally).total.spin_functions.is_empty());
    }

    #[test]
    fn report_without_shares_has_one_line_about_them_and_names_the_quota() {
        let mut frame = frame(&["true"]);
        frame.allowance.quota = Some(0.3);
        let text = Report::new(frame, &Tally::default()).to_string();
        assert!(text.contains("  time shares unknown\n") && !text.contains("spinning"), "{text}");
        assert!(!text.contains("migrations"), "{text}");
        assert!(text.contains(" of 0.30 ("), "{text}");
    }

    #[test]
    fn report_lists_the_answers_to_programs_that_count_cpus() {
        let answer = |name| Answer { name, value: "1".into(), replaced: None };
        let mut frame = frame(&["a"]);
        frame.answers = vec![answer("OPENBLAS_NUM_THREADS"), answer("GOMAXPROCS")];
        frame.allowance.quota = Some(0.75);
        let report = Report::new(frame, &Tally::default());
        let line =
            "  CPUs        1 effective of 2 (quota 0.75): OPENBLAS_NUM_THREADS=1, GOMAXPROCS=1";
        assert!(report.to_string().lines().any(|l| l == line), "{report}");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["answers"][1]["name"], "GOMAXPROCS");
    }

    #[test]
    fn report_states_why_each_policy_changed_nothing() {
        let mut frame = Frame { policy: "auto", ..frame(&["a"]) };
        let why = "other programs keep 1.3 CPUs busy; faithful needs less than 0.25";
        frame.programs[0].inactions = vec![Inaction { policy: "faithful", why: why.to_owned() }];
        let report = Report::new(frame, &Tally::default());
        assert!(report.to_string().contains(&format!("  no changes  faithful: {why}\n")));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["programs"][0]["inactions"][0]["policy"], "faithful");
    }

    #[test]
    fn policy_whose_actions_changed_nothing_has_not_acted() {
        let applied = |policy, program, outcome: Result<u32, String>| {
            let target = corebeat_machine::Target::Program(ProgramId(program));
            let action = Action::SetSlice { target, slice_us: Some(50_000) };
            let decision = Decision { policy, action, why: "threads wait".into() };
            let outcome = outcome.map(|changed| corebeat_machine::Effect { changed });
            AppliedAction { at_ns: 0, decision, outcome }
        };
        for policy in ["faithful", "tranquilizer", "adapt"] {
            for (outcomes, listed) in [
                (vec![], (0, 1)),
                (vec![Ok(0), Ok(0)], (0, 1)),
                (vec![Ok(0), Ok(8)], (2, 0)),
                (vec![Ok(0), Err("not permitted".into())], (2, 0)),
            ] {
                let mut frame = Frame { policy, ..frame(&["a"]) };
                let why = "threads wait rarely".to_owned();
                frame.programs[0].inactions = vec![Inaction { policy, why }];
                let mut tally = Tally::default();
                tally.applied = outcomes.into_iter().map(|o| applied(policy, 0, o)).collect();
                let report = Report::new(frame, &tally);
                for part in [&report.total, &report.programs[0]] {
                    assert_eq!((part.applied.len(), part.inactions.len()), listed);
                }
                let is_ineffective = !tally.applied.is_empty() && listed.0 == 0;
                assert_eq!(report.to_string().contains(INEFFECTIVE), is_ineffective, "{report}");
            }
        }
        // Of several programs, the others keep their rows.
        let mut tally = Tally::default();
        tally.applied = vec![applied("adapt", 0, Ok(0)), applied("adapt", 1, Ok(8))];
        let report = Report::new(frame(&["a", "b"]), &tally);
        let listed = |part: &ProgramReport| (part.applied.len(), part.inactions.len());
        assert_eq!(report.programs.iter().map(listed).collect::<Vec<_>>(), [(0, 1), (1, 0)]);
        assert_eq!(report.total.applied.len(), 1);
        assert_eq!(report.total.applied[0].program, report.programs[1].applied[0].program);
    }

    #[test]
    fn unknown_spin_time_is_noted_unless_the_sensor_is_missing() {
        let shares = TimeShares { spin: None, ..TimeShares::ZERO };
        let mut tally = Tally::default();
        tally.programs.insert(ProgramId(0), ProgramTally::with_shares(shares));
        let notes = |notes: &[&str], samples_spin| {
            let notes = notes.iter().map(|note| (*note).to_owned()).collect();
            Report::new(Frame { notes, samples_spin, ..frame(&["a"]) }, &tally).notes
        };
        assert_eq!(
            notes(&[], true),
            ["the spin share of 'a' is unknown: there was no sample of a thread that ran"]
        );
        assert_eq!(notes(&["spin time is not measured"], true).len(), 1);
        assert!(notes(&[], false).is_empty());
    }

    #[test]
    fn delayed_observations_are_noted() {
        let mut frame = frame(&["a"]);
        frame.watching =
            Watching { cpu_s: 0.0, wait_s: Some(7.1), observations: 3, observations_due: 16 };
        let report = Report::new(frame, &Tally::default());
        let note = "Corebeat observed 3 of 16 times: it waited 7.1 s for a CPU";
        assert_eq!(report.notes, [note]);
    }

    #[test]
    fn orphans_are_noted_by_the_time_that_the_kernel_accounts() {
        let shares = TimeShares { user: Some(1.0), ..TimeShares::ZERO };
        let mut tally = Tally::default();
        tally.programs.insert(ProgramId(0), ProgramTally::with_shares(shares));
        let notes = |program_cpu_s| {
            let mut frame = frame(&["a"]);
            // The shares contain a whole second.
            frame.programs[0].usage.user_s = 0.5;
            frame.programs[0].remaining = Remaining { program_cpu_s, ..Remaining::default() };
            Report::new(frame, &tally).notes.concat()
        };
        assert!(!notes(0.5).contains("orphans"), "{}", notes(0.5));
        assert!(notes(0.75).contains("orphans used at least 0.25 s"), "{}", notes(0.75));
    }

    #[test]
    fn children_without_accounting_are_noted() {
        let notes = |discards_children| {
            let mut frame = frame(&["a"]);
            frame.programs[0].remaining = Remaining { discards_children, ..Remaining::default() };
            Report::new(frame, &Tally::default()).notes.concat()
        };
        assert!(!notes(false).contains("SIGCHLD"), "{}", notes(false));
        assert!(notes(true).contains("a process ignores SIGCHLD"), "{}", notes(true));
    }

    #[test]
    fn report_has_one_schema_for_one_and_for_several_programs() {
        let json = |programs: &[&str]| {
            serde_json::to_value(Report::new(frame(programs), &Tally::default())).unwrap()
        };
        let keys = |value: &serde_json::Value| {
            value.as_object().unwrap().keys().cloned().collect::<Vec<_>>()
        };
        let (one, two) = (json(&["a"]), json(&["a", "b"]));
        assert_eq!(keys(&one), keys(&two));
        assert_eq!(keys(&one["programs"][0]), keys(&two["programs"][1]));
        assert_eq!(two["command"], serde_json::json!(["a", "--", "b"]));
    }
}
