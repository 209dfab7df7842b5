//! A monitor that writes the thesis' text format, and a reader of what it wrote.
//!
//! Source: Prokesch, A Light-Weight Parallel Execution Layer for Shared-Memory Stream Processing, 2011, 5.4.2 and 5.4.3.
//!
//! Workers do not format and do not write: each packs its records into a chunk of memory, and a thread of low priority
//! makes text of full chunks.
//!
//! ```text
//!   worker 0 -- fills a chunk --+                                     +-- worker0.log
//!   worker 1 -- fills a chunk --+--> full chunks --> writer's thread --+-- worker1.log
//!        ^                                              |              +-- task.map
//!        +------------------- free chunks <-------------+
//! ```

mod cost;
mod line;
mod packed;

pub use cost::costs;

use crate::monitor::{self, Dispatch, End, Level, Listener, Monitor, Wait};
use crate::runtime::lock;
use corebeat_sync::{Condvar, Mutex};
use line::{Line, Lost};
use packed::{DISPATCH_MAX, NAME_MAX, Packed, Record, TOUCHED_MAX, WORKER_MAX};
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{mem, thread};

/// Bytes of memory for records that are not written yet, if nothing is said.
const BUFFER: usize = 64 << 20;
/// Words of a chunk. Miri would take minutes to fill one.
const CHUNK: usize = if cfg!(miri) { 64 } else { 8 << 10 };
/// So many empty chunks are kept ready, so that no worker has to touch new memory, which is slow.
const SPARE: usize = 2;
/// After it found no room, a worker asks again only this many records later.
const PATIENCE: u64 = 256;
/// How far the writer's thread stands back, by the system's measure: as far as it goes.
const NICE: i32 = 19;

/// What a worker does when there is no room for its records, because they come faster than they are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenFull {
    /// Goes on, and counts them.
    #[default]
    Lose,
    /// Waits for room. What it waits is no task's execution time.
    Wait,
}

/// Writes a log for each worker into a folder, `worker0.log`, `worker1.log` and so on, and the tasks' names, `task.map`.
///
/// Each is a handle to the same log. It is complete when [`TextLog::finish`] returns, or when the last handle and the
/// runtime are dropped.
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
/// // The next run places tasks by what they cost in this one.
/// let costs = monitor::costs(folder)?;
/// assert!(costs["box"] > 0);
/// let runtime = Runtime::builder().placement(Measured::new(costs)).build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct TextLog {
    log: Arc<Log>,
}

/// What a log has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Written {
    /// Records that were written.
    pub records: u64,
    /// Records that there was no room for.
    pub lost: u64,
}

/// A log could not be written, or not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// A file or folder cannot be used.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A line that is not as it should be.
    #[error("{}, line {line}: {why}", path.display())]
    Line {
        /// Which file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// What was expected.
        why: &'static str,
    },
    /// The writer's thread could not be started.
    #[error("no thread to write the log: {source}")]
    Thread {
        /// What the system said.
        source: io::Error,
    },
    /// A runtime still uses it.
    #[error("the log is not complete: drop its runtime before calling finish")]
    InUse,
}

impl TextLog {
    /// Makes the folder, if it is not there, and begins a log. Logs of an earlier run in that folder are replaced.
    ///
    /// # Errors
    ///
    /// The folder cannot be made or written to.
    pub fn create(folder: impl AsRef<Path>, level: Level) -> Result<TextLog, LogError> {
        TextLog::with_buffer(folder, level, BUFFER, WhenFull::default())
    }

    /// As [`TextLog::create`], which takes 64 MiB and loses records. `bytes` are for records that wait to be written; each
    /// worker has 64 KiB beside.
    ///
    /// # Errors
    ///
    /// The folder cannot be made or written to.
    pub fn with_buffer(
        folder: impl AsRef<Path>,
        level: Level,
        bytes: usize,
        when_full: WhenFull,
    ) -> Result<TextLog, LogError> {
        let mut files = Files::create(folder.as_ref(), level)?;
        let queue = Arc::new(Queue::new(bytes));
        let filled = queue.clone();
        let writer = move || {
            if !cfg!(miri) {
                let _ = rustix::process::setpriority_process(None, NICE);
            }
            while let Some(chunk) = filled.next() {
                files.write(&chunk);
                filled.give_back(chunk);
            }
            files
        };
        let writer = thread::Builder::new()
            .name("lpel log".into())
            .spawn(writer)
            .map_err(|source| LogError::Thread { source })?;
        let log = Log { level, when_full, queue, state: Mutex::new(LogState::Open(writer)) };
        Ok(TextLog { log: Arc::new(log) })
    }

