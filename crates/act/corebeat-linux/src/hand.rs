//! The hands: actions carried out on real threads, and taken back.

pub(crate) mod setting;
mod stop;

use crate::cgroup::{self, Group, Place};
use crate::journal::{self, Entry, Journal, Ledger, Left, Record, Set};
use crate::process::{family, is_anothers, is_same, parent, thread_id, threads};
use crate::{Error, memory};
use corebeat_machine::{Action, CpuSet, ProgramId, Target, ThreadId};
use rustix::process::Signal;
use setting::{Kind, NICE_MAX, NICE_MIN, SLICE_NS_MAX, SLICE_NS_MIN, Setting};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often undoing looks for threads that were born meanwhile, of creators who were not yet as before.
const ROUNDS_MAX: u32 = 16;

/// Carries out actions on this host, and takes back what they changed.
///
/// Every change is in a journal on disk before it is made. It is undone by [`Hands::undo_all`] or by dropping the hands;
/// where neither runs (`kill -9`, `std::process::exit`), the next [`restore_all`] does it. Only moved memory
/// ([`Action::MovePages`], [`Action::SpreadPages`]) stays where it is: nobody knows which of the pages on a node were there before.
///
/// A thread that has another owner by now, that has ended, or whose value somebody else has changed since, is left alone.
///
/// A raise (a nice value below 0) is handed down to nobody: what a raised thread starts begins with nice 0, until
/// [`Hands::adopt`] has seen it (`raise_is_handed_down_to_nobody_who_could_leave_with_it`). That wants `CAP_SYS_NICE`; without it a raise,
/// where `ulimit -e` allows one, is handed down as all else is.
#[derive(Debug)]
pub struct Hands {
    dir: PathBuf,
    /// Begun with the first change: who only watches needs no directory.
    journal: Option<Journal>,
    ledger: Ledger,
    programs: HashMap<ProgramId, Standing>,
    /// Why programs are stopped by signals rather than frozen, if any is.
    signals_why: Option<String>,
    /// How long to wait for others who work in the same control group.
    patience: Duration,
}

/// What holds for a program, those threads included that it has yet to start.
#[derive(Debug, Default)]
struct Standing {
    processes: HashSet<ThreadId>,
    wanted: BTreeMap<Kind, Want>,
    share: Share,
    groups: Vec<Group>,
    /// Whether it is frozen, and the groups for that.
    frozen: bool,
    freezers: Vec<Group>,
    /// It is stopped by signals, because there can be no such groups.
    by_signals: bool,
}

/// What a program's control group is to have.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Share {
    weight: Option<u32>,
    /// Limit of CPU time, in CPUs.
    cpus: Option<f64>,
}

impl Share {
    /// Gives it to a group that has `before`.
    fn change(self, group: &Group, before: Share) -> Result<(), Error> {
        if self.weight != before.weight {
            group.weigh(self.weight.unwrap_or(cgroup::WEIGHT_DEFAULT))?;
        }
        if self.cpus != before.cpus {
            group.limit(self.cpus)?;
        }
        Ok(())
    }
}

/// What a program's processes are put in a group for.
#[derive(Debug, Clone, Copy)]
enum Purpose {
    Share(Share),
    Freeze,
}

/// What was put back as it was.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Restored {
    /// What was undone, one line each.
    pub undone: Vec<String>,
    /// What was left alone although it is not as before, and why; one line each.
    pub left: Vec<String>,
    /// Journals whose owners are at work.
    pub live: usize,
}

/// What to make of a property.
#[derive(Debug, Clone)]
enum Want {
    Value(Setting),
    /// A nice value on top of what the thread has by itself.
    OnTop(i8),
    /// What it was before us.
    Original(Kind),
}

impl Want {
    fn kind(&self) -> Kind {
        match self {
            Want::Value(value) => value.kind(),
            Want::OnTop(_) => Kind::Nice,
            Want::Original(kind) => *kind,
        }
    }

    /// What is to be made of a property that a thread has like this by itself.
    fn of(&self, own: &Setting) -> Setting {
        match (self, own) {
            (Want::Value(value), _) => value.clone(),
            (Want::OnTop(more), Setting::Nice(own)) => {
                Setting::Nice(own.saturating_add((*more).into()).clamp(NICE_MIN, NICE_MAX))
            }
            (Want::OnTop(_) | Want::Original(_), own) => own.clone(),
        }
    }
}

/// One property of one thread that is to change.
#[derive(Debug)]
struct Plan {
    thread: ThreadId,
    from: Setting,
    to: Setting,
    records: Vec<Set>,
}

impl Hands {
    /// Hands that keep their journal in this directory, usually [`state_dir`](crate::state_dir). Touches nothing yet.
    pub fn new(dir: impl Into<PathBuf>) -> Hands {
        Hands {
            dir: dir.into(),
            journal: None,
            ledger: Ledger::default(),
            programs: HashMap::new(),
            signals_why: None,
            patience: cgroup::LOCK_PATIENCE,
        }
    }

    /// From now on waits for nobody, for those who have others to serve. Otherwise hands wait up to 5 s for whoever holds
    /// the lock of a control group that is to be changed, and go on then: everybody on the host can hold it. Now an action
    /// that needs a new control group fails with [`Error::Refused`], and may be tried again; what is undone is undone
    /// without the lock.
    pub fn never_wait(&mut self) {
        self.patience = Duration::ZERO;
    }

