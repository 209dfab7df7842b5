//! The search finds a witness where the exact test finds a missed deadline, and none elsewhere.

use corebeat_verify::generate::task_set;
use corebeat_verify::{
    Activation, Model, Range, Search, SearchOptions, System, Task, Verdict, Witness, analyse, btf,
    gantt_svg, perfetto, read_toml,
};
use fastrand::Rng;

/// A model of one core with a random task set, whose analysis is exact.
fn model(random: &mut Rng) -> Model {
    let count = random.usize(2..=20);
    let share = 0.7 + random.f64() * 0.35;
    let mut model = Model::default();
    model.cores.push(corebeat_verify::Core { name: "c".into(), ..Default::default() });
    let is_non_preemptive = random.u8(..4) == 0;
    let has_jitter = random.u8(..3) == 0;
    for entry in task_set(random, count, share, (1_000_000, 100_000_000), 1_000) {
        let period_ns = entry.deadline_ns.unwrap();
        let worst = entry.execution_ns.worst;
        let range = Range { best: worst / 2, worst };
        let name = format!("t{}", entry.task);
        let mut task = Task::new(name, period_ns, range, entry.priority);
        if random.bool() {
            task.deadline_ns = Some(random.u64(worst..=period_ns));
        }
        if is_non_preemptive {
            task.preemption = corebeat_verify::Preemption::NonPreemptive;
        } else if has_jitter {
            let jitter_ns = random.u64(..period_ns / 4);
            task.activation = Some(Activation::Periodic { period_ns, offset_ns: None, jitter_ns });
        }
        model.tasks.push(task);
    }
    model
}

#[test]
fn witness_exists_if_and_only_if_the_exact_test_fails() {
    let (mut unschedulable, mut found) = (0, 0);
    for round in 0..120 {
        let mut random = Rng::with_seed(round);
        let model = model(&mut random);
        let report = analyse(&model);
        let system = System::new(&model, None);
        let options = SearchOptions { evaluations: 400, seed: round, ..SearchOptions::default() };
        let mut search = Search::new(&system, options);
        while search.step() {}
        let best = search.found().unwrap();
        match report.verdict {
            Verdict::Schedulable => assert!(!best.is_miss, "round {round}"),
            Verdict::Unschedulable => {
                unschedulable += 1;
                found += usize::from(best.is_miss);
                let witness = Witness::new(&model, None, &system, &best);
                let witness = Witness::read(&witness.write()).unwrap();
                let replay = witness.replay(&model).unwrap();
                assert_eq!(witness.is_miss(), best.is_miss, "round {round}");
                assert_eq!(replay.entry, best.entry);
            }
            Verdict::Unknown => panic!("round {round}: {report:?}"),
        }
    }
    assert!(unschedulable > 20 && unschedulable < 110, "{unschedulable}");
    assert!(found * 100 >= unschedulable * 99, "{found} of {unschedulable}");
}

/// Two cores that share a spin lock, a task that follows another, and a deadline that the search
/// can break only by the right phases.
const LOCKED: &str = "
resources = ['lock']
[[cores]]
name = 'c0'
[[cores]]
name = 'c1'
[[tasks]]
name = 'sensor'
period = '10 ms'
execution = ['1 ms', '3 ms']
priority = 2
core = 'c0'
sections = [{ resource = 'lock', execution = '1 ms' }]
[[tasks]]
name = 'filter'
after = 'sensor'
execution = '2 ms'
priority = 1
core = 'c0'
[[tasks]]
name = 'logger'
min_distance = '15 ms'
execution = '6 ms'
priority = 1
core = 'c1'
sections = [{ resource = 'lock', execution = '4 ms' }]
[[tasks]]
name = 'burst'
arrival_spans = ['1 ms', '30 ms']
execution = '500 us'
priority = 3
core = 'c1'
";

#[test]
fn worst_case_of_cores_with_a_spin_lock_replays_and_draws() {
    let model = read_toml(LOCKED).unwrap();
    let system = System::new(&model, None);
    let options = SearchOptions {
        evaluations: 3_000,
        task: Some(0),
        stops_at_miss: false,
        ..Default::default()
    };
    let mut search = Search::new(&system, options);
    while search.step() {}
    let found = search.found().unwrap();
    // 3 ms, and the whole section of the other core.
    assert_eq!(found.response_ns, 7_000_000 - 1);
    let bound = analyse(&model).tasks[0].response_ns.unwrap();
    assert!(found.response_ns <= bound && bound <= 7_000_000, "{bound}");
    let witness = Witness::new(&model, None, &system, &found);
    let replay = witness.replay(&model).unwrap();
    let svg = gantt_svg(&model, &replay);
    assert!(svg.contains("sensor (c0)") && svg.contains("#e69138") && svg.ends_with("</svg>\n"));
    let trace = btf(&model, &replay);
    assert!(trace.contains(",c0,0,T,sensor,0,start"), "{trace}");
    assert!(trace.contains(",c0,0,T,sensor,0,run") && trace.contains(",terminate"), "{trace}");
    let times = trace.lines().filter(|l| !l.starts_with('#'));
    let times: Vec<u64> = times.map(|l| l.split(',').next().unwrap().parse().unwrap()).collect();
    assert!(times.is_sorted());
    assert!(perfetto(&model, &replay).unwrap().contains("\"spin\""));
}

#[test]
fn equal_seeds_give_equal_searches() {
    let model = read_toml(LOCKED).unwrap();
    let system = System::new(&model, None);
    let run = |seed| {
        let options =
            SearchOptions { evaluations: 500, seed, stops_at_miss: false, ..Default::default() };
        let mut search = Search::new(&system, options);
        while search.step() {}
        search.found().unwrap().jobs
    };
    assert_eq!(run(3), run(3));
}

#[test]
fn witness_that_the_model_does_not_permit_is_rejected() {
    let model = read_toml(LOCKED).unwrap();
    let job = |task: &str, arrival: &str, rest: &str| {
        format!("[[jobs]]\ntask = '{task}'\narrival = '{arrival}'\n{rest}\n")
    };
    let head = "task = 'sensor'\nresponse = '3 ms'\n";
    let first = job("sensor", "0 ms", "execution = '3 ms'");
    let read = |text: String| Witness::read(&text).and_then(|w| w.replay(&model)).map(|_| ());
    assert_eq!(read(head.to_owned() + &first), Ok(()));
    for (text, what) in [
        (job("sensor", "5 ms", "execution = '3 ms'"), "not permit"),
        (
            job("sensor", "10 ms", "execution = '4 ms'"),
            "execution time 4 ms outside of 1 ms to 3 ms",
        ),
        (job("logger", "0 ms", "release = '1 ms'\nexecution = '6 ms'"), "not permit"),
        (job("other", "0 ms", "execution = '6 ms'"), "'other' is not in the model"),
        (job("logger", "0 ms", "execution = '6 ms'"), "responds in 7 ms, not in 3 ms"),
        ("jobs = 1".into(), "line 7"),
    ] {
        let text = match what {
            // The lock is taken before the task's job arrives.
            w if w.starts_with("responds") => {
                head.to_owned() + &job("sensor", "1 ms", "execution = '3 ms'") + &text
            }
            _ => head.to_owned() + &first + &text,
        };
        let error = read(text).unwrap_err().to_string();
        let what = what.replace("7 ms", "6 ms");
        assert!(error.contains(&what), "{what}: {error}");
    }
}
