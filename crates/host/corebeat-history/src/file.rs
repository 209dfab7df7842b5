//! Access to the file, which other processes read and write as well.

use crate::Error;
use redb::backends::FileBackend;
use redb::{Database, StorageBackend};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Stat, fchmod, fstat, fsync, open, openat, renameat, unlinkat,
};
use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::thread;
use std::time::Duration;

/// Largest size of the file, in bytes.
pub const FILE_BYTES_MAX: u64 = 64 << 20;
/// Place of the number of pages of a region in the header of redb, a little-endian number.
const REGION_PAGES_AT: usize = 20;
/// Largest number of pages of a region: page numbers of redb have 20 bits for it. redb requests
/// memory for as many pages as the header states.
const REGION_PAGES_MAX: u32 = 1 << 20;
/// Memory for pages of the file, in bytes.
const CACHE_BYTES: usize = 4 << 20;
/// Time after which a reader or writer gives up waiting for the other.
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
        // The file requests the memory first, and a damaged page number states up to terabytes.
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.0.len()? => self.0.read(offset, len),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
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

/// Ending of the name of a file that is not yet complete.
const NEW: &str = ".new";

/// A folder that belongs to this user, and that others cannot write. Others could replace a file by
/// a link to a file that the user must not write.
struct Folder(OwnedFd);

impl Folder {
    fn open(dir: &Path) -> io::Result<Folder> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = open(dir, flags, Mode::empty())?;
        let stat = fstat(&folder)?;
        if !is_own(&stat) || stat.st_mode & 0o022 != 0 {
            return refused(
                "the folder must belong to you and be writable by you alone (chmod 700)",
            );
        }
        Ok(Folder(folder))
    }

    /// Opens a file of this user alone.
    fn file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Opening a device must not wait.
        let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = match openat(&self.0, name, flags, Mode::RUSR | Mode::WUSR) {
            Err(rustix::io::Errno::LOOP) => return refused("it is a symbolic link; remove it"),
            opened => opened?,
        };
        let stat = fstat(&file)?;
        let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !is_regular || !is_own(&stat) {
            return refused("it must be a regular file that belongs to you; remove it");
        }
        if stat.st_mode & 0o7777 != 0o600 {
            fchmod(&file, Mode::RUSR | Mode::WUSR)?;
        }
        Ok(file.into())
    }

    /// Removes a file. Returns whether there was one.
    fn remove(&self, name: &str) -> io::Result<bool> {
        match unlinkat(&self.0, name, AtFlags::empty()) {
            Err(rustix::io::Errno::NOENT) => Ok(false),
            removed => Ok(removed.map(|()| true)?),
        }
    }
}

fn refused<T>(why: &str) -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

fn is_own(stat: &Stat) -> bool {
    stat.st_uid == rustix::process::geteuid().as_raw()
}

/// Creates or opens a file of this user alone, in a folder that others cannot write.
pub(crate) fn create(dir: &Path, name: &str) -> io::Result<File> {
    Folder::open(dir)?.file(name, OFlags::CREATE)
}

/// Removes the incomplete file that a writer has left if it was killed while it created the file.
/// Returns the path of the removed file.
pub(crate) fn remove_incomplete(dir: &Path, name: &str) -> io::Result<Option<PathBuf>> {
    let new = name.to_owned() + NEW;
    Ok(Folder::open(dir)?.remove(&new)?.then(|| dir.join(new)))
}

/// Opens the file for one access. The lock of the file is held meanwhile, and not longer, so that
/// reports read the file of a running daemon. Without a file, the access begins with an empty
/// database, which gets the name of the file when it is complete and durable: neither a failure nor
/// the end of the process leaves a part of a database under that name.
pub(crate) fn transact<T>(
    dir: &Path,
    name: &str,
    access: impl FnOnce(&mut Database) -> Result<T, Trouble>,
) -> Result<T, Trouble> {
    transact_with(Bounded, dir, name, access)
}

fn transact_with<B: StorageBackend, T>(
    backend: impl FnOnce(FileBackend) -> B,
    dir: &Path,
    name: &str,
    access: impl FnOnce(&mut Database) -> Result<T, Trouble>,
) -> Result<T, Trouble> {
    let folder = Folder::open(dir).map_err(Trouble::Io)?;
    let opened = locked(|| match folder.file(name, OFlags::empty()) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        file => Ok(Some(FileBackend::new(file.map_err(Trouble::Io)?)?)),
    })?;
    match opened {
        // A file without a byte has no content to keep.
        Some(file) if file.len()? > 0 => guarded(|| access(&mut database(backend(file))?)),
        _ => transact_new(&folder, backend, name, access),
    }
}

/// Begins with an empty database, under another name.
fn transact_new<B: StorageBackend, T>(
    folder: &Folder,
    backend: impl FnOnce(FileBackend) -> B,
    name: &str,
    access: impl FnOnce(&mut Database) -> Result<T, Trouble>,
) -> Result<T, Trouble> {
    let new = name.to_owned() + NEW;
    folder.remove(&new).map_err(Trouble::Io)?;
    let done = guarded(|| {
        let file = folder.file(&new, OFlags::CREATE | OFlags::EXCL).map_err(Trouble::Io)?;
        let same = file.try_clone().map_err(Trouble::Io)?;
        // The end of the database writes as well.
        let done = access(&mut database(backend(FileBackend::new(file)?))?)?;
        same.sync_all().map_err(Trouble::Io)?;
        renameat(&folder.0, &new, &folder.0, name).map_err(|e| Trouble::Io(e.into()))?;
        Ok(done)
    });
    match done {
        Ok(done) => {
            // The new name lasts.
            fsync(&folder.0).map_err(|e| Trouble::Io(e.into()))?;
            Ok(done)
        }
        Err(trouble) => {
            // The next attempt removes the file if this one cannot.
            let _ = folder.remove(&new);
            // There is no file to be moved aside: it was just created.
            Err(match trouble {
                Trouble::Damaged(why) => Trouble::Io(io::Error::other(why)),
                trouble => trouble,
            })
        }
    }
}

