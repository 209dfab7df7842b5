//! Errors of claims.

use corebeat_policy::claims::ClaimError;
use corebeat_wire::{Refusal, remedy};
use std::borrow::Cow;

/// An error of a claim.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A child of fork used a claim of its parent.
    #[error("this claim belongs to the parent process: begin another claim in the child")]
    Forked,
    /// The process has [`CLAIMS_MAX`](crate::CLAIMS_MAX) claims; or the process, its user, or all
    /// users have reached a limit of the daemon: of claims, connections, or calls a second.
    #[error("the limit of {limit} {what} is reached: {}", remedy(what))]
    TooMany {
        /// The objects that are counted.
        what: Cow<'static, str>,
        /// The limit.
        limit: usize,
    },
    /// An argument is invalid.
    #[error(transparent)]
    InvalidArgument(ClaimError),
    /// The daemon refused, or does not answer.
    #[error(transparent)]
    Daemon(corebeat_wire::Error),
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// The failed operation.
        what: &'static str,
        /// Error of the system.
        source: std::io::Error,
    },
}

impl From<ClaimError> for Error {
    fn from(why: ClaimError) -> Error {
        match why {
            ClaimError::TooMany { what, limit } => Error::TooMany { what: what.into(), limit },
            why => Error::InvalidArgument(why),
        }
    }
}

impl From<corebeat_wire::Error> for Error {
    fn from(why: corebeat_wire::Error) -> Error {
        match why {
            corebeat_wire::Error::Refused(Refusal::TooMany { what, limit }) => Error::TooMany {
                what: what.into(),
                limit: usize::try_from(limit).unwrap_or(usize::MAX),
            },
            why => Error::Daemon(why),
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_of_calls_is_not_answered_by_ending_a_claim() {
        let what = "calls a second of a user".into();
        let refused = corebeat_wire::Error::from(Refusal::TooMany { what, limit: 1000 });
        let limit = Error::from(refused).to_string();
        assert_eq!(limit, "the limit of 1000 calls a second of a user is reached: call less often");
    }
}
