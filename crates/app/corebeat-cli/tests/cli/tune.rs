//! `corebeat tune` from the command line.

use crate::{Running, assert_refused, command, corebeat, json, signal, stderr, stdout, until};
use rustix::process::Signal;
use serde_json::Value;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Output, Stdio};

/// Options for the shortest possible runs.
const SHORT: [&str; 4] = ["--window", "20", "--serial", "20"];

fn tune(args: &[&str]) -> Output {
    let short = if args.contains(&"--window") { &SHORT[2..] } else { &SHORT[..] };
    corebeat(&[&["tune"], short, args].concat())
}

#[test]
fn invalid_command_lines_are_usage_errors() {
    for (args, says) in [
        (&["--", "true", "8"][..], "{threads}"),
        (&["--max", "0", "--", "true", "{threads}"], "--max"),
        (&["--min", "0", "--", "true", "{threads}"], "--min"),
        (&["--step", "0", "--", "true", "{threads}"], "--step"),
        (&["--repeat", "0", "--", "true", "{threads}"], "0 is not in 2..=1000"),
        (&["--repeat", "1", "--", "true", "{threads}"], "1 is not in 2..=1000"),
        (&["--repeat", "1001", "--", "true", "{threads}"], "1001 is not in 2..=1000"),
        (&["--repeat", "-1", "--", "true", "{threads}"], "--repeat"),
        (&["--repeat", "few", "--", "true", "{threads}"], "write a whole number in digits"),
        (&["--min", "3", "--max", "2", "--", "true", "{threads}"], "below"),
        (&["--env", "A=B", "--", "true"], "A=B"),
        (&["--env", "", "--", "true"], "variable"),
        (&["--env", "0", "--", "true"], "'0' is not a variable name"),
        (&["--env", "-1", "--", "true"], "'-1' is not a variable name"),
        (&["--"], "PROGRAM"),
        (&["--", "true", "--", "true", "{threads}"], "a search accepts one program"),
        (&["--window", "-5", "--", "true", "{threads}"], "write a whole number without a sign"),
        (
            &["--policy", "coscheduling", "--", "true", "{threads}"],
            "the policy coscheduling is for several programs",
        ),
        (
            &["--policy", "adapt", "--", "true", "{threads}"],
            "the policy adapt is for several programs",
        ),
    ] {
        assert_refused(&tune(args), 2, says);
    }
    let folder = tempfile::tempdir().unwrap();
    let name = OsStr::from_bytes(b"\xff\xfe");
    let done = command(folder.path(), &["tune", "--env"]).arg(name).args(["--", "true"]).output();
    assert_refused(&done.unwrap(), 2, "is not a variable name");
}

#[test]
fn program_that_cannot_be_started_has_the_status_of_env() {
    for (program, status) in [("/no/such/program", 127), ("/", 126), ("/dev/null", 126)] {
        assert_refused(&tune(&["--", program, "{threads}"]), status, program);
    }
}

#[test]
fn plot_that_cannot_be_created_is_reported_before_the_program_runs() {
    let folder = tempfile::tempdir().unwrap();
    let ran = folder.path().join("ran{threads}");
    let plot = ["tune", "--plot", "/no/such/folder/plot.svg", "--", "touch"];
    let done = command(folder.path(), &plot).arg(&ran).output().unwrap();
    assert_refused(&done, 2, "/no/such/folder/plot.svg");
    assert!(!folder.path().join("ran1").exists());
}

#[test]
fn plot_is_drawn_and_a_full_disk_does_not_change_the_status() {
    let folder = tempfile::tempdir().unwrap();
    let plot = folder.path().join("plot.svg");
    let args = |plot| ["--max", "2", "--plot", plot, "--", "sh", "-c", "exit 0", "{threads}"];
    let done = tune(&args(plot.to_str().unwrap()));
    assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
    assert!(std::fs::read_to_string(&plot).unwrap().contains("</svg>"));
    let full = tune(&args("/dev/full"));
    assert_eq!(full.status.code(), Some(0), "{}", stderr(&full));
    assert!(stderr(&full).contains("/dev/full"));
}

#[test]
fn thread_count_is_in_arguments_and_variables() {
    let script = r#"echo "[$1 $COUNT]"; sleep 0.1"#;
    let search = ["--max", "2", "--env", "COUNT", "--", "sh", "-c", script, "sh"];
    let done = tune(&[&search[..], &["{threads}+{threads}"]].concat());
    assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
    let printed = stdout(&done);
    // Short runs print nothing: the output is that of the full run.
    assert!(["[1+1 1]\n", "[2+2 2]\n"].contains(&printed.as_str()), "{printed}");
    assert!(stderr(&done).contains("best: "), "{}", stderr(&done));
}

#[test]
fn each_run_reads_the_input_and_the_input_command_is_not_observed() {
    let cat = ["--", "sh", "-c", "cat", "{threads}"];
    let done =
        tune(&[&["--max", "1", "--input", "echo hello; sleep 0.1; echo world"], &cat[..]].concat());
    assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
    assert_eq!(stdout(&done), "hello\nworld\n");
    // The processes of the input command run as long as the program.
    let search = ["--max", "2", "--json", "--search-only", "--input", "sleep 600; :"];
    let done = tune(&[&search[..], &["--", "sleep", "60{threads}"]].concat());
    let notes = json(&done)["notes"].to_string();
    assert!(notes.contains("still had one"), "the program has one thread: {notes}");
}

