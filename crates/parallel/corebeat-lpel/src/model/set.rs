//! Models of a set of streams, with its owner and writers.

use super::{assert_detected, check, runtime, spawn};
use crate::{Event, Key, Reader, StreamSet, stream};
use corebeat_sync::atomic::{AtomicBool, Ordering};
use corebeat_sync::{Arc, mpsc, thread};

/// Reads the only item of `set`. Returns the key of its stream, and the item.
fn read_item(set: &mut StreamSet<Box<usize>>) -> (Key, usize) {
    match set.read() {
        Some((key, Event::Item(n))) => (key, *n),
        other => panic!("the set returned no item: {other:?}"),
    }
}

/// Two threads write, while the owner waits for any stream. The owner receives every item and every
/// end.
#[test]
fn loom_set_of_two_returns_items_and_ends() {
    check(2, || {
        let mut set = StreamSet::new();
        let threads = [1, 2].map(|n| {
            let (mut writer, reader) = stream(1);
            set.add(reader);
            spawn(move || writer.write(Box::new(n)).unwrap())
        });
        let (mut sum, mut ends) = (0, 0);
        while let Some((_, event)) = set.read() {
            match event {
                Event::Item(n) => sum += *n,
                Event::End => ends += 1,
            }
        }
        assert_eq!((sum, ends), (3, 2));
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

/// An item arrives while the owner sleeps. A second one arrives after the stream was found empty.
#[test]
fn loom_set_wakes_its_owner_each_time() {
    check(3, || {
        let mut set = StreamSet::new();
        let (mut writer, reader) = stream(1);
        set.add(reader);
        let thread = spawn(move || {
            (1..=2).for_each(|n| writer.write(Box::new(n)).unwrap());
            // The writer is not dropped here, so that its end wakes no reader.
            writer
        });
        assert_eq!((1..=2).map(|_| read_item(&mut set).1).sum::<usize>(), 3);
        thread.join().unwrap();
    });
}

/// A stream is removed from the set while its writer announces an item.
#[test]
fn loom_set_removes_a_stream_during_its_announcement() {
    check(3, || {
        let mut set = StreamSet::new();
        let (mut writer, reader) = stream(1);
        let key = set.add(reader);
        let thread = spawn(move || {
            writer.write(Box::new(1)).unwrap();
            writer
        });
        // The stream is armed now, or holds the item.
        let n = match set.try_read() {
            Some((_, Event::Item(n))) => *n,
            _ => {
                let mut reader: Reader<Box<usize>> = set.remove(key).unwrap();
                assert!(set.is_empty());
                *reader.read().unwrap()
            }
        };
        assert_eq!(n, 1);
        thread.join().unwrap();
    });
}

/// A task arms a stream and gives the set away. Its worker has deferred a recheck of that stream,
/// and is busy.
#[test]
fn loom_moved_set_misses_no_item() {
    check(2, || {
        let rt = runtime(1);
        let (give, given) = mpsc::channel();
        let done = Arc::new(AtomicBool::new(false));
        let is_done = done.clone();
        let (mut writer, reader) = stream(1);
        let task = rt.spawn(move || {
            let mut set = StreamSet::new();
            set.add(reader);
            let item = set.try_read().is_some();
            give.send((item, set)).unwrap();
            while !is_done.load(Ordering::Acquire) {
                thread::yield_now();
            }
        });
        let thread = spawn(move || {
            writer.write(Box::new(1)).unwrap();
            writer
        });
        let (item, mut set) = given.recv().unwrap();
        if !item {
            assert_eq!(read_item(&mut set).1, 1);
        }
        done.store(true, Ordering::Release);
        thread.join().unwrap();
        task.join().unwrap();
    });
}

#[test]
fn loom_set_faults_are_detected() {
    let wakes = "set::loom_set_wakes_its_owner_each_time";
    let removes = "set::loom_set_removes_a_stream_during_its_announcement";
    assert_detected(&[
        (wakes, "release set.rs"),
        (wakes, "acquire set.rs"),
        (wakes, "light stream.rs"),
        (removes, "heavy stream.rs"),
    ]);
}
