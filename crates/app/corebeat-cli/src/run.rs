//! `corebeat run`: runs programs under a policy and writes a report.

use corebeat_command::{
    Done, Failure, Output, host_name, policy_parser, print_error, print_line, print_line_of_loop,
    read_model, require_distinct, require_distinct_from_programs,
};
use corebeat_host::{
    Error, Interval, NOT_RESTORED, Report, RunOptions, accepts_several, split_programs,
};
use corebeat_linux::{
    LOCKS_SAMPLED, MemoryPolicy, exit_as, identify, may_change, programs_named, topology,
};
use corebeat_machine::{CpuSet, NodeId, ThreadId};
use corebeat_policy::adapt::{Identity, Model};
use corebeat_policy::catalogue::{Environment, Need, PolicyName};
use corebeat_web::{Machine, State};
use rustix::process::{Resource, Rlimit, getrlimit, set_child_subreaper, setrlimit};
use std::collections::HashSet;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Choose the policy that acts on the programs
    #[arg(long, value_parser = policy_parser(Environment::Run), default_value = "auto")]
    policy: PolicyName,
    /// Set the length of a turn with coscheduling, in milliseconds [default: 50]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(5..=10_000))]
    slice_ms: Option<u64>,
    /// Read the model for adapt from this file, which 'corebeat train' wrote on this host
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Choose the format of the report
    #[arg(long, value_enum, default_value = "table")]
    report: Format,
    /// Write the report to this file instead of standard error
    #[arg(long, value_name = "FILE")]
    report_file: Option<PathBuf>,
    /// Write a page for browsers to this file: the report, with the programs over time
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Observe every MS milliseconds [default: 500; tranquilizer and adapt: 100]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(20..=60_000))]
    period: Option<u64>,
    /// Measure lock times exactly, by BPF; requires privileges
    #[arg(long)]
    exact_locks: bool,
    /// Place memory on NUMA nodes: local, interleave:NODES, bind:NODES or prefer:NODE
    #[arg(long, value_name = "POLICY", value_parser = memory_policy)]
    memory: Option<MemoryPolicy>,
    /// Attach to the processes with this number or name, and to their descendants, instead of
    /// starting a program; repeatable
    #[arg(
        short, long, value_name = "PID|NAME", value_parser = subject,
        conflicts_with_all = ["cpus", "nice", "memory", "no_preload", "overrides"]
    )]
    pid: Vec<Subject>,
    /// Print a line about the running program every SECONDS seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    interval: Option<u64>,
    /// Run the program on these CPUs only, such as 0-3,8
    #[arg(long, value_name = "CPUS", value_parser = cpus)]
    cpus: Option<CpuSet>,
    /// Add a number to the nice value of the program
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(i32).range(-20..=19))]
    nice: Option<i32>,
    /// Limit the program to this number of CPUs, such as 1.5, by a control group
    #[arg(long, value_name = "CPUS", value_parser = quota)]
    quota: Option<f64>,
    /// Load no library into the program, and set no thread counts: OpenMP teams keep their sizes
    #[arg(long)]
    no_preload: bool,
    /// Lower thread counts in the environment, such as GOMAXPROCS, to the CPUs of the program
    #[arg(long = "override")]
    overrides: bool,
    /// Load the scheduler of Corebeat into the kernel for the programs; requires root
    #[arg(long)]
    kernel: bool,
    /// With --kernel, schedule all threads of the host
    #[arg(long)]
    all: bool,
    /// Let the kernel count the threads; requires CAP_BPF and CAP_PERFMON
    #[arg(long)]
    tables: bool,
    /// Let no policy change the scheduling class
    #[arg(long)]
    no_class: bool,
    /// Program with its arguments, after --; further programs after further --
    #[arg(
        required_unless_present = "pid",
        conflicts_with = "pid",
        trailing_var_arg = true,
        value_name = "PROGRAM"
    )]
    command: Vec<OsString>,
}

/// Format of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// Table for people
    Table,
    /// One JSON object
    Json,
    /// No report
    None,
}

