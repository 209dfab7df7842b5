//! The decisions of the scheduler under a simulated kernel: random programs, CPUs, weights, quotas
//! and turns. The functions are those of `bpf/decision.h`, compiled as plain C; `World` has the
//! rest of `bpf/corebeat.bpf.c`.

mod goal;

use crate::state::{GROUP_IS_BATCH, GROUP_IS_IDLE, GROUP_IS_SET, NO_GROUP, QUOTA_PERIOD_NS};
use fastrand::Rng;

/// `struct group`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Group {
    vtime_ns: u64,
    floor_ns: u64,
    runnable: u64,
    runnable_base_ns: u64,
    ran_ns: u64,
    weight: u64,
    quota_ns: u64,
    used_ns: u64,
    period: u64,
    flags: u32,
    generation: u32,
    thread_weight: u64,
    waiting: u64,
}

/// `struct cpu`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct CpuState {
    owner: u32,
    group: u32,
    is_claimed: u32,
    is_offline: u32,
    placed: u32,
    unused: u32,
    vtime_ns: u64,
    bound_at_ns: u64,
}

/// A CPU with this owner that runs a thread of this group.
fn cpu_state(owner: u32, group: u32) -> CpuState {
    let (vtime_ns, bound_at_ns) = (0, 0);
    CpuState {
        owner,
        group,
        is_claimed: 0,
        is_offline: 0,
        placed: 0,
        unused: 0,
        vtime_ns,
        bound_at_ns,
    }
}

unsafe extern "C" {
    fn twin_charge_ns(ran_ns: u64, weight: u64, thread_weight: u64) -> u64;
    fn twin_carried_ns(used_ns: u64, quota_ns: u64, periods: u64) -> u64;
    fn twin_change_quota(group: *mut Group, quota_ns: u64, now_ns: u64);
    fn twin_is_capped(group: *const Group, now_ns: u64) -> i32;
    fn twin_slice_ns(group: *const Group, requested_ns: u64, now_ns: u64) -> u64;
    fn twin_pick(groups: *const Group, count: u32, owner: u32, waiting: u64, now_ns: u64) -> u32;
    fn twin_continues(
        groups: *const Group,
        id: u32,
        own_ns: u64,
        next: u32,
        next_ns: u64,
        owner: u32,
    ) -> i32;
    fn twin_preempts(
        groups: *const Group,
        woken: u32,
        own_ns: u64,
        run: u32,
        run_ns: u64,
        owner: u32,
    ) -> i32;
    fn twin_overdue_ns(queued_ns: u64, weight: u64, now_ns: u64) -> u64;
    fn twin_woken_vtime_ns(vtime_ns: u64, clock_ns: u64) -> u64;
    fn twin_woken_group_vtime_ns(vtime_ns: u64, clock_ns: u64) -> u64;
    fn twin_clock_of_groups_ns(
        groups: *const Group,
        count: u32,
        woken: u32,
        clock_ns: u64,
        now_ns: u64,
    ) -> u64;
    fn twin_least_waiting_ns(
        groups: *const Group,
        count: u32,
        id: u32,
        waiting: u64,
        now_ns: u64,
    ) -> u64;
    fn twin_credited_ns(vtime_ns: u64, waiting_ns: u64) -> u64;
    fn twin_risen_floor_ns(floor_ns: u64, selected_ns: u64, first_ns: u64) -> u64;
    fn twin_is_starving(queued_ns: u64, now_ns: u64) -> i32;
    fn twin_next_search_ns(queued_ns: u64, now_ns: u64) -> u64;
    fn twin_searched_group(step: u32, turn: u32, count: u32) -> u32;
    fn twin_placed_group(cpu: *const CpuState, waiting: u64) -> u32;
    fn twin_is_displaced(cpu: *const CpuState, waiting: u64) -> i32;
    fn twin_is_victim(cpu: *const CpuState, set: u32) -> i32;
    fn twin_set_state(cpus: *const CpuState, count: u32, set: u32, runnable: u64) -> u32;
}

/// A planted fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// The owner of a CPU has no precedence.
    OwnerIgnored,
    /// A thread of the owner that wakes up interrupts no CPU.
    VictimIgnored,
    /// Two threads that wake up at once interrupt the same CPU.
    ClaimIgnored,
    /// Quotas do not count.
    QuotaIgnored,
    /// CPU time is not divided by the weight.
    WeightIgnored,
    /// A thread keeps its CPU for ever.
    NeverReplaced,
    /// A queue is not searched for threads that wait for long.
    StarvationIgnored,
    /// A thread that wakes up starts no idle CPU.
    IdleIgnored,
    /// A group that sleeps collects credit.
    CreditKept,
    /// A thread that wakes up or starts keeps the virtual time of long ago.
    BirthCredit,
    /// Only the first thread of a queue can starve.
    FirstSearched,
    /// The clock of groups is the greatest virtual time of a selected one.
    ClockIsGreatest,
    /// The clock of groups is that of the group that wakes up.
    WokenCounts,
    /// A group that cannot use its share saves it up.
    CreditSaved,
    /// A group without a weight ignores the nice values of its threads.
    NiceIgnored,
    /// A lower quota keeps the CPU time that was used under the higher one.
    DebtKept,
    /// A thread stays in the queue of a CPU that another scheduler has taken.
    ReleaseIgnored,
    /// A thread that found an idle CPU competes with all others for it.
    PlaceIgnored,
    /// Threads of no program run on a CPU only when its owner has no waiting thread.
    OthersLast,
    /// A thread of no program that may run on one CPU only waits for the virtual time of group 0.
    BoundIgnored,
}

const FAULTS: [Fault; 20] = [
    Fault::OwnerIgnored,
    Fault::VictimIgnored,
    Fault::ClaimIgnored,
    Fault::QuotaIgnored,
    Fault::WeightIgnored,
    Fault::NeverReplaced,
    Fault::StarvationIgnored,
    Fault::IdleIgnored,
    Fault::CreditKept,
    Fault::BirthCredit,
    Fault::FirstSearched,
    Fault::ClockIsGreatest,
    Fault::WokenCounts,
    Fault::CreditSaved,
    Fault::NiceIgnored,
    Fault::DebtKept,
    Fault::ReleaseIgnored,
    Fault::PlaceIgnored,
    Fault::OthersLast,
    Fault::BoundIgnored,
];

