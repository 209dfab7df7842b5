//! Extracts a part of a trace.

use crate::counter::Fix;
use crate::error::Error;
use crate::event::EVENT_BYTES_MAX;
use crate::packet::{self, Bytes, Codec, Content, HEADER_BYTES, RAW_BYTES_MAX, Span};
use crate::reader::{Applied, Ending, Packet, Reader};
use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;

/// A part of a trace, which is a trace itself: the packets that overlap a time span, of some
/// threads. Packets are kept whole, so the part may contain some events from before and after the
/// span.
///
/// Events of `kept` kinds are included from everywhere, because all later events depend on them.
/// Those from outside the span are placed at its begin or its end. The number of lost events covers
/// the time from the first packet to the one after the last. Lost events of threads without a
/// stream are all included, because the time of their loss is unknown.
pub struct Cut<R> {
    input: R,
    selection: Selection,
}

/// The selection.
struct Selection {
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    time_ns: Range<u64>,
    streams: Vec<u32>,
    /// Begin of the first packet, and end of the last one.
    begin: Fix,
    end: Fix,
    lost: BTreeMap<u32, Lost>,
}

/// Lost events of a stream, counted from the begin of the trace.
#[derive(Default)]
struct Lost {
    /// Up to the first selected packet, if there is one.
    before: Option<u64>,
    /// Up to the packet after the last selected one, if there is one.
    until: Option<u64>,
}

impl<R: Read + Seek> Cut<R> {
    /// Selects a span in nanoseconds from the begin of the trace, and these streams; no streams
    /// select all.
    ///
    /// # Errors
    ///
    /// The input cannot be read, is not a trace, or has no such packets
    /// ([`Error::EmptySelection`]).
    pub fn new(mut input: R, since_ns: Range<u64>, streams: &[u32]) -> Result<Cut<R>, Error> {
        let mut spans = Vec::new();
        let mut reader = Reader::new(&mut input)?;
        reader.survey(|_, stream, span| spans.push((stream, span))).map_err(Error::Read)?;
        let begin_ns = spans.iter().map(|(_, span)| span.begin.monotonic_ns).min().unwrap_or(0);
        let end_ns = spans.iter().map(|(_, span)| span.end.monotonic_ns).max().unwrap_or(begin_ns);
        let time_ns =
            begin_ns.saturating_add(since_ns.start)..begin_ns.saturating_add(since_ns.end);
        let mut selection = Selection {
            time_ns,
            streams: streams.to_vec(),
            begin: Fix::default(),
            end: Fix::default(),
            lost: BTreeMap::new(),
        };
        let kept = || {
            spans.iter().filter(|(stream, span)| selection.has(*stream, span)).map(|(_, span)| span)
        };
        let begin = kept().map(|span| span.begin).min_by_key(|fix| fix.monotonic_ns);
        let end = kept().map(|span| span.end).max_by_key(|fix| fix.monotonic_ns);
        let (Some(begin), Some(end)) = (begin, end) else {
            return Err(Error::EmptySelection { length_ns: end_ns.saturating_sub(begin_ns) });
        };
        (selection.begin, selection.end) = (begin, end);
        for (stream, span) in &spans {
            let is_kept = selection.has(*stream, span);
            let lost = selection.lost.entry(*stream).or_default();
            if is_kept {
                lost.before.get_or_insert(span.lost);
                lost.until = None;
            } else if lost.before.is_some() {
                lost.until.get_or_insert(span.lost);
            }
        }
        Ok(Cut { input, selection })
    }