    /// Carries out an action on a program, or on one thread of it. `threads` are the program's threads now; those that
    /// come later are brought in line by [`Hands::adopt`].
    ///
    /// Linux takes slices from 0.1 to 100 ms: others are cut. `SetSlice` with `None` gives back the slice of before.
    /// `SpreadPages` moves what the program has by now, in blocks of 2 MiB, where the host has several nodes; what it allocates later is
    /// placed by the kernel, and nothing moves back but what the kernel's NUMA balancing does. `SetCpus` with `None` gives back those of
    /// before. `SetWeight` and `SetQuota` share a control group, in which each process of the program is put with all its threads;
    /// a limit is counted over 100 ms, and is at least 0.01 CPUs. `SetFrozen` uses another group, which is made when a program is first
    /// frozen: freezing again, and thawing, are one write each. Where there can be none, it stops the program's processes and all that
    /// descend from them by `SIGSTOP`, and continues them by `SIGCONT`, each time; who was stopped before stays so. [`Action::SetTeam`] is not done with hands: nothing
    /// happens.
    ///
    /// Tells whether anything has changed by it: what is as it is to be already is left alone.
    ///
    /// # Errors
    /// [`Error::Denied`] where it is somebody else's; [`Error::Senseless`] for what no host could do, [`Error::Missing`] for what
    /// this one cannot, or what could not be taken back (another nice value without `CAP_SYS_NICE`), [`Error::Refused`] for all
    /// else. Nothing is changed then. A thread that has ended is no error, and neither is one
    /// of a real-time class: it keeps what it has, except for its CPUs.
    pub fn apply(
        &mut self,
        action: &Action,
        program: ProgramId,
        threads: &[ThreadId],
    ) -> Result<bool, Error> {
        let (target, want) = match action {
            Action::SetCpus { cpus: Some(cpus), .. } if cpus.is_empty() => {
                return Err(Error::Senseless("a thread needs at least one CPU".into()));
            }
            Action::SetCpus { target, cpus } => {
                let of = |cpus: &CpuSet| Want::Value(Setting::Cpus(cpus.clone()));
                (*target, cpus.as_ref().map_or(Want::Original(Kind::Cpus), of))
            }
            Action::SetSlice { slice_us: Some(0), .. } => {
                return Err(Error::Senseless("a slice of 0 is none; give 100 to 100000 us".into()));
            }
            Action::SetSlice { .. } if setting::default_slice_ns() == 0 => {
                return Err(Error::Missing {
                    what: "a slice for each thread".into(),
                    how: "it needs Linux 6.12 or later".into(),
                });
            }
            Action::SetSlice { target, slice_us } => {
                let cut =
                    |us: u32| Setting::SliceNs((u64::from(us) * 1000).clamp(SLICE_NS_MIN, SLICE_NS_MAX));
                (*target, slice_us.map_or(Want::Original(Kind::Slice), |us| Want::Value(cut(us))))
            }
            Action::SetClass { target, class } => {
                let of = |class| Want::Value(Setting::of_class(class));
                (*target, class.map_or(Want::Original(Kind::Policy), of))
            }
            Action::SetNice { target, nice } => (*target, Want::OnTop(*nice)),
            Action::SetWeight { weight, .. } => return self.weigh(program, *weight, threads),
            Action::SetQuota { cpus, .. } => return self.limit(program, *cpus, threads),
            Action::SetFrozen { frozen, .. } => return self.freeze(program, *frozen, threads),
            Action::MovePages { from, to, .. } => {
                let processes = processes(threads);
                processes.iter().try_for_each(|p| memory::migrate(p.tid, from, to))?;
                return Ok(!processes.is_empty());
            }
            Action::SpreadPages { spread: true, .. } => {
                let mut has_changed = false;
                for process in processes(threads) {
                    has_changed |= memory::spread(process.tid)?;
                }
                return Ok(has_changed);
            }
            // Near to its users is where the kernel puts new memory by itself, and what it balances NUMA for.
            Action::SpreadPages { spread: false, .. } | Action::SetTeam { .. } => return Ok(false),
        };
        let plans = match target {
            Target::Thread(thread) => self.plan(program, &[thread], std::slice::from_ref(&want))?,
            Target::Program(_) => self.plan(program, threads, std::slice::from_ref(&want))?,
        };
        self.announce(&plans)?;
        let has_changed = self.carry_out(&plans)?;
        if let Target::Program(_) = target {
            self.programs.entry(program).or_default().wanted.insert(want.kind(), want);
        }
        Ok(has_changed)
    }

    /// Brings threads that a program has newly started in line with what was set for the program. What they inherited from
    /// a creator for whom alone it was meant is taken from them.
    ///
    /// # Errors
    /// As [`Hands::apply`].
    pub fn adopt(&mut self, program: ProgramId, threads: &[ThreadId]) -> Result<(), Error> {
        let Some(standing) = self.programs.get(&program) else { return Ok(()) };
        let want = |kind: Kind| standing.wanted.get(&kind).cloned().unwrap_or(Want::Original(kind));
        // Whether a nice value is handed down goes with the nice value.
        let kinds = Setting::KINDS.into_iter().filter(|kind| *kind != Kind::ResetOnFork);
        let wants: Vec<Want> = kinds.map(want).collect();
        let (share, frozen) = (standing.share, standing.frozen);
        let plans = self.plan(program, threads, &wants)?;
        self.announce(&plans)?;
        self.carry_out(&plans)?;
        self.share(program, share, threads)?;
        // Those who are born into a frozen group are frozen; one may have come from elsewhere.
        if frozen { self.freeze(program, true, threads).map(drop) } else { Ok(()) }
    }

    /// Undoes everything. The journal goes once nothing is left to do.
    pub fn undo_all(&mut self) -> Restored {
        let (restored, complete) = undo(&self.ledger, self.patience);
        self.ledger = Ledger::default();
        self.programs.clear();
        if let Some(journal) = self.journal.take().filter(|_| complete) {
            // What remains then is a journal of changes that are undone: the next restore finds nothing to do.
            let _ = journal.remove();
        }
        restored
    }

