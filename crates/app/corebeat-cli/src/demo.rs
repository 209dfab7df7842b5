//! `corebeat demo`: the embedded kernels without and with Corebeat, side by side.
//!
//! Each kernel runs with too many threads and with one thread for each CPU as it is, then with the
//! thread count that Corebeat finds, under its policies. A run that other programs disturb is
//! repeated.

mod goals;

use crate::tune;
use corebeat_command::{Done, Failure, print};
use corebeat_host::{
    Disturbance, Found, OTHERS_BUSY_NOTED, RunOptions, Searched, Template, Window, count,
};
use corebeat_linux::exit_as;
use corebeat_policy::catalogue::PolicyName;
use corebeat_policy::reinforcer::Limits;
use corebeat_workload::{THREADS_MAX, Workload};
use rustix::fs::{MemfdFlags, memfd_create};
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitCode;
use std::time::Duration;

/// Seconds after which a run without Corebeat is ended: threads that spin for each other on too few
/// CPUs may take hours.
const PLAIN_MAX_S: u32 = 12;

/// The same for the first kernel, so that the first row is complete within 20 s.
const FIRST_PLAIN_MAX_S: u32 = 7;

/// Threads for each CPU in the run with too many threads: a count that suits a machine four times
/// as large.
const BEFORE_PER_CPU: u32 = 4;

/// Number of repetitions of a disturbed run.
const REPEATS_MAX: u32 = 2;

/// A run that takes this many times as long as the best run without Corebeat is reported.
const WORSE: f64 = 1.05;

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Options {
    #[command(subcommand)]
    other: Option<Other>,
    /// Kernels to run [default: all]
    name: Vec<String>,
    /// Set the amount of work of each run: 1 is eight to ten seconds of one core
    #[arg(short, long, default_value_t = 0.5)]
    scale: f64,
}

#[derive(clap::Subcommand)]
enum Other {
    /// Run pairs of programs with heart rate goals, without and with steering
    #[command(alias = "pulse")]
    Goals(goals::Options),
    /// Trace the transactions of a bank, export the trace, and open it with babeltrace2
    #[cfg(feature = "all-commands")]
    Trace(corebeat_command_trace::demo::Options),
}

/// A run of a kernel.
#[derive(Debug, Clone, PartialEq)]
struct Ran {
    wall_s: f64,
    /// Result that the kernel printed, unless the run was ended early.
    checksum: Option<String>,
    /// CPUs that other programs kept busy.
    others_busy: Option<f64>,
}

impl Ran {
    /// Seconds, with `>` for a run that was ended early.
    fn text(&self) -> String {
        format!("{}{:.2}", if self.checksum.is_none() { ">" } else { "" }, self.wall_s)
    }
}

/// Runs of one kernel: on this host, or a fake for tests.
trait Bench {
    /// Runs the kernel without policies, and ends the run after some seconds.
    fn plain(&mut self, kernel: &str, threads: u32, limit_s: u32) -> Result<Ran, Failure>;

    /// Searches for the best thread count.
    fn search(&mut self, kernel: &str) -> Result<Found, Failure>;

    /// Runs the kernel under all policies.
    fn steered(&mut self, kernel: &str, threads: u32) -> Result<Ran, Failure>;
}

pub(crate) fn main(options: Options) -> Done {
    match options.other {
        Some(Other::Goals(options)) => return goals::main(options),
        #[cfg(feature = "all-commands")]
        Some(Other::Trace(options)) => return corebeat_command_trace::demo::main(&options),
        None => {}
    }
    corebeat_workload::Size::scaled(options.scale).map_err(Failure::usage)?;
    let by_name = |name: &String| {
        let workload = Workload::by_name(name).ok_or_else(|| {
            Failure::usage(format!("there is no workload '{name}'; 'corebeat workload' lists them"))
        });
        workload.map(|workload| workload.name)
    };
    let kernels: Vec<&str> = match options.name.is_empty() {
        true => Workload::all().iter().map(|workload| workload.name).collect(),
        false => options.name.iter().map(by_name).collect::<Result<_, _>>()?,
    };
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let cpus = cpus.min(THREADS_MAX as u32);
    let corebeat = std::env::current_exe().map_err(Failure::internal)?;
    let mut host = Host { corebeat: corebeat.into(), scale: options.scale, cpus };
    let mut show = |text: &str| {
        print(text).and_then(|()| std::io::stdout().flush().map_err(Failure::internal))
    };
    demo(&kernels, cpus, &mut host, &mut show)?;
    Ok(ExitCode::SUCCESS)
}

type Show<'a> = &'a mut dyn FnMut(&str) -> Result<(), Failure>;

