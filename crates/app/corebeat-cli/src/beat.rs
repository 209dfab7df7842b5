//! `corebeat beat`: groups of heartbeats and their goals.

mod exec;
mod list;
mod watch;

use corebeat_command::{Done, Failure};
use corebeat_wire::socket::{Place, places};
use corebeat_wire::{Connection, host};

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// List the groups, with their goals and rates
    List(list::Options),
    /// Show rates and goals continuously
    Watch(watch::Options),
    /// Run a program that emits heartbeats, and set the goal of its group
    Exec(exec::Options),
}

pub(crate) fn main(command: Command) -> Done {
    match command {
        Command::List(options) => list::main(options),
        Command::Watch(options) => watch::main(options),
        Command::Exec(options) => exec::main(options),
    }
}

/// Connects to the daemon.
pub(crate) fn connect() -> Result<Connection, Failure> {
    let found = Connection::open().map_err(|e| match e {
        corebeat_wire::Error::Relative(_) => Failure::usage(e),
        e => Failure::internal(e),
    })?;
    found.ok_or_else(|| Failure::internal(absence(&places())))
}

/// Message for sockets without a daemon.
fn absence(places: &[Place]) -> String {
    if let [Place { path, is_given: true }] = places {
        let path = path.display();
        return format!(
            "no daemon listens on {path}, which COREBEAT_SOCKET names; start one with 'corebeat daemon'"
        );
    }
    let paths: Vec<String> = places.iter().map(|place| place.path.display().to_string()).collect();
    let paths = paths.join(" or ");
    format!(
        "no daemon listens on {paths}; start one with 'corebeat daemon', or name its socket in \
         COREBEAT_SOCKET"
    )
}

/// Groups that this user may list, by owner and number.
pub(crate) fn groups(connection: &mut Connection) -> Result<Vec<host::Group>, Failure> {
    let mut all = Vec::new();
    let mut asked = host::ListGroups::default();
    loop {
        let (listed, _): (host::Groups, _) =
            connection.call(host::LIST_GROUPS, &asked, &[]).map_err(Failure::internal)?;
        all.extend(listed.groups);
        // A list that does not advance is complete.
        let at = |id: host::GroupId| (id.owner, id.group);
        match listed.next.filter(|next| asked.after.is_none_or(|after| at(after) < at(*next))) {
            Some(next) => asked.after = Some(next),
            None => break,
        }
    }
    all.sort_by_key(|group| (group.owner, group.group));
    Ok(all)
}

/// Text of a goal.
fn band(goal: &host::Goal) -> String {
    match (goal.rate_min, goal.rate_max) {
        (Some(min), Some(max)) => format!("{} to {}", number(min), number(max)),
        (Some(min), None) => format!("{} or more", number(min)),
        (None, Some(max)) => format!("{} or less", number(max)),
        (None, None) => "none".into(),
    }
}

/// A rate with three significant digits.
fn number(rate: f64) -> String {
    let decimals = match rate.abs() {
        _ if rate == 0.0 => 0,
        small if small < 1.0 => 3,
        small if small < 10.0 => 2,
        small if small < 100.0 => 1,
        _ => 0,
    };
    format!("{rate:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absence_names_the_places_that_were_looked_at() {
        let place = |path: &str, is_given| Place { path: path.into(), is_given };
        let message = absence(&[place("/a", false), place("/b", false)]);
        assert!(
            message.starts_with("no daemon listens on /a or /b; ")
                && message.contains("COREBEAT_SOCKET"),
            "{message}"
        );
        let message = absence(&[place("/a", true)]);
        assert!(
            message.starts_with("no daemon listens on /a, which COREBEAT_SOCKET names"),
            "{message}"
        );
    }

    #[test]
    fn number_has_three_digits_that_count() {
        let texts = [0.0, 0.1234, 1.234, 12.34, 123.4, 1_234_567.0].map(number);
        assert_eq!(texts, ["0", "0.123", "1.23", "12.3", "123", "1234567"]);
    }
}
