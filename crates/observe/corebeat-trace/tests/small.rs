//! A small test of every feature, for Miri.

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

/// Some threads fill a few buffers and end; one thread still logs when the trace is finished.
#[test]
fn buffers_move_between_threads() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.cbt");
    // In the last case, buffers are taken while they are filled.
    for (collectors, delay_ms) in [(0, 1000), (2, 1000), (1, 0)] {
        let options = Options {
            collectors,
            delay: Duration::from_millis(delay_ms),
            buffers: 2,
            buffer_bytes: 0,
            compression: Compression::Lz4,
            when_full: WhenFull::Wait,
            ..Options::default()
        };
        let trace = options.create(&path).unwrap();
        let (ready, wait) = mpsc::channel();
        let (go_on, stay) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let log = trace.log().unwrap();
                    for number in 0..30 {
                        // Large events, so that few of them fill a buffer.
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
            let own: Vec<_> =
                seen.iter().filter(|(s, _)| *s == stream).filter_map(|(_, n)| *n).collect();
            assert_eq!(own, (0..30).collect::<Vec<_>>());
        }
        assert_eq!(seen.len(), 2 * 60 + 2);
        assert!(seen.contains(&(3, Some(77))));
    }
}

#[test]
fn dropped_trace_is_finished() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.cbt");
    let trace = Trace::create(&path).unwrap();
    let log = trace.log().unwrap();
    log.emit(&Tick);
    drop(trace);
    assert_eq!(read(&path), [(0, None)]);
}
