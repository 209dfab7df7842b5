//! Seeing threads that spin: samples of the instruction pointer, and a look at the code around it.
//!
//! A thread that waits in a loop looks busy to every counter of the kernel's. So the kernel is asked where running threads
//! are, many times a second, and the code there is read and judged: see `code.rs` for what counts as waiting. Code is
//! judged once and remembered. The share of a thread's samples that wait, times its share of user time, is the share of
//! time that it spins.
//!
//! # What it costs
//!
//! A clock that samples a thread is started and stopped at each switch. Measured on two virtual CPUs with two threads that
//! wake each other 300,000 times a second, Linux 6.18, in added CPU time for each switch:
//!
//! | events | µs a switch |
//! | --- | --- |
//! | one for each CPU, for everybody | 0.01 |
//! | inherited from the program's first thread, as `perf record` does | 0.4 |
//! | one for each thread | 1.1 for each side of the switch that has one |
//! | none any more, for about a second after the last one was closed | 0.4 |
//!
//! So everybody is sampled all the time where that is permitted: 0.02% of a CPU at 20,000 switches a second. To that come the
//! samples themselves, 20 µs each on such a CPU, code that was never judged included: four programs, each with a watcher that
//! takes 97 a second of each CPU, lose 0.9% to them. So there are a quarter as many while next to nobody spins. Otherwise
//! threads are sampled one by one in bursts of a tenth of a second: every second where somebody spins (and then switches are
//! few), and every four seconds where nobody does: 0.3% at 20,000 switches a second. To open and close an event takes 20 µs
//! for each thread: at most [`BURST_THREADS_MAX`] of them in a burst.

#[cfg(target_arch = "x86_64")]
mod code;
mod ring;

use crate::Error;
use corebeat_machine::CpuSet;
use ring::{Record, Ring, Whom};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::BufRead;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// On more than so many CPUs, each is sampled less often: a new address costs 10 µs to judge, and a program may show a new
/// one in every sample.
const CPUS_AT_FULL_RATE: u64 = 8;

/// Samples a second of each CPU. A prime, so that programs that do something every hundredth of a second are not always
/// seen doing just that.
const CPU_HZ: u64 = 97;
/// The same while nobody spins: each sample interrupts whoever runs, and each process that watches takes samples of its own.
const CALM_HZ: u64 = 23;
/// Nobody spins if nobody did for so long; after each such time the rate is chosen anew.
const CALM_AFTER: Duration = Duration::from_millis(980);
/// Room for more than a second, beside the news of processes that start and end.
const CPU_PAGES: usize = 8;

/// Samples for each second that a thread runs within a burst.
const BURST_HZ: u64 = 997;
/// Room for 170 samples: more than a burst has.
const BURST_PAGES: usize = 1;
/// A burst ends with the first look after this (looks come about every 100 ms, and not to the millisecond).
const BURST: Duration = Duration::from_millis(80);
/// From the beginning of a burst to the next, where threads spin; doubled each time that nobody does, up to the maximum.
const BURST_PERIOD_MIN: Duration = Duration::from_millis(980);
const BURST_PERIOD_MAX: Duration = Duration::from_millis(3_980);
/// Threads spin if at least one of so many samples in a burst, or since the rate was chosen, does.
const SPINNING_ONE_IN: u32 = 16;
/// A burst has at most so many threads; the next one goes on with those behind.
const BURST_THREADS_MAX: usize = 256;

/// So many mappings of a process are looked through for the file that an address is in.
#[cfg(target_arch = "x86_64")]
const MAPPINGS_MAX: usize = 1 << 12;

/// So many judged addresses are remembered; then all are forgotten.
const JUDGED_MAX: usize = 1 << 14;

/// What the samples of a thread said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Samples {
    /// How many there were; each is some user code that ran.
    pub(crate) seen: u32,
    /// How many of them were waiting for somebody else to write.
    pub(crate) spinning: u32,
}

/// Samples running threads, and tells which of them spin.
///
/// Needs `kernel.perf_event_paranoid` at 2 or less for one's own programs, or `CAP_PERFMON` for all. x86-64 only.
#[derive(Debug)]
pub(crate) struct SpinSampler {
    everybody: bool,
    /// Whether everybody is sampled less often, because next to nobody spins.
    calm: bool,
    /// Whether that was so at any time since samples were last taken.
    was_calm: bool,
    burst_hz: u64,
    rings: Vec<Ring>,
    /// When the last burst began; where everybody is sampled, when the rate was chosen.
    burst_began: Option<Instant>,
    /// From then to the next one.
    burst_period: Duration,
    /// What the samples since then said, all together.
    burst: Samples,
    /// Where the next burst goes on among the threads.
    burst_from: usize,
    /// Where a sample of a process was, and whether the code there waits; `None` if it could not be read.
    judged: HashMap<(i32, u64), Option<bool>>,
    samples: HashMap<i32, Samples>,
    lost: u64,
    unread: u64,
    buffer: Vec<u8>,
}

