//! Who takes full buffers and writes them: threads of their own, or the thread that filled them.

use crate::compression::{Compression, Press};
use crate::counter::{self, Fix};
use crate::error::Error;
use crate::event::Kind;
use crate::log::{Full, Stream};
use crate::packet::{self, Codec, Content, Span};
use crate::trace::{Options, Shared, Summary, lock};
use corebeat_sync::{Arc, thread};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A collector looks at least this often, should it have been told nothing.
const PERIOD: Duration = Duration::from_millis(100);

/// A thread that takes the buffers of some streams.
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

    /// Works until the trace is over. The streams that may still have something.
    pub(crate) fn run(mut self) -> Vec<Arc<Stream>> {
        let mut streams: Vec<Arc<Stream>> = Vec::new();
        let delay = self.shared.options.delay;
        let mut last = Instant::now();
        loop {
            // What was handed over before the end is seen below.
            let is_over = self.shared.is_over();
            let is_time = last.elapsed() >= delay;
            if is_time {
                last = Instant::now();
            }
            streams.extend(self.shared.adopt(self.number));
            streams.retain(|stream| {
                // Before its buffers: if it has ended, they are its last.
                let is_ended = stream.is_ended();
                let mut save = |full: Full<'_>| {
                    // Others write meanwhile.
                    self.packer.pack(stream.number, &full);
                    lock(&self.shared.sink).save(stream, &self.packer.packet, full.bytes.len());
                };
                // SAFETY: a stream has one collector, which is the taker.
                unsafe {
                    stream.drain(&mut save);
                    if is_time {
                        stream.peek(save);
                    }
                }
                if is_ended {
                    lock(&self.shared.sink).leave(stream);
                }
                !is_ended
            });
            if is_over {
                streams.iter().for_each(|stream| stream.wake());
                return streams;
            }
            thread::park_timeout(PERIOD.min(delay.saturating_sub(last.elapsed())));
        }
    }
}

/// Makes packets of buffers.
pub(crate) struct Packer {
    /// `None`: packets are forgotten.
    press: Option<Press>,
    stored: Vec<u8>,
    packet: Vec<u8>,
}

impl Packer {
    pub(crate) fn new(compression: Option<Compression>) -> Packer {
        Packer { press: compression.map(Press::new), stored: Vec::new(), packet: Vec::new() }
    }

    /// Makes a packet, in `packet`.
    fn pack(&mut self, stream: u32, full: &Full<'_>) {
        let Some(press) = &mut self.press else { return };
        let (end, real_offset_ns) = match full.closed {
            Some(closed) => (closed.end, closed.real_offset_ns),
            None => (Fix::take(), counter::real_offset_ns()),
        };
        // What is left of a buffer is from after its begin, and no more is known.
        let begin = if full.goes_on { full.opened.begin.at_or_after() } else { full.opened.begin };
        let span = Span { begin, end, real_offset_ns, lost: full.opened.lost };
        let (codec, stored) = match press.press(full.bytes, &mut self.stored) {
            Some((codec, bytes)) => (codec, &self.stored[..bytes]),
            None => (Codec::Plain, full.bytes),
        };
        self.packet.clear();
        let raw_bytes = full.bytes.len() as u32;
        packet::write(&mut self.packet, Content::Events, codec, stream, raw_bytes, Some(&span), stored);
    }
}

/// The file.
pub(crate) struct Sink {
    /// `None`: nothing is written.
    file: Option<File>,
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
    /// For buffers that are taken with this locked.
    packer: Packer,
    /// To be written in one go.
    packets: Vec<u8>,
    payload: Vec<u8>,
}

impl Sink {
    /// One that forgets what it is told.
    pub(crate) fn discard() -> Sink {
        Sink {
            file: None,
            path: PathBuf::new(),
            kinds: 0,
            threads: Vec::new(),
            lost: Vec::new(),
            summary: Summary::default(),
            failure: None,
            packer: Packer::new(None),
            packets: Vec::new(),
            payload: Vec::new(),
        }
    }

    /// A file.
    pub(crate) fn create(path: &Path, compression: Compression) -> Result<Sink, Error> {
        let file = File::create(path).map_err(|source| Error::File { path: path.into(), source })?;
        let packer = Packer::new(Some(compression));
        let mut sink = Sink { file: Some(file), path: path.into(), packer, ..Sink::discard() };
        sink.packets.extend(packet::file_header());
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

    /// How what goes here is compressed, if it goes anywhere.
    fn compression(&self, options: &Options) -> Option<Compression> {
        self.file.as_ref().map(|_| options.compression)
    }

    /// Makes a packet of a buffer, and writes it.
    pub(crate) fn pack(&mut self, stream: &Stream, full: &Full<'_>) {
        self.packer.pack(stream.number, full);
        let packet = std::mem::take(&mut self.packer.packet);
        self.save(stream, &packet, full.bytes.len());
        self.packer.packet = packet;
    }

    /// Writes a packet of events, behind what it needs to be understood.
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
        if raw_bytes > 0 {
            self.packets.extend(packet);
            self.summary.packets += 1;
            self.summary.event_bytes += raw_bytes as u64;
        }
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
        let lost = std::mem::take(&mut self.lost).into_iter().collect::<BTreeMap<_, _>>();
        self.summary.lost = lost.values().sum();
        self.summary.threads = threads;
        packet::write_end(&mut self.packets, &lost);
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

    /// Makes a packet of what is in `payload`.
    fn put(&mut self, content: Content, stream: u32) {
        let bytes = self.payload.len() as u32;
        packet::write(&mut self.packets, content, Codec::Plain, stream, bytes, None, &self.payload);
        self.payload.clear();
    }

    /// Writes the packets, in one go: a process that is killed leaves whole ones, and at most a part of the last.
    fn flush(&mut self) {
        if let (Some(file), None) = (&mut self.file, &self.failure) {
            match file.write_all(&self.packets) {
                Ok(()) => self.summary.file_bytes += self.packets.len() as u64,
                Err(e) => self.failure = Some(e),
            }
        }
        self.packets.clear();
    }
}
