//! Self-test of the suite: a small machine that conforms, and one deviation at a time.

use crate::{ProgramSettings, ProgramSpec, Settings, Subject, failures};
use corebeat_machine::{
    Action, Class, CpuSet, Effect, Machine, ProgramId, ProgramSample, Restored, Snapshot, Target,
    ThreadId, ThreadSample, TimeShares, Topology,
};

/// A deviation from the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    AbsoluteNice,
    UnclampedNice,
    NoneIsDefault,
    NoInheritance,
    InheritanceAfterRestore,
    RepeatedActionCounts,
    InvalidValueAccepted,
    ChangeBeforeError,
    UnknownTargetIgnored,
    EndedTargetIsError,
    RestoreForgetsNice,
    RestoreLeavesQuota,
    RestoreLeavesTeam,
    ThreadActionChangesAll,
    OneThreadCounted,
    FreezeIgnored,
}

const FAULTS: [Fault; 16] = [
    Fault::AbsoluteNice,
    Fault::UnclampedNice,
    Fault::NoneIsDefault,
    Fault::NoInheritance,
    Fault::InheritanceAfterRestore,
    Fault::RepeatedActionCounts,
    Fault::InvalidValueAccepted,
    Fault::ChangeBeforeError,
    Fault::UnknownTargetIgnored,
    Fault::EndedTargetIsError,
    Fault::RestoreForgetsNice,
    Fault::RestoreLeavesQuota,
    Fault::RestoreLeavesTeam,
    Fault::ThreadActionChangesAll,
    Fault::OneThreadCounted,
    Fault::FreezeIgnored,
];

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refusal(String);

/// A machine with one program. Threads are numbered from 1.
struct FakeMachine {
    fault: Fault,
    topology: Topology,
    own: Settings,
    threads: Vec<Settings>,
    inherited: Settings,
    program: ProgramSettings,
    team: Option<u32>,
}

impl FakeMachine {
    fn range(&self, target: Target) -> Result<std::ops::Range<usize>, Refusal> {
        let count = self.threads.len();
        match target {
            Target::Program(ProgramId(0)) => Ok(0..count),
            Target::Thread(ThreadId { start_ticks: 0, .. })
                if self.fault == Fault::ThreadActionChangesAll =>
            {
                Ok(0..count)
            }
            Target::Thread(ThreadId { tid, start_ticks: 0 }) => {
                let at = (tid as usize - 1).min(count);
                Ok(at..(at + 1).min(count))
            }
            _ if self.fault == Fault::UnknownTargetIgnored => Ok(0..0),
            _ => Err(Refusal(format!("{target:?} is unknown"))),
        }
    }

    /// Returns the settings that an action leads to.
    fn changed(&self, action: &Action, now: &Settings) -> Settings {
        let (own, mut new) = (&self.own, now.clone());
        match action {
            Action::SetCpus { cpus, .. } => new.cpus = cpus.as_ref().unwrap_or(&own.cpus).clone(),
            Action::SetClass { class, .. } => {
                let default = self.fault == Fault::NoneIsDefault;
                new.class = class.unwrap_or(if default { Class::Idle } else { own.class });
            }
            Action::SetSlice { slice_us, .. } => {
                new.slice_ns = slice_us.map(|us| u64::from(us) * 1_000).or(own.slice_ns);
            }
            Action::SetNice { nice, .. } => {
                let base = if self.fault == Fault::AbsoluteNice { 0 } else { own.nice };
                let sum = base.saturating_add(*nice);
                let is_clamped = self.fault != Fault::UnclampedNice;
                new.nice = if is_clamped { sum.clamp(-20, 19) } else { sum };
            }
            _ => {}
        }
        new
    }

    fn act_on_threads(&mut self, action: &Action, target: Target) -> Result<Effect, Refusal> {
        let mut changed = 0;
        for i in self.range(target)? {
            let new = self.changed(action, &self.threads[i]);
            let counts = new != self.threads[i] || self.fault == Fault::RepeatedActionCounts;
            changed += u32::from(counts);
            self.threads[i] = new;
        }
        if self.fault == Fault::OneThreadCounted {
            changed = changed.min(1);
        }
        if let Target::Program(_) = target {
            self.inherited = self.changed(action, &self.inherited);
        }
        Ok(Effect { changed })
    }

    fn act_on_program(&mut self, action: &Action) -> Result<Effect, Refusal> {
        let id = action.program().unwrap_or(ProgramId(0));
        self.range(Target::Program(id))?;
        if id != ProgramId(0) || self.threads.is_empty() {
            return Ok(Effect::default());
        }
        let before = (self.program, self.team);
        match *action {
            Action::SetWeight { weight, .. } => self.program.weight = Some(weight),
            Action::SetQuota { cpus, .. } => self.program.quota = cpus,
            Action::SetFrozen { frozen, .. } if self.fault != Fault::FreezeIgnored => {
                self.program.frozen = frozen;
            }
            Action::SetTeam { size, .. } => self.team = size,
            _ => {}
        }
        Ok(Effect { changed: (before != (self.program, self.team)).into() })
    }
}