    /// Undoes what was done to one program, and forgets it. What cannot be undone now is tried again in the end.
    pub fn let_go(&mut self, program: ProgramId) -> Restored {
        let Some(mut standing) = self.programs.remove(&program) else { return Restored::default() };
        // A process may have moved over to another program.
        standing.processes.retain(|p| !self.programs.values().any(|s| s.processes.contains(p)));
        let groups: Vec<&Path> = standing.groups.iter().chain(&standing.freezers).map(Group::path).collect();
        let part = self.ledger.part(&standing.processes, &groups);
        let (restored, complete) = undo(&part, self.patience);
        if let Some(journal) = self.journal.as_mut().filter(|_| complete) {
            self.ledger.remove(&part);
            // Not worth failing for: the longer one tells of changes that are undone, and nothing is done twice.
            let _ = journal.rewrite(&self.ledger.records());
        }
        restored
    }

    /// What has to change, and the records that announce it.
    fn plan(&mut self, program: ProgramId, threads: &[ThreadId], wants: &[Want]) -> Result<Vec<Plan>, Error> {
        let standing = self.programs.entry(program).or_default();
        let mut plans = Vec::new();
        for &thread in threads {
            let process = self.ledger.process(thread).or_else(|| process_of(thread.tid));
            let Some(process) = process.filter(|_| is_same(thread)) else { continue };
            standing.processes.insert(process);
            let plan = |want: &Want| plan_one(&self.ledger, &standing.processes, thread, process, want);
            for want in wants {
                let planned = plan(want)?;
                let (Want::OnTop(more), Some(nice)) = (want, &planned) else {
                    plans.extend(planned);
                    continue;
                };
                // A raise is for this thread alone: who is started may leave its parents before anybody has seen it, and would
                // keep the raise for good. Only where this can be taken back as well.
                let is_raise = *more < 0 && nice.to.is_raised() && setting::is_privileged();
                let (first, second) = match is_raise {
                    true => (plan(&Want::Value(Setting::ResetOnFork(true)))?, planned),
                    false => (planned, plan(&Want::Original(Kind::ResetOnFork))?),
                };
                plans.extend(first.into_iter().chain(second));
            }
        }
        Ok(plans)
    }

    /// Writes down what will be done.
    fn announce(&mut self, plans: &[Plan]) -> Result<(), Error> {
        let records: Vec<Record> =
            plans.iter().flat_map(|p| &p.records).map(|s| Record::Set(s.clone())).collect();
        self.write_ahead(records)
    }

    fn write_ahead(&mut self, records: Vec<Record>) -> Result<(), Error> {
        if records.is_empty() {
            return Ok(());
        }
        self.journal()?.announce(&records)?;
        records.iter().for_each(|r| self.ledger.note(r));
        Ok(())
    }

    fn journal(&mut self) -> Result<&mut Journal, Error> {
        match &mut self.journal {
            Some(journal) => Ok(journal),
            none => Ok(none.insert(Journal::create(&self.dir)?)),
        }
    }

    /// Does what was announced, all or nothing, and tells whether anything has changed by it.
    fn carry_out(&mut self, plans: &[Plan]) -> Result<bool, Error> {
        let mut took = Vec::new();
        let mut has_changed = false;
        for (i, plan) in plans.iter().enumerate().filter(|(_, p)| p.from != p.to) {
            match change(plan.thread, &plan.to) {
                Ok(Some(value)) => {
                    has_changed |= value != plan.from;
                    if value != plan.to {
                        let ThreadId { tid, start_ticks: start } = plan.thread;
                        took.push(Record::Took { tid, start, value });
                    }
                }
                Ok(None) => {}
                Err(e) => {
                    self.take_back(&plans[..i], &plans[i..])?;
                    return Err(explain(plan, e));
                }
            }
        }
        let Some(journal) = self.journal.as_mut().filter(|_| !plans.is_empty()) else {
            return Ok(has_changed);
        };
        took.push(Record::Done);
        took.iter().for_each(|r| self.ledger.note(r));
        // Not worth failing for: it only tells what can also be found out, if less exactly.
        let _ = journal.write(&took);
        self.shorten();
        Ok(has_changed)
    }

    /// Keeps the journal from growing without end.
    fn shorten(&mut self) {
        let Some(journal) = self.journal.as_mut().filter(|j| j.is_long()) else { return };
        self.ledger.retain(|e| is_same(e.thread));
        self.programs.values_mut().for_each(|s| s.processes.retain(|p| is_same(*p)));
        // Not worth failing for: the long one still holds.
        let _ = journal.rewrite(&self.ledger.records());
    }

    /// After a failure: makes of those that were changed what they were before, and forgets those that we have now never
    /// changed at all. Kept, they would pass for the creators of threads with whom we have nothing to do.
    fn take_back(&mut self, done: &[Plan], not_done: &[Plan]) -> Result<(), Error> {
        let is_back = |p: &&Plan| p.from == p.to || change(p.thread, &p.from).is_ok();
        let back: Vec<&Plan> = done.iter().rev().filter(is_back).chain(not_done).collect();
        let untouched = |e: &Entry| back.iter().any(|p| p.thread == e.thread && p.from == e.old);
        self.ledger.retain(|e| !untouched(e));
        back.iter().for_each(|p| self.ledger.took_back(p.thread, &p.from));
        self.ledger.note(&Record::Done);
        let records = self.ledger.records();
        self.journal()?.rewrite(&records)
    }

    fn weigh(&mut self, program: ProgramId, weight: u32, threads: &[ThreadId]) -> Result<bool, Error> {
        if !(1..=10_000).contains(&weight) {
            return Err(Error::Senseless(format!("a weight goes from 1 to 10000; {weight} does not")));
        }
        let share = self.programs.get(&program).map(|s| s.share).unwrap_or_default();
        self.share(program, Share { weight: Some(weight), ..share }, threads)
    }

