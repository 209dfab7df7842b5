//! Properties of a thread: reading, writing and comparing.

use corebeat_machine::{CPU_MAX, Class, CpuId, CpuSet};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::mem::{size_of, size_of_val};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Shortest slice of Linux, in nanoseconds (`__setparam_fair` in
/// kernel/sched/syscalls.c, Linux 6.12).
pub(crate) const SLICE_NS_MIN: u64 = 100_000;
/// Longest slice of Linux, in nanoseconds.
pub(crate) const SLICE_NS_MAX: u64 = 100_000_000;

/// Range of nice values, from most CPU time to least.
pub(crate) const NICE_MIN: i32 = -20;
pub(crate) const NICE_MAX: i32 = 19;

/// One property of a thread, with its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Setting {
    /// CPUs on which the thread may run.
    Cpus(CpuSet),
    /// Slice in nanoseconds; 0 for the default of the system.
    SliceNs(u64),
    /// Scheduling policy, by the number of the kernel: a fair one, or that of a scheduler in the
    /// kernel (`SCHED_EXT`); never a real-time policy.
    Policy(u32),
    /// Nice value.
    Nice(i32),
    /// Whether threads that this thread starts begin with nice 0 if its own value is lower
    /// (`SCHED_FLAG_RESET_ON_FORK` of sched(7)).
    ResetOnFork(bool),
}

/// Kind of a property.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    Cpus,
    Slice,
    Policy,
    Nice,
    ResetOnFork,
}

impl Setting {
    /// All kinds.
    pub(crate) const KINDS: [Kind; 5] =
        [Kind::Cpus, Kind::Slice, Kind::Policy, Kind::Nice, Kind::ResetOnFork];

    pub(crate) fn kind(&self) -> Kind {
        match self {
            Setting::Cpus(_) => Kind::Cpus,
            Setting::SliceNs(_) => Kind::Slice,
            Setting::Policy(_) => Kind::Policy,
            Setting::Nice(_) => Kind::Nice,
            Setting::ResetOnFork(_) => Kind::ResetOnFork,
        }
    }

    pub(crate) fn of_class(class: Class) -> Setting {
        Setting::Policy(match class {
            Class::Normal => libc::SCHED_OTHER,
            Class::Batch => libc::SCHED_BATCH,
            Class::Idle => libc::SCHED_IDLE,
        } as u32)
    }

    /// Returns whether this is the class idle.
    pub(crate) fn is_idle(&self) -> bool {
        *self == Setting::of_class(Class::Idle)
    }

    /// Returns whether this is the policy of a scheduler in the kernel.
    pub(crate) fn is_ext(&self) -> bool {
        *self == Setting::Policy(SCHED_EXT)
    }

    /// Returns whether this is a nice value below 0, which gives more CPU time than the default.
    pub(crate) fn is_raised(&self) -> bool {
        matches!(self, Setting::Nice(nice) if *nice < 0)
    }

    /// Returns whether this is a slice with a [`Mark`].
    pub(crate) fn is_marked(&self) -> bool {
        matches!(self, Setting::SliceNs(ns) if !ns.is_multiple_of(1_000))
    }

    /// Returns whether this value has the effect of another one: the same value, or the same slice
    /// with another [`Mark`].
    pub(crate) fn has_effect_of(&self, other: &Setting) -> bool {
        match (self, other) {
            (Setting::SliceNs(a), Setting::SliceNs(b)) if *a > 0 && *b > 0 => {
                a.abs_diff(*b) <= mark_max(*a.max(b))
            }
            _ => self == other,
        }
    }

    /// Returns whether this module could have read or written the value. Values from a journal are
    /// validated by this function.
    pub(crate) fn is_valid(&self) -> bool {
        match self {
            Setting::Cpus(cpus) => !cpus.is_empty(),
            Setting::SliceNs(ns) => *ns == 0 || (SLICE_NS_MIN..=SLICE_NS_MAX).contains(ns),
            Setting::Policy(policy) => is_sharing(*policy),
            Setting::Nice(nice) => (NICE_MIN..=NICE_MAX).contains(nice),
            Setting::ResetOnFork(_) => true,
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Setting::Cpus(cpus) => write!(f, "CPUs {cpus}"),
            Setting::SliceNs(0) => write!(f, "the default slice"),
            Setting::SliceNs(ns) => write!(f, "a slice of {} us", ns / 1000),
            Setting::Policy(p) if *p == libc::SCHED_BATCH as u32 => write!(f, "class batch"),
            Setting::Policy(p) if *p == libc::SCHED_IDLE as u32 => write!(f, "class idle"),
            Setting::Policy(SCHED_EXT) => write!(f, "the scheduler of Corebeat"),
            Setting::Policy(_) => write!(f, "class normal"),
            Setting::Nice(nice) => write!(f, "nice {nice}"),
            Setting::ResetOnFork(true) => write!(f, "a nice value that new threads do not inherit"),
            Setting::ResetOnFork(false) => write!(f, "a nice value that new threads inherit"),
        }
    }
}

