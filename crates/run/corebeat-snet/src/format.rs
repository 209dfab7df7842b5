//! Records as text: XML as S-Net's first run-time has it, and lines of JSON.
//!
//! ```
//! use corebeat_snet::format::{Format, Reader, Writer};
//!
//! let xml = r#"<record type="data" mode="textual" interface="C4SNet">
//!     <field label="A">(char[2])h,i</field><tag label="T">1</tag></record><record type="terminate"/>"#;
//! let mut json = Writer::new(Vec::new(), Format::Json);
//! for record in Reader::new(xml.as_bytes(), Format::Xml) {
//!     json.write(&record?)?;
//! }
//! assert_eq!(json.finish()?, b"{\"A\":\"hi\",\"T\":1}\n");
//! # Ok::<(), corebeat_snet::format::FormatError>(())
//! ```
//!
//! # XML
//!
//! ```xml
//! <record type="data" mode="textual" interface="C4SNet"><field label="A">(int)0</field>
//!     <tag label="T">1</tag><btag label="B">2</btag></record>
//! <record type="terminate"/>
//! ```
//!
//! Elements in any order, attributes in any order and in both quotes, white space, comments and `<?xml ...?>` between
//! elements and records. What follows a record of type `terminate` is not read; the end of the input ends the records as
//! well. A record without a mode is taken as textual; a tag without a number is 0.
//!
//! A field is `(TYPE)value` or `(TYPE[N])value,value,...` with a type of C. Elements of `char` and `unsigned char` are single
//! bytes as they are: `(char[2])h,i`. `<` and `&` are written as `&lt;` and `&amp;`; bytes that are no printable ASCII are
//! written as references to their number, 0 to 255, such as `&#10;` and `&#195;`, so that every byte is read back and what is
//! written is XML in ASCII. (XML itself forbids some of these references, such as `&#0;`.) Text that does not begin with a
//! type in parentheses is a `char` array in UTF-8; in a field of another interface than C4SNet it may begin with parentheses.
//!
//! # Lines of JSON
//!
//! One object a line; empty lines mean nothing. Keys are names of labels:
//!
//! | in JSON | in the record |
//! | --- | --- |
//! | `"A": "text"` | field `A`, a `char` array in UTF-8 |
//! | `"A": {"int": 5}`, `"A": {"double": [1.5, 2]}` | field `A` of a type of C, one element or an array |
//! | `"A": {"bytes": "AP8="}` | field `A`, an `unsigned char` array, in base64 |
//! | `"T": 1`, `"<T>": 1` | tag `<T>` |
//! | `"<#B>": 1` | binding tag `<#B>` |
//!
//! A single `char` and text that is no UTF-8 are written as numbers, `{"char": [-1, 65]}`; a tag as `"<T>"` if the record has
//! a field of its name. What JSON has no number for is a string: `{"double": "-inf"}`, `"nan"`, and a `long double` that no
//! `double` equals, such as `"0xcccccccccccccccdp-67"`.
//!
//! # Numbers
//!
//! Real numbers are written with the fewest digits that are read back as the same bits; of NaNs only the sign is kept. A
//! `long double` is read and written exactly. An array of one `long double` is written as a single one: they are the same
//! [`Value`].
//!
//! # Failure
//!
//! Every error says in one line where it is and what was expected there. After it the reader goes on with the next line, or
//! the next `<record`; only what cannot be read at all ends it. Nothing is kept that is longer than [`RECORD_BYTES_MAX`],
//! and no number in the input decides how much memory is taken.
//!
//! # Speed
//!
//! Markup that stood in the same place before is compared, not read (`memo.rs`), because streams of records repeat it. No
//! crate that reads XML or JSON as a whole can do that; so the scanners are written here, upon crates for what they are best
//! at: searching bytes (memchr), numbers (fast-float2, itoa, zmij), base64.
//!
//! Processor time of one core of two that others used too (EPYC), MB/s of text, medians of seven runs over 32 MiB:
//!
//! | records | read | a crate alone |
//! | --- | --- | --- |
//! | XML, an `int` and a tag, 115 bytes | 600 | quick-xml, events without values: 150 |
//! | XML, text of 1,080 bytes as characters | 1,550 | |
//! | XML, 1,000 `int`s or `double`s | 260, 340 | |
//! | JSON, text of 32 bytes and a tag, 48 bytes | 200 to 280 | serde_json, to its `Value`: 90 to 140 |
//! | JSON, text of 1,080 bytes and a tag | 1,100 to 1,370 | serde_json: 700 to 750 |
//! | JSON, 1,200 bytes in base64 | 520 to 690 | |
//! | JSON, 1,000 `int`s or `double`s | 240 to 330, 200 | serde_json: 110, 180 |
//!
//! Of the 175 ns for the small line of JSON, about 90 went into making the record and dropping it, when its text was two pieces of
//! memory: without any reading, no more than 520 MB/s of such lines could be made. A text of up to 32 bytes is one now.

