//! The journal: changes are on disk before they are made, so that they can be undone however
//! Corebeat ends.
//!
//! ```text
//!  state directory (0700, owned by the user)
//!    4711-88012-0.journal      one for each `Actuator`, 0600, flock'ed while its owner runs
//!
//!  a line:  ["9a0b1c2d",{"set":{...}}]\n      JSON with the CRC-32 of its text
//!  in order: start, then  (set* took* done)*  and  group, enable, stop, continued
//! ```
//!
//! - A batch of `set` lines is written and `fdatasync`ed before the changes are made. `took`
//!   records that the kernel set another value than requested, `done` the end of the batch. These
//!   two need no sync: written data survives a `kill -9`, and a crash of the host discards the
//!   changes. The frequent records `stop`, written before a process is stopped, and `continued`,
//!   written after, need no sync either.
//! - The last line may be incomplete: its change was never made. After any other damage, nothing is
//!   undone.
//! - The holder of the folder's lock may add, replace or remove journals.

mod ledger;

pub(crate) use ledger::{Entry, Ledger};

use crate::Error;
use crate::actuator::setting::Setting;
use crate::file::{lock_within, read_text};
use crate::process;
use corebeat_machine::ThreadId;
use rustix::fs::{self, AtFlags, FlockOperation, Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Longest journal that is read. A journal in use is rewritten long before ([`REWRITE_BYTES`]).
const BYTES_MAX: u64 = 64 << 20;
/// Growth after which a journal is rewritten with the records that are still needed.
const REWRITE_BYTES: u64 = 1 << 20;
const SUFFIX: &str = ".journal";
const VERSION: u32 = 1;
/// Time to wait for the lock of the folder: undoing takes up to a second for each control group.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);
/// Suffix of a journal that is being rewritten.
const REWRITTEN_SUFFIX: &str = ".journal.new";

/// One line of a journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Record {
    /// First line: format, host and boot.
    Start(Start),
    /// A thread is about to be changed.
    Set(Set),
    /// The kernel set another value than requested.
    Took { tid: i32, start: u64, value: Setting },
    /// End of a batch.
    Done,
    /// A control group of Corebeat is about to be created.
    Group { path: PathBuf },
    /// The cpu controller is about to be enabled for the children of this control group.
    Enable { path: PathBuf },
    /// A process, identified by its first thread, is about to be stopped by a signal.
    Stop { tid: i32, start: u64 },
    /// The process was continued.
    Continued { tid: i32, start: u64 },
}

/// The first line of a journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Start {
    version: u32,
    /// Thread numbers are valid on one host, during one boot, and in one PID namespace only.
    host: String,
    boot: String,
    pid_namespace: String,
}

/// One change of one thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Set {
    pub(crate) tid: i32,
    pub(crate) start: u64,
    /// Process of the thread. Threads that start there later may inherit the change.
    pub(crate) pid: i32,
    pub(crate) pid_start: u64,
    /// Time of the change in the unit of start times: clock ticks since boot.
    pub(crate) at: u64,
    pub(crate) old: Setting,
    pub(crate) new: Setting,
}

impl Set {
    pub(crate) fn thread(&self) -> ThreadId {
        ThreadId { tid: self.tid, start_ticks: self.start }
    }
}

impl Record {
    /// Returns whether the record is valid. The journal is a file, which another program may have
    /// written.
    fn is_valid(&self) -> bool {
        match self {
            Record::Set(s) => {
                s.tid > 0
                    && s.pid > 0
                    && s.old.kind() == s.new.kind()
                    && s.old.is_valid()
                    && s.new.is_valid()
            }
            Record::Took { tid, value, .. } => *tid > 0 && value.is_valid(),
            Record::Stop { tid, .. } | Record::Continued { tid, .. } => *tid > 0,
            Record::Group { path } | Record::Enable { path } => path.is_absolute(),
            Record::Start(_) | Record::Done => true,
        }
    }

    fn line(&self) -> String {
        let body = serde_json::to_string(self).expect("every record has a JSON form");
        format!("[\"{:08x}\",{body}]\n", crc32fast::hash(body.as_bytes()))
    }

