//! Each bench at its quick size: it works, its results are right, and its rows are what the book says.

use serde_json::Value;
use std::collections::BTreeSet;
use std::process::{Command, Output};
use std::sync::Mutex;

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bench")).args(args).output().unwrap()
}

fn objects(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"))).collect()
}

/// One bench at a time: programs that spin take many times as long beside others.
static TURN: Mutex<()> = Mutex::new(());

/// Runs benches and gives their rows.
fn rows(args: &[&str]) -> Vec<Value> {
    let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    let output = bench(&[args, &["--quick", "--json"]].concat());
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    // What is missing on this machine is worth a line in the test's output.
    told.lines().filter(|line| line.contains("left out")).for_each(|line| println!("{line}"));
    let rows = objects(&output);
    for row in &rows {
        for text in ["bench", "case", "subject", "unit"] {
            assert!(row[text].as_str().is_some_and(|t| !t.is_empty()), "{text} of {row}");
        }
        assert!(["lower", "higher", "neither"].contains(&row["better"].as_str().unwrap()), "{row}");
        let figure = |name: &str| row[name].as_f64().unwrap_or_else(|| panic!("{name} of {row}"));
        assert!(figure("min") <= figure("median") && figure("median") <= figure("max"), "{row}");
        assert!(row["runs"].as_u64().is_some_and(|n| n > 0), "{row}");
    }
    assert!(rows.iter().any(|r| r["subject"] == "corebeat"), "{told}");
    rows
}

fn cases(rows: &[Value]) -> BTreeSet<&str> {
    rows.iter().map(|r| r["case"].as_str().unwrap()).collect()
}

/// The benches of tasks and streams.
const LPEL: [&str; 7] = [
    "lpel.pipeline",
    "lpel.pingpong",
    "lpel.stream",
    "lpel.spawn",
    "lpel.memory",
    "lpel.idle",
    "lpel.monitor",
];

/// The benches of networks.
const SNET: [&str; 6] = [
    "snet.replication",
    "snet.synchronisation",
    "snet.mandelbrot",
    "snet.routing",
    "snet.format",
    "snet.box",
];

/// The benches of traces.
const TRACE: [&str; 1] = ["trace.event"];

/// The benches of heartbeats.
const HEARTBEAT: [&str; 1] = ["heartbeat.beat"];

/// The benches of probes.
const PROBE: [&str; 4] = ["probe.call", "probe.depth", "probe.cpu", "probe.bytes"];
/// The benches of separate objects.
const SCOOP: [&str; 4] = ["scoop.collect", "scoop.mark", "scoop.pause", "scoop.leak"];
/// The benches of clustered objects.
const CLUSTERED: [&str; 4] = ["clustered.counter", "clustered.guard", "clustered.retire", "clustered.server"];
/// The bench of the simulator.
const SIM: [&str; 1] = ["sim.speed"];
/// The benches of transactions.
const STM: [&str; 3] = ["stm.transfer", "stm.read", "stm.bank"];
/// Programs in transactions.
const STM_PROGRAM: [&str; 1] = ["stm.program"];
/// Transactions that are traced.
const STM_TRACE: [&str; 1] = ["stm.trace"];

#[test]
fn list_names_benches_cases_peers_and_what_is_missing() {
    let listed = objects(&bench(&["list", "--json"]));
    let names: Vec<&str> = listed.iter().map(|b| b["bench"].as_str().unwrap()).collect();
    assert_eq!(
        names[..6],
        ["linux.watch", "tune.count", "run.auto", "run.side", "workload.naive", "claim.phase"]
    );
    assert_eq!(
        names[6..],
        [
            &LPEL[..],
            &SNET,
            &HEARTBEAT,
            &STM,
            &STM_PROGRAM,
            &STM_TRACE,
            &SCOOP,
            &CLUSTERED,
            &PROBE,
            &TRACE,
            &SIM
        ]
        .concat()
    );
    for bench in &listed {
        assert!(
            !bench["cases"].as_array().unwrap().is_empty() && !bench["peers"].as_array().unwrap().is_empty()
        );
        for tool in bench["tools"].as_array().unwrap() {
            assert!(
                tool["here"].is_boolean()
                    && ["package", "variable", "artifact"].iter().any(|how| tool[how].is_string()),
                "{tool}"
            );
        }
    }
    let text = bench(&["list"]);
    assert!(text.status.success() && String::from_utf8_lossy(&text.stdout).contains("run.auto"));
}

