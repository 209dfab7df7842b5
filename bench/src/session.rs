//! The state of one run of the bench: its options, its output, and its failures.

use crate::corebeat;
use crate::row::{Row, Table};
use crate::tool::Tool;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::cell::{OnceCell, RefCell};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Rounds of a case at full size.
const ROUNDS: usize = 5;

/// The state that all benches of a run share.
pub(crate) struct Session {
    pub(crate) quick: bool,
    pub(crate) json: bool,
    /// CPUs that this process may use.
    pub(crate) cpus: usize,
    filter: Option<String>,
    only: Vec<String>,
    folder: tempfile::TempDir,
    corebeat: OnceCell<Result<PathBuf, String>>,
    library: OnceCell<Result<PathBuf, String>>,
    skipped: RefCell<Vec<String>>,
    failures: RefCell<Vec<String>>,
    rows: RefCell<Vec<Row>>,
}

impl Session {
    pub(crate) fn new(
        quick: bool,
        json: bool,
        filter: Option<String>,
        only: Vec<String>,
    ) -> Result<Self, String> {
        let folder = tempfile::Builder::new().prefix("corebeat-bench-").tempdir();
        let folder = folder.map_err(|e| format!("cannot create a temporary folder: {e}"))?;
        remove_at_signal(folder.path().to_owned())
            .map_err(|e| format!("cannot install a signal handler: {e}"))?;
        Ok(Session {
            quick,
            json,
            cpus: std::thread::available_parallelism().map_or(1, |n| n.get()),
            filter,
            only,
            folder,
            corebeat: OnceCell::new(),
            library: OnceCell::new(),
            skipped: RefCell::default(),
            failures: RefCell::default(),
            rows: RefCell::default(),
        })
    }

    /// Rounds of each subject of a case.
    pub(crate) fn rounds(&self) -> usize {
        if self.quick { 1 } else { ROUNDS }
    }

    /// The work that keeps all CPUs busy for `wall_s` seconds, in seconds of one core.
    pub(crate) fn core_s(&self, wall_s: f64) -> f64 {
        match (self.quick, cfg!(debug_assertions)) {
            (false, _) => wall_s * self.cpus as f64,
            (true, false) => wall_s * self.cpus as f64 / 25.0,
            // The smallest size that programs accept: unoptimised code takes twenty times as long.
            (true, true) => 1e-5,
        }
    }

    /// The limit of a run. A run that reaches the limit is ended and counts as longer.
    pub(crate) fn run_max(&self) -> Duration {
        Duration::from_secs(if self.quick { 1 } else { 20 })
    }

    /// Whether the filter selects a case.
    pub(crate) fn selects(&self, case: &str) -> bool {
        self.filter.as_ref().is_none_or(|f| case.contains(f))
    }

    /// Whether all subjects are measured.
    pub(crate) fn selects_all_subjects(&self) -> bool {
        self.only.is_empty()
    }

    /// Whether a subject is measured.
    pub(crate) fn selects_subject(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|o| o == name)
    }

    /// A folder for files. The folder is removed at the end.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The path of the program `corebeat`, which the first call builds.
    pub(crate) fn corebeat(&self) -> Result<&Path, String> {
        self.corebeat.get_or_init(corebeat::build).as_deref().map_err(Clone::clone)
    }

    /// The folder with `libcorebeat.so`, which the first call builds.
    pub(crate) fn library(&self) -> Result<&Path, String> {
        self.library.get_or_init(corebeat::build_library).as_deref().map_err(Clone::clone)
    }

    /// Whether a tool is installed. Reports a missing tool once.
    pub(crate) fn has(&self, tool: Tool) -> bool {
        let here = tool.path().is_some();
        if !here {
            self.skip(tool.advice());
        }
        here
    }

    /// Reports once that something is left out.
    pub(crate) fn skip(&self, why: String) {
        let mut skipped = self.skipped.borrow_mut();
        if !skipped.contains(&why) {
            self.report(&format!("left out: {why}"));
            skipped.push(why);
        }
    }

    /// Prints a line on the progress.
    pub(crate) fn report(&self, text: &str) {
        let _ = writeln!(std::io::stderr(), "bench: {text}");
    }

    /// Records a failure. The run continues, and its exit status is a failure.
    pub(crate) fn record_failure(&self, what: String) {
        self.report(&format!("FAILED: {what}"));
        self.failures.borrow_mut().push(what);
    }

    /// The failures so far.
    pub(crate) fn failures(&self) -> Vec<String> {
        self.failures.borrow().clone()
    }

    /// Prints and keeps the rows of a case.
    pub(crate) fn emit(&self, table: &Table) {
        self.rows.borrow_mut().extend(table.rows());
        let text = if self.json { table.json() } else { format!("{table}\n") };
        let mut out = std::io::stdout();
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }

    /// The rows since the last call.
    pub(crate) fn take_rows(&self) -> Vec<Row> {
        self.rows.take()
    }
}

/// Removes the folder when a signal ends this program, because a signal runs no `Drop`.
fn remove_at_signal(folder: PathBuf) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    std::thread::Builder::new().name("bench-end".into()).spawn(move || {
        if let Some(signal) = signals.forever().next() {
            let _ = std::fs::remove_dir_all(folder);
            let _ = emulate_default_handler(signal);
        }
    })?;
    Ok(())
}
