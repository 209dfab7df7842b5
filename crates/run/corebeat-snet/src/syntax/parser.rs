//! What all of the grammar uses: the token that is looked at, errors, and how it goes on after one.

use super::DIAGNOSTICS_MAX;
use super::lexer::{Token, is_reserved, scan, shortened};
use super::metadata;
use crate::ast::{Module, Name, Span};
use crate::diagnostic::Diagnostic;

/// Something is wrong, and it is said already.
#[derive(Debug)]
pub(super) struct Failed;

pub(super) type Parsed<T> = Result<T, Failed>;

pub(super) struct Parser<'s> {
    pub(super) source: &'s str,
    /// The token to be looked at.
    pub(super) token: Token<'s>,
    /// Where it stands.
    pub(super) span: Span,
    /// Where the last taken token ends.
    pub(super) before: usize,
    /// Brackets that are open here, those of nets included.
    pub(super) depth: usize,
    /// Nothing more is said, and the end is near.
    quit: bool,
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
        self.go_on_at(0);
        let module = self.module();
        if self.diagnostics.is_empty() { Ok(module) } else { Err(self.diagnostics) }
    }

    /// Looks at the token that begins at or behind `at`.
    pub(super) fn go_on_at(&mut self, at: usize) {
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

    /// Takes the token and looks at the next.
    pub(super) fn bump(&mut self) -> Span {
        let span = self.span;
        match self.token {
            Token::Fixed("(" | "{" | "[" | "[|") => self.depth += 1,
            Token::Fixed(")" | "}" | "]" | "|]") => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        self.before = span.end;
        self.go_on_at(span.end);
        span
    }

    /// The token behind the one to be looked at.
    pub(super) fn peek(&self) -> Token<'s> {
        scan(self.source, self.span.end).token
    }

    pub(super) fn at(&self, fixed: &str) -> bool {
        matches!(self.token, Token::Fixed(text) if text == fixed)
    }

    pub(super) fn at_any(&self, fixed: &[&str]) -> bool {
        matches!(self.token, Token::Fixed(text) if fixed.contains(&text))
    }

    /// Takes this word or sign, if it stands here.
    pub(super) fn take(&mut self, fixed: &str) -> bool {
        let here = self.at(fixed);
        if here {
            self.bump();
        }
        here
    }

    /// Takes this word or sign, which must stand here.
    pub(super) fn expect(&mut self, fixed: &str, help: &str) -> Parsed<Span> {
        if self.at(fixed) { Ok(self.bump()) } else { Err(self.expected(&format!("`{fixed}`"), help)) }
    }

    /// Takes a sign that must stand here because of another one.
    pub(super) fn expect_closing(&mut self, fixed: &str, open: Span) -> Parsed<Span> {
        if self.at(fixed) {
            return Ok(self.bump());
        }
        let opening = self.source[open.start..open.end].to_owned();
        let error = self.expected_here(&format!("`{fixed}`")).and(open, format!("this `{opening}` is open"));
        Err(self.fail(error))
    }

    /// From the begin of this to the last taken token.
    pub(super) fn since(&self, start: Span) -> Span {
        Span { start: start.start, end: self.before }
    }

    /// The place of something that should stand behind the last taken token.
    pub(super) fn gap(&self) -> Span {
        Span { start: self.before, end: self.before }
    }

    /// A name. A reserved word is told, and taken for one.
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
                    .help(format!("take another name, as `{text}_`")),
                );
                let span = self.bump();
                Ok(Name { text: text.into(), span })
            }
            _ => Err(self.expected(what, "")),
        }
    }

    /// Things with commas between and a closing sign behind; the opening one is taken already.
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
                    .and(open, format!("this `{opening}` is open"));
                return Err(self.fail(error));
            }
        }
    }

    /// Takes the opening bracket of labels, `(` or `{`; the other one is told, and taken for it. Its place, and how
    /// it is closed.
    pub(super) fn open_labels(
        &mut self,
        bracket: &str,
        what: &str,
        help: &str,
    ) -> Parsed<(Span, &'static str)> {
        let here = match self.token {
            Token::Fixed(text @ ("(" | "{")) => text,
            _ => return Err(self.expected(&format!("`{bracket}`"), help)),
        };
        if here != bracket {
            let (right, wrong) =
                if bracket == "{" { ("{ }", "round brackets") } else { ("( )", "curly braces") };
            self.report(
                Diagnostic::error(
                    format!("{what} stand in `{right}`, not in {wrong}"),
                    self.span,
                    format!("expected `{bracket}`"),
                )
                .help(help),
            );
        }
        Ok((self.bump(), if here == "(" { ")" } else { "}" }))
    }

    pub(super) fn report(&mut self, diagnostic: Diagnostic) {
        let start = |d: &Diagnostic| d.labels.first().map(|(span, _)| span.start);
        // Two at one place: the second comes from the first.
        if self.quit || self.diagnostics.last().is_some_and(|last| start(last) == start(&diagnostic)) {
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

    /// Tells that something else should stand here.
    pub(super) fn expected(&mut self, what: &str, help: &str) -> Failed {
        let error = self.expected_here(what);
        self.fail(if help.is_empty() { error } else { error.help(help) })
    }

    pub(super) fn expected_here(&self, what: &str) -> Diagnostic {
        let (found, span) = match self.token {
            Token::End => ("the end of the file".into(), self.gap()),
            _ => (format!("`{}`", shortened(&self.source[self.span.start..self.span.end])), self.span),
        };
        Diagnostic::error(format!("expected {what}, found {found}"), span, format!("expected {what}"))
    }

    /// Nothing more is said, and nothing more is read.
    pub(super) fn quit(&mut self) {
        self.quit = true;
        (self.token, self.span) = (Token::End, Span { start: self.source.len(), end: self.source.len() });
    }

    /// Whether all is well up to here.
    pub(super) fn is_well(&self) -> bool {
        self.diagnostics.is_empty()
    }

    /// Takes the `;` behind a definition.
    pub(super) fn semicolon(&mut self, expected: &str) -> Parsed<()> {
        if self.take(";") {
            return Ok(());
        }
        // What stands here cannot belong to the definition: only the `;` is missing.
        if self.at_definition() || self.at_any(&["}", "connect"]) || self.token == Token::End {
            let gap = self.gap();
            self.report(
                Diagnostic::error("a `;` is missing", gap, "here").help("a definition ends with `;`"),
            );
            return Ok(());
        }
        Err(self.expected(expected, ""))
    }

    pub(super) fn at_definition(&self) -> bool {
        self.at_any(&["box", "net", "type", "typesig"])
    }

    /// Skips what is left of a definition in which something is wrong: behind the next `;` that stands outside of
    /// brackets, or to the next definition.
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

    /// Skips until told to stop, or to the end; says nothing of what it meets.
    pub(super) fn skip(&mut self, mut stop: impl FnMut(&mut Self) -> bool) {
        self.skipping = true;
        while self.token != Token::End && !stop(self) {
            self.bump();
        }
        self.skipping = false;
    }
}
