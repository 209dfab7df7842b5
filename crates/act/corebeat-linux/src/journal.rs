//! The journal: changes are on disk before they are made, so that they can be undone however
//! Corebeat ends.
//!
//! ```text
//!  state directory (0700, owned by the user)
//!    4711-88012-0.journal      one for each `Actuator`, 0600, flock'ed while its owner runs
//!
//!  a line:  ["9a0b1c2d",{"set":{...}}]\n      JSON with the CRC-32 of its text
//!  in order: start, then  (set* took* done)*  and  group, enable, team, stop, continued
//! ```
//!
//! - A batch of `set` lines is written and `fdatasync`ed before the changes are made. `took`
//!   records that the kernel set another value than requested, `done` the end of the batch. These
//!   two need no sync: written data survives a `kill -9`, and a crash of the host discards the
//!   changes. The frequent records `stop`, written before a process is stopped, and `continued`,
//!   written after, need no sync either, nor does `team`: the channel is in memory.
//! - Each line is verified on its own. A damaged line is reported and not used, nor is any line
//!   after a second `start`: it belongs to another journal, perhaps of another boot. Without a
//!   valid first line, nothing is undone. Settings whose state depends on a missing line are left
//!   alone ([`Ledger`]).
//! - The last line may be incomplete: its change was never made, unless a user has cut the file.
//! - The holder of the folder's lock may add, replace or remove journals.

mod ledger;

pub(crate) use ledger::{Entry, Ledger};

use crate::Error;
use crate::actuator::setting::Setting;
use crate::file::{lock_within, read_text};
use crate::process;
use crate::team;
use corebeat_machine::ThreadId;
use rustix::fs::{self, AtFlags, FlockOperation, Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
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
/// Format. Version 1 has no teams.
const VERSION: u32 = 2;
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
    /// A channel may limit the sizes of OpenMP teams from now on.
    Team { path: PathBuf },
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
    /// Start times of threads are shifted in another time namespace. `None` before Linux 5.6, and
    /// in journals of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    time_namespace: Option<String>,
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
            Record::Team { path } => team::is_channel_name(path),
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

/// Text of a journal, by lines.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Parsed {
    /// A record for each complete line; `None` for a damaged line.
    records: Vec<Option<Record>>,
    /// Whether the last line is incomplete.
    is_cut: bool,
}

/// Parses a journal.
pub(crate) fn parse(text: &[u8]) -> Parsed {
    let mut parsed = Parsed::default();
    let mut is_foreign = false;
    for piece in text.split_inclusive(|&b| b == b'\n') {
        let record = match piece.strip_suffix(b"\n") {
            Some(line) => Record::from_line(line),
            // An incomplete line is a change that was never made. A complete line with a wrong end
            // was modified.
            None => {
                let is_complete = |(_, line): (&u8, &[u8])| Record::from_line(line).is_some();
                parsed.is_cut = !piece.split_last().is_some_and(is_complete);
                if parsed.is_cut {
                    break;
                }
                None
            }
        };
        is_foreign |= !parsed.records.is_empty() && matches!(record, Some(Record::Start(_)));
        parsed.records.push(record.filter(|_| !is_foreign));
    }
    parsed
}

impl Parsed {
    /// Returns the numbers of the damaged lines, from 1.
    fn damaged(&self) -> Vec<usize> {
        (1..).zip(&self.records).filter(|(_, r)| r.is_none()).map(|(number, _)| number).collect()
    }

    /// Returns the sum of the records after the first line.
    fn into_ledger(self) -> Ledger {
        let mut ledger = Ledger::default();
        for record in self.records.into_iter().skip(1) {
            match record {
                Some(record) => ledger.note(&record),
                None => ledger.note_damage(),
            }
        }
        if self.is_cut {
            ledger.note_cut();
        }
        ledger
    }
}

