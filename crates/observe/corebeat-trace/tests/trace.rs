//! Recorded events are read back.

use corebeat_test_group::{TestGroup, in_child};
use corebeat_trace::{
    Ending, Error, Event, Options, Reader, Summary, Trace, Value, WhenFull, emit,
};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

#[derive(Event)]
struct Entered {
    function: u32,
}

#[derive(Event)]
#[event(untimed)]
struct Left;

#[derive(Event)]
#[event(name = "all.types")]
struct All<'a> {
    a: u8,
    b: u16,
    c: u32,
    d: u64,
    e: i8,
    f: i16,
    g: i32,
    h: i64,
    i: f32,
    j: f64,
    k: bool,
    l: &'a str,
    #[event(hex)]
    m: usize,
    n: String,
}

/// An event that was read.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    stream: u32,
    kind: String,
    time_ns: u64,
    values: Vec<String>,
}

fn read(path: &Path) -> (Vec<Seen>, Ending) {
    let mut reader = Reader::new(File::open(path).unwrap()).unwrap();
    let mut seen = Vec::new();
    while let Some(packet) = reader.next_packet().unwrap() {
        seen.extend(packet.events().map(|event| Seen {
            stream: event.thread().stream,
            kind: event.kind().name().into(),
            time_ns: event.time_ns(),
            values: event.values().map(|v| format!("{v:?}")).collect(),
        }));
    }
    (seen, reader.ending().unwrap().clone())
}

#[test]
fn events_of_all_types_round_trip() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.cbt");
    let trace = Trace::create(&path).unwrap();
    let log = trace.log().unwrap();
    let long = "ä".repeat(200);
    log.emit(&All {
        a: 1,
        b: 2,
        c: 3,
        d: u64::MAX,
        e: -1,
        f: -2,
        g: -3,
        h: i64::MIN,
        i: 0.5,
        j: -0.25,
        k: true,
        l: "text",
        m: 7,
        n: long,
    });
    log.emit(&Left);
    let summary = trace.finish().unwrap();
    let (seen, ending) = read(&path);
    assert!(ending.is_complete(), "{ending}");
    assert_eq!((summary.threads, summary.lost, summary.packets), (1, 0, 1));
    assert_eq!(summary.file_bytes, path.metadata().unwrap().len());
    let values = [
        Value::U64(1),
        Value::U64(2),
        Value::U64(3),
        Value::U64(u64::MAX),
        Value::I64(-1),
        Value::I64(-2),
        Value::I64(-3),
        Value::I64(i64::MIN),
        Value::F32(0.5),
        Value::F64(-0.25),
        Value::Bool(true),
        Value::Text("text"),
        Value::U64(7),
        Value::Text(&"ä".repeat(127)),
    ];
    assert_eq!(seen[0].values, values.map(|v| format!("{v:?}")));
    assert_eq!(
        (seen[0].kind.as_str(), seen[1].kind.as_str(), seen.len()),
        ("all.types", "Left", 2)
    );
}

/// Logs from several threads, with a known sequence for each.
fn many(options: Options, path: &Path, threads: u32, events: u32) -> Summary {
    let trace = options.create(path).unwrap();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let log = trace.log().unwrap();
                for function in 0..events {
                    log.emit(&Entered { function });
                    log.emit(&Left);
                }
            });
        }
    });
    trace.finish().unwrap()
}

#[test]
fn waiting_threads_lose_no_events() {
    // In the last case, buffers are taken while they are filled.
    for (collectors, delay) in [(0, 1000), (1, 1000), (2, 1000), (1, 0)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.cbt");
        let (threads, events) = (4, 20_000);
        let options = Options {
            collectors,
            delay: Duration::from_millis(delay),
            buffers: 2,
            buffer_bytes: 0,
            when_full: WhenFull::Wait,
            ..Options::default()
        };
        let summary = many(options, &path, threads, events);
        assert_eq!(summary.lost, 0);
        let (seen, ending) = read(&path);
        assert!(ending.is_complete());
        for stream in 0..threads {
            let mut own = seen.iter().filter(|s| s.stream == stream);
            let mut last_ns = 0;
            for function in 0..events {
                let entered = own.next().unwrap();
                assert_eq!(entered.values, [format!("{:?}", Value::U64(function.into()))]);
                assert!(entered.time_ns >= last_ns);
                last_ns = entered.time_ns;
                assert_eq!(own.next().unwrap().kind, "Left");
            }
            assert!(own.next().is_none());
        }
    }
}