    fn limit(&mut self, program: ProgramId, cpus: Option<f64>, threads: &[ThreadId]) -> Result<bool, Error> {
        if let Some(cpus) = cpus.filter(|c| !(c.is_finite() && *c > 0.0)) {
            return Err(Error::Senseless(format!("a limit of {cpus} CPUs is none; give a number above 0")));
        }
        let share = self.programs.get(&program).map(|s| s.share).unwrap_or_default();
        self.share(program, Share { cpus, ..share }, threads)
    }

    /// Puts a program under a weight and a limit, both by a control group. None is made for who is to have neither.
    fn share(&mut self, program: ProgramId, share: Share, threads: &[ThreadId]) -> Result<bool, Error> {
        let mut fresh = Vec::new();
        let result = match share == Share::default() {
            true => Ok(()),
            false => self.gather(program, Purpose::Share(share), threads, &mut fresh),
        };
        let standing = self.programs.entry(program).or_default();
        if let Err(e) = result {
            // What cannot be dissolved now is in the journal, and is dissolved in the end.
            dissolve_unless(&standing.freezers, &fresh);
            return Err(e);
        }
        let before = standing.share;
        let changed = standing.groups.iter().try_for_each(|g| share.change(g, before));
        if let Err(e) = changed {
            // All or nothing: best effort, for what failed just now may fail again.
            standing.groups.iter().for_each(|g| drop(before.change(g, share)));
            dissolve_unless(&standing.freezers, &fresh);
            return Err(e);
        }
        let has_changed = !fresh.is_empty() || (share != before && !standing.groups.is_empty());
        standing.share = share;
        standing.groups.extend(fresh);
        Ok(has_changed)
    }

    /// Freezes a program, or thaws it: by control groups, or where it can have none, by signals from then on.
    fn freeze(&mut self, program: ProgramId, frozen: bool, threads: &[ThreadId]) -> Result<bool, Error> {
        let mut no_groups = None;
        if !self.programs.entry(program).or_default().by_signals {
            let why = match self.freeze_group(program, frozen, threads) {
                Err(why) if frozen && !is_in_use(&why) => why,
                other => return other,
            };
            if self.programs.get(&program).is_some_and(|standing| !standing.freezers.is_empty()) {
                return Err(why);
            }
            no_groups = Some(why.to_string());
        }
        let has_changed = if frozen { self.stop(program, threads)? } else { self.go_on(program)? };
        self.signals_why = self.signals_why.take().or(no_groups);
        let standing = self.programs.entry(program).or_default();
        (standing.by_signals, standing.frozen) = (true, frozen);
        Ok(has_changed)
    }

    /// Why programs are stopped by signals rather than frozen by control groups, if any was.
    pub(crate) fn signals_why(&self) -> Option<&str> {
        self.signals_why.as_deref()
    }

    /// Freezes a program, or thaws it, by control groups, which are made when it is first frozen and stay until the end.
    fn freeze_group(
        &mut self,
        program: ProgramId,
        frozen: bool,
        threads: &[ThreadId],
    ) -> Result<bool, Error> {
        let mut fresh = Vec::new();
        let gathered = match frozen {
            true => self.gather(program, Purpose::Freeze, threads, &mut fresh),
            false => Ok(()),
        };
        let standing = self.programs.entry(program).or_default();
        if let Err(e) = gathered {
            dissolve_unless(&standing.groups, &fresh);
            return Err(e);
        }
        standing.freezers.extend(fresh);
        if let Err(e) = standing.freezers.iter().try_for_each(|g| g.freeze(frozen)) {
            // One half frozen would be waited for by the other.
            standing.freezers.iter().for_each(|g| drop(g.freeze(false)));
            standing.frozen = false;
            return Err(e);
        }
        let has_changed = !standing.freezers.is_empty() && standing.frozen != frozen;
        standing.frozen = frozen;
        Ok(has_changed)
    }

    /// Puts those processes of a program that are in no group of ours into one, which is made if need be.
    fn gather(
        &mut self,
        program: ProgramId,
        purpose: Purpose,
        threads: &[ThreadId],
        fresh: &mut Vec<Group>,
    ) -> Result<(), Error> {
        let processes = processes(threads);
        if processes.is_empty() {
            return Ok(());
        }
        // As unique as the journal is, so that nobody else dissolves it.
        let name = format!("{}-{}", self.journal()?.stem(), program.0);
        for process in processes {
            let known = self.programs.get(&program).map_or(&[][..], |s| match purpose {
                Purpose::Share(_) => &s.groups,
                Purpose::Freeze => &s.freezers,
            });
            let mut groups = known.iter().chain(fresh.iter());
            if groups.clone().any(|g| g.holds(process.tid)) {
                continue;
            }
            let place = match purpose {
                Purpose::Share(_) => Place::of(process.tid)?,
                Purpose::Freeze => Place::to_freeze(process.tid)?,
            };
            let Some(place) = place else { continue };
            let group = place.group(&name);
            if !groups.any(|g| *g == group) {
                let place = group.place();
                let _alone = match place.lock(self.patience) {
                    Err(e) if self.patience.is_zero() => return Err(e),
                    locked => locked.ok(),
                };
                let enable = place.to_enable().map(|path| Record::Enable { path: path.into() });
                let make = Record::Group { path: group.path().into() };
                self.write_ahead(enable.into_iter().chain([make]).collect())?;
                fresh.push(group.clone());
                group.make()?;
                if let Purpose::Share(share) = purpose {
                    share.change(&group, Share::default())?;
                }
            }
            if is_same(process) {
                group.take(process.tid)?;
            }
        }
        Ok(())
    }
}

impl Drop for Hands {
    fn drop(&mut self) {
        self.undo_all();
    }
}

