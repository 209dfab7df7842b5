//! Tests with several NUMA nodes, against the numbers of the kernel. With one node, the tests print
//! a line and do nothing; `cargo xtask vm` has a machine with two nodes.

use corebeat_linux::{Actuator, Launch, MemoryPolicy, Started, topology};
use corebeat_machine::{Action, Class, CpuSet, NodeId, ProgramId, Target, ThreadId};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard};

const P: ProgramId = ProgramId(3);
const ROLE: &str = "COREBEAT_TEST_ROLE";
/// Memory of a process of the test: eight of the blocks in which memory is spread.
const BYTES: usize = 16 << 20;
const PAGES: usize = BYTES / 4096;
/// Number of pages that cannot be moved because they are in use temporarily.
const STUCK_MAX: usize = PAGES / 50;

/// Serialises the tests: the kernel counts for the whole host.
static ALONE: Mutex<()> = Mutex::new(());

/// Returns the nodes if there are several, and exclusive access.
fn nodes() -> Option<(Vec<NodeId>, MutexGuard<'static, ()>)> {
    let nodes: Vec<NodeId> = topology().nodes().iter().map(|n| n.id).collect();
    if nodes.len() < 2 {
        println!(
            "skipped: this host has one node; 'cargo xtask ci --only vm' starts a machine with two"
        );
        return None;
    }
    Some((nodes, ALONE.lock().unwrap_or_else(|e| e.into_inner())))
}

/// Reads a file of a node.
fn of_node(node: NodeId, file: &str) -> String {
    fs::read_to_string(format!("/sys/devices/system/node/node{}/{file}", node.0)).unwrap()
}

/// Returns the number of anonymous pages on a node.
fn anonymous(node: NodeId) -> usize {
    let text = of_node(node, "meminfo");
    let line = text.lines().find(|l| l.contains(" AnonPages:")).unwrap();
    line.split_ascii_whitespace().nth_back(1).unwrap().parse::<usize>().unwrap() / 4
}

/// This test in another process with a role, which ends when its input is closed.
struct Player {
    started: Started,
    _input: OwnedFd,
    output: BufReader<File>,
}

impl Player {
    fn start(role: &str, memory: Option<MemoryPolicy>) -> Player {
        let (stdin, input) = std::io::pipe().unwrap();
        let (output, stdout) = std::io::pipe().unwrap();
        let args = ["play", "--exact", "--nocapture", "--test-threads=1"].map(Into::into);
        let launch = Launch {
            env: vec![(ROLE.into(), Some(role.into()))],
            memory,
            stdin: Some(OwnedFd::from(stdin).into()),
            stdout: Some(OwnedFd::from(stdout).into()),
            ..Launch::new(std::env::current_exe().unwrap(), args)
        };
        let mut started = launch.start().unwrap();
        started.release().unwrap();
        drop(launch);
        let output = BufReader::new(File::from(OwnedFd::from(output)));
        let mut player = Player { started, _input: input.into(), output };
        player.wait_for("@ready");
        player
    }

    fn wait_for(&mut self, word: &str) {
        let mut line = String::new();
        while !line.contains(word) {
            line.clear();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "no '{word}' before the end");
        }
    }

    fn threads(&self) -> Vec<ThreadId> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.started.pid())).unwrap();
        let tids = tasks.flatten().map(|e| e.file_name().to_str().unwrap().parse().unwrap());
        tids.map(|tid| ThreadId { tid, start_ticks: self.stat(tid, 22) }).collect()
    }

    /// Returns a field of the `stat` file of a thread, numbered as in proc_pid_stat(5).
    fn stat(&self, tid: i32, field: usize) -> u64 {
        let stat =
            fs::read_to_string(format!("/proc/{}/task/{tid}/stat", self.started.pid())).unwrap();
        stat[stat.rfind(')').unwrap() + 2..].split(' ').nth(field - 3).unwrap().parse().unwrap()
    }

    /// Returns the lines of large areas in `numa_maps`.
    fn areas(&self) -> Vec<String> {
        let maps = fs::read_to_string(format!("/proc/{}/numa_maps", self.started.pid())).unwrap();
        let anon =
            |l: &str| l.split(' ').find_map(|w| w.strip_prefix("anon=")?.parse::<usize>().ok());
        // Stacks and other areas are small.
        maps.lines()
            .filter(|l| anon(l).is_some_and(|n| n >= PAGES / 8))
            .map(str::to_owned)
            .collect()
    }

    /// Returns the pages of large areas, by node.
    fn pages(&self) -> BTreeMap<NodeId, usize> {
        let mut pages = BTreeMap::new();
        for word in self.areas().iter().flat_map(|l| l.split(' ')) {
            let count = word.strip_prefix('N').and_then(|w| w.split_once('='));
            if let Some((node, count)) = count {
                *pages.entry(NodeId(node.parse().unwrap())).or_default() +=
                    count.parse::<usize>().unwrap();
            }
        }
        pages
    }

    fn pages_on(&self, node: NodeId) -> usize {
        self.pages().get(&node).copied().unwrap_or(0)
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        // SAFETY: a plain system call; the number belongs to this child until it is reaped.
        unsafe { libc::kill(self.started.pid(), libc::SIGKILL) };
        let _ = self.started.wait();
    }
}

