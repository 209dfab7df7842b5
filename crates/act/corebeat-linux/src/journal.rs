//! The journal: what is about to be changed, on disk before it is done, so that it can be undone however Corebeat ends.
//!
//! ```text
//!  state directory (0700, ours)
//!    4711-88012-0.journal      one for each `Hands`, 0600, flock'ed while its owner lives
//!
//!  a line:  ["9a0b1c2d",{"set":{...}}]\n      JSON; CRC-32 of what stands between the comma and the last bracket
//!  in order: start, then  (set* took* done)*  and  group, enable, stop, continued
//! ```
//!
//! - A batch of `set` lines is written and `fdatasync`ed, then carried out; `took` says where the kernel took something
//!   else than what was asked, and `done` that the batch has ended. Those two need no sync: a `kill -9` keeps what was
//!   written, and a crash of the host takes the changes with it. Neither do `stop`, which is written before a process is stopped,
//!   and `continued`, which is written after: they come with each turn.
//! - The last line may be cut short: what it announces was never begun. Any other damage, and nothing is touched.
//! - Who holds the directory's lock may add, replace or take away journals.

mod ledger;

pub(crate) use ledger::{Entry, Ledger};

use crate::Error;
use crate::file::lock_within;
use crate::hand::setting::Setting;
use corebeat_machine::ThreadId;
use rustix::fs::{self, AtFlags, FlockOperation, Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A journal longer than this is not read; a live one is rewritten long before ([`REWRITE_BYTES`]).
const BYTES_MAX: u64 = 64 << 20;
/// A journal that has grown by this much is rewritten, with what is still needed.
const REWRITE_BYTES: u64 = 1 << 20;
const SUFFIX: &str = ".journal";
const VERSION: u32 = 1;
/// Undoing what others left behind takes a second for each control group, at worst.
const LOCK_PATIENCE: Duration = Duration::from_secs(30);
/// Ends the name of a journal that is being rewritten.
const REWRITTEN_SUFFIX: &str = ".journal.new";

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Record {
    /// Who writes, and where.
    Start(Start),
    /// A thread is about to be changed.
    Set(Set),
    /// The kernel took another value than the one asked for.
    Took { tid: i32, start: u64, value: Setting },
    /// All that was announced has been tried.
    Done,
    /// A control group of ours is about to be made.
    Group { path: PathBuf },
    /// The cpu controller is about to be switched on for the children of this control group.
    Enable { path: PathBuf },
    /// A process, told by its first thread, is about to be stopped by a signal.
    Stop { tid: i32, start: u64 },
    /// It was continued.
    Continued { tid: i32, start: u64 },
}

/// The first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Start {
    version: u32,
    /// Numbers of threads mean nothing on another host, after another boot, or in another PID namespace.
    host: String,
    boot: String,
    pid_namespace: String,
}

/// One change of one thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Set {
    pub(crate) tid: i32,
    pub(crate) start: u64,
    /// The thread's process: those who are born there later may inherit the change.
    pub(crate) pid: i32,
    pub(crate) pid_start: u64,
    /// When, in the unit of start times: clock ticks since boot.
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
    /// Whether it says anything that could be done. The journal is a file: it may hold what nobody here has written.
    fn is_sound(&self) -> bool {
        match self {
            Record::Set(s) => {
                s.tid > 0 && s.pid > 0 && s.old.kind() == s.new.kind() && s.old.is_sound() && s.new.is_sound()
            }
            Record::Took { tid, value, .. } => *tid > 0 && value.is_sound(),
            Record::Stop { tid, .. } | Record::Continued { tid, .. } => *tid > 0,
            Record::Group { path } | Record::Enable { path } => path.is_absolute(),
            Record::Start(_) | Record::Done => true,
        }
    }

    fn line(&self) -> String {
        let body = serde_json::to_string(self).expect("records hold nothing that JSON cannot");
        format!("[\"{:08x}\",{body}]\n", crc32fast::hash(body.as_bytes()))
    }

    fn from_line(line: &[u8]) -> Option<Record> {
        let rest = line.strip_prefix(b"[\"")?.strip_suffix(b"]")?;
        let (crc, rest) = rest.split_at_checked(8)?;
        let body = rest.strip_prefix(b"\",")?;
        let crc = u32::from_str_radix(std::str::from_utf8(crc).ok()?, 16).ok()?;
        let record: Record = serde_json::from_slice(body).ok().filter(|_| crc == crc32fast::hash(body))?;
        record.is_sound().then_some(record)
    }
}

