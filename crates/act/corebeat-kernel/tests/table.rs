//! Counts of threads in the kernel, against what the threads did. The tests run where BPF tracing
//! is permitted, in the virtual machine as well; elsewhere they print a line and do nothing.

use corebeat_kernel::KernelTable;
use corebeat_linux::{LinuxMachine, Options};
use corebeat_machine::{
    BlockedCause, CountedState, Machine, ThreadCounts, ThreadRow, ThreadTable, TimeShares,
};
use rustix::time::ClockId;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Condvar, Mutex};
use std::thread::Scope;
use std::time::{Duration, Instant};

/// Longest wait of a test for a condition.
const PATIENCE: Duration = Duration::from_secs(60);

fn load(rows: u32) -> Option<KernelTable> {
    match KernelTable::with_rows(rows) {
        Ok(table) => Some(table),
        Err(why) => {
            assert!(std::env::var_os("COREBEAT_VM_SCHED_EXT").is_none(), "{why}");
            println!("skipped: {why}");
            None
        }
    }
}

fn clock_ns(clock: ClockId) -> u64 {
    let now = rustix::time::clock_gettime(clock);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn now_ns() -> u64 {
    clock_ns(ClockId::Monotonic)
}

fn tid() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "{what} does not happen");
        std::thread::yield_now();
    }
}

fn spin(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

/// Returns whether a thread sleeps and has left its CPU: `stat` has the state shortly before that,
/// and the kernel waits for it before it describes the system call.
fn sleeps(tid: i32) -> bool {
    let read = |name| fs::read_to_string(format!("/proc/self/task/{tid}/{name}")).unwrap();
    read("stat").contains(") S ") && read("syscall").trim_end() != "running"
}

/// Returns whether a thread sleeps in a futex call for a contended lock, whose value is 2.
fn sleeps_for_lock(tid: i32) -> bool {
    let call = fs::read_to_string(format!("/proc/self/task/{tid}/syscall")).unwrap();
    let mut words = call.split(' ');
    words.next() == Some("202") && words.nth(2) == Some("0x2")
}

/// Switches of a sleeping thread, as the kernel counts them.
fn switches(tid: i32) -> [u64; 2] {
    let text = fs::read_to_string(format!("/proc/self/task/{tid}/status")).unwrap();
    ["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"].map(|name| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().parse().unwrap()
    })
}

/// A thread that carries out one command at a time, and sleeps in between.
struct Worker {
    tid: i32,
    commands: Sender<Box<dyn FnOnce() + Send>>,
    done: Receiver<()>,
}

impl Worker {
    fn start<'scope>(scope: &'scope Scope<'scope, '_>) -> Worker {
        let (commands, received) = channel::<Box<dyn FnOnce() + Send>>();
        let (finished, done) = channel();
        let (number, numbers) = channel();
        scope.spawn(move || {
            number.send(tid()).unwrap();
            for command in received {
                command();
                finished.send(()).unwrap();
            }
        });
        let worker = Worker { tid: numbers.recv().unwrap(), commands, done };
        worker.wait_until_asleep();
        worker
    }

    fn wait_until_asleep(&self) {
        wait_until("sleep", || sleeps(self.tid));
    }

    fn run(&self, command: impl FnOnce() + Send + 'static) {
        self.commands.send(Box::new(command)).unwrap();
        self.done.recv().unwrap();
        self.wait_until_asleep();
    }
}

/// Copies and reads the counts of a thread.
fn read(table: &mut KernelTable, row: &dyn ThreadRow) -> ThreadCounts {
    table.refresh().unwrap();
    row.read().expect("the row has counts")
}

/// Returns the time for which a thread was neither on a CPU nor in a queue between two counts.
fn blocked_ns(before: &ThreadCounts, after: &ThreadCounts) -> u64 {
    let awake = |counts: &ThreadCounts| counts.run_ns + counts.wait_ns;
    (after.at_ns - before.at_ns).saturating_sub(awake(after) - awake(before))
}

