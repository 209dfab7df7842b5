//! What the hands change on real threads is put back, however Corebeat ends.

mod hostile;
mod victim;

use corebeat_linux::{Error, Hands, restore_all};
use corebeat_machine::{Action, Class, CpuId, CpuSet, NodeId, ProgramId, Target, ThreadId};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use victim::{Player, Seen, identity, look, look_all, play_victim, role, say, threads};

const P: ProgramId = ProgramId(7);
const ALL: Target = Target::Program(P);
const NOBODY: u32 = 65534;

/// A process with four threads, once they are there.
fn victim() -> Player {
    let mut player = Player::start("play", "victim 4");
    player.hear("ready");
    while threads(player.pid()).len() < 5 {
        std::thread::yield_now(); // the harness' thread, and four of the victim's
    }
    player
}

/// One of the CPUs that this process may run on.
fn one_cpu() -> CpuSet {
    look(std::process::id() as i32).cpus.iter().take(1).collect()
}

/// Actions that set everything, each on all threads. Slices only where the kernel has them.
fn actions() -> Vec<Action> {
    let mut all = vec![
        Action::SetCpus { target: ALL, cpus: Some(one_cpu()) },
        Action::SetClass { target: ALL, class: Some(Class::Batch) },
    ];
    if look(std::process::id() as i32).slice_ns > 0 {
        all.push(Action::SetSlice { target: ALL, slice_us: Some(20_000) });
    }
    if is_root() {
        all.push(Action::SetNice { target: ALL, nice: 5 });
    }
    all
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn apply_all(hands: &mut Hands, threads: &[ThreadId]) {
    for action in actions() {
        hands.apply(&action, P, threads).unwrap_or_else(|e| panic!("{action:?}: {e}"));
    }
    for action in [Action::SetWeight { program: P, weight: 50 }, limit(Some(0.5))] {
        match hands.apply(&action, P, threads) {
            Ok(_) | Err(Error::Denied { .. } | Error::Missing { .. }) => {}
            Err(e) => panic!("{action:?}: {e}"),
        }
    }
}

fn freeze(frozen: bool) -> Action {
    Action::SetFrozen { program: P, frozen }
}

fn limit(cpus: Option<f64>) -> Action {
    Action::SetQuota { program: P, cpus }
}

fn is_changed(seen: &Seen) -> bool {
    seen.policy == libc::SCHED_BATCH as u32 && seen.cpus == one_cpu() && (seen.nice == 5 || !is_root())
}

fn journals(dir: &Path) -> usize {
    std::fs::read_dir(dir).map_or(0, |d| d.count())
}

/// The other processes of these tests. As a test of its own it does nothing.
#[test]
fn play() {
    if let Some(args) = role("victim") {
        play_victim(args[0].parse().unwrap());
    }
    if let Some(args) = role("corebeat") {
        let (dir, pid) = (&args[0], args[1].parse().unwrap());
        let mut hands = Hands::new(dir);
        apply_all(&mut hands, &threads(pid));
        say("done");
        std::thread::sleep(std::time::Duration::from_secs(600));
    }
    if let Some(args) = role("busy") {
        let (dir, pid): (_, i32) = (&args[0], args[1].parse().unwrap());
        let mut hands = Hands::new(dir);
        say("done");
        for round in 0u32.. {
            apply_all(&mut hands, &threads(pid));
            let all = threads(pid);
            let cpus = if round % 2 == 0 { one_cpu() } else { [CpuId(0), CpuId(1)].into_iter().collect() };
            hands
                .apply(&Action::SetCpus { target: Target::Thread(all[1]), cpus: Some(cpus) }, P, &all)
                .unwrap();
            if is_root() {
                // A raise has more to undo: that it is handed down to nobody.
                hands.apply(&Action::SetNice { target: ALL, nice: -5 }, P, &all).unwrap();
            }
            if round % 3 == 0 {
                hands.undo_all();
            }
        }
    }
    if let Some(args) = role("freezer") {
        let (dir, pid): (_, i32) = (&args[0], args[1].parse().unwrap());
        let mut hands = Hands::new(dir);
        say("done");
        for round in 0u32.. {
            hands.apply(&freeze(round % 5 != 4), P, &threads(pid)).unwrap();
            if round % 7 == 6 {
                hands.undo_all();
            }
        }
    }
    if let Some(args) = role("thawed") {
        let (mut hands, all) = (Hands::new(&args[0]), threads(args[1].parse().unwrap()));
        for frozen in [true, false] {
            hands.apply(&freeze(frozen), P, &all).unwrap();
        }
        say("done");
        std::thread::sleep(std::time::Duration::from_secs(600));
    }
    if let Some(args) = role("full") {
        full(&args[0], args[1].parse().unwrap());
    }
    if let Some(args) = role("poor") {
        poor(Path::new(&args[0]));
    }
    if let Some(args) = role("turns") {
        turns(Path::new(&args[0]));
    }
    if let Some(args) = role("killed") {
        killed(Path::new(&args[0]));
    }
    if let Some(args) = role("read-only") {
        let me = [identity(std::process::id() as i32)];
        let mut hands = Hands::new(&args[0]);
        let error = hands.apply(&Action::SetWeight { program: P, weight: 50 }, P, &me).unwrap_err();
        say(&format!("error {error}"));
    }
}

#[test]
fn undo_all_after_every_action_leaves_all_as_before() {
    let dir = tempfile::tempdir().unwrap();
    let victim = victim();
    let before = look_all(victim.pid());
    let mut hands = Hands::new(dir.path());
    apply_all(&mut hands, &threads(victim.pid()));
    assert!(look_all(victim.pid()).iter().all(is_changed), "{:?}", look_all(victim.pid()));
    let restored = hands.undo_all();
    assert_eq!(look_all(victim.pid()), before);
    assert!(restored.left.is_empty() && !restored.undone.is_empty(), "{restored:?}");
    assert_eq!(journals(dir.path()), 0);
}

#[test]
fn dropping_the_hands_in_a_panic_undoes() {
    let dir = tempfile::tempdir().unwrap();
    let victim = victim();
    let before = look_all(victim.pid());
    let all = threads(victim.pid());
    let result = std::panic::catch_unwind(|| {
        let mut hands = Hands::new(dir.path());
        apply_all(&mut hands, &all);
        std::panic::resume_unwind(Box::new(()));
    });
    assert!(result.is_err());
    assert_eq!(look_all(victim.pid()), before);
}

#[test]
fn slice_of_none_and_undone_class_are_those_of_before() {
    let dir = tempfile::tempdir().unwrap();
    let victim = victim();
    let all = threads(victim.pid());
    let before = look_all(victim.pid());
    let mut hands = Hands::new(dir.path());
    let slice = |slice_us| Action::SetSlice { target: ALL, slice_us };
    match hands.apply(&slice(Some(5000)), P, &all) {
        Err(Error::Missing { .. }) => return, // before Linux 6.12
        other => assert!(other.unwrap()),
    }
    assert!(look_all(victim.pid()).iter().all(|s| s.slice_ns == 5_000_000));
    // Linux takes no more than 100 ms.
    hands.apply(&slice(Some(500_000)), P, &all).unwrap();
    assert!(look_all(victim.pid()).iter().all(|s| s.slice_ns == 100_000_000));
    hands.apply(&slice(None), P, &all).unwrap();
    assert_eq!(look_all(victim.pid()), before);
}

#[test]
fn nice_is_on_top_of_what_each_thread_has_by_itself() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut victim = victim();
    let all = threads(victim.pid());
    let renice = |thread: &ThreadId, nice| {
        // SAFETY: a plain system call.
        assert_eq!(unsafe { libc::setpriority(libc::PRIO_PROCESS, thread.tid as u32, nice) }, 0);
    };
    let nices = |of: &[ThreadId]| of.iter().map(|t| look(t.tid).nice).collect::<Vec<_>>();
    let own = [0, 18, -18, 4, 4];
    all.iter().zip(own).for_each(|(thread, nice)| renice(thread, nice));
    let mut hands = Hands::new(dir.path());
    let mut nice =
        |nice, of: &[ThreadId]| hands.apply(&Action::SetNice { target: ALL, nice }, P, of).unwrap();
    assert!(!nice(0, &all) && !nice(3, &[]), "nothing has changed");
    assert!(nice(3, &all) && !nice(3, &all));
    assert_eq!(nices(&all), [3, 19, -15, 7, 7], "the kernel has 19 at most");
    nice(-3, &all);
    assert_eq!(nices(&all), [-3, 15, -20, 1, 1]);
    // What its user makes of one meanwhile is its own.
    renice(&all[3], 10);
    nice(2, &all);
    assert_eq!(nices(&all), [2, 19, -16, 12, 6]);
    // And a thread that is started has what its creator has by itself: the last one starts it.
    victim.tell("more");
    victim.hear("born");
    let new: Vec<_> = threads(victim.pid()).into_iter().filter(|t| !all.contains(t)).collect();
    hands.adopt(P, &new).unwrap();
    assert_eq!(nices(&new), [6]);
    hands.undo_all();
    assert_eq!((nices(&all), nices(&new)), (vec![0, 18, -18, 10, 4], vec![4]));
}

