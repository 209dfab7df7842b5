//! The workspace as `cargo metadata` reports it.

use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The crates of the workspace.
#[derive(Debug, Deserialize)]
pub(crate) struct Workspace {
    pub(crate) packages: Vec<Package>,
    #[serde(rename = "workspace_root")]
    pub(crate) root: PathBuf,
    pub(crate) target_directory: PathBuf,
}

/// A crate.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    /// The registries that may have the crate: none, or `None` for all.
    pub(crate) publish: Option<Vec<String>>,
    pub(crate) manifest_path: PathBuf,
    pub(crate) dependencies: Vec<Dependency>,
}

/// A dependency of a crate: ordinary, build or development.
#[derive(Debug, Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// The folder of a crate on this disk, which is not from a registry.
    pub(crate) path: Option<PathBuf>,
    /// `dev` or `build`; `None` for an ordinary dependency.
    pub(crate) kind: Option<String>,
}

impl Dependency {
    /// Whether only tests, examples and benchmarks use it.
    pub(crate) fn is_for_tests(&self) -> bool {
        self.kind.as_deref() == Some("dev")
    }
}

impl Workspace {
    /// Reads the workspace from `cargo metadata`.
    pub(crate) fn read() -> Result<Workspace, String> {
        let mut cargo = Command::new(cargo());
        cargo.args(["metadata", "--format-version", "1", "--no-deps", "--offline"]);
        cargo.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")));
        let output =
            cargo.output().map_err(|e| format!("cargo metadata could not be started: {e}"))?;
        if !output.status.success() {
            return Err(format!(
                "cargo metadata failed: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            ));
        }
        serde_json::from_slice(&output.stdout)
            .map_err(|e| format!("the output of cargo metadata cannot be parsed: {e}"))
    }

    /// The crate of this name.
    pub(crate) fn package(&self, name: &str) -> Result<&Package, String> {
        let package = self.packages.iter().find(|package| package.name == name);
        package.ok_or_else(|| format!("the workspace has no crate {name}"))
    }
}

impl Package {
    /// Whether crates.io gets the crate.
    pub(crate) fn is_published(&self) -> bool {
        self.publish.is_none()
    }

    /// The folder of the crate, relative to the root of the workspace.
    pub(crate) fn folder<'a>(&'a self, workspace: &Workspace) -> &'a Path {
        let folder = self.manifest_path.parent().unwrap_or(&self.manifest_path);
        folder.strip_prefix(&workspace.root).unwrap_or(folder)
    }
}

/// The cargo that runs this.
pub(crate) fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".into())
}

/// All files under a folder whose name ends with `ending`, sorted. Unreadable folders are left out,
/// and target folders of cargo.
pub(crate) fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            if !path.ends_with("target") {
                found.extend(files(&path, ending));
            }
        } else if path.to_string_lossy().ends_with(ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}
