//! Little of everything, for Miri.

use corebeat_trace::{Compression, Event, Options, Reader, Trace, WhenFull, emit};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

#[derive(Event)]
struct Step<'a> {
    number: u64,
    what: &'a str,
}

#[derive(Event)]
#[event(untimed)]
struct Tick;

fn read(path: &Path) -> Vec<(u32, Option<u64>)> {
    let mut reader = Reader::new(std::fs::File::open(path).unwrap()).unwrap();
    let mut seen = Vec::new();
    while let Some(packet) = reader.next_packet().unwrap() {
        seen.extend(packet.events().map(|event| {
            let number = event.value("number").map(|number| match number {
                corebeat_trace::Value::U64(number) => number,
                other => panic!("{other:?}"),
            });
            (event.thread().stream, number)
        }));
    }
    assert!(reader.ending().unwrap().is_complete());
    seen
}

/// Threads that fill a few buffers, some that end, and one that is at work when the trace is finished.
#[test]
fn buffers_go_from_thread_to_thread() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.cbt");
    // The last takes what is in buffers while they are filled.
    for (collectors, delay_ms) in [(0, 1000), (2, 1000), (1, 0)] {
        let options = Options::default().collectors(collectors).delay(Duration::from_millis(delay_ms));
        let options = options.buffers(2).buffer_bytes(0);
        let trace = options.compression(Compression::Lz4).when_full(WhenFull::Wait).create(&path).unwrap();
        let (ready, wait) = mpsc::channel();
        let (go_on, stay) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let log = trace.log().unwrap();
                    for number in 0..30 {
                        // Large, so that few fill a buffer.
                        log.emit(&Step { number, what: &"x".repeat(600) });
                        log.emit(&Tick);
                    }
                });
            }
        });
        let log = trace.log().unwrap();
        let late = std::thread::spawn({
            trace.install().unwrap();
            move || {
                emit(&Step { number: 77, what: "" });
                ready.send(()).unwrap();
                let _ = stay.recv();
                emit(&Tick);
            }
        });
        wait.recv().unwrap();
        log.emit(&Tick);
        let summary = trace.finish().unwrap();
        go_on.send(()).unwrap();
        late.join().unwrap();
        log.emit(&Tick);
        assert_eq!((summary.lost, summary.threads), (0, 4));
        let seen = read(&path);
        for stream in [0, 1] {
            let own: Vec<_> = seen.iter().filter(|(s, _)| *s == stream).filter_map(|(_, n)| *n).collect();
            assert_eq!(own, (0..30).collect::<Vec<_>>());
        }
        assert_eq!(seen.len(), 2 * 60 + 2);
        assert!(seen.contains(&(3, Some(77))));
    }
}

#[test]
fn trace_that_is_dropped_is_ended() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.cbt");
    let trace = Trace::create(&path).unwrap();
    let log = trace.log().unwrap();
    log.emit(&Tick);
    drop(trace);
    assert_eq!(read(&path), [(0, None)]);
}
