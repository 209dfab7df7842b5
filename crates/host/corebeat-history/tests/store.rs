//! The file of the history: its age, its bound, and what damages it.

use corebeat_history::{
    AGE_MS_MAX, Clock, Error, FILE, FILE_BYTES_MAX, Folder, Frame, Group, Program, Recorded, Store,
    Usage, read,
};
use corebeat_machine::TimeShares;
use corebeat_test_group::TestGroup;
use corebeat_web::{Decision, Past, Range};
use rustix::fs::{CWD, FileType, FlockOperation, Mode, flock, mknodat};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

const SECOND: u64 = 1000;
const HOUR: u64 = 3600 * SECOND;
/// Wall clock at the first frame.
const START: u64 = 1_800_000_000_000;

fn program(name: &str, user: f64) -> Program {
    let shares = TimeShares { user: Some(user), sleep: Some(1.0 - user), ..TimeShares::ZERO };
    let (pid, name, policy) = (Some(7), name.into(), "auto".into());
    let (span_ms, thread_ms, threads) = (SECOND, 2 * SECOND, 2);
    let usage = Usage { span_ms, thread_ms, threads, shares, ..Usage::default() };
    Program { pid, name, policy, usage, ..Program::default() }
}

/// A frame of one second, this long after the boot.
fn frame(boot_ms: u64, user: f64) -> Frame {
    Frame {
        clock: Clock { boot: 1, boot_ms, unix_ms: START + boot_ms },
        span_ms: SECOND,
        begins: boot_ms == 0,
        programs: vec![program("p", user)],
        ..Frame::default()
    }
}

/// Opens the history. Returns the reported lines as well.
fn opened(dir: &Path) -> (Result<Store, Error>, Vec<String>) {
    let mut lines = vec![];
    (Store::open(dir, &mut |line| lines.push(line)), lines)
}

fn open(dir: &Path) -> Store {
    let (store, lines) = opened(dir);
    assert_eq!(lines, Vec::<String>::new());
    store.unwrap()
}

fn append(store: &mut Store, frames: &[Frame]) -> Result<Vec<String>, Error> {
    let mut lines = vec![];
    store.append(frames, &mut |line| lines.push(line)).map(|()| lines)
}

fn all(dir: &Path) -> Vec<(u64, Frame)> {
    read(dir, 0, u64::MAX).unwrap().frames
}

#[test]
fn frames_age_to_longer_spans_and_keep_their_sums() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path());
    let seconds = 3 * 3600;
    for first in (0..seconds).step_by(600) {
        let frames: Vec<Frame> =
            (first..first + 600).map(|s| frame(s * SECOND, (s % 2) as f64)).collect();
        assert_eq!(append(&mut store, &frames).unwrap(), Vec::<String>::new());
    }
    let frames = all(dir.path());
    let now = frames.last().unwrap().0;
    assert_eq!(now, START + (seconds - 1) * SECOND);
    for (at, frame) in &frames[1..] {
        let age = now - at;
        let span_of = |age: u64| match age {
            ..600_000 => SECOND,
            600_000..7_200_000 => 10 * SECOND,
            7_200_000.. => 60 * SECOND,
        };
        // A span ages as a whole, and the one of the start is shorter.
        let (shortest, longest) = (span_of(age.saturating_sub(60 * SECOND)), span_of(age));
        assert!(frame.span_ms <= longest, "{age} {}", frame.span_ms);
        assert!(frame.span_ms >= shortest || *at < START + 60 * SECOND, "{age} {}", frame.span_ms);
        let user = frame.programs[0].usage.shares.user.unwrap();
        assert!(frame.span_ms == SECOND || (user - 0.5).abs() < 0.1, "{user}");
    }
    assert_eq!(frames.iter().map(|(_, f)| f.span_ms).sum::<u64>(), seconds * SECOND);
    let thread_ms: u64 = frames.iter().map(|(_, f)| f.programs[0].usage.thread_ms).sum();
    assert_eq!(thread_ms, 2 * seconds * SECOND);
    assert!(frames.len() < 600 + 670 + 70, "{}", frames.len());
}

