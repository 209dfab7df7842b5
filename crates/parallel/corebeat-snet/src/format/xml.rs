//! Reader and writer of records as XML.
//!
//! quick-xml reads the tags and writes the markup. This module finds where a tag ends, because the
//! values between the tags are bytes that need not be UTF-8, which quick-xml does not accept.

mod value;
mod write;

use std::borrow::Cow;
use std::io::Read;

use memchr::{memchr, memmem};
use quick_xml::XmlVersion;
use quick_xml::events::attributes::AttrError;
use quick_xml::events::{BytesStart, Event};
use quick_xml::parser::{ElementParser, Parser};

use super::input::Input;
use super::memo::{Content, Draft, Step};
use super::{ReadError, found, label, label_fits, number};
use crate::label::Kind;
use crate::value::Value;
pub(super) use write::{END, frame, write};

/// Interface whose data is written as `(TYPE)value`.
const INTERFACE: &str = "C4SNet";
/// Characters of `(unsigned short[`, the longest start of a typed value.
const HEAD_MAX: usize = 16;
/// Markup that can follow inside a record, for error messages.
const INSIDE: &str = "`<field`, `<tag`, `<btag` or `</record>`";

/// Position of the reader inside a record.
#[derive(Default)]
pub(super) struct State {
    /// Whether the tag `<record>` has been read.
    inside: bool,
    /// Kind of the element whose value has been read and whose end tag is next.
    open: Option<Kind>,
    /// Whether the record declares an interface other than [`INTERFACE`].
    foreign: bool,
    /// Whether the reader must skip to the next record after an error.
    pub(super) lost: bool,
}

/// Reads one record into the draft. Returns `false` at the end of the records.
pub(super) fn record<R: Read>(
    input: &mut Input<R>,
    draft: &mut Draft,
    state: &mut State,
    scratch: &mut Vec<u8>,
) -> Result<bool, ReadError> {
    if state.lost {
        skip_to_record(input)?;
    }
    *state = State::default();
    if !skip_to_tag(input)? {
        return Ok(false);
    }
    draft.begin();
    loop {
        let step = match draft.follow(input.rest()) {
            Some((len, step)) => {
                input.pos += len;
                step
            }
            None => {
                let from = input.pos;
                let step = markup(input, draft, state)?;
                let next = input.from(input.pos).first();
                draft.learn(input.slice(from, input.pos), step, next);
                step
            }
        };
        match step {
            Step::Value { label, content, plain } => {
                draft.label(label, plain);
                let from = input.pos;
                if content == Content::Zero {
                    state.open = None;
                    draft.push(Value::Tag(0));
                    continue;
                }
                state.open = Some(label.kind());
                let Some(end) = input.find(from, 0, |text| memchr(b'<', text))? else {
                    return Err(unexpected(input, input.end(), "the end tag of a value"));
                };
                input.pos = end;
                value::read(input.from(from), end - from, content, draft, scratch)
                    .map_err(|invalid| invalid.at_offset(from))?;
            }
            Step::End => return Ok(true),
            Step::Terminate => return Ok(false),
        }
    }
}

/// Skips to the next `<record`, or to the end of the input.
fn skip_to_record<R: Read>(input: &mut Input<R>) -> Result<(), ReadError> {
    const BEGIN: &[u8] = b"<record";
    loop {
        if let Some(i) = memmem::find(input.rest(), BEGIN) {
            input.pos += i;
            return Ok(());
        }
        // The last bytes can be the first part of `<record`.
        input.pos += input.rest().len().saturating_sub(BEGIN.len() - 1);
        input.begin();
        if !input.fill()? {
            input.pos = input.end();
            return Ok(());
        }
    }
}

/// Skips white space, comments and `<?...?>` up to a record's tag. Returns `false` at the end of
/// the input.
fn skip_to_tag<R: Read>(input: &mut Input<R>) -> Result<bool, ReadError> {
    loop {
        input.pos += space(input.rest(), 0);
        input.begin();
        let expected = "`<record`, a comment or `<?xml ...?>`";
        match input.peek()? {
            None => return Ok(false),
            Some(b) if is_space(b) => {}
            Some(b'<') => {
                let from = input.pos;
                input.pos += 1;
                match input.peek()? {
                    Some(b'?') => skip_past(input, b"?>", "`?>`")?,
                    Some(b'!') => comment(input)?,
                    Some(b'r') => {
                        input.pos = from;
                        return Ok(true);
                    }
                    _ => return Err(unexpected(input, from + 1, expected)),
                }
            }
            Some(_) => return Err(unexpected(input, input.pos, expected)),
        }
    }
}

