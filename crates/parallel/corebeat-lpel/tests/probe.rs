//! Probes record the calls of tasks.

use corebeat_lpel::{Runtime, Task, yield_now};
use corebeat_probe::{Calls, Handover, Line, Outcome, probe, record, switch};
use corebeat_trace::{Options, WhenFull};
use std::collections::HashSet;
use std::fs::File;
use std::sync::{Mutex, PoisonError};

/// One trace is installed at a time.
static ONE: Mutex<()> = Mutex::new(());

/// Returns the calls that probes record while a runtime runs `of`.
fn calls(workers: usize, of: impl FnOnce() + Send + 'static) -> Calls {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tasks.cbt");
    let trace = Options { when_full: WhenFull::Wait, ..Options::default() }.create(&path).unwrap();
    record(&trace).unwrap();
    switch("tasks::*", true).unwrap();
    let runtime = Runtime::builder().workers(workers).build().unwrap();
    runtime.run(of).unwrap();
    drop(runtime);
    switch("tasks::*", false).unwrap();
    trace.finish().unwrap();
    let calls = Calls::read(File::open(&path).unwrap()).unwrap();
    assert_eq!((calls.unmatched_events(), calls.lost()), (0, 0));
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

/// Asserts that each `inner` is in an `outer`, on the same line. Returns these lines.
fn lines(calls: &Calls) -> HashSet<Line> {
    let mut lines = HashSet::new();
    for call in calls.calls() {
        assert_eq!(call.outcome, Outcome::Returned);
        let parent = call.parent.map(|parent| &calls.calls()[parent as usize]);
        if calls.operation(call).function() == "inner" {
            let parent = parent.expect("an inner call has a parent");
            assert_eq!((calls.operation(parent).function(), parent.line), ("outer", call.line));
            assert!(parent.begin_ns <= call.begin_ns && call.end_ns <= parent.end_ns);
        } else {
            lines.insert(call.line);
        }
    }
    lines
}

#[test]
fn alternating_tasks_of_a_worker_have_separate_calls() {
    let task = || Task::new().name("reader").spawn(|| outer(4)).unwrap();
    let calls = calls(1, move || (0..3).for_each(|_| drop(task())));
    assert_eq!((calls.calls().len(), calls.traces()), (15, 3));
    let lines = lines(&calls);
    // Where tasks have threads of their own, for Miri and similar tools, these threads are their
    // lines.
    let is_task = |line: &Line| matches!(line, Line::Task(_)) != cfg!(any(miri, corebeat_threads));
    assert!(lines.len() == 3 && lines.iter().all(is_task), "{lines:?}");
    for line in &lines {
        if let Line::Task(task) = line {
            assert_eq!(calls.task_name(*task), Some("reader"));
        }
    }
}

#[probe(name = "tasks::ask")]
fn ask(tasks: u32) {
    let requested: Vec<_> = (0..tasks)
        .map(|number| {
            let handover = Handover::new();
            let work = move || {
                let _handed = handover.accept();
                answer();
            };
            Task::new().worker(number as usize % 2).spawn(work).unwrap()
        })
        .collect();
    requested.into_iter().for_each(|task| task.join().unwrap());
}

/// Makes a call, and spawns a task that makes a call on either worker.
#[probe(name = "tasks::answer")]
fn answer() {
    outer(3);
    let handover = Handover::new();
    let more = Task::new().spawn(move || {
        let _handed = handover.accept();
        outer(2);
    });
    more.unwrap().join().unwrap();
}

#[test]
fn calls_continue_in_tasks_of_all_workers() {
    const TASKS: usize = 20;
    let calls = calls(2, || ask(TASKS as u32));
    assert_eq!(calls.calls().len(), 1 + TASKS * (1 + 4 + 3));
    assert_eq!(lines(&calls).len(), 1 + 2 * TASKS);
    let threads: HashSet<_> = calls.calls().iter().map(|call| call.thread).collect();
    assert!(threads.len() >= 2, "each worker runs tasks");
    // Caller, callee, and whether the call is on another line.
    let count = |caller: &str, called: &str, handed: bool| {
        let fits = |call: &&corebeat_probe::Call| {
            let parent = call.parent.map(|parent| &calls.calls()[parent as usize]);
            calls.operation(call).function() == called
                && call.handed_over == handed
                && parent.is_some_and(|parent| calls.operation(parent).function() == caller)
        };
        calls.calls().iter().filter(fits).count()
    };
    assert_eq!(count("ask", "answer", true), TASKS);
    assert_eq!((count("answer", "outer", false), count("answer", "outer", true)), (TASKS, TASKS));
}