#[test]
fn bench_that_is_unknown_or_matches_nothing_is_told() {
    let unknown = bench(&["run.otto"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("bench list"));
    assert_eq!(bench(&[]).status.code(), Some(2));
    assert_eq!(bench(&["workload.naive", "--quick", "--filter", "no such"]).status.code(), Some(2));
}

#[test]
fn watch_quick_measures_corebeat_from_outside_and_by_its_own_figure() {
    let rows = rows(&["linux.watch"]);
    assert_eq!(cases(&rows), BTreeSet::from(["64 threads", "1024 threads"]));
    assert_eq!(rows.iter().filter(|r| r["subject"] == "corebeat, by its own figure").count(), 2);
}

#[test]
fn count_quick_compares_what_is_found_with_a_sweep() {
    let rows = rows(&["tune.count"]);
    let ratios: Vec<&Value> =
        rows.iter().filter(|r| r["unit"] == "x of best" && r["subject"] == "corebeat").collect();
    assert!(ratios.len() >= 7, "{ratios:?}");
    assert!(ratios.iter().all(|r| r["min"].as_f64().unwrap() >= 1.0), "{ratios:?}");
}

#[test]
fn auto_quick_runs_every_program_plain_and_steered() {
    let rows = rows(&["run.auto"]);
    for case in cases(&rows) {
        let subjects = subjects(&rows, case);
        assert!(subjects.starts_with(&["corebeat", "plain"]), "{case}: {subjects:?}");
    }
}

#[test]
fn subjects_that_cannot_be_measured_alone_or_are_not_there_are_told() {
    let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    for (args, says) in [
        (["tune.count", "--filter", "lu", "--only", "corebeat"], "leave --only out"),
        (["run.side", "--filter", "option", "--only", "nobody"], "there are 'corebeat', 'plain'"),
    ] {
        let output = bench(&[&args[..], &["--quick"]].concat());
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains(says), "{told}");
    }
}

#[test]
fn side_quick_runs_programs_together_plain_and_steered() {
    let rows = rows(&["run.side", "--filter", "option", "--only", "corebeat"]);
    assert!(cases(&rows).contains("option + swaption: until all end"));
    assert!(rows.iter().all(|r| r["subject"] == "corebeat"));
}

#[test]
fn naive_quick_gives_the_same_results() {
    let rows = rows(&["workload.naive"]);
    assert_eq!(rows.len() % 2, 0);
    assert!(cases(&rows).contains("triad, 1 thread"));
}

#[test]
fn phase_quick_claims_and_computes_what_all_threads_do() {
    let rows = rows(&["claim.phase"]);
    let subjects = subjects(&rows, "two programs");
    assert!(subjects.starts_with(&["corebeat", "plain"]), "{subjects:?}");
}

/// Runs benches, looks whether all cases that are listed were measured, and gives the rows of each.
fn rows_of_every_case(names: &[&'static str]) -> Vec<(&'static str, Vec<Value>)> {
    let rows = rows(names);
    let listed = objects(&bench(&["list", "--json", "--quick"]));
    let of_bench = |&name: &&'static str| {
        let of_bench: Vec<Value> = rows.iter().filter(|r| r["bench"] == name).cloned().collect();
        let bench = listed.iter().find(|b| b["bench"] == name).unwrap();
        let expected: BTreeSet<&str> =
            bench["cases"].as_array().unwrap().iter().map(|c| c.as_str().unwrap()).collect();
        assert_eq!(cases(&of_bench), expected);
        (name, of_bench)
    };
    names.iter().map(of_bench).collect()
}

fn subjects<'a>(rows: &'a [Value], case: &str) -> Vec<&'a str> {
    rows.iter().filter(|r| r["case"] == case).map(|r| r["subject"].as_str().unwrap()).collect()
}

#[test]
fn lpel_quick_gives_every_case_of_every_bench() {
    for (name, rows) in rows_of_every_case(&LPEL) {
        for subject in ["corebeat", if name == "lpel.monitor" { "level d" } else { "tokio" }] {
            assert!(rows.iter().any(|r| r["subject"] == subject), "{subject} in {rows:?}");
        }
    }
}

#[test]
fn snet_quick_gives_every_case_of_every_bench() {
    for (name, rows) in rows_of_every_case(&SNET) {
        for case in cases(&rows) {
            let subjects = subjects(&rows, case);
            let peer = match name {
                "snet.mandelbrot" => "rayon",
                "snet.routing" => "corebeat, no choice",
                "snet.format" if case.contains("XML") => "quick-xml, events",
                "snet.format" => "serde_json, maps",
                _ => "lpel by hand",
            };
            assert!(subjects[0] == "corebeat" && subjects.contains(&peer), "{case}: {subjects:?}");
        }
    }
}

#[test]
fn heartbeat_quick_gives_every_case_of_every_bench() {
    for (_, rows) in rows_of_every_case(&HEARTBEAT) {
        for case in cases(&rows) {
            assert_eq!(
                subjects(&rows, case),
                ["corebeat", "application heartbeats", "atomic add, one for all"]
            );
        }
    }
}

