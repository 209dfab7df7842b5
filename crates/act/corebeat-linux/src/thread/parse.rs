//! Parsers for the files of a thread in `/proc`.

use corebeat_machine::CpuId;

/// Content of `/proc/PID/task/TID/schedstat`: exact, and the cheapest file that shows whether the
/// thread ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct SchedStat {
    /// Time on a CPU, in nanoseconds; up to a scheduler tick late while the thread runs.
    pub(crate) run_ns: u64,
    /// Time in run queues, in nanoseconds; a wait is added when it ends.
    pub(crate) delay_ns: u64,
    /// Number of times that the thread was dispatched to a CPU.
    pub(crate) slices: u64,
}

/// Parses the text of a schedstat file.
pub(crate) fn parse_schedstat(text: &str) -> Option<SchedStat> {
    let mut field = text.split_ascii_whitespace().map(|f| f.parse().ok());
    let mut next = || field.next()?;
    Some(SchedStat { run_ns: next()?, delay_ns: next()?, slices: next()? })
}

/// Flag of kernel threads (`linux/sched.h`).
const PF_KTHREAD: u64 = 0x0020_0000;

/// Fields of `/proc/PID/task/TID/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat<'a> {
    pub(crate) name: &'a str,
    pub(crate) state: char,
    pub(crate) parent: i32,
    /// Whether the thread belongs to the kernel.
    pub(crate) is_kernel: bool,
    /// CPU time in user mode, in clock ticks.
    pub(crate) user: u64,
    /// CPU time in the kernel, in clock ticks.
    pub(crate) system: u64,
    /// CPU time of the children that the process has waited for, with their own, in clock ticks.
    pub(crate) children: u64,
    pub(crate) nice: i32,
    pub(crate) start_ticks: u64,
    /// Whether this process has no permission to read the wait channel and the addresses of the
    /// thread (ptrace(2), "Ptrace access mode checking"). The kernel then reports 1 as the start
    /// of the code, and `wchan` reads as if the thread were awake.
    pub(crate) hidden: bool,
    /// Whether the process ignores SIGCHLD: the kernel then discards ended children, and accounts
    /// their time nowhere.
    pub(crate) discards_children: bool,
    pub(crate) cpu: Option<CpuId>,
    /// Scheduling policy, by libc's number.
    pub(crate) policy: Option<i32>,
}

/// Parses the text of a stat file. The name in parentheses may contain parentheses, so fields count
/// from the last one.
pub(crate) fn parse_stat(text: &str) -> Option<Stat<'_>> {
    let (open, close) = (text.find('(')?, text.rfind(')')?);
    let name = text.get(open + 1..close)?;
    // Field numbers are those of proc(5); the first field after the name is 3.
    let mut fields = (3..).zip(text.get(close + 1..)?.split_ascii_whitespace());
    let mut field = |number: usize| fields.find(|f| f.0 == number).map(|f| f.1);
    Some(Stat {
        name,
        state: field(3)?.chars().next()?,
        parent: field(4)?.parse().ok()?,
        is_kernel: field(9)?.parse::<u64>().ok()? & PF_KTHREAD != 0,
        user: field(14)?.parse().ok()?,
        system: field(15)?.parse().ok()?,
        children: field(16)?.parse::<u64>().ok()?.saturating_add(field(17)?.parse().ok()?),
        nice: field(19)?.parse().ok()?,
        start_ticks: field(22)?.parse().ok()?,
        hidden: field(26) == Some("1"),
        discards_children: field(33)
            .and_then(|ignored| ignored.parse::<u64>().ok())
            .is_some_and(|ignored| ignored & 1 << (libc::SIGCHLD - 1) != 0),
        cpu: field(39).and_then(|f| f.parse().ok()).map(CpuId),
        policy: field(41).and_then(|f| f.parse().ok()),
    })
}

/// Numbers of switches and migrations since the start of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Switches {
    pub(crate) voluntary: Option<u64>,
    pub(crate) involuntary: Option<u64>,
    pub(crate) migrations: Option<u64>,
}

/// Parses `/proc/PID/task/TID/sched` or, if the kernel does not have that file, `status`, which has
/// no migrations. Each line of both files has a name, a colon and a value.
pub(crate) fn parse_switches(text: &str) -> Switches {
    let mut switches = Switches::default();
    for line in text.lines() {
        let Some((name, value)) = line.split_once(':') else { continue };
        let target = match name.trim_end() {
            "nr_voluntary_switches" | "voluntary_ctxt_switches" => &mut switches.voluntary,
            "nr_involuntary_switches" | "nonvoluntary_ctxt_switches" => &mut switches.involuntary,
            "se.nr_migrations" => &mut switches.migrations,
            _ => continue,
        };
        *target = value.trim().parse().ok();
    }
    switches
}

