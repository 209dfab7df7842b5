//! Features of this host: which are available, the cost of missing ones, and how to get them.

use crate::actuator::setting::default_slice_ns;
use crate::allowance::{Allowance, throttled_s};
use crate::cgroup::Place;
use crate::counter::Counting;
use crate::file::{self, read_text};
use crate::process;
use crate::spin::SpinSampler;
use crate::thread::{WaitFile, WaitState, parse_schedstat, parse_switches};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use serde::Serialize;
use std::io;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

/// Availability of a feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Offer {
    /// Fully available.
    Yes,
    /// Partly available, or at a cost.
    Limited,
    /// Not available.
    No,
}

/// A feature of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fact {
    /// Name of the feature.
    pub name: &'static str,
    /// Availability.
    pub offer: Offer,
    /// Details in a few words.
    pub detail: String,
    /// Consequence of the absence.
    pub cost: &'static str,
    /// Way to get the feature.
    pub how: &'static str,
}

/// Returns the names of the kernel and the processor, such as `Linux 6.18.5, x86_64`.
pub fn system_name() -> String {
    let name = rustix::system::uname();
    let [system, release, machine] =
        [name.sysname(), name.release(), name.machine()].map(|part| part.to_string_lossy());
    format!("{system} {release}, {machine}")
}

/// Returns the features that this host provides to this user. Tests features instead of comparing
/// versions; changes nothing, and takes a few milliseconds.
pub fn facts() -> Vec<Fact> {
    vec![
        cpus(),
        allowance(),
        nodes(),
        times(),
        switches(),
        sleep_reason(),
        spin(),
        counters(),
        numbers(),
        children(),
        pidfd(),
        hidden_processes(),
        descriptors(),
        slices(),
        groups(),
        bpf(),
        sched_ext(),
        io_uring(),
    ]
}

fn fact(
    name: &'static str,
    (offer, detail): (Offer, String),
    cost: &'static str,
    how: &'static str,
) -> Fact {
    Fact { name, offer, detail, cost, how }
}

/// Returns yes or no, with the matching detail.
fn either(yes: bool, if_yes: &str, if_no: &str) -> (Offer, String) {
    if yes { (Offer::Yes, if_yes.to_owned()) } else { (Offer::No, if_no.to_owned()) }
}

/// Returns a count with its unit, such as `1 core` and `2 cores`.
fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn cpus() -> Fact {
    let root = Path::new(corebeat_topology::SYS);
    let topology = corebeat_topology::topology();
    let cpus = topology.cpus();
    let count = |key: fn(&corebeat_machine::Cpu) -> u32| {
        let mut keys: Vec<u32> = cpus.iter().map(key).collect();
        keys.sort_unstable();
        keys.dedup();
        keys.len()
    };
    let found = if root.join("cpu/online").exists() {
        let (cores, caches, packages) =
            (count(|c| c.core), count(|c| c.cache), count(|c| c.package));
        let parts =
            [(cpus.len(), "CPU"), (cores, "core"), (caches, "cache"), (packages, "package")];
        (Offer::Yes, parts.map(|(n, what)| counted(n, what)).join(", "))
    } else {
        (
            Offer::Limited,
            format!("{}; cores and caches are not described", counted(cpus.len(), "CPU")),
        )
    };
    fact(
        "CPU topology",
        found,
        "threads cannot be placed by core and cache",
        "mount sysfs at /sys, also in the container",
    )
}

fn allowance() -> Fact {
    let (own, all) = (Allowance::of_this_process(), corebeat_topology::topology().cpu_set());
    let quota = own.quota.map(|quota| format!("a quota of {quota} CPUs"));
    let throttled = throttled_s().map(|s| format!("throttled for {s:.1} s so far"));
    let cpus = (own.cpus != all).then(|| format!("CPUs {} of {all}", own.cpus));
    let limits: Vec<String> = [cpus, quota, throttled].into_iter().flatten().collect();
    let found = match limits.is_empty() {
        true => (Offer::Yes, "no affinity, cpuset or quota restricts this process".to_owned()),
        false => (Offer::Limited, limits.join(", ")),
    };
    fact(
        "allowed CPUs and CPU time",
        found,
        "programs that Corebeat starts use fewer CPUs than this host has",
        "change the affinity ('taskset'), the cpuset, or the quota of the control group or container",
    )
}