mod input;
mod json;
mod long_double;
mod memo;
mod number;
mod xml;

use std::fmt::{self, Display};
use std::io::{self, Read, Write};
use std::str::FromStr;

use thiserror::Error;

use crate::error::TooMany;
use crate::label::{Kind, Label};
use crate::record::Record;
use crate::shape::Shape;
use crate::value::{Array, Element, Scalar, Value};
use input::Input;
use memo::Draft;

/// Bytes of the longest record that is read, if [`Reader::record_max`] says nothing else.
pub const RECORD_BYTES_MAX: usize = 256 << 20;
/// Labels in one record that is read.
pub const RECORD_LABELS_MAX: usize = 256;
/// Characters of a label's name that is read.
pub const NAME_MAX: usize = 256;

/// What the writer keeps before it writes it out.
const BUFFER_BYTES: usize = 64 << 10;

/// A form of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `<record type="data" ...>...</record>`
    Xml,
    /// `{"A": "text", "T": 1}` on each line
    Json,
}

impl FromStr for Format {
    type Err = FormatError;

    fn from_str(name: &str) -> Result<Format, FormatError> {
        match name {
            "xml" => Ok(Format::Xml),
            "json" => Ok(Format::Json),
            _ => Err(FormatError::Unknown(name.escape_debug().to_string())),
        }
    }
}

/// As [`FromStr`] reads it.
impl Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Xml => "xml",
            Format::Json => "json",
        })
    }
}

