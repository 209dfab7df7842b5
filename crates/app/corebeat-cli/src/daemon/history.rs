//! The option `--history`: the daemon records the last day.

use corebeat_command::Failure;
use corebeat_daemon::{Level, Log, Options as How};
use corebeat_history::Recorder;
use corebeat_linux::state_dir;
use std::path::PathBuf;

#[derive(clap::Args)]
pub(super) struct Options {
    /// Record the last day in this folder, for 'corebeat report' [default folder:
    /// $COREBEAT_STATE_DIR, else /var/lib/corebeat (root) or $XDG_STATE_HOME/corebeat]
    #[arg(long, value_name = "DIR", num_args = 0..=1)]
    history: Option<Option<PathBuf>>,
}

/// The thread that writes the history, if there is one.
pub(super) struct History(Option<Recorder>);

impl Options {
    /// Starts the thread that writes the history, if the option is present.
    pub(super) fn start(self, how: &mut How) -> Result<History, Failure> {
        let Some(dir) = self.history else { return Ok(History(None)) };
        let dir = dir.map_or_else(state_dir, Ok)?;
        let log = Log::new(how.log);
        let report = move |line| log.write(Level::Warning, line);
        let started = Recorder::start(dir, report);
        let (updates, recorder) =
            started.map_err(|e| Failure::internal(format!("cannot start a thread: {e}")))?;
        how.history = Some(updates);
        Ok(History(Some(recorder)))
    }
}

impl History {
    /// Waits until the last observations are on the disk.
    pub(super) fn finish(self) {
        self.0.into_iter().for_each(Recorder::finish);
    }
}
