//! The Mandelbrot study: one network, several configurations of placement and scheduling, and a
//! table of their times.
//!
//! Source: Prokesch, A Light-Weight Parallel Execution Layer for Shared-Memory Stream Processing,
//! 2011, 6.2 and table 6.1. Two rows are additions to the four rows of the thesis: placement by the
//! measurements of an earlier run, and idle workers that steal unstarted tasks.
//!
//! `cargo run --release -p corebeat-lpel --example mandelbrot -- [WIDTH HEIGHT ROUNDS [IMAGE.pgm]]`

mod fractal;
mod network;

use corebeat_lpel::{
    Builder, Runtime,
    monitor::{self, Level, TextLog},
    placement::{Balanced, Measured, Place, Placement, TaskInfo},
    scheduler::Prioritised,
};
use fractal::{Shades, View};
use network::{Style, is_box};
use std::collections::HashMap;
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Number of strips in the study (6.2).
const STRIPS: usize = 8;
const WORKERS: usize = 2;

/// The first placement of the thesis (5.4.2): boxes go to one worker after another, and entities
/// between boxes go to the worker of the next box.
#[derive(Default)]
struct Naive {
    next: usize,
}

impl Naive {
    fn worker(&mut self, name: Option<&str>, workers: usize) -> usize {
        let worker = self.next % workers;
        self.next += usize::from(name.is_some_and(is_box));
        worker
    }
}

impl Placement for Naive {
    fn place(&mut self, task: &TaskInfo<'_>, workers: usize) -> Place {
        Place::Worker(self.worker(task.name, workers))
    }
}

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Threads,
    Naive,
    Balanced,
    Priorities,
    Measured,
    Stealing,
}

const WAYS: [Way; 6] =
    [Way::Threads, Way::Naive, Way::Balanced, Way::Priorities, Way::Measured, Way::Stealing];

impl Way {
    fn title(self) -> &'static str {
        match self {
            Way::Threads => "a thread for each task",
            Way::Naive => "naive assignment",
            Way::Balanced => "balanced assignment",
            Way::Priorities => "balanced assignment, two priorities",
            Way::Measured => "assignment by measured cost, two priorities",
            Way::Stealing => "no assignment: idle workers steal new tasks",
        }
    }

    fn style(self) -> Style {
        let priorities = matches!(self, Way::Priorities | Way::Measured);
        Style { threads: self == Way::Threads, priorities }
    }

    fn runtime(self, costs: &HashMap<String, u64>) -> Builder {
        let builder = Runtime::builder().workers(WORKERS);
        let prioritised = |builder: Builder| builder.scheduler(|_| Box::<Prioritised>::default());
        match self {
            Way::Threads | Way::Stealing => builder,
            Way::Naive => builder.placement(Naive::default()),
            Way::Balanced => builder.placement(Balanced::default()),
            Way::Priorities => prioritised(builder).placement(Balanced::default()),
            Way::Measured => prioritised(builder).placement(Measured::new(costs.clone())),
        }
    }
}

/// Computes the image. Returns the image, and the time including that for the runtime.
fn run(builder: Builder, style: Style, view: View) -> Outcome<(Shades, Duration)> {
    let begin = Instant::now();
    let runtime = builder.build()?;
    let image = runtime.run(move || network::image(style, view, STRIPS))?;
    drop(runtime);
    Ok((image, begin.elapsed()))
}

/// Returns the mean cost of each kind of task, in a run with the naive assignment.
fn measure(view: View) -> Outcome<HashMap<String, u64>> {
    let folder = tempfile::tempdir()?;
    let log = TextLog::create(folder.path(), Level::All)?;
    run(Way::Naive.runtime(&HashMap::new()).monitor(log.clone()), Style::default(), view)?;
    log.finish()?;
    Ok(monitor::costs(folder.path())?)
}

/// Results of the study: costs of tasks, and times of each configuration in each round.
struct Study {
    costs: HashMap<String, u64>,
    times: Vec<(Way, Vec<Duration>)>,
    image: Shades,
}

