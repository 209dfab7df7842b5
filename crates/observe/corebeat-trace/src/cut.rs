//! A piece of a trace.

use crate::error::Error;
use crate::packet::{self, Bytes, Content, HEADER_BYTES, Span};
use crate::reader::{Ending, Reader};
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;

/// Writes a trace with those packets of another that reach into a time, in nanoseconds from its begin, and are of one of these
/// streams, or of any if none is named. Packets are kept whole, so that there may be some events from before and after. How many
/// there are, and how the other one ended, which is how this one ends.
///
/// # Errors
///
/// It cannot be read, is no trace, or cannot be written.
pub fn cut<R: Read + Seek>(
    mut input: R,
    mut out: impl Write,
    since_ns: Range<u64>,
    streams: &[u32],
) -> Result<(u64, Ending), Error> {
    let mut begin_ns = u64::MAX;
    let survey =
        Reader::new(&mut input)?.survey(|_, _, span| begin_ns = begin_ns.min(span.begin.monotonic_ns));
    survey.map_err(Error::Read)?;
    input.seek(SeekFrom::Start(0)).map_err(Error::Read)?;
    let mut reader = Reader::new(input)?;
    out.write_all(&packet::file_header()).map_err(Error::Write)?;
    let mut kept = 0;
    let ending = loop {
        let header = match reader.read_whole().map_err(Error::Read)? {
            Ok(header) => header,
            Err(ending) => break ending,
        };
        let bytes = reader.whole();
        if header.content == Content::Events {
            let span = Span::read(&mut Bytes(&bytes[HEADER_BYTES..])).unwrap_or_default();
            let begin = span.begin.monotonic_ns.saturating_sub(begin_ns);
            let end = span.end.monotonic_ns.saturating_sub(begin_ns);
            let is_asked_for = streams.is_empty() || streams.contains(&header.stream);
            if !is_asked_for || end < since_ns.start || begin >= since_ns.end {
                continue;
            }
            kept += 1;
        }
        out.write_all(bytes).map_err(Error::Write)?;
        if header.content == Content::End {
            break Ending::Complete { lost: Default::default() };
        }
    };
    out.flush().map_err(Error::Write)?;
    Ok((kept, ending))
}
