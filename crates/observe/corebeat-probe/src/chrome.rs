//! Calls as slices, for Perfetto.

use crate::call::{Call, Calls, Line};
use crate::error::Error;
use corebeat_chrome::{ChromeWriter, Track};
use corebeat_trace::{Error as TraceError, Reader, write_chrome_events};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};

/// Number of the first track of tasks. Thread IDs are smaller.
const TASK_TRACKS: u32 = 1 << 23;

/// Writes a trace in Chrome's Trace Event Format, as one JSON object, which Perfetto
/// (ui.perfetto.dev) opens. Calls are slices of their thread or of their task; each task has a
/// track with its name ([`name_task`](crate::name_task)). Handed-over and asynchronous calls are
/// asynchronous slices. All other events are instants of their threads.
///
/// # Errors
///
/// The trace cannot be read, or the output cannot be written.
pub fn write(calls: &Calls, trace: &mut Reader<impl Read>, out: impl Write) -> Result<(), Error> {
    let mut writer = ChromeWriter::new(out).map_err(TraceError::Write)?;
    write_chrome_events(trace, &mut writer, |kind| !kind.name().starts_with("probe."))?;
    write_calls(calls, &mut writer).map_err(TraceError::Write)?;
    writer.finish().map_err(TraceError::Write)?;
    Ok(())
}

/// Writes the calls as slices.
fn write_calls(calls: &Calls, writer: &mut ChromeWriter<impl Write>) -> io::Result<()> {
    let tasks = calls.calls().iter().filter_map(|call| match call.line {
        Line::Task(task) => Some((task, 0)),
        _ => None,
    });
    let mut tasks: BTreeMap<u64, u32> = tasks.collect();
    for ((task, track), number) in tasks.iter_mut().zip(TASK_TRACKS..) {
        *track = number;
        let name = match calls.task_name(*task) {
            Some(name) => format!("{name} (task {task})"),
            None => format!("task {task}"),
        };
        writer.track_name(number, &name)?;
    }
    let track = |call: &Call| match call.line {
        Line::Thread(stream) => Track::Thread(calls.thread(stream).0),
        Line::Task(task) => Track::Thread(tasks.get(&task).copied().unwrap_or(TASK_TRACKS)),
        Line::HandedOver(line) => Track::Async(line),
    };
    for run in calls.runs() {
        for (number, enters) in calls.steps(&run) {
            let call = &calls.calls()[number as usize];
            let name = &calls.operation(call).name;
            if enters {
                let fields: BTreeMap<&str, &str> = calls.fields(number).collect();
                let args = (!fields.is_empty()).then_some(fields);
                writer.begin(track(call), call.begin_ns, name, args)?;
                continue;
            }
            writer.end(track(call), call.end_ns, name, call.outcome.remark())?;
        }
    }
    Ok(())
}
