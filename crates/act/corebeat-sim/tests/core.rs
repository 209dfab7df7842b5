//! Properties of every simulated machine, and the behaviour of its parts.

use corebeat_machine::{
    Action, Arbiter, Class, Clock, Coscheduler, CpuSet, Machine, Plan, ProgramId, Target,
    ThreadSample,
};
use corebeat_sim::{
    Hardware, Program, Scenario, Scheduler, Set, SimMachine, StartClass, Step, Team, Work,
};
use proptest::prelude::*;
use std::cell::Cell;
use std::rc::Rc;

const MS: u64 = 1_000_000;
const S: u64 = 1_000 * MS;

fn compute(us: f64) -> Step {
    Work::us(us).into()
}

fn forever(steps: Vec<Step>) -> Step {
    Step::Repeat { times: None, shared: false, steps }
}

fn times(times: u64, steps: Vec<Step>) -> Step {
    Step::Repeat { times: Some(times), shared: false, steps }
}

fn lock(name: &str, steps: Vec<Step>) -> Step {
    Step::Lock { name: name.into(), steps }
}

/// A program whose threads compute without end.
fn busy(name: &str, threads: u32) -> Program {
    Program::new(name, vec![Team::new(threads, vec![forever(vec![compute(1_000.0)])])])
}

fn scenario(machine: Hardware, programs: Vec<Program>, duration_s: Option<f64>) -> Scenario {
    Scenario { machine, programs, duration_s, sets: vec![], policies: vec![] }
}

fn machine(scenario: &Scenario) -> SimMachine {
    SimMachine::new(scenario, 1).unwrap_or_else(|e| panic!("{e}"))
}

/// The machine at the end of the scenario.
fn ended(scenario: &Scenario) -> SimMachine {
    let mut machine = machine(scenario);
    machine.run();
    machine
}

/// The run time of a program, in milliseconds.
fn wall_ms(machine: &mut SimMachine, program: usize) -> f64 {
    let outcome = &machine.outcomes()[program];
    (outcome.end_ns.expect("the program has ended") - outcome.start_ns) as f64 / 1e6
}

#[test]
fn single_thread_takes_the_time_of_its_work() {
    let mut machine = ended(&scenario(
        Hardware::flat(1),
        vec![Program::new("p", vec![Team::new(1, vec![times(100, vec![compute(1_000.0)])])])],
        None,
    ));
    let wall = wall_ms(&mut machine, 0);
    assert!((100.0..100.1).contains(&wall), "{wall}");
    assert_eq!(machine.outcomes()[0].involuntary_switches, 0);
}

#[test]
fn threads_share_a_cpu_by_their_weights() {
    let mut nice = busy("nice", 1);
    nice.nice = 5;
    let mut machine = ended(&scenario(Hardware::flat(1), vec![busy("plain", 1), nice], Some(10.0)));
    let outcomes = machine.outcomes();
    let ratio = outcomes[0].user_ns as f64 / outcomes[1].user_ns as f64;
    assert!((ratio / 3.05 - 1.0).abs() < 0.05, "{ratio} instead of 1.25 to the fifth, 3.05");
}

#[test]
fn three_threads_share_two_cpus_equally() {
    let mut machine = ended(&scenario(Hardware::flat(2), vec![busy("p", 3)], Some(10.0)));
    let snapshot = machine.observe().unwrap();
    for t in &snapshot.programs[0].threads {
        let share = t.shares.running().unwrap();
        assert!(
            (share - 2.0 / 3.0).abs() < 0.05,
            "{share}: each thread has a CPU to itself for a third of the time"
        );
    }
}

