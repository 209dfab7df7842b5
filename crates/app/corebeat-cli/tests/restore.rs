//! `corebeat restore`, as a user runs it. What it undoes is tested where it is done, in corebeat-linux.

use std::process::{Command, Output, Stdio};

fn restore(state: &std::path::Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_corebeat"));
    command.arg("restore").env("COREBEAT_STATE_DIR", state).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn restore_with_nothing_to_do_says_so() {
    let folder = tempfile::tempdir().unwrap();
    for state in [folder.path().to_owned(), folder.path().join("not/there/yet")] {
        let done = restore(&state);
        assert_eq!(done.status.code(), Some(0));
        assert_eq!((&done.stdout[..], &done.stderr[..]), (&b"nothing to restore\n"[..], &b""[..]));
    }
}

#[test]
fn restore_where_the_state_folder_is_a_file_is_one_line() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let done = restore(&file.path().join("state"));
    assert_eq!(done.status.code(), Some(125));
    let told = String::from_utf8_lossy(&done.stderr);
    assert!(told.contains("set COREBEAT_STATE_DIR to a directory") && told.lines().count() == 1, "{told}");
}

#[test]
fn restore_whose_output_is_full_does_not_panic() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_corebeat"));
    let done = command.arg("restore").env("COREBEAT_STATE_DIR", folder.path()).stdout(full).output().unwrap();
    assert_eq!(done.status.code(), Some(125));
}
