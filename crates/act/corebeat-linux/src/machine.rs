//! This host, put together from its sensors and hands.

use crate::counter::{Counting, HostCounter};
use crate::exact::ExactLocks;
use crate::file::{self, Buffer};
use crate::host::{Host, HostTicks};
use crate::process::{self, Children, Process};
use crate::program::{Found, Newcomer, Program, Senses, Since};
use crate::spin::SpinSampler;
use crate::thread::{self, LookFile, Thread, now_ns};
use crate::{Error, Hands, Restored, Started, TeamChannel, state_dir, topology};
use corebeat_machine::{
    Action, Counters, HostSample, Machine, ProgramId, ProgramSample, Snapshot, Target, TeamSample, ThreadId,
    ThreadSample, Topology,
};
use rustix::time::{ClockId, clock_gettime};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;

/// So many threads are looked at in one glance, in turn: a glance costs the same however many threads there are.
const GLANCE_THREADS_MAX: usize = 16;

/// About so many threads are read in full in one observation, in turn; the others by schedstat alone, which is exact but
/// does not say how run time and switches are to be split: that is taken from their last full reading.
const FULL_READINGS: usize = 32;

/// What others kept busy is told of spans of so many ticks or more: it is accounted by ticks.
const TICKS_MIN: f64 = 5.0;

/// The host's CPUs are counted once this has watched for so long, and the threads of some program wait for CPUs for at
/// least [`COUNT_LATENCY_MIN`] of their time: policies compare what gets done then. The kernel takes some 140 ms
/// of CPU time to begin with it, half a per cent of so long a run.
const COUNT_AFTER_NS: u64 = 20_000_000_000;
const COUNT_LATENCY_MIN: f64 = 0.05;

/// So many notes are kept: what goes wrong with one new thread may go wrong with thousands.
const NOTES_MAX: usize = 16;

/// What to look at beyond what costs next to nothing, and where to keep the journal.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Options {
    /// Count cache references, cache misses and instructions of threads that switch rarely enough for it. In a virtual
    /// machine, where that would slow them down, of the host's CPUs as wholes, after a while and where threads wait for
    /// CPUs, or as soon as [`LinuxMachine::count_host`] says.
    pub counters: bool,
    /// Find out which threads spin, by samples of where they run.
    pub spin: bool,
    /// Time futex waits exactly, by BPF, rather than by glances. Programs that block very often get a little slower.
    pub exact_locks: bool,
    /// Wait for no other Corebeat: see [`Hands::never_wait`].
    pub never_waits: bool,
    /// Where changes are noted before they are made; [`state_dir`] if it is not given.
    pub state_dir: Option<PathBuf>,
}

/// The Linux host that this program runs on.
pub struct LinuxMachine {
    topology: Topology,
    senses: Senses,
    descriptors_max: usize,
    host: Host,
    programs: BTreeMap<ProgramId, Program>,
    next_program: u32,
    /// When the last observation was made, and what the host showed then.
    at_ns: u64,
    ticks: Option<HostTicks>,
    own_cpu_ns: u64,
    /// The newest process numbers at the last two searches for new threads; while they stay there are none.
    newest: [Option<u64>; 2],
    /// Where the next glance goes on, in the order of all threads.
    glance_next: usize,
    /// How many observations there were.
    turn: usize,
    spin: Option<SpinSampler>,
    /// By thread, the part of its newest samples that was spinning.
    spin_parts: HashMap<ThreadId, f64>,
    start_ns: u64,
    /// Whether the host's CPUs are to be counted once there is use for it, and their counters from then on.
    counts_host: bool,
    counter: Option<HostCounter>,
    exact: Option<ExactLocks>,
    /// By thread number, how long it has been blocked in futex calls up to the last observation.
    exact_ns: HashMap<i32, u64>,
    hands: Option<Hands>,
    never_waits: bool,
    state_dir: Option<PathBuf>,
    teams: Option<TeamChannel>,
    notes: Vec<String>,
}

