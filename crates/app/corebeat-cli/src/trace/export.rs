//! `corebeat trace export`.

use super::Input;
use crate::end::Tidy;
use crate::failure::{Done, Failure};
use corebeat_trace::{Error, Reader, write_csv, write_ctf, write_json_lines};
use std::io::Read;
use std::path::{Path, PathBuf};

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
            ctf(&mut reader, folder).map_err(|e| match e {
                Error::File { path, source } => {
                    Failure::usage(format!("cannot write {}: {source}; name a new folder", path.display()))
                }
                e => input.failed(e),
            })?;
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

/// Writes a folder, or none.
fn ctf(reader: &mut Reader<impl Read>, folder: &Path) -> Result<(), Error> {
    // Only who has made it itself may remove it.
    let new = std::fs::create_dir(folder).is_ok().then(|| folder.to_owned());
    let remove = |folder: Option<PathBuf>| folder.map_or(Ok(()), std::fs::remove_dir_all);
    let tidied = new.clone();
    let _tidy = Tidy::at_end(move || drop(remove(tidied))).map_err(Error::Write)?;
    let written = write_ctf(reader, folder);
    if written.is_err() {
        let _ = remove(new);
    }
    written
}
