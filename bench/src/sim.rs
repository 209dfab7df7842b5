//! The speed of the simulator, beside the bare queue that holds its events.

use crate::Bench;
use crate::apart::{self, Case};
use crate::row::Better;
use crate::session::Session;
use clap::ValueEnum;
use corebeat_sim::{Hardware, Program, Scenario, SimMachine, Step, Team, Work};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

const CASE: &str = "64 cores, 1000 threads";

pub(crate) const BENCHES: [Bench; 1] = [Bench {
    name: "sim.speed",
    summary: "number of simulated events in a second of real time",
    peers: &["event list alone"],
    tools: &[],
    cases: |_| vec![CASE.into()],
    run,
}];

/// Simulated seconds, and the seconds of a quick trial.
const SECONDS: f64 = 100.0;
const SECONDS_QUICK: f64 = 0.05;

#[derive(Clone, Copy, PartialEq, ValueEnum, Serialize, Deserialize)]
enum Subject {
    Corebeat,
    #[value(name = "event list alone")]
    Heap,
}

fn run(session: &Session) -> Result<(), String> {
    let seconds = if session.quick { SECONDS_QUICK } else { SECONDS };
    let cases = [Case::new(CASE, Subject::value_variants(), seconds)];
    let unit = |_: &Case<Subject, f64>| ("events/s", Better::Higher);
    apart::measure_each(session, BENCHES[0].name, unit, &cases, |subject, seconds| {
        apart::value(apart::command(session, "sim", &Options { subject, seconds })?)
    })
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Options {
    subject: Subject,
    /// Simulated seconds.
    seconds: f64,
}

/// A thousand threads in two programs. One program computes and synchronises at barriers. The other
/// acquires locks and waits for memory and devices.
fn scenario(seconds: f64) -> Scenario {
    let forever = |steps| vec![Step::Repeat { times: None, shared: false, steps }];
    let compute = |us, memory| Step::Compute(Work { jitter: 0.5, memory, ..Work::us(us) });
    let fluid = forever(vec![compute(20_000.0, 0.0), Step::Barrier("all".into())]);
    let server = forever(vec![
        compute(10_000.0, 0.3),
        Step::Lock { name: "log".into(), steps: vec![compute(5.0, 0.0)] },
        Step::Io { us: 20_000.0, jitter: 0.5, bytes: 4_096 },
    ]);
    Scenario {
        machine: Hardware { packages: 4, cores: 16, ..Hardware::default() },
        programs: vec![
            Program::new("fluid", vec![Team::new(500, fluid)]),
            Program::new("server", vec![Team::new(500, server)]),
        ],
        duration_s: Some(seconds),
        sets: vec![],
        policies: vec![],
    }
}

/// The main function of the child.
pub(crate) fn main(options: &Options) -> Result<(f64, u64), String> {
    let begin = Instant::now();
    let (events, checksum) = match options.subject {
        Subject::Corebeat => {
            let mut machine =
                SimMachine::new(&scenario(options.seconds), 1).map_err(|e| e.to_string())?;
            machine.run();
            if machine.deadlock().is_some() {
                return Err(
                    "the simulated programs deadlocked, although each wait of the scenario ends"
                        .into(),
                );
            }
            (machine.events(), machine.fingerprint())
        }
        Subject::Heap => {
            // This is the number of events that wait on 64 CPUs and 200 devices. Each event creates
            // another.
            let mut events: BinaryHeap<Reverse<(u64, u64, u64)>> =
                (0..264).map(|n| Reverse((n * 7919 % 3_000_000, n, n))).collect();
            let count = (options.seconds * 80_000.0) as u64;
            let mut sum = 0u64;
            for made in 264..264 + count {
                let Some(Reverse((at, _, who))) = events.pop() else { break };
                sum = (sum ^ at ^ who).wrapping_mul(0x0000_0100_0000_01b3);
                events.push(Reverse((at + 1 + sum % 3_000_000, made, who)));
            }
            (count, sum)
        }
    };
    Ok((events as f64 / begin.elapsed().as_secs_f64(), checksum))
}
