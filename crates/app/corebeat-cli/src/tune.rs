//! `corebeat tune`: Thread Reinforcer. Short runs with growing thread counts, then the full run with the best.

use crate::failure::{Done, Failure, print, tell};
use crate::output::Output;
use crate::plot::{self, Series};
use crate::report::{Report, percent};
use crate::session::{self, How, PolicyName, now_ns};
use crate::trial::{self, PLACEHOLDER, Shown, Template, Watch};
use corebeat_linux::exit_as;
use corebeat_loop::Periods;
use corebeat_policy::oversubscription::{Oversubscription, detect};
use corebeat_policy::reinforcer::{Limits, Profile, Reason, Reinforcer, Step, Thresholds, Trial};
use serde::Serialize;
use std::ffi::OsString;
use std::fs::File;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The largest thread count to try; four times the CPUs where nothing is said
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    max: Option<u32>,
    /// The first thread count to try
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    min: u32,
    /// By how much the count grows; a third of the CPUs where nothing is said
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    step: Option<u32>,
    /// Milliseconds that each short run is watched once its threads are there
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(20..=600_000))]
    window: u64,
    /// Milliseconds that a short run may take until its threads are there
    #[arg(long, value_name = "MS", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(20..=600_000))]
    serial: u64,
    /// A shell command whose output is the program's input, in each run
    #[arg(long, value_name = "CMD")]
    input: Option<String>,
    /// A variable that gets the thread count, such as OMP_NUM_THREADS; may be repeated
    #[arg(long, value_name = "NAME")]
    env: Vec<OsString>,
    /// Write the result as one JSON object on standard output, and what the program prints there on standard error
    #[arg(long)]
    json: bool,
    /// Draw what each count showed, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Stop after the search
    #[arg(long)]
    search_only: bool,
    /// Which policies act on the full run
    #[arg(long, value_enum, default_value = "auto")]
    policy: PolicyName,
    /// The program and its arguments, after --; {threads} stands for the thread count
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// CPUs that others keep busy are worth a note from here on, where they were looked at for so many seconds: the kernel
/// counts in ticks of up to 10 ms.
pub(crate) const OTHERS_BUSY: f64 = 0.25;
const OTHERS_MIN_S: f64 = 0.1;

/// One short run.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) threads: u32,
    pub(crate) serial_s: f64,
    pub(crate) window_s: f64,
    pub(crate) trial: Trial,
    pub(crate) verdict: String,
}

/// What the search found.
#[derive(Debug, Serialize)]
pub(crate) struct Found {
    pub(crate) cpus: u32,
    pub(crate) rows: Vec<Row>,
    pub(crate) best: Option<u32>,
    pub(crate) reason: String,
    pub(crate) search_s: f64,
    pub(crate) oversubscription: Option<Oversubscription>,
    pub(crate) notes: Vec<String>,
}

#[derive(Serialize)]
struct Tuned {
    command: Vec<String>,
    #[serde(flatten)]
    found: Found,
    run: Option<Report>,
    /// The search's part of the time of search and run together.
    search_share: Option<f64>,
}

/// A search, or the signal that ended it.
pub(crate) enum Searched {
    Found(Found),
    Interrupted(ExitStatus),
}

