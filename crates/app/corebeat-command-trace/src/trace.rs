//! `corebeat trace`: reads traces.

mod calls;
mod cut;
mod export;
mod info;
mod stats;
mod stm;

use corebeat_command::{Done, Failure, print_line, require_distinct, unprintable};
use corebeat_trace::{Ending, Error, Timeline, write_text};
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The commands of `corebeat trace`.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Print process, time, threads, kinds of events and ending of a trace
    Info(Input),
    /// Print all events in order of time
    Cat(Input),
    /// Draw the calls that probes recorded
    Calls(calls::Options),
    /// Convert a trace for other tools
    Export(export::Options),
    /// Count events by kind and by thread, and lost events
    Stats(Input),
    /// Report commits, aborts, conflicts and their costs of traced transactions
    Stm(stm::Options),
    /// Write a part of a trace: a time span, or some threads
    Cut(cut::Options),
}

/// The trace to read.
#[derive(clap::Args)]
pub struct Input {
    /// Trace file
    #[arg(value_name = "FILE")]
    path: PathBuf,
}

/// Runs the command.
///
/// # Errors
/// See the crate's front page.
pub fn main(command: Command) -> Done {
    match command {
        Command::Info(input) => info::main(&input),
        Command::Cat(input) => cat(&input),
        Command::Calls(options) => calls::main(&options),
        Command::Export(options) => export::main(&options),
        Command::Stats(input) => stats::main(&input),
        Command::Stm(options) => stm::main(&options),
        Command::Cut(options) => cut::main(&options),
    }
}

fn cat(input: &Input) -> Done {
    let mut timeline = input.timeline()?;
    let out = BufWriter::new(std::io::stdout());
    write_text(&mut timeline, out).map_err(|e| input.failed_to(None, e))?;
    input.ended(timeline.ending())
}

impl Input {
    fn open(&self) -> Result<BufReader<File>, Failure> {
        let opened = File::open(&self.path).and_then(|file| {
            // Opening a directory succeeds; only reading it fails.
            if file.metadata()?.is_dir() {
                Err(std::io::ErrorKind::IsADirectory.into())
            } else {
                Ok(file)
            }
        });
        opened
            .map(BufReader::new)
            .map_err(|e| Failure::usage(format!("cannot open {}: {e}", self.shown())))
    }

    /// Opens a file that is read more than once, or not in order.
    fn open_file(&self) -> Result<BufReader<File>, Failure> {
        // Opening a named pipe would wait for its writer.
        if self.path.metadata().is_ok_and(|m| !m.is_file() && !m.is_dir()) {
            let line = format!(
                "{} is not a regular file, and the command reads it twice; save it to a file first",
                self.shown()
            );
            return Err(Failure::usage(line));
        }
        self.open()
    }

    /// Creates the output file and discards its old content. Refuses the trace itself under any
    /// name, because it is still to be read.
    fn create(&self, output: &Path) -> Result<File, Failure> {
        require_distinct([self.path.as_path(), output])?;
        File::create(output).map_err(|e| {
            Failure::usage(format!("cannot write {}: {e}; name another file", output.display()))
        })
    }

    /// Opens the output: a file, or standard output.
    fn out(&self, output: Option<&Path>) -> Result<Box<dyn Write>, Failure> {
        Ok(match output {
            None => Box::new(BufWriter::new(std::io::stdout())),
            Some(path) => Box::new(BufWriter::new(self.create(path)?)),
        })
    }

    /// Writes a drawing.
    fn write(&self, output: &Path, drawn: &str) -> Result<(), Failure> {
        self.create(output)?
            .write_all(drawn.as_bytes())
            .map_err(|e| self.failed_to(Some(output), Error::Write(e)))
    }

    fn timeline(&self) -> Result<Timeline<BufReader<File>>, Failure> {
        Timeline::new(self.open_file()?).map_err(|e| self.failed(e))
    }

    /// The failure of a command that reads the trace and writes `output`, or standard output.
    fn failed_to(&self, output: Option<&Path>, error: Error) -> Failure {
        match (error, output) {
            (Error::Write(why), Some(output)) => {
                // An incomplete file must not pass for a result. A device stays, and so does the
                // target of a link.
                let is_file = output.symlink_metadata().is_ok_and(|m| m.is_file());
                let removed = match is_file && std::fs::remove_file(output).is_ok() {
                    true => "the incomplete file was removed; ",
                    false => "",
                };
                Failure::internal(format!(
                    "cannot write {}: {why}; {removed}name another file",
                    output.display()
                ))
            }
            (Error::Write(why), None) => unprintable(why),
            (error, _) => self.failed(error),
        }
    }

    fn failed(&self, error: Error) -> Failure {
        match error {
            Error::NotATrace | Error::Version { .. } | Error::OverlapTooLarge => {
                Failure::data(format!("{}: {error}", self.shown()))
            }
            Error::Read(_) => Failure::internal(format!("{}: {error}", self.shown())),
            Error::EmptySelection { .. } => Failure::usage(format!("{}: {error}", self.shown())),
            Error::NotEmpty { .. } => Failure::usage(error),
            error => Failure::internal(error),
        }
    }

    /// The result of every command: reports a trace that is damaged or unfinished.
    fn ended(&self, ending: &Ending) -> Done {
        match ending {
            Ending::Damaged { .. } => Err(Failure::data(format!("{}: {ending}", self.shown()))),
            Ending::Unfinished { .. } => {
                print_line(format_args!(
                    "{}: {ending}; events that were still in memory are missing",
                    self.shown()
                ));
                Ok(ExitCode::SUCCESS)
            }
            Ending::Complete { more_at_byte: Some(_), .. } => {
                print_line(format_args!("{}: {ending}", self.shown()));
                Ok(ExitCode::SUCCESS)
            }
            _ => Ok(ExitCode::SUCCESS),
        }
    }

    fn shown(&self) -> std::path::Display<'_> {
        Path::display(&self.path)
    }
}

/// Formats nanoseconds for people.
fn time(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.3} s", ns as f64 / 1e9),
    }
}
