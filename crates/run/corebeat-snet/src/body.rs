//! What is behind a box: a function, in whatever language.

use crate::label::{Kind, Label};
use crate::plan::BoxPlan;
use crate::value::Value;

/// A box's function. It keeps nothing from one call to the next that a caller could see: networks call it in any order, in
/// several places at once.
pub trait BoxBody: Send + Sync {
    /// Called for one record, with the values that the box declares, in its order. They may be taken out.
    ///
    /// # Errors
    ///
    /// What it could not do, in one line. What it has put out until then stays out.
    fn call(&self, input: &mut [Value], out: &mut Out<'_>) -> Result<(), String>;
}

/// Where a box puts what it makes.
pub struct Out<'a> {
    plan: &'a BoxPlan,
    sink: &'a mut dyn Sink,
}

/// Takes what a box puts out.
pub trait Sink {
    /// A record of the variant with this index (from 0), whose values fit the declaration in number and kind. They may be
    /// taken out. `false`: nobody wants any more.
    fn put(&mut self, variant: usize, values: &mut [Value]) -> bool;
}

impl<'a> Out<'a> {
    /// For a box so declared, into this.
    #[inline]
    pub fn new(plan: &'a BoxPlan, sink: &'a mut dyn Sink) -> Out<'a> {
        Out { plan, sink }
    }

    /// The box as it is declared.
    pub fn plan(&self) -> &'a BoxPlan {
        self.plan
    }

    /// Puts out a record: the values of output `variant`, counted from 1 as in the declaration, in its order. Waits where
    /// there is no room. The values are taken out.
    ///
    /// `Ok(false)`: the network has come down, and a function that would put out more may return.
    ///
    /// # Errors
    ///
    /// When the declaration has no such variant, or other values in it.
    #[inline]
    pub fn put(&mut self, variant: usize, values: &mut [Value]) -> Result<bool, String> {
        let labels = variant.checked_sub(1).and_then(|v| self.plan.outputs.get(v));
        let field = |label: &Label| label.kind() == Kind::Field;
        let fit = |(label, value): (&Label, &Value)| field(label) != matches!(value, Value::Tag(_));
        if !labels.is_some_and(|l| l.len() == values.len() && l.iter().zip(&*values).all(fit)) {
            return Err(self.unfit(variant, values));
        }
        Ok(self.sink.put(variant - 1, values))
    }
    /// Why a record is none of the declaration.
    #[cold]
    fn unfit(&self, variant: usize, values: &[Value]) -> String {
        let plan = self.plan;
        let Some(labels) = variant.checked_sub(1).and_then(|v| plan.outputs.get(v)) else {
            return format!(
                "it put out variant {variant}, and declares {} of them: {plan}",
                plan.outputs.len()
            );
        };
        for (label, value) in labels.iter().zip(values) {
            if labels.len() == values.len() && (label.kind() == Kind::Field) == matches!(value, Value::Tag(_))
            {
                return format!("it put out {value:?} as {label} of variant {variant}: {plan}");
            }
        }
        let (n, wanted) = (values.len(), labels.len());
        format!("it put out {n} values as variant {variant}, which has {wanted}: {plan}")
    }
}
