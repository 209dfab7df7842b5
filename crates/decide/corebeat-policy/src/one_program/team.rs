//! Team: the number of threads of the next parallel region of a running OpenMP program.
//!
//! Thread Reinforcer (Pusukuri, *Runtime Support for Maximizing Performance on Multicore Systems*,
//! 2012, chapter 2) runs a program repeatedly with more threads, because a running program does not
//! change its number of threads. An OpenMP program does: each parallel region gets a new team, and
//! its size can be set from outside. This policy therefore searches inside one run and follows
//! phases. The indicators are those of the thesis (use of the CPUs, waiting time, load of other
//! programs). The verdict is better than any indicator: the mean time of the regions that the
//! program executes.
//!
//! ```text
//!          indicators propose a size             the regions became faster
//!  Settled -------------------------> Trying -----------------------------> Settled (new size)
//!     ^                                  |
//!     +----------------------------------+  otherwise, or if other regions run: the old size,
//!                                           and the next trial waits for twice as long
//! ```
//!
//! The policy changes nothing for a program that has set its number of threads, and may rely on
//! that number ([`TeamSample::fixed`]).
//!
//! # Failure
//!
//! If the machine refuses a team size, the search in that program ends.

use crate::one_program::{PerProgram, ProgramPolicy, inaction};
use corebeat_machine::{
    Action, AppliedAction, Decision, Inaction, Policy, ProgramId, ProgramSample, Snapshot,
    TeamSample,
};
use std::collections::BTreeMap;

/// Reason for which a program without reported regions is left alone. Only a library inside the
/// program reports them, so that both causes look alike.
pub(crate) const NO_REGIONS: &str = "no OpenMP parallel regions were reported up to the last \
     decision: the program had none, or the library that reports them is not loaded \
     (--no-preload, -p, a static program)";

/// Thresholds of [`Team`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TeamSettings {
    /// Smallest saving of time in the same regions, as a share from 0 to 1, for which a new size is
    /// kept. Our value: twice the spread of one-second means on a quiet host.
    pub gain_min: f64,
    /// Share of the time in regions that must be in regions measured with both sizes, from 0 to 1,
    /// for a verdict. Our value.
    pub known_min: f64,
    /// Snapshots until the first region with the new size must have ended. Our value.
    pub patience: u32,
    /// Snapshots until a failed trial may be repeated. Doubles after every failure until the
    /// regions change. Our value: a trial may cost half of the progress of one snapshot, so the
    /// first dozen snapshots lose at most 5%, and later ones less.
    pub pause: u32,
    /// Useful work, in CPUs, that a team may lack before it is reduced by one thread. Our value.
    pub slack_cpus: f64,
    /// Share of the team's time spent waiting for a CPU, from 0 to 1, from which the load of other
    /// programs counts. Our value.
    pub wait_min: f64,
}

impl Default for TeamSettings {
    fn default() -> Self {
        TeamSettings {
            gain_min: 0.02,
            known_min: 0.8,
            patience: 3,
            pause: 10,
            slack_cpus: 0.1,
            wait_min: 0.1,
        }
    }
}

/// The policy. See the [module](self) for the search.
#[derive(Debug)]
pub struct Team {
    cpus: u32,
    settings: TeamSettings,
    programs: BTreeMap<ProgramId, Search>,
}

/// Search in one program.
#[derive(Debug, Default)]
pub(crate) struct Search {
    /// Mean time of a region with a team size, in nanoseconds. The last measurement has half of the
    /// weight.
    mean_ns: BTreeMap<(u64, u32), f64>,
    /// The current trial.
    trial: Option<Trial>,
    /// Snapshots until the next trial.
    pause_left: u32,
    /// The pause after the next failure.
    pause_next: u32,
    /// The region with the longest total time. Another region indicates another phase.
    main_region: Option<u64>,
    /// The largest size below the current one that was no improvement.
    too_small: Option<u32>,
    /// Whether the machine refused a size.
    is_refused: bool,
    /// Why the policy tries no size.
    idle: Option<String>,
}

#[derive(Debug, Clone, Copy)]
struct Trial {
    from: u32,
    to: u32,
    patience_left: u32,
}

impl Team {
    /// Returns the policy for a machine with this number of CPUs.
    pub fn new(cpus: u32, settings: TeamSettings) -> Self {
        Team { cpus: cpus.max(1), settings, programs: BTreeMap::new() }
    }

