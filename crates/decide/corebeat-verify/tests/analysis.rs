//! Verdicts of whole models: unsupported features, missing parts, chains and memories.

use corebeat_verify::{
    Access, Activation, Effect, Label, Latency, Model, Note, Range, Section, Task, Verdict,
    analyse, contend, read_amalthea, read_csv, read_toml, write_toml,
};

const WATERS: &str = include_str!("amalthea/waters2019-mapped.amxmi");

fn verdict(text: &str) -> Verdict {
    analyse(&read_toml(text).unwrap()).verdict
}

const TWO: &str = "
[[cores]]
name = 'c'
[[tasks]]
name = 'a'
period = '10 ms'
execution = ['1 ms', '4 ms']
priority = 2
core = 'c'
[[tasks]]
name = 'b'
period = '20 ms'
execution = '9 ms'
priority = 1
core = 'c'
";

#[test]
fn response_times_of_a_small_model() {
    let report = analyse(&read_toml(TWO).unwrap());
    assert_eq!(report.verdict, Verdict::Schedulable);
    let times: Vec<_> = report.tasks.iter().map(|t| (t.response_ns, t.is_exact)).collect();
    assert_eq!(times, [(Some(4_000_000), true), (Some(17_000_000), true)]);
    assert!((report.cores[0].share - 0.85).abs() < 1e-9);
}

/// Every way to leave out or to damage a part makes the verdict other than "schedulable".
#[test]
fn missing_parts_are_never_schedulable() {
    for (from, to, expected) in [
        ("core = 'c'\n[[tasks]]", "[[tasks]]", Verdict::Unknown),
        ("priority = 2", "", Verdict::Unknown),
        ("period = '10 ms'", "", Verdict::Unknown),
        ("execution = '9 ms'", "ticks = { K = 9 }", Verdict::Unknown),
        ("execution = '9 ms'", "ticks = { any = 9 }", Verdict::Unknown),
        ("execution = '9 ms'", "execution = '15 ms'", Verdict::Unschedulable),
        ("execution = '9 ms'", "execution = '12 ms'\ndeadline = '10 ms'", Verdict::Unschedulable),
        (
            "period = '20 ms'",
            "period = '20 ms'\noffset = '1 ms'\ndeadline = '12 ms'",
            Verdict::Unknown,
        ),
    ] {
        assert!(TWO.contains(from));
        assert_eq!(verdict(&TWO.replacen(from, to, 1)), expected, "{from} -> {to}");
    }
    assert_eq!(analyse(&Model::default()).verdict, Verdict::Unknown);
}

/// The jitter of the second task is not analysed under this policy: the first one may respond in 9
/// ms.
#[test]
fn figure_without_a_task_of_its_core_is_no_bound() {
    let task = |name, jitter| {
        format!(
            "[[tasks]]\nname = '{name}'\nperiod = '10 ms'\ndeadline = '6 ms'\njitter = '{jitter}'\n\
             execution = ['3 ms', '3 ms']\ncore = 'c'\n"
        )
    };
    let core = "[[cores]]\nname = 'c'\npolicy = 'earliest-deadline'\n";
    let bounds = |jitter| {
        let model = read_toml(&format!("{core}{}{}", task("a", "0 ms"), task("b", jitter)));
        let report = analyse(&model.unwrap());
        report.tasks.iter().map(|t| (t.is_bound, t.verdict)).collect::<Vec<_>>()
    };
    assert_eq!(bounds("0 ms"), [(true, Verdict::Schedulable); 2]);
    assert_eq!(bounds("9 ms"), [(false, Verdict::Unknown); 2]);
}

