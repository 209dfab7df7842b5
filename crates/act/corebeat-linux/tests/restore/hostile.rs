//! Invalid and hostile journals: one clear line each, and no change.

use crate::victim as eyes;
use crate::victim::{Player, all_settings, threads};
use corebeat_linux::{Error, RestoredJournals, journals, restorable, restore_all};
use corebeat_machine::ThreadId;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns a line of a journal.
fn line(json: &str) -> String {
    format!("[\"{:08x}\",{json}]\n", crc32fast::hash(json.as_bytes()))
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap().trim().to_owned()
}

fn start(boot: &str) -> String {
    start_in(boot, fs::read_link("/proc/self/ns/pid").unwrap().to_str().unwrap())
}

fn start_in(boot: &str, pid_namespace: &str) -> String {
    line(&format!(
        r#"{{"start":{{"version":1,"host":"{}","boot":"{boot}","pid_namespace":"{pid_namespace}"}}}}"#,
        read("/proc/sys/kernel/hostname"),
    ))
}

fn boot() -> String {
    read("/proc/sys/kernel/random/boot_id")
}

fn here() -> String {
    start(&boot())
}

/// Returns a line according to which the class of this thread changed.
fn changed(thread: ThreadId, old: i32, new: i32) -> String {
    let ThreadId { tid, start_ticks } = thread;
    line(&format!(
        r#"{{"set":{{"tid":{tid},"start":{start_ticks},"pid":{tid},{}}}}}"#,
        format_args!(
            r#""pid_start":{start_ticks},"at":9000000000,"old":{{"policy":{old}}},"new":{{"policy":{new}}}"#
        )
    ))
}

