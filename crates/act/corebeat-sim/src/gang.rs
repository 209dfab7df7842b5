//! Coscheduled sets: what is in them, who has which CPU, and how well that keeps them together.

use crate::queue::Queue;
use crate::thread::State;
use crate::world::{Event, World};
use crate::{Error, Scenario};
use corebeat_machine::{CoscheduledSet, CpuId};
use serde::Deserialize;

/// No scenario has more sets.
const SETS_MAX: usize = 4096;

/// A coscheduled set. In a scenario this is a table `[[sets]]`. Without a coscheduler its tasks run as all others do.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Set {
    /// Its name.
    pub name: String,
    /// On how many CPUs its tasks are to run together.
    pub cpus: u32,
    /// The set that it is a part of, which is before it. Default the machine.
    pub within: Option<String>,
}

/// What became of a set.
#[derive(Debug, Clone, PartialEq)]
pub struct SetOutcome {
    /// Its name.
    pub name: String,
    /// For how long some of its tasks ran, those of sets within included, in nanoseconds.
    pub ran_ns: u64,
    /// For how long of that all ran that wanted to, or all of its CPUs.
    pub coscheduled_ns: u64,
}

/// A set at work.
#[derive(Debug)]
pub(crate) struct Gang {
    name: String,
    cpus: u32,
    within: Option<usize>,
    inner: Vec<usize>,
    /// Its own tasks that wait, where there is a coscheduler.
    pub(crate) queue: Queue,
    /// Own tasks that run or are ready; CPUs that it could use with all that is within, and those that run there.
    own: u32,
    need: u32,
    running: u32,
    since: u64,
    ran: u64,
    coscheduled: u64,
}

impl Scenario {
    /// The coscheduled sets, as a coscheduler wants them.
    ///
    /// # Errors
    /// [`Error::Scenario`] where a name is not there, there twice, or not of one line; where a set has no CPU, or more than there are; for
    /// too many sets.
    pub fn coscheduled(&self) -> Result<Vec<CoscheduledSet>, Error> {
        let count = self.sets.len();
        if count > SETS_MAX {
            return Err(Error::Scenario(format!("{count} sets; write no more than {SETS_MAX}")));
        }
        let place = |name: &String| self.sets.iter().position(|s| s.name == *name);
        let set = |(at, set): (usize, &Set)| {
            let told =
                |what: String| Err(Error::Scenario(format!("set '{}': {what}", set.name.escape_debug())));
            if set.name.contains(char::is_control) {
                return told("its name has a control character in it; write a name of one line".into());
            }
            if place(&set.name) != Some(at) {
                return told("its name is taken; write another".into());
            }
            if set.cpus == 0 {
                return told("cpus is 0; write 1 or more".into());
            }
            let within = match &set.within {
                None => None,
                Some(name) => match place(name).filter(|&outer| outer < at) {
                    None => return told(format!("no set '{name}' comes before it")),
                    outer => outer,
                },
            };
            let most = within.map_or(self.machine.cpus(), |outer| self.sets[outer].cpus);
            if set.cpus > most {
                return told(format!("cpus is {}; write no more than {most}", set.cpus));
            }
            Ok(CoscheduledSet { cpus: set.cpus, within })
        };
        self.sets.iter().enumerate().map(set).collect()
    }

    /// The set that each program belongs to.
    pub(crate) fn membership(&self) -> Result<Vec<Option<usize>>, Error> {
        let place = |p: &crate::Program| match &p.set {
            None => Ok(None),
            // They would wait for ever where the set is elsewhere.
            Some(_) if p.cpus.is_some() => Err(Error::Program {
                place: format!("program '{}'", p.name),
                what: "it has cpus and a set, which is put where there is room; leave one of them out".into(),
            }),
            Some(name) => match self.sets.iter().position(|s| s.name == *name) {
                None => Err(Error::Program {
                    place: format!("program '{}'", p.name),
                    what: format!("there is no set '{name}'; write a table [[sets]]"),
                }),
                at => Ok(at),
            },
        };
        self.programs.iter().map(place).collect()
    }

    /// The sets, before anything runs.
    pub(crate) fn gangs(&self) -> Result<Vec<Gang>, Error> {
        let sets = self.coscheduled()?;
        let gang = |(at, set): (usize, &CoscheduledSet)| Gang {
            name: self.sets[at].name.clone(),
            cpus: set.cpus,
            within: set.within,
            inner: (0..sets.len()).filter(|&i| sets[i].within == Some(at)).collect(),
            queue: Queue::default(),
            own: 0,
            need: 0,
            running: 0,
            since: 0,
            ran: 0,
            coscheduled: 0,
        };
        Ok(sets.iter().enumerate().map(gang).collect())
    }
}

impl World {
    /// The set whose queue a thread stands in, where there is a coscheduler.
    pub(crate) fn gang_of(&self, i: usize) -> Option<usize> {
        self.programs[self.threads[i].program].set.filter(|_| self.coscheduler.is_some())
    }

    /// Whether a CPU is for this thread now, as far as sets go.
    pub(crate) fn serves(&self, c: usize, i: usize) -> bool {
        self.coscheduler.is_none() || self.cpus[c].serves == self.gang_of(i)
    }

