//! Errors of the host layer.

use std::fmt;

/// An error of the host layer. The messages name what failed and what the user can do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The host could not be observed or changed, or a program could not be started.
    #[error(transparent)]
    Linux(#[from] corebeat_linux::Error),
    /// A command line or option that cannot be carried out.
    #[error("{0}")]
    InvalidArgument(String),
    /// A failure of Corebeat or of the operating system.
    #[error("{0}")]
    Failed(String),
}

impl Error {
    /// An invalid command line or option.
    pub(crate) fn invalid(line: impl fmt::Display) -> Error {
        Error::InvalidArgument(line.to_string())
    }

    /// A failure of Corebeat or of the operating system.
    pub fn failed(line: impl fmt::Display) -> Error {
        Error::Failed(line.to_string())
    }
}
