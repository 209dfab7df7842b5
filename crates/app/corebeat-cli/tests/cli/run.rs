//! `corebeat run` from the command line.

use crate::top::{OnTerminal, take_terminal};
use crate::{
    COREBEAT, Running, assert_refused, command, command_of, corebeat, ending_signals, groups_of,
    is_root, left, report, send, signal, stderr, stdout, unprivileged, until,
};
use corebeat_test_group::compile;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

fn run(args: &[&str]) -> Output {
    corebeat(&[&["run"], args].concat())
}

#[test]
fn invalid_command_lines_are_usage_errors() {
    for args in [
        &[][..],
        &["--"],
        &["--period", "0", "--", "true"],
        &["--policy", "no-such", "--", "true"],
        &["--report", "xml", "--", "true"],
        &["--report", "none", "--report-file", "report", "--", "true"],
        &["--memory", "interleave:9999", "--", "true"],
        &["--period", "-5", "--", "true"],
    ] {
        let done = run(args);
        assert_refused(&done, 2, "");
        assert!(done.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn invalid_number_is_refused_with_its_range_of_signs() {
    for (args, expected) in [
        (["--nice", "abc"], "write a whole number in digits; see"),
        (["--nice", "-"], "write a whole number in digits; see"),
        (["--period", "-5"], "write a whole number without a sign; see"),
        (["--period", "five"], "write a whole number in digits; see"),
    ] {
        assert_refused(&run(&[&args[..], &["--", "true"]].concat()), 2, expected);
    }
}

#[test]
fn run_of_what_cannot_be_started_has_the_status_that_env_has() {
    for (program, status, says) in [
        ("/no/such/program", 127, "does not exist"),
        ("", 127, "does not exist"),
        ("/", 126, "cannot run '/'"),
        ("/dev/null", 126, "cannot run"),
    ] {
        assert_refused(&run(&["--", program]), status, says);
    }
}

#[test]
fn run_gives_back_exit_status_and_signal() {
    assert_eq!(run(&["--", "sh", "-c", "exit 7"]).status.code(), Some(7));
    let killed = run(&["--report", "json", "--", "sh", "-c", "kill -TERM $$"]);
    assert_eq!(killed.status.signal(), Some(15));
    assert_eq!(report(&killed)["ended"]["signal"], 15);
}

#[test]
fn run_leaves_streams_and_arguments_alone() {
    let folder = tempfile::tempdir().unwrap();
    let script = "cat; echo why >&2";
    let mut cat = command(folder.path(), &["run", "--report", "none", "--", "sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    cat.stdin.take().unwrap().write_all(b"\xffbytes\0").unwrap();
    let done = cat.wait_with_output().unwrap();
    assert_eq!((&done.stdout[..], &done.stderr[..]), (&b"\xffbytes\0"[..], &b"why\n"[..]));

    let broken = OsStr::from_bytes(b"a\xffb");
    let printf = ["run", "--report", "json", "--", "printf", "%s"];
    let done = command(folder.path(), &printf).arg(broken).output().unwrap();
    assert_eq!(done.stdout, b"a\xffb");
    assert_eq!(report(&done)["command"][2], "a\u{fffd}b");
}

#[test]
fn report_has_the_fields_that_the_book_explains() {
    let book = include_str!("../../../../../docs/run.md");
    let section = book.split_once("## The report").unwrap().1;
    let table = section.lines().skip_while(|l| !l.starts_with('|'));
    let rows = table.take_while(|l| l.starts_with('|')).filter_map(|l| l.split('|').nth(1));
    let explained: BTreeSet<&str> =
        rows.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    let done = run(&["--report", "json", "--", "true"]);
    let report = report(&done);
    let fields: BTreeSet<&str> = report.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(fields, explained);
    assert_eq!(report["ended"]["exit"], 0);
    assert!(report["wall_s"].as_f64().unwrap() > 0.0);
    for (field, wanted) in [
        ("shares", "user system lock park wait sleep spin"),
        (
            "counters",
            "voluntary_switches involuntary_switches migrations cache_references cache_misses instructions",
        ),
    ] {
        let fields: BTreeSet<&str> =
            report[field].as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(fields, wanted.split(' ').collect(), "{field}");
    }
}

#[test]
fn double_dash_separates_programs_and_an_escaped_one_is_an_argument() {
    let two = ["--", "printf", "a", "--", "printf", "b"];
    let refused = run(&[&["--policy", "team"], &two[..]].concat());
    assert_refused(&refused, 2, "acts on one program");
    assert!(refused.stdout.is_empty());
    for policy in ["auto", "none"] {
        let accepted = run(&[&["--policy", policy, "--report", "json"], &two[..]].concat());
        let report = report(&accepted);
        assert_eq!(report["programs"].as_array().unwrap().len(), 2, "{report}");
    }
    let escaped = run(&["--report", "none", "--", "printf", "%s|", "a", r"\--", "b"]);
    assert_eq!((escaped.stdout.as_slice(), escaped.status.code()), (&b"a|--|b|"[..], Some(0)));
}

#[test]
fn report_is_a_table_by_default_and_names_the_program() {
    for policy in ["auto", "none", "team", "faithful", "tranquilizer", "shuffler"] {
        let done = run(&["--policy", policy, "--", "true"]);
        assert!(stderr(&done).contains("corebeat: true: "), "{}", stderr(&done));
        assert!(stderr(&done).contains(&format!("policy {policy}")), "{}", stderr(&done));
    }
}

#[test]
fn shuffler_notes_that_it_is_idle_on_one_cache() {
    let done = run(&["--policy", "shuffler", "--", "true"]);
    let caches: BTreeSet<u32> =
        corebeat_linux::topology().cpus().iter().map(|cpu| cpu.cache).collect();
    assert_eq!(
        stderr(&done).contains("shuffler: all CPUs share one"),
        caches.len() == 1,
        "{}",
        stderr(&done)
    );
    let cpu = corebeat_linux::Allowance::of_this_process().cpus.iter().next().unwrap().0;
    let done = run(&["--policy", "shuffler", "--cpus", &cpu.to_string(), "--", "true"]);
    assert!(stderr(&done).contains("shuffler: all CPUs share one"), "{}", stderr(&done));
}

#[test]
fn report_file_that_cannot_be_created_is_reported_before_the_program_runs() {
    let folder = tempfile::tempdir().unwrap();
    let ran = folder.path().join("ran");
    let touch = ["run", "--report-file", "/no/such/folder/report", "--", "touch"];
    let done = command(folder.path(), &touch).arg(&ran).output().unwrap();
    assert_refused(&done, 2, "/no/such/folder/report");
    assert!(!ran.exists());
}

#[test]
fn output_that_would_replace_the_program_or_its_input_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    std::fs::write(&program, "#!/bin/sh\nexit 7\n").unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(folder.path().join("data"), "data").unwrap();
    let commands = [
        &["run", "--report-file", "program", "--", "./program"][..],
        &["run", "--report-file", "./program", "--", "program"],
        &["run", "--policy", "none", "--report-file", "program", "--", "true", "--", "./program"],
        &["run", "--report-file", "data", "--", "cat"],
        &["run", "--report-file", "program", "--", "sh", "program"],
        &["tune", "--plot", "program", "--", "sh", "./program", "{threads}"],
        &["run", "--report-file", "output", "--", "./program"],
        &["run", "--report-file", "error", "--", "./program"],
        &["tune", "--plot", "program", "--", "./program", "{threads}"],
        &["tune", "--plot", "data", "--", "./program", "{threads}"],
    ];
    for args in commands {
        let mut corebeat = command(folder.path(), args);
        corebeat.env("PATH", format!("{}:/usr/bin:/bin", folder.path().display()));
        corebeat.stdin(File::open(folder.path().join("data")).unwrap());
        let stream =
            |name| File::options().append(true).create(true).open(folder.path().join(name));
        corebeat.stdout(stream("output").unwrap());
        let done = match args.contains(&"error") {
            true => {
                corebeat.stderr(stream("error").unwrap());
                let status = corebeat.status().unwrap();
                let stderr = std::fs::read(folder.path().join("error")).unwrap();
                Output { status, stdout: vec![], stderr }
            }
            false => corebeat.output().unwrap(),
        };
        assert_refused(&done, 2, "name a different file");
        assert!(std::fs::read_to_string(&program).unwrap().starts_with("#!"), "{args:?}");
        assert_eq!(std::fs::read_to_string(folder.path().join("data")).unwrap(), "data");
    }
    // Two programs may be one file.
    let twice = ["--policy", "none", "--report-file", "new", "--", "./program", "--", "./program"];
    let done = command(folder.path(), &[&["run"], &twice[..]].concat()).output().unwrap();
    assert_eq!(done.status.code(), Some(7), "{}", stderr(&done));
}

#[test]
fn report_file_contains_the_report_and_a_full_disk_does_not_change_the_status() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    let path = file.to_str().unwrap();
    let done = run(&["--report", "json", "--report-file", path, "--", "sh", "-c", "exit 7"]);
    assert_eq!((done.status.code(), stderr(&done).as_str()), (Some(7), ""));
    let report: Value = serde_json::from_reader(File::open(&file).unwrap()).unwrap();
    assert_eq!(report["ended"]["exit"], 7);

    let done = run(&["--report-file", "/dev/full", "--", "sh", "-c", "exit 7"]);
    assert_eq!(done.status.code(), Some(7));
    assert!(stderr(&done).contains("/dev/full"), "{}", stderr(&done));
}

#[test]
fn program_runs_although_corebeat_may_write_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let limited = |before: &str, args: &[&str]| {
        let script = format!("{before}ulimit -f 0; exec \"$0\" run \"$@\"");
        let mut shell = command_of(Path::new("/bin/sh"), folder.path(), &["-c", &script, COREBEAT]);
        shell.args(args).output().unwrap()
    };
    let exit = ["--", "sh", "-c", "exit 7"];
    for (options, reason) in [
        (&[][..], "OpenMP teams keep their sizes: "),
        (&["--report-file", "new"], "cannot write new: "),
    ] {
        let done = limited("", &[options, &exit].concat());
        assert_eq!(done.status.code(), Some(7), "{options:?} {}", stderr(&done));
        let line = stderr(&done).lines().find(|line| line.contains(reason)).map(str::to_owned);
        assert!(line.is_some_and(|l| l.contains("File too large")), "{}", stderr(&done));
    }
    assert!(left(folder.path()).is_empty() && !folder.path().join("new").exists());
    // The program inherits the action of the signal that Corebeat inherits.
    let write = ["--report", "none", "--", "sh", "-c", "echo text > file; exit 7"];
    assert_eq!(limited("", &write).status.signal(), Some(libc::SIGXFSZ));
    assert_eq!(limited("trap '' XFSZ; ", &write).status.code(), Some(7));
}

#[test]
fn report_that_cannot_be_written_does_not_change_the_status() {
    let folder = tempfile::tempdir().unwrap();
    let exit = ["run", "--", "sh", "-c", "exit 7"];
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    assert_eq!(command(folder.path(), &exit).stderr(full).status().unwrap().code(), Some(7));
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    assert_eq!(command(folder.path(), &exit).stderr(writer).status().unwrap().code(), Some(7));
}

#[test]
fn closed_standard_output_stays_closed_for_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let status = |script: &str, corebeat: &[&str]| {
        let mut shell = command_of(Path::new("/bin/sh"), folder.path(), &["-c", script]);
        shell.args(corebeat).stderr(Stdio::null()).stdout(Stdio::null()).status().unwrap().code()
    };
    let echo = ["sh", "-c", "echo text"];
    let without = status("exec \"$@\" >&-", &[&["sh"], &echo[..]].concat());
    let run = ["sh", COREBEAT, "run", "--report", "none", "--"];
    let with = status("exec \"$@\" >&-", &[&run[..], &echo].concat());
    assert_ne!(without, Some(0), "the shell reports the failed write");
    assert_eq!(with, without);
}

#[test]
fn program_runs_unobserved_if_descriptors_are_exhausted() {
    let folder = tempfile::tempdir().unwrap();
    let limited = "ulimit -n 12; exec \"$0\" run -- sh -c 'ulimit -n; exit 7'";
    let mut shell = command_of(Path::new("/bin/sh"), folder.path(), &["-c", limited, COREBEAT]);
    let done = shell.output().unwrap();
    assert_eq!((done.status.code(), stdout(&done).as_str()), (Some(7), "12\n"));
    assert!(stderr(&done).contains("limit of 12 open files"), "{}", stderr(&done));
    assert_eq!(stderr(&done).lines().count(), 1);
}

#[test]
fn corebeat_runs_with_the_smallest_stack_of_programs() {
    let folder = tempfile::tempdir().unwrap();
    let limited = "ulimit -s 64; exec \"$0\" run --report none -- sh -c 'ulimit -s'";
    let mut shell = command_of(Path::new("/bin/sh"), folder.path(), &["-c", limited, COREBEAT]);
    let done = shell.output().unwrap();
    assert_eq!(
        (done.status.code(), stdout(&done).as_str()),
        (Some(0), "64\n"),
        "{}",
        stderr(&done)
    );
}

#[test]
fn attached_process_is_observed_until_it_ends_or_a_signal_detaches() {
    let folder = tempfile::tempdir().unwrap();
    for end in [Some(libc::SIGINT), Some(libc::SIGALRM), None] {
        let detaches = end.is_some();
        let mut shell = Command::new("sh");
        let mut shell =
            Running::start(shell.args(["-c", "read line; exit 3"]).stdin(Stdio::piped()));
        let pid = shell.0.id().to_string();
        let args = ["run", "--policy", "none", "--report", "json", "--interval", "1", "-p", &pid];
        let mut run = command(folder.path(), &args);
        let mut run = run.stderr(Stdio::piped()).spawn().unwrap();
        // A line appears once the process is observed.
        let mut lines = BufReader::new(run.stderr.take().unwrap()).lines().map(Result::unwrap);
        assert!(lines.next().unwrap().contains("CPUs busy"));
        match end {
            Some(signal) => send(&run, signal),
            None => drop(shell.0.stdin.take()),
        }
        assert_eq!(run.wait().unwrap().code(), Some(0));
        let report = lines.find(|line| line.starts_with('{')).unwrap();
        let report: Value = serde_json::from_str(&report).unwrap();
        assert_eq!(report["ended"], if detaches { "detached" } else { "unknown" });
        assert_eq!(report["threads_seen"], 1);
        assert_eq!(shell.0.try_wait().unwrap().is_none(), detaches, "the process goes on");
        assert!(left(folder.path()).is_empty());
    }
    let ended = run(&["-p", "2147483647"]);
    assert_refused(&ended, 2, "does not exist");
    let own = std::process::id().to_string();
    assert_refused(&run(&["-p", "1", "-p", &own]), 2, "acts on one process");
    assert_refused(&run(&["-p", "1", "-p", "1"]), 2, "process 1 is named twice");
    assert_refused(&run(&["-p", "0"]), 2, "0 is no process number");
    assert_refused(&run(&["-p", "+1"]), 2, "no program named '+1'");
    assert_refused(&run(&["-p", "1", "--", "true"]), 2, "cannot be used with");
}

/// Copies a program under a name that no other process has, and returns the name.
fn unique_copy(program: &str, folder: &Path) -> String {
    // The kernel keeps 15 bytes of the name.
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("cb{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::SeqCst));
    // By another process: a child of another test may inherit a descriptor that is open for
    // writing, and the copy could not be executed.
    let copied = Command::new("cp").arg(program).arg(folder.join(&name)).status().unwrap();
    assert!(copied.success());
    name
}

/// Starts a shell with this executable, and waits until it runs.
fn named_shell(program: &Path) -> Running {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new(program);
    command.arg0("sh").args(["-c", "read line"]).stdin(Stdio::piped());
    let shell = Running::start(&mut command);
    let exe = format!("/proc/{}/exe", shell.0.id());
    until(|| std::fs::read_link(&exe).is_ok_and(|path| path == program));
    shell
}

#[test]
fn process_is_selected_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let name = unique_copy("/bin/sh", folder.path());
    let run = |args: &[&str]| command(folder.path(), &[&["run"], args].concat());
    let refused = |args: &[&str]| run(args).output().unwrap();
    assert_refused(&refused(&["-p", &name]), 2, "there is no program named");
    let shells = [(); 2].map(|()| named_shell(&folder.path().join(&name)));
    let pids = [0, 1].map(|at| shells[at].0.id());
    let listed = format!("({}, {})", pids.iter().min().unwrap(), pids.iter().max().unwrap());
    assert_refused(&refused(&["-p", &name]), 2, &format!("-p names 2 {listed}"));
    let first = pids[0].to_string();
    let twice = refused(&["--policy", "none", "-p", &name, "-p", &first]);
    assert_refused(&twice, 2, &format!("process {first} is named twice"));
    let args = ["--policy", "none", "--report", "json", "--interval", "1", "-p", &name];
    let mut both = Running::start(run(&args).stderr(Stdio::piped()));
    let mut lines = BufReader::new(both.0.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.next().unwrap().contains("CPUs busy"), "both are observed");
    drop(shells);
    assert_eq!(both.0.wait().unwrap().code(), Some(0));
    let report = lines.find(|line| line.starts_with('{')).unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["programs"].as_array().unwrap().len(), 2, "{report}");
    assert!(left(folder.path()).is_empty());
}

