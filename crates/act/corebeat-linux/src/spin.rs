//! Detecting threads that spin, by samples of the instruction pointer and analysis of the code.
//!
//! Every counter of the kernel counts a thread that waits in a loop as busy. The sampler reads the
//! instruction pointers of running threads many times per second, and analyses the code there:
//! `code.rs` defines what counts as waiting, and `call.rs` follows loops through the functions that
//! they call, by the registers and the stack of a sample. Each address is analysed once and cached,
//! for each caller. The share of spinning samples of a thread, times its share of user time, is its
//! spin time.
//!
//! # Cost
//!
//! The kernel starts and stops the sampling clock of a thread at each switch. Measured on two
//! virtual CPUs with two threads that wake each other 300,000 times per second, Linux 6.18, in
//! added CPU time for each switch:
//!
//! | events | µs a switch |
//! | --- | --- |
//! | one for each CPU, for all threads | 0.01 |
//! | inherited from the first thread of the program, as `perf record` does | 0.4 |
//! | one for each thread | 1.1 for each side of the switch with an event |
//! | none, for about a second after the last one was closed | 0.4 |
//!
//! If permitted, all threads are therefore sampled all the time: 0.02% of a CPU at 20,000 switches
//! per second. The samples cost 20 µs each on such a CPU, including the analysis of new code: four
//! programs, each with a watcher that takes 97 samples per second and CPU, lose 0.9%. The rate
//! drops to a quarter while hardly any thread spins. Without the permission, threads are sampled
//! individually, without their stacks, in bursts of a tenth of a second: every second if threads
//! spin (switches are rare then), and every four seconds otherwise: 0.3% at 20,000 switches per
//! second. Opening and closing an event takes 20 µs for each thread, so a burst has at most
//! [`BURST_THREADS_MAX`] threads.
//!
//! Following a loop through calls takes 1 µs for each instruction, and 1,000 instructions at most.
//! All such analyses together, with the searches for callers, follow at most 10,000 instructions
//! per second: 1% of a CPU, for programs whose samples always have new addresses.
//!
//! The first spinning sample at an address of a process also locates the address in a file, in
//! 0.1 ms. At most once a second, and only for new places, the symbols of these files are read:
//! 0.5 ms for a stripped C library, 6 ms for a program with 32,000 functions, both without
//! optimisation. See `place.rs`.

#[cfg(target_arch = "x86_64")]
mod analysis;
#[cfg(target_arch = "x86_64")]
mod call;
#[cfg(target_arch = "x86_64")]
mod code;
#[cfg(target_arch = "x86_64")]
mod evidence;
mod mapping;
mod place;
mod ring;
#[cfg(target_arch = "x86_64")]
mod state;
mod symbol;

use crate::Error;
use crate::perf::Scope;
use corebeat_machine::CpuSet;
pub use place::{Function, SpinFunction, SpinTimes};
use place::{Maps, Names, Place};
use ring::{Record, Ring};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Number of CPUs above which the rate for each CPU drops: analysing a new address takes 10 µs, and
/// every sample of a program may have a new address.
const CPUS_AT_FULL_RATE: u64 = 8;

/// Samples per second of each CPU. A prime number avoids resonance with programs that act every
/// hundredth of a second.
const CPU_HZ: u64 = 97;
/// Samples per second while no thread spins: each sample interrupts the running thread, and each
/// watching process takes separate samples.
const CALM_HZ: u64 = 23;
/// Time without spinning after which the rate drops; the rate is chosen anew after each such time.
const CALM_AFTER: Duration = Duration::from_millis(980);
/// Pages of a ring: more than one second of samples, and records of processes that start and end.
const CPU_PAGES: usize = 32;

/// Number of bytes of the stack in a sample: the frames of the functions that a waiting loop calls.
const STACK_BYTES: u32 = 512;

