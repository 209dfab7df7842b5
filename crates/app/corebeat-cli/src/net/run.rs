//! `corebeat net run`: records through a network.

use crate::failure::Done;
use crate::net::flow::{How, Teller, To};
use crate::net::program::Which;
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    how: How,
    /// Write records to this file; else to standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(crate) fn main(options: Options) -> Done {
    let Options { which, how, output } = options;
    how.start(&which, To::Output(output.as_deref()), None, Teller::plain())?.write()
}
