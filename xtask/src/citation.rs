//! The front pages of the crates: every test that an invariant cites exists.

use crate::page::read;
use crate::workspace::{Package, Workspace, files};
use std::collections::BTreeSet;
use std::path::Path;

/// A cited word with this many underscores or more is the name of a test.
const UNDERSCORES_MIN: usize = 2;

/// Checks the front page of every crate.
pub(crate) fn check(workspace: &Workspace) -> Result<Vec<String>, String> {
    let mut functions = BTreeSet::new();
    for source in files(&workspace.root.join("crates"), ".rs") {
        functions.extend(functions_in(&read(&source)?));
    }
    let pages = workspace.packages.iter().filter_map(|package| {
        let folder = workspace.root.join(package.folder(workspace));
        let page = std::fs::read_to_string(folder.join("src/lib.rs")).ok()?;
        Some((package, folder, page))
    });
    Ok(pages
        .flat_map(|(package, folder, page)| missing(package, &folder, &page, &functions))
        .collect())
}

/// The names of all functions in a source.
fn functions_in(text: &str) -> Vec<String> {
    let name = |rest: &str| {
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        rest[..end].to_owned()
    };
    text.split("fn ").skip(1).map(name).collect()
}

/// Returns the citations of a front page that name no test.
fn missing(
    package: &Package,
    folder: &Path,
    page: &str,
    functions: &BTreeSet<String>,
) -> Vec<String> {
    let is_missing = |cited: &&str| match cited.strip_prefix("tests/") {
        Some(_) if cited.ends_with(".rs") => !folder.join(cited).exists(),
        _ => is_test_name(cited) && !functions.contains(*cited),
    };
    citations(page)
        .into_iter()
        .filter(is_missing)
        .map(|cited| format!("the front page of {} cites {cited}, which is missing", package.name))
        .collect()
}

fn is_test_name(word: &str) -> bool {
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    word.chars().all(is_name) && word.matches('_').count() >= UNDERSCORES_MIN
}

/// All words between backquotes in the section "Invariants".
fn citations(page: &str) -> Vec<&str> {
    let lines = page.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim);
    let section = lines.skip_while(|line| *line != "# Invariants").skip(1);
    section
        .take_while(|line| !line.starts_with("# "))
        .flat_map(|line| line.split('`').skip(1).step_by(2))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn citation_without_a_test_is_reported() {
        let page = "//! A crate.\n//!\n//! # Invariants\n//!\n\
                    //! 1. Holds (`it_holds_always`, `it_is_gone_now`; `tests/none.rs`).\n\
                    //! # Failure\n//! `not_cited_at_all`\n";
        let functions = BTreeSet::from(["it_holds_always".to_owned()]);
        let package = Package {
            name: "c".into(),
            manifest_path: "/w/c/Cargo.toml".into(),
            ..Package::default()
        };
        let found = missing(&package, Path::new("/w/c"), page, &functions);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("it_is_gone_now") && found[1].contains("tests/none.rs"));
    }

    #[test]
    fn functions_are_found_by_name() {
        assert_eq!(functions_in("fn a() {}\npub async fn b_c<T>(x: T)"), ["a", "b_c"]);
    }
}
