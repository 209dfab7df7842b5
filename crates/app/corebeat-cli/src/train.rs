//! `corebeat train`: models for the policy adapt, of this host or of a simulated machine.

use crate::failure::{Done, Failure, print, tell};
use crate::input;
use crate::output::{self, Output};
use crate::session::{now_ns, restore_killed};
use crate::sim;
use corebeat_linux::{Launch, LinuxMachine, Options as Sensors, Signals, Started, exit_as, topology};
use corebeat_machine::{Action, CpuSet, Machine, ProgramId, Snapshot, Target};
use corebeat_policy::adapt::{Fitted, Gauge, Identity, Model, Usage, places};
use corebeat_train::{Error, Range, Samples, Simulated, fit, read, write};
use corebeat_workload::Workload;
use std::fmt::Write as _;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Train on this scenario's machine with its programs, instead of on this host with the embedded kernels
    #[arg(long, value_name = "SCENARIO.toml")]
    scenario: Option<PathBuf>,
    /// Where the model goes
    #[arg(short, long, value_name = "FILE", default_value = "adapt.json")]
    output: PathBuf,
    /// How long each run is watched, in milliseconds, after a third of that as a start [default: 1000; with --scenario 100]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(10..=60_000))]
    window: Option<u64>,
    /// How many threads each kernel has on this host [default: its CPUs]
    #[arg(long, value_name = "N", conflicts_with = "scenario", value_parser = clap::value_parser!(u32).range(1..=512))]
    threads: Option<u32>,
    /// The seed of simulated runs
    #[arg(long, value_name = "N", default_value_t = 1, requires = "scenario")]
    seed: u64,
}

/// No model is longer, in bytes.
const MODEL_MAX: u64 = 16 << 20;

/// A model that is less accurate, in per cent, is told of: a fifth of 50% of user time is 10 points, and the policy takes a
/// configuration for better from 8 points on.
const ACCURACY_MIN: f64 = 80.0;

/// From one cheap look to the next, and from one look whether a program has ended.
const GLANCE: Duration = Duration::from_millis(10);

