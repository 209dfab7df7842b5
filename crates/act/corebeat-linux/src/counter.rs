//! Hardware counters of single threads, if they are permitted and cheap, and of whole CPUs.
//!
//! Each switch to or from a counted thread reprograms the counters. On bare metal this takes a
//! fraction of a microsecond. The cost is measured once, and a thread is counted only while it
//! switches rarely enough.
//!
//! In a virtual machine threads are not counted: each write to a counter's register may trap. On
//! one virtual machine (Linux 6.18, AMD EPYC, two virtual CPUs), a switch of a thread with three
//! counters cost 67 µs. Two threads that woke each other over a pipe took 141 µs a round trip
//! instead of 6.6 µs. The first switch after a second without any counter took 140 ms. Virtual
//! machines therefore count whole CPUs, with sufficient permissions: such counters are never
//! switched, and did not slow down these threads. Opening them still costs 140 ms of system time
//! once, so they are opened on demand only.

use crate::file::Buffer;
use crate::perf::{self, Scope, checked};
use corebeat_machine::CpuId;
use perf_event_open_sys::{bindings, ioctls};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::time::Instant;

/// Share of the time of a thread that its counters may cost.
const COST_MAX: f64 = 0.005;

/// Counts from an arbitrary start; only differences are meaningful.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Counted {
    pub(crate) references: Option<u64>,
    pub(crate) misses: Option<u64>,
    pub(crate) instructions: Option<u64>,
}

/// Number of descriptors of the counters of a thread.
pub(crate) const DESCRIPTORS_PER_COUNTER: usize = 3;

/// Ability of this host to count threads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counting {
    /// Highest number of switches per second at which a thread is counted.
    switches_per_s_max: f64,
}

impl Counting {
    /// Opens the counters on the calling thread and measures the cost of switching them.
    ///
    /// # Errors
    /// Fails if counters are missing, not permitted, or too expensive.
    pub(crate) fn probe() -> io::Result<Self> {
        /// Enough rounds that one or two interrupts do not affect the median.
        const ROUNDS: usize = 15;
        if is_virtual(&Buffer::new().read(&File::open("/proc/cpuinfo")?)?) {
            return Err(io::Error::other("counters slow programs down in a virtual machine"));
        }
        let own = Events::open(Scope::Thread(0))?;
        let mut times = [0.0; ROUNDS];
        for time in &mut times {
            let start = Instant::now();
            own.enable()?;
            own.disable()?;
            *time = start.elapsed().as_secs_f64();
        }
        times.sort_by(f64::total_cmp);
        Ok(Counting { switches_per_s_max: COST_MAX / times[ROUNDS / 2].max(1e-9) })
    }

    /// Returns the highest number of switches per second at which a thread is counted.
    pub(crate) fn switches_per_s_max(&self) -> f64 {
        self.switches_per_s_max
    }

    /// Opens counters for a thread, disabled until the thread is known to switch rarely. `None` if
    /// not permitted.
    pub(crate) fn thread(self, tid: i32) -> Option<ThreadCounter> {
        Some(ThreadCounter {
            events: Events::open(Scope::Thread(tid)).ok()?,
            counting: self,
            enabled: false,
        })
    }
}

/// Returns whether `/proc/cpuinfo` reports a hypervisor. Only x86 processors report one.
fn is_virtual(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().find(|l| l.starts_with("flags"));
    flags.is_some_and(|l| l.split_ascii_whitespace().any(|f| f == "hypervisor"))
}

/// Events of one thread or CPU: a group, so that all events are counted at the same time.
#[derive(Debug)]
struct Events {
    /// Event of user instructions, which switches and reads the whole group.
    leader: File,
    /// Events of cache references and misses: members of the group.
    _members: [File; 2],
}

/// Number of words of a reading of a group of three (`perf_event_open(2)`, "Reading results").
const GROUP_WORDS: usize = 3 + 3;

