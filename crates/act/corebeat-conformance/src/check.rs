//! The checks of the suite.

use crate::{ProgramSettings, ProgramSpec, Settings, Subject};
use corebeat_machine::{
    Action, Class, CpuId, CpuSet, Effect, Machine, NodeId, ProgramId, Target, ThreadId,
};
use std::fmt::Debug;

/// Number of observations within which a thread that starts or ends must be detected.
const OBSERVATIONS_MAX: usize = 500;

/// Number of a CPU that no machine under test has.
const ABSENT_CPU: CpuId = CpuId(8_191);

/// A check: its name, the program that it needs, and its steps.
struct Check<S: Subject> {
    name: &'static str,
    spec: ProgramSpec,
    steps: fn(&mut Case<S>),
}

/// One run of a check, with one program at position 0.
struct Case<S: Subject> {
    subject: S,
    spec: ProgramSpec,
    program: ProgramId,
    failures: Vec<String>,
}

/// Runs all checks, each with a new subject, and returns one line for each deviation.
pub fn failures<S: Subject>(start: impl Fn(&[ProgramSpec]) -> S) -> Vec<String> {
    let mut all = Vec::new();
    for check in checks::<S>() {
        let mut subject = start(&[check.spec]);
        let program = subject.program(0);
        if !check.spec.grows {
            let count = check.spec.threads as usize;
            wait_for_threads(&mut subject, program, |now| now >= count);
        }
        let mut case = Case { subject, spec: check.spec, program, failures: Vec::new() };
        (check.steps)(&mut case);
        all.extend(case.failures.into_iter().map(|why| format!("{}: {why}", check.name)));
    }
    all
}

fn checks<S: Subject>() -> Vec<Check<S>> {
    let plain = ProgramSpec::default();
    let nice = ProgramSpec { nice: 5, ..plain };
    let grows = ProgramSpec { grows: true, nice: 2, ..plain };
    let team = ProgramSpec { has_team: true, ..plain };
    let check = |name, spec, steps| Check { name, spec, steps };
    vec![
        check("None restores the own value", nice, none_restores_own_value),
        check("None without a change has no effect", nice, none_without_change),
        check("nice is relative and clamped", nice, nice_is_relative),
        check("an action on a thread changes that thread alone", nice, thread_alone),
        check("a repeated action has no effect", nice, repeated_action),
        check("settings of a whole program", plain, program_settings),
        check("an invalid value is refused", plain, invalid_values),
        check("an unknown target is an error", plain, unknown_targets),
        check("an ended target is no error", plain, ended_targets),
        check("later threads inherit the settings", grows, later_threads_inherit),
        check("later threads inherit nothing after restore", grows, restore_ends_inheritance),
        check("restore undoes everything", nice, restore_undoes_everything),
        check("size of a team", team, team_size),
    ]
}

/// Observes until the number of threads of the program satisfies `enough`, and returns the
/// threads.
fn wait_for_threads<S: Subject>(
    subject: &mut S,
    program: ProgramId,
    enough: impl Fn(usize) -> bool,
) -> Vec<ThreadId> {
    for _ in 0..OBSERVATIONS_MAX {
        let snapshot = subject.machine().observe().unwrap_or_else(|e| panic!("{e}"));
        let programs = snapshot.programs.into_iter().filter(|p| p.id == program);
        let threads: Vec<ThreadId> = programs.flat_map(|p| p.threads).map(|t| t.id).collect();
        if enough(threads.len()) {
            return threads;
        }
        subject.wait();
    }
    panic!("the threads of program {} do not start or end", program.0);
}

impl<S: Subject> Case<S> {
    fn all(&self) -> Target {
        Target::Program(self.program)
    }

    fn threads(&mut self) -> Vec<ThreadId> {
        wait_for_threads(&mut self.subject, self.program, |_| true)
    }

    fn settings(&mut self) -> Vec<Settings> {
        self.threads().into_iter().map(|t| self.subject.settings(t)).collect()
    }

    fn expect<T: PartialEq + Debug>(&mut self, what: &str, actual: T, expected: T) {
        if actual != expected {
            self.failures.push(format!("{what}: {actual:?}, expected {expected:?}"));
        }
    }

