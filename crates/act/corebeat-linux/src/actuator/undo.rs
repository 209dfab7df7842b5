//! Undoing changes: of this process, and of processes that were killed.

use super::plan::{change, has_ended};
use super::setting::{self, Kind, Setting};
use crate::Error;
use crate::cgroup;
use crate::journal::{self, Entry, Ledger, Left};
use crate::process::{family, is_gone, is_same, thread_id, threads};
use corebeat_machine::{Restored, ThreadId};
use rustix::process::Signal;
use std::collections::{BTreeSet, HashSet};
use std::io;
use std::path::Path;
use std::time::Duration;

/// Number of searches for threads that started during the restoration, from threads that were not
/// restored yet.
const ROUNDS_MAX: u32 = 16;

/// Result of [`restore_all`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RestoredJournals {
    /// Changes that were undone, and settings that were left alone.
    pub restored: Restored,
    /// Number of journals whose owners still run.
    pub live: usize,
    /// Number of journals that remain although their owners have ended: some of their changes
    /// could not be undone or verified, or the file cannot be used.
    pub kept: usize,
}

/// Undoes the changes of Corebeats that have ended, as listed by their journals in this folder
/// (usually [`state_dir`](crate::state_dir)). Journals of running Corebeats are left alone.
///
/// # Errors
/// Fails if the folder cannot be used, for example because it belongs to another user. A missing
/// folder holds no journals.
pub fn restore_all(dir: &Path) -> Result<RestoredJournals, Error> {
    let mut all = RestoredJournals::default();
    journal::for_each_left(dir, true, |path, left| match left {
        Left::Live(_) => {
            all.live += 1;
            false
        }
        Left::Unusable(why) => {
            all.kept += 1;
            all.restored.left.push(format!(
                "the journal {} is not used: {why}; inspect and remove it",
                path.display()
            ));
            false
        }
        Left::Ledger(ledger) => {
            let (restored, complete) = undo(&ledger, cgroup::LOCK_TIMEOUT);
            all.restored.undone.extend(restored.undone);
            all.restored.left.extend(restored.left);
            all.kept += usize::from(!complete);
            complete
        }
    })?;
    Ok(all)
}

/// A journal, as [`journals`] lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalSummary {
    /// Process of the Corebeat that wrote the journal; 0 if the file has another name.
    pub pid: i32,
    /// Whether that Corebeat still runs.
    pub is_live: bool,
    /// Changes of threads, processes and control groups that exist, one line each: the present
    /// value and the original one.
    pub changes: Vec<String>,
    /// Reason for which the journal cannot be used.
    pub problem: Option<String>,
}

/// Lists the journals in this folder (usually [`state_dir`](crate::state_dir)), and changes
/// nothing.
///
/// # Errors
/// Same as [`restore_all`].
pub fn journals(dir: &Path) -> Result<Vec<JournalSummary>, Error> {
    let mut all = vec![];
    journal::for_each_left(dir, false, |path, left| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let pid = name.split('-').next().and_then(|pid| pid.parse().ok()).unwrap_or(0);
        let (is_live, changes, problem) = match left {
            Left::Live(ledger) => (true, changes(&ledger), None),
            Left::Ledger(ledger) => (false, changes(&ledger), None),
            Left::Unusable(why) => (false, vec![], Some(format!("{}: {why}", path.display()))),
        };
        all.push(JournalSummary { pid, is_live, changes, problem });
        false
    })?;
    Ok(all)
}

/// A line for each change that undoing the ledger would undo, the last first.
fn changes(ledger: &Ledger) -> Vec<String> {
    let line = |thread: ThreadId, entry: &Entry, is_ours: &dyn Fn(&Setting) -> bool| {
        let now = setting::read(thread.tid, entry.kind()).ok().flatten()?;
        let is_changed = is_same(thread).unwrap_or(true) && now != entry.old && is_ours(&now);
        is_changed.then(|| format!("thread {}: {now} -> {}", thread.tid, entry.old))
    };
    let own = ledger.entries().iter().rev();
    let own = own.filter_map(|entry| line(entry.thread, entry, &|now| entry.is_last(now)));
    let inherited = inheritors(ledger).into_iter().filter_map(|(thread, entry)| {
        line(thread, entry, &|now| ledger.is_inheritable(entry, now))
    });
    let stopped = ledger.stopped().iter().rev().filter(|process| !is_gone(**process));
    let stopped = stopped.map(|process| format!("process {}: stopped by a signal", process.tid));
    let groups = ledger.groups().iter().rev().filter(|path| path.exists());
    let groups = groups.map(|path| format!("control group {}: created", path.display()));
    own.chain(inherited).chain(stopped).chain(groups).collect()
}

