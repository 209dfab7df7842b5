//! A simulated thread: its activity, its scheduling state and its accounting.

use crate::cpu::Pace;
use crate::program::{Program, Team};
use crate::{priority, process};
use corebeat_machine::{Class, CpuSet};
use std::sync::Arc;

/// References to the shared cache per nanosecond of work at full speed.
const REFERENCES_PER_NS: f64 = 0.01;

/// The scheduling state of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum State {
    /// The program has not started.
    #[default]
    New,
    /// In a run queue.
    Ready,
    /// On its CPU.
    Running,
    /// Ready, but the program is frozen or has used up its quota.
    Throttled,
    /// Blocked at a lock.
    Blocked,
    /// Blocked at a barrier, a condition or a queue.
    Parked,
    /// Waiting for a device.
    Asleep,
    Ended,
}

/// Activity of a thread on its CPU.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) enum Activity {
    /// Starts its next operation.
    #[default]
    Fetch,
    /// Computes: the work that is left, in nanoseconds at full speed.
    Compute(f64),
    /// Waits on its CPU: the time until it blocks, in nanoseconds.
    Spin(u64),
}

/// Demands of a computation on the machine, as shares from 0 to 1.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Demand {
    /// Share of the time that waits for memory.
    pub(crate) memory: f64,
    /// Share of the memory accesses that are to data of the whole program.
    pub(crate) shared: f64,
    /// Share of the time in the kernel.
    pub(crate) system: f64,
}

/// Times in nanoseconds, and counters.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Account {
    pub(crate) user: u64,
    pub(crate) system: u64,
    /// A part of `user`.
    pub(crate) spin: u64,
    pub(crate) lock: u64,
    pub(crate) park: u64,
    pub(crate) wait: u64,
    pub(crate) sleep: u64,
    pub(crate) voluntary: u64,
    pub(crate) involuntary: u64,
    /// Involuntary switches to a thread of the same program with a higher priority.
    pub(crate) backstabs: u64,
    /// Slices that ended while no other thread waited for the CPU.
    pub(crate) renewed: u64,
    pub(crate) migrations: u64,
    pub(crate) references: f64,
    pub(crate) misses: f64,
    pub(crate) instructions: f64,
}

impl Account {
    /// The time span that the account covers.
    pub(crate) fn whole(&self) -> u64 {
        self.user + self.system + self.lock + self.park + self.wait + self.sleep
    }

    /// The difference to an earlier state.
    pub(crate) fn since(&self, before: &Account) -> Account {
        Account {
            user: self.user - before.user,
            system: self.system - before.system,
            spin: self.spin - before.spin,
            lock: self.lock - before.lock,
            park: self.park - before.park,
            wait: self.wait - before.wait,
            sleep: self.sleep - before.sleep,
            voluntary: self.voluntary - before.voluntary,
            involuntary: self.involuntary - before.involuntary,
            backstabs: self.backstabs - before.backstabs,
            renewed: self.renewed - before.renewed,
            migrations: self.migrations - before.migrations,
            references: self.references - before.references,
            misses: self.misses - before.misses,
            instructions: self.instructions - before.instructions,
        }
    }
}

/// A thread.
#[derive(Debug, Clone)]
pub(crate) struct Thread {
    pub(crate) program: usize,
    /// The team's number among all teams, and the thread's number in its team.
    pub(crate) team: usize,
    team_name: Arc<str>,
    pub(crate) member: usize,

    // Execution of the code.
    pub(crate) pc: usize,
    pub(crate) loops: Vec<u64>,
    pub(crate) activity: Activity,
    /// Demand of the computation at `pc`.
    pub(crate) demand: Demand,
    /// Kernel and user time to spend before the next operation.
    pub(crate) debt_system: u64,
    pub(crate) debt_user: u64,
    /// The thread was woken to retry a lock. It waits at the front if the lock is taken again.
    pub(crate) retries: bool,
    /// The locks that the thread holds.
    pub(crate) held: Vec<usize>,

    // Scheduling.
    pub(crate) state: State,
    /// Start of the current state, or the time up to which the account is complete.
    pub(crate) since: u64,
    pub(crate) cpus: CpuSet,
    /// An action has set `cpus`.
    pub(crate) is_bound: bool,
    /// The CPU where the thread runs, waits or last waited.
    pub(crate) cpu: usize,
    /// The CPU where the thread last ran.
    pub(crate) ran_on: Option<usize>,
    pub(crate) class: Class,
    pub(crate) nice: i8,
    pub(crate) weight: u64,
    /// Virtual run time on the clock of the thread's CPU; between two CPUs, the lead over that
    /// clock.
    pub(crate) virtual_ns: i64,
    /// Priority from 0 to 59 (time-sharing schedulers only).
    pub(crate) priority: u8,
    /// A tick of a second has passed since the priority last changed: the priority rises after the
    /// next sleep.
    pub(crate) is_due: bool,
    /// The slice that an action has set, in nanoseconds.
    pub(crate) slice: Option<u64>,
    /// Rest of the current slice.
    pub(crate) left: u64,

