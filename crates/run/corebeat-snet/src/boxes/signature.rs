//! The signature that is given for a function, in the notation of programs.

use std::fmt;

use crate::label::{Kind, Label};
use crate::plan::BoxPlan;

/// What a function takes and puts out: `(A, <T>) -> (A) | (<T>)`.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Signature {
    /// `None` for an initialiser.
    pub(super) input: Option<Vec<Label>>,
    pub(super) outputs: Vec<Vec<Label>>,
}

impl Signature {
    /// Reads `(A, <T>, <#B> =) -> (A) | (<T>)`, with or without brackets around it all.
    pub(super) fn read(text: &str) -> Result<Signature, String> {
        let mut reader = Reader { rest: text.trim_start() };
        // `((A) -> ...)` has brackets around it all, as has `(-> ...)`; `(A) -> ...` has not.
        let inner = reader.rest.strip_prefix('(').map(str::trim_start);
        let around = inner.is_some_and(|i| i.starts_with('(') || i.starts_with("->"));
        if around {
            reader.take("(");
        }
        let input = if reader.rest.starts_with("->") { None } else { Some(reader.list(true)?) };
        reader.expect("->")?;
        let mut outputs = Vec::new();
        if reader.rest.starts_with('(') {
            outputs.push(reader.list(false)?);
            while reader.take("|") {
                outputs.push(reader.list(false)?);
            }
        }
        if around {
            reader.expect(")")?;
        }
        match reader.rest {
            "" => Ok(Signature { input, outputs }),
            rest => Err(format!("there is more behind it: `{rest}`")),
        }
    }

    /// Whether a program declares the same. Which of the labels flow past as well is nothing to the function.
    pub(super) fn fits(&self, plan: &BoxPlan) -> bool {
        let input = plan.input.as_ref().map(|entries| entries.iter().map(|e| e.label).collect::<Vec<_>>());
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

/// What is still to be read; it never begins with blanks.
struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    fn take(&mut self, token: &str) -> bool {
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest.trim_start();
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        match self.take(token) {
            true => Ok(()),
            false if self.rest.is_empty() => Err(format!("`{token}` is missing at its end")),
            false => Err(format!("`{token}` is missing before `{}`", self.rest)),
        }
    }

    /// `(A, <T>)`, with `=` behind labels of an input.
    fn list(&mut self, input: bool) -> Result<Vec<Label>, String> {
        self.expect("(")?;
        let mut labels = Vec::new();
        if self.take(")") {
            return Ok(labels);
        }
        loop {
            let label = self.label()?;
            if labels.contains(&label) {
                return Err(format!("{label} is twice in one list"));
            }
            labels.push(label);
            if input {
                self.take("=");
            }
            if !self.take(",") {
                self.expect(")")?;
                return Ok(labels);
            }
        }
    }

    fn label(&mut self) -> Result<Label, String> {
        let kind = if self.take("<#") {
            Kind::BindingTag
        } else if self.take("<") {
            Kind::Tag
        } else {
            Kind::Field
        };
        let end = self.rest.find(|c: char| c != '_' && !c.is_ascii_alphanumeric()).unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(match rest {
                "" => "a label is missing at its end".to_string(),
                _ => format!("a label is missing before `{}`", self.rest),
            });
        }
        self.rest = rest.trim_start();
        if kind != Kind::Field {
            self.expect(">")?;
        }
        Label::new(kind, name).map_err(|e| e.to_string())
    }
}
