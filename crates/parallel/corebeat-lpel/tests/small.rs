//! Small cases of all concurrent operations: small enough for Miri, which is a thousand times
//! slower.

use corebeat_lpel::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn runtime(workers: usize) -> Runtime {
    Runtime::builder().workers(workers).build().unwrap()
}

#[test]
fn blocked_tasks_pass_boxes() {
    let sum = runtime(2).run(|| {
        let (mut numbers, to_double) = stream(1);
        let (mut doubles, last) = stream(2);
        spawn(move || (0..8).for_each(|n| numbers.write(Box::new(n)).unwrap()));
        spawn(move || to_double.into_iter().for_each(|n| doubles.write(Box::new(2 * *n)).unwrap()));
        last.map(|n| *n).sum::<u64>()
    });
    assert_eq!(sum.unwrap(), 56);
}

#[test]
fn awaiting_tasks_pass_boxes() {
    let sum = runtime(2).run(|| {
        let (mut numbers, mut last) = stream(1);
        spawn_async(async move {
            for n in 0..8 {
                numbers.write(Box::new(n)).unwrap();
            }
        });
        let sum = spawn_async(async move {
            let mut sum = 0;
            while let Some(n) = last.read_async().await {
                sum += *n;
            }
            sum
        });
        sum.join().unwrap()
    });
    assert_eq!(sum.unwrap(), 28);
}

