//! Sets of streams: order of events, and streams that are added and removed.

use corebeat_lpel::*;
use std::sync::Arc;
use std::thread;

fn runtime(workers: usize) -> Runtime {
    Runtime::builder().workers(workers).build().unwrap()
}

#[test]
fn empty_set_has_no_event_and_does_not_wait() {
    let mut set = StreamSet::<u8>::new();
    assert!(set.is_empty());
    assert_eq!((set.try_read(), set.read()), (None, None));
    let waited =
        runtime(1).run(move || spawn_async(async move { set.read_async().await }).join().unwrap());
    assert_eq!(waited.unwrap(), None);
}

#[test]
fn stream_at_its_end_is_removed_from_the_set() {
    let mut set = StreamSet::new();
    let (mut writer, reader) = stream(2);
    let key = set.add(reader);
    assert_eq!((set.len(), set.try_read()), (1, None));
    writer.write(1).unwrap();
    drop(writer);
    assert_eq!(set.try_read(), Some((key, Event::Item(1))));
    assert_eq!(set.read(), Some((key, Event::End)));
    assert_eq!((set.len(), set.read()), (0, None));
    assert!(set.remove(key).is_none());
}

#[test]
fn removed_stream_keeps_its_items() {
    let mut set = StreamSet::new();
    let [(mut first, a), (second, b)] = [stream(4), stream(4)];
    let (a, b) = (set.add(a), set.add(b));
    // The streams are armed, then announced, then queued. Each is removed.
    assert_eq!(set.try_read(), None);
    let mut armed = set.remove(a).unwrap();
    first.write(1).unwrap();
    assert_eq!(armed.try_read(), Ok(1));
    let a = set.add(armed);
    assert_eq!(set.try_read(), None);
    first.write(2).unwrap();
    let mut announced = set.remove(a).unwrap();
    assert_eq!(announced.try_read(), Ok(2));
    let a = set.add(announced);
    let mut in_line = set.remove(a).unwrap();
    first.write(3).unwrap();
    assert_eq!(in_line.read(), Some(3));
    assert!(set.remove(a).is_none());
    // The other stream is still in the set.
    assert_eq!((set.len(), set.try_read()), (1, None));
    drop(second);
    assert_eq!(set.read(), Some((b, Event::End)));
}

#[test]
fn set_reads_streams_in_turn() {
    let mut set = StreamSet::new();
    let mut keys = Vec::new();
    for n in 0..3 {
        let (mut writer, reader) = stream(2);
        writer.write(n).unwrap();
        writer.write(n).unwrap();
        keys.push(set.add(reader));
    }
    let mut order = Vec::new();
    while let Some((key, event)) = set.read() {
        order.push((keys.iter().position(|k| *k == key).unwrap(), event == Event::End));
    }
    let turn = |ends| [(0, ends), (1, ends), (2, ends)];
    assert_eq!(order, [turn(false), turn(false), turn(true)].concat());
}

#[test]
fn always_readable_stream_does_not_starve_others() {
    let mut set = StreamSet::new();
    let (mut always, a) = stream(8);
    let (mut once, b) = stream(8);
    let (a, b) = (set.add(a), set.add(b));
    assert_eq!(set.try_read(), None);
    always.write(0).unwrap();
    assert_eq!(set.try_read(), Some((a, Event::Item(0))));
    once.write(1).unwrap();
    let turns = (0..100).take_while(|_| {
        always.write(0).unwrap();
        set.try_read() != Some((b, Event::Item(1)))
    });
    assert!(turns.count() <= 1);
}

#[test]
fn dropped_set_closes_its_streams() {
    let mut set = StreamSet::new();
    let [(mut in_line, a), (armed, b)] = [stream(1), stream(1)];
    set.add(a);
    set.add(b);
    assert_eq!(set.try_read(), None);
    in_line.write(1).unwrap();
    drop(set);
    assert!(in_line.is_closed() && armed.is_closed());
}

#[test]
fn set_with_added_and_removed_streams_misses_no_item() {
    // Each stream delivers a few numbers, and then the next stream. Half of the streams are removed
    // and added again.
    const STREAMS: u64 = 200;
    for workers in [1, 2, 3] {
        let sum = runtime(workers).run(|| {
            let writes = |n: u64| {
                let (mut writer, reader) = stream(2);
                spawn(move || (0..5).for_each(|_| writer.write(n).unwrap()));
                reader
            };
            let mut set = StreamSet::default();
            for n in 0..10 {
                set.add(writes(n));
            }
            let (mut made, mut sum) = (10, 0);
            while let Some((key, event)) = set.read() {
                match event {
                    Event::Item(n) => {
                        sum += n;
                        if n % 2 == 0 {
                            let reader = set.remove(key).unwrap();
                            set.add(reader);
                        }
                    }
                    Event::End if made < STREAMS => {
                        set.add(writes(made));
                        made += 1;
                    }
                    Event::End => {}
                }
            }
            sum
        });
        assert_eq!(sum.unwrap(), 5 * STREAMS * (STREAMS - 1) / 2, "{workers} workers");
    }
}

#[test]
fn set_moved_between_tasks_misses_no_item() {
    const ITEMS: usize = 300;
    fn some(mut set: StreamSet<usize>) -> (StreamSet<usize>, usize) {
        let events = (0..17).map_while(|_| set.read());
        let items = events.filter(|(_, event)| matches!(event, Event::Item(_))).count();
        (set, items)
    }
    let rt = Arc::new(runtime(2));
    let mut set = StreamSet::new();
    for _ in 0..4 {
        let (mut writer, reader) = stream(2);
        set.add(reader);
        rt.spawn(move || (0..ITEMS).for_each(|n| writer.write(n).unwrap()));
    }
    let mut items = 0;
    for hop in 0.. {
        if set.is_empty() {
            break;
        }
        let (back, read) = match hop % 4 {
            0 => some(set),
            1 => rt.task().worker(0).spawn(move || some(set)).unwrap().join().unwrap(),
            2 => rt.task().worker(1).spawn(move || some(set)).unwrap().join().unwrap(),
            _ => thread::spawn(move || some(set)).join().unwrap(),
        };
        set = back;
        items += read;
    }
    assert_eq!(items, 4 * ITEMS);
}

#[test]
fn blocking_task_waits_for_a_set() {
    let sum = runtime(1).run(|| {
        let mut set = StreamSet::new();
        for n in 1..=10 {
            let (mut writer, reader) = stream(1);
            set.add(reader);
            spawn(move || (0..20).for_each(|_| writer.write(n).unwrap()));
        }
        let blocking = Task::new().blocking().spawn(move || {
            let mut sum = 0;
            while let Some((_, event)) = set.read() {
                if let Event::Item(n) = event {
                    sum += n;
                }
            }
            sum
        });
        blocking.unwrap().join().unwrap()
    });
    assert_eq!(sum.unwrap(), 1100);
}
