//! The simulated kernel: dispatches threads to CPUs, preempts them, wakes them and balances load.
//!
//! The kernel does not execute code. The world stops a CPU, lets the
//! interpreter advance its thread, and then calls the kernel with the result.

use crate::balance::{self, Balancer};
use crate::coschedule::Sets;
use crate::cpu::{Cpus, Entry};
use crate::discipline::Discipline;
use crate::event::{Event, EventQueue};
use crate::memory::Memory;
use crate::process::Process;
use crate::random::Random;
use crate::thread::{Activity, State, Thread, weight};
use crate::timeline::Record;
use crate::{Hardware, group, priority};
use corebeat_machine::{Class, CpuId, CpuSet, Topology};

/// Period after which the memory cost of a running thread is computed again.
const MEMORY_PERIOD_NS: u64 = 1_000_000;
/// Period after which a thread of a program with a quota is checked.
const QUOTA_PERIOD_NS: u64 = 1_000_000;
/// Where threads return to warm CPUs, an idle CPU steals them after this time (Solaris'
/// `nosteal_nsec`).
const STEAL_NS: u64 = 100_000;

/// Why a running thread leaves its CPU although it could continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Eviction {
    /// The thread may no longer run on this CPU.
    Affinity,
    /// The CPU is assigned to another coscheduled set.
    Reassigned,
    /// Its program is frozen or has used up its quota.
    Throttled,
    /// Another thread runs first.
    Preempted {
        /// The thread has used up its slice.
        is_expired: bool,
    },
}

impl Eviction {
    /// The state of the evicted thread.
    pub(crate) fn state(self) -> State {
        if self == Eviction::Throttled { State::Throttled } else { State::Ready }
    }
}

/// CPUs, threads and programs, and everything that decides which thread runs where.
pub(crate) struct Kernel {
    pub(crate) hardware: Hardware,
    pub(crate) events: EventQueue,
    pub(crate) cpus: Cpus,
    pub(crate) threads: Vec<Thread>,
    pub(crate) programs: Vec<Process>,
    pub(crate) memory: Memory,
    pub(crate) sets: Sets,
    pub(crate) balancer: Balancer,
    pub(crate) random: Random,
    /// Which thread ran where, if that is recorded.
    pub(crate) record: Option<Record>,
    discipline: Discipline,
}

impl Kernel {
    /// A machine without programs.
    pub(crate) fn new(hardware: Hardware, topology: &Topology, sets: Sets, seed: u64) -> Self {
        let cpus = Cpus::new(topology);
        Kernel {
            events: EventQueue::new(),
            memory: Memory::new(topology, &cpus),
            cpus,
            threads: vec![],
            programs: vec![],
            sets,
            balancer: Balancer::new(crate::time::ns(hardware.balance_us, 1e3)),
            random: Random::new(seed),
            record: None,
            discipline: Discipline::new(&hardware),
            hardware,
        }
    }

    /// Simulated time, in nanoseconds.
    pub(crate) fn now(&self) -> u64 {
        self.events.now()
    }

    /// The set in whose run queue a thread waits, where there is a coscheduler.
    pub(crate) fn set_of(&self, i: usize) -> Option<usize> {
        self.programs[self.threads[i].program].set.filter(|_| self.sets.is_coscheduled())
    }

    /// Whether the coscheduler permits this thread to run on this CPU.
    fn is_assigned(&self, c: usize, i: usize) -> bool {
        !self.sets.is_coscheduled() || self.cpus[c].set == self.set_of(i)
    }

    fn is_allowed(&self, c: usize, i: usize) -> bool {
        self.threads[i].cpus.contains(CpuId(c as u32))
    }

    fn count_runnable(&mut self, i: usize, more: bool) {
        let set = self.programs[self.threads[i].program].set;
        self.sets.count_runnable(set, more, self.cpus.len(), &mut self.events);
    }

