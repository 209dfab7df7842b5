//! `corebeat trace export`: converts a trace for other tools.

use super::Input;
use corebeat_command::{Cleanup, Done, Failure};
use corebeat_trace::{Error, Reader, write_csv, write_ctf, write_json_lines};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

#[derive(clap::Args)]
pub struct Options {
    #[command(flatten)]
    input: Input,
    /// Output format
    #[arg(long, value_name = "FORM")]
    to: Form,
    /// Output: a new directory for ctf, a directory for kieker, otherwise a file [default: standard
    /// output]
    #[arg(short, long, value_name = "PATH")]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Form {
    /// Common Trace Format 1.8, a directory, for babeltrace2 and Trace Compass
    Ctf,
    /// Chrome trace events, for Perfetto (ui.perfetto.dev)
    Chrome,
    /// Comma-separated values
    Csv,
    /// JSON, one object per line
    Jsonl,
    /// OpenTelemetry spans of calls, OTLP in JSON, for collectors
    Otlp,
    /// Kieker log of calls, a directory, for Kieker's TraceAnalysisTool
    Kieker,
}

pub(super) fn main(options: &Options) -> Done {
    let input = &options.input;
    let ending = match (options.to, &options.output) {
        (Form::Kieker, None) => {
            return Err(Failure::usage("kieker writes a directory; name it with --output"));
        }
        (Form::Kieker, Some(folder)) => return super::calls::export(input, folder),
        (Form::Ctf, None) => {
            return Err(Failure::usage("ctf writes a directory; name a new one with --output"));
        }
        (Form::Ctf, Some(folder)) => {
            let mut reader = Reader::new(input.open()?).map_err(|e| input.failed(e))?;
            ctf(&mut reader, folder).map_err(|e| match e {
                Error::File { path, source } => {
                    let line =
                        format!("cannot write {}: {source}; name a new directory", path.display());
                    // The directory could be created, and can no longer be written.
                    let is_full = path != *folder;
                    if is_full { Failure::internal(line) } else { Failure::usage(line) }
                }
                e => input.failed(e),
            })?;
            reader.ending().cloned()
        }
        (Form::Otlp, output) => return super::calls::otlp(input, output.as_deref()),
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

/// Writes a directory. After an error, no new directory remains.
fn ctf(reader: &mut Reader<impl Read>, folder: &Path) -> Result<(), Error> {
    let new = Arc::new(Mutex::new(None));
    let remove = |new: &Mutex<Option<PathBuf>>| {
        let folder = new.lock().unwrap_or_else(PoisonError::into_inner).take();
        folder.map_or(Ok(()), std::fs::remove_dir_all)
    };
    let on_signal = Arc::clone(&new);
    let _cleanup = Cleanup::on_signal(move || drop(remove(&on_signal))).map_err(Error::Write)?;
    {
        // A signal waits for this lock. A directory that existed before must not be removed.
        let mut new = new.lock().unwrap_or_else(PoisonError::into_inner);
        *new = std::fs::create_dir(folder).is_ok().then(|| folder.to_owned());
    }
    let written = write_ctf(reader, folder);
    if written.is_err() {
        let _ = remove(&new);
    }
    written
}
