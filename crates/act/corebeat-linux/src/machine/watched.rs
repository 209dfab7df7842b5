//! The watched programs, and the search for new threads and processes.

use crate::Error;
use crate::file::read_text;
use crate::process::{self, Children, Process};
use crate::program::{Found, NewThread, Program, Reach, Reader, Since};
use crate::thread::Thread;
use corebeat_machine::{Action, Effect, ProgramId, Target, ThreadId};
use std::collections::{BTreeMap, HashSet};

/// The programs that a machine watches.
pub(super) struct Watched {
    pub(super) programs: BTreeMap<ProgramId, Program>,
    next_program: u32,
    /// Number of descriptors that watched threads may keep open.
    descriptors_max: usize,
    /// Newest thread number of the host at each of the last two searches. Without a new number
    /// there is no new thread.
    pub(super) newest: [Option<u64>; 2],
}

impl Watched {
    pub(super) fn new(descriptors_max: usize) -> Self {
        Watched { programs: BTreeMap::new(), next_program: 0, descriptors_max, newest: [None; 2] }
    }

    /// Starts to watch a process and its descendants as a new program.
    pub(super) fn begin(
        &mut self,
        pid: i32,
        takes_orphans: bool,
        reader: &mut Reader,
    ) -> Result<ProgramId, Error> {
        let process = Process::open(pid, true)?;
        let process = self.take(process.id).unwrap_or(process);
        let id = ProgramId(self.next_program);
        self.next_program += 1;
        let mut name = read_text(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.truncate(name.trim_end_matches('\n').len());
        self.programs.insert(id, Program::new(name, process, takes_orphans));
        self.walk_over(&[id], Since::Now, Reach::All, reader);
        // The other programs may have new threads, too: search again soon.
        self.newest = [None; 2];
        Ok(id)
    }

    pub(super) fn threads(&self) -> impl Iterator<Item = &Thread> {
        self.programs.values().flat_map(Program::threads)
    }

    fn processes(&self) -> impl Iterator<Item = &Process> {
        self.programs.values().flat_map(|p| &p.processes)
    }

    pub(super) fn has_process(&self, pid: i32) -> bool {
        self.processes().any(|p| p.id.tid == pid)
    }

    /// Returns the numbers of all watched processes.
    pub(super) fn pids(&self) -> HashSet<i32> {
        self.processes().map(|p| p.id.tid).collect()
    }

    /// Removes a process from its program.
    fn take(&mut self, wanted: ThreadId) -> Option<Process> {
        self.programs.values_mut().find_map(|program| program.take(wanted))
    }

    fn count_descriptors(&self, reader: &mut Reader) {
        let watched: usize = self.processes().map(|p| p.threads.len() + 1).sum();
        let taken = watched.saturating_mul(reader.descriptors_per_thread());
        reader.descriptors_left = self.descriptors_max.saturating_sub(taken);
    }

    /// Finds new threads and processes of these programs by walking over the known ones.
    pub(super) fn walk_over(
        &mut self,
        ids: &[ProgramId],
        since: Since,
        reach: Reach,
        reader: &mut Reader,
    ) -> BTreeMap<ProgramId, Vec<Found>> {
        self.count_descriptors(reader);
        let mut claimed = self.pids();
        let children = Children::now();
        let walk = |&id: &ProgramId| {
            let program = self.programs.get_mut(&id)?;
            Some((id, program.walk(&mut claimed, &children, since, reach, reader)))
        };
        ids.iter().filter_map(walk).collect()
    }

    /// Finds new threads and processes of all programs, which count from `since_ns` on.
    ///
    /// The kernel assigns numbers in ascending order. If it assigned fewer numbers since the last
    /// search but one than there are watched threads, the search reads those; otherwise, or if the
    /// numbers wrapped around, the search walks over all programs. The search starts at the last
    /// but one because a thread becomes visible a while after it received its number.
    pub(super) fn search(
        &mut self,
        newest: Option<u64>,
        since_ns: u64,
        reader: &mut Reader,
    ) -> BTreeMap<ProgramId, Vec<Found>> {
        let since = Since::Birth(since_ns);
        let threads = self.threads().count() as u64;
        let [before, last] = self.newest;
        self.newest = [last, newest];
        match before.zip(newest) {
            Some((before, now)) if before == now => BTreeMap::new(),
            Some((before, now)) if before < now && now - before <= threads => {
                self.count_descriptors(reader);
                let mut found: BTreeMap<ProgramId, Vec<Found>> = BTreeMap::new();
                for tid in before + 1..=now {
                    let new = i32::try_from(tid)
                        .ok()
                        .and_then(|t| NewThread::read(t, &mut reader.buffer));
                    if let Some((id, thread)) = new.and_then(|n| self.add(n, since, reader)) {
                        found.entry(id).or_default().push(thread);
                    }
                }
                found
            }
            _ => {
                let ids: Vec<ProgramId> = self.programs.keys().copied().collect();
                self.walk_over(&ids, since, Reach::Awake, reader)
            }
        }
    }

    /// Adds a new thread to the program of its process or of its parent.
    fn add(
        &mut self,
        new: NewThread,
        since: Since,
        reader: &mut Reader,
    ) -> Option<(ProgramId, Found)> {
        let NewThread { tid, pid, parent } = new;
        let own = std::process::id() as i32;
        let place = |program: &Program, pid| program.processes.iter().position(|p| p.id.tid == pid);
        for (&id, program) in &mut self.programs {
            if let Some(place) = place(program, pid) {
                return Some((id, program.add_thread(place, tid, since, reader)?));
            }
        }
        // If the known parent has ended, this parent is another process with the same number.
        let is_parent = |p: &Program| place(p, parent).is_some_and(|at| p.processes[at].is_alive());
        let belongs = |p: &Program| is_parent(p) || (p.takes_orphans && parent == own);
        let (id, program) = self.programs.iter_mut().find(|(_, p)| tid == pid && belongs(p))?;
        let place = program.add_process(pid, reader)?;
        Some((*id, program.add_thread(place, tid, since, reader)?))
    }

    fn program_of(&self, thread: ThreadId) -> Option<ProgramId> {
        let has = |p: &&Program| p.threads().any(|t| t.id == thread);
        self.programs.iter().find(|(_, p)| has(p)).map(|(&id, _)| id)
    }

    /// Returns the watched program that an action concerns.
    pub(super) fn target_of(&self, action: &Action) -> Option<(ProgramId, &Program)> {
        let id = match thread_of(action) {
            Some(thread) => self.program_of(thread),
            None => action.program(),
        }?;
        Some((id, self.programs.get(&id)?))
    }

    /// Returns the result of an action whose target is not watched: no effect if the target has
    /// ended or is not watched any more, an error if the target was never watched.
    pub(super) fn check_absent(&self, action: &Action) -> Result<Effect, Error> {
        let unknown = match thread_of(action) {
            Some(thread) => (!process::is_gone(thread)).then(|| format!("thread {}", thread.tid)),
            None => action
                .program()
                .filter(|program| program.0 >= self.next_program)
                .map(|program| format!("program {}", program.0)),
        };
        match unknown {
            Some(what) => Err(Error::InvalidArgument(format!(
                "{what} is unknown: watch the program before acting on it"
            ))),
            None => Ok(Effect::default()),
        }
    }
}

/// Returns the thread of an action that concerns a single thread.
pub(super) fn thread_of(action: &Action) -> Option<ThreadId> {
    match *action {
        Action::SetCpus { target: Target::Thread(thread), .. }
        | Action::SetSlice { target: Target::Thread(thread), .. }
        | Action::SetClass { target: Target::Thread(thread), .. }
        | Action::SetNice { target: Target::Thread(thread), .. } => Some(thread),
        _ => None,
    }
}
