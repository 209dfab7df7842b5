//! Processes and threads: unique identities, children, signals, and watched processes.

use crate::Error;
use crate::file::{Buffer, ProcFile, field, read_text};
use crate::thread::{self, Thread};
use corebeat_machine::ThreadId;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal, test_kill_process,
};
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// Greatest number of searches for threads or processes that start while others are changed: a
/// program may start them without end.
pub(crate) const SEARCHES_MAX: u32 = 16;

/// Returns an error if `/proc` is missing, or belongs to another PID namespace, as after
/// `unshare -pf`: all processes then seem to have ended, or its numbers belong to other processes.
pub(crate) fn check_namespace() -> Result<(), Error> {
    let own = rustix::process::getpid().to_string();
    let unsupported =
        |how: String| Error::Unsupported { what: "observing or changing processes".into(), how };
    match fs::read_link("/proc/self") {
        Ok(number) if number.as_os_str() == own.as_str() => Ok(()),
        Ok(_) => Err(unsupported(
            "/proc belongs to another PID namespace: run 'mount -t proc proc /proc' in a separate \
             mount namespace ('unshare -pf --mount-proc')"
                .into(),
        )),
        Err(e) => Err(unsupported(format!(
            "/proc cannot be read ({e}): mount it with 'mount -t proc proc /proc'"
        ))),
    }
}

/// Reads a file of a thread. `None` if the thread does not exist.
///
/// # Errors
/// Fails if the file cannot be read, or if `/proc` hides the thread.
pub(crate) fn read_of_thread(tid: i32, name: &str) -> io::Result<Option<String>> {
    let path = format!("/proc/{tid}/{name}");
    // Twice: a new thread may get the number between the two system calls.
    for _ in 0..2 {
        match read_text(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound || has_ended_during(&e) => {
                if !exists(tid) {
                    return Ok(None);
                }
            }
            other => return other.map(Some),
        }
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, "/proc hides the process (hidepid)"))
}

/// Returns whether the error of a read means that the thread ended after the file was opened.
fn has_ended_during(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ESRCH)
}

/// Returns whether a thread has this number, even if `/proc` hides the thread.
fn exists(tid: i32) -> bool {
    let number = (tid > 0).then(|| Pid::from_raw(tid)).flatten();
    number.is_some_and(|n| test_kill_process(n) != Err(rustix::io::Errno::SRCH))
}

/// Returns the identity of the thread that has this number now, if there is one, and whether the
/// thread lives: a zombie has ended, but keeps its number.
///
/// A dead process (state X), whose parent waits for it at this moment, has ended: the sums of the
/// parent may already include those of the process.
fn find(tid: i32) -> io::Result<Option<(ThreadId, bool)>> {
    // The file of the thread: that of the process sums the times of all threads, which is slow.
    let Some(stat) = read_of_thread(tid, &format!("task/{tid}/stat"))? else { return Ok(None) };
    let stat = thread::parse_stat(&stat)
        .ok_or_else(|| io::Error::other("its file 'stat' has an unknown format"))?;
    let id = ThreadId { tid, start_ticks: stat.start_ticks };
    Ok((stat.state != 'X').then_some((id, stat.state != 'Z')))
}

/// Returns the identity of the thread that has this number now, if there is one, also of a zombie.
///
/// # Errors
/// Fails if the identity of an existing thread cannot be read.
pub(crate) fn thread_id(tid: i32) -> io::Result<Option<ThreadId>> {
    Ok(find(tid)?.map(|(id, _)| id))
}

/// Returns the identity of the process that has this number now, also of a zombie.
///
/// # Errors
/// [`Error::NoProcess`]; [`Error::Denied`] if `/proc` hides the process (`hidepid`).
pub fn identify(pid: i32) -> Result<ThreadId, Error> {
    let hidden = |e| Error::of_call(format!("watch process {pid}"), e);
    thread_id(pid).map_err(hidden)?.ok_or(Error::NoProcess { pid })
}

/// Returns the identity of the thread that has this number now, unless the thread has ended.
///
/// # Errors
/// As [`thread_id`].
pub(crate) fn living(tid: i32) -> io::Result<Option<ThreadId>> {
    Ok(find(tid)?.filter(|&(_, lives)| lives).map(|(id, _)| id))
}

