//! Goals of programs: the policy `fair` steers the simulated kernel by weights and quotas, as in
//! `corebeat daemon --kernel`. The unsteered rates give the goals, as in Sironi et al.,
//! *Metronome: Operating System Level Performance Management via Self-adaptive Computing* (DAC
//! 2012), section 5.2.

use super::*;
use corebeat_machine::{
    Action, Counters, HostSample, Policy, ProgramId, ProgramSample, ProgressSample, Snapshot,
    ThreadId, ThreadSample, TimeShares,
};
use corebeat_policy::fair::{Fair, Means};

/// Time from one sample of the rates to the next; a window has ten samples.
const SAMPLE_NS: u64 = 100_000_000;
const WINDOW: usize = 10;
/// Number of samples from one decision to the next.
const SAMPLES_PER_CYCLE: usize = 5;
/// Half width of a goal, relative to its middle.
const HALF_BAND: f64 = 0.05;
/// Time until goals must be met, and for which they must then be met, in cycles.
const CYCLES: usize = 20;
/// Largest mean of the squares of the distances to the goals, relative to that without steering.
const ERROR_MAX: f64 = 0.1;

/// The behaviour of the threads of a program.
#[derive(Debug, Clone, Copy)]
enum Work {
    Computes,
    /// They wait for each other after a time between 0.5 and 2 ms.
    Barriers,
    /// Each of them computes for 1 ms and sleeps for 1 ms.
    Sleeps,
}

/// A program: its number of threads, and what they do.
type Shape = (usize, Work);

/// Two programs and the policy that steers them.
struct Steered {
    world: World,
    fair: Fair,
    goals: [Option<ProgressSample>; 2],
    /// Beats of both programs at each sample.
    beats: Vec<[u64; 2]>,
    /// Times of each thread on CPUs and in queues at the last decision.
    before: Vec<(u64, u64)>,
}

impl Steered {
    fn new(cpus: usize, shapes: [Shape; 2], fault: Fault) -> Steered {
        let mut world = pair(cpus, [0, 0], shapes.map(|shape| shape.0), fault);
        for (id, (_, work)) in (1..).zip(shapes) {
            world.rounds[id] = matches!(work, Work::Barriers).then_some(0);
            let threads = world.threads.iter_mut().filter(|t| t.group as usize == id);
            for (i, thread) in threads.enumerate() {
                (thread.burst_ns, thread.sleep_ns) = match work {
                    Work::Computes => (None, 0),
                    Work::Barriers => (Some((1 + i as u64 % 4) * STEP_NS), 0),
                    Work::Sleeps => (Some(2 * STEP_NS), 2 * STEP_NS),
                };
            }
        }
        let mut fair = Fair::new(cpus as u32);
        (fair.means, fair.remembers) = (Means::Weight, true);
        let before = vec![(0, 0); world.threads.len()];
        Steered { world, fair, goals: [None; 2], beats: vec![[0; 2]], before }
    }

    /// Beats of a program: barriers, or microseconds of CPU time.
    fn beats(&self, i: usize) -> u64 {
        self.world.rounds[i + 1].unwrap_or(self.world.groups[i + 1].ran_ns / 1_000)
    }

    /// Heartbeats per second in the window that ends with a sample.
    fn rate(&self, i: usize, sample: usize) -> f64 {
        let first = sample.saturating_sub(WINDOW);
        let span_s = (sample - first) as f64 * SAMPLE_NS as f64 / 1e9;
        (self.beats[sample][i] - self.beats[first][i]) as f64 / span_s
    }

    /// Rates of the samples of the last cycles.
    fn last_rates(&self, i: usize) -> impl Iterator<Item = f64> {
        let end = self.beats.len();
        (end - CYCLES * SAMPLES_PER_CYCLE..end).map(move |sample| self.rate(i, sample))
    }

    /// Mean rate of a program in the last cycles.
    fn mean_rate(&self, i: usize) -> f64 {
        self.last_rates(i).sum::<f64>() / (CYCLES * SAMPLES_PER_CYCLE) as f64
    }

    fn snapshot(&mut self) -> Snapshot {
        let span_ns = SAMPLE_NS * SAMPLES_PER_CYCLE as u64;
        let part = |now: u64, before: u64| Some((now - before) as f64 / span_ns as f64);
        let threads = &self.world.threads;
        let sample = |t: usize| {
            let (thread, (ran_ns, waited_ns)) = (&threads[t], self.before[t]);
            let user = part(thread.ran_ns, ran_ns);
            let wait = part(thread.waited_ns, waited_ns);
            ThreadSample {
                id: ThreadId { tid: t as i32 + 1, start_ticks: 1 },
                pid: thread.group as i32,
                name: "t".into(),
                cpu: None,
                span_ns,
                shares: TimeShares { user, wait, ..TimeShares::ZERO },
                counters: Counters::default(),
            }
        };
        let program = |i: usize| ProgramSample {
            id: ProgramId(i as u32),
            name: "p".into(),
            threads: (0..threads.len())
                .filter(|&t| threads[t].group as usize == i + 1)
                .map(sample)
                .collect(),
            io_bytes: None,
            team: None,
            progress: self.goals[i].map(|goal| ProgressSample {
                rate: self.rate(i, self.beats.len() - 1),
                beats: self.beats(i),
                ..goal
            }),
        };
        let programs = (0..2).map(program).collect();
        let snapshot =
            Snapshot { at_ns: self.world.now_ns, span_ns, host: HostSample::default(), programs };
        self.before = threads.iter().map(|t| (t.ran_ns, t.waited_ns)).collect();
        snapshot
    }

