//! The options `--history` and `--otlp`: threads that record the last day or send the metrics.

mod otlp;

use corebeat_command::Failure;
use corebeat_daemon::{History, Level, Log, Options as How};
use corebeat_history::{Folder, Recorder};
use corebeat_linux::state_dir;
use std::path::PathBuf;
use std::sync::Arc;

// The struct of all options of the command has a group of the same name.
#[derive(clap::Args)]
#[group(skip)]
pub(super) struct Options {
    /// Record the last day in this folder, for 'corebeat report' and the web page [default folder:
    /// $COREBEAT_STATE_DIR, else /var/lib/corebeat (root) or $XDG_STATE_HOME/corebeat]
    #[arg(long, value_name = "DIR", num_args = 0..=1)]
    history: Option<Option<PathBuf>>,
    /// Send the metrics each 10 seconds to this collector of OpenTelemetry, by OTLP over HTTP, such
    /// as http://127.0.0.1:4318
    #[arg(long, value_name = "URL")]
    otlp: Option<otlp::Endpoint>,
}

/// The thread that writes the history, if there is one.
pub(super) struct Outlets(Option<Recorder>);

impl Options {
    /// Starts the threads that the options request.
    pub(super) fn start(self, how: &mut How) -> Result<Outlets, Failure> {
        let recorder = self.history.map(|dir| record(dir, how)).transpose()?;
        if let Some(endpoint) = self.otlp {
            let started = otlp::start(endpoint, &how.socket, warn(how.log));
            how.readings = Some(started.map_err(no_thread)?);
        }
        Ok(Outlets(recorder))
    }
}

impl Outlets {
    /// Waits until the last observations are on the disk.
    pub(super) fn finish(self) {
        self.0.into_iter().for_each(Recorder::finish);
    }
}

fn record(dir: Option<PathBuf>, how: &mut How) -> Result<Recorder, Failure> {
    let dir = dir.map_or_else(state_dir, Ok)?;
    let past = Arc::new(Folder(dir.clone()));
    let (updates, recorder) = Recorder::start(dir, warn(how.log)).map_err(no_thread)?;
    how.history = Some(History { updates, past });
    Ok(recorder)
}

/// Logs warnings of a thread beside the daemon.
fn warn(level: Level) -> impl FnMut(String) + Send + 'static {
    let log = Log::new(level);
    move |line| log.write(Level::Warning, line)
}

fn no_thread(e: std::io::Error) -> Failure {
    Failure::internal(format!("cannot start a thread: {e}"))
}