    /// A thread wants a CPU from now on, or no more.
    pub(crate) fn count_runnable(&mut self, i: usize, more: bool) {
        let add = |n: u32| if more { n + 1 } else { n - 1 };
        match self.programs[self.threads[i].program].set {
            None => {
                let (before, all) = (self.loose, self.cpus.len() as u32);
                self.loose = add(before);
                if before.min(all) != self.loose.min(all) {
                    self.ask();
                }
            }
            Some(set) => {
                self.book_gangs(set);
                let gang = &mut self.gangs[set];
                let before = gang.own;
                gang.own = add(before);
                if before.min(gang.cpus) != gang.own.min(gang.cpus) {
                    self.ask();
                }
                let mut next = Some(set);
                while let Some(s) = next {
                    let within: u32 = self.gangs[s].inner.iter().map(|&i| self.gangs[i].need).sum();
                    let gang = &mut self.gangs[s];
                    gang.need = (gang.own + within).min(gang.cpus);
                    next = gang.within;
                }
            }
        }
    }

    /// A thread has come onto a CPU, or goes off.
    pub(crate) fn count_running(&mut self, i: usize, more: bool) {
        let Some(set) = self.programs[self.threads[i].program].set else { return };
        self.book_gangs(set);
        let mut next = Some(set);
        while let Some(s) = next {
            let gang = &mut self.gangs[s];
            gang.running = if more { gang.running + 1 } else { gang.running - 1 };
            next = gang.within;
        }
    }

    /// Books how a set, and those that it is in, ran up to now.
    fn book_gangs(&mut self, set: usize) {
        let mut next = Some(set);
        while let Some(s) = next {
            let gang = &mut self.gangs[s];
            let passed = self.now - std::mem::replace(&mut gang.since, self.now);
            if gang.running > 0 {
                gang.ran += passed;
                gang.coscheduled += if gang.running >= gang.need { passed } else { 0 };
            }
            next = gang.within;
        }
    }

    /// Has the coscheduler asked once all that happens at this moment has happened.
    fn ask(&mut self) {
        if self.coscheduler.is_some() && !std::mem::replace(&mut self.asked, true) {
            self.asks = self.asks.wrapping_add(1);
            let event = Event::Ask(self.asks);
            self.post(self.now, event);
        }
    }

    /// Asks the coscheduler who has which CPU. The CPU that leads changes at once, the others when they have heard of it.
    pub(crate) fn arrange(&mut self, number: u32) {
        if number != self.asks {
            return;
        }
        self.asked = false;
        let own: Vec<u32> = self.gangs.iter().map(|g| g.own).collect();
        let (now, loose) = (self.now, self.loose);
        let Some(plan) = self.coscheduler.as_mut().map(|c| c.plan(now, &own, loose)) else { return };
        let mut leads = true;
        for (c, &set) in plan.cpus.iter().enumerate().take(self.cpus.len()) {
            if std::mem::replace(&mut self.cpus[c].serves, set) == set {
                continue;
            }
            let hears = if std::mem::take(&mut leads) { 0 } else { self.hardware.wake_ns };
            self.post(now + hears, Event::Look(c));
        }
        if plan.until_ns != u64::MAX {
            self.asks = self.asks.wrapping_add(1);
            let event = Event::Ask(self.asks);
            self.post(plan.until_ns, event);
        }
    }

    /// Has a CPU look at what it does, also one that idles.
    pub(crate) fn rouse(&mut self, c: usize) {
        if std::mem::take(&mut self.cpus[c].is_idle) {
            self.idle -= 1;
        }
        self.kick(c);
    }

    /// The next thread of a set that may run on a CPU.
    pub(crate) fn next_of_gang(&self, set: usize, c: usize) -> Option<usize> {
        self.gangs[set].queue.iter().find(|&i| self.threads[i].cpus.contains(CpuId(c as u32)))
    }

    /// Where a thread of a set goes: an idle CPU that the set has, if there is one.
    pub(crate) fn place_in_gang(&self, set: usize, i: usize) -> usize {
        let t = &self.threads[i];
        let is_free = |c: &usize| {
            let cpu = &self.cpus[*c];
            cpu.is_idle && cpu.serves == Some(set) && t.cpus.contains(CpuId(*c as u32))
        };
        let near = self.cpus[t.cpu].others.iter().map(|o| o.1);
        [t.cpu].into_iter().chain(near).find(is_free).unwrap_or(t.cpu)
    }

    /// Puts a thread into its set's queue: tasks of a set take turns in order of arrival.
    pub(crate) fn enqueue_in_gang(&mut self, set: usize, c: usize, i: usize, before: bool) {
        let t = &mut self.threads[i];
        (t.state, t.cpu) = (State::Ready, c);
        let entry = self.entry(i, before);
        self.gangs[set].queue.insert(entry);
        self.queued += 1;
        if self.cpus[c].is_idle && self.cpus[c].serves == Some(set) {
            self.rouse(c);
        }
    }

    /// What became of all sets so far.
    pub(crate) fn set_outcomes(&mut self) -> Vec<SetOutcome> {
        (0..self.gangs.len()).for_each(|s| self.book_gangs(s));
        let outcome =
            |g: &Gang| SetOutcome { name: g.name.clone(), ran_ns: g.ran, coscheduled_ns: g.coscheduled };
        self.gangs.iter().map(outcome).collect()
    }
}
