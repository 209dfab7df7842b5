//! The book: every link leads somewhere, every page is in the summary, every dependency has a reason.

use crate::workspace::{Workspace, files, verdict};
use std::collections::BTreeSet;
use std::path::Path;

/// Checks README.md, ARCHITECTURE.md and all pages under docs.
pub(crate) fn check(workspace: &Workspace) -> Result<(), String> {
    let root = &workspace.root;
    let docs = root.join("docs");
    let pages = files(&docs, ".md");
    let mut complaints = Vec::new();
    for page in [root.join("README.md"), root.join("ARCHITECTURE.md")].iter().chain(&pages) {
        match std::fs::read_to_string(page) {
            Ok(text) => complaints.extend(broken_links(page, &text)),
            Err(e) => complaints.push(format!("{}: {e}", page.display())),
        }
    }
    let summary = std::fs::read_to_string(docs.join("SUMMARY.md")).unwrap_or_default();
    let listed = links(&summary);
    for page in pages.iter().filter_map(|p| p.strip_prefix(&docs).ok()) {
        if page != Path::new("SUMMARY.md") && !listed.iter().any(|l| Path::new(l) == page) {
            complaints.push(format!("docs/SUMMARY.md does not list {}", page.display()));
        }
    }
    let ours: BTreeSet<&str> = workspace.packages.iter().map(|p| p.name.as_str()).collect();
    let used = workspace.packages.iter().flat_map(|p| &p.dependencies).map(|d| d.name.as_str());
    let used = used.filter(|name| !ours.contains(name)).collect();
    let reasons = std::fs::read_to_string(docs.join("dependencies.md")).unwrap_or_default();
    complaints.extend(dependencies(&reasons, &used));
    verdict(complaints)
}

/// The text without code: what is between fences or backquotes is no link.
fn prose(text: &str) -> String {
    let mut out = String::new();
    let mut in_fence = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_fence = !in_fence;
        } else if !in_fence {
            out.extend(line.split('`').step_by(2).flat_map(|part| [part, " "]));
            out.push('\n');
        }
    }
    out
}

/// Where links lead: `[text](target)`, `![alt](target "title")`, and `[name]: target` at the beginning of a line.
fn links(text: &str) -> Vec<String> {
    let prose = prose(text);
    let target = |rest: &str| rest.split_whitespace().next().map(|t| t.trim_matches(['<', '>']).to_owned());
    let inline = prose.split("](").skip(1).filter_map(|rest| target(rest.split_once(')')?.0));
    let named = prose.lines().filter_map(|line| target(line.strip_prefix('[')?.split_once("]: ")?.1));
    inline.chain(named).collect()
}

/// Links to files that are not there. Links to elsewhere in the world are left alone.
fn broken_links(page: &Path, text: &str) -> Vec<String> {
    let folder = page.parent().unwrap_or(page);
    let is_elsewhere = |link: &str| link.contains("://") || link.starts_with("mailto:");
    links(text)
        .into_iter()
        .filter(|link| !is_elsewhere(link))
        .filter(|link| {
            let file = link.split('#').next().unwrap_or_default();
            !file.is_empty() && !folder.join(file).exists()
        })
        .map(|link| format!("{} links to {link}, which is not there", page.display()))
        .collect()
}

/// What docs/dependencies.md lacks or has too much: it has a table row `` | `name` | reason | `` for each.
fn dependencies(page: &str, used: &BTreeSet<&str>) -> Vec<String> {
    let rows: Vec<(&str, &str)> = page
        .lines()
        .filter_map(|line| {
            let (name, reason) = line.trim().strip_prefix("| `")?.split_once("` |")?;
            Some((name, reason.trim_matches(['|', ' '])))
        })
        .collect();
    let missing = used.iter().filter(|u| !rows.iter().any(|r| r.0 == **u));
    let unused = rows.iter().filter(|r| !used.contains(r.0));
    let without_reason = rows.iter().filter(|r| r.1.is_empty());
    missing
        .map(|u| format!("docs/dependencies.md does not say why {u} is used"))
        .chain(unused.map(|r| format!("docs/dependencies.md lists {}, which no crate uses", r.0)))
        .chain(without_reason.map(|r| format!("docs/dependencies.md gives no reason for {}", r.0)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn book_of_this_workspace_holds() {
        check(&Workspace::read().unwrap()).unwrap_or_else(|why| panic!("{why}"));
    }

    #[test]
    fn links_in_code_are_no_links() {
        let text = "[a](b.md) `[c](d.md)`\n```\n[e](f.md)\n```\n![g](h.svg \"i\") [j][k]\n\n[k]: l.md#m\n";
        assert_eq!(links(text), ["b.md", "h.svg", "l.md#m"]);
    }

    #[test]
    fn broken_links_are_told_and_others_are_not() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("page.md");
        let text = "[a](Cargo.toml) [b](src/main.rs#x) [c](#y) [d](https://e.org/f) [g](none.md)";
        let told = broken_links(&page, text);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains("none.md"));
    }

    #[test]
    fn dependencies_missing_unused_and_without_reason_are_told() {
        let used = BTreeSet::from(["a", "b"]);
        assert_eq!(dependencies("| `a` | because |\n| `b` | for | good |\n", &used), Vec::<String>::new());
        assert_eq!(dependencies("| name | why |\n| `a` | |\n| `c` | why |\n", &used).len(), 3);
    }
}