/// Returns whether a process is a thread of the kernel, and not of a program.
pub fn is_kernel_thread(pid: i32) -> bool {
    let stat = read_text(format!("/proc/{pid}/stat")).unwrap_or_default();
    thread::parse_stat(&stat).is_some_and(|stat| stat.is_kernel)
}

/// Returns whether the thread exists and still has this identity: numbers are reused.
///
/// # Errors
/// Same as [`thread_id`].
pub(crate) fn is_same(thread: ThreadId) -> io::Result<bool> {
    Ok(thread_id(thread.tid)? == Some(thread))
}

/// Returns whether a thread has ended for certain.
pub(crate) fn is_gone(thread: ThreadId) -> bool {
    matches!(is_same(thread), Ok(false))
}

/// Returns the process of a thread, identified by its first thread. `None` if the thread has ended.
///
/// # Errors
/// Same as [`thread_id`].
pub(crate) fn process_of(tid: i32) -> io::Result<Option<ThreadId>> {
    let Some(status) = read_of_thread(tid, "status")? else { return Ok(None) };
    let pid = field(&status, "Tgid:").and_then(|pid| pid.parse().ok());
    thread_id(pid.ok_or_else(|| io::Error::other("its file 'status' has an unknown format"))?)
}

/// Returns whether a thread exists and runs as another user, or on behalf of another user: the real
/// and the effective user differ after the execution of a set-user-ID program. A thread whose user
/// is unknown counts as one of another user.
pub(crate) fn is_of_other_user(tid: i32, uid: u32) -> bool {
    match read_of_thread(tid, "status") {
        Ok(None) => false,
        Ok(Some(status)) => parse_users(&status) != Some([uid, uid]),
        Err(_) => true,
    }
}

/// Returns the user of a process, unless its real and its effective user differ.
pub(crate) fn user(pid: i32) -> Option<u32> {
    let [real, effective] = parse_users(&read_of_thread(pid, "status").ok()??)?;
    (real == effective).then_some(real)
}

/// Returns whether this process may change the settings of a process (`sched_setscheduler(2)`): a
/// process of the same user, or any process with `CAP_SYS_NICE`.
pub fn may_change(pid: i32) -> bool {
    const CAP_SYS_NICE: u64 = 1 << 23;
    let own = read_text("/proc/self/status").unwrap_or_default();
    capabilities(&own).is_some_and(|caps| caps & CAP_SYS_NICE != 0)
        || !is_of_other_user(pid, rustix::process::geteuid().as_raw())
}

/// Parses the effective capabilities from the text of `/proc/TID/status`.
pub(crate) fn capabilities(status: &str) -> Option<u64> {
    field(status, "CapEff:").and_then(|caps| u64::from_str_radix(caps, 16).ok())
}

/// Parses the real and the effective user from the text of `/proc/TID/status`.
fn parse_users(status: &str) -> Option<[u32; 2]> {
    let mut numbers = field(status, "Uid:")?.split_ascii_whitespace().map(str::parse);
    Some([numbers.next()?.ok()?, numbers.next()?.ok()?])
}

/// Returns all threads of a process, in arbitrary order. Empty if the process has ended.
pub(crate) fn threads(pid: i32) -> Vec<i32> {
    numbers(&format!("/proc/{pid}/task"))
}

/// Returns all processes that `/proc` shows.
pub(crate) fn all() -> Vec<i32> {
    numbers("/proc")
}

/// Returns the numbers among the names in a folder. Empty if the folder cannot be read.
pub(crate) fn numbers(folder: &str) -> Vec<i32> {
    let numbers =
        |dir: fs::ReadDir| dir.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok());
    fs::read_dir(folder).map(|dir| numbers(dir).collect()).unwrap_or_default()
}

/// Returns whether no thread of a process runs: each is stopped by a signal, held by a debugger, or
/// has ended.
pub(crate) fn is_halted(pid: i32) -> bool {
    are_all_in(pid, &['T', 't', 'Z', 'X'])
}

