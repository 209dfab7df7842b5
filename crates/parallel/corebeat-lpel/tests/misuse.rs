//! Misuse: each case is a clear error, or has the documented effect.

use corebeat_lpel::placement::{Place, Placement, TaskInfo};
use corebeat_lpel::scheduler::{Ready, Scheduler};
use corebeat_lpel::*;
use std::collections::VecDeque;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

fn runtime(workers: usize) -> Runtime {
    Runtime::builder().workers(workers).build().unwrap()
}

/// Runs this test again in a process of its own, where `child` does what may end the process. The
/// test may do so several times, with different names of the case.
///
/// Asserts that the process ended by `signal`, or without one with success, and returns its
/// standard error. Returns `None` in the process of a case.
fn in_child(
    test: &str,
    case: &str,
    env: &[(&str, &str)],
    signal: Option<i32>,
    child: impl FnOnce(),
) -> Option<String> {
    const CASE: &str = "COREBEAT_LPEL_CASE";
    if let Ok(requested) = std::env::var(CASE) {
        if requested == case {
            child();
        }
        return None;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(CASE, case);
    let output = command.envs(env.iter().copied()).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.signal(), signal, "{case}: {message}");
    assert_eq!(output.status.success(), signal.is_none(), "{case}: {message}");
    Some(message)
}

/// Asserts that `child` aborts its process, with a message that contains `line`.
fn assert_aborts(test: &str, case: &str, line: &str, child: impl FnOnce()) {
    if let Some(message) = in_child(test, case, &[], Some(libc::SIGABRT), child) {
        assert!(message.contains(line), "{case}: {message}");
    }
}

/// Returns the message of a panic.
fn panic_of<T>(f: impl FnOnce() -> T) -> String {
    let why = catch_unwind(AssertUnwindSafe(f)).map(|_| ()).expect_err("it should panic");
    let text = why.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.unwrap_or_else(|| *why.downcast().expect("a text"))
}

// ---- parameters

#[test]
fn capacity_of_zero_panics() {
    let message = panic_of(|| stream::<u8>(0));
    assert_eq!(message, "a stream needs room for at least one item");
    assert_eq!(panic_of(|| growing_stream::<u8>(0)), message);
}

#[test]
fn capacity_beyond_memory_panics() {
    for capacity in [1 << 50, usize::MAX] {
        let message = panic_of(|| stream::<u64>(capacity));
        assert!(
            message.contains(&format!("no memory for a stream with room for {capacity} items")),
            "{message}"
        );
    }
}

#[test]
fn stack_out_of_range_is_an_error() {
    let rt = runtime(1);
    for blocking in [false, true] {
        let task = |bytes| {
            let task = rt.task().stack_size(bytes);
            if blocking { task.blocking() } else { task }
        };
        for requested in [0, 1, STACK_MIN - 1] {
            let why = task(requested).spawn(|| ()).unwrap_err().to_string();
            assert_eq!(
                why,
                format!("a stack of {requested} bytes is too small: request at least {STACK_MIN}")
            );
        }
        for requested in [STACK_MAX + 1, usize::MAX] {
            let why = task(requested).spawn(|| ()).unwrap_err().to_string();
            assert_eq!(
                why,
                format!("a stack of {requested} bytes is too large: request at most {STACK_MAX}")
            );
        }
        for good in [STACK_MIN, STACK_MIN + 1, STACK_MAX] {
            task(good).spawn(|| ()).unwrap().join().unwrap();
        }
    }
    assert!(matches!(
        rt.task().stack_size(1).spawn_async(async {}),
        Err(Error::StackTooSmall { requested: 1 })
    ));
    let build = |bytes| Runtime::builder().workers(1).stack_size(bytes).build();
    assert!(matches!(build(100), Err(Error::StackTooSmall { requested: 100 })));
    assert!(matches!(build(usize::MAX), Err(Error::StackTooLarge { .. })));
    assert_eq!(rt.run(|| 1).unwrap(), 1);
}

#[test]
fn workers_out_of_range_are_an_error() {
    let build =
        |workers| Runtime::builder().workers(workers).build().map(|_| ()).unwrap_err().to_string();
    assert_eq!(
        build(0),
        "a runtime needs at least one worker: omit `workers` for one worker per CPU"
    );
    let requested = WORKERS_MAX + 1;
    assert_eq!(
        build(requested),
        format!("a runtime cannot have {requested} workers: request at most {WORKERS_MAX}")
    );
    let no_cpus = Runtime::builder().cpus([]).build();
    assert!(matches!(no_cpus, Err(Error::NoCpus)));
    assert!(matches!(
        Runtime::builder().workers(0).deterministic(1).build(),
        Err(Error::NoWorkers)
    ));
}

