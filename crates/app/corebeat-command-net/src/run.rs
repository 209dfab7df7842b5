//! `corebeat net run`: runs records through a network.

use crate::flow::{How, Reporter, To};
use crate::program::Which;
use corebeat_command::Done;
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    how: How,
    /// Write records to this file [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(crate) fn main(options: Options) -> Done {
    let Options { which, how, output } = options;
    let to = To::Output(output.as_deref());
    if let Some(team) = how.team()? {
        return team.run(&which, &how, to, None);
    }
    how.require_distinct(&which, &to, None)?;
    how.start(&which, to, None, Reporter::plain())?.write()
}
