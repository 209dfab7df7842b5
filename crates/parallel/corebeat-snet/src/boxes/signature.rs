//! Signature of a box function, in the notation of programs.

use std::fmt;

use crate::ast::{BoxDefinition, Definition, Entry};
use crate::label::Label;
use crate::plan::BoxPlan;

/// Inputs and outputs of a function: `(A, <T>) -> (A) | (<T>)`.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Signature {
    /// `None` for an initialiser.
    pub(super) input: Option<Vec<Label>>,
    pub(super) outputs: Vec<Vec<Label>>,
}

impl Signature {
    /// Parses `(A, <T>, <#B> =) -> (A) | (B)`, optionally in parentheses.
    pub(super) fn read(text: &str) -> Result<Signature, String> {
        // `((A) -> ...)` and `(-> ...)` are in parentheses, `(A) -> ...` is not.
        let inner = text.trim_start().strip_prefix('(').map(str::trim_start);
        let around = inner.is_some_and(|i| i.starts_with('(') || i.starts_with("->"));
        let program = if around { format!("box f {text};") } else { format!("box f ({text});") };
        let module = crate::parse(&program).map_err(|errors| errors[0].message.clone())?;
        let [Definition::Box(BoxDefinition { input, outputs, body: None, .. })] =
            &module.definitions[..]
        else {
            return Err("expected the end after it".into());
        };
        let input = input.as_ref().map(|input| labels(input.iter().map(|input| &input.entry)));
        let outputs = outputs.iter().map(labels);
        Ok(Signature { input: input.transpose()?, outputs: outputs.collect::<Result<_, _>>()? })
    }

    /// Whether a program declares the same signature. Labels that also flow past do not matter.
    pub(super) fn fits(&self, plan: &BoxPlan) -> bool {
        let input =
            plan.input.as_ref().map(|entries| entries.iter().map(|e| e.label).collect::<Vec<_>>());
        self.input == input && self.outputs == plan.outputs
    }
}

/// `(A, <T>) -> (A) | (<T>)`
impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn list(f: &mut fmt::Formatter<'_>, labels: &[Label]) -> fmt::Result {
            f.write_str("(")?;
            for (i, label) in labels.iter().enumerate() {
                write!(f, "{}{label}", if i == 0 { "" } else { ", " })?;
            }
            f.write_str(")")
        }
        if let Some(input) = &self.input {
            list(f, input)?;
            f.write_str(" ")?;
        }
        f.write_str("->")?;
        for (i, output) in self.outputs.iter().enumerate() {
            f.write_str(if i == 0 { " " } else { " | " })?;
            list(f, output)?;
        }
        Ok(())
    }
}

/// The labels of one list.
fn labels<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Result<Vec<Label>, String> {
    let mut labels = Vec::new();
    for Entry { kind, name } in entries {
        let label = Label::new(*kind, &name.text).map_err(|e| e.to_string())?;
        if labels.contains(&label) {
            return Err(format!("{label} occurs twice in one list"));
        }
        labels.push(label);
    }
    Ok(labels)
}
