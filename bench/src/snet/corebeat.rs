//! The subjects of Corebeat: networks in S-Net.

use super::lap::{laps, whole};
use super::load::{CHOICES, COUNTER_BITS, Load, Outcome, PRIMES_FROM, Work, counter, paired};
use super::subject::Subject;
use crate::lpel::load::unordered;
use crate::memory;
use corebeat_lpel::Runtime;
use corebeat_snet::body::Out;
use corebeat_snet::{
    Boxes, Error, Kind, Label, Network, Output, Record, Running, Shape, Value, check, parse,
};
use std::fmt::Write;
use std::path::Path;
use std::time::Instant;

const REPLICATION: &str =
    include_str!("../../../crates/parallel/corebeat-snet/examples/replication.snet");
const SYNCHRONISATION: &str =
    include_str!("../../../crates/parallel/corebeat-snet/examples/synchronisation.snet");
const STATE: &str = include_str!("../../../crates/parallel/corebeat-snet/examples/sieve/star.snet");
const FEEDBACK: &str =
    include_str!("../../../crates/parallel/corebeat-snet/examples/sieve/feedback.snet");
const CALL: &str = "net call { box step ((A) -> (A)); } connect step;";

pub(crate) fn run(load: &Load, subject: Subject) -> Result<Outcome, String> {
    let runtime = Runtime::builder().workers(load.workers).build().map_err(|e| e.to_string())?;
    match load.work {
        Work::Replication => replication(load, &runtime, subject),
        Work::Synchronisation => {
            let network = network(SYNCHRONISATION, &Boxes::new())?;
            laps(load, || whole(|| pairs(load, &runtime, &network)))
        }
        Work::Memory => {
            let network = network(SYNCHRONISATION, &Boxes::new())?;
            pairs(&Load { count: 10, ..*load }, &runtime, &network)?;
            let (bytes, checksum) = memory::peak(|| pairs(load, &runtime, &network))?;
            Ok(Outcome { seconds: 0.0, bytes, checksum })
        }
        Work::State => primes(load, &runtime, subject),
        Work::Routing => routing(load, &runtime, subject),
        Work::Box => call(load, &runtime, subject),
        Work::Mandelbrot | Work::Read | Work::Write => {
            Err("another module measures this work".into())
        }
    }
}

/// The network of a program.
pub(crate) fn network(program: &str, boxes: &Boxes) -> Result<Network, String> {
    let module = parse(program).map_err(|remarks| remarks[0].to_string())?;
    let checked = check(&module, None);
    let net = checked.net.ok_or_else(|| checked.diagnostics[0].to_string())?;
    Network::new(net, |plan| boxes.find(plan)).map_err(|e| e.to_string())
}

/// The boxes in C or in Rust.
fn boxes(subject: Subject) -> Result<Boxes, Error> {
    let mut boxes = Boxes::new();
    if subject == Subject::CorebeatC {
        boxes.compile([Path::new(env!("CARGO_MANIFEST_DIR")).join("src/snet/box.c")])?;
        return Ok(boxes);
    }
    boxes
        .with("foo", "(A) -> (A) | (B)", |(a,): (i32,), out: &mut Out| match counter(a) {
            0 => out.emit(2, (a >> COUNTER_BITS,)),
            _ => out.emit(1, (a - 1,)),
        })?
        .with("step", "(A) -> (A)", |(a,): (i32,), out: &mut Out| out.emit(1, (a + 1,)))
}

/// Passes records through a network. One task writes them, and another task takes them.
fn through<T: Send + 'static>(
    network: &Network,
    runtime: &Runtime,
    records: impl Iterator<Item = Record> + Send + 'static,
    take: impl FnOnce(Output) -> T + Send + 'static,
) -> Result<T, String> {
    let Running { mut input, output, report } = network.start(runtime);
    let source =
        runtime.spawn(move || records.map(|record| input.write(record)).all(|sent| sent.is_ok()));
    let taken = runtime.spawn(move || take(output)).join().map_err(|e| e.to_string())?;
    let all = source.join().map_err(|e| e.to_string())?;
    match report.faults().first() {
        Some(fault) => Err(fault.to_string()),
        None if !all || report.kept() > 0 => Err("the network lost records".into()),
        None => Ok(taken),
    }
}

pub(crate) fn field(name: &str) -> Result<Label, String> {
    Label::new(Kind::Field, name).map_err(|e| e.to_string())
}

pub(crate) fn shape(labels: impl IntoIterator<Item = Label>) -> Result<Shape, String> {
    Shape::new(labels).map_err(|e| e.to_string())
}

/// The integer that a record has for a label, or `u64::MAX` if the label is missing.
pub(crate) fn number(record: &Record, label: Label) -> u64 {
    record.get(label).and_then(Value::integer).map_or(u64::MAX, |n| n as u64)
}

