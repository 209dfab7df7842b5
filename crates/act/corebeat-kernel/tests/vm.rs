//! The scheduler in a kernel that loads schedulers: in the virtual machine of `cargo xtask vm`. On
//! other hosts the tests print a line and do nothing.

#[path = "vm/all.rs"]
mod all;

use corebeat_conformance::{ProgramSettings, ProgramSpec, Settings, Subject, failures};
use corebeat_kernel::{Groups, KernelScheduler, KernelTable, check};
use corebeat_linux::{Error, LinuxMachine, Options};
use corebeat_machine::{
    Action, Class, CoscheduledSet, CpuId, CpuSet, Machine, ProgramId, Scheduler, Target, ThreadId,
};
use corebeat_policy::cosched::{Cosched, Fragments};
use corebeat_test_group::TestGroup;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Role of this executable as a program of a test: its number of threads, and whether they compute.
const ROLE: &str = "COREBEAT_TEST_ROLE";
/// Number of the policy `SCHED_EXT`.
const SCHED_EXT: &str = "7";
/// Longest wait of a test for a condition.
const PATIENCE: Duration = Duration::from_secs(60);

/// The kernel has one scheduler at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Exclusive access, if this host can load the scheduler.
fn alone() -> Option<MutexGuard<'static, ()>> {
    match check() {
        Ok(()) => Some(ALONE.lock().unwrap_or_else(|e| e.into_inner())),
        Err(why) => {
            assert!(std::env::var_os("COREBEAT_VM_SCHED_EXT").is_none(), "{why}");
            println!("skipped: {why}; 'cargo xtask ci --only vm' starts a machine that can");
            None
        }
    }
}

/// Loads the scheduler, for all threads of the host or for admitted programs.
fn load(all: bool) -> KernelScheduler {
    KernelScheduler::load(all).unwrap_or_else(|e| panic!("{e}"))
}

/// The state of sched_ext: enabled or disabled.
fn state() -> String {
    fs::read_to_string("/sys/kernel/sched_ext/state").unwrap().trim().to_owned()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "{what} does not happen");
        std::thread::yield_now();
    }
}

/// A process of this executable with threads. Dropping kills it.
struct Player {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    group: TestGroup,
}

impl Player {
    /// Starts a process with this number of threads, which sleep or compute.
    fn start(threads: u32, nice: i8, computes: bool) -> Player {
        let group = TestGroup::new();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["play", "--exact", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, format!("{threads} {computes} {nice}"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = group.add(&mut command).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut player = Player { child, input, output, group };
        player.wait_for("ready");
        player
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    fn send(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    fn wait_for(&mut self, word: &str) {
        let mut line = String::new();
        while !line.contains(word) {
            line.clear();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the process has ended");
        }
    }

    /// A field of the files `stat` of all threads.
    fn fields(&self, number: usize) -> Vec<String> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        tasks.map(|entry| field(&entry.unwrap().path().join("stat"), number)).collect()
    }

    /// Policies of all threads.
    fn policies(&self) -> Vec<String> {
        self.fields(41)
    }

    /// CPU time of all threads in user space, in ticks of 10 ms.
    fn ticks(&self) -> u64 {
        self.fields(14).iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum()
    }

    fn wait_until_asleep(&self) {
        wait_until("sleep", || self.fields(3).iter().all(|state| state == "S"));
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        self.group.kill();
        let _ = self.child.wait();
    }
}

/// A field of a file `stat`, counted from 1, after the name.
fn field(file: &std::path::Path, number: usize) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    let rest = text.rsplit_once(") ").map_or("", |(_, rest)| rest);
    rest.split(' ').nth(number - 3).unwrap_or_default().to_owned()
}

fn identity(tid: i32) -> ThreadId {
    let start = field(format!("/proc/{tid}/stat").as_ref(), 22);
    ThreadId { tid, start_ticks: start.parse().unwrap() }
}

/// The program of the tests; without a role it does nothing.
#[test]
fn play() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let [threads, computes, nice] = role.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{role}")
    };
    for thread in fs::read_dir("/proc/self/task").unwrap() {
        let tid = thread.unwrap().file_name().into_string().unwrap().parse().unwrap();
        // SAFETY: the call takes no pointer.
        assert_eq!(unsafe { libc::setpriority(libc::PRIO_PROCESS, tid, nice.parse().unwrap()) }, 0);
    }
    let start = |count: u32, computes: bool| {
        for _ in 0..count {
            std::thread::spawn(move || {
                loop {
                    match computes {
                        true => std::hint::spin_loop(),
                        false => std::thread::park(),
                    }
                }
            });
        }
    };
    // The test harness has a thread of its own, besides this one.
    start(threads.parse::<u32>().unwrap().saturating_sub(2), computes == "true");
    println!("ready");
    for line in std::io::stdin().lines() {
        match line.unwrap().as_str() {
            "more" => {
                start(2, false);
                println!("born");
            }
            "compute" => start(1, true),
            _ => break,
        }
    }
    std::process::exit(0);
}