/// Samples per second of run time within a burst.
const BURST_HZ: u64 = 997;
/// Pages of a burst: 170 samples, more than a burst has.
const BURST_PAGES: usize = 1;
/// Samples of a burst have no stacks, which would take sixteen times as much memory for each
/// thread.
const BURST_STACK_BYTES: u32 = 0;
/// Minimum length of a burst, which ends with the next sample (samples come about every 100 ms).
const BURST: Duration = Duration::from_millis(80);
/// Time from the start of a burst to the next if threads spin; doubled after each burst without
/// spinning, up to the maximum.
const BURST_PERIOD_MIN: Duration = Duration::from_millis(980);
const BURST_PERIOD_MAX: Duration = Duration::from_millis(3_980);
/// Threads count as spinning if at least one in this number of samples does, in a burst or since
/// the rate was chosen.
const SPINNING_ONE_IN: u32 = 16;
/// Number of threads in a burst; the next burst continues with later threads.
const BURST_THREADS_MAX: usize = 256;

/// A loop of a process with calls: its lowest address when it was found.
type LoopId = (i32, u64);

/// Result of the analysis of a sample.
#[derive(Debug)]
enum Sampled {
    /// The code could not be read.
    Unread,
    /// The code does not wait.
    Computes,
    /// The code waits at this place.
    Waits(Arc<Place>),
    /// The code waits at this place if the samples of this loop show that the loop waits.
    WaitsInCalls(LoopId, Arc<Place>),
}

/// Samples of a thread.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Samples {
    /// Number of samples in user code.
    total: u32,
    /// Number of samples in loops that wait for a write by another thread, by the place of the
    /// sample.
    spinning: HashMap<Arc<Place>, u32>,
    /// Number of samples in loops that may wait in functions that they call, by loop and place.
    in_calls: HashMap<(LoopId, Arc<Place>), u32>,
}

impl Samples {
    fn spinning(&self) -> u32 {
        self.spinning.values().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Returns the part of the samples that found the thread spinning. `None` without samples.
    pub(crate) fn spinning_part(&self) -> Option<f64> {
        (self.total > 0).then(|| f64::from(self.spinning()) / f64::from(self.total))
    }

    /// Adds a time for which the thread spun to the times of the places where it spun.
    pub(crate) fn divide(&self, spin_ns: f64, times: &mut SpinTimes) {
        let all = f64::from(self.spinning());
        for (place, &count) in &self.spinning {
            times.add(place.clone(), spin_ns * f64::from(count) / all);
        }
    }

    fn count(&mut self, sampled: &Sampled) {
        let count = match sampled {
            Sampled::Unread => return,
            Sampled::Computes => None,
            Sampled::Waits(place) => Some(self.spinning.entry(place.clone()).or_default()),
            Sampled::WaitsInCalls(id, place) => {
                Some(self.in_calls.entry((*id, place.clone())).or_default())
            }
        };
        self.total = self.total.saturating_add(1);
        if let Some(count) = count {
            *count = count.saturating_add(1);
        }
    }

    /// Returns whether at least one in [`SPINNING_ONE_IN`] samples may be spinning.
    fn may_spin(&self) -> bool {
        let in_calls = self.in_calls.values().fold(0, |sum: u32, count| sum.saturating_add(*count));
        let spinning = self.spinning().saturating_add(in_calls);
        spinning > 0 && spinning >= self.total / SPINNING_ONE_IN
    }

    /// Decides which of the loops with calls wait.
    fn settle(&mut self, waits: impl Fn(LoopId) -> bool) {
        for ((id, place), count) in self.in_calls.drain() {
            if waits(id) {
                let sum = self.spinning.entry(place).or_default();
                *sum = sum.saturating_add(count);
            }
        }
    }
}

/// Samples running threads and detects which of them spin.
///
/// Requires `kernel.perf_event_paranoid` of 2 or less for own programs, or `CAP_PERFMON` for all
/// programs. x86-64 only.
#[derive(Debug)]
pub(crate) struct SpinSampler {
    samples_all: bool,
    /// Whether the rate is reduced because hardly any thread spins.
    calm: bool,
    /// Whether the rate was reduced at any time since the last [`SpinSampler::take`].
    was_calm: bool,
    burst_hz: u64,
    rings: Vec<Ring>,
    /// Start of the last burst, or time at which the rate was chosen.
    burst_began: Option<Instant>,
    /// Time until the next burst or choice.
    burst_period: Duration,
    /// Sum of all samples since then.
    burst: Samples,
    /// Position of the next burst in the order of threads.
    burst_from: usize,
    #[cfg(target_arch = "x86_64")]
    analysis: analysis::Analysis,
    /// Names of the functions in which threads spin.
    pub(crate) names: Names,
    samples: HashMap<i32, Samples>,
    lost: u64,
    unread: u64,
    buffer: Vec<u8>,
}

impl SpinSampler {
    /// Creates a sampler of all threads or, without that permission, of the threads that
    /// [`SpinSampler::sample`] receives.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if neither is permitted, or if the machine code of this processor
    /// cannot be analysed.
    pub(crate) fn new() -> Result<Self, Error> {
        Self::all_threads().or_else(|_| Self::bursts())
    }

