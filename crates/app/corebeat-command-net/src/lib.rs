//! The commands `corebeat net`: check, draw, run and profile networks in S-Net.
//!
//! Place in the loop: app; stands on `corebeat-snet`.
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
//! # Failure
//!
//! A mistake in a network or in its records is exit status 1, a file that cannot be opened is exit
//! status 2; each failure is one line, and remarks on the source show the place.

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

use corebeat_command::Done;

/// Options of `corebeat net`.
#[derive(clap::Args)]
pub struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Say what is wrong with a network, or what records it takes and puts out
    Check(check::Options),
    /// Draw a network as SVG, or show one at work
    Draw(draw::Options),
    /// Run a network: records in, records out
    Run(run::Options),
    /// Run a network, and say what its parts cost and where they would be placed by that
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
