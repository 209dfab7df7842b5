//! Observations of the world: snapshots, as of any machine, and final results.

use crate::kernel::Kernel;
use crate::team::ThreadTeam;
use crate::thread::{Account, State, Thread};
use crate::world::World;
use corebeat_machine::{
    Counters, CpuId, HostSample, ProgramId, ProgramSample, Snapshot, ThreadId, ThreadSample,
    TimeShares,
};

/// Result of a program. Times of its threads are sums over all threads, in nanoseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Name of the program.
    pub name: String,
    /// Number of threads.
    pub threads: usize,
    /// Start time in nanoseconds.
    pub start_ns: u64,
    /// End of the last thread; `None` if the program has not ended.
    pub end_ns: Option<u64>,
    /// Time in user mode.
    pub user_ns: u64,
    /// Time in the kernel.
    pub system_ns: u64,
    /// Time spent spinning; a part of `user_ns`.
    pub spin_ns: u64,
    /// Time blocked at locks.
    pub lock_ns: u64,
    /// Time blocked at barriers, conditions and queues.
    pub park_ns: u64,
    /// Run-queue wait.
    pub wait_ns: u64,
    /// Time waiting for devices.
    pub sleep_ns: u64,
    /// Number of voluntary context switches.
    pub voluntary_switches: u64,
    /// Number of involuntary context switches.
    pub involuntary_switches: u64,
    /// Number of involuntary switches before the end of a slice to a thread of the same program
    /// that had gained a higher priority: Pusukuri 2012, section 5.1, calls these backstabbing.
    pub backstabs: u64,
    /// Number of slices that ended while no other thread waited for the CPU. The thread continued;
    /// Solaris counts an involuntary switch.
    pub renewed_slices: u64,
    /// Number of migrations to another CPU.
    pub migrations: u64,
    /// Number of heartbeats.
    pub beats: u64,
    /// Start, in nanoseconds, and name of each phase.
    pub phases: Vec<(u64, String)>,
}

/// Accounts for all threads up to now.
fn settle(kernel: &mut Kernel) {
    kernel.settle_all();
    let now = kernel.now();
    for t in &mut kernel.threads {
        let waited = now - t.since;
        match t.state {
            State::Ready | State::Throttled => t.account.wait += waited,
            State::Blocked => t.account.lock += waited,
            State::Parked => t.account.park += waited,
            State::Asleep => t.account.sleep += waited,
            State::New | State::Running | State::Ended => continue,
        }
        t.since = now;
    }
}

/// Takes a snapshot of the time since the last one, which ended at `before`.
pub(crate) fn snapshot(world: &mut World, before: u64) -> Snapshot {
    let kernel = &mut world.kernel;
    settle(kernel);
    let now = kernel.now();
    let span_ns = now - before;
    let mut host = HostSample {
        others_busy: Some(0.0),
        others_runnable: Some(0.0),
        counters: Counters::default(),
    };
    let mut programs = Vec::new();
    for (number, program) in kernel.programs.iter_mut().enumerate() {
        if program.start > now || program.ended.is_some_and(|at| at < before) {
            continue;
        }
        let pid = number as i32 + 1;
        let mut threads = Vec::new();
        for i in program.threads.clone() {
            let t = &mut kernel.threads[i];
            if t.state == State::New || (t.state == State::Ended && t.ended < before) {
                continue;
            }
            let diff = t.account.since(&t.observed);
            t.observed = t.account;
            if program.watched {
                threads.push(sample(i, t, pid, &diff));
            } else if span_ns > 0 {
                let add = |sum: &mut Option<f64>, ns: u64| {
                    *sum = sum.map(|s| s + ns as f64 / span_ns as f64);
                };
                add(&mut host.others_busy, diff.user + diff.system);
                add(&mut host.others_runnable, diff.user + diff.system + diff.wait);
            }
        }
        if !program.watched {
            continue;
        }
        // An ended program has no team that a policy could resize.
        let team = world.interpreter.teams[number].as_mut().filter(|_| program.ended.is_none());
        let io_bytes = program.io_bytes - program.io_bytes_observed;
        program.io_bytes_observed = program.io_bytes;
        programs.push(ProgramSample {
            id: ProgramId(number as u32),
            name: program.name.clone(),
            threads,
            io_bytes: Some(io_bytes),
            team: team.map(ThreadTeam::sample),
            progress: program.progress.sample(program.start, now),
        });
    }
    Snapshot { at_ns: now, span_ns, host, programs }
}

fn sample(i: usize, t: &Thread, pid: i32, diff: &Account) -> ThreadSample {
    let span_ns = diff.whole();
    let share = |ns: u64| (span_ns > 0).then(|| ns as f64 / span_ns as f64);
    ThreadSample {
        id: thread_id(i, t),
        pid,
        name: t.name(),
        cpu: t.ran_on.map(|c| CpuId(c as u32)),
        span_ns,
        shares: TimeShares {
            user: share(diff.user),
            system: share(diff.system),
            lock: share(diff.lock),
            park: share(diff.park),
            wait: share(diff.wait),
            sleep: share(diff.sleep),
            spin: share(diff.spin),
        },
        counters: Counters {
            voluntary_switches: Some(diff.voluntary),
            involuntary_switches: Some(diff.involuntary),
            migrations: Some(diff.migrations),
            cache_references: Some(diff.references as u64),
            cache_misses: Some(diff.misses as u64),
            instructions: Some(diff.instructions as u64),
        },
    }
}

/// The results of all programs so far, in the scenario's order.
pub(crate) fn outcomes(world: &mut World) -> Vec<Outcome> {
    settle(&mut world.kernel);
    let kernel = &world.kernel;
    let outcome = |program: &crate::process::Process| {
        let threads = &kernel.threads[program.threads.clone()];
        let sum = |of: fn(&Account) -> u64| threads.iter().map(|t| of(&t.account)).sum();
        let phase = |&(at, phase): &(u64, usize)| (at, world.phases[phase].clone());
        Outcome {
            name: program.name.clone(),
            threads: threads.len(),
            start_ns: program.start,
            end_ns: program.ended,
            user_ns: sum(|a| a.user),
            system_ns: sum(|a| a.system),
            spin_ns: sum(|a| a.spin),
            lock_ns: sum(|a| a.lock),
            park_ns: sum(|a| a.park),
            wait_ns: sum(|a| a.wait),
            sleep_ns: sum(|a| a.sleep),
            voluntary_switches: sum(|a| a.voluntary),
            involuntary_switches: sum(|a| a.involuntary),
            backstabs: sum(|a| a.backstabs),
            renewed_slices: sum(|a| a.renewed),
            migrations: sum(|a| a.migrations),
            beats: program.progress.beats(),
            phases: program.phases.iter().map(phase).collect(),
        }
    };
    kernel.programs.iter().map(outcome).collect()
}

/// The identifier of a thread. Numbers start at 1 and are never reused.
pub(crate) fn thread_id(i: usize, thread: &Thread) -> ThreadId {
    ThreadId { tid: i as i32 + 1, start_ticks: thread.started }
}
