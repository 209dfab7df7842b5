//! Records as lines of JSON.

use std::io::Read;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use memchr::memchr;

use super::input::Input;
use super::memo::{Content, Draft, Step};
use super::{Bad, Stop, label, label_fits, number};
use crate::label::{Kind, Label};
use crate::value::{Array, Element, Value};

/// What stands for the type of bytes in base64.
const BYTES: &str = "bytes";

/// Reads one record into the draft; `false` at the end.
pub(super) fn record<R: Read>(
    input: &mut Input<R>,
    draft: &mut Draft,
    lost: &mut bool,
    scratch: &mut Vec<u8>,
) -> Result<bool, Stop> {
    while *lost {
        // The rest of a line that was too long to be kept.
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
        // One line is one record: whatever becomes of this one, the next begins behind it.
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

/// Reads the record on the first line of `line`, which stands at `base` in the input. What is behind that line is there because
/// whole words are read faster than single bytes; nothing goes over a line's end, which is neither white space nor anything
/// else that is expected.
fn read(
    line: &[u8],
    mut at: usize,
    base: usize,
    draft: &mut Draft,
    scratch: &mut Vec<u8>,
) -> Result<(), Stop> {
    let syntax = |bad: Bad| Stop::syntax(base + bad.at, bad.what);
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
                value(line, &mut at, content, draft, scratch).map_err(syntax)?;
            }
            Step::End | Step::Terminate => {
                let end = space(line, at);
                if !matches!(line.get(end), None | Some(b'\n')) {
                    return Err(syntax(Bad::expected("the end of the line behind the record", line, end)));
                }
                return Ok(());
            }
        }
    }
}

/// Past white space, but for the end of the line.
#[inline(always)]
fn space(line: &[u8], at: usize) -> usize {
    if line.get(at).is_some_and(|b| *b > b' ') {
        return at;
    }
    at + line[at..].iter().take_while(|b| matches!(b, b' ' | b'\t' | b'\r')).count()
}

/// Goes past white space, one of these characters, and white space again.
fn pass(line: &[u8], at: &mut usize, wanted: &[u8], expected: &str) -> Result<u8, Bad> {
    *at = space(line, *at);
    match line.get(*at) {
        Some(b) if wanted.contains(b) => {
            *at = space(line, *at + 1);
            Ok(*b)
        }
        _ => Err(Bad::expected(expected, line, *at)),
    }
}

/// Reads from the line's first character, or from behind a value, to the next value or the record's end.
fn markup(
    line: &[u8],
    at: &mut usize,
    first: bool,
    base: usize,
    draft: &mut Draft,
    scratch: &mut Vec<u8>,
) -> Result<Step, Stop> {
    let syntax = |bad: Bad| Stop::syntax(base + bad.at, bad.what);
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
        return Err(syntax(Bad::expected("a label in quotes", line, *at)));
    }
    *at += 1;
    let name = string(line, at, scratch).map_err(syntax)?.to_vec();
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
            return Err(syntax(Bad::expected(expected, line, *at)));
        }
        (None, true) => (tag_label, true),
        (None, false) => (field_label, true),
    };
    let known = |&(other, other_plain): &(Label, bool)| {
        other == label || plain && other_plain && (other == tag_label || other == field_label)
    };
    if draft.labels().iter().any(known) {
        return Err(Stop::syntax(base + key_at, format!("{label} was given before in this record")));
    }
    label_fits(draft, base + key_at)?;
    let content = if tag { Content::Tag } else { typed(line, at, scratch).map_err(syntax)? };
    Ok(Step::Value { label, content, plain })
}

/// Reads how a field's value begins.
fn typed(line: &[u8], at: &mut usize, scratch: &mut Vec<u8>) -> Result<Content, Bad> {
    match line.get(*at) {
        Some(b'"') => {
            *at += 1;
            Ok(Content::Text)
        }
        Some(b'{') => {
            *at = space(line, *at + 1);
            let from = *at;
            let bad = || {
                let expected = "a type as in {\"int\": 5}, {\"double\": [1.5, 2]} or {\"bytes\": \"base64\"}";
                Bad::expected(expected, line, from)
            };
            if line.get(*at) != Some(&b'"') {
                return Err(bad());
            }
            *at += 1;
            let name = string(line, at, scratch)?;
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
                (None, _) => Err(Bad::expected("bytes in base64, in quotes", line, *at)),
                (Some(element), Some(b'[')) => {
                    *at += 1;
                    Ok(Content::Many(element))
                }
                (Some(element), _) => Ok(Content::One(element)),
            }
        }
        _ => {
            Err(Bad::expected("a text in quotes, a whole number, or an object as in {\"int\": 5}", line, *at))
        }
    }
}

