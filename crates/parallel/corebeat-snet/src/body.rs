//! Interface between a network and the functions of its boxes.

use std::any::Any;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::label::Label;
use crate::plan::BoxPlan;
use crate::value::Value;

/// Function of a box. It keeps no visible state between calls, because networks call it in any
/// order and on several threads at a time.
pub trait BoxBody: Send + Sync {
    /// Processes one record. `input` has the values that the box declares, in its order. The
    /// function may move them out.
    ///
    /// # Errors
    ///
    /// Returns the reason of a failure in one line. Records that were output before the failure
    /// remain valid.
    fn call(&self, input: &mut [Value], out: &mut Out<'_>) -> Result<(), String>;
}

/// Output of a box.
pub struct Out<'a> {
    plan: &'a BoxPlan,
    sink: &'a mut dyn Sink,
}

/// Receiver of the records that a box outputs.
pub trait Sink {
    /// Receives a record of the variant with this index (from 0), whose values match the
    /// declaration in number and kind. The function may move the values out. Returns `false` if no
    /// more records are accepted.
    fn put(&mut self, variant: usize, values: &mut [Value]) -> bool;
}

impl<'a> Out<'a> {
    /// Creates an output for a box with this declaration.
    #[inline]
    pub fn new(plan: &'a BoxPlan, sink: &'a mut dyn Sink) -> Out<'a> {
        Out { plan, sink }
    }

    /// Declaration of the box.
    pub fn plan(&self) -> &'a BoxPlan {
        self.plan
    }

    /// Outputs a record: the values of output `variant`, counted from 1, in the order of the
    /// declaration. Blocks while the output stream is full. Moves the values out.
    ///
    /// Returns `Ok(false)` if the network is shutting down, so that the function can stop its
    /// output.
    ///
    /// # Errors
    ///
    /// Returns an error if the declaration has no such variant, or if the variant has other values.
    #[inline]
    pub fn put(&mut self, variant: usize, values: &mut [Value]) -> Result<bool, String> {
        let labels = variant.checked_sub(1).and_then(|v| self.plan.outputs.get(v));
        let fit = |(label, value): (&Label, &Value)| value.fits(label.kind());
        if !labels.is_some_and(|l| l.len() == values.len() && l.iter().zip(&*values).all(fit)) {
            return Err(self.mismatch(variant, values));
        }
        Ok(self.sink.put(variant - 1, values))
    }
    /// Returns the reason why a record does not match the declaration.
    #[cold]
    fn mismatch(&self, variant: usize, values: &[Value]) -> String {
        let plan = self.plan;
        let Some(labels) = variant.checked_sub(1).and_then(|v| plan.outputs.get(v)) else {
            return undeclared(variant, plan.outputs.len(), plan);
        };
        for (label, value) in labels.iter().zip(values) {
            if labels.len() == values.len() && !value.fits(label.kind()) {
                let cure = value.cure(*label);
                return format!(
                    "the box output {value:?} as {label} of variant {variant}: {plan}; {cure}"
                );
            }
        }
        let (n, wanted) = (values.len(), labels.len());
        format!("the box output {n} values as variant {variant}, which has {wanted}: {plan}")
    }
}

/// Calls a function. Its panic becomes an error.
#[inline]
pub(crate) fn invoke(
    body: &dyn BoxBody,
    arguments: &mut [Value],
    out: &mut Out<'_>,
) -> Result<(), String> {
    // The arguments are cleared before their next use, and output records have been passed on.
    catch(|| body.call(arguments, out))
        .unwrap_or_else(|why| Err(format!("the box panicked: {why}")))
}

/// Calls code of a user, which leaves nothing behind that its panic could make inconsistent.
/// Returns the message of the panic.
#[inline]
pub(crate) fn catch<T>(code: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(code)).map_err(|payload| {
        if corebeat_lpel::ends_task(&*payload) {
            resume_unwind(payload); // the runtime ends the task
        }
        panic_message(&*payload)
    })
}

#[cold]
pub(crate) fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or(payload.downcast_ref().copied()).unwrap_or("(no message)").into()
}

/// Returns the reason why a box must not output a variant.
pub(crate) fn undeclared(variant: impl Display, declared: usize, plan: &BoxPlan) -> String {
    let s = if declared == 1 { "" } else { "s" };
    format!("the box output variant {variant}, but declares {declared} variant{s}: {plan}")
}
