//! Recording of a trace: options, streams and finish.

use crate::collector::{Collector, Sink};
use crate::compression::Compression;
use crate::error::Error;
use crate::event::EVENT_BYTES_MAX;
use crate::log::{Log, Stream};
use crate::packet::RAW_BYTES_MAX;
use crate::ring::Memory;
use corebeat_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use corebeat_sync::fork::{Process, Uninherited};
use corebeat_sync::quiet;
use corebeat_sync::thread::{self, JoinHandle, Thread};
use corebeat_sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Limits on the size of a buffer.
const BUFFER_BYTES_MIN: usize = 16 << 10;
const BUFFER_BYTES_MAX: usize = RAW_BYTES_MAX;
const _: () = assert!(BUFFER_BYTES_MIN > EVENT_BYTES_MAX + crate::packet::FIX_EVENT_BYTES);
/// Limits on the number of buffers of a thread; `ring` explains the lower one.
const BUFFERS_MIN: usize = 2;
const BUFFERS_MAX: usize = 1024;
/// Lower limit of [`Options::delay`]: a shorter one would keep a collector busy.
const DELAY_MIN: Duration = Duration::from_millis(1);
/// Highest nice value of the system.
const NICE_MAX: i32 = 19;
/// Limit on the number of collector threads.
const COLLECTORS_MAX: usize = 64;
/// A collector is woken once for this many ended threads. Its periodic check finds the others.
const ENDED_MAX: u32 = 16;
/// Limit on the memory of ended threads that is kept for new ones. Memory beyond it is freed.
const SPARE_BYTES_MAX: usize = 32 << 20;
/// Limit on the number of threads over the whole time of a trace.
pub const STREAMS_MAX: u32 = 1 << 16;

/// Behaviour of a thread whose buffers are full, because events arrive faster than they are
/// written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenFull {
    /// The event is dropped and counted. The file states how many events are missing, and where.
    #[default]
    Drop,
    /// The thread waits for a free buffer.
    Wait,
}

/// How a trace is recorded. Numbers outside their range are replaced by the nearest one in it.
#[derive(Debug, Clone)]
pub struct Options {
    /// Bytes of each buffer: 16 KiB to 1 MiB, by default 64 KiB. A process that is killed loses the
    /// contents of its buffers; [`Options::delay`] bounds the loss.
    pub buffer_bytes: usize,
    /// Buffers of each thread: 2 to 1024, by default 16. Buffers that a thread never reaches take
    /// no memory.
    pub buffers: usize,
    /// Threads that compress and write: at most 64, by default 1. With 0, each thread writes its
    /// own full buffers itself.
    pub collectors: usize,
    /// Behaviour of a thread whose buffers are full.
    pub when_full: WhenFull,
    /// Compression of events.
    pub compression: Compression,
    /// Longest time that an event stays in a buffer that does not fill up: at least 1 ms, by
    /// default 1 s. It needs a collector: with 0 of them, the event stays until the buffer is full.
    pub delay: Duration,
    /// Nice value of the collectors: 0 to 19, by default 0. Collectors with a high value leave the
    /// CPUs to the threads that they record.
    pub nice: i32,
}

/// A trace that is being recorded. Recording ends with [`Trace::finish`], or when the value is
/// dropped; a drop ignores errors. (The trait `Trace` of `corebeat-scoop` is unrelated: it lists
/// the references of an object for the garbage collector.)
pub struct Trace {
    shared: Arc<Shared>,
    collectors: Vec<Uninherited<JoinHandle<Vec<Arc<Stream>>>>>,
    finished: bool,
}

/// Totals of a finished trace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Size of the file in bytes.
    pub file_bytes: u64,
    /// Bytes of events before compression.
    pub event_bytes: u64,
    /// Number of packets of events.
    pub packets: u64,
    /// Number of threads that logged.
    pub threads: u32,
    /// Number of lost events.
    pub lost: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            buffer_bytes: 64 << 10,
            buffers: 16,
            collectors: 1,
            when_full: WhenFull::default(),
            compression: Compression::default(),
            delay: Duration::from_secs(1),
            nice: 0,
        }
    }
}

