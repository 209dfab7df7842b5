//! `corebeat tune`: Thread Reinforcer. Short runs with growing thread counts, then the full run
//! with the best count, and a comparison of repeated runs.

use crate::plot::{self, Series};
use corebeat_command::{
    Done, Failure, Output, policy_parser, print, print_error, printable, require_distinct,
    require_distinct_from_programs,
};
use corebeat_host::{
    Comparison, Difference, Ended, Found, HostTrials, OTHERS_BUSY_NOTED, PAIRS_MAX, PLACEHOLDER,
    Report, Row, RunOptions, Searched, Side, Template, Window, compare, count, percent, profile,
    split_programs, trial_table,
};
use corebeat_linux::exit_as;
use corebeat_policy::catalogue::{Environment, PolicyName, Scope};
use corebeat_policy::reinforcer::{Limits, Profile};
use corebeat_web::{Machine, State, Table};
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Set the largest thread count [default: four times the CPUs]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    max: Option<u32>,
    /// Set the first thread count
    #[arg(
        long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=65_536)
    )]
    min: u32,
    /// Set the increment of the thread count [default: a third of the CPUs]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    step: Option<u32>,
    /// Observe each short run for MS milliseconds after the start of its threads [default: 100, and
    /// 300 beside other programs]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(20..=600_000))]
    window: Option<u64>,
    /// Wait at most MS milliseconds for the threads of a short run
    #[arg(
        long, value_name = "MS", default_value_t = 2_000,
        value_parser = clap::value_parser!(u64).range(20..=600_000)
    )]
    serial: u64,
    /// Use the output of this shell command as the program's input, in each run
    #[arg(long, value_name = "CMD")]
    input: Option<String>,
    /// Set this environment variable to the thread count, for example OMP_NUM_THREADS; repeatable
    #[arg(long, value_name = "NAME")]
    env: Vec<OsString>,
    /// Write the result as one JSON object to standard output, and the program's output to standard
    /// error
    #[arg(long)]
    json: bool,
    /// Draw the measurements of each count to this SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Write a page for browsers to this file: the short runs, and the full run over time
    #[arg(long, value_name = "FILE", conflicts_with = "search_only")]
    html: Option<PathBuf>,
    /// Skip the full run
    #[arg(long)]
    search_only: bool,
    /// Compare the program as it is with the chosen settings after the full run, by N runs of each;
    /// at least 6 runs can show a difference
    #[arg(
        long, value_name = "N",
        value_parser = clap::value_parser!(u32).range(2..=i64::from(PAIRS_MAX))
    )]
    repeat: Option<u32>,
    /// Choose the policy that acts on the full run
    #[arg(long, value_parser = policy_parser(Environment::Run), default_value = "auto")]
    policy: PolicyName,
    /// Program with its arguments, after --; {threads} is replaced by the thread count
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Part of the searched value below which a full run is reported as worse.
const WORSE: f64 = 0.8;

/// Loss of CPU utilisation below which a full run is not reported as worse.
const CPU_UTIL_LOSS: f64 = 0.1;

#[derive(Serialize)]
struct Tuned {
    command: Vec<String>,
    #[serde(flatten)]
    found: Found,
    run: Option<Report>,
    /// Part of the search in the time of search and run together.
    search_share: Option<f64>,
    comparison: Option<Comparison>,
}

/// Whether a name is one of a variable: letters, digits and underscores, without a digit at the
/// start (POSIX, Environment Variables).
fn is_variable_name(name: &OsStr) -> bool {
    let is_valid = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let bytes = name.as_encoded_bytes();
    bytes.first().is_some_and(|first| !first.is_ascii_digit()) && bytes.iter().all(is_valid)
}

/// Checks the command line, and returns what the search needs.
fn prepare(options: &Options) -> Result<(Template, Limits, Window), Failure> {
    if options.policy.entry().scope != Scope::OneProgram {
        return Err(Failure::usage(format!(
            "the policy {} is for several programs; use 'corebeat run'",
            options.policy
        )));
    }
    let mut programs = split_programs(&options.command, PolicyName::None)?;
    let command = programs.pop().unwrap_or_default();
    if !programs.is_empty() {
        return Err(Failure::usage(
            "a search accepts one program, and '--' separates two; write '\\--' for an argument \
             '--'",
        ));
    }
    let template = Template { command, env: options.env.clone(), input: options.input.clone() };
    if !template.takes_threads() {
        return Err(Failure::usage(format!(
            "the program gets no thread count; write {PLACEHOLDER} in its arguments, or name a \
             variable with --env"
        )));
    }
    if let Some(name) = template.env.iter().find(|name| !is_variable_name(name)) {
        return Err(Failure::usage(format!(
            "'{}' is not a variable name; write a name such as OMP_NUM_THREADS",
            name.to_string_lossy()
        )));
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
        let Limits { min, max, .. } = limits;
        return Err(Failure::usage(format!("--max {max} is below --min {min}; increase --max")));
    }
    let length = options.window.map(Duration::from_millis);
    let window = Window::new(cpus, length, Duration::from_millis(options.serial));
    Ok((template, limits, window))
}

