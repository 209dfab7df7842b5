//! Reader of the XML between definitions. quick-xml splits the text into events.

use quick_xml::XmlVersion;
use quick_xml::errors::{IllFormedError, SyntaxError};
use quick_xml::escape::resolve_xml_entity;
use quick_xml::events::attributes::AttrError;
use quick_xml::events::{BytesStart, Event};

use super::NESTING_MAX;
use super::lexer::shortened;
use crate::ast::{Element, Metadata, Span};
use crate::diagnostic::Diagnostic;

/// Result of reading a construct of XML, and the offset at which the program continues.
pub(super) struct Read {
    /// `None` for a comment or an instruction `<?...?>`.
    pub(super) made: Result<Option<Metadata>, Diagnostic>,
    pub(super) end: usize,
}

/// Whether the text begins like XML.
pub(super) fn begins(text: &str) -> bool {
    text.strip_prefix('<')
        .is_some_and(|rest| rest.starts_with(|c| is_name_start(c) || "!?/".contains(c)))
}

/// Whether the text is XML even where a tag in angle brackets may occur.
pub(super) fn begins_for_sure(text: &str) -> bool {
    text.strip_prefix('<')
        .is_some_and(|rest| rest.starts_with(['!', '?']) || local(name_of(rest)) == "metadata")
}

/// Reads the construct that begins at `from`.
pub(super) fn read(source: &str, from: usize) -> Read {
    let mut reader = Reader::new(source, from);
    match reader.construct() {
        Ok(element) => {
            let span = Span { start: from, end: reader.at };
            let metadata = |element: Element| {
                let elements =
                    if element.name == "metadata" { element.children } else { vec![element] };
                Metadata { elements, span }
            };
            Read { made: Ok(element.map(metadata)), end: reader.at }
        }
        // The program continues after the end tag of the construct, if there is one, because the
        // text before it cannot be interpreted.
        Err(error) => {
            let text = &source[from..];
            let end = if text.starts_with("</") {
                text.find('>').map(|i| from + i + 1)
            } else {
                let tag = format!("</{}", name_of(&text[1..]));
                let after = source[reader.at..].find(&tag).map(|i| reader.at + i + tag.len());
                after
                    .filter(|_| tag.len() > 2)
                    .and_then(|at| source[at..].find('>').map(|i| at + i + 1))
            };
            let end = end.unwrap_or(source.len());
            Read { made: Err(error), end }
        }
    }
}

/// A construct of XML in the source, which quick-xml splits into events.
struct Reader<'s> {
    source: &'s str,
    /// Offset of the construct in the source.
    from: usize,
    /// Offset of the next event in the source. After an error, the offset of the mistake.
    at: usize,
    xml: quick_xml::Reader<&'s [u8]>,
}

/// An element whose end tag has not been read.
struct Open {
    /// Name with its prefix.
    tag: String,
    span: Span,
    element: Element,
}

type Parsed<T> = Result<T, Diagnostic>;

impl<'s> Reader<'s> {
    fn new(source: &'s str, from: usize) -> Reader<'s> {
        let mut xml = quick_xml::Reader::from_str(&source[from..]);
        // Mismatched tags are reported here, with the places of both tags.
        xml.config_mut().check_end_names = false;
        xml.config_mut().allow_unmatched_ends = true;
        Reader { source, from, at: from, xml }
    }

    /// Reads one element with its content, or one comment or instruction.
    fn construct(&mut self) -> Parsed<Option<Element>> {
        let mut open: Vec<Open> = Vec::new();
        loop {
            let start = self.at;
            let event = self.event(start)?;
            let span = Span { start, end: self.at };
            let ended = match event {
                Event::Start(tag) => {
                    let element = self.element(&tag, span)?;
                    if open.len() == NESTING_MAX {
                        let error = Diagnostic::error(
                            "metadata is nested too deeply",
                            span,
                            "this element",
                        );
                        return Err(error.help(format!("nest at most {NESTING_MAX} elements")));
                    }
                    open.push(Open { tag: tag.name().as_ref().into(), span, element });
                    None
                }
                Event::Empty(tag) => Some(self.element(&tag, span)?),
                Event::End(tag) => Some(self.close(tag.name().as_ref(), span, open.pop())?),
                Event::Eof => return Err(self.unclosed(open.last(), span)),
                event => {
                    let text = self.text(&event, span)?;
                    if let Some(last) = open.last_mut() {
                        last.element.text.push_str(&text);
                    }
                    None
                }
            };
            if let Some(mut element) = ended {
                element.text = element.text.trim().into();
                match open.last_mut() {
                    Some(parent) => parent.element.children.push(element),
                    None => return Ok(Some(element)),
                }
            }
            if open.is_empty() {
                return Ok(None);
            }
        }
    }

    /// Reads the next event, which begins at `start`, and moves past the event.
    fn event(&mut self, start: usize) -> Parsed<Event<'s>> {
        let event = self.xml.read_event();
        match event {
            Ok(event) => {
                self.at = self.from + self.xml.buffer_position() as usize;
                Ok(event)
            }
            Err(why) => Err(self.syntax_error(&why, start)),
        }
    }

