//! Runs each bench at its quick size, and checks that the bench works, that its results are right,
//! and that its rows match the book.

use serde_json::Value;
use std::collections::BTreeSet;
use std::process::{Command, Output};
use std::sync::Mutex;

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bench")).args(args).output().unwrap()
}

fn objects(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}")))
        .collect()
}

/// One bench at a time: programs that spin take many times as long beside other programs.
static TURN: Mutex<()> = Mutex::new(());

/// Runs benches and returns their rows.
fn rows(args: &[&str]) -> Vec<Value> {
    let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    let output = bench(&[args, &["--quick", "--json"]].concat());
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    // The output of the test names missing tools.
    log.lines().filter(|line| line.contains("left out")).for_each(|line| println!("{line}"));
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
    assert!(rows.iter().any(|r| r["subject"] == "corebeat"), "{log}");
    rows
}

fn cases(rows: &[Value]) -> BTreeSet<&str> {
    rows.iter().map(|r| r["case"].as_str().unwrap()).collect()
}

/// The bench that needs the feature `mpi`.
const RANK: &str = "snet.rank";
/// The bench that needs a source.
const STAMP: &str = "stm.stamp";

/// The benches whose listed cases are all measured, in groups that run together.
const GROUPS: [&[&str]; 15] = [
    &[
        "lpel.pipeline",
        "lpel.pingpong",
        "lpel.stream",
        "lpel.spawn",
        "lpel.memory",
        "lpel.idle",
        "lpel.monitor",
    ],
    &[
        "reactor.cpu",
        "reactor.rate",
        "reactor.latency",
        "reactor.auto",
        "reactor.idle",
        "reactor.crowd",
        "reactor.cache",
        "reactor.web",
    ],
    &[
        "snet.replication",
        "snet.synchronisation",
        "snet.state",
        "snet.mandelbrot",
        "snet.routing",
        "snet.format",
        "snet.box",
    ],
    &["heartbeat.beat"],
    &["stm.transfer", "stm.read", "stm.bank", "stm.map"],
    &["stm.program"],
    &["stm.trace"],
    &["scoop.collect", "scoop.mark", "scoop.pause", "scoop.leak"],
    &["clustered.counter", "clustered.guard", "clustered.retire", "clustered.server"],
    &["rewrite.match", "rewrite.exhaust", "rewrite.update", "rewrite.social", "rewrite.memory"],
    &["future.gain", "future.fine"],
    &["probe.call", "probe.depth", "probe.cpu", "probe.bytes"],
    &["trace.event"],
    &["sim.speed"],
    &["verify.response", "verify.model", "verify.simulate", "verify.search"],
];

/// Subjects that need a tool, and may be missing.
const OPTIONAL: [&str; 13] = [
    "corebeat, in C",
    "TinySTM",
    "go",
    "java, serial",
    "LTTng-ust",
    "Kieker",
    "igraph",
    "duckdb",
    "kuzu",
    "rustworkx",
    "graphblas",
    "pycpa",
    "simso",
];

