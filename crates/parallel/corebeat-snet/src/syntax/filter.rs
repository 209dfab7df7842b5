//! Parser of filters.

use super::lexer::{Token, shortened};
use super::parser::{Parsed, Parser};
use crate::ast::{Action, Expr, Filter, Output, OutputEntry, Span};
use crate::diagnostic::Diagnostic;
use crate::label::Kind;

const CASES_FORM: &str = "write `[{A, <T>} -> if <T > 0> then {A} else {A, <T = 1>}]`";

impl Parser<'_> {
    /// Parses a filter other than `[]` after its `[`.
    pub(super) fn filter(&mut self, open: Span) -> Parsed<Filter> {
        if !self.at_any(&["{", "("]) {
            return Err(self.expected(
                "a pattern or `]`",
                "write `[{A} -> {B = A}]`, or `[]` for a filter that passes every record on",
            ));
        }
        let pattern = self.variant()?;
        if self.at("if") {
            let error = Diagnostic::error(
                "the pattern of a filter cannot have a guard",
                self.span,
                "expected `->`",
            );
            return Err(self.fail(error.help(CASES_FORM)));
        }
        self.expect("->", "a filter maps a pattern to outputs: `[{A} -> {B = A}]`")?;
        let mut cases = Vec::new();
        while self.take("if") {
            let condition = self.condition()?;
            self.expect("then", CASES_FORM)?;
            cases.push((condition, self.action()?));
            self.expect(
                "else",
                "add the outputs for the other case: `else {A}`, or `else` for no output",
            )?;
        }
        let otherwise = self.action()?;
        if !self.at("]") {
            let error = self.expected_here("`;` or `]`").and(open, "unclosed `[`");
            return Err(self.fail(error));
        }
        self.bump();
        Ok(Filter { pattern, cases, otherwise })
    }

    /// `<T > 3>` after `if`
    pub(super) fn condition(&mut self) -> Parsed<Expr> {
        let open = self.expect("<", "write the condition in angle brackets: `if <T > 0>`")?;
        let condition = self.expression()?;
        self.expect_closing(">", open)?;
        Ok(condition)
    }

    /// `{A}; {B}`, or nothing.
    fn action(&mut self) -> Parsed<Action> {
        let mut outputs = Vec::new();
        if self.at_any(&["]", "else"]) {
            return Ok(outputs);
        }
        loop {
            outputs.push(self.output()?);
            if self.at(",") {
                self.report(
                    Diagnostic::error(
                        "outputs of a filter are separated by `;`",
                        self.span,
                        "expected `;`",
                    )
                    .help("write `;`"),
                );
            } else if !self.at(";") {
                return Ok(outputs);
            }
            self.bump();
        }
    }

    /// `{A, B = C, <T = T + 1>}`
    fn output(&mut self) -> Parsed<Output> {
        let help = "write an output as `{A, <T = 1>}`, and `]` after the last output";
        let (open, close) = self.open_labels("{", "the labels of a record", help)?;
        let entries = self.list(open, close, |parser| {
            if parser.at("<") { parser.output_tags() } else { Ok(vec![parser.output_field()?]) }
        })?;
        Ok(Output { entries: entries.into_iter().flatten().collect(), span: self.since(open) })
    }

    /// `A`, `A = B`
    fn output_field(&mut self) -> Parsed<OutputEntry> {
        let name = self.name("a label: `NAME`, `<TAG>` or `<#TAG>`")?;
        if !self.take("=") {
            return Ok(OutputEntry::Field { name, from: None });
        }
        if matches!(self.token, Token::Number(_) | Token::Fixed("<" | "-" | "(")) {
            let message = "a field can only be copied from a field";
            let error = Diagnostic::error(message, self.span, "expected the name of a field");
            return Err(self.fail(error.help("to store a number, use a tag: `<T = 1>`")));
        }
        Ok(OutputEntry::Field { name, from: Some(self.name("the name of a field")?) })
    }

    /// `<T>`, `<T = T + 1>`, and `<T = 1, S = 2>`, which some programs use.
    fn output_tags(&mut self) -> Parsed<Vec<OutputEntry>> {
        let open = self.bump();
        let mut tags = Vec::new();
        loop {
            let entry = self.tag_name()?;
            let value = if self.take("=") { Some(self.expression()?) } else { None };
            let closes_early = self.at(">=") || self.at(">") && self.peek() == Token::Fixed("=");
            if value.is_none() && closes_early {
                let message = "the value of a tag must be inside its angle brackets";
                let sign = if entry.kind == Kind::BindingTag { "#" } else { "" };
                let help = format!("write `<{sign}{} = ...>`", shortened(&entry.name.text));
                let error = Diagnostic::error(message, self.span, "outside the brackets");
                return Err(self.fail(error.help(help)));
            }
            tags.push(OutputEntry::Tag { entry, value });
            if !self.take(",") {
                self.expect_closing(">", open)?;
                return Ok(tags);
            }
        }
    }
}
