//! `corebeat sim`, as a user runs it.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

const FERRET: &str = include_str!("../../../act/corebeat-sim/scenarios/ferret.toml");
const SHUFFLING: &str = include_str!("../../../act/corebeat-sim/scenarios/shuffling.toml");
const TRANQUIL: &str = include_str!("../../../act/corebeat-sim/scenarios/tranquil.toml");
const MIXED: &str = include_str!("../../../act/corebeat-sim/scenarios/mixed.toml");
const CROWD: &str = include_str!("../../../act/corebeat-sim/scenarios/crowd.toml");
const REGIONS: &str = include_str!("../../../act/corebeat-sim/scenarios/regions.toml");
const CLAIMS: &str = include_str!("../../../act/corebeat-sim/scenarios/claims.toml");
const GOALS: &str = include_str!("../../../act/corebeat-sim/scenarios/goals.toml");

/// Runs a scenario of this text in a folder of its own.
fn run(scenario: &str, args: &[&str]) -> (Output, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("s.toml"), scenario).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_corebeat"));
    let output =
        command.args(["sim", "run", "s.toml"]).args(args).current_dir(&folder).output().unwrap();
    (output, folder)
}

fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn scenario_gives_a_table_a_picture_and_a_trace() {
    let scenario = FERRET.replace("duration_s = 1.0", "duration_s = 0.1");
    let (output, folder) = run(&scenario, &["--svg", "s.svg", "--perfetto", "s.json"]);
    let text = printed(&output);
    assert!(text.contains("24 CPUs, 0.100000 s") && text.contains("ferret "), "{text}");
    let svg = fs::read_to_string(folder.path().join("s.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("CPU 22"));
    let trace = fs::read_to_string(folder.path().join("s.json")).unwrap();
    let trace: serde_json::Value = serde_json::from_str(&trace).unwrap();
    assert!(trace["traceEvents"].as_array().unwrap().iter().any(|e| e["name"] == "ferret rank 3"));
}

#[test]
fn seed_gives_the_same_run_again() {
    let scenario = FERRET.replace("duration_s = 1.0", "duration_s = 0.05");
    let of = |seed| printed(&run(&scenario, &["--seed", seed]).0);
    assert_eq!(of("7"), of("7"));
    assert_ne!(of("7").lines().next(), of("8").lines().next());
}

#[test]
fn policies_are_the_scenarios_or_those_on_the_command_line() {
    let scenario = GOALS.replace("duration_s = 60.0", "duration_s = 3.0");
    assert!(printed(&run(&scenario, &[]).0).contains("fair: swaptions: nice"));
    let without = printed(&run(&scenario, &["--policy", "none"]).0);
    assert!(!without.contains("fair:") && without.contains("swaptions"), "{without}");
}

#[test]
fn json_has_what_the_table_has() {
    let scenario = GOALS.replace("duration_s = 60.0", "duration_s = 3.0");
    let json: serde_json::Value =
        serde_json::from_str(&printed(&run(&scenario, &["--json"]).0)).unwrap();
    assert_eq!((&json["time_s"], &json["seed"]), (&3.0.into(), &1.into()));
    let table = printed(&run(&scenario, &[]).0);
    assert!(table.contains(json["fingerprint"].as_str().unwrap()), "{table}");
    assert!(json["applied"].as_array().unwrap().iter().any(|d| d["policy"] == "fair"), "{json}");
    for p in json["programs"].as_array().unwrap() {
        assert!(
            table.contains(p["name"].as_str().unwrap()) && p["user_s"].as_f64().unwrap() > 0.0,
            "{json}"
        );
    }
}

#[test]
fn policies_that_conflict_are_refused_in_one_line() {
    for (names, message) in [
        (["coscheduling", "coscheduling-idle"], "name one of them"),
        (
            ["auto", "faithful"],
            "policies auto and faithful change the same settings; name one of them",
        ),
        (
            ["faithful", "tranquilizer"],
            "policies faithful and tranquilizer change the same settings",
        ),
        (["team", "shuffler"], "policy shuffler would pin threads of the teams"),
        (["fair", "fair"], "policy fair is named twice; name it once"),
        (["fair", "adapt"], "policies fair and adapt change the same settings"),
    ] {
        let (output, _) = run(FERRET, &["--policy", names[0], "--policy", names[1]]);
        assert_eq!(output.status.code(), Some(2));
        let line = String::from_utf8(output.stderr).unwrap();
        assert!(line.contains(message) && line.lines().count() == 1, "{line}");
        let scenario = format!("policies = [\"{}\", \"{}\"]\n{FERRET}", names[0], names[1]);
        assert_eq!(run(&scenario, &[]).0.status.code(), Some(1));
    }
}

#[test]
fn idle_policies_state_their_reason() {
    let scenario = FERRET.replace("duration_s = 1.0", "duration_s = 0.01");
    for (name, says) in [
        ("coscheduling", "the scenario has no [[sets]]"),
        ("fair", "no program has a goal"),
        ("team", "no program has parallel regions"),
        ("claims", "no program requests CPUs"),
    ] {
        let (output, _) = run(&scenario, &["--policy", name]);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && message.lines().count() == 1, "{message}");
        assert!(message.contains(&format!("{name}: {says}")), "{message}");
    }
}

#[test]
fn memory_is_spread_and_threads_are_shuffled_where_that_helps() {
    let text = printed(&run(&TRANQUIL.replace("duration_s = 6.0", "duration_s = 3.0"), &[]).0);
    assert!(text.contains("tranquilizer: streamcluster: memory evenly over all nodes"), "{text}");
    assert!(!text.contains("did not help"), "{text}");
    let shuffling = SHUFFLING.replace("duration_s = 6.0", "duration_s = 2.6");
    let text = printed(&run(&shuffling, &[]).0);
    assert_eq!(text.matches("shuffler: a thread: run on CPUs").count(), 64, "{text}");
    let lines = shuffling.lines().filter(|l| !l.starts_with("distances")).collect::<Vec<_>>();
    let (output, _) = run(&lines.join("\n").replace("packages = 4", "packages = 1"), &[]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("shuffler: all CPUs share one last-level cache"), "{message}");
    assert!(!printed(&output).contains("shuffler: a thread"));
}

#[test]
fn reinforcer_chooses_a_count_and_reports_the_gain() {
    let text = printed(&run(CROWD, &[]).0);
    assert!(text.contains("reinforcer: solver: 17 threads a team"), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&printed(&run(CROWD, &["--json"]).0)).unwrap();
    let found = &json["reinforcer"];
    assert_eq!((&found["program"], &found["before"]["threads"]), (&"solver".into(), &96.into()));
    assert_eq!(found["best"], json["programs"][0]["threads"], "the whole run has that count");
    assert!(
        found["speed"].as_f64().unwrap() > 1.05 && found["rows"].as_array().unwrap().len() > 2,
        "{json}"
    );
    let without: serde_json::Value =
        serde_json::from_str(&printed(&run(CROWD, &["--json", "--policy", "none"]).0)).unwrap();
    assert!(
        without["reinforcer"].is_null() && without["time_s"] == found["before"]["time_s"],
        "{without}"
    );
    // An endless program is compared by its heartbeats, a short program by its whole run.
    let ferret = FERRET.replace("duration_s = 1.0", "duration_s = 0.05");
    let text = printed(&run(&ferret, &["--policy", "reinforcer", "--policy", "faithful"]).0);
    assert!(text.contains("beats/s; as written 62:"), "{text}");
    let text = printed(&run(&CROWD.replace("times = 20_000", "times = 20"), &[]).0);
    assert!(text.contains("times as fast"), "{text}");
}

#[test]
fn team_is_sized_by_the_time_of_its_regions() {
    let scenario = REGIONS.replace("duration_s = 20.0", "duration_s = 9.0");
    let text = printed(&run(&scenario, &[]).0);
    assert!(text.contains("team: solver: teams of 18"), "{text}");
    let beats = |args: &[&str]| {
        let json: serde_json::Value =
            serde_json::from_str(&printed(&run(&scenario, args).0)).unwrap();
        json["programs"][0]["beats"].as_u64().unwrap()
    };
    let (with, auto, plain) = (
        beats(&["--json"]),
        beats(&["--json", "--policy", "auto"]),
        beats(&["--json", "--policy", "none"]),
    );
    assert!(with > plain && auto > plain, "{with} and {auto} beats, {plain} without");
}

#[test]
fn team_leaves_programs_alone_that_have_ended() {
    // The program runs for 0.3 s of the first half second, and would get fewer threads at the end
    // of this time.
    let ended = "[machine]\ncores = 8\n[[programs]]\nname = 'a'\n[[programs.teams]]\nthreads = 8\nsteps = [{ repeat = { times = 40, steps = \
                 [{ parallel = { name = 'x', steps = [{ compute = { us = 8000, split = true } }] } }, { compute = { us = 5000 } }] } }]\n\
                 [[programs]]\nname = 'z'\n[[programs.teams]]\nsteps = [{ compute = { us = 900000 } }]\n";
    let text = printed(&run(ended, &["--policy", "team"]).0);
    assert!(text.contains("\na ") && !text.contains("team: a"), "{text}");
}

#[test]
fn claimed_cpus_are_taken_from_no_program() {
    let lost = |args: &[&str]| {
        let json: serde_json::Value = serde_json::from_str(&printed(&run(CLAIMS, args).0)).unwrap();
        json["programs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|p| p["lost"].as_u64().unwrap())
            .sum::<u64>()
    };
    let (with, without) = (lost(&["--json"]), lost(&["--json", "--policy", "none"]));
    assert!(with * 100 < without, "{with} and {without} lost");
}

#[test]
fn claims_have_the_figures_of_the_book() {
    let book: Vec<&str> =
        include_str!("../../../../docs/claim.md").split_ascii_whitespace().collect();
    let book = book.join(" ");
    let figures = |policy: &str| {
        let output = run(CLAIMS, &["--json", "--policy", policy]).0;
        let json: serde_json::Value = serde_json::from_str(&printed(&output)).unwrap();
        let programs = json["programs"].as_array().unwrap().clone();
        let number = |n: usize, field: &str| programs[n][field].as_f64().unwrap();
        let times_s = [0, 1].map(|n| number(n, "end_s") - number(n, "start_s"));
        (times_s, (number(0, "lost") + number(1, "lost")) as u64)
    };
    let ([long_s, short_s], _) = figures("claims");
    let with = format!("takes {long_s:.2} s and the short program {short_s:.2} s.");
    assert!(book.contains(&with), "{with}");
    let ([long_s, short_s], lost) = figures("none");
    let without = format!(
        "the programs take {long_s:.2} s and {short_s:.2} s, and take CPUs from each other \
         {},{:03} times.",
        lost / 1000,
        lost % 1000
    );
    assert!(book.contains(&without), "{without}");
}

/// Runs corebeat in a folder.
fn corebeat(folder: &std::path::Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_corebeat")).args(args).current_dir(folder).output().unwrap()
}

#[test]
fn model_is_trained_on_a_scenario_and_used_there_and_nowhere_else() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("s.toml"), MIXED).unwrap();
    let args = ["train", "--scenario", "s.toml", "-o", "m.json", "--window", "50"];
    let trained = corebeat(folder, &args);
    let message = printed(&trained);
    assert!(message.contains("CPUs 24") && message.contains("9 samples, 3 folds"), "{message}");
    assert_eq!(message.matches("accuracy").count(), 6, "{message}");
    // Samples of two programs predict little about a third one.
    let warned = String::from_utf8_lossy(&trained.stderr);
    assert!(warned.contains("the accuracy for unknown programs is"), "{warned}");
    assert!(warned.contains("below 80%") && warned.lines().count() == 1, "{warned}");
    let text = printed(&corebeat(folder, &["sim", "run", "s.toml", "--model", "m.json"]));
    assert!(text.contains("adapt: cluster: memory evenly over all nodes"), "{text}");

    let model = fs::read_to_string(folder.join("m.json")).unwrap();
    fs::write(folder.join("torn.json"), &model[..model.len() / 2]).unwrap();
    fs::write(
        folder.join("strange.json"),
        model.replace("\"predictors\": [", "\"predictors\": [\"luck_a\","),
    )
    .unwrap();
    fs::write(folder.join("old.json"), model.replace("\"version\": 1", "\"version\": 0")).unwrap();
    fs::write(folder.join("other.toml"), MIXED.replace("cores = 6", "cores = 5")).unwrap();
    let two: Vec<&str> = MIXED.split("[[programs]]\n").take(3).collect();
    fs::write(folder.join("two.toml"), two.join("[[programs]]\n")).unwrap();
    let sim = |scenario, rest: &[&'static str]| [&["sim", "run", scenario], rest].concat();
    for (args, status, says) in [
        (sim("s.toml", &[]), 2, "train one with 'corebeat train --scenario s.toml'"),
        (sim("s.toml", &["--model", "none.json"]), 2, "cannot read none.json"),
        (sim("s.toml", &["--model", "s.toml"]), 2, "s.toml is named twice"),
        (sim("s.toml", &["--model", "other.toml"]), 2, "other.toml: not a model, or truncated"),
        (sim("s.toml", &["--model", "torn.json"]), 2, "torn.json: not a model, or truncated"),
        (sim("s.toml", &["--model", "strange.json"]), 2, "unknown variant `luck_"),
        (sim("s.toml", &["--model", "old.json"]), 2, "the model has version 0"),
        (
            sim("other.toml", &["--model", "m.json"]),
            2,
            "the model was trained on another machine (simulated",
        ),
        (
            sim("s.toml", &["--policy", "none", "--model", "m.json"]),
            2,
            "--model needs --policy adapt",
        ),
        (
            vec!["run", "--policy", "adapt", "--model", "m.json", "--", "true"],
            2,
            "trained on another machine",
        ),
        (vec!["run", "--model", "m.json", "--", "true"], 2, "--model applies to adapt"),
        (
            vec![
                "run",
                "--policy",
                "adapt",
                "--model",
                "m.json",
                "--report-file",
                "m.json",
                "--",
                "true",
            ],
            2,
            "m.json is named twice",
        ),
        (
            vec!["train", "--scenario", "two.toml", "-o", "t.json"],
            1,
            "two.toml: training requires 3 programs or more; name more than 2",
        ),
        (
            vec!["train", "--scenario", "two.toml", "-o", "m.json"],
            1,
            "two.toml: training requires 3 programs or more; name more than 2",
        ),
        (vec!["train", "--scenario", "s.toml", "-o", "no/t.json"], 2, "cannot write no/t.json"),
        (vec!["train", "--scenario", "s.toml", "-o", "s.toml"], 2, "s.toml is named twice"),
        (
            vec!["train", "--seed", "2", "-o", "t.json"],
            2,
            "--scenario <SCENARIO.toml>; see 'corebeat train --help'",
        ),
        (sim("s.toml", &["--model", "/dev/zero"]), 2, "/dev/zero is longer than"),
    ] {
        let output = corebeat(folder, &args);
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(
            (output.status.code(), line.lines().count()),
            (Some(status), 1),
            "{args:?}: {line}"
        );
        assert!(line.contains(says), "{args:?}: {line}");
    }
    // A failure creates no file and changes none.
    assert!(!folder.join("t.json").exists());
    assert_eq!(fs::read_to_string(folder.join("m.json")).unwrap(), model);
}

#[test]
fn mistakes_are_one_line_with_their_place() {
    for (scenario, args, status, says) in [
        (
            GOALS.replace("\"fair\"", "\"un\\nfair\""),
            &[][..],
            1,
            "s.toml: policies, number 1: there is no policy 'un\\nfair'",
        ),
        (
            GOALS.replace("\"fair\"", "\"unfair\""),
            &[],
            1,
            "s.toml: policies, number 1: there is no policy 'unfair'",
        ),
        (GOALS.replace("cores = 8", "cores = 0"), &[], 1, "s.toml: machine: cores is 0"),
        (
            GOALS.replace("steps = [", "steps = [{ phase = \"a\\u0007\" }, "),
            &[],
            1,
            "phase has a control character",
        ),
        (
            GOALS.replace("cores = 8", "kores = 8"),
            &[],
            1,
            "s.toml: line 9, column 1: unknown field `kores`",
        ),
        (
            GOALS.into(),
            &["--policy", "reinforcer"],
            1,
            "write tunable = true in the teams that it may resize",
        ),
        (
            GOALS.replace("threads = ", "tunable = true\nthreads = "),
            &["--policy", "reinforcer"],
            1,
            "reinforcer handles one program",
        ),
        (GOALS.into(), &["--policy", "unfair"], 2, "invalid value 'unfair'"),
        (
            GOALS.into(),
            &["--policy", "none", "--policy", "fair"],
            2,
            "policy none cannot be combined with another policy",
        ),
        (
            GOALS.replace("\"fair\"", "\"none\", \"fair\""),
            &[],
            1,
            "s.toml: policies: policy none cannot be combined",
        ),
        (
            GOALS.into(),
            &["--seed", "-1"],
            2,
            "invalid value '-1' for '--seed <N>': write a whole number without a sign",
        ),
        (
            GOALS.into(),
            &["--seed", "99999999999999999999"],
            2,
            "for '--seed <N>': write a smaller number",
        ),
        (
            GOALS.into(),
            &["--period", "1e9"],
            2,
            "'--period <MS>': write a whole number in digits; see 'corebeat sim run --help'",
        ),
        (GOALS.into(), &["--svg", "s.toml"], 2, "s.toml is named twice"),
        (GOALS.into(), &["--svg", "new", "--perfetto", "new"], 2, "new is named twice"),
        (GOALS.into(), &["--svg", "no/such/folder"], 2, "cannot write no/such/folder"),
    ] {
        let (output, _folder) = run(&scenario, args);
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), line.lines().count()), (Some(status), 1), "{line}");
        assert!(line.contains(says), "{line}");
    }
    let (output, folder) = run(GOALS, &["--svg", "s.toml"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(fs::read_to_string(folder.path().join("s.toml")).unwrap(), GOALS);
    let missing = Command::new(env!("CARGO_BIN_EXE_corebeat"))
        .args(["sim", "run", "none.toml"])
        .output()
        .unwrap();
    assert_eq!(missing.status.code(), Some(2));
}

#[test]
fn files_that_are_no_text_or_have_no_end_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("s.toml"), b"[machine]\ncores = 2 # \xff\n").unwrap();
    for (file, status, says) in [
        ("s.toml", 1, "s.toml is not UTF-8 text from line 2 on"),
        ("/dev/zero", 1, "/dev/zero is longer than 16777216 bytes, so it is not a scenario"),
    ] {
        let output = corebeat(folder.path(), &["sim", "run", file]);
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), line.lines().count()), (Some(status), 1), "{line}");
        assert!(line.contains(says), "{line}");
    }
}

