//! The program `corebeat`: observes what every thread of a program does, decides, and acts.
//!
//! Place in the loop: app; uses every layer. One file per command. The commands `net`, `rewrite`,
//! `top`, and the families `trace`, `sim` and `verify` are separate crates. A build without the
//! feature `all-commands` has only the commands that observe or steer programs.
//!
//! The exit status follows `env`: 125 for a failure of Corebeat, 126 for a program that cannot be
//! started, and 127 for a program that does not exist. It is 2 for a mistake on the command line,
//! such as a file that cannot be opened. Otherwise it is the status or the signal of the program.
//! Status 1 reports a mistake in the user's data: `corebeat net` in a network or its records,
//! `corebeat rewrite` in a graph or its rules, `corebeat trace` in a trace, `corebeat sim` in a
//! scenario. `corebeat verify` also returns 1 if a model is not schedulable, or not proven to be.

mod beat;
mod daemon;
mod demo;
mod doctor;
mod generate;
mod plot;
#[cfg(feature = "all-commands")]
mod report;
mod restore;
mod run;
mod stack;
mod status;
mod stream;
mod tune;
mod workload;

use clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use corebeat_command::{Failure, end_on_broken_pipe, survive_file_size_limit, unprintable};
#[cfg(feature = "all-commands")]
use corebeat_command_net as net;
#[cfg(feature = "all-commands")]
use corebeat_command_rewrite as rewrite;
#[cfg(feature = "all-commands")]
use corebeat_command_sim::{paper, sim, train};
use corebeat_command_top as top;
#[cfg(feature = "all-commands")]
use corebeat_command_trace::{probe, trace};
#[cfg(feature = "all-commands")]
use corebeat_command_verify as verify;
use std::error::Error;
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};
use std::process::ExitCode;

/// The lines that `corebeat --version` prints; `build.rs` sets the variables.
const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit: ",
    env!("COREBEAT_COMMIT"),
    "\nfeatures: ",
    env!("COREBEAT_FEATURES"),
    "\ntarget: ",
    env!("COREBEAT_TARGET"),
);

/// Make parallel programs run at their best: observe every thread, decide, and act
#[derive(Parser)]
#[command(name = "corebeat", version, long_version = VERSION, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run programs, observe and steer them, and report at the end
    Run(run::Options),
    /// Search for the best thread count by short runs, then run the program with that count
    Tune(tune::Options),
    /// Train the models of the policy adapt, for this host (takes a minute) or a simulated machine
    #[cfg(feature = "all-commands")]
    Train(train::Options),
    /// Show programs and threads with their time shares, live
    Top(top::Options),
    /// Report the features of this machine, the cost of missing ones, and how to get them
    Doctor(doctor::Options),
    /// Undo the changes of a killed Corebeat
    Restore(restore::Options),
    /// Show what running and killed Corebeats have changed
    Status(status::Options),
    /// Run embedded kernels before and after steering, side by side
    Demo(demo::Options),
    /// Run one of the embedded kernels of demo
    Workload(workload::Options),
    /// Show heartbeat groups and their goals, and run a program with a goal
    #[command(subcommand)]
    Beat(beat::Command),
    /// Check, draw and run networks in S-Net
    #[cfg(feature = "all-commands")]
    Net(net::Options),
    /// Apply rules to graphs, and evaluate queries
    #[cfg(feature = "all-commands")]
    Rewrite(rewrite::Options),
    /// Read traces: print, count, draw, cut, and export them
    #[cfg(feature = "all-commands")]
    #[command(subcommand)]
    Trace(trace::Command),
    /// Run scenarios on simulated machines
    #[cfg(feature = "all-commands")]
    #[command(subcommand)]
    Sim(sim::Command),
    /// Analyse models of tasks on cores, search for missed deadlines, and partition tasks
    #[cfg(feature = "all-commands")]
    #[command(subcommand)]
    Verify(verify::Command),
    /// Reproduce tables and figures of the papers, and print the papers' values beside them
    #[cfg(feature = "all-commands")]
    Paper(paper::Options),
    /// List the probes of a running program, and switch them on and off
    #[cfg(feature = "all-commands")]
    #[command(subcommand)]
    Probe(probe::Command),
    /// Serve heartbeats, goals and claims of programs on this host, and steer the programs
    Daemon(daemon::Options),
    /// Report what happened on this host in the last day, from the history of the daemon
    #[cfg(feature = "all-commands")]
    Report(report::Options),
    /// Write man pages and completions for bash, zsh and fish into a folder
    Generate(generate::Options),
}

/// Makes the parser take a negative number as a value, not as an option, so that the message is
/// about the value.
fn parser(command: clap::Command) -> clap::Command {
    let value =
        |arg: clap::Arg| match arg.get_action().takes_values() && !arg.is_trailing_var_arg_set() {
            true => arg.allow_negative_numbers(true),
            false => arg,
        };
    command.mut_args(value).mut_subcommands(parser)
}