/// Same as [`is_halted`], and threads may also be in an uninterruptible sleep: waiting for a disk,
/// or in `vfork` until the child continues.
pub(crate) fn is_halted_or_in_kernel(pid: i32) -> bool {
    are_all_in(pid, &['T', 't', 'Z', 'X', 'D'])
}

fn are_all_in(pid: i32, states: &[char]) -> bool {
    let is_in = |tid: i32| {
        let stat = read_text(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
        thread::parse_stat(&stat).map(|s| states.contains(&s.state))
    };
    !threads(pid).into_iter().any(|tid| is_in(tid) == Some(false))
}

/// Returns the parent of a process, its parent, and so on. The number is limited, because processes
/// start and end meanwhile, so that parents could form a cycle.
pub(crate) fn ancestors(pid: i32) -> impl Iterator<Item = i32> {
    let next = |pid: i32| parent(pid).filter(|&parent| parent > 0);
    std::iter::successors(next(pid), move |&pid| next(pid)).take(1000)
}

/// Returns the parent of a process that exists.
pub(crate) fn parent(pid: i32) -> Option<i32> {
    parse_parent(&read_text(format!("/proc/{pid}/stat")).ok()?)
}

/// Sends a signal to a process, and never to a later process with its number. `None` sends nothing,
/// and only checks whether a signal could be sent. Returns whether the process existed.
///
/// # Errors
/// Fails if the identity of the process cannot be read, or if the signal is refused.
pub(crate) fn signal(process: ThreadId, signal: impl Into<Option<Signal>>) -> io::Result<bool> {
    let Some(pid) = (process.tid > 0).then(|| Pid::from_raw(process.tid)).flatten() else {
        return Ok(false);
    };
    let signal = signal.into();
    let sent = match (pidfd_open(pid, PidfdFlags::empty()), signal) {
        // As long as the process has not ended, its number is not reused.
        (Ok(fd), Some(signal)) if is_same(process)? && !has_ended(&fd) => {
            pidfd_send_signal(&fd, signal)
        }
        (Ok(fd), None) if is_same(process)? && !has_ended(&fd) => test_kill_process(pid),
        // The kernel is older than 5.3, or no descriptor is free.
        (Err(e), signal) if !is_missing(e) && is_same(process)? => {
            signal.map_or_else(|| test_kill_process(pid), |signal| kill_process(pid, signal))
        }
        _ => return Ok(false),
    };
    match sent {
        Err(rustix::io::Errno::SRCH) => Ok(false),
        other => other.map(|()| true).map_err(io::Error::from),
    }
}

/// Returns whether the error of `pidfd_open` means that the process does not exist. For a thread
/// that is not the first of its process, the error is EINVAL, or ENOENT since Linux 6.9.
fn is_missing(error: rustix::io::Errno) -> bool {
    matches!(error, rustix::io::Errno::SRCH | rustix::io::Errno::INVAL | rustix::io::Errno::NOENT)
}

/// Returns those of these processes that have not ended, and all their descendants, parents before
/// their children.
pub(crate) fn family(roots: impl IntoIterator<Item = ThreadId>) -> Vec<ThreadId> {
    let mut family: Vec<ThreadId> = roots.into_iter().filter(|p| !is_gone(*p)).collect();
    family.sort_unstable_by_key(|p| (p.start_ticks, p.tid));
    family.dedup();
    let mut known: HashSet<ThreadId> = family.iter().copied().collect();
    let children = Children::now();
    let mut next = 0;
    while let Some(&process) = family.get(next) {
        let found = children.of(process.tid, &threads(process.tid)).into_iter();
        let found = found.filter_map(|pid| thread_id(pid).ok().flatten());
        let found: Vec<ThreadId> = found.filter(|child| !known.contains(child)).collect();
        // Ignore the children of a later process with this number.
        if !is_gone(process) {
            known.extend(&found);
            family.extend(found);
        }
        next += 1;
    }
    family
}

/// Means to find the children of processes.
#[derive(Debug)]
pub(crate) enum Children {
    /// Each thread has a file that lists its children (`CONFIG_PROC_CHILDREN`).
    Listed,
    /// All processes with their parents, from one walk over `/proc`.
    Walked(Vec<(i32, i32)>),
}

impl Children {
    /// Returns the means that this kernel provides.
    pub(crate) fn now() -> Self {
        match Path::new("/proc/thread-self/children").exists() {
            true => Children::Listed,
            false => Children::walk(),
        }
    }

    fn walk() -> Self {
        Children::Walked(all().into_iter().filter_map(|pid| Some((parent(pid)?, pid))).collect())
    }

    /// Returns the children of a process, started by any of its threads.
    pub(crate) fn of(&self, pid: i32, tids: &[i32]) -> Vec<i32> {
        let listed = |tid: &i32| {
            read_text(format!("/proc/{pid}/task/{tid}/children")).map(|t| parse_children(&t))
        };
        match self {
            Children::Listed => tids.iter().flat_map(|t| listed(t).unwrap_or_default()).collect(),
            Children::Walked(all) => {
                all.iter().filter(|(p, _)| *p == pid).map(|&(_, c)| c).collect()
            }
        }
    }
}

/// Parses `/proc/PID/task/TID/children`.
fn parse_children(text: &str) -> Vec<i32> {
    text.split_ascii_whitespace().filter_map(|n| n.parse().ok()).collect()
}

/// Parses the number of the parent from the text of `/proc/PID/stat`.
fn parse_parent(stat: &str) -> Option<i32> {
    stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Parses the bytes that a process has read and written by system calls, from `/proc/PID/io`.
pub(crate) fn parse_io(text: &str) -> Option<u64> {
    let value = |name: &str| {
        text.lines()
            .find_map(|l| l.strip_prefix(name)?.strip_prefix(':')?.trim().parse::<u64>().ok())
    };
    value("rchar")?.checked_add(value("wchar")?)
}

/// A watched process.
#[derive(Debug)]
pub(crate) struct Process {
    /// Number and start of the first thread.
    pub(crate) id: ThreadId,
    /// Descriptor that reports the end of the process reliably; `None` before Linux 5.3.
    pidfd: Option<OwnedFd>,
    io: ProcFile,
    stat: ProcFile,
    pub(crate) parent: i32,
    /// Sums at the last reading; `None` before the first reading of a process that ran before it
    /// was watched.
    sums: Option<Sums>,
    /// Sums that were read after `sums`.
    newest: Option<Sums>,
    /// Whether the process is gone, and its parent has its sums.
    pub(crate) is_settled: bool,
    /// Whether the process has ignored SIGCHLD.
    pub(crate) discards_children: bool,
    /// Sums of ended children that counted already and that `sums` does not contain yet.
    owed: Sums,
    /// Threads by number.
    pub(crate) threads: BTreeMap<i32, Thread>,
}

/// Sums since the start of a process, with those of its children that it has waited for: the kernel
/// adds the sums of a child to those of its parent when the parent waits for the child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Sums {
    /// CPU time of all threads, including those that have ended, in clock ticks.
    own_ticks: u64,
    /// CPU time of children that were waited for, in clock ticks.
    children_ticks: u64,
    /// Bytes read and written by system calls, also of children that were waited for.
    io_bytes: u64,
    /// Whether `io_bytes` could not be read.
    hides_io: bool,
}

impl Sums {
    /// Returns the sum for two children of a process.
    pub(crate) fn plus(self, other: Sums) -> Sums {
        Sums {
            own_ticks: self.own_ticks.saturating_add(other.own_ticks),
            children_ticks: self.children_ticks.saturating_add(other.children_ticks),
            io_bytes: self.io_bytes.saturating_add(other.io_bytes),
            hides_io: self.hides_io || other.hides_io,
        }
    }

    pub(crate) fn cpu_ticks(self) -> u64 {
        self.own_ticks.saturating_add(self.children_ticks)
    }
}

/// Progress of processes since the last reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Progress {
    /// `None` without permission to read the count.
    pub(crate) io_bytes: Option<u64>,
    /// CPU time in clock ticks.
    pub(crate) cpu_ticks: u64,
}