impl LinuxMachine {
    /// This host, with nothing watched yet.
    ///
    /// Raises the soft limit of open files to the hard one, for this process: a watched thread takes a few descriptors
    /// where there are enough of them.
    ///
    /// # Errors
    /// [`Error::Read`] where there is no `/proc`. What else is missing is `None` in the snapshots, and
    /// [`notes`](Self::notes) says so.
    pub fn new(options: Options) -> Result<Self, Error> {
        let own = "/proc/self/stat";
        std::fs::metadata(own).map_err(|source| Error::Read { path: own.into(), source })?;
        let mut notes = Vec::new();
        let mut missing = |what: &str, why: &dyn std::fmt::Display| notes.push(format!("{what}: {why}"));
        let counting = options.counters.then(|| Counting::probe().ok()).flatten();
        let spin = options.spin.then(SpinSampler::new).transpose();
        let spin = spin.map_err(|e| missing("spin time is not seen", &e));
        let exact = options.exact_locks.then(ExactLocks::attach).transpose();
        let exact = exact.map_err(|e| missing("lock time is sampled", &e));
        let descriptors_max = file::descriptors_max();
        let mut machine = LinuxMachine {
            topology: topology::topology(),
            senses: Senses {
                buffer: Buffer::new(),
                look_file: LookFile::of_this_kernel(),
                counting,
                descriptors_left: descriptors_max,
            },
            descriptors_max,
            host: Host::new(),
            programs: BTreeMap::new(),
            next_program: 0,
            at_ns: now_ns(),
            ticks: None,
            own_cpu_ns: own_cpu_ns(),
            newest: [None; 2],
            glance_next: 0,
            turn: 0,
            spin: spin.ok().flatten(),
            spin_parts: HashMap::new(),
            start_ns: now_ns(),
            counts_host: options.counters && counting.is_none(),
            counter: None,
            exact: exact.ok().flatten(),
            exact_ns: HashMap::new(),
            hands: None,
            never_waits: options.never_waits,
            state_dir: options.state_dir,
            teams: None,
            notes,
        };
        machine.ticks = machine.host.ticks(&mut machine.senses.buffer);
        Ok(machine)
    }

    /// Watches a process and all its descendants, those to come included. A process that is watched already, as a part
    /// of another program, moves over to the new one together with those of its descendants that nobody watches yet.
    ///
    /// # Errors
    /// [`Error::NoProcess`], and [`Error::Denied`] where `/proc` hides it.
    pub fn watch(&mut self, pid: i32) -> Result<ProgramId, Error> {
        self.begin(pid, false)
    }

    /// Watches a program that is held right before its first instruction, or was just released: from its beginning, and
    /// with the orphans among its processes, if it is started so that they become children of this process.
    ///
    /// # Errors
    /// As [`watch`](Self::watch).
    pub fn watch_launch(&mut self, started: &Started) -> Result<ProgramId, Error> {
        let subreaper = rustix::process::child_subreaper().is_ok_and(|s| s.is_some());
        self.begin(started.pid(), subreaper)
    }

    /// Hands over the channel to the OpenMP teams of the program that is started with its environment.
    pub fn set_teams(&mut self, channel: TeamChannel) {
        self.teams = Some(channel);
    }

