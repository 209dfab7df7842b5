//! The control loop: wait, observe, decide, act.

use crate::Tally;
use corebeat_machine::{AppliedAction, Clock, Inaction, Machine, Policy, ProgramId, Snapshot};

/// Periods of a control loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Periods {
    /// Time from one observation to the next, in nanoseconds. Policies decide after each one.
    pub observe_ns: u64,
    /// Time from one sample ([`Machine::sample`]) to the next, in nanoseconds.
    pub sample_ns: u64,
}

impl Default for Periods {
    /// Half a second between observations, a tenth of a second between samples. FaithFul (Pusukuri
    /// 2012, section 5.2.4) observes once a second, but many programs run for a few seconds only.
    fn default() -> Self {
        Periods { observe_ns: 500_000_000, sample_ns: 100_000_000 }
    }
}

impl Periods {
    /// Periods for an observation every `observe_ms` milliseconds: five samples in each, and at
    /// least ten samples a second.
    pub fn every_ms(observe_ms: u64) -> Periods {
        Periods {
            observe_ns: observe_ms * 1_000_000,
            sample_ns: (observe_ms * 200_000).min(100_000_000),
        }
    }
}

/// The next step of the loop after a wait of the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Continues the wait for the next observation.
    Wait,
    /// Ends the wait: the next observation is due now.
    Observe,
    /// Ends the wait and the loop.
    End,
    /// Discards what happened since the last observation, and begins a new wait. The value is the
    /// time to the next observation from now on, in nanoseconds.
    Restart(u64),
    /// Sets the time from one observation to the next, in nanoseconds. Shortens the present wait if
    /// the new period ends earlier.
    SetPeriod(u64),
}

/// Configuration of a run of the loop: the steps of a wait, and the uses of snapshots and applied
/// actions.
pub trait Driver<M, C> {
    /// Selects the next step. The loop calls this function after every wait of the clock.
    fn poll(&mut self, machine: &mut M, clock: &mut C) -> Next;

    /// Receives each snapshot, and may change what the policies receive. Returns whether the
    /// policies decide about the snapshot. They never decide about the last one.
    fn observed(&mut self, _machine: &mut M, _clock: &mut C, _snapshot: &mut Snapshot) -> bool {
        true
    }

    /// Receives the applied and refused actions of all policies after one snapshot.
    fn applied(&mut self, _machine: &mut M, _applied: Vec<AppliedAction>) {}
}

/// A driver that adds up a run until a closure returns true.
struct Tallying<F> {
    ended: F,
    tally: Tally,
}

impl<M, C, F: FnMut(&mut M, &mut C) -> bool> Driver<M, C> for Tallying<F> {
    fn poll(&mut self, machine: &mut M, clock: &mut C) -> Next {
        if (self.ended)(machine, clock) { Next::End } else { Next::Wait }
    }

    fn observed(&mut self, _: &mut M, _: &mut C, snapshot: &mut Snapshot) -> bool {
        self.tally.add(snapshot);
        true
    }

    fn applied(&mut self, _: &mut M, applied: Vec<AppliedAction>) {
        self.tally.applied.extend(applied);
    }
}

/// The control loop around one machine.
pub struct Loop<M, C> {
    machine: M,
    clock: C,
    policies: Vec<Box<dyn Policy>>,
    periods: Periods,
}

impl<M: Machine, C: Clock> Loop<M, C> {
    /// Creates a loop that has not started. Policies decide in the order given.
    pub fn new(machine: M, clock: C, policies: Vec<Box<dyn Policy>>, periods: Periods) -> Self {
        Loop { machine, clock, policies, periods }
    }

    /// Runs until `ended` returns true, and returns the sum of the run. The loop calls `ended`
    /// after every wait of the clock.
    ///
    /// # Errors
    /// The machine cannot be observed.
    pub fn run(&mut self, ended: impl FnMut(&mut M, &mut C) -> bool) -> Result<Tally, M::Error> {
        let mut driver = Tallying { ended, tally: Tally::default() };
        self.drive(&mut driver)?;
        Ok(driver.tally)
    }

    /// Runs until the driver ends the loop. Observes the machine once more after the last wait, so
    /// that the driver receives the end.
    ///
    /// # Errors
    /// The machine cannot be observed.
    pub fn drive(&mut self, driver: &mut impl Driver<M, C>) -> Result<(), M::Error> {
        loop {
            let over = self.wait(|machine, clock| driver.poll(machine, clock))?;
            let mut snapshot = self.machine.observe()?;
            let decides = driver.observed(&mut self.machine, &mut self.clock, &mut snapshot);
            if over {
                return Ok(());
            }
            if decides {
                let applied = self.decide(&snapshot);
                driver.applied(&mut self.machine, applied);
            }
        }
    }

