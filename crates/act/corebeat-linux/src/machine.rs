//! The Linux host as a machine.

mod actuators;
mod sensors;
#[cfg(test)]
mod tests;
mod watched;

use crate::counter::Counting;
use crate::file::{self, Buffer};
use crate::process::{self, Process};
use crate::program::{Program, Reach, Reader, Remaining, Since};
use crate::spin::{Function, SpinFunction, SpinTimes};
use crate::thread::{Thread, now_ns};
use crate::{Allowance, Error, Started, TeamChannel, topology};
use actuators::Actuators;
use corebeat_machine::{
    Action, Coscheduler, CpuId, CpuSet, Effect, Machine, ProgramId, ProgramSample, Restored,
    Scheduler, Snapshot, TeamSample, ThreadId, ThreadSample, ThreadTable, Topology, Turns,
};
pub use sensors::LOCKS_SAMPLED;
use sensors::Sensors;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use watched::Watched;

/// Greatest number of threads that one sample reads, in turn. The bound makes the cost of a sample
/// independent of the number of threads.
const SAMPLE_THREADS_MAX: usize = 16;

/// Approximate number of threads that one observation reads in full, in turn. Of the other
/// threads, an observation reads schedstat alone, which is exact but does not split run time and
/// switches; the split comes from the last full reading.
const FULL_READINGS: usize = 32;

/// Host counters start after this time if the threads of a program wait for CPUs for at least
/// [`COUNT_WAIT_MIN`] of their time; policies compare throughput then. The kernel needs about
/// 140 ms of CPU time to start them: half a per cent of a run of this length.
const COUNT_AFTER_NS: u64 = 20_000_000_000;
const COUNT_WAIT_MIN: f64 = 0.05;

/// Number of notes that are kept. An error of one new thread may repeat for thousands.
const NOTES_MAX: usize = 16;

/// Optional sensors, and the place of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Options {
    /// Count cache references, cache misses and instructions of threads that switch rarely. In a
    /// virtual machine, where per-thread counters slow the threads down, count on the CPUs of the
    /// host instead: after a while if threads wait for CPUs, or when the caller requests it
    /// ([`LinuxMachine::count_host`]).
    pub counters: bool,
    /// Detect threads that spin, by sampling their instruction pointers.
    pub spin: bool,
    /// Measure futex waits exactly, by BPF, instead of sampling them. Programs that block very
    /// often become slightly slower.
    pub exact_locks: bool,
    /// Restrict the topology to the CPUs on which this process may run ([`Allowance`]), for a
    /// machine whose programs are started by this process.
    pub allowed_cpus: bool,
    /// Never wait for another Corebeat: see [`Actuator::set_nonblocking`](crate::Actuator).
    pub nonblocking: bool,
    /// Refuse to freeze a program that can have no control groups, instead of stopping the program
    /// by signals, which it can observe.
    pub freezes_by_groups_only: bool,
    /// Folder of the journal; [`state_dir`](crate::state_dir) by default.
    pub state_dir: Option<PathBuf>,
}

/// The Linux host on which this process runs.
pub struct LinuxMachine {
    /// CPUs for programs.
    topology: Topology,
    /// All CPUs of the host.
    host_cpus: CpuSet,
    reader: Reader,
    /// This process.
    own: Process,
    watched: Watched,
    sensors: Sensors,
    actuators: Actuators,
    /// Time of the last observation.
    at_ns: u64,
    start_ns: u64,
    /// Number of samples.
    samples: usize,
    /// Whether some threads may have no row in a table of the kernel, and need samples.
    needs_samples: bool,
    /// Number of observations.
    observations: usize,
    notes: Vec<String>,
    /// The limit of open files, if an observation had no free descriptor: threads and processes are
    /// missing in the snapshots then.
    exhausted_limit: Option<u64>,
}