/// Step of the simulated time, in nanoseconds.
const STEP_NS: u64 = 500_000;
const REFILL_STEPS: u64 = 20;
const STARVATION_NS: u64 = crate::state::STARVATION_NS;
/// `DEBT_NS`.
const DEBT_NS: u64 = 2_000_000_000;
/// Longest permitted wait of a thread: the bound of the scheduler, and the time until a CPU has
/// served each of the threads that wait for so long.
const WAIT_NS_MAX: u64 = 2 * STARVATION_NS;
/// `BOUND_NS`.
const BOUND_NS: u64 = 10_000_000;
/// Longest permitted wait of a thread of no program, of nice 0 or less, that may run on one CPU
/// only, among some others.
const BOUND_WAIT_NS_MAX: u64 = 500_000_000;
/// Largest permitted error of the ratio of the CPU times of two groups.
const RATIO_ERROR_MAX: f64 = 0.1;
/// Largest CPU time of a group beyond its quota, for each CPU, in nanoseconds.
const QUOTA_EXCESS_NS: u64 = 2_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Asleep {
        until_ns: u64,
    },
    Queued,
    On(usize),
    /// In the queue of a CPU that a thread of another scheduler has taken.
    Stuck,
}

/// A thread that waits for the other threads of its group.
const AT_BARRIER: Place = Place::Asleep { until_ns: u64::MAX };

#[derive(Debug, Clone)]
struct Thread {
    group: u32,
    /// A bit for each CPU on which the thread may run.
    allowed: u64,
    weight: u64,
    /// Time for which the thread runs before it sleeps; `None` for always.
    burst_ns: Option<u64>,
    sleep_ns: u64,
    left_ns: u64,
    vtime_ns: u64,
    started_ns: u64,
    queued_ns: u64,
    slice_ns: u64,
    /// The slice of `sched_setattr`; 0 for none.
    requested_ns: u64,
    /// The idle CPU that was found for the thread.
    place_for: Option<usize>,
    /// Its longest wait, in nanoseconds.
    longest_ns: u64,
    /// Whether the thread runs because it has waited for too long.
    has_starved: bool,
    /// Times on CPUs and in queues, in nanoseconds.
    ran_ns: u64,
    waited_ns: u64,
    place: Place,
}

impl Thread {
    /// Whether the thread waits in the queue of its CPU (`is_bound`).
    fn is_bound(&self) -> bool {
        self.group == 0 && self.allowed.is_power_of_two()
    }
}

#[derive(Debug)]
struct World {
    fault: Fault,
    now_ns: u64,
    groups: Vec<Group>,
    cpus: Vec<CpuState>,
    current: Vec<Option<usize>>,
    threads: Vec<Thread>,
    clock_ns: u64,
    search_at_ns: Vec<u64>,
    searches: Vec<u32>,
    /// CPUs on which a thread of another scheduler runs.
    taken: Vec<bool>,
    kicked: Vec<usize>,
    /// Turns: the group that owns all CPUs, in rotation.
    turns: Vec<u32>,
    turn_ns: u64,
    /// Number of barriers that the threads of each group have passed, which wait for each other
    /// after each burst; `None` for groups without barriers.
    rounds: Vec<Option<u64>>,
    violations: Vec<String>,
}

impl World {
    fn new(cpus: usize, groups: Vec<Group>, threads: Vec<Thread>, fault: Fault) -> World {
        let cpu = cpu_state(NO_GROUP, NO_GROUP);
        let rounds = vec![None; groups.len()];
        World {
            fault,
            now_ns: 1_000_000_000,
            groups,
            cpus: vec![cpu; cpus],
            current: vec![None; cpus],
            threads,
            clock_ns: 0,
            search_at_ns: vec![0; cpus],
            searches: vec![0; cpus],
            taken: vec![false; cpus],
            kicked: vec![],
            turns: vec![],
            turn_ns: 50_000_000,
            rounds,
            violations: vec![],
        }
    }

    fn is_capped(&self, group: u32) -> bool {
        // SAFETY: the pointer refers to a group that lives through the call.
        let is = unsafe { twin_is_capped(&self.groups[group as usize], self.now_ns) } != 0;
        is && self.fault != Fault::QuotaIgnored
    }

    fn slice(&self, t: usize) -> u64 {
        let thread = &self.threads[t];
        let group = &self.groups[thread.group as usize];
        // SAFETY: as above.
        unsafe { twin_slice_ns(group, thread.requested_ns, self.now_ns) }
    }

    fn pick(&self, owner: u32, waiting: u64) -> u32 {
        let owner = if self.fault == Fault::OwnerIgnored { NO_GROUP } else { owner };
        let mut groups = self.groups.clone();
        if self.fault == Fault::QuotaIgnored {
            groups.iter_mut().for_each(|g| g.quota_ns = 0);
        }
        // SAFETY: the pointer refers to as many groups as the second argument states.
        unsafe { twin_pick(groups.as_ptr(), groups.len() as u32, owner, waiting, self.now_ns) }
    }

    /// The clock of groups, except for one that wakes up.
    fn clock(&self, woken: u32) -> u64 {
        if self.fault == Fault::ClockIsGreatest {
            return self.clock_ns;
        }
        let (groups, count) = (self.groups.as_ptr(), self.groups.len() as u32);
        // SAFETY: the pointer refers to as many groups as the second argument states.
        unsafe { twin_clock_of_groups_ns(groups, count, woken, self.clock_ns, self.now_ns) }
    }

    fn thread_weight(&self, t: usize) -> u64 {
        if self.fault == Fault::NiceIgnored { 100 } else { self.threads[t].weight }
    }

    fn may_run(&self, thread: usize, cpu: usize) -> bool {
        self.threads[thread].allowed & (1 << cpu) != 0
    }

    /// The waiting threads of a group, by virtual time, without those in the queues of CPUs.
    fn queue(&self, group: u32) -> Vec<usize> {
        self.ordered(|thread| thread.group == group && !thread.is_bound())
    }

    /// The queue of a CPU, by virtual time.
    fn bound_queue(&self, cpu: usize) -> Vec<usize> {
        self.ordered(|thread| thread.is_bound() && thread.allowed == 1 << cpu)
    }

    fn ordered(&self, is_in: impl Fn(&Thread) -> bool) -> Vec<usize> {
        let waits = |t: &usize| self.threads[*t].place == Place::Queued && is_in(&self.threads[*t]);
        let mut queue: Vec<usize> = (0..self.threads.len()).filter(waits).collect();
        queue.sort_by_key(|&t| self.threads[t].vtime_ns);
        queue
    }

    fn waiting(&self) -> u64 {
        let queued = self.threads.iter().filter(|t| t.place == Place::Queued && !t.is_bound());
        queued.fold(0, |bits, t| bits | 1 << t.group)
    }

