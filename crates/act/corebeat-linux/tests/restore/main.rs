//! Changes to real threads are undone, however Corebeat ends.

mod conformance;
mod hostile;
mod victim;

use corebeat_linux::{
    Actuator, Error, Launch, LinuxMachine, Offer, Options, facts, journals as journals_of,
    restorable, restore_all,
};
use corebeat_machine::{
    Action, Class, CpuId, CpuSet, Machine, NodeId, ProgramId, Restored, Target, ThreadId,
};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use victim::{
    Observed, Player, all_settings, identity, play_victim, print_line, role, settings_of, threads,
};

const P: ProgramId = ProgramId(7);
const ALL: Target = Target::Program(P);
const NOBODY: u32 = 65534;

/// Starts a process with four threads, and waits for the threads.
fn victim() -> Player {
    let mut player = Player::start("play", "victim 4");
    player.wait_for("ready");
    while threads(player.pid()).len() < 5 {
        std::thread::yield_now(); // one thread of the harness, and four of the victim
    }
    player
}

/// A victim, and an actuator that changes it.
struct Scene {
    dir: tempfile::TempDir,
    victim: Player,
    /// Settings of the threads before any change.
    before: Vec<Observed>,
    actuator: Actuator,
}

impl Scene {
    fn new() -> Scene {
        let (dir, victim) = (tempfile::tempdir().unwrap(), victim());
        let (before, actuator) = (all_settings(victim.pid()), Actuator::new(dir.path()));
        Scene { dir, victim, before, actuator }
    }

    fn pid(&self) -> i32 {
        self.victim.pid()
    }

    fn threads(&self) -> Vec<ThreadId> {
        threads(self.pid())
    }

    /// Applies an action to the present threads. Returns whether a setting changed.
    fn apply(&mut self, action: &Action) -> Result<bool, Error> {
        let threads = self.threads();
        self.actuator.apply(action, P, &threads).map(|effect| effect.has_changed())
    }

    /// Same as [`Scene::apply`]. `None` if this host does not support the action.
    fn apply_if_supported(&mut self, action: &Action) -> Option<bool> {
        match self.apply(action) {
            Err(Error::Denied { .. } | Error::Unsupported { .. }) => None,
            other => Some(other.unwrap_or_else(|e| panic!("{action:?}: {e}"))),
        }
    }

    fn apply_all(&mut self) {
        let threads = self.threads();
        apply_all(&mut self.actuator, &threads);
    }

    /// Returns the present settings of the threads.
    fn now(&self) -> Vec<Observed> {
        all_settings(self.pid())
    }

    /// Returns whether all threads, also new ones, have the settings before any change.
    fn is_original(&self) -> bool {
        self.now().iter().all(|settings| *settings == self.before[0])
    }

    /// Lets the victim start a thread, and waits for it.
    fn grow(&mut self) {
        self.victim.send("more");
        self.victim.wait_for("born");
    }

    /// Starts a Corebeat with a role, which acts on the victim and has a journal in the folder.
    fn play(&self, role: &str) -> Player {
        Player::start("play", &format!("{role} {} {}", self.dir.path().display(), self.pid()))
    }

    fn journals(&self) -> usize {
        journals(self.dir.path())
    }

    /// Undoes the changes of killed Corebeats.
    fn restore_all(&self) -> Restored {
        hostile::restore(self.dir.path()).restored
    }
}

/// Returns a set of one CPU on which this process may run.
fn one_cpu() -> CpuSet {
    settings_of(std::process::id() as i32).cpus.iter().take(1).collect()
}

