//! A whole run: programs from their start to their end under a policy, and the report.

use crate::clock::{now_ns, own_cpu_s};
use crate::control::Periods;
use crate::error::Error;
use crate::history::{History, Point};
use crate::report::{Ended, Frame, Interval, ProgramFrame, Report, Watching};
use crate::supervisor::{Input, Run, Supervisor, null};
use corebeat_kernel::{KernelScheduler, KernelTable};
use corebeat_linux::{
    Allowance, Answer, Launch, LinuxMachine, MemoryPolicy, Options, Remaining, SpinFunction,
    TeamChannel, Usage, answers, restore_all, state_dir, throttled_s, topology, waited_s,
};
use corebeat_machine::{
    Action, AppliedAction, CoscheduledSet, CpuId, CpuSet, Decision, Inaction, Machine, Policy,
    ProgramId, Snapshot, ThreadId, Turns,
};
use corebeat_policy::adapt::Model;
use corebeat_policy::catalogue::{Context, Instance, Need, PolicyName, Scope};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// Default slice of coscheduling, in milliseconds.
const SLICE_MS: u64 = 50;

/// Time from one sample to the next for adapt, in nanoseconds: its observations of one program
/// alone are short.
const ADAPT_SAMPLE_NS: u64 = 10_000_000;

/// How a run is made.
#[derive(Debug)]
pub struct RunOptions {
    /// Programs with their arguments.
    pub programs: Vec<Vec<OsString>>,
    /// Running processes to attach to, instead of programs to start.
    pub attach: Vec<ThreadId>,
    /// Policy that acts on the programs.
    pub policy: PolicyName,
    /// Name of this host's processor and the model that was trained on this host, for adapt.
    pub model: Option<(String, Model)>,
    /// Time from one observation to the next, in milliseconds, if not that of the policy.
    pub period_ms: Option<u64>,
    /// Slice of coscheduling, in milliseconds, if not 50.
    pub slice_ms: Option<u64>,
    /// Environment variables to set.
    pub env: Vec<(OsString, OsString)>,
    /// Count events and sample spinning of the threads.
    pub counters: bool,
    /// Measure lock times exactly, by BPF.
    pub exact_locks: bool,
    /// CPUs on which the programs may run, if not those of Corebeat.
    pub cpus: Option<CpuSet>,
    /// Nice value to add to that of Corebeat, for the programs.
    pub nice: Option<i32>,
    /// Largest number of CPU seconds per second for each program.
    pub quota: Option<f64>,
    /// Load the library that sizes OpenMP teams into the programs, and set the variables of
    /// runtimes that would start more threads than can run, if the policy uses both.
    pub preload: bool,
    /// Lower thread counts that the user has set in variables.
    pub overrides: bool,
    /// Let policies change the scheduling class.
    pub class: bool,
    /// Load the scheduler into the kernel, and move the programs to it.
    pub kernel: bool,
    /// Let this scheduler schedule all threads of the host.
    pub all: bool,
    /// Let the kernel count the threads, instead of reading their files, if that is permitted. The
    /// counts include those of `exact_locks`.
    pub tables: bool,
    /// Record the programs over time, for [`Report::series`].
    pub history: bool,
    /// Lines about the running programs.
    pub interval: Option<Interval>,
    /// Placement of the programs' memory on NUMA nodes.
    pub memory: Option<MemoryPolicy>,
    /// Standard input, if it is not that of Corebeat.
    pub input: Option<Input>,
    /// Standard output, if it is not that of Corebeat.
    pub stdout: Option<File>,
    /// Start the programs without standard streams, except `input` and `stdout`.
    pub is_silent: bool,
}

impl Default for RunOptions {
    /// No program, no policy, and everything else as for a program that starts without Corebeat.
    fn default() -> Self {
        RunOptions {
            programs: vec![],
            attach: vec![],
            policy: PolicyName::None,
            model: None,
            period_ms: None,
            slice_ms: None,
            env: vec![],
            counters: true,
            exact_locks: false,
            cpus: None,
            nice: None,
            quota: None,
            preload: true,
            overrides: false,
            class: true,
            kernel: false,
            all: false,
            tables: false,
            history: false,
            interval: None,
            memory: None,
            input: None,
            stdout: None,
            is_silent: false,
        }
    }
}