/// Why a record could not be read or written.
#[derive(Debug, Error)]
pub enum FormatError {
    /// The name of no form.
    #[error("`{0}` is no form of records: take `xml` or `json`")]
    Unknown(String),
    /// Text that is no record. The reader goes on behind it.
    #[error("line {line}, column {column}: {what}")]
    Syntax {
        /// Counted from 1.
        line: u64,
        /// In characters, from 1.
        column: u64,
        /// What is wrong.
        what: String,
    },
    /// The labels of all records are too many. The reader goes on behind this record.
    #[error("line {line}, column {column}: {source}")]
    TooMany {
        /// Counted from 1.
        line: u64,
        /// In characters, from 1.
        column: u64,
        /// Of what there are too many.
        source: TooMany,
    },
    /// The input failed. The reader ends.
    #[error("line {line}, column {column}: the input cannot be read: {source}")]
    Read {
        /// Counted from 1.
        line: u64,
        /// In characters, from 1.
        column: u64,
        /// Why.
        source: io::Error,
    },
    /// A value that has no text. The record is left out of the output.
    #[error("{label} cannot be written: {why}")]
    Value {
        /// Where in the record it is.
        label: Label,
        /// What it is, and what to do.
        why: String,
    },
    /// The output failed.
    #[error("the output cannot be written: {0}")]
    Write(#[from] io::Error),
}

/// Why reading stops: `at` is a place in the input.
enum Stop {
    Syntax { at: usize, what: String },
    TooMany { at: usize, source: TooMany },
    Read(io::Error),
}

impl Stop {
    fn syntax(at: usize, what: impl Into<String>) -> Stop {
        Stop::Syntax { at, what: what.into() }
    }
}

/// What is wrong with a text, and where in it.
struct Bad {
    at: usize,
    what: String,
}

impl Bad {
    #[cold]
    fn expected(expected: &str, text: &[u8], at: usize) -> Bad {
        let what = match &text[at.min(text.len())..] {
            [] => "nothing more".into(),
            rest => found(rest),
        };
        Bad { at, what: format!("expected {expected}, found {what}") }
    }
}

/// The beginning of a text, as far as its line goes, for a message.
fn found(text: &[u8]) -> String {
    const SHOWN: usize = 20;
    let line = &text[..memchr::memchr(b'\n', &text[..text.len().min(4 * SHOWN)]).unwrap_or(text.len())];
    if line.is_empty() {
        return "the end of the line".into();
    }
    let cut = &line[..line.len().min(4 * SHOWN)]; // a character has four bytes at most
    let mut shown = String::from("`");
    for (i, c) in String::from_utf8_lossy(cut).chars().enumerate() {
        match c {
            _ if i == SHOWN => {
                shown += "...";
                break;
            }
            c if c.is_control() => shown.extend(c.escape_debug()),
            c => shown.push(c),
        }
    }
    shown + "`"
}

/// Whether a label can have this name in programs, and so in text.
fn is_name(name: &[u8]) -> bool {
    name.first().is_some_and(|b| b.is_ascii_alphabetic() || *b == b'_')
        && name.len() <= NAME_MAX
        && name.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_')
}

/// The label of this name, which stands at `at`.
fn label(kind: Kind, name: &[u8], at: usize) -> Result<Label, Stop> {
    if !is_name(name) {
        let what =
            format!("expected a label: a letter, then letters, digits and _, {NAME_MAX} at most; found ");
        return Err(Stop::syntax(at, what + &if name.is_empty() { "nothing".into() } else { found(name) }));
    }
    let name = std::str::from_utf8(name).expect("letters and digits of ASCII are UTF-8");
    Label::new(kind, name).map_err(|source| Stop::TooMany { at, source })
}

/// Whether the record that is read may have one label more.
fn label_fits(draft: &mut Draft, at: usize) -> Result<(), Stop> {
    if draft.labels().len() == RECORD_LABELS_MAX {
        return Err(Stop::syntax(
            at,
            format!("a record of more than {RECORD_LABELS_MAX} labels: put values into arrays"),
        ));
    }
    Ok(())
}

/// A field of one element.
fn scalar(element: Element, bytes: number::Bytes) -> Value {
    match element {
        Element::LongDouble => Value::Array(Array::from_bytes(element, &bytes).into()),
        _ => Value::Scalar(Scalar::new(element, *bytes.first_chunk().expect("sixteen are more than eight"))),
    }
}

/// What to say of a value that has no text, or is not of its label's kind.
fn unwritable(value: &Value) -> String {
    match value {
        Value::Native(native) => {
            format!(
                "a value of Rust ({}) has no text: let a box turn it into text or numbers",
                native.type_name()
            )
        }
        Value::Tag(_) => "a field holds a tag's number: give it a field's value".into(),
        Value::Scalar(_) | Value::Array(_) => {
            "a pointer in a field, or a field's value in a tag, has no text".into()
        }
    }
}

/// Reads records: an iterator of records and of what is wrong with others.
pub struct Reader<R> {
    format: Format,
    input: Input<R>,
    draft: Draft,
    state: xml::State,
    /// Room for a value on its way.
    scratch: Vec<u8>,
    begun: bool,
    ended: bool,
}

impl<R: Read> Reader<R> {
    /// Records of this form from there. They are read in large pieces: nothing is gained by a buffer around the source, and a
    /// record is given out as soon as its last byte has come.
    pub fn new(source: R, format: Format) -> Reader<R> {
        Reader {
            format,
            input: Input::new(source, RECORD_BYTES_MAX),
            draft: Draft::new(),
            state: xml::State::default(),
            scratch: Vec::new(),
            begun: false,
            ended: false,
        }
    }

