//! `corebeat net`, as a user runs it.

use rustix::process::{Pid, Signal, ioctl_tiocsctty, kill_process, setsid};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Action, Winsize, tcflow, tcsetwinsize};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use tempfile::TempDir;

/// Doubles numbers, and outputs those over 100 as `<big>`.
const DOUBLE: &str = "
    box dbl ((A, <N>) -> (A, <N>) | (<big>));
    net double connect dbl;
";

/// The function of `dbl` in C.
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
    corebeat_test_group::reset_signals(&mut command);
    command
}

fn net(folder: &TempDir, args: &[&str]) -> Output {
    command(folder, args).output().unwrap()
}

/// The same with this text on standard input.
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
    for wrong in [
        "net double connect dbl",
        "net double connect nobody;",
        "net double connect [{A} -> {<T = Z>}];",
    ] {
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
    let folder = folder(&[(
        "two.snet",
        "net one connect [{A} -> {B=A}]; net other connect [{C} -> {D=C}];",
    )]);
    let done = net(&folder, &["check", "two.snet", "--net", "one"]);
    assert_eq!(text(&done.stdout), "net one ({A} -> {B})\n");
    let done = net(&folder, &["check", "two.snet", "--net", "none"]);
    assert_ended(&done, 2);
    assert!(text(&done.stderr).contains("its nets are: one, other"));
}

#[test]
fn program_that_cannot_be_read_is_reported_in_one_line() {
    let folder = folder(&[]);
    fs::write(folder.path().join("bytes.snet"), b"net x\nconnect \xff;").unwrap();
    for (file, status, expected) in
        [("none.snet", 2, "No such file"), ("bytes.snet", 1, "UTF-8 text from line 2")]
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
    let done = net(&folder, &["draw", "double.snet", "--ranks", "2"]);
    assert_ended(&done, 0);
    assert!(text(&done.stdout).contains(">rank 0</text>"), "{}", text(&done.stdout));
}

#[test]
fn header_goes_to_standard_output_or_a_folder() {
    let folder = folder(&[]);
    let done = net(&folder, &["header"]);
    assert!(text(&done.stdout).contains("C4SNetOut"));
    assert_ended(&net(&folder, &["header", "."]), 0);
    assert_eq!(fs::read(folder.path().join("C4SNet.h")).unwrap(), done.stdout);
    assert_ended(&net(&folder, &["header", "none"]), 2);
}

