//! Seeded random numbers.

/// A generator of random times. The same seed leads to the same numbers on every machine.
#[derive(Debug, Clone)]
pub(crate) struct Random(fastrand::Rng);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(fastrand::Rng::with_seed(seed))
    }

    /// A time with a uniform deviation of up to `jitter` (a share from 0 to 1); at least 1 ns.
    pub(crate) fn around(&mut self, ns: f64, jitter: f64) -> f64 {
        let factor = if jitter > 0.0 { 1.0 + jitter * (2.0 * self.0.f64() - 1.0) } else { 1.0 };
        (ns * factor).max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_deviate_by_the_jitter_and_repeat_for_a_seed() {
        let (mut a, mut b) = (Random::new(7), Random::new(7));
        for _ in 0..1000 {
            let ns = a.around(100.0, 0.25);
            assert!((75.0..=125.0).contains(&ns));
            assert_eq!(ns, b.around(100.0, 0.25));
        }
        assert_eq!(a.around(100.0, 0.0), 100.0);
    }
}