#[test]
fn dropping_threads_count_every_lost_event() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.cbt");
    let (threads, events) = (4, 200_000);
    for delay in [Options::default().delay, Duration::ZERO] {
        let options = Options { buffers: 1, delay, ..Options::default() };
        let summary = many(options, &path, threads, events);
        let (seen, ending) = read(&path);
        assert!(matches!(ending, Ending::Complete { .. }));
        assert_eq!(seen.len() as u64 + summary.lost, u64::from(threads * events * 2));
    }
}

#[test]
fn unfinished_trace_contains_the_number_of_lost_events() {
    let folder = tempfile::tempdir().unwrap();
    let events = 200_000;
    for thread_ends in [false, true] {
        let path = folder.path().join(format!("{thread_ends}.cbt"));
        let options =
            Options { buffers: 0, buffer_bytes: 0, delay: Duration::ZERO, ..Options::default() };
        let trace = options.create(&path).unwrap();
        // Streams 0 and 1. The collector takes their buffers in this order.
        let log = trace.log().unwrap();
        let end = trace.log().unwrap();
        (0..events).for_each(|function| log.emit(&Entered { function }));
        let log = (!thread_ends).then_some(log);
        loop {
            // The file contains this event after the collector has taken all events of stream 0.
            end.emit(&Left);
            let (seen, ending) = read(&path);
            if seen.iter().any(|event| event.stream == 1) {
                assert!(matches!(ending, Ending::Unfinished { .. }), "{ending}");
                break;
            }
            thread::yield_now();
        }
        let (mut taken, mut lost) = (0, 0);
        let mut reader = Reader::new(File::open(&path).unwrap()).unwrap();
        while let Some(packet) = reader.next_packet().unwrap() {
            if packet.thread().stream == 0 {
                assert!(packet.lost() >= lost);
                (taken, lost) = (taken + packet.events().len() as u64, packet.lost());
            }
        }
        assert_eq!(taken + lost, u64::from(events), "{lost} were lost");
        drop(log);
        assert_eq!(trace.finish().unwrap().lost, lost);
    }
}

/// Logs one event at a time, after the preceding event has reached the file.
fn log_slowly(trace: Trace, path: &Path, mut log: impl FnMut(u32), events: u32) -> Vec<Seen> {
    for event in 0..events {
        log(event);
        while read(path).0.len() <= event as usize {
            thread::yield_now();
        }
    }
    let summary = trace.finish().unwrap();
    let (seen, ending) = read(path);
    assert!(ending.is_complete());
    assert_eq!((seen.len(), summary.lost), (events as usize, 0));
    assert!(seen.is_sorted_by_key(|s| s.time_ns));
    seen
}

#[test]
fn second_trace_with_one_path_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.cbt");
    std::fs::write(&path, "old content, which is discarded").unwrap();
    for _ in 0..2 {
        let trace = Trace::create(&path).unwrap();
        let log = trace.log().unwrap();
        log.emit(&Left);
        let second = Trace::create(&path).map(|_| ()).unwrap_err();
        assert!(matches!(second, Error::InUse { .. }), "{second}");
        assert!(second.to_string().contains("{pid}"));
        assert_eq!(trace.finish().unwrap().lost, 0);
        let (seen, ending) = read(&path);
        assert!(seen.len() == 1 && ending.is_complete(), "{ending}");
        // The log still exists, but the file is free.
        log.emit(&Left);
    }
    let own = Trace::create(folder.path().join("{pid}.cbt")).unwrap();
    let expected = folder.path().join(format!("{}.cbt", std::process::id()));
    assert_eq!(own.path(), Some(expected.clone()));
    own.finish().unwrap();
    assert!(expected.exists());
    assert_eq!(Options::default().discard().unwrap().path(), None);
    // Devices and pipes are not locked.
    let devices = [0, 1].map(|_| Trace::create("/dev/null").unwrap());
    for trace in devices {
        trace.finish().unwrap();
    }
}

