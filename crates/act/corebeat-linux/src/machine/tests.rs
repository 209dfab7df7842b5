//! Tests of the machine on real processes.

use super::*;
use corebeat_machine::{
    CountedState, CpuId, THREAD_NAME_BYTES, Target, ThreadCounts, ThreadRow, ThreadTable,
    TimeShares,
};
use corebeat_test_group::{TestGroup, compile};
use std::collections::HashSet;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, mpsc};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A shell. Dropping kills it with its children.
struct Running(Child, TestGroup);

impl Running {
    fn shell(script: &str) -> Self {
        let (group, mut shell) = (TestGroup::new(), Command::new("sh"));
        shell.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        Running(group.add(&mut shell).spawn().unwrap(), group)
    }

    fn pid(&self) -> i32 {
        self.0.id() as i32
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.1.kill();
        let _ = self.0.wait();
    }
}

fn machine() -> LinuxMachine {
    LinuxMachine::new(Options { counters: true, spin: true, ..Options::default() }).unwrap()
}

/// Observes, with samples in between, until a snapshot satisfies `right`.
fn until(machine: &mut LinuxMachine, mut right: impl FnMut(&Snapshot) -> bool) -> bool {
    (0..100).any(|_| {
        for _ in 0..5 {
            sleep(Duration::from_millis(10));
            machine.sample();
        }
        right(&machine.observe().unwrap())
    })
}

fn tid() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

#[test]
fn kill_ends_processes_that_started_after_the_last_observation() {
    let mut program = Running::shell("read line; sleep 600 & echo $!; wait");
    let mut machine = machine();
    let id = machine.watch(program.pid()).unwrap();
    machine.observe().unwrap();
    std::io::Write::write_all(&mut program.0.stdin.take().unwrap(), b"\n").unwrap();
    let mut child = String::new();
    let output = program.0.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut child).unwrap();
    machine.kill(id);
    // The new parent may not wait for the child.
    let pid = child.trim().parse().unwrap();
    let lives = || process::living(pid).unwrap().is_some();
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while lives() {
        assert!(std::time::Instant::now() < until, "the child still runs");
        std::thread::yield_now();
    }
}

#[test]
fn kill_keeps_the_accounting_of_the_program() {
    let compute = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
    let mut program = Running::shell(&format!("{compute}; echo; read x"));
    let mut machine = machine();
    let id = machine.watch(program.pid()).unwrap();
    std::io::Read::read_exact(program.0.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    // The process stays as a zombie until the test waits for it.
    machine.kill(id);
    machine.observe().unwrap();
    assert!(machine.remaining(id).program_cpu_s > 0.0);
}

#[test]
fn thread_that_runs_again_is_sampled_before_the_next_observation() {
    let program = Running::shell("read x; kill -STOP $$; read y");
    let mut machine = machine();
    let id = machine.watch(program.pid()).unwrap();
    assert!(
        until(&mut machine, |snapshot| snapshot.programs[0].threads[0].shares.user == Some(0.0))
    );
    let is_quiet =
        |machine: &LinuxMachine| machine.watched.programs[&id].threads().all(Thread::is_quiet);
    machine.sample();
    assert!(is_quiet(&machine), "the thread sleeps");
    std::io::Write::write_all(&mut program.0.stdin.as_ref().unwrap(), b"\n").unwrap();
    while !crate::process::is_halted(program.pid()) {
        std::thread::yield_now();
    }
    machine.sample();
    assert!(!is_quiet(&machine));
}

#[test]
fn stopped_thread_has_no_time() {
    let program = Running::shell("kill -STOP $$; read x");
    let mut machine = machine();
    machine.watch(program.pid()).unwrap();
    let mut last = None;
    let right = until(&mut machine, |snapshot| {
        last = Some(snapshot.programs[0].threads[0].clone());
        last.as_ref().is_some_and(|t| t.span_ns == 0 && t.shares == TimeShares::default())
    });
    assert!(right, "{last:?}");
}

/// Waits until the machine, which watches no other program, has found a child of this program.
fn child_of(program: &Running, machine: &mut LinuxMachine) -> i32 {
    let mut child = None;
    assert!(until(machine, |snapshot| {
        child =
            snapshot.programs[0].threads.iter().map(|t| t.pid).find(|&pid| pid != program.pid());
        child.is_some()
    }));
    child.unwrap()
}

#[test]
fn machine_distinguishes_threads_that_lock_sleep_and_compute() {
    let (lock, stop) = (Mutex::new(()), AtomicBool::new(false));
    let held = lock.lock().unwrap();
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        for work in ["lock", "sleep", "compute"] {
            let (sender, lock, stop) = (sender.clone(), &lock, &stop);
            scope.spawn(move || {
                sender.send((work, tid())).unwrap();
                let _keeps = (work == "lock").then(|| lock.lock());
                while !stop.load(Ordering::Relaxed) {
                    match work {
                        "sleep" => sleep(Duration::from_millis(1)),
                        _ => std::hint::spin_loop(),
                    }
                }
            });
        }
        let tids: BTreeMap<&str, i32> = receiver.iter().take(3).collect();

        let mut machine = machine();
        machine.watch(std::process::id() as i32).unwrap();
        let right = until(&mut machine, |snapshot| {
            let shares = |work| -> Option<TimeShares> {
                Some(snapshot.programs[0].threads.iter().find(|t| t.id.tid == tids[work])?.shares)
            };
            let points = || {
                let (lock, sleep, compute) =
                    (shares("lock")?, shares("sleep")?, shares("compute")?);
                Some(
                    lock.lock? > 0.9
                        && sleep.sleep? > sleep.lock?
                        && sleep.sleep? > sleep.running()?
                        && compute.running()? + compute.wait? > 0.9
                        && compute.user? > compute.system?,
                )
            };
            points() == Some(true)
        });
        stop.store(true, Ordering::Relaxed);
        drop(held);
        assert!(right);
    });
}