/// Returns actions that change every setting of all threads, including slices if the kernel has
/// them.
fn actions() -> Vec<Action> {
    let mut all = vec![Action::SetCpus { target: ALL, cpus: Some(one_cpu()) }, class(Class::Batch)];
    if settings_of(std::process::id() as i32).slice_ns > 0 {
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

fn apply_all(actuator: &mut Actuator, threads: &[ThreadId]) {
    for action in actions() {
        actuator.apply(&action, P, threads).unwrap_or_else(|e| panic!("{action:?}: {e}"));
    }
    for action in [Action::SetWeight { program: P, weight: 50 }, limit(Some(0.5))] {
        match actuator.apply(&action, P, threads) {
            Ok(_) | Err(Error::Denied { .. } | Error::Unsupported { .. }) => {}
            Err(e) => panic!("{action:?}: {e}"),
        }
    }
}

fn freeze(frozen: bool) -> Action {
    Action::SetFrozen { program: P, frozen }
}

fn class(class: Class) -> Action {
    Action::SetClass { target: ALL, class: Some(class) }
}

fn limit(cpus: Option<f64>) -> Action {
    Action::SetQuota { program: P, cpus }
}

fn is_changed(seen: &Observed) -> bool {
    seen.policy == libc::SCHED_BATCH as u32
        && seen.cpus == one_cpu()
        && (seen.nice == 5 || !is_root())
}

/// Returns whether a thread has a slice of this many ms: shorter by less than 1 us for each ms.
fn has_slice(seen: &Observed, ms: u64) -> bool {
    (ms * 999_000 + 1..ms * 1_000_000).contains(&seen.slice_ns)
}

/// Returns whether Linux has a slice for each thread. Prints that a test is skipped if not.
fn has_slices() -> bool {
    let has_them = settings_of(std::process::id() as i32).slice_ns > 0;
    if !has_them {
        println!("skipped: this kernel has no slice for each thread");
    }
    has_them
}

/// Sets class and slice of a process, which each process that it forks inherits.
fn apply_slice(actuator: &mut Actuator, program: ProgramId, pid: i32) {
    let target = Target::Program(program);
    let batch = Action::SetClass { target, class: Some(Class::Batch) };
    for action in [batch, Action::SetSlice { target, slice_us: Some(50_000) }] {
        assert!(actuator.apply(&action, program, &threads(pid)).unwrap().has_changed());
    }
}

fn has_applied_slice(pid: i32) -> bool {
    let seen = settings_of(pid);
    seen.policy == libc::SCHED_BATCH as u32 && has_slice(&seen, 50)
}

/// Starts a shell that forks an orphan for a line of input, and ends for another one.
fn forker() -> Player {
    Player::start_shell("read l; (sleep 600 & echo @left $!); echo @forked; read l")
}

/// Lets the shell fork, waits for the end of the orphan's parent, and returns the orphan.
fn fork_orphan(forker: &mut Player) -> i32 {
    forker.send("fork");
    let orphan = forker.wait_for("left").parse().unwrap();
    forker.wait_for("forked");
    orphan
}

fn journals(dir: &Path) -> usize {
    std::fs::read_dir(dir).map_or(0, |d| d.count())
}

/// The other processes of these tests. Does nothing as a test.
#[test]
fn play() {
    if let Some(args) = role("victim") {
        play_victim(args[0].parse().unwrap());
    }
    if let Some(args) = role("corebeat") {
        let mut actuator = Actuator::new(&args[0]);
        // Also acts on each process whose number it reads.
        let read = std::io::stdin().lines().map_while(Result::ok);
        for pid in std::iter::once(args[1].clone()).chain(read) {
            apply_all(&mut actuator, &threads(pid.parse().unwrap()));
            print_line("done");
        }
        std::thread::sleep(std::time::Duration::from_secs(600));
    }
    if let Some(args) = role("slice") {
        let mut actuator = Actuator::new(&args[0]);
        apply_slice(&mut actuator, P, args[1].parse().unwrap());
        print_line("done");
        std::thread::sleep(std::time::Duration::from_secs(600));
    }
    if let Some(args) = role("busy") {
        let (dir, pid): (_, i32) = (&args[0], args[1].parse().unwrap());
        let mut actuator = Actuator::new(dir);
        print_line("done");
        for round in 0u32.. {
            apply_all(&mut actuator, &threads(pid));
            let all = threads(pid);
            let cpus =
                if round % 2 == 0 { one_cpu() } else { [CpuId(0), CpuId(1)].into_iter().collect() };
            actuator
                .apply(
                    &Action::SetCpus { target: Target::Thread(all[1]), cpus: Some(cpus) },
                    P,
                    &all,
                )
                .unwrap();
            if is_root() {
                // A raise also sets reset-on-fork, which has to be undone.
                actuator.apply(&Action::SetNice { target: ALL, nice: -5 }, P, &all).unwrap();
            }
            if round % 3 == 0 {
                actuator.restore();
            }
        }
    }
    if let Some(args) = role("freezer") {
        let (dir, pid): (_, i32) = (&args[0], args[1].parse().unwrap());
        let mut actuator = Actuator::new(dir);
        print_line("done");
        for round in 0u32.. {
            actuator.apply(&freeze(round % 5 != 4), P, &threads(pid)).unwrap();
            if round % 7 == 6 {
                actuator.restore();
            }
        }
    }
    if let Some(args) = role("thawed") {
        let (mut actuator, all) = (Actuator::new(&args[0]), threads(args[1].parse().unwrap()));
        for frozen in [true, false] {
            actuator.apply(&freeze(frozen), P, &all).unwrap();
        }
        print_line("done");
        std::thread::sleep(std::time::Duration::from_secs(600));
    }
    if let Some(args) = role("full") {
        full(&args[0], args[1].parse().unwrap());
    }
    // Roles that are killed once they have printed. Their folders and processes must be gone then.
    let checks: [(_, fn(&Path)); 6] = [
        ("poor", unprivileged),
        ("turns", turns),
        ("hidden", hostile::hidden),
        ("foreign", foreign),
        ("killed", killed),
        ("adopter", adopter),
    ];
    for (name, check) in checks {
        if let Some(args) = role(name) {
            check(Path::new(&args[0]));
            print_line("passed");
        }
    }
    if let Some(args) = role("read-only") {
        let me = [identity(std::process::id() as i32)];
        let mut actuator = Actuator::new(&args[0]);
        let error =
            actuator.apply(&Action::SetWeight { program: P, weight: 50 }, P, &me).unwrap_err();
        print_line(&format!("error {error}"));
    }
}

#[test]
fn restore_after_every_action_undoes_all() {
    let mut scene = Scene::new();
    scene.apply_all();
    assert!(scene.now().iter().all(is_changed), "{:?}", scene.now());
    let restored = scene.actuator.restore();
    assert_eq!(scene.now(), scene.before);
    assert!(restored.left.is_empty() && !restored.undone.is_empty(), "{restored:?}");
    assert_eq!(scene.journals(), 0);
}

#[test]
fn dropping_the_actuator_in_a_panic_undoes_changes() {
    let scene = Scene::new();
    let (all, mut actuator) = (scene.threads(), Actuator::new(scene.dir.path()));
    let result = std::panic::catch_unwind(move || {
        apply_all(&mut actuator, &all);
        std::panic::resume_unwind(Box::new(()));
    });
    assert!(result.is_err());
    assert_eq!(scene.now(), scene.before);
}

#[test]
fn slice_of_none_and_restored_class_are_the_original_ones() {
    let mut scene = Scene::new();
    let slice = |slice_us| Action::SetSlice { target: ALL, slice_us };
    match scene.apply_if_supported(&slice(Some(5000))) {
        None => return, // before Linux 6.12
        changed => assert_eq!(changed, Some(true)),
    }
    assert!(scene.now().iter().all(|s| has_slice(s, 5)));
    // Linux permits at most 100 ms.
    scene.apply(&slice(Some(500_000))).unwrap();
    assert!(scene.now().iter().all(|s| has_slice(s, 100)));
    scene.apply(&slice(None)).unwrap();
    assert_eq!(scene.now(), scene.before);
}

#[test]
fn nice_is_relative_to_the_value_of_each_thread() {
    if !is_root() {
        return;
    }
    let mut scene = Scene::new();
    let all = scene.threads();
    let renice = |thread: &ThreadId, nice| {
        // SAFETY: a plain system call.
        assert_eq!(unsafe { libc::setpriority(libc::PRIO_PROCESS, thread.tid as u32, nice) }, 0);
    };
    let nices = |of: &[ThreadId]| of.iter().map(|t| settings_of(t.tid).nice).collect::<Vec<_>>();
    let own = [0, 18, -18, 4, 4];
    all.iter().zip(own).for_each(|(thread, nice)| renice(thread, nice));
    let mut nice = |nice, of: &[ThreadId]| {
        scene.actuator.apply(&Action::SetNice { target: ALL, nice }, P, of).unwrap().has_changed()
    };
    assert!(!nice(0, &all) && !nice(3, &[]), "nothing has changed");
    assert!(nice(3, &all) && !nice(3, &all));
    assert_eq!(nices(&all), [3, 19, -15, 7, 7], "the kernel permits at most 19");
    nice(-3, &all);
    assert_eq!(nices(&all), [-3, 15, -20, 1, 1]);
    // A value that the user sets meanwhile is the own value of the thread.
    renice(&all[3], 10);
    nice(2, &all);
    assert_eq!(nices(&all), [2, 19, -16, 12, 6]);
    // A new thread has the own value of its creator, which is the last thread.
    scene.grow();
    let new: Vec<_> = scene.threads().into_iter().filter(|t| !all.contains(t)).collect();
    scene.actuator.inherit(P, &new).unwrap();
    assert_eq!(nices(&new), [6]);
    scene.actuator.restore();
    assert_eq!((nices(&all), nices(&new)), (vec![0, 18, -18, 10, 4], vec![4]));
}

#[test]
fn raise_is_not_inherited_by_processes_that_could_leave() {
    if !is_root() {
        return;
    }
    for own in [0, 5] {
        let dir = tempfile::tempdir().unwrap();
        // The parent of the orphan ends before either of them is observed.
        let mut sh = Player::start_shell(
            "read l; (sleep 600 & echo @left $!); sleep 600 & echo @stays $!; wait",
        );
        // SAFETY: a plain system call.
        assert_eq!(unsafe { libc::setpriority(libc::PRIO_PROCESS, sh.pid() as u32, own) }, 0);
        let before = settings_of(sh.pid());
        let mut actuator = Actuator::new(dir.path());
        actuator.apply(&Action::SetNice { target: ALL, nice: 3 }, P, &threads(sh.pid())).unwrap();
        assert!(!settings_of(sh.pid()).resets_on_fork, "other values may be inherited");
        actuator.apply(&Action::SetNice { target: ALL, nice: -8 }, P, &threads(sh.pid())).unwrap();
        sh.send("go");
        let left: i32 = sh.wait_for("left").parse().unwrap();
        let stays: i32 = sh.wait_for("stays").parse().unwrap();
        assert_eq!((settings_of(left).nice, settings_of(stays).nice), (0, 0));
        actuator.inherit(P, &threads(stays)).unwrap();
        assert_eq!((settings_of(sh.pid()).nice, settings_of(stays).nice), (own - 8, own - 8));
        drop(actuator);
        assert_eq!((settings_of(sh.pid()), settings_of(stays)), (before.clone(), before));
    }
}

#[test]
fn weight_moves_the_program_into_a_group_and_back() {
    let mut scene = Scene::new();
    let weight = |weight| Action::SetWeight { program: P, weight };
    match scene.apply_if_supported(&weight(300)) {
        None => return,
        changed => assert_eq!(changed, Some(true)),
    }
    assert!(scene.now().iter().all(|s| s.group.contains("/corebeat-")));
    // In version 1, 1,024 shares are a weight of 100.
    assert!(["300", "3072"].contains(&victim::weight(scene.pid()).as_str()));
    scene.apply(&weight(200)).unwrap();
    scene.grow();
    let undone = scene.actuator.restore().undone;
    let is_removal = |line: &&String| line.starts_with("control group /");
    let removal = undone.iter().find(is_removal).expect("a line about the group");
    assert!(removal.ends_with(": created -> removed"), "{removal}");
    let after = scene.now();
    assert_eq!(after[..scene.before.len()], scene.before);
    assert!(scene.is_original());
}

#[test]
fn quota_and_weight_share_a_group() {
    let mut scene = Scene::new();
    assert!(!scene.apply(&limit(None)).unwrap());
    assert_eq!(scene.now(), scene.before, "no quota needs no group");
    match scene.apply_if_supported(&limit(Some(0.5))) {
        None => return,
        changed => assert_eq!(changed, Some(true)),
    }
    let group = settings_of(scene.pid()).group;
    assert!(group.contains("/corebeat-"));
    assert_eq!(victim::quota(scene.pid()), "50000 100000");
    assert!(
        ["100", "1024"].contains(&victim::weight(scene.pid()).as_str()),
        "default weight of a group"
    );
    scene.apply(&Action::SetWeight { program: P, weight: 300 }).unwrap();
    assert_eq!(
        (settings_of(scene.pid()).group, victim::quota(scene.pid())),
        (group, "50000 100000".into())
    );
    scene.apply(&limit(Some(1e-9))).unwrap();
    assert_eq!(victim::quota(scene.pid()), "1000 100000", "the smallest quota of the kernel");
    scene.apply(&limit(None)).unwrap();
    assert_eq!(victim::quota(scene.pid()), "max 100000");
    assert!(["300", "3072"].contains(&victim::weight(scene.pid()).as_str()));
    assert!(scene.actuator.restore().left.is_empty());
    assert_eq!(scene.now(), scene.before);
}

#[test]
fn inherit_sets_a_new_thread_and_restore_undoes_it() {
    let mut scene = Scene::new();
    let old = scene.threads();
    scene.apply(&class(Class::Batch)).unwrap();
    // For one thread only: the one that starts others.
    let maker = Target::Thread(*old.last().unwrap());
    scene.apply(&Action::SetCpus { target: maker, cpus: Some(one_cpu()) }).unwrap();
    scene.grow();
    let new: Vec<_> = scene.threads().into_iter().filter(|t| !old.contains(t)).collect();
    scene.actuator.inherit(P, &new).unwrap();
    let seen = settings_of(new[0].tid);
    assert_eq!(seen.policy, libc::SCHED_BATCH as u32);
    assert_eq!(seen.cpus, scene.before[0].cpus, "settings of the creator alone are not inherited");
    scene.actuator.restore();
    assert!(scene.is_original());
}

#[test]
fn restore_finds_threads_without_an_entry() {
    let mut scene = Scene::new();
    scene.apply_all();
    for _ in 0..3 {
        scene.grow();
    }
    assert!(is_changed(&settings_of(scene.threads().last().unwrap().tid)));
    scene.actuator.restore();
    assert!(scene.is_original());
}

#[test]
fn restore_finds_processes_without_an_entry() {
    let dir = tempfile::tempdir().unwrap();
    let script = "read line; sleep 600 & sh -c 'sleep 600 & wait' & echo @forked; wait";
    let mut sh = Player::start_shell(script);
    let before = settings_of(sh.pid());
    let mut actuator = Actuator::new(dir.path());
    apply_all(&mut actuator, &threads(sh.pid()));
    sh.send("go");
    sh.wait_for("forked");
    // The shell, its two children, and a grandchild.
    let tree = loop {
        let tree = victim::tree(sh.pid());
        if tree.len() == 4 {
            break tree;
        }
        std::thread::yield_now();
    };
    assert!(tree.iter().all(|&pid| is_changed(&settings_of(pid))));
    let restored = actuator.restore();
    assert!(tree.iter().all(|&pid| settings_of(pid) == before), "{restored:?}");
}

#[test]
fn restore_after_a_kill_finds_orphans_by_their_slice() {
    if !has_slices() {
        return;
    }
    for ends in [false, true] {
        let (dir, mut shell) = (tempfile::tempdir().unwrap(), forker());
        let before = settings_of(shell.pid());
        let role = format!("slice {} {}", dir.path().display(), shell.pid());
        let mut corebeat = Player::start("play", &role);
        corebeat.wait_for("done");
        let orphan = fork_orphan(&mut shell);
        assert!(has_applied_slice(orphan));
        if ends {
            shell.send("end");
            while victim::state(shell.pid()) != 'Z' {
                std::thread::yield_now();
            }
        }
        corebeat.kill();
        let would = restorable(dir.path()).unwrap().restored;
        let restored = hostile::restore(dir.path()).restored;
        assert_eq!(settings_of(orphan), before, "{restored:?}");
        let about = |line: &&String| line.starts_with(&format!("thread {orphan}: "));
        assert_eq!(restored.undone.iter().filter(about).count(), 2, "{restored:?}");
        assert!(restored.left.is_empty() && would == restored, "{would:?} {restored:?}");
        assert_eq!(journals(dir.path()), 0);
    }
}

#[test]
fn restore_of_a_program_leaves_the_orphans_of_others_alone() {
    if !has_slices() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let actuator = |name: &str| Actuator::new(dir.path().join(name));
    let (mut one, mut other) = (actuator("one"), actuator("other"));
    let (first, second) = (ProgramId(1), ProgramId(2));
    let mut shells = [forker(), forker(), forker()];
    let before = settings_of(shells[0].pid());
    let pids = shells.each_ref().map(Player::pid);
    apply_slice(&mut one, first, pids[0]);
    apply_slice(&mut one, second, pids[1]);
    apply_slice(&mut other, first, pids[2]);
    let orphans = shells.each_mut().map(fork_orphan);
    let changed = || orphans.map(has_applied_slice);
    one.release(first);
    assert_eq!(changed(), [false, true, true]);
    one.restore();
    assert_eq!(changed(), [false, false, true]);
    other.restore();
    assert_eq!(orphans.map(settings_of), [before.clone(), before.clone(), before]);
}

#[test]
fn slice_of_another_corebeat_is_in_effect_already() {
    if !has_slices() {
        return;
    }
    let mut scene = Scene::new();
    let slice = Action::SetSlice { target: ALL, slice_us: Some(50_000) };
    assert!(scene.apply(&slice).unwrap());
    let mut other = Actuator::new(scene.dir.path());
    assert!(!other.apply(&slice, P, &scene.threads()).unwrap().has_changed());
    scene.actuator.restore();
    assert!(scene.is_original());
}

/// Adopts the orphan of a program whose class it has set, and undoes the change before the next
/// observation.
fn adopter(dir: &Path) {
    let script = "read l; (sleep 600 & echo $!); read l";
    let pipe = || rustix::pipe::pipe().map(|(r, w)| (File::from(r), File::from(w))).unwrap();
    let ((stdin, mut input), (output, stdout)) = (pipe(), pipe());
    let mut launch = Launch::new("sh", ["-c".into(), script.into()]);
    (launch.stdin, launch.stdout, launch.keep_orphans) = (Some(stdin), Some(stdout), true);
    let state_dir = Some(dir.to_owned());
    let mut machine = LinuxMachine::new(Options { state_dir, ..Options::default() }).unwrap();
    let mut started = launch.start().unwrap();
    let program = machine.watch_launch(&started).unwrap();
    started.release().unwrap();
    machine.observe().unwrap();
    let before = settings_of(started.pid());
    let batch = Action::SetClass { target: Target::Program(program), class: Some(Class::Batch) };
    assert!(machine.act(&batch).unwrap().has_changed());
    writeln!(input, "fork").unwrap();
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line).unwrap();
    let orphan: i32 = line.trim().parse().unwrap();
    while !victim::tree(std::process::id() as i32)[1..].contains(&orphan)
        || victim::tree(started.pid()).contains(&orphan)
    {
        std::thread::yield_now();
    }
    assert_eq!(settings_of(orphan).policy, libc::SCHED_BATCH as u32);
    machine.restore();
    assert_eq!(settings_of(orphan), before);
}

#[test]
fn restore_finds_adopted_orphans() {
    let dir = tempfile::tempdir().unwrap();
    Player::start("play", &format!("adopter {}", dir.path().display())).wait_for("passed");
}

#[test]
fn restore_after_a_kill_undoes_all() {
    let mut scene = Scene::new();
    let mut corebeat = scene.play("corebeat");
    corebeat.wait_for("done");
    scene.grow();
    assert!(scene.now().iter().all(is_changed));

    let live = restore_all(scene.dir.path()).unwrap();
    assert_eq!(
        (live.live, live.restored.undone.len()),
        (1, 0),
        "the journal of a running Corebeat is not used"
    );
    assert!(scene.now().iter().all(is_changed));

    corebeat.kill();
    let restored = scene.restore_all();
    assert!(restored.left.is_empty() && !restored.undone.is_empty(), "{restored:?}");
    assert!(scene.is_original(), "{:?}", scene.now());
    assert_eq!(scene.journals(), 0);
}

#[test]
fn restore_after_kills_of_two_corebeats_undoes_the_changes_of_each_on_top_of_the_other() {
    let (scene, second) = (Scene::new(), victim());
    let groups_before = [scene.pid(), second.pid()].map(|pid| settings_of(pid).group);
    let mut one = scene.play("corebeat");
    one.wait_for("done");
    let mut other = scene.play("corebeat");
    other.wait_for("done");
    // Neither order of the two journals is right for both programs.
    for corebeat in [&mut other, &mut one] {
        corebeat.send(&second.pid().to_string());
        corebeat.wait_for("done");
    }
    for (pid, before) in [scene.pid(), second.pid()].into_iter().zip(groups_before) {
        let now = settings_of(pid);
        assert!(now.nice == 10 || !is_root(), "{now:?}");
        if now.group == before {
            println!("skipped: no permission for control groups");
        } else {
            assert_eq!(victim::group_dir(pid).to_str().unwrap().matches("corebeat-").count(), 2);
        }
    }
    one.kill();
    other.kill();
    let listed = journals_of(scene.dir.path()).unwrap();
    assert!(listed.iter().all(|journal| journal.left.is_empty()), "{listed:?}");
    let restored = scene.restore_all();
    assert!(restored.left.is_empty(), "{restored:?}");
    assert!(scene.is_original(), "{:?} {restored:?}", scene.now());
    let second = all_settings(second.pid());
    assert!(second.iter().all(|settings| *settings == scene.before[0]), "{second:?}");
    assert_eq!(scene.journals(), 0);
}

#[test]
fn quota_whose_corebeat_ends_before_the_one_of_a_group_below_is_undone_by_the_latter() {
    let mut scene = Scene::new();
    if scene.apply_if_supported(&limit(Some(0.8))).is_none() {
        return println!("skipped: no permission for control groups");
    }
    let mut below = Actuator::new(scene.dir.path());
    assert!(below.apply(&limit(Some(0.5)), P, &scene.threads()).unwrap().has_changed());
    let restored = scene.actuator.restore();
    let [line] = &restored.left[..] else { panic!("{restored:?}") };
    assert!(line.contains("another Corebeat created; end that Corebeat"), "{line}");
    assert!(scene.actuator.keeps_changes() && !below.keeps_changes());
    assert_eq!((scene.restore_all().left, scene.journals()), (restored.left, 2));
    assert_eq!(below.restore().left, [""; 0]);
    assert!(scene.is_original() && !below.keeps_changes());
    assert_eq!(scene.journals(), 0);
}

/// Kills Corebeats that play a role, and undoes their changes. The moment of the kill varies from
/// run to run; the checked properties hold at any moment.
fn kill_at_any_moment(role: &str, grows_before: bool) {
    let mut scene = Scene::new();
    for round in 0..12u64 {
        let mut corebeat = scene.play(role);
        corebeat.wait_for("done");
        std::thread::sleep(std::time::Duration::from_micros(round * round * 600));
        if grows_before {
            scene.grow();
        }
        corebeat.kill();
        let restored = scene.restore_all();
        assert!(restored.left.is_empty(), "round {round}: {restored:?}");
        // A frozen victim would start no thread.
        scene.grow();
        assert!(scene.is_original(), "round {round}: {:?}\n{restored:?}", scene.now());
        assert_eq!(scene.journals(), 0);
    }
}

#[test]
fn restore_after_kills_at_any_moment_undoes_all() {
    kill_at_any_moment("busy", true);
}

#[test]
fn restore_after_kills_at_any_moment_leaves_no_program_frozen() {
    kill_at_any_moment("freezer", false);
}

#[test]
fn frozen_program_does_not_run_until_it_is_thawed() {
    let mut scene = Scene::new();
    for _ in 0..3 {
        let all = scene.threads();
        assert!(scene.apply(&freeze(true)).unwrap());
        assert!(!scene.apply(&freeze(true)).unwrap(), "the program is frozen already");
        scene.victim.send("more");
        // Starting a thread is fast: a missing thread was not started.
        (0..1_000).for_each(|_| std::thread::yield_now());
        assert_eq!(scene.threads().len(), all.len());
        assert!(scene.apply(&freeze(false)).unwrap());
        scene.victim.wait_for("born");
    }
    scene.apply(&freeze(true)).unwrap();
    assert_eq!(scene.actuator.restore().undone.len(), 1);
    scene.grow();
    assert!(scene.is_original());
    assert_eq!(scene.journals(), 0);
}

/// Prevents files from growing, as on a full disk, and permits growth again later.
fn full(dir: &str, pid: i32) {
    let limit = |rlim_cur| {
        let limit = libc::rlimit { rlim_cur, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: plain system calls on a struct that lives through them; an ignored signal runs no
        // handler.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
        }
    };
    let action = class(Class::Batch);
    let mut actuator = Actuator::new(dir);
    limit(0);
    actuator.apply(&action, P, &threads(pid)).unwrap_err();
    assert_eq!(journals(Path::new(dir)), 0, "an empty journal is of no use");
    // Enough space for the first lines, and for a part of the next.
    limit(700);
    let error = actuator.apply(&action, P, &threads(pid)).unwrap_err();
    assert!(error.to_string().contains("journal"), "{error}");
    print_line("refused");
    std::io::stdin().lines().next();
    limit(libc::RLIM_INFINITY);
    actuator.apply(&action, P, &threads(pid)).unwrap();
    print_line("done");
    std::thread::sleep(std::time::Duration::from_secs(600));
}

#[test]
fn journal_that_cannot_grow_prevents_the_change_and_stays_valid() {
    let scene = Scene::new();
    let mut corebeat = scene.play("full");
    corebeat.wait_for("refused");
    assert_eq!(scene.now(), scene.before);
    corebeat.send("go on");
    corebeat.wait_for("done");
    assert_ne!(scene.now(), scene.before);
    corebeat.kill();
    let restored = scene.restore_all();
    assert!(restored.left.is_empty() && !restored.undone.is_empty(), "{restored:?}");
    assert_eq!(scene.now(), scene.before);
}

#[test]
fn value_that_another_program_changed_is_left_alone() {
    let mut scene = Scene::new();
    let all = scene.threads();
    scene.apply(&class(Class::Batch)).unwrap();
    let zero = libc::sched_param { sched_priority: 0 };
    // SAFETY: a plain system call on a struct that lives through it.
    assert_eq!(unsafe { libc::sched_setscheduler(all[1].tid, libc::SCHED_IDLE, &zero) }, 0);
    let restored = scene.actuator.restore();
    assert_eq!(settings_of(all[1].tid).policy, libc::SCHED_IDLE as u32);
    assert_eq!(restored.left.len(), 1, "{restored:?}");
    assert!(
        restored.left[0].contains("class idle")
            && restored.left[0].contains(&all[1].tid.to_string())
    );
    assert_eq!(settings_of(all[2].tid).policy, 0);
}

#[test]
fn renice_to_an_earlier_own_value_is_left_alone() {
    if !is_root() {
        return;
    }
    let mut scene = Scene::new();
    let all = scene.threads();
    for nice in [3, 5] {
        scene.apply(&Action::SetNice { target: ALL, nice }).unwrap();
    }
    // SAFETY: a plain system call.
    assert_eq!(unsafe { libc::setpriority(libc::PRIO_PROCESS, all[1].tid as u32, 3) }, 0);
    let restored = scene.actuator.restore();
    let nices: Vec<i32> = scene.now().iter().map(|s| s.nice).collect();
    assert_eq!(nices, [0, 3, 0, 0, 0]);
    assert!(restored.left.len() == 1 && restored.left[0].contains("keeps nice 3"), "{restored:?}");
}

#[test]
fn thread_that_has_ended_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    let victim = victim();
    let all = threads(victim.pid());
    victim.kill();
    let mut actuator = Actuator::new(dir.path());
    apply_all(&mut actuator, &all);
    assert_eq!(journals(dir.path()), 0, "without a change there is no journal");
}