impl SpinSampler {
    /// Samples everybody, or where that is not permitted, the threads that [`SpinSampler::look`] is told.
    ///
    /// # Errors
    /// [`Error::Missing`] where neither is permitted, or this processor's code cannot be judged.
    pub(crate) fn new() -> Result<Self, Error> {
        Self::everybody().or_else(|_| Self::bursts())
    }

    /// Samples everything that runs on this host.
    fn everybody() -> Result<Self, Error> {
        let cpus = online()?;
        let hz = for_all(CPU_HZ, cpus.len());
        let open = |cpu| Ring::open(Whom::Cpu(cpu), hz, CPU_PAGES);
        Self::of(true, 0, cpus.into_iter().map(open).collect::<Result<_, _>>()?)
    }

    /// Samples threads one by one, now and then.
    fn bursts() -> Result<Self, Error> {
        // To learn at once whether it is permitted.
        Ring::open(Whom::Thread(0), BURST_HZ, BURST_PAGES)?;
        Self::of(false, for_all(BURST_HZ, online()?.len()), Vec::new())
    }

    fn of(everybody: bool, burst_hz: u64, rings: Vec<Ring>) -> Result<Self, Error> {
        if cfg!(not(target_arch = "x86_64")) {
            return Err(Error::Missing {
                what: "spin time".into(),
                how: "machine code can be judged on x86-64 only".into(),
            });
        }
        Ok(SpinSampler {
            everybody,
            calm: false,
            was_calm: false,
            burst_hz,
            rings,
            burst_began: None,
            burst_period: BURST_PERIOD_MIN,
            burst: Samples::default(),
            burst_from: 0,
            judged: HashMap::new(),
            samples: HashMap::new(),
            lost: 0,
            unread: 0,
            buffer: Vec::new(),
        })
    }

    /// Whether everybody is sampled all the time, and not one's own threads in bursts.
    pub(crate) fn is_everybody(&self) -> bool {
        self.everybody
    }

    /// A thread that ran for less than this in user mode since samples were last taken, and has none, is taken not to spin:
    /// it would have had five at most.
    pub(crate) fn unsampled_ns_max(&self) -> f64 {
        5e9 / if self.was_calm { CALM_HZ as f64 } else { CPU_HZ as f64 }
    }

    /// Judges what was sampled since the last look, for processes that are `wanted`. Call it about ten times a second;
    /// `tids` are the threads to sample in bursts, best only those that have run lately.
    ///
    /// Threads and processes that have ended, or belong to others, are no error: they have no samples.
    pub(crate) fn look(&mut self, wanted: impl Fn(i32) -> bool, tids: impl IntoIterator<Item = i32>) {
        self.judge_rings(wanted);
        let spins = self.burst.spinning > 0 && self.burst.spinning >= self.burst.seen / SPINNING_ONE_IN;
        if self.everybody {
            return self.choose_rate(spins, Instant::now());
        }
        let since = self.burst_began.map_or(Duration::MAX, |began| began.elapsed());
        if since >= BURST && !self.rings.is_empty() {
            self.rings.clear();
            self.burst_period =
                if spins { BURST_PERIOD_MIN } else { (self.burst_period * 2).min(BURST_PERIOD_MAX) };
        }
        if since >= self.burst_period {
            let tids: Vec<i32> = tids.into_iter().collect();
            let from = if self.burst_from < tids.len() { self.burst_from } else { 0 };
            let burst = tids.iter().skip(from).take(BURST_THREADS_MAX);
            let open = |&tid| Ring::open(Whom::Thread(tid), self.burst_hz, BURST_PAGES).ok();
            self.rings.extend(burst.filter_map(open));
            self.burst_from = from + BURST_THREADS_MAX;
            self.burst_began = Some(Instant::now());
            self.burst = Samples::default();
        }
    }

    /// Samples everybody often from when somebody is seen to spin until next to nobody does.
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

    /// Hands over what was seen since the last call, by thread number. Threads that did not run in user mode are not
    /// there.
    pub(crate) fn take(&mut self) -> HashMap<i32, Samples> {
        self.was_calm = self.calm;
        std::mem::take(&mut self.samples)
    }