fn nodes() -> Fact {
    let nodes = corebeat_topology::topology().nodes().len();
    let described = Path::new(corebeat_topology::SYS).join("node/online").exists();
    let found = match (described, nodes) {
        (false, _) => (Offer::No, "not described".to_owned()),
        (true, 1) => (Offer::Yes, "1 node: all memory is local".to_owned()),
        (true, n) => (Offer::Yes, format!("{n} nodes")),
    };
    fact(
        "NUMA nodes",
        found,
        "memory cannot be placed",
        "use a kernel with CONFIG_NUMA, and mount sysfs at /sys; without effect on one node",
    )
}

/// Reads one of the files of this thread.
fn own(name: &str) -> Option<String> {
    read_text(format!("/proc/thread-self/{name}")).ok()
}

fn times() -> Fact {
    let there = own("schedstat").and_then(|t| parse_schedstat(&t)).is_some();
    fact(
        "exact run and wait times (schedstat)",
        either(there, "in nanoseconds for each thread", "missing"),
        "wait, lock, park and sleep times are unknown, and run time is exact to 10 ms only",
        "use a kernel with CONFIG_SCHED_INFO (by CONFIG_SCHEDSTATS or CONFIG_TASK_DELAY_ACCT), as \
         in distributions",
    )
}

fn switches() -> Fact {
    let known = |file| own(file).map(|t| parse_switches(&t)).unwrap_or_default();
    let found = if known("sched").migrations.is_some() {
        (Offer::Yes, "switches and migrations of each thread".to_owned())
    } else if known("status").voluntary.is_some() {
        (Offer::Limited, "switches, but no migrations".to_owned())
    } else {
        (Offer::No, "missing".to_owned())
    };
    fact(
        "switches and migrations",
        found,
        "Thread Reinforcer lacks two of its four indicators",
        "use a kernel with CONFIG_SCHED_DEBUG, for /proc/PID/sched",
    )
}

/// Returns the state that the file reports for a thread that waits for a futex; `None` if it
/// reports no sleep.
fn state_of_sleeper(file: WaitFile) -> Option<WaitState> {
    /// Much longer than a thread needs to fall asleep.
    const TRIES: usize = 200;
    let (sender, receiver) = mpsc::channel();
    let (wake, block) = mpsc::channel::<()>();
    let sleeper = std::thread::Builder::new().spawn(move || {
        let _ = sender.send(rustix::thread::gettid().as_raw_nonzero().get());
        let _ = block.recv();
    });
    let sleeper = sleeper.ok()?;
    let state = receiver.recv().ok().and_then(|tid| {
        (0..TRIES).find_map(|_| {
            std::thread::sleep(Duration::from_millis(1));
            let text = read_text(format!("/proc/self/task/{tid}/{}", file.name())).ok()?;
            Some(file.parse(&text)).filter(|&state| state != WaitState::Awake)
        })
    });
    drop(wake);
    let _ = sleeper.join();
    state
}

fn sleep_reason() -> Fact {
    let by = |file: WaitFile| (state_of_sleeper(file), file.name());
    let found = match (by(WaitFile::Syscall), by(WaitFile::Wchan)) {
        ((Some(WaitState::Park(_)), name), _) => {
            (Offer::Yes, format!("from /proc/PID/task/TID/{name}"))
        }
        (_, (Some(WaitState::Futex), name)) => {
            (Offer::Limited, format!("{name} does not separate locks from other futex waits"))
        }
        (_, (Some(_), name)) => (Offer::Limited, format!("{name} does not identify futex waits")),
        (_, (None, name)) => (Offer::No, format!("{name} reports no sleep")),
    };
    fact(
        "reasons of sleep",
        found,
        "lock time is indistinguishable from other sleep",
        "use a kernel with CONFIG_KALLSYMS for wchan, or with CONFIG_HAVE_ARCH_TRACEHOOK for \
         syscall, and no seccomp filter or LSM that denies reading them",
    )
}

/// Returns the setting of the kernel that restricts performance events.
fn paranoid() -> String {
    let value = read_text("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    match value.trim() {
        "" => "this kernel has no performance events".to_owned(),
        value => format!("kernel.perf_event_paranoid is {value}"),
    }
}