#[test]
fn action_on_a_reused_number_changes_nothing() {
    let mut scene = Scene::new();
    let another = |t: ThreadId| ThreadId { start_ticks: t.start_ticks - 1, ..t };
    let recycled: Vec<_> = scene.threads().into_iter().map(another).collect();
    apply_all(&mut scene.actuator, &recycled);
    assert_eq!(scene.now(), scene.before);
}

#[test]
fn invalid_actions_are_errors_and_change_nothing() {
    let mut scene = Scene::new();
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
        let error = scene.apply(&action).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument(_)), "{action:?}: {error:?}");
    }
    assert_eq!(scene.now(), scene.before);
}

#[test]
fn pages_move_to_the_requested_nodes() {
    let mut scene = Scene::new();
    let online =
        std::fs::read_to_string("/sys/devices/system/node/online").unwrap_or_else(|_| "0".into());
    let nodes: CpuSet = online.parse().unwrap();
    let nodes: Vec<NodeId> = nodes.iter().map(|n| NodeId(n.0)).collect();
    let (to, from) = nodes.split_last().unwrap();
    let from = if from.is_empty() { vec![*to] } else { from.to_vec() };
    let action = Action::MovePages { program: P, from: from.clone(), to: vec![*to] };
    match scene.apply_if_supported(&action) {
        None => return, // a kernel without NUMA
        changed => assert_eq!(changed, Some(true)),
    }
    // Shared pages stay; the heap is private.
    let maps = std::fs::read_to_string(format!("/proc/{}/numa_maps", scene.pid())).unwrap();
    let heap = maps.lines().find(|l| l.contains(" heap ")).unwrap();
    assert!(heap.contains(&format!(" N{}=", to.0)), "{heap}");
    assert!(from.iter().all(|n| n == to || !heap.contains(&format!(" N{}=", n.0))), "{heap}");
}

