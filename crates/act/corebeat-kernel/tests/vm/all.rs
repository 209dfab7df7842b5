//! The scheduler for all threads of the host.

use super::*;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the kernel reports that all threads are scheduled.
fn switches_all() -> bool {
    fs::read_to_string("/sys/kernel/sched_ext/switch_all").unwrap().trim() == "1"
}

/// Waits until a group has had this much more CPU time.
fn wait_for_progress(groups: &Groups, group: u32, ns: u64) {
    let ran_ns = || groups.read(group).unwrap().ran_ns;
    let end_ns = ran_ns() + ns;
    wait_until("progress", || ran_ns() >= end_ns);
}

/// Runs `test` beside a thread on one CPU, which calls `begin` and computes.
fn beside<T>(cpu: usize, begin: impl FnOnce() + Send, test: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = corebeat_test_group::SetOnDrop(&is_over);
        let (ready, is_ready) = std::sync::mpsc::channel();
        let is_over = &is_over;
        scope.spawn(move || {
            restrict(0, &[cpu]);
            begin();
            ready.send(()).unwrap();
            // Relaxed: the flag publishes no other data.
            while !is_over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        is_ready.recv().unwrap();
        test()
    })
}

/// Lets the kernel run work on each CPU, by its threads for this CPU, and waits for the end.
fn run_work_on_each_cpu() {
    fs::write("/proc/sys/vm/stat_refresh", "1").unwrap();
}

#[test]
fn all_threads_are_scheduled_without_a_policy_of_their_own() {
    let Some(_alone) = alone() else { return };
    let mut subject = KernelSubject::new(true, &[ProgramSpec::default()]);
    assert!(switches_all());
    // The journal has no entry, because nothing must be undone.
    assert!(!subject._state.path().join("state").exists());
    let player = &mut subject.programs[0].0;
    player.send("more");
    player.wait_for("born");
    assert!(player.policies().iter().all(|policy| policy == "0"), "{:?}", player.policies());
    wait_until("the move to the group", || subject.groups.read(1).unwrap().ran_ns > 0);
    // This process is no program of the machine.
    wait_for_progress(&subject.groups, 0, 1);
    drop(subject);
    assert_eq!(state(), "disabled");
    let scheduler = load(false);
    assert!(!switches_all());
    drop(scheduler);
}

#[test]
fn programs_that_are_not_steered_have_no_precedence() {
    let Some(_alone) = alone() else { return };
    let (machine, groups, programs) = computing(true, 2);
    // A third program on the same two CPUs: four steered threads beside two that are not.
    let other = Player::start(4, 0, true);
    let tasks = fs::read_dir(format!("/proc/{}/task", other.pid())).unwrap();
    for task in tasks {
        let tid = task.unwrap().file_name().into_string().unwrap();
        restrict(tid.parse().unwrap(), &[0, 1]);
    }
    let before_ns = groups.read(0).unwrap().ran_ns;
    let steered_ns: u64 = ran_ns(&groups, Duration::from_secs(3)).iter().sum();
    let other_ns = groups.read(0).unwrap().ran_ns - before_ns;
    println!("steered {steered_ns} ns, others {other_ns} ns (with the waits of this test)");
    // As many threads as all others together would have half. This process computes as well, on
    // other CPUs.
    assert!(steered_ns > 2_000_000_000, "{steered_ns} {other_ns}");
    assert!(other_ns > 1_000_000_000, "{steered_ns} {other_ns}");
    drop((machine, programs));
}

#[test]
fn threads_of_the_kernel_run_beside_owners_and_programs_for_one_cpu() {
    let Some(_alone) = alone() else { return };
    let (mut machine, groups, programs) = computing(true, 2);
    let ids = [programs[0].1, programs[1].1];
    take_turns(&mut machine, &ids, 50_000_000).unwrap();
    // A search for starving threads would take 5 s each time, longer than the patience of a test.
    let end = Instant::now() + PATIENCE;
    beside(0, || (), || (0..20).for_each(|_| run_work_on_each_cpu()));
    assert!(Instant::now() < end, "threads of the kernel wait for owners");
    [1, 2].into_iter().for_each(|group| wait_for_progress(&groups, group, 100_000_000));
    assert_eq!(state(), "enabled");
}

#[test]
fn threads_run_beside_a_real_time_thread() {
    let Some(_alone) = alone() else { return };
    let (machine, groups, programs) = computing(true, 2);
    let become_real_time = || {
        let parameters = libc::sched_param { sched_priority: 1 };
        let limit = libc::rlimit { rlim_cur: 60_000_000, rlim_max: 60_000_000 };
        // SAFETY: the kernel reads the parameters, which live through the calls.
        unsafe {
            assert_eq!(libc::setrlimit(libc::RLIMIT_RTTIME, &raw const limit), 0);
            assert_eq!(libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters), 0);
        }
    };
    // It takes one of the two CPUs of the programs, and a thread for this CPU waits.
    beside(
        0,
        || (),
        || {
            beside(0, become_real_time, || {
                [1, 2].into_iter().for_each(|group| wait_for_progress(&groups, group, 200_000_000));
            });
        },
    );
    [0, 1, 2].into_iter().for_each(|group| wait_for_progress(&groups, group, 100_000_000));
    assert_eq!(state(), "enabled");
    assert_not_removed(&machine);
    drop(programs);
}

