//! Undoing changes: of this process, and of processes that were killed.

use super::plan::{change, has_ended};
use super::setting::{self, Kind, Setting};
use crate::Error;
use crate::cgroup;
use crate::journal::{self, Entry, Found, Ledger, Left};
use crate::process::{self, SEARCHES_MAX, family, is_gone, is_halted, is_same, thread_id, threads};
use crate::team;
use corebeat_machine::{Restored, ThreadId};
use rustix::process::Signal;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Result of [`restore_all`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RestoredJournals {
    /// Changes that were undone, and settings that were left alone.
    pub restored: Restored,
    /// Number of journals whose owners still run.
    pub live: usize,
    /// Number of journals that remain although their owners have ended: some of their changes
    /// could not be undone or verified, or the file is damaged or cannot be used.
    pub kept: usize,
}

/// Undoes the changes of Corebeats that have ended, as listed by their journals in this folder
/// (usually [`state_dir`](crate::state_dir)). Journals of running Corebeats are left alone.
///
/// # Errors
/// Fails if the folder cannot be used, for example because it belongs to another user. A missing
/// folder holds no journals.
pub fn restore_all(dir: &Path) -> Result<RestoredJournals, Error> {
    restore(dir, Mode::Undo(cgroup::LOCK_TIMEOUT))
}

/// Returns what [`restore_all`] would return now, provided that no write fails, and changes
/// nothing.
///
/// # Errors
/// Same as [`restore_all`].
pub fn restorable(dir: &Path) -> Result<RestoredJournals, Error> {
    restore(dir, Mode::Report)
}

fn restore(dir: &Path, mode: Mode) -> Result<RestoredJournals, Error> {
    let found = Found::read(dir, mode.acts())?;
    let (live, dead): (Vec<&Left>, Vec<&Left>) = found.journals.iter().partition(|l| l.is_live);
    let mut all = RestoredJournals { live: live.len(), ..RestoredJournals::default() };
    for (left, (restored, complete)) in dead.iter().zip(undo_all(dead.iter().copied(), mode)) {
        all.restored.undone.extend(restored.undone);
        all.restored.left.extend(restored.left.into_iter().chain(left.problem.clone()));
        match complete && left.problem.is_none() {
            true if mode.acts() => found.remove(left),
            true => {}
            false => all.kept += 1,
        }
    }
    Ok(all)
}

/// A journal, as [`journals`] lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalSummary {
    /// Process of the Corebeat that wrote the journal; 0 if the file has another name, or if
    /// another process holds its lock.
    pub pid: i32,
    /// Whether that Corebeat still runs: it holds the lock of the journal.
    pub is_live: bool,
    /// Changes that undoing would undo now, one line for each: the present value and the original
    /// one.
    pub changes: Vec<String>,
    /// Changes that undoing would leave alone, and why, one line each.
    pub left: Vec<String>,
    /// Reason for which the journal, or a part of it, cannot be used.
    pub problem: Option<String>,
}

/// Lists the journals in this folder (usually [`state_dir`](crate::state_dir)), and changes
/// nothing.
///
/// # Errors
/// Same as [`restore_all`].
pub fn journals(dir: &Path) -> Result<Vec<JournalSummary>, Error> {
    let found = Found::read(dir, false)?;
    let mut dead =
        undo_all(found.journals.iter().filter(|left| !left.is_live), Mode::Report).into_iter();
    let summary = |left: &Left| {
        let owner = journal::owner(&left.path).filter(|owner| !left.is_live || !is_gone(*owner));
        let of_dead = if left.is_live { None } else { dead.next() };
        let (restored, _) = of_dead.unwrap_or_else(|| undo(&left.ledger, Mode::Report));
        JournalSummary {
            pid: owner.map_or(0, |owner| owner.tid),
            is_live: left.is_live,
            changes: restored.undone,
            left: restored.left,
            problem: left.problem.clone(),
        }
    };
    Ok(found.journals.iter().map(summary).collect())
}

/// Whether changes are undone. One function decides for both modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Undo; wait this long for the lock of a control group.
    Undo(Duration),
    /// Return what would be undone, and change nothing.
    Report,
}

impl Mode {
    fn acts(self) -> bool {
        self != Mode::Report
    }
}

