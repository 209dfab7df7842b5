//! Reader of values in XML.
//!
//! These functions work on bytes, because a `char` or an `unsigned char` may be any byte.

use memchr::memchr;
use quick_xml::escape::resolve_xml_entity;

use super::super::memo::{Content, Draft};
use super::super::{Invalid, found, number, scalar};
use super::{REFERENCES, is_space, space};
use crate::value::{Array, Element, Scalar, Value};

/// Reads a value from its text, `all[..end]`. `all[end]` is the `<` that ends the text; the bytes
/// after it allow reads of whole words.
pub(super) fn read(
    all: &[u8],
    end: usize,
    content: Content,
    draft: &mut Draft,
    scratch: &mut Vec<u8>,
) -> Result<(), Invalid> {
    let text = &all[..end];
    scratch.clear();
    match content {
        Content::Tag => {
            let from = space(text, 0);
            if from == end {
                draft.push(Value::Tag(0)); // as in S-Net's first run-time system
                return Ok(());
            }
            let mut at = from;
            let n = number::whole(all, &mut at)
                .filter(|_| space(text, at) == end)
                .and_then(|n| n.tag());
            let expected = "a whole number from -2147483648 to 2147483647";
            draft.push(Value::Tag(n.ok_or_else(|| Invalid::expected(expected, text, from))?));
        }
        Content::Plain => {
            plain(text, scratch)?;
            draft.push(Value::Array(Array::from_bytes(Element::Char, scratch).into()));
        }
        Content::One(element @ (Element::Char | Element::UChar)) => {
            let mut at = 0;
            let byte = character(text, &mut at, element)?;
            if at < end {
                return Err(Invalid::expected("a single character", text, at));
            }
            draft.push(Value::Scalar(Scalar::new(element, [byte, 0, 0, 0, 0, 0, 0, 0])));
        }
        Content::One(element) => {
            let mut at = 0;
            let bytes = one(all, end, &mut at, element)?;
            if at < end {
                return Err(Invalid::expected("a single number", text, at));
            }
            draft.push(scalar(element, bytes));
        }
        Content::Many(element) => draft.push(many(all, end, element, scratch)?),
        Content::Zero | Content::Text | Content::Bytes => unreachable!("XML has no such values"),
    }
    Ok(())
}

/// Reads `N])element,element,...`.
fn many(all: &[u8], end: usize, element: Element, scratch: &mut Vec<u8>) -> Result<Value, Invalid> {
    let text = &all[..end];
    let mut at = 0;
    let wanted = count(text, &mut at)?;
    let from = at;
    if matches!(element, Element::Char | Element::UChar) {
        characters(text, &mut at, element, scratch)?;
    } else if space(text, at) < end {
        loop {
            let bytes = one(all, end, &mut at, element)?;
            number::push(scratch, bytes, element.size());
            if at == end {
                break;
            }
            if text[at] != b',' {
                return Err(Invalid::expected("`,` or the end of the field", text, at));
            }
            at += 1;
        }
    }
    let count = scratch.len() / element.size();
    if count as u64 != wanted {
        let what = format!("expected {wanted} values, found {count}");
        return Err(Invalid { at: from, what });
    }
    Ok(Value::Array(Array::from_bytes(element, scratch).into()))
}

/// Reads `N])`.
fn count(text: &[u8], at: &mut usize) -> Result<u64, Invalid> {
    let digits = text.iter().take_while(|b| b.is_ascii_digit()).count();
    let count = std::str::from_utf8(&text[..digits]).ok().and_then(|n| n.parse().ok());
    *at = digits + 2;
    match count {
        Some(count) if text[digits..].starts_with(b"])") => Ok(count),
        _ => Err(Invalid::expected(
            "the number of values as in `(int[3])`",
            text,
            if count.is_some() { digits } else { 0 },
        )),
    }
}

