//! Monitor that records a trace, and writes the text format of the thesis from the trace.
//!
//! Source: Prokesch, A Light-Weight Parallel Execution Layer for Shared-Memory Stream Processing,
//! 2011, 5.4.2 and 5.4.3.
//!
//! Workers neither format nor write. Each worker emits events into its ring of buffers, and a
//! thread of low priority writes full buffers into the trace.
//!
//! ```text
//!   worker 0 --- events --> ring --+                                     +--> worker0.log
//!   worker 1 --- events --> ring --+--> monitor.cbt --- export (finish) -+--> worker1.log
//!                          collector, low priority                       +--> task.map
//! ```

use super::event::{self, MonitorStart, WorkerStart};
use super::export::{self, Written, remove_logs};
use super::{Dispatch, End, Level, Listener, Monitor, Wait, exclude_elapsed};
use corebeat_sync::{Mutex, lock};
use corebeat_trace::{Compression, Options, Trace};
use std::fs::{self, File};
use std::io;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Default bytes of memory for each worker's records that are not written yet.
const BUFFER_BYTES: usize = 64 << 20;
/// Bytes of one buffer of a worker's ring.
const RING_BUFFER_BYTES: usize = 64 << 10;
/// Nice value of the thread that writes the trace: the lowest priority.
const NICE: i32 = 19;

/// Policy of a worker whose records come faster than they are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenFull {
    /// Drop and count records.
    #[default]
    Lose,
    /// Wait for room. The wait counts for the execution time of no task.
    Wait,
}

/// Writes a log for each worker into a folder (`worker0.log`, `worker1.log` and so on), the names
/// of tasks (`task.map`), and the trace that these are written from (`monitor.cbt`, which
/// `corebeat trace` reads as well).
///
/// Clones are handles of the same log. The log is complete when [`TextLog::finish`] returns, or
/// when the last handle and the runtime are dropped.
///
/// ```
/// use corebeat_lpel::monitor::{self, Level, TextLog};
/// use corebeat_lpel::placement::Measured;
/// use corebeat_lpel::{Runtime, Task};
///
/// # let folder = tempfile::tempdir()?;
/// # let folder = folder.path();
/// let log = TextLog::create(folder, Level::Workers)?;
/// let runtime = Runtime::builder().monitor(log.clone()).build()?;
/// runtime.run(|| Task::new().name("box").spawn(|| (1..=1000).sum::<u64>()).map(drop)).unwrap()?;
/// drop(runtime);
/// log.finish()?;
///
/// // The next run places tasks by their costs in this run.
/// let costs = monitor::costs(folder)?;
/// assert!(costs["box"] > 0);
/// let runtime = Runtime::builder().placement(Measured::new(costs)).build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct TextLog {
    log: Arc<Log>,
}

/// Reason why a log cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// A file or folder cannot be used.
    #[error("{}: {source}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A line has an invalid format.
    #[error("{}, line {line}: {why}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: u64,
        /// Expected content.
        why: &'static str,
    },
    /// The trace cannot be written or read.
    #[error(transparent)]
    Trace(#[from] corebeat_trace::Error),
    /// A runtime still uses the log.
    #[error("the log is not complete: drop its runtime before calling finish")]
    InUse,
}

impl TextLog {
    /// Creates the folder, if it does not exist, and begins a log. The log replaces logs of an
    /// earlier run in the folder.
    ///
    /// # Errors
    ///
    /// The folder cannot be created or written to.
    pub fn create(folder: impl AsRef<Path>, level: Level) -> Result<TextLog, LogError> {
        TextLog::with_buffer(folder, level, BUFFER_BYTES, WhenFull::default())
    }

