//! Comma-separated values.

use super::Shown;
use crate::error::Error;
use crate::reader::{ReadKind, Value};
use crate::timeline::Timeline;
use std::collections::HashMap;
use std::io::{self, Read, Seek, Write};

/// What each line begins with.
const COLUMNS: [&str; 5] = ["time_ns", "bound_ns", "stream", "tid", "kind"];

/// Writes a table of all events, in the order of time. After time (`CLOCK_MONOTONIC`), bound, stream, thread and kind it has a
/// column for each name of a field, which is empty where a kind has no such field. A name that is taken gets an underscore.
///
/// # Errors
///
/// It cannot be read, or not be written.
pub fn write_csv<R: Read + Seek>(timeline: &mut Timeline<R>, mut out: impl Write) -> Result<(), Error> {
    let (columns, places) = columns(timeline.kinds());
    let heads: Vec<String> = columns.iter().map(|name| quoted(name)).collect();
    writeln!(out, "{}", heads.join(",")).map_err(Error::Write)?;
    let mut cells = Vec::new();
    while let Some(event) = timeline.next_event()? {
        cells.clear();
        cells.resize(columns.len() - COLUMNS.len(), String::new());
        let kind = event.kind();
        let places = &places[usize::from(kind.number()) - 1];
        for ((place, field), value) in places.iter().zip(kind.fields()).zip(event.values()) {
            cells[*place] = match value {
                Value::Text(text) => quoted(text),
                value => Shown(field, value).to_string(),
            };
        }
        let mut line = || -> io::Result<()> {
            let (stream, tid) = (event.thread().stream, event.thread().tid);
            write!(out, "{},{},{stream},{tid},{}", event.time_ns(), event.bound_ns(), quoted(kind.name()))?;
            cells.iter().try_for_each(|cell| write!(out, ",{cell}"))?;
            writeln!(out)
        };
        line().map_err(Error::Write)?;
    }
    out.flush().map_err(Error::Write)
}

/// All columns; and for each kind, in which of those behind the first ones its fields are.
fn columns(kinds: &[ReadKind]) -> (Vec<String>, Vec<Vec<usize>>) {
    let mut columns: Vec<String> = COLUMNS.map(str::to_owned).to_vec();
    let mut by_name = HashMap::<String, usize>::new();
    let mut places = Vec::new();
    for kind in kinds {
        let mut own = Vec::new();
        for field in kind.fields() {
            let mut name = field.name().to_owned();
            // A kind may have a name twice, in a file that somebody else wrote.
            while COLUMNS.contains(&name.as_str())
                || by_name.get(&name).is_some_and(|place| own.contains(place))
            {
                name.push('_');
            }
            own.push(*by_name.entry(name).or_insert_with_key(|name| {
                columns.push(name.clone());
                columns.len() - 1 - COLUMNS.len()
            }));
        }
        places.push(own);
    }
    (columns, places)
}

/// As a cell, in quotes where that is needed.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
