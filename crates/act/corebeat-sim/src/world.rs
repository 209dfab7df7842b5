//! The simulated world: the kernel and the interpreter together, driven by events.

use crate::claim::Claims;
use crate::code::{Code, Op, TeamCode};
use crate::coschedule::Sets;
use crate::event::Event;
use crate::interpreter::{Advance, Interpreter};
use crate::kernel::Kernel;
use crate::process::Process;
use crate::shared_loop::SharedLoop;
use crate::sync::SyncObjects;
use crate::team::ThreadTeam;
use crate::thread::{State, Thread};
use crate::time::{self, Least, ns};
use crate::{Error, Program, Scenario};
use corebeat_machine::{CpuSet, Topology};

/// Period of the tick that raises priorities (time-sharing schedulers only).
const TICK_NS: u64 = 1_000_000_000;

/// Maximum simulated time: some 58 days. Sums of times, and their products with weights, do not
/// overflow.
const END_NS: u64 = 5_000_000_000_000_000;

/// A machine with everything that runs on it.
pub(crate) struct World {
    pub(crate) topology: Topology,
    pub(crate) kernel: Kernel,
    pub(crate) interpreter: Interpreter,
    /// The names of all phases.
    pub(crate) phases: Vec<String>,
    end: u64,
    /// Number of threads that have not ended, those of programs to start included.
    alive: usize,
    programs_ended: usize,
    /// Description of the deadlock, if nothing can happen any more.
    pub(crate) deadlock: Option<String>,
}

impl World {
    pub(crate) fn new(scenario: &Scenario, seed: u64) -> Result<World, Error> {
        let hardware = scenario.machine.clone();
        let topology = hardware.topology()?;
        let code = Code::new(scenario)?;
        let end = match scenario.duration_s {
            None => END_NS,
            Some(s) => {
                time::check("duration_s", s, 1.0, Least::AboveZero).map_err(Error::Scenario)?;
                ns(s, 1e9)
            }
        };
        let names = scenario.sets.iter().map(|set| set.name.clone()).collect();
        let sets = Sets::new(names, &scenario.coscheduled()?);
        let kernel = Kernel::new(hardware, &topology, sets, seed);
        let interpreter = Interpreter {
            code: vec![],
            sync: SyncObjects::new(code.objects),
            loops: code.shared.into_iter().map(SharedLoop::new).collect(),
            teams: vec![],
            claims: Claims::new(scenario.programs.len()),
        };
        let phases = code.phases;
        let mut world = World {
            topology,
            kernel,
            interpreter,
            phases,
            end,
            alive: 0,
            programs_ended: 0,
            deadlock: None,
        };
        let sets = scenario.membership()?;
        for ((program, teams), set) in scenario.programs.iter().zip(code.teams).zip(sets) {
            world.add(program, teams, set)?;
        }
        let balance_ns = world.kernel.balancer.period;
        world.kernel.events.post_in(balance_ns, Event::Balance);
        if scenario.machine.scheduler.is_time_share() {
            world.kernel.events.post_in(TICK_NS, Event::Tick);
        }
        Ok(world)
    }

    /// Adds a program of the scenario and its threads.
    fn add(
        &mut self,
        program: &Program,
        teams: Vec<TeamCode>,
        set: Option<usize>,
    ) -> Result<(), Error> {
        let all = self.topology.cpu_set();
        let cpus: CpuSet = match &program.cpus {
            None => all.clone(),
            Some(set) => set.iter().filter(|&c| all.contains(c)).collect(),
        };
        if cpus.is_empty() {
            let place = format!("program '{}'", program.name);
            let what = format!("cpus has none of the machine's CPUs, which are {all}");
            return Err(Error::Program { place, what });
        }
        let number = self.kernel.programs.len();
        let first = self.kernel.threads.len();
        let mut thread_team = None;
        for (team, code) in program.teams.iter().zip(teams) {
            for op in &code.ops {
                if let Op::Begin(shared) = op {
                    self.interpreter.loops[*shared].set_members(team.threads as usize);
                }
            }
            let begin = self.kernel.threads.len();
            let at = (number, self.interpreter.code.len());
            let thread = |member| Thread::new(at, member, program, team, cpus.clone());
            self.kernel.threads.extend((0..team.threads as usize).map(thread));
            let threads = begin..self.kernel.threads.len();
            thread_team = thread_team.or(ThreadTeam::new(&code, threads));
            self.interpreter.code.push(code.ops);
        }
        let threads = first..self.kernel.threads.len();
        self.alive += threads.len();
        let process = Process::new(program, threads, cpus, set);
        self.kernel.events.post(process.start, Event::Start(number));
        self.kernel.programs.push(process);
        self.interpreter.teams.push(thread_team);
        Ok(())
    }

    // Time.

    /// Whether all threads have ended, the time is up, or nothing can happen any more.
    pub(crate) fn is_over(&self) -> bool {
        self.alive == 0 || self.kernel.now() >= self.end || self.deadlock.is_some()
    }

