//! The commands `corebeat rewrite`: apply rules to graphs, and evaluate queries.
//!
//! Place in the loop: app; uses `corebeat-rewrite`, for its progress `corebeat-heartbeat`, and
//! for its threads `corebeat-claim`.
//!
//! # Model
//!
//! ```text
//!  GRAPH (pairs, GraphML, GXL, XMI) --> Source --> Graph --.
//!  RULES (openCypher) -----------------------------------> run: changes, then the new graph
//!                                                          query, explain, draw, stats
//! ```
//!
//! # Failure
//!
//! Exit status 1 reports a mistake in a graph or in rules, with its place, and exit status 2 a file
//! that cannot be opened. A run that Ctrl-C or SIGTERM ends writes the graph after the last
//! rewrite, and then ends by the signal.

mod changes;
mod print;
mod report;
mod run;
mod source;

use clap::{Args, Subcommand};
use corebeat_command::{Done, Failure, Output, print, require_distinct};
use corebeat_rewrite::{Graph, explain_drawn, query, write_dot, write_svg};
use report::{ReportOptions, Reporter};
use source::{GraphSource, RulesSource, failure};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Options of `corebeat rewrite`.
#[derive(Args)]
pub struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Apply rules to a graph, one after another, and write the new graph
    Run(run::Options),
    /// Evaluate queries, and print their results
    Query(Query),
    /// Print and draw the search plan of each rule, with expected and actual numbers of partial
    /// matches
    Explain(Explain),
    /// Draw a graph as SVG or in the language of Graphviz
    Draw(Draw),
    /// Print the numbers of nodes and edges by type
    Stats(Stats),
}

#[derive(Args)]
struct Query {
    #[command(flatten)]
    rules: RulesSource,
    #[command(flatten)]
    graph: GraphSource,
    #[command(flatten)]
    report: ReportOptions,
    /// Apply the rules of this file one after another, each to all matches that do not overlap, and
    /// print the rows that appear and disappear
    #[arg(long, value_name = "FILE")]
    changes: Option<PathBuf>,
    /// Print one JSON object for each row
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Explain {
    #[command(flatten)]
    rules: RulesSource,
    #[command(flatten)]
    graph: GraphSource,
    /// Also draw the plans to this file: a picture to .svg, otherwise the language of Graphviz
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Args)]
struct Draw {
    #[command(flatten)]
    graph: GraphSource,
    /// Write the drawing to this file: a picture to .svg, otherwise the language of Graphviz
    /// [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Args)]
struct Stats {
    #[command(flatten)]
    graph: GraphSource,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// See the crate's front page.
pub fn main(options: Options) -> Done {
    match options.command {
        Command::Run(options) => run::main(options),
        Command::Query(options) => evaluate(&options),
        Command::Explain(options) => plans(&options),
        Command::Draw(options) => draw(options),
        Command::Stats(options) => stats(&options),
    }
}

fn evaluate(options: &Query) -> Done {
    let mut graph = options.graph.read()?;
    // The changes first: they may create types that only the queries name.
    let changes = options.changes.as_ref().map(|path| options.rules.read_from(path, &mut graph));
    let changes = changes.transpose()?;
    let rules = options.rules.read(&mut graph)?;
    let reporter = Reporter::start(&options.report)?;
    if let Some(changes) = changes {
        changes::follow(&mut graph, &rules, &changes, &reporter, options.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    let how = reporter.run_options();
    for rule in &rules {
        let table = query(&mut graph, rule, &how).map_err(failure)?;
        reporter.clear();
        print::table(&table, options.json)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn plans(options: &Explain) -> Done {
    let inputs = [Some(options.rules.path()), options.graph.path(), options.output.as_ref()];
    require_distinct(inputs.into_iter().flatten())?;
    let output = options.output.as_deref().map(Output::create).transpose()?;
    let mut graph = options.graph.read()?;
    let mut drawing = Graph::new();
    for rule in options.rules.read(&mut graph)? {
        let plan = explain_drawn(&mut graph, &rule, &mut drawing).map_err(failure)?;
        print(format_args!("{}\n{plan}", rule.name()))?;
    }
    if let Some(output) = output {
        output.write(&drawn(&drawing, options.output.as_deref())?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A graph as a picture or in the language of Graphviz.
fn drawn(graph: &Graph, path: Option<&Path>) -> Result<String, Failure> {
    match path.is_some_and(source::is_picture) {
        true => source::text(|to| write_svg(graph, to)),
        false => source::text(|to| write_dot(graph, to)),
    }
}

fn draw(options: Draw) -> Done {
    require_distinct(options.graph.path().into_iter().chain(&options.output))?;
    let output = options.output.as_deref().map(Output::create).transpose()?;
    let graph = options.graph.read()?;
    let text = drawn(&graph, options.output.as_deref())?;
    match output {
        Some(output) => output.write(&text)?,
        None => print(text)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn stats(options: &Stats) -> Done {
    let graph = options.graph.read()?;
    print::stats(&graph, options.json)?;
    Ok(ExitCode::SUCCESS)
}
