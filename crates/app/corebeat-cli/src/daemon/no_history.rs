//! A daemon without the option `--history`, whose crates only a program with all commands has.

use corebeat_command::Failure;
use corebeat_daemon::Options as How;

#[derive(clap::Args)]
pub(super) struct Options {}

pub(super) struct History;

impl Options {
    pub(super) fn start(self, _: &mut How) -> Result<History, Failure> {
        Ok(History)
    }
}

impl History {
    pub(super) fn finish(self) {}
}
