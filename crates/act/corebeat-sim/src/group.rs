//! Programs as groups: what they weigh together, and limits of their CPU time.

use crate::thread::State;
use crate::world::{Event, Running, World};

/// A limit counts for so long, and then anew: Linux' default for `cpu.max`.
const PERIOD_NS: u64 = 100_000_000;

impl Running {
    /// What one of its threads weighs now: its own weight, or its part of the group's.
    pub(crate) fn weight_of(&self, own: u64) -> u64 {
        match self.weight {
            None => own,
            Some(weight) => (u64::from(weight) * 1024 / 100 * own / self.runnable.max(own)).max(1),
        }
    }

    /// Whether it may not run: it is frozen, or has a limit, and has used it up.
    pub(crate) fn is_held(&self) -> bool {
        self.frozen || self.quota.is_some() && self.left <= 0
    }
}

impl World {
    /// Limits a program's CPU time to so many CPUs, or no more.
    pub(crate) fn limit(&mut self, program: usize, cpus: Option<f64>) {
        let quota = cpus.map(|cpus| ((cpus * PERIOD_NS as f64) as i64).max(1));
        let running = &mut self.programs[program];
        running.quota = quota;
        running.left = quota.unwrap_or(0);
        if quota.is_some() && !running.refilling {
            running.refilling = true;
            self.post(self.now + PERIOD_NS, Event::Refill(program));
        }
        self.let_run(program);
        self.kick_all(program);
    }

    /// Freezes a program, or thaws it.
    pub(crate) fn freeze(&mut self, program: usize, frozen: bool) {
        self.programs[program].frozen = frozen;
        self.let_run(program);
        self.kick_all(program);
    }

    /// Has all CPUs that run a program look.
    fn kick_all(&mut self, program: usize) {
        for c in 0..self.cpus.len() {
            if self.cpus[c].current.is_some_and(|i| self.threads[i].program == program) {
                self.kick(c);
            }
        }
    }

    /// A new period: what was used beyond the limit is paid back.
    pub(crate) fn refill(&mut self, program: usize) {
        let running = &mut self.programs[program];
        let Some(quota) = running.quota.filter(|_| running.alive > 0) else {
            running.refilling = false;
            return;
        };
        for c in 0..self.cpus.len() {
            self.settle(c);
        }
        let running = &mut self.programs[program];
        running.left = running.left.saturating_add(quota).min(quota);
        self.post(self.now + PERIOD_NS, Event::Refill(program));
        self.let_run(program);
    }

    /// Those of its threads that had to wait for more CPU time may run.
    fn let_run(&mut self, program: usize) {
        if self.programs[program].is_held() {
            return;
        }
        for i in std::mem::take(&mut self.programs[program].throttled) {
            if self.threads[i].state == State::Throttled {
                self.count_runnable(i, true);
                let c = self.place_for(i);
                self.enqueue(c, i, false);
            }
        }
    }
}