#[test]
fn pages_are_spread_over_all_nodes() {
    let mut scene = Scene::new();
    let text = std::fs::read_to_string("/sys/devices/system/node/has_memory")
        .unwrap_or_else(|_| "0".into());
    let nodes: CpuSet = text.parse().unwrap();
    let action = |spread| Action::SpreadPages { program: P, spread };
    assert_eq!(
        scene.apply(&action(true)).unwrap(),
        nodes.len() > 1,
        "with one node nothing changes"
    );
    assert!(!scene.apply(&action(false)).unwrap());
}

#[test]
fn original_cpus_are_restored_for_a_thread() {
    let mut scene = Scene::new();
    let all = scene.threads();
    let cpus = |cpus| Action::SetCpus { target: Target::Thread(all[0]), cpus };
    // Where only one CPU may be used, the actions change nothing.
    let changes = scene.before[0].cpus != one_cpu();
    assert_eq!(scene.apply(&cpus(Some(one_cpu()))).unwrap(), changes);
    assert_eq!(scene.now() != scene.before, changes);
    assert_eq!(scene.apply(&cpus(None)).unwrap(), changes);
    assert_eq!(scene.now(), scene.before);
}

/// Checks permitted and denied actions as an unprivileged user.
fn unprivileged(_: &Path) {
    let mut scene = Scene::new();
    let missing = |error: Error| assert!(error.to_string().contains("CAP_SYS_NICE"), "{error:?}");
    missing(scene.apply(&Action::SetNice { target: ALL, nice: -5 }).unwrap_err());
    // Permitted by the kernel, but not reversible.
    missing(scene.apply(&Action::SetNice { target: ALL, nice: 5 }).unwrap_err());
    missing(scene.apply(&class(Class::Idle)).unwrap_err());
    for action in [Action::SetWeight { program: P, weight: 50 }, limit(Some(0.5))] {
        scene.apply_if_supported(&action);
    }
    let of_another_user = [identity(1)];
    let denied = scene.actuator.apply(&class(Class::Batch), P, &of_another_user).unwrap_err();
    assert!(matches!(denied, Error::Denied { .. }), "{denied:?}");
    assert_eq!(scene.now(), scene.before);
    scene.apply(&class(Class::Batch)).unwrap();
    scene.apply(&Action::SetCpus { target: ALL, cpus: Some(one_cpu()) }).unwrap();
    assert_ne!(scene.now(), scene.before);
    assert!(scene.actuator.restore().left.is_empty());
    assert_eq!(scene.now(), scene.before);
}