#[test]
fn full_disk_leaves_no_empty_picture() {
    let (output, folder) = run(GOALS, &["--svg", "/dev/full"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("cannot write /dev/full: No space left")
    );
    // A limit on the size of files simulates a full disk.
    let own = env!("CARGO_BIN_EXE_corebeat");
    let script = "ulimit -f 0; exec \"$0\" sim run s.toml --svg new.svg";
    let output =
        Command::new("sh").args(["-c", script, own]).current_dir(&folder).output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!folder.path().join("new.svg").exists());
}

#[test]
fn interrupted_simulation_leaves_no_picture() {
    let folder = tempfile::tempdir().unwrap();
    let new = folder.path().join("new.svg");
    let steps =
        "steps = [{ repeat = { times = 1_000_000_000_000, steps = [{ compute = { us = 1 } }] } }]";
    let text =
        format!("[machine]\ncores = 1\n[[programs]]\nname = \"p\"\n[[programs.teams]]\n{steps}\n");
    fs::write(folder.path().join("s.toml"), text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_corebeat"));
    command.args(["sim", "run", "s.toml", "--svg", "new.svg"]).current_dir(&folder);
    let mut running = command.spawn().unwrap();
    while !new.exists() {
        assert_eq!(running.try_wait().unwrap(), None);
    }
    // SAFETY: a plain system call; the process is our child and has not been waited for.
    unsafe { libc::kill(running.id() as i32, libc::SIGTERM) };
    assert_eq!(running.wait().unwrap().signal(), Some(libc::SIGTERM));
    assert!(!new.exists());
}

#[test]
fn invalid_sets_are_refused_in_one_line() {
    let shipped = include_str!("../../../act/corebeat-sim/scenarios/machines.toml");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("scenario.toml");
    let set = |name: &str, rest: &str| format!("{shipped}\n[[sets]]\nname = \"{name}\"\n{rest}\n");
    let many: String =
        (0..5000).map(|n| format!("[[sets]]\nname = \"x{n}\"\ncpus = 1\n")).collect();
    for (text, says) in [
        (set("x", "cpus = 0"), "set 'x': cpus is 0"),
        (set("x", "cpus = 999"), "set 'x': cpus is 999"),
        (set("set0", "cpus = 1"), "set 'set0': name is used twice"),
        (set("x", "cpus = 1\nwithin = \"x\""), "no set 'x' precedes it"),
        (set("x", "cpus = 1\nwithin = \"y\""), "no set 'y' precedes it"),
        (shipped.replacen("set = \"set0\"", "set = \"y\"", 1), "set 'y' does not exist"),
        (format!("{shipped}{many}"), "write no more than 4096"),
    ] {
        std::fs::write(&file, text).unwrap();
        let done = std::process::Command::new(env!("CARGO_BIN_EXE_corebeat"))
            .args(["sim", "run", file.to_str().unwrap()])
            .output()
            .unwrap();
        let message = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(1), "{message}");
        assert!(message.contains(says) && message.lines().count() == 1, "{says}: {message}");
    }
}
