//! Text files of bounded size that a user supplies.

use crate::Failure;
use crate::output::is_open_file;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Opens a file to be read. Does not wait for the writer of a named pipe, which may never come. A
/// path of an open file, such as `/dev/stdin`, may name a pipe.
///
/// # Errors
/// The file cannot be opened, or is neither a regular file nor a folder.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let kind = path.metadata()?;
    if kind.is_file() || kind.is_dir() || is_open_file(path) {
        return File::open(path);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"))
}

/// Reads a whole text of at most `bytes_max` bytes; the bound stops reading from devices that never
/// end. `name` is the source in the user's words, and `expected` names what the text must be.
///
/// # Errors
/// A usage failure if the source cannot be read; a data failure if the text is longer or is not
/// UTF-8.
pub fn read_text(
    name: &str,
    source: io::Result<impl Read>,
    bytes_max: u64,
    expected: &str,
) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    source
        .and_then(|source| source.take(bytes_max + 1).read_to_end(&mut bytes))
        .map_err(|e| Failure::usage(format!("cannot read {name}: {e}; name a {expected}")))?;
    if bytes.len() as u64 > bytes_max {
        return Err(Failure::data(format!(
            "{name} is longer than {bytes_max} bytes, so it is not a {expected}"
        )));
    }
    String::from_utf8(bytes).map_err(|e| {
        let before = &e.as_bytes()[..e.utf8_error().valid_up_to()];
        let line = 1 + before.iter().filter(|b| **b == b'\n').count();
        Failure::data(format!("{name} is not UTF-8 text from line {line} on; save it as UTF-8"))
    })
}
