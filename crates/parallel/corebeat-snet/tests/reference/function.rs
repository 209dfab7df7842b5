//! Functions of random boxes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use corebeat_snet::body::{BoxBody, Out};
use corebeat_snet::plan::BoxPlan;
use corebeat_snet::{Kind, Value};

/// Function that depends only on its arguments and a seed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function {
    /// Seed of the function.
    pub(crate) seed: u64,
    /// Minimum number of outputs for one record.
    pub(crate) fewest: u32,
    /// Maximum number of outputs for one record.
    pub(crate) most: u32,
    /// Whether fields hold ids. Then each of `n` output records gets all input ids, with `.i/n`
    /// appended if `n` is not 1, and everything else depends only on tags. Otherwise fields hold
    /// numbers.
    pub(crate) forwards_ids: bool,
}

impl Function {
    /// Returns variants (from 0) and their values.
    pub(crate) fn call(&self, plan: &BoxPlan, input: &[Value]) -> Vec<(usize, Vec<Value>)> {
        let seen =
            input.iter().filter(|value| !self.forwards_ids || matches!(value, Value::Tag(_)));
        let state = seen.fold(self.seed, |state, value| mix(state, content(value)));
        let count = self.fewest + (state % u64::from(self.most - self.fewest + 1)) as u32;
        let outputs = (0..count).map(|i| {
            let state = mix(state, i.into());
            let variant = (state % plan.outputs.len() as u64) as usize;
            let values = plan.outputs[variant].iter().enumerate().map(|(entry, label)| {
                let state = mix(state, entry as u64);
                match label.kind() {
                    Kind::Tag | Kind::BindingTag => Value::Tag((state % 6) as i32 - 1),
                    Kind::Field if self.forwards_ids => forward_ids(input, i, count),
                    Kind::Field => number(state),
                }
            });
            (variant, values.collect())
        });
        outputs.collect()
    }
}

impl BoxBody for Function {
    fn call(&self, input: &mut [Value], out: &mut Out<'_>) -> Result<(), String> {
        for (variant, mut values) in Function::call(self, out.plan(), input) {
            if !out.put(variant + 1, &mut values)? {
                break;
            }
        }
        Ok(())
    }
}

fn forward_ids(input: &[Value], i: u32, count: u32) -> Value {
    let ids = input
        .iter()
        .flat_map(ids)
        .map(|id| if count == 1 { id } else { format!("{id}.{i}/{count}") });
    let ids: BTreeSet<String> = ids.collect();
    Value::from(ids.into_iter().collect::<Vec<_>>().join("+").as_str())
}

/// A field with this number. Every second one is an array, which moves between ranks by reference
/// if it is larger than the limit of the run.
pub(crate) fn number(n: u64) -> Value {
    if n.is_multiple_of(2) { Value::from(n) } else { Value::bytes(&n.to_le_bytes()) }
}

/// The number of a tag or of a field of [`number`], or the same number for all other values.
fn content(value: &Value) -> u64 {
    let bytes = || value.as_bytes().and_then(|bytes| bytes.try_into().ok());
    match value.integer() {
        Some(n) => n as u64,
        None => bytes().map_or(u64::MAX, u64::from_le_bytes),
    }
}

/// Ids in a value.
pub(crate) fn ids(value: &Value) -> Vec<String> {
    value.as_str().map_or(Vec::new(), |text| text.split('+').map(str::to_string).collect())
}

/// Functions of the boxes of a net, by name.
pub(crate) type Functions = BTreeMap<String, Arc<Function>>;

/// Pseudorandom function of two numbers.
fn mix(state: u64, n: u64) -> u64 {
    fastrand::Rng::with_seed(state.rotate_left(32) ^ n).u64(..)
}
