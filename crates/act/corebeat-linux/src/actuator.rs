//! Actuator: carries out actions on threads, control groups and memory, and undoes them.

mod group;
mod plan;
pub(crate) mod setting;
mod stop;
#[cfg(test)]
pub(crate) mod tests;
mod undo;

use crate::cgroup::{self, Group};
use crate::journal::{Entry, Journal, Ledger, Record};
use crate::process::{is_gone, is_same, process_of};
use crate::thread::{clock_ns, ticks_per_s};
use crate::{Error, memory};
use corebeat_machine::{Action, Effect, ProgramId, Restored, Target, ThreadId};
use group::GroupLimits;
pub(crate) use plan::repair;
use plan::{Desired, Plan, change, describe};
use setting::{Kind, Mark, Setting};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::Duration;
pub use undo::{JournalSummary, RestoredJournals, journals, restorable, restore_all};
use undo::{Mode, undo};

/// Carries out actions on this host, and undoes them.
///
/// Every change is in a journal on disk before it is made. [`Actuator::restore`] undoes the
/// changes, and so does dropping the actuator. If neither runs (`kill -9`, `std::process::exit`),
/// the next [`restore_all`] undoes them. Only moved memory ([`Action::MovePages`],
/// [`Action::SpreadPages`]) stays where it is: the previous node of a page is not known.
///
/// A thread is left alone if it has ended, has another owner by now, or if another program has
/// changed the value since.
///
/// Threads do not inherit a raise (a nice value below 0): a thread that a raised thread starts
/// begins with nice 0, until [`Actuator::inherit`] handles it
/// (`raise_is_not_inherited_by_processes_that_could_leave`). Preventing the inheritance requires
/// `CAP_SYS_NICE`. Without the capability, if `ulimit -e` allows a raise, threads inherit the
/// raise like all other settings.
#[derive(Debug)]
pub struct Actuator {
    dir: PathBuf,
    /// Created by the first change.
    journal: Option<Journal>,
    ledger: Ledger,
    programs: HashMap<ProgramId, ProgramState>,
    /// Reason why programs are stopped by signals instead of frozen, if any is.
    no_freezer_reason: Option<String>,
    /// Whether a program that can have no groups may be stopped by signals.
    may_stop: bool,
    /// Time to wait for the lock of a control group.
    lock_timeout: Duration,
    keeps_changes: bool,
}

/// Settings of a program, which also hold for threads that start later.
#[derive(Debug, Default)]
struct ProgramState {
    processes: HashSet<ThreadId>,
    wanted: BTreeMap<Kind, Desired>,
    mark: Mark,
    limits: GroupLimits,
    groups: Vec<Group>,
    frozen: bool,
    /// Groups by which the program is frozen.
    freeze_groups: Vec<Group>,
    /// Whether the program is stopped by signals, because it cannot have freeze groups.
    uses_signals: bool,
}

/// Meaning of an action.
enum Request {
    /// Set a property of threads.
    Threads(Target, Desired),
    /// Change the program as a whole, or its memory.
    Program,
}

impl Actuator {
    /// Creates an actuator that keeps its journal in this folder, usually
    /// [`state_dir`](crate::state_dir). The folder is created by the first change.
    pub fn new(dir: impl Into<PathBuf>) -> Actuator {
        Actuator {
            dir: dir.into(),
            journal: None,
            ledger: Ledger::default(),
            programs: HashMap::new(),
            no_freezer_reason: None,
            may_stop: true,
            lock_timeout: cgroup::LOCK_TIMEOUT,
            keeps_changes: false,
        }
    }

    /// Disables waiting, for a caller that serves other clients. By default the actuator waits up
    /// to 5 s for the lock of a control group, which every process on the host can hold, and then
    /// continues without the lock. After this call an action that needs a new control group fails
    /// with [`Error::Refused`] while the lock is taken, and may be repeated; undoing does without
    /// the lock.
    pub fn set_nonblocking(&mut self) {
        self.lock_timeout = Duration::ZERO;
    }

    /// Refuses to freeze programs that can have no control groups. By default, such programs are
    /// stopped by signals, which they can observe.
    pub fn freeze_by_groups_only(&mut self) {
        self.may_stop = false;
    }

