//! Tasks: how they begin, wait and end.

use corebeat_lpel::*;
use std::time::Duration;

fn runtime(workers: usize) -> Runtime {
    Runtime::builder().workers(workers).build().unwrap()
}

#[test]
fn run_returns_the_result() {
    assert_eq!(runtime(1).run(|| 42).unwrap(), 42);
    assert_eq!(runtime(2).run(|| 42).unwrap(), 42);
}

#[test]
fn pipeline_of_three_passes_all() {
    for workers in [1, 2, 3] {
        let sum = runtime(workers).run(|| {
            let (mut a, mut b) = stream(4);
            let (mut c, d) = stream(3);
            spawn(move || (0..1000u64).for_each(|n| a.write(n).unwrap()));
            spawn(move || {
                while let Some(n) = b.read() {
                    c.write(2 * n).unwrap();
                }
            });
            d.sum::<u64>()
        });
        assert_eq!(sum.unwrap(), 999_000, "{workers} workers");
    }
}

#[test]
fn async_pipeline_passes_all() {
    for workers in [1, 2] {
        let rt = runtime(workers);
        let (mut a, mut b) = stream(4);
        let (mut c, mut d) = stream(3);
        rt.spawn_async(async move {
            for n in 0..1000u64 {
                a.write(n).unwrap();
            }
        });
        rt.spawn_async(async move {
            while let Some(n) = b.read_async().await {
                c.write(2 * n).unwrap();
            }
        });
        let sum = rt.spawn_async(async move {
            let mut sum = 0;
            while let Some(n) = d.read_async().await {
                sum += n;
            }
            sum
        });
        assert_eq!(sum.join().unwrap(), 999_000);
    }
}

#[test]
fn panic_reaches_who_joins() {
    let why = runtime(1).run(|| spawn(|| panic!("oh")).join()).unwrap().unwrap_err();
    assert_eq!(why.to_string(), "the task panicked: oh");
}

#[test]
fn sleep_wakes_in_order() {
    let order = runtime(1).run(|| {
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
        let n =
            rt.run(|| (0..100_000).map(|n| spawn(move || n)).map(|h| h.join().unwrap() as u64).sum::<u64>());
        assert_eq!(n.unwrap(), 4_999_950_000);
        let counters = rt.counters();
        assert_eq!((counters.spawned, counters.ended), (100_001, 100_001));
    }
}

#[test]
fn deadlock_is_told() {
    let rt = runtime(2);
    let result = rt.run(|| {
        let (mut a, b) = stream::<u8>(1);
        let (mut c, mut d) = stream::<u8>(1);
        Task::new()
            .name("one")
            .spawn(move || {
                let mut b = b;
                b.read();
                c.write(1).unwrap();
            })
            .unwrap();
        d.read();
        a.write(1).unwrap();
    });
    let why = result.unwrap_err().to_string();
    assert!(why.starts_with("deadlock, 2 tasks wait for each other") && why.contains("'one'"), "{why}");
}

#[test]
fn growing_streams_resolve_artificial_deadlock() {
    let rt = runtime(2);
    let sum = rt.run(|| {
        let (mut a, mut b) = growing_stream(1);
        let (mut c, mut d) = growing_stream(1);
        spawn(move || {
            (0..100).for_each(|n| a.write(n).unwrap());
            c.write(1).unwrap();
        });
        let first = d.read().unwrap();
        first + b.by_ref().sum::<i32>()
    });
    assert_eq!(sum.unwrap(), 4951);
    assert!(rt.counters().growths >= 6, "{:?}", rt.counters());
}

#[test]
fn drop_unwinds_who_waits() {
    let rt = runtime(2);
    let (w, mut r) = stream::<u8>(1);
    let handle = rt.spawn(move || r.read());
    let (tell, told) = std::sync::mpsc::channel();
    let (mut w_started, mut started) = stream(1);
    rt.spawn(move || {
        struct Tell(std::sync::mpsc::Sender<()>);
        impl Drop for Tell {
            fn drop(&mut self) {
                self.0.send(()).unwrap();
            }
        }
        let _tell = Tell(tell);
        w_started.write(()).unwrap();
        loop {
            yield_now();
        }
    });
    started.read();
    drop(rt);
    told.recv().unwrap();
    assert!(matches!(handle.join(), Err(Failure::Cancelled)));
    assert!(w.is_closed());
}

#[test]
fn wrapper_uses_streams() {
    let rt = runtime(1);
    let got = rt.run(|| {
        let (mut a, mut b) = stream(1);
        Task::new()
            .wrapper()
            .spawn(move || {
                std::thread::sleep(Duration::from_millis(5));
                a.write(7).unwrap();
            })
            .unwrap();
        b.read()
    });
    assert_eq!(got.unwrap(), Some(7));
}

#[test]
fn deterministic_same_seed_same_order() {
    let order = |seed| {
        let rt = Runtime::builder().workers(3).deterministic(seed).build().unwrap();
        rt.run(|| {
            let (tell, told) = std::sync::mpsc::channel();
            for n in 0..20 {
                let tell = tell.clone();
                spawn(move || {
                    yield_now();
                    sleep(Duration::from_secs(100 - n));
                    yield_now();
                    tell.send(n).unwrap();
                });
            }
            drop(tell);
            while let Err(std::sync::mpsc::TryRecvError::Empty) = told.try_recv() {
                sleep(Duration::from_secs(1));
                if told.try_iter().count() > 100 {
                    break;
                }
            }
            told.try_iter().collect::<Vec<_>>()
        })
        .unwrap()
    };
    assert_eq!(order(1), order(1));
}
