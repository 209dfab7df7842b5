//! `corebeat doctor`, as a user runs it.

use std::process::{Command, Output, Stdio};

fn corebeat(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_corebeat")).args(args).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn doctor_says_what_this_machine_offers() {
    let done = corebeat(&["doctor"]);
    assert_eq!(done.status.code(), Some(0));
    let text = String::from_utf8(done.stdout).unwrap();
    for expected in ["Linux", "package 0", "node", "cache", "[0", "counters", "sched_ext", "pidfd"] {
        assert!(text.contains(expected), "{expected} is not in\n{text}");
    }
    assert!(text.lines().filter(|l| l.starts_with("yes ") || l.starts_with("no ")).count() > 3, "{text}");
    assert!(done.stderr.is_empty());
}

#[test]
fn doctor_in_json_is_one_object() {
    let done = corebeat(&["doctor", "--json"]);
    assert_eq!(done.status.code(), Some(0));
    let json: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert!(!json["topology"]["cpus"].as_array().unwrap().is_empty());
    for fact in json["facts"].as_array().unwrap() {
        assert!(["yes", "limited", "no"].contains(&fact["offer"].as_str().unwrap()), "{fact}");
        for field in ["name", "detail", "cost", "how"] {
            assert!(!fact[field].as_str().unwrap().is_empty(), "{fact}");
        }
    }
}

#[test]
fn doctor_whose_reader_goes_away_does_not_panic() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let doctor = Command::new(env!("CARGO_BIN_EXE_corebeat")).arg("doctor").stdout(writer).output().unwrap();
    assert!(doctor.stderr.is_empty(), "{}", String::from_utf8_lossy(&doctor.stderr));
}