/// Processes to attach to.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Subject {
    Number(i32),
    Name(String),
}

fn subject(text: &str) -> Result<Subject, String> {
    match text.parse::<i32>() {
        _ if text.is_empty() => Err("write the number or the name of a process".into()),
        _ if !text.bytes().all(|byte| byte.is_ascii_digit()) => Ok(Subject::Name(text.into())),
        Ok(pid @ 1..) => Ok(Subject::Number(pid)),
        _ => Err(format!("{text} is no process number; write a number from 'ps -e'")),
    }
}

/// Parses a memory policy with nodes in the kernel's list format.
fn memory_policy(text: &str) -> Result<MemoryPolicy, String> {
    let (name, nodes) = text.split_once(':').unwrap_or((text, ""));
    let nodes: CpuSet = nodes
        .parse()
        .map_err(|_| format!("'{nodes}' is not a list of nodes; write a list such as 0-1"))?;
    let nodes: Vec<NodeId> = nodes.iter().map(|n| NodeId(n.0)).collect();
    match (name, nodes.as_slice()) {
        ("local", []) => Ok(MemoryPolicy::Local),
        ("interleave", [_, ..]) => Ok(MemoryPolicy::Interleave(nodes)),
        ("bind", [_, ..]) => Ok(MemoryPolicy::Bind(nodes)),
        ("prefer", [node]) => Ok(MemoryPolicy::Prefer(*node)),
        _ => {
            Err("write local, interleave:NODES, bind:NODES or prefer:NODE, with nodes such as 0-1"
                .into())
        }
    }
}

fn cpus(text: &str) -> Result<CpuSet, String> {
    let cpus: Option<CpuSet> = text.parse().ok();
    cpus.filter(|cpus| !cpus.is_empty())
        .ok_or_else(|| format!("'{text}' is not a list of CPUs; write a list such as 0-3,8"))
}

/// Least quota, in CPUs: the kernel's least time (1 ms) in a period of 100 ms.
const QUOTA_MIN: f64 = 0.01;
/// Largest quota, in CPUs: as many as Linux supports.
const QUOTA_MAX: f64 = 8192.0;

fn quota(text: &str) -> Result<f64, String> {
    let quota: Option<f64> = text.parse().ok();
    quota.filter(|cpus| (QUOTA_MIN..=QUOTA_MAX).contains(cpus)).ok_or_else(|| {
        format!("write a number of CPUs from {QUOTA_MIN} to {QUOTA_MAX}, such as 1.5")
    })
}

/// Refusal of `--all` without `--kernel`.
pub(crate) const ALL_ALONE: &str = "--all applies to the scheduler in the kernel; add --kernel";

/// Refuses options that do not apply to the policy.
fn check(options: &Options) -> Result<(), Failure> {
    let takes_turns = options.policy == PolicyName::Coscheduling;
    let adapts = options.policy == PolicyName::Adapt;
    let has_counts = options.policy.entry().needs(Need::TeamChannel) && !options.no_preload;
    let refusal = match () {
        () if takes_turns && options.period.is_some() && !options.kernel => {
            "--period does not apply to coscheduling; set the length of a turn with --slice-ms"
        }
        () if (takes_turns || adapts) && options.exact_locks => {
            "--exact-locks applies to policies for one program; remove it or choose another policy"
        }
        () if (takes_turns || adapts) && options.memory.is_some() => {
            "--memory applies to policies for one program; remove it or choose another policy"
        }
        () if !takes_turns && options.slice_ms.is_some() => {
            "--slice-ms applies to coscheduling; remove it or add --policy coscheduling"
        }
        () if !adapts && options.model.is_some() => {
            "--model applies to adapt; remove it or add --policy adapt"
        }
        () if options.all && !options.kernel => ALL_ALONE,
        () if options.overrides && !has_counts => {
            "--override applies to the policies auto and team; choose one, and remove --no-preload"
        }
        () if options.report == Format::None && options.report_file.is_some() => {
            "--report none writes no --report-file; remove one of the two options"
        }
        () => return Ok(()),
    };
    Err(Failure::usage(refusal))
}

