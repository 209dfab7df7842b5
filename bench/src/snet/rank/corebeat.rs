//! The subjects of Corebeat: networks in S-Net on two ranks.

use super::{Load, Subject, Work};
use crate::lpel::load::ordered;
use crate::snet::corebeat::{field, network, number, shape};
use crate::snet::mandelbrot::{compute as compute_strip, view};
use corebeat_lpel::Runtime;
use corebeat_mpi::{Exchange, Inbound, Outbound, Ranks};
use corebeat_snet::body::Out;
use corebeat_snet::rank::Node;
use corebeat_snet::{Boxes, Error, Kind, Label, Output, Record, Running, Tag, Value};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const STREAM: &str = "net stream { box take ((x, <i>) -> (sum)); } connect take @ 1;";
const TRIP: &str = "net trip { box pass ((x) -> (x)); } connect pass @ 1;";
const IMAGE: &str = "
    net image { box compute ((<strip>) -> (shades, <strip>)); }
    connect [{<strip>} -> {<strip>, <node = strip % 2>}] .. compute !@ <node>;";

/// Endpoint of a network for the thread of MPI.
struct Endpoint(Arc<Node>);

impl Exchange for Endpoint {
    fn take(&self, to: u32) -> Option<Outbound> {
        self.0.take(to).map(|message| Box::new(message) as Outbound)
    }

    fn receive(self: Arc<Self>, from: u32, message: &mut Inbound) -> Result<(), String> {
        let (words, len) = message.words();
        self.0.receive_words(from, words, len).map_err(|why| why.to_string())
    }

    fn memory(&self, bytes: usize) -> Option<Vec<u128>> {
        Node::memory(bytes)
    }

    fn has_ended(&self) -> bool {
        self.0.has_ended()
    }
}

/// Runs a work on this rank. Rank 0 returns its time in seconds and its checksum.
pub(super) fn run(load: Load, subject: Subject) -> Result<Option<(f64, u64)>, String> {
    let program = match load.work {
        Work::Stream => STREAM,
        Work::Trip => TRIP,
        Work::Image => IMAGE,
    };
    let network = network(program, &boxes(load).map_err(|e| e.to_string())?)?;
    let runtime = Runtime::builder().workers(1).build().map_err(|e| e.to_string())?;
    let ranks = Ranks::start().map_err(|e| e.to_string())?;
    let at = (ranks.rank(), ranks.size());
    let node = Node::new(at, subject.window(), subject.eager_bytes(), true, ranks.bell());
    ranks.agree(Ok(Vec::new())).map_err(|e| e.to_string())?;
    let exchange = |node| {
        let begun = ranks.exchange(Arc::new(Endpoint(node)), |why| eprintln!("{why}"));
        begun.map_err(|e| e.to_string())
    };
    let mut outcome = None;
    if ranks.rank() == 0 {
        let running = network.start_on_ranks(&runtime, node.clone());
        exchange(node)?;
        outcome = Some(measure(load, &runtime, running)?);
    } else {
        let serving = network.serve(&runtime, node.clone());
        exchange(node)?;
        serving.wait();
    }
    ranks.finish().map_err(|e| e.to_string())?;
    Ok(outcome)
}

fn boxes(load: Load) -> Result<Boxes, Error> {
    let sum = AtomicU64::new(0);
    let take = move |(x, Tag(i)): (Value, Tag), out: &mut Out| {
        let all = match &x {
            Value::Scalar(scalar) => Load::add(0, i as u64, &scalar.bytes()),
            Value::Array(array) => Load::add(0, i as u64, array.bytes()),
            _ => 0,
        };
        // Relaxed: the task of the box makes all calls.
        let all = sum.fetch_add(all, Ordering::Relaxed).wrapping_add(all);
        if i as usize + 1 == load.count { out.emit(1, (all as i64,)) } else { Ok(true) }
    };
    let view = view(load.bytes);
    let compute = move |(Tag(strip),): (Tag,), out: &mut Out| match view
        .strips(load.count)
        .nth(strip as usize)
    {
        Some(rows) => out.emit(1, (compute_strip(rows), Tag(strip))),
        None => Ok(true),
    };
    Boxes::new()
        .with("take", "(x, <i>) -> (sum)", take)?
        .with("pass", "(x) -> (x)", |(x,): (i64,), out: &mut Out| out.emit(1, (x + 1,)))?
        .with("compute", "(<strip>) -> (shades, <strip>)", compute)
}

fn measure(load: Load, runtime: &Runtime, running: Running) -> Result<(f64, u64), String> {
    let Running { mut input, output, report } = running;
    let x = field("x")?;
    let begin = Instant::now();
    let checksum = match load.work {
        Work::Stream => {
            let (i, sum) = (tag("i")?, field("sum")?);
            let content = match load.content() {
                bytes if bytes.len() == 8 => Value::from(i64::from_ne_bytes([7; 8])),
                bytes => Value::bytes(&bytes),
            };
            let shape = shape([x, i])?;
            let i_is_first = shape.labels().first() == Some(&i);
            let source = runtime.spawn(move || {
                let record = |n: usize| {
                    let [x, i] = [content.clone(), Value::Tag(n as i32)];
                    Record::new(shape, if i_is_first { vec![i, x] } else { vec![x, i] })
                };
                (0..load.count).all(|n| input.write(record(n)).is_ok())
            });
            let sums = move |output: Output| output.fold(0, |_, record| number(&record, sum));
            let taken = runtime.spawn(move || sums(output)).join();
            source.join().map_err(|e| e.to_string())?;
            taken.map_err(|e| e.to_string())?
        }
        Work::Trip => {
            let shape = shape([x])?;
            let mut output = output;
            let trips = runtime.spawn(move || {
                let mut last = 0;
                for _ in 0..load.count {
                    let record = Record::new(shape, vec![Value::from(last as i64)]);
                    if input.write(record).is_err() {
                        break;
                    }
                    last = output.next().map_or(0, |record| number(&record, x));
                }
                drop(input);
                output.count() as u64 + last
            });
            trips.join().map_err(|e| e.to_string())?
        }
        Work::Image => {
            let (strip, shades) = (tag("strip")?, field("shades")?);
            let shape = shape([strip])?;
            let source = runtime.spawn(move || {
                let record = |n: usize| Record::new(shape, vec![Value::Tag(n as i32)]);
                (0..load.count).all(|n| input.write(record(n)).is_ok())
            });
            let image = runtime.spawn(move || {
                let mut image = vec![0; load.bytes * load.bytes];
                let rows = image.len() / load.count;
                for record in output {
                    let strip = record.tag(strip).unwrap_or_default() as usize;
                    if let Some(points) = record.get(shades).and_then(Value::as_bytes) {
                        image[strip * rows..][..rows].copy_from_slice(points);
                    }
                }
                image
            });
            let image = image.join().map_err(|e| e.to_string())?;
            source.join().map_err(|e| e.to_string())?;
            let seconds = begin.elapsed().as_secs_f64();
            return Ok((seconds, checksum_of(&image)));
        }
    };
    let seconds = begin.elapsed().as_secs_f64();
    match report.faults().first() {
        Some(fault) => Err(fault.to_string()),
        None => Ok((seconds, checksum)),
    }
}

fn tag(name: &str) -> Result<Label, String> {
    Label::new(Kind::Tag, name).map_err(|e| e.to_string())
}

/// The checksum of an image.
pub(super) fn checksum_of(image: &[u8]) -> u64 {
    image.iter().fold(image.len() as u64, |sum, &shade| ordered(sum, shade.into()))
}
