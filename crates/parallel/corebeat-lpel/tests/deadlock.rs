//! Tasks that wait for each other: which tasks are in a deadlock, and which streams grow.

use corebeat_lpel::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

fn runtimes() -> impl Iterator<Item = (String, Runtime)> {
    let threads = (1..=3).map(|n| (format!("{n} workers"), Runtime::builder().workers(n)));
    let seeds =
        (0..3).map(|s| (format!("seed {s}"), Runtime::builder().workers(2).deterministic(s)));
    threads.chain(seeds).map(|(name, builder)| (name, builder.build().unwrap()))
}

fn runtime(workers: usize) -> Runtime {
    Runtime::builder().workers(workers).build().unwrap()
}

fn task(name: &str) -> Task<'static> {
    Task::new().name(name)
}

/// Spawns a task that reads an item and then writes one.
fn relay(task: &Task<'_>, mut from: Reader<u8>, mut to: Writer<u8>) -> JoinHandle<()> {
    let body = move || {
        let _ = (from.read(), to.write(1));
    };
    task.spawn(body).unwrap()
}

/// Spawns two tasks that exchange an item, and then wait for each other.
fn ring(rt: &Runtime) -> [JoinHandle<()>; 2] {
    let [(a, from_a), (b, from_b)] = [(); 2].map(|()| stream(1));
    [("one", from_b, a), ("two", from_a, b)].map(|(name, mut from, mut to)| {
        let body = move || {
            to.write(1).unwrap();
            from.read();
            from.read();
            let _ = to.write(2);
        };
        rt.task().name(name).spawn(body).unwrap()
    })
}

/// Returns the names of the tasks that a deadlock lists, in order.
fn names(failure: &Failure) -> Vec<String> {
    let Failure::Deadlock(deadlock) = failure else { panic!("{failure}") };
    let mut names: Vec<_> =
        deadlock.tasks().iter().map(|t| t.name.as_deref().unwrap_or("?").to_owned()).collect();
    names.sort();
    names
}

#[test]
fn cycle_of_reads_is_reported_to_all_its_tasks() {
    for (how, rt) in runtimes() {
        let reported = rt.run(|| {
            let [(a, from_a), (b, from_b), (c, from_c)] = [(); 3].map(|()| stream(1));
            let one = relay(&task("one"), from_c, a);
            let two = relay(&task("two"), from_a, b);
            let three = relay(&task("three"), from_b, c);
            // Not in the cycle, but waits for a task in it.
            [one, two, three].map(|t| t.join().unwrap_err())
        });
        let why = reported.map(|_| ()).unwrap_err();
        assert_eq!(names(&why), ["?", "one", "three", "two"], "{how}: {why}");
        assert!(
            why.to_string().starts_with("deadlock, 4 tasks wait for each other: task "),
            "{why}"
        );
    }
}

#[test]
fn deadlock_is_reported_after_the_other_tasks_ended() {
    // A task that waits for this thread is not stuck, and may own an end that the others wait for.
    for workers in [1, 2] {
        let rt = runtime(workers);
        let (mut go, mut wait) = stream(1);
        go.write(1).unwrap();
        let other = rt.task().name("other").spawn(move || wait.by_ref().sum::<u32>()).unwrap();
        let ring = ring(&rt);
        go.write(2).unwrap();
        drop(go);
        assert_eq!(other.join().unwrap(), 3);
        assert_eq!(rt.run(|| 1).unwrap(), 1);
        for reported in ring {
            assert_eq!(names(&reported.join().unwrap_err()), ["one", "two"]);
        }
    }
}