#[test]
fn raise_is_handed_down_to_nobody_who_could_leave_with_it() {
    if !is_root() {
        return;
    }
    for own in [0, 5] {
        let dir = tempfile::tempdir().unwrap();
        // The orphan's parent ends before anybody has seen either.
        let mut sh =
            Player::start_shell("read l; (sleep 600 & echo @left $!); sleep 600 & echo @stays $!; wait");
        // SAFETY: a plain system call.
        assert_eq!(unsafe { libc::setpriority(libc::PRIO_PROCESS, sh.pid() as u32, own) }, 0);
        let before = look(sh.pid());
        let mut hands = Hands::new(dir.path());
        hands.apply(&Action::SetNice { target: ALL, nice: 3 }, P, &threads(sh.pid())).unwrap();
        assert!(!look(sh.pid()).resets_on_fork, "what is no raise may be handed down");
        hands.apply(&Action::SetNice { target: ALL, nice: -8 }, P, &threads(sh.pid())).unwrap();
        sh.tell("go");
        let left: i32 = sh.hear("left").parse().unwrap();
        let stays: i32 = sh.hear("stays").parse().unwrap();
        assert_eq!((look(left).nice, look(stays).nice), (0, 0));
        hands.adopt(P, &threads(stays)).unwrap();
        assert_eq!((look(sh.pid()).nice, look(stays).nice), (own - 8, own - 8));
        drop(hands);
        assert_eq!((look(sh.pid()), look(stays)), (before.clone(), before));
    }
}

