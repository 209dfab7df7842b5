//! The command `bench report`: writes the stored rows into the book.
//!
//! The tables and values of the pages are between [markers](crate::marker). The figures are those
//! of [`crate::figure`] whose rows are stored.

use crate::stored::{self, Stored};
use crate::{figure, marker};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub(crate) fn main() -> Result<ExitCode, String> {
    for (path, text) in outdated(stored::root())? {
        let shown = path.display();
        std::fs::write(&path, text).map_err(|e| format!("cannot write {shown}: {e}"))?;
        println!("{shown}");
    }
    Ok(ExitCode::SUCCESS)
}

/// The files of the book that differ from the stored rows, with their new content.
fn outdated(root: &Path) -> Result<Vec<(PathBuf, String)>, String> {
    let benches = stored::read_all()?;
    let mut files = Vec::new();
    for path in pages(root)? {
        let page = read(&path)?;
        let shown = path.strip_prefix(root).unwrap_or(&path).display();
        let filled = marker::fill(&page, &benches);
        files.push((path.clone(), filled.map_err(|(line, why)| format!("{shown}:{line}: {why}"))?));
    }
    let rows = benches.values().flat_map(|Stored { rows, .. }| rows);
    let figures = figure::draw_all(rows)?;
    files.extend(
        figures.into_iter().map(|(name, text)| (root.join("docs/figures").join(name), text)),
    );
    files.retain(|(path, text)| read(path).as_ref() != Ok(text));
    Ok(files)
}

fn pages(root: &Path) -> Result<Vec<PathBuf>, String> {
    let folder = root.join("docs");
    let failed = |e: std::io::Error| format!("cannot read {}: {e}", folder.display());
    let mut pages = vec![root.join("README.md")];
    for entry in std::fs::read_dir(&folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
    pages.sort();
    Ok(pages)
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn book_has_the_stored_rows() {
        let outdated = outdated(stored::root()).unwrap();
        let paths: Vec<_> = outdated.iter().map(|(path, _)| path).collect();
        assert!(paths.is_empty(), "{paths:?} differ; 'cargo run -p bench -- report' writes them");
    }
}