    fn judge_rings(&mut self, wanted: impl Fn(i32) -> bool) {
        let SpinSampler { rings, judged, samples, burst, lost, unread, buffer, .. } = self;
        let mut changed = HashSet::new();
        for ring in rings {
            buffer.clear();
            *lost += u64::from(!ring.take(buffer));
            ring::records(buffer, |record| match record {
                Record::Sample { pid, tid, ip } if wanted(pid) => {
                    if judged.len() >= JUDGED_MAX {
                        judged.clear();
                    }
                    match *judged.entry((pid, ip)).or_insert_with(|| judge(pid, ip)) {
                        Some(spins) => {
                            for samples in [samples.entry(tid).or_default(), &mut *burst] {
                                samples.seen = samples.seen.saturating_add(1);
                                samples.spinning = samples.spinning.saturating_add(u32::from(spins));
                            }
                        }
                        None => *unread += 1,
                    }
                }
                Record::Sample { .. } => {}
                Record::Forget { pid } => _ = changed.insert(pid),
                Record::Lost(records) => *lost += records,
            });
        }
        if !changed.is_empty() {
            judged.retain(|(pid, _), _| !changed.contains(pid));
        }
    }

    /// Records that did not fit, because nobody looked in time.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// Samples of code that could not be read: the process had ended, or belongs to somebody else.
    pub(crate) fn unread(&self) -> u64 {
        self.unread
    }
}

/// A rate that all CPUs together can be judged at.
fn for_all(hz: u64, cpus: usize) -> u64 {
    (hz * CPUS_AT_FULL_RATE / cpus.max(1) as u64).clamp(1, hz)
}

fn online() -> Result<Vec<u32>, Error> {
    let path = Path::new("/sys/devices/system/cpu/online");
    let read = |source| Error::Read { path: path.into(), source };
    let text = std::fs::read_to_string(path).map_err(read)?;
    let cpus: CpuSet = text.trim().parse().map_err(|e| read(std::io::Error::other(e)))?;
    Ok(cpus.iter().map(|c| c.0).collect())
}

#[cfg(target_arch = "x86_64")]
fn judge(pid: i32, ip: u64) -> Option<bool> {
    let (code, start) = read_code(pid, ip)?;
    Some(code::waits(&code, start, ip))
}

#[cfg(not(target_arch = "x86_64"))]
fn judge(_: i32, _: u64) -> Option<bool> {
    None
}

/// The code around an address, and where it begins.
#[cfg(target_arch = "x86_64")]
fn read_code(pid: i32, ip: u64) -> Option<(Vec<u8>, u64)> {
    // Code does not begin in the first page, and does not end in the last.
    let start = ip.checked_sub(code::REACH_BYTES)?;
    ip.checked_add(code::REACH_BYTES)?;
    read_memory(pid, start, ip).or_else(|| read_file(pid, start, ip))
}

/// From the process's memory. Permitted for whom one may trace: under Yama (`kernel.yama.ptrace_scope` 1) that is one's
/// own children only.
#[cfg(target_arch = "x86_64")]
fn read_memory(pid: i32, start: u64, ip: u64) -> Option<(Vec<u8>, u64)> {
    // The page before may not be there, nor the page behind; the kernel copies whole parts, or nothing of a part.
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
        // SAFETY: local describes code, which is ours to write; the kernel checks what lies in the other process.
        let read = unsafe { libc::process_vm_readv(pid, &local, 1, remote.as_ptr(), 2, 0) };
        code.truncate(usize::try_from(read).ok()?);
        (start + code.len() as u64 > ip).then_some((code, start))
    })
}

/// From the file that is mapped there: the same bytes, except for code made at run time.
#[cfg(target_arch = "x86_64")]
fn read_file(pid: i32, start: u64, ip: u64) -> Option<(Vec<u8>, u64)> {
    let maps = File::open(format!("/proc/{pid}/maps")).ok()?;
    let lines = std::io::BufReader::new(maps).lines().map_while(Result::ok);
    lines.take(MAPPINGS_MAX).find_map(|line| {
        // 55d0c0a00000-55d0c0a21000 r-xp 00001000 fd:00 1234                    /usr/bin/name
        let mut fields = line.splitn(6, ' ');
        let (from, until) = fields.next()?.split_once('-')?;
        let from = u64::from_str_radix(from, 16).ok()?;
        let until = u64::from_str_radix(until, 16).ok()?;
        if !(from..until).contains(&ip) {
            return None;
        }
        let offset = u64::from_str_radix(fields.nth(1)?, 16).ok()?;
        let path = fields.nth(2)?.trim_start().strip_prefix('/')?;
        let root = PathBuf::from(format!("/proc/{pid}/root"));
        // Where the root cannot be looked at, it is most likely ours.
        let file = open_plain(&root.join(path)).or_else(|_| open_plain(&Path::new("/").join(path))).ok()?;
        let start = start.max(from);
        let mut code = vec![0; (ip - start + code::REACH_BYTES) as usize];
        let read = file.read_at(&mut code, offset.checked_add(start - from)?).ok()?;
        code.truncate(read);
        (start + read as u64 > ip).then_some((code, start))
    })
}

