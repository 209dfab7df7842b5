//! `corebeat probe` and `corebeat trace calls`, as a user runs them.

use corebeat_lpel::monitor::{Dispatch, End, Level, Listener, Monitor, Wait};
use corebeat_lpel::{Runtime, Task};
use corebeat_probe::{Calls, Door, Outcome, probe, record, switch};
use corebeat_trace::Trace;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// One trace is installed at a time.
static ONE: Mutex<()> = Mutex::new(());

#[probe(name = "shop::serve")]
fn serve(customers: u32) -> u32 {
    (0..customers).map(price).sum()
}

#[probe(name = "shop::price")]
fn price(article: u32) -> u32 {
    article * 3
}

/// Status, standard output, standard error.
fn corebeat(args: &[&str]) -> (i32, String, String) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_corebeat")).args(args).stdin(Stdio::null()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn printed(args: &[&str]) -> String {
    let (status, out, err) = corebeat(args);
    assert_eq!((status, err.as_str()), (0, ""), "{args:?}");
    out
}

fn refused(args: &[&str], status: i32, why: &str) {
    let (ended, _, err) = corebeat(args);
    assert_eq!((ended, err.lines().count()), (status, 1), "{args:?}: {err}");
    assert!(err.starts_with("corebeat: ") && err.contains(why), "{args:?}: {err}");
}

fn calls(path: &Path, more: &[&str]) -> String {
    printed(&[&["trace", "calls", path.to_str().unwrap()], more].concat())
}

/// Tells whose turn it was.
struct Turns;

impl Monitor for Turns {
    fn level(&self) -> Level {
        Level::All
    }

    fn listener(&self, _: usize) -> Box<dyn Listener> {
        Box::new(Turns)
    }
}

impl Listener for Turns {
    fn dispatched(&mut self, dispatch: &Dispatch<'_>) {
        corebeat_probe::task(dispatch.task);
    }

    fn waited(&mut self, _: &Wait) {}
    fn ended(&mut self, _: &End) {}
}

#[probe(name = "tasks::outer")]
fn outer(turns: u32) {
    (0..turns).for_each(|_| inner());
}

#[probe(name = "tasks::inner")]
fn inner() {
    corebeat_lpel::yield_now();
}

#[test]
fn tasks_that_take_turns_on_a_worker_have_calls_of_their_own() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tasks.cbt");
    let trace = Trace::create(&path).unwrap();
    record(&trace).unwrap();
    switch("tasks::*", true).unwrap();
    let runtime = Runtime::builder().workers(1).monitor(Turns).build().unwrap();
    let run = runtime.run(|| {
        for _ in 0..3 {
            Task::new().spawn(|| outer(4))?;
        }
        Ok::<(), corebeat_lpel::Error>(())
    });
    run.unwrap().unwrap();
    drop(runtime);
    switch("tasks::*", false).unwrap();
    trace.finish().unwrap();
    let calls = Calls::read(std::fs::File::open(&path).unwrap()).unwrap();
    assert_eq!((calls.calls().len(), calls.traces(), calls.strays()), (15, 3, 0));
    for call in calls.calls() {
        assert_eq!(call.outcome, Outcome::Returned);
        let parent = call.parent.map(|parent| &calls.calls()[parent as usize]);
        let is_inner = calls.operation(call).function() == "inner";
        assert_eq!(parent.is_some_and(|p| calls.operation(p).function() == "outer"), is_inner);
    }
}

#[test]
fn probes_are_listed_and_switched_from_outside_and_their_calls_drawn() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let me = std::process::id().to_string();
    refused(&["probe", "list", &me], 2, "has no door");
    let _door = Door::open().unwrap();
    let listed = printed(&["probe", "list", &me]);
    let names: Vec<_> = listed.lines().filter_map(|line| line.split(' ').nth(1)).collect();
    assert_eq!(names, ["shop::price", "shop::serve", "tasks::inner", "tasks::outer"]);
    refused(&["probe", "on", &me, "nothing"], 1, "corebeat probe list");
    refused(&["probe", "on", &me, ""], 2, "a pattern has");
    assert_eq!(printed(&["probe", "on", &me, "shop::*"]), "2 on\n");
    assert!(printed(&["probe", "list", &me, "*price"]).starts_with("on shop::price "));

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shop.cbt");
    let trace = Trace::create(&path).unwrap();
    record(&trace).unwrap();
    assert_eq!(serve(3), 9);
    assert_eq!(printed(&["probe", "off", &me, "shop::*"]), "2 off\n");
    assert_eq!(serve(3), 9);
    trace.finish().unwrap();

    let tree = calls(&path, &[]);
    let rows: Vec<_> = tree.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
    assert_eq!(rows.len(), 3, "{tree}");
    assert_eq!((rows[1][0], *rows[1].last().unwrap()), ("1", "shop::serve"));
    assert_eq!((rows[2][0], *rows[2].last().unwrap()), ("3", "shop::price"));
    assert!(calls(&path, &["--as=graph"]).contains("3  shop::serve -> shop::price"));
    let sequence = calls(&path, &["--as=sequence", "--format=mermaid", "--run=0"]);
    assert_eq!(sequence.matches(": price").count(), 3, "{sequence}");
    let picture = folder.path().join("shop.svg");
    calls(&path, &["--as=graph", "--format=svg", "--output", picture.to_str().unwrap()]);
    assert!(std::fs::read_to_string(picture).unwrap().starts_with("<svg "));

    let shown = path.to_str().unwrap();
    refused(&["trace", "calls", shown, "--as=sequence", "--run=1"], 2, "there is no run 1");
    refused(&["trace", "export", shown, "--to=kieker"], 2, "name one");
    let log = folder.path().join("kieker");
    printed(&["trace", "export", shown, "--to=kieker", "--output", log.to_str().unwrap()]);
    let lines = std::fs::read_to_string(log.join("kieker-1.dat")).unwrap();
    assert_eq!(lines.lines().count(), 2 + 2 * 4);

    let empty = folder.path().join("empty.cbt");
    Trace::create(&empty).unwrap().finish().unwrap();
    refused(&["trace", "calls", empty.to_str().unwrap()], 1, "were probes on?");
    refused(&["trace", "calls", "/nowhere"], 2, "cannot open");
    switch("*", false).unwrap();
}