#[test]
fn nonexistent_worker_is_an_error() {
    let rt = runtime(2);
    let why = rt.task().worker(2).spawn(|| ()).unwrap_err().to_string();
    assert_eq!(why, "worker 2 does not exist: this runtime has 2, counted from 0");
    let inside =
        rt.run(|| matches!(Task::new().worker(9).spawn(|| ()), Err(Error::NoSuchWorker { .. })));
    assert!(inside.unwrap());
}

#[test]
fn placement_on_a_nonexistent_worker_is_an_error() {
    struct Far;
    impl Placement for Far {
        fn place(&mut self, task: &TaskInfo<'_>, workers: usize) -> Place {
            if task.name.is_some() { Place::Worker(workers) } else { Place::Anywhere }
        }
    }
    let rt = Runtime::builder().workers(1).placement(Far).build().unwrap();
    assert!(matches!(
        rt.task().name("far").spawn(|| ()),
        Err(Error::NoSuchWorker { requested: 1, workers: 1 })
    ));
    assert_eq!(rt.run(|| 3).unwrap(), 3);
}

#[test]
fn nonexistent_cpu_is_an_error() {
    for cpu in [1000, 100_000, usize::MAX] {
        let why = Runtime::builder().cpus([cpu]).workers(2).build().unwrap_err().to_string();
        assert!(why.starts_with(&format!("worker 0 cannot be pinned to CPU {cpu} (")), "{why}");
        assert!(why.ends_with("list CPUs that this process may use, or set `pin(false)`"), "{why}");
    }
    // Not pinned, so the CPU is irrelevant.
    Runtime::builder().cpus([1000]).pin(false).build().unwrap().run(|| ()).unwrap();
}

#[test]
fn any_text_is_a_valid_name() {
    for name in ["", "a\0b", "\u{1f600}", &"long ".repeat(1000)] {
        let rt = runtime(1);
        let got = rt.run({
            let name = name.to_owned();
            move || {
                let plain = Task::new().name(name.clone()).spawn(|| 1).unwrap();
                let blocking = Task::new().name(name).blocking().spawn(|| 2).unwrap();
                (plain.join().unwrap(), blocking.join().unwrap())
            }
        });
        assert_eq!(got.unwrap(), (1, 2));
    }
}

// ---- streams

#[test]
fn write_to_a_closed_stream_returns_the_item() {
    let (mut writer, reader) = stream(2);
    writer.write("lost".to_owned()).unwrap();
    drop(reader);
    assert!(writer.is_closed());
    let Err(Closed(item)) = writer.write("kept".to_owned()) else { panic!("the stream is closed") };
    assert_eq!(item, "kept");
    let TryWriteError::Closed(item) = writer.try_write("kept".to_owned()).unwrap_err() else {
        panic!("the stream is closed")
    };
    assert_eq!(item, "kept");
    let mut items = vec!["a".to_owned(), "b".to_owned()];
    assert!(writer.write_batch(&mut items).is_err());
    assert_eq!(items.last().unwrap(), "b");
}

#[test]
fn close_returns_the_item_of_a_blocked_writer() {
    for workers in [1, 2] {
        let item = runtime(workers).run(|| {
            let (mut writer, reader) = stream(1);
            writer.write(1).unwrap();
            let blocked = spawn(move || writer.write(2).map_err(|Closed(item)| item));
            while !dump().unwrap().tasks.iter().any(|t| t.status == Status::Writing) {
                yield_now();
            }
            drop(reader);
            blocked.join().unwrap()
        });
        assert_eq!(item.unwrap(), Err(2));
    }
}

// ---- calls from outside, and from the wrong side

#[test]
fn calls_from_a_plain_thread_have_documented_effects() {
    assert!(matches!(Task::new().spawn(|| ()), Err(Error::NoRuntime)));
    assert!(matches!(Task::new().blocking().spawn(|| ()), Err(Error::NoRuntime)));
    assert!(matches!(Task::new().spawn_async(async {}), Err(Error::NoRuntime)));
    let message = panic_of(|| spawn(|| ()));
    let no_runtime =
        "spawn was called outside a task: call it on a Runtime, or inside Runtime::run";
    assert!(message.ends_with(no_runtime), "{message}");
    assert!(panic_of(|| spawn_async(async {})).ends_with(no_runtime));
    let message = panic_of(|| exit());
    assert!(message.ends_with("exit was called outside a task: return instead"), "{message}");
    yield_now();
    sleep(Duration::from_millis(1));
    assert!(dump().is_none());
}

#[test]
fn plain_thread_has_its_own_task_local_data() {
    static HERE: Local<std::cell::Cell<u32>> = Local::new(|| std::cell::Cell::new(7));
    HERE.with(|v| v.set(8));
    assert_eq!(HERE.with(|v| v.get()), 8);
    assert_eq!(thread::spawn(|| HERE.with(|v| v.get())).join().unwrap(), 7);
    assert_eq!(runtime(1).run(|| HERE.with(|v| v.get())).unwrap(), 7);
    assert_eq!(HERE.with(|v| v.get()), 8);
}

