//! What is recorded is read back.

use corebeat_trace::{Ending, Event, Options, Reader, Summary, Trace, Value, WhenFull, emit};
use std::fs::File;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
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

/// An event as it was read.
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
fn events_of_all_types_are_read_as_they_were_written() {
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
    assert_eq!((seen[0].kind.as_str(), seen[1].kind.as_str(), seen.len()), ("all.types", "Left", 2));
}

/// Logs from several threads; what each is to have said, in order.
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
fn threads_that_wait_lose_nothing() {
    // The last has buffers that are taken while they are filled.
    for (collectors, delay) in [(0, 1000), (1, 1000), (2, 1000), (1, 0)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.cbt");
        let (threads, events) = (4, 20_000);
        let options = Options::default().collectors(collectors).delay(Duration::from_millis(delay));
        let options = options.buffers(2).buffer_bytes(0).when_full(WhenFull::Wait);
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
fn threads_that_do_not_wait_count_what_they_lose() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.cbt");
    let (threads, events) = (4, 200_000);
    for options in [Options::default(), Options::default().delay(Duration::ZERO)] {
        let summary = many(options.buffers(1), &path, threads, events);
        let (seen, ending) = read(&path);
        assert!(matches!(ending, Ending::Complete { .. }));
        assert_eq!(seen.len() as u64 + summary.lost, u64::from(threads * events * 2));
    }
}

/// Logs one event at a time, each when the one before is in the file.
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
fn events_of_quiet_threads_are_written_before_their_buffers_are_full() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.cbt");
    let begin = || {
        let trace = Options::default().delay(Duration::ZERO).create(&path).unwrap();
        let log = trace.log().unwrap();
        (trace, log)
    };
    let (trace, log) = begin();
    let seen = log_slowly(trace, &path, |function| log.emit(&Entered { function }), 40);
    for (function, seen) in (0u64..).zip(&seen) {
        assert_eq!(seen.values, [format!("{:?}", Value::U64(function))]);
    }
    // Those without time stamps, too.
    let (trace, log) = begin();
    log_slowly(trace, &path, |_| log.emit(&Left), 40);
}

#[test]
fn discarded_trace_counts_and_writes_nothing() {
    let trace = Options::default().when_full(WhenFull::Wait).discard().unwrap();
    let log = trace.log().unwrap();
    (0..100_000).for_each(|function| log.emit(&Entered { function }));
    drop(log);
    let summary = trace.finish().unwrap();
    assert_eq!((summary.file_bytes, summary.threads, summary.lost), (0, 1, 0));
    // Some have a fix before them.
    assert!(summary.event_bytes >= 800_000 && summary.packets > 0, "{summary:?}");
}

/// One trace at a time can be installed.
static INSTALLED: Mutex<()> = Mutex::new(());

#[test]
fn events_of_all_threads_go_into_the_installed_trace_and_nowhere_else() {
    let _alone = INSTALLED.lock().unwrap();
    let folder = tempfile::tempdir().unwrap();
    emit(&Entered { function: 0 });
    for round in 1..3 {
        let path = folder.path().join("t.cbt");
        let trace = Trace::create(&path).unwrap();
        trace.install().unwrap();
        trace.install().unwrap(); // it is the one already
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

/// So large that some of them fill a buffer.
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
fn thread_that_logs_while_a_trace_ends_logs_into_the_next() {
    let _alone = INSTALLED.lock().unwrap();
    let long = "x".repeat(255);
    let x = long.as_str();
    let wait_for = |sign: &AtomicBool| {
        while !sign.load(Ordering::Acquire) {
            thread::yield_now();
        }
    };
    // Often: that a thread begins a buffer at that very moment is rare.
    for round in 0..500 {
        let begin = || {
            let options = Options::default().buffers(2).buffer_bytes(0).collectors(0);
            options.when_full(WhenFull::Wait).discard().unwrap()
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
        // It may have logged a large one there, too.
        assert!(second.finish().unwrap().event_bytes > 0, "round {round}");
    }
}

/// Where the child of the next test writes.
const RECORD: &str = "COREBEAT_TRACE_RECORD";

#[test]
fn child_records_until_it_is_killed() {
    // Nothing, but in a child.
    let Some(path) = std::env::var_os(RECORD) else { return };
    let trace = Options::default().buffer_bytes(0).when_full(WhenFull::Wait).create(path).unwrap();
    let log = trace.log().unwrap();
    for function in 0.. {
        log.emit(&Entered { function });
    }
}

#[test]
fn trace_of_a_killed_process_is_read_up_to_its_last_whole_packet() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.cbt");
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_records_until_it_is_killed"])
        .env(RECORD, &path)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    while path.metadata().map_or(0, |m| m.len()) < 300_000 {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
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

#[test]
fn child_of_fork_logs_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.cbt");
    let trace = Options::default().buffer_bytes(0).collectors(0).create(&path).unwrap();
    let log = trace.log().unwrap();
    // Both kinds have their number from here.
    log.emit(&Left);
    log.emit(&Entered { function: 0 });
    // SAFETY: the child does nothing but store events, which takes no lock and no memory, and exits.
    match unsafe { libc::fork() } {
        0 => {
            (0..100_000).for_each(|function| log.emit(&Entered { function }));
            // SAFETY: it never returns.
            unsafe { libc::_exit(0) }
        }
        child => {
            // SAFETY: it waits for a child of ours.
            assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
        }
    }
    drop(log);
    trace.finish().unwrap();
    let (seen, ending) = read(&path);
    assert!(ending.is_complete());
    assert_eq!(seen.len(), 2);
}
