//! Seeing threads that spin: samples of the instruction pointer, and a look at the code around it.
//!
//! A thread that waits in a loop looks busy to every counter of the kernel's. So the kernel is asked for the instruction
//! pointer of each running thread, [`SAMPLES_HZ`] times for each second that the thread runs, and the code there is read
//! and judged: see `code.rs` for what counts as waiting. Code is judged once and remembered.
//!
//! The share of a thread's samples that wait, times its share of user time, is the share of time that it spins.

#[cfg(target_arch = "x86_64")]
mod code;
mod ring;

use crate::Error;
use corebeat_machine::CpuSet;
use ring::{Record, Ring, Whom};
use std::collections::HashMap;
use std::fs::File;
use std::io::BufRead;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Samples for each second that a thread runs. A prime, so that programs that do something every hundredth of a second
/// are not always seen doing just that.
const SAMPLES_HZ: u64 = 97;

/// Room for samples: a page holds about 170, which at [`SAMPLES_HZ`] are more than a second of one CPU.
const CPU_PAGES: usize = 8;
const THREAD_PAGES: usize = 1;

/// So many judged addresses are remembered; then all are forgotten.
const JUDGED_MAX: usize = 1 << 14;

/// Samples running threads, and tells which of them spin.
///
/// Needs `kernel.perf_event_paranoid` at 2 or less for one's own programs, or `CAP_PERFMON` for all. x86-64 only.
#[derive(Debug)]
pub(crate) struct SpinSampler {
    rings: Vec<Ring>,
    /// Where a sample of a process was, and whether the code there waits; `None` if it could not be read.
    judged: HashMap<(i32, u64), Option<bool>>,
    lost: u64,
    unread: u64,
    buffer: Vec<u8>,
}

impl SpinSampler {
    /// Samples a process that has not started its program yet (it is held before `exec`), and all threads and processes
    /// that it will start.
    ///
    /// # Errors
    /// [`Error::Missing`] where this is not permitted or not possible, and [`Error::NoProcess`].
    pub(crate) fn attach_launch(pid: i32) -> Result<Self, Error> {
        // The kernel refuses rings for an event that is inherited and follows its thread over CPUs: one for each CPU.
        let open = |cpu| Ring::open(Whom::Family { tid: pid, cpu }, SAMPLES_HZ, CPU_PAGES);
        Self::of(online()?.into_iter().map(open).collect::<Result<_, _>>()?)
    }

    /// Samples these threads. Threads that they start are not followed: see [`SpinSampler::follow`]. Threads that have
    /// ended are left out.
    ///
    /// # Errors
    /// [`Error::Missing`] where this is not permitted or not possible, and [`Error::Refused`].
    pub(crate) fn attach_running(tids: impl IntoIterator<Item = i32>) -> Result<Self, Error> {
        let mut sampler = Self::of(Vec::new())?;
        for tid in tids {
            sampler.follow(tid)?;
        }
        Ok(sampler)
    }

    /// Samples everything that runs on this host. The cheapest way, where it is permitted (`CAP_PERFMON`): nothing is to
    /// be done when threads switch.
    ///
    /// # Errors
    /// [`Error::Missing`] where this is not permitted or not possible.
    pub(crate) fn attach_system() -> Result<Self, Error> {
        let open = |cpu| Ring::open(Whom::Cpu(cpu), SAMPLES_HZ, CPU_PAGES);
        Self::of(online()?.into_iter().map(open).collect::<Result<_, _>>()?)
    }

    fn of(rings: Vec<Ring>) -> Result<Self, Error> {
        if cfg!(not(target_arch = "x86_64")) {
            return Err(Error::Missing {
                what: "spin time".into(),
                how: "machine code can be judged on x86-64 only".into(),
            });
        }
        Ok(SpinSampler { rings, judged: HashMap::new(), lost: 0, unread: 0, buffer: Vec::new() })
    }

    /// Samples one more thread. One that has ended is no error.
    ///
    /// # Errors
    /// As [`SpinSampler::attach_running`].
    pub(crate) fn follow(&mut self, tid: i32) -> Result<(), Error> {
        match Ring::open(Whom::Thread { tid }, SAMPLES_HZ, THREAD_PAGES) {
            Ok(ring) => self.rings.push(ring),
            Err(Error::NoProcess { .. }) => {}
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// Hands over every sample since the last call: the thread, its process, and whether it was spinning. Samples of
    /// processes that are not `wanted`, and of code that could not be read, are left out.
    ///
    /// Call it at least once a second, or samples are lost.
    pub(crate) fn drain(&mut self, wanted: impl Fn(i32) -> bool, mut sink: impl FnMut(i32, i32, bool)) {
        let SpinSampler { rings, judged, lost, unread, buffer } = self;
        let (mut changed, mut ended) = (Vec::new(), Vec::new());
        for ring in rings.iter_mut() {
            buffer.clear();
            *lost += u64::from(!ring.take(buffer));
            ring::records(buffer, |record| match record {
                Record::Sample { pid, tid, ip } if wanted(pid) => {
                    if judged.len() >= JUDGED_MAX {
                        judged.clear();
                    }
                    match *judged.entry((pid, ip)).or_insert_with(|| judge(pid, ip)) {
                        Some(spins) => sink(tid, pid, spins),
                        None => *unread += 1,
                    }
                }
                Record::Sample { .. } => {}
                Record::Exec { pid } => changed.push(pid),
                Record::Exit { pid, tid } => {
                    changed.extend((pid == tid).then_some(pid));
                    ended.push(Whom::Thread { tid });
                }
                Record::Lost(samples) => *lost += samples,
            });
        }
        if !changed.is_empty() {
            judged.retain(|(pid, _), _| !changed.contains(pid));
        }
        if !ended.is_empty() {
            rings.retain(|r| !ended.contains(&r.whom()));
        }
    }

    /// Samples that did not fit, because nobody drained them in time.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// Samples of code that could not be read: the process had ended, or belongs to somebody else.
    pub(crate) fn unread(&self) -> u64 {
        self.unread
    }
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
    let memory = File::open(format!("/proc/{pid}/mem")).ok()?;
    // The page before may not be there.
    let page = ip - ip % rustix::param::page_size() as u64;
    [start, page.max(start)].into_iter().find_map(|start| read_from(&memory, start, start, ip))
}

/// From the file that is mapped there: the same bytes, except for code made at run time.
#[cfg(target_arch = "x86_64")]
fn read_file(pid: i32, start: u64, ip: u64) -> Option<(Vec<u8>, u64)> {
    let maps = File::open(format!("/proc/{pid}/maps")).ok()?;
    std::io::BufReader::new(maps).lines().map_while(Result::ok).find_map(|line| {
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
        let file = File::open(root.join(path)).or_else(|_| File::open(Path::new("/").join(path))).ok()?;
        let start = start.max(from);
        read_from(&file, offset.checked_add(start - from)?, start, ip)
    })
}

/// Reads what lies from `start` to a reach behind `ip`, or less at the end of a file or mapping, from an offset.
#[cfg(target_arch = "x86_64")]
fn read_from(file: &File, offset: u64, start: u64, ip: u64) -> Option<(Vec<u8>, u64)> {
    let mut code = vec![0; (ip - start + code::REACH_BYTES) as usize];
    let read = file.read_at(&mut code, offset).ok()?;
    code.truncate(read);
    (start + read as u64 > ip).then_some((code, start))
}
