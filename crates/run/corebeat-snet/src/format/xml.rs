//! Records as XML.

use std::io::Read;

use memchr::{memchr, memmem};

use super::input::Input;
use super::memo::{Content, Draft, Step};
use super::{Bad, Stop, found, label, label_fits, number};
use crate::label::{Kind, Label};
use crate::value::{Array, Element, Scalar, Value};

/// The interface whose data is written as `(TYPE)value`.
const INTERFACE: &[u8] = b"C4SNet";
/// Characters of `(unsigned short[`, the longest beginning of a typed text.
const HEAD_MAX: usize = 16;

/// Where the reader stands between its calls of one record.
#[derive(Default)]
pub(super) struct State {
    /// Inside of `<record>`.
    inside: bool,
    /// What element is open, that of the value that was just read.
    open: Option<Kind>,
    /// Whether the record's interface is another than that of C.
    foreign: bool,
    /// Something was broken: go to the next record first.
    pub(super) lost: bool,
}

/// Reads one record into the draft; `false` at the end.
pub(super) fn record<R: Read>(
    input: &mut Input<R>,
    draft: &mut Draft,
    state: &mut State,
    scratch: &mut Vec<u8>,
) -> Result<bool, Stop> {
    if state.lost {
        find_record(input)?;
    }
    *state = State::default();
    if !between(input)? {
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
                value(input.from(from), end - from, content, draft, scratch)
                    .map_err(|bad| Stop::syntax(from + bad.at, bad.what))?;
            }
            Step::End => return Ok(true),
            Step::Terminate => return Ok(false),
        }
    }
}

/// Goes to the next `<record`, or to the end.
fn find_record<R: Read>(input: &mut Input<R>) -> Result<(), Stop> {
    const BEGIN: &[u8] = b"<record";
    loop {
        if let Some(i) = memmem::find(input.rest(), BEGIN) {
            input.pos += i;
            return Ok(());
        }
        // All but what may be the first part of it.
        input.pos += input.rest().len().saturating_sub(BEGIN.len() - 1);
        input.begin();
        if !input.fill()? {
            input.pos = input.end();
            return Ok(());
        }
    }
}