#[test]
fn corebeat_does_not_select_itself_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let name = unique_copy(COREBEAT, folder.path());
    let own = command_of(&folder.path().join(&name), folder.path(), &["run", "-p", &name]).output();
    assert_refused(&own.unwrap(), 2, "is this one");
}

#[test]
fn repeated_requests_to_end_do_not_lose_the_report() {
    let folder = tempfile::tempdir().unwrap();
    let sleeper = Running::start(Command::new("sh").args(["-c", "read x"]).stdin(Stdio::piped()));
    let pid = sleeper.0.id().to_string();
    let mut run = command(folder.path(), &["run", "--interval", "1", "-p", &pid]);
    let mut run = Running::start(run.stderr(Stdio::piped()));
    let mut lines = BufReader::new(run.0.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.next().unwrap().contains("CPUs busy"), "the process is observed");
    // Signals without a pause, until Corebeat has ended.
    let status = loop {
        match run.0.try_wait().unwrap() {
            Some(status) => break status,
            None => signal(&run.0, Signal::TERM),
        }
    };
    assert_eq!(status.code(), Some(0), "{status}");
    assert!(lines.any(|line| line.contains("policy auto")));
}

#[test]
fn idle_threads_of_a_pool_are_parked_and_wait_for_no_lock() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("wait");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../act/corebeat-linux/tests/wait.c");
    let arguments = ["-O1", "-pthread"];
    assert!(compile("gcc", &arguments, Path::new(source), &program), "the test requires gcc");
    let args = ["run", "--policy", "none", "--report", "json", "--interval", "1", "--"];
    let mut run = command(folder.path(), &args);
    run.arg(&program).arg("pool").stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut run = Running::start(&mut run);
    let mut lines = BufReader::new(run.0.stderr.take().unwrap()).lines().map(Result::unwrap);
    // A line without parked threads may describe the start of the program.
    let is_parked = |line: &String| !line.contains("park 0.0%") && !line.contains("unknown");
    let parked = lines.by_ref().take(60).find(is_parked);
    drop(run.0.stdin.take());
    assert_eq!(run.0.wait().unwrap().code(), Some(0));
    let report = lines.find(|line| line.starts_with('{')).unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    // Of seven threads, one reads the input.
    let share = |name: &str| report["shares"][name].as_f64().unwrap();
    assert!(parked.is_some() && share("park") > 0.5 && share("lock") < 0.1, "{report}");
}