/// The other process of these tests. Does nothing as a test.
#[test]
fn play() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let memory = vec![1u8; BYTES];
    if role == "spin" {
        std::thread::spawn(|| {
            loop {
                std::hint::spin_loop();
            }
        });
    }
    println!("@ready");
    let _ = std::io::stdin().read(&mut [0]);
    drop(std::hint::black_box(memory));
    std::process::exit(0);
}

#[test]
fn topology_agrees_with_the_kernel() {
    let Some((nodes, _alone)) = nodes() else { return };
    let here = topology();
    for node in here.nodes() {
        let cpus: CpuSet = of_node(node.id, "cpulist").parse().unwrap();
        assert_eq!(node.cpus, cpus);
        assert!(here.cpus().iter().all(|c| cpus.contains(c.id) == (c.node == node.id)));
        let reported: Vec<u32> =
            of_node(node.id, "distance").split(' ').map(|d| d.trim().parse().unwrap()).collect();
        assert_eq!(node.distances, reported);
    }
    if std::env::var_os("COREBEAT_VM").is_some() {
        assert_eq!(nodes, [NodeId(0), NodeId(1)]);
        assert_eq!(here.cpus().len(), 8);
        assert_eq!(here.nodes()[0].distances, [10, 21]);
        assert_eq!(here.nodes()[1].cpus, "4-7".parse().unwrap());
        // Each socket has a separate last-level cache.
        let caches: Vec<bool> =
            here.cpus().iter().map(|c| c.cache == here.cpus()[0].cache).collect();
        assert_eq!(caches, [true, true, true, true, false, false, false, false]);
    }
}

#[test]
fn policy_at_start_determines_the_placement_of_memory() {
    let Some((nodes, _alone)) = nodes() else { return };
    let [first, .., last] = nodes[..] else { unreachable!("several") };
    for (policy, name) in
        [(MemoryPolicy::Bind(vec![last]), "bind:"), (MemoryPolicy::Prefer(last), "prefer:")]
    {
        let player = Player::start("sleep", Some(policy));
        assert_eq!(player.pages().keys().copied().collect::<Vec<_>>(), [last]);
        assert!(player.areas()[0].contains(&format!("{name}{}", last.0)), "{:?}", player.areas());
    }
    let player = Player::start("sleep", Some(MemoryPolicy::Interleave(vec![first, last])));
    assert!(player.areas()[0].contains("interleave:"), "{:?}", player.areas());
    // Alternating, page by page or huge page by huge page.
    for node in [first, last] {
        assert!(player.pages_on(node).abs_diff(PAGES / 2) <= 512, "{:?}", player.pages());
    }
}

#[test]
fn move_pages_moves_memory_to_the_other_node_and_back() {
    let Some((nodes, _alone)) = nodes() else { return };
    let [first, .., last] = nodes[..] else { unreachable!("several") };
    let dir = tempfile::tempdir().unwrap();
    let mut actuator = Actuator::new(dir.path());
    let player = Player::start("sleep", Some(MemoryPolicy::Prefer(first)));
    assert_eq!(player.pages_on(last), 0);
    for (from, to) in [(first, last), (last, first)] {
        let before = anonymous(to);
        let action = Action::MovePages { program: P, from: vec![from], to: vec![to] };
        assert!(actuator.apply(&action, P, &player.threads()).unwrap().has_changed());
        assert!(player.pages_on(from) <= STUCK_MAX, "{:?}", player.pages());
        assert!(player.pages_on(to) >= PAGES - STUCK_MAX, "{:?}", player.pages());
        // Counts of the nodes; a process that starts meanwhile may use some pages.
        let gained = anonymous(to).saturating_sub(before);
        assert!(gained >= PAGES * 9 / 10, "{gained} of {PAGES} pages moved to node {}", to.0);
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "moved memory is not undone");
}

