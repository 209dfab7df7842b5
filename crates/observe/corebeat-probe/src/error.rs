//! Errors of switching probes and reading calls.

use crate::RULE_PERIOD_MIN;
use std::io;

/// An error of switching probes or reading calls.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A pattern is invalid.
    #[error(
        "invalid pattern: use 1 to {} bytes without line breaks",
        crate::pattern::PATTERN_BYTES_MAX
    )]
    Pattern,
    /// The process does not exist.
    #[error("there is no process {pid}: 'ps -e' lists the running processes")]
    NoProcess {
        /// Its process ID.
        pid: u32,
    },
    /// The process has no control socket.
    #[error(
        "process {pid} has no control socket for its probes: the program must call \
         corebeat_probe::ControlSocket::open"
    )]
    NoControlSocket {
        /// Its process ID.
        pid: u32,
    },
    /// Another process has bound the name of the control socket.
    #[error(
        "another process has bound the name of the control socket of process {pid}, so no request \
         was sent: end that process, and restart process {pid}"
    )]
    WrongProcess {
        /// The requested process ID.
        pid: u32,
    },
    /// The process refuses the request.
    #[error("process {pid}: {why}")]
    Refused {
        /// Its process ID.
        pid: u32,
        /// The reason that it reports.
        why: String,
    },
    /// Communication with the process failed.
    #[error("cannot communicate with process {pid}: {source}")]
    Communication {
        /// Its process ID.
        pid: u32,
        /// Error of the system.
        source: io::Error,
    },
    /// The program has as many probes as possible.
    #[error(
        "the program has {} probes, the largest number: add one for each place in the code, and \
         not for each call",
        crate::probe::PROBES_MAX
    )]
    TooManyProbes,
    /// A rule is active already.
    #[error("a rule is active already: drop its runner first")]
    RuleActive,
    /// An option of a rule is invalid.
    #[error("invalid {option} of a rule, {value:?}: use a finite number from 0")]
    RuleOption {
        /// Name of the field of [`RuleOptions`](crate::RuleOptions).
        option: &'static str,
        /// The given value.
        value: f64,
    },
    /// The period of a rule is too short.
    #[error("invalid period of a rule, {0:?}: use at least {RULE_PERIOD_MIN:?}")]
    RulePeriod(std::time::Duration),
    /// The thread of a rule or of a control socket cannot be started.
    #[error(
        "cannot start the thread of {of} of probes: {source}; end other threads, or raise the \
         limits of threads and memory (ulimit -u, ulimit -v)"
    )]
    Thread {
        /// Object that needs the thread.
        of: &'static str,
        /// Error of the system.
        source: io::Error,
    },
    /// This process has opened its control socket before.
    #[error("this process has a control socket already: use that one")]
    ControlSocketOpen,
    /// Another process has bound the name of the control socket of this process.
    #[error("process {pid} has bound the name of this control socket: end that process")]
    NameTaken {
        /// The ID of the other process.
        pid: u32,
    },
    /// The control socket cannot be opened.
    #[error(
        "cannot open the control socket: {0}; close other files, or raise their limit (ulimit -n)"
    )]
    ControlSocket(#[source] io::Error),
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] corebeat_trace::Error),
    /// The trace contains too many calls.
    #[error(
        "the trace has more than {} calls: cut out a part (corebeat trace cut), or record \
         fewer probes",
        crate::call::CALLS_MAX
    )]
    TooManyCalls,
}
