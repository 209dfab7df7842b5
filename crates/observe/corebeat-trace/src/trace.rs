//! A trace that is recorded: its options, its streams, its end.

use crate::collector::{Collector, Sink};
use crate::compression::Compression;
use crate::error::Error;
use crate::event::EVENT_BYTES_MAX;
use crate::log::{Log, Stream};
use crate::packet::RAW_BYTES_MAX;
use crate::ring::Memory;
use corebeat_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use corebeat_sync::thread::{self, JoinHandle, Thread};
use corebeat_sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::path::Path;
use std::time::Duration;

/// Bytes of a buffer, at least and at most.
const BUFFER_BYTES_MIN: usize = 16 << 10;
const BUFFER_BYTES_MAX: usize = RAW_BYTES_MAX;
const _: () = assert!(BUFFER_BYTES_MIN > EVENT_BYTES_MAX + crate::packet::FIX_EVENT_BYTES);
/// Buffers of a thread, at least (`ring` says why) and at most.
const BUFFERS_MIN: usize = 2;
const BUFFERS_MAX: usize = 1024;
/// How long events are in buffers, at least: a collector that looks more often does nothing else.
const DELAY_MIN: Duration = Duration::from_millis(1);
/// Threads that compress and write, at most.
const COLLECTORS_MAX: usize = 64;
/// Of threads that have ended, a collector is woken for each of so many; it finds the others when it looks by itself.
const ENDED_MAX: u32 = 16;
/// Bytes of memory of threads that have ended which waits for others. What is beyond is freed.
const SPARE_BYTES_MAX: usize = 32 << 20;
/// Threads that a trace may have, over all its time.
pub const STREAMS_MAX: u32 = 1 << 16;

/// What a thread does when its buffers are full, because events come faster than they are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenFull {
    /// Goes on. Lost events are counted, and the file says how many are missing where.
    #[default]
    Drop,
    /// Waits for room.
    Wait,
}

/// How a trace is recorded.
#[derive(Debug, Clone)]
pub struct Options {
    pub(crate) buffer_bytes: usize,
    pub(crate) buffers: usize,
    pub(crate) collectors: usize,
    pub(crate) when_full: WhenFull,
    pub(crate) compression: Compression,
    pub(crate) delay: Duration,
}

/// A trace that is being recorded. It ends with [`Trace::finish`], or when this is dropped, which keeps silent about errors.
/// (The `Trace` of `corebeat-scoop` is another thing: what its collector finds objects by.)
pub struct Trace {
    shared: Arc<Shared>,
    collectors: Vec<JoinHandle<Vec<Arc<Stream>>>>,
    finished: bool,
}

/// What was recorded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Bytes of events before compression.
    pub event_bytes: u64,
    /// Packets of events.
    pub packets: u64,
    /// Threads that logged.
    pub threads: u32,
    /// Events that there was no room for.
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
        }
    }
}

impl Options {
    /// Bytes of each buffer, 64 KiB if nothing is said; at least 16 KiB and at most 1 MiB. What is in buffers is lost when the
    /// process is killed; [`Options::delay`] says how much that may be.
    pub fn buffer_bytes(mut self, bytes: usize) -> Options {
        self.buffer_bytes = bytes.clamp(BUFFER_BYTES_MIN, BUFFER_BYTES_MAX);
        self
    }

    /// Buffers of each thread, 16 if nothing is said; 2 to 1024. Those that a thread does not come to take no memory.
    pub fn buffers(mut self, buffers: usize) -> Options {
        self.buffers = buffers.clamp(BUFFERS_MIN, BUFFERS_MAX);
        self
    }

    /// Threads that compress and write, 1 if nothing is said; at most 64. With 0 each thread writes its own buffers when they
    /// are full, and waits for that.
    pub fn collectors(mut self, threads: usize) -> Options {
        self.collectors = threads.min(COLLECTORS_MAX);
        self
    }

    /// What a thread does when its buffers are full.
    pub fn when_full(mut self, when_full: WhenFull) -> Options {
        self.when_full = when_full;
        self
    }

    /// How events are compressed.
    pub fn compression(mut self, compression: Compression) -> Options {
        self.compression = compression;
        self
    }