fn study(view: View, rounds: usize) -> Outcome<Study> {
    let image: Shades = view.strips(1).flat_map(fractal::compute).collect();
    let costs = measure(view)?;
    let mut times = WAYS.map(|way| (way, Vec::new()));
    for _ in 0..rounds {
        // Each round runs all configurations, so that disturbances affect all of them.
        for (way, times) in &mut times {
            let (computed, time) = run(way.runtime(&costs), way.style(), view)?;
            if computed != image {
                return Err(format!("{} computed a different image", way.title()).into());
            }
            times.push(time);
        }
    }
    times.iter_mut().for_each(|(_, times)| times.sort());
    Ok(Study { costs, times: times.into(), image })
}

/// Prints the results as table 6.1 and the lists before it.
fn print(study: &Study) {
    println!("mean execution time of the tasks of each name, in seconds:");
    let mut costs: Vec<_> = study.costs.iter().collect();
    costs.sort_by_key(|(_, cost_ns)| std::cmp::Reverse(**cost_ns));
    for (name, cost_ns) in costs {
        println!("  {name:<44} {:>9.6}", *cost_ns as f64 / 1e9);
    }
    println!(
        "execution time in seconds, over {} rounds:          median       min       max",
        study.times[0].1.len()
    );
    for (way, times) in &study.times {
        let [median, min, max] = [times[times.len() / 2], times[0], times[times.len() - 1]];
        let [median, min, max] = [median, min, max].map(|time| time.as_secs_f64());
        println!("  {:<44} {median:>9.3} {min:>9.3} {max:>9.3}", way.title());
    }
}

fn main() -> Outcome<()> {
    let usage = "usage: mandelbrot [WIDTH HEIGHT ROUNDS [IMAGE.pgm]], all numbers at least 1";
    let args: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Vec<usize> =
        args.iter().take(3).map(|a| a.parse()).collect::<Result<_, _>>().map_err(|_| usage)?;
    let (width, height, rounds) = match numbers[..] {
        [] => (1500, 1000, 10),
        [width, height, rounds] if width.min(height).min(rounds) > 0 => (width, height, rounds),
        _ => return Err(usage.into()),
    };
    let study = study(View { width, height, iterations_max: 500 }, rounds)?;
    print(&study);
    if let Some(path) = args.get(3) {
        let header = format!("P5 {width} {height} 255\n");
        std::fs::write(path, [header.as_bytes(), &study.image].concat())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With strips of 2 and of 3 rows.
    const VIEW: View = View { width: 23, height: 21, iterations_max: 50 };

    #[test]
    fn all_configurations_compute_the_same_image() {
        let study = study(VIEW, 1).unwrap();
        assert_eq!(study.times.len(), WAYS.len());
        assert!(study.times.iter().all(|(_, times)| times.len() == 1));
        print(&study);
        let inside = study.image.iter().filter(|shade| **shade == 0).count();
        assert!(
            inside > 20 && inside < VIEW.width * VIEW.height / 2,
            "{inside} points of the image are in the set"
        );
    }

    #[test]
    fn costs_include_all_boxes_and_entities() {
        let mut names: Vec<_> = measure(VIEW).unwrap().into_keys().collect();
        names.sort();
        let entities = ["<collector>", "<parallel>", "<split>", "<sync>"];
        let boxes =
            ["escTime", "escVals", "genSubPlane", "init", "merge", "normItCount", "splitter"];
        assert_eq!(names, [&entities[..], &boxes].concat());
    }

    #[test]
    fn naive_placement_puts_all_boxes_of_a_name_on_one_worker() {
        let boxes = ["init", "genSubPlane", "escVals", "escTime", "normItCount", "merge"];
        let mut naive = Naive::default();
        naive.worker(Some("splitter"), WORKERS);
        for _ in 0..STRIPS {
            assert_eq!(boxes.map(|name| naive.worker(Some(name), WORKERS)), [1, 0, 1, 0, 1, 0]);
        }
    }
}
