//! A discrete-event simulation of a [`System`]: each job has a given release and execution time.
//!
//! ```text
//!   releases ---> queue of each task ---> core: the ready job with the highest rank runs
//!                      ^                           |
//!                      `---- tasks that follow ----+--> end of a section, a chunk, or the job
//! ```
//!
//! The rank of a job is its priority, or its deadline on a core with earliest deadline first.
//! The rank is raised to the ceiling of the resource that the job holds (OSEK priority ceiling), to
//! the highest cooperative priority inside of a chunk of a cooperative task, and to the maximum
//! while the job spins for or holds a global resource (MSRP) or may not be preempted. The critical
//! sections of a job follow each other from its start on.

use crate::model::{Activation, CoreId, Policy, Preemption};
use crate::system::{Entry, RANK_MAX, System};
use std::cmp::Reverse;
use std::collections::VecDeque;

/// A job of a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// Arrival in nanoseconds, from which the deadline counts.
    pub arrival_ns: u64,
    /// Release in nanoseconds, not before the arrival.
    pub release_ns: u64,
    /// Execution time in nanoseconds.
    pub execution_ns: u64,
}

/// The jobs of each entry, in order of release. The jobs of an entry that follows another only
/// define execution times; the last one repeats.
pub type Jobs = Vec<Vec<Job>>;

/// Activity of a core in a span of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// It executes a job.
    Run,
    /// It executes a critical section of a job.
    Section,
    /// It spins for a resource that another core holds.
    Spin,
}

/// A span of time in which a core works for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The core.
    pub core: CoreId,
    /// The entry.
    pub entry: usize,
    /// Begin in nanoseconds.
    pub from_ns: u64,
    /// End in nanoseconds.
    pub to_ns: u64,
    /// Activity of the core.
    pub activity: Activity,
}

/// The end of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// The entry.
    pub entry: usize,
    /// The job with its arrival and release.
    pub job: Job,
    /// End in nanoseconds.
    pub end_ns: u64,
}

/// A record of everything that happened.
#[derive(Debug, Clone, Default)]
pub struct Record {
    /// Spans, of each core and of each entry in order. A span belongs to one job.
    pub spans: Vec<Span>,
    /// Ends of jobs in order.
    pub completions: Vec<Completion>,
}

/// Progress of the oldest job of a task.
#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    done: u64,
    /// Index of the next or present critical section.
    section: usize,
    /// Executed time at which the present section ends.
    section_end: u64,
    in_section: bool,
    spins: bool,
    started: bool,
    /// Inside of a chunk of a cooperative task.
    in_chunk: bool,
    chunk: usize,
    /// Executed time at which the present chunk ends.
    chunk_end: u64,
}

#[derive(Debug, Clone, Default)]
struct Lock {
    holder: Option<usize>,
    waiting: VecDeque<usize>,
}

/// The simulation. It reuses its memory from run to run.
#[derive(Debug, Clone)]
pub struct Simulation<'a> {
    system: &'a System,
    by_core: Vec<Vec<usize>>,
    followers: Vec<Vec<usize>>,
    /// Highest priority of the cooperative tasks of each core.
    cooperative: Vec<u64>,
    next: Vec<usize>,
    queues: Vec<VecDeque<Job>>,
    progress: Vec<Progress>,
    running: Vec<Option<usize>>,
    locks: Vec<Lock>,
    responses: Vec<u64>,
    /// First missed deadline: the entry and the time.
    miss: Option<(usize, u64)>,
    events: u64,
}

