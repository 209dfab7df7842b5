//! Pseudorandom numbers by position: the same for every thread count.
//!
//! The checksums of the workloads, which are published numbers, depend on this generator. The
//! generator of other crates, `fastrand`, is sequential, and cannot be evaluated by several threads
//! in any order.

/// The step of Steele, Lea and Flood, *Fast Splittable Pseudorandom Number Generators* (2014): 2^64
/// over the golden ratio, made odd.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// Finaliser of SplitMix64 (the same paper, with the constants of Stafford's variant 13): a
/// permutation of the 64-bit numbers in which every output bit depends on every input bit.
#[inline(always)]
pub(crate) fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Returns the `index`th number of stream `seed`.
#[inline(always)]
pub(crate) fn number(seed: u64, index: u64) -> u64 {
    mix(seed.wrapping_add(STEP.wrapping_mul(index.wrapping_add(1))))
}

/// Returns [`number`] scaled to `0..bound`. The bias is at most `bound` in 2^32.
#[inline(always)]
pub(crate) fn below(seed: u64, index: u64, bound: u32) -> u32 {
    (((number(seed, index) >> 32) * u64::from(bound)) >> 32) as u32
}

/// Returns [`number`] as a fraction strictly between 0 and 1.
#[inline(always)]
pub(crate) fn fraction(seed: u64, index: u64) -> f64 {
    // 52 random bits below a leading one form a number in [1, 2); half a step excludes 0.
    f64::from_bits((number(seed, index) >> 12) | 0x3FF0_0000_0000_0000) - (1.0 - f64::EPSILON / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_seed_zero_are_the_published_sequence() {
        // The first outputs of SplitMix64 seeded with 0.
        let known = [0xE220_A839_7B1D_CDAF, 0x6E78_9E6A_A1B9_65F4, 0x06C4_5D18_8009_454F];
        assert_eq!([0, 1, 2].map(|i| number(0, i)), known);
    }

    #[test]
    fn fractions_and_bounded_numbers_are_in_range() {
        for i in 0..10_000 {
            let f = fraction(7, i);
            assert!(f > 0.0 && f < 1.0);
            assert!(below(7, i, 3) < 3);
        }
    }
}
