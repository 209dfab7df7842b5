//! Tests of the actuator on threads of this process.

use super::plan::repair;
use super::*;
use crate::process::thread_id;
use crate::restore_all;
use corebeat_machine::{Class, CpuId, CpuSet};
use std::fs;
use std::sync::mpsc::channel;
use std::sync::{Mutex, MutexGuard};

const P: ProgramId = ProgramId(1);

/// All tests are threads of one process, so the threads of one test count as inheritors of another:
/// tests run one at a time.
static ALONE: Mutex<()> = Mutex::new(());

pub(crate) fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(|e| e.into_inner())
}

/// A thread that sleeps until this value is dropped.
struct Sleeper {
    id: ThreadId,
    wake: Option<std::sync::mpsc::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Sleeper {
    fn new() -> Sleeper {
        let (sender, receiver) = channel();
        let (wake, sleep) = channel::<()>();
        let thread = std::thread::spawn(move || {
            sender.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            let _ = sleep.recv();
        });
        let id = thread_id(receiver.recv().unwrap()).unwrap().unwrap();
        Sleeper { id, wake: Some(wake), thread: Some(thread) }
    }

    fn has(&self) -> Vec<Setting> {
        Setting::KINDS.map(|k| setting::read(self.id.tid, k).unwrap().unwrap()).to_vec()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.wake.take();
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Simulates `kill -9`: no code runs any more, and the journal has no owner.
fn kill(mut actuator: Actuator) {
    actuator.journal = None;
    actuator.ledger = Ledger::default();
}

fn batch() -> Desired {
    Desired::Value(Setting::of_class(Class::Batch))
}

#[test]
fn restore_after_a_kill_between_journal_and_change_changes_nothing() {
    let _alone = alone();
    let (dir, sleeper) = (tempfile::tempdir().unwrap(), Sleeper::new());
    let before = sleeper.has();
    let mut actuator = Actuator::new(dir.path());
    let plans = actuator.plan(P, &[sleeper.id], &[batch()]).unwrap();
    actuator.announce(&plans).unwrap();
    assert_eq!(sleeper.has(), before);
    kill(actuator);
    assert_eq!(restore_all(dir.path()).unwrap(), RestoredJournals::default());
    assert_eq!(sleeper.has(), before);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn restore_after_a_kill_during_changes_undoes_the_made_ones() {
    let _alone = alone();
    let (dir, sleepers) = (tempfile::tempdir().unwrap(), [Sleeper::new(), Sleeper::new()]);
    let before = sleepers[0].has();
    let mut actuator = Actuator::new(dir.path());
    // One of the CPUs does not exist: the kernel reduces the set, and the killed process cannot
    // record that.
    let cpu = match &before[0] {
        Setting::Cpus(cpus) => cpus.iter().next().unwrap(),
        _ => unreachable!("the first kind is CPUs"),
    };
    let cpus: CpuSet = [cpu, CpuId(8000)].into_iter().collect();
    let ids = sleepers.each_ref().map(|s| s.id);
    let plans =
        actuator.plan(P, &ids, &[Desired::Value(Setting::Cpus(cpus.clone())), batch()]).unwrap();
    actuator.announce(&plans).unwrap();
    for plan in plans.iter().filter(|p| p.thread == ids[0]) {
        change(plan.thread, &plan.to).unwrap();
    }
    assert_eq!(sleepers[0].has()[0], Setting::Cpus([cpu].into_iter().collect()));
    kill(actuator);
    let restored = restore_all(dir.path()).unwrap().restored;
    // Where only one CPU may be used, there was nothing to reduce.
    let undone = 1 + usize::from(before[0] != Setting::Cpus([cpu].into_iter().collect()));
    assert_eq!((restored.undone.len(), restored.left.len()), (undone, 0), "{restored:?}");
    assert!(sleepers.iter().all(|s| s.has() == before));
}

#[test]
fn release_undoes_the_changes_to_one_program_only() {
    let _alone = alone();
    let (dir, sleepers) = (tempfile::tempdir().unwrap(), [Sleeper::new(), Sleeper::new()]);
    let before = sleepers[0].has();
    let mut actuator = Actuator::new(dir.path());
    // All tests are threads of one process, whose entries belong together: the second program has
    // no entries.
    let batch = Action::SetClass { target: Target::Program(P), class: Some(Class::Batch) };
    actuator.apply(&batch, P, &[sleepers[0].id]).unwrap();
    assert_eq!(actuator.release(ProgramId(2)), Restored::default());
    assert_ne!(sleepers[0].has(), before);
    assert_eq!(actuator.release(P).undone.len(), 1);
    assert_eq!(sleepers[0].has(), before);
    assert_eq!((actuator.ledger.clone(), actuator.programs.len()), (Ledger::default(), 0));
    // A later program with the same number starts without settings.
    actuator.apply(&batch, P, &[sleepers[1].id]).unwrap();
    assert_ne!(sleepers[1].has(), before);
    kill(actuator);
    assert_eq!(restore_all(dir.path()).unwrap().restored.undone.len(), 1);
    assert!(sleepers.iter().all(|s| s.has() == before));
}

#[test]
fn team_channel_of_a_killed_owner_is_removed_and_its_sizes_undone() {
    let _alone = alone();
    let (dir, sleeper) = (tempfile::tempdir().unwrap(), Sleeper::new());
    let channel = crate::TeamChannel::create().unwrap();
    let mut actuator = Actuator::new(dir.path());
    for _ in 0..2 {
        actuator.announce_teams(channel.path()).unwrap();
    }
    channel.set_size(None, Some(2)).unwrap();
    // Another program ends: the journal is rewritten.
    let batch = Action::SetClass { target: Target::Program(P), class: Some(Class::Batch) };
    actuator.apply(&batch, P, &[sleeper.id]).unwrap();
    assert_eq!(actuator.release(P).undone.len(), 1);
    kill(actuator);
    let expected = format!("team channel {}: created -> removed", channel.path().display());
    let [summary] = &crate::journals(dir.path()).unwrap()[..] else { panic!("no journal") };
    assert_eq!((summary.is_live, &summary.changes), (false, &vec![expected.clone()]));
    assert_eq!(restore_all(dir.path()).unwrap().restored.undone, [expected]);
    assert_eq!((channel.size(), channel.path().exists()), (None, false));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn value_that_the_kernel_reduces_is_settled_and_undone() {
    let _alone = alone();
    let (dir, sleeper) = (tempfile::tempdir().unwrap(), Sleeper::new());
    let before = sleeper.has();
    let cpus: CpuSet = [CpuId(0), CpuId(8000)].into_iter().collect();
    let action = Action::SetCpus { target: Target::Thread(sleeper.id), cpus: Some(cpus) };
    let mut actuator = Actuator::new(dir.path());
    actuator.apply(&action, P, &[]).unwrap();
    assert_eq!(sleeper.has()[0], Setting::Cpus([CpuId(0)].into_iter().collect()));
    let again = Desired::Value(Setting::Cpus([CpuId(0), CpuId(8000)].into_iter().collect()));
    assert!(actuator.plan(P, &[sleeper.id], &[again]).unwrap().is_empty());
    kill(actuator);
    let has_changed = before[0] != Setting::Cpus([CpuId(0)].into_iter().collect());
    let undone = restore_all(dir.path()).unwrap().restored.undone.len();
    assert_eq!(undone, usize::from(has_changed));
    assert_eq!(sleeper.has(), before);
}

#[test]
fn failed_action_is_rolled_back() {
    let _alone = alone();
    let (dir, sleepers) = (tempfile::tempdir().unwrap(), [Sleeper::new(), Sleeper::new()]);
    let before = sleepers[0].has();
    let ids = sleepers.each_ref().map(|s| s.id);
    let mut actuator = Actuator::new(dir.path());
    actuator
        .apply(&Action::SetClass { target: Target::Program(P), class: Some(Class::Batch) }, P, &ids)
        .unwrap();
    let mut plans =
        actuator.plan(P, &ids, &[Desired::Value(Setting::of_class(Class::Normal))]).unwrap();
    // None of these CPUs exists.
    let nowhere: CpuSet = [CpuId(8000)].into_iter().collect();
    plans[1].to = Setting::Cpus(nowhere);
    actuator.announce(&plans).unwrap();
    assert!(matches!(actuator.execute(&plans), Err(Error::InvalidArgument(_))));
    assert!(sleepers.iter().all(|s| s.has()[2] == Setting::of_class(Class::Batch)));
    let again =
        actuator.plan(P, &ids, &[Desired::Value(Setting::of_class(Class::Normal))]).unwrap();
    assert_eq!(again.len(), 2, "a rolled back change may be repeated");
    actuator.restore();
    assert!(sleepers.iter().all(|s| s.has() == before));
}

#[test]
fn action_that_fails_first_leaves_no_entry() {
    let _alone = alone();
    let (dir, sleeper) = (tempfile::tempdir().unwrap(), Sleeper::new());
    let nowhere: CpuSet = [CpuId(8000)].into_iter().collect();
    let action = Action::SetCpus { target: Target::Thread(sleeper.id), cpus: Some(nowhere) };
    let mut actuator = Actuator::new(dir.path());
    actuator.apply(&action, P, &[]).unwrap_err();
    assert!(actuator.ledger.entries().is_empty());
    kill(actuator);
    assert_eq!(restore_all(dir.path()).unwrap(), RestoredJournals::default());
}

#[test]
fn journal_stays_short_and_valid_over_many_changes() {
    let _alone = alone();
    let (dir, sleepers) = (tempfile::tempdir().unwrap(), [Sleeper::new(), Sleeper::new()]);
    let before = sleepers[0].has();
    let ids = sleepers.each_ref().map(|s| s.id);
    let mut actuator = Actuator::new(dir.path());
    for class in [Class::Batch, Class::Normal].into_iter().cycle().take(101) {
        let plans = actuator.plan(P, &ids, &[Desired::Value(Setting::of_class(class))]).unwrap();
        // Many records, without a sync for each.
        let lines = plans.iter().flat_map(|p| &p.records).cycle().take(100);
        let records: Vec<_> = lines.map(|s| Record::Set(s.clone())).collect();
        actuator.announce(&plans).unwrap();
        actuator.journal.as_mut().unwrap().write(&records).unwrap();
        actuator.execute(&plans).unwrap();
    }
    let files: Vec<_> = fs::read_dir(dir.path()).unwrap().flatten().collect();
    assert_eq!(files.len(), 1);
    assert!(files[0].metadata().unwrap().len() < 1 << 20);
    assert_eq!(restore_all(dir.path()).unwrap().live, 1, "a rewritten journal is still locked");
    kill(actuator);
    assert_eq!(restore_all(dir.path()).unwrap().restored.undone.len(), 2);
    assert!(sleepers.iter().all(|s| s.has() == before));
}

#[test]
fn thread_with_a_reused_number_gets_the_values_of_its_process() {
    let _alone = alone();
    let sleeper = Sleeper::new();
    let before = sleeper.has();
    let batch_setting = Setting::of_class(Class::Batch);
    setting::write(sleeper.id.tid, &batch_setting).unwrap();
    repair(sleeper.id.tid, &Setting::of_class(Class::Idle));
    assert_eq!(sleeper.has()[2], batch_setting, "another value is not repaired");
    repair(sleeper.id.tid, &batch_setting);
    assert_eq!(sleeper.has(), before);
}

#[test]
fn real_time_thread_is_not_changed() {
    let _alone = alone();
    let (dir, sleeper) = (tempfile::tempdir().unwrap(), Sleeper::new());
    let param = libc::sched_param { sched_priority: 1 };
    // SAFETY: a plain system call on a struct that lives through it. The thread sleeps and uses no
    // CPU.
    if unsafe { libc::sched_setscheduler(sleeper.id.tid, libc::SCHED_RR, &param) } != 0 {
        return; // not permitted without privileges
    }
    let mut actuator = Actuator::new(dir.path());
    let target = Target::Thread(sleeper.id);
    actuator.apply(&Action::SetClass { target, class: Some(Class::Batch) }, P, &[]).unwrap();
    actuator.apply(&Action::SetNice { target, nice: 3 }, P, &[]).unwrap();
    // SAFETY: a plain system call.
    assert_eq!(unsafe { libc::sched_getscheduler(sleeper.id.tid) }, libc::SCHED_RR);
}