    /// How long an event may be in a buffer that does not get full, before it is written; 1 s if nothing is said, and a
    /// millisecond at least. A collector takes it from there: with 0 of them, it stays.
    pub fn delay(mut self, delay: Duration) -> Options {
        self.delay = delay.max(DELAY_MIN);
        self
    }

    /// Begins a trace in this file, which is replaced if there is one.
    ///
    /// # Errors
    ///
    /// The file cannot be made, or a thread cannot be started.
    pub fn create(self, path: impl AsRef<Path>) -> Result<Trace, Error> {
        let sink = Sink::create(path.as_ref(), self.compression)?;
        self.begin(sink)
    }

    /// Begins a trace that is written nowhere: events are collected, counted and forgotten. It shows what it costs to collect
    /// them, without what it costs to write.
    ///
    /// # Errors
    ///
    /// A thread cannot be started.
    pub fn discard(self) -> Result<Trace, Error> {
        self.begin(Sink::discard())
    }

    fn begin(self, sink: Sink) -> Result<Trace, Error> {
        let inbox = || Inbox {
            streams: Mutex::new(Vec::new()),
            collector: OnceLock::new(),
            ended: AtomicU32::new(0),
        };
        let shared = Arc::new(Shared {
            inboxes: (0..self.collectors.max(1)).map(|_| inbox()).collect(),
            over: AtomicBool::new(false),
            next: AtomicU32::new(0),
            lost: AtomicU64::new(0),
            sink: Mutex::new(sink),
            spare: Mutex::new(Vec::new()),
            process: std::process::id(),
            options: self,
        });
        let mut trace = Trace { shared, collectors: Vec::new(), finished: false };
        for number in 0..trace.shared.options.collectors {
            let collector = Collector::new(trace.shared.clone(), number);
            let builder = thread::Builder::new().name(format!("trace {number}"));
            let handle = builder.spawn(move || collector.run()).map_err(Error::Thread)?;
            trace.shared.inboxes[number].collector.get_or_init(|| handle.thread().clone());
            trace.collectors.push(handle);
        }
        Ok(trace)
    }
}

impl Trace {
    /// Begins a trace in this file, with [`Options::default`].
    ///
    /// # Errors
    ///
    /// The file cannot be made, or a thread cannot be started.
    pub fn create(path: impl AsRef<Path>) -> Result<Trace, Error> {
        Options::default().create(path)
    }

    /// A way into it for this thread. `None`: [`STREAMS_MAX`] threads had one.
    pub fn log(&self) -> Option<Log> {
        Log::new(&self.shared)
    }

    /// Makes it the trace that [`emit`](crate::emit) goes to, in all threads, until it is finished. If it is that already, it stays so.
    ///
    /// # Errors
    ///
    /// There is another one already.
    pub fn install(&self) -> Result<(), Error> {
        crate::current::install(&self.shared)
    }

    /// Writes what there is, and ends the file. What threads emit afterwards goes nowhere.
    ///
    /// # Errors
    ///
    /// Something could not be written, now or before. The file holds what was written until then.
    pub fn finish(mut self) -> Result<Summary, Error> {
        self.end()
    }

