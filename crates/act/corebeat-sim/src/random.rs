//! Random numbers that are the same everywhere for the same seed.

/// SplitMix64 (Steele, Lea, Flood: *Fast Splittable Pseudorandom Number Generators*, 2014).
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to below 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A time up to `jitter` (0 to 1) of it away from this one, any equally likely; at least 1 ns.
    pub(crate) fn around(&mut self, ns: f64, jitter: f64) -> f64 {
        let times = if jitter > 0.0 { 1.0 + jitter * (2.0 * self.unit() - 1.0) } else { 1.0 };
        (ns * times).max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn around_stays_around_and_repeats() {
        let (mut a, mut b) = (Random::new(7), Random::new(7));
        for _ in 0..1000 {
            let ns = a.around(100.0, 0.25);
            assert!((75.0..=125.0).contains(&ns));
            assert_eq!(ns, b.around(100.0, 0.25));
        }
        assert_eq!(a.around(100.0, 0.0), 100.0);
    }
}
