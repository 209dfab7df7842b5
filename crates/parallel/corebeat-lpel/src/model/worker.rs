//! Models of whole workers, and of streams between their tasks.

use super::{assert_detected, begin, check_part, end, runtime};
use crate::stream;
use corebeat_sync::mpsc;

/// A task on each worker, and a stream between them. Both tasks block, defer rechecks, and are
/// woken through inboxes.
#[test]
fn loom_workers_pass_items() {
    const ITEMS: usize = 2;
    check_part(1, move || {
        let rt = runtime(2);
        let (mut writer, mut reader) = stream::<Box<usize>>(1);
        let spawn = |worker| rt.task().worker(worker);
        begin();
        let reading = spawn(0).spawn(move || {
            (0..ITEMS).for_each(|n| assert_eq!(reader.read().map(|n| *n), Some(n)));
            reader
        });
        let writing = spawn(1).spawn(move || {
            (0..ITEMS).for_each(|n| writer.write(Box::new(n)).unwrap());
            writer
        });
        let kept = (reading.unwrap().join().unwrap(), writing.unwrap().join().unwrap());
        end();
        drop(kept);
    });
}

/// A writer moves to a thread, which drops it unused, while the reader waits on the old worker of
/// the writer. The reader defers no recheck, because both ends were last used on one worker.
#[test]
fn loom_worker_detects_the_drop_of_a_moved_end() {
    check_part(2, || {
        let rt = runtime(1);
        let (give, given) = mpsc::channel();
        let (mut writer, mut reader) = stream::<Box<usize>>(1);
        begin();
        let reading = rt.spawn(move || {
            writer.write(Box::new(1)).unwrap();
            give.send(writer).unwrap();
            (reader.read().map(|n| *n), reader.read(), reader)
        });
        drop(given.recv().unwrap());
        let (item, last, kept) = reading.join().unwrap();
        end();
        assert_eq!((item, last), (Some(1), None));
        drop(kept);
    });
}

#[test]
fn loom_worker_faults_are_detected() {
    let pass = "worker::loom_workers_pass_items";
    let moved = "worker::loom_worker_detects_the_drop_of_a_moved_end";
    assert_detected(&[
        (pass, "light worker.rs"),
        (pass, "heavy sleep.rs"),
        (pass, "light cancel.rs"),
        (moved, "heavy stream.rs"),
        (moved, "light stream.rs"),
    ]);
}
