//! Team: how many threads the next parallel region of a running OpenMP program should get.
//!
//! Thread Reinforcer (Pusukuri, *Runtime Support for Maximizing Performance on Multicore Systems*, 2012, chapter 2) runs
//! a program again and again with more threads, because a running program would not change its count. An OpenMP
//! program does: each parallel region gets a team of its own, and its size can be set from outside. So the search goes
//! on inside one run, and follows phases. The signs are the thesis' (what the CPUs are used for, time lost to waiting,
//! others' load), the verdict is better than any sign: the mean time of the very regions that the program executes.
//!
//! ```text
//!            a sign asks for another size           the regions became faster
//!  Settled ------------------------------> Trying -----------------------------> Settled (new size)
//!     ^                                       |
//!     +---------------------------------------+  they did not, or other regions came: back to the old size,
//!                                                and the next try of that kind waits twice as long
//! ```
//!
//! A program that was told its thread count, and may rely on it, is left alone ([`TeamSample::fixed`]).

use corebeat_machine::{Action, Decision, Policy, ProgramId, ProgramSample, Snapshot, TeamSample};
use std::collections::BTreeMap;

/// How willing [`Team`] is to try another size, and what it takes for proof.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TeamSettings {
    /// How much less time the same regions must take, as a share from 0 to 1, for a new size to stay. Ours: twice the
    /// spread of one-second means on a quiet host.
    pub gain_min: f64,
    /// What share of the time in regions must be in regions known at both sizes, from 0 to 1, for a verdict. Ours.
    pub known_min: f64,
    /// Snapshots that a try may take until the first region of the new size has ended. Ours.
    pub patience: u32,
    /// Snapshots until a try that failed may be repeated; doubled at every failure until the regions change. Ours: a
    /// try may cost half of one snapshot's progress, so the first dozen cost at most 5%, and ever less.
    pub pause: u32,
    /// CPUs' worth of useful work that a team may be short of a thread's and still keep that thread. Ours.
    pub slack_cpus: f64,
    /// Share of time that the team's threads wait for a CPU, from 0 to 1, from which on others' load counts. Ours.
    pub latency_min: f64,
}

impl Default for TeamSettings {
    fn default() -> Self {
        TeamSettings {
            gain_min: 0.02,
            known_min: 0.8,
            patience: 3,
            pause: 10,
            slack_cpus: 0.1,
            latency_min: 0.1,
        }
    }
}

/// The policy. See the [module](self) for how it works.
#[derive(Debug)]
pub struct Team {
    cpus: u32,
    settings: TeamSettings,
    programs: BTreeMap<ProgramId, Search>,
}

/// What is known about one program.
#[derive(Debug, Default)]
struct Search {
    /// Mean time of a region at a size, in nanoseconds; the last measurement counts half.
    mean_ns: BTreeMap<(u64, u32), f64>,
    /// The try that is going on.
    trying: Option<Try>,
    /// Snapshots until the next try.
    pause_left: u32,
    /// The pause after the next failure.
    pause_next: u32,
    /// The region that most time went to; another one means another phase.
    main_region: Option<u64>,
    /// The largest size below the present one that was no improvement.
    too_small: Option<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Try {
    from: u32,
    to: u32,
    patience_left: u32,
}

impl Team {
    /// A policy for a machine with this many CPUs.
    pub fn new(cpus: u32, settings: TeamSettings) -> Self {
        Team { cpus: cpus.max(1), settings, programs: BTreeMap::new() }
    }

    fn decide_for(
        &mut self,
        seen: &Snapshot,
        program: &ProgramSample,
        team: &TeamSample,
    ) -> Option<(u32, String)> {
        let settings = self.settings;
        let fresh = || Search { pause_next: settings.pause, ..Search::default() };
        let search = self.programs.entry(program.id).or_insert_with(fresh);
        search.follow_phase(team, settings);
        let verdict = search.trying.map(|t| (t, search.verdict(t, team, settings)));
        search.learn(team);
        match verdict {
            Some((_, Verdict::Wait)) => None,
            Some((t, Verdict::Faster(gain))) => {
                search.settle(settings.pause, 0);
                search.too_small = None;
                (team.size != t.to).then(|| (t.to, format!("regions take {:.0}% less time", gain * 100.0)))
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
                let (to, why) = wish(self.cpus, settings, seen, program, team)?;
                let to = search.between(to, team.size);
                search.trying = Some(Try { from: team.size, to, patience_left: settings.patience });
                Some((to, why))
            }
        }
    }
}

/// What the regions say about a try.
enum Verdict {
    Wait,
    Faster(f64),
    Back(String),
}

impl Search {
    /// Forgets old failures when most time goes to another region than before.
    fn follow_phase(&mut self, team: &TeamSample, settings: TeamSettings) {
        let mut time_ns: BTreeMap<u64, u64> = BTreeMap::new();
        for r in &team.regions {
            *time_ns.entry(r.region).or_default() += r.time_ns;
        }
        let Some((&main, _)) = time_ns.iter().max_by_key(|&(_, ns)| ns) else { return };
        if self.main_region.is_some_and(|m| m != main) && self.trying.is_none() {
            self.settle(settings.pause, 0);
            self.too_small = None;
        }
        self.main_region = Some(main);
    }