/// Goes to a record's `<record`; `false` at the end.
fn between<R: Read>(input: &mut Input<R>) -> Result<bool, Stop> {
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
                    Some(b'?') => pass(input, b"?>", "`?>`")?,
                    Some(b'!') => comment(input)?,
                    Some(b'r') => {
                        let name = name(input)?;
                        if input.slice(name.0, name.1) != b"record" {
                            return Err(unexpected(input, name.0, expected));
                        }
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

fn unexpected<R: Read>(input: &Input<R>, at: usize, expected: &str) -> Stop {
    let what = match input.from(at) {
        [] => "the end of the input".into(),
        text => found(text),
    };
    Stop::syntax(at, format!("expected {expected}, found {what}"))
}

/// Goes past the next `end`.
fn pass<R: Read>(input: &mut Input<R>, end: &[u8], name: &str) -> Result<(), Stop> {
    match input.find(input.pos, end.len() - 1, |text| memmem::find(text, end))? {
        Some(i) => {
            input.pos = i + end.len();
            Ok(())
        }
        None => Err(unexpected(input, input.end(), name)),
    }
}

/// Goes past a comment, from its `!` on.
fn comment<R: Read>(input: &mut Input<R>) -> Result<(), Stop> {
    let from = input.pos;
    for wanted in b"!--" {
        if input.peek()? != Some(*wanted) {
            return Err(unexpected(input, from, "a comment `<!-- ... -->`"));
        }
        input.pos += 1;
    }
    pass(input, b"-->", "`-->`")
}

fn skip_space<R: Read>(input: &mut Input<R>) -> Result<(), Stop> {
    while input.peek()?.is_some_and(is_space) {
        input.pos += 1;
    }
    Ok(())
}

fn expect<R: Read>(input: &mut Input<R>, wanted: u8, expected: &str) -> Result<(), Stop> {
    if input.peek()? != Some(wanted) {
        return Err(unexpected(input, input.pos, expected));
    }
    input.pos += 1;
    Ok(())
}

/// Where a name stands, which is passed; it may be empty.
fn name<R: Read>(input: &mut Input<R>) -> Result<(usize, usize), Stop> {
    let from = input.pos;
    while input.peek()?.is_some_and(|b| b.is_ascii_alphanumeric() || b >= 0x80 || b"_:.-".contains(&b)) {
        input.pos += 1;
    }
    Ok((from, input.pos))
}

/// What the attributes of a tag say, and where.
#[derive(Default)]
struct Attributes {
    kind: Option<(usize, Vec<u8>)>,
    mode: Option<(usize, Vec<u8>)>,
    interface: Option<(usize, Vec<u8>)>,
    label: Option<(usize, Vec<u8>)>,
    /// The tag ends with `/>`.
    empty: bool,
}

/// Reads attributes and the end of a tag. Those of other names (`xmlns`) mean nothing here.
fn attributes<R: Read>(input: &mut Input<R>) -> Result<Attributes, Stop> {
    let mut attributes = Attributes::default();
    loop {
        let before = input.pos;
        skip_space(input)?;
        let spaced = input.pos > before;
        match input.peek()? {
            Some(b'>') => {
                input.pos += 1;
                return Ok(attributes);
            }
            Some(b'/') => {
                input.pos += 1;
                expect(input, b'>', "`>`")?;
                attributes.empty = true;
                return Ok(attributes);
            }
            _ => {}
        }
        let (from, to) = name(input)?;
        if from == to || !spaced {
            return Err(unexpected(input, from, "an attribute, `>` or `/>`"));
        }
        skip_space(input)?;
        expect(input, b'=', "`=` and the attribute's value in quotes")?;
        skip_space(input)?;
        let quote = input.peek()?.filter(|b| matches!(b, b'"' | b'\''));
        let Some(quote) = quote else {
            return Err(unexpected(input, input.pos, "the attribute's value in quotes"));
        };
        input.pos += 1;
        let at = input.pos;
        let end = input.find(at, 0, |text| memchr::memchr2(quote, b'<', text))?;
        let end = match end {
            Some(end) if input.from(end)[0] == quote => end,
            end => {
                return Err(unexpected(input, end.unwrap_or(input.end()), "the attribute's closing quote"));
            }
        };
        input.pos = end + 1;
        let slot = match input.slice(from, to) {
            b"type" => &mut attributes.kind,
            b"mode" => &mut attributes.mode,
            b"interface" => &mut attributes.interface,
            b"label" => &mut attributes.label,
            _ => continue,
        };
        if slot.is_some() {
            return Err(Stop::syntax(from, "an attribute that was given before"));
        }
        let mut value = Vec::new();
        plain(input.slice(at, end), &mut value).map_err(|bad| Stop::syntax(at + bad.at, bad.what))?;
        *slot = Some((at, value));
    }
}

/// Reads from before `<record`, or from behind a value's text, to the next value's text or the record's end.
fn markup<R: Read>(input: &mut Input<R>, draft: &mut Draft, state: &mut State) -> Result<Step, Stop> {
    if let Some(kind) = state.open.take() {
        close(input, element_name(kind))?;
    } else if draft.labels().is_empty() && !state.inside {
        let from = input.pos;
        input.pos += "<record".len(); // `between` saw it
        let attributes = attributes(input)?;
        let kind = match &attributes.kind {
            Some((_, kind)) if kind == b"terminate" => return Ok(Step::Terminate),
            kind => kind,
        };
        match kind {
            Some((_, kind)) if kind == b"data" => {}
            Some((at, kind)) => {
                return Err(Stop::syntax(
                    *at,
                    format!("a record of type {} cannot be read: only `data` and `terminate`", found(kind)),
                ));
            }
            None => {
                return Err(Stop::syntax(
                    from,
                    "a record without a type: give type=\"data\" or type=\"terminate\"",
                ));
            }
        }
        match &attributes.mode {
            Some((_, mode)) if mode == b"textual" => {}
            None => {}
            Some((at, mode)) => {
                return Err(Stop::syntax(
                    *at,
                    format!("a record of mode {} cannot be read: only `textual`", found(mode)),
                ));
            }
        }
        if attributes.interface.is_some_and(|(_, name)| name != INTERFACE) {
            state.foreign = true;
            draft.forget(); // so that what is remembered is never of such a record
        }
        state.inside = true;
        if attributes.empty {
            return Ok(Step::End);
        }
    }
    loop {
        skip_space(input)?;
        let tag_at = input.pos;
        expect(input, b'<', "`<field`, `<tag`, `<btag` or `</record>`")?;
        if input.peek()? == Some(b'!') {
            comment(input)?;
            continue;
        }
        if input.peek()? == Some(b'/') {
            input.pos = tag_at;
            close(input, "record")?;
            return Ok(Step::End);
        }
        let (from, to) = name(input)?;
        let kind = match input.slice(from, to) {
            b"field" => Kind::Field,
            b"tag" => Kind::Tag,
            b"btag" => Kind::BindingTag,
            _ => return Err(unexpected(input, from, "`<field`, `<tag`, `<btag` or `</record>`")),
        };
        let attributes = attributes(input)?;
        let Some((at, name)) = attributes.label else {
            return Err(Stop::syntax(tag_at, format!("a {} without a label", element_name(kind))));
        };
        let label = label(kind, &name, at)?;
        if draft.labels().iter().any(|(known, _)| *known == label) {
            return Err(Stop::syntax(at, format!("{label} was given before in this record")));
        }
        label_fits(draft, tag_at)?;
        let content = match kind {
            Kind::Field if attributes.empty => {
                return Err(Stop::syntax(tag_at, format!("the field {label} without a value")));
            }
            Kind::Field => {
                let foreign = attributes.interface.map_or(state.foreign, |(_, name)| name != INTERFACE);
                head(input, foreign)?
            }
            _ if attributes.empty => Content::Zero,
            _ => Content::Tag,
        };
        return Ok(Step::Value { label, content, plain: false });
    }
}

fn element_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Field => "field",
        Kind::Tag => "tag",
        Kind::BindingTag => "btag",
    }
}

