//! `corebeat trace stats`: counts events by kind and by thread.

use super::{Input, time};
use corebeat_command::{Done, print};
use corebeat_trace::{Ending, Reader};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Counts of one thread.
#[derive(Default)]
struct ThreadCounts {
    name: String,
    events: u64,
    lost: u64,
    begin_ns: u64,
    end_ns: u64,
}

pub(super) fn main(input: &Input) -> Done {
    let file = input.open()?;
    let file_bytes = file.get_ref().metadata().ok().filter(|m| m.is_file()).map(|m| m.len());
    let mut reader = Reader::new(file).map_err(|e| input.failed(e))?;
    let mut kinds = Vec::<u64>::new();
    let mut threads = BTreeMap::<u32, ThreadCounts>::new();
    let mut event_bytes = 0;
    while let Some(packet) = reader.next_packet().map_err(|e| input.failed(e))? {
        let (begin_ns, end_ns) = packet.span_ns();
        let thread = packet.thread();
        let counts = threads.entry(thread.stream).or_insert_with(|| ThreadCounts {
            name: thread.name.clone(),
            begin_ns,
            ..ThreadCounts::default()
        });
        counts.end_ns = end_ns;
        counts.lost = packet.lost();
        event_bytes += packet.event_bytes() as u64;
        for event in packet.events() {
            let index = usize::from(event.kind().number()) - 1;
            if kinds.len() <= index {
                kinds.resize(index + 1, 0);
            }
            kinds[index] += 1;
            counts.events += 1;
        }
    }
    let ending = reader
        .ending()
        .cloned()
        .unwrap_or(Ending::Complete { lost: BTreeMap::new(), more_at_byte: None });
    if let Ending::Complete { lost, .. } = &ending {
        for (stream, lost) in lost {
            threads.entry(*stream).or_default().lost = *lost;
        }
    }
    let events: u64 = kinds.iter().sum();
    let lost = threads.values().fold(0u64, |all, thread| all.saturating_add(thread.lost));
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(text, "events    {events}, {lost} lost");
    let per_event = |bytes: u64| bytes as f64 / events.max(1) as f64;
    let _ = write!(text, "bytes     {event_bytes} ({:.1} per event)", per_event(event_bytes));
    if let Some(bytes) = file_bytes {
        let _ = write!(text, ", in the file {bytes} ({:.1} per event)", per_event(bytes));
    }
    text.push('\n');
    let _ = writeln!(text, "\n{:>12}  kind", "events");
    for (kind, events) in reader.kinds().iter().zip(&kinds) {
        let _ = writeln!(text, "{events:>12}  {}", kind.name().escape_debug());
    }
    let _ = writeln!(
        text,
        "\n{:>12} {:>10} {:>12} {:>12}  thread",
        "events", "lost", "time", "events/s"
    );
    for (stream, counts) in &threads {
        let ns = counts.end_ns.saturating_sub(counts.begin_ns);
        let rate = counts.events as f64 * 1e9 / ns.max(1) as f64;
        let name = if *stream == u32::MAX { "without a stream" } else { &counts.name };
        let _ = writeln!(
            text,
            "{:>12} {:>10} {:>12} {rate:>12.0}  {stream} {}",
            counts.events,
            counts.lost,
            time(ns),
            name.escape_debug()
        );
    }
    print(text)?;
    input.ended(&ending)
}