/// Undoes the changes that a killed Corebeat has left. Returns one note for each change.
pub fn restore_killed() -> Vec<String> {
    // Without a folder there is no journal.
    let Ok(dir) = state_dir() else { return vec![] };
    match restore_all(&dir) {
        Ok(journals) => {
            let undone = journals.restored.undone.iter();
            undone.map(|change| format!("restored from a killed run: {change}")).collect()
        }
        Err(e) => vec![format!("changes of a killed run could not be restored: {e}")],
    }
}

/// Whether a policy accepts several programs.
pub fn accepts_several(policy: PolicyName) -> bool {
    let accepts = [PolicyName::Auto, PolicyName::None].contains(&policy);
    accepts || policy.entry().scope == Scope::SeveralPrograms
}

/// Splits a command line at each `--` into programs, and removes one backslash from words such as
/// `\\--`, which stand for a literal `--`.
///
/// # Errors
/// A program is empty, or the policy acts on one program and the command line has several.
pub fn split_programs(
    command: &[OsString],
    policy: PolicyName,
) -> Result<Vec<Vec<OsString>>, Error> {
    let programs: Vec<&[OsString]> = command.split(|word| word == "--").collect();
    if programs.len() > 1 && !accepts_several(policy) {
        return Err(Error::invalid(format!(
            "the policy {policy} acts on one program, and '--' separates two; choose --policy auto, \
             coscheduling, adapt or none, or write '\\--' for an argument '--'"
        )));
    }
    if programs.iter().any(|program| program.is_empty()) {
        return Err(Error::invalid(
            "a program is missing; write -- PROGRAM ARGUMENTS for each program",
        ));
    }
    let unescape = |word: &OsString| match word.as_bytes().strip_prefix(b"\\") {
        Some(rest) if is_escaped(rest) => std::ffi::OsStr::from_bytes(rest).to_owned(),
        _ => word.clone(),
    };
    Ok(programs.iter().map(|program| program.iter().map(unescape).collect()).collect())
}

/// Whether a word, after one backslash, is `--` after any number of backslashes.
fn is_escaped(rest: &[u8]) -> bool {
    rest.strip_suffix(b"--").is_some_and(|slashes| slashes.iter().all(|&byte| byte == b'\\'))
}

/// Runs programs to their ends under a policy. Returns the status of the first program that failed,
/// else that of the last one, and the report. Every change is undone. For processes that ran
/// already, the status is 0, or 125 if a change could not be undone: the report has a note, and the
/// next [`restore_killed`] tries again.
///
/// # Errors
/// A program cannot be started: the others are killed. The programs cannot be observed: they
/// continue without Corebeat.
pub fn run(options: RunOptions) -> Result<(ExitStatus, Report), Error> {
    let mut notes = restore_killed();
    let (commands, attach) = (options.programs.clone(), options.attach.clone());
    let (policy, interval) = (options.policy, options.interval);
    let allowance = Allowance::of_this_process().of_program(options.cpus.as_ref(), options.quota);
    let takes_turns = policy.entry().needs(Need::CoscheduledSets);
    let slice_ms = takes_turns.then(|| options.slice_ms.unwrap_or(SLICE_MS));
    let samples_spin = options.counters && slice_ms.is_none();
    let observe_ns = periods(&options).observe_ns;
    let history = options.history.then(History::default);
    let Held { mut supervisor, ids, answers } = hold(options, &allowance, slice_ms, &mut notes)?;
    let (own_s, waited_before_s, throttled_before_s) = (own_cpu_s(), waited_s(), throttled_s());
    supervisor.release()?;
    let mut run = Run::new(&mut supervisor, &ids);
    (run.interval, run.history) = (interval, history);
    run.requires_freezing = policy.entry().scope == Scope::SeveralPrograms;
    let ran = supervisor.control.drive(&mut run);
    supervisor.ignore_repeated_requests();
    let end_ns = now_ns();
    let watching_cpu_s = own_cpu_s() - own_s;
    let watching_wait_s = waited_s().zip(waited_before_s).map(|(end, start)| end - start);
    let around_s = throttled_s().zip(throttled_before_s).map(|(end, start)| end - start);
    // The groups of the programs do not exist after the restoration.
    let within_s = ids.iter().filter_map(|&id| supervisor.machine().throttled_s(id));
    let throttled_s = around_s.into_iter().chain(within_s).reduce(|a, b| a + b);
    let turns: BTreeMap<ProgramId, Turns> =
        ids.iter().filter_map(|&id| Some((id, supervisor.machine().turns(id)?))).collect();
    let left = supervisor.machine().restore().left;
    let lost = supervisor.control.clock().take_failure();
    if let Some(failure) = ran.err().or(lost) {
        supervisor.leave_feeder();
        return Err(failure.into());
    }
    notes.append(&mut run.notes);
    notes.extend(left.into_iter().map(|line| format!("{NOT_RESTORED}{line}")));
    notes.extend(supervisor.machine().notes());
    let (status, programs) = match attach.is_empty() {
        true => started(&mut supervisor, &commands, &run, takes_turns, &turns)?,
        false => {
            let code = if supervisor.machine().keeps_changes() { CHANGES_LEFT } else { 0 };
            let programs = attached(&mut supervisor, &attach, &run, end_ns);
            (ExitStatus::from_raw(code << 8), programs)
        }
    };
    let ended = match attach.is_empty() {
        true => Ended::from(status),
        false => programs.first().map_or(Ended::Unknown, |program| program.ended),
    };
    let start_ns = supervisor.start_ns;
    let stopped_ns = supervisor.control.clock().stopped_ns;
    let frame = Frame {
        ended,
        end_request: supervisor.end_request(),
        policy: policy.text(),
        slice_ms,
        start_ns,
        wall_s: end_ns.saturating_sub(start_ns) as f64 / 1e9,
        allowance,
        online: topology().cpus().len(),
        answers,
        throttled_s,
        watching: Watching {
            cpu_s: watching_cpu_s,
            wait_s: watching_wait_s,
            observations: run.observations,
            observations_due: end_ns.saturating_sub(start_ns).saturating_sub(stopped_ns)
                / observe_ns,
        },
        samples_spin,
        programs,
        notes,
    };
    let ids: Vec<ProgramId> = frame.programs.iter().map(|program| program.id).collect();
    let mut report = Report::new(frame, &run.tally);
    report.series = series(run.history.unwrap_or_default(), &ids, start_ns);
    Ok((status, report))
}

