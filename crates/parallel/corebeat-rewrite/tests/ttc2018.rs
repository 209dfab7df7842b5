//! The Social Media case of the Transformation Tool Contest 2018: both queries, initially and after
//! each change, equal the expected results. The queries are evaluated anew, and kept up to date.
//!
//! `tests/data/ttc2018` has the two smallest models, under the MIT licence in that folder.
//! `COREBEAT_TTC2018` names a folder with further models of the contest.

mod social;

use social::{How, Model};
use std::fs::read_to_string;
use std::path::Path;

/// Checks all models of a folder. Returns their number.
fn check(folder: &Path) -> usize {
    let expected = read_to_string(folder.join("expected-results.csv")).unwrap();
    let sizes: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("initial.xmi").exists())
        .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    for size in &sizes {
        let mut model = Model::read(folder, size);
        for step in 0..=20 {
            if step > 0 {
                let name = format!("change{step:02}.csv");
                let changes = read_to_string(folder.join(size).join(name)).unwrap();
                changes.lines().for_each(|line| model.change(line));
            }
            for rule in 0..model.rules.len() {
                let tables = [How::New(1), How::New(2), How::Live];
                let [one, two, live] = tables.map(|how| model.table(rule, how));
                assert!(one == two && one == live);
            }
            for (view, found) in [("Q1", model.q1(How::Live)), ("Q2", model.q2(How::New(2)))] {
                let phase = if step == 0 { "Initial" } else { "Update" };
                let line = format!("\"{view}\";{size};{step};\"{phase}\";\"{found}\"");
                let known = expected.lines().any(|expected| expected.trim_end() == line);
                assert!(known, "{line} is not expected");
            }
        }
    }
    sizes.len()
}

#[test]
fn both_queries_are_right_initially_and_after_each_change() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/ttc2018");
    assert_eq!(check(&own), 2);
    if let Some(folder) = std::env::var_os("COREBEAT_TTC2018") {
        assert!(check(Path::new(&folder)) > 0);
    }
}