    /// Counts cache references, misses and instructions of the host's CPUs from now on, if counters were asked for and
    /// single threads cannot be counted.
    pub fn count_host(&mut self) {
        if !std::mem::take(&mut self.counts_host) {
            return;
        }
        match HostCounter::open(self.topology.cpus().iter().map(|c| c.id)) {
            Ok(counter) => self.counter = Some(counter),
            // Most virtual machines.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                self.notes.push(
                    "cache misses and instructions are not counted: this machine has no counters for them"
                        .into(),
                );
            }
            Err(e) => self.notes.push(format!("cache misses and instructions are not counted: {e}")),
        }
    }

    /// Stops watching a program. What was done to it stays until [`restore`](Self::restore).
    pub fn unwatch(&mut self, program: ProgramId) {
        self.programs.remove(&program);
    }

    /// Acts only upon those threads of a program that are this user's, from now on. Threads that change their user while
    /// something is done to them have it undone, with all that was done to the program.
    pub fn set_owner(&mut self, program: ProgramId, uid: u32) {
        if let Some(program) = self.programs.get_mut(&program) {
            program.owner = Some(uid);
        }
    }

    /// Stops watching a program, and undoes what was done to it.
    pub fn let_go(&mut self, program: ProgramId) -> Restored {
        self.programs.remove(&program);
        self.hands.as_mut().map(|hands| hands.let_go(program)).unwrap_or_default()
    }

    /// Whether a process of the program still runs. A process that nobody has waited for yet has ended.
    pub fn is_alive(&self, program: ProgramId) -> bool {
        self.programs.get(&program).is_some_and(|p| p.processes.iter().any(Process::is_alive))
    }

    /// How many threads the program had at the last observation.
    pub fn thread_count(&self, program: ProgramId) -> usize {
        self.programs.get(&program).map_or(0, |p| p.threads().count())
    }

    /// Sends a signal to every process of the program, by libc's number. Processes that have ended are left out.
    pub fn signal(&self, program: ProgramId, signal: i32) {
        let processes = self.programs.get(&program).into_iter().flat_map(|p| &p.processes);
        processes.for_each(|p| p.signal(signal));
    }

    /// What cannot be seen here although it was asked for, and what went wrong so far; one line each.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = self.notes.clone();
        if let Some(spin) = &self.spin {
            let told = [
                (spin.lost(), "were lost, because nobody looked in time"),
                (spin.unread(), "are left out, because the code there could not be read"),
            ];
            let told = told.into_iter().filter(|&(count, _)| count > 0);
            notes.extend(told.map(|(count, why)| format!("spin time: {count} samples {why}")));
        }
        let why = self.hands.as_ref().and_then(Hands::signals_why);
        notes.extend(why.map(|why| {
            format!(
                "programs are not frozen but stopped by signals, which they and their parents can see: {why}"
            )
        }));
        notes
    }

    /// Undoes all that was done. The same happens when the machine is dropped.
    pub fn restore(&mut self) -> Restored {
        if let Some(channel) = &self.teams {
            // The only size that is refused is 0.
            let _ = channel.set_size(None, None);
        }
        self.hands.as_mut().map(Hands::undo_all).unwrap_or_default()
    }

    fn begin(&mut self, pid: i32, takes_orphans: bool) -> Result<ProgramId, Error> {
        let process = Process::open(pid, true)?;
        let process = self.take(process.id).unwrap_or(process);
        let id = ProgramId(self.next_program);
        self.next_program += 1;
        let mut name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.truncate(name.trim_end_matches('\n').len());
        self.programs.insert(id, Program::new(name, process, takes_orphans));
        self.walk_over(&[id], Since::Now);
        // The other programs may have new threads as well: search again soon.
        self.newest = [None; 2];
        Ok(id)
    }

    /// The process out of the program that it belongs to.
    fn take(&mut self, wanted: ThreadId) -> Option<Process> {
        self.programs.values_mut().find_map(|program| program.take(wanted))
    }

    fn count_descriptors(&mut self) {
        let watched: usize =
            self.programs.values().flat_map(|p| &p.processes).map(|p| p.threads.len() + 1).sum();
        let taken = watched.saturating_mul(self.senses.descriptors_per_thread());
        self.senses.descriptors_left = self.descriptors_max.saturating_sub(taken);
    }

    /// Looks for new threads and processes of these programs by walking over those that are known.
    fn walk_over(&mut self, ids: &[ProgramId], since: Since) -> BTreeMap<ProgramId, Vec<Found>> {
        self.count_descriptors();
        let mut claimed: HashSet<i32> =
            self.programs.values().flat_map(|p| &p.processes).map(|p| p.id.tid).collect();
        let children = Children::now();
        let walk = |&id: &ProgramId| {
            let program = self.programs.get_mut(&id)?;
            Some((id, program.walk(&mut claimed, &children, since, &mut self.senses)))
        };
        ids.iter().filter_map(walk).collect()
    }

    /// Looks for new threads and processes of all programs, which are accounted for from `since_ns` on.
    ///
    /// Numbers are given out in ascending order, so where fewer of them than there are threads were given out since the
    /// last search but one, those are looked at; where more were, or where the count began anew, all programs are walked
    /// over. Since the last but one: who gets a number can be seen only a while later.
    fn search(&mut self, newest: Option<u64>, since_ns: u64) -> BTreeMap<ProgramId, Vec<Found>> {
        let since = Since::Birth(since_ns);
        let threads = self.programs.values().map(|p| p.threads().count()).sum::<usize>() as u64;
        let [before, last] = self.newest;
        self.newest = [last, newest];
        match before.zip(newest) {
            Some((before, now)) if before == now => BTreeMap::new(),
            Some((before, now)) if before < now && now - before <= threads => {
                self.count_descriptors();
                let mut found: BTreeMap<ProgramId, Vec<Found>> = BTreeMap::new();
                for tid in before + 1..=now {
                    let newcomer =
                        i32::try_from(tid).ok().and_then(|t| Newcomer::read(t, &mut self.senses.buffer));
                    if let Some((id, thread)) = newcomer.and_then(|n| self.welcome(n, since)) {
                        found.entry(id).or_default().push(thread);
                    }
                }
                found
            }
            _ => {
                let ids: Vec<ProgramId> = self.programs.keys().copied().collect();
                self.walk_over(&ids, since)
            }
        }
    }

    /// Gives a newcomer to the program that its process or its parent belongs to.
    fn welcome(&mut self, newcomer: Newcomer, since: Since) -> Option<(ProgramId, Found)> {
        let Newcomer { tid, pid, parent } = newcomer;
        let own = std::process::id() as i32;
        let senses = &mut self.senses;
        let place = |program: &Program, pid| program.processes.iter().position(|p| p.id.tid == pid);
        for (&id, program) in &mut self.programs {
            if let Some(place) = place(program, pid) {
                return Some((id, program.add_thread(place, tid, since, senses)?));
            }
        }
        // A parent that has ended is another one of the same number.
        let is_parent = |p: &Program| place(p, parent).is_some_and(|at| p.processes[at].is_alive());
        let belongs = |p: &Program| is_parent(p) || (p.takes_orphans && parent == own);
        let (id, program) = self.programs.iter_mut().find(|(_, p)| tid == pid && belongs(p))?;
        let place = program.add_process(pid, senses)?;
        Some((*id, program.add_thread(place, tid, since, senses)?))
    }

    /// Looks where threads run.
    fn look_at_spin(&mut self) {
        let Some(spin) = &mut self.spin else { return };
        let pids: HashSet<i32> =
            self.programs.values().flat_map(|p| &p.processes).map(|p| p.id.tid).collect();
        let threads = self.programs.values().flat_map(Program::threads);
        let running = threads.filter(|t| !t.is_quiet()).map(|t| t.id.tid);
        spin.look(|pid| pids.contains(&pid), running);
    }

    /// Replaces sampled lock times by exact ones.
    fn observe_exact_locks(&mut self, programs: &mut [ProgramSample]) {
        // Where the kernel does not give its counts out this time, the sampled times stand.
        let Some(Ok(now_ns)) = self.exact.as_mut().map(ExactLocks::read) else { return };
        let before_ns = std::mem::replace(&mut self.exact_ns, now_ns);
        for thread in programs.iter_mut().flat_map(|p| &mut p.threads) {
            let blocked_ns = |all: &HashMap<i32, u64>| all.get(&thread.id.tid).copied().unwrap_or(0);
            let lock_ns = blocked_ns(&self.exact_ns).saturating_sub(blocked_ns(&before_ns));
            if let Some(blocked) = thread.shares.blocked().filter(|_| thread.span_ns > 0) {
                let lock = (lock_ns as f64 / thread.span_ns as f64).min(blocked);
                thread.shares.lock = Some(lock);
                thread.shares.sleep = Some(blocked - lock);
            }
        }
    }

    /// Fills in which part of its time each thread spent spinning.
    fn observe_spin(&mut self, programs: &mut [ProgramSample]) {
        self.look_at_spin();
        let Some(spin) = &mut self.spin else { return };
        let (unsampled_ns_max, samples) = (spin.unsampled_ns_max(), spin.take());
        let before = std::mem::take(&mut self.spin_parts);
        for thread in programs.iter_mut().flat_map(|p| &mut p.threads) {
            let new = samples.get(&thread.id.tid).filter(|s| s.seen > 0);
            let part = new.map(|s| f64::from(s.spinning) / f64::from(s.seen));
            let part = part.or(before.get(&thread.id).copied());
            self.spin_parts.extend(part.map(|p| (thread.id, p)));
            thread.shares.spin = thread.shares.user.and_then(|user| {
                let hardly_ran = user * thread.span_ns as f64 <= unsampled_ns_max;
                part.or(hardly_ran.then_some(0.0)).map(|p| user * p)
            });
        }
    }

    fn observe_host(&mut self, span_ns: u64, own_ticks: u64, programs: &[ProgramSample]) -> HostSample {
        let ticks = self.host.ticks(&mut self.senses.buffer);
        let own_cpu_ns = own_cpu_ns();
        let tick_ns = 1e9 / thread::ticks_per_s() as f64;
        // Where Corebeat is watched itself, its time is the program's already.
        let own_pid = std::process::id() as i32;
        let watched = self.programs.values().flat_map(|p| &p.processes).any(|p| p.id.tid == own_pid);
        let ourselves = if watched { 0.0 } else { own_cpu_ns.saturating_sub(self.own_cpu_ns) as f64 };
        let others_busy =
            ticks.zip(self.ticks).filter(|_| span_ns as f64 >= TICKS_MIN * tick_ns).map(|(now, before)| {
                let busy = now.busy.saturating_sub(before.busy).saturating_sub(own_ticks) as f64 * tick_ns;
                ((busy - ourselves) / span_ns as f64).clamp(0.0, self.topology.cpus().len() as f64)
            });
        let own_runnable: Option<f64> =
            programs.iter().map(|p| p.cpus(span_ns, |s| Some(s.running()? + s.latency?))).sum();
        let runnable = self.host.take_runnable();
        (self.ticks, self.own_cpu_ns) = (ticks, own_cpu_ns);
        let counted = self.counter.as_mut().map(HostCounter::take).unwrap_or_default();
        let counters = Counters {
            cache_references: counted.references,
            cache_misses: counted.misses,
            instructions: counted.instructions,
            ..Counters::default()
        };
        HostSample {
            others_busy,
            others_runnable: runnable.zip(own_runnable).map(|(all, own)| (all - own).max(0.0)),
            counters,
        }
    }

    /// What the OpenMP teams did, by process.
    fn observe_teams(&mut self) -> HashMap<i32, TeamSample> {
        self.teams.as_mut().map(|t| t.samples().into_iter().collect()).unwrap_or_default()
    }
}

