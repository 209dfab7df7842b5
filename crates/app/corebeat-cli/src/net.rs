//! `corebeat net`: networks in S-Net, checked, drawn and run.
//!
//! ```text
//!  FILE.snet --> Program --> check: remarks and signatures
//!                   |------> draw: SVG
//!                   `------> run: records through it
//! ```

mod check;
mod draw;
mod header;
mod program;
mod remark;
mod run;

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
    /// Draw a network as SVG
    Draw(draw::Options),
    /// Run a network: records in, records out
    Run(run::Options),
    /// Write the header that boxes in C include
    Header(header::Options),
}

pub(crate) fn main(options: Options) -> Done {
    match options.command {
        Command::Check(options) => check::main(options),
        Command::Draw(options) => draw::main(options),
        Command::Run(options) => run::main(options),
        Command::Header(options) => header::main(options),
    }
}