    // Memory.
    pub(crate) footprint_kib: u64,
    /// Private data by node, in millionths; empty until the thread first runs.
    pub(crate) pages: Vec<u64>,

    pub(crate) started: u64,
    pub(crate) ended: u64,
    pub(crate) account: Account,
    /// The account at the last observation.
    pub(crate) observed: Account,
}

impl Thread {
    /// A thread of a program that has not started. `at` has the numbers of the program and of the
    /// team.
    pub(crate) fn new(
        at: (usize, usize),
        member: usize,
        program: &Program,
        team: &Team,
        cpus: CpuSet,
    ) -> Thread {
        let class = process::class(program.class);
        Thread {
            program: at.0,
            team: at.1,
            team_name: team.name.as_str().into(),
            member,
            pc: 0,
            loops: vec![],
            activity: Activity::Fetch,
            demand: Demand::default(),
            debt_system: 0,
            debt_user: 0,
            retries: false,
            held: vec![],
            state: State::New,
            since: 0,
            cpus,
            is_bound: false,
            cpu: 0,
            ran_on: None,
            class,
            nice: program.nice,
            weight: weight(class, program.nice),
            virtual_ns: 0,
            priority: priority::START,
            is_due: false,
            slice: None,
            left: 0,
            footprint_kib: team.footprint_kib,
            pages: vec![],
            started: 0,
            ended: 0,
            account: Account::default(),
            observed: Account::default(),
        }
    }

    /// The team's name and the thread's number in the team.
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.team_name, self.member)
    }

    /// Whether the thread needs a CPU.
    pub(crate) fn is_runnable(&self) -> bool {
        matches!(self.state, State::Ready | State::Running | State::Throttled)
    }

    pub(crate) fn is_alive(&self) -> bool {
        !matches!(self.state, State::New | State::Ended)
    }

    /// Completes the current operation.
    pub(crate) fn complete(&mut self) {
        self.activity = Activity::Fetch;
        self.pc += 1;
    }

    /// Adds user time to spend before the next operation. The sum saturates: filling a large and
    /// slow cache may take longer than the simulation.
    pub(crate) fn owe(&mut self, ns: u64) {
        self.debt_user = self.debt_user.saturating_add(ns);
    }

    /// Time to spend before the next operation, in nanoseconds.
    pub(crate) fn debt(&self) -> u64 {
        self.debt_system.saturating_add(self.debt_user)
    }

    /// Accounts for `ran` nanoseconds on a CPU up to `now`: first the debts, then the activity.
    pub(crate) fn book(&mut self, ran: u64, now: u64, pace: Pace) {
        let system = ran.min(self.debt_system);
        let stalled = (ran - system).min(self.debt_user);
        let rest = ran - system - stalled;
        self.debt_system -= system;
        self.debt_user -= stalled;
        self.account.system += system;
        self.account.user += stalled;
        match self.activity {
            Activity::Compute(left) => {
                // At its finish time a computation is done, whatever the rounding.
                let done =
                    if now >= pace.finish { left } else { (rest as f64 / pace.stretch).min(left) };
                self.activity = Activity::Compute(left - done);
                let system = (rest as f64 * self.demand.system) as u64;
                self.account.system += system;
                self.account.user += rest - system;
                self.account.instructions += done;
                self.account.references += done * REFERENCES_PER_NS;
                self.account.misses += done * REFERENCES_PER_NS * pace.miss;
            }
            Activity::Spin(left) => {
                let left = if left == u64::MAX { left } else { left - rest.min(left) };
                self.activity = Activity::Spin(left);
                self.account.user += rest;
                self.account.spin += rest;
                self.account.instructions += rest as f64;
            }
            Activity::Fetch => self.account.user += rest,
        }
        self.since = now;
        self.left = self.left.saturating_sub(ran);
    }
}

/// Scheduling weight of a class and nice value: 1,024 at nice 0, and 1.25 times the weight of the
/// next nice value; 3 for the idle class (`sched_prio_to_weight` and `WEIGHT_IDLEPRIO` in Linux'
/// kernel/sched).
pub(crate) fn weight(class: Class, nice: i8) -> u64 {
    if class == Class::Idle {
        return 3;
    }
    let step: f64 = if nice < 0 { 1.25 } else { 1.0 / 1.25 };
    let times = (0..nice.unsigned_abs()).fold(1024.0, |weight, _| weight * step);
    (times.round() as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_match_the_table_of_linux() {
        for (nice, linux) in [(-20, 88_761.0), (-5, 3_121.0), (0, 1_024.0), (5, 335.0), (19, 15.0)]
        {
            let ours = weight(Class::Normal, nice) as f64;
            assert!((ours / linux - 1.0).abs() < 0.02, "nice {nice}: {ours} instead of {linux}");
        }
        assert_eq!(weight(Class::Idle, 0), 3);
    }
}