fn replication(load: &Load, runtime: &Runtime, subject: Subject) -> Result<Outcome, String> {
    let network = network(REPLICATION, &boxes(subject).map_err(|e| e.to_string())?)?;
    let (a, b, load) = (shape([field("A")?])?, field("B")?, *load);
    laps(&load, || {
        let records =
            (0..load.count).map(move |i| Record::new(a, vec![Value::from(load.record(i))]));
        let sum =
            move |output: Output| output.fold(0, |sum, record| unordered(sum, number(&record, b)));
        whole(|| through(&network, runtime, records, sum))
    })
}

fn pairs(load: &Load, runtime: &Runtime, network: &Network) -> Result<u64, String> {
    let labels = [field("A")?, field("B")?];
    let shapes = [shape([labels[0]])?, shape([labels[1]])?];
    let records = load
        .halves()
        .map(move |(is_b, i)| Record::new(shapes[usize::from(is_b)], vec![Value::from(i)]));
    let pair = move |record: &Record| labels.map(|label| number(record, label) as i32);
    let sum = move |output: Output| {
        output.fold(0, |sum, record| {
            let [a, b] = pair(&record);
            paired(sum, (a, b))
        })
    };
    through(network, runtime, records, sum)
}

fn primes(load: &Load, runtime: &Runtime, subject: Subject) -> Result<Outcome, String> {
    let program = if subject == Subject::CorebeatFeedback { FEEDBACK } else { STATE };
    let network = network(program, &Boxes::new())?;
    let tag = |name| Label::new(Kind::Tag, name).map_err(|e| e.to_string());
    let (from, to, found) = (tag("from")?, tag("to")?, tag("found")?);
    let limits = [(from, PRIMES_FROM), (to, load.count)].map(|(l, n)| (l, Value::Tag(n as i32)));
    let limits = Record::from_pairs(limits).map_err(|e| e.to_string())?;
    laps(load, || {
        let sum = move |output: Output| {
            let primes = output.filter_map(|record| record.tag(found));
            primes.fold(0, |sum, n| unordered(sum, n as u64))
        };
        whole(|| through(&network, runtime, [limits.clone()].into_iter(), sum))
    })
}

/// The choices of a program: between empty nets, between filters that copy a field, or no choice.
/// The last branch, which no record takes, is always a filter, because a choice between empty nets
/// is optimised away.
fn choices(branches: u64, subject: Subject) -> String {
    let mut program = "net routing {\n".to_owned();
    let mut names = Vec::new();
    for i in 0..branches {
        let filters = subject == Subject::CorebeatFilter || i == branches - 1;
        let does = if filters { format!("[{{K{i}}} -> {{K{i}}}]") } else { "[]".into() };
        // A write to a string cannot fail.
        let _ = writeln!(program, "    net b{i} ({{K{i}}} -> {{K{i}}}) connect {does};");
        names.push(format!("b{i}"));
    }
    let choice = match subject {
        Subject::CorebeatStraight => "[]".into(),
        _ => format!("({})", names.join(" | ")),
    };
    let all = vec![choice; CHOICES as usize];
    program + "} connect " + &all.join(" .. ") + ";\n"
}

/// The same records pass through the network in each lap, so that a lap includes no creation of
/// labels.
fn routing(load: &Load, runtime: &Runtime, subject: Subject) -> Result<Outcome, String> {
    let network = network(&choices(load.depth, subject), &Boxes::new())?;
    let keys =
        (0..load.depth - 1).map(|i| field(&format!("K{i}"))).collect::<Result<Vec<_>, _>>()?;
    let others =
        (1..load.labels).map(|i| field(&format!("E{i}"))).collect::<Result<Vec<_>, _>>()?;
    let made = (0..load.count).map(|i| {
        let labels = others.iter().copied().chain([keys[i as usize % keys.len()]]);
        Record::from_pairs(labels.map(|label| (label, Value::from(i as i32))))
    });
    let mut records: Vec<Record> = made.collect::<Result<_, _>>().map_err(|e| e.to_string())?;
    let count = records.len();
    laps(load, || {
        let sent = std::mem::take(&mut records).into_iter();
        let mut room = Vec::with_capacity(count);
        let begin = Instant::now();
        let keep = move |output: Output| {
            room.extend(output);
            room
        };
        records = through(&network, runtime, sent, keep)?;
        let time = begin.elapsed();
        let key = |record: &Record| keys.iter().find(|key| record.get(**key).is_some()).copied();
        let whole = |record: &&Record| record.shape().len() as u64 == load.labels;
        let numbers =
            records.iter().filter(whole).filter_map(|record| Some(number(record, key(record)?)));
        Ok((time, numbers.fold(0, unordered)))
    })
}

fn call(load: &Load, runtime: &Runtime, subject: Subject) -> Result<Outcome, String> {
    let network = network(CALL, &boxes(subject).map_err(|e| e.to_string())?)?;
    let (label, load) = (field("A")?, *load);
    let a = shape([label])?;
    laps(&load, || {
        let records = (0..load.count).map(move |i| Record::new(a, vec![Value::from(i as i32)]));
        let sum = move |output: Output| {
            output.fold(0, |sum, record| unordered(sum, number(&record, label)))
        };
        whole(|| through(&network, runtime, records, sum))
    })
}
