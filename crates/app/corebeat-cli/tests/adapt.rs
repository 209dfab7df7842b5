//! `corebeat train` on this host, and `corebeat run --policy adapt` with what it wrote.

use serde_json::Value;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn corebeat(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_corebeat"));
    command.args(args).current_dir(folder).env("COREBEAT_STATE_DIR", folder.join("state")).output().unwrap()
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn training_that_is_asked_to_end_dies_of_that_signal_and_makes_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut training = Command::new(env!("CARGO_BIN_EXE_corebeat"))
        .args(["train", "-o", "m.json"])
        .current_dir(folder.path())
        .env("COREBEAT_STATE_DIR", folder.path().join("state"))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = training.id();
    let children = format!("/proc/{pid}/task/{pid}/children");
    while fs::read_to_string(&children).unwrap().is_empty() {
        assert_eq!(training.try_wait().unwrap(), None);
    }
    // SAFETY: a plain system call; the process is our child and has not been waited for. Twice, as timeout(1) does.
    unsafe {
        libc::kill(pid as i32, libc::SIGTERM);
        libc::kill(pid as i32, libc::SIGTERM);
    }
    let ended = training.wait_with_output().unwrap();
    assert_eq!(ended.status.signal(), Some(libc::SIGTERM), "{}", told(&ended));
    assert_eq!(told(&ended), "corebeat: asked to end; no model was made\n");
    assert!(!folder.path().join("m.json").exists());
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