    /// Begins a log as [`TextLog::create`] does, with other limits. Each worker has up to `bytes`
    /// of memory for records that wait to be written, from 128 KiB to 64 MiB; the default is
    /// 64 MiB. `when_full` is the policy beyond that; the default is [`WhenFull::Lose`].
    ///
    /// # Errors
    ///
    /// The folder cannot be created or written to.
    pub fn with_buffer(
        folder: impl AsRef<Path>,
        level: Level,
        bytes: usize,
        when_full: WhenFull,
    ) -> Result<TextLog, LogError> {
        let folder = folder.as_ref();
        fs::create_dir_all(folder).map_err(|e| failed(folder, e))?;
        remove_logs(folder)?;
        let options = Options {
            buffer_bytes: RING_BUFFER_BYTES,
            buffers: bytes / RING_BUFFER_BYTES,
            when_full: match when_full {
                WhenFull::Lose => corebeat_trace::WhenFull::Drop,
                WhenFull::Wait => corebeat_trace::WhenFull::Wait,
            },
            compression: Compression::None,
            nice: NICE,
            ..Options::default()
        };
        let trace = options.create(trace_path(folder))?;
        if let Some(log) = trace.log() {
            log.emit(&MonitorStart { level: level as u8 });
        }
        let state = State { phase: Phase::Open(trace), listeners: 0 };
        let log = Log { level, folder: folder.into(), state: Mutex::new(state) };
        Ok(TextLog { log: Arc::new(log) })
    }

    /// Ends the trace and writes the text. Later calls return the same numbers.
    ///
    /// # Errors
    ///
    /// A runtime still uses the log; or, only in the first call, something could not be written.
    pub fn finish(&self) -> Result<Written, LogError> {
        self.log.finish()
    }
}

impl std::fmt::Debug for TextLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TextLog({:?})", self.log.level)
    }
}

impl Monitor for TextLog {
    fn level(&self) -> Level {
        self.log.level
    }

    fn listener(&self, worker: usize) -> Box<dyn Listener> {
        lock(&self.log.state).listeners += 1;
        let (log, trace_log) = (self.log.clone(), None);
        Box::new(Recorder { log, worker, trace_log, opened: 0, records: 0, ended: false })
    }
}

/// State that all handles share.
struct Log {
    level: Level,
    folder: PathBuf,
    state: Mutex<State>,
}

struct State {
    phase: Phase,
    /// Number of workers that may still emit records.
    listeners: usize,
}

enum Phase {
    Open(Trace),
    Finished(Written),
}

impl Log {
    fn finish(&self) -> Result<Written, LogError> {
        let mut state = lock(&self.state);
        if state.listeners > 0 {
            return Err(LogError::InUse);
        }
        match mem::replace(&mut state.phase, Phase::Finished(Written::default())) {
            Phase::Open(trace) => {
                let finished = trace.finish();
                let (written, failure) = export::export(&trace_path(&self.folder), &self.folder);
                state.phase = Phase::Finished(written);
                finished?;
                failure.map_or(Ok(written), Err)
            }
            Phase::Finished(written) => {
                state.phase = Phase::Finished(written);
                Ok(written)
            }
        }
    }

    /// Opens a thread of the trace for a worker; `None` if the trace is finished or has too many.
    fn trace_log(&self, worker: usize) -> Option<corebeat_trace::Log> {
        let Phase::Open(trace) = &lock(&self.state).phase else { return None };
        let log = trace.log()?;
        log.emit(&WorkerStart { worker: worker as u64 });
        Some(log)
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        if let Err(why) = self.finish() {
            eprintln!("corebeat-lpel: the log of the monitor is not complete: {why}");
        }
    }
}

/// Emits the records of one worker.
struct Recorder {
    log: Arc<Log>,
    worker: usize,
    /// Opened at the first record, so that the trace names the thread of the worker.
    trace_log: Option<corebeat_trace::Log>,
    /// Number of buffers that the trace's log had opened after the last record.
    opened: u64,
    /// Number of records, lost ones included.
    records: u64,
    ended: bool,
}

// SAFETY: a trace's log is a single writer of its ring, and no part of it is bound to a thread.
// Listeners have one user at a time: the thread that runs the worker. If another thread runs the
// worker later, as in a deterministic runtime, the lock of the runtime orders the two.
unsafe impl Send for Recorder {}

