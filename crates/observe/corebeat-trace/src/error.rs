//! What can go wrong.

use std::io;
use std::path::PathBuf;

/// Why a trace is not written, or not read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be used.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// What is read from cannot be read.
    #[error("the trace cannot be read: {0}")]
    Read(#[source] io::Error),
    /// What is written to cannot be written.
    #[error("it cannot be written: {0}")]
    Write(#[source] io::Error),
    /// A folder for an export has something in it.
    #[error("{} is not empty: name a new folder", path.display())]
    NotEmpty {
        /// Which.
        path: PathBuf,
    },
    /// A thread that compresses and writes could not be started.
    #[error("no thread to write the trace: {0}")]
    Thread(#[source] io::Error),
    /// There is a trace already that all threads log into.
    #[error("a trace is recorded already: finish it first")]
    Installed,
    /// This is something else.
    #[error("this is no trace of Corebeat's: name a file that a program has recorded with corebeat_trace")]
    NotATrace,
    /// So much happened at a time that it cannot be put in order here.
    #[error(
        "packets of this trace that overlap take more than {} MiB: cut a piece of it (corebeat trace cut)",
        crate::timeline::HELD_BYTES_MAX >> 20
    )]
    TooWide,
    /// None of it is in the piece that is asked for.
    #[error("nothing of those threads is in that time: the trace is {:.6} s long", *ns as f64 / 1e9)]
    NothingThere {
        /// How long it is, in nanoseconds.
        ns: u64,
    },
    /// It is of another time.
    #[error(
        "this is a trace of version {found}, and this program reads version {}: record it again, or read it with the Corebeat \
         that recorded it",
        crate::packet::VERSION
    )]
    Version {
        /// Which.
        found: u32,
    },
}