/// A number in the slices of one program, which distinguishes them from all other slices: a marked
/// slice is shorter than the requested one, by less than 1 us for each ms that has begun, and not a
/// whole number of microseconds.
///
/// New threads inherit the exact slice. So a thread with this slice descends from the program, even
/// if all processes between them have ended and nothing else relates the two.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark(u32);

impl Default for Mark {
    /// Returns a mark that no other program of this process has. Two processes have the same mark
    /// by chance, with a probability of 1 in 50,000 for slices of 50 ms.
    fn default() -> Mark {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // A multiplicative hash keeps the successive numbers of neighbouring processes apart.
        let own = std::process::id().wrapping_mul(2_654_435_761);
        // Relaxed: the number must only differ between calls.
        Mark(own.wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed)))
    }
}

impl Mark {
    /// Returns the marked slice in nanoseconds for a requested one in microseconds, within the
    /// limits of Linux.
    pub(crate) fn slice_ns(self, us: u32) -> u64 {
        let ns = (u64::from(us) * 1_000).clamp(SLICE_NS_MIN + 1_000, SLICE_NS_MAX);
        // 999 of 1,000 numbers do not lead to a whole number of microseconds.
        let number = u64::from(self.0) % (mark_max(ns) / 1_000 * 999);
        ns - (number / 999 * 1_000 + number % 999 + 1)
    }
}

/// Returns the greatest difference between two marked slices of one request, in nanoseconds; a
/// multiple of 1,000.
fn mark_max(slice_ns: u64) -> u64 {
    slice_ns.div_ceil(1_000_000) * 1_000
}

/// Number of the policy of schedulers that are loaded into the kernel (include/uapi/linux/sched.h,
/// Linux 6.12). Without such a scheduler its threads are scheduled as those of class normal.
const SCHED_EXT: u32 = 7;

/// Returns whether threads of a policy share CPUs, and have nice values and slices. The real-time
/// policies are a deliberate choice of the user. So is `SCHED_EXT`, unless Corebeat has set it.
fn is_sharing(policy: u32) -> bool {
    is_fair(policy) || policy == SCHED_EXT
}

/// Returns whether a policy is one of the default scheduler.
fn is_fair(policy: u32) -> bool {
    [libc::SCHED_OTHER, libc::SCHED_BATCH, libc::SCHED_IDLE].contains(&(policy as i32))
}

/// The kernel's `struct sched_attr` (sched_setattr(2)), in its first two versions together.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Attr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
    util_min: u32,
    util_max: u32,
}

/// The only flag that reading returns. Clearing the flag requires privileges.
const RESET_ON_FORK: u64 = libc::SCHED_FLAG_RESET_ON_FORK as u64;

impl Attr {
    fn of(tid: i32) -> io::Result<Attr> {
        let mut attr = Attr::default();
        let size = size_of::<Attr>() as u32;
        // SAFETY: the kernel writes at most `size` bytes, which is the size of `attr`.
        check(unsafe { libc::syscall(libc::SYS_sched_getattr, tid, &raw mut attr, size, 0u32) })?;
        Ok(attr)
    }

    fn set(mut self, tid: i32) -> io::Result<()> {
        self.size = size_of::<Attr>() as u32;
        self.flags &= RESET_ON_FORK;
        // SAFETY: the kernel reads `size` bytes of a struct that lives through the call.
        check(unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw const self, 0u32) })?;
        Ok(())
    }
}

