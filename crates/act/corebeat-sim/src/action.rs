//! What may be done to the world.

use crate::Error;
use crate::priority;
use crate::thread::{State, weight};
use crate::world::World;
use corebeat_machine::{Action, Class, CpuId, CpuSet, NodeId, ProgramId, Target};

impl World {
    /// Carries an action out.
    pub(crate) fn act(&mut self, action: &Action) -> Result<(), Error> {
        let wrong = |what: &str| Err(Error::Action(what.into()));
        match action {
            Action::SetCpus { target, cpus } => {
                let is_here = |c: &CpuId| (c.0 as usize) < self.cpus.len();
                let here: Option<CpuSet> = cpus.as_ref().map(|cpus| cpus.iter().filter(is_here).collect());
                if here.as_ref().is_some_and(CpuSet::is_empty) {
                    return wrong("none of these CPUs is there; name one that is");
                }
                let targets = self.targets(*target)?;
                if targets.iter().any(|&i| self.gang_of(i).is_some()) {
                    return wrong("tasks of a coscheduled set run where the set is");
                }
                for i in targets {
                    let own = &self.programs[self.threads[i].program].cpus;
                    let cpus = here.as_ref().unwrap_or(own).clone();
                    self.restrict(i, cpus);
                }
            }
            Action::SetSlice { target, slice_us } => {
                if *slice_us == Some(0) {
                    return wrong("a slice is longer than 0");
                }
                for i in self.targets(*target)? {
                    let t = &mut self.threads[i];
                    t.slice = slice_us.map(|us| u64::from(us) * 1_000);
                    t.left = t.slice.map_or(t.left, |slice| t.left.min(slice));
                    if t.state == State::Running {
                        let c = t.cpu;
                        self.kick(c);
                    }
                }
            }
            Action::SetClass { target, class } => {
                for i in self.targets(*target)? {
                    let class = class.unwrap_or(self.programs[self.threads[i].program].class);
                    self.reweigh(i, class, self.threads[i].nice);
                }
            }
            Action::SetNice { target, nice } => {
                if !(-20..=19).contains(nice) {
                    return wrong("nice values are from -20 to 19");
                }
                for i in self.targets(*target)? {
                    self.reweigh(i, self.threads[i].class, *nice);
                }
            }
            Action::SetWeight { program, weight } => {
                if !(1..=10_000).contains(weight) {
                    return wrong("weights are from 1 to 10000");
                }
                let program = self.program(*program)?;
                (0..self.cpus.len()).for_each(|c| self.settle(c));
                self.programs[program].weight = Some(*weight);
            }
            Action::SetQuota { program, cpus } => {
                if cpus.is_some_and(|cpus| !(cpus.is_finite() && cpus > 0.0)) {
                    return wrong("a limit is above 0 CPUs");
                }
                let program = self.program(*program)?;
                (0..self.cpus.len()).for_each(|c| self.settle(c));
                self.limit(program, *cpus);
            }
            Action::SetFrozen { program, frozen } => {
                let program = self.program(*program)?;
                (0..self.cpus.len()).for_each(|c| self.settle(c));
                self.freeze(program, *frozen);
            }
            Action::MovePages { program, from, to } => {
                let is_here = |n: &NodeId| self.topology.nodes().iter().any(|m| m.id == *n);
                if from.is_empty() || to.is_empty() || !from.iter().chain(to).all(is_here) {
                    return wrong("pages move from nodes that are there to nodes that are there");
                }
                let program = self.program(*program)?;
                self.move_pages(program, from, to);
            }
            Action::SpreadPages { program, spread } => {
                let program = self.program(*program)?;
                self.spread_pages(program, *spread);
            }
            Action::SetTeam { program, size } => {
                if *size == Some(0) {
                    return wrong("a team has a thread or more");
                }
                let program = self.program(*program)?;
                match &mut self.programs[program].crew {
                    Some(crew) => crew.resize(*size),
                    None => return wrong("the program has no parallel regions"),
                }
            }
        }
        Ok(())
    }

    fn program(&self, id: ProgramId) -> Result<usize, Error> {
        let number = id.0 as usize;
        match number < self.programs.len() {
            true => Ok(number),
            false => Err(Error::Action(format!("there is no program {}", id.0))),
        }
    }

    /// Whose threads are meant; none if they have ended.
    fn targets(&self, target: Target) -> Result<Vec<usize>, Error> {
        let has_ended = |i: &usize| self.threads[*i].state != State::Ended;
        match target {
            Target::Program(id) => {
                Ok(self.programs[self.program(id)?].threads.clone().filter(has_ended).collect())
            }
            Target::Thread(id) => {
                let i = id
                    .tid
                    .checked_sub(1)
                    .and_then(|i| usize::try_from(i).ok())
                    .filter(|&i| i < self.threads.len());
                let Some(i) = i else { return Err(Error::Action(format!("there is no thread {}", id.tid))) };
                let is_it = self.threads[i].started == id.start_ticks && self.threads[i].is_alive();
                Ok(if is_it { vec![i] } else { vec![] })
            }
        }
    }

    /// Lets a thread run on these CPUs alone.
    pub(crate) fn restrict(&mut self, i: usize, cpus: CpuSet) {
        let t = &mut self.threads[i];
        t.cpus = cpus;
        let c = t.cpu;
        if t.cpus.contains(CpuId(c as u32)) {
            return;
        }
        match t.state {
            State::Ready => {
                self.dequeue(i);
                let to = self.place_for(i);
                self.enqueue(to, i, false);
            }
            State::Running => self.kick(c),
            _ => {}
        }
    }

    /// Gives a thread a class and a nice value.
    fn reweigh(&mut self, i: usize, class: Class, nice: i8) {
        let new = weight(class, nice);
        let (c, state) = (self.threads[i].cpu, self.threads[i].state);
        if state == State::Ready {
            self.dequeue(i);
        }
        self.settle(c);
        let t = &mut self.threads[i];
        let old = t.weight;
        if t.class != class {
            t.priority = priority::START;
        }
        (t.class, t.nice, t.weight) = (class, nice, new);
        if t.is_runnable() {
            let program = &mut self.programs[t.program];
            program.runnable = program.runnable - old + new;
        }
        match state {
            State::Ready => self.enqueue(c, i, false),
            State::Running => {
                let cpu = &mut self.cpus[c];
                cpu.load = cpu.load - old + new;
                self.kick(c);
            }
            _ => {}
        }
    }
}