    /// Carries out an action on a program, or on one thread of the program. `threads` are the
    /// present threads of the program; [`Actuator::inherit`] handles later ones.
    ///
    /// - `SetSlice`: Linux accepts 0.1 to 100 ms; the value is clamped. The slice is shorter by
    ///   less than 1 us for each ms that has begun: the difference identifies the program from
    ///   which a thread has inherited the slice.
    /// - `SetWeight` and `SetQuota` share a control group, which holds each process of the program
    ///   with all its threads. The quota counts over 100 ms and is at least 0.01 CPUs.
    /// - `SetFrozen` uses another group. The first freeze creates the group; later freezes and
    ///   thaws are one write each. If no group can be created, the processes of the program and
    ///   all their descendants are stopped by `SIGSTOP` and continued by `SIGCONT`; processes that
    ///   others have stopped stay stopped.
    /// - `SpreadPages` moves the present memory of the program in blocks of 2 MiB if the host has
    ///   several nodes. The kernel places later allocations, and only its NUMA balancing moves
    ///   pages back.
    /// - `SetTeam` has no effect here.
    ///
    /// Returns the number of threads whose setting changed, or 1 if a setting of the whole program
    /// changed. A setting that is in effect already is left alone.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a value that no host accepts, [`Error::Denied`] for a
    /// program of another user, [`Error::Unsupported`] for an action that this host cannot carry
    /// out or cannot undo (another nice value without `CAP_SYS_NICE`), [`Error::Refused`] for
    /// every other failure. After an error nothing is changed. A thread that has ended is not an
    /// error, nor is a real-time thread, which keeps all its settings except its CPUs, or a thread
    /// of class idle, which keeps its class and has no slice.
    pub fn apply(
        &mut self,
        action: &Action,
        program: ProgramId,
        threads: &[ThreadId],
    ) -> Result<Effect, Error> {
        action.validate().map_err(|e| Error::InvalidArgument(e.to_string()))?;
        let mark = self.programs.entry(program).or_default().mark;
        match request(action, mark)? {
            Request::Threads(target, wanted) => {
                self.apply_to_threads(program, target, threads, wanted)
            }
            Request::Program => self.apply_to_program(action, program, threads),
        }
    }

    fn apply_to_threads(
        &mut self,
        program: ProgramId,
        target: Target,
        threads: &[ThreadId],
        wanted: Desired,
    ) -> Result<Effect, Error> {
        let desired = std::slice::from_ref(&wanted);
        let plans = match target {
            Target::Thread(thread) => self.plan(program, &[thread], desired)?,
            Target::Program(_) => self.plan(program, threads, desired)?,
        };
        self.announce(&plans)?;
        let effect = self.execute(&plans)?;
        if let Target::Program(_) = target {
            self.programs.entry(program).or_default().wanted.insert(wanted.kind(), wanted);
        }
        Ok(effect)
    }

    /// Gives the threads of a program, and later ones, the policy of a scheduler in the kernel.
    ///
    /// # Errors
    /// Same as [`Actuator::apply`].
    pub(crate) fn set_policy(
        &mut self,
        program: ProgramId,
        threads: &[ThreadId],
        policy: u32,
    ) -> Result<Effect, Error> {
        let wanted = Desired::Value(Setting::Policy(policy));
        self.apply_to_threads(program, Target::Program(program), threads, wanted)
    }

    fn apply_to_program(
        &mut self,
        action: &Action,
        program: ProgramId,
        threads: &[ThreadId],
    ) -> Result<Effect, Error> {
        let limits = self.programs.get(&program).map(|s| s.limits).unwrap_or_default();
        match action {
            Action::SetWeight { weight, .. } => {
                let limits = GroupLimits { weight: Some(*weight), ..limits };
                self.set_limits(program, limits, threads)
            }
            Action::SetQuota { cpus, .. } => {
                self.set_limits(program, GroupLimits { cpus: *cpus, ..limits }, threads)
            }
            Action::SetFrozen { frozen, .. } => self.set_frozen(program, *frozen, threads),
            Action::MovePages { from, to, .. } => {
                let processes = processes(threads);
                processes.iter().try_for_each(|p| memory::migrate(p.tid, from, to))?;
                Ok(whole(!processes.is_empty()))
            }
            Action::SpreadPages { spread: true, .. } => {
                let mut has_changed = false;
                for process in processes(threads) {
                    has_changed |= memory::spread(process.tid)?;
                }
                Ok(whole(has_changed))
            }
            // The kernel places new memory near its users, and balances NUMA to that end.
            _ => Ok(Effect::default()),
        }
    }