    /// The diagnostic for an event at `start` that quick-xml cannot read.
    fn syntax_error(&self, why: &quick_xml::Error, start: usize) -> Diagnostic {
        let (what, open, close) = match why {
            quick_xml::Error::Syntax(why) => match why {
                SyntaxError::UnclosedComment => ("comment", "<!--", "-->"),
                SyntaxError::UnclosedCData => ("CDATA section", "<![CDATA[", "]]>"),
                SyntaxError::UnclosedPI | SyntaxError::UnclosedXmlDecl => {
                    ("instruction", "<?", "?>")
                }
                SyntaxError::UnclosedSingleQuotedAttributeValue => ("attribute value", "<", "'"),
                SyntaxError::UnclosedDoubleQuotedAttributeValue => ("attribute value", "<", "\""),
                SyntaxError::UnclosedTag => ("tag", "<", ">"),
                _ => return self.expected(start + 1, "the name of an element, `<!--` or `<?`"),
            },
            quick_xml::Error::IllFormed(IllFormedError::UnclosedReference) => {
                return self.reference_error(start);
            }
            _ => return self.expected(start, "XML"),
        };
        // quick-xml takes `<!-` for the beginning of a comment, and `<![` for that of a section.
        let text = self.source[start..].bytes();
        let length = text.zip(open.bytes()).take_while(|(found, wanted)| found == wanted).count();
        let span = Span { start, end: start + length };
        if length < open.len() {
            let message = format!("incomplete beginning of a {what} in metadata");
            let error = Diagnostic::error(message, span, "begins here");
            return error.help(format!("begin the {what} with `{open}`"));
        }
        let error = Diagnostic::error(
            format!("unclosed {what} in metadata"),
            span,
            if what == "attribute value" { "in this tag" } else { "begins here" },
        );
        error.help(format!("close the {what} with `{close}`"))
    }

    /// The diagnostic for the end of the file inside of an element.
    fn unclosed(&self, open: Option<&Open>, end: Span) -> Diagnostic {
        let Some(Open { tag, span, .. }) = open else {
            return self.expected(end.start, "metadata");
        };
        let tag = shortened(tag);
        Diagnostic::error(format!("the element `<{tag}>` is not closed"), *span, "opened here")
            .help(format!("write `</{tag}>`"))
    }

    /// Ends the innermost open element by an end tag.
    fn close(&mut self, tag: &str, span: Span, open: Option<Open>) -> Parsed<Element> {
        self.check_name(tag, span.start + 2, "the name of the element")?;
        let tag = shortened(tag);
        let Some(open) = open else {
            let error = Diagnostic::error(
                format!("the end tag `</{tag}>` has no start tag"),
                span,
                "closes no element",
            );
            return Err(error.help("remove it"));
        };
        let wanted = shortened(&open.tag);
        if wanted == tag {
            return Ok(open.element);
        }
        // The end tag may end the whole construct, so the program continues before it.
        self.at = span.start;
        let error = Diagnostic::error(
            format!("the end tag `</{tag}>` does not close the element `<{wanted}>`"),
            span,
            "mismatched end tag",
        );
        Err(error.and(open.span, "this element is open").help(format!("write `</{wanted}>` first")))
    }

