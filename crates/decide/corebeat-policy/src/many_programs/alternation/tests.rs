use super::*;
use crate::ratio::sample;
use corebeat_machine::{Action, Effect, ThreadSample, TimeShares};
use std::collections::BTreeSet;

const SECOND: u64 = 1_000_000_000;
const SPAN_NS: u64 = SECOND / 2;

/// A machine of two CPUs with programs of two threads, and the part of its CPU time that a program
/// spends spinning: beside others, and alone.
struct World {
    spin_beside: Vec<f64>,
    spin_alone: f64,
    frozen: BTreeSet<ProgramId>,
    refuses: bool,
    at_ns: u64,
}

impl World {
    fn new(spin_beside: &[f64], spin_alone: f64) -> World {
        let spin_beside = spin_beside.to_vec();
        World { spin_beside, spin_alone, frozen: BTreeSet::new(), refuses: false, at_ns: SECOND }
    }

    fn snapshot(&mut self) -> Snapshot {
        self.at_ns += SPAN_NS;
        let running = self.spin_beside.len() - self.frozen.len();
        let program = |(number, &spin_beside): (usize, &f64)| {
            let id = ProgramId(number as u32);
            let spin = if running == 1 { self.spin_alone } else { spin_beside };
            let user = if self.frozen.contains(&id) { 0.0 } else { 1.0 / running as f64 };
            let shares = TimeShares {
                user: Some(user),
                wait: Some(if user > 0.0 { 1.0 - user } else { 0.0 }),
                sleep: Some(if user > 0.0 { 0.0 } else { 1.0 }),
                spin: Some(spin * user),
                ..TimeShares::ZERO
            };
            let mut program = ProgramSample { id, ..sample::program() };
            for _ in 0..2 {
                sample::thread(&mut program, 0.0, 0.0, 0.0);
            }
            let set = |thread: &mut ThreadSample| {
                (thread.shares, thread.span_ns) = (shares, SPAN_NS);
                thread.counters.instructions = None;
            };
            program.threads.iter_mut().for_each(set);
            program
        };
        let programs = self.spin_beside.iter().enumerate().map(program).collect();
        Snapshot { at_ns: self.at_ns, span_ns: SPAN_NS, programs, ..Snapshot::default() }
    }

    /// Steers for a number of snapshots. Returns the reasons of the decisions that are not ordinary
    /// turns, and the number of all decisions.
    fn steer(&mut self, turns: &mut Alternation, snapshots: usize) -> (Vec<String>, usize) {
        let (mut reasons, mut count) = (vec![], 0);
        for _ in 0..snapshots {
            for decision in turns.decide(&self.snapshot(), true) {
                count += 1;
                if !crate::cosched::is_turn(&decision) {
                    reasons.push(decision.why.clone());
                }
                let Action::SetFrozen { program, frozen } = decision.action else {
                    panic!("{decision:?}")
                };
                let outcome = match self.refuses && frozen {
                    true => Err("no freezer".to_owned()),
                    false => Ok(Effect { changed: 1 }),
                };
                if outcome.is_ok() {
                    let changed = match frozen {
                        true => self.frozen.insert(program),
                        false => self.frozen.remove(&program),
                    };
                    assert!(changed, "{decision:?}");
                }
                turns.outcome(&AppliedAction { at_ns: self.at_ns, decision, outcome });
            }
            assert!(self.frozen.len() < self.spin_beside.len().max(1), "no program runs");
        }
        (reasons, count)
    }
}

fn alternation() -> Alternation {
    Alternation::new(&Topology::flat(2))
}

#[test]
fn programs_that_spin_take_turns_as_long_as_turns_help() {
    let (mut world, mut turns) = (World::new(&[0.6, 0.5], 0.0), alternation());
    assert_eq!(world.steer(&mut turns, 1), (vec![], 0), "one snapshot is not enough");
    let (begin, _) = world.steer(&mut turns, 5);
    assert_eq!(begin.len(), 2, "{begin:?}");
    assert_eq!(begin[0], "60% and 50% of the CPU time of 2 programs is spinning: they try turns");
    assert_eq!(begin[1], "turns changed the progress by +124%: all programs keep their turns");
    assert_eq!(turns.inaction(), None);
    // Each has every second turn.
    let mut had = [0; 2];
    for _ in 0..20 {
        world.steer(&mut turns, 1);
        assert_eq!(world.frozen.len(), 1);
        had[usize::from(world.frozen.contains(&ProgramId(0)))] += 1;
    }
    assert_eq!(had, [10, 10]);
    // After half a minute they run side by side again. The next turns last twice as long.
    let (end, _) = world.steer(&mut turns, 45);
    assert_eq!(end[0], "whether turns are still useful is measured again");
    assert!(end.len() == 2 && end[1].ends_with("they try turns"), "{end:?}");
    world.spin_beside = vec![0.0, 0.0];
    let (later, count) = world.steer(&mut turns, 1_000);
    assert_eq!(later.len(), 2, "{later:?}");
    assert!(world.frozen.is_empty() && !turns.is_active() && count < 300, "{count} changes");
}

