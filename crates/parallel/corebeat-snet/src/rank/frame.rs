//! The form of messages between ranks.
//!
//! A frame has its length in bytes, its kind, and its content. All numbers are little-endian. The
//! ranks of a run have the same byte order (see the comparison of programs before a run), so the
//! elements of fields move as they are: in a frame or, if there are many, as a message of their
//! own, which is no frame.

use std::sync::Arc;

use crate::value::{Array, Element, Scalar, Value};

/// Largest frame in bytes, and so nearly the largest field that can move between ranks.
pub(crate) const FRAME_MAX: usize = 1 << 30;

/// Largest number of labels of a record, of ranks of a chain, or of bytes of a name, in a frame.
const LIST_MAX: u32 = 1 << 20;

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Labels of a shape that the sender uses from now on: number, labels.
    Shape = 1,
    /// Request for a part: channel, part, further ranks with channel and part, home, channel home.
    Open,
    /// Record on a channel: channel, shape, values.
    Record,
    /// Barrier on a channel: channel, purpose, number.
    Mark,
    /// End of a channel: channel.
    Close,
    /// Returned credits: channel, number.
    Credit,
    /// Fault: whether its task has ended, entity, message, and a record or none.
    Fault,
    /// Room for a further fault on rank 0.
    Room,
    /// Request for the data of a field: field, weight, request.
    Fetch,
    /// Data of a field: request, value.
    Data,
    /// Released references to a field: field, weight.
    Release,
    /// No box is called any more.
    Abandon,
    /// Request of rank 0: finish.
    Finish,
    /// All tasks of a rank have ended: records in synchrocells.
    Finished,
    /// Last frame of a rank to another.
    Last,
    /// Request to answer as soon as all tasks of a rank wait: wave.
    Probe,
    /// All tasks of a rank wait: wave, bytes sent, bytes received.
    Idle,
    /// Request for the tasks that wait.
    Explain,
    /// Tasks that wait: text.
    Waits,
    /// The next messages are the elements of fields, and no frames: number of fields.
    Fields,
}

impl Kind {
    const ALL: [Kind; 20] = {
        use Kind::*;
        [
            Shape, Open, Record, Mark, Close, Credit, Fault, Room, Fetch, Data, Release, Abandon,
            Finish, Finished, Last, Probe, Idle, Explain, Waits, Fields,
        ]
    };

    /// Whether the frame belongs to the detection of runs without progress, and causes none.
    pub(crate) fn is_of_detection(self) -> bool {
        matches!(self, Kind::Probe | Kind::Idle | Kind::Explain | Kind::Waits)
    }
}

/// Bytes from another rank that are no valid message. The ranks run different programs, or the
/// transport has lost messages or their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message from rank {from} is not valid: {what}")]
pub struct Corrupt {
    /// Sender.
    pub from: u32,
    /// Reason.
    pub what: &'static str,
}

/// A message to another rank.
#[derive(Clone)]
pub enum Outbound {
    /// Frames, which may be divided.
    Frames(Vec<u8>),
    /// The elements of a field, which MPI sends from where they are. Other records may share the
    /// array: boxes in C write only to fields that they have created and not yet output
    /// (`C4SNet.h`).
    Field(Arc<Array>),
}

impl AsRef<[u8]> for Outbound {
    fn as_ref(&self) -> &[u8] {
        match self {
            Outbound::Frames(bytes) => bytes,
            Outbound::Field(array) => array.bytes(),
        }
    }
}

/// Splits the frames of [`Node::take`](super::Node::take) into messages that can be delivered one
/// by one. For tests of the protocol.
#[doc(hidden)]
pub fn frames(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while let Some((len, _)) = bytes.split_first_chunk::<4>() {
        let (frame, rest) = bytes.split_at(4 + u32::from_le_bytes(*len) as usize);
        frames.push(frame.to_vec());
        bytes = rest;
    }
    frames
}

/// Whether a message of [`frames`] is the end of a channel.
#[doc(hidden)]
pub fn is_close(frame: &[u8]) -> bool {
    frame[4] == Kind::Close as u8
}

/// Whether a message of [`frames`] returns credits.
#[doc(hidden)]
pub fn is_credit(frame: &[u8]) -> bool {
    frame[4] == Kind::Credit as u8
}

/// Whether a message of [`frames`] requests the data of a field.
#[doc(hidden)]
pub fn is_fetch(frame: &[u8]) -> bool {
    frame[4] == Kind::Fetch as u8
}

/// Whether a message of [`frames`] releases references to a field.
#[doc(hidden)]
pub fn is_release(frame: &[u8]) -> bool {
    frame[4] == Kind::Release as u8
}