#[test]
fn slice_determines_the_switch_rate() {
    for (slice_us, tick_us, expected) in [
        (3_000.0, 0.0, 300..350),
        (100_000.0, 0.0, 9..12),
        (500.0, 0.0, 1_900..2_010),
        // Slices end at ticks.
        (500.0, 4_000.0, 245..255),
        (3_000.0, 4_000.0, 245..255),
        (5_000.0, 4_000.0, 122..128),
    ] {
        let machine = Hardware { slice_us, tick_us, ..Hardware::flat(1) };
        let outcomes = ended(&scenario(machine, vec![busy("p", 2)], Some(1.0))).outcomes();
        let switches = outcomes[0].involuntary_switches;
        assert!(expected.contains(&switches), "{slice_us} {tick_us}: {switches}");
    }
}

#[test]
fn split_and_shared_work_is_done_once() {
    for (work, threads) in [
        (vec![Work { split: true, ..Work::us(80_000.0) }.into()], 8),
        (vec![Step::Repeat { times: Some(800), shared: true, steps: vec![compute(100.0)] }], 8),
    ] {
        let program = Program::new("p", vec![Team::new(threads, work)]);
        let mut machine = ended(&scenario(Hardware::flat(8), vec![program], None));
        let (wall, outcome) = (wall_ms(&mut machine, 0), machine.outcomes().remove(0));
        assert!((10.0..10.3).contains(&wall), "{wall}");
        assert!((outcome.user_ns as f64 / 80e6 - 1.0).abs() < 0.01, "{}", outcome.user_ns);
    }
}

#[test]
fn lock_excludes_other_threads() {
    let steps = vec![times(100, vec![lock("l", vec![compute(100.0)])])];
    let program = Program::new("p", vec![Team::new(8, steps)]);
    let mut machine = ended(&scenario(Hardware::flat(8), vec![program], None));
    let wall = wall_ms(&mut machine, 0);
    assert!((80.0..100.0).contains(&wall), "800 times 0.1 ms in sequence: {wall}");
    let snapshot = machine.observe().unwrap();
    assert!(snapshot.programs[0].mean(|s| s.lock).unwrap() > 0.7);
    assert_eq!(snapshot.programs[0].mean(|s| s.park), Some(0.0));
}

#[test]
fn barrier_releases_all_after_the_last_arrival() {
    let team = |us| Team::new(1, vec![times(100, vec![compute(us), Step::Barrier("b".into())])]);
    let program = Program::new("p", vec![team(100.0), team(900.0)]);
    let mut machine = ended(&scenario(Hardware::flat(2), vec![program], None));
    let wall = wall_ms(&mut machine, 0);
    assert!((90.0..92.0).contains(&wall), "the slow thread determines the time: {wall}");
    let outcome = &machine.outcomes()[0];
    assert!((75_000_000..82_000_000).contains(&outcome.park_ns), "{}", outcome.park_ns);
    assert!(outcome.lock_ns < 1_000_000, "{}", outcome.lock_ns);
}

#[test]
fn queue_delivers_every_item_and_ends_its_consumers() {
    let source = Team::new(2, vec![times(500, vec![compute(10.0), Step::Push("q".into())])]);
    let worker = Team::new(
        3,
        vec![forever(vec![Step::Pop("q".into()), compute(30.0), Step::Push("r".into())])],
    );
    let sink = Team::new(1, vec![forever(vec![Step::Pop("r".into()), Step::Beat])]);
    let mut program = Program::new("p", vec![source, worker, sink]);
    for (spin_us, items) in [(0.0, 1), (0.0, 64), (50.0, 4), (f64::INFINITY, 1)] {
        (program.spin_us, program.queue_items) = (spin_us, items);
        for cpus in [1, 4, 8] {
            let mut machine =
                ended(&scenario(Hardware::flat(cpus), vec![program.clone()], Some(100.0)));
            let outcome = machine.outcomes().remove(0);
            assert_eq!(machine.deadlock(), None);
            assert_eq!(outcome.beats, 1_000, "spin {spin_us}, {items} items, {cpus} CPUs");
            assert!(outcome.end_ns.is_some());
        }
    }
}

