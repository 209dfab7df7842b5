//! `corebeat beat exec`: a program that emits heartbeats, with a goal for its group.

use super::connect;
use crate::failure::{Done, Failure};
use corebeat_heartbeat::{Consumer, Goal, Group, Mode};
use corebeat_linux::{Launch, Signals, exit_as};
use corebeat_wire::{Connection, hangs_up, host};
use std::ffi::OsString;
use std::time::Duration;

/// How often one looks whether the daemon was started again. The program's end is noticed at once.
const LOOK: Duration = Duration::from_secs(1);

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
    let connection = connect()?;
    let group = Group::new(options.group);
    let group = options.mode.map_or(group, |mode| group.mode(mode));
    // As long as this is there, so is the group with its goal: before the program attaches, and between its processes. It does
    // not beat itself, and so is none of those who are steered.
    let member = group.consume().map_err(Failure::own)?;
    let mut kept = Kept { member, goal, connection };
    kept.set_goal().map_err(Failure::own)?;
    let signals = Signals::new().map_err(Failure::own)?;
    let (program, args) =
        options.command.split_first().ok_or_else(|| Failure::usage("which program? Name one after --"))?;
    let mut started = Launch::new(program, args.iter().cloned()).start()?;
    started.release()?;
    loop {
        if let Some(status) = started.attend(&signals, LOOK)? {
            exit_as(status);
        }
        kept.look();
    }
}

/// The group, with its goal, at whichever daemon there is.
struct Kept {
    member: Consumer,
    goal: Goal,
    connection: Connection,
}

impl Kept {
    fn set_goal(&mut self) -> Result<(), corebeat_wire::Error> {
        let goal = host::SetGoal { group: self.member.group().number, owner: None, goal: self.goal.into() };
        self.connection.call::<_, host::Nothing>(host::SET_GOAL, &goal, &[]).map(drop)
    }

    /// Where the daemon has ended: attaches to its successor. What does not succeed does so the next time, or never: the program
    /// goes on.
    fn look(&mut self) {
        if !hangs_up(self.connection.as_fd()) {
            return;
        }
        let Ok(Some(successor)) = Connection::open() else { return };
        // The program's own threads may have brought the goal, and may have set another one.
        let Ok(there) = self.member.goal() else { return };
        let ended = std::mem::replace(&mut self.connection, successor);
        if there == Goal::default() && self.set_goal().is_err() {
            self.connection = ended;
        }
    }
}