pub(crate) fn main(options: Options) -> Done {
    let scenario = options.scenario.as_deref().map(|path| sim::open(path, options.seed)).transpose()?;
    let create = if scenario.is_some() { Output::create_alone } else { Output::create };
    let output = create(&options.output)?;
    output::distinct(options.scenario.iter().chain([&options.output]))?;
    let model = match scenario {
        Some((scenario, _)) => {
            let window_ns = options.window.unwrap_or(100) * 1_000_000;
            let (machine, programs) = (scenario.machine, scenario.programs);
            let mut range =
                Simulated { machine, programs, warm_ns: window_ns / 3, window_ns, seed: options.seed };
            let file = options.scenario.as_deref().unwrap_or(Path::new("")).display();
            range.train().map_err(|e| Failure::wrong(format!("{file}: {e}")))?
        }
        None => {
            // These stay until no new file is left: who asks for the end may ask twice.
            let signals = Signals::new().map_err(Failure::own)?;
            match (host(&options, &signals), signals.asked_to_end()) {
                (_, Some(signal)) => {
                    drop(output);
                    tell("corebeat: asked to end; no model was made\n");
                    exit_as(ExitStatus::from_raw(signal))
                }
                (model, None) => model?,
            }
        }
    };
    output.write(&write(&model))?;
    print(told(&model))?;
    if let Some(poor) = poor(&model) {
        let how = match options.scenario {
            Some(_) => "more programs, or a longer --window",
            None => "a longer --window, while nothing else runs",
        };
        tell(format_args!(
            "corebeat: the accuracy for programs that were not seen is {poor}, below {ACCURACY_MIN}%: adapt is likely to \
             choose badly by it; train with {how}\n"
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Which models are not accurate enough, and how accurate they are.
fn poor(model: &Model) -> Option<String> {
    let told = |(name, fitted): (&str, &Fitted)| {
        let used = fitted.scores.iter().find(|score| score.kind == fitted.formula.name())?;
        (used.accuracy < ACCURACY_MIN).then(|| format!("{:.0}% ({name})", used.accuracy))
    };
    let poor: Vec<String> =
        [("paap", &model.paap), ("pacc", &model.pacc)].into_iter().filter_map(told).collect();
    (!poor.is_empty()).then(|| poor.join(" and "))
}

/// Reads the model of a file that is to be used on a machine.
///
/// # Errors
/// Where it cannot be read, or is not for it.
pub(crate) fn model(path: Option<&Path>, here: &Identity) -> Result<Model, Failure> {
    let path = path.ok_or_else(|| {
        Failure::usage("adapt wants a model; write --model FILE, and make one with 'corebeat train'")
    })?;
    let shown = path.display();
    // A model is the value of an option, and is not written by hand.
    let what = "model, as 'corebeat train' makes one";
    let text = input::text(&shown.to_string(), File::open(path), MODEL_MAX, what).map_err(Failure::usage)?;
    let wrong = |e: &dyn std::fmt::Display| Failure::usage(format!("{shown}: {e}"));
    let model = read(&text).map_err(|e| wrong(&e))?;
    model.check(here).map_err(|e| wrong(&e))?;
    Ok(model)
}

/// What this host is called in a model.
pub(crate) fn host_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    name.map_or_else(|| "unknown processor".to_owned(), |(_, name)| name.trim().to_owned())
}

fn told(model: &Model) -> String {
    let mut text = format!("{}; {} programs\n", model.machine, model.programs.len());
    for (name, what, fitted) in
        [("paap", "beside another", &model.paap), ("pacc", "on fewer cores", &model.pacc)]
    {
        let Fitted { samples, folds, predictors, inflation, scores, formula } = fitted;
        let _ = writeln!(text, "{name} ({what}): {samples} samples, {folds} folds; used: {}", formula.name());
        let value = |p| serde_json::to_value(p).ok().and_then(|v| v.as_str().map(str::to_owned));
        for (predictor, vif) in predictors.iter().zip(inflation) {
            let _ = writeln!(text, "  {:<18} VIF {vif:.1}", value(predictor).unwrap_or_default());
        }
        for score in scores {
            let (r2, accuracy) = (score.adjusted_r2, score.accuracy);
            let _ = writeln!(text, "  {:<18} adjusted R2 {r2:.2}, accuracy {accuracy:.1}%", score.kind);
        }
    }
    text
}

/// Trains on this host.
fn host(options: &Options, signals: &Signals) -> Result<Model, Failure> {
    restore_killed().into_iter().for_each(|note| tell(format_args!("corebeat: {note}\n")));
    let machine = LinuxMachine::new(Sensors { counters: true, spin: true, ..Sensors::default() })?;
    let identity = Identity::new(&host_name(), machine.topology());
    let cores = machine.topology().cpus().len() as u32;
    let window = Duration::from_millis(options.window.unwrap_or(1_000));
    let threads = options.threads.unwrap_or(cores);
    let mut range = Host { machine, signals, cores, threads, window };
    let samples = Samples::collect(&mut range);
    range.machine.restore();
    let failed = |e: Error| match e {
        Error::Short(_) => Failure::usage(format!("{e}: a shorter --window does as well")),
        e => Failure::own(e),
    };
    fit(&samples.map_err(failed)?, identity).map_err(Failure::own)
}

/// This host, and the embedded kernels on it.
struct Host<'a> {
    machine: LinuxMachine,
    signals: &'a Signals,
    cores: u32,
    threads: u32,
    window: Duration,
}

impl Range for Host<'_> {
    fn programs(&self) -> Vec<String> {
        Workload::all().iter().map(|w| w.name.to_owned()).collect()
    }

    fn cores(&self) -> u32 {
        self.cores
    }

    fn run(&mut self, programs: &[usize], cores: u32) -> Result<Vec<Usage>, Error> {
        let mut started = Vec::new();
        let seen = self.watched(programs, cores, &mut started);
        // Nothing goes on beside the next run, however this one ended.
        for (id, mut program) in started {
            self.machine.signal(id, libc::SIGKILL);
            // One that was never released ends by itself.
            let _ = program.wait();
            self.machine.unwatch(id);
        }
        seen
    }
}

impl Host<'_> {
    fn watched(
        &mut self,
        programs: &[usize],
        cores: u32,
        started: &mut Vec<(ProgramId, Started)>,
    ) -> Result<Vec<Usage>, Error> {
        let own = std::env::current_exe().map_err(Error::run)?;
        let names: Vec<&str> = programs.iter().map(|&p| Workload::all()[p].name).collect();
        for name in &names {
            let args = ["workload", name, "--threads", &self.threads.to_string()].map(Into::into);
            let mut launch = Launch::new(own.as_os_str(), args);
            let nowhere = std::fs::File::options().write(true).open("/dev/null").map_err(Error::run)?;
            launch.stdout = Some(nowhere);
            let program = launch.start().map_err(Error::run)?;
            let id = self.machine.watch_launch(&program).map_err(Error::run)?;
            started.push((id, program));
        }
        Started::release_all(&mut started.iter_mut().map(|(_, program)| program).collect::<Vec<_>>())
            .map_err(Error::run)?;
        for (id, _) in &*started {
            if cores < self.cores {
                let cpus: CpuSet = places(&topology()).into_iter().take(cores as usize).collect();
                let action = Action::SetCpus { target: Target::Program(*id), cpus: Some(cpus) };
                self.machine.act(&action).map_err(Error::run)?;
            }
        }
        self.attend(started, &names, self.window / 3)?;
        let seen = self.attend(started, &names, self.window)?;
        let usage = |id: &ProgramId| {
            let program = seen.programs.iter().find(|p| p.id == *id);
            let mut gauge = Gauge::default();
            program.into_iter().for_each(|p| gauge.add(p));
            gauge.usage()
        };
        Ok(started.iter().map(|(id, _)| usage(id)).collect())
    }

    /// Watches programs for so long, glancing on the way.
    fn attend(
        &mut self,
        started: &mut [(ProgramId, Started)],
        names: &[&str],
        time: Duration,
    ) -> Result<Snapshot, Error> {
        let until_ns = now_ns() + time.as_nanos() as u64;
        while now_ns() < until_ns {
            let mut programs: Vec<&mut Started> = started.iter_mut().map(|(_, program)| program).collect();
            let ended = Started::attend_all(&mut programs, self.signals, GLANCE).map_err(Error::run)?;
            if self.signals.asked_to_end().is_some() {
                return Err(Error::run("asked to end; no model was made"));
            }
            if let Some(at) = ended.iter().position(Option::is_some) {
                return Err(Error::Short(names[at].to_owned()));
            }
            self.machine.glance();
        }
        self.machine.observe().map_err(Error::run)
    }
}