impl Start {
    /// The first line of a journal that is written now.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the boot is unknown: a journal of another boot is removed.
    fn current() -> Result<Start, Error> {
        const BOOT: &str = "/proc/sys/kernel/random/boot_id";
        let boot = read_text(BOOT).map_err(|e| Error::Unsupported {
            what: "a journal of changes".into(),
            how: format!("{BOOT} cannot be read ({e}): mount /proc without 'subset=pid'"),
        })?;
        let namespace = |kind: &str| {
            let link = std::fs::read_link(format!("/proc/self/ns/{kind}"));
            link.map(|p| p.to_string_lossy().into_owned()).ok()
        };
        Ok(Start {
            version: VERSION,
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            boot: boot.trim().to_owned(),
            pid_namespace: namespace("pid").unwrap_or_default(),
            time_namespace: namespace("time"),
        })
    }

    /// Returns the place of the journal, if its numbers and times are not those of `current`. A
    /// namespace of an earlier boot has ended.
    fn elsewhere(&self, current: &Start) -> Option<String> {
        let Start { host, pid_namespace, .. } = self;
        let is_of_boot = self.boot == current.boot;
        match (&self.time_namespace, &current.time_namespace) {
            _ if *host != current.host => Some(format!("host, {host}")),
            _ if is_of_boot && *pid_namespace != current.pid_namespace => {
                Some(format!("PID namespace, {pid_namespace}"))
            }
            (Some(time), Some(now)) if is_of_boot && time != now => {
                Some(format!("time namespace, {time}"))
            }
            _ => None,
        }
    }
}