/// Undoes what Corebeats that have ended left behind, after their journals in this directory (usually
/// [`state_dir`](crate::state_dir)). Those of Corebeats at work are left alone.
///
/// # Errors
/// Where the directory cannot be used: it is somebody else's, say. One that is not there holds no journals.
pub fn restore_all(dir: &Path) -> Result<Restored, Error> {
    let mut all = Restored::default();
    journal::for_each_left(dir, |path, left| match left {
        Left::Live => {
            all.live += 1;
            false
        }
        Left::Unusable(why) => {
            all.left
                .push(format!("the journal {} is not used: {why}; look at it and remove it", path.display()));
            false
        }
        Left::Ledger(ledger) => {
            let (restored, complete) = undo(&ledger, cgroup::LOCK_PATIENCE);
            all.undone.extend(restored.undone);
            all.left.extend(restored.left);
            complete
        }
    })?;
    Ok(all)
}

/// Undoes all that a ledger holds, the last first, and whether nothing is left to try again.
fn undo(ledger: &Ledger, patience: Duration) -> (Restored, bool) {
    let mut restored = Restored::default();
    let mut complete = true;
    let mut note = |tid: i32, outcome: Result<Option<Setting>, Kept>, to: &Setting| match outcome {
        Ok(Some(from)) => restored.undone.push(format!("thread {tid}: {from} -> {to}")),
        Ok(None) => {}
        Err(Kept::Theirs(now)) => restored.left.push(format!(
            "thread {tid} keeps {now}, not {to} as before: somebody else has changed it since"
        )),
        Err(Kept::Failed(e)) => {
            complete = false;
            restored.left.push(format!("thread {tid} could not be given {to} again: {e}"));
        }
    };
    for entry in ledger.entries().iter().rev() {
        note(entry.thread.tid, undo_entry(entry), &entry.old);
    }
    let mut tried = HashSet::new();
    for _ in 0..ROUNDS_MAX {
        let heirs = heirs(ledger);
        let fresh: Vec<_> =
            heirs.into_iter().filter(|(thread, entry)| tried.insert((*thread, entry.kind()))).collect();
        if fresh.is_empty() {
            break;
        }
        for (thread, entry) in fresh {
            note(thread.tid, undo_value(thread, entry, |now| ledger.hands_down(entry, now)), &entry.old);
        }
    }
    for process in ledger.stopped().iter().rev() {
        match crate::process::signal(*process, Signal::CONT) {
            Ok(true) => restored.undone.push(format!("process {}: continued", process.tid)),
            Ok(false) => {}
            Err(e) => {
                complete = false;
                restored.left.push(format!("process {} could not be continued: {e}", process.tid));
            }
        }
    }
    let parents: BTreeSet<&Path> = ledger.groups().iter().filter_map(|g| g.parent()).collect();
    // In the order of their names, as everybody takes them.
    let _alone: Vec<_> = parents.into_iter().filter_map(|p| cgroup::Lock::of(p, patience).ok()).collect();
    let groups = ledger.groups().iter().rev().map(|path| (path, cgroup::dissolve(path)));
    let enabled = ledger.enabled().iter().rev().map(|path| (path, cgroup::disable(path)));
    for (path, outcome) in groups.chain(enabled) {
        match outcome {
            Ok(true) => restored.undone.push(format!("control group {}: as before", path.display())),
            Ok(false) => {}
            Err(why) => {
                complete = false;
                restored.left.push(format!("the control group {} stays: {why}", path.display()));
            }
        }
    }
    (restored, complete)
}

/// Why a value was not put back.
enum Kept {
    /// Somebody else has set this one.
    Theirs(Setting),
    Failed(io::Error),
}

/// Puts back one property, and says what it was made from. `None` if there was nothing to do.
fn undo_entry(entry: &Entry) -> Result<Option<Setting>, Kept> {
    undo_value(entry.thread, entry, |now| entry.is_last(now))
}

fn undo_value(
    thread: ThreadId,
    entry: &Entry,
    is_ours: impl Fn(&Setting) -> bool,
) -> Result<Option<Setting>, Kept> {
    if !is_same(thread) {
        return Ok(None);
    }
    let now = match setting::read(thread.tid, entry.kind()) {
        Ok(Some(now)) => now,
        // It has become a real-time thread: that is more than a new value for what we set.
        Ok(None) => return Ok(None),
        Err(e) if has_ended(&e) => return Ok(None),
        Err(e) => return Err(Kept::Failed(e)),
    };
    if now == entry.old {
        return Ok(None);
    }
    if !is_ours(&now) {
        return Err(Kept::Theirs(now));
    }
    match change(thread, &entry.old) {
        // Its cpuset has changed and holds none of the CPUs of before.
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) && entry.kind() == Kind::Cpus => {
            setting::write_all_cpus(thread.tid).map_err(Kept::Failed)?;
        }
        other => {
            other.map_err(Kept::Failed)?;
        }
    }
    Ok(Some(now))
}

/// Threads that nobody has noted, but who have inherited what we set: born after the change, of somebody noted, in one of
/// the processes noted or their descendants, and still with a value of ours. Each with the entry that it comes from.
fn heirs(ledger: &Ledger) -> Vec<(ThreadId, &Entry)> {
    let kinds: HashSet<Kind> = ledger.entries().iter().map(Entry::kind).collect();
    let noted: HashSet<ThreadId> = ledger.entries().iter().map(|e| e.process).collect();
    let mut family: HashSet<i32> = family(noted.iter().copied()).into_iter().map(|p| p.tid).collect();
    family.extend(ledger.groups().iter().flat_map(|g| cgroup::members(g)));
    let mut heirs = Vec::new();
    for tid in family.into_iter().flat_map(threads) {
        let Some(thread) = thread_id(tid) else { continue };
        for &kind in kinds.iter().filter(|&&k| ledger.entry(thread, k).is_none()) {
            let Ok(Some(value)) = setting::read(tid, kind) else { continue };
            heirs.extend(ledger.creator(thread, &value, &noted).map(|entry| (thread, entry)));
        }
    }
    heirs
}

