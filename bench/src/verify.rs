//! The speed of response-time analyses, beside the crate `response-time-analysis`.

use crate::Bench;
use crate::apart::{self, Case};
use crate::row::Better;
use crate::session::Session;
use clap::ValueEnum;
use corebeat_verify::generate::task_set;
use corebeat_verify::{Activation, CoreSet, Load};
use response_time_analysis::arrival::Sporadic;
use response_time_analysis::demand::RBF;
use response_time_analysis::fixed_priority::fully_preemptive::dedicated_uniproc_rta;
use response_time_analysis::time::{Duration, Service};
use response_time_analysis::wcet::Scalar;
use serde::{Deserialize, Serialize};
use std::time::Instant;

const CASE: &str = "10 tasks";

pub(crate) const BENCHES: [Bench; 1] = [Bench {
    name: "verify.response",
    summary: "number of response-time analyses of a core with 10 tasks in a second",
    peers: &["response-time-analysis"],
    tools: &[],
    cases: |_| vec![CASE.into()],
    run,
}];

/// Random sets, and analyses of each: the loads of a whole and of a quick trial.
const SETS: usize = 500;
const ANALYSES: u64 = 2_000_000;
const ANALYSES_QUICK: u64 = 2_000;
/// The peer performs this part of the analyses, which takes as long as all of them here.
const PEER_DIVISOR: u64 = 100;

#[derive(Clone, Copy, PartialEq, ValueEnum, Serialize, Deserialize)]
enum Subject {
    Corebeat,
    #[value(name = "response-time-analysis")]
    Peer,
}

fn run(session: &Session) -> Result<(), String> {
    let count = if session.quick { ANALYSES_QUICK } else { ANALYSES };
    let cases = [Case::new(CASE, Subject::value_variants(), count)];
    let unit = |_: &Case<Subject, u64>| ("analyses/s", Better::Higher);
    apart::measure_each(session, BENCHES[0].name, unit, &cases, |subject, count| {
        apart::value(apart::command(session, "verify", &Options { subject, count })?)
    })
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Options {
    subject: Subject,
    /// Number of analyses.
    count: u64,
}

/// Schedulable sets of 10 tasks with a use of 70% and periods from 1,000 to 100,000.
fn sets() -> Vec<Vec<Load>> {
    let mut random = fastrand::Rng::with_seed(1);
    let mut sets = Vec::new();
    while sets.len() < SETS {
        let loads: Vec<Load> = task_set(&mut random, 10, 0.7, (1_000, 100_000), 100)
            .iter()
            .filter_map(|e| match e.activation {
                Activation::Periodic { period_ns, .. } => {
                    Some(Load::new(period_ns, e.execution_ns.worst))
                }
                _ => None,
            })
            .collect();
        if CoreSet::new(loads.clone()).analyse() {
            sets.push(loads);
        }
    }
    sets
}

/// The main function of the child. The checksum is the sum of the response times of the first
/// analysis of each set, which must be equal for both subjects.
pub(crate) fn main(options: &Options) -> Result<(f64, u64), String> {
    let sets = sets();
    let (done, seconds, first) = match options.subject {
        Subject::Corebeat => {
            let mut prepared: Vec<CoreSet> = sets.into_iter().map(CoreSet::new).collect();
            let mut sums = vec![0; SETS];
            let begin = Instant::now();
            for n in 0..options.count {
                let at = (n % SETS as u64) as usize;
                std::hint::black_box(&mut prepared[at]).analyse();
                sums[at] = prepared[at].responses().iter().sum();
            }
            (options.count, begin.elapsed().as_secs_f64(), sums)
        }
        Subject::Peer => {
            let request = |load: &Load| {
                let arrivals = Sporadic::new_zero_jitter(Duration::from(load.period_ns));
                RBF::new(arrivals, Scalar::from(Service::from(load.worst_ns)))
            };
            let prepared: Vec<Vec<_>> =
                sets.iter().map(|set| set.iter().map(request).collect()).collect();
            let count = (options.count / PEER_DIVISOR).max(SETS as u64);
            let mut sums = vec![0; SETS];
            let begin = Instant::now();
            for n in 0..count {
                let at = (n % SETS as u64) as usize;
                let set = std::hint::black_box(&prepared[at]);
                sums[at] = 0;
                for task in 0..set.len() {
                    let limit = Duration::from(1_000_000);
                    let bound = dedicated_uniproc_rta(&set[task], &set[..task], limit);
                    sums[at] += u64::from(bound.map_err(|e| e.to_string())?);
                }
            }
            (count, begin.elapsed().as_secs_f64(), sums)
        }
    };
    Ok((done as f64 / seconds, first.iter().sum()))
}
