//! Stopping programs by signals, for those who may not make the control groups that freeze.
//!
//! A program is told by its processes, which are found anew each time because they fork. Who is about to fork when it is to be stopped
//! may have one more child: only once all are seen to have stopped is it known that there are no others. Children are told once
//! their parents have stopped, and continued before them: so `waitpid` tells no parent that a child has stopped, unless the parent took
//! too long to stop, or was continued meanwhile.

use super::{Hands, processes};
use crate::Error;
use crate::journal::Record;
use crate::process::{self, family, is_halted, is_halted_or_in_kernel, parent};
use corebeat_machine::{ProgramId, ThreadId};
use rustix::process::Signal;
use std::collections::HashSet;
use std::io;
use std::time::Duration;

/// So often it is looked whether all have stopped, within 100 ms.
const ROUNDS_MAX: u32 = 64;
/// From this round on, after some 7 ms, nobody is waited for who was told and sleeps in the kernel, at a disk say, or in `vfork` until
/// its child ends, which is to stop as well. It stops when it comes back; a child that it has by then is stopped by [`Hands::adopt`].
const ROUNDS_OF_PATIENCE: u32 = 16;
/// From one look to the next, at first: about as long as it takes to stop a thread on another CPU.
const ROUND: Duration = Duration::from_micros(50);

impl Hands {
    /// Stops these processes of a program, and all that descend from them. Those that are stopped already are left alone, and will be.
    pub(super) fn stop(&mut self, program: ProgramId, threads: &[ThreadId]) -> Result<bool, Error> {
        let stopped = self.stop_family(program, threads);
        if stopped.is_err() {
            // One half stopped would be waited for by the other.
            let _ = self.go_on(program);
            self.programs.entry(program).or_default().frozen = false;
        }
        stopped
    }

    fn stop_family(&mut self, program: ProgramId, threads: &[ThreadId]) -> Result<bool, Error> {
        let own = std::process::id() as i32;
        let mut roots = processes(threads);
        roots.retain(|p| p.tid != own);
        let mut told = HashSet::new();
        for round in 0..ROUNDS_MAX {
            let is_patient = round < ROUNDS_OF_PATIENCE;
            let mut running = family(roots.iter().copied());
            running.retain(|p| {
                let may_sleep = !is_patient && told.contains(p);
                p.tid != own && !if may_sleep { is_halted_or_in_kernel(p.tid) } else { is_halted(p.tid) }
            });
            if running.is_empty() {
                break;
            }
            let numbers: HashSet<i32> = running.iter().map(|p| p.tid).collect();
            let is_first = |p: &ThreadId| !parent(p.tid).is_some_and(|parent| numbers.contains(&parent));
            running.retain(|p| !told.contains(p) && (!is_patient || is_first(p)));
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
                told.insert(process);
            }
        }
        Ok(!told.is_empty())
    }

    /// Continues those processes of a program that were stopped here, the last first.
    pub(super) fn go_on(&mut self, program: ProgramId) -> Result<bool, Error> {
        let Some(standing) = self.programs.get(&program) else { return Ok(false) };
        let stopped = self.ledger.stopped().iter().rev().copied();
        let stopped: Vec<ThreadId> = stopped.filter(|p| standing.processes.contains(p)).collect();
        let (mut records, mut failed) = (Vec::new(), Ok(()));
        for process in stopped {
            match process::signal(process, Signal::CONT) {
                Ok(_) => records.push(Record::Continued { tid: process.tid, start: process.start_ticks }),
                Err(e) => failed = Err(explain("continue", process, e)),
            }
        }
        records.iter().for_each(|r| self.ledger.note(r));
        if let Some(journal) = &mut self.journal {
            // Not worth failing for: who is continued twice does not mind.
            let _ = journal.write(&records);
        }
        self.shorten();
        failed.map(|()| !records.is_empty())
    }
}

fn explain(verb: &str, process: ThreadId, source: io::Error) -> Error {
    let what = format!("{verb} process {}", process.tid);
    match source.kind() {
        io::ErrorKind::PermissionDenied => Error::Denied { what, source },
        _ => Error::Refused { what, source },
    }
}
