//! Rules that switch probes off if they cost too much, and try them again later.

use crate::count;
use crate::error::Error;
use crate::pattern::Pattern;
use crate::probe::{Probe, Switching, probes};
use corebeat_sync::fork::{Process, Uninherited};
use corebeat_sync::quiet;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Default cost of a recorded call in nanoseconds, which is the target of the benchmark `probe`.
const CALL_NS: f64 = 30.0;
/// Shortest period of a [`RuleRunner`]: a shorter one would take more CPU time than the probes.
pub const RULE_PERIOD_MIN: Duration = Duration::from_millis(1);
/// Limit on the number of periods for which a probe rests.
const REST_PERIODS_MAX: u32 = 64;

/// The permitted cost of a [`Rule`].
#[derive(Debug, Clone, Copy)]
pub struct RuleOptions {
    /// Largest share of one CPU's time that all probes together may take, a finite number from 0;
    /// 0.01, the default, is 1%.
    pub share_max: f64,
    /// Cost of a recorded call in nanoseconds, a finite number from 0; by default 30.
    pub call_ns: f64,
}

impl Default for RuleOptions {
    fn default() -> Self {
        RuleOptions { share_max: 0.01, call_ns: CALL_NS }
    }
}

/// Decides which probes are switched off to keep their cost below a bound.
///
/// The rule implements the idea of adaptive monitoring in Ehlers and others, *Self-adaptive
/// software system monitoring for performance anomaly localization*, 2011 (reference 4 in Waller
/// and Hasselbring): everything is instrumented, and little of it is on. In each period, the cost
/// of a probe is its number of calls times the cost of a call. While the sum exceeds the bound, the
/// rule switches off the most expensive probe. The probe rests for one period and is then tried
/// again. Each time that it is too expensive it rests twice as long, up to 64 periods. The rule
/// tries one probe per period: the cheapest of those that have rested.
///
/// ```
/// use corebeat_probe::{Rule, RuleOptions};
///
/// let mut rule = Rule::new(RuleOptions { share_max: 0.01, call_ns: 30.0 })?;
/// // In one second, probe 0 was called 100,000 times, probe 1 a million times: 0.3% and 3%.
/// assert_eq!(rule.step(1_000_000_000, &[100_000, 1_000_000]), [(1, false)]);
/// assert_eq!(rule.step(1_000_000_000, &[100_000, 0]), [(1, true)]);
/// # Ok::<(), corebeat_probe::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Rule {
    options: RuleOptions,
    /// Probes that the rule has switched off, or on again for a trial.
    known: BTreeMap<usize, Expensive>,
}

#[derive(Debug, Clone, Copy)]
struct Expensive {
    /// Remaining periods of rest; `None`: the probe is on trial.
    rest_periods: Option<u32>,
    /// Length of the last rest.
    last_rest_periods: u32,
    cost_ns: f64,
}

impl Rule {
    /// A rule with these options.
    ///
    /// # Errors
    ///
    /// [`Error::RuleOption`] for a number that is negative, infinite or NaN.
    pub fn new(options: RuleOptions) -> Result<Rule, Error> {
        let RuleOptions { share_max, call_ns } = options;
        for (option, value) in [("share_max", share_max), ("call_ns", call_ns)] {
            if !value.is_finite() || value < 0.0 {
                return Err(Error::RuleOption { option, value });
            }
        }
        Ok(Rule { options, known: BTreeMap::new() })
    }

    /// Evaluates a period of `elapsed_ns` nanoseconds with this number of calls of each probe.
    /// Returns the probes to be switched: the index in `calls`, and the new state.
    pub fn step(&mut self, elapsed_ns: u64, calls: &[u64]) -> Vec<(usize, bool)> {
        let RuleOptions { share_max, call_ns } = self.options;
        let cost_ns: Vec<f64> = calls.iter().map(|calls| *calls as f64 * call_ns).collect();
        let mut over_ns = cost_ns.iter().sum::<f64>() - share_max * elapsed_ns as f64;
        let mut switches = Vec::new();
        let mut by_cost: Vec<_> = (0..calls.len()).filter(|p| calls[*p] > 0).collect();
        by_cost.sort_by(|a, b| cost_ns[*b].total_cmp(&cost_ns[*a]));
        for probe in by_cost {
            let rests = self.known.get(&probe).is_some_and(|known| known.rest_periods.is_some());
            if over_ns <= 0.0 {
                // A probe that is on and may stay on has passed its trial.
                if !rests {
                    self.known.remove(&probe);
                }
                continue;
            }
            over_ns -= cost_ns[probe];
            // A resting probe was called in the period in which it was switched off.
            if rests {
                continue;
            }
            let last = self.known.get(&probe).map_or(0, |known| known.last_rest_periods);
            let rest = (last * 2).clamp(1, REST_PERIODS_MAX);
            let (rest_periods, cost_ns) = (Some(rest), cost_ns[probe]);
            let expensive = Expensive { rest_periods, last_rest_periods: rest, cost_ns };
            self.known.insert(probe, expensive);
            switches.push((probe, false));
        }
        if switches.is_empty() {
            switches.extend(self.rest().map(|probe| (probe, true)));
        }
        switches
    }