#[test]
fn process_of_another_user_is_observed_with_one_note_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let other = Running::start(Command::new("sh").args(["-c", "read x"]).stdin(Stdio::piped()));
    // Without root, the first process belongs to another user.
    let pid = if is_root() { other.0.id() } else { 1 }.to_string();
    let is_observed = |subject: &str, pid: &str| {
        let mut run = unprivileged(folder.path(), &["run", "--interval", "1", "-p", subject]);
        let mut run = Running::start(run.stderr(Stdio::piped()));
        let mut lines = BufReader::new(run.0.stderr.take().unwrap()).lines().map(Result::unwrap);
        let note = format!("corebeat: process {pid} belongs to another user");
        assert!(lines.next().unwrap().starts_with(&note));
        assert!(lines.next().unwrap().contains("CPUs busy"), "the process is observed");
        signal(&run.0, Signal::INT);
        assert_eq!(run.0.wait().unwrap().code(), Some(0));
    };
    is_observed(&pid, &pid);
    if is_root() {
        // The name in the kernel: the executable of another user's process is unknown.
        let copies = tempfile::tempdir().unwrap();
        let name = unique_copy("/bin/sh", copies.path());
        let other = named_shell(&copies.path().join(&name));
        let name = std::fs::read_to_string(format!("/proc/{}/comm", other.0.id())).unwrap();
        is_observed(name.trim_end(), &other.0.id().to_string());
    }
}

