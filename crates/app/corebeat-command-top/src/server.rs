//! Reports of servers that show themselves ([`Report`]), by program.

use crate::view::Program;
use corebeat_machine::ThreadId;
use corebeat_machine::server::{Mechanism, Pattern, Report};
use rustix::fs::{
    AtFlags, CWD, FileType, MemfdFlags, Mode, OFlags, StatxFlags, memfd_create, openat, statx,
};
use serde::Serialize;
use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Name of a thread of each process with such a server.
const THREAD: &str = "reactor adapt";
/// Number of descriptors of a process among which the files of servers are searched. A server
/// creates its file before it accepts connections, and the system gives out the lowest numbers.
const DESCRIPTORS_MAX: usize = 1024;

/// All servers of a program that show themselves.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Served {
    pub(crate) connections: u64,
    pub(crate) requests_per_s: f64,
    /// Pattern, mechanism and number of threads of the first server.
    pub(crate) pattern: Pattern,
    pub(crate) mechanism: Mechanism,
    pub(crate) threads: usize,
    pub(crate) servers: usize,
}

impl Served {
    /// Returns the variant for people, such as `leader/followers 2 edge`.
    pub(crate) fn variant(&self) -> String {
        let pattern = match self.pattern {
            Pattern::HalfSyncHalfAsync => "half-sync",
            Pattern::LeaderFollowers => "leader",
            Pattern::ThreadPerCore => "per-core",
        };
        let mechanism = match self.mechanism {
            Mechanism::Edge => "edge",
            Mechanism::OneShot => "one-shot",
            Mechanism::Poll => "poll",
            Mechanism::IoUring => "io_uring",
        };
        let others = match self.servers {
            1 => String::new(),
            count => format!(" +{}", count - 1),
        };
        format!("{pattern} {} {mechanism}{others}", self.threads)
    }
}

/// The files of servers in observed processes, by number.
#[derive(Debug, Default)]
pub(crate) struct Servers(BTreeMap<i32, (ThreadId, Vec<PathBuf>)>);

/// Number of a file system.
type Device = (u32, u32);

impl Servers {
    /// Adds to each program what its servers show.
    pub(crate) fn describe(&mut self, programs: &mut [Program]) {
        let mut seen = BTreeMap::new();
        let memory = LazyCell::new(memory_device);
        for program in programs {
            let own = program.threads.iter().filter(|thread| thread.name == THREAD);
            // The thread of a server: with another one, the process has other files.
            let threads: BTreeMap<i32, ThreadId> = own.map(|t| (t.pid, t.id())).collect();
            let mut reports = Vec::new();
            for (pid, thread) in threads {
                let known =
                    self.0.remove(&pid).filter(|(id, files)| *id == thread && !files.is_empty());
                let (_, files) = known.unwrap_or_else(|| (thread, files(pid)));
                reports.extend(files.iter().filter_map(|path| report(path, (*memory)?)));
                seen.insert(pid, (thread, files));
            }
            program.server = sum(&reports);
        }
        self.0 = seen;
    }
}

fn sum(reports: &[Report]) -> Option<Served> {
    let variant = reports.first()?.variant;
    Some(Served {
        // Another program wrote the numbers.
        connections: reports.iter().fold(0, |sum, own| sum.saturating_add(own.connections)),
        requests_per_s: reports
            .iter()
            .fold(0.0, |sum: f64, own| (sum + own.requests_per_s).min(f64::MAX)),
        pattern: variant.pattern,
        mechanism: variant.mechanism,
        threads: variant.threads,
        servers: reports.len(),
    })
}

/// Returns the files of the servers of a process; none of a process of another user.
fn files(pid: i32) -> Vec<PathBuf> {
    let Ok(folder) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let paths = folder.take(DESCRIPTORS_MAX).filter_map(|entry| Some(entry.ok()?.path()));
    paths.filter(|path| has_name(path)).collect()
}

/// Returns whether a link in `/proc` is that of a report.
fn has_name(link: impl AsRef<Path>) -> bool {
    let target = format!("/memfd:{} (deleted)", Report::FILE);
    fs::read_link(link).is_ok_and(|found| *found == *target)
}

