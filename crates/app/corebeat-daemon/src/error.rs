//! Why the daemon could not start, or go on.

use std::io;
use std::path::{Path, PathBuf};

/// Why the daemon could not start, or go on. The messages say what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another daemon has the socket.
    #[error(
        "a daemon has {path} already, even if that was removed since; stop it, or give another path with --socket"
    )]
    Running {
        /// The socket's path.
        path: PathBuf,
    },
    /// A socket could not be made.
    #[error("cannot listen on {path}: {source}; give another path with --socket")]
    Listen {
        /// The socket's path.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The page of metrics could not be offered.
    #[error("cannot offer metrics on {place}: {source}; give another place with --metrics")]
    Metrics {
        /// Where.
        place: String,
        /// Why not.
        source: io::Error,
    },
    /// The system's own.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
}

impl Error {
    /// Why nobody can listen at a path.
    pub(crate) fn listen(path: &Path, source: io::Error) -> Error {
        match source.kind() {
            io::ErrorKind::AddrInUse => Error::Running { path: path.into() },
            _ => Error::Listen { path: path.into(), source },
        }
    }
}

/// Why the daemon ended.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Its own.
    #[error(transparent)]
    Own(#[from] Error),
    /// The host's: it cannot be watched, or what was left could not be restored.
    #[error(transparent)]
    Host(#[from] corebeat_linux::Error),
}