/// The records of a journal's text, or the number of the line that is damaged, from 1.
pub(crate) fn parse(text: &[u8]) -> Result<Vec<Record>, usize> {
    let mut records = Vec::new();
    for (i, piece) in text.split_inclusive(|&b| b == b'\n').enumerate() {
        let number = i + 1;
        let record = match piece.strip_suffix(b"\n") {
            Some(line) => Record::from_line(line).ok_or(number)?,
            // Cut short: not begun. But a whole line whose end alone is wrong was changed by somebody.
            None if piece.split_last().is_some_and(|(_, line)| Record::from_line(line).is_some()) => {
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
    fn here() -> Start {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
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

/// Where journals are kept: `COREBEAT_STATE_DIR` if it is set; else `/var/lib/corebeat` for root, and
/// `$XDG_STATE_HOME/corebeat` or `~/.local/state/corebeat` for others.
///
/// # Errors
/// [`Error::Missing`] where none of these is set, or the one that is set is not an absolute path.
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
    dir.filter(|d| d.is_absolute()).ok_or_else(|| Error::Missing {
        what: "a directory for the journal".into(),
        how: "set COREBEAT_STATE_DIR to an absolute path that you may write to".into(),
    })
}

/// The state directory, locked: nobody else adds, replaces or takes away journals meanwhile.
struct Directory {
    fd: OwnedFd,
    path: PathBuf,
}

impl Directory {
    /// `None` if it is not there.
    fn open(path: &Path) -> Result<Option<Directory>, Error> {
        let refused = |source: io::Error| {
            let what = format!(
                "use {} (set COREBEAT_STATE_DIR to a directory that you may write to)",
                path.display()
            );
            refused(what, source)
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
                    "keep a journal in {}, which must be yours and writable by nobody else (chmod 700)",
                    path.display()
                ),
                source: io::ErrorKind::PermissionDenied.into(),
            });
        }
        lock_within(&fd, LOCK_PATIENCE).map_err(|e| Error::Refused {
            what: format!("lock {0} (somebody else keeps it locked? see 'fuser -v {0}')", path.display()),
            source: e.into(),
        })?;
        Ok(Some(Directory { fd, path: path.to_owned() }))
    }

    fn make(path: &Path) -> Result<Directory, Error> {
        use std::os::unix::fs::DirBuilderExt;
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        let how = "set COREBEAT_STATE_DIR to a directory that you may write to";
        // Another folder is what helps, whatever the reason: not another user.
        made.map_err(|source| Error::Refused { what: format!("make {} ({how})", path.display()), source })?;
        Self::open(path)?.ok_or_else(|| Error::Missing { what: path.display().to_string(), how: how.into() })
    }

    fn create(&self, name: &str) -> Result<File, Error> {
        let wrong =
            |e: rustix::io::Errno| refused(format!("write {}", self.path.join(name).display()), e.into());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = fs::openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR).map_err(wrong)?;
        fs::flock(&fd, FlockOperation::NonBlockingLockExclusive).map_err(wrong)?;
        Ok(fd.into())
    }
}

fn refused(what: String, source: io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Error::Denied { what, source },
        _ => Error::Refused { what, source },
    }
}

/// A journal that is being written. Dropping it keeps it on disk; [`Journal::remove`] ends it.
#[derive(Debug)]
pub(crate) struct Journal {
    dir: PathBuf,
    name: String,
    file: File,
    /// How long it is, and how long it was when it was last rewritten.
    bytes: u64,
    bytes_rewritten: u64,
}