    /// Counts a period of rest. Returns a probe that has rested enough.
    fn rest(&mut self) -> Option<usize> {
        for probe in self.known.values_mut() {
            probe.rest_periods = probe.rest_periods.map(|periods| periods.saturating_sub(1));
        }
        let rested = self.known.iter().filter(|(_, probe)| probe.rest_periods == Some(0));
        let (&probe, _) = rested.min_by(|a, b| a.1.cost_ns.total_cmp(&b.1.cost_ns))?;
        if let Some(known) = self.known.get_mut(&probe) {
            known.rest_periods = None;
        }
        Some(probe)
    }
}

/// Whether a runner is active: two runners would count each other's calls and undo each other's
/// switches.
static IS_ACTIVE: AtomicBool = AtomicBool::new(false);

/// Applies a rule periodically until this value is dropped. Then all probes that the user has
/// switched on are on again. A process has at most one runner at a time.
///
/// A runner makes each thread count its calls, which takes one or two nanoseconds per call.
///
/// In a child of fork no thread applies the rule, and its probes stay as they were at the fork.
/// Drop the runner there, and start another one.
#[derive(Debug)]
pub struct RuleRunner {
    /// The process that started the runner: the thread does not exist in a child of fork.
    process: Process,
    shared: Arc<Shared>,
    thread: Option<Uninherited<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    rule: Mutex<State>,
    stopped: AtomicBool,
}

#[derive(Debug)]
struct State {
    rule: Rule,
    pattern: Pattern,
    /// Whether the rule applies to each probe, by number. Shorter if probes were added.
    watched: Vec<bool>,
    /// Number of calls of each probe up to the last period.
    before: Vec<u64>,
}

impl RuleRunner {
    /// Starts a rule for the probes that match a pattern. A thread applies it once per `period`, of
    /// at least [`RULE_PERIOD_MIN`]; if `period` is `None`, the program calls [`RuleRunner::step`].
    ///
    /// # Errors
    ///
    /// The pattern is invalid, the period is too short ([`Error::RulePeriod`]), a runner is active
    /// already ([`Error::RuleActive`]), or the thread cannot be started.
    pub fn start(rule: Rule, pattern: &str, period: Option<Duration>) -> Result<RuleRunner, Error> {
        if let Some(period) = period.filter(|period| *period < RULE_PERIOD_MIN) {
            return Err(Error::RulePeriod(period));
        }
        let pattern = Pattern::new(pattern)?;
        // Acquire, Release: a new runner reads everything that the last one wrote.
        if IS_ACTIVE.swap(true, Ordering::AcqRel) {
            return Err(Error::RuleActive);
        }
        Switching::begin().count(true);
        let watched = Vec::new();
        let rule = Mutex::new(State { rule, pattern, watched, before: count::sums() });
        let shared = Arc::new(Shared { rule, stopped: AtomicBool::new(false) });
        let mut runner =
            RuleRunner { process: Process::current(), shared: shared.clone(), thread: None };
        if let Some(period) = period {
            let thread = quiet::spawn("probe rule", move || {
                let mut last = Instant::now();
                // Relaxed: no other data depends on the flag.
                while !shared.stopped.load(Ordering::Relaxed) {
                    let left = period.saturating_sub(last.elapsed());
                    if !left.is_zero() {
                        std::thread::park_timeout(left);
                        continue;
                    }
                    let now = Instant::now();
                    shared.step(now.duration_since(last));
                    last = now;
                }
            });
            let thread = thread.map_err(|source| Error::Thread { of: "the rule", source })?;
            runner.thread = Some(Uninherited::new(thread));
        }
        Ok(runner)
    }

    /// Ends a period of this length. Returns the number of probes that were switched: none in a
    /// child of fork.
    pub fn step(&self, elapsed: Duration) -> usize {
        // The thread may have held the lock of the rule at the fork.
        if self.process.is_current() { self.shared.step(elapsed) } else { 0 }
    }
}

