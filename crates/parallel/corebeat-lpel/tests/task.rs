//! Tasks: start, waiting, and end.

use corebeat_lpel::scheduler::{Fifo, Scheduler};
use corebeat_lpel::*;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::time::Duration;

fn runtime(workers: usize) -> Runtime {
    Runtime::builder().workers(workers).build().unwrap()
}

#[test]
fn sleep_wakes_in_order() {
    // In virtual time: the system may delay the second sleep beyond the end of the first.
    let order = Runtime::builder().deterministic(1).build().unwrap().run(|| {
        let (mut w, r) = stream(4);
        let (mut w2, r2) = stream(4);
        spawn(move || {
            sleep(Duration::from_millis(20));
            w.write(2).unwrap();
        });
        spawn(move || {
            sleep(Duration::from_millis(1));
            w2.write(1).unwrap();
        });
        let mut set = StreamSet::new();
        set.add(r);
        set.add(r2);
        let mut order = Vec::new();
        while let Some((_, event)) = set.read() {
            if let Event::Item(n) = event {
                order.push(n);
            }
        }
        order
    });
    assert_eq!(order.unwrap(), [1, 2]);
}

#[test]
fn many_tasks_start_and_end() {
    for workers in [1, 2] {
        let rt = runtime(workers);
        let n = rt.run(|| {
            (0..100_000).map(|n| spawn(move || n)).map(|h| h.join().unwrap() as u64).sum::<u64>()
        });
        assert_eq!(n.unwrap(), 4_999_950_000);
        let counters = rt.counters();
        assert_eq!((counters.spawned, counters.ended), (100_001, 100_001));
    }
}

#[test]
fn task_with_a_dropped_handle_continues() {
    for workers in [1, 2] {
        let rt = runtime(workers);
        let (mut writer, reader) = stream(1);
        drop(rt.spawn(move || {
            yield_now();
            writer.write(1).unwrap();
        }));
        assert!(reader.eq([1]));
        assert_eq!(rt.run(|| 2).unwrap(), 2);
        assert_eq!((rt.counters().spawned, rt.counters().ended), (2, 2));
    }
}

#[test]
fn run_waits_for_tasks_without_joiner() {
    for workers in [1, 2] {
        let (report, reported) = channel();
        let rt = runtime(workers);
        rt.run(move || {
            let again = report.clone();
            spawn(move || {
                sleep(Duration::from_millis(5));
                spawn_async(async move { again.send("inner") });
            });
            Task::new().blocking().spawn(move || report.send("blocking")).unwrap();
        })
        .unwrap();
        let mut ended: Vec<_> = reported.try_iter().collect();
        ended.sort();
        assert_eq!(ended, ["blocking", "inner"]);
    }
}

#[test]
fn run_returns_the_failure_of_its_own_task() {
    let rt = runtime(2);
    assert!(matches!(rt.run(|| panic!("{}", "own")), Err(Failure::Panicked(_))));
    // A failure of another task is no failure of `run`.
    assert!(rt.run(|| spawn(|| panic!("{}", "other")).join().is_err()).unwrap());
    rt.run(|| drop(spawn(|| panic!("{}", "without joiner")))).unwrap();
}

#[test]
fn finished_task_is_finished_and_keeps_its_result() {
    let rt = runtime(1);
    let (mut go, mut wait) = stream(1);
    let waits = rt.spawn(move || wait.read());
    let other = rt.spawn(|| "kept".to_owned());
    assert_ne!(waits.id(), other.id());
    assert!(!waits.is_finished());
    go.write(1).unwrap();
    while !waits.is_finished() || !other.is_finished() {
        std::thread::yield_now();
    }
    drop(rt);
    assert_eq!((waits.join().unwrap(), other.join().unwrap()), (Some(1), "kept".to_owned()));
}

#[test]
fn run_may_be_called_by_many_threads() {
    let rt = runtime(2);
    std::thread::scope(|s| {
        for n in 0..4u64 {
            let rt = &rt;
            s.spawn(move || {
                for round in 0..100 {
                    assert_eq!(
                        rt.run(move || spawn(move || n * round).join().unwrap()).unwrap(),
                        n * round
                    );
                }
            });
        }
    });
    let counters = rt.counters();
    assert_eq!((counters.spawned, counters.ended), (800, 800));
}

#[test]
fn blocked_threads_of_blocking_tasks_delay_no_task() {
    // One worker, and two blocking tasks that wait for each other as threads do, with a task
    // between them.
    let (there, back) = (channel(), channel());
    let got = runtime(1).run(move || {
        let (mut writer, mut reader) = stream(1);
        let (mut doubles, mut doubled) = stream(1);
        let first = Task::new().blocking().spawn(move || {
            writer.write(back.1.recv().unwrap()).unwrap();
            there.0.send(()).unwrap();
        });
        spawn(move || doubles.write(2 * reader.read().unwrap()).unwrap());
        let second = Task::new().blocking().spawn(move || {
            back.0.send(4).unwrap();
            there.1.recv().unwrap();
            doubled.read()
        });
        first.unwrap().join().unwrap();
        second.unwrap().join().unwrap()
    });
    assert_eq!(got.unwrap(), Some(8));
}