impl Machine for FakeMachine {
    type Error = Refusal;

    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn observe(&mut self) -> Result<Snapshot, Refusal> {
        let sample = |i: usize| ThreadSample {
            id: ThreadId { tid: i as i32 + 1, start_ticks: 0 },
            pid: 1,
            name: "fake".into(),
            cpu: None,
            span_ns: 0,
            shares: TimeShares::default(),
            counters: Default::default(),
        };
        let program = ProgramSample {
            id: ProgramId(0),
            name: "fake".into(),
            threads: (0..self.threads.len()).map(sample).collect(),
            io_bytes: None,
            team: None,
            progress: None,
        };
        Ok(Snapshot { programs: vec![program], ..Snapshot::default() })
    }

    fn act(&mut self, action: &Action) -> Result<Effect, Refusal> {
        let is_absent = |c: &CpuSet| c.iter().all(|cpu| cpu.0 >= 2);
        let valid = match action {
            Action::SetCpus { cpus: Some(cpus), .. } if is_absent(cpus) => {
                Err(Refusal("the machine has none of these CPUs".into()))
            }
            _ => action.validate().map_err(|e| Refusal(e.to_string())),
        };
        if self.fault == Fault::ChangeBeforeError && valid.is_err() {
            self.threads.iter_mut().for_each(|t| t.class = Class::Idle);
        }
        match (valid, self.fault) {
            (Err(_), Fault::InvalidValueAccepted) => return Ok(Effect::default()),
            (valid, _) => valid?,
        }
        if self.fault == Fault::EndedTargetIsError && self.threads.is_empty() {
            return Err(Refusal("the target has ended".into()));
        }
        match *action {
            Action::SetCpus { target, .. }
            | Action::SetClass { target, .. }
            | Action::SetSlice { target, .. }
            | Action::SetNice { target, .. } => self.act_on_threads(action, target),
            _ => self.act_on_program(action),
        }
    }

    fn restore(&mut self) -> Restored {
        let has_changed = self.threads.iter().any(|t| *t != self.own)
            || (self.program, self.team) != Default::default();
        for thread in &mut self.threads {
            let nice = thread.nice;
            *thread = self.own.clone();
            if self.fault == Fault::RestoreForgetsNice {
                thread.nice = nice;
            }
        }
        let quota = self.program.quota.filter(|_| self.fault == Fault::RestoreLeavesQuota);
        self.program = ProgramSettings { quota, ..ProgramSettings::default() };
        if self.fault != Fault::RestoreLeavesTeam {
            self.team = None;
        }
        if self.fault != Fault::InheritanceAfterRestore {
            self.inherited = self.own.clone();
        }
        let undone = has_changed.then(|| "restored".to_owned()).into_iter().collect();
        Restored { undone, left: vec![] }
    }
}

/// The fake machine as a subject.
struct FakeSubject(FakeMachine);

impl FakeSubject {
    fn new(fault: Fault, specs: &[ProgramSpec]) -> Self {
        let topology = Topology::flat(2);
        let own = Settings {
            cpus: topology.cpu_set(),
            class: Class::Normal,
            nice: specs[0].nice,
            slice_ns: Some(3_000_000),
        };
        FakeSubject(FakeMachine {
            fault,
            topology,
            threads: vec![own.clone(); specs[0].threads as usize],
            inherited: own.clone(),
            own,
            program: ProgramSettings::default(),
            team: None,
        })
    }
}

impl Subject for FakeSubject {
    type Machine = FakeMachine;

    fn machine(&mut self) -> &mut FakeMachine {
        &mut self.0
    }

    fn program(&self, _: usize) -> ProgramId {
        ProgramId(0)
    }

    fn unknown_thread(&self) -> ThreadId {
        ThreadId { tid: 77, start_ticks: 1 }
    }

    fn wait(&mut self) {}

    fn grow(&mut self, _: usize) {
        let inherits = self.0.fault != Fault::NoInheritance;
        let new = if inherits { &self.0.inherited } else { &self.0.own };
        self.0.threads.push(new.clone());
    }

    fn end(&mut self, _: usize) {
        self.0.threads.clear();
    }

    fn own_settings(&mut self, _: usize) -> Settings {
        self.0.own.clone()
    }

    fn settings(&mut self, thread: ThreadId) -> Settings {
        self.0.threads[thread.tid as usize - 1].clone()
    }

    fn program_settings(&mut self, _: usize) -> ProgramSettings {
        self.0.program
    }

    fn team_size(&mut self, _: usize) -> Option<u32> {
        self.0.team
    }

    fn is_unsupported(&self, _: &Refusal) -> bool {
        false
    }
}

#[test]
fn faultless_machine_conforms() {
    let failures = failures(|specs| FakeSubject::new(Fault::None, specs));
    assert_eq!(failures, Vec::<String>::new());
}

#[test]
fn every_planted_deviation_is_detected() {
    for fault in FAULTS {
        let failures = failures(|specs| FakeSubject::new(fault, specs));
        assert!(!failures.is_empty(), "{fault:?} is not detected");
    }
}
