//! Calls as slices, for Perfetto.

use crate::call::{Call, Calls, Line, Outcome};
use crate::error::Error;
use corebeat_trace::{Chrome, Reader, Track};
use std::collections::BTreeMap;
use std::io::{Read, Write};

/// Tasks have tracks of numbers from here on, which no thread has.
const TASK_TRACKS: u32 = 1 << 23;

/// Writes a trace in the Trace Event Format of Chrome's, as one JSON object: what Perfetto (ui.perfetto.dev) opens. Calls are slices
/// of their thread, or of their task, which has a track of its own; what was handed over and what is asynchronous are slices by
/// themselves. All other events are instants of their threads.
///
/// # Errors
///
/// It cannot be read, or not be written.
pub fn write(calls: &Calls, trace: &mut Reader<impl Read>, out: impl Write) -> Result<(), Error> {
    let mut chrome = Chrome::new(out)?;
    chrome.events(trace, |kind| !kind.name().starts_with("probe."))?;
    let tasks = calls.calls().iter().filter_map(|call| match call.line {
        Line::Task(task) => Some((task, 0)),
        _ => None,
    });
    let mut tasks: BTreeMap<u64, u32> = tasks.collect();
    for ((task, track), number) in tasks.iter_mut().zip(TASK_TRACKS..) {
        *track = number;
        chrome.name(number, &format!("task {task}"))?;
    }
    let track = |call: &Call| match call.line {
        Line::Thread(stream) => Track::Thread(calls.thread(stream).0),
        Line::Task(task) => Track::Thread(tasks.get(&task).copied().unwrap_or(TASK_TRACKS)),
        Line::Handed(line) => Track::Line(line),
    };
    for run in calls.runs() {
        for (number, enters) in calls.steps(&run) {
            let call = &calls.calls()[number as usize];
            let name = &calls.operation(call).name;
            if enters {
                chrome.begin(track(call), call.begin_ns, name)?;
                continue;
            }
            let remark = match call.outcome {
                Outcome::Returned => "",
                Outcome::Panicked => "panicked",
                Outcome::Open => "open at the end of the trace",
                Outcome::Torn => "events were lost",
            };
            chrome.end(track(call), call.end_ns, name, remark)?;
        }
    }
    Ok(chrome.finish()?)
}
