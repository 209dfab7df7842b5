//! Exponential, logarithm, sine and cosine from additions, multiplications and one division.
//!
//! Results of the system's mathematical library differ in the last digit between systems, and a
//! loop that calls the library cannot be vectorised. These functions have no branch, and return the
//! same bits on every machine, so that a workload has one checksum. Each is exact to a few units in
//! the last place over its range (the tests state the bounds).

use std::f64::consts::{LOG2_E, PI, SQRT_2};

/// ln 2 in two parts: the first has 32 trailing zero bits, so that its small multiples are exact.
const LN_2_HIGH: f64 = 0.693_147_180_369_123_8;
const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;

/// Returns e to the power of `x`. `x` is clamped to ±700.
#[inline(always)]
pub(crate) fn exp(x: f64) -> f64 {
    // The addition to a number below 2^51 rounds it to an integer in the low bits.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    let x = x.clamp(-700.0, 700.0);
    let shifted = x * LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * LN_2_HIGH) - n * LN_2_LOW;
    // Taylor's series: |r| is at most ln 2 / 2, so the first omitted term is below 5e-18.
    let mut sum = 1.0 / 6_227_020_800.0;
    for coefficient in [
        1.0 / 479_001_600.0,
        1.0 / 39_916_800.0,
        1.0 / 3_628_800.0,
        1.0 / 362_880.0,
        1.0 / 40_320.0,
        1.0 / 5_040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ] {
        sum = sum * r + coefficient;
    }
    sum * f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52)
}

/// Returns the natural logarithm of a normal positive number.
#[inline(always)]
pub(crate) fn ln(x: f64) -> f64 {
    const SQRT_HALF_BITS: u64 = (SQRT_2 / 2.0).to_bits();
    const BIAS: u64 = 1024;
    let bits = x.to_bits();
    // x = m 2^e with m between the square roots of 1/2 and 2; the bias keeps e positive.
    let biased = (bits + (BIAS << 52) - SQRT_HALF_BITS) >> 52;
    let m = f64::from_bits(bits.wrapping_sub(biased.wrapping_sub(BIAS) << 52));
    // Converts an integer below 2^52 through the low bits of 2^52: vector units lack a conversion.
    let e =
        f64::from_bits(biased | 0x4330_0000_0000_0000) - (4_503_599_627_370_496.0 + BIAS as f64);
    // ln m = 2 artanh f; f² is below 0.0295, so the first omitted term is below 3e-18.
    let f = (m - 1.0) / (m + 1.0);
    let s = f * f;
    let mut sum = 1.0 / 21.0;
    for odd in [19.0, 17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0] {
        sum = sum * s + 1.0 / odd;
    }
    e * LN_2_HIGH + (2.0 * f + (2.0 * f * s * sum + e * LN_2_LOW))
}

/// Returns sine and cosine of 2π`turn`, for `turn` from -1/2 to 1/2.
#[inline(always)]
pub(crate) fn sin_cos_turn(turn: f64) -> (f64, f64) {
    // Series for a quarter of the angle (at most π/4), then two double-angle steps.
    let x = turn * (PI / 2.0);
    let s = x * x;
    let mut sin = -1.0 / 1_307_674_368_000.0;
    for coefficient in [
        1.0 / 6_227_020_800.0,
        -1.0 / 39_916_800.0,
        1.0 / 362_880.0,
        -1.0 / 5_040.0,
        1.0 / 120.0,
        -1.0 / 6.0,
        1.0,
    ] {
        sin = sin * s + coefficient;
    }
    let mut cos = 1.0 / 20_922_789_888_000.0;
    for coefficient in [
        -1.0 / 87_178_291_200.0,
        1.0 / 479_001_600.0,
        -1.0 / 3_628_800.0,
        1.0 / 40_320.0,
        -1.0 / 720.0,
        1.0 / 24.0,
        -0.5,
        1.0,
    ] {
        cos = cos * s + coefficient;
    }
    let sin = sin * x;
    let (sin, cos) = (2.0 * sin * cos, 1.0 - 2.0 * sin * sin);
    (2.0 * sin * cos, 1.0 - 2.0 * sin * sin)
}

/// Returns two independent numbers of the standard normal distribution: Box and Muller, *A Note on
/// the Generation of Random Normal Deviates* (1958).
#[inline(always)]
pub(crate) fn normal_pair(a: f64, b: f64) -> (f64, f64) {
    let radius = (-2.0 * ln(a)).sqrt();
    let (sin, cos) = sin_cos_turn(b - 0.5);
    (radius * cos, radius * sin)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::fraction;

    #[test]
    fn exp_ln_and_sin_cos_agree_with_the_standard_library() {
        for i in 0..20_000 {
            let x = fraction(1, i) * 1_400.0 - 700.0;
            assert!((exp(x) / x.exp() - 1.0).abs() < 1e-15, "exp({x})");
            let y = x.exp();
            assert!((ln(y) - y.ln()).abs() <= 4e-16 * y.ln().abs().max(1.0), "ln({y})");
            let t = fraction(2, i) - 0.5;
            let (sin, cos) = sin_cos_turn(t);
            let (s, c) = (2.0 * PI * t).sin_cos();
            assert!((sin - s).abs() < 2e-15 && (cos - c).abs() < 2e-15, "turn {t}");
        }
        assert_eq!((exp(0.0), ln(1.0), sin_cos_turn(0.0)), (1.0, 0.0, (0.0, 1.0)));
    }

    #[test]
    fn normal_pair_has_the_moments_of_the_normal_distribution() {
        let n = 50_000;
        let (mut sum, mut squares, mut fourth, mut cross) = (0.0, 0.0, 0.0, 0.0);
        for i in 0..n {
            let (x, y) = normal_pair(fraction(3, 2 * i), fraction(3, 2 * i + 1));
            sum += x + y;
            squares += x * x + y * y;
            fourth += x.powi(4) + y.powi(4);
            cross += x * y;
        }
        // Four standard errors each.
        let n = 2.0 * n as f64;
        assert!((sum / n).abs() < 4.0 / n.sqrt());
        assert!((squares / n - 1.0).abs() < 4.0 * (2.0 / n).sqrt());
        assert!((fourth / n - 3.0).abs() < 4.0 * (96.0 / n).sqrt());
        assert!((cross / (n / 2.0)).abs() < 4.0 / (n / 2.0).sqrt());
    }
}
