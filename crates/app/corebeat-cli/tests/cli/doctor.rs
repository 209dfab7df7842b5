//! `corebeat doctor` from the command line.

use crate::{command, corebeat, json, stderr, stdout};

#[test]
fn doctor_lists_the_features_of_this_machine() {
    let done = corebeat(&["doctor"]);
    assert_eq!(done.status.code(), Some(0));
    let text = stdout(&done);
    for expected in ["Linux", "package 0", "node", "cache", "[0", "counters", "sched_ext", "pidfd"]
    {
        assert!(text.contains(expected), "{expected} is not in\n{text}");
    }
    assert!(
        text.lines().filter(|l| l.starts_with("yes ") || l.starts_with("no ")).count() > 3,
        "{text}"
    );
    assert!(done.stderr.is_empty());
}

#[test]
fn doctor_in_json_is_one_object() {
    let done = corebeat(&["doctor", "--json"]);
    assert_eq!(done.status.code(), Some(0));
    let json = json(&done);
    assert!(!json["topology"]["cpus"].as_array().unwrap().is_empty());
    for fact in json["facts"].as_array().unwrap() {
        assert!(["yes", "limited", "no"].contains(&fact["offer"].as_str().unwrap()), "{fact}");
        for field in ["name", "detail", "cost", "how"] {
            assert!(!fact[field].as_str().unwrap().is_empty(), "{fact}");
        }
    }
}

#[test]
fn doctor_with_a_closed_pipe_does_not_panic() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let folder = tempfile::tempdir().unwrap();
    let done = command(folder.path(), &["doctor"]).stdout(writer).output().unwrap();
    assert_eq!(stderr(&done), "");
}
