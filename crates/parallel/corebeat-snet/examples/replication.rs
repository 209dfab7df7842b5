//! The deep replication pipeline: records with random depths pass through a star of one box.
//!
//! Source: Prokesch, A Light-Weight Parallel Execution Layer for Shared-Memory Stream Processing,
//! 2011, section 6.1.1.
//!
//! `cargo run --release -p corebeat-snet --example replication -- [DEPTH RECORDS WORKERS]`

use std::time::Instant;

use corebeat_lpel::Runtime;
use corebeat_snet::body::Out;
use corebeat_snet::{Boxes, Kind, Label, Network, Record, Value, check, parse};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn network() -> Outcome<Network> {
    let module = parse(include_str!("replication.snet"))
        .map_err(|diagnostics| diagnostics[0].to_string())?;
    let net = check(&module, None).net.ok_or("the program has errors")?;
    let boxes = Boxes::new().with("foo", "(A) -> (A) | (B)", |(a,): (i32,), out: &mut Out| {
        if a > 0 { out.emit(1, (a - 1,)) } else { out.emit(2, (a,)) }
    })?;
    Ok(Network::new(net, |plan| boxes.find(plan))?)
}

/// Random depths from 0 to `depth_max`, with a fixed seed.
fn depths(depth_max: u32, records: usize) -> Vec<i32> {
    let mut random = fastrand::Rng::with_seed(1);
    (0..records).map(|_| random.u32(0..=depth_max) as i32).collect()
}

/// Number of box calls.
fn run(depth: u32, records: usize, workers: usize) -> Outcome<u64> {
    let (network, field) = (network()?, Label::new(Kind::Field, "A")?);
    let runtime = Runtime::builder().workers(workers).build()?;
    let depths = depths(depth, records);
    let calls = depths.iter().map(|a| *a as u64 + 1).sum();
    let input: Result<Vec<Record>, _> =
        depths.into_iter().map(|a| Record::from_pairs([(field, Value::from(a))])).collect();
    let outcome = network.run(&runtime, input?)?;
    match outcome.records.len() == records {
        true => Ok(calls),
        false => Err("records were lost".into()),
    }
}

fn main() -> Outcome<()> {
    let numbers: Result<Vec<u32>, _> = std::env::args().skip(1).map(|a| a.parse()).collect();
    let (depth, records, workers) = match numbers.as_deref() {
        Ok([]) => (10_000, 1_000, 2),
        Ok(&[depth, records, workers]) if workers > 0 => {
            (depth, records as usize, workers as usize)
        }
        _ => return Err("usage: replication [DEPTH RECORDS WORKERS], with whole numbers".into()),
    };
    let begin = Instant::now();
    let calls = run(depth, records, workers)?;
    let time = begin.elapsed();
    println!("{records} records through up to {depth} boxes, {workers} workers: {time:.1?}");
    println!("{calls} calls, {:.1} ns each", time.as_nanos() as f64 / calls as f64);
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn records_pass_through_all_boxes() {
        for workers in [1, 2] {
            assert!(super::run(300, 50, workers).unwrap() > 50);
        }
    }
}