fn check(result: libc::c_long) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Returns the default slice as `sched_getattr` reports it; 0 if the kernel has no slices (before
/// Linux 6.12).
pub(crate) fn default_slice_ns() -> u64 {
    static NS: OnceLock<u64> = OnceLock::new();
    *NS.get_or_init(|| {
        // The probe changes a temporary thread only.
        let probe = || -> io::Result<u64> {
            let attr = Attr::of(0)?;
            if is_fair(attr.policy) {
                Attr { runtime_ns: 0, ..attr }.set(0)?;
            }
            Ok(Attr::of(0)?.runtime_ns)
        };
        let thread = std::thread::Builder::new().spawn(probe);
        thread.ok().and_then(|t| t.join().ok()).and_then(Result::ok).unwrap_or(0)
    })
}

/// Reads a property. `None` if threads of the policy of the thread do not share CPUs.
pub(crate) fn read(tid: i32, kind: Kind) -> io::Result<Option<Setting>> {
    if kind == Kind::Cpus {
        return read_cpus(tid).map(|c| Some(Setting::Cpus(c)));
    }
    let attr = Attr::of(tid)?;
    if !is_sharing(attr.policy) {
        return Ok(None);
    }
    Ok(Some(match kind {
        // A slice that was set to the default value is indistinguishable from the default.
        Kind::Slice if attr.runtime_ns == default_slice_ns() => Setting::SliceNs(0),
        Kind::Slice => Setting::SliceNs(attr.runtime_ns),
        Kind::Nice => Setting::Nice(attr.nice),
        Kind::ResetOnFork => Setting::ResetOnFork(attr.flags & RESET_ON_FORK != 0),
        Kind::Policy | Kind::Cpus => Setting::Policy(attr.policy),
    }))
}

/// Writes a property and keeps the others.
pub(crate) fn write(tid: i32, setting: &Setting) -> io::Result<()> {
    if let Setting::Cpus(cpus) = setting {
        return write_cpus(tid, cpus);
    }
    let mut attr = Attr::of(tid)?;
    if !is_sharing(attr.policy) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    if attr.runtime_ns == default_slice_ns() {
        attr.runtime_ns = 0;
    }
    match setting {
        Setting::SliceNs(ns) => attr.runtime_ns = *ns,
        Setting::Policy(policy) => attr.policy = *policy,
        Setting::Nice(nice) => attr.nice = *nice,
        Setting::ResetOnFork(resets) => attr.flags = if *resets { RESET_ON_FORK } else { 0 },
        Setting::Cpus(_) => {}
    }
    attr.set(tid)
}

const WORDS: usize = CPU_MAX as usize / 64;

/// Returns the CPUs of the affinity mask of a thread that are online; 0 is the calling thread.
pub(crate) fn read_cpus(tid: i32) -> io::Result<CpuSet> {
    let mut words = [0u64; WORDS];
    // SAFETY: the kernel writes at most the given number of bytes, which is the size of `words`.
    let bytes = check(unsafe {
        libc::syscall(libc::SYS_sched_getaffinity, tid, size_of_val(&words), words.as_mut_ptr())
    })?;
    let bits = |(i, word): (usize, &u64)| {
        let word = *word;
        (0..64).filter(move |b| word & (1 << b) != 0).map(move |b| CpuId(i as u32 * 64 + b))
    };
    Ok(words[..bytes.div_ceil(8)].iter().enumerate().flat_map(bits).collect())
}

pub(crate) fn write_cpus(tid: i32, cpus: &CpuSet) -> io::Result<()> {
    let mut words = [0u64; WORDS];
    cpus.iter().for_each(|c| words[c.0 as usize / 64] |= 1 << (c.0 % 64));
    write_mask(tid, &words)
}

/// Permits a thread all CPUs of its cpuset, now and later.
pub(crate) fn write_all_cpus(tid: i32) -> io::Result<()> {
    write_mask(tid, &[u64::MAX; WORDS])
}

fn write_mask(tid: i32, words: &[u64; WORDS]) -> io::Result<()> {
    // SAFETY: the kernel reads the given number of bytes, which is the size of `words`.
    check(unsafe {
        libc::syscall(libc::SYS_sched_setaffinity, tid, size_of_val(words), words.as_ptr())
    })?;
    Ok(())
}

/// Returns whether the nice value of a thread can be lowered to `nice` later, which undoing may
/// require: the `RLIMIT_NICE` of the thread allows it, or this process has `CAP_SYS_NICE`.
///
/// The same check applies to leaving `SCHED_IDLE` (`user_check_sched_setscheduler` in the kernel).
pub(crate) fn may_lower_nice(tid: i32, nice: i32) -> bool {
    let lowest = |limit: u64| 20i64 - limit.min(40) as i64;
    let allowed = nice_limit(tid).is_some_and(|limit| lowest(limit) <= i64::from(nice));
    allowed || is_privileged()
}

fn nice_limit(tid: i32) -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a null pointer sets no limit; the kernel writes the old limit to a struct of the
    // correct type.
    let result = unsafe { libc::prlimit(tid, libc::RLIMIT_NICE, std::ptr::null(), &raw mut limit) };
    (result == 0).then_some(limit.rlim_cur)
}

