//! A simulated machine to train on.

use crate::sample::Range;
use crate::{Error, Samples, fit};
use corebeat_machine::{Action, Clock, CpuSet, Machine, ProgramId, Target};
use corebeat_policy::adapt::{Gauge, Identity, Model, Usage, places};
use corebeat_sim::{Hardware, Program, Scenario, Scheduler, SimMachine};

/// Programs on a simulated machine, and how long they are watched.
#[derive(Debug, Clone)]
pub struct Simulated {
    /// The machine.
    pub machine: Hardware,
    /// The programs. Each is run from its beginning, however the scenario starts it.
    pub programs: Vec<Program>,
    /// How long a run is not looked at, in nanoseconds: threads start and find their places.
    pub warm_ns: u64,
    /// How long it is looked at then, in nanoseconds.
    pub window_ns: u64,
    /// The seed of each run.
    pub seed: u64,
}

impl Simulated {
    /// Trains a model with them.
    ///
    /// # Errors
    /// [`Error::Few`] where there are too few programs, [`Error::Run`] where the machine makes no sense or a program ends too soon.
    pub fn train(&mut self) -> Result<Model, Error> {
        let identity = identity(&self.machine)?;
        if self.programs.len() < fit::PROGRAMS_MIN {
            return Err(Error::Few { found: self.programs.len() });
        }
        fit::fit(&Samples::collect(self)?, identity)
    }
}

/// What a simulated machine is called in a model.
///
/// # Errors
/// [`Error::Run`] where the machine makes no sense.
pub fn identity(machine: &Hardware) -> Result<Identity, Error> {
    let topology = machine.topology().map_err(Error::run)?;
    let name = match machine.scheduler {
        Scheduler::Fair => "simulated, fair",
        Scheduler::TimeShare => "simulated, time-share",
        Scheduler::Solaris => "simulated, solaris",
    };
    Ok(Identity::new(name, &topology))
}

impl Range for Simulated {
    fn programs(&self) -> Vec<String> {
        self.programs.iter().map(|p| p.name.clone()).collect()
    }

    fn cores(&self) -> u32 {
        self.machine.cpus()
    }

    fn run(&mut self, programs: &[usize], cores: u32) -> Result<Vec<Usage>, Error> {
        let all = self.programs.iter();
        let all: Vec<Program> =
            all.map(|p| Program { start_ms: 0.0, set: None, cpus: None, ..p.clone() }).collect();
        let chosen: Vec<Program> = programs.iter().map(|&p| all[p].clone()).collect();
        let names: Vec<String> = chosen.iter().map(|p| p.name.clone()).collect();
        let mut scenario = Scenario::new(self.machine.clone(), chosen);
        scenario.duration_s = Some((self.warm_ns + self.window_ns) as f64 / 1e9 + 1.0);
        let mut machine = SimMachine::new(&scenario, self.seed).map_err(Error::run)?;
        let mut clock = machine.clock();
        if cores < self.machine.cpus() {
            let cpus: CpuSet = places(machine.topology()).into_iter().take(cores as usize).collect();
            for number in 0..programs.len() {
                let target = Target::Program(ProgramId(number as u32));
                machine.act(&Action::SetCpus { target, cpus: Some(cpus.clone()) }).map_err(Error::run)?;
            }
        }
        clock.wait_until(self.warm_ns);
        machine.observe().map_err(Error::run)?;
        clock.wait_until(self.warm_ns + self.window_ns);
        let seen = machine.observe().map_err(Error::run)?;
        let of = |(number, name): (usize, &String)| {
            let program = seen.programs.iter().find(|p| p.id == ProgramId(number as u32));
            let ended = machine.is_over() || program.is_none_or(|p| p.threads.is_empty());
            let program = program.filter(|_| !ended).ok_or_else(|| Error::Short(name.clone()))?;
            let mut gauge = Gauge::default();
            gauge.add(program);
            Ok(gauge.usage())
        };
        names.iter().enumerate().map(of).collect()
    }
}
