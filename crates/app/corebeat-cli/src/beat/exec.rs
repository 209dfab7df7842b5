//! `corebeat beat exec`: runs a program that emits heartbeats, and sets the goal of its group.

use super::connect;
use corebeat_command::{Done, Failure};
use corebeat_heartbeat::{Consumer, Goal, Group, Mode};
use corebeat_linux::{Launch, Signals, Started, exit_as};
use corebeat_wire::{Connection, host, is_closed};
use std::ffi::OsString;
use std::time::Duration;

/// Time from one check for a restarted daemon to the next. The end of the program ends a wait
/// early.
const CHECK: Duration = Duration::from_secs(1);

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Number of the group that the program attaches to
    #[arg(long, value_name = "NUMBER")]
    group: u32,
    /// Set the minimum rate in heartbeats per second
    #[arg(long, value_name = "RATE")]
    min: Option<f64>,
    /// Set the maximum rate in heartbeats per second
    #[arg(long, value_name = "RATE")]
    max: Option<f64>,
    /// Measure the rate over this number of samples
    #[arg(long, value_name = "SAMPLES")]
    window: Option<u32>,
    /// Keep the program below the maximum even if CPUs are idle
    #[arg(long, requires = "max")]
    hold: bool,
    /// Set the permissions of other users: 600 none, 604 read, 606 read, beat and set the goal
    #[arg(long, value_name = "BITS", value_parser = mode)]
    mode: Option<Mode>,
    /// Program with its arguments, after --
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

fn mode(text: &str) -> Result<Mode, String> {
    let bits = u32::from_str_radix(text, 8)
        .map_err(|_| "write the mode in octal, such as 604".to_owned())?;
    Mode::from_bits(bits).map_err(|e| e.to_string())
}

pub(crate) fn main(options: Options) -> Done {
    let goal = Goal {
        rate_min: options.min,
        rate_max: options.max,
        hold: options.hold,
        ..Goal::default()
    };
    let goal = Goal { window: options.window.unwrap_or(goal.window), ..goal };
    goal.check().map_err(Failure::usage)?;
    // Without a daemon, only this process would have the goal.
    let connection = connect()?;
    let group = Group::new(options.group);
    let group = options.mode.map_or(group, |mode| group.mode(mode));
    // A consumer keeps the group and its goal alive: before the program attaches, and between its
    // processes. A consumer emits no heartbeats, so the daemon does not steer this process.
    let member = group.consume().map_err(Failure::internal)?;
    let mut kept = Kept { member, goal, connection };
    kept.set_goal().map_err(Failure::internal)?;
    let signals = Signals::new().map_err(Failure::internal)?;
    let (program, args) = options
        .command
        .split_first()
        .ok_or_else(|| Failure::usage("a program is missing; write it after --"))?;
    let mut started = Launch::new(program, args.iter().cloned()).start()?;
    Started::forward_to_held(&[&mut started], &signals);
    started.release()?;
    loop {
        if let Some(status) = started.attend(&signals, CHECK)? {
            exit_as(status);
        }
        kept.reattach();
    }
}

/// The group with its goal, at the present daemon.
struct Kept {
    member: Consumer,
    goal: Goal,
    connection: Connection,
}

impl Kept {
    fn set_goal(&mut self) -> Result<(), corebeat_wire::Error> {
        let goal = host::SetGoal {
            group: self.member.group().number,
            owner: None,
            goal: self.goal.into(),
        };
        self.connection.call::<_, host::Nothing>(host::SET_GOAL, &goal, &[]).map(drop)
    }

    /// Attaches to the next daemon if the present one has ended. After a failure, the next call
    /// tries again; the program continues.
    fn reattach(&mut self) {
        if !is_closed(self.connection.as_fd()) {
            return;
        }
        let Ok(Some(successor)) = Connection::open() else { return };
        // Threads of the program may have transferred the goal, or set another one.
        let Ok(current) = self.member.goal() else { return };
        let ended = std::mem::replace(&mut self.connection, successor);
        if current == Goal::default() && self.set_goal().is_err() {
            self.connection = ended;
        }
    }
}