fn spin() -> Fact {
    let found = match SpinSampler::new() {
        Ok(sampler) if sampler.samples_all_threads() => {
            (Offer::Yes, "sampled on every CPU".to_owned())
        }
        Ok(_) => (Offer::Limited, "own threads individually, in bursts".to_owned()),
        Err(_) => (Offer::No, paranoid()),
    };
    fact(
        "spin time",
        found,
        "time that threads spin counts as user time: the main cost of too many threads is not \
         detected",
        match cfg!(target_arch = "x86_64") {
            true => {
                "'sysctl kernel.perf_event_paranoid=2' for own programs, or CAP_PERFMON for \
                 sampling by CPU"
            }
            false => "use x86-64",
        },
    )
}

fn counters() -> Fact {
    let found = match Counting::probe() {
        Ok(counting) => {
            let limit = counting.switches_per_s_max();
            (
                Offer::Yes,
                format!(
                    "of threads with up to {limit:.0} switches per second, by the measured cost of \
                     a switch"
                ),
            )
        }
        Err(e) if e.raw_os_error().is_some() => (Offer::No, format!("{e}; {}", paranoid())),
        Err(e) => (Offer::No, e.to_string()),
    };
    fact(
        "hardware counters",
        found,
        "cache misses and instructions are unknown: FaithFul decides by lock time alone",
        "use bare metal, and 'sysctl kernel.perf_event_paranoid=2' or CAP_PERFMON",
    )
}

fn children() -> Fact {
    let there = Path::new("/proc/thread-self/children").exists();
    fact(
        "lists of children",
        match there {
            true => (Offer::Yes, "for each thread".to_owned()),
            false => (Offer::Limited, "missing: a walk over /proc replaces them".to_owned()),
        },
        "finding new processes is slower on hosts with many processes",
        "use a kernel with CONFIG_PROC_CHILDREN",
    )
}

fn numbers() -> Fact {
    let own = process::check_namespace().is_ok();
    fact(
        "process numbers",
        either(
            own,
            "/proc has the numbers of this process",
            "/proc has those of another namespace",
        ),
        "programs can be neither observed nor changed",
        "mount a /proc for this PID namespace: 'unshare -pf --mount-proc', or 'mount -t proc proc \
         /proc' in a separate mount namespace",
    )
}

fn pidfd() -> Fact {
    let there = pidfd_open(getpid(), PidfdFlags::empty()).is_ok();
    fact(
        "pidfd",
        either(there, "processes are identified reliably", "missing"),
        "'corebeat run' and 'tune' cannot start programs, and a process number that is reused at \
         once may be taken for the old process",
        "use Linux 5.3 or later, and permit pidfd_open in the seccomp filter of a container",
    )
}

/// Parses the option `hidepid` of the `/proc` mount from `/proc/self/mountinfo`.
fn parse_hidepid(mountinfo: &str) -> Option<&str> {
    let of_proc =
        |line: &&str| line.split(' ').nth(4) == Some("/proc") && line.contains(" - proc ");
    // Later mounts hide earlier ones.
    let line = mountinfo.lines().rfind(of_proc)?;
    line.split([' ', ',']).find_map(|option| option.strip_prefix("hidepid="))
}

fn hidden_processes() -> Fact {
    let found = match read_text("/proc/self/mountinfo") {
        Err(e) => (Offer::No, format!("/proc cannot be read: {e}")),
        Ok(mounts) => match parse_hidepid(&mounts) {
            None | Some("0" | "off") => (Offer::Yes, "/proc shows all processes".to_owned()),
            Some(value) => (Offer::Limited, format!("/proc is mounted with hidepid={value}")),
        },
    };
    fact(
        "processes of other users",
        found,
        "only own programs can be watched",
        "run as root, or 'mount -o remount,hidepid=0 /proc'",
    )
}

fn descriptors() -> Fact {
    /// Descriptors of 1,024 threads with counters.
    const ENOUGH: usize = 1024 * 7;
    let max = file::descriptors_max();
    fact(
        "open files",
        (
            if max >= ENOUGH { Offer::Yes } else { Offer::Limited },
            match max {
                0 => "none can be kept open".to_owned(),
                max => format!("up to {max} can be kept open"),
            },
        ),
        "each thread beyond one for seven of these files costs six times as much to watch",
        "'ulimit -Hn 65536' as root, or LimitNOFILE= in the service's unit",
    )
}