/// Opens a plain file. What a process has mapped from a path may have made room there for a pipe, which would keep us
/// waiting, or for a device, which may mind being opened.
#[cfg(target_arch = "x86_64")]
fn open_plain(path: &Path) -> std::io::Result<File> {
    use rustix::fs::{Mode, OFlags};
    use std::os::fd::AsRawFd;
    let place = File::from(rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?);
    match place.metadata()?.is_file() {
        true => File::open(format!("/proc/self/fd/{}", place.as_raw_fd())),
        false => Err(std::io::ErrorKind::InvalidInput.into()),
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use std::arch::asm;
    use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

    /// Samples a thread that spins and one that computes, until there are enough samples of both.
    fn samples_of_both(mut sampler: SpinSampler) -> [Samples; 2] {
        const ENOUGH: u32 = 20;
        let stop = AtomicBool::new(false);
        let tids = [AtomicI32::new(0), AtomicI32::new(0)];
        let mut sum = [Samples::default(); 2];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                tids[0].store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Release);
                // SAFETY: reads a flag that outlives the thread, until it is set.
                unsafe { asm!("2:", "cmp byte ptr [{}], 0", "je 2b", in(reg) stop.as_ptr()) };
            });
            scope.spawn(|| {
                tids[1].store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Release);
                while !stop.load(Ordering::Relaxed) {
                    // SAFETY: counts in registers of its own.
                    unsafe {
                        asm!("2:", "imul {x}, {x}, 3", "dec {n}", "jne 2b", x = inout(reg) 1u64 => _, n = inout(reg) 1_000_000u64 => _)
                    };
                }
            });
            let until = Instant::now() + Duration::from_secs(60);
            while sum.iter().any(|s| s.seen < ENOUGH) && Instant::now() < until {
                let tids = [&tids[0], &tids[1]].map(|t| t.load(Ordering::Acquire));
                let me = std::process::id() as i32;
                sampler.look(|pid| pid == me, tids.into_iter().filter(|t| *t != 0));
                for (tid, samples) in sampler.take() {
                    if let Some(i) = tids.iter().position(|t| *t == tid) {
                        sum[i].seen += samples.seen;
                        sum[i].spinning += samples.spinning;
                    }
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            stop.store(true, Ordering::Release);
        });
        assert!(sum.iter().all(|s| s.seen >= ENOUGH), "too few samples within a minute: {sum:?}");
        sum
    }

    fn tells_spinning_from_computing(sampler: Result<SpinSampler, Error>) {
        match sampler {
            Err(e) => println!("skipped: {e}"),
            Ok(sampler) => {
                let [spins, computes] = samples_of_both(sampler);
                assert!(spins.spinning * 10 >= spins.seen * 9, "{spins:?}");
                assert!(computes.spinning * 10 <= computes.seen, "{computes:?}");
            }
        }
    }

    #[test]
    fn everybody_sampled_tells_spinning_from_computing() {
        tells_spinning_from_computing(SpinSampler::everybody());
    }

    #[test]
    fn threads_sampled_in_bursts_tell_spinning_from_computing() {
        tells_spinning_from_computing(SpinSampler::bursts());
    }

    #[test]
    fn everybody_is_sampled_often_only_while_somebody_spins() {
        let Ok(mut sampler) = SpinSampler::everybody() else { return println!("skipped: not permitted") };
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
        // It was calm at least for a part of the time.
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
        assert!(memory.as_ref().is_some_and(|(code, _)| code.len() as u64 == 2 * code::REACH_BYTES));
        assert_eq!(memory, read_file(pid, start, ip));
    }

    #[test]
    fn code_of_nobody_or_nowhere_is_unknown() {
        assert_eq!(judge(i32::MAX, 0x40_0000), None);
        let me = std::process::id() as i32;
        for ip in [0, 1, code::REACH_BYTES, u64::MAX, u64::MAX - 1000, 1 << 63] {
            assert_eq!(judge(me, ip), None, "{ip:x}");
        }
    }
}
