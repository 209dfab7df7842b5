//! `corebeat trace calls`: who called whom, where probes were on.

use super::Input;
use crate::failure::{Done, Failure, tell};
use corebeat_probe::draw::{self, Format};
use corebeat_probe::{Calls, Error, chrome, kieker};
use corebeat_trace::{Ending, Reader};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    input: Input,
    /// What is drawn
    #[arg(long = "as", value_name = "DRAWING", default_value = "tree")]
    drawing: Drawing,
    /// For whom
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: Form,
    /// Of a sequence: which run of calls, from 0; the longest if nothing is said
    #[arg(long, value_name = "NUMBER")]
    run: Option<u32>,
    /// Where it goes: standard output if nothing is said
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Drawing {
    /// Calls by the way to them, with how often and how long
    Tree,
    /// Who calls whom
    Graph,
    /// One run of calls in the order of time
    Sequence,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Form {
    /// Lines to read
    Text,
    /// Graphviz
    Dot,
    /// Mermaid
    Mermaid,
    /// A picture
    Svg,
}

pub(crate) fn main(options: &Options) -> Done {
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
                let line = format!("there is no run {run}: this trace has {}, from 0", calls.traces());
                return Err(Failure::usage(line));
            }
            draw::sequence(&calls, run, format)
        }
    };
    match &options.output {
        None => std::io::stdout().write_all(drawn.as_bytes()).map_err(Failure::own)?,
        Some(path) => options.input.write(path, &drawn)?,
    }
    told(&options.input, &calls)
}

/// Writes a log of Kieker's.
pub(super) fn export(input: &Input, folder: &Path) -> Done {
    let calls = read(input)?;
    let host = rustix::system::uname();
    kieker::export(&calls, &host.nodename().to_string_lossy(), folder).map_err(|e| {
        Failure::usage(format!("cannot write {}: {e}; name another folder", folder.display()))
    })?;
    told(input, &calls)
}

/// Writes the calls, if there are any, with all other events for Perfetto.
pub(super) fn chrome(input: &Input, output: Option<&Path>) -> Done {
    let failed = |error| failed(input, output, error);
    let calls = Calls::read(input.open_file()?).map_err(failed)?;
    let mut reader = Reader::new(input.open_file()?).map_err(|e| input.failed(e))?;
    chrome::write(&calls, &mut reader, input.out(output)?).map_err(failed)?;
    told(input, &calls)
}

fn failed(input: &Input, output: Option<&Path>, error: Error) -> Failure {
    match error {
        Error::Trace(error) => input.failed_to(output, error),
        error => Failure::wrong(format!("{}: {error}", input.shown())),
    }
}

fn read(input: &Input) -> Result<Calls, Failure> {
    let calls = Calls::read(input.open()?).map_err(|e| failed(input, None, e))?;
    if calls.calls().is_empty() {
        if let Some(ending @ Ending::Damaged { .. }) = calls.ending() {
            return Err(Failure::wrong(format!("{}: {ending}", input.shown())));
        }
        let line = format!("{}: no calls are in there: were probes on?", input.shown());
        return Err(Failure::wrong(line));
    }
    Ok(calls)
}

/// Says what is missing.
fn told(input: &Input, calls: &Calls) -> Done {
    if calls.lost() > 0 {
        let lost = calls.lost();
        tell(format_args!(
            "corebeat: {}: {lost} events were lost, and calls are torn there\n",
            input.shown()
        ));
    }
    calls.ending().map_or(Ok(ExitCode::SUCCESS), |ending| input.ended(ending))
}
