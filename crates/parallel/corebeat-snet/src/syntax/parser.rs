//! Parser state that the whole grammar uses: the current token, diagnostics, and recovery after an
//! error.

use super::DIAGNOSTICS_MAX;
use super::lexer::{Token, is_reserved, scan, shortened};
use super::metadata;
use crate::ast::{Module, Name, Span};
use crate::diagnostic::Diagnostic;

/// Failure that a diagnostic reports.
#[derive(Debug)]
pub(super) struct Failed;

pub(super) type Parsed<T> = Result<T, Failed>;

pub(super) struct Parser<'s> {
    pub(super) source: &'s str,
    /// Current token.
    pub(super) token: Token<'s>,
    /// Place of the current token.
    pub(super) span: Span,
    /// End of the last consumed token.
    pub(super) before: usize,
    /// Open brackets, including those of nets.
    pub(super) depth: usize,
    /// Whether parsing and reporting have stopped.
    quit: bool,
    /// Whether tokens are skipped without reports.
    skipping: bool,
    diagnostics: Vec<Diagnostic>,
}

impl<'s> Parser<'s> {
    pub(super) fn new(source: &'s str) -> Parser<'s> {
        Parser {
            source,
            token: Token::End,
            span: Span::default(),
            before: 0,
            depth: 0,
            quit: false,
            skipping: false,
            diagnostics: Vec::new(),
        }
    }

    pub(super) fn run(mut self) -> Result<Module, Vec<Diagnostic>> {
        self.continue_at(0);
        let module = self.module();
        if self.diagnostics.is_empty() { Ok(module) } else { Err(self.diagnostics) }
    }

    /// Scans the first token at or after `at`.
    pub(super) fn continue_at(&mut self, at: usize) {
        let mut at = at;
        loop {
            let scanned = scan(self.source, if self.quit { self.source.len() } else { at });
            let hides_the_rest = scanned.token == Token::End && scanned.problem.is_some();
            if let Some(problem) = scanned.problem
                && !self.skipping
            {
                self.report(problem);
            }
            if scanned.token == Token::Unknown {
                at = scanned.span.end;
                continue;
            }
            (self.token, self.span) = (scanned.token, scanned.span);
            self.quit |= hides_the_rest;
            return;
        }
    }

    /// Consumes the current token and scans the next one.
    pub(super) fn bump(&mut self) -> Span {
        let span = self.span;
        match self.token {
            Token::Fixed("(" | "{" | "[" | "[|") => self.depth += 1,
            Token::Fixed(")" | "}" | "]" | "|]") => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        self.before = span.end;
        self.continue_at(span.end);
        span
    }

    /// Token after the current one.
    pub(super) fn peek(&self) -> Token<'s> {
        scan(self.source, self.span.end).token
    }

    pub(super) fn at(&self, fixed: &str) -> bool {
        matches!(self.token, Token::Fixed(text) if text == fixed)
    }

    pub(super) fn at_any(&self, fixed: &[&str]) -> bool {
        matches!(self.token, Token::Fixed(text) if fixed.contains(&text))
    }

    /// Consumes the current token if it is this word or sign.
    pub(super) fn take(&mut self, fixed: &str) -> bool {
        let found = self.at(fixed);
        if found {
            self.bump();
        }
        found
    }

    /// Consumes this word or sign. Reports any other token.
    pub(super) fn expect(&mut self, fixed: &str, help: &str) -> Parsed<Span> {
        if self.at(fixed) {
            Ok(self.bump())
        } else {
            Err(self.expected(&format!("`{fixed}`"), help))
        }
    }

    /// Consumes the sign that closes `open`. Reports any other token.
    pub(super) fn expect_closing(&mut self, fixed: &str, open: Span) -> Parsed<Span> {
        if self.at(fixed) {
            return Ok(self.bump());
        }
        let opening = self.source[open.start..open.end].to_owned();
        let error =
            self.expected_here(&format!("`{fixed}`")).and(open, format!("unclosed `{opening}`"));
        Err(self.fail(error))
    }

    /// Place from the beginning of `start` to the last consumed token.
    pub(super) fn since(&self, start: Span) -> Span {
        Span { start: start.start, end: self.before }
    }

    /// Place after the last consumed token, for something that is missing there.
    pub(super) fn gap(&self) -> Span {
        Span { start: self.before, end: self.before }
    }

    /// Consumes a name. Reports a reserved word, and accepts it as a name.
    pub(super) fn name(&mut self, what: &str) -> Parsed<Name> {
        match self.token {
            Token::Name(text) => {
                let span = self.bump();
                Ok(Name { text: text.into(), span })
            }
            Token::Fixed(text) if is_reserved(text) => {
                self.report(
                    Diagnostic::error(
                        format!("`{text}` is a reserved word and cannot be a name"),
                        self.span,
                        format!("expected {what}"),
                    )
                    .help(format!("use another name, such as `{text}_`")),
                );
                let span = self.bump();
                Ok(Name { text: text.into(), span })
            }
            _ => Err(self.expected(what, "")),
        }
    }

    /// Parses items separated by commas, and the closing sign. The opening sign is consumed.
    pub(super) fn list<T>(
        &mut self,
        open: Span,
        close: &str,
        mut item: impl FnMut(&mut Self) -> Parsed<T>,
    ) -> Parsed<Vec<T>> {
        let mut items = Vec::new();
        if self.take(close) {
            return Ok(items);
        }
        loop {
            items.push(item(self)?);
            if self.take(close) {
                return Ok(items);
            }
            if !self.take(",") {
                let opening = self.source[open.start..open.end].to_owned();
                let error = self
                    .expected_here(&format!("`,` or `{close}`"))
                    .and(open, format!("unclosed `{opening}`"));
                return Err(self.fail(error));
            }
        }
    }

    /// Consumes the opening bracket of labels, `(` or `{`. Reports the other bracket, and accepts
    /// it. Returns the place of the bracket and the closing bracket.
    pub(super) fn open_labels(
        &mut self,
        bracket: &str,
        what: &str,
        help: &str,
    ) -> Parsed<(Span, &'static str)> {
        let found = match self.token {
            Token::Fixed(text @ ("(" | "{")) => text,
            _ => return Err(self.expected(&format!("`{bracket}`"), help)),
        };
        if found != bracket {
            let (right, wrong) =
                if bracket == "{" { ("{ }", "parentheses") } else { ("( )", "braces") };
            self.report(
                Diagnostic::error(
                    format!("{what} need `{right}`, not {wrong}"),
                    self.span,
                    format!("expected `{bracket}`"),
                )
                .help(help),
            );
        }
        Ok((self.bump(), if found == "(" { ")" } else { "}" }))
    }

    pub(super) fn report(&mut self, diagnostic: Diagnostic) {
        let start = |d: &Diagnostic| d.labels.first().map(|(span, _)| span.start);
        // A second error at the same place is a consequence of the first.
        if self.quit
            || self.diagnostics.last().is_some_and(|last| start(last) == start(&diagnostic))
        {
            return;
        }
        self.diagnostics.push(diagnostic);
        if self.diagnostics.len() == DIAGNOSTICS_MAX {
            self.quit();
        }
    }

    pub(super) fn fail(&mut self, diagnostic: Diagnostic) -> Failed {
        self.report(diagnostic);
        Failed
    }

    /// Reports that the current token is not what the grammar expects.
    pub(super) fn expected(&mut self, what: &str, help: &str) -> Failed {
        let error = self.expected_here(what);
        self.fail(if help.is_empty() { error } else { error.help(help) })
    }

    pub(super) fn expected_here(&self, what: &str) -> Diagnostic {
        let (found, span) = match self.token {
            Token::End => ("the end of the file".into(), self.gap()),
            _ => (
                format!("`{}`", shortened(&self.source[self.span.start..self.span.end])),
                self.span,
            ),
        };
        Diagnostic::error(
            format!("expected {what}, found {found}"),
            span,
            format!("expected {what}"),
        )
    }

    /// Stops parsing and reporting.
    pub(super) fn quit(&mut self) {
        self.quit = true;
        (self.token, self.span) =
            (Token::End, Span { start: self.source.len(), end: self.source.len() });
    }

    /// Whether no error has been reported.
    pub(super) fn is_well(&self) -> bool {
        self.diagnostics.is_empty()
    }

    /// Consumes the `;` after a definition.
    pub(super) fn semicolon(&mut self, expected: &str) -> Parsed<()> {
        if self.take(";") {
            return Ok(());
        }
        // The current token cannot belong to the definition, so only the `;` is missing.
        if self.at_definition() || self.at_any(&["}", "connect"]) || self.token == Token::End {
            let gap = self.gap();
            self.report(
                Diagnostic::error("missing `;`", gap, "expected `;`")
                    .help("end the definition with `;`"),
            );
            return Ok(());
        }
        Err(self.expected(expected, ""))
    }

    pub(super) fn at_definition(&self) -> bool {
        self.at_any(&["box", "net", "type", "typesig"])
    }

    /// Skips the rest of a definition after an error: past the next `;` outside of brackets, or to
    /// the next definition.
    pub(super) fn recover(&mut self, depth: usize) {
        self.skip(|parser| {
            if parser.at(";") && parser.depth <= depth {
                parser.bump();
                return true;
            }
            parser.at_definition()
                || parser.at("}") && parser.depth <= depth
                || parser.at("<") && metadata::begins_for_sure(&parser.source[parser.span.start..])
        });
    }

    /// Skips tokens without reports until `stop` returns `true`, or to the end.
    pub(super) fn skip(&mut self, mut stop: impl FnMut(&mut Self) -> bool) {
        self.skipping = true;
        while self.token != Token::End && !stop(self) {
            self.bump();
        }
        self.skipping = false;
    }
}
