//! `corebeat verify`, as a user runs it: the guide of the book, and the exit statuses.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const GUIDE: &str = include_str!("../../../../docs/verify.md");
const ENGINE: &str = include_str!("../../../decide/corebeat-verify/examples/engine.amxmi");
const VEHICLE: &str =
    include_str!("../../../decide/corebeat-verify/examples/electric-vehicle.toml");
const HERSCHEL: &str = include_str!("../../../decide/corebeat-verify/examples/herschel.toml");

fn corebeat(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_corebeat"));
    command.args(args).current_dir(folder).output().unwrap()
}

/// The exit status, standard output and standard error.
fn verify(folder: &Path, args: &[&str]) -> (i32, String, String) {
    let output = corebeat(folder, &[&["verify"], args].concat());
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("engine.amxmi"), ENGINE).unwrap();
    fs::write(folder.path().join("electric-vehicle.toml"), VEHICLE).unwrap();
    fs::write(folder.path().join("herschel.toml"), HERSCHEL).unwrap();
    folder
}

/// Runs every command of the guide in order. A line of the shown output must occur in the output,
/// up to `...`; `# exit status N` states the status, which is 0 otherwise.
#[test]
fn commands_of_the_guide_print_what_it_shows() {
    let folder = folder();
    let three = GUIDE.split("```").find_map(|block| block.strip_prefix("toml\n# three.toml\n"));
    fs::write(folder.path().join("three.toml"), three.unwrap()).unwrap();
    let mut commands = 0;
    for block in GUIDE.split("```console\n").skip(1) {
        let block = block.split("```").next().unwrap();
        for part in block.split("$ corebeat ").skip(1) {
            let (line, shown) = part.split_once('\n').unwrap();
            let (line, status) = line.split_once("# exit status ").unwrap_or((line, "0"));
            let args: Vec<&str> = line.split_whitespace().collect();
            let output = corebeat(folder.path(), &args);
            let printed = String::from_utf8_lossy(&output.stdout).into_owned()
                + &String::from_utf8_lossy(&output.stderr);
            let status: i32 = status.trim().parse().unwrap();
            assert_eq!(output.status.code(), Some(status), "{line}: {printed}");
            for wanted in shown.lines().filter(|l| !l.trim().is_empty()) {
                let wanted = wanted.split("...").next().unwrap();
                let has = |l: &str| l.starts_with(wanted);
                assert!(printed.lines().any(has), "{line}: no line '{wanted}' in\n{printed}");
            }
            commands += 1;
        }
    }
    assert!(commands >= 8, "{commands}");
    for file in ["witness.toml", "witness.svg", "witness.btf", "engine.svg", "engine2.toml"] {
        assert!(folder.path().join(file).exists(), "{file}");
    }
}

#[test]
fn exit_status_states_the_answer() {
    let folder = folder();
    let path = folder.path();
    fs::write(path.join("good.csv"), "name,period_ms,worst_ms,priority\na,10,2,1\n").unwrap();
    fs::write(path.join("bad.csv"), "name,period_ms,worst_ms,priority\na,10,12,1\n").unwrap();
    fs::write(path.join("broken.csv"), "name,period_ms,worst_ms\na,10\n").unwrap();
    assert_eq!(verify(path, &["analyse", "good.csv"]).0, 0);
    assert_eq!(verify(path, &["search", "good.csv", "--evaluations", "100"]).0, 0);
    assert_eq!(verify(path, &["analyse", "bad.csv"]).0, 1);
    assert_eq!(verify(path, &["search", "bad.csv"]).0, 1);
    for (args, status, what) in [
        (["analyse", "broken.csv"], 1, "broken.csv: line 2, task 'a': 2 cells"),
        (["analyse", "missing.csv"], 2, "cannot read missing.csv"),
        (["analyse", "engine.txt"], 2, "has no ending .amxmi, .toml or .csv"),
        (["partition", "good.csv"], 1, "no table [unit]"),
    ] {
        let (code, _, error) = verify(path, &args);
        assert!(code == status && error.contains(what) && error.lines().count() == 1, "{error}");
    }
    for (args, what) in [
        (&["--wait", "0 ms"][..], "a time above 0 is needed"),
        (&["--wait", "5"], "has no unit"),
        (&["--load", "50"], "--window"),
        (&["--load", "101", "--window", "1ms"], "101 is not in 1..=100"),
        (&["--load", "50", "--window", "1ms", "--wait", "1ms"], "cannot be used with"),
    ] {
        let (code, _, error) = verify(path, &[&["search", "good.csv"], args].concat());
        assert!(code == 2 && error.contains(what), "{error}");
    }
    let (code, _, error) = verify(path, &["search", "good.csv", "--task", "x"]);
    assert!(code == 2 && error.contains("no task is named 'x'"), "{error}");
}