/// A program that becomes a daemon closes all descriptors, and opens other files.
#[test]
fn file_that_takes_over_the_descriptor_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let (path, other) = (folder.path().join("t.cbt"), folder.path().join("other"));
    let trace = Trace::create(&path).unwrap();
    let log = trace.log().unwrap();
    let is_of_trace = |fd: &i32| {
        std::fs::read_link(format!("/proc/self/fd/{fd}")).is_ok_and(|target| target == path)
    };
    let fd = (0..1024).find(is_of_trace).unwrap();
    let file = File::create(&other).unwrap();
    // SAFETY: the descriptor is that of the trace, which must not rely on it.
    assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), fd) }, fd);
    (0..100_000).for_each(|_| log.emit(&Left));
    drop(log);
    let failed = trace.finish().unwrap_err().to_string();
    assert!(failed.contains("has closed the descriptor"), "{failed}");
    assert_eq!(std::fs::metadata(&other).unwrap().len(), 0);
    // The descriptor belongs to the other file, and stays open.
    // SAFETY: the trace has ended, so this is the only owner.
    let taken_over = unsafe { OwnedFd::from_raw_fd(fd) };
    assert_eq!(File::from(taken_over).metadata().unwrap().len(), 0);
}

#[test]
fn file_that_is_replaced_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.cbt");
    let other = folder.path().join("other");
    let harms: [fn(&Path, &Path); 4] = [
        |path, _| std::fs::remove_file(path).unwrap(),
        |path, other| {
            std::fs::write(other, "").unwrap();
            std::fs::rename(other, path).unwrap();
        },
        |path, _| File::options().write(true).open(path).unwrap().set_len(0).unwrap(),
        |path, _| drop(File::create(path).unwrap()),
    ];
    for harm in harms {
        let trace = Trace::create(&path).unwrap();
        trace.log().unwrap().emit(&Left);
        harm(&path, &other);
        let replaced = trace.finish().unwrap_err();
        assert!(matches!(replaced, Error::Replaced { .. }), "{replaced}");
        let _ = std::fs::remove_file(&path);
    }
    // A file that is moved to another name is complete.
    let trace = Trace::create(&path).unwrap();
    trace.log().unwrap().emit(&Left);
    std::fs::rename(&path, &other).unwrap();
    trace.finish().unwrap();
    assert_eq!(read(&other).0.len(), 1);
}

#[test]
fn partly_filled_buffers_are_written_after_the_delay() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.cbt");
    let begin = || {
        let trace = Options { delay: Duration::ZERO, ..Options::default() }.create(&path).unwrap();
        let log = trace.log().unwrap();
        (trace, log)
    };
    let (trace, log) = begin();
    let seen = log_slowly(trace, &path, |function| log.emit(&Entered { function }), 40);
    for (function, seen) in (0u64..).zip(&seen) {
        assert_eq!(seen.values, [format!("{:?}", Value::U64(function))]);
    }
    // The same for untimed events.
    let (trace, log) = begin();
    log_slowly(trace, &path, |_| log.emit(&Left), 40);
}

#[test]
fn discarding_trace_counts_events() {
    let trace = Options { when_full: WhenFull::Wait, ..Options::default() }.discard().unwrap();
    let log = trace.log().unwrap();
    (0..100_000).for_each(|function| log.emit(&Entered { function }));
    drop(log);
    let summary = trace.finish().unwrap();
    assert_eq!((summary.file_bytes, summary.threads, summary.lost), (0, 1, 0));
    // Some events are preceded by a fix.
    assert!(summary.event_bytes >= 800_000 && summary.packets > 0, "{summary:?}");
}

/// Only one trace can be installed at a time.
static INSTALLED: Mutex<()> = Mutex::new(());