/// What has to change so that a thread gets what is wanted. `None` if nothing.
fn plan_one(
    ledger: &Ledger,
    processes: &HashSet<ThreadId>,
    thread: ThreadId,
    process: ThreadId,
    want: &Want,
) -> Result<Option<Plan>, Error> {
    let from = match setting::read(thread.tid, want.kind()) {
        Ok(Some(value)) => value,
        Ok(None) => return Ok(None),
        Err(e) if has_ended(&e) => return Ok(None),
        Err(source) => {
            return Err(Error::Refused { what: format!("look at thread {}", thread.tid), source });
        }
    };
    let entry = ledger.entry(thread, want.kind());
    let creator = if entry.is_none() { ledger.creator(thread, &from, processes) } else { None };
    // What somebody else has made of it since is its own now.
    let ours = entry.filter(|e| e.is_last(&from)).or(creator);
    let to = want.of(ours.map_or(&from, |e| &e.old));
    if entry.is_some_and(|e| e.is_settled(&to, &from)) {
        return Ok(None);
    }
    if !matches!(want, Want::Original(_)) && from != to {
        check_way_back(thread, &from, &to)?;
    }
    let set = |old: &Setting, new: &Setting| Set {
        tid: thread.tid,
        start: thread.start_ticks,
        pid: process.tid,
        pid_start: process.start_ticks,
        at: now_ticks(),
        old: old.clone(),
        new: new.clone(),
    };
    let inherited = creator.map(|e| Set { at: e.since, ..set(&e.old, &from) });
    let changed = (from != to).then(|| set(&from, &to));
    let records: Vec<Set> = inherited.into_iter().chain(changed).collect();
    Ok((!records.is_empty()).then_some(Plan { thread, from, to, records }))
}

/// Refuses what could be done but not be undone: without privileges, nice can be raised and `SCHED_IDLE` entered, and
/// there is no way back.
fn check_way_back(thread: ThreadId, from: &Setting, to: &Setting) -> Result<(), Error> {
    let idle = libc::SCHED_IDLE as u32;
    let nice_needed = match (from, to) {
        (Setting::Nice(from), Setting::Nice(to)) if to > from => Some(*from),
        (Setting::Policy(from), Setting::Policy(to)) if *to == idle && *from != idle => {
            match setting::read(thread.tid, Kind::Nice) {
                Ok(Some(Setting::Nice(nice))) => Some(nice),
                _ => None,
            }
        }
        _ => None,
    };
    if nice_needed.is_none_or(|nice| setting::may_lower_nice(thread.tid, nice)) {
        return Ok(());
    }
    Err(Error::Missing { what: format!("{to}, with a way back to {from},"), how: NICE_HOW.into() })
}

/// Takes away groups that were made in vain, but for those that are there for something else as well.
fn dissolve_unless(kept: &[Group], fresh: &[Group]) {
    let is_kept = |group: &Group| kept.iter().any(|k| k.path() == group.path());
    fresh.iter().filter(|g| !is_kept(g)).for_each(|g| drop(cgroup::dissolve(g.path())));
}

/// Whether an action failed only because somebody else is at work in the same control group.
fn is_in_use(error: &Error) -> bool {
    matches!(error, Error::Refused { source, .. } if source.kind() == io::ErrorKind::WouldBlock)
}

/// How to be allowed more CPU time than one has.
const NICE_HOW: &str = "it needs CAP_SYS_NICE, or 'ulimit -e' for the program";

/// Writes a property of a thread, and says what the kernel took. `None` if the thread has ended.
fn change(thread: ThreadId, to: &Setting) -> io::Result<Option<Setting>> {
    if !is_same(thread) {
        return Ok(None);
    }
    let written = match to {
        // Not just these, but wherever it may: also on CPUs that come later.
        Setting::Cpus(cpus) if is_online(cpus) => setting::write_all_cpus(thread.tid),
        _ => setting::write(thread.tid, to),
    };
    match written {
        Err(e) if has_ended(&e) => return Ok(None),
        // It has become a real-time thread in this moment.
        Err(e) if e.kind() == io::ErrorKind::Unsupported => return Ok(None),
        other => other?,
    }
    if !is_same(thread) {
        repair(thread.tid, to);
        return Ok(None);
    }
    match setting::read(thread.tid, to.kind()) {
        Err(e) if !has_ended(&e) => Err(e),
        other => Ok(other.ok().flatten()),
    }
}

/// A thread has ended while it was changed, and its number may have gone to another: gives that one what its process's
/// first thread has, or its parent, for that is what it began with in all likelihood.
fn repair(tid: i32, ours: &Setting) {
    let model = match process_of(tid) {
        Some(process) if process.tid != tid => Some(process.tid),
        _ => parent(tid),
    };
    let read = |tid: i32| setting::read(tid, ours.kind()).ok().flatten();
    if let (Some(model), Some(now)) = (model.and_then(read), read(tid))
        && now == *ours
        && model != now
    {
        let _ = setting::write(tid, &model);
    }
}

fn explain(plan: &Plan, source: io::Error) -> Error {
    let what = format!("give thread {} {}", plan.thread.tid, plan.to);
    let own = rustix::process::geteuid().as_raw();
    match source.raw_os_error() {
        // Its owner may not either.
        Some(libc::EPERM | libc::EACCES)
            if plan.to.kind() == Kind::Nice && !is_anothers(plan.thread.tid, own) =>
        {
            Error::Missing { what: plan.to.to_string(), how: NICE_HOW.into() }
        }
        Some(libc::EPERM | libc::EACCES) => Error::Denied { what, source },
        Some(libc::EINVAL) if plan.to.kind() == Kind::Cpus => Error::Senseless(format!(
            "thread {} may run on none of {}; it has {} now",
            plan.thread.tid, plan.to, plan.from
        )),
        _ => Error::Refused { what, source },
    }
}

