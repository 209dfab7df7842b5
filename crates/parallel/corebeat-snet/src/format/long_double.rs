//! Exact conversion between `long double` and text. Rust has no such type, so this module converts
//! the bits.
//!
//! A value is `significand * 2^exponent`. On x86 the significand has 64 stored bits (x87 extended
//! precision). On other processors it has 113 bits, the first of them implied (IEEE 754 binary128).
//! The reader uses long arithmetic for decimal digits and rounds once, to even. The writer uses the
//! shortest decimal digits of an equal `double` if the reader restores the same value from them, or
//! else the notation of C's `%La`, for example `0xcccccccccccccccdp-67`, which `strtold` reads. The
//! reader sets the six unused bytes of x87 to 0. The payload of a NaN is lost.

use std::io::Write;

use super::number::Bytes;

/// Characters of one number, enough for every significant digit.
const TEXT_MAX: usize = 1000;

const X87: bool = cfg!(any(target_arch = "x86", target_arch = "x86_64"));
const SIGNIFICAND_BITS: i64 = if X87 { 64 } else { 113 };
/// Exponent of the smallest values.
const EXPONENT_MIN: i64 = 1 - 16383 - (SIGNIFICAND_BITS - 1);
/// Stored exponent of infinities and NaNs.
const SPECIAL: u64 = 0x7fff;

/// Combines the stored parts: sign, exponent, and significand with its first bit.
fn encode(negative: bool, exponent: u64, significand: u128) -> Bytes {
    let head = u128::from(negative) << 15 | u128::from(exponent);
    let bits = match X87 {
        true => head << 64 | significand,
        false => head << 112 | significand & ((1 << 112) - 1),
    };
    bits.to_ne_bytes()
}

fn decode(bytes: Bytes) -> (bool, u64, u128) {
    let bits = u128::from_ne_bytes(bytes);
    let (head, significand) = match X87 {
        true => ((bits >> 64) as u64, bits & u128::from(u64::MAX)),
        false => ((bits >> 112) as u64, bits & ((1 << 112) - 1)),
    };
    let exponent = head & SPECIAL;
    let implied = if X87 || exponent == 0 { 0 } else { 1 << 112 };
    (head & 0x8000 != 0, exponent, significand | implied)
}

/// Whole number of any length, least significant digit first.
struct Long(Vec<u32>);

impl Long {
    /// Multiplies by `factor` and adds `addend`.
    fn multiply(&mut self, factor: u32, addend: u32) {
        let mut carry = u64::from(addend);
        for digit in &mut self.0 {
            carry += u64::from(*digit) * u64::from(factor);
            *digit = carry as u32;
            carry >>= 32;
        }
        if carry > 0 {
            self.0.push(carry as u32);
        }
    }

    /// Divides by `divisor`. Returns whether the remainder is not 0.
    fn divide(&mut self, divisor: u32) -> bool {
        let mut rest = 0u64;
        for digit in self.0.iter_mut().rev() {
            rest = rest << 32 | u64::from(*digit);
            *digit = (rest / u64::from(divisor)) as u32;
            rest %= u64::from(divisor);
        }
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
        rest > 0
    }

    fn bits(&self) -> i64 {
        self.0.last().map_or(0, |d| 32 * self.0.len() as i64 - i64::from(d.leading_zeros()))
    }

    fn bit(&self, i: i64) -> bool {
        i >= 0 && self.0.get(i as usize / 32).is_some_and(|d| d >> (i % 32) & 1 == 1)
    }
}

