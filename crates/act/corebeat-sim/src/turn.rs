//! Who runs where, and for how long: the scheduler.

use crate::queue::Entry;
use crate::thread::{Doing, State};
use crate::world::{Event, World};
use crate::{Scheduler, priority};
use corebeat_machine::{Class, CpuId};

/// A thread that wakes up takes the CPU from one that is ahead of it by more than this, in virtual nanoseconds of nice 0.
const WAKE_LEAD_NS: i64 = 1_000_000;
/// What memory costs a thread is looked at again after so long.
const MEMORY_PERIOD_NS: u64 = 1_000_000;
/// A thread of a program with a limit is looked at again after so long.
const QUOTA_PERIOD_NS: u64 = 1_000_000;
/// Where threads go back to their CPUs, others take those that wait for a busy one after so long (Solaris' `nosteal_nsec`).
const STEAL_NS: u64 = 100_000;
/// CPUs that share no node are evened out only every so many balancings, unless one is idle.
const FAR_EVERY: u64 = 4;
/// A thread is moved to a CPU that has just one less only every so many balancings: so that of three threads on two CPUs each
/// comes to be the one that is alone.
const ROTATE_EVERY: u64 = 16;

/// How a thread's way through its code goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Course {
    /// It needs the CPU.
    Runs,
    /// It gives the CPU up.
    Waits(State),
    Ends,
}

impl World {
    /// Books the time of a CPU's running thread up to now.
    pub(crate) fn settle(&mut self, c: usize) {
        let cpu = &mut self.cpus[c];
        let Some(i) = cpu.current else { return };
        let ran = self.now - cpu.since;
        if ran == 0 {
            return;
        }
        (cpu.since, cpu.busy) = (self.now, cpu.busy + ran);
        let t = &mut self.threads[i];
        let system = ran.min(t.debt_system);
        let stalled = (ran - system).min(t.debt_user);
        let rest = ran - system - stalled;
        t.debt_system -= system;
        t.debt_user -= stalled;
        t.account.system += system;
        t.account.user += stalled;
        match t.doing {
            Doing::Work(left) => {
                // Where it was to be done by now, it is, whatever rounding says.
                let done = if self.now >= cpu.finish { left } else { (rest as f64 / cpu.stretch).min(left) };
                t.doing = Doing::Work(left - done);
                let share = self.code[t.team][t.pc].system_share();
                let system = (rest as f64 * share) as u64;
                t.account.system += system;
                t.account.user += rest - system;
                t.account.instructions += done;
                t.account.references += done * crate::memory::REFERENCES_PER_NS;
                t.account.misses += done * crate::memory::REFERENCES_PER_NS * cpu.miss;
            }
            Doing::Spin(left) => {
                t.doing = Doing::Spin(if left == u64::MAX { left } else { left - rest.min(left) });
                t.account.user += rest;
                t.account.spin += rest;
                t.account.instructions += rest as f64;
            }
            Doing::Next => t.account.user += rest,
        }
        t.since = self.now;
        t.left = t.left.saturating_sub(ran);
        let program = &mut self.programs[t.program];
        program.left = program.left.saturating_sub(ran as i64);
        let weight = program.weight_of(t.weight);
        t.virtual_ns += (ran * 1024 / weight) as i64;
        self.advance_clock(c);
    }

    /// Moves a CPU's virtual clock up to the least of its threads.
    fn advance_clock(&mut self, c: usize) {
        let cpu = &self.cpus[c];
        let first = cpu.queue.first().map(|e| e.thread);
        let least = cpu.current.into_iter().chain(first).map(|i| self.threads[i].virtual_ns).min();
        let cpu = &mut self.cpus[c];
        cpu.virtual_ns = least.map_or(cpu.virtual_ns, |v| v.max(cpu.virtual_ns));
    }

    /// A CPU looks at what it does.
    pub(crate) fn stop(&mut self, c: usize) {
        self.settle(c);
        self.cpus[c].kicked = false;
        if let Some(i) = self.cpus[c].current {
            match self.advance(c) {
                Course::Runs if !self.leaves(c, i) => {
                    self.plan(c);
                    return;
                }
                Course::Runs => {}
                Course::Waits(state) => self.take_off(c, state),
                Course::Ends => self.end_thread(c),
            }
        }
        self.fill(c);
    }