#[test]
fn missing_state_folder_is_no_failed_restoration() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = unprivileged(folder.path(), &["run", "--policy", "none", "--", "true"]);
    run.env_remove("COREBEAT_STATE_DIR").env_remove("XDG_STATE_HOME").env("HOME", "/nonexistent");
    let done = run.output().unwrap();
    assert!(done.status.success() && !stderr(&done).contains("restored"), "{}", stderr(&done));
}

#[test]
fn exact_locks_that_are_not_available_are_reported_without_a_report() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["run", "--exact-locks", "--report", "none", "--", "true"];
    let done = unprivileged(folder.path(), &args).output().unwrap();
    assert_eq!(stderr(&done).lines().count(), 1, "{}", stderr(&done));
    assert!(stderr(&done).starts_with("corebeat: lock time is sampled: "), "{}", stderr(&done));
}

#[test]
fn names_of_programs_reach_the_terminal_without_control_characters() {
    let folder = tempfile::tempdir().unwrap();
    let name = "a\nb\u{1b}[2J";
    let program = folder.path().join(name);
    std::fs::write(&program, "#!/bin/sh\n").unwrap();
    let path = program.to_str().unwrap();
    let missing = format!("{path}x");
    for programs in [&["--", path][..], &["--", path, "--", path], &["--", &missing]] {
        let mut chmod = Command::new("chmod");
        assert!(chmod.arg("+x").arg(&program).status().unwrap().success());
        let args = [&["run", "--policy", "none"], programs].concat();
        let text = stderr(&command(folder.path(), &args).output().unwrap());
        assert!(text.contains(r"a\nb\u{1b}[2J") && !text.contains('\u{1b}'), "{text}");
    }
}

