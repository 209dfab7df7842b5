//! Futures: tasks that await, and other executors that await streams and tasks of LPEL.

use corebeat_lpel::*;
use futures_util::future::{Either, join_all, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

fn runtime(workers: usize) -> Runtime {
    Runtime::builder().workers(workers).build().unwrap()
}

/// Executor of one future, on a thread without a runtime.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return result;
        }
        thread::park();
    }
}

/// An event of another library: set once, and wakes the awaiting task. Keeps a waker as long as it
/// wakes the right task, as most such libraries do.
#[derive(Clone, Default)]
struct Bell(Arc<Mutex<(bool, Option<Waker>)>>);

impl Bell {
    fn ring(&self) {
        let waker = {
            let mut state = self.0.lock().unwrap();
            state.0 = true;
            state.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Wakes without an event.
    fn shake(&self) {
        let state = self.0.lock().unwrap();
        if let Some(waker) = &state.1 {
            waker.wake_by_ref();
        }
    }

    fn is_awaited(&self) -> bool {
        self.0.lock().unwrap().1.is_some()
    }
}

impl Future for Bell {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.lock().unwrap();
        if state.0 {
            return Poll::Ready(());
        }
        if !state.1.as_ref().is_some_and(|w| w.will_wake(context.waker())) {
            state.1 = Some(context.waker().clone());
        }
        Poll::Pending
    }
}

#[test]
fn async_task_with_many_awaits_yields_its_result() {
    for workers in [1, 2] {
        let sum = runtime(workers).run(|| {
            let tasks: Vec<_> = (0..100u64)
                .map(|n| {
                    let (mut writer, mut reader) = stream(1);
                    spawn_async(async move { writer.write(n).unwrap() });
                    spawn_async(async move { reader.read_async().await.unwrap() })
                })
                .collect();
            tasks.into_iter().map(|t| t.join().unwrap()).sum::<u64>()
        });
        assert_eq!(sum.unwrap(), 4950);
    }
}

#[test]
fn awaited_join_handle_returns_result_and_failure() {
    for workers in [1, 2] {
        let got = runtime(workers).run(|| {
            spawn_async(async {
                let good = spawn(|| 1).await.unwrap();
                let asynchronous = spawn_async(async { 2 }).await.unwrap();
                let bad = spawn(|| -> u8 { panic!("no") }).await.unwrap_err().to_string();
                (good, asynchronous, bad)
            })
            .join()
            .unwrap()
        });
        assert_eq!(got.unwrap(), (1, 2, "the task panicked: no".to_owned()));
    }
}

#[test]
fn join_after_a_poll_returns_the_result() {
    for workers in [1, 2] {
        let got = runtime(workers).run(|| {
            let (mut go, mut wait) = stream(1);
            let mut handle = spawn(move || wait.read().unwrap());
            let polled = Pin::new(&mut handle).poll(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending());
            go.write(7).unwrap();
            handle.join().unwrap()
        });
        assert_eq!(got.unwrap(), 7);
    }
}

#[test]
fn await_after_the_result_panics() {
    let (first, again) = runtime(1)
        .run(|| {
            let mut handle = spawn(|| 1);
            let first = spawn_async(async move { ((&mut handle).await, handle) }).join().unwrap();
            (first.0, spawn_async(first.1).join())
        })
        .unwrap();
    assert_eq!(first.unwrap(), 1);
    let why = again.unwrap_err().to_string();
    assert_eq!(why, "the task panicked: the handle has returned the result of the task before");
}

#[test]
fn task_continues_after_its_abandoned_await() {
    for workers in [1, 2] {
        let got = runtime(workers).run(|| {
            let (mut go, mut wait) = stream(1);
            let (mut report, mut reported) = stream(1);
            let mut handle = spawn(move || report.write(wait.read()).unwrap());
            spawn_async(async move {
                poll_fn(|context| {
                    assert!(Pin::new(&mut handle).poll(context).is_pending());
                    Poll::Ready(())
                })
                .await;
                drop(handle);
                go.write(5).unwrap();
                reported.read_async().await
            })
            .join()
            .unwrap()
        });
        assert_eq!(got.unwrap(), Some(Some(5)));
    }
}

#[test]
fn join_handle_polled_twice_wakes_the_later_waker() {
    let rt = runtime(1);
    let (mut go, mut wait) = stream(1);
    let mut handle = rt.spawn(move || wait.read());
    let polled = Pin::new(&mut handle).poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
    let other = thread::spawn(move || block_on(handle).unwrap());
    go.write(3).unwrap();
    assert_eq!(other.join().unwrap(), Some(3));
}

#[test]
fn foreign_waker_wakes_async_task() {
    for workers in [1, 2] {
        let rt = runtime(workers);
        let bell = Bell::default();
        let received = rt.spawn_async(bell.clone());
        let ringer = thread::spawn(move || {
            while !bell.is_awaited() {
                thread::yield_now();
            }
            bell.shake();
            bell.ring();
        });
        received.join().unwrap();
        ringer.join().unwrap();
    }
}

#[test]
fn run_waits_for_an_event_from_outside() {
    // No task makes progress during the await, but that is no deadlock: a thread will wake the
    // task.
    let rt = runtime(2);
    let bell = Bell::default();
    let ringer = thread::spawn({
        let bell = bell.clone();
        move || {
            while !bell.is_awaited() {
                thread::yield_now();
            }
            bell.ring();
        }
    });
    let reported = rt.run(move || spawn_async(bell).join());
    assert!(matches!(reported, Ok(Ok(()))), "{reported:?}");
    ringer.join().unwrap();
}

#[test]
fn event_from_outside_beside_a_stuck_stream_is_no_deadlock() {
    // `a` awaits an event from outside, or an item that never arrives, because its writer waits for
    // `a`. The second poll finds its waker unchanged, and does not clone it again.
    let rt = runtime(1);
    let bell = Bell::default();
    let (go, may_go) = std::sync::mpsc::channel::<()>();
    let ringer = thread::spawn({
        let bell = bell.clone();
        move || {
            may_go.recv().unwrap();
            for _ in 0..3 {
                while !bell.is_awaited() {
                    thread::yield_now();
                }
                bell.shake();
            }
            // By now no task makes progress, or will soon not. If the runtime reported a deadlock,
            // the bell would have no effect.
            thread::sleep(std::time::Duration::from_millis(30));
            bell.ring();
        }
    });
    let reported = rt.run(move || {
        let (mut w, mut r) = stream::<u8>(1);
        let (mut w2, mut r2) = stream::<u8>(1);
        let a = spawn_async(async move {
            let by = match select(bell, pin!(r.read_async())).await {
                Either::Left(_) => "bell",
                Either::Right(_) => "stream",
            };
            w2.write(1).unwrap();
            by
        });
        let b = spawn(move || {
            let _ = r2.read();
            let _ = w.write(1);
        });
        go.send(()).unwrap();
        let reported = a.join().map_err(|why| why.to_string());
        b.join().unwrap();
        reported
    });
    ringer.join().unwrap();
    assert_eq!(reported.unwrap(), Ok("bell"));
}

#[test]
fn select_takes_one_item_and_loses_none() {
    for workers in [1, 2] {
        let got = runtime(workers).run(|| {
            spawn_async(async {
                let (mut fast, mut r1) = stream(4);
                let (mut slow, mut r2) = stream(4);
                spawn_async(async move {
                    for n in 0..10 {
                        fast.write(n).unwrap();
                    }
                    slow.write(100).unwrap();
                });
                let mut got = Vec::new();
                while let Either::Left((Some(n), _)) | Either::Right((Some(n), _)) =
                    select(pin!(r1.read_async()), pin!(r2.read_async())).await
                {
                    got.push(n);
                }
                while let Some(n) = r1.read_async().await {
                    got.push(n);
                }
                while let Some(n) = r2.read_async().await {
                    got.push(n);
                }
                got.sort();
                got
            })
            .join()
            .unwrap()
        });
        let expected: Vec<_> = (0..10).chain([100]).collect();
        assert_eq!(got.unwrap(), expected);
    }
}

#[test]
fn foreign_combinators_work_with_streams_and_tasks() {
    for workers in [1, 2] {
        let sum = runtime(workers).run(|| {
            spawn_async(async {
                let all: FuturesUnordered<_> = (0..50u64)
                    .map(|n| {
                        let (mut writer, mut reader) = stream(1);
                        spawn(move || {
                            yield_now();
                            writer.write(n).unwrap();
                        });
                        async move {
                            let first = reader.read_async().await.unwrap();
                            assert_eq!(reader.read_async().await, None);
                            first
                        }
                    })
                    .collect();
                let unordered = all.fold(0, |sum, n| async move { sum + n }).await;
                let joined = join_all((0..50u64).map(|n| spawn(move || n))).await;
                unordered + joined.into_iter().map(|n| n.unwrap()).sum::<u64>()
            })
            .join()
            .unwrap()
        });
        assert_eq!(sum.unwrap(), 2450);
    }
}

#[test]
fn foreign_executor_receives_all_items() {
    for workers in [1, 2] {
        let rt = runtime(workers);
        let (mut writer, mut reader) = stream(2);
        rt.spawn(move || {
            for n in 0..1000u64 {
                writer.write(n).unwrap();
            }
        });
        let sum = block_on(async move {
            let mut sum = 0;
            while let Some(n) = reader.read_async().await {
                sum += n;
            }
            sum
        });
        assert_eq!(sum, 499_500);
    }
}

#[test]
fn reader_polled_by_several_threads_in_turn_receives_all_items() {
    let rt = runtime(1);
    let (mut writer, mut reader) = stream(1);
    let (mut go, mut wait) = stream(1);
    rt.spawn(move || {
        while let Some(n) = wait.read() {
            writer.write(n).unwrap();
        }
    });
    let mut next: Pin<Box<dyn Future<Output = Vec<u32>> + Send>> = Box::pin(async move {
        let mut got = Vec::new();
        while let Some(n) = reader.read_async().await {
            got.push(n);
        }
        got
    });
    for n in 0..20 {
        next = thread::spawn(move || {
            assert!(next.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            next
        })
        .join()
        .unwrap();
        go.write(n).unwrap();
    }
    drop(go);
    assert_eq!(block_on(next), (0..20).collect::<Vec<_>>());
}

#[test]
fn awaited_set_returns_all_events() {
    for workers in [1, 2] {
        let (items, ends) = runtime(workers)
            .run(|| {
                let mut set = StreamSet::new();
                for n in 0..20u64 {
                    let (mut writer, reader) = stream(2);
                    set.add(reader);
                    spawn(move || (0..n).for_each(|_| writer.write(1u64).unwrap()));
                }
                spawn_async(async move {
                    let (mut items, mut ends) = (0, 0);
                    while let Some((_, event)) = set.read_async().await {
                        match event {
                            Event::Item(n) => items += n,
                            Event::End => ends += 1,
                        }
                    }
                    (items, ends)
                })
                .join()
                .unwrap()
            })
            .unwrap();
        assert_eq!((items, ends), (190, 20));
    }
}

#[test]
fn async_task_that_blocks_keeps_its_order() {
    for workers in [1, 2] {
        let got = runtime(workers).run(|| {
            let (mut writer, mut reader) = stream(1);
            let task = spawn_async(async move {
                let mut got = Vec::new();
                // Waits once with a stack, and once without.
                while let Some(n) = reader.read() {
                    got.push(n);
                    got.extend(reader.read_async().await);
                    yield_now();
                }
                got
            });
            (0..100).for_each(|n| writer.write(n).unwrap());
            drop(writer);
            task.join().unwrap()
        });
        assert_eq!(got.unwrap(), (0..100).collect::<Vec<_>>());
    }
}

#[test]
fn awaiting_tasks_hold_no_stack() {
    const TASKS: usize = 500;
    let rt = runtime(1);
    let stacks = rt.run(|| {
        let mut ends = Vec::new();
        for _ in 0..TASKS {
            let (writer, mut reader) = stream::<u8>(1);
            spawn_async(async move { reader.read_async().await });
            ends.push(writer);
        }
        // All of them have run when this task runs again.
        yield_now();
        yield_now();
        ends
    });
    drop(stacks);
    let counters = rt.counters();
    assert!(counters.stacks < 10, "{counters:?}");
}

#[test]
fn waker_outlives_its_task() {
    let bell = Bell::default();
    let rt = runtime(2);
    let task = rt.spawn_async({
        let bell = bell.clone();
        async move {
            let mut bell = bell;
            // Leaves its waker in the object and ends.
            poll_fn(|context| {
                assert!(Pin::new(&mut bell).poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
        }
    });
    task.join().unwrap();
    bell.shake();
    drop(rt);
    bell.shake();
    bell.ring();
}

#[test]
fn wakers_are_counted() {
    // Wakers are cloned, woken by value, woken by reference and dropped, while the task runs and
    // while it awaits.
    let rt = runtime(2);
    for _ in 0..50 {
        let mut wakers = Vec::new();
        let polls = Arc::new(AtomicUsize::new(0));
        let (report, reported) = std::sync::mpsc::channel();
        let task = rt.spawn_async({
            let polls = polls.clone();
            poll_fn(move |context| {
                let waker = context.waker().clone();
                waker.wake_by_ref();
                let _ = report.send(waker.clone());
                waker.wake();
                if polls.fetch_add(1, Ordering::Relaxed) < 5 {
                    Poll::Pending
                } else {
                    Poll::Ready(())
                }
            })
        });
        while let Ok(waker) = reported.recv() {
            waker.wake_by_ref();
            wakers.push(waker);
        }
        task.join().unwrap();
        wakers.drain(..3).for_each(Waker::wake);
    }
    let counters = rt.counters();
    assert_eq!(counters.spawned, counters.ended);
}

#[test]
fn panicking_waker_leaves_the_runtime_usable() {
    struct Bad;
    impl Wake for Bad {
        fn wake(self: Arc<Self>) {
            panic!("a panicking waker");
        }
    }
    let waker = Waker::from(Arc::new(Bad));
    for workers in [1, 2] {
        let rt = runtime(workers);
        // A task wakes it, during a write.
        let (mut writer, mut reader) = stream(1);
        let mut next = pin!(reader.read_async());
        assert!(next.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert!(rt.spawn(move || writer.write(1)).join().unwrap().is_ok());
        assert_eq!(block_on(next), Some(1));
        // A worker wakes it, between two tasks.
        let (mut go, mut wait) = stream::<u8>(1);
        let mut handle = rt.spawn(move || wait.read());
        assert!(Pin::new(&mut handle).poll(&mut Context::from_waker(&waker)).is_pending());
        go.write(1).unwrap();
        while !handle.is_finished() {
            thread::yield_now();
        }
        assert_eq!(rt.run(|| 5).unwrap(), 5);
    }
}

#[test]
fn leaked_future_of_a_stream_leaves_the_stream_usable() {
    let got = runtime(2).run(|| {
        let (mut writer, mut reader) = stream(1);
        spawn_async(async move {
            for _ in 0..3 {
                poll_fn(|context| {
                    let mut next = Box::pin(reader.read_async());
                    assert!(next.as_mut().poll(context).is_pending());
                    std::mem::forget(next);
                    Poll::Ready(())
                })
                .await;
            }
            spawn(move || writer.write(1).unwrap());
            reader.read().into_iter().chain(reader.read_async().await).collect::<Vec<_>>()
        })
        .join()
        .unwrap()
    });
    assert_eq!(got.unwrap(), [1]);
}

#[test]
fn leaked_future_of_a_set_leaves_the_set_usable() {
    for workers in [1, 2] {
        let items = runtime(workers).run(|| {
            let mut set = StreamSet::new();
            for n in 0..3 {
                let (mut writer, reader) = stream(1);
                set.add(reader);
                spawn(move || {
                    for _ in 0..20 {
                        yield_now();
                        writer.write(n).unwrap();
                    }
                });
            }
            spawn_async(async move {
                let mut items = 0;
                loop {
                    let polled = poll_fn(|context| {
                        let mut next = Box::pin(set.read_async());
                        let polled = next.as_mut().poll(context);
                        std::mem::forget(next);
                        Poll::Ready(polled)
                    });
                    let event = match polled.await {
                        Poll::Ready(event) => event,
                        Poll::Pending if items % 2 == 0 => set.read(),
                        Poll::Pending => set.read_async().await,
                    };
                    match event {
                        Some((_, Event::Item(_))) => items += 1,
                        Some((_, Event::End)) => {}
                        None => return items,
                    }
                }
            })
            .join()
            .unwrap()
        });
        assert_eq!(items.unwrap(), 60);
    }
}

#[test]
fn dump_after_an_abandoned_await_names_no_dead_stream() {
    // In one poll: awaits a stream, gives up, drops both of its ends, and awaits another object.
    let rt = runtime(1);
    let bell = Bell::default();
    let task = rt.spawn_async({
        let bell = bell.clone();
        async move {
            {
                let (_writer, mut reader) = stream::<u8>(1);
                poll_fn(|context| {
                    assert!(pin!(reader.read_async()).poll(context).is_pending());
                    Poll::Ready(())
                })
                .await;
            }
            bell.await;
        }
    });
    while !bell.is_awaited() {
        thread::yield_now();
    }
    let dump = loop {
        let dump = rt.dump();
        if dump.tasks.iter().any(|t| t.status == Status::Awaiting) {
            break dump;
        }
    };
    assert_eq!(dump.tasks[0].waits_for, None, "{dump}");
    bell.ring();
    task.join().unwrap();
}

#[test]
fn sleep_after_an_await_lasts_its_full_time() {
    // Regression: the wake-up of the await was taken for the end of the sleep, and the timer was
    // left behind.
    let runtime = Runtime::builder().workers(1).deterministic(1).build().unwrap();
    let woken = runtime.run(|| {
        let (mut writer, mut reader) = stream(1);
        let (mut late, mut later) = stream(1);
        spawn_async(async move {
            reader.read_async().await;
            sleep(Duration::from_secs(2));
            late.write("slept").unwrap();
        });
        sleep(Duration::from_secs(1));
        writer.write(()).unwrap();
        sleep(Duration::from_secs(1));
        let early = later.try_read().is_ok();
        (early, later.read())
    });
    assert_eq!(woken.unwrap(), (false, Some("slept")));
}
