//! `corebeat trace`, as a user runs it.

use corebeat_trace::{Event, Options, WhenFull};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

#[derive(Event)]
struct Paid {
    account: u32,
    cents: i64,
}

/// A trace of two threads, one after the other, with 1,000 events each.
fn recorded() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bank.cbt");
    let trace = Options { when_full: WhenFull::Wait, ..Options::default() }.create(&path).unwrap();
    for thread in ["one", "two"] {
        let builder = std::thread::Builder::new().name(thread.into());
        std::thread::scope(|scope| {
            let paid = || {
                let log = trace.log().unwrap();
                (0..1000).for_each(|n| log.emit(&Paid { account: n, cents: -i64::from(n) }));
            };
            builder.spawn_scoped(scope, paid).unwrap();
        });
    }
    trace.finish().unwrap();
    (folder, path)
}

fn trace(args: &[&str], path: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_corebeat"));
    command.arg("trace").args(args).arg(path).args(more).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The output of a successful command.
fn printed(args: &[&str], path: &Path, more: &[&str]) -> String {
    let output = trace(args, path, more);
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// The one line on standard error, and the exit status.
fn refused(args: &[&str], path: &Path, more: &[&str]) -> (String, i32) {
    let output = trace(args, path, more);
    let line = text(&output.stderr);
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(line.starts_with("corebeat: "), "{line}");
    (line, output.status.code().unwrap())
}

#[test]
fn trace_is_described_printed_and_counted() {
    let (_folder, path) = recorded();
    let info = printed(&["info"], &path, &[]);
    for expected_text in
        ["ending    complete\n", "threads   2\n", "\"one\"", "Paid (account: u32; cents: i64)\n"]
    {
        assert!(info.contains(expected_text), "{expected_text} in {info}");
    }
    let cat = printed(&["cat"], &path, &[]);
    assert_eq!(cat.lines().count(), 2000);
    assert!(cat.lines().next().unwrap().ends_with("0 one Paid account=0 cents=0"), "{cat}");
    let stats = printed(&["stats"], &path, &[]);
    // A thread that pauses has another fix in its buffer.
    assert!(stats.starts_with("events    2000, 0 lost\nbytes     32"), "{stats}");
    assert!(stats.contains("(16.0 per event)"), "{stats}");
}

#[test]
fn trace_is_exported() {
    let (folder, path) = recorded();
    assert_eq!(printed(&["export", "--to", "jsonl"], &path, &[]).lines().count(), 2000);
    assert_eq!(printed(&["export", "--to", "csv"], &path, &[]).lines().count(), 2001);
    let chrome = folder.path().join("chrome.json");
    printed(&["export", "--to", "chrome"], &path, &["-o", chrome.to_str().unwrap()]);
    let read: serde_json::Value = serde_json::from_slice(&fs::read(&chrome).unwrap()).unwrap();
    // The names of the process and of the thread are events, too.
    assert_eq!(read["traceEvents"].as_array().unwrap().len(), 2003);
    // The message names the output.
    for command in [&["export", "--to", "csv"][..], &["export", "--to", "chrome"], &["cut"]] {
        let (line, status) = refused(command, &path, &["-o", "/dev/full"]);
        assert!(
            line.starts_with("corebeat: cannot write /dev/full: ") && status == 125,
            "{status} {line}"
        );
    }
    let ctf = folder.path().join("ctf");
    printed(&["export", "--to", "ctf"], &path, &["-o", ctf.to_str().unwrap()]);
    assert!(ctf.join("metadata").exists());
    let (line, status) = refused(&["export", "--to", "ctf"], &path, &["-o", ctf.to_str().unwrap()]);
    assert!(line.contains("not empty") && status == 2, "{line}");
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    for place in [&file, &folder.path().join("nowhere/ctf")] {
        let (line, status) =
            refused(&["export", "--to", "ctf"], &path, &["-o", place.to_str().unwrap()]);
        assert!(line.contains("name a new directory") && status == 2, "{line}");
    }
    let (line, status) = refused(&["export", "--to", "ctf"], &path, &[]);
    assert!(line.contains("--output") && status == 2, "{line}");
}

#[test]
fn named_pipe_is_refused_without_waiting_for_its_writer() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for command in ["info", "cat"] {
        let (line, status) = refused(&[command], &pipe, &[]);
        assert!(line.contains("is not a regular file") && status == 2, "{status} {line}");
    }
}

#[test]
fn piece_of_a_trace_has_what_was_asked_for() {
    let (folder, path) = recorded();
    let piece = folder.path().join("piece.cbt");
    let to = ["-o", piece.to_str().unwrap()];
    assert_eq!(printed(&["cut", "--thread", "1"], &path, &to), "1 packet\n");
    let cat = printed(&["cat"], &piece, &[]);
    assert_eq!(cat.lines().filter(|l| l.contains(" two Paid ")).count(), 1000);
    assert_eq!(cat.lines().count(), 1000);
    let whole = fs::read(&piece).unwrap();
    for from in ["3600", "1e300"] {
        let (line, status) = refused(&["cut", "--from", from], &path, &to);
        assert!(
            line.contains("no packet of these threads is in this time span") && status == 2,
            "{status} {line}"
        );
        assert_eq!(fs::read(&piece).unwrap(), whole);
    }
    assert_eq!(refused(&["cut", "--from", "2", "--to", "1"], &path, &to).1, 2);
    let (line, status) = refused(&["cut", "--thread", "99"], &path, &to);
    assert!(line.contains("no thread 99") && status == 2, "{status} {line}");
}

#[test]
fn trace_is_never_written_over_by_what_is_read_from_it() {
    let (folder, path) = recorded();
    let whole = fs::read(&path).unwrap();
    let link = folder.path().join("link.cbt");
    let soft = folder.path().join("soft.cbt");
    fs::hard_link(&path, &link).unwrap();
    std::os::unix::fs::symlink(&path, &soft).unwrap();
    for name in [&path, &link, &soft] {
        for command in [
            &["cut"][..],
            &["export", "--to", "csv"],
            &["export", "--to", "jsonl"],
            &["export", "--to", "chrome"],
        ] {
            let (line, status) = refused(command, &path, &["-o", name.to_str().unwrap()]);
            assert!(
                line.contains("name a different file") && status == 2,
                "{command:?} {status} {line}"
            );
            assert_eq!(fs::read(&path).unwrap(), whole);
        }
    }
}

#[test]
fn output_that_becomes_full_is_a_failure_and_leaves_nothing() {
    let (folder, path) = recorded();
    // Without room for a single byte, and without the signal that would end the process.
    let limited = "ulimit -f 0; exec \"$0\" trace \"$@\"";
    for command in [
        &["export", "--to", "csv", "-o", "csv"][..],
        &["export", "--to", "jsonl", "-o", "jsonl"],
        &["export", "--to", "ctf", "-o", "ctf"],
        &["cut", "-o", "cut"],
    ] {
        let mut shell = Command::new("sh");
        shell.args(["-c", limited, env!("CARGO_BIN_EXE_corebeat")]).args(command).arg(&path);
        let done = shell.current_dir(folder.path()).output().unwrap();
        let said = text(&done.stderr);
        assert_eq!((done.status.code(), said.lines().count()), (Some(125), 1), "{said}");
        let output = folder.path().join(command[command.len() - 1]);
        assert!(!output.exists(), "{}", output.display());
    }
}

#[test]
fn bad_files_get_one_clear_line() {
    let (folder, path) = recorded();
    let whole = fs::read(&path).unwrap();
    let bad = folder.path().join("bad.cbt");
    let write = |bytes: &[u8]| fs::write(&bad, bytes).unwrap();
    let all = [
        &["info"][..],
        &["cat"],
        &["stats"],
        &["export", "--to", "csv"],
        &["export", "--to", "chrome"],
    ];
    let kept = folder.path().join("kept");
    let refused_by_calls = |what: &str| {
        let (line, status) = refused(&["calls"], &bad, &[]);
        assert!(line.contains(what) && status == 1, "{status} {line}");
    };
    let refused_by_all = |what: &str, expected: i32| {
        for command in all {
            let (line, status) = refused(command, &bad, &[]);
            assert!(line.contains(what) && status == expected, "{command:?}: {status} {line}");
        }
    };
    write(b"");
    refused_by_all("not a Corebeat trace: name a file", 1);
    write(b"#!/bin/sh\necho no trace at all\n");
    refused_by_all("not a Corebeat trace: name a file", 1);
    let mut later = whole.clone();
    later[8] = 9;
    write(&later);
    refused_by_all("version 9", 1);
    // The whole trace, followed by other data.
    write(&[&whole[..], b"more"].concat());
    refused_by_all(&format!("data after byte {} is not part of the trace", whole.len()), 0);
    // The file ends within a packet: the packets before it are valid.
    write(&whole[..whole.len() - 100]);
    refused_by_all("unfinished: complete up to byte", 0);
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 4;
    write(&flipped);
    refused_by_all("damaged at byte", 1);
    let mut huge = whole.clone();
    huge[16 + 12..16 + 16].copy_from_slice(&u32::MAX.to_le_bytes());
    write(&huge);
    refused_by_all("damaged at byte 16", 1);
    refused_by_calls("damaged at byte 16");
    // A file that is not a trace leaves the output unchanged.
    write(b"nothing");
    fs::write(&kept, b"kept").unwrap();
    for command in [&["cut"][..], &["export", "--to", "chrome"], &["export", "--to", "csv"]] {
        refused(command, &bad, &["-o", kept.to_str().unwrap()]);
        assert_eq!(fs::read(&kept).unwrap(), b"kept");
    }
    refused_by_calls("not a Corebeat trace");
    let (line, status) = refused(&["cat"], Path::new("/dev/null"), &[]);
    assert!(line.contains("save it to a file") && status == 2, "{line}");
    let gone = folder.path().join("gone.cbt");
    for file in [gone.as_path(), folder.path()] {
        assert_eq!(refused(&["info"], file, &[]).1, 2);
    }
}

#[test]
fn transactions_are_reported_from_whole_traces_and_from_bad_ones() {
    use corebeat_stm::trace::{Detail, name, set};
    use corebeat_stm::{TCell, atomically};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("stm.cbt");
    let traced = Options::default().create(&path).unwrap();
    traced.install().unwrap();
    set(Detail::Full);
    let account = [TCell::new(0u64)];
    name(&account, "account");
    let mut fails = true;
    for _ in 0..1000 {
        atomically(|tx| {
            let n = tx.read(&account[0])?;
            if std::mem::take(&mut fails) {
                std::thread::scope(|scope| {
                    scope.spawn(|| atomically(|tx| tx.write(&account[0], 7)));
                });
            }
            tx.write(&account[0], n + 1)
        });
    }
    set(Detail::Off);
    traced.finish().unwrap();
    let svg = folder.path().join("timeline.svg");
    let report = printed(&["stm"], &path, &["--svg", svg.to_str().unwrap()]);
    for expected_text in
        ["commits   1001, aborts 1:", "100.0%  account\n", "trace.rs:", "extension", "timeline, "]
    {
        assert!(report.contains(expected_text), "{expected_text} in {report}");
    }
    assert!(fs::read_to_string(&svg).unwrap().ends_with("</svg>\n"));
    let whole = fs::read(&path).unwrap();
    let (line, status) = refused(&["stm"], &path, &["--svg", path.to_str().unwrap()]);
    assert!(line.contains("is named twice") && status == 2, "{status} {line}");
    assert_eq!(fs::read(&path).unwrap(), whole);
    let bad = folder.path().join("bad.cbt");
    let refused = |bytes: &[u8], what: &str, expected: i32| {
        fs::write(&bad, bytes).unwrap();
        let (line, status) = refused(&["stm"], &bad, &[]);
        assert!(line.contains(what) && status == expected, "{status} {line}");
    };
    refused(b"", "not a Corebeat trace", 1);
    refused(&whole[..200], "the trace has no transactions", 1);
    refused(&whole[..whole.len() - 4], "unfinished: complete up to byte", 0);
    let mut flipped = whole.clone();
    let last = whole.len() - 4;
    flipped[last] ^= 1;
    refused(&flipped, "damaged at byte", 1);
    let (_folder, other) = recorded();
    assert!(self::refused(&["stm"], &other, &[]).0.contains("the trace has no transactions"));
}

#[test]
fn demo_traces_a_bank_and_has_others_open_it() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("kept");
    let demo = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_corebeat"));
        command
            .args(["demo", "trace", "--transactions", "200"])
            .args(more)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };
    let output = demo(&["--output", kept.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let expected_text = text(&output.stdout);
    for part in ["commits   ", "times smaller", "babeltrace2", "corebeat trace"] {
        assert!(expected_text.contains(part), "{part} in {expected_text}");
    }
    assert!(kept.join("ctf/metadata").exists());
    printed(&["stm"], &kept.join("bank.cbt"), &[]);
    // The command must not overwrite the trace.
    assert_eq!(demo(&["--output", kept.to_str().unwrap()]).status.code(), Some(2));
}

#[test]
fn demo_that_is_ended_by_a_signal_leaves_no_folder_behind() {
    use rustix::process::{Pid, Signal, kill_process};
    use std::os::unix::process::ExitStatusExt;
    let demos: [&[&str]; 2] =
        [&["demo", "trace", "--transactions", "1000000"], &["demo", "goals", "--scale", "16"]];
    for demo in demos {
        for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::ALARM] {
            let (folder, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let is_empty = || fs::read_dir(folder.path()).unwrap().next().is_none();
            let mut command = Command::new(env!("CARGO_BIN_EXE_corebeat"));
            command.args(demo).env("TMPDIR", folder.path()).env("COREBEAT_STATE_DIR", state.path());
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
            corebeat_test_group::reset_signals(&mut command);
            let mut child = command.spawn().unwrap();
            while is_empty() {
                assert!(
                    child.try_wait().unwrap().is_none(),
                    "{demo:?} was over before it had a folder"
                );
                std::thread::yield_now();
            }
            kill_process(Pid::from_child(&child), signal).unwrap();
            let output = child.wait_with_output().unwrap();
            assert_eq!(output.status.signal(), Some(signal.as_raw()), "{demo:?}");
            assert_eq!(text(&output.stderr), "", "{demo:?}");
            assert!(is_empty(), "{demo:?} {signal:?}");
        }
    }
}