    fn from_line(line: &[u8]) -> Option<Record> {
        let rest = line.strip_prefix(b"[\"")?.strip_suffix(b"]")?;
        let (crc, rest) = rest.split_at_checked(8)?;
        let body = rest.strip_prefix(b"\",")?;
        let crc = u32::from_str_radix(std::str::from_utf8(crc).ok()?, 16).ok()?;
        let record: Record =
            serde_json::from_slice(body).ok().filter(|_| crc == crc32fast::hash(body))?;
        record.is_valid().then_some(record)
    }
}

/// Parses a journal. The error is the number of the damaged line, from 1.
pub(crate) fn parse(text: &[u8]) -> Result<Vec<Record>, usize> {
    let mut records = Vec::new();
    for (i, piece) in text.split_inclusive(|&b| b == b'\n').enumerate() {
        let number = i + 1;
        let record = match piece.strip_suffix(b"\n") {
            Some(line) => Record::from_line(line).ok_or(number)?,
            // An incomplete line is a change that was never made. A complete line with a wrong end
            // was modified.
            None if piece
                .split_last()
                .is_some_and(|(_, line)| Record::from_line(line).is_some()) =>
            {
                return Err(number);
            }
            None => break,
        };
        if matches!(record, Record::Start(_)) != (number == 1) {
            return Err(number);
        }
        records.push(record);
    }
    Ok(records)
}

impl Start {
    fn current() -> Start {
        let read = |path: &str| read_text(path).unwrap_or_default().trim().to_owned();
        Start {
            version: VERSION,
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            boot: read("/proc/sys/kernel/random/boot_id"),
            pid_namespace: std::fs::read_link("/proc/self/ns/pid")
                .map(|p| p.to_string_lossy().into_owned())
                .unwrap_or_default(),
        }
    }
}

/// Returns the folder of journals: `COREBEAT_STATE_DIR` if it is set; else `/var/lib/corebeat` for
/// root, and `$XDG_STATE_HOME/corebeat` or `~/.local/state/corebeat` for other users.
///
/// # Errors
/// [`Error::Unsupported`] if none of these variables is set, or the path is not absolute.
pub fn state_dir() -> Result<PathBuf, Error> {
    let given = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let dir = match given("COREBEAT_STATE_DIR") {
        Some(dir) => Some(dir),
        None if rustix::process::geteuid().is_root() => Some("/var/lib/corebeat".into()),
        None => given("XDG_STATE_HOME")
            .filter(|d| d.is_absolute())
            .or_else(|| given("HOME").map(|home| home.join(".local/state")))
            .map(|state| state.join("corebeat")),
    };
    dir.filter(|d| d.is_absolute()).ok_or_else(|| Error::Unsupported {
        what: "a folder for the journal".into(),
        how: "set COREBEAT_STATE_DIR to an absolute path of a writable folder".into(),
    })
}

/// The state folder, locked: no other process adds, replaces or removes journals meanwhile.
struct Directory {
    fd: OwnedFd,
    path: PathBuf,
}

impl Directory {
    /// Opens and locks the folder. `None` if the folder does not exist.
    fn open(path: &Path) -> Result<Option<Directory>, Error> {
        let refused = |source: io::Error| {
            let what =
                format!("use {} (set COREBEAT_STATE_DIR to a writable folder)", path.display());
            Error::of_call(what, source)
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = match fs::open(path, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(e) => return Err(refused(e.into())),
        };
        let stat = fs::fstat(&fd).map_err(|e| refused(e.into()))?;
        if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_mode & 0o022 != 0 {
            return Err(Error::Denied {
                what: format!(
                    "keep a journal in {}, which must belong to you and be writable by you alone \
                     (chmod 700)",
                    path.display()
                ),
                source: io::ErrorKind::PermissionDenied.into(),
            });
        }
        lock_within(&fd, LOCK_TIMEOUT).map_err(|e| Error::Refused {
            what: format!(
                "lock {0} (another process may hold the lock: see 'fuser -v {0}')",
                path.display()
            ),
            source: e.into(),
        })?;
        Ok(Some(Directory { fd, path: path.to_owned() }))
    }

    fn make(path: &Path) -> Result<Directory, Error> {
        use std::os::unix::fs::DirBuilderExt;
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        let how = "set COREBEAT_STATE_DIR to a writable folder";
        // Always refused, not denied: another folder helps, not another user.
        made.map_err(|source| Error::Refused {
            what: format!("create {} ({how})", path.display()),
            source,
        })?;
        Self::open(path)?
            .ok_or_else(|| Error::Unsupported { what: path.display().to_string(), how: how.into() })
    }

    fn create(&self, name: &str) -> Result<File, Error> {
        let wrong = |e: rustix::io::Errno| {
            Error::of_call(format!("write {}", self.path.join(name).display()), e.into())
        };
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = fs::openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR).map_err(wrong)?;
        fs::flock(&fd, FlockOperation::NonBlockingLockExclusive).map_err(wrong)?;
        Ok(fd.into())
    }
}

