//! Running networks: what users see when all goes well, and when it does not.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use corebeat_lpel::Runtime;
use corebeat_snet::body::Out;
use corebeat_snet::{
    Boxes, Kind, Label, Network, OnFault, Outcome, Position, Record, Tag, Value, check, parse,
};

fn network(source: &str, boxes: Boxes) -> Network {
    let module = parse(source).unwrap_or_else(|remarks| panic!("{}", remarks[0]));
    let checked = check(&module, None);
    let net = checked.net.unwrap_or_else(|| panic!("{}", checked.diagnostics[0]));
    Network::new(net, |plan| boxes.find(plan)).unwrap_or_else(|why| panic!("{why}"))
}

/// A record of text fields, and of tags where the value is a number.
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

fn run(network: &Network, workers: usize, input: Vec<Record>) -> Outcome {
    network.run(&Runtime::builder().workers(workers).build().unwrap(), input).unwrap()
}

/// The value of a tag in each record, sorted.
fn tags(outcome: &Outcome, name: &str) -> Vec<i32> {
    let label = Label::new(Kind::Tag, name).unwrap();
    let mut tags: Vec<i32> = outcome.records.iter().map(|r| r.tag(label).unwrap()).collect();
    tags.sort();
    tags
}

/// A box that refuses, and panics, if asked to.
fn moody() -> Boxes {
    let boxes = Boxes::new().with("moody", "(<n>) -> (<n>)", |(Tag(n),): (Tag,), out: &mut Out| match n {
        13 => Err("unlucky".to_string()),
        14 => panic!("very unlucky"),
        n => out.emit(1, (Tag(n),)).map(drop),
    });
    boxes.unwrap()
}

const MOODY: &str = "box moody ((<n>) -> (<n>)); net main connect moody;";

#[test]
fn failing_box_loses_its_record_alone() {
    let network = network(MOODY, moody()).on_fault(OnFault::GoOn);
    for workers in [1, 2] {
        let outcome = run(&network, workers, records(&["n=1", "n=13", "n=2", "n=14", "n=3"]));
        assert_eq!(tags(&outcome, "n"), [1, 2, 3]);
        let faults: Vec<String> = outcome.faults.iter().map(ToString::to_string).collect();
        assert_eq!(faults, ["box moody: unlucky", "box moody: it panicked: very unlucky"]);
    }
}

#[test]
fn fault_stops_the_input_and_loses_nothing_inside() {
    let network = network(MOODY, moody());
    let input: Vec<Record> =
        (0..100_000).map(|n| record(&format!("n={}", if n == 13 { 13 } else { 100 }))).collect();
    let outcome = run(&network, 2, input);
    assert_eq!(outcome.fault_count, 1);
    assert!(outcome.records.len() >= 13 && outcome.records.len() < 99_999, "{}", outcome.records.len());
}

#[test]
fn faults_are_told_at_once() {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let to = heard.clone();
    let network = network(MOODY, moody()).tell(move |fault| to.lock().unwrap().push(fault.to_string()));
    run(&network, 1, records(&["n=13"]));
    assert_eq!(*heard.lock().unwrap(), ["box moody: unlucky"]);
}

#[test]
fn record_that_nobody_takes_is_told_with_what_is_taken() {
    let network = network("net main connect [{a} -> {a}] | [{b} -> {b}];", Boxes::new());
    let outcome = run(&network, 1, records(&["c=x"]));
    assert_eq!(
        outcome.faults[0].to_string(),
        "a parallel composition: no branch takes it: they take {a} | {b}; the record is {c: \"x\"}"
    );
}

#[test]
fn split_without_its_tag_and_box_without_its_field_are_told() {
    let split = network("net main connect [] ! <k>;", Boxes::new());
    assert_eq!(
        run(&split, 1, records(&["c=x"])).faults[0].to_string(),
        "a split: it takes records with <k>; the record is {c: \"x\"}"
    );
    let moody = network(MOODY, moody());
    assert_eq!(
        run(&moody, 1, records(&["c=x"])).faults[0].to_string(),
        "box moody: it takes {<n>}; the record is {c: \"x\"}"
    );
}

#[test]
fn filter_passes_what_lacks_only_what_it_takes_away() {
    let filter = network("net main connect [{a, c} -> {a}; {}];", Boxes::new()).on_fault(OnFault::GoOn);
    for workers in [1, 2] {
        let outcome = run(&filter, workers, records(&["a=x c=y d=z", "a=x d=z", "c=y d=z"]));
        assert_eq!(outcome.records, records(&["a=x d=z", "d=z", "a=x d=z", "d=z"]));
        let faults: Vec<String> = outcome.faults.iter().map(ToString::to_string).collect();
        assert_eq!(faults, ["[{a, c} -> {a}; {}]: it takes {a, c}; the record is {c: \"y\", d: \"z\"}"]);
    }
}