/// Runs the kernels one after the other, and prints a row for each as soon as its runs are done.
fn demo(kernels: &[&str], cpus: u32, bench: &mut impl Bench, show: Show) -> Result<(), Failure> {
    let many = (cpus * BEFORE_PER_CPU).min(THREADS_MAX as u32);
    show(&format!(
        "Each kernel: {many} threads and {cpus} threads as they are, then the count that Corebeat \
         finds, under its\npolicies. {cpus} CPUs; seconds from start to end; 'of {many}' and 'of \
         {cpus}' compare Corebeat's run with those.\n\n\
         {:<18} {:>11} {:>11}   {:>10} {:>7} {:>7}   {:>7} {:>7}\n",
        "kernel",
        format!("{many} threads"),
        format!("{cpus} threads"),
        "Corebeat",
        "threads",
        "search",
        format!("of {many}"),
        format!("of {cpus}")
    ))?;
    let (mut logs, mut others) = ((0.0, 0.0), 0.0);
    let mut disturbance = Disturbance::new(cpus);
    for (at, kernel) in kernels.iter().enumerate() {
        let limit_s = if at == 0 { FIRST_PLAIN_MAX_S } else { PLAIN_MAX_S };
        let row = Row::run(kernel, [many, cpus], limit_s, bench, &mut disturbance, show)?;
        row.notes([many, cpus]).iter().try_for_each(|note| show(&format!("  note: {note}\n")))?;
        let [of_many, of_cpus] = row.ratios();
        logs = (logs.0 + of_many.ln(), logs.1 + of_cpus.ln());
        others += row.after.others_busy.unwrap_or(0.0);
    }
    let n = kernels.len() as f64;
    show(&format!(
        "\n{:<76} {:>6.2}x {:>6.2}x\n\
         Each kernel had the same result in all runs. One run each; 'cargo run --release -p bench' \
         repeats runs and measures their spread.\n",
        "geometric mean",
        (logs.0 / n).exp(),
        (logs.1 / n).exp()
    ))?;
    if others / n > OTHERS_BUSY_NOTED {
        show(&format!(
            "Other programs kept {:.1} CPUs busy: these figures hold for this load, and differ on \
             a quiet machine.\n",
            others / n
        ))?;
    }
    Ok(())
}

/// All runs of one kernel.
struct Row {
    kernel: String,
    /// With too many threads, and with one for each CPU.
    before: [Ran; 2],
    found: Found,
    best: u32,
    after: Ran,
    /// Number of repeated runs, and whether a run stayed disturbed.
    repeated: u32,
    stayed_disturbed: bool,
}

impl Row {
    /// Runs a kernel in all ways, and prints each figure as soon as it is known.
    fn run(
        kernel: &str,
        threads: [u32; 2],
        limit_s: u32,
        bench: &mut impl Bench,
        disturbance: &mut Disturbance,
        show: Show,
    ) -> Result<Row, Failure> {
        let (mut repeated, mut stayed_disturbed) = (0, false);
        let mut quiet = |run: &mut dyn FnMut() -> Result<Ran, Failure>| {
            let (ran, repeats, disturbed) = repeat(disturbance, run)?;
            repeated += repeats;
            stayed_disturbed |= disturbed;
            Ok::<Ran, Failure>(ran)
        };
        show(&format!("{kernel:<18}"))?;
        let many = quiet(&mut || bench.plain(kernel, threads[0], limit_s))?;
        show(&format!(" {:>11}", many.text()))?;
        let one_each = quiet(&mut || bench.plain(kernel, threads[1], limit_s))?;
        show(&format!(" {:>11}", one_each.text()))?;
        let found = bench.search(kernel)?;
        let best = found.best.ok_or_else(|| Failure::internal(&found.reason))?;
        let after = quiet(&mut || bench.steered(kernel, best))?;
        let row = Row {
            kernel: kernel.into(),
            before: [many, one_each],
            found,
            best,
            after,
            repeated,
            stayed_disturbed,
        };
        let [of_many, of_cpus] = row.ratios();
        show(&format!(
            "   {:>10.2} {best:>7} {:>6.2}s   {of_many:>6.2}x {of_cpus:>6.2}x\n",
            row.after.wall_s, row.found.search_s
        ))?;
        let differs = |run: &Ran| {
            run.checksum.as_ref().is_some_and(|sum| Some(sum) != row.after.checksum.as_ref())
        };
        if row.before.iter().any(differs) {
            return Err(Failure::internal(format!(
                "{kernel} had different results in different runs; please report this"
            )));
        }
        Ok(row)
    }

    /// Time with Corebeat, relative to both runs without.
    fn ratios(&self) -> [f64; 2] {
        [0, 1].map(|at| self.after.wall_s / self.before[at].wall_s)
    }

