//! Groups, their owners and their access modes.

use crate::member::{Consumer, Producer};
use crate::monitor::PERIOD;
use crate::{Error, session};
use corebeat_wire::host::Role;
use std::fmt;
use std::time::Duration;

/// A group to attach to, with options. Each user chooses the numbers of the own groups.
#[derive(Debug, Clone, Copy)]
#[must_use = "call `produce` or `consume` to attach"]
pub struct Group {
    pub(crate) number: u32,
    pub(crate) owner: Option<u32>,
    pub(crate) mode: Option<Mode>,
    pub(crate) period: Duration,
}

impl Group {
    /// This user's group with this number, with its existing mode or [`Mode::OWN`].
    pub fn new(number: u32) -> Group {
        Group { number, owner: None, mode: None, period: PERIOD }
    }

    /// Selects another user's group. Only root can create one.
    pub fn owner(self, uid: u32) -> Group {
        Group { owner: Some(uid), ..self }
    }

    /// Sets the permissions of other users. Only the owner and root can set them. The mode takes
    /// effect when a process attaches first in each role.
    pub fn mode(self, mode: Mode) -> Group {
        Group { mode: Some(mode), ..self }
    }

    /// Sets the sampling period of this process if no daemon runs, from
    /// [`PERIOD_MIN`](crate::PERIOD_MIN) to [`PERIOD_MAX`](crate::PERIOD_MAX); by default
    /// [`PERIOD`]. The shortest requested period is used until all members have detached.
    pub fn period(self, period: Duration) -> Group {
        Group { period, ..self }
    }

    /// Attaches this thread as a producer.
    ///
    /// # Errors
    /// [`Error::AlreadyAttached`] if the thread beats for a group; [`Error::NotAllowed`] and
    /// [`Error::NoSuchGroup`] for groups of other users; [`Error::TooMany`] groups, processes or
    /// threads; [`Error::BadPeriod`]; errors of the system or the daemon.
    pub fn produce(self) -> Result<Producer, Error> {
        Producer::attach(session::current(), &self)
    }

    /// Attaches as a consumer.
    ///
    /// # Errors
    /// As [`produce`](Group::produce), except that a thread may consume from any number of groups.
    pub fn consume(self) -> Result<Consumer, Error> {
        Consumer::attach(session::current(), &self)
    }
}

/// The identity of a group: a user and a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId {
    /// The user that owns the group.
    pub owner: u32,
    /// The number, chosen by the owner.
    pub number: u32,
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "group {} of user {}", self.number, self.owner)
    }
}

/// The permissions of users other than the owner, as bits like those of files. The owner and root
/// have all permissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mode(u32);

impl Mode {
    /// `0o600`: no permissions for others.
    pub const OWN: Mode = Mode(0o600);
    /// `0o604`: others may watch.
    pub const WATCHED: Mode = Mode(0o604);
    /// `0o606`: others may watch and beat.
    pub const OPEN: Mode = Mode(0o606);

    /// Converts bits.
    ///
    /// # Errors
    /// [`Error::BadMode`], unless the bits are `0o600`, optionally with `0o4` (others may watch)
    /// and `0o2` (others may beat).
    pub fn from_bits(bits: u32) -> Result<Mode, Error> {
        if bits & !0o6 == 0o600 { Ok(Mode(bits)) } else { Err(Error::BadMode(bits)) }
    }

    /// The bits.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// Whether the mode permits this role for others.
    pub fn permits_others(self, role: Role) -> bool {
        let bit = match role {
            Role::Producer => 0o2,
            Role::Consumer => 0o4,
        };
        self.0 & bit != 0
    }
}

impl Default for Mode {
    fn default() -> Self {
        Mode::OWN
    }
}

/// The identity of a process as the kernel reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its user ID.
    pub uid: u32,
    /// Its process ID.
    pub pid: u32,
}

impl Peer {
    /// Whether the process has the rights of the group's owner.
    pub(crate) fn owns(&self, group: GroupId) -> bool {
        self.uid == group.owner || self.uid == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_has_bits_for_others_only() {
        for (bits, watch, beat) in
            [(0o600, false, false), (0o604, true, false), (0o602, false, true), (0o606, true, true)]
        {
            let mode = Mode::from_bits(bits).unwrap();
            assert_eq!(
                (mode.permits_others(Role::Consumer), mode.permits_others(Role::Producer)),
                (watch, beat)
            );
            assert_eq!(mode.bits(), bits);
        }
        for bits in [0, 0o6, 0o644, 0o601, 0o1600, u32::MAX] {
            assert!(matches!(Mode::from_bits(bits), Err(Error::BadMode(_))), "{bits:o}");
        }
    }
}
