//! `corebeat sim run`: runs a scenario on a simulated machine, with policies, and reports the
//! outcome.

mod compare;
mod reinforcer;

use corebeat_command::{
    Done, Failure, Output, policy_parser, print, print_line, read_model, read_text,
    require_distinct,
};
use corebeat_host::{Loop, Periods};
use corebeat_machine::{AppliedAction, Clock, Machine, Policy};
use corebeat_policy::adapt::Model;
use corebeat_policy::catalogue::{
    CatalogueError, Context, Environment, Instance, Need, PolicyName, check_combination,
};
use corebeat_sim::{Outcome, Scenario, SetOutcome, SimClock, SimMachine, Step};
use reinforcer::{Ran, SimTrials, Tuned};
use serde_json::json;
use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Subcommand)]
/// Subcommands of `corebeat sim`.
pub enum Command {
    /// Run a scenario on a simulated machine, and report the outcome of its programs
    Run(Options),
    /// Run the same programs on this host and on its model, and report the differences (takes half
    /// a minute)
    Compare,
    /// Run a program of compare
    #[command(hide = true)]
    Play(compare::Played),
}

/// Options of `corebeat sim run`.
#[derive(clap::Args)]
pub struct Options {
    /// Scenario: a machine and its programs, in TOML
    #[arg(value_name = "SCENARIO.toml")]
    scenario: PathBuf,
    /// Use this policy instead of those that the scenario names; may be repeated
    #[arg(long, value_parser = policy_parser(Environment::Simulation))]
    policy: Vec<PolicyName>,
    /// Read the model for adapt from this file, which 'corebeat train --scenario' wrote
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Set the seed of the random times; equal seeds give equal runs
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Observe every MS milliseconds [default: 500; tranquilizer and adapt: 100]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    period: Option<u64>,
    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
    /// Draw the CPUs of the threads over time, as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write the CPUs of the threads over time for Perfetto (ui.perfetto.dev), as JSON
    #[arg(long, value_name = "FILE")]
    perfetto: Option<PathBuf>,
}

/// Largest size of a scenario, in bytes.
const SCENARIO_MAX: u64 = 16 << 20;

/// Runs the command.
///
/// # Errors
/// A [`Failure`] with its exit status.
pub fn main(command: Command) -> Done {
    match command {
        Command::Run(options) => run(options),
        Command::Compare => compare::main(),
        Command::Play(played) => compare::play(&played),
    }
}

/// Returns the policies of the command line, or else those of the scenario.
fn policies(options: &Options, scenario: &Scenario) -> Result<Vec<PolicyName>, Failure> {
    if options.policy.is_empty() {
        let names = named(&options.scenario, scenario)?;
        let clash = |e| Failure::data(format!("{}: policies: {e}", options.scenario.display()));
        check_combination(&names).map_err(clash)?;
        Ok(names)
    } else {
        check_combination(&options.policy).map_err(Failure::usage)?;
        Ok(options.policy.clone())
    }
}

