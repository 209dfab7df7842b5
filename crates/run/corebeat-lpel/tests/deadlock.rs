//! Tasks that wait for each other: who is told, who is not, and who gets more room.

use corebeat_lpel::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

fn runtimes() -> impl Iterator<Item = (String, Runtime)> {
    let threads = (1..=3).map(|n| (format!("{n} workers"), Runtime::builder().workers(n)));
    let seeds = (0..3).map(|s| (format!("seed {s}"), Runtime::builder().workers(2).deterministic(s)));
    threads.chain(seeds).map(|(name, builder)| (name, builder.build().unwrap()))
}

fn task(name: &str) -> Task<'static> {
    Task::new().name(name)
}

/// The names of those that a deadlock lists, in order.
fn names(failure: &Failure) -> Vec<String> {
    let Failure::Deadlock(deadlock) = failure else { panic!("{failure}") };
    let mut names: Vec<_> =
        deadlock.tasks().iter().map(|t| t.name.as_deref().unwrap_or("?").to_owned()).collect();
    names.sort();
    names
}

#[test]
fn circle_of_reads_is_told_to_all_in_it() {
    for (how, rt) in runtimes() {
        let told = rt.run(|| {
            let (mut a, mut from_a) = stream::<u8>(1);
            let (mut b, mut from_b) = stream::<u8>(1);
            let (mut c, mut from_c) = stream::<u8>(1);
            let one = task("one").spawn(move || {
                let _ = (from_c.read(), a.write(1));
            });
            let two = task("two").spawn(move || {
                let _ = (from_a.read(), b.write(1));
            });
            let three = task("three").spawn(move || {
                let _ = (from_b.read(), c.write(1));
            });
            // Not in the circle, but waits for one that is.
            [one, two, three].map(|t| t.unwrap().join().unwrap_err())
        });
        let why = told.map(|_| ()).unwrap_err();
        assert_eq!(names(&why), ["?", "one", "three", "two"], "{how}: {why}");
        assert!(why.to_string().starts_with("deadlock, 4 tasks wait for each other: task "), "{why}");
    }
}

#[test]
fn deadlock_is_told_when_others_have_ended() {
    // One that waits for this thread is not stuck, and might have been handed an end that the others wait for.
    for workers in [1, 2] {
        let rt = Runtime::builder().workers(workers).build().unwrap();
        let (mut go, mut wait) = stream(1);
        go.write(1).unwrap();
        let other = rt.task().name("other").spawn(move || wait.by_ref().sum::<u32>()).unwrap();
        let (mut a, mut from_a) = stream::<u8>(1);
        let (mut b, mut from_b) = stream::<u8>(1);
        let one = rt.task().name("one").spawn(move || {
            a.write(1).unwrap();
            from_b.read();
            from_b.read().unwrap_or(a.write(2).map_or(3, |()| 4))
        });
        let two = rt.task().name("two").spawn(move || {
            b.write(1).unwrap();
            from_a.read();
            from_a.read().unwrap_or(b.write(2).map_or(3, |()| 4))
        });
        go.write(2).unwrap();
        drop(go);
        assert_eq!(other.join().unwrap(), 3);
        assert_eq!(rt.run(|| 1).unwrap(), 1);
        for told in [one, two] {
            assert_eq!(names(&told.unwrap().join().unwrap_err()), ["one", "two"]);
        }
    }
}

