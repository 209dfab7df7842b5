//! The file format: a header, then packets. All numbers are little-endian.
//!
//! ```text
//!   file     MAGIC, VERSION u32, 0 u32, packets
//!   packet   header, [span], payload
//!   header   MAGIC u32, content u8, codec u8, 0 u16, stream u32, stored bytes u32, raw bytes u32,
//!            CRC-32 u32
//!   span     only before events: begin fix, end fix, realtime - monotonic in ns i64, lost u64
//!   fix      counter u64, monotonic in ns u64, window in ticks u32, cpu u32
//! ```
//!
//! Codec 0 is none, 1 an LZ4 block, 2 a zstd frame. The checksum covers the preceding part of the
//! header, the span, and the payload as stored. `stored` is the size of the payload in the file,
//! `raw` its size before compression; only events are compressed. `lost` is the number of lost
//! events of this stream up to this packet. A packet may have no events but only this number.
//!
//! ```text
//!   content 0, process   pid u32, counter's name, program: texts
//!           1, kinds     for each: number u16, flags u8 (1: timed, 2: kept by cuts), name,
//!                        number of fields u8, for each field: type u8, flags u8 (1: hex), name
//!           2, thread    of the stream: tid u32, name
//!           3, events    of the stream
//!           4, end       for each stream that lost events: stream u32, lost u64
//!   text                 length u8, UTF-8
//!
//!   a timed event        kind: 10 bits | ticks: 22 bits since the last event or fix |  fields
//!   an untimed event     kind: 10 bits | 0: 6 bits |  fields
//!   a run of events      kind: 10 bits | others: 4 bits | width: 2 bits | first u32 | offsets
//!    with one u32 field
//!   a fix between events 0: 16 bits |  fix
//! ```
//!
//! A run stores 2 to 16 consecutive events: the field of the first one, and the offsets of the
//! others from it, modulo 2 to the 32. The offsets are signed. All offsets of a run are 1, 2 or 4
//! bytes wide, for a width of 1, 2 or 3.

use crate::counter::Fix;
use std::collections::BTreeMap;

pub(crate) const FILE_MAGIC: [u8; 8] = *b"\x89cbtrace";
pub(crate) const VERSION: u32 = 3;
pub(crate) const FILE_HEADER_BYTES: usize = 16;

pub(crate) const MAGIC: u32 = u32::from_le_bytes(*b"cbpk");
pub(crate) const HEADER_BYTES: usize = 24;
pub(crate) const SPAN_BYTES: usize = 2 * FIX_BYTES + 16;
pub(crate) const FIX_BYTES: usize = 24;
/// Position of the checksum in the header.
const CHECKSUM_AT: usize = 20;

/// Number of bits in an event's first two bytes that contain its kind.
pub(crate) const KIND_BITS: u32 = 10;
/// Largest number of ticks between two events; a larger distance requires a fix.
pub(crate) const TICKS_MAX: u64 = (1 << (32 - KIND_BITS)) - 1;
/// Bytes of an event before its fields.
pub(crate) const TIMED_BYTES: usize = 4;
pub(crate) const UNTIMED_BYTES: usize = 2;
/// Limit on the number of events in a run.
pub(crate) const RUN_EVENTS: usize = 16;
/// Limit on the bytes of a run.
pub(crate) const RUN_BYTES_MAX: usize = UNTIMED_BYTES + 4 * RUN_EVENTS;
/// Position of the width in the head of a run, after the number of other events.
pub(crate) const WIDTH_SHIFT: u32 = KIND_BITS + 4;
/// Bytes of a fix between events.
pub(crate) const FIX_EVENT_BYTES: usize = UNTIMED_BYTES + FIX_BYTES;

/// Limit on the bytes of a payload before compression.
pub(crate) const RAW_BYTES_MAX: usize = 1 << 20;
/// The contents of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    Process,
    Kinds,
    Thread,
    Events,
    End,
}

impl Content {
    const ALL: [Content; 5] =
        [Content::Process, Content::Kinds, Content::Thread, Content::Events, Content::End];
}

/// The encoding of a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Codec {
    Plain,
    /// An LZ4 block.
    Lz4,
    /// A zstd frame.
    Zstd,
}

impl Codec {
    const ALL: [Codec; 3] = [Codec::Plain, Codec::Lz4, Codec::Zstd];
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) content: Content,
    pub(crate) codec: Codec,
    pub(crate) stream: u32,
    pub(crate) stored_bytes: u32,
    pub(crate) raw_bytes: u32,
}

/// The time span of the events of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Span {
    pub(crate) begin: Fix,
    pub(crate) end: Fix,
    pub(crate) real_offset_ns: i64,
    pub(crate) lost: u64,
}

/// The header of a file.
pub(crate) fn file_header() -> [u8; FILE_HEADER_BYTES] {
    let mut bytes = [0; FILE_HEADER_BYTES];
    bytes[..FILE_MAGIC.len()].copy_from_slice(&FILE_MAGIC);
    bytes[FILE_MAGIC.len()..][..4].copy_from_slice(&VERSION.to_le_bytes());
    bytes
}