fn parsed() -> Result<Command, clap::Error> {
    let mut parser = parser(Cli::command());
    let matches = parser.try_get_matches_from_mut(std::env::args_os())?;
    Cli::from_arg_matches(&matches)
        .map(|cli| cli.command)
        .map_err(|mistake| mistake.format(&mut parser))
}

/// Whether an invalid value is a number with a sign, where the option has no negative values.
fn has_sign(mistake: &clap::Error) -> bool {
    let Some(ContextValue::String(value)) = mistake.get(ContextKind::InvalidValue) else {
        return false;
    };
    let digits = value.strip_prefix(['-', '+']);
    digits.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
}

/// The message of the parser in one line: the mistake, its details, and the help command.
fn one_line(mistake: &clap::Error) -> String {
    let mut message = mistake.to_string();
    if let Some(why) = mistake.source().and_then(|source| source.downcast_ref::<ParseIntError>()) {
        let what = match why.kind() {
            IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "write a smaller number",
            IntErrorKind::Zero => "write 1 or more",
            _ if has_sign(mistake) => "write a whole number without a sign",
            _ => "write a whole number in digits",
        };
        message = message.replace(&why.to_string(), what);
    }
    if let Some(why) = mistake.source().and_then(|source| source.downcast_ref::<ParseFloatError>())
    {
        message = message.replace(&why.to_string(), "write a number");
    }
    let lines = message.lines().map(str::trim).filter(|line| !line.is_empty());
    let parts: Vec<String> = lines
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"))
        // The hint to pass an unknown option as a value is rarely right.
        .filter(|line| !line.starts_with("tip: to pass "))
        .map(|line| line.replacen("tip: ", "; ", 1))
        .collect();
    let line = parts.join(" ").replace(" ; ", "; ");
    format!("{}; see '{} --help'", line.trim_start_matches("error: "), command())
}

/// The command and its subcommands, as far as they exist.
fn command() -> String {
    let (mut parser, mut name) = (&Cli::command(), "corebeat".to_owned());
    for word in std::env::args_os().skip(1) {
        let Some(sub) = parser.find_subcommand(&word) else { break };
        name = format!("{name} {}", sub.get_name());
        parser = sub;
    }
    name
}

fn main() -> ExitCode {
    stream::keep_closed();
    survive_file_size_limit();
    stack::with_sufficient_stack(run_command)
}

fn run_command() -> ExitCode {
    let command = match parsed() {
        Ok(command) => command,
        // Help and version are not mistakes; a missing command prints help.
        Err(answer)
            if !answer.use_stderr()
                || answer.kind() == DisplayHelpOnMissingArgumentOrSubcommand =>
        {
            end_on_broken_pipe();
            return match answer.print() {
                Ok(()) => ExitCode::from(answer.exit_code() as u8),
                Err(why) => unprintable(why).report(),
            };
        }
        Err(mistake) => return Failure::usage(one_line(&mistake)).report(),
    };
    // Commands that return the exit status of a program, and servers, survive a closed pipe.
    let outlives_its_reader = match command {
        Command::Run(_) | Command::Tune(_) => true,
        Command::Daemon(ref options) => options.serves(),
        Command::Beat(ref command) => matches!(command, beat::Command::Exec(_)),
        _ => false,
    };
    if !outlives_its_reader {
        end_on_broken_pipe();
    }
    let done = match command {
        Command::Run(options) => run::main(options),
        Command::Tune(options) => tune::main(options),
        #[cfg(feature = "all-commands")]
        Command::Train(options) => train::main(options),
        Command::Top(options) => top::main(options),
        Command::Doctor(options) => doctor::main(options),
        Command::Restore(options) => restore::main(options),
        Command::Status(options) => status::main(options),
        Command::Demo(options) => demo::main(options),
        Command::Workload(options) => workload::main(options),
        Command::Beat(command) => beat::main(command),
        #[cfg(feature = "all-commands")]
        Command::Net(options) => net::main(options),
        #[cfg(feature = "all-commands")]
        Command::Rewrite(options) => rewrite::main(options),
        #[cfg(feature = "all-commands")]
        Command::Trace(command) => trace::main(command),
        #[cfg(feature = "all-commands")]
        Command::Sim(command) => sim::main(command),
        #[cfg(feature = "all-commands")]
        Command::Verify(command) => verify::main(command),
        #[cfg(feature = "all-commands")]
        Command::Paper(options) => paper::main(options),
        #[cfg(feature = "all-commands")]
        Command::Probe(command) => probe::main(command),
        Command::Daemon(options) => daemon::main(options),
        #[cfg(feature = "all-commands")]
        Command::Report(options) => report::main(options),
        Command::Generate(options) => generate::main(options, Cli::command()),
    };
    done.unwrap_or_else(|failure| failure.report())
}
