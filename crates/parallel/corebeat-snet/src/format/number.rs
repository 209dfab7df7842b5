//! Numbers as text, for every C type.

use super::long_double;
use crate::value::Element;

/// Bytes of one element of any type, which begin at index 0.
pub(super) type Bytes = [u8; 16];

/// Whole number in a text: its sign, and its magnitude if it fits into 64 bits.
pub(super) struct Whole {
    negative: bool,
    magnitude: Option<u64>,
    /// Whether there are leading zeros.
    padded: bool,
}

impl Whole {
    /// Returns the number as the value of a tag.
    pub(super) fn tag(&self) -> Option<i32> {
        let n = i64::try_from(self.magnitude?).ok()?;
        i32::try_from(if self.negative { -n } else { n }).ok()
    }

    /// Whether JSON allows this notation.
    pub(super) fn is_json(&self) -> bool {
        !self.padded
    }
}

/// Number of digits at the start of eight bytes.
#[inline(always)]
fn digits_of_eight(x: u64) -> usize {
    const ZEROS: u64 = ONES * b'0' as u64;
    // A digit is 0x30 to 0x39: its high half is 3, and stays 3 after an addition of 6. (A carry
    // changes only bytes after a byte that is not a digit.)
    let other = ((x ^ ZEROS) | (x.wrapping_add(ONES * 6) ^ ZEROS)) & HIGH;
    other.trailing_zeros() as usize / 8
}

const ONES: u64 = u64::MAX / 255;
const HIGH: u64 = ONES * 0xf0;

/// First eight bytes of a text, padded with zeros.
#[inline(always)]
fn front(text: &[u8]) -> u64 {
    u64::from_le_bytes(text.first_chunk().copied().unwrap_or_else(|| {
        let mut front = [0; 8];
        front[..text.len()].copy_from_slice(text);
        front
    }))
}

/// Number of digits at the start of a text.
#[inline(always)]
pub(super) fn digits(text: &[u8]) -> usize {
    let mut end = 0;
    loop {
        let len = digits_of_eight(front(&text[end..]));
        end += len;
        if len < 8 {
            return end;
        }
    }
}

/// Number of digits at the start of eight bytes, and the value of these digits.
#[inline(always)]
fn eight(x: u64) -> (usize, u64) {
    let len = digits_of_eight(x);
    // Pad with leading zeros, then combine pairs, fours and all eight digits.
    let x = x.checked_shl(64 - 8 * len as u32).unwrap_or(0) & !HIGH;
    let x = (x * 10 + (x >> 8)) & 0x00ff_00ff_00ff_00ff;
    let x = (x * 100 + (x >> 16)) & 0x0000_ffff_0000_ffff;
    (len, (x * 10_000 + (x >> 32)) & 0xffff_ffff)
}

/// Reads the whole number at the start of `text[*at..]`. Returns `None` if there is no digit.
#[inline(always)]
pub(super) fn whole(text: &[u8], at: &mut usize) -> Option<Whole> {
    /// Every number of this many digits fits into 64 bits.
    const DIGITS_SAFE: usize = 19;
    const TENS: [u64; 9] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];
    let negative = text.get(*at) == Some(&b'-');
    let first = *at + usize::from(negative || text.get(*at) == Some(&b'+'));
    let mut end = first;
    let mut magnitude = 0u64;
    loop {
        let (len, n) = eight(front(text.get(end..).unwrap_or_default()));
        magnitude = magnitude.wrapping_mul(TENS[len]).wrapping_add(n);
        end += len;
        if len < 8 {
            break;
        }
    }
    if end == first {
        return None;
    }
    *at = end;
    let digits = &text[first..end];
    let magnitude = match digits.len() {
        ..=DIGITS_SAFE => Some(magnitude),
        _ => std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()),
    };
    Some(Whole { negative, magnitude, padded: digits.len() > 1 && digits[0] == b'0' })
}

/// Converts a number of 64 bits into an element of `size` bytes.
fn lowest(n: u64, size: usize) -> Bytes {
    match cfg!(target_endian = "little") {
        true => u128::from(n).to_le_bytes(),
        false => (u128::from(n) << (128 - 8 * size)).to_be_bytes(),
    }
}

