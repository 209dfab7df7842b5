//! Running networks: results, faults and shutdown.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use corebeat_lpel::{Failure, Runtime, STACK_MAX, STACK_MIN};
use corebeat_snet::body::Out;
use corebeat_snet::{
    Boxes, Fault, Kind, Label, Network, NetworkOptions, OnFault, Outcome, Position, Record,
    ReportFault, RunError, Running, Tag, Value, check, parse,
};

/// Options of a network that continues after faults.
fn continuing() -> NetworkOptions {
    NetworkOptions { on_fault: OnFault::Continue, ..NetworkOptions::default() }
}

fn network(source: &str, boxes: Boxes) -> Network {
    let module = parse(source).unwrap_or_else(|diagnostics| panic!("{}", diagnostics[0]));
    let checked = check(&module, None);
    let net = checked.net.unwrap_or_else(|| panic!("{}", checked.diagnostics[0]));
    Network::new(net, |plan| boxes.find(plan)).unwrap_or_else(|why| panic!("{why}"))
}

/// A record of text fields, and of tags for numbers.
fn record(text: &str) -> Record {
    let entry = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap();
        match value.parse() {
            Ok(n) => (Label::new(Kind::Tag, name).unwrap(), Value::Tag(n)),
            Err(_) => (Label::new(Kind::Field, name).unwrap(), Value::from(value)),
        }
    };
    Record::from_pairs(text.split_whitespace().map(entry)).unwrap()
}

fn records(texts: &[&str]) -> Vec<Record> {
    texts.iter().map(|text| record(text)).collect()
}

/// The outcome of a run, whether a fault has stopped it or not.
fn run(network: &Network, workers: usize, input: Vec<Record>) -> Outcome {
    match network.run(&Runtime::builder().workers(workers).build().unwrap(), input) {
        Ok(outcome) | Err(RunError::Stopped(outcome)) => outcome,
        Err(why) => panic!("{why}"),
    }
}

/// Sorted values of a tag.
fn tags(outcome: &Outcome, name: &str) -> Vec<i32> {
    let label = Label::new(Kind::Tag, name).unwrap();
    let mut tags: Vec<i32> = outcome.records.iter().map(|r| r.tag(label).unwrap()).collect();
    tags.sort();
    tags
}

/// A box that fails or panics for certain tags.
fn moody() -> Boxes {
    let boxes =
        Boxes::new().with("moody", "(<n>) -> (<n>)", |(Tag(n),): (Tag,), out: &mut Out| match n {
            13 => Err("unlucky".to_string()),
            14 => panic!("very unlucky"),
            n => out.emit(1, (Tag(n),)).map(drop),
        });
    boxes.unwrap()
}

const MOODY: &str = "box moody ((<n>) -> (<n>)); net main connect moody;";

#[test]
fn failing_box_loses_only_its_record() {
    let network = network(MOODY, moody()).with_options(continuing());
    for workers in [1, 2] {
        let outcome = run(&network, workers, records(&["n=1", "n=13", "n=2", "n=14", "n=3"]));
        assert_eq!(tags(&outcome, "n"), [1, 2, 3]);
        let faults: Vec<String> = outcome.faults.iter().map(ToString::to_string).collect();
        assert_eq!(faults, ["box moody: unlucky", "box moody: the box panicked: very unlucky"]);
    }
}

#[test]
fn fault_is_the_error_of_a_run_unless_it_continues() {
    let runtime = Runtime::builder().workers(2).build().unwrap();
    for (tag, fault) in [(13, "unlucky"), (14, "the box panicked: very unlucky")] {
        let input = || records(&["n=1", &format!("n={tag}")]);
        let stopping = network(MOODY, moody()).run(&runtime, input());
        let why = stopping.unwrap_err();
        assert_eq!(
            why.to_string(),
            format!(
                "the network stopped at a fault: box moody: {fault}; set `OnFault::Continue` to \
                 continue after faults"
            )
        );
        assert_eq!(format!("{why:?}"), format!("RunError({why})"));
        let RunError::Stopped(outcome) = why else { panic!("{why}") };
        assert_eq!((tags(&outcome, "n"), outcome.fault_count), (vec![1], 1));
        let continuing = network(MOODY, moody()).with_options(continuing());
        assert_eq!(continuing.run(&runtime, input()).unwrap().fault_count, 1);
    }
}

