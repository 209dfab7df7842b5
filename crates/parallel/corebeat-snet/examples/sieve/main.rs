//! The primes above 100, up to a limit, by a chain of filters with state: `star.snet` keeps the
//! state by a synchrocell in a star, and `feedback.snet` by a feedback.
//!
//! `cargo run --release -p corebeat-snet --example sieve -- [LIMIT WORKERS]`

use std::time::Instant;

use corebeat_lpel::Runtime;
use corebeat_snet::body::BoxBody;
use corebeat_snet::{Kind, Label, Network, Record, Value, check, parse};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const PROGRAMS: [(&str, &str); 2] =
    [("star", include_str!("star.snet")), ("feedback", include_str!("feedback.snet"))];

/// Lower limit of the primes. Its square is the largest upper limit.
const FROM: i32 = 100;

/// The primes from `FROM` to a limit, in order.
fn primes(program: &str, to: i32, workers: usize) -> Outcome<Vec<i32>> {
    let module = parse(program).map_err(|diagnostics| diagnostics[0].to_string())?;
    let net = check(&module, None).net.ok_or("the program has errors")?;
    let no_box = |_: &_| Err::<std::sync::Arc<dyn BoxBody>, _>("the program has no box");
    let network = Network::new(net, no_box)?;
    let runtime = Runtime::builder().workers(workers).build()?;
    let tag = |name| Label::new(Kind::Tag, name);
    let range = [(tag("from")?, Value::Tag(FROM)), (tag("to")?, Value::Tag(to))];
    let outcome = network.run(&runtime, [Record::from_pairs(range)?])?;
    let found = tag("found")?;
    match outcome.kept {
        0 => Ok(outcome.records.iter().filter_map(|record| record.tag(found)).collect()),
        kept => Err(format!("{kept} records have no partner").into()),
    }
}

fn main() -> Outcome<()> {
    let numbers: Result<Vec<i32>, _> = std::env::args().skip(1).map(|a| a.parse()).collect();
    let (to, workers) = match numbers.as_deref() {
        Ok([]) => (9_000, 1),
        Ok(&[to, workers]) if (FROM..=FROM * FROM).contains(&to) && workers > 0 => (to, workers),
        _ => return Err("usage: sieve [LIMIT WORKERS], with a limit from 100 to 10000".into()),
    };
    for (name, program) in PROGRAMS {
        let begin = Instant::now();
        let found = primes(program, to, workers as usize)?;
        println!("{name}: {} primes, {:.1?}", found.len(), begin.elapsed());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn both_programs_find_the_primes_in_order() {
        let is_prime = |n: &i32| (2..*n).all(|d| n % d != 0);
        let expected: Vec<i32> = (super::FROM + 1..=400).filter(is_prime).collect();
        for (name, program) in super::PROGRAMS {
            assert_eq!(super::primes(program, 400, 1).unwrap(), expected, "{name}");
        }
    }
}
