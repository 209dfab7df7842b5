//! The book: every link has a target, every page is in the summary, every dependency has a reason.

use crate::page::{prose, read, without_code};
use crate::workspace::{Workspace, files};
use std::collections::BTreeSet;
use std::path::Path;

/// Checks the pages of the project and all pages under docs.
pub(crate) fn check(workspace: &Workspace) -> Result<Vec<String>, String> {
    let root = &workspace.root;
    let docs = root.join("docs");
    let pages = files(&docs, ".md");
    let mut complaints = Vec::new();
    let roots = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md"];
    let roots = roots.map(|name| root.join(name));
    for page in roots.iter().chain(&pages) {
        complaints.extend(broken_links(page, &read(page)?));
    }
    let listed = links(&read(&docs.join("SUMMARY.md"))?);
    for page in pages.iter().filter_map(|p| p.strip_prefix(&docs).ok()) {
        if page != Path::new("SUMMARY.md") && !listed.iter().any(|l| Path::new(l) == page) {
            complaints.push(format!("docs/SUMMARY.md does not list {}", page.display()));
        }
    }
    let ours: BTreeSet<&str> = workspace.packages.iter().map(|p| p.name.as_str()).collect();
    let used = workspace.packages.iter().flat_map(|p| &p.dependencies).map(|d| d.name.as_str());
    let used = used.filter(|name| !ours.contains(name)).collect();
    complaints.extend(dependencies(&read(&docs.join("dependencies.md"))?, &used));
    Ok(complaints)
}

/// Returns the targets of links: `[text](target)`, `![alt](target "title")`, and `[name]: target`
/// at the beginning of a line.
fn links(text: &str) -> Vec<String> {
    let prose: String = prose(text).flatten().map(|line| without_code(line) + "\n").collect();
    let target =
        |rest: &str| rest.split_whitespace().next().map(|t| t.trim_matches(['<', '>']).to_owned());
    let inline = prose.split("](").skip(1).filter_map(|rest| target(rest.split_once(')')?.0));
    let named =
        prose.lines().filter_map(|line| target(line.strip_prefix('[')?.split_once("]: ")?.1));
    inline.chain(named).collect()
}

/// Returns the links to missing files. Links to other sites are not checked.
fn broken_links(page: &Path, text: &str) -> Vec<String> {
    let folder = page.parent().unwrap_or(page);
    let is_elsewhere = |link: &str| link.contains("://") || link.starts_with("mailto:");
    let is_broken = |link: &String| {
        let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
        let target = if file.is_empty() { page.to_owned() } else { folder.join(file) };
        let is_page = target.extension().is_some_and(|extension| extension == "md");
        match (file.is_empty(), anchor.is_empty() || !is_page) {
            (true, true) => false,
            (true, false) => !anchors(text).iter().any(|known| known == anchor),
            (false, true) => !target.exists(),
            (false, false) => !std::fs::read_to_string(&target)
                .is_ok_and(|text| anchors(&text).iter().any(|known| known == anchor)),
        }
    };
    links(text)
        .into_iter()
        .filter(|link| !is_elsewhere(link))
        .filter(is_broken)
        .map(|link| format!("{} links to {link}, which does not exist", page.display()))
        .collect()
}

/// The anchors of the headings of a page, as GitHub and mdBook form them.
fn anchors(text: &str) -> Vec<String> {
    let headings = prose(text).flatten().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let title = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

/// The missing and superfluous rows of docs/dependencies.md: a table row `` | `name` | reason | ``
/// for each.
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
        .map(|u| format!("docs/dependencies.md has no reason for {u}"))
        .chain(unused.map(|r| format!("docs/dependencies.md lists {}, which no crate uses", r.0)))
        .chain(without_reason.map(|r| format!("docs/dependencies.md gives no reason for {}", r.0)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_in_code_are_no_links() {
        let text =
            "[a](b.md) `[c](d.md)`\n```\n[e](f.md)\n```\n![g](h.svg \"i\") [j][k]\n\n[k]: l.md#m\n";
        assert_eq!(links(text), ["b.md", "h.svg", "l.md#m"]);
    }

    #[test]
    fn broken_links_and_anchors_are_reported() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("page.md");
        let text = "# Y z\n[a](Cargo.toml) [b](src/main.rs#x) [c](#y-z) [d](https://e.org/f)\n\
                    [g](none.md) [h](#none) [i](../docs/testing.md#none)";
        let found = broken_links(&page, text);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].contains("none.md"));
    }

    #[test]
    fn dependencies_missing_unused_and_without_reason_are_reported() {
        let used = BTreeSet::from(["a", "b"]);
        assert_eq!(
            dependencies("| `a` | because |\n| `b` | for | good |\n", &used),
            Vec::<String>::new()
        );
        assert_eq!(dependencies("| name | why |\n| `a` | |\n| `c` | why |\n", &used).len(), 3);
    }
}
