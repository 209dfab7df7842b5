//! Texts for people: pages of the book, and comments in code.

use std::path::Path;

/// Reads a file.
pub(crate) fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))
}

/// For each line of a page its text outside of fences, or `None`.
pub(crate) fn prose(text: &str) -> impl Iterator<Item = Option<&str>> {
    outside_fences(text.lines().map(Some))
}

/// For each line of a source the text of its comment outside of fences, or `None`. A comment that
/// ends also ends its fence.
pub(crate) fn comments(text: &str) -> impl Iterator<Item = Option<&str>> {
    outside_fences(text.lines().map(comment))
}

fn comment(line: &str) -> Option<&str> {
    let text = line.trim_start();
    let comment = ["//", "/* ", "* "].iter().find_map(|begin| text.strip_prefix(begin))?;
    Some(comment.trim_start_matches(['/', '!']))
}

fn outside_fences<'a>(
    lines: impl Iterator<Item = Option<&'a str>>,
) -> impl Iterator<Item = Option<&'a str>> {
    let mut in_fence = false;
    lines.map(move |line| {
        let is_fence = line.is_some_and(|line| line.trim_start().starts_with("```"));
        in_fence = line.is_some() && (in_fence ^ is_fence);
        line.filter(|_| !in_fence && !is_fence)
    })
}

/// A line with its code spans left out.
pub(crate) fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join(" ` ")
}