    /// Waits until all is written. Afterwards it says the same again.
    ///
    /// # Errors
    ///
    /// A runtime still uses the log; or something could not be written, the first time that this is called.
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
        self.log.queue.enlist();
        Box::new(Pen {
            log: self.log.clone(),
            worker,
            packed: Packed::default(),
            lost: 0,
            patience: 0,
            ended: false,
        })
    }
}

/// What all handles share.
struct Log {
    level: Level,
    when_full: WhenFull,
    queue: Arc<Queue>,
    state: Mutex<LogState>,
}

enum LogState {
    Open(thread::JoinHandle<Files>),
    Finished(Written),
}

impl Log {
    fn finish(&self) -> Result<Written, LogError> {
        let mut state = lock(&self.state);
        if !self.queue.end() {
            return Err(LogError::InUse);
        }
        match mem::replace(&mut *state, LogState::Finished(Written::default())) {
            LogState::Open(writer) => {
                let mut files = writer.join().unwrap_or_else(|why| std::panic::resume_unwind(why));
                // The writer stands back where others want the processors; whoever waits for the end does not.
                while let Some(chunk) = self.queue.rest() {
                    files.write(&chunk);
                }
                *state = LogState::Finished(files.written);
                files.failure.map_or(Ok(files.written), Err)
            }
            LogState::Finished(written) => {
                *state = LogState::Finished(written);
                Ok(written)
            }
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        if let Err(why) = self.finish() {
            eprintln!("corebeat-lpel: the monitor's log is not complete: {why}");
        }
    }
}

/// A worker's records in a row.
struct Chunk {
    worker: usize,
    packed: Packed,
}

/// Chunks between workers and the writer.
struct Queue {
    state: Mutex<QueueState>,
    /// For the writer: there is a full chunk, or the end.
    filled: Condvar,
    /// For workers that wait: there is a free chunk, or the end.
    emptied: Condvar,
}

struct QueueState {
    full: VecDeque<Chunk>,
    free: Vec<Packed>,
    /// How many more may be made.
    left: usize,
    /// Workers that may still have something.
    listeners: usize,
    over: bool,
}

impl Queue {
    fn new(bytes: usize) -> Queue {
        let state = QueueState {
            full: VecDeque::new(),
            free: Vec::new(),
            left: bytes / (CHUNK * size_of::<u64>()),
            listeners: 0,
            over: false,
        };
        Queue { state: Mutex::new(state), filled: Condvar::new(), emptied: Condvar::new() }
    }

    // ---- for workers

    fn enlist(&self) {
        let mut state = lock(&self.state);
        state.listeners += 1;
        state.left += 1;
    }

    fn push(&self, full: Chunk) {
        let mut state = lock(&self.state);
        if !full.packed.is_empty() && !state.over {
            state.full.push_back(full);
            self.filled.notify_one();
        }
    }

    /// An empty chunk, if there is one in time.
    fn take(&self, when_full: WhenFull) -> Option<Packed> {
        let mut state = lock(&self.state);
        loop {
            if let Some(free) = state.free.pop() {
                return Some(free);
            }
            if state.left > 0 {
                state.left -= 1;
                return Some(Packed::with_capacity(CHUNK));
            }
            if when_full == WhenFull::Lose || state.over {
                return None;
            }
            state = self.emptied.wait(state).unwrap_or_else(|e| e.into_inner());
        }
    }

    fn resign(&self) {
        lock(&self.state).listeners -= 1;
    }

    // ---- for the writer