    /// Creates a sampler of all threads of this host.
    fn all_threads() -> Result<Self, Error> {
        let cpus = online()?;
        let hz = for_all(CPU_HZ, cpus.len());
        let open = |cpu| Ring::open(Scope::Cpu(cpu), hz, CPU_PAGES, STACK_BYTES);
        Self::of(true, 0, cpus.iter().map(open).collect::<Result<_, _>>()?)
    }

    /// Creates a sampler of individual threads, in bursts.
    fn bursts() -> Result<Self, Error> {
        // Check the permission now.
        Ring::open(Scope::Thread(0), BURST_HZ, BURST_PAGES, BURST_STACK_BYTES)?;
        Self::of(false, for_all(BURST_HZ, online()?.len()), Vec::new())
    }

    fn of(samples_all: bool, burst_hz: u64, rings: Vec<Ring>) -> Result<Self, Error> {
        if cfg!(not(target_arch = "x86_64")) {
            return Err(Error::Unsupported {
                what: "spin time".into(),
                how: "only machine code of x86-64 can be analysed".into(),
            });
        }
        Ok(SpinSampler {
            samples_all,
            calm: false,
            was_calm: false,
            burst_hz,
            rings,
            burst_began: None,
            burst_period: BURST_PERIOD_MIN,
            burst: Samples::default(),
            burst_from: 0,
            #[cfg(target_arch = "x86_64")]
            analysis: analysis::Analysis::default(),
            names: Names::default(),
            samples: HashMap::new(),
            lost: 0,
            unread: 0,
            buffer: Vec::new(),
        })
    }

    /// Returns whether all threads are sampled all the time, not individual ones in bursts.
    pub(crate) fn samples_all_threads(&self) -> bool {
        self.samples_all
    }

    /// Returns the run time in user mode below which a thread without samples counts as not
    /// spinning: it would have five samples at most.
    pub(crate) fn unsampled_ns_max(&self) -> f64 {
        5e9 / if self.was_calm { CALM_HZ as f64 } else { CPU_HZ as f64 }
    }