impl LinuxMachine {
    /// Creates the machine of this host, which watches no program.
    ///
    /// Raises the soft limit of open files of this process to the hard limit: a watched thread
    /// keeps a few descriptors open if the limit permits.
    ///
    /// # Errors
    /// [`Error::Read`] if `/proc` is not mounted, [`Error::Unsupported`] if `/proc` belongs to
    /// another PID namespace. Other missing features lead to `None` in
    /// snapshots and a line in [`notes`](Self::notes).
    pub fn new(options: Options) -> Result<Self, Error> {
        process::check_namespace()?;
        let own = "/proc/self/stat";
        std::fs::metadata(own).map_err(|source| Error::Read { path: own.into(), source })?;
        let mut notes = Vec::new();
        let counting = options.counters.then(|| Counting::probe().ok()).flatten();
        let descriptors_max = file::descriptors_max();
        let mut reader = Reader {
            buffer: Buffer::new(),
            counting,
            descriptors_left: descriptors_max,
            table: None,
            table_refusal: None,
        };
        // Without kept descriptors: the limit may be low.
        let mut own = Process::open(std::process::id() as i32, false)?;
        own.count_from_now(&mut reader.buffer);
        let counts_host = options.counters && counting.is_none();
        let sensors = Sensors::new(&options, counts_host, &mut reader.buffer, &mut notes);
        let host = topology();
        let host_cpus = host.cpu_set();
        let allowed = Allowance::of_this_process().cpus;
        let part = options.allowed_cpus.then(|| host.restricted(&allowed)).flatten();
        Ok(LinuxMachine {
            topology: part.unwrap_or(host),
            host_cpus,
            own,
            reader,
            watched: Watched::new(descriptors_max),
            sensors,
            actuators: Actuators::new(&options),
            at_ns: now_ns(),
            start_ns: now_ns(),
            samples: 0,
            needs_samples: true,
            observations: 0,
            notes,
            exhausted_limit: None,
        })
    }

    /// Watches a process and all its descendants, including later ones. A process that belongs to
    /// another watched program moves to the new program, together with those of its descendants
    /// that are not watched yet.
    ///
    /// # Errors
    /// [`Error::NoProcess`]; [`Error::Denied`] if `/proc` hides the process.
    pub fn watch(&mut self, pid: i32) -> Result<ProgramId, Error> {
        self.needs_samples = true;
        self.watched.begin(pid, false, &mut self.reader)
    }

    /// Watches a program that is held before its first instruction, or was released just now, from
    /// its start. The program includes its orphaned processes if they become children of this
    /// process.
    ///
    /// # Errors
    /// Same as [`watch`](Self::watch).
    pub fn watch_launch(&mut self, started: &Started) -> Result<ProgramId, Error> {
        self.needs_samples = true;
        let subreaper = rustix::process::child_subreaper().is_ok_and(|s| s.is_some());
        self.watched.begin(started.pid(), subreaper, &mut self.reader)
    }

    /// Sets the channel to the OpenMP teams of the program that starts with its environment.
    pub fn set_teams(&mut self, channel: TeamChannel) {
        self.actuators.set_teams(channel);
    }

    /// Starts to count cache references, misses and instructions on the CPUs of the host, if the
    /// options request counters and single threads cannot be counted.
    pub fn count_host(&mut self) {
        self.notes.extend(self.sensors.count_host(self.host_cpus.iter()));
    }

    /// Sets a table in which the kernel counts threads. Threads that are watched from now on are
    /// read from the table instead of files, as far as it has rows.
    pub fn set_table(&mut self, table: Box<dyn ThreadTable>) {
        self.reader.table = Some(table);
    }

    /// Sets a scheduler in the kernel, to which [`admit`](Self::admit) moves programs. The machine
    /// passes actions on these programs to the scheduler first.
    pub fn set_scheduler(&mut self, scheduler: Box<dyn Scheduler>) {
        self.actuators.set_scheduler(scheduler);
    }

    /// Returns whether there is a scheduler in the kernel.
    pub fn has_scheduler(&self) -> bool {
        self.actuators.have_scheduler()
    }

    /// Moves a watched program to the scheduler in the kernel; without a scheduler, or without the
    /// program, nothing changes.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the scheduler does not accept the program, and the errors of
    /// [`Actuator::apply`](crate::Actuator::apply).
    pub fn admit(&mut self, program: ProgramId) -> Result<(), Error> {
        match self.watched.programs.get(&program) {
            Some(watched) => self.actuators.admit(program, watched),
            None => Ok(()),
        }
    }

