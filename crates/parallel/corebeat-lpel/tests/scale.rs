//! Very large numbers of tasks and streams. The numbers are small, unless `cargo xtask soak`
//! requests large ones.

use corebeat_lpel::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Tests run one at a time, because they share the memory.
static TURN: Mutex<()> = Mutex::new(());

/// Returns the number of objects of `bytes` bytes that memory allows, if large numbers are
/// requested.
fn size(what: &str, small: usize, large: usize, bytes: usize) -> usize {
    if std::env::var_os("COREBEAT_SOAK").is_none() {
        return small;
    }
    let free = available_memory() / 3 * 2;
    let size = large.min(free / bytes);
    println!("{size} {what}");
    if size < large {
        println!("  (not {large}: {} MiB are free)", free >> 20);
    }
    size
}

fn available_memory() -> usize {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// Returns the number of stacks with guards that the system allows.
fn stacks_max() -> usize {
    const PAGE: usize = 4096;
    const MADV_GUARD_INSTALL: libc::c_int = 102;
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: an unused page of this function.
    let has_guards = unsafe {
        let page = libc::mmap(std::ptr::null_mut(), PAGE, protection, flags, -1, 0);
        assert_ne!(page, libc::MAP_FAILED);
        let has_guards = libc::madvise(page, PAGE, MADV_GUARD_INSTALL) == 0;
        libc::munmap(page, PAGE);
        has_guards
    };
    if has_guards {
        return usize::MAX;
    }
    println!("at most 20000 stacks, because this kernel has no guards inside mappings");
    20_000
}

/// Each task waits for an item of its own, all at the same time. Then each task receives its item.
fn wait_all_at_once(
    tasks: usize,
    spawn: fn(Arc<AtomicUsize>, Reader<u64>) -> JoinHandle<u64>,
) -> Counters {
    let rt = Arc::new(Runtime::new().unwrap());
    let own = rt.clone();
    let (sum, while_waiting) = rt
        .run(move || {
            let begun = Arc::new(AtomicUsize::new(0));
            let (mut writers, mut handles) = (Vec::with_capacity(tasks), Vec::with_capacity(tasks));
            for _ in 0..tasks {
                let (writer, reader) = stream(1);
                writers.push(writer);
                handles.push(spawn(begun.clone(), reader));
            }
            while begun.load(Ordering::Relaxed) < tasks {
                yield_now();
            }
            let counters = own.counters();
            for (n, mut writer) in writers.into_iter().enumerate() {
                writer.write(n as u64).unwrap();
            }
            (handles.into_iter().map(|h| h.join().unwrap()).sum::<u64>(), counters)
        })
        .unwrap();
    assert_eq!(sum, (0..tasks as u64).sum::<u64>());
    let after = rt.counters();
    assert_eq!((after.spawned, after.ended), (tasks as u64 + 1, tasks as u64 + 1));
    while_waiting
}

#[test]
fn million_tasks_with_stacks_wait_at_once() {
    let _turn = TURN.lock();
    let tasks = size("tasks with stacks", 2_000, 1_000_000, 10 << 10).min(stacks_max());
    let while_waiting = wait_all_at_once(tasks, |begun, mut reader| {
        spawn(move || {
            begun.fetch_add(1, Ordering::Relaxed);
            reader.read().unwrap()
        })
    });
    assert!(while_waiting.stacks >= tasks as u64, "{while_waiting:?}");
}

#[test]
fn million_async_tasks_wait_at_once() {
    let _turn = TURN.lock();
    let tasks = size("async tasks", 5_000, 1_000_000, 2 << 10);
    let while_waiting = wait_all_at_once(tasks, |begun, mut reader| {
        spawn_async(async move {
            begun.fetch_add(1, Ordering::Relaxed);
            reader.read_async().await.unwrap()
        })
    });
    assert!(while_waiting.stacks < 1000, "{while_waiting:?}");
}

#[test]
fn set_of_a_million_streams_returns_all_items() {
    let _turn = TURN.lock();
    let streams = size("streams in a set", 5_000, 1_000_000, 2 << 10);
    let (items, ends) = Runtime::new()
        .unwrap()
        .run(move || {
            let (mut set, mut writers) = (StreamSet::new(), Vec::with_capacity(streams));
            for _ in 0..streams {
                let (writer, reader) = stream(1);
                set.add(reader);
                writers.push(writer);
            }
            spawn(move || {
                writers.iter_mut().enumerate().for_each(|(n, w)| w.write(n as u64).unwrap())
            });
            let (mut items, mut ends) = (0, 0);
            while let Some((_, event)) = set.read() {
                match event {
                    Event::Item(n) => items += n,
                    Event::End => ends += 1,
                }
            }
            (items, ends)
        })
        .unwrap();
    assert_eq!((items, ends), ((0..streams as u64).sum(), streams));
}

/// Items pass through many tasks, each of which adds one.
fn pass_through(depth: usize, stage: fn(Reader<usize>, Writer<usize>)) {
    const ITEMS: usize = 20;
    let got = Runtime::new().unwrap().run(move || {
        let (mut first, mut last) = stream(4);
        for _ in 0..depth {
            let (writer, reader) = stream(4);
            stage(last, writer);
            last = reader;
        }
        spawn(move || (0..ITEMS).for_each(|n| first.write(n).unwrap()));
        last.collect::<Vec<_>>()
    });
    assert_eq!(got.unwrap(), (depth..depth + ITEMS).collect::<Vec<_>>());
}

#[test]
fn pipeline_of_a_hundred_thousand_tasks_passes_all_items() {
    let _turn = TURN.lock();
    let depth = size("stages with stacks", 1_000, 100_000, 10 << 10).min(stacks_max());
    pass_through(depth, |reader, mut writer| {
        spawn(move || reader.into_iter().for_each(|n| writer.write(n + 1).unwrap()));
    });
}

#[test]
fn pipeline_of_a_hundred_thousand_async_tasks_passes_all_items() {
    let _turn = TURN.lock();
    let depth = size("async stages", 1_000, 100_000, 2 << 10);
    pass_through(depth, |mut reader, mut writer| {
        spawn_async(async move {
            while let Some(n) = reader.read_async().await {
                writer.write(n + 1).unwrap();
            }
        });
    });
}