#[test]
fn scheduler_is_loaded_until_it_is_dropped() {
    let Some(_alone) = alone() else { return };
    let scheduler = load(false);
    assert_eq!(state(), "enabled");
    assert!(scheduler.failure().is_none());
    assert!(check().unwrap_err().to_string().contains("corebeat"), "a second one is refused");
    drop(scheduler);
    assert_eq!(state(), "disabled");
}

/// Processes under the scheduler, as a subject of the conformance suite. Ground truth comes from
/// `/proc`, `sched_getattr` and the tables of the scheduler in the kernel.
struct KernelSubject {
    machine: LinuxMachine,
    groups: Groups,
    programs: Vec<(Player, ProgramId)>,
    own: Vec<Settings>,
    _state: tempfile::TempDir,
}

impl KernelSubject {
    fn new(all: bool, specs: &[ProgramSpec]) -> Self {
        let state = tempfile::tempdir().unwrap();
        let state_dir = Some(state.path().join("state"));
        let mut machine = LinuxMachine::new(Options { state_dir, ..Options::default() }).unwrap();
        let scheduler = load(all);
        let groups = scheduler.groups().unwrap();
        machine.set_scheduler(Box::new(scheduler));
        machine.set_table(Box::new(KernelTable::load().unwrap()));
        let players: Vec<Player> =
            specs.iter().map(|spec| Player::start(spec.threads, spec.nice, false)).collect();
        let own = players.iter().map(|player| settings(player.pid())).collect();
        let watch = |player: Player| {
            let id = machine.watch(player.pid()).unwrap();
            machine.admit(id).unwrap();
            (player, id)
        };
        let programs = players.into_iter().map(watch).collect();
        KernelSubject { machine, groups, programs, own, _state: state }
    }
}

/// Reads the settings of a thread from the kernel, except the class of the scheduler.
fn settings(tid: i32) -> Settings {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).unwrap();
    let cpus = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).unwrap();
    let stat = format!("/proc/{tid}/stat");
    let mut attr = [0u64; 7];
    // SAFETY: the kernel writes at most the 56 bytes that `attr` has.
    let result =
        unsafe { libc::syscall(libc::SYS_sched_getattr, tid, attr.as_mut_ptr(), 56u32, 0u32) };
    assert_eq!(result, 0);
    let class = match field(stat.as_ref(), 41).as_str() {
        "3" => Class::Batch,
        "5" => Class::Idle,
        _ => Class::Normal,
    };
    // A slice that was set is shorter than requested, by less than 1 us for each ms.
    let slice_ns = Some(attr[3].next_multiple_of(10_000)).filter(|ns| *ns > 0);
    let nice = field(stat.as_ref(), 19).parse().unwrap();
    Settings { cpus: cpus.trim().parse().unwrap(), class, nice, slice_ns }
}

impl Subject for KernelSubject {
    type Machine = LinuxMachine;

    fn machine(&mut self) -> &mut LinuxMachine {
        &mut self.machine
    }

