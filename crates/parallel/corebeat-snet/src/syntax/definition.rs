//! Parser of definitions: boxes, nets, types, signatures and metadata.

use super::NESTING_MAX;
use super::lexer::{Token, shortened, skip_blank, skip_comment};
use super::metadata;
use super::parser::{Failed, Parsed, Parser};
use crate::ast::{
    Body, BoxDefinition, BoxInput, Definition, Entry, Metadata, Module, Name, NetDefinition,
    SignatureItem, Span,
};
use crate::diagnostic::Diagnostic;

/// A net up to its `{` or `connect`.
struct Head {
    name: Name,
    signature: Option<Vec<SignatureItem>>,
    start: Span,
}

/// A net whose `}` has not been read.
struct OpenNet {
    head: Head,
    brace: Span,
    /// Definitions before the net on the same level.
    before: Vec<Definition>,
}

const BOX_FORM: &str = "write `box NAME ((A, <T>) -> (B) | (C));`";
const BODY_FORM: &str = "write the code of a box as `{<<< LANGUAGE | code >>>}`";
const NET_FORM: &str =
    "write `net NAME connect ...;`, with definitions in `{ }` before `connect` if there are any";

impl Parser<'_> {
    /// Parses the whole source.
    pub(super) fn module(&mut self) -> Module {
        let mut definitions = Vec::new();
        let mut open: Vec<OpenNet> = Vec::new();
        if self.token == Token::End && self.is_well() {
            self.expected("a definition", NET_FORM);
        }
        while self.token != Token::End {
            self.depth = open.len();
            let made = match self.token {
                Token::Fixed(";") => {
                    self.bump();
                    continue;
                }
                Token::Fixed("box") => self.box_definition().map(Definition::Box),
                Token::Fixed("type") => self.type_definition(),
                Token::Fixed("typesig") => self.signature_definition(),
                Token::Fixed("net") => match self.head() {
                    Ok(head) if self.at("{") => {
                        self.open_net(head, &mut open, &mut definitions);
                        continue;
                    }
                    Ok(head) => self.net(head, Vec::new()),
                    Err(failed) => Err(failed),
                },
                Token::Fixed("}" | "connect") => match open.pop() {
                    Some(net) => {
                        self.depth = open.len();
                        self.close_net(net, &mut definitions)
                    }
                    None => self.stray(),
                },
                Token::Fixed("<") if metadata::begins(&self.source[self.span.start..]) => {
                    match self.metadata() {
                        Ok(Some(metadata)) => Ok(Definition::Metadata(metadata)),
                        Ok(None) | Err(Failed) => continue,
                    }
                }
                _ => {
                    let what = "a definition: `box`, `net`, `type`, `typesig` or `<metadata>`";
                    Err(self.expected(what, ""))
                }
            };
            match made {
                Ok(definition) => definitions.push(definition),
                Err(Failed) => self.recover(open.len()),
            }
        }
        // After an error, it is unknown which net the open braces belong to.
        if let Some(net) = open.pop()
            && self.is_well()
        {
            let name = shortened(&net.head.name.text);
            self.report(
                Diagnostic::error(
                    format!("the net `{name}` is not closed"),
                    net.brace,
                    "unclosed `{`",
                )
                .help("close the net with `} connect ...;`"),
            );
        }
        Module { definitions }
    }

    /// Parses the `{` of a net. The definitions that follow belong to the net.
    fn open_net(&mut self, head: Head, open: &mut Vec<OpenNet>, definitions: &mut Vec<Definition>) {
        if open.len() == NESTING_MAX {
            let error = Diagnostic::error("nets are nested too deeply", head.start, "too deep");
            self.report(error.help(format!("nest at most {NESTING_MAX} levels")));
            self.quit();
            return;
        }
        let brace = self.bump();
        open.push(OpenNet { head, brace, before: std::mem::take(definitions) });
    }

    /// Parses the end of a net from its `}` on, and restores the definitions around the net.
    fn close_net(&mut self, net: OpenNet, definitions: &mut Vec<Definition>) -> Parsed<Definition> {
        let depth = self.depth;
        if !self.take("}") {
            let gap = self.gap();
            self.report(
                Diagnostic::error("missing `}` before `connect`", gap, "expected `}`")
                    .and(net.brace, "unclosed `{`")
                    .help("close the definitions of the net with `}`"),
            );
        }
        self.depth = depth;
        let inside = std::mem::replace(definitions, net.before);
        self.net(net.head, inside)
    }

    /// Reports a `}` or `connect` without a net. After an error, the net may have been skipped.
    fn stray(&mut self) -> Parsed<Definition> {
        if self.is_well() {
            let (message, help) = if self.at("}") {
                ("unexpected `}`", "remove it, or begin a net with `net NAME {` before it")
            } else {
                ("unexpected `connect`", "write `net NAME` before it")
            };
            self.report(Diagnostic::error(message, self.span, "no net is open here").help(help));
        }
        self.bump();
        Err(Failed)
    }

    /// `box NAME ((A, <T>=) -> (B) | (C));`
    fn box_definition(&mut self) -> Parsed<BoxDefinition> {
        let start = self.bump();
        let name = self.name("the name of the box")?;
        let open = self.expect("(", BOX_FORM)?;
        let input = if self.at("->") {
            None
        } else {
            let (open, close) = self.open_box_labels()?;
            Some(self.list(open, close, |parser| {
                let entry = parser.entry()?;
                Ok(BoxInput { entry, passes: parser.take("=") })
            })?)
        };
        self.expect("->", BOX_FORM)?;
        let mut outputs = Vec::new();
        if !self.at(")") {
            outputs.push(self.box_output()?);
            while self.at_any(&["|", "||"]) {
                if self.at("||") {
                    self.report(
                        Diagnostic::error(
                            "outputs of a box are separated by `|`",
                            self.span,
                            "expected `|`",
                        )
                        .help("write `|`"),
                    );
                }
                self.bump();
                outputs.push(self.box_output()?);
            }
        }
        self.expect_closing(")", open)?;
        let body = if self.at("{") {
            Some(self.body(&name)?)
        } else {
            self.semicolon("`;` or `{<<<`")?;
            None
        };
        Ok(BoxDefinition { name, input, outputs, body, span: self.since(start) })
    }

    fn box_output(&mut self) -> Parsed<Vec<Entry>> {
        let (open, close) = self.open_box_labels()?;
        self.list(open, close, Parser::entry)
    }

    fn open_box_labels(&mut self) -> Parsed<(Span, &'static str)> {
        if matches!(self.token, Token::Name(_) | Token::Fixed("<")) {
            let error = Diagnostic::error(
                "each list of labels of a box needs parentheses",
                self.span,
                "expected `(`",
            );
            return Err(self.fail(error.help(BOX_FORM)));
        }
        self.open_labels("(", "the labels of a box", BOX_FORM)
    }

    /// `{<<< LANGUAGE | code >>>}`, whose content is not S-Net.
    fn body(&mut self, name: &Name) -> Parsed<Body> {
        let source = self.source;
        let begin = match skip_blank(source, self.span.end) {
            Ok(begin) if source[begin..].starts_with("<<<") => begin,
            _ => {
                self.bump();
                return Err(self.expected("`<<<`", BODY_FORM));
            }
        };
        let opening = Span { start: begin, end: begin + 3 };
        let text = &source[opening.end..];
        // Code may contain `>>>`, but rarely with a closing brace after it.
        let end = text.match_indices('>').map(|(i, _)| i).find(|i| {
            text[*i..].strip_prefix(">>>").is_some_and(|rest| rest.trim_start().starts_with('}'))
        });
        let Some(end) = end else {
            let error = Diagnostic::error(
                format!("the code of the box `{}` is not closed", shortened(&name.text)),
                opening,
                "begins here",
            );
            self.report(error.help("close it with `>>>}`"));
            self.quit();
            return Err(Failed);
        };
        let end = opening.end + end;
        let next = source.len() - source[end + 3..].trim_start().len() + 1;
        self.before = next;
        self.continue_at(next);

        let (language, bar) = match self.language(opening.end, end) {
            Some(found) => found,
            None => {
                let error = Diagnostic::error(
                    format!("the code of the box `{}` has no language", shortened(&name.text)),
                    opening,
                    "expected a language and `|` after this",
                );
                self.report(error.help(BODY_FORM));
                return Err(Failed);
            }
        };
        let span = Span { start: bar + 1, end };
        Ok(Body { language, code: source[span.start..span.end].into(), span })
    }

    /// Returns the text before the first `|` between two positions, without comments, and the
    /// position of the `|`.
    fn language(&self, from: usize, to: usize) -> Option<(Name, usize)> {
        let source = &self.source[..to];
        let (mut at, mut text) = (from, String::new());
        let mut span = Span { start: from, end: from };
        loop {
            let rest = &source[at..];
            let next = rest.find(['|', '/'])?;
            let is_comment = rest[next..].starts_with("/*") || rest[next..].starts_with("//");
            let is_bar = rest[next..].starts_with('|');
            let piece = if is_comment || is_bar { &rest[..next] } else { &rest[..next + 1] };
            if !piece.trim().is_empty() {
                if text.trim().is_empty() {
                    span.start = at + piece.len() - piece.trim_start().len();
                }
                span.end = at + piece.trim_end().len();
            }
            text.push_str(piece);
            at += piece.len();
            if is_bar {
                let text = text.trim().to_owned();
                return (!text.is_empty()).then_some((Name { text, span }, at));
            }
            if is_comment {
                at = skip_comment(source, at).ok()?;
            }
        }
    }

    /// `type NAME = {A} | {B};`
    fn type_definition(&mut self) -> Parsed<Definition> {
        self.bump();
        let name = self.name("the name of the type")?;
        self.expect("=", "write `type NAME = {A} | {B};`")?;
        let value = self.types()?;
        self.semicolon("`|` or `;`")?;
        Ok(Definition::Type { name, value })
    }

    /// `typesig NAME = {A} -> {B}, OTHER;`
    fn signature_definition(&mut self) -> Parsed<Definition> {
        self.bump();
        let name = self.name("the name of the signature")?;
        self.expect("=", "write `typesig NAME = {A} -> {B};`")?;
        let value = self.signature()?;
        self.semicolon("`|`, `,` or `;`")?;
        Ok(Definition::Signature { name, value })
    }

    /// `net NAME ({A} -> {B})`
    fn head(&mut self) -> Parsed<Head> {
        let depth = self.depth;
        let start = self.bump();
        if self.at("connect") {
            return Err(self.expected("the name of the net", NET_FORM));
        }
        let name = self.name("the name of the net")?;
        let mut signature = None;
        if self.at("(") {
            let open = self.bump();
            let items = if self.at(")") {
                let help = "write `({A} -> {B})`, or omit `()` to infer the signature";
                Err(self.expected("a signature", help))
            } else {
                self.signature().and_then(|items| self.expect_closing(")", open).map(|_| items))
            };
            if items.is_err() {
                // Skip to the end of the signature, so that the net's content is parsed as such.
                self.skip(|parser| {
                    parser.depth <= depth
                        || parser.depth == depth + 1 && parser.at(";")
                        || parser.at("connect")
                        || parser.at_definition()
                });
                self.depth = depth;
                if !self.at_any(&["{", "connect"]) {
                    return Err(Failed);
                }
            }
            signature = items.ok();
        }
        Ok(Head { name, signature, start })
    }

    /// `connect ...;`
    fn net(&mut self, head: Head, definitions: Vec<Definition>) -> Parsed<Definition> {
        if !self.take("connect") {
            let name = shortened(&head.name.text);
            let gap = self.gap();
            let help = if self.at(";") {
                "add `connect ...;`; to use a function in another language, define a `box`"
            } else {
                NET_FORM
            };
            let message = format!("the net `{name}` has no `connect`");
            self.report(Diagnostic::error(message, gap, "expected `connect`").help(help));
            let may_be_topology = match self.token {
                Token::Name(_) => true,
                Token::Fixed(text) => ["(", "[", "[|"].contains(&text),
                _ => false,
            };
            if !may_be_topology {
                // A definition or the end of the file does not belong to this net.
                return Err(Failed);
            }
        }
        let topology = self.topology()?;
        self.semicolon("`..`, `|`, `*`, `!` or `;`")?;
        Ok(Definition::Net(NetDefinition {
            name: head.name,
            signature: head.signature,
            definitions,
            topology,
            span: self.since(head.start),
        }))
    }

    /// XML up to the end of its element. `None` for a comment or an instruction.
    fn metadata(&mut self) -> Parsed<Option<Metadata>> {
        let read = metadata::read(self.source, self.span.start);
        self.before = read.end;
        // Report the error before scanning on, so that errors keep the order of the source.
        let made = read.made.map_err(|error| self.fail(error));
        self.continue_at(read.end);
        made
    }
}