pub(crate) fn main(options: Options) -> Done {
    let (template, limits, window) = prepare(&options)?;
    let outputs = || options.plot.iter().chain(&options.html);
    require_distinct(outputs())?;
    for file in outputs() {
        require_distinct_from_programs([template.command.as_slice()], file)?;
    }
    let plot = options.plot.as_deref().map(Output::create).transpose()?;
    let html = options.html.as_deref().map(Output::create).transpose()?;
    let found = match search(&template, limits, window, true)? {
        Searched::Found(found) => found,
        Searched::Interrupted(status) => {
            drop((plot, html));
            exit_as(status)
        }
    };
    let series = series(&found);
    let command = template.command(found.best.unwrap_or(limits.min));
    let title = command[0].to_string_lossy();
    let drawn = plot.map_or(Ok(()), |file| plot::svg(file, &title, &series));
    if !options.json {
        print_error(summary(&found) + &plot::terminal(&series));
    }
    let mut tuned = Tuned {
        command: template.command.iter().map(|c| c.to_string_lossy().into_owned()).collect(),
        found,
        run: None,
        search_share: None,
        comparison: None,
    };
    let ended = match tuned.found.best.filter(|_| !options.search_only) {
        Some(best) => Some(full_run(&options, &template, best, &mut tuned)?),
        None => None,
    };
    let compared = compare_repeated(&options, &template, &mut tuned);
    let written = html.map_or(Ok(()), |file| write_page(&tuned, file));
    let printed = match options.json {
        true => serde_json::to_string(&tuned)
            .map_err(Failure::internal)
            .and_then(|text| print(text + "\n")),
        false => Ok(()),
    };
    match ended {
        // The exit status of the program has precedence over output that cannot be written.
        Some(status) => {
            [drawn, compared, written, printed].into_iter().filter_map(Result::err).for_each(
                |failure| {
                    failure.report();
                },
            );
            exit_as(status)
        }
        None if tuned.found.best.is_none() => Err(Failure::internal(&tuned.found.reason)),
        None => drawn.and(compared).and(written).and(printed).map(|()| ExitCode::SUCCESS),
    }
}

/// Writes the page of the full run, with the short runs before it.
fn write_page(tuned: &Tuned, file: Output) -> Result<(), Failure> {
    // Without a full run, the program failed with every count, and the failure is reported.
    let Some(run) = &tuned.run else { return Ok(()) };
    let json = serde_json::to_value(tuned).map_err(Failure::internal)?;
    let mut state = State::of_run(run, json, Machine::of_host());
    let number = |n: Option<f64>| n.map_or("–".into(), |n| format!("{n:.0}"));
    let row = |row: &Row| {
        let profile = profile(&row.trial);
        let of = |figure: fn(&Profile) -> Option<f64>| profile.and_then(figure);
        vec![
            row.threads.to_string(),
            percent(profile.map(|p| p.cpu_util)),
            percent(of(|p| p.lock)),
            percent(of(|p| p.spin)),
            number(of(|p| p.voluntary_rate)),
            number(of(|p| p.migration_rate)),
            row.verdict.clone(),
        ]
    };
    let head = [
        "Threads",
        "CPU use",
        "Lock",
        "Spin",
        "Switches/s",
        "Migrations/s",
        "Why it went on or stopped",
    ];
    state.tables.push(Table {
        title: "Short runs of the search".into(),
        head: head.map(str::to_owned).to_vec(),
        rows: tuned.found.rows.iter().map(row).collect(),
    });
    file.write(&state.file_page().map_err(Failure::internal)?)
}

/// Compares repeated runs of the program as it is and with the best count, as far as the options
/// request a comparison and the full run succeeded.
fn compare_repeated(
    options: &Options,
    template: &Template,
    tuned: &mut Tuned,
) -> Result<(), Failure> {
    let has_failed = |run: &Report| run.total.ended != Ended::Exit(0) || run.end_request.is_some();
    if tuned.run.as_ref().is_some_and(has_failed) {
        return Ok(());
    }
    let (Some(pairs), Some(best)) = (options.repeat, tuned.found.best) else { return Ok(()) };
    let mut number = 0;
    let compared = compare(pairs, |side| {
        number += 1;
        progress_line(true, &format!("run {number} of {} ...", 2 * pairs));
        repeated_run(options, template, best, tuned.found.cpus, side)
    });
    progress_line(true, "");
    let comparison = compared?;
    if !options.json {
        print_error(comparison_text(&comparison, best));
    }
    tuned.comparison = Some(comparison);
    Ok(())
}