impl Progress {
    pub(crate) const NONE: Progress = Progress { io_bytes: Some(0), cpu_ticks: 0 };

    pub(crate) fn plus(self, other: Progress) -> Progress {
        let io_bytes = self.io_bytes.zip(other.io_bytes);
        Progress {
            io_bytes: io_bytes.map(|(a, b)| a.saturating_add(b)),
            cpu_ticks: self.cpu_ticks.saturating_add(other.cpu_ticks),
        }
    }
}

impl Process {
    /// Starts to watch a process, without its threads. Its progress counts from its start.
    ///
    /// # Errors
    /// [`Error::NoProcess`]; [`Error::Denied`] if `/proc` hides the process (`hidepid`).
    pub(crate) fn open(pid: i32, keep: bool) -> Result<Self, Error> {
        let missing = || Error::NoProcess { pid };
        let number = (pid > 0).then(|| Pid::from_raw(pid)).flatten().ok_or_else(missing)?;
        let pidfd = match pidfd_open(number, PidfdFlags::empty()) {
            Ok(fd) => Some(fd),
            Err(e) if is_missing(e) => return Err(missing()),
            Err(_) => None,
        };
        let id = identify(pid)?;
        let open = |name: &str| ProcFile::open(format!("/proc/{pid}/{name}"), keep);
        Ok(Process {
            id,
            pidfd,
            io: open("io"),
            stat: open("stat"),
            parent: 0,
            sums: Some(Sums::default()),
            newest: None,
            is_settled: false,
            discards_children: false,
            owed: Sums::default(),
            threads: BTreeMap::new(),
        })
    }

