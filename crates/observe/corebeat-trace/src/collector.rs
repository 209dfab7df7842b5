//! Takes full buffers and writes them, on collector threads or on the thread that filled them.

use crate::compression::{BlockCompressor, Compression};
use crate::counter::{self, Fix};
use crate::error::Error;
use crate::event::Kind;
use crate::file::TraceFile;
use crate::log::{Full, Stream};
use crate::packet::{self, Codec, Content, Span};
use crate::trace::{Options, Shared, Summary, lock};
use corebeat_sync::{Arc, thread};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest interval between two checks of a collector that nothing wakes.
const PERIOD: Duration = Duration::from_millis(100);

/// A thread that takes the buffers of its streams.
pub(crate) struct Collector {
    shared: Arc<Shared>,
    number: usize,
    packer: Packer,
}

impl Collector {
    pub(crate) fn new(shared: Arc<Shared>, number: usize) -> Collector {
        let packer = Packer::new(lock(&shared.sink).compression(&shared.options));
        Collector { shared, number, packer }
    }

    /// Runs until the trace is finished. Returns the streams that may still contain events.
    pub(crate) fn run(mut self) -> Vec<Arc<Stream>> {
        let mut streams: Vec<Arc<Stream>> = Vec::new();
        let (delay, nice) = (self.shared.options.delay, self.shared.options.nice);
        if nice > 0 && !cfg!(miri) {
            // A priority that cannot be lowered only costs time.
            let _ = rustix::process::setpriority_process(None, nice);
        }
        let mut last = Instant::now();
        loop {
            // Read before the streams: buffers that were handed over before the end are drained
            // below.
            let is_finished = self.shared.is_finished();
            let is_time = last.elapsed() >= delay;
            if is_time {
                last = Instant::now();
            }
            streams.extend(self.shared.adopt(self.number));
            streams.retain(|stream| {
                // Read before the buffers: the buffers of an ended stream are its last ones.
                let is_ended = stream.is_ended();
                let mut save = |full: Full<'_>| {
                    // Compressed without the lock, so that other collectors can write.
                    self.packer.pack(stream, &full);
                    lock(&self.shared.sink).save(stream, &self.packer.packet, full.bytes.len());
                };
                // SAFETY: a stream has exactly one collector, which is its consumer.
                unsafe {
                    stream.drain(&mut save);
                    if is_time {
                        stream.peek(&mut save);
                    }
                    // The process may never finish the trace.
                    if is_time || is_ended {
                        stream.loss().map(save);
                    }
                }
                if is_ended {
                    lock(&self.shared.sink).leave(stream);
                }
                !is_ended
            });
            if is_finished {
                streams.iter().for_each(|stream| stream.wake());
                return streams;
            }
            thread::park_timeout(PERIOD.min(delay.saturating_sub(last.elapsed())));
        }
    }
}

/// Builds packets from buffers.
#[derive(Default)]
pub(crate) struct Packer {
    /// `None`: packets are discarded.
    compressor: Option<BlockCompressor>,
    stored: Vec<u8>,
    packet: Vec<u8>,
}

impl Packer {
    pub(crate) fn new(compression: Option<Compression>) -> Packer {
        Packer { compressor: compression.map(BlockCompressor::new), ..Packer::default() }
    }

    /// Builds a packet in `packet`; none if there is nothing to write.
    fn pack(&mut self, stream: &Stream, full: &Full<'_>) {
        let lost = stream.lost_before(full);
        self.packet.clear();
        let Some(compressor) = &mut self.compressor else { return };
        if full.is_partial && full.bytes.is_empty() {
            return; // all its events were taken while it was open
        }
        let (end, real_offset_ns) = match full.closed {
            Some(closed) => (closed.end, closed.real_offset_ns),
            None => (Fix::take(), counter::real_offset_ns()),
        };
        // The rest of a partly taken buffer starts at an unknown time after the buffer's
        // begin.
        let begin =
            if full.is_partial { full.opened.begin.at_or_after() } else { full.opened.begin };
        let span = Span { begin, end, real_offset_ns, lost };
        let (codec, stored) = match compressor.compress(full.bytes, &mut self.stored) {
            Some((codec, bytes)) => (codec, &self.stored[..bytes]),
            None => (Codec::Plain, full.bytes),
        };
        let raw_bytes = full.bytes.len() as u32;
        packet::write(
            &mut self.packet,
            Content::Events,
            codec,
            stream.number,
            raw_bytes,
            Some(&span),
            stored,
        );
    }
}

/// The file that receives the packets. The default discards them.
#[derive(Default)]
pub(crate) struct Sink {
    /// `None`: packets are discarded.
    file: Option<TraceFile>,
    /// Number of kinds that the file declares.
    kinds: usize,
    /// Streams that the file declares, by number.
    threads: Vec<bool>,
    /// Streams that lost events, with the number of lost events.
    lost: Vec<(u32, u64)>,
    summary: Summary,
    /// First error. Nothing is written after it.
    failure: Option<io::Error>,
    /// Builds packets of buffers that are taken while the sink is locked.
    packer: Packer,
    /// Packets of the next write.
    packets: Vec<u8>,
    payload: Vec<u8>,
}

