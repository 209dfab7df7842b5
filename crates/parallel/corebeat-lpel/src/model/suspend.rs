//! Model of a task that waits for an event of another crate.

use super::{assert_detected, begin, check_part, end, runtime};
use crate::suspend::calling_task;
use corebeat_sync::atomic::{AtomicBool, Ordering};
use corebeat_sync::{Arc, mpsc};

/// A thread causes the event before, while or after the task suspends itself. The task finds what
/// the thread wrote before the event.
#[test]
fn loom_suspended_task_finds_its_event() {
    check_part(2, || {
        let rt = runtime(1);
        let (give, given) = mpsc::channel();
        let written = Arc::new(AtomicBool::new(false));
        let news = written.clone();
        begin();
        let waiting = rt.spawn(move || {
            let mut task = calling_task().expect("the caller is a task");
            give.send(task.waker()).unwrap();
            let has_happened = task.suspend(None);
            // Relaxed: ordered by the event.
            (has_happened, news.load(Ordering::Relaxed))
        });
        let waker = given.recv().unwrap();
        written.store(true, Ordering::Relaxed);
        waker.wake();
        let found = waiting.join().unwrap();
        end();
        assert_eq!(found, (true, true));
    });
}

#[test]
fn loom_suspend_faults_are_detected() {
    let model = "suspend::loom_suspended_task_finds_its_event";
    assert_detected(&[(model, "release suspend.rs"), (model, "acquire suspend.rs")]);
}
