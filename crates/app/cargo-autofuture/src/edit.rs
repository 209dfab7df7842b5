//! Changed texts of files, and their differences.

use crate::error::Error;
use crate::finding::Finding;
use similar::TextDiff;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A file with its old and its new text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) path: PathBuf,
    pub(crate) old: String,
    pub(crate) new: String,
}

/// The changes that apply all candidates in `findings`.
pub(crate) fn changes(root: &Path, findings: &[&Finding]) -> Result<Vec<Change>, Error> {
    let mut files: BTreeMap<PathBuf, Vec<&Finding>> = BTreeMap::new();
    for finding in findings {
        files.entry(root.join(&finding.span.file_name)).or_default().push(finding);
    }
    files
        .into_iter()
        .map(|(path, findings)| {
            let old = std::fs::read_to_string(&path).map_err(Error::file(&path))?;
            match rewrite(&old, &findings) {
                Some(new) => Ok(Change { new: formatted(&path, &old, new), path, old }),
                None => Err(Error::Changed(path)),
            }
        })
        .collect()
}

/// The text with the candidates applied; `None` if it is not the text that was analysed.
fn rewrite(old: &str, findings: &[&Finding]) -> Option<String> {
    let mut findings = findings.to_vec();
    findings.sort_by_key(|finding| finding.span.byte_start);
    let has_returns = old.contains("\r\n");
    let mut new = String::with_capacity(old.len());
    let mut done = 0;
    for finding in findings {
        let span = &finding.span;
        let lines = old.lines().skip(span.line_start.checked_sub(1)?);
        let is_analysed = lines.zip(&span.text).filter(|(line, read)| *line == read.text).count()
            == span.text.len();
        if !is_analysed || span.byte_start < done {
            return None;
        }
        new.push_str(old.get(done..span.byte_start)?);
        let replacement = finding.replacement.as_ref()?;
        if has_returns {
            new.push_str(&replacement.replace("\r\n", "\n").replace('\n', "\r\n"));
        } else {
            new.push_str(replacement);
        }
        done = span.byte_end;
    }
    new.push_str(old.get(done..)?);
    Some(new)
}

/// The new text in the format of rustfmt, if the old text was in that format.
fn formatted(path: &Path, old: &str, new: String) -> String {
    match format(path, old) {
        Some(text) if text == old => format(path, &new).unwrap_or(new),
        _ => new,
    }
}

/// The text as rustfmt formats it with the settings of its folder.
fn format(path: &Path, text: &str) -> Option<String> {
    use std::io::Write;
    use std::process::{Command, Stdio};
    let mut rustfmt = Command::new("rustfmt")
        .args(["--quiet", "--edition", edition(path)])
        .current_dir(path.parent()?)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut input = rustfmt.stdin.take()?;
    let text = text.to_owned();
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()).is_ok());
    let output = rustfmt.wait_with_output().ok()?;
    let written = writer.join().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (written && output.status.success()).then_some(text)
}

/// The edition of the package that contains a file.
fn edition(path: &Path) -> &'static str {
    let manifest = path
        .ancestors()
        .map(|folder| folder.join("Cargo.toml"))
        .find_map(|manifest| std::fs::read_to_string(manifest).ok())
        .unwrap_or_default();
    let line = manifest.lines().find(|line| line.trim_start().starts_with("edition"));
    let known = ["2018", "2021", "2024"];
    // An edition that the workspace sets: all of them parse what the analysis accepts.
    known.into_iter().find(|year| line.is_some_and(|line| line.contains(year))).unwrap_or("2024")
}

/// The difference as a patch for `git apply`, with names relative to `root`.
pub(crate) fn patch(root: &Path, change: &Change) -> String {
    let name = change.path.strip_prefix(root).unwrap_or(&change.path).display().to_string();
    TextDiff::from_lines(&change.old, &change.new)
        .unified_diff()
        .header(&format!("a/{name}"), &format!("b/{name}"))
        .to_string()
}

/// Replaces the content of a file as a whole.
///
/// A symbolic link stays one: the file that it names is replaced.
pub(crate) fn replace(path: &Path, text: &str) -> Result<(), Error> {
    let path = &path.canonicalize().map_err(Error::file(path))?;
    let beside = path.with_extension("autofuture-new");
    let written = std::fs::metadata(path).and_then(|old| {
        std::fs::write(&beside, text)?;
        std::fs::set_permissions(&beside, old.permissions())?;
        std::fs::rename(&beside, path)
    });
    written.map_err(|source| {
        let _ = std::fs::remove_file(&beside);
        Error::File { path: path.to_owned(), source }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{SourceLine, Span};

    fn candidate(text: &str, part: &str, replacement: &str) -> Finding {
        let start = text.find(part).unwrap();
        let line = text[..start].matches('\n').count();
        let lines = text.lines().skip(line).take(part.lines().count());
        Finding {
            manifest: PathBuf::new(),
            message: "candidate [map]: text".into(),
            rendered: String::new(),
            span: Span {
                file_name: "src/lib.rs".into(),
                byte_start: start,
                byte_end: start + part.len(),
                line_start: line + 1,
                line_end: line + 1,
                is_primary: true,
                text: lines.map(|text| SourceLine { text: text.into() }).collect(),
                suggested_replacement: None,
            },
            replacement: Some(replacement.into()),
        }
    }

    #[test]
    fn candidates_are_applied_in_the_order_of_the_file() {
        let old = "one;\ntwo;\nthree;\n";
        let (a, b) = (candidate(old, "three", "3"), candidate(old, "one;\ntwo", "1\n2"));
        assert_eq!(rewrite(old, &[&a, &b]).unwrap(), "1\n2;\n3;\n");
    }

    #[test]
    fn a_changed_file_and_overlapping_candidates_are_refused() {
        let old = "one;\ntwo;\n";
        let a = candidate(old, "two", "2");
        assert_eq!(rewrite("one;\ntwi;\n", &[&a]), None);
        let b = candidate(old, "one;\ntwo", "1");
        assert_eq!(rewrite(old, &[&a, &b]), None);
    }

    #[test]
    fn line_endings_are_kept() {
        let old = "one;\r\ntwo;\r\n";
        let a = candidate(old, "two", "2\n3");
        assert_eq!(rewrite(old, &[&a]).unwrap(), "one;\r\n2\r\n3;\r\n");
    }

    #[test]
    fn a_symbolic_link_stays_one() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file.rs"), folder.path().join("link.rs"));
        std::fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink("file.rs", &link).unwrap();
        replace(&link, "new").unwrap();
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "new");
    }

    #[test]
    fn a_patch_names_the_file_in_the_project() {
        let change =
            Change { path: "/p/src/lib.rs".into(), old: "a\nb\n".into(), new: "a\nc\n".into() };
        let patch = patch(Path::new("/p"), &change);
        assert!(patch.starts_with("--- a/src/lib.rs\n+++ b/src/lib.rs\n@@"), "{patch}");
        assert!(patch.contains("-b\n+c\n"), "{patch}");
    }
}
