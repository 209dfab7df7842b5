//! The synchronisation pipeline: five records with A, five with B, and so on. Synchrocells are
//! created and removed.
//!
//! Source: Prokesch, A Light-Weight Parallel Execution Layer for Shared-Memory Stream Processing,
//! 2011, section 6.1.2.
//!
//! `cargo run --release -p corebeat-snet --example synchronisation -- [TIMES WORKERS]`

use std::time::Instant;

use corebeat_lpel::Runtime;
use corebeat_snet::body::BoxBody;
use corebeat_snet::{Kind, Label, Network, Record, Value, check, parse};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Number of records with A before their partners with B.
const DISTANCE: i32 = 5;

/// Number of output pairs.
fn run(times: u32, workers: usize) -> Outcome<usize> {
    let module = parse(include_str!("synchronisation.snet"))
        .map_err(|diagnostics| diagnostics[0].to_string())?;
    let net = check(&module, None).net.ok_or("the program has errors")?;
    let no_box = |_: &_| Err::<std::sync::Arc<dyn BoxBody>, _>("the program has no box");
    let network = Network::new(net, no_box)?;
    let runtime = Runtime::builder().workers(workers).build()?;
    let labels = [Label::new(Kind::Field, "A")?, Label::new(Kind::Field, "B")?];
    let of = move |label: Label| {
        (0..DISTANCE).map(move |i| {
            Record::from_pairs([(label, Value::from(i))]).expect("the example uses two labels")
        })
    };
    let input = (0..times).flat_map(move |_| labels.into_iter().flat_map(of));
    let outcome = network.run(&runtime, input)?;
    let paired = |record: &Record| record.get(labels[0]) == record.get(labels[1]);
    match outcome.records.iter().all(paired) && outcome.kept == 0 {
        true => Ok(outcome.records.len()),
        false => Err("some records have a wrong partner or no partner".into()),
    }
}

fn main() -> Outcome<()> {
    let numbers: Result<Vec<u32>, _> = std::env::args().skip(1).map(|a| a.parse()).collect();
    let (times, workers) = match numbers.as_deref() {
        Ok([]) => (1_000, 2),
        Ok(&[times, workers]) if workers > 0 => (times, workers as usize),
        _ => return Err("usage: synchronisation [TIMES WORKERS], with whole numbers".into()),
    };
    let begin = Instant::now();
    let pairs = run(times, workers)?;
    println!("{pairs} pairs, {workers} workers: {:.1?}", begin.elapsed());
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_record_finds_its_partner() {
        for workers in [1, 2] {
            assert_eq!(super::run(20, workers).unwrap(), 100);
        }
    }
}
