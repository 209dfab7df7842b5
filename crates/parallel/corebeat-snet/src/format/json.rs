//! Reader and writer of records as lines of JSON.
//!
//! The reader is written here, for the reasons on the front page of the module `format`.

mod text;
mod value;
mod write;

use std::io::Read;

use memchr::memchr;

use super::input::Input;
use super::memo::{Content, Draft, Step};
use super::{Invalid, ReadError, label, label_fits, number};
use crate::label::{Kind, Label};
pub(super) use write::{frame, write};

/// Key for the type of bytes in base64.
const BYTES: &str = "bytes";

/// Reads one record into the draft. Returns `false` at the end of the input.
pub(super) fn record<R: Read>(
    input: &mut Input<R>,
    draft: &mut Draft,
    lost: &mut bool,
    scratch: &mut Vec<u8>,
) -> Result<bool, ReadError> {
    while *lost {
        // Skip the rest of a line that was too long to buffer.
        let rest = input.rest();
        let end = memchr(b'\n', rest);
        *lost = end.is_none();
        input.pos += end.map_or(rest.len(), |i| i + 1);
        input.begin();
        if *lost && !input.fill()? {
            return Ok(false);
        }
    }
    loop {
        input.begin();
        let from = input.pos;
        let end = input.find(from, 0, |text| memchr(b'\n', text)).inspect_err(|_| *lost = true)?;
        // One line is one record. After an error, the next record begins on the next line.
        input.pos = end.map_or(input.end(), |i| i + 1);
        let text = input.from(from);
        let at = space(text, 0);
        if at < end.map_or(text.len(), |i| i - from) {
            draft.begin();
            return read(text, at, from, draft, scratch).map(|()| true);
        }
        if end.is_none() {
            return Ok(false);
        }
    }
}

/// Reads the record on the first line of `line`, whose position in the input is `base`. The bytes
/// after that line allow reads of whole words. Parsing never passes the end of the line, because a
/// line feed is neither white space nor expected anywhere.
fn read(
    line: &[u8],
    mut at: usize,
    base: usize,
    draft: &mut Draft,
    scratch: &mut Vec<u8>,
) -> Result<(), ReadError> {
    let syntax = |invalid: Invalid| invalid.at_offset(base);
    let mut first = true;
    loop {
        let step = match draft.follow(&line[at..]) {
            Some((len, step)) => {
                at += len;
                step
            }
            None => {
                let from = at;
                let step = markup(line, &mut at, first, base, draft, scratch)?;
                draft.learn(&line[from..at], step, line.get(at));
                step
            }
        };
        first = false;
        match step {
            Step::Value { label, content, plain } => {
                draft.label(label, plain);
                value::read(line, &mut at, content, draft, scratch).map_err(syntax)?;
            }
            Step::End | Step::Terminate => {
                let end = space(line, at);
                if !matches!(line.get(end), None | Some(b'\n')) {
                    let expected = "the end of the line after the record";
                    return Err(syntax(Invalid::expected(expected, line, end)));
                }
                return Ok(());
            }
        }
    }
}

/// Index of the first byte from `at` on that is not white space within the line.
#[inline(always)]
fn space(line: &[u8], at: usize) -> usize {
    if line.get(at).is_some_and(|b| *b > b' ') {
        return at;
    }
    at + line[at..].iter().take_while(|b| matches!(b, b' ' | b'\t' | b'\r')).count()
}

/// Skips white space, one of the `wanted` characters, and white space.
fn pass(line: &[u8], at: &mut usize, wanted: &[u8], expected: &str) -> Result<u8, Invalid> {
    *at = space(line, *at);
    match line.get(*at) {
        Some(b) if wanted.contains(b) => {
            *at = space(line, *at + 1);
            Ok(*b)
        }
        _ => Err(Invalid::expected(expected, line, *at)),
    }
}

