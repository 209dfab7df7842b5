//! `corebeat probe`: a running program's probes.

use crate::failure::{Done, Failure};
use corebeat_probe::{Error, ask};
use std::io::Write;
use std::process::ExitCode;

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Switch probes on
    On(Options),
    /// Switch probes off
    Off(Options),
    /// List probes, and whether they are on: "thin" is on, but switched off by a rule for its cost
    List {
        /// The process
        #[arg(value_parser = clap::value_parser!(u32).range(1..))]
        pid: u32,
        /// Names: "*" is any text, "?" any character
        #[arg(default_value = "*")]
        pattern: String,
    },
}

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The process
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pid: u32,
    /// Names: "*" is any text, "?" any character
    pattern: String,
}

pub(crate) fn main(command: Command) -> Done {
    match command {
        Command::On(options) => switch("on", &options),
        Command::Off(options) => switch("off", &options),
        Command::List { pid, pattern } => {
            let (lines, _) = ask(pid, "list", &pattern).map_err(failed)?;
            let mut out = std::io::stdout().lock();
            for line in lines {
                let line: String =
                    line.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
                writeln!(out, "{line}").map_err(Failure::own)?;
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn switch(verb: &str, options: &Options) -> Done {
    let Options { pid, pattern } = options;
    let (_, fit) = ask(*pid, verb, pattern).map_err(failed)?;
    if fit == 0 {
        let line = format!("no probe of process {pid} fits {pattern:?}: see 'corebeat probe list {pid}'");
        return Err(Failure::wrong(line));
    }
    println!("{fit} {verb}");
    Ok(ExitCode::SUCCESS)
}

fn failed(error: Error) -> Failure {
    match error {
        Error::Pattern | Error::NoDoor { .. } | Error::NoProcess { .. } => Failure::usage(error),
        error => Failure::own(error),
    }
}
