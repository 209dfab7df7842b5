//! Errors of heartbeats.

use crate::{GroupId, PERIOD_MAX, PERIOD_MIN, WINDOW_MAX};
use corebeat_wire::remedy;
use std::borrow::Cow;
use std::io;
use thiserror::Error;

/// An error of attaching, measuring or setting a goal.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The thread beats for a group already.
    #[error(
        "this thread is attached to a group already, and a thread beats for one group, once: \
         use that member, or drop it first"
    )]
    AlreadyAttached,
    /// A child of fork used a member of its parent.
    #[error("this member belongs to the parent process: attach again in the child")]
    Forked,
    /// The group's mode does not permit the operation for other users.
    #[error("{0} does not permit this for other users: the owner of the group can change the mode")]
    NotAllowed(GroupId),
    /// The group does not exist and only its owner can create it, or its mode hides it.
    #[error(
        "{0} does not exist or is not accessible: its owner creates it by attaching, and gives \
         access by a mode"
    )]
    NoSuchGroup(GroupId),
    /// A limit is reached.
    #[error("the limit of {limit} {what} is reached: {}", remedy(what))]
    TooMany {
        /// The limited objects.
        what: Cow<'static, str>,
        /// The limit.
        limit: usize,
    },
    /// Invalid bits in a mode.
    #[error("invalid mode {0:o}: use 600, plus 4 to let others watch, plus 2 to let others beat")]
    BadMode(u32),
    /// An invalid rate.
    #[error("invalid rate of {0:?} beats per second: use a finite number above 0, or none")]
    BadRate(f64),
    /// A goal whose minimum exceeds its maximum.
    #[error(
        "invalid goal of {min:?} to {max:?} beats per second: the minimum must not exceed the maximum"
    )]
    EmptyGoal {
        /// Minimum in beats per second.
        min: f64,
        /// Maximum in beats per second.
        max: f64,
    },
    /// An invalid length of the window.
    #[error("invalid window of {0} samples: use 1 to {WINDOW_MAX}")]
    BadWindow(u32),
    /// A group without maximum rate cannot be held below it.
    #[error("cannot hold a group below its maximum rate without a maximum: set the maximum, too")]
    HoldWithoutMax,
    /// An invalid sampling period.
    #[error("invalid period of {0:?}: use {PERIOD_MIN:?} to {PERIOD_MAX:?}")]
    BadPeriod(std::time::Duration),
    /// Shared memory that was received is invalid.
    #[error(
        "the received {what} is refused, {why}: use programs and a daemon of one version, and \
         attach again"
    )]
    BadMemory {
        /// The expected object.
        what: &'static str,
        /// The reason.
        why: &'static str,
    },
    /// The status page was written during every attempt to read it.
    #[error(
        "cannot read the status page consistently: try again; if the error persists, the monitor \
         has ended while it wrote the page"
    )]
    Unsettled,
    /// The daemon has ended.
    #[error(
        "the daemon that measured this group has ended: start the daemon again, or attach again \
         to measure in this process"
    )]
    MonitorGone,
    /// The daemon refused a request, or does not answer.
    #[error(transparent)]
    Daemon(#[from] corebeat_wire::Error),
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// The failed operation.
        what: &'static str,
        /// Error of the system.
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

#[cfg(test)]
mod tests {
    use super::*;
    use corebeat_wire::{Error as Wire, Refusal};

    #[test]
    fn limit_of_calls_is_not_answered_by_detaching() {
        let limit = Error::too_many("calls a second of a user", 1000).to_string();
        assert!(limit.ends_with("a user is reached: call less often"), "{limit}");
    }

    #[test]
    fn error_of_the_daemon_states_each_part_once() {
        let why = GroupId { owner: 0, number: 7 };
        let refusals = [
            Refusal::NoSuchGroup { why: Error::NoSuchGroup(why).to_string() },
            Refusal::NotAllowed { why: Error::NotAllowed(why).to_string() },
            Refusal::BadRequest { why: Error::BadWindow(0).to_string() },
        ];
        for wire in refusals.map(Wire::Refused).into_iter().chain([Wire::TimedOut, Wire::Closed]) {
            let text = Error::Daemon(wire).to_string();
            for part in ["daemon", "group", "does not", "invalid", "connection"] {
                assert!(text.matches(part).count() <= 1 || part == "group", "{part}: {text}");
            }
            assert!(text.matches("group 7").count() <= 1 && text.contains(": "), "{text}");
            assert!(!text.contains('\n'), "{text}");
        }
    }
}
