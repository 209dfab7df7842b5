//! Filters.

use super::lexer::{Token, shortened};
use super::parser::{Parsed, Parser};
use crate::ast::{Action, Expr, Filter, Output, OutputEntry, Span};
use crate::diagnostic::Diagnostic;
use crate::label::Kind;

const CASES_FORM: &str = "write `[{A, <T>} -> if <T > 0> then {A} else {A, <T = 1>}]`";

impl Parser<'_> {
    /// What stands behind the `[` of a filter that is not empty.
    pub(super) fn filter(&mut self, open: Span) -> Parsed<Filter> {
        if !self.at_any(&["{", "("]) {
            return Err(self.expected(
                "a pattern or `]`",
                "write `[{A} -> {B = A}]`, or `[]` for a filter that does nothing",
            ));
        }
        let pattern = self.variant()?;
        if self.at("if") {
            let error = Diagnostic::error("the pattern of a filter has no guard", self.span, "expected `->`");
            return Err(self.fail(error.help(CASES_FORM)));
        }
        self.expect("->", "a filter says what becomes of a record: `[{A} -> {B = A}]`")?;
        let mut cases = Vec::new();
        while self.take("if") {
            let condition = self.condition()?;
            self.expect("then", CASES_FORM)?;
            cases.push((condition, self.action()?));
            self.expect(
                "else",
                "say what comes out when the condition does not hold: `else {A}`, or `else` for nothing",
            )?;
        }
        let otherwise = self.action()?;
        if !self.at("]") {
            let error = self.expected_here("`;` or `]`").and(open, "this filter is open");
            return Err(self.fail(error));
        }
        self.bump();
        Ok(Filter { pattern, cases, otherwise })
    }

    /// `<T > 3>` behind `if`
    pub(super) fn condition(&mut self) -> Parsed<Expr> {
        let open = self.expect("<", "a condition stands in angle brackets: `if <T > 0>`")?;
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
                    Diagnostic::error("outputs of a filter are separated by `;`", self.span, "expected `;`")
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
        let help = "an output of a filter is written `{A, <T = 1>}`; behind the last one stands `]`";
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
            let message = "a field can only be a copy of a field";
            let error = Diagnostic::error(message, self.span, "expected the name of a field");
            return Err(self.fail(error.help("numbers are for tags: `<T = 1>`")));
        }
        Ok(OutputEntry::Field { name, from: Some(self.name("the name of a field")?) })
    }

    /// `<T>`, `<T = T + 1>`; also `<T = 1, S = 2>`, as some programs have it.
    fn output_tags(&mut self) -> Parsed<Vec<OutputEntry>> {
        let open = self.bump();
        let mut tags = Vec::new();
        loop {
            let entry = self.tag_name()?;
            let value = if self.take("=") { Some(self.expression()?) } else { None };
            let closes_early = self.at(">=") || self.at(">") && self.peek() == Token::Fixed("=");
            if value.is_none() && closes_early {
                let message = "the value of a tag stands inside its brackets";
                let sign = if entry.kind == Kind::BindingTag { "#" } else { "" };
                let help = format!("write `<{sign}{} = ...>`", shortened(&entry.name.text));
                let error = Diagnostic::error(message, self.span, "not here");
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
