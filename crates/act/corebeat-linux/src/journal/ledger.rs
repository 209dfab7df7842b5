//! What a journal's records add up to: for each thread and property, what it was and what we made of it.

use super::{Record, Set};
use crate::hand::setting::{Kind, Setting};
use corebeat_machine::ThreadId;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

/// How many of our latest values of one property are recognised as handed down by us: a thread that was just born may still have
/// one that its creator had a moment ago.
const OURS_MAX: usize = 8;

/// One property of one thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) thread: ThreadId,
    pub(crate) process: ThreadId,
    /// When we first changed it, in clock ticks since boot.
    pub(crate) since: u64,
    /// What it is to be again.
    pub(crate) old: Setting,
    /// What we made it, oldest first; never empty.
    ours: Vec<Setting>,
    /// What we asked for last; the kernel may have taken something else.
    asked: Setting,
    /// The last change may or may not have been made, and the kernel may have cut it.
    open: bool,
}

impl Entry {
    pub(crate) fn kind(&self) -> Kind {
        self.old.kind()
    }

    /// Whether this value is what we made of it last: another one is somebody else's, also where we had made it the same before.
    /// While it is not known whether a change was made, what was before it counts too.
    pub(crate) fn is_last(&self, value: &Setting) -> bool {
        let cut = match (value, self.ours.last()) {
            // The kernel leaves out CPUs that the cpuset does not hold.
            (Setting::Cpus(now), Some(Setting::Cpus(asked))) if self.open => {
                !now.is_empty() && now.iter().all(|c| asked.contains(c))
            }
            _ => false,
        };
        let latest = self.ours.iter().rev().take(if self.open { 2 } else { 1 });
        cut || latest.into_iter().any(|v| v == value)
    }

    /// Whether this was asked for already, and `now` is what the kernel made of it.
    pub(crate) fn is_settled(&self, asked: &Setting, now: &Setting) -> bool {
        self.asked == *asked && self.ours.last() == Some(now)
    }

    fn push(&mut self, value: Setting) {
        self.ours.retain(|v| *v != value);
        self.ours.push(value);
        if self.ours.len() > OURS_MAX {
            self.ours.remove(0);
        }
    }
}

/// All that is to be undone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Ledger {
    /// In the order of first changes.
    entries: Vec<Entry>,
    index: HashMap<(ThreadId, Kind), usize>,
    groups: Vec<PathBuf>,
    enabled: Vec<PathBuf>,
    /// In the order in which they were stopped.
    stopped: Vec<ThreadId>,
}

impl Ledger {
    /// Takes in one record.
    pub(crate) fn note(&mut self, record: &Record) {
        match record {
            Record::Set(set) => self.set(set),
            Record::Took { tid, start, value } => {
                let thread = ThreadId { tid: *tid, start_ticks: *start };
                if let Some(&i) = self.index.get(&(thread, value.kind())) {
                    self.entries[i].push(value.clone());
                }
            }
            Record::Done => self.entries.iter_mut().for_each(|e| e.open = false),
            Record::Group { path } => add(&mut self.groups, path),
            Record::Enable { path } => add(&mut self.enabled, path),
            Record::Stop { tid, start } => {
                add(&mut self.stopped, &ThreadId { tid: *tid, start_ticks: *start });
            }
            Record::Continued { tid, start } => {
                let process = ThreadId { tid: *tid, start_ticks: *start };
                self.stopped.retain(|p| *p != process);
            }
            Record::Start(_) => {}
        }
    }