fn slices() -> Fact {
    let found = match default_slice_ns() {
        0 => (Offer::No, "this kernel has one slice for all threads".to_owned()),
        ns => (Offer::Yes, format!("for each thread, {} us by default", ns / 1000)),
    };
    fact(
        "time slices",
        found,
        "FaithFul cannot set slices",
        "use Linux 6.12 or later, whose EEVDF scheduler accepts slices by sched_setattr",
    )
}

fn groups() -> Fact {
    let found = match Place::of(std::process::id() as i32) {
        Ok(Some(place)) => {
            let (dir, version) = (place.dir(), place.version());
            let writable = rustix::fs::access(dir, rustix::fs::Access::WRITE_OK).is_ok();
            match writable {
                true => (Offer::Yes, format!("version {version}, at {}", dir.display())),
                false => (
                    Offer::Limited,
                    format!("version {version}, but {} is not writable", dir.display()),
                ),
            }
        }
        Ok(None) => (Offer::No, "this process is in no group".to_owned()),
        Err(e) => (Offer::No, e.to_string()),
    };
    fact(
        "control groups",
        found,
        "programs cannot have weights or quotas of CPU time; signals stop programs instead of \
         freezing",
        "run as root, or by 'systemd-run --user --scope -p Delegate=yes corebeat ...' for a \
         delegated group",
    )
}

/// Bits of CAP_SYS_ADMIN and CAP_BPF in `CapEff`.
const BPF_CAPABILITIES: u64 = 1 << 21 | 1 << 39;

/// Returns whether the capabilities in `/proc/self/status` permit BPF programs.
fn permits_bpf(status: &str) -> bool {
    let caps = process::capabilities(status);
    caps.is_some_and(|c| c & BPF_CAPABILITIES != 0)
}

fn bpf() -> Fact {
    let types = Path::new("/sys/kernel/btf/vmlinux").exists();
    let permitted = permits_bpf(&own("status").unwrap_or_default());
    let found = match (permitted, types) {
        (true, true) => (Offer::Yes, "permitted, with type information of the kernel".to_owned()),
        (true, false) => (
            Offer::Limited,
            "permitted, but the type information of the kernel (BTF) is missing".to_owned(),
        ),
        (false, _) => (Offer::No, "not permitted".to_owned()),
    };
    fact(
        "BPF",
        found,
        "--exact-locks is not available; lock time is sampled, with an error of about one \
         percentage point",
        "run as root or with CAP_BPF and CAP_PERFMON, on a kernel with CONFIG_DEBUG_INFO_BTF",
    )
}

fn sched_ext() -> Fact {
    let there = Path::new("/sys/kernel/sched_ext/state").exists();
    fact(
        "sched_ext",
        either(there, "schedulers can be loaded", "missing"),
        "the scheduler of Corebeat cannot be loaded; affinity, slices and classes still work",
        "use Linux 6.13 or later with CONFIG_SCHED_CLASS_EXT, as in Debian forky, Fedora and Arch",
    )
}

/// Bits of the features that servers need: limits of waits (`IORING_FEAT_EXT_ARG`), and requests
/// without a report of success (`IORING_FEAT_CQE_SKIP`).
const IO_URING_FEATURES: u32 = 1 << 8 | 1 << 11;

/// Creates an io_uring, and returns the bits of its features.
fn io_uring_features() -> io::Result<u32> {
    /// Position of the features in the parameters (`struct io_uring_params`) of 120 bytes.
    const FEATURES: usize = 5;
    /// Position of the flags, and the flags that a server sets (`IORING_SETUP_SUBMIT_ALL` and
    /// `IORING_SETUP_COOP_TASKRUN`).
    const FLAGS: (usize, u32) = (2, 1 << 7 | 1 << 8);
    let mut parameters = [0_u32; 30];
    parameters[FLAGS.0] = FLAGS.1;
    // SAFETY: the parameters have the size of the structure that the first call reads and fills. It
    // returns a new descriptor or a negative value. The second call reads no memory.
    unsafe {
        let fd = libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr());
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // A filter may permit to create a ring, and forbid to use it.
        let entered = libc::syscall(libc::SYS_io_uring_enter, fd, 0, 0, 0, 0, 0);
        let result = if entered < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
        libc::close(fd as libc::c_int);
        result?;
    }
    Ok(parameters[FEATURES])
}

