//! Reader and writer of records as text: XML as in S-Net's first run-time system, and lines of
//! JSON.
//!
//! ```
//! use corebeat_snet::format::{Format, Reader, Writer};
//!
//! let xml = r#"<record type="data" mode="textual" interface="C4SNet">
//!     <field label="A">(char[2])h,i</field><tag label="T">1</tag></record>
//!     <record type="terminate"/>"#;
//! let mut json = Writer::new(Vec::new(), Format::Json);
//! for record in Reader::new(xml.as_bytes(), Format::Xml) {
//!     json.write(&record?)?;
//! }
//! assert_eq!(json.finish()?, b"{\"A\":\"hi\",\"T\":1}\n");
//! # Ok::<(), corebeat_snet::Error>(())
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
//! Elements and attributes may have any order, and attribute values either kind of quote. White
//! space, comments and `<?xml ...?>` may occur between elements and between records. The reader
//! stops at a record of type `terminate` or at the end of the input. A record without a mode is
//! textual. A tag without a number is 0.
//!
//! A field is `(TYPE)value` or `(TYPE[N])value,value,...` with a C type. Elements of `char` and
//! `unsigned char` are raw bytes: `(char[2])h,i`. The writer replaces `<` and `&` by `&lt;` and
//! `&amp;`, and bytes other than printable ASCII by references to their number, 0 to 255, such as
//! `&#10;` and `&#195;`. The output is therefore ASCII, and every byte is read back. (XML itself
//! forbids some of these references, such as `&#0;`.) Text that does not begin with a type in
//! parentheses is a `char` array in UTF-8. In a field of an interface other than C4SNet, such text
//! may begin with a parenthesis.
//!
//! # Lines of JSON
//!
//! Each line holds one object. Empty lines are skipped. Keys are names of labels:
//!
//! | in JSON | in the record |
//! | --- | --- |
//! | `"A": "text"` | field `A`, a `char` array in UTF-8 |
//! | `"A": {"int": 5}` | field `A` of a C type, one element |
//! | `"A": {"double": [1.5, 2]}` | field `A` of a C type, an array |
//! | `"A": {"bytes": "AP8="}` | field `A`, an `unsigned char` array, in base64 |
//! | `"T": 1`, `"<T>": 1` | tag `<T>` |
//! | `"<#B>": 1` | binding tag `<#B>` |
//!
//! The writer writes a single `char`, and text that is not UTF-8, as numbers: `{"char": [-1, 65]}`.
//! It writes a tag as `"<T>"` if the record has a field of the same name. Numbers that JSON does
//! not have are strings: `{"double": "-inf"}`, `"nan"`, and a `long double` that no `double`
//! equals, such as `"0xcccccccccccccccdp-67"`.
//!
//! # Numbers
//!
//! The writer uses the fewest digits that are read back as the same bits. A NaN keeps only its
//! sign. A `long double` is read and written exactly. An array of one `long double` is written as a
//! single element, because both are the same [`Value`].
//!
//! # Failure
//!
//! Every error message is one line with the position and the expected text. After an error, the
//! reader continues with the next line of JSON or with the next `<record`. It ends only if the
//! input cannot be read. The reader buffers at most [`RECORD_BYTES_MAX`] bytes, and no number in
//! the input determines how much memory it allocates.
//!
//! # Libraries and speed
//!
//! quick-xml reads tags and attributes and writes markup; serde_json writes JSON text; memchr finds
//! bytes, fast-float2, itoa and zmij convert numbers, and base64 converts bytes. Two parts are
//! written here:
//!
//! - The reader compares markup that occurred at the same place in an earlier record with that
//!   markup and does not parse it again (`memo.rs`), because records of one stream have the same
//!   markup. Parsers of whole documents cannot do this.
//! - The JSON reader, for three reasons: serde_json reads numbers as 64-bit integers or as
//!   `double`, so it loses the digits of a `long double` and rounds a `float` twice; it has no
//!   columns in characters; and it does not report which value was expected. Nesting is not
//!   recursive here: the grammar limits its depth to three.
//!
//! The table shows megabytes of text per second of processor time, on one of two cores that other
//! processes used as well (EPYC). The values are medians of seven runs over 32 MiB:
//!
//! | records | read | a library alone |
//! | --- | --- | --- |
//! | XML, an `int` and a tag, 115 bytes | 600 | quick-xml, events without values: 150 |
//! | XML, text of 1,080 bytes as characters | 1,550 | |
//! | XML, 1,000 `int`s or `double`s | 260, 340 | |
//! | JSON, text of 32 bytes and a tag, 48 bytes | 200 to 280 | serde_json, `Value`: 90 to 140 |
//! | JSON, text of 1,080 bytes and a tag | 1,100 to 1,370 | serde_json: 700 to 750 |
//! | JSON, 1,200 bytes in base64 | 520 to 690 | |
//! | JSON, 1,000 `int`s or `double`s | 240 to 330, 200 | serde_json: 110, 180 |
//!
//! Of the 175 ns for the small line of JSON, about 90 ns made and dropped the record when its text
//! took two allocations: without any parsing, at most 520 MB/s of such lines were possible. A text
//! of up to 32 bytes now takes one allocation.

