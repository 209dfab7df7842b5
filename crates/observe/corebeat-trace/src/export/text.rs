//! Readable text.

use super::Shown;
use super::name::Names;
use crate::error::Error;
use crate::reader::{Record, Value};
use crate::timeline::Timeline;
use std::io::{self, Read, Seek, Write};

/// Writes one line per event, sorted by time: seconds since the begin, thread, kind and fields. A
/// value that an earlier event has named, such as the number of a probe, is followed by its name.
///
/// # Errors
///
/// The trace cannot be read, or the output cannot be written.
pub fn write_text<R: Read + Seek>(
    timeline: &mut Timeline<R>,
    mut out: impl Write,
) -> Result<(), Error> {
    let begin_ns = timeline.span_ns().map_or(0, |(begin, _)| begin);
    let mut names = Names::default();
    while let Some(event) = timeline.next_event()? {
        names.learn(&event);
        write_event(&event, &names, begin_ns, &mut out).map_err(Error::Write)?;
    }
    out.flush().map_err(Error::Write)
}

fn write_event(
    event: &Record<'_>,
    names: &Names,
    begin_ns: u64,
    out: &mut impl Write,
) -> io::Result<()> {
    let since_ns = event.time_ns().saturating_sub(begin_ns);
    let thread = event.thread();
    let (seconds, ns) = (since_ns / 1_000_000_000, since_ns % 1_000_000_000);
    write!(out, "{seconds:>6}.{ns:09} {:>4}", thread.stream)?;
    if !thread.name.is_empty() {
        write!(out, " {}", thread.name.escape_debug())?;
    }
    write!(out, " {}", event.kind().name().escape_debug())?;
    for (field, value) in event.fields() {
        match value {
            Value::Text(text) => write!(out, " {}={text:?}", field.name)?,
            value => write!(out, " {}={}", field.name, Shown(field, value))?,
        }
        if let Some(name) = names.get(event.kind(), field, value) {
            write!(out, " ({})", name.escape_debug())?;
        }
    }
    writeln!(out)
}