#[test]
fn machine_divides_waits_of_c_programs_into_lock_and_park() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("wait");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/wait.c");
    let arguments = ["-O1", "-pthread"];
    assert!(compile("gcc", &arguments, Path::new(source), &program), "the test requires gcc");
    let program = Running::shell(&format!("exec {}", program.display()));
    let mut machine = machine();
    machine.watch(program.pid()).unwrap();
    let mut last = Vec::new();
    let right = until(&mut machine, |snapshot| {
        let threads = &snapshot.programs[0].threads;
        last = threads.iter().map(|t| (t.name.clone(), t.shares)).collect();
        let is_right = |(name, s): &(String, TimeShares)| match name.split(' ').next() {
            Some("lock") => s.lock > Some(0.9) && s.park == Some(0.0),
            Some("park") => s.park > Some(0.9) && s.lock == Some(0.0),
            _ => s.sleep > Some(0.9),
        };
        last.len() == 7 && last.iter().all(is_right)
    });
    assert!(right, "{last:#?}");
}

#[test]
fn machine_divides_waits_of_rust_threads_into_lock_and_park() {
    let (lock, idle) = (Mutex::new(()), (Mutex::new(()), Condvar::new()));
    let stop = AtomicBool::new(false);
    let is_idle = |_: &mut ()| !stop.load(Ordering::Relaxed);
    let held = lock.lock().unwrap();
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        let threads = ["lock", "condition", "park", "join"].map(|work| {
            let (sender, lock, idle, stop) = (sender.clone(), &lock, &idle, &stop);
            let thread = scope.spawn(move || {
                sender.send((work, tid())).unwrap();
                match work {
                    "lock" => drop(lock.lock()),
                    "condition" => drop(idle.1.wait_while(idle.0.lock().unwrap(), is_idle)),
                    "park" => {
                        while !stop.load(Ordering::Relaxed) {
                            std::thread::park();
                        }
                    }
                    _ => {
                        let waits =
                            move || drop(idle.1.wait_while(idle.0.lock().unwrap(), is_idle));
                        scope.spawn(waits).join().unwrap();
                    }
                }
            });
            thread.thread().clone()
        });
        let tids: BTreeMap<&str, i32> = receiver.iter().take(4).collect();
        let mut machine = machine();
        machine.watch(std::process::id() as i32).unwrap();
        let right = until(&mut machine, |snapshot| {
            let is_right = |(work, tid): (&&str, &i32)| {
                let sample = snapshot.programs[0].threads.iter().find(|t| t.id.tid == *tid);
                sample.is_some_and(|t| match *work {
                    "lock" => t.shares.lock > Some(0.9) && t.shares.park == Some(0.0),
                    _ => t.shares.park > Some(0.9) && t.shares.lock == Some(0.0),
                })
            };
            tids.iter().all(is_right)
        });
        stop.store(true, Ordering::Relaxed);
        drop(idle.0.lock());
        idle.1.notify_all();
        threads.iter().for_each(std::thread::Thread::unpark);
        drop(held);
        assert!(right);
    });
}