/// Whether a message of [`frames`] is the last one of its rank.
#[doc(hidden)]
pub fn is_last(frame: &[u8]) -> bool {
    frame[4] == Kind::Last as u8
}

/// Whether a message of [`frames`] is a record on a channel.
#[doc(hidden)]
pub fn is_record(frame: &[u8]) -> bool {
    frame[4] == Kind::Record as u8
}

/// Whether a message of [`frames`] belongs to the detection of runs without progress.
#[doc(hidden)]
pub fn is_of_detection(frame: &[u8]) -> bool {
    Kind::ALL.into_iter().any(|kind| kind as u8 == frame[4] && kind.is_of_detection())
}

/// Writes one frame at the end of the bytes.
pub(crate) struct Write<'a> {
    bytes: &'a mut Vec<u8>,
    start: usize,
}

impl<'a> Write<'a> {
    pub(crate) fn new(bytes: &'a mut Vec<u8>, kind: Kind) -> Write<'a> {
        let start = bytes.len();
        bytes.extend([0; 4]);
        bytes.push(kind as u8);
        Write { bytes, start }
    }

    pub(crate) fn u8(&mut self, n: u8) -> &mut Self {
        self.bytes.push(n);
        self
    }

    pub(crate) fn u32(&mut self, n: u32) -> &mut Self {
        self.bytes.extend(n.to_le_bytes());
        self
    }

    pub(crate) fn u64(&mut self, n: u64) -> &mut Self {
        self.bytes.extend(n.to_le_bytes());
        self
    }

    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
        // A longer text is an error message, which may be cut.
        let most = text.len().min(LIST_MAX as usize);
        let end = (0..=most).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        self.u32(end as u32);
        self.bytes.extend(&text.as_bytes()[..end]);
        self
    }

    /// Writes a value, which must not be a reference to a Rust value.
    pub(crate) fn value(&mut self, value: &Value) {
        match value {
            Value::Tag(n) => self.u8(TAG).u32(*n as u32),
            Value::Scalar(scalar) => {
                self.u8(SCALAR).u8(scalar.element() as u8);
                self.bytes.extend(scalar.bytes());
                self
            }
            Value::Array(array) => {
                self.u8(ARRAY).u8(array.element() as u8).u32(array.len() as u32);
                self.bytes.extend(array.bytes());
                self
            }
            Value::Native(_) => unreachable!("the sender has refused the value"),
        };
    }

    /// Writes the form of an array whose elements are a message of their own.
    pub(crate) fn apart(&mut self, array: &Array) {
        self.u8(APART).u8(array.element() as u8).u32(array.len() as u32);
    }

    /// Writes a reference to a field.
    pub(crate) fn reference(&mut self, reference: Reference) {
        self.u8(REFERENCE).u32(reference.owner).u64(reference.field).u64(reference.weight);
    }

    /// Writes the length of the frame.
    pub(crate) fn end(&mut self) {
        let len = u32::try_from(self.bytes.len() - self.start - 4);
        let len = len.expect("the size of a record was checked");
        self.bytes[self.start..self.start + 4].copy_from_slice(&len.to_le_bytes());
    }
}

const TAG: u8 = 0;
const SCALAR: u8 = 1;
const ARRAY: u8 = 2;
const REFERENCE: u8 = 3;
const APART: u8 = 4;

/// Reference to a field on another rank, with its share of the field's weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    pub(crate) owner: u32,
    pub(crate) field: u64,
    pub(crate) weight: u64,
}

/// A value of a frame.
pub(crate) enum Read {
    Value(Value),
    Reference(Reference),
    /// Array of this number of elements, which were a message of their own.
    Apart(Element, usize),
}

/// Reads the frames of a message.
#[derive(Clone, Copy)]
pub(crate) struct Bytes<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) from: u32,
}

impl<'a> Bytes<'a> {
    pub(crate) fn corrupt(&self, what: &'static str) -> Corrupt {
        Corrupt { from: self.from, what }
    }

    /// Reads the kind of the next frame, and its content. Returns `None` at the end.
    pub(crate) fn frame(&mut self) -> Result<Option<(Kind, Bytes<'a>)>, Corrupt> {
        if self.bytes.is_empty() {
            return Ok(None);
        }
        let len = self.u32()?;
        let mut content = Bytes { bytes: self.slice(len as usize)?, from: self.from };
        let kind = content.u8()?;
        let kind = Kind::ALL.into_iter().find(|k| *k as u8 == kind);
        Ok(Some((kind.ok_or(self.corrupt("it has an unknown kind"))?, content)))
    }