    fn count_running(&mut self, i: usize, more: bool) {
        let set = self.programs[self.threads[i].program].set;
        self.sets.count_running(set, more, self.events.now());
    }

    // Accounting.

    /// Accounts for the running thread of a CPU up to now.
    pub(crate) fn settle(&mut self, c: usize) {
        let now = self.now();
        let cpu = &mut self.cpus[c];
        let Some(i) = cpu.current else { return };
        let ran = now - cpu.since;
        if ran == 0 {
            return;
        }
        (cpu.since, cpu.busy) = (now, cpu.busy + ran);
        let t = &mut self.threads[i];
        t.book(ran, now, cpu.pace);
        let group = &mut self.programs[t.program].group;
        group.charge(ran);
        t.virtual_ns += (ran * 1024 / group.weight_of(t.weight)) as i64;
        self.advance_clock(c);
    }

    pub(crate) fn settle_all(&mut self) {
        (0..self.cpus.len()).for_each(|c| self.settle(c));
    }

    /// Advances the virtual clock of a CPU to the least virtual time of its threads.
    fn advance_clock(&mut self, c: usize) {
        let cpu = &self.cpus[c];
        let first = cpu.queue.first().map(|e| e.thread);
        let least = cpu.current.into_iter().chain(first).map(|i| self.threads[i].virtual_ns).min();
        let cpu = &mut self.cpus[c];
        cpu.virtual_ns = least.map_or(cpu.virtual_ns, |v| v.max(cpu.virtual_ns));
    }

    // Stop events.

    /// Schedules the next stop of a CPU with a running thread.
    pub(crate) fn plan(&mut self, c: usize) {
        let Some(i) = self.cpus[c].current else { return };
        let now = self.now();
        let t = &self.threads[i];
        let program = &self.programs[t.program];
        let is_variable = self.memory.charge(&mut self.cpus[c], t, &program.pages, &self.hardware);
        let cpu = &mut self.cpus[c];
        let need = match t.activity {
            Activity::Compute(left) => ((left * cpu.pace.stretch).ceil() as u64).max(1),
            Activity::Spin(left) => left,
            Activity::Fetch => 0,
        };
        let finish = now.saturating_add(t.debt()).saturating_add(need);
        let mut until = finish.min(self.discipline.slice_end(t, now));
        if is_variable {
            until = until.min(now + MEMORY_PERIOD_NS);
        }
        if program.group.has_quota() {
            until = until.min(now + QUOTA_PERIOD_NS);
        }
        cpu.pace.finish = finish;
        if !cpu.kicked {
            self.post_stop(c, until);
        }
    }

    /// Stops a CPU now.
    pub(crate) fn kick(&mut self, c: usize) {
        if !std::mem::replace(&mut self.cpus[c].kicked, true) {
            self.post_stop(c, self.now());
        }
    }

    /// Stops a CPU now, even an idle one.
    pub(crate) fn wake_cpu(&mut self, c: usize) {
        self.cpus.clear_idle(c);
        self.kick(c);
    }

    fn post_stop(&mut self, c: usize, at: u64) {
        let cpu = &mut self.cpus[c];
        cpu.stop = cpu.stop.wrapping_add(1);
        self.events.post(at, Event::Stop(c, cpu.stop));
    }

    // Dispatching.

    /// Takes the next thread for a CPU out of a run queue: its own, its set's, or another CPU's.
    pub(crate) fn next_thread(&mut self, c: usize) -> Option<usize> {
        loop {
            let i = match (self.cpus[c].set, self.cpus[c].queue.first()) {
                (Some(set), _) => self.sets.next_task(set, c, &self.threads)?,
                (None, Some(first)) => first.thread,
                (None, None) => balance::steal(c, &self.cpus, &self.threads)?,
            };
            self.dequeue(i);
            let program = self.threads[i].program;
            if !self.programs[program].group.is_held() {
                return Some(i);
            }
            self.threads[i].state = State::Throttled;
            self.count_runnable(i, false);
            self.programs[program].group.throttled.push(i);
        }
    }

