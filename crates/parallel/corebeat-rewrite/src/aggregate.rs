//! Aggregates of the values of a group. Their results do not depend on the order of the values, and
//! values can be removed again.

use crate::expression::Fault;
use crate::rule::AggregateOf;
use crate::syntax::Aggregate;
use crate::value::{Literals, Scalar, Value};
use std::cmp::Ordering;
use std::collections::HashMap;

/// A value that can be compared for equality.
pub(crate) type KeyPart = (u8, u64);

/// The values of one aggregate that were added.
#[derive(Default, Clone)]
pub(crate) struct Accumulator {
    count: u64,
    int: i128,
    float: FloatSum,
    /// How often each value was added, for a function that requires the values. Without removals,
    /// `min` and `max` keep the best value only.
    values: HashMap<KeyPart, u64>,
}

/// A group's aggregates, with what their functions require.
#[derive(Clone, Copy)]
pub(crate) struct Aggregator<'a> {
    pub(crate) literals: &'a Literals,
    /// Whether values may be removed again.
    pub(crate) can_remove: bool,
}

impl Aggregator<'_> {
    pub(crate) fn add(
        &self,
        own: &mut Accumulator,
        of: &AggregateOf,
        value: Scalar,
    ) -> Result<(), Fault> {
        if value == Scalar::Null {
            return Ok(());
        }
        own.count += 1;
        match (of.function, value) {
            _ if requires_values(of) => self.keep(own, of.function, value.encode(), 1),
            (Aggregate::Count, _) => {}
            (_, Scalar::Int(value)) => own.int += i128::from(value),
            (_, Scalar::Float(value)) => own.float.add(value, false),
            _ => return Err("sum and avg require numbers".into()),
        }
        Ok(())
    }

    fn keep(&self, own: &mut Accumulator, function: Aggregate, value: KeyPart, times: u64) {
        let better = match function {
            Aggregate::Least => Ordering::Less,
            _ => Ordering::Greater,
        };
        if matches!(function, Aggregate::Least | Aggregate::Greatest) && !self.can_remove {
            if own.values.keys().any(|kept| self.order(value, *kept) != better) {
                return;
            }
            own.values.clear();
        }
        *own.values.entry(value).or_default() += times;
    }

    /// A total order: values that `ORDER BY` does not distinguish are ordered by their type.
    fn order(&self, a: KeyPart, b: KeyPart) -> Ordering {
        let value = |of: KeyPart| self.literals.decode(Scalar::from_encoded(of));
        value(a).order(&value(b)).then(a.cmp(&b))
    }

    /// Adds the values of another accumulator.
    pub(crate) fn merge(&self, own: &mut Accumulator, of: &AggregateOf, other: &Accumulator) {
        own.count += other.count;
        own.int += other.int;
        own.float.add_all(&other.float, false);
        for (value, times) in &other.values {
            self.keep(own, of.function, *value, *times);
        }
    }

    /// Removes the values of another accumulator, which were added before.
    pub(crate) fn remove(&self, own: &mut Accumulator, other: &Accumulator) {
        own.count -= other.count;
        own.int -= other.int;
        own.float.add_all(&other.float, true);
        for (value, times) in &other.values {
            if let Some(count) = own.values.get_mut(value) {
                *count -= times;
                if *count == 0 {
                    own.values.remove(value);
                }
            }
        }
    }

    /// The result for the values that were added.
    pub(crate) fn result(&self, own: &Accumulator, of: &AggregateOf) -> Result<Scalar, Fault> {
        if of.distinct && !matches!(of.function, Aggregate::Collect) {
            let of = AggregateOf { function: of.function, distinct: false, of: None };
            let mut each = Accumulator::default();
            for value in self.distinct(own) {
                self.add(&mut each, &of, Scalar::from_encoded(value))?;
            }
            return self.result(&each, &of);
        }
        let total = own.int as f64 + own.float.total();
        let values = own.values.keys().copied();
        Ok(match of.function {
            Aggregate::Count => Scalar::Int(own.count as i64),
            Aggregate::Sum if own.float.count > 0 => Scalar::Float(total),
            Aggregate::Sum => {
                Scalar::Int(i64::try_from(own.int).map_err(|_| "the sum is too large")?)
            }
            Aggregate::Average if own.count == 0 => Scalar::Null,
            Aggregate::Average => Scalar::Float(total / own.count as f64),
            Aggregate::Least => {
                let least = values.min_by(|a, b| self.order(*a, *b));
                least.map_or(Scalar::Null, Scalar::from_encoded)
            }
            Aggregate::Greatest => {
                let greatest = values.max_by(|a, b| self.order(*a, *b));
                greatest.map_or(Scalar::Null, Scalar::from_encoded)
            }
            Aggregate::Collect => self.list(own, of.distinct),
        })
    }

    /// One value of each set of equal values, such as 1 and 1.0: the least in the order of types.
    fn distinct(&self, own: &Accumulator) -> Vec<KeyPart> {
        let mut kept = HashMap::<KeyPart, KeyPart>::new();
        for value in own.values.keys() {
            let normal = self.literals.normal(Scalar::from_encoded(*value)).encode();
            let least = kept.entry(normal).or_insert(*value);
            *least = (*least).min(*value);
        }
        kept.into_values().collect()
    }

    /// The values in ascending order.
    fn list(&self, own: &Accumulator, is_distinct: bool) -> Scalar {
        let values: Vec<(KeyPart, u64)> = match is_distinct {
            true => self.distinct(own).into_iter().map(|value| (value, 1)).collect(),
            false => own.values.iter().map(|(value, times)| (*value, *times)).collect(),
        };
        let decode = |value: KeyPart| self.literals.decode(Scalar::from_encoded(value));
        let values = values.into_iter().map(|(value, times)| (decode(value), value, times));
        let mut values: Vec<(Value, KeyPart, u64)> = values.collect();
        values.sort_unstable_by(|a, b| a.0.order(&b.0).then(a.1.cmp(&b.1)));
        let values = values.into_iter().flat_map(|(_, value, times)| {
            std::iter::repeat_n(Scalar::from_encoded(value), times as usize)
        });
        self.literals.list(&values.collect::<Vec<Scalar>>())
    }
}

