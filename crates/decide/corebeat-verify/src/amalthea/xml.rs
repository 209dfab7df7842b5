//! The tree of an XML document, with the line of each element.

use crate::error::Error;
use quick_xml::XmlVersion;
use quick_xml::events::{BytesStart, Event};

/// Deepest nesting of elements: the reader is recursive.
const DEPTH_MAX: usize = 100;
/// Largest number of elements.
const ELEMENTS_MAX: usize = 5_000_000;

/// An element.
#[derive(Debug, Default)]
pub(super) struct Element {
    /// Name without namespace.
    pub(super) name: String,
    attributes: Vec<(String, String)>,
    /// Elements inside.
    pub(super) children: Vec<Element>,
    /// Line of the element, from 1.
    pub(super) line: usize,
}

impl Element {
    /// The value of an attribute, or "".
    pub(super) fn get(&self, name: &str) -> &str {
        let found = self.attributes.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value)
    }

    /// The attributes with their values.
    pub(super) fn attributes(&self) -> impl Iterator<Item = (&str, &str)> {
        self.attributes.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The type of the element without its namespace, as `xsi:type` states it.
    pub(super) fn kind(&self) -> &str {
        let kind = self.get("xsi:type");
        kind.rsplit_once(':').map_or(kind, |(_, kind)| kind)
    }

    /// The first child with a name.
    pub(super) fn child(&self, name: &str) -> Option<&Element> {
        self.children.iter().find(|c| c.name == name)
    }

    /// All children with a name.
    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Element> {
        self.children.iter().filter(move |c| c.name == name)
    }

    /// The line, the kind and the name, as places of errors state them.
    pub(super) fn place(&self) -> String {
        let kind = if self.kind().is_empty() { &self.name } else { self.kind() };
        match self.get("name") {
            "" => format!("line {}, {kind}", self.line),
            name => format!("line {}, {kind} '{name}'", self.line),
        }
    }
}

/// Reads a document.
pub(super) fn parse(text: &str) -> Result<Element, Error> {
    let mut reader = quick_xml::Reader::from_str(text);
    let (mut line, mut at, mut count) = (1, 0, 0);
    let mut open: Vec<Element> = vec![];
    loop {
        let event = reader.read_event();
        let to = usize::try_from(reader.buffer_position()).unwrap_or(0).clamp(at, text.len());
        let start = line;
        line += text.as_bytes()[at..to].iter().filter(|b| **b == b'\n').count();
        at = to;
        let wrong = |what: &str| Err(Error::new(format!("line {line}"), what));
        let complete = match event {
            Err(e) => return wrong(&format!("invalid XML: {e}; correct the file")),
            Ok(Event::DocType(_)) => return wrong("a document type; remove it"),
            Ok(Event::Start(tag)) => {
                if open.len() == DEPTH_MAX {
                    return wrong("elements nested more than 100 deep; flatten them");
                }
                count += 1;
                open.push(element(&tag, start)?);
                None
            }
            Ok(Event::Empty(tag)) => {
                count += 1;
                Some(element(&tag, start)?)
            }
            Ok(Event::End(_)) => open.pop(),
            Ok(Event::Eof) => {
                let last = open.last().map_or("no element", |e| e.name.as_str());
                return wrong(&format!("the file ends inside <{last}>; it is incomplete"));
            }
            Ok(_) => None,
        };
        if count > ELEMENTS_MAX {
            return wrong("more than 5,000,000 elements; divide the model");
        }
        if let Some(complete) = complete {
            match open.last_mut() {
                Some(parent) => parent.children.push(complete),
                None => return Ok(complete),
            }
        }
    }
}

fn element(tag: &BytesStart<'_>, line: usize) -> Result<Element, Error> {
    let wrong = |what: String| Error::new(format!("line {line}"), what);
    let mut attributes = Vec::new();
    for attribute in tag.attributes() {
        let attribute = attribute.map_err(|e| wrong(format!("invalid attribute: {e}")))?;
        let value = attribute
            .normalized_value(XmlVersion::Implicit1_0)
            .map_err(|e| wrong(format!("invalid value of an attribute: {e}")))?;
        attributes.push((attribute.key.as_ref().to_owned(), value.into_owned()));
    }
    let name = tag.local_name().as_ref().to_owned();
    Ok(Element { name, attributes, children: vec![], line })
}
