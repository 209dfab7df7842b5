//! Partitions keep every constraint, and the example after the paper needs fewer units with mode
//! sharing.

use corebeat_verify::{
    Answer, Constraint, Model, Partition, PartitionOptions, Range, Safety, Task, UnitKind, Verdict,
    analyse, explain, front, front_svg, partition, read_csv, read_toml,
};
use fastrand::Rng;

const VEHICLE: &str = include_str!("../examples/electric-vehicle.toml");

/// Verifies a partition independently of the search.
fn verify(model: &Model, options: &PartitionOptions, found: &Partition) {
    let unit = model.unit.as_ref().unwrap();
    let mapped = found.apply(model);
    assert_eq!(mapped.check(), Ok(()));
    let mut checked = mapped.clone();
    if !options.shares_modes {
        checked.modes.clear();
        checked.tasks.iter_mut().for_each(|t| t.modes.clear());
    }
    assert_eq!(analyse(&checked).verdict, Verdict::Schedulable);
    for u in 0..found.units {
        let inside = found.components.iter().zip(&found.places).filter(|(_, p)| p.unit == u);
        let memory: u64 = inside.clone().map(|(c, _)| c.memory_bytes).sum();
        assert!(unit.memory_bytes.is_none_or(|size| memory <= size));
        assert!(inside.clone().count() > 0, "unit {u} is empty");
        for core in 0..unit.cores {
            let on_core = inside.clone().filter(|(_, p)| p.core == core).map(|(c, _)| c.safety);
            let levels: std::collections::HashSet<Safety> = on_core.collect();
            let most = unit.safety.get(core).copied().unwrap_or(Safety::D);
            assert!(levels.iter().all(|l| *l <= most));
            assert!(levels.len() <= 1 || options.lifts_safety);
        }
    }
    let parts: usize = found.components.iter().map(|c| c.tasks.len()).sum();
    assert_eq!(parts, model.tasks.len());
}

#[test]
fn mode_sharing_saves_units_in_the_example_of_the_paper() {
    let model = read_toml(VEHICLE).unwrap();
    let with = PartitionOptions { nodes: 20_000, ..PartitionOptions::default() };
    let without = PartitionOptions { shares_modes: false, ..with.clone() };
    let (shared, apart) = (partition(&model, &with).unwrap(), partition(&model, &without).unwrap());
    verify(&model, &with, &shared);
    verify(&model, &without, &apart);
    assert_eq!(shared.components.len(), 60);
    assert!(shared.units < apart.lower_bound, "{} {}", shared.units, apart.lower_bound);
}

/// A small random model with two modes, safety levels and memory.
fn model(random: &mut Rng) -> Model {
    let cores = random.usize(1..=2);
    let safety = (0..cores).map(|c| if c == 0 { Safety::D } else { Safety::B }).collect();
    let memory_bytes = Some(random.u64(200..400));
    let unit = UnitKind { cores, memory_bytes, safety, ..UnitKind::default() };
    let mut model =
        Model { unit: Some(unit), modes: vec!["a".into(), "b".into()], ..Model::default() };
    for t in 0..random.usize(1..=6) {
        let period = random.u64(5..50) * 1_000;
        let worst = period * random.u64(5..70) / 100;
        let range = Range { best: worst, worst };
        let task = Task::new(format!("t{t}"), period, range, 0);
        let modes = [vec![], vec![0], vec![1]][random.usize(..3)].clone();
        let safety = [Safety::QM, Safety::B, Safety::D][random.usize(..3)];
        let component = if random.u8(..4) == 0 { "x".to_owned() } else { String::new() };
        model.tasks.push(Task {
            priority: None,
            core: None,
            memory_bytes: random.u64(1..150),
            modes,
            safety,
            component,
            ..task
        });
    }
    model
}