#[test]
fn core_without_components_has_the_use_0() {
    let folder = folder();
    fs::write(folder.path().join("one.csv"), "name,period_ms,worst_ms\na,10,2\n").unwrap();
    let (code, text, error) =
        verify(folder.path(), &["partition", "one.csv", "--cores", "2", "--mhz", "100"]);
    assert!(code == 0 && text.contains(" 20.0%") && text.contains(" 0.0%"), "{text}{error}");
}

#[test]
fn named_pipe_is_refused_and_a_pipe_is_read() {
    let folder = folder();
    let made = Command::new("mkfifo").arg("pipe.csv").current_dir(&folder).status().unwrap();
    assert!(made.success());
    std::os::unix::fs::symlink("/dev/stdin", folder.path().join("in.csv")).unwrap();
    for args in [&["analyse", "pipe.csv"][..], &["search", "pipe.csv", "--task", "a"]] {
        let (code, _, error) = verify(folder.path(), args);
        assert_eq!(code, 2, "{error}");
        let expected = "corebeat: cannot read pipe.csv: it is not a regular file; name a model";
        assert!(error.starts_with(expected) && error.lines().count() == 1, "{error}");
    }
    let script = "printf 'name,period_ms,worst_ms,priority\\na,10,2,1\\n' | \
                  exec \"$0\" verify analyse in.csv";
    let mut command = Command::new("sh");
    let own = env!("CARGO_BIN_EXE_corebeat");
    let done = command.args(["-c", script, own]).current_dir(&folder).output().unwrap();
    assert!(done.status.success(), "{done:?}");
}

#[test]
fn table_may_begin_with_a_byte_order_mark_and_a_core_without_tasks_has_no_use() {
    let folder = folder();
    let marked = "\u{feff}name,period_ms,worst_ms,priority\na,10,2,1\n";
    fs::write(folder.path().join("marked.csv"), marked).unwrap();
    assert_eq!(verify(folder.path(), &["analyse", "marked.csv"]).0, 0);
    let idle = "[[cores]]\nname = 'idle'\n[[cores]]\nname = 'busy'\n[[tasks]]\nname = 'a'\n\
                period = '10 ms'\nexecution = '2 ms'\npriority = 1\ncore = 'busy'\n";
    fs::write(folder.path().join("idle.toml"), idle).unwrap();
    let (status, text, error) = verify(folder.path(), &["analyse", "idle.toml"]);
    assert!(status == 0 && text.contains(" 0.0%") && !text.contains("-0.0%"), "{text}{error}");
}

