//! `corebeat restore` from the command line. corebeat-linux contains the tests of the restoration.

use crate::{assert_refused, command, corebeat};
use std::fs::{self, File, OpenOptions};

#[test]
fn restore_without_changes_prints_one_line() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("state")).unwrap();
    let with_a_folder = command(folder.path(), &["restore"]).output().unwrap();
    for done in [with_a_folder, corebeat(&["restore"])] {
        assert_eq!(done.status.code(), Some(0));
        assert_eq!((&done.stdout[..], &done.stderr[..]), (&b"nothing to restore\n"[..], &b""[..]));
    }
}

#[test]
fn restore_with_a_file_as_state_folder_fails_with_one_line() {
    let folder = tempfile::tempdir().unwrap();
    File::create(folder.path().join("state")).unwrap();
    let done = command(folder.path(), &["restore"]).output().unwrap();
    assert_refused(&done, 125, "set COREBEAT_STATE_DIR to a writable folder");
}

#[test]
fn restore_with_a_full_output_does_not_panic() {
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let status = command(folder.path(), &["restore"]).stdout(full).status().unwrap();
    assert_eq!(status.code(), Some(125));
}