/// Runs a role without privileges to its end.
fn play_unprivileged(role: &str) {
    play_unprivileged_in(role, |exe| {
        let mut command = Command::new(exe);
        command.uid(NOBODY).gid(NOBODY);
        command
    });
}

/// Same as [`play_unprivileged`], with a function that returns the command for an executable.
fn play_unprivileged_in(role: &str, command: impl FnOnce(&Path) -> Command) {
    let dir = tempfile::tempdir().unwrap();
    let role = format!("{role} {}", dir.path().display());
    if !is_root() {
        drop(Player::start("play", &role).wait_for("passed"));
        return;
    }
    // The executable may be in a folder that only root can read: run a copy. Another process makes
    // the copy: a writable descriptor of this process would be inherited by forks of other tests,
    // and a file that is open for writing cannot be executed.
    let exe = dir.path().join("exe");
    let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&exe).status();
    assert!(copied.unwrap().success());
    std::os::unix::fs::chown(dir.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    Player::start_with(command(&exe), "play", &role).wait_for("passed");
}

#[test]
fn entry_of_a_hidden_thread_is_reported_and_kept() {
    let hide = "mount -t proc -o hidepid=2 proc /proc";
    let unshare = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", script]);
        command
    };
    if !unshare(hide).output().is_ok_and(|o| is_root() && o.status.success()) {
        return println!("skipped: mounting /proc is not permitted");
    }
    let nobody = format!("setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups");
    play_unprivileged_in("hidden", |exe| {
        let mut command = unshare(&format!("{hide} && exec {nobody} \"$0\" \"$@\""));
        command.arg(exe);
        command
    });
}