    pub(crate) fn slice(&mut self, len: usize) -> Result<&'a [u8], Corrupt> {
        let (slice, rest) = self.bytes.split_at_checked(len).ok_or(self.corrupt("it is short"))?;
        self.bytes = rest;
        Ok(slice)
    }

    fn chunk<const N: usize>(&mut self) -> Result<[u8; N], Corrupt> {
        let (chunk, rest) = self.bytes.split_first_chunk().ok_or(self.corrupt("it is short"))?;
        self.bytes = rest;
        Ok(*chunk)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Corrupt> {
        self.chunk().map(|[n]| n)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Corrupt> {
        self.chunk().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Corrupt> {
        self.chunk().map(u64::from_le_bytes)
    }

    /// Reads the length of a list.
    pub(crate) fn count(&mut self) -> Result<u32, Corrupt> {
        let count = self.u32()?;
        if count > LIST_MAX { Err(self.corrupt("a list is too long")) } else { Ok(count) }
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, Corrupt> {
        let len = self.count()?;
        std::str::from_utf8(self.slice(len as usize)?)
            .map_err(|_| self.corrupt("a text is not UTF-8"))
    }

    fn element(&mut self) -> Result<Element, Corrupt> {
        let n = self.u8()?;
        Element::ALL.get(usize::from(n)).copied().ok_or(self.corrupt("a field has no type"))
    }

    pub(crate) fn value(&mut self) -> Result<Read, Corrupt> {
        Ok(match self.u8()? {
            TAG => Read::Value(Value::Tag(self.u32()? as i32)),
            SCALAR => {
                let element = self.element()?;
                if element == Element::LongDouble {
                    return Err(self.corrupt("a field has the wrong type"));
                }
                Read::Value(Value::Scalar(Scalar::new(element, self.chunk()?)))
            }
            ARRAY => {
                let (element, len) = (self.element()?, self.u32()?);
                let bytes = self.slice(len as usize * element.size())?;
                let array = Array::from_bytes(element, bytes);
                Read::Value(Value::Array(Arc::new(array)))
            }
            REFERENCE => Read::Reference(Reference {
                owner: self.u32()?,
                field: self.u64()?,
                weight: self.u64()?,
            }),
            APART => Read::Apart(self.element()?, self.u32()? as usize),
            _ => return Err(self.corrupt("a value has an unknown form")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Vec<Kind>, Corrupt> {
        let mut bytes = Bytes { bytes, from: 7 };
        let mut kinds = Vec::new();
        while let Some((kind, mut content)) = bytes.frame()? {
            kinds.push(kind);
            while !content.bytes.is_empty() {
                content.value()?;
            }
        }
        Ok(kinds)
    }

    #[test]
    fn values_are_read_as_written_and_no_cut_message_is_read() {
        let values = [
            Value::Tag(-5),
            Value::from(2.5f64),
            Value::from(200u8),
            Value::from("text of more than thirty-two bytes, in one array"),
            Value::bytes(&[]),
        ];
        let mut bytes = Vec::new();
        let mut write = Write::new(&mut bytes, Kind::Record);
        values.iter().for_each(|value| write.value(value));
        let reference = Reference { owner: 3, field: 1 << 40, weight: 9 };
        write.reference(reference);
        write.apart(&Array::zeroed(Element::Short, 70_000));
        write.end();
        let (kind, mut content) = Bytes { bytes: &bytes, from: 0 }.frame().unwrap().unwrap();
        assert_eq!(kind, Kind::Record);
        for value in values {
            assert!(matches!(content.value(), Ok(Read::Value(read)) if read == value));
        }
        assert!(matches!(content.value(), Ok(Read::Reference(read)) if read == reference));
        assert!(matches!(content.value(), Ok(Read::Apart(Element::Short, 70_000))));
        assert!(content.bytes.is_empty());
        for end in 1..bytes.len() {
            assert!(read(&bytes[..end]).is_err(), "{end} bytes");
        }
        assert_eq!(frames(&[&bytes[..], &bytes[..]].concat()), [bytes.clone(), bytes]);
    }

    #[test]
    fn random_bytes_are_an_error_or_frames_without_a_panic() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut frames = 0;
        for _ in 0..20_000 {
            let mut content: Vec<u8> = (0..random.usize(1..40)).map(|_| random.u8(..5)).collect();
            content[0] = random.u8(1..21);
            let mut bytes = (content.len() as u32).to_le_bytes().to_vec();
            bytes.extend(content);
            frames += read(&bytes).map_or(0, |kinds| kinds.len());
        }
        assert!(frames > 100);
    }
}