/// A journal in use. A dropped journal stays on disk; [`Journal::remove`] removes it.
#[derive(Debug)]
pub(crate) struct Journal {
    dir: PathBuf,
    name: String,
    file: File,
    /// Length now, and length when the journal was last rewritten.
    bytes: u64,
    bytes_rewritten: u64,
}

impl Journal {
    /// Creates a journal in this folder. Creates the folder if necessary.
    pub(crate) fn create(dir: &Path) -> Result<Journal, Error> {
        process::check_namespace()?;
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let pid = std::process::id() as i32;
        let start = process::thread_id(pid).ok().flatten().map_or(0, |t| t.start_ticks);
        // Relaxed: the number must only differ between calls.
        let name = format!("{pid}-{start}-{}{SUFFIX}", COUNT.fetch_add(1, Ordering::Relaxed));
        let directory = Directory::make(dir)?;
        let file = directory.create(&name)?;
        let mut journal = Journal { dir: dir.to_owned(), name, file, bytes: 0, bytes_rewritten: 0 };
        journal.write(&[Record::Start(Start::current())])?;
        Ok(journal)
    }

    /// Returns a name that no other journal on this host has.
    pub(crate) fn stem(&self) -> &str {
        self.name.strip_suffix(SUFFIX).unwrap_or(&self.name)
    }

    /// Writes records before their changes are made; returns when the records are on disk.
    pub(crate) fn write_ahead(&mut self, records: &[Record]) -> Result<(), Error> {
        self.write(records)?;
        self.file.sync_data().map_err(|e| self.failed(e))
    }

    /// Writes records that may be lost if the host crashes.
    pub(crate) fn write(&mut self, records: &[Record]) -> Result<(), Error> {
        let text: String = records.iter().map(Record::line).collect();
        if let Err(e) = self.file.write_all(text.as_bytes()) {
            // Remove a part that may have been written: later records must start on a new line.
            let _ = self.file.set_len(self.bytes);
            let _ = io::Seek::seek(&mut self.file, io::SeekFrom::Start(self.bytes));
            return Err(self.failed(e));
        }
        self.bytes += text.len() as u64;
        Ok(())
    }

    pub(crate) fn is_long(&self) -> bool {
        self.bytes > 2 * self.bytes_rewritten + REWRITE_BYTES
    }

    /// Replaces all records by these.
    pub(crate) fn rewrite(&mut self, records: &[Record]) -> Result<(), Error> {
        let directory = Directory::make(&self.dir)?;
        let new = format!("{}{REWRITTEN_SUFFIX}", self.stem());
        let _ = fs::unlinkat(&directory.fd, &new, AtFlags::empty());
        let file = directory.create(&new)?;
        let mut next = Journal {
            dir: self.dir.clone(),
            name: self.name.clone(),
            file,
            bytes: 0,
            bytes_rewritten: 0,
        };
        next.write(&[Record::Start(Start::current())])?;
        next.write_ahead(records)?;
        fs::renameat(&directory.fd, &new, &directory.fd, &self.name)
            .map_err(|e| self.failed(e.into()))?;
        next.bytes_rewritten = next.bytes;
        *self = next;
        Ok(())
    }

    /// Removes the journal after everything is undone.
    pub(crate) fn remove(self) -> Result<(), Error> {
        std::fs::remove_file(self.dir.join(&self.name)).map_err(|e| self.failed(e))
    }

    fn failed(&self, source: io::Error) -> Error {
        Error::of_call(format!("write the journal {}", self.dir.join(&self.name).display()), source)
    }
}

/// A journal found in the state folder.
pub(crate) enum Left {
    /// Changes of an owner that still runs.
    Live(Ledger),
    /// The journal cannot be used, for this reason; nothing was changed.
    Unusable(String),
    /// Changes of an owner that has ended.
    Ledger(Ledger),
}

