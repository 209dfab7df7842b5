//! `corebeat net draw`: draws a network as SVG, or a running network on the terminal.

use crate::flow::How;
use crate::live;
use crate::program::Which;
use corebeat_command::{Done, Failure, Output, print, require_distinct};
use corebeat_snet::draw::{svg, svg_on_ranks};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    which: Which,
    /// Write the drawing to this file [default: standard output]; with --live, the records
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Show the rank on which each box runs, in a run on this number of ranks of MPI
    #[arg(long, value_name = "N", conflicts_with = "live")]
    ranks: Option<NonZeroU32>,
    /// Run the network as 'net run' does, and show the fill levels of its streams
    #[arg(long)]
    live: bool,
    #[command(flatten, next_help_heading = "With --live")]
    how: Option<How>,
}

pub(crate) fn main(options: Options) -> Done {
    let Options { which, output, ranks, live, how } = options;
    if live {
        return live::main(&which, &how.unwrap_or_default(), output.as_deref());
    }
    if how.is_some() {
        return Err(Failure::usage(
            "a drawing takes no options of 'net run'; leave them out, or add --live to run the network",
        ));
    }
    require_distinct([which.file()].into_iter().chain(output.as_deref()))?;
    let net = which.read()?.report_remarks()?;
    let svg = match ranks {
        Some(ranks) => svg_on_ranks(&net, ranks),
        None => svg(&net),
    };
    match output {
        Some(path) => Output::create(&path)?.write(&svg)?,
        None => print(svg)?,
    }
    Ok(ExitCode::SUCCESS)
}