#[test]
fn interrupted_run_leaves_no_files_at_whatever_moment_the_signal_arrives() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..60 {
        let mut run = command(folder.path(), &["run", "--report", "none", "--", "sleep", "600"]);
        let mut run = Running::start(run.env("XDG_RUNTIME_DIR", folder.path()));
        // A moment of the start.
        std::thread::sleep(std::time::Duration::from_micros(round * 500));
        signal(&run.0, Signal::INT);
        assert_eq!(run.0.wait().unwrap().signal(), Some(2));
        let files = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name());
        let files: Vec<_> = files.filter(|name| name != "state").collect();
        assert!(files.is_empty() && left(folder.path()).is_empty(), "round {round}: {files:?}");
    }
}

#[test]
fn signal_that_ends_the_program_ends_corebeat_which_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let quota = corebeat(&["run", "--report", "none", "--quota", "0.5", "--", "true"]);
    let quota: &[&str] = if quota.status.success() { &["--quota", "0.5"] } else { &[] };
    let program = ["--", "sh", "-c", "echo $$; exec sleep 600"];
    for end in ending_signals() {
        let args = [&["run", "--report", "none"], quota, &program].concat();
        let mut run = Running::start(command(folder.path(), &args).stdout(Stdio::piped()));
        let mut pid = String::new();
        BufReader::new(run.0.stdout.take().unwrap()).read_line(&mut pid).unwrap();
        send(&run.0, end);
        assert_eq!(run.0.wait().unwrap().signal(), Some(end));
        assert!(left(folder.path()).is_empty() && groups_of(run.0.id()).is_empty(), "signal {end}");
        assert!(!Path::new("/proc").join(pid.trim()).exists(), "signal {end}");
    }
}

