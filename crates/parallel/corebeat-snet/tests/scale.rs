//! Large networks. They have the documented maximum size if `COREBEAT_SOAK` is set, and are smaller
//! otherwise.

use std::sync::{Mutex, PoisonError};

use corebeat_lpel::Runtime;
use corebeat_snet::body::Out;
use corebeat_snet::{Boxes, Kind, Label, Network, Record, Tag, Value, check, parse};

fn size(large: i32, small: i32) -> i32 {
    if std::env::var_os("COREBEAT_SOAK").is_some() { large } else { small }
}

fn field(name: &str) -> Label {
    Label::new(Kind::Field, name).unwrap()
}

fn network(source: &str, boxes: &Boxes) -> Network {
    let net = check(&parse(source).unwrap(), None).net.unwrap();
    Network::new(net, |plan| boxes.find(plan)).unwrap()
}

/// Lock for tests that measure the memory of the process.
static ALONE: Mutex<()> = Mutex::new(());

/// Resident memory of the process in bytes.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn star_of_a_hundred_thousand_stages_takes_the_same_memory_for_each() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let boxes = Boxes::new()
        .with("foo", "(A) -> (A) | (B)", |(a,): (i32,), out: &mut Out| {
            if a > 0 { out.emit(1, (a - 1,)) } else { out.emit(2, (0,)) }
        })
        .unwrap();
    let network = network("net star { box foo ((A) -> (A) | (B)); } connect foo * {B};", &boxes);
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let depth = size(100_000, 2_000);
    // The input stays open, so all stages stay alive.
    let mut running = network.start(&runtime);
    let used: Vec<u64> = (0..=10)
        .map(|tenths| {
            let a = Value::from(depth / 10 * tenths);
            running.input.write(Record::from_pairs([(field("A"), a)]).unwrap()).unwrap();
            assert!(running.output.next().unwrap().get(field("B")).is_some());
            memory()
        })
        .collect();
    let per_stage =
        |from: usize, to: usize| used[to].saturating_sub(used[from]) / (depth as u64 / 2);
    println!(
        "bytes per stage: {} in the first half, {} in the second",
        per_stage(0, 5),
        per_stage(5, 10)
    );
    assert!(per_stage(5, 10) < 8 << 10, "{used:?}");
    drop(running.input);
    assert_eq!(running.output.next(), None);
    assert_eq!(running.report.fault_count(), 0);
}

/// Runs a network, and requires that the memory of the process hardly grows after a tenth of its
/// `count` output records, which `check` receives with their numbers. Returns the number of records
/// without a partner.
fn memory_stays_constant(
    network: &Network,
    input: impl Iterator<Item = Record> + Send + 'static,
    count: i32,
    check: impl Fn(i32, &Record),
) -> usize {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let runtime = Runtime::builder().workers(2).build().unwrap();
    let mut running = network.start(&runtime);
    let mut writer = running.input;
    let writer = std::thread::spawn(move || {
        input.for_each(|record| writer.write(record).unwrap());
    });
    let (mut number, mut early) = (0, 0);
    for record in &mut running.output {
        check(number, &record);
        number += 1;
        if number == count / 10 {
            early = memory();
        }
    }
    writer.join().unwrap();
    assert_eq!((number, running.report.fault_count()), (count, 0));
    assert!(memory() < early + (16 << 20), "{} bytes after {early}", memory());
    running.report.kept()
}

#[test]
fn star_of_synchrocells_does_not_grow_by_a_million_pairs() {
    let pairs = size(1_000_000, 20_000);
    let network = network("net pairs connect [| {A}, {B} |] * {A, B};", &Boxes::new());
    let input = (0..pairs).flat_map(|i| {
        ["A", "B"].map(|label| Record::from_pairs([(field(label), Value::from(i))]).unwrap())
    });
    let kept = memory_stays_constant(&network, input, pairs, |pair, record| {
        assert_eq!(record.get(field("A")), Some(&Value::from(pair)));
        assert_eq!(record.get(field("A")), record.get(field("B")));
    });
    assert_eq!(kept, 0);
}

/// Adds numbers to a state. Each addition takes a stage of a star.
fn sums_need_constant_memory(source: &str, boxes: &Boxes, numbers: i32) {
    let tag = |name| Label::new(Kind::Tag, name).unwrap();
    let first = Record::from_pairs([(tag("state"), Value::Tag(0))]).unwrap();
    let number = move |n| Record::from_pairs([(tag("n"), Value::Tag(n))]).unwrap();
    let input = std::iter::once(first).chain((1..=numbers).map(number));
    // Tags wrap around.
    let sum = |i: i32| ((i64::from(i) + 1) * (i64::from(i) + 2) / 2) as i32;
    let kept = memory_stays_constant(&network(source, boxes), input, numbers, |i, record| {
        if i % 1000 == 0 {
            assert_eq!(record.tag(tag("sum")), Some(sum(i)));
        }
    });
    assert_eq!(kept, 1);
}

#[test]
fn star_with_a_state_does_not_grow_by_ten_million_records() {
    let source = "net sums {
        net join connect [| {<state>}, {<n>} |];
        net add connect [{<state>, <n>} -> {<state = state + n>}; {<sum = state + n>}];
    } connect (join .. (add | [])) ** {<sum>};";
    sums_need_constant_memory(source, &Boxes::new(), size(10_000_000, 20_000));
}

#[test]
fn star_with_a_state_and_a_box_does_not_grow() {
    let boxes = Boxes::new().with(
        "add",
        "(<state>, <n>) -> (<state>) | (<sum>)",
        |(s, n): (Tag, Tag), out: &mut Out| {
            out.emit(1, (Tag(s.0.wrapping_add(n.0)),))?;
            out.emit(2, (Tag(s.0.wrapping_add(n.0)),))
        },
    );
    // With `*`, numbers may overtake the state, and each of them waits in a stage.
    let source = "net sums {
        net join connect [| {<state>}, {<n>} |];
        net past connect [];
        box add ((<state>, <n>) -> (<state>) | (<sum>));
    } connect (join .. (past | add)) ** {<sum>};";
    sums_need_constant_memory(source, &boxes.unwrap(), size(1_000_000, 2_000));
}
