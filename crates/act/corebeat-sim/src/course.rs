//! A thread's course: it takes its operations one after the other, and waits where others are in its way.

use crate::code::{Kind, Op, Place};
use crate::thread::{Doing, State};
use crate::turn::Course;
use crate::world::{Event, World};
use std::collections::VecDeque;

/// What an operation that does not compute costs by itself, in nanoseconds.
const OP_NS: u64 = 20;

impl World {
    /// Takes the running thread's operations up to one that needs time.
    pub(crate) fn advance(&mut self, c: usize) -> Course {
        let Some(i) = self.cpus[c].current else { return Course::Ends };
        loop {
            let t = &self.threads[i];
            let op = self.code[t.team][t.pc];
            match t.doing {
                Doing::Work(left) if left > 0.0 => return Course::Runs,
                Doing::Work(_) => {
                    self.go_on(i);
                    continue;
                }
                Doing::Spin(left) => {
                    // It lost the CPU while it span, and meanwhile the lock was given back.
                    if let Op::Acquire(lock) = op
                        && self.meetings[lock].holder.is_none()
                    {
                        self.meetings[lock].waiters.retain(|&w| w != i);
                        self.acquire(c, i, lock);
                        continue;
                    }
                    if left > 0 && !self.is_vain(i, op) {
                        return Course::Runs;
                    }
                    self.threads[i].doing = Doing::Next;
                    return Course::Waits(State::Blocked);
                }
                Doing::Next => {}
            }
            let is_due = t.debt() > 0;
            if is_due && !matches!(op, Op::Compute { .. }) {
                return Course::Runs;
            }
            if let Some(course) = self.take(c, i, op) {
                return course;
            }
        }
    }

    /// The operation is done.
    pub(crate) fn go_on(&mut self, i: usize) {
        let t = &mut self.threads[i];
        t.doing = Doing::Next;
        t.pc += 1;
    }

    /// Takes an operation. `None` if it took no time.
    fn take(&mut self, c: usize, i: usize, op: Op) -> Option<Course> {
        let t = &mut self.threads[i];
        match op {
            Op::Compute { ns, jitter, split, .. } => {
                let parts = if split { self.crew_size(i) } else { 1 };
                let work = self.random.around(ns / f64::from(parts), jitter);
                self.threads[i].doing = Doing::Work(work);
                return Some(Course::Runs);
            }
            Op::Acquire(lock) => {
                if self.meetings[lock].holder.is_some() {
                    return self.wait_at(i, lock, false);
                }
                self.acquire(c, i, lock);
                return None;
            }
            Op::Release(lock) => self.release(c, i, lock),
            Op::Arrive(barrier, lock) => {
                self.release(c, i, lock);
                self.meetings[barrier].count += 1;
                let Kind::Barrier(parties) = self.meetings[barrier].named.kind else { return None };
                if self.meetings[barrier].count < u64::from(parties) {
                    return self.wait_at(i, barrier, false);
                }
                self.meetings[barrier].count = 0;
                self.free_all(c, i, barrier);
            }
            Op::Wait(condition) => {
                if self.meetings[condition].count == 0 {
                    return self.wait_at(i, condition, false);
                }
                self.meetings[condition].count -= 1;
                self.fetch(c, i, condition);
            }
            Op::Signal(condition) => {
                self.fetch(c, i, condition);
                match self.first_of(condition, false) {
                    Some(waiter) => self.free(Some(i), waiter, condition),
                    None => self.meetings[condition].count += 1,
                }
            }
            Op::Broadcast(condition) => {
                self.fetch(c, i, condition);
                self.free_all(c, i, condition);
            }
            Op::Push(queue) => {
                let Kind::Queue(items, _) = self.meetings[queue].named.kind else { return None };
                if self.meetings[queue].count >= u64::from(items) {
                    return self.wait_at(i, queue, true);
                }
                self.fetch(c, i, queue);
                match self.first_of(queue, false) {
                    Some(waiter) => self.free(Some(i), waiter, queue),
                    None => self.meetings[queue].count += 1,
                }
            }
            Op::Pop(queue) => {
                if self.meetings[queue].count == 0 {
                    if self.meetings[queue].pushers == 0 {
                        return Some(Course::Ends);
                    }
                    return self.wait_at(i, queue, false);
                }
                self.fetch(c, i, queue);
                match self.first_of(queue, true) {
                    // The waiter's item takes the place of ours.
                    Some(waiter) => self.free(Some(i), waiter, queue),
                    None => self.meetings[queue].count -= 1,
                }
            }
            Op::Io { ns, jitter, bytes } => {
                let wait = self.random.around(ns, jitter) as u64;
                let program = &mut self.programs[t.program];
                program.io_bytes = program.io_bytes.saturating_add(bytes);
                self.go_on(i);
                self.coming += 1;
                self.post(self.now + wait, Event::Wake(i));
                return Some(Course::Waits(State::Asleep));
            }
            Op::Beat => {
                t.owe(OP_NS);
                let program = t.program;
                self.beat(program);
            }
            Op::Phase(phase) => {
                let (program, now) = (t.program, self.now);
                let phases = &mut self.programs[program].phases;
                if phases.last().is_none_or(|p| p.1 != phase) {
                    phases.push((now, phase));
                }
            }
            Op::Invade(min, max) => {
                t.owe(OP_NS);
                t.debt_system += self.hardware.wake_ns;
                let program = t.program;
                self.invade(program, min, max);
            }
            Op::Retreat(to) => {
                t.owe(OP_NS);
                t.debt_system += self.hardware.wake_ns;
                let program = t.program;
                self.retreat(program, to);
            }
            Op::Fork => self.fork(c, i),
            Op::Join(region) => return self.join(c, i, region),
            Op::Enter(times) => t.loops.push(times),
            Op::Next(begin) => {
                let left = t.loops.last_mut().map_or(0, |left| {
                    *left -= 1;
                    *left
                });
                if left > 0 {
                    t.pc = begin;
                    return None;
                }
                t.loops.pop();
            }
            Op::Begin(pool) => self.pools[pool].begin(t.member),
            Op::Take(pool, after) => {
                t.owe(OP_NS);
                if !self.pools[pool].take(t.member) {
                    t.pc = after;
                    return None;
                }
            }
            Op::Jump(to) => {
                t.pc = to;
                return None;
            }
            Op::End => return Some(Course::Ends),
        }
        self.go_on(i);
        None
    }

