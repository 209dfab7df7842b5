//! Exact sums of numbers.

/// Bits of a digit.
const BITS: usize = 32;
/// Exponent of the lowest bit, negated: that of the smallest positive float.
const POINT: usize = 1074;
/// Number of digits: floats have 2098 bits before and after the point, and 2^64 values 64 more.
const DIGITS: usize = (POINT + 1024 + 64).div_ceil(BITS);
/// Number of additions after which digits are reduced to their range again.
const PENDING_MAX: u32 = 1 << 29;
/// Number of stored bits of a float's mantissa.
const MANTISSA_BITS: usize = f64::MANTISSA_DIGITS as usize - 1;

/// A sum of floats that is exact until it is rounded, once. So it depends on no order, and a value
/// can be removed. An infinity beyond the range of floats appears only when the sum is rounded:
/// a sum whose parts are beyond the range, and which is not, is exact as well.
#[derive(Default, Clone)]
pub(crate) struct FloatSum {
    /// Number of values.
    pub(crate) count: u64,
    /// Numbers of positive infinities, negative infinities, and NaN.
    special: [u64; 3],
    /// The sum of the finite values. None while all of them are 0.
    fixed: Option<Box<Fixed>>,
}

impl FloatSum {
    /// Adds a value.
    pub(crate) fn add(&mut self, value: f64) {
        self.count += 1;
        if value.is_finite() {
            if value != 0.0 {
                self.fixed.get_or_insert_default().add(value);
            }
            return;
        }
        self.special[if value.is_nan() { 2 } else { usize::from(value < 0.0) }] += 1;
    }

    /// Adds the values of another sum, or removes them.
    pub(crate) fn add_all(&mut self, other: &FloatSum, removes: bool) {
        let change = |own: u64, other: u64| if removes { own - other } else { own + other };
        self.count = change(self.count, other.count);
        for (own, other) in self.special.iter_mut().zip(other.special) {
            *own = change(*own, other);
        }
        if let Some(other) = &other.fixed {
            self.fixed.get_or_insert_default().add_all(other, if removes { -1 } else { 1 });
        }
    }

    /// The float that is nearest to the sum of the values and an integer: an infinity if the sum is
    /// beyond the range or a value is infinite, NaN if a value is NaN or infinities cancel out.
    pub(crate) fn total(&self, int: i128) -> f64 {
        match self.special {
            [0, 0, 0] => {
                let mut fixed = self.fixed.as_deref().cloned().unwrap_or_default();
                fixed.add_int(int);
                fixed.rounded()
            }
            [_, 0, 0] => f64::INFINITY,
            [0, _, 0] => f64::NEG_INFINITY,
            _ => f64::NAN,
        }
    }
}

/// A number with a fixed point and room for the sum of any floats: the long accumulator of Kulisch,
/// *Computer Arithmetic and Validity*, 2013, chapter 8.
#[derive(Clone)]
struct Fixed {
    /// The lowest digit first. A digit is in its range, from 0 to 2^32, or has up to `pending`
    /// additions beyond it. The last digit has the sign.
    digits: [i64; DIGITS],
    pending: u32,
}

impl Default for Fixed {
    fn default() -> Fixed {
        Fixed { digits: [0; DIGITS], pending: 0 }
    }
}

impl Fixed {
    /// Adds a finite float.
    fn add(&mut self, value: f64) {
        let bits = value.to_bits();
        let fraction = bits & ((1 << MANTISSA_BITS) - 1);
        let sign = if value.is_sign_negative() { -1 } else { 1 };
        match (bits >> MANTISSA_BITS) as usize & 0x7ff {
            0 => self.add_at(0, fraction, sign),
            exponent => self.add_at(exponent - 1, fraction | 1 << MANTISSA_BITS, sign),
        }
    }

    fn add_int(&mut self, value: i128) {
        let (magnitude, sign) = (value.unsigned_abs(), value.signum() as i64);
        self.add_at(POINT, magnitude as u64 & u64::from(u32::MAX), sign);
        self.add_at(POINT + BITS, (magnitude >> BITS) as u64 & u64::from(u32::MAX), sign);
        self.add_at(POINT + 2 * BITS, (magnitude >> (2 * BITS)) as u64 & u64::from(u32::MAX), sign);
        self.add_at(POINT + 3 * BITS, (magnitude >> (3 * BITS)) as u64, sign);
    }

    /// Adds a number of at most 64 bits whose lowest bit has this position.
    fn add_at(&mut self, position: usize, magnitude: u64, sign: i64) {
        if self.pending == PENDING_MAX {
            self.carry();
        }
        self.pending += 1;
        let wide = u128::from(magnitude) << (position % BITS);
        for (index, digit) in self.digits[position / BITS..].iter_mut().take(3).enumerate() {
            *digit += sign * i64::from((wide >> (BITS * index)) as u32);
        }
    }

    fn add_all(&mut self, other: &Fixed, sign: i64) {
        if self.pending + other.pending >= PENDING_MAX {
            self.carry();
        }
        self.pending += other.pending + 1;
        for (own, other) in self.digits.iter_mut().zip(other.digits) {
            *own += sign * other;
        }
    }

    /// Reduces all digits but the last one to their range.
    fn carry(&mut self) {
        let mut carry = 0;
        for digit in &mut self.digits[..DIGITS - 1] {
            let sum = *digit + carry;
            (*digit, carry) = (sum & i64::from(u32::MAX), sum >> BITS);
        }
        self.digits[DIGITS - 1] += carry;
        self.pending = 0;
    }