/// Runs the program once, without input from Corebeat's standard input and without output. Returns
/// its time in seconds. Exits if a signal requested the end of Corebeat.
fn repeated_run(
    options: &Options,
    template: &Template,
    best: u32,
    cpus: u32,
    side: Side,
) -> Result<f64, Failure> {
    let silent =
        RunOptions { input: template.open_input()?, is_silent: true, ..RunOptions::default() };
    let (status, report) = corebeat_host::run(match side {
        Side::AsIs => {
            RunOptions { programs: vec![template.command(cpus)], counters: false, ..silent }
        }
        Side::Chosen => RunOptions {
            programs: vec![template.command(best)],
            env: template.env(best),
            policy: options.policy,
            ..silent
        },
    })?;
    if let Some(status) = report.end_request {
        exit_as(status);
    }
    if !status.success() {
        let settings = match side {
            Side::AsIs => "as it is",
            Side::Chosen => "with the chosen settings",
        };
        return Err(Failure::internal(format!(
            "the program {settings} failed ({}) in a repeated run, so there is no comparison; run \
             it by hand to see why",
            report.total.ended
        )));
    }
    Ok(report.total.wall_s)
}

/// Medians, ratio and interval of a comparison, and the difference if one was shown.
fn comparison_text(found: &Comparison, best: u32) -> String {
    let Comparison { as_is_s, chosen_s, ratio, interval: (low, high), coverage, .. } = found;
    let difference = match found.difference {
        Some(Difference::Shorter) => "the chosen settings take less time",
        Some(Difference::Longer) => "the chosen settings take more time",
        None if found.has_too_few_pairs() => {
            "no difference was shown: fewer than 6 runs of each have no interval of 95%"
        }
        None => "no difference was shown",
    };
    format!(
        "  comparison  {} runs of each: as it is {as_is_s:.3} s, with {} {chosen_s:.3} s (medians)\n  \
         {:10}  ratio {ratio:.3}, interval {low:.3} to {high:.3} (coverage {:.1}%)\n  \
         {:10}  {difference}\n",
        found.pairs_s.len(),
        count(best),
        "",
        coverage * 100.0,
        "",
    )
}

/// Runs the program with the best count.
fn full_run(
    options: &Options,
    template: &Template,
    best: u32,
    tuned: &mut Tuned,
) -> Result<ExitStatus, Failure> {
    let (status, mut report) = corebeat_host::run(RunOptions {
        programs: vec![template.command(best)],
        policy: options.policy,
        env: template.env(best),
        input: template.open_input()?,
        stdout: if options.json { Some(standard_error()?) } else { None },
        history: options.html.is_some(),
        ..RunOptions::default()
    })?;
    if status.success() {
        let best = tuned.found.best_profile();
        report.notes.extend(best.and_then(|best| Reached::of(&report).worse_than(best)));
    }
    tuned.search_share = Some(tuned.found.search_s / (tuned.found.search_s + report.total.wall_s));
    if !options.json {
        print_error(format_args!(
            "{report}  the search  took {:.2} s, {} of the whole time\n",
            tuned.found.search_s,
            percent(tuned.search_share)
        ));
    }
    tuned.run = Some(report);
    Ok(status)
}

/// Useful work of a whole run per second, and its CPU use.
struct Reached {
    progress: Option<f64>,
    cpu_util: Option<f64>,
    others_busy: Option<f64>,
}

impl Reached {
    fn of(report: &Report) -> Reached {
        let total = &report.total;
        let user = total.shares.user.filter(|user| *user > 0.0);
        let spinning = user.map_or(0.0, |user| total.shares.spin.unwrap_or(0.0) / user);
        let instructions = total.counters.instructions.filter(|_| total.wall_s > 0.0);
        Reached {
            progress: instructions
                .map(|count| count as f64 * (1.0 - spinning).clamp(0.0, 1.0) / total.wall_s),
            cpu_util: total.cpus_busy.map(|busy| busy / report.cpus.max(1) as f64),
            others_busy: report.others_busy,
        }
    }

