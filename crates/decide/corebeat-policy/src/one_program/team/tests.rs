use super::*;
use corebeat_machine::{Counters, HostSample, RegionSample, ThreadId, ThreadSample, TimeShares};
use proptest::prelude::*;

/// A program with one region per phase. The time of the region and the CPUs with useful work depend
/// on the team size.
struct Model {
    time_ns: fn(phase: u64, size: u32) -> f64,
    useful: fn(phase: u64, size: u32) -> f64,
    size: u32,
    size_max: u32,
    fixed: bool,
    others: f64,
}

impl Model {
    fn snapshot(&self, phase: u64) -> Snapshot {
        let (size, span_ns) = (self.size, 1_000_000_000);
        let time = (self.time_ns)(phase, size);
        let count = (span_ns as f64 / time) as u64;
        let useful = (self.useful)(phase, size) / f64::from(size);
        let thread = |tid| ThreadSample {
            id: ThreadId { tid, start_ticks: 1 },
            pid: 1,
            name: "t".into(),
            cpu: None,
            span_ns,
            shares: TimeShares {
                user: Some(1.0),
                system: Some(0.0),
                lock: Some(0.0),
                park: Some(0.0),
                wait: Some(if self.others > 0.0 { 0.3 } else { 0.0 }),
                sleep: Some(0.0),
                spin: Some(1.0 - useful),
            },
            counters: Counters::default(),
        };
        let regions = (count > 0).then_some(RegionSample {
            region: phase,
            size,
            count,
            time_ns: (count as f64 * time) as u64,
        });
        let team = TeamSample {
            size_max: self.size_max,
            size,
            fixed: self.fixed,
            regions: regions.into_iter().collect(),
        };
        let program = ProgramSample {
            id: ProgramId(1),
            name: "m".into(),
            threads: (1..=size as i32).map(thread).collect(),
            io_bytes: None,
            team: Some(team),
            progress: None,
        };
        let host = HostSample {
            others_busy: Some(self.others),
            others_runnable: Some(self.others),
            ..HostSample::default()
        };
        Snapshot { at_ns: 0, span_ns, host, programs: vec![program] }
    }

    /// Runs the policy for some snapshots; returns the size after each.
    fn run(&mut self, policy: &mut Team, phases: impl IntoIterator<Item = u64>) -> Vec<u32> {
        let mut sizes = Vec::new();
        for phase in phases {
            for d in policy.decide(&self.snapshot(phase)) {
                let Action::SetTeam { size: Some(size), .. } = d.action else { panic!("{d:?}") };
                self.size = size;
            }
            sizes.push(self.size);
        }
        sizes
    }
}

fn scalable() -> Model {
    Model {
        time_ns: |_, n| 8e6 / f64::from(n),
        useful: |_, n| f64::from(n),
        size: 8,
        size_max: 8,
        fixed: false,
        others: 0.0,
    }
}

fn policy() -> Team {
    Team::new(8, TeamSettings::default())
}

/// Returns a program with work for two CPUs. Each further thread slows it down.
fn saturated() -> Model {
    Model {
        time_ns: |_, n| 4e6 / f64::from(n.min(2)) * (1.0 + 0.1 * f64::from(n.saturating_sub(2))),
        useful: |_, n| f64::from(n.min(2)) * 0.95,
        ..scalable()
    }
}

#[test]
fn team_scalable_program_is_left_alone() {
    assert!(scalable().run(&mut policy(), vec![1; 50]).iter().all(|&n| n == 8));
}

#[test]
fn team_saturated_program_shrinks_to_its_work_and_stays() {
    let sizes = saturated().run(&mut policy(), vec![1; 50]);
    assert_eq!(sizes[5], 2, "{sizes:?}");
    assert!(sizes.iter().skip(6).filter(|&&n| n != 2).count() <= 4, "{sizes:?}");
}

#[test]
fn team_useless_reduction_is_undone() {
    // Half of the threads spin, but the program is slower without them.
    let mut m = Model { useful: |_, n| f64::from(n) / 2.0, ..scalable() };
    let sizes = m.run(&mut policy(), vec![1; 200]);
    let away = sizes.iter().filter(|&&n| n != 8).count();
    assert!((1..=6).contains(&away), "trials become rare: {away}");
}

