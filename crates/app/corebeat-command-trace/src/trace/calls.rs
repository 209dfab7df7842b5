//! `corebeat trace calls`: draws the calls that probes recorded.

use super::Input;
use corebeat_command::{Done, Failure, print, print_line};
use corebeat_probe::draw::{self, Format};
use corebeat_probe::{Calls, Error, chrome, kieker, otlp};
use corebeat_trace::{Ending, Reader};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Options {
    #[command(flatten)]
    input: Input,
    /// Kind of drawing
    #[arg(long = "as", value_name = "DRAWING", default_value = "tree")]
    drawing: Drawing,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: Form,
    /// Number of the run of calls that a sequence shows, from 0 [default: the longest]
    #[arg(long, value_name = "NUMBER")]
    run: Option<u32>,
    /// Output file [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Drawing {
    /// Calls by call path, with counts and times
    Tree,
    /// Callers and callees
    Graph,
    /// One run of calls in order of time
    Sequence,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Form {
    /// Plain text
    Text,
    /// Graphviz
    Dot,
    /// Mermaid
    Mermaid,
    /// SVG image
    Svg,
}

pub(super) fn main(options: &Options) -> Done {
    let calls = read(&options.input)?;
    let format = match options.format {
        Form::Text => Format::Text,
        Form::Dot => Format::Dot,
        Form::Mermaid => Format::Mermaid,
        Form::Svg => Format::Svg,
    };
    let drawn = match options.drawing {
        Drawing::Tree => draw::tree(&calls, format),
        Drawing::Graph => draw::graph(&calls, format),
        Drawing::Sequence => {
            let longest = draw::longest(&calls).unwrap_or(0);
            let run = options.run.unwrap_or(longest);
            if run >= calls.traces() {
                let line = format!(
                    "run {run} does not exist; the trace has {} runs, from 0",
                    calls.traces()
                );
                return Err(Failure::usage(line));
            }
            draw::sequence(&calls, run, format)
        }
    };
    match &options.output {
        None => print(drawn)?,
        Some(path) => options.input.write(path, &drawn)?,
    }
    finish(&options.input, &calls)
}

/// Writes a Kieker log.
pub(super) fn export(input: &Input, folder: &Path) -> Done {
    let calls = read(input)?;
    let host = rustix::system::uname();
    kieker::export(&calls, &host.nodename().to_string_lossy(), folder).map_err(|e| {
        Failure::usage(format!("cannot write {}: {e}; name another directory", folder.display()))
    })?;
    finish(input, &calls)
}

/// Writes the recorded calls as spans for OpenTelemetry.
pub(super) fn otlp(input: &Input, output: Option<&Path>) -> Done {
    let calls = read(input)?;
    otlp::write(&calls, input.out(output)?)
        .map_err(|e| input.failed_to(output, corebeat_trace::Error::Write(e)))?;
    finish(input, &calls)
}

/// Writes the recorded calls and all other events for Perfetto.
pub(super) fn chrome(input: &Input, output: Option<&Path>) -> Done {
    let failed = |error| to_failure(input, output, error);
    let calls = Calls::read(input.open_file()?).map_err(failed)?;
    let mut reader = Reader::new(input.open_file()?).map_err(|e| input.failed(e))?;
    chrome::write(&calls, &mut reader, input.out(output)?).map_err(failed)?;
    finish(input, &calls)
}

fn to_failure(input: &Input, output: Option<&Path>, error: Error) -> Failure {
    match error {
        Error::Trace(error) => input.failed_to(output, error),
        error => Failure::data(format!("{}: {error}", input.shown())),
    }
}

fn read(input: &Input) -> Result<Calls, Failure> {
    let calls = Calls::read(input.open()?).map_err(|e| to_failure(input, None, e))?;
    if calls.calls().is_empty() {
        if let Some(ending @ Ending::Damaged { .. }) = calls.ending() {
            return Err(Failure::data(format!("{}: {ending}", input.shown())));
        }
        let line = format!(
            "{}: the trace has no calls; switch probes on with 'corebeat probe on'",
            input.shown()
        );
        return Err(Failure::data(line));
    }
    Ok(calls)
}

/// Reports lost events, and whether the trace is complete.
fn finish(input: &Input, calls: &Calls) -> Done {
    if calls.lost() > 0 {
        let lost = calls.lost();
        print_line(format_args!(
            "{}: {lost} events were lost; calls are incomplete there",
            input.shown()
        ));
    }
    calls.ending().map_or(Ok(ExitCode::SUCCESS), |ending| input.ended(ending))
}