    fn program(&self, position: usize) -> ProgramId {
        self.programs[position].1
    }

    fn unknown_thread(&self) -> ThreadId {
        identity(std::process::id() as i32)
    }

    fn wait(&mut self) {
        std::thread::sleep(Duration::from_millis(10));
    }

    fn grow(&mut self, position: usize) {
        let player = &mut self.programs[position].0;
        player.send("more");
        player.wait_for("born");
    }

    fn end(&mut self, position: usize) {
        let player = &mut self.programs[position].0;
        player.group.kill();
        player.child.wait().unwrap();
    }

    fn own_settings(&mut self, position: usize) -> Settings {
        self.own[position].clone()
    }

    fn settings(&mut self, thread: ThreadId) -> Settings {
        // The suite has one program, in the first group.
        let group = self.groups.read(1).unwrap();
        let seen = settings(thread.tid);
        let class = match group {
            _ if group.is_batch => Class::Batch,
            _ if group.is_idle => Class::Idle,
            _ => seen.class,
        };
        Settings { class, ..seen }
    }

    fn program_settings(&mut self, position: usize) -> ProgramSettings {
        let group = self.groups.read(1).unwrap();
        let pid = self.programs[position].0.pid();
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let path = groups.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
        let frozen = fs::read_to_string(format!("/sys/fs/cgroup{path}/cgroup.freeze"));
        ProgramSettings {
            weight: Some(group.weight as u32).filter(|weight| *weight > 0),
            quota: Some(group.quota_ns as f64 / 1e8).filter(|quota| *quota > 0.0),
            frozen: frozen.is_ok_and(|text| text.trim() == "1"),
        }
    }

    fn team_size(&mut self, _: usize) -> Option<u32> {
        None
    }

    fn is_unsupported(&self, error: &Error) -> bool {
        matches!(error, Error::Unsupported { .. } | Error::Denied { .. } | Error::Refused { .. })
    }
}

#[test]
fn machine_with_the_scheduler_conforms() {
    let Some(_alone) = alone() else { return };
    for all in [false, true] {
        let failures = failures(|specs| KernelSubject::new(all, specs));
        assert_eq!(failures, Vec::<String>::new(), "all: {all}");
    }
}

#[test]
fn threads_of_a_program_are_admitted_and_returned() {
    let Some(_alone) = alone() else { return };
    let mut subject = KernelSubject::new(false, &[ProgramSpec::default()]);
    let player = &mut subject.programs[0].0;
    assert!(player.policies().iter().all(|policy| policy == SCHED_EXT), "{:?}", player.policies());
    player.send("more");
    player.wait_for("born");
    assert!(player.policies().iter().all(|policy| policy == SCHED_EXT), "{:?}", player.policies());
    subject.machine.restore();
    let player = &subject.programs[0].0;
    assert!(player.policies().iter().all(|policy| policy == "0"), "{:?}", player.policies());
    let group = subject.groups.read(1).unwrap();
    assert_eq!((group.weight, group.quota_ns, group.is_set), (0, 0, false));
}

/// Two programs that compute on two CPUs under the scheduler, and their groups 1 and 2.
fn computing(all: bool, threads: u32) -> (LinuxMachine, Groups, Vec<(Player, ProgramId)>) {
    let mut machine = LinuxMachine::new(Options::default()).unwrap();
    let scheduler = load(all);
    let groups = scheduler.groups().unwrap();
    machine.set_scheduler(Box::new(scheduler));
    let programs: Vec<(Player, ProgramId)> = (0..2)
        .map(|_| {
            // Beside two threads that do not compute.
            let player = Player::start(threads + 2, 0, true);
            let id = machine.watch(player.pid()).unwrap();
            machine.admit(id).unwrap();
            let cpus: CpuSet = "0-1".parse().unwrap();
            machine
                .act(&Action::SetCpus { target: Target::Program(id), cpus: Some(cpus) })
                .unwrap();
            (player, id)
        })
        .collect();
    (machine, groups, programs)
}

