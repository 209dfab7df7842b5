//! Who takes full buffers and writes them: threads of their own, or the thread that filled them.

use crate::counter::{self, Fix};
use crate::error::Error;
use crate::event::Kind;
use crate::log::{Full, Stream};
use crate::packet::{self, Codec, Content, Header, Span};
use crate::trace::{Shared, Summary, lock};
use corebeat_sync::{Arc, thread};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A collector looks at least this often, should it have been told nothing.
const PERIOD: Duration = Duration::from_millis(100);

/// A thread that takes the buffers of some streams.
pub(crate) struct Collector {
    shared: Arc<Shared>,
    number: usize,
}

impl Collector {
    pub(crate) fn new(shared: Arc<Shared>, number: usize) -> Collector {
        Collector { shared, number }
    }

    /// Works until the trace is over. The streams that may still have something.
    pub(crate) fn run(self) -> Vec<Arc<Stream>> {
        let mut streams: Vec<Arc<Stream>> = Vec::new();
        loop {
            // What was handed over before the end is seen below.
            let is_over = self.shared.is_over();
            streams.extend(self.shared.adopt(self.number));
            streams.retain(|stream| {
                // Before its buffers: if it has ended, they are its last.
                let is_ended = stream.is_ended();
                // SAFETY: a stream has one collector, which is the taker.
                unsafe { stream.drain(|full| lock(&self.shared.sink).save(stream, &full)) };
                if is_ended {
                    lock(&self.shared.sink).leave(stream);
                }
                !is_ended
            });
            if is_over {
                streams.iter().for_each(|stream| stream.wake());
                return streams;
            }
            thread::park_timeout(PERIOD);
        }
    }
}

/// The file.
pub(crate) struct Sink {
    file: File,
    path: PathBuf,
    /// Kinds that the file has.
    kinds: usize,
    /// Streams that the file has, by number.
    threads: Vec<bool>,
    /// Streams that lost events.
    lost: Vec<(u32, u64)>,
    summary: Summary,
    /// From here on nothing is written.
    failure: Option<io::Error>,
    packets: Vec<u8>,
    payload: Vec<u8>,
}

impl Sink {
    pub(crate) fn create(path: &Path) -> Result<Sink, Error> {
        let file = File::create(path).map_err(|source| Error::File { path: path.into(), source })?;
        let mut sink = Sink {
            file,
            path: path.into(),
            kinds: 0,
            threads: Vec::new(),
            lost: Vec::new(),
            summary: Summary::default(),
            failure: None,
            packets: Vec::new(),
            payload: Vec::new(),
        };
        sink.packets.extend(packet::FILE_MAGIC);
        sink.packets.extend(packet::VERSION.to_le_bytes());
        sink.packets.extend([0; 4]);
        sink.payload.extend(std::process::id().to_le_bytes());
        let program = std::env::current_exe().ok().and_then(|p| Some(p.file_name()?.to_str()?.to_owned()));
        packet::write_text(&mut sink.payload, counter::NAME);
        packet::write_text(&mut sink.payload, &program.unwrap_or_default());
        sink.put(Content::Process, 0);
        sink.flush();
        match sink.failure.take() {
            Some(source) => Err(Error::File { path: path.into(), source }),
            None => Ok(sink),
        }
    }

    /// Writes a buffer, behind what it needs to be understood.
    pub(crate) fn save(&mut self, stream: &Stream, full: &Full<'_>) {
        if full.bytes.is_empty() {
            return;
        }
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
        let (end, real_offset_ns) = match full.closed {
            Some(closed) => (closed.end, closed.real_offset_ns),
            None => (Fix::take(), counter::real_offset_ns()),
        };
        let span = Span { begin: full.opened.begin, end, real_offset_ns, lost: full.opened.lost };
        let bytes = full.bytes.len() as u32;
        let header = Header {
            content: Content::Events,
            codec: Codec::Plain,
            stream: stream.number,
            stored_bytes: bytes,
            raw_bytes: bytes,
        };
        packet::write(&mut self.packets, header, Some(&span), full.bytes);
        self.summary.packets += 1;
        self.summary.event_bytes += u64::from(bytes);
        self.flush();
    }

    /// A stream has no more buffers.
    pub(crate) fn leave(&mut self, stream: &Stream) {
        if stream.lost() > 0 {
            self.lost.push((stream.number, stream.lost()));
        }
    }

    /// Ends the file.
    pub(crate) fn end(&mut self, threads: u32, lost_outside: u64) -> Result<Summary, Error> {
        if lost_outside > 0 {
            self.lost.push((u32::MAX, lost_outside));
        }
        for (stream, lost) in std::mem::take(&mut self.lost) {
            self.payload.extend(stream.to_le_bytes());
            self.payload.extend(lost.to_le_bytes());
            self.summary.lost += lost;
        }
        self.summary.threads = threads;
        self.put(Content::End, 0);
        self.flush();
        match self.failure.take() {
            Some(source) => Err(Error::File { path: self.path.clone(), source }),
            None => Ok(self.summary),
        }
    }

    fn put_kinds(&mut self, kinds: &[&Kind]) {
        // A packet for each, so that none is too large.
        for kind in kinds {
            self.kinds += 1;
            self.payload.extend((self.kinds as u16).to_le_bytes());
            self.payload.push(u8::from(kind.timed));
            packet::write_text(&mut self.payload, kind.name);
            self.payload.push(kind.fields.len() as u8);
            for field in kind.fields {
                self.payload.extend([field.of as u8, u8::from(field.hex)]);
                packet::write_text(&mut self.payload, field.name);
            }
            self.put(Content::Kinds, 0);
        }
    }

    /// Makes a packet of what is in `payload`.
    fn put(&mut self, content: Content, stream: u32) {
        let bytes = self.payload.len() as u32;
        let header = Header { content, codec: Codec::Plain, stream, stored_bytes: bytes, raw_bytes: bytes };
        packet::write(&mut self.packets, header, None, &self.payload);
        self.payload.clear();
    }

    /// Writes the packets, in one go: a process that is killed leaves whole ones, and at most a part of the last.
    fn flush(&mut self) {
        if self.failure.is_none() {
            match self.file.write_all(&self.packets) {
                Ok(()) => self.summary.file_bytes += self.packets.len() as u64,
                Err(e) => self.failure = Some(e),
            }
        }
        self.packets.clear();
    }
}
