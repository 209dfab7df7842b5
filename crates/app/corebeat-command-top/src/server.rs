//! Reports of servers that show themselves ([`Report`]), by program.

use crate::view::Program;
use corebeat_machine::ThreadId;
use corebeat_machine::server::{Mechanism, Pattern, Report};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

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

impl Servers {
    /// Adds to each program what its servers show.
    pub(crate) fn describe(&mut self, programs: &mut [Program]) {
        let mut seen = BTreeMap::new();
        for program in programs {
            let own = program.threads.iter().filter(|thread| thread.name == THREAD);
            // The thread of a server: with another one, the process has other files.
            let threads: BTreeMap<i32, ThreadId> = own.map(|t| (t.pid, t.id())).collect();
            let mut reports = Vec::new();
            for (pid, thread) in threads {
                let known =
                    self.0.remove(&pid).filter(|(id, files)| *id == thread && !files.is_empty());
                let (_, files) = known.unwrap_or_else(|| (thread, files(pid)));
                reports.extend(files.iter().filter_map(report));
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
        connections: reports.iter().map(|report| report.connections).sum(),
        requests_per_s: reports.iter().map(|report| report.requests_per_s).sum(),
        pattern: variant.pattern,
        mechanism: variant.mechanism,
        threads: variant.threads,
        servers: reports.len(),
    })
}

/// Returns the files of the servers of a process; none of a process of another user.
fn files(pid: i32) -> Vec<PathBuf> {
    let Ok(folder) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let target = format!("/memfd:{} (deleted)", Report::FILE);
    let is_report = |path: &PathBuf| fs::read_link(path).is_ok_and(|found| *found == *target);
    let paths = folder.take(DESCRIPTORS_MAX).filter_map(|entry| Some(entry.ok()?.path()));
    paths.filter(is_report).collect()
}

fn report(path: &PathBuf) -> Option<Report> {
    // Another file may have the number by now.
    let mut bytes = [0; Report::BYTES];
    File::open(path).ok()?.read_exact_at(&mut bytes, 0).ok()?;
    Report::from_bytes(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::column::{Cells, Column};
    use crate::view::tests::{snapshot, thread};
    use corebeat_machine::server::Variant;
    use rustix::fs::{MemfdFlags, memfd_create};

    #[test]
    fn servers_of_a_program_are_found_and_summed() {
        let pid = std::process::id() as i32;
        let shows = |pattern, connections, requests_per_s| {
            let file = File::from(memfd_create(Report::FILE, MemfdFlags::CLOEXEC).unwrap());
            let variant = Variant { pattern, mechanism: Mechanism::Edge, threads: 2 };
            let report = Report { variant, connections, requests: 9, requests_per_s };
            file.write_all_at(&report.to_bytes(), 0).unwrap();
            file
        };
        let threads = vec![thread(pid, pid + 1, THREAD, [0.5, 0.0, 0.0, 0.0])];
        let mut programs = vec![Program::whole(pid, &snapshot(threads).programs[0], 1_000_000_000)];
        let mut servers = Servers::default();
        servers.describe(&mut programs);
        assert_eq!(programs[0].server, None);
        let first = shows(Pattern::LeaderFollowers, 5, 0.5);
        let second = shows(Pattern::ThreadPerCore, 7, 2.0);
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
}