#[test]
fn search_names_tasks_whose_deadlines_lie_after_the_scenarios() {
    let folder = folder();
    let table = "name,period,worst,priority\nfast,10 us,6 us,2\nslow,1 s,500 ms,1\n";
    fs::write(folder.path().join("long.csv"), table).unwrap();
    let args = ["search", "long.csv", "--evaluations", "20"];
    let (_, text, _) = verify(folder.path(), &args);
    assert!(text.contains("longest responses may be missing: slow\n"), "{text}");
    let (_, text, _) = verify(folder.path(), &[&args[..], &["--json"]].concat());
    assert!(text.contains(r#""tasks_beyond_scenario":["slow"]"#), "{text}");
}

#[test]
fn result_is_printed_although_a_file_cannot_be_written() {
    let folder = folder();
    let full = "/dev/full";
    let search = ["search", "engine.amxmi", "--evaluations", "20", "--btf", full];
    let search = [&search[..], &["--witness", "kept.toml"]].concat();
    let partition = vec!["partition", "electric-vehicle.toml", "--nodes", "100", "-o", full];
    let front = vec!["partition", "electric-vehicle.toml", "--front", "--svg", full];
    let analyse = vec!["analyse", "engine.amxmi", "--svg", full];
    let all =
        [(search, "result: "), (partition, " units"), (front, "latency: "), (analyse, "verdict: ")];
    for (args, result) in all {
        let (status, text, error) = verify(folder.path(), &args);
        assert!(status == 125 && text.contains(result), "{args:?}: {status} {text}");
        assert!(error.contains("cannot write /dev/full: No space left"), "{error}");
    }
    assert!(folder.path().join("kept.toml").exists());
}

#[test]
fn json_of_every_command_is_one_object() {
    let folder = folder();
    let path = folder.path();
    let object = |args: &[&str]| {
        let text = verify(path, args).1;
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(text.lines().count(), 1);
        value
    };
    let report = object(&["analyse", "engine.amxmi", "--json"]);
    assert_eq!(report["verdict"], "not schedulable");
    assert_eq!(report["tasks"].as_array().unwrap().len(), 6);
    let found = object(&["search", "engine.amxmi", "--threads", "2", "--json"]);
    assert_eq!((found["missed"].as_bool(), found["task"].as_str()), (Some(true), Some("Lambda")));
    let found = object(&["search", "engine.amxmi", "--wait", "5ms", "--json"]);
    assert!(found["missed"] == true && found["wait_ns"].as_u64() > found["limit_ns"].as_u64());
    let load = ["search", "engine.amxmi", "--load", "100", "--window", "1 ms", "--json"];
    let found = object(&[&load[..], &["--evaluations", "200"]].concat());
    assert_eq!(
        (found["core"].as_str(), found["busy_ns"].as_u64()),
        (Some("Core_0"), Some(1_000_000))
    );
    assert_eq!(
        (found["missed"].as_bool(), found["window_ns"].as_u64()),
        (Some(false), Some(1_000_000))
    );
    let args = ["partition", "electric-vehicle.toml", "--nodes", "2000", "--json"];
    let shared = object(&args);
    let apart = object(&[&args[..], &["--no-mode-sharing"]].concat());
    assert!(shared["units"].as_u64() < apart["lower_bound"].as_u64());
}

#[test]
fn interrupted_search_keeps_the_best() {
    let folder = folder();
    let mut command = Command::new(env!("CARGO_BIN_EXE_corebeat"));
    let args = ["verify", "search", "engine.amxmi", "--task", "Diagnosis", "--witness", "w.toml"];
    let mut command = command.args(args).args(["--evaluations", "1000000000"]);
    command = command.current_dir(&folder).stdout(std::process::Stdio::piped());
    let group = corebeat_test_group::TestGroup::new();
    let mut child = group.add(command).spawn().unwrap();
    // The search has begun when its handler for the signal is installed.
    let status = format!("/proc/{}/status", child.id());
    let catches = || {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let mask = text.lines().find_map(|l| l.strip_prefix("SigCgt:")).map(str::trim);
        mask.is_some_and(|m| u64::from_str_radix(m, 16).is_ok_and(|m| m >> 1 & 1 == 1))
    };
    while !catches() {
        std::thread::yield_now();
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    child.wait().unwrap();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut child.stdout.take().unwrap(), &mut text).unwrap();
    assert!(text.contains("interrupted") && text.contains("task Diagnosis"), "{text}");
    assert!(fs::read_to_string(folder.path().join("w.toml")).unwrap().contains("[[jobs]]"));
}