/// Returns why the system refuses io_uring: from the error, `kernel.io_uring_disabled`, and
/// `/proc/self/status`.
fn io_uring_refusal(why: &io::Error, disabled: &str, status: &str) -> String {
    let has_filter = status
        .lines()
        .any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() == "2"));
    match (why.raw_os_error(), disabled.trim()) {
        (Some(libc::EPERM), "1") => {
            "kernel.io_uring_disabled is 1, and this user is not in kernel.io_uring_group".into()
        }
        (Some(libc::EPERM), "2") => "kernel.io_uring_disabled is 2".into(),
        (Some(libc::EPERM | libc::EACCES | libc::ENOSYS), _) if has_filter => {
            format!("a seccomp filter probably forbids it ({why})")
        }
        (Some(libc::EINVAL), _) => "this kernel is older than Linux 5.19".into(),
        (Some(libc::ENOSYS), _) => "this kernel was built without CONFIG_IO_URING".into(),
        _ => why.to_string(),
    }
}

fn io_uring() -> Fact {
    let found = match io_uring_features() {
        Ok(features) if features & IO_URING_FEATURES == IO_URING_FEATURES => {
            (Offer::Yes, "permitted".to_owned())
        }
        Ok(_) => (Offer::No, "permitted, but this kernel lacks features that servers need".into()),
        Err(why) => {
            let disabled = read_text("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
            let status = own("status").unwrap_or_default();
            (Offer::No, io_uring_refusal(&why, &disabled, &status))
        }
    };
    fact(
        "io_uring",
        found,
        "servers of corebeat-reactor cannot detect events by it; they use epoll by default",
        "use Linux 5.19 or later with CONFIG_IO_URING, 'sysctl kernel.io_uring_disabled=0', and a \
         seccomp filter that permits io_uring_setup and io_uring_enter",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn facts_have_consequence_and_remedy() {
        let facts = facts();
        assert!(facts.len() >= 12);
        for fact in &facts {
            assert!(
                !fact.detail.is_empty() && !fact.cost.is_empty() && !fact.how.is_empty(),
                "{fact:?}"
            );
            assert!(!fact.detail.contains('\n'), "{fact:?}");
        }
    }

    #[test]
    fn counted_one_is_singular() {
        assert_eq!(
            (counted(1, "cache").as_str(), counted(2, "core").as_str()),
            ("1 cache", "2 cores")
        );
    }

    #[test]
    fn hidepid_of_the_last_proc_mount_counts() {
        let line =
            |options: &str| format!("22 1 0:21 / /proc rw,relatime - proc proc rw{options}\n");
        assert_eq!(parse_hidepid(&line("")), None);
        assert_eq!(parse_hidepid(&line(",hidepid=invisible")), Some("invisible"));
        assert_eq!(parse_hidepid(&(line(",hidepid=2") + &line(""))), None);
        assert_eq!(parse_hidepid("22 1 0:21 / /other rw - proc proc rw,hidepid=2\n"), None);
    }

    #[test]
    fn bpf_is_permitted_by_capabilities() {
        assert!(permits_bpf("Name:\tx\nCapEff:\t000001ffffffffff\n"));
        assert!(!permits_bpf("CapEff:\t0000000000000000\n"));
        assert!(!permits_bpf(""));
    }

    #[test]
    fn reason_of_a_refused_io_uring_is_named() {
        let reason = |error, disabled, status| {
            io_uring_refusal(&io::Error::from_raw_os_error(error), disabled, status)
        };
        let filter = "Seccomp:\t2\n";
        assert!(reason(libc::EPERM, "2\n", "").ends_with("io_uring_disabled is 2"));
        assert!(reason(libc::EPERM, "1\n", filter).contains("io_uring_group"));
        assert!(reason(libc::EPERM, "0\n", filter).contains("seccomp"));
        assert!(reason(libc::ENOSYS, "", filter).contains("seccomp"));
        assert!(reason(libc::ENOSYS, "", "Seccomp:\t0\n").contains("CONFIG_IO_URING"));
        assert!(!reason(libc::EMFILE, "0\n", filter).contains("seccomp"));
    }

    proptest! {
        #[test]
        fn facts_parsers_never_panic(text in "( |,|/proc|hidepid=|CapEff:|-|proc|\n|\\PC){0,20}") {
            let _ = (parse_hidepid(&text), permits_bpf(&text));
        }
    }
}