    /// `settle`.
    fn settle(&mut self, t: usize) {
        let now_ns = self.now_ns;
        let thread = &mut self.threads[t];
        let ran_ns = now_ns - thread.started_ns;
        thread.started_ns = now_ns;
        let group = &mut self.groups[thread.group as usize];
        let own = if group.flags & GROUP_IS_BATCH != 0 { 100 } else { thread.weight };
        let weight = if self.fault == Fault::WeightIgnored { 100 } else { group.weight };
        // SAFETY: functions of numbers, and a pointer to a group that lives through the call.
        unsafe {
            thread.vtime_ns += twin_charge_ns(ran_ns, own, 0);
            group.vtime_ns += twin_charge_ns(ran_ns, weight, group.thread_weight);
            group.ran_ns += ran_ns;
            if group.quota_ns > 0 {
                let period = now_ns / QUOTA_PERIOD_NS;
                if period > group.period {
                    group.used_ns =
                        twin_carried_ns(group.used_ns, group.quota_ns, period - group.period);
                    group.period = period;
                }
                group.used_ns += ran_ns;
            }
        }
    }

    /// The virtual time of the first thread of a queue.
    fn first_vtime(&self, queue: &[usize]) -> u64 {
        queue.first().map_or(u64::MAX, |&t| self.threads[t].vtime_ns)
    }

    /// The threads of a group that wait for a CPU, in the order in which the CPU takes them.
    fn queues(&self, group: u32, cpu: usize) -> Vec<usize> {
        let queue = self.queue(group);
        let bound = if group == 0 { self.bound_queue(cpu) } else { vec![] };
        match self.first_vtime(&bound) <= self.first_vtime(&queue) {
            true => bound.into_iter().chain(queue).collect(),
            false => queue.into_iter().chain(bound).collect(),
        }
    }

    /// `advance`.
    fn advance(&mut self, t: usize) {
        let id = self.threads[t].group;
        let (first_ns, waiting) = (self.first_vtime(&self.queue(id)), self.waiting());
        let (thread, count) = (&mut self.threads[t], self.groups.len() as u32);
        if self.fault == Fault::CreditSaved || self.fault == Fault::ClockIsGreatest {
            let group = &mut self.groups[id as usize];
            group.floor_ns = group.floor_ns.max(thread.vtime_ns);
            self.clock_ns = self.clock_ns.max(group.vtime_ns);
            return;
        }
        // SAFETY: functions of numbers, and a pointer to as many groups as stated.
        unsafe {
            thread.vtime_ns = twin_credited_ns(thread.vtime_ns, first_ns);
            let floor_ns = self.groups[id as usize].floor_ns;
            let floor_ns = twin_risen_floor_ns(floor_ns, thread.vtime_ns, first_ns);
            let groups = self.groups.as_ptr();
            let least_ns = twin_least_waiting_ns(groups, count, id, waiting, self.now_ns);
            let group = &mut self.groups[id as usize];
            group.floor_ns = floor_ns;
            group.vtime_ns = twin_credited_ns(group.vtime_ns, least_ns);
        }
    }

    /// `running`.
    fn start(&mut self, t: usize, cpu: usize) {
        let slice_ns = self.slice(t);
        let thread = &mut self.threads[t];
        thread.place = Place::On(cpu);
        thread.place_for = None;
        thread.started_ns = self.now_ns;
        thread.slice_ns = slice_ns;
        thread.has_starved = false;
        self.cpus[cpu].group = thread.group;
        self.advance(t);
        self.cpus[cpu].vtime_ns = self.threads[t].vtime_ns;
        self.current[cpu] = Some(t);
    }

    /// `stopping`.
    fn stop(&mut self, t: usize, cpu: usize) {
        self.settle(t);
        self.cpus[cpu].group = NO_GROUP;
        self.current[cpu] = None;
    }

    fn kick(&mut self, cpu: usize) {
        if !self.kicked.contains(&cpu) {
            self.kicked.push(cpu);
        }
    }

    fn kick_idle(&mut self) {
        for cpu in (0..self.cpus.len()).filter(|&cpu| self.current[cpu].is_none()) {
            if !self.kicked.contains(&cpu) {
                self.kicked.push(cpu);
            }
        }
    }

    /// `enqueue`.
    fn enqueue(&mut self, t: usize, wakes: bool) {
        let group = self.threads[t].group;
        let now_ns = self.now_ns;
        let thread = &mut self.threads[t];
        (thread.queued_ns, thread.place) = (now_ns, Place::Queued);
        if self.is_capped(group) {
            return;
        }
        if let Some(cpu) = self.threads[t].place_for {
            self.cpus[cpu].placed = group + 1;
            self.kick(cpu);
            return;
        }
        if self.groups[group as usize].flags & GROUP_IS_SET != 0 {
            let victim = (0..self.cpus.len()).find(|&cpu| {
                let mut state = self.cpus[cpu];
                if self.fault == Fault::ClaimIgnored {
                    state.is_claimed = 0;
                }
                // SAFETY: the pointer refers to a state that lives through the call.
                let is = unsafe { twin_is_victim(&state, group) } != 0;
                is && self.may_run(t, cpu) && self.fault != Fault::VictimIgnored
            });
            if let Some(cpu) = victim {
                self.cpus[cpu].is_claimed = 1;
                self.kick(cpu);
                return;
            }
        }
        let is_idle = |cpu: &usize| {
            self.current[*cpu].is_none() && !self.kicked.contains(cpu) && !self.taken[*cpu]
        };
        let idle = (0..self.cpus.len()).filter(is_idle).find(|&cpu| self.may_run(t, cpu));
        if let Some(cpu) = idle {
            if self.fault != Fault::IdleIgnored {
                self.kick(cpu);
            }
            return;
        }
        let is_bound = self.threads[t].is_bound();
        let allowed = self.threads[t].allowed.trailing_zeros() as usize;
        let last = if is_bound { allowed } else { t % self.cpus.len() };
        let CpuState { group: run, owner, vtime_ns: run_ns, .. } = self.cpus[last];
        if wakes && run != NO_GROUP {
            let (groups, own_ns) = (self.groups.as_ptr(), self.threads[t].vtime_ns);
            // SAFETY: both numbers are below that of the groups.
            let preempts = unsafe { twin_preempts(groups, group, own_ns, run, run_ns, owner) };
            if preempts != 0 {
                self.kick(last);
            }
        }
    }

    fn take(&mut self, group: u32, cpu: usize) -> bool {
        let found = self.queues(group, cpu).into_iter().find(|&t| self.may_run(t, cpu));
        if let Some(t) = found {
            self.replace(t, cpu);
        }
        found.is_some()
    }

