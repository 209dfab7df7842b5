//! A simulated testbed.

use crate::sample::Testbed;
use crate::{Error, Samples, fit};
use corebeat_machine::{Action, Clock, CpuSet, Machine, ProgramId, Target};
use corebeat_policy::adapt::{Gauge, Identity, Model, Usage, places};
use corebeat_sim::{Hardware, Program, Scenario, Scheduler, SimMachine};

/// Programs on a simulated machine, and the measured time.
#[derive(Debug, Clone)]
pub struct Simulated {
    /// Hardware of the machine.
    pub machine: Hardware,
    /// Programs. Each starts at time 0, whatever its `start_ms`.
    pub programs: Vec<Program>,
    /// Warm-up before the measurement, in nanoseconds.
    pub warm_ns: u64,
    /// Duration of the measurement, in nanoseconds.
    pub window_ns: u64,
    /// Seed of each run.
    pub seed: u64,
}

impl Simulated {
    /// Trains a model with the programs.
    ///
    /// # Errors
    /// [`Error::Few`] for too few programs, [`Error::Run`] for an invalid machine or program, and
    /// [`Error::Short`] for a program that ends too early.
    pub fn train(&mut self) -> Result<Model, Error> {
        let identity = identity(&self.machine)?;
        if self.programs.len() < fit::PROGRAMS_MIN {
            return Err(Error::Few { found: self.programs.len() });
        }
        fit::fit(&Samples::collect(self)?, identity)
    }
}

/// Returns the identity of a simulated machine in a model.
///
/// # Errors
/// [`Error::Run`] if the machine is invalid.
pub fn identity(machine: &Hardware) -> Result<Identity, Error> {
    let topology = machine.topology().map_err(Error::run)?;
    let name = match machine.scheduler {
        Scheduler::Fair => "simulated, fair",
        Scheduler::TimeShare => "simulated, time-share",
        Scheduler::Solaris => "simulated, solaris",
    };
    Ok(Identity::new(name, &topology))
}

impl Testbed for Simulated {
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
            let cpus: CpuSet =
                places(machine.topology()).into_iter().take(cores as usize).collect();
            for number in 0..programs.len() {
                let target = Target::Program(ProgramId(number as u32));
                machine
                    .act(&Action::SetCpus { target, cpus: Some(cpus.clone()) })
                    .map_err(Error::run)?;
            }
        }
        clock.wait_until(self.warm_ns);
        machine.observe().map_err(Error::run)?;
        clock.wait_until(self.warm_ns + self.window_ns);
        let snapshot = machine.observe().map_err(Error::run)?;
        let of = |(number, name): (usize, &String)| {
            let program = snapshot.program(ProgramId(number as u32));
            let ended = machine.is_over() || program.is_none_or(|p| p.threads.is_empty());
            let program = program.filter(|_| !ended).ok_or_else(|| Error::Short(name.clone()))?;
            let mut gauge = Gauge::default();
            gauge.add(program);
            Ok(gauge.usage())
        };
        names.iter().enumerate().map(of).collect()
    }
}
