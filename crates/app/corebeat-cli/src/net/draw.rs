//! `corebeat net draw`: a network as SVG, or at work on the terminal.

use crate::failure::{Done, Failure, print};
use crate::net::flow::How;
use crate::net::live;
use crate::net::program::Which;
use crate::output::Output;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    which: Which,
    /// Where to; standard output if nothing is said. With --live: write records to this file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Run the network as 'net run' does, and show on the terminal what is in its streams
    #[arg(long)]
    live: bool,
    #[command(flatten, next_help_heading = "With --live")]
    how: Option<How>,
}

pub(crate) fn main(options: Options) -> Done {
    let Options { which, output, live, how } = options;
    if live {
        return live::main(&which, &how.unwrap_or_default(), output.as_deref());
    }
    if how.is_some() {
        return Err(Failure::usage(
            "a picture takes no options of 'net run'; say --live to see the network at work",
        ));
    }
    let svg = corebeat_snet::draw::svg(&which.read()?.tell()?);
    match output {
        Some(path) => Output::create(&path)?.write(&svg)?,
        None => print(svg)?,
    }
    Ok(ExitCode::SUCCESS)
}