    /// Applies the settings of a program to its new threads. Settings that a new thread inherited
    /// from a thread to which alone they applied are removed.
    ///
    /// # Errors
    /// Same as [`Actuator::apply`].
    pub fn inherit(&mut self, program: ProgramId, threads: &[ThreadId]) -> Result<(), Error> {
        let Some(state) = self.programs.get(&program) else { return Ok(()) };
        let want = |kind: Kind| state.wanted.get(&kind).cloned().unwrap_or(Desired::Original(kind));
        // The plan for the nice value includes reset-on-fork.
        let kinds = Setting::KINDS.into_iter().filter(|kind| *kind != Kind::ResetOnFork);
        let desired: Vec<Desired> = kinds.map(want).collect();
        let (limits, frozen) = (state.limits, state.frozen);
        let plans = self.plan(program, threads, &desired)?;
        self.announce(&plans)?;
        self.execute(&plans)?;
        self.set_limits(program, limits, threads)?;
        // A process that starts in a frozen group is frozen; one from elsewhere is not.
        if frozen { self.set_frozen(program, true, threads).map(drop) } else { Ok(()) }
    }

    /// Undoes all changes. Removes the journal unless some changes could not be undone. If a
    /// control group was in one of another Corebeat, also undoes the changes of Corebeats that have
    /// ended: a Corebeat cannot remove a group that has another one below.
    pub fn restore(&mut self) -> Restored {
        let (mut restored, complete) = undo(&self.ledger, Mode::Undo(self.lock_timeout));
        let is_nested = self.ledger.groups().iter().any(|group| cgroup::is_nested(group));
        self.ledger = Ledger::default();
        self.programs.clear();
        self.keeps_changes |= !complete;
        if let Some(journal) = self.journal.take().filter(|_| complete) {
            // If removing fails, the next restore finds changes that are undone already.
            let _ = journal.remove();
        }
        if let Some(others) = is_nested.then(|| restore_all(&self.dir)).and_then(Result::ok) {
            restored.undone.extend(others.restored.undone);
        }
        restored
    }

    /// Returns whether [`Actuator::restore`] left changes, and a journal for a later
    /// [`restore_all`].
    pub fn keeps_changes(&self) -> bool {
        self.keeps_changes
    }

    /// Undoes all changes to one program. Changes that cannot be undone now are tried again by
    /// [`Actuator::restore`].
    pub fn release(&mut self, program: ProgramId) -> Restored {
        let Some(mut state) = self.programs.remove(&program) else { return Restored::default() };
        // A process may have moved to another program.
        state.processes.retain(|p| !self.programs.values().any(|s| s.processes.contains(p)));
        let groups: Vec<&Path> =
            state.groups.iter().chain(&state.freeze_groups).map(Group::path).collect();
        let part = self.ledger.part(&state.processes, &groups);
        let (restored, complete) = undo(&part, Mode::Undo(self.lock_timeout));
        if let Some(journal) = self.journal.as_mut().filter(|_| complete) {
            self.ledger.remove(&part);
            // The error is ignored: a longer journal lists changes that are undone already.
            let _ = journal.rewrite(&self.ledger.records());
        }
        restored
    }

    /// Records that a channel may limit the sizes of OpenMP teams. [`Actuator::restore`] then
    /// undoes these sizes, and removes the file.
    pub(crate) fn announce_teams(&mut self, channel: &Path) -> Result<(), Error> {
        let record = Record::Team { path: channel.to_owned() };
        if !self.ledger.teams().iter().any(|path| path == channel) {
            self.journal()?.write(std::slice::from_ref(&record))?;
            self.ledger.note(&record);
        }
        Ok(())
    }

    /// Writes the changes to the journal, before they are made.
    fn announce(&mut self, plans: &[Plan]) -> Result<(), Error> {
        let records: Vec<Record> =
            plans.iter().flat_map(|p| &p.records).map(|s| Record::Set(s.clone())).collect();
        self.write_ahead(records)
    }

    fn write_ahead(&mut self, records: Vec<Record>) -> Result<(), Error> {
        if records.is_empty() {
            return Ok(());
        }
        self.journal()?.write_ahead(&records)?;
        records.iter().for_each(|r| self.ledger.note(r));
        Ok(())
    }

    fn journal(&mut self) -> Result<&mut Journal, Error> {
        match &mut self.journal {
            Some(journal) => Ok(journal),
            none => Ok(none.insert(Journal::create(&self.dir)?)),
        }
    }