    /// Carries out an action. Returns `None` if the host does not support it.
    fn act(&mut self, action: &Action) -> Option<Effect> {
        match self.subject.machine().act(action) {
            Ok(effect) => Some(effect),
            Err(e) if self.subject.is_unsupported(&e) => None,
            Err(e) => {
                self.failures.push(format!("{action:?} fails: {e}"));
                None
            }
        }
    }

    /// Carries out an action and checks the number of changes. Returns whether the host supports
    /// the action.
    fn acts(&mut self, action: &Action, changed: u32) -> bool {
        let effect = self.act(action);
        if let Some(effect) = effect {
            self.expect(&format!("changes by {action:?}"), effect.changed, changed);
        }
        effect.is_some()
    }

    /// Checks that an action fails with one line and changes nothing.
    fn refuses(&mut self, action: &Action) {
        let before = (self.settings(), self.subject.program_settings(0));
        match self.subject.machine().act(action) {
            Ok(effect) => self.failures.push(format!("{action:?} succeeds with {effect:?}")),
            Err(e) => {
                let text = e.to_string();
                let is_line = !text.is_empty() && !text.contains('\n');
                self.expect(&format!("the error of {action:?} is one line"), is_line, true);
            }
        }
        let after = (self.settings(), self.subject.program_settings(0));
        self.expect(&format!("settings after the refused {action:?}"), after, before);
    }

    /// Returns a set of one CPU of the machine.
    fn one_cpu(&mut self) -> CpuSet {
        self.subject.machine().topology().cpu_set().iter().take(1).collect()
    }

    /// Returns one action for each setting of a thread, with the settings that it leads to.
    fn thread_actions(&mut self, target: Target, own: &Settings) -> Vec<(Action, Settings)> {
        let cpus = self.one_cpu();
        let own = || own.clone();
        let nice = own().nice.saturating_add(3);
        let mut actions = vec![
            (
                Action::SetClass { target, class: Some(Class::Batch) },
                Settings { class: Class::Batch, ..own() },
            ),
            (
                Action::SetSlice { target, slice_us: Some(7_000) },
                Settings { slice_ns: Some(7_000_000), ..own() },
            ),
            (Action::SetNice { target, nice: 3 }, Settings { nice, ..own() }),
        ];
        // Where only one CPU may be used, this action changes nothing.
        if own().cpus != cpus {
            let action = Action::SetCpus { target, cpus: Some(cpus.clone()) };
            actions.push((action, Settings { cpus, ..own() }));
        }
        actions
    }
}

/// Returns the action that restores a setting of a thread.
fn back(action: &Action) -> Action {
    let mut action = action.clone();
    match &mut action {
        Action::SetCpus { cpus, .. } => *cpus = None,
        Action::SetClass { class, .. } => *class = None,
        Action::SetSlice { slice_us, .. } => *slice_us = None,
        Action::SetNice { nice, .. } => *nice = 0,
        _ => {}
    }
    action
}

/// Returns actions for whole programs, other than those for memory and teams.
fn program_actions(program: ProgramId) -> Vec<Action> {
    vec![
        Action::SetWeight { program, weight: 300 },
        Action::SetQuota { program, cpus: Some(0.5) },
        Action::SetFrozen { program, frozen: true },
    ]
}

fn none_restores_own_value<S: Subject>(case: &mut Case<S>) {
    let before = case.settings();
    let (target, count) = (case.all(), case.spec.threads);
    for (action, after) in case.thread_actions(target, &before[0]) {
        if !case.acts(&action, count) {
            continue;
        }
        let now = case.settings();
        case.expect(&format!("settings after {action:?}"), now, vec![after; count as usize]);
        if case.acts(&back(&action), count) {
            let now = case.settings();
            case.expect(&format!("settings after {:?}", back(&action)), now, before.clone());
        }
    }
}

fn none_without_change<S: Subject>(case: &mut Case<S>) {
    let before = case.settings();
    let target = case.all();
    for (action, _) in case.thread_actions(target, &before[0]) {
        case.acts(&back(&action), 0);
    }
    case.acts(&Action::SetQuota { program: case.program, cpus: None }, 0);
    case.acts(&Action::SetFrozen { program: case.program, frozen: false }, 0);
    let now = case.settings();
    case.expect("settings", now, before);
}