#[test]
fn cycle_of_joins_is_reported() {
    for (how, rt) in runtimes() {
        let reported = rt.run(|| {
            let (mut to_one, one_takes) = stream::<JoinHandle<()>>(1);
            let (mut to_two, two_takes) = stream::<JoinHandle<()>>(1);
            let join = |mut handles: Reader<JoinHandle<()>>| {
                let other = handles.read().unwrap();
                drop(handles);
                let _ = other.join();
            };
            let one = task("one").spawn(move || join(one_takes)).unwrap();
            let two = task("two").spawn(move || join(two_takes)).unwrap();
            to_one.write(two).map_err(|_| ()).unwrap();
            to_two.write(one).map_err(|_| ()).unwrap();
        });
        reported.unwrap();
        let counters = rt.counters();
        assert_eq!(counters.spawned, counters.ended, "{how}");
    }
}

#[test]
fn set_with_only_waiting_writers_is_reported() {
    for (how, rt) in runtimes() {
        let reported = rt.run(|| {
            let mut set = StreamSet::new();
            let mut ends = Vec::new();
            for n in 0..3 {
                let (mut writer, reader) = stream::<u8>(1);
                let (back, mut backward) = stream::<u8>(1);
                set.add(reader);
                ends.push(back);
                task(&format!("writer {n}"))
                    .spawn(move || writer.write(backward.read().unwrap_or(0)))
                    .unwrap();
            }
            let task = task("set").spawn(move || {
                let got = set.read().map(|_| ());
                ends.clear();
                got
            });
            task.unwrap().join().unwrap_err()
        });
        let why = reported.map(|_| ()).unwrap_err();
        assert_eq!(names(&why), ["?", "set", "writer 0", "writer 1", "writer 2"], "{how}: {why}");
        assert!(why.to_string().contains("'set' on worker"), "{why}");
        assert!(why.to_string().contains("waits for any of 3 streams: "), "{why}");
    }
}

#[test]
fn set_with_one_active_writer_is_no_deadlock() {
    for (how, rt) in runtimes() {
        let got = rt.run(|| {
            let mut set = StreamSet::new();
            let (mut stuck, reader) = stream::<u8>(1);
            let (back, mut backward) = stream::<u8>(1);
            set.add(reader);
            spawn(move || {
                let _ = stuck.write(backward.read().unwrap_or(1));
            });
            let (mut sleeps, reader) = stream(1);
            set.add(reader);
            spawn(move || {
                sleep(std::time::Duration::from_millis(20));
                sleeps.write(2).unwrap();
            });
            let (_, first) = set.read().unwrap();
            drop(back);
            let mut rest = 0;
            while set.read().is_some() {
                rest += 1;
            }
            (first, rest)
        });
        assert_eq!(got.unwrap(), (Event::Item(2), 3), "{how}");
    }
}

#[test]
fn cycle_of_async_tasks_is_reported() {
    for (how, rt) in runtimes() {
        let reported = rt.run(|| {
            // One task awaits a stream, one a set, one a task.
            let (mut a, mut from_a) = stream::<u8>(1);
            let (mut b, from_b) = stream::<u8>(1);
            let mut set = StreamSet::new();
            set.add(from_b);
            let streams = task("stream").spawn_async(async move {
                from_a.read_async().await;
                let _ = b.write(1);
            });
            let streams = streams.unwrap();
            let joins = task("join").spawn_async(async move { streams.await.is_ok() }).unwrap();
            let (mut give, mut take) = stream::<JoinHandle<bool>>(1);
            let sets = task("set").spawn_async(async move {
                let _held = take.read();
                set.read_async().await;
                let _ = a.write(1);
            });
            give.write(joins).map_err(|_| ()).unwrap();
            drop(give);
            sets.unwrap().join().unwrap_err()
        });
        let why = reported.map(|_| ()).unwrap_err();
        assert_eq!(names(&why), ["?", "join", "set", "stream"], "{how}: {why}");
    }
}

