//! The error types of this crate.

use std::fmt;
use std::io;
use std::path::PathBuf;

use corebeat_lpel::Failure;
use thiserror::Error;

use crate::boxes::C_ENTRIES_MAX;
use crate::label::{LABELS_MAX, Label};
use crate::run::Outcome;
use crate::shape::SHAPES_MAX;
use crate::value::Value;

/// Failure of an operation of this crate.
///
/// Mistakes in S-Net source text are [`Diagnostic`](crate::diagnostic::Diagnostic)s instead, and
/// records that fail inside a network are [`Fault`](crate::Fault)s, which a [`RunError`] reports.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The process uses too many different label names.
    #[error("more than {LABELS_MAX} different labels: put the differences into values, not names")]
    TooManyLabels,
    /// The process uses too many different sets of labels.
    #[error(
        "more than {SHAPES_MAX} different sets of labels: put the differences into values, \
         not names"
    )]
    TooManyShapes,

    /// A tag of a record has another value than a [`Value::Tag`], or a field has such a value.
    #[error("a record cannot have {value:?} as {label}; {}", value.cure(*label))]
    WrongKind {
        /// Label of the value.
        label: Label,
        /// The value.
        value: Value,
    },

    /// The signature of a box function cannot be parsed.
    #[error(
        "the signature `{signature}` of box {name} is invalid: {why}; \
         write it as `(A, <T>) -> (A) | (B)`"
    )]
    Signature {
        /// Name of the box.
        name: String,
        /// Signature as the caller passed it.
        signature: String,
        /// Reason.
        why: String,
    },
    /// A function takes other arguments than its signature declares.
    #[error("box {name} {signature}: {why}")]
    Arguments {
        /// Name of the box.
        name: String,
        /// Signature of the function.
        signature: String,
        /// Reason.
        why: String,
    },
    /// Two functions have the same name.
    #[error("box {name} has two functions: remove one of them")]
    DuplicateFunction {
        /// Name of the box.
        name: String,
    },
    /// A box has no function.
    #[error("box {name} has no function{searched}; {cure}")]
    MissingFunction {
        /// Name of the box.
        name: String,
        /// Files that were searched.
        searched: String,
        /// Correction.
        cure: &'static str,
    },
    /// A program declares a box with another signature than its function has.
    #[error("the program declares box {plan}, but its function is {function}: make them equal")]
    SignatureMismatch {
        /// Declaration in the program.
        plan: String,
        /// Name and signature of the function.
        function: String,
    },
    /// A library cannot be used.
    #[error("{}: {why}", path.display())]
    Library {
        /// File of the library.
        path: PathBuf,
        /// Reason.
        why: String,
    },
    /// The boxes that a library in Rust exports are invalid.
    #[error("the library exports no boxes: {0}")]
    Export(String),
    /// A box has too many fields and tags for C.
    #[error(
        "box {plan} has more than {C_ENTRIES_MAX} fields and tags in one list, the most that a \
         box in C can have: split the list or write the box in Rust"
    )]
    TooManyEntries {
        /// Declaration in the program.
        plan: String,
    },
    /// The code of a box is in an unsupported language.
    #[error(
        "box {name} is written in {language}, which is not supported: write it in C, C++ or \
         Python, or register a function in Rust"
    )]
    UnsupportedLanguage {
        /// Name of the box.
        name: String,
        /// Language that the program names.
        language: String,
    },
    /// A source file has an unknown extension.
    #[error(
        "{}: unknown kind of source file: rename it to end in .c, .cc, .cpp, .cxx or .py",
        path.display()
    )]
    UnsupportedSource {
        /// The file.
        path: PathBuf,
    },
    /// A compiler does not start.
    #[error("the compiler {compiler} does not start: {why}; install a compiler, or set {variable}")]
    Compiler {
        /// Name of the compiler.
        compiler: String,
        /// Environment variable that selects the compiler.
        variable: &'static str,
        /// Reason.
        why: String,
    },
    /// Code of boxes does not compile.
    #[error("the boxes do not compile:\n{messages}")]
    Compilation {
        /// Messages of the compiler.
        messages: String,
    },
    /// Python code does not load.
    #[error("{what} in Python: {why}")]
    Python {
        /// Box or file.
        what: String,
        /// Reason.
        why: String,
    },
    /// The folder for compiled boxes cannot be written.
    #[error("cannot write in {}: {why}; set TMPDIR to another folder", folder.display())]
    TemporaryFolder {
        /// The folder.
        folder: PathBuf,
        /// Reason.
        why: String,
    },

    /// The name of a record format is unknown.
    #[error("unknown record format `{0}`: use `xml` or `json`")]
    UnknownFormat(String),
    /// Text is not a record. The reader continues after the text.
    #[error("line {line}, column {column}: {what}")]
    Syntax {
        /// Line, from 1.
        line: u64,
        /// Column in characters, from 1.
        column: u64,
        /// The mistake.
        what: String,
    },
    /// A record introduces too many labels or sets of labels. The reader continues after the
    /// record.
    #[error("line {line}, column {column}: {source}")]
    RecordLimit {
        /// Line, from 1.
        line: u64,
        /// Column in characters, from 1.
        column: u64,
        /// The limit.
        source: Box<Error>,
    },
    /// The input fails. The reader ends.
    #[error("line {line}, column {column}: cannot read the input: {source}")]
    Read {
        /// Line, from 1.
        line: u64,
        /// Column in characters, from 1.
        column: u64,
        /// Reason.
        source: io::Error,
    },
    /// A value has no text. The writer omits its record.
    #[error("cannot write {label}: {why}")]
    UnwritableValue {
        /// Label of the value.
        label: Label,
        /// Reason and correction.
        why: String,
    },
    /// The output fails.
    #[error("cannot write the output: {0}")]
    Write(#[from] io::Error),
}

/// Failure of a run of a network.
#[derive(Error)]
#[non_exhaustive]
pub enum RunError {
    /// A fault has stopped the network ([`OnFault::Stop`](crate::OnFault::Stop)). The outcome has
    /// the faults, and the records that were output.
    #[error("{}", stopped(.0))]
    Stopped(Outcome),
    /// A task of the network panicked, tasks are deadlocked, or the runtime is that of a parent
    /// process.
    #[error(transparent)]
    Runtime(#[from] Failure),
}

/// Message of a network that stopped.
fn stopped(outcome: &Outcome) -> String {
    let first = outcome.faults.first().map(|fault| format!(": {fault}")).unwrap_or_default();
    format!(
        "the network stopped at a fault{first}; set `OnFault::Continue` to continue after faults"
    )
}

/// The message, because the records of the outcome may be many.
impl fmt::Debug for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunError({self})")
    }
}