    fn take_overdue(&mut self, cpu: usize) -> bool {
        if self.now_ns < self.cpus[cpu].bound_at_ns || self.fault == Fault::BoundIgnored {
            return false;
        }
        let overdue_ns = |t: usize| {
            let thread = &self.threads[t];
            // SAFETY: a function of numbers.
            unsafe { twin_overdue_ns(thread.queued_ns, thread.weight, self.now_ns) }
        };
        let all = self.bound_queue(cpu).into_iter().map(|t| (overdue_ns(t), t));
        let Some((_, t)) = all.filter(|(ns, _)| *ns > 0).max_by_key(|(ns, _)| *ns) else {
            return false;
        };
        self.replace(t, cpu);
        self.cpus[cpu].bound_at_ns = self.now_ns + BOUND_NS;
        true
    }

    /// Runs a waiting thread instead of the present one.
    fn replace(&mut self, t: usize, cpu: usize) {
        let prev = self.current[cpu];
        if let Some(prev) = prev {
            self.stop(prev, cpu);
        }
        self.start(t, cpu);
        if let Some(prev) = prev {
            self.enqueue(prev, false);
        }
    }

    fn take_starving(&mut self, cpu: usize) -> bool {
        if self.fault == Fault::StarvationIgnored || self.now_ns < self.search_at_ns[cpu] {
            return false;
        }
        let (now_ns, count, turn) = (self.now_ns, self.groups.len() as u32, self.searches[cpu]);
        self.searches[cpu] += 1;
        // SAFETY: functions of numbers.
        let group = |step| unsafe { twin_searched_group(step, turn, count) };
        let starves = |t: &usize| {
            // SAFETY: as above.
            let is = unsafe { twin_is_starving(self.threads[*t].queued_ns, now_ns) } != 0;
            is && self.may_run(*t, cpu)
        };
        let most = if self.fault == Fault::FirstSearched { 1 } else { usize::MAX };
        let found = (0..count)
            .find_map(|step| self.queue(group(step)).into_iter().take(most).find(starves));
        let since_ns = found.map_or(0, |t| self.threads[t].queued_ns);
        // SAFETY: as above.
        self.search_at_ns[cpu] = unsafe { twin_next_search_ns(since_ns, now_ns) };
        if let Some(t) = found {
            self.replace(t, cpu);
            self.threads[t].has_starved = true;
        }
        found.is_some()
    }

    /// `take_placed`.
    fn take_placed(&mut self, cpu: usize, waiting: u64) -> bool {
        // SAFETY: the pointer refers to a state that lives through the call.
        let group = unsafe { twin_placed_group(&self.cpus[cpu], waiting) };
        // SAFETY: as above.
        if unsafe { twin_is_displaced(&self.cpus[cpu], waiting) } != 0 {
            self.kick_idle();
        }
        self.cpus[cpu].placed = 0;
        let is_first = self.current[cpu].is_none() && self.fault != Fault::PlaceIgnored;
        if !is_first || group == NO_GROUP || self.is_capped(group) {
            return false;
        }
        let is_placed = |t: &usize| self.threads[*t].place_for == Some(cpu);
        let found = self.queue(group).into_iter().find(is_placed);
        if let Some(t) = found {
            self.replace(t, cpu);
        }
        found.is_some()
    }

    /// A thread of another scheduler takes the CPU: `cpu_release`.
    fn release(&mut self, cpu: usize) {
        self.taken[cpu] = true;
        let Some(t) = self.current[cpu] else { return };
        self.stop(t, cpu);
        self.enqueue(t, false);
        if self.fault == Fault::ReleaseIgnored {
            self.threads[t].place = Place::Stuck;
        }
    }

    /// `dispatch`.
    fn dispatch(&mut self, cpu: usize) {
        if self.taken[cpu] {
            return;
        }
        self.cpus[cpu].is_claimed = 0;
        let owner = self.cpus[cpu].owner;
        let mut waiting = self.waiting() | u64::from(!self.bound_queue(cpu).is_empty());
        if self.fault == Fault::OthersLast && owner != NO_GROUP && waiting & (1 << owner) != 0 {
            waiting &= !1;
        }
        let prev = self.current[cpu];
        let mut prev_group = NO_GROUP;
        if let Some(t) = prev {
            self.settle(t);
            if !self.is_capped(self.threads[t].group) {
                prev_group = self.threads[t].group;
            }
        }
        let is_starving = waiting != 0 && self.take_starving(cpu);
        if is_starving || self.take_overdue(cpu) || self.take_placed(cpu, waiting) {
            return;
        }
        let mut is_alone = true;
        for _ in 0..self.groups.len() {
            let next = self.pick(owner, waiting);
            if next == NO_GROUP {
                break;
            }
            if let Some(t) = prev.filter(|_| prev_group != NO_GROUP) {
                let first = self.queues(next, cpu);
                let next_ns = self.first_vtime(&first);
                let own_ns = self.threads[t].vtime_ns;
                let groups = self.groups.as_ptr();
                // SAFETY: both numbers are below that of the groups.
                let continues =
                    unsafe { twin_continues(groups, prev_group, own_ns, next, next_ns, owner) };
                if continues != 0 || self.fault == Fault::NeverReplaced {
                    is_alone = false;
                    break;
                }
            }
            if self.take(next, cpu) {
                return;
            }
            waiting &= !(1 << next);
        }
        match prev {
            Some(t) if prev_group != NO_GROUP => {
                self.advance(t);
                if is_alone {
                    let clock_ns = self.clock(NO_GROUP);
                    let group = &mut self.groups[prev_group as usize];
                    group.vtime_ns = group.vtime_ns.min(clock_ns + DEBT_NS);
                }
                self.threads[t].slice_ns = self.slice(t);
            }
            Some(t) => {
                self.stop(t, cpu);
                self.enqueue(t, false);
            }
            None => {}
        }
    }

    /// `count`, for a thread that wakes up.
    fn count(&mut self, t: usize) {
        let id = self.threads[t].group as usize;
        let keeps_all = matches!(self.fault, Fault::BirthCredit | Fault::CreditSaved);
        let weight = self.thread_weight(t);
        let (group, thread) = (&mut self.groups[id], &mut self.threads[t]);
        if !keeps_all {
            // SAFETY: a function of numbers.
            thread.vtime_ns = unsafe { twin_woken_vtime_ns(thread.vtime_ns, group.floor_ns) };
        }
        group.thread_weight += weight;
        group.runnable += 1;
        if group.runnable == 1 {
            let woken = if self.fault == Fault::WokenCounts { NO_GROUP } else { id as u32 };
            self.clock_ns = self.clock(woken);
            let group = &mut self.groups[id];
            if self.fault != Fault::CreditKept {
                // SAFETY: as above.
                group.vtime_ns =
                    unsafe { twin_woken_group_vtime_ns(group.vtime_ns, self.clock_ns) };
            }
        }
    }