#[test]
fn task_local_data_is_dropped_on_its_thread() {
    // The value need not be Send. One value is created again whenever it is dropped, and threads
    // end during dumps.
    static ELSEWHERE: AtomicUsize = AtomicUsize::new(0);
    struct Mine(thread::ThreadId, bool);
    impl Drop for Mine {
        fn drop(&mut self) {
            if thread::current().id() != self.0 {
                ELSEWHERE.fetch_add(1, Ordering::Relaxed);
            } else if self.1 {
                AGAIN.with(|_| ());
            }
        }
    }
    static ONCE: Local<Mine> = Local::new(|| Mine(thread::current().id(), false));
    static AGAIN: Local<Mine> = Local::new(|| Mine(thread::current().id(), true));
    let rt = runtime(1);
    let task = rt.spawn(|| AGAIN.with(|_| ()));
    let blocking = rt.task().blocking().spawn(|| AGAIN.with(|_| ())).unwrap();
    while !task.is_finished() || !blocking.is_finished() {
        thread::yield_now();
    }
    let ended = AtomicBool::new(false);
    thread::scope(|s| {
        s.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                rt.dump();
            }
        });
        for _ in 0..500 {
            thread::spawn(|| ONCE.with(|_| ())).join().unwrap();
        }
        ended.store(true, Ordering::Relaxed);
    });
    drop(rt);
    drop((task, blocking));
    assert_eq!(ELSEWHERE.load(Ordering::Relaxed), 0);
}

#[test]
fn task_local_data_lives_until_the_end_of_its_task() {
    static DROPS: AtomicUsize = AtomicUsize::new(0);
    struct Counts(std::cell::Cell<u32>);
    impl Drop for Counts {
        fn drop(&mut self) {
            // May still use other locals.
            assert_eq!(OTHER.with(|v| *v), 5);
            DROPS.fetch_add(1, Ordering::Relaxed);
        }
    }
    static OTHER: Local<u32> = Local::new(|| 5);
    static COUNT: Local<Counts> = Local::new(|| Counts(std::cell::Cell::new(OTHER.with(|v| *v))));
    let count = || COUNT.with(|c| c.0.replace(c.0.get() + 1));
    for workers in [1, 2] {
        let rt = runtime(workers);
        DROPS.store(0, Ordering::Relaxed);
        let got = rt.run(move || {
            let (mut writer, mut reader) = stream(1);
            let counts = spawn_async(async move {
                let before = (count(), reader.read_async().await, count());
                yield_now();
                (before, count())
            });
            let other = spawn(move || (count(), yield_now(), count()));
            assert_eq!(count(), 5);
            writer.write(()).unwrap();
            let got = (counts.join().unwrap(), other.join().unwrap(), count());
            (got, spawn(|| DROPS.load(Ordering::Relaxed)).join().unwrap())
        });
        assert_eq!(got.unwrap(), ((((5, Some(()), 6), 7), (5, (), 6), 6), 2));
        assert_eq!(DROPS.load(Ordering::Relaxed), 3);
    }
}

#[test]
fn run_inside_a_task_panics() {
    let outer = runtime(2);
    let inner = Arc::new(runtime(1));
    let message = outer.run({
        let inner = inner.clone();
        move || panic_of(|| inner.run(|| ()))
    });
    assert!(
        message
            .as_ref()
            .unwrap()
            .ends_with("Runtime::run was called inside a task: use spawn and join in tasks")
    );
    assert_eq!(inner.run(|| 1).unwrap(), 1);
}

#[test]
fn run_of_the_same_runtime_inside_a_blocking_task_panics() {
    let rt = Arc::new(runtime(1));
    let own = rt.clone();
    let message =
        rt.task().blocking().spawn(move || panic_of(|| own.run(|| ()))).unwrap().join().unwrap();
    assert!(
        message.ends_with("Runtime::run was called inside a task: use spawn and join in tasks"),
        "{message}"
    );
    // `run` of another runtime is allowed, because the blocking task is a thread.
    let other = rt.task().blocking().spawn(|| runtime(1).run(|| 5).unwrap());
    assert_eq!(other.unwrap().join().unwrap(), 5);
}

#[test]
fn tasks_of_two_runtimes_work_together() {
    let (one, two) = (runtime(1), Arc::new(runtime(2)));
    let sum = one.run({
        let two = two.clone();
        move || {
            let (mut a, b) = stream(1);
            let (mut c, d) = stream(1);
            let adder = two.spawn(move || {
                for n in b {
                    // Long enough for the first runtime to find that it makes no progress.
                    thread::sleep(Duration::from_micros(n));
                    c.write(n + 1).unwrap();
                }
            });
            let sum = spawn(move || d.sum::<u64>());
            (0..300).for_each(|n| a.write(n).unwrap());
            drop(a);
            adder.join().unwrap();
            sum.join().unwrap()
        }
    });
    assert_eq!(sum.unwrap(), 45150);
}