    /// A note if the run is worse than the short run with the same thread count: in measured
    /// progress, or in CPU utilisation where progress is not measured.
    fn worse_than(&self, best: &Profile) -> Option<String> {
        let (what, searched, reached) = match (best.progress, self.progress, self.cpu_util) {
            (Some(searched), Some(reached), _) => ("progress per second", searched, reached),
            (_, _, Some(reached)) if best.cpu_util - reached >= CPU_UTIL_LOSS => {
                ("CPU use", best.cpu_util, reached)
            }
            _ => return None,
        };
        if searched <= 0.0 || reached >= searched * WORSE {
            return None;
        }
        let cause = match self.others_busy.filter(|busy| *busy > OTHERS_BUSY_NOTED) {
            Some(busy) => {
                format!("other programs kept {busy:.1} CPUs busy; repeat on a quiet machine")
            }
            None => "the program has a serial start or phases that the short run does not show; \
                     --window MS observes more"
                .into(),
        };
        Some(format!(
            "the full run is worse than the short run: its {what} is {:.0}% of the searched value; \
             {cause}",
            reached / searched * 100.0
        ))
    }
}

/// A duplicate of standard error.
fn standard_error() -> Result<File, Failure> {
    let own = std::io::stderr().as_fd().try_clone_to_owned();
    own.map(File::from)
        .map_err(|e| Failure::internal(format!("standard error cannot be used: {e}")))
}

/// Searches for the best thread count on this host.
pub(crate) fn search(
    template: &Template,
    limits: Limits,
    window: Window,
    shows: bool,
) -> Result<Searched, Failure> {
    let mut trials = HostTrials::new(template)?;
    let mut progress = |text: &str| progress_line(shows, text);
    Ok(corebeat_host::search(&mut trials, limits, window, &mut progress)?)
}

/// Replaces the present line on the terminal.
pub(crate) fn progress_line(shows: bool, text: &str) {
    if shows && std::io::stderr().is_terminal() {
        print_error(format_args!("\r\x1b[2K{text}"));
    }
}

fn series(found: &Found) -> Vec<Series> {
    let line = |name, of: &dyn Fn(&Profile) -> Option<f64>| {
        let point = |row: &Row| Some((row.threads, of(profile(&row.trial)?)?));
        Series { name, points: found.rows.iter().filter_map(point).collect() }
    };
    let rates = found.rows.iter().filter_map(|row| profile(&row.trial)?.progress);
    let most = rates.fold(0.0, f64::max);
    vec![
        line("progress, relative to the best count", &|p| {
            p.progress.filter(|_| most > 0.0).map(|x| x / most)
        }),
        line("CPU utilisation", &|p| Some(p.cpu_util)),
        line("lock time", &|p| p.lock),
        line("spinning", &|p| p.spin),
    ]
}

/// Every trial, the notes, and the best count.
fn summary(found: &Found) -> String {
    let mut text = trial_table("corebeat", &found.rows);
    for note in &found.notes {
        text += &format!("  note: {}\n", printable(note));
    }
    if let Some(best) = found.best {
        text += &format!("  best: {}, found in {:.2} s\n", count(best), found.search_s);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparison_states_a_difference_only_if_one_was_shown() {
        let text = |ratio: f64, pairs| {
            let run = |side| Ok::<f64, ()>(if side == Side::AsIs { 2.0 } else { 2.0 * ratio });
            comparison_text(&compare(pairs, run).unwrap(), 3)
        };
        let shorter = "  comparison  6 runs of each: as it is 2.000 s, with 3 threads 1.000 s \
                       (medians)\n              ratio 0.500, interval 0.500 to 0.500 (coverage \
                       96.9%)\n              the chosen settings take less time\n";
        assert_eq!(text(0.5, 6), shorter);
        assert!(text(1.5, 10).ends_with("  the chosen settings take more time\n"));
        assert!(text(1.0, 10).ends_with("  no difference was shown\n"));
        let few = text(0.5, 4);
        assert!(few.contains("(coverage 87.5%)") && few.contains("shown: fewer than 6"), "{few}");
        assert!(!few.contains("less time"), "{few}");
    }

    #[test]
    fn full_run_worse_than_the_searched_value_is_reported_with_its_cause() {
        let profile = |cpu_util, progress| Profile { cpu_util, progress, ..Profile::default() };
        let run = |progress, cpu_util, busy| Reached {
            progress,
            cpu_util: Some(cpu_util),
            others_busy: Some(busy),
        };
        let measured = profile(1.0, Some(100.0));
        assert_eq!(run(Some(90.0), 0.2, 0.0).worse_than(&measured), None, "progress decides");
        let note = run(Some(60.0), 1.0, 1.5).worse_than(&measured).unwrap();
        assert!(note.contains("60% of the searched value; other programs kept 1.5"), "{note}");
        let unmeasured = profile(0.9, None);
        assert_eq!(run(None, 0.85, 0.0).worse_than(&unmeasured), None);
        let note = run(None, 0.45, 0.0).worse_than(&unmeasured).unwrap();
        assert!(note.contains("CPU use is 50%") && note.contains("serial start"), "{note}");
        assert_eq!(run(None, 0.01, 0.0).worse_than(&profile(0.05, None)), None, "small values");
    }
}
