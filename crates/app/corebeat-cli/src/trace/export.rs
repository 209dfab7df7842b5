//! `corebeat trace export`.

use super::Input;
use crate::failure::{Done, Failure};
use corebeat_trace::{Reader, write_csv, write_ctf, write_json_lines};
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    input: Input,
    /// The form
    #[arg(long, value_name = "FORM")]
    to: Form,
    /// Where it goes: a new folder for ctf, a folder for kieker, else a file, which is standard output if nothing is said
    #[arg(short, long, value_name = "PATH")]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Form {
    /// Common Trace Format 1.8, a folder: for babeltrace2, Trace Compass
    Ctf,
    /// Chrome's trace events: for Perfetto (ui.perfetto.dev)
    Chrome,
    /// Comma-separated values
    Csv,
    /// JSON, an object a line
    Jsonl,
    /// Kieker's log of calls, a folder: for its TraceAnalysisTool
    Kieker,
}

pub(crate) fn main(options: &Options) -> Done {
    let input = &options.input;
    let ending = match (options.to, &options.output) {
        (Form::Kieker, None) => return Err(Failure::usage("kieker is a folder: name one with --output")),
        (Form::Kieker, Some(folder)) => return super::calls::export(input, folder),
        (Form::Ctf, None) => return Err(Failure::usage("ctf is a folder: name a new one with --output")),
        (Form::Ctf, Some(folder)) => {
            let mut reader = Reader::new(input.open()?).map_err(|e| input.failed(e))?;
            write_ctf(&mut reader, folder).map_err(|e| input.failed(e))?;
            reader.ending().cloned()
        }
        (Form::Chrome, output) => return super::calls::chrome(input, output.as_deref()),
        (form, output) => {
            let output = output.as_deref();
            let mut timeline = input.timeline()?;
            let out = input.out(output)?;
            match form {
                Form::Csv => write_csv(&mut timeline, out),
                _ => write_json_lines(&mut timeline, out),
            }
            .map_err(|e| input.failed_to(output, e))?;
            Some(timeline.ending().clone())
        }
    };
    ending.map_or(Ok(std::process::ExitCode::SUCCESS), |ending| input.ended(&ending))
}
