//! `corebeat verify search`: islands of searches on threads, one result.

use crate::model::{mode, open};
use crate::print_beside;
use crate::table::ms;
use corebeat_command::{
    Done, Failure, Output, open_regular, print_error, read_text, require_distinct,
};
use corebeat_verify::{
    Effect, Found, Kind, Model, Objective, Replay, Search, SearchOptions, Subject, System, Time,
    Witness, Worst, btf, gantt_svg, horizon_ns, perfetto, responses,
};
use serde_json::json;
use signal_hook::consts::SIGINT;
use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// Options of `corebeat verify search`.
#[derive(clap::Args)]
pub struct Options {
    /// Model: .amxmi (AMALTHEA), .toml or .csv
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Search for the longest response time of this task, instead of any missed deadline; with
    /// --wait, for the longest wait of its jobs
    #[arg(long, value_name = "NAME", conflicts_with = "replay")]
    task: Option<String>,
    /// Search for a released job that has no core for longer than TIME (such as 5ms) without a
    /// break, instead of any missed deadline; a job that spins has a core
    #[arg(long, value_name = "TIME", value_parser = positive, conflicts_with = "replay")]
    wait: Option<Time>,
    /// Search for a core that is busy for more than this share of a window, instead of any missed
    /// deadline
    #[arg(long, value_name = "PERCENT", requires = "window",
          conflicts_with_all = ["replay", "task", "wait"],
          value_parser = clap::value_parser!(u64).range(1..=100))]
    load: Option<u64>,
    /// Length of the window of --load, such as 10ms
    #[arg(long, value_name = "TIME", value_parser = positive, requires = "load")]
    window: Option<Time>,
    /// Simulate N scenarios in each mode, all threads together
    #[arg(long, value_name = "N", default_value_t = 100_000,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    evaluations: u64,
    /// Set the seed of the random numbers; equal seeds and threads give equal results
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Search on N threads [default: 2, or 1 on a machine with one CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=256))]
    threads: Option<u64>,
    /// Replay this witness instead of a search
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    /// Write the scenario that was found, as TOML
    #[arg(long, value_name = "FILE", conflicts_with = "replay")]
    witness: Option<PathBuf>,
    /// Draw the scenario as a Gantt chart, as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write the scenario as a trace in BTF
    #[arg(long, value_name = "FILE")]
    btf: Option<PathBuf>,
    /// Write the scenario for Perfetto (ui.perfetto.dev), as JSON
    #[arg(long, value_name = "FILE")]
    perfetto: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

fn positive(text: &str) -> Result<Time, String> {
    let time: Time = text.parse()?;
    if time.ns == 0 { Err("a time above 0 is needed".into()) } else { Ok(time) }
}

/// Largest size of a witness, in bytes.
const WITNESS_MAX: u64 = 256 << 20;

/// The files to write.
struct Files {
    witness: Option<Output>,
    svg: Option<Output>,
    btf: Option<Output>,
    perfetto: Option<Output>,
}

/// The result of a search in all modes.
#[derive(Default)]
struct Outcome {
    witness: Option<Witness>,
    /// Bound of a response time by analysis, in nanoseconds.
    bound_ns: Option<u64>,
    /// Tasks whose deadlines lie after the end of a scenario.
    beyond: BTreeSet<String>,
    evaluations: u64,
    seconds: f64,
    is_interrupted: bool,
}

pub(crate) fn main(options: &Options) -> Done {
    let model = open(&options.model)?;
    let open_file = |path: &Option<PathBuf>| path.as_deref().map(Output::create).transpose();
    let files = Files {
        witness: open_file(&options.witness)?,
        svg: open_file(&options.svg)?,
        btf: open_file(&options.btf)?,
        perfetto: open_file(&options.perfetto)?,
    };
    let named = [&options.witness, &options.svg, &options.btf, &options.perfetto, &options.replay];
    require_distinct([&options.model].into_iter().chain(named.into_iter().flatten()))?;
    let outcome = match &options.replay {
        Some(path) => Outcome { witness: Some(read(path)?), ..Outcome::default() },
        None => search(&model, options)?,
    };
    let Some(witness) = &outcome.witness else {
        let any = options.task.is_none() && options.wait.is_none() && options.load.is_none();
        let (of, advice) = match any {
            true => (" with a deadline", "name a task by --task, or "),
            false => ("", ""),
        };
        return Err(Failure::data(format!(
            "{}: no such task{of} can be simulated; {advice}see 'corebeat verify analyse'",
            options.model.display()
        )));
    };
    let at = options.replay.as_ref().unwrap_or(&options.model).display();
    // As a later replay reads it.
    let written = Witness::read(&witness.write()).and_then(|witness| witness.replay(&model));
    let replay = written.map_err(|e| Failure::data(format!("{at}: {e}")))?;
    let text = match options.json {
        true => json_of(&model, witness, &outcome),
        false => text_of(&model, witness, &outcome),
    };
    print_beside(write(files, &model, witness, &replay), text)?;
    Ok(ExitCode::from(u8::from(witness.is_miss())))
}