impl Events {
    /// Opens the group, disabled.
    fn open(scope: Scope) -> io::Result<Self> {
        let leader = open(bindings::PERF_COUNT_HW_INSTRUCTIONS, scope, None)?;
        let references = open(bindings::PERF_COUNT_HW_CACHE_REFERENCES, scope, Some(&leader))?;
        let misses = open(bindings::PERF_COUNT_HW_CACHE_MISSES, scope, Some(&leader))?;
        Ok(Events { leader, _members: [references, misses] })
    }

    fn enable(&self) -> io::Result<()> {
        // SAFETY: the descriptor is an open perf event; the call takes a flag and accesses no
        // memory of this process.
        checked(unsafe { ioctls::ENABLE(self.leader.as_raw_fd(), bindings::PERF_IOC_FLAG_GROUP) })
            .map(drop)
    }

    fn disable(&self) -> io::Result<()> {
        // SAFETY: as for `enable`.
        checked(unsafe { ioctls::DISABLE(self.leader.as_raw_fd(), bindings::PERF_IOC_FLAG_GROUP) })
            .map(drop)
    }

    fn read(&self) -> io::Result<[u64; GROUP_WORDS]> {
        let mut bytes = [0; GROUP_WORDS * 8];
        (&self.leader).read_exact(&mut bytes)?;
        let mut words = [0; GROUP_WORDS];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(chunk.try_into().expect("every chunk has 8 bytes"));
        }
        Ok(words)
    }
}

fn open(event: u32, scope: Scope, leader: Option<&File>) -> io::Result<File> {
    let mut attr = bindings::perf_event_attr {
        type_: bindings::PERF_TYPE_HARDWARE,
        config: u64::from(event),
        read_format: u64::from(
            bindings::PERF_FORMAT_GROUP
                | bindings::PERF_FORMAT_TOTAL_TIME_ENABLED
                | bindings::PERF_FORMAT_TOTAL_TIME_RUNNING,
        ),
        ..Default::default()
    };
    // Members count when their leader does, and the leader starts disabled.
    attr.set_disabled(u64::from(leader.is_none()));
    perf::open(attr, scope, leader)
}

/// Counters of one thread.
#[derive(Debug)]
pub(crate) struct ThreadCounter {
    events: Events,
    counting: Counting,
    enabled: bool,
}

impl ThreadCounter {
    /// Disables the counters if the thread switches too often.
    pub(crate) fn stop_above(&mut self, switches_per_s: f64) {
        if self.enabled && switches_per_s > self.counting.switches_per_s_max {
            // An error means that the thread has ended.
            let _ = self.events.disable();
            self.enabled = false;
        }
    }

    /// Enables the counters if the thread switches rarely: below half of the limit, so that a
    /// thread near the limit does not alternate. Returns whether the counters were enabled now.
    pub(crate) fn start_below(&mut self, switches_per_s: f64) -> bool {
        let start = !self.enabled && switches_per_s < self.counting.switches_per_s_max / 2.0;
        self.enabled |= start && self.events.enable().is_ok();
        start && self.enabled
    }

    /// Returns the counts so far; `None` while the counters are disabled, or if other events use
    /// the hardware counters.
    pub(crate) fn read(&self) -> Counted {
        if self.enabled {
            self.events.read().map(scaled).unwrap_or_default()
        } else {
            Counted::default()
        }
    }
}

/// Returns the counts of a group, scaled up if the group shared the hardware counters.
fn scaled(
    [_members, enabled_ns, running_ns, instructions, references, misses]: [u64; GROUP_WORDS],
) -> Counted {
    if running_ns == 0 && enabled_ns > 0 {
        return Counted::default();
    }
    let scale = |count: u64| match enabled_ns <= running_ns {
        true => Some(count),
        false => Some((count as f64 * enabled_ns as f64 / running_ns as f64) as u64),
    };
    Counted {
        references: scale(references),
        misses: scale(misses),
        instructions: scale(instructions),
    }
}

/// Counters of all CPUs.
#[derive(Debug)]
pub(crate) struct HostCounter {
    cpus: Vec<Events>,
    /// Sums at the last call, if they were known.
    before: Option<[u64; 3]>,
}