#[test]
fn dump_contains_the_state_of_each_task() {
    // In virtual time, so that no task wakes during the dump.
    let fifo = |_| -> Box<dyn Scheduler> { Box::new(Fifo::default()) };
    let rt = Runtime::builder().workers(1).scheduler(fifo).deterministic(1).build().unwrap();
    rt.run(|| {
        let (never, mut reader) = stream::<u8>(3);
        let (mut writer, kept) = stream::<u8>(1);
        let (set_end, member) = stream::<u8>(5);
        let (await_end, mut awaited) = stream::<u8>(7);
        let (over, mut until_over) = stream::<u8>(1);
        let mut set = StreamSet::new();
        set.add(member);
        let streams = [reader.id(), writer.id(), set_end.id(), awaited.id()];
        let named = |name: &str| Task::new().name(name);
        let waits = spawn(move || until_over.read());
        let waits_id = waits.id();
        named("reads").spawn(move || reader.read()).unwrap();
        named("writes").spawn(move || while writer.write(1).is_ok() {}).unwrap();
        named("polls").spawn(move || set.read()).unwrap();
        named("joins").spawn(move || waits.join().unwrap()).unwrap();
        named("sleeps").spawn(|| sleep(Duration::from_secs(3600))).unwrap();
        named("awaits").spawn_async(async move { awaited.read_async().await }).unwrap();
        named("ready").spawn(|| (yield_now(), yield_now())).unwrap();
        yield_now();
        named("unstarted").spawn(|| ()).unwrap();
        let dump = dump().unwrap();
        drop((never, kept, set_end, await_end, over));
        assert_eq!((dump.tasks.len(), dump.unstarted), (9, 1), "{dump}");
        let find = |name| dump.tasks.iter().find(|t| t.name.as_deref() == Some(name)).unwrap();
        let on_stream = |name| match &find(name).waits_for {
            Some(WaitsFor::Stream(stream)) => (find(name).status, stream.id, stream.capacity),
            other => panic!("{name} waits for {other:?}"),
        };
        assert_eq!(on_stream("reads"), (Status::Reading, streams[0], 3));
        assert_eq!(on_stream("writes"), (Status::Writing, streams[1], 1));
        assert_eq!(on_stream("awaits"), (Status::Awaiting, streams[3], 7));
        let polls = find("polls");
        let Some(WaitsFor::Any(any)) = &polls.waits_for else { panic!("{polls}") };
        assert_eq!(
            (polls.status, any.len(), any[0].id, any[0].capacity),
            (Status::Polling, 1, streams[2], 5)
        );
        assert_eq!(
            (find("joins").status, &find("joins").waits_for),
            (Status::Joining, &Some(WaitsFor::Task(waits_id)))
        );
        for (name, status) in [("sleeps", Status::Sleeping), ("ready", Status::Ready)] {
            assert_eq!((find(name).status, &find(name).waits_for), (status, &None));
        }
        assert!(dump.tasks.iter().all(|t| t.worker == Some(0)));
        assert_eq!(dump.tasks.iter().filter(|t| t.status == Status::Running).count(), 1);
        let text = dump.to_string();
        for line in [
            "9 tasks, and 1 not started",
            &format!(
                "'reads' on worker 0 waits for an item on stream {} (capacity 3), which no \
                 task has written to yet",
                streams[0]
            ),
            &format!(
                "'writes' on worker 0 waits for room on stream {} (capacity 1), which no task \
                 has read from yet",
                streams[1]
            ),
            &format!("'polls' on worker 0 waits for any of 1 streams: {}", streams[2]),
            &format!("'joins' on worker 0 waits for the end of task {waits_id}"),
            "'sleeps' on worker 0 sleeps",
            "'ready' on worker 0 is ready",
        ] {
            assert!(text.contains(line), "{line}\nis missing in\n{text}");
        }
    })
    .unwrap();
}

#[test]
fn dump_works_while_workers_are_stuck() {
    // Both workers compute until the dump is complete, and so does a blocking task.
    let rt = runtime(2);
    let made = Arc::new(AtomicBool::new(false));
    let task = |n| if n < 2 { rt.task().worker(n) } else { rt.task().blocking() };
    let started = Arc::new(Barrier::new(4));
    let tasks = [0, 1, 2].map(|n| {
        let (made, started) = (made.clone(), started.clone());
        let computes = task(n).name("computes").spawn(move || {
            started.wait();
            while !made.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        computes.unwrap()
    });
    started.wait();
    let dump = rt.dump();
    made.store(true, Ordering::Relaxed);
    let mut workers: Vec<_> = dump.tasks.iter().map(|t| (t.worker, t.status)).collect();
    workers.sort_by_key(|(worker, _)| *worker);
    assert_eq!(workers, [None, Some(0), Some(1)].map(|w| (w, Status::Running)));
    tasks.into_iter().for_each(|t| t.join().unwrap());
}

#[test]
fn runtime_dropped_during_a_yielding_task_unwinds_the_task() {
    let rt = runtime(2);
    let (mut report, mut reported) = stream::<()>(1);
    let yields = rt.spawn(move || {
        report.write(()).unwrap();
        loop {
            yield_now();
        }
    });
    reported.read();
    drop(rt);
    assert!(matches!(yields.join(), Err(Failure::Cancelled)));
    assert_eq!(reported.read(), None);
}

#[test]
fn seed_determines_the_order() {
    let order = |seed| {
        let rt = Runtime::builder().workers(3).deterministic(seed).build().unwrap();
        let (report, reported) = channel();
        rt.run(move || {
            for n in 0..10 {
                let report = report.clone();
                let task = if n % 3 == 0 { Task::new().blocking() } else { Task::new() };
                let body = move || {
                    yield_now();
                    sleep(Duration::from_secs(n / 5));
                    report.send(n).unwrap();
                };
                task.spawn(body).unwrap();
            }
        })
        .unwrap();
        reported.iter().collect::<Vec<_>>()
    };
    let orders: HashSet<_> = (0..20).map(order).collect();
    assert!(orders.len() > 5, "{orders:?}");
    assert!((0..20).all(|seed| orders.contains(&order(seed))));
}
