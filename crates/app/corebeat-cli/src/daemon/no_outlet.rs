//! A daemon without the options `--history` and `--otlp`, whose crates only a program with all
//! commands has.

use corebeat_command::Failure;
use corebeat_daemon::Options as How;

// The struct of all options of the command has a group of the same name.
#[derive(clap::Args)]
#[group(skip)]
pub(super) struct Options {}

pub(super) struct Outlets;

impl Options {
    pub(super) fn start(self, _: &mut How) -> Result<Outlets, Failure> {
        Ok(Outlets)
    }
}

impl Outlets {
    pub(super) fn finish(self) {}
}
