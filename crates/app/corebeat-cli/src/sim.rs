//! `corebeat sim run`: a scenario on a simulated machine, with policies, and what became of it.

mod compare;
mod reinforcer;

use crate::failure::{Done, Failure, print, tell};
use crate::input;
use crate::output::{self, Output};
use crate::train;
use clap::ValueEnum;
use corebeat_loop::{Deed, Loop, Periods};
use corebeat_machine::{Clock, Machine, Policy, Topology};
use corebeat_policy::adapt::Adapt;
use corebeat_policy::auto::{self, Lever};
use corebeat_policy::claims::Claims;
use corebeat_policy::cosched::{Cosched, Fragments};
use corebeat_policy::fair::Fair;
use corebeat_policy::faithful::FaithFul;
use corebeat_policy::shuffler::Shuffler;
use corebeat_policy::team::{Team, TeamSettings};
use corebeat_policy::tranquilizer::Tranquilizer;
use corebeat_sim::{Outcome, Scenario, SetOutcome, SimClock, SimMachine, Step};
use reinforcer::{Ran, Tuned};
use serde_json::json;
use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Run a scenario on a simulated machine, and say what became of its programs
    Run(Options),
    /// Run programs of known steps on this host and on its model, and say how far they are apart; takes half a minute
    Compare,
    /// What compare starts
    #[command(hide = true)]
    Play(compare::Played),
}

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The scenario: a machine and its programs, in TOML
    #[arg(value_name = "SCENARIO.toml")]
    scenario: PathBuf,
    /// Which policies act, instead of those that the scenario names; may be repeated
    #[arg(long, value_enum)]
    policy: Vec<PolicyName>,
    /// What adapt predicts with, as 'corebeat train --scenario' has written it
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Another seed gives other random times; the same one gives the same run
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Milliseconds from one observation to the next [default: 500; with tranquilizer or adapt 100]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    period: Option<u64>,
    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
    /// Draw who ran where, as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write who ran where for Perfetto (ui.perfetto.dev), as JSON
    #[arg(long, value_name = "FILE")]
    perfetto: Option<PathBuf>,
}

/// Which policies act.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PolicyName {
    /// None: the machine's scheduler alone
    None,
    /// All for one program that the machine has a use for, together, as in corebeat run
    Auto,
    /// Threads that do not preempt each other, and long time slices (FaithFul), taken back where they do not help
    Faithful,
    /// The scenario's coscheduled sets take turns, and fragments are filled
    Coscheduling,
    /// The same as in the paper's prototype, which leaves fragments idle
    CoschedulingIdle,
    /// Shares of the CPUs by how fast programs are and want to be
    Fair,
    /// The size of OpenMP teams, by the time of the program's own parallel regions
    Team,
    /// Memory over all nodes and fixed turns, by how much cache misses and lost CPUs vary (Thread Tranquilizer)
    Tranquilizer,
    /// Threads with like lock times on one socket (Thread Shuffling)
    Shuffler,
    /// Several programs side by side or on cores of their own, by a model of them (ADAPT): wants --model
    Adapt,
    /// Programs that ask for CPUs (the step invade) have them, and others that ask do not
    Claims,
    /// How many threads for the program with tunable teams, by short runs before the whole one (Thread Reinforcer)
    Reinforcer,
}

/// No scenario is longer, in bytes.
const SCENARIO_MAX: u64 = 16 << 20;

pub(crate) fn main(command: Command) -> Done {
    match command {
        Command::Run(options) => run(options),
        Command::Compare => compare::main(),
        Command::Play(played) => compare::play(&played),
    }
}