#[test]
fn events_of_all_threads_go_only_into_the_installed_trace() {
    let _alone = INSTALLED.lock().unwrap();
    let folder = tempfile::tempdir().unwrap();
    emit(&Entered { function: 0 });
    for round in 1..3 {
        let path = folder.path().join("t.cbt");
        let trace = Trace::create(&path).unwrap();
        trace.install().unwrap();
        trace.install().unwrap(); // the trace is installed already
        assert!(Options::default().discard().unwrap().install().is_err());
        emit(&Entered { function: round });
        thread::scope(|scope| {
            scope.spawn(|| emit(&Entered { function: 10 * round }));
        });
        emit(&Left);
        let summary = trace.finish().unwrap();
        emit(&Entered { function: 0 });
        assert_eq!((summary.threads, summary.lost), (2, 0));
        let (mut seen, _) = read(&path);
        seen.sort_by_key(|s| s.stream);
        let values: Vec<_> = seen.iter().flat_map(|s| s.values.clone()).collect();
        assert_eq!(values, [round, 10 * round].map(|f| format!("{:?}", Value::U64(f.into()))));
        assert_eq!(seen.len(), 3);
    }
}

/// A large event, so that few of them fill a buffer.
#[derive(Event)]
struct Large<'a> {
    a: &'a str,
    b: &'a str,
    c: &'a str,
    d: &'a str,
    e: &'a str,
    f: &'a str,
    g: &'a str,
    h: &'a str,
}

#[test]
fn thread_that_logs_during_finish_logs_into_the_next_trace() {
    let _alone = INSTALLED.lock().unwrap();
    let long = "x".repeat(255);
    let x = long.as_str();
    let wait_for = |sign: &AtomicBool| {
        while !sign.load(Ordering::Acquire) {
            thread::yield_now();
        }
    };
    // Many rounds, because a thread rarely opens a buffer at that moment.
    for round in 0..500 {
        let begin = || {
            let (buffers, buffer_bytes, collectors) = (2, 0, 0);
            let when_full = WhenFull::Wait;
            Options { buffers, buffer_bytes, collectors, when_full, ..Options::default() }
                .discard()
                .unwrap()
        };
        let (first, second) = (begin(), begin());
        let [ready, ends, go] = [const { AtomicBool::new(false) }; 3];
        first.install().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    emit(&Large { a: x, b: x, c: x, d: x, e: x, f: x, g: x, h: x });
                    ready.store(true, Ordering::Release);
                }
                wait_for(&go);
                emit(&Left);
            });
            wait_for(&ready);
            ends.store(true, Ordering::Relaxed);
            first.finish().unwrap();
            second.install().unwrap();
            go.store(true, Ordering::Release);
        });
        // The thread may have logged a large event there, too.
        assert!(second.finish().unwrap().event_bytes > 0, "round {round}");
    }
}

/// Path of the file that the child of the next test writes.
const RECORD: &str = "COREBEAT_TRACE_RECORD";

#[test]
fn recording_child() {
    // Runs only in a child process.
    let Some(path) = std::env::var_os(RECORD) else { return };
    let trace = Options { buffer_bytes: 0, when_full: WhenFull::Wait, ..Options::default() }
        .create(path)
        .unwrap();
    let log = trace.log().unwrap();
    for function in 0.. {
        log.emit(&Entered { function });
    }
}

#[test]
fn trace_of_a_killed_process_is_read_up_to_its_last_complete_packet() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.cbt");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "recording_child"])
        .env(RECORD, &path)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    while path.metadata().map_or(0, |m| m.len()) < 300_000 {
        assert!(child.try_wait().unwrap().is_none(), "the child ended before it was killed");
        thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let (seen, ending) = read(&path);
    let Ending::Unfinished { whole_bytes } = ending else { panic!("{ending}") };
    assert!(whole_bytes <= path.metadata().unwrap().len());
    assert!(seen.len() > 10_000);
    for (function, entered) in (0u64..).zip(&seen) {
        assert_eq!(entered.values, [format!("{:?}", Value::U64(function))]);
    }
}

/// Name of the variable with the path of a trace, for a child process.
const ORPHAN: &str = "TEST_TRACE_ORPHAN";

