//! The XML that stands between definitions.

use super::NESTING_MAX;
use super::lexer::shortened;
use crate::ast::{Element, Metadata, Span};
use crate::diagnostic::Diagnostic;

/// What was read, or what is wrong with it, and where the program goes on.
pub(super) struct Read {
    /// `None` for a comment or an instruction `<?...?>`.
    pub(super) made: Result<Option<Metadata>, Diagnostic>,
    pub(super) end: usize,
}

/// Whether this looks like XML.
pub(super) fn begins(text: &str) -> bool {
    text.strip_prefix('<').is_some_and(|rest| rest.starts_with(|c| is_name_start(c) || "!?/".contains(c)))
}

/// Whether this is XML even where tags may stand.
pub(super) fn begins_for_sure(text: &str) -> bool {
    text.strip_prefix('<')
        .is_some_and(|rest| rest.starts_with(['!', '?']) || local(name_of(rest)) == "metadata")
}

/// Reads what begins at `from`.
pub(super) fn read(source: &str, from: usize) -> Read {
    let mut reader = Reader { source, at: from };
    match reader.construct() {
        Ok(element) => {
            let span = Span { start: from, end: reader.at };
            let metadata = |element: Element| {
                let elements = if element.name == "metadata" { element.children } else { vec![element] };
                Metadata { elements, span }
            };
            Read { made: Ok(element.map(metadata)), end: reader.at }
        }
        // Behind the end tag of what begins here, if there is one: what is between cannot be understood.
        Err(error) => {
            let text = &source[from..];
            let end = if text.starts_with("</") {
                text.find('>').map(|i| from + i + 1)
            } else {
                let tag = format!("</{}", name_of(&text[1..]));
                let behind = source[reader.at..].find(&tag).map(|i| reader.at + i + tag.len());
                behind.filter(|_| tag.len() > 2).and_then(|at| source[at..].find('>').map(|i| at + i + 1))
            };
            let end = end.unwrap_or(source.len());
            Read { made: Err(error), end }
        }
    }
}

struct Reader<'s> {
    source: &'s str,
    at: usize,
}

/// An element whose end tag has not come yet.
struct Open<'s> {
    /// As it is written, with its prefix.
    tag: &'s str,
    span: Span,
    element: Element,
}

type Reads<T> = Result<T, Diagnostic>;