#[test]
fn set_awaited_again_is_part_of_the_deadlock() {
    // Beside the set, the task awaits a stream, which has an item: its future polls the set again,
    // and continues to wait.
    for workers in [1, 2] {
        let rt = runtime(workers);
        let mut set = StreamSet::new();
        let [(mut writer, mut reader), (mut last, member)] = [stream(1), stream(1)];
        set.add(member);
        let came = Arc::new(AtomicBool::new(false));
        let comes = came.clone();
        let both = rt.spawn_async(async move {
            let item = async move {
                let item = reader.read_async().await;
                comes.store(true, Ordering::Relaxed);
                item
            };
            let (event, item) = futures_util::future::join(set.read_async(), item).await;
            (event.map(|(_, event)| event), item)
        });
        let awaits = || rt.dump().tasks.into_iter().find(|t| t.status == Status::Awaiting);
        while awaits().is_none() {
            thread::yield_now();
        }
        writer.write(1).unwrap();
        let waits_for = loop {
            if came.load(Ordering::Relaxed)
                && let Some(task) = awaits()
            {
                break task.waits_for;
            }
        };
        assert!(matches!(waits_for, Some(WaitsFor::Any(_))), "{waits_for:?}");
        last.write(2).unwrap();
        assert_eq!(both.join().unwrap(), (Some(Event::Item(2)), Some(1)));
    }
}

#[test]
fn blocking_tasks_in_a_cycle_are_reported() {
    for workers in [1, 2] {
        let rt = runtime(workers);
        for other in [task("two"), task("two").blocking()] {
            let reported = rt.run(move || {
                let [(a, from_a), (b, from_b)] = [(); 2].map(|()| stream(1));
                let one = relay(&task("one").blocking(), from_b, a);
                let two = relay(&other, from_a, b);
                [one, two].map(|t| t.join().unwrap_err())
            });
            let why = reported.map(|_| ()).unwrap_err();
            assert_eq!(names(&why), ["?", "one", "two"], "{why}");
            assert!(
                why.to_string().contains("'one' on a thread of its own waits for an item"),
                "{why}"
            );
        }
        // Only blocking tasks are left.
        let [(a, from_a), (b, from_b)] = [(); 2].map(|()| stream(1));
        let both = rt.run(move || {
            let one = relay(&task("one").blocking(), from_b, a);
            [one, relay(&task("two").blocking(), from_a, b)]
        });
        for reported in both.unwrap() {
            assert_eq!(names(&reported.join().unwrap_err()), ["one", "two"]);
        }
    }
}

#[test]
fn cycle_without_run_is_reported_by_the_next_run() {
    // The set of tasks is open: a thread outside spawns them, and may own any end.
    for workers in [1, 2] {
        let rt = runtime(workers);
        let ring = ring(&rt);
        assert_eq!(rt.run(|| 1).unwrap(), 1);
        for reported in ring {
            assert_eq!(names(&reported.join().unwrap_err()), ["one", "two"]);
        }
    }
}

#[test]
fn end_owned_by_a_thread_is_no_deadlock() {
    for workers in [1, 2] {
        let rt = runtime(workers);
        // The end is unused, and there is no run: no deadlock is reported.
        let (mut writer, mut reader) = stream(1);
        let waits = rt.spawn(move || reader.read());
        // This thread used the end, during a run.
        let (mut used, mut reads) = stream(1);
        used.write(0).unwrap();
        let late = thread::scope(|s| {
            let run = s.spawn(|| rt.run(move || reads.by_ref().sum::<u32>()));
            while !rt.dump().tasks.iter().any(|t| t.status == Status::Reading) {
                thread::yield_now();
            }
            thread::sleep(std::time::Duration::from_millis(20));
            used.write(5).unwrap();
            writer.write(8).unwrap();
            drop(used);
            run.join().unwrap()
        });
        assert_eq!((late.unwrap(), waits.join().unwrap()), (5, Some(8)));
    }
}

