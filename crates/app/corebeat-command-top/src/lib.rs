//! The command `corebeat top`: programs and threads with their time shares.
//!
//! Place in the loop: app; drives the control loop of `corebeat-host` without policies.
//!
//! # Model
//!
//! ```text
//!  control loop (corebeat-host) --> Snapshot
//!                                      |
//!  Subjects (which processes) --> View (figures of programs and threads) --> rows of cells
//!                                                                        |              |
//!                                                           Screen (terminal)   once (table, JSON)
//!                                                                |
//!                                 keys --> Prompt --> Change (signal or nice value of a process)
//! ```
//!
//! # Invariants
//!
//! 1. A bar has the requested width, whatever is unknown (`stack_has_the_requested_width`).
//! 2. The screen can have any size (`screen_of_any_size_with_unknown_shares_does_not_panic`).
//! 3. However the view ends, it restores the terminal
//!    (`top_restores_the_terminal_when_a_signal_ends_it`).
//! 4. No text of a process reaches the terminal with a control character
//!    (`screen_shows_user_and_command_and_escapes_control_characters`).
//! 5. A change changes no later process with the number of its target
//!    (`kill_ends_the_process_and_not_a_later_one_with_its_number`).
//!
//! # Failure
//!
//! [`main`] returns a [`Failure`](corebeat_command::Failure). Its exit status is 2 if a process or
//! user does not exist, and 125 if the host cannot be observed or the terminal cannot be used. The
//! failure of a change is one line at the bottom of the screen.
//!
//! # Limits
//!
//! - The kernel makes each reader of a command line wait while another thread locks the memory of
//!   the process. `top` waits then, as `ps` does.
//! - A directory server that does not answer delays the first row of a user.

mod change;
mod column;
mod filter;
mod live;
mod once;
mod process;
mod prompt;
mod row;
mod screen;
mod server;
mod stack;
mod subject;
mod view;

use corebeat_command::Done;
use corebeat_kernel::KernelTable;
use corebeat_linux::LinuxMachine;
use filter::Filter;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;
use subject::Subjects;

/// Permitted periods, in milliseconds.
const PERIOD_MS: std::ops::RangeInclusive<u64> = 50..=60_000;

/// Time from one sample of the causes of sleep to the next, in nanoseconds.
const SAMPLE_NS: u64 = 100_000_000;

/// Options of `corebeat top`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Processes by number or name, each with its descendants [default: all your processes]
    #[arg(value_name = "PID|NAME")]
    subject: Vec<String>,
    /// Show the processes of this user instead of yours
    #[arg(long, value_name = "NAME|NUMBER", conflicts_with = "subject")]
    user: Option<String>,
    /// Show only programs and threads whose name, user or command line contains TEXT
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    filter: String,
    /// Observe every MS milliseconds
    #[arg(
        long, value_name = "MS", default_value_t = 1000,
        value_parser = clap::value_parser!(u64).range(PERIOD_MS)
    )]
    period: u64,
    /// Let the kernel count the threads; requires CAP_BPF and CAP_PERFMON
    #[arg(long)]
    tables: bool,
    /// Print one observation and exit; the default if standard output is not a terminal
    #[arg(long)]
    once: bool,
    /// Print one observation as a JSON object and exit
    #[arg(long)]
    json: bool,
}

/// Shows the processes until the user quits, or prints one observation.
///
/// # Errors
/// As the front page describes.
pub fn main(options: Options) -> Done {
    // Counters cost a few microseconds for each thread: only programs that the user named are worth
    // them.
    let named = !options.subject.is_empty();
    let mut machine = LinuxMachine::new(corebeat_linux::Options {
        counters: named,
        spin: true,
        ..Default::default()
    })?;
    if options.tables {
        match KernelTable::load() {
            Ok(table) => machine.set_table(Box::new(table)),
            Err(why) => machine.add_note(format!("threads are read from /proc: {why}")),
        }
    }
    let subjects = Subjects::new(&options.subject, options.user.as_deref(), &mut machine)?;
    let filter = Filter::new(&options.filter);
    let period = Duration::from_millis(options.period);
    if options.once || options.json || !std::io::stdout().is_terminal() {
        once::show(machine, subjects, period, &filter, options.json)?;
    } else {
        live::show(machine, subjects, period, filter)?;
    }
    Ok(ExitCode::SUCCESS)
}
