//! Hardware counters of single threads, where they are permitted and cost next to nothing.
//!
//! Each switch to or from a counted thread programs the counters anew. On bare metal that takes a fraction of a
//! microsecond, so what it costs is measured once, and a thread is counted only while it switches rarely enough.
//!
//! In a virtual machine threads are not counted: each write to a counter's register may trap. On one (Linux 6.18, AMD EPYC,
//! two virtual CPUs) a switch of a thread with three counters cost 67 µs, two threads that played ping-pong over a pipe
//! took 141 µs a round trip against 6.6 µs, and the first switch after a second without any counter took 140 ms. There the
//! CPUs are counted as wholes, by those who may: such counters are never switched, and the ping-pong did not slow down.
//! Those 140 ms of system time are still paid once, so they are opened only when there is use for them.

use crate::file::Buffer;
use corebeat_machine::CpuId;
use perf_event_open_sys::{bindings, ioctls};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::time::Instant;

/// The part of a thread's time that counting it may cost.
const COST_MAX: f64 = 0.005;

/// What was counted of a thread, from some moment on: only differences mean something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Counted {
    pub(crate) references: Option<u64>,
    pub(crate) misses: Option<u64>,
    pub(crate) instructions: Option<u64>,
}

/// The descriptors that a thread's counters take.
pub(crate) const DESCRIPTORS_PER_COUNTER: usize = 3;

/// Counting, on this host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counting {
    /// Switches a second up to which a thread may be counted.
    switches_per_s_max: f64,
}

impl Counting {
    /// Tries the counters on the calling thread, and measures what switching them costs.
    ///
    /// # Errors
    /// Where they are not there, not permitted, or too costly.
    pub(crate) fn probe() -> io::Result<Self> {
        /// Enough for the median to shrug off an interrupt or two.
        const ROUNDS: usize = 15;
        if is_virtual(&Buffer::new().read(&File::open("/proc/cpuinfo")?)?) {
            return Err(io::Error::other("in a virtual machine they would slow the program down"));
        }
        let own = Events::open(Whom::Thread(0))?;
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

    /// How often a thread may switch and still be counted, a second.
    pub(crate) fn switches_per_s_max(&self) -> f64 {
        self.switches_per_s_max
    }

    /// Counters for a thread, switched off until it is known to switch rarely. `None` where it is not permitted.
    pub(crate) fn thread(self, tid: i32) -> Option<ThreadCounter> {
        Some(ThreadCounter { events: Events::open(Whom::Thread(tid)).ok()?, counting: self, on: false })
    }
}

/// Whether the beginning of `/proc/cpuinfo` tells of a hypervisor. x86 only: others do not tell.
fn is_virtual(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().find(|l| l.starts_with("flags"));
    flags.is_some_and(|l| l.split_ascii_whitespace().any(|f| f == "hypervisor"))
}

/// The events of one thread: a group, so that all are on the processor at the same time.
#[derive(Debug)]
struct Events {
    /// User instructions; switches and reads the whole group.
    leader: File,
    /// Cache references and misses, kept open for the leader's sake.
    _members: [File; 2],
}

/// What the kernel writes when a group of three is read (`perf_event_open(2)`, "Reading results").
const GROUP_WORDS: usize = 3 + 3;

impl Events {
    /// Opens the group. It starts switched off.
    fn open(whom: Whom) -> io::Result<Self> {
        let leader = open(bindings::PERF_COUNT_HW_INSTRUCTIONS, whom, None)?;
        let references = open(bindings::PERF_COUNT_HW_CACHE_REFERENCES, whom, Some(&leader))?;
        let misses = open(bindings::PERF_COUNT_HW_CACHE_MISSES, whom, Some(&leader))?;
        Ok(Events { leader, _members: [references, misses] })
    }

    fn enable(&self) -> io::Result<()> {
        // SAFETY: the descriptor is an open perf event; the call takes a flag and touches no memory of ours.
        checked(unsafe { ioctls::ENABLE(self.leader.as_raw_fd(), bindings::PERF_IOC_FLAG_GROUP) }).map(drop)
    }

    fn disable(&self) -> io::Result<()> {
        // SAFETY: as for `enable`.
        checked(unsafe { ioctls::DISABLE(self.leader.as_raw_fd(), bindings::PERF_IOC_FLAG_GROUP) }).map(drop)
    }

    fn read(&self) -> io::Result<[u64; GROUP_WORDS]> {
        let mut bytes = [0; GROUP_WORDS * 8];
        (&self.leader).read_exact(&mut bytes)?;
        let mut words = [0; GROUP_WORDS];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(chunk.try_into().expect("chunks of 8 are 8 long"));
        }
        Ok(words)
    }
}

/// Whose events are counted.
#[derive(Debug, Clone, Copy)]
enum Whom {
    /// A thread's, wherever it runs; 0 is the calling one.
    Thread(i32),
    /// A CPU's, whoever runs.
    Cpu(CpuId),
}

