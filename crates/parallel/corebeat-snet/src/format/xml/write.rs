//! Writer of records as XML.

use quick_xml::Writer;
use quick_xml::escape::minimal_escape;
use quick_xml::events::{BytesEnd, BytesStart, Event};

use super::super::{number, unwritable};
use super::{INTERFACE, element_name};
use crate::label::{Kind, Label};
use crate::value::{Element, Value};

/// Last record of an output.
pub(in super::super) const END: &[u8] = b"<record type=\"terminate\"/>\n";

fn markup(event: Event<'_>) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new());
    writer.write_event(event).expect("a write to memory does not fail");
    writer.into_inner()
}

/// Markup before each value of a record with these labels, and markup at the end of the record.
pub(in super::super) fn frame(labels: &[Label]) -> (Vec<Vec<u8>>, Vec<u8>) {
    let record = BytesStart::new("record").with_attributes([
        ("type", "data"),
        ("mode", "textual"),
        ("interface", INTERFACE),
    ]);
    let mut before = markup(Event::Start(record));
    let mut heads = Vec::new();
    for label in labels {
        let start =
            BytesStart::new(element_name(label.kind())).with_attributes([("label", label.name())]);
        before.extend(markup(Event::Start(start)));
        heads.push(std::mem::take(&mut before));
    }
    let mut end = before; // the start tag, if the record has no label
    end.extend(markup(Event::End(BytesEnd::new("record"))));
    end.push(b'\n');
    (heads, end)
}

/// Writes a value and the end tag of its element.
///
/// # Errors
///
/// Returns the reason if the value has no text.
pub(in super::super) fn write(
    out: &mut Vec<u8>,
    label: Label,
    value: &Value,
) -> Result<(), String> {
    match value {
        Value::Tag(n) => {
            out.extend_from_slice(itoa::Buffer::new().format(*n).as_bytes());
        }
        Value::Scalar(s) if s.element() != Element::Pointer => {
            typed(out, s.element(), &s.bytes()[..s.element().size()], None);
        }
        Value::Array(a) if a.element() != Element::Pointer => {
            let single = a.element() == Element::LongDouble && a.len() == 1;
            typed(out, a.element(), a.bytes(), (!single).then_some(a.len()));
        }
        _ => return Err(unwritable(value)),
    }
    out.extend_from_slice(match label.kind() {
        Kind::Field => b"</field>",
        Kind::Tag => b"</tag>",
        Kind::BindingTag => b"</btag>",
    });
    Ok(())
}

/// Writes `(TYPE)value`, or `(TYPE[count])value,value,...`.
fn typed(out: &mut Vec<u8>, element: Element, bytes: &[u8], count: Option<usize>) {
    out.push(b'(');
    out.extend_from_slice(element.name().as_bytes());
    if let Some(n) = count {
        out.push(b'[');
        out.extend_from_slice(itoa::Buffer::new().format(n).as_bytes());
        out.push(b']');
    }
    out.push(b')');
    if matches!(element, Element::Char | Element::UChar) {
        characters(out, bytes);
        return;
    }
    for (i, bytes) in bytes.chunks_exact(element.size()).enumerate() {
        if i > 0 {
            out.push(b',');
        }
        number::write(out, element, bytes);
    }
}

/// Writes `b,b,...`.
fn characters(out: &mut Vec<u8>, bytes: &[u8]) {
    out.reserve(2 * bytes.len());
    for (i, b) in bytes.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        match b {
            b'<' | b'&' => escape(out, *b),
            b' '..=b'~' => out.push(*b),
            // XML has no way to write a byte; the format defines the reference as the byte's value.
            _ => {
                out.extend_from_slice(b"&#");
                out.extend_from_slice(itoa::Buffer::new().format(*b).as_bytes());
                out.push(b';');
            }
        }
    }
}

#[cold]
fn escape(out: &mut Vec<u8>, b: u8) {
    out.extend_from_slice(minimal_escape(char::from(b).to_string()).as_bytes());
}
