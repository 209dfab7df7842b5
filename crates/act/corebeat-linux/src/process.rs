//! Processes and threads: by names that are never used twice, with their children, and as they are watched.

use crate::Error;
use crate::file::{Buffer, ProcFile};
use crate::thread::{self, Thread};
use corebeat_machine::ThreadId;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// The identity of a thread that is there now.
pub(crate) fn thread_id(tid: i32) -> Option<ThreadId> {
    // The file of the thread alone: that of the process adds up the times of all its threads, which takes its time.
    let stat = fs::read_to_string(format!("/proc/{tid}/task/{tid}/stat")).ok()?;
    thread::parse_stat(&stat).map(|s| ThreadId { tid, start_ticks: s.start_ticks })
}

/// Whether the thread is there and still the one that was meant: numbers are used again.
pub(crate) fn is_same(thread: ThreadId) -> bool {
    thread_id(thread.tid) == Some(thread)
}

/// Whether a thread that is there acts for another user than this one, or on behalf of one (its real and its effective user
/// differ after a program with the set-user-ID bit is executed).
pub(crate) fn is_anothers(tid: i32, uid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    parse_users(&status).is_some_and(|users| users != [uid, uid])
}

/// The real and the effective user, from the text of `/proc/TID/status`.
fn parse_users(status: &str) -> Option<[u32; 2]> {
    let line = status.lines().find_map(|l| l.strip_prefix("Uid:"))?;
    let mut numbers = line.split_ascii_whitespace().map(str::parse);
    Some([numbers.next()?.ok()?, numbers.next()?.ok()?])
}

/// All threads of a process, in no order. Empty if the process has ended.
pub(crate) fn threads(pid: i32) -> Vec<i32> {
    numbers(&format!("/proc/{pid}/task"))
}

/// The entries of a folder whose names are numbers. None if it cannot be read.
fn numbers(folder: &str) -> Vec<i32> {
    let numbers = |dir: fs::ReadDir| dir.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok());
    fs::read_dir(folder).map(|dir| numbers(dir).collect()).unwrap_or_default()
}

/// Whether no thread of a process runs, because a signal has stopped it, a debugger holds it, or it has ended.
pub(crate) fn is_halted(pid: i32) -> bool {
    are_all_in(pid, &['T', 't', 'Z', 'X'])
}

/// The same, or it sleeps where a signal to stop does not wake it: at a disk, or in `vfork` until its child goes on.
pub(crate) fn is_halted_or_in_kernel(pid: i32) -> bool {
    are_all_in(pid, &['T', 't', 'Z', 'X', 'D'])
}

fn are_all_in(pid: i32, states: &[char]) -> bool {
    let is_in = |tid: i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
        thread::parse_stat(&stat).map(|s| states.contains(&s.state))
    };
    !threads(pid).into_iter().any(|tid| is_in(tid) == Some(false))
}