impl Recorder {
    #[inline(always)]
    fn record(&mut self, emit: impl FnOnce(&corebeat_trace::Log)) {
        self.records += 1;
        if self.trace_log.is_none() {
            self.trace_log = self.log.trace_log(self.worker);
        }
        if let Some(log) = &self.trace_log {
            emit(log);
            let opened = log.opened();
            if mem::replace(&mut self.opened, opened) != opened {
                // The worker touched new memory, or waited for room.
                exclude_elapsed();
            }
        }
    }

    /// Ends the recording. Memory of the runtime, and so this listener, may be in use for longer.
    fn resign(&mut self) {
        if !mem::replace(&mut self.ended, true) {
            self.trace_log = None;
            lock(&self.log.state).listeners -= 1;
        }
    }
}

impl Listener for Recorder {
    #[inline]
    fn dispatched(&mut self, dispatch: &Dispatch<'_>) {
        self.record(|log| {
            if let (1, Some(name)) = (dispatch.number, dispatch.name) {
                event::emit_name(log, dispatch.task, name);
            }
            event::emit_dispatch(log, dispatch);
        });
    }

    fn waited(&mut self, wait: &Wait) {
        self.record(|log| event::emit_wait(log, wait));
    }

    fn ended(&mut self, end: &End) {
        // A log of its own always has room, however many records were lost.
        self.trace_log = None;
        if let Some(log) = self.log.trace_log(self.worker) {
            event::emit_end(&log, end, self.records);
        }
        self.resign();
    }
}

impl Drop for Recorder {
    /// Ends the recording if the runtime could not be built, so that the worker has not ended it.
    fn drop(&mut self) {
        self.resign();
    }
}

pub(super) fn failed(path: &Path, source: io::Error) -> LogError {
    LogError::File { path: path.into(), source }
}

pub(super) fn create(path: &Path) -> Result<File, LogError> {
    File::create(path).map_err(|e| failed(path, e))
}

pub(super) fn log_path(folder: &Path, worker: usize) -> PathBuf {
    folder.join(format!("worker{worker}.log"))
}

pub(super) fn map_path(folder: &Path) -> PathBuf {
    folder.join("task.map")
}