/// Returns the folder of journals: `COREBEAT_STATE_DIR` if it is set; else `/var/lib/corebeat` for
/// root, and `$XDG_STATE_HOME/corebeat` or `~/.local/state/corebeat` for other users.
///
/// # Errors
/// [`Error::Unsupported`] if none of these variables is set, the path is not absolute, or the home
/// folder does not exist.
pub fn state_dir() -> Result<PathBuf, Error> {
    let given = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let dir = match given("COREBEAT_STATE_DIR") {
        Some(dir) => Some(dir),
        None if rustix::process::geteuid().is_root() => Some("/var/lib/corebeat".into()),
        None => given("XDG_STATE_HOME")
            .filter(|d| d.is_absolute())
            .or_else(|| given("HOME").filter(|h| h.is_dir()).map(|h| h.join(".local/state")))
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
            // Refused, not denied: its mode helps, not another user.
            return Err(Error::Refused {
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

    /// Returns the names of the journals. If `removes` is set, removes incomplete rewritten ones.
    fn journals(&self, removes: bool) -> Result<Vec<OsString>, Error> {
        let entries = std::fs::read_dir(&self.path)
            .map_err(|source| Error::Read { path: self.path.clone(), source })?;
        let mut names: Vec<_> = entries.flatten().map(|e| e.file_name()).collect();
        names.sort();
        // The writers of these files held the lock of the folder: they were killed while rewriting.
        let is_rewritten = |n: &&OsString| n.as_bytes().ends_with(REWRITTEN_SUFFIX.as_bytes());
        names.iter().filter(|n| removes && is_rewritten(n)).for_each(|name| self.remove(name));
        names.retain(|n| n.as_bytes().ends_with(SUFFIX.as_bytes()));
        Ok(names)
    }

    /// Reads a journal. `None` if it is empty, missing or from an earlier boot of this host.
    fn left(&self, name: &OsStr, current: &Start) -> Option<Left> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let left = match fs::openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => read(fd, current),
            Err(rustix::io::Errno::NOENT) => return None,
            Err(rustix::io::Errno::LOOP) => Ok(Some(Left::unusable("it is a symbolic link"))),
            Err(e) => Err(e.into()),
        };
        left.unwrap_or_else(|e| Some(Left::unusable(format!("it cannot be read: {e}"))))
    }

    fn remove(&self, name: &OsStr) {
        let _ = fs::unlinkat(&self.fd, name, AtFlags::empty());
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
    /// Creates a journal in this folder. Creates the folder if necessary. [`owner`] parses the
    /// name.
    pub(crate) fn create(dir: &Path) -> Result<Journal, Error> {
        process::check_namespace()?;
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let first = Record::Start(Start::current()?);
        let pid = std::process::id() as i32;
        let start = process::thread_id(pid).ok().flatten().map_or(0, |t| t.start_ticks);
        // Relaxed: the number must only differ between calls.
        let name = format!("{pid}-{start}-{}{SUFFIX}", COUNT.fetch_add(1, Ordering::Relaxed));
        let directory = Directory::make(dir)?;
        let file = directory.create(&name)?;
        let mut journal = Journal { dir: dir.to_owned(), name, file, bytes: 0, bytes_rewritten: 0 };
        if let Err(e) = journal.write(&[first]) {
            // On a full disk, an empty journal would stay for ever.
            let _ = journal.remove();
            return Err(e);
        }
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
        let first = Record::Start(Start::current()?);
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
        next.write(&[first])?;
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

/// Returns the process that created a journal, from the name of the file.
pub(crate) fn owner(journal: &Path) -> Option<ThreadId> {
    let mut numbers = journal.file_name()?.to_str()?.split('-');
    let (tid, start_ticks) = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
    Some(ThreadId { tid, start_ticks })
}

/// A journal found in the state folder.
#[derive(Debug, Default)]
pub(crate) struct Left {
    pub(crate) path: PathBuf,
    /// Whether the owner runs.
    pub(crate) is_live: bool,
    /// Changes of the owner.
    pub(crate) ledger: Ledger,
    /// Reason for which the journal, or a part of it, is not used, and what the user can do.
    pub(crate) problem: Option<String>,
}

/// Advice about a journal that is damaged.
const INSPECT: &str = "inspect and remove it";

impl Left {
    fn unusable(why: impl std::fmt::Display) -> Left {
        Left { problem: Some(format!("is not used: {why}; {INSPECT}")), ..Left::default() }
    }

    /// A journal from elsewhere. Its numbers of threads belong to other threads here.
    fn elsewhere(place: &str, is_live: bool) -> Left {
        let (not, remedy) = match is_live {
            true => ("listed", "run 'corebeat status' there"),
            false => (
                "used",
                "run 'corebeat restore' there, or remove the journal if all changed processes \
                 have ended",
            ),
        };
        let problem = format!("is not {not}: it is from another {place}; {remedy}");
        Left { is_live, problem: Some(problem), ..Left::default() }
    }
}

/// The journals of a folder, which stays locked. A missing folder holds no journals.
#[derive(Default)]
pub(crate) struct Found {
    directory: Option<Directory>,
    pub(crate) journals: Vec<Left>,
}

impl Found {
    /// Reads the journals. If `removes` is set, removes those from before the last boot.
    pub(crate) fn read(dir: &Path, removes: bool) -> Result<Found, Error> {
        let Some(directory) = Directory::open(dir)? else { return Ok(Found::default()) };
        process::check_namespace()?;
        let names = directory.journals(removes)?;
        let mut journals = vec![];
        if !names.is_empty() {
            let current = Start::current()?;
            for name in names {
                let path = dir.join(&name);
                match directory.left(&name, &current) {
                    Some(left) => {
                        let about = |why| format!("the journal {} {why}", path.display());
                        let problem = left.problem.map(about);
                        journals.push(Left { path, problem, ..left });
                    }
                    None if removes => directory.remove(&name),
                    None => {}
                }
            }
        }
        Ok(Found { directory: Some(directory), journals })
    }

    /// Removes a journal whose changes are undone.
    pub(crate) fn remove(&self, left: &Left) {
        if let Some((directory, name)) = self.directory.as_ref().zip(left.path.file_name()) {
            directory.remove(name);
        }
    }
}

/// Reads a journal. `None` if it is empty or from an earlier boot of this host.
fn read(fd: OwnedFd, current: &Start) -> io::Result<Option<Left>> {
    let unusable = |why: String| Ok(Some(Left::unusable(why)));
    let stat = fs::fstat(&fd)?;
    if !fs::FileType::from_raw_mode(stat.st_mode).is_file() {
        return unusable("it is not a plain file".into());
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return unusable(format!("it belongs to user {}", stat.st_uid));
    }
    if stat.st_mode & 0o7777 != 0o600 || stat.st_nlink != 1 {
        return unusable(
            "other users may have written it (mode other than 0600, or a second name)".into(),
        );
    }
    if stat.st_size as u64 > BYTES_MAX {
        return unusable(format!("it is longer than {} MiB", BYTES_MAX >> 20));
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
    let parsed = parse(&text);
    if is_live {
        if let Some(Some(Record::Start(start))) = parsed.records.first()
            && let Some(place) = start.elsewhere(current)
        {
            return Ok(Some(Left::elsewhere(&place, is_live)));
        }
        // The owner may have rewritten the end of the text meanwhile: no problem is reported.
        return Ok(Some(Left { is_live, ledger: parsed.into_ledger(), ..Left::default() }));
    }
    let start = match parsed.records.first() {
        None => return Ok(None),
        Some(Some(Record::Start(start))) => start,
        Some(_) => return unusable("line 1 is damaged".into()),
    };
    if !(1..=VERSION).contains(&start.version) {
        return unusable(format!(
            "it has format {}, not {VERSION}: use the Corebeat version that wrote it",
            start.version
        ));
    }
    if let Some(place) = start.elsewhere(current) {
        return Ok(Some(Left::elsewhere(&place, is_live)));
    }
    if start.boot.is_empty() {
        return unusable("it does not name the boot of its changes".into());
    }
    if start.boot != current.boot {
        return Ok(None);
    }
    let problem = match parsed.damaged()[..] {
        [] => None,
        [line] => Some(format!("is used without line {line}, which is damaged; {INSPECT}")),
        [first, ..] => Some(format!(
            "is used without {} damaged lines, the first of them line {first}; {INSPECT}",
            parsed.damaged().len()
        )),
    };
    Ok(Some(Left { is_live, ledger: parsed.into_ledger(), problem, ..Left::default() }))
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
            1 => "/corebeat-team-[a-c]".prop_map(|p| Record::Team { path: p.into() }),
            1 => (1..4i32, 1..3u64).prop_map(|(tid, start)| Record::Stop { tid, start }),
            1 => (1..4i32, 1..3u64).prop_map(|(tid, start)| Record::Continued { tid, start }),
        ]
    }

    fn journal() -> impl Strategy<Value = Vec<Record>> {
        proptest::collection::vec(record(), 0..12).prop_map(|mut records| {
            records.insert(0, Record::Start(Start::current().unwrap()));
            records
        })
    }

    fn text(records: &[Record]) -> Vec<u8> {
        records.iter().map(Record::line).collect::<String>().into_bytes()
    }

    proptest! {
        #[test]
        fn parse_of_written_records_round_trips(intact in journal()) {
            let records = intact.clone();
            let records = records.into_iter().map(Some).collect();
            prop_assert_eq!(parse(&text(&intact)), Parsed { records, is_cut: false });
        }

        #[test]
        fn parse_of_a_truncated_journal_is_a_prefix(
            records in journal(), cut in any::<prop::sample::Index>(),
        ) {
            let text = text(&records);
            let parsed = parse(&text[..cut.index(text.len() + 1)]);
            let read: Vec<Record> = parsed.records.into_iter().flatten().collect();
            prop_assert!(records.starts_with(&read));
        }

        #[test]
        fn parse_after_a_flipped_bit_loses_the_damaged_lines_only(
            records in journal(), at in any::<prop::sample::Index>(), bit in 0..8u8,
        ) {
            let mut text = text(&records);
            let at = at.index(text.len());
            text[at] ^= 1u8 << bit;
            let parsed = parse(&text);
            let read: Vec<&Record> = parsed.records.iter().flatten().collect();
            // The case of a hexadecimal digit carries no meaning. A lost end joins two lines.
            prop_assert!(read.len() + 2 >= records.len());
            let mut rest = records.iter();
            prop_assert!(read.iter().all(|record| rest.any(|written| written == *record)));
            prop_assert!(read.len() == records.len() || !parsed.damaged().is_empty());
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