/// Undoes all entries of a ledger, the last first. Returns whether nothing is left to try again.
pub(super) fn undo(ledger: &Ledger, mode: Mode) -> (Restored, bool) {
    undo_ledgers([ledger], mode).pop().expect("one ledger has one result")
}

/// Undoes the changes of several journals, and returns one result for each.
fn undo_all<'l>(journals: impl IntoIterator<Item = &'l Left>, mode: Mode) -> Vec<(Restored, bool)> {
    undo_ledgers(journals.into_iter().map(|left| &left.ledger), mode)
}

/// Undoes the entries of ledgers.
///
/// A change can be undone once the changes that others made on top of it are: a value that another
/// Corebeat has changed since, or a group with a group of another Corebeat below. Each ledger may
/// have changes on top of those of every other one, so there is no right order of ledgers. They are
/// tried repeatedly instead. A ledger has at most one entry for a value, and one group around a
/// process, so a pass for each ledger suffices.
fn undo_ledgers<'l>(
    ledgers: impl IntoIterator<Item = &'l Ledger>,
    mode: Mode,
) -> Vec<(Restored, bool)> {
    let mut host = Host { mode, values: HashMap::new(), removed: vec![], disabled: vec![] };
    let mut all: Vec<Undo> = ledgers.into_iter().map(Undo::new).collect();
    for _ in 0..all.len() {
        let mut has_progress = false;
        for undo in &mut all {
            has_progress |= undo.pass(&mut host);
        }
        if !has_progress {
            break;
        }
    }
    all.into_iter().map(|undo| undo.end(mode)).collect()
}

/// Effects of the changes that are undone already, of any ledger.
struct Host {
    mode: Mode,
    /// Values that a report assumes to be restored.
    values: HashMap<(ThreadId, Kind), Setting>,
    /// Groups that are removed, and groups for whose children the cpu controller is disabled.
    removed: Vec<PathBuf>,
    disabled: Vec<PathBuf>,
}

impl Host {
    fn read(&self, thread: ThreadId, kind: Kind) -> io::Result<Option<Setting>> {
        match self.values.get(&(thread, kind)) {
            Some(value) => Ok(Some(value.clone())),
            None => setting::read(thread.tid, kind),
        }
    }

    /// Restores one property and returns its previous value. `None` if nothing has to change.
    fn undo_value(
        &mut self,
        thread: ThreadId,
        entry: &Entry,
        is_ours: impl Fn(&Setting) -> bool,
    ) -> Result<Option<Setting>, Unrestored> {
        if !is_same(thread).map_err(Unrestored::Failed)? {
            return Ok(None);
        }
        let now = match self.read(thread, entry.kind()) {
            Ok(Some(now)) => now,
            // The thread has become a real-time thread, which is not restored.
            Ok(None) => return Ok(None),
            Err(e) if has_ended(&e) => return Ok(None),
            Err(e) => return Err(Unrestored::Failed(e)),
        };
        if now == entry.old {
            return Ok(None);
        }
        if !is_ours(&now) {
            return Err(Unrestored::Unlisted(now));
        }
        if !self.mode.acts() {
            self.values.insert((thread, entry.kind()), entry.old.clone());
            return Ok(Some(now));
        }
        match change(thread, &entry.old) {
            // The cpuset of the thread has changed and has none of the original CPUs.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) && entry.kind() == Kind::Cpus => {
                setting::write_all_cpus(thread.tid).map_err(Unrestored::Failed)?;
            }
            other => {
                other.map_err(Unrestored::Failed)?;
            }
        }
        Ok(Some(now))
    }
}

/// Undoing of one ledger.
struct Undo<'l> {
    ledger: &'l Ledger,
    /// Values that were restored. They are not restored again after another program, or another
    /// ledger, has set one of the values of this ledger.
    done: HashSet<(ThreadId, Kind)>,
    restored: Restored,
    complete: bool,
}