    /// Runs admitted programs as coscheduled sets on these CPUs, with turns of `slice_ns`
    /// nanoseconds.
    ///
    /// # Errors
    /// [`Error::Unsupported`] without a scheduler in the kernel, or if the scheduler refuses.
    pub fn coschedule(
        &mut self,
        programs: &[ProgramId],
        cpus: &[CpuId],
        coscheduler: Box<dyn Coscheduler + Send>,
        slice_ns: u64,
    ) -> Result<(), Error> {
        self.actuators.coschedule(programs, cpus, coscheduler, slice_ns)
    }

    /// Returns the turns of a program since [`coschedule`](Self::coschedule). `None` for other
    /// programs, and after [`Machine::restore`].
    pub fn turns(&self, program: ProgramId) -> Option<Turns> {
        self.actuators.turns(program)
    }

    /// Stops watching a program. Changes to the program stay until [`Machine::restore`].
    pub fn unwatch(&mut self, program: ProgramId) {
        self.watched.programs.remove(&program);
    }

    /// Restricts actions on a program to threads of this user. If a thread changes its user while
    /// an action is in progress, all changes to the program are undone.
    pub fn set_owner(&mut self, program: ProgramId, uid: u32) {
        if let Some(program) = self.watched.programs.get_mut(&program) {
            program.owner = Some(uid);
        }
    }

    /// Stops watching a program and undoes all changes to the program.
    pub fn release(&mut self, program: ProgramId) -> Restored {
        self.watched.programs.remove(&program);
        self.actuators.release(program)
    }

    /// Returns whether [`Machine::restore`] left changes, which the next
    /// [`restore_all`](crate::restore_all) tries to undo.
    pub fn keeps_changes(&self) -> bool {
        self.actuators.keep_changes()
    }

    /// Returns whether a process of the program still runs. A zombie process has ended.
    pub fn is_alive(&self, program: ProgramId) -> bool {
        self.watched.programs.get(&program).is_some_and(Program::is_alive)
    }

    /// Returns the number of threads of the program at the last observation.
    pub fn thread_count(&self, program: ProgramId) -> usize {
        self.watched.programs.get(&program).map_or(0, |p| p.threads().count())
    }

    /// Returns for how long a quota that was set by an action has stopped the program, in seconds.
    /// `None` without such a quota, and after [`Machine::restore`].
    pub fn throttled_s(&self, program: ProgramId) -> Option<f64> {
        self.actuators.throttled_s(program)
    }

    /// Divides the times for which threads spun in the last observation, in nanoseconds, between
    /// the places in the code.
    pub fn spin_times(&self, threads: impl IntoIterator<Item = (ThreadId, f64)>) -> SpinTimes {
        self.sensors.spin_times(threads)
    }

    /// Returns the functions that contain the places, the longest time first. Reads the symbols of
    /// the files whose names are not known yet.
    pub fn spin_functions(&mut self, times: &SpinTimes) -> Vec<SpinFunction> {
        self.sensors.spin_functions(times)
    }

    /// Returns the function with the longest time, without reading files: observations read the
    /// symbols of new files once a second. Until then, the function has no name.
    pub fn spin_function(&self, times: &SpinTimes) -> Option<Function> {
        self.sensors.spin_function(times)
    }

    /// Returns the processes of the program that run now. After the end of a program that was
    /// launched, these are its detached processes.
    pub fn remaining(&mut self, program: ProgramId) -> Remaining {
        let program = self.watched.programs.get_mut(&program);
        program.map_or(Remaining::default(), |p| p.remaining(&mut self.reader.buffer))
    }

    /// Sends a signal, by libc's number, to every process of the program that has not ended.
    pub fn signal(&self, program: ProgramId, signal: i32) {
        let program = self.watched.programs.get(&program);
        program.into_iter().flat_map(|p| &p.processes).for_each(|p: &Process| p.signal(signal));
    }