    /// Returns whether the process runs. A zombie has ended.
    pub(crate) fn is_alive(&self) -> bool {
        match &self.pidfd {
            Some(fd) => !has_ended(fd),
            None => !is_gone(self.id),
        }
    }

    /// Sends a signal, by libc's number, unless the process has ended.
    pub(crate) fn signal(&self, signal: i32) {
        let Some(known) = Signal::from_named_raw(signal) else { return };
        // The error is ignored: the caller detects whether the process still runs.
        let _ = self::signal(self.id, known);
    }

    /// Reads the sums for [`Process::progress`].
    pub(crate) fn read(&mut self, buffer: &mut Buffer) {
        self.newest = self.read_sums(buffer).or(self.newest);
    }

    /// Returns the progress from the last call to the last reading.
    ///
    /// `settled` are the last sums of children that are gone since the last call. They counted
    /// already, and are not progress of this process.
    pub(crate) fn progress(&mut self, settled: Sums) -> Progress {
        self.owed = self.owed.plus(settled);
        // A process that is gone is unreadable: its parent has its sums.
        let Some(now) = self.newest.take() else { return Progress::NONE };
        let before = self.sums.replace(now).unwrap_or(now);
        let children = now.children_ticks.saturating_sub(before.children_ticks);
        let io_bytes = now.io_bytes.saturating_sub(before.io_bytes);
        let owed = std::mem::take(&mut self.owed);
        // A process that ignores the ends of its children never gets their sums: debts are dropped
        // after the second time.
        let left = |owed: u64, paid: u64, settled: u64| owed.saturating_sub(paid).min(settled);
        self.owed.children_ticks = left(owed.cpu_ticks(), children, settled.cpu_ticks());
        self.owed.io_bytes = left(owed.io_bytes, io_bytes, settled.io_bytes);
        let own_ticks = now.own_ticks.saturating_sub(before.own_ticks);
        Progress {
            io_bytes: (!now.hides_io).then(|| io_bytes.saturating_sub(owed.io_bytes)),
            cpu_ticks: own_ticks.saturating_add(children.saturating_sub(owed.cpu_ticks())),
        }
    }

    /// Returns the CPU time of children that the process has waited for since the last call, in
    /// clock ticks. `settled` as for [`Process::progress`].
    pub(crate) fn children_ticks(&mut self, settled: Sums, buffer: &mut Buffer) -> u64 {
        let own_ticks = self.sums().own_ticks;
        self.read(buffer);
        let ticks = self.progress(settled).cpu_ticks;
        ticks.saturating_sub(self.sums().own_ticks - own_ticks)
    }

    /// Counts progress from now on.
    pub(crate) fn count_from_now(&mut self, buffer: &mut Buffer) {
        self.sums = self.read_sums(buffer);
    }