#[test]
fn weight_moves_the_program_into_a_group_and_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut victim = victim();
    let before = look_all(victim.pid());
    let mut hands = Hands::new(dir.path());
    let weight = |weight| Action::SetWeight { program: P, weight };
    match hands.apply(&weight(300), P, &threads(victim.pid())) {
        Err(Error::Denied { .. } | Error::Missing { .. }) => return,
        other => assert!(other.unwrap()),
    }
    assert!(look_all(victim.pid()).iter().all(|s| s.group.contains("/corebeat-")));
    // Version 1 counts in shares, of which 1024 are a weight of 100.
    assert!(["300", "3072"].contains(&victim::weight(victim.pid()).as_str()));
    hands.apply(&weight(200), P, &threads(victim.pid())).unwrap();
    victim.tell("more");
    victim.hear("born");
    assert!(!hands.undo_all().undone.is_empty());
    let after = look_all(victim.pid());
    assert_eq!(after[..before.len()], before);
    assert!(after.iter().all(|s| *s == before[0]));
}

#[test]
fn limit_of_cpu_time_shares_the_weights_group_and_goes_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let victim = victim();
    let before = look_all(victim.pid());
    let all = threads(victim.pid());
    let mut hands = Hands::new(dir.path());
    assert!(!hands.apply(&limit(None), P, &all).unwrap());
    assert_eq!(look_all(victim.pid()), before, "no group for no limit");
    match hands.apply(&limit(Some(0.5)), P, &all) {
        Err(Error::Denied { .. } | Error::Missing { .. }) => return,
        other => assert!(other.unwrap()),
    }
    let group = look(victim.pid()).group;
    assert!(group.contains("/corebeat-"));
    assert_eq!(victim::quota(victim.pid()), "50000 100000");
    assert!(["100", "1024"].contains(&victim::weight(victim.pid()).as_str()), "what groups have");
    hands.apply(&Action::SetWeight { program: P, weight: 300 }, P, &all).unwrap();
    assert_eq!((look(victim.pid()).group, victim::quota(victim.pid())), (group, "50000 100000".into()));
    hands.apply(&limit(Some(1e-9)), P, &all).unwrap();
    assert_eq!(victim::quota(victim.pid()), "1000 100000", "the kernel's least");
    hands.apply(&limit(None), P, &all).unwrap();
    assert_eq!(victim::quota(victim.pid()), "max 100000");
    assert!(["300", "3072"].contains(&victim::weight(victim.pid()).as_str()));
    assert!(hands.undo_all().left.is_empty());
    assert_eq!(look_all(victim.pid()), before);
}