/// The subjects of a case besides `corebeat` and [`OPTIONAL`], in their order. The benches of
/// tasks, streams, servers and networks have many subjects, so this list contains only the most
/// important one.
fn peers(bench: &str, case: &str) -> &'static [&'static str] {
    match bench {
        "lpel.monitor" => &["level d"],
        "snet.state" => &["corebeat, feedback"],
        "snet.mandelbrot" => &["rayon"],
        "snet.routing" => &["corebeat, no choice"],
        "snet.format" if case.contains("XML") => &["quick-xml, events"],
        "snet.format" => &["serde_json, maps"],
        RANK => &["mpi by hand"],
        "lpel.pingpong" => &["limit"],
        "lpel.pipeline" | "lpel.spawn" if case.ends_with(" 1 worker") || case == "1 worker" => {
            &["limit"]
        }
        _ if bench.starts_with("lpel.") => &[],
        "reactor.auto" => &["corebeat, adaptive", "corebeat, leader/followers"],
        "reactor.cache" | "reactor.web" => &[],
        _ if bench.starts_with("reactor.") => &["epoll by hand", "tokio"],
        _ if bench.starts_with("snet.") => &["lpel by hand"],
        "heartbeat.beat" => &["application heartbeats", "atomic add, one for all"],
        "stm.program" => &[],
        "stm.trace"
            if case.contains("time")
                && ["transfer", "bank", "contended"].iter().any(|work| case.starts_with(work)) =>
        {
            &["corebeat, reduced", "corebeat, zstd", "not traced", "limit"]
        }
        "stm.trace" if case.contains("time") || case.contains("aborts") => {
            &["corebeat, reduced", "corebeat, zstd", "not traced"]
        }
        "stm.trace" => &["corebeat, reduced", "corebeat, zstd"],
        "stm.map" => &["mutex", "dashmap, not atomic"],
        "stm.read" => &["stm", "fast-stm", "mutex", "mutex an account"],
        "stm.transfer" => {
            &["corebeat, read and write", "stm", "fast-stm", "mutex", "mutex an account", "limit"]
        }
        "stm.bank" => &["corebeat, read and write", "stm", "fast-stm", "mutex", "mutex an account"],
        "scoop.collect" => &["objects only", "processor as object", "gc-arena"],
        "scoop.mark" => &["objects only"],
        "scoop.pause" => &["corebeat, no collections", "limit"],
        "scoop.leak" => &["actix", "ractor"],
        "clustered.counter" => &[
            "corebeat, borrowed",
            "corebeat, by CPU",
            "corebeat, one for all",
            "shared atomic",
            "unpadded array",
            "padded array",
            "virtual call",
            "pthread key",
            "thread-local variable",
            "thread_local",
            "limit",
        ],
        "clustered.server" => &["corebeat, adaptive", "mutex", "rwlock", "dashmap", "papaya"],
        _ if bench.starts_with("clustered.") => &["crossbeam-epoch", "seize"],
        _ if case == "writing, synchronous" => &["tracing"],
        "probe.call" if ["collecting", "writing"].contains(&case) => {
            &["tracing", "fastrace", "opentelemetry", "limit"]
        }
        _ if bench.starts_with("probe.") => &["tracing", "fastrace", "opentelemetry"],
        "trace.event" => {
            &["corebeat, not compressed", "corebeat, zstd", "corebeat, untimed", "tracing"]
        }
        "sim.speed" => &["event list alone"],
        "rewrite.match" if case.ends_with("few videos") => &["loops by hand", "pushout"],
        "rewrite.match" => {
            &["corebeat, one task", "corebeat, two tasks", "loops by hand", "petgraph"]
        }
        "rewrite.exhaust" if case.starts_with("growing") => &[],
        "rewrite.exhaust" => {
            &["corebeat, one task", "corebeat, two tasks", "corebeat, two tasks, cycle"]
        }
        "rewrite.update" => &["new evaluation"],
        "rewrite.social" if case.ends_with("initial") => &[],
        "rewrite.social" => &["new evaluation"],
        "rewrite.memory" => &["petgraph"],
        "future.gain" if case == "matrix" => &["plain", "rayon"],
        "future.gain" => &["plain", "rayon", "rayon, by hand"],
        "future.fine" => &["plain", "rayon"],
        "verify.response" => &["response-time-analysis"],
        "verify.model" => &["quick-xml"],
        "verify.simulate" => &[],
        "verify.search" => &["one thread"],
        _ => panic!("the peers of {bench} are not listed here"),
    }
}

#[test]
fn list_names_benches_cases_peers_and_what_is_missing() {
    let listed = objects(&bench(&["list", "--json"]));
    let names: Vec<&str> = listed.iter().map(|b| b["bench"].as_str().unwrap()).collect();
    assert_eq!(
        names[..6],
        ["linux.watch", "tune.count", "run.auto", "run.side", "workload.naive", "claim.phase"]
    );
    let is_other = |name: &&str| ![RANK, STAMP].contains(name);
    let others: Vec<&str> = names[6..].iter().copied().filter(is_other).collect();
    assert_eq!(others, GROUPS.concat());
    assert!(names.contains(&RANK) && names.contains(&STAMP));
    for bench in &listed {
        assert!(
            !bench["cases"].as_array().unwrap().is_empty()
                && !bench["peers"].as_array().unwrap().is_empty()
        );
        for tool in bench["tools"].as_array().unwrap() {
            assert!(
                tool["here"].is_boolean()
                    && ["package", "variable", "artifact", "module"]
                        .iter()
                        .any(|how| tool[how].is_string()),
                "{tool}"
            );
        }
    }
    let text = bench(&["list"]);
    assert!(text.status.success() && String::from_utf8_lossy(&text.stdout).contains("run.auto"));
}