/// Reads a number and the white space around it.
#[inline(always)]
fn one(all: &[u8], end: usize, at: &mut usize, element: Element) -> Result<number::Bytes, Invalid> {
    let text = &all[..end];
    let from = space(text, *at);
    *at = from;
    let bytes = if number::is_whole(element) {
        number::whole(all, at).and_then(|whole| number::integer(element, &whole))
    } else {
        number::real(element, &text[from..]).and_then(|(bytes, len)| {
            *at += len;
            text.get(*at).is_none_or(|b| *b == b',' || is_space(*b)).then_some(bytes)
        })
    };
    *at = space(text, *at);
    bytes.ok_or_else(|| Invalid::expected(number::expected(element), text, from))
}

/// Reads one character. A reference denotes one byte.
fn character(text: &[u8], at: &mut usize, element: Element) -> Result<u8, Invalid> {
    match text.get(*at) {
        None => Err(Invalid::expected("a character", text, *at)),
        Some(b'&') => {
            let from = *at;
            let code = reference(text, at)?;
            u8::try_from(code).map_err(|_| {
                let what = format!(
                    "{} is not a single byte: use &#0; to &#255; for {}",
                    found(&text[from..]),
                    element.name()
                );
                Invalid { at: from, what }
            })
        }
        Some(b) => {
            *at += 1;
            Ok(*b)
        }
    }
}

/// Reads characters that are separated by commas.
fn characters(
    text: &[u8],
    at: &mut usize,
    element: Element,
    out: &mut Vec<u8>,
) -> Result<(), Invalid> {
    out.reserve((text.len() - *at) / 2 + 1);
    // Before the first reference, every second byte is a comma.
    let raw = &text[*at..memchr(b'&', text).unwrap_or(text.len())];
    let pairs = raw.chunks_exact(2);
    let whole = pairs.len();
    let mut commas = true;
    out.extend(pairs.map(|pair| {
        commas &= pair[1] == b',';
        pair[0]
    }));
    if commas {
        *at += 2 * whole;
        if *at == text.len() && whole == 0 {
            return Ok(());
        }
    } else {
        out.clear();
    }
    loop {
        out.push(character(text, at, element)?);
        match text.get(*at) {
            None => return Ok(()),
            Some(b',') => *at += 1,
            Some(_) => return Err(Invalid::expected("`,` or the end of the field", text, *at)),
        }
    }
}

/// Copies text and replaces references by their characters.
fn plain(text: &[u8], out: &mut Vec<u8>) -> Result<(), Invalid> {
    let mut at = 0;
    while let Some(i) = memchr(b'&', &text[at..]) {
        out.extend_from_slice(&text[at..at + i]);
        at += i;
        let from = at;
        let c = char::from_u32(reference(text, &mut at)?)
            .ok_or_else(|| Invalid::expected("a reference to a character", text, from))?;
        out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
    }
    out.extend_from_slice(&text[at..]);
    Ok(())
}

/// Reads `&name;`, `&#N;` or `&#xH;`. Numbers are not left to quick-xml, because it refuses `&#0;`,
/// which the writer needs for bytes of 0.
fn reference(text: &[u8], at: &mut usize) -> Result<u32, Invalid> {
    /// Longest reference that is read.
    const NAME_MAX: usize = 12;
    let invalid = || Invalid::expected(REFERENCES, text, *at);
    let rest = &text[*at + 1..];
    let end = rest.iter().take(NAME_MAX).position(|b| *b == b';').ok_or_else(invalid)?;
    let name = std::str::from_utf8(&rest[..end]).map_err(|_| invalid())?;
    let digits = |digits: &str, radix| {
        u32::from_str_radix(digits, radix).ok().filter(|_| !digits.starts_with('+'))
    };
    let code = match name.strip_prefix('#') {
        Some(number) => match number.strip_prefix('x') {
            Some(number) => digits(number, 16),
            None => digits(number, 10),
        },
        None => resolve_xml_entity(name).and_then(|c| c.chars().next()).map(u32::from),
    };
    let code = code.ok_or_else(invalid)?;
    *at += end + 2;
    Ok(code)
}