fn read(path: &Path) -> Result<Witness, Failure> {
    let shown = path.display();
    let text = read_text(&shown.to_string(), open_regular(path), WITNESS_MAX, "witness")?;
    Witness::read(&text).map_err(|e| Failure::data(format!("{shown}: {e}")))
}

/// Writes all files. Returns the first error.
fn write(files: Files, model: &Model, witness: &Witness, replay: &Replay) -> Result<(), Failure> {
    let perfetto = |file: Output| file.write(&perfetto(model, replay).map_err(Failure::internal)?);
    [
        files.witness.map_or(Ok(()), |file| file.write(&witness.write())),
        files.svg.map_or(Ok(()), |file| file.write(&gantt_svg(model, replay))),
        files.btf.map_or(Ok(()), |file| file.write(&btf(model, replay))),
        files.perfetto.map_or(Ok(()), perfetto),
    ]
    .into_iter()
    .collect()
}

/// Searches in each mode, up to the first missed deadline.
fn search(model: &Model, options: &Options) -> Result<Outcome, Failure> {
    let objective = objective(model, options)?;
    let stop = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGINT, Arc::clone(&stop)).map_err(Failure::internal)?;
    let begin = Instant::now();
    let (mut outcome, mut worst) = (Outcome::default(), None);
    for m in model.all_modes() {
        let system = System::new(model, m);
        if system.entries.is_empty() {
            continue;
        }
        let horizon_ns = horizon_ns(&system, objective);
        if horizon_ns < objective.least_ns() {
            return Err(Failure::usage(format!(
                "{} is longer than a scenario of 20,000 jobs, which lasts {}; shorten it",
                Time::from(objective.least_ns()),
                Time::from(horizon_ns)
            )));
        }
        if let Objective::Response { task } = objective {
            let entries = system.entries.iter();
            let entries = entries.filter(|entry| task.is_none_or(|task| entry.task == task));
            let beyond = entries.filter(|entry| system.deadline_of_first_ns(entry) > horizon_ns);
            outcome.beyond.extend(beyond.map(|entry| model.tasks[entry.task].name.clone()));
        }
        let (found, evaluations) = islands(model, m, &system, objective, options, &stop);
        outcome.evaluations += evaluations;
        let Some(found) = found else { continue };
        let witness = Witness::new(model, m, &system, &found);
        if worst.is_none_or(|old: Worst| found.worst.share() > old.share()) {
            // Without the omitted parts, it is no bound.
            let bound_ns = bound_ns(&system, objective, found.worst.subject);
            outcome.bound_ns = bound_ns.filter(|_| !is_partial(model));
            outcome.witness = Some(witness);
            worst = Some(found.worst);
        }
        let is_over = objective.stops_at_miss() && found.worst.is_miss();
        if is_over || stop.load(Ordering::Relaxed) {
            break;
        }
    }
    outcome.is_interrupted = stop.load(Ordering::Relaxed);
    outcome.seconds = begin.elapsed().as_secs_f64();
    Ok(outcome)
}

/// The objective of the options.
fn objective(model: &Model, options: &Options) -> Result<Objective, Failure> {
    let task = options.task.as_ref().map(|name| {
        let at = model.tasks.iter().position(|t| t.name == *name);
        let line = || format!("{}: no task is named '{name}'", options.model.display());
        at.ok_or_else(|| Failure::usage(line()))
    });
    let task = task.transpose()?;
    Ok(match (options.wait, options.load.zip(options.window)) {
        (Some(limit), _) => Objective::Wait { task, limit_ns: limit.ns },
        (None, Some((percent, window))) => {
            // Rounded down: a core whose share is above the limit is busy for longer.
            let limit_ns = (u128::from(window.ns) * u128::from(percent) / 100) as u64;
            if limit_ns == 0 {
                let line = format!("{percent}% of a window of {window} is no time; lengthen it");
                return Err(Failure::usage(line));
            }
            Objective::Load { window_ns: window.ns, limit_ns }
        }
        (None, None) => Objective::Response { task },
    })
}

/// The bound of a response time by analysis.
fn bound_ns(system: &System, objective: Objective, subject: Subject) -> Option<u64> {
    match (objective, subject) {
        (Objective::Response { .. }, Subject::Entry(entry)) => responses(system)[entry].response_ns,
        _ => None,
    }
}