#[test]
fn division_by_zero_ends_its_record_alone() {
    let source = "net main connect [{<n>} -> {<n = 12 / n>}] .. ([| {<n>} if <1 / n>, {<m>} |] | []) .. ([] * {<n>} if <n % n == 0>);";
    let network = network(source, Boxes::new()).on_fault(OnFault::GoOn);
    let outcome = run(&network, 1, records(&["n=0", "n=3", "n=4", "n=100"]));
    assert_eq!(tags(&outcome, "n"), [3, 4]);
    assert_eq!(outcome.fault_count, 2);
    assert!(outcome.faults.iter().all(|f| f.message.contains("division by zero")), "{:?}", outcome.faults);
}

#[test]
fn box_that_lies_about_its_output_is_found_out() {
    let boxes =
        Boxes::new().with("liar", "(<n>) -> (<n>) | (a)", |(Tag(n),): (Tag,), out: &mut Out| match n {
            0 => out.emit(3, (Tag(n),)),
            1 => out.emit(1, (Tag(n), Tag(n))),
            2 => out.emit(2, (Tag(n),)),
            _ => out.emit(1, ("text",)),
        });
    let network = network("box liar ((<n>) -> (<n>) | (a)); net main connect liar;", boxes.unwrap());
    let outcome = run(&network.on_fault(OnFault::GoOn), 1, records(&["n=0", "n=1", "n=2", "n=3"]));
    let said: Vec<&str> = outcome.faults.iter().map(|f| f.message.split(':').next().unwrap()).collect();
    assert_eq!(
        said,
        [
            "it put out variant 3, and declares 2 of them",
            "it put out 2 values as variant 1, which has 1",
            "it put out 2 as a of variant 2",
            "it put out \"text\" as <n> of variant 1",
        ]
    );
    assert!(outcome.records.is_empty());
}

#[test]
fn records_without_a_partner_are_counted() {
    let network = network("net main connect [| {a}, {b} |] * {a, b};", Boxes::new());
    let outcome = run(&network, 2, records(&["a=x", "a=y", "b=z", "a=u"]));
    assert_eq!((outcome.records.len(), outcome.kept), (1, 2));
}

#[test]
fn record_that_fits_two_patterns_fills_both() {
    let network = network("net main connect [| {a}, {b} |];", Boxes::new());
    let outcome = run(&network, 1, records(&["a=x b=y c=z", "a=u"]));
    assert_eq!(outcome.records, records(&["a=x b=y c=z", "a=u"]));
    assert_eq!(outcome.kept, 0);
}

#[test]
fn merged_record_keeps_the_first_patterns_excess_alone() {
    let network = network("net main connect [| {a}, {b, <n>} |];", Boxes::new());
    let outcome = run(&network, 1, records(&["b=1st n=7 n2=8 d=no", "a=x e=yes b=old"]));
    assert_eq!(outcome.records, records(&["a=x e=yes b=1st n=7"]));
}

#[test]
fn observer_sees_what_goes_in_and_comes_out() {
    let count = |network: Network, name, position| {
        let seen = Arc::new(AtomicUsize::new(0));
        let to = seen.clone();
        let network = network.observe(name, position, move |_| {
            to.fetch_add(1, Ordering::Relaxed);
        });
        (network, seen)
    };
    let source = "box moody ((<n>) -> (<n>)); net main { net inner connect [{<n>} -> {<n>}; {<n>}]; } connect moody .. inner;";
    let (network, before) = count(network(source, moody()), "moody", Position::Before);
    let (network, after) = count(network, "moody", Position::After);
    let (network, within) = count(network, "inner", Position::Before);
    let (network, end) = count(network, "inner", Position::After);
    run(&network.on_fault(OnFault::GoOn), 2, records(&["n=1", "n=13", "n=2"]));
    let seen = [before, after, within, end].map(|seen| seen.load(Ordering::Relaxed));
    assert_eq!(seen, [3, 2, 2, 4]);
}

#[test]
fn network_answers_while_its_input_is_open() {
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
fn stopped_network_takes_nothing_in_and_ends() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let mut running = network(MOODY, moody()).start(&runtime);
    running.report.stop();
    // It ends although its input is open; then nothing can be given in.
    assert_eq!(running.output.next(), None);
    let refused = (0..).find(|_| running.input.write(record("n=1")).is_err());
    assert!(refused.is_some());
}

