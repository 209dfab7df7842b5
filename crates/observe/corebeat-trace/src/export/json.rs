//! JSON.

use crate::error::Error;
use crate::reader::{Reader, Record, Value};
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
pub fn write_chrome(reader: &mut Reader<impl Read>, mut out: impl Write) -> Result<(), Error> {
    let mut named = BTreeSet::new();
    let mut separator = "\n";
    write!(out, r#"{{"displayTimeUnit":"ns","traceEvents":["#).map_err(Error::Write)?;
    while let Some(packet) = reader.next_packet()? {
        let pid = reader.process().pid;
        let mut packet_out = || -> io::Result<()> {
            let thread = packet.thread();
            if named.insert(thread.stream) {
                let name = if thread.name.is_empty() { "thread" } else { &thread.name };
                write!(
                    out,
                    r#"{separator}{{"ph":"M","name":"thread_name","pid":{pid},"tid":{},"args":{{"name":{}}}}}"#,
                    thread.tid,
                    Text(name)
                )?;
                separator = ",\n";
            }
            for event in packet.events() {
                let (us, ns) = (event.time_ns() / 1000, event.time_ns() % 1000);
                write!(
                    out,
                    r#"{separator}{{"ph":"i","s":"t","name":{},"ts":{us}.{ns:03},"pid":{pid},"tid":{},"args":{}}}"#,
                    Text(event.kind().name()),
                    thread.tid,
                    Object(&event),
                )?;
            }
            Ok(())
        };
        packet_out().map_err(Error::Write)?;
    }
    writeln!(out, "\n]}}").and_then(|()| out.flush()).map_err(Error::Write)
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
