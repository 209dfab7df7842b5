//! `corebeat tune`, as a user and as a script run it.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Nothing here takes as long, on whatever machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Short runs that are as short as they can be.
const SHORT: [&str; 4] = ["--window", "20", "--serial", "20"];

/// A command that leaves its journal in a folder of its own.
fn command(folder: &tempfile::TempDir, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_corebeat"));
    command
        .arg("tune")
        .args(args)
        .env("COREBEAT_STATE_DIR", folder.path().join("state"))
        .stdin(Stdio::null());
    command
}

fn tune(args: &[&str]) -> Output {
    let short = if args.contains(&"--window") { &SHORT[2..] } else { &SHORT[..] };
    command(&tempfile::tempdir().unwrap(), &[short, args].concat()).output().unwrap()
}

fn told(done: &Output) -> String {
    String::from_utf8_lossy(&done.stderr).into_owned()
}

fn json(done: &Output) -> Value {
    serde_json::from_slice(&done.stdout).unwrap_or_else(|e| panic!("{e}: {}", told(done)))
}

#[test]
fn tune_of_what_makes_no_sense_is_a_usage_error() {
    for (args, says) in [
        (&["--", "true", "8"][..], "{threads}"),
        (&["--max", "0", "--", "true", "{threads}"], "--max"),
        (&["--min", "0", "--", "true", "{threads}"], "--min"),
        (&["--step", "0", "--", "true", "{threads}"], "--step"),
        (&["--min", "3", "--max", "2", "--", "true", "{threads}"], "below"),
        (&["--env", "A=B", "--", "true"], "A=B"),
        (&["--env", "", "--", "true"], "variable"),
        (&["--"], "PROGRAM"),
        (&["--window", "-5", "--", "true", "{threads}"], "write a whole number in digits"),
        (&["--policy", "coscheduling", "--", "true", "{threads}"], "coscheduling is for several programs"),
        (&["--policy", "adapt", "--", "true", "{threads}"], "adapt is for several programs"),
    ] {
        let done = tune(args);
        assert_eq!(done.status.code(), Some(2), "{args:?}: {}", told(&done));
        assert!(told(&done).contains(says), "{args:?}: {}", told(&done));
    }
}

#[test]
fn tune_of_what_cannot_be_started_has_the_status_that_env_has() {
    for (program, status) in [("/no/such/program", 127), ("/", 126), ("/dev/null", 126)] {
        let done = tune(&["--", program, "{threads}"]);
        assert_eq!(done.status.code(), Some(status), "{program}: {}", told(&done));
        assert_eq!(told(&done).lines().count(), 1, "{}", told(&done));
    }
}

#[test]
fn plot_that_cannot_be_made_is_told_before_the_program_runs() {
    let folder = tempfile::tempdir().unwrap();
    let ran = folder.path().join("ran{threads}");
    let done =
        command(&folder, &["--plot", "/no/such/folder/plot.svg", "--", "touch"]).arg(&ran).output().unwrap();
    assert_eq!(done.status.code(), Some(2), "{}", told(&done));
    assert!(told(&done).contains("/no/such/folder/plot.svg") && told(&done).lines().count() == 1);
    assert!(!folder.path().join("ran1").exists());
}

#[test]
fn plot_is_drawn_and_one_that_cannot_be_written_leaves_the_status_alone() {
    let folder = tempfile::tempdir().unwrap();
    let plot = folder.path().join("plot.svg");
    let args = |plot| ["--max", "2", "--plot", plot, "--", "sh", "-c", "exit 0", "{threads}"];
    let done = tune(&args(plot.to_str().unwrap()));
    assert_eq!(done.status.code(), Some(0), "{}", told(&done));
    assert!(std::fs::read_to_string(&plot).unwrap().contains("</svg>"));
    let full = tune(&args("/dev/full"));
    assert_eq!(full.status.code(), Some(0), "{}", told(&full));
    assert!(told(&full).contains("/dev/full"));
}

#[test]
fn tune_puts_the_count_into_arguments_and_variables() {
    let script = r#"echo "[$1 $COUNT]"; sleep 0.1"#;
    let done = tune(&["--max", "2", "--env", "COUNT", "--", "sh", "-c", script, "sh", "{threads}+{threads}"]);
    assert_eq!(done.status.code(), Some(0), "{}", told(&done));
    let printed = String::from_utf8_lossy(&done.stdout).into_owned();
    // Short runs print nothing: this is the full run.
    assert!(["[1+1 1]\n", "[2+2 2]\n"].contains(&printed.as_str()), "{printed}");
    assert!(told(&done).contains("best: "), "{}", told(&done));
}

