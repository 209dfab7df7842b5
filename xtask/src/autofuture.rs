//! `cargo xtask autofuture`: rewrites crates of other people, and compares their test suites
//! before and after.
//!
//! For each crate: its sources from the registry, its tests, the candidates, the rewrite, and its
//! tests again, under schedules that are drawn from seeds. Prints one row of a table.

mod input;
pub(crate) mod program;
pub(crate) mod speed;

use crate::effect;
use crate::step::run_cargo;
use crate::tool::output;
use crate::workspace::{Workspace, cargo};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The crates with their versions, and what they do.
const CRATES: [(&str, &str, &str); 16] = [
    ("delaunator", "1.1.0", "triangulation"),
    ("easy-ml", "2.3.0", "matrices"),
    ("image-compare", "0.4.2", "image filters"),
    ("jpeg-decoder", "0.3.2", "images"),
    ("miniz_oxide", "0.8.9", "compression"),
    ("noise", "0.9.0", "procedural textures"),
    ("petgraph", "0.8.3", "graphs"),
    ("png", "0.18.1", "images"),
    ("pulldown-cmark", "0.13.6", "Markdown"),
    ("roxmltree", "0.20.0", "parser"),
    ("rusttype", "0.9.3", "fonts"),
    ("smartcore", "0.4.10", "machine learning"),
    ("snap", "1.1.2", "compression"),
    ("statrs", "0.18.0", "statistics"),
    ("sudoku", "0.8.0", "search"),
    ("textwrap", "0.16.4", "text"),
];

/// Seeds of the schedules of the rewritten tests.
const SEEDS: u64 = 3;

/// Longest time of one command.
const LIMIT: Duration = Duration::from_secs(1800);

/// Evaluates all crates, or those with these names.
pub(crate) fn run(names: &[&str]) -> Result<(), String> {
    let workspace = Workspace::read()?;
    if let Err(missing) = effect::nightly(&workspace, "rustc-dev")? {
        println!("skipped: {missing}");
        return Ok(());
    }
    let folder = workspace.target_directory.join("autofuture-evaluation");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    run_cargo(&["build", "--quiet", "-p", "cargo-autofuture"], &[])?;
    println!("| crate | what | tests before | candidates | rejected | tests after | analysis |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    let mut changed = Vec::new();
    for (name, version, what) in CRATES {
        if !names.is_empty() && !names.contains(&name) {
            continue;
        }
        match evaluate(&workspace, &folder, name, version) {
            Ok(row) => {
                println!(
                    "| {name} {version} | {what} | {} | {} | {} | {} | {:.1} s |",
                    row.before,
                    row.candidates,
                    row.rejected,
                    row.after,
                    row.analysis.as_secs_f64()
                );
                if row.has_changed {
                    changed.push(name);
                }
            }
            Err(why) => println!("| {name} {version} | {what} | {} | | | | |", why.trim()),
        }
    }
    if changed.is_empty() {
        return Ok(());
    }
    Err(format!("the behaviour of these crates changed: {}", changed.join(", ")))
}

struct Row {
    before: String,
    candidates: String,
    rejected: String,
    after: String,
    analysis: Duration,
    has_changed: bool,
}

fn evaluate(
    workspace: &Workspace,
    folder: &Path,
    name: &str,
    version: &str,
) -> Result<Row, String> {
    let package = copy(folder, name, version)?;
    let target = folder.join("target");
    let tests = |seed: Option<u64>| -> Result<Vec<String>, String> {
        let mut command = Command::new(cargo());
        command.args(["test", "--no-fail-fast", "--tests"]);
        command.current_dir(&package).env("CARGO_TARGET_DIR", &target);
        if let Some(seed) = seed {
            command.env("COREBEAT_FUTURE_SEED", seed.to_string());
        }
        results(limited(&mut command)?)
    };
    let before = tests(None)?;
    let mut autofuture = Command::new(workspace.target_directory.join("debug/cargo-autofuture"));
    autofuture
        .args(["--apply", "--allow-dirty", "--manifest-path"])
        .arg(package.join("Cargo.toml"))
        // For the crate, but not for the driver: the dependencies of all crates are built once.
        .env_remove("CARGO_TARGET_DIR")
        .env("CARGO_BUILD_TARGET_DIR", &target);
    let start = Instant::now();
    let (is_ok, text) = limited(&mut autofuture)?;
    let analysis = start.elapsed();
    if !is_ok {
        return Err(text.lines().last().unwrap_or("no message").to_owned());
    }
    let counts = text.lines().find_map(|line| line.split_once(" candidates, "));
    let (candidates, rest) = counts.unwrap_or(("0", "0 rejected"));
    let mut has_changed = false;
    if candidates != "0" {
        for seed in 0..SEEDS {
            has_changed |= tests(Some(seed))? != before;
        }
    }
    let after = match (candidates, has_changed) {
        ("0", _) => "not rewritten".into(),
        (_, false) => format!("the same under {SEEDS} seeds"),
        (_, true) => "different".into(),
    };
    Ok(Row {
        before: summary(&before),
        candidates: candidates.into(),
        rejected: rest.trim_end_matches(" rejected").into(),
        after,
        analysis,
        has_changed,
    })
}

/// A copy of the sources of a crate, in a workspace of its own.
fn copy(folder: &Path, name: &str, version: &str) -> Result<PathBuf, String> {
    let failed = |e: std::io::Error| format!("{name}: {e}");
    let getter = folder.join(format!("get-{name}"));
    let _ = std::fs::remove_dir_all(&getter);
    std::fs::create_dir_all(getter.join("src")).map_err(failed)?;
    std::fs::write(getter.join("src/lib.rs"), "").map_err(failed)?;
    let manifest = format!(
        "[package]\nname = \"get\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[workspace]\n\
         [dependencies]\n{name} = \"={version}\"\n"
    );
    std::fs::write(getter.join("Cargo.toml"), manifest).map_err(failed)?;
    let metadata = output(Command::new(cargo()).current_dir(&getter).args([
        "metadata",
        "--format-version",
        "1",
    ]))?;
    let metadata: serde_json::Value =
        serde_json::from_str(&metadata).map_err(|e| format!("cargo metadata: {e}"))?;
    let source = metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|package| package["name"] == name)
        .and_then(|package| Path::new(package["manifest_path"].as_str()?).parent());
    let source = match source {
        Some(source) => source.to_owned(),
        None => program_source(name, version)?,
    };
    let package = folder.join(name);
    writable_copy(&source, &package)?;
    let manifest = package.join("Cargo.toml");
    let text = std::fs::read_to_string(&manifest).map_err(failed)?;
    if !text.lines().any(|line| line.trim() == "[workspace]") {
        std::fs::write(&manifest, text + "\n[workspace]\n").map_err(failed)?;
    }
    Ok(package)
}