#[test]
fn end_moved_from_a_task_to_a_thread_is_no_deadlock_outside_run() {
    // The waiting task itself used the end last. Any other task or thread may own the end now.
    for workers in [1, 2] {
        let rt = runtime(workers);
        let got = rt.spawn(|| {
            let (mut writer, mut reader) = stream(1);
            writer.write(0).unwrap();
            reader.read();
            let late = thread::spawn(move || {
                thread::sleep(std::time::Duration::from_millis(20));
                writer.write(1)
            });
            (reader.read(), late.join().unwrap().is_ok())
        });
        assert_eq!(got.join().unwrap(), (Some(1), true));
    }
}

#[test]
fn end_moved_to_a_task_that_awaits_an_outside_event_is_no_deadlock() {
    // 'b' used the end last and waits for 'a', which waits for that end. But 'c' owns the end now,
    // and will use it when a thread outside wakes 'c'.
    use std::future::poll_fn;
    use std::task::{Poll, Waker};
    for workers in [1, 2] {
        let rt = runtime(workers);
        let (report, reported) = std::sync::mpsc::channel::<Waker>();
        let ringer = thread::spawn(move || {
            let waker = reported.recv().unwrap();
            // By now no task makes progress, or will soon not.
            thread::sleep(std::time::Duration::from_millis(30));
            waker.wake();
        });
        let got = rt.run(|| {
            let (mut to_a, mut from_others) = stream(8);
            let (mut to_b, mut from_a) = stream(8);
            let (mut give, mut take) = stream::<Writer<u32>>(1);
            let a = task("a").spawn(move || {
                from_others.read();
                to_b.write(0).unwrap();
                to_b.write(from_others.read().unwrap()).unwrap();
            });
            let b = task("b").spawn(move || {
                to_a.write(1).unwrap();
                give.write(to_a).unwrap();
                from_a.read();
                from_a.read()
            });
            let c = task("c").spawn_async(async move {
                let mut to_a = take.read_async().await.unwrap();
                let mut polls = 0;
                poll_fn(|context| {
                    polls += 1;
                    if polls == 1 {
                        report.send(context.waker().clone()).unwrap();
                    }
                    if polls == 1 { Poll::Pending } else { Poll::Ready(()) }
                })
                .await;
                to_a.write(2).unwrap();
            });
            a.unwrap().join().unwrap();
            c.unwrap().join().unwrap();
            b.unwrap().join().unwrap()
        });
        assert_eq!(got.unwrap(), Some(2));
        ringer.join().unwrap();
    }
}

#[test]
fn unused_end_that_is_declared_outside_is_no_deadlock() {
    for (how, rt) in runtimes() {
        let (to, mut from) = stream::<u8>(1);
        let (mut back, at_end) = stream::<u8>(1);
        let (mut to, at_end) = (to.outside(), at_end.outside());
        let got = thread::scope(|s| {
            let run = s.spawn(|| {
                rt.run(move || {
                    let first = from.read();
                    (0..3).for_each(|n| back.write(n).unwrap());
                    first
                })
            });
            // Long enough for the search for deadlocks.
            thread::sleep(Duration::from_millis(30));
            to.write(7).unwrap();
            thread::sleep(Duration::from_millis(30));
            assert_eq!(at_end.sum::<u8>(), 3);
            run.join().unwrap()
        });
        assert_eq!(got.unwrap(), Some(7), "{how}");
    }
}

#[test]
fn end_of_a_task_is_not_outside() {
    // The next use by a task ends the declaration.
    for (how, rt) in runtimes() {
        let reported = rt.run(|| {
            let [(a, from_a), (b, from_b)] = [(); 2].map(|()| stream(1));
            let (mut a, mut b) = (a.outside(), b.outside());
            let (mut from_a, mut from_b) = (from_a, from_b);
            let other = task("other").spawn(move || {
                a.write(1).unwrap();
                (from_b.read(), from_b.read(), drop(a))
            });
            b.write(2).unwrap();
            let _ = (from_a.read(), from_a.read(), drop(b));
            other.unwrap().join().map(drop).unwrap_err()
        });
        assert_eq!(names(&reported.map(drop).unwrap_err()), ["?", "other"], "{how}");
    }
}