/// The least number of units by trying all places of all components.
fn exhaustive(model: &Model, options: &PartitionOptions, found: &Partition, units: usize) -> bool {
    let unit = model.unit.as_ref().unwrap();
    let cores = units * unit.cores;
    let count = found.components.len();
    (0..cores.pow(count as u32)).any(|code| {
        let at = |c: usize| code / cores.pow(c as u32) % cores;
        let on = |core: usize| (0..count).filter(move |&c| at(c) == core);
        let memory_fits = (0..units).all(|u| {
            let inside = (0..count).filter(|&c| at(c) / unit.cores == u);
            let used: u64 = inside.map(|c| found.components[c].memory_bytes).sum();
            unit.memory_bytes.is_none_or(|size| used <= size)
        });
        let safety_fits = (0..cores).all(|core| {
            let levels = on(core).map(|c| found.components[c].safety);
            let most = unit.safety[core % unit.cores];
            let first = on(core).next().map(|c| found.components[c].safety);
            levels.into_iter().all(|l| l <= most && (options.lifts_safety || Some(l) == first))
        });
        if !memory_fits || !safety_fits {
            return false;
        }
        let places = (0..count)
            .map(|c| corebeat_verify::Place { unit: at(c) / unit.cores, core: at(c) % unit.cores });
        let candidate = Partition { places: places.collect(), units, ..found.clone() };
        analyse(&candidate.apply(model)).verdict == Verdict::Schedulable
    })
}

#[test]
fn branch_and_bound_finds_the_least_number_of_units() {
    let mut several = 0;
    for round in 0..150 {
        let mut random = Rng::with_seed(round);
        let model = model(&mut random);
        let options =
            PartitionOptions { lifts_safety: random.bool(), ..PartitionOptions::default() };
        let Ok(found) = partition(&model, &options) else { continue };
        verify(&model, &options, &found);
        assert_eq!(found.lower_bound, found.units, "round {round}");
        several += usize::from(found.units > 1);
        if found.units > 1 && found.components.len() <= 5 && found.units <= 3 {
            assert!(!exhaustive(&model, &options, &found, found.units - 1), "round {round}");
        }
    }
    assert!(several > 20, "{several}");
}

#[test]
fn explanation_names_the_constraint_that_forbids_a_unit_less() {
    let mut model = Model {
        unit: Some(UnitKind {
            cores: 1,
            memory_bytes: Some(100),
            safety: vec![Safety::B],
            ..UnitKind::default()
        }),
        ..Model::default()
    };
    for t in 0..2 {
        let mut task = Task::new(format!("t{t}"), 1_000, Range::exactly(100), 0);
        task.memory_bytes = 60;
        model.tasks.push(task);
    }
    let options = PartitionOptions::default();
    let of = |model: &Model| {
        assert_eq!(partition(model, &options).unwrap().units, 2);
        let answers = explain(model, &options, 1).unwrap();
        let yes: Vec<_> = answers.iter().filter(|a| a.1 == Answer::Yes).map(|a| a.0).collect();
        yes
    };
    assert_eq!(of(&model), [Constraint::Memory]);
    model.unit.as_mut().unwrap().memory_bytes = None;
    model.tasks[0].safety = Safety::B;
    assert_eq!(of(&model), [Constraint::Safety]);
    model.tasks[0].safety = Safety::QM;
    model.tasks[0].cost.time_ns = Range::exactly(950);
    assert_eq!(of(&model), [Constraint::Cores]);
    model.tasks[0].cost.time_ns = Range::exactly(100);
    model.tasks.iter_mut().for_each(|t| t.deadline_ns = Some(150));
    assert_eq!(of(&model), [Constraint::Deadlines, Constraint::Cores]);
}