impl<'s> Reader<'s> {
    /// One element with all that is inside, or one comment or instruction.
    fn construct(&mut self) -> Reads<Option<Element>> {
        let mut open: Vec<Open<'s>> = Vec::new();
        loop {
            let mut ended = None;
            let start = self.at;
            if self.at == self.source.len()
                && let Some(last) = open.last()
            {
                let error = Diagnostic::error(
                    format!("`<{}>` is not closed", shortened(last.tag)),
                    last.span,
                    "here",
                );
                return Err(error.help(format!("write `</{}>`", shortened(last.tag))));
            } else if self.take("<!--") {
                self.take_until("-->", start, "a comment")?;
            } else if self.take("<?") {
                self.take_until("?>", start, "an instruction")?;
            } else if self.take("<![CDATA[") {
                let text = self.take_until("]]>", start, "a text")?;
                if let Some(last) = open.last_mut() {
                    last.element.text.push_str(text);
                }
            } else if self.take("</") {
                let tag = self.name("the name of the element")?;
                self.skip_blank();
                self.expect(">")?;
                let span = self.since(start);
                let Some(last) = open.pop() else {
                    let error =
                        Diagnostic::error(format!("`</{}>` closes nothing", shortened(tag)), span, "here");
                    return Err(error.help("remove it"));
                };
                if last.tag != tag {
                    let (tag, last_tag) = (shortened(tag), shortened(last.tag));
                    let error =
                        Diagnostic::error(format!("`</{tag}>` does not close `<{last_tag}>`"), span, "here");
                    // What is wrong may be the end of the whole, so that the program goes on behind it.
                    self.at = start;
                    return Err(error
                        .and(last.span, "this is open")
                        .help(format!("write `</{last_tag}>` first")));
                }
                ended = Some(last.element);
            } else if self.take("<") {
                let tag = self.name("the name of an element, `</`, `<!--` or `<?`")?;
                let attributes = self.attributes()?;
                let is_empty = self.take("/");
                self.expect(">")?;
                let element = Element { name: local(tag).into(), attributes, ..Element::default() };
                if is_empty {
                    ended = Some(element);
                } else {
                    let span = self.since(start);
                    if open.len() == NESTING_MAX {
                        let error = Diagnostic::error("metadata is nested too deeply", span, "this element");
                        return Err(error.help(format!("nest at most {NESTING_MAX} elements")));
                    }
                    open.push(Open { tag, span, element });
                }
            } else {
                let rest = &self.source[self.at..];
                let end = self.at + rest.find('<').unwrap_or(rest.len());
                let text = self.unescaped(end)?;
                if let Some(last) = open.last_mut() {
                    last.element.text.push_str(&text);
                }
            }
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

    /// `name="value"`, any number of them.
    fn attributes(&mut self) -> Reads<Vec<(String, String)>> {
        let mut attributes: Vec<(String, String)> = Vec::new();
        let mut names = std::collections::HashSet::new();
        loop {
            self.skip_blank();
            if self.source[self.at..].starts_with(['>', '/']) {
                return Ok(attributes);
            }
            let start = self.at;
            let name = self.name("an attribute, `>` or `/>`")?;
            if !names.insert(name) {
                let message = format!("there are two attributes `{}`", shortened(name));
                return Err(Diagnostic::error(message, self.since(start), "the second").help("remove one"));
            }
            self.skip_blank();
            self.expect("=")?;
            self.skip_blank();
            let open = self.at;
            let Some(quote) = ["\"", "'"].into_iter().find(|quote| self.take(quote)) else {
                return Err(self.expected("a value in quotes"));
            };
            // A `<` cannot stand in a value; that it does shows where a quote is missing.
            let rest = &self.source[self.at..];
            let length = rest.find([quote.as_bytes()[0] as char, '<']).unwrap_or(rest.len());
            if !rest[length..].starts_with(quote) {
                let span = Span { start: open, end: open + 1 };
                let error =
                    Diagnostic::error("the value of an attribute is not closed", span, "it begins here");
                return Err(error.help(format!("close it with `{quote}`; write `&lt;` for `<`")));
            }
            let value = self.unescaped(self.at + length)?;
            self.take(quote);
            attributes.push((name.into(), value));
        }
    }

    /// The text up to a place, with what stands for other signs (`&amp;`) replaced.
    fn unescaped(&mut self, end: usize) -> Reads<String> {
        let mut text = String::new();
        while let Some(length) = self.source[self.at..end].find('&') {
            text.push_str(&self.source[self.at..self.at + length]);
            let start = self.at + length;
            self.at = start + 1;
            let name = self.source[self.at..end].split_once(';').map(|(name, _)| name);
            let Some((name, sign)) = name.and_then(|name| Some((name, reference(name)?))) else {
                let error = Diagnostic::error("`&` stands for nothing here", self.since(start), "this sign");
                return Err(error.help("write `&amp;` for `&`"));
            };
            text.push(sign);
            self.at += name.len() + 1;
        }
        text.push_str(&self.source[self.at..end]);
        self.at = end;
        Ok(text)
    }

    fn take(&mut self, sign: &str) -> bool {
        let here = self.source[self.at..].starts_with(sign);
        if here {
            self.at += sign.len();
        }
        here
    }

    fn expect(&mut self, sign: &str) -> Reads<()> {
        if self.take(sign) { Ok(()) } else { Err(self.expected(&format!("`{sign}`"))) }
    }

    /// What stands before a sign, which is taken as well.
    fn take_until(&mut self, sign: &str, start: usize, what: &str) -> Reads<&'s str> {
        let rest = &self.source[self.at..];
        let Some(length) = rest.find(sign) else {
            let error = Diagnostic::error(
                format!("{what} in metadata is not closed"),
                Span { start, end: self.at },
                "it begins here",
            );
            return Err(error.help(format!("close it with `{sign}`")));
        };
        self.at += length + sign.len();
        Ok(&rest[..length])
    }

    fn name(&mut self, what: &str) -> Reads<&'s str> {
        let name = name_of(&self.source[self.at..]);
        if name.is_empty() {
            return Err(self.expected(what));
        }
        self.at += name.len();
        Ok(name)
    }

    fn skip_blank(&mut self) {
        self.at = self.source.len() - self.source[self.at..].trim_start().len();
    }

    fn since(&self, start: usize) -> Span {
        Span { start, end: self.at }
    }

    fn expected(&self, what: &str) -> Diagnostic {
        let found = self.source[self.at..].chars().next();
        let length = found.map_or(0, char::len_utf8);
        let found = match found {
            None => "the end of the file".into(),
            Some('\r' | '\n') => "the end of the line".into(),
            Some(_) => format!("`{}`", shortened(&self.source[self.at..self.at + length])),
        };
        let span = Span { start: self.at, end: self.at + length };
        Diagnostic::error(format!("expected {what}, found {found}"), span, format!("expected {what}"))
            .help("metadata is XML: `<box name=\"NAME\"><interface value=\"C4SNet\"/></box>`")
    }
}

fn is_name_start(c: char) -> bool {
    c.is_alphabetic() || c == '_'
}

/// The name at the begin of a text.
fn name_of(text: &str) -> &str {
    if !text.starts_with(is_name_start) {
        return "";
    }
    let length = text.find(|c: char| !(c.is_alphanumeric() || "_-.:".contains(c))).unwrap_or(text.len());
    &text[..length]
}

/// A name without its prefix.
fn local(name: &str) -> &str {
    name.rsplit(':').next().unwrap_or(name)
}

/// What stands between `&` and `;`.
fn reference(name: &str) -> Option<char> {
    Some(match name {
        "lt" => '<',
        "gt" => '>',
        "amp" => '&',
        "quot" => '"',
        "apos" => '\'',
        _ => {
            let digits = name.strip_prefix('#')?;
            let number = match digits.strip_prefix('x') {
                Some(digits) => u32::from_str_radix(digits, 16),
                None => digits.parse(),
            };
            char::from_u32(number.ok()?)?
        }
    })
}
