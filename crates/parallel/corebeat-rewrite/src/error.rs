//! Errors.

/// A failure of a call of this crate.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A type is declared again, with a parent that it lacks.
    #[error("type {name} exists with other parents; declare it once, or with the same parents")]
    Parents {
        /// Name of the type.
        name: String,
    },
    /// A limit of the graph is reached.
    #[error("the graph has no room for more {of} than {limit}; divide the graph")]
    Full {
        /// The elements that are too many.
        of: &'static str,
        /// Largest number of them.
        limit: u64,
    },
    /// An element does not exist, or exists no more.
    #[error("{element} does not exist in the graph; it may have been deleted")]
    Missing {
        /// The element.
        element: String,
    },
    /// A node is to be deleted that still has edges.
    #[error("node {node} still has edges; delete them first, or detach the node")]
    Dangling {
        /// Number of the node.
        node: u32,
    },
    /// A file of a graph is not valid.
    #[error("{name}, line {line}: {why}")]
    Read {
        /// Name of the file.
        name: String,
        /// Line, from 1.
        line: usize,
        /// The mistake and the remedy.
        why: String,
    },
    /// A text with rules is not valid.
    #[error("{name}, line {line}, column {column}: {why}")]
    Text {
        /// Name of the text.
        name: String,
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// The mistake and the remedy.
        why: String,
    },
    /// A rule that a builder describes is not valid.
    #[error("rule {rule}: {why}")]
    Rule {
        /// Name of the rule.
        rule: String,
        /// The mistake and the remedy.
        why: String,
    },
    /// An expression has no value, or the graph has no room for what the rule creates. The
    /// application of the rule changed nothing.
    #[error("rule {rule}: {why}; this application changed nothing")]
    Evaluate {
        /// Name of the rule, with its place if it has one.
        rule: String,
        /// The mistake.
        why: String,
    },
    /// A query was stopped, so that its results are not complete.
    #[error("the query was stopped before its end; evaluate it again")]
    Stopped,
    /// A parallel run could not be started or lost a task.
    #[error("cannot run in parallel: {why}")]
    Parallel {
        /// The reason.
        why: String,
    },
}