    /// The next full chunk, when there is one; `None`: it is over.
    fn next(&self) -> Option<Chunk> {
        let mut state = lock(&self.state);
        loop {
            if state.over {
                return None;
            }
            if state.free.len() < SPARE && state.left > 0 {
                state.left -= 1;
                drop(state);
                let spare = Packed::touched(CHUNK);
                state = lock(&self.state);
                state.free.push(spare);
                self.emptied.notify_one();
            } else if let Some(chunk) = state.full.pop_front() {
                return Some(chunk);
            } else {
                state = self.filled.wait(state).unwrap_or_else(|e| e.into_inner());
            }
        }
    }

    fn give_back(&self, Chunk { mut packed, .. }: Chunk) {
        packed.clear();
        let mut state = lock(&self.state);
        // One that grew for a large record, or is a small last one, is not kept.
        if (CHUNK..2 * CHUNK).contains(&packed.capacity()) {
            state.free.push(packed);
        } else {
            state.left += 1;
        }
        self.emptied.notify_one();
    }

    // ---- for who finishes it

    /// Ends it, unless there are workers that may still have something.
    fn end(&self) -> bool {
        let mut state = lock(&self.state);
        state.over |= state.listeners == 0;
        if state.over {
            self.filled.notify_all();
            self.emptied.notify_all();
        }
        state.over
    }

    fn rest(&self) -> Option<Chunk> {
        lock(&self.state).full.pop_front()
    }
}

/// A worker's part.
struct Pen {
    log: Arc<Log>,
    worker: usize,
    /// Without any room while there is no chunk.
    packed: Packed,
    lost: u64,
    /// Records to lose before it asks for a chunk again.
    patience: u64,
    ended: bool,
}

impl Pen {
    /// Whether there is room for that many words.
    #[inline]
    fn has_room(&mut self, words: usize) -> bool {
        self.packed.room() >= words || self.make_room()
    }

    #[cold]
    fn make_room(&mut self) -> bool {
        if self.packed.capacity() > 0 && self.packed.is_empty() {
            // The record is larger than a chunk, and makes it grow.
            return true;
        }
        if self.patience > 0 {
            self.patience -= 1;
            self.lost += 1;
            return false;
        }
        self.hand_over();
        let chunk = self.log.queue.take(self.log.when_full);
        monitor::leave_out();
        match chunk {
            Some(chunk) => self.packed = chunk,
            None => {
                self.lost += 1;
                self.patience = PATIENCE;
            }
        }
        self.packed.capacity() > 0
    }

    /// Nothing more is going to come. What keeps the runtime's memory, and so us, does not hold up the log.
    fn resign(&mut self) {
        if !mem::replace(&mut self.ended, true) {
            self.hand_over();
            self.log.queue.resign();
        }
    }

    fn hand_over(&mut self) {
        self.log.queue.push(Chunk { worker: self.worker, packed: mem::take(&mut self.packed) });
    }
}

impl Listener for Pen {
    #[inline]
    fn dispatched(&mut self, dispatch: &Dispatch<'_>) {
        if let (1, Some(name)) = (dispatch.number, dispatch.name) {
            let words = NAME_MAX + name.len() / size_of::<u64>() + DISPATCH_MAX;
            if self.has_room(words + TOUCHED_MAX * dispatch.streams.len()) {
                self.packed.name(dispatch.task, name);
                self.packed.dispatch(dispatch);
            }
        } else if self.has_room(DISPATCH_MAX + TOUCHED_MAX * dispatch.streams.len()) {
            self.packed.dispatch(dispatch);
        }
    }

    fn waited(&mut self, wait: &Wait) {
        if self.has_room(WORKER_MAX) {
            self.packed.wait(wait);
        }
    }

    /// For this there is always room: a chunk is at most a few words longer.
    fn ended(&mut self, end: &End) {
        if self.lost > 0 {
            self.packed.lost(&Lost { worker: end.worker, end_ns: end.end_ns, records: self.lost });
        }
        self.packed.end(end);
        self.resign();
    }
}

impl Drop for Pen {
    /// Of a runtime that could not be built.
    fn drop(&mut self) {
        self.resign();
    }
}

/// Where lines go.
struct Files {
    folder: PathBuf,
    level: Level,
    names: File,
    /// By worker.
    logs: Vec<Option<File>>,
    /// Made of one chunk.
    text: Vec<u8>,
    name_text: Vec<u8>,
    written: Written,
    /// From here on nothing is written.
    failure: Option<LogError>,
}

impl Files {
    fn create(folder: &Path, level: Level) -> Result<Files, LogError> {
        fs::create_dir_all(folder).map_err(|e| failed(folder, e))?;
        for worker in 0.. {
            let old = log_path(folder, worker);
            match fs::remove_file(&old) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => break,
                removed => removed.map_err(|e| failed(&old, e))?,
            }
        }
        let names = create(&map_path(folder))?;
        Ok(Files {
            folder: folder.into(),
            level,
            names,
            logs: Vec::new(),
            text: Vec::new(),
            name_text: Vec::new(),
            written: Written::default(),
            failure: None,
        })
    }

