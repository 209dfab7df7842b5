//! Runs `cargo check` with the driver as the compiler, and reads what it reports.

use crate::Options;
use crate::error::Error;
use crate::finding::{Finding, Line, merge};
use crate::toolchain::Toolchain;
use serde::Deserialize;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The package or workspace.
#[derive(Debug, Deserialize)]
pub(crate) struct Project {
    #[serde(rename = "workspace_root")]
    pub(crate) root: PathBuf,
    pub(crate) target_directory: PathBuf,
}

impl Project {
    /// Reads the project from `cargo metadata`.
    pub(crate) fn read(options: &Options) -> Result<Project, Error> {
        let mut cargo = Command::new(own_cargo());
        cargo.args(["metadata", "--format-version", "1", "--no-deps"]);
        add_manifest(&mut cargo, options);
        let output =
            cargo.output().map_err(|source| Error::Start { program: "cargo".into(), source })?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("");
            return Err(Error::Package(line.trim_start_matches("error: ").to_owned()));
        }
        serde_json::from_slice(&output.stdout).map_err(|e| Error::Package(e.to_string()))
    }

    /// The folder for files of this command.
    pub(crate) fn folder(&self) -> PathBuf {
        self.target_directory.join("autofuture")
    }
}

/// The cargo of the user.
pub(crate) fn own_cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".into())
}

fn add_manifest(cargo: &mut Command, options: &Options) {
    if let Some(path) = &options.manifest_path {
        cargo.arg("--manifest-path").arg(path);
    }
    if options.offline {
        cargo.arg("--offline");
    }
}

/// Adds the selection of packages and features to a command of cargo.
pub(crate) fn select(cargo: &mut Command, options: &Options) {
    add_manifest(cargo, options);
    for package in &options.package {
        cargo.args(["--package", package]);
    }
    for features in &options.features {
        cargo.args(["--features", features]);
    }
    let flags = [
        (options.workspace, "--workspace"),
        (options.all_features, "--all-features"),
        (options.no_default_features, "--no-default-features"),
    ];
    cargo.args(flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag));
}

/// Analyses the selected packages. With `--json` the messages are printed as they come.
pub(crate) fn run(
    options: &Options,
    project: &Project,
    toolchain: &Toolchain,
    driver: &Path,
) -> Result<Vec<Finding>, Error> {
    let driver = driver.canonicalize().map_err(Error::file(driver))?;
    let mut cargo = toolchain.cargo();
    let has_colours = std::io::stdout().is_terminal() && !options.json;
    cargo.arg("check").arg(if has_colours {
        "--message-format=json-diagnostic-rendered-ansi"
    } else {
        "--message-format=json"
    });
    select(&mut cargo, options);
    cargo.arg("--target-dir").arg(target(project, &driver)?);
    cargo.env("RUSTC_WRAPPER", &driver).env("RUSTC_WORKSPACE_WRAPPER", &driver);
    let mut child = cargo
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|source| Error::Start { program: "rustup".into(), source })?;
    let mut findings = Vec::new();
    let mut errors = Vec::new();
    let output = child.stdout.take();
    for text in output.into_iter().flat_map(|output| BufReader::new(output).lines()) {
        let Ok(text) = text else { break };
        if options.json {
            // A reader that has ended needs no more lines.
            if writeln!(std::io::stdout(), "{text}").is_err() {
                break;
            }
        }
        let Ok(line) = serde_json::from_str::<Line>(&text) else { continue };
        let Some(message) = line.message.filter(|_| line.reason == "compiler-message") else {
            continue;
        };
        if let Some(finding) = Finding::of(line.manifest_path, &message) {
            findings.push(finding);
        } else if message.level.starts_with("error") {
            errors.push(message.rendered.unwrap_or(message.message));
        }
    }
    let status = child.wait().map_err(|source| Error::Start { program: "cargo".into(), source })?;
    if !status.success() {
        if !options.json {
            errors.iter().for_each(|error| eprint!("{error}"));
        }
        return Err(Error::Compile { toolchain: toolchain.name.clone() });
    }
    Ok(merge(findings))
}

/// The target folder of the analysis: another one for each driver, because cargo repeats the
/// messages of crates that have not changed.
fn target(project: &Project, driver: &Path) -> Result<PathBuf, Error> {
    let mut hasher = DefaultHasher::new();
    std::fs::read(driver).map_err(Error::file(driver))?.hash(&mut hasher);
    std::env::var_os("COREBEAT_EFFECT_FAULT").hash(&mut hasher);
    let name = format!("check-{:016x}", hasher.finish());
    let folder = project.folder();
    // Removes those of earlier drivers.
    for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
        let old = entry.file_name();
        if old.to_string_lossy().starts_with("check-") && old.to_string_lossy() != name {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    Ok(folder.join(name))
}