    /// Puts a thread on a CPU.
    pub(crate) fn dispatch(&mut self, c: usize, i: usize) {
        let now = self.now();
        let cpu = &self.cpus[c];
        let (node, is_other) = (cpu.node, cpu.last != Some(i));
        let t = &mut self.threads[i];
        t.account.wait += now - t.since;
        t.since = now;
        t.state = State::Running;
        t.cpu = c;
        t.virtual_ns += cpu.virtual_ns;
        self.memory.place(t, &mut self.programs[t.program], node, &mut self.random);
        self.memory.dispatch(&self.cpus, c, t, is_other, &self.hardware);
        self.discipline.dispatch(t);
        let cpu = &mut self.cpus[c];
        cpu.load += t.weight;
        (cpu.current, cpu.last) = (Some(i), Some(i));
        (cpu.since, cpu.dispatched, cpu.pace.finish) = (now, now, u64::MAX);
        cpu.preempt = false;
        self.count_running(i, true);
        self.advance_clock(c);
    }

    /// Takes the running thread off its CPU.
    pub(crate) fn take_off(&mut self, c: usize, state: State) {
        let now = self.now();
        let cpu = &mut self.cpus[c];
        self.memory.discharge(cpu);
        let Some(i) = cpu.current.take() else { return };
        cpu.load -= self.threads[i].weight;
        // A pending stop was meant for this thread.
        (cpu.stop, cpu.kicked) = (cpu.stop.wrapping_add(1), false);
        self.memory.leave(cpu.cache, self.threads[i].footprint_kib);
        let (dispatched, virtual_ns) = (cpu.dispatched, cpu.virtual_ns);
        if let Some(record) = &mut self.record {
            record.add(c, dispatched, now, i);
        }
        self.count_running(i, false);
        if state != State::Ready {
            self.count_runnable(i, false);
        }
        let t = &mut self.threads[i];
        t.state = state;
        t.since = now;
        match state {
            State::Ready | State::Throttled => {
                t.virtual_ns -= virtual_ns;
                t.account.involuntary += 1;
            }
            State::Ended => self.programs[t.program].group.runnable -= t.weight,
            _ => {
                t.account.voluntary += 1;
                self.programs[t.program].group.runnable -= t.weight;
            }
        }
    }

    /// Determines whether the running thread must leave its CPU, and why.
    pub(crate) fn eviction(&mut self, c: usize, i: usize) -> Option<Eviction> {
        if !self.is_allowed(c, i) {
            return Some(Eviction::Affinity);
        }
        if !self.is_assigned(c, i) {
            return Some(Eviction::Reassigned);
        }
        if self.programs[self.threads[i].program].group.is_held() {
            return Some(Eviction::Throttled);
        }
        let is_expired = self.discipline.is_expired(&self.threads[i], self.now());
        if is_expired {
            self.discipline.expire(&mut self.threads[i]);
        }
        let is_contested = std::mem::take(&mut self.cpus[c].preempt) || is_expired;
        let queue = self.set_of(i).map_or(&self.cpus[c].queue, |set| self.sets.queue(set));
        let first = queue.first().copied().filter(|_| is_contested);
        // A thread whose slice has ended queues behind its equals, a preempted one before them.
        let Some(first) = first.filter(|first| self.entry(i, !is_expired) > *first) else {
            self.threads[i].account.renewed += u64::from(is_expired);
            return None;
        };
        if !is_expired && self.threads[first.thread].program == self.threads[i].program {
            self.threads[i].account.backstabs += 1;
        }
        Some(Eviction::Preempted { is_expired })
    }

