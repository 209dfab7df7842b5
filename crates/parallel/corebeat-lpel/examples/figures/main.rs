//! The figures of two pipelines in the thesis, measured on this machine: tasks compared with
//! threads, on one and two workers, and the cost of monitoring.
//!
//! Source: Prokesch, A Light-Weight Parallel Execution Layer for Shared-Memory Stream Processing,
//! 2011, 6.1 and figures 6.1, 6.2 and 6.7. Times are wall-clock times from the start of the runtime
//! to its end.
//!
//! `cargo run --release -p corebeat-lpel --example figures -- FOLDER`
//!
//! writes an SVG file for each figure, and all times as JSON, one object per line.

mod load;
mod plot;

use corebeat_lpel::Runtime;
use corebeat_lpel::monitor::{Level, TextLog};
use load::Style;
use plot::Series;
use serde_json::json;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Size of the experiments.
struct Extent {
    /// Number of records in the deep pipeline.
    records: usize,
    /// Depths of the deep pipeline, in the figures of long and of short range.
    long: Vec<usize>,
    short: Vec<usize>,
    /// Rounds of the synchronisation pipeline.
    rounds: Vec<usize>,
    /// Largest number of threads.
    threads_max: usize,
    /// Number of measurements per point. The figures show the median.
    runs: usize,
}

impl Extent {
    /// The size of the experiments in the thesis.
    fn full() -> Extent {
        Extent {
            records: 1000,
            long: (1..=10).map(|n| n * 1000).collect(),
            short: (1..=10).map(|n| n * 100).collect(),
            rounds: (1..=10).map(|n| n * 50).collect(),
            threads_max: 2000,
            runs: 5,
        }
    }
}

/// A network.
#[derive(Debug, Clone, Copy)]
enum Net {
    Deep,
    Synchronisation,
}

/// A line of a figure.
#[derive(Debug, Clone, Copy)]
struct Line {
    style: Style,
    level: Option<Level>,
    /// Whether the time includes writing the log to disk.
    with_log: bool,
}

impl Line {
    fn workers(workers: usize) -> Line {
        Line { style: Style { threads: false, workers, block: 1 }, level: None, with_log: false }
    }

    fn threads() -> Line {
        Line { style: Style { threads: true, workers: 1, block: 1 }, level: None, with_log: false }
    }

    fn name(&self) -> String {
        let Line { style: Style { threads, workers, .. }, .. } = *self;
        match (self.level, self.with_log) {
            _ if threads => "a thread for each task".into(),
            (None, _) if workers == 1 => "1 worker".into(),
            (None, _) => format!("{workers} workers"),
            (Some(level), false) => format!("log of level {}", letter(level)),
            (Some(level), true) => format!("log of level {}, until it is written", letter(level)),
        }
    }
}

/// Returns the name of a level in the thesis.
fn letter(level: Level) -> char {
    match level {
        Level::Marked => 'a',
        Level::MarkedStreams => 'b',
        Level::All => 'c',
        _ => 'd',
    }
}

/// A figure: name of the file, title, network, sizes, and lines.
struct Figure<'a> {
    file: &'static str,
    title: &'static str,
    net: Net,
    sizes: &'a [usize],
    lines: Vec<Line>,
}

fn figures(extent: &Extent) -> Vec<Figure<'_>> {
    let three = || vec![Line::threads(), Line::workers(1), Line::workers(2)];
    let blocks = || {
        let in_blocks = |line: Line| Line { style: Style { block: 10, ..line.style }, ..line };
        three().into_iter().map(in_blocks).collect()
    };
    let levels = |workers| {
        let line = Line::workers(workers);
        let levels = [Level::Marked, Level::MarkedStreams, Level::All, Level::Workers];
        let logged = levels.map(|level| Line { level: Some(level), ..line });
        let written = Line { level: Some(Level::Workers), with_log: true, ..line };
        [line].into_iter().chain(logged).chain([written]).collect()
    };
    let deep = |file, title, sizes, lines| Figure { file, title, net: Net::Deep, sizes, lines };
    vec![
        deep("deep-long", "Deep replication pipeline (6.1 a)", &extent.long, three()),
        deep(
            "deep-short",
            "Deep replication pipeline, short range (6.1 b)",
            &extent.short,
            three(),
        ),
        deep(
            "deep-blocks",
            "Deep replication pipeline, blocks of 10 (6.1 c)",
            &extent.short,
            blocks(),
        ),
        deep("monitoring-1", "Monitoring levels, one worker (6.2 a)", &extent.long, levels(1)),
        deep("monitoring-2", "Monitoring levels, two workers (6.2 b)", &extent.long, levels(2)),
        Figure {
            file: "synchronisation",
            title: "Synchronisation pipeline (6.7)",
            net: Net::Synchronisation,
            sizes: &extent.rounds,
            lines: three(),
        },
    ]
}