#[test]
fn machine_known_shares_of_every_thread_add_up_to_1() {
    let mut machine = machine();
    machine.watch(std::process::id() as i32).unwrap();
    let mut known = 0;
    assert!(until(&mut machine, |snapshot| {
        for thread in &snapshot.programs[0].threads {
            let s = thread.shares;
            if let Some(sum) =
                [s.user, s.system, s.lock, s.park, s.wait, s.sleep].into_iter().sum::<Option<f64>>()
            {
                assert!((sum - 1.0).abs() < 1e-9, "{s:?}");
                known += 1;
            }
            assert!(thread.span_ns <= snapshot.span_ns + 100_000_000);
        }
        known >= 10
    }));
}

#[test]
fn machine_finds_later_threads_and_processes() {
    let program = Running::shell("read x; sleep 30 & sleep 30 & wait");
    let mut machine = machine();
    let id = machine.watch(program.pid()).unwrap();
    assert_eq!(machine.observe().unwrap().programs[0].threads.len(), 1);
    std::io::Write::write_all(&mut program.0.stdin.as_ref().unwrap(), b"go\n").unwrap();
    assert!(until(&mut machine, |snapshot| {
        let pids: HashSet<i32> = snapshot.programs[0].threads.iter().map(|t| t.pid).collect();
        pids.len() == 3
    }));
    assert!(machine.is_alive(id));
}

#[test]
fn machine_finds_a_process_that_was_invisible_when_it_got_its_number() {
    let program = Running::shell("sleep 30; read x");
    let mut machine = machine();
    let id = machine.watch(program.pid()).unwrap();
    let child = child_of(&program, &mut machine);
    // Simulates a process that had a number but was not visible yet.
    machine.watched.programs.get_mut(&id).unwrap().processes.retain(|p| p.id.tid != child);
    let number = child as u64;
    machine.watched.newest = [number - 1, number].map(Some);
    machine.watched.search(Some(number), 0, &mut machine.reader);
    assert!(machine.watched.programs[&id].processes.iter().any(|p| p.id.tid == child));
}

#[test]
fn machine_finds_what_a_thread_started_in_the_span_before_it_slept() {
    let program = Running::shell("sleep 30; read x");
    let mut machine = machine();
    let id = machine.watch(program.pid()).unwrap();
    let child = child_of(&program, &mut machine);
    while !machine.watched.programs[&id].threads().all(Thread::is_quiet) {
        machine.observe().unwrap();
    }
    // Simulates a thread that started the child between the reading of the newest number and its
    // own, and many numbers for others.
    machine.watched.programs.get_mut(&id).unwrap().processes.retain(|p| p.id.tid != child);
    machine.watched.newest = [Some(1); 2];
    machine.watched.search(Some(u64::MAX), 0, &mut machine.reader);
    assert!(machine.watched.programs[&id].processes.iter().any(|p| p.id.tid == child));
}

#[test]
fn machine_keeps_a_known_process_whose_parent_ends() {
    let _alone = crate::actuator::tests::alone();
    let dir = tempfile::tempdir().unwrap();
    let program = Running::shell("(sleep 30 & read x); read y");
    let options = Options { state_dir: Some(dir.path().into()), ..Options::default() };
    let mut machine = LinuxMachine::new(options).unwrap();
    let id = machine.watch(program.pid()).unwrap();
    let mut pids = HashSet::new();
    let mut until_there_are = |machine: &mut LinuxMachine, count| {
        assert!(until(machine, |snapshot| {
            pids = snapshot.programs[0].threads.iter().map(|t| t.pid).collect();
            pids.len() == count
        }));
        pids.clone()
    };
    until_there_are(&mut machine, 3);
    std::io::Write::write_all(&mut program.0.stdin.as_ref().unwrap(), b"go\n").unwrap();
    let mut left = until_there_are(&mut machine, 2);
    left.remove(&program.pid());
    let orphan = *left.iter().next().unwrap();
    let class = Some(corebeat_machine::Class::Batch);
    machine.act(&Action::SetClass { target: Target::Program(id), class }).unwrap();
    let class_now = || {
        let stat = std::fs::read_to_string(format!("/proc/{orphan}/stat")).unwrap();
        stat.split(' ').nth(40).unwrap().to_owned()
    };
    assert_eq!(class_now(), "3", "batch");
    assert_eq!(machine.release(id).undone.len(), 2);
    assert_eq!(class_now(), "0");
}

