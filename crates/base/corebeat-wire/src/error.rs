//! Why a message did not come through, or was refused.

use crate::{FDS_MAX, MESSAGE_BYTES_MAX, QUEUE_BYTES_MAX, QUEUE_MESSAGES_MAX, Refusal};
use std::io;

/// Why a message did not come through, or was refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A message is longer than [`MESSAGE_BYTES_MAX`].
    #[error("a message has more than {MESSAGE_BYTES_MAX} bytes; ask for less at a time")]
    TooLong,
    /// A message has more descriptors than [`FDS_MAX`], or there was no room for them in this process.
    #[error(
        "a message has more than {FDS_MAX} descriptors, or this process may open no more (see 'ulimit -n')"
    )]
    TooManyDescriptors,
    /// The other side does not read what is sent: [`QUEUE_BYTES_MAX`] or [`QUEUE_MESSAGES_MAX`] wait.
    #[error("the other side does not read: {QUEUE_BYTES_MAX} bytes or {QUEUE_MESSAGES_MAX} messages wait")]
    Full,
    /// What came is not what the protocol has there.
    #[error("what came is no message of this protocol: {0}")]
    Garbled(String),
    /// The other side has closed the connection.
    #[error("the other side has closed the connection")]
    Closed,
    /// The connection is of no use after an earlier error, or belongs to the process that this one was forked from.
    #[error("this connection is of no use any more; open another one")]
    Stale,
    /// The other side has understood, and will not.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// `COREBEAT_SOCKET` names a path that means another socket in each folder.
    #[error("COREBEAT_SOCKET names {}, which is no absolute path: give one that begins with /", .0.display())]
    Relative(std::path::PathBuf),
    /// The system's own.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// Why not.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn system(what: impl Into<String>, source: impl Into<io::Error>) -> Error {
        Error::System { what: what.into(), source: source.into() }
    }
}