#[test]
fn adopt_brings_a_new_thread_in_line_and_undo_takes_it_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut victim = victim();
    let before = look(victim.pid());
    let mut hands = Hands::new(dir.path());
    let old = threads(victim.pid());
    hands.apply(&Action::SetClass { target: ALL, class: Some(Class::Batch) }, P, &old).unwrap();
    // For one thread alone, here the one that starts others.
    let maker = Target::Thread(*old.last().unwrap());
    hands.apply(&Action::SetCpus { target: maker, cpus: Some(one_cpu()) }, P, &old).unwrap();
    victim.tell("more");
    victim.hear("born");
    let new: Vec<_> = threads(victim.pid()).into_iter().filter(|t| !old.contains(t)).collect();
    hands.adopt(P, &new).unwrap();
    let seen = look(new[0].tid);
    assert_eq!(seen.policy, libc::SCHED_BATCH as u32);
    assert_eq!(seen.cpus, before.cpus, "what was meant for the creator alone is not handed on");
    hands.undo_all();
    assert!(look_all(victim.pid()).iter().all(|s| *s == before));
}

#[test]
fn undo_finds_threads_that_nobody_adopted() {
    let dir = tempfile::tempdir().unwrap();
    let mut victim = victim();
    let before = look(victim.pid());
    let mut hands = Hands::new(dir.path());
    apply_all(&mut hands, &threads(victim.pid()));
    for _ in 0..3 {
        victim.tell("more");
        victim.hear("born");
    }
    assert!(is_changed(&look(threads(victim.pid()).last().unwrap().tid)));
    hands.undo_all();
    assert!(look_all(victim.pid()).iter().all(|s| *s == before));
}

#[test]
fn undo_finds_processes_that_nobody_adopted() {
    let dir = tempfile::tempdir().unwrap();
    let script = "read line; sleep 600 & sh -c 'sleep 600 & wait' & echo @forked; wait";
    let mut sh = Player::start_shell(script);
    let before = look(sh.pid());
    let mut hands = Hands::new(dir.path());
    apply_all(&mut hands, &threads(sh.pid()));
    sh.tell("go");
    sh.hear("forked");
    // The shell, its two children, and the child of one of them.
    let tree = loop {
        let tree = victim::tree(sh.pid());
        if tree.len() == 4 {
            break tree;
        }
        std::thread::yield_now();
    };
    assert!(tree.iter().all(|&pid| is_changed(&look(pid))));
    let restored = hands.undo_all();
    assert!(tree.iter().all(|&pid| look(pid) == before), "{restored:?}");
}

#[test]
fn restore_after_a_kill_leaves_all_as_before() {
    let dir = tempfile::tempdir().unwrap();
    let mut victim = victim();
    let before = look(victim.pid());
    let mut corebeat = Player::start("play", &format!("corebeat {} {}", dir.path().display(), victim.pid()));
    corebeat.hear("done");
    victim.tell("more");
    victim.hear("born");
    assert!(look_all(victim.pid()).iter().all(is_changed));

    let live = restore_all(dir.path()).unwrap();
    assert_eq!((live.live, live.undone.len()), (1, 0), "a Corebeat at work is left alone");
    assert!(look_all(victim.pid()).iter().all(is_changed));

    corebeat.kill();
    let restored = restore_all(dir.path()).unwrap();
    assert!(restored.left.is_empty() && !restored.undone.is_empty(), "{restored:?}");
    assert!(look_all(victim.pid()).iter().all(|s| *s == before), "{:?}", look_all(victim.pid()));
    assert_eq!(journals(dir.path()), 0);
}

#[test]
fn restore_after_kills_at_any_moment_leaves_all_as_before() {
    let dir = tempfile::tempdir().unwrap();
    let mut victim = victim();
    let before = look(victim.pid());
    for round in 0..12u64 {
        let mut corebeat = Player::start("play", &format!("busy {} {}", dir.path().display(), victim.pid()));
        corebeat.hear("done");
        // Any moment is as good as another: what it hits differs from run to run, what must hold does not.
        std::thread::sleep(std::time::Duration::from_micros(round * round * 700));
        victim.tell("more");
        victim.hear("born");
        corebeat.kill();
        let restored = restore_all(dir.path()).unwrap();
        assert!(restored.left.is_empty(), "round {round}: {restored:?}");
        let after = look_all(victim.pid());
        assert!(after.iter().all(|s| *s == before), "round {round}: {after:?}\n{restored:?}");
        assert_eq!(journals(dir.path()), 0);
    }
}