#[test]
fn irreversible_actions_are_denied_without_privileges() {
    play_unprivileged("poor");
}

/// Starts a program of several processes, some of which fork repeatedly. Returns the number of one
/// that its user has stopped.
fn forking() -> (Player, i32) {
    let forks = "while :; do sleep 0 & wait; done &";
    let script = format!(
        "sleep 600 & first=$!; kill -STOP $first; {forks} ({forks} wait) & \
         echo @stopped $first; wait"
    );
    let mut sh = Player::start_shell(&script);
    let stopped = sh.wait_for("stopped").parse().unwrap();
    while victim::state(stopped) != 'T' {
        std::thread::yield_now();
    }
    (sh, stopped)
}

/// Stops the first process of a program, as its user.
fn stop_by_user(sh: &Player) {
    // SAFETY: a plain system call on a child of this process that is not reaped.
    unsafe { libc::kill(sh.pid(), libc::SIGSTOP) };
    while victim::state(sh.pid()) != 'T' {
        std::thread::yield_now();
    }
}

/// Returns the processes of a program that are runnable.
fn running(sh: &Player) -> Vec<i32> {
    victim::tree(sh.pid())
        .into_iter()
        .filter(|&pid| !['T', 'Z', 'X'].contains(&victim::state(pid)))
        .collect()
}

