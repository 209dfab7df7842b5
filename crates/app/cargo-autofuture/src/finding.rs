//! The findings of the driver: diagnostics of the compiler whose message begins with `candidate` or
//! `rejected`.

use serde::Deserialize;
use std::path::PathBuf;

/// A line of the output of `cargo check --message-format=json`.
#[derive(Debug, Deserialize)]
pub(crate) struct Line {
    pub(crate) reason: String,
    #[serde(default)]
    pub(crate) manifest_path: PathBuf,
    pub(crate) message: Option<Diagnostic>,
    /// The target that cargo has compiled.
    pub(crate) target: Option<Target>,
    /// The files that cargo has made.
    #[serde(default)]
    pub(crate) filenames: Vec<PathBuf>,
}

/// A library or a program of a package.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Target {
    pub(crate) src_path: PathBuf,
}

/// A diagnostic of the compiler.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Diagnostic {
    pub(crate) message: String,
    pub(crate) level: String,
    pub(crate) spans: Vec<Span>,
    pub(crate) children: Vec<Diagnostic>,
    pub(crate) rendered: Option<String>,
}

/// A place in a source file.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Span {
    pub(crate) file_name: PathBuf,
    pub(crate) byte_start: usize,
    pub(crate) byte_end: usize,
    pub(crate) line_start: usize,
    pub(crate) line_end: usize,
    pub(crate) is_primary: bool,
    pub(crate) text: Vec<SourceLine>,
    pub(crate) suggested_replacement: Option<String>,
}

/// A line of the source that the compiler has read.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct SourceLine {
    pub(crate) text: String,
}

/// A candidate or a rejection.
#[derive(Debug, Clone)]
pub(crate) struct Finding {
    /// The Cargo.toml of its package.
    pub(crate) manifest: PathBuf,
    pub(crate) message: String,
    pub(crate) rendered: String,
    /// The place that would be rewritten.
    pub(crate) span: Span,
    /// The rewritten text. Rejections have none.
    pub(crate) replacement: Option<String>,
}

impl Finding {
    /// The finding that a diagnostic reports, if it is one of the driver's.
    pub(crate) fn of(manifest: PathBuf, diagnostic: &Diagnostic) -> Option<Finding> {
        let is_candidate = diagnostic.message.starts_with("candidate [");
        if !is_candidate && !diagnostic.message.starts_with("rejected [") {
            return None;
        }
        let span = diagnostic.spans.iter().find(|span| span.is_primary)?.clone();
        let replacement = diagnostic
            .children
            .iter()
            .flat_map(|child| &child.spans)
            .find_map(|span| span.suggested_replacement.clone());
        Some(Finding {
            manifest,
            message: diagnostic.message.clone(),
            rendered: diagnostic.rendered.clone().unwrap_or_default(),
            span,
            replacement: replacement.filter(|_| is_candidate),
        })
    }

    pub(crate) fn is_candidate(&self) -> bool {
        self.replacement.is_some()
    }

    /// The name of the pattern.
    pub(crate) fn pattern(&self) -> &str {
        let name = self.message.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
        name.map_or("", |(name, _)| name)
    }

    /// Makes a rejection of a candidate.
    pub(crate) fn reject(&mut self, reason: &str) {
        self.replacement = None;
        let what = self.message.split_once("]: ").map_or("", |(_, what)| what);
        let what = what.strip_suffix(" can run at the same time").unwrap_or(what);
        self.message = format!("rejected [{}]: {what} stay sequential: {reason}", self.pattern());
        let (file, line) = (self.span.file_name.display(), self.span.line_start);
        self.rendered = format!("note: {}\n --> {file}:{line}\n\n", self.message);
    }

    pub(crate) fn place(&self) -> (&PathBuf, usize, usize) {
        (&self.span.file_name, self.span.byte_start, self.span.byte_end)
    }
}

/// The findings of all targets, each place once. A place that one target rejects is no candidate,
/// although another target that contains the same file accepts it.
pub(crate) fn merge(findings: Vec<Finding>) -> Vec<Finding> {
    let mut merged: Vec<Finding> = Vec::new();
    for finding in findings {
        match merged.iter_mut().find(|known| known.place() == finding.place()) {
            Some(known) if known.is_candidate() && !finding.is_candidate() => *known = finding,
            Some(known) if known.is_candidate() && known.replacement != finding.replacement => {
                known.replacement = None;
            }
            Some(_) => {}
            None => merged.push(finding),
        }
    }
    merged.sort_by(|a, b| a.place().cmp(&b.place()));
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(start: usize, replacement: Option<&str>) -> Finding {
        let kind = if replacement.is_some() { "candidate" } else { "rejected" };
        Finding {
            manifest: PathBuf::new(),
            message: format!("{kind} [map]: text"),
            rendered: String::new(),
            span: Span {
                file_name: "src/lib.rs".into(),
                byte_start: start,
                byte_end: start + 1,
                line_start: 1,
                line_end: 1,
                is_primary: true,
                text: Vec::new(),
                suggested_replacement: None,
            },
            replacement: replacement.map(String::from),
        }
    }

    #[test]
    fn a_rejection_in_one_target_counts() {
        let all = vec![finding(3, Some("a")), finding(1, Some("b")), finding(3, None)];
        let merged = merge(all);
        let starts: Vec<_> = merged.iter().map(|f| (f.span.byte_start, f.is_candidate())).collect();
        assert_eq!(starts, [(1, true), (3, false)]);
        assert_eq!(merged[0].pattern(), "map");
        assert!(!merge(vec![finding(1, Some("a")), finding(1, Some("b"))])[0].is_candidate());
        assert_eq!(merge(vec![finding(1, Some("a")), finding(1, Some("a"))]).len(), 1);
    }
}
