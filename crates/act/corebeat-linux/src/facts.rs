//! What this host offers, what a lack of it costs, and how to get it.

use crate::cgroup::Place;
use crate::counter::Counting;
use crate::hand::setting::default_slice_ns;
use crate::spin::SpinSampler;
use crate::thread::{Look, LookFile, parse_schedstat, parse_switches};
use crate::{file, topology};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use serde::Serialize;
use std::fs;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

/// Whether something is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Offer {
    /// All of it.
    Yes,
    /// A part of it, or at a price.
    Limited,
    /// Nothing.
    No,
}

/// One thing that a host may offer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fact {
    /// What it is.
    pub name: &'static str,
    /// Whether it is there.
    pub offer: Offer,
    /// What was found, in a few words.
    pub detail: String,
    /// What its absence costs.
    pub cost: &'static str,
    /// How to get it.
    pub how: &'static str,
}

/// What this host offers to this user. Tries things out rather than asking for versions; changes nothing, and takes a few
/// milliseconds.
pub fn facts() -> Vec<Fact> {
    vec![
        cpus(),
        nodes(),
        times(),
        switches(),
        sleep_reason(),
        spin(),
        counters(),
        children(),
        pidfd(),
        hidden_processes(),
        descriptors(),
        slices(),
        groups(),
        bpf(),
        sched_ext(),
    ]
}

fn fact(name: &'static str, (offer, detail): (Offer, String), cost: &'static str, how: &'static str) -> Fact {
    Fact { name, offer, detail, cost, how }
}

/// Yes or no, with what is said of either.
fn either(yes: bool, if_yes: &str, if_no: &str) -> (Offer, String) {
    if yes { (Offer::Yes, if_yes.to_owned()) } else { (Offer::No, if_no.to_owned()) }
}

/// Such as `1 core` and `2 cores`.
fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn cpus() -> Fact {
    let root = Path::new(topology::SYS);
    let topology = topology::read(root);
    let cpus = topology.cpus();
    let count = |key: fn(&corebeat_machine::Cpu) -> u32| {
        let mut keys: Vec<u32> = cpus.iter().map(key).collect();
        keys.sort_unstable();
        keys.dedup();
        keys.len()
    };
    let found = if root.join("cpu/online").exists() {
        let (cores, caches, packages) = (count(|c| c.core), count(|c| c.cache), count(|c| c.package));
        let parts = [(cpus.len(), "CPU"), (cores, "core"), (caches, "cache"), (packages, "package")];
        (Offer::Yes, parts.map(|(n, what)| counted(n, what)).join(", "))
    } else {
        (Offer::Limited, format!("{}; nothing is said of cores and caches", counted(cpus.len(), "CPU")))
    };
    fact(
        "CPU topology",
        found,
        "threads cannot be placed by core and cache",
        "mount sysfs at /sys, also in the container",
    )
}

fn nodes() -> Fact {
    let nodes = topology::topology().nodes().len();
    let described = Path::new(topology::SYS).join("node/online").exists();
    let found = match (described, nodes) {
        (false, _) => (Offer::No, "not described".to_owned()),
        (true, 1) => (Offer::Yes, "1 node: all memory is near".to_owned()),
        (true, n) => (Offer::Yes, format!("{n} nodes")),
    };
    fact(
        "NUMA nodes",
        found,
        "memory cannot be placed",
        "a kernel with CONFIG_NUMA, and sysfs at /sys; of no use on a machine with one node",
    )
}

/// The text of one of this thread's own files.
fn own(name: &str) -> Option<String> {
    fs::read_to_string(format!("/proc/thread-self/{name}")).ok()
}

fn times() -> Fact {
    let there = own("schedstat").and_then(|t| parse_schedstat(&t)).is_some();
    fact(
        "exact run and wait times (schedstat)",
        either(there, "in nanoseconds for each thread", "missing"),
        "latency, lock and sleep times are unknown, and run time is exact to 10 ms only",
        "a kernel with CONFIG_SCHED_INFO (by CONFIG_SCHEDSTATS or CONFIG_TASK_DELAY_ACCT), as distributions have it",
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
        "Thread Reinforcer has two of its four signs less",
        "a kernel with CONFIG_SCHED_DEBUG, for /proc/PID/sched",
    )
}