/// Reads an end tag.
fn close<R: Read>(input: &mut Input<R>, wanted: &str) -> Result<(), Stop> {
    let from = input.pos;
    expect(input, b'<', &format!("`</{wanted}>`"))?;
    if input.peek()? == Some(b'!') {
        let what = "comments and CDATA inside of a value are not read: write its text with &lt; and &amp;";
        return Err(Stop::syntax(from, what));
    }
    let slash = input.peek()? == Some(b'/');
    input.pos += usize::from(slash);
    let (at, to) = name(input)?;
    if !slash || input.slice(at, to) != wanted.as_bytes() {
        return Err(unexpected(input, from, &format!("`</{wanted}>`")));
    }
    skip_space(input)?;
    expect(input, b'>', "`>`")
}

/// Reads how a field's text begins: `(TYPE)` or `(TYPE[`; nothing, if it is not of that form.
fn head<R: Read>(input: &mut Input<R>, foreign: bool) -> Result<Content, Stop> {
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
                let Some(element) = number::element(input.slice(from + 1, input.pos)) else { break };
                input.pos += 1;
                return Ok(if end == b'[' { Content::Many(element) } else { Content::One(element) });
            }
            Some(b'<') | None => break,
            Some(_) => input.pos += 1,
        }
    }
    if foreign {
        input.pos = text;
        return Ok(Content::Plain);
    }
    Err(unexpected(input, from, "a type of C as in `(int)` or `(double[2])`"))
}

/// Reads a value from its text, which ends where `all` has its first `<`. What is behind it is there because whole words are
/// read faster than single bytes.
fn value(
    all: &[u8],
    end: usize,
    content: Content,
    draft: &mut Draft,
    scratch: &mut Vec<u8>,
) -> Result<(), Bad> {
    let text = &all[..end];
    scratch.clear();
    match content {
        Content::Tag => {
            let from = space(text, 0);
            if from == end {
                draft.push(Value::Tag(0)); // as the original run-time has it
                return Ok(());
            }
            let mut at = from;
            let n = number::whole(all, &mut at).filter(|_| space(text, at) == end).and_then(|n| n.tag());
            let expected = "a whole number from -2147483648 to 2147483647";
            draft.push(Value::Tag(n.ok_or_else(|| Bad::expected(expected, text, from))?));
        }
        Content::Plain => {
            plain(text, scratch)?;
            draft.push(Value::Array(Array::from_bytes(Element::Char, scratch).into()));
        }
        Content::One(element @ (Element::Char | Element::UChar)) => {
            let mut at = 0;
            let byte = character(text, &mut at, element)?;
            if at < end {
                return Err(Bad::expected("a single character", text, at));
            }
            draft.push(Value::Scalar(Scalar::new(element, [byte, 0, 0, 0, 0, 0, 0, 0])));
        }
        Content::One(element) => {
            let mut at = 0;
            let bytes = one(all, end, &mut at, element)?;
            if at < end {
                return Err(Bad::expected("a single number and the end of the field", text, at));
            }
            draft.push(super::scalar(element, bytes));
        }
        Content::Many(element) => {
            let mut at = 0;
            let wanted = count(text, &mut at)?;
            let from = at;
            if matches!(element, Element::Char | Element::UChar) {
                characters(text, &mut at, element, scratch)?;
            } else if space(text, at) < end {
                loop {
                    let bytes = one(all, end, &mut at, element)?;
                    number::push(scratch, bytes, element.size());
                    if at == end {
                        break;
                    }
                    if text[at] != b',' {
                        return Err(Bad::expected("`,` or the end of the field", text, at));
                    }
                    at += 1;
                }
            }
            let there = scratch.len() / element.size();
            if there as u64 != wanted {
                return Err(Bad { at: from, what: format!("expected {wanted} values, found {there}") });
            }
            draft.push(Value::Array(Array::from_bytes(element, scratch).into()));
        }
        Content::Zero | Content::Text | Content::Bytes => unreachable!("XML has no such values"),
    }
    Ok(())
}