impl Sink {
    /// Creates a file, with the declaration of the process.
    pub(crate) fn create(path: &Path, compression: Compression) -> Result<Sink, Error> {
        let file = TraceFile::create(path)?;
        let packer = Packer::new(Some(compression));
        let mut sink = Sink { file: Some(file), packer, ..Sink::default() };
        sink.packets.extend(packet::file_header());
        sink.payload.extend(std::process::id().to_le_bytes());
        let program =
            std::env::current_exe().ok().and_then(|p| Some(p.file_name()?.to_str()?.to_owned()));
        packet::write_text(&mut sink.payload, counter::NAME);
        packet::write_text(&mut sink.payload, &program.unwrap_or_default());
        sink.put(Content::Process, 0);
        sink.flush();
        sink.fail()?;
        Ok(sink)
    }

    /// Path of the file; `None` for a sink that discards packets.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(TraceFile::path)
    }

    /// Closes the file without its end.
    pub(crate) fn close(&mut self) {
        self.file = None;
    }

    /// Returns the first error of writing, if any.
    fn fail(&mut self) -> Result<(), Error> {
        let Some(source) = self.failure.take() else { return Ok(()) };
        Err(Error::File { path: self.path().map(Path::to_owned).unwrap_or_default(), source })
    }

    /// Compression of packets; `None` for a sink that discards them.
    fn compression(&self, options: &Options) -> Option<Compression> {
        self.file.as_ref().map(|_| options.compression)
    }

    /// Builds a packet from a buffer and writes it.
    pub(crate) fn pack(&mut self, stream: &Stream, full: &Full<'_>) {
        self.packer.pack(stream, full);
        let packet = std::mem::take(&mut self.packer.packet);
        self.save(stream, &packet, full.bytes.len());
        self.packer.packet = packet;
    }

    /// Writes a packet of events after the declarations that it needs.
    fn save(&mut self, stream: &Stream, packet: &[u8], raw_bytes: usize) {
        let kinds = Kind::after(self.kinds);
        if !kinds.is_empty() {
            self.put_kinds(&kinds);
        }
        let index = stream.number as usize;
        if self.threads.len() <= index {
            self.threads.resize(index + 1, false);
        }
        if !std::mem::replace(&mut self.threads[index], true) {
            self.payload.extend(stream.thread.to_le_bytes());
            packet::write_text(&mut self.payload, &stream.name);
            self.put(Content::Thread, stream.number);
        }
        // A packet without events has a new number of lost events.
        if raw_bytes > 0 || !packet.is_empty() {
            self.packets.extend(packet);
            self.summary.packets += 1;
            self.summary.event_bytes += raw_bytes as u64;
        }
        self.flush();
    }

    /// Records how many events an ended stream lost.
    pub(crate) fn leave(&mut self, stream: &Stream) {
        if stream.lost() > 0 {
            self.lost.push((stream.number, stream.lost()));
        }
    }

    /// Writes the end of the file.
    pub(crate) fn end(&mut self, threads: u32, lost_outside: u64) -> Result<Summary, Error> {
        if lost_outside > 0 {
            self.lost.push((u32::MAX, lost_outside));
        }
        let lost = std::mem::take(&mut self.lost).into_iter().collect::<BTreeMap<_, _>>();
        self.summary.lost = lost.values().sum();
        self.summary.threads = threads;
        packet::write_end(&mut self.packets, &lost);
        self.flush();
        let failure = self.fail();
        // A log may keep this sink after the end of the trace, but not the file and its lock.
        let file = self.file.take();
        failure?;
        self.summary.file_bytes = file.map_or(Ok(0), TraceFile::finish)?;
        Ok(self.summary)
    }

    fn put_kinds(&mut self, kinds: &[&Kind]) {
        // One packet for each kind bounds the size of a packet.
        for kind in kinds {
            self.kinds += 1;
            self.payload.extend((self.kinds as u16).to_le_bytes());
            self.payload.push(u8::from(kind.timed) | u8::from(kind.kept) << 1);
            packet::write_text(&mut self.payload, kind.name);
            self.payload.push(kind.fields.len() as u8);
            for field in kind.fields {
                self.payload.extend([field.of as u8, u8::from(field.hex)]);
                packet::write_text(&mut self.payload, field.name);
            }
            self.put(Content::Kinds, 0);
        }
    }

    /// Builds a packet from `payload`.
    fn put(&mut self, content: Content, stream: u32) {
        let bytes = self.payload.len() as u32;
        packet::write(&mut self.packets, content, Codec::Plain, stream, bytes, None, &self.payload);
        self.payload.clear();
    }

    /// Writes the pending packets with one call, so that the file of a killed process contains
    /// complete packets and at most one partial packet at its end.
    fn flush(&mut self) {
        if let (Some(file), None) = (&mut self.file, &self.failure) {
            self.failure = file.write(&self.packets).err();
        }
        self.packets.clear();
    }
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use super::*;

    #[test]
    fn failed_trace_unlocks_its_file() {
        let name = format!("corebeat-failed-trace-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut sink = Sink::create(&path, Compression::default()).unwrap();
        sink.failure = Some(io::ErrorKind::StorageFull.into());
        assert!(matches!(sink.end(0, 0), Err(Error::File { .. })));
        let again = Sink::create(&path, Compression::default());
        std::fs::remove_file(&path).unwrap();
        assert!(again.is_ok());
    }
}