/// What the file says of a thread that waits for a futex; `None` if it says nothing.
fn look_at_sleeper(file: LookFile) -> Option<Look> {
    /// Far longer than it takes to fall asleep.
    const TRIES: usize = 200;
    let (told, tells) = mpsc::channel();
    let (wake, waits) = mpsc::channel::<()>();
    let sleeper = std::thread::Builder::new().spawn(move || {
        let _ = told.send(rustix::thread::gettid().as_raw_nonzero().get());
        let _ = waits.recv();
    });
    let sleeper = sleeper.ok()?;
    let look = tells.recv().ok().and_then(|tid| {
        (0..TRIES).find_map(|_| {
            std::thread::sleep(Duration::from_millis(1));
            let text = fs::read_to_string(format!("/proc/self/task/{tid}/{}", file.name())).ok()?;
            Some(file.parse(&text)).filter(|&look| look != Look::Awake)
        })
    });
    drop(wake);
    let _ = sleeper.join();
    look
}

fn sleep_reason() -> Fact {
    let file = LookFile::of_this_kernel();
    let found = match look_at_sleeper(file) {
        Some(Look::Futex) => (Offer::Yes, format!("from /proc/PID/task/TID/{}", file.name())),
        Some(_) => (Offer::Limited, format!("{} calls a futex something else", file.name())),
        None => (Offer::No, format!("{} tells nothing", file.name())),
    };
    fact(
        "what threads sleep in",
        found,
        "lock time cannot be told from sleep",
        "a kernel with CONFIG_KALLSYMS for wchan, or with CONFIG_HAVE_ARCH_TRACEHOOK for syscall; no seccomp or LSM \
         that forbids to read them",
    )
}

/// The kernel's word on who may use performance events.
fn paranoid() -> String {
    let value = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    match value.trim() {
        "" => "this kernel has no performance events".to_owned(),
        value => format!("kernel.perf_event_paranoid is {value}"),
    }
}

fn spin() -> Fact {
    let found = match SpinSampler::new() {
        Ok(sampler) if sampler.is_everybody() => (Offer::Yes, "sampled on every CPU".to_owned()),
        Ok(_) => (Offer::Limited, "own threads one by one, in bursts".to_owned()),
        Err(_) => (Offer::No, paranoid()),
    };
    fact(
        "spin time",
        found,
        "time that threads wait by spinning counts as user time: what hurts most with too many threads is not seen",
        "x86-64, and 'sysctl kernel.perf_event_paranoid=2' for one's own programs or CAP_PERFMON for sampling by CPU",
    )
}

