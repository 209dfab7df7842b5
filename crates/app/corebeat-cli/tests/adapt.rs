//! `corebeat train` on this host, and `corebeat run --policy adapt` with what it wrote.

use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn corebeat(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_corebeat"));
    command.args(args).current_dir(folder).env("COREBEAT_STATE_DIR", folder.join("state")).output().unwrap()
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn model_of_this_host_steers_programs_here_to_their_ends() {
    let folder = tempfile::tempdir().unwrap();
    let trained = corebeat(folder.path(), &["train", "-o", "m.json", "--window", "60"]);
    assert!(trained.status.success(), "{}", told(&trained));
    let model: Value =
        serde_json::from_str(&fs::read_to_string(folder.path().join("m.json")).unwrap()).unwrap();
    let cpus = corebeat_linux::topology().cpus().len();
    assert_eq!(
        (model["machine"]["cpus"].as_u64(), model["paap"]["samples"].as_u64()),
        (Some(cpus as u64), Some(49))
    );

    let work = ["--", "sh", "-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; exit $0"];
    let run = ["run", "--policy", "adapt", "--model", "m.json", "--report", "json", "--period", "20"];
    let args: Vec<&str> = run.into_iter().chain(work).chain(["3"]).chain(work).chain(["0"]).collect();
    let done = corebeat(folder.path(), &args);
    assert_eq!(done.status.code(), Some(3), "{}", told(&done));
    let report: Value = serde_json::from_slice(&done.stderr).unwrap();
    assert_eq!(report["programs"].as_array().unwrap().len(), 2, "{report}");
    let left = fs::read_dir(folder.path().join("state")).map_or(0, |all| all.flatten().count());
    assert_eq!(left, 0, "{report}");
}