#[test]
fn optimistic_notes_affect_the_tasks_that_they_concern() {
    let mut model = read_toml(TWO).unwrap();
    model.cores.push(corebeat_verify::Core { name: "d".into(), ..Default::default() });
    let mut other = Task::new("other", 1_000, corebeat_verify::Range::exactly(10), 1);
    other.core = Some(1);
    model.tasks.push(other);
    let verdicts = |model: &Model, effect, task| {
        let mut model = model.clone();
        let (place, what) = ("line 1".to_owned(), "something".to_owned());
        model.notes.push(Note { place, what, effect, task });
        let report = analyse(&model);
        report.tasks.iter().map(|t| t.verdict == Verdict::Unknown).collect::<Vec<_>>()
    };
    assert_eq!(verdicts(&model, Effect::Optimistic, None), [true, true, true]);
    assert_eq!(verdicts(&model, Effect::Optimistic, Some(0)), [true, true, false]);
    // A preemptive task does not delay tasks above.
    assert_eq!(verdicts(&model, Effect::Optimistic, Some(1)), [false, true, false]);
    assert_eq!(verdicts(&model, Effect::Pessimistic, None), [false, false, false]);
    model.tasks[1].deadline_ns = Some(1);
    assert_eq!(verdicts(&model, Effect::Pessimistic, None), [false, true, false]);
    assert_eq!(verdicts(&model, Effect::None, None), [false, false, false]);
}

#[test]
fn waters_model_is_unknown_with_reasons() {
    let model = read_amalthea(WATERS).unwrap();
    let report = analyse(&model);
    assert_eq!(report.verdict, Verdict::Unknown);
    let of = |name: &str| report.tasks.iter().find(|t| model.tasks[t.task].name == name).unwrap();
    // DASM runs above the load of the operating system on its core: its response time is its
    // execution time, 3,719,990 ticks at 2 GHz and 64 accesses of 20 ns.
    assert_eq!(of("DASM").response_ns, Some(1_861_275));
    assert!(of("DASM").why.contains("other cores"), "{}", of("DASM").why);
    assert!(of("PRE_SFM_gpu_POST").why.contains("WaitEvent"));
    assert!(report.tasks.iter().all(|t| t.verdict == Verdict::Unknown && !t.why.is_empty()));
}

#[test]
fn table_of_periods_is_decided_exactly() {
    let table = "name,period_ms,worst_ms,priority\na,7,3,3\nb,12,3,2\nc,20,5,1\n";
    assert_eq!(analyse(&read_csv(table).unwrap()).verdict, Verdict::Schedulable);
    let table = table.replace("20,5,1", "20,6,1");
    assert_eq!(analyse(&read_csv(&table).unwrap()).verdict, Verdict::Unschedulable);
}

const CHAIN: &str = "
[[chains]]
name = 'ab'
tasks = ['a', 'b']
reaction_max = '51 ms'
age_max = '31 ms'
";

#[test]
fn latencies_of_chains_are_bounded() {
    let report = analyse(&read_toml(&(TWO.to_owned() + CHAIN)).unwrap());
    let chain = &report.chains[0];
    // Periods 10 and 20, response times 4 and 17; the age does not include the last period.
    assert_eq!(chain.reaction_ns, Some(51_000_000));
    assert_eq!(chain.age_ns, Some(31_000_000));
    assert_eq!(report.verdict, Verdict::Schedulable);
    let tight = CHAIN.replace("51 ms", "50 ms");
    assert_eq!(verdict(&(TWO.to_owned() + &tight)), Verdict::Unknown);
    let let_chain = CHAIN.replace("reaction_max = '51 ms'", "communication = 'let'");
    let report = analyse(&read_toml(&(TWO.to_owned() + &let_chain)).unwrap());
    assert_eq!(report.chains[0].reaction_ns, Some(60_000_000));
    assert_eq!(report.chains[0].age_ns, Some(40_000_000));
    // A task that its predecessor activates adds its response time only.
    let event = TWO
        .replace("period = '20 ms'", "after = 'a'\ndeadline = '40 ms'")
        .replace("'9 ms'", "'2 ms'");
    let report = analyse(&read_toml(&(event + CHAIN)).unwrap());
    let times: Vec<u64> = report.tasks.iter().map(|t| t.response_ns.unwrap()).collect();
    assert_eq!(report.chains[0].reaction_ns, Some(10_000_000 + times[0] + times[1]));
}

