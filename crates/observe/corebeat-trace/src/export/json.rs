//! JSON.

use crate::error::Error;
use crate::reader::{ReadKind, Reader, Record, Value};
use crate::timeline::Timeline;
use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Read, Seek, Write};

/// Writes an object a line for each event, in the order of time (`CLOCK_MONOTONIC`).
///
/// # Errors
///
/// It cannot be read, or not be written.
pub fn write_json_lines<R: Read + Seek>(
    timeline: &mut Timeline<R>,
    mut out: impl Write,
) -> Result<(), Error> {
    while let Some(event) = timeline.next_event()? {
        let thread = event.thread();
        writeln!(
            out,
            r#"{{"time_ns":{},"bound_ns":{},"stream":{},"tid":{},"kind":{},"fields":{}}}"#,
            event.time_ns(),
            event.bound_ns(),
            thread.stream,
            thread.tid,
            Text(event.kind().name()),
            Object(&event),
        )
        .map_err(Error::Write)?;
    }
    out.flush().map_err(Error::Write)
}

/// Writes the Trace Event Format of Chrome's, as one JSON object: what Perfetto (ui.perfetto.dev) opens. Each event is an
/// instant of its thread; times are microseconds of `CLOCK_MONOTONIC`.
///
/// # Errors
///
/// It cannot be read, or not be written.
pub fn write_chrome(reader: &mut Reader<impl Read>, out: impl Write) -> Result<(), Error> {
    let mut chrome = Chrome::new(out)?;
    chrome.events(reader, |_| true)?;
    chrome.finish()
}

/// Writes Chrome's format in parts: events as instants, and slices of who knows which events are their begin and end.
pub struct Chrome<W> {
    out: W,
    pid: u32,
    separator: &'static str,
}

/// Where a slice is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Track {
    /// With what happened on the thread of this number in the system, or of another number that has a name by
    /// [`Chrome::name`]. Slices of a track are in each other, or one behind the other.
    Thread(u32),
    /// By itself, with others of this number.
    Line(u64),
}

impl<W: Write> Chrome<W> {
    /// Begins.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn new(mut out: W) -> Result<Chrome<W>, Error> {
        write!(out, r#"{{"displayTimeUnit":"ns","traceEvents":["#).map_err(Error::Write)?;
        Ok(Chrome { out, pid: 0, separator: "\n" })
    }

    /// Writes the names of all threads, and events of the kinds that are wanted as instants.
    ///
    /// # Errors
    ///
    /// It cannot be read, or not be written.
    pub fn events(
        &mut self,
        reader: &mut Reader<impl Read>,
        wanted: impl Fn(&ReadKind) -> bool,
    ) -> Result<(), Error> {
        let mut named = BTreeSet::new();
        while let Some(packet) = reader.next_packet()? {
            self.pid = reader.process().pid;
            let thread = packet.thread();
            if named.insert(thread.stream) {
                self.name(thread.tid, if thread.name.is_empty() { "thread" } else { &thread.name })?;
            }
            for event in packet.events().filter(|event| wanted(event.kind())) {
                let (name, fields) = (Text(event.kind().name()), Object(&event));
                self.put("i", Track::Thread(thread.tid), event.time_ns(), |out| {
                    write!(out, r#","s":"t","name":{name},"args":{fields}"#)
                })?;
            }
        }
        Ok(())
    }

    /// Names a track.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn name(&mut self, thread: u32, name: &str) -> Result<(), Error> {
        let (separator, pid, name) = (std::mem::replace(&mut self.separator, ",\n"), self.pid, Text(name));
        write!(
            self.out,
            r#"{separator}{{"ph":"M","name":"thread_name","pid":{pid},"tid":{thread},"args":{{"name":{name}}}}}"#
        )
        .map_err(Error::Write)
    }

    /// Begins a slice.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn begin(&mut self, track: Track, time_ns: u64, name: &str) -> Result<(), Error> {
        let phase = if let Track::Thread(_) = track { "B" } else { "b" };
        self.put(phase, track, time_ns, |out| write!(out, r#","name":{}"#, Text(name)))
    }

    /// Ends the slice of this name that was begun last on the track, with something to say about it, or nothing.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn end(&mut self, track: Track, time_ns: u64, name: &str, remark: &str) -> Result<(), Error> {
        let phase = if let Track::Thread(_) = track { "E" } else { "e" };
        self.put(phase, track, time_ns, |out| {
            write!(out, r#","name":{}"#, Text(name))?;
            if remark.is_empty() { Ok(()) } else { write!(out, r#","args":{{"remark":{}}}"#, Text(remark)) }
        })
    }

    /// Ends the file.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn finish(mut self) -> Result<(), Error> {
        writeln!(self.out, "\n]}}").and_then(|()| self.out.flush()).map_err(Error::Write)
    }

    fn put(
        &mut self,
        phase: &str,
        track: Track,
        time_ns: u64,
        more: impl FnOnce(&mut W) -> io::Result<()>,
    ) -> Result<(), Error> {
        let (separator, pid) = (std::mem::replace(&mut self.separator, ",\n"), self.pid);
        let (us, ns) = (time_ns / 1000, time_ns % 1000);
        let out = &mut self.out;
        write!(out, r#"{separator}{{"ph":"{phase}","pid":{pid},"ts":{us}.{ns:03}"#)
            .and_then(|()| match track {
                Track::Thread(tid) => write!(out, r#","tid":{tid}"#),
                Track::Line(line) => write!(out, r#","cat":"handed","id":"{line}""#),
            })
            .and_then(|()| more(out))
            .and_then(|()| write!(out, "}}"))
            .map_err(Error::Write)
    }
}

/// A text in quotes.
struct Text<'a>(&'a str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"")?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                c if c < ' ' => write!(f, "\\u{:04x}", u32::from(c))?,
                c => write!(f, "{c}")?,
            }
        }
        f.write_str("\"")
    }
}

/// The fields.
struct Object<'a>(&'a Record<'a>);

impl fmt::Display for Object<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        for (index, (field, value)) in self.0.kind().fields().iter().zip(self.0.values()).enumerate() {
            let separator = if index > 0 { "," } else { "" };
            write!(f, "{separator}{}:", Text(field.name()))?;
            match value {
                Value::U64(value) => write!(f, "{value}")?,
                Value::I64(value) => write!(f, "{value}")?,
                Value::F32(value) if value.is_finite() => write!(f, "{value:?}")?,
                Value::F64(value) if value.is_finite() => write!(f, "{value:?}")?,
                // JSON has no other way.
                Value::F32(value) => write!(f, "\"{value}\"")?,
                Value::F64(value) => write!(f, "\"{value}\"")?,
                Value::Bool(value) => write!(f, "{value}")?,
                Value::Text(value) => write!(f, "{}", Text(value))?,
            }
        }
        f.write_str("}")
    }
}