impl Machine for LinuxMachine {
    type Error = Error;

    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn observe(&mut self) -> Result<Snapshot, Error> {
        let before_ns = self.at_ns;
        let newest = self.host.sample(&mut self.senses.buffer);
        let buffer = &mut self.senses.buffer;
        let awake = self.programs.values().flat_map(Program::threads).filter(|t| !t.is_quiet()).count();
        let every = awake.div_ceil(FULL_READINGS).max(1);
        self.turn = self.turn.wrapping_add(1);
        let mut count = self.turn;
        let mut full = || {
            count = count.wrapping_add(1);
            count.is_multiple_of(every)
        };
        let mut threads: BTreeMap<ProgramId, Vec<ThreadSample>> =
            self.programs.iter_mut().map(|(&id, p)| (id, p.observe(&mut full, buffer))).collect();
        for (id, found) in self.search(newest, before_ns) {
            let samples = self.meet(id, &found);
            threads.entry(id).or_default().extend(samples);
        }
        let mut teams = self.observe_teams();

        let mut own_ticks = 0u64;
        let mut programs = Vec::with_capacity(self.programs.len());
        for (&id, program) in &mut self.programs {
            let mut threads = threads.remove(&id).unwrap_or_default();
            threads.sort_by_key(|t| t.id);
            // A program goes by the name of its first process's first thread, which changes when another is executed.
            let first = program.processes.first().and_then(|p| threads.iter().find(|t| t.id == p.id));
            if let Some(first) = first
                && first.name != program.name
            {
                program.name = first.name.clone();
            }
            let team = busiest(program.processes.iter().filter_map(|p| teams.remove(&p.id.tid)));
            let (io_bytes, cpu_ticks) = program.progress(&mut self.senses.buffer);
            own_ticks = own_ticks.saturating_add(cpu_ticks);
            programs.push(ProgramSample {
                id,
                name: program.name.clone(),
                threads,
                io_bytes,
                team,
                pulse: None,
            });
        }
        self.observe_exact_locks(&mut programs);
        self.observe_spin(&mut programs);
        let waits = |p: &ProgramSample| p.mean(|s| s.latency).is_some_and(|l| l >= COUNT_LATENCY_MIN);
        if self.counts_host && self.at_ns > self.start_ns + COUNT_AFTER_NS && programs.iter().any(waits) {
            self.count_host();
        }

        self.at_ns = now_ns();
        let span_ns = self.at_ns - before_ns;
        let host = self.observe_host(span_ns, own_ticks, &programs);
        Ok(Snapshot { at_ns: self.at_ns, span_ns, host, programs })
    }

