//! Comma-separated values.

use super::Shown;
use super::name::{Names, named_field};
use crate::error::Error;
use crate::reader::{ReadKind, Value};
use crate::timeline::Timeline;
use std::collections::HashMap;
use std::io::{self, Read, Seek, Write};

/// The first columns of each line.
const COLUMNS: [&str; 5] = ["time_ns", "bound_ns", "stream", "tid", "kind"];

/// Writes a table of all events, sorted by time. The first columns are time (`CLOCK_MONOTONIC`),
/// bound, stream, thread and kind. One further column follows for each field name; it is empty for
/// kinds without that field. A field whose name collides with another column gets an underscore.
/// If events name the values of a field, as probes are declared, a column `FIELD_name` with the
/// names follows that field.
///
/// # Errors
///
/// The trace cannot be read, or the output cannot be written.
pub fn write_csv<R: Read + Seek>(
    timeline: &mut Timeline<R>,
    mut out: impl Write,
) -> Result<(), Error> {
    let (columns, places) = columns(timeline.kinds());
    let heads: Vec<String> = columns.iter().map(|name| quoted(name)).collect();
    writeln!(out, "{}", heads.join(",")).map_err(Error::Write)?;
    let (mut cells, mut names) = (Vec::new(), Names::default());
    while let Some(event) = timeline.next_event()? {
        names.learn(&event);
        cells.clear();
        cells.resize(columns.len() - COLUMNS.len(), String::new());
        let kind = event.kind();
        let places = &places[usize::from(kind.number()) - 1];
        for (place, (field, value)) in places.iter().zip(event.fields()) {
            cells[*place] = match value {
                Value::Text(text) => quoted(text),
                value => Shown(field, value).to_string(),
            };
            if let Some(name) = names.get(kind, field, value) {
                // The column of names follows that of the field.
                cells[*place + 1] = quoted(name);
            }
        }
        let mut line = || -> io::Result<()> {
            let (stream, tid) = (event.thread().stream, event.thread().tid);
            write!(
                out,
                "{},{},{stream},{tid},{}",
                event.time_ns(),
                event.bound_ns(),
                quoted(kind.name())
            )?;
            cells.iter().try_for_each(|cell| write!(out, ",{cell}"))?;
            writeln!(out)
        };
        line().map_err(Error::Write)?;
    }
    out.flush().map_err(Error::Write)
}

/// All columns; and for each kind, the indices of its fields among the columns after the first
/// ones.
fn columns(kinds: &[ReadKind]) -> (Vec<String>, Vec<Vec<usize>>) {
    let mut columns: Vec<String> = COLUMNS.map(str::to_owned).to_vec();
    let named: Vec<&str> =
        kinds.iter().filter_map(named_field).map(|field| field.name.as_str()).collect();
    // A column that is not a field's.
    let is_reserved = |name: &str| {
        COLUMNS.contains(&name)
            || name.strip_suffix("_name").is_some_and(|field| named.contains(&field))
    };
    let mut by_name = HashMap::<String, usize>::new();
    let mut places = Vec::new();
    for kind in kinds {
        let mut own = Vec::new();
        for field in kind.fields() {
            let mut name = field.name.clone();
            // A file from another writer may contain a name twice in one kind.
            while is_reserved(&name) || by_name.get(&name).is_some_and(|place| own.contains(place))
            {
                name.push('_');
            }
            own.push(*by_name.entry(name).or_insert_with_key(|name| {
                columns.push(name.clone());
                let place = columns.len() - 1 - COLUMNS.len();
                if named.contains(&name.as_str()) {
                    columns.push(format!("{name}_name"));
                }
                place
            }));
        }
        places.push(own);
    }
    (columns, places)
}

/// A cell, in quotes if the text requires them.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
