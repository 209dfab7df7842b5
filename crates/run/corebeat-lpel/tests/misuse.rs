//! What should not be done: each is a clear error, or does what is documented.

use corebeat_lpel::placement::{Place, Placement, TaskInfo};
use corebeat_lpel::scheduler::{Ready, Scheduler};
use corebeat_lpel::*;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

fn runtime(workers: usize) -> Runtime {
    Runtime::builder().workers(workers).build().unwrap()
}

/// Runs this test again in a process of its own, where `child` does what may end the process. `None` in that process.
fn in_child(test: &str, env: &[(&str, &str)], child: impl FnOnce()) -> Option<Output> {
    const CHILD: &str = "COREBEAT_LPEL_CHILD";
    if std::env::var_os(CHILD).is_some() {
        child();
        return None;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(CHILD, "1");
    Some(command.envs(env.iter().copied()).output().unwrap())
}

fn signal(output: &Output) -> Option<i32> {
    use std::os::unix::process::ExitStatusExt;
    output.status.signal()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What a panic says.
fn panic_of<T>(f: impl FnOnce() -> T) -> String {
    let why = catch_unwind(AssertUnwindSafe(f)).map(|_| ()).expect_err("it should panic");
    let text = why.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.unwrap_or_else(|| *why.downcast().expect("a text"))
}

// ---- parameters

#[test]
fn capacity_of_zero_panics() {
    let said = panic_of(|| stream::<u8>(0));
    assert_eq!(said, "a stream needs room for at least one item");
    assert_eq!(panic_of(|| growing_stream::<u8>(0)), said);
}

#[test]
fn capacity_beyond_memory_panics() {
    for capacity in [1 << 50, usize::MAX] {
        let said = panic_of(|| stream::<u64>(capacity));
        assert!(said.contains(&format!("no memory for a stream with room for {capacity} items")), "{said}");
    }
}

#[test]
fn stack_out_of_range_is_an_error() {
    let rt = runtime(1);
    for wrapper in [false, true] {
        let task = |bytes| {
            let task = rt.task().stack_size(bytes);
            if wrapper { task.wrapper() } else { task }
        };
        for asked in [0, 1, STACK_MIN - 1] {
            let why = task(asked).spawn(|| ()).unwrap_err().to_string();
            assert_eq!(why, format!("a stack of {asked} bytes is too small: give it at least {STACK_MIN}"));
        }
        for asked in [STACK_MAX + 1, usize::MAX] {
            let why = task(asked).spawn(|| ()).unwrap_err().to_string();
            assert_eq!(why, format!("a stack of {asked} bytes is too large: {STACK_MAX} is the most"));
        }
        for good in [STACK_MIN, STACK_MIN + 1, STACK_MAX] {
            task(good).spawn(|| ()).unwrap().join().unwrap();
        }
    }
    assert!(matches!(rt.task().stack_size(1).spawn_async(async {}), Err(Error::StackTooSmall { asked: 1 })));
    let build = |bytes| Runtime::builder().workers(1).stack_size(bytes).build();
    assert!(matches!(build(100), Err(Error::StackTooSmall { asked: 100 })));
    assert!(matches!(build(usize::MAX), Err(Error::StackTooLarge { .. })));
    assert_eq!(rt.run(|| 1).unwrap(), 1);
}

#[test]
fn workers_out_of_range_are_an_error() {
    let build = |workers| Runtime::builder().workers(workers).build().map(|_| ()).unwrap_err().to_string();
    assert_eq!(build(0), "a runtime needs at least one worker: leave `workers` out for one a CPU");
    let asked = WORKERS_MAX + 1;
    assert_eq!(build(asked), format!("{asked} workers are more than a runtime may have ({WORKERS_MAX})"));
    let no_cpus = Runtime::builder().cpus([]).build();
    assert!(matches!(no_cpus, Err(Error::NoCpus)));
    assert!(matches!(Runtime::builder().workers(0).deterministic(1).build(), Err(Error::NoWorkers)));
}

#[test]
fn worker_that_is_not_there_is_an_error() {
    let rt = runtime(2);
    let why = rt.task().worker(2).spawn(|| ()).unwrap_err().to_string();
    assert_eq!(why, "there is no worker 2: this runtime has 2, counted from 0");
    let inside = rt.run(|| matches!(Task::new().worker(9).spawn(|| ()), Err(Error::NoSuchWorker { .. })));
    assert!(inside.unwrap());
}

#[test]
fn placement_on_a_worker_that_is_not_there_is_an_error() {
    struct Far;
    impl Placement for Far {
        fn place(&mut self, task: &TaskInfo<'_>, workers: usize) -> Place {
            if task.name.is_some() { Place::Worker(workers) } else { Place::Anywhere }
        }
    }
    let rt = Runtime::builder().workers(1).placement(Far).build().unwrap();
    assert!(matches!(rt.task().name("far").spawn(|| ()), Err(Error::NoSuchWorker { asked: 1, workers: 1 })));
    assert_eq!(rt.run(|| 3).unwrap(), 3);
}

#[test]
fn cpu_that_is_not_there_is_an_error() {
    for cpu in [1000, 100_000, usize::MAX] {
        let why = Runtime::builder().cpus([cpu]).workers(2).build().unwrap_err().to_string();
        assert!(why.starts_with(&format!("worker 0 cannot run on CPU {cpu} (")), "{why}");
        assert!(why.ends_with("name CPUs that this process may use, or set `pin(false)`"), "{why}");
    }
    // Not bound, so it does not matter.
    Runtime::builder().cpus([1000]).pin(false).build().unwrap().run(|| ()).unwrap();
}

#[test]
fn name_of_any_text_is_fine() {
    for name in ["", "a\0b", "\u{1f600}", &"long ".repeat(1000)] {
        let rt = runtime(1);
        let got = rt.run({
            let name = name.to_owned();
            move || {
                let plain = Task::new().name(name.clone()).spawn(|| 1).unwrap();
                let wrapper = Task::new().name(name).wrapper().spawn(|| 2).unwrap();
                (plain.join().unwrap(), wrapper.join().unwrap())
            }
        });
        assert_eq!(got.unwrap(), (1, 2));
    }
}

// ---- streams

#[test]
fn write_to_a_closed_stream_gives_the_item_back() {
    let (mut writer, reader) = stream(2);
    writer.write("lost".to_owned()).unwrap();
    drop(reader);
    assert!(writer.is_closed());
    let Err(Closed(item)) = writer.write("kept".to_owned()) else { panic!("it is closed") };
    assert_eq!(item, "kept");
    let TryWriteError::Closed(item) = writer.try_write("kept".to_owned()).unwrap_err() else {
        panic!("it is closed")
    };
    assert_eq!(item, "kept");
    let mut items = vec!["a".to_owned(), "b".to_owned()];
    assert!(writer.write_batch(&mut items).is_err());
    assert_eq!(items.last().unwrap(), "b");
}

#[test]
fn writer_blocked_on_a_stream_that_closes_gets_its_item_back() {
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

#[test]
fn stream_used_by_threads_alone_blocks_threads() {
    let (mut writer, reader) = stream(1);
    let other = thread::spawn(move || reader.sum::<u64>());
    for n in 0..10_000 {
        writer.write(n).unwrap();
    }
    drop(writer);
    assert_eq!(other.join().unwrap(), 49_995_000);
    let mut set = StreamSet::new();
    let (mut writer, reader) = stream(1);
    set.add(reader);
    let other = thread::spawn(move || (0..1000).for_each(|n| writer.write(n).unwrap()));
    let mut items = 0;
    while let Some((_, event)) = set.read() {
        items += u32::from(matches!(event, Event::Item(_)));
    }
    assert_eq!(items, 1000);
    other.join().unwrap();
}

// ---- calls from outside, and from the wrong side

#[test]
fn calls_from_a_plain_thread_do_what_they_say() {
    assert!(matches!(Task::new().spawn(|| ()), Err(Error::NoRuntime)));
    assert!(matches!(Task::new().wrapper().spawn(|| ()), Err(Error::NoRuntime)));
    assert!(matches!(Task::new().spawn_async(async {}), Err(Error::NoRuntime)));
    let said = panic_of(|| spawn(|| ()));
    let no_runtime = "spawn was called outside a task: call it on a Runtime, or inside Runtime::run";
    assert!(said.ends_with(no_runtime), "{said}");
    assert!(panic_of(|| spawn_async(async {})).ends_with(no_runtime));
    let said = panic_of(|| exit());
    assert!(said.ends_with("exit was called outside a task: return instead"), "{said}");
    yield_now();
    sleep(Duration::from_millis(1));
    assert!(dump().is_none());
}

#[test]
fn plain_thread_has_task_local_data_of_its_own() {
    static HERE: Local<std::cell::Cell<u32>> = Local::new(|| std::cell::Cell::new(7));
    HERE.with(|v| v.set(8));
    assert_eq!(HERE.with(|v| v.get()), 8);
    assert_eq!(thread::spawn(|| HERE.with(|v| v.get())).join().unwrap(), 7);
    assert_eq!(runtime(1).run(|| HERE.with(|v| v.get())).unwrap(), 7);
    assert_eq!(HERE.with(|v| v.get()), 8);
}

#[test]
fn task_local_data_is_dropped_where_it_was_made() {
    // It need not be Send. One value is made again whenever it is dropped; and threads end while dumps are made.
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
    let wrapper = rt.task().wrapper().spawn(|| AGAIN.with(|_| ())).unwrap();
    while !task.is_finished() || !wrapper.is_finished() {
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
    drop((task, wrapper));
    assert_eq!(ELSEWHERE.load(Ordering::Relaxed), 0);
}

#[test]
fn task_local_data_lives_as_long_as_its_task() {
    static DROPS: AtomicUsize = AtomicUsize::new(0);
    struct Counts(std::cell::Cell<u32>);
    impl Drop for Counts {
        fn drop(&mut self) {
            // May still ask for others.
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
    let said = outer.run({
        let inner = inner.clone();
        move || panic_of(|| inner.run(|| ()))
    });
    assert!(
        said.as_ref().unwrap().ends_with("Runtime::run was called inside a task: use spawn and join there")
    );
    assert_eq!(inner.run(|| 1).unwrap(), 1);
}

#[test]
fn run_of_its_own_runtime_inside_a_wrapper_panics() {
    let rt = Arc::new(runtime(1));
    let own = rt.clone();
    let said = rt.task().wrapper().spawn(move || panic_of(|| own.run(|| ()))).unwrap().join().unwrap();
    assert!(said.ends_with("Runtime::run was called inside a task: use spawn and join there"), "{said}");
    // Another runtime's is fine: the wrapper is a thread.
    let other = rt.task().wrapper().spawn(|| runtime(1).run(|| 5).unwrap());
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
                    // Long enough for the first runtime to find that nothing moves there.
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
fn deterministic_runtime_dropped_inside_a_task_leaves_the_task_where_it_was() {
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
        let (tell, told) = channel();
        let (mut go, mut wait) = stream(1);
        let (_never, mut nothing) = stream::<u8>(1);
        let waits = rt.spawn(move || nothing.read());
        let own = rt.clone();
        let drops = rt.spawn(move || {
            wait.read();
            drop(own);
            tell.send("dropped").unwrap();
            // It is to end early, as all tasks of this runtime are.
            wait.read();
            tell.send("went on").unwrap();
        });
        drop(rt);
        go.write(()).unwrap();
        assert!(matches!(drops.join(), Err(Failure::Cancelled)));
        assert!(matches!(waits.join(), Err(Failure::Cancelled)));
        assert_eq!(told.iter().collect::<Vec<_>>(), ["dropped"]);
    }
}

#[test]
fn runtime_dropped_inside_its_own_wrapper_ends() {
    let rt = Arc::new(runtime(1));
    let (mut go, mut wait) = stream(1);
    let (_never, mut nothing) = stream::<u8>(1);
    let waits = rt.spawn(move || nothing.read());
    let own = rt.clone();
    let drops = rt.task().wrapper().spawn(move || {
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
        let (tell, told) = channel();
        let (mut started, mut starts) = stream(1);
        let (_never, mut nothing) = stream::<u8>(1);
        let waits = rt.spawn(move || {
            let _end = AtEnd(move || {
                let late = [Task::new(), Task::new().wrapper()].map(|task| task.spawn(|| ()).unwrap());
                tell.send(late).unwrap();
            });
            started.write(()).unwrap();
            nothing.read()
        });
        starts.read();
        drop(rt);
        assert!(matches!(waits.join(), Err(Failure::Cancelled)));
        for late in told.recv().unwrap() {
            assert!(matches!(late.join(), Err(Failure::Cancelled)));
        }
    }
}

#[test]
fn task_that_catches_its_end_ends_where_it_waits_next() {
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
        // It went through five waits that ended at once, and has a result.
        assert_eq!(stubborn.join().unwrap(), 5);
        assert!(never.is_closed());
    }
}

// ---- destructors

/// Does something when it is dropped.
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
            let (tell, told) = channel();
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
                    // There is no room, no item, no end, no event: none of these waits.
                    let written = writer.write(1);
                    yield_now();
                    sleep(Duration::from_secs(3600));
                    let joined = joined.take().map(|j| matches!(j.join(), Err(Failure::Unwinding)));
                    tell.send((written.is_err(), mute.read(), joined, set.read().is_none())).unwrap();
                });
                panic!("unwinds");
            });
            assert!(matches!(task.join(), Err(Failure::Panicked(_))));
            drop(other);
            (told.recv().unwrap(), reader.read(), reader.read())
        });
        assert_eq!(got.unwrap(), ((true, None, Some(true), true), Some(0), None));
    }
}

