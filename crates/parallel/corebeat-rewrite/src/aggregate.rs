//! Aggregates of the values of a group. Their results do not depend on the order of the values, and
//! values can be removed again.

use crate::expression::Fault;
use crate::rule::AggregateOf;
use crate::sum::FloatSum;
use crate::value::{Literals, Scalar, Value};
use corebeat_cypher::syntax::Aggregate;
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

impl Accumulator {
    /// Adds values that are not null, for a function that only counts.
    pub(crate) fn count_more(&mut self, values: u64) {
        self.count += values;
    }
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
            (_, Scalar::Float(value)) => own.float.add(value),
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
        let total = || own.float.total(own.int);
        let values = own.values.keys().copied();
        Ok(match of.function {
            Aggregate::Count => Scalar::Int(own.count as i64),
            Aggregate::Sum if own.float.count > 0 => Scalar::Float(total()),
            Aggregate::Sum => {
                Scalar::Int(i64::try_from(own.int).map_err(|_| "the sum is too large")?)
            }
            Aggregate::Average if own.count == 0 => Scalar::Null,
            Aggregate::Average => Scalar::Float(total() / own.count as f64),
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
