//! Whole workers, and streams between their tasks.

use super::{all_noticed, begin, check_part, end, runtime};
use crate::stream;
use corebeat_sync::mpsc;

/// A task on each worker, and a stream between them. Both block, leave doubts, and are woken by mail.
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

/// A writer moves to a thread, which drops it unused, while the reader waits on the worker where the writer was before: it
/// leaves no doubt there, because it believes that both run in turn.
#[test]
fn loom_worker_hears_of_an_end_that_moved_and_was_dropped() {
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
fn loom_worker_faults_are_noticed() {
    let pass = "worker::loom_workers_pass_items";
    let moved = "worker::loom_worker_hears_of_an_end_that_moved_and_was_dropped";
    all_noticed(&[
        (pass, "light worker.rs"),
        (pass, "heavy sleep.rs"),
        (pass, "light runtime.rs"),
        (moved, "heavy stream.rs"),
        (moved, "light stream.rs"),
    ]);
}