#[test]
fn program_ends_with_the_terminal_of_which_corebeat_is_the_leader() {
    let folder = tempfile::tempdir().unwrap();
    for args in [
        &["run", "--report", "none", "--"][..],
        &["run", "--report", "none", "--policy", "none", "--"],
    ] {
        let args = [args, &["sh", "-c", "echo pid $$.; exec sleep 600"]].concat();
        let mut leader = command(folder.path(), &args);
        take_terminal(&mut leader);
        let mut run = OnTerminal::of(&mut leader);
        run.until(".\r\n");
        assert_eq!(run.hang_up().signal(), Some(Signal::HUP.as_raw()));
        assert!(left(folder.path()).is_empty());
    }
}

#[test]
fn signal_of_the_program_to_its_group_does_not_end_corebeat() {
    let folder = tempfile::tempdir().unwrap();
    for signal in ["TERM", "ALRM"] {
        let script = format!("trap : {signal}; kill -{signal} 0; exit 4");
        let args = ["run", "--report", "none", "--", "sh", "-c", &script];
        let mut run = Running::start(&mut command(folder.path(), &args));
        assert_eq!(run.0.wait().unwrap().code(), Some(4), "{signal}");
        assert!(left(folder.path()).is_empty(), "{signal}");
    }
}

#[test]
fn lines_that_nobody_reads_do_not_delay_the_run() {
    let (_reader, writer) = std::io::pipe().unwrap();
    rustix::fs::fcntl_setfl(&writer, rustix::fs::OFlags::NONBLOCK).unwrap();
    while rustix::io::write(&writer, &[b'x'; 4096]).is_ok() {}
    rustix::fs::fcntl_setfl(&writer, rustix::fs::OFlags::empty()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    // Two lines are due before the program ends.
    let script = "sleep 2.5; exit 4";
    let args = ["run", "--interval", "1", "--report", "none", "--", "sh", "-c", script];
    let mut run = Running::start(command(folder.path(), &args).stderr(writer));
    assert_eq!(run.0.wait().unwrap().code(), Some(4));
}

/// Waits until a process is in this state.
fn until_in_state(pid: u32, state: &str) {
    until(|| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit_once(") ").unwrap().1.starts_with(state)
    });
}

#[test]
fn time_for_which_job_control_stops_the_program_is_in_no_share() {
    let folder = tempfile::tempdir().unwrap();
    let script = "kill -TSTP $$; i=0; while [ $i -lt 500000 ]; do i=$((i+1)); done";
    let args = ["run", "--policy", "none", "--report", "json", "--", "sh", "-c", script];
    let mut run = command(folder.path(), &args);
    let mut run = Running::start(run.stderr(Stdio::piped()));
    until_in_state(run.0.id(), "T");
    // The time of the stop is what the test measures.
    std::thread::sleep(std::time::Duration::from_secs(3));
    kill_process_group(Pid::from_raw(run.1.id()).unwrap(), Signal::CONT).unwrap();
    let mut text = String::new();
    run.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    let report: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let share = |name: &str| report["shares"][name].as_f64().unwrap();
    assert!(report["wall_s"].as_f64().unwrap() > 3.0);
    assert!(share("user") + share("system") + share("wait") > 0.5, "{report}");
    // On a busy machine, Corebeat itself waits for a CPU and misses observations.
    let waited_s = report["watching_wait_s"].as_f64().unwrap_or(f64::INFINITY);
    let missed = report["notes"].to_string().contains("Corebeat observed");
    assert!(!missed || waited_s > 0.5, "{report}");
}

#[test]
fn several_programs_continue_after_a_stop() {
    let folder = tempfile::tempdir().unwrap();
    let script = "echo $$ > $0.new; mv $0.new $0; kill -TSTP $$; exit 0";
    let names = ["a", "b", "c"];
    let programs = names.iter().flat_map(|name| ["--", "sh", "-c", script, name]);
    let args = ["run", "--policy", "none", "--report", "none"].into_iter().chain(programs);
    let args: Vec<&str> = args.collect();
    for _ in 0..10 {
        let mut run = Running::start(&mut command(folder.path(), &args));
        // Corebeat stops when the first program has stopped, and may not have detected the others.
        for name in names {
            let file = folder.path().join(name);
            until(|| file.exists());
            until_in_state(std::fs::read_to_string(&file).unwrap().trim().parse().unwrap(), "T");
            std::fs::remove_file(file).unwrap();
        }
        until_in_state(run.0.id(), "T");
        // One signal: a second one would hide that Corebeat has stopped again.
        kill_process(Pid::from_raw(run.0.id() as i32).unwrap(), Signal::CONT).unwrap();
        until(|| run.0.try_wait().unwrap().is_some());
    }
}

