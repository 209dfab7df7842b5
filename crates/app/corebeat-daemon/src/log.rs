//! Lines on standard error, as the journal wants them.

use crate::limit::{LINES, Pace};
use std::fmt::Display;
use std::io::Write;

/// How important a line is, by syslog's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Something does not work.
    Warning = 4,
    /// Something is worth knowing.
    Notice = 5,
    /// All is well.
    Info = 6,
    /// What is done to programs, and why.
    Debug = 7,
}

/// Writes lines.
#[derive(Debug)]
pub(crate) struct Log {
    /// What is less important is not said.
    level: Level,
    /// Standard error is the journal: it reads the level from the line's beginning, and knows who writes.
    is_journal: bool,
    pace: Pace,
    left_out: u64,
}

impl Log {
    pub(crate) fn new(level: Level) -> Log {
        Log { level, is_journal: is_journal(), pace: Pace::default(), left_out: 0 }
    }

    /// Says something. If nobody can hear it, the daemon goes on.
    pub(crate) fn say(&self, level: Level, what: impl Display) {
        if level > self.level {
            return;
        }
        let line = self.line(level, &what.to_string());
        let _ = std::io::stderr().write_all(line.as_bytes());
    }

    /// Says something that clients can cause, but not too often.
    pub(crate) fn say_of_client(&mut self, level: Level, what: impl Display, now_ns: u64) {
        if level > self.level {
            return;
        }
        if !self.pace.take(LINES, now_ns) {
            self.left_out += 1;
            return;
        }
        match std::mem::take(&mut self.left_out) {
            0 => self.say(level, what),
            left_out => self.say(level, format_args!("{what} ({left_out} lines about clients left out)")),
        }
    }

    fn line(&self, level: Level, what: &str) -> String {
        // One line whatever it is made from: text of clients must not look like lines of ours.
        let what: String = what.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        match self.is_journal {
            true => format!("<{}>{what}\n", level as u8),
            false => format!("corebeat: {what}\n"),
        }
    }
}

/// Whether standard error goes to the journal: systemd says in `JOURNAL_STREAM` which file that is.
fn is_journal() -> bool {
    let Ok(stat) = rustix::fs::fstat(std::io::stderr()) else { return false };
    std::env::var("JOURNAL_STREAM").is_ok_and(|named| named == format!("{}:{}", stat.st_dev, stat.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_has_its_level_in_the_journal_alone() {
        let log = |is_journal| Log { level: Level::Info, is_journal, pace: Pace::default(), left_out: 0 };
        assert_eq!(log(true).line(Level::Warning, "a\nb"), "<4>a b\n");
        assert_eq!(log(false).line(Level::Info, "a\x1b[0mb"), "corebeat: a [0mb\n");
    }

    #[test]
    fn lines_about_clients_are_left_out_when_there_are_too_many() {
        let mut log = Log::new(Level::Info);
        (0..100).for_each(|i| log.say_of_client(Level::Notice, format_args!("client {i} of a test"), 0));
        assert_eq!(log.left_out, 80);
        log.say_of_client(Level::Notice, "the last client of a test", 1_000_000_000);
        assert_eq!(log.left_out, 0);
    }
}
