//! The search finds a witness where the exact test finds a missed deadline, and none elsewhere.

use corebeat_verify::generate::task_set;
use corebeat_verify::{
    Activation, Found, Jobs, Model, Objective, Range, Record, Search, SearchOptions, Simulation,
    Subject, System, Task, Verdict, Witness, Worst, analyse, btf, gantt_svg, perfetto, read_toml,
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

/// The result of a whole search.
fn searched(system: &System, options: SearchOptions) -> Found {
    let mut search = Search::new(system, options);
    while search.step() {}
    search.found().unwrap()
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
        let best = searched(&system, options);
        match report.verdict {
            Verdict::Schedulable => assert!(!best.worst.is_miss(), "round {round}"),
            Verdict::Unschedulable => {
                unschedulable += 1;
                found += usize::from(best.worst.is_miss());
                let witness = Witness::new(&model, None, &system, &best);
                let witness = Witness::read(&witness.write()).unwrap();
                let replay = witness.replay(&model).unwrap();
                assert_eq!(witness.is_miss(), best.worst.is_miss(), "round {round}");
                assert_eq!(replay.worst.subject, best.worst.subject);
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
        objective: Objective::Response { task: Some(0) },
        stops_at_miss: false,
        ..Default::default()
    };
    let found = searched(&system, options);
    // 3 ms, and the whole section of the other core.
    assert_eq!(found.worst.value_ns, 7_000_000 - 1);
    let bound = analyse(&model).tasks[0].response_ns.unwrap();
    assert!(found.worst.value_ns <= bound && bound <= 7_000_000, "{bound}");
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
        searched(&system, options).jobs
    };
    assert_eq!(run(3), run(3));
}

#[test]
fn witness_that_the_model_does_not_permit_is_rejected() {
    let model = read_toml(LOCKED).unwrap();
    let job = |task: &str, arrival: &str, rest: &str| {
        format!("[[jobs]]\ntask = '{task}'\narrival = '{arrival}'\n{rest}\n")
    };
    let head = "time = '3 ms'\nlimit = '10 ms'\nobjective.response.task = 'sensor'\n";
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
        (job("logger", "0 ms", "execution = '6 ms'"), "is 7 ms, not 3 ms"),
        ("jobs = 1".into(), "line 8"),
    ] {
        let text = match what {
            // The lock is taken before the task's job arrives.
            w if w.starts_with("is") => {
                head.to_owned() + &job("sensor", "1 ms", "execution = '3 ms'") + &text
            }
            _ => head.to_owned() + &first + &text,
        };
        let error = read(text).unwrap_err().to_string();
        let what = what.replace("7 ms", "6 ms");
        assert!(error.contains(&what), "{what}: {error}");
    }
}

/// The longest wait of a released job and the largest busy time of a window, by counting each
/// nanosecond.
fn counted(system: &System, jobs: &Jobs, record: &Record, window: usize) -> (u64, u64) {
    let end = record.completions.iter().map(|c| c.end_ns).max().unwrap_or(0) as usize;
    let runs = |e: usize| {
        let mut at = vec![false; end];
        let spans = record.spans.iter().filter(|s| s.entry == e);
        spans.for_each(|s| at[s.from_ns as usize..s.to_ns as usize].fill(true));
        at
    };
    let mut longest = 0;
    for (e, jobs) in jobs.iter().enumerate() {
        let runs = runs(e);
        let mut last_end = 0;
        for (job, done) in jobs.iter().zip(record.completions.iter().filter(|c| c.entry == e)) {
            let mut wait = 0;
            for &runs in &runs[job.release_ns.max(last_end) as usize..done.end_ns as usize] {
                wait = if runs { 0 } else { wait + 1 };
                longest = longest.max(wait);
            }
            last_end = done.end_ns;
        }
    }
    let busy_of = |core: usize| {
        let on = (0..system.entries.len()).filter(|&e| system.entries[e].core == core);
        let busy = on.map(runs).reduce(|a, b| a.iter().zip(b).map(|(a, b)| *a || b).collect());
        let busy = busy.unwrap_or_default();
        let windows = (0..busy.len()).map(|from| &busy[from..busy.len().min(from + window)]);
        windows.map(|window| window.iter().filter(|busy| **busy).count() as u64).max()
    };
    (longest, (0..system.policies.len()).filter_map(busy_of).max().unwrap_or(0))
}