#[test]
fn unknown_bench_and_filter_without_match_are_reported() {
    let unknown = bench(&["run.otto"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("bench list"));
    assert_eq!(bench(&[]).status.code(), Some(2));
    assert_eq!(bench(&["workload.naive", "--quick", "--filter", "no such"]).status.code(), Some(2));
    // A part of a bench, or short rounds, must not replace stored rows.
    assert_eq!(bench(&["workload.naive", "--quick", "--store"]).status.code(), Some(2));
}

#[test]
fn stamp_quick_runs_all_applications_if_their_source_is_there() {
    let output = bench(&[STAMP, "--quick", "--json"]);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    let rows = objects(&output);
    if std::env::var_os("COREBEAT_STAMP_SOURCE").is_none() {
        assert!(rows.is_empty() && log.contains("COREBEAT_STAMP_SOURCE"), "{log}");
    } else {
        let applications = cases(&rows).iter().filter(|case| case.ends_with("1 thread")).count();
        assert_eq!(applications, 8, "{log}");
    }
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
fn unknown_subjects_and_unsupported_selections_are_reported() {
    let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    for (args, says) in [
        (["tune.count", "--filter", "lu", "--only", "corebeat"], "leave --only out"),
        (
            ["run.side", "--filter", "option", "--only", "no such"],
            "there are 'corebeat', 'corebeat, one run', 'plain'",
        ),
    ] {
        let output = bench(&[&args[..], &["--quick"]].concat());
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{log}");
        assert!(log.contains(says), "{log}");
    }
}

#[test]
fn side_quick_runs_programs_together_plain_and_steered() {
    let rows = rows(&["run.side", "--filter", "option"]);
    let subjects = subjects(&rows, "option + swaption: until all end");
    assert_eq!(subjects, ["corebeat", "corebeat, one run", "plain"]);
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

fn subjects<'a>(rows: &'a [Value], case: &str) -> Vec<&'a str> {
    rows.iter().filter(|r| r["case"] == case).map(|r| r["subject"].as_str().unwrap()).collect()
}

#[test]
fn quick_gives_every_case_and_subject_of_every_bench() {
    let listed = objects(&bench(&["list", "--json", "--quick"]));
    for group in GROUPS {
        let rows = rows(group);
        for &name in group {
            let rows: Vec<Value> = rows.iter().filter(|r| r["bench"] == name).cloned().collect();
            let bench = listed.iter().find(|b| b["bench"] == name).unwrap();
            // Without its client, this bench measures nothing.
            if rows.is_empty() && ["reactor.cache", "reactor.web"].contains(&name) {
                let tools = bench["tools"].as_array().unwrap();
                assert!(tools.iter().any(|tool| tool["here"] == false), "{tools:?}");
                continue;
            }
            let expected = bench["cases"].as_array().unwrap().iter().map(|c| c.as_str().unwrap());
            assert_eq!(cases(&rows), expected.collect());
            for case in cases(&rows) {
                let mut always = subjects(&rows, case);
                always.retain(|subject| !OPTIONAL.contains(subject));
                let peers = peers(name, case);
                if ["lpel.", "reactor.", "snet."].iter().any(|prefix| name.starts_with(prefix)) {
                    let has = peers.iter().all(|peer| always.contains(peer));
                    assert!(has, "{name} {case}: {always:?}");
                } else {
                    assert_eq!(always, [&["corebeat"], peers].concat(), "{name} {case}");
                }
            }
            if name.starts_with("lpel.") && name != "lpel.monitor" {
                assert!(rows.iter().any(|r| r["subject"] == "tokio"), "{name}: {rows:?}");
            }
            // The collector must free all unreachable actors of Corebeat.
            let left = rows.iter().filter(|r| name == "scoop.leak" && r["subject"] == "corebeat");
            left.for_each(|row| assert_eq!(row["max"], 0.0, "{row}"));
        }
    }
}

#[cfg(feature = "mpi")]
#[test]
fn rank_quick_gives_every_case_beside_mpi_by_hand() {
    if let Err(why) = corebeat_test_group::mpirun(2) {
        return println!("skipped: {why}");
    }
    let listed = objects(&bench(&["list", "--json", "--quick"]));
    let listed = listed.iter().find(|b| b["bench"] == RANK).unwrap();
    let rows = rows(&[RANK]);
    let expected = listed["cases"].as_array().unwrap().iter().map(|c| c.as_str().unwrap());
    assert_eq!(cases(&rows), expected.collect());
    for case in cases(&rows) {
        let subjects = subjects(&rows, case);
        assert!(peers(RANK, case).iter().all(|peer| subjects.contains(peer)), "{subjects:?}");
    }
}