fn run(options: Options) -> Done {
    let (mut scenario, mut machine) = open(&options.scenario, options.seed)?;
    let policies = match options.policy.is_empty() {
        true => {
            let clash = |what| Failure::wrong(format!("{}: policies: {what}", options.scenario.display()));
            together(named(&options.scenario, &scenario)?).map_err(clash)?
        }
        false => together(options.policy.clone()).map_err(Failure::usage)?,
    };
    if options.model.is_some() && !policies.contains(&PolicyName::Adapt) {
        return Err(Failure::usage("--model goes with --policy adapt; leave it out, or add that"));
    }
    let svg = options.svg.as_deref().map(Output::create_alone).transpose()?;
    let perfetto = options.perfetto.as_deref().map(Output::create_alone).transpose()?;
    let files =
        [Some(&options.scenario), options.model.as_ref(), options.svg.as_ref(), options.perfetto.as_ref()];
    output::distinct(files.into_iter().flatten())?;
    let mut tuned = None;
    if policies.contains(&PolicyName::Reinforcer) {
        let found = reinforcer::search(&scenario, options.seed)?;
        let mut written = circle(&scenario, machine, &policies, &options, false)?;
        written.run(|machine, _| machine.is_over()).map_err(Failure::own)?;
        let before = Ran::of(&mut written, found.program);
        (scenario, machine) = (found.scenario.clone(), found.machine(options.seed)?);
        tuned = Some((found, before));
    }
    if svg.is_some() || perfetto.is_some() {
        machine.record();
    }
    let mut circle = circle(&scenario, machine, &policies, &options, true)?;
    circle.run(|machine, _| machine.is_over()).map_err(Failure::own)?;
    let tuned = tuned.map(|(found, before)| {
        let after = Ran::of(&mut circle, found.program);
        Tuned { found, before, after }
    });

    let name = |deed: &Deed| {
        let program = deed.decision.action.program();
        program.and_then(|p| scenario.programs.get(p.0 as usize)).map(|p| p.name.clone())
    };
    let deeds: Vec<(Deed, Option<String>)> =
        circle.tally().deeds.iter().map(|deed| (deed.clone(), name(deed))).collect();
    let (cpus, now_ns) = (scenario.machine.cpus(), circle.clock().now_ns());
    let machine = circle.machine();
    let text = match options.json {
        true => json(machine, cpus, now_ns, options.seed, &deeds, tuned.as_ref()),
        false => {
            tuned.map_or(String::new(), |t| t.to_string())
                + &told(machine, cpus, now_ns, options.seed, &deeds)
        }
    };
    if svg.is_some() || perfetto.is_some() {
        let timeline = machine.timeline();
        if let Some(cut_ns) = timeline.cut_ns {
            tell(format_args!(
                "corebeat: pictures end at {:.3} s: more switches are not kept; simulate less with duration_s\n",
                cut_ns as f64 / 1e9
            ));
        }
        svg.map_or(Ok(()), |file| file.write(&timeline.svg()))?;
        perfetto.map_or(Ok(()), |file| file.write(&timeline.chrome()))?;
    }
    print(text)?;
    match machine.deadlock() {
        Some(deadlock) => Err(Failure::wrong(deadlock)),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// A scenario's machine with these policies, before its first moment. `tells` says on standard error which of them have nothing to do.
fn circle(
    scenario: &Scenario,
    mut machine: SimMachine,
    policies: &[PolicyName],
    options: &Options,
    tells: bool,
) -> Result<Loop<SimMachine, SimClock>, Failure> {
    for name in policies {
        if let Some(why) = idle_because(*name, scenario).filter(|_| tells) {
            tell(format_args!("corebeat: {}: {why}\n", text(*name)));
        }
        let fragments = match name {
            PolicyName::Coscheduling => Fragments::Fill,
            PolicyName::CoschedulingIdle => Fragments::Idle,
            _ => continue,
        };
        let sets = scenario.coscheduled().map_err(Failure::wrong)?;
        let slice_ns = (scenario.machine.slice_us * 1e3) as u64;
        let core = Cosched::new(machine.topology(), &sets, slice_ns, fragments).map_err(Failure::wrong)?;
        machine.coschedule(Box::new(core));
    }
    if policies.contains(&PolicyName::Claims) {
        let mut claims = Claims::new(machine.topology().clone());
        // As in the daemon: others are not kept off claimed CPUs, and so need none for themselves.
        claims.unclaimed_min = 0;
        machine.arbitrate(Box::new(claims));
    }
    let adapt = policies.contains(&PolicyName::Adapt);
    let often = adapt || policies.contains(&PolicyName::Tranquilizer);
    let observe_ns = options.period.unwrap_or(if often { 100 } else { 500 }) * 1_000_000;
    let topology = machine.topology();
    let mut acting: Vec<Box<dyn Policy>> =
        policies.iter().flat_map(|name| make(*name, topology, tells)).collect();
    if adapt {
        let path = options.model.as_deref().ok_or_else(|| {
            Failure::usage(format!(
                "adapt wants a model; write --model FILE, and make one with 'corebeat train --scenario {}'",
                options.scenario.display()
            ))
        })?;
        let here = corebeat_train::identity(&scenario.machine).map_err(Failure::wrong)?;
        let model = train::model(Some(path), &here)?;
        acting.push(Box::new(Adapt::new(topology, &here.name, model).map_err(Failure::usage)?));
    }
    let clock = machine.clock();
    Ok(Loop::new(machine, clock, acting, Periods { observe_ns, glance_ns: observe_ns }))
}

/// What was done, and what became of all, for people.
fn told(
    machine: &mut SimMachine,
    cpus: u32,
    now_ns: u64,
    seed: u64,
    deeds: &[(Deed, Option<String>)],
) -> String {
    let mut text = String::new();
    for (deed, program) in deeds {
        let whom = program.as_deref().unwrap_or("a thread");
        let failed = deed.failed.as_ref().map_or(String::new(), |why| format!(": not done: {why}"));
        let _ = writeln!(
            text,
            "{:>9.3} s  {}: {whom}: {} ({}){failed}",
            deed.at_ns as f64 / 1e9,
            deed.policy,
            deed.decision.action,
            deed.decision.why
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

/// The same for programs.
fn json(
    machine: &mut SimMachine,
    cpus: u32,
    now_ns: u64,
    seed: u64,
    deeds: &[(Deed, Option<String>)],
    tuned: Option<&Tuned>,
) -> String {
    let seconds = |ns: u64| ns as f64 / 1e9;
    let deed = |(deed, program): &(Deed, Option<String>)| {
        json!({
            "at_s": seconds(deed.at_ns), "policy": deed.policy, "program": program,
            "action": deed.decision.action.to_string(), "why": deed.decision.why, "failed": deed.failed,
        })
    };
    let program = |o: &Outcome| {
        json!({
            "name": o.name, "threads": o.threads, "start_s": seconds(o.start_ns), "end_s": o.end_ns.map(seconds),
            "user_s": seconds(o.user_ns), "system_s": seconds(o.system_ns), "spin_s": seconds(o.spin_ns),
            "latency_s": seconds(o.latency_ns), "lock_s": seconds(o.lock_ns), "sleep_s": seconds(o.sleep_ns),
            "switches": o.voluntary_switches, "lost": o.involuntary_switches, "backstabs": o.backstabs, "moved": o.migrations,
            "beats": o.beats,
        })
    };
    let sets = machine.sets();
    let set = |s: &SetOutcome| json!({ "name": s.name, "ran_s": seconds(s.ran_ns), "coscheduled_s": seconds(s.coscheduled_ns) });
    let all = json!({
        "cpus": cpus, "time_s": seconds(now_ns), "events": machine.events(), "seed": seed,
        "fingerprint": format!("{:016x}", machine.fingerprint()),
        "deeds": deeds.iter().map(deed).collect::<Vec<_>>(),
        "programs": machine.outcomes().iter().map(program).collect::<Vec<_>>(),
        "sets": sets.iter().map(set).collect::<Vec<_>>(),
        "reinforcer": tuned.map(Tuned::json),
    });
    format!("{all}\n")
}

/// Policies that go with each other, or why they do not.
fn together(policies: Vec<PolicyName>) -> Result<Vec<PolicyName>, String> {
    let has = |name| policies.contains(&name);
    if has(PolicyName::Coscheduling) && has(PolicyName::CoschedulingIdle) {
        return Err(
            "coscheduling and coscheduling-idle are two ways for the same sets; name one of them".into()
        );
    }
    if has(PolicyName::None) && policies.iter().any(|name| *name != PolicyName::None) {
        return Err("none goes with no other policy; leave it out, or the others".into());
    }
    if has(PolicyName::Team) && has(PolicyName::Shuffler) {
        return Err("shuffler would tie threads of teams that team sizes; name auto, which has both".into());
    }
    for (at, &one) in policies.iter().enumerate() {
        if policies[..at].contains(&one) {
            return Err(format!("{} is named twice; name it once", text(one)));
        }
        let pulls = |other: &&PolicyName| levers(**other).iter().any(|lever| levers(one).contains(lever));
        if let Some(other) = policies[..at].iter().find(pulls) {
            let (other, one) = (text(*other), text(one));
            return Err(format!("{other} and {one} would undo each other's doing; name one of them"));
        }
    }
    Ok(policies)
}

/// What a policy pulls at.
fn levers(name: PolicyName) -> &'static [Lever] {
    match name {
        PolicyName::None
        | PolicyName::Coscheduling
        | PolicyName::CoschedulingIdle
        | PolicyName::Reinforcer => &[],
        PolicyName::Auto => &[Lever::Size, Lever::Turns, Lever::Memory, Lever::Place],
        PolicyName::Team => &[Lever::Size],
        PolicyName::Faithful => &[Lever::Turns],
        PolicyName::Fair => &[Lever::Share],
        PolicyName::Tranquilizer => &[Lever::Turns, Lever::Memory],
        PolicyName::Shuffler | PolicyName::Claims => &[Lever::Place],
        PolicyName::Adapt => &[Lever::Turns, Lever::Memory, Lever::Place, Lever::Share],
    }
}

/// Why a policy has nothing to do in a scenario.
fn idle_because(name: PolicyName, scenario: &Scenario) -> Option<&'static str> {
    let nobody = |does: fn(&Step) -> bool| !scenario.programs.iter().any(|program| program.does(does));
    match name {
        PolicyName::Coscheduling | PolicyName::CoschedulingIdle if scenario.sets.is_empty() => {
            Some("the scenario has no [[sets]], so nobody takes turns")
        }
        PolicyName::Fair if scenario.programs.iter().all(|p| p.goal.is_none()) => {
            Some("no program has a goal, so there is nothing to steer to")
        }
        PolicyName::Team if nobody(|step| matches!(step, Step::Parallel { .. })) => {
            Some("no program has parallel regions, so there are no teams to size")
        }
        PolicyName::Claims if nobody(|step| matches!(step, Step::Invade { .. })) => {
            Some("no program asks for CPUs (the step invade), so there is nothing to share out")
        }
        _ => None,
    }
}

/// Reads a scenario, and builds its machine.
pub(crate) fn open(path: &Path, seed: u64) -> Result<(Scenario, SimMachine), Failure> {
    let shown = path.display();
    let text = input::text(&shown.to_string(), File::open(path), SCENARIO_MAX, "scenario")?;
    let wrong = |e: corebeat_sim::Error| Failure::wrong(format!("{shown}: {e}"));
    let scenario: Scenario = text.parse().map_err(wrong)?;
    let machine = SimMachine::new(&scenario, seed).map_err(wrong)?;
    Ok((scenario, machine))
}

/// The policies that a scenario names.
fn named(path: &Path, scenario: &Scenario) -> Result<Vec<PolicyName>, Failure> {
    let policy = |(place, name): (usize, &String)| {
        PolicyName::from_str(name, false).map_err(|_| {
            let known: Vec<String> = PolicyName::value_variants().iter().map(|p| text(*p)).collect();
            let known = known.join(", ");
            let place = place + 1;
            Failure::wrong(format!(
                "{}: policies, number {place}: there is no policy '{name}'; write one of {known}",
                path.display()
            ))
        })
    };
    scenario.policies.iter().enumerate().map(policy).collect()
}

fn text(name: PolicyName) -> String {
    name.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned())
}

fn make(name: PolicyName, topology: &Topology, tells: bool) -> Vec<Box<dyn Policy>> {
    let cpus = topology.cpus().len() as u32;
    match name {
        // Coschedulers and claims are in the machine, adapt wants a model, and reinforcer is done when the whole run begins.
        PolicyName::None
        | PolicyName::Adapt
        | PolicyName::Coscheduling
        | PolicyName::CoschedulingIdle
        | PolicyName::Claims
        | PolicyName::Reinforcer => {
            vec![]
        }
        PolicyName::Auto => auto::policies(topology),
        PolicyName::Team => vec![Box::new(Team::new(cpus, TeamSettings::default()))],
        PolicyName::Faithful => vec![Box::new(FaithFul::new(cpus))],
        PolicyName::Fair => {
            let mut fair = Fair::new(cpus);
            fair.remembers = true;
            vec![Box::new(fair)]
        }
        PolicyName::Tranquilizer => vec![Box::new(Tranquilizer::new(cpus, topology.nodes().len() as u32))],
        PolicyName::Shuffler => {
            let shuffler = Shuffler::new(topology);
            if let Some(why) = shuffler.idle_because().filter(|_| tells) {
                tell(format_args!("corebeat: shuffler: {why}\n"));
            }
            vec![Box::new(shuffler)]
        }
    }
}

/// What became of the programs.
fn table(outcomes: &[Outcome], now_ns: u64) -> String {
    let mut text = format!(
        "{:<16} {:>7} {:>11} {:>7} {:>6} {:>6} {:>6} {:>7} {:>6} {:>6} {:>9} {:>9} {:>8} {:>10}\n",
        "program",
        "threads",
        "time",
        "CPUs",
        "user",
        "system",
        "spin",
        "latency",
        "lock",
        "sleep",
        "switches",
        "lost",
        "moved",
        "beats/s",
    );
    for o in outcomes {
        let wall_s = o.end_ns.unwrap_or(now_ns).saturating_sub(o.start_ns) as f64 / 1e9;
        let all = (o.user_ns + o.system_ns + o.lock_ns + o.latency_ns + o.sleep_ns).max(1) as f64;
        let share = |ns: u64| format!("{:.1}%", ns as f64 / all * 100.0);
        let of_time = |amount: f64| if wall_s > 0.0 { amount / wall_s } else { 0.0 };
        let ended = if o.end_ns.is_some() { " s" } else { " s+" };
        let beats = if o.beats > 0 { format!("{:.1}", of_time(o.beats as f64)) } else { "-".into() };
        let _ = writeln!(
            text,
            "{:<16} {:>7} {:>11} {:>7.2} {:>6} {:>6} {:>6} {:>7} {:>6} {:>6} {:>9} {:>9} {:>8} {:>10}",
            o.name,
            o.threads,
            format!("{wall_s:.6}{ended}"),
            of_time((o.user_ns + o.system_ns) as f64 / 1e9),
            share(o.user_ns),
            share(o.system_ns),
            share(o.spin_ns),
            share(o.latency_ns),
            share(o.lock_ns),
            share(o.sleep_ns),
            o.voluntary_switches,
            o.involuntary_switches,
            o.migrations,
            beats,
        );
    }
    text
}