#[test]
fn kernel_threads_are_not_programs() {
    // In a container, no kernel thread has a number.
    if std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n") {
        assert_refused(&run(&["-p", "2"]), 2, "process 2 is a kernel thread");
    }
}

#[test]
fn cpus_and_nice_value_are_those_of_the_program() {
    let cpu = corebeat_linux::topology().cpus()[0].id.0.to_string();
    let script = "nproc; nice";
    let before = Command::new("nice").output().unwrap();
    let before: i32 = stdout(&before).trim().parse().unwrap();
    let args = ["--report", "none", "--cpus", &cpu, "--nice", "3", "--", "sh", "-c", script];
    let done = run(&args);
    assert_eq!(stdout(&done), format!("1\n{}\n", (before + 3).min(19)), "{}", stderr(&done));
    assert_refused(&run(&["--cpus", "1000", "--", "true"]), 2, "CPUs 1000");
    let quotas = ["0", "1e-6", "1e300", "NaN"].map(|quota| ["--quota", quota]);
    for invalid in [["--cpus", ""], ["--cpus", "x"], ["--nice", "40"]].into_iter().chain(quotas) {
        assert_refused(&run(&[&invalid[..], &["--", "true"]].concat()), 2, "");
    }
}

#[test]
fn group_that_the_program_keeps_in_use_is_reported_and_removed_later() {
    let folder = tempfile::tempdir().unwrap();
    assert!(Command::new("mkfifo").arg(folder.path().join("fifo")).status().unwrap().success());
    // Leaves a process in a group below that of the program.
    let script = "group=$(sed -n 's/.*:\\(.*corebeat-.*\\)/\\1/p' /proc/self/cgroup | head -1); \
                  for root in /sys/fs/cgroup/cpu /sys/fs/cgroup; do \
                  mkdir $root$group/below && break; done 2>/dev/null; \
                  below=$root$group/below; \
                  [ ! -e $below/cgroup.type ] || echo threaded > $below/cgroup.type; \
                  sh -c \"echo \\$\\$ > $below/cgroup.procs; read line < fifo\" 2> /dev/null & \
                  until grep -q . $below/cgroup.procs; do :; done";
    let args = ["run", "--report", "none", "--quota", "0.5", "--", "sh", "-c", script];
    let mut run = command(folder.path(), &args);
    let mut run = Running::start(run.stdout(Stdio::null()).stderr(Stdio::piped()));
    let mut line = String::new();
    run.0.stderr.take().unwrap().read_to_string(&mut line).unwrap();
    if run.0.wait().unwrap().code() == Some(125) {
        return println!("skipped: a quota ({line})");
    }
    assert!(line.starts_with("corebeat: not restored: control group "), "{line}");
    assert!(line.contains("/below below it") && line.lines().count() == 1, "{line}");
    let restore = || command(folder.path(), &["restore"]).output().unwrap();
    assert_eq!(restore().status.code(), Some(125));
    drop(OpenOptions::new().write(true).open(folder.path().join("fifo")).unwrap());
    until(|| restore().status.success());
    assert!(left(folder.path()).is_empty());
}

#[test]
fn quota_limits_the_program_or_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let script = "cat /proc/self/cgroup; echo threads $OMP_NUM_THREADS";
    let args = ["run", "--report", "json", "--quota", "0.5", "--", "sh", "-c", script];
    let done = command(folder.path(), &args).env("OMP_NUM_THREADS", "8").output().unwrap();
    match done.status.code() {
        Some(0) => {
            let text = stdout(&done);
            assert!(text.contains("/corebeat-") && text.ends_with("threads 1\n"), "{text}");
            let report = report(&done);
            assert!(report["throttled_s"].is_f64(), "{report}");
        }
        code => {
            assert_eq!((code, stderr(&done).lines().count()), (Some(125), 1), "{}", stderr(&done))
        }
    }
    assert!(left(folder.path()).is_empty());
}

#[test]
fn program_without_the_preloaded_library_has_no_variable_for_it() {
    let names = ["sh", "-c", "env | grep -c COREBEAT_TEAM"];
    let count = |options: &[&str]| {
        let args = [&["--report", "none", "--policy", "team"], options, &["--"], &names[..]];
        stdout(&run(&args.concat())).trim().to_owned()
    };
    assert_eq!((count(&[]), count(&["--no-preload"])), ("1".into(), "0".into()));
}