#[test]
fn page_for_all_users_has_no_private_group() {
    let dir = tempfile::tempdir().unwrap();
    let folder = Folder(dir.path().into());
    let empty = folder.content(Range::Hour, true).unwrap();
    assert!(empty.programs.is_empty() && empty.notes[0].starts_with("nothing is recorded from"));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    let group = |group| Group { group, is_public: group == 1, pids: vec![7], ..Group::default() };
    // Two hours ago, and now.
    let frames = [now - 2 * HOUR, now].map(|unix_ms| Frame {
        clock: Clock { boot: 1, boot_ms: unix_ms, unix_ms },
        groups: vec![group(1), group(2)],
        ..frame(0, 1.0)
    });
    append(&mut open(dir.path()), &frames).unwrap();
    for (range, points, all, groups) in
        [(Range::Hour, 1, true, 2), (Range::Hour, 1, false, 1), (Range::Day, 2, false, 1)]
    {
        let content = folder.content(range, all).unwrap();
        assert_eq!((content.programs[0].points.len(), content.groups.len()), (points, groups));
        assert!(content.groups[0].group == 1 && content.period.is_some());
    }
    fs::write(dir.path().join(FILE), "another file").unwrap();
    assert!(folder.content(Range::Hour, true).unwrap_err().contains("is damaged or no history"));
}

#[test]
fn frames_of_yesterday_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path());
    append(&mut store, &[frame(0, 1.0), frame(SECOND, 1.0)]).unwrap();
    append(&mut store, &[frame(AGE_MS_MAX + SECOND, 1.0)]).unwrap();
    let times: Vec<u64> = all(dir.path()).iter().map(|(at, _)| at - START).collect();
    assert_eq!(times, [SECOND, AGE_MS_MAX + SECOND]);
}

#[test]
fn a_second_process_cannot_write_and_can_read() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(read(dir.path(), 0, u64::MAX), Err(Error::Missing { .. })));
    let mut store = open(dir.path());
    assert!(matches!(opened(dir.path()).0, Err(Error::InUse { .. })));
    assert_eq!(all(dir.path()), []);
    append(&mut store, &[frame(0, 1.0)]).unwrap();
    assert_eq!(all(dir.path()), [(START, frame(0, 1.0))]);
    drop(store);
    open(dir.path());
}

/// A child of fork has the open files of its parent until it calls exec.
#[test]
fn lock_ends_with_the_store_although_a_child_has_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let path = dir.path().join("history.lock");
    let is_lock =
        |fd: &i32| fs::read_link(format!("/proc/self/fd/{fd}")).is_ok_and(|target| target == path);
    let fd = (0..1024).find(is_lock).unwrap();
    // SAFETY: the store, which is alive, has this file open.
    let inherited = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().unwrap();
    drop(store);
    open(dir.path());
    drop(inherited);
}

#[test]
fn writer_waits_a_second_for_a_reader_and_then_writes_later() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path());
    let file = fs::File::open(store.path()).unwrap();
    flock(&file, FlockOperation::LockShared).unwrap();
    assert!(matches!(append(&mut store, &[frame(0, 1.0)]), Err(Error::Locked { .. })));
    drop(file);
    append(&mut store, &[frame(0, 1.0)]).unwrap();
    assert_eq!(all(dir.path()).len(), 1);
}

#[test]
fn clock_that_is_set_moves_the_history_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path());
    let mut unix_ms = START;
    for (boot_ms, by_ms) in [(0, 0), (1, -7_200_000), (2, 90_000_000), (3, 1500)] {
        unix_ms = (unix_ms as i64 + by_ms) as u64 + SECOND;
        let clock = Clock { boot: 1, boot_ms: boot_ms * SECOND, unix_ms };
        let lines = append(&mut store, &[Frame { clock, ..frame(0, 1.0) }]).unwrap();
        let expected = match by_ms {
            -7_200_000 => Some("set back by 7200 s"),
            90_000_000 => Some("set forward by 90000 s"),
            _ => None,
        };
        assert_eq!(lines.len(), usize::from(expected.is_some()), "{lines:?}");
        assert!(expected.is_none_or(|text| lines[0].contains(text)), "{lines:?}");
        let times: Vec<u64> = all(dir.path()).iter().map(|(at, _)| unix_ms - at).collect();
        assert_eq!(times, (0..=boot_ms).rev().map(|n| n * SECOND).collect::<Vec<_>>());
    }
}