/// CPU times of the groups 1 and 2 over this time, in nanoseconds.
fn ran_ns(groups: &Groups, time: Duration) -> [u64; 2] {
    let read = || [1, 2].map(|group| groups.read(group).unwrap().ran_ns);
    let (before, end) = (read(), Instant::now() + time);
    wait_until("the time", || Instant::now() >= end);
    let after = read();
    [after[0] - before[0], after[1] - before[1]]
}

#[test]
fn weights_and_quotas_are_exact() {
    let Some(_alone) = alone() else { return };
    let (mut machine, groups, programs) = computing(false, 2);
    let [a, b] = [programs[0].1, programs[1].1];
    machine.act(&Action::SetWeight { program: a, weight: 300 }).unwrap();
    machine.act(&Action::SetWeight { program: b, weight: 100 }).unwrap();
    let [of_a, of_b] = ran_ns(&groups, Duration::from_secs(2));
    let ratio = of_a as f64 / of_b as f64;
    println!("weights of 3 to 1 give {ratio:.3} to 1");
    assert!((2.4..3.75).contains(&ratio), "weights of 3 to 1 give {ratio:.2} to 1");
    // The rest goes to the other program.
    machine.act(&Action::SetQuota { program: a, cpus: Some(0.5) }).unwrap();
    let start = Instant::now();
    let [of_a, of_b] = ran_ns(&groups, Duration::from_secs(2));
    let cpus = of_a as f64 / start.elapsed().as_nanos() as f64;
    println!("a quota of 0.5 CPUs gives {cpus:.3}");
    assert!(cpus < 0.6, "a quota of 0.5 CPUs gives {cpus:.2}");
    assert!(of_b > 2 * of_a, "{of_a} {of_b}");
}

/// Runs two programs as sets of two CPUs that take turns of this length.
fn take_turns(
    machine: &mut LinuxMachine,
    programs: &[ProgramId; 2],
    slice_ns: u64,
) -> Result<(), Error> {
    let sets = vec![CoscheduledSet { cpus: 2, within: None }; 2];
    let topology = corebeat_machine::Topology::flat(2);
    let cosched = Cosched::new(&topology, &sets, slice_ns, Fragments::Fill).unwrap();
    machine.coschedule(programs, &[CpuId(0), CpuId(1)], Box::new(cosched), slice_ns)
}

#[test]
fn sets_take_turns_and_are_together() {
    let Some(_alone) = alone() else { return };
    let (mut machine, groups, programs) = computing(false, 2);
    let ids = [programs[0].1, programs[1].1];
    take_turns(&mut machine, &ids, 50_000_000).unwrap();
    let [of_a, of_b] = ran_ns(&groups, Duration::from_secs(3));
    let turns = ids.map(|id| machine.turns(id).unwrap());
    println!("turns {turns:?}, CPU times {of_a} {of_b} ns");
    for turns in turns {
        assert!(turns.on_ns > 500_000_000, "{turns:?}");
        let share = turns.together_ns as f64 / turns.on_ns as f64;
        // In an emulated machine interrupts of other CPUs take milliseconds.
        assert!(share > 0.5, "{share}");
    }
    // Turns so long that the kernel would remove the scheduler are refused.
    let refused = take_turns(&mut machine, &ids, 20_000_000_000);
    assert!(refused.unwrap_err().to_string().contains("turns of at most"));
}

/// Restricts a thread to these CPUs; 0 is the calling thread.
fn restrict(tid: i32, cpus: &[usize]) {
    // SAFETY: the set lives through the call, and is large enough for the CPUs.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        cpus.iter().for_each(|&cpu| libc::CPU_SET(cpu, &mut set));
        assert_eq!(libc::sched_setaffinity(tid, size_of_val(&set), &raw const set), 0);
    }
}

/// Keeps this process and its threads on one CPU, under the default scheduler, for some time.
fn occupy(cpu: usize, time: Duration) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        restrict(0, &[cpu]);
        let end = Instant::now() + time;
        while Instant::now() < end {
            std::hint::spin_loop();
        }
    })
}

