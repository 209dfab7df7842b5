//! Files under `/proc` that are read repeatedly, and descriptors.

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::borrow::Cow;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest text that is read. `/proc/TID/sched` with all statistics is the longest file, with about
/// 5 KiB.
const TEXT_LEN_MAX: usize = 16 * 1024;

/// Number of descriptors that Corebeat reserves for other purposes than kept files: standard
/// streams, sockets, journals, terminals.
const DESCRIPTORS_SPARE: u64 = 256;

/// Locks an open file or folder exclusively, with a timeout: every process that may open the file
/// may lock it forever.
///
/// # Errors
/// `WOULDBLOCK` if another process holds the lock until the timeout.
pub(crate) fn lock_within(fd: impl AsFd, timeout: Duration) -> rustix::io::Result<()> {
    const PAUSE: Duration = Duration::from_millis(10);
    let until = Instant::now() + timeout;
    loop {
        match flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if Instant::now() < until => std::thread::sleep(PAUSE),
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Reads a file of the kernel as text. Replaces invalid UTF-8: names of threads, files and groups
/// may be any bytes, and the kernel cuts long names within a character.
pub(crate) fn read_text(path: impl AsRef<Path>) -> io::Result<String> {
    let replaced = |e: std::string::FromUtf8Error| String::from_utf8_lossy(e.as_bytes()).into();
    Ok(String::from_utf8(fs::read(path)?).unwrap_or_else(replaced))
}

/// Returns the rest of the first line of a text that begins with `name`, without blanks around it.
pub(crate) fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// Buffer for all reads, so that reading allocates no memory.
#[derive(Debug)]
pub(crate) struct Buffer(Box<[u8]>);

impl Buffer {
    pub(crate) fn new() -> Self {
        Buffer(vec![0; TEXT_LEN_MAX].into_boxed_slice())
    }

    /// Reads the text of an open file from its start, and replaces invalid UTF-8, which names of
    /// threads may contain.
    pub(crate) fn read(&mut self, file: &File) -> io::Result<Cow<'_, str>> {
        let len = file.read_at(&mut self.0, 0)?;
        Ok(String::from_utf8_lossy(&self.0[..len]))
    }
}

/// A file whose descriptor is kept open if enough descriptors are available: repeated reading then
/// needs no path lookup, which is most of the cost (schedstat: 1 µs instead of 6 µs).
///
/// A kept descriptor never shows another thread: reads fail with ESRCH after the end of the thread,
/// even if its number is reused.
#[derive(Debug)]
pub(crate) enum ProcFile {
    /// Open.
    Kept(File),
    /// Opened for each reading.
    Path(String),
    /// Missing on this kernel, or not permitted.
    Closed,
}

impl ProcFile {
    /// Opens a file. If it is missing or not permitted, each reading returns an error.
    pub(crate) fn open(path: String, keep: bool) -> Self {
        match File::open(&path) {
            Ok(file) if keep => ProcFile::Kept(file),
            Ok(_) => ProcFile::Path(path),
            // No descriptor is free: another part of this process uses more than reserved.
            Err(e) if is_exhaustion(&e) => ProcFile::Path(path),
            Err(_) => ProcFile::Closed,
        }
    }

    /// Reads the present text of the file.
    pub(crate) fn read<'b>(&self, buffer: &'b mut Buffer) -> io::Result<Cow<'b, str>> {
        match self {
            ProcFile::Kept(file) => buffer.read(file),
            ProcFile::Path(path) => buffer.read(&File::open(path)?),
            ProcFile::Closed => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }
}

/// Raises the soft limit of open files of this process to the hard limit, and returns the number of
/// files that may be kept open.
///
/// Programs that Corebeat starts must not inherit the raised limit (`select` breaks above 1,024):
/// see [`descriptor_limit_at_start`].
pub(crate) fn descriptors_max() -> usize {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let _ = descriptor_limit_at_start();
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If this fails, the old limit remains.
    let _ = setrlimit(Resource::Nofile, limit);
    let current = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(current.saturating_sub(DESCRIPTORS_SPARE)).unwrap_or(usize::MAX)
}

/// Returns the limit of open files of this process if fewer descriptors are free than the search
/// for a process needs at the same time: one for the process, one for its folder, one for a file.
pub(crate) fn exhausted_limit() -> Option<u64> {
    use rustix::process::{Resource, getrlimit};
    let open = |_| File::open("/proc/self/stat");
    let e = (0..3).map(open).collect::<io::Result<Vec<File>>>().err()?;
    is_exhaustion(&e).then(|| getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
}

/// Returns whether the cause of an error is that no descriptor is free.
pub(crate) fn is_exhaustion(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Returns the limit of open files of this process before [`descriptors_max`] raised it. Children
/// get this limit.
pub(crate) fn descriptor_limit_at_start() -> rustix::process::Rlimit {
    use std::sync::OnceLock;
    static LIMIT: OnceLock<(Option<u64>, Option<u64>)> = OnceLock::new();
    let &(current, maximum) = LIMIT.get_or_init(|| {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        (limit.current, limit.maximum)
    });
    rustix::process::Rlimit { current, maximum }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_kept_or_reopened_has_the_same_text() {
        let mut buffer = Buffer::new();
        for keep in [true, false] {
            let file = ProcFile::open("/proc/sys/kernel/ostype".into(), keep);
            assert_eq!(file.read(&mut buffer).unwrap(), "Linux\n");
            assert_eq!(file.read(&mut buffer).unwrap(), "Linux\n");
        }
    }

    #[test]
    fn lock_that_is_held_times_out() {
        let dir = tempfile::tempdir().unwrap();
        let open = || File::open(dir.path()).unwrap();
        let held = open();
        lock_within(&held, Duration::ZERO).unwrap();
        assert_eq!(lock_within(open(), Duration::from_millis(20)), Err(Errno::WOULDBLOCK));
        drop(held);
        assert_eq!(lock_within(open(), Duration::ZERO), Ok(()));
    }

    #[test]
    fn file_missing_is_an_error_when_read() {
        assert!(ProcFile::open("/proc/nowhere".into(), true).read(&mut Buffer::new()).is_err());
    }

    #[test]
    fn descriptors_max_keeps_the_limit_at_start() {
        let before = descriptor_limit_at_start();
        assert!(descriptors_max() > 0);
        assert_eq!(descriptor_limit_at_start().current, before.current);
    }
}