#[test]
fn batches_pass_boxes() {
    let got = runtime(2).run(|| {
        let (mut writer, mut reader) = stream(3);
        spawn(move || {
            let mut items: Vec<_> = (0..8).map(Box::new).collect();
            writer.write_batch(&mut items).unwrap();
        });
        let mut got = Vec::new();
        while reader.read_batch(&mut got, 2) > 0 {}
        got.into_iter().map(|n| *n).collect::<Vec<_>>()
    });
    assert_eq!(got.unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn set_receives_boxes_of_two_streams() {
    let (items, ends) = runtime(2)
        .run(|| {
            let mut set = StreamSet::new();
            for n in 1..=2 {
                let (mut writer, reader) = stream(1);
                set.add(reader);
                spawn(move || (0..3).for_each(|_| writer.write(Box::new(n)).unwrap()));
            }
            let (mut items, mut ends) = (0, 0);
            while let Some((_, event)) = set.read() {
                match event {
                    Event::Item(n) => items += *n,
                    Event::End => ends += 1,
                }
            }
            (items, ends)
        })
        .unwrap();
    assert_eq!((items, ends), (9, 2));
}

#[test]
fn growing_streams_pass_boxes() {
    let got = runtime(2).run(|| {
        let (mut early, late) = growing_stream(1);
        let (mut go, mut may_go) = growing_stream(1);
        spawn(move || {
            (0..5).for_each(|n| early.write(Box::new(n)).unwrap());
            go.write(()).unwrap();
        });
        may_go.read().unwrap();
        late.map(|n| *n).collect::<Vec<_>>()
    });
    assert_eq!(got.unwrap(), [0, 1, 2, 3, 4]);
}

#[test]
fn moved_ends_pass_boxes() {
    // A different task on the other worker reads each item.
    fn relay(n: usize, mut reader: Reader<Box<usize>>) -> usize {
        match reader.read() {
            Some(item) => {
                let next = Task::new().worker(n % 2).spawn(move || relay(n + 1, reader)).unwrap();
                *item + next.join().unwrap()
            }
            None => 0,
        }
    }
    let sum = runtime(2).run(|| {
        let (mut writer, reader) = stream(1);
        spawn(move || (0..5).for_each(|n| writer.write(Box::new(n)).unwrap()));
        relay(0, reader)
    });
    assert_eq!(sum.unwrap(), 10);
}

#[test]
fn threads_and_blocking_task_pass_boxes() {
    let rt = runtime(1);
    let (mut writer, mut reader) = stream(1);
    let (mut to_thread, from_blocking) = stream(1);
    let blocking = rt.task().blocking().spawn(move || {
        while let Some(n) = reader.read() {
            to_thread.write(n).unwrap();
        }
    });
    let thread =
        std::thread::spawn(move || (0..5).for_each(|n| writer.write(Box::new(n)).unwrap()));
    assert_eq!(from_blocking.map(|n| *n).sum::<usize>(), 10);
    blocking.unwrap().join().unwrap();
    thread.join().unwrap();
}

/// Counts drops.
struct Drops(Arc<AtomicUsize>);

impl Drop for Drops {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn panic_and_exit_drop_all_values_of_the_task() {
    let drops = Arc::new(AtomicUsize::new(0));
    let (first, second) = (Drops(drops.clone()), Drops(drops.clone()));
    let failed = runtime(2).run(|| {
        let panics = spawn(move || {
            let _first = first;
            yield_now();
            std::panic::resume_unwind(Box::new("no"));
        });
        let exits = spawn(move || {
            let _second = second;
            yield_now();
            exit();
        });
        (
            matches!(panics.join(), Err(Failure::Panicked(_))),
            matches!(exits.join(), Err(Failure::Exited)),
        )
    });
    assert_eq!(failed.unwrap(), (true, true));
    assert_eq!(drops.load(Ordering::Relaxed), 2);
}

#[test]
fn dropped_runtime_unwinds_waiting_tasks() {
    let drops = Arc::new(AtomicUsize::new(0));
    let own = Drops(drops.clone());
    let rt = runtime(2);
    let (mut to_tell, mut reported) = stream(1);
    let (mut to_wake, mut woken) = stream::<u8>(1);
    let blocked = rt.spawn(move || {
        let _own = own;
        to_tell.write(()).unwrap();
        woken.read()
    });
    reported.read();
    drop(rt);
    assert!(matches!(blocked.join(), Err(Failure::Cancelled)));
    assert_eq!(drops.load(Ordering::Relaxed), 1);
    assert!(to_wake.try_write(1).is_err());
}

#[test]
fn deadlock_unwinds_waiting_tasks() {
    let drops = Arc::new(AtomicUsize::new(0));
    let own = Drops(drops.clone());
    let rt = runtime(2);
    let reported = rt.run(|| {
        let (mut a, mut b) = stream::<u8>(1);
        let (mut c, mut d) = stream::<u8>(1);
        spawn(move || {
            let _own = own;
            b.read();
            let _ = c.write(1);
        });
        d.read();
        let _ = a.write(1);
    });
    assert!(matches!(reported, Err(Failure::Deadlock(_))), "{reported:?}");
    drop(rt);
    assert_eq!(drops.load(Ordering::Relaxed), 1);
}

#[test]
fn dump_of_running_tasks_contains_only_living_ones() {
    let rt = runtime(2);
    let (mut writer, mut reader) = stream(1);
    let writing = rt.spawn(move || (0..6).for_each(|n| writer.write(n).unwrap()));
    let reading = rt.spawn(move || reader.by_ref().sum::<i32>());
    while !reading.is_finished() {
        assert!(rt.dump().tasks.len() <= 2);
    }
    writing.join().unwrap();
    assert_eq!(reading.join().unwrap(), 15);
}

#[test]
fn deterministic_run_passes_boxes() {
    let rt = Runtime::builder().workers(2).deterministic(1).build().unwrap();
    let got = rt.run(|| {
        let (mut writer, reader) = stream(1);
        spawn(move || {
            for n in 0..4 {
                sleep(std::time::Duration::from_secs(1));
                writer.write(Box::new(n)).unwrap();
            }
        });
        reader.map(|n| *n).collect::<Vec<_>>()
    });
    assert_eq!(got.unwrap(), [0, 1, 2, 3]);
}

/// The result takes the place of the body, so the block has room for the larger one.
#[test]
fn bodies_and_results_of_all_sizes_and_alignments_are_kept() {
    #[repr(align(64))]
    struct Aligned(u8);
    let sum = runtime(2).run(|| {
        let large = spawn(|| [7_u64; 100]);
        let (numbers, aligned) = ([3_u64; 100], Aligned(4));
        let small = spawn(move || numbers.iter().sum::<u64>() as u8);
        let from_aligned = spawn(move || aligned.0);
        let to_aligned = spawn_async(async { Aligned(5) });
        let both = Aligned(6);
        let both = spawn_async(async move { Aligned(both.0 + 1) });
        let (to_aligned, both) = (to_aligned.join().unwrap(), both.join().unwrap());
        for place in [&raw const to_aligned, &raw const both] {
            assert_eq!(place.addr() % 64, 0);
        }
        let bytes = [small.join().unwrap(), from_aligned.join().unwrap(), to_aligned.0, both.0];
        large.join().unwrap().iter().sum::<u64>() + bytes.map(u64::from).iter().sum::<u64>()
    });
    assert_eq!(sum.unwrap(), 700 + 300 % 256 + 4 + 5 + 7);
}

#[test]
fn body_and_result_are_dropped_once_however_a_task_ends() {
    struct Counted(Arc<AtomicUsize>, bool);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
            if self.1 && !std::thread::panicking() {
                panic!("a planted panic of a destructor");
            }
        }
    }
    let drops = Arc::new(AtomicUsize::new(0));
    for panics in [false, true] {
        drops.store(0, Ordering::Relaxed);
        let counted = || Counted(drops.clone(), panics);
        let [body, result, unread, failing] = [counted(), counted(), counted(), counted()];
        runtime(2)
            .run(move || {
                let joined = spawn_async(async move {
                    let _body = body;
                });
                let _ = joined.join();
                drop(spawn(move || unread));
                let failed = spawn_async(async move {
                    let _failing = failing;
                    panic!("a planted panic");
                });
                assert!(failed.join().is_err());
                // With the planted panic, this ends the first task.
                drop(spawn(move || result).join());
            })
            .ok();
        assert_eq!(drops.load(Ordering::Relaxed), 4, "{panics}");
    }
}

#[test]
fn task_that_is_aborted_with_an_item_before_it_runs_again_ends() {
    let runtime = Runtime::builder().deterministic(1).build().unwrap();
    let ended = runtime.run(|| {
        let (mut writer, mut reader) = stream(1);
        let task = spawn(move || (reader.read(), reader.read()));
        yield_now(); // the task waits
        writer.write(Box::new(1)).unwrap();
        task.abort();
        (task.join(), writer.write(Box::new(2)).is_err())
    });
    assert!(matches!(ended.unwrap(), (Err(Failure::Aborted), true)));
}