/// Appends a packet.
pub(crate) fn write(
    to: &mut Vec<u8>,
    content: Content,
    codec: Codec,
    stream: u32,
    raw_bytes: u32,
    span: Option<&Span>,
    stored: &[u8],
) {
    let start = to.len();
    to.extend(MAGIC.to_le_bytes());
    to.extend([content as u8, codec as u8, 0, 0]);
    for number in [stream, stored.len() as u32, raw_bytes, 0] {
        to.extend(number.to_le_bytes());
    }
    if let Some(span) = span {
        to.extend(fix_bytes(&span.begin));
        to.extend(fix_bytes(&span.end));
        to.extend(span.real_offset_ns.to_le_bytes());
        to.extend(span.lost.to_le_bytes());
    }
    to.extend(stored);
    let checksum = checksum(&to[start..]);
    to[start + CHECKSUM_AT..start + HEADER_BYTES].copy_from_slice(&checksum.to_le_bytes());
}

/// Appends the last packet, with the number of lost events by stream.
pub(crate) fn write_end(to: &mut Vec<u8>, lost: &BTreeMap<u32, u64>) {
    let mut payload = Vec::new();
    for (stream, lost) in lost {
        payload.extend(stream.to_le_bytes());
        payload.extend(lost.to_le_bytes());
    }
    write(to, Content::End, Codec::Plain, 0, payload.len() as u32, None, &payload);
}

/// The checksum of a packet, without the checksum field.
fn checksum(packet: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&packet[..CHECKSUM_AT]);
    hasher.update(&packet[HEADER_BYTES..]);
    hasher.finalize()
}

/// A fix as it is stored in files.
pub(crate) fn fix_bytes(fix: &Fix) -> [u8; FIX_BYTES] {
    let mut bytes = [0; FIX_BYTES];
    bytes[..8].copy_from_slice(&fix.counter.to_le_bytes());
    bytes[8..16].copy_from_slice(&fix.monotonic_ns.to_le_bytes());
    bytes[16..20].copy_from_slice(&fix.window.to_le_bytes());
    bytes[20..].copy_from_slice(&fix.cpu.to_le_bytes());
    bytes
}

/// A fix between events.
pub(crate) fn fix_event(fix: &Fix) -> [u8; FIX_EVENT_BYTES] {
    let mut bytes = [0; FIX_EVENT_BYTES];
    bytes[UNTIMED_BYTES..].copy_from_slice(&fix_bytes(fix));
    bytes
}

/// Appends a text, truncated to its limit.
pub(crate) fn write_text(to: &mut Vec<u8>, text: &str) {
    let text = crate::event::cut(text);
    to.push(text.len() as u8);
    to.extend(text.as_bytes());
}

impl Header {
    /// Reads a header. The caller verifies the checksum.
    ///
    /// # Errors
    ///
    /// The reason why the header is invalid.
    pub(crate) fn read(bytes: &[u8]) -> Result<Header, &'static str> {
        let mut bytes = Bytes(bytes);
        if bytes.u32() != Some(MAGIC) {
            return Err("no packet begins here");
        }
        let content = bytes.u8().and_then(|c| Content::ALL.get(usize::from(c)));
        let codec = bytes.u8().and_then(|c| Codec::ALL.get(usize::from(c)));
        if bytes.u16() != Some(0) {
            return Err("the reserved field of a packet header is not 0");
        }
        let header = Header {
            content: *content.ok_or("a packet has unknown content")?,
            codec: *codec.ok_or("a packet has an unknown codec")?,
            stream: bytes.u32().unwrap_or(0),
            stored_bytes: bytes.u32().unwrap_or(0),
            raw_bytes: bytes.u32().unwrap_or(0),
        };
        if header.stored_bytes > header.raw_bytes || header.raw_bytes as usize > RAW_BYTES_MAX {
            return Err("a packet exceeds the size limit");
        }
        if header.content != Content::Events
            && (header.codec != Codec::Plain || header.stored_bytes != header.raw_bytes)
        {
            return Err("a packet that is not events is compressed");
        }
        Ok(header)
    }

    /// Size of the span after the header.
    pub(crate) fn span_bytes(&self) -> usize {
        if self.content == Content::Events { SPAN_BYTES } else { 0 }
    }
}

/// Whether the checksum of a packet is correct.
pub(crate) fn is_whole(packet: &[u8]) -> bool {
    packet.len() >= HEADER_BYTES
        && packet[CHECKSUM_AT..HEADER_BYTES] == checksum(packet).to_le_bytes()
}

impl Span {
    pub(crate) fn read(bytes: &mut Bytes<'_>) -> Option<Span> {
        Some(Span {
            begin: Fix::read(bytes)?,
            end: Fix::read(bytes)?,
            real_offset_ns: bytes.u64()? as i64,
            lost: bytes.u64()?,
        })
    }
}

impl Fix {
    pub(crate) fn read(bytes: &mut Bytes<'_>) -> Option<Fix> {
        Some(Fix {
            counter: bytes.u64()?,
            monotonic_ns: bytes.u64()?,
            window: bytes.u32()?,
            cpu: bytes.u32()?,
        })
    }
}

/// Decodes bytes. Methods return `None` if too few bytes are left.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl<'a> Bytes<'a> {
    pub(crate) fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn text(&mut self) -> Option<&'a str> {
        let bytes = usize::from(self.u8()?);
        std::str::from_utf8(self.take(bytes)?).ok()
    }
}
