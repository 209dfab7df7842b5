//! Records the commit, the features and the target that `corebeat --version` prints.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

/// Digits of a commit. 12 are unique in repositories of any usual size.
const DIGITS: usize = 12;
/// The file in which `cargo package` records the commit of a crate.
const RECORD: &str = ".cargo_vcs_info.json";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let commit = recorded_commit().or_else(checked_out_commit);
    let commit = commit.map_or("unknown".into(), |digits| digits[..DIGITS].to_owned());
    let features = env::vars_os().filter_map(|(name, _)| feature(name.to_str()?));
    let mut features: Vec<String> = features.collect();
    features.sort();
    let features = if features.is_empty() { "none".into() } else { features.join(", ") };
    println!("cargo::rustc-env=COREBEAT_COMMIT={commit}");
    println!("cargo::rustc-env=COREBEAT_FEATURES={features}");
    println!("cargo::rustc-env=COREBEAT_TARGET={}", env::var("TARGET").expect("cargo sets TARGET"));
}

/// The name of a feature, from the variable by which cargo reports that the feature is on.
fn feature(variable: &str) -> Option<String> {
    let name = variable.strip_prefix("CARGO_FEATURE_")?;
    (name != "DEFAULT").then(|| name.to_lowercase().replace('_', "-"))
}

/// The commit of a crate that was packaged.
fn recorded_commit() -> Option<String> {
    let record = fs::read_to_string(RECORD).ok()?;
    commit(record.split_once("\"sha1\"")?.1.split('"').nth(1)?)
}

/// The commit of the repository of Corebeat. A crate that was unpacked inside another repository
/// has no commit.
fn checked_out_commit() -> Option<String> {
    if git(&["rev-parse", "--show-prefix"])? != "crates/app/corebeat-cli/" {
        return None;
    }
    // A commit or a checkout changes the log. Cargo would run this script in every build if it
    // watched a missing file.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    if Path::new(&log).exists() {
        println!("cargo::rerun-if-changed={log}");
    }
    commit(&git(&["rev-parse", "HEAD"])?)
}

/// The text, if it is the hash of a commit.
fn commit(text: &str) -> Option<String> {
    let is_hash = text.len() >= DIGITS && text.bytes().all(|b| b.is_ascii_hexdigit());
    is_hash.then(|| text.to_owned())
}

/// The line that git prints; `None` if there is no git or no repository.
fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    let line = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| line.trim_end().to_owned())
}