fn open(event: u32, whom: Whom, leader: Option<&File>) -> io::Result<File> {
    let mut attr = bindings::perf_event_attr {
        size: size_of::<bindings::perf_event_attr>() as u32,
        type_: bindings::PERF_TYPE_HARDWARE,
        config: u64::from(event),
        read_format: u64::from(
            bindings::PERF_FORMAT_GROUP
                | bindings::PERF_FORMAT_TOTAL_TIME_ENABLED
                | bindings::PERF_FORMAT_TOTAL_TIME_RUNNING,
        ),
        ..Default::default()
    };
    // A member runs when its leader does, and the leader starts switched off.
    attr.set_disabled(u64::from(leader.is_none()));
    // User mode only: that is what a program's own work is, and what `perf_event_paranoid` 2 permits.
    attr.set_exclude_kernel(1);
    attr.set_exclude_hv(1);
    let group = leader.map_or(-1, AsRawFd::as_raw_fd);
    const ANY: i32 = -1;
    let (tid, cpu) = match whom {
        Whom::Thread(tid) => (tid, ANY),
        Whom::Cpu(cpu) => (ANY, cpu.0 as i32),
    };
    let flags = u64::from(bindings::PERF_FLAG_FD_CLOEXEC);
    // SAFETY: `attr` is valid for the call and says its own size.
    let fd =
        checked(unsafe { perf_event_open_sys::perf_event_open(&mut attr, tid, cpu, group, flags as _) })?;
    // SAFETY: the kernel has just opened this descriptor for us alone.
    Ok(unsafe { File::from_raw_fd(fd) })
}

fn checked(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The counters of one thread.
#[derive(Debug)]
pub(crate) struct ThreadCounter {
    events: Events,
    counting: Counting,
    on: bool,
}

impl ThreadCounter {
    /// Switches the counters off if the thread switches too often for them.
    pub(crate) fn stop_above(&mut self, switches_per_s: f64) {
        if self.on && switches_per_s > self.counting.switches_per_s_max {
            // A refusal means that the thread has ended.
            let _ = self.events.disable();
            self.on = false;
        }
    }

    /// Switches the counters on if the thread switches rarely: below half the limit, so that a thread near it does not go
    /// to and fro. Whether they were off and now are on.
    pub(crate) fn start_below(&mut self, switches_per_s: f64) -> bool {
        let start = !self.on && switches_per_s < self.counting.switches_per_s_max / 2.0;
        self.on |= start && self.events.enable().is_ok();
        start && self.on
    }

    /// What was counted so far; nothing is known while the counters are off, or if others hold the processor's.
    pub(crate) fn read(&self) -> Counted {
        if self.on { self.events.read().map(scaled).unwrap_or_default() } else { Counted::default() }
    }
}

/// Counts of a group, scaled up where the group had to share the processor's counters with others.
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
    Counted { references: scale(references), misses: scale(misses), instructions: scale(instructions) }
}

/// The counters of all CPUs.
#[derive(Debug)]
pub(crate) struct HostCounter {
    cpus: Vec<Events>,
    /// The sums at the last call, if they were known.
    before: Option<[u64; 3]>,
}

impl HostCounter {
    /// Counts on these CPUs from now on.
    ///
    /// # Errors
    /// Where they are not there, or not permitted: it takes `CAP_PERFMON`, or `kernel.perf_event_paranoid` at 0 or below.
    pub(crate) fn open(cpus: impl Iterator<Item = CpuId>) -> io::Result<Self> {
        let cpus: Vec<Events> = cpus.map(|c| Events::open(Whom::Cpu(c))).collect::<io::Result<_>>()?;
        cpus.iter().try_for_each(Events::enable)?;
        Ok(HostCounter { cpus, before: Some([0; 3]) })
    }

    /// What was counted since the last call, or since the opening.
    pub(crate) fn take(&mut self) -> Counted {
        let now = self.sums();
        let before = std::mem::replace(&mut self.before, now);
        let new = |i: usize| now.zip(before).map(|(now, before)| now[i].saturating_sub(before[i]));
        Counted { references: new(0), misses: new(1), instructions: new(2) }
    }

    /// References, misses and instructions of all CPUs since the opening; `None` if those of one are not known.
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
    use std::path::Path;

    #[test]
    fn virtual_machines_are_told_by_their_flag() {
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
    fn host_counter_sees_what_this_thread_does() {
        let Ok(mut host) = HostCounter::open(crate::topology::read(Path::new("/sys")).cpu_set().iter())
        else {
            println!("skipped: CPUs may not be counted here");
            return;
        };
        host.take();
        std::hint::black_box((0..1_000_000u64).fold(0, |a, b| a ^ std::hint::black_box(b)));
        // Nothing at all is counted where the processor's counters are somebody else's.
        assert!(host.take().instructions.is_none_or(|i| i > 1_000_000));
    }

    #[test]
    fn counted_never_on_the_processor_is_unknown() {
        assert_eq!(scaled([3, 200, 0, 0, 0, 0]), Counted::default());
    }

    #[test]
    fn counter_of_this_thread_counts_while_it_is_on() {
        // Here it may cost what it likes, but the processor has to have counters, and they must be permitted.
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