    fn glance(&mut self) {
        self.host.sample(&mut self.senses.buffer);
        self.look_at_spin();
        let threads = self.programs.values_mut().flat_map(Program::threads_mut);
        let mut threads: Vec<&mut Thread> = threads.filter(|t| !t.is_quiet()).collect();
        let count = threads.len();
        for turn in 0..count.min(GLANCE_THREADS_MAX) {
            threads[(self.glance_next + turn) % count].glance(&mut self.senses.buffer);
        }
        self.glance_next = (self.glance_next + GLANCE_THREADS_MAX) % count.max(1);
    }

    fn act(&mut self, action: &Action) -> Result<(), Error> {
        self.apply(action).map(drop)
    }
}

impl LinuxMachine {
    /// As [`Machine::act`], and tells whether anything has changed by it.
    ///
    /// # Errors
    /// As [`Hands::apply`].
    pub fn apply(&mut self, action: &Action) -> Result<bool, Error> {
        let id = match action {
            Action::SetCpus { target, .. }
            | Action::SetSlice { target, .. }
            | Action::SetClass { target, .. }
            | Action::SetNice { target, .. } => match *target {
                Target::Program(id) => Some(id),
                Target::Thread(thread) => self.program_of(thread),
            },
            Action::SetWeight { program, .. }
            | Action::SetQuota { program, .. }
            | Action::SetFrozen { program, .. }
            | Action::MovePages { program, .. }
            | Action::SpreadPages { program, .. }
            | Action::SetTeam { program, .. } => Some(*program),
        };
        // A target that has ended is no error.
        let Some((id, program)) = id.and_then(|id| Some((id, self.programs.get(&id)?))) else {
            return Ok(false);
        };
        if let Action::SetTeam { size, .. } = action {
            let channel = self.teams.as_ref().ok_or_else(|| Error::Missing {
                what: "the thread count of a running program".into(),
                how: "start it by 'corebeat run' with a policy that sizes teams".into(),
            })?;
            return channel.set_size(None, *size).map(|()| true);
        }
        let owner = program.owner;
        let is_anothers = |t: &ThreadId| owner.is_some_and(|uid| process::is_anothers(t.tid, uid));
        let denied = || Error::Denied {
            what: format!("act upon '{}', which runs as another user", program.name),
            source: std::io::ErrorKind::PermissionDenied.into(),
        };
        let threads: Vec<ThreadId> = program.threads().map(|t| t.id).filter(|t| !is_anothers(t)).collect();
        let meant = match action {
            Action::SetCpus { target: Target::Thread(thread), .. }
            | Action::SetSlice { target: Target::Thread(thread), .. }
            | Action::SetClass { target: Target::Thread(thread), .. }
            | Action::SetNice { target: Target::Thread(thread), .. } => threads.contains(thread),
            _ => !threads.is_empty() || program.threads().next().is_none(),
        };
        if !meant {
            return Err(denied());
        }
        let hands = match &mut self.hands {
            Some(hands) => hands,
            none => {
                let hands = none.insert(Hands::new(match &self.state_dir {
                    Some(dir) => dir.clone(),
                    None => state_dir()?,
                }));
                if self.never_waits {
                    hands.never_wait();
                }
                hands
            }
        };
        let has_changed = hands.apply(action, id, &threads)?;
        if threads.iter().any(is_anothers) {
            hands.let_go(id);
            return Err(denied());
        }
        Ok(has_changed)
    }