#[test]
fn stm_program_quick_gives_every_program() {
    for (name, rows) in rows_of_every_case(&STM_PROGRAM) {
        for case in cases(&rows) {
            // A compiler for C, and TinySTM's source, may be missing.
            let all = ["corebeat", "corebeat, in C", "TinySTM"];
            let subjects = subjects(&rows, case);
            assert!(subjects[0] == all[0] && subjects.iter().all(|one| all.contains(one)), "{name} {case}");
        }
    }
}

#[test]
fn stm_trace_quick_gives_every_figure() {
    for (name, rows) in rows_of_every_case(&STM_TRACE) {
        for case in cases(&rows) {
            let of_case = rows.iter().filter(|row| row["case"] == case);
            let subjects: Vec<&str> = of_case.map(|row| row["subject"].as_str().unwrap()).collect();
            let all = ["corebeat", "corebeat, reduced", "corebeat, zstd", "not traced"];
            let told = if case.contains("time") || case.contains("aborts") { 4 } else { 3 };
            assert_eq!(subjects, all[..told], "{name} {case}");
        }
    }
}

#[test]
fn stm_quick_gives_every_case_of_every_bench() {
    for (name, rows) in rows_of_every_case(&STM) {
        for case in cases(&rows) {
            // A compiler for C, and TinySTM's source, may be missing.
            let mut always = subjects(&rows, case);
            always.retain(|&subject| subject != "corebeat, in C" && subject != "TinySTM");
            let own = if name == "stm.read" { 1 } else { 2 };
            assert_eq!(always[..own], ["corebeat", "corebeat, read and write"][..own]);
            assert_eq!(always[own..], ["stm", "fast-stm", "mutex", "mutex an account"]);
        }
    }
}

#[test]
fn scoop_quick_gives_every_case_of_every_bench() {
    for (name, rows) in rows_of_every_case(&SCOOP) {
        for case in cases(&rows) {
            // Those of other languages may be missing.
            let mut always = subjects(&rows, case);
            always.retain(|&subject| subject != "go" && subject != "java, serial");
            let peers: &[&str] = match name {
                "scoop.collect" => &["corebeat", "objects only", "processor as object", "gc-arena"],
                "scoop.mark" => &["corebeat", "objects only"],
                "scoop.pause" => &["corebeat", "corebeat, no collections"],
                _ => &["corebeat", "actix", "ractor"],
            };
            assert_eq!(always, peers, "{name} {case}");
        }
        // Of actors, ours are all gone.
        let left = rows.iter().filter(|row| name == "scoop.leak" && row["subject"] == "corebeat");
        left.for_each(|row| assert_eq!(row["max"], 0.0, "{row}"));
    }
}

#[test]
fn clustered_quick_gives_every_case_of_every_bench() {
    for (name, rows) in rows_of_every_case(&CLUSTERED) {
        for case in cases(&rows) {
            let subjects = subjects(&rows, case);
            assert_eq!(subjects[0], "corebeat");
            match name {
                "clustered.counter" => assert_eq!(subjects.len(), 11, "{subjects:?}"),
                "clustered.server" => {
                    assert_eq!(subjects[1..], ["corebeat, adaptive", "mutex", "rwlock", "dashmap", "papaya"]);
                }
                _ => assert_eq!(subjects[1..], ["crossbeam-epoch", "seize"]),
            }
        }
    }
}

#[test]
fn probe_quick_gives_every_case_of_every_bench() {
    for (_, rows) in rows_of_every_case(&PROBE) {
        for case in cases(&rows) {
            let peers: &[&str] = match case {
                "writing, synchronous" => &["corebeat", "tracing"],
                _ => &["corebeat", "tracing", "fastrace", "opentelemetry"],
            };
            // Those of other languages may be missing.
            let mut always = subjects(&rows, case);
            always.retain(|&subject| subject != "LTTng-ust" && subject != "Kieker");
            assert_eq!(always, peers);
        }
    }
}

#[test]
fn sim_quick_gives_every_case_of_every_bench() {
    for (_, rows) in rows_of_every_case(&SIM) {
        for case in cases(&rows) {
            assert_eq!(subjects(&rows, case), ["corebeat", "event list alone"]);
        }
    }
}

#[test]
fn trace_quick_gives_every_case_of_every_bench() {
    for (_, rows) in rows_of_every_case(&TRACE) {
        for case in cases(&rows) {
            assert_eq!(
                subjects(&rows, case),
                ["corebeat", "corebeat, not compressed", "corebeat, zstd", "corebeat, untimed", "tracing"]
            );
        }
    }
}