fn nice_is_relative<S: Subject>(case: &mut Case<S>) {
    let (target, count) = (case.all(), case.spec.threads);
    let own = case.settings()[0].nice;
    case.expect("own nice value", own, case.spec.nice);
    for (nice, sum) in [(3, 8), (4, 9), (40, 19), (0, 5), (-4, 1), (-40, -20), (0, 5)] {
        if case.acts(&Action::SetNice { target, nice }, count) {
            let now: Vec<i8> = case.settings().iter().map(|s| s.nice).collect();
            case.expect(&format!("nice {nice:+} on {own}"), now, vec![sum; count as usize]);
        }
    }
}

fn thread_alone<S: Subject>(case: &mut Case<S>) {
    let before = case.settings();
    let threads = case.threads();
    for (action, after) in case.thread_actions(Target::Thread(threads[1]), &before[1]) {
        if !case.acts(&action, 1) {
            continue;
        }
        let mut expected = before.clone();
        expected[1] = after;
        let now = case.settings();
        case.expect(&format!("settings after {action:?}"), now, expected);
        if case.acts(&back(&action), 1) {
            let now = case.settings();
            case.expect(&format!("settings after {:?}", back(&action)), now, before.clone());
        }
    }
}

fn repeated_action<S: Subject>(case: &mut Case<S>) {
    let before = case.settings();
    let (target, count) = (case.all(), case.spec.threads);
    let on_threads = case.thread_actions(target, &before[0]);
    let on_threads = on_threads.into_iter().map(|(action, _)| (action, count));
    let on_program = program_actions(case.program).into_iter().map(|action| (action, 1));
    for (action, count) in on_threads.chain(on_program) {
        if case.acts(&action, count) {
            let now = (case.settings(), case.subject.program_settings(0));
            case.acts(&action, 0);
            let again = (case.settings(), case.subject.program_settings(0));
            case.expect(&format!("settings after the repeated {action:?}"), again, now);
        }
    }
    case.subject.machine().restore();
}

fn program_settings<S: Subject>(case: &mut Case<S>) {
    let program = case.program;
    let mut expected = ProgramSettings::default();
    let steps = [
        Action::SetWeight { program, weight: 300 },
        Action::SetWeight { program, weight: 50 },
        Action::SetQuota { program, cpus: Some(0.5) },
        Action::SetQuota { program, cpus: None },
        Action::SetFrozen { program, frozen: true },
        Action::SetFrozen { program, frozen: false },
    ];
    for action in steps {
        if !case.acts(&action, 1) {
            continue;
        }
        match action {
            Action::SetWeight { weight, .. } => expected.weight = Some(weight),
            Action::SetQuota { cpus, .. } => expected.quota = cpus,
            Action::SetFrozen { frozen, .. } => expected.frozen = frozen,
            _ => {}
        }
        let now = case.subject.program_settings(0);
        case.expect(&format!("settings of the program after {action:?}"), now, expected);
    }
    case.subject.machine().restore();
    let now = case.subject.program_settings(0);
    case.expect("settings of the program after restore", now, ProgramSettings::default());
}

fn invalid_values<S: Subject>(case: &mut Case<S>) {
    let (target, program) = (case.all(), case.program);
    let thread = Target::Thread(case.threads()[0]);
    let absent: CpuSet = [ABSENT_CPU].into_iter().collect();
    for target in [target, thread] {
        case.refuses(&Action::SetCpus { target, cpus: Some(CpuSet::new()) });
        case.refuses(&Action::SetCpus { target, cpus: Some(absent.clone()) });
        case.refuses(&Action::SetSlice { target, slice_us: Some(0) });
    }
    for weight in [0, 10_001] {
        case.refuses(&Action::SetWeight { program, weight });
    }
    for cpus in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        case.refuses(&Action::SetQuota { program, cpus: Some(cpus) });
    }
    case.refuses(&Action::SetTeam { program, size: Some(0) });
    let (none, node) = (vec![], vec![NodeId(0)]);
    case.refuses(&Action::MovePages { program, from: none.clone(), to: node.clone() });
    case.refuses(&Action::MovePages { program, from: node, to: none });
}

