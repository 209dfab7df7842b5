//! What can go wrong.

use corebeat_policy::claims::ClaimError;

/// Why a claim did not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What was asked for makes no sense.
    #[error(transparent)]
    Senseless(#[from] ClaimError),
    /// The daemon refused, or does not answer.
    #[error(transparent)]
    Daemon(#[from] corebeat_wire::Error),
    /// The system refused.
    #[error("{what}: {source}")]
    System {
        /// What we wanted.
        what: &'static str,
        /// What it said.
        source: std::io::Error,
    },
    /// This machine's CPUs are not known.
    #[error(transparent)]
    Machine(#[from] corebeat_linux::Error),
}

impl Error {
    /// Whether there is nobody any more who knows of the claim.
    pub(crate) fn is_end_of_daemon(&self) -> bool {
        matches!(self, Error::Daemon(corebeat_wire::Error::Closed | corebeat_wire::Error::Stale))
    }

    pub(crate) fn system(what: &'static str, source: impl Into<std::io::Error>) -> Error {
        Error::System { what, source: source.into() }
    }
}
