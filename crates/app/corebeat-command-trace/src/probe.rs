//! `corebeat probe`: switches and lists the probes of a running program.

use corebeat_command::{Done, Failure, print, unprintable};
use corebeat_probe::{Error, control};
use std::io::Write;
use std::process::ExitCode;

/// The commands of `corebeat probe`.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Switch probes on
    On(Options),
    /// Switch probes off
    Off(Options),
    /// List probes and their states (on, off, or set_by_rule: switched off by a rule as too
    /// expensive)
    List {
        /// Process identifier
        #[arg(value_parser = clap::value_parser!(u32).range(1..))]
        pid: u32,
        /// Pattern of probe names: "*" matches any text, "?" any character
        #[arg(default_value = "*")]
        pattern: String,
    },
}

/// Options of `corebeat probe on` and `off`.
#[derive(clap::Args)]
pub struct Options {
    /// Process identifier
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pid: u32,
    /// Pattern of probe names: "*" matches any text, "?" any character
    pattern: String,
}

/// Runs the command.
///
/// # Errors
/// See the crate's front page.
pub fn main(command: Command) -> Done {
    match command {
        Command::On(options) => switch("on", &options),
        Command::Off(options) => switch("off", &options),
        Command::List { pid, pattern } => {
            let (lines, _) = control(pid, "list", &pattern).map_err(to_failure)?;
            let mut out = std::io::stdout().lock();
            for line in lines {
                let line: String =
                    line.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
                writeln!(out, "{line}").map_err(unprintable)?;
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn switch(verb: &str, options: &Options) -> Done {
    let Options { pid, pattern } = options;
    let (_, matched) = control(*pid, verb, pattern).map_err(to_failure)?;
    if matched == 0 {
        let line = format!(
            "no probe of process {pid} matches {pattern:?}; see 'corebeat probe list {pid}'"
        );
        return Err(Failure::data(line));
    }
    print(format_args!("{matched} {verb}\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn to_failure(error: Error) -> Failure {
    match error {
        Error::Pattern | Error::NoControlSocket { .. } | Error::NoProcess { .. } => {
            Failure::usage(error)
        }
        error => Failure::internal(error),
    }
}
