//! Rules that switch probes off when they cost too much, and try them again.

use crate::count;
use crate::error::Error;
use crate::pattern::Pattern;
use crate::probe::{Switching, probes};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What a recorded call takes its thread, in nanoseconds: the goal that `bench` measures against.
const CALL_NS: f64 = 30.0;
/// Turns for which a probe rests, at most.
const REST_TURNS_MAX: u32 = 64;

/// How much probes may cost, and which are switched off when they cost more.
///
/// After the idea of adaptive monitoring in Ehlers and others, *Self-adaptive software system monitoring for performance anomaly
/// localization*, 2011 (reference 4 in Waller and Hasselbring): all is instrumented, and little of it is on. Turn by turn, each probe's
/// cost is its calls times what one takes. While all together are over the bound, the dearest goes off. It rests for a turn, then is tried
/// again; each time that it was too dear it rests twice as long, up to 64 turns. One is tried a turn, the cheapest of those that have rested.
///
/// ```
/// let mut rule = corebeat_probe::Rule::new(0.01).call_ns(30.0); // 1% of a CPU
/// // In a second, probe 0 was called 100,000 times, and probe 1 a million times: 0.3% and 3%.
/// assert_eq!(rule.turn(1_000_000_000, &[100_000, 1_000_000]), [(1, false)]);
/// assert_eq!(rule.turn(1_000_000_000, &[100_000, 0]), [(1, true)]);
/// ```
#[derive(Debug, Clone)]
pub struct Rule {
    share_max: f64,
    call_ns: f64,
    /// Those that are off for the rule's sake, or on again, and how dear they were.
    known: BTreeMap<usize, Dear>,
}

#[derive(Debug, Clone, Copy)]
struct Dear {
    /// Turns for which it is to rest still; `None`: it is tried.
    rest_turns: Option<u32>,
    /// Turns for which it rested last.
    last_rest_turns: u32,
    cost_ns: f64,
}

impl Rule {
    /// Probes may take this share of one CPU's time, all together; 0.01 is 1%.
    pub fn new(share_max: f64) -> Rule {
        Rule { share_max: share_max.max(0.0), call_ns: CALL_NS, known: BTreeMap::new() }
    }

    /// What a recorded call takes its thread here, in nanoseconds; 30 if nothing is said.
    pub fn call_ns(mut self, call_ns: f64) -> Rule {
        self.call_ns = call_ns.max(0.0);
        self
    }

    /// What is to be switched after a turn of so many nanoseconds, in which the probes were called so often: the probe's number in
    /// `calls`, and whether it is to be on.
    pub fn turn(&mut self, elapsed_ns: u64, calls: &[u64]) -> Vec<(usize, bool)> {
        let cost_ns: Vec<f64> = calls.iter().map(|calls| *calls as f64 * self.call_ns).collect();
        let mut over_ns = cost_ns.iter().sum::<f64>() - self.share_max * elapsed_ns as f64;
        let mut switches = Vec::new();
        let mut by_cost: Vec<_> = (0..calls.len()).filter(|p| calls[*p] > 0).collect();
        by_cost.sort_by(|a, b| cost_ns[*b].total_cmp(&cost_ns[*a]));
        for probe in by_cost {
            let rests = self.known.get(&probe).is_some_and(|dear| dear.rest_turns.is_some());
            if over_ns <= 0.0 {
                // What is on, and did not have to go, was tried well.
                if !rests {
                    self.known.remove(&probe);
                }
                continue;
            }
            over_ns -= cost_ns[probe];
            // One that rests was called in the turn in which it was switched off.
            if rests {
                continue;
            }
            let last = self.known.get(&probe).map_or(0, |dear| dear.last_rest_turns);
            let rest = (last * 2).clamp(1, REST_TURNS_MAX);
            let dear = Dear { rest_turns: Some(rest), last_rest_turns: rest, cost_ns: cost_ns[probe] };
            self.known.insert(probe, dear);
            switches.push((probe, false));
        }
        if switches.is_empty() {
            switches.extend(self.rest().map(|probe| (probe, true)));
        }
        switches
    }

    /// Lets those rest that do; one that has rested enough.
    fn rest(&mut self) -> Option<usize> {
        for dear in self.known.values_mut() {
            dear.rest_turns = dear.rest_turns.map(|turns| turns.saturating_sub(1));
        }
        let rested = self.known.iter().filter(|(_, dear)| dear.rest_turns == Some(0));
        let (&probe, _) = rested.min_by(|a, b| a.1.cost_ns.total_cmp(&b.1.cost_ns))?;
        if let Some(dear) = self.known.get_mut(&probe) {
            dear.rest_turns = None;
        }
        Some(probe)
    }
}

/// Whether there is a keeper: two would count calls for each other, and switch each other's probes.
static IS_KEPT: AtomicBool = AtomicBool::new(false);

/// A rule at work, turn by turn, until this is dropped: then all that the user wants on is on. A process has one at a time.
///
/// Calls are counted meanwhile, by each thread for itself, which takes a nanosecond or two of each call.
#[derive(Debug)]
pub struct Keeper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    rule: Mutex<Turns>,
    over: AtomicBool,
}