    /// With another bound for one record's bytes than [`RECORD_BYTES_MAX`].
    pub fn record_max(mut self, bytes: usize) -> Reader<R> {
        self.input.record_max = bytes.max(1);
        self
    }

    /// Reads a record into the draft; `false` at the end.
    fn read(&mut self) -> Result<bool, Stop> {
        if !self.begun {
            self.input.skip_mark()?;
            self.begun = true;
        }
        match self.format {
            Format::Xml => xml::record(&mut self.input, &mut self.draft, &mut self.state, &mut self.scratch),
            Format::Json => {
                json::record(&mut self.input, &mut self.draft, &mut self.state.lost, &mut self.scratch)
            }
        }
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Record, FormatError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let stop = match self.read() {
            Ok(true) => match self.draft.finish() {
                Ok(record) => return Some(Ok(record)),
                Err(source) => Stop::TooMany { at: self.input.start(), source },
            },
            Ok(false) => {
                self.ended = true;
                return None;
            }
            Err(stop) => stop,
        };
        let at = match &stop {
            Stop::Syntax { at, .. } | Stop::TooMany { at, .. } => *at,
            Stop::Read(_) => self.input.end(),
        };
        let (line, column) = self.input.place(at);
        if self.format == Format::Xml {
            self.state.lost = true;
            self.input.skip_to(at);
        }
        Some(Err(match stop {
            Stop::Syntax { what, .. } => FormatError::Syntax { line, column, what },
            Stop::TooMany { source, .. } => FormatError::TooMany { line, column, source },
            Stop::Read(source) => {
                self.ended = true;
                FormatError::Read { line, column, source }
            }
        }))
    }
}

/// Writes records. What is written may wait in memory until [`flush`](Self::flush) or [`finish`](Self::finish).
pub struct Writer<W> {
    format: Format,
    sink: W,
    out: Vec<u8>,
    /// The shape of the last record, what stands before its values, and at its end.
    shape: Option<Shape>,
    heads: Vec<Vec<u8>>,
    end: &'static [u8],
}

impl<W: Write> Writer<W> {
    /// Records of this form to there.
    pub fn new(sink: W, format: Format) -> Writer<W> {
        Writer { format, sink, out: Vec::new(), shape: None, heads: Vec::new(), end: b"" }
    }

    /// Writes a record on a line of its own.
    ///
    /// # Errors
    ///
    /// When a value has no text (nothing of the record is written then), and when the output fails.
    pub fn write(&mut self, record: &Record) -> Result<(), FormatError> {
        if self.shape != Some(record.shape()) {
            let labels = record.shape().labels();
            if let Some(&label) = labels.iter().find(|l| !is_name(l.name().as_bytes())) {
                let why = "its name is not made of letters, digits and _".into();
                return Err(FormatError::Value { label, why });
            }
            (self.heads, self.end) = match self.format {
                Format::Xml => xml::frame(labels),
                Format::Json => json::frame(labels),
            };
            self.shape = Some(record.shape());
        }
        let before = self.out.len();
        for ((label, value), head) in record.iter().zip(&self.heads) {
            self.out.extend_from_slice(head);
            let written = match self.format {
                Format::Xml => xml::write(&mut self.out, label, value),
                Format::Json => json::write(&mut self.out, label, value),
            };
            if let Err(why) = written {
                self.out.truncate(before);
                return Err(FormatError::Value { label, why });
            }
        }
        self.out.extend_from_slice(self.end);
        if self.out.len() >= BUFFER_BYTES {
            self.put()?;
        }
        Ok(())
    }

    fn put(&mut self) -> io::Result<()> {
        let written = self.sink.write_all(&self.out);
        self.out.clear();
        written
    }

    /// Hands everything written so far to the output.
    pub fn flush(&mut self) -> Result<(), FormatError> {
        self.put()?;
        Ok(self.sink.flush()?)
    }

    /// Ends the records, for XML by a record that says so, and gives the output back.
    pub fn finish(mut self) -> Result<W, FormatError> {
        if self.format == Format::Xml {
            self.out.extend_from_slice(xml::END);
        }
        self.flush()?;
        Ok(self.sink)
    }
}
