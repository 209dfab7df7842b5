//! For people.

use super::Shown;
use crate::error::Error;
use crate::reader::{Record, Value};
use crate::timeline::Timeline;
use std::io::{self, Read, Seek, Write};

/// Writes a line for each event, in the order of time: seconds since the begin, the thread, the kind, the fields.
///
/// # Errors
///
/// It cannot be read, or not be written.
pub fn write_text<R: Read + Seek>(timeline: &mut Timeline<R>, mut out: impl Write) -> Result<(), Error> {
    let begin_ns = timeline.span_ns().map_or(0, |(begin, _)| begin);
    while let Some(event) = timeline.next_event()? {
        write_event(&event, begin_ns, &mut out).map_err(Error::Write)?;
    }
    out.flush().map_err(Error::Write)
}

fn write_event(event: &Record<'_>, begin_ns: u64, out: &mut impl Write) -> io::Result<()> {
    let since_ns = event.time_ns().saturating_sub(begin_ns);
    let thread = event.thread();
    let (seconds, ns) = (since_ns / 1_000_000_000, since_ns % 1_000_000_000);
    write!(out, "{seconds:>6}.{ns:09} {:>4}", thread.stream)?;
    if !thread.name.is_empty() {
        write!(out, " {}", thread.name.escape_debug())?;
    }
    write!(out, " {}", event.kind().name().escape_debug())?;
    for (field, value) in event.kind().fields().iter().zip(event.values()) {
        match value {
            Value::Text(text) => write!(out, " {}={text:?}", field.name())?,
            value => write!(out, " {}={}", field.name(), Shown(field, value))?,
        }
    }
    writeln!(out)
}