#[test]
fn memories_that_are_too_small_are_not_schedulable() {
    let memory = "
[[memories]]
name = 'm'
size_bytes = 100
[[labels]]
name = 'l'
size_bytes = 101
memory = 'm'
";
    assert_eq!(verdict(&(TWO.to_owned() + memory)), Verdict::Unschedulable);
    let fits = memory.replace("101", "100");
    assert_eq!(verdict(&(TWO.to_owned() + &fits)), Verdict::Schedulable);
    let unknown = memory.replace("size_bytes = 101", "");
    assert_eq!(verdict(&(TWO.to_owned() + &unknown)), Verdict::Unknown);
}

/// Two cores that use a memory, and a memory of one core.
const HARDWARE: &str = "
[[memories]]
name = 'm'
[[memories]]
name = 'own'
[[labels]]
name = 'l'
size_bytes = 8
memory = 'm'
[[labels]]
name = 'o'
size_bytes = 8
memory = 'own'
[[cores]]
name = 'd'
[[latencies]]
core = 'c'
memory = 'm'
read = '40 ns'
write = '50 ns'
access_bytes = 4
[[latencies]]
core = 'd'
memory = 'm'
read = '60 ns'
write = '70 ns'
access_bytes = 8
[[latencies]]
core = 'd'
memory = 'own'
read = '1 ns'
write = '1 ns'
access_bytes = 8
[[tasks]]
name = 'e'
period = '1 ms'
execution = '1 us'
priority = 1
core = 'd'
accesses = [{ label = 'l', writes = 1 }, { label = 'o', reads = 1 }]
";

/// Two cores that use a memory: each access waits for one access of the other core.
#[test]
fn contention_lengthens_accesses_and_replaces_its_note() {
    let access = "accesses = [{ label = 'l', reads = [0, 3] }]\npriority = 2";
    let mut model = read_toml(&(TWO.replace("priority = 2", access) + HARDWARE)).unwrap();
    let optimistic = Note {
        place: "line 1".into(),
        what: "waiting for other cores at memories is not considered".into(),
        effect: Effect::Optimistic,
        task: Some(0),
    };
    model.notes.push(optimistic);
    let before = analyse(&model);
    assert_eq!(before.tasks[0].response_ns, Some(4_000_000 + 3 * 2 * 40));
    assert_eq!(before.verdict, Verdict::Unknown);
    let contended = contend(&model);
    assert_eq!(contended.check(), Ok(()));
    assert_eq!(contended.latencies.iter().map(|l| l.wait_ns).collect::<Vec<_>>(), [70, 50, 0]);
    let after = analyse(&contended);
    assert_eq!(after.tasks[0].response_ns, Some(4_000_000 + 3 * 2 * (40 + 70)));
    assert_eq!(after.tasks[2].response_ns, Some(1_000 + 70 + 50 + 1));
    assert_eq!(after.verdict, Verdict::Schedulable);
    assert!(after.tasks.iter().all(|t| !t.is_exact));
    assert_eq!(read_toml(&write_toml(&contended)).as_ref(), Ok(&contended));
    assert_eq!(contend(&contended), contended);
    // Connections are not modelled.
    model.notes[0].what = "waiting for other cores at connections is not considered".into();
    assert_eq!(analyse(&contend(&model)).verdict, Verdict::Unknown);
}

/// Task `a` of core `c` with other lines, and the memories.
fn shared_memory(a: &str, hardware: &str) -> Model {
    read_toml(&(TWO.replace("priority = 2", &format!("{a}\npriority = 2")) + hardware)).unwrap()
}

const ACCESS: &str = "accesses = [{ label = 'l', reads = 3 }]";

