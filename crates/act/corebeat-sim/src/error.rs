//! What can go wrong.

/// Why a scenario cannot be simulated, or an action not be carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The text is no scenario.
    #[error("line {line}, column {column}: {what}")]
    Text {
        /// Where, from 1.
        line: usize,
        /// Where, from 1.
        column: usize,
        /// What is wrong.
        what: String,
    },
    /// The machine cannot be built.
    #[error("machine: {0}")]
    Machine(String),
    /// A program cannot be run.
    #[error("{place}: {what}")]
    Program {
        /// Which program, team and step.
        place: String,
        /// What is wrong, and what to write.
        what: String,
    },
    /// The scenario as a whole makes no sense.
    #[error("{0}")]
    Scenario(String),
    /// The action makes no sense here.
    #[error("{0}")]
    Action(String),
}

/// A number as TOML writes it, without hundreds of digits.
pub(crate) fn number(value: f64) -> String {
    match value {
        _ if value.is_nan() => "nan".to_owned(),
        _ if value.is_finite() && value.abs() >= 1e16 => format!("{value:e}"),
        _ => value.to_string(),
    }
}