#[test]
fn clock_of_another_boot_that_is_earlier_reverses_no_time() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path());
    append(&mut store, &[frame(HOUR, 1.0)]).unwrap();
    let clock = Clock { boot: 2, boot_ms: 5, unix_ms: START };
    let lines = append(&mut store, &[Frame { clock, ..frame(0, 0.0) }]).unwrap();
    assert!(lines.len() == 1 && lines[0].contains("set back by 3600 s"), "{lines:?}");
    let times: Vec<u64> = all(dir.path()).iter().map(|(at, _)| *at).collect();
    assert_eq!(times, [START - 1, START]);
}

#[test]
fn gap_is_not_hidden_by_a_longer_span() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path());
    for second in [1, 2, 8, 9] {
        append(&mut store, &[frame(second * SECOND, 1.0)]).unwrap();
    }
    let restarted = Frame { begins: true, ..frame(10 * SECOND, 1.0) };
    append(&mut store, &[restarted, frame(HOUR, 1.0)]).unwrap();
    let frames = all(dir.path());
    let spans: Vec<(u64, bool)> = frames.iter().map(|(_, f)| (f.span_ms, f.begins)).collect();
    assert_eq!(spans, [(2000, false), (2000, false), (1000, true), (1000, false)]);
}

#[test]
fn damaged_and_foreign_files_are_moved_aside() {
    let plain = b"not a database".repeat(1000);
    let foreign = {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("other");
        let db = redb::Database::create(&path).unwrap();
        let write = db.begin_write().unwrap();
        let table = redb::TableDefinition::<u64, u64>::new("theirs");
        write.open_table(table).unwrap().insert(1, 2).unwrap();
        write.commit().unwrap();
        drop(db);
        fs::read(path).unwrap()
    };
    for content in [plain, foreign, vec![0; 4096]] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        fs::write(&path, &content).unwrap();
        fs::write(dir.path().join(format!("{FILE}.damaged-earlier")), "").unwrap();
        let (store, lines) = opened(dir.path());
        let (mut store, [line]) = (store.unwrap(), &lines[..]) else { panic!("{lines:?}") };
        assert!(line.contains("damaged or foreign") && !line.contains('\n'), "{line}");
        assert!(line.ends_with(&format!("{FILE}.damaged-earlier is removed")), "{line}");
        let aside = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
        let aside: Vec<_> = aside.filter(|p| p.to_string_lossy().contains(".damaged-")).collect();
        assert_eq!(aside.len(), 1);
        assert_eq!(fs::read(&aside[0]).unwrap().len(), content.len());
        append(&mut store, &[frame(0, 1.0)]).unwrap();
        assert_eq!(all(dir.path()).len(), 1);
    }
}

