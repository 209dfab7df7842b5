//! `corebeat trace`: traces, read.

mod calls;
mod cut;
mod export;
mod info;
mod stats;
mod stm;

use crate::failure::{Done, Failure, tell};
use corebeat_trace::{Ending, Error, Timeline, write_text};
use std::fs::{File, Metadata};
use std::io::{BufReader, BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Say what is in a trace: process, time, threads, kinds of events, and how it ended
    Info(Input),
    /// Print all events in the order of time
    Cat(Input),
    /// Draw who called whom, where probes were on
    Calls(calls::Options),
    /// Write a trace in a form that others read
    Export(export::Options),
    /// Count events by kind and by thread, and what was lost
    Stats(Input),
    /// Say how transactions went: who failed, where, because of whom, and what that cost
    Stm(stm::Options),
    /// Keep a piece of a trace: a time, or some threads
    Cut(cut::Options),
}

/// What is read.
#[derive(clap::Args)]
pub(crate) struct Input {
    /// The trace
    #[arg(value_name = "FILE")]
    path: PathBuf,
}

pub(crate) fn main(command: Command) -> Done {
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
            // That a folder cannot be read is known only when it is.
            if file.metadata()?.is_dir() { Err(std::io::ErrorKind::IsADirectory.into()) } else { Ok(file) }
        });
        opened.map(BufReader::new).map_err(|e| Failure::usage(format!("cannot open {}: {e}", self.shown())))
    }

    /// Opens what is read more than once, or not in order.
    fn open_file(&self) -> Result<BufReader<File>, Failure> {
        let file = self.open()?;
        if !file.get_ref().metadata().is_ok_and(|m| m.is_file()) {
            let line = format!("{} is no file, and is read more than once: make a file of it", self.shown());
            return Err(Failure::usage(line));
        }
        Ok(file)
    }

    /// Makes the file that is to be written. What is there goes; not so the trace itself, by whatever name: it is yet to be read.
    fn create(&self, output: &Path) -> Result<File, Failure> {
        let same = |a: Metadata, b: Metadata| a.is_file() && (a.dev(), a.ino()) == (b.dev(), b.ino());
        if let (Ok(input), Ok(there)) = (self.path.metadata(), output.metadata())
            && same(input, there)
        {
            return Err(Failure::usage(format!(
                "{} is the trace itself; name another file",
                output.display()
            )));
        }
        File::create(output)
            .map_err(|e| Failure::usage(format!("cannot write {}: {e}; name another file", output.display())))
    }

    /// Where something is written: a file, or standard output.
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

    /// Where it was read to be written there, or on standard output.
    fn failed_to(&self, output: Option<&Path>, error: Error) -> Failure {
        match (error, output) {
            (Error::Write(why), Some(output)) => {
                Failure::own(format!("cannot write {}: {why}; name another file", output.display()))
            }
            (Error::Write(why), None) => Failure::own(format!("cannot print: {why}")),
            (error, _) => self.failed(error),
        }
    }

    fn failed(&self, error: Error) -> Failure {
        match error {
            Error::NotATrace | Error::Version { .. } | Error::TooWide => {
                Failure::wrong(format!("{}: {error}", self.shown()))
            }
            Error::Read(_) => Failure::own(format!("{}: {error}", self.shown())),
            Error::NothingThere { .. } => Failure::usage(format!("{}: {error}", self.shown())),
            Error::NotEmpty { .. } => Failure::usage(error),
            error => Failure::own(error),
        }
    }

    /// What all commands end with: whether there was more to read.
    fn ended(&self, ending: &Ending) -> Done {
        match ending {
            Ending::Damaged { .. } => Err(Failure::wrong(format!("{}: {ending}", self.shown()))),
            Ending::Unfinished { .. } => {
                tell(format_args!("corebeat: {}: {ending}; what was in memory is missing\n", self.shown()));
                Ok(ExitCode::SUCCESS)
            }
            Ending::Complete { more_at_byte: Some(_), .. } => {
                tell(format_args!("corebeat: {}: {ending}\n", self.shown()));
                Ok(ExitCode::SUCCESS)
            }
            _ => Ok(ExitCode::SUCCESS),
        }
    }

    fn shown(&self) -> std::path::Display<'_> {
        Path::display(&self.path)
    }
}

/// Nanoseconds, readable.
fn time(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.3} s", ns as f64 / 1e9),
    }
}