#[test]
fn runtime_built_and_dropped_inside_a_task_works() {
    let got = runtime(2).run(|| {
        let inner = runtime(2);
        let (_writer, mut reader) = stream::<u8>(1);
        let stays = inner.spawn(move || reader.read());
        let result = inner.spawn(|| thread::sleep(Duration::from_millis(20))).join();
        drop(inner);
        (result.is_ok(), matches!(stays.join(), Err(Failure::Cancelled)))
    });
    assert_eq!(got.unwrap(), (true, true));
}

#[test]
fn deterministic_runtime_dropped_inside_a_task_restores_its_context() {
    for workers in [1, 2] {
        let got = runtime(workers).run(|| {
            drop(Runtime::builder().deterministic(1).build().unwrap());
            yield_now();
            sleep(Duration::from_micros(1));
            spawn(|| 7).join().unwrap()
        });
        assert_eq!(got.unwrap(), 7);
    }
}

#[test]
fn runtime_dropped_inside_its_own_task_ends() {
    for workers in [1, 2] {
        let rt = Arc::new(runtime(workers));
        let (report, reported) = channel();
        let (mut go, mut wait) = stream(1);
        let (_never, mut nothing) = stream::<u8>(1);
        let waits = rt.spawn(move || nothing.read());
        let own = rt.clone();
        let drops = rt.spawn(move || {
            wait.read();
            drop(own);
            report.send("dropped").unwrap();
            // It is cancelled, as all tasks of this runtime.
            wait.read();
            report.send("went on").unwrap();
        });
        drop(rt);
        go.write(()).unwrap();
        assert!(matches!(drops.join(), Err(Failure::Cancelled)));
        assert!(matches!(waits.join(), Err(Failure::Cancelled)));
        assert_eq!(reported.iter().collect::<Vec<_>>(), ["dropped"]);
    }
}

#[test]
fn runtime_dropped_inside_its_own_blocking_task_ends() {
    let rt = Arc::new(runtime(1));
    let (mut go, mut wait) = stream(1);
    let (_never, mut nothing) = stream::<u8>(1);
    let waits = rt.spawn(move || nothing.read());
    let own = rt.clone();
    let drops = rt.task().blocking().spawn(move || {
        wait.read();
        drop(own);
        7
    });
    drop(rt);
    go.write(()).unwrap();
    assert_eq!(drops.unwrap().join().unwrap(), 7);
    assert!(matches!(waits.join(), Err(Failure::Cancelled)));
}

#[test]
fn task_spawned_while_its_runtime_ends_never_starts() {
    for workers in [1, 2] {
        let rt = runtime(workers);
        let (report, reported) = channel();
        let (mut started, mut starts) = stream(1);
        let (_never, mut nothing) = stream::<u8>(1);
        let waits = rt.spawn(move || {
            let _end = AtEnd(move || {
                let late =
                    [Task::new(), Task::new().blocking()].map(|task| task.spawn(|| ()).unwrap());
                report.send(late).unwrap();
            });
            started.write(()).unwrap();
            nothing.read()
        });
        starts.read();
        drop(rt);
        assert!(matches!(waits.join(), Err(Failure::Cancelled)));
        for late in reported.recv().unwrap() {
            assert!(matches!(late.join(), Err(Failure::Cancelled)));
        }
    }
}

#[test]
fn task_that_catches_its_end_is_unwound_at_its_next_wait() {
    for workers in [1, 2] {
        let rt = runtime(workers);
        let (mut started, mut starts) = stream(1);
        let (never, mut nothing) = stream::<u8>(1);
        let stubborn = rt.spawn(move || {
            started.write(()).unwrap();
            (0..5).filter(|_| catch_unwind(AssertUnwindSafe(|| nothing.read())).is_err()).count()
        });
        starts.read();
        drop(rt);
        // It passed five waits that ended at once, and has a result.
        assert_eq!(stubborn.join().unwrap(), 5);
        assert!(never.is_closed());
    }
}

// ---- destructors

/// Calls a function when it is dropped.
struct AtEnd<F: FnMut()>(F);

impl<F: FnMut()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[test]
fn destructor_may_block() {
    for workers in [1, 2] {
        let got = runtime(workers).run(|| {
            let (mut writer, reader) = stream(1);
            let task = spawn(move || {
                let _end = AtEnd(move || {
                    for n in 0..5 {
                        yield_now();
                        sleep(Duration::from_micros(1));
                        writer.write(n).unwrap();
                    }
                });
                10
            });
            (reader.collect::<Vec<_>>(), task.join().unwrap())
        });
        assert_eq!(got.unwrap(), (vec![0, 1, 2, 3, 4], 10));
    }
}

