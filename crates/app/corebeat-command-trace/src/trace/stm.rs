//! `corebeat trace stm`: commits, aborts and conflicts of traced transactions.

use super::Input;
use corebeat_command::{Done, Failure, print, print_line};
use corebeat_stm::trace::Report;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Options {
    #[command(flatten)]
    input: Input,
    /// Draw the timeline as SVG into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

pub(super) fn main(options: &Options) -> Done {
    let input = &options.input;
    let report = Report::read(input.open()?).map_err(|e| input.failed(e))?;
    if report.commits + report.aborts == 0 {
        let line = format!("{}: the trace has no transactions; trace them first", input.shown());
        return Err(Failure::data(line));
    }
    if let Some(path) = &options.svg {
        input.write(path, &report.svg())?;
    }
    print(&report)?;
    if report.lost > 0 {
        let lost = report.lost;
        print_line(format_args!("{}: {lost} events were lost and are not counted", input.shown()));
    }
    report.ending().map_or(Ok(ExitCode::SUCCESS), |ending| input.ended(ending))
}