fn is_space(b: u8) -> bool {
    matches!(b, b' ' | b'\t' | b'\r' | b'\n')
}

/// Index of the first byte from `at` on that is not white space.
#[inline(always)]
fn space(text: &[u8], at: usize) -> usize {
    if text.get(at).is_some_and(|b| *b > b' ') {
        return at;
    }
    at + text[at..].iter().take_while(|b| is_space(**b)).count()
}

fn unexpected<R: Read>(input: &Input<R>, at: usize, expected: &str) -> ReadError {
    let found = match input.from(at) {
        [] => "the end of the input".into(),
        text => found(text),
    };
    ReadError::syntax(at, format!("expected {expected}, found {found}"))
}

/// Skips past the next `end`.
fn skip_past<R: Read>(input: &mut Input<R>, end: &[u8], name: &str) -> Result<(), ReadError> {
    match input.find(input.pos, end.len() - 1, |text| memmem::find(text, end))? {
        Some(i) => {
            input.pos = i + end.len();
            Ok(())
        }
        None => Err(unexpected(input, input.end(), name)),
    }
}

/// Skips a comment, starting at its `!`.
fn comment<R: Read>(input: &mut Input<R>) -> Result<(), ReadError> {
    let from = input.pos;
    for wanted in b"!--" {
        if input.peek()? != Some(*wanted) {
            return Err(unexpected(input, from, "a comment `<!-- ... -->`"));
        }
        input.pos += 1;
    }
    skip_past(input, b"-->", "`-->`")
}

fn skip_space<R: Read>(input: &mut Input<R>) -> Result<(), ReadError> {
    while input.peek()?.is_some_and(is_space) {
        input.pos += 1;
    }
    Ok(())
}

/// A tag of the input: the bytes from its `<` to its `>`.
#[derive(Clone, Copy)]
struct TagSpan {
    from: usize,
    to: usize,
}

/// Finds the end of the tag that begins at the next byte, and skips the tag.
fn tag<R: Read>(input: &mut Input<R>, expected: &str) -> Result<TagSpan, ReadError> {
    let from = input.pos;
    if input.peek()? != Some(b'<') {
        return Err(unexpected(input, from, expected));
    }
    let mut lexer = ElementParser::Outside;
    let mut at = from + 1;
    loop {
        let text = input.from(at);
        // A `<` is not allowed in a tag, not even in quotes. It shows a missing quote or `>` before
        // the reader buffers the rest of the input.
        let bound = memchr(b'<', text);
        if let Some(i) = lexer.feed(&text[..bound.unwrap_or(text.len())]) {
            input.pos = at + i + 1;
            return Ok(TagSpan { from, to: input.pos });
        }
        let end = at + bound.unwrap_or(text.len());
        if bound.is_some() || !input.fill()? {
            let expected = match lexer {
                ElementParser::Outside => "`>`",
                _ => "the attribute's closing quote",
            };
            return Err(unexpected(input, end, expected));
        }
        at = end;
    }
}

/// Parses a tag. The returned event is a start tag, an empty-element tag or an end tag.
fn parse<R: Read>(input: &Input<R>, tag: TagSpan) -> Result<Event<'_>, ReadError> {
    let text = std::str::from_utf8(input.slice(tag.from, tag.to)).map_err(|e| {
        ReadError::syntax(tag.from + e.valid_up_to(), "expected UTF-8 in a tag, found another byte")
    })?;
    let mut reader = quick_xml::Reader::from_str(text);
    reader.config_mut().allow_unmatched_ends = true;
    reader.read_event().map_err(|why| ReadError::syntax(tag.from, format!("invalid tag: {why}")))
}

/// Attributes of a tag that have a meaning here, each with its position in the input.
#[derive(Default)]
struct Attributes {
    kind: Option<(usize, String)>,
    mode: Option<(usize, String)>,
    interface: Option<(usize, String)>,
    label: Option<(usize, String)>,
}