pub(crate) fn database(backend: impl StorageBackend) -> Result<Database, Trouble> {
    let end = (REGION_PAGES_AT + size_of::<u32>()) as u64;
    if backend.len()? >= end {
        let pages = backend.read(REGION_PAGES_AT as u64, size_of::<u32>())?;
        if pages.try_into().is_ok_and(|pages| u32::from_le_bytes(pages) > REGION_PAGES_MAX) {
            return Err(Trouble::Damaged("its header has an invalid size of a region".into()));
        }
    }
    let mut builder = Database::builder();
    // The format of redb 3 and later as well.
    builder.set_cache_size(CACHE_BYTES).create_with_file_format_v3(true);
    Ok(builder.create_with_backend(backend)?)
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
    use redb::{ReadableTable, ReadableTableMetadata, TableDefinition};
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn transaction_beyond_the_bound_fails_and_changes_nothing() {
        const TABLE: TableDefinition<u64, &[u8]> = TableDefinition::new("t");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let write = |bytes: &[u8]| {
            transact(dir.path(), "file", |db| {
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
        let rows =
            transact(dir.path(), "file", |db| Ok(db.begin_read()?.open_table(TABLE)?.len()?));
        assert_eq!(rows.unwrap(), 2);
    }

    /// A disk that becomes full at some operation, and stays so.
    #[derive(Debug)]
    struct Filling {
        file: Bounded,
        left: AtomicUsize,
    }

    impl Filling {
        fn take(&self) -> io::Result<()> {
            // One thread uses the file, so that a load and a store are enough.
            match self.left.load(Ordering::SeqCst).checked_sub(1) {
                None => Err(rustix::io::Errno::NOSPC.into()),
                Some(left) => {
                    self.left.store(left, Ordering::SeqCst);
                    Ok(())
                }
            }
        }
    }

    impl StorageBackend for Filling {
        fn len(&self) -> io::Result<u64> {
            self.file.len()
        }

        fn read(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
            self.file.read(offset, len)
        }

        fn set_len(&self, len: u64) -> io::Result<()> {
            self.take()?;
            self.file.set_len(len)
        }

        fn sync_data(&self, eventual: bool) -> io::Result<()> {
            self.take()?;
            self.file.sync_data(eventual)
        }

        fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            self.take()?;
            self.file.write(offset, data)
        }
    }

    const ROWS: TableDefinition<u64, u64> = TableDefinition::new("t");

    fn insert(db: &mut Database, key: u64) -> Result<(), Trouble> {
        let mut transaction = db.begin_write()?;
        transaction.set_quick_repair(true);
        transaction.open_table(ROWS)?.insert(key, key)?;
        transaction.commit()?;
        Ok(())
    }

    fn keys(dir: &Path) -> Vec<u64> {
        let read = transact(dir, "file", |db| {
            db.check_integrity()?;
            let rows = db.begin_read()?.open_table(ROWS)?;
            rows.iter()?.map(|row| Ok(row?.0.value())).collect()
        });
        read.unwrap()
    }

    /// The disk becomes full at each operation of the first transaction, and of the second one.
    #[test]
    fn disk_that_is_full_at_any_operation_damages_nothing() {
        let failing = |dir: &Path, left, key| {
            let filling = |file| Filling { file: Bounded(file), left: AtomicUsize::new(left) };
            transact_with(filling, dir, "file", |db| insert(db, key))
        };
        let mut failed = [0, 0];
        for left in 0.. {
            let dir = tempfile::tempdir().unwrap();
            match failing(dir.path(), left, 1) {
                // The end of the database may write as well.
                Ok(()) => assert_eq!(keys(dir.path()), [1]),
                Err(trouble) => {
                    assert!(matches!(trouble, Trouble::Io(_)), "{left}: {trouble:?}");
                    assert_eq!(dir.path().read_dir().unwrap().count(), 0, "{left}");
                    failed[0] = left + 1;
                    transact(dir.path(), "file", |db| insert(db, 1)).unwrap();
                }
            }
            match failing(dir.path(), left, 2) {
                Ok(()) => assert_eq!(keys(dir.path()), [1, 2]),
                Err(trouble) => {
                    assert!(matches!(trouble, Trouble::Io(_)), "{left}: {trouble:?}");
                    // A transaction that is complete may have failed to be made durable.
                    let found = keys(dir.path());
                    assert!([&[1][..], &[1, 2]].contains(&&found[..]), "{left}: {found:?}");
                    failed[1] = left + 1;
                    transact(dir.path(), "file", |db| insert(db, 2)).unwrap();
                }
            }
            assert_eq!(dir.path().read_dir().unwrap().count(), 1);
            if left > failed[0].max(failed[1]) + 20 {
                break;
            }
        }
        assert!(failed[0] > 5 && failed[1] > 3, "{failed:?}");
    }
}