    fn end(&mut self) -> Result<Summary, Error> {
        // In a child of fork there are no collectors, and the file is the parent's.
        if std::mem::replace(&mut self.finished, true) || self.shared.is_forked() {
            return Ok(Summary::default());
        }
        crate::current::uninstall(&self.shared);
        // Release: pairs with Acquire in `is_over`.
        self.shared.over.store(true, Ordering::Release);
        // SeqCst: pairs with the one in `make_room`. Streams are told below that their buffers end here.
        fence(Ordering::SeqCst);
        self.shared.inboxes.iter().for_each(Inbox::wake);
        let mut streams = Vec::new();
        for collector in self.collectors.drain(..) {
            streams.extend(collector.join().unwrap_or_default());
        }
        for inbox in &self.shared.inboxes {
            streams.append(&mut lock(&inbox.streams));
        }
        // Those who take their buffers themselves do so with the sink locked.
        let mut sink = lock(&self.shared.sink);
        for stream in &streams {
            // SAFETY: the collectors are gone, so this is the taker.
            for full in unsafe { stream.rest() } {
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

/// What all of a trace's threads share.
pub(crate) struct Shared {
    pub(crate) options: Options,
    over: AtomicBool,
    /// The next stream's number.
    next: AtomicU32,
    /// Events of threads that there was no number for.
    lost: AtomicU64,
    inboxes: Vec<Inbox>,
    pub(crate) sink: Mutex<Sink>,
    /// Of threads that have ended: threads that come and go need none of the system's.
    spare: Mutex<Vec<Memory>>,
    /// Whose trace it is: not a forked child's.
    process: u32,
}

/// Streams that are new to a collector.
struct Inbox {
    streams: Mutex<Vec<Arc<Stream>>>,
    collector: OnceLock<Thread>,
    /// Threads that have ended.
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
    /// Whether nothing is recorded any more.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Whether this process is a child of the trace's.
    pub(crate) fn is_forked(&self) -> bool {
        std::process::id() != self.process
    }

    /// A stream for the calling thread.
    pub(crate) fn enlist(shared: &Arc<Shared>) -> Option<Arc<Stream>> {
        // Relaxed: a count.
        let number = shared.next.fetch_add(1, Ordering::Relaxed);
        if number >= STREAMS_MAX {
            shared.next.store(STREAMS_MAX, Ordering::Relaxed);
            return None;
        }
        let stream = Arc::new(Stream::new(shared.clone(), number));
        let mut streams = lock(&shared.inbox(&stream).streams);
        // Who ends the trace empties the inboxes after that.
        if !shared.is_over() {
            streams.push(stream.clone());
        }
        drop(streams);
        Some(stream)
    }

    /// Counts events of threads that have no stream.
    pub(crate) fn lose(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// For a new stream's buffers.
    pub(crate) fn memory(&self) -> Memory {
        let Options { buffers, buffer_bytes, .. } = self.options;
        // Not locked while the system is asked.
        let spare = lock(&self.spare).pop();
        spare.unwrap_or_else(|| Memory::new(buffers, buffer_bytes))
    }

    /// A stream needs it no more.
    pub(crate) fn keep(&self, memory: Memory) {
        let mut spare = lock(&self.spare);
        if (spare.len() + 1) * memory.bytes() <= SPARE_BYTES_MAX && !self.is_over() {
            spare.push(memory);
        }
    }

    fn inbox(&self, stream: &Stream) -> &Inbox {
        &self.inboxes[stream.number as usize % self.inboxes.len()]
    }

    /// New streams of this collector.
    pub(crate) fn adopt(&self, collector: usize) -> Vec<Arc<Stream>> {
        std::mem::take(&mut lock(&self.inboxes[collector].streams))
    }

    /// A thread has ended. Its last buffer may wait: to wake somebody takes longer than many threads live.
    pub(crate) fn ended(&self, stream: &Stream) {
        // Relaxed: a count.
        let ended = &self.inbox(stream).ended;
        if self.options.collectors == 0 || ended.fetch_add(1, Ordering::Relaxed) % ENDED_MAX == ENDED_MAX - 1
        {
            self.handed_over(stream);
        }
    }

    /// A thread has filled a buffer.
    pub(crate) fn handed_over(&self, stream: &Stream) {
        if self.options.collectors > 0 {
            self.inbox(stream).wake();
            return;
        }
        let mut sink = lock(&self.sink);
        if self.is_over() {
            return;
        }
        // SAFETY: without collectors, who has locked the sink is the taker.
        unsafe { stream.drain(|full| sink.pack(stream, &full)) };
        if stream.is_ended() {
            sink.leave(stream);
            drop(sink);
            lock(&self.inbox(stream).streams).retain(|s| s.number != stream.number);
        }
    }
}

/// Locks; what was locked when a thread panicked is whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn memory_of_ended_threads_waits_for_others_up_to_a_bound() {
        for (buffers, logs, kept) in [(16, 40, 32), (256, 3, 2), (1024, 1, 0)] {
            let trace = Options::default().buffers(buffers).collectors(0).discard().unwrap();
            let logs: Vec<_> = (0..logs).map(|_| trace.log()).collect();
            drop(logs);
            assert_eq!(lock(&trace.shared.spare).len(), kept);
        }
    }
}
