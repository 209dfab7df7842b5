//! Records as text: Corebeat beside readers and writers without records.

use super::lap::{laps, whole};
use super::load::{Fields, Form, Load, Outcome, Work};
use super::subject::Subject;
use crate::lpel::load::unordered;
use corebeat_snet::format::{Format, Reader, Writer};
use corebeat_snet::{Array, Element, Kind, Label, Record, Value};
use quick_xml::events::Event;
use std::hint::black_box;
use std::sync::Arc;

/// Bytes of a long text.
const TEXT: usize = 64 << 10;
/// Elements of a long array.
const ARRAY: u64 = 1000;

pub(crate) fn run(load: &Load, subject: Subject) -> Result<Outcome, String> {
    let format = match load.form {
        Form::Xml => Format::Xml,
        Form::Json => Format::Json,
    };
    let records = (0..load.count).map(|i| record(load.fields, i)).collect::<Result<Vec<_>, _>>()?;
    let text = write(&records, format, Vec::new())?;
    let outcome = match (load.work, subject) {
        (Work::Read, Subject::Corebeat) => {
            for (i, read) in Reader::new(&text[..], format).enumerate() {
                if records.get(i) != Some(&read.map_err(|e| e.to_string())?) {
                    return Err(format!("record {i} differs from the written record"));
                }
            }
            laps(load, || whole(|| read(&text, format)))
        }
        (_, Subject::Corebeat) => again(load, text.len(), |room| write(&records, format, room)),
        (Work::Read, Subject::SerdeJson) => laps(load, || whole(|| count_maps(&text))),
        (_, Subject::SerdeJson) => {
            let maps: Vec<Object> = records.iter().map(map).collect();
            again(load, text.len(), |room| write_maps(&maps, room))
        }
        (Work::Read, Subject::QuickXml) => {
            let text = std::str::from_utf8(&text).map_err(|e| e.to_string())?;
            laps(load, || whole(|| count_records(text)))
        }
        (_, Subject::QuickXml) => {
            let events = events(std::str::from_utf8(&text).map_err(|e| e.to_string())?)?;
            again(load, text.len(), |room| write_events(&events, room))
        }
        _ => Err("this subject neither reads nor writes records".into()),
    };
    Ok(Outcome { bytes: text.len() as u64, ..outcome? })
}

/// Runs laps that write into the same memory. The output of all laps must have the same length.
fn again(
    load: &Load,
    bytes: usize,
    mut write: impl FnMut(Vec<u8>) -> Result<Vec<u8>, String>,
) -> Result<Outcome, String> {
    let mut room = Vec::with_capacity(bytes * 2);
    laps(load, || {
        whole(|| {
            room.clear();
            room = write(std::mem::take(&mut room))?;
            Ok(room.len() as u64)
        })
    })
}

/// Text of letters and spaces, for which the forms need no escapes.
fn words(seed: u64, bytes: usize) -> String {
    let letters = (0..).map(|i| unordered(seed, i)).flat_map(u64::to_le_bytes).map(|b| b % 27);
    letters.take(bytes).map(|b| if b == 26 { ' ' } else { char::from(b'a' + b) }).collect()
}

fn record(fields: Fields, i: u64) -> Result<Record, String> {
    let label = |kind, name| Label::new(kind, name).map_err(|e| e.to_string());
    let pairs = match fields {
        Fields::Small => vec![
            (label(Kind::Field, "A")?, Value::from(unordered(1, i) as i32)),
            (label(Kind::Field, "name")?, Value::from(&*words(i, 16))),
            (label(Kind::Tag, "T")?, Value::Tag((i % 100) as i32)),
        ],
        Fields::Text => vec![(label(Kind::Field, "text")?, Value::from(&*words(i, TEXT)))],
        Fields::Array => {
            let real = |j| (unordered(i, j) >> 11) as f64 / (1u64 << 53) as f64 + 1.0;
            let bytes: Vec<u8> = (0..ARRAY).flat_map(|j| real(j).to_ne_bytes()).collect();
            let array = Array::from_bytes(Element::Double, &bytes);
            vec![(label(Kind::Field, "numbers")?, Value::Array(Arc::new(array)))]
        }
    };
    Record::from_pairs(pairs).map_err(|e| e.to_string())
}

fn read(text: &[u8], format: Format) -> Result<u64, String> {
    let mut count = 0;
    for record in Reader::new(text, format) {
        black_box(record.map_err(|e| e.to_string())?);
        count += 1;
    }
    Ok(count)
}

fn write(records: &[Record], format: Format, room: Vec<u8>) -> Result<Vec<u8>, String> {
    let mut writer = Writer::new(room, format);
    for record in records {
        writer.write(record).map_err(|e| e.to_string())?;
    }
    writer.finish().map_err(|e| e.to_string())
}

type Object = serde_json::Map<String, serde_json::Value>;

/// A record as a map of serde_json. serde_json may read numbers with an error in the last bit, so
/// the bench does not compare them.
fn map(record: &Record) -> Object {
    let value = |value: &Value| match (value, value.as_str()) {
        (_, Some(text)) => text.into(),
        (Value::Tag(n), _) => (*n).into(),
        (Value::Array(array), _) => {
            let reals = array.bytes().as_chunks().0.iter().map(|bytes| f64::from_ne_bytes(*bytes));
            serde_json::json!({ "double": reals.collect::<Vec<f64>>() })
        }
        _ => serde_json::json!({ "int": value.integer().map(|n| n as i64) }),
    };
    record.iter().map(|(label, of_label)| (label.name().to_owned(), value(of_label))).collect()
}

/// Reads each record as a map.
fn count_maps(text: &[u8]) -> Result<u64, String> {
    let mut count = 0;
    for map in serde_json::Deserializer::from_slice(text).into_iter::<Object>() {
        black_box(map.map_err(|e| e.to_string())?);
        count += 1;
    }
    Ok(count)
}

fn write_maps(maps: &[Object], mut room: Vec<u8>) -> Result<Vec<u8>, String> {
    for map in maps {
        serde_json::to_writer(&mut room, map).map_err(|e| e.to_string())?;
        room.push(b'\n');
    }
    Ok(room)
}

/// Reads all events, and counts the records with data.
fn count_records(text: &str) -> Result<u64, String> {
    let mut reader = quick_xml::Reader::from_str(text);
    let mut count = 0;
    loop {
        match black_box(reader.read_event().map_err(|e| e.to_string())?) {
            Event::Start(start) if start.name().as_ref() == "record" => count += 1,
            Event::Eof => return Ok(count),
            _ => {}
        }
    }
}

fn events(text: &str) -> Result<Vec<Event<'static>>, String> {
    let mut reader = quick_xml::Reader::from_str(text);
    let mut events = Vec::new();
    loop {
        match reader.read_event().map_err(|e| e.to_string())? {
            Event::Eof => return Ok(events),
            event => events.push(event.into_owned()),
        }
    }
}

/// Writes events that were read, so no value is converted to text.
fn write_events(events: &[Event<'static>], room: Vec<u8>) -> Result<Vec<u8>, String> {
    let mut writer = quick_xml::Writer::new(room);
    for event in events {
        writer.write_event(event.borrow()).map_err(|e| e.to_string())?;
    }
    Ok(writer.into_inner())
}
