//! `corebeat run`: a program, watched and steered, and a report.

use crate::beside;
use crate::failure::{Done, Failure, tell};
use crate::gang;
use crate::output::{self, Output};
use crate::session::{self, How, PolicyName};
use corebeat_linux::{MemoryPolicy, exit_as};
use corebeat_loop::Periods;
use corebeat_machine::{CpuSet, NodeId};
use serde::Serialize;
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Which policies act on the program
    #[arg(long, value_enum, default_value = "auto")]
    policy: PolicyName,
    /// How long a turn is with coscheduling, in milliseconds [default: 50]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(5..=10_000))]
    slice_ms: Option<u64>,
    /// What adapt predicts with, as 'corebeat train' has written it on this host
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// How the report at the end is written
    #[arg(long, value_enum, default_value = "table")]
    report: Format,
    /// Where the report goes, instead of standard error
    #[arg(long, value_name = "FILE")]
    report_file: Option<PathBuf>,
    /// Milliseconds from one observation to the next [default: 500; tranquilizer and adapt: 100]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(20..=60_000))]
    period: Option<u64>,
    /// Measure lock times exactly, by BPF; needs privileges, and costs a program that blocks 20,000 times a second some 1%
    #[arg(long)]
    exact_locks: bool,
    /// On which NUMA nodes the program's memory is placed: local, interleave:NODES, bind:NODES or prefer:NODE
    #[arg(long, value_name = "POLICY", value_parser = memory_policy)]
    memory: Option<MemoryPolicy>,
    /// The program and its arguments, after --
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// How long a turn is where nothing is said, in milliseconds.
const SLICE_MS: u64 = 50;

/// How a report is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// For people
    Table,
    /// For programs: one JSON object
    Json,
    /// Not at all
    None,
}

/// A memory policy as users write it, with nodes in the kernel's list format.
fn memory_policy(text: &str) -> Result<MemoryPolicy, String> {
    let (name, nodes) = text.split_once(':').unwrap_or((text, ""));
    let nodes: CpuSet = nodes.parse().map_err(|_| format!("'{nodes}' is no list of nodes, such as 0-1"))?;
    let nodes: Vec<NodeId> = nodes.iter().map(|n| NodeId(n.0)).collect();
    match (name, nodes.as_slice()) {
        ("local", []) => Ok(MemoryPolicy::Local),
        ("interleave", [_, ..]) => Ok(MemoryPolicy::Interleave(nodes)),
        ("bind", [_, ..]) => Ok(MemoryPolicy::Bind(nodes)),
        ("prefer", [node]) => Ok(MemoryPolicy::Prefer(*node)),
        _ => Err("write local, interleave:NODES, bind:NODES or prefer:NODE, with nodes such as 0-1".into()),
    }
}

/// Periods for a program that is observed every `observe_ms` milliseconds.
fn periods(observe_ms: u64) -> Periods {
    Periods { observe_ns: observe_ms * 1_000_000, glance_ns: (observe_ms * 200_000).min(100_000_000) }
}

pub(crate) fn main(options: Options) -> Done {
    let takes_turns = options.policy == PolicyName::Coscheduling;
    if takes_turns && (options.exact_locks || options.memory.is_some() || options.period.is_some()) {
        return Err(Failure::usage(
            "coscheduling goes with none of --exact-locks, --memory and --period; leave them out (--slice-ms is how long a turn is)",
        ));
    }
    if !takes_turns && options.slice_ms.is_some() {
        return Err(Failure::usage("--slice-ms goes with --policy coscheduling; leave it out, or add that"));
    }
    let adapts = options.policy == PolicyName::Adapt;
    if !adapts && options.model.is_some() {
        return Err(Failure::usage("--model goes with --policy adapt; leave it out, or add that"));
    }
    if adapts && (options.exact_locks || options.memory.is_some()) {
        return Err(Failure::usage("adapt goes with neither --exact-locks nor --memory; leave them out"));
    }
    if options.report == Format::None && options.report_file.is_some() {
        return Err(Failure::usage("--report none goes with no --report-file; leave one of them out"));
    }
    let file = options.report_file.as_deref().map(Output::create).transpose()?;
    output::distinct(options.model.iter().chain(&options.report_file))?;
    if takes_turns {
        let (status, report) = gang::run(&options.command, options.slice_ms.unwrap_or(SLICE_MS))?;
        if let Err(failure) = write(&report, options.report, file) {
            failure.report();
        }
        exit_as(status)
    }
    let period_ms = options.period.unwrap_or(options.policy.period_ms());
    if adapts {
        let (status, report) = beside::run(&options.command, options.model.as_deref(), period_ms)?;
        if let Err(failure) = write(&report, options.report, file) {
            failure.report();
        }
        exit_as(status)
    }
    let how = How {
        policy: options.policy,
        periods: periods(period_ms),
        env: vec![],
        exact_locks: options.exact_locks,
        memory: options.memory,
        input: None,
        stdout: None,
    };
    let (status, report) = session::run(&options.command, how)?;
    // The program's exit status goes before ours.
    if let Err(failure) = write(&report, options.report, file) {
        failure.report();
    }
    exit_as(status)
}

/// Writes a report.
fn write(
    report: &(impl Serialize + std::fmt::Display),
    format: Format,
    file: Option<Output>,
) -> Result<(), Failure> {
    let text = match format {
        Format::Table => report.to_string(),
        Format::Json => serde_json::to_string(report).map_err(Failure::own)? + "\n",
        Format::None => return Ok(()),
    };
    match file {
        Some(file) => file.write(&text),
        None => {
            tell(text);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_policy_is_read_or_explained() {
        assert_eq!(memory_policy("local"), Ok(MemoryPolicy::Local));
        assert_eq!(memory_policy("bind:0-1"), Ok(MemoryPolicy::Bind(vec![NodeId(0), NodeId(1)])));
        assert_eq!(memory_policy("prefer:2"), Ok(MemoryPolicy::Prefer(NodeId(2))));
        for bad in ["", "bind", "bind:", "bind:x", "prefer:0-1", "local:0", "next-touch"] {
            assert!(memory_policy(bad).is_err(), "{bad}");
        }
    }
}
