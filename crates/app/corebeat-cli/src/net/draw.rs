//! `corebeat net draw`: a network as SVG.

use crate::failure::{Done, print};
use crate::net::program::Which;
use crate::output::Output;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    which: Which,
    /// Where to; standard output if nothing is said
    #[arg(short, long, value_name = "FILE.svg")]
    output: Option<PathBuf>,
}

pub(crate) fn main(options: Options) -> Done {
    let svg = corebeat_snet::draw::svg(&options.which.read()?.tell()?);
    match options.output {
        Some(path) => Output::create(&path)?.write(&svg)?,
        None => print(svg)?,
    }
    Ok(ExitCode::SUCCESS)
}
