//! Writer of records as lines of JSON.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use super::super::{number, unwritable};
use super::BYTES;
use super::text::ordinary;
use super::value::is_real;
use crate::label::{Kind, Label};
use crate::value::{Element, Value};

/// Text before each value of a record with these labels, and text at the end of the record.
pub(in super::super) fn frame(labels: &[Label]) -> (Vec<Vec<u8>>, Vec<u8>) {
    let field = |name: &str| labels.iter().any(|l| l.kind() == Kind::Field && l.name() == name);
    let mut heads = Vec::new();
    for (i, label) in labels.iter().enumerate() {
        let key = match label.kind() {
            Kind::Tag if !field(label.name()) => label.name().into(),
            _ => label.to_string(),
        };
        heads.push(format!("{}\"{key}\":", if i == 0 { '{' } else { ',' }).into_bytes());
    }
    (heads, if labels.is_empty() { b"{}\n".to_vec() } else { b"}\n".to_vec() })
}

/// Writes a value.
///
/// # Errors
///
/// Returns the reason if the value has no text.
pub(in super::super) fn write(out: &mut Vec<u8>, value: &Value) -> Result<(), String> {
    match value {
        Value::Tag(n) => {
            out.extend_from_slice(itoa::Buffer::new().format(*n).as_bytes());
        }
        Value::Scalar(s) if s.element() != Element::Pointer => {
            head(out, s.element().name());
            write_one(out, s.element(), &s.bytes());
            out.push(b'}');
        }
        Value::Array(a) if a.element() == Element::UChar => {
            head(out, BYTES);
            out.push(b'"');
            let from = out.len();
            let len = a.len().div_ceil(3) * 4;
            out.resize(from + len, 0);
            BASE64_STANDARD
                .encode_slice(a.bytes(), &mut out[from..])
                .expect("the space is four characters for three bytes");
            out.extend_from_slice(b"\"}");
        }
        Value::Array(a) if a.element() != Element::Pointer => {
            if let Some(text) = value.as_str() {
                write_text(out, text);
                return Ok(());
            }
            head(out, a.element().name());
            let single = a.element() == Element::LongDouble && a.len() == 1;
            if !single {
                out.push(b'[');
            }
            for (i, bytes) in a.bytes().chunks_exact(a.element().size()).enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                write_one(out, a.element(), bytes);
            }
            out.extend_from_slice(if single { b"}" } else { b"]}" });
        }
        _ => return Err(unwritable(value)),
    }
    Ok(())
}

fn head(out: &mut Vec<u8>, name: &str) {
    out.extend_from_slice(b"{\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
}

/// Writes text in quotes. Text without special characters, the common case, is copied as a whole.
fn write_text(out: &mut Vec<u8>, text: &str) {
    if ordinary(text.as_bytes()).0 == text.len() {
        out.push(b'"');
        out.extend_from_slice(text.as_bytes());
        out.push(b'"');
    } else {
        serde_json::to_writer(out, text).expect("a write to memory does not fail");
    }
}

/// Writes a number, in quotes if JSON does not have the number.
fn write_one(out: &mut Vec<u8>, element: Element, bytes: &[u8]) {
    let from = out.len();
    number::write(out, element, bytes);
    if !number::is_whole(element) && !is_real(&out[from..]) {
        out.insert(from, b'"');
        out.push(b'"');
    }
}
