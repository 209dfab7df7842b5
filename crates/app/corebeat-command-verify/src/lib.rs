//! The commands `corebeat verify`: analyse, search, partition and convert models of tasks on cores.
//!
//! Place in the loop: app; uses `corebeat-verify`.
//!
//! # Model
//!
//! ```text
//!  MODEL (.amxmi, .toml, .csv) --> analyse: response times, use, latencies --> table, JSON, SVG
//!                                  search: simulations on threads --> witness --> SVG, BTF, JSON
//!                                  partition: places, lower bound, explanation --> TOML
//!                                  convert: TOML or CSV
//! ```
//!
//! # Failure
//!
//! Exit status 0 states that the model is schedulable (search: that no deadline was missed;
//! partition: that a partition was found), 1 that it is not or that the answer is unknown, and 2 a
//! mistake on the command line. A mistake in a
//! model is one line, with exit status 1.

mod analyse;
mod convert;
mod model;
mod partition;
mod search;
mod table;

use corebeat_command::{Done, Failure, print};

/// Subcommands of `corebeat verify`.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Compute response times, the use of cores and memories, and latencies of chains
    Analyse(analyse::Options),
    /// Search for arrivals and execution times that miss a deadline, and write them as a witness
    Search(search::Options),
    /// Place the tasks of a model on the cores of as few units as possible
    Partition(partition::Options),
    /// Convert a model to TOML, or a set of periodic tasks to CSV
    Convert(convert::Options),
}

/// Prints a result, even if a file beside it could not be written, and returns the first error.
fn print_beside(written: Result<(), Failure>, text: String) -> Result<(), Failure> {
    print(text)?;
    written
}

/// Runs the command.
///
/// # Errors
/// See the crate's front page.
pub fn main(command: Command) -> Done {
    match command {
        Command::Analyse(options) => analyse::main(&options),
        Command::Search(options) => search::main(&options),
        Command::Partition(options) => partition::main(&options),
        Command::Convert(options) => convert::main(&options),
    }
}