mod input;
mod json;
mod long_double;
mod memo;
mod number;
mod xml;

use std::fmt::{self, Display};
use std::io::{self, Read, Write};
use std::str::FromStr;

use crate::error::Error;
use crate::label::{Kind, Label};
use crate::record::Record;
use crate::shape::Shape;
use crate::value::{Array, Element, Scalar, Value};
use input::Input;
use memo::Draft;

/// Bytes of the longest record that a [`Reader`] accepts, unless [`Reader::with_record_max`] sets
/// another bound.
pub const RECORD_BYTES_MAX: usize = 256 << 20;
/// Labels in one record that a [`Reader`] accepts.
pub const RECORD_LABELS_MAX: usize = 256;
/// Characters of a label's name that a [`Reader`] accepts.
pub const NAME_MAX: usize = 256;

/// Bytes that the writer buffers.
const BUFFER_BYTES: usize = 64 << 10;

/// Text format of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `<record type="data" ...>...</record>`
    Xml,
    /// `{"A": "text", "T": 1}` on each line
    Json,
}

impl FromStr for Format {
    type Err = Error;

    fn from_str(name: &str) -> Result<Format, Error> {
        match name {
            "xml" => Ok(Format::Xml),
            "json" => Ok(Format::Json),
            _ => Err(Error::UnknownFormat(name.escape_debug().to_string())),
        }
    }
}

/// The name that [`FromStr`] reads.
impl Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Xml => "xml",
            Format::Json => "json",
        })
    }
}

/// Reason why the reader stops. `at` is a position in the input. Small, because each call returns
/// the result through memory.
enum ReadError {
    Syntax { at: usize, what: String },
    Limit { at: usize, source: Box<Error> },
    Input(io::Error),
}

impl ReadError {
    fn syntax(at: usize, what: impl Into<String>) -> ReadError {
        ReadError::Syntax { at, what: what.into() }
    }

    fn duplicate(at: usize, label: Label) -> ReadError {
        ReadError::syntax(at, format!("{label} occurs twice in this record: remove one"))
    }
}

/// Mistake in a text, with its offset in the text.
struct Invalid {
    at: usize,
    what: String,
}

impl Invalid {
    #[cold]
    fn expected(expected: &str, text: &[u8], at: usize) -> Invalid {
        let found = match &text[at.min(text.len())..] {
            [] => "the end of the value".into(),
            rest => found(rest),
        };
        Invalid { at, what: format!("expected {expected}, found {found}") }
    }

    /// The same mistake in an input in which the text begins at `base`.
    fn at_offset(self, base: usize) -> ReadError {
        ReadError::syntax(base + self.at, self.what)
    }
}

/// Quotes the start of a text, at most to the end of its line, for an error message.
fn found(text: &[u8]) -> String {
    const CHARACTERS_MAX: usize = 20;
    const BYTES_MAX: usize = 4 * CHARACTERS_MAX; // a character has at most four bytes
    let cut = &text[..text.len().min(BYTES_MAX)];
    let line = &cut[..memchr::memchr(b'\n', cut).unwrap_or(cut.len())];
    if line.is_empty() {
        return "the end of the line".into();
    }
    let mut shown = String::from("`");
    for (i, c) in String::from_utf8_lossy(line).chars().enumerate() {
        match c {
            _ if i == CHARACTERS_MAX => {
                shown += "...";
                break;
            }
            c if c.is_control() => shown.extend(c.escape_debug()),
            c => shown.push(c),
        }
    }
    shown + "`"
}

/// Whether a program, and therefore a text, can name a label like this.
fn is_name(name: &[u8]) -> bool {
    name.first().is_some_and(|b| b.is_ascii_alphabetic() || *b == b'_')
        && name.len() <= NAME_MAX
        && name.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_')
}

/// Returns the label of a name at position `at`.
fn label(kind: Kind, name: &[u8], at: usize) -> Result<Label, ReadError> {
    if !is_name(name) {
        let found = if name.is_empty() { "nothing".into() } else { found(name) };
        let what = format!(
            "expected a label, which is a letter or _ followed by letters, digits and _ \
             (at most {NAME_MAX} characters); found {found}"
        );
        return Err(ReadError::syntax(at, what));
    }
    let name = std::str::from_utf8(name).expect("ASCII letters and digits are UTF-8");
    Label::new(kind, name).map_err(|e| ReadError::Limit { at, source: e.into() })
}

/// Checks that the record in the draft may have one more label.
fn label_fits(draft: &mut Draft, at: usize) -> Result<(), ReadError> {
    if draft.labels().len() == RECORD_LABELS_MAX {
        return Err(ReadError::syntax(
            at,
            format!("the record has more than {RECORD_LABELS_MAX} labels: put values into arrays"),
        ));
    }
    Ok(())
}

