//! Files for what comes at the end of a long run.

use crate::end::Tidy;
use crate::failure::Failure;
use std::fmt::Display;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A file to be written later. It is opened at once, so that one that cannot be is told before the run and not after it; what is in
/// there stays until then, and if nothing comes of the run there is no new file.
#[derive(Debug)]
pub(crate) struct Output {
    path: PathBuf,
    file: File,
    /// It was not there, and what is to be in it is not written.
    is_new: bool,
    /// What is done where a signal ends the process.
    tidy: Option<Tidy>,
}

impl Output {
    /// Opens the file, or makes it.
    ///
    /// # Errors
    /// Where it cannot be made or written: a mistake on the command line.
    pub(crate) fn create(path: &Path) -> Result<Output, Failure> {
        let is_new = !path.exists();
        let file = File::options().write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|e| Failure::usage(line(path, &e)))?;
        Ok(Output { path: path.to_owned(), file, is_new, tidy: None })
    }

    /// The same where nobody else takes signals: if one ends the process, there is no new file either.
    ///
    /// # Errors
    /// As [`Output::create`]; and where signals cannot be taken.
    pub(crate) fn create_alone(path: &Path) -> Result<Output, Failure> {
        let new = (!path.exists()).then(|| path.to_owned());
        let tidy = new.map(|path| Tidy::at_end(move || drop(std::fs::remove_file(path))));
        let tidy = tidy.transpose().map_err(Failure::own)?;
        let mut output = Output::create(path)?;
        output.tidy = tidy;
        Ok(output)
    }

    /// Writes all that there is to write, in place of what was there.
    ///
    /// # Errors
    /// Where the file no longer takes it, such as on a full disk: a failure of our own.
    pub(crate) fn write(mut self, text: &str) -> Result<(), Failure> {
        let is_file = self.file.metadata().is_ok_and(|m| m.is_file());
        let emptied = if is_file { self.file.set_len(0) } else { Ok(()) };
        let written = emptied.and_then(|()| self.file.write_all(text.as_bytes()));
        if written.is_ok() {
            (self.is_new, self.tidy) = (false, None);
        }
        written.map_err(|e| Failure::own(line(&self.path, &e)))
    }
}

/// Whether these files, as far as they are there, are different ones: what is written must replace none of the others.
///
/// # Errors
/// Where two are one: a mistake on the command line.
pub(crate) fn distinct<'a>(paths: impl Iterator<Item = &'a PathBuf>) -> Result<(), Failure> {
    let mut seen = Vec::new();
    for path in paths {
        let Ok(file) = path.metadata() else { continue };
        let name = (file.dev(), file.ino());
        if file.is_file() && seen.contains(&name) {
            let path = path.display();
            return Err(Failure::usage(format!("{path} is named twice; write each to a file of its own")));
        }
        seen.push(name);
    }
    Ok(())
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.is_new {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn line(path: &Path, why: &dyn Display) -> String {
    format!("cannot write {}: {why}; name another file", path.display())
}