fn has_ended(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ESRCH)
}

fn is_online(cpus: &corebeat_machine::CpuSet) -> bool {
    fs::read_to_string("/sys/devices/system/cpu/online").is_ok_and(|text| text.parse().as_ref() == Ok(cpus))
}

/// The processes of these threads, each once, those that have ended left out.
fn processes(threads: &[ThreadId]) -> HashSet<ThreadId> {
    threads.iter().filter(|t| is_same(**t)).filter_map(|t| process_of(t.tid)).collect()
}

/// The process that a thread belongs to, by its first thread.
fn process_of(tid: i32) -> Option<ThreadId> {
    thread_id(status_number(tid, "Tgid:")?)
}

fn status_number(tid: i32, field: &str) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix(field))?.trim().parse().ok()
}

/// Now, in the unit of start times: clock ticks since boot.
fn now_ticks() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let ticks = rustix::param::clock_ticks_per_second();
    now.tv_sec as u64 * ticks + now.tv_nsec as u64 * ticks / 1_000_000_000
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::restore_all;
    use corebeat_machine::{Class, CpuId, CpuSet};
    use std::sync::mpsc::channel;
    use std::sync::{Mutex, MutexGuard};

    const P: ProgramId = ProgramId(1);

    /// All tests are threads of one process, and so the threads of one pass for heirs of another's: one at a time.
    static ALONE: Mutex<()> = Mutex::new(());

    pub(crate) fn alone() -> MutexGuard<'static, ()> {
        ALONE.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A thread that does nothing until this is dropped.
    struct Sleeper {
        id: ThreadId,
        wake: Option<std::sync::mpsc::Sender<()>>,
        thread: Option<std::thread::JoinHandle<()>>,
    }

    impl Sleeper {
        fn new() -> Sleeper {
            let (tell, told) = channel();
            let (wake, sleep) = channel::<()>();
            let thread = std::thread::spawn(move || {
                tell.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
                let _ = sleep.recv();
            });
            let id = thread_id(told.recv().unwrap()).unwrap();
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

    /// What `kill -9` does to hands: nothing more runs, and the journal is nobody's.
    fn kill(mut hands: Hands) {
        hands.journal = None;
        hands.ledger = Ledger::default();
    }

    fn batch() -> Want {
        Want::Value(Setting::of_class(Class::Batch))
    }

    #[test]
    fn restore_after_a_kill_between_journal_and_change_has_nothing_to_do() {
        let _alone = alone();
        let (dir, sleeper) = (tempfile::tempdir().unwrap(), Sleeper::new());
        let before = sleeper.has();
        let mut hands = Hands::new(dir.path());
        let plans = hands.plan(P, &[sleeper.id], &[batch()]).unwrap();
        hands.announce(&plans).unwrap();
        assert_eq!(sleeper.has(), before);
        kill(hands);
        assert_eq!(restore_all(dir.path()).unwrap(), Restored::default());
        assert_eq!(sleeper.has(), before);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn restore_after_a_kill_amid_changes_undoes_those_that_were_made() {
        let _alone = alone();
        let (dir, sleepers) = (tempfile::tempdir().unwrap(), [Sleeper::new(), Sleeper::new()]);
        let before = sleepers[0].has();
        let mut hands = Hands::new(dir.path());
        // One of the CPUs is not there: the kernel takes what remains, and nobody is left to note that.
        let cpu = match &before[0] {
            Setting::Cpus(cpus) => cpus.iter().next().unwrap(),
            _ => unreachable!("the first kind is CPUs"),
        };
        let cpus: CpuSet = [cpu, CpuId(8000)].into_iter().collect();
        let ids = sleepers.each_ref().map(|s| s.id);
        let plans = hands.plan(P, &ids, &[Want::Value(Setting::Cpus(cpus.clone())), batch()]).unwrap();
        hands.announce(&plans).unwrap();
        for plan in plans.iter().filter(|p| p.thread == ids[0]) {
            change(plan.thread, &plan.to).unwrap();
        }
        assert_eq!(sleepers[0].has()[0], Setting::Cpus([cpu].into_iter().collect()));
        kill(hands);
        let restored = restore_all(dir.path()).unwrap();
        assert_eq!((restored.undone.len(), restored.left.len()), (2, 0), "{restored:?}");
        assert!(sleepers.iter().all(|s| s.has() == before));
    }

    #[test]
    fn let_go_undoes_one_program_and_leaves_the_other() {
        let _alone = alone();
        let (dir, sleepers) = (tempfile::tempdir().unwrap(), [Sleeper::new(), Sleeper::new()]);
        let before = sleepers[0].has();
        let mut hands = Hands::new(dir.path());
        // All tests are threads of one process, whose entries would go together: the second program has none.
        let batch = Action::SetClass { target: Target::Program(P), class: Some(Class::Batch) };
        hands.apply(&batch, P, &[sleepers[0].id]).unwrap();
        assert_eq!(hands.let_go(ProgramId(2)), Restored::default());
        assert_ne!(sleepers[0].has(), before);
        assert_eq!(hands.let_go(P).undone.len(), 1);
        assert_eq!(sleepers[0].has(), before);
        assert_eq!((hands.ledger.clone(), hands.programs.len()), (Ledger::default(), 0));
        // A program of the same number begins anew.
        hands.apply(&batch, P, &[sleepers[1].id]).unwrap();
        assert_ne!(sleepers[1].has(), before);
        kill(hands);
        assert_eq!(restore_all(dir.path()).unwrap().undone.len(), 1);
        assert!(sleepers.iter().all(|s| s.has() == before));
    }

    #[test]
    fn apply_of_what_the_kernel_cuts_is_settled_and_undone() {
        let _alone = alone();
        let (dir, sleeper) = (tempfile::tempdir().unwrap(), Sleeper::new());
        let before = sleeper.has();
        let cpus: CpuSet = [CpuId(0), CpuId(8000)].into_iter().collect();
        let action = Action::SetCpus { target: Target::Thread(sleeper.id), cpus: Some(cpus) };
        let mut hands = Hands::new(dir.path());
        hands.apply(&action, P, &[]).unwrap();
        assert_eq!(sleeper.has()[0], Setting::Cpus([CpuId(0)].into_iter().collect()));
        let again = Want::Value(Setting::Cpus([CpuId(0), CpuId(8000)].into_iter().collect()));
        assert!(hands.plan(P, &[sleeper.id], &[again]).unwrap().is_empty());
        kill(hands);
        assert_eq!(restore_all(dir.path()).unwrap().undone.len(), 1);
        assert_eq!(sleeper.has(), before);
    }

    #[test]
    fn failing_action_takes_back_what_it_had_done() {
        let _alone = alone();
        let (dir, sleepers) = (tempfile::tempdir().unwrap(), [Sleeper::new(), Sleeper::new()]);
        let before = sleepers[0].has();
        let ids = sleepers.each_ref().map(|s| s.id);
        let mut hands = Hands::new(dir.path());
        hands
            .apply(&Action::SetClass { target: Target::Program(P), class: Some(Class::Batch) }, P, &ids)
            .unwrap();
        let mut plans = hands.plan(P, &ids, &[Want::Value(Setting::of_class(Class::Normal))]).unwrap();
        // No CPU of these is there.
        let nowhere: CpuSet = [CpuId(8000)].into_iter().collect();
        plans[1].to = Setting::Cpus(nowhere);
        hands.announce(&plans).unwrap();
        assert!(matches!(hands.carry_out(&plans), Err(Error::Senseless(_))));
        assert!(sleepers.iter().all(|s| s.has()[2] == Setting::of_class(Class::Batch)));
        let again = hands.plan(P, &ids, &[Want::Value(Setting::of_class(Class::Normal))]).unwrap();
        assert_eq!(again.len(), 2, "what was taken back may be asked for again");
        hands.undo_all();
        assert!(sleepers.iter().all(|s| s.has() == before));
    }

    #[test]
    fn action_that_failed_at_once_leaves_no_trace() {
        let _alone = alone();
        let (dir, sleeper) = (tempfile::tempdir().unwrap(), Sleeper::new());
        let nowhere: CpuSet = [CpuId(8000)].into_iter().collect();
        let action = Action::SetCpus { target: Target::Thread(sleeper.id), cpus: Some(nowhere) };
        let mut hands = Hands::new(dir.path());
        hands.apply(&action, P, &[]).unwrap_err();
        assert!(hands.ledger.entries().is_empty());
        kill(hands);
        assert_eq!(restore_all(dir.path()).unwrap(), Restored::default());
    }

    #[test]
    fn journal_stays_short_and_sound_over_many_changes() {
        let _alone = alone();
        let (dir, sleepers) = (tempfile::tempdir().unwrap(), [Sleeper::new(), Sleeper::new()]);
        let before = sleepers[0].has();
        let ids = sleepers.each_ref().map(|s| s.id);
        let mut hands = Hands::new(dir.path());
        for class in [Class::Batch, Class::Normal].into_iter().cycle().take(101) {
            let plans = hands.plan(P, &ids, &[Want::Value(Setting::of_class(class))]).unwrap();
            // Many lines, without waiting for the disk each time.
            let lines = plans.iter().flat_map(|p| &p.records).cycle().take(100);
            let records: Vec<_> = lines.map(|s| Record::Set(s.clone())).collect();
            hands.announce(&plans).unwrap();
            hands.journal.as_mut().unwrap().write(&records).unwrap();
            hands.carry_out(&plans).unwrap();
        }
        let files: Vec<_> = fs::read_dir(dir.path()).unwrap().flatten().collect();
        assert_eq!(files.len(), 1);
        assert!(files[0].metadata().unwrap().len() < 1 << 20);
        assert_eq!(restore_all(dir.path()).unwrap().live, 1, "a rewritten journal is still locked");
        kill(hands);
        assert_eq!(restore_all(dir.path()).unwrap().undone.len(), 2);
        assert!(sleepers.iter().all(|s| s.has() == before));
    }

    #[test]
    fn stranger_who_got_a_recycled_number_is_given_what_its_process_has() {
        let _alone = alone();
        let sleeper = Sleeper::new();
        let before = sleeper.has();
        let ours = Setting::of_class(Class::Batch);
        setting::write(sleeper.id.tid, &ours).unwrap();
        repair(sleeper.id.tid, &Setting::of_class(Class::Idle));
        assert_eq!(sleeper.has()[2], ours, "not our doing");
        repair(sleeper.id.tid, &ours);
        assert_eq!(sleeper.has(), before);
    }

    #[test]
    fn real_time_thread_is_left_alone() {
        let _alone = alone();
        let (dir, sleeper) = (tempfile::tempdir().unwrap(), Sleeper::new());
        let param = libc::sched_param { sched_priority: 1 };
        // SAFETY: a plain system call on a struct that lives through it. The thread sleeps: it takes no CPU from anybody.
        if unsafe { libc::sched_setscheduler(sleeper.id.tid, libc::SCHED_RR, &param) } != 0 {
            return; // without privileges there are none
        }
        let mut hands = Hands::new(dir.path());
        let target = Target::Thread(sleeper.id);
        hands.apply(&Action::SetClass { target, class: Some(Class::Batch) }, P, &[]).unwrap();
        hands.apply(&Action::SetNice { target, nice: 3 }, P, &[]).unwrap();
        // SAFETY: a plain system call.
        assert_eq!(unsafe { libc::sched_getscheduler(sleeper.id.tid) }, libc::SCHED_RR);
    }
}
