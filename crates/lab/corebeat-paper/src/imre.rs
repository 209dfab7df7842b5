//! Graph transformation by several threads, on this host. Imre, Mezei 2012, Table 1.

use crate::report::{Figure, Report, Row};
use crate::videos::{Choice, PATTERNS, RELATED_MAX, Videos};
use corebeat_rewrite::{Apply, Control, Error, Log, Mode, Options, run};
use std::time::Instant;

/// A row of the table: the index of the pattern, the number of videos, and the paper's figures: the
/// time of the sequential run in seconds, and the times with 1 to 4 threads in percent of it.
struct Scenario {
    pattern: usize,
    videos: u32,
    sequential_s: f64,
    parallel: [f64; 4],
}

const SCENARIOS: [Scenario; 4] = [
    Scenario {
        pattern: 0,
        videos: 23_500,
        sequential_s: 0.20,
        parallel: [181.8, 104.6, 97.5, 81.8],
    },
    Scenario {
        pattern: 0,
        videos: 208_000,
        sequential_s: 2.39,
        parallel: [262.2, 141.9, 105.3, 98.0],
    },
    Scenario {
        pattern: 1,
        videos: 23_500,
        sequential_s: 44.22,
        parallel: [131.6, 69.3, 45.5, 35.2],
    },
    Scenario {
        pattern: 2,
        videos: 23_500,
        sequential_s: 272.15,
        parallel: [137.7, 71.4, 47.0, 35.5],
    },
];

/// Columns by number of threads.
const THREADS: [(usize, &str); 7] = [
    (1, "1 thread, %"),
    (2, "2 threads, %"),
    (3, "3 threads, %"),
    (4, "4 threads, %"),
    (8, "8 threads, %"),
    (16, "16 threads, %"),
    (32, "32 threads, %"),
];

/// The seed of the videos.
const SEED: u64 = 1;
/// The paper's number of videos per video of ours: the table takes seconds.
const SCALE: u32 = 4;
/// Number of runs of which the shortest counts, unless they take longer than [`RUNS_MAX_S`].
const RUNS: u32 = 3;
/// Time after which no further run begins, in seconds.
const RUNS_MAX_S: f64 = 0.1;

pub(crate) fn times() -> Report {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    report(cpus, SCALE).unwrap_or_else(|e| panic!("the rules apply to each model: {e}"))
}

/// Measures all scenarios with up to `cpus` threads.
fn report(cpus: usize, scale: u32) -> Result<Report, Error> {
    let threads: Vec<_> = THREADS.into_iter().filter(|(count, _)| *count <= cpus).collect();
    let mut rows = Vec::new();
    for scenario in &SCENARIOS {
        let count = scenario.videos / scale;
        let videos = Videos::new(count, RELATED_MAX, Choice::Skewed, SEED);
        let (sequential_s, log) = open(scenario, &videos, Options { log: true, ..one() })?;
        let rewriting_s = repeat(&log, &videos)?;
        for (mode, name) in [(Mode::Cycle, "cycle"), (Mode::Immediate, "immediate")] {
            let paper = |value: f64| (mode == Mode::Cycle).then_some(value);
            let mut figures = vec![
                Figure::shown(paper(scenario.sequential_s), sequential_s),
                Figure::shown(None, rewriting_s),
            ];
            for (threads, _) in &threads {
                let options = Options { threads: *threads, mode, force_tasks: true, ..one() };
                let (parallel_s, _) = open(scenario, &videos, options)?;
                let stated = scenario.parallel.get(threads - 1).copied().and_then(paper);
                figures.push(Figure::shown(stated, 100.0 * parallel_s / sequential_s));
            }
            rows.push(Row { name: format!("{}, {count}, {name}", scenario.pattern + 1), figures });
        }
    }
    let columns = ["sequential, s", "rewriting, s"].into_iter();
    Ok(Report {
        what: "pattern, videos, mode",
        columns: columns.chain(threads.iter().map(|(_, column)| *column)).collect(),
        rows,
        notes: vec![
            "Percent of the sequential time. The models have a quarter of the paper's videos.",
            "'rewriting' is the time to repeat the rewrites of the sequential run without a search.",
            "'cycle' is the paper's: all threads search, then one rewrites. 'immediate': the thread \
             that completes a match rewrites.",
        ],
    })
}

/// The calling thread, without locks.
fn one() -> Options {
    Options::default()
}

/// Opens the cycles of a pattern until no match is left. Returns the shortest time in seconds of up
/// to [`RUNS`] runs, and the log of the last one.
fn open(scenario: &Scenario, videos: &Videos, options: Options) -> Result<(f64, Log), Error> {
    let (mut least_s, mut total_s, mut log) = (f64::INFINITY, 0.0, Log::default());
    for _ in 0..RUNS {
        let mut graph = videos.graph()?;
        let rule = PATTERNS[scenario.pattern].opening(&mut graph)?;
        let begin = Instant::now();
        let outcome = run(&mut graph, &[rule], &Control::Rule(0, Apply::Exhaustively), &options)?;
        let run_s = begin.elapsed().as_secs_f64();
        (least_s, total_s, log) = (run_s.min(least_s), total_s + run_s, outcome.log);
        if total_s > RUNS_MAX_S {
            break;
        }
    }
    Ok((least_s, log))
}

/// Repeats rewrites without a search. Returns the time in seconds.
fn repeat(log: &Log, videos: &Videos) -> Result<f64, Error> {
    let mut graph = videos.graph()?;
    let begin = Instant::now();
    log.replay(&mut graph).unwrap_or_else(|e| panic!("a sequential run can be repeated: {e}"));
    Ok(begin.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_measured_for_each_number_of_threads_that_the_host_has() {
        let report = report(2, 500).unwrap();
        assert_eq!(report.columns.len(), 4);
        assert_eq!(report.rows.len(), 2 * SCENARIOS.len());
        for row in &report.rows {
            assert_eq!(row.figures.len(), 4);
            assert!(row.figures.iter().all(|figure| figure.ours > 0.0), "{report}");
        }
        let paper: Vec<_> = report.rows[0].figures.iter().map(|figure| figure.paper).collect();
        assert_eq!(paper, [Some(0.20), None, Some(181.8), Some(104.6)]);
    }
}