impl HostCounter {
    /// Opens and enables the counters of these CPUs.
    ///
    /// # Errors
    /// Fails if counters are missing or not permitted: they require `CAP_PERFMON`, or
    /// `kernel.perf_event_paranoid` of 0 or below.
    pub(crate) fn open(cpus: impl Iterator<Item = CpuId>) -> io::Result<Self> {
        let cpus: Vec<Events> =
            cpus.map(|c| Events::open(Scope::Cpu(c))).collect::<io::Result<_>>()?;
        cpus.iter().try_for_each(Events::enable)?;
        Ok(HostCounter { cpus, before: Some([0; 3]) })
    }

    /// Returns the counts since the last call, or since opening.
    pub(crate) fn take(&mut self) -> Counted {
        let now = self.sums();
        let before = std::mem::replace(&mut self.before, now);
        let new = |i: usize| now.zip(before).map(|(now, before)| now[i].saturating_sub(before[i]));
        Counted { references: new(0), misses: new(1), instructions: new(2) }
    }

    /// Returns references, misses and instructions of all CPUs since opening; `None` if the counts
    /// of a CPU are unknown.
    fn sums(&self) -> Option<[u64; 3]> {
        let mut sums = [0u64; 3];
        for cpu in &self.cpus {
            let counted = cpu.read().map(scaled).unwrap_or_default();
            let Counted {
                references: Some(references),
                misses: Some(misses),
                instructions: Some(instructions),
            } = counted
            else {
                return None;
            };
            let words = [references, misses, instructions];
            sums.iter_mut().zip(words).for_each(|(s, w)| *s = s.saturating_add(w));
        }
        Some(sums)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_machines_are_detected_by_their_flag() {
        assert!(is_virtual("processor : 0\nflags\t\t: fpu vme hypervisor lahf_lm\n"));
        assert!(!is_virtual("processor : 0\nflags\t\t: fpu vme lahf_lm\n"));
        assert!(!is_virtual("Features : fp asimd\n"));
    }

    #[test]
    fn counted_is_scaled_by_the_time_on_the_processor() {
        let counted = scaled([3, 200, 100, 10, 4, 1]);
        assert_eq!(counted.instructions, Some(20));
        assert_eq!((counted.references, counted.misses), (Some(8), Some(2)));
        assert_eq!(scaled([3, 0, 0, 0, 0, 0]).misses, Some(0));
    }

    #[test]
    fn host_counter_counts_the_work_of_this_thread() {
        let Ok(mut host) = HostCounter::open(corebeat_topology::topology().cpu_set().iter()) else {
            println!("skipped: counting CPUs is not permitted");
            return;
        };
        host.take();
        std::hint::black_box((0..1_000_000u64).fold(0, |a, b| a ^ std::hint::black_box(b)));
        // Counts are unknown if other events use the hardware counters.
        assert!(host.take().instructions.is_none_or(|i| i > 1_000_000));
    }

    #[test]
    fn counted_never_on_the_processor_is_unknown() {
        assert_eq!(scaled([3, 200, 0, 0, 0, 0]), Counted::default());
    }

    #[test]
    fn counter_of_this_thread_counts_while_enabled() {
        // The cost is irrelevant here, but counters must exist and be permitted.
        let counting = Counting { switches_per_s_max: 1000.0 };
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        let Some(mut counter) = counting.thread(tid) else { return };
        assert_eq!(counter.read(), Counted::default());
        assert!(counter.start_below(0.0));
        let before = counter.read().instructions.unwrap();
        let sum: u64 = (0..100_000).map(std::hint::black_box).sum();
        std::hint::black_box(sum);
        assert!(counter.read().instructions.unwrap() > before + 100_000);
        counter.stop_above(f64::INFINITY);
        assert_eq!(counter.read(), Counted::default());
    }

    #[test]
    fn counter_of_no_thread_is_none() {
        let counting = Counting { switches_per_s_max: 1000.0 };
        assert!(counting.thread(i32::MAX).is_none());
    }
}