/// Returns the report at a link in `/proc` of a process; `None` if the process has another file
/// there by now. `memory` is the file system of [`memory_device`].
///
/// To open a file may block for ever, as that of a FIFO, and may have effects, as that of a device.
/// So the file is found without that, by `O_PATH`, checked, and opened if it is one of memory.
fn report(link: &Path, memory: Device) -> Option<Report> {
    let found = openat(CWD, link, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let link = format!("/proc/self/fd/{}", found.as_raw_fd());
    if !has_name(&link) || regular_device(found.as_fd()) != Some(memory) {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(openat(CWD, link, flags, Mode::empty()).ok()?);
    let mut bytes = [0; Report::BYTES];
    file.read_exact_at(&mut bytes, 0).ok()?;
    Report::from_bytes(&bytes)
}

/// Returns the file system of all files of `memfd_create` with pages of normal size. No process can
/// mount it, or create a file of another type there.
fn memory_device() -> Option<Device> {
    let file = memfd_create("corebeat-top", MemfdFlags::CLOEXEC).ok()?;
    regular_device(file.as_fd())
}

/// Returns the file system of a regular file; `None` for a file of another type. Does not ask a
/// file system that another process provides.
fn regular_device(file: BorrowedFd<'_>) -> Option<Device> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(file, "", flags, StatxFlags::TYPE).ok()?;
    let is_regular = FileType::from_raw_mode(found.stx_mode.into()) == FileType::RegularFile;
    is_regular.then_some((found.stx_dev_major, found.stx_dev_minor))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::column::{Cells, Column};
    use crate::view::tests::{snapshot, thread};
    use corebeat_machine::server::Variant;
    use rustix::io::dup2;
    use rustix::pipe::pipe;
    use std::os::fd::OwnedFd;

    /// Returns a program, this process, that seems to have servers.
    fn program() -> Program {
        let pid = std::process::id() as i32;
        let threads = vec![thread(pid, pid + 1, THREAD, [0.5, 0.0, 0.0, 0.0])];
        Program::whole(pid, &snapshot(threads).programs[0], 1_000_000_000)
    }

    fn some_report(pattern: Pattern, connections: u64, requests_per_s: f64) -> Report {
        let variant = Variant { pattern, mechanism: Mechanism::Edge, threads: 2 };
        Report { variant, connections, requests: 9, requests_per_s }
    }

    fn shows(report: &Report) -> File {
        let file = File::from(memfd_create(Report::FILE, MemfdFlags::CLOEXEC).unwrap());
        file.write_all_at(&report.to_bytes(), 0).unwrap();
        file
    }

    /// Both tests search the descriptors of this process.
    static ONE_TEST: std::sync::Mutex<()> = std::sync::Mutex::new(());

    #[test]
    fn servers_of_a_program_are_found_and_summed() {
        let _one_test = ONE_TEST.lock();
        let mut programs = [program()];
        let mut servers = Servers::default();
        servers.describe(&mut programs);
        assert_eq!(programs[0].server, None);
        let first = shows(&some_report(Pattern::LeaderFollowers, 5, 0.5));
        let second = shows(&some_report(Pattern::ThreadPerCore, 7, 2.0));
        servers.describe(&mut programs);
        let found = programs[0].server.unwrap();
        assert_eq!((found.connections, found.requests_per_s, found.servers), (12, 2.5, 2));
        let text = |column: Column| column.text(&Cells::from(&programs[0]), 1.0);
        assert_eq!((text(Column::Connections), text(Column::Requests)), ("12".into(), "2".into()));
        assert!(["leader 2 edge +1", "per-core 2 edge +1"].contains(&&*text(Column::Server)));
        // Damaged content is no report, and a closed file is none either.
        first.write_all_at(&[1; 8], 0).unwrap();
        drop(second);
        servers.describe(&mut programs);
        assert_eq!(programs[0].server, None);
    }

    #[test]
    fn only_files_of_memory_are_opened() {
        let _one_test = ONE_TEST.lock();
        let (mut programs, mut servers) = ([program()], Servers::default());
        let own = some_report(Pattern::LeaderFollowers, 5, 0.5);
        let mut place: OwnedFd = shows(&own).into();
        servers.describe(&mut programs);
        assert!(programs[0].server.is_some());
        // Other files take the number, of which the first has the content of a report.
        let copy = tempfile::tempfile().unwrap();
        copy.write_all_at(&own.to_bytes(), 0).unwrap();
        dup2(&copy, &mut place).unwrap();
        servers.describe(&mut programs);
        assert_eq!(programs[0].server, None);
        // To open a FIFO without writers would block for ever.
        let (fifo, writer) = pipe().unwrap();
        drop(writer);
        dup2(&fifo, &mut place).unwrap();
        servers.describe(&mut programs);
        assert_eq!(programs[0].server, None);
        // The check that remains for a file with the name of a report.
        let memory = memory_device();
        assert!(memory.is_some());
        assert_eq!(regular_device(shows(&own).as_fd()), memory);
        assert_ne!(regular_device(copy.as_fd()), memory);
        assert_eq!(regular_device(fifo.as_fd()), None);
        assert_eq!(regular_device(File::open("/dev/null").unwrap().as_fd()), None);
    }

    #[test]
    fn numbers_of_other_programs_are_added_without_overflow() {
        let largest = some_report(Pattern::ThreadPerCore, u64::MAX, f64::MAX);
        let served = sum(&[largest; 2]).unwrap();
        assert_eq!((served.connections, served.requests_per_s), (u64::MAX, f64::MAX));
    }
}