/// Returns whether this process has the permissions of `CAP_SYS_NICE`. Capabilities of a user
/// namespace look like real ones but do not apply, so the function tries: a temporary thread sets a
/// nice value one below its limit.
pub(crate) fn is_privileged() -> bool {
    static YES: OnceLock<bool> = OnceLock::new();
    *YES.get_or_init(|| {
        let probe = || -> io::Result<()> {
            let lowest = 20 - nice_limit(0).unwrap_or(0).min(40) as i32;
            write(0, &Setting::Nice(19))?;
            write(0, &Setting::Nice(18.min(lowest - 1)))
        };
        let thread = std::thread::Builder::new().spawn(probe);
        thread.ok().and_then(|t| t.join().ok()).is_some_and(|tried| tried.is_ok())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Runs a function on a separate thread, so that other tests are not affected.
    fn on_thread<R: Send>(f: impl FnOnce() -> R + Send) -> R {
        let _alone = crate::actuator::tests::alone();
        std::thread::scope(|s| s.spawn(f).join().unwrap())
    }

    #[test]
    fn write_one_setting_leaves_the_others() {
        on_thread(|| {
            let before = Setting::KINDS.map(|k| read(0, k).unwrap().unwrap());
            write(0, &Setting::of_class(Class::Batch)).unwrap();
            assert_eq!(read(0, Kind::Policy).unwrap(), Some(Setting::of_class(Class::Batch)));
            assert_eq!(read(0, Kind::Nice).unwrap().as_ref(), Some(&before[3]));
            assert_eq!(read(0, Kind::Slice).unwrap().as_ref(), Some(&before[1]));
            write(0, &before[2]).unwrap();
            assert_eq!(Setting::KINDS.map(|k| read(0, k).unwrap().unwrap()), before);
        });
    }

    #[test]
    fn slice_is_set_exactly_or_unsupported() {
        on_thread(|| {
            if default_slice_ns() == 0 {
                return; // before Linux 6.12
            }
            for ns in [SLICE_NS_MIN, 20_000_000, SLICE_NS_MAX] {
                write(0, &Setting::SliceNs(ns)).unwrap();
                assert_eq!(read(0, Kind::Slice).unwrap(), Some(Setting::SliceNs(ns)));
            }
            write(0, &Setting::SliceNs(0)).unwrap();
            assert_eq!(read(0, Kind::Slice).unwrap(), Some(Setting::SliceNs(0)));
        });
    }

    #[test]
    fn marked_slices_are_close_to_the_request_and_differ() {
        for us in [1, 100, 101, 500, 1_500, 20_000, 50_000, 100_000, u32::MAX] {
            let marks: Vec<Mark> = (0..900).map(|_| Mark::default()).collect();
            let slices: HashSet<u64> = marks.iter().map(|m| m.slice_ns(us)).collect();
            assert_eq!(slices.len(), marks.len(), "{us} us");
            let wanted = (u64::from(us) * 1_000).clamp(SLICE_NS_MIN, SLICE_NS_MAX);
            for &ns in &slices {
                let (slice, plain) = (Setting::SliceNs(ns), Setting::SliceNs(wanted));
                assert!(slice.is_marked() && slice.is_valid() && !plain.is_marked());
                assert!(slice.has_effect_of(&plain) && plain.has_effect_of(&slice), "{ns}");
                assert!(!slice.has_effect_of(&Setting::SliceNs(0)));
            }
        }
    }

    #[test]
    fn cpus_of_a_thread_round_trip() {
        on_thread(|| {
            let all = read_cpus(0).unwrap();
            let one: CpuSet = all.iter().take(1).collect();
            write_cpus(0, &one).unwrap();
            assert_eq!(read_cpus(0).unwrap(), one);
            write_all_cpus(0).unwrap();
            assert!(read_cpus(0).unwrap().len() >= all.len());
        });
    }

    #[test]
    fn invalid_settings_are_detected() {
        let bad = [
            Setting::Cpus(CpuSet::new()),
            Setting::SliceNs(1),
            Setting::SliceNs(SLICE_NS_MAX + 1),
            Setting::Policy(libc::SCHED_FIFO as u32),
            Setting::Policy(99),
            Setting::Nice(20),
        ];
        assert!(bad.iter().all(|s| !s.is_valid()));
    }
}