/// Bytes of a file are replaced at random: each time the history opens with all frames, or the file
/// is moved aside, and reading it returns all frames or an error.
#[test]
fn damage_anywhere_in_the_file_is_detected_or_harmless() {
    let origin = tempfile::tempdir().unwrap();
    let mut store = open(origin.path());
    let frames: Vec<Frame> = (0..200).map(|s| frame(s * SECOND, 0.5)).collect();
    append(&mut store, &frames).unwrap();
    drop(store);
    let (good, expected) = (fs::read(origin.path().join(FILE)).unwrap(), all(origin.path()));
    let used = good.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut moved = 0;
    for _ in 0..100 {
        let mut bytes = good.clone();
        match random.u8(..3) {
            0 => bytes.truncate(random.usize(..bytes.len())),
            1 => (0..random.usize(1..64)).for_each(|_| bytes[random.usize(..used)] = random.u8(..)),
            _ => {
                let at: Vec<usize> = (0..used).filter(|at| bytes[*at] != 0).collect();
                bytes[at[random.usize(..at.len())]] ^= 1 << random.u8(..8);
            }
        }
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(FILE), &bytes).unwrap();
        if let Ok(Recorded { frames, .. }) = read(dir.path(), 0, u64::MAX) {
            assert!(frames == expected || frames.is_empty(), "seed {seed}");
        }
        let (store, lines) = opened(dir.path());
        let store = store.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        moved += lines.len();
        let left = all(dir.path());
        match lines.len() {
            1.. => assert_eq!(left, [], "seed {seed}"),
            0 => assert!(left == expected || left.is_empty(), "seed {seed}"),
        }
        drop(store);
    }
    assert!(moved > 0, "seed {seed}");
}

/// The root pages of redb are numbers in its header, whose top bits are a size. The header has the
/// size of a region as well.
#[test]
fn wrong_number_in_the_header_requests_no_memory() {
    let origin = tempfile::tempdir().unwrap();
    let mut store = open(origin.path());
    append(&mut store, &[frame(0, 0.5)]).unwrap();
    drop(store);
    let good = fs::read(origin.path().join(FILE)).unwrap();
    // Two slots, each with three numbers of 8 bytes, and the size of a region.
    let roots = [64, 192].into_iter().flat_map(|slot| [8, 40, 72].map(|root| slot + root + 7));
    for top in roots.chain([23]) {
        let dir = tempfile::tempdir().unwrap();
        let mut store = open(dir.path());
        let mut bytes = good.clone();
        bytes[top] = 0xff;
        fs::write(dir.path().join(FILE), &bytes).unwrap();
        let _ = read(dir.path(), 0, u64::MAX);
        // The running daemon writes into the file, or moves it aside. The next one does as well.
        append(&mut store, &[frame(SECOND, 0.5)]).unwrap();
        fs::write(dir.path().join(FILE), &bytes).unwrap();
        drop(store);
        opened(dir.path()).0.unwrap();
    }
}

#[test]
fn folder_that_others_can_write_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for mode in [0o777, 0o1777, 0o770] {
        fs::set_permissions(dir.path(), Permissions::from_mode(mode)).unwrap();
        let refused = opened(dir.path()).0.unwrap_err().to_string();
        assert!(refused.contains("writable by you alone (chmod 700)"), "{refused}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    open(dir.path());
}

#[test]
fn folder_and_file_of_another_user_are_refused() {
    if !rustix::process::geteuid().is_root() {
        println!("left out: requires root, to create files of another user");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    chown(dir.path(), Some(65_534), None).unwrap();
    assert!(opened(dir.path()).0.unwrap_err().to_string().contains("must belong to you"));
    chown(dir.path(), Some(0), None).unwrap();
    fs::write(dir.path().join(FILE), "").unwrap();
    chown(dir.path().join(FILE), Some(65_534), None).unwrap();
    assert!(opened(dir.path()).0.unwrap_err().to_string().contains("belongs to you"));
}

#[test]
fn links_pipes_and_folders_are_no_history() {
    for name in [FILE, "history.lock"] {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join(name), dir.path().join("other"));
        let refused = || opened(dir.path()).0.unwrap_err().to_string();
        fs::write(&other, "a file of the user").unwrap();
        symlink(&other, &path).unwrap();
        assert!(refused().contains("it is a symbolic link; remove it"), "{}", refused());
        assert_eq!(fs::read_to_string(&other).unwrap(), "a file of the user");
        fs::remove_file(&path).unwrap();
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert!(refused().contains("it must be a regular file"), "{}", refused());
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(refused().contains("Is a directory"), "{}", refused());
    }
}

#[test]
fn file_that_others_can_read_becomes_private() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(FILE), "").unwrap();
    fs::set_permissions(dir.path().join(FILE), Permissions::from_mode(0o666)).unwrap();
    open(dir.path());
    assert_eq!(fs::metadata(dir.path().join(FILE)).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn read_has_the_first_frame_after_the_period() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path());
    append(&mut store, &[0, 1, 2].map(|s| frame(s * SECOND, 0.5))).unwrap();
    let period = |from_ms, to_ms| {
        let recorded = read(dir.path(), START + from_ms, START + to_ms).unwrap();
        let times: Vec<u64> = recorded.frames.iter().map(|(at, _)| at - START).collect();
        (times, recorded.next.map(|(at, _)| at - START))
    };
    assert_eq!(period(1, 1500), (vec![SECOND], Some(2 * SECOND)));
    assert_eq!(period(0, 2000), (vec![0, SECOND, 2 * SECOND], None));
    assert_eq!(period(3000, 4000), (vec![], None));
}