fn bytes<const N: usize>(from: [u8; N]) -> Bytes {
    let mut bytes = [0; 16];
    bytes[..N].copy_from_slice(&from);
    bytes
}

/// Appends an element of `size` bytes.
#[inline(always)]
pub(super) fn push(out: &mut Vec<u8>, bytes: Bytes, size: usize) {
    out.extend_from_slice(&bytes);
    out.truncate(out.len() - (bytes.len() - size));
}

/// Description of an element of this type, for error messages.
pub(super) fn expected(element: Element) -> &'static str {
    match element {
        Element::UChar => "a whole number from 0 to 255 (unsigned char)",
        Element::Char => "a whole number from -128 to 127 (char)",
        Element::UShort => "a whole number from 0 to 65535 (unsigned short)",
        Element::Short => "a whole number from -32768 to 32767 (short)",
        Element::UInt => "a whole number from 0 to 4294967295 (unsigned int)",
        Element::Int => "a whole number from -2147483648 to 2147483647 (int)",
        Element::ULong => "a whole number from 0 to 18446744073709551615 (unsigned long)",
        Element::Long => "a whole number from -9223372036854775808 to 9223372036854775807 (long)",
        Element::Float => "a number within the range of float",
        Element::Double => "a number within the range of double",
        Element::LongDouble => {
            "a number of at most 1000 characters within the range of long double"
        }
        Element::Pointer => "no value, because pointers have no text",
    }
}

/// Returns the type of this name if its values have a text.
pub(super) fn element(name: &[u8]) -> Option<Element> {
    Element::ALL.into_iter().find(|e| *e != Element::Pointer && e.name().as_bytes() == name)
}

/// Whether the elements of this type are whole numbers.
pub(super) fn is_whole(element: Element) -> bool {
    !matches!(element, Element::Float | Element::Double | Element::LongDouble | Element::Pointer)
}

/// Converts a whole number into an element. Returns `None` if the number is out of range.
#[inline(always)]
pub(super) fn integer(element: Element, whole: &Whole) -> Option<Bytes> {
    let bits = 8 * element.size() as u32;
    let signed = matches!(element, Element::Char | Element::Short | Element::Int | Element::Long);
    let magnitude = whole.magnitude?;
    let room = match (signed, whole.negative) {
        (true, true) => 1 << (bits - 1),
        (true, false) => (1 << (bits - 1)) - 1,
        (false, true) => 0,
        (false, false) => u64::MAX >> (64 - bits),
    };
    let n = if whole.negative { magnitude.wrapping_neg() } else { magnitude };
    (magnitude <= room).then(|| lowest(n, element.size()))
}

/// Reads the real number, `inf` or `nan` at the start of a text. Returns the element and the
/// length of its text, or `None` if the digits denote a number that is too large.
#[inline(always)]
pub(super) fn real(element: Element, text: &[u8]) -> Option<(Bytes, usize)> {
    let finite = |len: usize| text[..len].iter().any(u8::is_ascii_digit);
    match element {
        Element::Float => {
            let (x, len) = fast_float2::parse_partial::<f32, _>(text).ok()?;
            (x.is_finite() || !finite(len)).then(|| (bytes(x.to_ne_bytes()), len))
        }
        Element::Double => {
            let (x, len) = fast_float2::parse_partial::<f64, _>(text).ok()?;
            (x.is_finite() || !finite(len)).then(|| (bytes(x.to_ne_bytes()), len))
        }
        Element::LongDouble => {
            let len =
                text.iter().take_while(|b| b.is_ascii_alphanumeric() || b"+-.".contains(b)).count();
            Some((long_double::parse(&text[..len])?, len))
        }
        _ => None,
    }
}