#[test]
fn condition_stores_signals_and_broadcast_wakes_all() {
    let giver = Team::new(
        1,
        vec![
            times(10, vec![Step::Signal("go".into())]),
            compute(5_000.0),
            Step::Broadcast("all".into()),
        ],
    );
    let taker =
        Team::new(10, vec![compute(1_000.0), Step::Wait("go".into()), Step::Wait("all".into())]);
    let program = Program::new("p", vec![giver, taker]);
    let mut machine = ended(&scenario(Hardware::flat(16), vec![program], None));
    assert_eq!(machine.deadlock(), None);
    assert!((5.0..5.2).contains(&wall_ms(&mut machine, 0)));
}

#[test]
fn deadlock_report_names_threads_and_objects() {
    let program = Program::new(
        "p",
        vec![
            Team::new(2, vec![Step::Barrier("a".into()), Step::Barrier("b".into())]),
            Team::new(1, vec![compute(10.0), Step::Barrier("b".into()), Step::Barrier("a".into())]),
        ],
    );
    let machine = ended(&scenario(Hardware::flat(2), vec![program], None));
    let report = machine.deadlock().unwrap();
    for part in [
        "(and 1 more) waits for barrier 'a' of program 'p'; ",
        "waits for barrier 'b' of program 'p'",
    ] {
        assert!(report.contains(part), "{report}");
    }
}

#[test]
fn io_is_sleep_and_counts_bytes() {
    let steps = vec![times(
        10,
        vec![compute(1_000.0), Step::Io { us: 9_000.0, jitter: 0.0, bytes: 4_096 }],
    )];
    let mut machine = ended(&scenario(
        Hardware::flat(1),
        vec![Program::new("p", vec![Team::new(1, steps)])],
        None,
    ));
    let snapshot = machine.observe().unwrap();
    let program = &snapshot.programs[0];
    assert_eq!(program.io_bytes, Some(40_960));
    assert!((program.mean(|s| s.sleep).unwrap() - 0.9).abs() < 0.01);
}

#[test]
fn progress_is_the_rate_over_the_window() {
    let steps = vec![forever(vec![compute(10_000.0), Step::Beat])];
    let mut machine = ended(&scenario(
        Hardware::flat(1),
        vec![Program::new("p", vec![Team::new(1, steps)])],
        Some(3.0),
    ));
    let snapshot = machine.observe().unwrap();
    let progress = snapshot.programs[0].progress.unwrap();
    assert!((progress.rate - 100.0).abs() <= 1.0 && progress.beats >= 299, "{progress:?}");
}

#[test]
fn unwatched_programs_count_as_other_load() {
    let mut others = busy("others", 2);
    others.watched = false;
    let mut machine = ended(&scenario(Hardware::flat(1), vec![busy("p", 1), others], Some(1.0)));
    let snapshot = machine.observe().unwrap();
    assert_eq!(snapshot.programs.len(), 1);
    assert!((snapshot.host.others_busy.unwrap() - 2.0 / 3.0).abs() < 0.02);
    assert!((snapshot.host.others_runnable.unwrap() - 2.0).abs() < 0.02);
}

/// The CPU use of two programs after an action on the first.
fn shares_after(action: &Action, cpus: u32, threads: (u32, u32)) -> (f64, f64) {
    let programs = vec![busy("a", threads.0), busy("b", threads.1)];
    let mut machine = machine(&scenario(Hardware::flat(cpus), programs, Some(20.0)));
    let mut clock = machine.clock();
    clock.wait_until(S);
    machine.observe().unwrap();
    machine.act(action).unwrap();
    clock.wait_until(6 * S);
    let snapshot = machine.observe().unwrap();
    let cpus = |p: usize| snapshot.programs[p].cpus(snapshot.span_ns, |s| s.running()).unwrap();
    (cpus(0), cpus(1))
}