    /// Analyses new samples of processes that are `wanted`. Call this function about ten times per
    /// second; `tids` are the threads to sample in bursts, preferably those that ran recently.
    ///
    /// Threads and processes that have ended or belong to other users are no error: they have no
    /// samples.
    pub(crate) fn sample(
        &mut self,
        wanted: impl Fn(i32) -> bool,
        tids: impl IntoIterator<Item = i32>,
    ) {
        self.judge_rings(wanted);
        let spins = self.burst.may_spin();
        if self.samples_all {
            return self.choose_rate(spins, Instant::now());
        }
        let since = self.burst_began.map_or(Duration::MAX, |began| began.elapsed());
        if since >= BURST && !self.rings.is_empty() {
            self.rings.clear();
            self.burst_period = if spins {
                BURST_PERIOD_MIN
            } else {
                (self.burst_period * 2).min(BURST_PERIOD_MAX)
            };
        }
        if since >= self.burst_period {
            let tids: Vec<i32> = tids.into_iter().collect();
            let from = if self.burst_from < tids.len() { self.burst_from } else { 0 };
            let burst = tids.iter().skip(from).take(BURST_THREADS_MAX);
            let scope = |tid| Scope::Thread(tid);
            let open =
                |&tid| Ring::open(scope(tid), self.burst_hz, BURST_PAGES, BURST_STACK_BYTES).ok();
            self.rings.extend(burst.filter_map(open));
            self.burst_from = from + BURST_THREADS_MAX;
            self.burst_began = Some(Instant::now());
            self.burst = Samples::default();
        }
    }

    /// Raises the rate as soon as a thread spins, and reduces it when hardly any thread spins.
    fn choose_rate(&mut self, spins: bool, now: Instant) {
        let began = *self.burst_began.get_or_insert(now);
        if !(self.calm && spins) && now.saturating_duration_since(began) < CALM_AFTER {
            return;
        }
        if self.calm == spins {
            self.calm = !spins;
            self.was_calm |= self.calm;
            let hz = for_all(if self.calm { CALM_HZ } else { CPU_HZ }, self.rings.len());
            self.rings.iter().for_each(|ring| ring.set_rate(hz));
        }
        self.burst_began = Some(now);
        self.burst = Samples::default();
    }

    /// Returns the samples since the last call, by thread number. Threads that did not run in user
    /// mode are missing.
    pub(crate) fn take(&mut self) -> HashMap<i32, Samples> {
        self.was_calm = self.calm;
        let mut samples = std::mem::take(&mut self.samples);
        #[cfg(target_arch = "x86_64")]
        samples.values_mut().for_each(|s| s.settle(|id| self.analysis.shows_waiting(id)));
        samples
    }

    #[cfg(target_arch = "x86_64")]
    fn judge_rings(&mut self, wanted: impl Fn(i32) -> bool) {
        let SpinSampler { rings, analysis, names, samples, burst, lost, unread, buffer, .. } = self;
        let mut changed = HashSet::new();
        let (mut maps, mut pages) = (Maps::new(), call::Pages::default());
        analysis.begin_round();
        for ring in rings {
            buffer.clear();
            *lost += u64::from(!ring.take(buffer));
            ring::records(buffer, |record| match record {
                Record::Sample { pid, tid, ip, context } if wanted(pid) => {
                    let known = (&mut *names, &mut maps, &mut pages);
                    let sampled = analysis.sample((pid, ip), context, known);
                    if let Sampled::Unread = sampled {
                        return *unread += 1;
                    }
                    samples.entry(tid).or_default().count(&sampled);
                    burst.count(&sampled);
                }
                Record::Sample { .. } => {}
                Record::Forget { pid } => _ = changed.insert(pid),
                Record::Lost(records) => *lost += records,
            });
        }
        if !changed.is_empty() {
            analysis.forget(&changed);
        }
    }

    /// No sampler exists for other processors.
    #[cfg(not(target_arch = "x86_64"))]
    fn judge_rings(&mut self, _: impl Fn(i32) -> bool) {}