/// Returns a field of one element.
fn scalar(element: Element, bytes: number::Bytes) -> Value {
    match element {
        Element::LongDouble => Value::Array(Array::from_bytes(element, &bytes).into()),
        _ => Value::Scalar(Scalar::new(
            element,
            *bytes.first_chunk().expect("sixteen bytes are more than eight"),
        )),
    }
}

/// Returns the reason why a value has no text.
fn unwritable(value: &Value) -> String {
    match value {
        Value::Native(native) => {
            format!(
                "a Rust value ({}) has no text: convert it into text or numbers in a box",
                native.type_name()
            )
        }
        _ => "a pointer has no text: convert it in a box".into(),
    }
}

/// Reader of records: an iterator over records and the errors in the input.
pub struct Reader<R> {
    format: Format,
    input: Input<R>,
    draft: Draft,
    state: xml::State,
    /// Buffer for a value.
    scratch: Vec<u8>,
    begun: bool,
    ended: bool,
}

impl<R: Read> Reader<R> {
    /// Creates a reader. The source needs no buffer, because the reader reads large blocks. The
    /// reader returns a record as soon as it has read the record's last byte.
    pub fn new(source: R, format: Format) -> Reader<R> {
        Reader::with_record_max(source, format, RECORD_BYTES_MAX)
    }

    /// Creates a reader with another bound for the bytes of one record than [`RECORD_BYTES_MAX`].
    pub fn with_record_max(source: R, format: Format, record_max: usize) -> Reader<R> {
        Reader {
            format,
            input: Input::new(source, record_max.max(1)),
            draft: Draft::new(),
            state: xml::State::default(),
            scratch: Vec::new(),
            begun: false,
            ended: false,
        }
    }

    /// Reads a record into the draft. Returns `false` at the end of the records.
    fn read(&mut self) -> Result<bool, ReadError> {
        if !self.begun {
            self.input.skip_mark()?;
            self.begun = true;
        }
        match self.format {
            Format::Xml => {
                xml::record(&mut self.input, &mut self.draft, &mut self.state, &mut self.scratch)
            }
            Format::Json => json::record(
                &mut self.input,
                &mut self.draft,
                &mut self.state.lost,
                &mut self.scratch,
            ),
        }
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Record, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let stop = match self.read() {
            Ok(true) => match self.draft.finish() {
                Ok(record) => return Some(Ok(record)),
                Err(source) => ReadError::Limit { at: self.input.start(), source },
            },
            Ok(false) => {
                self.ended = true;
                return None;
            }
            Err(stop) => stop,
        };
        let at = match &stop {
            ReadError::Syntax { at, .. } | ReadError::Limit { at, .. } => *at,
            ReadError::Input(_) => self.input.end(),
        };
        let (line, column) = self.input.place(at);
        if self.format == Format::Xml {
            self.state.lost = true;
            self.input.skip_to(at);
        }
        Some(Err(match stop {
            ReadError::Syntax { what, .. } => Error::Syntax { line, column, what },
            ReadError::Limit { source, .. } => Error::RecordLimit { line, column, source },
            ReadError::Input(source) => {
                self.ended = true;
                Error::Read { line, column, source }
            }
        }))
    }
}

/// Writer of records. It buffers its output until [`flush`](Self::flush) or
/// [`finish`](Self::finish).
pub struct Writer<W> {
    format: Format,
    sink: W,
    out: Vec<u8>,
    /// Shape of the last record, with the markup before each value and at the record's end.
    shape: Option<Shape>,
    heads: Vec<Vec<u8>>,
    end: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Creates a writer.
    pub fn new(sink: W, format: Format) -> Writer<W> {
        Writer { format, sink, out: Vec::new(), shape: None, heads: Vec::new(), end: Vec::new() }
    }

    /// Writes a record on its own line.
    ///
    /// # Errors
    ///
    /// Returns an error if a value has no text (the writer then omits the whole record), or if the
    /// output fails.
    pub fn write(&mut self, record: &Record) -> Result<(), Error> {
        if self.shape != Some(record.shape()) {
            let labels = record.shape().labels();
            if let Some(&label) = labels.iter().find(|l| !is_name(l.name().as_bytes())) {
                let why =
                    "its name has characters other than letters, digits and _: rename it".into();
                return Err(Error::UnwritableValue { label, why });
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
                Format::Json => json::write(&mut self.out, value),
            };
            if let Err(why) = written {
                self.out.truncate(before);
                return Err(Error::UnwritableValue { label, why });
            }
        }
        self.out.extend_from_slice(&self.end);
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

    /// Writes the buffered text to the output.
    ///
    /// # Errors
    ///
    /// Returns an error if the output fails.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.put()?;
        Ok(self.sink.flush()?)
    }

    /// Ends the records, in XML with a record of type `terminate`, and returns the output.
    ///
    /// # Errors
    ///
    /// Returns an error if the output fails.
    pub fn finish(mut self) -> Result<W, Error> {
        if self.format == Format::Xml {
            self.out.extend_from_slice(xml::END);
        }
        self.flush()?;
        Ok(self.sink)
    }
}
