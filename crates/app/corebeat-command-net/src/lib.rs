//! The commands `corebeat net`: check, draw, run and profile networks in S-Net.
//!
//! Place in the loop: app; uses `corebeat-snet`.
//!
//! # Model
//!
//! ```text
//!  FILE.snet --> Program --> check: remarks and signatures
//!                   |------> draw: SVG
//!                   `------> Flow: records through the network --> run
//!                              |----- Meter ------------> profile: costs of the entities
//!                              `----- Meter ------------> draw --live: fill levels of the streams
//! ```
//!
//! With the feature `mpi`, `run` and `profile` are one network on all ranks of an MPI run (`team`):
//! rank 0 has the source, the sink and the profile, and each rank runs the parts that the program
//! places on it.
//!
//! # Failure
//!
//! Exit status 1 reports a mistake in a network or in its records, and exit status 2 a file that
//! cannot be opened. Each failure is one line, and remarks on the source show the place.

mod check;
mod draw;
mod flow;
mod header;
mod live;
mod meter;
mod observer;
mod placing;
mod profile;
mod program;
mod remark;
mod run;
mod source;
#[cfg(feature = "mpi")]
mod team;

use corebeat_command::Done;

/// Options of `corebeat net`.
#[derive(clap::Args)]
pub struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Report the errors of a network, or its input and output records
    Check(check::Options),
    /// Draw a network as SVG, or show a running network
    Draw(draw::Options),
    /// Run a network: read records, and write the records that it outputs
    Run(run::Options),
    /// Run a network, and report the costs of its parts and a placement by these costs
    Profile(profile::Options),
    /// Write the header that boxes in C include
    Header(header::Options),
}

/// Runs the command.
///
/// # Errors
/// See the crate's front page.
pub fn main(options: Options) -> Done {
    match options.command {
        Command::Check(options) => check::main(options),
        Command::Draw(options) => draw::main(options),
        Command::Run(options) => run::main(options),
        Command::Profile(options) => profile::main(options),
        Command::Header(options) => header::main(options),
    }
}