    /// Puts an evicted thread where it waits.
    pub(crate) fn requeue(&mut self, c: usize, i: usize, eviction: Eviction) {
        match eviction {
            Eviction::Affinity => self.place(i, false),
            // The thread did not use up its slice.
            Eviction::Reassigned => self.place(i, true),
            Eviction::Throttled => {
                self.programs[self.threads[i].program].group.throttled.push(i);
            }
            Eviction::Preempted { is_expired } => self.enqueue(c, i, !is_expired),
        }
    }

    // Waking.

    /// Makes a thread of a starting program ready, on the CPU with the least load.
    pub(crate) fn start_thread(&mut self, i: usize) {
        self.programs[self.threads[i].program].group.runnable += self.threads[i].weight;
        self.count_runnable(i, true);
        let cpu = self.least_loaded(i);
        self.enqueue(cpu, i, false);
    }

    /// Makes a blocked or sleeping thread ready.
    pub(crate) fn wake(&mut self, i: usize) {
        let now = self.now();
        let t = &mut self.threads[i];
        let waited = now - t.since;
        match t.state {
            State::Blocked => t.account.lock += waited,
            State::Parked => t.account.park += waited,
            State::Asleep => t.account.sleep += waited,
            _ => return,
        }
        t.since = now;
        self.discipline.wake(t);
        t.virtual_ns = self.discipline.sleep_credit(t.virtual_ns - self.cpus[t.cpu].virtual_ns);
        self.programs[t.program].group.runnable += t.weight;
        self.count_runnable(i, true);
        let before = self.threads[i].cpu;
        let is_warm = self.discipline.is_warm(waited)
            && self.is_allowed(before, i)
            && self.set_of(i).is_none();
        let c = if is_warm { before } else { self.place_for(i) };
        self.enqueue(c, i, false);
        self.preempt_for(c, i);
    }

    /// Preempts the running thread of a CPU if a thread that has just arrived should run first.
    fn preempt_for(&mut self, c: usize, i: usize) {
        let Some(current) = self.cpus[c].current else { return };
        // Tasks of sets wait for the next plan.
        if self.set_of(i).is_some() || self.set_of(current).is_some() {
            return;
        }
        self.settle(c);
        let (new, running) = (&self.threads[i], &self.threads[current]);
        let weight = self.programs[new.program].group.weight_of(new.weight);
        if self.discipline.preempts(new, weight, running) {
            self.cpus[c].preempt = true;
            self.kick(c);
        }
    }

    // Run queues.

    /// Puts a ready thread on the run queue of the CPU that suits best.
    fn place(&mut self, i: usize, before: bool) {
        let c = self.place_for(i);
        self.enqueue(c, i, before);
    }

    /// Puts a thread into a CPU's run queue: before its equals, or behind them.
    fn enqueue(&mut self, c: usize, i: usize, before: bool) {
        if let Some(set) = self.set_of(i) {
            return self.enqueue_in_set(set, c, i, before);
        }
        if self.cpus.clear_idle(c) {
            self.kick(c);
        }
        if self.discipline.prefers_warm_cpus()
            && self.cpus.idle() > 0
            && self.cpus[c].current.is_some()
        {
            let idle = self.cpus[c].others.iter().find(|o| self.cpus[o.1].is_idle);
            if let Some(&(_, o)) = idle {
                self.events.post_in(STEAL_NS, Event::Notify(o));
            }
        }
        let t = &mut self.threads[i];
        t.state = State::Ready;
        t.cpu = c;
        t.virtual_ns += self.cpus[c].virtual_ns;
        let entry = self.entry(i, before);
        let cpu = &mut self.cpus[c];
        cpu.queue.insert(entry);
        cpu.load += self.threads[i].weight;
        self.cpus.queued += 1;
    }

    /// Puts a task into its set's run queue, in order of arrival.
    fn enqueue_in_set(&mut self, set: usize, c: usize, i: usize, before: bool) {
        let t = &mut self.threads[i];
        (t.state, t.cpu) = (State::Ready, c);
        let entry = self.entry(i, before);
        self.sets.queue_mut(set).insert(entry);
        self.cpus.queued += 1;
        if self.cpus[c].is_idle && self.cpus[c].set == Some(set) {
            self.wake_cpu(c);
        }
    }

