//! `corebeat trace info`: process, time, threads and kinds of events of a trace.

use super::{Input, time};
use corebeat_command::{Done, print};
use corebeat_trace::Type;
use std::fmt::Write;

pub(super) fn main(input: &Input) -> Done {
    let timeline = input.timeline()?;
    let process = timeline.process();
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(text, "process   {} {:?}", process.pid, process.program);
    if let Some((begin, end)) = timeline.span_ns() {
        let _ = writeln!(text, "time      {}", time(end.saturating_sub(begin)));
    }
    let hz = timeline.counter_hz().map_or(String::new(), |hz| format!(", {:.1} MHz", hz / 1e6));
    let spread = time(timeline.spread_ns());
    let _ =
        writeln!(text, "counter   {:?}{hz}; core clocks differ by up to {spread}", process.counter);
    let _ = writeln!(text, "ending    {}", timeline.ending());
    let _ = writeln!(text, "threads   {}", timeline.threads().count());
    for thread in timeline.threads() {
        let _ = writeln!(text, "  {:>5}   tid {} {:?}", thread.stream, thread.tid, thread.name);
    }
    let _ = writeln!(text, "kinds     {}", timeline.kinds().len());
    for kind in timeline.kinds() {
        let fields = kind.fields().iter().map(|f| {
            let hex = if f.hex { ", hex" } else { "" };
            format!("{}: {}{hex}", f.name.escape_debug(), name(f.of))
        });
        let fields: Vec<_> = fields.collect();
        let order = if kind.is_timed() { "" } else { " untimed" };
        let _ = writeln!(
            text,
            "  {:>5}   {} ({}){order}",
            kind.number(),
            kind.name().escape_debug(),
            fields.join("; ")
        );
    }
    print(text)?;
    input.ended(timeline.ending())
}

fn name(of: Type) -> String {
    format!("{of:?}").to_lowercase()
}