#[test]
fn destructor_while_unwinding_does_not_block() {
    for workers in [1, 2] {
        let got = runtime(workers).run(|| {
            let (mut writer, mut reader) = stream(1);
            let (report, reported) = channel();
            let (other, mut from_other) = stream::<u8>(1);
            let (kept, _keeps) = stream::<u8>(1);
            let mut joined = Some(spawn(move || {
                let _kept = kept;
                from_other.read()
            }));
            let mut set = StreamSet::new();
            let (_silent, silent) = stream::<u8>(1);
            set.add(silent);
            let (_mute, mut mute) = stream::<u8>(1);
            let task = spawn(move || {
                writer.write(0).unwrap();
                let _end = AtEnd(move || {
                    // There is no room, no item, no end, no event: none of these calls waits.
                    let written = writer.write(1);
                    yield_now();
                    sleep(Duration::from_secs(3600));
                    let joined = joined.take().map(|j| matches!(j.join(), Err(Failure::Unwinding)));
                    report
                        .send((written.is_err(), mute.read(), joined, set.read().is_none()))
                        .unwrap();
                });
                panic!("unwinds");
            });
            assert!(matches!(task.join(), Err(Failure::Panicked(_))));
            drop(other);
            (reported.recv().unwrap(), reader.read(), reader.read())
        });
        assert_eq!(got.unwrap(), ((true, None, Some(true), true), Some(0), None));
    }
}

#[test]
fn destructor_while_unwinding_writes_if_there_is_room() {
    let got = runtime(1).run(|| {
        let (mut writer, reader) = stream(4);
        let task = spawn(move || {
            let _end = AtEnd(move || writer.write("the end").unwrap());
            panic!("unwinds");
        });
        (reader.collect::<Vec<_>>(), task.join().is_err())
    });
    assert_eq!(got.unwrap(), (vec!["the end"], true));
}

#[test]
fn destructor_of_an_unused_result_may_block() {
    // A worker drops such a result between two tasks, where it must not wait: the stream appears
    // closed.
    for workers in [1, 2] {
        let rt = runtime(workers);
        for _ in 0..20 {
            let (mut writer, mut reader) = stream(1);
            let (report, reported) = channel();
            let (mut go, mut wait) = stream(1);
            drop(rt.spawn(move || {
                wait.read();
                AtEnd(move || {
                    let first = writer.write(1).is_ok();
                    let second = writer.write(2).is_ok();
                    sleep(Duration::from_secs(3600));
                    let _ = report.send((first, second));
                })
            }));
            go.write(()).unwrap();
            assert_eq!(reported.recv().unwrap(), (true, false));
            assert_eq!((reader.read(), reader.read()), (Some(1), None));
        }
        assert_eq!(rt.run(|| 1).unwrap(), 1);
    }
}

#[test]
fn destructor_of_a_task_that_never_started_may_block() {
    let rt = runtime(1);
    let (mut started, mut starts) = stream(1);
    rt.spawn(move || {
        started.write(()).unwrap();
        // Keeps the only worker busy until the runtime is ending: from then on a new task ends at
        // once.
        while !spawn(|| ()).is_finished() {
            thread::yield_now();
        }
    });
    starts.read();
    let (mut writer, mut reader) = stream(1);
    let end = AtEnd(move || {
        let _ = (writer.write(1), writer.write(2));
        sleep(Duration::from_secs(3600));
    });
    let never = rt.spawn(move || drop(end));
    drop(rt);
    assert!(matches!(never.join(), Err(Failure::Cancelled)));
    assert_eq!((reader.read(), reader.read()), (Some(1), None));
}

/// Panics when it is dropped, except during a panic.
struct Bad;

impl Drop for Bad {
    fn drop(&mut self) {
        if !thread::panicking() {
            panic!("a panicking destructor");
        }
    }
}

#[test]
fn panicking_destructor_of_an_item_does_not_prevent_the_close() {
    for workers in [1, 2] {
        let rt = runtime(workers);
        let got = rt.run(|| {
            let (mut writer, reader) = stream(2);
            writer.write(Some(Bad)).map_err(|_| ()).unwrap();
            writer.write(None).map_err(|_| ()).unwrap();
            let drops = spawn(move || drop(reader));
            let written = spawn(move || {
                // Waits for room until the reader is dropped.
                while writer.write(None).is_ok() {}
            });
            (drops.join().is_err(), written.join().is_ok())
        });
        assert_eq!(got.unwrap(), (true, true));
        assert_eq!(rt.run(|| 1).unwrap(), 1);
    }
}

