//! The policies, unchanged, on simulated machines of 24 and 64 cores. The policies gain there, and
//! lose on a machine that does the opposite of their actions.

use corebeat_host::{Loop, Periods};
use corebeat_machine::{
    Action, Arbiter, Class, Clock, CpuId, CpuSet, Effect, Machine, Policy, ProgramId,
    ProgressSample, Restored, Snapshot, Topology,
};
use corebeat_policy::auto::Auto;
use corebeat_policy::claims::Claims;
use corebeat_policy::fair::Fair;
use corebeat_policy::faithful::FaithFul;
use corebeat_policy::reinforcer::{Limits, Profile, Reinforcer, Step as Search, Thresholds, Trial};
use corebeat_policy::team::{Team as Sizes, TeamSettings};
use corebeat_sim::{
    Goal, Hardware, Outcome, Program, Scenario, Scheduler, SimMachine, Step, Team, Work,
};

const SECOND: u64 = 1_000_000_000;

fn forever(steps: Vec<Step>) -> Step {
    Step::Repeat { times: None, shared: false, steps }
}

/// A machine of four packages.
fn cores(cpus: u32) -> Hardware {
    Hardware { packages: 4, cores: cpus / 4, ..Hardware::default() }
}

fn scenario(machine: Hardware, programs: Vec<Program>) -> Scenario {
    Scenario { machine, programs, duration_s: Some(1_000.0), sets: vec![], policies: vec![] }
}

fn machine(scenario: &Scenario) -> SimMachine {
    SimMachine::new(scenario, 1).unwrap_or_else(|e| panic!("{e}"))
}

/// A machine that inverts requested nice values, classes and team sizes.
struct Inverted(SimMachine);

impl Machine for Inverted {
    type Error = corebeat_sim::Error;

    fn topology(&self) -> &Topology {
        self.0.topology()
    }

    fn observe(&mut self) -> Result<Snapshot, Self::Error> {
        self.0.observe()
    }

    fn act(&mut self, action: &Action) -> Result<Effect, Self::Error> {
        let mut action = action.clone();
        match &mut action {
            Action::SetNice { nice, .. } => *nice = (-*nice).clamp(-20, 19),
            Action::SetClass { class, .. } => {
                *class = if *class == Some(Class::Batch) {
                    Some(Class::Normal)
                } else {
                    Some(Class::Batch)
                };
            }
            Action::SetTeam { size: Some(size), .. } => {
                let cpus = self.0.topology().cpus().len() as u32;
                *size = (cpus + 1).saturating_sub(*size).max(1);
            }
            _ => {}
        }
        self.0.act(&action)
    }

    fn restore(&mut self) -> Restored {
        self.0.restore()
    }
}

/// Runs policies for some seconds, and returns a snapshot of the second after that.
fn steered<M: Machine>(
    machine: M,
    clock: impl Clock,
    policies: Vec<Box<dyn Policy>>,
    seconds: u64,
) -> Snapshot {
    let periods = Periods { observe_ns: SECOND / 2, sample_ns: SECOND / 2 };
    let mut control = Loop::new(machine, clock, policies, periods);
    let run = control.run(|_, clock| clock.now_ns() >= seconds * SECOND);
    run.unwrap_or_else(|e| panic!("{e}"));
    control.clock().wait_until((seconds + 1) * SECOND);
    control.machine().observe().unwrap_or_else(|e| panic!("{e}"))
}

/// A program whose threads compute, in part under one lock.
fn locked_program(threads: u32, in_lock_us: f64) -> Program {
    let work = |us| Step::from(Work { jitter: 0.3, ..Work::us(us) });
    let body = vec![
        work(1_000.0),
        Step::Lock { name: "l".into(), steps: vec![work(in_lock_us)] },
        Step::Beat,
    ];
    Program::new("p", vec![Team::new(threads, vec![forever(body)])])
}

/// Beats in half a second.
fn beats(hardware: &Hardware, program: Program) -> f64 {
    let mut machine = machine(&scenario(hardware.clone(), vec![program]));
    machine.clock().wait_until(SECOND / 2);
    machine.outcomes()[0].beats as f64
}

