//! XML as a tree of elements with their lines.

use super::mistake;
use crate::error::Error;
use quick_xml::Reader;
use quick_xml::XmlVersion;
use quick_xml::events::{BytesStart, Event};

/// Deepest nesting of elements.
pub(super) const DEPTH_MAX: usize = 256;

/// An element of an XML file.
#[derive(Debug, Default)]
pub(super) struct Element {
    /// Name without its prefix.
    pub(super) name: String,
    pub(super) line: usize,
    /// Names with their prefixes, and values.
    pub(super) attributes: Vec<(String, String)>,
    pub(super) children: Vec<Element>,
    pub(super) text: String,
}

impl Element {
    /// The value of an attribute.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        let found = self.attributes.iter().find(|(own, _)| own == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The elements below with this name.
    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Element> {
        self.children.iter().filter(move |child| child.name == name)
    }
}

/// Reads a file into its root element.
pub(super) fn read(name: &str, text: &str) -> Result<Element, Error> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut reader = Reader::from_str(text);
    let (mut line, mut counted) = (1, 0);
    let mut open: Vec<Element> = Vec::new();
    let mut root = None;
    loop {
        let event = reader.read_event();
        let position = (reader.buffer_position() as usize).min(text.len());
        let passed = &text.as_bytes()[counted.min(position)..position];
        line += passed.iter().filter(|byte| **byte == b'\n').count();
        counted = position;
        let event = event.map_err(|e| mistake(name, line, format!("{e}; repair the XML")))?;
        let done = match event {
            Event::Start(start) => {
                if open.len() == DEPTH_MAX {
                    let why = format!("elements are nested more than {DEPTH_MAX} deep");
                    return Err(mistake(name, line, why));
                }
                open.push(element(name, line, &start)?);
                None
            }
            Event::Empty(start) => Some(element(name, line, &start)?),
            Event::End(_) => open.pop(),
            Event::Text(text) => {
                let content = text.xml_content(XmlVersion::Implicit1_0);
                add_text(&mut open, &content);
                None
            }
            Event::CData(text) => {
                let content = text.xml_content(XmlVersion::Implicit1_0);
                add_text(&mut open, &content);
                None
            }
            Event::GeneralRef(reference) => {
                let found = match reference.resolve_char_ref() {
                    Ok(Some(found)) => found,
                    _ => match &*reference {
                        "lt" => '<',
                        "gt" => '>',
                        "amp" => '&',
                        "quot" => '"',
                        "apos" => '\'',
                        other => {
                            let why = format!("&{other}; is not defined; write the character");
                            return Err(mistake(name, line, why));
                        }
                    },
                };
                add_text(&mut open, found.encode_utf8(&mut [0; 4]));
                None
            }
            Event::Eof => break,
            _ => None,
        };
        if let Some(done) = done {
            match open.last_mut() {
                Some(parent) => parent.children.push(done),
                None if root.is_none() => root = Some(done),
                None => return Err(mistake(name, line, "an XML file has one root element")),
            }
        }
    }
    if let Some(element) = open.last() {
        let why = format!("the file ends inside <{}>, which begins here", element.name);
        return Err(mistake(name, element.line, why));
    }
    root.ok_or_else(|| mistake(name, 1, "the file has no element; is it XML?"))
}

fn add_text(open: &mut [Element], text: &str) {
    if let Some(element) = open.last_mut() {
        element.text.push_str(text);
    }
}

fn element(name: &str, line: usize, start: &BytesStart) -> Result<Element, Error> {
    let mut attributes = Vec::new();
    for attribute in start.attributes() {
        let attribute = attribute.map_err(|e| mistake(name, line, e.to_string()))?;
        let value = attribute
            .normalized_value(XmlVersion::Implicit1_0)
            .map_err(|e| mistake(name, line, e.to_string()))?;
        attributes.push((attribute.key.as_ref().to_owned(), value.into_owned()));
    }
    let local = start.local_name().as_ref().to_owned();
    Ok(Element { name: local, line, attributes, ..Element::default() })
}