    /// `runnable`, `select_cpu` and `enqueue`.
    fn wake(&mut self, t: usize) {
        self.count(t);
        let id = self.threads[t].group;
        self.threads[t].left_ns = self.threads[t].burst_ns.unwrap_or(u64::MAX);
        let owned = |cpu: &usize| self.cpus[*cpu].owner == id;
        let is_free = |cpu: &usize| {
            let is_idle = self.current[*cpu].is_none() && !self.kicked.contains(cpu);
            is_idle && !self.taken[*cpu] && self.may_run(t, *cpu)
        };
        let all = 0..self.cpus.len();
        let idle = all.clone().filter(owned).find(is_free).or_else(|| all.clone().find(is_free));
        // The kernel does not search for a CPU if there is only one.
        let finds =
            !self.is_capped(id) && self.fault != Fault::IdleIgnored && !self.threads[t].is_bound();
        self.threads[t].place_for = idle.filter(|_| finds);
        self.enqueue(t, true);
    }

    /// `quiescent`.
    fn sleep(&mut self, t: usize) {
        self.clock_ns = self.clock(NO_GROUP);
        let weight = self.thread_weight(t);
        let thread = &mut self.threads[t];
        let has_barriers = self.rounds.get(thread.group as usize).copied().flatten().is_some();
        thread.place = match has_barriers {
            true => AT_BARRIER,
            false => Place::Asleep { until_ns: self.now_ns + thread.sleep_ns },
        };
        let group = &mut self.groups[thread.group as usize];
        group.runnable -= 1;
        group.thread_weight -= weight;
    }

    /// Starts threads in a group, as copies of `like` (`init_task`).
    fn fork(&mut self, like: &Thread, count: usize) {
        for _ in 0..count {
            let floor_ns = self.groups[like.group as usize].floor_ns;
            let keeps = self.fault == Fault::BirthCredit;
            let vtime_ns = if keeps { like.vtime_ns } else { floor_ns };
            let place = Place::Asleep { until_ns: 0 };
            self.threads.push(Thread { vtime_ns, place, place_for: None, ..like.clone() });
        }
    }

    /// Changes a quota: `set_group`.
    fn set_quota(&mut self, id: usize, quota_ns: u64) {
        let group = &mut self.groups[id];
        if self.fault == Fault::DebtKept {
            group.quota_ns = quota_ns;
        } else {
            // SAFETY: the pointer refers to a group that lives through the call.
            unsafe { twin_change_quota(group, quota_ns, self.now_ns) };
        }
        for cpu in 0..self.cpus.len() {
            if self.cpus[cpu].group == id as u32 {
                self.kick(cpu);
            }
        }
    }

    /// Ends the burst of a thread in a group with barriers, if it is the last one that arrives: it
    /// goes on, and wakes the others.
    fn ends_barrier(&mut self, last: usize) -> bool {
        let group = self.threads[last].group;
        let Some(Some(rounds)) = self.rounds.get_mut(group as usize) else { return false };
        let others = |t: &usize| self.threads[*t].group == group && *t != last;
        let others: Vec<usize> = (0..self.threads.len()).filter(others).collect();
        if !others.iter().all(|&t| self.threads[t].place == AT_BARRIER) {
            return false;
        }
        *rounds += 1;
        self.threads[last].left_ns = self.threads[last].burst_ns.unwrap_or(u64::MAX);
        for t in others {
            self.threads[t].place = Place::Asleep { until_ns: self.now_ns };
        }
        true
    }

    fn step(&mut self) {
        self.now_ns += STEP_NS;
        for thread in &mut self.threads {
            match thread.place {
                Place::On(_) => thread.ran_ns += STEP_NS,
                Place::Queued | Place::Stuck => thread.waited_ns += STEP_NS,
                Place::Asleep { .. } => {}
            }
        }
        for cpu in 0..self.cpus.len() {
            let Some(t) = self.current[cpu] else { continue };
            let thread = &mut self.threads[t];
            thread.left_ns = thread.left_ns.saturating_sub(STEP_NS);
            thread.slice_ns = thread.slice_ns.saturating_sub(STEP_NS);
            if thread.left_ns == 0 && !self.ends_barrier(t) {
                self.stop(t, cpu);
                self.sleep(t);
                self.kick(cpu);
            } else if self.threads[t].slice_ns == 0 {
                self.kick(cpu);
            }
        }
        for t in 0..self.threads.len() {
            if matches!(self.threads[t].place, Place::Asleep { until_ns } if until_ns <= self.now_ns)
            {
                self.wake(t);
            }
        }
        if !self.turns.is_empty() && self.now_ns.is_multiple_of(self.turn_ns) {
            let turn = (self.now_ns / self.turn_ns) as usize % self.turns.len();
            for cpu in 0..self.cpus.len() {
                self.cpus[cpu].owner = self.turns[turn];
                self.kick(cpu);
            }
        }
        if (self.now_ns / STEP_NS).is_multiple_of(REFILL_STEPS) {
            self.kick_idle();
        }
        // Each dispatch may interrupt further CPUs.
        for _ in 0..4 * self.cpus.len() {
            let Some(cpu) = self.kicked.pop() else { break };
            self.dispatch(cpu);
        }
        self.check();
    }

    fn violate(&mut self, what: String) {
        if self.violations.len() < 5 {
            self.violations.push(format!("at {} ms: {what}", self.now_ns / 1_000_000));
        }
    }

    /// The invariants at each moment.
    fn check(&mut self) {
        for t in 0..self.threads.len() {
            let thread = self.threads[t].clone();
            if !matches!(thread.place, Place::Queued | Place::Stuck) {
                continue;
            }
            let waited_ns = self.now_ns - thread.queued_ns;
            self.threads[t].longest_ns = thread.longest_ns.max(waited_ns);
            let group = self.groups[thread.group as usize];
            let is_bound = thread.is_bound() && thread.weight >= 100;
            let most_ns = if is_bound { BOUND_WAIT_NS_MAX } else { WAIT_NS_MAX };
            if waited_ns > most_ns && group.quota_ns == 0 {
                self.violate(format!("thread {t} starves"));
            }
            // A quota that permits running again is detected at the next refill.
            let may = group.quota_ns == 0;
            let may_run = |cpu: &usize| !self.taken[*cpu] && thread.allowed & (1 << *cpu) != 0;
            let cpus: Vec<usize> = (0..self.cpus.len()).filter(|_| may).filter(may_run).collect();
            for cpu in cpus {
                let state = self.cpus[cpu];
                if state.group == NO_GROUP {
                    self.violate(format!("CPU {cpu} is idle while thread {t} waits"));
                }
                let runs = self.current[cpu].map(|t| &self.threads[t]);
                // A thread that starved runs for one slice.
                // Threads of no program compete with the owner.
                let is_served = runs.is_some_and(|r| r.has_starved || r.group == 0);
                if state.owner == thread.group && state.group != thread.group && !is_served {
                    self.violate(format!(
                        "CPU {cpu} runs {} while {t} of its owner waits",
                        state.group
                    ));
                }
            }
        }
    }