    /// Gives a CPU without a thread the next one that needs it.
    fn fill(&mut self, c: usize) {
        while let Some(i) = self.pick(c) {
            self.put_on(c, i);
            match self.advance(c) {
                Course::Runs => {
                    self.plan(c);
                    return;
                }
                Course::Waits(state) => self.take_off(c, state),
                Course::Ends => self.end_thread(c),
            }
        }
        self.cpus[c].is_idle = true;
        self.idle += 1;
        self.look_for_deadlock();
    }

    /// Sees whether the running thread must give its CPU up, and does it.
    fn leaves(&mut self, c: usize, i: usize) -> bool {
        let t = &self.threads[i];
        if !t.cpus.contains(CpuId(c as u32)) {
            self.take_off(c, State::Ready);
            let to = self.place_for(i);
            self.enqueue(to, i, false);
            return true;
        }
        if !self.serves(c, i) {
            self.take_off(c, State::Ready);
            let to = self.place_for(i);
            // It was not its fault.
            self.enqueue(to, i, true);
            return true;
        }
        if self.programs[t.program].is_held() {
            self.take_off(c, State::Throttled);
            self.programs[self.threads[i].program].throttled.push(i);
            return true;
        }
        let is_expired = t.left == 0 && self.now.is_multiple_of(self.tick);
        if is_expired {
            if self.changes_priority(i) {
                let t = &mut self.threads[i];
                (t.priority, t.is_due) = (priority::expired(t.priority), false);
            }
            self.threads[i].left = self.slice_of(i);
        }
        let asked = std::mem::take(&mut self.cpus[c].preempt) || is_expired;
        let queue = self.gang_of(i).map_or(&self.cpus[c].queue, |set| &self.gangs[set].queue);
        let first = queue.first().copied().filter(|_| asked);
        // Who has used its slice up goes behind its equals, who is pushed away stays before them.
        let Some(first) = first.filter(|first| self.entry(i, !is_expired) > *first) else {
            self.threads[i].account.renewed += u64::from(is_expired);
            return false;
        };
        if !is_expired && self.threads[first.thread].program == self.threads[i].program {
            self.threads[i].account.backstabs += 1;
        }
        self.take_off(c, State::Ready);
        self.enqueue(c, i, !is_expired);
        true
    }

    /// When the CPU is to look again.
    pub(crate) fn plan(&mut self, c: usize) {
        let Some(i) = self.cpus[c].current else { return };
        let is_charged = self.charge(c, i);
        let t = &self.threads[i];
        let need = match t.doing {
            Doing::Work(left) => ((left * self.cpus[c].stretch).ceil() as u64).max(1),
            Doing::Spin(left) => left,
            Doing::Next => 0,
        };
        let finish = self.now.saturating_add(t.debt()).saturating_add(need);
        let mut until = finish.min((self.now + t.left.max(1)).next_multiple_of(self.tick));
        if is_charged {
            until = until.min(self.now + MEMORY_PERIOD_NS);
        }
        if self.programs[t.program].quota.is_some() {
            until = until.min(self.now + QUOTA_PERIOD_NS);
        }
        let cpu = &mut self.cpus[c];
        cpu.finish = finish;
        if cpu.kicked {
            return;
        }
        cpu.stop = cpu.stop.wrapping_add(1);
        let event = Event::Stop(c, cpu.stop);
        self.post(until, event);
    }

    /// Has a CPU look at once.
    pub(crate) fn kick(&mut self, c: usize) {
        let cpu = &mut self.cpus[c];
        if !cpu.kicked {
            cpu.kicked = true;
            cpu.stop = cpu.stop.wrapping_add(1);
            let event = Event::Stop(c, cpu.stop);
            self.post(self.now, event);
        }
    }