/// Largest number of processes that a refusal lists.
const LISTED_MAX: usize = 8;

/// Finds the processes to attach to. Refuses several processes if the policy acts on one.
fn processes(options: &Options) -> Result<Vec<ThreadId>, Failure> {
    let mut processes = vec![];
    for subject in &options.pid {
        match subject {
            Subject::Number(pid) => processes.push(identify(*pid)?),
            Subject::Name(name) => processes.extend(processes_named(name)?),
        }
    }
    let mut known = HashSet::new();
    if let Some(process) = processes.iter().find(|&process| !known.insert(process)) {
        let pid = process.tid;
        return Err(Failure::usage(format!("process {pid} is named twice; name it once")));
    }
    // Turns of auto are for programs that the user starts together: running processes may wait for
    // each other, such as the ranks of a parallel program.
    let accepts = options.policy != PolicyName::Auto && accepts_several(options.policy);
    if processes.len() > 1 && !accepts {
        let count = processes.len();
        let pids: Vec<String> =
            processes.iter().take(LISTED_MAX).map(|p| p.tid.to_string()).collect();
        let more = if count > LISTED_MAX { ", ..." } else { "" };
        return Err(Failure::usage(format!(
            "the policy acts on one process, and -p names {count} ({}{more}); name one by its \
             number, or choose --policy coscheduling, adapt or none",
            pids.join(", ")
        )));
    }
    Ok(processes)
}

/// Returns the programs with a name, except this process. Those that Corebeat may change have
/// precedence over those of other users.
fn processes_named(name: &str) -> Result<Vec<ThreadId>, Failure> {
    let own = std::process::id() as i32;
    let (own, others): (Vec<ThreadId>, Vec<ThreadId>) =
        programs_named(name).into_iter().map(|p| p.id).partition(|id| id.tid == own);
    let (changeable, foreign): (Vec<ThreadId>, Vec<ThreadId>) =
        others.into_iter().partition(|id| may_change(id.tid));
    match () {
        () if !changeable.is_empty() => Ok(changeable),
        () if !foreign.is_empty() => Ok(foreign),
        () if !own.is_empty() => Err(Failure::usage(format!(
            "the only program named '{name}' is this one, which does not observe itself; choose \
             another program"
        ))),
        () => Err(Failure::usage(format!(
            "there is no program named '{name}'; write a number or a name from 'ps -e'"
        ))),
    }
}

pub(crate) fn main(options: Options) -> Done {
    check(&options)?;
    let attach = processes(&options)?;
    let programs = match options.pid.is_empty() {
        true => split_programs(&options.command, options.policy)?,
        false => vec![],
    };
    let outputs = || options.report_file.iter().chain(&options.html);
    require_distinct(options.model.iter().chain(outputs()))?;
    for file in outputs() {
        require_distinct_from_programs(programs.iter().map(Vec::as_slice), file)?;
    }
    let file = options.report_file.as_deref().map(Output::create).transpose()?;
    let html = options.html.as_deref().map(Output::create).transpose()?;
    let model = match options.policy.entry().needs(Need::Model) {
        true => Some(host_model(options.model.as_deref())?),
        false => None,
    };
    let changes = options.policy != PolicyName::None || options.quota.is_some();
    for pid in attach.iter().map(|p| p.tid).filter(|&pid| changes && !may_change(pid)) {
        print_line(format_args!(
            "process {pid} belongs to another user: Corebeat observes it and changes nothing; run \
             as root to change it"
        ));
    }
    let print = |line: &str| print_line_of_loop(line);
    let every = options.interval.map(Duration::from_secs);
    let limit = getrlimit(Resource::Nofile);
    let ran = corebeat_host::run(RunOptions {
        programs: programs.clone(),
        attach,
        cpus: options.cpus.clone(),
        nice: options.nice,
        quota: options.quota,
        preload: !options.no_preload,
        overrides: options.overrides,
        class: !options.no_class,
        kernel: options.kernel,
        all: options.all,
        tables: options.tables,
        history: html.is_some(),
        interval: every.map(|every| Interval { every, print }),
        policy: options.policy,
        model,
        period_ms: options.period,
        slice_ms: options.slice_ms,
        exact_locks: options.exact_locks,
        memory: options.memory.clone(),
        ..RunOptions::default()
    });
    let (status, report) = match (ran, &programs[..]) {
        (Err(Error::Linux(e)), [program]) if e.lacks_descriptors() && options.memory.is_none() => {
            drop((file, html));
            return Err(run_unobserved(program, limit));
        }
        (ran, _) => ran?,
    };
    // The exit status of the programs has precedence over a report that cannot be written.
    let reported = write(&report, options.report, file);
    let written = html.map_or(Ok(()), |file| write_page(&report, file));
    for failure in [reported, written].into_iter().filter_map(Result::err) {
        failure.report();
    }
    exit_as(status)
}