    /// An element without content from its start tag.
    fn element(&self, tag: &BytesStart<'_>, span: Span) -> Parsed<Element> {
        let inside = span.start + 1;
        let name = tag.name();
        let expected = "the name of an element, `</`, `<!--` or `<?`";
        self.check_name(name.as_ref(), inside, expected)?;
        let mut attributes = Vec::new();
        for attribute in tag.attributes() {
            let attribute = attribute.map_err(|why| self.attribute_error(&why, inside))?;
            let key = attribute.key.as_ref();
            let offset = inside + (key.as_ptr().addr() - tag.as_ptr().addr());
            if name_of(key) != key {
                return Err(self.expected(offset, "an attribute, `>` or `/>`"));
            }
            // The value is a part of the tag, so a `<` shows that a quote is missing before it.
            if attribute.value.contains('<') {
                let error = Diagnostic::error(
                    "the value of an attribute contains `<`",
                    Span { start: offset, end: offset + key.len() },
                    "in this attribute",
                );
                return Err(error.help("close the value with a quote, or write `&lt;` for `<`"));
            }
            let value = attribute
                .normalized_value(XmlVersion::Implicit1_0)
                .map_err(|_| self.reference_error(offset))?;
            attributes.push((key.to_owned(), value.into_owned()));
        }
        Ok(Element { name: local(name.as_ref()).into(), attributes, ..Element::default() })
    }

    /// The diagnostic for an attribute of a tag whose content begins at `inside`.
    fn attribute_error(&self, why: &AttrError, inside: usize) -> Diagnostic {
        match *why {
            AttrError::Duplicated(offset, _) => {
                let start = inside + offset;
                let name = name_of(&self.source[start..]);
                let span = Span { start, end: start + name.len() };
                let message = format!("the attribute `{}` occurs twice", shortened(name));
                Diagnostic::error(message, span, "second occurrence").help("remove one of them")
            }
            AttrError::ExpectedEq(offset) => {
                // quick-xml accepts any characters as the name of an attribute.
                let before = self.source[inside..inside + offset].trim_end();
                let key = before.rsplit(char::is_whitespace).next().unwrap_or(before);
                if name_of(key) == key {
                    return self.expected(inside + offset, "`=`");
                }
                self.expected(inside + before.len() - key.len(), "an attribute, `>` or `/>`")
            }
            AttrError::ExpectedValue(offset)
            | AttrError::UnquotedValue(offset)
            | AttrError::ExpectedQuote(offset, _) => {
                self.expected(inside + offset, "a value in quotes")
            }
        }
    }

    /// The text of an event that is not a tag.
    fn text(&self, event: &Event<'_>, span: Span) -> Parsed<String> {
        Ok(match event {
            Event::Text(text) => text.to_string(),
            Event::CData(text) => text.to_string(),
            Event::GeneralRef(reference) => match reference.resolve_char_ref() {
                Ok(Some(c)) => c.into(),
                Ok(None) => resolve_xml_entity(reference)
                    .ok_or_else(|| self.reference_error(span.start))?
                    .into(),
                Err(_) => return Err(self.reference_error(span.start)),
            },
            _ => String::new(),
        })
    }

    fn check_name(&self, name: &str, at: usize, expected: &str) -> Parsed<()> {
        if !name.is_empty() && name_of(name) == name {
            return Ok(());
        }
        Err(self.expected(at, expected))
    }

    /// The diagnostic for a `&` at or after `from` that begins no reference.
    fn reference_error(&self, from: usize) -> Diagnostic {
        let start = self.source[from..].find('&').map_or(from, |i| from + i);
        let end = self.source.len().min(start + 1);
        let error =
            Diagnostic::error("invalid reference in metadata", Span { start, end }, "this `&`");
        error.help("write `&amp;` for `&`, `&lt;` for `<`")
    }

    /// The diagnostic for a position with other text than expected.
    fn expected(&self, at: usize, what: &str) -> Diagnostic {
        let found = self.source.get(at..).and_then(|rest| rest.chars().next());
        let at = at.min(self.source.len());
        let length = found.map_or(0, char::len_utf8);
        let found = match found {
            None => "the end of the file".into(),
            Some('\r' | '\n') => "the end of the line".into(),
            Some(_) => format!("`{}`", shortened(&self.source[at..at + length])),
        };
        let span = Span { start: at, end: at + length };
        Diagnostic::error(
            format!("expected {what}, found {found}"),
            span,
            format!("expected {what}"),
        )
        .help("metadata is XML: `<box name=\"NAME\"><interface value=\"C4SNet\"/></box>`")
    }
}

fn is_name_start(c: char) -> bool {
    c.is_alphabetic() || c == '_'
}

/// The XML name at the start of a text. Empty if there is none.
fn name_of(text: &str) -> &str {
    if !text.starts_with(is_name_start) {
        return "";
    }
    let length =
        text.find(|c: char| !(c.is_alphanumeric() || "_-.:".contains(c))).unwrap_or(text.len());
    &text[..length]
}

/// The name without its prefix.
fn local(name: &str) -> &str {
    name.rsplit(':').next().unwrap_or(name)
}
