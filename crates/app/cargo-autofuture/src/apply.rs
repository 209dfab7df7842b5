//! Rewrites the source, adds the dependency, and undoes both.

use crate::Options;
use crate::analysis::{Project, own_cargo, select};
use crate::edit::{Change, changes, patch, replace};
use crate::error::Error;
use crate::finding::Finding;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The crate that rewritten code uses, in the checkout from which this program was built.
const FUTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../parallel/corebeat-future");

/// A file before and after the rewrite. A file that was not there before has no old text.
#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    path: PathBuf,
    old: Option<String>,
    new: Option<String>,
}

/// Requires that git has committed all files of the project.
pub(crate) fn require_clean(project: &Project) -> Result<(), Error> {
    let output = Command::new("git")
        .arg("-C")
        .arg(&project.root)
        .args(["status", "--porcelain", "--", "."])
        .output();
    let is_clean = output.is_ok_and(|output| output.status.success() && output.stdout.is_empty());
    if is_clean { Ok(()) } else { Err(Error::Dirty(project.root.clone())) }
}

/// Applies all candidates.
pub(crate) fn apply(
    options: &Options,
    project: &Project,
    findings: &[Finding],
) -> Result<(), Error> {
    let candidates: Vec<&Finding> = findings.iter().filter(|f| f.is_candidate()).collect();
    if candidates.is_empty() {
        return Ok(());
    }
    let changes = changes(&project.root, &candidates)?;
    let folder = write_patches(project, &candidates)?;
    for change in &changes {
        print!("{}", patch(&project.root, change));
    }
    println!("Patches, one for each candidate: {}", folder.display());
    let manifests: BTreeSet<&Path> = candidates.iter().map(|f| f.manifest.as_path()).collect();
    let mut saved: Vec<Saved> = Vec::new();
    for path in manifests.iter().copied().chain([project.root.join("Cargo.lock").as_path()]) {
        saved.push(Saved { path: path.into(), old: std::fs::read_to_string(path).ok(), new: None });
    }
    saved.extend(changes.iter().map(|change| Saved {
        path: change.path.clone(),
        old: Some(change.old.clone()),
        new: None,
    }));
    let rewritten = rewrite(options, &manifests, &changes);
    if let Err(error) = rewritten {
        restore(&saved)?;
        return Err(error);
    }
    for file in &mut saved {
        file.new = std::fs::read_to_string(&file.path).ok();
    }
    let record = project.folder().join("undo.json");
    let text = serde_json::to_string(&saved).unwrap_or_default();
    std::fs::write(&record, text).map_err(Error::file(&record))?;
    println!("{} candidates applied; --undo restores the files", candidates.len());
    Ok(())
}

/// Writes a patch for each candidate alone, against the present files.
fn write_patches(project: &Project, candidates: &[&Finding]) -> Result<PathBuf, Error> {
    let folder = project.folder().join("patches");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).map_err(Error::file(&folder))?;
    for (i, candidate) in candidates.iter().enumerate() {
        let file = candidate.span.file_name.display().to_string().replace('/', "-");
        let name = format!(
            "{:04}-{}-{file}-{}.patch",
            i + 1,
            candidate.pattern(),
            candidate.span.line_start
        );
        let text: String = changes(&project.root, &[candidate])?
            .iter()
            .map(|change| patch(&project.root, change))
            .collect();
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(Error::file(&path))?;
    }
    Ok(folder)
}

/// Writes the files, adds the dependency, and compiles the result.
fn rewrite(
    options: &Options,
    manifests: &BTreeSet<&Path>,
    changes: &[Change],
) -> Result<(), Error> {
    for manifest in manifests {
        depend(options, manifest)?;
    }
    for change in changes {
        replace(&change.path, &change.new)?;
    }
    let mut cargo = Command::new(own_cargo());
    cargo.args(["check", "--quiet"]);
    select(&mut cargo, options);
    let output =
        cargo.output().map_err(|source| Error::Start { program: "cargo".into(), source })?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::Rewritten(first_error(&output.stderr)))
}

fn first_error(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let line = text.lines().find(|line| line.starts_with("error"));
    line.or(text.lines().next()).unwrap_or("no message").to_owned()
}

/// Adds the dependency to a Cargo.toml that does not have it.
fn depend(options: &Options, manifest: &Path) -> Result<(), Error> {
    let text = std::fs::read_to_string(manifest).map_err(Error::file(manifest))?;
    if text.lines().any(|line| line.trim_start().starts_with("corebeat-future")) {
        return Ok(());
    }
    let folder = match &options.future_path {
        Some(folder) => folder.clone(),
        None => PathBuf::from(FUTURE),
    };
    let folder = folder.canonicalize().map_err(Error::file(folder))?;
    let mut cargo = Command::new(own_cargo());
    cargo.args(["add", "--quiet", "--path"]).arg(folder).arg("--manifest-path").arg(manifest);
    if options.offline {
        cargo.arg("--offline");
    }
    let output =
        cargo.output().map_err(|source| Error::Start { program: "cargo".into(), source })?;
    if output.status.success() {
        Ok(())
    } else {
        Err(Error::Dependency(first_error(&output.stderr)))
    }
}

/// Restores the files before the rewrite.
fn restore(saved: &[Saved]) -> Result<(), Error> {
    for file in saved {
        match &file.old {
            Some(old) if std::fs::read_to_string(&file.path).is_ok_and(|text| text == *old) => {}
            Some(old) => replace(&file.path, old)?,
            None => {
                // Cargo.lock, which cargo has created.
                let _ = std::fs::remove_file(&file.path);
            }
        }
    }
    Ok(())
}

/// Undoes the last rewrite.
pub(crate) fn undo(project: &Project) -> Result<(), Error> {
    let record = project.folder().join("undo.json");
    let nothing = || Error::NothingToUndo(project.root.clone());
    let text = std::fs::read_to_string(&record).map_err(|_| nothing())?;
    let saved: Vec<Saved> = serde_json::from_str(&text).map_err(|_| nothing())?;
    for file in &saved {
        if std::fs::read_to_string(&file.path).ok() != file.new {
            return Err(Error::ChangedSince(file.path.clone()));
        }
    }
    restore(&saved)?;
    std::fs::remove_file(&record).map_err(Error::file(&record))?;
    println!("{} files restored", saved.len());
    Ok(())
}
