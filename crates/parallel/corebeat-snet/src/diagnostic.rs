//! Diagnostics of the parser and the checker.

use std::fmt;

use crate::ast::Span;

/// Severity of a diagnostic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The program runs, but may not do what its author intends.
    Warning,
    /// The program cannot run.
    Error,
}

/// An error or a warning about a program.
#[derive(Clone, Debug)]
pub struct Diagnostic {
    /// Severity.
    pub severity: Severity,
    /// The mistake, in one line.
    pub message: String,
    /// Places in the source, each with a short text. The first place is the main one.
    pub labels: Vec<(Span, String)>,
    /// Correction.
    pub help: Option<String>,
}

impl Diagnostic {
    /// Creates an error at a place.
    pub fn error(message: impl Into<String>, span: Span, label: impl Into<String>) -> Diagnostic {
        Diagnostic {
            severity: Severity::Error,
            message: message.into(),
            labels: vec![(span, label.into())],
            help: None,
        }
    }

    /// Creates a warning at a place.
    pub fn warning(message: impl Into<String>, span: Span, label: impl Into<String>) -> Diagnostic {
        Diagnostic { severity: Severity::Warning, ..Diagnostic::error(message, span, label) }
    }

    /// Adds a place.
    pub fn and(mut self, span: Span, label: impl Into<String>) -> Diagnostic {
        self.labels.push((span, label.into()));
        self
    }

    /// Sets the correction.
    pub fn help(mut self, help: impl Into<String>) -> Diagnostic {
        self.help = Some(help.into());
        self
    }

    /// Line and column of the main place, both from 1.
    pub fn position(&self, source: &str) -> (usize, usize) {
        let start = self.labels.first().map_or(0, |(span, _)| span.start.min(source.len()));
        let before = &source[..start];
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        (line, column)
    }
}

/// The message and the correction in one line, without the place.
impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.help {
            Some(help) => write!(f, "; {help}"),
            None => Ok(()),
        }
    }
}
