//! The simulated world behind the traits of the control loop.

use crate::snapshot::{self, Outcome};
use crate::timeline::{Record, Timeline};
use crate::world::World;
use crate::{Error, Scenario, SetOutcome, action};
use corebeat_machine::{
    Action, Arbiter, Clock, Coscheduler, Effect, Machine, Restored, Snapshot, Topology,
};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// A simulated machine with everything that runs on it.
pub struct SimMachine {
    world: Rc<RefCell<World>>,
    topology: Topology,
    /// Time of the last snapshot.
    observed_ns: u64,
}

/// The clock of a simulated machine. Simulated time passes only while a caller waits.
pub struct SimClock {
    world: Rc<RefCell<World>>,
}

impl SimMachine {
    /// Creates the scenario's machine at time 0. The same scenario, seed and actions lead to the
    /// same events.
    ///
    /// # Errors
    /// Fails if the scenario is invalid. The message names the place and a valid value.
    pub fn new(scenario: &Scenario, seed: u64) -> Result<SimMachine, Error> {
        let world = World::new(scenario, seed)?;
        let topology = world.topology.clone();
        Ok(SimMachine { world: Rc::new(RefCell::new(world)), topology, observed_ns: 0 })
    }

    /// Sets the coscheduler that assigns CPUs to the scenario's sets
    /// ([`Scenario::coscheduled`]). Call this before time passes.
    pub fn coschedule(&mut self, coscheduler: Box<dyn Coscheduler>) {
        self.world.borrow_mut().kernel.sets.coschedule(coscheduler);
    }

    /// Sets the arbiter of CPU claims ([`Step::Invade`](crate::Step::Invade)). Without an arbiter,
    /// claims have no effect. Call this before time passes.
    pub fn arbitrate(&mut self, arbiter: Box<dyn Arbiter>) {
        self.world.borrow_mut().interpreter.claims.arbitrate(arbiter);
    }

    /// Returns the results of the coscheduled sets so far, in the scenario's order.
    pub fn sets(&mut self) -> Vec<SetOutcome> {
        let kernel = &mut self.world.borrow_mut().kernel;
        kernel.sets.outcomes(kernel.events.now())
    }

    /// Returns the simulated world, as ground truth for tests.
    #[cfg(test)]
    pub(crate) fn world(&self) -> std::cell::Ref<'_, World> {
        self.world.borrow()
    }

    /// Returns the machine's clock.
    pub fn clock(&self) -> SimClock {
        SimClock { world: Rc::clone(&self.world) }
    }

    /// Simulates until all programs have ended, the scenario's duration is over, or nothing can
    /// happen any more.
    pub fn run(&mut self) {
        self.world.borrow_mut().run();
    }

    /// Returns whether [`run`](SimMachine::run) would return at once.
    pub fn is_over(&self) -> bool {
        self.world.borrow().is_over()
    }

    /// Returns which threads wait for what, if threads are left and nothing can happen any more.
    pub fn deadlock(&self) -> Option<String> {
        self.world.borrow().deadlock.clone()
    }

    /// Returns the results of the programs so far, in the scenario's order.
    pub fn outcomes(&mut self) -> Vec<Outcome> {
        snapshot::outcomes(&mut self.world.borrow_mut())
    }

    /// Returns the busy time of each CPU so far, in nanoseconds.
    pub fn busy_ns(&mut self) -> Vec<u64> {
        let kernel = &mut self.world.borrow_mut().kernel;
        kernel.settle_all();
        kernel.cpus.iter().map(|c| c.busy).collect()
    }

    /// Returns how often cache lines of synchronisation objects moved from one CPU to another, by
    /// distance.
    pub fn line_moves(&self) -> BTreeMap<u64, u64> {
        self.world.borrow().interpreter.sync.line_moves().clone()
    }

    /// Returns the number of events so far.
    pub fn events(&self) -> u64 {
        self.world.borrow().kernel.events.handled()
    }

    /// Returns a hash of all events so far.
    pub fn fingerprint(&self) -> u64 {
        self.world.borrow().kernel.events.fingerprint()
    }

    /// Starts to record which thread runs where.
    pub fn record(&mut self) {
        let kernel = &mut self.world.borrow_mut().kernel;
        let cpus = kernel.cpus.len();
        kernel.record.get_or_insert_with(|| Record::new(cpus));
    }

    /// Returns the record up to now.
    pub fn timeline(&self) -> Timeline {
        let world = self.world.borrow();
        let kernel = &world.kernel;
        let now = kernel.now();
        let mut record = kernel.record.clone().unwrap_or_else(|| Record::new(kernel.cpus.len()));
        for (c, cpu) in kernel.cpus.iter().enumerate().filter(|_| kernel.record.is_some()) {
            if let Some(i) = cpu.current {
                record.add(c, cpu.dispatched, now, i);
            }
        }
        let phases = kernel.programs.iter().enumerate().flat_map(|(p, program)| {
            let name = |phase: usize| world.phases[phase].clone();
            program.phases.iter().map(move |&(at, phase)| (at, p, name(phase)))
        });
        Timeline {
            cpus: record.cpus,
            threads: kernel.threads.iter().map(|t| (t.program, t.name())).collect(),
            programs: kernel.programs.iter().map(|p| p.name.clone()).collect(),
            phases: phases.collect(),
            end_ns: now,
            cut_ns: record.cut_ns,
        }
    }
}

impl Machine for SimMachine {
    type Error = Error;

    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn observe(&mut self) -> Result<Snapshot, Error> {
        let mut world = self.world.borrow_mut();
        let snapshot = snapshot::snapshot(&mut world, self.observed_ns);
        self.observed_ns = snapshot.at_ns;
        Ok(snapshot)
    }

    fn act(&mut self, action: &Action) -> Result<Effect, Error> {
        action::apply(&mut self.world.borrow_mut(), action)
    }

    fn restore(&mut self) -> Restored {
        action::restore(&mut self.world.borrow_mut())
    }
}

impl Clock for SimClock {
    fn now_ns(&self) -> u64 {
        self.world.borrow().kernel.now()
    }

    fn wait_until(&mut self, at_ns: u64) {
        self.world.borrow_mut().run_until(at_ns);
    }
}