/// Returns random counters up to `depth`, the same in each call.
fn counters(records: usize, depth: usize) -> Vec<u32> {
    let mut random = fastrand::Rng::with_seed(0);
    (0..records).map(|_| random.u32(..=depth as u32)).collect()
}

/// Runs a network once, and checks its result.
fn run(net: Net, line: Line, records: usize, size: usize, logs: &Path) -> Outcome<Duration> {
    let style = line.style;
    let counters = counters(records, size);
    let stages = counters.iter().max().map_or(1, |deepest| *deepest as usize + 1);
    let begin = Instant::now();
    let mut builder = Runtime::builder().workers(style.workers);
    let log = line.level.map(|level| TextLog::create(logs, level)).transpose()?;
    if let Some(log) = &log {
        builder = builder.monitor(log.clone());
    }
    let runtime = builder.build()?;
    let right = runtime.run(move || match net {
        Net::Deep => load::deep(style, counters) == (records, stages),
        Net::Synchronisation => load::synchronisation(style, size) == 5 * size,
    })?;
    drop(runtime);
    let mut time = begin.elapsed();
    if let Some(log) = log {
        log.finish()?;
        if line.with_log {
            time = begin.elapsed();
        }
    }
    if right { Ok(time) } else { Err(format!("{net:?} of size {size} had a wrong result").into()) }
}

/// Measures a figure, draws it, and writes its times.
fn make(figure: &Figure<'_>, extent: &Extent, folder: &Path, rows: &mut impl Write) -> Outcome<()> {
    let logs = tempfile::tempdir()?;
    let mut series: Vec<_> =
        figure.lines.iter().map(|line| Series { name: line.name(), points: Vec::new() }).collect();
    for &size in figure.sizes {
        let mut times = vec![Vec::new(); figure.lines.len()];
        for _ in 0..extent.runs {
            for (line, times) in figure.lines.iter().zip(&mut times) {
                if !line.style.threads || size <= extent.threads_max {
                    times.push(
                        run(figure.net, *line, extent.records, size, logs.path())?.as_secs_f64(),
                    );
                }
            }
        }
        for (series, mut times) in
            series.iter_mut().zip(times).filter(|(_, times)| !times.is_empty())
        {
            times.sort_by(f64::total_cmp);
            let (median, min, max) = (times[times.len() / 2], times[0], times[times.len() - 1]);
            series.points.push((size, median));
            let row = json!({
                "bench": format!("lpel.figure.{}", figure.file),
                "case": size.to_string(),
                "subject": series.name,
                "unit": "s",
                "better": "lower",
                "median": median,
                "min": min,
                "max": max,
                "runs": times.len(),
            });
            writeln!(rows, "{row}")?;
        }
    }
    let size = match figure.net {
        Net::Deep => "pipeline depth",
        Net::Synchronisation => "pipeline depth N: rounds of five A and five B",
    };
    plot::draw(&folder.join(figure.file).with_extension("svg"), figure.title, size, &series)
}

fn make_all(extent: &Extent, folder: &Path) -> Outcome<()> {
    fs::create_dir_all(folder)?;
    let mut rows = File::create(folder.join("rows.json"))?;
    for figure in figures(extent) {
        println!("{}", figure.title);
        make(&figure, extent, folder, &mut rows)?;
    }
    Ok(())
}

fn main() -> Outcome<()> {
    let mut args = std::env::args().skip(1);
    let (Some(folder), None) = (args.next(), args.next()) else {
        return Err("usage: figures FOLDER".into());
    };
    make_all(&Extent::full(), folder.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_figures_are_drawn() {
        let extent = Extent {
            records: 30,
            long: vec![3, 40],
            short: vec![0, 20],
            rounds: vec![1, 4],
            threads_max: 20,
            runs: 1,
        };
        let folder = tempfile::tempdir().unwrap();
        make_all(&extent, folder.path()).unwrap();
        for figure in figures(&extent) {
            let svg =
                fs::read_to_string(folder.path().join(figure.file).with_extension("svg")).unwrap();
            assert!(svg.contains("</svg>"), "{}", figure.file);
            for line in &figure.lines {
                assert!(svg.contains(&line.name()), "{} lacks {}", figure.file, line.name());
            }
        }
        let rows = fs::read_to_string(folder.path().join("rows.json")).unwrap();
        // Lines of threads have no point at the size above the limit.
        assert_eq!(rows.lines().count(), 5 + 6 + 6 + 12 + 12 + 6);
    }

    #[test]
    fn tasks_and_threads_have_equal_results() {
        let one = Line::workers(1).style;
        for style in [
            one,
            Line::workers(2).style,
            Line::threads().style,
            Style { workers: 2, block: 10, ..one },
        ] {
            let runtime = Runtime::builder().workers(style.workers).pin(false).build().unwrap();
            let ends = runtime.run(move || {
                let deep = load::deep(style, vec![3, 0, 7, 7, 2]);
                (deep, load::synchronisation(style, 3), load::synchronisation(style, 0))
            });
            assert_eq!(ends.unwrap(), ((5, 8), 15, 0));
        }
    }
}
