//! Errors of recording and reading traces.

use std::io;
use std::path::PathBuf;

/// An error of recording or reading a trace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be used.
    #[error("cannot write {path:?}: {source}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// Another trace is being recorded in this file.
    #[error(
        "another trace is being recorded in {}: name another file, or put {{pid}} into the name, \
         which is replaced by the process ID",
        path.display()
    )]
    InUse {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file of a trace was removed, replaced or truncated while the trace was recorded.
    #[error(
        "{} was removed, replaced or truncated while the trace was recorded: the events are lost; \
         record the trace again, in a file that nothing else uses",
        path.display()
    )]
    Replaced {
        /// Path of the file.
        path: PathBuf,
    },
    /// The input cannot be read.
    #[error("cannot read the trace: {0}")]
    Read(#[source] io::Error),
    /// The output cannot be written.
    #[error("cannot write the output: {0}")]
    Write(#[source] io::Error),
    /// The folder of an export is not empty.
    #[error("{} is not empty: name a new folder", path.display())]
    NotEmpty {
        /// Path of the folder.
        path: PathBuf,
    },
    /// A collector thread cannot be started.
    #[error("cannot start a thread that writes the trace: {0}")]
    Thread(#[source] io::Error),
    /// Another trace is installed.
    #[error("another trace is installed already: finish that trace first")]
    Installed,
    /// The input is not a trace.
    #[error("not a Corebeat trace: name a file that a program has recorded with corebeat_trace")]
    NotATrace,
    /// Too many packets overlap in time.
    #[error(
        "overlapping packets of this trace take more than {} MiB: cut out a part \
         (corebeat trace cut)",
        crate::timeline::HELD_BYTES_MAX >> 20
    )]
    OverlapTooLarge,
    /// No packet matches the selection.
    #[error(
        "no packet of these threads is in this time span: the trace is {:.6} s long",
        *length_ns as f64 / 1e9
    )]
    EmptySelection {
        /// Length of the trace in nanoseconds.
        length_ns: u64,
    },
    /// The trace has another version.
    #[error(
        "the trace has version {found}, but this program reads version {}: record the trace \
         again, or read it with the Corebeat version that recorded it",
        crate::packet::VERSION
    )]
    Version {
        /// Version of the trace.
        found: u32,
    },
}