/// State of a thread in one sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitState {
    /// Asleep in a futex call that waits for a lock, at this address.
    Lock(u64),
    /// Asleep in another futex call, at this address.
    Park(u64),
    /// Asleep in a futex call of unknown kind.
    Futex,
    /// Asleep in another call.
    Asleep,
    /// Stopped by a signal or a debugger.
    Stopped,
    /// On a CPU, in a run queue, or unknown.
    Awake,
}

/// File that shows where a thread sleeps. Reading either takes about 2 µs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitFile {
    /// `syscall`, the system call with its arguments. Requires attach access by the rules of
    /// ptrace(2), which Yama restricts to the descendants of a process.
    Syscall,
    /// `wchan`, the kernel function. Requires read access by the same rules, and kernel symbols.
    Wchan,
}

impl WaitFile {
    pub(crate) fn name(self) -> &'static str {
        match self {
            WaitFile::Wchan => "wchan",
            WaitFile::Syscall => "syscall",
        }
    }

    /// Parses the text of the file. In `wchan`, futex waits are `futex_wait_queue_me`,
    /// `futex_wait_queue` or `futex_do_wait` by kernel version; priority-inheriting ones sleep in
    /// `rt_mutex_...`.
    pub(crate) fn parse(self, text: &str) -> WaitState {
        let text = text.trim();
        match self {
            WaitFile::Wchan if text.is_empty() || text == "0" => WaitState::Awake,
            WaitFile::Wchan if text.contains("futex") || text.contains("rt_mutex") => {
                WaitState::Futex
            }
            WaitFile::Wchan => WaitState::Asleep,
            WaitFile::Syscall => parse_syscall(text),
        }
    }
}

/// Numbers of futex, futex_waitv and futex_wait, and of futex for 32-bit programs (i386: 240, which
/// is mq_open on x86-64 and does not sleep; 422 with 64-bit times). 422 and 455 are equal on all
/// architectures.
const FUTEX_CALLS: &[i64] = match cfg!(target_arch = "x86_64") {
    true => &[libc::SYS_futex, libc::SYS_futex_waitv, 455, 422, 240],
    false => &[libc::SYS_futex, libc::SYS_futex_waitv, 455, 422],
};

/// Parses `syscall`: the number and six arguments in hexadecimal digits, or `running`.
fn parse_syscall(text: &str) -> WaitState {
    let mut fields = text.split(' ');
    match fields.next().map(str::parse::<i64>) {
        Some(Ok(number)) if FUTEX_CALLS.contains(&number) => {
            let mut argument = || u64::from_str_radix(fields.next()?.strip_prefix("0x")?, 16).ok();
            let arguments = (argument(), argument(), argument(), argument());
            let (Some(word), Some(op), Some(value), Some(timeout)) = arguments else {
                return WaitState::Futex;
            };
            // The other calls have no operation at this place.
            let is_futex = !matches!(number, libc::SYS_futex_waitv | 455);
            match is_futex && waits_for_lock(op as i32, value as i32, timeout) {
                true => WaitState::Lock(word),
                false => WaitState::Park(word),
            }
        }
        Some(Ok(_)) => WaitState::Asleep,
        _ => WaitState::Awake,
    }
}

/// Value of the futex word of a contended lock in glibc, in Rust's standard library and in the
/// runtime of Go.
pub(crate) const CONTENDED: i32 = 2;

/// Value of the futex word of a contended lock in libgomp.
pub(crate) const CONTENDED_GOMP: i32 = -1;

/// FUTEX_LOCK_PI2, which libc does not define yet.
pub(crate) const FUTEX_LOCK_PI2: i32 = 13;

/// Returns whether a futex call waits for a lock, as far as its arguments show that. Waits of
/// condition variables, semaphores and joins in glibc have the flag FUTEX_CLOCK_REALTIME. A wait
/// with a timeout is not for a lock. The BPF programs of `exact` make the same distinction.
fn waits_for_lock(op: i32, value: i32, timeout: u64) -> bool {
    match op & !libc::FUTEX_PRIVATE_FLAG {
        libc::FUTEX_LOCK_PI | FUTEX_LOCK_PI2 => true,
        libc::FUTEX_WAIT => timeout == 0 && matches!(value, CONTENDED | CONTENDED_GOMP),
        libc::FUTEX_WAIT_BITSET => timeout == 0 && value == CONTENDED,
        _ => false,
    }
}
