//! Stored rows: `bench NAME... --store` replaces `bench/rows/NAME.jsonl`.
//!
//! The first line of a file is the [`Run`], and the others are the rows of that run. All rows of a
//! file come from one run, so that they can be compared. Some files have the rows of tables that
//! were typed before rows were stored ([`Run::typed`]).

use crate::row::{self, Row};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The paths, in the root of the project, that contain the measured code.
const MEASURED: [&str; 4] = ["crates", "bench/programs", "bench/peers", "Cargo.lock"];

/// The conditions of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Run {
    /// CPUs, processor and kernel.
    pub(crate) machine: String,
    /// In UTC.
    pub(crate) date: String,
    /// The last commit that changed the measured code, with "changed" if files differ from it. The
    /// commit of the whole tree would have a new name whenever a branch is rebased.
    pub(crate) commit: String,
    /// The load of the minute before the run.
    pub(crate) load: String,
    /// The conditions as the text beside an earlier table stated them, if the rows were taken from
    /// such a table, which was typed by hand. They have its precision. Absent if `--store` wrote
    /// the rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) typed: Option<String>,
}

/// The rows of a bench, and their run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Stored {
    pub(crate) run: Run,
    pub(crate) rows: Vec<Row>,
}

/// The stored rows by the name of their bench.
pub(crate) type Benches = BTreeMap<String, Stored>;

impl Run {
    /// The conditions at this moment. A part that cannot be read is "unknown".
    pub(crate) fn now(cpus: usize) -> Self {
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let model = model.map_or("unknown", |(_, model)| model.trim());
        let kernel = first_word("/proc/sys/kernel/osrelease");
        let mut date = Command::new("date");
        date.env("LC_ALL", "C").args(["-u", "+%-d %B %Y"]);
        let is_changed = output(git(&["status", "--porcelain"])).is_some_and(|s| !s.is_empty());
        let changed = if is_changed { ", changed" } else { "" };
        let unknown = || "unknown".to_owned();
        let commit = output(git(&["log", "-1", "--abbrev=8", "--format=%h"]));
        Run {
            machine: format!("{cpus} CPUs, {model}, Linux {kernel}"),
            date: output(date).unwrap_or_else(unknown),
            commit: commit.unwrap_or_else(unknown) + changed,
            load: first_word("/proc/loadavg"),
            typed: None,
        }
    }
}

fn first_word(path: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().next().unwrap_or("unknown").to_owned()
}

/// A command of git on the measured code.
fn git(args: &[&str]) -> Command {
    let mut git = Command::new("git");
    git.current_dir(root()).args(args).arg("--").args(MEASURED);
    git
}

fn output(mut command: Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The root of the project.
pub(crate) fn root() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own)
}

fn folder() -> PathBuf {
    root().join("bench/rows")
}

/// Replaces the rows of a bench, and returns the path of their file.
pub(crate) fn write(bench: &str, run: &Run, rows: &[Row]) -> Result<PathBuf, String> {
    let path = folder().join(format!("{bench}.jsonl"));
    let text: String = std::iter::once(row::line(run)).chain(rows.iter().map(row::line)).collect();
    std::fs::create_dir_all(folder())
        .and_then(|()| std::fs::write(&path, text))
        .map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    Ok(path)
}

/// Reads all files.
pub(crate) fn read_all() -> Result<Benches, String> {
    let folder = folder();
    let failed = |e: std::io::Error| format!("cannot read {}: {e}", folder.display());
    let mut benches = Benches::new();
    for entry in std::fs::read_dir(&folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let bench = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".jsonl"));
        let bench = bench.ok_or_else(|| {
            format!("{}: only files NAME.jsonl belong here; remove it", path.display())
        })?;
        let text = std::fs::read_to_string(&path)
            .map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        let stored = parse(bench, &text).map_err(|(line, why)| {
            format!(
                "bench/rows/{bench}.jsonl:{line}: {why}; 'bench {bench} --store' renews the file"
            )
        })?;
        benches.insert(bench.to_owned(), stored);
    }
    Ok(benches)
}

/// Parses the content of a file. An error has the number of its line.
pub(crate) fn parse(bench: &str, text: &str) -> Result<Stored, (usize, String)> {
    let mut lines = text.lines();
    let run = serde_json::from_str(lines.next().unwrap_or_default())
        .map_err(|e| (1, format!("the line is not a run: {e}")))?;
    let mut rows = Vec::<Row>::new();
    for (number, line) in (2..).zip(lines) {
        let row: Row = serde_json::from_str(line)
            .map_err(|e| (number, format!("the line is not a row: {e}")))?;
        if row.bench != bench {
            return Err((number, format!("the row is of the bench '{}'", row.bench)));
        }
        let (case, subject) = (&row.case, &row.subject);
        if rows.iter().any(|other| (&other.case, &other.subject) == (case, subject)) {
            return Err((number, format!("a second row of '{subject}' in the case '{case}'")));
        }
        rows.push(row);
    }
    match rows.is_empty() {
        true => Err((1, "the run has no rows".to_owned())),
        false => Ok(Stored { run, rows }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = r#"{"machine":"2 CPUs","date":"1 May 2026","commit":"0a","load":"0.1"}"#;
    const ROW: &str = r#"{"bench":"a.b","case":"c","subject":"corebeat","unit":"ns","better":"lower","median":1.0,"min":1.0,"max":2.0,"runs":5}"#;

    #[test]
    fn file_holds_one_run_and_its_rows() {
        let stored = parse("a.b", &format!("{RUN}\n{ROW}\n")).unwrap();
        assert_eq!((stored.run.commit.as_str(), stored.rows[0].max), ("0a", 2.0));
        assert_eq!(row::line(&stored.run) + &row::line(&stored.rows[0]), format!("{RUN}\n{ROW}\n"));
    }

    #[test]
    fn bad_line_is_reported_with_its_number() {
        let of_other = ROW.replace("a.b", "a.c");
        for (text, line, says) in [
            (String::new(), 1, "not a run"),
            (format!("{ROW}\n"), 1, "not a run"),
            (RUN.to_owned(), 1, "no rows"),
            (format!("{RUN}\n{ROW}\nfast\n"), 3, "not a row"),
            (format!("{RUN}\n{of_other}\n"), 2, "of the bench 'a.c'"),
            (format!("{RUN}\n{ROW}\n{ROW}\n"), 3, "a second row of 'corebeat' in the case 'c'"),
        ] {
            let (number, why) = parse("a.b", &text).unwrap_err();
            assert!(number == line && why.contains(says), "{number}: {why}");
        }
    }

    #[test]
    fn run_states_the_machine_and_the_date() {
        let run = Run::now(2);
        assert!(run.machine.starts_with("2 CPUs, ") && run.machine.contains("Linux "), "{run:?}");
        assert!(run.date.split(' ').count() == 3 && run.load.parse::<f64>().is_ok(), "{run:?}");
    }
}
