//! The error of a model that cannot be read or analysed.

use std::fmt::{self, Display};

/// A mistake in a model. The message states the place, the mistake and the remedy in one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {what}")]
pub struct Error {
    /// The element with its name, and the line where the form has lines.
    pub place: String,
    /// The mistake and the remedy.
    pub what: String,
}

impl Error {
    /// An error at a place. Control characters are escaped, so that the message is one line.
    pub(crate) fn new(place: impl Display, what: impl Display) -> Error {
        Error { place: one_line(&place), what: one_line(&what) }
    }
}

/// Longest part of a message, in characters: names in a broken file may have any length.
const LENGTH_MAX: usize = 400;

/// The text without control characters and without an excessive length.
pub(crate) fn one_line(text: &dyn Display) -> String {
    struct Line(String, usize);
    impl fmt::Write for Line {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            for c in text.chars() {
                match self.1 {
                    LENGTH_MAX => self.0.push_str("..."),
                    n if n > LENGTH_MAX => {}
                    _ if c.is_control() => self.0.extend(c.escape_debug()),
                    _ => self.0.push(c),
                }
                self.1 += 1;
            }
            Ok(())
        }
    }
    let mut line = Line(String::new(), 0);
    let _ = fmt::write(&mut line, format_args!("{text}"));
    line.0
}
