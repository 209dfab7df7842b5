//! `corebeat top`: programs and threads with their time shares, as they move.

use crate::failure::{Done, Failure};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Processes, by number or name; all of one's own where none is named
    what: Vec<String>,
}

pub(crate) fn main(_: Options) -> Done {
    Err(Failure::own("being written"))
}
