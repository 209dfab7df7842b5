//! The sum of the records of a journal: for each thread and property, the original value and the
//! values that Corebeat set.
//!
//! A damaged line may have held any record. The records around it are used as follows:
//!
//! - If an intact record states that Corebeat set a value, the earlier value in the same record is
//!   restored, even if the damaged line was an earlier change of the same property.
//! - Any other value may have been set by the damaged line: it is left alone, and the journal
//!   counts as incomplete. The same holds if the records before and after the damage do not
//!   connect.
//! - A process that was stopped before the damage may have been continued by the damaged line, and
//!   stopped by its user since: it is left alone.

use super::{Record, Set};
use crate::actuator::setting::{Kind, Setting};
use crate::process::is_gone;
use corebeat_machine::ThreadId;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

/// Number of latest values of one property that count as inherited from Corebeat's changes: a new
/// thread may have a value that its creator had a moment ago.
const VALUES_MAX: usize = 8;

/// One property of one thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) thread: ThreadId,
    pub(crate) process: ThreadId,
    /// Time of the first change, in clock ticks since boot.
    pub(crate) since: u64,
    /// Original value.
    pub(crate) old: Setting,
    /// Values that Corebeat set, oldest first; empty if the original value is unknown.
    values: Vec<Setting>,
    /// Value that Corebeat requested last; the kernel may have set another.
    requested: Setting,
    /// Whether the last change may not have been made, or may have been reduced by the kernel.
    open: bool,
    /// Whether a line after the last record of this entry is missing.
    has_gap: bool,
}

impl Entry {
    pub(crate) fn kind(&self) -> Kind {
        self.old.kind()
    }

    /// Returns whether this value is the last one that Corebeat set. Any other value, even an
    /// earlier one of Corebeat, was set by another program. While it is unknown whether the last
    /// change was made, the value before that change counts as well.
    pub(crate) fn is_last(&self, value: &Setting) -> bool {
        let cut = match (value, self.values.last()) {
            // The kernel removes CPUs that are not in the cpuset.
            (Setting::Cpus(now), Some(Setting::Cpus(requested))) if self.open => {
                !now.is_empty() && now.iter().all(|c| requested.contains(c))
            }
            _ => false,
        };
        let latest = self.values.iter().rev().take(if self.open { 2 } else { 1 });
        cut || latest.into_iter().any(|v| v == value)
    }

    /// Returns whether the journal may lack a change of this property.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.open || self.has_gap
    }

    /// Returns whether this value was requested before, and `now` is what the kernel set.
    pub(crate) fn is_settled(&self, requested: &Setting, now: &Setting) -> bool {
        self.requested == *requested && self.values.last() == Some(now)
    }

    fn push(&mut self, value: Setting) {
        self.values.retain(|v| *v != value);
        self.values.push(value);
        if self.values.len() > VALUES_MAX {
            self.values.remove(0);
        }
    }
}

/// All changes to undo.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Ledger {
    /// Entries in the order of first changes.
    entries: Vec<Entry>,
    index: HashMap<(ThreadId, Kind), usize>,
    groups: Vec<PathBuf>,
    enabled: Vec<PathBuf>,
    /// Channels to OpenMP teams.
    teams: Vec<PathBuf>,
    /// Stopped processes, in the order of stopping.
    stopped: Vec<ThreadId>,
    /// Processes that were stopped before a damaged line, and may have been continued.
    perhaps_stopped: Vec<ThreadId>,
}