    fn run(&mut self, ns: u64) {
        let end_ns = self.now_ns + ns;
        let before: Vec<u64> = self.groups.iter().map(|g| g.ran_ns).collect();
        while self.now_ns < end_ns && self.violations.is_empty() {
            self.step();
        }
        for (id, before_ns) in before.into_iter().enumerate() {
            let group = self.groups[id];
            let most_ns = group.quota_ns * ns.div_ceil(QUOTA_PERIOD_NS)
                + QUOTA_EXCESS_NS * self.cpus.len() as u64;
            if group.quota_ns > 0 && group.ran_ns - before_ns > most_ns {
                self.violate(format!("group {id} exceeds its quota"));
            }
        }
    }
}

fn thread(group: u32, cpus: usize) -> Thread {
    Thread {
        group,
        allowed: (1 << cpus) - 1,
        weight: 100,
        burst_ns: None,
        sleep_ns: 0,
        left_ns: 0,
        vtime_ns: 0,
        started_ns: 0,
        queued_ns: 0,
        slice_ns: 0,
        requested_ns: 0,
        place_for: None,
        longest_ns: 0,
        has_starved: false,
        ran_ns: 0,
        waited_ns: 0,
        place: Place::Asleep { until_ns: 0 },
    }
}

/// A random world: up to eight CPUs, and five programs of up to six threads, half of the time
/// beside threads of no program.
fn random(seed: u64, fault: Fault) -> World {
    let rng = &mut Rng::with_seed(seed);
    let (cpus, programs) = (rng.usize(1..=8), rng.u32(1..=5));
    let takes_turns = rng.bool();
    let mut groups = vec![Group::default()];
    let mut threads = vec![];
    for group in u32::from(rng.bool())..=programs {
        let weight = if rng.bool() { 0 } else { [1, 20, 100, 500, 10_000][rng.usize(0..5)] };
        let flags = match rng.u32(0..6) {
            _ if takes_turns && rng.bool() => GROUP_IS_SET,
            0 => GROUP_IS_IDLE,
            1 => GROUP_IS_BATCH,
            _ => 0,
        };
        let quota_ns = match rng.u32(0..5) {
            0 => rng.u64(1..=cpus as u64 * 10) * 10_000_000,
            _ => 0,
        };
        if group > 0 {
            groups.push(Group { weight, flags, quota_ns, period: 10, ..Group::default() });
        }
        for _ in 0..rng.u32(1..=6) {
            let mut thread = thread(group, cpus);
            if rng.u32(0..4) == 0 {
                thread.allowed = 1 << rng.usize(0..cpus);
            }
            thread.weight = [15, 100, 300][rng.usize(0..3)];
            if rng.bool() {
                thread.burst_ns = Some(rng.u64(1..20) * STEP_NS);
                thread.sleep_ns = rng.u64(0..40) * STEP_NS;
            }
            threads.push(thread);
        }
    }
    let mut world = World::new(cpus, groups, threads, fault);
    let is_set = |group: &u32| world.groups[*group as usize].flags & GROUP_IS_SET != 0;
    world.turns = (1..=programs).filter(is_set).collect();
    world.turn_ns = rng.u64(10..400) * 10 * STEP_NS;
    world
}

/// Number of random worlds of a test, and the simulated time of each.
const WORLDS: u64 = 60;
const RANDOM_NS: u64 = 2_000_000_000;

/// Runs random worlds, and returns the first violation with its seed.
fn first_violation(fault: Fault, ns: u64) -> Option<String> {
    (0..WORLDS).find_map(|seed| {
        let mut world = random(seed, fault);
        world.run(ns);
        world.violations.first().map(|what| format!("{what} (random({seed}, Fault::{fault:?}))"))
    })
}

/// Two programs on `cpus` CPUs with these weights and numbers of threads, which always run.
fn pair(cpus: usize, weights: [u64; 2], counts: [usize; 2], fault: Fault) -> World {
    let group = |weight| Group { weight, ..Group::default() };
    let groups = vec![Group::default(), group(weights[0]), group(weights[1])];
    let threads = |id: u32| (0..counts[id as usize - 1]).map(move |_| thread(id, cpus));
    World::new(cpus, groups, threads(1).chain(threads(2)).collect(), fault)
}

/// The error of the ratio of two programs that compete for 4 s, relative to their weights.
fn ratio_error(weights: [u64; 2], counts: [usize; 2], fault: Fault) -> f64 {
    let mut world = pair(2, weights, counts, fault);
    world.run(4_000_000_000);
    let ratio = world.groups[1].ran_ns as f64 / world.groups[2].ran_ns as f64;
    let expected = match weights {
        [0, 0] => counts[0] as f64 / counts[1] as f64,
        [a, b] => a as f64 / b as f64,
    };
    (ratio / expected - 1.0).abs()
}

/// A program of weight 1 beside one of weight 10,000: without a search it would wait for minutes.
fn starving(fault: Fault) -> World {
    pair(1, [1, 10_000], [2, 1], fault)
}

/// Slices of 100 ms and a thread of nice 19 beside four of nice 0 in one program: 100 ms of that
/// thread are 10 s of virtual time, and the first thread of the queue never waits for long.
fn starving_behind_the_first(fault: Fault) -> World {
    let mut world = pair(1, [0, 0], [5, 0], fault);
    world.threads.iter_mut().for_each(|thread| thread.requested_ns = 100_000_000);
    world.threads[0].weight = 1;
    world
}

/// The longest wait of four threads that compute for 10 s, and whose program then starts eight
/// more by a thread that has slept since its start, on four CPUs.
fn longest_wait_beside_births(fault: Fault) -> u64 {
    let mut world = pair(4, [0, 0], [4, 0], fault);
    let sleeper = thread(1, 4);
    world.run(10_000_000_000);
    world.fork(&sleeper, 8);
    world.run(2_000_000_000);
    world.threads[..4].iter().map(|thread| thread.longest_ns).max().unwrap()
}

/// The part of one CPU that a program gets which computes and sleeps for 1 ms in turn, beside one
/// that always computes there, and one of weight 1 that has another CPU for itself.
fn share_beside_a_lone_group(fault: Fault) -> f64 {
    let mut world = pair(2, [1, 100], [1, 1], fault);
    world.groups.push(Group { weight: 100, ..Group::default() });
    world.threads[0].allowed = 2;
    world.threads[1].allowed = 1;
    let (burst_ns, sleep_ns) = (Some(2 * STEP_NS), 2 * STEP_NS);
    world.threads.push(Thread { burst_ns, sleep_ns, allowed: 1, ..thread(3, 2) });
    world.run(4_000_000_000);
    world.groups[3].ran_ns as f64 / (world.groups[2].ran_ns + world.groups[3].ran_ns) as f64
}