/// Reads a value; of one with its type, all through its `}`.
fn value(
    line: &[u8],
    at: &mut usize,
    content: Content,
    draft: &mut Draft,
    scratch: &mut Vec<u8>,
) -> Result<(), Bad> {
    match content {
        Content::Tag => {
            let from = *at;
            let n = whole(line, at).and_then(|n| n.tag());
            let expected =
                "a whole number from -2147483648 to 2147483647 for a tag, or a field as in {\"double\": 1.5}";
            draft.push(Value::Tag(n.ok_or_else(|| Bad::expected(expected, line, from))?));
            return Ok(());
        }
        Content::Text => {
            let text = string(line, at, scratch)?;
            draft.push(Value::Array(Array::from_bytes(Element::Char, text).into()));
            return Ok(());
        }
        Content::Bytes => {
            let from = *at;
            // Nothing of base64 must be escaped, but it may be (`\/`).
            let text = string(line, at, scratch)?;
            let bytes = BASE64_STANDARD.decode(text);
            let bytes = bytes.map_err(|e| Bad { at: from, what: format!("expected base64: {e}") })?;
            draft.push(Value::bytes(&bytes));
        }
        Content::One(element) => draft.push(super::scalar(element, one(line, at, element)?)),
        Content::Many(element) => {
            scratch.clear();
            *at = space(line, *at);
            if line.get(*at) == Some(&b']') {
                *at += 1;
            } else {
                loop {
                    let bytes = one(line, at, element)?;
                    number::push(scratch, bytes, element.size());
                    if let Some([b',', next]) = line.get(*at..*at + 2)
                        && *next > b' '
                    {
                        *at += 1; // without white space, as a rule
                        continue;
                    }
                    if pass(line, at, b",]", "`,` or `]`")? == b']' {
                        break;
                    }
                }
            }
            draft.push(Value::Array(Array::from_bytes(element, scratch).into()));
        }
        Content::Zero | Content::Plain => unreachable!("JSON has no such values"),
    }
    *at = space(line, *at);
    if line.get(*at) != Some(&b'}') {
        return Err(Bad::expected("`}` behind the value of a type", line, *at));
    }
    *at += 1;
    Ok(())
}

/// The whole number at the front of `line[*at..]`, if it is one of JSON: without `+`, without zeros in front, no real number.
#[inline(always)]
fn whole(line: &[u8], at: &mut usize) -> Option<number::Whole> {
    if line.get(*at) == Some(&b'+') {
        return None;
    }
    let whole = number::whole(line, at).filter(number::Whole::is_json)?;
    (!matches!(line.get(*at), Some(b'.' | b'e' | b'E'))).then_some(whole)
}

/// Reads an element.
#[inline(always)]
fn one(line: &[u8], at: &mut usize, element: Element) -> Result<number::Bytes, Bad> {
    let from = *at;
    let bad = || Bad::expected(number::expected(element), line, from);
    if number::is_whole(element) {
        return whole(line, at).and_then(|whole| number::integer(element, &whole)).ok_or_else(bad);
    }
    if line.get(from) == Some(&b'"') {
        // What JSON has no number for: "inf", "nan", and the bits of a long double.
        let len = ordinary(&line[from + 1..]).0;
        if line.get(from + 1 + len) != Some(&b'"') {
            return Err(bad());
        }
        *at += len + 2;
        let text = &line[from + 1..from + 1 + len];
        let hexadecimal = text.starts_with(b"0x") || text.starts_with(b"-0x");
        let word = text.strip_prefix(b"-").unwrap_or(text);
        if hexadecimal || word == b"inf" || word == b"nan" {
            let real = number::real(element, text).filter(|(_, len)| *len == text.len());
            return real.map(|(bytes, _)| bytes).ok_or_else(bad);
        }
        return Err(bad());
    }
    let text = &line[from..];
    if !is_real(text) {
        return Err(bad());
    }
    let (bytes, len) = number::real(element, text).ok_or_else(bad)?;
    *at += len;
    if matches!(line.get(*at), Some(b'.' | b'e' | b'E')) { Err(bad()) } else { Ok(bytes) }
}

