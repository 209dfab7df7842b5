//! Texts that a user has written, or had written.

use crate::failure::Failure;
use std::io::{self, Read};

/// The whole text of a source of at most so many bytes: a device has no end. `name` is the user's for it, and `what` is what it
/// is to be.
///
/// # Errors
/// Where it cannot be read, a mistake on the command line; where it is longer or no text, a mistake in what is read.
pub(crate) fn text(
    name: &str,
    source: io::Result<impl Read>,
    bytes_max: u64,
    what: &str,
) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    source
        .and_then(|source| source.take(bytes_max + 1).read_to_end(&mut bytes))
        .map_err(|e| Failure::usage(format!("cannot read {name}: {e}; name a {what}")))?;
    if bytes.len() as u64 > bytes_max {
        return Err(Failure::wrong(format!("{name} is longer than {bytes_max} bytes: that is no {what}")));
    }
    String::from_utf8(bytes).map_err(|e| {
        let before = &e.as_bytes()[..e.utf8_error().valid_up_to()];
        let line = 1 + before.iter().filter(|b| **b == b'\n').count();
        Failure::wrong(format!("{name} is no text in UTF-8, from line {line} on; save it as such"))
    })
}