    /// Waits for the next observation and samples the machine meanwhile. Calls `poll` after every
    /// wait of the clock. Returns whether `poll` ended the loop.
    ///
    /// # Errors
    /// The machine cannot be observed after [`Next::Restart`].
    pub fn wait(&mut self, mut poll: impl FnMut(&mut M, &mut C) -> Next) -> Result<bool, M::Error> {
        let mut next_sample_ns = self.clock.now_ns().saturating_add(self.periods.sample_ns);
        let mut due_ns = self.clock.now_ns().saturating_add(self.periods.observe_ns);
        loop {
            self.clock.wait_until(next_sample_ns.min(due_ns));
            match poll(&mut self.machine, &mut self.clock) {
                Next::Wait => {}
                Next::Observe => return Ok(false),
                Next::End => return Ok(true),
                Next::Restart(observe_ns) => {
                    self.machine.observe()?;
                    self.periods.observe_ns = observe_ns;
                    next_sample_ns = self.clock.now_ns().saturating_add(self.periods.sample_ns);
                    due_ns = self.clock.now_ns().saturating_add(self.periods.observe_ns);
                }
                Next::SetPeriod(observe_ns) => {
                    self.periods.observe_ns = observe_ns;
                    due_ns = due_ns.min(self.clock.now_ns().saturating_add(observe_ns));
                }
            }
            let now_ns = self.clock.now_ns();
            if now_ns >= due_ns {
                return Ok(false);
            }
            if now_ns >= next_sample_ns {
                self.machine.sample();
                next_sample_ns = now_ns.saturating_add(self.periods.sample_ns);
            }
        }
    }

    /// Lets every policy decide about a snapshot, applies the decisions, and reports the outcomes
    /// to the policy. Returns what was applied.
    pub fn decide(&mut self, snapshot: &Snapshot) -> Vec<AppliedAction> {
        let Loop { machine, policies, .. } = self;
        policies.iter_mut().flat_map(|policy| apply(machine, &mut **policy, snapshot)).collect()
    }

    /// Why the policies last left a program as it is.
    pub fn inactions(&self, program: ProgramId) -> Vec<Inaction> {
        self.policies.iter().flat_map(|policy| policy.inactions(program)).collect()
    }

    /// Replaces the policies.
    pub fn set_policies(&mut self, policies: Vec<Box<dyn Policy>>) {
        self.policies = policies;
    }

    /// The periods.
    pub fn periods(&self) -> Periods {
        self.periods
    }

    /// Sets the periods from the next wait on.
    pub fn set_periods(&mut self, periods: Periods) {
        self.periods = periods;
    }

    /// The machine.
    pub fn machine(&mut self) -> &mut M {
        &mut self.machine
    }

    /// The clock.
    pub fn clock(&mut self) -> &mut C {
        &mut self.clock
    }
}

