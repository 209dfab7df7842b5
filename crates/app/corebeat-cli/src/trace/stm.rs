//! `corebeat trace stm`: how transactions went.

use super::Input;
use crate::failure::{Done, Failure, print, tell};
use corebeat_stm::trace::Report;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    input: Input,
    /// Draw the timeline into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

pub(crate) fn main(options: &Options) -> Done {
    let input = &options.input;
    let report = Report::read(input.open()?).map_err(|e| input.failed(e))?;
    if report.commits + report.aborts == 0 {
        let line = format!("{}: no transactions are in there: were they traced?", input.shown());
        return Err(Failure::wrong(line));
    }
    if let Some(path) = &options.svg {
        input.write(path, &report.svg())?;
    }
    print(&report)?;
    if report.lost > 0 {
        let lost = report.lost;
        tell(format_args!("corebeat: {}: {lost} events were lost, and are not counted\n", input.shown()));
    }
    report.ending().map_or(Ok(ExitCode::SUCCESS), |ending| input.ended(ending))
}