    /// Remark on the row.
    fn notes(&self, threads: [u32; 2]) -> Vec<String> {
        let kernel = &self.kernel;
        let mut notes = vec![];
        if self.repeated > 0 {
            let (runs, s) = (self.repeated, if self.repeated == 1 { "" } else { "s" });
            notes.push(format!(
                "{kernel}: other programs disturbed {runs} run{s}; Corebeat repeated the run{s}"
            ));
        }
        if self.found.rows.iter().any(|row| row.repeated > 0) {
            notes.push(format!(
                "{kernel}: other programs disturbed the search; Corebeat repeated its short runs"
            ));
        }
        if self.stayed_disturbed {
            notes.push(format!(
                "{kernel}: a run stayed disturbed after {REPEATS_MAX} repetitions; do not compare \
                 this row"
            ));
        }
        let best = if self.ratios()[1] >= self.ratios()[0] { 1 } else { 0 };
        let (ratio, before) = (self.ratios()[best], &self.before[best]);
        if before.checksum.is_some() && ratio > WORSE {
            let busy = self.after.others_busy.filter(|busy| *busy > OTHERS_BUSY_NOTED);
            let cause = busy.map_or(String::new(), |busy| {
                format!("; other programs kept {busy:.1} CPUs busy in the last run")
            });
            notes.push(format!(
                "{kernel}: {} under Corebeat took {ratio:.2} times as long as {} without: worse \
                 than the search predicts{cause}",
                count(self.best),
                count(threads[best])
            ));
        }
        notes
    }
}

/// Runs until other programs are as quiet as in the quietest run so far, and at most
/// [`REPEATS_MAX`] times more. Returns the quietest run, the number of repetitions, and whether
/// that run was disturbed.
fn repeat(
    disturbance: &mut Disturbance,
    run: &mut dyn FnMut() -> Result<Ran, Failure>,
) -> Result<(Ran, u32, bool), Failure> {
    let mut ran = run()?;
    disturbance.add(ran.others_busy);
    let mut repeats = 0;
    while disturbance.is_disturbed(ran.others_busy) && repeats < REPEATS_MAX {
        repeats += 1;
        let again = run()?;
        disturbance.add(again.others_busy);
        if again.others_busy <= ran.others_busy {
            ran = again;
        }
    }
    let disturbed = disturbance.is_disturbed(ran.others_busy);
    Ok((ran, repeats, disturbed))
}

/// Result in the output of a workload.
fn checksum(text: &str) -> Result<String, Failure> {
    let found = text.split("checksum ").nth(1).and_then(|rest| rest.split(',').next());
    found.map(str::to_owned).ok_or_else(|| {
        Failure::internal(format!("a workload printed '{}' instead of a result", text.trim()))
    })
}

/// Kernels as child processes on this host.
struct Host {
    /// Path of this program, which contains the kernels.
    corebeat: OsString,
    scale: f64,
    cpus: u32,
}

impl Host {
    fn template(&self, kernel: &str) -> Template {
        let scale = self.scale.to_string();
        let words = ["workload", kernel, "--threads", "{threads}", "--scale", &scale];
        let words = words.iter().map(|word| OsString::from(*word));
        let command = [self.corebeat.clone()].into_iter().chain(words).collect();
        Template { command, env: vec![], input: None }
    }

    /// Runs a command under a policy. Exits as the command if a signal other than its own time
    /// limit ended it.
    fn run(
        &self,
        command: Vec<OsString>,
        policy: PolicyName,
        counters: bool,
    ) -> Result<Ran, Failure> {
        let memory = memfd_create("corebeat-demo", MemfdFlags::CLOEXEC).map(File::from);
        let mut printed = memory.map_err(|e| {
            Failure::internal(format!("cannot allocate memory for the output of a workload: {e}"))
        })?;
        let (status, report) = corebeat_host::run(RunOptions {
            programs: vec![command],
            policy,
            counters,
            stdout: Some(printed.try_clone().map_err(Failure::internal)?),
            ..RunOptions::default()
        })?;
        let (wall_s, others_busy) = (report.total.wall_s, report.others_busy);
        if status.signal() == Some(libc::SIGALRM) {
            return Ok(Ran { wall_s, checksum: None, others_busy });
        }
        if !status.success() {
            exit_as(status);
        }
        let mut text = String::new();
        let read = printed.rewind().and_then(|()| printed.read_to_string(&mut text));
        read.map_err(Failure::internal)?;
        Ok(Ran { wall_s, checksum: Some(checksum(&text)?), others_busy })
    }
}

impl Bench for Host {
    fn plain(&mut self, kernel: &str, threads: u32, limit_s: u32) -> Result<Ran, Failure> {
        // The workload ends itself: it must not outlive a demo that is killed.
        let mut command = self.template(kernel).command(threads);
        command.extend(["--limit".into(), limit_s.to_string().into()]);
        self.run(command, PolicyName::None, false)
    }