#[test]
fn times_of_a_thread_add_up_to_at_most_the_time() {
    let Some(mut table) = load(8) else { return };
    std::thread::scope(|scope| {
        let worker = Worker::start(scope);
        let begin = now_ns();
        let row = table.add(worker.tid).unwrap();
        let first = row.read().expect("an added thread has counts");
        assert!(begin <= first.at_ns && first.at_ns <= now_ns(), "{first:?}");
        assert_eq!(first.state, CountedState::Blocked(BlockedCause::Park));
        const SLEEP: Duration = Duration::from_millis(5);
        worker.run(|| std::thread::sleep(SLEEP));
        let last = read(&mut table, &*row);
        assert_eq!(last.state, CountedState::Blocked(BlockedCause::Park));
        let [futex, blocked] = [futex_ns(&last) - futex_ns(&first), blocked_ns(&first, &last)];
        // Only the sleep was not in a futex call. It ends when the thread is in a queue.
        assert!(futex < blocked, "{first:?} {last:?}");
        assert!(last.at_ns - first.at_ns - futex >= SLEEP.as_nanos() as u64, "{first:?} {last:?}");
    });
}

fn futex_ns(counts: &ThreadCounts) -> u64 {
    counts.lock_ns + counts.park_ns
}

/// The switches of a thread by the kernel and by its row, without a switch in between.
fn settled(table: &mut KernelTable, tid: i32, row: &dyn ThreadRow) -> ([u64; 2], [u64; 2]) {
    loop {
        let (before, counts) = (switches(tid), read(table, row));
        if switches(tid) == before {
            return (before, [counts.voluntary, counts.involuntary]);
        }
    }
}

#[test]
fn switches_are_those_of_the_kernel() {
    let Some(mut table) = load(8) else { return };
    std::thread::scope(|scope| {
        let worker = Worker::start(scope);
        let row = table.add(worker.tid).unwrap();
        for round in 1..=20 {
            let (sender, receiver) = channel();
            worker.run(move || {
                std::thread::sleep(Duration::from_micros(round));
                std::thread::yield_now();
                spin(Duration::from_millis(2));
                sender.send(clock_ns(ClockId::ThreadCPUTime)).unwrap();
            });
            let (after, counted) = settled(&mut table, worker.tid, &*row);
            assert_eq!(counted, after, "round {round}");
            let run_ns = read(&mut table, &*row).run_ns;
            assert!(run_ns >= receiver.recv().unwrap(), "round {round}: {run_ns}");
        }
    });
}

#[test]
fn causes_of_blocked_time_are_distinguished() {
    let Some(mut table) = load(8) else { return };
    static LOCK: Mutex<u32> = Mutex::new(0);
    static CONDITION: Condvar = Condvar::new();
    const HELD: Duration = Duration::from_millis(20);
    const ROUNDS: u32 = 4;
    std::thread::scope(|scope| {
        let worker = Worker::start(scope);
        let row = table.add(worker.tid).unwrap();
        let held = LOCK.lock().unwrap();
        let before = read(&mut table, &*row);
        worker.commands.send(Box::new(|| drop(LOCK.lock().unwrap()))).unwrap();
        wait_until("the wait for the lock", || {
            let now = read(&mut table, &*row);
            now.state == CountedState::Blocked(BlockedCause::Lock)
        });
        spin(HELD);
        let counts = read(&mut table, &*row);
        let is_counted = counts.has_causes;
        assert!(is_counted || std::env::var_os("COREBEAT_VM_SCHED_EXT").is_none());
        let added = |ns: u64| if is_counted { ns } else { 0 };
        let held_ns = added(HELD.as_nanos() as u64);
        assert!(counts.lock_ns - before.lock_ns >= held_ns, "{counts:?}");
        drop(held);
        worker.done.recv().unwrap();
        worker.wait_until_asleep();
        // A condition variable counts its notifications. The third wait has the value of a lock.
        let (started, has_started) = channel();
        worker
            .commands
            .send(Box::new(move || {
                let guard = LOCK.lock().unwrap();
                started.send(()).unwrap();
                drop(CONDITION.wait_while(guard, |n| *n < ROUNDS).unwrap());
            }))
            .unwrap();
        has_started.recv().unwrap();
        // It is free once the worker goes to wait for the condition.
        drop(LOCK.lock().unwrap());
        for round in 1..=ROUNDS {
            worker.wait_until_asleep();
            let before = read(&mut table, &*row);
            spin(HELD);
            let after = read(&mut table, &*row);
            assert_eq!(after.state, CountedState::Blocked(BlockedCause::Park), "{round}");
            assert!(after.park_ns - before.park_ns >= held_ns, "{round}: {after:?}");
            assert_eq!(after.lock_ns, before.lock_ns, "{round}: {after:?}");
            *LOCK.lock().unwrap() = round;
            CONDITION.notify_one();
        }
        worker.done.recv().unwrap();
        worker.wait_until_asleep();
        // `sleep` waits in no futex call.
        let before = read(&mut table, &*row);
        worker.run(|| std::thread::sleep(HELD));
        let after = read(&mut table, &*row);
        let asleep_ns = blocked_ns(&before, &after) - (futex_ns(&after) - futex_ns(&before));
        assert!(asleep_ns >= HELD.as_nanos() as u64 / 2, "{before:?} {after:?}");
    });
}

