use super::*;
use crate::ratio::sample;
use corebeat_machine::{Action, Effect};
use std::collections::BTreeSet;

const HALF_NS: u64 = 500_000_000;

/// Programs with four threads each on four CPUs, under the policy. A program that runs beside
/// another one spins for `spin` of its time.
struct Host {
    policy: Turns,
    frozen: BTreeSet<ProgramId>,
    programs: u32,
    spin: f64,
    /// Spinning share of a program that runs alone.
    spin_alone: f64,
    refuses: bool,
    at_ns: u64,
    applied: Vec<Action>,
}

impl Host {
    fn new(programs: u32, spin: f64, spin_alone: f64) -> Host {
        let policy = Turns::new(&Topology::flat(4));
        Host {
            policy,
            frozen: BTreeSet::new(),
            programs,
            spin,
            spin_alone,
            refuses: false,
            at_ns: 0,
            applied: vec![],
        }
    }

    fn program(&self, id: u32) -> ProgramSample {
        let id = ProgramId(id);
        let mut program = ProgramSample { id, ..sample::program() };
        let running = self.programs as usize - self.frozen.len();
        let (user, wait, spin) = match self.frozen.contains(&id) {
            true => (0.0, 0.0, 0.0),
            false if running == 1 => (1.0, 0.0, self.spin_alone),
            false => (1.0 / running as f64, 1.0 - 1.0 / running as f64, self.spin),
        };
        for _ in 0..4 {
            let thread = sample::thread(&mut program, user, 0.0, wait);
            thread.shares.spin = Some(user * spin);
            // Machines exclude the time for which a program is frozen.
            thread.span_ns = if self.frozen.contains(&id) { 0 } else { HALF_NS };
        }
        program
    }

    fn run(&mut self, snapshots: u32) {
        for _ in 0..snapshots {
            self.at_ns += HALF_NS;
            let programs = (1..=self.programs).map(|id| self.program(id)).collect();
            let snapshot =
                Snapshot { at_ns: self.at_ns, span_ns: HALF_NS, programs, ..Snapshot::default() };
            for decision in self.policy.decide(&snapshot) {
                let outcome = if self.refuses {
                    Err("test".to_owned())
                } else {
                    let Action::SetFrozen { program, frozen } = decision.action else {
                        panic!("{decision:?}");
                    };
                    match frozen {
                        true => self.frozen.insert(program),
                        false => self.frozen.remove(&program),
                    };
                    Ok(Effect::default())
                };
                self.applied.push(decision.action.clone());
                self.policy.outcome(&AppliedAction { at_ns: self.at_ns, decision, outcome });
            }
        }
    }

    fn why(&self) -> String {
        self.policy.inactions(ProgramId(1)).pop().map_or(String::new(), |inaction| inaction.why)
    }
}

#[test]
fn programs_that_spin_take_turns_while_it_helps() {
    let mut host = Host::new(2, 0.8, 0.1);
    let mut snapshots_with_turns = 0;
    for _ in 0..400 {
        host.run(1);
        assert!(host.frozen.len() < 2, "a program runs at all times");
        snapshots_with_turns += host.frozen.len();
    }
    // Checks take one window each, ever more rarely.
    assert!(snapshots_with_turns > 380, "{snapshots_with_turns} of 400");
    let turns_of = |id| {
        let frozen = Action::SetFrozen { program: ProgramId(id), frozen: true };
        host.applied.iter().filter(|&action| *action == frozen).count()
    };
    assert!(turns_of(1).abs_diff(turns_of(2)) < 10, "{} and {}", turns_of(1), turns_of(2));
}

#[test]
fn turns_that_do_not_help_end_for_doubling_times() {
    let mut host = Host::new(2, 0.5, 0.5);
    host.run(2_000);
    assert!(host.frozen.is_empty(), "turns ended");
    // 1000 s: rests of 10, 20, 40 ... s, and at most ten actions in each trial.
    assert!((20..=80).contains(&host.applied.len()), "{} actions", host.applied.len());
    assert!(host.why().contains("tries again after"), "{}", host.why());
}

#[test]
fn turns_that_no_longer_help_are_undone_at_a_check() {
    let mut host = Host::new(2, 0.8, 0.1);
    host.run(10);
    assert!(!host.frozen.is_empty());
    host.spin = 0.1;
    host.run(60);
    assert!(host.frozen.is_empty(), "the check found that nothing spins without turns");
}

#[test]
fn programs_that_do_not_spin_or_fit_on_the_cpus_take_no_turns() {
    let mut host = Host::new(2, 0.1, 0.1);
    host.run(100);
    assert!(host.applied.is_empty());
    assert!(host.why().contains("0 of 2 programs spin"), "{}", host.why());
    let mut host = Host::new(1, 0.9, 0.9);
    host.run(100);
    assert!(host.applied.is_empty());
    assert!(host.why().contains("no other program"), "{}", host.why());
    let mut host = Host::new(2, 0.8, 0.1);
    host.policy.topology = Topology::flat(16);
    host.run(100);
    assert!(host.applied.is_empty());
    assert!(host.why().contains("need 8.0 of 16 CPUs"), "{}", host.why());
}

#[test]
fn last_program_continues_when_the_others_have_ended() {
    let mut host = Host::new(2, 0.8, 0.1);
    host.run(5);
    let last = *host.frozen.first().expect("a program waits for its turn");
    host.programs = last.0;
    host.frozen.retain(|&id| id == last);
    // Only programs up to `last` remain; program 1 ends if `last` is 2.
    if last == ProgramId(2) {
        host.run(1);
        host.programs = 0;
    }
    host.run(3);
    assert!(!matches!(host.policy.state, State::On { .. }));
}

#[test]
fn refused_turns_are_not_started_again() {
    let mut host = Host::new(2, 0.8, 0.1);
    host.refuses = true;
    host.run(200);
    assert!(host.applied.len() <= 3, "{:?}", host.applied);
    assert!(host.why().contains("refuses"), "{}", host.why());
}
