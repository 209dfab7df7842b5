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

/// Added to a source file as it was: the compiler reads a dependency only if the sources name it.
const NAMED: &str = "\nextern crate corebeat_future as _;\n";

/// A file before and after the rewrite. A file that was not there before has no old text.
#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    path: PathBuf,
    old: Option<String>,
    new: Option<String>,
}

/// The record of a rewrite, which `--undo` reads.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    /// The rewrite has ended: all new texts are known.
    is_complete: bool,
    files: Vec<Saved>,
}

impl Record {
    fn write(&self, project: &Project) -> Result<(), Error> {
        let path = record_path(project);
        let beside = path.with_extension("json-new");
        let text = serde_json::to_string(self).map_err(|e| Error::file(&path)(e.into()))?;
        std::fs::write(&beside, text)
            .and_then(|()| std::fs::rename(&beside, &path))
            .map_err(Error::file(&path))
    }
}

fn record_path(project: &Project) -> PathBuf {
    project.folder().join("undo.json")
}

/// Requires that no earlier rewrite was interrupted: its record has the only copy of some files.
pub(crate) fn require_complete(project: &Project) -> Result<(), Error> {
    let text = std::fs::read_to_string(record_path(project)).unwrap_or_default();
    let record: Result<Record, _> = serde_json::from_str(&text);
    match record.is_ok_and(|record| !record.is_complete) {
        true => Err(Error::Interrupted(project.root.clone())),
        false => Ok(()),
    }
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
    let mut record = Record { is_complete: false, files: Vec::new() };
    for path in manifests.iter().copied().chain([project.root.join("Cargo.lock").as_path()]) {
        record.files.push(Saved { path: path.into(), old: present(path)?, new: None });
    }
    record.files.extend(changes.iter().map(|change| Saved {
        path: change.path.clone(),
        old: Some(change.old.clone()),
        new: Some(change.new.clone()),
    }));
    // Before the first file changes: `--undo` then restores also what an interrupted run leaves.
    record.write(project)?;
    if let Err(reason) = rewrite(options, project, &manifests, &changes) {
        return Err(match restore(&record.files) {
            Ok(()) => {
                let path = record_path(project);
                std::fs::remove_file(&path).map_err(Error::file(&path))?;
                reason
            }
            Err(failed) => {
                Error::NotRestored { reason: Box::new(reason), failed: Box::new(failed) }
            }
        });
    }
    for file in &mut record.files {
        file.new = present(&file.path)?;
    }
    record.is_complete = true;
    record.write(project)?;
    println!("{} candidates applied; --undo restores the files", candidates.len());
    Ok(())
}

/// The text of a file, or `None` if there is none.
fn present(path: &Path) -> Result<Option<String>, Error> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::file(path)(e)),
    }
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
    project: &Project,
    manifests: &BTreeSet<&Path>,
    changes: &[Change],
) -> Result<(), Error> {
    for manifest in manifests {
        if !project.has_runtime(manifest) {
            depend(options, manifest)?;
        }
    }
    for change in changes {
        replace(&change.path, &change.new)?;
    }
    let Err(error) = compile(options)? else { return Ok(()) };
    // The sources as they were, with the runtime: is the rewrite the reason, or the dependency?
    for change in changes {
        replace(&change.path, &format!("{}{NAMED}", change.old))?;
    }
    Err(match compile(options)? {
        Ok(()) => Error::Rewritten(error),
        Err(error) => Error::Runtime(error),
    })
}

/// Compiles the package with the toolchain of the user. The inner result has the first error.
fn compile(options: &Options) -> Result<Result<(), String>, Error> {
    let mut cargo = Command::new(own_cargo());
    cargo.args(["check", "--quiet"]);
    select(&mut cargo, options);
    let output =
        cargo.output().map_err(|source| Error::Start { program: "cargo".into(), source })?;
    Ok(if output.status.success() { Ok(()) } else { Err(first_error(&output.stderr)) })
}

/// The first error of a compiler, with its place.
fn first_error(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let mut lines = text.lines().skip_while(|line| !line.starts_with("error"));
    let Some(error) = lines.next() else {
        return text.lines().next().unwrap_or("no message").to_owned();
    };
    // The place is in the next line, if the error has one.
    match lines.next().and_then(|line| line.trim().strip_prefix("--> ")) {
        Some(place) => format!("{error} ({place})"),
        None => error.to_owned(),
    }
}