impl<'l> Undo<'l> {
    fn new(ledger: &'l Ledger) -> Undo<'l> {
        Undo { ledger, done: HashSet::new(), restored: Restored::default(), complete: true }
    }

    /// Undoes the changes that can be undone now. The next pass may undo others. Returns whether
    /// something was undone.
    fn pass(&mut self, host: &mut Host) -> bool {
        let undone = self.restored.undone.len();
        self.restored.left.clear();
        self.complete = true;
        self.threads(host);
        self.groups(host);
        self.restored.undone.len() > undone
    }

    /// Undoes the changes that do not depend on other ledgers.
    fn end(mut self, mode: Mode) -> (Restored, bool) {
        self.stopped(mode);
        self.teams(mode);
        (self.restored, self.complete)
    }

    /// Adds a change that was undone, or the reason for which another attempt is necessary.
    fn note(&mut self, outcome: Result<Option<String>, String>) {
        match outcome {
            Ok(undone) => self.restored.undone.extend(undone),
            Err(why) => {
                self.complete = false;
                self.restored.left.push(why);
            }
        }
    }

    fn threads(&mut self, host: &mut Host) {
        let ledger = self.ledger;
        // Slices last: a process that starts meanwhile is found by its slice.
        let (slices, others): (Vec<_>, Vec<_>) =
            ledger.entries().iter().rev().partition(|e| e.kind() == Kind::Slice);
        for entry in others.into_iter().chain(slices) {
            self.thread(host, entry.thread, entry, |now| entry.is_last(now));
        }
        let mut tried = HashSet::new();
        // Threads that started during the restoration, from threads that were not restored yet.
        for _ in 0..SEARCHES_MAX {
            let fresh: Vec<_> = inheritors(ledger, host)
                .into_iter()
                .filter(|(thread, entry)| tried.insert((*thread, entry.kind())))
                .collect();
            if fresh.is_empty() {
                break;
            }
            for (thread, entry) in fresh {
                self.thread(host, thread, entry, |now| ledger.is_inheritable(entry, now));
            }
        }
    }

    fn thread(
        &mut self,
        host: &mut Host,
        thread: ThreadId,
        entry: &Entry,
        is_ours: impl Fn(&Setting) -> bool,
    ) {
        if self.done.contains(&(thread, entry.kind())) {
            return;
        }
        let (tid, to) = (thread.tid, &entry.old);
        match host.undo_value(thread, entry, is_ours) {
            Ok(None) => {}
            Ok(Some(from)) => {
                self.done.insert((thread, entry.kind()));
                self.restored.undone.push(format!("thread {tid}: {from} -> {to}"));
            }
            Err(Unrestored::Unlisted(now)) if entry.is_incomplete() => self.note(Err(format!(
                "thread {tid} keeps {now} instead of {to}: the journal is incomplete, and does not \
                 list this value"
            ))),
            Err(Unrestored::Unlisted(now)) => self.restored.left.push(format!(
                "thread {tid} keeps {now} instead of {to}: another program has changed it since"
            )),
            Err(Unrestored::Failed(e)) => {
                self.note(Err(format!("thread {tid}: cannot restore {to}: {e}")));
            }
        }
    }

    fn stopped(&mut self, mode: Mode) {
        let signal = mode.acts().then_some(Signal::CONT);
        for process in self.ledger.stopped().iter().rev() {
            let pid = process.tid;
            self.note(match process::signal(*process, signal) {
                Ok(existed) => Ok(existed.then(|| format!("process {pid}: stopped -> continued"))),
                Err(e) => Err(format!("process {pid}: cannot continue: {e}")),
            });
        }
        for process in self.ledger.perhaps_stopped() {
            let pid = process.tid;
            if !is_gone(*process) && is_halted(pid) {
                self.note(Err(format!(
                    "process {pid} stays stopped: the journal is incomplete, and another program \
                     may have stopped it; 'kill -CONT {pid}' continues it"
                )));
            }
        }
    }

    fn groups(&mut self, host: &mut Host) {
        let ledger = self.ledger;
        let rest = |paths: &'l [PathBuf], done: &[PathBuf]| -> Vec<&'l PathBuf> {
            paths.iter().rev().filter(|path| !done.contains(path)).collect()
        };
        let groups = rest(ledger.groups(), &host.removed);
        let enabled = rest(ledger.enabled(), &host.disabled);
        if groups.is_empty() && enabled.is_empty() {
            return;
        }
        let parents: BTreeSet<&Path> = ledger.groups().iter().filter_map(|g| g.parent()).collect();
        let lock = |parent| match host.mode {
            Mode::Undo(timeout) => cgroup::Lock::of(parent, timeout).ok(),
            Mode::Report => None,
        };
        // Locks are taken in the order of names by every process.
        let _alone: Vec<_> = parents.into_iter().filter_map(lock).collect();
        for path in groups {
            let outcome = match host.mode {
                Mode::Undo(_) => cgroup::remove(path),
                Mode::Report => cgroup::is_removable(path, &host.removed),
            };
            if outcome.is_ok() {
                host.removed.push(path.clone());
            }
            let name = format!("control group {}", path.display());
            self.note(match outcome {
                Ok(existed) => Ok(existed.then(|| format!("{name}: created -> removed"))),
                Err(why) => Err(format!("{name}: not removed: {why}")),
            });
        }
        for path in enabled {
            if !cgroup::is_unused(path, &host.removed) {
                continue;
            }
            let done = if host.mode.acts() { cgroup::disable(path) } else { Ok(()) };
            if done.is_ok() {
                host.disabled.push(path.clone());
            }
            let name = format!("cpu controller of the control group {}", path.display());
            self.note(match done {
                Ok(()) => Ok(Some(format!("{name}: enabled -> disabled"))),
                Err(why) => Err(format!("{name}: not disabled: {why}")),
            });
        }
    }

    fn teams(&mut self, mode: Mode) {
        for path in self.ledger.teams().iter().rev() {
            match team::undo(path, mode.acts()) {
                Ok(restored) => {
                    self.restored.undone.extend(restored.undone);
                    self.restored.left.extend(restored.left);
                }
                Err(why) => {
                    self.note(Err(format!("team channel {}: not removed: {why}", path.display())));
                }
            }
        }
    }
}

/// Reason why a value was not restored.
enum Unrestored {
    /// The journal does not list this value as one of Corebeat.
    Unlisted(Setting),
    Failed(io::Error),
}

/// Returns threads without a ledger entry that have inherited a value of Corebeat: threads of the
/// processes in the ledger, of their descendants or of their orphans that started after the change
/// and still have the value. Each thread comes with the entry of its creator; slices come last.
fn inheritors<'l>(ledger: &'l Ledger, host: &Host) -> Vec<(ThreadId, &'l Entry)> {
    let kinds: BTreeSet<Kind> = ledger.entries().iter().map(Entry::kind).collect();
    let noted: HashSet<ThreadId> = ledger.entries().iter().map(|e| e.process).collect();
    let mut family: BTreeSet<i32> =
        family(noted.iter().copied()).into_iter().map(|p| p.tid).collect();
    family.extend(ledger.groups().iter().flat_map(|g| cgroup::members(g)));
    if kinds.contains(&Kind::Slice) {
        family.extend(orphans(ledger, host));
    }
    let mut inheritors = Vec::new();
    for tid in family.into_iter().flat_map(threads) {
        let Ok(Some(thread)) = thread_id(tid) else { continue };
        for &kind in kinds.iter().filter(|&&k| ledger.entry(thread, k).is_none()) {
            let Ok(Some(value)) = host.read(thread, kind) else { continue };
            inheritors.extend(ledger.creator(thread, &value, &noted).map(|entry| (thread, entry)));
        }
    }
    inheritors.sort_by_key(|(_, entry)| entry.kind() == Kind::Slice);
    inheritors
}

/// Returns the processes of this host with a thread that has inherited a marked slice: among them
/// those whose parents have ended, which are not found as descendants.
fn orphans(ledger: &Ledger, host: &Host) -> Vec<i32> {
    let has_inherited = |tid: i32| {
        // Most threads of the host have no slice of Corebeat: their identities are not read.
        setting::read(tid, Kind::Slice).ok().flatten().filter(Setting::is_marked)?;
        let thread = thread_id(tid).ok()??;
        let slice = host.read(thread, Kind::Slice).ok()??;
        ledger.creator(thread, &slice, &HashSet::new())
    };
    let has_heir = |pid: &i32| threads(*pid).into_iter().any(|tid| has_inherited(tid).is_some());
    process::all().into_iter().filter(has_heir).collect()
}
