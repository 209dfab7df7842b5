//! Errors of the Linux machine.

use crate::file;
use std::io;
use std::path::{Path, PathBuf};

/// Errors of observing or changing this host. The messages include what the user can do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file of the kernel cannot be read, or has unexpected content.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The process does not exist.
    #[error("process {pid} does not exist: list processes with 'ps -e'")]
    NoProcess {
        /// Number of the process.
        pid: i32,
    },
    /// The process or resource belongs to another user.
    #[error("no permission to {what}: {source}; run as the owner or as root")]
    Denied {
        /// Attempted operation.
        what: String,
        /// Cause.
        source: io::Error,
    },
    /// The kernel refused the operation.
    #[error("cannot {what}: {source}{}", hint(source))]
    Refused {
        /// Attempted operation.
        what: String,
        /// Cause.
        source: io::Error,
    },
    /// The kernel, the processor or the permissions do not support the operation.
    #[error("{what} is not available here: {how}")]
    Unsupported {
        /// Missing feature.
        what: String,
        /// Way to get the feature.
        how: String,
    },
    /// The program to start does not exist.
    #[error(
        "program '{program}' or its interpreter does not exist: give the path of the program, or check PATH"
    )]
    NotFound {
        /// Name of the program, as given.
        program: String,
    },
    /// The program to start exists, but cannot be executed.
    #[error("cannot run '{program}': {source}{}", hint_to_execute(program, source))]
    NotExecutable {
        /// Name of the program, as given.
        program: String,
        /// Cause.
        source: io::Error,
    },
    /// Invalid value or unknown target of an action.
    #[error("{0}")]
    InvalidArgument(String),
}

impl Error {
    /// Returns whether the cause is that no descriptor is free.
    pub fn lacks_descriptors(&self) -> bool {
        let source = std::error::Error::source(self);
        source.and_then(|e| e.downcast_ref()).is_some_and(file::is_exhaustion)
    }

    /// Returns the error of a system call: [`Error::Denied`] for a missing permission, otherwise
    /// [`Error::Refused`].
    pub(crate) fn of_call(what: impl Into<String>, source: io::Error) -> Error {
        let what = what.into();
        match source.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Error::Denied { what, source }
            }
            _ => Error::Refused { what, source },
        }
    }
}

/// Returns what the user can do about an error of a system call, as the rest of its message.
fn hint(e: &io::Error) -> &'static str {
    if file::is_exhaustion(e) { "; increase the limit with 'ulimit -n'" } else { "" }
}

/// Returns what the user can do about a program that cannot be executed, as the rest of its
/// message.
fn hint_to_execute(program: &str, e: &io::Error) -> &'static str {
    match e.kind() {
        io::ErrorKind::ArgumentListTooLong => "; shorten the arguments or the environment",
        // The kernel denies the permission to execute a directory.
        io::ErrorKind::PermissionDenied if program.contains('/') && Path::new(program).is_dir() => {
            "; it is a directory: give the path of a program"
        }
        io::ErrorKind::PermissionDenied => "; check its permissions with 'ls -l'",
        _ => hint(e),
    }
}