#[test]
fn actions_change_shares() {
    let (program, target) = (ProgramId(0), Target::Program(ProgramId(0)));
    let near = |shares: (f64, f64), a: f64, b: f64| {
        assert!(
            (shares.0 - a).abs() < 0.03 && (shares.1 - b).abs() < 0.03,
            "{shares:?} instead of {a} and {b}"
        );
    };
    near(shares_after(&Action::SetNice { target, nice: -5 }, 1, (1, 1)), 0.753, 0.247);
    near(shares_after(&Action::SetWeight { program, weight: 300 }, 1, (3, 1)), 0.75, 0.25);
    near(shares_after(&Action::SetWeight { program, weight: 100 }, 1, (3, 1)), 0.5, 0.5);
    near(shares_after(&Action::SetQuota { program, cpus: Some(0.3) }, 1, (1, 1)), 0.3, 0.7);
    near(shares_after(&Action::SetQuota { program, cpus: Some(1.5) }, 5, (4, 1)), 1.5, 1.0);
    near(shares_after(&Action::SetClass { target, class: Some(Class::Idle) }, 1, (2, 1)), 0.0, 1.0);
    let cpus: CpuSet = "0".parse().unwrap();
    near(shares_after(&Action::SetCpus { target, cpus: Some(cpus) }, 2, (4, 1)), 1.0, 1.0);
}

#[test]
fn set_cpus_none_restores_the_programs_cpus() {
    let mut program = busy("a", 4);
    program.cpus = Some("0-2".parse().unwrap());
    let mut machine = machine(&scenario(Hardware::flat(4), vec![program], Some(100.0)));
    let mut clock = machine.clock();
    let target = Target::Program(ProgramId(0));
    for (at_s, cpus, runs_on) in [(1, Some("3".parse().unwrap()), 1.0), (2, None, 3.0)] {
        machine.act(&Action::SetCpus { target, cpus }).unwrap();
        machine.observe().unwrap();
        clock.wait_until(at_s * S);
        let snapshot = machine.observe().unwrap();
        let cpus = snapshot.programs[0].cpus(snapshot.span_ns, |s| s.running()).unwrap();
        assert!((cpus - runs_on).abs() < 0.01, "{cpus} instead of {runs_on}");
    }
}

/// Instructions per second of 16 threads on four nodes that all use one node's memory, after
/// actions.
fn speed_after(shared: f64, actions: &[Action]) -> u64 {
    let work = Work { memory: 0.6, shared, ..Work::us(500.0) };
    let program = Program::new("p", vec![Team::new(16, vec![forever(vec![work.into()])])]);
    let mut machine = machine(&scenario(
        Hardware { packages: 4, cores: 4, ..Hardware::default() },
        vec![program],
        Some(100.0),
    ));
    let mut clock = machine.clock();
    for action in actions {
        machine.act(action).unwrap();
        clock.wait_until(clock.now_ns() + S);
    }
    machine.observe().unwrap();
    clock.wait_until(clock.now_ns() + S);
    machine.observe().unwrap().programs[0].counters().instructions.unwrap()
}

#[test]
fn spreading_pages_helps_shared_data_and_hurts_private_data() {
    let spread = |spread| Action::SpreadPages { program: ProgramId(0), spread };
    let same = |a: u64, b: u64| (a as f64 / b as f64 - 1.0).abs() < 0.02;
    for (shared, helps) in [(1.0, true), (0.0, false)] {
        let (plain, with) = (speed_after(shared, &[]), speed_after(shared, &[spread(true)]));
        assert_eq!(with > plain, helps, "{shared} shared: {plain} and {with}");
        let back = speed_after(shared, &[spread(true), spread(false)]);
        assert!(same(back, plain), "{shared} shared: {plain}, and {back} after restoring");
    }
}

#[test]
fn migration_to_another_cache_causes_misses() {
    let misses = |cpus: [&str; 2]| {
        let hardware = Hardware { packages: 2, ..Hardware::default() };
        let mut machine = machine(&scenario(hardware, vec![busy("a", 1)], Some(100.0)));
        let mut clock = machine.clock();
        for (at_s, cpus) in cpus.iter().zip(1..).map(|(cpus, at)| (at, cpus)) {
            let target = Target::Program(ProgramId(0));
            machine.act(&Action::SetCpus { target, cpus: Some(cpus.parse().unwrap()) }).unwrap();
            machine.observe().unwrap();
            clock.wait_until(at_s * S);
        }
        machine.observe().unwrap().programs[0].counters().cache_misses.unwrap()
    };
    assert_eq!(misses(["0", "0"]), 0);
    assert_eq!(misses(["0", "1"]), 256 * 16, "each line of the footprint, once");
}