    /// The nearest float, and of two of them the one with an even mantissa.
    fn rounded(mut self) -> f64 {
        self.carry();
        let sign = if self.digits[DIGITS - 1] < 0 { -1.0 } else { 1.0 };
        if sign < 0.0 {
            self.digits.iter_mut().for_each(|digit| *digit = -*digit);
            self.carry();
        }
        let Some(top) = self.digits.iter().rposition(|digit| *digit != 0) else { return 0.0 };
        let digit = |back| top.checked_sub(back).map_or(0, |index| self.digits[index] as u128);
        let wide = digit(0) << (2 * BITS) | digit(1) << BITS | digit(2);
        let length = (u128::BITS - wide.leading_zeros()) as usize;
        // The position of the highest bit.
        let high = (top * BITS + length).saturating_sub(2 * BITS + 1);
        if high <= MANTISSA_BITS {
            // The number is a float, whose bits are those of its multiple of the smallest float.
            return sign * f64::from_bits((wide >> (2 * BITS - top * BITS)) as u64);
        }
        let cut = length - MANTISSA_BITS - 1;
        let (mantissa, rest, half) = (wide >> cut, wide & ((1 << cut) - 1), 1 << (cut - 1));
        let has_more = self.digits[..top.saturating_sub(2)].iter().any(|digit| *digit != 0);
        let is_up = rest > half || rest == half && (has_more || mantissa & 1 == 1);
        // The highest bit of the mantissa and a carry of the rounding increase the exponent.
        let bits = ((high - MANTISSA_BITS) as u64) << MANTISSA_BITS;
        let bits = bits + mantissa as u64 + u64::from(is_up);
        sign * f64::from_bits(bits.min(f64::INFINITY.to_bits()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(values: &[f64]) -> FloatSum {
        let mut sum = FloatSum::default();
        values.iter().for_each(|value| sum.add(*value));
        sum
    }

    #[test]
    fn float_sums_are_exact() {
        let values = [1e100, 1.0, -1e100, 1e-20, 0.1, 0.2, 0.3, f64::MIN_POSITIVE, 3.0e15, -0.7];
        let mut random = fastrand::Rng::with_seed(7);
        let mut totals = Vec::new();
        for _ in 0..100 {
            let mut order = values.repeat(3);
            random.shuffle(&mut order);
            let mut all = sum(&order);
            totals.push(all.total(0));
            all.add_all(&sum(&order[..20]), true);
            all.add_all(&sum(&order[20..]), true);
            assert_eq!((all.count, all.total(0)), (0, 0.0));
        }
        assert!(totals.iter().all(|total| *total == totals[0]), "{totals:?}");
        assert_eq!(sum(&[1.0, f64::EPSILON / 2.0, 1e-30]).total(0), 1.0 + f64::EPSILON);
        assert_eq!(sum(&[1.0, f64::EPSILON / 2.0]).total(0), 1.0);
        assert_eq!(sum(&[1.0, f64::INFINITY]).total(0), f64::INFINITY);
        assert_eq!(sum(&[1.0, f64::NEG_INFINITY]).total(0), f64::NEG_INFINITY);
        for undefined in [[1.0, f64::NAN], [f64::INFINITY, f64::NEG_INFINITY]] {
            assert!(sum(&undefined).total(0).is_nan());
        }
    }

    #[test]
    fn sums_beyond_the_range_of_floats_are_exact_until_they_are_rounded() {
        let (max, half) = (f64::MAX, 2_f64.powi(970));
        let cases: [(&[f64], f64); 8] = [
            (&[max, max, -max], max),
            (&[1e308, 1e308, -1e308, -1e308, 1.0], 1.0),
            (&[max, max], f64::INFINITY),
            (&[-max, -max, max, -max], f64::NEG_INFINITY),
            (&[max, half], f64::INFINITY),
            (&[max, half, -f64::MIN_POSITIVE], max),
            (&[max, -half, f64::MIN_POSITIVE], max),
            (&[max, -half], max - half * 2.0),
        ];
        for (values, expected) in cases {
            let mut random = fastrand::Rng::with_seed(1);
            for _ in 0..20 {
                let mut order = values.to_vec();
                random.shuffle(&mut order);
                assert_eq!(sum(&order).total(0), expected, "{order:?}");
            }
        }
    }

    #[test]
    fn sums_equal_those_of_integers() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..2000 {
            let scale = random.i32(-900..900);
            let values: Vec<i64> = (0..random.usize(1..9))
                .map(|_| random.i64(-(1 << 53)..1 << 53) >> random.u8(..53))
                .collect();
            let exact: i128 = values.iter().map(|value| i128::from(*value)).sum();
            let scaled = |value: f64| value * 2_f64.powi(scale);
            let floats: Vec<f64> = values.iter().map(|value| scaled(*value as f64)).collect();
            assert_eq!(sum(&floats).total(0), scaled(exact as f64), "{values:?} {scale}");
            let int = i128::from(random.i64(..)) << random.u8(..60);
            let floats: Vec<f64> = values.iter().map(|value| *value as f64).collect();
            assert_eq!(sum(&floats).total(int), (exact + int) as f64, "{values:?} {int}");
            let least: Vec<f64> = values.iter().map(|v| f64::from_bits(v.unsigned_abs())).collect();
            let exact: u64 = values.iter().map(|value| value.unsigned_abs()).sum();
            if exact < 1 << 53 {
                assert_eq!(sum(&least).total(0), f64::from_bits(exact), "{values:?}");
            }
        }
    }
}
