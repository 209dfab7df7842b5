//! `corebeat net`, as a user runs it.

use std::fs;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// Doubles numbers, and puts those over 100 out as `<big>`.
const DOUBLE: &str = "
    box dbl ((A, <N>) -> (A, <N>) | (<big>));
    net double connect dbl;
";

fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

fn command(folder: &TempDir, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_corebeat"));
    command.arg("net").args(args).current_dir(folder.path()).stdin(Stdio::null());
    command
}

fn net(folder: &TempDir, args: &[&str]) -> Output {
    command(folder, args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn assert_ended(done: &Output, status: i32) {
    assert_eq!(done.status.code(), Some(status), "{}\n{}", text(&done.stdout), text(&done.stderr));
}

#[test]
fn check_of_a_sound_net_shows_its_signature() {
    let folder = folder(&[("double.snet", DOUBLE)]);
    let done = net(&folder, &["check", "double.snet"]);
    assert_ended(&done, 0);
    let said = text(&done.stdout);
    assert_eq!(
        said,
        "net double ({A, <N>} -> {A, <N>} | {<big>})\n    box dbl ((A, <N>) -> (A, <N>) | (<big>))\n"
    );
    assert!(done.stderr.is_empty());
}

#[test]
fn check_of_a_wrong_net_shows_the_place_and_fails() {
    for wrong in
        ["net double connect dbl", "net double connect nobody;", "net double connect [{A} -> {<T = Z>}];"]
    {
        let folder = folder(&[("double.snet", wrong)]);
        let done = net(&folder, &["check", "double.snet"]);
        assert_ended(&done, 1);
        let said = text(&done.stderr);
        assert!(said.starts_with("error: ") && said.contains("double.snet:1:"), "{said}");
        assert!(said.ends_with("corebeat: double.snet: 1 error\n"), "{said}");
        assert!(!said.contains('\x1b'), "colours on no terminal: {said}");
        assert!(done.stdout.is_empty());
    }
}

#[test]
fn check_in_json_is_an_object_a_line() {
    let folder = folder(&[("double.snet", DOUBLE), ("wrong.snet", "net wrong connect nobody;")]);
    let done = net(&folder, &["check", "--json", "double.snet"]);
    assert_ended(&done, 0);
    let json: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(json["net"], "double");
    assert_eq!(json["output"], serde_json::json!(["{A, <N>}", "{<big>}"]));
    let done = net(&folder, &["check", "--json", "wrong.snet"]);
    assert_ended(&done, 1);
    let json: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(json["severity"], "error");
    assert_eq!((&json["places"][0]["line"], &json["places"][0]["column"]), (&1.into(), &19.into()));
}

#[test]
fn net_by_name_is_taken_and_one_that_is_not_there_is_a_mistake() {
    let folder = folder(&[("two.snet", "net one connect [{A} -> {B=A}]; net other connect [{C} -> {D=C}];")]);
    let done = net(&folder, &["check", "two.snet", "--net", "one"]);
    assert_eq!(text(&done.stdout), "net one ({A} -> {B})\n");
    let done = net(&folder, &["check", "two.snet", "--net", "none"]);
    assert_ended(&done, 2);
    assert!(text(&done.stderr).contains("those there are: one, other"));
}

#[test]
fn program_that_cannot_be_read_is_told_in_one_line() {
    let folder = folder(&[]);
    fs::write(folder.path().join("bytes.snet"), b"net x\nconnect \xff;").unwrap();
    for (file, status, expected) in
        [("none.snet", 2, "No such file"), ("bytes.snet", 1, "UTF-8, from line 2")]
    {
        for command in ["check", "draw"] {
            let done = net(&folder, &[command, file]);
            assert_ended(&done, status);
            let said = text(&done.stderr);
            assert!(said.contains(expected) && said.lines().count() == 1, "{said}");
        }
    }
}

#[test]
fn drawing_goes_to_standard_output_or_a_file() {
    let folder = folder(&[("double.snet", DOUBLE)]);
    let done = net(&folder, &["draw", "double.snet"]);
    assert_ended(&done, 0);
    assert!(text(&done.stdout).starts_with("<svg ") && text(&done.stdout).contains(">dbl</text>"));
    assert_ended(&net(&folder, &["draw", "double.snet", "-o", "double.svg"]), 0);
    assert_eq!(fs::read(folder.path().join("double.svg")).unwrap(), done.stdout);
}

#[test]
fn header_goes_to_standard_output_or_a_folder() {
    let folder = folder(&[]);
    let done = net(&folder, &["header"]);
    assert!(text(&done.stdout).contains("C4SNetOut"));
    assert_ended(&net(&folder, &["header", "."]), 0);
    assert_eq!(fs::read(folder.path().join("C4SNet.h")).unwrap(), done.stdout);
    assert_ended(&net(&folder, &["header", "none"]), 125);
}
