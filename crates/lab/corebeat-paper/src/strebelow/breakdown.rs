//! Time of the steps of an event, from traces of the probes of servers, on this host. Figures 6, 7,
//! 9 and 10.
//!
//! As in section 4 of the paper, primitives that read the time surround each step. The times
//! contain one read of the counter, and the time in which the system runs another thread.

use super::{Curve, HALF, LEADER, Scale, rate};
use crate::report::{Figure, Report, Row};
use corebeat_probe::{Calls, Outcome, record, switch};
use corebeat_reactor::Mechanism;
use corebeat_trace::Trace;
use std::collections::HashMap;
use std::fs::File;
use std::sync::Mutex;

/// The probes of servers.
const PROBES: &str = "corebeat_reactor::*";
/// A process records one trace at a time, of all its servers.
pub(super) static RECORDING: Mutex<()> = Mutex::new(());

/// Number and total time of the calls of each step.
#[derive(Debug, Default, Clone, Copy)]
struct Sum {
    count: u64,
    ns: u64,
}

type Sums = HashMap<String, Sum>;

/// Returns the steps of a server under load.
fn record_steps(
    curve: Curve,
    threads: usize,
    scale: &Scale,
) -> Result<Sums, Box<dyn std::error::Error>> {
    let _recording = RECORDING.lock().unwrap_or_else(|e| e.into_inner());
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("server.cbt");
    let trace = Trace::create(&path)?;
    record(&trace)?;
    switch(PROBES, true)?;
    let result = rate(curve, threads, scale);
    switch(PROBES, false)?;
    trace.finish()?;
    result?;
    let calls = Calls::read(File::open(&path)?)?;
    if calls.lost() > 0 {
        return Err(format!("{} events were lost: the disk is too slow", calls.lost()).into());
    }
    let mut sums = Sums::new();
    for call in calls.calls().iter().filter(|call| call.outcome == Outcome::Returned) {
        let sum = sums.entry(calls.operation(call).function().to_owned()).or_default();
        sum.count += 1;
        sum.ns += call.end_ns - call.begin_ns;
    }
    Ok(sums)
}

/// Returns the time of a step for each event, in microseconds.
fn per_event_us(sums: &Sums, step: &str) -> f64 {
    let sum = |step| sums.get(step).copied().unwrap_or_default();
    sum(step).ns as f64 / 1000.0 / sum("turn").count.max(1) as f64
}

/// Measures steps of some curves for each number of threads.
fn steps(
    scale: &Scale,
    columns: &[(&'static str, Curve, &'static str)],
    notes: Vec<&'static str>,
) -> Report {
    let row = |threads: &usize| {
        let mut recorded: Vec<(Curve, Sums)> = Vec::new();
        let mut figure = |(_, curve, step): &(&str, Curve, &str)| {
            if !recorded.iter().any(|(own, _)| own == curve) {
                let sums = record_steps(*curve, *threads, scale)
                    .unwrap_or_else(|e| panic!("a server on loopback is recorded: {e}"));
                recorded.push((*curve, sums));
            }
            let sums = recorded.iter().find(|(own, _)| own == curve).map(|(_, sums)| sums);
            Figure::shown(None, sums.map_or(0.0, |sums| per_event_us(sums, step)))
        };
        let figures = columns.iter().map(&mut figure).collect();
        Row { name: format!("{threads} threads"), figures }
    };
    Report {
        what: "us for each event",
        columns: columns.iter().map(|(name, ..)| *name).collect(),
        rows: scale.threads.iter().map(row).collect(),
        notes,
    }
}

const HALF_EDGE: Curve = (HALF, Mechanism::Edge);
const HALF_LEVEL: Curve = (HALF, Mechanism::OneShot);
const LEADER_LEVEL: Curve = (LEADER, Mechanism::OneShot);

pub(crate) fn half_sync_edge() -> Report {
    let columns = [("obtain", HALF_EDGE, "sense"), ("queue", HALF_EDGE, "queue")];
    let notes = vec![
        "In the paper, the time to obtain an event falls with each thread: with few threads, the",
        "first one waits for events. The time to queue an event grows.",
    ];
    steps(&Scale::of_host(), &columns, notes)
}

/// Returns the columns of the steps of a level-triggered curve.
fn level(curve: Curve) -> [(&'static str, Curve, &'static str); 3] {
    [("receive", curve, "receive"), ("re-activate", curve, "rearm"), ("send", curve, "send")]
}

const REARM_NOTES: [&str; 2] = [
    "In the paper, the time to re-activate a connection grows with the number of threads, and the",
    "others hardly. The paper re-activates before it sends, and this server afterwards.",
];

pub(crate) fn half_sync_level() -> Report {
    steps(&Scale::of_host(), &level(HALF_LEVEL), REARM_NOTES.to_vec())
}

pub(crate) fn leader_sense() -> Report {
    let columns = [
        ("poll", (LEADER, Mechanism::Poll), "sense"),
        ("edge", (LEADER, Mechanism::Edge), "sense"),
    ];
    let notes = vec!["In the paper, a call of select takes almost 80% longer than one of epoll."];
    steps(&Scale::of_host(), &columns, notes)
}

pub(crate) fn leader_level() -> Report {
    steps(&Scale::of_host(), &level(LEADER_LEVEL), REARM_NOTES.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn scale() -> Scale {
        Scale { connections: 5, time: Duration::from_millis(5), threads: vec![2, 3] }
    }

    #[test]
    fn steps_have_a_figure_for_each_number_of_threads() {
        let columns = [&level(HALF_LEVEL)[..], &level(LEADER_LEVEL)].concat();
        let report = steps(&scale(), &columns, vec![]);
        assert_eq!((report.columns.len(), report.rows.len()), (6, 2));
        assert!(report.rows.iter().flat_map(|row| &row.figures).all(|figure| figure.ours > 0.0));
    }

    /// The paper's statements about the number of operations do not depend on time (section 3): one
    /// event for each call under Leader/Followers, no queue there, and a step that re-activates for
    /// each event.
    #[test]
    fn counts_of_the_steps_are_those_of_the_patterns() {
        for mechanism in [Mechanism::Edge, Mechanism::OneShot, Mechanism::Poll] {
            let leader = record_steps((LEADER, mechanism), 2, &scale()).unwrap();
            let half = record_steps((HALF, mechanism), 3, &scale()).unwrap();
            let count = |sums: &Sums, step: &str| sums.get(step).map_or(0, |sum| sum.count);
            assert_eq!(count(&leader, "queue"), 0);
            // Each turn has a call of its own; others accept connections, or end the server.
            assert!(count(&leader, "sense") >= count(&leader, "turn"), "{leader:?}");
            assert!((1..=count(&half, "sense")).contains(&count(&half, "queue")), "{half:?}");
            for sums in [&leader, &half] {
                let (turns, sent) = (count(sums, "turn"), count(sums, "send"));
                // The last call of a handler may find the end of the data, and its turn does not
                // wait for another event.
                assert!((sent..=sent + 5).contains(&count(sums, "process")), "{sums:?}");
                assert!(count(sums, "rearm") + 5 >= turns && sent > 0, "{sums:?}");
                assert!(count(sums, "receive") >= turns, "{sums:?}");
            }
        }
    }
}
