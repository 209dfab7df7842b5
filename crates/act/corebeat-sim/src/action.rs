//! Actions on the world: each reports how many settings it changed.

use crate::Error;
use crate::thread::State;
use crate::world::World;
use corebeat_machine::{Action, CpuSet, Effect, ProgramId, Restored, Target};

/// Carries out an action.
pub(crate) fn apply(world: &mut World, action: &Action) -> Result<Effect, Error> {
    check(world, action)?;
    let changed = match action {
        Action::SetCpus { target, cpus } => set_cpus(world, *target, cpus.as_ref())?,
        Action::SetSlice { target, slice_us } => {
            let slice = slice_us.map(|us| u64::from(us) * 1_000);
            for_each(world, *target, |world, i| world.kernel.set_slice(i, slice))?
        }
        Action::SetClass { target, class } => for_each(world, *target, |world, i| {
            let t = &world.kernel.threads[i];
            let (own, nice) = (world.kernel.programs[t.program].class, t.nice);
            world.kernel.reweigh(i, class.unwrap_or(own), nice)
        })?,
        Action::SetNice { target, nice } => for_each(world, *target, |world, i| {
            let t = &world.kernel.threads[i];
            let own = world.kernel.programs[t.program].nice;
            world.kernel.reweigh(i, t.class, own.saturating_add(*nice).clamp(-20, 19))
        })?,
        _ => u32::from(apply_to_program(world, action)?),
    };
    Ok(Effect { changed })
}

/// Rejects invalid values, before anything changes.
fn check(world: &World, action: &Action) -> Result<(), Error> {
    action.validate().map_err(|e| Error::Action(e.to_string()))?;
    let memory = &world.kernel.memory;
    let what = match action {
        Action::SetCpus { cpus: Some(cpus), .. } if existing(world, cpus).is_empty() => {
            "the machine has none of these CPUs: name CPUs of the machine"
        }
        Action::MovePages { from, to, .. } if !from.iter().chain(to).all(|n| memory.has(*n)) => {
            "the machine lacks one of these nodes: name nodes of the machine"
        }
        _ => return Ok(()),
    };
    Err(Error::Action(what.into()))
}

fn set_cpus(world: &mut World, target: Target, cpus: Option<&CpuSet>) -> Result<u32, Error> {
    if targets(world, target)?.iter().any(|&i| world.kernel.set_of(i).is_some()) {
        let what = "tasks of a coscheduled set run on the CPUs of their set; change the set";
        return Err(Error::Action(what.into()));
    }
    let cpus = cpus.map(|cpus| existing(world, cpus));
    for_each(world, target, |world, i| {
        let t = &mut world.kernel.threads[i];
        // Without an earlier action, the thread has its own CPUs, or those of its claim.
        if cpus.is_none() && !t.is_bound {
            return false;
        }
        t.is_bound = cpus.is_some();
        let own = &world.kernel.programs[t.program].cpus;
        let cpus = cpus.as_ref().unwrap_or(own).clone();
        world.kernel.restrict(i, cpus)
    })
}

