//! Search for the arrivals, delays and execution times that bring the worst case (Briand,
//! *Tackling the Testing and Verification of Multicore and Concurrent Software as a Search
//! Problem*, 2012).
//!
//! An individual has a phase for each task, and for each task a short pattern of delays and of
//! execution times that its jobs repeat. The fitness is the largest value of an [`Objective`] in a
//! simulation as a share of its limit, such as a response time as a share of its deadline. A
//! genetic algorithm improves a population that begins with critical instants: all tasks are
//! released together, or one task that blocks the others starts a nanosecond before them. Simulated
//! annealing improves the best individual afterwards.

use crate::model::Activation;
use crate::objective::{Objective, Worst, share};
use crate::simulation::{Job, Jobs, Record, Simulation};
use crate::system::System;
use crate::time::TIME_MAX_NS;
use fastrand::Rng;

/// Length of the patterns.
const PATTERN: usize = 4;
/// Individuals of the genetic algorithm.
const POPULATION: usize = 32;
/// Largest number of jobs of an evaluation.
const JOBS_MAX: u64 = 20_000;
/// Share of the evaluations that the genetic algorithm gets.
const GENETIC_SHARE: f64 = 0.7;
/// Begin and end of the temperatures of annealing, as differences of fitness.
const TEMPERATURES: (f64, f64) = (0.1, 0.001);

/// Settings of a search.
#[derive(Debug, Clone)]
pub struct SearchOptions {
    /// Number of simulations.
    pub evaluations: u64,
    /// Seed of the random numbers; equal seeds give equal searches.
    pub seed: u64,
    /// The figure whose worst case is searched.
    pub objective: Objective,
    /// End as soon as the limit is exceeded.
    pub stops_at_miss: bool,
}

impl Default for SearchOptions {
    fn default() -> SearchOptions {
        let objective = Objective::Response { task: None };
        SearchOptions { evaluations: 20_000, seed: 1, objective, stops_at_miss: true }
    }
}

/// Choices for all tasks.
#[derive(Debug, Clone, PartialEq)]
struct Individual {
    /// First arrival of each entry whose phase is arbitrary, in nanoseconds.
    phases: Vec<u64>,
    /// Delays as shares of the jitter or of the distance, `PATTERN` for each entry.
    delays: Vec<u16>,
    /// Execution times as shares of the range, `PATTERN` for each entry.
    executions: Vec<u16>,
}

/// The best scenario of a search.
#[derive(Debug, Clone)]
pub struct Found {
    /// The jobs of all entries.
    pub jobs: Jobs,
    /// The objective of the search.
    pub objective: Objective,
    /// The worst case.
    pub worst: Worst,
}

/// A search in progress.
pub struct Search<'a> {
    system: &'a System,
    simulation: Simulation<'a>,
    options: SearchOptions,
    random: Rng,
    horizon_ns: u64,
    /// Individuals with their fitness.
    population: Vec<(f64, Individual)>,
    /// Number of critical instants that are left: one for each entry, and before them a common one.
    instants: usize,
    best: Option<(f64, Individual)>,
    /// Present individual of annealing.
    current: Option<(f64, Individual)>,
    evaluations: u64,
    jobs: Jobs,
    record: Record,
}

