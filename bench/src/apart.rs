//! Subjects that do the same work, each in a process of its own, which prints a value and a checksum.

use crate::child::{Ended, Running, last_line};
use crate::program::word_after;
use crate::round::{Measured, Subject as Turn, interleave};
use crate::row::{Better, Table};
use crate::session::Session;
use clap::ValueEnum;
use std::process::Command;
use std::time::Duration;

/// The same work for several.
pub(crate) struct Case<S, L> {
    pub(crate) name: String,
    /// Who, each with the name that is shown, and what it is given: perhaps less.
    pub(crate) subjects: Vec<(String, S, L)>,
}

pub(crate) fn names<S, L>(cases: &[Case<S, L>]) -> Vec<String> {
    cases.iter().map(|case| case.name.clone()).collect()
}

pub(crate) fn count_workers(n: usize) -> String {
    if n == 1 { "1 worker".into() } else { format!("{n} workers") }
}

/// What a value is called on the command line.
pub(crate) fn word(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned())
}

/// Measures the cases that are wanted, each with these turns, and emits their tables.
pub(crate) fn measure<'a, S, L>(
    session: &'a Session,
    bench: &'static str,
    unit: impl Fn(&Case<S, L>) -> (&'static str, Better),
    cases: &'a [Case<S, L>],
    turns: impl Fn(&'a Case<S, L>) -> Result<Vec<Turn<'a>>, String>,
) -> Result<(), String> {
    for case in cases.iter().filter(|case| session.wants(&case.name)) {
        let (unit, better) = unit(case);
        let rounds = interleave(session, &case.name, unit, turns(case)?);
        session.emit(&Table {
            bench,
            case: case.name.clone(),
            unit,
            better,
            series: rounds.series,
            line_ns: rounds.line_ns,
        });
    }
    Ok(())
}

/// This program, to be one subject of a part of it.
pub(crate) fn command(session: &Session, part: &str, subject: impl ValueEnum) -> Result<Command, String> {
    let myself = std::env::current_exe().map_err(|e| format!("where is this program? {e}"))?;
    let mut command = Command::new(myself);
    command.arg(part).env("TMPDIR", session.folder()).arg(format!("--subject={}", word(subject)));
    Ok(command)
}

/// Runs a subject that checks its results itself: its value.
pub(crate) fn value(command: Command, limit: Duration) -> Result<Measured, String> {
    let ended = Running::start(command, false)?.wait(limit)?;
    let (value, _) = printed(&ended, limit)?;
    Ok(Measured::Value(value))
}

/// The value and the checksum of a subject that has ended, or was to end within a limit.
pub(crate) fn printed(ended: &Ended, limit: Duration) -> Result<(f64, String), String> {
    if ended.status.is_none() {
        return Err(format!("it did not end within {limit:?}"));
    }
    ended.check()?;
    let word = |before| {
        word_after(&ended.stdout, before)
            .ok_or_else(|| format!("it printed no '{before}' but: {}", last_line(&ended.stdout)))
    };
    let value = word("value ")?;
    Ok((value.parse().map_err(|_| format!("'{value}' is no number"))?, word("checksum ")?))
}
