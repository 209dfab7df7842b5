//! The simulated world behind the traits that the loop is made of.

use crate::timeline::{Record, Timeline};
use crate::view::Outcome;
use crate::world::World;
use crate::{Error, Scenario, SetOutcome};
use corebeat_machine::{Action, Arbiter, Clock, Coscheduler, Machine, Snapshot, Topology};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// A simulated machine with all that runs on it.
pub struct SimMachine {
    world: Rc<RefCell<World>>,
    topology: Topology,
    seen_ns: u64,
}

/// The machine's time. Waiting is what makes it pass.
pub struct SimClock {
    world: Rc<RefCell<World>>,
}

impl SimMachine {
    /// A machine as the scenario has it, before its first moment.
    ///
    /// # Errors
    /// Where the scenario makes no sense; the line says what to write.
    pub fn new(scenario: &Scenario, seed: u64) -> Result<SimMachine, Error> {
        let world = World::new(scenario, seed)?;
        let topology = world.topology.clone();
        Ok(SimMachine { world: Rc::new(RefCell::new(world)), topology, seen_ns: 0 })
    }

    /// Has the machine take turns by the scenario's coscheduled sets ([`Scenario::coscheduled`]), as this says. To be called before time
    /// passes.
    pub fn coschedule(&mut self, coscheduler: Box<dyn Coscheduler>) {
        self.world.borrow_mut().coscheduler = Some(coscheduler);
    }

    /// Has programs that ask for CPUs ([`Step::Invade`](crate::Step::Invade)) get them from this. Without it they go on with what they have. To
    /// be called before time passes.
    pub fn arbitrate(&mut self, arbiter: Box<dyn Arbiter>) {
        self.world.borrow_mut().arbiter = Some(arbiter);
    }

    /// What became of the coscheduled sets so far, in the scenario's order.
    pub fn sets(&mut self) -> Vec<SetOutcome> {
        self.world.borrow_mut().set_outcomes()
    }

    /// Its clock.
    pub fn clock(&self) -> SimClock {
        SimClock { world: Rc::clone(&self.world) }
    }

    /// Lets time pass until all programs have ended, the scenario's time is up, or nothing can happen any more.
    pub fn run(&mut self) {
        self.world.borrow_mut().run();
    }

    /// Whether [`run`](SimMachine::run) would return at once.
    pub fn is_over(&self) -> bool {
        self.world.borrow().is_over()
    }

    /// Who waits for what, if nothing can happen any more although threads are there.
    pub fn deadlock(&self) -> Option<String> {
        self.world.borrow().stuck.clone()
    }

    /// What became of the programs so far, in the scenario's order.
    pub fn outcomes(&mut self) -> Vec<Outcome> {
        self.world.borrow_mut().outcomes()
    }

    /// How long CPUs were busy so far, in nanoseconds, by CPU.
    pub fn busy_ns(&mut self) -> Vec<u64> {
        let mut world = self.world.borrow_mut();
        (0..world.cpus.len()).for_each(|c| world.settle(c));
        world.cpus.iter().map(|c| c.busy).collect()
    }

    /// How often the cache line of a lock, a barrier, a condition or a queue went from one CPU to another, by their distance.
    pub fn line_moves(&self) -> BTreeMap<u64, u64> {
        self.world.borrow().ways.clone()
    }

    /// How many events have happened.
    pub fn events(&self) -> u64 {
        self.world.borrow().happened
    }

    /// A number made of all events so far: the same scenario, seed and actions give the same one.
    pub fn fingerprint(&self) -> u64 {
        self.world.borrow().print
    }

    /// Writes down who runs where from now on.
    pub fn record(&mut self) {
        let mut world = self.world.borrow_mut();
        let cpus = world.cpus.len();
        world.record.get_or_insert_with(|| Record::new(cpus));
    }

    /// What was written down, up to now.
    pub fn timeline(&self) -> Timeline {
        let world = self.world.borrow();
        let mut record = world.record.clone().unwrap_or_else(|| Record::new(world.cpus.len()));
        for (c, cpu) in world.cpus.iter().enumerate().filter(|_| world.record.is_some()) {
            if let Some(i) = cpu.current {
                record.add(c, cpu.came, world.now, i);
            }
        }
        let phases = world
            .programs
            .iter()
            .enumerate()
            .flat_map(|(p, program)| program.phases.iter().map(move |&(at, phase)| (at, p, phase)));
        Timeline {
            cpus: record.cpus,
            threads: (0..world.threads.len())
                .map(|i| (world.threads[i].program, world.thread_name(i)))
                .collect(),
            programs: world.programs.iter().map(|p| p.name.clone()).collect(),
            phases: phases.map(|(at, p, phase)| (at, p, world.phases[phase].clone())).collect(),
            end_ns: world.now,
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
        let seen = world.snapshot(self.seen_ns);
        self.seen_ns = world.now;
        Ok(seen)
    }

    fn act(&mut self, action: &Action) -> Result<(), Error> {
        self.world.borrow_mut().act(action)
    }
}

impl Clock for SimClock {
    fn now_ns(&self) -> u64 {
        self.world.borrow().now
    }

    fn wait_until(&mut self, at_ns: u64) {
        self.world.borrow_mut().run_until(at_ns);
    }
}