/// The result of Thread Reinforcer with windows of 0.1 s, as in the thesis.
fn found(
    hardware: &Hardware,
    program: impl Fn(u32) -> Program,
    seen: impl Fn(Profile) -> Profile,
) -> u32 {
    let cpus = hardware.cpus();
    let mut search = Reinforcer::new(Limits::of(cpus), Thresholds::default());
    loop {
        match search.next() {
            Search::Try(threads) => {
                let mut machine = machine(&scenario(hardware.clone(), vec![program(threads)]));
                let mut clock = machine.clock();
                clock.wait_until(SECOND / 10);
                machine.observe().unwrap();
                clock.wait_until(SECOND / 5);
                let shown = machine.observe().unwrap();
                let profile = Profile::of(&shown.programs[0], &shown, cpus).unwrap();
                search.record(threads, Trial::Ran(seen(profile)));
            }
            Search::Done { best, .. } => return best.unwrap(),
        }
    }
}

#[test]
fn reinforcer_finds_the_count_where_a_lock_ends_the_gain() {
    // A twelfth to a twentieth of the work is under the lock, so about 12 to 20 threads keep the
    // lock busy.
    for (cpus, in_lock_us) in [(24, 100.0), (64, 50.0)] {
        let hardware = cores(cpus);
        let program = |threads| locked_program(threads, in_lock_us);
        let count = found(&hardware, program, |profile| profile);
        let best = (1..=cpus).step_by(3).map(|n| beats(&hardware, program(n))).fold(0.0, f64::max);
        let with = beats(&hardware, program(count));
        assert!((8..cpus).contains(&count), "the best count is below {cpus} CPUs, not {count}");
        assert!(with > 0.9 * best, "{count} threads: {with} beats of {best}");
        // Reports less progress for more work.
        let with_inverted =
            |profile: Profile| Profile { progress: profile.progress.map(|p| 1.0 / p), ..profile };
        let count = found(&hardware, program, with_inverted);
        assert!(
            beats(&hardware, program(count)) < 0.5 * best,
            "inverted progress leads to {count}"
        );
    }
}

#[test]
fn reinforcer_uses_all_cores_for_independent_threads() {
    for cpus in [24, 64] {
        let hardware = cores(cpus);
        let program = |threads| locked_program(threads, 0.5);
        let count = found(&hardware, program, |profile| profile);
        let (with, all) = (beats(&hardware, program(count)), beats(&hardware, program(cpus)));
        assert!(with > 0.9 * all, "{count} threads: {with} of {all}");
    }
}

/// Two programs with goals that can be reached together, but not without a policy: one program has
/// three times as many threads.
fn with_goals(cpus: u32) -> Scenario {
    // A beat takes 5 ms, so a CPU emits 200 beats a second.
    let beating = |name: &str, threads, cpus: f64| {
        let body = vec![Work { jitter: 0.2, ..Work::us(5_000.0) }.into(), Step::Beat];
        let mut program = Program::new(name, vec![Team::new(threads, vec![forever(body)])]);
        let rate = cpus * 200.0;
        let goal =
            Goal { min: Some(0.9 * rate), max: Some(1.1 * rate), window_ms: 1_000.0, hold: false };
        program.goal = Some(goal);
        program
    };
    let all = f64::from(cpus);
    scenario(
        cores(cpus),
        vec![beating("few", cpus, 0.55 * all), beating("many", 3 * cpus, 0.43 * all)],
    )
}

fn in_window(seen: &Snapshot) -> Vec<bool> {
    let within = |p: &ProgressSample| {
        p.rate_min.is_some_and(|min| p.rate >= min) && p.rate_max.is_some_and(|max| p.rate <= max)
    };
    seen.programs.iter().map(|p| p.progress.as_ref().is_some_and(within)).collect()
}

#[test]
fn fair_brings_heart_rates_into_their_windows() {
    for cpus in [24, 64] {
        let policy = || -> Vec<Box<dyn Policy>> {
            let mut fair = Fair::new(cpus);
            fair.remembers = true;
            vec![Box::new(fair)]
        };
        let plain = machine(&with_goals(cpus));
        let clock = plain.clock();
        assert_eq!(
            in_window(&steered(plain, clock, vec![], 15)),
            [false, false],
            "{cpus} CPUs, without the policy"
        );

        let steering = machine(&with_goals(cpus));
        let clock = steering.clock();
        let seen = steered(steering, clock, policy(), 15);
        let rates: Vec<_> = seen.programs.iter().map(|p| p.progress).collect();
        assert_eq!(in_window(&seen), [true, true], "{cpus} CPUs: {rates:?}");

        let inverted = Inverted(machine(&with_goals(cpus)));
        let clock = inverted.0.clock();
        assert_eq!(
            in_window(&steered(inverted, clock, policy(), 15)),
            [false, false],
            "{cpus} CPUs, inverted actions"
        );
    }
}