/// The sources of a package without a library, which cargo does not accept as a dependency:
/// `cargo info` unpacks them in the cache of the registry.
fn program_source(name: &str, version: &str) -> Result<PathBuf, String> {
    output(Command::new(cargo()).arg("info").arg(format!("{name}@{version}")))?;
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let caches = home.map(|home| home.join("registry").join("src"));
    let caches = caches.and_then(|folder| std::fs::read_dir(folder).ok()).into_iter().flatten();
    caches
        .flatten()
        .map(|cache| cache.path().join(format!("{name}-{version}")))
        .find(|folder| folder.join("Cargo.toml").exists())
        .ok_or_else(|| format!("{name} {version} is not in the registry"))
}

/// Copies the sources of a crate.
fn writable_copy(source: &Path, package: &Path) -> Result<(), String> {
    let _ = std::fs::remove_dir_all(package);
    let parent = package.parent().unwrap_or(package);
    std::fs::create_dir_all(parent).map_err(|e| format!("{}: {e}", parent.display()))?;
    output(Command::new("cp").arg("-r").arg(source).arg(package))?;
    output(Command::new("chmod").args(["-R", "u+w"]).arg(package))?;
    // A toolchain that the crate pins for its own checks.
    for file in ["rust-toolchain", "rust-toolchain.toml"] {
        let _ = std::fs::remove_file(package.join(file));
    }
    Ok(())
}

/// Whether a command succeeded, and its output.
fn limited(command: &mut Command) -> Result<(bool, String), String> {
    limited_with(command, Stdio::null())
}

/// The same with this standard input.
fn limited_with(command: &mut Command, input: Stdio) -> Result<(bool, String), String> {
    let mut limited = Command::new("timeout");
    limited.arg(LIMIT.as_secs().to_string()).arg(command.get_program()).args(command.get_args());
    if let Some(folder) = command.get_current_dir() {
        limited.current_dir(folder);
    }
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            limited.env(name, value);
        }
    }
    let output =
        limited.stdin(input).output().map_err(|e| format!("timeout could not be started: {e}"))?;
    // The status of timeout for a command that it ended.
    if output.status.code() == Some(124) {
        let name = command.get_program().display();
        return Err(format!("{name} does not end in {} s", LIMIT.as_secs()));
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    Ok((output.status.success(), format!("{text}{errors}")))
}

/// The result of each test that is not ignored, sorted.
fn results((_, text): (bool, String)) -> Result<Vec<String>, String> {
    let mut results: Vec<String> = text
        .lines()
        .filter(|line| line.starts_with("test ") && line.contains(" ... "))
        .filter(|line| !line.contains(" ... ignored"))
        .map(String::from)
        .collect();
    results.sort();
    if results.is_empty() && !text.contains("test result: ok") {
        let error = text.lines().find(|line| line.starts_with("error"));
        return Err(format!("its tests do not compile: {}", error.unwrap_or("no message")));
    }
    Ok(results)
}

fn summary(results: &[String]) -> String {
    let passed = results.iter().filter(|result| result.ends_with(" ok")).count();
    match results.len() - passed {
        0 => format!("{passed} pass"),
        other => format!("{passed} pass, {other} do not"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_those_of_the_tests_that_ran() {
        let text = "running 3 tests\ntest b ... ok\ntest a ... FAILED\ntest c ... ignored, slow\n";
        let found = results((false, text.into())).unwrap();
        assert_eq!(found, ["test a ... FAILED", "test b ... ok"]);
        assert_eq!(summary(&found), "1 pass, 1 do not");
        let error = results((false, "error[E0308]: mismatched types\n".into())).unwrap_err();
        assert_eq!(error, "its tests do not compile: error[E0308]: mismatched types");
    }
}