#[test]
fn wait_that_began_before_the_table_is_counted_until_it_ends() {
    static LOCK: Mutex<()> = Mutex::new(());
    std::thread::scope(|scope| {
        let worker = Worker::start(scope);
        let held = LOCK.lock().unwrap();
        worker.commands.send(Box::new(|| drop(LOCK.lock().unwrap()))).unwrap();
        wait_until("the wait for the lock", || sleeps_for_lock(worker.tid));
        if let Some(mut table) = load(8) {
            let row = table.add(worker.tid).unwrap();
            let first = row.read().unwrap();
            spin(Duration::from_millis(5));
            let later = read(&mut table, &*row);
            assert_eq!(later.state, CountedState::Blocked(BlockedCause::Lock), "{later:?}");
            let added = if later.has_causes { later.at_ns - first.at_ns } else { 0 };
            assert_eq!(later.lock_ns - first.lock_ns, added, "{later:?}");
            drop(held);
            worker.done.recv().unwrap();
            worker.wait_until_asleep();
            let [before, after] = [(); 2].map(|()| read(&mut table, &*row));
            assert_eq!(after.lock_ns, before.lock_ns, "{after:?}");
        }
    });
}

#[test]
fn full_table_refuses_threads_until_one_is_dropped() {
    let Some(mut table) = load(1) else { return };
    std::thread::scope(|scope| {
        let [a, b] = [Worker::start(scope), Worker::start(scope)];
        let first = table.add(a.tid).unwrap();
        assert_eq!(table.add(b.tid).unwrap_err(), "the table of the kernel is full");
        let before = read(&mut table, &*first).voluntary;
        b.run(|| ());
        assert_eq!(read(&mut table, &*first).voluntary, before, "only the added thread counts");
        drop(first);
        let second = table.add(b.tid).unwrap();
        let before = read(&mut table, &*second).voluntary;
        a.run(|| ());
        assert_eq!(read(&mut table, &*second).voluntary, before, "only the added thread counts");
        b.run(|| ());
        assert!(read(&mut table, &*second).voluntary > before);
    });
}

#[test]
fn counts_end_with_the_thread() {
    let Some(mut table) = load(8) else { return };
    let (sender, receiver) = channel();
    let row = std::thread::scope(|scope| {
        let worker = Worker::start(scope);
        let row = table.add(worker.tid).unwrap();
        worker.run(move || {
            spin(Duration::from_millis(20));
            sender.send(clock_ns(ClockId::ThreadCPUTime)).unwrap();
        });
        row
    });
    // Nothing copies the counts, except for the end.
    wait_until("the end", || row.read().unwrap().state == CountedState::Ended);
    // The numbers at the exit lack the last run, up to a tick; those of the free have it.
    let ran_ns = receiver.recv().unwrap();
    wait_until("the last run", || row.read().unwrap().run_ns >= ran_ns);
    let last = row.read().unwrap();
    let later = read(&mut table, &*row);
    assert_eq!(later.state, CountedState::Ended);
    assert!(later.at_ns <= now_ns() && later.run_ns >= last.run_ns, "{last:?} {later:?}");
}

#[test]
fn thread_that_has_ended_has_no_counts() {
    let Some(mut table) = load(8) else { return };
    let ended = std::thread::spawn(tid).join().unwrap();
    // The number may belong to a new thread of another program.
    wait_until("the end", || fs::metadata(format!("/proc/self/task/{ended}")).is_err());
    if fs::metadata(format!("/proc/{ended}")).is_err() {
        assert_eq!(table.add(ended).unwrap().read(), None);
    }
}

/// Role of this executable in a process of its own: to start a thread that calls `execve` (after a
/// line on the standard input), or to be what that thread executes.
const ROLE: &str = "COREBEAT_TEST_EXECVE";
const CALLER: &str = "caller";
const EXECUTED: &str = "executed";

fn role_command(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["role_of_execve", "--exact", "--nocapture", "--test-threads=1"]);
    command.env(ROLE, role);
    command
}