impl Options {
    /// Starts a trace in this file, which is locked until the end of the trace. Its old content is
    /// discarded. Each `{pid}` in the path is replaced by the process ID, so that several instances
    /// of a program can use one path ([`Trace::path`]).
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] if another trace is being recorded in the file, in this process or another
    /// one; the file cannot be created, or a thread cannot be started.
    pub fn create(self, path: impl AsRef<Path>) -> Result<Trace, Error> {
        let sink = Sink::create(path.as_ref(), self.compression)?;
        self.begin(sink)
    }

    /// Starts a trace that writes nothing: events are collected, counted and discarded. It measures
    /// the cost of collecting without the cost of writing.
    ///
    /// # Errors
    ///
    /// A thread cannot be started.
    pub fn discard(self) -> Result<Trace, Error> {
        self.begin(Sink::default())
    }

    fn clamped(self) -> Options {
        Options {
            buffer_bytes: self.buffer_bytes.clamp(BUFFER_BYTES_MIN, BUFFER_BYTES_MAX),
            buffers: self.buffers.clamp(BUFFERS_MIN, BUFFERS_MAX),
            collectors: self.collectors.min(COLLECTORS_MAX),
            delay: self.delay.max(DELAY_MIN),
            nice: self.nice.clamp(0, NICE_MAX),
            ..self
        }
    }

    fn begin(self, sink: Sink) -> Result<Trace, Error> {
        let options = self.clamped();
        let inbox = || Inbox {
            streams: Mutex::new(Vec::new()),
            collector: OnceLock::new(),
            ended: AtomicU32::new(0),
        };
        let shared = Arc::new(Shared {
            inboxes: (0..options.collectors.max(1)).map(|_| inbox()).collect(),
            finished: AtomicBool::new(false),
            next: AtomicU32::new(0),
            lost: AtomicU64::new(0),
            sink: Mutex::new(sink),
            spare: Mutex::new(Vec::new()),
            process: Process::current(),
            options,
        });
        let mut trace = Trace { shared, collectors: Vec::new(), finished: false };
        for number in 0..trace.shared.options.collectors {
            let collector = Collector::new(trace.shared.clone(), number);
            let builder = thread::Builder::new().name(format!("trace {number}"));
            let handle = quiet::start(|| builder.spawn(move || collector.run()));
            let handle = handle.map_err(Error::Thread)?;
            trace.shared.inboxes[number].collector.get_or_init(|| handle.thread().clone());
            trace.collectors.push(Uninherited::new(handle));
        }
        Ok(trace)
    }
}

impl Trace {
    /// Starts a trace in this file, with [`Options::default`].
    ///
    /// # Errors
    ///
    /// As [`Options::create`].
    pub fn create(path: impl AsRef<Path>) -> Result<Trace, Error> {
        Options::default().create(path)
    }

    /// Path of the file, with the process ID in place of `{pid}`. `None` for a trace that is
    /// discarded.
    pub fn path(&self) -> Option<PathBuf> {
        lock(&self.shared.sink).path().map(Path::to_owned)
    }

    /// A log for this thread. Returns `None` after [`STREAMS_MAX`] threads.
    pub fn log(&self) -> Option<Log> {
        Log::new(&self.shared)
    }

    /// Installs this trace: [`emit`](crate::emit) writes to it, in all threads, until it is
    /// finished. Repeated calls have no effect.
    ///
    /// # Errors
    ///
    /// Another trace is installed.
    pub fn install(&self) -> Result<(), Error> {
        crate::current::install(&self.shared)
    }

    /// Writes all pending events and ends the file. Events that are emitted afterwards are
    /// discarded.
    ///
    /// # Errors
    ///
    /// A write failed, now or earlier; the file contains everything that was written before. Or the
    /// file was removed, replaced or truncated ([`Error::Replaced`]).
    pub fn finish(mut self) -> Result<Summary, Error> {
        self.end()
    }