/// The points of each program, with times since the start of the run.
fn series(history: History, ids: &[ProgramId], start_ns: u64) -> Vec<Vec<Point>> {
    let mut points = history.finish();
    let since_start = |p: Point| Point { at_ns: p.at_ns.saturating_sub(start_ns), ..p };
    let of = |id| points.remove(id).into_iter().flatten().map(since_start).collect();
    ids.iter().map(of).collect()
}

/// The ends of programs that Corebeat started, and the status of the first one that failed, else
/// that of the last one.
fn started(
    supervisor: &mut Supervisor,
    commands: &[Vec<OsString>],
    run: &Run,
    takes_turns: bool,
    turns: &BTreeMap<ProgramId, Turns>,
) -> Result<(ExitStatus, Vec<ProgramFrame>), Error> {
    let start_ns = supervisor.start_ns;
    let mut programs = vec![];
    let mut status: Option<ExitStatus> = None;
    let ids: Vec<ProgramId> = supervisor.control.clock().children.iter().map(|c| c.id).collect();
    let mut inactions: BTreeMap<_, _> =
        ids.iter().map(|&id| (id, supervisor.control.inactions(id))).collect();
    let mut spin_functions: BTreeMap<_, _> =
        ids.iter().map(|&id| (id, functions(supervisor, run, id))).collect();
    let remaining: Vec<Remaining> =
        run.times.iter().map(|time| supervisor.machine().remaining(time.id)).collect();
    let children = supervisor.control.clock().children.iter();
    let frames = children.zip(commands).zip(&run.times).zip(remaining);
    for (((child, command), time), remaining) in frames {
        let end = child.end.ok_or_else(|| Error::failed("the exit status of a program is lost"))?;
        status = status.filter(|status| !status.success()).or(Some(end.status));
        let (sum, span_ns) = time.together_ns;
        let shows_turns = takes_turns || time.has_been_frozen;
        // The scheduler in the kernel has measured each change; the snapshots have bounds.
        let (ran_ns, sum, span_ns) = match turns.get(&child.id) {
            Some(turns) => (turns.on_ns, turns.together_ns as f64, turns.on_ns),
            None => (time.ran_ns, sum, span_ns),
        };
        programs.push(ProgramFrame {
            id: child.id,
            command: command.iter().map(|c| c.to_string_lossy().into_owned()).collect(),
            ended: end.status.into(),
            wall_s: end.at_ns.saturating_sub(start_ns) as f64 / 1e9,
            usage: child.started.usage(),
            remaining,
            turns_s: shows_turns.then_some(ran_ns as f64 / 1e9),
            coscheduled: (shows_turns && span_ns > 0).then(|| sum / span_ns as f64),
            spin_functions: spin_functions.remove(&child.id).unwrap_or_default(),
            inactions: inactions.remove(&child.id).unwrap_or_default(),
        });
    }
    Ok((status.ok_or_else(missing)?, programs))
}

