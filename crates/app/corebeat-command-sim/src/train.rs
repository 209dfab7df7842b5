//! `corebeat train`: trains the models of the policy adapt, for this host or for a simulated
//! machine.

use crate::sim;
use corebeat_command::{Done, Failure, Output, host_name, print, print_line, require_distinct};
use corebeat_host::{Periods, Supervisor};
use corebeat_linux::{Launch, LinuxMachine, Options as Sensors, exit_as, topology};
use corebeat_machine::{Action, CpuSet, Machine, ProgramId, Snapshot, Target};
use corebeat_policy::adapt::{Fitted, Gauge, Identity, Model, Usage, places};
use corebeat_train::{Error, Samples, Simulated, Testbed, fit};
use corebeat_workload::Workload;
use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

/// Options of the command.
#[derive(clap::Args)]
pub struct Options {
    /// Train on the machine of this scenario with its programs, instead of on this host with the
    /// embedded kernels
    #[arg(long, value_name = "SCENARIO.toml")]
    scenario: Option<PathBuf>,
    /// Write the model to this file
    #[arg(short, long, value_name = "FILE", default_value = "adapt.json")]
    output: PathBuf,
    /// Observe each run for MS milliseconds, after a warm-up of a third of that time [default:
    /// 1000; with --scenario 100]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(10..=60_000))]
    window: Option<u64>,
    /// Run each kernel with N threads on this host [default: the number of CPUs]
    #[arg(
        long, value_name = "N", conflicts_with = "scenario",
        value_parser = clap::value_parser!(u32).range(1..=512)
    )]
    threads: Option<u32>,
    /// Set the seed of simulated runs
    #[arg(long, value_name = "N", default_value_t = 1, requires = "scenario")]
    seed: u64,
}

/// Accuracy below which a warning is printed, in per cent: a fifth of 50% of user time is 10
/// points, and the policy considers a configuration better from 8 points on.
const ACCURACY_MIN: f64 = 80.0;

/// Time from one sample to the next, in nanoseconds.
const SAMPLE_NS: u64 = 10_000_000;

/// Line for a training that a signal ended.
const INTERRUPTED: &str = "interrupted by a signal; no model was written";