#[test]
fn frozen_program_does_nothing_until_it_is_thawed() {
    let dir = tempfile::tempdir().unwrap();
    let mut victim = victim();
    let before = look_all(victim.pid());
    let mut hands = Hands::new(dir.path());
    for _ in 0..3 {
        let all = threads(victim.pid());
        assert!(hands.apply(&freeze(true), P, &all).unwrap());
        assert!(!hands.apply(&freeze(true), P, &all).unwrap(), "it is frozen already");
        victim.tell("more");
        // It would have been quick: what is not there by now has not begun.
        (0..1_000).for_each(|_| std::thread::yield_now());
        assert_eq!(threads(victim.pid()).len(), all.len());
        assert!(hands.apply(&freeze(false), P, &all).unwrap());
        victim.hear("born");
    }
    hands.apply(&freeze(true), P, &threads(victim.pid())).unwrap();
    assert_eq!(hands.undo_all().undone.len(), 1);
    victim.tell("more");
    victim.hear("born");
    assert!(look_all(victim.pid()).iter().all(|s| *s == before[0]));
    assert_eq!(journals(dir.path()), 0);
}

#[test]
fn restore_after_kills_at_any_moment_leaves_nobody_frozen() {
    let dir = tempfile::tempdir().unwrap();
    let mut victim = victim();
    for round in 0..12u64 {
        let args = format!("freezer {} {}", dir.path().display(), victim.pid());
        let mut corebeat = Player::start("play", &args);
        corebeat.hear("done");
        // As above: what the moment hits differs from run to run.
        std::thread::sleep(std::time::Duration::from_micros(round * round * 500));
        corebeat.kill();
        let restored = restore_all(dir.path()).unwrap();
        assert!(restored.left.is_empty(), "round {round}: {restored:?}");
        let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", victim.pid())).unwrap();
        assert!(!groups.contains("corebeat-"), "round {round}: {groups}");
        victim.tell("more");
        victim.hear("born");
        assert_eq!(journals(dir.path()), 0);
    }
}

/// Files may not grow any further, as on a disk that is full; then they may again.
fn full(dir: &str, pid: i32) {
    let limit = |rlim_cur| {
        let limit = libc::rlimit { rlim_cur, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: plain system calls on a struct that lives through them; an ignored signal runs no code.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
        }
    };
    let action = Action::SetClass { target: ALL, class: Some(Class::Batch) };
    let mut hands = Hands::new(dir);
    // Enough for the first lines, and for a part of the next.
    limit(700);
    let error = hands.apply(&action, P, &threads(pid)).unwrap_err();
    assert!(error.to_string().contains("journal"), "{error}");
    say("refused");
    std::io::stdin().lines().next();
    limit(libc::RLIM_INFINITY);
    hands.apply(&action, P, &threads(pid)).unwrap();
    say("done");
    std::thread::sleep(std::time::Duration::from_secs(600));
}

#[test]
fn journal_that_cannot_grow_stops_the_change_and_stays_sound() {
    let dir = tempfile::tempdir().unwrap();
    let victim = victim();
    let before = look_all(victim.pid());
    let mut corebeat = Player::start("play", &format!("full {} {}", dir.path().display(), victim.pid()));
    corebeat.hear("refused");
    assert_eq!(look_all(victim.pid()), before);
    corebeat.tell("go on");
    corebeat.hear("done");
    assert_ne!(look_all(victim.pid()), before);
    corebeat.kill();
    let restored = restore_all(dir.path()).unwrap();
    assert!(restored.left.is_empty() && !restored.undone.is_empty(), "{restored:?}");
    assert_eq!(look_all(victim.pid()), before);
}

#[test]
fn value_that_somebody_else_changed_since_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let victim = victim();
    let all = threads(victim.pid());
    let mut hands = Hands::new(dir.path());
    hands.apply(&Action::SetClass { target: ALL, class: Some(Class::Batch) }, P, &all).unwrap();
    let zero = libc::sched_param { sched_priority: 0 };
    // SAFETY: a plain system call on a struct that lives through it.
    assert_eq!(unsafe { libc::sched_setscheduler(all[1].tid, libc::SCHED_IDLE, &zero) }, 0);
    let restored = hands.undo_all();
    assert_eq!(look(all[1].tid).policy, libc::SCHED_IDLE as u32);
    assert_eq!(restored.left.len(), 1, "{restored:?}");
    assert!(restored.left[0].contains("class idle") && restored.left[0].contains(&all[1].tid.to_string()));
    assert_eq!(look(all[2].tid).policy, 0);
}

