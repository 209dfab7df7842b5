//! JSON exports: one object for each event, and Chrome's format.

use super::name::Names;
use crate::error::Error;
use crate::reader::{ReadKind, Reader, Record, Value};
use crate::timeline::Timeline;
use corebeat_chrome::{ChromeWriter, Scope};
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::collections::BTreeSet;
use std::io::{self, Read, Seek, Write};

/// Writes one JSON object per line for each event, in the order of time (`CLOCK_MONOTONIC`).
///
/// # Errors
///
/// The trace cannot be read, or the output cannot be written.
pub fn write_json_lines<R: Read + Seek>(
    timeline: &mut Timeline<R>,
    mut out: impl Write,
) -> Result<(), Error> {
    let mut names = Names::default();
    while let Some(event) = timeline.next_event()? {
        names.learn(&event);
        let thread = event.thread();
        let line = Line {
            time_ns: event.time_ns(),
            bound_ns: event.bound_ns(),
            stream: thread.stream,
            tid: thread.tid,
            kind: event.kind().name(),
            fields: Fields { event: &event, names: &names },
        };
        serde_json::to_writer(&mut out, &line)
            .map_err(io::Error::from)
            .and_then(|()| out.write_all(b"\n"))
            .map_err(Error::Write)?;
    }
    out.flush().map_err(Error::Write)
}

/// Writes Chrome's Trace Event Format as one JSON object, which Perfetto (ui.perfetto.dev) opens.
/// Each event is an instant of its thread. Times are microseconds of `CLOCK_MONOTONIC`.
///
/// # Errors
///
/// The trace cannot be read, or the output cannot be written.
pub fn write_chrome(reader: &mut Reader<impl Read>, out: impl Write) -> Result<(), Error> {
    let mut writer = ChromeWriter::new(out).map_err(Error::Write)?;
    write_chrome_events(reader, &mut writer, |_| true)?;
    writer.finish().map_err(Error::Write)?;
    Ok(())
}

/// Writes the names of the process and of all threads, and the events whose kind is `wanted` as
/// instants. The caller
/// may write further slices into the same file.
///
/// # Errors
///
/// The trace cannot be read, or the output cannot be written.
pub fn write_chrome_events<W: Write>(
    reader: &mut Reader<impl Read>,
    writer: &mut ChromeWriter<W>,
    wanted: impl Fn(&ReadKind) -> bool,
) -> Result<(), Error> {
    let (mut named, mut names) = (BTreeSet::new(), Names::default());
    while let Some(packet) = reader.next_packet()? {
        if named.is_empty() {
            let process = reader.process();
            writer.set_process(process.pid);
            writer.process_name(&process.program).map_err(Error::Write)?;
        }
        let thread = packet.thread();
        if named.insert(thread.stream) {
            let name = if thread.name.is_empty() { "thread" } else { &thread.name };
            writer.track_name(thread.tid, name).map_err(Error::Write)?;
        }
        for event in packet.events() {
            names.learn(&event);
            if !wanted(event.kind()) {
                continue;
            }
            let (time_ns, name) = (event.time_ns(), event.kind().name());
            let fields = Fields { event: &event, names: &names };
            writer
                .instant(thread.tid, time_ns, Scope::Thread, name, Some(fields))
                .map_err(Error::Write)?;
        }
    }
    Ok(())
}

/// One line of [`write_json_lines`].
#[derive(serde::Serialize)]
struct Line<'a> {
    time_ns: u64,
    bound_ns: u32,
    stream: u32,
    tid: u32,
    kind: &'a str,
    fields: Fields<'a>,
}

/// An event's fields as a JSON object. A value that an earlier event has named is followed by its
/// name.
struct Fields<'a> {
    event: &'a Record<'a>,
    names: &'a Names,
}

impl Serialize for Fields<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let kind = self.event.kind();
        let mut map = serializer.serialize_map(None)?;
        for (field, value) in self.event.fields() {
            let name = &field.name;
            match value {
                Value::U64(value) => map.serialize_entry(name, &value)?,
                Value::I64(value) => map.serialize_entry(name, &value)?,
                Value::F32(value) if value.is_finite() => map.serialize_entry(name, &value)?,
                Value::F64(value) if value.is_finite() => map.serialize_entry(name, &value)?,
                // JSON has no numbers that are not finite.
                Value::F32(value) => map.serialize_entry(name, &value.to_string())?,
                Value::F64(value) => map.serialize_entry(name, &value.to_string())?,
                Value::Bool(value) => map.serialize_entry(name, &value)?,
                Value::Text(value) => map.serialize_entry(name, value)?,
            }
            if let Some(shown) = self.names.get(kind, field, value) {
                let mut key = format!("{name}_name");
                while kind.fields().iter().any(|field| field.name == key) {
                    key.push('_');
                }
                map.serialize_entry(&key, shown)?;
            }
        }
        map.end()
    }
}
