//! `corebeat train` on this host, and `corebeat run --policy adapt` with the trained model.

use crate::{command, left, report, signal, stderr, until};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

#[test]
fn training_ends_by_the_received_signal_and_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut train = command(folder.path(), &["train", "-o", "m.json"]);
    let mut training = train.stderr(Stdio::piped()).spawn().unwrap();
    let pid = training.id();
    let children = format!("/proc/{pid}/task/{pid}/children");
    until(|| {
        assert_eq!(training.try_wait().unwrap(), None);
        !fs::read_to_string(&children).unwrap().is_empty()
    });
    // Twice, as by timeout(1).
    signal(&training, Signal::TERM);
    signal(&training, Signal::TERM);
    let ended = training.wait_with_output().unwrap();
    assert_eq!(ended.status.signal(), Some(Signal::TERM.as_raw()), "{}", stderr(&ended));
    assert_eq!(stderr(&ended), "corebeat: interrupted by a signal; no model was written\n");
    assert!(!folder.path().join("m.json").exists());
}

#[test]
fn model_of_this_host_runs_programs_to_their_ends() {
    let folder = tempfile::tempdir().unwrap();
    let mut trained = command(folder.path(), &["train", "-o", "m.json", "--window", "60"]);
    let trained = trained.output().unwrap();
    assert!(trained.status.success(), "{}", stderr(&trained));
    let model: Value =
        serde_json::from_str(&fs::read_to_string(folder.path().join("m.json")).unwrap()).unwrap();
    let cpus = corebeat_linux::topology().cpus().len();
    assert_eq!(
        (model["machine"]["cpus"].as_u64(), model["paap"]["samples"].as_u64()),
        (Some(cpus as u64), Some(49))
    );

    let work = ["--", "sh", "-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; exit $0"];
    let run =
        ["run", "--policy", "adapt", "--model", "m.json", "--report", "json", "--period", "20"];
    let args: Vec<&str> =
        run.into_iter().chain(work).chain(["3"]).chain(work).chain(["0"]).collect();
    let done = command(folder.path(), &args).output().unwrap();
    assert_eq!(done.status.code(), Some(3), "{}", stderr(&done));
    let report = report(&done);
    assert_eq!(report["programs"].as_array().unwrap().len(), 2, "{report}");
    assert!(left(folder.path()).is_empty(), "{report}");
}
