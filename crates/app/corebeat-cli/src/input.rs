//! Files that a user names, read whole.

use crate::failure::Failure;
use std::fmt::Display;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// What is in a file of at most so many bytes: a device has no end. `hint` says what to do about one that cannot be read.
///
/// # Errors
/// Where it cannot be read, or is longer: a mistake on the command line.
pub(crate) fn read(path: &Path, bytes_max: u64, hint: &str) -> Result<Vec<u8>, Failure> {
    let cannot = |why: &dyn Display| Failure::usage(format!("cannot read {}: {why}; {hint}", path.display()));
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|e| cannot(&e))?;
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(|e| cannot(&e))?;
    match bytes.len() as u64 > bytes_max {
        true => Err(cannot(&format!("it is longer than {bytes_max} bytes"))),
        false => Ok(bytes),
    }
}
