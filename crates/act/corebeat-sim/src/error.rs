//! Errors of scenarios and actions.

/// Reason why a scenario cannot be simulated or an action cannot be carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is not a valid scenario.
    #[error("line {line}, column {column}: {what}")]
    Text {
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// The invalid part.
        what: String,
    },
    /// The machine is invalid.
    #[error("machine: {0}")]
    Machine(String),
    /// A program is invalid.
    #[error("{place}: {what}")]
    Program {
        /// Program, team and step.
        place: String,
        /// The invalid part, and the valid form.
        what: String,
    },
    /// The scenario as a whole is invalid.
    #[error("{0}")]
    Scenario(String),
    /// The action is invalid on this machine.
    #[error("{0}")]
    Action(String),
}

/// Formats a number as in TOML, without hundreds of digits.
pub(crate) fn number(value: f64) -> String {
    match value {
        _ if value.is_nan() => "nan".to_owned(),
        _ if value.is_finite() && value.abs() >= 1e16 => format!("{value:e}"),
        _ => value.to_string(),
    }
}
