//! Files for what comes at the end of a long run.

use crate::failure::Failure;
use std::fmt::Display;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// A file to be written later. It is made at once, so that one that cannot be is told before the run and not after it.
#[derive(Debug)]
pub(crate) struct Output {
    path: PathBuf,
    file: File,
}

impl Output {
    /// Makes the file, or empties it.
    ///
    /// # Errors
    /// Where it cannot be made or written: a mistake on the command line.
    pub(crate) fn create(path: &Path) -> Result<Output, Failure> {
        let file = File::create(path).map_err(|e| Failure::usage(line(path, &e)))?;
        Ok(Output { path: path.to_owned(), file })
    }

    /// Writes all that there is to write.
    ///
    /// # Errors
    /// Where the file no longer takes it, such as on a full disk: a failure of our own.
    pub(crate) fn write(mut self, text: &str) -> Result<(), Failure> {
        self.file.write_all(text.as_bytes()).map_err(|e| Failure::own(line(&self.path, &e)))
    }
}

fn line(path: &Path, why: &dyn Display) -> String {
    format!("cannot write {}: {why}; name another file", path.display())
}
