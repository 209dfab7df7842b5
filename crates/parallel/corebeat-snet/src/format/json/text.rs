//! Reader of strings in JSON.

use super::Invalid;

/// Number of bytes before the first quote, backslash or control character, found eight bytes at a
/// time, and whether all those bytes are ASCII.
pub(super) fn ordinary(text: &[u8]) -> (usize, bool) {
    const ONES: u64 = u64::MAX / 255;
    const TOPS: u64 = ONES << 7;
    const QUOTES: u64 = ONES * b'"' as u64;
    const BACKSLASHES: u64 = ONES * b'\\' as u64;
    // The lowest top bit that is set marks a byte of 0. Higher bits may be wrong.
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

/// Checks that text at offset `at` is UTF-8.
fn utf8(text: &[u8], at: usize) -> Result<(), Invalid> {
    let invalid = |e: std::str::Utf8Error| {
        let what = "expected UTF-8, found another byte";
        Invalid { at: at + e.valid_up_to(), what: what.into() }
    };
    std::str::from_utf8(text).map(|_| ()).map_err(invalid)
}

/// Reads the rest of a string after its opening quote, including its closing quote.
pub(super) fn string<'a>(
    line: &'a [u8],
    at: &mut usize,
    scratch: &'a mut Vec<u8>,
) -> Result<&'a [u8], Invalid> {
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
            _ => {
                return Err(Invalid::expected("a closing quote, or an escape as in \\n", line, to));
            }
        }
    }
}

/// Reads an escape at its backslash. Returns the index of its end.
fn escape(line: &[u8], at: usize, out: &mut Vec<u8>) -> Result<usize, Invalid> {
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
                return Err(Invalid::expected(
                    "four hexadecimal digits of a character (or of a surrogate pair)",
                    line,
                    at,
                ));
            };
            out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            return Ok(end);
        }
        _ => {
            return Err(Invalid::expected(
                "one of \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\u",
                line,
                at,
            ));
        }
    });
    Ok(at + 2)
}
