// A generator of a site: renders pages in a small Markdown to HTML with a table of contents, counts
// their words, and writes the pages and an index to the output.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;

struct Page {
    title: String,
    html: String,
    words: usize,
    frequent: Vec<(String, usize)>,
}

fn escaped(text: &str) -> String {
    let mut result = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '<' => result.push_str("&lt;"),
            '>' => result.push_str("&gt;"),
            '&' => result.push_str("&amp;"),
            c => result.push(c),
        }
    }
    result
}

/// Emphasis, code, and links in the form [text](address).
fn inline(text: &str) -> String {
    let mut result = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['*', '`', '[']) {
        result.push_str(&escaped(&rest[..at]));
        let mark = &rest[at..at + 1];
        let after = &rest[at + 1..];
        let (end, tag) = match mark {
            "*" => (after.find('*'), "em"),
            "`" => (after.find('`'), "code"),
            _ => (after.find(')'), "a"),
        };
        let Some(end) = end else {
            result.push_str(mark);
            rest = after;
            continue;
        };
        let inner = &after[..end];
        match inner.split_once("](") {
            Some((label, address)) if tag == "a" => {
                let _ = write!(result, "<a href=\"{address}\">{}</a>", escaped(label));
            }
            _ => {
                let _ = write!(result, "<{tag}>{}</{tag}>", escaped(inner));
            }
        }
        rest = &after[end + 1..];
    }
    result.push_str(&escaped(rest));
    result
}

fn frequent(source: &str) -> (usize, Vec<(String, usize)>) {
    let mut counts = BTreeMap::new();
    let mut words = 0;
    for word in source.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()) {
        words += 1;
        *counts.entry(word.to_lowercase()).or_insert(0) += 1;
    }
    let mut counts: Vec<(String, usize)> = counts.into_iter().collect();
    counts.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    counts.truncate(5);
    (words, counts)
}

fn render(source: &str) -> Page {
    let (mut title, mut contents, mut body) = (String::new(), String::new(), String::new());
    let mut is_list = false;
    for line in source.lines() {
        let line = line.trim();
        if is_list && !line.starts_with("- ") {
            body.push_str("</ul>\n");
            is_list = false;
        }
        if let Some(text) = line.strip_prefix("# ") {
            title = escaped(text);
        } else if let Some(text) = line.strip_prefix("## ") {
            let anchor = text.to_lowercase().replace(' ', "-");
            let _ = writeln!(contents, "<li><a href=\"#{anchor}\">{}</a></li>", escaped(text));
            let _ = writeln!(body, "<h2 id=\"{anchor}\">{}</h2>", escaped(text));
        } else if let Some(text) = line.strip_prefix("- ") {
            if !is_list {
                body.push_str("<ul>\n");
                is_list = true;
            }
            let _ = writeln!(body, "<li>{}</li>", inline(text));
        } else if !line.is_empty() {
            let _ = writeln!(body, "<p>{}</p>", inline(line));
        }
    }
    let html = format!("<h1>{title}</h1>\n<ol>\n{contents}</ol>\n{body}");
    let (words, frequent) = frequent(source);
    Page { title, html, words, frequent }
}

fn sources(pages: usize) -> Vec<String> {
    let words = ["core", "beat", "join *now*", "`map` <T>", "[next](page.html)", "loop & wait"];
    let mut seed = 3u64;
    let mut sources = Vec::new();
    for page in 0..pages {
        let mut text = format!("# Page {page}\n");
        for line in 0..60 {
            text.push_str(["## ", "- ", "", "- "][line % 4]);
            for _ in 0..12 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                text.push_str(words[(seed >> 33) as usize % words.len()]);
                text.push(' ');
            }
            text.push('\n');
        }
        sources.push(text);
    }
    sources
}

fn main() {
    let count = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(3000);
    let sources = sources(count);
    let pages: Vec<Page> = sources.iter().map(|source| render(source)).collect();
    let mut out = std::io::stdout().lock();
    for page in &pages {
        writeln!(out, "{}\n{} words {:?}", page.title, page.words, page.frequent).expect("output");
        out.write_all(page.html.as_bytes()).expect("output");
    }
}