#[test]
fn full_output_holds_the_input_up() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    let boxes = Boxes::new().with("pass", "(<n>) -> (<n>)", move |(n,): (Tag,), out: &mut Out| {
        count.fetch_add(1, Ordering::Relaxed);
        out.emit(1, (n,))
    });
    let network = network("box pass ((<n>) -> (<n>)); net main connect pass;", boxes.unwrap()).capacity(2);
    let corebeat_snet::Running { mut input, output, .. } = network.start(&runtime);
    let writer =
        std::thread::spawn(move || (0..1000).for_each(|n| input.write(record(&format!("n={n}"))).unwrap()));
    let mut seen = 0;
    for record in output {
        assert_eq!(record.tag(Label::new(Kind::Tag, "n").unwrap()), Some(seen));
        seen += 1;
        // Two streams with two records each, the one in the box's hands, and those on the way.
        assert!(calls.load(Ordering::Relaxed) <= seen as usize + 8);
    }
    assert_eq!(seen, 1000);
    writer.join().unwrap();
}

#[test]
fn endless_box_ends_when_nobody_listens() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let boxes = Boxes::new().with("forever", "-> (<n>)", |(): (), out: &mut Out| {
        while out.emit(1, (Tag(1),))? {}
        Ok::<_, String>(())
    });
    let network = network("box forever (-> (<n>)); net main connect forever;", boxes.unwrap());
    let mut running = network.start(&runtime);
    assert_eq!(running.output.by_ref().take(1000).count(), 1000);
    drop(running);
    // Dropping the runtime waits for what still runs.
    drop(runtime);
}

/// Tasks alive in the midst of a run, seen from a box.
fn tasks_alive(source: &str, boxes: Boxes, input: Vec<Record>) -> (Outcome, usize) {
    let most = Arc::new(AtomicUsize::new(0));
    let seen = most.clone();
    let network = network(source, boxes).capacity(4).observe("probe", Position::Before, move |_| {
        let tasks = corebeat_lpel::dump().expect("observers run in tasks").tasks.len();
        seen.fetch_max(tasks, Ordering::Relaxed);
    });
    let outcome = run(&network, 1, input);
    (outcome, most.load(Ordering::Relaxed))
}

#[test]
fn stages_that_have_done_their_work_go_away() {
    for combinator in ["*", "**"] {
        let boxes = Boxes::new()
            .with("add", "(state, <n>) -> (state) | (<sum>)", |(s, Tag(n)): (i32, Tag), out: &mut Out| {
                out.emit(1, (s + n,))?;
                out.emit(2, (Tag(s + n),))
            })
            .unwrap();
        let source = format!(
            "box add ((state, <n>) -> (state) | (<sum>));
            net main {{
                net probe connect [{{<n>}} -> {{<n>}}];
            }} connect (probe | []) .. ([| {{state}}, {{<n>}} |] .. ([] | add)) {combinator} {{<sum>}};"
        );
        let state = Label::new(Kind::Field, "state").unwrap();
        let state = Record::from_pairs([(state, Value::from(0i32))]).unwrap();
        let numbers = (1..=1000).map(|n| record(&format!("n={n}")));
        let input = std::iter::once(state).chain(numbers).collect();
        let (outcome, most) = tasks_alive(&source, boxes, input);
        let sums = tags(&outcome, "sum");
        assert_eq!((sums.len(), sums[999], outcome.kept), (1000, 1000 * 1001 / 2, 1));
        assert!(most < 200, "{most} tasks with {combinator}");
    }
}