    fn write(&mut self, chunk: &Chunk) {
        let (text, names) = (&mut self.text, &mut self.name_text);
        text.clear();
        names.clear();
        let (mut records, mut lost) = (0, 0);
        let with_streams = self.level >= Level::MarkedStreams;
        chunk.packed.unpack(|record| {
            match record {
                Record::Name { task, name } => return write_name(names, task, name),
                Record::Line(Line::Dispatch(dispatch)) => line::write_dispatch(text, &dispatch, with_streams),
                Record::Line(Line::Wait(wait)) => line::write_wait(text, &wait),
                Record::Line(Line::End(end)) if self.level >= Level::Workers => line::write_end(text, &end),
                Record::Line(Line::Lost(told)) => {
                    lost += told.records;
                    return line::write_lost(text, &told);
                }
                Record::Line(Line::End(_) | Line::Other) => return,
            }
            records += 1;
        });
        if self.failure.is_none() {
            self.failure = self.save(chunk.worker).err();
        }
        match self.failure {
            None => self.written.records += records,
            Some(_) => lost += records,
        }
        self.written.lost += lost;
    }

    fn save(&mut self, worker: usize) -> Result<(), LogError> {
        self.names.write_all(&self.name_text).map_err(|e| failed(&map_path(&self.folder), e))?;
        if self.logs.len() <= worker {
            self.logs.resize_with(worker + 1, || None);
        }
        let path = log_path(&self.folder, worker);
        let log = match &mut self.logs[worker] {
            Some(log) => log,
            none => none.insert(create(&path)?),
        };
        log.write_all(&self.text).map_err(|e| failed(&path, e))
    }
}

fn failed(path: &Path, source: io::Error) -> LogError {
    LogError::File { path: path.into(), source }
}

fn create(path: &Path) -> Result<File, LogError> {
    File::create(path).map_err(|e| failed(path, e))
}

fn log_path(folder: &Path, worker: usize) -> PathBuf {
    folder.join(format!("worker{worker}.log"))
}

fn map_path(folder: &Path) -> PathBuf {
    folder.join("task.map")
}