    /// Pays for having the cache line of a meeting here: by distance.
    pub(crate) fn fetch(&mut self, c: usize, i: usize, place: Place) {
        let from = self.meetings[place].line.replace(c);
        let cost = match from {
            Some(from) if from != c => {
                *self.ways.entry(self.distance(from, c)).or_default() += 1;
                self.line_ns(from, c)
            }
            _ => 0,
        };
        self.threads[i].owe(OP_NS + cost);
    }

    /// What a cache line takes from one CPU to another, in nanoseconds.
    fn line_ns(&self, from: usize, to: usize) -> u64 {
        self.hardware.line_ns * self.distance(from, to) / 10
    }

    fn distance(&self, from: usize, to: usize) -> u64 {
        self.distances[self.cpus[from].node][self.cpus[to].node]
    }

    /// Whether there is no point in spinning: whoever has the lock does not run.
    fn is_vain(&self, i: usize, op: Op) -> bool {
        let Op::Acquire(lock) = op else { return false };
        let is_off = |h: usize| self.threads[h].state != State::Running;
        self.meetings[lock].named.kind != Kind::Ticket
            && self.programs[self.threads[i].program].spin != u64::MAX
            && self.meetings[lock].holder.is_some_and(is_off)
    }

    /// Waits in line: spins first, where the program's threads do.
    pub(crate) fn wait_at(&mut self, i: usize, place: Place, to_push: bool) -> Option<Course> {
        let t = &self.threads[i];
        let op = self.code[t.team][t.pc];
        let spin = match self.meetings[place].named.kind {
            Kind::Ticket => u64::MAX,
            _ => self.programs[t.program].spin,
        };
        let spins = spin > 0 && !self.is_vain(i, op);
        let t = &mut self.threads[i];
        let goes_first = std::mem::take(&mut t.again);
        t.doing = if spins { Doing::Spin(spin) } else { Doing::Next };
        let meeting = &mut self.meetings[place];
        let line = if to_push { &mut meeting.pushing } else { &mut meeting.waiters };
        if goes_first {
            line.push_front(i)
        } else {
            line.push_back(i)
        }
        if spins { None } else { Some(Course::Waits(State::Blocked)) }
    }

    /// Takes a lock that is free.
    fn acquire(&mut self, c: usize, i: usize, lock: Place) {
        self.fetch(c, i, lock);
        self.meetings[lock].holder = Some(i);
        let t = &mut self.threads[i];
        t.held.push(lock);
        t.again = false;
        self.go_on(i);
    }