#[test]
fn fault_stops_the_input_and_loses_nothing_inside() {
    let network = network(MOODY, moody());
    let input: Vec<Record> =
        (0..100_000).map(|n| record(&format!("n={}", if n == 13 { 13 } else { 100 }))).collect();
    let outcome = run(&network, 2, input);
    assert_eq!(outcome.fault_count, 1);
    assert!(
        outcome.records.len() >= 13 && outcome.records.len() < 99_999,
        "{}",
        outcome.records.len()
    );
}

#[test]
fn faults_are_reported_immediately() {
    let reported = Arc::new(Mutex::new(Vec::new()));
    let to = reported.clone();
    let report: ReportFault = Arc::new(move |fault| to.lock().unwrap().push(fault.to_string()));
    let options = NetworkOptions { report_fault: Some(report), ..NetworkOptions::default() };
    let network = network(MOODY, moody()).with_options(options);
    assert_eq!(run(&network, 1, records(&["n=13"])).fault_count, 1);
    assert_eq!(*reported.lock().unwrap(), ["box moody: unlucky"]);
}

#[test]
fn fault_as_a_record_has_the_message_and_all_values_with_text() {
    let label = |text: &str| text.parse::<Label>().unwrap();
    let pairs = [(label("c"), Value::from("x")), (label("r"), Value::native(5u8))];
    let split = network("net main connect [] ! <k>;", Boxes::new()).with_options(continuing());
    let outcome = run(&split, 1, vec![Record::from_pairs(pairs).unwrap()]);
    let message = Value::from("a split: the split takes records with <k>");
    let expected = [(label("c"), Value::from("x")), (label(Fault::FIELD), message)];
    assert_eq!(outcome.faults[0].to_record(), Record::from_pairs(expected).unwrap());
    // The box has consumed the record.
    let outcome = run(&network(MOODY, moody()), 1, records(&["n=13"]));
    let expected = [(label(Fault::FIELD), Value::from("box moody: unlucky"))];
    assert_eq!(outcome.faults[0].to_record(), Record::from_pairs(expected).unwrap());
}

#[test]
fn unroutable_record_is_reported_with_the_accepted_types() {
    let network = network("net main connect [{a} -> {a}] | [{b} -> {b}];", Boxes::new());
    let outcome = run(&network, 1, records(&["c=x"]));
    assert_eq!(
        outcome.faults[0].to_string(),
        "a parallel composition: no branch takes the record: the branches take {a} | {b}; record: \
         {c: \"x\"}"
    );
}

#[test]
fn missing_tag_of_a_split_and_field_of_a_box_are_reported() {
    let split = network("net main connect [] ! <k>;", Boxes::new());
    assert_eq!(
        run(&split, 1, records(&["c=x"])).faults[0].to_string(),
        "a split: the split takes records with <k>; record: {c: \"x\"}"
    );
    let moody = network(MOODY, moody());
    assert_eq!(
        run(&moody, 1, records(&["c=x"])).faults[0].to_string(),
        "box moody: the box takes {<n>}; record: {c: \"x\"}"
    );
}

#[test]
fn filter_passes_records_without_labels_it_only_removes() {
    let filter =
        network("net main connect [{a, c} -> {a}; {}];", Boxes::new()).with_options(continuing());
    for workers in [1, 2] {
        let outcome = run(&filter, workers, records(&["a=x c=y d=z", "a=x d=z", "c=y d=z"]));
        assert_eq!(outcome.records, records(&["a=x d=z", "d=z", "a=x d=z", "d=z"]));
        let faults: Vec<String> = outcome.faults.iter().map(ToString::to_string).collect();
        assert_eq!(
            faults,
            ["[{a, c} -> {a}; {}]: the filter takes {a, c}; record: {c: \"y\", d: \"z\"}"]
        );
    }
}

#[test]
fn division_by_zero_loses_only_its_record() {
    let source = "net main connect [{<n>} -> {<n = 12 / n>}] .. ([| {<n>} if <1 / n>, {<m>} |] | \
                  []) .. ([] * {<n>} if <n % n == 0>);";
    let network = network(source, Boxes::new()).with_options(continuing());
    let outcome = run(&network, 1, records(&["n=0", "n=3", "n=4", "n=100"]));
    assert_eq!(tags(&outcome, "n"), [3, 4]);
    assert_eq!(outcome.fault_count, 2);
    assert!(
        outcome.faults.iter().all(|f| f.message.contains("division by zero")),
        "{:?}",
        outcome.faults
    );
}

