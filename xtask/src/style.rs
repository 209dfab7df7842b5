//! The rules of CONTRIBUTING.md for language and width, as far as a program can check them.

use crate::page::{comments, prose, read, without_code};
use crate::workspace::{Workspace, files};
use std::path::{Path, PathBuf};

/// Largest width of a line of text. The formatter checks the width of code.
const WIDTH_MAX: usize = 100;

/// Words that personify code, or that stand for one of the field's terms, with the term.
const WORDS: [(&str, &str); 49] = [
    ("tell", "report, return, record"),
    ("tells", "reports, returns, records"),
    ("told", "reported, returned, recorded"),
    ("heed", "apply, handle, poll"),
    ("heeds", "applies, handles, polls"),
    ("heeded", "applied, handled, polled"),
    ("deed", "applied action"),
    ("deeds", "applied actions"),
    ("glance", "sample"),
    ("glances", "samples"),
    ("lever", "knob"),
    ("levers", "knobs"),
    ("limbo", "retired list"),
    ("bury", "retire"),
    ("buried", "retired"),
    ("rouse", "wake"),
    ("nudge", "wake"),
    ("hunter", "searching worker"),
    ("hunters", "searching workers"),
    ("nobody", "no thread, no user, no caller"),
    ("somebody", "another user, another process"),
    ("whoever", "the process that, the caller that"),
    ("whom", "the noun"),
    ("thereby", "a new sentence"),
    ("pulse", "progress, heartbeats"),
    ("crew", "thread team"),
    ("whereupon", "a new sentence"),
    ("wherein", "a new sentence"),
    ("sees", "observes, reads, detects"),
    ("saw", "observed, read, detected"),
    ("knows", "has, stores, detects"),
    ("knew", "had, stored, detected"),
    ("believe", "assume"),
    ("believes", "assumes"),
    ("hear", "receive"),
    ("hears", "receives"),
    ("remembers", "records, stores"),
    ("forgets", "discards, resets"),
    ("wants", "requires, requests"),
    ("notices", "detects"),
    ("noticed", "detected"),
    ("says", "states, reports"),
    ("said", "stated, reported"),
    ("thinks", "assumes, estimates"),
    ("hopes", "assumes, estimates"),
    ("everybody", "all threads, all users, all programs"),
    ("anybody", "any thread, any user, any program"),
    ("upside", "inverted"),
    ("peeks", "reads"),
];

/// Words that begin no sentence: the noun is missing.
const OPENINGS: [&str; 4] = ["Who", "Whoever", "What", "Whatever"];

/// Files that hold the forbidden words on purpose.
const EXEMPT: [&str; 1] = ["xtask/src/style.rs"];

/// Checks all sources and pages.
pub(crate) fn check(workspace: &Workspace) -> Result<Vec<String>, String> {
    let root = &workspace.root;
    let mut complaints = Vec::new();
    for file in sources(root) {
        let name = file.strip_prefix(root).unwrap_or(&file).to_string_lossy().into_owned();
        if !EXEMPT.contains(&name.as_str()) {
            complaints.extend(check_text(&name, &read(&file)?));
        }
    }
    Ok(complaints)
}

fn sources(root: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md"]
            .iter()
            .map(|name| root.join(name))
            .filter(|path| path.exists())
            .collect();
    found.extend(files(&root.join("docs"), ".md"));
    for folder in ["crates", "bench", "xtask"] {
        for ending in [".rs", ".h", ".c", ".go", ".java"] {
            found.extend(files(&root.join(folder), ending));
        }
    }
    found
}