/// Undoes all entries of a ledger, the last first. Returns whether nothing is left to try again.
pub(super) fn undo(ledger: &Ledger, lock_timeout: Duration) -> (Restored, bool) {
    let mut restored = Restored::default();
    let mut complete = true;
    let mut note = |tid: i32, outcome, to: &Setting| match outcome {
        Ok(Some(from)) => restored.undone.push(format!("thread {tid}: {from} -> {to}")),
        Ok(None) => {}
        Err(Unrestored::ChangedByOthers(now)) => restored.left.push(format!(
            "thread {tid} keeps {now} instead of {to}: another program has changed it since"
        )),
        Err(Unrestored::Failed(e)) => {
            complete = false;
            restored.left.push(format!("thread {tid}: cannot restore {to}: {e}"));
        }
    };
    for entry in ledger.entries().iter().rev() {
        note(entry.thread.tid, undo_entry(entry), &entry.old);
    }
    let mut tried = HashSet::new();
    for _ in 0..ROUNDS_MAX {
        let inheritors = inheritors(ledger);
        let fresh: Vec<_> = inheritors
            .into_iter()
            .filter(|(thread, entry)| tried.insert((*thread, entry.kind())))
            .collect();
        if fresh.is_empty() {
            break;
        }
        for (thread, entry) in fresh {
            note(
                thread.tid,
                undo_value(thread, entry, |now| ledger.is_inheritable(entry, now)),
                &entry.old,
            );
        }
    }
    for process in ledger.stopped().iter().rev() {
        match crate::process::signal(*process, Signal::CONT) {
            Ok(true) => restored.undone.push(format!("process {}: continued", process.tid)),
            Ok(false) => {}
            Err(e) => {
                complete = false;
                restored.left.push(format!("process {}: cannot continue: {e}", process.tid));
            }
        }
    }
    let parents: BTreeSet<&Path> = ledger.groups().iter().filter_map(|g| g.parent()).collect();
    // Locks are taken in the order of names by every process.
    let _alone: Vec<_> =
        parents.into_iter().filter_map(|p| cgroup::Lock::of(p, lock_timeout).ok()).collect();
    let groups = ledger.groups().iter().rev().map(|path| (path, cgroup::remove(path)));
    let enabled = ledger.enabled().iter().rev().map(|path| (path, cgroup::disable(path)));
    for (path, outcome) in groups.chain(enabled) {
        match outcome {
            Ok(true) => restored.undone.push(format!("control group {}: restored", path.display())),
            Ok(false) => {}
            Err(why) => {
                complete = false;
                restored.left.push(format!("control group {}: not removed: {why}", path.display()));
            }
        }
    }
    (restored, complete)
}

/// Reason why a value was not restored.
enum Unrestored {
    /// Another program has set this value.
    ChangedByOthers(Setting),
    Failed(io::Error),
}

/// Restores one property and returns its previous value. `None` if nothing had to change.
fn undo_entry(entry: &Entry) -> Result<Option<Setting>, Unrestored> {
    undo_value(entry.thread, entry, |now| entry.is_last(now))
}

fn undo_value(
    thread: ThreadId,
    entry: &Entry,
    is_ours: impl Fn(&Setting) -> bool,
) -> Result<Option<Setting>, Unrestored> {
    if !is_same(thread).map_err(Unrestored::Failed)? {
        return Ok(None);
    }
    let now = match setting::read(thread.tid, entry.kind()) {
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
        return Err(Unrestored::ChangedByOthers(now));
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

/// Returns threads without a ledger entry that have inherited a value of Corebeat: threads of the
/// processes in the ledger or of their descendants that started after the change and still have
/// the value. Each thread comes with the entry of its creator.
fn inheritors(ledger: &Ledger) -> Vec<(ThreadId, &Entry)> {
    let kinds: HashSet<Kind> = ledger.entries().iter().map(Entry::kind).collect();
    let noted: HashSet<ThreadId> = ledger.entries().iter().map(|e| e.process).collect();
    let mut family: HashSet<i32> =
        family(noted.iter().copied()).into_iter().map(|p| p.tid).collect();
    family.extend(ledger.groups().iter().flat_map(|g| cgroup::members(g)));
    let mut inheritors = Vec::new();
    for tid in family.into_iter().flat_map(threads) {
        let Ok(Some(thread)) = thread_id(tid) else { continue };
        for &kind in kinds.iter().filter(|&&k| ledger.entry(thread, k).is_none()) {
            let Ok(Some(value)) = setting::read(tid, kind) else { continue };
            inheritors.extend(ledger.creator(thread, &value, &noted).map(|entry| (thread, entry)));
        }
    }
    inheritors
}