#[test]
fn undeclared_output_of_a_box_is_detected() {
    let boxes = Boxes::new().with(
        "liar",
        "(<n>) -> (<n>) | (a)",
        |(Tag(n),): (Tag,), out: &mut Out| match n {
            0 => out.emit(3, (Tag(n),)),
            1 => out.emit(1, (Tag(n), Tag(n))),
            2 => out.emit(2, (Tag(n),)),
            _ => out.emit(1, ("text",)),
        },
    );
    let network =
        network("box liar ((<n>) -> (<n>) | (a)); net main connect liar;", boxes.unwrap());
    let outcome =
        run(&network.with_options(continuing()), 1, records(&["n=0", "n=1", "n=2", "n=3"]));
    let said: Vec<&str> =
        outcome.faults.iter().map(|f| f.message.split(':').next().unwrap()).collect();
    assert_eq!(
        said,
        [
            "the box output variant 3, but declares 2 variants",
            "the box output 2 values as variant 1, which has 1",
            "the box output 2 as a of variant 2",
            "the box output \"text\" as <n> of variant 1",
        ]
    );
    assert!(outcome.records.is_empty());
}

#[test]
fn records_without_partner_are_counted() {
    let network = network("net main connect [| {a}, {b} |] * {a, b};", Boxes::new());
    let outcome = run(&network, 2, records(&["a=x", "a=y", "b=z", "a=u"]));
    assert_eq!((outcome.records.len(), outcome.kept), (1, 2));
}

#[test]
fn record_that_matches_two_patterns_fills_both() {
    let network = network("net main connect [| {a}, {b} |];", Boxes::new());
    let outcome = run(&network, 1, records(&["a=x b=y c=z", "a=u"]));
    assert_eq!(outcome.records, records(&["a=x b=y c=z", "a=u"]));
    assert_eq!(outcome.kept, 0);
}

#[test]
fn merged_record_keeps_only_other_labels_of_the_first_pattern() {
    let network = network("net main connect [| {a}, {b, <n>} |];", Boxes::new());
    let outcome = run(&network, 1, records(&["b=1st n=7 n2=8 d=no", "a=x e=yes b=old"]));
    assert_eq!(outcome.records, records(&["a=x e=yes b=1st n=7"]));
}

#[test]
fn observer_receives_inputs_and_outputs() {
    let count = |network: Network, name, position| {
        let seen = Arc::new(AtomicUsize::new(0));
        let to = seen.clone();
        let network = network.observe(name, position, move |_| {
            to.fetch_add(1, Ordering::Relaxed);
        });
        (network, seen)
    };
    let source = "box moody ((<n>) -> (<n>)); net main { net inner connect [{<n>} -> {<n>}; \
                  {<n>}]; } connect moody .. inner;";
    let (network, before) = count(network(source, moody()), "moody", Position::Before);
    let (network, after) = count(network, "moody", Position::After);
    let (network, within) = count(network, "inner", Position::Before);
    let (network, end) = count(network, "inner", Position::After);
    let outcome = run(&network.with_options(continuing()), 2, records(&["n=1", "n=13", "n=2"]));
    assert_eq!(outcome.fault_count, 1);
    let seen = [before, after, within, end].map(|seen| seen.load(Ordering::Relaxed));
    assert_eq!(seen, [3, 2, 2, 4]);
}

#[test]
fn network_outputs_records_while_its_input_is_open() {
    let runtime = Runtime::builder().workers(2).build().unwrap();
    let network = network(MOODY, moody());
    let mut running = network.start(&runtime);
    for n in [1, 2, 3] {
        running.input.write(record(&format!("n={n}"))).unwrap();
        assert_eq!(running.output.next(), Some(record(&format!("n={n}"))));
    }
    drop(running.input);
    assert_eq!(running.output.next(), None);
    assert_eq!(running.report.fault_count(), 0);
}

#[test]
fn stopped_network_accepts_no_records_and_ends() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let mut running = network(MOODY, moody()).start(&runtime);
    running.report.stop();
    // The network ends although its input is open. Then the input accepts no records.
    assert_eq!(running.output.next(), None);
    let refused = (0..).find(|_| running.input.write(record("n=1")).is_err());
    assert!(refused.is_some());
}