    /// Returns the number of records that did not fit into the rings.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns the number of samples whose code could not be read, because the process had ended or
    /// belongs to another user.
    pub(crate) fn unread(&self) -> u64 {
        self.unread
    }
}

/// Returns the rate for each CPU at which the samples of all CPUs can be analysed.
fn for_all(hz: u64, cpus: usize) -> u64 {
    (hz * CPUS_AT_FULL_RATE / cpus.max(1) as u64).clamp(1, hz)
}

fn online() -> Result<CpuSet, Error> {
    let path = Path::new("/sys/devices/system/cpu/online");
    let read = |source| Error::Read { path: path.into(), source };
    let text = std::fs::read_to_string(path).map_err(read)?;
    text.trim().parse().map_err(|e| read(std::io::Error::other(e)))
}

/// Reads the code around an address. Returns the code and its start address.
#[cfg(target_arch = "x86_64")]
fn read_code(pid: i32, ip: u64) -> Option<(Vec<u8>, u64)> {
    // No code is in the first or the last page of the address space.
    let start = ip.checked_sub(code::REACH_BYTES)?;
    ip.checked_add(code::REACH_BYTES)?;
    read_memory(pid, start, ip).or_else(|| read_file(pid, start, ip))
}

/// Reads a page of code or data of a process.
#[cfg(target_arch = "x86_64")]
fn read_page(pid: i32, start: u64) -> Option<Box<[u8]>> {
    let mut page = vec![0u8; 4096].into_boxed_slice();
    let local = libc::iovec { iov_base: page.as_mut_ptr().cast(), iov_len: page.len() };
    let remote = libc::iovec { iov_base: start as *mut libc::c_void, iov_len: page.len() };
    // SAFETY: `local` describes `page`, which this function owns; the kernel checks addresses of
    // the other process.
    let read = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
    (read == page.len() as isize).then_some(page)
}

/// Reads code from the memory of the process. Requires permission to trace the process: under Yama
/// (`kernel.yama.ptrace_scope` 1) only children may be traced.
#[cfg(target_arch = "x86_64")]
fn read_memory(pid: i32, start: u64, ip: u64) -> Option<(Vec<u8>, u64)> {
    // Neighbouring pages may be missing; the kernel copies each part completely or not at all.
    let page_bytes = rustix::param::page_size() as u64;
    let page = ip - ip % page_bytes;
    [start, page.max(start)].into_iter().find_map(|start| {
        let until = ip + code::REACH_BYTES;
        let behind = page.saturating_add(page_bytes).min(until);
        let part = |from: u64, until: u64| libc::iovec {
            iov_base: from as *mut libc::c_void,
            iov_len: (until - from) as usize,
        };
        let remote = [part(start, behind), part(behind, until)];
        let mut code = vec![0u8; (until - start) as usize];
        let local = libc::iovec { iov_base: code.as_mut_ptr().cast(), iov_len: code.len() };
        // SAFETY: `local` describes `code`, which this function owns; the kernel checks addresses
        // of the other process.
        let read = unsafe { libc::process_vm_readv(pid, &local, 1, remote.as_ptr(), 2, 0) };
        code.truncate(usize::try_from(read).ok()?);
        (start + code.len() as u64 > ip).then_some((code, start))
    })
}

/// Reads code from the mapped file: equal to the memory, except for generated code.
#[cfg(target_arch = "x86_64")]
fn read_file(pid: i32, start: u64, ip: u64) -> Option<(Vec<u8>, u64)> {
    use std::os::unix::fs::FileExt;
    let mapping = mapping::executable(pid).find(|mapping| mapping.addresses.contains(&ip))?;
    let start = start.max(mapping.addresses.start);
    let mut code = vec![0; (ip - start + code::REACH_BYTES) as usize];
    let read = mapping.open(pid)?.read_at(&mut code, mapping.offset_of(start)?).ok()?;
    code.truncate(read);
    (start + read as u64 > ip).then_some((code, start))
}

#[cfg(test)]
pub(crate) mod barrier;
#[cfg(all(test, target_arch = "x86_64"))]
mod corpus;

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use std::arch::asm;
    use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