fn run(options: Options) -> Done {
    let (mut scenario, mut machine) = open(&options.scenario, options.seed)?;
    let policies = policies(&options, &scenario)?;
    if options.model.is_some() && !policies.contains(&PolicyName::Adapt) {
        return Err(Failure::usage(
            "--model needs --policy adapt; leave --model out, or add the policy",
        ));
    }
    let svg = options.svg.as_deref().map(Output::create_with_cleanup).transpose()?;
    let perfetto = options.perfetto.as_deref().map(Output::create_with_cleanup).transpose()?;
    let files = [
        Some(&options.scenario),
        options.model.as_ref(),
        options.svg.as_ref(),
        options.perfetto.as_ref(),
    ];
    require_distinct(files.into_iter().flatten())?;
    let mut tuned = None;
    if policies.contains(&PolicyName::Reinforcer) {
        let mut trials = SimTrials::new(&scenario, options.seed)?;
        let found = trials.search()?;
        let best = found.best.ok_or_else(|| Failure::data(&found.reason))?;
        let program = trials.program;
        let mut written = control(&scenario, machine, &policies, &options, false)?;
        written.run(|machine, _| machine.is_over()).map_err(Failure::internal)?;
        let before = Ran::of(&mut written, program);
        scenario = trials.scenario(best);
        machine = SimMachine::new(&scenario, options.seed).map_err(Failure::data)?;
        tuned = Some((found, before, program));
    }
    if svg.is_some() || perfetto.is_some() {
        machine.record();
    }
    let mut control = control(&scenario, machine, &policies, &options, true)?;
    let tally = control.run(|machine, _| machine.is_over()).map_err(Failure::internal)?;
    let tuned = tuned.map(|(found, before, program)| {
        let after = Ran::of(&mut control, program);
        Tuned { name: scenario.programs[program].name.clone(), found, before, after }
    });

    let name = |action: &AppliedAction| {
        let program = action.decision.action.program();
        program.and_then(|p| scenario.programs.get(p.0 as usize)).map(|p| p.name.clone())
    };
    let applied: Vec<(AppliedAction, Option<String>)> =
        tally.applied.into_iter().map(|action| (action.clone(), name(&action))).collect();
    let (cpus, now_ns) = (scenario.machine.cpus(), control.clock().now_ns());
    let machine = control.machine();
    let text = match options.json {
        true => json(machine, cpus, now_ns, options.seed, &applied, tuned.as_ref()),
        false => {
            tuned.map_or(String::new(), |t| t.to_string())
                + &text_report(machine, cpus, now_ns, options.seed, &applied)
        }
    };
    if svg.is_some() || perfetto.is_some() {
        let timeline = machine.timeline();
        if let Some(cut_ns) = timeline.cut_ns {
            print_line(format_args!(
                "drawings end at {:.3} s, at the limit of recorded switches; simulate a shorter \
                 time with duration_s",
                cut_ns as f64 / 1e9
            ));
        }
        svg.map_or(Ok(()), |file| file.write(&timeline.svg()))?;
        if let Some(file) = perfetto {
            let mut json = Vec::new();
            timeline.write_chrome(&mut json).map_err(Failure::internal)?;
            file.write(&String::from_utf8_lossy(&json))?;
        }
    }
    print(text)?;
    match machine.deadlock() {
        Some(deadlock) => Err(Failure::data(deadlock)),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// The machine of a scenario with these policies, before the start. `reports_idle` prints on
/// standard error which of the policies are idle.
fn control(
    scenario: &Scenario,
    mut machine: SimMachine,
    policies: &[PolicyName],
    options: &Options,
    reports_idle: bool,
) -> Result<Loop<SimMachine, SimClock>, Failure> {
    let topology = machine.topology().clone();
    let model = match policies.contains(&PolicyName::Adapt) {
        true => Some(adapt_model(scenario, options)?),
        false => None,
    };
    let sets = match policies.iter().any(|name| name.entry().needs(Need::CoscheduledSets)) {
        true => scenario.coscheduled().map_err(Failure::data)?,
        false => vec![],
    };
    let context = Context {
        model: model.as_ref().map(|(name, model)| (name.as_str(), model)),
        sets: &sets,
        slice_ns: (scenario.machine.slice_us * 1e3) as u64,
        lacking: &lacking(scenario),
        ..Context::new(&topology)
    };
    let mut acting: Vec<Box<dyn Policy>> = vec![];
    for name in policies {
        let entry = name.entry();
        if let Some(why) = entry.idle_because(&context).filter(|_| reports_idle) {
            print_line(format_args!("{name}: {why}"));
        }
        match entry.build(&context) {
            Ok(Instance::Coscheduler(cosched)) => machine.coschedule(cosched),
            Ok(Instance::Arbiter(claims)) => machine.arbitrate(claims),
            Ok(instance) => acting.extend(instance.policies()),
            Err(e @ CatalogueError::Sets(_)) => return Err(Failure::data(e)),
            Err(e) => return Err(Failure::usage(e)),
        }
    }
    let period_ms = policies.iter().map(|name| name.entry().period_ms).min().unwrap_or(500);
    let observe_ns = options.period.unwrap_or(period_ms) * 1_000_000;
    let clock = machine.clock();
    Ok(Loop::new(machine, clock, acting, Periods { observe_ns, sample_ns: observe_ns }))
}

/// Reads the model of adapt, and the name of its machine.
fn adapt_model(scenario: &Scenario, options: &Options) -> Result<(String, Model), Failure> {
    let path = options.model.as_deref().ok_or_else(|| {
        Failure::usage(format!(
            "policy adapt requires a model; write --model FILE, and train one with \
             'corebeat train --scenario {}'",
            options.scenario.display()
        ))
    })?;
    let machine = corebeat_train::identity(&scenario.machine).map_err(Failure::data)?;
    let model = read_model(Some(path), &machine)?;
    Ok((machine.name, model))
}

/// The applied actions and the outcomes, for people.
fn text_report(
    machine: &mut SimMachine,
    cpus: u32,
    now_ns: u64,
    seed: u64,
    applied: &[(AppliedAction, Option<String>)],
) -> String {
    let mut text = String::new();
    for (action, program) in applied {
        let target = program.as_deref().unwrap_or("a thread");
        let failed = action.refusal().map_or(String::new(), |why| format!(": refused: {why}"));
        let _ = writeln!(
            text,
            "{:>9.3} s  {}: {target}: {} ({}){failed}",
            action.at_ns as f64 / 1e9,
            action.decision.policy,
            action.decision.action,
            action.decision.why
        );
    }
    let _ = writeln!(
        text,
        "{cpus} CPUs, {:.6} s, {} events, seed {seed}, fingerprint {:016x}",
        now_ns as f64 / 1e9,
        machine.events(),
        machine.fingerprint()
    );
    text += &table(&machine.outcomes(), now_ns);
    for set in machine.sets() {
        let share = set.coscheduled_ns as f64 / set.ran_ns.max(1) as f64;
        let _ = writeln!(
            text,
            "set {}: ran {:.3} s, coscheduled {:.2}% of it",
            set.name,
            set.ran_ns as f64 / 1e9,
            share * 100.0
        );
    }
    text
}

/// The applied actions and the outcomes, as JSON.
fn json(
    machine: &mut SimMachine,
    cpus: u32,
    now_ns: u64,
    seed: u64,
    applied: &[(AppliedAction, Option<String>)],
    tuned: Option<&Tuned>,
) -> String {
    let seconds = |ns: u64| ns as f64 / 1e9;
    let action = |(action, program): &(AppliedAction, Option<String>)| {
        json!({
            "at_s": seconds(action.at_ns), "policy": action.decision.policy, "program": program,
            "action": action.decision.action.to_string(), "why": action.decision.why, "failed": action.refusal(),
        })
    };
    let program = |o: &Outcome| {
        json!({
            "name": o.name, "threads": o.threads, "start_s": seconds(o.start_ns), "end_s": o.end_ns.map(seconds),
            "user_s": seconds(o.user_ns), "system_s": seconds(o.system_ns), "spin_s": seconds(o.spin_ns),
            "wait_s": seconds(o.wait_ns), "lock_s": seconds(o.lock_ns), "park_s": seconds(o.park_ns), "sleep_s": seconds(o.sleep_ns),
            "switches": o.voluntary_switches, "lost": o.involuntary_switches, "backstabs": o.backstabs, "moved": o.migrations,
            "beats": o.beats,
        })
    };
    let sets = machine.sets();
    let set = |s: &SetOutcome| json!({ "name": s.name, "ran_s": seconds(s.ran_ns), "coscheduled_s": seconds(s.coscheduled_ns) });
    let all = json!({
        "cpus": cpus, "time_s": seconds(now_ns), "events": machine.events(), "seed": seed,
        "fingerprint": format!("{:016x}", machine.fingerprint()),
        "applied": applied.iter().map(action).collect::<Vec<_>>(),
        "programs": machine.outcomes().iter().map(program).collect::<Vec<_>>(),
        "sets": sets.iter().map(set).collect::<Vec<_>>(),
        "reinforcer": tuned.map(Tuned::json),
    });
    format!("{all}\n")
}

/// Requirements of policies that no program of a scenario meets.
fn lacking(scenario: &Scenario) -> Vec<Need> {
    let does = |step: fn(&Step) -> bool| scenario.programs.iter().any(|program| program.does(step));
    let needs = [
        (Need::CoscheduledSets, !scenario.sets.is_empty()),
        (Need::Goals, scenario.programs.iter().any(|program| program.goal.is_some())),
        (Need::ParallelRegions, does(|step| matches!(step, Step::Parallel { .. }))),
        (Need::Claims, does(|step| matches!(step, Step::Invade { .. }))),
    ];
    needs.into_iter().filter(|(_, is_met)| !is_met).map(|(need, _)| need).collect()
}

/// Reads a scenario, and builds its machine.
pub(crate) fn open(path: &Path, seed: u64) -> Result<(Scenario, SimMachine), Failure> {
    let shown = path.display();
    let text = read_text(&shown.to_string(), File::open(path), SCENARIO_MAX, "scenario")?;
    let wrong = |e: corebeat_sim::Error| Failure::data(format!("{shown}: {e}"));
    let scenario: Scenario = text.parse().map_err(wrong)?;
    let machine = SimMachine::new(&scenario, seed).map_err(wrong)?;
    Ok((scenario, machine))
}

/// Returns the policies that a scenario names.
fn named(path: &Path, scenario: &Scenario) -> Result<Vec<PolicyName>, Failure> {
    let policy = |(place, name): (usize, &String)| {
        name.parse().map_err(|e: CatalogueError| {
            Failure::data(format!("{}: policies, number {}: {e}", path.display(), place + 1))
        })
    };
    scenario.policies.iter().enumerate().map(policy).collect()
}

/// The outcomes of the programs.
fn table(outcomes: &[Outcome], now_ns: u64) -> String {
    let mut text = format!(
        "{:<16} {:>7} {:>11} {:>7} {:>6} {:>6} {:>6} {:>7} {:>6} {:>6} {:>6} {:>9} {:>9} {:>8} {:>10}\n",
        "program",
        "threads",
        "time",
        "CPUs",
        "user",
        "system",
        "spin",
        "wait",
        "lock",
        "park",
        "sleep",
        "switches",
        "lost",
        "moved",
        "beats/s",
    );
    for o in outcomes {
        let wall_s = o.end_ns.unwrap_or(now_ns).saturating_sub(o.start_ns) as f64 / 1e9;
        let all = (o.user_ns + o.system_ns + o.lock_ns + o.park_ns + o.wait_ns + o.sleep_ns).max(1)
            as f64;
        let share = |ns: u64| format!("{:.1}%", ns as f64 / all * 100.0);
        let of_time = |amount: f64| if wall_s > 0.0 { amount / wall_s } else { 0.0 };
        let ended = if o.end_ns.is_some() { " s" } else { " s+" };
        let beats =
            if o.beats > 0 { format!("{:.1}", of_time(o.beats as f64)) } else { "-".into() };
        let _ = writeln!(
            text,
            "{:<16} {:>7} {:>11} {:>7.2} {:>6} {:>6} {:>6} {:>7} {:>6} {:>6} {:>6} {:>9} {:>9} {:>8} {:>10}",
            o.name,
            o.threads,
            format!("{wall_s:.6}{ended}"),
            of_time((o.user_ns + o.system_ns) as f64 / 1e9),
            share(o.user_ns),
            share(o.system_ns),
            share(o.spin_ns),
            share(o.wait_ns),
            share(o.lock_ns),
            share(o.park_ns),
            share(o.sleep_ns),
            o.voluntary_switches,
            o.involuntary_switches,
            o.migrations,
            beats,
        );
    }
    text
}
