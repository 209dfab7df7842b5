//! Monitoring records as events of a trace.
//!
//! A record is one event or several, of which the last completes it: a dispatch follows the events
//! for its task's name, its streams and its creation. Events have no time stamps of their own,
//! because records contain times.
//!
//! ```text
//!   lpel.monitor  level                                        first event of the trace
//!   lpel.worker   worker                                       first event of each thread
//!   [lpel.name task name]... [lpel.stream ...]... [lpel.created ns] lpel.dispatch ...
//!   [lpel.name task name]... lpel.dispatch_1 or lpel.dispatch_2, with one or two streams
//!   lpel.wait     end_ns, wait_ns, number
//!   lpel.end      end_ns, waits, wait_ns, records              on a thread of the trace of its own
//! ```
//!
//! Most numbers fit into 32 bits. Events named `..._wide` have 64 bits for each number.

use super::{Direction, Dispatch, End, StreamUse, Wait};
use corebeat_trace::{Event, Log, TEXT_BYTES_MAX};

/// The meaning of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    Monitor,
    Worker,
    Name,
    Stream,
    Created,
    Dispatch,
    Wait,
    End,
    /// An event of a later version.
    Unknown,
}

impl Meaning {
    pub(super) fn of(name: &str) -> Meaning {
        match name {
            "lpel.monitor" => Meaning::Monitor,
            "lpel.worker" => Meaning::Worker,
            "lpel.name" => Meaning::Name,
            "lpel.stream" | "lpel.stream_wide" => Meaning::Stream,
            "lpel.created" => Meaning::Created,
            "lpel.dispatch" | "lpel.dispatch_1" | "lpel.dispatch_2" | "lpel.dispatch_wide" => {
                Meaning::Dispatch
            }
            "lpel.wait" => Meaning::Wait,
            "lpel.end" => Meaning::End,
            _ => Meaning::Unknown,
        }
    }
}

/// Level of the monitor.
#[derive(Event)]
#[event(name = "lpel.monitor", untimed, kept)]
pub(super) struct MonitorStart {
    pub(super) level: u8,
}

/// Number of the worker whose records the thread's events are.
#[derive(Event)]
#[event(name = "lpel.worker", untimed, kept)]
pub(super) struct WorkerStart {
    pub(super) worker: u64,
}

/// A part of a task's name, as long as one event can be.
#[derive(Event)]
#[event(name = "lpel.name", untimed, kept)]
struct NamePart<'a> {
    task: u64,
    name: &'a str,
}

#[derive(Event)]
#[event(name = "lpel.stream", untimed)]
struct NarrowStream {
    stream: u32,
    items: u32,
    flags: u8,
}

#[derive(Event)]
#[event(name = "lpel.stream_wide", untimed)]
struct WideStream {
    stream: u64,
    items: u64,
    flags: u8,
}

#[derive(Event)]
#[event(name = "lpel.created", untimed)]
struct Created {
    created_ns: u64,
}

#[derive(Event)]
#[event(name = "lpel.dispatch", untimed)]
struct NarrowDispatch {
    end_ns: u64,
    execution_ns: u32,
    task: u32,
    number: u32,
    status: u8,
    streams: u8,
}

/// A dispatch with one stream, the most frequent record beside the next one.
#[derive(Event)]
#[event(name = "lpel.dispatch_1", untimed)]
struct Dispatch1 {
    end_ns: u64,
    execution_ns: u32,
    task: u32,
    number: u32,
    status: u8,
    streams: u8,
    stream: u32,
    items: u32,
    flags: u8,
}

#[derive(Event)]
#[event(name = "lpel.dispatch_2", untimed)]
struct Dispatch2 {
    end_ns: u64,
    execution_ns: u32,
    task: u32,
    number: u32,
    status: u8,
    streams: u8,
    stream: u32,
    items: u32,
    flags: u8,
    other_stream: u32,
    other_items: u32,
    other_flags: u8,
}

#[derive(Event)]
#[event(name = "lpel.dispatch_wide", untimed)]
struct WideDispatch {
    end_ns: u64,
    execution_ns: u64,
    task: u64,
    number: u64,
    status: u8,
    streams: u64,
}

#[derive(Event)]
#[event(name = "lpel.wait", untimed)]
struct WorkerWait {
    end_ns: u64,
    wait_ns: u64,
    number: u64,
}