    /// Returns the size of the next regions, if it changes.
    fn next_size(
        &self,
        search: &mut Search,
        snapshot: &Snapshot,
        program: &ProgramSample,
        team: &TeamSample,
    ) -> Option<(u32, String)> {
        let settings = self.settings;
        search.follow_phase(team, settings);
        if search.is_refused {
            return None;
        }
        let verdict = search.trial.map(|t| (t, search.verdict(t, team, settings)));
        search.learn(team);
        match verdict {
            Some((_, Verdict::Wait)) => None,
            Some((t, Verdict::Faster(gain))) => {
                search.settle(settings.pause, 0);
                search.too_small = None;
                (team.size != t.to).then(|| {
                    (t.to, format!("regions take {:.0}% less time with this size", gain * 100.0))
                })
            }
            Some((t, Verdict::Back(why))) => {
                let pause = search.pause_next;
                search.settle(pause.saturating_mul(2), pause);
                search.too_small = (t.to < t.from).then_some(t.to);
                Some((t.from, why))
            }
            None if search.pause_left > 0 => {
                search.pause_left -= 1;
                None
            }
            None => {
                let proposed = proposal(self.cpus, settings, snapshot, program, team);
                let (to, why) = proposed.map_err(|why| search.idle = Some(why)).ok()?;
                let to = search.between(to, team.size);
                search.trial =
                    Some(Trial { from: team.size, to, patience_left: settings.patience });
                Some((to, why))
            }
        }
    }
}

/// Result of a trial.
enum Verdict {
    Wait,
    Faster(f64),
    Back(String),
}

impl Search {
    /// Discards failures when the region with the longest total time changes.
    fn follow_phase(&mut self, team: &TeamSample, settings: TeamSettings) {
        let mut time_ns: BTreeMap<u64, u64> = BTreeMap::new();
        for r in &team.regions {
            *time_ns.entry(r.region).or_default() += r.time_ns;
        }
        let Some((&main, _)) = time_ns.iter().max_by_key(|&(_, ns)| ns) else { return };
        if self.main_region.is_some_and(|m| m != main) && self.trial.is_none() {
            self.settle(settings.pause, 0);
            self.too_small = None;
        }
        self.main_region = Some(main);
    }

    fn settle(&mut self, pause_next: u32, pause_left: u32) {
        self.trial = None;
        self.pause_next = pause_next;
        self.pause_left = pause_left;
    }

    /// Returns the size to try for a proposed size. Waiting threads show the useful work at the
    /// current size, not at another one: evenly divided work and threads that spin for a lock hide
    /// parts of it. After a size that was too small, the search therefore tries the middle between
    /// that size and the current one, until no size is left. Then the search starts again.
    fn between(&mut self, proposed: u32, size: u32) -> u32 {
        let Some(small) = self.too_small.filter(|&small| proposed < size && proposed <= small)
        else {
            return proposed;
        };
        let half = (small + size).div_ceil(2);
        if half < size {
            return half;
        }
        self.too_small = None;
        proposed
    }

    fn learn(&mut self, team: &TeamSample) {
        for r in team.regions.iter().filter(|r| r.count > 0) {
            let now = r.time_ns as f64 / r.count as f64;
            self.mean_ns
                .entry((r.region, r.size))
                .and_modify(|m| *m = (*m + now) / 2.0)
                .or_insert(now);
        }
    }

    fn verdict(&mut self, t: Trial, team: &TeamSample, settings: TeamSettings) -> Verdict {
        let tried: Vec<_> = team.regions.iter().filter(|r| r.size == t.to && r.count > 0).collect();
        if tried.is_empty() {
            let Some(left) = t.patience_left.checked_sub(1) else {
                return Verdict::Back(format!("no parallel region ended with {} threads", t.to));
            };
            self.trial = Some(Trial { patience_left: left, ..t });
            return Verdict::Wait;
        }
        let (mut all, mut took, mut before) = (0.0, 0.0, 0.0);
        for r in tried {
            all += r.time_ns as f64;
            if let Some(mean) = self.mean_ns.get(&(r.region, t.from)) {
                took += r.time_ns as f64;
                before += mean * r.count as f64;
            }
        }
        if took < all * settings.known_min || before <= 0.0 {
            return Verdict::Back(format!(
                "the program executed other regions during the trial of {} threads",
                t.to
            ));
        }
        let gain = 1.0 - took / before;
        if gain >= settings.gain_min {
            Verdict::Faster(gain)
        } else {
            Verdict::Back(format!(
                "regions took {:.0}% more time with {} threads",
                (-gain * 100.0).max(0.0),
                t.to
            ))
        }
    }
}

