//! Coscheduled sets at run time: their demand, and the coscheduler that assigns CPUs to them.

use crate::SetOutcome;
use crate::cpu::{Cpus, RunQueue};
use crate::event::{Event, EventQueue};
use crate::thread::Thread;
use corebeat_machine::{CoscheduledSet, Coscheduler, CpuId};

/// The run-time state of a set.
#[derive(Debug, Default)]
struct SetState {
    name: String,
    cpus: u32,
    within: Option<usize>,
    inner: Vec<usize>,
    /// Its waiting tasks, where there is a coscheduler.
    queue: RunQueue,
    /// Number of its own tasks that run or are ready.
    own: u32,
    /// Number of CPUs that the set and all sets within it can use.
    need: u32,
    /// Number of CPUs on which these run.
    running: u32,
    /// The time up to which the set is accounted for.
    since: u64,
    ran: u64,
    coscheduled: u64,
}

/// All sets, and the coscheduler.
#[derive(Default)]
pub(crate) struct Sets {
    sets: Vec<SetState>,
    coscheduler: Option<Box<dyn Coscheduler>>,
    /// Number of runnable threads in no set.
    loose: u32,
    /// Number of the valid plan event.
    plans: u32,
    /// A plan event for the present moment is pending.
    is_requested: bool,
}

impl Sets {
    /// Sets with these names, before anything runs.
    pub(crate) fn new(names: Vec<String>, sets: &[CoscheduledSet]) -> Sets {
        let state = |(at, (set, name)): (usize, (&CoscheduledSet, String))| SetState {
            name,
            cpus: set.cpus,
            within: set.within,
            inner: (0..sets.len()).filter(|&i| sets[i].within == Some(at)).collect(),
            ..SetState::default()
        };
        let sets = sets.iter().zip(names).enumerate().map(state).collect();
        Sets { sets, ..Sets::default() }
    }

    pub(crate) fn coschedule(&mut self, coscheduler: Box<dyn Coscheduler>) {
        self.coscheduler = Some(coscheduler);
    }

    /// Whether a coscheduler assigns CPUs to sets.
    pub(crate) fn is_coscheduled(&self) -> bool {
        self.coscheduler.is_some()
    }

    /// The run queue of a set.
    pub(crate) fn queue(&self, set: usize) -> &RunQueue {
        &self.sets[set].queue
    }

    pub(crate) fn queue_mut(&mut self, set: usize) -> &mut RunQueue {
        &mut self.sets[set].queue
    }

    /// Counts a thread that becomes runnable (`more`), or no longer is.
    pub(crate) fn count_runnable(
        &mut self,
        set: Option<usize>,
        more: bool,
        cpus: usize,
        events: &mut EventQueue,
    ) {
        let add = |n: u32| if more { n + 1 } else { n - 1 };
        let Some(set) = set else {
            let (before, all) = (self.loose, cpus as u32);
            self.loose = add(before);
            if before.min(all) != self.loose.min(all) {
                self.request_plan(events);
            }
            return;
        };
        self.book(set, events.now());
        let state = &mut self.sets[set];
        let before = state.own;
        state.own = add(before);
        if before.min(state.cpus) != state.own.min(state.cpus) {
            self.request_plan(events);
        }
        let mut next = Some(set);
        while let Some(s) = next {
            let within: u32 = self.sets[s].inner.iter().map(|&i| self.sets[i].need).sum();
            let state = &mut self.sets[s];
            state.need = (state.own + within).min(state.cpus);
            next = state.within;
        }
    }

    /// Counts a task of a set that is dispatched (`more`), or leaves its CPU.
    pub(crate) fn count_running(&mut self, set: Option<usize>, more: bool, now: u64) {
        let Some(set) = set else { return };
        self.book(set, now);
        let mut next = Some(set);
        while let Some(s) = next {
            let state = &mut self.sets[s];
            state.running = if more { state.running + 1 } else { state.running - 1 };
            next = state.within;
        }
    }

    /// Accounts for a set, and for those that contain it, up to now.
    fn book(&mut self, set: usize, now: u64) {
        let mut next = Some(set);
        while let Some(s) = next {
            let state = &mut self.sets[s];
            let passed = now - std::mem::replace(&mut state.since, now);
            if state.running > 0 {
                state.ran += passed;
                state.coscheduled += if state.running >= state.need { passed } else { 0 };
            }
            next = state.within;
        }
    }

    /// Requests a plan after all events of the present moment.
    fn request_plan(&mut self, events: &mut EventQueue) {
        if self.coscheduler.is_some() && !std::mem::replace(&mut self.is_requested, true) {
            self.plans = self.plans.wrapping_add(1);
            events.post_in(0, Event::Plan(self.plans));
        }
    }

    /// Assigns CPUs to sets as the coscheduler plans. The first CPU changes at once, the others
    /// after the notification has reached them.
    pub(crate) fn plan(
        &mut self,
        number: u32,
        cpus: &mut Cpus,
        wake_ns: u64,
        events: &mut EventQueue,
    ) {
        if number != self.plans {
            return;
        }
        self.is_requested = false;
        let own: Vec<u32> = self.sets.iter().map(|s| s.own).collect();
        let (now, loose) = (events.now(), self.loose);
        let Some(plan) = self.coscheduler.as_mut().map(|c| c.plan(now, &own, loose)) else {
            return;
        };
        let mut leads = true;
        for (c, &set) in plan.cpus.iter().enumerate().take(cpus.len()) {
            if std::mem::replace(&mut cpus[c].set, set) == set {
                continue;
            }
            let delay_ns = if std::mem::take(&mut leads) { 0 } else { wake_ns };
            events.post_in(delay_ns, Event::Notify(c));
        }
        if plan.until_ns != u64::MAX {
            self.plans = self.plans.wrapping_add(1);
            events.post(plan.until_ns, Event::Plan(self.plans));
        }
    }

    /// The next task of a set that may run on a CPU.
    pub(crate) fn next_task(&self, set: usize, c: usize, threads: &[Thread]) -> Option<usize> {
        let is_allowed = |&i: &usize| threads[i].cpus.contains(CpuId(c as u32));
        self.sets[set].queue.iter().find(is_allowed)
    }

    /// Run time and coscheduled time of each set so far.
    pub(crate) fn outcomes(&mut self, now: u64) -> Vec<SetOutcome> {
        (0..self.sets.len()).for_each(|s| self.book(s, now));
        let outcome = |s: &SetState| SetOutcome {
            name: s.name.clone(),
            ran_ns: s.ran,
            coscheduled_ns: s.coscheduled,
        };
        self.sets.iter().map(outcome).collect()
    }
}