#[derive(Event)]
#[event(name = "lpel.end", untimed)]
struct WorkerEnd {
    end_ns: u64,
    waits: u64,
    wait_ns: u64,
    records: u64,
}

#[inline(always)]
pub(super) fn emit_dispatch(log: &Log, dispatch: &Dispatch<'_>) {
    let Dispatch { end_ns, execution_ns, task, number, streams, .. } = *dispatch;
    let status = dispatch.status as u8;
    let too_large = (execution_ns | task | number) >> u32::BITS
        | (streams.len() as u64) >> u8::BITS
        | streams.iter().fold(0, |bits, s| bits | s.stream | s.items) >> u32::BITS;
    if too_large != 0 {
        return emit_wide_dispatch(log, dispatch);
    }
    if let Some(created_ns) = dispatch.created_ns {
        log.emit(&Created { created_ns });
    }
    let (execution_ns, task, number) = (execution_ns as u32, task as u32, number as u32);
    let narrow = |s: &StreamUse| (s.stream as u32, s.items as u32, flags(s));
    match streams {
        [one] => {
            let (stream, items, flags) = narrow(one);
            log.emit(&Dispatch1 {
                end_ns,
                execution_ns,
                task,
                number,
                status,
                streams: 1,
                stream,
                items,
                flags,
            });
        }
        [one, other] => {
            let (stream, items, flags) = narrow(one);
            let (other_stream, other_items, other_flags) = narrow(other);
            log.emit(&Dispatch2 {
                end_ns,
                execution_ns,
                task,
                number,
                status,
                streams: 2,
                stream,
                items,
                flags,
                other_stream,
                other_items,
                other_flags,
            });
        }
        _ => {
            for s in streams {
                let (stream, items, flags) = narrow(s);
                log.emit(&NarrowStream { stream, items, flags });
            }
            let streams = streams.len() as u8;
            log.emit(&NarrowDispatch { end_ns, execution_ns, task, number, status, streams });
        }
    }
}

#[cold]
fn emit_wide_dispatch(log: &Log, dispatch: &Dispatch<'_>) {
    let Dispatch { end_ns, execution_ns, task, number, streams, .. } = *dispatch;
    for s in streams {
        log.emit(&WideStream { stream: s.stream, items: s.items, flags: flags(s) });
    }
    if let Some(created_ns) = dispatch.created_ns {
        log.emit(&Created { created_ns });
    }
    let (status, streams) = (dispatch.status as u8, streams.len() as u64);
    log.emit(&WideDispatch { end_ns, execution_ns, task, number, status, streams });
}

/// Emits the name of a task, which the next dispatch completes.
#[cold]
pub(super) fn emit_name(log: &Log, task: u64, mut name: &str) {
    while !name.is_empty() {
        let mut end = name.len().min(TEXT_BYTES_MAX);
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        log.emit(&NamePart { task, name: &name[..end] });
        name = &name[end..];
    }
}

pub(super) fn emit_wait(log: &Log, wait: &Wait) {
    let Wait { end_ns, wait_ns, number, .. } = *wait;
    log.emit(&WorkerWait { end_ns, wait_ns, number });
}

/// Emits the end of a worker that made `records` records, lost ones included.
pub(super) fn emit_end(log: &Log, end: &End, records: u64) {
    let End { end_ns, waits, wait_ns, .. } = *end;
    log.emit(&WorkerEnd { end_ns, waits, wait_ns, records });
}

fn flags(s: &StreamUse) -> u8 {
    u8::from(s.direction == Direction::Write)
        | u8::from(s.opened) << 1
        | u8::from(s.closed) << 2
        | u8::from(s.blocked) << 3
        | u8::from(s.woke) << 4
        | u8::from(s.moved) << 5
}

/// Inverse of [`flags`].
pub(super) fn stream_use(stream: u64, items: u64, flags: u64) -> StreamUse {
    let flag = |at: u32| flags >> at & 1 == 1;
    StreamUse {
        stream,
        direction: if flag(0) { Direction::Write } else { Direction::Read },
        opened: flag(1),
        closed: flag(2),
        blocked: flag(3),
        woke: flag(4),
        moved: flag(5),
        items,
    }
}