    /// Takes a thread out of its run queue.
    fn dequeue(&mut self, i: usize) {
        self.cpus.queued -= 1;
        if let Some(set) = self.set_of(i) {
            self.sets.queue_mut(set).remove(i);
            return;
        }
        let t = &mut self.threads[i];
        let cpu = &mut self.cpus[t.cpu];
        cpu.queue.remove(i);
        cpu.load -= t.weight;
        t.virtual_ns -= cpu.virtual_ns;
    }

    /// The run-queue position of a thread that is on its CPU or arrives there.
    fn entry(&mut self, i: usize, before: bool) -> Entry {
        let order = self.cpus.next_order(before);
        let (rank, key) = match self.set_of(i) {
            Some(_) => (1, 0),
            None => self.discipline.key(&self.threads[i]),
        };
        Entry { rank, key, order, thread: i }
    }

    // Placement.

    /// The CPU for a ready thread: the nearest idle one to its last CPU, else its last CPU.
    fn place_for(&self, i: usize) -> usize {
        let last = self.threads[i].cpu;
        if let Some(set) = self.set_of(i) {
            return self.place_in_set(set, i);
        }
        let is_idle = |c: usize| self.cpus[c].is_idle && self.is_assigned(c, i);
        if self.is_allowed(last, i) && is_idle(last) {
            return last;
        }
        if self.cpus.idle() > 0 {
            let mut others = self.cpus[last].others.iter();
            if let Some(&(_, c)) = others.find(|o| is_idle(o.1) && self.is_allowed(o.1, i)) {
                return c;
            }
        }
        if self.is_allowed(last, i) { last } else { self.least_loaded(i) }
    }

    /// The CPU for a ready task of a set: an idle one that is assigned to the set, else its last.
    fn place_in_set(&self, set: usize, i: usize) -> usize {
        let last = self.threads[i].cpu;
        let is_free = |c: &usize| {
            let cpu = &self.cpus[*c];
            cpu.is_idle && cpu.set == Some(set) && self.is_allowed(*c, i)
        };
        let others = self.cpus[last].others.iter().map(|o| o.1);
        [last].into_iter().chain(others).find(is_free).unwrap_or(last)
    }

    /// The allowed CPU with the least load; among equals, on the node with the least load.
    fn least_loaded(&self, i: usize) -> usize {
        let mut nodes = vec![0; self.memory.nodes()];
        self.cpus.iter().for_each(|c| nodes[c.node] += c.load);
        let allowed = (0..self.cpus.len()).filter(|&c| self.is_allowed(c, i));
        allowed
            .min_by_key(|&c| (self.cpus[c].load, nodes[self.cpus[c].node], c))
            .unwrap_or(self.threads[i].cpu)
    }

    // Periodic work.

    /// Balances the run queues: each CPU may pull one thread from a CPU with more load.
    pub(crate) fn balance(&mut self) {
        self.balancer.round += 1;
        let (all, round) = (self.cpus.len(), self.balancer.round);
        for k in 0..all {
            if self.cpus.queued == 0 {
                return;
            }
            let c = (k + round as usize) % all;
            if let Some(i) = self.balancer.candidate(c, &self.cpus, &self.threads) {
                self.cpus[c].balanced = round;
                self.cpus[self.threads[i].cpu].balanced = round;
                self.dequeue(i);
                self.enqueue(c, i, false);
            }
        }
    }

    /// Raises the priorities of waiting threads (time-sharing schedulers only).
    pub(crate) fn tick(&mut self) {
        for i in 0..self.threads.len() {
            if !self.discipline.ages(&self.threads[i]) {
                continue;
            }
            let is_ready = self.threads[i].state == State::Ready;
            self.threads[i].is_due = !is_ready;
            if is_ready {
                self.dequeue(i);
                self.discipline.tick(&mut self.threads[i]);
                let c = self.threads[i].cpu;
                self.enqueue(c, i, false);
                self.preempt_for(c, i);
            }
        }
    }