#[test]
fn input_command_ends_with_each_run() {
    let folder = tempfile::tempdir().unwrap();
    let started = folder.path().join("started");
    // The program ends before the input command, which never writes again.
    let input = "exec 2>/dev/null; echo $$ >>started; echo go; sleep 600; :";
    let options = ["tune", "--max", "1", "--window", "20", "--repeat", "2", "--input", input];
    let program = ["--", "sh", "-c", "read line", "{threads}"];
    let done = command(folder.path(), &[&options[..], &program].concat())
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
    let started = std::fs::read_to_string(started).unwrap();
    // One short run at least, the full run, and two runs of each side of the comparison.
    assert!(started.lines().count() >= 6, "{started}");
    let runs = |pid: &str| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        stat.is_ok_and(|stat| !stat.contains(") Z "))
    };
    until(|| !started.lines().any(runs));
}

#[test]
fn json_is_one_object_whose_fields_the_book_explains() {
    let done =
        tune(&["--max", "2", "--json", "--", "sh", "-c", "echo noise; sleep 0.1", "{threads}"]);
    assert_eq!(done.status.code(), Some(0));
    assert_eq!(stderr(&done), "noise\n");
    let mut tuned = json(&done);
    assert!(tuned["comparison"].is_null(), "{tuned}");
    let repeated = tune(&[
        "--max",
        "1",
        "--search-only",
        "--json",
        "--repeat",
        "2",
        "--",
        "true",
        "{threads}",
    ]);
    tuned["comparison"] = json(&repeated)["comparison"].take();
    let book = include_str!("../../../../../docs/tune.md").split_once("## JSON").unwrap().1;
    let fields = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let mut all = fields(&tuned);
    all.extend(fields(&tuned["rows"][0]));
    all.extend(fields(&tuned["rows"][0]["trial"]["ran"]));
    all.extend(fields(&tuned["comparison"]));
    for field in &all {
        assert!(
            book.contains(&format!("`{field}`")) || book.contains(&format!("\"{field}\"")),
            "{field}"
        );
    }
    assert_eq!(tuned["rows"][0]["threads"], 1);
    assert!(tuned["best"].as_u64().is_some_and(|n| n == 1 || n == 2));
    assert_eq!(tuned["run"]["ended"]["exit"], 0);
    assert!((0.0..=1.0).contains(&tuned["search_share"].as_f64().unwrap()));
}

#[test]
fn counts_with_which_the_program_fails_are_left_out() {
    for (fail, why) in [("exit 3", "exit status 3"), ("kill -TERM $$; sleep 60", "signal 15")] {
        let script = format!("if [ $1 -gt 1 ]; then {fail}; fi; sleep 60");
        // The window is longer than the start of a failing program on a slow machine.
        let search = ["tune", "--window", "2000", "--max", "3", "--step", "1", "--search-only"];
        let program = ["--json", "--", "sh", "-c", &script, "sh", "{threads}"];
        let done = corebeat(&[&search[..], &program].concat());
        assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
        let tuned = json(&done);
        assert_eq!(tuned["best"], 1, "{tuned}");
        assert_eq!(tuned["rows"].as_array().unwrap().len(), 3, "{tuned}");
        assert_eq!(tuned["rows"][2]["trial"]["failed"], why, "{tuned}");
        assert!(tuned["notes"].to_string().contains("left out"), "{tuned}");
    }
}

#[test]
fn program_that_fails_with_every_count_has_no_full_run() {
    let search = ["--window", "60000", "--max", "2", "--json"];
    let done = tune(&[&search[..], &["--", "sh", "-c", "exit 3", "{threads}"]].concat());
    assert_eq!(done.status.code(), Some(125), "{}", stderr(&done));
    let tuned = json(&done);
    assert!(tuned["best"].is_null() && tuned["run"].is_null(), "{tuned}");
    assert!(stderr(&done).contains("by hand"), "{}", stderr(&done));
}

#[test]
fn program_that_ends_within_the_window_is_measured() {
    let done = tune(&["--window", "60000", "--max", "2", "--", "true", "{threads}"]);
    assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
    assert!(stderr(&done).contains("ended"), "{}", stderr(&done));
}

#[test]
fn interrupted_tune_ends_by_the_signal_although_the_program_handles_it() {
    let folder = tempfile::tempdir().unwrap();
    let pid = folder.path().join("pid");
    let script = r#"trap 'exit 1' TERM; echo $$ >"$0.new"; mv "$0.new" "$0"; sleep 600 & wait"#;
    let search = ["tune", "--window", "600000", "--max", "2", "--plot", "new.svg"];
    let mut tune = command(folder.path(), &search);
    let mut tune =
        tune.args(["--", "sh", "-c", script]).arg(&pid).arg("{threads}").spawn().unwrap();
    until(|| pid.exists());
    signal(&tune, Signal::TERM);
    let status = tune.wait().unwrap();
    assert_eq!(status.signal(), Some(Signal::TERM.as_raw()), "{status}");
    let program = std::fs::read_to_string(&pid).unwrap();
    assert!(!std::path::Path::new("/proc").join(program.trim()).exists(), "the program still runs");
    assert!(!folder.path().join("new.svg").exists(), "an empty plot is left");
}