/// Decisions with reasons of this length that do not compress, and their source.
fn decisions(
    number: usize,
    length: usize,
    (random, text): &mut (fastrand::Rng, String),
) -> Vec<(u64, Decision)> {
    let decision = || {
        let begin = random.usize(..text.len() - length);
        let why = text[begin..begin + length].into();
        (0, Decision { why, ..Decision::default() })
    };
    std::iter::repeat_with(decision).take(number).collect()
}

fn random_text() -> (fastrand::Rng, String) {
    let mut random = fastrand::Rng::with_seed(1);
    let text = (0..1 << 20).map(|_| random.alphanumeric()).collect();
    (random, text)
}

/// A frame that takes a page of a megabyte.
fn large_frame(second: u64, random: &mut (fastrand::Rng, String)) -> Frame {
    Frame { decisions: decisions(256, 3600, random), ..frame(second * SECOND, 0.5) }
}

#[test]
fn history_that_fills_the_file_loses_only_its_first_part() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path());
    let mut random = random_text();
    let before: Vec<Frame> = (0..20).map(|s| large_frame(s, &mut random)).collect();
    assert_eq!(append(&mut store, &before).unwrap(), Vec::<String>::new());
    let many: Vec<Frame> = (20..40).map(|s| large_frame(s, &mut random)).collect();
    let lines = append(&mut store, &many).unwrap();
    assert!(lines.len() == 1 && lines[0].contains("its first part is removed"), "{lines:?}");
    let times: Vec<u64> = all(dir.path()).iter().map(|(at, _)| (at - START) / SECOND).collect();
    let first = 40 - times.len() as u64;
    assert!(first < 20 && times == (first..40).collect::<Vec<_>>(), "{times:?}");
    assert!(fs::metadata(dir.path().join(FILE)).unwrap().len() <= FILE_BYTES_MAX);
}

#[test]
fn observation_that_is_too_large_is_left_out_with_a_line() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path());
    let too_long = Frame { span_ms: AGE_MS_MAX + 1, ..frame(SECOND, 0.5) };
    let lines = append(&mut store, &[frame(0, 0.5), too_long, frame(2 * SECOND, 0.5)]).unwrap();
    assert!(lines.len() == 1 && lines[0].contains("leaves out an observation"), "{lines:?}");
    let times: Vec<u64> = all(dir.path()).iter().map(|(at, _)| at - START).collect();
    assert_eq!(times, [0, 2 * SECOND]);
}

#[test]
fn file_of_a_busy_day_stays_within_its_bound() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path());
    let mut random = random_text();
    let mut longest = 0;
    // The first two thirds fill the file; the rest replaces its frames.
    for write in 0..60 {
        let frames = (0..10).map(|n| {
            let decisions = decisions(128, 400, &mut random);
            Frame { decisions, ..frame((write * 10 + n) * SECOND * 20, 0.5) }
        });
        let lines = append(&mut store, &frames.collect::<Vec<_>>()).unwrap();
        assert_eq!(lines, Vec::<String>::new());
        longest = longest.max(fs::metadata(dir.path().join(FILE)).unwrap().len());
    }
    assert!(longest <= FILE_BYTES_MAX, "{longest}");
    let left = all(dir.path()).len();
    assert!((300..600).contains(&left), "{left}");
}

