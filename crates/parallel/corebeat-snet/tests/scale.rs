//! Large networks. They have the documented maximum size if `COREBEAT_SOAK` is set, and are smaller
//! otherwise.

use std::sync::{Mutex, PoisonError};

use corebeat_lpel::Runtime;
use corebeat_snet::body::{BoxBody, Out};
use corebeat_snet::{Boxes, Kind, Label, Network, Record, Value, check, parse};

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

#[test]
fn star_of_synchrocells_does_not_grow_by_a_million_pairs() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let none = |_: &_| Err::<std::sync::Arc<dyn BoxBody>, _>("the net has no box");
    let net =
        check(&parse("net pairs connect [| {A}, {B} |] * {A, B};").unwrap(), None).net.unwrap();
    let network = Network::new(net, none).unwrap();
    let runtime = Runtime::builder().workers(2).build().unwrap();
    let mut running = network.start(&runtime);
    let pairs = size(1_000_000, 20_000);
    let mut input = running.input;
    let writer = std::thread::spawn(move || {
        for i in 0..pairs {
            for label in ["A", "B"] {
                input.write(Record::from_pairs([(field(label), Value::from(i))]).unwrap()).unwrap();
            }
        }
    });
    let (mut pair, mut early) = (0, 0);
    for record in &mut running.output {
        assert_eq!(record.get(field("A")), Some(&Value::from(pair)));
        assert_eq!(record.get(field("A")), record.get(field("B")));
        pair += 1;
        if pair == pairs / 10 {
            early = memory();
        }
    }
    writer.join().unwrap();
    assert_eq!((pair, running.report.kept()), (pairs, 0));
    assert!(memory() < early + (16 << 20), "{} bytes after {early}", memory());
}