#[test]
fn invalid_actions_are_rejected() {
    let mut machine = machine(&scenario(Hardware::flat(1), vec![busy("a", 1)], Some(1.0)));
    for action in [
        Action::SetNice { target: Target::Program(ProgramId(7)), nice: 0 },
        Action::SetCpus { target: Target::Program(ProgramId(0)), cpus: Some("9".parse().unwrap()) },
        Action::SetQuota { program: ProgramId(0), cpus: Some(0.0) },
        Action::SetTeam { program: ProgramId(0), size: None },
    ] {
        assert!(machine.act(&action).is_err(), "{action}");
    }
}

#[test]
fn tasks_of_a_set_reject_other_cpus() {
    /// The first CPU is always assigned to the set.
    struct First;
    impl Coscheduler for First {
        fn plan(&mut self, _: u64, _: &[u32], _: u32) -> Plan {
            Plan { cpus: vec![Some(0), None], until_ns: u64::MAX }
        }
    }
    let mut scenario = scenario(Hardware::flat(2), vec![busy("a", 1)], Some(1.0));
    scenario.sets = vec![Set { name: "s".into(), cpus: 1, within: None }];
    scenario.programs[0].set = Some("s".into());
    let mut machine = machine(&scenario);
    machine.coschedule(Box::new(First));
    machine.clock().wait_until(MS);
    let bind =
        Action::SetCpus { target: Target::Program(ProgramId(0)), cpus: Some("1".parse().unwrap()) };
    assert!(machine.act(&bind).unwrap_err().to_string().contains("run on the CPUs of their set"));
    machine.run();
    assert!(machine.busy_ns()[0] > S - MS, "the task ran");
}

#[test]
fn batch_threads_do_not_preempt() {
    let sleeper = |class| {
        let steps =
            vec![forever(vec![compute(100.0), Step::Io { us: 900.0, jitter: 0.0, bytes: 0 }])];
        let mut program = Program::new("sleeper", vec![Team::new(1, steps)]);
        program.class = class;
        let mut machine =
            ended(&scenario(Hardware::flat(1), vec![busy("worker", 1), program], Some(1.0)));
        machine.outcomes()[0].involuntary_switches
    };
    let (normal, batch) = (sleeper(StartClass::Normal), sleeper(StartClass::Batch));
    assert!(normal > 2 * batch, "{normal} with preemption, {batch} without");
}

#[test]
fn time_share_priorities_fall_with_use_and_rise_with_sleep() {
    let machine = Hardware { scheduler: Scheduler::TimeShare, ..Hardware::flat(1) };
    let steps = vec![forever(vec![compute(500.0), Step::Io { us: 500.0, jitter: 0.0, bytes: 0 }])];
    let sleeper = Program::new("sleeper", vec![Team::new(1, steps)]);
    let mut machine = ended(&scenario(machine, vec![busy("worker", 1), sleeper], Some(10.0)));
    let outcomes = machine.outcomes();
    let share = outcomes[1].user_ns as f64 / 10e9;
    assert!(share > 0.45, "a thread that sleeps has precedence: {share}");
    assert!(outcomes[0].involuntary_switches > 5_000, "{}", outcomes[0].involuntary_switches);
}

fn region(name: &str, steps: Vec<Step>) -> Step {
    Step::Parallel { name: name.into(), steps }
}