    fn settle(&mut self, pause_next: u32, pause_left: u32) {
        self.trying = None;
        self.pause_next = pause_next;
        self.pause_left = pause_left;
    }

    /// The size to try where this one is wished for. Who waits shows how much work there is at the present size, not how much there would be
    /// at another: parts that are cut evenly, or threads that spin for a lock, hide some of it. So after a size that was too small comes
    /// the one half way, until there is none left; then the search begins again.
    fn between(&mut self, wished: u32, size: u32) -> u32 {
        let Some(small) = self.too_small.filter(|&small| wished < size && wished <= small) else {
            return wished;
        };
        let half = (small + size).div_ceil(2);
        if half < size {
            return half;
        }
        self.too_small = None;
        wished
    }

    fn learn(&mut self, team: &TeamSample) {
        for r in team.regions.iter().filter(|r| r.count > 0) {
            let now = r.time_ns as f64 / r.count as f64;
            self.mean_ns.entry((r.region, r.size)).and_modify(|m| *m = (*m + now) / 2.0).or_insert(now);
        }
    }

    fn verdict(&mut self, t: Try, team: &TeamSample, settings: TeamSettings) -> Verdict {
        let tried: Vec<_> = team.regions.iter().filter(|r| r.size == t.to && r.count > 0).collect();
        if tried.is_empty() {
            let Some(left) = t.patience_left.checked_sub(1) else {
                return Verdict::Back(format!("no region ended with {} threads", t.to));
            };
            self.trying = Some(Try { patience_left: left, ..t });
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
            return Verdict::Back(format!("other regions came while {} threads were tried", t.to));
        }
        let gain = 1.0 - took / before;
        if gain >= settings.gain_min {
            Verdict::Faster(gain)
        } else {
            Verdict::Back(format!(
                "with {} threads regions took {:.0}% more time",
                t.to,
                (-gain * 100.0).max(0.0)
            ))
        }
    }
}

/// The size that the signs ask for, if it is another one.
fn wish(
    cpus: u32,
    settings: TeamSettings,
    seen: &Snapshot,
    program: &ProgramSample,
    team: &TeamSample,
) -> Option<(u32, String)> {
    let span_ns = seen.span_ns;
    let running = program.cpus(span_ns, |s| s.running())?;
    let useful = running - program.cpus(span_ns, |s| s.spin).unwrap_or(0.0);
    let others = seen.host.others_runnable.unwrap_or(0.0);
    let latency = program.cpus(span_ns, |s| s.latency).unwrap_or(0.0);
    let top = team.size_max.min(cpus);

    // As many threads as there is useful work for: the rest spins, or sleeps in a barrier.
    let enough = (useful + settings.slack_cpus).ceil().max(1.0) as u32;
    if enough < team.size && running > 0.0 {
        return Some((enough, format!("{useful:.1} CPUs do useful work for {} threads", team.size)));
    }
    // Christmann et al. 2012, section 4: a defensive program takes the CPUs that others leave.
    let free = cpus.saturating_sub(others.round() as u32).max(1);
    if latency > settings.latency_min * f64::from(team.size) && free < team.size {
        return Some((
            free,
            format!("{others:.1} threads of others want CPUs, and the team waits for its own"),
        ));
    }
    // Room above: every thread works, and there is a CPU that nobody uses.
    let idle = f64::from(cpus) - running - seen.host.others_busy.unwrap_or(0.0);
    if team.size < top && useful > f64::from(team.size) * 0.9 && idle > 0.5 {
        return Some((top, format!("all {} threads work, and {idle:.1} CPUs are idle", team.size)));
    }
    // Threads that wait for something that is neither a lock nor a CPU: more of them may keep the CPUs busy.
    let asleep = program.cpus(span_ns, |s| s.sleep).unwrap_or(0.0);
    if team.size < team.size_max && team.size >= top && idle > 0.5 && asleep > 0.5 * f64::from(team.size) {
        let to = team.size_max.min(team.size.saturating_mul(2));
        return Some((to, format!("threads wait for I/O, and {idle:.1} CPUs are idle")));
    }
    None
}

impl Policy for Team {
    fn name(&self) -> &'static str {
        "team"
    }