#[test]
fn full_output_blocks_the_input() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    let boxes = Boxes::new().with("pass", "(<n>) -> (<n>)", move |(n,): (Tag,), out: &mut Out| {
        count.fetch_add(1, Ordering::Relaxed);
        out.emit(1, (n,))
    });
    let network = network("box pass ((<n>) -> (<n>)); net main connect pass;", boxes.unwrap())
        .with_options(NetworkOptions { capacity: 2, ..NetworkOptions::default() });
    let corebeat_snet::Running { mut input, output, .. } = network.start(&runtime);
    let writer = std::thread::spawn(move || {
        (0..1000).for_each(|n| input.write(record(&format!("n={n}"))).unwrap())
    });
    let mut seen = 0;
    for record in output {
        assert_eq!(record.tag(Label::new(Kind::Tag, "n").unwrap()), Some(seen));
        seen += 1;
        // Two streams with two records each, the record in the box, and records between.
        assert!(calls.load(Ordering::Relaxed) <= seen as usize + 8);
    }
    assert_eq!(seen, 1000);
    writer.join().unwrap();
}

#[test]
fn endless_box_ends_without_a_reader() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let boxes = Boxes::new().with("forever", "-> (<n>)", |(): (), out: &mut Out| {
        while out.emit(1, (Tag(1),))? {}
        Ok::<_, String>(())
    });
    let network = network("box forever (-> (<n>)); net main connect forever;", boxes.unwrap());
    let mut running = network.start(&runtime);
    assert_eq!(running.output.by_ref().take(1000).count(), 1000);
    drop(running);
    // Dropping the runtime waits for running tasks.
    drop(runtime);
}

#[test]
fn abandoned_network_without_end_ends_although_its_output_is_read() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let (begun, has_begun) = std::sync::mpsc::sync_channel(1);
    let again = move |(n,): (Tag,), out: &mut Out| {
        let _ = begun.try_send(());
        out.emit(1, (n,))
    };
    let boxes = Boxes::new().with("again", "(<n>) -> (<n>) | (<end>)", again);
    let source = "box again ((<n>) -> (<n>) | (<end>)); net main connect again * {<end>};";
    let mut running = network(source, boxes.unwrap()).start(&runtime);
    running.input.write(record("n=1")).unwrap();
    let report = running.report.clone();
    let reader = std::thread::spawn(move || running.output.next());
    has_begun.recv().unwrap();
    report.abandon();
    assert_eq!(reader.join().unwrap(), None);
    assert_eq!(report.fault_count(), 0);
}

/// Number of live tasks during a run, measured in a box.
fn tasks_alive(source: &str, boxes: Boxes, input: Vec<Record>) -> (Outcome, usize) {
    let most = Arc::new(AtomicUsize::new(0));
    let seen = most.clone();
    let options = NetworkOptions { capacity: 4, ..NetworkOptions::default() };
    let network = network(source, boxes).with_options(options).observe(
        "probe",
        Position::Before,
        move |_| {
            let tasks = corebeat_lpel::dump().expect("observers run in tasks").tasks.len();
            seen.fetch_max(tasks, Ordering::Relaxed);
        },
    );
    let outcome = run(&network, 1, input);
    (outcome, most.load(Ordering::Relaxed))
}

/// Stages that join a state and a number, by their definitions and their topology.
const STATEFUL: [(&str, &str); 3] = [
    ("", "[| {state}, {<n>} |] .. ([] | add)"),
    (
        "net join connect [| {state}, {<n>} |]; net past connect [{<n>} -> {<n>}];",
        "join .. (add | past)",
    ),
    ("net whole connect [| {state}, {<n>} |] .. ([] | add);", "whole"),
];

#[test]
fn finished_stages_are_removed() {
    for (combinator, (nets, stage)) in ["*", "**"].iter().flat_map(|c| STATEFUL.map(|s| (c, s))) {
        let boxes = Boxes::new()
            .with(
                "add",
                "(state, <n>) -> (state) | (<sum>)",
                |(s, Tag(n)): (i32, Tag), out: &mut Out| {
                    out.emit(1, (s + n,))?;
                    out.emit(2, (Tag(s + n),))
                },
            )
            .unwrap();
        let source = format!(
            "box add ((state, <n>) -> (state) | (<sum>));
            net main {{
                net probe connect [{{<n>}} -> {{<n>}}];
                {nets}
            }} connect (probe | []) .. ({stage}) {combinator} {{<sum>}};"
        );
        let state = Label::new(Kind::Field, "state").unwrap();
        let state = Record::from_pairs([(state, Value::from(0i32))]).unwrap();
        let numbers = (1..=1000).map(|n| record(&format!("n={n}")));
        let input = std::iter::once(state).chain(numbers).collect();
        let (outcome, most) = tasks_alive(&source, boxes, input);
        let sums = tags(&outcome, "sum");
        assert_eq!((sums.len(), sums[999], outcome.kept), (1000, 1000 * 1001 / 2, 1));
        assert!(most < 200, "{most} tasks with {stage} {combinator}");
    }
}