#[test]
fn parallel_region_is_shared_by_the_threads_of_the_team() {
    let split = |us| Step::from(Work { split: true, ..Work::us(us) });
    // Serial work, split work, and a shared loop.
    let part = Step::Repeat { times: Some(8), shared: true, steps: vec![compute(100.0)] };
    let steps = vec![forever(vec![
        compute(200.0),
        region("a", vec![split(800.0)]),
        region("b", vec![part]),
    ])];
    let program = Program::new("p", vec![Team::new(8, steps)]);
    let mut machine = machine(&scenario(Hardware::flat(8), vec![program], Some(10.0)));
    let mut clock = machine.clock();
    // From large to small and back, so that threads return to loops that others have entered.
    for (at, (size, each_us)) in
        [(None, 100.0), (Some(2), 400.0), (Some(4), 200.0), (Some(99), 100.0)]
            .into_iter()
            .enumerate()
    {
        machine.act(&Action::SetTeam { program: ProgramId(0), size }).unwrap();
        clock.wait_until((at as u64 * 100 + 10) * MS);
        machine.observe().unwrap();
        clock.wait_until((at as u64 + 1) * 100 * MS);
        let snapshot = machine.observe().unwrap();
        let team = snapshot.programs[0].team.clone().unwrap();
        let expected = size.unwrap_or(8).min(8);
        assert_eq!(
            (team.size_max, team.size, team.fixed, team.regions.len()),
            (8, expected, false, 2)
        );
        for region in team.regions {
            let mean_us = region.time_ns as f64 / region.count as f64 / 1e3;
            assert_eq!(region.size, expected);
            assert!(
                (mean_us / each_us - 1.0).abs() < 0.25,
                "{region:?}: {mean_us} instead of {each_us}"
            );
        }
    }
    assert!(machine.act(&Action::SetTeam { program: ProgramId(0), size: Some(0) }).is_err());
}

#[test]
fn team_ends_with_its_first_thread() {
    for spin_us in [0.0, 50.0, f64::INFINITY] {
        let steps = vec![times(
            50,
            vec![region("r", vec![compute(30.0), lock("l", vec![compute(3.0)])]), Step::Beat],
        )];
        let program = Program { spin_us, ..Program::new("p", vec![Team::new(6, steps)]) };
        let mut machine = ended(&scenario(Hardware::flat(4), vec![program], None));
        assert_eq!(
            machine.outcomes()[0].beats,
            50,
            "only the first thread emits heartbeats outside of regions"
        );
    }
}

/// The first program has both CPUs, and the second CPU after a retreat. Whenever the second program
/// claims, the first must keep only the second CPU.
#[derive(Default)]
struct Script {
    has_retreated: bool,
    must_release: bool,
    taken: Rc<Cell<u32>>,
}

impl Arbiter for Script {
    fn claim(&mut self, program: ProgramId, _: u32, _: u32) {
        self.must_release = program.0 == 1;
    }
    fn release(&mut self, program: ProgramId, _: u32) {
        self.has_retreated |= program.0 == 0;
    }
    fn take(&mut self, _: ProgramId) {
        self.must_release = false;
        self.taken.set(self.taken.get() + 1);
    }
    fn cpus_of(&self, program: ProgramId) -> CpuSet {
        match (program.0, self.has_retreated) {
            (0, false) => "0-1".parse().unwrap(),
            (0, true) => "1".parse().unwrap(),
            _ => CpuSet::new(),
        }
    }
    fn keeps(&self, program: ProgramId) -> Option<CpuSet> {
        (program.0 == 0 && self.must_release).then(|| "1".parse().unwrap())
    }
}

const INVADE: Step = Step::Invade { min: 1, max: 2 };

#[test]
fn each_release_request_has_the_full_deadline() {
    // After the request at 350 ms, the program releases at 400 ms and begins a long region. The
    // request at 550 ms has its deadline at 1,050 ms.
    let first = vec![
        INVADE,
        times(4, vec![region("short", vec![compute(100_000.0)])]),
        region("long", vec![compute(2e6)]),
    ];
    let second = vec![
        compute(350_000.0),
        INVADE,
        compute(200_000.0),
        INVADE,
        region("r", vec![compute(1.0)]),
    ];
    let program = |name, steps| Program::new(name, vec![Team::new(2, steps)]);
    let programs = vec![program("first", first), program("second", second)];
    let mut machine = machine(&scenario(Hardware::flat(4), programs, Some(2.0)));
    let script = Script::default();
    let taken = Rc::clone(&script.taken);
    machine.arbitrate(Box::new(script));
    let mut clock = machine.clock();
    for (at_ms, times) in [(390, 0), (900, 1), (1_100, 2)] {
        while clock.now_ns() < at_ms * MS {
            clock.wait_until(at_ms * MS);
        }
        assert_eq!(taken.get(), times, "at {at_ms} ms");
    }
}