impl<'a> Simulation<'a> {
    /// A simulation of a system.
    pub fn new(system: &'a System) -> Simulation<'a> {
        let count = system.entries.len();
        let cores = system.policies.len();
        let mut followers = vec![vec![]; count];
        for (e, entry) in system.entries.iter().enumerate() {
            if let Activation::After(other) = entry.activation {
                followers[other].push(e);
            }
        }
        let by_core: Vec<Vec<usize>> = (0..cores).map(|c| system.on_core(c)).collect();
        let is_cooperative = |e: &&usize| system.entries[**e].preemption == Preemption::Cooperative;
        let highest = |on: &Vec<usize>| {
            let priorities = on.iter().filter(is_cooperative).map(|&e| system.entries[e].priority);
            priorities.max().map_or(0, u64::from)
        };
        Simulation {
            cooperative: by_core.iter().map(highest).collect(),
            by_core,
            followers,
            next: vec![0; count],
            queues: vec![VecDeque::new(); count],
            progress: vec![Progress::default(); count],
            running: vec![None; cores],
            locks: vec![Lock::default(); system.resources.len()],
            responses: vec![0; count],
            miss: None,
            events: 0,
            system,
        }
    }

    /// Longest response time of each entry in the last run, in nanoseconds; 0 if no job ended.
    pub fn responses(&self) -> &[u64] {
        &self.responses
    }

    /// The first missed deadline of the last run: the entry and the time in nanoseconds.
    pub fn miss(&self) -> Option<(usize, u64)> {
        self.miss
    }

    /// Events of all runs.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Runs the jobs until none is left or a time is reached, and records what happens on request.
    /// Returns the time of the end in nanoseconds.
    pub fn run(&mut self, jobs: &Jobs, until_ns: u64, mut record: Option<&mut Record>) -> u64 {
        self.reset();
        let mut now = 0;
        while let Some(at) = self.next_event(jobs, now).filter(|at| *at <= until_ns) {
            self.events += 1;
            self.advance(now, at, record.as_deref_mut());
            now = at;
            for core in 0..self.running.len() {
                self.boundary(core, now, jobs, record.as_deref_mut());
            }
            self.release(jobs, now);
            for core in 0..self.running.len() {
                match self.system.group(core) {
                    [_] => self.dispatch(core),
                    // The first core of a group acts for all.
                    [first, ..] if *first == core => self.dispatch_group(core),
                    _ => {}
                }
            }
        }
        // A job that is late at the end has missed its deadline, too.
        for e in 0..self.queues.len() {
            if let (Some(job), Some(deadline)) =
                (self.queues[e].front(), self.system.entries[e].deadline_ns)
                && job.arrival_ns.saturating_add(deadline) < now
            {
                self.note_miss(e, job.arrival_ns.saturating_add(deadline));
            }
        }
        now
    }

    fn reset(&mut self) {
        self.next.fill(0);
        self.queues.iter_mut().for_each(VecDeque::clear);
        self.progress.fill(Progress::default());
        self.running.fill(None);
        for lock in &mut self.locks {
            lock.holder = None;
            lock.waiting.clear();
        }
        self.responses.fill(0);
        self.miss = None;
    }

    fn note_miss(&mut self, entry: usize, at: u64) {
        if self.miss.is_none_or(|(_, first)| at < first) {
            self.miss = Some((entry, at));
        }
    }

    fn next_event(&self, jobs: &Jobs, now: u64) -> Option<u64> {
        let releases = jobs.iter().enumerate().filter_map(|(e, jobs)| {
            let follows = matches!(self.system.entries[e].activation, Activation::After(_));
            if follows { None } else { jobs.get(self.next[e]).map(|job| job.release_ns.max(now)) }
        });
        let ends = self.running.iter().flatten().filter_map(|&e| {
            let progress = &self.progress[e];
            let left = self.boundary_of(e) - progress.done;
            if progress.spins { None } else { Some(now + left) }
        });
        releases.chain(ends).min()
    }

    /// Executed time at which the running job reaches the end of a section, a chunk, or itself.
    fn boundary_of(&self, e: usize) -> u64 {
        let progress = &self.progress[e];
        let mut end = self.queues[e].front().map_or(0, |job| job.execution_ns);
        if progress.in_section {
            end = end.min(progress.section_end);
        }
        if progress.in_chunk {
            end = end.min(progress.chunk_end);
        }
        end.max(progress.done)
    }

    fn advance(&mut self, from: u64, to: u64, mut record: Option<&mut Record>) {
        for core in 0..self.running.len() {
            let Some(e) = self.running[core] else { continue };
            let progress = &mut self.progress[e];
            if !progress.spins {
                progress.done += to - from;
            }
            if let Some(record) = record.as_deref_mut().filter(|_| to > from) {
                let activity = match (progress.spins, progress.in_section) {
                    (true, _) => Activity::Spin,
                    (_, true) => Activity::Section,
                    _ => Activity::Run,
                };
                let mut last = record.spans.iter_mut().rev().take(self.running.len());
                let same = |s: &&mut Span| {
                    s.core == core && s.entry == e && s.activity == activity && s.to_ns == from
                };
                // The job before may have ended where this one begins.
                let mut ends = record.completions.iter().rev().take_while(|c| c.end_ns == from);
                let is_next = ends.any(|c| c.entry == e);
                match last.find(same).filter(|_| !is_next) {
                    Some(span) => span.to_ns = to,
                    None => record.spans.push(Span {
                        core,
                        entry: e,
                        from_ns: from,
                        to_ns: to,
                        activity,
                    }),
                }
            }
        }
    }

    /// Handles the ends that a running job has reached.
    fn boundary(&mut self, core: CoreId, now: u64, jobs: &Jobs, record: Option<&mut Record>) {
        let Some(e) = self.running[core] else { return };
        let Some(&job) = self.queues[e].front() else { return };
        let progress = self.progress[e];
        if progress.spins || progress.done < self.boundary_of(e) {
            return;
        }
        if progress.in_section && progress.done >= progress.section_end.min(job.execution_ns) {
            self.progress[e].in_section = false;
            self.progress[e].section += 1;
            self.unlock(self.system.entries[e].sections[progress.section].resource);
        }
        if progress.in_chunk && progress.done >= progress.chunk_end {
            self.progress[e].in_chunk = false;
            self.progress[e].chunk += 1;
        }
        if progress.done >= job.execution_ns {
            self.end(e, job, now, jobs);
            self.running[core] = None;
            if let Some(record) = record {
                record.completions.push(Completion { entry: e, job, end_ns: now });
            }
        }
    }

    fn end(&mut self, e: usize, job: Job, now: u64, jobs: &Jobs) {
        self.queues[e].pop_front();
        self.progress[e] = Progress::default();
        let response = now - job.arrival_ns;
        self.responses[e] = self.responses[e].max(response);
        if self.system.entries[e].deadline_ns.is_some_and(|d| response > d) {
            self.note_miss(e, now);
        }
        for f in 0..self.followers[e].len() {
            let follower = self.followers[e][f];
            let own = &jobs[follower];
            let at = self.next[follower].min(own.len().saturating_sub(1));
            let execution_ns = match own.get(at) {
                Some(job) => job.execution_ns,
                None => self.system.entries[follower].execution_ns.worst,
            };
            self.next[follower] += 1;
            self.queues[follower].push_back(Job { arrival_ns: now, release_ns: now, execution_ns });
        }
    }

    fn unlock(&mut self, resource: usize) {
        let lock = &mut self.locks[resource];
        lock.holder = None;
        if let Some(next) = lock.waiting.pop_front() {
            lock.holder = Some(next);
            self.progress[next].spins = false;
        }
    }

    fn release(&mut self, jobs: &Jobs, now: u64) {
        for (e, jobs) in jobs.iter().enumerate() {
            if matches!(self.system.entries[e].activation, Activation::After(_)) {
                continue;
            }
            while let Some(job) = jobs.get(self.next[e]).filter(|job| job.release_ns <= now) {
                self.queues[e].push_back(*job);
                self.next[e] += 1;
            }
        }
    }

    /// Rank of the oldest job of a task.
    fn rank(&self, e: usize, job: &Job) -> u64 {
        let (entry, progress) = (&self.system.entries[e], &self.progress[e]);
        let base = match self.system.policies[entry.core] {
            Policy::FixedPriority => u64::from(entry.priority),
            Policy::EarliestDeadline => {
                RANK_MAX
                    - 1
                    - job
                        .arrival_ns
                        .saturating_add(entry.deadline_ns.unwrap_or(0))
                        .min(RANK_MAX - 1)
            }
        };
        if progress.started && entry.preemption == Preemption::NonPreemptive || progress.spins {
            return RANK_MAX;
        }
        let mut rank = base;
        if progress.in_section {
            let resource = self.system.resources[entry.sections[progress.section].resource];
            rank =
                if resource.is_global { RANK_MAX } else { rank.max(u64::from(resource.ceiling)) };
        }
        match (progress.in_chunk, entry.preemption) {
            (true, Preemption::BetweenRunnables) => RANK_MAX,
            (true, _) => rank.max(self.cooperative[entry.core]),
            _ => rank,
        }
    }

    fn dispatch(&mut self, core: CoreId) {
        let mut best: Option<(u64, bool, Reverse<u64>, usize)> = None;
        for &e in &self.by_core[core] {
            let Some(job) = self.queues[e].front() else { continue };
            let key = (self.rank(e, job), self.progress[e].started, Reverse(job.release_ns), e);
            if best.is_none_or(|best| (key.0, key.1, key.2) > (best.0, best.1, best.2)) {
                best = Some(key);
            }
        }
        self.running[core] = best.map(|key| key.3);
        if let Some((.., e)) = best {
            self.continue_job(e);
        }
    }

    /// The jobs with the highest ranks run on the cores of a group. A job that runs stays on its
    /// core.
    fn dispatch_group(&mut self, core: CoreId) {
        let system = self.system;
        let group = system.group(core);
        let mut ready: Vec<_> = self.by_core[core]
            .iter()
            .filter_map(|&e| {
                let job = self.queues[e].front()?;
                let started = self.progress[e].started;
                Some((Reverse((self.rank(e, job), started, Reverse(job.release_ns))), e))
            })
            .collect();
        ready.sort_by_key(|(key, _)| *key);
        ready.truncate(group.len());
        for &c in group {
            let keeps = |e: &usize| ready.iter().any(|(_, r)| r == e);
            self.running[c] = self.running[c].filter(keeps);
        }
        for (_, e) in ready {
            if !group.iter().any(|&c| self.running[c] == Some(e)) {
                let free = group.iter().find(|&&c| self.running[c].is_none());
                if let Some(&free) = free {
                    self.running[free] = Some(e);
                }
            }
            self.continue_job(e);
        }
    }

    /// Enters the next section and the next chunk of a job that runs.
    fn continue_job(&mut self, e: usize) {
        let entry: &Entry = &self.system.entries[e];
        let Some(job) = self.queues[e].front() else { return };
        let progress = &mut self.progress[e];
        progress.started = true;
        let is_divided =
            matches!(entry.preemption, Preemption::Cooperative | Preemption::BetweenRunnables);
        if is_divided && !progress.in_chunk {
            let total: u64 = entry.chunks_ns.iter().sum();
            while progress.chunk < entry.chunks_ns.len() && !progress.in_chunk {
                let end: u64 = entry.chunks_ns.iter().take(progress.chunk + 1).sum();
                // Chunks of a shorter job are shorter by the same factor.
                let end = u128::from(end) * u128::from(job.execution_ns) / u128::from(total.max(1));
                progress.chunk_end = end as u64;
                match progress.chunk_end > progress.done {
                    true => progress.in_chunk = true,
                    false => progress.chunk += 1,
                }
            }
        }
        if progress.in_section || progress.section >= entry.sections.len() {
            return;
        }
        let section = &entry.sections[progress.section];
        progress.section_end = (progress.done + section.worst_ns).min(job.execution_ns);
        progress.in_section = true;
        if self.system.resources[section.resource].is_global {
            let lock = &mut self.locks[section.resource];
            match lock.holder {
                None => lock.holder = Some(e),
                Some(_) => {
                    lock.waiting.push_back(e);
                    progress.spins = true;
                }
            }
        }
    }
}