/// Starts twice as many processes in each of seven generations; each of them computes.
const BOMB: &str = "bomb() { if [ $1 -gt 0 ]; then bomb $(($1 - 1)) & bomb $(($1 - 1)) & fi
    while :; do :; done; }; bomb 7";
/// Number of processes of the bomb.
const BOMB_PROCESSES: u64 = 255;

#[test]
fn a_bounded_fork_bomb_leaves_the_scheduler_loaded_and_programs_running() {
    let Some(_alone) = alone() else { return };
    let (machine, groups, programs) = computing(true, 2);
    let bomb = TestGroup::new();
    let mut first = bomb.add(Command::new("sh").args(["-c", BOMB])).spawn().unwrap();
    wait_until("the explosion", || groups.read(0).unwrap().runnable >= BOMB_PROCESSES);
    run_work_on_each_cpu();
    [1, 2].into_iter().for_each(|group| wait_for_progress(&groups, group, 10_000_000));
    assert_eq!(state(), "enabled");
    bomb.kill();
    first.wait().unwrap();
    wait_until("the end of the bomb", || groups.read(0).unwrap().runnable < BOMB_PROCESSES / 4);
    assert_not_removed(&machine);
    drop(programs);
}

#[test]
fn a_released_program_becomes_one_of_the_others() {
    let Some(_alone) = alone() else { return };
    let (mut machine, groups, programs) = computing(true, 2);
    wait_for_progress(&groups, 1, 50_000_000);
    let [first, second] = [programs[0].1, programs[1].1];
    machine.release(first);
    wait_until("the move of all threads", || groups.read(1).unwrap().runnable == 0);
    // The group is free for the next program, and has no thread of the first one.
    let player = Player::start(3, 0, true);
    let third = machine.watch(player.pid()).unwrap();
    machine.admit(third).unwrap();
    machine.act(&Action::SetWeight { program: third, weight: 300 }).unwrap();
    wait_for_progress(&groups, 1, 50_000_000);
    assert!(groups.read(1).unwrap().runnable <= 3);
    machine.release(second);
}

#[test]
fn a_thread_that_sleeps_while_its_program_is_released_becomes_one_of_the_others() {
    let Some(_alone) = alone() else { return };
    let mut machine = LinuxMachine::new(Options::default()).unwrap();
    let scheduler = load(true);
    let groups = scheduler.groups().unwrap();
    machine.set_scheduler(Box::new(scheduler));
    let ran_ns = || groups.read(1).unwrap().ran_ns;
    // A thread moves to its group when it wakes up.
    for has_moved in [false, true] {
        let mut first = Player::start(3, 0, false);
        let released = machine.watch(first.pid()).unwrap();
        machine.admit(released).unwrap();
        if has_moved {
            let before_ns = ran_ns();
            first.send("more");
            first.wait_for("born");
            wait_until("the move to the group", || ran_ns() > before_ns);
        }
        first.wait_until_asleep();
        machine.release(released);
        let mut next = Player::start(3, 0, false);
        let id = machine.watch(next.pid()).unwrap();
        machine.admit(id).unwrap();
        next.wait_until_asleep();
        let (before_ns, end) = (ran_ns(), first.ticks() + 10);
        first.send("compute");
        wait_until("computation", || first.ticks() >= end);
        assert_eq!(ran_ns(), before_ns, "has moved: {has_moved}");
        next.send("compute");
        wait_for_progress(&groups, 1, 50_000_000);
        machine.release(id);
    }
}

#[test]
fn a_cpu_that_is_unplugged_and_plugged_leaves_all_threads_scheduled() {
    let Some(_alone) = alone() else { return };
    let (machine, groups, programs) = computing(true, 2);
    let file = "/sys/devices/system/cpu/cpu1/online";
    // Two threads for this CPU, of which one waits.
    beside(
        1,
        || (),
        || {
            beside(
                1,
                || (),
                || {
                    for state in ["0", "1", "0", "1"] {
                        fs::write(file, state).unwrap();
                        [1, 2]
                            .into_iter()
                            .for_each(|group| wait_for_progress(&groups, group, 50_000_000));
                    }
                },
            )
        },
    );
    assert_eq!(state(), "enabled");
    assert_not_removed(&machine);
    drop(programs);
}