/// Runs the command.
///
/// # Errors
/// A [`Failure`] with its exit status.
pub fn main(options: Options) -> Done {
    let scenario =
        options.scenario.as_deref().map(|path| sim::open(path, options.seed)).transpose()?;
    let create = if scenario.is_some() { Output::create_with_cleanup } else { Output::create };
    let output = create(&options.output)?;
    require_distinct(options.scenario.iter().chain([&options.output]))?;
    let (model, output) = match scenario {
        Some((scenario, _)) => {
            let window_ns = options.window.unwrap_or(100) * 1_000_000;
            let mut range = Simulated {
                machine: scenario.machine,
                programs: scenario.programs,
                warm_ns: window_ns / 3,
                window_ns,
                seed: options.seed,
            };
            let file = options.scenario.as_deref().unwrap_or(Path::new("")).display();
            let trained = range.train().map_err(|e| Failure::data(format!("{file}: {e}")))?;
            (trained, output)
        }
        None => host(&options, output)?,
    };
    output.write(&model.to_text())?;
    print(summary(&model))?;
    if let Some(accuracy) = inaccurate(&model) {
        let how = match options.scenario {
            Some(_) => "more programs or a longer --window",
            None => "a longer --window, on a machine without other load",
        };
        print_line(format_args!(
            "the accuracy for unknown programs is {accuracy}, below {ACCURACY_MIN}%: \
             adapt is likely to choose badly with this model; train with {how}"
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Accuracies of the models that are too inaccurate.
fn inaccurate(model: &Model) -> Option<String> {
    let accuracy = |(name, fitted): (&str, &Fitted)| {
        let used = fitted.scores.iter().find(|score| score.kind == fitted.formula.name())?;
        (used.accuracy < ACCURACY_MIN).then(|| format!("{:.0}% ({name})", used.accuracy))
    };
    let models = [("paap", &model.paap), ("pacc", &model.pacc)];
    let low: Vec<String> = models.into_iter().filter_map(accuracy).collect();
    (!low.is_empty()).then(|| low.join(" and "))
}

/// Table of predictors and scores.
fn summary(model: &Model) -> String {
    let mut text = format!("{}; {} programs\n", model.machine, model.programs.len());
    for (name, what, fitted) in
        [("paap", "beside another program", &model.paap), ("pacc", "on fewer cores", &model.pacc)]
    {
        let Fitted { samples, folds, predictors, inflation, scores, formula } = fitted;
        let _ = writeln!(
            text,
            "{name} ({what}): {samples} samples, {folds} folds; used: {}",
            formula.name()
        );
        let value = |p| serde_json::to_value(p).ok().and_then(|v| v.as_str().map(str::to_owned));
        for (predictor, vif) in predictors.iter().zip(inflation) {
            let _ = writeln!(text, "  {:<18} VIF {vif:.1}", value(predictor).unwrap_or_default());
        }
        for score in scores {
            let (r2, accuracy) = (score.adjusted_r2, score.accuracy);
            let _ =
                writeln!(text, "  {:<18} adjusted R2 {r2:.2}, accuracy {accuracy:.1}%", score.kind);
        }
    }
    text
}

/// Trains on this host. Exits if a signal requests the end.
fn host(options: &Options, output: Output) -> Result<(Model, Output), Failure> {
    let notes = corebeat_host::restore_killed();
    notes.into_iter().for_each(|note| print_line(format_args!("{note}")));
    let machine = LinuxMachine::new(Sensors { counters: true, spin: true, ..Sensors::default() })?;
    let identity = Identity::new(&host_name(), machine.topology());
    let cores = machine.topology().cpus().len() as u32;
    let window = Duration::from_millis(options.window.unwrap_or(1_000));
    let threads = options.threads.unwrap_or(cores);
    let mut supervisor = Supervisor::new(machine, Periods::default());
    // Until no new file is left: a second signal must not end this process earlier.
    supervisor.keep_signals()?;
    let mut range = Host { supervisor, cores, threads, window, interrupted: None };
    let samples = Samples::collect(&mut range);
    range.supervisor.machine().restore();
    if let Some(status) = range.interrupted.or(range.supervisor.end_request()) {
        drop(output);
        print_line(format_args!("{INTERRUPTED}"));
        exit_as(status)
    }
    let failed = |e: Error| match e {
        Error::Short(_) => Failure::usage(format!("{e}, or choose a shorter --window")),
        e => Failure::internal(e),
    };
    let model = fit(&samples.map_err(failed)?, identity).map_err(Failure::internal)?;
    Ok((model, output))
}

/// This host with the embedded kernels.
struct Host {
    supervisor: Supervisor,
    cores: u32,
    threads: u32,
    window: Duration,
    /// Status of the signal that requested the end, if one did.
    interrupted: Option<ExitStatus>,
}

impl Testbed for Host {
    fn programs(&self) -> Vec<String> {
        Workload::all().iter().map(|w| w.name.to_owned()).collect()
    }

    fn cores(&self) -> u32 {
        self.cores
    }

    fn run(&mut self, programs: &[usize], cores: u32) -> Result<Vec<Usage>, Error> {
        let usages = self.observe(programs, cores);
        self.interrupted = self.interrupted.or(self.supervisor.end_request());
        // However this run ended: its programs must not disturb the next one.
        let cleared = self.supervisor.clear().map_err(Error::run);
        let usages = usages?;
        cleared?;
        Ok(usages)
    }
}

impl Host {
    /// Runs programs at the same time, and returns the usage of each.
    fn observe(&mut self, programs: &[usize], cores: u32) -> Result<Vec<Usage>, Error> {
        if self.interrupted.is_some() {
            return Err(Error::run(INTERRUPTED));
        }
        let corebeat = std::env::current_exe().map_err(Error::run)?;
        let names: Vec<&str> = programs.iter().map(|&p| Workload::all()[p].name).collect();
        let mut ids = Vec::new();
        for name in &names {
            let args = ["workload", name, "--threads", &self.threads.to_string()].map(Into::into);
            let mut launch = Launch::new(corebeat.as_os_str(), args);
            let null = File::options().write(true).open("/dev/null").map_err(Error::run)?;
            launch.stdout = Some(null);
            ids.push(self.supervisor.hold(&launch).map_err(Error::run)?);
        }
        self.supervisor.release().map_err(Error::run)?;
        if cores < self.cores {
            let cpus: CpuSet = places(&topology()).into_iter().take(cores as usize).collect();
            for &id in &ids {
                let target = Target::Program(id);
                let action = Action::SetCpus { target, cpus: Some(cpus.clone()) };
                self.supervisor.machine().act(&action).map_err(Error::run)?;
            }
        }
        self.span(&ids, &names, self.window / 3)?;
        let snapshot = self.span(&ids, &names, self.window)?;
        let usage = |&id: &ProgramId| {
            let program = snapshot.program(id);
            let mut gauge = Gauge::default();
            program.into_iter().for_each(|p| gauge.add(p));
            gauge.usage()
        };
        Ok(ids.iter().map(usage).collect())
    }

    /// Observes the programs for some time, with samples.
    fn span(
        &mut self,
        ids: &[ProgramId],
        names: &[&str],
        time: Duration,
    ) -> Result<Snapshot, Error> {
        let periods = Periods { observe_ns: time.as_nanos() as u64, sample_ns: SAMPLE_NS };
        let (snapshot, _) = self.supervisor.span(periods).map_err(Error::run)?;
        if self.supervisor.end_request().is_some() {
            return Err(Error::run(INTERRUPTED));
        }
        let ended = ids.iter().position(|&id| self.supervisor.status(id).is_some());
        ended.map_or(Ok(snapshot), |at| Err(Error::Short(names[at].to_owned())))
    }
}