    fn program_of(&self, thread: ThreadId) -> Option<ProgramId> {
        let has = |p: &&Program| p.threads().any(|t| t.id == thread);
        self.programs.iter().find(|(_, p)| has(p)).map(|(&id, _)| id)
    }

    /// What new threads of a program did so far. What was set for the program is set for them too.
    fn meet(&mut self, id: ProgramId, found: &[Found]) -> Vec<ThreadSample> {
        let Some(program) = self.programs.get_mut(&id).filter(|_| !found.is_empty()) else {
            return Vec::new();
        };
        let samples = program.observe_found(found, &mut self.senses.buffer);
        if let Some(hands) = &mut self.hands {
            let is_anothers =
                |t: &ThreadId| program.owner.is_some_and(|uid| process::is_anothers(t.tid, uid));
            let new: Vec<ThreadId> = samples.iter().map(|s| s.id).filter(|t| !is_anothers(t)).collect();
            if let Err(e) = hands.adopt(id, &new) {
                let note = format!("new threads of {} do not get what was set for it: {e}", program.name);
                if self.notes.len() < NOTES_MAX && !self.notes.contains(&note) {
                    self.notes.push(note);
                }
            }
        }
        samples
    }
}

/// The team whose regions took most time: a program may have helpers that are started with the same environment.
fn busiest(teams: impl Iterator<Item = TeamSample>) -> Option<TeamSample> {
    teams.max_by_key(|t| (t.regions.iter().map(|r| r.time_ns).fold(0, u64::saturating_add), t.size_max))
}

