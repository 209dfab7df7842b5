//! Streams between two tasks: the effect of each call on an end.

use corebeat_lpel::*;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

fn runtime(workers: usize) -> Runtime {
    Runtime::builder().workers(workers).build().unwrap()
}

#[test]
fn peeked_item_stays() {
    let (mut writer, mut reader) = stream(2);
    assert_eq!(reader.peek(), None);
    writer.write(1).unwrap();
    writer.write(2).unwrap();
    assert_eq!((reader.peek().copied(), reader.peek().copied()), (Some(1), Some(1)));
    assert_eq!((reader.read(), reader.peek().copied()), (Some(1), Some(2)));
    drop(writer);
    assert_eq!((reader.read(), reader.peek()), (Some(2), None));
}

#[test]
fn full_stream_returns_the_item() {
    for capacity in [1, 3, 100] {
        let (mut writer, mut reader) = stream(capacity);
        (0..capacity).for_each(|n| writer.try_write(n).unwrap());
        assert_eq!(writer.try_write(7), Err(TryWriteError::Full(7)));
        assert_eq!(reader.try_read(), Ok(0));
        assert_eq!(writer.try_write(capacity), Ok(()));
        assert_eq!((writer.capacity(), reader.capacity()), (capacity, capacity));
        drop(writer);
        assert!(reader.eq(1..=capacity));
    }
}

#[test]
fn growing_stream_grows_only_for_a_waiting_writer() {
    let (mut writer, reader) = growing_stream(2);
    assert!(writer.try_write(1).is_ok() && writer.try_write(2).is_ok());
    assert_eq!(writer.try_write(3), Err(TryWriteError::Full(3)));
    assert_eq!((writer.capacity(), reader.capacity()), (2, 2));
}

#[test]
fn unbounded_stream_takes_all_items_without_a_reader_that_reads() {
    let (mut writer, mut reader) = unbounded_stream(1);
    (0..1000).for_each(|n| writer.write(n).unwrap());
    assert_eq!(writer.capacity(), 512, "the segments of 1 to 512 items have room for 1,023");
    drop(writer);
    assert!(reader.by_ref().eq(0..1000));
    drop(reader);
    let (mut writer, reader) = unbounded_stream(1);
    drop(reader);
    assert!((0..2).any(|n| writer.write(n).is_err()), "a stream without a reader does not grow");
}

#[test]
fn empty_stream_is_not_closed() {
    let (mut writer, mut reader) = stream(1);
    assert_eq!(reader.try_read(), Err(TryReadError::Empty));
    writer.write(1).unwrap();
    drop(writer);
    assert_eq!((reader.try_read(), reader.try_read()), (Ok(1), Err(TryReadError::Closed)));
    assert_eq!((reader.read(), reader.read_batch(&mut Vec::new(), 5)), (None, 0));
}

#[test]
fn both_ends_return_the_number_of_the_stream() {
    let (writer, reader) = stream::<u8>(1);
    let (other, _reader) = stream::<u8>(1);
    assert_eq!(writer.id(), reader.id());
    assert_ne!(writer.id(), other.id());
}

#[test]
fn batch_larger_than_the_stream_arrives_complete_and_in_order() {
    for workers in [1, 2] {
        for make in [stream::<u32>, growing_stream::<u32>, unbounded_stream::<u32>] {
            let (left, got) = runtime(workers)
                .run(move || {
                    let (mut writer, mut reader) = make(7);
                    let writes = spawn(move || {
                        let mut items: Vec<_> = (0..1000).collect();
                        writer.write_batch(&mut items).unwrap();
                        items
                    });
                    let mut got = Vec::new();
                    while reader.read_batch(&mut got, 5) > 0 {}
                    (writes.join().unwrap(), got)
                })
                .unwrap();
            assert_eq!((left, got), (vec![], (0..1000).collect()));
        }
    }
}

#[test]
fn batch_read_returns_available_items_up_to_its_maximum() {
    let (mut writer, mut reader) = stream(4);
    let mut got = vec![0];
    assert_eq!(reader.read_batch(&mut got, 0), 0);
    (1..=4).for_each(|n| writer.write(n).unwrap());
    assert_eq!((reader.read_batch(&mut got, 3), reader.read_batch(&mut got, 3)), (3, 1));
    assert_eq!(got, [0, 1, 2, 3, 4]);
}