#[test]
fn observer_in_a_star_receives_each_record_at_each_stage() {
    let filter = "net add connect [{<s>, <n>} -> {<s = s + n>}; {<sum = s + n>}];";
    let adds = [filter, "box add ((<s>, <n>) -> (<s>) | (<sum>));"];
    // A state enters each stage, and the number k enters k stages. A pair leaves its stage as a
    // state and a sum, and the last state waits.
    let expected = [(Position::Before, 51 + 50 * 51 / 2), (Position::After, 50 * 2 + 49 * 50 / 2)];
    // With a choice before the star, a collector may hand its streams to the next one.
    let cases = adds.iter().flat_map(|add| expected.map(|(at, count)| (add, at, count)));
    for (before, (add, at, count)) in
        cases.flat_map(|case| ["", "(same | []) .. "].map(|before| (before, case)))
    {
        let boxes = Boxes::new().with(
            "add",
            "(<s>, <n>) -> (<s>) | (<sum>)",
            |(Tag(s), Tag(n)): (Tag, Tag), out: &mut Out| {
                out.emit(1, (Tag(s + n),))?;
                out.emit(2, (Tag(s + n),))
            },
        );
        let source = format!(
            "net main {{ net same connect [{{<n>}} -> {{<n>}}]; {add}
                net stage connect [| {{<s>}}, {{<n>}} |] .. (add | []); }}
            connect {before} stage * {{<sum>}};"
        );
        let seen = Arc::new(AtomicUsize::new(0));
        let to = seen.clone();
        let network = network(&source, boxes.unwrap()).observe("stage", at, move |_| {
            to.fetch_add(1, Ordering::Relaxed);
        });
        let input =
            std::iter::once(record("s=0")).chain((1..=50).map(|n| record(&format!("n={n}"))));
        let outcome = run(&network, 1, input.collect());
        assert_eq!((tags(&outcome, "sum").len(), outcome.kept), (50, 1), "{before}{add}");
        assert_eq!(seen.load(Ordering::Relaxed), count, "{before}{add} {at:?}");
    }
}

#[test]
fn unused_replicas_are_removed() {
    for combinator in ["!", "!!"] {
        let source = format!(
            "box pass ((<n>) -> (<n>)); net main {{ net probe connect []; }} connect probe .. \
             (pass {combinator} <n>);"
        );
        let boxes = Boxes::new()
            .with("pass", "(<n>) -> (<n>)", |(n,): (Tag,), out: &mut Out| out.emit(1, (n,)))
            .unwrap();
        let input = (0..5000).map(|n| record(&format!("n={n}"))).collect();
        let (outcome, most) = tasks_alive(&source, boxes, input);
        assert_eq!(tags(&outcome, "n"), (0..5000).collect::<Vec<_>>());
        assert!(most < 1200, "{most} tasks");
    }
}

#[test]
fn deterministic_split_keeps_the_order_of_slow_and_fast() {
    let boxes = || {
        Boxes::new()
            .with("work", "(<n>, <k>) -> (<n>)", |(Tag(n), Tag(k)): (Tag, Tag), out: &mut Out| {
                (0..k * 100).for_each(|_| corebeat_lpel::yield_now());
                out.emit(1, (Tag(n),))?;
                out.emit(1, (Tag(n),))
            })
            .unwrap()
    };
    let source = "box work ((<n>, <k>) -> (<n>)); net main connect work !! <k>;";
    let network = network(source, boxes());
    let input: Vec<Record> = (0..60).map(|n| record(&format!("n={n} k={}", 3 - n % 4))).collect();
    let outcome = run(&network, 2, input);
    let label = Label::new(Kind::Tag, "n").unwrap();
    let order: Vec<i32> = outcome.records.iter().map(|r| r.tag(label).unwrap()).collect();
    assert_eq!(order, (0..120).map(|i| i / 2).collect::<Vec<_>>());
}

#[test]
fn feedback_with_boxes_ends_when_its_records_have_left() {
    let boxes = Boxes::new().with("half", "(<n>) -> (<n>)", |(Tag(n),): (Tag,), out: &mut Out| {
        out.emit(1, (Tag(n / 2),))?;
        out.emit(1, (Tag(n - n / 2),))
    });
    let network = network(
        "box half ((<n>) -> (<n>)); net main connect half \\ {<n>} if <n > 1>;",
        boxes.unwrap(),
    );
    for workers in [1, 2] {
        let outcome = run(&network, workers, records(&["n=1000", "n=300"]));
        assert_eq!(tags(&outcome, "n").iter().sum::<i32>(), 1300);
        assert!(tags(&outcome, "n").iter().all(|n| *n <= 1));
    }
}

