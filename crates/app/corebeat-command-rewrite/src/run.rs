//! `corebeat rewrite run`: applies rules to a graph.

use crate::print;
use crate::report::{ReportOptions, Reporter};
use crate::source::{GraphSource, RulesSource, failure, left_out, require_format, written};
use clap::{Args, ValueEnum};
use corebeat_command::{Done, Failure, Output, end_by, is_ignored, print_line, require_distinct};
use corebeat_rewrite::{
    Apply, Control, Error, Graph, Mode, Options as RunOptions, Outcome, Rule, query, run,
};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    rules: RulesSource,
    #[command(flatten)]
    graph: GraphSource,
    /// Write the new graph to this file: .graphml, .gxl, .xmi, .csv or .dot
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Set how often each rule is applied
    #[arg(short, long, default_value = "exhaustively")]
    apply: How,
    /// Repeat all rules until they change nothing, at most TIMES times
    #[arg(long, default_value_t = 1, value_name = "TIMES")]
    repeat: u64,
    /// Perform at most NUMBER rewrites
    #[arg(long, default_value_t = u64::MAX, hide_default_value = true, value_name = "NUMBER")]
    max: u64,
    /// Set how the threads work together
    #[arg(long, default_value = "immediate")]
    mode: Together,
    #[command(flatten)]
    report: ReportOptions,
    /// Print JSON objects
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum How {
    /// Once, to the first match
    One,
    /// To all matches that do not overlap
    All,
    /// Until no match is left
    Exhaustively,
}

#[derive(Clone, Copy, ValueEnum)]
enum Together {
    /// All threads match, then one thread rewrites
    Cycle,
    /// The thread that completes a match rewrites it at once
    Immediate,
}

pub(crate) fn main(options: Options) -> Done {
    let inputs = [Some(options.rules.path()), options.graph.path(), options.output.as_ref()];
    require_distinct(inputs.into_iter().flatten())?;
    if let Some(path) = &options.output {
        require_format(path)?;
    }
    let output = options.output.as_deref().map(Output::create).transpose()?;
    let (mut graph, metamodel) = options.graph.read_for(options.output.as_deref())?;
    let rules = options.rules.read(&mut graph)?;
    let stop = Arc::new(AtomicBool::new(false));
    let received = Arc::new(AtomicUsize::new(0));
    for signal in [SIGINT, SIGTERM].into_iter().filter(|signal| !is_ignored(*signal)) {
        flag::register_usize(signal, received.clone(), signal as usize)
            .map_err(Failure::internal)?;
        flag::register(signal, stop.clone()).map_err(Failure::internal)?;
    }
    let reporter = Reporter::start(&options.report)?;
    let how = RunOptions {
        mode: match options.mode {
            Together::Cycle => Mode::Cycle,
            Together::Immediate => Mode::Immediate,
        },
        max: options.max,
        stop: Some(stop),
        ..reporter.run_options()
    };
    let begin = Instant::now();
    let (total, result) = apply(&mut graph, &rules, &options, &how, &reporter);
    let time = begin.elapsed();
    drop(reporter);
    // The graph is consistent, also after an error.
    if let (Some(output), Some(path)) = (output, &options.output) {
        output.write(&written(&graph, metamodel.as_ref(), path)?)?;
        if let Some(left_out) = left_out(&graph, path) {
            let path = path.display();
            print_line(format_args!("{path} leaves out {left_out}; .graphml and .gxl keep them"));
        }
    }
    result?;
    print::outcome(&total, time, &graph, options.json)?;
    if total.stopped {
        // The parent process must receive the signal as the cause of the end.
        end_by(received.load(Ordering::SeqCst) as i32);
    }
    Ok(ExitCode::SUCCESS)
}

/// Applies the rules in their order. Returns the sums of all applications.
fn apply(
    graph: &mut Graph,
    rules: &[Rule],
    options: &Options,
    how: &RunOptions,
    reporter: &Reporter,
) -> (Outcome, Result<(), Failure>) {
    let mut total = Outcome::default();
    for _ in 0..options.repeat {
        let before = total.rewrites;
        for rule in rules {
            let rest = RunOptions { max: how.max - total.rewrites, ..how.clone() };
            if let Err(why) = step(graph, rule, options, &rest, reporter, &mut total) {
                return (total, Err(why));
            }
            if total.stopped || total.reached_max {
                return (total, Ok(()));
            }
        }
        if total.rewrites == before {
            break;
        }
    }
    (total, Ok(()))
}

/// Applies a rule, or prints the results of a query.
fn step(
    graph: &mut Graph,
    rule: &Rule,
    options: &Options,
    how: &RunOptions,
    reporter: &Reporter,
    total: &mut Outcome,
) -> Result<(), Failure> {
    if rule.returns() {
        return match query(graph, rule, how) {
            Ok(table) => {
                reporter.clear();
                print::table(&table, options.json)
            }
            Err(Error::Stopped) => {
                total.stopped = true;
                Ok(())
            }
            Err(why) => Err(failure(why)),
        };
    }
    let apply = match options.apply {
        How::One => Apply::One,
        How::All => Apply::All,
        // A rule without a left side would match for ever.
        How::Exhaustively if !rule.has_pattern() => Apply::One,
        How::Exhaustively => Apply::Exhaustively,
    };
    let rules = std::slice::from_ref(rule);
    let outcome = run(graph, rules, &Control::Rule(0, apply), how).map_err(failure)?;
    total.rewrites += outcome.rewrites;
    total.passes += outcome.passes;
    total.conflicts += outcome.conflicts;
    total.stopped |= outcome.stopped;
    total.reached_max |= outcome.reached_max;
    Ok(())
}
