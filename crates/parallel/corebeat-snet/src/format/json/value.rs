//! Reader of values in JSON.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use super::super::memo::{Content, Draft};
use super::super::{Invalid, number, scalar};
use super::{pass, space, text};
use crate::value::{Array, Element, Value};

/// Reads a value. A value with a type includes its `}`.
pub(super) fn read(
    line: &[u8],
    at: &mut usize,
    content: Content,
    draft: &mut Draft,
    scratch: &mut Vec<u8>,
) -> Result<(), Invalid> {
    match content {
        Content::Tag => {
            let from = *at;
            let n = whole(line, at).and_then(|n| n.tag());
            let expected = "a whole number from -2147483648 to 2147483647 for a tag, \
                            or a field as in {\"double\": 1.5}";
            draft.push(Value::Tag(n.ok_or_else(|| Invalid::expected(expected, line, from))?));
            return Ok(());
        }
        Content::Text => {
            let text = text::string(line, at, scratch)?;
            draft.push(Value::Array(Array::from_bytes(Element::Char, text).into()));
            return Ok(());
        }
        Content::Bytes => {
            let from = *at;
            // Characters of base64 may be escaped (`\/`).
            let text = text::string(line, at, scratch)?;
            let bytes = BASE64_STANDARD.decode(text);
            let bytes =
                bytes.map_err(|e| Invalid { at: from, what: format!("expected base64: {e}") })?;
            draft.push(Value::bytes(&bytes));
        }
        Content::One(element) => draft.push(scalar(element, one(line, at, element)?)),
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
                        *at += 1; // the common case has no white space
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
        return Err(Invalid::expected("`}` after the value of a type", line, *at));
    }
    *at += 1;
    Ok(())
}

/// Reads the whole number at the start of `line[*at..]`. Returns `None` if it has a `+`, leading
/// zeros, a fraction or an exponent.
#[inline(always)]
fn whole(line: &[u8], at: &mut usize) -> Option<number::Whole> {
    if line.get(*at) == Some(&b'+') {
        return None;
    }
    let whole = number::whole(line, at).filter(number::Whole::is_json)?;
    (!matches!(line.get(*at), Some(b'.' | b'e' | b'E'))).then_some(whole)
}

/// Reads one element.
#[inline(always)]
fn one(line: &[u8], at: &mut usize, element: Element) -> Result<number::Bytes, Invalid> {
    let from = *at;
    let bad = || Invalid::expected(number::expected(element), line, from);
    if number::is_whole(element) {
        return whole(line, at).and_then(|whole| number::integer(element, &whole)).ok_or_else(bad);
    }
    if line.get(from) == Some(&b'"') {
        // Numbers that JSON does not have: "inf", "nan", and the bits of a long double.
        let len = text::ordinary(&line[from + 1..]).0;
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

/// Whether the text may begin with a JSON number, `-? (0 | 1-9 0-9*) (. 0-9+)? ([eE] [+-]? 0-9+)?`.
/// This function checks only the parts for which the number parser is less strict.
#[inline(always)]
pub(super) fn is_real(text: &[u8]) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Index of the end of a JSON number, by a straightforward parser.
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
    fn every_short_text_is_a_real_number_exactly_if_json_has_it() {
        const CHARACTERS: &[u8] = b"-+01.eE,xn";
        const LEN: u32 = 5;
        for n in 0..CHARACTERS.len().pow(LEN) {
            let text: Vec<u8> = (0..LEN)
                .map(|i| CHARACTERS[n / CHARACTERS.len().pow(i) % CHARACTERS.len()])
                .collect();
            // A text with another character after the number is either refused here or by the
            // caller.
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
