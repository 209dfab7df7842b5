//! Parser of labels, variants, types and signatures.

use super::lexer::Token;
use super::parser::{Parsed, Parser};
use crate::ast::{Entry, OutputType, SignatureItem, Span, TypeExpr, TypeItem, Variant};
use crate::diagnostic::Diagnostic;
use crate::label::Kind;

impl Parser<'_> {
    /// `A`, `<T>`, `<#B>`
    pub(super) fn entry(&mut self) -> Parsed<Entry> {
        if self.at("<") {
            return self.tag();
        }
        if self.at("#") {
            let error = self.expected_here("a label").help("write a binding tag as `<#NAME>`");
            return Err(self.fail(error));
        }
        let name = self.name("a label: `NAME`, `<TAG>` or `<#TAG>`")?;
        Ok(Entry { kind: Kind::Field, name })
    }

    /// `<T>`, `<#B>`
    pub(super) fn tag(&mut self) -> Parsed<Entry> {
        let open = self.expect("<", "write a tag as `<NAME>`")?;
        let entry = self.tag_name()?;
        self.close_tag(open)?;
        Ok(entry)
    }

    /// Name of a tag after its `<`.
    pub(super) fn tag_name(&mut self) -> Parsed<Entry> {
        let kind = if self.take("#") { Kind::BindingTag } else { Kind::Tag };
        Ok(Entry { kind, name: self.name("the name of a tag")? })
    }

    /// Consumes the `>` of a tag, or the first character of `>=` as in `<T>=`.
    pub(super) fn close_tag(&mut self, open: Span) -> Parsed<()> {
        if self.at(">=") {
            self.before = self.span.start + 1;
            self.span.start += 1;
            self.token = Token::Fixed("=");
            return Ok(());
        }
        self.expect_closing(">", open).map(|_| ())
    }

    /// `{A, <T>}`
    pub(super) fn variant(&mut self) -> Parsed<Variant> {
        let help = "write `{A, <T>}`";
        let (open, close) = self.open_labels("{", "the labels of a record", help)?;
        let entries = self.list(open, close, Parser::entry)?;
        Ok(Variant { entries, span: self.since(open) })
    }

    /// `{A} | NAME`
    pub(super) fn types(&mut self) -> Parsed<TypeExpr> {
        let mut items = Vec::new();
        loop {
            items.push(match self.token {
                Token::Name(_) => TypeItem::Name(self.name("the name of a type")?),
                Token::Fixed("{" | "(") => TypeItem::Variant(self.variant()?),
                _ => {
                    return Err(
                        self.expected("a type", "write `{A, <T>}`, or the name of a `type`")
                    );
                }
            });
            if self.at("||") {
                self.report(
                    Diagnostic::error(
                        "variants of a type are separated by `|`",
                        self.span,
                        "expected `|`",
                    )
                    .help("write `|`"),
                );
            } else if !self.at("|") {
                return Ok(items);
            }
            self.bump();
        }
    }

    /// `NAME, {A} -> {B}`, up to the sign after it.
    pub(super) fn signature(&mut self) -> Parsed<Vec<SignatureItem>> {
        let mut items = vec![self.mapping()?];
        while self.take(",") {
            items.push(self.mapping()?);
        }
        Ok(items)
    }

    /// `NAME`, `{A} -> {B}`, `-> {B}`, `{A} ->`, `{A} -> ...`
    fn mapping(&mut self) -> Parsed<SignatureItem> {
        if matches!(self.token, Token::Name(_))
            && matches!(self.peek(), Token::Fixed("," | ")" | ";") | Token::End)
        {
            return Ok(SignatureItem::Name(self.name("the name of a signature")?));
        }
        let start = self.span;
        let input = if self.at("->") { Vec::new() } else { self.types()? };
        self.expect("->", "a signature maps an input type to an output type: `{A} -> {B}`")?;
        let output = match self.token {
            Token::Fixed("...") => {
                self.bump();
                OutputType::Infer
            }
            Token::Fixed("," | ")" | ";") => OutputType::Type(Vec::new()),
            _ => OutputType::Type(self.types()?),
        };
        Ok(SignatureItem::Mapping { input, output, span: self.since(start) })
    }
}
