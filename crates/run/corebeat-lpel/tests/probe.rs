//! Probes see the calls of tasks.

use corebeat_lpel::{Runtime, Task, yield_now};
use corebeat_probe::{Calls, Handover, Line, Outcome, probe, record, switch};
use corebeat_trace::{Options, WhenFull};
use std::collections::HashSet;
use std::fs::File;
use std::sync::{Mutex, PoisonError};

/// One trace is installed at a time.
static ONE: Mutex<()> = Mutex::new(());

/// What probes see of this on a runtime.
fn calls(workers: usize, of: impl FnOnce() + Send + 'static) -> Calls {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tasks.cbt");
    let trace = Options::default().when_full(WhenFull::Wait).create(&path).unwrap();
    record(&trace).unwrap();
    switch("tasks::*", true).unwrap();
    let runtime = Runtime::builder().workers(workers).build().unwrap();
    runtime.run(of).unwrap();
    drop(runtime);
    switch("tasks::*", false).unwrap();
    trace.finish().unwrap();
    let calls = Calls::read(File::open(&path).unwrap()).unwrap();
    assert_eq!((calls.strays(), calls.lost()), (0, 0));
    calls
}

#[probe(name = "tasks::outer")]
fn outer(turns: u32) {
    (0..turns).for_each(|_| inner());
}

#[probe(name = "tasks::inner")]
fn inner() {
    yield_now();
}

/// That each `inner` is in an `outer`, on the same line; the lines of those.
fn lines(calls: &Calls) -> HashSet<Line> {
    let mut lines = HashSet::new();
    for call in calls.calls() {
        assert_eq!(call.outcome, Outcome::Returned);
        let parent = call.parent.map(|parent| &calls.calls()[parent as usize]);
        if calls.operation(call).function() == "inner" {
            let parent = parent.expect("it was called");
            assert_eq!((calls.operation(parent).function(), parent.line), ("outer", call.line));
            assert!(parent.begin_ns <= call.begin_ns && call.end_ns <= parent.end_ns);
        } else {
            lines.insert(call.line);
        }
    }
    lines
}

#[test]
fn tasks_that_take_turns_on_a_worker_have_calls_of_their_own() {
    let calls = calls(1, || (0..3).for_each(|_| drop(Task::new().spawn(|| outer(4)).unwrap())));
    assert_eq!((calls.calls().len(), calls.traces()), (15, 3));
    let lines = lines(&calls);
    // Where tasks have threads of their own, for Miri and the like, these are their lines.
    let is_task = |line: &Line| matches!(line, Line::Task(_)) != cfg!(any(miri, corebeat_threads));
    assert!(lines.len() == 3 && lines.iter().all(is_task), "{lines:?}");
}

#[probe(name = "tasks::ask")]
fn ask(tasks: u32) {
    let asked: Vec<_> = (0..tasks)
        .map(|number| {
            let handover = Handover::here();
            let work = move || {
                let _handed = handover.take();
                answer();
            };
            Task::new().worker(number as usize % 2).spawn(work).unwrap()
        })
        .collect();
    asked.into_iter().for_each(|task| task.join().unwrap());
}

/// Calls, and has another task call, which runs on either worker.
#[probe(name = "tasks::answer")]
fn answer() {
    outer(3);
    let handover = Handover::here();
    let more = Task::new().spawn(move || {
        let _handed = handover.take();
        outer(2);
    });
    more.unwrap().join().unwrap();
}

#[test]
fn calls_go_over_to_tasks_of_all_workers_and_stay_whole() {
    const TASKS: usize = 20;
    let calls = calls(2, || ask(TASKS as u32));
    assert_eq!(calls.calls().len(), 1 + TASKS * (1 + 4 + 3));
    assert_eq!(lines(&calls).len(), 1 + 2 * TASKS);
    let threads: HashSet<_> = calls.calls().iter().map(|call| call.thread).collect();
    assert!(threads.len() >= 2, "each worker has its tasks");
    // Who called whom, and whether that went over to another line.
    let count = |caller: &str, called: &str, handed: bool| {
        let fits = |call: &&corebeat_probe::Call| {
            let parent = call.parent.map(|parent| &calls.calls()[parent as usize]);
            calls.operation(call).function() == called
                && call.handed == handed
                && parent.is_some_and(|parent| calls.operation(parent).function() == caller)
        };
        calls.calls().iter().filter(fits).count()
    };
    assert_eq!(count("ask", "answer", true), TASKS);
    assert_eq!((count("answer", "outer", false), count("answer", "outer", true)), (TASKS, TASKS));
}