/// Calls `undo` for each journal of a folder. Removes journals for which `undo` returns true, and
/// journals from before the last boot. If `removes` is not set, changes nothing.
pub(crate) fn for_each_left(
    dir: &Path,
    removes: bool,
    mut undo: impl FnMut(&Path, Left) -> bool,
) -> Result<(), Error> {
    let Some(directory) = Directory::open(dir)? else { return Ok(()) };
    process::check_namespace()?;
    let entries =
        std::fs::read_dir(dir).map_err(|source| Error::Read { path: dir.to_owned(), source })?;
    let mut names: Vec<_> = entries.flatten().map(|e| e.file_name()).collect();
    names.sort();
    // The writers of these files held the lock of the folder: they were killed while rewriting.
    let is_rewritten = |n: &&OsString| n.as_bytes().ends_with(REWRITTEN_SUFFIX.as_bytes());
    for name in names.iter().filter(|n| removes && is_rewritten(n)) {
        let _ = fs::unlinkat(&directory.fd, name.as_os_str(), AtFlags::empty());
    }
    for name in names.into_iter().filter(|n| n.as_bytes().ends_with(SUFFIX.as_bytes())) {
        let path = dir.join(&name);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let left = match fs::openat(&directory.fd, name.as_os_str(), flags, Mode::empty()) {
            Ok(fd) => read(fd),
            Err(rustix::io::Errno::NOENT) => continue,
            Err(rustix::io::Errno::LOOP) => {
                Ok(Some(Left::Unusable("the journal is a symbolic link".into())))
            }
            Err(e) => Err(e.into()),
        };
        let left = left
            .unwrap_or_else(|e| Some(Left::Unusable(format!("the journal cannot be read: {e}"))));
        if left.is_none_or(|left| undo(&path, left)) && removes {
            let _ = fs::unlinkat(&directory.fd, name.as_os_str(), AtFlags::empty());
        }
    }
    Ok(())
}