    fn set(&mut self, set: &Set) {
        let key = (set.thread(), set.old.kind());
        let fresh = Entry {
            thread: set.thread(),
            process: ThreadId { tid: set.pid, start_ticks: set.pid_start },
            since: set.at,
            old: set.old.clone(),
            ours: vec![set.new.clone()],
            asked: set.new.clone(),
            open: true,
        };
        match self.index.get(&key).map(|&i| &mut self.entries[i]) {
            Some(e) if e.old == set.old || e.is_last(&set.old) => {
                e.push(set.new.clone());
                e.asked = set.new.clone();
                e.open = true;
            }
            // Somebody else changed it in between: theirs is what it is to be again.
            Some(e) => *e = fresh,
            None => {
                self.index.insert(key, self.entries.len());
                self.entries.push(fresh);
            }
        }
    }

    /// A change has failed: the thread has this value again.
    pub(crate) fn took_back(&mut self, thread: ThreadId, value: &Setting) {
        if let Some(&i) = self.index.get(&(thread, value.kind())) {
            self.entries[i].push(value.clone());
            self.entries[i].asked = value.clone();
        }
    }

    pub(crate) fn entry(&self, thread: ThreadId, kind: Kind) -> Option<&Entry> {
        self.index.get(&(thread, kind)).map(|&i| &self.entries[i])
    }