/// Rounds `number * 2^exponent`, or a slightly larger value if `inexact`, to the nearest value.
/// Returns `None` if it is too large.
fn round(negative: bool, number: &Long, exponent: i64, inexact: bool) -> Option<Bytes> {
    let drop = (number.bits() - SIGNIFICAND_BITS).max(EXPONENT_MIN - exponent);
    let mut exponent = exponent + drop;
    let mut significand = 0u128;
    for i in (0..SIGNIFICAND_BITS).rev() {
        significand = significand << 1 | u128::from(number.bit(drop + i));
    }
    let half = number.bit(drop - 1);
    let below = inexact || (0..drop - 1).any(|i| number.bit(i));
    if half && (below || significand & 1 == 1) {
        significand += 1;
        if significand >> SIGNIFICAND_BITS == 1 {
            significand >>= 1;
            exponent += 1;
        }
    }
    if significand >> (SIGNIFICAND_BITS - 1) == 0 {
        return Some(encode(negative, 0, significand));
    }
    let stored = (exponent - EXPONENT_MIN + 1) as u64;
    (stored < SPECIAL).then(|| encode(negative, stored, significand))
}

/// Powers of 10 with the product `10^power`.
fn tens(power: i64) -> impl Iterator<Item = u32> {
    let last = 10u32.pow((power % 9) as u32);
    std::iter::repeat_n(1_000_000_000, (power / 9) as usize).chain([last])
}

/// Parses a text that C's `strtold` accepts as a whole, without the payload of a NaN.
pub(super) fn parse(text: &[u8]) -> Option<Bytes> {
    if text.len() > TEXT_MAX {
        return None;
    }
    let (negative, text) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    let first = 1 << (SIGNIFICAND_BITS - 1);
    if text.eq_ignore_ascii_case(b"inf") || text.eq_ignore_ascii_case(b"infinity") {
        return Some(encode(negative, SPECIAL, first));
    }
    if text.eq_ignore_ascii_case(b"nan") {
        return Some(encode(negative, SPECIAL, first | (first >> 1)));
    }
    let (radix, text) = match text {
        [b'0', b'x' | b'X', rest @ ..] => (16, rest),
        _ => (10, text),
    };
    let mut number = Long(Vec::new());
    let (mut digits, mut fraction, mut point) = (0i64, 0i64, false);
    let mut rest = text;
    while let [b, tail @ ..] = rest {
        match (*b as char).to_digit(radix) {
            Some(digit) => {
                number.multiply(radix, digit);
                digits += 1;
                fraction += i64::from(point);
            }
            None if *b == b'.' && !point => point = true,
            None => break,
        }
        rest = tail;
    }
    let power = match (rest, radix) {
        ([], _) => 0,
        ([b'e' | b'E', power @ ..], 10) | ([b'p' | b'P', power @ ..], 16) => {
            // Beyond all exponents of the type, and far from the limits of `i64`.
            std::str::from_utf8(power).ok()?.parse::<i64>().ok()?.clamp(-1_000_000, 1_000_000)
        }
        _ => return None,
    };
    if digits == 0 {
        return None;
    }
    if number.0.is_empty() {
        return Some(encode(negative, 0, 0));
    }
    if radix == 16 {
        return round(negative, &number, power - 4 * fraction, false);
    }
    let power = power - fraction;
    // Less than half of the smallest value. The largest value has 4933 digits.
    if digits + power < -5000 {
        return Some(encode(negative, 0, 0));
    }
    if power > 5000 {
        return None;
    }
    if power >= 0 {
        tens(power).for_each(|ten| number.multiply(ten, 0));
        return round(negative, &number, 0, false);
    }
    // Shift left so that the quotient has all significant bits: 10^k has at most 10k/3 + 1 bits.
    let words = (SIGNIFICAND_BITS + 4 - power * 10 / 3) / 32 + 2;
    number.0.splice(0..0, std::iter::repeat_n(0, words as usize));
    let mut inexact = false;
    for ten in tens(-power) {
        inexact |= number.divide(ten);
    }
    round(negative, &number, -32 * words, inexact)
}

