//! Sensors beyond the files of single threads: the host, spinning, exact lock times, counters.

use super::Options;
use super::watched::Watched;
use crate::counter::HostCounter;
use crate::exact::{ExactLocks, FutexTime};
use crate::file::Buffer;
use crate::host::{Host, HostTicks};
use crate::spin::{Function, Samples, SpinFunction, SpinSampler, SpinTimes};
use crate::thread::{self, clock_ns};
use corebeat_machine::{Counters, CpuId, HostSample, ProgramSample, ThreadId};
use rustix::time::ClockId;
use std::collections::HashMap;
use std::time::Instant;

/// Shortest time, in ticks, over which the load of other programs is computed: the kernel accounts
/// it by ticks.
const TICKS_MIN: f64 = 5.0;

/// Sensors, and their values at the last observation.
pub(super) struct Sensors {
    pub(super) host: Host,
    others: Others,
    spin: Option<SpinSampler>,
    /// The newest samples of each thread.
    spin_samples: HashMap<ThreadId, Samples>,
    /// Whether the CPUs of the host are to be counted once that is of use.
    counts_host: bool,
    counter: Option<HostCounter>,
    exact: Option<ExactLocks>,
    /// Time that each thread was blocked in futex calls up to the last observation, by number.
    exact_ns: HashMap<i32, FutexTime>,
}

/// Span of an observation.
pub(super) struct Span {
    pub(super) span_ns: u64,
    /// CPU time of all watched programs, in clock ticks.
    pub(super) own_ticks: u64,
    /// Whether this process is watched itself.
    pub(super) is_watched: bool,
    /// Number of CPUs of the host.
    pub(super) cpus: usize,
}

/// The load of other programs. Short spans are added up until they last [`TICKS_MIN`].
struct Others {
    /// Ticks of the host at the last value.
    ticks: Option<HostTicks>,
    /// CPU time of this process at the last span.
    own_cpu_ns: u64,
    /// Time since the last value.
    span_ns: u64,
    /// CPU time of watched programs since the last value, in clock ticks.
    own_ticks: u64,
    /// CPU time of this process since the last value, if it is not watched.
    corebeat_ns: u64,
    value: Option<f64>,
}

impl Others {
    fn new(ticks: Option<HostTicks>, own_cpu_ns: u64) -> Others {
        Others { ticks, own_cpu_ns, span_ns: 0, own_ticks: 0, corebeat_ns: 0, value: None }
    }

    /// Returns the mean number of CPUs that other programs used in the last spans.
    fn busy(&mut self, span: &Span, ticks: Option<HostTicks>, own_cpu_ns: u64) -> Option<f64> {
        self.span_ns += span.span_ns;
        self.own_ticks = self.own_ticks.saturating_add(span.own_ticks);
        if !span.is_watched {
            self.corebeat_ns += own_cpu_ns.saturating_sub(self.own_cpu_ns);
        }
        self.own_cpu_ns = own_cpu_ns;
        let tick_ns = 1e9 / thread::ticks_per_s() as f64;
        if ticks.is_some() && (self.span_ns as f64) < TICKS_MIN * tick_ns {
            return self.value;
        }
        let value = ticks.zip(self.ticks).map(|(now, before)| {
            let busy = now.busy.saturating_sub(before.busy).saturating_sub(self.own_ticks);
            let others_ns = busy as f64 * tick_ns - self.corebeat_ns as f64;
            (others_ns / self.span_ns as f64).clamp(0.0, span.cpus as f64)
        });
        *self = Others { value, ..Others::new(ticks, own_cpu_ns) };
        value
    }
}

/// Start of the note of a machine that cannot measure exact lock times.
pub const LOCKS_SAMPLED: &str = "lock time is sampled";

impl Sensors {
    /// Opens the sensors that the options request. Adds a note for each that is not available.
    pub(super) fn new(
        options: &Options,
        counts_host: bool,
        buffer: &mut Buffer,
        notes: &mut Vec<String>,
    ) -> Self {
        let mut unavailable =
            |what: &str, why: &dyn std::fmt::Display| notes.push(format!("{what}: {why}"));
        let spin = options.spin.then(SpinSampler::new).transpose();
        let spin = spin.map_err(|e| unavailable("spin time is not measured", &e));
        let exact = options.exact_locks.then(ExactLocks::attach).transpose();
        let exact = exact.map_err(|e| unavailable(LOCKS_SAMPLED, &e));
        let host = Host::new();
        Sensors {
            others: Others::new(host.ticks(buffer), clock_ns(ClockId::ProcessCPUTime)),
            host,
            spin: spin.ok().flatten(),
            spin_samples: HashMap::new(),
            counts_host,
            counter: None,
            exact: exact.ok().flatten(),
            exact_ns: HashMap::new(),
        }
    }