#[test]
fn unused_end_without_a_living_user_is_a_deadlock() {
    for (how, rt) in runtimes() {
        let (writer, mut reader) = stream::<u8>(1);
        let reported = rt.run(move || reader.read()).unwrap_err();
        assert_eq!(names(&reported), ["?"], "{how}");
        assert!(
            reported.to_string().contains("which no task has written to yet; if a thread"),
            "{reported}"
        );
        drop(writer);
    }
}

#[test]
fn unused_end_may_belong_to_an_active_task() {
    // One task waits for an unused end. Another task owns the end, and waits for a thread.
    for workers in [1, 2] {
        let rt = runtime(workers);
        let (mut report, mut reported) = stream(1);
        report.write(1).unwrap();
        let got = thread::scope(|s| {
            let run = s.spawn(|| {
                rt.run(move || {
                    let (mut unused, mut reader) = stream(1);
                    let holder = spawn(move || {
                        let sum = reported.by_ref().sum::<u32>();
                        unused.write(sum).unwrap();
                    });
                    let got = reader.read();
                    holder.join().unwrap();
                    got
                })
            });
            while rt.dump().tasks.iter().filter(|t| t.status == Status::Reading).count() < 2 {
                thread::yield_now();
            }
            thread::sleep(std::time::Duration::from_millis(20));
            report.write(2).unwrap();
            drop(report);
            run.join().unwrap()
        });
        assert_eq!(got.unwrap(), Some(3));
    }
}

/// Writes each item that it reads twice.
fn write_twice(task: &Task<'_>, mut from: Reader<u64>, mut to: Writer<u64>) {
    let body = move || {
        while let Some(n) = from.read() {
            to.write(n).unwrap();
            to.write(n).unwrap();
        }
    };
    task.spawn(body).unwrap();
}

/// A cycle of streams of capacity one, which stops unless one of them grows.
fn tight_loop(items: u64) -> u64 {
    let (mut forth, forth_r) = growing_stream(1);
    let (back, back_r) = growing_stream(1);
    write_twice(&Task::new(), forth_r, back);
    (0..items).for_each(|n| forth.write(n).unwrap());
    drop(forth);
    back_r.sum()
}

#[test]
fn artificial_deadlock_is_resolved() {
    for (how, rt) in runtimes() {
        assert_eq!(rt.run(|| tight_loop(50)).unwrap(), 2450, "{how}");
        assert!(rt.counters().growths > 0, "{how}");
    }
}

#[test]
fn artificial_deadlock_is_resolved_while_other_tasks_are_busy() {
    // One worker runs a task that computes until the cycle has finished.
    let rt = runtime(2);
    let done = Arc::new(AtomicBool::new(false));
    let busy = rt.task().worker(0).spawn({
        let done = done.clone();
        move || {
            while !done.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        }
    });
    let sum = rt.task().worker(1).spawn(|| {
        // The other worker must not steal the tasks of this one, which wait for it.
        let (mut forth, forth_r) = growing_stream(1);
        let (back, mut back_r) = growing_stream(1);
        // The busy task might own an unused end: then no deadlock is certain.
        assert!(back_r.try_read().is_err());
        write_twice(&Task::new().worker(1), forth_r, back);
        (0..50).for_each(|n| forth.write(n).unwrap());
        drop(forth);
        back_r.sum::<u64>()
    });
    assert_eq!(sum.unwrap().join().unwrap(), 2450);
    done.store(true, Ordering::Relaxed);
    busy.unwrap().join().unwrap();
    assert!(rt.counters().growths > 0);
}