#[test]
fn first_thread_continues_on_its_claim_after_a_retreat() {
    let steps =
        |to| vec![INVADE, region("r", vec![compute(1_000.0)]), Step::Retreat(to), compute(1e6)];
    let program = |to| Program::new("p", vec![Team::new(2, steps(to))]);
    let mut claiming = machine(&scenario(Hardware::flat(2), vec![program(1)], Some(2.0)));
    claiming.arbitrate(Box::new(Script::default()));
    claiming.run();
    assert!(claiming.busy_ns()[1] > S, "{:?}", claiming.busy_ns());
    // Without an arbiter, the CPUs that a policy has set stay in effect.
    let mut bound =
        machine(&scenario(Hardware::flat(2), vec![program(0), busy("q", 1)], Some(2.0)));
    let bind = |program, cpu: &str| Action::SetCpus {
        target: Target::Program(ProgramId(program)),
        cpus: Some(cpu.parse().unwrap()),
    };
    bound.act(&bind(0, "1")).unwrap();
    bound.act(&bind(1, "1")).unwrap();
    bound.run();
    assert!(bound.busy_ns()[0] < MS, "{:?}", bound.busy_ns());
}

/// A random program that ends.
fn any_program() -> impl Strategy<Value = Program> {
    let step = prop_oneof![
        (1.0..3_000.0f64, 0.0..1.0f64, 0.0..1.0f64)
            .prop_map(|(us, jitter, memory)| Step::from(Work { jitter, memory, ..Work::us(us) })),
        (1.0..3_000.0f64).prop_map(|us| Step::Io { us, jitter: 0.5, bytes: 1 }),
        (0..2u8, 1.0..500.0f64).prop_map(|(l, us)| lock(&format!("l{l}"), vec![compute(us)])),
        Just(Step::Barrier("b".into())),
        Just(Step::Beat),
        (1.0..500.0f64, any::<bool>()).prop_map(|(us, split)| region(
            "r",
            vec![Work { split, ..Work::us(us) }.into(), lock("l", vec![compute(9.0)]), Step::Beat]
        )),
    ];
    let team = (1..12u32, proptest::collection::vec(step, 1..6), 1..20u64, 0..4_096u64).prop_map(
        |(threads, mut steps, n, footprint_kib)| {
            steps.push(compute(5.0));
            Team { footprint_kib, ..Team::new(threads, vec![times(n, steps)]) }
        },
    );
    (team, prop_oneof![Just(0.0), 1.0..200.0f64, Just(f64::INFINITY)], -10..10i8).prop_map(
        |(team, spin_us, nice)| Program { spin_us, nice, ..Program::new("p", vec![team]) },
    )
}

fn any_scenario() -> impl Strategy<Value = Scenario> {
    let schedulers =
        prop_oneof![Just(Scheduler::Fair), Just(Scheduler::TimeShare), Just(Scheduler::Solaris)];
    let machine =
        (1..3u32, 1..3u32, 1..3u32, 1..4u32, schedulers).prop_map(|(p, n, c, cores, scheduler)| {
            Hardware { packages: p, nodes: n, caches: c, cores, scheduler, ..Hardware::default() }
        });
    (machine, proptest::collection::vec(any_program(), 1..4))
        .prop_map(|(machine, programs)| scenario(machine, programs, Some(5.0)))
}