/// A program whose threads preempt each other on a time-sharing machine with half as many CPUs as
/// threads.
fn backstabbing(cpus: u32) -> Scenario {
    let work = |us| Step::from(Work { jitter: 0.5, ..Work::us(us) });
    let mut body = vec![];
    for l in 0..cpus * 2 / 3 {
        body.extend([work(40.0), Step::Lock { name: format!("l{l}"), steps: vec![work(25.0)] }]);
    }
    let program = Program::new("p", vec![Team::new(2 * cpus, vec![forever(body)])]);
    scenario(Hardware { scheduler: Scheduler::TimeShare, ..cores(cpus) }, vec![program])
}

#[test]
fn faithful_ends_backstabbing() {
    for cpus in [24, 64] {
        let lost = |seen: Snapshot| seen.programs[0].counters().involuntary_switches.unwrap();
        let policy = || -> Vec<Box<dyn Policy>> { vec![Box::new(FaithFul::new(cpus))] };
        let plain = machine(&backstabbing(cpus));
        let clock = plain.clock();
        let plain = lost(steered(plain, clock, vec![], 3));

        let steering = machine(&backstabbing(cpus));
        let clock = steering.clock();
        let with = lost(steered(steering, clock, policy(), 3));
        assert!(
            with * 10 < plain,
            "{cpus} CPUs: {with} preemptions in a second, {plain} without it"
        );

        let inverted = Inverted(machine(&backstabbing(cpus)));
        let clock = inverted.0.clock();
        let with_inverted = lost(steered(inverted, clock, policy(), 3));
        assert!(with_inverted > 5 * with.max(1), "{cpus} CPUs, inverted actions: {with_inverted}");
    }
}

/// A program of two threads for each CPU, beside computing threads on half of the CPUs.
fn beside_busy_threads(cpus: u32, steps: Vec<Step>) -> Scenario {
    let team =
        |threads, steps| Team { footprint_kib: 256, ..Team::new(threads, vec![forever(steps)]) };
    let others = vec![team(cpus / 2, vec![Work::us(1_000.0).into()])];
    let others = Program { watched: false, ..Program::new("others", others) };
    scenario(cores(cpus), vec![Program::new("p", vec![team(2 * cpus, steps)]), others])
}

#[test]
fn faithful_takes_no_cpu_time_from_busy_programs() {
    let work = || Step::from(Work { jitter: 0.2, ..Work::us(1_000.0) });
    for cpus in [24, 64] {
        let ran = |steps: Vec<Step>, policies| {
            let machine = machine(&beside_busy_threads(cpus, steps));
            let clock = machine.clock();
            let seen = steered(machine, clock, policies, 3);
            (seen.programs[0].progress.unwrap().rate, seen.host.others_busy.unwrap())
        };
        let policy = || -> Vec<Box<dyn Policy>> { vec![Box::new(FaithFul::new(cpus))] };
        // With long slices, the simulated balancer gives the others a quarter less.
        let computes = || vec![work(), Step::Beat];
        let (plain, with) = (ran(computes(), vec![]), ran(computes(), policy()));
        assert!(with.1 > 0.95 * plain.1, "{cpus} CPUs: {with:?}, {plain:?} without");
        let meets = || vec![work(), Step::Barrier("all".into()), Step::Beat];
        let (plain, with) = (ran(meets(), vec![]), ran(meets(), policy()));
        assert_eq!(with, plain, "{cpus} CPUs: a program that blocks is not changed");
    }
}

/// Two programs whose threads meet at barriers, and spin for this time before they block. One has a
/// thread for each CPU. The other one has fewer, so the programs do not alternate by themselves.
fn with_barriers(cpus: u32, spin_us: f64) -> Scenario {
    let work = Step::from(Work { jitter: 0.2, ..Work::us(100.0) });
    let body = || vec![forever(vec![work.clone(), Step::Barrier("all".into()), Step::Beat])];
    let program =
        |name, threads| Program { spin_us, ..Program::new(name, vec![Team::new(threads, body())]) };
    let hardware = Hardware { scheduler: Scheduler::TimeShare, ..cores(cpus) };
    scenario(hardware, vec![program("a", cpus), program("b", cpus / 2 + 1)])
}