#[test]
fn tune_gives_each_run_the_input_and_does_not_take_its_command_for_the_program() {
    let cat = ["--", "sh", "-c", "cat", "{threads}"];
    let done = tune(&[&["--max", "1", "--input", "echo hello; sleep 0.1; echo world"], &cat[..]].concat());
    assert_eq!(done.status.code(), Some(0), "{}", told(&done));
    assert_eq!(String::from_utf8_lossy(&done.stdout), "hello\nworld\n");
    // The shell and what it starts are there for as long as the program.
    let done = tune(&[
        "--max",
        "2",
        "--json",
        "--input",
        "sleep 600; :",
        "--search-only",
        "--",
        "sleep",
        "60{threads}",
    ]);
    let notes = json(&done)["notes"].to_string();
    assert!(notes.contains("still one"), "the program has one thread: {notes}");
}

#[test]
fn tune_in_json_is_one_object_whose_fields_the_book_explains() {
    let done = tune(&["--max", "2", "--json", "--", "sh", "-c", "echo noise; sleep 0.1", "{threads}"]);
    assert_eq!(done.status.code(), Some(0));
    assert_eq!(told(&done), "noise\n");
    let tuned = json(&done);
    let book = include_str!("../../../../docs/tune.md").split_once("## JSON").unwrap().1;
    let fields = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let mut all = fields(&tuned);
    all.extend(fields(&tuned["rows"][0]));
    all.extend(fields(&tuned["rows"][0]["trial"]["ran"]));
    for field in &all {
        assert!(book.contains(&format!("`{field}`")) || book.contains(&format!("\"{field}\"")), "{field}");
    }
    assert_eq!(tuned["rows"][0]["threads"], 1);
    assert!(tuned["best"].as_u64().is_some_and(|n| n == 1 || n == 2));
    assert_eq!(tuned["run"]["ended"]["exit"], 0);
    assert!((0.0..=1.0).contains(&tuned["search_share"].as_f64().unwrap()));
}

#[test]
fn tune_of_a_program_that_fails_at_some_counts_leaves_them_out() {
    for (fail, why) in [("exit 3", "exit status 3"), ("kill -TERM $$; sleep 60", "signal 15")] {
        let script = format!("if [ $1 -gt 1 ]; then {fail}; fi; sleep 60");
        let search =
            ["--max", "3", "--step", "1", "--search-only", "--json", "--", "sh", "-c", &script, "sh"];
        // Long enough for the failure to be seen, on whatever machine; the one that does not fail is ended by then.
        let args = [&["--window", "2000"], &search[..], &["{threads}"]].concat();
        let done = command(&tempfile::tempdir().unwrap(), &args).output().unwrap();
        assert_eq!(done.status.code(), Some(0), "{}", told(&done));
        let tuned = json(&done);
        assert_eq!(tuned["best"], 1, "{tuned}");
        assert_eq!(tuned["rows"].as_array().unwrap().len(), 3, "{tuned}");
        assert_eq!(tuned["rows"][2]["trial"]["failed"], why, "{tuned}");
        assert!(tuned["notes"].to_string().contains("left out"), "{tuned}");
    }
}

#[test]
fn tune_of_a_program_that_always_fails_says_so_and_runs_nothing() {
    let done = tune(&["--window", "60000", "--max", "2", "--json", "--", "sh", "-c", "exit 3", "{threads}"]);
    assert_eq!(done.status.code(), Some(125), "{}", told(&done));
    let tuned = json(&done);
    assert!(tuned["best"].is_null() && tuned["run"].is_null(), "{tuned}");
    assert!(told(&done).contains("try it by hand"), "{}", told(&done));
}

#[test]
fn tune_of_a_program_that_ends_at_once_measures_what_there_is() {
    let done = tune(&["--window", "60000", "--max", "2", "--", "true", "{threads}"]);
    assert_eq!(done.status.code(), Some(0), "{}", told(&done));
    assert!(told(&done).contains("ended"), "{}", told(&done));
}

#[test]
fn tune_that_is_interrupted_ends_by_the_signal_whatever_the_program_makes_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let pid = folder.path().join("pid");
    let script = r#"trap 'exit 1' TERM; echo $$ >"$0.new"; mv "$0.new" "$0"; sleep 600 & wait"#;
    let mut tune = command(
        &folder,
        &["--window", "600000", "--max", "2", "--plot", "new.svg", "--", "sh", "-c", script],
    )
    .current_dir(&folder)
    .arg(&pid)
    .arg("{threads}")
    .spawn()
    .unwrap();
    let begin = Instant::now();
    while !pid.exists() {
        assert!(begin.elapsed() < PATIENCE, "the program has not started");
        std::thread::sleep(Duration::from_millis(10));
    }
    kill_process(Pid::from_child(&tune), Signal::TERM).unwrap();
    let status = tune.wait().unwrap();
    assert_eq!(status.signal(), Some(Signal::TERM.as_raw()), "{status}");
    let program = std::fs::read_to_string(&pid).unwrap();
    assert!(!std::path::Path::new("/proc").join(program.trim()).exists(), "the program goes on");
    assert!(!folder.path().join("new.svg").exists(), "a plot of nothing is left");
}