/// Names have a line each, so what would end one is written as `\n`, `\r`, and `\` as `\\`.
fn write_name(text: &mut Vec<u8>, task: u64, name: &str) {
    line::number(text, task);
    text.push(b' ');
    for byte in name.bytes() {
        match byte {
            b'\n' => text.extend_from_slice(b"\\n"),
            b'\r' => text.extend_from_slice(b"\\r"),
            b'\\' => text.extend_from_slice(b"\\\\"),
            byte => text.push(byte),
        }
    }
    text.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::{Touched, UNTOUCHED};
    use crate::task::Status;
    use crate::{Runtime, Task, sleep, spawn, spawn_async, stream};
    use std::time::Duration;

    /// A monitor that tells a log, and keeps the same as text.
    struct Both {
        log: TextLog,
        kept: Arc<Mutex<Vec<Vec<u8>>>>,
    }

    struct Ear {
        pen: Box<dyn Listener>,
        level: Level,
        worker: usize,
        kept: Arc<Mutex<Vec<Vec<u8>>>>,
    }

    impl Monitor for Both {
        fn level(&self) -> Level {
            self.log.level()
        }

        fn listener(&self, worker: usize) -> Box<dyn Listener> {
            lock(&self.kept).push(Vec::new());
            let (pen, level, kept) = (self.log.listener(worker), self.level(), self.kept.clone());
            Box::new(Ear { pen, level, worker, kept })
        }
    }

    impl Listener for Ear {
        fn dispatched(&mut self, dispatch: &Dispatch<'_>) {
            self.pen.dispatched(dispatch);
            let with_streams = self.level > Level::Marked;
            line::write_dispatch(&mut lock(&self.kept)[self.worker], dispatch, with_streams);
        }

        fn waited(&mut self, wait: &Wait) {
            self.pen.waited(wait);
            line::write_wait(&mut lock(&self.kept)[self.worker], wait);
        }

        fn ended(&mut self, end: &End) {
            self.pen.ended(end);
            if self.level >= Level::Workers {
                line::write_end(&mut lock(&self.kept)[self.worker], end);
            }
        }
    }

    /// Tasks that do all that has a state of its own.
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
        spawn_async(async {});
        sleep(Duration::from_millis(1));
        crate::yield_now();
        assert_eq!(last.join().unwrap(), 50 * 49);
    }

    #[test]
    fn log_says_what_the_listener_heard() {
        for level in [Level::Marked, Level::MarkedStreams, Level::All, Level::Workers] {
            let folder = tempfile::tempdir().unwrap();
            let log = TextLog::with_buffer(folder.path(), level, 0, WhenFull::Wait).unwrap();
            let kept = Arc::new(Mutex::new(Vec::new()));
            let both = Both { log: log.clone(), kept: kept.clone() };
            let runtime = Runtime::builder().deterministic(7).workers(2).monitor(both).build().unwrap();
            runtime.run(network).unwrap();
            assert!(matches!(log.finish(), Err(LogError::InUse)));
            drop(runtime);
            let written = log.finish().unwrap();
            let kept = lock(&kept);
            let mut records = 0;
            for (worker, kept) in kept.iter().enumerate() {
                let text = fs::read(log_path(folder.path(), worker)).unwrap();
                assert_eq!(String::from_utf8(text), String::from_utf8(kept.clone()));
                records += kept.iter().filter(|b| **b == b'\n').count() as u64;
            }
            assert_eq!(written, Written { records, lost: 0 });
            assert_eq!(log.finish().unwrap(), written);
            let names: Vec<_> = costs(folder.path()).unwrap().into_keys().collect();
            assert!(names.contains(&"first".to_owned()));
            assert_eq!(names.contains(&"second\nline".to_owned()), level > Level::MarkedStreams, "{names:?}");
        }
    }

    #[test]
    fn logs_of_an_earlier_run_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        for workers in [3, 1] {
            let log = TextLog::create(folder.path(), Level::Workers).unwrap();
            let runtime = Runtime::builder().workers(workers).pin(false).monitor(log).build().unwrap();
            runtime.run(|| ()).unwrap();
        }
        let mut files: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|f| f.unwrap().file_name().into_string().unwrap())
            .collect();
        files.sort();
        assert_eq!(files, ["task.map", "worker0.log"]);
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

    /// A log without a thread: nothing is written until it is finished.
    fn stalled(folder: &Path, when_full: WhenFull) -> Arc<Log> {
        let files = Files::create(folder, Level::Workers).unwrap();
        let state = Mutex::new(LogState::Open(thread::spawn(|| files)));
        let queue = Arc::new(Queue::new(2 * CHUNK * size_of::<u64>()));
        Arc::new(Log { level: Level::Workers, when_full, queue, state })
    }

    #[test]
    fn records_without_room_are_counted_and_told() {
        let folder = tempfile::tempdir().unwrap();
        let log = TextLog { log: stalled(folder.path(), WhenFull::Lose) };
        let mut pen = log.listener(0);
        let told = 4 * CHUNK as u64;
        (1..=told).for_each(|number| pen.dispatched(&dispatch(number)));
        pen.ended(&END);
        drop(pen);
        let written = log.finish().unwrap();
        assert!(written.lost > 0 && written.records > CHUNK as u64);
        // The end of the worker is a record as well.
        assert_eq!(written.lost + written.records, told + 1);
        let text = fs::read_to_string(log_path(folder.path(), 0)).unwrap();
        assert!(text.contains(&format!("*** Worker 0 lost {} records\n", written.lost)), "{text}");
        assert_eq!(costs(folder.path()).unwrap()["one"], 10 * (written.records - 1));
    }

    #[test]
    fn full_buffer_makes_worker_wait_if_told() {
        let folder = tempfile::tempdir().unwrap();
        let log = TextLog { log: stalled(folder.path(), WhenFull::Wait) };
        let told = 4 * CHUNK as u64;
        thread::scope(|scope| {
            let mut pen = log.listener(0);
            let worker = scope.spawn(move || {
                (1..=told).for_each(|number| pen.dispatched(&dispatch(number)));
                pen.ended(&END);
            });
            let mut files = Files::create(folder.path(), Level::Workers).unwrap();
            let queue = &log.log.queue;
            while files.written.records < 3 * CHUNK as u64 / 2 {
                let chunk = queue.next().unwrap();
                files.write(&chunk);
                queue.give_back(chunk);
            }
            // It cannot be far ahead of us.
            assert!(!worker.is_finished());
            while files.written.records < told + 1 {
                let chunk = queue.next().unwrap();
                files.write(&chunk);
                queue.give_back(chunk);
            }
            assert_eq!(files.written, Written { records: told + 1, lost: 0 });
        });
    }

    #[test]
    fn record_larger_than_a_chunk_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let log = TextLog::with_buffer(folder.path(), Level::All, 0, WhenFull::Wait).unwrap();
        let mut pen = log.listener(0);
        let streams = vec![Touched { stream: u64::MAX, ..UNTOUCHED }; 2 * CHUNK];
        for number in 1..=3 {
            pen.dispatched(&Dispatch { streams: &streams, ..dispatch(number) });
            pen.dispatched(&dispatch(number + 1));
        }
        pen.ended(&END);
        drop(pen);
        assert_eq!(log.finish().unwrap().lost, 0);
        assert_eq!(costs(folder.path()).unwrap()["one"], 60);
    }

    #[test]
    fn folder_that_cannot_be_made_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let folder = file.path().join("logs");
        let why = TextLog::create(&folder, Level::All).unwrap_err().to_string();
        assert!(why.contains(folder.to_str().unwrap()), "{why}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn full_disk_is_told_and_stops_nobody() {
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

    #[test]
    fn costs_are_means_by_name_over_all_workers() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(map_path(folder.path()), "1 long\n2 short\n3 long\n4 never\n5 back\\\\slash\n").unwrap();
        let first = "10 tid 1 disp 1 st R et 100 []\n20 tid 9 disp 1 st R et 1000\n30 tid 1 disp 2 st Z et 50 creat 1\n";
        let second = "10 *** worker 1 waited (1) for 0.000000001\n20 tid 3 disp 1 st Z et 250 creat 1 []\n\
                      20 tid 2 disp 1 st Bi et 7\n30 tid 5 disp 1 st Ba et 8\n";
        fs::write(log_path(folder.path(), 0), first).unwrap();
        fs::write(log_path(folder.path(), 1), second).unwrap();
        let costs = costs(folder.path()).unwrap();
        assert_eq!((costs["long"], costs["short"], costs["never"]), (200, 7, 0));
        assert_eq!(costs["back\\slash"], 8);
        assert_eq!(costs.len(), 4);
    }

    #[test]
    fn bad_line_is_told_with_its_number() {
        for (map, log, told) in [
            ("1 a\n1 b\n", "", "task.map, line 2: this task has a name already"),
            ("1 a\\x\n", "", "task.map, line 1: a backslash"),
            ("one a\n", "", "task.map, line 1: expected a task's number"),
            ("1 a", "", "task.map, line 1: it is cut short"),
            ("1 a\n", "1 tid 1 disp 1 st R et 1\n2 tid", "worker0.log, line 2: it is cut short"),
            ("1 a\n", "1 tid 1 disp 1 st R et 1\n2 tid 1\n", "worker0.log, line 2: expected `disp`"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            fs::write(map_path(folder.path()), map).unwrap();
            fs::write(log_path(folder.path(), 0), log).unwrap();
            let why = costs(folder.path()).unwrap_err().to_string();
            assert!(why.contains(told), "{why}");
        }
        let nothing = tempfile::tempdir().unwrap();
        let why = costs(nothing.path()).unwrap_err().to_string();
        assert!(why.contains("task.map"), "{why}");
    }
}
