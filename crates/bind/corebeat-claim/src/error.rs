//! Errors of claims.

use corebeat_policy::claims::ClaimError;

/// An error of a claim.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument is invalid.
    #[error(transparent)]
    InvalidArgument(#[from] ClaimError),
    /// The daemon refused, or does not answer.
    #[error(transparent)]
    Daemon(#[from] corebeat_wire::Error),
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// The failed operation.
        what: &'static str,
        /// Error of the system.
        source: std::io::Error,
    },
}

impl Error {
    /// Whether the daemon has ended, and the claim with it.
    pub(crate) fn is_end_of_daemon(&self) -> bool {
        matches!(self, Error::Daemon(corebeat_wire::Error::Closed | corebeat_wire::Error::Stale))
    }

    pub(crate) fn system(what: &'static str, source: impl Into<std::io::Error>) -> Error {
        Error::System { what, source: source.into() }
    }
}