    /// Ends the accounting of a process that is gone. Returns what has counted so far of this
    /// process and its ended children.
    pub(crate) fn settle(&mut self) -> Sums {
        (self.newest, self.is_settled) = (None, true);
        self.sums().plus(self.owed)
    }

    /// Returns the sums at the last reading.
    pub(crate) fn sums(&self) -> Sums {
        self.sums.unwrap_or_default()
    }

    /// Reads the sums, also of a process that has ended and was not waited for. `None` if the
    /// process is gone.
    fn read_sums(&mut self, buffer: &mut Buffer) -> Option<Sums> {
        let text = self.stat.read(buffer).ok()?;
        let stat = thread::parse_stat(&text).filter(|s| s.start_ticks == self.id.start_ticks)?;
        self.parent = stat.parent;
        self.discards_children |= stat.discards_children;
        let (own_ticks, children_ticks) = (stat.user.saturating_add(stat.system), stat.children);
        let io_bytes = match self.io.read(buffer) {
            Ok(text) => parse_io(&text),
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => None,
            Err(_) => Some(self.sums().io_bytes),
        };
        let hides_io = io_bytes.is_none();
        let io_bytes = io_bytes.unwrap_or(self.sums().io_bytes);
        Some(Sums { own_ticks, children_ticks, io_bytes, hides_io })
    }
}

/// Returns whether all threads of a process have ended.
pub(crate) fn has_ended(pidfd: &OwnedFd) -> bool {
    const AT_ONCE: rustix::time::Timespec = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    matches!(poll(&mut fds, Some(&AT_ONCE)), Ok(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use corebeat_test_group::TestGroup;
    use proptest::prelude::*;

    #[test]
    fn thread_belongs_to_another_user_if_a_user_differs() {
        assert_eq!(parse_users("Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\n"), Some([1, 2]));
        for odd in ["", "Uid:\n", "Uid:\t1\n", "Uid:\tx\ty\n"] {
            assert_eq!(parse_users(odd), None);
        }
        let (tid, uid) = (std::process::id() as i32, rustix::process::geteuid().as_raw());
        assert!(!is_of_other_user(tid, uid));
        assert!(is_of_other_user(tid, uid + 1));
        assert!(!is_of_other_user(i32::MAX, uid), "a missing thread belongs to no user");
    }

    #[test]
    fn thread_id_of_this_thread_stays_the_same() {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        assert!(is_same(thread_id(tid).unwrap().unwrap()).unwrap());
        assert!(threads(std::process::id() as i32).contains(&tid));
    }

    #[test]
    fn is_same_for_another_start_is_false() {
        let mut id = thread_id(std::process::id() as i32).unwrap().unwrap();
        id.start_ticks += 1;
        assert!(!is_same(id).unwrap());
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
        fn process_parsers_never_panic(
            text in "\\PC{0,60}", io in "(rchar|wchar|x|:| |\n|[0-9]){0,20}",
        ) {
            let _ = (parse_children(&text), parse_parent(&text));
            let _ = parse_io(&io);
        }
    }

    /// A process that sleeps, killed on drop.
    struct Sleeper(std::process::Child, TestGroup);

    impl Sleeper {
        fn new() -> Self {
            let group = TestGroup::new();
            Sleeper(group.sleeper(), group)
        }

        fn pid(&self) -> i32 {
            self.0.id() as i32
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            self.1.kill();
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
    fn zombie_process_is_not_alive() {
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
    fn missing_process_is_named_in_the_error() {
        for pid in [0, -1, i32::MAX] {
            let error = Process::open(pid, true).unwrap_err();
            assert!(matches!(error, Error::NoProcess { pid: p } if p == pid));
        }
    }

    #[test]
    fn process_progress_counts_written_bytes() {
        let (mut buffer, own) = (Buffer::new(), std::process::id() as i32);
        let mut process = Process::open(own, true).unwrap();
        process.count_from_now(&mut buffer);
        fs::write("/dev/null", [0; 4096]).unwrap();
        process.read(&mut buffer);
        let progress = process.progress(Sums::default());
        assert!(progress.io_bytes.unwrap() >= 4096);
    }
}
