//! `corebeat top`: programs and threads with their time shares, as they move.
//!
//! ```text
//!  Subjects (which processes) --> Seen (figures of programs and threads) --> row, a line of cells
//!                                                                           |                  |
//!                                                                 Screen (terminal)    once (table, JSON)
//! ```

mod column;
pub(crate) mod live;
mod once;
mod row;
mod screen;
mod seen;
mod stack;
mod subject;

use crate::failure::Done;
use corebeat_linux::LinuxMachine;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;
use subject::Subjects;

/// Periods that a user may choose, in milliseconds.
const PERIOD_MS: std::ops::RangeInclusive<u64> = 50..=60_000;

/// The longest time between two looks at what threads sleep in.
const GLANCE: Duration = Duration::from_millis(100);

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Processes by number or by name, each with its descendants; all of your own where nothing is named
    #[arg(value_name = "PID|NAME")]
    subject: Vec<String>,
    /// Milliseconds from one observation to the next
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(PERIOD_MS))]
    period: u64,
    /// Print one observation and exit, as is done as well where standard output is no terminal
    #[arg(long)]
    once: bool,
    /// The same, as one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(options: Options) -> Done {
    // Counters cost a few microseconds a thread: for programs that somebody asked for.
    let named = !options.subject.is_empty();
    let machine =
        LinuxMachine::new(corebeat_linux::Options { counters: named, spin: true, ..Default::default() })?;
    let subjects = Subjects::new(&options.subject, machine)?;
    let period = Duration::from_millis(options.period);
    if options.once || options.json || !std::io::stdout().is_terminal() {
        once::show(subjects, period, options.json)?;
    } else {
        live::show(subjects, period)?;
    }
    Ok(ExitCode::SUCCESS)
}