#[test]
fn auto_gives_turns_to_programs_that_spin_side_by_side() {
    for cpus in [8, 24] {
        let beats = |spin_us, with_turns: bool| {
            let machine = machine(&with_barriers(cpus, spin_us));
            let clock = machine.clock();
            let auto = Auto::new(machine.topology(), None);
            let auto = if with_turns { auto.with_turns(machine.topology()) } else { auto };
            let seen = steered(machine, clock, vec![Box::new(auto)], 8);
            let beats = seen.programs.iter().map(|p| p.progress.unwrap().beats).collect::<Vec<_>>();
            (beats.iter().sum::<u64>(), beats)
        };
        let (without, with) = (beats(f64::INFINITY, false), beats(f64::INFINITY, true));
        assert!(with.0 > 2 * without.0, "{cpus} CPUs: {with:?}, {without:?} without turns");
        assert!(with.1.iter().all(|&one| one > with.0 / 3), "{cpus} CPUs: {with:?}");
        assert_eq!(beats(0.0, true), beats(0.0, false), "{cpus} CPUs: programs that block");
    }
}

/// An OpenMP program, beside `others` computing threads.
fn with_regions(cpus: u32, others: u32, spin_us: f64, part: Vec<Step>) -> Scenario {
    let region = Step::Parallel { name: "r".into(), steps: part };
    let team = Team::new(cpus, vec![forever(vec![region, Step::Beat])]);
    let program = Program { spin_us, ..Program::new("p", vec![team]) };
    let work = vec![forever(vec![Work::us(1_000.0).into()])];
    let others =
        Program { watched: false, ..Program::new("others", vec![Team::new(others, work)]) };
    scenario(cores(cpus), vec![program, others])
}

#[test]
fn team_finds_how_many_threads_have_work() {
    let work = |us| Work { jitter: 0.1, ..Work::us(us) };
    for cpus in [24, 64] {
        // Equal parts, beside other programs on a quarter of the CPUs: all threads wait for a
        // thread that shares its CPU.
        let parts = vec![Work { split: true, ..work(1_000.0 * f64::from(cpus)) }.into()];
        // Eleven threads keep the lock busy. The others spin, while another program uses one CPU.
        let lock = Step::Lock { name: "l".into(), steps: vec![work(4.0).into()] };
        let times =
            Step::Repeat { times: Some(480), shared: true, steps: vec![work(40.0).into(), lock] };
        for (what, scenario) in [
            ("parts", with_regions(cpus, cpus / 4, 20.0, parts)),
            ("lock", with_regions(cpus, 1, f64::INFINITY, vec![times])),
        ] {
            let policy = || -> Vec<Box<dyn Policy>> {
                vec![Box::new(Sizes::new(cpus, TeamSettings::default()))]
            };
            let rate = |seen: Snapshot| seen.programs[0].progress.unwrap().rate;
            let plain = machine(&scenario);
            let clock = plain.clock();
            let plain = rate(steered(plain, clock, vec![], 8));

            let steering = machine(&scenario);
            let clock = steering.clock();
            let with = rate(steered(steering, clock, policy(), 8));
            assert!(
                with > 1.2 * plain,
                "{what}, {cpus} CPUs: {with} regions a second, {plain} without it"
            );

            let inverted = Inverted(machine(&scenario));
            let clock = inverted.0.clock();
            let with_inverted = rate(steered(inverted, clock, policy(), 8));
            assert!(
                with_inverted < 0.8 * with,
                "{what}, {cpus} CPUs, inverted actions: {with_inverted} and {with}"
            );
        }
    }
}

#[test]
fn team_keeps_a_size_that_uses_all_cpus() {
    for cpus in [24, 64] {
        let parts = vec![Work { split: true, ..Work::us(1_000.0 * f64::from(cpus)) }.into()];
        let mut scenario = with_regions(cpus, 1, 20.0, parts);
        scenario.programs.truncate(1);
        let machine = machine(&scenario);
        let clock = machine.clock();
        let seen =
            steered(machine, clock, vec![Box::new(Sizes::new(cpus, TeamSettings::default()))], 8);
        assert_eq!(seen.programs[0].team.as_ref().map(|team| team.size), Some(cpus));
    }
}

/// Assigns the first half of the CPUs to every program.
struct OneForAll(Claims, u32);