    /// The next thread of a CPU's queue, or of another's.
    fn pick(&mut self, c: usize) -> Option<usize> {
        loop {
            let i = match (self.cpus[c].serves, self.cpus[c].queue.first()) {
                (Some(set), _) => self.next_of_gang(set, c)?,
                (None, Some(first)) => first.thread,
                (None, None) => self.waiting_elsewhere(c)?,
            };
            self.dequeue(i);
            let program = self.threads[i].program;
            if !self.programs[program].is_held() {
                return Some(i);
            }
            self.threads[i].state = State::Throttled;
            self.count_runnable(i, false);
            self.programs[program].throttled.push(i);
        }
    }

    /// A thread that waits in another CPU's queue and may run here: from the nearest that has one, the longest queue.
    fn waiting_elsewhere(&self, c: usize) -> Option<usize> {
        if self.queued == 0 {
            return None;
        }
        let mut best: Option<(u8, usize, usize)> = None;
        for &(level, o) in &self.cpus[c].others {
            if best.is_some_and(|b| b.0 < level) {
                break;
            }
            let len = self.cpus[o].queue.len();
            if len > best.map_or(0, |b| b.1) {
                let here = |&i: &usize| self.threads[i].cpus.contains(CpuId(c as u32));
                best = self.cpus[o].queue.iter().find(here).map(|i| (level, len, i)).or(best);
            }
        }
        best.map(|b| b.2)
    }

    /// A thread comes onto a CPU.
    fn put_on(&mut self, c: usize, i: usize) {
        let now = self.now;
        let t = &mut self.threads[i];
        t.account.latency += now - t.since;
        t.since = now;
        t.state = State::Running;
        t.cpu = c;
        t.virtual_ns += self.cpus[c].virtual_ns;
        self.settle_in(c, i);
        let keeps = self.changes_priority(i) && self.threads[i].left > 0;
        if !keeps {
            self.threads[i].left = self.slice_of(i);
        }
        let cpu = &mut self.cpus[c];
        cpu.load += self.threads[i].weight;
        (cpu.current, cpu.last) = (Some(i), Some(i));
        (cpu.since, cpu.came, cpu.finish) = (now, now, u64::MAX);
        cpu.preempt = false;
        self.count_running(i, true);
        self.advance_clock(c);
    }

    /// The running thread goes off its CPU.
    pub(crate) fn take_off(&mut self, c: usize, state: State) {
        self.discharge(c);
        let Some(i) = self.cpus[c].current.take() else { return };
        let cpu = &mut self.cpus[c];
        cpu.load -= self.threads[i].weight;
        // Whoever had it look meant this thread.
        (cpu.stop, cpu.kicked) = (cpu.stop.wrapping_add(1), false);
        self.pressure[cpu.cache] -= self.threads[i].footprint_kib;
        let came = cpu.came;
        if let Some(record) = &mut self.record {
            record.add(c, came, self.now, i);
        }
        self.count_running(i, false);
        if state != State::Ready {
            self.count_runnable(i, false);
        }
        let t = &mut self.threads[i];
        t.state = state;
        t.since = self.now;
        match state {
            State::Ready | State::Throttled => {
                t.virtual_ns -= self.cpus[c].virtual_ns;
                t.account.involuntary += 1;
                self.tell_spinners(i);
            }
            _ => {
                t.account.voluntary += 1;
                self.programs[t.program].runnable -= t.weight;
            }
        }
    }

    /// The running thread has ended.
    fn end_thread(&mut self, c: usize) {
        let Some(i) = self.cpus[c].current else { return };
        self.take_off(c, State::Ended);
        let t = &mut self.threads[i];
        t.ended = self.now;
        t.account.voluntary -= 1;
        let (program, team) = (t.program, t.team);
        self.alive -= 1;
        self.programs[program].alive -= 1;
        if self.programs[program].alive == 0 {
            self.programs[program].ended = Some(self.now);
            self.programs_ended += 1;
            self.retreat(program, 0);
        }
        self.stop_pushing(team);
        self.dismiss(i);
    }