/// Reads the attributes of a tag whose name begins at `at`. Other attributes, such as `xmlns`, have
/// no effect.
fn attributes<R: Read>(
    input: &Input<R>,
    start: &BytesStart<'_>,
    at: usize,
) -> Result<Attributes, ReadError> {
    let mut attributes = Attributes::default();
    for attribute in start.attributes() {
        let attribute = attribute.map_err(|why| attribute_error(input, &why, at))?;
        let slot = match attribute.key.as_ref() {
            "type" => &mut attributes.kind,
            "mode" => &mut attributes.mode,
            "interface" => &mut attributes.interface,
            "label" => &mut attributes.label,
            _ => continue,
        };
        // A borrowed value is a part of the tag's text, so its address gives its position.
        let offset = match &attribute.value {
            Cow::Borrowed(value) => value.as_ptr().addr() - start.as_ptr().addr(),
            Cow::Owned(_) => 0,
        };
        let value = attribute.normalized_value(XmlVersion::Implicit1_0).map_err(|_| {
            ReadError::syntax(at + offset, format!("expected {REFERENCES} after a `&`"))
        })?;
        *slot = Some((at + offset, value.into_owned()));
    }
    Ok(attributes)
}

/// References that are read, for error messages.
const REFERENCES: &str = "&lt; &gt; &amp; &quot; &apos; or a number as in &#10;";

fn attribute_error<R: Read>(input: &Input<R>, why: &AttrError, at: usize) -> ReadError {
    let (offset, expected) = match *why {
        AttrError::ExpectedEq(offset) => (offset, "`=` and the attribute's value in quotes"),
        AttrError::ExpectedValue(offset) | AttrError::UnquotedValue(offset) => {
            (offset, "the attribute's value in quotes")
        }
        AttrError::ExpectedQuote(offset, _) => (offset, "the attribute's closing quote"),
        AttrError::Duplicated(offset, _) => {
            return ReadError::syntax(at + offset, "the attribute occurs twice: remove one");
        }
    };
    unexpected(input, at + offset, expected)
}

/// Reads the markup up to the next value or to the end of the record. It starts at `<record` or
/// after a value.
fn markup<R: Read>(
    input: &mut Input<R>,
    draft: &mut Draft,
    state: &mut State,
) -> Result<Step, ReadError> {
    if let Some(kind) = state.open.take() {
        end_tag(input, element_name(kind))?;
    } else if draft.labels().is_empty()
        && !state.inside
        && let Some(step) = record_tag(input, draft, state)?
    {
        return Ok(step);
    }
    loop {
        skip_space(input)?;
        let at = input.pos;
        if input.peek()? == Some(b'<') {
            input.pos += 1;
            match input.peek()? {
                Some(b'!') => {
                    comment(input)?;
                    continue;
                }
                Some(b'/') => {
                    input.pos = at;
                    end_tag(input, "record")?;
                    return Ok(Step::End);
                }
                _ => input.pos = at,
            }
        }
        return element(input, draft, state);
    }
}

/// Reads the tag `<record ...>`. Returns a step if the record has ended with it.
fn record_tag<R: Read>(
    input: &mut Input<R>,
    draft: &mut Draft,
    state: &mut State,
) -> Result<Option<Step>, ReadError> {
    const EXPECTED: &str = "`<record`, a comment or `<?xml ...?>`";
    let from = input.pos;
    let span = tag(input, EXPECTED)?;
    let (start, empty) = match parse(input, span)? {
        Event::Start(start) => (start, false),
        Event::Empty(start) => (start, true),
        _ => return Err(unexpected(input, from + 1, EXPECTED)),
    };
    if start.name().as_ref() != "record" {
        return Err(unexpected(input, from + 1, EXPECTED));
    }
    let attributes = attributes(input, &start, from + 1)?;
    match attributes.kind {
        Some((_, kind)) if kind == "terminate" => return Ok(Some(Step::Terminate)),
        Some((_, kind)) if kind == "data" => {}
        Some((at, kind)) => {
            let what = format!(
                "records of type {} are not supported: use `data` or `terminate`",
                found(kind.as_bytes())
            );
            return Err(ReadError::syntax(at, what));
        }
        None => {
            return Err(ReadError::syntax(
                from,
                "the record has no type: add type=\"data\" or type=\"terminate\"",
            ));
        }
    }
    if let Some((at, mode)) = attributes.mode
        && mode != "textual"
    {
        let mode = found(mode.as_bytes());
        let what = format!("records of mode {mode} are not supported: use `textual`");
        return Err(ReadError::syntax(at, what));
    }
    if attributes.interface.is_some_and(|(_, name)| name != INTERFACE) {
        state.foreign = true;
        // Markup of such a record has another meaning than the same markup of other records.
        draft.forget();
    }
    state.inside = true;
    Ok(empty.then_some(Step::End))
}