/// Whether a number of JSON may be here: `-? (0 | 1-9 0-9*) (. 0-9+)? ([eE] [+-]? 0-9+)?`, of which this looks at what is read more
/// freely elsewhere.
#[inline(always)]
fn is_real(text: &[u8]) -> bool {
    let text = text.strip_prefix(b"-").unwrap_or(text);
    let whole = number::digits(text);
    let one_zero = whole == 1 || text.first() != Some(&b'0');
    whole > 0
        && one_zero
        && match text.get(whole) {
            Some(b'.') => text.get(whole + 1).is_some_and(u8::is_ascii_digit),
            next => !matches!(next, Some(b'x' | b'X')),
        }
}

/// How far text goes without a quote, a backslash or a control character, eight bytes at a time; and whether all before is
/// ASCII.
fn ordinary(text: &[u8]) -> (usize, bool) {
    const ONES: u64 = u64::MAX / 255;
    const TOPS: u64 = ONES << 7;
    const QUOTES: u64 = ONES * b'"' as u64;
    const BACKSLASHES: u64 = ONES * b'\\' as u64;
    // The lowest top bit that is set marks a byte that is 0; those above it may err.
    let zero = |x: u64| x.wrapping_sub(ONES) & !x;
    let (words, rest) = text.as_chunks();
    let mut tops = 0;
    for (i, word) in words.iter().enumerate() {
        let x = u64::from_le_bytes(*word);
        let control = x.wrapping_sub(ONES * 0x20) & !x;
        let special = (control | zero(x ^ QUOTES) | zero(x ^ BACKSLASHES)) & TOPS;
        if special != 0 {
            let before = special.trailing_zeros() & !7;
            tops |= x & ((1 << before) - 1);
            return (8 * i + before as usize / 8, tops & TOPS == 0);
        }
        tops |= x;
    }
    let rest = &rest[..rest.iter().take_while(|b| !matches!(b, b'"' | b'\\' | 0..0x20)).count()];
    (8 * words.len() + rest.len(), tops & TOPS == 0 && rest.is_ascii())
}

/// Text that must be UTF-8, and stands at `at`.
fn utf8(text: &[u8], at: usize) -> Result<(), Bad> {
    let bad = |e: std::str::Utf8Error| {
        let what = "expected text in UTF-8, found another byte";
        Bad { at: at + e.valid_up_to(), what: what.into() }
    };
    std::str::from_utf8(text).map(|_| ()).map_err(bad)
}

/// Reads a string from behind its first quote through its last one.
fn string<'a>(line: &'a [u8], at: &mut usize, scratch: &'a mut Vec<u8>) -> Result<&'a [u8], Bad> {
    let mut from = *at;
    scratch.clear();
    loop {
        let (len, ascii) = ordinary(&line[from..]);
        let piece = &line[from..from + len];
        if !ascii {
            utf8(piece, from)?;
        }
        let to = from + len;
        match line.get(to) {
            Some(b'"') => {
                *at = to + 1;
                if scratch.is_empty() {
                    return Ok(piece);
                }
                scratch.extend_from_slice(piece);
                return Ok(scratch);
            }
            Some(b'\\') => {
                scratch.extend_from_slice(piece);
                from = escape(line, to, scratch)?;
            }
            _ => return Err(Bad::expected("a text's closing quote, or an escape as in \\n", line, to)),
        }
    }
}

/// Reads what stands behind a backslash; where it ends.
fn escape(line: &[u8], at: usize, out: &mut Vec<u8>) -> Result<usize, Bad> {
    let unit = |at: usize| {
        let digits = line.get(at..at + 6)?.strip_prefix(b"\\u")?;
        digits.iter().try_fold(0, |n, b| Some(n << 4 | (*b as char).to_digit(16)?))
    };
    out.push(match line.get(at + 1) {
        Some(b @ (b'"' | b'\\' | b'/')) => *b,
        Some(b'b') => 8,
        Some(b't') => b'\t',
        Some(b'n') => b'\n',
        Some(b'f') => 12,
        Some(b'r') => b'\r',
        Some(b'u') => {
            let (c, end) = match (unit(at), unit(at + 6)) {
                (Some(high @ 0xd800..0xdc00), Some(low @ 0xdc00..0xe000)) => {
                    (char::from_u32(0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00)), at + 12)
                }
                (Some(code), _) => (char::from_u32(code), at + 6),
                (None, _) => (None, at),
            };
            let Some(c) = c else {
                return Err(Bad::expected(
                    "four hexadecimal digits of a character (or of two halves)",
                    line,
                    at,
                ));
            };
            out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            return Ok(end);
        }
        _ => return Err(Bad::expected("one of \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\u", line, at)),
    });
    Ok(at + 2)
}

