//! A watched thread: its files, its last reading, and its time shares between two readings.

mod parse;
mod row;
mod shares;
#[cfg(test)]
mod tests;

use crate::counter::{Counted, ThreadCounter};
use crate::file::{Buffer, ProcFile};
use corebeat_machine::{CpuId, ThreadId, ThreadRow, ThreadSample};
use parse::SchedStat;
pub(crate) use parse::{
    CONTENDED, CONTENDED_GOMP, FUTEX_LOCK_PI2, WaitFile, WaitState, parse_schedstat, parse_stat,
    parse_switches,
};
use row::{CountedSpan, Row};
use rustix::time::ClockId;
use shares::{BLOCKED_NOISE, Divided, Full, Rates, Reading, counters, divide};
pub(crate) use shares::{WaitParts, WaitSamples};

/// A watched thread.
#[derive(Debug)]
pub(crate) struct Thread {
    pub(crate) id: ThreadId,
    pid: i32,
    name: String,
    cpu: Option<CpuId>,
    schedstat: ProcFile,
    stat: ProcFile,
    switches: ProcFile,
    look: ProcFile,
    wait_file: WaitFile,
    counter: Option<ThreadCounter>,
    /// Counts of the kernel, which replace the files.
    row: Option<Row>,
    /// Last full reading, and the rates from that reading; `None` before the first observation.
    full: Full,
    rates: Option<Rates>,
    /// Values at the last observation, or at the start of the thread.
    base: Reading,
    /// Schedstat at `base`.
    base_sched: Option<SchedStat>,
    /// Time and schedstat of the newest sample since `base`.
    sampled: Option<(u64, SchedStat)>,
    last_state: WaitState,
    /// Address of the last futex call that was not for a lock.
    parked_at: Option<u64>,
    /// Schedstat at the last reading of the state: as long as it is equal, so is the state.
    state_sched: Option<SchedStat>,
    wait_samples: WaitSamples,
    /// Whether this process may not read the state of the thread.
    hidden: bool,
    /// Number of spans, up to the last one, through which the thread slept.
    quiet_spans: u32,
}

/// Number of descriptors that a watched thread keeps open, without counters.
pub(crate) const DESCRIPTORS_PER_THREAD: usize = 4;

/// Result of observing a thread.
#[derive(Debug)]
pub(crate) enum Observed {
    /// The thread runs.
    Alive(ThreadSample),
    /// The thread has ended; with its last sample since the observation before, if there is one.
    Ended(Option<ThreadSample>),
}

/// Fields of `stat` that a reading uses.
struct StatFields {
    user_ticks: u64,
    system_ticks: u64,
    runnable: bool,
}

impl Thread {
    /// Starts to watch a thread. `None` if the thread has ended.
    pub(crate) fn open(
        pid: i32,
        tid: i32,
        keep: bool,
        counter: Option<ThreadCounter>,
        row: Option<Box<dyn ThreadRow>>,
        buffer: &mut Buffer,
    ) -> Option<Self> {
        let open = |name: &str| ProcFile::open(format!("/proc/{pid}/task/{tid}/{name}"), keep);
        let stat_file = open("stat");
        let text = stat_file.read(buffer).ok()?;
        let stat = parse_stat(&text)?;
        let id = ThreadId { tid, start_ticks: stat.start_ticks };
        let (name, cpu, hidden) = (stat.name.to_owned(), stat.cpu, stat.hidden);
        let switches = match open("sched") {
            ProcFile::Closed => open("status"),
            file => file,
        };
        let syscall = open(WaitFile::Syscall.name());
        let (look, wait_file) = match syscall.read(buffer) {
            Ok(_) => (syscall, WaitFile::Syscall),
            Err(_) => (open(WaitFile::Wchan.name()), WaitFile::Wchan),
        };
        let mut thread = Thread {
            id,
            pid,
            name,
            cpu,
            schedstat: open("schedstat"),
            stat: stat_file,
            switches,
            look,
            wait_file,
            counter,
            row: row.and_then(Row::new),
            full: Full::default(),
            rates: None,
            base: Reading::birth(0),
            base_sched: None,
            sampled: None,
            last_state: WaitState::Awake,
            parked_at: None,
            state_sched: None,
            wait_samples: WaitSamples::default(),
            hidden,
            quiet_spans: 0,
        };
        thread.base = match &thread.row {
            Some(row) => {
                thread.full = row::full(row.base());
                row::reading(row.base(), thread.counted())
            }
            None => {
                thread.base_sched = thread.read_schedstat(buffer);
                thread.read_full(thread.base_sched, buffer)?
            }
        };
        thread.rates = None;
        Some(thread)
    }