/// Returns the size that the indicators propose, or the reason for the current one.
fn proposal(
    cpus: u32,
    settings: TeamSettings,
    snapshot: &Snapshot,
    program: &ProgramSample,
    team: &TeamSample,
) -> Result<(u32, String), String> {
    let span_ns = snapshot.span_ns;
    let running = program.cpus(span_ns, |s| s.running());
    let running = running.ok_or("the CPU time of the program is unknown")?;
    let useful = running - program.cpus(span_ns, |s| s.spin).unwrap_or(0.0);
    let others = snapshot.host.others_runnable.unwrap_or(0.0);
    let wait = program.cpus(span_ns, |s| s.wait).unwrap_or(0.0);
    let top = team.size_max.min(cpus);

    // Other threads than those that do useful work spin, or sleep at a barrier.
    let enough = (useful + settings.slack_cpus).ceil().max(1.0) as u32;
    if enough < team.size && running > 0.0 {
        return Ok((
            enough,
            format!("the {} threads do useful work on {useful:.1} CPUs only", team.size),
        ));
    }
    // Christmann et al. 2012, section 4: a defensive program uses the CPUs that other programs
    // leave free.
    let free = cpus.saturating_sub(others.round() as u32).max(1);
    if wait > settings.wait_min * f64::from(team.size) && free < team.size {
        return Ok((
            free,
            format!(
                "{others:.1} threads of other programs are runnable, and the team waits for CPUs"
            ),
        ));
    }
    // A larger team may help: every thread does useful work, and a CPU is idle.
    let busy = running + snapshot.host.others_busy.unwrap_or(0.0);
    let idle = (f64::from(cpus) - busy).max(0.0);
    if team.size < top && useful > f64::from(team.size) * 0.9 && idle > 0.5 {
        return Ok((
            top,
            format!("all {} threads do useful work, and {idle:.1} CPUs are idle", team.size),
        ));
    }
    // Threads sleep neither for a lock nor for a CPU. More threads may use the idle CPUs.
    let asleep = program.cpus(span_ns, |s| s.sleep).unwrap_or(0.0);
    if team.size < team.size_max
        && team.size >= top
        && idle > 0.5
        && asleep > 0.5 * f64::from(team.size)
    {
        let to = team.size_max.min(team.size.saturating_mul(2));
        return Ok((to, format!("threads sleep for I/O, and {idle:.1} CPUs are idle")));
    }
    Err(format!(
        "the {} threads do useful work on {useful:.1} CPUs, and {idle:.1} CPUs are idle",
        team.size
    ))
}

impl Policy for Team {
    fn name(&self) -> &'static str {
        "team"
    }

    fn decide(&mut self, snapshot: &Snapshot) -> Vec<Decision> {
        self.decide_for(snapshot, &|_| true)
    }

    fn outcome(&mut self, applied: &AppliedAction) {
        let Action::SetTeam { program, .. } = applied.decision.action else { return };
        if let Some(search) = self.programs.get_mut(&program)
            && applied.refusal().is_some()
        {
            (search.trial, search.is_refused) = (None, true);
        }
    }

    fn inactions(&self, program: ProgramId) -> Vec<Inaction> {
        inaction(self.name(), self.programs.get(&program).and_then(|search| search.idle.as_ref()))
    }
}

impl PerProgram for Team {
    type State = Search;

    fn states(&mut self) -> &mut BTreeMap<ProgramId, Search> {
        &mut self.programs
    }

    fn new_state(&self, _: &Snapshot) -> Search {
        Search { pause_next: self.settings.pause, ..Search::default() }
    }

    fn step(&self, search: &mut Search, p: &ProgramSample, snapshot: &Snapshot) -> Vec<Decision> {
        let team = match &p.team {
            None => Err(NO_REGIONS),
            Some(team) if team.fixed => Err("the program sets the size of its teams itself"),
            Some(team) => Ok(team),
        };
        let team = team.map_err(|why| search.idle = Some(why.into())).ok();
        let team = team.filter(|team| team.size > 0);
        let change = team.and_then(|team| self.next_size(search, snapshot, p, team));
        let decision = |(size, why)| {
            let action = Action::SetTeam { program: p.id, size: Some(size) };
            Decision { policy: "team", action, why }
        };
        change.map(decision).into_iter().collect()
    }
}

#[cfg(test)]
mod tests;