/// Stops and continues a program that cannot have control groups.
fn turns(dir: &Path) {
    let (sh, stopped) = forking();
    let state = dir.join("state");
    let mut actuator = Actuator::new(&state);
    let stop = |actuator: &mut Actuator| {
        let effect = actuator.apply(&freeze(true), P, &threads(sh.pid())).unwrap();
        // A process that was asleep in the kernel, or had no free CPU, stops a little later.
        while !running(&sh).is_empty() {
            actuator.inherit(P, &threads(sh.pid())).unwrap();
        }
        effect.has_changed()
    };
    for round in 0..10 {
        assert!(
            actuator.apply(&freeze(true), P, &threads(sh.pid())).unwrap().has_changed(),
            "round {round}"
        );
        if settings_of(sh.pid()).group.contains("/corebeat-") {
            return; // this user can freeze programs
        }
        stop(&mut actuator);
        assert!(!stop(&mut actuator), "all processes are stopped already");
        assert!(actuator.apply(&freeze(false), P, &[]).unwrap().has_changed());
        assert!(running(&sh).len() >= 3 && victim::state(stopped) == 'T');
    }
    // A process that its user stops in between stays stopped, too.
    stop_by_user(&sh);
    stop(&mut actuator);
    let restored = actuator.restore();
    assert!(restored.undone.len() >= 2 && restored.left.is_empty(), "{restored:?}");
    assert!(running(&sh).len() >= 2);
    assert_eq!([sh.pid(), stopped].map(victim::state), ['T', 'T']);
    assert_eq!(journals(&state), 0);
}

#[test]
fn without_groups_a_program_is_stopped_with_all_its_descendants_and_continued() {
    play_unprivileged("turns");
}