#[test]
fn place_selects_workers_modulo_their_number() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let to = seen.clone();
    let boxes = Boxes::new().with("where", "(<n>) -> (<n>)", move |(n,): (Tag,), out: &mut Out| {
        to.lock().unwrap().push((n.0, std::thread::current().name().map(String::from)));
        out.emit(1, (n,))
    });
    let network =
        network("box where ((<n>) -> (<n>)); net main connect where !@ <n>;", boxes.unwrap());
    let outcome = run(&network, 2, records(&["n=0", "n=1", "n=2", "n=3"]));
    assert_eq!(outcome.fault_count, 0);
    // In this configuration, each task is a thread without a name.
    if cfg!(corebeat_threads) {
        return;
    }
    let mut seen = seen.lock().unwrap().clone();
    seen.sort();
    let on = |n: usize| seen[n].1.clone();
    assert_eq!((on(0), on(1)), (on(2), on(3)));
    assert_ne!(on(0), on(1));
}

#[test]
fn network_runs_several_times() {
    let network = network("net main connect [| {a}, {b} |];", Boxes::new());
    for _ in 0..3 {
        assert_eq!(run(&network, 1, records(&["a=x", "b=y"])).records.len(), 1);
    }
}

#[test]
fn star_of_a_choice_with_a_cell_loses_nothing() {
    let boxes = || {
        Boxes::new()
            .with("step", "(z) -> (z)", |(z,): (i32,), out: &mut Out| out.emit(1, (z,)))
            .unwrap()
    };
    for combinator in ["*", "**"] {
        let source = format!(
            "box step ((z) -> (z)); net main connect ([| {{x}}, {{y}} |] | step) {combinator} \
             {{x, y}};"
        );
        let input = records(&["x=a", "x=b", "x=c", "y=a", "y=b", "y=c"]);
        let outcome = run(&network(&source, boxes()), 1, input);
        assert_eq!(
            (outcome.records.len(), outcome.kept, outcome.fault_count),
            (3, 0, 0),
            "{combinator}"
        );
    }
}

/// A star whose stages are removed while records `n` pass through its boxes.
const GOING: &str = "box down ((<n>) -> (<n>));
    net main connect (([| {a}, {b} |] .. ([] | down)) * {a, b}, {<n>} if <n / (n - 5) == 0>) @ 1;";

#[test]
fn boxes_of_removed_stages_keep_their_place_and_exit() {
    let threads = Arc::new(Mutex::new(Vec::new()));
    let to = threads.clone();
    let boxes =
        Boxes::new().with("down", "(<n>) -> (<n>)", move |(Tag(n),): (Tag,), out: &mut Out| {
            to.lock().unwrap().push((n, std::thread::current().id()));
            out.emit(1, (Tag(n - 1),))
        });
    let mut input = records(&["a=x", "b=x", "a=x", "b=x", "a=x", "b=x"]);
    input.extend((0..20).flat_map(|_| records(&["a=x", "n=8", "n=4", "b=x"])));
    let network = network(GOING, boxes.unwrap()).with_options(continuing());
    let outcome = run(&network, 2, input);
    // 4 / -1 is not 0, so these records continue to 2. 8 continues to 5, which divides by 0.
    assert_eq!((outcome.records.len(), outcome.fault_count), (23 + 20, 20));
    let threads = threads.lock().unwrap();
    assert!(threads.iter().all(|(n, thread)| *n != 5 && *thread == threads[0].1));
}