pub(crate) fn main(options: Options) -> Done {
    if matches!(options.policy, PolicyName::Coscheduling | PolicyName::Adapt) {
        let name = options.policy.text();
        return Err(Failure::usage(format!("{name} is for several programs; use corebeat run")));
    }
    let template = Template { command: options.command, env: options.env, input: options.input };
    if !template.takes_threads() {
        return Err(Failure::usage(format!(
            "where does the thread count go? Write {PLACEHOLDER} in the program's arguments, or name a variable with --env"
        )));
    }
    if let Some(bad) = template.env.iter().find(|n| n.is_empty() || n.to_string_lossy().contains('=')) {
        return Err(Failure::usage(format!("'{}' is no name of a variable", bad.to_string_lossy())));
    }
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let defaults = Limits::of(cpus);
    let limits = Limits {
        min: options.min,
        max: options.max.unwrap_or(defaults.max.max(options.min)),
        cpus,
        step: options.step.unwrap_or(defaults.step),
    };
    if limits.max < limits.min {
        return Err(Failure::usage(format!("--max {} is below --min {}", limits.max, limits.min)));
    }
    let watch = Watch {
        cpus,
        window: Duration::from_millis(options.window),
        serial_max: Duration::from_millis(options.serial),
        skip: Duration::ZERO,
    };
    let plot = options.plot.as_deref().map(Output::create).transpose()?;
    let found = match search(&template, limits, watch, true)? {
        Searched::Found(found) => found,
        Searched::Interrupted(status) => {
            drop(plot);
            exit_as(status)
        }
    };
    let series = series(&found);
    let drawn = plot.map_or(Ok(()), |file| {
        plot::svg(file, &template.command(found.best.unwrap_or(limits.min))[0].to_string_lossy(), &series)
    });
    if !options.json {
        tell(found.table() + &plot::terminal(&series));
    }
    let mut tuned = Tuned {
        command: template.command.iter().map(|c| c.to_string_lossy().into_owned()).collect(),
        found,
        run: None,
        search_share: None,
    };
    let mut ended = None;
    if let Some(best) = tuned.found.best.filter(|_| !options.search_only) {
        let how = How {
            policy: options.policy,
            periods: Periods::default(),
            env: template.env(best),
            exact_locks: false,
            memory: None,
            input: template.open_input()?,
            stdout: if options.json { Some(standard_error()?) } else { None },
        };
        let (status, report) = session::run(&template.command(best), how)?;
        tuned.search_share = Some(tuned.found.search_s / (tuned.found.search_s + report.wall_s));
        if !options.json {
            tell(format_args!(
                "{report}  the search  took {:.2} s, {} of all\n",
                tuned.found.search_s,
                percent(tuned.search_share)
            ));
        }
        tuned.run = Some(report);
        ended = Some(status);
    }
    let printed = match options.json {
        true => serde_json::to_string(&tuned).map_err(Failure::own).and_then(|text| print(text + "\n")),
        false => Ok(()),
    };
    match ended {
        // The program's exit status goes before ours.
        Some(status) => {
            drawn.err().into_iter().chain(printed.err()).for_each(|failure| {
                failure.report();
            });
            exit_as(status)
        }
        None if tuned.found.best.is_none() => Err(Failure::own(&tuned.found.reason)),
        None => drawn.and(printed).map(|()| ExitCode::SUCCESS),
    }
}

/// Standard error, as a file of its own.
fn standard_error() -> Result<File, Failure> {
    let own = std::io::stderr().as_fd().try_clone_to_owned();
    own.map(File::from).map_err(|e| Failure::own(format!("standard error cannot be used: {e}")))
}

/// Searches for the best thread count.
pub(crate) fn search(
    template: &Template,
    limits: Limits,
    watch: Watch,
    shows: bool,
) -> Result<Searched, Failure> {
    let start_ns = now_ns();
    let mut search = Reinforcer::new(limits, Thresholds::default());
    let mut machine = trial::machine()?;
    let (mut rows, mut notes): (Vec<Row>, Vec<String>) = (Vec::new(), Vec::new());
    // CPU seconds that others took, and the seconds in which that was looked at.
    let mut others = (0.0, 0.0);
    let mut ahead: Option<(u32, Shown)> = None;
    let (best, reason) = loop {
        let threads = match search.next() {
            Step::Try(threads) => threads,
            Step::Done { best, reason } => break (best, reason),
        };
        let mut run = |threads: u32, watch| {
            progress_line(shows, &format!("trying {} ...", count(threads)));
            trial::run(&mut machine, template, threads, watch)
        };
        // How long a program's serial start is shows only where threads come after it; so the run with one thread, which
        // is to be compared with those, is made after the first of them.
        let next = threads.saturating_add(limits.step).min(limits.max);
        if threads == 1 && next > 1 {
            let shown = run(next, watch)?;
            if let Some(status) = shown.interrupted {
                progress_line(shows, "");
                return Ok(Searched::Interrupted(status));
            }
            ahead = Some((next, shown));
        }
        let skip = match &ahead {
            Some((_, shown)) if threads == 1 && !shown.stayed_serial => {
                Duration::from_secs_f64(shown.serial_s)
            }
            _ => watch.skip,
        };
        let shown = match ahead.take_if(|(n, _)| *n == threads) {
            Some((_, shown)) => shown,
            None => run(threads, Watch { skip, ..watch })?,
        };
        if let Some(status) = shown.interrupted {
            progress_line(shows, "");
            return Ok(Searched::Interrupted(status));
        }
        notes.extend(remarks(&shown, threads, watch));
        if let Some(busy) = shown.others_busy {
            others = (others.0 + busy * shown.window_s, others.1 + shown.window_s);
        }
        let verdict = search.record(threads, shown.trial.clone());
        rows.push(Row {
            threads,
            serial_s: shown.serial_s,
            window_s: shown.window_s,
            trial: shown.trial,
            verdict: verdict.to_string(),
        });
    };
    progress_line(shows, "");
    let busy = (others.0 / others.1).min(f64::from(limits.cpus));
    if others.1 >= OTHERS_MIN_S && busy > OTHERS_BUSY {
        notes.push(format!("other programs kept {busy:.1} CPUs busy meanwhile; the count found is for now"));
    }
    let times: Vec<(u32, f64)> =
        rows.iter().filter_map(|r| Some((r.threads, 1.0 / profile(r)?.progress?))).collect();
    let oversubscription = detect(&times, limits.cpus);
    if let Some(o) = oversubscription.filter(|o| o.others_max > 0) {
        notes.push(format!(
            "the time for the same work peaks at {} threads: others hold {} of {} CPUs (Christmann et al. 2012)",
            o.at, o.others_min, limits.cpus
        ));
    }
    let reason = match reason {
        Reason::AllFailed { .. } => format!("{reason}; try it by hand with these arguments"),
        reason => reason.to_string(),
    };
    let search_s = (now_ns() - start_ns) as f64 / 1e9;
    Ok(Searched::Found(Found { cpus: limits.cpus, rows, best, reason, search_s, oversubscription, notes }))
}