fn trace_path(folder: &Path) -> PathBuf {
    folder.join("monitor.cbt")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::{StreamUse, UNUSED, costs, line};
    use crate::task::Status;
    use crate::{Runtime, Task, sleep, spawn, stream};
    use std::time::Duration;

    /// A monitor that passes records to a log, and formats the same records itself.
    struct Both {
        log: TextLog,
        texts: Arc<Mutex<Vec<Vec<u8>>>>,
    }

    struct BothListener {
        recorder: Box<dyn Listener>,
        level: Level,
        worker: usize,
        texts: Arc<Mutex<Vec<Vec<u8>>>>,
    }

    impl Monitor for Both {
        fn level(&self) -> Level {
            self.log.level()
        }

        fn listener(&self, worker: usize) -> Box<dyn Listener> {
            lock(&self.texts).push(Vec::new());
            let (recorder, level) = (self.log.listener(worker), self.level());
            Box::new(BothListener { recorder, level, worker, texts: self.texts.clone() })
        }
    }

    impl Listener for BothListener {
        fn dispatched(&mut self, dispatch: &Dispatch<'_>) {
            self.recorder.dispatched(dispatch);
            let with_streams = self.level > Level::Marked;
            line::write_dispatch(&mut lock(&self.texts)[self.worker], dispatch, with_streams);
        }

        fn waited(&mut self, wait: &Wait) {
            self.recorder.waited(wait);
            line::write_wait(&mut lock(&self.texts)[self.worker], wait);
        }

        fn ended(&mut self, end: &End) {
            self.recorder.ended(end);
            if self.level >= Level::Workers {
                line::write_end(&mut lock(&self.texts)[self.worker], end);
            }
        }
    }

    /// Longer than a text in one event.
    fn long_name() -> String {
        "name ö".repeat(100)
    }

    /// Tasks that reach every state that a record can have.
    fn network() {
        let (mut to, mut from) = stream(2);
        let (mut on, end) = stream(1);
        Task::new()
            .name("first")
            .mark()
            .spawn(move || (0..50).for_each(|n: u64| to.write(n).unwrap()))
            .unwrap();
        let second = async move {
            while let Some(n) = from.read_async().await {
                on.write(2 * n).unwrap();
            }
        };
        Task::new().name("second\nline").spawn_async(second).unwrap();
        let last = spawn(move || end.sum::<u64>());
        Task::new().name(long_name()).spawn_async(async {}).unwrap();
        sleep(Duration::from_millis(1));
        crate::yield_now();
        assert_eq!(last.join().unwrap(), 50 * 49);
    }

    #[test]
    fn log_has_all_records_of_the_listener() {
        for level in [Level::Marked, Level::MarkedStreams, Level::All, Level::Workers] {
            let folder = tempfile::tempdir().unwrap();
            let log = TextLog::with_buffer(folder.path(), level, 0, WhenFull::Wait).unwrap();
            let texts = Arc::new(Mutex::new(Vec::new()));
            let both = Both { log: log.clone(), texts: texts.clone() };
            let runtime =
                Runtime::builder().deterministic(7).workers(2).monitor(both).build().unwrap();
            runtime.run(network).unwrap();
            assert!(matches!(log.finish(), Err(LogError::InUse)));
            drop(runtime);
            let written = log.finish().unwrap();
            let texts = lock(&texts);
            let mut records = 0;
            for (worker, expected) in texts.iter().enumerate() {
                let text = fs::read(log_path(folder.path(), worker)).unwrap();
                assert_eq!(String::from_utf8(text), String::from_utf8(expected.clone()));
                records += expected.iter().filter(|b| **b == b'\n').count() as u64;
            }
            assert_eq!(written, Written { records, lost: 0 });
            assert_eq!(log.finish().unwrap(), written);
            let names: Vec<_> = costs(folder.path()).unwrap().into_keys().collect();
            assert!(names.contains(&"first".to_owned()));
            for name in ["second\nline".to_owned(), long_name()] {
                assert_eq!(names.contains(&name), level > Level::MarkedStreams, "{names:?}");
            }
        }
    }

    #[test]
    fn log_replaces_logs_of_an_earlier_run() {
        let folder = tempfile::tempdir().unwrap();
        for workers in [3, 1] {
            let log = TextLog::create(folder.path(), Level::Workers).unwrap();
            let runtime =
                Runtime::builder().workers(workers).pin(false).monitor(log).build().unwrap();
            runtime.run(|| ()).unwrap();
        }
        let mut files: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|f| f.unwrap().file_name().into_string().unwrap())
            .collect();
        files.sort();
        assert_eq!(files, ["monitor.cbt", "task.map", "worker0.log"]);
    }

    fn dispatch(number: u64) -> Dispatch<'static> {
        Dispatch {
            end_ns: number * 10,
            execution_ns: 10,
            task: 1,
            name: Some("one"),
            number,
            status: Status::Ready,
            created_ns: None,
            streams: &[],
        }
    }

    const END: End = End { worker: 0, end_ns: 1 << 40, waits: 0, wait_ns: 0 };
    /// More dispatches than two buffers hold. Miri has no time for that.
    const MANY: u64 = if cfg!(miri) { 100 } else { 200_000 };

    /// Records what `f` reports on behalf of a worker, with the smallest buffer.
    fn recorded(
        level: Level,
        when_full: WhenFull,
        f: impl FnOnce(&mut dyn Listener),
    ) -> (tempfile::TempDir, Written) {
        let folder = tempfile::tempdir().unwrap();
        let log = TextLog::with_buffer(folder.path(), level, 0, when_full).unwrap();
        let mut recorder = log.listener(0);
        f(&mut *recorder);
        recorder.ended(&END);
        drop(recorder);
        let written = log.finish().unwrap();
        (folder, written)
    }

    #[test]
    fn lost_records_are_counted_and_reported() {
        let (folder, written) = recorded(Level::Workers, WhenFull::Lose, |recorder| {
            (1..=MANY).for_each(|number| recorder.dispatched(&dispatch(number)));
        });
        // The end of the worker is a record as well.
        assert_eq!(written.lost + written.records, MANY + 1);
        let text = fs::read_to_string(log_path(folder.path(), 0)).unwrap();
        let line = format!("*** Worker 0 lost {} records\n", written.lost);
        assert_eq!(text.contains(&line), written.lost > 0, "{written:?}");
        assert_eq!(text.lines().count() as u64, written.records + u64::from(written.lost > 0));
        assert_eq!(costs(folder.path()).unwrap()["one"], 10 * (written.records - 1));
    }

    #[test]
    fn full_buffer_blocks_the_worker_if_requested() {
        let (folder, written) = recorded(Level::All, WhenFull::Wait, |recorder| {
            (1..=MANY).for_each(|number| recorder.dispatched(&dispatch(number)));
        });
        assert_eq!(written, Written { records: MANY, lost: 0 });
        assert_eq!(costs(folder.path()).unwrap()["one"], 10 * MANY);
    }

    #[test]
    fn record_larger_than_a_buffer_is_recorded() {
        const STREAMS: usize = 2 * RING_BUFFER_BYTES / size_of::<u64>();
        let streams = vec![StreamUse { stream: u64::MAX, ..UNUSED }; STREAMS];
        let (folder, written) = recorded(Level::All, WhenFull::Wait, |recorder| {
            for number in 1..=3 {
                recorder.dispatched(&Dispatch { streams: &streams, ..dispatch(number) });
                recorder.dispatched(&dispatch(number + 1));
            }
        });
        assert_eq!(written.lost, 0);
        assert_eq!(costs(folder.path()).unwrap()["one"], 60);
    }

    #[test]
    fn trace_of_an_unfinished_log_is_exported() {
        let folder = tempfile::tempdir().unwrap();
        let log = TextLog::create(folder.path(), Level::All).unwrap();
        let runtime = Runtime::builder().deterministic(7).monitor(log.clone()).build().unwrap();
        runtime.run(network).unwrap();
        drop(runtime);
        let written = log.finish().unwrap();
        let trace = fs::read(trace_path(folder.path())).unwrap();
        // As after a kill: the last packet is torn.
        let torn = folder.path().join("torn.cbt");
        fs::write(&torn, &trace[..trace.len() - 1]).unwrap();
        let exported = tempfile::tempdir().unwrap();
        let found = export::export_text(&torn, exported.path()).unwrap();
        assert_eq!(found, written);
        let text = |folder: &Path| fs::read(log_path(folder, 0)).unwrap();
        assert_eq!(text(exported.path()), text(folder.path()));
    }

    #[test]
    fn error_names_a_folder_that_cannot_be_created() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let folder = file.path().join("logs");
        let why = TextLog::create(&folder, Level::All).unwrap_err().to_string();
        assert!(why.contains(folder.to_str().unwrap()), "{why}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn full_disk_is_reported_and_stops_no_task() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/full", map_path(folder.path())).unwrap();
        let log = TextLog::with_buffer(folder.path(), Level::Workers, 0, WhenFull::Wait).unwrap();
        let runtime = Runtime::builder().deterministic(7).monitor(log.clone()).build().unwrap();
        runtime.run(network).unwrap();
        drop(runtime);
        let why = log.finish().unwrap_err().to_string();
        assert!(why.contains("task.map") && why.contains("No space left"), "{why}");
        assert!(log.finish().unwrap().lost > 0);
    }
}
