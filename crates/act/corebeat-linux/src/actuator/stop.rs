//! Stopping programs by signals, for users who cannot create the control groups that freeze.
//!
//! A program consists of processes, which may fork at any time and are found anew for each stop. A
//! process that is about to fork may have one more child: the search ends only when all processes
//! have stopped. Parents are stopped before their children and continued after them, so that
//! `waitpid` reports no stopped child to a parent, unless the parent takes too long to stop or is
//! continued meanwhile.

use super::{Actuator, processes};
use crate::Error;
use crate::journal::Record;
use crate::process::{self, family, is_halted, is_halted_or_in_kernel, parent};
use corebeat_machine::{ProgramId, ThreadId};
use rustix::process::Signal;
use std::collections::HashSet;
use std::io;
use std::time::Duration;

/// Number of checks whether all processes have stopped, within 100 ms.
const ROUNDS_MAX: u32 = 64;
/// From this round on, after about 7 ms, a process in an uninterruptible sleep counts as stopped:
/// it waits for a disk, or in `vfork` for its child, which is stopped as well. The process stops
/// when it leaves the kernel; [`Actuator::inherit`] stops a child that it has by then.
const PATIENT_ROUNDS: u32 = 16;
/// Time between the first checks: about the time to stop a thread on another CPU.
const ROUND: Duration = Duration::from_micros(50);

impl Actuator {
    /// Stops these processes of a program and all their descendants. Processes that are stopped
    /// already are not changed, now or later.
    pub(super) fn stop(&mut self, program: ProgramId, threads: &[ThreadId]) -> Result<bool, Error> {
        let stopped = self.stop_family(program, threads);
        if stopped.is_err() {
            // Do not leave half of the program stopped: the other half would wait for it.
            let _ = self.resume(program);
            self.programs.entry(program).or_default().frozen = false;
        }
        stopped
    }

    fn stop_family(&mut self, program: ProgramId, threads: &[ThreadId]) -> Result<bool, Error> {
        let own = std::process::id() as i32;
        let mut roots = processes(threads);
        roots.retain(|p| p.tid != own);
        let mut signalled = HashSet::new();
        for round in 0..ROUNDS_MAX {
            let is_patient = round < PATIENT_ROUNDS;
            let mut running = family(roots.iter().copied());
            running.retain(|p| {
                let may_sleep = !is_patient && signalled.contains(p);
                p.tid != own
                    && !if may_sleep { is_halted_or_in_kernel(p.tid) } else { is_halted(p.tid) }
            });
            if running.is_empty() {
                break;
            }
            let numbers: HashSet<i32> = running.iter().map(|p| p.tid).collect();
            let is_first =
                |p: &ThreadId| !parent(p.tid).is_some_and(|parent| numbers.contains(&parent));
            running.retain(|p| !signalled.contains(p) && (!is_patient || is_first(p)));
            if running.is_empty() {
                std::thread::sleep(ROUND * round);
                continue;
            }
            let known = self.ledger.stopped();
            let fresh = running.iter().filter(|p| !known.contains(p));
            let records: Vec<Record> =
                fresh.map(|p| Record::Stop { tid: p.tid, start: p.start_ticks }).collect();
            self.journal()?.write(&records)?;
            records.iter().for_each(|r| self.ledger.note(r));
            self.programs.entry(program).or_default().processes.extend(&running);
            for process in running {
                process::signal(process, Signal::STOP).map_err(|e| explain("stop", process, e))?;
                signalled.insert(process);
            }
        }
        Ok(!signalled.is_empty())
    }

    /// Continues the processes of a program that Corebeat has stopped, the last first.
    pub(super) fn resume(&mut self, program: ProgramId) -> Result<bool, Error> {
        let Some(state) = self.programs.get(&program) else { return Ok(false) };
        let stopped = self.ledger.stopped().iter().rev().copied();
        let stopped: Vec<ThreadId> = stopped.filter(|p| state.processes.contains(p)).collect();
        let (mut records, mut failed) = (Vec::new(), Ok(()));
        for process in stopped {
            match process::signal(process, Signal::CONT) {
                Ok(_) => {
                    records.push(Record::Continued { tid: process.tid, start: process.start_ticks })
                }
                Err(e) => failed = Err(explain("continue", process, e)),
            }
        }
        records.iter().for_each(|r| self.ledger.note(r));
        if let Some(journal) = &mut self.journal {
            // The error is ignored: continuing a process twice is harmless.
            let _ = journal.write(&records);
        }
        self.compact_journal();
        failed.map(|()| !records.is_empty())
    }
}

fn explain(verb: &str, process: ThreadId, source: io::Error) -> Error {
    Error::of_call(format!("{verb} process {}", process.tid), source)
}