    /// Samples a spinning and a computing thread until both have enough samples.
    fn samples_of_both(mut sampler: SpinSampler) -> [(u32, u32); 2] {
        const ENOUGH: u32 = 20;
        let stop = AtomicBool::new(false);
        let tids = [AtomicI32::new(0), AtomicI32::new(0)];
        // The number of samples, and of those that found the thread spinning.
        let mut sum = [(0, 0); 2];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                tids[0].store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Release);
                // SAFETY: reads a flag that outlives the thread until the flag is set.
                unsafe { asm!("2:", "cmp byte ptr [{}], 0", "je 2b", in(reg) stop.as_ptr()) };
            });
            scope.spawn(|| {
                tids[1].store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Release);
                while !stop.load(Ordering::Relaxed) {
                    // SAFETY: uses only its own registers.
                    unsafe {
                        asm!(
                            "2:", "imul {x}, {x}, 3", "dec {n}", "jne 2b",
                            x = inout(reg) 1u64 => _,
                            n = inout(reg) 1_000_000u64 => _
                        )
                    };
                }
            });
            let until = Instant::now() + Duration::from_secs(60);
            while sum.iter().any(|s| s.0 < ENOUGH) && Instant::now() < until {
                let tids = [&tids[0], &tids[1]].map(|t| t.load(Ordering::Acquire));
                let me = std::process::id() as i32;
                sampler.sample(|pid| pid == me, tids.into_iter().filter(|t| *t != 0));
                for (tid, samples) in sampler.take() {
                    if let Some(i) = tids.iter().position(|t| *t == tid) {
                        sum[i].0 += samples.total;
                        sum[i].1 += samples.spinning();
                    }
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            stop.store(true, Ordering::Release);
        });
        assert!(sum.iter().all(|s| s.0 >= ENOUGH), "too few samples within a minute: {sum:?}");
        sum
    }

    fn check_spinning_and_computing(sampler: Result<SpinSampler, Error>) {
        match sampler {
            Err(e) => println!("skipped: {e}"),
            Ok(sampler) => {
                let [(all, spinning), (all_computing, false_alarms)] = samples_of_both(sampler);
                assert!(spinning * 10 >= all * 9, "{spinning} of {all}");
                assert!(false_alarms * 10 <= all_computing, "{false_alarms} of {all_computing}");
            }
        }
    }

    #[test]
    fn sampling_all_threads_distinguishes_spinning_from_computing() {
        check_spinning_and_computing(SpinSampler::all_threads());
    }

    #[test]
    fn bursts_distinguish_spinning_from_computing() {
        check_spinning_and_computing(SpinSampler::bursts());
    }

    #[test]
    fn rate_is_high_only_while_threads_spin() {
        let Ok(mut sampler) = SpinSampler::all_threads() else {
            return println!("skipped: not permitted");
        };
        let mut now = Instant::now();
        for (spins, window_over, calm) in [
            (false, false, false), // no decision yet
            (false, true, true),
            (false, true, true),
            (true, false, false), // at once
            (false, false, false),
            (true, true, false),
            (false, true, true),
        ] {
            now += if window_over { CALM_AFTER } else { Duration::from_millis(1) };
            sampler.choose_rate(spins, now);
            assert_eq!(sampler.calm, calm, "{spins} {window_over}");
        }
        // The rate was reduced for a part of the time.
        sampler.choose_rate(true, now);
        assert!(sampler.unsampled_ns_max() > 200e6);
        sampler.take();
        assert!(sampler.unsampled_ns_max() < 60e6);
    }

    #[test]
    fn code_from_the_file_is_the_code_in_memory() {
        let ip = code_from_the_file_is_the_code_in_memory as *const () as u64;
        let (pid, start) = (std::process::id() as i32, ip - code::REACH_BYTES);
        let memory = read_memory(pid, start, ip);
        assert!(
            memory.as_ref().is_some_and(|(code, _)| code.len() as u64 == 2 * code::REACH_BYTES)
        );
        assert_eq!(memory, read_file(pid, start, ip));
    }

    #[test]
    fn code_of_a_missing_process_or_address_is_unknown() {
        assert_eq!(analysis::judge(i32::MAX, 0x40_0000), None);
        let me = std::process::id() as i32;
        for ip in [0, 1, code::REACH_BYTES, u64::MAX, u64::MAX - 1000, 1 << 63] {
            assert_eq!(analysis::judge(me, ip), None, "{ip:x}");
        }
    }
}