#[test]
fn panics_in_bodies_results_and_data_affect_no_other_task() {
    static LOCAL: Local<Bad> = Local::new(|| Bad);
    for workers in [1, 2] {
        let rt = runtime(workers);
        // Panics in the body, in an unused result, in a captured variable, in task-local data, and
        // in a future.
        let panics = rt.spawn(|| panic!("{}", "text")).join().unwrap_err();
        assert_eq!(panics.to_string(), "the task panicked: text");
        let any = rt.spawn(|| std::panic::panic_any(5u8)).join().unwrap_err();
        let Failure::Panicked(with) = any else { panic!("{any}") };
        assert_eq!(with.message(), None);
        assert_eq!(with.into_payload().downcast_ref(), Some(&5u8));
        drop(rt.spawn(|| Bad));
        let captured = Bad;
        assert!(rt.spawn(move || drop(captured)).join().is_err());
        assert_eq!(rt.spawn(|| LOCAL.with(|_| 6)).join().unwrap(), 6);
        let captured = Bad;
        let polled = rt.spawn_async(async move {
            let _captured = captured;
            panic!("while the task owns a value");
        });
        assert!(polled.join().is_err());
        assert_eq!(rt.run(|| 1).unwrap(), 1);
        let counters = rt.counters();
        assert_eq!(counters.spawned, counters.ended);
    }
}

#[test]
fn exit_unwinds_and_is_reported_to_the_joiner() {
    for workers in [1, 2] {
        let rt = runtime(workers);
        let (mut writer, reader) = stream(1);
        let exits = rt.spawn(move || {
            let _end = AtEnd(move || writer.write("unwound").unwrap());
            exit();
        });
        assert!(matches!(exits.join(), Err(Failure::Exited)));
        assert_eq!(reader.collect::<Vec<_>>(), ["unwound"]);
        let blocking = rt.task().blocking().spawn(|| exit()).unwrap();
        assert!(matches!(blocking.join(), Err(Failure::Exited)));
        let future = rt.spawn_async(async { exit() });
        assert!(matches!(future.join(), Err(Failure::Exited)));
        assert!(matches!(rt.run(|| exit()), Err(Failure::Exited)));
    }
}

#[test]
fn task_that_joins_itself_is_a_deadlock() {
    let rt = runtime(1);
    let got = rt.run(|| {
        let (mut give, mut take) = stream::<JoinHandle<()>>(1);
        let handle = spawn(move || {
            let me = take.read().unwrap();
            let _ = me.join();
        });
        let id = handle.id();
        give.write(handle).map_err(|_| ()).unwrap();
        id
    });
    assert!(got.is_ok());
    let counters = rt.counters();
    assert_eq!(counters.spawned, counters.ended);
}

// ---- what ends a process

#[test]
fn stack_overflow_message_names_task_activity_and_option() {
    fn deeper(n: u64) -> u64 {
        let row = std::hint::black_box([n; 64]);
        if n == u64::MAX { 0 } else { deeper(n + 1) + row[3] }
    }
    fn overflow(rt: &Runtime, dive: fn() -> u64) {
        let _ = rt.task().name("abyss").stack_size(32 << 10).spawn(dive).unwrap().join();
    }
    let cases: [(&str, &str, fn()); 3] = [
        (
            "task",
            "'abyss' has overflowed its stack of 32768 bytes: set a larger one with stack_size\n",
            || overflow(&runtime(2), || deeper(0)),
        ),
        (
            "activity and option",
            "'abyss', in a dive, has overflowed its stack of 32768 bytes: set a larger one with \
             --stack\n",
            || {
                let rt = Runtime::builder().workers(1).stack_option("--stack").build().unwrap();
                overflow(&rt, || doing("a dive", || deeper(0)));
            },
        ),
        ("outside tasks", "thread 'deep'", || {
            let _rt = runtime(1);
            let _ = thread::Builder::new().name("deep".into()).spawn(|| deeper(0)).unwrap().join();
        }),
    ];
    let test = "stack_overflow_message_names_task_activity_and_option";
    for (case, line, child) in cases {
        if let Some(message) = in_child(test, case, &[], Some(libc::SIGABRT), child) {
            assert!(message.contains(line), "{message}");
            assert!(message.contains("has overflowed its stack"), "{message}");
            assert!(!message.contains("crashed"), "{message}");
        }
    }
}

