//! How commands fail: one line that says what to do, and an exit status that tells whose fault it was.

use corebeat_linux::Error;
use std::fmt;
use std::io::Write;
use std::process::ExitCode;

/// A failure: its line, and its exit status.
#[derive(Debug)]
pub(crate) struct Failure {
    status: u8,
    line: String,
}

impl Failure {
    /// A mistake on the command line that the parser could not see, such as a file that cannot be opened.
    pub(crate) fn usage(line: impl fmt::Display) -> Failure {
        Failure { status: 2, line: line.to_string() }
    }

    /// Something wrong in what a user has written, not on the command line: in a program, in its records.
    pub(crate) fn wrong(line: impl fmt::Display) -> Failure {
        Failure { status: 1, line: line.to_string() }
    }

    /// Corebeat's own failure, such as where a file that it has opened can no longer be read or written.
    pub(crate) fn own(line: impl fmt::Display) -> Failure {
        Failure { status: 125, line: line.to_string() }
    }

    /// Prints the line. The status to exit with.
    pub(crate) fn report(&self) -> ExitCode {
        // Names in files may have line ends in them, and more that terminals obey.
        let shown = |c: char| if c.is_control() { c.escape_debug().to_string() } else { c.into() };
        tell(format_args!("corebeat: {}\n", self.line.chars().map(shown).collect::<String>()));
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
            Error::NoProcess { .. } | Error::Senseless(_) => 2,
            _ => 125,
        };
        Failure { status, line: error.to_string() }
    }
}

/// Says something on standard error. If nobody can hear it, what Corebeat does stays the same.
pub(crate) fn tell(text: impl fmt::Display) {
    let _ = std::io::stderr().write_all(text.to_string().as_bytes());
}

/// Prints on standard output.
pub(crate) fn print(text: impl fmt::Display) -> Result<(), Failure> {
    let printed = std::io::stdout().write_all(text.to_string().as_bytes());
    printed.map_err(|e| Failure::own(format!("cannot print: {e}")))
}

/// Lets a reader that goes away (`corebeat doctor | head`) end this process as it ends others: the standard library
/// ignores the signal, and panics at the next line printed.
pub(crate) fn die_of_broken_pipe() {
    // SAFETY: the default action needs no handler, and no other thread is there yet.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// What every command's `main` gives back.
pub(crate) type Done = Result<ExitCode, Failure>;