/// `1 thread`, `2 threads`.
pub(crate) fn count(threads: u32) -> String {
    format!("{threads} thread{}", if threads == 1 { "" } else { "s" })
}

/// What a user should know about a trial that was not as one expects.
fn remarks(shown: &Shown, threads: u32, watch: Watch) -> Vec<String> {
    let mut notes = Vec::new();
    let with = count(threads);
    if let Trial::Failed(why) = &shown.trial {
        notes.push(format!("with {with} the program failed ({why}); this count is left out"));
    } else if shown.ended && shown.window_s < watch.window.as_secs_f64() {
        notes.push(format!(
            "with {with} the program ended {:.0} ms into the window of {} ms; that much was measured",
            shown.window_s * 1e3,
            watch.window.as_millis()
        ));
    }
    if shown.stayed_serial && !shown.ended {
        notes.push(format!(
            "with {with} it had still one after {:.1} s: a serial start, or the count is not taken; that was \
             measured. --serial MS waits longer",
            shown.serial_s
        ));
    } else if threads > 1 && shown.serial_s > 0.2 {
        notes.push(format!("with {with} it had a serial start of {:.1} s, left out", shown.serial_s));
    }
    notes
}

/// A line on the terminal that the next one takes the place of.
fn progress_line(shows: bool, text: &str) {
    if shows && std::io::stderr().is_terminal() {
        tell(format_args!("\r\x1b[2K{text}"));
    }
}

fn profile(row: &Row) -> Option<&Profile> {
    match &row.trial {
        Trial::Ran(profile) => Some(profile),
        Trial::Failed(_) => None,
    }
}

fn series(found: &Found) -> Vec<Series> {
    let line = |name, of: &dyn Fn(&Profile) -> Option<f64>| Series {
        name,
        points: found.rows.iter().filter_map(|r| Some((r.threads, of(profile(r)?)?))).collect(),
    };
    let most = found.rows.iter().filter_map(|r| profile(r)?.progress).fold(0.0, f64::max);
    vec![
        line("progress, of the best seen", &|p| p.progress.filter(|_| most > 0.0).map(|x| x / most)),
        line("CPU utilisation", &|p| Some(p.cpu_util)),
        line("lock time", &|p| p.lock),
        line("spinning", &|p| p.spin),
    ]
}

/// Every step of a search, and why it went on or stopped; the first line begins with who says so.
pub(crate) fn table(who: &str, rows: &[Row]) -> String {
    let mut text = format!(
        "{who}: threads  CPU use   lock   spin  switches/s  migrations/s  why it went on or stopped\n"
    );
    for row in rows {
        let rate = |r: Option<f64>| r.map_or_else(|| "-".into(), |r| format!("{r:.0}"));
        let share = |s: Option<f64>| s.map_or_else(|| "-".into(), |s| format!("{:.0}%", s * 100.0));
        let figures = match &row.trial {
            Trial::Ran(p) => format!(
                "{:>7} {:>6} {:>6} {:>11} {:>13}",
                share(Some(p.cpu_util)),
                share(p.lock),
                share(p.spin),
                rate(p.voluntary_rate),
                rate(p.migration_rate)
            ),
            Trial::Failed(_) => format!("{:>47}", "failed"),
        };
        text += &format!("{:>width$} {figures}  {}\n", row.threads, row.verdict, width = who.len() + 9);
    }
    text
}

impl Found {
    /// Every step, and what came of them.
    fn table(&self) -> String {
        let mut text = table("corebeat", &self.rows);
        for note in &self.notes {
            text += &format!("  note: {note}\n");
        }
        if let Some(best) = self.best {
            text += &format!("  best: {}, found in {:.2} s\n", count(best), self.search_s);
        }
        text
    }
}