    /// A thread is ready again.
    pub(crate) fn wake(&mut self, i: usize) {
        let now = self.now;
        let t = &mut self.threads[i];
        let waited = now - t.since;
        match t.state {
            State::Blocked => t.account.lock += waited,
            State::Asleep => t.account.sleep += waited,
            _ => return,
        }
        t.since = now;
        let weight = t.weight;
        let is_due =
            std::mem::take(&mut self.threads[i].is_due) || self.hardware.scheduler == Scheduler::TimeShare;
        if self.changes_priority(i) && is_due {
            let t = &mut self.threads[i];
            t.priority = priority::woken(t.priority);
            t.left = 0;
        }
        // Who has slept is owed what others had meanwhile, but no more than a slice.
        let t = &mut self.threads[i];
        t.virtual_ns = (t.virtual_ns - self.cpus[t.cpu].virtual_ns).max(-(self.slice as i64));
        self.programs[t.program].runnable += weight;
        self.count_runnable(i, true);
        let t = &self.threads[i];
        let is_warm = waited < self.warm && t.cpus.contains(CpuId(t.cpu as u32)) && self.gang_of(i).is_none();
        let c = if is_warm { t.cpu } else { self.place_for(i) };
        self.enqueue(c, i, false);
        self.push_away(c, i);
    }

    /// Sees whether a thread that has just come should go before the one that runs.
    fn push_away(&mut self, c: usize, i: usize) {
        let Some(current) = self.cpus[c].current else { return };
        // Tasks of sets wait for their turn.
        if self.gang_of(i).is_some() || self.gang_of(current).is_some() {
            return;
        }
        self.settle(c);
        let (new, old) = (&self.threads[i], &self.threads[current]);
        let goes_first = match (new.class, old.class) {
            (Class::Idle, _) => false,
            (_, Class::Idle) => true,
            _ if self.hardware.scheduler.is_time_share() => new.priority > old.priority,
            (Class::Batch, _) => false,
            _ => {
                let lead = WAKE_LEAD_NS * 1024 / self.programs[new.program].weight_of(new.weight) as i64;
                new.virtual_ns + lead < old.virtual_ns
            }
        };
        if goes_first {
            self.cpus[c].preempt = true;
            self.kick(c);
        }
    }

