//! Access to the file, which other processes read and write as well.

use crate::Error;
use redb::backends::FileBackend;
use redb::{Database, DatabaseError, StorageBackend};
use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::thread;
use std::time::Duration;

/// Largest size of the file, in bytes.
pub const FILE_BYTES_MAX: u64 = 64 << 20;
/// Memory for pages of the file, in bytes.
const CACHE_BYTES: usize = 4 << 20;
/// Time after which a reader or writer gives up to wait for the other.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);
/// Time between two attempts to lock.
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Reason for the failure of an access to the file.
#[derive(Debug)]
pub(crate) enum Trouble {
    Locked,
    Io(io::Error),
    /// The file would exceed [`FILE_BYTES_MAX`].
    Full,
    Damaged(String),
}

impl<E: Into<redb::Error>> From<E> for Trouble {
    fn from(error: E) -> Trouble {
        match error.into() {
            redb::Error::DatabaseAlreadyOpen => Trouble::Locked,
            redb::Error::Io(e) if e.get_ref().is_some_and(|e| e.is::<Bound>()) => Trouble::Full,
            // Others are not of the system: the content is invalid, or ends too early.
            redb::Error::Io(e) if e.raw_os_error().is_some() => Trouble::Io(e),
            redb::Error::PreviousIo => Trouble::Io(io::Error::other("an earlier access failed")),
            other => Trouble::Damaged(other.to_string()),
        }
    }
}

impl Trouble {
    /// The error for the user.
    pub(crate) fn error(self, path: PathBuf) -> Error {
        match self {
            Trouble::Locked => Error::Locked { path },
            Trouble::Io(source) => Error::File { path, source },
            Trouble::Full => Error::File { path, source: io::ErrorKind::FileTooLarge.into() },
            Trouble::Damaged(why) => Error::Damaged { path, why },
        }
    }
}

/// A file that does not exceed [`FILE_BYTES_MAX`].
#[derive(Debug)]
struct Bounded(FileBackend);

/// A file would exceed [`FILE_BYTES_MAX`].
#[derive(Debug, thiserror::Error)]
#[error("the file has reached its largest size")]
struct Bound;

impl StorageBackend for Bounded {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        self.0.read(offset, len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        if len > FILE_BYTES_MAX {
            return Err(io::Error::other(Bound));
        }
        self.0.set_len(len)
    }

    fn sync_data(&self, eventual: bool) -> io::Result<()> {
        self.0.sync_data(eventual)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }
}

/// Creates or opens a file of this user alone.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// Opens the file for one access. The lock of the file is held meanwhile, and not longer, so that
/// reports read the file of a running daemon.
pub(crate) fn transact<T>(
    path: &Path,
    access: impl FnOnce(&mut Database) -> Result<T, Trouble>,
) -> Result<T, Trouble> {
    let backend = locked(|| FileBackend::new(create(path)?).map_err(Trouble::from))?;
    guarded(|| access(&mut database(Bounded(backend))?))
}

pub(crate) fn database(backend: impl StorageBackend) -> Result<Database, DatabaseError> {
    let mut builder = Database::builder();
    // The format of redb 3 and later as well.
    builder.set_cache_size(CACHE_BYTES).create_with_file_format_v3(true);
    builder.create_with_backend(backend)
}

/// Repeats an attempt to lock the file for a second.
pub(crate) fn locked<T>(mut attempt: impl FnMut() -> Result<T, Trouble>) -> Result<T, Trouble> {
    let attempts = LOCK_PATIENCE.as_millis() / LOCK_PAUSE.as_millis();
    for _ in 0..attempts {
        match attempt() {
            Err(Trouble::Locked) => thread::sleep(LOCK_PAUSE),
            done => return done,
        }
    }
    Err(Trouble::Locked)
}

/// Makes a panic an error: redb validates what it reads, but panics where the length of the file
/// contradicts its header. The message of such a panic is not printed, because the error has its
/// own.
pub(crate) fn guarded<T>(access: impl FnOnce() -> Result<T, Trouble>) -> Result<T, Trouble> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let others = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !IS_GUARDED.get() {
                others(info);
            }
        }));
    });
    IS_GUARDED.set(true);
    let done = catch_unwind(AssertUnwindSafe(access));
    IS_GUARDED.set(false);
    done.unwrap_or_else(|_| Err(Trouble::Damaged("its parts contradict each other".into())))
}

thread_local! {
    /// Whether this thread is in [`guarded`].
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use redb::{ReadableTableMetadata, TableDefinition};

    #[test]
    fn transaction_beyond_the_bound_fails_and_changes_nothing() {
        const TABLE: TableDefinition<u64, &[u8]> = TableDefinition::new("t");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let write = |bytes: &[u8]| {
            transact(&path, |db| {
                let transaction = db.begin_write()?;
                transaction.open_table(TABLE)?.insert(bytes.len() as u64, bytes)?;
                transaction.commit()?;
                Ok(())
            })
        };
        write(b"small").unwrap();
        let large = write(&vec![1; FILE_BYTES_MAX as usize / 2]);
        assert!(matches!(large, Err(Trouble::Full)), "{large:?}");
        assert!(path.metadata().unwrap().len() <= FILE_BYTES_MAX);
        write(b"next").unwrap();
        let rows = transact(&path, |db| Ok(db.begin_read()?.open_table(TABLE)?.len()?));
        assert_eq!(rows.unwrap(), 2);
    }
}