fn unknown_targets<S: Subject>(case: &mut Case<S>) {
    let own = case.settings().remove(0);
    let thread = Target::Thread(case.subject.unknown_thread());
    for (action, _) in case.thread_actions(thread, &own) {
        case.refuses(&action);
    }
    let program = ProgramId(1_000_000);
    for (action, _) in case.thread_actions(Target::Program(program), &own) {
        case.refuses(&action);
    }
    for action in program_actions(program) {
        case.refuses(&action);
    }
}

fn ended_targets<S: Subject>(case: &mut Case<S>) {
    let own = case.settings().remove(0);
    let thread = Target::Thread(case.threads()[0]);
    let program = case.program;
    case.subject.end(0);
    wait_for_threads(&mut case.subject, program, |now| now == 0);
    for target in [thread, Target::Program(program)] {
        for (action, _) in case.thread_actions(target, &own) {
            case.acts(&action, 0);
        }
    }
    for action in program_actions(program) {
        case.acts(&action, 0);
    }
}

/// Sets everything for all threads, and returns the settings that threads with these own settings
/// must have afterwards.
fn set_all<S: Subject>(case: &mut Case<S>, own: &Settings) -> Settings {
    let mut all = own.clone();
    let target = case.all();
    for (action, after) in case.thread_actions(target, own) {
        if case.act(&action).is_some() {
            match action {
                Action::SetCpus { .. } => all.cpus = after.cpus,
                Action::SetClass { .. } => all.class = after.class,
                Action::SetSlice { .. } => all.slice_ns = after.slice_ns,
                _ => all.nice = after.nice,
            }
        }
    }
    all
}

/// Starts more threads and waits until the machine has observed them.
fn grow<S: Subject>(case: &mut Case<S>) {
    let before = case.threads().len();
    case.subject.grow(0);
    wait_for_threads(&mut case.subject, case.program, |now| now > before);
}

fn later_threads_inherit<S: Subject>(case: &mut Case<S>) {
    let own = case.subject.own_settings(0);
    case.expect("own nice value", own.nice, case.spec.nice);
    let all = set_all(case, &own);
    grow(case);
    let now = case.settings();
    case.expect("settings of all threads", now.clone(), vec![all; now.len()]);
    case.subject.machine().restore();
    let now = case.settings();
    case.expect("settings after restore", now.clone(), vec![own; now.len()]);
}

fn restore_ends_inheritance<S: Subject>(case: &mut Case<S>) {
    let own = case.subject.own_settings(0);
    set_all(case, &own);
    case.subject.machine().restore();
    grow(case);
    let now = case.settings();
    case.expect("settings of all threads", now.clone(), vec![own; now.len()]);
}

fn restore_undoes_everything<S: Subject>(case: &mut Case<S>) {
    let before = case.settings();
    set_all(case, &before[0].clone());
    for action in program_actions(case.program) {
        case.act(&action);
    }
    let restored = case.subject.machine().restore();
    case.expect("restore undid nothing", restored.undone.is_empty(), false);
    case.expect("settings that restore left", restored.left, vec![]);
    let now = (case.settings(), case.subject.program_settings(0));
    case.expect("settings", now, (before, ProgramSettings::default()));
    let again = case.subject.machine().restore();
    case.expect("settings that a second restore undid", again.undone, vec![]);
}

fn team_size<S: Subject>(case: &mut Case<S>) {
    let program = case.program;
    for (size, changed) in [(Some(2), 1), (Some(2), 0), (Some(1), 1), (None, 1), (None, 0)] {
        if case.acts(&Action::SetTeam { program, size }, changed) {
            let now = case.subject.team_size(0);
            case.expect("size of the team", now, size);
        }
    }
    case.act(&Action::SetTeam { program, size: Some(2) });
    case.subject.machine().restore();
    let now = case.subject.team_size(0);
    case.expect("size of the team after restore", now, None);
}
