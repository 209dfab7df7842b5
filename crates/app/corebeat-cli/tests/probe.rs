//! `corebeat probe` and `corebeat trace calls`, as a user runs them.

use corebeat_probe::{ControlSocket, probe, record, switch};
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
    let output = Command::new(env!("CARGO_BIN_EXE_corebeat"))
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap();
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

#[test]
fn probes_are_listed_and_switched_from_outside_and_their_calls_drawn() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let me = std::process::id().to_string();
    refused(&["probe", "list", &me], 2, "has no control socket");
    // Above every number that Linux gives (PID_MAX_LIMIT).
    refused(&["probe", "list", "4194305"], 2, "there is no process 4194305");
    let _door = ControlSocket::open().unwrap();
    let listed = printed(&["probe", "list", &me]);
    let names: Vec<_> = listed.lines().filter_map(|line| line.split(' ').nth(1)).collect();
    assert_eq!(names, ["shop::price", "shop::serve"]);
    refused(&["probe", "on", &me, "nothing"], 1, "corebeat probe list");
    refused(&["probe", "on", &me, ""], 2, "invalid pattern");
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
    let rows: Vec<_> =
        tree.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
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
    refused(&["trace", "calls", shown, "--as=sequence", "--run=1"], 2, "run 1 does not exist");
    refused(&["trace", "export", shown, "--to=kieker"], 2, "name it");
    let log = folder.path().join("kieker");
    printed(&["trace", "export", shown, "--to=kieker", "--output", log.to_str().unwrap()]);
    let lines = std::fs::read_to_string(log.join("kieker-1.dat")).unwrap();
    assert_eq!(lines.lines().count(), 2 + 2 * 4);

    let spans = printed(&["trace", "export", shown, "--to=otlp"]);
    let spans: serde_json::Value = serde_json::from_str(&spans).unwrap();
    let spans = &spans["resourceSpans"][0]["scopeSpans"][0]["spans"];
    assert_eq!(spans.as_array().map(Vec::len), Some(4));
    let csv = printed(&["trace", "export", shown, "--to=csv"]);
    let mut enters = csv.lines().filter(|row| row.contains(",probe.enter,")).peekable();
    assert!(enters.peek().is_some() && enters.all(|row| row.contains(",shop::")), "{csv}");

    let chrome = folder.path().join("chrome.json");
    printed(&["trace", "export", shown, "--to=chrome", "--output", chrome.to_str().unwrap()]);
    let chrome: serde_json::Value =
        serde_json::from_slice(&std::fs::read(chrome).unwrap()).unwrap();
    let mut open: Vec<&str> = Vec::new();
    let mut slices = Vec::new();
    for event in chrome["traceEvents"].as_array().unwrap() {
        match (event["ph"].as_str().unwrap(), event["name"].as_str().unwrap()) {
            ("M", "process_name" | "thread_name") => {}
            ("B", name) => {
                slices.push(name);
                open.push(name);
            }
            ("E", name) => assert_eq!(open.pop(), Some(name)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(
        (slices.len(), open.len(), slices[0], slices[1]),
        (4, 0, "shop::serve", "shop::price")
    );

    let empty = folder.path().join("empty.cbt");
    Trace::create(&empty).unwrap().finish().unwrap();
    refused(&["trace", "calls", empty.to_str().unwrap()], 1, "the trace has no calls");
    refused(&["trace", "calls", "/nowhere"], 2, "cannot open");
    switch("*", false).unwrap();
}
