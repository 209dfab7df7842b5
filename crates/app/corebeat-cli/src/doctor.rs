//! `corebeat doctor`: what this machine offers.

use crate::failure::{Done, Failure};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Write one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(_: Options) -> Done {
    Err(Failure::own("being written"))
}