#[test]
fn worst_waits_and_loads_equal_those_counted_in_each_nanosecond() {
    let mut differs = 0;
    for round in 0..200 {
        let mut random = Rng::with_seed(round);
        let count = random.usize(2..=6);
        let mut entries = task_set(&mut random, count, 0.9, (10, 200), 1);
        for entry in &mut entries {
            entry.core = random.usize(..2);
            if random.u8(..3) == 0 {
                entry.execution_ns.best = 0;
            }
            if let Activation::Periodic { jitter_ns, period_ns, .. } = &mut entry.activation
                && random.u8(..3) == 0
            {
                *jitter_ns = random.u64(..*period_ns);
            }
            if random.u8(..3) == 0 {
                entry.preemption = corebeat_verify::Preemption::NonPreemptive;
            }
        }
        let system = System::of(entries);
        let (window_ns, limit_ns) = (random.u64(1..100), 10);
        let options = |objective| SearchOptions {
            evaluations: 30,
            seed: round,
            objective,
            stops_at_miss: false,
        };
        for objective in
            [Objective::Wait { task: None, limit_ns }, Objective::Load { window_ns, limit_ns }]
        {
            let Found { worst: Worst { value_ns, subject, .. }, jobs, .. } =
                searched(&system, options(objective));
            let mut record = Record::default();
            Simulation::new(&system).run(&jobs, u64::MAX, Some(&mut record));
            let (wait, load) = counted(&system, &jobs, &record, window_ns as usize);
            let expected = match subject {
                Subject::Entry(_) => wait,
                Subject::Core(_) => load,
            };
            assert_eq!(value_ns, expected, "round {round}, {objective:?}");
            differs += u64::from(value_ns > 0 && value_ns < window_ns);
        }
    }
    assert!(differs > 50, "{differs}");
}

/// A job that other tasks keep from its core, and a core that is busy in each window.
const STARVED: &str = "
[[tasks]]
name = 'often'
period = '4 ms'
execution = ['1 ms', '2 ms']
priority = 3
core = 'c0'
[[tasks]]
name = 'seldom'
min_distance = '20 ms'
execution = '5 ms'
priority = 2
core = 'c0'
[[tasks]]
name = 'least'
period = '50 ms'
execution = '1 ms'
priority = 1
core = 'c0'
[[cores]]
name = 'c0'
";

#[test]
fn starvation_and_load_have_witnesses_that_replay() {
    let model = read_toml(STARVED).unwrap();
    let system = System::new(&model, None);
    let found = |objective| {
        let options = SearchOptions {
            evaluations: 2_000,
            objective,
            stops_at_miss: false,
            ..Default::default()
        };
        searched(&system, options)
    };
    // The least urgent job waits for three jobs of `often`, and for the other one: 3 * 2 ms + 5 ms,
    // and then for the job of `often` that is released at this moment or before.
    let starved = found(Objective::Wait { task: None, limit_ns: 10_000_000 });
    assert_eq!(starved.worst.subject, Subject::Entry(2));
    let bound = analyse(&model).tasks[2].response_ns.unwrap() - 1_000_000;
    assert!((10_000_001..=bound).contains(&starved.worst.value_ns), "{:?}", starved.worst);
    let window_ns = 7_000_000;
    let busy = found(Objective::Load { window_ns, limit_ns: 6_000_000 });
    assert_eq!((busy.worst.subject, busy.worst.value_ns), (Subject::Core(0), window_ns));
    for found in [starved, busy] {
        let witness = Witness::new(&model, None, &system, &found);
        let read = Witness::read(&witness.write()).unwrap();
        assert_eq!(read, witness);
        assert!(read.is_miss());
        assert!(gantt_svg(&model, &read.replay(&model).unwrap()).contains("often"));
        let mut other = read.clone();
        other.time.ns += 1;
        let error = other.replay(&model).unwrap_err().to_string();
        assert!(error.contains("the model has changed"), "{error}");
        let error = Witness { limit: None, ..read }.replay(&model).unwrap_err().to_string();
        assert_eq!(error, "witness: it has no limit");
    }
}