    /// The process of a thread that is noted.
    pub(crate) fn process(&self, thread: ThreadId) -> Option<ThreadId> {
        Setting::KINDS.into_iter().find_map(|kind| self.entry(thread, kind)).map(|e| e.process)
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Control groups of ours.
    pub(crate) fn groups(&self) -> &[PathBuf] {
        &self.groups
    }

    /// Control groups for whose children we switched the cpu controller on.
    pub(crate) fn enabled(&self) -> &[PathBuf] {
        &self.enabled
    }

    /// Processes that we have stopped by signals, in the order in which that was done.
    pub(crate) fn stopped(&self) -> &[ThreadId] {
        &self.stopped
    }

    /// From whom a thread that was never changed itself has inherited this value: from somebody in one of `processes`,
    /// changed before the thread was born. New threads get the properties of their creator.
    pub(crate) fn creator(
        &self,
        thread: ThreadId,
        value: &Setting,
        processes: &HashSet<ThreadId>,
    ) -> Option<&Entry> {
        self.entries.iter().rev().find(|e| {
            e.kind() == value.kind()
                && e.since <= thread.start_ticks
                && e.thread != thread
                && processes.contains(&e.process)
                && self.hands_down(e, value)
                && e.old != *value
        })
    }

    /// Whether who is started by a thread with this entry may begin with this value.
    pub(crate) fn hands_down(&self, entry: &Entry, value: &Setting) -> bool {
        match value {
            Setting::ResetOnFork(_) => false,
            Setting::Nice(0) if self.entry(entry.thread, Kind::ResetOnFork).is_some() => {
                entry.ours.iter().any(|v| v == value || v.is_raised())
            }
            value => entry.ours.contains(value),
        }
    }

    /// Forgets the threads that `gone` names.
    pub(crate) fn retain(&mut self, keep: impl Fn(&Entry) -> bool) {
        self.entries.retain(keep);
        self.index = self.entries.iter().enumerate().map(|(i, e)| ((e.thread, e.kind()), i)).collect();
    }

    /// A part of it: what was done to these processes, and these control groups.
    pub(crate) fn part(&self, processes: &HashSet<ThreadId>, groups: &[&Path]) -> Ledger {
        let mut part = self.clone();
        part.retain(|e| processes.contains(&e.process));
        part.groups.retain(|g| groups.contains(&g.as_path()));
        part.enabled.clear();
        part.stopped.retain(|p| processes.contains(p));
        part
    }

    /// Forgets such a part.
    pub(crate) fn remove(&mut self, part: &Ledger) {
        self.retain(|e| part.entry(e.thread, e.kind()).is_none());
        self.groups.retain(|g| !part.groups.contains(g));
        self.stopped.retain(|p| !part.stopped.contains(p));
    }

    /// Records that add up to this ledger.
    pub(crate) fn records(&self) -> Vec<Record> {
        let mut records = Vec::new();
        records.extend(self.enabled.iter().map(|path| Record::Enable { path: path.clone() }));
        records.extend(self.groups.iter().map(|path| Record::Group { path: path.clone() }));
        for e in &self.entries {
            records.extend(e.ours.iter().map(|new| {
                Record::Set(Set {
                    tid: e.thread.tid,
                    start: e.thread.start_ticks,
                    pid: e.process.tid,
                    pid_start: e.process.start_ticks,
                    at: e.since,
                    old: e.old.clone(),
                    new: new.clone(),
                })
            }));
        }
        records.push(Record::Done);
        records.extend(self.stopped.iter().map(|p| Record::Stop { tid: p.tid, start: p.start_ticks }));
        records
    }
}

fn add<T: Clone + PartialEq>(all: &mut Vec<T>, one: &T) {
    if !all.contains(one) {
        all.push(one.clone());
    }
}

impl FromIterator<Record> for Ledger {
    fn from_iter<I: IntoIterator<Item = Record>>(records: I) -> Ledger {
        let mut ledger = Ledger::default();
        records.into_iter().for_each(|r| ledger.note(&r));
        ledger
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: ThreadId = ThreadId { tid: 5, start_ticks: 50 };

    fn set(old: i32, new: i32) -> Record {
        let (old, new) = (Setting::Nice(old), Setting::Nice(new));
        Record::Set(Set { tid: 5, start: 50, pid: 5, pid_start: 50, at: 70, old, new })
    }

    fn ledger(records: impl IntoIterator<Item = Record>) -> Ledger {
        records.into_iter().collect()
    }

    #[test]
    fn ledger_over_several_changes_keeps_the_oldest_value() {
        let ledger = ledger([set(0, 5), Record::Done, set(5, 7), Record::Done]);
        let entry = ledger.entry(T, Kind::Nice).unwrap();
        assert_eq!(entry.old, Setting::Nice(0));
        assert!(entry.is_last(&Setting::Nice(7)) && ledger.hands_down(entry, &Setting::Nice(5)));
    }

    #[test]
    fn ledger_takes_an_earlier_value_of_ours_for_somebody_elses_doing() {
        let done = ledger([set(0, 5), Record::Done, set(5, 7), Record::Done]);
        let entry = done.entry(T, Kind::Nice).unwrap();
        assert!(!entry.is_last(&Setting::Nice(5)) && !entry.is_last(&Setting::Nice(0)));
        // Unless the last change may not have been made at all.
        let open = ledger([set(0, 5), Record::Done, set(5, 7)]);
        assert!(open.entry(T, Kind::Nice).unwrap().is_last(&Setting::Nice(5)));
        let theirs = ledger([set(0, 5), Record::Done, set(5, 7), Record::Done, set(5, 9), Record::Done]);
        assert_eq!(theirs.entry(T, Kind::Nice).unwrap().old, Setting::Nice(5));
    }

    #[test]
    fn ledger_where_somebody_came_between_keeps_theirs() {
        let ledger = ledger([set(0, 5), Record::Done, set(9, 7), Record::Done]);
        let entry = ledger.entry(T, Kind::Nice).unwrap();
        assert_eq!(entry.old, Setting::Nice(9));
        assert!(!entry.is_last(&Setting::Nice(5)));
    }

    #[test]
    fn creator_is_one_changed_before_the_birth_in_the_same_process() {
        let ledger = ledger([set(0, 5)]);
        let born = |start_ticks| ThreadId { tid: 9, start_ticks };
        let family = HashSet::from([T]);
        let of = |t, nice, f: &HashSet<_>| ledger.creator(t, &Setting::Nice(nice), f).map(|e| e.thread);
        assert_eq!(of(born(70), 5, &family), Some(T));
        assert_eq!(of(born(69), 5, &family), None, "older than the change");
        assert_eq!(of(born(70), 4, &family), None, "another value");
        assert_eq!(of(born(70), 5, &HashSet::new()), None, "of another program");
    }
}