#[test]
fn interrupted_batch_keeps_unwritten_items() {
    for workers in [1, 2] {
        let (read, left) = runtime(workers)
            .run(|| {
                let (mut writer, mut reader) = stream(4);
                let writes = spawn(move || {
                    let mut items: Vec<_> = (0..100).collect();
                    assert!(writer.write_batch(&mut items).is_err());
                    items
                });
                let read = reader.by_ref().take(10).count();
                drop(reader);
                (read, writes.join().unwrap())
            })
            .unwrap();
        // The remaining items follow the written ones: those that were read, those that filled the
        // stream, and those that fit while the reader was dropped.
        let first = left[0];
        assert!((read..=read + 8).contains(&first), "{first}");
        assert!(left.into_iter().eq(first..100));
    }
}

#[test]
fn batch_read_ends_despite_a_fast_writer() {
    const CAPACITY: usize = 64;
    let (mut writer, mut reader) = stream(CAPACITY);
    let writes =
        thread::spawn(
            move || while !matches!(writer.try_write(0), Err(TryWriteError::Closed(_))) {},
        );
    let mut most = 0;
    for _ in 0..2000 {
        let mut items = Vec::new();
        most = most.max(reader.read_batch(&mut items, usize::MAX));
    }
    drop(reader);
    writes.join().unwrap();
    assert!(most <= CAPACITY, "{most} items in one batch");
}

#[test]
fn reader_dropped_during_writes_drops_each_item_once() {
    const CAPACITY: usize = 8;
    const ITEMS_MAX: usize = 1000;
    /// Writes another item of its kind when it is dropped.
    struct Again(Arc<Mutex<Option<Writer<Again>>>>, Arc<AtomicUsize>);
    impl Drop for Again {
        fn drop(&mut self) {
            let Some(mut writer) = self.0.lock().unwrap().take() else { return };
            if self.1.fetch_add(1, Ordering::Relaxed) < ITEMS_MAX {
                let _ = writer.try_write(Again(self.0.clone(), self.1.clone()));
            }
            *self.0.lock().unwrap() = Some(writer);
        }
    }
    let (mut writer, reader) = stream(CAPACITY);
    let (shared, drops) = (Arc::new(Mutex::new(None)), Arc::new(AtomicUsize::new(0)));
    for _ in 0..CAPACITY {
        assert!(writer.write(Again(shared.clone(), drops.clone())).is_ok());
    }
    *shared.lock().unwrap() = Some(writer);
    drop(reader);
    assert_eq!(drops.load(Ordering::Relaxed), CAPACITY);
    let writer = shared.lock().unwrap().take();
    assert!(writer.is_some_and(|w| w.is_closed()));
}

#[test]
fn items_left_in_a_stream_are_dropped_once() {
    let item = Arc::new(());
    let (mut writer, mut reader) = stream(4);
    (0..4).for_each(|_| writer.write(item.clone()).unwrap());
    reader.read();
    drop(writer);
    assert_eq!(Arc::strong_count(&item), 4);
    drop(reader);
    assert_eq!(Arc::strong_count(&item), 1);
}

#[test]
fn end_moved_between_tasks_keeps_the_order() {
    /// Reads a few items, and returns the end while there are more.
    fn some(mut reader: Reader<u32>, from: u32) -> Option<(Reader<u32>, u32)> {
        let read = reader.by_ref().zip(from..).take(37);
        let count = read.inspect(|(got, expected)| assert_eq!(got, expected)).count();
        (count == 37).then_some((reader, from + 37))
    }
    async fn some_async(mut reader: Reader<u32>, from: u32) -> Option<(Reader<u32>, u32)> {
        for expected in from..from + 37 {
            assert_eq!(reader.read_async().await?, expected);
        }
        Some((reader, from + 37))
    }
    let (one, two) = (runtime(2), runtime(1));
    let (mut writer, reader) = stream(3);
    let writes = one.spawn(move || (0..37 * 100).for_each(|n| writer.write(n).unwrap()));
    let mut at = Some((reader, 0));
    for hop in 0.. {
        let Some((reader, from)) = at else { break };
        at = match hop % 6 {
            0 => some(reader, from),
            1 => one.task().worker(0).spawn(move || some(reader, from)).unwrap().join().unwrap(),
            2 => one.task().worker(1).spawn(move || some(reader, from)).unwrap().join().unwrap(),
            3 => one.task().blocking().spawn(move || some(reader, from)).unwrap().join().unwrap(),
            4 => two.spawn_async(some_async(reader, from)).join().unwrap(),
            _ => thread::spawn(move || some(reader, from)).join().unwrap(),
        };
        assert!(hop <= 100);
    }
    writes.join().unwrap();
}

