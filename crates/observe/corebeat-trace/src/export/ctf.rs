//! The Common Trace Format 1.8, which babeltrace2 and Trace Compass read.
//!
//! The export is a folder with `metadata`, a text in TSDL, and one file of packets per thread. All
//! data is byte-aligned and little-endian.

use crate::error::Error;
use crate::event::Type;
use crate::reader::{Ending, Packet, Process, ReadField, ReadKind, Reader, Thread, Value};
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::Path;
use std::sync::Arc;

const MAGIC: u32 = 0xc1fc_1fc1;
const BITS: u64 = 8;
/// Writes a trace into a folder, which must be new or empty; its parent must exist. Times are
/// nanoseconds of `CLOCK_MONOTONIC`, with the offset to real time. Lost events are written as
/// discarded events.
///
/// # Errors
///
/// The trace cannot be read, or the folder cannot be written.
pub fn write_ctf(reader: &mut Reader<impl Read>, folder: impl AsRef<Path>) -> Result<(), Error> {
    let folder = folder.as_ref();
    let failed = |source| Error::File { path: folder.into(), source };
    match fs::create_dir(folder) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
        made => made.map_err(failed)?,
    }
    if fs::read_dir(folder).map_err(failed)?.next().is_some() {
        return Err(Error::NotEmpty { path: folder.into() });
    }
    let mut streams = BTreeMap::<u32, Stream>::new();
    let mut real_offset_ns = None;
    while let Some(packet) = reader.next_packet()? {
        real_offset_ns.get_or_insert(packet.real_offset_ns());
        let stream = streams.entry(packet.thread().stream).or_default();
        stream.thread = packet.thread().clone();
        stream.write(folder, Some(&packet), packet.lost())?;
    }
    if let Some(Ending::Complete { lost, .. }) = reader.ending() {
        for (stream, lost) in lost {
            if let Some(stream) = streams.get_mut(stream)
                && *lost > stream.lost
            {
                stream.write(folder, None, *lost)?;
            }
        }
    }
    let metadata = metadata(reader.process(), reader.kinds(), real_offset_ns.unwrap_or(0));
    let path = folder.join("metadata");
    fs::write(&path, metadata).map_err(|source| Error::File { path, source })
}

/// The file of a stream. It is opened for each packet, because a trace can have more streams than
/// the process may have open files.
#[derive(Default)]
struct Stream {
    thread: Arc<Thread>,
    /// Time of the last event; times never decrease within a stream.
    last_ns: u64,
    lost: u64,
    bytes: Vec<u8>,
}

impl Stream {
    fn write(&mut self, folder: &Path, packet: Option<&Packet>, lost: u64) -> Result<(), Error> {
        let (begin_ns, end_ns) = packet.map_or((self.last_ns, self.last_ns), Packet::span_ns);
        let begin_ns = begin_ns.max(self.last_ns);
        self.last_ns = begin_ns;
        self.lost = self.lost.max(lost);
        let bytes = &mut self.bytes;
        bytes.clear();
        bytes.extend(MAGIC.to_le_bytes());
        bytes.extend(0u32.to_le_bytes());
        let times_at = bytes.len();
        bytes.extend([0; 32]);
        bytes.extend(self.lost.to_le_bytes());
        bytes.extend(self.thread.stream.to_le_bytes());
        bytes.extend(self.thread.tid.to_le_bytes());
        put_text(bytes, &self.thread.name);
        for event in packet.iter().flat_map(|packet| packet.events()) {
            self.last_ns = self.last_ns.max(event.time_ns());
            bytes.extend(event.kind().number().to_le_bytes());
            bytes.extend(self.last_ns.to_le_bytes());
            for (field, value) in event.fields() {
                put(bytes, field.of, value);
            }
        }
        self.last_ns = self.last_ns.max(end_ns);
        let bits = bytes.len() as u64 * BITS;
        for (index, number) in [begin_ns, self.last_ns, bits, bits].into_iter().enumerate() {
            bytes[times_at + 8 * index..][..8].copy_from_slice(&number.to_le_bytes());
        }
        let path = folder.join(format!("stream_{}", self.thread.stream));
        let written = File::options()
            .create(true)
            .append(true)
            .open(&path)
            .and_then(|mut f| f.write_all(bytes));
        written.map_err(|source| Error::File { path, source })
    }
}