/// What stands before the values of a shape's labels, and at the end.
pub(super) fn frame(labels: &[Label]) -> (Vec<Vec<u8>>, &'static [u8]) {
    let field = |name: &str| labels.iter().any(|l| l.kind() == Kind::Field && l.name() == name);
    let mut heads = Vec::new();
    for (i, label) in labels.iter().enumerate() {
        let key = match label.kind() {
            Kind::Tag if !field(label.name()) => label.name().into(),
            _ => label.to_string(),
        };
        heads.push(format!("{}\"{key}\":", if i == 0 { '{' } else { ',' }).into_bytes());
    }
    (heads, if labels.is_empty() { b"{}\n" } else { b"}\n" })
}

/// Writes a value.
pub(super) fn write(out: &mut Vec<u8>, label: Label, value: &Value) -> Result<(), String> {
    match (value, label.kind()) {
        (Value::Tag(n), Kind::Tag | Kind::BindingTag) => {
            out.extend_from_slice(itoa::Buffer::new().format(*n).as_bytes());
        }
        (Value::Scalar(s), Kind::Field) if s.element() != Element::Pointer => {
            head(out, s.element().name());
            write_one(out, s.element(), &s.bytes());
            out.push(b'}');
        }
        (Value::Array(a), Kind::Field) if a.element() == Element::UChar => {
            head(out, BYTES);
            out.push(b'"');
            let from = out.len();
            let len = a.len().div_ceil(3) * 4;
            out.resize(from + len, 0);
            BASE64_STANDARD
                .encode_slice(a.bytes(), &mut out[from..])
                .expect("base64 has four characters for three bytes");
            out.extend_from_slice(b"\"}");
        }
        (Value::Array(a), Kind::Field) if a.element() != Element::Pointer => {
            if let Some(text) = value.as_str() {
                write_text(out, text.as_bytes());
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
        _ => return Err(super::unwritable(value)),
    }
    Ok(())
}

fn head(out: &mut Vec<u8>, name: &str) {
    out.extend_from_slice(b"{\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
}

/// Writes a number, in quotes if JSON has none like it.
fn write_one(out: &mut Vec<u8>, element: Element, bytes: &[u8]) {
    let from = out.len();
    number::write(out, element, bytes);
    if !number::is_whole(element) && !is_real(&out[from..]) {
        out.insert(from, b'"');
        out.push(b'"');
    }
}

fn write_text(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    let mut at = 0;
    loop {
        let to = at + ordinary(&text[at..]).0;
        out.extend_from_slice(&text[at..to]);
        let Some(&b) = text.get(to) else { break };
        match b {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            b => out.extend_from_slice(format!("\\u{b:04x}").as_bytes()),
        }
        at = to + 1;
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where a number of JSON ends, byte by byte.
    fn number_end(text: &[u8]) -> Option<usize> {
        let digits = |at: usize| {
            let n = text[at..].iter().take_while(|b| b.is_ascii_digit()).count();
            (n > 0).then_some(at + n)
        };
        let first = usize::from(text.first() == Some(&b'-'));
        let mut at = digits(first)?;
        if text[first] == b'0' && at > first + 1 {
            return None;
        }
        if text.get(at) == Some(&b'.') {
            at = digits(at + 1)?;
        }
        if let Some(b'e' | b'E') = text.get(at) {
            at = digits(at + 1 + usize::from(matches!(text.get(at + 1), Some(b'+' | b'-'))))?;
        }
        Some(at)
    }

    #[test]
    fn real_number_of_few_characters_is_read_as_json_has_it() {
        const CHARACTERS: &[u8] = b"-+01.eE,xn";
        const LEN: u32 = 5;
        for n in 0..CHARACTERS.len().pow(LEN) {
            let text: Vec<u8> =
                (0..LEN).map(|i| CHARACTERS[n / CHARACTERS.len().pow(i) % CHARACTERS.len()]).collect();
            // What may not follow a number makes it none here, or is found by whoever reads on.
            let wanted = number_end(&text).filter(|&at| matches!(text.get(at), None | Some(b',')));
            for element in [Element::Double, Element::LongDouble] {
                let mut at = 0;
                let read = one(&text, &mut at, element).is_ok();
                let end = (read && matches!(text.get(at), None | Some(b','))).then_some(at);
                assert_eq!(end, wanted, "{} {element:?}", String::from_utf8_lossy(&text));
            }
        }
    }
}