    /// Counts the thread from its start, at `start_ns`, or earlier if the thread has run and waited
    /// for longer than the time since then.
    pub(crate) fn count_from_birth(&mut self, start_ns: u64) {
        let age_ns = self.base.run_ns.saturating_add(self.base.delay_ns.unwrap_or(0));
        let at_ns = start_ns.min(self.base.at_ns.saturating_sub(age_ns));
        self.base = Reading { counted: self.base.counted, ..Reading::birth(at_ns) };
        self.base_sched = None;
        self.full = Full::default();
        self.row.iter_mut().for_each(Row::count_from_birth);
    }

    /// Returns whether the thread slept through the last span, and was asleep at all samples since.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet_spans > 0
    }

    /// As [`is_quiet`](Self::is_quiet), for this number of spans.
    pub(crate) fn is_quiet_for(&self, spans: u32) -> bool {
        self.quiet_spans >= spans
    }

    /// Returns how often samples found the thread asleep.
    pub(crate) fn wait_samples(&self) -> WaitSamples {
        self.wait_samples
    }

    /// Returns whether the kernel counts the thread, so that it needs no samples.
    pub(crate) fn is_counted(&self) -> bool {
        self.row.is_some()
    }

    /// Takes a cheap sample between two observations: where the thread sleeps, if it does.
    pub(crate) fn sample(&mut self, buffer: &mut Buffer) {
        let (sched, at_ns) = (self.read_schedstat(buffer), now_ns());
        if sched != self.base_sched {
            self.quiet_spans = 0;
        }
        self.sample_wait(at_ns, sched, buffer);
        let Some(sched) = sched else { return };
        self.sampled = Some((at_ns, sched));
        if let Some(counter) = &mut self.counter {
            counter.stop_above(switches_per_s(self.base_sched, sched, at_ns - self.base.at_ns));
        }
    }

    /// Returns what happened since the last observation, from a `full` reading or from schedstat
    /// and rates. `fallback` splits the blocked time of a thread that no sample found asleep.
    pub(crate) fn observe(
        &mut self,
        full: bool,
        fallback: Option<WaitParts>,
        buffer: &mut Buffer,
    ) -> Observed {
        match self.row.as_ref().map(Row::counted) {
            Some(counted) => self.observe_row(&counted, fallback, buffer),
            None => self.observe_files(full, fallback, buffer),
        }
    }

    /// Observes the thread by its row.
    fn observe_row(
        &mut self,
        counted: &CountedSpan,
        fallback: Option<WaitParts>,
        buffer: &mut Buffer,
    ) -> Observed {
        let quiet = counted.is_quiet();
        self.quiet_spans = if quiet { self.quiet_spans.saturating_add(1) } else { 0 };
        if !quiet {
            self.set_full(row::full(&counted.after));
            let name = row::name(&counted.after);
            if self.name != name {
                self.name = name.into_owned();
            }
        }
        self.cpu = Some(counted.after.cpu);
        let mut after = row::reading(&counted.after, self.counted());
        let (parts, noise) = match counted.after.has_causes {
            true => (counted.parts(), 0.0),
            false => (self.row_parts(counted, fallback), BLOCKED_NOISE),
        };
        let sample = self.thread_sample(&after, parts, noise);
        if counted.has_ended() {
            (self.full, self.row) = (Full::default(), None);
            let sched = self.read_schedstat(buffer);
            let Some(base) = self.read_full(sched, buffer) else {
                return Observed::Ended(Some(sample));
            };
            // Another thread has become the first one of the process by `execve`, and has the
            // number of the one that ended. From here on, the files count.
            (self.base, self.base_sched, self.rates) = (base, sched, None);
            return Observed::Alive(sample);
        }
        if let (Some(counter), false) = (&mut self.counter, quiet) {
            let rate = counted.switches_per_s();
            counter.stop_above(rate);
            if counter.start_below(rate) {
                after.counted = counter.read();
            }
        }
        self.row.iter_mut().for_each(|row| row.settle(counted));
        self.base = after;
        Observed::Alive(sample)
    }

    /// Returns the parts of blocked time by samples of the state of a row.
    fn row_parts(
        &mut self,
        counted: &CountedSpan,
        fallback: Option<WaitParts>,
    ) -> Option<WaitParts> {
        if counted.is_quiet() {
            // The thread was blocked by one cause through the whole span.
            self.wait_samples = WaitSamples::default();
        }
        for state in counted.states() {
            self.wait_samples.add(state, counted.blocked_ns() / 2);
        }
        // The files of some threads are hidden; rows never are.
        let parts = self.wait_samples.parts().or(fallback);
        match counted.is_quiet() {
            // The next sleep may have another cause.
            true => self.wait_samples = WaitSamples::default(),
            false => self.wait_samples.decay(),
        }
        parts
    }

    fn observe_files(
        &mut self,
        full: bool,
        fallback: Option<WaitParts>,
        buffer: &mut Buffer,
    ) -> Observed {
        let sched = self.read_schedstat(buffer);
        let quiet =
            sched.is_some() && sched == self.base_sched && self.base.runnable == Some(false);
        self.quiet_spans = if quiet { self.quiet_spans.saturating_add(1) } else { 0 };
        let estimate = if full { None } else { self.estimate(sched) };
        let reading = if quiet {
            Some(Reading { at_ns: now_ns(), ..self.base })
        } else {
            estimate.or_else(|| self.read_full(sched, buffer))
        };
        let Some(mut after) = reading else { return Observed::Ended(self.final_sample(fallback)) };
        if quiet {
            // The thread was blocked by one cause through the whole span.
            let state = self.read_state(sched, buffer);
            if state != WaitState::Awake {
                self.wait_samples = WaitSamples::default();
                self.wait_samples.add(state, after.at_ns.saturating_sub(self.base.at_ns));
            }
        } else if self.wait_samples.parts().is_none() {
            self.sample_wait(after.at_ns, sched, buffer);
        }
        let sample = self.thread_sample(&after, self.sampled_parts(fallback), BLOCKED_NOISE);
        if let (Some(counter), Some(sched), false) = (&mut self.counter, sched, quiet) {
            let rate = switches_per_s(self.base_sched, sched, sample.span_ns);
            counter.stop_above(rate);
            if counter.start_below(rate) {
                after.counted = counter.read();
            }
        }
        match quiet {
            // The next sleep may have another cause.
            true => self.wait_samples = WaitSamples::default(),
            false => self.wait_samples.decay(),
        }
        (self.base, self.base_sched, self.sampled) = (after, sched, None);
        Observed::Alive(sample)
    }

    /// Returns what the samples found of a thread that has ended since the last observation.
    fn final_sample(&self, fallback: Option<WaitParts>) -> Option<ThreadSample> {
        let (at_ns, sched) = self.sampled?;
        let last = Reading {
            at_ns,
            run_ns: sched.run_ns,
            delay_ns: Some(sched.delay_ns),
            runnable: None,
            ..self.base
        };
        Some(self.thread_sample(&last, self.sampled_parts(fallback), BLOCKED_NOISE))
    }

    /// Returns the parts of blocked time by samples.
    fn sampled_parts(&self, fallback: Option<WaitParts>) -> Option<WaitParts> {
        self.wait_samples.parts().or(fallback).filter(|_| !self.hidden)
    }

    /// Returns a sample from the last reading up to this one. Blocked time up to `noise`, a share
    /// of the span, counts as sleep.
    fn thread_sample(&self, after: &Reading, parts: Option<WaitParts>, noise: f64) -> ThreadSample {
        let lifetime = || Rates::between(&Full::default(), &self.full);
        let system_part = self.rates.unwrap_or_else(lifetime).system_part;
        let Divided { span_ns, shares } = divide(&self.base, after, system_part, parts, noise);
        ThreadSample {
            id: self.id,
            pid: self.pid,
            name: self.name.clone(),
            cpu: self.cpu,
            span_ns,
            shares,
            counters: counters(&self.base, after),
        }
    }

    /// Samples the state, for the blocked time since the sample before.
    fn sample_wait(&mut self, at_ns: u64, sched: Option<SchedStat>, buffer: &mut Buffer) {
        let state = self.read_state(sched, buffer);
        let before = self.sampled.or(self.base_sched.map(|before| (self.base.at_ns, before)));
        let (before_ns, awake_ns) = match (before, sched) {
            (Some((before_ns, before)), Some(now)) => {
                let of = |sched: SchedStat| sched.run_ns.saturating_add(sched.delay_ns);
                (before_ns, of(now).saturating_sub(of(before)))
            }
            _ => (self.base.at_ns, 0),
        };
        self.wait_samples.add(state, at_ns.saturating_sub(before_ns).saturating_sub(awake_ns));
    }

    /// Returns the present state. Reads no file if the thread has not run since the last call.
    fn read_state(&mut self, sched: Option<SchedStat>, buffer: &mut Buffer) -> WaitState {
        if self.hidden {
            return WaitState::Awake;
        }
        if sched.is_none() || sched != self.state_sched {
            let state =
                self.look.read(buffer).map_or(WaitState::Awake, |t| self.wait_file.parse(&t));
            self.last_state = match state {
                WaitState::Awake => state,
                // A thread that is stopped within a call has the state of the call.
                _ if self.is_stopped(buffer) => WaitState::Stopped,
                // A condition variable of Rust counts its notifications: 2 is also the value of a
                // lock.
                WaitState::Lock(word) if self.parked_at == Some(word) => WaitState::Park(word),
                state => state,
            };
            if let WaitState::Park(word) = self.last_state {
                self.parked_at = Some(word);
            }
            self.state_sched = sched;
        }
        self.last_state
    }

    fn is_stopped(&self, buffer: &mut Buffer) -> bool {
        let text = self.stat.read(buffer);
        text.is_ok_and(|t| parse_stat(&t).is_some_and(|stat| matches!(stat.state, 'T' | 't')))
    }

    fn read_schedstat(&self, buffer: &mut Buffer) -> Option<SchedStat> {
        self.schedstat.read(buffer).ok().and_then(|t| parse_schedstat(&t))
    }

    /// Reads the file `stat`, and sets the name and the CPU. `None` if the thread has ended.
    fn read_stat(&mut self, buffer: &mut Buffer) -> Option<StatFields> {
        let text = self.stat.read(buffer).ok()?;
        let stat = parse_stat(&text)?;
        // A file that is opened for each reading may be that of a later thread with this number.
        if stat.start_ticks != self.id.start_ticks || matches!(stat.state, 'X' | 'Z') {
            return None;
        }
        if stat.name != self.name {
            self.name = stat.name.to_owned();
        }
        (self.cpu, self.hidden) = (stat.cpu, stat.hidden);
        let (user_ticks, system_ticks, runnable) = (stat.user, stat.system, stat.state == 'R');
        Some(StatFields { user_ticks, system_ticks, runnable })
    }

    /// Sets the last full reading.
    fn set_full(&mut self, full: Full) {
        self.rates = Some(Rates::between(&self.full, &full));
        self.full = full;
    }

    /// Reads all files except schedstat, which the caller has just read. `None` if the thread has
    /// ended.
    fn read_full(&mut self, sched: Option<SchedStat>, buffer: &mut Buffer) -> Option<Reading> {
        let at_ns = now_ns();
        let StatFields { user_ticks, system_ticks, runnable } = self.read_stat(buffer)?;
        let switches = self.switches.read(buffer).map(|t| parse_switches(&t)).unwrap_or_default();
        let slices = sched.map_or(0, |s| s.slices);
        self.set_full(Full { slices, user_ticks, system_ticks, switches });
        let ticks_ns =
            user_ticks.saturating_add(system_ticks).saturating_mul(1_000_000_000 / ticks_per_s());
        Some(Reading {
            at_ns,
            run_ns: sched.map_or(ticks_ns, |s| s.run_ns),
            delay_ns: sched.map(|s| s.delay_ns),
            switches,
            counted: self.counted(),
            runnable: Some(runnable),
        })
    }

    /// Returns a reading from schedstat and rates. `None` if these are not sufficient: before the
    /// first rates, after the end of the thread, and if only the state of the thread shows whether
    /// it sleeps or waits for a CPU.
    fn estimate(&self, sched: Option<SchedStat>) -> Option<Reading> {
        let (before, sched, rates) = (self.base_sched?, sched?, self.rates?);
        // A smaller value belongs to another thread with the same number.
        let slices = sched.slices.checked_sub(before.slices)?;
        if sched == before || sched.run_ns < before.run_ns {
            return None;
        }
        // A thread without voluntary switches stays runnable.
        let stays = rates.voluntary == Some(0.0) && self.base.runnable == Some(true);
        Some(Reading {
            at_ns: now_ns(),
            run_ns: sched.run_ns,
            delay_ns: Some(sched.delay_ns),
            switches: rates.switches_after(&self.base.switches, slices),
            counted: self.counted(),
            runnable: stays.then_some(true),
        })
    }

    fn counted(&self) -> Counted {
        self.counter.as_ref().map(ThreadCounter::read).unwrap_or_default()
    }
}

fn switches_per_s(before: Option<SchedStat>, after: SchedStat, span_ns: u64) -> f64 {
    let slices = after.slices.saturating_sub(before.map_or(0, |b| b.slices));
    slices as f64 / (span_ns.max(1) as f64 / 1e9)
}

/// Returns the time of the monotonic clock, in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    clock_ns(ClockId::Monotonic)
}

/// Returns the time of a clock, in nanoseconds.
pub(crate) fn clock_ns(clock: ClockId) -> u64 {
    let now = rustix::time::clock_gettime(clock);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Returns the clock ticks per second, the unit of `/proc/PID/stat`.
pub(crate) fn ticks_per_s() -> u64 {
    rustix::param::clock_ticks_per_second().max(1)
}