    /// Makes all announced changes or none, and returns how many threads changed.
    fn execute(&mut self, plans: &[Plan]) -> Result<Effect, Error> {
        let mut took = Vec::new();
        let mut changed = BTreeSet::new();
        for (i, plan) in plans.iter().enumerate().filter(|(_, p)| p.from != p.to) {
            match change(plan.thread, &plan.to) {
                Ok(Some(value)) => {
                    if value != plan.from {
                        changed.insert(plan.thread);
                    }
                    if value != plan.to {
                        let ThreadId { tid, start_ticks: start } = plan.thread;
                        took.push(Record::Took { tid, start, value });
                    }
                }
                Ok(None) => {}
                Err(e) => {
                    self.roll_back(&plans[..i], &plans[i..])?;
                    return Err(describe(plan, e));
                }
            }
        }
        let effect = Effect { changed: changed.len() as u32 };
        let Some(journal) = self.journal.as_mut().filter(|_| !plans.is_empty()) else {
            return Ok(effect);
        };
        took.push(Record::Done);
        took.iter().for_each(|r| self.ledger.note(r));
        // The error is ignored: undoing works without these records, if less exactly.
        let _ = journal.write(&took);
        self.compact_journal();
        Ok(effect)
    }

    /// Bounds the length of the journal.
    fn compact_journal(&mut self) {
        let Some(journal) = self.journal.as_mut().filter(|j| j.is_long()) else { return };
        self.ledger.remove_ended();
        self.programs.values_mut().for_each(|s| s.processes.retain(|p| !is_gone(*p)));
        // The error is ignored: the long journal stays valid.
        let _ = journal.rewrite(&self.ledger.records());
    }

    /// After a failure, restores the threads that were changed, and removes ledger entries of
    /// threads that are unchanged now. With such an entry, unrelated threads would count as
    /// inheritors.
    fn roll_back(&mut self, done: &[Plan], not_done: &[Plan]) -> Result<(), Error> {
        let is_back = |p: &&Plan| p.from == p.to || change(p.thread, &p.from).is_ok();
        let back: Vec<&Plan> = done.iter().rev().filter(is_back).chain(not_done).collect();
        let untouched = |e: &Entry| back.iter().any(|p| p.thread == e.thread && p.from == e.old);
        self.ledger.retain(|e| !untouched(e));
        back.iter().for_each(|p| self.ledger.rolled_back(p.thread, &p.from));
        self.ledger.note(&Record::Done);
        let records = self.ledger.records();
        self.journal()?.rewrite(&records)
    }
}

/// Returns the meaning of an action.
fn request(action: &Action, mark: Mark) -> Result<Request, Error> {
    Ok(match action {
        Action::SetCpus { target, cpus } => {
            let value = cpus.clone().map(|cpus| Desired::Value(Setting::Cpus(cpus)));
            Request::Threads(*target, value.unwrap_or(Desired::Original(Kind::Cpus)))
        }
        Action::SetSlice { .. } if setting::default_slice_ns() == 0 => {
            return Err(Error::Unsupported {
                what: "a slice for each thread".into(),
                how: "it requires Linux 6.12 or later".into(),
            });
        }
        Action::SetSlice { target, slice_us } => {
            let value = slice_us.map(|us| Desired::Value(Setting::SliceNs(mark.slice_ns(us))));
            Request::Threads(*target, value.unwrap_or(Desired::Original(Kind::Slice)))
        }
        Action::SetClass { target, class } => {
            let value = class.map(|class| Desired::Value(Setting::of_class(class)));
            Request::Threads(*target, value.unwrap_or(Desired::Original(Kind::Policy)))
        }
        Action::SetNice { target, nice } => Request::Threads(*target, Desired::Relative(*nice)),
        _ => Request::Program,
    })
}

/// Returns the effect of an action on a whole program.
fn whole(has_changed: bool) -> Effect {
    Effect { changed: has_changed.into() }
}

impl Drop for Actuator {
    fn drop(&mut self) {
        self.restore();
    }
}

/// Returns the processes of these threads that have not ended, each once.
fn processes(threads: &[ThreadId]) -> HashSet<ThreadId> {
    let exists = |thread: &&ThreadId| matches!(is_same(**thread), Ok(true));
    threads.iter().filter(exists).filter_map(|t| process_of(t.tid).ok().flatten()).collect()
}

/// Returns the time in the unit of start times: clock ticks since boot.
fn now_ticks() -> u64 {
    clock_ns(rustix::time::ClockId::Boottime) / (1_000_000_000 / ticks_per_s())
}