#[test]
fn reduced_thread_count_of_openmp_programs_is_noted() {
    let allowed = corebeat_linux::Allowance::of_this_process();
    let cpu = allowed.cpus.iter().last().unwrap().0.to_string();
    let notes = |options: &[&str], asked: &str| {
        let folder = tempfile::tempdir().unwrap();
        let args = [&["run", "--report", "json", "--cpus", &cpu], options, &["--", "sh", "-c"]];
        let script = ["echo $OMP_NUM_THREADS"];
        let mut run = command(folder.path(), &[&args.concat()[..], &script].concat());
        let done = run.env("OMP_NUM_THREADS", asked).output().unwrap();
        let notes = report(&done)["notes"].as_array().unwrap().clone();
        let note = notes.iter().filter_map(Value::as_str).find(|n| n.starts_with("OMP_NUM"));
        (stdout(&done).trim().to_owned(), note.map(str::to_owned))
    };
    let note = format!(
        "OMP_NUM_THREADS=8,2 was reduced to 1,2: the program may use CPUs {cpu}; --no-preload \
         keeps the value"
    );
    let quota = allowed.quota.map(|quota| format!("CPUs {cpu}, quota {quota:.2} CPUs"));
    let note = quota.map_or(note.clone(), |q| note.replace(&format!("CPUs {cpu}"), &q));
    assert_eq!(notes(&[], "8,2"), ("1,2".into(), Some(note)));
    assert_eq!(notes(&[], "1"), ("1".into(), None));
    assert_eq!(notes(&["--no-preload"], "8,2"), ("8,2".into(), None));
    assert_eq!(notes(&["--policy", "none"], "8,2"), ("8,2".into(), None));
}

/// Affinity, cpuset and quota limit the thread count that programs get.
#[test]
fn program_on_one_cpu_of_several_starts_one_thread() {
    let allowed = corebeat_linux::Allowance::of_this_process().cpus;
    let cpu = allowed.iter().last().unwrap().0.to_string();
    let folder = tempfile::tempdir().unwrap();
    for policy in ["none", "team", "auto"] {
        let args =
            ["-c", &cpu, COREBEAT, "run", "--report", "json", "--policy", policy, "--", "nproc"];
        let mut restricted = command_of(Path::new("taskset"), folder.path(), &args);
        let done = restricted.env_remove("OMP_NUM_THREADS").output().unwrap();
        assert_eq!(stdout(&done), "1\n", "{policy}: {}", stderr(&done));
        let report = report(&done);
        assert_eq!((&report["cpus"], &report["cpus_allowed"]), (&1.into(), &cpu.as_str().into()));
    }
}

#[test]
fn cpu_seconds_of_the_report_are_those_that_the_shell_accounts() {
    let compute = "i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done";
    let done =
        run(&["--report", "json", "--", "sh", "-c", &format!("{compute}; ({compute}); times")]);
    // User and system time of the shell, and of its children.
    let second = |text: &str| {
        let (minutes, seconds) = text.strip_suffix('s').unwrap().split_once('m').unwrap();
        minutes.parse::<f64>().unwrap() * 60.0 + seconds.parse::<f64>().unwrap()
    };
    let shell_s: f64 = stdout(&done).split_whitespace().map(second).sum();
    let report = report(&done);
    let seconds = |name: &str| report[name].as_f64().unwrap();
    let report_s = seconds("cpu_user_s") + seconds("cpu_system_s");
    // The shell prints its times before its end, in steps of a clock tick.
    assert!((report_s - shell_s).abs() <= 0.01 * shell_s + 0.05, "{report_s} and {shell_s}");
}

#[test]
fn corebeat_requests_a_short_slice_while_the_program_runs() {
    let has_slice = std::fs::read_to_string("/proc/self/sched").unwrap_or_default();
    let is_supported = std::thread::spawn(|| corebeat_linux::ShortSlice::request().is_some());
    if !has_slice.contains("se.slice") || !is_supported.join().unwrap() {
        return println!("skipped: this kernel has no slice for each thread");
    }
    // The request follows the start of the program.
    let script = "i=0; until grep -q 'se.slice *: *100000$' /proc/$PPID/sched; do sleep 0.01; \
                  i=$((i+1)); [ $i -lt 6000 ] || exit 1; done";
    let done = run(&["--policy", "none", "--", "sh", "-c", script]);
    assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
}

#[test]
fn detached_process_that_still_runs_is_noted() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    let made = command_of(Path::new("mkfifo"), folder.path(), &["fifo"]).status();
    assert!(made.unwrap().success());
    let script = "setsid sh -c 'i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; echo >ready; \
                  read x <fifo' >/dev/null 2>&1 & until [ -e ready ]; do sleep 0.01; done";
    let args = ["run", "--report", "json", "--", "sh", "-c", script];
    let done = command(folder.path(), &args).output().unwrap();
    // The process ends when it has a line.
    std::fs::write(&fifo, "end\n").unwrap();
    let report = report(&done);
    let notes = report["notes"].to_string();
    assert!(notes.contains("detached processes still run (1)"), "{notes}");
    assert!(notes.contains("so far, 0.") && !notes.contains("so far, 0.00 s"), "{notes}");
    // The switches of a program that ends before the first observation are known.
    assert!(report["counters"]["voluntary_switches"].is_u64(), "{report}");
}