impl<'a> Search<'a> {
    /// A search in a system.
    pub fn new(system: &'a System, options: SearchOptions) -> Search<'a> {
        let count = system.entries.len();
        Search {
            simulation: Simulation::new(system),
            random: Rng::with_seed(options.seed),
            horizon_ns: horizon_ns(system, options.objective),
            population: vec![],
            instants: count + 1,
            best: None,
            current: None,
            evaluations: 0,
            jobs: vec![vec![]; count],
            record: Record::default(),
            system,
            options,
        }
    }

    /// Number of simulations so far.
    pub fn evaluations(&self) -> u64 {
        self.evaluations
    }

    /// Largest value found as a share of its limit; of a task without deadline, in seconds.
    pub fn fitness(&self) -> f64 {
        self.best.as_ref().map_or(0.0, |(fitness, _)| *fitness)
    }

    /// The limit is exceeded.
    pub fn has_miss(&self) -> bool {
        let has_limit = |e| {
            let limit_ns = self.options.objective.limit_ns(self.system, e);
            limit_ns.is_some_and(|limit_ns| limit_ns.is_some())
        };
        let is_of_cores = matches!(self.options.objective, Objective::Load { .. });
        self.fitness() > 1.0 && (is_of_cores || (0..self.system.entries.len()).any(has_limit))
    }

    /// Simulates one more individual. Returns whether the search continues.
    pub fn step(&mut self) -> bool {
        if self.evaluations >= self.options.evaluations || self.system.entries.is_empty() {
            return false;
        }
        let genetic = (self.options.evaluations as f64 * GENETIC_SHARE) as u64;
        if self.evaluations < genetic || self.instants as u64 > self.evaluations {
            self.breed();
        } else {
            self.anneal(genetic);
        }
        !(self.options.stops_at_miss && self.has_miss())
    }

    /// The best scenario so far.
    pub fn found(&mut self) -> Option<Found> {
        let (_, best) = self.best.clone()?;
        self.decode(&best);
        self.simulate();
        let objective = self.options.objective;
        let worst = objective.worst(self.system, &self.record)?;
        Some(Found { jobs: self.jobs.clone(), objective, worst })
    }

    /// Records the run of the jobs.
    fn simulate(&mut self) {
        self.record.spans.clear();
        self.record.completions.clear();
        self.simulation.run(&self.jobs, TIME_MAX_NS, Some(&mut self.record));
    }

    /// The largest value in a simulation of the jobs as a share of its limit.
    fn share(&mut self) -> f64 {
        let objective = self.options.objective;
        if !matches!(objective, Objective::Response { .. }) {
            self.simulate();
            return objective.worst(self.system, &self.record).map_or(0.0, |worst| worst.share());
        }
        // A simulation without a record is faster.
        self.simulation.run(&self.jobs, TIME_MAX_NS, None);
        let responses = self.simulation.responses().iter().enumerate();
        let of_entry = |(e, &response): (usize, &u64)| {
            Some(share(response, objective.limit_ns(self.system, e)?))
        };
        responses.filter_map(of_entry).fold(0.0, f64::max)
    }

    fn evaluate(&mut self, individual: &Individual) -> f64 {
        self.decode(individual);
        self.evaluations += 1;
        let fitness = self.share();
        if self.best.as_ref().is_none_or(|(best, _)| fitness > *best) {
            self.best = Some((fitness, individual.clone()));
        }
        fitness
    }

    fn breed(&mut self) {
        let child = if let Some(left) = self.instants.checked_sub(1) {
            self.instants = left;
            self.critical_instant((left < self.system.entries.len()).then_some(left))
        } else if self.population.len() < POPULATION {
            self.random_individual()
        } else {
            let (one, other) = (self.parent(), self.parent());
            let mut child = self.population[one].1.clone();
            for e in 0..child.phases.len() {
                if self.random.bool() {
                    self.copy(other, e, &mut child);
                }
            }
            self.mutate(&mut child);
            child
        };
        let fitness = self.evaluate(&child);
        if self.population.len() < POPULATION {
            self.population.push((fitness, child));
            return;
        }
        let compare =
            |a: &usize, b: &usize| self.population[*a].0.total_cmp(&self.population[*b].0);
        if let Some(worst) = (0..POPULATION).min_by(compare)
            && fitness >= self.population[worst].0
        {
            self.population[worst] = (fitness, child);
        }
    }

    /// The better of two random individuals.
    fn parent(&mut self) -> usize {
        let (one, other) = (self.random.usize(..POPULATION), self.random.usize(..POPULATION));
        if self.population[one].0 >= self.population[other].0 { one } else { other }
    }

    fn copy(&self, from: usize, e: usize, to: &mut Individual) {
        let from = &self.population[from].1;
        to.phases[e] = from.phases[e];
        let part = e * PATTERN..(e + 1) * PATTERN;
        to.delays[part.clone()].copy_from_slice(&from.delays[part.clone()]);
        to.executions[part.clone()].copy_from_slice(&from.executions[part]);
    }

    fn mutate(&mut self, individual: &mut Individual) {
        let e = self.random.usize(..individual.phases.len());
        let k = e * PATTERN + self.random.usize(..PATTERN);
        let period = self.system.rate_ns(&self.system.entries[e]).unwrap_or(1);
        match self.random.u8(..5) {
            0 => individual.phases[e] = self.random.u64(..period),
            1 => {
                // A small change: the phases of a worst case often differ by a little.
                let change = self.random.u64(..=period / 50 + 1);
                let phase = individual.phases[e];
                individual.phases[e] =
                    if self.random.bool() { phase + change } else { phase.saturating_sub(change) };
            }
            2 => {
                // Align with another task.
                let other = self.random.usize(..individual.phases.len());
                individual.phases[e] = individual.phases[other] + self.random.u64(..2);
            }
            3 => individual.delays[k] = self.extreme(),
            _ => individual.executions[k] = self.extreme(),
        }
        individual.phases[e] = individual.phases[e].min(self.horizon_ns / 2);
    }

    /// A share: often an end of the range.
    fn extreme(&mut self) -> u16 {
        match self.random.u8(..4) {
            0 => 0,
            1 => self.random.u16(..),
            _ => u16::MAX,
        }
    }

    fn random_individual(&mut self) -> Individual {
        let count = self.system.entries.len();
        let phase = |e: usize| self.system.rate_ns(&self.system.entries[e]).unwrap_or(1);
        let periods: Vec<u64> = (0..count).map(phase).collect();
        Individual {
            phases: periods.into_iter().map(|p| self.random.u64(..p)).collect(),
            delays: (0..count * PATTERN).map(|_| self.extreme()).collect(),
            executions: (0..count * PATTERN).map(|_| self.extreme()).collect(),
        }
    }

    /// All tasks released together after the whole jitter, but one task a nanosecond earlier.
    fn critical_instant(&self, early: Option<usize>) -> Individual {
        let count = self.system.entries.len();
        let jitter = |e: usize| match self.system.entries[e].activation {
            Activation::Periodic { jitter_ns, .. } => jitter_ns,
            _ => 0,
        };
        let latest = (0..count).map(jitter).max().unwrap_or(0);
        let mut delays = vec![0; count * PATTERN];
        delays.iter_mut().step_by(PATTERN).for_each(|d| *d = u16::MAX);
        let phase = |e: usize| latest - jitter(e) + u64::from(early != Some(e));
        Individual {
            phases: (0..count).map(phase).collect(),
            delays,
            executions: vec![u16::MAX; count * PATTERN],
        }
    }

    fn anneal(&mut self, genetic: u64) {
        let Some((fitness, present)) = self.current.take().or_else(|| self.best.clone()) else {
            return;
        };
        let rest = (self.options.evaluations - genetic).max(1) as f64;
        let progress = (self.evaluations - genetic.min(self.evaluations)) as f64 / rest;
        let temperature =
            TEMPERATURES.0 * (TEMPERATURES.1 / TEMPERATURES.0).powf(progress.clamp(0.0, 1.0));
        let mut next = present.clone();
        self.mutate(&mut next);
        let value = self.evaluate(&next);
        let accepts =
            value >= fitness || self.random.f64() < ((value - fitness) / temperature).exp();
        self.current = Some(if accepts { (value, next) } else { (fitness, present) });
    }

    /// The jobs of an individual, which the model permits.
    fn decode(&mut self, individual: &Individual) {
        for (e, jobs) in self.jobs.iter_mut().enumerate() {
            jobs.clear();
            let entry = &self.system.entries[e];
            let of = |pattern: &[u16], k: usize, range: u64| {
                let share = u128::from(pattern[e * PATTERN + k % PATTERN]);
                (share * u128::from(range) / u128::from(u16::MAX)) as u64
            };
            let range = entry.execution_ns;
            let execution =
                |k| range.best + of(&individual.executions, k, range.worst - range.best);
            let mut arrival_ns = individual.phases[e];
            let mut last = 0;
            for k in 0.. {
                let mut release_ns = arrival_ns;
                match &entry.activation {
                    Activation::Periodic { period_ns, offset_ns, jitter_ns } => {
                        arrival_ns =
                            offset_ns.unwrap_or(individual.phases[e]) + k as u64 * period_ns;
                        // The first delay pushes the job behind it, too, as far as it may.
                        last = last.max(arrival_ns + of(&individual.delays, k, *jitter_ns));
                        release_ns = last;
                    }
                    Activation::Sporadic { distance_ns } => {
                        let slack =
                            of(&individual.delays, k, distance_ns * 2).saturating_sub(*distance_ns);
                        arrival_ns += if k == 0 { 0 } else { distance_ns + slack };
                        release_ns = arrival_ns;
                    }
                    Activation::Curve(spans) => {
                        let before = jobs.iter().rev().zip(spans);
                        let earliest =
                            before.map(|(job, span): (&Job, _)| job.arrival_ns + span).max();
                        arrival_ns = earliest.unwrap_or(arrival_ns);
                        release_ns = arrival_ns;
                    }
                    Activation::After(_) if k >= PATTERN => break,
                    Activation::After(_) => {}
                }
                let is_timed = !matches!(entry.activation, Activation::After(_));
                if is_timed && arrival_ns > self.horizon_ns && k > 0 {
                    break;
                }
                jobs.push(Job { arrival_ns, release_ns, execution_ns: execution(k) });
            }
        }
    }
}

/// Time in nanoseconds within which the jobs of a scenario arrive: the busy periods from a common
/// release as far as they are short, at least two of the longest periods and the time that the
/// objective needs, bounded by the number of jobs.
pub fn horizon_ns(system: &System, objective: Objective) -> u64 {
    let period = |e| system.rate_ns(&system.entries[e]);
    let periods: Vec<u64> = (0..system.entries.len()).filter_map(period).collect();
    let longest = periods.iter().copied().max().unwrap_or(1);
    let deadlines = system.entries.iter().filter_map(|e| e.deadline_ns);
    let wanted = longest.saturating_mul(3).saturating_add(deadlines.max().unwrap_or(0));
    let wanted = wanted.saturating_add(objective.least_ns());
    let rate: f64 = periods.iter().map(|p| 1.0 / *p as f64).sum();
    let limit = (JOBS_MAX as f64 / rate.max(1e-18)) as u64;
    wanted.min(limit).clamp(1, TIME_MAX_NS)
}