#[test]
fn role_of_execve() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut line = String::new();
    if role == EXECUTED {
        std::io::stdin().read_to_string(&mut line).unwrap();
        return;
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            println!("tid={}", tid());
            std::io::stdin().read_line(&mut line).unwrap();
            panic!("{}", role_command(EXECUTED).exec());
        });
    });
}

#[test]
fn thread_that_becomes_the_first_one_by_execve_ends() {
    let Some(mut table) = load(64) else { return };
    let mut command = role_command(CALLER);
    let mut process =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("this executable");
    // The pipe stays open: the program also prints a line after `execve`.
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let caller: i32 = lines
        .by_ref()
        .map_while(Result::ok)
        .find_map(|line| line.split_once("tid=").map(|(_, tid)| tid.parse().unwrap()))
        .expect("the number of the caller");
    let pid = process.id() as i32;
    let row = table.add(caller).unwrap();
    let mut machine = LinuxMachine::new(Options::default()).unwrap();
    machine.set_table(Box::new(load(64).unwrap()));
    machine.watch(pid).unwrap();
    let mut input = process.stdin.take().unwrap();
    let mut observed = || {
        let snapshot = machine.observe().unwrap();
        let threads = snapshot.programs.iter().flat_map(|p| &p.threads);
        threads.map(|thread| thread.id.tid).collect::<Vec<_>>()
    };
    assert!(observed().contains(&caller));
    input.write_all(b"\n").unwrap();
    wait_until("the end of the caller", || {
        row.read().is_some_and(|counts| counts.state == CountedState::Ended)
    });
    // Its last sample, and then none, as long as the process runs.
    wait_until("the end in the machine", || {
        let threads = observed();
        threads.contains(&pid) && !threads.contains(&caller)
    });
    drop(input);
    assert!(process.wait().unwrap().success());
}

/// Shares of a thread of this process in the next observation.
fn shares(machine: &mut LinuxMachine, tid: i32) -> TimeShares {
    let snapshot = machine.observe().unwrap();
    let mut threads = snapshot.programs.iter().flat_map(|p| &p.threads);
    threads.find(|t| t.id.tid == tid).expect("the thread is watched").shares
}

#[test]
fn machine_with_a_table_reports_exact_shares() {
    let Some(table) = load(64) else { return };
    static HELD: Mutex<()> = Mutex::new(());
    std::thread::scope(|scope| {
        let worker = Worker::start(scope);
        let mut machine = LinuxMachine::new(Options::default()).unwrap();
        machine.set_table(Box::new(table));
        machine.watch(std::process::id() as i32).unwrap();
        shares(&mut machine, worker.tid);
        let slept = shares(&mut machine, worker.tid);
        assert_eq!((slept.park, slept.lock, slept.wait), (Some(1.0), Some(0.0), Some(0.0)));
        let held = HELD.lock().unwrap();
        worker.commands.send(Box::new(|| drop(HELD.lock().unwrap()))).unwrap();
        wait_until("the wait for the lock", || sleeps_for_lock(worker.tid));
        shares(&mut machine, worker.tid);
        let blocked = shares(&mut machine, worker.tid);
        assert_eq!((blocked.lock, blocked.park), (Some(1.0), Some(0.0)), "no sample was taken");
        drop(held);
        worker.done.recv().unwrap();
        worker.run(|| spin(Duration::from_millis(20)));
        let ran = shares(&mut machine, worker.tid);
        let all = [ran.user, ran.system, ran.wait, ran.lock, ran.park, ran.sleep];
        let sum: f64 = all.iter().map(|share| share.unwrap()).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{ran:?}");
        assert!(ran.user.unwrap() + ran.system.unwrap() > 0.0, "{ran:?}");
        assert_eq!(machine.notes(), Vec::<String>::new());
    });
}

#[test]
fn machine_with_a_full_table_reads_files_and_notes_it() {
    let Some(table) = load(1) else { return };
    std::thread::scope(|scope| {
        let worker = Worker::start(scope);
        let mut machine = LinuxMachine::new(Options::default()).unwrap();
        machine.set_table(Box::new(table));
        machine.watch(std::process::id() as i32).unwrap();
        shares(&mut machine, worker.tid);
        assert!(shares(&mut machine, worker.tid).wait.is_some());
        assert!(
            machine.notes().iter().any(|note| note.contains("the table of the kernel is full"))
        );
    });
}