fn requires_values(of: &AggregateOf) -> bool {
    of.distinct
        || matches!(of.function, Aggregate::Collect | Aggregate::Least | Aggregate::Greatest)
}

/// A sum of floats that is rounded once, at the end: it depends on no order, and a value can be
/// removed. The method is that of Shewchuk, *Adaptive Precision Floating-Point Arithmetic*, 1997,
/// section 2.4. A sum beyond the range of floats is not exact.
#[derive(Default, Clone)]
struct FloatSum {
    count: u64,
    /// Numbers whose sum is the exact sum, in ascending order of magnitude, and whose digits do not
    /// overlap.
    parts: Vec<f64>,
    /// Numbers of positive infinities, negative infinities, and NaN.
    special: [u64; 3],
}

impl FloatSum {
    fn add(&mut self, value: f64, removes: bool) {
        self.count = if removes { self.count - 1 } else { self.count + 1 };
        if !value.is_finite() {
            let kind = if value.is_nan() { 2 } else { usize::from(value < 0.0) };
            let special = &mut self.special[kind];
            *special = if removes { *special - 1 } else { *special + 1 };
            return;
        }
        self.grow(if removes { -value } else { value });
    }

    fn grow(&mut self, mut value: f64) {
        let mut kept = 0;
        for index in 0..self.parts.len() {
            let part = self.parts[index];
            let (large, small) =
                if value.abs() < part.abs() { (part, value) } else { (value, part) };
            value = large + small;
            let rest = small - (value - large);
            if rest != 0.0 {
                self.parts[kept] = rest;
                kept += 1;
            }
        }
        self.parts.truncate(kept);
        if value != 0.0 {
            self.parts.push(value);
        }
    }

    fn add_all(&mut self, other: &FloatSum, removes: bool) {
        let change = |own: u64, other: u64| if removes { own - other } else { own + other };
        self.count = change(self.count, other.count);
        for (own, other) in self.special.iter_mut().zip(other.special) {
            *own = change(*own, other);
        }
        for part in &other.parts {
            self.grow(if removes { -part } else { *part });
        }
    }

    fn total(&self) -> f64 {
        match self.special {
            [0, 0, 0] => self.rounded(),
            [_, 0, 0] => f64::INFINITY,
            [0, _, 0] => f64::NEG_INFINITY,
            _ => f64::NAN,
        }
    }

    fn rounded(&self) -> f64 {
        let mut parts = self.parts.iter().rev().copied();
        let Some(mut total) = parts.next() else { return 0.0 };
        while let Some(part) = parts.next() {
            let before = total;
            total = before + part;
            let rest = part - (total - before);
            if rest != 0.0 {
                // Half of a digit is rounded to even, unless the parts below decide.
                if parts.next().is_some_and(|below| below.signum() == rest.signum()) {
                    let next = total + 2.0 * rest;
                    if next - total == 2.0 * rest {
                        total = next;
                    }
                }
                break;
            }
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn float_sums_are_exact() {
        let values = [1e100, 1.0, -1e100, 1e-20, 0.1, 0.2, 0.3, f64::MIN_POSITIVE, 3.0e15, -0.7];
        let mut random = fastrand::Rng::with_seed(7);
        let mut totals = Vec::new();
        for _ in 0..100 {
            let mut order = values.repeat(3);
            random.shuffle(&mut order);
            let (mut sum, mut part) = (FloatSum::default(), FloatSum::default());
            order.iter().for_each(|value| sum.add(*value, false));
            order[..20].iter().for_each(|value| part.add(*value, false));
            totals.push(sum.total());
            sum.add_all(&part, true);
            order[20..].iter().for_each(|value| sum.add(*value, true));
            assert_eq!((sum.count, sum.total()), (0, 0.0));
            assert!(sum.parts.is_empty(), "{:?}", sum.parts);
        }
        assert!(totals.iter().all(|total| *total == totals[0]), "{totals:?}");
        let mut tie = FloatSum::default();
        [1.0, f64::EPSILON / 2.0, 1e-30].iter().for_each(|value| tie.add(*value, false));
        assert_eq!(tie.total(), 1.0 + f64::EPSILON);
        tie.add(f64::INFINITY, false);
        assert_eq!(tie.total(), f64::INFINITY);
        tie.add(f64::NAN, false);
        assert!(tie.total().is_nan());
    }
}