/// The observed spans of processes that Corebeat attached to.
fn attached(
    supervisor: &mut Supervisor,
    processes: &[ThreadId],
    run: &Run,
    end_ns: u64,
) -> Vec<ProgramFrame> {
    let wall_s = end_ns.saturating_sub(supervisor.start_ns) as f64 / 1e9;
    let ids = supervisor.attached.clone();
    let frame = |(process, id): (&ThreadId, ProgramId)| {
        let is_alive = supervisor.machine().is_alive(id);
        let cpu_s = supervisor.machine().remaining(id).program_cpu_s;
        ProgramFrame {
            id,
            command: vec![format!("process {}", process.tid)],
            ended: if is_alive { Ended::Detached } else { Ended::Unknown },
            wall_s,
            usage: run.tally.programs.get(&id).map_or(Usage::NONE, |sums| sums.usage(cpu_s)),
            remaining: Remaining::default(),
            turns_s: None,
            coscheduled: None,
            spin_functions: functions(supervisor, run, id),
            inactions: supervisor.control.inactions(id),
        }
    };
    processes.iter().zip(ids).map(frame).collect()
}

/// The functions in which the threads of a program spun.
fn functions(supervisor: &mut Supervisor, run: &Run, id: ProgramId) -> Vec<SpinFunction> {
    let times = run.spin_times.get(&id);
    times.map_or_else(Vec::new, |times| supervisor.machine().spin_functions(times))
}

fn missing() -> Error {
    Error::invalid("a program is missing; write it after --")
}

/// Programs before their first instructions.
struct Held {
    supervisor: Supervisor,
    ids: Vec<ProgramId>,
    answers: Vec<Answer>,
}

/// Creates the machine, the policies and the programs, and holds the programs before their first
/// instructions.
fn hold(
    options: RunOptions,
    allowance: &Allowance,
    slice_ms: Option<u64>,
    notes: &mut Vec<String>,
) -> Result<Held, Error> {
    // Slices are short: counters would cost a program that takes turns more than they show.
    let detailed = options.counters && slice_ms.is_none();
    let table = options.tables.then(KernelTable::load).transpose();
    let table = table.unwrap_or_else(|why| {
        notes.push(format!("threads are read from /proc: {why}"));
        None
    });
    let machine = LinuxMachine::new(Options {
        counters: detailed,
        spin: detailed,
        // A table with causes has the times already.
        exact_locks: options.exact_locks && !table.as_ref().is_some_and(KernelTable::has_causes),
        allowed_cpus: true,
        // Programs can observe signals. The user has not asked for turns.
        freezes_by_groups_only: options.policy == PolicyName::Auto,
        ..Options::default()
    })?;
    let mut supervisor = Supervisor::new(machine, periods(&options));
    if options.kernel {
        let scheduler = KernelScheduler::load(options.all).map_err(Error::failed)?;
        supervisor.machine().set_scheduler(Box::new(scheduler));
    }
    if let Some(table) = table {
        supervisor.machine().set_table(Box::new(table));
    }
    // From here on, a signal must not end this process before its files are removed.
    supervisor.take_signals()?;
    let (env, answers) = environment(&options, allowance, supervisor.machine(), notes);
    let stdin = options.input.as_ref().map(|input| {
        supervisor.feed(input);
        &input.file
    });
    let several = options.programs.len() > 1;
    let null = options.is_silent.then(null).transpose()?;
    let copy = |file: &File| file.try_clone().map_err(Error::failed);
    let mut ids = vec![];
    for command in &options.programs {
        let (program, arguments) = command.split_first().ok_or_else(missing)?;
        let mut launch = Launch::new(program, arguments.iter().cloned());
        // With several programs, an orphan cannot be attributed to one of them.
        launch.keep_orphans = !several;
        launch.memory.clone_from(&options.memory);
        launch.cpus.clone_from(&options.cpus);
        launch.nice = options.nice;
        launch.env.clone_from(&env);
        launch.stdin = stdin.or(null.as_ref()).map(copy).transpose()?;
        launch.stdout = options.stdout.as_ref().or(null.as_ref()).map(copy).transpose()?;
        launch.stderr = null.as_ref().map(copy).transpose()?;
        ids.push(supervisor.hold(&launch)?);
    }
    for &process in &options.attach {
        ids.push(supervisor.attach(process)?);
    }
    for &program in &ids {
        supervisor.machine().admit(program)?;
    }
    for &program in ids.iter().filter(|_| options.quota.is_some()) {
        supervisor.machine().act(&Action::SetQuota { program, cpus: options.quota })?;
    }
    let policies = policies(&mut supervisor, &options, allowance, &ids, slice_ms, notes)?;
    supervisor.control.set_policies(policies);
    Ok(Held { supervisor, ids, answers })
}

