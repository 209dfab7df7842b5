//! Planned changes of properties of threads: which values to set, and how to set them.

use super::setting::{self, Kind, NICE_MAX, NICE_MIN, Setting};
use super::{Actuator, now_ticks};
use crate::Error;
use crate::journal::{Ledger, Set};
use crate::process::{is_of_other_user, is_same, parent, process_of};
use corebeat_machine::{CpuSet, ProgramId, ThreadId};
use std::collections::HashSet;
use std::fs;
use std::io;

/// Desired value of a property.
#[derive(Debug, Clone)]
pub(super) enum Desired {
    Value(Setting),
    /// A nice value relative to that of the thread.
    Relative(i8),
    /// The value before the first change.
    Original(Kind),
}

impl Desired {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Desired::Value(value) => value.kind(),
            Desired::Relative(_) => Kind::Nice,
            Desired::Original(kind) => *kind,
        }
    }

    /// Returns the value to set for a thread with this original value.
    fn of(&self, own: &Setting) -> Setting {
        match (self, own) {
            (Desired::Value(value), _) => value.clone(),
            (Desired::Relative(more), Setting::Nice(own)) => {
                Setting::Nice(own.saturating_add((*more).into()).clamp(NICE_MIN, NICE_MAX))
            }
            (Desired::Relative(_) | Desired::Original(_), own) => own.clone(),
        }
    }
}

/// Planned change of one property of one thread.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) thread: ThreadId,
    pub(super) from: Setting,
    pub(super) to: Setting,
    pub(super) records: Vec<Set>,
}

impl Actuator {
    /// Returns the changes to make, with their journal records.
    pub(super) fn plan(
        &mut self,
        program: ProgramId,
        threads: &[ThreadId],
        desired: &[Desired],
    ) -> Result<Vec<Plan>, Error> {
        let mut plans = Vec::new();
        for &thread in threads {
            let Some(process) = self.process_of(thread)? else { continue };
            let state = self.programs.entry(program).or_default();
            state.processes.insert(process);
            let plan =
                |want: &Desired| plan_one(&self.ledger, &state.processes, thread, process, want);
            for want in desired {
                let planned = plan(want)?;
                let (Desired::Relative(more), Some(nice)) = (want, &planned) else {
                    plans.extend(planned);
                    continue;
                };
                // New threads must not inherit a raise: a process that leaves its parents before
                // an observation finds it would keep the raise forever. Reset-on-fork is set only
                // if it can be cleared again.
                let is_raise = *more < 0 && nice.to.is_raised() && setting::is_privileged();
                let (first, second) = match is_raise {
                    true => (plan(&Desired::Value(Setting::ResetOnFork(true)))?, planned),
                    false => (planned, plan(&Desired::Original(Kind::ResetOnFork))?),
                };
                plans.extend(first.into_iter().chain(second));
            }
        }
        Ok(plans)
    }

    /// Returns the process of a thread; `None` if the thread has ended.
    fn process_of(&self, thread: ThreadId) -> Result<Option<ThreadId>, Error> {
        let process = match self.ledger.process(thread) {
            Some(process) => Ok(Some(process)),
            None => process_of(thread.tid),
        };
        let verified =
            process.and_then(|process| Ok(if is_same(thread)? { process } else { None }));
        verified.map_err(|e| Error::of_call(format!("verify thread {}", thread.tid), e))
    }
}