/// Writes the page of a run.
fn write_page(report: &Report, file: Output) -> Result<(), Failure> {
    let json = serde_json::to_value(report).map_err(Failure::internal)?;
    let state = State::of_run(report, json, Machine::of_host());
    file.write(&state.file_page().map_err(Failure::internal)?)
}

/// Runs a program without Corebeat, because the limit of open files is too small. Returns the
/// failure if the program cannot be executed.
fn run_unobserved(program: &[OsString], limit: Rlimit) -> Failure {
    print_line(format_args!(
        "the program runs unobserved, because the limit of {} open files is too small; \
         increase it with 'ulimit -n'",
        limit.current.unwrap_or(u64::MAX)
    ));
    // Changes of the failed attempt, which the program would inherit.
    let _ = setrlimit(Resource::Nofile, limit);
    let _ = set_child_subreaper(None);
    let source = Command::new(&program[0]).args(&program[1..]).exec();
    let program = program[0].to_string_lossy().into_owned();
    match source.kind() {
        ErrorKind::NotFound => corebeat_linux::Error::NotFound { program }.into(),
        _ => corebeat_linux::Error::NotExecutable { program, source }.into(),
    }
}

/// Reads a model of this host, and returns it with the name of this host's processor.
fn host_model(path: Option<&std::path::Path>) -> Result<(String, Model), Failure> {
    let name = host_name();
    let model = read_model(path, &Identity::new(&name, &topology()))?;
    Ok((name, model))
}

fn write(report: &Report, format: Format, file: Option<Output>) -> Result<(), Failure> {
    let text = match format {
        Format::Table => report.to_string(),
        Format::Json => serde_json::to_string(report).map_err(Failure::internal)? + "\n",
        Format::None => {
            // The user has requested the times explicitly, and a change that stays needs the user.
            let is_printed = |note: &&String| {
                [LOCKS_SAMPLED, NOT_RESTORED].iter().any(|begin| note.starts_with(begin))
            };
            report.notes.iter().filter(is_printed).for_each(print_line);
            return Ok(());
        }
    };
    match file {
        Some(file) => file.write(&text),
        None => {
            print_error(text);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_a_number_or_a_name() {
        assert_eq!(subject("7"), Ok(Subject::Number(7)));
        for name in ["7z", "+1", "-1"] {
            assert_eq!(subject(name), Ok(Subject::Name(name.into())));
        }
        for bad in ["", "0", "2147483648"] {
            assert!(subject(bad).is_err(), "'{bad}' is accepted");
        }
    }

    #[test]
    fn memory_policy_is_parsed_or_refused() {
        assert_eq!(memory_policy("local"), Ok(MemoryPolicy::Local));
        assert_eq!(memory_policy("bind:0-1"), Ok(MemoryPolicy::Bind(vec![NodeId(0), NodeId(1)])));
        assert_eq!(memory_policy("prefer:2"), Ok(MemoryPolicy::Prefer(NodeId(2))));
        for bad in ["", "bind", "bind:", "bind:x", "prefer:0-1", "local:0", "next-touch"] {
            assert!(memory_policy(bad).is_err(), "'{bad}' is accepted");
        }
    }
}
