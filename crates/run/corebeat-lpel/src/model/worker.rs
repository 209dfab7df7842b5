//! Whole workers, and streams between their tasks.

use super::{all_noticed, begin, check, check_part, end, runtime};
use crate::{StreamSet, stream};

/// A task on each worker, and a stream between them. Both block, leave doubts, and are woken by mail.
fn pass(preemptions: usize, items: usize) {
    check_part(preemptions, move || {
        let rt = runtime(2);
        let (mut writer, mut reader) = stream::<Box<usize>>(1);
        let spawn = |worker| rt.task().worker(worker);
        begin();
        let reading = spawn(0).spawn(move || {
            (0..items).for_each(|n| assert_eq!(reader.read().map(|n| *n), Some(n)));
            reader
        });
        let writing = spawn(1).spawn(move || {
            (0..items).for_each(|n| writer.write(Box::new(n)).unwrap());
            writer
        });
        let kept = (reading.unwrap().join().unwrap(), writing.unwrap().join().unwrap());
        end();
        drop(kept);
    });
}

#[test]
fn loom_workers_pass_items() {
    let p = std::env::var("P").map_or(2, |p| p.parse().unwrap());
    pass(p, 2);
}