/// Returns the change that gives a thread a desired value; `None` if it has that value.
fn plan_one(
    ledger: &Ledger,
    processes: &HashSet<ThreadId>,
    thread: ThreadId,
    process: ThreadId,
    want: &Desired,
) -> Result<Option<Plan>, Error> {
    let from = match setting::read(thread.tid, want.kind()) {
        Ok(Some(value)) => value,
        Ok(None) => return Ok(None),
        Err(e) if has_ended(&e) => return Ok(None),
        Err(e) => {
            return Err(Error::of_call(format!("read the settings of thread {}", thread.tid), e));
        }
    };
    let entry = ledger.entry(thread, want.kind());
    let creator = if entry.is_none() { ledger.creator(thread, &from, processes) } else { None };
    // A value that another program has set since is the thread's own value now.
    let own = entry.filter(|e| e.is_last(&from)).or(creator);
    let mut to = want.of(own.map_or(&from, |e| &e.old));
    // The slice of another Corebeat, which has another mark, is in effect already.
    if own.is_none() && from.has_effect_of(&to) {
        to = from.clone();
    }
    // The user has chosen the class idle, so that the thread takes no time from other threads.
    if own.is_none() && from.is_idle() {
        return Ok(None);
    }
    if want.kind() != Kind::Cpus && is_of_another_scheduler(ledger, processes, thread) {
        return Ok(None);
    }
    if entry.is_some_and(|e| e.is_settled(&to, &from)) {
        return Ok(None);
    }
    if !matches!(want, Desired::Original(_)) && from != to {
        check_restorable(thread, &from, &to)?;
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

/// Returns whether the user has chosen a scheduler in the kernel for a thread. Of such a thread,
/// Corebeat changes only the CPUs.
fn is_of_another_scheduler(
    ledger: &Ledger,
    processes: &HashSet<ThreadId>,
    thread: ThreadId,
) -> bool {
    let Ok(Some(policy)) = setting::read(thread.tid, Kind::Policy) else { return false };
    let is_ours = || {
        let entry = ledger.entry(thread, Kind::Policy);
        entry.is_some_and(|e| e.is_last(&policy))
            || ledger.creator(thread, &policy, processes).is_some()
    };
    policy.is_ext() && !is_ours()
}

/// Refuses changes that cannot be undone: an unprivileged process can increase a nice value or
/// enter `SCHED_IDLE`, but cannot go back.
fn check_restorable(thread: ThreadId, from: &Setting, to: &Setting) -> Result<(), Error> {
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
    Err(Error::Unsupported {
        what: format!("{to}, with the way back to {from},"),
        how: NICE_HINT.into(),
    })
}

/// How to permit lower nice values.
const NICE_HINT: &str = "it requires CAP_SYS_NICE, or 'ulimit -e' for the program";

/// Writes a property of a thread, and returns the value that the kernel set. `None` if the thread
/// has ended.
pub(super) fn change(thread: ThreadId, to: &Setting) -> io::Result<Option<Setting>> {
    if !is_same(thread)? {
        return Ok(None);
    }
    let written = match to {
        // All CPUs includes those that go online later.
        Setting::Cpus(cpus) if is_online(cpus) => setting::write_all_cpus(thread.tid),
        _ => setting::write(thread.tid, to),
    };
    match written {
        Err(e) if has_ended(&e) => return Ok(None),
        // The thread has just become a real-time thread.
        Err(e) if e.kind() == io::ErrorKind::Unsupported => return Ok(None),
        other => other?,
    }
    if !is_same(thread)? {
        repair(thread.tid, to);
        return Ok(None);
    }
    match setting::read(thread.tid, to.kind()) {
        Err(e) if !has_ended(&e) => Err(e),
        other => Ok(other.ok().flatten()),
    }
}

/// Repairs a change that hit another thread: the intended thread ended during the change, and its
/// number may have been reused. The other thread gets the value of the first thread of its process
/// or of its parent process, which is most likely its original value.
pub(crate) fn repair(tid: i32, own: &Setting) {
    let model = match process_of(tid) {
        Ok(Some(process)) if process.tid != tid => Some(process.tid),
        _ => parent(tid),
    };
    let read = |tid: i32| setting::read(tid, own.kind()).ok().flatten();
    if let (Some(model), Some(now)) = (model.and_then(read), read(tid))
        && now == *own
        && model != now
    {
        let _ = setting::write(tid, &model);
    }
}

/// Returns the error of a change that the kernel refused.
pub(super) fn describe(plan: &Plan, source: io::Error) -> Error {
    let what = format!("set {} for thread {}", plan.to, plan.thread.tid);
    let own = rustix::process::geteuid().as_raw();
    match source.raw_os_error() {
        // The owner of the thread has no permission either.
        Some(libc::EPERM | libc::EACCES)
            if plan.to.kind() == Kind::Nice && !is_of_other_user(plan.thread.tid, own) =>
        {
            Error::Unsupported { what: plan.to.to_string(), how: NICE_HINT.into() }
        }
        Some(libc::EINVAL) if plan.to.kind() == Kind::Cpus => Error::InvalidArgument(format!(
            "thread {} cannot run on any of {}: the thread is restricted to {}",
            plan.thread.tid, plan.to, plan.from
        )),
        _ => Error::of_call(what, source),
    }
}

pub(super) fn has_ended(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ESRCH)
}

fn is_online(cpus: &CpuSet) -> bool {
    fs::read_to_string("/sys/devices/system/cpu/online")
        .is_ok_and(|text| text.parse().as_ref() == Ok(cpus))
}