impl Journal {
    /// Starts one in this directory, which is made if need be.
    pub(crate) fn create(dir: &Path) -> Result<Journal, Error> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let pid = std::process::id() as i32;
        let start = crate::process::thread_id(pid).map_or(0, |t| t.start_ticks);
        // Relaxed: it only has to differ from call to call.
        let name = format!("{pid}-{start}-{}{SUFFIX}", COUNT.fetch_add(1, Ordering::Relaxed));
        let directory = Directory::make(dir)?;
        let file = directory.create(&name)?;
        let mut journal = Journal { dir: dir.to_owned(), name, file, bytes: 0, bytes_rewritten: 0 };
        journal.write(&[Record::Start(Start::here())])?;
        Ok(journal)
    }

    /// A name that no other journal on this host has.
    pub(crate) fn stem(&self) -> &str {
        self.name.strip_suffix(SUFFIX).unwrap_or(&self.name)
    }

    /// Announces changes: returns once they are on disk.
    pub(crate) fn announce(&mut self, records: &[Record]) -> Result<(), Error> {
        self.write(records)?;
        self.file.sync_data().map_err(|e| self.failed(e))
    }

    /// Adds what is worth knowing but may be lost with the host.
    pub(crate) fn write(&mut self, records: &[Record]) -> Result<(), Error> {
        let text: String = records.iter().map(Record::line).collect();
        if let Err(e) = self.file.write_all(text.as_bytes()) {
            // A part may have been written. What follows must not be glued to it.
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

    /// Puts these records in the place of all others.
    pub(crate) fn rewrite(&mut self, records: &[Record]) -> Result<(), Error> {
        let directory = Directory::make(&self.dir)?;
        let new = format!("{}{REWRITTEN_SUFFIX}", self.stem());
        let _ = fs::unlinkat(&directory.fd, &new, AtFlags::empty());
        let file = directory.create(&new)?;
        let mut next =
            Journal { dir: self.dir.clone(), name: self.name.clone(), file, bytes: 0, bytes_rewritten: 0 };
        next.write(&[Record::Start(Start::here())])?;
        next.announce(records)?;
        fs::renameat(&directory.fd, &new, &directory.fd, &self.name).map_err(|e| self.failed(e.into()))?;
        next.bytes_rewritten = next.bytes;
        *self = next;
        Ok(())
    }

    /// Everything is undone: takes it away.
    pub(crate) fn remove(self) -> Result<(), Error> {
        std::fs::remove_file(self.dir.join(&self.name)).map_err(|e| self.failed(e))
    }

    fn failed(&self, source: io::Error) -> Error {
        refused(format!("write the journal {}", self.dir.join(&self.name).display()), source)
    }
}

/// A journal that somebody has left behind.
pub(crate) enum Left {
    /// Its owner is at work.
    Live,
    /// It cannot be used, for this reason; nothing was changed.
    Unusable(String),
    /// What its owner had changed.
    Ledger(Ledger),
}

/// Goes through the journals of a directory, one after the other. One for which `undo` returns true is taken away, and
/// so is one from before the last boot.
pub(crate) fn for_each_left(dir: &Path, mut undo: impl FnMut(&Path, Left) -> bool) -> Result<(), Error> {
    let Some(directory) = Directory::open(dir)? else { return Ok(()) };
    let entries = std::fs::read_dir(dir).map_err(|source| Error::Read { path: dir.to_owned(), source })?;
    let mut names: Vec<_> = entries.flatten().map(|e| e.file_name()).collect();
    names.sort();
    // Their writers held the directory's lock, which is ours now: they were killed at it.
    for name in names.iter().filter(|n| n.as_bytes().ends_with(REWRITTEN_SUFFIX.as_bytes())) {
        let _ = fs::unlinkat(&directory.fd, name.as_os_str(), AtFlags::empty());
    }
    for name in names.into_iter().filter(|n| n.as_bytes().ends_with(SUFFIX.as_bytes())) {
        let path = dir.join(&name);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let left = match fs::openat(&directory.fd, name.as_os_str(), flags, Mode::empty()) {
            Ok(fd) => read(fd),
            Err(rustix::io::Errno::NOENT) => continue,
            Err(rustix::io::Errno::LOOP) => Ok(Some(Left::Unusable("it is a symbolic link".into()))),
            Err(e) => Err(e.into()),
        };
        let left = left.unwrap_or_else(|e| Some(Left::Unusable(format!("it cannot be read: {e}"))));
        if left.is_none_or(|left| undo(&path, left)) {
            let _ = fs::unlinkat(&directory.fd, name.as_os_str(), AtFlags::empty());
        }
    }
    Ok(())
}

/// What a journal holds. `None` if it is void: empty, or of an earlier boot of this host.
fn read(fd: OwnedFd) -> io::Result<Option<Left>> {
    let unusable = |why: String| Ok(Some(Left::Unusable(why)));
    let stat = fs::fstat(&fd)?;
    if !fs::FileType::from_raw_mode(stat.st_mode).is_file() {
        return unusable("it is not a plain file".into());
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return unusable(format!("it belongs to user {}", stat.st_uid));
    }
    if stat.st_mode & 0o7777 != 0o600 || stat.st_nlink != 1 {
        return unusable(
            "others may have written to it (its mode is not 0600, or it has a second name)".into(),
        );
    }
    if stat.st_size as u64 > BYTES_MAX {
        return unusable(format!("it is longer than {} MiB", BYTES_MAX >> 20));
    }
    match fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(Some(Left::Live)),
        other => other?,
    }
    let mut text = Vec::new();
    File::from(fd).take(BYTES_MAX).read_to_end(&mut text)?;
    let records = match parse(&text) {
        Ok(records) => records,
        Err(line) => return unusable(format!("line {line} is damaged")),
    };
    let Some(Record::Start(start)) = records.first() else { return Ok(None) };
    let here = Start::here();
    if start.version != here.version {
        return unusable(format!(
            "it is of format {}, not {}: use the Corebeat that wrote it",
            start.version, VERSION
        ));
    }
    if start.host != here.host || (start.boot == here.boot && start.pid_namespace != here.pid_namespace) {
        return unusable(format!("it is of another host or container, {}", start.host));
    }
    Ok((start.boot == here.boot).then(|| Left::Ledger(records.into_iter().skip(1).collect())))
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

    /// Any records, about few threads, so that they meet.
    fn record() -> impl Strategy<Value = Record> {
        let news = proptest::collection::vec(setting(), 8);
        let set = (1..4i32, 1..3u64, 0..9u64, setting(), news).prop_map(|(tid, start, at, old, news)| {
            // Two values of one kind; the same one, where none of the candidates is of it.
            let new = news.into_iter().find(|n| n.kind() == old.kind()).unwrap_or_else(|| old.clone());
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
            records.insert(0, Record::Start(Start::here()));
            records
        })
    }

    fn text(records: &[Record]) -> Vec<u8> {
        records.iter().map(Record::line).collect::<String>().into_bytes()
    }

    proptest! {
        #[test]
        fn parse_of_what_was_written_is_the_same(records in journal()) {
            prop_assert_eq!(parse(&text(&records)), Ok(records));
        }

        #[test]
        fn parse_of_a_torn_journal_is_a_beginning(records in journal(), cut in any::<prop::sample::Index>()) {
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
        fn parse_of_anything_ends(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn parse_of_right_sums_over_anything_ends(bodies in proptest::collection::vec(".{0,60}", 0..5)) {
            let line = |b: &String| format!("[\"{:08x}\",{b}]\n", crc32fast::hash(b.as_bytes()));
            let text: String = bodies.iter().map(line).collect();
            let _ = parse(text.as_bytes());
        }

        #[test]
        fn ledger_written_anew_is_the_same(records in journal()) {
            let ledger: Ledger = records.into_iter().chain([Record::Done]).collect();
            let again: Ledger = ledger.records().into_iter().collect();
            prop_assert_eq!(again.records(), ledger.records());
            prop_assert_eq!(again.entries().len(), ledger.entries().len());
        }
    }

    #[test]
    fn directory_that_cannot_be_made_is_to_be_another_one() {
        // Nobody makes folders there, root included.
        let Err(refused) = Directory::make(Path::new("/sys/corebeat/state")) else { panic!("it was made") };
        let said = refused.to_string();
        assert!(said.contains("set COREBEAT_STATE_DIR") && !said.contains("as the owner"), "{said}");
    }

    #[test]
    fn state_dir_is_absolute_or_an_error() {
        assert!(state_dir().map_or(true, |d| d.is_absolute()));
    }
}