/// A cycle on a single worker, beside a task that prevents the worker from resting.
fn cycle_beside(others: fn()) {
    let threads = runtime(1);
    let seed = Runtime::builder().workers(1).deterministic(1).build().unwrap();
    for rt in [threads, seed] {
        let done = Arc::new(AtomicBool::new(false));
        rt.run(move || {
            let is_done = done.clone();
            spawn(move || {
                while !is_done.load(Ordering::Relaxed) {
                    others();
                }
            });
            let (mut a, mut from_a) = growing_stream(1);
            let (mut b, mut from_b) = growing_stream(1);
            // Each end is used once before.
            let one = spawn(move || {
                a.write(0).unwrap();
                from_b.read();
                (1..5).for_each(|n| a.write(n).unwrap());
                from_b.count()
            });
            let two = spawn(move || {
                b.write(0).unwrap();
                from_a.read();
                (1..5).for_each(|n| b.write(n).unwrap());
                drop(b);
                from_a.count()
            });
            two.join().unwrap();
            one.join().unwrap();
            done.store(true, Ordering::Relaxed);
        })
        .unwrap();
        assert!(rt.counters().growths > 0);
    }
}

#[test]
fn artificial_deadlock_beside_a_sleeping_task_is_resolved() {
    cycle_beside(|| sleep(Duration::from_millis(1)));
}

#[test]
fn artificial_deadlock_beside_a_busy_task_on_its_worker_is_resolved() {
    cycle_beside(yield_now);
}

#[test]
fn artificial_deadlock_beside_a_busy_task_is_resolved_by_a_woken_worker() {
    /// Only a fault takes so long: then the yielding task gives up, and its own worker has time for
    /// the search.
    const PATIENCE: std::time::Duration = std::time::Duration::from_secs(20);
    let rt = runtime(2);
    while rt.counters().waits < 2 {
        thread::yield_now();
    }
    // The other workers soon sleep without a time limit.
    thread::sleep(std::time::Duration::from_millis(30));
    let done = Arc::new(AtomicBool::new(false));
    let sum = rt.task().worker(0).spawn(move || {
        let begin = std::time::Instant::now();
        let (mut forth, forth_r) = growing_stream(1);
        let (back, mut back_r) = growing_stream(1);
        assert!(back_r.try_read().is_err());
        let on_first_worker = || Task::new().worker(0);
        let stop = done.clone();
        let yields = on_first_worker().spawn(move || {
            while !stop.load(Ordering::Relaxed) && begin.elapsed() < PATIENCE {
                yield_now();
            }
            stop.load(Ordering::Relaxed)
        });
        write_twice(&on_first_worker(), forth_r, back);
        (0..50).for_each(|n| forth.write(n).unwrap());
        drop(forth);
        let sum = back_r.sum::<u64>();
        done.store(true, Ordering::Relaxed);
        (sum, yields.unwrap().join().unwrap())
    });
    assert_eq!(sum.unwrap().join().unwrap(), (2450, true));
    assert!(rt.counters().growths > 0);
}

#[test]
fn smallest_full_stream_of_the_cycle_grows() {
    let rt = runtime(1);
    let (small, large) = rt
        .run(|| {
            let (mut small, mut small_r) = growing_stream(2);
            let (mut large, mut large_r) = growing_stream(64);
            // Fills both streams before the other task reads any item.
            let writer = spawn(move || {
                for n in 0..200 {
                    large.write(n).unwrap();
                    small.write(n).unwrap();
                    small.write(n).unwrap();
                }
                (small.capacity(), large.capacity())
            });
            // Reads many items of one stream for each item of the other.
            let (mut larges, mut smalls) = (0, 0);
            while smalls < 20 {
                small_r.read().unwrap();
                smalls += 1;
            }
            while large_r.read().is_some() {
                larges += 1;
                while smalls < 2 * larges && small_r.read().is_some() {
                    smalls += 1;
                }
            }
            assert_eq!((larges, smalls), (200, 400));
            writer.join().unwrap()
        })
        .unwrap();
    // No stream has to grow: the reader follows the writer.
    assert_eq!((small, large), (2, 64));
    let grown = rt.run(|| {
        let (mut small, mut small_r) = growing_stream(2);
        let (mut large, mut large_r) = growing_stream(8);
        let writer = spawn(move || {
            // The reader reads the whole small stream only after the first item of the other
            // stream: 2 + 4 + ... + 64 slots are room for 100 items, each segment twice as long as
            // the one before. The other stream is large enough.
            (0..100).for_each(|n| small.write(n).unwrap());
            (0..8).for_each(|n| large.write(n).unwrap());
            (small.capacity(), large.capacity())
        });
        let first = large_r.read();
        let rest = (small_r.by_ref().count(), large_r.by_ref().count());
        (first, rest, writer.join().unwrap())
    });
    assert_eq!(grown.unwrap(), (Some(0), (100, 7), (64, 8)));
}