    /// Kills every process of the program, also those that it has started since the last
    /// observation, and their children that start meanwhile.
    pub fn kill(&mut self, program: ProgramId) {
        let since = Since::Birth(self.at_ns);
        for _ in 0..process::SEARCHES_MAX {
            let found = self.watched.walk_over(&[program], since, Reach::All, &mut self.reader);
            self.signal(program, libc::SIGKILL);
            if found.values().all(Vec::is_empty) {
                break;
            }
        }
    }

    /// Adds a line to the [`notes`](Self::notes).
    pub fn add_note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// Returns requested features that are not available here, and errors so far; one line each.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = self.notes.clone();
        notes.extend(self.exhausted_limit.map(|limit| {
            format!(
                "processes or threads are missing, because the limit of {limit} open files is too \
                 small: increase it with 'ulimit -n'"
            )
        }));
        notes.extend(
            (self.reader.table_refusal.iter())
                .map(|why| format!("some threads are read from /proc: {why}")),
        );
        notes.extend(self.sensors.notes());
        notes.extend(self.actuators.notes());
        notes
    }

    /// Reads the threads of all programs, and finds new threads.
    fn observe_threads(&mut self) -> BTreeMap<ProgramId, Vec<ThreadSample>> {
        let newest = self.sensors.host.sample(&mut self.reader.buffer);
        self.reader.refresh_table();
        let buffer = &mut self.reader.buffer;
        let awake = self.watched.threads().filter(|t| !t.is_counted() && !t.is_quiet()).count();
        let every = awake.div_ceil(FULL_READINGS).max(1);
        self.observations = self.observations.wrapping_add(1);
        let mut count = self.observations;
        let mut full = || {
            count = count.wrapping_add(1);
            count.is_multiple_of(every)
        };
        let programs = self.watched.programs.iter_mut();
        let mut threads: BTreeMap<ProgramId, Vec<ThreadSample>> =
            programs.map(|(&id, p)| (id, p.observe(&mut full, buffer))).collect();
        for (id, found) in self.watched.search(newest, self.at_ns, &mut self.reader) {
            let Some(program) = self.watched.programs.get_mut(&id) else { continue };
            let samples = program.observe_found(&found, &mut self.reader.buffer);
            if let Some(note) = self.actuators.inherit(id, program, samples.iter().map(|s| s.id))
                && self.notes.len() < NOTES_MAX
                && !self.notes.contains(&note)
            {
                self.notes.push(note);
            }
            threads.entry(id).or_default().extend(samples);
        }
        self.needs_samples = self.watched.threads().any(|thread| !thread.is_counted());
        threads
    }

    /// Records what the threads that have started since the last observation inherited. Later, the
    /// orphans among them could not be distinguished from threads of other programs.
    fn find_orphans(&mut self) {
        let programs: Vec<ProgramId> = self.watched.programs.keys().copied().collect();
        let since = Since::Birth(self.at_ns);
        let found = self.watched.walk_over(&programs, since, Reach::All, &mut self.reader);
        for (id, found) in found {
            let Some(program) = self.watched.programs.get(&id) else { continue };
            let new = found.iter().filter_map(|&(place, tid)| {
                Some(program.processes.get(place)?.threads.get(&tid)?.id)
            });
            // The error is ignored: the changes are undone now.
            let _ = self.actuators.inherit(id, program, new);
        }
    }

    /// Returns a sample of each program, and the CPU time of all programs in clock ticks.
    fn program_samples(
        &mut self,
        mut threads: BTreeMap<ProgramId, Vec<ThreadSample>>,
    ) -> (Vec<ProgramSample>, u64) {
        let mut teams: HashMap<i32, TeamSample> = self.actuators.team_samples();
        let mut own_ticks = 0u64;
        let mut settled = HashMap::new();
        let mut programs = Vec::with_capacity(self.watched.programs.len());
        for (&id, program) in &mut self.watched.programs {
            let mut threads = threads.remove(&id).unwrap_or_default();
            threads.sort_by_key(|t| t.id);
            // The name of a program is that of the first thread of its first process, which
            // changes with `execve`.
            let first =
                program.processes.first().and_then(|p| threads.iter().find(|t| t.id == p.id));
            if let Some(first) = first
                && first.name != program.name
            {
                program.name = first.name.clone();
            }
            let team = busiest(program.processes.iter().filter_map(|p| teams.remove(&p.id.tid)));
            let progress = program.progress(&mut settled, &mut self.reader.buffer);
            own_ticks = own_ticks.saturating_add(progress.cpu_ticks);
            programs.push(ProgramSample {
                id,
                name: program.name.clone(),
                threads,
                io_bytes: progress.io_bytes,
                team,
                progress: None,
            });
        }
        // This process waits for the programs that it starts. Their end since the last reading
        // is in its sums.
        let settled = settled.remove(&self.own.id.tid).unwrap_or_default();
        let waited_ticks = match self.watched.has_process(self.own.id.tid) {
            true => 0,
            false => self.own.children_ticks(settled, &mut self.reader.buffer),
        };
        (programs, own_ticks.saturating_add(waited_ticks))
    }
}