#[test]
fn heavy_boxes_in_series_use_several_workers() {
    use std::thread::ThreadId;
    let workers: Arc<Mutex<[Option<ThreadId>; 2]>> = Arc::default();
    let work = |at: usize| {
        let workers = workers.clone();
        move |(tag,): (Tag,), out: &mut Out| {
            let begin = std::time::Instant::now();
            while begin.elapsed().as_micros() < 200 {}
            workers.lock().unwrap()[at] = Some(std::thread::current().id());
            out.emit(1, (tag,))
        }
    };
    let boxes = Boxes::new().with("a", "(<n>) -> (<n>)", work(0)).unwrap();
    let boxes = boxes.with("b", "(<n>) -> (<n>)", work(1)).unwrap();
    let source = "box a ((<n>) -> (<n>)); box b ((<n>) -> (<n>)); net main connect a .. b;";
    let apart = workers.clone();
    let are_apart = move || matches!(*apart.lock().unwrap(), [Some(a), Some(b)] if a != b);
    let begin = std::time::Instant::now();
    let input = (0..).map_while(move |n| {
        assert!(begin.elapsed().as_secs() < 120, "both boxes run on one worker");
        (!are_apart()).then(|| record(&format!("n={n}")))
    });
    let runtime = Runtime::builder().workers(2).build().unwrap();
    let outcome = network(source, boxes).run(&runtime, input).unwrap();
    let numbers = tags(&outcome, "n");
    assert!(numbers.iter().copied().eq(0..numbers.len() as i32));
}

#[test]
fn cancelled_network_reports_that_its_output_is_cut_short() {
    let slow = |(tag,): (Tag,), out: &mut Out| {
        corebeat_lpel::sleep(std::time::Duration::from_micros(10));
        out.emit(1, (tag,))
    };
    let boxes = || Boxes::new().with("a", "(<n>) -> (<n>)", slow).unwrap();
    for connect in ["a", "a .. a", "a || a", "a ! <n>", "[] .. a .. []"] {
        let source = format!("box a ((<n>) -> (<n>)); net main connect {connect};");
        let mut was_cut = false;
        for round in 0..2_000 {
            let runtime = Arc::new(Runtime::builder().workers(2).build().unwrap());
            let scope = runtime.scope();
            let (network, of_task) = (network(&source, boxes()), runtime.clone());
            let started = scope.spawn(move || network.start(&of_task)).join().unwrap();
            let corebeat_snet::Running { mut input, mut output, report } = started;
            (0..8).try_for_each(|n| input.write(record(&format!("n={n}")))).unwrap();
            drop(input);
            let first = usize::from(output.next().is_some());
            match round % 2 {
                0 => scope.cancel(),
                _ => drop(runtime),
            }
            let read = first + output.count();
            assert!(read == 8 || report.fault_count() > 0, "{connect}: {read} records, no fault");
            was_cut |= read < 8;
            if was_cut && round >= 50 {
                break;
            }
        }
        assert!(was_cut, "{connect} was never cut short");
    }
}

#[test]
fn network_without_a_reader_ends() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let rests = "pass .. pass; pass | [{a} -> {a}]; pass || [{a} -> {a}]; pass ! <n>; pass !! <n>; \
                 pass * {<m>}; pass ** {<m>}; pass \\ {<q>}";
    for rest in rests.split(';') {
        let ended = Arc::new(AtomicUsize::new(0));
        let count = ended.clone();
        let boxes = Boxes::new()
            .with("forever", "-> (<n>)", move |(): (), out: &mut Out| {
                while out.emit(1, (Tag(1),))? {}
                count.fetch_add(1, Ordering::SeqCst);
                Ok::<_, String>(())
            })
            .unwrap()
            .with("pass", "(<n>) -> (<n>, <m>)", |(n,): (Tag,), out: &mut Out| {
                out.emit(1, (n, Tag(0)))
            })
            .unwrap();
        let source = format!(
            "box forever (-> (<n>)); box pass ((<n>) -> (<n>, <m>)); net main connect forever .. \
             ({rest});"
        );
        let corebeat_snet::Running { mut input, mut output, .. } =
            network(&source, boxes).start(&runtime);
        assert_eq!(output.by_ref().take(1000).count(), 1000);
        drop(output);
        assert!((0..).any(|_| input.write(record("n=1")).is_err()));
        let patient = std::time::Instant::now();
        while ended.load(Ordering::SeqCst) == 0 {
            assert!(patient.elapsed().as_secs() < 120, "{rest} does not end");
            std::thread::yield_now();
        }
    }
}

#[test]
fn fault_of_a_filter_has_the_record_if_it_is_complete() {
    let source = "net main connect [{a, <n>} -> {a, <n = 1 / n>}];";
    let outcome = run(&network(source, Boxes::new()), 1, records(&["a=x n=0"]));
    assert_eq!(outcome.faults[0].record, Some(record("a=x n=0")));
    let source = "net main connect [{a, <n>} -> {a}; {<n = 1 / n>}];";
    let outcome = run(&network(source, Boxes::new()), 1, records(&["a=x n=0"]));
    assert_eq!((&outcome.records[..], &outcome.faults[0].record), (&records(&["a=x"])[..], &None));
}