/// Reads a journal. `None` if it is empty or from an earlier boot of this host.
fn read(fd: OwnedFd) -> io::Result<Option<Left>> {
    let unusable = |why: String| Ok(Some(Left::Unusable(why)));
    let stat = fs::fstat(&fd)?;
    if !fs::FileType::from_raw_mode(stat.st_mode).is_file() {
        return unusable("the journal is not a plain file".into());
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return unusable(format!("the journal belongs to user {}", stat.st_uid));
    }
    if stat.st_mode & 0o7777 != 0o600 || stat.st_nlink != 1 {
        return unusable(
            "other users may have written the journal (mode other than 0600, or a second name)"
                .into(),
        );
    }
    if stat.st_size as u64 > BYTES_MAX {
        return unusable(format!("the journal is longer than {} MiB", BYTES_MAX >> 20));
    }
    let is_live = match fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => true,
        other => {
            other?;
            false
        }
    };
    let mut text = Vec::new();
    File::from(fd).take(BYTES_MAX).read_to_end(&mut text)?;
    let records = match parse(&text) {
        Ok(records) if is_live => {
            return Ok(Some(Left::Live(records.into_iter().skip(1).collect())));
        }
        // The owner may have rewritten the end of the text meanwhile.
        Err(_) if is_live => return Ok(Some(Left::Live(Ledger::default()))),
        Ok(records) => records,
        Err(line) => return unusable(format!("line {line} is damaged")),
    };
    let Some(Record::Start(start)) = records.first() else { return Ok(None) };
    let current = Start::current();
    if start.version != current.version {
        return unusable(format!(
            "the journal has format {}, not {}: use the Corebeat version that wrote it",
            start.version, VERSION
        ));
    }
    if start.host != current.host
        || (start.boot == current.boot && start.pid_namespace != current.pid_namespace)
    {
        return unusable(format!("the journal is from another host or container, {}", start.host));
    }
    Ok((start.boot == current.boot).then(|| Left::Ledger(records.into_iter().skip(1).collect())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use corebeat_machine::{CpuId, CpuSet};
    use proptest::prelude::*;

    fn setting() -> impl Strategy<Value = Setting> {
        prop_oneof![
            proptest::collection::btree_set(0u32..100, 1..5)
                .prop_map(|c| Setting::Cpus(c.into_iter().map(CpuId).collect::<CpuSet>())),
            (100u64..100_000).prop_map(|us| Setting::SliceNs(us * 1000)),
            prop_oneof![Just(0), Just(3), Just(5)].prop_map(Setting::Policy),
            (-20..20).prop_map(Setting::Nice),
        ]
    }

    /// Arbitrary records about few threads, so that several concern the same thread.
    fn record() -> impl Strategy<Value = Record> {
        let news = proptest::collection::vec(setting(), 8);
        let set =
            (1..4i32, 1..3u64, 0..9u64, setting(), news).prop_map(|(tid, start, at, old, news)| {
                // Two values of one kind; equal ones if no candidate has that kind.
                let new = news
                    .into_iter()
                    .find(|n| n.kind() == old.kind())
                    .unwrap_or_else(|| old.clone());
                Record::Set(Set { tid, start, pid: 1, pid_start: 1, at, old, new })
            });
        prop_oneof![
            4 => set,
            1 => (1..4i32, 1..3u64, setting())
                .prop_map(|(tid, start, value)| Record::Took { tid, start, value }),
            1 => Just(Record::Done),
            1 => "/[ -~é]{0,9}".prop_map(|p| Record::Group { path: p.into() }),
            1 => "/[a-c]".prop_map(|p| Record::Enable { path: p.into() }),
            1 => (1..4i32, 1..3u64).prop_map(|(tid, start)| Record::Stop { tid, start }),
            1 => (1..4i32, 1..3u64).prop_map(|(tid, start)| Record::Continued { tid, start }),
        ]
    }

    fn journal() -> impl Strategy<Value = Vec<Record>> {
        proptest::collection::vec(record(), 0..12).prop_map(|mut records| {
            records.insert(0, Record::Start(Start::current()));
            records
        })
    }

    fn text(records: &[Record]) -> Vec<u8> {
        records.iter().map(Record::line).collect::<String>().into_bytes()
    }

    proptest! {
        #[test]
        fn parse_of_written_records_round_trips(records in journal()) {
            prop_assert_eq!(parse(&text(&records)), Ok(records));
        }

        #[test]
        fn parse_of_a_truncated_journal_is_a_prefix(
            records in journal(), cut in any::<prop::sample::Index>(),
        ) {
            let text = text(&records);
            let parsed = parse(&text[..cut.index(text.len() + 1)]).unwrap();
            prop_assert!(records.starts_with(&parsed));
        }

        #[test]
        fn parse_after_a_flipped_bit_is_an_error(
            records in journal(), at in any::<prop::sample::Index>(), bit in 0..8u8,
        ) {
            let mut text = text(&records);
            let at = at.index(text.len());
            text[at] ^= 1u8 << bit;
            // The case of a hexadecimal digit carries no meaning.
            prop_assert!(parse(&text).map_or(true, |parsed| parsed == records));
        }

        #[test]
        fn parse_of_garbage_terminates(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn parse_of_garbage_with_valid_checksums_terminates(
            bodies in proptest::collection::vec(".{0,60}", 0..5),
        ) {
            let line = |b: &String| format!("[\"{:08x}\",{b}]\n", crc32fast::hash(b.as_bytes()));
            let text: String = bodies.iter().map(line).collect();
            let _ = parse(text.as_bytes());
        }

        #[test]
        fn ledger_records_round_trip(records in journal()) {
            let ledger: Ledger = records.into_iter().chain([Record::Done]).collect();
            let again: Ledger = ledger.records().into_iter().collect();
            prop_assert_eq!(again.records(), ledger.records());
            prop_assert_eq!(again.entries().len(), ledger.entries().len());
        }
    }

    #[test]
    fn error_about_a_folder_that_cannot_be_created_suggests_another() {
        // Not even root can create folders there.
        let Err(refused) = Directory::make(Path::new("/sys/corebeat/state")) else {
            panic!("the folder was created")
        };
        let message = refused.to_string();
        assert!(
            message.contains("set COREBEAT_STATE_DIR") && !message.contains("as the owner"),
            "{message}"
        );
    }

    #[test]
    fn state_dir_is_absolute_or_an_error() {
        assert!(state_dir().map_or(true, |d| d.is_absolute()));
    }
}
