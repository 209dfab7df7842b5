//! `corebeat beat exec`: a program that emits heartbeats, with a goal for its group.

use super::connect;
use crate::failure::{Done, Failure};
use corebeat_heartbeat::{Goal, Group, Mode};
use corebeat_linux::{Launch, Signals, exit_as};
use corebeat_wire::host;
use std::ffi::OsString;
use std::time::Duration;

/// How long one waits for the program at a time; its end is noticed at once.
const WAIT: Duration = Duration::from_secs(3600);

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The group's number, which the program attaches to
    #[arg(long, value_name = "NUMBER")]
    group: u32,
    /// Heartbeats a second that it is to have at least
    #[arg(long, value_name = "RATE")]
    min: Option<f64>,
    /// Heartbeats a second that it is to have at most
    #[arg(long, value_name = "RATE")]
    max: Option<f64>,
    /// Over how many samples the rate is taken
    #[arg(long, value_name = "SAMPLES")]
    window: Option<u32>,
    /// Hold it below the maximum even where nobody else wants the CPUs
    #[arg(long, requires = "max")]
    hold: bool,
    /// What other users may do: 600 nothing, 604 watch, 606 take part
    #[arg(long, value_name = "BITS", value_parser = mode)]
    mode: Option<Mode>,
    /// The program and its arguments, after --
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

fn mode(text: &str) -> Result<Mode, String> {
    let bits = u32::from_str_radix(text, 8).map_err(|_| "write it in octal, such as 604".to_owned())?;
    Mode::from_bits(bits).map_err(|e| e.to_string())
}

pub(crate) fn main(options: Options) -> Done {
    let goal = Goal { rate_min: options.min, rate_max: options.max, hold: options.hold, ..Goal::default() };
    let goal = Goal { window: options.window.unwrap_or(goal.window), ..goal };
    goal.check().map_err(Failure::usage)?;
    // Without a daemon the goal would be seen by nobody but this process.
    let mut connection = connect()?;
    let group = Group::new(options.group);
    let group = options.mode.map_or(group, |mode| group.mode(mode));
    // As long as this is there, so is the group with its goal: before the program attaches, and between its processes. It does
    // not beat itself, and so is none of those who are steered.
    let _group = group.consume().map_err(Failure::own)?;
    let goal = host::SetGoal { group: options.group, owner: None, goal: goal.into() };
    let _: (host::Nothing, _) = connection.call(host::SET_GOAL, &goal, &[]).map_err(Failure::own)?;
    let signals = Signals::new().map_err(Failure::own)?;
    let (program, args) =
        options.command.split_first().ok_or_else(|| Failure::usage("which program? Name one after --"))?;
    let mut started = Launch::new(program, args.iter().cloned()).start()?;
    started.release()?;
    loop {
        if let Some(status) = started.attend(&signals, WAIT)? {
            exit_as(status);
        }
    }
}
