//! `corebeat net`: networks in S-Net, checked, drawn and run.
//!
//! ```text
//!  FILE.snet --> Program --> check: remarks and signatures
//!                   |------> draw: SVG
//!                   `------> Flow: records through it --> run
//!                              |----- Meter ------------> profile: what entities cost
//!                              `----- Meter ------------> draw --live: what is in the streams
//! ```

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

use crate::failure::Done;

#[derive(clap::Args)]
pub(crate) struct Options {
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

pub(crate) fn main(options: Options) -> Done {
    match options.command {
        Command::Check(options) => check::main(options),
        Command::Draw(options) => draw::main(options),
        Command::Run(options) => run::main(options),
        Command::Profile(options) => profile::main(options),
        Command::Header(options) => header::main(options),
    }
}