fn counters() -> Fact {
    let found = match Counting::probe() {
        Ok(counting) => {
            let limit = counting.switches_per_s_max();
            (
                Offer::Yes,
                format!(
                    "of threads that switch up to {limit:.0} times a second, by what a switch costs here"
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
        "bare metal, and 'sysctl kernel.perf_event_paranoid=2' or CAP_PERFMON",
    )
}

fn children() -> Fact {
    let there = Path::new("/proc/thread-self/children").exists();
    fact(
        "lists of children",
        match there {
            true => (Offer::Yes, "for each thread".to_owned()),
            false => (Offer::Limited, "missing; all of /proc is walked instead".to_owned()),
        },
        "new processes are found at a higher price on hosts with many",
        "a kernel with CONFIG_PROC_CHILDREN",
    )
}

fn pidfd() -> Fact {
    let there = pidfd_open(getpid(), PidfdFlags::empty()).is_ok();
    fact(
        "pidfd",
        either(there, "numbers of processes cannot be mistaken", "missing"),
        "'corebeat run' and 'tune' cannot start programs, and a process number that is used again within a moment may be \
         taken for the old one's",
        "Linux 5.3 or later; a container's seccomp filter may have to permit pidfd_open",
    )
}

/// The value of `hidepid` among the options of the `/proc` mount, by `/proc/self/mountinfo`.
fn parse_hidepid(mountinfo: &str) -> Option<&str> {
    let of_proc = |line: &&str| line.split(' ').nth(4) == Some("/proc") && line.contains(" - proc ");
    // Later mounts hide earlier ones.
    let line = mountinfo.lines().rfind(of_proc)?;
    line.split([' ', ',']).find_map(|option| option.strip_prefix("hidepid="))
}

fn hidden_processes() -> Fact {
    let found = match fs::read_to_string("/proc/self/mountinfo") {
        Err(e) => (Offer::No, format!("/proc cannot be read: {e}")),
        Ok(mounts) => match parse_hidepid(&mounts) {
            None | Some("0" | "off") => (Offer::Yes, "/proc shows all processes".to_owned()),
            Some(value) => (Offer::Limited, format!("/proc is mounted with hidepid={value}")),
        },
    };
    fact(
        "processes of others",
        found,
        "only one's own programs can be watched",
        "run as root, or 'mount -o remount,hidepid=0 /proc'",
    )
}

fn descriptors() -> Fact {
    /// What 1,024 threads take with counters.
    const ENOUGH: usize = 1024 * 7;
    let max = file::descriptors_max();
    fact(
        "open files",
        (if max >= ENOUGH { Offer::Yes } else { Offer::Limited }, format!("{max} may be kept open")),
        "threads beyond a 7th of that cost six times as much to watch",
        "'ulimit -Hn 65536' as root, or LimitNOFILE= in the service's unit",
    )
}

fn slices() -> Fact {
    let found = match default_slice_ns() {
        0 => (Offer::No, "this kernel has one slice for all".to_owned()),
        ns => (Offer::Yes, format!("a request for each thread, {} us by default", ns / 1000)),
    };
    fact(
        "time slices",
        found,
        "FaithFul cannot set slices",
        "Linux 6.12 or later, whose EEVDF scheduler takes them by sched_setattr",
    )
}

fn groups() -> Fact {
    let found = match Place::of(std::process::id() as i32) {
        Ok(Some(place)) => {
            let (dir, version) = (place.dir(), place.version());
            let writable = rustix::fs::access(dir, rustix::fs::Access::WRITE_OK).is_ok();
            match writable {
                true => (Offer::Yes, format!("version {version}, at {}", dir.display())),
                false => (Offer::Limited, format!("version {version}, but {} is not ours", dir.display())),
            }
        }
        Ok(None) => (Offer::No, "this process is in none".to_owned()),
        Err(e) => (Offer::No, e.to_string()),
    };
    fact(
        "control groups",
        found,
        "programs cannot be given weights against each other, nor limits of CPU time; signals stop them in place of freezing",
        "run as root, or by 'systemd-run --user --scope -p Delegate=yes corebeat ...' for a group of one's own",
    )
}

/// Bit of CAP_SYS_ADMIN and of CAP_BPF in `CapEff`.
const BPF_CAPABILITIES: u64 = 1 << 21 | 1 << 39;

/// Whether the capabilities in `/proc/self/status` permit BPF programs.
fn permits_bpf(status: &str) -> bool {
    let caps = status.lines().find_map(|l| u64::from_str_radix(l.strip_prefix("CapEff:")?.trim(), 16).ok());
    caps.is_some_and(|c| c & BPF_CAPABILITIES != 0)
}

fn bpf() -> Fact {
    let types = Path::new("/sys/kernel/btf/vmlinux").exists();
    let permitted = permits_bpf(&own("status").unwrap_or_default());
    let found = match (permitted, types) {
        (true, true) => (Offer::Yes, "permitted, with the kernel's types".to_owned()),
        (true, false) => (Offer::Limited, "permitted, but the kernel's types (BTF) are missing".to_owned()),
        (false, _) => (Offer::No, "not permitted".to_owned()),
    };
    fact(
        "BPF",
        found,
        "--exact-locks cannot be used; lock time is sampled, to about a point",
        "run as root or with CAP_BPF and CAP_PERFMON, on a kernel with CONFIG_DEBUG_INFO_BTF",
    )
}

fn sched_ext() -> Fact {
    let there = Path::new("/sys/kernel/sched_ext/state").exists();
    fact(
        "sched_ext",
        either(there, "schedulers can be loaded", "missing"),
        "Corebeat's own scheduler cannot be loaded; affinity, slices and classes still work",
        "Linux 6.12 or later with CONFIG_SCHED_CLASS_EXT, as Debian forky, Fedora and Arch have it",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn facts_say_what_a_lack_costs_and_how_to_help_it() {
        let facts = facts();
        assert!(facts.len() >= 12);
        for fact in &facts {
            assert!(!fact.detail.is_empty() && !fact.cost.is_empty() && !fact.how.is_empty(), "{fact:?}");
            assert!(!fact.detail.contains('\n'), "{fact:?}");
        }
    }

    #[test]
    fn counted_one_is_singular() {
        assert_eq!((counted(1, "cache").as_str(), counted(2, "core").as_str()), ("1 cache", "2 cores"));
    }

    #[test]
    fn hidepid_of_the_last_proc_mount_counts() {
        let line = |options: &str| format!("22 1 0:21 / /proc rw,relatime - proc proc rw{options}\n");
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

    proptest! {
        #[test]
        fn facts_parsers_never_panic(text in "( |,|/proc|hidepid=|CapEff:|-|proc|\n|\\PC){0,20}") {
            let _ = (parse_hidepid(&text), permits_bpf(&text));
        }
    }
}