/// Carries out an action on a program as a whole. Returns whether its setting changed.
fn apply_to_program(world: &mut World, action: &Action) -> Result<bool, Error> {
    let Some(id) = action.program() else { return Ok(false) };
    let number = program(world, id)?;
    if let (Action::SetTeam { .. }, None) = (action, &world.interpreter.teams[number]) {
        return Err(Error::Action("the program has no parallel regions to resize".into()));
    }
    let kernel = &mut world.kernel;
    let process = &mut kernel.programs[number];
    if process.ended.is_some() {
        return Ok(false);
    }
    let has_changed = match action {
        Action::SetWeight { weight, .. } => {
            let has_changed = process.group.weight != Some(*weight);
            kernel.settle_all();
            kernel.programs[number].group.weight = Some(*weight);
            has_changed
        }
        Action::SetQuota { cpus, .. } => {
            let has_changed = process.group.quota != *cpus;
            if has_changed {
                kernel.limit(number, *cpus);
            }
            has_changed
        }
        Action::SetFrozen { frozen, .. } => {
            let has_changed = process.group.frozen != *frozen;
            if has_changed {
                kernel.freeze(number, *frozen);
            }
            has_changed
        }
        Action::MovePages { from, to, .. } => {
            let threads = &kernel.threads[process.threads.clone()];
            let nodes = (from.as_slice(), to.as_slice());
            kernel.memory.move_pages(number, process, threads, nodes, &mut kernel.events)
        }
        Action::SpreadPages { spread, .. } => {
            let has_changed = process.is_spread != *spread;
            // Pages that have been moved since are spread again.
            if has_changed || *spread {
                kernel.memory.spread_pages(number, process, *spread, &mut kernel.events);
            }
            has_changed
        }
        Action::SetTeam { size, .. } => {
            world.interpreter.teams[number].as_mut().is_some_and(|team| team.resize(*size))
        }
        _ => false,
    };
    Ok(has_changed)
}

/// Gives all programs and threads their own settings back.
pub(crate) fn restore(world: &mut World) -> Restored {
    let mut restored = Restored::default();
    for number in 0..world.kernel.programs.len() {
        let id = ProgramId(number as u32);
        let name = world.kernel.programs[number].name.clone();
        let target = Target::Program(id);
        for action in [
            Action::SetCpus { target, cpus: None },
            Action::SetSlice { target, slice_us: None },
            Action::SetClass { target, class: None },
            Action::SetNice { target, nice: 0 },
            Action::SetQuota { program: id, cpus: None },
            Action::SetFrozen { program: id, frozen: false },
            Action::SpreadPages { program: id, spread: false },
            Action::SetTeam { program: id, size: None },
        ] {
            // An action that the program does not support has changed nothing.
            if apply(world, &action).is_ok_and(Effect::has_changed) {
                restored.undone.push(format!("program '{name}': {action}"));
            }
        }
        world.kernel.settle_all();
        if world.kernel.programs[number].group.weight.take().is_some() {
            restored.undone.push(format!("program '{name}': no weight"));
        }
    }
    restored
}

/// The CPUs of a set that the machine has.
fn existing(world: &World, cpus: &CpuSet) -> CpuSet {
    cpus.iter().filter(|c| (c.0 as usize) < world.kernel.cpus.len()).collect()
}

fn program(world: &World, id: ProgramId) -> Result<usize, Error> {
    let number = id.0 as usize;
    match number < world.kernel.programs.len() {
        true => Ok(number),
        false => Err(Error::Action(format!("program {} is unknown", id.0))),
    }
}

/// The threads of a target that have not ended.
fn targets(world: &World, target: Target) -> Result<Vec<usize>, Error> {
    let threads = &world.kernel.threads;
    match target {
        Target::Program(id) => {
            let process = &world.kernel.programs[program(world, id)?];
            let is_left = |i: &usize| threads[*i].state != State::Ended;
            Ok(process.threads.clone().filter(is_left).collect())
        }
        Target::Thread(id) => {
            let i = usize::try_from(id.tid).ok().and_then(|tid| tid.checked_sub(1));
            let Some((i, thread)) = i.and_then(|i| Some((i, threads.get(i)?))) else {
                return Err(Error::Action(format!("thread {} is unknown", id.tid)));
            };
            let is_same = thread.started == id.start_ticks && thread.is_alive();
            Ok(if is_same { vec![i] } else { vec![] })
        }
    }
}

/// Changes each thread of a target. Threads that have not started are changed, but
/// not counted.
fn for_each(
    world: &mut World,
    target: Target,
    mut change: impl FnMut(&mut World, usize) -> bool,
) -> Result<u32, Error> {
    let targets = targets(world, target)?;
    let mut changed = 0;
    for i in targets {
        let has_changed = change(world, i);
        changed += u32::from(has_changed && world.kernel.threads[i].is_alive());
    }
    Ok(changed)
}