    /// Puts a thread into a CPU's queue: before its equals, or behind them.
    pub(crate) fn enqueue(&mut self, c: usize, i: usize, before: bool) {
        if let Some(set) = self.gang_of(i) {
            return self.enqueue_in_gang(set, c, i, before);
        }
        if std::mem::take(&mut self.cpus[c].is_idle) {
            self.idle -= 1;
            self.kick(c);
        }
        if self.warm > 0 && self.idle > 0 && self.cpus[c].current.is_some() {
            let idle = self.cpus[c].others.iter().find(|o| self.cpus[o.1].is_idle);
            if let Some(&(_, o)) = idle {
                self.post(self.now + STEAL_NS, Event::Look(o));
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
        self.queued += 1;
    }

    /// Takes a thread out of its queue.
    pub(crate) fn dequeue(&mut self, i: usize) {
        if let Some(set) = self.gang_of(i) {
            self.gangs[set].queue.remove(i);
            self.queued -= 1;
            return;
        }
        let t = &mut self.threads[i];
        let cpu = &mut self.cpus[t.cpu];
        cpu.queue.remove(i);
        cpu.load -= t.weight;
        t.virtual_ns -= cpu.virtual_ns;
        self.queued -= 1;
    }

    /// Where a thread that is on a CPU, or in its queue, stands in line there.
    pub(crate) fn entry(&mut self, i: usize, before: bool) -> Entry {
        self.order += 1;
        let order = if before { -self.order } else { self.order };
        let is_in_gang = self.gang_of(i).is_some();
        let t = &self.threads[i];
        let (rank, key) = match (t.class, self.hardware.scheduler) {
            _ if is_in_gang => (1, 0),
            (Class::Idle, _) => (2, t.virtual_ns),
            (_, Scheduler::TimeShare | Scheduler::Solaris) => (1, i64::from(priority::MAX - t.priority)),
            (_, Scheduler::Fair) => (1, t.virtual_ns),
        };
        Entry { rank, key, order, thread: i }
    }

    /// Whether its priority goes up and down.
    fn changes_priority(&self, i: usize) -> bool {
        self.hardware.scheduler.is_time_share() && self.threads[i].class == Class::Normal
    }

    fn slice_of(&self, i: usize) -> u64 {
        let t = &self.threads[i];
        match (t.slice, self.hardware.scheduler) {
            (Some(slice), _) => slice,
            (None, Scheduler::Fair) => self.slice,
            (None, Scheduler::TimeShare | Scheduler::Solaris) => priority::quantum_ns(t.priority),
        }
    }

    /// Where a thread that is ready goes: an idle CPU, the nearest to where it was; else where it was.
    pub(crate) fn place_for(&self, i: usize) -> usize {
        if let Some(set) = self.gang_of(i) {
            return self.place_in_gang(set, i);
        }
        let t = &self.threads[i];
        let may = |c: usize| t.cpus.contains(CpuId(c as u32));
        let idles = |c: usize| self.cpus[c].is_idle && self.serves(c, i);
        if may(t.cpu) && idles(t.cpu) {
            return t.cpu;
        }
        if self.idle > 0 {
            let found = self.cpus[t.cpu].others.iter().find(|o| idles(o.1) && may(o.1));
            if let Some(&(_, c)) = found {
                return c;
            }
        }
        if may(t.cpu) { t.cpu } else { self.least_loaded(i) }
    }

    /// The CPU with least to do that a thread may run on; among equals, on the node with least to do.
    pub(crate) fn least_loaded(&self, i: usize) -> usize {
        let t = &self.threads[i];
        let mut nodes = vec![0; self.demand.len()];
        self.cpus.iter().for_each(|c| nodes[c.node] += c.load);
        let may = (0..self.cpus.len()).filter(|&c| t.cpus.contains(CpuId(c as u32)));
        may.min_by_key(|&c| (self.cpus[c].load, nodes[self.cpus[c].node], c)).unwrap_or(t.cpu)
    }

    /// Evens the queues out: each CPU may pull one thread from one that has more to do.
    pub(crate) fn even_out(&mut self) {
        self.round += 1;
        let all = self.cpus.len();
        for k in 0..all {
            if self.queued == 0 {
                return;
            }
            let c = (k + self.round as usize) % all;
            if let Some(i) = self.worth_pulling(c) {
                self.cpus[c].evened = self.round;
                self.cpus[self.threads[i].cpu].evened = self.round;
                self.dequeue(i);
                self.enqueue(c, i, false);
            }
        }
    }

    /// A thread that makes two CPUs more even if it comes here.
    fn worth_pulling(&self, c: usize) -> Option<usize> {
        let here = &self.cpus[c];
        if here.serves.is_some() {
            return None;
        }
        let is_idle = here.is_idle;
        let rotates = |o: usize| {
            self.round.is_multiple_of(ROTATE_EVERY)
                && here.evened != self.round
                && self.cpus[o].evened != self.round
        };
        let mut best: Option<(u8, u64, usize)> = None;
        for &(level, o) in &here.others {
            if best.is_some_and(|b| b.0 < level)
                || (level == 2 && !is_idle && !self.round.is_multiple_of(FAR_EVERY))
            {
                break;
            }
            let more = self.cpus[o].load.saturating_sub(here.load);
            if self.cpus[o].queue.is_empty() || best.is_some_and(|b| b.1 >= more) {
                continue;
            }
            let suits = |&i: &usize| {
                let t = &self.threads[i];
                let evens = t.weight < more || (t.weight == more && here.current.is_some() && rotates(o));
                evens && t.cpus.contains(CpuId(c as u32))
            };
            best = self.cpus[o].queue.iter().find(suits).map(|i| (level, more, i)).or(best);
        }
        best.map(|b| b.2)
    }

    /// On a time-sharing machine, once a second: who waits is raised.
    pub(crate) fn tick(&mut self) {
        for i in 0..self.threads.len() {
            if !self.changes_priority(i) {
                continue;
            }
            self.threads[i].is_due = self.threads[i].state != State::Ready;
            if self.threads[i].state == State::Ready {
                self.dequeue(i);
                let t = &mut self.threads[i];
                t.priority = priority::waited(t.priority);
                if self.hardware.scheduler == Scheduler::Solaris {
                    t.left = 0;
                }
                let c = t.cpu;
                self.enqueue(c, i, false);
                self.push_away(c, i);
            }
        }
    }
}