    /// Starts the counters of the host's CPUs, once. Returns a note if they are not available.
    pub(super) fn count_host(&mut self, cpus: impl Iterator<Item = CpuId>) -> Option<String> {
        if !std::mem::take(&mut self.counts_host) {
            return None;
        }
        let why = match HostCounter::open(cpus) {
            Ok(counter) => {
                self.counter = Some(counter);
                return None;
            }
            // Most virtual machines.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                "this machine has no counters for them".to_owned()
            }
            Err(e) => e.to_string(),
        };
        Some(format!("cache misses and instructions are not counted: {why}"))
    }

    /// Returns one line for each kind of lost spin samples.
    pub(super) fn notes(&self) -> Vec<String> {
        let Some(spin) = &self.spin else { return Vec::new() };
        let losses = [
            (spin.lost(), "were lost, because the buffers were full"),
            (spin.unread(), "are not used, because their code could not be read"),
        ];
        let losses = losses.into_iter().filter(|&(count, _)| count > 0);
        losses.map(|(count, why)| format!("spin time: {count} samples {why}")).collect()
    }

    /// Samples the instruction pointers of the threads that run.
    pub(super) fn sample_spin(&mut self, watched: &Watched) {
        let Some(spin) = &mut self.spin else { return };
        let pids = watched.pids();
        let running = watched.threads().filter(|t| !t.is_quiet()).map(|t| t.id.tid);
        spin.sample(|pid| pids.contains(&pid), running);
    }

    /// Replaces sampled lock times by exact ones.
    pub(super) fn observe_exact_locks(&mut self, programs: &mut [ProgramSample]) {
        // If the kernel does not return its counts this time, the sampled times remain.
        let Some(Ok(now_ns)) = self.exact.as_mut().map(ExactLocks::read) else { return };
        let before_ns = std::mem::replace(&mut self.exact_ns, now_ns);
        for thread in programs.iter_mut().flat_map(|p| &mut p.threads) {
            let time = |all: &HashMap<i32, FutexTime>| {
                all.get(&thread.id.tid).copied().unwrap_or_default()
            };
            let (now, before) = (time(&self.exact_ns), time(&before_ns));
            let share = |ns: u64| ns as f64 / thread.span_ns as f64;
            if let Some(blocked) = thread.shares.blocked().filter(|_| thread.span_ns > 0) {
                let lock = share(now.lock_ns.saturating_sub(before.lock_ns)).min(blocked);
                let park = share(now.park_ns.saturating_sub(before.park_ns)).min(blocked - lock);
                thread.shares.lock = Some(lock);
                thread.shares.park = Some(park);
                thread.shares.sleep = Some(blocked - lock - park);
            }
        }
    }

    /// Sets the share of its time that each thread spent spinning.
    pub(super) fn observe_spin(&mut self, watched: &Watched, programs: &mut [ProgramSample]) {
        self.sample_spin(watched);
        let Some(spin) = &mut self.spin else { return };
        let (unsampled_ns_max, samples) = (spin.unsampled_ns_max(), spin.take());
        let mut before = std::mem::take(&mut self.spin_samples);
        for thread in programs.iter_mut().flat_map(|p| &mut p.threads) {
            let newest = samples.get(&thread.id.tid).cloned().or_else(|| before.remove(&thread.id));
            let part = newest.as_ref().and_then(Samples::spinning_part);
            self.spin_samples.extend(newest.map(|samples| (thread.id, samples)));
            thread.shares.spin = thread.shares.user.and_then(|user| {
                let ran_briefly = user * thread.span_ns as f64 <= unsampled_ns_max;
                part.or(ran_briefly.then_some(0.0)).map(|p| user * p)
            });
        }
        spin.names.search_if_due(Instant::now());
    }

    /// Divides the spin times of threads in the last observation, in nanoseconds, between the
    /// places in the code.
    pub(super) fn spin_times(
        &self,
        threads: impl IntoIterator<Item = (ThreadId, f64)>,
    ) -> SpinTimes {
        let mut times = SpinTimes::default();
        for (thread, spin_ns) in threads {
            if let Some(samples) = self.spin_samples.get(&thread) {
                samples.divide(spin_ns, &mut times);
            }
        }
        times
    }

    /// Returns the functions that contain these places, the longest time first.
    pub(super) fn spin_functions(&mut self, times: &SpinTimes) -> Vec<SpinFunction> {
        let Some(spin) = &mut self.spin else { return Vec::new() };
        spin.names.search();
        spin.names.functions(times)
    }

    /// Returns the function with the longest of these times, as far as its name is known.
    pub(super) fn spin_function(&self, times: &SpinTimes) -> Option<Function> {
        let functions = self.spin.as_ref()?.names.functions(times);
        functions.into_iter().next().map(|longest| longest.function)
    }

    /// Returns the load that other programs put on the host, and the counters of the CPUs.
    pub(super) fn observe_host(
        &mut self,
        span: Span,
        programs: &[ProgramSample],
        buffer: &mut Buffer,
    ) -> HostSample {
        let (ticks, own_cpu_ns) = (self.host.ticks(buffer), clock_ns(ClockId::ProcessCPUTime));
        let others_busy = self.others.busy(&span, ticks, own_cpu_ns);
        let own_runnable: Option<f64> =
            programs.iter().map(|p| p.cpus(span.span_ns, |s| s.runnable())).sum();
        let runnable = self.host.take_runnable();
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_spans_are_added_up_for_the_load_of_others() {
        let tick_ns = 1_000_000_000 / thread::ticks_per_s();
        let ticks = |busy| Some(HostTicks { busy });
        let mut others = Others::new(ticks(100), 0);
        let span = |n| Span { span_ns: n * tick_ns, own_ticks: n, is_watched: false, cpus: 4 };
        // The watched programs keep one CPU busy, other programs two, and Corebeat a half.
        assert_eq!(others.busy(&span(2), ticks(107), tick_ns), None);
        assert_eq!(others.busy(&span(2), ticks(114), 2 * tick_ns), None);
        assert_eq!(others.busy(&span(2), ticks(121), 3 * tick_ns), Some(2.0));
        // Short spans repeat the value.
        assert_eq!(others.busy(&span(1), ticks(122), 3 * tick_ns), Some(2.0));
        assert_eq!(others.busy(&span(9), ticks(131), 3 * tick_ns), Some(0.0));
        assert_eq!(others.busy(&span(1), None, 3 * tick_ns), None);
    }
}