    fn run(&mut self, cycles: usize) {
        for _ in 0..cycles {
            for _ in 0..SAMPLES_PER_CYCLE {
                self.world.run(SAMPLE_NS);
                self.beats.push([self.beats(0), self.beats(1)]);
            }
            let snapshot = self.snapshot();
            for decision in self.fair.decide(&snapshot) {
                match decision.action {
                    Action::SetWeight { program, weight } => {
                        self.world.groups[program.0 as usize + 1].weight = weight.into();
                    }
                    Action::SetQuota { program, cpus } => {
                        let quota_ns = cpus.map_or(0.0, |cpus| cpus * QUOTA_PERIOD_NS as f64);
                        self.world.set_quota(program.0 as usize + 1, quota_ns as u64);
                    }
                    ref other => panic!("{other:?}"),
                }
            }
        }
        assert_eq!(self.world.violations, Vec::<String>::new());
    }
}

/// A goal of this rate, within 5%.
fn goal(middle: f64, hold: bool) -> ProgressSample {
    ProgressSample {
        rate_min: Some(middle * (1.0 - HALF_BAND)),
        rate_max: Some(middle * (1.0 + HALF_BAND)),
        window_ns: SAMPLE_NS * WINDOW as u64,
        hold,
        ..ProgressSample::default()
    }
}

/// Mean of the squares of the distances from a goal, relative to its middle. A rate within the goal
/// has no error.
fn error(rates: impl Iterator<Item = f64>, middle: f64) -> f64 {
    let far = |rate: f64| ((rate - middle).abs() / middle - HALF_BAND).max(0.0).powi(2);
    let (sum, count) = rates.fold((0.0, 0), |(sum, count), rate| (sum + far(rate), count + 1));
    sum / f64::from(count)
}

/// Errors of two programs with goals that they can meet together, relative to those without
/// steering: the first program is a quarter faster, and the second one has the remaining CPU time.
fn errors(cpus: usize, shapes: [Shape; 2], fault: Fault) -> [f64; 2] {
    let mut steered = Steered::new(cpus, shapes, fault);
    steered.run(CYCLES);
    let ran = |id: usize| steered.world.groups[id].ran_ns as f64;
    let left = 1.0 - 0.25 * ran(1) / ran(2);
    let middles = [steered.mean_rate(0) * 1.25, steered.mean_rate(1) * left];
    let before = [0, 1].map(|i| error(steered.last_rates(i), middles[i]));
    steered.goals = middles.map(|middle| Some(goal(middle, false)));
    steered.run(2 * CYCLES);
    [0, 1].map(|i| error(steered.last_rates(i), middles[i]) / before[i])
}

#[test]
fn goals_that_can_be_met_together_are_met() {
    use Work::{Barriers, Computes, Sleeps};
    for (cpus, shapes) in [
        (2, [(2, Computes), (2, Computes)]),
        (2, [(1, Computes), (3, Computes)]),
        (2, [(2, Barriers), (2, Computes)]),
        (2, [(2, Barriers), (2, Barriers)]),
        (8, [(8, Barriers), (8, Computes)]),
        (8, [(8, Computes), (8, Barriers)]),
        (1, [(1, Sleeps), (3, Computes)]),
        (2, [(2, Sleeps), (6, Computes)]),
    ] {
        let errors = errors(cpus, shapes, Fault::None);
        println!("{cpus} CPUs, {shapes:?}: errors {errors:.3?} of the unsteered ones");
        assert!(errors.iter().all(|e| *e <= ERROR_MAX), "{cpus} {shapes:?}: {errors:?}");
    }
}

#[test]
fn goals_are_missed_if_weights_do_not_count() {
    let shapes = [(2, Work::Computes), (2, Work::Computes)];
    let errors = errors(2, shapes, Fault::WeightIgnored);
    assert!(errors.iter().all(|e| *e > ERROR_MAX), "{errors:?}");
}

#[test]
fn maximum_is_kept_and_other_programs_use_the_rest() {
    // Beside two threads, a lower weight keeps the maximum; beside one thread, the first program
    // has a CPU for itself, and only a quota does.
    for (others, expected) in [(2, 1.5), (1, 1.0)] {
        let shapes = [(2, Work::Computes), (others, Work::Computes)];
        let mut steered = Steered::new(2, shapes, Fault::None);
        // Half a CPU.
        let middle = 500_000.0;
        steered.goals[0] = Some(goal(middle, true));
        steered.run(CYCLES);
        let (before_ns, from_ns) = (steered.world.groups[2].ran_ns, steered.world.now_ns);
        steered.run(CYCLES);
        let ran_ns = steered.world.groups[2].ran_ns - before_ns;
        let cpus = ran_ns as f64 / (steered.world.now_ns - from_ns) as f64;
        let rate = steered.mean_rate(0) / middle;
        assert!((rate - 1.0).abs() <= HALF_BAND, "{others} threads: {rate} of the goal");
        assert!((cpus / expected - 1.0).abs() < 0.03, "{others} threads have {cpus} CPUs");
    }
}