/// Exit status of a run that leaves changes to processes that it has not started.
const CHANGES_LEFT: i32 = 125;

/// Begin of the note about a change that is not undone.
pub const NOT_RESTORED: &str = "not restored: ";

/// Variables to set for the programs.
type Variables = Vec<(OsString, Option<OsString>)>;

/// Returns the variables of the programs, with the answers to programs that count CPUs. Creates the
/// channel to OpenMP teams, if the policy uses it.
fn environment(
    options: &RunOptions,
    allowance: &Allowance,
    machine: &mut LinuxMachine,
    notes: &mut Vec<String>,
) -> (Variables, Vec<Answer>) {
    let mut env: Variables =
        options.env.iter().map(|(name, value)| (name.clone(), Some(value.clone()))).collect();
    if !options.policy.entry().needs(Need::TeamChannel)
        || !options.preload
        || options.programs.is_empty()
    {
        return (env, vec![]);
    }
    let set = |name: &str| options.env.iter().rfind(|(k, _)| k == name).map(|(_, v)| v.clone());
    let current = |name: &str| set(name).or_else(|| std::env::var_os(name));
    let mut add = |(name, value)| env.push((name, Some(value)));
    let channel = TeamChannel::create()
        .map_err(|e| notes.push(format!("OpenMP teams keep their sizes: {e}")))
        .ok();
    let online = topology().cpus().len();
    let answers = answers(allowance, online, current, options.overrides, channel.is_some());
    notes.extend(answers.iter().filter_map(|answer| lowered(answer, allowance)));
    answers.iter().map(Answer::variable).for_each(&mut add);
    if let Some(channel) = channel {
        channel.environment(current).into_iter().for_each(add);
        machine.set_teams(channel);
    }
    (env, answers)
}

/// Returns the note about a thread count that the user has set and that Corebeat lowers.
fn lowered(answer: &Answer, allowance: &Allowance) -> Option<String> {
    let asked = answer.replaced.as_ref()?;
    let quota = allowance.quota.map_or(String::new(), |quota| format!(", quota {quota:.2} CPUs"));
    Some(format!(
        "{}={asked} was reduced to {}: the program may use CPUs {}{quota}; --no-preload keeps the \
         value",
        answer.name, answer.value, allowance.cpus,
    ))
}

/// A policy without changes of the scheduling class.
struct WithoutClass(Box<dyn Policy>);

impl Policy for WithoutClass {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn decide(&mut self, snapshot: &Snapshot) -> Vec<Decision> {
        let is_class = |d: &Decision| matches!(d.action, Action::SetClass { .. });
        let (refused, kept): (Vec<_>, Vec<_>) =
            self.0.decide(snapshot).into_iter().partition(is_class);
        for decision in refused {
            let outcome = Err("--no-class excludes changes of the scheduling class".into());
            self.0.outcome(&AppliedAction { at_ns: snapshot.at_ns, decision, outcome });
        }
        kept
    }

    fn outcome(&mut self, applied: &AppliedAction) {
        self.0.outcome(applied);
    }

    fn inactions(&self, program: ProgramId) -> Vec<Inaction> {
        self.0.inactions(program)
    }
}

