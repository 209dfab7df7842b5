//! `corebeat net`, as a user runs it.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// Doubles numbers, and puts those over 100 out as `<big>`.
const DOUBLE: &str = "
    box dbl ((A, <N>) -> (A, <N>) | (<big>));
    net double connect dbl;
";

/// What `dbl` is in C.
const DOUBLE_C: &str = r#"
    #include "C4SNet.h"
    void *dbl(void *hnd, c4snet_data_t *a, int n) {
        if (n == 13) { C4SNetOut(hnd, 7, n); return hnd; }
        if (2 * n > 100) C4SNetOut(hnd, 2, 2 * n);
        else C4SNetOut(hnd, 1, a, 2 * n);
        return hnd;
    }
"#;

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

/// The same with something on standard input.
fn net_with(folder: &TempDir, args: &[&str], input: &str) -> Output {
    fs::write(folder.path().join("standard-input"), input).unwrap();
    let file = fs::File::open(folder.path().join("standard-input")).unwrap();
    command(folder, args).stdin(file).output().unwrap()
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
        for command in ["check", "draw", "run"] {
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

#[test]
fn run_takes_records_from_standard_input_and_gives_them_to_standard_output() {
    let folder = folder(&[("double.snet", DOUBLE), ("double.c", DOUBLE_C)]);
    let input = "{\"A\":\"a\",\"N\":1}\n{\"A\":\"b\",\"N\":60,\"C\":\"c\"}\n";
    let done = net_with(&folder, &["run", "double.snet", "-b", "double.c", "--workers", "2"], input);
    assert_ended(&done, 0);
    assert_eq!(text(&done.stdout), "{\"A\":\"a\",\"N\":2}\n{\"C\":\"c\",\"big\":120}\n");
}

#[test]
fn run_takes_files_and_xml() {
    let xml = r#"<record type="data" mode="textual" interface="C4SNet"><field label="A">(int)5</field></record>
        <record type="terminate"/>"#;
    let folder = folder(&[("rename.snet", "net rename connect [{A} -> {B=A}];"), ("in.xml", xml)]);
    let done = net(&folder, &["run", "rename.snet", "-f", "xml", "-i", "in.xml", "-o", "out.xml"]);
    assert_ended(&done, 0);
    let out = fs::read_to_string(folder.path().join("out.xml")).unwrap();
    assert!(out.contains(r#"<field label="B">(int)5</field>"#) && out.contains("terminate"), "{out}");
}

#[test]
fn run_answers_before_its_input_has_ended() {
    let folder = folder(&[("rename.snet", "net rename connect [{A} -> {B=A}];")]);
    let mut child = command(&folder, &["run", "rename.snet"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut input, mut output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
    for word in ["one", "two"] {
        writeln!(input, "{{\"A\":\"{word}\"}}").unwrap();
        let mut answer = String::new();
        output.read_line(&mut answer).unwrap();
        assert_eq!(answer, format!("{{\"B\":\"{word}\"}}\n"));
    }
    drop(input);
    assert!(child.wait().unwrap().success());
}

#[test]
fn run_takes_records_from_a_port_and_gives_them_to_another() {
    let folder = folder(&[("rename.snet", "net rename connect [{A} -> {B=A}];")]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap().port().to_string();
    let mut child = command(&folder, &["run", "rename.snet", "-I", "0", "-O", &to])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut said).unwrap();
    let mut stream = TcpStream::connect(said.trim_end().strip_prefix("listening on ").unwrap()).unwrap();
    stream.write_all(b"{\"A\":\"over the net\"}\n").unwrap();
    drop(stream);
    let mut out = String::new();
    listener.accept().unwrap().0.read_to_string(&mut out).unwrap();
    assert_eq!(out, "{\"B\":\"over the net\"}\n");
    assert!(child.wait().unwrap().success());
}

#[test]
fn run_of_a_record_that_cannot_go_on_stops_though_its_input_has_no_end() {
    let folder = folder(&[("rename.snet", "net rename connect [{A} -> {B=A}];")]);
    for mistake in ["{\"C\":\"no branch\"}\n", "no JSON\n"] {
        let mut child = command(&folder, &["run", "rename.snet"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(b"{\"A\":\"first\"}\n").unwrap();
        input.write_all(mistake.as_bytes()).unwrap();
        let done = child.wait_with_output().unwrap(); // and the input is still open
        assert_ended(&done, 1);
        assert_eq!(text(&done.stdout), "{\"B\":\"first\"}\n");
        assert!(text(&done.stderr).contains("'--on-error record'"), "{}", text(&done.stderr));
        drop(input);
    }
}

#[test]
fn run_on_error_record_lets_errors_out_as_records() {
    let folder = folder(&[("double.snet", DOUBLE), ("double.c", DOUBLE_C)]);
    let input =
        "{\"A\":\"a\",\"N\":1}\n{\"A\":\"b\"}\nnothing\n{\"A\":\"c\",\"N\":13}\n{\"A\":\"d\",\"N\":2}\n";
    let args = ["run", "double.snet", "-b", "double.c", "--on-error", "record"];
    let done = net_with(&folder, &args, input);
    assert_ended(&done, 1);
    let records: Vec<serde_json::Value> =
        text(&done.stdout).lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let (wrong, right): (Vec<_>, Vec<_>) = records.iter().partition(|r| r.get("error").is_some());
    assert_eq!(right.len(), 2, "{records:?}");
    assert_eq!(wrong.len(), 3, "{records:?}");
    let says = |part: &str| wrong.iter().any(|r| r["error"].as_str().unwrap().contains(part));
    assert!(says("input: line 3") && says("box dbl"), "{wrong:?}");
    assert!(text(&done.stderr).contains("3 records could not go on"));
}

#[test]
fn run_tells_of_records_left_in_synchrocells() {
    let folder = folder(&[("join.snet", "net join connect [| {A}, {B} |];")]);
    let done = net_with(&folder, &["run", "join.snet"], "{\"A\":\"alone\"}\n");
    assert_ended(&done, 0);
    assert!(done.stdout.is_empty());
    assert!(text(&done.stderr).contains("1 record was in synchrocells"), "{}", text(&done.stderr));
}

#[test]
fn run_without_functions_for_its_boxes_says_what_to_do() {
    let folder = folder(&[("double.snet", DOUBLE), ("empty.c", "")]);
    for args in [
        &["run", "double.snet"][..],
        &["run", "double.snet", "-b", "none.so"],
        &["run", "double.snet", "-b", "empty.c"],
    ] {
        let done = net(&folder, args);
        assert_ended(&done, 1);
        assert!(text(&done.stderr).starts_with("corebeat: "), "{}", text(&done.stderr));
    }
    let done = net(&folder, &["run", "-"]);
    assert_ended(&done, 2);
    let file = PathBuf::from("no").join("such");
    let done = net(&folder, &["run", "double.snet", "-i", file.to_str().unwrap()]);
    assert_ended(&done, 1); // its box is missed first
}