/// State that the islands share. Numbers for the progress line and requests to stop: no other
/// memory depends on them, so relaxed accesses suffice.
struct Shared {
    evaluations: AtomicU64,
    /// Bits of the largest fitness; of positive numbers, the order of bits is that of values.
    best: AtomicU64,
    /// First island with a missed deadline. Later islands stop, so that the result does not depend
    /// on the speed of the threads.
    first: AtomicU64,
    live: AtomicU64,
}

/// Runs one search on each thread with a seed of its own. Returns the best result, of equal ones
/// that of the first thread, and the number of evaluations.
fn islands(
    model: &Model,
    m: Option<usize>,
    system: &System,
    objective: Objective,
    options: &Options,
    stop: &AtomicBool,
) -> (Option<Found>, u64) {
    let cpus = thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let count = options.threads.unwrap_or(cpus.min(2));
    let shared = Shared {
        evaluations: AtomicU64::new(0),
        best: AtomicU64::new(0),
        first: AtomicU64::new(u64::MAX),
        live: AtomicU64::new(count),
    };
    let caller = thread::current();
    let island = |number: u64| {
        let options = SearchOptions {
            evaluations: options.evaluations.div_ceil(count),
            seed: options.seed.wrapping_mul(1_000).wrapping_add(number),
            objective,
            stops_at_miss: objective.stops_at_miss(),
        };
        let end = End { live: &shared.live, caller: &caller };
        let mut search = Search::new(system, options);
        while search.step() {
            // Seldom: each change takes the cache line from the other islands.
            let fitness = search.fitness().to_bits();
            if fitness > shared.best.load(Ordering::Relaxed) {
                shared.best.fetch_max(fitness, Ordering::Relaxed);
            }
            if search.evaluations() % COUNTED == 0 {
                shared.evaluations.fetch_add(COUNTED, Ordering::Relaxed);
            }
            let is_late = shared.first.load(Ordering::Relaxed) < number;
            if stop.load(Ordering::Relaxed) || is_late {
                break;
            }
        }
        if objective.stops_at_miss() && search.has_miss() {
            shared.first.fetch_min(number, Ordering::Relaxed);
        }
        drop(end);
        (search.fitness(), search.evaluations(), search.found())
    };
    let results: Vec<_> = thread::scope(|scope| {
        let island = &island;
        let threads: Vec<_> = (0..count).map(|n| scope.spawn(move || island(n))).collect();
        show_progress(model, m, system, objective, &shared);
        threads.into_iter().map(|t| t.join().unwrap_or_else(|why| resume_unwind(why))).collect()
    });
    let evaluations = results.iter().map(|r| r.1).sum();
    let is_miss = |found: &Found| found.worst.is_miss();
    let miss = results.iter().position(|r| r.2.as_ref().is_some_and(is_miss));
    let best = match miss.filter(|_| objective.stops_at_miss()) {
        Some(first) => results.into_iter().nth(first),
        None => results.into_iter().rev().max_by(|a, b| a.0.total_cmp(&b.0)),
    };
    (best.and_then(|b| b.2), evaluations)
}

/// The end of an island, also by a panic.
struct End<'a> {
    live: &'a AtomicU64,
    caller: &'a Thread,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.live.fetch_sub(1, Ordering::Relaxed);
        self.caller.unpark();
    }
}

/// Number of evaluations after which an island counts them for the progress line.
const COUNTED: u64 = 16;
/// Time between two progress lines.
const PROGRESS: Duration = Duration::from_millis(200);

/// The largest bound of the tasks whose response times are searched, as a share of the deadline;
/// `None` if a task has no bound.
fn bound_of(system: &System, objective: Objective) -> Option<f64> {
    let Objective::Response { task } = objective else { return None };
    let figures = system.entries.iter().zip(responses(system));
    let targets = figures.filter(|(entry, _)| task.is_none_or(|task| entry.task == task));
    let shares = targets.filter_map(|(entry, figure)| {
        let deadline = entry.deadline_ns? as f64;
        Some(figure.response_ns.map(|bound| bound as f64 / deadline))
    });
    shares.reduce(|a, b| Some(a?.max(b?))).flatten()
}