#[test]
fn contention_lengthens_critical_sections() {
    let locked = |lines: &str, b: &str| {
        let text = TWO.replacen("priority = 1", &format!("{lines}\npriority = 1"), 1);
        let text = text.replacen("priority = 2", &format!("{b}\npriority = 2"), 1);
        read_toml(&("resources = ['r', 's']\n".to_owned() + &text + HARDWARE)).unwrap()
    };
    let section =
        |resource: &str, time: &str| format!("{{ resource = '{resource}', execution = '{time}' }}");
    let high = format!("deadline = '5200 us'\nsections = [{}]", section("r", "1 us"));
    let low = format!("{ACCESS}\nsections = [{}]", section("r", "1 ms"));
    // 30,000 accesses of the lower task wait 70 ns each, perhaps all inside of its section.
    let many = low.replace("reads = 3", "reads = 15000");
    let model = locked(&many, &high);
    assert_eq!(analyse(&model).tasks[0].response_ns, Some(4_999_999));
    let contended = contend(&model);
    assert_eq!(contended.tasks[1].sections[0].worst_ns, 1_000_000 + 30_000 * 70);
    let report = analyse(&contended);
    assert_eq!(report.tasks[0].response_ns, Some(4_999_999 + 30_000 * 70));
    assert_eq!(report.tasks[0].verdict, Verdict::Unknown);
    // With two sections that are almost the whole job, the section that waits is not known.
    let two =
        format!("{ACCESS}\nsections = [{}, {}]", section("r", "4500 us"), section("s", "4500 us"));
    let contended = contend(&locked(&two, "deadline = '9 ms'"));
    assert_eq!(contended.tasks[1].sections[1].worst_ns, 4_500_000);
    let report = analyse(&contended);
    assert_eq!(report.verdict, Verdict::Unknown);
    assert!(report.tasks[0].why.contains("critical sections"), "{report:?}");
}

#[test]
fn contention_with_a_core_of_unknown_latency_is_unknown() {
    let known = shared_memory(ACCESS, HARDWARE);
    assert_eq!(analyse(&contend(&known)).verdict, Verdict::Schedulable);
    let of_d = |l: &Latency| l.core == 1 && l.memory == 0;
    let mut unknown = known.clone();
    unknown.latencies.retain(|l| !of_d(l));
    let report = analyse(&contend(&unknown));
    assert!(report.tasks.iter().all(|t| t.verdict == Verdict::Unknown));
    assert!(report.tasks[0].why.contains("uses memory 'm' for an unknown time"), "{report:?}");
    let mut nowhere = known.clone();
    nowhere.labels[1].memory = None;
    let report = analyse(&contend(&nowhere));
    assert!(report.tasks.iter().all(|t| t.verdict == Verdict::Unknown));
    assert!(report.tasks[0].why.contains("label 'o'"), "{report:?}");
}

#[test]
fn contention_keeps_exact_results_of_cores_that_do_not_wait() {
    let over = TWO.replace("'9 ms'", "'13 ms'");
    let model = read_toml(&over).unwrap();
    assert_eq!(contend(&model), model);
    // Only the task of core d uses the memory.
    let alone = read_toml(&(over + HARDWARE)).unwrap();
    assert_eq!(contend(&alone).notes, []);
    assert_eq!(analyse(&contend(&alone)).verdict, Verdict::Unschedulable);
    // The accesses of d wait for those of a, so that only the figures of c are bounds.
    let hardware = HARDWARE.to_owned()
        + "[[cores]]\nname = 'x'\n[[tasks]]\nname = 'own'\nperiod = '1 ms'\n\
           execution = '2 ms'\npriority = 1\ncore = 'x'\n";
    let report = analyse(&contend(&shared_memory(ACCESS, &hardware)));
    assert_eq!(report.tasks[3].verdict, Verdict::Unschedulable);
    assert_eq!(report.verdict, Verdict::Unschedulable);
}

