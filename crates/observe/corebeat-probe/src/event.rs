//! What is written: few bytes a call.

use corebeat_trace::{Event, TEXT_BYTES_MAX};

/// Which number is which probe.
#[derive(Event)]
#[event(name = "probe.declare", untimed, kept)]
pub(crate) struct Declare<'a> {
    pub(crate) probe: u16,
    pub(crate) name: &'a str,
    pub(crate) file: &'a str,
    pub(crate) line: u32,
}

impl Declare<'_> {
    /// What it takes in a buffer, with a fix before it.
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

/// ... of which order alone is known.
#[derive(Event)]
#[event(name = "probe.enter_untimed", untimed)]
pub(crate) struct EnterUntimed {
    pub(crate) probe: u16,
}

/// The innermost open call returns.
#[derive(Event)]
#[event(name = "probe.leave")]
pub(crate) struct Leave;

/// ... of which order alone is known.
#[derive(Event)]
#[event(name = "probe.leave_untimed", untimed)]
pub(crate) struct LeaveUntimed;

/// The innermost open call ends by a panic.
#[derive(Event)]
#[event(name = "probe.panic")]
pub(crate) struct Panic;

/// The innermost open call has called who runs on this line.
#[derive(Event)]
#[event(name = "probe.hand_over")]
pub(crate) struct HandOver {
    pub(crate) line: u64,
}

/// From here on, this line runs here,
#[derive(Event)]
#[event(name = "probe.resume")]
pub(crate) struct Resume {
    pub(crate) line: u64,
}

/// ... to here.
#[derive(Event)]
#[event(name = "probe.suspend")]
pub(crate) struct Suspend;

/// What this thread logged since it logged one of these, this task did.
#[derive(Event)]
#[event(name = "probe.task", untimed)]
pub(crate) struct Task {
    pub(crate) task: u64,
}