#[derive(Debug)]
struct Turns {
    rule: Rule,
    /// Which probes it is for, by number.
    watched: Vec<bool>,
    /// Calls up to the last turn.
    before: Vec<u64>,
}

impl Keeper {
    /// Begins, for the probes that fit a pattern. A thread takes a turn each `period`; where it is `None`, the program does, by [`Keeper::turn`].
    ///
    /// # Errors
    ///
    /// The pattern is of no use, there is a keeper already ([`Error::Kept`]), or the thread cannot be started.
    pub fn start(rule: Rule, pattern: &str, period: Option<Duration>) -> Result<Keeper, Error> {
        let pattern = Pattern::new(pattern)?;
        let watched = probes().map(|probe| pattern.fits(probe.name())).collect();
        // Acquire, Release: who has it sees what the one before has left.
        if IS_KEPT.swap(true, Ordering::AcqRel) {
            return Err(Error::Kept);
        }
        Switching::begin().count(true);
        let rule = Mutex::new(Turns { rule, watched, before: count::sums() });
        let shared = Arc::new(Shared { rule, over: AtomicBool::new(false) });
        let mut keeper = Keeper { shared: shared.clone(), thread: None };
        if let Some(period) = period {
            let builder = std::thread::Builder::new().name("probe keeper".into());
            let thread = builder.spawn(move || {
                let mut last = Instant::now();
                // Relaxed: a sign, with no more behind it.
                while !shared.over.load(Ordering::Relaxed) {
                    let left = period.saturating_sub(last.elapsed());
                    if !left.is_zero() {
                        std::thread::park_timeout(left);
                        continue;
                    }
                    let now = Instant::now();
                    shared.turn(now.duration_since(last));
                    last = now;
                }
            });
            keeper.thread = Some(thread.map_err(Error::Thread)?);
        }
        Ok(keeper)
    }

    /// Takes a turn after this time. How many probes were switched.
    pub fn turn(&self, elapsed: Duration) -> usize {
        self.shared.turn(elapsed)
    }
}

impl Shared {
    fn turn(&self, elapsed: Duration) -> usize {
        let mut turns = self.rule.lock().unwrap_or_else(PoisonError::into_inner);
        let turns = &mut *turns;
        let after = count::sums();
        let calls: Vec<u64> = after
            .iter()
            .zip(&turns.before)
            .zip(&turns.watched)
            .map(|((after, before), watched)| if *watched { after - before } else { 0 })
            .collect();
        turns.before = after;
        let elapsed_ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        let switches = turns.rule.turn(elapsed_ns, &calls);
        let switching = Switching::begin();
        switches.iter().for_each(|(probe, on)| switching.thin(*probe, *on));
        switches.len()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
        Switching::begin().count(false);
        IS_KEPT.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn probes_under_the_bound_stay_on() {
        let mut rule = Rule::new(0.1).call_ns(10.0);
        for _ in 0..100 {
            assert_eq!(rule.turn(SECOND, &[1_000_000, 9_000_000]), []);
        }
    }

    #[test]
    fn dearest_goes_first_and_no_more_than_must() {
        let mut rule = Rule::new(0.1).call_ns(10.0);
        assert_eq!(rule.turn(SECOND, &[5_000_000, 8_000_000, 4_000_000]), [(1, false)]);
    }

    #[test]
    fn probe_that_stays_dear_is_tried_ever_more_seldom() {
        let mut rule = Rule::new(0.1).call_ns(10.0);
        let (mut on, mut turns_on) = (true, Vec::new());
        for turn in 0..400 {
            if on {
                turns_on.push(turn);
            }
            for (_, switched) in rule.turn(SECOND, &[if on { 50_000_000 } else { 0 }]) {
                on = switched;
            }
        }
        let gaps: Vec<_> = turns_on.windows(2).map(|w| w[1] - w[0]).collect();
        assert_eq!(gaps, [2, 3, 5, 9, 17, 33, 65, 65, 65, 65, 65]);
    }

    #[test]
    fn probe_that_has_become_cheap_stays_on_and_is_forgiven() {
        let mut rule = Rule::new(0.1).call_ns(10.0);
        assert_eq!(rule.turn(SECOND, &[50_000_000]), [(0, false)]);
        assert_eq!(rule.turn(SECOND, &[0]), [(0, true)]);
        assert_eq!(rule.turn(SECOND, &[1_000]), []);
        assert!(rule.known.is_empty());
    }

    proptest! {
        // Probes that are called as often as they were: after the turn what is on is under the bound.
        #[test]
        fn what_stays_on_is_under_the_bound(calls in proptest::collection::vec(0u64..10_000_000, 1..20)) {
            let mut rule = Rule::new(0.05).call_ns(20.0);
            let off: Vec<_> = rule.turn(SECOND, &calls).iter().map(|(probe, _)| *probe).collect();
            let left: u64 = (0..calls.len()).filter(|p| !off.contains(p)).map(|p| calls[p]).sum();
            prop_assert!(left as f64 * 20.0 <= 0.05 * SECOND as f64);
            if let Some(probe) = off.iter().min_by_key(|p| calls[**p]) {
                prop_assert!((left + calls[*probe]) as f64 * 20.0 > 0.05 * SECOND as f64, "one too many is off");
            }
        }
    }
}