fn periods(options: &RunOptions) -> Periods {
    let period_ms = options.period_ms.unwrap_or(options.policy.entry().period_ms);
    if options.policy.entry().needs(Need::CoscheduledSets) {
        // One observation at the end of each slice, and no samples. The scheduler in the kernel
        // changes turns by itself.
        let slice_ms = options.slice_ms.unwrap_or(SLICE_MS);
        let observe_ms = if options.kernel { period_ms } else { slice_ms };
        return Periods { observe_ns: observe_ms * 1_000_000, sample_ns: u64::MAX };
    }
    match options.policy {
        PolicyName::Adapt => Periods { sample_ns: ADAPT_SAMPLE_NS, ..Periods::every_ms(period_ms) },
        _ => Periods::every_ms(period_ms),
    }
}

/// Builds the policy for the programs. Adds a note if it will never act on this machine.
fn policies(
    supervisor: &mut Supervisor,
    options: &RunOptions,
    allowance: &Allowance,
    ids: &[ProgramId],
    slice_ms: Option<u64>,
    notes: &mut Vec<String>,
) -> Result<Vec<Box<dyn Policy>>, Error> {
    let part = topology().restricted(&allowance.cpus);
    let topology = part.unwrap_or_else(|| supervisor.machine().topology().clone());
    let cpus = topology.cpus().len() as u32;
    let programs: Vec<(ProgramId, u32)> = ids.iter().map(|&id| (id, cpus)).collect();
    // A machine with a scheduler coschedules sets itself; another one freezes programs.
    let sets = vec![CoscheduledSet { cpus, within: None }; ids.len()];
    let has_scheduler = supervisor.machine().has_scheduler();
    let (programs, sets) =
        if has_scheduler { (&[][..], &sets[..]) } else { (&programs[..], &[][..]) };
    let slice_ns = slice_ms.unwrap_or(SLICE_MS) * 1_000_000;
    let context = Context {
        model: options.model.as_ref().map(|(name, model)| (name.as_str(), model)),
        programs,
        sets,
        slice_ns,
        // The groups of other processes may differ from that of Corebeat.
        quota: if options.attach.is_empty() { allowance.quota } else { options.quota },
        ..Context::new(&topology)
    };
    let entry = options.policy.entry();
    notes.extend(entry.idle_because(&context).map(|why| format!("{}: {why}", entry.text)));
    let policies = match entry.build(&context).map_err(Error::invalid)? {
        Instance::Coscheduler(coscheduler) => {
            let cpus: Vec<CpuId> = topology.cpus().iter().map(|cpu| cpu.id).collect();
            supervisor.machine().coschedule(ids, &cpus, coscheduler, slice_ns)?;
            vec![]
        }
        instance => instance.policies(),
    };
    Ok(match options.class {
        true => policies,
        false => policies
            .into_iter()
            .map(|policy| Box::new(WithoutClass(policy)) as Box<dyn Policy>)
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(words: &[&str], policy: PolicyName) -> Result<Vec<Vec<OsString>>, String> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        split_programs(&words, policy).map_err(|e| e.to_string())
    }

    #[test]
    fn double_dash_separates_programs_under_every_policy() {
        let two = ["a", "1", "--", "b"];
        let expected: Vec<Vec<OsString>> = vec![vec!["a".into(), "1".into()], vec!["b".into()]];
        for policy in
            [PolicyName::Auto, PolicyName::None, PolicyName::Coscheduling, PolicyName::Adapt]
        {
            assert_eq!(split(&two, policy).as_ref(), Ok(&expected), "{policy}");
        }
        for policy in [PolicyName::Team, PolicyName::Faithful] {
            let refusal = split(&two, policy).unwrap_err();
            assert!(refusal.contains("acts on one program"), "{policy}: {refusal}");
        }
    }

    #[test]
    fn escaped_double_dash_is_an_argument() {
        let words = ["git", "log", r"\--", r"\\--", r"\-", r"\x--", "file"];
        let program = ["git", "log", "--", r"\--", r"\-", r"\x--", "file"];
        let expected: Vec<OsString> = program.iter().map(OsString::from).collect();
        assert_eq!(split(&words, PolicyName::Auto), Ok(vec![expected]));
    }

    #[test]
    fn empty_programs_are_refused() {
        for words in [&["--"][..], &["a", "--"], &["--", "a"], &["a", "--", "--", "b"]] {
            let refusal = split(words, PolicyName::Coscheduling).unwrap_err();
            assert!(refusal.contains("a program is missing"), "{words:?}: {refusal}");
        }
    }
}
