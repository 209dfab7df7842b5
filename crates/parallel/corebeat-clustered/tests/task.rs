//! Tasks of LPEL that use clustered objects.

use corebeat_clustered::{Counter, Link, read_section, reclaim};
use corebeat_lpel::{Reader, Runtime, spawn, stream, yield_now};
use std::sync::{Arc, Mutex};

#[test]
fn task_that_waits_in_a_section_fails_alone() {
    let runtime = Runtime::builder().workers(2).build().unwrap();
    let (waits, yields, after) = runtime
        .run(|| {
            let (mut writer, mut reader) = stream::<u32>(1);
            let waits = spawn(move || read_section(|_| reader.next()));
            let yields = spawn(|| read_section(|_| yield_now()));
            let (waits, yields) = (waits.join(), yields.join());
            // The panic dropped the reader.
            assert!(writer.write(1).is_err());
            // The threads of the workers are outside of sections.
            let after = spawn(|| {
                yield_now();
                read_section(|_| 5)
            });
            (
                waits.err().map(|e| e.to_string()),
                yields.err().map(|e| e.to_string()),
                after.join().unwrap(),
            )
        })
        .unwrap();
    for failure in [waits, yields] {
        let failure = failure.unwrap();
        assert!(failure.contains("end the section first"), "{failure}");
    }
    assert_eq!(after, 5);
}

#[test]
fn tasks_count_in_the_place_of_their_worker() {
    let runtime = Runtime::builder().workers(2).build().unwrap();
    let link = Arc::new(Link::new(Counter::<corebeat_clustered::Thread>::new()));
    let own = link.clone();
    runtime
        .run(move || {
            for _ in 0..100 {
                let link = own.clone();
                spawn(move || {
                    for _ in 0..10 {
                        read_section(|guard| link.get(guard).unwrap().add(1));
                        yield_now();
                    }
                });
            }
        })
        .unwrap();
    assert_eq!(read_section(|guard| link.get(guard).unwrap().value()), 1000);
}

#[test]
fn destructors_that_wait_for_each_other_do_not_keep_later_values() {
    struct Waits(Mutex<Reader<u32>>);
    impl Drop for Waits {
        fn drop(&mut self) {
            self.0.get_mut().unwrap().next();
        }
    }
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let is_freed = runtime
        .run(|| {
            // The first task begins first and ends first.
            let (writers, tasks): (Vec<_>, Vec<_>) = (0..2)
                .map(|_| {
                    let (writer, reader) = stream::<u32>(1);
                    let (mut begins, mut begun) = stream::<u32>(1);
                    let task = spawn(move || {
                        Link::new(Waits(Mutex::new(reader))).destroy();
                        begins.write(1).unwrap();
                        reclaim()
                    });
                    begun.read();
                    (0..100).for_each(|_| yield_now());
                    (writer, task)
                })
                .unzip();
            for (writer, task) in writers.into_iter().zip(tasks) {
                drop(writer);
                task.join().unwrap();
            }
            let (value, link) = (Arc::new(()), Link::empty());
            (1..1_000_000).any(|made| {
                link.replace(value.clone());
                Arc::strong_count(&value) <= made
            })
        })
        .unwrap();
    assert!(is_freed);
}