#[test]
fn team_size_between_too_small_and_current_is_found() {
    // With more than six threads half of them wait for the others, so four threads seem to
    // suffice.
    let mut m = Model {
        time_ns: |_, n| if n > 6 { 2e6 } else { 8e6 / f64::from(n) },
        useful: |_, n| if n > 6 { 3.9 } else { f64::from(n) },
        ..scalable()
    };
    let sizes = m.run(&mut policy(), vec![1; 60]);
    assert_eq!(sizes[..2], [4, 8], "four is no gain: {sizes:?}");
    // Later trials become rare.
    assert!(sizes[12..].iter().filter(|&&n| n == 6).count() > 40, "{sizes:?}");
    // Without a gain in between the search starts again, ever more rarely.
    let mut m = Model { useful: |_, n| f64::from(n) / 2.0, ..scalable() };
    let mut tried: Vec<u32> = m.run(&mut policy(), vec![1; 300]);
    tried.retain(|&n| n != 8);
    assert_eq!(tried, [5, 7, 5, 7, 5]);
}

#[test]
fn team_new_phase_is_followed() {
    let mut m = Model {
        time_ns: |phase, n| {
            if phase == 1 { (saturated().time_ns)(1, n) } else { 8e6 / f64::from(n) }
        },
        useful: |phase, n| if phase == 1 { (saturated().useful)(1, n) } else { f64::from(n) },
        ..scalable()
    };
    let sizes = m.run(&mut policy(), [vec![1; 20], vec![2; 20]].concat());
    assert_eq!((sizes[19], sizes[39]), (2, 8), "{sizes:?}");
}

#[test]
fn team_shrinks_under_load_of_others_where_that_helps() {
    // A spinning team of 8 beside 4 other threads loses whole time slices unless it shrinks.
    let mut m = Model {
        time_ns: |_, n| if n > 4 { 9e6 } else { 8e6 / f64::from(n) },
        useful: |_, n| f64::from(n) - 0.2,
        others: 4.0,
        ..scalable()
    };
    assert_eq!(m.run(&mut policy(), vec![1; 5]).last(), Some(&4));
}

#[test]
fn team_fixed_count_is_never_touched() {
    let mut m = Model { fixed: true, ..saturated() };
    assert!(m.run(&mut policy(), vec![1; 20]).iter().all(|&n| n == 8));
}

#[test]
fn team_trial_without_an_ending_region_is_abandoned() {
    let mut m =
        Model { time_ns: |_, n| if n == 8 { 1e6 } else { 1e12 }, useful: |_, _| 1.0, ..scalable() };
    let sizes = m.run(&mut policy(), vec![1; 8]);
    assert_eq!((sizes[0], sizes[7]), (2, 8), "{sizes:?}");
}

proptest! {
    /// For any samples the sizes stay within bounds.
    #[test]
    fn team_any_samples_size_is_in_bounds(
        rows in proptest::collection::vec(
            (0u64..4, 0u64..1_000_000_000, 0u64..50, 0.0f64..=1.0, 0.0f64..9.0),
            1..120,
        ),
        cpus in 1u32..9,
        size_max in 1u32..20,
    ) {
        let mut policy = Team::new(cpus, TeamSettings::default());
        let mut m = Model { size: size_max.min(cpus), size_max, ..scalable() };
        for (phase, time_ns, count, spin, others) in rows {
            let mut sample = m.snapshot(phase);
            sample.host.others_runnable = Some(others);
            let p = &mut sample.programs[0];
            p.threads.iter_mut().for_each(|t| t.shares.spin = Some(spin));
            let region = RegionSample { region: phase, size: m.size, count, time_ns };
            p.team.as_mut().unwrap().regions = vec![region];
            for d in policy.decide(&sample) {
                let Action::SetTeam { size: Some(size), .. } = d.action else { panic!("{d:?}") };
                prop_assert!((1..=size_max).contains(&size));
                m.size = size;
            }
        }
    }
}

#[test]
fn refused_team_size_ends_the_search() {
    let (mut policy, model) = (policy(), saturated());
    let mut requests = 0;
    for _ in 0..100 {
        for decision in policy.decide(&model.snapshot(1)) {
            requests += 1;
            let outcome = Err("the program has ended its channel".into());
            policy.outcome(&AppliedAction { at_ns: 0, decision, outcome });
        }
    }
    assert_eq!(requests, 1);
}