/// Past white space.
#[inline(always)]
fn space(text: &[u8], at: usize) -> usize {
    if text.get(at).is_some_and(|b| *b > b' ') {
        return at;
    }
    at + text[at..].iter().take_while(|b| is_space(**b)).count()
}

/// Reads `N])`.
fn count(text: &[u8], at: &mut usize) -> Result<u64, Bad> {
    let digits = text.iter().take_while(|b| b.is_ascii_digit()).count();
    let count = std::str::from_utf8(&text[..digits]).ok().and_then(|n| n.parse().ok());
    *at = digits + 2;
    match count {
        Some(count) if text[digits..].starts_with(b"])") => Ok(count),
        _ => Err(Bad::expected(
            "the number of values as in `(int[3])`",
            text,
            if count.is_some() { digits } else { 0 },
        )),
    }
}

/// Reads a number with white space around it.
#[inline(always)]
fn one(all: &[u8], end: usize, at: &mut usize, element: Element) -> Result<number::Bytes, Bad> {
    let text = &all[..end];
    let from = space(text, *at);
    *at = from;
    let bytes = if number::is_whole(element) {
        number::whole(all, at).and_then(|whole| number::integer(element, &whole))
    } else {
        number::real(element, &text[from..]).and_then(|(bytes, len)| {
            *at += len;
            text.get(*at).is_none_or(|b| *b == b',' || is_space(*b)).then_some(bytes)
        })
    };
    *at = space(text, *at);
    bytes.ok_or_else(|| Bad::expected(number::expected(element), text, from))
}

/// Reads one character; a reference is that of a byte.
fn character(text: &[u8], at: &mut usize, element: Element) -> Result<u8, Bad> {
    match text.get(*at) {
        None => Err(Bad::expected("a character", text, *at)),
        Some(b'&') => {
            let from = *at;
            let code = reference(text, at)?;
            u8::try_from(code).map_err(|_| {
                let what = format!(
                    "{} is no single byte: &#0; to &#255; fit into {}",
                    found(&text[from..]),
                    element.name()
                );
                Bad { at: from, what }
            })
        }
        Some(b) => {
            *at += 1;
            Ok(*b)
        }
    }
}

/// Reads characters with commas between them.
fn characters(text: &[u8], at: &mut usize, element: Element, out: &mut Vec<u8>) -> Result<(), Bad> {
    out.reserve((text.len() - *at) / 2 + 1);
    // As far as no reference comes, every second byte is a comma.
    let raw = &text[*at..memchr(b'&', text).unwrap_or(text.len())];
    let pairs = raw.chunks_exact(2);
    let whole = pairs.len();
    let mut commas = true;
    out.extend(pairs.map(|pair| {
        commas &= pair[1] == b',';
        pair[0]
    }));
    if commas {
        *at += 2 * whole;
        if *at == text.len() && whole == 0 {
            return Ok(());
        }
    } else {
        out.clear();
    }
    loop {
        out.push(character(text, at, element)?);
        match text.get(*at) {
            None => return Ok(()),
            Some(b',') => *at += 1,
            Some(_) => return Err(Bad::expected("`,` or the end of the field", text, *at)),
        }
    }
}

