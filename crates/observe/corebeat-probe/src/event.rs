//! The events of probes: a few bytes per call.

use corebeat_trace::{Event, TEXT_BYTES_MAX};

/// Declares the number of a probe.
#[derive(Event)]
#[event(name = "probe.declare", untimed, kept)]
pub(crate) struct Declare<'a> {
    pub(crate) probe: u16,
    pub(crate) name: &'a str,
    pub(crate) file: &'a str,
    pub(crate) line: u32,
}

impl Declare<'_> {
    /// Largest size in a buffer, including a preceding fix.
    pub(crate) fn bytes_max(&self) -> usize {
        const OTHERS: usize = 64;
        OTHERS + self.name.len().min(TEXT_BYTES_MAX) + self.file.len().min(TEXT_BYTES_MAX)
    }
}

/// A call begins.
#[derive(Event)]
#[event(name = "probe.enter")]
pub(crate) struct Enter {
    pub(crate) probe: u16,
}

/// A call begins, without a time stamp.
#[derive(Event)]
#[event(name = "probe.enter_untimed", untimed)]
pub(crate) struct EnterUntimed {
    pub(crate) probe: u16,
}

/// A field of the next call on this thread, if that is a call of this probe.
#[derive(Event)]
#[event(name = "probe.field", untimed)]
pub(crate) struct Field<'a> {
    pub(crate) probe: u16,
    pub(crate) field: &'a str,
    pub(crate) value: &'a str,
}

/// The innermost open call returns.
#[derive(Event)]
#[event(name = "probe.leave")]
pub(crate) struct Leave;

/// The innermost open call returns, without a time stamp.
#[derive(Event)]
#[event(name = "probe.leave_untimed", untimed)]
pub(crate) struct LeaveUntimed;

/// The innermost open call ends by a panic.
#[derive(Event)]
#[event(name = "probe.panic")]
pub(crate) struct Panic;

/// The innermost open call is the caller of the first call on this line.
#[derive(Event)]
#[event(name = "probe.hand_over")]
pub(crate) struct HandOver {
    pub(crate) line: u64,
}

/// The line runs on this thread or task from here on.
#[derive(Event)]
#[event(name = "probe.resume")]
pub(crate) struct Resume {
    pub(crate) line: u64,
}

/// The line that was resumed last stops running here.
#[derive(Event)]
#[event(name = "probe.suspend")]
pub(crate) struct Suspend;

/// Declares the name of a task.
#[derive(Event)]
#[event(name = "probe.task_name", untimed, kept)]
pub(crate) struct TaskName<'a> {
    pub(crate) task: u64,
    pub(crate) name: &'a str,
}

/// All events that this thread logged since its last event of this kind belong to this task.
#[derive(Event)]
#[event(name = "probe.task", untimed)]
pub(crate) struct Task {
    pub(crate) task: u64,
}