    fn decide(&mut self, seen: &Snapshot) -> Vec<Decision> {
        self.programs.retain(|id, _| seen.programs.iter().any(|p| p.id == *id));
        let mut decisions = Vec::new();
        for program in &seen.programs {
            let Some(team) = program.team.as_ref().filter(|t| !t.fixed && t.size > 0) else { continue };
            if let Some((size, why)) = self.decide_for(seen, program, team) {
                let action = Action::SetTeam { program: program.id, size: Some(size) };
                decisions.push(Decision { action, why });
            }
        }
        decisions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corebeat_machine::{Counters, HostSample, RegionSample, ThreadId, ThreadSample, TimeShares};
    use proptest::prelude::*;

    /// A program of one region per phase: how long it takes and how many CPUs do useful work, by team size.
    struct Model {
        time_ns: fn(phase: u64, size: u32) -> f64,
        useful: fn(phase: u64, size: u32) -> f64,
        size: u32,
        size_max: u32,
        fixed: bool,
        others: f64,
    }

    impl Model {
        fn snapshot(&self, phase: u64) -> Snapshot {
            let (size, span_ns) = (self.size, 1_000_000_000);
            let time = (self.time_ns)(phase, size);
            let count = (span_ns as f64 / time) as u64;
            let useful = (self.useful)(phase, size) / f64::from(size);
            let thread = |tid| ThreadSample {
                id: ThreadId { tid, start_ticks: 1 },
                pid: 1,
                name: "t".into(),
                cpu: None,
                span_ns,
                shares: TimeShares {
                    user: Some(1.0),
                    system: Some(0.0),
                    lock: Some(0.0),
                    latency: Some(if self.others > 0.0 { 0.3 } else { 0.0 }),
                    sleep: Some(0.0),
                    spin: Some(1.0 - useful),
                },
                counters: Counters::default(),
            };
            let regions = (count > 0).then_some(RegionSample {
                region: phase,
                size,
                count,
                time_ns: (count as f64 * time) as u64,
            });
            let team = TeamSample {
                size_max: self.size_max,
                size,
                fixed: self.fixed,
                regions: regions.into_iter().collect(),
            };
            let program = ProgramSample {
                id: ProgramId(1),
                name: "m".into(),
                threads: (1..=size as i32).map(thread).collect(),
                io_bytes: None,
                team: Some(team),
                pulse: None,
            };
            let host = HostSample {
                others_busy: Some(self.others),
                others_runnable: Some(self.others),
                ..HostSample::default()
            };
            Snapshot { at_ns: 0, span_ns, host, programs: vec![program] }
        }

        /// Runs for some snapshots; the sizes after each.
        fn run(&mut self, policy: &mut Team, phases: impl IntoIterator<Item = u64>) -> Vec<u32> {
            let mut sizes = Vec::new();
            for phase in phases {
                for d in policy.decide(&self.snapshot(phase)) {
                    let Action::SetTeam { size: Some(size), .. } = d.action else { panic!("{d:?}") };
                    self.size = size;
                }
                sizes.push(self.size);
            }
            sizes
        }
    }

    fn scalable() -> Model {
        Model {
            time_ns: |_, n| 8e6 / f64::from(n),
            useful: |_, n| f64::from(n),
            size: 8,
            size_max: 8,
            fixed: false,
            others: 0.0,
        }
    }

    fn policy() -> Team {
        Team::new(8, TeamSettings::default())
    }

    /// Two CPUs' worth of work, and each further thread makes it slower.
    fn saturated() -> Model {
        Model {
            time_ns: |_, n| 4e6 / f64::from(n.min(2)) * (1.0 + 0.1 * f64::from(n.saturating_sub(2))),
            useful: |_, n| f64::from(n.min(2)) * 0.95,
            ..scalable()
        }
    }

    #[test]
    fn team_scalable_program_is_left_alone() {
        assert!(scalable().run(&mut policy(), vec![1; 50]).iter().all(|&n| n == 8));
    }

    #[test]
    fn team_saturated_program_shrinks_to_its_work_and_stays() {
        let sizes = saturated().run(&mut policy(), vec![1; 50]);
        assert_eq!(sizes[5], 2, "{sizes:?}");
        assert!(sizes.iter().skip(6).filter(|&&n| n != 2).count() <= 4, "{sizes:?}");
    }

    #[test]
    fn team_useless_shrink_is_taken_back() {
        // Half the threads spin, but without them it is slower all the same.
        let mut m = Model { useful: |_, n| f64::from(n) / 2.0, ..scalable() };
        let sizes = m.run(&mut policy(), vec![1; 200]);
        let away = sizes.iter().filter(|&&n| n != 8).count();
        assert!((1..=6).contains(&away), "tries become rare: {away}");
    }

    #[test]
    fn team_size_between_one_that_is_too_small_and_the_present_one_is_found() {
        // Half of the threads wait for the others, as long as there are more than six; it looks as if four had enough to do.
        let mut m = Model {
            time_ns: |_, n| if n > 6 { 2e6 } else { 8e6 / f64::from(n) },
            useful: |_, n| if n > 6 { 3.9 } else { f64::from(n) },
            ..scalable()
        };
        let sizes = m.run(&mut policy(), vec![1; 60]);
        assert_eq!(sizes[..2], [4, 8], "four is no gain: {sizes:?}");
        // Then all of them try, ever more seldom.
        assert!(sizes[12..].iter().filter(|&&n| n == 6).count() > 40, "{sizes:?}");
        // Without a gain between them the search begins anew, ever more seldom.
        let mut m = Model { useful: |_, n| f64::from(n) / 2.0, ..scalable() };
        let mut tried: Vec<u32> = m.run(&mut policy(), vec![1; 300]);
        tried.retain(|&n| n != 8);
        assert_eq!(tried, [5, 7, 5, 7, 5]);
    }

    #[test]
    fn team_new_phase_is_followed() {
        let mut m = Model {
            time_ns: |phase, n| if phase == 1 { (saturated().time_ns)(1, n) } else { 8e6 / f64::from(n) },
            useful: |phase, n| if phase == 1 { (saturated().useful)(1, n) } else { f64::from(n) },
            ..scalable()
        };
        let sizes = m.run(&mut policy(), [vec![1; 20], vec![2; 20]].concat());
        assert_eq!((sizes[19], sizes[39]), (2, 8), "{sizes:?}");
    }

    #[test]
    fn team_others_load_shrinks_where_it_helps() {
        // A spinning team of 8 beside 4 others: whole time slices are lost unless it makes room.
        let mut m = Model {
            time_ns: |_, n| if n > 4 { 9e6 } else { 8e6 / f64::from(n) },
            useful: |_, n| f64::from(n) - 0.2,
            others: 4.0,
            ..scalable()
        };
        assert_eq!(m.run(&mut policy(), vec![1; 5]).last(), Some(&4));
    }

    #[test]
    fn team_fixed_count_is_never_touched() {
        let mut m = Model { fixed: true, ..saturated() };
        assert!(m.run(&mut policy(), vec![1; 20]).iter().all(|&n| n == 8));
    }

    #[test]
    fn team_region_that_never_ends_is_given_up() {
        let mut m =
            Model { time_ns: |_, n| if n == 8 { 1e6 } else { 1e12 }, useful: |_, _| 1.0, ..scalable() };
        let sizes = m.run(&mut policy(), vec![1; 8]);
        assert_eq!((sizes[0], sizes[7]), (2, 8), "{sizes:?}");
    }

    proptest! {
        /// Whatever the machine says: sizes stay within bounds, and the number of changes is bounded by the pauses.
        #[test]
        fn team_any_samples_size_is_in_bounds(
            rows in proptest::collection::vec((0u64..4, 0u64..1_000_000_000, 0u64..50, 0.0f64..=1.0, 0.0f64..9.0), 1..120),
            cpus in 1u32..9,
            size_max in 1u32..20,
        ) {
            let mut policy = Team::new(cpus, TeamSettings::default());
            let mut m = Model { size: size_max.min(cpus), size_max, ..scalable() };
            for (phase, time_ns, count, spin, others) in rows {
                let mut seen = m.snapshot(phase);
                seen.host.others_runnable = Some(others);
                let p = &mut seen.programs[0];
                p.threads.iter_mut().for_each(|t| t.shares.spin = Some(spin));
                p.team.as_mut().unwrap().regions = vec![RegionSample { region: phase, size: m.size, count, time_ns }];
                for d in policy.decide(&seen) {
                    let Action::SetTeam { size: Some(size), .. } = d.action else { panic!("{d:?}") };
                    prop_assert!((1..=size_max).contains(&size));
                    m.size = size;
                }
            }
        }
    }
}