#[test]
fn circle_of_joins_is_told() {
    for (how, rt) in runtimes() {
        let told = rt.run(|| {
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
        told.unwrap();
        let counters = rt.counters();
        assert_eq!(counters.spawned, counters.ended, "{how}");
    }
}

#[test]
fn set_whose_writers_all_wait_is_told() {
    for (how, rt) in runtimes() {
        let told = rt.run(|| {
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
        let why = told.map(|_| ()).unwrap_err();
        assert_eq!(names(&why), ["?", "set", "writer 0", "writer 1", "writer 2"], "{how}: {why}");
        assert!(why.to_string().contains("'set' on worker"), "{why}");
        assert!(why.to_string().contains("waits for any of 3 streams: "), "{why}");
    }
}

#[test]
fn set_with_one_writer_that_goes_on_is_no_deadlock() {
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
fn async_tasks_in_a_circle_are_told() {
    for (how, rt) in runtimes() {
        let told = rt.run(|| {
            // One awaits a stream, one a set, one a task.
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
        let why = told.map(|_| ()).unwrap_err();
        assert_eq!(names(&why), ["?", "join", "set", "stream"], "{how}: {why}");
    }
}

#[test]
fn set_awaited_again_is_still_known_to_be_awaited() {
    // Beside the set, the task awaits a stream, which has an item: its future asks the set again, and goes on to wait.
    for workers in [1, 2] {
        let rt = Runtime::builder().workers(workers).build().unwrap();
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
fn wrapper_in_a_circle_is_told() {
    for workers in [1, 2] {
        let rt = Runtime::builder().workers(workers).build().unwrap();
        let told = rt.run(|| {
            let (mut a, mut from_a) = stream::<u8>(1);
            let (mut b, mut from_b) = stream::<u8>(1);
            let wrapper = task("wrapper").wrapper().spawn(move || {
                let _ = (from_b.read(), a.write(1));
            });
            let other = task("task").spawn(move || {
                let _ = (from_a.read(), b.write(1));
            });
            [wrapper, other].map(|t| t.unwrap().join().unwrap_err())
        });
        let why = told.map(|_| ()).unwrap_err();
        assert_eq!(names(&why), ["?", "task", "wrapper"], "{why}");
        assert!(why.to_string().contains("'wrapper' on a thread of its own waits for an item"), "{why}");
    }
}

#[test]
fn wrappers_alone_in_a_circle_are_told() {
    let rt = Runtime::builder().workers(1).build().unwrap();
    let (mut a, mut from_a) = stream::<u8>(1);
    let (mut b, mut from_b) = stream::<u8>(1);
    let told = rt.run(move || {
        let one = task("one").wrapper().spawn(move || {
            let _ = (from_b.read(), a.write(1));
        });
        let two = task("two").wrapper().spawn(move || {
            let _ = (from_a.read(), b.write(1));
        });
        (one.unwrap(), two.unwrap())
    });
    let (one, two) = told.unwrap();
    assert_eq!(names(&one.join().unwrap_err()), ["one", "two"]);
    assert_eq!(names(&two.join().unwrap_err()), ["one", "two"]);
}

#[test]
fn circle_without_run_is_told_by_the_next_run() {
    // An open world: tasks are spawned from a thread outside, which might have been handed any end.
    for workers in [1, 2] {
        let rt = Runtime::builder().workers(workers).build().unwrap();
        let (mut a, mut from_a) = stream(1);
        let (mut b, mut from_b) = stream(1);
        let one = rt.task().name("one").spawn(move || {
            a.write(1).unwrap();
            from_b.read();
            from_b.read();
            let _ = a.write(2);
        });
        let two = rt.task().name("two").spawn(move || {
            b.write(1).unwrap();
            from_a.read();
            from_a.read();
            let _ = b.write(2);
        });
        assert_eq!(rt.run(|| 1).unwrap(), 1);
        for told in [one, two] {
            assert_eq!(names(&told.unwrap().join().unwrap_err()), ["one", "two"]);
        }
    }
}

#[test]
fn end_in_the_hands_of_a_thread_is_no_deadlock() {
    for workers in [1, 2] {
        let rt = Runtime::builder().workers(workers).build().unwrap();
        // Never used, and no run: nothing is said.
        let (mut writer, mut reader) = stream(1);
        let waits = rt.spawn(move || reader.read());
        // Used by this thread, and a run meanwhile.
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
fn end_handed_from_a_task_to_a_thread_is_no_deadlock_outside_run() {
    // The end was last used by the very task that waits. Who is to say that nobody else has it?
    for workers in [1, 2] {
        let rt = Runtime::builder().workers(workers).build().unwrap();
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
fn end_handed_to_a_task_that_awaits_something_outside_is_no_deadlock() {
    // 'b' used the end last and waits for 'a', which waits for that end. But 'c' has it now, and will use it when it is
    // woken from outside.
    use std::future::poll_fn;
    use std::task::{Poll, Waker};
    for workers in [1, 2] {
        let rt = Runtime::builder().workers(workers).build().unwrap();
        let (tell, told) = std::sync::mpsc::channel::<Waker>();
        let ringer = thread::spawn(move || {
            let waker = told.recv().unwrap();
            // By now nothing moves, or soon.
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
                        tell.send(context.waker().clone()).unwrap();
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
fn end_that_nobody_used_and_nobody_will_is_a_deadlock() {
    for (how, rt) in runtimes() {
        let (writer, mut reader) = stream::<u8>(1);
        let told = rt.run(move || reader.read()).unwrap_err();
        assert_eq!(names(&told), ["?"], "{how}");
        assert!(told.to_string().contains("which nobody has written to yet; if a thread"), "{told}");
        drop(writer);
    }
}

#[test]
fn end_that_nobody_used_yet_may_be_with_a_task_that_goes_on() {
    // One task waits for an end that was never used; it is with another that waits for a thread.
    for workers in [1, 2] {
        let rt = Runtime::builder().workers(workers).build().unwrap();
        let (mut tell, mut told) = stream(1);
        tell.write(1).unwrap();
        let got = thread::scope(|s| {
            let run = s.spawn(|| {
                rt.run(move || {
                    let (mut unused, mut reader) = stream(1);
                    let holder = spawn(move || {
                        let sum = told.by_ref().sum::<u32>();
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
            tell.write(2).unwrap();
            drop(tell);
            run.join().unwrap()
        });
        assert_eq!(got.unwrap(), Some(3));
    }
}

/// A task that writes each item that it reads twice.
fn write_twice(task: &Task<'_>, mut from: Reader<u64>, mut to: Writer<u64>) {
    let body = move || {
        while let Some(n) = from.read() {
            to.write(n).unwrap();
            to.write(n).unwrap();
        }
    };
    task.spawn(body).unwrap();
}

/// A loop over streams of one item, which stands still unless one of them grows.
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
fn artificial_deadlock_is_resolved_while_others_are_busy() {
    // One worker is stuck in a task that computes until the loop has come through.
    let rt = Runtime::builder().workers(2).build().unwrap();
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
        // Its tasks are not to be started by the other worker, and wait for it.
        let (mut forth, forth_r) = growing_stream(1);
        let (back, mut back_r) = growing_stream(1);
        // An end that nobody has used might be with the task that is busy: then nothing is sure.
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

/// A circle on the one worker that there is, beside a task that never lets it rest for good.
fn circle_beside(others: fn()) {
    let threads = Runtime::builder().workers(1).build().unwrap();
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
fn artificial_deadlock_beside_a_sleeper_is_resolved() {
    circle_beside(|| sleep(Duration::from_millis(1)));
}

#[test]
fn artificial_deadlock_beside_a_busy_task_on_its_worker_is_resolved() {
    circle_beside(yield_now);
}

#[test]
fn artificial_deadlock_beside_a_busy_task_is_resolved_by_a_worker_that_slept() {
    /// Only a fault takes so long: the task that yields gives up, and then its own worker has time to look.
    const PATIENCE: std::time::Duration = std::time::Duration::from_secs(20);
    let rt = Runtime::builder().workers(2).build().unwrap();
    while rt.counters().waits < 2 {
        thread::yield_now();
    }
    // And they sleep for good soon.
    thread::sleep(std::time::Duration::from_millis(30));
    let done = Arc::new(AtomicBool::new(false));
    let sum = rt.task().worker(0).spawn(move || {
        let begin = std::time::Instant::now();
        let (mut forth, forth_r) = growing_stream(1);
        let (back, mut back_r) = growing_stream(1);
        assert!(back_r.try_read().is_err());
        let here = || Task::new().worker(0);
        let stop = done.clone();
        let yields = here().spawn(move || {
            while !stop.load(Ordering::Relaxed) && begin.elapsed() < PATIENCE {
                yield_now();
            }
            stop.load(Ordering::Relaxed)
        });
        write_twice(&here(), forth_r, back);
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
fn smallest_full_stream_of_the_circle_grows() {
    let rt = Runtime::builder().workers(1).build().unwrap();
    let (small, large) = rt
        .run(|| {
            let (mut small, mut small_r) = growing_stream(2);
            let (mut large, mut large_r) = growing_stream(64);
            // Writes both full before the other reads any.
            let writer = spawn(move || {
                for n in 0..200 {
                    large.write(n).unwrap();
                    small.write(n).unwrap();
                    small.write(n).unwrap();
                }
                (small.capacity(), large.capacity())
            });
            // Wants many of one for each of the other.
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
    // Nothing here needs more: the reader follows the writer.
    assert_eq!((small, large), (2, 64));
    let grown = rt.run(|| {
        let (mut small, mut small_r) = growing_stream(2);
        let (mut large, mut large_r) = growing_stream(8);
        let writer = spawn(move || {
            // The reader wants all of the small one only when it has the first of the other: 2 + 4 + ... + 64 is room
            // for 100, each row of slots twice as long as the one before. The other is large enough.
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
fn writer_that_waits_for_a_slow_reader_is_not_given_more_room() {
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
fn true_deadlock_with_growing_streams_is_told() {
    for (how, rt) in runtimes() {
        let told = rt.run(|| {
            let (mut a, mut from_a) = growing_stream::<u8>(1);
            let (mut b, mut from_b) = growing_stream::<u8>(1);
            let other = task("other").spawn(move || {
                let _ = (from_a.read(), b.write(1));
            });
            let _ = (from_b.read(), a.write(1));
            let _ = other.unwrap().join();
        });
        assert_eq!(names(&told.unwrap_err()), ["?", "other"], "{how}");
        assert_eq!(rt.counters().growths, 0, "{how}");
    }
}

#[test]
fn deadlocks_one_after_another_are_each_told() {
    for (how, rt) in runtimes() {
        for round in 0..20 {
            let told = rt.run(move || {
                let (mut a, mut from_a) = stream::<u8>(1);
                let (mut b, mut from_b) = stream::<u8>(1);
                let other = task(&format!("round {round}")).spawn(move || {
                    let _ = (from_a.read(), b.write(1));
                });
                let _ = (from_b.read(), a.write(1));
                let _ = other.unwrap().join();
            });
            assert_eq!(names(&told.unwrap_err()), ["?".to_owned(), format!("round {round}")], "{how}");
        }
        let counters = rt.counters();
        assert_eq!(counters.spawned, counters.ended, "{how}");
    }
}

#[test]
fn long_chain_that_waits_for_a_deadlock_is_told() {
    const DEPTH: usize = 2000;
    for workers in [1, 2] {
        let rt = Runtime::builder().workers(workers).build().unwrap();
        let told = rt.run(|| {
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
        let why = told.unwrap_err();
        let Failure::Deadlock(deadlock) = &why else { panic!("{why}") };
        assert_eq!(deadlock.tasks().len(), DEPTH + 1);
        assert!(why.to_string().contains("; ...; if a thread"), "{why}");
    }
}