/// Kernels that reserve a part of each CPU for `SCHED_EXT` bound the wait on a CPU that is taken.
/// There the test passes without `cpu_release` as well; the twin has that fault.
#[test]
fn threads_leave_a_cpu_that_a_thread_of_the_default_scheduler_takes() {
    let Some(_alone) = alone() else { return };
    let (machine, _, programs) = computing(false, 1);
    // Each program has one computing thread, and both may run on two CPUs.
    let before: Vec<u64> = programs.iter().map(|(player, _)| player.ticks()).collect();
    let other = occupy(0, Duration::from_secs(4));
    other.join().unwrap();
    let after = programs.iter().map(|(player, _)| player.ticks());
    let ran: Vec<u64> = after.zip(before).map(|(after, before)| after - before).collect();
    println!("{ran:?} ticks beside a thread of the default scheduler");
    let (least, most) = (ran[0].min(ran[1]), ran[0].max(ran[1]));
    assert!(least * 3 > most, "both share the CPU that is free: {ran:?}");
    assert_eq!(state(), "enabled");
    drop(machine);
}

/// Checks that no note reports that the kernel has removed the scheduler.
fn assert_not_removed(machine: &LinuxMachine) {
    let notes = machine.notes();
    assert!(notes.iter().all(|note| !note.contains("removed")), "{notes:?}");
}

#[test]
fn a_cpu_that_is_unplugged_and_plugged_leaves_the_scheduler_loaded() {
    let Some(_alone) = alone() else { return };
    let (machine, groups, programs) = computing(false, 2);
    for state in ["0", "1", "0", "1"] {
        fs::write("/sys/devices/system/cpu/cpu1/online", state).unwrap();
        let before = groups.read(1).unwrap().ran_ns;
        wait_until("progress", || groups.read(1).unwrap().ran_ns > before);
    }
    assert_eq!(state(), "enabled");
    assert_not_removed(&machine);
    drop(programs);
}

#[test]
fn changes_of_affinity_and_class_leave_the_scheduler_loaded() {
    let Some(_alone) = alone() else { return };
    let (mut machine, groups, programs) = computing(false, 3);
    let target = Target::Program(programs[0].1);
    for (round, cpus) in ["0", "1", "0-3", "2", "0-1"].iter().cycle().take(40).enumerate() {
        let cpus: CpuSet = cpus.parse().unwrap();
        machine.act(&Action::SetCpus { target, cpus: Some(cpus) }).unwrap();
        let class = [Some(Class::Batch), Some(Class::Idle), None][round % 3];
        machine.act(&Action::SetClass { target, class }).unwrap();
        // A real-time policy and back, by another program.
        let pid = programs[1].0.pid();
        let parameters = libc::sched_param { sched_priority: 1 };
        let none = libc::sched_param { sched_priority: 0 };
        // SAFETY: the kernel reads the parameters, which live through the calls.
        unsafe {
            assert_eq!(libc::sched_setscheduler(pid, libc::SCHED_RR, &raw const parameters), 0);
            assert_eq!(libc::sched_setscheduler(pid, 7, &raw const none), 0);
        }
    }
    assert_eq!(state(), "enabled");
    let [of_a, of_b] = ran_ns(&groups, Duration::from_secs(1));
    assert!(of_a > 0 && of_b > 0);
    assert_not_removed(&machine);
}

/// A process that steers another one until it is killed; without a role it does nothing.
#[test]
fn steer() {
    let Ok(role) = std::env::var(STEER) else { return };
    let [all, pid, dir] = role.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{role}") };
    println!("begins");
    let state_dir = Some(dir.into());
    let mut machine = LinuxMachine::new(Options { state_dir, ..Options::default() }).unwrap();
    machine.set_scheduler(Box::new(load(all == "true")));
    machine.set_table(Box::new(KernelTable::load().unwrap()));
    let program = machine.watch(pid.parse().unwrap()).unwrap();
    machine.admit(program).unwrap();
    let sets = [CoscheduledSet { cpus: 2, within: None }];
    let topology = corebeat_machine::Topology::flat(2);
    let cosched = Cosched::new(&topology, &sets, 10_000_000, Fragments::Fill).unwrap();
    machine.coschedule(&[program], &[CpuId(0), CpuId(1)], Box::new(cosched), 10_000_000).unwrap();
    println!("steers");
    for weight in (1..=100).cycle() {
        machine.act(&Action::SetWeight { program, weight }).unwrap();
        machine.observe().unwrap();
    }
}