/// CPU time in 3 s of a program of weight 100, beside one of weight 1,000 that had one thread for
/// 10 s and has eight more now, on four CPUs.
fn time_beside_saved_credit(fault: Fault) -> u64 {
    let mut world = pair(4, [1_000, 100], [1, 8], fault);
    world.run(10_000_000_000);
    let before_ns = world.groups[2].ran_ns;
    world.fork(&thread(1, 4), 8);
    world.run(3_000_000_000);
    world.groups[2].ran_ns - before_ns
}

/// The ratio of the CPU times of two programs without weights, of nice 0 and of less.
fn ratio_of_nice_values(fault: Fault) -> f64 {
    let mut world = pair(1, [0, 0], [1, 1], fault);
    world.threads[1].weight = 25;
    world.run(4_000_000_000);
    world.groups[1].ran_ns as f64 / world.groups[2].ran_ns as f64
}

/// CPU time of a program in the second half of a second, after its quota was lowered from four CPUs
/// to a twentieth.
fn time_after_a_lower_quota(fault: Fault) -> u64 {
    let mut world = pair(4, [0, 0], [4, 0], fault);
    world.set_quota(1, 4 * QUOTA_PERIOD_NS);
    world.run(1_050_000_000);
    world.set_quota(1, QUOTA_PERIOD_NS / 20);
    world.run(500_000_000);
    let before_ns = world.groups[1].ran_ns;
    world.run(500_000_000);
    world.groups[1].ran_ns - before_ns
}

/// Four threads on four CPUs, one of which a thread of another scheduler takes while one of the
/// four has just ended.
fn taken(fault: Fault) -> World {
    let mut world = pair(4, [0, 0], [4, 0], fault);
    world.threads[3].burst_ns = Some(2_000_000);
    world.threads[3].sleep_ns = 60_000_000_000;
    world.run(1_000_000);
    world.release(0);
    world
}

/// CPU time in 4 s of a thread of no program, beside two sets of two threads that take turns on
/// both CPUs, and that always compute.
fn time_beside_owners(fault: Fault) -> u64 {
    let mut world = pair(2, [0, 0], [2, 2], fault);
    world.groups[1..].iter_mut().for_each(|group| group.flags = GROUP_IS_SET);
    world.turns = vec![1, 2];
    world.threads.push(thread(0, 2));
    world.run(4_000_000_000);
    world.groups[0].ran_ns
}

/// A thread of no program that may run on the first CPU only, and computes there for 1 ms in 10.
/// Another one has used the second CPU alone for a long time, and a set owns the first one.
fn bound_beside_an_owner(fault: Fault) -> World {
    let mut world = pair(2, [1_000, 0], [1, 0], fault);
    world.groups[1].flags = GROUP_IS_SET;
    world.threads[0].allowed = 1;
    world.cpus[0].owner = 1;
    world.threads.push(Thread { allowed: 2, ..thread(0, 2) });
    let (burst_ns, sleep_ns) = (Some(2 * STEP_NS), 18 * STEP_NS);
    world.threads.push(Thread { burst_ns, sleep_ns, allowed: 1, ..thread(0, 2) });
    world
}

/// A program that sleeps for 600 ms and then computes for 100 ms, in turn, beside another one.
/// Returns the share of the sleeper in the times when both compete.
fn share_of_a_sleeper(fault: Fault) -> f64 {
    let mut world = pair(1, [0, 0], [1, 1], fault);
    world.threads[0].burst_ns = Some(100_000_000);
    world.threads[0].sleep_ns = 600_000_000;
    let (mut both_ns, mut ran_ns) = (0, 0);
    for _ in 0..8_000 {
        let before_ns = world.groups[1].ran_ns;
        let competes = !matches!(world.threads[0].place, Place::Asleep { .. });
        world.step();
        if competes {
            both_ns += STEP_NS;
            ran_ns += world.groups[1].ran_ns - before_ns;
        }
    }
    ran_ns as f64 / both_ns as f64
}

#[test]
fn no_cpu_idles_while_a_thread_that_may_run_there_waits() {
    assert_eq!(first_violation(Fault::None, RANDOM_NS), None);
}

#[test]
fn no_cpu_of_a_set_runs_another_group_while_a_thread_of_the_set_waits() {
    // Two programs of four threads, which block often and take turns, beside one without a set.
    for seed in 0..20 {
        let rng = &mut Rng::with_seed(seed);
        let set = Group { flags: GROUP_IS_SET, ..Group::default() };
        let groups = vec![Group::default(), set, set, Group::default()];
        let blocks = |group| {
            let burst_ns = Some(rng.u64(1..12) * STEP_NS);
            Thread { burst_ns, sleep_ns: rng.u64(0..12) * STEP_NS, ..thread(group, 4) }
        };
        let threads = (0..12).map(|t| 1 + t / 4).map(blocks).collect();
        let mut world = World::new(4, groups, threads, Fault::None);
        world.turns = vec![1, 2];
        world.run(RANDOM_NS);
        assert_eq!(world.violations, Vec::<String>::new(), "seed {seed}");
        assert!(world.groups.iter().skip(1).all(|group| group.ran_ns > RANDOM_NS / 20));
    }
}

#[test]
fn no_thread_starves() {
    let mut world = starving(Fault::None);
    world.run(25_000_000_000);
    assert_eq!(world.violations, Vec::<String>::new());
}

#[test]
fn groups_get_cpu_time_by_their_weights() {
    for (weights, counts) in [
        ([100, 100], [2, 2]),
        ([300, 100], [2, 2]),
        ([100, 900], [3, 8]),
        ([250, 100], [8, 2]),
        ([0, 0], [3, 6]),
    ] {
        let error = ratio_error(weights, counts, Fault::None);
        assert!(error < RATIO_ERROR_MAX, "{weights:?} {counts:?}: {error}");
    }
    let share = share_of_a_sleeper(Fault::None);
    assert!((0.4..0.6).contains(&share), "{share}");
}

#[test]
fn a_thread_starves_behind_no_first_one() {
    let mut world = starving_behind_the_first(Fault::None);
    world.run(45_000_000_000);
    assert_eq!(world.violations, Vec::<String>::new());
}

#[test]
fn old_threads_do_not_wait_for_new_ones() {
    let wait_ns = longest_wait_beside_births(Fault::None);
    assert!(wait_ns < BIRTH_WAIT_NS_MAX, "{wait_ns}");
}