#[test]
fn renice_to_a_value_that_was_ours_once_is_left_alone() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let victim = victim();
    let all = threads(victim.pid());
    let mut hands = Hands::new(dir.path());
    for nice in [3, 5] {
        hands.apply(&Action::SetNice { target: ALL, nice }, P, &all).unwrap();
    }
    // SAFETY: a plain system call.
    assert_eq!(unsafe { libc::setpriority(libc::PRIO_PROCESS, all[1].tid as u32, 3) }, 0);
    let restored = hands.undo_all();
    let nices: Vec<i32> = look_all(victim.pid()).iter().map(|s| s.nice).collect();
    assert_eq!(nices, [0, 3, 0, 0, 0]);
    assert!(restored.left.len() == 1 && restored.left[0].contains("keeps nice 3"), "{restored:?}");
}

#[test]
fn thread_that_has_ended_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    let victim = victim();
    let all = threads(victim.pid());
    victim.kill();
    let mut hands = Hands::new(dir.path());
    apply_all(&mut hands, &all);
    assert_eq!(journals(dir.path()), 0, "nothing was changed, so nothing is noted");
}

#[test]
fn action_for_a_recycled_number_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let victim = victim();
    let before = look_all(victim.pid());
    let another = |t: ThreadId| ThreadId { start_ticks: t.start_ticks - 1, ..t };
    let recycled: Vec<_> = threads(victim.pid()).into_iter().map(another).collect();
    apply_all(&mut Hands::new(dir.path()), &recycled);
    assert_eq!(look_all(victim.pid()), before);
}

#[test]
fn senseless_actions_are_named_and_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let victim = victim();
    let before = look_all(victim.pid());
    let mut hands = Hands::new(dir.path());
    let far = [CpuId(8000)].into_iter().collect();
    for action in [
        Action::SetCpus { target: ALL, cpus: Some(CpuSet::new()) },
        Action::SetCpus { target: ALL, cpus: Some(far) },
        Action::SetSlice { target: ALL, slice_us: Some(0) },
        Action::SetWeight { program: P, weight: 0 },
        limit(Some(0.0)),
        limit(Some(-1.0)),
        limit(Some(f64::NAN)),
        limit(Some(f64::INFINITY)),
        Action::MovePages { program: P, from: vec![], to: vec![] },
    ] {
        let error = hands.apply(&action, P, &threads(victim.pid())).unwrap_err();
        assert!(matches!(error, Error::Senseless(_)), "{action:?}: {error:?}");
    }
    assert_eq!(look_all(victim.pid()), before);
}

#[test]
fn pages_move_to_the_nodes_that_are_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let victim = victim();
    let online = std::fs::read_to_string("/sys/devices/system/node/online").unwrap_or_else(|_| "0".into());
    let nodes: CpuSet = online.parse().unwrap();
    let nodes: Vec<NodeId> = nodes.iter().map(|n| NodeId(n.0)).collect();
    let (to, from) = nodes.split_last().unwrap();
    let from = if from.is_empty() { vec![*to] } else { from.to_vec() };
    let action = Action::MovePages { program: P, from: from.clone(), to: vec![*to] };
    match Hands::new(dir.path()).apply(&action, P, &threads(victim.pid())) {
        Err(Error::Missing { .. }) => return, // a kernel without NUMA
        other => assert!(other.unwrap()),
    }
    // Pages that are shared with others stay; the heap is its own.
    let maps = std::fs::read_to_string(format!("/proc/{}/numa_maps", victim.pid())).unwrap();
    let heap = maps.lines().find(|l| l.contains(" heap ")).unwrap();
    assert!(heap.contains(&format!(" N{}=", to.0)), "{heap}");
    assert!(from.iter().all(|n| n == to || !heap.contains(&format!(" N{}=", n.0))), "{heap}");
}

#[test]
fn pages_are_spread_over_all_nodes_there_are() {
    let dir = tempfile::tempdir().unwrap();
    let victim = victim();
    let text = std::fs::read_to_string("/sys/devices/system/node/has_memory").unwrap_or_else(|_| "0".into());
    let nodes: CpuSet = text.parse().unwrap();
    let action = |spread| Action::SpreadPages { program: P, spread };
    let mut hands = Hands::new(dir.path());
    let spread = hands.apply(&action(true), P, &threads(victim.pid())).unwrap();
    assert_eq!(spread, nodes.len() > 1, "one node leaves no choice");
    assert!(!hands.apply(&action(false), P, &threads(victim.pid())).unwrap());
}

