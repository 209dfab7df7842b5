//! Each embedded kernel against the same work as one would first write it.

use crate::Bench;
use crate::child::{Running, last_line};
use crate::program::{Agreement, scale, threads, word_after, workloads};
use crate::round::{Measured, Subject, interleave};
use crate::row::{Better, Table};
use crate::session::Session;
use std::process::Command;
use std::time::Duration;

pub(crate) const BENCH: Bench = Bench {
    name: "workload.naive",
    summary: "each embedded kernel against its naive version, on one thread and on as many as there are CPUs",
    peers: &["naive, on one thread"],
    tools: &[],
    cases: |session| {
        workloads().flat_map(|name| counts(session).into_iter().map(move |n| case(name, n))).collect()
    },
    run,
};

/// A run of a kernel on one thread, in seconds; the naive clustering takes 25 times as long.
const RUN_S: f64 = 1.0;
/// A run is ended after this.
const RUN_MAX: Duration = Duration::from_secs(60);

fn counts(session: &Session) -> Vec<usize> {
    if session.cpus == 1 { vec![1] } else { vec![1, session.cpus] }
}

fn case(name: &str, count: usize) -> String {
    format!("{name}, {}", threads(count))
}

fn run(session: &Session) -> Result<(), String> {
    let myself = std::env::current_exe().map_err(|e| format!("where is this program? {e}"))?;
    // One core's seconds, whatever the number of CPUs.
    let scale = scale(session.core_s(RUN_S) / session.cpus as f64);
    for name in workloads() {
        for count in counts(session).into_iter().filter(|&n| session.wants(&case(name, n))) {
            let agreement = Agreement::default();
            let timed = |naive: bool| {
                let mut command = Command::new(&myself);
                command.args(["kernel", name, &format!("--threads={count}"), &format!("--scale={scale}")]);
                if naive {
                    command.arg("--naive");
                }
                let ended = Running::start(command, false)?.wait(RUN_MAX)?;
                if ended.status.is_none() {
                    return Ok(Measured::Over(ended.wall_s));
                }
                ended.check()?;
                let word = |before| {
                    word_after(&ended.stdout, before)
                        .ok_or_else(|| format!("it printed no '{before}' but: {}", last_line(&ended.stdout)))
                };
                agreement.admit(0, word("checksum ")?)?;
                let seconds = word("seconds ")?;
                seconds.parse().map(Measured::Value).map_err(|_| format!("'{seconds}' is no time"))
            };
            let subjects = vec![
                Subject::new("corebeat", || timed(false)),
                Subject::new("naive, one thread", || timed(true)),
            ];
            let rounds = interleave(session, &case(name, count), "s", subjects);
            session.emit(&Table {
                bench: BENCH.name,
                case: case(name, count),
                unit: "s",
                better: Better::Lower,
                series: rounds.series,
                line_ns: rounds.line_ns,
            });
        }
    }
    Ok(())
}