/// The parent of a process, while there is one.
pub(crate) fn parent(pid: i32) -> Option<i32> {
    parse_parent(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Sends a signal to a process, and never to a later one of its number. Whether it was there to get it.
pub(crate) fn signal(process: ThreadId, signal: Signal) -> io::Result<bool> {
    let Some(pid) = (process.tid > 0).then(|| Pid::from_raw(process.tid)).flatten() else { return Ok(false) };
    let sent = match pidfd_open(pid, PidfdFlags::empty()) {
        // While it has not ended, nobody else gets its number: it is the one that was opened.
        Ok(fd) if is_same(process) && !has_ended(&fd) => pidfd_send_signal(&fd, signal),
        // Before Linux 5.3, or no descriptor is free.
        Err(e) if !is_missing(e) && is_same(process) => kill_process(pid, signal),
        _ => return Ok(false),
    };
    match sent {
        Err(rustix::io::Errno::SRCH) => Ok(false),
        other => other.map(|()| true).map_err(io::Error::from),
    }
}

/// Whether `pidfd_open` says that there is no such process. A thread that is not a process's first answers EINVAL, or ENOENT since
/// Linux 6.9.
fn is_missing(error: rustix::io::Errno) -> bool {
    matches!(error, rustix::io::Errno::SRCH | rustix::io::Errno::INVAL | rustix::io::Errno::NOENT)
}

/// Those of these processes that are still there, and all who descend from them: parents before their children.
pub(crate) fn family(roots: impl IntoIterator<Item = ThreadId>) -> Vec<ThreadId> {
    let mut family: Vec<ThreadId> = roots.into_iter().filter(|p| is_same(*p)).collect();
    family.sort_unstable_by_key(|p| (p.start_ticks, p.tid));
    family.dedup();
    let mut known: HashSet<ThreadId> = family.iter().copied().collect();
    let children = Children::now();
    let mut next = 0;
    while let Some(&process) = family.get(next) {
        let found = children.of(process.tid, &threads(process.tid)).into_iter().filter_map(thread_id);
        let found: Vec<ThreadId> = found.filter(|child| !known.contains(child)).collect();
        // The children of a later process of this number are strangers.
        if is_same(process) {
            known.extend(&found);
            family.extend(found);
        }
        next += 1;
    }
    family
}

/// Finds the children of processes.
#[derive(Debug)]
pub(crate) enum Children {
    /// Each thread has a file that lists them (`CONFIG_PROC_CHILDREN`).
    Listed,
    /// All processes with their parents, as found in one walk over `/proc`.
    Walked(Vec<(i32, i32)>),
}

impl Children {
    /// The way that this kernel offers.
    pub(crate) fn now() -> Self {
        match Path::new("/proc/thread-self/children").exists() {
            true => Children::Listed,
            false => Children::walk(),
        }
    }

    fn walk() -> Self {
        Children::Walked(numbers("/proc").into_iter().filter_map(|pid| Some((parent(pid)?, pid))).collect())
    }

    /// The children of a process, by whichever of its threads they were started.
    pub(crate) fn of(&self, pid: i32, tids: &[i32]) -> Vec<i32> {
        let listed = |tid: &i32| {
            fs::read_to_string(format!("/proc/{pid}/task/{tid}/children")).map(|t| parse_children(&t))
        };
        match self {
            Children::Listed => tids.iter().flat_map(|t| listed(t).unwrap_or_default()).collect(),
            Children::Walked(all) => all.iter().filter(|(p, _)| *p == pid).map(|&(_, c)| c).collect(),
        }
    }
}

/// The numbers in `/proc/PID/task/TID/children`.
fn parse_children(text: &str) -> Vec<i32> {
    text.split_ascii_whitespace().filter_map(|n| n.parse().ok()).collect()
}

/// The parent's number, from the text of `/proc/PID/stat`.
fn parse_parent(stat: &str) -> Option<i32> {
    stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// What a process has read and written by system calls, from the text of `/proc/PID/io`.
fn parse_io(text: &str) -> Option<u64> {
    let value = |name: &str| {
        text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':')?.trim().parse::<u64>().ok())
    };
    value("rchar")?.checked_add(value("wchar")?)
}

/// A watched process.
#[derive(Debug)]
pub(crate) struct Process {
    /// Number and start of its first thread.
    pub(crate) id: ThreadId,
    /// Tells its end without a doubt about whose number it is; `None` before Linux 5.3.
    pidfd: Option<OwnedFd>,
    io: ProcFile,
    stat: ProcFile,
    io_bytes: Option<u64>,
    cpu_ticks: Option<u64>,
    /// Its threads by number.
    pub(crate) threads: BTreeMap<i32, Thread>,
}

/// What a process has done since the last reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Progress {
    /// `None` where it may not be known.
    pub(crate) io_bytes: Option<u64>,
    /// CPU time of all its threads, those that have ended included, in clock ticks.
    pub(crate) cpu_ticks: u64,
}

impl Process {
    /// Begins to watch a process, without its threads yet.
    ///
    /// # Errors
    /// [`Error::NoProcess`], and [`Error::Denied`] where `/proc` hides it (`hidepid`).
    pub(crate) fn open(pid: i32, keep: bool) -> Result<Self, Error> {
        let missing = || Error::NoProcess { pid };
        let number = (pid > 0).then(|| Pid::from_raw(pid)).flatten().ok_or_else(missing)?;
        let pidfd = match pidfd_open(number, PidfdFlags::empty()) {
            Ok(fd) => Some(fd),
            Err(e) if is_missing(e) => return Err(missing()),
            Err(_) => None,
        };
        let id = thread_id(pid).ok_or_else(|| match &pidfd {
            Some(fd) if !has_ended(fd) => Error::Denied {
                what: format!("see process {pid}, which /proc hides (hidepid)"),
                source: io::ErrorKind::PermissionDenied.into(),
            },
            _ => missing(),
        })?;
        let open = |name: &str| ProcFile::open(format!("/proc/{pid}/{name}"), keep);
        Ok(Process {
            id,
            pidfd,
            io: open("io"),
            stat: open("stat"),
            io_bytes: None,
            cpu_ticks: None,
            threads: BTreeMap::new(),
        })
    }

    /// Whether it runs. A process that nobody has waited for yet has ended.
    pub(crate) fn is_alive(&self) -> bool {
        match &self.pidfd {
            Some(fd) => !has_ended(fd),
            None => is_same(self.id),
        }
    }

    /// Sends it a signal, by libc's number. One that has ended gets none.
    pub(crate) fn signal(&self, signal: i32) {
        let Some(known) = Signal::from_named_raw(signal) else { return };
        // A refusal leaves the process as it is; whoever asked sees that it lives.
        let _ = self::signal(self.id, known);
    }