#[test]
fn cpus_are_given_back_by_the_thread() {
    let dir = tempfile::tempdir().unwrap();
    let victim = victim();
    let all = threads(victim.pid());
    let before = look_all(victim.pid());
    let cpus = |cpus| Action::SetCpus { target: Target::Thread(all[0]), cpus };
    let mut hands = Hands::new(dir.path());
    assert!(hands.apply(&cpus(Some(one_cpu())), P, &all).unwrap());
    assert_ne!(look_all(victim.pid()), before);
    assert!(hands.apply(&cpus(None), P, &all).unwrap());
    assert_eq!(look_all(victim.pid()), before);
}

/// What somebody without privileges may do and what not. Run as such a user.
fn poor(dir: &Path) {
    let mine = victim();
    let all = threads(mine.pid());
    let before = look_all(mine.pid());
    let mut hands = Hands::new(dir);
    let denied = |error: Error| assert!(matches!(error, Error::Denied { .. }), "{error:?}");
    let missing = |error: Error| assert!(error.to_string().contains("CAP_SYS_NICE"), "{error:?}");
    missing(hands.apply(&Action::SetNice { target: ALL, nice: -5 }, P, &all).unwrap_err());
    // Allowed by the kernel, but without a way back.
    missing(hands.apply(&Action::SetNice { target: ALL, nice: 5 }, P, &all).unwrap_err());
    missing(hands.apply(&Action::SetClass { target: ALL, class: Some(Class::Idle) }, P, &all).unwrap_err());
    for action in [Action::SetWeight { program: P, weight: 50 }, limit(Some(0.5))] {
        match hands.apply(&action, P, &all) {
            Ok(_) | Err(Error::Denied { .. } | Error::Missing { .. }) => {}
            Err(e) => panic!("{e:?}"),
        }
    }
    // Somebody else's process.
    denied(
        hands
            .apply(&Action::SetClass { target: ALL, class: Some(Class::Batch) }, P, &[identity(1)])
            .unwrap_err(),
    );
    assert_eq!(look_all(mine.pid()), before);
    hands.apply(&Action::SetClass { target: ALL, class: Some(Class::Batch) }, P, &all).unwrap();
    hands.apply(&Action::SetCpus { target: ALL, cpus: Some(one_cpu()) }, P, &all).unwrap();
    assert_ne!(look_all(mine.pid()), before);
    assert!(hands.undo_all().left.is_empty());
    assert_eq!(look_all(mine.pid()), before);
    say("passed");
}

/// Plays a role without privileges, to its end.
fn play_poor(role: &str) {
    let dir = tempfile::tempdir().unwrap();
    let role = format!("{role} {}", dir.path().display());
    if !is_root() {
        return Player::start("play", &role).hear("passed").clear();
    }
    // The executable may lie where only root can read: run a copy. Made by somebody else: a descriptor of ours that can
    // write to it would go with every fork of another test, and who is written to cannot be run.
    let exe = dir.path().join("exe");
    let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&exe).status();
    assert!(copied.unwrap().success());
    std::os::unix::fs::chown(dir.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let mut command = Command::new(exe);
    command.uid(NOBODY).gid(NOBODY);
    Player::start_with(command, "play", &role).hear("passed");
}

#[test]
fn without_privileges_what_has_no_way_back_is_denied() {
    play_poor("poor");
}

/// A program of several processes, some of which fork all the time, and the number of one that its user has stopped.
fn forking() -> (Player, i32) {
    let forks = "while :; do sleep 0 & wait; done &";
    let script = format!(
        "sleep 600 & first=$!; kill -STOP $first; {forks} ({forks} wait) & echo @stopped $first; wait"
    );
    let mut sh = Player::start_shell(&script);
    let stopped = sh.hear("stopped").parse().unwrap();
    while victim::state(stopped) != 'T' {
        std::thread::yield_now();
    }
    (sh, stopped)
}

/// Stops the first process of a program, as its user may.
fn stop_by_user(sh: &Player) {
    // SAFETY: a plain system call, on a child of this process that nobody has waited for.
    unsafe { libc::kill(sh.pid(), libc::SIGSTOP) };
    while victim::state(sh.pid()) != 'T' {
        std::thread::yield_now();
    }
}

/// Those of a program who run, or would if they were let.
fn running(sh: &Player) -> Vec<i32> {
    victim::tree(sh.pid()).into_iter().filter(|&pid| !['T', 'Z', 'X'].contains(&victim::state(pid))).collect()
}