#[test]
fn spread_distributes_memory_evenly_and_permanently() {
    let Some((nodes, _alone)) = nodes() else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut actuator = Actuator::new(dir.path());
    let player = Player::start("sleep", Some(MemoryPolicy::Bind(vec![nodes[0]])));
    let spread = |spread| Action::SpreadPages { program: P, spread };
    assert!(actuator.apply(&spread(true), P, &player.threads()).unwrap().has_changed());
    let pages = player.pages();
    // Blocks of 2 MiB, alternating: one block more or less, and incomplete blocks at the ends.
    for node in &nodes {
        let share = PAGES / nodes.len();
        assert!(
            pages.get(node).copied().unwrap_or(0).abs_diff(share) <= 512 + STUCK_MAX,
            "{pages:?}"
        );
    }
    assert!(!actuator.apply(&spread(false), P, &player.threads()).unwrap().has_changed());
    assert_eq!(player.pages(), pages);
}

/// Returns the slice of a thread in nanoseconds; 0 before Linux 6.12.
fn slice_ns(tid: i32) -> u64 {
    let mut attr = [0u64; 7];
    // SAFETY: the kernel writes at most the 56 bytes that `attr` has.
    let result =
        unsafe { libc::syscall(libc::SYS_sched_getattr, tid, attr.as_mut_ptr(), 56u32, 0u32) };
    assert_eq!(result, 0);
    attr[3]
}

#[test]
fn actions_of_the_tranquilizer_have_the_reported_effect() {
    let Some((nodes, _alone)) = nodes() else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut actuator = Actuator::new(dir.path());
    let player = Player::start("sleep", Some(MemoryPolicy::Prefer(nodes[0])));
    let target = Target::Program(P);
    let turns = |of: &Player| -> Vec<(u64, u64)> {
        of.threads().iter().map(|t| (of.stat(t.tid, 41), slice_ns(t.tid))).collect()
    };
    let before = turns(&player);
    let has_slices = before.iter().all(|(_, slice)| *slice > 0);
    // A program with many misses: fixed priority, a quantum of 100 ms, memory over all nodes
    // (section 3.2).
    let mut actions = vec![
        Action::SetClass { target, class: Some(Class::Batch) },
        Action::SpreadPages { program: P, spread: true },
    ];
    actions.extend(has_slices.then_some(Action::SetSlice { target, slice_us: Some(100_000) }));
    let account: Vec<usize> = nodes.iter().map(|n| anonymous(*n)).collect();
    for action in actions {
        assert!(actuator.apply(&action, P, &player.threads()).unwrap().has_changed(), "{action:?}");
    }
    const BATCH: u64 = libc::SCHED_BATCH as u64;
    let is_fixed = |(class, slice): &(u64, u64)| {
        *class == BATCH && ((99_900_001..100_000_000).contains(slice) || !has_slices)
    };
    assert!(turns(&player).iter().all(is_fixed), "{:?}", turns(&player));
    // Counts of the process and of the nodes, as `numastat` shows them.
    for (node, before) in nodes.iter().zip(account).skip(1) {
        let gained = anonymous(*node).saturating_sub(before);
        let share = PAGES / nodes.len();
        assert!(player.pages_on(*node).abs_diff(share) <= 512 + STUCK_MAX, "{:?}", player.pages());
        assert!(
            gained.abs_diff(share) <= 512 + PAGES / 10,
            "{gained} pages came to node {}",
            node.0
        );
    }
    let pages = player.pages();
    assert!(actuator.restore().left.is_empty());
    assert_eq!((turns(&player), player.pages()), (before, pages), "memory stays");
}

#[test]
fn thread_that_is_pinned_to_a_node_runs_only_there() {
    let Some((_nodes, _alone)) = nodes() else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut actuator = Actuator::new(dir.path());
    let player = Player::start("spin", None);
    let cpu_time = |t: &ThreadId| player.stat(t.tid, 14);
    let spinner = loop {
        let busiest = player.threads().into_iter().max_by_key(cpu_time).unwrap();
        if cpu_time(&busiest) > 10 {
            break busiest;
        }
        std::thread::yield_now();
    };
    for node in topology().nodes().iter().cycle().take(6) {
        let target = Target::Thread(spinner);
        let action = Action::SetCpus { target, cpus: Some(node.cpus.clone()) };
        actuator.apply(&action, P, &player.threads()).unwrap();
        // Last CPU, after the thread has run again.
        let before = cpu_time(&spinner);
        while cpu_time(&spinner) == before {
            std::thread::yield_now();
        }
        let cpu = corebeat_machine::CpuId(player.stat(spinner.tid, 39) as u32);
        assert!(node.cpus.contains(cpu), "CPU {} is not of node {}", cpu.0, node.id.0);
    }
    assert_eq!(actuator.restore().undone.len(), 1);
}