impl Shared {
    fn step(&self, elapsed: Duration) -> usize {
        let mut state = self.rule.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        let after = count::sums();
        state.before.resize(after.len(), 0);
        let probes: Vec<&Probe> = probes().collect();
        let added = probes.iter().skip(state.watched.len());
        state.watched.extend(added.map(|probe| state.pattern.matches(probe.name())));
        let calls: Vec<u64> = after
            .iter()
            .zip(&state.before)
            .zip(&state.watched)
            .map(|((after, before), watched)| if *watched { after - before } else { 0 })
            .collect();
        state.before = after;
        let elapsed_ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        let switches = state.rule.step(elapsed_ns, &calls);
        let switching = Switching::begin();
        for &(number, on) in &switches {
            if let Some(probe) = probes.get(number) {
                switching.set_by_rule(probe, number, on);
            }
        }
        switches.len()
    }
}

impl Drop for RuleRunner {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take().and_then(Uninherited::into_inner) {
            thread.thread().unpark();
            let _ = thread.join();
        }
        Switching::begin().count(false);
        IS_ACTIVE.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(not(miri))]
    use corebeat_test_group::in_child;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn probes_below_the_bound_stay_on() {
        let mut rule = rule(0.1, 10.0);
        for _ in 0..100 {
            assert_eq!(rule.step(SECOND, &[1_000_000, 9_000_000]), []);
        }
    }

    #[test]
    fn only_the_most_expensive_probe_is_switched_off() {
        let mut rule = rule(0.1, 10.0);
        assert_eq!(rule.step(SECOND, &[5_000_000, 8_000_000, 4_000_000]), [(1, false)]);
    }

    #[test]
    fn rest_of_an_expensive_probe_doubles_up_to_its_limit() {
        let mut rule = rule(0.1, 10.0);
        let (mut on, mut periods_on) = (true, Vec::new());
        for period in 0..400 {
            if on {
                periods_on.push(period);
            }
            for (_, switched) in rule.step(SECOND, &[if on { 50_000_000 } else { 0 }]) {
                on = switched;
            }
        }
        let gaps: Vec<_> = periods_on.windows(2).map(|w| w[1] - w[0]).collect();
        assert_eq!(gaps, [2, 3, 5, 9, 17, 33, 65, 65, 65, 65, 65]);
    }

    #[test]
    fn probe_that_became_cheap_stays_on() {
        let mut rule = rule(0.1, 10.0);
        assert_eq!(rule.step(SECOND, &[50_000_000]), [(0, false)]);
        assert_eq!(rule.step(SECOND, &[0]), [(0, true)]);
        assert_eq!(rule.step(SECOND, &[1_000]), []);
        assert!(rule.known.is_empty());
    }

    #[test]
    fn invalid_options_are_refused() {
        assert!(Rule::new(RuleOptions { share_max: 0.0, call_ns: 0.0 }).is_ok());
        for value in [-1.0, -1e300, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let share = Rule::new(RuleOptions { share_max: value, ..RuleOptions::default() });
            let cost = Rule::new(RuleOptions { call_ns: value, ..RuleOptions::default() });
            for refused in [share, cost] {
                let refused = refused.unwrap_err().to_string();
                assert!(refused.len() < 90 && refused.contains("from 0"), "{refused}");
            }
        }
    }

    #[cfg(not(miri))]
    #[test]
    fn child_replaces_a_runner_although_a_thread_of_its_parent_switched_probes() {
        let start = || RuleRunner::start(rule(0.1, 10.0), "*", None);
        let mut own = Some(start().unwrap());
        let held = Switching::begin();
        assert!(in_child(|| {
            let inherited = own.take().unwrap();
            let has_no_effect = inherited.step(Duration::from_millis(1)) == 0;
            drop(inherited);
            has_no_effect && start().is_ok()
        }));
        drop(held);
    }

    fn rule(share_max: f64, call_ns: f64) -> Rule {
        Rule::new(RuleOptions { share_max, call_ns }).unwrap()
    }

    proptest! {
        // If the numbers of calls do not change, the cost of the remaining probes is below the
        // bound.
        #[test]
        fn remaining_probes_are_below_the_bound(
            calls in proptest::collection::vec(0u64..10_000_000, 1..20),
        ) {
            let mut rule = rule(0.05, 20.0);
            let off: Vec<_> = rule.step(SECOND, &calls).iter().map(|(probe, _)| *probe).collect();
            let left: u64 = (0..calls.len()).filter(|p| !off.contains(p)).map(|p| calls[p]).sum();
            prop_assert!(left as f64 * 20.0 <= 0.05 * SECOND as f64);
            if let Some(probe) = off.iter().min_by_key(|p| calls[**p]) {
                let with_cheapest = (left + calls[*probe]) as f64 * 20.0;
                prop_assert!(with_cheapest > 0.05 * SECOND as f64, "one probe too many is off");
            }
        }
    }
}