#[test]
fn stream_with_a_slow_reader_does_not_grow() {
    for (how, rt) in runtimes() {
        let capacity = rt.run(|| {
            let (mut writer, mut reader) = growing_stream(4);
            let slow = spawn(move || {
                let mut sum = 0;
                while let Some(n) = reader.read() {
                    sum += n;
                    sleep(std::time::Duration::from_millis(1));
                }
                sum
            });
            (0..30).for_each(|n| writer.write(n).unwrap());
            let capacity = writer.capacity();
            drop(writer);
            (capacity, slow.join().unwrap())
        });
        assert_eq!(capacity.unwrap(), (4, 435), "{how}");
        assert_eq!(rt.counters().growths, 0, "{how}");
    }
}

#[test]
fn true_deadlock_with_growing_streams_is_reported() {
    for (how, rt) in runtimes() {
        let reported = rt.run(|| {
            let (mut a, from_a) = growing_stream(1);
            let (b, mut from_b) = growing_stream(1);
            let other = relay(&task("other"), from_a, b);
            let _ = (from_b.read(), a.write(1));
            let _ = other.join();
        });
        assert_eq!(names(&reported.unwrap_err()), ["?", "other"], "{how}");
        assert_eq!(rt.counters().growths, 0, "{how}");
    }
}

#[test]
fn consecutive_deadlocks_are_each_reported() {
    for (how, rt) in runtimes() {
        for round in 0..20 {
            let reported = rt.run(move || {
                let (mut a, from_a) = stream(1);
                let (b, mut from_b) = stream(1);
                let other = relay(&task(&format!("round {round}")), from_a, b);
                let _ = (from_b.read(), a.write(1));
                let _ = other.join();
            });
            assert_eq!(
                names(&reported.unwrap_err()),
                ["?".to_owned(), format!("round {round}")],
                "{how}"
            );
        }
        let counters = rt.counters();
        assert_eq!(counters.spawned, counters.ended, "{how}");
    }
}

#[test]
fn long_chain_behind_a_deadlock_is_reported() {
    const DEPTH: usize = 2000;
    for workers in [1, 2] {
        let rt = runtime(workers);
        let reported = rt.run(|| {
            let (stuck, mut input) = stream::<u32>(1);
            for _ in 0..DEPTH {
                let (mut writer, reader) = stream(1);
                let mut before = std::mem::replace(&mut input, reader);
                spawn(move || {
                    while let Some(n) = before.read() {
                        writer.write(n).unwrap();
                    }
                });
            }
            let end = input.read();
            drop(stuck);
            end
        });
        let why = reported.unwrap_err();
        let Failure::Deadlock(deadlock) = &why else { panic!("{why}") };
        assert_eq!(deadlock.tasks().len(), DEPTH + 1);
        assert!(why.to_string().contains("; ...; if a thread"), "{why}");
    }
}

#[test]
fn wait_for_a_scope_is_named() {
    let rt = Runtime::builder().workers(1).build().unwrap();
    let why = rt.run(|| {
        let tasks = scope().unwrap();
        let (_open, mut never) = stream::<u8>(1);
        tasks.spawn(move || never.read());
        tasks.wait()
    });
    let text = why.unwrap_err().to_string();
    assert!(text.contains("waits for the end of all tasks of a scope; "), "{text}");
}
