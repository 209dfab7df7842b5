//! The changes that are in effect, by program, as the status lists them.

use corebeat_machine::{Action, AppliedAction, ProgramId, Snapshot, Target, ThreadId};
use std::collections::BTreeMap;

/// A setting of a program or of one of its threads.
type Setting = (&'static str, Option<ThreadId>);

/// The changes in effect.
#[derive(Debug, Default)]
pub(crate) struct Changes(BTreeMap<ProgramId, BTreeMap<Setting, String>>);

impl Changes {
    /// Records actions that were decided about a snapshot.
    pub(crate) fn record(&mut self, applied: &[AppliedAction], snapshot: &Snapshot) {
        for applied in applied {
            let action = &applied.decision.action;
            let (name, thread, is_original) = describe(action);
            let Some(program) = action.program().or_else(|| program_of(thread?, snapshot)) else {
                continue;
            };
            let changes = self.0.entry(program).or_default();
            match &applied.outcome {
                Err(_) => {}
                Ok(_) if is_original => drop(changes.remove(&(name, thread))),
                Ok(effect) if effect.has_changed() => {
                    changes.insert((name, thread), action.to_string());
                }
                Ok(_) => {}
            }
        }
    }

    /// Removes a program, whose changes were undone.
    pub(crate) fn remove(&mut self, program: ProgramId) {
        self.0.remove(&program);
    }

    /// Removes all programs.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// The changes of a program: one text for each setting, and one for the threads with a setting
    /// of their own.
    pub(crate) fn of(&self, program: ProgramId) -> Vec<String> {
        let mut threads: BTreeMap<&str, usize> = BTreeMap::new();
        let mut texts = vec![];
        for ((name, thread), text) in self.0.get(&program).into_iter().flatten() {
            match thread {
                None => texts.push(text.clone()),
                Some(_) => *threads.entry(name).or_default() += 1,
            }
        }
        let of_threads = |(name, count)| format!("{name} of {count} threads");
        texts.into_iter().chain(threads.into_iter().map(of_threads)).collect()
    }
}

/// The setting that an action changes, its thread if it concerns a single thread, and whether the
/// action restores the original value.
fn describe(action: &Action) -> (&'static str, Option<ThreadId>, bool) {
    let thread = |target: &Target| match target {
        Target::Thread(thread) => Some(*thread),
        Target::Program(_) => None,
    };
    match action {
        Action::SetCpus { target, cpus } => ("CPUs", thread(target), cpus.is_none()),
        Action::SetSlice { target, slice_us } => ("slice", thread(target), slice_us.is_none()),
        Action::SetClass { target, class } => ("class", thread(target), class.is_none()),
        Action::SetNice { target, nice } => ("nice value", thread(target), *nice == 0),
        // The weight of a program outside of any group.
        Action::SetWeight { weight, .. } => ("weight", None, *weight == 100),
        Action::SetQuota { cpus, .. } => ("quota", None, cpus.is_none()),
        Action::SetFrozen { frozen, .. } => ("frozen", None, !frozen),
        Action::MovePages { .. } => ("pages", None, false),
        Action::SpreadPages { spread, .. } => ("memory", None, !spread),
        Action::SetTeam { size, .. } => ("team", None, size.is_none()),
    }
}

fn program_of(thread: ThreadId, snapshot: &Snapshot) -> Option<ProgramId> {
    let has = |t: &corebeat_machine::ThreadSample| t.id == thread;
    snapshot.programs.iter().find(|p| p.threads.iter().any(has)).map(|p| p.id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use corebeat_machine::{Class, Decision, Effect};

    #[test]
    fn changes_are_listed_until_they_are_undone() {
        let (program, mut changes) = (ProgramId(3), Changes::default());
        let target = Target::Program(program);
        let mut record = |action, outcome| {
            let decision = Decision { policy: "auto", action, why: String::new() };
            changes.record(&[AppliedAction { at_ns: 0, decision, outcome }], &Snapshot::default());
            changes.of(program)
        };
        let done = |changed| Ok(Effect { changed });
        let class = |class| Action::SetClass { target, class };
        let slice = |slice_us| Action::SetSlice { target, slice_us };
        assert_eq!(record(class(Some(Class::Batch)), done(0)), [""; 0], "without an effect");
        assert_eq!(record(class(Some(Class::Batch)), Err("no".into())), [""; 0]);
        assert_eq!(record(class(Some(Class::Batch)), done(8)), ["class batch"]);
        assert_eq!(record(slice(Some(50_000)), done(8)), ["class batch", "slice 50 ms"]);
        assert_eq!(record(slice(Some(100_000)), done(8)), ["class batch", "slice 100 ms"]);
        assert_eq!(record(class(None), done(8)), ["slice 100 ms"]);
        assert_eq!(record(slice(None), done(0)), [""; 0]);
        record(slice(Some(1)), done(1));
        changes.remove(program);
        assert!(changes.of(program).is_empty());
    }
}