/// Role of this executable: whether it schedules all threads, the process to steer, and the folder
/// of the journal.
const STEER: &str = "COREBEAT_TEST_STEER";
/// Number of moments at which the process is killed, and in `cargo xtask soak`.
const KILLS: u64 = 20;
const KILLS_OF_SOAK: u64 = 100;

#[test]
fn kernel_scheduler_ends_with_its_process() {
    let Some(_alone) = alone() else { return };
    let seed = std::env::var("COREBEAT_KILL_SEED").map(|seed| seed.parse().expect("a number"));
    let seed = seed.unwrap_or_else(|_| fastrand::u64(..));
    let rng = &mut fastrand::Rng::with_seed(seed);
    let kills = if std::env::var_os("COREBEAT_SOAK").is_some() { KILLS_OF_SOAK } else { KILLS };
    println!("{kills} kills; COREBEAT_KILL_SEED={seed} repeats their moments");
    let program = Player::start(4, 0, true);
    let dir = tempfile::tempdir().unwrap();
    let journals = dir.path().join("state");
    for kill in 0..kills {
        let group = TestGroup::new();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["steer", "--exact", "--nocapture", "--test-threads=1"]);
        // Half of the schedulers have all threads.
        let all = kill % 4 > 1;
        command.env(STEER, format!("{all} {} {}", program.pid(), journals.display()));
        command.stdout(Stdio::piped());
        let mut child = group.add(&mut command).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // Half of the kills hit the loading, and the others the steering.
        let word = if kill % 2 == 0 { "begins" } else { "steers" };
        assert!(lines.any(|line| line.unwrap().contains(word)), "kill {kill}, seed {seed}");
        let end = Instant::now() + Duration::from_millis(rng.u64(0..500));
        wait_until("the moment", || Instant::now() >= end);
        child.kill().unwrap();
        child.wait().unwrap();
        wait_until("the unloading", || state() == "disabled");
        let restored = corebeat_linux::restore_all(&journals).unwrap();
        assert_eq!(restored.restored.left, Vec::<String>::new(), "kill {kill}, seed {seed}");
        let policies = program.policies();
        assert!(policies.iter().all(|policy| policy == "0"), "kill {kill}: {policies:?}");
    }
    let ticks = || field(format!("/proc/{}/stat", program.pid()).as_ref(), 14);
    let before = ticks();
    wait_until("progress of the program", || ticks() != before);
}

#[test]
fn removal_by_the_kernel_is_reported_and_the_programs_continue() {
    let Some(_alone) = alone() else { return };
    let (mut machine, groups, programs) = computing(false, 2);
    // Magic SysRq S removes the scheduler, as the watchdog of the kernel does after 30 s.
    fs::write("/proc/sysrq-trigger", "S").unwrap();
    wait_until("the removal", || state() == "disabled");
    let program = programs[0].1;
    let refused = machine.act(&Action::SetWeight { program, weight: 200 }).unwrap_err();
    assert!(refused.to_string().contains("has removed the scheduler"), "{refused}");
    assert!(machine.notes().iter().any(|note| note.contains("has removed the scheduler")));
    assert_eq!(ran_ns(&groups, Duration::from_millis(300)), [0, 0], "the default scheduler runs");
    let ticks = || field(format!("/proc/{}/stat", programs[0].0.pid()).as_ref(), 14);
    let before = ticks();
    wait_until("progress of the program", || ticks() != before);
    machine.restore();
    assert!(programs[0].0.policies().iter().all(|policy| policy == "0"));
}
