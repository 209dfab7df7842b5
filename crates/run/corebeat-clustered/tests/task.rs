//! Tasks of LPEL that use clustered objects.

use corebeat_clustered::{Counter, Link, event};
use corebeat_lpel::{Runtime, spawn, stream, yield_now};
use std::sync::Arc;

#[test]
fn task_that_waits_within_an_event_fails_and_nobody_else() {
    let runtime = Runtime::builder().workers(2).build().unwrap();
    let (waits, yields, after) = runtime
        .run(|| {
            let (mut writer, mut reader) = stream::<u32>(1);
            let waits = spawn(move || event(|_| reader.next()));
            let yields = spawn(|| event(|_| yield_now()));
            let (waits, yields) = (waits.join(), yields.join());
            // The end was dropped in the panic.
            assert!(writer.write(1).is_err());
            // The workers' threads are in no event.
            let after = spawn(|| {
                yield_now();
                event(|_| 5)
            });
            (waits.err().map(|e| e.to_string()), yields.err().map(|e| e.to_string()), after.join().unwrap())
        })
        .unwrap();
    for failure in [waits, yields] {
        let failure = failure.unwrap();
        assert!(failure.contains("end the event first"), "{failure}");
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
                        event(|event| link.get(event).unwrap().add(1));
                        yield_now();
                    }
                });
            }
        })
        .unwrap();
    assert_eq!(event(|event| link.get(event).unwrap().value()), 1000);
}
