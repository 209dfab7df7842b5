//! What can go wrong.

use crate::{GroupId, PERIOD_MAX, PERIOD_MIN, WINDOW_MAX};
use std::borrow::Cow;
use std::io;
use thiserror::Error;

/// Why something about heartbeats could not be done.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A thread wanted to beat for a second group.
    #[error(
        "this thread beats for a group already, and can for one at a time: detach it from that one first"
    )]
    AlreadyAttached,
    /// A child of fork used what its parent had.
    #[error("this belongs to the process that was forked: attach again in the child")]
    Forked,
    /// The group is another user's, and its mode does not let others do this.
    #[error("{0} does not let other users do this: its owner can, by another mode")]
    NotAllowed(GroupId),
    /// There is no such group, and only its owner can make it; or it is its owner's alone.
    #[error(
        "there is no {0}, or it is that user's alone: its owner makes it, by attaching, and gives it a mode"
    )]
    NoSuchGroup(GroupId),
    /// A limit was reached.
    #[error("there are {limit} {what}, which is the limit: detach some that are not needed")]
    TooMany {
        /// Of what.
        what: Cow<'static, str>,
        /// How many there may be.
        limit: usize,
    },
    /// A mode with bits that mean nothing.
    #[error("mode {0:o} means nothing here: give 600 and add 4 to let others watch, 2 to let others beat")]
    BadMode(u32),
    /// A rate that no group can have.
    #[error("a rate of {0} beats a second is no goal: give a finite number above 0, or none")]
    BadRate(f64),
    /// A goal with its ends exchanged.
    #[error("a goal from {min} to {max} beats a second is empty: the minimum must not be above the maximum")]
    EmptyGoal {
        /// Lower end, in beats a second.
        min: f64,
        /// Upper end, in beats a second.
        max: f64,
    },
    /// A window without samples, or with too many.
    #[error("a window of {0} samples is not possible: give 1 to {WINDOW_MAX}")]
    BadWindow(u32),
    /// To be held below a maximum that is not there.
    #[error("a group can be held to a maximum rate only where it has one: set the maximum as well")]
    HoldWithoutMax,
    /// Samples too often, or too seldom.
    #[error("a period of {0:?} is not possible: give {PERIOD_MIN:?} to {PERIOD_MAX:?}")]
    BadPeriod(std::time::Duration),
    /// Memory that somebody handed over is not what it should be.
    #[error("the {what} that was handed over is refused, because {why}")]
    BadMemory {
        /// What it should have been.
        what: &'static str,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The status page was being written for as long as we looked.
    #[error("the status page did not come to rest: try again; if that never helps, its monitor has died")]
    Unsettled,
    /// Nobody measures any more.
    #[error("the daemon that measured this group has ended: start it again, or attach anew to measure here")]
    MonitorGone,
    /// The daemon refused, or does not answer.
    #[error("the daemon: {0}")]
    Daemon(#[from] corebeat_wire::Error),
    /// The system refused.
    #[error("{what}: {source}")]
    System {
        /// What we wanted.
        what: &'static str,
        /// What it said.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn too_many(what: &'static str, limit: usize) -> Error {
        Error::TooMany { what: what.into(), limit }
    }

    pub(crate) fn system(what: &'static str, why: impl Into<io::Error>) -> Error {
        Error::System { what, source: why.into() }
    }
}