    fn search(&mut self, kernel: &str) -> Result<Found, Failure> {
        let window = Window::new(self.cpus, None, Duration::from_millis(2_000));
        match tune::search(&self.template(kernel), Limits::of(self.cpus), window, false)? {
            Searched::Found(found) => Ok(found),
            Searched::Interrupted(status) => exit_as(status),
        }
    }

    fn steered(&mut self, kernel: &str, threads: u32) -> Result<Ran, Failure> {
        self.run(self.template(kernel).command(threads), PolicyName::Auto, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// Runs whose times and loads are given in advance, by the number of the run.
    struct Fake<'a> {
        shown: &'a RefCell<String>,
        runs: Vec<(f64, f64)>,
        next: usize,
        /// Printed lines at the start of each kernel, and time since the start of the demo.
        starts: Vec<(usize, f64)>,
        time_s: f64,
    }

    impl<'a> Fake<'a> {
        fn new(shown: &'a RefCell<String>, runs: &[(f64, f64)]) -> Fake<'a> {
            Fake { shown, runs: runs.to_vec(), next: 0, starts: vec![], time_s: 0.0 }
        }

        fn ran(&mut self, limit_s: f64) -> Ran {
            let (wall_s, busy) = self.runs.get(self.next).copied().unwrap_or((2.0, 0.0));
            self.next += 1;
            self.time_s += wall_s.min(limit_s);
            let checksum = (wall_s < limit_s).then(|| "c".into());
            Ran { wall_s: wall_s.min(limit_s), checksum, others_busy: Some(busy) }
        }
    }

    impl Bench for Fake<'_> {
        fn plain(&mut self, _: &str, threads: u32, limit_s: u32) -> Result<Ran, Failure> {
            if threads == 8 {
                self.starts.push((self.shown.borrow().lines().count(), self.time_s));
            }
            Ok(self.ran(f64::from(limit_s)))
        }

        fn search(&mut self, _: &str) -> Result<Found, Failure> {
            self.time_s += 1.0;
            Ok(Found {
                cpus: 2,
                rows: vec![],
                best: Some(2),
                reason: String::new(),
                search_s: 1.0,
                oversubscription: None,
                notes: vec![],
            })
        }

        fn steered(&mut self, _: &str, _: u32) -> Result<Ran, Failure> {
            Ok(self.ran(f64::INFINITY))
        }
    }

    /// Output of a demo of two kernels, and the fake after it.
    fn shown(runs: &[(f64, f64)]) -> (String, Vec<(usize, f64)>, usize) {
        let text = RefCell::new(String::new());
        let mut fake = Fake::new(&text, runs);
        let mut show = |more: &str| {
            text.borrow_mut().push_str(more);
            Ok(())
        };
        demo(&["a", "b"], 2, &mut fake, &mut show).unwrap();
        let (starts, made) = (fake.starts, fake.next);
        (text.into_inner(), starts, made)
    }

    #[test]
    fn first_row_is_complete_before_the_second_kernel_and_within_20_s() {
        // The run with too many threads would take an hour.
        let (text, starts, _) = shown(&[(3600.0, 0.0), (5.0, 0.0), (5.0, 0.0)]);
        let (lines, time_s) = starts[1];
        let row = text.lines().nth(lines - 2).unwrap();
        assert!(row.starts_with("a ") && row.ends_with('x'), "{text}");
        assert!(time_s < 20.0, "{time_s} s");
    }

    #[test]
    fn disturbed_run_is_repeated_and_noted() {
        // A burst of load disturbs the second run of `a`, but not its repetition.
        let (text, _, made) = shown(&[(2.0, 0.0), (9.0, 1.5), (2.0, 0.1)]);
        assert_eq!(made, 7, "{text}");
        assert!(text.contains("a: other programs disturbed 1 run; Corebeat repeated"), "{text}");
        assert!(!text.contains("worse than"), "{text}");
    }

    #[test]
    fn run_that_stays_disturbed_is_noted() {
        let (text, _, made) = shown(&[(2.0, 0.0), (2.0, 0.0), (9.0, 1.0), (9.0, 1.0), (9.0, 1.0)]);
        assert_eq!(made, 8, "{text}");
        assert!(text.contains("stayed disturbed"), "{text}");
    }

    #[test]
    fn final_run_slower_than_without_corebeat_is_noted() {
        let (text, ..) = shown(&[(4.0, 0.0), (2.0, 0.0), (3.28, 0.0)]);
        let note = "a: 2 threads under Corebeat took 1.64 times as long as 2 threads without";
        assert!(text.contains(note), "{text}");
        assert!(!shown(&[]).0.contains("note"), "a quiet demo has no notes");
    }

    #[test]
    fn checksum_is_found_or_the_output_is_reported() {
        assert_eq!(checksum("triad: checksum 00ff, 3 x").unwrap(), "00ff");
        assert!(checksum("no such thing").unwrap_err().to_string().contains("no such thing"));
    }
}