/// Reads the start tag of a field or a tag, and the type at the start of a field's value.
fn element<R: Read>(
    input: &mut Input<R>,
    draft: &mut Draft,
    state: &State,
) -> Result<Step, ReadError> {
    let from = input.pos;
    let span = tag(input, INSIDE)?;
    let (start, empty) = match parse(input, span)? {
        Event::Start(start) => (start, false),
        Event::Empty(start) => (start, true),
        _ => return Err(unexpected(input, from + 1, INSIDE)),
    };
    let kind = match start.name().as_ref() {
        "field" => Kind::Field,
        "tag" => Kind::Tag,
        "btag" => Kind::BindingTag,
        _ => return Err(unexpected(input, from + 1, INSIDE)),
    };
    let attributes = attributes(input, &start, from + 1)?;
    let Some((at, name)) = attributes.label else {
        let element = element_name(kind);
        let what = format!("the {element} has no label: write `<{element} label=\"NAME\">`");
        return Err(ReadError::syntax(from, what));
    };
    let label = label(kind, name.as_bytes(), at)?;
    if draft.labels().iter().any(|(known, _)| *known == label) {
        return Err(ReadError::duplicate(at, label));
    }
    label_fits(draft, from)?;
    let content = match kind {
        Kind::Field if empty => {
            let what = format!("the field {label} has no value: write `<field ...>VALUE</field>`");
            return Err(ReadError::syntax(from, what));
        }
        Kind::Field => {
            let foreign = attributes.interface.map_or(state.foreign, |(_, name)| name != INTERFACE);
            head(input, foreign)?
        }
        _ if empty => Content::Zero,
        _ => Content::Tag,
    };
    Ok(Step::Value { label, content, plain: false })
}

fn element_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Field => "field",
        Kind::Tag => "tag",
        Kind::BindingTag => "btag",
    }
}

/// Reads the end tag of the element `wanted`.
fn end_tag<R: Read>(input: &mut Input<R>, wanted: &str) -> Result<(), ReadError> {
    let from = input.pos;
    let expected = || format!("`</{wanted}>`");
    if input.peek()? == Some(b'<') {
        input.pos += 1;
        if input.peek()? == Some(b'!') {
            let what = "comments and CDATA are not supported in a value: \
                        write its text with &lt; and &amp;";
            return Err(ReadError::syntax(from, what));
        }
        input.pos = from;
    }
    let span = tag(input, &expected())?;
    match parse(input, span)? {
        Event::End(end) if end.name().as_ref() == wanted => Ok(()),
        _ => Err(unexpected(input, from, &expected())),
    }
}

/// Reads the start of a field's value: `(TYPE)` or `(TYPE[`. Any other start is text, which only
/// a foreign interface may begin with a parenthesis.
fn head<R: Read>(input: &mut Input<R>, foreign: bool) -> Result<Content, ReadError> {
    let text = input.pos;
    skip_space(input)?;
    let from = input.pos;
    if input.peek()? != Some(b'(') {
        input.pos = text;
        return Ok(Content::Plain);
    }
    while input.pos - from < HEAD_MAX {
        match input.peek()? {
            Some(end @ (b')' | b'[')) => {
                let Some(element) = number::element(input.slice(from + 1, input.pos)) else {
                    break;
                };
                input.pos += 1;
                return Ok(if end == b'[' {
                    Content::Many(element)
                } else {
                    Content::One(element)
                });
            }
            Some(b'<') | None => break,
            Some(_) => input.pos += 1,
        }
    }
    if foreign {
        input.pos = text;
        return Ok(Content::Plain);
    }
    Err(unexpected(input, from, "a C type as in `(int)` or `(double[2])`"))
}