    /// Writes the part. Returns its number of packets, and the state of the end of the whole trace.
    ///
    /// # Errors
    ///
    /// The input cannot be read, or the output cannot be written.
    pub fn write(self, mut out: impl Write) -> Result<(u64, Ending), Error> {
        let Cut { mut input, selection } = self;
        input.seek(SeekFrom::Start(0)).map_err(Error::Read)?;
        let mut reader = Reader::new(input)?;
        let (mut packets, mut text) = (0, packet::file_header().to_vec());
        let ending = loop {
            out.write_all(&text).map_err(Error::Write)?;
            text.clear();
            let header = match reader.read_whole().map_err(Error::Read)? {
                Ok(header) => header,
                Err(ending) => break ending,
            };
            let whole = reader.whole().to_vec();
            let mut bytes = Bytes(&whole[HEADER_BYTES..]);
            if let (Content::Events, Some(mut span)) = (header.content, Span::read(&mut bytes))
                && selection.has(header.stream, &span)
            {
                let before = selection.lost.get(&header.stream).and_then(|lost| lost.before);
                span.lost = span.lost.saturating_sub(before.unwrap_or(0));
                let (codec, stream, raw_bytes) = (header.codec, header.stream, header.raw_bytes);
                packet::write(
                    &mut text,
                    Content::Events,
                    codec,
                    stream,
                    raw_bytes,
                    Some(&span),
                    bytes.0,
                );
                packets += 1;
                continue;
            }
            match reader.apply_whole(header) {
                Ok(Applied::Events(packet)) => selection.write_kept(&mut text, &packet),
                Ok(Applied::Other) => text.extend(&whole),
                Ok(Applied::End(all)) => {
                    let lost =
                        all.iter().map(|(stream, lost)| (*stream, selection.lost(*stream, *lost)));
                    let lost: BTreeMap<_, _> = lost.filter(|(_, lost)| *lost > 0).collect();
                    packet::write_end(&mut text, &lost);
                    out.write_all(&text).map_err(Error::Write)?;
                    break reader.complete(lost).map_err(Error::Read)?;
                }
                Err(why) => {
                    break Ending::Damaged { at_byte: reader.at_byte() - whole.len() as u64, why };
                }
            }
        };
        out.flush().map_err(Error::Write)?;
        Ok((packets, ending))
    }
}

impl Selection {
    fn has(&self, stream: u32, span: &Span) -> bool {
        let is_selected = self.streams.is_empty() || self.streams.contains(&stream);
        let (begin_ns, end_ns) = (span.begin.monotonic_ns, span.end.monotonic_ns);
        is_selected && end_ns >= self.time_ns.start && begin_ns < self.time_ns.end
    }

    /// Events of a stream that the part has lost; `lost` is the number for the whole trace.
    fn lost(&self, stream: u32, lost: u64) -> u64 {
        match self.lost.get(&stream) {
            _ if stream == u32::MAX => lost,
            Some(Lost { before: Some(before), until }) => {
                until.unwrap_or(lost).saturating_sub(*before)
            }
            _ => 0,
        }
    }