proptest! {
    #[test]
    fn cpu_time_is_conserved_and_shares_sum_to_one(scenario in any_scenario()) {
        let mut machine = machine(&scenario);
        let mut clock = machine.clock();
        let (mut ran, mut at) = (0.0, 0);
        while !machine.is_over() {
            at += 37 * MS;
            clock.wait_until(at);
            let snapshot = machine.observe().unwrap();
            for t in snapshot.programs.iter().flat_map(|p| &p.threads).filter(|t| t.span_ns > 0) {
                prop_assert!(t.span_ns <= snapshot.span_ns);
                let s = t.shares;
                let all = s.user.unwrap() + s.system.unwrap() + s.lock.unwrap() + s.park.unwrap();
                prop_assert!((all + s.wait.unwrap() + s.sleep.unwrap() - 1.0).abs() < 1e-9);
                prop_assert!(s.spin.unwrap() <= s.user.unwrap() + 1e-12);
                ran += s.running().unwrap() * t.span_ns as f64;
            }
        }
        let busy = machine.busy_ns();
        let is_possible = busy.iter().all(|&ns| ns <= clock.now_ns());
        prop_assert!(is_possible, "the busy time of a CPU is at most the simulated time");
        let busy: u64 = busy.iter().sum();
        let outcomes = machine.outcomes();
        prop_assert_eq!(busy, outcomes.iter().map(|o| o.user_ns + o.system_ns).sum::<u64>());
        prop_assert!((ran - busy as f64).abs() < 1e3, "{} observed of {}", ran, busy);
    }

    #[test]
    fn thread_is_never_on_two_cpus(scenario in any_scenario()) {
        let mut machine = machine(&scenario);
        machine.record();
        machine.run();
        let timeline = machine.timeline();
        let threads: u32 = scenario.programs.iter().flat_map(|p| &p.teams).map(|t| t.threads).sum();
        let mut stays = vec![Vec::new(); threads as usize];
        for spans in &timeline.cpus {
            let is_serial = spans.windows(2).all(|w| w[0].to_ns <= w[1].from_ns);
            prop_assert!(is_serial, "one thread at a time on a CPU");
            spans.iter().for_each(|s| stays[s.thread].push((s.from_ns, s.to_ns)));
        }
        for mut stays in stays {
            stays.sort_unstable();
            prop_assert!(stays.windows(2).all(|w| w[0].1 <= w[1].0), "{:?}", stays);
        }
    }

    #[test]
    fn no_cpu_idles_while_a_thread_waits_for_longer_than_a_balance_period(
        scenario in any_scenario(), pinned in 0..4usize
    ) {
        let mut scenario = scenario;
        // One program may run only on the first CPU.
        if let Some(program) = scenario.programs.get_mut(pinned) {
            program.cpus = Some("0".parse().unwrap());
        }
        let mut machine = machine(&scenario);
        let mut clock = machine.clock();
        let period_ns = (scenario.machine.balance_us * 1e3) as u64;
        let mut before = machine.busy_ns();
        while !machine.is_over() {
            clock.wait_until(clock.now_ns() + period_ns);
            let snapshot = machine.observe().unwrap();
            let busy = machine.busy_ns();
            let idle: Vec<usize> = (0..busy.len()).filter(|&c| busy[c] == before[c]).collect();
            for p in &snapshot.programs {
                let may = |c: &&usize| p.id.0 as usize != pinned || **c == 0;
                let waits = |t: &ThreadSample| t.span_ns == period_ns && t.shares.wait == Some(1.0);
                let waits = p.threads.iter().any(waits);
                let is_idle = idle.iter().any(|c| may(&c));
                prop_assert!(!waits || !is_idle, "{:?} idle at {}", idle, snapshot.at_ns);
            }
            before = busy;
        }
    }

    #[test]
    fn same_seed_same_events(scenario in any_scenario(), seed in any::<u64>()) {
        let run = |seed| {
            let mut machine = SimMachine::new(&scenario, seed).unwrap();
            machine.run();
            (machine.fingerprint(), machine.events(), machine.outcomes())
        };
        prop_assert_eq!(run(seed), run(seed));
    }
}