/// A child counts before and after its parent has waited for it, but only once.
#[test]
fn machine_counts_children_once() {
    // Each line of input starts a child or ends it. Every second child computes.
    let script = "while read x; do (dd if=/dev/zero of=/dev/null bs=1M count=8 2>/dev/null; \
                  read y; [ $y = idle ] || seq 300000 >/dev/null); done";
    let program = Running::shell(script);
    let mut machine = machine();
    let id = machine.watch(program.pid()).unwrap();
    // Sums of the shell, from its files: CPU time in clock ticks, and bytes.
    let sums = || {
        let read = |file: &str| {
            std::fs::read_to_string(format!("/proc/{}/{file}", program.pid())).unwrap()
        };
        let stat = read("stat");
        let fields = stat.rsplit_once(") ").unwrap().1.split(' ');
        let ticks: u64 = fields.skip(11).take(4).map(|f| f.parse::<u64>().unwrap()).sum();
        let io = read("io");
        let bytes = io.lines().take(2).map(|l| l.rsplit_once(' ').unwrap().1);
        (ticks, bytes.map(|b| b.parse::<u64>().unwrap()).sum::<u64>())
    };
    let (ticks_before, bytes_before) = sums();
    let (mut ticks, mut bytes) = (0, 0);
    let mut progress = |machine: &mut LinuxMachine| {
        machine.watched.search(None, 0, &mut machine.reader);
        let program = machine.watched.programs.get_mut(&id).unwrap();
        program.observe(|| true, &mut machine.reader.buffer);
        let progress = program.progress(&mut HashMap::new(), &mut machine.reader.buffer);
        ticks += progress.cpu_ticks;
        bytes += progress.io_bytes.unwrap();
    };
    let send = |line: &str| {
        std::io::Write::write_all(&mut program.0.stdin.as_ref().unwrap(), line.as_bytes()).unwrap();
    };
    let children = |count: usize| {
        let path = format!("/proc/{0}/task/{0}/children", program.pid());
        while std::fs::read_to_string(&path).unwrap().split_whitespace().count() != count {
            std::thread::yield_now();
        }
    };
    for end in ["idle\n", "busy\n"].into_iter().cycle().take(8) {
        send("start\n");
        children(1);
        progress(&mut machine);
        send(end);
        progress(&mut machine);
        children(0);
        progress(&mut machine);
    }
    // A child may be gone before or after the sums of its parent are read.
    progress(&mut machine);
    let (ticks_after, bytes_after) = sums();
    assert_eq!(bytes, bytes_after - bytes_before);
    // Each reading truncates the ticks.
    let difference = ticks.abs_diff(ticks_after - ticks_before);
    assert!(difference <= 32, "{ticks} of {}", ticks_after - ticks_before);
}

#[test]
fn machine_program_that_has_ended_is_no_error() {
    let mut program = Running::shell("read x");
    let mut machine = machine();
    let id = machine.watch(program.pid()).unwrap();
    assert!(machine.is_alive(id));
    program.0.kill().unwrap();
    assert!(until(&mut machine, |snapshot| snapshot.programs[0].threads.is_empty()));
    assert!(!machine.is_alive(id));
    program.0.wait().unwrap();
    machine.observe().unwrap();
    machine.unwatch(id);
    assert!(machine.observe().unwrap().programs.is_empty());
    assert!(matches!(machine.watch(program.pid()), Err(Error::NoProcess { .. })));
}

#[test]
fn machine_does_not_act_on_threads_of_other_users() {
    let _alone = crate::actuator::tests::alone();
    let program = Running::shell("read x");
    let dir = tempfile::tempdir().unwrap();
    let options = Options { state_dir: Some(dir.path().into()), ..Options::default() };
    let mut machine = LinuxMachine::new(options).unwrap();
    let id = machine.watch(program.pid()).unwrap();
    let batch = Action::SetClass {
        target: Target::Program(id),
        class: Some(corebeat_machine::Class::Batch),
    };
    let uid = rustix::process::geteuid().as_raw();
    machine.set_owner(id, uid + 1);
    let denied = machine.act(&batch).unwrap_err();
    assert!(denied.to_string().contains("another user"), "{denied}");
    machine.set_owner(id, uid);
    machine.act(&batch).unwrap();
    assert_eq!(machine.release(id).undone.len(), 1);
    assert!(machine.observe().unwrap().programs.is_empty());
}

#[test]
fn machine_moves_a_separately_watched_process_out_of_its_program() {
    let program = Running::shell("sleep 30; read x");
    let mut machine = machine();
    let whole = machine.watch(program.pid()).unwrap();
    let child = child_of(&program, &mut machine);
    let part = machine.watch(child).unwrap();
    let snapshot = machine.observe().unwrap();
    let threads = |id| snapshot.program(id).unwrap().threads.len();
    assert_eq!((threads(whole), threads(part)), (1, 1));
}

