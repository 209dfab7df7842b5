//! Drawings of calls: call trees, dependency graphs and sequence diagrams.
//!
//! These are the drawings of Kieker's analysis (Waller and Hasselbring, 2012, section 2), as text,
//! for [Graphviz](https://graphviz.org), for [Mermaid](https://mermaid.js.org), or as an SVG
//! picture.

mod graph;
mod sequence;
mod svg;
mod tree;

pub use graph::graph;
pub use sequence::{MESSAGES_MAX, longest, sequence};
pub use tree::{NODES_MAX, tree};

/// Format of a drawing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Readable text.
    Text,
    /// A Graphviz graph.
    Dot,
    /// A Mermaid diagram.
    Mermaid,
    /// An SVG picture.
    Svg,
}

/// A duration in a readable unit.
fn time(ns: u64) -> String {
    let ns_f = ns as f64;
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} µs", ns_f / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns_f / 1e6),
        _ => format!("{:.2} s", ns_f / 1e9),
    }
}

/// A text without control characters.
fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// A quoted text for Graphviz.
fn dot(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

/// A text for Mermaid, with special characters as character references.
fn mermaid(text: &str) -> String {
    let mut safe = String::new();
    for c in text.chars() {
        match c {
            '\n' => safe.push_str("<br/>"),
            c if c.is_alphanumeric() || " .,_-µ×()".contains(c) || !c.is_ascii() => safe.push(c),
            c => safe.push_str(&format!("#{};", c as u32)),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::{Call, Calls, Outcome};

    /// `main` calls `a::pay` twice, which calls itself once, and hands over to `b::<odd>`, which
    /// panics.
    fn calls() -> Calls {
        Calls::of(
            &["main", "a::pay", "b::\"<odd>\n"],
            &[
                Call { end_ns: 2_000_000, ..Call::of(0, None, 0) },
                Call { end_ns: 3_500, ..Call::of(1, Some(0), 1_000) },
                Call { end_ns: 3_000, ..Call::of(1, Some(1), 2_000) },
                Call { end_ns: 5_000, ..Call::of(1, Some(0), 4_000) },
                Call {
                    end_ns: 9_000,
                    handed_over: true,
                    trace: 1,
                    thread: 1,
                    outcome: Outcome::Panicked,
                    ..Call::of(2, Some(0), 6_000)
                },
            ],
        )
    }

    #[test]
    fn trees_group_calls_by_path() {
        let text = tree(&calls(), Format::Text);
        let expected = "    calls       total        self  call
        1      2.0 ms      2.0 ms  main
        2      3.5 µs      2.5 µs    a::pay
        1      1.0 µs      1.0 µs      a::pay
        1      3.0 µs      3.0 µs    ~ b::\"<odd>\u{fffd}  (1 panicked)
";
        assert_eq!(text, expected);
        let dot = tree(&calls(), Format::Dot);
        assert!(dot.starts_with("digraph") && dot.contains("n0 -> n1 [label=\"2\"]"), "{dot}");
        assert!(
            dot.contains("n0 -> n3 [label=\"1\", style=dashed]") && dot.contains("\\\"<odd>"),
            "{dot}"
        );
        let mermaid = tree(&calls(), Format::Mermaid);
        assert!(
            mermaid.starts_with("flowchart LR\n") && mermaid.contains("n0 -.->|1| n3"),
            "{mermaid}"
        );
        assert!(!mermaid.contains("<odd"), "{mermaid}");
        is_picture(&tree(&calls(), Format::Svg), &["a::pay", "&quot;&lt;odd&gt;", "2 ×"]);
    }

    #[test]
    fn graphs_count_calls_between_operations() {
        let text = graph(&calls(), Format::Text);
        assert_eq!(
            text,
            "    calls  caller and callee\n        2  main -> a::pay\n        \
             1  main ~> b::\"<odd>\u{fffd}\n        1  a::pay -> a::pay\n"
        );
        assert!(graph(&calls(), Format::Dot).contains("o1 -> o1 [label=\"1\"]"));
        assert!(graph(&calls(), Format::Mermaid).contains("o0 -->|2| o1"));
        is_picture(&graph(&calls(), Format::Svg), &["a::pay", "main"]);
    }

    #[test]
    fn sequences_are_sorted_by_time() {
        let calls = calls();
        assert_eq!(longest(&calls), Some(0));
        let text = sequence(&calls, 0, Format::Text);
        let functions: Vec<_> =
            text.lines().filter_map(|l| l.split_once(": ")).map(|(_, what)| what.trim()).collect();
        let expected = [
            "main",
            "pay",
            "pay",
            "return",
            "return",
            "pay",
            "return",
            "\"<odd>\u{fffd}",
            "panic",
            "return",
        ];
        assert_eq!(functions, expected, "{text}");
        let mermaid = sequence(&calls, 0, Format::Mermaid);
        assert!(
            mermaid.starts_with("sequenceDiagram\n") && mermaid.contains("p1->>+p2: pay"),
            "{mermaid}"
        );
        assert!(mermaid.contains("p1-)+p3: ") && mermaid.contains("p3--x-p1: panic"), "{mermaid}");
        assert!(sequence(&calls, 0, Format::Dot).contains("p1 -> p2 [label=\"2: pay\"]"));
        is_picture(&sequence(&calls, 0, Format::Svg), &["pay", "panic"]);
    }

    #[test]
    fn empty_calls_give_empty_drawings() {
        let none = Calls::default();
        assert_eq!(longest(&none), None);
        for format in [Format::Text, Format::Dot, Format::Mermaid, Format::Svg] {
            for drawing in [tree(&none, format), graph(&none, format), sequence(&none, 0, format)] {
                assert!(drawing.ends_with('\n'));
            }
        }
    }

    #[test]
    fn large_drawings_report_how_much_they_omit() {
        let deep: Vec<_> = (0..5000)
            .map(|n: u32| Call { end_ns: 10_000, ..Call::of(0, n.checked_sub(1), 1) })
            .collect();
        let calls = Calls::of(&["a::down"], &deep);
        for format in [Format::Text, Format::Dot, Format::Mermaid, Format::Svg] {
            let (tree, sequence) = (tree(&calls, format), sequence(&calls, 0, format));
            assert!(tree.contains("3000 more"), "{format:?}");
            assert!(sequence.contains("4800 more"), "{format:?}");
        }
    }

    /// Checks the structure of a picture, without rendering it.
    fn is_picture(picture: &str, texts: &[&str]) {
        assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"), "{picture}");
        for text in texts {
            assert!(picture.contains(text), "{text} is not in {picture}");
        }
        let mut open: Vec<&str> = Vec::new();
        for tag in picture.split('<').skip(1) {
            let (tag, _) = tag.split_once('>').unwrap();
            match tag.strip_prefix('/') {
                Some(name) => assert_eq!(open.pop(), Some(name)),
                None if tag.ends_with('/') => {}
                None => open.push(tag.split(' ').next().unwrap()),
            }
        }
        assert!(open.is_empty());
    }
}