    fn end(&mut self) -> Result<Summary, Error> {
        if std::mem::replace(&mut self.finished, true) {
            return Ok(Summary::default());
        }
        // A child of fork has no collectors, and the file belongs to its parent. The references of
        // the collectors remain in the child, so the descriptor is closed here, unless a thread of
        // the parent had locked the sink.
        if self.shared.is_forked() {
            if let Ok(mut sink) = self.shared.sink.try_lock() {
                sink.close();
            }
            return Ok(Summary::default());
        }
        crate::current::uninstall(&self.shared);
        // Release: pairs with Acquire in `is_finished`.
        self.shared.finished.store(true, Ordering::Release);
        // SeqCst: pairs with the fence in `make_room`. `take_rest` resets the ends of all buffers
        // below.
        fence(Ordering::SeqCst);
        self.shared.inboxes.iter().for_each(Inbox::wake);
        let mut streams = Vec::new();
        for collector in self.collectors.drain(..).filter_map(Uninherited::into_inner) {
            streams.extend(collector.join().unwrap_or_default());
        }
        for inbox in &self.shared.inboxes {
            streams.append(&mut lock(&inbox.streams));
        }
        // Threads that take their own buffers do so with the sink locked.
        let mut sink = lock(&self.shared.sink);
        for stream in &streams {
            // SAFETY: the collectors have ended, so this thread is the consumer.
            for full in unsafe { stream.take_rest() } {
                sink.pack(stream, &full);
            }
            sink.leave(stream);
        }
        lock(&self.shared.spare).clear();
        // Relaxed: counts.
        sink.end(self.shared.next.load(Ordering::Relaxed), self.shared.lost.load(Ordering::Relaxed))
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// The data that all threads of a trace share.
pub(crate) struct Shared {
    pub(crate) options: Options,
    finished: AtomicBool,
    /// Number of the next stream.
    next: AtomicU32,
    /// Lost events of threads without a stream.
    lost: AtomicU64,
    inboxes: Vec<Inbox>,
    pub(crate) sink: Mutex<Sink>,
    /// Memory of ended threads, so that short-lived threads allocate none.
    spare: Mutex<Vec<Memory>>,
    /// The process that records; a forked child does not.
    process: Process,
}

/// Streams that a collector has not taken over yet.
struct Inbox {
    streams: Mutex<Vec<Arc<Stream>>>,
    collector: OnceLock<Thread>,
    /// Number of ended threads.
    ended: AtomicU32,
}

impl Inbox {
    fn wake(&self) {
        if let Some(collector) = self.collector.get() {
            collector.unpark();
        }
    }
}

impl Shared {
    /// Whether recording has ended.
    pub(crate) fn is_finished(&self) -> bool {
        self.finished.load(Ordering::Acquire)
    }

    /// Whether this process is a forked child of the recorded one.
    pub(crate) fn is_forked(&self) -> bool {
        !self.process.is_current()
    }

    /// Registers a stream for the calling thread.
    pub(crate) fn register(shared: &Arc<Shared>) -> Option<Arc<Stream>> {
        // Relaxed: a count.
        let number = shared.next.fetch_add(1, Ordering::Relaxed);
        if number >= STREAMS_MAX {
            shared.next.store(STREAMS_MAX, Ordering::Relaxed);
            return None;
        }
        let stream = Arc::new(Stream::new(shared.clone(), number));
        let mut streams = lock(&shared.inbox(&stream).streams);
        // `Trace::end` empties the inboxes after it has set the flag.
        if !shared.is_finished() {
            streams.push(stream.clone());
        }
        drop(streams);
        Some(stream)
    }

    /// Counts a lost event of a thread without a stream.
    pub(crate) fn count_lost(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Memory for the buffers of a new stream.
    pub(crate) fn memory(&self) -> Memory {
        let Options { buffers, buffer_bytes, .. } = self.options;
        // The lock is released before memory is allocated.
        let spare = lock(&self.spare).pop();
        spare.unwrap_or_else(|| Memory::new(buffers, buffer_bytes))
    }

    /// Accepts the memory of a stream that has ended.
    pub(crate) fn recycle(&self, memory: Memory) {
        let mut spare = lock(&self.spare);
        if (spare.len() + 1) * memory.bytes() <= SPARE_BYTES_MAX && !self.is_finished() {
            spare.push(memory);
        }
    }

    fn inbox(&self, stream: &Stream) -> &Inbox {
        &self.inboxes[stream.number as usize % self.inboxes.len()]
    }

    /// Takes the new streams of this collector.
    pub(crate) fn adopt(&self, collector: usize) -> Vec<Arc<Stream>> {
        std::mem::take(&mut lock(&self.inboxes[collector].streams))
    }

    /// Notes that a thread has ended. Its last buffer may wait, because waking a collector takes
    /// longer than many threads live.
    pub(crate) fn ended(&self, stream: &Stream) {
        // Relaxed: a count.
        let ended = &self.inbox(stream).ended;
        if self.options.collectors == 0
            || ended.fetch_add(1, Ordering::Relaxed) % ENDED_MAX == ENDED_MAX - 1
        {
            self.handed_over(stream);
        }
    }

    /// Notes that a thread has filled a buffer.
    pub(crate) fn handed_over(&self, stream: &Stream) {
        if self.options.collectors > 0 {
            self.inbox(stream).wake();
            return;
        }
        let mut sink = lock(&self.sink);
        if self.is_finished() {
            return;
        }
        // SAFETY: without collectors, the thread that holds the sink's lock is the consumer.
        unsafe { stream.drain(|full| sink.pack(stream, &full)) };
        if stream.is_ended() {
            sink.leave(stream);
            drop(sink);
            lock(&self.inbox(stream).streams).retain(|s| s.number != stream.number);
        }
    }
}

/// Locks a mutex. The protected data is valid even if a thread panicked while it held the lock.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn memory_of_ended_threads_is_reused_up_to_a_limit() {
        for (buffers, logs, kept) in [(16, 40, 32), (256, 3, 2), (1024, 1, 0)] {
            let trace = Options { buffers, collectors: 0, ..Options::default() }.discard().unwrap();
            let logs: Vec<_> = (0..logs).map(|_| trace.log()).collect();
            drop(logs);
            assert_eq!(lock(&trace.shared.spare).len(), kept);
        }
    }
}
