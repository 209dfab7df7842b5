//! Going round: wait, observe, decide, act.

use crate::{Deed, Tally};
use corebeat_machine::{Clock, Machine, Policy, Snapshot};

/// How often to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Periods {
    /// From one observation, and decision, to the next, in nanoseconds.
    pub observe_ns: u64,
    /// From one cheap look ([`Machine::glance`]) to the next, in nanoseconds.
    pub glance_ns: u64,
}

impl Default for Periods {
    /// Half a second, and a tenth of one for glances. FaithFul (Pusukuri 2012, section 5.2.4) has a second; many programs
    /// are over in a few.
    fn default() -> Self {
        Periods { observe_ns: 500_000_000, glance_ns: 100_000_000 }
    }
}

/// The circle around one machine.
pub struct Loop<M, C> {
    machine: M,
    clock: C,
    policies: Vec<Box<dyn Policy>>,
    periods: Periods,
    tally: Tally,
}

impl<M: Machine, C: Clock> Loop<M, C> {
    /// A circle that has not begun to turn. Policies decide in the order given.
    pub fn new(machine: M, clock: C, policies: Vec<Box<dyn Policy>>, periods: Periods) -> Self {
        Loop { machine, clock, policies, periods, tally: Tally::default() }
    }

    /// Turns until `ended` says so. It is asked after every wait, and once more after the last observation; so what
    /// happened up to the end is seen.
    ///
    /// # Errors
    /// The machine's, where it cannot be observed at all.
    pub fn run(&mut self, mut ended: impl FnMut(&mut M, &mut C) -> bool) -> Result<(), M::Error> {
        loop {
            let over = self.wait(&mut ended);
            self.turn(!over)?;
            if over {
                return Ok(());
            }
        }
    }

    /// Observes once, lets the policies decide if `decide` is set, and carries out what they want.
    ///
    /// # Errors
    /// The machine's, where it cannot be observed at all.
    pub fn turn(&mut self, decide: bool) -> Result<Snapshot, M::Error> {
        let seen = self.machine.observe()?;
        self.tally.see(&seen);
        if decide {
            for policy in &mut self.policies {
                self.tally.deeds.extend(heed(&mut self.machine, &mut **policy, &seen));
            }
        }
        Ok(seen)
    }

    /// Waits for the next observation, glancing on the way. Whether the end was reached.
    fn wait(&mut self, ended: &mut impl FnMut(&mut M, &mut C) -> bool) -> bool {
        let mut next_glance_ns = self.clock.now_ns() + self.periods.glance_ns;
        let next_turn_ns = self.clock.now_ns() + self.periods.observe_ns;
        loop {
            self.clock.wait_until(next_glance_ns.min(next_turn_ns));
            if ended(&mut self.machine, &mut self.clock) {
                return true;
            }
            let now_ns = self.clock.now_ns();
            if now_ns >= next_turn_ns {
                return false;
            }
            if now_ns >= next_glance_ns {
                self.machine.glance();
                next_glance_ns = now_ns + self.periods.glance_ns;
            }
        }
    }

    /// What was seen and done so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
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

/// Lets a policy decide about what was seen, and carries out what it wants. What was done, or was tried.
///
/// For those who keep no [`Tally`], which grows with all that happens.
pub fn heed<M: Machine>(machine: &mut M, policy: &mut dyn Policy, seen: &Snapshot) -> Vec<Deed> {
    let name = policy.name();
    let decisions = policy.decide(seen);
    let deeds = decisions.into_iter().map(|decision| {
        let failed = machine.act(&decision.action).err().map(|e| e.to_string());
        Deed { at_ns: seen.at_ns, policy: name, decision, failed }
    });
    deeds.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use corebeat_machine::{Action, Class, Decision, ProgramId, Target, Topology};
    use std::fmt;

    #[derive(Debug)]
    struct No;
    impl fmt::Display for No {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("no")
        }
    }
    impl std::error::Error for No {}

    /// Takes slices, refuses classes, counts glances and observations.
    struct Fake {
        topology: Topology,
        glances: u32,
        observed: u32,
        done: Vec<Action>,
    }

    impl Machine for Fake {
        type Error = No;
        fn topology(&self) -> &Topology {
            &self.topology
        }
        fn observe(&mut self) -> Result<Snapshot, No> {
            self.observed += 1;
            Ok(Snapshot { at_ns: u64::from(self.observed), ..Snapshot::default() })
        }
        fn glance(&mut self) {
            self.glances += 1;
        }
        fn act(&mut self, action: &Action) -> Result<(), No> {
            if matches!(action, Action::SetClass { .. }) {
                return Err(No);
            }
            self.done.push(action.clone());
            Ok(())
        }
    }

    struct Virtual(u64);
    impl Clock for Virtual {
        fn now_ns(&self) -> u64 {
            self.0
        }
        fn wait_until(&mut self, at_ns: u64) {
            self.0 = self.0.max(at_ns);
        }
    }

    struct Always(Vec<Action>);
    impl Policy for Always {
        fn name(&self) -> &'static str {
            "always"
        }
        fn decide(&mut self, _: &Snapshot) -> Vec<Decision> {
            self.0.iter().map(|a| Decision { action: a.clone(), why: "why".into() }).collect()
        }
    }

    fn slice(us: u32) -> Action {
        Action::SetSlice { target: Target::Program(ProgramId(0)), slice_us: Some(us) }
    }

    fn circle(policies: Vec<Box<dyn Policy>>) -> Loop<Fake, Virtual> {
        let fake = Fake { topology: Topology::flat(2), glances: 0, observed: 0, done: vec![] };
        Loop::new(fake, Virtual(0), policies, Periods::default())
    }

    #[test]
    fn loop_acts_in_order() {
        let mut c =
            circle(vec![Box::new(Always(vec![slice(1), slice(2)])), Box::new(Always(vec![slice(3)]))]);
        c.turn(true).unwrap();
        assert_eq!(c.machine().done, [slice(1), slice(2), slice(3)]);
    }

    #[test]
    fn loop_failed_action_is_told() {
        let class = Action::SetClass { target: Target::Program(ProgramId(0)), class: Some(Class::Batch) };
        let mut c = circle(vec![Box::new(Always(vec![class, slice(1)]))]);
        c.turn(true).unwrap();
        assert_eq!(c.tally().deeds[0].failed.as_deref(), Some("no"));
        assert_eq!(c.machine().done, [slice(1)]);
    }

    #[test]
    fn loop_glances_between_observations_and_observes_the_end() {
        let mut c = circle(vec![Box::new(Always(vec![slice(1)]))]);
        c.run(|_, clock| clock.now_ns() >= 2_500_000_000).unwrap();
        let fake = c.machine();
        assert_eq!((fake.observed, fake.done.len()), (5, 4), "the last look decides nothing");
        assert!((16..=25).contains(&fake.glances), "{}", fake.glances);
    }
}