fn put(bytes: &mut Vec<u8>, of: Type, value: Value<'_>) {
    let number = match value {
        Value::Text(text) => return put_text(bytes, text),
        Value::U64(value) => value,
        Value::I64(value) => value as u64,
        Value::F32(value) => value.to_bits().into(),
        Value::F64(value) => value.to_bits(),
        Value::Bool(value) => value.into(),
    };
    bytes.extend(&number.to_le_bytes()[..of.bytes().unwrap_or(0)]);
}

/// Writes a text, which ends with a zero byte. A text that contains a zero byte ends there.
fn put_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend(text.bytes().take_while(|b| *b != 0));
    bytes.push(0);
}

fn metadata(process: &Process, kinds: &[ReadKind], real_offset_ns: i64) -> String {
    let mut text = format!("/* CTF 1.8 */\n{}", types());
    let real_offset_ns = real_offset_ns.max(0);
    let (offset_s, offset) = (real_offset_ns / 1_000_000_000, real_offset_ns % 1_000_000_000);
    let program = Literal(&process.program);
    let pid = process.pid;
    // Writing into a String cannot fail.
    let _ = write!(
        text,
        r#"trace {{
    major = 1;
    minor = 8;
    byte_order = le;
    packet.header := struct {{ uint32_t magic; uint32_t stream_id; }};
}};
env {{
    tracer_name = "corebeat-trace";
    procname = {program};
    vpid = {pid};
}};
clock {{
    name = monotonic;
    description = "CLOCK_MONOTONIC";
    freq = 1000000000;
    offset_s = {offset_s};
    offset = {offset};
}};
typealias integer {{ size = 64; align = 8; signed = false; map = clock.monotonic.value; }}
    := time_t;
stream {{
    id = 0;
    packet.context := struct {{
        time_t timestamp_begin;
        time_t timestamp_end;
        uint64_t content_size;
        uint64_t packet_size;
        uint64_t events_discarded;
        uint32_t _stream;
        uint32_t _tid;
        string _thread;
    }};
    event.header := struct {{ uint16_t id; time_t timestamp; }};
}};
"#
    );
    for kind in kinds {
        let _ = writeln!(
            text,
            "event {{\n    name = {};\n    id = {};",
            Literal(kind.name()),
            kind.number()
        );
        let _ = writeln!(text, "    stream_id = 0;\n    fields := struct {{");
        let mut taken = Vec::<String>::new();
        for field in kind.fields() {
            // Readers remove the underscore. It keeps names from colliding with keywords.
            let mut name = format!("_{}", identifier(&field.name));
            while taken.contains(&name) {
                name.push('_');
            }
            let _ = writeln!(text, "        {} {name};", type_name(field));
            taken.push(name);
        }
        text.push_str("    };\n};\n");
    }
    text
}

fn identifier(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

/// The declarations of the types of fields.
fn types() -> String {
    let mut text = String::new();
    for bits in [8, 16, 32, 64] {
        for (prefix, signed, base) in [("u", false, 10), ("", true, 10), ("x", false, 16)] {
            let _ = writeln!(
                text,
                "typealias integer {{ size = {bits}; align = 8; signed = {signed}; base = {base}; }} \
                 := {prefix}int{bits}_t;"
            );
        }
    }
    for (name, exponent, mantissa) in [("float", 8, 24), ("double", 11, 53)] {
        let _ = writeln!(
            text,
            "typealias floating_point {{ exp_dig = {exponent}; mant_dig = {mantissa}; align = 8; }} \
             := {name};"
        );
    }
    text
}

fn type_name(field: &ReadField) -> String {
    let prefix = match field.of {
        Type::F32 => return "float".into(),
        Type::F64 => return "double".into(),
        Type::Text => return "string".into(),
        _ if field.hex => "x",
        Type::I8 | Type::I16 | Type::I32 | Type::I64 => "",
        Type::U8 | Type::U16 | Type::U32 | Type::U64 | Type::Bool => "u",
    };
    format!("{prefix}int{}_t", 8 * field.of.bytes().unwrap_or(0))
}

/// A quoted text of TSDL.
struct Literal<'a>(&'a str);

impl fmt::Display for Literal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                c if c.is_control() => f.write_char('?')?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}