/// Environment variable that turns a test below into a writer of this folder.
const WRITES: &str = "COREBEAT_TEST_HISTORY";

/// A process that runs one test of this file as a writer, until it ends or is killed.
fn writer(group: &TestGroup, test: &str, dir: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(WRITES, dir);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    group.add(&mut command).spawn().unwrap()
}

/// Not a test: appends frames, and prints the number of frames after each of them.
#[test]
fn process_that_writes() {
    let Some(dir) = std::env::var_os(WRITES) else { return };
    let dir = Path::new(&dir);
    let mut store = open(dir);
    for n in all(dir).len() as u64.. {
        append(&mut store, &[frame(n * SECOND, 0.5)]).unwrap();
        println!("wrote {}", n + 1);
    }
}

#[test]
fn killed_writer_leaves_all_that_it_has_written() {
    let dir = tempfile::tempdir().unwrap();
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut written = 0;
    for _ in 0..20 {
        let group = TestGroup::new();
        let mut child = writer(&group, "process_that_writes", dir.path());
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut left = random.usize(1..8);
        while left > 0 {
            let line = lines.next().unwrap_or_else(|| panic!("seed {seed}")).unwrap();
            // The first line of the test harness may lack its end.
            let Some((_, number)) = line.rsplit_once("wrote ") else { continue };
            written = number.parse().unwrap();
            left -= 1;
        }
        // At any point of the next transactions.
        (0..random.u32(..3_000_000)).for_each(|n| _ = std::hint::black_box(n));
        child.kill().unwrap();
        child.wait().unwrap();
        let before = all(dir.path());
        drop(open(dir.path()));
        let frames = all(dir.path());
        assert_eq!(before, frames, "seed {seed}: a reader and the next daemon find the same");
        assert!(frames.len() >= written, "seed {seed}: {} of {written}", frames.len());
        for (n, (at, found)) in frames.iter().enumerate() {
            let n = n as u64 * SECOND;
            assert_eq!((*at, found), (START + n, &frame(n, 0.5)), "seed {seed}");
        }
    }
}

/// Names of the files of a folder, without the lock.
fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name != "history.lock").collect();
    names.sort();
    names
}

const OLDER: &str = "history.redb.damaged-2026-01-01T000000Z";
const INCOMPLETE: &str = "history.redb.new";

#[test]
fn incomplete_file_of_a_killed_writer_is_removed_and_damaged_ones_stay() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(OLDER), "for the user").unwrap();
    fs::write(dir.path().join(INCOMPLETE), vec![0; 4096]).unwrap();
    assert!(matches!(read(dir.path(), 0, u64::MAX), Err(Error::Missing { .. })));
    let (store, lines) = opened(dir.path());
    assert!(lines.len() == 1 && lines[0].contains("history.redb.new is removed: "), "{lines:?}");
    append(&mut store.unwrap(), &[frame(0, 1.0)]).unwrap();
    assert_eq!(names(dir.path()), [FILE, OLDER]);
    assert_eq!(all(dir.path()).len(), 1);
}

/// Writers are killed around the creation of the file.
#[test]
fn writer_that_is_killed_while_it_creates_the_file_leaves_no_damaged_one() {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..40 {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(OLDER), "for the user").unwrap();
        let group = TestGroup::new();
        let mut child = writer(&group, "process_that_writes", dir.path());
        let has_begun = || fs::exists(dir.path().join("history.lock")).unwrap();
        while !has_begun() {
            assert!(child.try_wait().unwrap().is_none(), "seed {seed}");
            std::thread::yield_now();
        }
        (0..random.u32(..1_000_000)).for_each(|n| _ = std::hint::black_box(n));
        child.kill().unwrap();
        child.wait().unwrap();
        let before = match read(dir.path(), 0, u64::MAX) {
            Err(Error::Missing { .. }) => vec![],
            read => read.unwrap_or_else(|e| panic!("seed {seed}: {e}")).frames,
        };
        let was_incomplete = names(dir.path()).contains(&INCOMPLETE.into());
        let (store, lines) = opened(dir.path());
        store.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert_eq!(lines.len(), usize::from(was_incomplete), "seed {seed}: {lines:?}");
        assert_eq!(names(dir.path()), [FILE, OLDER], "seed {seed}");
        assert_eq!(all(dir.path()), before, "seed {seed}");
    }
}