    /// Starts the next quota period of a program.
    pub(crate) fn refill(&mut self, program: usize) {
        let process = &mut self.programs[program];
        let is_alive = process.alive > 0;
        if !process.group.continues_refill(is_alive) {
            return;
        }
        self.settle_all();
        self.programs[program].group.refill();
        self.events.post_in(group::PERIOD_NS, Event::Refill(program));
        self.release(program);
    }

    /// Changes CPU assignments of coscheduled sets.
    pub(crate) fn plan_sets(&mut self, number: u32) {
        let wake_ns = self.hardware.wake_ns;
        self.sets.plan(number, &mut self.cpus, wake_ns, &mut self.events);
    }

    /// Completes a page migration.
    pub(crate) fn finish_migration(&mut self, number: usize) {
        self.memory.finish(number, &self.cpus, &mut self.programs, &mut self.threads);
    }

    // Settings.

    /// Limits the CPU time of a program, or removes the limit.
    pub(crate) fn limit(&mut self, program: usize, cpus: Option<f64>) {
        self.settle_all();
        if self.programs[program].group.limit(cpus) {
            self.events.post_in(group::PERIOD_NS, Event::Refill(program));
        }
        self.release(program);
        self.kick_all(program);
    }

    /// Freezes or thaws a program.
    pub(crate) fn freeze(&mut self, program: usize, frozen: bool) {
        self.settle_all();
        self.programs[program].group.frozen = frozen;
        self.release(program);
        self.kick_all(program);
    }

    /// Stops all CPUs that run a program.
    fn kick_all(&mut self, program: usize) {
        for c in 0..self.cpus.len() {
            if self.cpus[c].current.is_some_and(|i| self.threads[i].program == program) {
                self.kick(c);
            }
        }
    }

    /// Makes the throttled threads of a program ready, if the program may run.
    fn release(&mut self, program: usize) {
        let group = &mut self.programs[program].group;
        if group.is_held() {
            return;
        }
        for i in std::mem::take(&mut group.throttled) {
            if self.threads[i].state == State::Throttled {
                self.count_runnable(i, true);
                self.place(i, false);
            }
        }
    }

    /// Sets the CPUs where a thread may run. Returns whether they changed.
    pub(crate) fn restrict(&mut self, i: usize, cpus: CpuSet) -> bool {
        let t = &mut self.threads[i];
        let has_changed = t.cpus != cpus;
        t.cpus = cpus;
        let (c, state) = (t.cpu, t.state);
        if self.is_allowed(c, i) {
            return has_changed;
        }
        match state {
            State::Ready => {
                self.dequeue(i);
                self.place(i, false);
            }
            State::Running => self.kick(c),
            _ => {}
        }
        has_changed
    }

    /// Sets the slice of a thread. Returns whether it changed.
    pub(crate) fn set_slice(&mut self, i: usize, slice: Option<u64>) -> bool {
        let t = &mut self.threads[i];
        if std::mem::replace(&mut t.slice, slice) == slice {
            return false;
        }
        t.left = slice.map_or(t.left, |slice| t.left.min(slice));
        if t.state == State::Running {
            let c = t.cpu;
            self.kick(c);
        }
        true
    }

    /// Sets the class and nice value of a thread. Returns whether they changed.
    pub(crate) fn reweigh(&mut self, i: usize, class: Class, nice: i8) -> bool {
        let new = weight(class, nice);
        let t = &self.threads[i];
        if (t.class, t.nice) == (class, nice) {
            return false;
        }
        let (c, state) = (t.cpu, t.state);
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
            let group = &mut self.programs[t.program].group;
            group.runnable = group.runnable - old + new;
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
        true
    }
}