#[test]
fn destructor_while_unwinding_still_writes_where_there_is_room() {
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
fn result_that_nobody_takes_may_block_when_dropped() {
    // Such a result is dropped by the worker between two tasks, which cannot wait: it sees a closed stream.
    for workers in [1, 2] {
        let rt = runtime(workers);
        for _ in 0..20 {
            let (mut writer, mut reader) = stream(1);
            let (tell, told) = channel();
            let (mut go, mut wait) = stream(1);
            drop(rt.spawn(move || {
                wait.read();
                AtEnd(move || {
                    let first = writer.write(1).is_ok();
                    let second = writer.write(2).is_ok();
                    sleep(Duration::from_secs(3600));
                    let _ = tell.send((first, second));
                })
            }));
            go.write(()).unwrap();
            assert_eq!(told.recv().unwrap(), (true, false));
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
        // Keeps the only worker busy until the runtime is ending: from then on a new task ends at once.
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

#[test]
fn item_that_panics_when_dropped_closes_its_stream_all_the_same() {
    struct Bad;
    impl Drop for Bad {
        fn drop(&mut self) {
            if !thread::panicking() {
                panic!("an item that panics when dropped");
            }
        }
    }
    for workers in [1, 2] {
        let rt = runtime(workers);
        let got = rt.run(|| {
            let (mut writer, reader) = stream(2);
            writer.write(Some(Bad)).map_err(|_| ()).unwrap();
            writer.write(None).map_err(|_| ()).unwrap();
            let drops = spawn(move || drop(reader));
            let written = spawn(move || {
                // Waits for room until the reader is gone.
                while writer.write(None).is_ok() {}
            });
            (drops.join().is_err(), written.join().is_ok())
        });
        assert_eq!(got.unwrap(), (true, true));
        assert_eq!(rt.run(|| 1).unwrap(), 1);
    }
}

#[test]
fn panics_in_bodies_results_and_data_reach_nobody_else() {
    struct Bad;
    impl Drop for Bad {
        fn drop(&mut self) {
            if !thread::panicking() {
                panic!("a destructor that panics");
            }
        }
    }
    static LOCAL: Local<Bad> = Local::new(|| Bad);
    for workers in [1, 2] {
        let rt = runtime(workers);
        // In the body, in a result that nobody takes, in a captured variable, in task-local data, in a future.
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
            panic!("while it holds one");
        });
        assert!(polled.join().is_err());
        assert_eq!(rt.run(|| 1).unwrap(), 1);
        let counters = rt.counters();
        assert_eq!(counters.spawned, counters.ended);
    }
}

#[test]
fn exit_unwinds_and_is_told() {
    for workers in [1, 2] {
        let rt = runtime(workers);
        let (mut writer, reader) = stream(1);
        let exits = rt.spawn(move || {
            let _end = AtEnd(move || writer.write("unwound").unwrap());
            exit();
        });
        assert!(matches!(exits.join(), Err(Failure::Exited)));
        assert_eq!(reader.collect::<Vec<_>>(), ["unwound"]);
        let wrapper = rt.task().wrapper().spawn(|| exit()).unwrap();
        assert!(matches!(wrapper.join(), Err(Failure::Exited)));
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
fn overflow_of_a_stack_names_the_task() {
    fn deeper(n: u64) -> u64 {
        let row = std::hint::black_box([n; 64]);
        if n == u64::MAX { 0 } else { deeper(n + 1) + row[3] }
    }
    let output = in_child("overflow_of_a_stack_names_the_task", &[], || {
        let rt = runtime(2);
        let task = rt.task().name("abyss").stack_size(32 << 10).spawn(|| deeper(0));
        let _ = task.unwrap().join();
    });
    let Some(output) = output else { return };
    assert_eq!(signal(&output), Some(libc::SIGABRT), "{}", stderr(&output));
    let line = "'abyss' has overflowed its stack of 32768 bytes: give it more with stack_size\n";
    assert!(stderr(&output).contains(line), "{}", stderr(&output));
    assert!(!stderr(&output).contains("crashed"), "{}", stderr(&output));
}

#[test]
fn overflow_of_a_stack_names_what_the_task_was_doing_and_the_option_that_helps() {
    fn deeper(n: u64) -> u64 {
        let row = std::hint::black_box([n; 64]);
        if n == u64::MAX { 0 } else { deeper(n + 1) + row[3] }
    }
    let test = "overflow_of_a_stack_names_what_the_task_was_doing_and_the_option_that_helps";
    let output = in_child(test, &[], || {
        let rt = Runtime::builder().workers(1).stack_option("--stack").build().unwrap();
        let task = rt.task().name("abyss").stack_size(32 << 10).spawn(|| doing("a dive", || deeper(0)));
        let _ = task.unwrap().join();
    });
    let Some(output) = output else { return };
    assert_eq!(signal(&output), Some(libc::SIGABRT), "{}", stderr(&output));
    let line = "'abyss', in a dive, has overflowed its stack of 32768 bytes: give it more with --stack\n";
    assert!(stderr(&output).contains(line), "{}", stderr(&output));
}

#[test]
fn overflow_outside_tasks_is_told_as_ever() {
    fn deeper(n: u64) -> u64 {
        let row = std::hint::black_box([n; 64]);
        if n == u64::MAX { 0 } else { deeper(n + 1) + row[3] }
    }
    let output = in_child("overflow_outside_tasks_is_told_as_ever", &[], || {
        let _rt = runtime(1);
        let _ = thread::Builder::new().name("deep".into()).spawn(|| deeper(0)).unwrap().join();
    });
    let Some(output) = output else { return };
    assert_eq!(signal(&output), Some(libc::SIGABRT), "{}", stderr(&output));
    assert!(stderr(&output).contains("thread 'deep'"), "{}", stderr(&output));
    assert!(stderr(&output).contains("has overflowed its stack"), "{}", stderr(&output));
}

#[test]
fn crash_in_a_task_names_it_and_what_it_was_doing_and_dies_of_its_signal() {
    let crashes: [(&str, i32, fn()); 4] = [
        // SAFETY: nothing is safe about it; the process ends here.
        ("SIGSEGV", libc::SIGSEGV, || unsafe {
            std::ptr::without_provenance::<u8>(4096).read_volatile();
        }),
        // SAFETY: as if an instruction had faulted, and by a call that ends the process.
        ("SIGFPE", libc::SIGFPE, || unsafe {
            let _ = libc::raise(libc::SIGFPE);
        }),
        // SAFETY: as above.
        ("SIGILL", libc::SIGILL, || unsafe {
            let _ = libc::raise(libc::SIGILL);
        }),
        ("SIGABRT", libc::SIGABRT, || std::process::abort()),
    ];
    let test = "crash_in_a_task_names_it_and_what_it_was_doing_and_dies_of_its_signal";
    const WHICH: &str = "COREBEAT_LPEL_CRASH";
    for (name, number, crash) in crashes {
        let output = in_child(test, &[(WHICH, name)], || {
            if std::env::var(WHICH).unwrap() == name {
                let rt = runtime(2);
                let crashes = rt.task().name("wild").spawn(move || {
                    doing("a part that is over", || ());
                    let _ =
                        doing("outer", || std::panic::catch_unwind(|| doing("inner", || panic!("caught"))));
                    doing("a leap", crash);
                });
                let _ = crashes.unwrap().join();
            }
        });
        let Some(output) = output else { continue };
        let said = stderr(&output);
        assert_eq!(signal(&output), Some(number), "{said}");
        assert!(said.ends_with(&format!("'wild', in a leap, crashed: {name}\n")), "{said}");
        assert!(!said.contains("overflowed"), "{said}");
    }
}

#[test]
fn crash_outside_tasks_names_nobody() {
    let output = in_child("crash_outside_tasks_names_nobody", &[], || {
        let rt = runtime(1);
        rt.run(|| doing("something else", || ())).unwrap();
        doing("nothing of a task", || std::process::abort());
    });
    let Some(output) = output else { return };
    assert_eq!(signal(&output), Some(libc::SIGABRT), "{}", stderr(&output));
    assert!(!stderr(&output).contains("crashed"), "{}", stderr(&output));
}

#[test]
fn panic_with_backtrace_fits_the_default_stack() {
    for trace in ["1", "full"] {
        let output =
            in_child("panic_with_backtrace_fits_the_default_stack", &[("RUST_BACKTRACE", trace)], || {
                let rt = runtime(1);
                let why = rt.spawn(|| panic!("{}", "with a trace")).join().unwrap_err();
                assert_eq!(why.to_string(), "the task panicked: with a trace");
                let awaits = rt.spawn_async(async { panic!("{}", "with a trace") });
                assert!(awaits.join().is_err());
            });
        let Some(output) = output else { return };
        assert!(output.status.success(), "{:?} {}", output.status, stderr(&output));
        assert!(stderr(&output).contains("with a trace"), "{}", stderr(&output));
        assert!(stderr(&output).contains("stack backtrace:"), "{}", stderr(&output));
    }
}

#[test]
fn panic_fits_the_smallest_stack() {
    let output = in_child("panic_fits_the_smallest_stack", &[("RUST_BACKTRACE", "0")], || {
        let rt = runtime(1);
        let small = || rt.task().stack_size(STACK_MIN);
        let why = small().spawn(|| panic!("{}", "in little room")).unwrap().join().unwrap_err();
        assert_eq!(why.to_string(), "the task panicked: in little room");
    });
    let Some(output) = output else { return };
    assert!(output.status.success(), "{:?} {}", output.status, stderr(&output));
}

#[test]
fn more_tasks_than_memory_is_an_error() {
    const LIMIT: u64 = 512 << 20;
    let output = in_child("more_tasks_than_memory_is_an_error", &[], || {
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
                // What there was is free again.
                let after = (0..10).all(|n| spawn(move || n).join().is_ok());
                (without, others, after)
            })
            .unwrap();
        assert!(without > 1000 && others == 0 && after, "{without} {others} {after}");
    });
    let Some(output) = output else { return };
    assert!(output.status.success(), "{:?} {}", output.status, stderr(&output));
}

#[test]
fn deadlock_of_tasks_that_nobody_joins_is_told_all_the_same() {
    let output = in_child("deadlock_of_tasks_that_nobody_joins_is_told_all_the_same", &[], || {
        let alone = || {
            let (_writer, mut reader) = stream::<u8>(1);
            reader.read();
        };
        runtime(1).run(move || drop(Task::new().name("lonely").spawn(alone).unwrap())).unwrap();
    });
    let Some(output) = output else { return };
    assert!(output.status.success(), "{:?} {}", output.status, stderr(&output));
    let line = "corebeat-lpel: deadlock, 1 task";
    assert!(stderr(&output).contains(line) && stderr(&output).contains("'lonely'"), "{}", stderr(&output));
}

#[test]
fn scheduler_that_panics_ends_the_program() {
    struct Bad;
    impl Scheduler for Bad {
        fn put(&mut self, _: Ready) {}
        fn fetch(&mut self) -> Option<Ready> {
            panic!("a scheduler that panics")
        }
        fn len(&self) -> usize {
            0
        }
    }
    const THREADS: &str = "COREBEAT_LPEL_THREADS";
    for threads in ["of its own", "none"] {
        let output = in_child("scheduler_that_panics_ends_the_program", &[(THREADS, threads)], || {
            let builder = Runtime::builder().workers(1).scheduler(|_| Box::new(Bad));
            let builder =
                if std::env::var(THREADS).unwrap() == "none" { builder.deterministic(1) } else { builder };
            let _ = builder.build().unwrap().run(|| ());
        });
        let Some(output) = output else { return };
        assert_eq!(signal(&output), Some(libc::SIGABRT), "{}", stderr(&output));
        assert!(stderr(&output).contains("a worker has panicked between two tasks"), "{}", stderr(&output));
    }
}

#[test]
fn scheduler_that_panics_when_a_task_wakes_another_ends_the_program() {
    /// Panics when the victim is ready for the second time: when it is woken, in the midst of another task.
    struct Bad(VecDeque<Ready>);
    impl Scheduler for Bad {
        fn put(&mut self, task: Ready) {
            assert!(task.name() != Some("victim") || task.dispatches() == 0, "a scheduler that panics");
            self.0.push_back(task);
        }
        fn fetch(&mut self) -> Option<Ready> {
            self.0.pop_front()
        }
        fn len(&self) -> usize {
            self.0.len()
        }
    }
    let output = in_child("scheduler_that_panics_when_a_task_wakes_another_ends_the_program", &[], || {
        let bad = |_| -> Box<dyn Scheduler> { Box::new(Bad(VecDeque::new())) };
        let rt = Runtime::builder().workers(1).scheduler(bad).build().unwrap();
        let (mut writer, mut reader) = stream(1);
        let victim = rt.task().name("victim").spawn(move || reader.read()).unwrap();
        while !rt.dump().tasks.iter().any(|t| t.status == Status::Reading) {
            thread::yield_now();
        }
        let _ = rt.spawn(move || writer.write(1)).join();
        // It should not come so far: the victim is lost, and nobody can wait for it.
        std::mem::forget((rt, victim));
    });
    let Some(output) = output else { return };
    assert_eq!(signal(&output), Some(libc::SIGABRT), "{}", stderr(&output));
    assert!(stderr(&output).contains("a worker has panicked between two tasks"), "{}", stderr(&output));
}

#[test]
fn scheduler_that_hands_out_a_task_of_another_worker_ends_the_program() {
    /// One queue for all workers.
    struct Shared(Arc<Mutex<VecDeque<Ready>>>);
    impl Scheduler for Shared {
        fn put(&mut self, task: Ready) {
            self.0.lock().unwrap().push_back(task);
        }
        fn fetch(&mut self) -> Option<Ready> {
            self.0.lock().unwrap().pop_front()
        }
        fn len(&self) -> usize {
            self.0.lock().unwrap().len()
        }
    }
    let output = in_child("scheduler_that_hands_out_a_task_of_another_worker_ends_the_program", &[], || {
        let queue = Arc::default();
        let shared = move |_| -> Box<dyn Scheduler> { Box::new(Shared(Arc::clone(&queue))) };
        // In an order drawn from a seed, so that both workers surely fetch the task.
        let rt = Runtime::builder().workers(2).scheduler(shared).deterministic(1).build().unwrap();
        let _ = rt.run(|| (0..100).for_each(|_| yield_now()));
    });
    let Some(output) = output else { return };
    assert_eq!(signal(&output), Some(libc::SIGABRT), "{}", stderr(&output));
    let line = "a scheduler has handed out a task of another worker";
    assert!(stderr(&output).contains(line), "{}", stderr(&output));
}

#[test]
fn destructor_of_a_wrappers_thread_local_data_does_not_wait() {
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
    let (tell, told) = mpsc::channel();
    let body = move || LAST.set(Some(Last(Some(reader), tell)));
    rt.run(|| Task::new().wrapper().spawn(body).unwrap().join().unwrap()).unwrap();
    assert_eq!(told.recv(), Ok(None));
    // All are counted as before.
    assert_eq!(rt.run(|| 1).unwrap(), 1);
    drop(writer);
}

#[test]
fn items_left_by_both_ends_may_panic_when_dropped() {
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
        // It runs while the reader waits, so that its worker keeps a doubt about the stream.
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