    /// Gives a lock back: to the first who spins on a CPU; else the first who is blocked is woken to try again.
    fn release(&mut self, c: usize, i: usize, lock: Place) {
        self.fetch(c, i, lock);
        self.meetings[lock].holder = None;
        self.threads[i].held.retain(|&held| held != lock);
        if self.meetings[lock].named.kind == Kind::Ticket {
            if let Some(next) = self.meetings[lock].waiters.pop_front() {
                let cpu = self.threads[next].cpu;
                let runs = self.threads[next].state == State::Running;
                if runs {
                    self.settle(cpu);
                }
                self.acquire(cpu, next, lock);
                if runs {
                    self.kick(cpu);
                }
            }
            return;
        }
        let spins = |w: &usize| {
            let t = &self.threads[*w];
            t.state == State::Running && matches!(t.doing, Doing::Spin(_))
        };
        let waiters = &self.meetings[lock].waiters;
        if let Some(place) = waiters.iter().position(spins) {
            if let Some(next) = self.meetings[lock].waiters.remove(place) {
                let cpu = self.threads[next].cpu;
                self.settle(cpu);
                self.acquire(cpu, next, lock);
                self.kick(cpu);
            }
            return;
        }
        let is_blocked = |w: &usize| self.threads[*w].state == State::Blocked;
        if let Some(place) = waiters.iter().position(is_blocked)
            && let Some(next) = self.meetings[lock].waiters.remove(place)
        {
            self.threads[next].again = true;
            self.threads[i].debt_system += self.hardware.wake_ns;
            self.wake(next);
        }
    }

    /// Takes the first who waits out of the line: who spins on a CPU before who is blocked, and that before who lost the CPU while
    /// it span.
    fn first_of(&mut self, place: Place, to_push: bool) -> Option<usize> {
        let meeting = &self.meetings[place];
        let line = if to_push { &meeting.pushing } else { &meeting.waiters };
        let rank = |w: usize| match self.threads[w].state {
            State::Running => 0,
            State::Blocked => 1,
            _ => 2,
        };
        let (_, first) = line.iter().enumerate().map(|(at, &w)| (rank(w), at)).min()?;
        let meeting = &mut self.meetings[place];
        if to_push { meeting.pushing.remove(first) } else { meeting.waiters.remove(first) }
    }

    /// Ends a thread's waiting: its operation is done.
    pub(crate) fn free(&mut self, by: Option<usize>, i: usize, place: Place) {
        let cpu = self.threads[i].cpu;
        match self.threads[i].state {
            State::Running => {
                self.settle(cpu);
                self.fetch(cpu, i, place);
                self.go_on(i);
                self.kick(cpu);
            }
            State::Blocked => {
                if let Some(by) = by {
                    self.threads[by].debt_system += self.hardware.wake_ns;
                }
                self.go_on(i);
                self.wake(i);
            }
            _ => self.go_on(i),
        }
    }

    /// Ends the waiting of all at a barrier or condition. Those that are blocked are woken one after the other.
    fn free_all(&mut self, c: usize, i: usize, place: Place) {
        self.fetch(c, i, place);
        let mut delay = 0;
        for waiter in std::mem::take(&mut self.meetings[place].waiters) {
            if self.threads[waiter].state == State::Blocked {
                delay += self.hardware.wake_ns;
                self.go_on(waiter);
                self.coming += 1;
                self.post(self.now + delay, Event::Wake(waiter));
            } else {
                self.free(None, waiter, place);
            }
        }
        self.threads[i].debt_system += delay;
    }

    /// Those who spin for the locks of a thread that has just lost its CPU look whether that makes sense.
    pub(crate) fn tell_spinners(&mut self, i: usize) {
        for lock in self.threads[i].held.clone() {
            let running: VecDeque<usize> = self.meetings[lock]
                .waiters
                .iter()
                .filter(|&&w| self.threads[w].state == State::Running)
                .map(|&w| self.threads[w].cpu)
                .collect();
            running.into_iter().for_each(|cpu| self.kick(cpu));
        }
    }

    /// A thread of a team has ended. Where nobody is left to push into a queue, who waits there looks again.
    pub(crate) fn stop_pushing(&mut self, team: usize) {
        let mut queues: Vec<Place> = self.code[team]
            .iter()
            .filter_map(|op| if let Op::Push(q) = op { Some(*q) } else { None })
            .collect();
        queues.sort_unstable();
        queues.dedup();
        for queue in queues {
            let meeting = &mut self.meetings[queue];
            meeting.pushers -= 1;
            if meeting.pushers > 0 {
                continue;
            }
            for waiter in std::mem::take(&mut meeting.waiters) {
                let cpu = self.threads[waiter].cpu;
                match self.threads[waiter].state {
                    State::Blocked => self.wake(waiter),
                    State::Running => {
                        self.settle(cpu);
                        self.threads[waiter].doing = Doing::Next;
                        self.kick(cpu);
                    }
                    _ => self.threads[waiter].doing = Doing::Next,
                }
            }
        }
    }
}
