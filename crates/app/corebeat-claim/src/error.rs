//! What can go wrong.

use corebeat_policy::claims::ClaimError;

/// Why a claim did not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What was asked for makes no sense.
    #[error(transparent)]
    Senseless(#[from] ClaimError),
    /// The daemon refused, or went away: what it gave is void then, and a new claim is made where it is back, or without it.
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
    pub(crate) fn system(what: &'static str, source: impl Into<std::io::Error>) -> Error {
        Error::System { what, source: source.into() }
    }
}