/// Kills Corebeats that stop and continue a program repeatedly.
fn killed(dir: &Path) {
    let (sh, stopped) = forking();
    let state = dir.join("state");
    for round in 0..12u64 {
        let mut corebeat =
            Player::start("play", &format!("freezer {} {}", state.display(), sh.pid()));
        corebeat.wait_for("done");
        // As above: the moment of the kill varies from run to run.
        std::thread::sleep(std::time::Duration::from_micros(round * round * 500));
        corebeat.kill();
        let restored = restore_all(&state).unwrap().restored;
        assert!(restored.left.is_empty(), "round {round}: {restored:?}");
        let tree = victim::tree(sh.pid());
        let still: Vec<_> = tree.into_iter().filter(|&pid| victim::state(pid) == 'T').collect();
        assert_eq!(still, [stopped], "round {round}: {restored:?}");
    }
    // A process that its user stops before Corebeat is killed stays stopped.
    let mut corebeat = Player::start("play", &format!("thawed {} {}", state.display(), sh.pid()));
    corebeat.wait_for("done");
    stop_by_user(&sh);
    corebeat.kill();
    restore_all(&state).unwrap();
    assert_eq!([sh.pid(), stopped].map(victim::state), ['T', 'T']);
}

#[test]
fn restore_after_kills_at_any_moment_leaves_no_process_stopped() {
    play_unprivileged("killed");
}

#[test]
fn weight_on_read_only_groups_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new("unshare");
    let mounts = "for m in $(awk '/ - cgroup2? /{print $5}' /proc/self/mountinfo); do \
                  mount -o remount,ro,bind $m; done";
    command.args(["-m", "sh", "-c", &format!("{mounts}; exec \"$0\" \"$@\"")]);
    if !command.output().is_ok_and(|o| is_root() && o.stderr.is_empty()) {
        return; // requires root and util-linux
    }
    command.arg(std::env::current_exe().unwrap());
    let error = Player::start_with(command, "play", &format!("read-only {}", dir.path().display()))
        .wait_for("error");
    assert!(error.contains("read-only"), "{error}");
}

#[test]
fn threads_of_class_idle_keep_their_class() {
    let mut scene = Scene::new();
    for thread in scene.threads() {
        let priority = libc::sched_param { sched_priority: 0 };
        // SAFETY: the call reads a struct that lives through it.
        let set = unsafe { libc::sched_setscheduler(thread.tid, libc::SCHED_IDLE, &priority) };
        assert_eq!(set, 0);
    }
    let before = scene.now();
    let slice = Action::SetSlice { target: ALL, slice_us: Some(20_000) };
    for action in [class(Class::Batch), class(Class::Normal), slice] {
        assert_ne!(scene.apply_if_supported(&action), Some(true), "{action:?}");
        assert_eq!(scene.now(), before, "{action:?}");
    }
    assert!(scene.actuator.restore().left.is_empty());
}

#[test]
fn groups_below_are_removed_when_they_are_empty() {
    let mut scene = Scene::new();
    if scene.apply_if_supported(&limit(Some(0.5))).is_none() {
        return;
    }
    let below = victim::group_dir(scene.pid()).join("below");
    std::fs::create_dir_all(below.join("empty")).unwrap();
    let mut sleeper = Player::start_shell("echo @ready; read line");
    sleeper.wait_for("ready");
    // A group of version 2 in a threaded one takes processes once it is threaded, too.
    for (file, text) in
        [("cgroup.type", "threaded".to_owned()), ("cgroup.procs", sleeper.pid().to_string())]
    {
        if below.join(file).exists() {
            std::fs::write(below.join(file), text).unwrap();
        }
    }
    let [line] = &scene.actuator.restore().left[..] else { panic!("the group is not reported") };
    for part in
        [below.to_str().unwrap(), &format!("process {} (", sleeper.pid()), "end the process"]
    {
        assert!(line.contains(part), "'{part}' is not in {line}");
    }
    assert_eq!(scene.now(), scene.before);
    assert_eq!(scene.restore_all().left, std::slice::from_ref(line), "until the process ends");
    sleeper.end();
    assert_eq!(scene.restore_all().left, [""; 0]);
    assert!(!below.parent().unwrap().exists() && scene.journals() == 0);
}

#[test]
fn weight_and_freezer_of_one_program_share_a_group_in_either_order() {
    let set_weight = Action::SetWeight { program: P, weight: 50 };
    for actions in [[set_weight.clone(), freeze(true)], [freeze(true), set_weight]] {
        let mut scene = Scene::new();
        if actions.iter().any(|action| scene.apply_if_supported(action).is_none()) {
            return;
        }
        for hierarchy in settings_of(scene.pid()).group.lines() {
            assert!(hierarchy.matches("/corebeat-").count() <= 1, "{actions:?}: {hierarchy}");
        }
        assert!(["50", "512"].contains(&&*victim::weight(scene.pid())));
        assert_eq!(scene.actuator.restore().left, [""; 0]);
        assert_eq!(scene.now(), scene.before);
    }
}

/// Checks that nothing is observed, changed or undone with the `/proc` of another PID namespace.
fn foreign(dir: &Path) {
    let refused = |error: Error| assert!(error.to_string().contains("PID namespace"), "{error}");
    refused(LinuxMachine::new(Options::default()).err().unwrap());
    refused(restore_all(dir).unwrap_err());
    let fact = facts().into_iter().find(|fact| fact.name == "process numbers").unwrap();
    assert_eq!(fact.offer, Offer::No);
}

#[test]
fn proc_of_another_pid_namespace_is_refused() {
    let mut command = Command::new("unshare");
    command.args(["-p", "-f", "--kill-child"]);
    let mut probe = Command::new("unshare");
    if !probe.args(["-p", "-f", "true"]).status().is_ok_and(|status| status.success()) {
        return println!("skipped: no permission for a PID namespace");
    }
    let dir = tempfile::tempdir().unwrap();
    command.arg(std::env::current_exe().unwrap());
    Player::start_with(command, "play", &format!("foreign {}", dir.path().display()))
        .wait_for("passed");
}
