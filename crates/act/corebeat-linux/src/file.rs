//! Files under `/proc` that are read again and again.

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Longest text that is read. `/proc/TID/sched` with all statistics switched on is the longest, at about 5 KiB.
const TEXT_LEN_MAX: usize = 16 * 1024;

/// Descriptors that Corebeat leaves for everything but kept files: standard streams, sockets, journals, terminals.
const DESCRIPTORS_SPARE: u64 = 256;

/// Locks an open file or directory for this process alone, and gives up after a while: whoever may open it may lock it, and
/// never let go.
///
/// # Errors
/// `WOULDBLOCK` where somebody else holds the lock all the time.
pub(crate) fn lock_within(fd: impl AsFd, patience: Duration) -> rustix::io::Result<()> {
    const PAUSE: Duration = Duration::from_millis(10);
    let until = Instant::now() + patience;
    loop {
        match flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if Instant::now() < until => std::thread::sleep(PAUSE),
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// One buffer for all reads, so that a look allocates nothing.
#[derive(Debug)]
pub(crate) struct Buffer(Box<[u8]>);

impl Buffer {
    pub(crate) fn new() -> Self {
        Buffer(vec![0; TEXT_LEN_MAX].into_boxed_slice())
    }

    /// The text of an open file from its start. Names of threads need not be UTF-8; what is not is replaced.
    pub(crate) fn read(&mut self, file: &File) -> io::Result<Cow<'_, str>> {
        let len = file.read_at(&mut self.0, 0)?;
        Ok(String::from_utf8_lossy(&self.0[..len]))
    }
}

/// A file whose descriptor is kept where there are enough of them: reading it again then saves the walk over the path,
/// which is most of the cost (schedstat: 1 µs against 6 µs).
///
/// A kept descriptor never shows another thread: `/proc` answers ESRCH once the one that was opened has ended, even if
/// its number is in use again.
#[derive(Debug)]
pub(crate) enum ProcFile {
    /// Open.
    Kept(File),
    /// Opened for each reading.
    Path(String),
    /// Not there on this kernel, or not allowed.
    Closed,
}

impl ProcFile {
    /// Opens a file; where it is not there or not allowed, each reading says so.
    pub(crate) fn open(path: String, keep: bool) -> Self {
        match File::open(&path) {
            Ok(file) if keep => ProcFile::Kept(file),
            Ok(_) => ProcFile::Path(path),
            // Out of descriptors against all reckoning: something else in this process took them.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => ProcFile::Path(path),
            Err(_) => ProcFile::Closed,
        }
    }

    /// The file's text as of now.
    pub(crate) fn read<'b>(&self, buffer: &'b mut Buffer) -> io::Result<Cow<'b, str>> {
        match self {
            ProcFile::Kept(file) => buffer.read(file),
            ProcFile::Path(path) => buffer.read(&File::open(path)?),
            ProcFile::Closed => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }
}

/// Raises this process's soft limit of open files to its hard limit, and says how many files may be kept open.
///
/// Programs that Corebeat starts must not inherit the raised limit (`select` breaks above 1,024): see
/// [`descriptor_limit_at_start`].
pub(crate) fn descriptors_max() -> usize {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let _ = descriptor_limit_at_start();
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // A refusal leaves what there was.
    let _ = setrlimit(Resource::Nofile, limit);
    let current = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(current.saturating_sub(DESCRIPTORS_SPARE)).unwrap_or(usize::MAX)
}

/// The limit of open files that this process had before [`descriptors_max`] raised it: what its children should get.
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
    fn file_kept_or_opened_each_time_says_the_same() {
        let mut buffer = Buffer::new();
        for keep in [true, false] {
            let file = ProcFile::open("/proc/sys/kernel/ostype".into(), keep);
            assert_eq!(file.read(&mut buffer).unwrap(), "Linux\n");
            assert_eq!(file.read(&mut buffer).unwrap(), "Linux\n");
        }
    }

    #[test]
    fn lock_that_somebody_holds_is_given_up() {
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
