//! The file of a trace that is being recorded.

use crate::error::Error;
use corebeat_sync::descriptor::above_standard;
use corebeat_sync::fork::KeptOut;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The part of a file name that is replaced by the process ID.
const PID: &[u8] = b"{pid}";

/// A file that belongs to one trace. Regular files are locked, so that two traces with one path
/// cannot overwrite each other; pipes and devices are written as they are.
pub(crate) struct TraceFile {
    /// Keeps a regular file, and its lock, out of children of fork. Dropped before the file.
    kept: Option<KeptOut>,
    /// Not closed if the program has closed the descriptor.
    file: ManuallyDrop<File>,
    /// Device and inode of the file.
    identity: (u64, u64),
    path: PathBuf,
    bytes: u64,
}

impl TraceFile {
    /// Opens the file, locks it and then discards its old content.
    pub(crate) fn create(path: &Path) -> Result<TraceFile, Error> {
        let path = PathBuf::from(with_pid(path.as_os_str(), std::process::id()));
        let failed = |source| Error::File { path: path.clone(), source };
        // Not truncated here: another trace may be recorded in the file. The file of which another
        // program has removed a part stays shorter, because writes go to its end.
        let open = || File::options().append(true).create(true).open(&path);
        // Opening a pipe waits for its reader. Miri has no handlers for fork, and reports that
        // files have no names.
        let is_special = path.metadata().is_ok_and(|metadata| !metadata.is_file());
        let (kept, file) = if is_special || cfg!(miri) {
            let file = open().and_then(|file| above_standard(file.into()));
            (None, file.map_err(failed)?.into())
        } else {
            let (kept, file) = KeptOut::file(open).map_err(failed)?;
            (Some(kept), file)
        };
        let metadata = file.metadata().map_err(failed)?;
        let identity = (metadata.dev(), metadata.ino());
        let this = TraceFile { kept, file: ManuallyDrop::new(file), identity, path, bytes: 0 };
        if this.kept.is_some() {
            match flock(&*this.file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => return Err(Error::InUse { path: this.path.clone() }),
                // Some network file systems have no locks.
                Ok(()) | Err(_) => this.file.set_len(0).map_err(|source| this.failed(source))?,
            }
        }
        Ok(this)
    }

    fn failed(&self, source: io::Error) -> Error {
        Error::File { path: self.path.clone(), source }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the descriptor still refers to the file. A program that closes all descriptors, such
    /// as one that becomes a daemon, may have opened another file with the same number.
    fn is_open(&self) -> bool {
        let metadata = self.file.metadata();
        cfg!(miri) || metadata.is_ok_and(|now| (now.dev(), now.ino()) == self.identity)
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if !self.is_open() {
            return Err(io::Error::other(
                "the program has closed the descriptor of the trace; create the trace afterwards",
            ));
        }
        self.file.write_all(bytes)?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Unlocks the file. Returns its size in bytes.
    ///
    /// # Errors
    ///
    /// The file has no name any more, or another size than what was written.
    pub(crate) fn finish(self) -> Result<u64, Error> {
        if self.kept.is_some() {
            let metadata = self.file.metadata().map_err(|source| self.failed(source))?;
            if metadata.nlink() == 0 || metadata.len() != self.bytes {
                return Err(Error::Replaced { path: self.path.clone() });
            }
        }
        Ok(self.bytes)
    }
}

impl Drop for TraceFile {
    fn drop(&mut self) {
        // In a child of fork the descriptor is that of a socket, which is closed, too.
        if !self.kept.as_ref().map_or_else(|| self.is_open(), KeptOut::is_open) {
            return;
        }
        if self.kept.is_some() {
            // `vfork` and `clone` may have copied the descriptor, and the lock with it.
            let _ = flock(&*self.file, FlockOperation::Unlock);
        }
        drop(self.kept.take());
        // SAFETY: the value is not used any more.
        unsafe { ManuallyDrop::drop(&mut self.file) };
    }
}

/// A path with the process ID in place of each `{pid}`.
fn with_pid(path: &OsStr, pid: u32) -> OsString {
    let (pid, mut rest) = (pid.to_string(), path.as_bytes());
    let mut whole = Vec::with_capacity(rest.len());
    while let Some(first) = rest.first() {
        if let Some(after) = rest.strip_prefix(PID) {
            whole.extend(pid.as_bytes());
            rest = after;
        } else {
            whole.push(*first);
            rest = &rest[1..];
        }
    }
    OsString::from_vec(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_id_replaces_its_pattern() {
        for (path, expected) in [
            ("server-{pid}.cbt", "server-7.cbt"),
            ("{pid}/{pid}", "7/7"),
            ("{pid", "{pid"),
            ("{{pid}}", "{7}"),
            ("ü{pid}", "ü7"),
            ("", ""),
        ] {
            assert_eq!(with_pid(OsStr::new(path), 7), expected);
        }
        assert_eq!(with_pid(OsStr::from_bytes(b"\xff{pid}"), 7).as_bytes(), b"\xff7");
    }
}