/// A shell script that gets the thread count by a variable.
const SCRIPT: [&str; 5] = ["--env", "COUNT", "--", "sh", "-c"];

#[test]
fn repeated_runs_alternate_print_nothing_and_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    let script = r#"echo "${COUNT:--} $1" >>log; echo printed; cat; cat; echo printed >&2"#;
    let short = ["tune", "--window", "20", "--serial", "20", "--max", "1", "--repeat", "3"];
    let run = |more: &[&str]| {
        let args = [&short[..], more, &SCRIPT, &[script, "sh", "{threads}"]].concat();
        let done = command(folder.path(), &args).env_remove("COUNT").output().unwrap();
        assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
        let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
        let made: Vec<String> = log.lines().map(str::to_owned).collect();
        (done, made)
    };
    let (done, made) = run(&[]);
    assert_eq!(stdout(&done), "printed\n", "only the full run prints");
    let text = stderr(&done);
    assert_eq!(text.matches("printed").count(), 1, "{text}");
    assert!(text.contains("comparison  3 runs of each: as it is ") && text.contains("75.0%"));
    assert!(text.contains("no difference was shown"), "{text}");
    // As it is: no variable, and the number of CPUs as argument.
    let as_is = format!("- {}", std::thread::available_parallelism().unwrap());
    let pairs = [&as_is, "1 1", "1 1", &as_is, &as_is, "1 1"];
    assert_eq!(made[made.len() - 6..], pairs);

    let (done, made) = run(&["--search-only", "--json"]);
    assert_eq!(made[made.len() - 6..], pairs);
    let comparison = &json(&done)["comparison"];
    assert_eq!((stderr(&done), &comparison["difference"]), (String::new(), &Value::Null));
    assert_eq!(comparison["coverage"], 0.75);
    let number = |value: &Value| value.as_f64().unwrap();
    let pairs_s = comparison["pairs_s"].as_array().unwrap();
    let mut ratios: Vec<f64> = pairs_s.iter().map(|p| number(&p[1]) / number(&p[0])).collect();
    ratios.sort_by(f64::total_cmp);
    assert_eq!(ratios.len(), 3, "{comparison}");
    let [low, high] = [0, 1].map(|at| number(&comparison["interval"][at]));
    for (written, ratio) in [low, number(&comparison["ratio"]), high].into_iter().zip(ratios) {
        assert!((written / ratio - 1.0).abs() < 1e-9, "{comparison}");
    }
}

#[test]
fn failure_of_a_repeated_run_is_reported() {
    let repeat = ["--max", "1", "--repeat", "2"];
    let script = r#"[ -n "$COUNT" ] || exit 3"#;
    for (more, status) in [(&[][..], 0), (&["--search-only"], 125)] {
        let done = tune(&[&repeat[..], more, &SCRIPT, &[script]].concat());
        let text = stderr(&done);
        assert_eq!(done.status.code(), Some(status), "{text}");
        let expected = "corebeat: the program as it is failed (exit 3) in a repeated run";
        assert!(text.contains(expected) && !text.contains("comparison  "), "{text}");
    }
}

#[test]
fn failed_full_run_is_not_compared() {
    // Only the full run has the standard output of Corebeat, here a pipe.
    let script = "! [ -p /dev/stdout ] || exit 3";
    let done = tune(&[&["--max", "1", "--repeat", "2"][..], &SCRIPT, &[script]].concat());
    let text = stderr(&done);
    assert_eq!(done.status.code(), Some(3), "{text}");
    assert!(!text.contains("comparison  ") && !text.contains("corebeat: the program"), "{text}");
}

#[test]
fn signal_in_a_repeated_run_ends_tune_although_the_program_handles_it() {
    let folder = tempfile::tempdir().unwrap();
    let pid = folder.path().join("pid");
    let script = r#"[ -n "$COUNT" ] && exit
        trap 'kill $!; exit 0' TERM; sleep 600 & echo $$ >new; mv new pid; wait"#;
    let short = ["tune", "--window", "20", "--serial", "20", "--max", "1", "--repeat", "9"];
    let args = [&short[..], &SCRIPT, &[script]].concat();
    let mut tune = command(folder.path(), &args);
    let mut tune = Running::start(tune.env_remove("COUNT").stderr(Stdio::null()));
    until(|| pid.exists());
    signal(&tune.0, Signal::TERM);
    let status = tune.0.wait().unwrap();
    assert_eq!(status.signal(), Some(Signal::TERM.as_raw()), "{status}");
    let program = std::fs::read_to_string(&pid).unwrap();
    assert!(!std::path::Path::new("/proc").join(program.trim()).exists(), "the program still runs");
}
