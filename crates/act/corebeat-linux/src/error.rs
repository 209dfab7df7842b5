//! Why this host could not be seen or steered.

use std::io;
use std::path::PathBuf;

/// Why this host could not be seen or steered. The messages say what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of the kernel's could not be read, or holds what nobody expected.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The process has ended, or never was.
    #[error("there is no process {pid}; see 'ps -e' for those that run")]
    NoProcess {
        /// Its number.
        pid: i32,
    },
    /// The process or resource belongs to somebody else.
    #[error("not allowed to {what}: {source}; run as the owner, or as root")]
    Denied {
        /// What was tried.
        what: String,
        /// Why.
        source: io::Error,
    },
    /// The kernel would not do it.
    #[error("could not {what}: {source}")]
    Refused {
        /// What was tried.
        what: String,
        /// Why.
        source: io::Error,
    },
    /// This kernel, processor or permission cannot do it at all.
    #[error("{what} is not available here: {how}")]
    Missing {
        /// What is missing.
        what: String,
        /// How to get it.
        how: String,
    },
    /// The program to start is not there.
    #[error("there is no program '{program}' (or what interprets it is missing); give its path, or see PATH")]
    NotFound {
        /// As it was given.
        program: String,
    },
    /// The program to start is there, but cannot be run.
    #[error("cannot run '{program}': {source}; see its permissions with 'ls -l'")]
    NotExecutable {
        /// As it was given.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// An action that makes no sense, such as a slice of 0.
    #[error("{0}")]
    Senseless(String),
}
