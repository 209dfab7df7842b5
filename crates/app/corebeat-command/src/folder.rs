//! Temporary folders of commands.

use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use std::fs::{DirBuilder, File, read_dir, remove_dir_all, symlink_metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Use of a temporary folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TemporaryUse {
    /// The socket of `demo goals`.
    Goals,
    /// The trace of `demo trace`.
    Trace,
}

impl TemporaryUse {
    const ALL: [TemporaryUse; 2] = [TemporaryUse::Goals, TemporaryUse::Trace];

    fn prefix(self) -> &'static str {
        match self {
            TemporaryUse::Goals => "corebeat-goals-",
            TemporaryUse::Trace => "corebeat-trace-",
        }
    }
}

/// A folder for the duration of a command. The command removes the folder; if the command is
/// killed, the next call of [`TemporaryFolder::create`] does.
#[derive(Debug)]
pub struct TemporaryFolder {
    path: PathBuf,
    /// The open folder, locked until this process ends.
    _lock: File,
}

impl TemporaryFolder {
    /// Removes the folders of this user that killed commands left, and creates a folder, accessible
    /// to this user only.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub fn create(purpose: TemporaryUse) -> io::Result<TemporaryFolder> {
        let parent = std::env::temp_dir();
        sweep(&parent);
        let path = parent.join(format!("{}{}", purpose.prefix(), std::process::id()));
        DirBuilder::new().mode(0o700).create(&path)?;
        let lock = File::open(&path)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        Ok(TemporaryFolder { path, _lock: lock })
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Removes folders of ended commands of this user.
fn sweep(parent: &Path) {
    for entry in read_dir(parent).into_iter().flatten().flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let number = |purpose: TemporaryUse| name.to_str()?.strip_prefix(purpose.prefix());
        let pid = TemporaryUse::ALL.into_iter().find_map(number);
        if pid.and_then(|pid| pid.parse().ok()).is_some_and(|pid| is_left(&path, pid)) {
            let _ = remove_dir_all(path);
        }
    }
}

/// Returns whether a folder belongs to this user, and the process that created it has ended. The
/// lock decides for a process of another PID namespace, or with a reused number; the number for a
/// process that has not locked its new folder yet.
fn is_left(path: &Path, pid: u32) -> bool {
    let is_own = |m: std::fs::Metadata| m.is_dir() && m.uid() == geteuid().as_raw();
    let has_ended = pid == std::process::id() || !Path::new(&format!("/proc/{pid}")).exists();
    let is_free = |folder: File| flock(folder, FlockOperation::NonBlockingLockExclusive).is_ok();
    has_ended && symlink_metadata(path).is_ok_and(is_own) && File::open(path).is_ok_and(is_free)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir, write};

    #[test]
    fn folders_of_ended_commands_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let folder = |name: &str| {
            let path = parent.path().join(name);
            create_dir(&path).unwrap();
            write(path.join("socket"), "").unwrap();
            path
        };
        // Above the largest process number of Linux, 2^22.
        let left = [folder("corebeat-goals-4200000000"), folder("corebeat-trace-4200000001")];
        let kept = [
            folder("corebeat-goals-4200000002"),
            folder("corebeat-goals-1"),
            folder("corebeat-goals-x"),
            folder("corebeat-other-4200000003"),
        ];
        let lock = File::open(&kept[0]).unwrap();
        flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
        sweep(parent.path());
        assert!(left.iter().all(|path| !path.exists()));
        assert!(kept.iter().all(|path| path.join("socket").exists()));
    }
}