    /// What it has done since the last call; all since its birth if this is the first and it was `born` under our eyes.
    pub(crate) fn progress(&mut self, born: bool, buffer: &mut Buffer) -> Progress {
        let first = born.then_some(0);
        let since = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before.or(first)?));
        let io_bytes = self.io.read(buffer).ok().and_then(|t| parse_io(&t));
        let ticks = |t: &str| thread::parse_stat(t).map(|s| s.user.saturating_add(s.system));
        let cpu_ticks = self.stat.read(buffer).ok().and_then(|t| ticks(&t));
        let progress = Progress {
            io_bytes: since(io_bytes, self.io_bytes),
            cpu_ticks: since(cpu_ticks, self.cpu_ticks).unwrap_or(0),
        };
        // What cannot be read now, because the process is ending, is known up to its last reading.
        self.io_bytes = io_bytes.or(self.io_bytes);
        self.cpu_ticks = cpu_ticks.or(self.cpu_ticks);
        progress
    }

    /// Whether its bytes may not be known at all.
    pub(crate) fn hides_io(&self) -> bool {
        matches!(self.io, ProcFile::Closed)
    }
}

fn has_ended(pidfd: &OwnedFd) -> bool {
    const AT_ONCE: rustix::time::Timespec = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    matches!(poll(&mut fds, Some(&AT_ONCE)), Ok(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_is_anothers_where_a_user_differs() {
        assert_eq!(parse_users("Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\n"), Some([1, 2]));
        for odd in ["", "Uid:\n", "Uid:\t1\n", "Uid:\tx\ty\n"] {
            assert_eq!(parse_users(odd), None);
        }
        let (tid, uid) = (std::process::id() as i32, rustix::process::geteuid().as_raw());
        assert!(!is_anothers(tid, uid));
        assert!(is_anothers(tid, uid + 1));
        assert!(!is_anothers(i32::MAX, uid), "who is not there is nobody");
    }
    use proptest::prelude::*;

    #[test]
    fn thread_id_of_this_thread_stays_the_same() {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        assert!(is_same(thread_id(tid).unwrap()));
        assert!(threads(std::process::id() as i32).contains(&tid));
    }

    #[test]
    fn is_same_for_another_start_is_false() {
        let mut id = thread_id(std::process::id() as i32).unwrap();
        id.start_ticks += 1;
        assert!(!is_same(id));
    }

    #[test]
    fn parsers_read_children_parent_and_bytes() {
        assert_eq!(parse_children("7666 12 \n"), [7666, 12]);
        assert_eq!(parse_parent("7 (a) b) S 55 7 7"), Some(55));
        assert_eq!(parse_io("rchar: 100\nwchar: 20\nsyscr: 3\n"), Some(120));
        assert_eq!(parse_io("rchar: 100\n"), None);
    }

    proptest! {
        #[test]
        fn process_parsers_never_panic(text in "\\PC{0,60}", io in "(rchar|wchar|x|:| |\n|[0-9]){0,20}") {
            let _ = (parse_children(&text), parse_parent(&text));
            let _ = parse_io(&io);
        }
    }

    /// A process that does nothing, ended when dropped.
    struct Sleeper(std::process::Child);

    impl Sleeper {
        fn new() -> Self {
            Sleeper(std::process::Command::new("sleep").arg("30").spawn().unwrap())
        }

        fn pid(&self) -> i32 {
            self.0.id() as i32
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn children_listed_and_walked_both_find_a_child() {
        let child = Sleeper::new();
        let own = std::process::id() as i32;
        assert!(Children::now().of(own, &threads(own)).contains(&child.pid()));
        assert!(Children::walk().of(own, &[]).contains(&child.pid()));
    }

    #[test]
    fn process_that_has_ended_is_not_alive_before_anybody_waits() {
        let mut child = Sleeper::new();
        let process = Process::open(child.pid(), true).unwrap();
        assert!(process.is_alive());
        child.0.kill().unwrap();
        let ended = (0..1000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            !process.is_alive()
        });
        assert!(ended);
    }

    #[test]
    fn process_that_is_not_there_is_named_in_the_error() {
        for pid in [0, -1, i32::MAX] {
            assert!(matches!(Process::open(pid, true).unwrap_err(), Error::NoProcess { pid: p } if p == pid));
        }
    }

    #[test]
    fn process_progress_counts_what_was_written() {
        let (mut buffer, own) = (Buffer::new(), std::process::id() as i32);
        let mut process = Process::open(own, true).unwrap();
        assert_eq!(process.progress(false, &mut buffer).io_bytes, None);
        fs::write("/dev/null", [0; 4096]).unwrap();
        assert!(process.progress(false, &mut buffer).io_bytes.unwrap() >= 4096);
    }
}