/// Writes a text from which the reader restores the same value.
pub(super) fn write(out: &mut Vec<u8>, bytes: Bytes) {
    let (negative, exponent, significand) = decode(bytes);
    let sign = if negative { "-" } else { "" };
    if exponent == SPECIAL {
        let infinite = significand & ((1 << (SIGNIFICAND_BITS - 1)) - 1) == 0;
        out.extend_from_slice(sign.as_bytes());
        return out.extend_from_slice(if infinite { b"inf" } else { b"nan" });
    }
    let zeros = if significand == 0 { 0 } else { significand.trailing_zeros() };
    let significand = significand >> zeros;
    let exponent = exponent.max(1) as i64 - 1 + EXPONENT_MIN + i64::from(zeros);
    if significand == 0 {
        write!(out, "{sign}0.0").expect("a write to memory does not fail");
        return;
    }
    // A `double` has 53 bits, and powers of 2 in its range are exact.
    if significand >> 53 == 0 && (-900..900).contains(&exponent) {
        let x = significand as f64 * 2f64.powi(exponent as i32);
        let text = format!("{sign}{x:?}");
        if parse(text.as_bytes()).is_some_and(|b| decode(b) == decode(bytes)) {
            return out.extend_from_slice(text.as_bytes());
        }
    }
    write!(out, "{sign}0x{significand:x}p{exponent}").expect("a write to memory does not fail");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn long_double_from_digits_equals_strtold() {
        // Results of strtold in C: the ten bytes as significand and head.
        for (text, head, significand) in [
            ("1", 0x3fff, 0x8000000000000000),
            ("-1.5", 0xbfff, 0xc000000000000000),
            ("0.1", 0x3ffb, 0xcccccccccccccccd),
            ("3.14159265358979323846264338327950288", 0x4000, 0xc90fdaa22168c235),
            ("1e4932", 0x7ffe, 0xd72cb2a95c7ef6cd),
            ("1.18973149535723176502e+4932", 0x7ffe, 0xffffffffffffffff),
            ("3.6451995318824746025e-4951", 0x0000, 0x0000000000000001),
            ("1e-4940", 0x0000, 0x0000000663278e62),
            ("123456789012345678901234567890", 0x405f, 0xc77487fb61b9f077),
            ("0x1.8p-3", 0x3ffc, 0xc000000000000000),
            ("0", 0x0000, 0),
            ("-0.0", 0x8000, 0),
            ("1e-9999", 0x0000, 0),
        ] {
            let bits = u128::from_ne_bytes(parse(text.as_bytes()).unwrap());
            assert_eq!(((bits >> 64) as u64, bits as u64), (head, significand), "{text}: {bits:x}");
        }
    }

    #[test]
    fn invalid_or_too_large_long_double_is_refused() {
        let long = "1".repeat(TEXT_MAX + 1);
        for text in [
            "",
            "-",
            ".",
            "e5",
            "0x",
            "1e",
            "1p5",
            "0x1e5p",
            "1.2.3",
            "1 ",
            "1e4933",
            "0x1p16384",
            &long,
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn written_long_double_is_read_back() {
        let top = 1 << (SIGNIFICAND_BITS - 1);
        for bytes in [
            encode(false, 1, top),
            encode(true, SPECIAL - 1, top | (top - 1)),
            encode(false, 0, 1),
            encode(false, 0, top - 1),
            encode(true, 16383, top | 1),
            encode(true, SPECIAL, top),
            encode(false, SPECIAL, top | (top >> 1)),
        ] {
            let mut out = Vec::new();
            write(&mut out, bytes);
            assert_eq!(parse(&out), Some(bytes), "{}", String::from_utf8_lossy(&out));
        }
        for (text, same) in
            [("0.5", "0.5"), ("-3", "-3.0"), ("1e20", "1e20"), ("inf", "inf"), ("-nan", "-nan")]
        {
            let mut out = Vec::new();
            write(&mut out, parse(text.as_bytes()).unwrap());
            assert_eq!(out, same.as_bytes());
        }
        let mut out = Vec::new();
        write(&mut out, parse(b"0.1").unwrap());
        #[cfg(target_arch = "x86_64")]
        assert_eq!(out, b"0xcccccccccccccccdp-67");
    }
}
