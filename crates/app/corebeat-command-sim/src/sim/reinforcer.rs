//! Thread Reinforcer before the whole run of a scenario: short runs with growing thread counts,
//! each on a separate machine.

use corebeat_command::Failure;
use corebeat_host::{
    Error, Found, Loop, Next, Periods, Searched, TrialResult, Trials, Window, count, trial_table,
};
use corebeat_machine::{Clock, Machine, ProgramId, Snapshot};
use corebeat_policy::reinforcer::{Limits, Profile, Trial};
use corebeat_sim::{Scenario, SimClock, SimMachine};
use serde_json::json;
use std::fmt;
use std::time::Duration;

/// Time of a short run before its window, and length of the window: Pusukuri 2012, section 2.2.2,
/// has windows of 100 ms.
const WINDOW: Duration = Duration::from_millis(100);

/// Short runs of the program of a scenario whose teams may be resized.
pub(super) struct SimTrials<'a> {
    scenario: &'a Scenario,
    /// The program.
    pub(super) program: usize,
    seed: u64,
}

impl<'a> SimTrials<'a> {
    /// Finds the program that has tunable teams.
    pub(super) fn new(scenario: &'a Scenario, seed: u64) -> Result<Self, Failure> {
        let is_tunable = |number: &usize| scenario.programs[*number].is_tunable();
        let tunable: Vec<usize> = (0..scenario.programs.len()).filter(is_tunable).collect();
        match tunable[..] {
            [program] => Ok(SimTrials { scenario, program, seed }),
            [] => Err(Failure::data(
                "reinforcer chooses the size of teams; write tunable = true in the teams that it may \
                 resize",
            )),
            _ => Err(Failure::data(
                "reinforcer handles one program, but several have teams with tunable = true; leave it \
                 out in the other programs",
            )),
        }
    }

    /// Searches the best number of threads.
    pub(super) fn search(&mut self) -> Result<Found, Failure> {
        let cpus = self.scenario.machine.cpus();
        let window = Window::new(cpus, Some(WINDOW), WINDOW);
        match corebeat_host::search(self, Limits::of(cpus), window, &mut |_| ())? {
            Searched::Found(found) => Ok(found),
            Searched::Interrupted(status) => Err(Failure::internal(status)),
        }
    }

    /// Returns the scenario with this number of threads.
    pub(super) fn scenario(&self, threads: u32) -> Scenario {
        let mut scenario = self.scenario.clone();
        scenario.programs[self.program] = scenario.programs[self.program].tuned(threads);
        scenario
    }

    /// Returns a snapshot of the window, or of the whole run of a program that ends before it, and
    /// whether the program has ended.
    fn watch(
        &self,
        mut machine: SimMachine,
        window_ns: u64,
    ) -> Result<(Snapshot, bool), corebeat_sim::Error> {
        let clock = machine.clock();
        let start_ns = machine.outcomes()[self.program].start_ns;
        let mut control = Loop::new(machine, clock, vec![], Periods::default());
        let mut span = |observe_ns| {
            control.set_periods(Periods { observe_ns, sample_ns: observe_ns });
            let has_ended = control.wait(|machine, _| {
                match machine.is_over() || machine.outcomes()[self.program].end_ns.is_some() {
                    true => Next::End,
                    false => Next::Wait,
                }
            })?;
            control.machine().observe().map(|snapshot| (snapshot, has_ended))
        };
        span(start_ns)?;
        let (first, has_ended) = span(window_ns)?;
        if has_ended { Ok((first, true)) } else { span(window_ns) }
    }
}

impl Trials for SimTrials<'_> {
    fn run(&mut self, threads: u32, window: Window) -> Result<TrialResult, Error> {
        let window_ns = window.length.as_nanos() as u64;
        // Even if the whole run is shorter.
        let trial_s =
            self.scenario.programs[self.program].start_ms / 1e3 + 3.0 * window.length.as_secs_f64();
        let short = Scenario { duration_s: Some(trial_s), ..self.scenario(threads) };
        let (trial, span_ns, ended) = match SimMachine::new(&short, self.seed) {
            Err(e) => (Trial::Failed(e.to_string()), 0, false),
            Ok(machine) => {
                let (seen, ended) = self.watch(machine, window_ns).map_err(Error::failed)?;
                let program = seen.program(ProgramId(self.program as u32));
                let profile = program.and_then(|p| Profile::of(p, &seen, window.cpus));
                let failed = || Trial::Failed("no observation of the program".into());
                (profile.map_or_else(failed, Trial::Ran), seen.span_ns, ended)
            }
        };
        Ok(TrialResult {
            trial,
            serial_s: 0.0,
            window_s: span_ns as f64 / 1e9,
            ended,
            stayed_serial: false,
            others_busy: None,
            interrupted: None,
        })
    }
}

/// The outcome of a whole run for the program.
pub(super) struct Ran {
    threads: usize,
    time_s: f64,
    has_ended: bool,
    beats: u64,
}

impl Ran {
    /// Reads the outcome of a machine whose run has ended.
    pub(super) fn of(control: &mut Loop<SimMachine, SimClock>, program: usize) -> Ran {
        let now_ns = control.clock().now_ns();
        let outcome = &control.machine().outcomes()[program];
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

/// The gain of the search.
pub(super) struct Tuned {
    /// Name of the program.
    pub(super) name: String,
    pub(super) found: Found,
    /// With the counts of the scenario.
    pub(super) before: Ran,
    pub(super) after: Ran,
}

impl Tuned {
    /// Speedup of the program over the counts of the scenario: by its time, or by its heartbeat
    /// rate if it does not end.
    fn speed(&self) -> Option<f64> {
        let (before, after) = (&self.before, &self.after);
        match before.has_ended && after.has_ended {
            true => Some(before.time_s / after.time_s),
            false => after.rate().zip(before.rate()).map(|(after, before)| after / before),
        }
    }

    pub(super) fn json(&self) -> serde_json::Value {
        json!({
            "program": self.name, "rows": self.found.rows, "best": self.found.best, "reason": self.found.reason,
            "before": self.before.json(), "after": self.after.json(), "speed": self.speed(),
        })
    }
}

impl fmt::Display for Tuned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tuned { name, found, before, after } = self;
        f.write_str(&trial_table("reinforcer", &found.rows))?;
        let shown = |ran: &Ran| match ran.rate() {
            _ if ran.has_ended => format!("{:.6} s", ran.time_s),
            Some(rate) => format!("{rate:.1} beats/s"),
            None => "no end, and no heartbeat".into(),
        };
        let speed =
            self.speed().map_or(String::new(), |speed| format!(": {speed:.2} times as fast"));
        writeln!(
            f,
            "reinforcer: {name}: {} a team, {} in all: {}; as written {}: {}{speed}",
            found.best.map_or_else(String::new, count),
            after.threads,
            shown(after),
            before.threads,
            shown(before),
        )
    }
}