/// A value whose destructor panics.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("the destructor failed");
    }
}

/// A record whose value panics where a filter drops it, between two others.
fn with_bomb() -> Vec<Record> {
    let bomb = Record::from_pairs([(Label::new(Kind::Field, "a").unwrap(), Value::native(Bomb))]);
    [record("a=x"), bomb.unwrap(), record("a=y")].into()
}

#[test]
fn panic_of_the_input_is_the_error_of_the_run() {
    let runtime = Runtime::builder().workers(2).build().unwrap();
    let records = (0..100).map(|n| if n == 50 { panic!("no more") } else { record("n=1") });
    let Err(RunError::Runtime(Failure::Panicked(panic))) =
        network(MOODY, moody()).run(&runtime, records)
    else {
        panic!("the run has lost records")
    };
    assert_eq!(panic.message(), Some("no more"));
}

#[test]
fn panic_of_the_function_that_receives_faults_loses_no_record() {
    let report: ReportFault = Arc::new(|_| panic!("no terminal"));
    let options = NetworkOptions { report_fault: Some(report), ..continuing() };
    let outcome = run(
        &network(MOODY, moody()).with_options(options),
        2,
        records(&["n=13", "n=1", "n=2", "n=3"]),
    );
    assert_eq!(tags(&outcome, "n"), [1, 2, 3]);
    let faults: Vec<String> = outcome.faults.iter().map(ToString::to_string).collect();
    assert_eq!(
        faults,
        ["box moody: unlucky", "the function report_fault: the function panicked: no terminal"]
    );
}

#[test]
fn panic_of_a_task_is_reported_and_stops_the_network() {
    let runtime = Runtime::builder().workers(2).build().unwrap();
    let boxes = || {
        Boxes::new().with("pass", "(a) -> (a)", |(a,): (Value,), out: &mut Out| out.emit(1, (a,)))
    };
    // The filter runs in the first task, and in a collector.
    for source in [
        "net main connect [{a} -> {<n>}];",
        "box pass ((a) -> (a)); net main connect (pass | [{a, b} -> {a}]) .. [{a} -> {<n>}];",
    ] {
        let network = network(source, boxes().unwrap()).with_options(continuing());
        let Err(RunError::Runtime(Failure::Panicked(panic))) = network.run(&runtime, with_bomb())
        else {
            panic!("{source}: the run has lost records")
        };
        let message = panic.message().unwrap();
        assert!(message.ends_with("the task panicked: the destructor failed"), "{message}");

        let Running { mut input, output, report } = network.start(&runtime);
        let refused = with_bomb().into_iter().chain(std::iter::repeat_with(|| record("a=x")));
        refused.map_while(|record| input.write(record).ok()).for_each(drop);
        // The report is complete when the output has ended.
        assert!(output.count() <= 1, "{source}");
        assert_eq!(report.faults()[0].to_string(), message);
    }
}

#[test]
fn box_that_ends_its_task_is_reported() {
    let boxes = Boxes::new().with("quit", "(<n>) -> (<n>)", |(_,): (Tag,), _: &mut Out| -> () {
        corebeat_lpel::exit()
    });
    let network = network("box quit ((<n>) -> (<n>)); net main connect quit;", boxes.unwrap());
    let runtime = Runtime::builder().workers(2).build().unwrap();
    let failure = network.run(&runtime, records(&["n=1"])).unwrap_err().to_string();
    assert!(failure.contains("task quit: the task was cancelled"), "{failure}");
}

#[test]
fn stack_size_out_of_range_is_refused_with_the_options() {
    for (stack_size, is_valid) in [
        (0, false),
        (STACK_MIN - 1, false),
        (STACK_MIN, true),
        (STACK_MAX, true),
        (STACK_MAX + 1, false),
        (usize::MAX, false),
    ] {
        let options = NetworkOptions { stack_size, ..NetworkOptions::default() };
        let set =
            || network("net main connect [{<n>} -> {<n>}];", Boxes::new()).with_options(options);
        let refused = catch_unwind(AssertUnwindSafe(set)).map(drop);
        assert_eq!(refused.is_ok(), is_valid, "{stack_size}");
        let text = refused.err().and_then(|panic| panic.downcast::<String>().ok());
        let begin = format!("a stack of {stack_size} bytes is out of range: request {STACK_MIN} ");
        assert!(text.is_none_or(|text| text.starts_with(&begin)));
    }
}
