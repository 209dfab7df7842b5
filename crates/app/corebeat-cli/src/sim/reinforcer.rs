//! Thread Reinforcer before a scenario's whole run: short runs with growing thread counts, each on a machine of its own.

use crate::failure::Failure;
use crate::tune::{self, Row, count};
use corebeat_loop::Loop;
use corebeat_machine::{Clock, Machine, ProgramId};
use corebeat_policy::reinforcer::{Limits, Profile, Reinforcer, Step, Thresholds, Trial};
use corebeat_sim::{Scenario, SimClock, SimMachine};
use serde_json::json;
use std::fmt;

/// How long a short run goes on before it is watched, and how long it is watched then, in nanoseconds: Pusukuri 2012, section 2.2.2, has
/// windows of 100 ms.
const WINDOW_NS: u64 = 100_000_000;

/// The thread count that was found.
pub(super) struct Found {
    /// Which program.
    pub(super) program: usize,
    name: String,
    rows: Vec<Row>,
    best: u32,
    reason: String,
    /// The scenario with that count.
    pub(super) scenario: Scenario,
}

impl Found {
    /// The machine of the whole run.
    pub(super) fn machine(&self, seed: u64) -> Result<SimMachine, Failure> {
        SimMachine::new(&self.scenario, seed).map_err(Failure::wrong)
    }
}

/// Searches the best count for the program that has tunable teams.
pub(super) fn search(scenario: &Scenario, seed: u64) -> Result<Found, Failure> {
    let is_tunable = |number: &usize| scenario.programs[*number].is_tunable();
    let tunable: Vec<usize> = (0..scenario.programs.len()).filter(is_tunable).collect();
    let program = match tunable[..] {
        [program] => program,
        [] => {
            return Err(Failure::wrong(
                "reinforcer chooses how many threads teams have; write tunable = true in those that may be chosen",
            ));
        }
        _ => {
            return Err(Failure::wrong(
                "reinforcer chooses for one program, and several have teams with tunable = true; leave it out in the others",
            ));
        }
    };
    let with = |threads: u32| {
        let mut scenario = scenario.clone();
        scenario.programs[program] = scenario.programs[program].tuned(threads);
        scenario
    };
    let trial_s = scenario.programs[program].start_ms / 1e3 + 3.0 * WINDOW_NS as f64 / 1e9;
    let mut rows = Vec::new();
    let mut search = Reinforcer::new(Limits::of(scenario.machine.cpus()), Thresholds::default());
    loop {
        let threads = match search.next() {
            Step::Try(threads) => threads,
            Step::Done { best: None, reason } => return Err(Failure::wrong(reason)),
            Step::Done { best: Some(best), reason } => {
                let (name, scenario) = (scenario.programs[program].name.clone(), with(best));
                return Ok(Found { program, name, rows, best, reason: reason.to_string(), scenario });
            }
        };
        // However short the whole run is.
        let short = Scenario { duration_s: Some(trial_s), ..with(threads) };
        let (trial, window_ns) = match SimMachine::new(&short, seed) {
            Ok(machine) => watch(machine, scenario, program)?,
            Err(e) => (Trial::Failed(e.to_string()), 0),
        };
        let verdict = search.record(threads, trial.clone()).to_string();
        rows.push(Row { threads, serial_s: 0.0, window_s: window_ns as f64 / 1e9, trial, verdict });
    }
}

/// What a window of a short run shows, and how long that was.
fn watch(mut machine: SimMachine, scenario: &Scenario, program: usize) -> Result<(Trial, u64), Failure> {
    let mut clock = machine.clock();
    let start_ns = machine.outcomes()[program].start_ns;
    let mut until = |machine: &mut SimMachine, at_ns: u64| {
        // Waiting ends when any program does.
        while clock.now_ns() < at_ns && !machine.is_over() && machine.outcomes()[program].end_ns.is_none() {
            clock.wait_until(at_ns);
        }
        machine.observe().map_err(Failure::own)
    };
    until(&mut machine, start_ns)?;
    let mut seen = until(&mut machine, start_ns + WINDOW_NS)?;
    // One that is over by now shows how it went from its start on.
    if machine.outcomes()[program].end_ns.is_none() {
        seen = until(&mut machine, start_ns + 2 * WINDOW_NS)?;
    }
    let sample = seen.programs.iter().find(|p| p.id == ProgramId(program as u32));
    let profile = sample.and_then(|p| Profile::of(p, &seen, scenario.machine.cpus()));
    let trial = profile.map_or_else(|| Trial::Failed("nothing of it was seen".into()), Trial::Ran);
    Ok((trial, seen.span_ns))
}

/// How a whole run went for the program.
pub(super) struct Ran {
    threads: usize,
    time_s: f64,
    has_ended: bool,
    beats: u64,
}

impl Ran {
    /// Of a machine's run that is over.
    pub(super) fn of(circle: &mut Loop<SimMachine, SimClock>, program: usize) -> Ran {
        let now_ns = circle.clock().now_ns();
        let outcome = &circle.machine().outcomes()[program];
        let time_ns = outcome.end_ns.unwrap_or(now_ns).saturating_sub(outcome.start_ns);
        Ran {
            threads: outcome.threads,
            time_s: time_ns as f64 / 1e9,
            has_ended: outcome.end_ns.is_some(),
            beats: outcome.beats,
        }
    }

    fn rate(&self) -> Option<f64> {
        (self.beats > 0 && self.time_s > 0.0).then(|| self.beats as f64 / self.time_s)
    }

    fn json(&self) -> serde_json::Value {
        json!({
            "threads": self.threads, "time_s": self.time_s, "ended": self.has_ended, "beats": self.beats,
        })
    }
}

/// What the search was worth.
pub(super) struct Tuned {
    pub(super) found: Found,
    /// With the counts that the scenario has.
    pub(super) before: Ran,
    pub(super) after: Ran,
}

impl Tuned {
    /// How many times as fast the program is as with the scenario's own counts: by its time, or by its beats where it does not end.
    fn speed(&self) -> Option<f64> {
        let (before, after) = (&self.before, &self.after);
        match before.has_ended && after.has_ended {
            true => Some(before.time_s / after.time_s),
            false => after.rate().zip(before.rate()).map(|(after, before)| after / before),
        }
    }

    pub(super) fn json(&self) -> serde_json::Value {
        json!({
            "program": self.found.name, "rows": self.found.rows, "best": self.found.best, "reason": self.found.reason,
            "before": self.before.json(), "after": self.after.json(), "speed": self.speed(),
        })
    }
}

impl fmt::Display for Tuned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tuned { found, before, after } = self;
        f.write_str(&tune::table("reinforcer", &found.rows))?;
        let shown = |ran: &Ran| match ran.rate() {
            _ if ran.has_ended => format!("{:.6} s", ran.time_s),
            Some(rate) => format!("{rate:.1} beats/s"),
            None => "no end, and no beat".into(),
        };
        let name = &found.name;
        let speed = self.speed().map_or(String::new(), |speed| format!(": {speed:.2} times as fast"));
        writeln!(
            f,
            "reinforcer: {name}: {} a team, {} in all: {}; as written {}: {}{speed}",
            count(found.best),
            after.threads,
            shown(after),
            before.threads,
            shown(before),
        )
    }
}
