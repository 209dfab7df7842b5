//! Errors of sending and receiving messages.

use crate::{FDS_MAX, MESSAGE_BYTES_MAX, QUEUE_BYTES_MAX, QUEUE_MESSAGES_MAX, Refusal};
use std::io;

/// An error of a connection, or a refusal.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A message is longer than [`MESSAGE_BYTES_MAX`].
    #[error("a message exceeds {MESSAGE_BYTES_MAX} bytes: request less data at a time")]
    TooLong,
    /// A message has more than [`FDS_MAX`] descriptors, or this process cannot open them.
    #[error(
        "a message has more than {FDS_MAX} descriptors, or this process cannot open further ones: \
         check 'ulimit -n'"
    )]
    TooManyDescriptors,
    /// The peer does not read its messages: [`QUEUE_BYTES_MAX`] or [`QUEUE_MESSAGES_MAX`] are
    /// pending.
    #[error(
        "the peer does not read its messages: {QUEUE_BYTES_MAX} bytes or {QUEUE_MESSAGES_MAX} \
         messages are pending; read them, or close the connection"
    )]
    Full,
    /// The input is not a valid message.
    #[error("a received message is invalid, {0}: use a client and a service of one version")]
    Garbled(String),
    /// The daemon has closed the connection.
    #[error("the daemon has closed the connection: check that it runs, and try again")]
    Closed,
    /// The daemon does not answer before the [`Deadline`](crate::Deadline).
    #[error(
        "the daemon does not answer within 2 s: if it is stopped, continue it (kill -CONT) or \
         restart it"
    )]
    TimedOut,
    /// The connection is unusable after an earlier error, or it belongs to the parent process.
    #[error("this connection has failed before or belongs to the parent process: open another one")]
    Stale,
    /// The peer has refused the call.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// `COREBEAT_SOCKET` is a relative path.
    #[error("COREBEAT_SOCKET is the relative path {}: use a path that begins with /", .0.display())]
    Relative(std::path::PathBuf),
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    System {
        /// The failed operation.
        what: String,
        /// Error of the system.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn system(what: impl Into<String>, source: impl Into<io::Error>) -> Error {
        Error::System { what: what.into(), source: source.into() }
    }
}