#[test]
fn turns_that_do_not_help_end_for_doubling_times() {
    for (alone, why) in [
        (0.6, "turns changed the progress by +0%, less than +10%"),
        (0.8, "turns slowed a program down by more than 5%"),
    ] {
        let (mut world, mut turns) = (World::new(&[0.6, 0.6], alone), alternation());
        let (reasons, count) = world.steer(&mut turns, 7);
        assert_eq!(reasons[1], format!("{why}: the turns of all programs end"));
        assert!(world.frozen.is_empty() && count < 10, "{count} changes");
        assert_eq!(turns.inaction(), Some(why));
        let (reasons, _) = world.steer(&mut turns, 240);
        let trials = reasons.iter().filter(|why| why.ends_with("they try turns")).count();
        assert_eq!(trials, 3, "after 15, 30 and 60 s of 120: {reasons:?}");
    }
}

#[test]
fn gain_of_one_program_does_not_excuse_the_loss_of_another() {
    // In turns, each program has half of the time: the one that did not spin much loses.
    let (mut world, mut turns) = (World::new(&[0.8, 0.3], 0.4), alternation());
    let (reasons, _) = world.steer(&mut turns, 7);
    assert!(reasons[1].starts_with("turns slowed a program down"), "{reasons:?}");
}

#[test]
fn programs_that_do_hardly_anything_but_spin_keep_turns_as_well() {
    let (mut world, mut turns) = (World::new(&[0.95, 0.95], 0.0), alternation());
    let (reasons, _) = world.steer(&mut turns, 7);
    // Their useful time, a twentieth of a CPU, was too little to be measured exactly.
    assert_eq!(reasons[1], "turns changed the progress by +900%: all programs keep their turns");
}

#[test]
fn programs_that_do_not_spin_are_never_frozen() {
    for spins in [&[0.0, 0.0][..], &[0.9, 0.0], &[0.29, 0.9], &[0.5]] {
        let (mut world, mut turns) = (World::new(spins, 0.0), alternation());
        assert_eq!(world.steer(&mut turns, 50), (vec![], 0), "{spins:?}");
        assert!(turns.inaction().is_some_and(|why| why.starts_with("no two programs spin")));
    }
    // Two of three programs spin.
    let (mut world, mut turns) = (World::new(&[0.5, 0.0, 0.5], 0.0), alternation());
    world.steer(&mut turns, 4);
    assert!(turns.is_active());
    for _ in 0..6 {
        world.steer(&mut turns, 1);
        assert!(!world.frozen.contains(&ProgramId(1)));
    }
}

#[test]
fn programs_with_enough_cpus_take_no_turns() {
    let (mut world, mut turns) =
        (World::new(&[0.5, 0.5], 0.0), Alternation::new(&Topology::flat(4)));
    assert_eq!(world.steer(&mut turns, 20), (vec![], 0));
}

#[test]
fn refused_freeze_ends_the_turns_for_good() {
    let (mut world, mut turns) = (World::new(&[0.6, 0.5], 0.0), alternation());
    world.refuses = true;
    let (_, count) = world.steer(&mut turns, 1_000);
    assert_eq!(count, 1);
    assert!(!turns.is_active());
    assert_eq!(turns.inaction(), Some("the machine refused to freeze a program"));
}

#[test]
fn turns_end_when_a_program_ends() {
    let (mut world, mut turns) = (World::new(&[0.6, 0.5], 0.0), alternation());
    world.steer(&mut turns, 10);
    assert!(turns.is_active());
    while !world.frozen.contains(&ProgramId(0)) {
        world.steer(&mut turns, 1);
    }
    world.spin_beside.pop();
    let (reasons, _) = world.steer(&mut turns, 1);
    assert!(world.frozen.is_empty() && !turns.is_active(), "{reasons:?}");
    assert_eq!(turns.inaction(), Some("a program that took turns has ended"));
}

#[test]
fn rest_of_three_programs_is_measured_anew_when_one_ends_in_a_trial() {
    let (mut world, mut turns) = (World::new(&[0.6, 0.5, 0.6], 0.0), alternation());
    world.steer(&mut turns, 3);
    while world.frozen.contains(&ProgramId(2)) {
        world.steer(&mut turns, 1);
    }
    assert!(turns.is_active());
    world.spin_beside.pop();
    let (reasons, _) = world.steer(&mut turns, 1);
    assert!(reasons.iter().all(|why| why == "a program that took turns has ended"), "{reasons:?}");
    let (reasons, _) = world.steer(&mut turns, 2);
    assert!(reasons[0].ends_with("they try turns"), "without a rest: {reasons:?}");
}

#[test]
fn long_observations_are_no_turns() {
    let (mut world, mut turns) = (World::new(&[0.6, 0.5], 0.0), alternation());
    for _ in 0..10 {
        let snapshot = Snapshot { span_ns: 2 * SECOND, ..world.snapshot() };
        assert_eq!(turns.decide(&snapshot, true), []);
    }
}

#[test]
fn turns_wait_until_no_other_policy_measures() {
    let (mut world, mut turns) = (World::new(&[0.6, 0.5], 0.0), alternation());
    for _ in 0..10 {
        assert_eq!(turns.decide(&world.snapshot(), false), []);
    }
    assert_eq!(world.steer(&mut turns, 1), (vec![], 0), "the programs are measured anew");
    world.steer(&mut turns, 1);
    assert!(turns.is_active());
}
