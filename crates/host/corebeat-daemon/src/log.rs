//! Log lines on standard error, in the format of the journal.

use crate::limit::{LINES, Pace};
use corebeat_linux::write_error_line;
use std::fmt::Display;

/// Importance of a line, as syslog's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// A failure.
    Warning = 4,
    /// A notable event.
    Notice = 5,
    /// A normal event.
    Info = 6,
    /// An action on a program, with its reason.
    Debug = 7,
}

/// A writer of log lines.
#[derive(Debug)]
pub struct Log {
    /// Lines of lower importance are left out.
    level: Level,
    /// Whether standard error is the journal, which reads the level from the start of a line, and
    /// adds the name of the program.
    is_journal: bool,
    pace: Pace,
    left_out: u64,
}

impl Log {
    /// Writes lines of this level and above.
    pub fn new(level: Level) -> Log {
        Log { level, is_journal: is_journal(), pace: Pace::default(), left_out: 0 }
    }

    /// Writes a line. Neither a failed write nor a reader that does not read stops the daemon.
    pub fn write(&self, level: Level, what: impl Display) {
        if level > self.level {
            return;
        }
        write_error_line(&self.line(level, &what.to_string()));
    }

    /// Writes a line that clients can cause, at a limited rate.
    pub(crate) fn write_about_client(&mut self, level: Level, what: impl Display, now_ns: u64) {
        if level > self.level {
            return;
        }
        if !self.pace.take(LINES, now_ns) {
            self.left_out += 1;
            return;
        }
        match std::mem::take(&mut self.left_out) {
            0 => self.write(level, what),
            left_out => {
                self.write(level, format_args!("{what} ({left_out} lines about clients left out)"))
            }
        }
    }

    fn line(&self, level: Level, what: &str) -> String {
        // Always one line: text of clients must not appear as further lines of the log.
        let what: String = what.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        match self.is_journal {
            true => format!("<{}>{what}\n", level as u8),
            false => format!("corebeat: {what}\n"),
        }
    }
}

/// Whether standard error is the journal: systemd names that file in `JOURNAL_STREAM`.
fn is_journal() -> bool {
    let Ok(stat) = rustix::fs::fstat(std::io::stderr()) else { return false };
    std::env::var("JOURNAL_STREAM")
        .is_ok_and(|named| named == format!("{}:{}", stat.st_dev, stat.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_has_its_level_in_the_journal_alone() {
        let log =
            |is_journal| Log { level: Level::Info, is_journal, pace: Pace::default(), left_out: 0 };
        assert_eq!(log(true).line(Level::Warning, "a\nb"), "<4>a b\n");
        assert_eq!(log(false).line(Level::Info, "a\x1b[0mb"), "corebeat: a [0mb\n");
    }

    #[test]
    fn lines_about_clients_are_left_out_when_there_are_too_many() {
        let mut log = Log::new(Level::Info);
        (0..100).for_each(|i| {
            log.write_about_client(Level::Notice, format_args!("client {i} of a test"), 0)
        });
        assert_eq!(log.left_out, 80);
        log.write_about_client(Level::Notice, "the last client of a test", 1_000_000_000);
        assert_eq!(log.left_out, 0);
    }
}
