//! `corebeat paper`, as a user types it.

use crate::{assert_refused, corebeat, stdout};

#[test]
fn paper_lists_what_it_runs() {
    let listed = corebeat(&["paper"]);
    assert!(listed.status.success());
    let listed = stdout(&listed);
    assert!(listed.lines().any(|line| line.starts_with("metronome-figure-3 ")), "{listed}");

    let json = corebeat(&["paper", "metronome-figure-3", "--json"]);
    let json = super::json(&json);
    assert_eq!(json["name"], "metronome-figure-3");
    assert_eq!(json["rows"].as_array().unwrap().len(), 6);
    let text = corebeat(&["paper", "metronome-figure-3"]);
    assert!(stdout(&text).contains("mix 2 swaptions"));
}

#[test]
fn paper_tells_a_name_that_is_not_there() {
    for (names, says) in [
        (
            &["pusukuri-table-9"][..],
            "no table or figure is named 'pusukuri-table-9'; see 'corebeat paper list'",
        ),
        (&["metronome-figure-3", "list"], "'list' excludes other names"),
        (&["list", "nope"], "'list' excludes other names"),
        (&["all", "list"], "'all' excludes other names"),
        (&["-1"], "no table or figure is named '-1'"),
    ] {
        assert_refused(&corebeat(&[&["paper"], names].concat()), 2, says);
    }
}