/// CPU time of this process, in nanoseconds.
fn own_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use corebeat_machine::TimeShares;
    use std::process::{Child, Command};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Mutex, mpsc};
    use std::thread::sleep;
    use std::time::Duration;

    /// A process that is ended when dropped, with all that it started: they read from its pipe.
    struct Running(Child);

    impl Running {
        fn shell(script: &str) -> Self {
            let stdin = std::process::Stdio::piped();
            Running(Command::new("sh").args(["-c", script]).stdin(stdin).spawn().unwrap())
        }

        fn pid(&self) -> i32 {
            self.0.id() as i32
        }
    }

    impl Drop for Running {
        fn drop(&mut self) {
            drop(self.0.stdin.take());
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn machine() -> LinuxMachine {
        LinuxMachine::new(Options { counters: true, spin: true, ..Options::default() }).unwrap()
    }

    /// Observes, with glances between, until what was seen is as it should be.
    fn until(machine: &mut LinuxMachine, mut right: impl FnMut(&Snapshot) -> bool) -> bool {
        (0..100).any(|_| {
            for _ in 0..5 {
                sleep(Duration::from_millis(10));
                machine.glance();
            }
            right(&machine.observe().unwrap())
        })
    }

    fn tid() -> i32 {
        rustix::thread::gettid().as_raw_nonzero().get()
    }

    /// Waits until the machine, which watches nothing else, has seen a child of this program.
    fn child_of(program: &Running, machine: &mut LinuxMachine) -> i32 {
        let mut child = None;
        assert!(until(machine, |seen| {
            child = seen.programs[0].threads.iter().map(|t| t.pid).find(|&pid| pid != program.pid());
            child.is_some()
        }));
        child.unwrap()
    }

    fn kill(pid: i32) {
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }

    #[test]
    fn machine_shares_of_threads_that_lock_sleep_and_compute_point_the_right_way() {
        let (lock, stop) = (Mutex::new(()), AtomicBool::new(false));
        let held = lock.lock().unwrap();
        std::thread::scope(|scope| {
            let (said, heard) = mpsc::channel();
            for work in ["lock", "sleep", "compute"] {
                let (said, lock, stop) = (said.clone(), &lock, &stop);
                scope.spawn(move || {
                    said.send((work, tid())).unwrap();
                    let _keeps = (work == "lock").then(|| lock.lock());
                    while !stop.load(Ordering::Relaxed) {
                        match work {
                            "sleep" => sleep(Duration::from_millis(1)),
                            _ => std::hint::spin_loop(),
                        }
                    }
                });
            }
            let tids: BTreeMap<&str, i32> = heard.iter().take(3).collect();

            let mut machine = machine();
            machine.watch(std::process::id() as i32).unwrap();
            let right = until(&mut machine, |seen| {
                let shares = |work| -> Option<TimeShares> {
                    Some(seen.programs[0].threads.iter().find(|t| t.id.tid == tids[work])?.shares)
                };
                let points = || {
                    let (lock, sleep, compute) = (shares("lock")?, shares("sleep")?, shares("compute")?);
                    Some(
                        lock.lock? > 0.9
                            && sleep.sleep? > sleep.lock?
                            && sleep.sleep? > sleep.running()?
                            && compute.running()? + compute.latency? > 0.9
                            && compute.user? > compute.system?,
                    )
                };
                points() == Some(true)
            });
            stop.store(true, Ordering::Relaxed);
            drop(held);
            assert!(right);
        });
    }

    #[test]
    fn machine_known_shares_of_every_thread_add_up_to_1() {
        let mut machine = machine();
        machine.watch(std::process::id() as i32).unwrap();
        let mut seen = 0;
        assert!(until(&mut machine, |snapshot| {
            for thread in &snapshot.programs[0].threads {
                let s = thread.shares;
                if let Some(sum) =
                    [s.user, s.system, s.lock, s.latency, s.sleep].into_iter().sum::<Option<f64>>()
                {
                    assert!((sum - 1.0).abs() < 1e-9, "{s:?}");
                    seen += 1;
                }
                assert!(thread.span_ns <= snapshot.span_ns + 100_000_000);
            }
            seen >= 10
        }));
    }

    #[test]
    fn machine_finds_threads_and_processes_that_come_later() {
        let program = Running::shell("read x; sleep 30 & sleep 30 & wait");
        let mut machine = machine();
        let id = machine.watch(program.pid()).unwrap();
        assert_eq!(machine.observe().unwrap().programs[0].threads.len(), 1);
        std::io::Write::write_all(&mut program.0.stdin.as_ref().unwrap(), b"go\n").unwrap();
        assert!(until(&mut machine, |seen| {
            let pids: HashSet<i32> = seen.programs[0].threads.iter().map(|t| t.pid).collect();
            pids.len() == 3
        }));
        assert!(machine.is_alive(id));
        // The shell's children outlive it otherwise.
        for process in &machine.programs[&id].processes {
            kill(process.id.tid);
        }
    }

    #[test]
    fn machine_finds_who_had_a_number_before_it_could_be_seen() {
        let program = Running::shell("sleep 30; read x");
        let mut machine = machine();
        let id = machine.watch(program.pid()).unwrap();
        let child = child_of(&program, &mut machine);
        // As if it could not be seen then, but had its number.
        machine.programs.get_mut(&id).unwrap().processes.retain(|p| p.id.tid != child);
        let number = child as u64;
        machine.newest = [number - 1, number].map(Some);
        machine.search(Some(number), 0);
        assert!(machine.programs[&id].processes.iter().any(|p| p.id.tid == child));
        kill(child);
    }

    #[test]
    fn machine_keeps_who_leaves_its_parents_once_it_was_seen() {
        let _alone = crate::hand::tests::alone();
        let dir = tempfile::tempdir().unwrap();
        let program = Running::shell("(sleep 30 & read x); read y");
        let options = Options { state_dir: Some(dir.path().into()), ..Options::default() };
        let mut machine = LinuxMachine::new(options).unwrap();
        let id = machine.watch(program.pid()).unwrap();
        let mut pids = HashSet::new();
        let mut until_there_are = |machine: &mut LinuxMachine, count| {
            assert!(until(machine, |seen| {
                pids = seen.programs[0].threads.iter().map(|t| t.pid).collect();
                pids.len() == count
            }));
            pids.clone()
        };
        until_there_are(&mut machine, 3);
        std::io::Write::write_all(&mut program.0.stdin.as_ref().unwrap(), b"go\n").unwrap();
        let mut left = until_there_are(&mut machine, 2);
        left.remove(&program.pid());
        let orphan = *left.iter().next().unwrap();
        let class = Some(corebeat_machine::Class::Batch);
        machine.act(&Action::SetClass { target: Target::Program(id), class }).unwrap();
        let class_now = || {
            let stat = std::fs::read_to_string(format!("/proc/{orphan}/stat")).unwrap();
            stat.split(' ').nth(40).unwrap().to_owned()
        };
        assert_eq!(class_now(), "3", "batch");
        assert_eq!(machine.let_go(id).undone.len(), 2);
        assert_eq!(class_now(), "0");
        kill(orphan);
    }

    #[test]
    fn machine_program_that_has_ended_is_no_error() {
        let mut program = Running::shell("read x");
        let mut machine = machine();
        let id = machine.watch(program.pid()).unwrap();
        assert!(machine.is_alive(id));
        program.0.kill().unwrap();
        assert!(until(&mut machine, |seen| seen.programs[0].threads.is_empty()));
        assert!(!machine.is_alive(id));
        program.0.wait().unwrap();
        machine.observe().unwrap();
        machine.unwatch(id);
        assert!(machine.observe().unwrap().programs.is_empty());
        assert!(matches!(machine.watch(program.pid()), Err(Error::NoProcess { .. })));
    }

    #[test]
    fn machine_acts_upon_no_thread_of_another_user() {
        let _alone = crate::hand::tests::alone();
        let program = Running::shell("read x");
        let dir = tempfile::tempdir().unwrap();
        let options = Options { state_dir: Some(dir.path().into()), ..Options::default() };
        let mut machine = LinuxMachine::new(options).unwrap();
        let id = machine.watch(program.pid()).unwrap();
        let batch =
            Action::SetClass { target: Target::Program(id), class: Some(corebeat_machine::Class::Batch) };
        let uid = rustix::process::geteuid().as_raw();
        machine.set_owner(id, uid + 1);
        let denied = machine.act(&batch).unwrap_err();
        assert!(denied.to_string().contains("another user"), "{denied}");
        machine.set_owner(id, uid);
        machine.act(&batch).unwrap();
        assert_eq!(machine.let_go(id).undone.len(), 1);
        assert!(machine.observe().unwrap().programs.is_empty());
    }

    #[test]
    fn machine_watching_a_part_of_a_program_takes_it_out() {
        let program = Running::shell("sleep 30; read x");
        let mut machine = machine();
        let whole = machine.watch(program.pid()).unwrap();
        let child = child_of(&program, &mut machine);
        let part = machine.watch(child).unwrap();
        let seen = machine.observe().unwrap();
        let threads = |id| seen.programs.iter().find(|p| p.id == id).unwrap().threads.len();
        assert_eq!((threads(whole), threads(part)), (1, 1));
        kill(child);
    }

    #[test]
    fn machine_of_this_host_knows_others_and_bytes() {
        let mut machine = machine();
        machine.watch(std::process::id() as i32).unwrap();
        assert!(until(&mut machine, |seen| {
            seen.host.others_busy.is_some()
                && seen.host.others_runnable.is_some()
                && seen.programs[0].io_bytes.is_some_and(|b| b > 0)
        }));
    }
}