/// Shows the progress on a terminal until the islands end.
fn show_progress(
    model: &Model,
    m: Option<usize>,
    system: &System,
    objective: Objective,
    shared: &Shared,
) {
    let begin = Instant::now();
    let shows = std::io::stderr().is_terminal();
    let bound = (shows && !is_partial(model)).then(|| bound_of(system, objective)).flatten();
    let bound = bound.map_or("none".into(), |bound| format!("{:.1}%", bound * 100.0));
    let limit = match objective {
        Objective::Response { .. } => "a deadline",
        Objective::Wait { .. } | Objective::Load { .. } => "the limit",
    };
    let name = mode(model, m).map_or(String::new(), |name| format!("mode {name}: "));
    while shared.live.load(Ordering::Relaxed) > 0 {
        thread::park_timeout(PROGRESS);
        if shows {
            let evaluations = shared.evaluations.load(Ordering::Relaxed);
            let best = f64::from_bits(shared.best.load(Ordering::Relaxed));
            print_error(format_args!(
                "\r\x1b[K{name}{evaluations} evaluations, {:.0}/s, best {:.1}% of {limit}, \
                 bound {bound}",
                evaluations as f64 / begin.elapsed().as_secs_f64(),
                best * 100.0
            ));
        }
    }
    if shows {
        print_error("\r\x1b[K");
    }
}

/// The kind, the name, the key of the time and that of the limit in JSON.
fn parts(kind: &Kind) -> (&'static str, &String, &'static str, &'static str) {
    match kind {
        Kind::Response { task } => ("task", task, "response", "deadline"),
        Kind::Wait { task } => ("task", task, "wait", "limit"),
        Kind::Load { core, .. } => ("core", core, "busy", "limit"),
    }
}

fn text_of(model: &Model, witness: &Witness, outcome: &Outcome) -> String {
    let limit_text = witness.limit.map_or("none".into(), |limit| ms(Some(limit.ns)));
    let mode = witness.mode.as_ref().map_or(String::new(), |m| format!(" in mode {m}"));
    let (kind, name, time, limit) = parts(&witness.objective);
    let window = match &witness.objective {
        Kind::Load { window, .. } => format!(" of {}", ms(Some(window.ns))),
        Kind::Response { .. } | Kind::Wait { .. } => String::new(),
    };
    let value = ms(Some(witness.time.ns));
    let mut text = format!("{kind} {name}{mode}: {time} {value}{window}, {limit} {limit_text}");
    if outcome.evaluations > 0 {
        if let Kind::Response { .. } = witness.objective {
            text += &format!(", bound by analysis {}", ms(outcome.bound_ns));
        }
        let rate = outcome.evaluations as f64 / outcome.seconds.max(1e-9);
        text += &format!("\n{} evaluations, {rate:.0}/s", outcome.evaluations);
        text += if outcome.is_interrupted { ", interrupted" } else { "" };
    }
    text += match (&witness.objective, witness.is_miss()) {
        (Kind::Response { .. }, true) => "\nresult: a deadline is missed\n",
        (Kind::Response { .. }, false) => "\nresult: no missed deadline was found\n",
        (_, true) => "\nresult: the limit is exceeded\n",
        (_, false) => "\nresult: no time above the limit was found\n",
    };
    if !outcome.beyond.is_empty() {
        let tasks: Vec<&str> = outcome.beyond.iter().map(String::as_str).collect();
        let tasks = tasks.join(", ");
        text += "note: a scenario has at most 20,000 jobs, and ends before the deadlines of these \
                 tasks, whose longest responses may be missing: ";
        text += &format!("{tasks}\n");
    }
    if omitted(model) > 0 || model.notes.iter().any(|note| note.effect != Effect::None) {
        text += "note: the scenario is one of the model without its parts that are not supported; \
                 'corebeat verify analyse' lists them\n";
    }
    text
}

/// Whether the model lacks parts that could make a response time longer.
fn is_partial(model: &Model) -> bool {
    omitted(model) > 0 || model.notes.iter().any(|note| note.effect == Effect::Optimistic)
}

/// Number of tasks that are not simulated, in all modes.
fn omitted(model: &Model) -> usize {
    model.all_modes().into_iter().map(|mode| System::new(model, mode).omitted.len()).sum()
}

fn json_of(model: &Model, witness: &Witness, outcome: &Outcome) -> String {
    let (kind, name, time, limit) = parts(&witness.objective);
    let mut all = json!({
        kind: name, "mode": witness.mode, format!("{time}_ns"): witness.time.ns,
        format!("{limit}_ns"): witness.limit.map(|limit| limit.ns),
        "missed": witness.is_miss(), "evaluations": outcome.evaluations,
        "seconds": outcome.seconds, "interrupted": outcome.is_interrupted,
        "omitted_tasks": omitted(model), "tasks_beyond_scenario": outcome.beyond,
    });
    match &witness.objective {
        Kind::Response { .. } => all["bound_ns"] = json!(outcome.bound_ns),
        Kind::Load { window, .. } => all["window_ns"] = json!(window.ns),
        Kind::Wait { .. } => {}
    }
    format!("{all}\n")
}