/// Copies text, with references as the characters they stand for.
fn plain(text: &[u8], out: &mut Vec<u8>) -> Result<(), Bad> {
    let mut at = 0;
    while let Some(i) = memchr(b'&', &text[at..]) {
        out.extend_from_slice(&text[at..at + i]);
        at += i;
        let from = at;
        let c = char::from_u32(reference(text, &mut at)?)
            .ok_or_else(|| Bad::expected("a reference to a character", text, from))?;
        out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
    }
    out.extend_from_slice(&text[at..]);
    Ok(())
}

/// Reads `&name;`, `&#N;` or `&#xH;`.
fn reference(text: &[u8], at: &mut usize) -> Result<u32, Bad> {
    let bad = || Bad::expected("&lt; &gt; &amp; &quot; &apos; or a number as in &#10;", text, *at);
    let rest = &text[*at + 1..];
    let end = rest.iter().take(12).position(|b| *b == b';').ok_or_else(bad)?;
    let code = match &rest[..end] {
        b"lt" => u32::from(b'<'),
        b"gt" => u32::from(b'>'),
        b"amp" => u32::from(b'&'),
        b"quot" => u32::from(b'"'),
        b"apos" => u32::from(b'\''),
        [b'#', b'x', digits @ ..] => digits_of(digits, 16).ok_or_else(bad)?,
        [b'#', digits @ ..] => digits_of(digits, 10).ok_or_else(bad)?,
        _ => return Err(bad()),
    };
    *at += end + 2;
    Ok(code)
}

fn digits_of(digits: &[u8], radix: u32) -> Option<u32> {
    let digits = std::str::from_utf8(digits).ok().filter(|d| !d.starts_with('+'))?;
    u32::from_str_radix(digits, radix).ok()
}

/// What ends the records.
pub(super) const END: &[u8] = b"<record type=\"terminate\"/>\n";

/// What stands before the values of a shape's labels, and at the end.
pub(super) fn frame(labels: &[Label]) -> (Vec<Vec<u8>>, &'static [u8]) {
    let mut before = &b"<record type=\"data\" mode=\"textual\" interface=\"C4SNet\">"[..];
    let mut heads = Vec::new();
    for label in labels {
        let mut head = before.to_vec();
        head.extend_from_slice(
            format!("<{} label=\"{}\">", element_name(label.kind()), label.name()).as_bytes(),
        );
        heads.push(head);
        before = b"";
    }
    if labels.is_empty() {
        return (heads, b"<record type=\"data\" mode=\"textual\" interface=\"C4SNet\"></record>\n");
    }
    (heads, b"</record>\n")
}

/// Writes a value and the end tag of its element.
pub(super) fn write(out: &mut Vec<u8>, label: Label, value: &Value) -> Result<(), String> {
    let mut typed = |element: Element, bytes: &[u8], count: Option<usize>| {
        out.push(b'(');
        out.extend_from_slice(element.name().as_bytes());
        if let Some(n) = count {
            out.push(b'[');
            out.extend_from_slice(itoa::Buffer::new().format(n).as_bytes());
            out.push(b']');
        }
        out.push(b')');
        let character = matches!(element, Element::Char | Element::UChar);
        if character {
            out.reserve(2 * bytes.len());
        }
        for (i, bytes) in bytes.chunks_exact(element.size()).enumerate() {
            if i > 0 {
                out.push(b',');
            }
            match bytes[0] {
                _ if !character => number::write(out, element, bytes),
                b'<' => out.extend_from_slice(b"&lt;"),
                b'&' => out.extend_from_slice(b"&amp;"),
                b @ b' '..=b'~' => out.push(b),
                b => {
                    out.extend_from_slice(b"&#");
                    out.extend_from_slice(itoa::Buffer::new().format(b).as_bytes());
                    out.push(b';');
                }
            }
        }
    };
    match (value, label.kind()) {
        (Value::Tag(n), Kind::Tag | Kind::BindingTag) => {
            out.extend_from_slice(itoa::Buffer::new().format(*n).as_bytes());
        }
        (Value::Scalar(s), Kind::Field) if s.element() != Element::Pointer => {
            typed(s.element(), &s.bytes()[..s.element().size()], None);
        }
        (Value::Array(a), Kind::Field) if a.element() != Element::Pointer => {
            let single = a.element() == Element::LongDouble && a.len() == 1;
            typed(a.element(), a.bytes(), (!single).then_some(a.len()));
        }
        _ => return Err(super::unwritable(value)),
    }
    out.extend_from_slice(match label.kind() {
        Kind::Field => b"</field>",
        Kind::Tag => b"</tag>",
        Kind::BindingTag => b"</btag>",
    });
    Ok(())
}
