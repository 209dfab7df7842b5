//! Errors of the daemon.

use crate::http::Place;
use crate::web::MissingToken;
use std::io;
use std::path::{Path, PathBuf};

/// An error that keeps the daemon from starting or continuing. The messages name what the user can
/// do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another daemon uses the socket.
    #[error(
        "a daemon owns {path} already, even if the file was removed; stop the daemon, or \
         write another path with --socket"
    )]
    Running {
        /// The socket's path.
        path: PathBuf,
    },
    /// A socket could not be created.
    #[error("cannot listen on {path}: {source}; write another path with --socket")]
    Listen {
        /// The socket's path.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The metrics or the web page could not be served.
    #[error("cannot serve {what} on {place}: {source}; write another place with {option}")]
    Page {
        /// The page.
        what: &'static str,
        /// Option that names the place.
        option: &'static str,
        /// Place of the page.
        place: Place,
        /// Cause.
        source: io::Error,
    },
    /// Users without permission could read the web page.
    #[error(transparent)]
    MissingToken(#[from] MissingToken),
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    System {
        /// Attempted operation.
        what: &'static str,
        /// Cause.
        source: io::Error,
    },
}

impl Error {
    /// Returns whether the user named a place where no socket can be created, such as a path in a
    /// missing folder, or that needs a token. A place that another process uses is no such mistake.
    pub fn is_usage(&self) -> bool {
        match self {
            Error::Listen { .. } | Error::MissingToken(_) => true,
            Error::Page { source, .. } => source.kind() != io::ErrorKind::AddrInUse,
            Error::Running { .. } | Error::System { .. } => false,
        }
    }

    /// Error of a failed attempt to serve a page.
    pub(crate) fn page(
        what: &'static str,
        option: &'static str,
        place: &Place,
        source: io::Error,
    ) -> Error {
        Error::Page { what, option, place: place.clone(), source }
    }

    /// Error of a failed attempt to listen at a path.
    pub(crate) fn listen(path: &Path, source: io::Error) -> Error {
        match source.kind() {
            io::ErrorKind::AddrInUse => Error::Running { path: path.into() },
            _ => Error::Listen { path: path.into(), source },
        }
    }
}

/// Reason for a failure of the daemon.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// An error of the daemon.
    #[error(transparent)]
    Own(#[from] Error),
    /// An error of the host: it cannot be observed, or old changes could not be restored.
    #[error(transparent)]
    Host(#[from] corebeat_linux::Error),
}