#[test]
fn crash_message_names_task_and_activity_and_keeps_the_signal() {
    let crashes: [(&str, i32, fn()); 4] = [
        // SAFETY: the process is expected to end here.
        ("SIGSEGV", libc::SIGSEGV, || unsafe {
            std::ptr::without_provenance::<u8>(4096).read_volatile();
        }),
        // SAFETY: has the effect of a faulting instruction, and ends the process.
        ("SIGFPE", libc::SIGFPE, || unsafe {
            let _ = libc::raise(libc::SIGFPE);
        }),
        // SAFETY: as above.
        ("SIGILL", libc::SIGILL, || unsafe {
            let _ = libc::raise(libc::SIGILL);
        }),
        ("SIGABRT", libc::SIGABRT, || std::process::abort()),
    ];
    let test = "crash_message_names_task_and_activity_and_keeps_the_signal";
    for (name, signal, crash) in crashes {
        let message = in_child(test, name, &[], Some(signal), || {
            let rt = runtime(2);
            let crashes = rt.task().name("wild").spawn(move || {
                doing("a part that is over", || ());
                let _ = doing("outer", || {
                    std::panic::catch_unwind(|| doing("inner", || panic!("caught")))
                });
                doing("a leap", crash);
            });
            let _ = crashes.unwrap().join();
        });
        let Some(message) = message else { continue };
        assert!(message.ends_with(&format!("'wild', in a leap, crashed: {name}\n")), "{message}");
        assert!(!message.contains("overflowed"), "{message}");
    }
    let message = in_child(test, "outside tasks", &[], Some(libc::SIGABRT), || {
        let rt = runtime(1);
        rt.run(|| doing("something else", || ())).unwrap();
        doing("nothing of a task", || std::process::abort());
    });
    assert!(message.is_none_or(|message| !message.contains("crashed")));
}

#[test]
fn panic_fits_the_stack() {
    // With a backtrace, the default stack; without one, the smallest stack.
    let test = "panic_fits_the_stack";
    for (trace, stack_size) in [("1", STACK_SIZE), ("full", STACK_SIZE), ("0", STACK_MIN)] {
        let message = in_child(test, trace, &[("RUST_BACKTRACE", trace)], None, || {
            let rt = runtime(1);
            let task = || rt.task().stack_size(stack_size);
            let why = task().spawn(|| panic!("{}", "in a task")).unwrap().join().unwrap_err();
            assert_eq!(why.to_string(), "the task panicked: in a task");
            let awaits = task().spawn_async(async { panic!("{}", "in a future") });
            assert!(awaits.unwrap().join().is_err());
        });
        let Some(message) = message else { continue };
        assert!(message.contains("in a task"), "{message}");
        assert_eq!(message.contains("stack backtrace:"), trace != "0", "{message}");
    }
}

#[test]
fn more_tasks_than_memory_allows_is_an_error() {
    const LIMIT: u64 = 512 << 20;
    let test = "more_tasks_than_memory_allows_is_an_error";
    in_child(test, "limit", &[], None, || {
        let rt = runtime(1);
        rt.run(|| ()).unwrap();
        let limit = libc::rlimit { rlim_cur: LIMIT, rlim_max: LIMIT };
        // SAFETY: reads the limit.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
        let (without, others, after) = rt
            .run(|| {
                let (mut open, mut gate) = stream::<()>(1);
                let mut tasks = Vec::new();
                let (mut without, mut others) = (0, 0);
                for _ in 0..2000 {
                    let (hold, mut held) = stream::<()>(1);
                    let task = Task::new().stack_size(1 << 20).spawn(move || {
                        held.read();
                    });
                    tasks.push((task.unwrap(), hold));
                    yield_now();
                }
                open.write(()).unwrap();
                gate.read();
                for (task, hold) in tasks {
                    drop(hold);
                    match task.join() {
                        Ok(()) => {}
                        Err(Failure::NoStack(why)) => {
                            without += 1;
                            assert_eq!(why.raw_os_error(), Some(libc::ENOMEM));
                        }
                        Err(_) => others += 1,
                    }
                }
                // All memory is free again.
                let after = (0..10).all(|n| spawn(move || n).join().is_ok());
                (without, others, after)
            })
            .unwrap();
        assert!(without > 1000 && others == 0 && after, "{without} {others} {after}");
    });
}

#[test]
fn deadlock_of_tasks_without_joiner_is_printed() {
    let message = in_child("deadlock_of_tasks_without_joiner_is_printed", "one", &[], None, || {
        let alone = || {
            let (_writer, mut reader) = stream::<u8>(1);
            reader.read();
        };
        runtime(1).run(move || drop(Task::new().name("lonely").spawn(alone).unwrap())).unwrap();
    });
    let Some(message) = message else { return };
    let line = "corebeat-lpel: deadlock, 1 task";
    assert!(message.contains(line) && message.contains("'lonely'"), "{message}");
}

/// Tasks in order of arrival. Shared by all workers if the queue is.
#[derive(Clone, Default)]
struct Queue(Arc<Mutex<VecDeque<Ready>>>);