/// Reads the markup from the start of the line, or from the end of a value, up to the next value or
/// the end of the record.
fn markup(
    line: &[u8],
    at: &mut usize,
    first: bool,
    base: usize,
    draft: &mut Draft,
    scratch: &mut Vec<u8>,
) -> Result<Step, ReadError> {
    let syntax = |invalid: Invalid| invalid.at_offset(base);
    if first {
        pass(line, at, b"{", "a record as in {\"A\": \"text\", \"T\": 1}").map_err(syntax)?;
        if line.get(*at) == Some(&b'}') {
            *at += 1;
            return Ok(Step::End);
        }
    } else {
        *at = space(line, *at);
        if line.get(*at) == Some(&b'}') {
            *at += 1;
            return Ok(Step::End);
        }
        pass(line, at, b",", "`,` or `}`").map_err(syntax)?;
    }
    let key_at = *at;
    if line.get(*at) != Some(&b'"') {
        return Err(syntax(Invalid::expected("a label in quotes", line, *at)));
    }
    *at += 1;
    let name = text::string(line, at, scratch).map_err(syntax)?.to_vec();
    let (kind, name) = match &name[..] {
        [b'<', b'#', name @ .., b'>'] => (Some(Kind::BindingTag), name),
        [b'<', name @ .., b'>'] => (Some(Kind::Tag), name),
        name => (None, name),
    };
    pass(line, at, b":", "`:`").map_err(syntax)?;
    let tag = line.get(*at).is_some_and(|b| b.is_ascii_digit() || *b == b'-');
    let tag_label = label(kind.unwrap_or(Kind::Tag), name, base + key_at)?;
    let field_label = label(Kind::Field, name, base + key_at)?;
    let (label, plain) = match (kind, tag) {
        (Some(_), true) => (tag_label, false),
        (Some(_), false) => {
            let expected = "a whole number from -2147483648 to 2147483647 as the value of a tag";
            return Err(syntax(Invalid::expected(expected, line, *at)));
        }
        (None, true) => (tag_label, true),
        (None, false) => (field_label, true),
    };
    let known = |&(other, other_plain): &(Label, bool)| {
        other == label || plain && other_plain && (other == tag_label || other == field_label)
    };
    if draft.labels().iter().any(known) {
        return Err(ReadError::duplicate(base + key_at, label));
    }
    label_fits(draft, base + key_at)?;
    let content = if tag { Content::Tag } else { typed(line, at, scratch).map_err(syntax)? };
    Ok(Step::Value { label, content, plain })
}

/// Reads the start of a field's value.
fn typed(line: &[u8], at: &mut usize, scratch: &mut Vec<u8>) -> Result<Content, Invalid> {
    match line.get(*at) {
        Some(b'"') => {
            *at += 1;
            Ok(Content::Text)
        }
        Some(b'{') => {
            *at = space(line, *at + 1);
            let from = *at;
            let bad = || {
                let expected =
                    "a type as in {\"int\": 5}, {\"double\": [1.5, 2]} or {\"bytes\": \"base64\"}";
                Invalid::expected(expected, line, from)
            };
            if line.get(*at) != Some(&b'"') {
                return Err(bad());
            }
            *at += 1;
            let name = text::string(line, at, scratch)?;
            let element = number::element(name);
            if element.is_none() && name != BYTES.as_bytes() {
                return Err(bad());
            }
            pass(line, at, b":", "`:`")?;
            match (element, line.get(*at)) {
                (None, Some(b'"')) => {
                    *at += 1;
                    Ok(Content::Bytes)
                }
                (None, _) => Err(Invalid::expected("bytes in base64 in quotes", line, *at)),
                (Some(element), Some(b'[')) => {
                    *at += 1;
                    Ok(Content::Many(element))
                }
                (Some(element), _) => Ok(Content::One(element)),
            }
        }
        _ => Err(Invalid::expected(
            "text in quotes, a whole number, or an object as in {\"int\": 5}",
            line,
            *at,
        )),
    }
}