/// Not a test: creates the history on a disk that is full, and then has space again.
#[test]
fn process_that_creates_on_a_full_disk() {
    let Some(dir) = std::env::var_os(WRITES) else { return };
    let dir = Path::new(&dir);
    // SAFETY: the action has no handler. A write beyond the limit is an error then.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let limit = getrlimit(Resource::Fsize);
    setrlimit(Resource::Fsize, Rlimit { current: Some(4096), ..limit }).unwrap();
    for _ in 0..2 {
        let (store, lines) = opened(dir);
        let refused = store.unwrap_err().to_string();
        assert!(refused.contains("File too large") && lines.is_empty(), "{refused} {lines:?}");
        assert_eq!(names(dir), [OLDER]);
    }
    // The line about a damaged file that was moved aside is not lost, although no new one begins.
    fs::write(dir.join(FILE), "damaged").unwrap();
    let (store, lines) = opened(dir);
    assert!(store.is_err() && lines.len() == 1, "{lines:?}");
    assert!(lines[0].ends_with(&format!("{OLDER} is removed")), "{lines:?}");
    let aside = names(dir);
    assert!(aside.len() == 1 && aside[0] > OLDER.into(), "{aside:?}");
    setrlimit(Resource::Fsize, limit).unwrap();
    append(&mut open(dir), &[frame(0, 0.5)]).unwrap();
    assert_eq!(names(dir), [FILE, &aside[0]]);
    assert_eq!(all(dir).len(), 1);
}

#[test]
fn full_disk_leaves_no_part_of_a_new_file() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(OLDER), "for the user").unwrap();
    let group = TestGroup::new();
    let name = "process_that_creates_on_a_full_disk";
    let done = writer(&group, name, dir.path()).wait_with_output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// Not a test: writes to a disk that is full, and then has space again.
#[test]
fn process_with_a_full_disk() {
    let Some(dir) = std::env::var_os(WRITES) else { return };
    let dir = Path::new(&dir);
    // SAFETY: the action has no handler. A write beyond the limit is an error then.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let mut store = open(dir);
    let limit = getrlimit(Resource::Fsize);
    let length = fs::metadata(dir.join(FILE)).unwrap().len();
    setrlimit(Resource::Fsize, Rlimit { current: Some(length), ..limit }).unwrap();
    let mut written = 0;
    let refused = loop {
        let why = (0..100_000).map(|_| fastrand::alphanumeric()).collect();
        let decisions = vec![(0, Decision { why, ..Decision::default() })];
        match append(&mut store, &[Frame { decisions, ..frame(written * SECOND, 0.5) }]) {
            Ok(lines) => assert_eq!(lines, Vec::<String>::new()),
            Err(e) => break e.to_string(),
        }
        written += 1;
    };
    assert!(refused.contains(FILE) && refused.contains("File too large"), "{refused}");
    assert_eq!(all(dir).len() as u64, written);
    assert!(append(&mut store, &[frame(written * SECOND, 0.5)]).is_err());
    setrlimit(Resource::Fsize, limit).unwrap();
    assert_eq!(append(&mut store, &[frame(written * SECOND, 0.5)]).unwrap(), Vec::<String>::new());
    assert_eq!(all(dir).len() as u64, written + 1);
    drop(store);
    assert_eq!(append(&mut open(dir), &[]).unwrap(), Vec::<String>::new());
    assert_eq!(all(dir).len() as u64, written + 1);
}

#[test]
fn full_disk_is_an_error_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let group = TestGroup::new();
    let done = writer(&group, "process_with_a_full_disk", dir.path()).wait_with_output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}