impl Scheduler for Queue {
    fn put(&mut self, task: Ready) {
        // The victim becomes ready for the second time when another task wakes it.
        let is_woken_victim = task.name() == Some("victim") && task.dispatches() > 0;
        assert!(!is_woken_victim, "a panicking scheduler");
        self.0.lock().unwrap().push_back(task);
    }
    fn fetch(&mut self) -> Option<Ready> {
        self.0.lock().unwrap().pop_front()
    }
    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

#[test]
fn panicking_scheduler_aborts_the_program() {
    struct Bad;
    impl Scheduler for Bad {
        fn put(&mut self, _: Ready) {}
        fn fetch(&mut self) -> Option<Ready> {
            panic!("a panicking scheduler")
        }
        fn len(&self) -> usize {
            0
        }
    }
    let bad = || Runtime::builder().workers(1).scheduler(|_| Box::new(Bad));
    let test = "panicking_scheduler_aborts_the_program";
    let line = "a worker panicked between two tasks";
    assert_aborts(test, "worker", line, || drop(bad().build().unwrap().run(|| ())));
    assert_aborts(test, "no threads", line, || {
        drop(bad().deterministic(1).build().unwrap().run(|| ()));
    });
    assert_aborts(test, "wake-up", line, || {
        let queue = |_| -> Box<dyn Scheduler> { Box::new(Queue::default()) };
        let rt = Runtime::builder().workers(1).scheduler(queue).build().unwrap();
        let (mut writer, mut reader) = stream(1);
        let victim = rt.task().name("victim").spawn(move || reader.read()).unwrap();
        while !rt.dump().tasks.iter().any(|t| t.status == Status::Reading) {
            thread::yield_now();
        }
        let _ = rt.spawn(move || writer.write(1)).join();
        // This line must not run: the victim is lost, and no task can wait for it.
        std::mem::forget((rt, victim));
    });
}

#[test]
fn scheduler_that_returns_a_task_of_another_worker_aborts_the_program() {
    let test = "scheduler_that_returns_a_task_of_another_worker_aborts_the_program";
    assert_aborts(test, "shared", "a scheduler returned a task of another worker", || {
        let queue = Queue::default();
        let shared = move |_| -> Box<dyn Scheduler> { Box::new(queue.clone()) };
        // The order is drawn from a seed, so that both workers fetch the task.
        let rt = Runtime::builder().workers(2).scheduler(shared).deterministic(1).build().unwrap();
        let _ = rt.run(|| (0..100).for_each(|_| yield_now()));
    });
}

#[test]
fn destructor_of_thread_local_data_of_a_blocking_task_does_not_wait() {
    use std::cell::Cell;
    use std::sync::mpsc;

    struct Last(Option<Reader<u8>>, mpsc::Sender<Option<u8>>);
    impl Drop for Last {
        fn drop(&mut self) {
            let _ = self.1.send(self.0.take().and_then(|mut r| r.read()));
        }
    }
    thread_local!(static LAST: Cell<Option<Last>> = const { Cell::new(None) });
    let rt = runtime(1);
    let (writer, reader) = stream(1);
    let (report, reported) = mpsc::channel();
    let body = move || LAST.set(Some(Last(Some(reader), report)));
    rt.run(|| Task::new().blocking().spawn(body).unwrap().join().unwrap()).unwrap();
    assert_eq!(reported.recv(), Ok(None));
    // All tasks are counted.
    assert_eq!(rt.run(|| 1).unwrap(), 1);
    drop(writer);
}

#[test]
fn destructors_of_remaining_items_may_panic() {
    struct Item(bool);
    impl Drop for Item {
        fn drop(&mut self) {
            if self.0 {
                panic!("expected");
            }
        }
    }
    static STEP: AtomicU32 = AtomicU32::new(0);
    let wait_for = |step| {
        while STEP.load(Ordering::SeqCst) < step {
            thread::yield_now();
        }
    };
    let rt = Runtime::builder().workers(1).spin(Duration::ZERO).build().unwrap();
    let (mut writer, mut reader) = stream(8);
    let task = rt.spawn(move || {
        // It runs while the reader waits, so that its worker defers a recheck of the stream.
        let other = spawn(move || {
            STEP.store(1, Ordering::SeqCst);
            wait_for(2);
        });
        drop(reader.read());
        drop(reader);
        STEP.store(3, Ordering::SeqCst);
        wait_for(4);
        other.join().unwrap();
    });
    wait_for(1);
    assert!(writer.write(Item(false)).is_ok());
    STEP.store(2, Ordering::SeqCst);
    wait_for(3);
    let mut items: Vec<_> = (0..3).map(|n| Item(n == 0)).collect();
    assert!(writer.write_batch(&mut items).is_err());
    std::mem::forget(items);
    drop(writer);
    STEP.store(4, Ordering::SeqCst);
    task.join().unwrap();
    assert_eq!(rt.run(|| 1).unwrap(), 1);
}