/// The complaints about one file, each with its line.
fn check_text(name: &str, text: &str) -> Vec<String> {
    let lines: Box<dyn Iterator<Item = Option<&str>>> =
        if name.ends_with(".md") { Box::new(prose(text)) } else { Box::new(comments(text)) };
    let mut complaints = Vec::new();
    let mut continues = false;
    for (number, (line, prose)) in (1..).zip(text.lines().zip(lines)) {
        let mut complain = |what: String| complaints.push(format!("{name}:{number}: {what}"));
        let is_prose = prose.is_some() || name.ends_with(".h");
        if line.chars().count() > WIDTH_MAX && !may_be_long(line, is_prose) {
            complain(format!("the line is longer than {WIDTH_MAX} columns"));
        }
        let plain = without_code(prose.unwrap_or_default());
        let lower = plain.to_lowercase();
        for (word, instead) in WORDS {
            if has_word(&lower, word) {
                complain(format!("'{word}': write {instead}"));
            }
        }
        if let Some(opening) = opening(&plain, continues) {
            complain(format!("no sentence begins with '{opening}'; name the noun"));
        }
        continues = !plain.trim().is_empty() && !plain.trim_end().ends_with(['.', ':', '?', '!']);
    }
    complaints
}

/// Code and output, except in headers of C (the formatter checks the width of Rust, and nothing
/// that of C programs); and of pages tables, addresses, images, and lines that consist of one code
/// span.
fn may_be_long(line: &str, is_prose: bool) -> bool {
    let text = line.trim_start();
    if ["//", "/*", "* "].iter().any(|begin| text.starts_with(begin)) {
        return text.contains("://");
    }
    let is_span = text.starts_with('`') && !without_code(text).contains(char::is_alphabetic);
    !is_prose || is_span || text.starts_with(['|', '!']) || text.contains("://")
}

fn has_word(text: &str, word: &str) -> bool {
    let is_letter = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + word.len()..]);
        !before.ends_with(is_letter) && !after.starts_with(is_letter)
    })
}

/// The forbidden word that opens a sentence in a line. Questions are exempt; `continues` states
/// that the line before it did not end a sentence.
fn opening(text: &str, continues: bool) -> Option<&'static str> {
    if text.contains('?') || text.trim_start().starts_with(['#', '|']) {
        return None;
    }
    let first = text.trim_start().trim_start_matches(['-', '*', ' ']);
    let starts = (!continues).then_some(first).into_iter();
    let sentences = starts.chain(text.match_indices(". ").map(|(at, _)| &text[at + 2..]));
    sentences
        .filter_map(|sentence| sentence.split([' ', ',']).next())
        .find_map(|word| OPENINGS.into_iter().find(|opening| *opening == word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forbidden_words_and_openings_are_reported_with_their_line() {
        let text = "/// Who waits is told so.\nfn f() {}\n// It works. What is left stays.\n\
                    // Tells it.\n";
        let found = check_text("a.rs", text);
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(found[0].starts_with("a.rs:1: 'told'"), "{found:?}");
        assert!(found[2].starts_with("a.rs:3:"), "{found:?}");
    }

    #[test]
    fn code_and_questions_are_left_alone() {
        let page = "`tell` it\n```\ntell\n```\nWhat is it?\nthe rest of\nWhat\n# What it does\n";
        assert_eq!(check_text("a.md", page), Vec::<String>::new());
        assert_eq!(check_text("a.rs", "let tell = 1; // fine\n"), Vec::<String>::new());
    }

    #[test]
    fn comments_and_text_above_the_width_are_reported() {
        let wide = "x".repeat(WIDTH_MAX + 1);
        for line in [format!("// {wide}"), format!("/// | a | {wide} |\n"), format!(" * {wide}")] {
            assert_eq!(check_text("a.rs", &line).len(), 1, "{line}");
        }
        assert_eq!(check_text("a.c", &format!("/* {wide} */\nint {wide};")).len(), 1);
        assert_eq!(check_text("a.h", &format!("/* {wide} */\nint {wide};")).len(), 2);
        assert_eq!(check_text("a.rs", &format!("// ```\n// {wide}\n// ```")).len(), 1);
        for line in [format!("let a = {wide};"), format!("// https://{wide}")] {
            assert_eq!(check_text("a.rs", &line), Vec::<String>::new());
        }
        assert_eq!(
            check_text("a.md", &format!("| a | {wide} |\n```\n{wide}\n```\n{wide}")).len(),
            1
        );
        assert_eq!(check_text("a.md", &format!("`{wide}`\n![{wide}](a.svg)")).len(), 0);
        assert_eq!(check_text("a.md", &format!("`a` [b](c) {wide}")).len(), 1);
    }
}
