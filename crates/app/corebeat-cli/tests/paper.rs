//! `corebeat paper`, as a user types it.

use std::process::{Command, Output};

fn corebeat(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_corebeat")).arg("paper").args(args).output().unwrap()
}

#[test]
fn paper_lists_what_it_runs() {
    let listed = corebeat(&[]);
    assert!(listed.status.success());
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.lines().any(|line| line.starts_with("metronome-figure-3 ")), "{listed}");

    let json = corebeat(&["metronome-figure-3", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["name"], "metronome-figure-3");
    assert_eq!(json["rows"].as_array().unwrap().len(), 6);
    let text = corebeat(&["metronome-figure-3"]);
    assert!(String::from_utf8(text.stdout).unwrap().contains("mix 2 swaptions"));
}

#[test]
fn paper_tells_a_name_that_is_not_there() {
    for (names, says) in [
        (&["pusukuri-table-9"][..], "no table or figure 'pusukuri-table-9' here; see 'corebeat paper list'"),
        (&["metronome-figure-3", "list"], "'list' goes with no other name"),
        (&["list", "nope"], "'list' goes with no other name"),
        (&["all", "list"], "'all' goes with no other name"),
        (&["-1"], "no table or figure '-1' here"),
    ] {
        let told = corebeat(names);
        assert_eq!(told.status.code(), Some(2));
        let told = String::from_utf8(told.stderr).unwrap();
        assert!(told.contains(says) && told.lines().count() == 1, "{told}");
    }
}