/// Stops and continues a program that may not be put into groups.
fn turns(dir: &Path) {
    let (sh, stopped) = forking();
    let state = dir.join("state");
    let mut hands = Hands::new(&state);
    let stop = |hands: &mut Hands| {
        let has_changed = hands.apply(&freeze(true), P, &threads(sh.pid())).unwrap();
        // One that was asleep in the kernel, or found no free CPU to stop on, stops a little later.
        while !running(&sh).is_empty() {
            hands.adopt(P, &threads(sh.pid())).unwrap();
        }
        has_changed
    };
    for round in 0..10 {
        assert!(hands.apply(&freeze(true), P, &threads(sh.pid())).unwrap(), "round {round}");
        if look(sh.pid()).group.contains("/corebeat-") {
            return say("passed"); // this user may freeze
        }
        stop(&mut hands);
        assert!(!stop(&mut hands), "all are stopped already");
        assert!(hands.apply(&freeze(false), P, &[]).unwrap());
        assert!(running(&sh).len() >= 3 && victim::state(stopped) == 'T');
    }
    // One that its user stops between the turns is not ours either.
    stop_by_user(&sh);
    stop(&mut hands);
    let restored = hands.undo_all();
    assert!(restored.undone.len() >= 2 && restored.left.is_empty(), "{restored:?}");
    assert!(running(&sh).len() >= 2);
    assert_eq!([sh.pid(), stopped].map(victim::state), ['T', 'T']);
    assert_eq!(journals(&state), 0);
    say("passed");
}

#[test]
fn without_groups_a_program_is_stopped_with_all_its_descendants_and_continued() {
    play_poor("turns");
}

/// Corebeats that stop and continue a program by turns are killed.
fn killed(dir: &Path) {
    let (sh, stopped) = forking();
    let state = dir.join("state");
    for round in 0..12u64 {
        let mut corebeat = Player::start("play", &format!("freezer {} {}", state.display(), sh.pid()));
        corebeat.hear("done");
        // As above: what the moment hits differs from run to run.
        std::thread::sleep(std::time::Duration::from_micros(round * round * 500));
        corebeat.kill();
        let restored = restore_all(&state).unwrap();
        assert!(restored.left.is_empty(), "round {round}: {restored:?}");
        let tree = victim::tree(sh.pid());
        let still: Vec<_> = tree.into_iter().filter(|&pid| victim::state(pid) == 'T').collect();
        assert_eq!(still, [stopped], "round {round}: {restored:?}");
    }
    // Who is stopped by its user in its turn, before Corebeat is killed, stays so.
    let mut corebeat = Player::start("play", &format!("thawed {} {}", state.display(), sh.pid()));
    corebeat.hear("done");
    stop_by_user(&sh);
    corebeat.kill();
    restore_all(&state).unwrap();
    assert_eq!([sh.pid(), stopped].map(victim::state), ['T', 'T']);
    say("passed");
}

#[test]
fn restore_after_kills_at_any_moment_leaves_nobody_stopped() {
    play_poor("killed");
}

#[test]
fn weight_on_read_only_groups_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new("unshare");
    let mounts = "for m in $(awk '/ - cgroup2? /{print $5}' /proc/self/mountinfo); do mount -o remount,ro,bind $m; done";
    command.args(["-m", "sh", "-c", &format!("{mounts}; exec \"$0\" \"$@\"")]);
    if !command.output().is_ok_and(|o| is_root() && o.stderr.is_empty()) {
        return; // it takes root, and util-linux
    }
    command.arg(std::env::current_exe().unwrap());
    let error =
        Player::start_with(command, "play", &format!("read-only {}", dir.path().display())).hear("error");
    assert!(error.contains("read-only"), "{error}");
}

#[test]
fn weight_and_freezer_of_one_program_share_a_group_in_either_order() {
    let weigh = Action::SetWeight { program: P, weight: 50 };
    for actions in [[weigh.clone(), freeze(true)], [freeze(true), weigh]] {
        let victim = victim();
        let (dir, before) = (tempfile::tempdir().unwrap(), look_all(victim.pid()));
        let mut hands = Hands::new(dir.path());
        for action in &actions {
            match hands.apply(action, P, &threads(victim.pid())) {
                Ok(_) => {}
                Err(Error::Denied { .. } | Error::Missing { .. }) => return,
                Err(e) => panic!("{action:?}: {e}"),
            }
        }
        for hierarchy in look(victim.pid()).group.lines() {
            assert!(hierarchy.matches("/corebeat-").count() <= 1, "{actions:?}: {hierarchy}");
        }
        assert!(["50", "512"].contains(&&*victim::weight(victim.pid())));
        assert_eq!(hands.undo_all().left, [""; 0]);
        assert_eq!(look_all(victim.pid()), before);
    }
}