/// The busy period of the second task has too many jobs for the analysis, so that one core is not
/// refuted.
#[test]
fn limit_of_the_analysis_proves_no_number_of_units() {
    let text = "name,period,worst,deadline,priority\n\
                hi,10 s,5500 ms,10 s,2\nlo,10 us,4 us,10 s,1\n";
    let unit = Some(UnitKind { cores: 1, ..UnitKind::default() });
    let model = Model { unit, ..read_csv(text).unwrap() };
    let options = PartitionOptions::default();
    let found = partition(&model, &options).unwrap();
    assert_eq!((found.units, found.lower_bound), (2, 1));
    let answers = explain(&model, &options, 1).unwrap();
    let undecided = [Constraint::Memory, Constraint::Safety].map(|c| (c, Answer::Undecided));
    assert!(undecided.iter().all(|answer| answers.contains(answer)), "{answers:?}");
    let mut together = model;
    together.tasks.iter_mut().for_each(|task| task.component = "both".into());
    let why = partition(&together, &options).unwrap_err().to_string();
    assert!(why.contains("limits"), "{why}");
}

#[test]
fn sums_of_sizes_do_not_overflow() {
    let (kind, safety) = (String::new(), vec![]);
    let unit = UnitKind { cores: 1, kind, safety, ..UnitKind::default() };
    let mut model = Model { unit: Some(unit), ..Model::default() };
    for t in 0..3 {
        let mut task = Task::new(format!("t{t}"), 1_000, Range::exactly(100), 0);
        task.memory_bytes = u64::MAX;
        model.tasks.push(task);
    }
    assert_eq!(partition(&model, &PartitionOptions::default()).unwrap().units, 1);
}

#[test]
fn communicating_components_share_a_unit() {
    let text = "
[unit]
cores = 1
[[labels]]
name = 'l'
size_bytes = 100
[[tasks]]
name = 'a'
period = '10 ms'
execution = '5 ms'
accesses = [{ label = 'l', writes = 1 }]
[[tasks]]
name = 'b'
period = '10 ms'
execution = '5500 us'
[[tasks]]
name = 'c'
period = '10 ms'
execution = '4 ms'
[[tasks]]
name = 'd'
period = '10 ms'
execution = '4 ms'
accesses = [{ label = 'l', reads = 1 }]
";
    let found = partition(&read_toml(text).unwrap(), &PartitionOptions::default()).unwrap();
    assert_eq!((found.units, found.communication, found.is_least_communication), (2, 0, true));
    assert_eq!(found.places[0].unit, found.places[3].unit);
}