fn done() -> String {
    line(r#""done""#)
}

/// Returns a journal according to which the class of this thread changed from batch to normal.
fn was_batch(thread: ThreadId) -> String {
    here() + &changed(thread, libc::SCHED_BATCH, 0) + &done()
}

/// Undoes the changes of killed Corebeats. A dry run must report the same before.
pub(crate) fn restore(dir: &Path) -> RestoredJournals {
    // Threads without an entry are found in any order.
    let sorted = |mut all: RestoredJournals| {
        all.restored.undone.sort();
        all.restored.left.sort();
        all
    };
    let expected = sorted(restorable(dir).unwrap());
    let restored = restore_all(dir).unwrap();
    assert_eq!(expected, sorted(restored.clone()), "the dry run differs from the run");
    restored
}

/// Checks, in a mount namespace whose `/proc` hides processes of other users, that an entry that
/// cannot be verified is reported and kept.
pub(crate) fn hidden(dir: &Path) {
    let path = dir.join("a.journal");
    fs::write(&path, was_batch(ThreadId { tid: 1, start_ticks: 1 })).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    for _ in 0..2 {
        let restored = restore(dir).restored;
        let [left] = &restored.left[..] else { panic!("{restored:?}") };
        assert!(left.contains("thread 1: cannot restore") && left.contains("hides"), "{left}");
        assert!(path.exists());
    }
}

struct Scene {
    dir: tempfile::TempDir,
    victim: Player,
    thread: ThreadId,
}

impl Scene {
    fn new() -> Scene {
        let dir = tempfile::tempdir().unwrap();
        let mut victim = Player::start("play", "victim 2");
        victim.wait_for("ready");
        let thread = eyes::identity(victim.pid());
        Scene { dir, victim, thread }
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        path
    }

    /// Restores, and expects one line about a team channel with this reason.
    fn expect_unused_file(&self, file: &Path, why: &str) {
        let RestoredJournals { restored, kept, .. } = restore(self.dir.path());
        let [line] = &restored.left[..] else { panic!("{why}: {restored:?}") };
        assert!(line.contains(why) && line.contains(file.to_str().unwrap()), "{why}: {line}");
        assert_eq!((restored.undone.len(), kept), (0, 1), "{why}");
    }

    /// Restores, and expects one line with this reason and no change.
    fn expect_unused(&self, path: &Path, why: &str) {
        let before = all_settings(self.victim.pid());
        let RestoredJournals { restored, kept, .. } = restore(self.dir.path());
        assert!(restored.undone.is_empty() && kept == 1, "{why}: {restored:?}");
        let [line] = &restored.left[..] else { panic!("{why}: {restored:?}") };
        assert!(line.contains(why) && line.contains(path.to_str().unwrap()), "{why}: {line}");
        assert_eq!(all_settings(self.victim.pid()), before);
        assert!(path.symlink_metadata().is_ok(), "{why}: the journal is kept for inspection");
        fs::remove_file(path).unwrap();
    }
}

#[test]
fn journal_written_by_hand_is_followed() {
    // Proves that the other journals are refused for the given reasons.
    let scene = Scene::new();
    scene.write("a.journal", was_batch(scene.thread));
    let restored = restore(scene.dir.path()).restored;
    assert_eq!(restored.undone.len(), 1, "{restored:?}");
    assert_eq!(eyes::settings_of(scene.thread.tid).policy, libc::SCHED_BATCH as u32);
    assert!(!scene.dir.path().join("a.journal").exists());
}

#[test]
fn journal_with_a_reused_number_changes_nothing() {
    let scene = Scene::new();
    let before = all_settings(scene.victim.pid());
    let start_ticks = scene.thread.start_ticks + 1;
    scene.write("a.journal", was_batch(ThreadId { start_ticks, ..scene.thread }));
    assert_eq!(restore(scene.dir.path()), Default::default());
    assert_eq!(all_settings(scene.victim.pid()), before);
    assert_eq!(threads(scene.victim.pid())[0], scene.thread);
}

#[test]
fn incomplete_rewritten_journal_is_removed_and_the_complete_one_used() {
    let scene = Scene::new();
    scene.write("a.journal", was_batch(scene.thread));
    scene.write("a.journal.new", here());
    assert_eq!(restore(scene.dir.path()).restored.undone.len(), 1);
    assert_eq!(fs::read_dir(scene.dir.path()).unwrap().count(), 0);
}

#[test]
fn journal_from_before_a_reboot_is_void() {
    let scene = Scene::new();
    let text = was_batch(scene.thread).replace(&here(), &start("another-boot"));
    let path = scene.write("a.journal", text);
    assert_eq!(restore(scene.dir.path()), Default::default());
    assert!(!path.exists());
    assert_eq!(eyes::settings_of(scene.thread.tid).policy, 0);
}

#[test]
fn journal_of_another_pid_namespace_is_kept_and_the_others_are_used() {
    let scene = Scene::new();
    let elsewhere = was_batch(scene.thread).replace(&here(), &start_in(&boot(), "pid:[1]"));
    let foreign = scene.write("a.journal", &elsewhere);
    scene.write("b.journal", was_batch(scene.thread));
    for undone in [1, 0] {
        let RestoredJournals { restored, kept, .. } = restore(scene.dir.path());
        assert_eq!((restored.undone.len(), kept), (undone, 1), "{restored:?}");
        let [line] = &restored.left[..] else { panic!("{restored:?}") };
        assert!(line.contains("another PID namespace") && line.contains("there"), "{line}");
        assert_eq!(eyes::settings_of(scene.thread.tid).policy, libc::SCHED_BATCH as u32);
    }
    assert_eq!(fs::read_to_string(&foreign).unwrap(), elsewhere);

    // While its Corebeat runs, its numbers are not listed as threads of this namespace either.
    let owner = fs::File::open(&foreign).unwrap();
    rustix::fs::flock(&owner, rustix::fs::FlockOperation::LockExclusive).unwrap();
    assert_eq!(restore(scene.dir.path()), RestoredJournals { live: 1, ..Default::default() });
    let [listed] = &journals(scene.dir.path()).unwrap()[..] else { panic!("one journal") };
    assert!(listed.is_live && listed.changes.is_empty() && listed.left.is_empty(), "{listed:?}");
    assert!(listed.problem.as_ref().unwrap().contains("another PID namespace"), "{listed:?}");
}

#[test]
fn journal_of_another_time_namespace_is_kept() {
    let Ok(own) = fs::read_link("/proc/self/ns/time") else {
        return println!("skipped: this kernel has no time namespaces");
    };
    let scene = Scene::new();
    let in_namespace = |name: &str| {
        let body = here()[12..].trim_end().strip_suffix("}}]").unwrap().to_owned();
        let first = line(&format!(r#"{body},"time_namespace":"{name}"}}}}"#));
        was_batch(scene.thread).replace(&here(), &first)
    };
    let foreign = scene.write("a.journal", in_namespace("time:[1]"));
    scene.expect_unused(&foreign, "another time namespace, time:[1]");
    scene.write("a.journal", in_namespace(own.to_str().unwrap()));
    assert_eq!(restore(scene.dir.path()).restored.undone.len(), 1);
}

#[test]
fn changes_made_in_another_time_namespace_are_not_taken_for_undone() {
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["-T", "--boottime", "100000", "--fork", "--kill-child"]);
        command
    };
    if !unshare().arg("true").output().is_ok_and(|output| output.status.success()) {
        return println!("skipped: no permission for a time namespace");
    }
    if !crate::has_slices() {
        return;
    }
    let scene = Scene::new();
    let mut command = unshare();
    command.arg(std::env::current_exe().unwrap());
    // Without a control group, which would stay.
    let role = format!("slice {} {}", scene.dir.path().display(), scene.victim.pid());
    let mut corebeat = Player::start_with(command, "play", &role);
    corebeat.wait_for("done");
    let changed = all_settings(scene.victim.pid());
    corebeat.kill();
    // The process that is waited for is its parent.
    while restorable(scene.dir.path()).unwrap().live > 0 {
        std::thread::yield_now();
    }
    let RestoredJournals { restored, kept, .. } = restore(scene.dir.path());
    let [left] = &restored.left[..] else { panic!("{restored:?}") };
    assert!(left.contains("another time namespace") && kept == 1, "{restored:?}");
    assert_eq!(all_settings(scene.victim.pid()), changed);
    assert_eq!(fs::read_dir(scene.dir.path()).unwrap().count(), 1);
}

#[test]
fn journal_that_is_damaged_is_not_used() {
    let scene = Scene::new();
    let good = was_batch(scene.thread);
    let mut flipped = good.clone().into_bytes();
    let at = good.find("policy\":3").unwrap() + 8;
    flipped[at] ^= 1; // class 3 becomes 2
    scene.expect_unused(&scene.write("a.journal", flipped), "without line 2, which is damaged");
    let headless: String = good.lines().skip(1).map(|l| format!("{l}\n")).collect();
    scene.expect_unused(&scene.write("b.journal", headless), "line 1 is damaged");
    let two = here() + &done() + &good.replace(&here(), &start("another-boot"));
    scene
        .expect_unused(&scene.write("c.journal", two), "3 damaged lines, the first of them line 3");
    // A correct checksum with invalid content: a real-time class, and values of two kinds.
    for wrong in [("{\"policy\":3}", "{\"policy\":1}"), ("{\"policy\":3}", "{\"nice\":3}")] {
        let body = good.lines().nth(1).unwrap().replace(wrong.0, wrong.1);
        let text = here() + &line(&body[12..body.len() - 1]);
        scene.expect_unused(&scene.write("d.journal", text), "line 2, which is damaged");
    }
}

#[test]
fn journal_with_a_damaged_line_is_used_without_the_line_and_kept() {
    let scene = Scene::new();
    let [first, second, ..] = threads(scene.victim.pid())[..] else { panic!("one thread") };
    let was_batch = |thread| changed(thread, libc::SCHED_BATCH, 0);
    let damaged = was_batch(second).replace("policy", "polizei");
    for text in [
        here() + &was_batch(first) + &damaged + &done(),
        here() + &damaged + &was_batch(first) + &done(),
    ] {
        let path = scene.write("a.journal", text);
        let RestoredJournals { restored, kept, .. } = restore(scene.dir.path());
        assert_eq!((restored.undone.len(), kept), (1, 1), "{restored:?}");
        let [line] = &restored.left[..] else { panic!("{restored:?}") };
        assert!(line.contains("which is damaged") && line.contains("inspect"), "{line}");
        let class = |thread: ThreadId| eyes::settings_of(thread.tid).policy as i32;
        assert_eq!((class(first), class(second)), (libc::SCHED_BATCH, 0));
        assert!(restore(scene.dir.path()).restored.undone.is_empty(), "a second restore");
        fs::remove_file(path).unwrap();
        let normal = libc::sched_param { sched_priority: 0 };
        // SAFETY: a plain system call on a struct that lives through it.
        assert_eq!(unsafe { libc::sched_setscheduler(first.tid, 0, &normal) }, 0);
    }
}

#[test]
fn value_that_a_cut_or_damaged_journal_lacks_is_not_attributed_to_another_program() {
    let scene = Scene::new();
    // The journal lacks the change from idle to the present class.
    let change = changed(scene.thread, libc::SCHED_BATCH, libc::SCHED_IDLE);
    let next = changed(scene.thread, libc::SCHED_IDLE, 0);
    let before = all_settings(scene.victim.pid());
    for (text, why) in [
        (here() + &change, "incomplete"),
        (here() + &change + &done() + &next[..40], "incomplete"),
        (here() + &change + &done() + &next.replace("policy", "nice"), "incomplete"),
        (here() + &change + &done(), "another program"),
    ] {
        let path = scene.write("a.journal", text);
        let RestoredJournals { restored, kept, .. } = restore(scene.dir.path());
        assert!(restored.undone.is_empty() && restored.left[0].contains(why), "{restored:?}");
        assert_eq!(kept, usize::from(why == "incomplete"));
        assert_eq!((all_settings(scene.victim.pid()), path.exists()), (before.clone(), kept > 0));
    }
}

#[test]
fn value_that_another_journal_restores_is_not_reported() {
    let (batch, idle) = (libc::SCHED_BATCH, libc::SCHED_IDLE);
    for [first, second] in [["a.journal", "b.journal"], ["b.journal", "a.journal"]] {
        let scene = Scene::new();
        let set = |old, new| changed(scene.thread, old, new) + &done();
        scene.write(first, here() + &set(batch, idle) + &set(idle, batch));
        scene.write(second, here() + &set(batch, 0));
        let RestoredJournals { restored, kept, .. } = restore(scene.dir.path());
        assert_eq!((restored.undone.len(), restored.left.len(), kept), (1, 0, 0), "{restored:?}");
        assert_eq!(eyes::settings_of(scene.thread.tid).policy, batch as u32);
    }
}

#[test]
fn journal_with_a_file_that_is_no_team_channel_removes_nothing() {
    let scene = Scene::new();
    let file = scene.dir.path().join("corebeat-team-1");
    let channel = format!(r#"{{"team":{{"path":"{}"}}}}"#, file.display());
    let path = scene.write("a.journal", here() + &line(&channel));
    fs::write(&file, "kept").unwrap();
    scene.expect_unused_file(&file, "not the file of a team channel");
    fs::rename(&file, scene.dir.path().join("other")).unwrap();
    symlink(scene.dir.path().join("other"), &file).unwrap();
    scene.expect_unused_file(&file, "symbolic link");
    assert_eq!(fs::read(scene.dir.path().join("other")).unwrap(), b"kept");
    let unnamed = channel.replace("corebeat-team-1", "other");
    scene.expect_unused(&scene.write("a.journal", here() + &line(&unnamed)), "line 2");
    assert!(!path.exists() && scene.dir.path().join("other").exists());
}

#[test]
fn truncated_journal_is_used_up_to_the_last_complete_line() {
    let scene = Scene::new();
    let good = was_batch(scene.thread);
    let second = good.find('\n').unwrap() + 1;
    scene.write("a.journal", &good[..second + 40]);
    assert_eq!(restore(scene.dir.path()), Default::default());
    assert_eq!(
        eyes::settings_of(scene.thread.tid).policy,
        0,
        "the change of an incomplete line was never made"
    );
    scene.write("b.journal", &good[..good.len() - 4]);
    assert_eq!(restore(scene.dir.path()).restored.undone.len(), 1);
}

#[test]
fn journal_that_other_users_may_have_written_is_not_used() {
    let scene = Scene::new();
    let path = scene.write("a.journal", was_batch(scene.thread));
    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    scene.expect_unused(&path, "mode");

    let real = scene.write("real", was_batch(scene.thread));
    let link = scene.dir.path().join("b.journal");
    symlink(&real, &link).unwrap();
    scene.expect_unused(&link, "symbolic link");
    fs::hard_link(&real, &link).unwrap();
    scene.expect_unused(&link, "second name");

    if rustix::process::geteuid().is_root() {
        let path = scene.write("c.journal", was_batch(scene.thread));
        std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
        scene.expect_unused(&path, "belongs to user 65534");
    }
}

#[test]
fn huge_or_irregular_journal_is_not_used() {
    let scene = Scene::new();
    let path = scene.write("a.journal", was_batch(scene.thread));
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
    scene.expect_unused(&path, "MiB");
    let path = scene.dir.path().join("b.journal");
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .unwrap();
    scene.expect_unused(&path, "plain file");
}

#[test]
fn journal_with_an_unrelated_group_removes_nothing() {
    let scene = Scene::new();
    let dir = scene.dir.path().join("corebeat-x");
    fs::create_dir(&dir).unwrap();
    let group = format!(r#"{{"group":{{"path":"{}"}}}}"#, dir.display());
    scene.write("a.journal", here() + &line(&group));
    let restored = restore(scene.dir.path()).restored;
    assert!(
        restored.left.len() == 1 && restored.left[0].contains("not a control group"),
        "{restored:?}"
    );
    assert!(dir.exists());
}

#[test]
fn state_folder_of_another_user_is_refused() {
    let scene = Scene::new();
    scene.write("a.journal", was_batch(scene.thread));
    fs::set_permissions(scene.dir.path(), Permissions::from_mode(0o777)).unwrap();
    let error = restore_all(scene.dir.path()).unwrap_err();
    assert!(matches!(error, Error::Refused { .. }) && error.to_string().contains("700"), "{error}");
    assert_eq!(eyes::settings_of(scene.thread.tid).policy, 0);
    assert_eq!(restore(&scene.dir.path().join("none")), Default::default());
}