#[test]
fn run_takes_records_from_standard_input_and_gives_them_to_standard_output() {
    let folder = folder(&[("double.snet", DOUBLE), ("double.c", DOUBLE_C)]);
    let input = "{\"A\":\"a\",\"N\":1}\n{\"A\":\"b\",\"N\":60,\"C\":\"c\"}\n";
    let done =
        net_with(&folder, &["run", "double.snet", "-b", "double.c", "--workers", "2"], input);
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
    assert!(
        out.contains(r#"<field label="B">(int)5</field>"#) && out.contains("terminate"),
        "{out}"
    );
}

#[test]
fn run_answers_before_its_input_has_ended() {
    let folder = folder(&[("rename.snet", "net rename connect [{A} -> {B=A}];")]);
    let mut child = command(&folder, &["run", "rename.snet"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut input, mut output) =
        (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
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
    let mut stream =
        TcpStream::connect(said.trim_end().strip_prefix("listening on ").unwrap()).unwrap();
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
    let input = "{\"A\":\"a\",\"N\":1}\n{\"A\":\"b\"}\nnothing\n{\"A\":\"c\",\"N\":13}\n{\"A\":\"d\",\"N\":2}\n";
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
    assert!(text(&done.stderr).contains("3 records failed"));
}

#[test]
fn run_on_error_continue_reports_failed_records_and_leaves_them_out() {
    let folder = folder(&[("double.snet", DOUBLE), ("double.c", DOUBLE_C)]);
    let input = "{\"A\":\"a\",\"N\":1}\n{\"A\":\"b\"}\nnothing\n{\"A\":\"c\",\"N\":13}\n{\"A\":\"d\",\"N\":2}\n";
    let args = ["run", "double.snet", "-b", "double.c", "--on-error", "continue"];
    let done = net_with(&folder, &args, input);
    assert_ended(&done, 1);
    assert_eq!(text(&done.stdout).lines().count(), 2, "{}", text(&done.stdout));
    for said in ["corebeat: input: line 3", "corebeat: box dbl", "3 records failed"] {
        assert!(text(&done.stderr).contains(said), "{}", text(&done.stderr));
    }
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
    for args in [&["run", "double.snet"][..], &["run", "double.snet", "-b", "empty.c"]] {
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

#[test]
fn box_in_c_that_crashes_is_named_and_ends_the_run_by_its_signal() {
    let bad = "#include <assert.h>
        #include <stdlib.h>
        #include \"C4SNet.h\"
        static int sum(int n, volatile char *up) { volatile char a[1024]; a[0] = *up; return n ? a[0] + sum(n - 1, a) : 0; }
        void *bad(void *hnd, int n) {
            if (n == 1) n = *(volatile int *)8;
            if (n == 2) assert(n == 1);
            if (n == 3) __builtin_trap();
            volatile char one = 1;
            if (n > 3) n = sum(n, &one);
            C4SNetOut(hnd, 1, n);
            return hnd;
        }";
    let net = "net bad { box bad ((<N>) -> (<N>)); } connect bad;";
    let folder = folder(&[("bad.c", bad), ("bad.snet", net)]);
    for (n, signal, expected) in [
        (1, Signal::SEGV, "'bad', in box bad, crashed: SIGSEGV\n"),
        (2, Signal::ABORT, "'bad', in box bad, crashed: SIGABRT\n"),
        (3, Signal::ILL, "'bad', in box bad, crashed: SIGILL\n"),
        (3000, Signal::ABORT, "bytes: set a larger one with --stack\n"),
    ] {
        let input = format!("{{\"N\":0}}\n{{\"N\":{n}}}\n");
        let done = net_with(&folder, &["run", "bad.snet", "-b", "bad.c"], &input);
        assert_eq!(done.status.signal(), Some(signal.as_raw()), "{}", text(&done.stderr));
        let said = text(&done.stderr);
        assert!(
            said.starts_with("corebeat-lpel: task ") == (n != 2) && said.ends_with(expected),
            "{said}"
        );
        assert!(said.contains("'bad', in box bad, "), "{said}");
    }
    let input = "{\"N\":3000}\n";
    assert_ended(
        &net_with(&folder, &["run", "bad.snet", "-b", "bad.c", "--stack", "16M"], input),
        0,
    );
}

#[test]
fn errors_of_the_compiler_are_printed_line_by_line() {
    let net = "net bad { box bad ((<N>) -> (<N>)); } connect bad;";
    let folder = folder(&[("bad.c", "int 1;\nint 2;\n"), ("bad.snet", net)]);
    let done = net_with(&folder, &["run", "bad.snet", "-b", "bad.c"], "");
    assert_ended(&done, 1);
    let said = text(&done.stderr);
    assert!(said.contains("bad.c:2:") && !said.contains("\\n"), "{said}");
    assert!(said.ends_with("corebeat: the boxes do not compile; correct the errors above\n"));
}

#[test]
fn box_in_c_that_calls_exit_is_named_and_fails_the_run() {
    let bad = "#include <stdlib.h>
        #include \"C4SNet.h\"
        void *bad(void *hnd, int n) { exit(n); }";
    let net = "net bad { box bad ((<N>) -> (<N>)); } connect bad;";
    let folder = folder(&[("bad.c", bad), ("bad.snet", net)]);
    for n in [0, 9] {
        let input = format!("{{\"N\":{n}}}\n");
        let done = net_with(&folder, &["run", "bad.snet", "-b", "bad.c"], &input);
        assert_ended(&done, 1);
        let said = text(&done.stderr);
        assert!(said.contains("in box bad, ended the program by exit"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

/// An unbounded number of records for `dbl`.
fn numbers(records: usize) -> String {
    (0..records).map(|n| format!("{{\"A\":\"a\",\"N\":{n}}}\n")).collect()
}

/// Lines in an order that does not depend on which worker was first.
fn sorted(bytes: &[u8]) -> Vec<String> {
    let mut lines: Vec<String> = text(bytes).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn run_without_a_format_finds_it_out() {
    let folder = folder(&[("rename.snet", "net rename connect [{A} -> {B=A}];")]);
    let xml = "\n <record type=\"data\"><field label=\"A\">(int)5</field></record><record type=\"terminate\"/>";
    let done = net_with(&folder, &["run", "rename.snet"], xml);
    assert_ended(&done, 0);
    let said = text(&done.stdout);
    assert!(
        said.contains("<field label=\"B\">(int)5</field>") && said.contains("terminate"),
        "{said}"
    );
    for (input, expected) in [
        ("\n{\"A\":\"x\"}\n", "{\"B\":\"x\"}\n"),
        ("", ""),
        (" \n", ""),
        ("\u{feff}{\"A\":\"\"}", "{\"B\":\"\"}\n"),
    ] {
        let done = net_with(&folder, &["run", "rename.snet"], input);
        assert_ended(&done, 0);
        assert_eq!(text(&done.stdout), expected, "{input:?}");
    }
    let done = net_with(&folder, &["run", "rename.snet", "-f", "xml"], "");
    assert_eq!(text(&done.stdout), "<record type=\"terminate\"/>\n");
    let done = net_with(&folder, &["run", "rename.snet", "-f", "json"], xml);
    assert_ended(&done, 1);
}

#[test]
fn run_waits_for_the_form_of_its_input_before_it_writes() {
    let two = "net two { box two (-> (<n>)) {<<< C |
        void *two(void *hnd) { C4SNetOut(hnd, 1, 1); C4SNetOut(hnd, 1, 2); return hnd; }
    >>>} } connect two | [{A} -> {A}];";
    let folder = folder(&[("two.snet", two)]);
    let xml = "<record type=\"data\"><field label=\"A\">(int)5</field></record>";
    let said = sorted(&net_with(&folder, &["run", "two.snet"], xml).stdout);
    assert!(said.len() == 4 && said.iter().all(|line| line.starts_with("<record")), "{said:?}");
    assert_eq!(
        sorted(&net_with(&folder, &["run", "two.snet"], "").stdout),
        ["{\"n\":1}", "{\"n\":2}"]
    );
}

#[test]
fn run_with_any_placement_capacity_and_stack_gives_the_same_records() {
    let deep = "net deep { box deep ((A, <N>) -> (A, <N>)) {<<< C |
        static int sum(int n, volatile char *up) { volatile char a[1024]; a[0] = *up; return n ? a[0] + sum(n - 1, a) : 0; }
        void *deep(void *hnd, c4snet_data_t *a, int n) { volatile char one = 1; C4SNetOut(hnd, 1, a, sum(3000, &one)); return hnd; }
    >>>} } connect deep;";
    let folder = folder(&[("double.snet", DOUBLE), ("double.c", DOUBLE_C), ("deep.snet", deep)]);
    let input = numbers(100).replace("\"N\":13}", "\"N\":0}");
    let run = |more: &[&str]| {
        let args = [&["run", "double.snet", "-b", "double.c", "-w", "2"], more].concat();
        let done = net_with(&folder, &args, &input);
        assert_ended(&done, 0);
        sorted(&done.stdout)
    };
    let expected = run(&[]);
    assert_eq!(expected.len(), 100);
    let done =
        net_with(&folder, &["profile", "double.snet", "-b", "double.c", "--save", "costs"], &input);
    assert_ended(&done, 0);
    for more in [
        &["--placement", "nearby"][..],
        &["--placement", "balanced"],
        &["--placement", "costs", "--capacity", "1"],
        &["--capacity", "1000", "--stack", "1M"],
    ] {
        assert_eq!(run(more), expected, "{more:?}");
    }
    let done = net_with(&folder, &["run", "deep.snet", "--stack", "16M"], &numbers(1));
    assert_ended(&done, 0);
    assert_eq!(text(&done.stdout), "{\"A\":\"a\",\"N\":3000}\n");
}

/// A net in a net, and a box in that.
const NESTED: &str = "
    net nested {
        net inner { box dbl ((A, <N>) -> (A, <N>) | (<big>)); } connect [{<N>} -> {<N = N + 1>}] .. dbl;
    } connect inner .. [{<big>} -> {<huge = big>}] | inner;
";

#[test]
fn observers_write_what_goes_in_and_out() {
    let folder = folder(&[("nested.snet", NESTED), ("double.c", DOUBLE_C)]);
    let args = [
        "run",
        "nested.snet",
        "-b",
        "double.c",
        "--observe",
        "dbl",
        "--observe",
        "inner:before=seen",
    ];
    let args = [&args[..], &["--observe", "nested:after=seen"]].concat();
    let done = net_with(&folder, &args, "{\"A\":\"a\",\"N\":1}\n");
    assert_ended(&done, 0);
    assert_eq!(text(&done.stdout), "{\"A\":\"a\",\"N\":4}\n");
    let seen = |observer, position, kind, n| {
        format!(
            "{{\"observer\":{observer},\"position\":\"{position}\",\"type\":\"{kind}\",\"record\":{{\"A\":\"a\",\"N\":{n}}}}}\n"
        )
    };
    assert!(
        text(&done.stderr).ends_with(&(seen(1, "dbl", "before", 2) + &seen(1, "dbl", "after", 4)))
    );
    let written = fs::read_to_string(folder.path().join("seen")).unwrap();
    assert_eq!(written, seen(2, "inner", "before", 1) + &seen(3, "nested", "after", 4));

    let xml = "<record type=\"data\"><field label=\"A\">a</field><tag label=\"N\">1</tag></record>";
    let args = ["run", "nested.snet", "-b", "double.c", "--observe", "dbl:after=-"];
    let done = net_with(&folder, &args, xml);
    assert_ended(&done, 0);
    let said = text(&done.stderr);
    let line = said.lines().last().unwrap();
    assert!(
        line.starts_with(
            "<observer oid=\"1\" position=\"dbl\" type=\"after\"><record type=\"data\""
        ),
        "{said}"
    );
    assert!(line.ends_with("<tag label=\"N\">4</tag></record></observer>"), "{said}");
}

#[test]
fn observer_on_a_socket_gets_all_records() {
    let folder = folder(&[("rename.snet", "net rename connect [{A} -> {B=A}];")]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let observe = format!("rename:after={}", listener.local_addr().unwrap());
    let input = "{\"A\":\"x\"}\n".repeat(5000);
    fs::write(folder.path().join("in"), input).unwrap();
    let args = ["run", "rename.snet", "-i", "in", "-o", "out", "--observe", &observe];
    let mut child = command(&folder, &args).spawn().unwrap();
    let mut seen = String::new();
    listener.accept().unwrap().0.read_to_string(&mut seen).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(seen.lines().count(), 5000);
    assert_eq!(fs::read_to_string(folder.path().join("out")).unwrap().lines().count(), 5000);
}

#[test]
fn observer_that_fails_is_reported_once_and_loses_no_records() {
    let folder = folder(&[("rename.snet", "net rename connect [{A} -> {B=A}];")]);
    let input = "{\"A\":\"x\"}\n".repeat(5000);
    let done = net_with(&folder, &["run", "rename.snet", "--observe", "rename=/dev/full"], &input);
    assert_ended(&done, 0);
    assert_eq!(text(&done.stdout).lines().count(), 5000);
    let said = text(&done.stderr);
    assert!(said.contains("/dev/full") && said.lines().count() == 1, "{said}");

    // The reader closes the pipe.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    fs::write(folder.path().join("in"), input).unwrap();
    let args = ["run", "rename.snet", "-i", "in", "-o", "out", "--observe", "rename"];
    assert!(command(&folder, &args).stderr(writer).status().unwrap().success());
    assert_eq!(fs::read_to_string(folder.path().join("out")).unwrap().lines().count(), 5000);
}

#[test]
fn profile_says_what_tasks_cost_and_where_they_would_go() {
    let folder = folder(&[("double.snet", DOUBLE), ("double.c", DOUBLE_C)]);
    let input = numbers(10);
    let args = ["profile", "double.snet", "-b", "double.c", "--workers", "2", "-o", "out"];
    let done = net_with(&folder, &args, &input);
    assert_ended(&done, 0);
    let said = text(&done.stdout);
    for part in [
        "net double: 10 records in, 10 out",
        "\nentity",
        "\ndbl",
        "\n<input>",
        "\nworker",
        "\nplacement by",
        "dbl x 1",
    ] {
        assert!(said.contains(part), "{part} is not in\n{said}");
    }
    assert_eq!(fs::read_to_string(folder.path().join("out")).unwrap().lines().count(), 10);

    let args = ["profile", "double.snet", "-b", "double.c", "-w", "2", "--json", "--save", "costs"];
    let done = net_with(&folder, &args, &input);
    assert_ended(&done, 0);
    let json: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    let entities = json["entities"].as_array().unwrap();
    let names: Vec<&str> = entities.iter().map(|e| e["name"].as_str().unwrap()).collect();
    assert!(names.len() == 2 && names.contains(&"dbl") && names.contains(&"<input>"), "{names:?}");
    assert!(entities.iter().all(|e| e["tasks"] == 1 && e["dispatches"].as_u64() >= Some(1)));
    assert_eq!(json["workers"].as_array().unwrap().len(), 2);
    let placed = json["placement"].as_array().unwrap();
    assert_eq!(placed.len(), 2);
    assert!(placed.iter().all(|p| p["tasks"].as_object().unwrap().len() == 1), "{placed:?}");
    let costs: serde_json::Value =
        serde_json::from_slice(&fs::read(folder.path().join("costs")).unwrap()).unwrap();
    let dbl = entities.iter().find(|e| e["name"] == "dbl").unwrap();
    assert_eq!(costs["cost_ns"]["dbl"], dbl["average_ns"]);
}

#[test]
fn profile_of_a_net_that_fails_still_tells() {
    let folder = folder(&[("rename.snet", "net rename connect [{A} -> {B=A}];")]);
    let done = net_with(&folder, &["profile", "rename.snet"], "{\"A\":\"\"}\nnothing\n");
    assert_ended(&done, 1);
    assert!(text(&done.stdout).contains("1 record in, 1 out"), "{}", text(&done.stdout));
    assert!(text(&done.stderr).contains("input: line 2"));
}

#[test]
fn wrong_options_are_reported_in_one_line() {
    let folder = folder(&[
        ("rename.snet", "net rename connect [{A} -> {B=A}];"),
        ("words", "words"),
        ("other", "{\"cost\": {}}"),
        ("much", "{\"cost_ns\": {\"foo\": 18446744073709551615}}"),
        ("less", "{\"cost_ns\": {\"foo\": -1}}"),
    ]);
    for (args, status, expected) in [
        (&["run", "rename.snet", "--placement", "none"][..], 2, "nearby, balanced, or a file"),
        (&["run", "rename.snet", "--placement", "words"], 1, "'corebeat net profile --save'"),
        (&["run", "rename.snet", "--placement", "other"], 1, "'corebeat net profile --save'"),
        (&["run", "rename.snet", "--placement", "much"], 1, "\"foo\" is more than"),
        (&["run", "rename.snet", "--placement", "less"], 1, "less is not a cost file"),
        (&["run", "rename.snet", "--capacity", "0"], 2, "--capacity"),
        (&["run", "rename.snet", "--capacity", "99999999"], 2, "--capacity"),
        (&["run", "rename.snet", "--stack", "1"], 2, "from 8192 to"),
        (&["run", "rename.snet", "--workers", "0"], 2, "--workers"),
        (&["run", "rename.snet", "--format", "text"], 2, "use `xml` or `json`"),
        (&["run", "rename.snet", "--observe", "nobody"], 2, "the known names are: rename"),
        (&["run", "rename.snet", "--observe", "rename:x"], 2, "'x' is not a position"),
        (&["run", "rename.snet", "--observe", "rename="], 2, "the target is missing"),
        (&["run", "rename.snet", "-o", "out", "-O", "1"], 2, "cannot be used with"),
        (&["draw", "rename.snet", "--workers", "2"], 2, "add --live"),
        (&["draw", "rename.snet", "--ranks", "0"], 2, "--ranks"),
        (&["draw", "rename.snet", "--ranks", "2", "--live"], 2, "cannot be used with"),
    ] {
        let done = net(&folder, args);
        let said = text(&done.stderr);
        assert_ended(&done, status);
        assert!(said.starts_with("corebeat: ") && said.contains(expected), "{args:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
    }
}

#[test]
fn file_or_address_that_cannot_be_opened_is_a_mistake_on_the_command_line() {
    let folder = folder(&[("rename.snet", "net rename connect [{A} -> {B=A}];")]);
    for (args, expected) in [
        (&["check", "none"][..], "cannot read none: No such file"),
        (&["check", "."], "cannot read .: Is a directory"),
        (&["run", "rename.snet", "-i", "none"], "cannot read records from none: No such file"),
        (&["run", "rename.snet", "-i", "."], "cannot read records from .: is a directory"),
        (&["run", "rename.snet", "-I", "127.0.0.1:99999"], "from 127.0.0.1:99999: "),
        (&["run", "rename.snet", "-o", "no/such"], "cannot write records to no/such: No such file"),
        (&["run", "rename.snet", "-O", "127.0.0.1:1"], "cannot write records to 127.0.0.1:1: "),
        (&["run", "rename.snet", "-b", "none.so"], "cannot read boxes from none.so: No such file"),
        (&["run", "rename.snet", "-b", "none.c"], "cannot read boxes from none.c: No such file"),
        (&["run", "rename.snet", "--placement", "none"], "cannot read costs from none: "),
        (
            &["run", "rename.snet", "--observe", "rename=no/such"],
            "cannot write observed records to no/such: ",
        ),
        (&["run", "rename.snet", "--observe", "rename=127.0.0.1:1"], "records to 127.0.0.1:1: "),
        (&["profile", "rename.snet", "--save", "no/such"], "cannot write no/such: "),
        (&["profile", "rename.snet", "-o", "no/such"], "cannot write records to no/such: "),
        (&["draw", "rename.snet", "-o", "no/such"], "cannot write no/such: "),
        (&["draw", "rename.snet", "--live", "-i", "none"], "cannot read records from none: "),
        (&["header", "no/such"], "cannot write no/such/"),
    ] {
        let done = net(&folder, args);
        let said = text(&done.stderr);
        assert_ended(&done, 2);
        assert!(said.starts_with("corebeat: ") && said.contains(expected), "{args:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
    }
}

#[test]
fn output_that_names_an_input_or_another_output_is_refused_and_changes_nothing() {
    let files = [
        ("double.snet", DOUBLE),
        ("double.c", DOUBLE_C),
        ("costs", "{\"dbl\":1}"),
        ("standard-input", "{\"A\":{\"int\":1},\"N\":1}\n"),
    ];
    let folder = folder(&files);
    let path = |name: &str| folder.path().join(name);
    fs::hard_link(path("standard-input"), path("link")).unwrap();
    let run = ["double.snet", "-b", "double.c", "-i", "standard-input"];
    for (of, args, why) in [
        ("run", &["-o", "standard-input"][..], "standard-input is named twice"),
        ("run", &["-o", "link"], "standard-input and link are one file"),
        ("run", &["-o", "double.snet"], "double.snet is named twice"),
        ("run", &["-o", "double.c"], "double.c is named twice"),
        ("run", &["--placement", "costs", "-o", "costs"], "costs is named twice"),
        ("run", &["-o", "new", "--observe", "dbl=standard-input"], "standard-input is named twice"),
        ("run", &["-o", "./new", "--observe", "dbl=new"], "new and ./new are one file"),
        (
            "run",
            &["-o", "new", "--observe", "dbl=seen", "--observe", "double=./seen"],
            "./seen and seen are one file",
        ),
        ("profile", &["--save", "standard-input"], "standard-input is named twice"),
        ("profile", &["--save", "new", "-o", "new"], "new is named twice"),
        ("draw", &["--live", "-o", "standard-input"], "standard-input is named twice"),
    ] {
        assert_not_distinct(&net(&folder, &[&[of], &run[..], args].concat()), why);
    }
    let over_program = net(&folder, &["draw", "double.snet", "-o", "double.snet"]);
    assert_not_distinct(&over_program, "double.snet is named twice");
    let from_shell = ["run", "double.snet", "-b", "double.c", "-o", "link"];
    let over_input = net_with(&folder, &from_shell, files[3].1);
    assert_not_distinct(&over_input, "/dev/stdin and link are one file");
    // Output that the shell appends to the input, which then has no end.
    for args in [&["run"][..], &["draw", "--live"]] {
        let end = fs::File::options().append(true).open(path("link")).unwrap();
        let appended = command(&folder, &[args, &run[..]].concat()).stdout(end).output().unwrap();
        assert_not_distinct(&appended, "standard-input and /dev/stdout are one file");
    }
    for (name, content) in files {
        assert_eq!(fs::read_to_string(path(name)).unwrap(), content, "{name}");
    }
    assert!(!path("new").exists() && !path("seen").exists());
    let shared = ["--observe", "dbl:before=seen", "--observe", "dbl:after=seen"];
    assert_ended(&net(&folder, &[&["run"], &run[..], &shared].concat()), 0);
}

fn assert_not_distinct(done: &Output, why: &str) {
    assert_ended(done, 2);
    let said = text(&done.stderr);
    assert!(said.contains(&format!(" {why}; name a different file")), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn file_that_fails_later_is_a_failure_of_its_own() {
    let folder =
        folder(&[("rename.snet", "net rename connect [{A} -> {B=A}];"), ("in", "{\"A\":\"a\"}\n")]);
    // The memory file of this process can be opened, but its beginning cannot be read.
    for (args, expected) in [
        (
            &["run", "rename.snet", "-i", "/proc/self/mem"][..],
            "cannot read records from /proc/self/mem: ",
        ),
        (
            &["run", "rename.snet", "-f", "xml", "-i", "/proc/self/mem"],
            "records from /proc/self/mem: ",
        ),
        (
            &["run", "rename.snet", "--on-error", "record", "-i", "/proc/self/mem"],
            "from /proc/self/mem: ",
        ),
        (
            &["run", "rename.snet", "-i", "in", "-o", "/dev/full"],
            "cannot write records to /dev/full: ",
        ),
        (&["draw", "rename.snet", "-o", "/dev/full"], "cannot write /dev/full: "),
        (
            &["profile", "rename.snet", "-i", "in", "--save", "/dev/full"],
            "cannot write /dev/full: ",
        ),
    ] {
        let done = net(&folder, args);
        let said = text(&done.stderr);
        assert_ended(&done, 125);
        assert!(said.starts_with("corebeat: ") && said.contains(expected), "{args:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
        assert!(!text(&done.stdout).contains("error"), "{}", text(&done.stdout));
    }
}

#[test]
fn live_view_without_a_terminal_is_lines_beside_the_output() {
    let folder = folder(&[("double.snet", DOUBLE), ("double.c", DOUBLE_C)]);
    let done =
        net_with(&folder, &["draw", "double.snet", "--live", "-b", "double.c"], &numbers(10));
    assert_ended(&done, 0);
    assert_eq!(text(&done.stdout).lines().count(), 10);
    let said = text(&done.stderr);
    let last = said.lines().last().unwrap();
    assert!(
        last.contains("net double") && last.contains("  in 10 (") && last.contains("  out 10 ("),
        "{said}"
    );
}

#[test]
fn live_view_ended_by_a_signal_lets_out_what_is_in() {
    let folder = folder(&[("rename.snet", "net rename connect [{A} -> {B=A}];")]);
    let mut child = command(&folder, &["draw", "rename.snet", "--live"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"{\"A\":\"first\"}\n").unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("  out 1 (")));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let done = child.wait_with_output().unwrap(); // and the input is still open
    assert_eq!(done.status.signal(), Some(2));
    assert_eq!(text(&done.stdout), "{\"B\":\"first\"}\n");
    drop(input);
}

/// A pseudoterminal: the end of the user, and the end of the programs.
fn terminal() -> (fs::File, fs::File) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let front = openpt(flags).unwrap();
    unlockpt(&front).unwrap();
    let back = ioctl_tiocgptpeer(&front, flags).unwrap();
    let size = Winsize { ws_row: 12, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&back, size).unwrap();
    (front.into(), back.into())
}

#[test]
fn live_view_on_a_terminal_shows_streams_until_a_key_ends_it() {
    let folder = folder(&[("double.snet", DOUBLE), ("double.c", DOUBLE_C)]);
    for key in [b"q", b"\x03"] {
        let (mut front, back) = terminal();
        let args = ["draw", "double.snet", "--live", "-b", "double.c", "-I", "0", "-o", "out"];
        let mut child = command(&folder, &args)
            .stdin(back.try_clone().unwrap())
            .stdout(back.try_clone().unwrap())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(back);
        let mut said = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut said).unwrap();
        let mut stream =
            TcpStream::connect(said.trim_end().strip_prefix("listening on ").unwrap()).unwrap();
        stream.write_all(numbers(10).as_bytes()).unwrap();

        let mut shown = Vec::new();
        let mut piece = [0; 4096];
        let mut pressed = false;
        // A terminal whose program has ended cannot be read.
        while let Ok(read @ 1..) = front.read(&mut piece) {
            shown.extend_from_slice(&piece[..read]);
            let shown = String::from_utf8_lossy(&shown);
            if !pressed && shown.contains("STREAM") && shown.contains("dbl") {
                front.write_all(key).unwrap();
                pressed = true;
            }
        }
        assert!(pressed, "{}", String::from_utf8_lossy(&shown));
        assert!(child.wait().unwrap().success()); // and the input is still open
        assert_eq!(fs::read_to_string(folder.path().join("out")).unwrap().lines().count(), 10);
    }
}

/// A live view on a terminal of its own session, and the pipe of its records, which go to `out`.
fn live_in_a_session(folder: &TempDir, back: &fs::File, hang_up: libc::sighandler_t) -> Child {
    let mut command = command(folder, &["draw", "rename.snet", "--live", "-o", "out"]);
    let prepare = move || {
        setsid()?;
        ioctl_tiocsctty(std::io::stdout())?;
        // SAFETY: neither action has a handler.
        unsafe { libc::signal(libc::SIGHUP, hang_up) };
        Ok(())
    };
    let copy = || back.try_clone().unwrap();
    command.stdin(Stdio::piped()).stdout(copy()).stderr(copy());
    // SAFETY: the hook makes system calls only.
    unsafe { command.pre_exec(prepare) };
    command.spawn().unwrap()
}

/// Sends five records through a view, until they have arrived.
fn send_five(folder: &TempDir, records: &mut ChildStdin) {
    records.write_all("{\"A\":\"x\"}\n".repeat(5).as_bytes()).unwrap();
    until(|| fs::read_to_string(folder.path().join("out")).is_ok_and(|t| t.lines().count() == 5));
}

/// Waits until a condition holds, for a time that suffices on a busy machine.
fn until(mut holds: impl FnMut() -> bool) {
    for _ in 0..100_000 {
        if holds() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(3));
    }
    panic!("the condition did not hold within five minutes");
}

/// Reads a terminal until it contains a text.
fn read_until(front: &mut fs::File, wanted: &str) {
    let (mut shown, mut piece) = (String::new(), [0; 4096]);
    while !shown.contains(wanted) {
        let read = front.read(&mut piece).unwrap();
        shown += &String::from_utf8_lossy(&piece[..read]);
    }
}

#[test]
fn live_view_whose_terminal_is_closed_ends_by_the_signal_unless_ignored() {
    for hang_up in [libc::SIG_DFL, libc::SIG_IGN] {
        let folder = folder(&[("rename.snet", "net rename connect [{A} -> {B=A}];")]);
        let (mut front, back) = terminal();
        let mut child = live_in_a_session(&folder, &back, hang_up);
        drop(back);
        let mut records = child.stdin.take().unwrap();
        send_five(&folder, &mut records);
        read_until(&mut front, "STREAM");
        drop(front);
        let lines = || fs::read_to_string(folder.path().join("out")).unwrap().lines().count();
        if hang_up == libc::SIG_DFL {
            // The input is still open.
            let status = child.wait().unwrap();
            assert_eq!((status.signal(), lines()), (Some(libc::SIGHUP), 5), "{status}");
        } else {
            records.write_all(b"{\"A\":\"y\"}\n").unwrap();
            drop(records);
            let status = child.wait().unwrap();
            assert_eq!((status.code(), lines()), (Some(0), 6), "{status}");
        }
    }
}

#[test]
fn live_view_on_a_terminal_that_accepts_no_text_ends_by_a_signal() {
    let folder = folder(&[("rename.snet", "net rename connect [{A} -> {B=A}];")]);
    let (mut front, back) = terminal();
    let mut child = live_in_a_session(&folder, &back, libc::SIG_DFL);
    let mut records = child.stdin.take().unwrap();
    read_until(&mut front, "STREAM");
    tcflow(&back, Action::OOff).unwrap();
    send_five(&folder, &mut records);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let mut status = None;
    until(|| {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().signal(), Some(libc::SIGTERM)); // and the input is still open
    assert_eq!(fs::read_to_string(folder.path().join("out")).unwrap().lines().count(), 5);
}

#[test]
fn box_that_closes_standard_output_loses_no_record() {
    let closing = r#"
        #include <unistd.h>
        #include "C4SNet.h"
        void *dbl(void *hnd, c4snet_data_t *a, int n) {
            close(1);
            C4SNetOut(hnd, 1, a, 2 * n);
            return hnd;
        }
    "#;
    let folder = folder(&[("double.snet", DOUBLE), ("close.c", closing)]);
    let done = net_with(&folder, &["run", "double.snet", "-b", "close.c"], &numbers(10));
    assert_ended(&done, 0);
    assert_eq!(text(&done.stdout).lines().count(), 10);
}

#[cfg(not(feature = "mpi"))]
#[test]
fn run_of_several_ranks_without_mpi_is_refused_in_one_line() {
    let folder = folder(&[("double.snet", DOUBLE), ("double.c", DOUBLE_C)]);
    for (name, size) in [("OMPI_COMM_WORLD_SIZE", "4"), ("PMI_SIZE", "2")] {
        let run = ["run", "double.snet", "-b", "double.c"];
        let output = command(&folder, &run).env(name, size).output().unwrap();
        let (status, line) = (output.status.code(), text(&output.stderr));
        assert_eq!((status, line.lines().count()), (Some(2), 1), "{line}");
        assert!(line.contains(&format!("the run has {size} ranks")), "{line}");
        assert!(line.contains("the feature 'mpi'"), "{line}");
        let profile = command(&folder, &["profile", "double.snet"]).env(name, size).output();
        let line = text(&profile.unwrap().stderr);
        assert!(line.contains(&format!("the run has {size} ranks")), "{line}");
        let live = command(&folder, &["draw", "double.snet", "--live"]).env(name, size).output();
        let line = text(&live.unwrap().stderr);
        assert!(line.contains("does not run on several ranks"), "{line}");
    }
    let output = net(&folder, &["run", "double.snet", "-b", "double.c", "--eager", "1"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("built without MPI"));
}