#[test]
fn a_group_with_a_cpu_for_itself_takes_nothing_from_one_that_sleeps() {
    let share = share_beside_a_lone_group(Fault::None);
    assert!(share > LONE_SHARE_MIN, "{share}");
}

#[test]
fn a_share_that_cannot_be_used_is_not_saved_up() {
    let ns = time_beside_saved_credit(Fault::None);
    assert!(ns > SAVED_TIME_MIN_NS, "{ns}");
}

#[test]
fn programs_without_weights_compete_by_their_nice_values() {
    let ratio = ratio_of_nice_values(Fault::None);
    assert!((ratio / 4.0 - 1.0).abs() < RATIO_ERROR_MAX, "{ratio}");
}

#[test]
fn a_lower_quota_leaves_no_long_debt() {
    let ns = time_after_a_lower_quota(Fault::None);
    assert!(ns > LOWERED_TIME_MIN_NS, "{ns}");
}

#[test]
fn a_thread_leaves_a_cpu_that_another_scheduler_takes() {
    let mut world = taken(Fault::None);
    world.run(1_000_000_000);
    assert_eq!(world.violations, Vec::<String>::new());
}

#[test]
fn threads_of_no_program_compete_with_owners() {
    let ns = time_beside_owners(Fault::None);
    assert!(OTHERS_TIME_NS.contains(&ns), "{ns}");
}

#[test]
fn a_thread_for_one_cpu_gets_it_soon() {
    let mut world = bound_beside_an_owner(Fault::None);
    world.run(10_000_000_000);
    assert_eq!(world.violations, Vec::<String>::new());
    // It has precedence over the owner for a moment only.
    let longest_ns = world.threads[2].longest_ns;
    assert!(longest_ns < 3 * BOUND_NS, "{longest_ns}");
    assert!(world.groups[1].ran_ns > 8_000_000_000, "{}", world.groups[1].ran_ns);
}

#[test]
fn threads_of_no_program_preempt_each_other_and_those_of_a_program_do_not() {
    let groups = [Group::default(); 2];
    let preempts = |group: u32, own_ns, run_ns| {
        // SAFETY: the group is below the number of groups.
        unsafe { twin_preempts(groups.as_ptr(), group, own_ns, group, run_ns, NO_GROUP) != 0 }
    };
    assert!(preempts(0, 1_000_000, 5_000_000));
    assert!(!preempts(0, 3_000_000, 5_000_000), "the difference is small");
    assert!(!preempts(1, 1_000_000, 5_000_000));
    // A running thread of the policy idle.
    assert!(preempts(0, 90_000_000, u64::MAX));
}

/// CPU time in 4 s of two CPUs of one of five threads that always compute, in nanoseconds.
const OTHERS_TIME_NS: std::ops::Range<u64> = 1_400_000_000..1_800_000_000;
/// Longest permitted wait of a thread beside new ones, in nanoseconds.
const BIRTH_WAIT_NS_MAX: u64 = 200_000_000;
/// Least share of a program that runs for 1 ms after each slice of 3 ms of the other one.
const LONE_SHARE_MIN: f64 = 0.2;
/// Least CPU time of 3 s on four CPUs, of which the weights grant an eleventh, in nanoseconds.
const SAVED_TIME_MIN_NS: u64 = 300_000_000;
/// Least CPU time under the lower quota, which grants 25 ms, in nanoseconds.
const LOWERED_TIME_MIN_NS: u64 = 10_000_000;

/// Returns whether this fault violates an invariant in one of the worlds for single decisions.
fn is_detected_by_a_scenario(fault: Fault) -> bool {
    let violates = |mut world: World, ns| {
        world.run(ns);
        !world.violations.is_empty()
    };
    match fault {
        Fault::BirthCredit => longest_wait_beside_births(fault) > BIRTH_WAIT_NS_MAX,
        Fault::FirstSearched => violates(starving_behind_the_first(fault), 45_000_000_000),
        Fault::ClockIsGreatest => share_beside_a_lone_group(fault) < LONE_SHARE_MIN,
        Fault::CreditSaved => time_beside_saved_credit(fault) < SAVED_TIME_MIN_NS,
        Fault::NiceIgnored => (ratio_of_nice_values(fault) / 4.0 - 1.0).abs() > RATIO_ERROR_MAX,
        Fault::DebtKept => time_after_a_lower_quota(fault) < LOWERED_TIME_MIN_NS,
        Fault::ReleaseIgnored => violates(taken(fault), 1_000_000_000),
        Fault::OthersLast => !OTHERS_TIME_NS.contains(&time_beside_owners(fault)),
        Fault::BoundIgnored => violates(bound_beside_an_owner(fault), 10_000_000_000),
        _ => false,
    }
}

#[test]
fn planted_faults_are_detected() {
    for fault in FAULTS {
        let detects = is_detected_by_a_scenario(fault)
            || first_violation(fault, RANDOM_NS).is_some()
            || {
                let mut world = starving(fault);
                world.run(25_000_000_000);
                !world.violations.is_empty()
            }
            || ratio_error([300, 100], [2, 2], fault) > RATIO_ERROR_MAX
            || !(0.4..0.6).contains(&share_of_a_sleeper(fault));
        assert!(detects, "{fault:?} violates no invariant");
    }
}

#[test]
fn layouts_agree() {
    assert_eq!(size_of::<Group>(), crate::state::GROUP_BYTES);
    let group = Group { runnable: 3, runnable_base_ns: 5, ..Group::default() };
    // SAFETY: a structure of numbers without padding.
    let bytes: [u8; crate::state::GROUP_BYTES] = unsafe { std::mem::transmute(group) };
    let counter = crate::state::Counter::read(&bytes)[0];
    assert_eq!((counter.runnable, counter.base_ns), (3, 5));
}

#[test]
fn set_is_together_unless_a_thread_waits_and_a_cpu_does_something_else() {
    let cpu = cpu_state;
    let state = |cpus: &[CpuState], runnable| {
        // SAFETY: the pointer refers to as many states as the second argument states.
        unsafe { twin_set_state(cpus.as_ptr(), cpus.len() as u32, 1, runnable) }
    };
    let half = [cpu(1, 1), cpu(1, 2)];
    assert_eq!(state(&half, 1), 3, "the other CPU is filled");
    assert_eq!(state(&half, 2), 1, "a thread waits");
    assert_eq!(state(&[cpu(1, 1), cpu(1, 1)], 5), 3, "the set has all its CPUs");
    assert_eq!(state(&half, 0), 0);
    assert_eq!(state(&[cpu(2, 1)], 1), 0, "it is the turn of another set");
}
