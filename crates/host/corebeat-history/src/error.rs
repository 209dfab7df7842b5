//! Errors of the store.

use std::io;
use std::path::PathBuf;

/// A failure of the store. The messages name what the user can do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no history.
    #[error(
        "there is no history in {dir}; start 'corebeat daemon --history', or name the folder of \
         its history"
    )]
    Missing {
        /// The folder.
        dir: PathBuf,
    },
    /// Another process writes this history.
    #[error("another daemon writes the history in {dir}; name another folder with --history")]
    InUse {
        /// The folder.
        dir: PathBuf,
    },
    /// Another process has locked the file for longer than its reader or writer does.
    #[error("another process has locked {path} for more than a second; try again")]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// The folder or the file cannot be used.
    #[error("cannot use {path}: {source}")]
    File {
        /// The folder or the file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The file is not a history, or damaged.
    #[error("{path} is damaged or no history ({why}); the next start of the daemon moves it aside")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The contradiction.
        why: String,
    },
}