#[test]
fn end_dropped_on_another_worker_wakes_a_task_that_blocks_meanwhile() {
    const ROUNDS: u32 = 20_000;
    let reported = runtime(2).run(|| {
        let (mut give, take) = stream::<Writer<u32>>(4);
        let drops = Task::new().worker(0).spawn(move || drop_each(take));
        let reads = Task::new().worker(1).spawn(move || {
            for n in 0..ROUNDS {
                let (mut writer, mut reader) = stream(4);
                writer.write(n).unwrap();
                assert_eq!(reader.read(), Some(n));
                give.write(writer).unwrap();
                assert_eq!(reader.read(), None);
            }
        });
        (reads.unwrap().join(), drops.unwrap().join())
    });
    let (reads, drops) = reported.unwrap();
    reads.unwrap();
    drops.unwrap();
}

#[test]
fn future_dropped_during_a_write_is_woken_at_most_once() {
    const ROUNDS: u32 = 20_000;
    use std::future::{Future, poll_fn};
    use std::pin::Pin;
    use std::task::Poll;
    type Waits = Pin<Box<dyn Future<Output = Option<u32>> + Send>>;
    let rt = runtime(2);
    let reported = rt.run(|| {
        let (mut give, take) = stream::<Waits>(4);
        let drops = Task::new().worker(0).spawn(move || drop_each(take));
        let polls = Task::new().worker(1).spawn_async(async move {
            for n in 0..ROUNDS {
                let (mut writer, mut reader) = stream(4);
                writer.write(n).unwrap();
                assert_eq!(reader.read_async().await, Some(n));
                let mut waits: Waits = Box::pin(async move { reader.read_async().await });
                poll_fn(|context| {
                    assert!(waits.as_mut().poll(context).is_pending());
                    Poll::Ready(())
                })
                .await;
                assert!(give.write(waits).is_ok());
                (0..7 * n % 60).for_each(|_| std::hint::spin_loop());
                let _ = writer.write(n);
            }
        });
        (polls.unwrap().join(), drops.unwrap().join())
    });
    let (polls, drops) = reported.unwrap();
    polls.unwrap();
    drops.unwrap();
    let counters = rt.counters();
    assert_eq!(counters.spawned, counters.ended);
}

/// Drops each item at once or a little later, alternately. Spins for items, but blocks when none
/// arrives for long: then a lost wake-up is reported as a deadlock.
fn drop_each<T: Send + 'static>(mut items: Reader<T>) {
    for turn in 0.. {
        let found = (0..10_000).find_map(|_| {
            items.try_read().ok().or_else(|| {
                std::hint::spin_loop();
                None
            })
        });
        let Some(item) = found.or_else(|| items.read()) else { return };
        (0..turn % 64).for_each(|_| std::hint::spin_loop());
        drop(item);
    }
}

#[test]
fn waiting_writer_of_another_runtime_leaves_idle_workers_asleep() {
    /// Returns the number of voluntary context switches of a thread.
    fn sleeps(thread: i32) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"));
        line.unwrap().trim().parse().unwrap()
    }
    let (idle, other) = (runtime(1), runtime(1));
    // SAFETY: reads the number of the thread.
    let worker = idle.spawn(|| unsafe { libc::gettid() }).join().unwrap();
    let (mut writer, mut reader) = growing_stream(1);
    let done = Arc::new(AtomicBool::new(false));
    let says = done.clone();
    let writes = other.spawn(move || {
        writer.write(1).unwrap();
        writer.write(2).unwrap();
        says.store(true, Ordering::Relaxed);
    });
    while !other.dump().tasks.iter().any(|t| t.status == Status::Writing) {
        thread::yield_now();
    }
    let before = sleeps(worker);
    thread::sleep(std::time::Duration::from_millis(100));
    let naps = sleeps(worker) - before;
    assert!(!done.load(Ordering::Relaxed));
    assert_eq!((reader.read(), reader.read()), (Some(1), Some(2)));
    writes.join().unwrap();
    // The worker may have been about to sleep, and checks once for a deadlock. Periodic searches
    // would be twenty.
    assert!(naps <= 5, "{naps} naps");
}