impl Arbiter for OneForAll {
    fn claim(&mut self, program: ProgramId, min: u32, max: u32) {
        self.0.claim(program, min, max);
    }
    fn release(&mut self, program: ProgramId, to: u32) {
        self.0.release(program, to);
    }
    fn take(&mut self, program: ProgramId) {
        self.0.take(program);
    }
    fn cpus_of(&self, _: ProgramId) -> CpuSet {
        (0..self.1 / 2).map(CpuId).collect()
    }
    fn keeps(&self, program: ProgramId) -> Option<CpuSet> {
        self.0.keeps(program)
    }
}

/// A program that requests all CPUs. Each region takes `region_us` on all CPUs, and the program
/// ends after `times` regions, if set.
fn claiming(name: &str, cpus: u32, region_us: f64, times: Option<u64>) -> Program {
    let work = Work { split: true, jitter: 0.1, ..Work::us(region_us * f64::from(cpus)) };
    let region = Step::Parallel { name: "r".into(), steps: vec![work.into()] };
    let steps = vec![
        Step::Invade { min: 1, max: cpus },
        Step::Repeat { times, shared: false, steps: vec![region, Step::Beat] },
    ];
    Program { spin_us: 1_000.0, ..Program::new(name, vec![Team::new(cpus, steps)]) }
}

#[test]
fn claims_give_each_its_part_and_more_when_others_need_none() {
    for cpus in [24, 64] {
        let late = Program { start_ms: 1_000.0, ..claiming("late", cpus, 2_000.0, Some(250)) };
        let scenario = scenario(cores(cpus), vec![claiming("p", cpus, 2_000.0, None), late]);
        let claims = |machine: &SimMachine| {
            let mut claims = Claims::new(machine.topology().clone());
            claims.unclaimed_min = 0;
            claims
        };
        let mut with = machine(&scenario);
        with.arbitrate(Box::new(claims(&with)));
        let mut clock = with.clock();
        let mut sizes = vec![];
        for at_ms in [500, 1_500, 4_000] {
            while clock.now_ns() < at_ms * 1_000_000 {
                clock.wait_until(at_ms * 1_000_000);
            }
            let seen = with.observe().unwrap();
            sizes.push(seen.programs[0].team.as_ref().map(|team| team.size));
        }
        assert_eq!(sizes, [Some(cpus), Some(cpus / 2), Some(cpus)]);
        // The work of both programs in two seconds, and their preemptions.
        let ran = |mut machine: SimMachine| {
            let mut clock = machine.clock();
            while clock.now_ns() < 2 * SECOND {
                clock.wait_until(2 * SECOND);
            }
            let outcomes = machine.outcomes();
            let sum = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
            (sum(|o| o.beats), sum(|o| o.involuntary_switches))
        };
        let mut with = machine(&scenario);
        with.arbitrate(Box::new(claims(&with)));
        let mut with_inverted = machine(&scenario);
        let shared = OneForAll(claims(&with_inverted), cpus);
        with_inverted.arbitrate(Box::new(shared));
        let (with, plain, with_inverted) = (ran(with), ran(machine(&scenario)), ran(with_inverted));
        assert!(
            with.1 * 10 < plain.1,
            "{cpus} CPUs: {} preemptions, {} without claims",
            with.1,
            plain.1
        );
        assert!(
            with.0 > plain.0 * 95 / 100,
            "{cpus} CPUs: {} regions, {} without claims",
            with.0,
            plain.0
        );
        assert!(
            with_inverted.0 < with.0 * 7 / 10,
            "{cpus} CPUs, inverted arbiter: {} of {}",
            with_inverted.0,
            with.0
        );
    }
}

#[test]
fn claim_that_is_not_returned_in_time_is_taken() {
    // Regions of three seconds: no size takes effect during a region.
    let late = Program { start_ms: 1_000.0, ..claiming("late", 8, 1_000.0, None) };
    let mut machine =
        machine(&scenario(Hardware::flat(8), vec![claiming("p", 8, 3e6, None), late]));
    let mut claims = Claims::new(machine.topology().clone());
    claims.unclaimed_min = 0;
    machine.arbitrate(Box::new(claims));
    let mut clock = machine.clock();
    let size = |machine: &mut SimMachine, clock: &mut dyn Clock, at_ms: u64| {
        clock.wait_until(at_ms * 1_000_000);
        machine.observe().unwrap().programs[1].team.as_ref().map(|team| team.size)
    };
    assert_eq!(
        size(&mut machine, &mut clock, 1_400),
        Some(1),
        "without a CPU, the program continues with one thread"
    );
    assert_eq!(
        size(&mut machine, &mut clock, 1_700),
        Some(4),
        "half a second later, the program has its part"
    );
}