/// Lets a policy decide about a snapshot, applies its decisions in order, and reports every outcome
/// to the policy. Returns what was applied.
///
/// [`Loop`] takes this step for each of its policies. A caller that waits for more than time, such
/// as a server, takes the same step in its own loop.
pub fn apply<M: Machine>(
    machine: &mut M,
    policy: &mut dyn Policy,
    snapshot: &Snapshot,
) -> Vec<AppliedAction> {
    let decisions = policy.decide(snapshot);
    let applied = decisions.into_iter().map(|decision| {
        let outcome = machine.act(&decision.action).map_err(|e| e.to_string());
        let applied = AppliedAction { at_ns: snapshot.at_ns, decision, outcome };
        policy.outcome(&applied);
        applied
    });
    applied.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use corebeat_machine::{
        Action, Class, Decision, Effect, ProgramId, Restored, Target, Topology,
    };
    use std::cell::RefCell;
    use std::fmt;
    use std::rc::Rc;

    #[derive(Debug)]
    struct No;
    impl fmt::Display for No {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("no")
        }
    }
    impl std::error::Error for No {}

    /// Accepts slices, refuses classes, and counts samples and observations.
    struct Fake {
        topology: Topology,
        samples: u32,
        observed: u32,
        applied: Vec<Action>,
    }

    impl Machine for Fake {
        type Error = No;
        fn topology(&self) -> &Topology {
            &self.topology
        }
        fn observe(&mut self) -> Result<Snapshot, No> {
            self.observed += 1;
            Ok(Snapshot::default())
        }
        fn sample(&mut self) {
            self.samples += 1;
        }
        fn act(&mut self, action: &Action) -> Result<Effect, No> {
            if let Action::SetClass { .. } = action {
                return Err(No);
            }
            self.applied.push(action.clone());
            Ok(Effect { changed: 1 })
        }
        fn restore(&mut self) -> Restored {
            Restored::default()
        }
    }

    /// Oversleeps by a nanosecond, as real clocks do.
    struct Virtual(u64);
    impl Clock for Virtual {
        fn now_ns(&self) -> u64 {
            self.0
        }
        fn wait_until(&mut self, at_ns: u64) {
            self.0 = self.0.max(at_ns);
        }
    }

    /// Makes the same decisions after every snapshot, and records the outcomes.
    #[derive(Default)]
    struct Always {
        actions: Vec<Action>,
        outcomes: Rc<RefCell<Vec<bool>>>,
    }
    impl Policy for Always {
        fn name(&self) -> &'static str {
            "always"
        }
        fn decide(&mut self, _: &Snapshot) -> Vec<Decision> {
            let decision = |action: &Action| Decision {
                policy: "always",
                action: action.clone(),
                why: "why".into(),
            };
            self.actions.iter().map(decision).collect()
        }
        fn outcome(&mut self, applied: &AppliedAction) {
            self.outcomes.borrow_mut().push(applied.outcome.is_ok());
        }
    }

    fn always(actions: Vec<Action>) -> Box<Always> {
        Box::new(Always { actions, ..Always::default() })
    }

    fn slice(us: u32) -> Action {
        Action::SetSlice { target: Target::Program(ProgramId(0)), slice_us: Some(us) }
    }

    fn control(policies: Vec<Box<dyn Policy>>) -> Loop<Fake, Virtual> {
        let fake = Fake { topology: Topology::flat(2), samples: 0, observed: 0, applied: vec![] };
        Loop::new(fake, Virtual(0), policies, Periods::default())
    }

    #[test]
    fn loop_applies_decisions_in_the_order_of_the_policies() {
        let mut c = control(vec![always(vec![slice(1), slice(2)]), always(vec![slice(3)])]);
        c.decide(&Snapshot::default());
        assert_eq!(c.machine().applied, [slice(1), slice(2), slice(3)]);
    }

    #[test]
    fn loop_reports_a_refused_action_to_the_policy_and_continues() {
        let target = Target::Program(ProgramId(0));
        let class = Action::SetClass { target, class: Some(Class::Batch) };
        let policy = always(vec![class, slice(1)]);
        let outcomes = Rc::clone(&policy.outcomes);
        let mut c = control(vec![policy]);
        let applied = c.decide(&Snapshot::default());
        assert_eq!(applied[0].refusal(), Some("no"));
        assert_eq!(c.machine().applied, [slice(1)]);
        assert_eq!(*outcomes.borrow(), [false, true]);
    }

    #[test]
    fn loop_samples_between_observations_and_observes_the_end() {
        let mut c = control(vec![always(vec![slice(1)])]);
        let tally = c.run(|_, clock| clock.now_ns() >= 2_500_000_000).unwrap();
        let fake = c.machine();
        let counts = (fake.observed, fake.applied.len(), tally.applied.len());
        assert_eq!(counts, (5, 4, 4), "policies do not decide after the last observation");
        assert!((16..=25).contains(&fake.samples), "{} samples", fake.samples);
    }

    #[test]
    fn loop_restart_discards_the_span_and_waits_a_whole_period() {
        let mut c = control(vec![]);
        let mut restarted = false;
        let over = c.wait(|_, _| match std::mem::replace(&mut restarted, true) {
            true => Next::Wait,
            false => Next::Restart(500_000_000),
        });
        assert!(!over.unwrap());
        assert_eq!(c.clock().now_ns(), 600_000_000, "one sample period, then one whole period");
        assert_eq!(c.machine().observed, 1, "the span before the restart is discarded");
    }

    #[test]
    fn loop_period_change_shortens_the_wait_and_never_lengthens_it() {
        let mut c = control(vec![]);
        c.wait(|_, _| Next::SetPeriod(150_000_000)).unwrap();
        assert_eq!(c.clock().now_ns(), 250_000_000);
        let mut period_ns = 900_000_000;
        c.wait(|_, _| Next::SetPeriod(std::mem::replace(&mut period_ns, 900_000_000))).unwrap();
        assert_eq!(c.clock().now_ns(), 400_000_000, "the wait that is under way keeps its end");
    }
}
