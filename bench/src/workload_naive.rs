//! Compares each embedded kernel with a naive version of the same work.

use crate::Bench;
use crate::apart::{self, Printed};
use crate::child::Running;
use crate::kernel::Options;
use crate::program::{Agreement, scale, threads, workloads};
use crate::round::{self, Measured, Subject};
use crate::row::Better;
use crate::session::Session;
use std::num::NonZeroUsize;
use std::time::Duration;

pub(crate) const BENCH: Bench = Bench {
    name: "workload.naive",
    summary: "time of each embedded kernel and of its naive version, on one thread and on one per CPU",
    peers: &["naive, on one thread"],
    tools: &[],
    cases: |session| {
        workloads()
            .flat_map(|name| counts(session).into_iter().map(move |n| case(name, n)))
            .collect()
    },
    run,
};

/// Seconds of a kernel on one thread. The naive clustering takes 25 times as long.
const RUN_S: f64 = 1.0;
/// The limit of a run.
const RUN_MAX: Duration = Duration::from_secs(60);

fn counts(session: &Session) -> Vec<usize> {
    if session.cpus == 1 { vec![1] } else { vec![1, session.cpus] }
}

fn case(name: &str, count: usize) -> String {
    format!("{name}, {}", threads(count))
}

fn run(session: &Session) -> Result<(), String> {
    // The work is for one core, regardless of the number of CPUs.
    let scale = scale(session.core_s(RUN_S) / session.cpus as f64);
    for name in workloads() {
        for count in counts(session).into_iter().filter(|&n| session.selects(&case(name, n))) {
            let agreement = Agreement::default();
            let timed = |naive: bool| {
                let threads = NonZeroUsize::new(count).unwrap_or(NonZeroUsize::MIN);
                let options = Options { name: name.into(), threads, scale, naive };
                let command = apart::command(session, "kernel", &options)?;
                let ended = Running::start(command, false)?.wait(RUN_MAX)?;
                if ended.status.is_none() {
                    return Ok(Measured::Over(ended.wall_s));
                }
                let printed = Printed::new(ended)?;
                agreement.admit(0, printed.checksum)?;
                Ok(Measured::Value(printed.value))
            };
            let subjects = vec![
                Subject::new("corebeat", || timed(false)),
                Subject::new("naive, one thread", || timed(true)),
            ];
            let unit = ("s", Better::Lower);
            round::measure(session, BENCH.name, &case(name, count), unit, subjects);
        }
    }
    Ok(())
}