    /// Writes the kept events of a packet that is not selected.
    fn write_kept(&self, to: &mut Vec<u8>, packet: &Packet) {
        let stream = packet.thread().stream;
        let is_before = packet.span_ns().1 < self.time_ns.start;
        let fix = if is_before { self.begin } else { self.end };
        let lost = if is_before { 0 } else { self.lost(stream, packet.lost()) };
        let span = Span { begin: fix, end: fix, real_offset_ns: packet.real_offset_ns(), lost };
        let mut events: Vec<u8> = Vec::new();
        let mut put = |events: &mut Vec<u8>| {
            let bytes = events.len() as u32;
            if bytes > 0 {
                packet::write(
                    to,
                    Content::Events,
                    Codec::Plain,
                    stream,
                    bytes,
                    Some(&span),
                    events,
                );
            }
            events.clear();
        };
        for (kind, fields) in packet.kept() {
            events.extend(kind.to_le_bytes());
            events.extend(fields);
            // Events that were stored in runs take more bytes individually.
            if events.len() > RAW_BYTES_MAX - EVENT_BYTES_MAX {
                put(&mut events);
            }
        }
        put(&mut events);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reader::Value;
    use std::io::Cursor;

    fn put(to: &mut Vec<u8>, content: Content, stream: u32, span: Option<&Span>, payload: &[u8]) {
        packet::write(to, content, Codec::Plain, stream, payload.len() as u32, span, payload);
    }

    /// Two threads emit a step each second; the first one also emits a kept event at times.
    fn trace() -> Vec<u8> {
        let mut bytes = packet::file_header().to_vec();
        for (number, flags, name) in [(1u8, 0, "step"), (2, 2, "name")] {
            let mut kind = vec![number, 0, flags];
            packet::write_text(&mut kind, name);
            kind.extend([1, 2, 0]);
            packet::write_text(&mut kind, "n");
            put(&mut bytes, Content::Kinds, 0, None, &kind);
        }
        for stream in [0, 1] {
            put(&mut bytes, Content::Thread, stream, None, &[0; 5]);
        }
        let fix = |second: u64| {
            let ns = 1_000_000_000 * (100 + second);
            Fix { counter: ns, monotonic_ns: ns, window: 0, cpu: 0 }
        };
        // The number of lost events up to each second.
        for (second, lost) in [(0, 0), (1, 3), (2, 10), (3, 10), (4, 15)] {
            for stream in [0, 1] {
                let span =
                    Span { begin: fix(second), end: fix(second + 1), real_offset_ns: 0, lost };
                let mut events = vec![1, 0, second as u8, 0, 0, 0];
                if stream == 0 && second % 4 == 0 {
                    events.extend([2, 0, 70 + second as u8, 0, 0, 0]);
                }
                put(&mut bytes, Content::Events, stream, Some(&span), &events);
            }
        }
        packet::write_end(&mut bytes, &BTreeMap::from([(0, 20), (1, 16), (u32::MAX, 2)]));
        bytes
    }

    /// Name, stream and number of an event.
    type Summarised = (String, u32, u64);

    /// The events of a part, and its numbers of lost events.
    fn part(since_s: Range<f64>, streams: &[u32]) -> (Vec<Summarised>, BTreeMap<u32, u64>) {
        let since_ns = (since_s.start * 1e9) as u64..(since_s.end * 1e9) as u64;
        let mut part = Vec::new();
        let cut = Cut::new(Cursor::new(trace()), since_ns, streams).unwrap();
        let (packets, ending) = cut.write(&mut part).unwrap();
        let mut reader = Reader::new(&part[..]).unwrap();
        let (mut events, mut whole) = (Vec::new(), 0);
        while let Some(packet) = reader.next_packet().unwrap() {
            whole += u64::from(packet.events().any(|event| event.kind().name() == "step"));
            events.extend(packet.events().map(|event| {
                let Some(Value::U64(n)) = event.value("n") else { panic!("{event:?}") };
                (event.kind().name().to_owned(), event.thread().stream, n)
            }));
        }
        assert_eq!(packets, whole);
        assert_eq!(reader.ending(), Some(&ending));
        let Ending::Complete { lost, more_at_byte: None } = ending else { panic!("{ending}") };
        (events, lost)
    }

    fn event(kind: &str, stream: u32, n: u64) -> Summarised {
        (kind.into(), stream, n)
    }

    #[test]
    fn part_has_kept_events_and_its_own_losses() {
        let (events, lost) = part(1.5..2.5, &[]);
        let steps = [(0, 1), (1, 1), (0, 2), (1, 2)].map(|(stream, n)| event("step", stream, n));
        assert_eq!(events, [&[event("name", 0, 70)], &steps[..], &[event("name", 0, 74)]].concat());
        // 3 events were lost before the part, and 10 up to the packet after it.
        assert_eq!(lost, BTreeMap::from([(0, 7), (1, 7), (u32::MAX, 2)]));
    }

    #[test]
    fn part_of_one_thread_has_kept_events_of_others() {
        let (events, lost) = part(3.5..1e9, &[1]);
        let names = [event("name", 0, 70), event("name", 0, 74)];
        assert_eq!(
            events,
            [&names[..1], &[event("step", 1, 3)], &names[1..], &[event("step", 1, 4)]].concat()
        );
        assert_eq!(lost, BTreeMap::from([(1, 6), (u32::MAX, 2)]));
    }

    #[test]
    fn part_with_everything_is_the_trace() {
        let (events, lost) = part(0.0..1e9, &[]);
        assert_eq!(events.len(), 12);
        assert_eq!(lost, BTreeMap::from([(0, 20), (1, 16), (u32::MAX, 2)]));
    }

    #[test]
    fn number_of_lost_events_saturates() {
        let lost = BTreeMap::from([(0, u64::MAX), (1, 1)]);
        let ending = Ending::Complete { lost, more_at_byte: None };
        assert_eq!(ending.to_string(), format!("complete, with {} lost events", u64::MAX));
    }

    #[test]
    fn selection_outside_the_trace_is_an_error() {
        let cut = Cut::new(Cursor::new(trace()), u64::MAX..u64::MAX, &[]);
        assert!(matches!(cut.map(|_| ()), Err(Error::EmptySelection { length_ns: 5_000_000_000 })));
    }
}