/// Two cores with one queue and 2.8 times the time of one: the highest task runs at once.
#[test]
fn overload_of_cores_with_one_queue_leaves_the_tasks_above_schedulable() {
    let task = |name: &str, worst: &str, priority: u32, more: &str| {
        format!(
            "[[tasks]]\nname = '{name}'\nperiod = '10 ms'\nexecution = '{worst}'\n\
             priority = {priority}\ncore = 'c0'\n{more}\n"
        )
    };
    let cores = "[[cores]]\nname = 'c0'\ncluster = 'x'\n[[cores]]\nname = 'c1'\ncluster = 'x'\n";
    let verdicts = |low: &str, more: &str| -> Vec<Verdict> {
        let tasks = [
            task("hi", "1 ms", 9, ""),
            task("a", "9 ms", 3, ""),
            task("b", "9 ms", 2, ""),
            task("low", low, 1, more),
        ];
        let report = analyse(&read_toml(&(cores.to_owned() + &tasks.concat())).unwrap());
        report.tasks.iter().map(|t| t.verdict).collect()
    };
    let (yes, open) = (Verdict::Schedulable, Verdict::Unknown);
    assert_eq!(verdicts("9 ms", "jitter = '1 us'")[..2], [yes, yes]);
    assert_eq!(verdicts("9 ms", "jitter = '1 us'")[3], open);
    assert_eq!(verdicts("9 ms", "")[..2], [yes, yes]);
    // All tasks above have a bound, and the load of all is above 2.
    let text = cores.to_owned()
        + &[task("a", "9 ms", 3, ""), task("b", "9 ms", 2, ""), task("c", "3 ms", 1, "")].concat();
    let report = analyse(&read_toml(&text).unwrap());
    let found: Vec<Verdict> = report.tasks.iter().map(|t| t.verdict).collect();
    assert_eq!(found, [yes, yes, Verdict::Unschedulable]);
    assert!(report.tasks[2].why.contains("its cores"), "{report:?}");
    // A task of more than one core is served by one only: the other one remains for those below.
    let text = cores.to_owned()
        + &[task("a", "13 ms", 3, ""), task("b", "1 ms", 2, ""), task("c", "9 ms", 1, "")].concat();
    let report = analyse(&read_toml(&text).unwrap());
    assert!(report.tasks[1..].iter().all(|t| t.verdict == open), "{report:?}");
}

/// A group of which only one core is left is a core.
#[test]
fn cluster_of_one_core_is_partitioned() {
    let text = TWO.replace("name = 'c'\n[[tasks]]", "name = 'c'\ncluster = 'x'\n[[tasks]]");
    let text = text.replace("priority = 1", "priority = 1\npreemption = 'non-preemptive'");
    let report = analyse(&read_toml(&text.replace("'10 ms'", "'20 ms'")).unwrap());
    assert_eq!(report.verdict, Verdict::Schedulable, "{report:?}");
}

#[test]
fn modes_exclude_each_other() {
    let modes = TWO.replace("'9 ms'", "'13 ms'").replace("core = 'c'", "core = 'c'\nmodes = ['X']");
    assert_eq!(verdict(&("modes = ['X', 'on']".to_owned() + &modes)), Verdict::Unschedulable);
    let apart = modes.replacen("['X']", "['on']", 1);
    assert_eq!(verdict(&("modes = ['X', 'on']".to_owned() + &apart)), Verdict::Schedulable);
}

#[test]
fn chain_without_a_common_mode_is_unknown() {
    let apart = TWO
        .replacen("core = 'c'\n", "core = 'c'\nmodes = ['X']\n", 1)
        .replace("priority = 1", "priority = 1\nmodes = ['on']");
    let report = analyse(&read_toml(&("modes = ['X', 'on']".to_owned() + &apart + CHAIN)).unwrap());
    let results: Vec<_> = report.chains.iter().map(|c| (c.mode, c.verdict)).collect();
    assert_eq!(results, [(None, Verdict::Unknown)]);
    assert_eq!(report.verdict, Verdict::Unknown);
}

#[test]
fn overload_of_any_kind_is_never_schedulable() {
    for preemption in ["preemptive", "non-preemptive", "cooperative"] {
        let over = TWO
            .replace("'9 ms'", "'13 ms'")
            .replace("core = 'c'", &format!("core = 'c'\npreemption = '{preemption}'"));
        assert_ne!(verdict(&over), Verdict::Schedulable, "{preemption}");
    }
    let cycle = TWO.replace("priority = 2", "priority = 2\njitter = '900 ms'");
    assert_ne!(verdict(&cycle), Verdict::Schedulable);
}