#[test]
fn replicas_that_nobody_uses_go_away() {
    for combinator in ["!", "!!"] {
        let source = format!(
            "box pass ((<n>) -> (<n>)); net main {{ net probe connect []; }} connect probe .. (pass {combinator} <n>);"
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
    let network =
        network("box half ((<n>) -> (<n>)); net main connect half \\ {<n>} if <n > 1>;", boxes.unwrap());
    for workers in [1, 2] {
        let outcome = run(&network, workers, records(&["n=1000", "n=300"]));
        assert_eq!(tags(&outcome, "n").iter().sum::<i32>(), 1300);
        assert!(tags(&outcome, "n").iter().all(|n| *n <= 1));
    }
}

#[test]
fn place_puts_boxes_on_workers_counted_round() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let to = seen.clone();
    let boxes = Boxes::new().with("where", "(<n>) -> (<n>)", move |(n,): (Tag,), out: &mut Out| {
        to.lock().unwrap().push((n.0, std::thread::current().name().map(String::from)));
        out.emit(1, (n,))
    });
    let network = network("box where ((<n>) -> (<n>)); net main connect where !@ <n>;", boxes.unwrap());
    run(&network, 2, records(&["n=0", "n=1", "n=2", "n=3"]));
    // There each task is a thread of its own, without a name.
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
fn network_runs_again_and_again() {
    let network = network("net main connect [| {a}, {b} |];", Boxes::new());
    for _ in 0..3 {
        assert_eq!(run(&network, 1, records(&["a=x", "b=y"])).records.len(), 1);
    }
}

#[test]
fn star_of_a_choice_with_a_cell_loses_nothing() {
    let boxes =
        || Boxes::new().with("step", "(z) -> (z)", |(z,): (i32,), out: &mut Out| out.emit(1, (z,))).unwrap();
    for combinator in ["*", "**"] {
        let source = format!(
            "box step ((z) -> (z)); net main connect ([| {{x}}, {{y}} |] | step) {combinator} {{x, y}};"
        );
        let input = records(&["x=a", "x=b", "x=c", "y=a", "y=b", "y=c"]);
        let outcome = run(&network(&source, boxes()), 1, input);
        assert_eq!((outcome.records.len(), outcome.kept, outcome.fault_count), (3, 0, 0), "{combinator}");
    }
}

/// A star whose stages go away while records `n` go through boxes of it.
const GOING: &str = "box down ((<n>) -> (<n>));
    net main connect (([| {a}, {b} |] .. ([] | down)) * {a, b}, {<n>} if <n / (n - 5) == 0>) @ 1;";

#[test]
fn boxes_of_stages_that_went_away_stay_in_place_and_heed_the_exit() {
    let threads = Arc::new(Mutex::new(Vec::new()));
    let to = threads.clone();
    let boxes = Boxes::new().with("down", "(<n>) -> (<n>)", move |(Tag(n),): (Tag,), out: &mut Out| {
        to.lock().unwrap().push((n, std::thread::current().id()));
        out.emit(1, (Tag(n - 1),))
    });
    let mut input = records(&["a=x", "b=x", "a=x", "b=x", "a=x", "b=x"]);
    input.extend((0..20).flat_map(|_| records(&["a=x", "n=8", "n=4", "b=x"])));
    let network = network(GOING, boxes.unwrap()).on_fault(OnFault::GoOn);
    let outcome = run(&network, 2, input);
    // 4 / -1 is not 0: those go down to 2. 8 goes down to 5, which divides by 0.
    assert_eq!((outcome.records.len(), outcome.fault_count), (23 + 20, 20));
    let threads = threads.lock().unwrap();
    assert!(threads.iter().all(|(n, thread)| *n != 5 && *thread == threads[0].1));
}

#[test]
fn network_that_nobody_listens_to_ends() {
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
            .with("pass", "(<n>) -> (<n>, <m>)", |(n,): (Tag,), out: &mut Out| out.emit(1, (n, Tag(0))))
            .unwrap();
        let source = format!(
            "box forever (-> (<n>)); box pass ((<n>) -> (<n>, <m>)); net main connect forever .. ({rest});"
        );
        let corebeat_snet::Running { mut input, mut output, .. } = network(&source, boxes).start(&runtime);
        assert_eq!(output.by_ref().take(1000).count(), 1000);
        drop(output);
        assert!((0..).any(|_| input.write(record("n=1")).is_err()));
        let patient = std::time::Instant::now();
        while ended.load(Ordering::SeqCst) == 0 {
            assert!(patient.elapsed().as_secs() < 20, "{rest} goes on");
            std::thread::yield_now();
        }
    }
}

#[test]
fn fault_of_a_filter_has_the_record_if_it_is_whole() {
    let source = "net main connect [{a, <n>} -> {a, <n = 1 / n>}];";
    let outcome = run(&network(source, Boxes::new()), 1, records(&["a=x n=0"]));
    assert_eq!(outcome.faults[0].record, Some(record("a=x n=0")));
    let source = "net main connect [{a, <n>} -> {a}; {<n = 1 / n>}];";
    let outcome = run(&network(source, Boxes::new()), 1, records(&["a=x n=0"]));
    assert_eq!((&outcome.records[..], &outcome.faults[0].record), (&records(&["a=x"])[..], &None));
}
