//! Remarks on programs, printed with the source lines.

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use corebeat_snet::ast::Span;
use corebeat_snet::diagnostic::{Diagnostic, Severity};
use serde::Serialize;
use std::ops::Range;

/// A remark as text, in colours if `fancy`.
pub(crate) fn text(remark: &Diagnostic, name: &str, program: &str, fancy: bool) -> String {
    let level = match remark.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
    };
    let mut report = Group::with_title(level.primary_title(&remark.message));
    if !remark.labels.is_empty() {
        let places = remark.labels.iter().enumerate().map(|(i, (span, label))| {
            let kind = if i == 0 { AnnotationKind::Primary } else { AnnotationKind::Context };
            kind.span(within(*span, program)).label(label)
        });
        report = report.element(Snippet::source(program).path(name).annotations(places));
    }
    if let Some(help) = &remark.help {
        report = report.element(Level::HELP.message(help));
    }
    let renderer = match fancy {
        true => Renderer::styled().decor_style(DecorStyle::Unicode),
        false => Renderer::plain(),
    };
    renderer.render(&[report])
}

/// Clamps a span to valid character boundaries of the program.
fn within(span: Span, program: &str) -> Range<usize> {
    let floor = |at: usize| {
        let at = at.min(program.len());
        (0..=at).rev().find(|at| program.is_char_boundary(*at)).unwrap_or(0)
    };
    let start = floor(span.start);
    start..floor(span.end).max(start)
}

/// A remark as JSON.
#[derive(Serialize)]
pub(crate) struct Remark<'a> {
    severity: &'static str,
    message: &'a str,
    help: Option<&'a str>,
    places: Vec<Place<'a>>,
}

/// A position: byte offsets from 0, line and column from 1.
#[derive(Serialize)]
struct Place<'a> {
    line: usize,
    column: usize,
    start: usize,
    end: usize,
    label: &'a str,
}

impl<'a> Remark<'a> {
    pub(crate) fn of(remark: &'a Diagnostic, program: &str) -> Remark<'a> {
        let place = |(span, label): &'a (Span, String)| {
            let Range { start, end } = within(*span, program);
            let before = &program[..start];
            let line_start = before.rfind('\n').map_or(0, |i| i + 1);
            Place {
                line: before.matches('\n').count() + 1,
                column: before[line_start..].chars().count() + 1,
                start,
                end,
                label,
            }
        };
        Remark {
            severity: if remark.severity == Severity::Error { "error" } else { "warning" },
            message: &remark.message,
            help: remark.help.as_deref(),
            places: remark.labels.iter().map(place).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn remark_in_plain_text_shows_the_lines_and_the_cure() {
        let program = "box foo ((A) -> (B));\nnet main\nconnect foo .. bär;\n";
        let bar = Span { start: 47 - 1, end: 50 };
        let remark = Diagnostic::error("no such box", bar, "not known")
            .and(Span { start: 4, end: 7 }, "there is this one")
            .help("declare it");
        let text = text(&remark, "main.snet", program, false);
        for expected in [
            "error: no such box",
            "main.snet:3:16",
            "bär",
            "^^^",
            "not known",
            "--- there is",
            "help: declare it",
        ] {
            assert!(text.contains(expected), "{expected} is not in\n{text}");
        }
        assert!(!text.contains('\x1b'));
        let data = serde_json::to_value(Remark::of(&remark, program)).unwrap();
        assert_eq!(data["places"][0]["line"], 3);
        assert_eq!(data["places"][0]["column"], 16);
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None, ..ProptestConfig::default()
        })]

        #[test]
        fn remark_with_any_places_in_any_text_is_shown(
            program in "(.|[\n\r\t\u{0}äß→\u{200d}]){0,60}",
            places in prop::collection::vec((0usize..300, 0usize..300, ".{0,9}"), 0..4),
            message in ".{0,30}",
            fancy: bool,
        ) {
            let labels = places.into_iter().map(|(start, end, label)| (Span { start, end }, label)).collect();
            let remark = Diagnostic { severity: Severity::Warning, message, labels, help: None };
            text(&remark, "x.snet", &program, fancy);
            serde_json::to_string(&Remark::of(&remark, &program)).unwrap();
        }
    }
}