impl Machine for LinuxMachine {
    type Error = Error;

    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn observe(&mut self) -> Result<Snapshot, Error> {
        let before_ns = self.at_ns;
        let threads = self.observe_threads();
        // The descriptors of processes stay open: what could not be opened before fails now, too.
        self.exhausted_limit = self.exhausted_limit.or_else(file::exhausted_limit);
        let (mut programs, own_ticks) = self.program_samples(threads);
        self.sensors.observe_exact_locks(&mut programs);
        self.sensors.observe_spin(&self.watched, &mut programs);
        let waits = |p: &ProgramSample| p.mean(|s| s.wait).is_some_and(|w| w >= COUNT_WAIT_MIN);
        if self.at_ns > self.start_ns + COUNT_AFTER_NS && programs.iter().any(waits) {
            self.count_host();
        }
        self.at_ns = now_ns();
        let span_ns = self.at_ns - before_ns;
        // The time of a Corebeat that is watched itself belongs to its program already.
        let is_watched = self.watched.has_process(std::process::id() as i32);
        let host = self.sensors.observe_host(
            sensors::Span { span_ns, own_ticks, is_watched, cpus: self.host_cpus.len() },
            &programs,
            &mut self.reader.buffer,
        );
        Ok(Snapshot { at_ns: self.at_ns, span_ns, host, programs })
    }

    fn sample(&mut self) {
        self.sensors.host.sample(&mut self.reader.buffer);
        self.sensors.sample_spin(&self.watched);
        if !self.needs_samples {
            return;
        }
        let threads = self.watched.programs.values_mut().flat_map(Program::threads_mut);
        let threads = threads.filter(|t| !t.is_counted());
        let (quiet, awake): (Vec<&mut Thread>, Vec<&mut Thread>) =
            threads.partition(|t| t.is_quiet());
        let mut left = SAMPLE_THREADS_MAX;
        // Quiet threads come last: a sample only detects whether they run again.
        for mut threads in [awake, quiet] {
            let (count, part) = (threads.len(), left.min(threads.len()));
            for offset in 0..part {
                let place = self.samples.wrapping_mul(part).wrapping_add(offset) % count;
                threads[place].sample(&mut self.reader.buffer);
            }
            left -= part;
        }
        self.samples = self.samples.wrapping_add(1);
    }

    /// Carries out an action. Errors are those of [`Actuator::apply`](crate::Actuator::apply), and
    /// [`Error::InvalidArgument`] for an unknown program or thread.
    fn act(&mut self, action: &Action) -> Result<Effect, Error> {
        action.validate().map_err(|e| Error::InvalidArgument(e.to_string()))?;
        match self.watched.target_of(action) {
            Some((id, program)) => self.actuators.act(action, id, program),
            None => self.watched.check_absent(action),
        }
    }

    fn restore(&mut self) -> Restored {
        if self.actuators.have_acted() {
            self.find_orphans();
        }
        self.actuators.restore()
    }
}

/// Returns the team whose regions took the most time: a program may have helper processes that
/// start with the same environment.
fn busiest(teams: impl Iterator<Item = TeamSample>) -> Option<TeamSample> {
    teams.max_by_key(|t| {
        (t.regions.iter().map(|r| r.time_ns).fold(0, u64::saturating_add), t.size_max)
    })
}