#[test]
fn models_that_cannot_be_partitioned_are_rejected_with_the_reason() {
    let text = "[unit]\ncores = 1\n[[tasks]]\nname = 'a'\nperiod = '10 ms'\nexecution = '5 ms'\n";
    for (from, to, what) in [
        ("[unit]\ncores = 1\n", "", "no table [unit]"),
        ("'5 ms'", "'11 ms'", "component 'a': the component fits on no empty core"),
        ("period = '10 ms'", "arrival_spans = ['10 ms']", "task 'a': partitioning supports only"),
        ("execution = '5 ms'", "ticks = { K = 4 }", "task 'a': it has no ticks"),
        (
            "'5 ms'\n",
            "'5 ms'\naccesses = [{ label = 'l', reads = 1 }]\n[[labels]]\nname = 'l'\n[[cores]]\n\
             name = 'c'\n[[memories]]\nname = 'm'\n[[latencies]]\ncore = 'c'\nmemory = 'm'\n\
             read = '1 us'\nwrite = '1 us'\naccess_bytes = 4\n",
            "does not support the latencies",
        ),
        ("'5 ms'\n", "'5 ms'\npreemption = 'cooperative'", "does not support"),
    ] {
        let model = read_toml(&text.replace(from, to)).unwrap();
        let error = partition(&model, &PartitionOptions::default()).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
}

/// Ticks at two frequencies: fewer units need a higher frequency, which costs power, and more units
/// bring shorter response times.
#[test]
fn front_has_no_point_that_another_one_covers() {
    let text = "
[unit]
cores = 1
frequency_hz = 100000000
frequencies_hz = [100000000, 200000000, 10000]
idle_mw = 100
core_mw = 400
[[tasks]]
name = 'a'
period = '10 ms'
ticks = { any = 300000 }
[[tasks]]
name = 'b'
period = '20 ms'
ticks = { any = 800000 }
[[tasks]]
name = 'c'
period = '40 ms'
ticks = { any = 2400000 }
";
    let model = read_toml(text).unwrap();
    let options = PartitionOptions::default();
    let points = front(&model, &options).unwrap();
    let figures: Vec<_> = points
        .iter()
        .map(|p| {
            let mhz = p.frequency_hz.unwrap() / 1_000_000;
            (p.partition.units, mhz, p.power_mw, p.latency_ns)
        })
        .collect();
    // Uses at 100 MHz: 0.3, 0.4 and 0.6; at 200 MHz half of them, at 8 times the power.
    assert_eq!(
        figures,
        [
            (1, 200, 100 + 2_080, (1_500_000 + 5_500_000 + 19_000_000) / 3),
            (2, 100, 200 + 520, (3_000_000 + 14_000_000 + 24_000_000) / 3),
            (2, 200, 200 + 2_080, (1_500_000 + 5_500_000 + 12_000_000) / 3),
            (3, 100, 300 + 520, (3_000_000 + 8_000_000 + 24_000_000) / 3),
            (3, 200, 300 + 2_080, (1_500_000 + 4_000_000 + 12_000_000) / 3),
        ]
    );
    for point in &points {
        let mut scaled = model.clone();
        scaled.unit.as_mut().unwrap().frequency_hz = point.frequency_hz;
        verify(&scaled, &options, &point.partition);
    }
    let svg = front_svg(&points);
    assert_eq!(svg.matches("<circle").count(), points.len());
    let timed = text.replace("ticks = { any = 300000 }", "execution = '3 ms'");
    let error = front(&read_toml(&timed).unwrap(), &options).unwrap_err().to_string();
    assert!(error.contains("task 'a'") && error.contains("ticks"), "{error}");
    let odd = text.replace("100000000, 200000000, 10000", "201500000");
    let svg = front_svg(&front(&read_toml(&odd).unwrap(), &options).unwrap());
    assert!(svg.contains(", 201.5 MHz"), "{svg}");
    let without = text.replace("frequency_hz = 100000000\n", "");
    let error = read_toml(&without).unwrap_err().to_string();
    assert!(error.contains("frequencies_hz without frequency_hz"), "{error}");
    let slow = text.replace("[100000000, 200000000, 10000]", "[10000]");
    let error = front(&read_toml(&slow).unwrap(), &options).unwrap_err().to_string();
    assert!(error.contains("fits on no empty core"), "{error}");
}

/// A front has only points that the analysis proves, and an empty one has a reason.
#[test]
fn front_without_a_schedulable_point_has_a_reason() {
    let text = "
modes = ['x', 'y']
[unit]
cores = 1
[[tasks]]
name = 'a'
period = '10 ms'
execution = '1 ms'
modes = ['x']
[[tasks]]
name = 'b'
period = '20 ms'
execution = '2 ms'
modes = ['y']
";
    let options = PartitionOptions::default();
    let of = |more: &str| front(&read_toml(&(text.to_owned() + more)).unwrap(), &options);
    assert!(!of("").unwrap().is_empty());
    for (more, what) in [
        ("[[chains]]\nname = 'ab'\ntasks = ['a', 'b']\n", "chain 'ab'"),
        ("[[chains]]\nname = 'aa'\ntasks = ['a']\nreaction_max = '1 us'\n", "chain 'aa'"),
        (
            "[[memories]]\nname = 'm'\nsize_bytes = 4\n[[labels]]\nname = 'l'\nmemory = 'm'\n\
             size_bytes = 64\n",
            "memory 'm'",
        ),
    ] {
        let error = of(more).unwrap_err().to_string();
        assert!(error.starts_with(what) && error.contains("no partition is proven"), "{error}");
    }
    let none = read_toml("[[tasks]]\nname = 'a'\n").unwrap();
    let error = front(&none, &options).unwrap_err().to_string();
    assert!(error.contains("no table [unit]"), "{error}");
}