/// Adds the dependency to a Cargo.toml that does not have it.
fn depend(options: &Options, manifest: &Path) -> Result<(), Error> {
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

/// Restores the files before the rewrite, all that can be restored.
fn restore(saved: &[Saved]) -> Result<(), Error> {
    let mut failed = Ok(());
    for file in saved {
        let restored = match &file.old {
            Some(old) if std::fs::read_to_string(&file.path).is_ok_and(|text| text == *old) => {
                Ok(())
            }
            Some(old) => replace(&file.path, old),
            None => {
                // Cargo.lock, which cargo has created, perhaps.
                let _ = std::fs::remove_file(&file.path);
                Ok(())
            }
        };
        failed = failed.and(restored);
    }
    failed
}

/// Undoes the last rewrite, also one that was interrupted.
pub(crate) fn undo(project: &Project) -> Result<(), Error> {
    let path = record_path(project);
    let nothing = || Error::NothingToUndo(project.root.clone());
    let text = std::fs::read_to_string(&path).map_err(|_| nothing())?;
    let record: Record = serde_json::from_str(&text).map_err(|_| nothing())?;
    for file in &record.files {
        let now = present(&file.path)?;
        let is_known = now == file.new || !record.is_complete && is_of_rewrite(file, &now);
        if !is_known {
            return Err(Error::ChangedSince(file.path.clone()));
        }
    }
    restore(&record.files)?;
    std::fs::remove_file(&path).map_err(Error::file(&path))?;
    println!("{} files restored", record.files.len());
    Ok(())
}

/// Whether an interrupted rewrite may have left this text.
fn is_of_rewrite(file: &Saved, now: &Option<String>) -> bool {
    // Without the dependency, in which cargo may also change the space around it.
    let rest = |text: &Option<String>| -> Vec<String> {
        let lines = text.iter().flat_map(|text| text.lines());
        lines
            .map(str::trim)
            .filter(|l| {
                !l.is_empty() && *l != "[dependencies]" && !l.starts_with("corebeat-future ")
            })
            .map(String::from)
            .collect()
    };
    let is_lock = file.path.file_name().is_some_and(|name| name == "Cargo.lock");
    // From the beginning, the record has the new texts of the sources only.
    let is_source = file.new.is_some();
    let is_named = now.as_ref().and_then(|now| now.strip_suffix(NAMED)) == file.old.as_deref();
    is_lock || *now == file.old || if is_source { is_named } else { rest(now) == rest(&file.old) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_error_has_its_place() {
        let text = b"warning: a\nerror[E0282]: type annotations needed\n  --> src/a.rs:3:5\n   |\n";
        assert_eq!(first_error(text), "error[E0282]: type annotations needed (src/a.rs:3:5)");
        assert_eq!(first_error(b"error: no\n\n --> a:1:1\n"), "error: no");
        assert_eq!(first_error(b"one\ntwo\n"), "one");
        assert_eq!(first_error(b""), "no message");
    }

    #[test]
    fn a_file_that_cannot_be_restored_does_not_stop_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("b.rs"), "new").unwrap();
        let saved = ["missing/a.rs", "b.rs"].map(|name| Saved {
            path: path(name),
            old: Some("old".into()),
            new: Some("new".into()),
        });
        let failed = restore(&saved).unwrap_err();
        assert!(failed.to_string().contains("missing/a.rs"), "{failed}");
        assert_eq!(std::fs::read_to_string(path("b.rs")).unwrap(), "old");
    }

    #[test]
    fn an_interrupted_rewrite_leaves_known_texts_only() {
        let file = |name: &str, new: Option<&str>| Saved {
            path: name.into(),
            old: Some("old\n".into()),
            new: new.map(String::from),
        };
        let is_known = |file: &Saved, now: &str| is_of_rewrite(file, &Some(now.into()));
        let source = file("src/main.rs", Some("new\n"));
        assert!(is_known(&source, "old\n"));
        assert!(is_known(&source, &format!("old\n{NAMED}")));
        for other in ["", NAMED, "old\n\n", &format!("old\n{NAMED}\n"), &format!("other{NAMED}")] {
            assert!(!is_known(&source, other), "{other}");
        }
        assert!(!is_of_rewrite(&source, &None));
        let manifest = file("Cargo.toml", None);
        assert!(is_known(&manifest, "old\n\n[dependencies]\ncorebeat-future = \"1\"\n"));
        assert!(!is_known(&manifest, &format!("old\n{NAMED}")));
        assert!(is_known(&file("Cargo.lock", None), "other"));
    }

    #[test]
    fn a_file_that_cannot_be_read_is_not_taken_for_a_missing_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("Cargo.lock");
        assert!(present(&path).unwrap().is_none());
        std::fs::write(&path, [0xff, 0xfe]).unwrap();
        let failed = present(&path).unwrap_err();
        assert!(failed.to_string().contains("Cargo.lock"), "{failed}");
    }
}