impl Ledger {
    /// Adds one record.
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
            Record::Team { path } => add(&mut self.teams, path),
            Record::Stop { tid, start } => {
                add(&mut self.stopped, &ThreadId { tid: *tid, start_ticks: *start });
            }
            Record::Continued { tid, start } => {
                let process = ThreadId { tid: *tid, start_ticks: *start };
                self.stopped.retain(|p| *p != process);
                self.perhaps_stopped.retain(|p| *p != process);
            }
            Record::Start(_) => {}
        }
    }

    /// Records that the last line is incomplete. Its change was not made, unless the journal was
    /// longer once.
    pub(crate) fn note_cut(&mut self) {
        self.entries.iter_mut().for_each(|e| e.has_gap = true);
    }

    /// Records that a line is damaged.
    pub(crate) fn note_damage(&mut self) {
        self.note_cut();
        self.perhaps_stopped.append(&mut self.stopped);
    }

    fn set(&mut self, set: &Set) {
        let key = (set.thread(), set.old.kind());
        let fresh = Entry {
            thread: set.thread(),
            process: ThreadId { tid: set.pid, start_ticks: set.pid_start },
            since: set.at,
            old: set.old.clone(),
            values: vec![set.new.clone()],
            requested: set.new.clone(),
            open: true,
            has_gap: false,
        };
        match self.index.get(&key).map(|&i| &mut self.entries[i]) {
            Some(e) if !e.values.is_empty() && (e.old == set.old || e.is_last(&set.old)) => {
                e.push(set.new.clone());
                e.requested = set.new.clone();
                (e.open, e.has_gap) = (true, false);
            }
            // The missing line explains the difference, or another program does.
            Some(e) if e.has_gap => *e = Entry { values: vec![], has_gap: true, ..fresh },
            // Another program changed the value in between: its value is the one to restore.
            Some(e) => *e = fresh,
            None => {
                self.index.insert(key, self.entries.len());
                self.entries.push(fresh);
            }
        }
    }

    /// Records that a change was rolled back: the thread has this value again.
    pub(crate) fn rolled_back(&mut self, thread: ThreadId, value: &Setting) {
        if let Some(&i) = self.index.get(&(thread, value.kind())) {
            self.entries[i].push(value.clone());
            self.entries[i].requested = value.clone();
        }
    }

    pub(crate) fn entry(&self, thread: ThreadId, kind: Kind) -> Option<&Entry> {
        self.index.get(&(thread, kind)).map(|&i| &self.entries[i])
    }

    /// Returns the process of a thread in the ledger.
    pub(crate) fn process(&self, thread: ThreadId) -> Option<ThreadId> {
        Setting::KINDS.into_iter().find_map(|kind| self.entry(thread, kind)).map(|e| e.process)
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns the control groups of Corebeat.
    pub(crate) fn groups(&self) -> &[PathBuf] {
        &self.groups
    }

    /// Returns the groups for whose children Corebeat enabled the cpu controller.
    pub(crate) fn enabled(&self) -> &[PathBuf] {
        &self.enabled
    }

    /// Returns the channels to OpenMP teams.
    pub(crate) fn teams(&self) -> &[PathBuf] {
        &self.teams
    }

    /// Returns the processes that may be stopped, and may have been continued since.
    pub(crate) fn perhaps_stopped(&self) -> &[ThreadId] {
        &self.perhaps_stopped
    }

    /// Returns the processes that are stopped by signals, in the order of stopping.
    pub(crate) fn stopped(&self) -> &[ThreadId] {
        &self.stopped
    }

    /// Returns the entry from which a thread without an entry has inherited this value: that of a
    /// thread in one of `processes`, changed before the new thread started. New threads inherit
    /// the properties of their creator. A marked slice identifies the creator without `processes`.
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
                && (value.is_marked() || processes.contains(&e.process))
                && self.is_inheritable(e, value)
                && e.old != *value
        })
    }

    /// Returns whether a thread may have inherited this value from a thread with this entry.
    pub(crate) fn is_inheritable(&self, entry: &Entry, value: &Setting) -> bool {
        match value {
            Setting::ResetOnFork(_) => false,
            Setting::Nice(0) if self.entry(entry.thread, Kind::ResetOnFork).is_some() => {
                entry.values.iter().any(|v| v == value || v.is_raised())
            }
            value => entry.values.contains(value),
        }
    }

    /// Keeps the entries for which `keep` returns true.
    pub(crate) fn retain(&mut self, keep: impl FnMut(&Entry) -> bool) {
        self.entries.retain(keep);
        self.index =
            self.entries.iter().enumerate().map(|(i, e)| ((e.thread, e.kind()), i)).collect();
    }

    /// Removes entries of threads that have ended, except the first one with its values: living
    /// threads may have inherited these values. CPUs are an exception, because each thread may have
    /// others.
    pub(crate) fn remove_ended(&mut self) {
        let mut kept: Vec<(Setting, Vec<Setting>)> = Vec::new();
        self.retain(|e| {
            if !is_gone(e.thread) {
                return true;
            }
            let values = (e.old.clone(), e.values.clone());
            let is_needed = e.kind() != Kind::Cpus && !kept.contains(&values);
            kept.extend(is_needed.then_some(values));
            is_needed
        });
    }

    /// Returns the changes to these processes and these control groups.
    pub(crate) fn part(&self, processes: &HashSet<ThreadId>, groups: &[&Path]) -> Ledger {
        let mut part = self.clone();
        part.retain(|e| processes.contains(&e.process));
        part.groups.retain(|g| groups.contains(&g.as_path()));
        part.enabled.clear();
        part.teams.clear();
        part.stopped.retain(|p| processes.contains(p));
        part
    }

    /// Removes the changes that another ledger contains.
    pub(crate) fn remove(&mut self, part: &Ledger) {
        self.retain(|e| part.entry(e.thread, e.kind()).is_none());
        self.groups.retain(|g| !part.groups.contains(g));
        self.stopped.retain(|p| !part.stopped.contains(p));
    }

    /// Returns records whose sum is this ledger.
    pub(crate) fn records(&self) -> Vec<Record> {
        let mut records = Vec::new();
        records.extend(self.enabled.iter().map(|path| Record::Enable { path: path.clone() }));
        records.extend(self.groups.iter().map(|path| Record::Group { path: path.clone() }));
        records.extend(self.teams.iter().map(|path| Record::Team { path: path.clone() }));
        for e in &self.entries {
            records.extend(e.values.iter().map(|new| {
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
        records
            .extend(self.stopped.iter().map(|p| Record::Stop { tid: p.tid, start: p.start_ticks }));
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
    use corebeat_machine::CpuId;

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
        assert!(
            entry.is_last(&Setting::Nice(7)) && ledger.is_inheritable(entry, &Setting::Nice(5))
        );
    }

    #[test]
    fn ledger_attributes_an_earlier_own_value_to_another_program() {
        let done = ledger([set(0, 5), Record::Done, set(5, 7), Record::Done]);
        let entry = done.entry(T, Kind::Nice).unwrap();
        assert!(!entry.is_last(&Setting::Nice(5)) && !entry.is_last(&Setting::Nice(0)));
        // The exception: the last change may not have been made.
        let open = ledger([set(0, 5), Record::Done, set(5, 7)]);
        assert!(open.entry(T, Kind::Nice).unwrap().is_last(&Setting::Nice(5)));
        let by_other =
            ledger([set(0, 5), Record::Done, set(5, 7), Record::Done, set(5, 9), Record::Done]);
        assert_eq!(by_other.entry(T, Kind::Nice).unwrap().old, Setting::Nice(5));
    }

    #[test]
    fn ledger_keeps_the_value_of_an_intervening_program() {
        let ledger = ledger([set(0, 5), Record::Done, set(9, 7), Record::Done]);
        let entry = ledger.entry(T, Kind::Nice).unwrap();
        assert_eq!(entry.old, Setting::Nice(9));
        assert!(!entry.is_last(&Setting::Nice(5)));
    }

    #[test]
    fn ledger_after_a_damaged_line_keeps_what_intact_lines_prove() {
        let damaged = |before: &[Record], after: &[Record]| {
            let mut all = ledger(before.to_vec());
            all.note_damage();
            after.iter().for_each(|record| all.note(record));
            all.entry(T, Kind::Nice).cloned().unwrap()
        };
        let before = damaged(&[set(0, 5), Record::Done], &[]);
        assert!(before.is_last(&Setting::Nice(5)) && before.is_incomplete());
        let connected = damaged(&[set(0, 5), Record::Done], &[set(5, 7), Record::Done]);
        assert_eq!(connected.old, Setting::Nice(0));
        assert!(connected.is_last(&Setting::Nice(7)) && !connected.is_incomplete());
        // The damaged line, or another program, has set the value 7.
        let apart = damaged(&[set(0, 5), Record::Done], &[set(7, 9), Record::Done]);
        assert!(!apart.is_last(&Setting::Nice(9)) && apart.is_incomplete());
    }

    #[test]
    fn process_stopped_before_a_damaged_line_is_perhaps_stopped() {
        let stop = Record::Stop { tid: 5, start: 50 };
        let mut ledger = ledger([stop.clone()]);
        ledger.note_cut();
        assert_eq!(ledger.stopped(), [T]);
        ledger.note_damage();
        assert_eq!((ledger.stopped(), ledger.perhaps_stopped()), (&[][..], &[T][..]));
        ledger.note(&Record::Continued { tid: 5, start: 50 });
        assert!(ledger.perhaps_stopped().is_empty());
    }

    #[test]
    fn ended_thread_keeps_one_entry_for_its_heirs() {
        let living = crate::process::thread_id(std::process::id() as i32).unwrap().unwrap();
        // The start time of an ended thread is one that no living thread has.
        let ended = |tid| ThreadId { tid, start_ticks: u64::MAX };
        let set = |thread: ThreadId, old, new| {
            let ThreadId { tid, start_ticks: start } = thread;
            Record::Set(Set { tid, start, pid: tid, pid_start: start, at: 70, old, new })
        };
        let slice = |thread| set(thread, Setting::SliceNs(0), Setting::SliceNs(49_999_999));
        let cpus = |thread| {
            let cpus = |n: u32| Setting::Cpus((0..n).map(CpuId).collect());
            set(thread, cpus(2), cpus(1))
        };
        let mut ledger = ledger([
            slice(ended(5)),
            slice(ended(6)),
            slice(living),
            cpus(ended(5)),
            cpus(living),
            Record::Done,
        ]);
        ledger.remove_ended();
        let left: Vec<_> = ledger.entries().iter().map(|e| (e.thread, e.kind())).collect();
        let kept = [(ended(5), Kind::Slice), (living, Kind::Slice), (living, Kind::Cpus)];
        assert_eq!(left, kept);
        // The heir is no descendant of a process in the ledger.
        let heir = ThreadId { tid: 9, start_ticks: 70 };
        let creator = ledger.creator(heir, &Setting::SliceNs(49_999_999), &HashSet::new());
        assert!(creator.is_some());
    }

    #[test]
    fn creator_was_changed_before_the_start_in_the_same_process() {
        let ledger = ledger([set(0, 5)]);
        let born = |start_ticks| ThreadId { tid: 9, start_ticks };
        let family = HashSet::from([T]);
        let of =
            |t, nice, f: &HashSet<_>| ledger.creator(t, &Setting::Nice(nice), f).map(|e| e.thread);
        assert_eq!(of(born(70), 5, &family), Some(T));
        assert_eq!(of(born(69), 5, &family), None, "older than the change");
        assert_eq!(of(born(70), 4, &family), None, "another value");
        assert_eq!(of(born(70), 5, &HashSet::new()), None, "of another program");
    }
}
