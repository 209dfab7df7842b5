//! The program `corebeat`: sees what every thread does, decides, and acts.
//!
//! Place in the loop: app; stands on everything. One file a command; `report.rs` and `trial.rs` serve several.
//!
//! Exit status, as `env` has it: 2 for a mistake on the command line, such as a file that cannot be opened, 125 where
//! Corebeat itself fails, 126 for a program that cannot be started, 127 for one that is not there; else the program's own, or
//! its signal. `corebeat net` ends with 1 where something is wrong with the network or its records, and
//! `corebeat trace` where the file is no trace, or damaged, and `corebeat sim` where the scenario makes no sense.

mod beat;
mod beside;
mod daemon;
mod demo;
mod doctor;
mod end;
mod failure;
mod gang;
mod input;
mod net;
mod output;
mod paper;
mod plot;
mod probe;
mod report;
mod restore;
mod run;
mod session;
mod several;
mod sim;
mod top;
mod trace;
mod train;
mod trial;
mod tune;
mod workload;

use clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::error::Error;
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};
use std::process::ExitCode;

/// Makes parallel programs run at their best: sees what every thread does, decides, and acts.
#[derive(Parser)]
#[command(name = "corebeat", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a program, watch it and its children, let policies act, and report at the end
    Run(run::Options),
    /// Find a program's best thread count by short runs (Thread Reinforcer), then run it with that
    Tune(tune::Options),
    /// Train the models that the policy adapt predicts with, for this host (takes a minute) or a simulated machine
    Train(train::Options),
    /// Show programs and threads with their time shares as they move
    Top(top::Options),
    /// Say what this machine offers, what each missing thing costs, and how to get it
    Doctor(doctor::Options),
    /// Undo what a Corebeat that was killed has left changed
    Restore,
    /// Show on embedded kernels what Corebeat brings: before and after, side by side
    Demo(demo::Options),
    /// Run one of the embedded kernels (what demo runs)
    Workload(workload::Options),
    /// See groups of heartbeats and their goals, and give a program one
    #[command(subcommand)]
    Beat(beat::Command),
    /// Check, draw and run networks in S-Net
    Net(net::Options),
    /// Read traces: what is in them, as text, as tables, and in forms that other tools open
    #[command(subcommand)]
    Trace(trace::Command),
    /// Run scenarios on simulated machines
    #[command(subcommand)]
    Sim(sim::Command),
    /// Run the papers' tables and figures again, beside what the papers say
    Paper(paper::Options),
    /// List a running program's probes, and switch them on and off
    #[command(subcommand)]
    Probe(probe::Command),
    /// Serve this host, or this user: take heartbeats and goals from programs, and steer by them
    Daemon(daemon::Options),
}

/// The parser. A number below 0 is a value, not an option: so the value is told to be wrong, and nothing else.
fn parser(command: clap::Command) -> clap::Command {
    let value = |arg: clap::Arg| match arg.get_action().takes_values() && !arg.is_trailing_var_arg_set() {
        true => arg.allow_negative_numbers(true),
        false => arg,
    };
    command.mut_args(value).mut_subcommands(parser)
}

fn parsed() -> Result<Command, clap::Error> {
    let mut parser = parser(Cli::command());
    let matches = parser.try_get_matches_from_mut(std::env::args_os())?;
    Cli::from_arg_matches(&matches).map(|cli| cli.command).map_err(|mistake| mistake.format(&mut parser))
}

/// What the parser says in several lines, in one: the mistake, its details, and where to look.
fn one_line(mistake: &clap::Error) -> String {
    let mut told = mistake.to_string();
    if let Some(why) = mistake.source().and_then(|source| source.downcast_ref::<ParseIntError>()) {
        let what = match why.kind() {
            IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "write a smaller number",
            IntErrorKind::Zero => "write 1 or more",
            _ => "write a whole number in digits, without a sign",
        };
        told = told.replace(&why.to_string(), what);
    }
    if let Some(why) = mistake.source().and_then(|source| source.downcast_ref::<ParseFloatError>()) {
        told = told.replace(&why.to_string(), "write a number");
    }
    let lines = told.lines().map(str::trim).filter(|line| !line.is_empty());
    let said: Vec<String> = lines
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"))
        // What a word that is no option is to do as a value, the parser cannot know.
        .filter(|line| !line.starts_with("tip: to pass "))
        .map(|line| line.replacen("tip: ", "; ", 1))
        .collect();
    let said = said.join(" ").replace(" ; ", "; ");
    format!("{}; see '{} --help'", said.trim_start_matches("error: "), command())
}

/// The command that was called, as far as there is one of that name.
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
    let command = match parsed() {
        Ok(command) => command,
        // Help and version are answers, not mistakes; and who says nothing wants help.
        Err(answer) if !answer.use_stderr() || answer.kind() == DisplayHelpOnMissingArgumentOrSubcommand => {
            failure::die_of_broken_pipe();
            return match answer.print() {
                Ok(()) => ExitCode::from(answer.exit_code() as u8),
                Err(why) => failure::Failure::own(format!("cannot print: {why}")).report(),
            };
        }
        Err(mistake) => return failure::Failure::usage(one_line(&mistake)).report(),
    };
    // Who gives a program's exit status back does so even if nobody reads the report, and who serves others goes on.
    let outlives_its_reader = match command {
        Command::Run(_) | Command::Tune(_) => true,
        Command::Daemon(ref options) => options.serves(),
        Command::Beat(ref command) => matches!(command, beat::Command::Exec(_)),
        _ => false,
    };
    if !outlives_its_reader {
        failure::die_of_broken_pipe();
    }
    let done = match command {
        Command::Run(options) => run::main(options),
        Command::Tune(options) => tune::main(options),
        Command::Train(options) => train::main(options),
        Command::Top(options) => top::main(options),
        Command::Doctor(options) => doctor::main(options),
        Command::Restore => restore::main(),
        Command::Demo(options) => demo::main(options),
        Command::Workload(options) => workload::main(options),
        Command::Beat(command) => beat::main(command),
        Command::Net(options) => net::main(options),
        Command::Trace(command) => trace::main(command),
        Command::Sim(command) => sim::main(command),
        Command::Paper(options) => paper::main(options),
        Command::Probe(command) => probe::main(command),
        Command::Daemon(options) => daemon::main(options),
    };
    done.unwrap_or_else(|failure| failure.report())
}