    /// Advances to a time, or to the end of a program if that is earlier. After the end of the
    /// simulation, time passes without events.
    pub(crate) fn run_until(&mut self, at: u64) {
        if self.is_over() {
            self.kernel.events.skip_to(at);
            return;
        }
        while self.kernel.now() < at || self.kernel.events.next_at() <= at {
            let has_ended = self.step(at.min(self.end));
            if has_ended || self.is_over() {
                return;
            }
        }
    }

    /// Advances to the end of the simulation.
    pub(crate) fn run(&mut self) {
        while !self.is_over() {
            self.step(self.end);
        }
    }

    /// Handles the next event up to a time; without one, advances to that time. Returns whether a
    /// program has ended.
    fn step(&mut self, until: u64) -> bool {
        let Some(event) = self.kernel.events.pop_until(until) else { return false };
        if let Event::Stop(cpu, number) = event
            && self.kernel.cpus[cpu].stop != number
        {
            return false;
        }
        self.kernel.events.count(event);
        let ended = self.programs_ended;
        self.handle(event);
        ended != self.programs_ended
    }

    fn handle(&mut self, event: Event) {
        let kernel = &mut self.kernel;
        match event {
            Event::Stop(cpu, _) => self.stop(cpu),
            Event::Wake(thread) => kernel.wake(thread),
            Event::Start(program) => self.interpreter.start(kernel, program),
            Event::Balance => {
                kernel.balance();
                kernel.events.post_in(kernel.balancer.period, Event::Balance);
            }
            Event::Refill(program) => kernel.refill(program),
            Event::Tick => {
                kernel.tick();
                kernel.events.post_in(TICK_NS, Event::Tick);
            }
            Event::PagesMoved(number) => kernel.finish_migration(number),
            Event::Plan(number) => kernel.plan_sets(number),
            Event::Notify(cpu) => kernel.wake_cpu(cpu),
            Event::ReleaseDeadline(program) => {
                self.interpreter.claims.take_overdue(kernel, program);
            }
        }
    }

    // CPUs.

    /// Stops a CPU: its thread advances, and continues, or another one follows.
    fn stop(&mut self, c: usize) {
        self.kernel.settle(c);
        self.kernel.cpus[c].kicked = false;
        if let Some(i) = self.kernel.cpus[c].current {
            match self.interpreter.advance(&mut self.kernel, c) {
                Advance::Runs if !self.evict(c, i) => {
                    self.kernel.plan(c);
                    return;
                }
                Advance::Runs => {}
                Advance::Waits(state) => self.kernel.take_off(c, state),
                Advance::Ends => self.end_thread(c, i),
            }
        }
        self.fill(c);
    }

    /// Dispatches threads to a free CPU until one of them needs time.
    fn fill(&mut self, c: usize) {
        while let Some(i) = self.kernel.next_thread(c) {
            self.kernel.dispatch(c, i);
            match self.interpreter.advance(&mut self.kernel, c) {
                Advance::Runs => {
                    self.kernel.plan(c);
                    return;
                }
                Advance::Waits(state) => self.kernel.take_off(c, state),
                Advance::Ends => self.end_thread(c, i),
            }
        }
        self.kernel.cpus.set_idle(c);
        self.detect_deadlock();
    }

    /// Takes the running thread off its CPU if it must leave. Returns whether it did.
    fn evict(&mut self, c: usize, i: usize) -> bool {
        let Some(eviction) = self.kernel.eviction(c, i) else { return false };
        self.kernel.take_off(c, eviction.state());
        self.interpreter.sync.kick_spinners(&mut self.kernel, i);
        self.kernel.requeue(c, i, eviction);
        true
    }

    /// Ends the running thread of a CPU.
    fn end_thread(&mut self, c: usize, i: usize) {
        self.kernel.take_off(c, State::Ended);
        let now = self.kernel.now();
        let thread = &mut self.kernel.threads[i];
        thread.ended = now;
        let program = thread.program;
        self.alive -= 1;
        let process = &mut self.kernel.programs[program];
        process.alive -= 1;
        if process.alive == 0 {
            process.ended = Some(now);
            self.programs_ended += 1;
            self.interpreter.retreat(&mut self.kernel, program, 0);
        }
        self.interpreter.end_thread(&mut self.kernel, i);
    }

    /// Detects that no thread runs, and that none can be woken any more.
    fn detect_deadlock(&mut self) {
        let kernel = &self.kernel;
        let is_still = kernel.cpus.idle() == kernel.cpus.len()
            && kernel.cpus.queued == 0
            && !kernel.events.has_arrivals()
            && self.alive > 0;
        if !is_still
            || kernel.programs.iter().any(|p| !p.group.throttled.is_empty())
            || self.deadlock.is_some()
        {
            return;
        }
        self.deadlock = Some(format!(
            "deadlock at {:.6} s: {}, and no thread can end these waits",
            kernel.now() as f64 / 1e9,
            self.interpreter.sync.describe_waits(kernel),
        ));
    }
}