/// Writes an element: digits that are read back as the same bytes, or `inf` or `nan` with a sign.
pub(super) fn write(out: &mut Vec<u8>, element: Element, bytes: &[u8]) {
    fn front<const N: usize>(bytes: &[u8]) -> [u8; N] {
        bytes[..N].try_into().expect("an element has the bytes of its type")
    }
    let mut digits = itoa::Buffer::new();
    let text = match element {
        Element::UChar => digits.format(bytes[0]),
        Element::Char => digits.format(bytes[0] as i8),
        Element::UShort => digits.format(u16::from_ne_bytes(front(bytes))),
        Element::Short => digits.format(i16::from_ne_bytes(front(bytes))),
        Element::UInt => digits.format(u32::from_ne_bytes(front(bytes))),
        Element::Int => digits.format(i32::from_ne_bytes(front(bytes))),
        Element::ULong | Element::Pointer => digits.format(u64::from_ne_bytes(front(bytes))),
        Element::Long => digits.format(i64::from_ne_bytes(front(bytes))),
        Element::Float => {
            let x = f32::from_ne_bytes(front(bytes));
            return write_real(out, x.into(), |reals| reals.format_finite(x));
        }
        Element::Double => {
            let x = f64::from_ne_bytes(front(bytes));
            return write_real(out, x, |reals| reals.format_finite(x));
        }
        Element::LongDouble => return long_double::write(out, front(bytes)),
    };
    out.extend_from_slice(text.as_bytes());
}

fn write_real(out: &mut Vec<u8>, x: f64, finite: impl FnOnce(&mut zmij::Buffer) -> &str) {
    let sign = if x.is_sign_negative() { "-" } else { "" };
    if x.is_finite() {
        out.extend_from_slice(finite(&mut zmij::Buffer::new()).as_bytes());
    } else {
        out.extend_from_slice(sign.as_bytes());
        out.extend_from_slice(if x.is_nan() { b"nan" } else { b"inf" });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_number_at_each_limit_is_accepted_or_refused() {
        for (text, element, good) in [
            ("255", Element::UChar, true),
            ("256", Element::UChar, false),
            ("-1", Element::UChar, false),
            ("-128", Element::Char, true),
            ("128", Element::Char, false),
            ("65536", Element::UShort, false),
            ("-32769", Element::Short, false),
            ("4294967295", Element::UInt, true),
            ("-2147483648", Element::Int, true),
            ("2147483648", Element::Int, false),
            ("18446744073709551615", Element::ULong, true),
            ("18446744073709551616", Element::ULong, false),
            ("-9223372036854775808", Element::Long, true),
            ("9223372036854775808", Element::Long, false),
            ("99999999999999999999999999999999", Element::Long, false),
        ] {
            let mut at = 0;
            let bytes = integer(element, &whole(text.as_bytes(), &mut at).unwrap());
            assert_eq!((at, bytes.is_some()), (text.len(), good), "{text}");
            if let Some(bytes) = bytes {
                let mut out = Vec::new();
                write(&mut out, element, &bytes);
                assert_eq!(out, text.as_bytes());
            }
        }
    }

    #[test]
    fn real_number_of_each_kind_is_read_back() {
        for x in [
            0.0,
            -0.0,
            1.0,
            0.1,
            1e300,
            5e-324,
            f64::MAX,
            f64::MIN_POSITIVE,
            f64::INFINITY,
            -f64::INFINITY,
        ] {
            let mut out = Vec::new();
            write(&mut out, Element::Double, &x.to_ne_bytes());
            assert_eq!(
                real(Element::Double, &out),
                Some((bytes(x.to_ne_bytes()), out.len())),
                "{x}"
            );
        }
        for x in [0.1f32, f32::MAX, 1e-45, -f32::INFINITY] {
            let mut out = Vec::new();
            write(&mut out, Element::Float, &x.to_ne_bytes());
            assert_eq!(
                real(Element::Float, &out),
                Some((bytes(x.to_ne_bytes()), out.len())),
                "{x}"
            );
        }
        assert_eq!(real(Element::Double, b"1e400"), None);
        assert!(real(Element::Double, b"-nan").is_some());
        assert_eq!(real(Element::Float, b"1,5"), Some((bytes(1f32.to_ne_bytes()), 1)));
    }
}