#[test]
fn execution_times_beyond_the_limit_are_not_analysed() {
    let section = "sections = [{ resource = 'lock', execution = '1 us' }]\n";
    let text = "resources = ['lock']\n[[cores]]\nname = 'd'\n".to_owned()
        + &TWO.replace("name = 'c'", "name = 'c'\nfrequency_hz = 1").replace(
            "execution = '9 ms'",
            "ticks = { any = 4503599627370496 }\npreemption = 'non-preemptive'",
        )
        + section
        + "[[tasks]]\nname = 'e'\nperiod = '9 ms'\nexecution = '1 ms'\npriority = 1\ncore = 'd'\n"
        + section;
    let report = analyse(&read_toml(&text).unwrap());
    let of = |name: usize| &report.tasks[name];
    assert!(of(1).why.contains("longer than 52 days"), "{report:?}");
    assert_eq!((of(0).verdict, of(1).verdict), (Verdict::Unknown, Verdict::Unknown));
}

/// A change that makes a model invalid.
type Damage = dyn Fn(&mut Model);

#[test]
fn indices_outside_of_the_model_are_rejected() {
    let model = read_toml(&(TWO.to_owned() + CHAIN)).unwrap();
    let changes: [(&str, &Damage); 11] = [
        ("core", &|m| m.tasks[0].core = Some(7)),
        ("runnable", &|m| m.tasks[0].runnables.push(7)),
        ("resource", &|m| m.tasks[0].sections.push(Section { resource: 7, worst_ns: 1 })),
        ("mode", &|m| m.tasks[0].modes.push(7)),
        ("label", &|m| {
            let (reads, writes) = (Range::exactly(1), Range::exactly(1));
            m.tasks[0].cost.accesses.push(Access { label: 7, reads, writes });
        }),
        ("task", &|m| m.tasks[1].activation = Some(Activation::After(7))),
        ("task", &|m| m.chains[0].tasks.push(7)),
        ("task", &|m| {
            let (place, what) = ("line 1".into(), "something".into());
            m.notes.push(Note { place, what, effect: Effect::None, task: Some(7) });
        }),
        ("memory", &|m| {
            m.labels.push(Label { name: "l".into(), memory: Some(7), ..Label::default() });
        }),
        ("core", &|m| {
            let (read_ns, write_ns) = (1, 1);
            m.latencies.push(Latency {
                core: 7,
                memory: 0,
                read_ns,
                write_ns,
                access_bytes: 1,
                wait_ns: 0,
            });
        }),
        ("memory", &|m| {
            let (read_ns, write_ns) = (1, 1);
            m.latencies.push(Latency {
                core: 0,
                memory: 0,
                read_ns,
                write_ns,
                access_bytes: 1,
                wait_ns: 0,
            });
        }),
    ];
    for (kind, change) in changes {
        let mut changed = model.clone();
        change(&mut changed);
        let error = changed.check().unwrap_err().to_string();
        assert!(error.contains(&format!("no {kind} has index")), "{error}");
    }
}

/// The TOML form has no larger integers, and the analysis computes with sums.
#[test]
fn numbers_above_the_limit_are_rejected() {
    let model = read_toml(TWO).unwrap();
    let changes: [(&str, &Damage); 4] = [
        ("size in bytes", &|m| {
            let size_bytes = Some(u64::MAX);
            m.labels.push(Label { name: "l".into(), size_bytes, ..Label::default() });
        }),
        ("frequency in hertz", &|m| m.cores[0].frequency_hz = Some(u64::MAX)),
        ("deadline in nanoseconds", &|m| m.tasks[0].deadline_ns = Some(u64::MAX)),
        ("memory in bytes", &|m| m.tasks[0].memory_bytes = u64::MAX),
    ];
    for (what, change) in changes {
        let mut changed = model.clone();
        change(&mut changed);
        let error = changed.check().unwrap_err().to_string();
        assert!(error.contains(what) && error.contains("2^52"), "{error}");
    }
}
