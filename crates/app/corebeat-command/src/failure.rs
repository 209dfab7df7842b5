//! Failures of commands: one line that states the remedy, and an exit status for the kind of
//! failure.

use corebeat_host::printable;
use corebeat_linux::{Error, write_error_line};
use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

/// A failure of a command: its line and its exit status.
#[derive(Debug)]
pub struct Failure {
    status: u8,
    line: String,
}

impl Failure {
    /// A mistake on the command line that the parser cannot detect, such as a file that cannot be
    /// opened. Exit status 2.
    pub fn usage(line: impl fmt::Display) -> Failure {
        Failure { status: 2, line: line.to_string() }
    }

    /// A mistake in what the user supplied outside the command line: in a program, a scenario, or
    /// records. Exit status 1.
    pub fn data(line: impl fmt::Display) -> Failure {
        Failure { status: 1, line: line.to_string() }
    }

    /// A failure of Corebeat itself, such as an open file that can no longer be read or written.
    /// Exit status 125.
    pub fn internal(line: impl fmt::Display) -> Failure {
        Failure { status: 125, line: line.to_string() }
    }

    /// The exit status of the process.
    pub fn status(&self) -> u8 {
        self.status
    }

    /// Prints the line on standard error and returns the exit status. Control characters in the
    /// line (file names may contain them) are escaped.
    pub fn report(&self) -> ExitCode {
        print_line(&self.line);
        ExitCode::from(self.status)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match error {
            Error::NotFound { .. } => 127,
            Error::NotExecutable { .. } => 126,
            Error::NoProcess { .. } | Error::InvalidArgument(_) => 2,
            _ => 125,
        };
        Failure { status, line: error.to_string() }
    }
}

impl From<corebeat_host::Error> for Failure {
    fn from(error: corebeat_host::Error) -> Self {
        match error {
            corebeat_host::Error::Linux(e) => e.into(),
            corebeat_host::Error::InvalidArgument(line) => Failure::usage(line),
            e => Failure::internal(e),
        }
    }
}

/// Writes a text to standard error. A failed write is ignored: it must not change what Corebeat
/// does.
pub fn print_error(text: impl fmt::Display) {
    let _ = io::stderr().write_all(text.to_string().as_bytes());
}

/// Writes one line of Corebeat to standard error. Control characters (names of programs and files
/// may contain them) are escaped.
pub fn print_line(line: impl fmt::Display) {
    print_error(own_line(line));
}

/// Writes a line as [`print_line`] does, for a control loop, which must not wait for a reader: the
/// line may be left out ([`write_error_line`]).
pub fn print_line_of_loop(line: impl fmt::Display) {
    write_error_line(&own_line(line));
}

/// Writes lines to standard error as they are, under the conditions of [`print_line_of_loop`].
pub fn print_text_of_loop(text: impl fmt::Display) {
    write_error_line(&text.to_string());
}

fn own_line(line: impl fmt::Display) -> String {
    format!("corebeat: {}\n", printable(&line.to_string()))
}

/// Writes a text to standard output.
///
/// # Errors
/// If standard output cannot be written.
pub fn print(text: impl fmt::Display) -> Result<(), Failure> {
    io::stdout().write_all(text.to_string().as_bytes()).map_err(unprintable)
}

/// The failure of a write to standard output.
pub fn unprintable(why: io::Error) -> Failure {
    match why.kind() {
        // Of the socket without a peer with which `corebeat-cli` replaces a closed stream.
        ErrorKind::NotConnected => Failure::internal(
            "cannot print: standard output is closed; redirect it to a file or to /dev/null",
        ),
        _ => Failure::internal(format!("cannot print: {why}")),
    }
}

/// Restores the default action of SIGPIPE, so that a reader that closes the pipe
/// (`corebeat doctor | head`) ends this process silently. The standard library ignores the signal
/// and panics at the next line printed.
pub fn end_on_broken_pipe() {
    // SAFETY: the default action has no handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Makes a write beyond the limit of file sizes (`ulimit -f`) an error, as on a full disk: the
/// default action of SIGXFSZ ends the process without a message. The handler does nothing. In
/// programs that this process starts, exec resets a handler to the default action, and an ignored
/// signal stays ignored; thus they inherit what this process inherited.
pub fn survive_file_size_limit() {
    extern "C" fn ignore(_: libc::c_int) {}
    let handler: extern "C" fn(libc::c_int) = ignore;
    // SAFETY: all zeroes are a valid action. The handler touches nothing, so it may interrupt any
    // code; both actions live through the calls.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGXFSZ, std::ptr::null(), &raw mut action);
        if action.sa_sigaction == libc::SIG_DFL {
            action.sa_sigaction = handler as libc::sighandler_t;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(libc::SIGXFSZ, &raw const action, std::ptr::null_mut());
        }
    }
}

/// The result of every command's `main`.
pub type Done = Result<ExitCode, Failure>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_prints_one_line() {
        let failure = Failure::usage("cannot open a\nb\u{1b}[2J: no such file");
        assert_eq!(printable(&failure.line), "cannot open a\\nb\\u{1b}[2J: no such file");
    }
}