/// The body of a child process: it records a trace, forks a child that stays, and is killed.
#[test]
fn child_that_leaves_an_orphan() {
    let Some(path) = std::env::var_os(ORPHAN) else { return };
    let trace = Trace::create(path).unwrap();
    let (mut started, starts) = std::io::pipe().unwrap();
    // SAFETY: the child only writes to a pipe, reads from its standard input, and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // The end of the input is the end of the test.
        let mut byte = 0u8;
        // SAFETY: the pointers refer to one byte, and `_exit` does not return.
        unsafe {
            libc::write(starts.as_raw_fd(), (&raw const byte).cast(), 1);
            libc::read(0, (&raw mut byte).cast(), 1);
            libc::_exit(0)
        }
    }
    started.read_exact(&mut [0]).unwrap();
    println!("orphan {child}");
    // SAFETY: the signal ends this process.
    unsafe { libc::raise(libc::SIGKILL) };
    drop(trace);
}

#[test]
fn child_of_fork_that_outlives_its_killed_parent_does_not_keep_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.cbt");
    let group = TestGroup::new();
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", "child_that_leaves_an_orphan", "--nocapture"]).env(ORPHAN, &path);
    program.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut parent = group.add(&mut program).spawn().unwrap();
    let input = parent.stdin.take();
    let mut output = BufReader::new(parent.stdout.take().unwrap());
    let (mut line, mut orphan) = (String::new(), None);
    while orphan.is_none() {
        line.clear();
        assert!(output.read_line(&mut line).unwrap() > 0, "the parent ended before it forked");
        orphan = line.trim().rsplit_once("orphan ").map(|(_, pid)| pid.parse().unwrap());
    }
    assert_eq!(parent.wait().unwrap().signal(), Some(libc::SIGKILL));
    // The parent is killed and reaped, and its child still runs.
    let trace = Trace::create(&path).unwrap();
    // SAFETY: signal 0 only checks that the process exists.
    assert_eq!(unsafe { libc::kill(orphan.unwrap(), 0) }, 0);
    trace.finish().unwrap();
    drop(input);
    output.read_to_end(&mut Vec::new()).unwrap();
}

/// Descriptors of this process.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn child_of_fork_that_drops_a_trace_keeps_neither_its_descriptor_nor_its_threads() {
    let folder = tempfile::tempdir().unwrap();
    for collectors in [0, 2] {
        let options = Options { collectors, ..Options::default() };
        let mut own = Some(options.create(folder.path().join("t.cbt")).unwrap());
        assert!(in_child(|| {
            // These threads take over the stacks of all threads of the parent.
            let gate = Arc::new(Barrier::new(33));
            let wait = || {
                let gate = gate.clone();
                thread::spawn(move || _ = gate.wait())
            };
            let threads: Vec<_> = (1..33).map(|_| wait()).collect();
            let before = descriptors();
            drop(own.take());
            let after = descriptors();
            gate.wait();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            after == before - 1
        }));
        own.take().unwrap().finish().unwrap();
    }
}

#[test]
fn child_of_fork_logs_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.cbt");
    let trace =
        Options { buffer_bytes: 0, collectors: 0, ..Options::default() }.create(&path).unwrap();
    let log = trace.log().unwrap();
    // Both kinds get their numbers before the fork.
    log.emit(&Left);
    log.emit(&Entered { function: 0 });
    assert!(in_child(|| {
        (0..100_000).for_each(|function| log.emit(&Entered { function }));
        true
    }));
    drop(log);
    trace.finish().unwrap();
    let (seen, ending) = read(&path);
    assert!(ending.is_complete());
    assert_eq!(seen.len(), 2);
}

#[test]
fn child_of_fork_installs_a_trace_of_its_own() {
    let _alone = INSTALLED.lock().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let paths = ["parent.cbt", "child.cbt"].map(|name| folder.path().join(name));
    let own = Trace::create(&paths[0]).unwrap();
    own.install().unwrap();
    emit(&Entered { function: 1 });
    assert!(in_child(|| {
        let trace = Trace::create(&paths[1]).unwrap();
        trace.install().unwrap();
        emit(&Entered { function: 2 });
        trace.finish().unwrap().lost == 0
    }));
    emit(&Entered { function: 3 });
    own.finish().unwrap();
    assert_eq!(paths.map(|path| read(&path).0.len()), [2, 1]);
}