#[test]
fn machine_of_this_host_reports_other_load_and_bytes() {
    let mut machine = machine();
    machine.watch(std::process::id() as i32).unwrap();
    assert!(until(&mut machine, |snapshot| {
        snapshot.host.others_busy.is_some()
            && snapshot.host.others_runnable.is_some()
            && snapshot.programs[0].io_bytes.is_some_and(|b| b > 0)
    }));
}

#[test]
fn machine_names_the_functions_in_which_threads_spin() {
    use crate::spin::barrier::{Caller, library};
    let folder = tempfile::tempdir().unwrap();
    let (whole, stripped) = ("-g", "-s");
    for (kind, call, function) in [
        (whole, "barrier_wait", Some("await_phase")),
        (stripped, "barrier_begin", Some("barrier_begin")),
        // The function that spins is local.
        (stripped, "barrier_wait", None),
    ] {
        let Some(library) = library(folder.path(), &["-O2", kind]) else { return };
        let caller = Caller::start(folder.path(), &library, call).unwrap();
        let mut machine = machine();
        machine.watch(caller.pid()).unwrap();
        if machine.notes().iter().any(|note| note.starts_with("spin time is not measured")) {
            return println!("skipped: samples are not permitted");
        }
        let (mut times, mut spun_ns) = (SpinTimes::default(), 0.0);
        let until = Instant::now() + Duration::from_secs(60);
        while spun_ns < 0.3e9 {
            assert!(Instant::now() < until, "{call}: {spun_ns} ns of spinning within a minute");
            sleep(Duration::from_millis(10));
            machine.sample();
            let snapshot = machine.observe().unwrap();
            let spin_ns = |t: &ThreadSample| Some((t.id, t.shares.spin? * t.span_ns as f64));
            let threads: Vec<_> = snapshot.programs[0].threads.iter().filter_map(spin_ns).collect();
            spun_ns += threads.iter().map(|(_, ns)| ns).sum::<f64>();
            times.merge(machine.spin_times(threads));
        }
        let functions = machine.spin_functions(&times);
        let sum_ns: f64 = functions.iter().map(|f| f.time_ns).sum();
        assert!((sum_ns - spun_ns).abs() <= 1e-6 * spun_ns, "{sum_ns} of {spun_ns}");
        let path = library.to_str().unwrap().to_owned();
        match (&functions[0].function, function) {
            (Function::Named { name, file }, Some(expected)) => {
                assert_eq!((&**name, file), (expected, &path));
            }
            (Function::Unnamed { file, .. }, None) => assert_eq!(file, &path),
            other => panic!("{call}: {other:?}"),
        }
        assert_eq!(machine.spin_function(&times).as_ref(), Some(&functions[0].function));
    }
}

/// A row of a thread that always runs.
#[derive(Debug)]
struct Runs;

impl ThreadRow for Runs {
    fn read(&self) -> Option<ThreadCounts> {
        Some(ThreadCounts {
            state: CountedState::Runs,
            at_ns: now_ns(),
            cpu: CpuId(0),
            run_ns: now_ns(),
            wait_ns: 0,
            has_causes: false,
            lock_ns: 0,
            park_ns: 0,
            user_ns: 0,
            system_ns: 0,
            voluntary: 0,
            involuntary: 0,
            migrations: 0,
            name: [0; THREAD_NAME_BYTES],
        })
    }
}

/// A table with this number of free rows.
#[derive(Debug)]
struct Rows(u32);

impl ThreadTable for Rows {
    fn add(&mut self, _tid: i32) -> Result<Box<dyn ThreadRow>, String> {
        self.0 = self.0.checked_sub(1).ok_or("the table is full")?;
        Ok(Box::new(Runs))
    }

    fn refresh(&mut self) -> Result<(), String> {
        Ok(())
    }
}

#[test]
fn only_threads_without_a_row_are_sampled() {
    let mut program = Running::shell("read line; sleep 600 & wait");
    let mut machine = machine();
    machine.set_table(Box::new(Rows(1)));
    machine.watch(program.pid()).unwrap();
    machine.observe().unwrap();
    assert!(!machine.needs_samples, "all threads have rows");
    std::io::Write::write_all(&mut program.0.stdin.take().unwrap(), b"go\n").unwrap();
    assert!(until(&mut machine, |snapshot| snapshot.programs[0].threads.len() == 2));
    assert!(machine.needs_samples, "the second thread has no row");
}
